//! Whether everything that a cell depends on kept running: the measuring process, the system, the processes that serve
//! its devices.

use underlay_record::{Check, CheckId, MeasuredWindow, PauseRecord};

use super::mean_in_flight;

/// A percentile counts only with ten operations beyond it.
const TOLD_FROM: f64 = 10.0;
/// Pauses may make up this part of the operations beyond a percentile ...
const TAIL_PART: f64 = 0.5;
/// ... unless the other operations there take twice as long as they do.
const TAIL_LENGTH: f64 = 0.5;

/// Whether anything was stopped. `measured` has the latencies, and whether operations come at a rate.
pub(super) fn stops(
    record: &PauseRecord,
    measured: Option<(&MeasuredWindow, bool)>,
    time_scale: f64,
) -> Check {
    let in_tails =
        || measured.and_then(|(measured, open_loop)| tail_problem(record, measured, open_loop, time_scale));
    if let Some(problem) = record.stop_problem().or_else(in_tails) {
        return stopped(record, problem);
    }
    let finding = match longest_wall_s(record) {
        0.0 => "every process of the cell ran all the time".into(),
        longest => format!("no process of the cell stood still for longer than {:.0} ms", longest * 1000.0),
    };
    Check::new(CheckId::ProcessPauses, true, finding).with_extent(stopped_share(record))
}

/// Something was stopped; `problem` describes it.
pub(super) fn stopped(record: &PauseRecord, problem: String) -> Check {
    Check::new(CheckId::ProcessPauses, false, problem)
        .with_extent(stopped_share(record))
        .with_remedy("measure it again, and don't stop, suspend or debug any process of the run meanwhile")
}

fn stopped_share(record: &PauseRecord) -> f64 {
    stopped_wall_s(record) / record.window_wall_s.max(f64::MIN_POSITIVE)
}

/// Whether the measuring process got a CPU when it needed one; `slower` is the remedy where slower motion is one.
pub(super) fn delays(record: &PauseRecord, slower: &str) -> Check {
    let share = record.own.delayed_share(record.window_wall_s);
    let problem = record.own.delay_problem(record.window_wall_s);
    let passed = problem.is_none();
    let finding = problem.unwrap_or_else(|| {
        format!("the measuring process waited to run for {:.1} % of the time", share * 100.0)
    });
    Check::new(CheckId::GeneratorDelays, passed, finding).with_extent(share).with_remedy(slower)
}

fn longest_wall_s(record: &PauseRecord) -> f64 {
    let others = record.stopped.iter().map(|process| process.stopped_wall_s);
    others.fold(record.own.longest_wall_s, f64::max)
}

fn stopped_wall_s(record: &PauseRecord) -> f64 {
    let others = record.stopped.iter().map(|process| process.stopped_wall_s);
    others.fold(record.own.paused_wall_s, f64::max)
}

/// Pauses that take little of the window may still make up everything beyond a percentile.
fn tail_problem(
    record: &PauseRecord,
    measured: &MeasuredWindow,
    open_loop: bool,
    time_scale: f64,
) -> Option<String> {
    let others = record.stopped.iter().filter(|process| process.stopped_wall_s > 0.0).count();
    let pauses = record.own.pauses + others as u64;
    let longest_us = longest_wall_s(record) * 1e6 / time_scale;
    let operations = measured.operations as f64;
    let hit = match open_loop {
        // All operations that were due meanwhile.
        true => stopped_share(record) * operations,
        // The operations that were in flight.
        false => mean_in_flight(measured) * pauses as f64,
    };
    let us = &measured.latency.us;
    let tails = [("p99", 0.01, us.p99), ("p99.9", 0.001, us.p999)];
    let struck = tails.into_iter().filter(|_| pauses > 0).find(|&(_, share, tail_us)| {
        let slower_count = operations * share;
        slower_count >= TOLD_FROM && hit > slower_count * TAIL_PART && longest_us > tail_us * TAIL_LENGTH
    });
    struck.map(|(name, ..)| {
        format!(
            "something stood still for up to {:.0} ms, and the operations that waited for it are most of those beyond {name}",
            longest_wall_s(record) * 1000.0
        )
    })
}
