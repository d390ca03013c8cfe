//! Numbers of the catalogue that are more than one: distributions by their quantiles, and curves.

use serde::{Deserialize, Serialize};

/// A measured or stated distribution, and where it comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SourcedDistribution {
    /// Shares below one, each with the value that this share of all does not exceed. Both grow.
    pub quantiles: Vec<(f64, f64)>,
    /// A key of the medium's `sources`.
    pub source: String,
    #[serde(default)]
    pub estimate: bool,
}

/// How one number depends on another, and where that is known from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SourcedCurve {
    /// Straight lines lead from each to the next; before the first and after the last it is flat.
    pub points: Vec<(f64, f64)>,
    /// A key of the medium's `sources`.
    pub source: String,
    #[serde(default)]
    pub estimate: bool,
}

/// More than anyone needs; a file of millions would be a mistake.
pub(super) const MAX_POINTS: usize = 1000;

impl SourcedDistribution {
    /// Always `value`.
    pub fn constant(value: f64, source: &str) -> SourcedDistribution {
        SourcedDistribution { quantiles: vec![(0.5, value)], source: source.to_owned(), estimate: false }
    }

    /// As models draw from it: from each quantile to the next on a straight line over the logarithm of the share above,
    /// and flat before the first and after the last.
    pub fn mean(&self) -> f64 {
        let (Some(first), Some(last)) = (self.quantiles.first(), self.quantiles.last()) else { return 0.0 };
        let between = |pair: &[(f64, f64)]| {
            let ((share0, y0), (share1, y1)) = (pair[0], pair[1]);
            let (above0, above1) = (1.0 - share0, 1.0 - share1);
            let slope = (y1 - y0) / (above0 / above1).ln();
            y0 * above0 - y1 * above1 + slope * (above0 - above1)
        };
        first.0 * first.1 + self.quantiles.windows(2).map(between).sum::<f64>() + (1.0 - last.0) * last.1
    }

    /// `300`, or `p50 520, p99.9 2100`.
    pub fn text(&self) -> String {
        match &self.quantiles[..] {
            [(_, value)] => super::plain_number(*value),
            many => {
                let point = |(share, value): &(f64, f64)| {
                    format!("p{} {}", super::plain_number(share * 100.0), super::plain_number(*value))
                };
                many.iter().map(point).collect::<Vec<_>>().join(", ")
            }
        }
    }

    /// The problem that keeps it from being a distribution of values from `low` to `high`.
    pub fn problem(&self, low: f64, high: f64) -> Option<String> {
        if self.quantiles.is_empty() || self.quantiles.len() > MAX_POINTS {
            return Some(format!("needs 1 to {MAX_POINTS} quantiles"));
        }
        for &(share, value) in &self.quantiles {
            if !(0.0..1.0).contains(&share) {
                let share = super::plain_number(share);
                return Some(format!(
                    "{share} is not a share: 0.5 stands for the median, and the last must be below 1"
                ));
            }
            if !(low..=high).contains(&value) {
                let bounds = (super::plain_number(low), super::plain_number(high));
                return Some(format!("{value} lies outside {} to {}", bounds.0, bounds.1));
            }
        }
        self.quantiles.windows(2).find_map(|pair| {
            let ((share, value), (next_share, next_value)) = (pair[0], pair[1]);
            (next_share <= share || next_value < value).then(|| {
                format!("must grow, but [{share}, {value}] is followed by [{next_share}, {next_value}]")
            })
        })
    }
}

impl SourcedCurve {
    /// `1: 1900, 4: 5200`
    pub fn text(&self) -> String {
        let point = |(x, y): &(f64, f64)| format!("{}: {}", super::plain_number(*x), super::plain_number(*y));
        self.points.iter().map(point).collect::<Vec<_>>().join(", ")
    }

    /// The problem that keeps it from being a curve with values from `low` to `high`.
    pub fn problem(&self, low: f64, high: f64) -> Option<String> {
        if self.points.is_empty() || self.points.len() > MAX_POINTS {
            return Some(format!("needs 1 to {MAX_POINTS} points"));
        }
        for &(x, y) in &self.points {
            if !(0.0..=1e12).contains(&x) || !(low..=high).contains(&y) {
                let bounds = (super::plain_number(low), super::plain_number(high));
                return Some(format!("[{x}, {y}] lies outside {} to {}", bounds.0, bounds.1));
            }
        }
        self.points.windows(2).find_map(|pair| {
            (pair[1].0 <= pair[0].0).then(|| {
                format!("must be in ascending order, but {} is followed by {}", pair[0].0, pair[1].0)
            })
        })
    }

    pub fn value_at(&self, x: f64) -> f64 {
        let after = self.points.partition_point(|point| point.0 <= x);
        match (after.checked_sub(1).and_then(|before| self.points.get(before)), self.points.get(after)) {
            (Some(&(x0, y0)), Some(&(x1, y1))) => y0 + (y1 - y0) * (x - x0) / (x1 - x0),
            (Some(&(_, y)), None) | (None, Some(&(_, y))) => y,
            (None, None) => 0.0,
        }
    }

    /// The same where lines are straight on logarithms of both.
    pub(crate) fn logarithmic_at(&self, x: f64) -> f64 {
        let after = self.points.partition_point(|point| point.0 <= x);
        match (after.checked_sub(1).and_then(|before| self.points.get(before)), self.points.get(after)) {
            (Some(&(x0, y0)), Some(&(x1, y1))) if x0 > 0.0 => {
                (y0.ln() + (y1 / y0).ln() * (x / x0).ln() / (x1 / x0).ln()).exp()
            }
            (_, Some(&(_, y))) | (Some(&(_, y)), None) => y,
            (None, None) => 1.0,
        }
    }
}
