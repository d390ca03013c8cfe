//! Where a series settles: how much of its beginning still warms up.

use super::distributions::student_t_quantile;
use super::series::{MIN_SAMPLES, SeriesError, mean_error};
use super::trend;

/// A beginning whose mean is nearer to that of the rest than this share of it is none to speak of.
pub const TOLERATED_DIFFERENCE: f64 = 0.05;
/// How sure a difference must be. The place to cut was chosen for its difference, so this is more than it would take
/// for a place that was known before.
const SIGNIFICANCE: f64 = 0.999;

/// A series's verdict on its own beginning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SettlingVerdict {
    /// Its beginning is like the rest.
    Steady,
    /// Its first `samples` are not like the rest, by `difference` of the rest's mean: `-0.3` is 30 % lower.
    WarmsUp { samples: usize, difference: f64 },
    /// It changes over more than half of its length.
    NeverSettles,
}

/// Where `samples` settle; none for a series that is too short to tell.
///
/// The place to cut, in the first half, is the one after which the mean has the least standard error, samples taken as
/// independent: the marginal standard error rule of K. P. White, "An Effective Truncation Heuristic for Bias Reduction
/// in Simulation Output", Simulation 69 (1997). It always finds a place, in noise too, so what it cuts away must differ
/// from the rest by more than both would by chance, with the rest's autocorrelation. Where it would rather cut more
/// than half, a trend over the whole decides.
pub fn settling(samples: &[f64]) -> Option<SettlingVerdict> {
    if samples.len() < 2 * MIN_SAMPLES || samples.iter().any(|sample| !sample.is_finite()) {
        return None;
    }
    let cut = least_error(samples);
    if cut == 0 {
        return Some(SettlingVerdict::Steady);
    }
    if cut == samples.len() / 2 && trend::change(samples).is_some() {
        return Some(SettlingVerdict::NeverSettles);
    }
    let (start, rest) = samples.split_at(cut);
    let rest = mean_error(rest)?;
    let mean = start.iter().sum::<f64>() / cut as f64;
    if !differs(mean, cut, &rest) {
        return Some(SettlingVerdict::Steady);
    }
    if cut == samples.len() / 2 {
        return Some(SettlingVerdict::NeverSettles);
    }
    Some(SettlingVerdict::WarmsUp { samples: cut, difference: mean / rest.mean - 1.0 })
}

/// How many samples to cut away, up to half of them, for the mean of the others to have the least error.
fn least_error(samples: &[f64]) -> usize {
    let (mut best, mut cut) = (f64::INFINITY, 0);
    // No further: the few samples that are then left may agree by chance.
    for first in 0..=samples.len() / 2 {
        let rest = &samples[first..];
        let count = rest.len() as f64;
        let mean = rest.iter().sum::<f64>() / count;
        let squares: f64 = rest.iter().map(|sample| (sample - mean).powi(2)).sum();
        // The squared standard error, which is least at the same place.
        let error = squares / (count * count);
        if error < best {
            (best, cut) = (error, first);
        }
    }
    cut
}

/// Whether the mean of the `count` samples before is another one than that of the rest, surely and by enough to matter.
fn differs(mean: f64, count: usize, rest: &SeriesError) -> bool {
    let difference = mean - rest.mean;
    if rest.mean == 0.0 || (difference / rest.mean).abs() < TOLERATED_DIFFERENCE {
        return false;
    }
    // The scatter of one independent sample of the rest, and how many independent ones the former are worth if they are
    // like the rest.
    let scatter = rest.error.value.powi(2) * rest.effective_samples;
    let worth = (count as f64 * rest.share_that_counts()).max(1.0);
    let error = (rest.error.value.powi(2) + scatter / worth).sqrt();
    let reach = student_t_quantile(0.5 + SIGNIFICANCE / 2.0, rest.error.degrees_of_freedom) * error;
    difference.abs() > reach
}
