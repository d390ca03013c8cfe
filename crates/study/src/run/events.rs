//! A study's events in a cell: nodes that go away and come back while it is measured.

mod effect;

use std::sync::atomic::AtomicBool;

use underlay_attach::ResourceRegistry;
use underlay_config::units::format_duration;
use underlay_record::{NodeEventRecord, NodeExit};

use super::CellError;
use crate::session::StartedServers;
use crate::session::nodes::{NodeDesk, PlannedEvent};
use crate::spec::{EventSpec, Study, SystemSpec};

pub(super) use effect::{TIMELINE_PARTS, outside_of, with_effects};

/// The events of a study that concern a system; none for one without nodes that could go.
pub(super) fn concerning(study: &Study, system: &SystemSpec) -> Vec<PlannedEvent> {
    let events: Vec<&EventSpec> = study.events.iter().filter(|event| event.concerns(&system.name)).collect();
    if events.is_empty() || system.planned_nodes().is_empty() {
        return Vec::new();
    }
    events.into_iter().map(planned).collect()
}

fn planned(spec: &EventSpec) -> PlannedEvent {
    PlannedEvent {
        name: spec.name.clone(),
        choice: spec.node.clone(),
        how: spec.how,
        at: spec.at,
        duration: spec.duration,
    }
}

/// A note for a reader of a failure; `None` without events.
pub(super) fn note(events: &[PlannedEvent]) -> Option<String> {
    let one = |event: &PlannedEvent| {
        let verb = match event.how {
            NodeExit::Stop => "stopped",
            NodeExit::Kill => "killed",
        };
        let length =
            event.duration.map_or_else(String::new, |length| format!(" for {}", format_duration(length)));
        format!("{}: {} {verb} at {}{length}", event.name, event.choice, format_duration(event.at))
    };
    let list: Vec<String> = events.iter().map(one).collect();
    (!list.is_empty()).then(|| format!("nodes away on command: {}", list.join("; ")))
}

/// Where the nodes of a system are commanded from while it is measured; `None` where it has none. `count` has it take
/// down what they have counted, which a system does whenever it tells its figures.
pub(super) fn desk<'a>(
    servers: &'a StartedServers,
    count: &'a (dyn Fn() + Sync),
    time_scale: f64,
) -> Option<NodeDesk<'a>> {
    servers.nodes().map(|nodes| NodeDesk::new(nodes, count, time_scale))
}

/// Does something while the events come about.
pub(super) fn attended<T>(
    desk: Option<&NodeDesk<'_>>,
    events: &[PlannedEvent],
    registry: &ResourceRegistry,
    stop: &AtomicBool,
    act: impl FnOnce() -> T,
) -> Result<T, CellError> {
    match desk {
        Some(desk) => Ok(desk.attend(events, registry, stop, act)?),
        None => Ok(act()),
    }
}

/// Problems with events, and unplanned ones, for the warnings of a cell.
pub(super) fn problems(events: &[NodeEventRecord]) -> Vec<String> {
    let by_hand = events.iter().filter(|event| event.event.is_none()).filter_map(|event| {
        let node = event.node.as_deref().unwrap_or(&event.chosen);
        let verb = match event.how {
            NodeExit::Stop => "stopped",
            NodeExit::Kill => "killed",
        };
        Some(format!("{node} {verb} at {:.1} s", event.away_s?))
    });
    // In one sentence: the report keeps one of those that differ by numbers alone.
    let by_hand: Vec<String> = by_hand.collect();
    let by_hand =
        (!by_hand.is_empty()).then(|| format!("nodes were sent away by hand: {}", by_hand.join(", ")));
    let problem = |event: &NodeEventRecord| {
        let name = event.event.as_deref().map_or("by hand".to_owned(), |name| format!("event {name}"));
        let node = event.node.as_deref().unwrap_or(&event.chosen);
        Some(format!("{name}, {node}: {}", event.problem.as_ref()?))
    };
    let back_by_hand = events.iter().filter(|event| event.started_by_hand).filter_map(|event| {
        let (name, node) = (event.event.as_deref()?, event.node.as_deref()?);
        Some(format!(
            "event {name} did not bring {node} back: it was started by hand {:.1} s after the measurement began",
            event.start_s?
        ))
    });
    by_hand.into_iter().chain(back_by_hand).chain(events.iter().filter_map(problem)).collect()
}
