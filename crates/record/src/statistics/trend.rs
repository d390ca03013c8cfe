//! Whether a measured window was steady.

use super::distributions::student_t_quantile;
use super::series::mean_error;

/// A change over the window that is smaller than this share of the mean is no reason to warn.
pub const TOLERATED_CHANGE: f64 = 0.10;
/// How sure the change must be before it is reported.
const SIGNIFICANCE: f64 = 0.99;

/// The change over the window as a share of its mean, when it is both large and certain: `-0.2` is a fall of 20 %.
///
/// A least-squares line through the samples; the residuals' autocorrelation inflates the slope's variance by the
/// same factor as a mean's. None for a steady or too short series.
pub fn change(samples: &[f64]) -> Option<f64> {
    let n = samples.len() as f64;
    let mean = samples.iter().sum::<f64>() / n;
    let middle = (n - 1.0) / 2.0;
    let spread: f64 = (0..samples.len()).map(|i| (i as f64 - middle).powi(2)).sum();
    let slope =
        samples.iter().enumerate().map(|(i, y)| (i as f64 - middle) * (y - mean)).sum::<f64>() / spread;
    let residuals: Vec<f64> =
        samples.iter().enumerate().map(|(i, y)| y - mean - slope * (i as f64 - middle)).collect();
    let error = mean_error(&residuals)?.error;
    if mean <= 0.0 {
        return None;
    }
    // error² is variance / effective samples: times n it is the variance that one sample contributes.
    let slope_error = error.value * (n / spread).sqrt();
    // A line takes one degree of freedom more than a mean.
    let degrees = (error.degrees_of_freedom - 1.0).max(1.0);
    let change = slope * n / mean;
    let is_certain = slope.abs() > student_t_quantile(0.5 + SIGNIFICANCE / 2.0, degrees) * slope_error;
    (is_certain && change.abs() > TOLERATED_CHANGE).then_some(change)
}
