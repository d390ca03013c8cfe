//! Whether a rate was offered as it was asked for: all that was due was sent, and nothing that was due before was answered instead.

use underlay_record::{Check, Measured};
use underlay_workload::Aftermath;

use super::in_flight;

/// Operations that were due and not sent may be this share: the end of the time meets some that wait for a moment.
const UNSENT_TOLERANCE: f64 = 0.001;
/// So much more may be answered than was due ...
const BACKLOG_TOLERANCE: f64 = 0.01;
/// ... or as many operations as this many times those under way on average, and a few: their number is never the same at both edges.
const BACKLOG_PER_IN_FLIGHT: f64 = 4.0;
const FEW_OPERATIONS: f64 = 5.0;

pub(super) fn check(measured: &Measured, aftermath: &Aftermath) -> Check {
    let unstarted = aftermath.unstarted;
    let unsent = unstarted as f64 / (measured.operations + unstarted).max(1) as f64;
    let due = due(measured, aftermath);
    let excess = (measured.operations as f64 - due).max(0.0);
    let allowed = (BACKLOG_TOLERANCE * due).max(BACKLOG_PER_IN_FLIGHT * in_flight(measured) + FEW_OPERATIONS);
    let check = |passed, finding, extent, remedy: Option<&str>| Check {
        name: "offered rate".into(),
        passed,
        finding,
        extent: Some(extent),
        remedy: remedy.map(str::to_owned),
    };
    if excess > allowed {
        return check(
            false,
            format!(
                "{} operations were answered and only {due:.0} were due: a backlog of the warm-up was worked off in the measured time \
                 (allowed: {allowed:.0} more than due)",
                measured.operations
            ),
            excess / due.max(1.0),
            Some("measure it again, with a longer `warmup` if nothing had stood still"),
        );
    }
    let is_sent = unsent <= UNSENT_TOLERANCE;
    check(
        is_sent,
        format!(
            "{unstarted} operations that were due could not be sent before the end, {:.2} % (allowed: {:.1} %)",
            unsent * 100.0,
            UNSENT_TOLERANCE * 100.0
        ),
        unsent,
        (!is_sent)
            .then_some("the system is slower than the rate: lower it, or read the latency as a lower bound"),
    )
}

/// How many operations were due in the window. Those that failed or were refused have no latency, but for timeouts.
fn due(measured: &Measured, aftermath: &Aftermath) -> f64 {
    let throttled: u64 = measured.by_operation.values().map(|stats| stats.throttled).sum();
    let without_latency = (measured.errors + throttled).saturating_sub(aftermath.timed_timeouts);
    measured.latency.histogram.count().saturating_add(without_latency) as f64
}

#[cfg(test)]
mod tests {
    use underlay_record::{Histogram, Latency, OperationStats};

    use super::*;

    /// So many reads answered, and so many due, in a window of 4 s. Each took 5 ms.
    fn measured(answered: u64, due: u64) -> Measured {
        let all_of = |count: u64| {
            let mut histogram = Histogram::default();
            histogram.record_n_ns(5_000_000, count);
            Latency::of(histogram)
        };
        let read = OperationStats {
            count: answered,
            latency: all_of(due),
            service: all_of(answered),
            ..OperationStats::default()
        };
        Measured {
            duration_s: 4.0,
            wall_s: 4.0,
            operations: answered,
            throughput_per_s: answered as f64 / 4.0,
            latency: all_of(due),
            by_operation: [("read".to_owned(), read)].into(),
            ..Measured::default()
        }
    }

    fn passes(answered: u64, due: u64) -> bool {
        check(&measured(answered, due), &Aftermath::default()).passed
    }

    /// A run whose warm-up stood still for 3.9 s answered 3,116 operations at 400 a second in 4 s, and was averaged with the others.
    #[test]
    fn a_backlog_that_was_worked_off_in_the_window_is_not_the_offered_rate() {
        let backlog = check(&measured(3_116, 1_600), &Aftermath::default());
        assert!(!backlog.passed);
        assert!(
            backlog.finding.starts_with("3116 operations were answered and only 1600 were due"),
            "{}",
            backlog.finding
        );
        assert!(!passes(1_122, 600));
    }

    #[test]
    fn as_many_as_were_under_way_at_an_edge_are_noise() {
        assert!(passes(1_600, 1_600));
        assert!(passes(1_610, 1_600), "two under way on average, and more at first");
        assert!(passes(1_590, 1_600), "and more at last");
        assert!(passes(25, 20), "a low rate");
        assert!(!passes(60, 20));
        assert!(passes(100_900, 100_000), "less than a hundredth");
    }

    #[test]
    fn refusals_and_failures_were_due_too() {
        let mut refused = measured(1_500, 1_500);
        refused.errors = 60;
        refused.by_operation.entry("read".to_owned()).or_default().throttled = 40;
        assert_eq!(due(&refused, &Aftermath::default()), 1_600.0);
        let timed = Aftermath { timed_timeouts: 60, ..Aftermath::default() };
        assert_eq!(due(&refused, &timed), 1_540.0, "a timeout is among the latencies");
    }

    #[test]
    fn what_was_never_sent_is_not_offered() {
        let unsent = |unstarted| {
            check(&measured(1_600, 1_600 + unstarted), &Aftermath { unstarted, ..Aftermath::default() })
                .passed
        };
        assert!(unsent(1));
        assert!(!unsent(9));
    }
}
