//! A study's events in a cell: nodes that go down and come back during the measurement.

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

/// The events of a study that concern a system; none for a system without nodes that can go down.
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

/// A note on a failure, for its readers; `None` without events.
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

/// The desk that commands the nodes of a system during the measurement; `None` if the system has none. With `count`, it
/// records what the nodes have counted, as a system does whenever it reports its metrics.
pub(super) fn desk<'a>(
    servers: &'a StartedServers,
    count: &'a (dyn Fn() + Sync),
    time_scale: f64,
) -> Option<NodeDesk<'a>> {
    servers.nodes().map(|nodes| NodeDesk::new(nodes, count, time_scale))
}

/// Calls a function while the events take place.
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
    // In one sentence, since the report merges sentences that differ only in numbers.
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
