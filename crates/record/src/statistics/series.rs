//! The error of a mean whose samples resemble their neighbours.

use super::StandardError;

/// Fewer samples than this tell nothing of their own correlation.
pub const MIN_SAMPLES: usize = 8;

/// How many independent samples a correlated series is worth, and the error of its mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeriesError {
    pub mean: f64,
    pub samples: usize,
    /// Between 1 and the number of samples.
    pub effective_samples: f64,
    pub error: StandardError,
}

impl SeriesError {
    /// How many independent samples each sample is worth, at most one.
    pub fn share_that_counts(&self) -> f64 {
        self.effective_samples / self.samples as f64
    }
}

/// The standard error of a series' mean, corrected for autocorrelation.
///
/// With autocorrelations ρₖ a series of n samples is worth `n / τ` independent ones, `τ = 1 + 2 Σ ρₖ`. The sum ends
/// where Geyer's initial positive sequence does: at the first pair `ρ₂ₘ + ρ₂ₘ₊₁` that is not positive, pairs being
/// kept from rising (C. J. Geyer, "Practical Markov chain Monte Carlo", Statistical Science 7 (1992)). Estimated
/// autocorrelations of a short series are too small by about `τ / n`, because the mean is estimated from the same
/// samples; each is raised by that, and the variance divided by `1 − τ / n`, as in U. Wolff, "Monte Carlo errors
/// with less errors", Computer Physics Communications 156 (2004). Samples that alternate count as
/// independent ones, never as more. None for fewer than [`MIN_SAMPLES`] samples.
pub fn mean_error(samples: &[f64]) -> Option<SeriesError> {
    let count = samples.len();
    if count < MIN_SAMPLES || samples.iter().any(|sample| !sample.is_finite()) {
        return None;
    }
    let n = count as f64;
    let mean = samples.iter().sum::<f64>() / n;
    let centred: Vec<f64> = samples.iter().map(|sample| sample - mean).collect();
    let variance = centred.iter().map(|x| x * x).sum::<f64>() / n;
    // A constant series has no autocorrelation: it would be 0 / 0.
    if variance == 0.0 {
        return Some(SeriesError {
            mean,
            samples: count,
            effective_samples: n,
            error: StandardError { value: 0.0, degrees_of_freedom: n - 1.0 },
        });
    }
    // Up to half the length: longer lags are averages of too few products to mean anything.
    let autocorrelation: Vec<f64> = (0..count / 2)
        .map(|lag| centred.iter().zip(&centred[lag..]).map(|(a, b)| a * b).sum::<f64>() / n / variance)
        .collect();
    // The correction depends on the time that it corrects: three rounds settle it.
    let mut time = integrated_time(&autocorrelation, 0.0);
    for _ in 0..3 {
        // Capped so that the divisor `1 - time / n` below stays well above 0.
        time = integrated_time(&autocorrelation, time / n).min(n / 3.0);
    }
    let effective_samples = n / time;
    let value = (variance / (1.0 - time / n) / effective_samples).sqrt();
    Some(SeriesError {
        mean,
        samples: count,
        effective_samples,
        error: StandardError { value, degrees_of_freedom: (effective_samples - 1.0).max(1.0) },
    })
}

/// The integrated autocorrelation time in samples, at least one.
fn integrated_time(autocorrelation: &[f64], raise: f64) -> f64 {
    let mut time = 0.0;
    let mut ceiling = f64::INFINITY;
    for (index, pair) in autocorrelation.chunks_exact(2).enumerate() {
        // The lag of 0 is 1 by definition; only estimates are raised.
        let first = if index == 0 { 1.0 } else { pair[0] + raise };
        let sum = (first + pair[1] + raise).min(ceiling);
        if sum <= 0.0 {
            break;
        }
        ceiling = sum;
        time += 2.0 * sum;
    }
    // The pairs hold ρ₀ = 1, so twice their sum is 1 more than `1 + 2 Σ ρₖ` over k from 1 on.
    (time - 1.0).max(1.0)
}
