//! Where the time of measured operations went, and what other machines would have given.

use underlay_record::{CellExplanation, EstimatedValue, TimeAccount, TimeShares, WhatIf};

use crate::calibration::{Calibration, PredictedMetric, QuestionChange};
use crate::cell::MeasuredCell;
use crate::outcome::SimulationOutcome;
use crate::refusal::PredictionRefusal;
use crate::simulation::OperationArrivals;

/// A device with a request this share of the time is what holds the others up.
const BUSY: f64 = 0.9;

/// Explains a cell of the calibration.
///
/// # Errors
/// When its storage can't be simulated.
pub fn explain(calibration: &Calibration, cell: &MeasuredCell) -> Result<CellExplanation, PredictionRefusal> {
    let own = cell.simulated()?;
    let account = |metric: PredictedMetric, shares: &TimeShares| {
        let measured_us = metric.measured(cell);
        TimeAccount {
            measured_us,
            shares: *shares,
            layers_us: 0.0,
            unexplained_us: measured_us - shares.total_us(),
        }
    };
    let mean = account(PredictedMetric::Mean, &own.of_mean);
    let changes = [
        ("a device twice as fast", QuestionChange { device_speed: 2.0, ..QuestionChange::NONE }),
        ("twice the memory", QuestionChange { memory: 2.0, ..QuestionChange::NONE }),
        ("twice the cores", QuestionChange { cores: 2.0, ..QuestionChange::NONE }),
    ];
    let p99 = account(PredictedMetric::P99, &own.of_p99);
    let what_if: Vec<WhatIf> = changes
        .into_iter()
        // Without a bound on the cores there is nothing to double.
        .filter(|(_, change)| change.cores == 1.0 || cell.point.cores.is_some())
        .map(|(words, change)| match not_known(&mean) {
            Some(reason) => refused(words, reason),
            None => answer_what_if(calibration, cell, words, change),
        })
        // The mean may be explained while the p99 is not: then the answer leaves that out.
        .map(|one| if p99.carries_what_if() { one } else { WhatIf { p99_us: None, ..one } })
        .collect();
    Ok(CellExplanation {
        cell: cell.point.id.clone(),
        throughput_per_s: PredictedMetric::Throughput.measured(cell),
        p50: account(PredictedMetric::P50, &own.of_p50),
        p99,
        device_busy: cell.device_busy.min(1.0),
        cpu_busy: own.cpu_busy.filter(|_| cell.demand.cpu_us() > 0.0),
        reads_per_operation: cell.demand.reads(),
        bottleneck: bottleneck(cell, own, &mean),
        mean,
        what_if,
    })
}

/// Why a simulation of the cell says nothing about what another machine would do.
fn not_known(mean: &TimeAccount) -> Option<String> {
    let share = mean.unexplained_share();
    if mean.carries_what_if() {
        return None;
    }
    if share > 0.0 {
        return Some(format!(
            "{:.0} % of an operation's time is neither the storage's nor the cores', so nothing tells the effect of more of either",
            100.0 * share
        ));
    }
    Some(format!(
        "operations take {:.1} times as long in the simulation as measured, so it can't explain their waits",
        1.0 - share
    ))
}

fn refused(words: &str, reason: String) -> WhatIf {
    WhatIf {
        change: words.to_owned(),
        throughput_per_s: None,
        mean_us: None,
        p99_us: None,
        gain: None,
        refused: Some(reason),
    }
}

fn answer_what_if(
    calibration: &Calibration,
    cell: &MeasuredCell,
    words: &str,
    change: QuestionChange,
) -> WhatIf {
    let [throughput, mean, _, p99] = match calibration.predict_change(cell, change) {
        Ok(factors) => factors,
        Err(refusal) => return refused(words, refusal.to_string()),
    };
    let times = |factor: EstimatedValue, metric: PredictedMetric| {
        let measured = metric.measured(cell);
        EstimatedValue {
            value: factor.value * measured,
            low: factor.low * measured,
            high: factor.high * measured,
        }
    };
    let gain = match cell.point.arrivals {
        OperationArrivals::Closed => throughput,
        _ => EstimatedValue { value: 1.0 / mean.value, low: 1.0 / mean.high, high: 1.0 / mean.low },
    };
    WhatIf {
        change: words.to_owned(),
        throughput_per_s: Some(times(throughput, PredictedMetric::Throughput)),
        mean_us: Some(times(mean, PredictedMetric::Mean)),
        p99_us: Some(times(p99, PredictedMetric::P99)),
        gain: Some(gain),
        refused: None,
    }
}

/// In words. The simulation may have a part take longer than the whole operation did.
fn share_of(us: f64, measured_us: f64) -> String {
    match us / measured_us {
        share if share > 0.995 => "all".to_owned(),
        share => format!("{:.0} %", 100.0 * share),
    }
}

fn bottleneck(cell: &MeasuredCell, own: &SimulationOutcome, mean: &TimeAccount) -> String {
    let measured = mean.measured_us.max(1e-9);
    let percent = |us: f64| share_of(us, mean.whole_us());
    let shares = &mean.shares;
    let device_us = shares.device_service_us + shares.device_queueing_us;
    let cpu_us = shares.cpu_us + shares.cpu_waiting_us;
    let busy = cell.device_busy.min(1.0);
    let storage = &cell.point.storage;
    // First: what the simulation can't see must not be blamed on what it does.
    if mean.unexplained_us > device_us.max(cpu_us).max(shares.client_waiting_us) {
        return format!(
            "Neither devices nor cores: {} of an operation's time is in neither, so locks, batching or stalls inside the system are the likely limit.",
            percent(mean.unexplained_us)
        );
    }
    // It explains more time than there was, so its shares are no parts of that.
    if !mean.has_parts() {
        return format!(
            "Not known: the simulation has operations take {:.1} times as long as they did, most of it {}.",
            1.0 - mean.unexplained_us / measured,
            if device_us > cpu_us { "on the storage" } else { "on the cores" }
        );
    }
    if shares.client_waiting_us > device_us.max(cpu_us) {
        return format!(
            "The {} client threads: {} of an operation's time it waits for one to be free.",
            cell.point.threads,
            percent(shares.client_waiting_us)
        );
    }
    if cpu_us > device_us {
        return match own.cpu_busy {
            Some(cores) if cores > BUSY => format!(
                "The cores: they are busy {:.0} % of the time, and {} of an operation's time is CPU time or waiting for it.",
                100.0 * cores,
                percent(cpu_us)
            ),
            _ => format!(
                "The system's own CPU time, {} of each operation's; cores are free, so more clients would give more.",
                percent(cpu_us)
            ),
        };
    }
    let background = &cell.demand.background;
    // Only a queue is due to others. The service time is the request's own.
    let for_others = background.read_bytes + background.write_bytes > 0.0
        && shares.device_queueing_us > shares.device_service_us;
    let because = if for_others { ", behind other reads and the background's traffic" } else { "" };
    if shares.device_queueing_us > shares.device_service_us {
        format!(
            "The storage {storage}: {} of an operation's time it waits in the queue of a device{because}; devices have a request {:.0} % of the time.",
            percent(shares.device_queueing_us),
            100.0 * busy
        )
    } else {
        let waits_for = match cell.demand.reads() {
            reads if reads > 0.0 => format!("{reads:.2} reads an operation"),
            _ => "writes wait for their flush".to_owned(),
        };
        format!(
            "The latency of {storage}: {} of an operation's time is the device's own, one request after the other; {waits_for}.",
            percent(shares.device_service_us),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_never_exceed_whole() {
        assert_eq!((share_of(56.0, 100.0).as_str(), share_of(120.0, 100.0).as_str()), ("56 %", "all"));
    }
}
