//! Threads in virtual time: measurements must follow from when operations were due and how long they took.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;

use crate::client::{ClientError, OperationOutcome};
use crate::run::pacing::{ArrivalProcess, ThreadSchedule};
use crate::run::rate_profile::{RatePart, RateProfile};
use crate::run::simulation::{MS, RunSimulation, S, assert_near};
use crate::run::worker::ThreadEnding;

/// 100 operations a second of 1 ms each; the one due at 5 s takes a second. Those due meanwhile wait: the j-th after it
/// has a latency of 1 s - 9 ms x j, until the queue is empty after 111 of them.
#[test]
fn stall_delays_every_waiting_arrival() {
    let simulated = RunSimulation {
        rate_per_wall_s: Some(100.0),
        duration_ns: 20 * S,
        ..RunSimulation::new(|now_ns| (if now_ns == 5 * S { S } else { MS }, Ok(OperationOutcome::Found)))
    }
    .run();
    let read = &simulated.merged.by_operation["read"];
    assert_eq!((read.latency.us.count, read.count, simulated.unstarted), (2000, 2000, 0));
    let latency = &read.latency.histogram;
    assert_near(latency.quantile_us(0.5), 1_000.0);
    // The 20 slowest of 2,000 are the stalled one and j = 1 to 19, so p99 is that of j = 20.
    assert_near(latency.quantile_us(0.99), 1_000_000.0 - 9_000.0 * 20.0);
    assert_near(latency.quantile_us(0.999), 1_000_000.0 - 9_000.0 * 2.0);
    assert_near(read.latency.us.max, 1_000_000.0);
    let waiting_us: f64 = (0..=111).map(|j| 1_000_000.0 - 9_000.0 * f64::from(j)).sum();
    assert_near(read.latency.us.mean, (waiting_us + 1_000.0 * (2000.0 - 112.0)) / 2000.0);
    // From the actual start, one operation was slow and the others were not affected.
    assert_near(read.service.histogram.quantile_us(0.999), 1_000.0);
    assert_near(read.service.us.max, 1_000_000.0);
    // The second of the stall has no answers, and the queue is worked off afterwards.
    assert_eq!(simulated.points.iter().map(|point| point.operations).sum::<u64>(), 2000);
    assert_eq!((simulated.points[5].operations, simulated.points[5].throughput_per_s), (0, 0.0));
    assert_eq!(simulated.points[6].operations, 200);
    assert_eq!(simulated.merged.lateness_p99_us, Some(0.001), "the waiting is the system's fault");
}

/// A system that serves 50 of 100 operations a second. Half of the operations due within 10 s are never sent, and each
/// of those counts with its wait until the end.
#[test]
fn unreached_arrivals_of_saturated_system_wait_until_end() {
    let simulated = RunSimulation {
        rate_per_wall_s: Some(100.0),
        ..RunSimulation::new(|_| (20 * MS, Ok(OperationOutcome::Found)))
    }
    .run();
    let read = &simulated.merged.by_operation["read"];
    assert_eq!((read.latency.us.count, read.service.us.count), (1000, 500));
    assert_eq!((simulated.unstarted, simulated.merged.operations), (500, 499));
    // Arrival i < 500 ends at 20 ms x (i + 1), so it took 10 ms x i + 20 ms; arrival 999 waited 10 ms.
    assert_near(read.latency.us.max, 5_010_000.0);
    assert_near(read.latency.us.min, 10_000.0);
    let sent: f64 = (0..500).map(|i| 10_000.0 * f64::from(i) + 20_000.0).sum();
    let unsent: f64 = (500..1000).map(|i| 10_000_000.0 - 10_000.0 * f64::from(i)).sum();
    assert_near(read.latency.us.mean, (sent + unsent) / 1000.0);
}

/// The same, stopped after 5 s: half of the operations due by then had not been sent.
#[test]
fn unreached_arrivals_of_stopped_run_wait_until_stop() {
    let saturated = RunSimulation::new(|_| (20 * MS, Ok(OperationOutcome::Found)));
    let simulated =
        RunSimulation { rate_per_wall_s: Some(100.0), stop_at_ns: Some(5 * S), ..saturated }.run();
    assert_eq!(simulated.endings, [ThreadEnding::Stopped]);
    let read = &simulated.merged.by_operation["read"];
    assert_eq!((read.latency.us.count, read.service.us.count, simulated.unstarted), (500, 250, 250));
    // The last that was sent was due at 2.49 s; the first that was not, at 2.5 s.
    assert_near(read.latency.us.max, 2_510_000.0);
}

#[test]
fn operation_in_flight_at_end_adds_latency_not_throughput() {
    // The tenth operation begins at 9 s and hangs for 100 s.
    let simulated =
        RunSimulation::new(|now_ns| (if now_ns >= 9 * S { 100 * S } else { S }, Ok(OperationOutcome::Found)))
            .run();
    let read = &simulated.merged.by_operation["read"];
    assert_eq!((simulated.merged.operations, read.count, read.latency.us.count), (9, 9, 10));
    assert_near(read.latency.us.max, 100e6);
    assert_eq!(read.latency, read.service);
    assert_eq!(simulated.endings, [ThreadEnding::WindowClosed]);
}

#[test]
fn warm_up_is_not_measured() {
    let simulated = RunSimulation {
        warmup_ns: 4 * S,
        ..RunSimulation::new(|now_ns| {
            (if now_ns < 4 * S { 400 * MS } else { 100 * MS }, Ok(OperationOutcome::Found))
        })
    }
    .run();
    let read = &simulated.merged.by_operation["read"];
    // An operation that ends just at the window's end is outside, one that ends just at its start inside.
    assert_eq!((read.count, read.latency.us.count), (100, 100));
    assert_near(read.latency.us.max, 100_000.0);
}

/// 100 operations a second; the one due at 1 s takes 3.9 s, and the others 2 ms. The 390 due meanwhile are worked off
/// by 5.9 s.
#[test]
fn thread_reports_backlog_start_at_window_begin() {
    let stopped = |warmup_ns: u64| {
        RunSimulation {
            rate_per_wall_s: Some(100.0),
            warmup_ns,
            duration_ns: 4 * S,
            ..RunSimulation::new(|now_ns| {
                (if now_ns == S { 3_900 * MS } else { 2 * MS }, Ok(OperationOutcome::Found))
            })
        }
        .run()
    };
    let delayed_run = stopped(5 * S);
    assert_eq!(delayed_run.caught_up_ns, Some(S));
    let due = delayed_run.merged.by_operation["read"].latency.us.count;
    assert_eq!((due, delayed_run.unstarted), (400, 0));
    assert!(delayed_run.merged.operations > 700, "{} were answered", delayed_run.merged.operations);
    assert_eq!(delayed_run.merged.operations + delayed_run.outside, 900);
    let caught_up = stopped(7 * S);
    assert_eq!((caught_up.caught_up_ns, caught_up.merged.operations), (Some(7 * S), 400));
    // A closed loop has no backlog.
    assert_eq!(RunSimulation::new(|_| (MS, Ok(OperationOutcome::Found))).run().caught_up_ns, None);
}

#[test]
fn answers_outside_window_are_counted_apart() {
    let simulated = RunSimulation {
        warmup_ns: 4 * S,
        duration_ns: 2 * S,
        ..RunSimulation::new(|_| (100 * MS, Ok(OperationOutcome::Found)))
    }
    .run();
    // The last one ends just at the window's end, which is outside.
    assert_eq!((simulated.merged.operations, simulated.outside), (20, 39 + 1));
}

#[test]
fn slow_motion_is_divided_out_of_every_time() {
    let simulated = RunSimulation {
        rate_per_wall_s: Some(100.0),
        dilation: 8.0,
        wakes_late_ns: 80_000,
        ..RunSimulation::new(|_| (4 * MS, Ok(OperationOutcome::Found)))
    }
    .run();
    let read = &simulated.merged.by_operation["read"];
    assert_near(read.service.us.p50, 500.0);
    assert_near(read.latency.us.p50, 510.0);
    assert_near(simulated.merged.lateness_p99_us.unwrap(), 10.0);
    assert_near(simulated.points.last().unwrap().t_s, 1.25);
    assert_near(simulated.points[3].throughput_per_s, 800.0);
}

/// A busy thread is late because of the system; only the time on top is due to the generator.
#[test]
fn generator_lateness_excludes_waits_for_system() {
    let simulated = RunSimulation {
        rate_per_wall_s: Some(1000.0),
        wakes_late_ns: 50_000,
        ..RunSimulation::new(|now_ns| {
            (if now_ns < 2 * S { 3 * MS } else { 100_000 }, Ok(OperationOutcome::Found))
        })
    }
    .run();
    assert_near(simulated.merged.lateness_p99_us.unwrap(), 50.0);
    assert!(simulated.merged.latency.quantile_us(0.99) > 1_000.0 * 1_000.0);
}

#[test]
fn refusals_and_errors_are_counted_and_timeouts_are_timed() {
    let simulated = RunSimulation::new(|now_ns| match now_ns / S {
        0..=3 => (S, Ok(OperationOutcome::Found)),
        4 => (S, Ok(OperationOutcome::Missing)),
        5 => (S, Ok(OperationOutcome::Throttled)),
        6 => (S, Err(ClientError::System("disk full".to_owned()))),
        _ => (2 * S, Err(ClientError::Timeout(Duration::from_secs(2)))),
    })
    .run();
    let read = &simulated.merged.by_operation["read"];
    assert_eq!((read.count, read.missing, read.throttled, read.errors), (5, 1, 1, 3));
    assert_eq!((simulated.merged.operations, simulated.merged.errors), (5, 3));
    assert_eq!(read.latency.us.count, 5 + 2, "answers and timeouts");
    assert_near(read.latency.us.max, 2e6);
    assert_eq!(simulated.samples, ["read: disk full", "read: no answer within 2s"]);
}

#[test]
fn lost_connection_is_reopened() {
    let lost_once = AtomicBool::new(false);
    let simulated = RunSimulation {
        rate_per_wall_s: Some(100.0),
        reconnections: 1,
        ..RunSimulation::new(move |now_ns| {
            let lost = now_ns >= S && !lost_once.swap(now_ns >= S, Ordering::Relaxed);
            (MS, if lost { Err(ClientError::Lost("reset".to_owned())) } else { Ok(OperationOutcome::Found) })
        })
    }
    .run();
    let read = &simulated.merged.by_operation["read"];
    assert_eq!((simulated.reconnections, read.errors, read.count), (1, 1, 999));
    // The first pause is 100 ms: arrivals in that time waited for it.
    assert_near(read.latency.us.max, 101_000.0 - 9_000.0);
    assert_eq!(simulated.endings, [ThreadEnding::WindowClosed]);
}

#[test]
fn thread_without_reconnection_ends_but_arrivals_count() {
    let simulated = RunSimulation {
        rate_per_wall_s: Some(100.0),
        ..RunSimulation::new(|now_ns| {
            (
                MS,
                if now_ns >= 5 * S {
                    Err(ClientError::Lost("reset".to_owned()))
                } else {
                    Ok(OperationOutcome::Found)
                },
            )
        })
    }
    .run();
    let read = &simulated.merged.by_operation["read"];
    assert_eq!(simulated.endings, [ThreadEnding::Lost(ClientError::System("refused".to_owned()))]);
    assert_eq!((read.count, read.errors, simulated.unstarted), (500, 1, 499));
    assert_eq!(read.latency.us.count, 999, "all but the failed one");
}

/// The first thread loses its connection at once, and its operations are left to the second one.
#[test]
fn lost_thread_takes_no_numbered_operations_along() {
    let calls = AtomicU64::new(0);
    let simulated = RunSimulation {
        rate_per_wall_s: Some(100.0),
        threads: 2,
        operation_limit: Some(400),
        ..RunSimulation::new(move |_| match calls.fetch_add(1, Ordering::Relaxed) {
            0 => (MS, Err(ClientError::Lost("reset".to_owned()))),
            _ => (MS, Ok(OperationOutcome::Found)),
        })
    }
    .run();
    assert_eq!(simulated.endings[1], ThreadEnding::Exhausted);
    // It had taken only a part of its share.
    assert!((350..400).contains(&simulated.merged.operations), "{}", simulated.merged.operations);
    assert_eq!(simulated.unstarted, 0);
}

fn schedule(
    arrivals: ArrivalProcess,
    rate_per_s: f64,
    thread: u32,
    threads: u32,
    start_ns: u64,
    seed: u64,
) -> ThreadSchedule {
    ThreadSchedule::new(arrivals, RateProfile::constant(rate_per_s), thread, threads, start_ns, seed)
}

/// A second at 100, two rising to 500, and then 500 forever: 100, 600, then 500 a second.
fn stepped(arrivals: ArrivalProcess, threads: u32) -> Vec<u64> {
    let parts = [
        RatePart::Steady { rate_per_s: 100.0, length: Duration::from_secs(1) },
        RatePart::Ramp { from_per_s: 100.0, to_per_s: 500.0, length: Duration::from_secs(2) },
    ];
    let profile = RateProfile::from_parts(&parts).unwrap();
    let mut due_ns = Vec::new();
    for thread in 0..threads {
        let seed = u64::from(thread);
        let mut schedule = ThreadSchedule::new(arrivals, profile.clone(), thread, threads, 0, seed);
        while schedule.peek_ns() < 10 * S {
            due_ns.push(schedule.peek_ns());
            schedule.advance();
        }
    }
    due_ns.sort_unstable();
    due_ns
}

#[test]
fn changing_rate_is_offered_exactly_by_any_threads() {
    let due_ns = stepped(ArrivalProcess::Constant, 1);
    let between = |from_s: u64, to_s: u64| {
        due_ns.iter().filter(|&&due_ns| (from_s * S..to_s * S).contains(&due_ns)).count()
    };
    assert_eq!([between(0, 1), between(1, 3), between(3, 10)], [100, 600, 3_500]);
    assert_eq!(due_ns, stepped(ArrivalProcess::Constant, 5));
    // Independent arrivals have the same number except for chance: four standard deviations.
    let poisson = stepped(ArrivalProcess::Poisson, 5);
    assert!((poisson.len() as f64 - 4_200.0).abs() < 4.0 * 4_200f64.sqrt(), "{}", poisson.len());
    let early = poisson.iter().filter(|&&due_ns| due_ns < S).count() as f64;
    assert!((early - 100.0).abs() < 40.0, "{early}");
}

#[test]
fn constant_arrivals_are_evenly_spread_over_all_threads() {
    let threads = 7;
    let mut due_ns: Vec<u64> = Vec::new();
    for thread in 0..threads {
        let mut schedule = schedule(ArrivalProcess::Constant, 3_000.0, thread, threads, 5 * S, 1);
        while schedule.peek_ns() < 6 * S {
            due_ns.push(schedule.peek_ns());
            schedule.advance();
        }
    }
    due_ns.sort_unstable();
    let expected: Vec<u64> =
        (0..3000).map(|index| 5 * S + (f64::from(index) * 1e9 / 3000.0).round() as u64).collect();
    assert_eq!(due_ns, expected);
}

/// In a Poisson process, the number of arrivals in an interval has a variance equal to its mean.
#[test]
fn poisson_arrivals_have_the_variance_of_their_mean() {
    let mut counts = vec![0f64; 2000];
    for thread in 0..4 {
        let mut schedule = schedule(ArrivalProcess::Poisson, 1_000.0, thread, 4, 0, u64::from(thread) + 99);
        while schedule.peek_ns() < 20 * S {
            counts[(schedule.peek_ns() / (10 * MS)) as usize] += 1.0;
            schedule.advance();
        }
    }
    let mean = counts.iter().sum::<f64>() / counts.len() as f64;
    let variance = counts.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / counts.len() as f64;
    // Standard errors: sqrt(10 / 2000) = 0.07 of the mean, 10 x sqrt(2 / 2000) = 0.32 of the variance.
    assert!((mean - 10.0).abs() < 0.35 && (variance - 10.0).abs() < 1.6, "mean {mean}, variance {variance}");
}

proptest! {
    /// However slow the system is, all operations due within the window are measured: sent, or counted as unsent.
    #[test]
    fn arrivals_are_never_skipped(
        threads in 1u32..5,
        rate in 1.0f64..400.0,
        services_ms in proptest::collection::vec(0u64..200, 1..10),
        warmup_ms in 0u64..2000,
        poisson in any::<bool>(),
        changes in any::<bool>(),
    ) {
        let arrivals = if poisson { ArrivalProcess::Poisson } else { ArrivalProcess::Constant };
        let parts = [
            RatePart::Steady { rate_per_s: rate / 2.0, length: Duration::from_millis(1_500) },
            RatePart::Ramp { from_per_s: 0.0, to_per_s: rate * 2.0, length: Duration::from_millis(2_500) },
        ];
        let calls = AtomicU64::new(0);
        let simulation = RunSimulation {
            threads,
            rate_per_wall_s: Some(rate),
            profile: changes.then(|| RateProfile::from_parts(&parts).unwrap()),
            arrivals,
            warmup_ns: warmup_ms * MS,
            duration_ns: 5 * S,
            ..RunSimulation::new(move |_| {
                let call = calls.fetch_add(1, Ordering::Relaxed) as usize;
                (services_ms[call % services_ms.len()] * MS, Ok(OperationOutcome::Found))
            })
        };
        let simulated = simulation.run();
        // Counted from the schedules alone, without the workers.
        let mut due = 0;
        for thread in 0..threads {
            let mut schedule = simulation.schedule(thread).unwrap();
            while schedule.peek_ns() < (warmup_ms + 5000) * MS {
                due += u64::from(schedule.peek_ns() >= warmup_ms * MS);
                schedule.advance();
            }
        }
        prop_assert_eq!(simulated.merged.latency.count(), due);
        if !poisson && !changes {
            prop_assert!((due as f64 - rate * 5.0).abs() <= 1.0);
        }
        let in_series: u64 = simulated.points.iter().map(|point| point.operations).sum();
        prop_assert_eq!(in_series, simulated.merged.operations);
    }
}

proptest! {
    /// For any answers, at any speed, and with any edges of the window.
    #[test]
    fn batched_records_equal_single_records(
        mix in prop::sample::select(vec!["a", "c", "e", "f", "d", "delete"]),
        answers in prop::collection::vec((1u64..9_000, 0u8..40), 1..300),
        warmup_ns in 0u64..30_000,
        threads in 1u32..3,
        operation_limit in prop::option::of(1u64..400),
        reconnections in 0u64..3,
        dilation in prop::sample::select(vec![1.0, 3.0]),
    ) {
        // A raw log needs each operation separately, so that run merges none.
        let simulated = [true, false].map(|keeps_raw| {
            let answers = answers.clone();
            let simulation = RunSimulation {
                mix,
                threads,
                warmup_ns,
                duration_ns: 600_000,
                operation_limit,
                reconnections,
                dilation,
                keeps_raw,
                ..RunSimulation::new(move |now_ns| {
                    // By time and not by count, so both runs get the same answers.
                    let (took_ns, answer) = answers[(now_ns / 7) as usize % answers.len()];
                    let answer = match answer {
                        0 => Err(ClientError::Lost("gone".to_owned())),
                        1 => Err(ClientError::System("no".to_owned())),
                        2 => Err(ClientError::Timeout(Duration::from_nanos(took_ns))),
                        3 => Ok(OperationOutcome::Throttled),
                        4 | 5 => Ok(OperationOutcome::Missing),
                        _ => Ok(OperationOutcome::Found),
                    };
                    (took_ns, answer)
                })
            };
            simulation.run()
        });
        let [one_by_one, together] = simulated.map(|simulated| {
            format!("{:?} {:?} {:?} {:?}", simulated.merged, simulated.endings, simulated.points, simulated.samples)
        });
        prop_assert_eq!(one_by_one, together);
    }
}
