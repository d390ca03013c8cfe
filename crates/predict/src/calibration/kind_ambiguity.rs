//! How certain it is which kind of operation a median belongs to.
//!
//! If half of the operations wait for a read and the others do not, the median is one or the other, and a factor of
//! thousands may lie between them. No factor on the answer covers that. The percentiles around the median do: as far
//! from it as the share of waiting operations is uncertain, and as chance moves it among this number of operations.

use super::PredictedMetric;
use super::reads::ReadEstimate;
use crate::cell::{MeasuredCell, OPERATIONS};
use crate::demand::MixDemand;
use crate::outcome::SimulationOutcome;

/// The range of 95 % of a normal distribution.
const NORMAL: f64 = 1.96;

#[derive(Clone, Copy, Debug)]
pub(super) struct KindAmbiguity {
    /// This many times as many operations wait for reads, at least and at most ...
    fewer: f64,
    more: f64,
    /// ... but no more than this share of all: the others never read.
    most: f64,
    /// How far chance moves a median, as a share of the operations.
    chance: f64,
}

impl KindAmbiguity {
    /// For an answer that will be compared with this number of measured operations.
    pub(super) fn from_answer(reads: &ReadEstimate, demand: &MixDemand, operations: f64) -> KindAmbiguity {
        KindAmbiguity {
            fewer: reads.fewer,
            more: reads.more,
            ..KindAmbiguity::from_chance(demand, operations)
        }
    }

    /// For a measured cell that is simulated with its own measured values.
    pub(super) fn from_measured(cell: &MeasuredCell) -> KindAmbiguity {
        KindAmbiguity::from_chance(&cell.demand, cell.operations)
    }

    fn from_chance(demand: &MixDemand, operations: f64) -> KindAmbiguity {
        let most = demand.classes.iter().filter(|class| class.reads > 0.0).map(|class| class.share).sum();
        // The simulation's operations are drawn as well.
        let variance = 0.25 * (1.0 / operations.max(1.0) + 1.0 / OPERATIONS as f64);
        KindAmbiguity { fewer: 1.0, more: 1.0, most, chance: NORMAL * variance.sqrt() }
    }

    /// The range that a simulated value may equally have. Only a median lies between kinds. For means and for the
    /// slowest operations, an error in the reads causes a proportional error, which leaving cells out already reveals.
    pub(super) fn around(&self, metric: PredictedMetric, outcome: &SimulationOutcome) -> (f64, f64) {
        let value = metric.simulated(outcome);
        if metric != PredictedMetric::P50 {
            return (value, value);
        }
        let quantile = |share: f64, times: f64| outcome.latencies.quantile_with_us(share, times, self.most);
        (
            quantile(0.5 - self.chance, self.fewer).min(value),
            quantile(0.5 + self.chance, self.more).max(value),
        )
    }

    /// The same as the standard deviation of a logarithm.
    pub(super) fn deviation(&self, metric: PredictedMetric, outcome: &SimulationOutcome) -> f64 {
        let (low, high) = self.around(metric, outcome);
        if low > 0.0 && high.is_finite() { (high / low).ln() / (2.0 * NORMAL) } else { f64::INFINITY }
    }
}
