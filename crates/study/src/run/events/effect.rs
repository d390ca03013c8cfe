//! The effect of a stopped node on clients: before, during and after, and the time until others had taken over.

use underlay_record::{Histogram, NodeEventEffect, NodeEventRecord, NodePhase};
use underlay_workload::TimelineInterval;

use crate::run::certificate::OutsideOfEvents;

/// The number of parts in an interval of the time series, so that times are precise.
pub(crate) const TIMELINE_PARTS: u32 = 10;
/// Others have taken over when throughput is back at this share of its earlier value. One node less may well cost a
/// third.
const FAILOVER_SHARE: f64 = 0.5;
/// For this many parts in a row, and on the mean of an interval of the series: a single part may have few operations.
const STEADY_PARTS: usize = 3;

/// Adds to the records what the timeline shows about them.
pub(crate) fn with_effects(
    mut events: Vec<NodeEventRecord>,
    timeline: &[TimelineInterval],
    parts: u32,
) -> Vec<NodeEventRecord> {
    let effects: Vec<_> = (0..events.len()).map(|place| effect(&events, place, timeline, parts)).collect();
    for (event, effect) in events.iter_mut().zip(effects) {
        event.effect = effect;
    }
    events
}

/// Operations that ended while no node was down; `None` where none went down. `threads` are the client threads.
pub(crate) fn outside_of(
    events: &[NodeEventRecord],
    timeline: &[TimelineInterval],
    threads: u32,
) -> Option<OutsideOfEvents> {
    let times = |place: usize| Some((events[place].away_s?, over_s(events, place)));
    let away: Vec<(f64, Option<f64>)> = (0..events.len()).filter_map(times).collect();
    if away.is_empty() {
        return None;
    }
    let is_outside = |one: &TimelineInterval| {
        away.iter().all(|&(away_s, over_s)| {
            one.end_s <= away_s || over_s.is_some_and(|over_s| one.begin_s >= over_s)
        })
    };
    let came_back =
        events.iter().filter(|event| event.away_s.is_some() && event.served_s.is_some()).count() as u64;
    let mut outside =
        OutsideOfEvents { under_way: u64::from(threads) * came_back, ..OutsideOfEvents::default() };
    for one in timeline.iter().filter(|one| is_outside(one)) {
        outside.operations += one.latency.count();
        outside.failed += one.failed;
    }
    Some(outside)
}

/// When an event was over: its node served again, or went down once more without serving, which the next event covers.
/// `None` if it stayed down.
fn over_s(events: &[NodeEventRecord], place: usize) -> Option<f64> {
    let event = &events[place];
    let went_again = || {
        let is_its = |later: &&NodeEventRecord| event.node.is_some() && later.node == event.node;
        let later = events[place + 1..].iter().filter(is_its);
        later.filter_map(|later| later.away_s).find(|&gone_s| Some(gone_s) >= event.away_s)
    };
    event.served_s.or_else(went_again)
}

fn effect(
    events: &[NodeEventRecord],
    place: usize,
    timeline: &[TimelineInterval],
    parts: u32,
) -> Option<NodeEventEffect> {
    let (event, end_s) = (&events[place], timeline.last()?.end_s);
    let away_s = event.away_s.filter(|&away_s| away_s < end_s)?;
    let back_s = over_s(events, place).map_or(end_s, |over_s| over_s.min(end_s));
    let others = || events.iter().enumerate().filter(|&(other, _)| other != place).map(|(_, other)| other);
    // The latest change of those that went down earlier: either they came back or they went down.
    let latest_s = |other: &NodeEventRecord| {
        let gone_s = other.away_s.filter(|&gone_s| gone_s < away_s)?;
        Some(other.served_s.filter(|&served_s| served_s <= away_s).unwrap_or(gone_s))
    };
    let from_s = others().filter_map(latest_s).fold(0.0, f64::max);
    let next_s = |other: &NodeEventRecord| other.away_s.filter(|&gone_s| gone_s >= back_s);
    let to_s = others().filter_map(next_s).fold(end_s, f64::min);
    let is_before = |one: &TimelineInterval| one.begin_s >= from_s && one.end_s <= away_s;
    // A sliver between two events is too short to compare with.
    let is_long_enough =
        from_s == 0.0 || timeline.iter().filter(|one| is_before(one)).count() >= STEADY_PARTS;
    let before = if is_long_enough { phase(timeline, is_before) } else { None };
    let during = phase(timeline, |one| one.end_s > away_s && one.begin_s < back_s)?;
    let after = phase(timeline, |one| one.begin_s >= back_s && one.end_s <= to_s);
    let failover_s = before
        .and_then(|before| failover_s(timeline, away_s, before.throughput_per_s * FAILOVER_SHARE, parts));
    let interval_s = timeline.first().map_or(0.0, |first| first.end_s - first.begin_s);
    Some(NodeEventEffect { before, during, after, failover_share: FAILOVER_SHARE, failover_s, interval_s })
}

fn phase(timeline: &[TimelineInterval], is_in: impl Fn(&TimelineInterval) -> bool) -> Option<NodePhase> {
    let intervals: Vec<&TimelineInterval> = timeline.iter().filter(|one| is_in(one)).collect();
    let (first, last) = (intervals.first()?, intervals.last()?);
    let mut latency = Histogram::default();
    intervals.iter().for_each(|one| latency.merge(&one.latency));
    let us = latency.summary_us();
    let length_s = last.end_s - first.begin_s;
    Some(NodePhase {
        from_s: first.begin_s,
        to_s: last.end_s,
        operations: us.count,
        failed: intervals.iter().map(|one| one.failed).sum(),
        throughput_per_s: us.count as f64 / length_s.max(f64::MIN_POSITIVE),
        mean_us: us.mean,
        p99_us: us.p99,
    })
}

/// The time from `away_s` until throughput was `needed_per_s` again for a while; 0 if it never fell below.
fn failover_s(timeline: &[TimelineInterval], away_s: f64, needed_per_s: f64, parts: u32) -> Option<f64> {
    if needed_per_s <= 0.0 {
        return None;
    }
    let first = timeline.iter().position(|one| one.end_s > away_s)?;
    let is_enough = |some: &[TimelineInterval]| {
        let length_s =
            some.last().map_or(0.0, |last| last.end_s) - some.first().map_or(0.0, |one| one.begin_s);
        some.iter().map(|one| one.latency.count()).sum::<u64>() as f64 >= needed_per_s * length_s
    };
    let steady = |index: usize| {
        let (few, many) = (index + STEADY_PARTS, index + (parts as usize).max(STEADY_PARTS));
        // Throughput that recovers too close to the end may not last.
        let few = timeline.get(index..few)?;
        let many = timeline.get(index..many).unwrap_or(few);
        Some(few.iter().all(|one| is_enough(std::slice::from_ref(one))) && is_enough(many))
    };
    let index = (first..timeline.len()).find(|&index| steady(index) == Some(true))?;
    Some((timeline[index].begin_s - away_s).max(0.0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PARTS: u32 = 4;

    /// Intervals of one second with these numbers of operations of 1 ms each.
    fn timeline(counts: &[u64]) -> Vec<TimelineInterval> {
        let interval = |(begin, &count): (u32, &u64)| {
            let mut latency = Histogram::default();
            latency.record_n_ns(1_000_000, count);
            let begin_s = f64::from(begin);
            TimelineInterval { begin_s, end_s: begin_s + 1.0, latency, failed: u64::from(count == 0) }
        };
        (0..).zip(counts).map(interval).collect()
    }

    fn event(away_s: f64, served_s: Option<f64>) -> NodeEventRecord {
        NodeEventRecord { away_s: Some(away_s), served_s, ..NodeEventRecord::default() }
    }

    /// Nothing is answered from 2 s to 5 s, and a node was down until 4 s: later failures were not requested.
    #[test]
    fn failures_after_recovery_are_counted_apart() {
        let counts = [9, 9, 0, 0, 0, 9];
        assert_eq!(outside_of(&[], &timeline(&counts), 3), None);
        let outside = |events: &[NodeEventRecord]| outside_of(events, &timeline(&counts), 3).unwrap();
        assert_eq!(
            outside(&[event(2.0, Some(4.0))]),
            OutsideOfEvents { operations: 27, failed: 1, under_way: 3 }
        );
        assert_eq!(outside(&[event(2.0, None)]), OutsideOfEvents { operations: 18, failed: 0, under_way: 0 });
        let both = [event(2.0, Some(3.0)), event(2.5, Some(5.0))];
        assert_eq!(outside(&both), OutsideOfEvents { operations: 27, failed: 0, under_way: 6 });
    }

    /// The first event starts its node, and the second one kills it before it serves.
    #[test]
    fn node_lost_while_starting_is_back_when_serving() {
        let of_node = |event| NodeEventRecord { node: Some("node1".to_owned()), ..event };
        let counts = [9, 9, 9, 0, 0, 9, 9, 0, 9];
        let events = [of_node(event(2.0, None)), of_node(event(4.0, Some(6.0)))];
        let outside = outside_of(&events, &timeline(&counts), 3).unwrap();
        assert_eq!(outside, OutsideOfEvents { operations: 36, failed: 1, under_way: 3 });
        let effects = with_effects(events.to_vec(), &timeline(&counts), PARTS);
        let spans: Vec<_> = effects
            .iter()
            .map(|event| event.effect.clone().unwrap().during)
            .map(|during| (during.from_s, during.to_s))
            .collect();
        assert_eq!(spans, [(2.0, 4.0), (4.0, 6.0)]);
        // Another node's event ends nothing.
        let other = NodeEventRecord { node: Some("node2".to_owned()), ..event(4.0, Some(6.0)) };
        let outside = outside_of(&[events[0].clone(), other], &timeline(&counts), 3).unwrap();
        assert_eq!((outside.operations, outside.failed), (18, 0));
    }

    fn only(away_s: f64, served_s: Option<f64>, counts: &[u64]) -> NodeEventEffect {
        let events = with_effects(vec![event(away_s, served_s)], &timeline(counts), PARTS);
        events[0].effect.clone().unwrap()
    }

    #[test]
    fn lost_master_fails_over_when_others_answer() {
        let counts = [100, 100, 100, 60, 0, 0, 0, 80, 90, 90, 90, 95, 100, 100, 100];
        let effect = only(3.5, Some(11.2), &counts);
        let [before, during, after] = [effect.before, Some(effect.during), effect.after].map(Option::unwrap);
        assert_eq!(
            (before.from_s, before.to_s, before.throughput_per_s, before.failed),
            (0.0, 3.0, 100.0, 0)
        );
        assert_eq!((during.from_s, during.to_s, during.operations, during.failed), (3.0, 12.0, 505, 3));
        assert_eq!((after.from_s, after.to_s, after.throughput_per_s), (12.0, 15.0, 100.0));
        assert!((before.mean_us - 1000.0).abs() < 20.0 && (after.p99_us - 1000.0).abs() < 20.0);
        assert_eq!((effect.failover_s, effect.interval_s, effect.failover_share), (Some(3.5), 1.0, 0.5));
    }

    #[test]
    fn unneeded_node_fails_over_at_once_essential_never() {
        assert_eq!(only(2.5, None, &[90; 12]).failover_s, Some(0.0));
        let never = only(2.5, None, &[90, 90, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((never.failover_s, never.after, never.during.failed), (None, None, 8));
        // Throughput that recovers at the last moment may not last.
        assert_eq!(only(2.5, None, &[90, 90, 0, 0, 0, 0, 0, 0, 90, 90]).failover_s, None);
        // A short recovery does not end the outage.
        assert_eq!(only(2.5, None, &[90, 90, 0, 0, 90, 0, 0, 90, 90, 90, 90, 90]).failover_s, Some(4.5));
        assert_eq!(only(0.2, None, &[90; 12]).before, None);
        assert_eq!(only(0.2, None, &[90; 12]).failover_s, None);
    }

    #[test]
    fn events_that_follow_one_another_are_told_apart() {
        let events = vec![event(3.0, Some(5.0)), event(8.0, Some(9.0)), event(20.0, None)];
        let events = with_effects(events, &timeline(&[10; 12]), PARTS);
        let span = |phase: Option<NodePhase>| phase.map(|phase| (phase.from_s, phase.to_s));
        let spans = |place: usize| {
            let effect = events[place].effect.clone().unwrap();
            (span(effect.before), span(Some(effect.during)), span(effect.after))
        };
        assert_eq!(spans(0), (Some((0.0, 3.0)), Some((3.0, 5.0)), Some((5.0, 8.0))));
        assert_eq!(spans(1), (Some((5.0, 8.0)), Some((8.0, 9.0)), Some((9.0, 12.0))));
        assert_eq!(events[2].effect, None, "after the end");
        let close = vec![event(3.0, Some(5.0)), event(6.2, Some(7.0))];
        let close = with_effects(close, &timeline(&[10; 12]), PARTS);
        let second = close[1].effect.clone().unwrap();
        assert_eq!(
            (second.before, second.failover_s),
            (None, None),
            "one interval is no time to compare with"
        );
        assert!(with_effects(vec![event(1.0, None)], &[], PARTS)[0].effect.is_none());
    }

    proptest! {
        /// Phases never overlap, and with a single event they have every operation.
        #[test]
        fn operations_belong_to_one_phase(
            counts in proptest::collection::vec(0u64..50, 1..60),
            away in 0.0f64..1.2,
            length in 0.0f64..1.2,
        ) {
            let timeline = timeline(&counts);
            let whole_s = counts.len() as f64;
            let (away_s, served_s) = (away * whole_s, (away + length) * whole_s);
            let events = with_effects(vec![event(away_s, Some(served_s))], &timeline, PARTS);
            let Some(effect) = &events[0].effect else {
                prop_assert!(away_s >= whole_s);
                return Ok(());
            };
            let phases: Vec<NodePhase> = effect.before.into_iter().chain([effect.during]).chain(effect.after).collect();
            prop_assert!(phases.is_sorted_by(|one, next| one.to_s <= next.from_s), "{:?}", phases);
            let operations: u64 = phases.iter().map(|phase| phase.operations).sum();
            prop_assert_eq!(operations, counts.iter().sum::<u64>());
            if let Some(failover_s) = effect.failover_s {
                prop_assert!((0.0..=whole_s - away_s).contains(&failover_s));
            }
        }
    }
}
