//! Nodes that went away while a cell was measured.

use underlay_record::{NodeEventRecord, NodeExit, NodePhase, RunRecord};

use super::{CellResult, ComparisonRow, RunComparison};
use crate::quantity::{self, ABSENT};

/// The repetitions of a row on a storage in which nodes went.
pub(crate) struct NodeDepartures<'a> {
    /// Its place among the storages.
    pub storage: usize,
    pub records: Vec<&'a RunRecord>,
}

/// The rows in which nodes went, with the storages on which they did.
pub(crate) fn group_by_row<'a>(
    comparison: &'a RunComparison<'a>,
) -> Vec<(&'a ComparisonRow<'a>, Vec<NodeDepartures<'a>>)> {
    let of_row = |row: &'a ComparisonRow<'a>| {
        let departures_of = |(storage, result): (usize, &'a Option<CellResult<'a>>)| {
            let result = result.as_ref()?;
            // Also where a node was sent away by hand: the figures leave that out, and what the system made of it is
            // still to be read.
            let all = result.completed().chain(result.disturbed.iter().copied());
            let records: Vec<&RunRecord> = all.filter(|record| !record.node_events.is_empty()).collect();
            (!records.is_empty()).then_some(NodeDepartures { storage, records })
        };
        let departures: Vec<NodeDepartures<'a>> =
            row.cells.iter().enumerate().filter_map(departures_of).collect();
        (!departures.is_empty()).then_some((row, departures))
    };
    comparison.rows.iter().filter_map(of_row).collect()
}

/// Which node went, how, and when it was back: `shard1-node1 (master) killed at 5.0 s, back at 9.1 s`.
pub fn node_event_in_words(event: &NodeEventRecord) -> String {
    match (event.away_s, event.served_s, event.start_s) {
        (Some(_), None, Some(_)) => format!("{} and not back", node_event_so_far(event)),
        (Some(_), None, None) => format!("{}, stayed away", node_event_so_far(event)),
        _ => node_event_so_far(event),
    }
}

/// The same while the cell still runs: the node may yet come back.
pub fn node_event_so_far(event: &NodeEventRecord) -> String {
    let node = event.node.as_deref().unwrap_or(&event.chosen);
    let role = event.role.map_or_else(String::new, |role| format!(" ({role})"));
    let Some(away_s) = event.away_s else {
        return format!("{node}: nothing happened");
    };
    let verb = match event.how {
        NodeExit::Stop => "stopped",
        NodeExit::Kill => "killed",
    };
    let back = match (event.served_s, event.start_s) {
        (Some(served_s), _) => format!(", back at {}", seconds(served_s)),
        (None, Some(start_s)) => format!(", start command at {}", seconds(start_s)),
        (None, None) => String::new(),
    };
    format!("{node}{role} {verb} at {}{back}", seconds(away_s))
}

fn seconds(s: f64) -> String {
    if s < 10.0 { format!("{s:.2} s") } else { format!("{s:.1} s") }
}

/// The figures of an event as both reports show them, in the order of [`COLUMNS`].
pub(crate) fn figures(event: &NodeEventRecord) -> Vec<String> {
    let effect = event.effect.as_ref();
    let phases = effect.map(|effect| [effect.before, Some(effect.during), effect.after]);
    let each = |describe: &dyn Fn(&NodePhase) -> String| {
        let parts = phases
            .unwrap_or([None; 3])
            .map(|phase| phase.map_or(ABSENT.to_owned(), |phase| describe(&phase)));
        parts.join(" · ")
    };
    let failover = match effect {
        Some(effect) if effect.before.is_some() => effect.failover_s.map_or("not seen".to_owned(), seconds),
        _ => ABSENT.to_owned(),
    };
    vec![
        failover,
        event.recovery_s().map_or(ABSENT.to_owned(), seconds),
        each(&|phase| quantity::rate(phase.throughput_per_s)),
        each(&|phase| phase.failed.to_string()),
        each(&|phase| {
            if phase.operations == 0 { ABSENT.to_owned() } else { quantity::latency(phase.mean_us) }
        }),
        each(&|phase| {
            if phase.operations == 0 { ABSENT.to_owned() } else { quantity::latency(phase.p99_us) }
        }),
    ]
}

/// Titles of [`figures`]; those of three parts are before, during and after.
pub(crate) const COLUMNS: [&str; 6] = ["fail over", "recovery", "ops/s", "failed", "mean", "p99"];

/// Explains the columns to the reader.
pub(crate) const LEGEND: &str = "Three figures are before, while and after the node was down. Fail over: from the \
                                 moment it went down until throughput was back at half its former value. Recovery: \
                                 from the start command until the node served again.";

#[cfg(test)]
mod tests {
    use underlay_record::{NodeEventEffect, NodeRole};

    use super::*;

    #[test]
    fn node_event_has_words_and_figures() {
        let phase = |throughput_per_s: f64, failed: u64, operations: u64| NodePhase {
            throughput_per_s,
            failed,
            operations,
            mean_us: 1000.0,
            p99_us: 5000.0,
            ..NodePhase::default()
        };
        let effect = NodeEventEffect {
            before: Some(phase(500.0, 0, 9)),
            during: phase(100.0, 7, 0),
            failover_share: 0.5,
            failover_s: Some(2.5),
            ..NodeEventEffect::default()
        };
        let mut event = NodeEventRecord {
            event: Some("lost".to_owned()),
            chosen: "master of shard 1".to_owned(),
            node: Some("shard1-node1".to_owned()),
            role: Some(NodeRole::Master),
            away_s: Some(5.0),
            start_s: Some(8.0),
            served_s: Some(12.25),
            effect: Some(effect),
            ..NodeEventRecord::default()
        };
        assert_eq!(node_event_in_words(&event), "shard1-node1 (master) killed at 5.00 s, back at 12.2 s");
        let shown = figures(&event);
        // The second is from the order to start the node until it served.
        assert_eq!(shown[..2], ["2.50 s", "4.25 s"]);
        assert_eq!(shown[3], format!("0 · 7 · {ABSENT}"));
        assert!(
            shown[5].starts_with(&quantity::latency(5000.0))
                && shown[5].ends_with(&format!("{ABSENT} · {ABSENT}"))
        );
        event.served_s = None;
        assert!(node_event_in_words(&event).ends_with("start command at 8.00 s and not back"));
        event.start_s = None;
        event.effect.as_mut().unwrap().failover_s = None;
        assert!(node_event_in_words(&event).ends_with("stayed away"));
        assert_eq!(node_event_so_far(&event), "shard1-node1 (master) killed at 5.00 s");
        assert_eq!(figures(&event)[0], "not seen");
        event.away_s = None;
        assert_eq!(node_event_in_words(&event), "shard1-node1: nothing happened");
        assert_eq!(figures(&NodeEventRecord::default()).len(), COLUMNS.len());
    }
}
