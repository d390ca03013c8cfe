//! Whether a rate was offered as requested: every operation that was due was sent, and none that was due earlier was
//! answered in its place.

use underlay_record::pauses::allowed_wall_s;
use underlay_record::{Check, CheckId, MeasuredWindow};
use underlay_workload::RunAftermath;

use super::mean_in_flight;

/// Operations that were due and not sent may be this share. At the end of the window some always wait for a moment.
const UNSENT_TOLERANCE: f64 = 0.001;
/// Answers may exceed the operations that were due by this many times the average in flight, plus a few. The number in
/// flight is never the same at both edges.
const BACKLOG_PER_IN_FLIGHT: f64 = 4.0;
const FEW_OPERATIONS: f64 = 5.0;
/// Operations that wait to be sent count as well, up to this many times the square root of the number due, which is how
/// much the number varies.
const SCATTER: f64 = 2.0;

pub(super) fn check(measured: &MeasuredWindow, aftermath: &RunAftermath) -> Check {
    let unstarted = aftermath.unstarted;
    let unsent = unstarted as f64 / (measured.operations + unstarted).max(1) as f64;
    let due = due(measured, aftermath);
    let excess = (measured.operations as f64 - due).max(0.0);
    let allowed = allowed_backlog(measured, due);
    if excess > allowed {
        let finding = format!(
            "{} operations were answered and only {due:.0} were due: a backlog of the warm-up was worked off in the measured time \
             (allowed: {allowed:.0} more than due)",
            measured.operations
        );
        return Check::new(CheckId::OfferedRate, false, finding)
            .with_extent(excess / due.max(1.0))
            .with_remedy("measure it again; if nothing had stood still, with a longer `warmup`");
    }
    let finding = format!(
        "{unstarted} operations that were due could not be sent before the end, {:.2} % (allowed: {:.1} %)",
        unsent * 100.0,
        UNSENT_TOLERANCE * 100.0
    );
    Check::new(CheckId::OfferedRate, unsent <= UNSENT_TOLERANCE, finding)
        .with_extent(unsent)
        .with_remedy("the system is slower than the rate: lower it, or read the latency as a lower bound")
}

/// By how many operations answers may exceed those that were due. A host that is busy just before the window leaves as
/// much behind as one that is busy within it, so this allows for one pause. Near its limit a system has a queue, which
/// also differs between the edges.
fn allowed_backlog(measured: &MeasuredWindow, due: f64) -> f64 {
    let window_s = measured.wall_s.max(f64::MIN_POSITIVE);
    let of_a_pause = allowed_wall_s(1, window_s) / window_s * due;
    let of_those_sent = BACKLOG_PER_IN_FLIGHT * mean_in_flight(measured) + FEW_OPERATIONS;
    let waited_us = measured.latency.histogram.count() as f64 * measured.latency.us.mean;
    let waiting = waited_us / (measured.duration_s * 1e6).max(f64::MIN_POSITIVE);
    let of_those_waiting = (BACKLOG_PER_IN_FLIGHT * waiting).min(SCATTER * due.sqrt());
    of_a_pause.max(of_those_sent).max(of_those_waiting)
}

/// How many operations were due in the window. Operations that failed or were refused have no latency, except for
/// timeouts.
fn due(measured: &MeasuredWindow, aftermath: &RunAftermath) -> f64 {
    let throttled: u64 = measured.by_operation.values().map(|stats| stats.throttled).sum();
    let without_latency = (measured.errors + throttled).saturating_sub(aftermath.timed_timeouts);
    measured.latency.histogram.count().saturating_add(without_latency) as f64
}

#[cfg(test)]
mod tests {
    use underlay_record::{Histogram, OperationStats, RecordedLatency};

    use super::*;

    /// This many reads answered, and this many due, in a window of 4 s. Each took 5 ms.
    fn measured(answered: u64, due: u64) -> MeasuredWindow {
        let all_of = |count: u64| {
            let mut histogram = Histogram::default();
            histogram.record_n_ns(5_000_000, count);
            RecordedLatency::new(histogram)
        };
        let read = OperationStats {
            count: answered,
            latency: all_of(due),
            service: all_of(answered),
            ..OperationStats::default()
        };
        MeasuredWindow {
            duration_s: 4.0,
            wall_s: 4.0,
            operations: answered,
            throughput_per_s: answered as f64 / 4.0,
            latency: all_of(due),
            by_operation: [("read".to_owned(), read)].into(),
            ..MeasuredWindow::default()
        }
    }

    fn passes(answered: u64, due: u64) -> bool {
        check(&measured(answered, due), &RunAftermath::default()).passed
    }

    /// A run that stalled for 3.9 s in its warm-up answered 3,116 operations at 400 a second in 4 s, and was averaged
    /// with the others.
    #[test]
    fn backlog_worked_off_in_window_is_not_offered_rate() {
        let backlog = check(&measured(3_116, 1_600), &RunAftermath::default());
        assert!(!backlog.passed);
        assert!(
            backlog.finding.starts_with("3116 operations were answered and only 1600 were due"),
            "{}",
            backlog.finding
        );
        assert!(!passes(1_122, 600));
    }

    #[test]
    fn operations_in_flight_at_edges_are_noise() {
        assert!(passes(1_600, 1_600));
        assert!(passes(1_610, 1_600), "two in flight on average, and more at first");
        assert!(passes(1_590, 1_600), "and more at last");
        assert!(passes(25, 20), "a low rate");
        assert!(!passes(60, 20));
        assert!(passes(100_900, 100_000), "less than a hundredth");
    }

    /// Two cores that were busy for 0.15 s as the window of 4 s began. A pause of this length within the window would
    /// not matter either.
    #[test]
    fn brief_backlog_of_busy_moment_is_ignored() {
        assert!(passes(4_150, 4_000), "0.15 s at 1,000 a second");
        assert!(!passes(4_300, 4_000), "longer than a single pause may be");
        let minute = MeasuredWindow { wall_s: 60.0, duration_s: 60.0, ..measured(61_000, 60_000) };
        assert!(!check(&minute, &RunAftermath::default()).passed, "a second of a minute is no moment");
        let slow_motion = MeasuredWindow { wall_s: 60.0, ..measured(4_150, 4_000) };
        assert!(!check(&slow_motion, &RunAftermath::default()).passed, "it took 2 s of this machine's clock");
    }

    /// One thread at nine tenths of what the system can do: nine operations wait on average, and sometimes 30.
    #[test]
    fn queue_near_limit_may_differ_at_edges() {
        let waiting = |answered, due, each_ns| {
            let mut all = Histogram::default();
            all.record_n_ns(each_ns, due);
            let measured = measured(answered, due);
            let whole = MeasuredWindow {
                wall_s: 60.0,
                duration_s: 60.0,
                latency: RecordedLatency::new(all),
                ..measured
            };
            check(&whole, &RunAftermath::default()).passed
        };
        assert!(waiting(890, 860, 620_000_000));
        assert!(!waiting(890, 860, 5_000_000), "nothing waited");
        assert!(!waiting(26_000, 24_000, 2_000_000_000), "it was behind all the time");
    }

    #[test]
    fn refusals_and_failures_were_due_too() {
        let mut refused = measured(1_500, 1_500);
        refused.errors = 60;
        refused.by_operation.entry("read".to_owned()).or_default().throttled = 40;
        assert_eq!(due(&refused, &RunAftermath::default()), 1_600.0);
        let timed = RunAftermath { timed_timeouts: 60, ..RunAftermath::default() };
        assert_eq!(due(&refused, &timed), 1_540.0, "a timeout is among the latencies");
    }

    #[test]
    fn unsent_operations_are_not_offered() {
        let unsent = |unstarted| {
            check(&measured(1_600, 1_600 + unstarted), &RunAftermath { unstarted, ..RunAftermath::default() })
                .passed
        };
        assert!(unsent(1));
        assert!(!unsent(9));
    }
}
