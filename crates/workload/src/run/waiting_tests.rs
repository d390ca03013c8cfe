//! Latency that includes waiting, in virtual time: the effect of a stall on every percentile follows from when
//! operations were due, and every percentile follows from the raw log.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use underlay_record::Histogram;

use crate::client::{ClientError, OperationOutcome};
use crate::mix::OperationKind;
use crate::run::pacing::ArrivalProcess;
use crate::run::rate_profile::{RatePart, RateProfile};
use crate::run::raw::{RawAnswer, RawOperation};
use crate::run::simulation::{MS, RunSimulation, S, ScriptedAnswer};

fn histogram_of(values_ns: impl IntoIterator<Item = u64>) -> Histogram {
    let mut histogram = Histogram::default();
    values_ns.into_iter().for_each(|ns| histogram.record_ns(ns));
    histogram
}

/// The value in a histogram of three digits.
fn shown_us(value_ns: u64) -> f64 {
    histogram_of([value_ns]).quantile_us(1.0)
}

/// Nothing ends between the fifth second and the sixth: work in flight, and work that begins then, continues
/// afterwards.
fn end_of(start_ns: u64, work_ns: u64) -> u64 {
    match start_ns {
        5_000_000_000..6_000_000_000 => 6 * S + work_ns,
        _ if start_ns < 5 * S && start_ns + work_ns > 5 * S => start_ns + work_ns + S,
        _ => start_ns + work_ns,
    }
}

fn stalling(work_ns: impl Fn(OperationKind) -> u64 + Send + Sync + 'static) -> RunSimulation {
    RunSimulation::from_kinds(move |kind, now_ns| {
        (end_of(now_ns, work_ns(kind)) - now_ns, Ok(OperationOutcome::Found))
    })
}

/// 100 operations a second of 1 ms each, and a stall of a second. The j-th operation that is due from its beginning on
/// ends j ms after the first of them, and so takes 1001 - 9 j ms, until the queue is empty after 112 of them.
#[test]
fn second_of_stall_shows_expected_percentiles() {
    let simulated =
        RunSimulation { rate_per_wall_s: Some(100.0), duration_ns: 20 * S, ..stalling(|_| MS) }.run();
    let read = &simulated.merged.by_operation["read"];
    let waiting = (0..112).map(|j| (1_001 - 9 * j) * MS);
    let latency = &read.latency.histogram;
    assert_eq!(*latency, histogram_of(waiting.chain(vec![MS; 1_888])), "value by value");
    // Of 2,000, the remaining share is slower: 200, 100, 20, 2 and none of them.
    let expected_ms = [
        (0.5, 1),
        (0.9, 1),
        (0.95, 1_001 - 9 * 100),
        (0.99, 1_001 - 9 * 20),
        (0.999, 1_001 - 9 * 2),
        (1.0, 1_001),
    ];
    for (quantile, ms) in expected_ms {
        assert_eq!(latency.quantile_us(quantile), shown_us(ms * MS), "{quantile}");
    }
    // From the actual start, one operation was slow.
    assert_eq!(read.service.histogram, histogram_of([vec![1_001 * MS], vec![MS; 1_999]].concat()));
}

/// In a closed loop nothing is due while the system stalls: only one operation in 15,000 shows it.
#[test]
fn closed_loop_feels_stall_once() {
    let simulated = RunSimulation { duration_ns: 16 * S, ..stalling(|_| MS) }.run();
    let read = &simulated.merged.by_operation["read"];
    assert_eq!(read.latency.histogram, histogram_of([vec![1_001 * MS], vec![MS; 14_999]].concat()));
    assert_eq!(read.latency.histogram.quantile_us(0.999), shown_us(MS));
}

/// Compared with the recursion of any queue with one server: an operation begins when it is due, or when the previous
/// one has ended.
#[test]
fn operation_kinds_wait_like_a_single_server_queue() {
    let changing = RateProfile::from_parts(&[
        RatePart::Steady { rate_per_s: 90.0, length: Duration::from_secs(3) },
        RatePart::Steady { rate_per_s: 240.0, length: Duration::from_secs(4) },
        RatePart::Ramp { from_per_s: 200.0, to_per_s: 20.0, length: Duration::from_secs(4) },
    ])
    .unwrap();
    for arrivals in ArrivalProcess::ALL {
        for profile in [RateProfile::constant(170.0), changing.clone()] {
            let kinds = Arc::new(Mutex::new(Vec::new()));
            let asked = Arc::clone(&kinds);
            let work_ns = |kind: OperationKind| if kind == OperationKind::Read { MS } else { 3 * MS };
            let simulation = RunSimulation {
                mix: "a",
                threads: 3,
                profile: Some(profile),
                arrivals,
                warmup_ns: S,
                duration_ns: 13 * S,
                ..RunSimulation::from_kinds(move |kind, now_ns| {
                    asked.lock().unwrap().push(kind);
                    (end_of(now_ns, work_ns(kind)) - now_ns, Ok(OperationOutcome::Found))
                })
            };
            let simulated = simulation.run();
            assert_eq!(simulated.unstarted, 0);
            let window = S..14 * S;
            let kinds = kinds.lock().unwrap();
            let mut kinds = kinds.iter();
            let mut expected: BTreeMap<&str, [Histogram; 2]> = BTreeMap::new();
            // Simulated threads run one after the other.
            for thread in 0..3 {
                let (mut schedule, mut free_ns) = (simulation.schedule(thread).unwrap(), 0);
                while free_ns.max(schedule.peek_ns()) < window.end {
                    let kind = *kinds.next().unwrap();
                    let due_ns = schedule.peek_ns();
                    let start_ns = due_ns.max(free_ns);
                    free_ns = end_of(start_ns, work_ns(kind));
                    schedule.advance();
                    let [latency, service] = expected.entry(kind.name()).or_default();
                    if window.contains(&due_ns) {
                        latency.record_ns(free_ns - due_ns);
                    }
                    if window.contains(&start_ns) {
                        service.record_ns(free_ns - start_ns);
                    }
                }
            }
            assert_eq!(kinds.next(), None);
            assert_eq!(expected.keys().copied().collect::<Vec<_>>(), ["read", "update"]);
            for (kind, [latency, service]) in expected {
                let stats = &simulated.merged.by_operation[kind];
                assert!(latency.quantile_us(1.0) > 900_000.0, "{arrivals:?}: the stall is felt");
                assert_eq!(stats.latency.histogram, latency, "{kind} {arrivals:?}");
                assert_eq!(stats.service.histogram, service, "{kind} {arrivals:?}");
            }
        }
    }
}

/// Latency and service time of each kind, recomputed from every single operation.
fn from_raw(operations: &[RawOperation], duration_ns: i64) -> BTreeMap<&'static str, [Histogram; 2]> {
    let mut kinds: BTreeMap<&str, [Histogram; 2]> = BTreeMap::new();
    for one in operations.iter().filter(|one| one.answer.is_timed()) {
        let [latency, service] = kinds.entry(one.kind.name()).or_default();
        if (0..duration_ns).contains(&one.intended_ns) {
            latency.record_ns((one.end_ns - one.intended_ns) as u64);
        }
        if one.answer != RawAnswer::Unstarted && (0..duration_ns).contains(&one.start_ns) {
            service.record_ns((one.end_ns - one.start_ns) as u64);
        }
    }
    kinds
}

fn answer(number: u64) -> ScriptedAnswer {
    match number {
        0 => Ok(OperationOutcome::Missing),
        1 => Ok(OperationOutcome::Throttled),
        2 => Err(ClientError::System("disk full".to_owned())),
        3 => Err(ClientError::Timeout(Duration::from_secs(1))),
        _ => Ok(OperationOutcome::Found),
    }
}

proptest! {
    /// Operations with any outcome, also at the window's edges and in slow motion.
    #[test]
    fn percentiles_follow_from_raw_log(
        mix in proptest::sample::select(vec!["a", "c", "f"]),
        rate in proptest::option::of(20.0f64..400.0),
        poisson in any::<bool>(),
        slow in any::<bool>(),
        warmup_ms in 0u64..500,
        script in proptest::collection::vec((1u64..60, 0u64..9), 1..8),
    ) {
        let calls = AtomicU64::new(0);
        let dilation = if slow { 4.0 } else { 1.0 };
        let simulated = RunSimulation {
            mix,
            threads: 2,
            rate_per_wall_s: rate,
            arrivals: if poisson { ArrivalProcess::Poisson } else { ArrivalProcess::Constant },
            warmup_ns: warmup_ms * MS,
            duration_ns: 2 * S,
            dilation,
            ..RunSimulation::new(move |_| {
                let call = calls.fetch_add(1, Ordering::Relaxed) as usize;
                let (ms, number) = script[call % script.len()];
                (ms * MS, answer(number))
            })
        }
        .run();
        let duration_ns = (2 * S) as i64 / dilation as i64;
        let mut kinds = from_raw(&simulated.raw, duration_ns);
        for (kind, stats) in &simulated.merged.by_operation {
            let [latency, service] = kinds.remove(kind.as_str()).unwrap_or_default();
            prop_assert_eq!(&stats.latency.histogram, &latency, "{}", kind);
            prop_assert_eq!(&stats.service.histogram, &service, "{}", kind);
        }
        prop_assert!(kinds.is_empty());
        let is_answer = |one: &&RawOperation| {
            matches!(one.answer, RawAnswer::Found | RawAnswer::Missing) && (0..duration_ns).contains(&one.end_ns)
        };
        prop_assert_eq!(simulated.raw.iter().filter(is_answer).count() as u64, simulated.merged.operations);
    }
}
