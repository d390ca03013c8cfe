//! `[event.NAME]`: a node that goes away while a cell is measured, and comes back or not.

use std::ops::Range;

use underlay_config::{Diagnostics, Section, sections_of};
use underlay_record::{NodeChoice, NodeExit};

use crate::spec::model::EventSpec;

/// An event with the places that later checks point at.
#[derive(Clone)]
pub(in crate::spec) struct EventSite {
    pub spec: EventSpec,
    pub at_span: Range<usize>,
    pub node_span: Range<usize>,
    pub system_span: Option<Range<usize>>,
}

pub(in crate::spec) fn read(root: &mut Section<'_>, findings: &mut Diagnostics) -> Vec<EventSite> {
    let Some(field) = root.take("event") else { return Vec::new() };
    let sections = sections_of(&field, "event", "lost-node", findings);
    sections.into_iter().filter_map(|(name, section)| read_event(name, section, findings)).collect()
}

fn read_event(name: String, mut section: Section<'_>, findings: &mut Diagnostics) -> Option<EventSite> {
    let time =
        section.require("at", "at = \"20 s\"", findings).and_then(|field| field.duration(true, findings));
    let duration = section.take("for").map(|field| field.duration(false, findings));
    let node = section.require("node", "node = \"any node\"", findings).and_then(|field| {
        let text = field.text("the name of a node, or \"any node\"", findings)?;
        match NodeChoice::parse(&text.value) {
            Ok(choice) => Some((choice, text.span)),
            Err(problem) => {
                field.invalid(problem.to_string(), findings);
                None
            }
        }
    });
    let exit = section.take("how").map(|field| field.word(&["stop", "kill"], findings));
    let system = section.take("system").map(|field| field.text("the name of a system", findings));
    section.finish(findings);
    // An unreadable value is a mistake already: nothing replaces it.
    let (time, (node, node_span)) = (time?, node?);
    let exit = match exit {
        None => NodeExit::default(),
        Some(word) if word.as_ref()?.value == "stop" => NodeExit::Stop,
        Some(_) => NodeExit::Kill,
    };
    let spec = EventSpec {
        name,
        at: time.value,
        duration: duration.map_or(Some(None), |read| read.map(|span| Some(span.value)))?,
        node,
        how: exit,
        system: system.clone().map_or(Some(None), |read| read.map(|name| Some(name.value)))?,
    };
    Some(EventSite {
        spec,
        at_span: time.span,
        node_span,
        system_span: system.flatten().map(|name| name.span),
    })
}
