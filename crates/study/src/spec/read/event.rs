//! `[event.NAME]`: a node that goes down while a cell is measured, and may come back.

use std::ops::Range;

use serde_json::Value;
use underlay_config::keys::{AnyText, DurationKind, KeyKind, KeyRow, KeySection, WordKind};
use underlay_config::{Diagnostics, Field, Section, Spanned, sections_of};
use underlay_record::{NodeChoice, NodeExit};

use crate::spec::model::EventSpec;

const AT: KeyRow<DurationKind> = KeyRow::new(
    "at",
    DurationKind { allows_zero: true },
    "\"20 s\"",
    "When the node goes away: modelled time from the beginning of the measurement.",
)
.required();
const FOR: KeyRow<DurationKind> = KeyRow::new(
    "for",
    DurationKind { allows_zero: false },
    "\"10 s\"",
    "How long the node is away, in modelled time.",
)
.or_else("it stays away");
const NODE: KeyRow<ChosenNode> = KeyRow::new(
    "node",
    ChosenNode,
    "\"any node\"",
    "Its name as `underlay node list` prints it, or \"any node\", \"any replica\", \"master of shard 1\".",
)
.required();
const HOW: KeyRow<WordKind<NodeExit>> = KeyRow::new(
    "how",
    WordKind(&[("stop", NodeExit::Stop), ("kill", NodeExit::Kill)]),
    "\"stop\"",
    "Shut down in order, or killed.",
)
.or("\"kill\"");
const SYSTEM: KeyRow<AnyText> =
    KeyRow::new("system", AnyText("the name of a system"), "\"cassandra\"", "The system whose node it is.")
        .or_else("every system of several nodes");

/// `[event.NAME]`
pub(in crate::spec) const EVENT: KeySection = KeySection {
    path: "event.NAME",
    meaning: "A node that goes away while a cell is measured.",
    keys: &[&AT, &FOR, &NODE, &HOW, &SYSTEM],
};

/// `node`
#[derive(Clone, Copy, Debug)]
struct ChosenNode;

impl KeyKind for ChosenNode {
    type Value = NodeChoice;

    fn read(&self, field: &Field<'_>, findings: &mut Diagnostics) -> Option<Spanned<NodeChoice>> {
        let words = AnyText("the name of a node, or \"any node\"");
        let text = words.read(field, findings)?;
        match NodeChoice::parse(&text.value) {
            Ok(choice) => Some(Spanned::new(choice, text.span)),
            Err(problem) => {
                field.invalid(problem.to_string(), findings);
                None
            }
        }
    }

    fn describe(&self) -> String {
        "the name of a node, \"any node\", \"any replica\" or \"master of shard 1\"".to_owned()
    }

    fn schema(&self) -> Value {
        AnyText("").schema()
    }
}

/// An event with the positions that later checks need.
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
    let time = section.read(&AT, findings);
    let duration = section.read_optional(&FOR, findings);
    let node = section.read(&NODE, findings);
    let exit = section.read_optional(&HOW, findings);
    let system = section.read_optional(&SYSTEM, findings);
    section.finish(findings);
    // An unreadable value has been reported: no default replaces it.
    let (time, duration, node, exit, system) = (time?, duration?, node?, exit?, system?);
    let spec = EventSpec {
        name,
        at: time.value,
        duration: duration.map(|duration| duration.value),
        node: node.value,
        how: exit.map_or_else(|| HOW.default_value(), |exit| exit.value),
        system: system.as_ref().map(|name| name.value.clone()),
    };
    Some(EventSite {
        spec,
        at_span: time.span,
        node_span: node.span,
        system_span: system.map(|name| name.span),
    })
}
