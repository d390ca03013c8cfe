//! Whether a scenario is plausible for a system: records may come from anyone.

use super::{OperationArrivals, SimulationScenario};
use crate::demand::BackgroundDemand;
use crate::refusal::PredictionRefusal;

/// More clients than a study can have.
const MAX_THREADS: u32 = 100_000;
/// Reads of devices that one operation may wait for.
const MAX_READS: f64 = 10_000.0;
pub(super) fn check(scenario: &SimulationScenario<'_>) -> Result<(), PredictionRefusal> {
    let refused = |problem: &str| Err(PredictionRefusal::Record { what: problem.to_owned() });
    let demand = scenario.demand;
    let shares: f64 = demand.classes.iter().map(|class| class.share).sum();
    if demand.classes.is_empty() || !(0.99..1.01).contains(&shares) {
        return refused("the shares of its operations don't add up to one");
    }
    // In this form, so that NaN fails, too.
    let sane = |value: f64, most: f64| (0.0..=most).contains(&value);
    let classes = demand.classes.iter().all(|class| {
        sane(class.cpu_us, 1e9)
            && sane(class.reads, MAX_READS)
            && sane(class.read_bytes, 1e9)
            && sane(class.share, 1.0)
    });
    let BackgroundDemand { read_bytes, read_request_bytes, write_bytes, write_request_bytes, flushes } =
        demand.background;
    let background =
        [read_bytes, read_request_bytes, write_bytes, write_request_bytes].iter().all(|&b| sane(b, 1e12))
            && sane(flushes, 1e4)
            && demand.commit_bytes.is_none_or(|bytes| sane(bytes, 1e9));
    if !classes || !background {
        return refused("an operation asks for more than any system does");
    }
    if scenario.threads == 0 || scenario.threads > MAX_THREADS || scenario.operations == 0 {
        return refused("a load without clients, or with too many");
    }
    if !(0.0..=1.0).contains(&scenario.cached) {
        return refused("a cache that answers more than everything");
    }
    if scenario.cores == Some(0) || !(1e-3..=1e3).contains(&scenario.device_speed) {
        return refused("a machine without cores, or devices of no speed");
    }
    match scenario.arrivals {
        OperationArrivals::Even { per_s } | OperationArrivals::Poisson { per_s }
            if !(1e-3..=1e9).contains(&per_s) =>
        {
            refused("an offered rate that is none")
        }
        _ => Ok(()),
    }
}
