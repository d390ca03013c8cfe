//! Drawing from a stated distribution: nothing is made up between its quantiles but a straight line.

use rand::{Rng, RngExt};

use crate::catalogue::SourcedDistribution;

/// A distribution to draw times from.
///
/// Below the first stated quantile it has that value, beyond the last one that value: a tail longer than
/// what was measured would be invented. Between two it is a straight line in `-ln(1 - share)`, on which an
/// exponential tail is straight; a line in `share` would give p99 to p99.9 far too many of its largest.
#[derive(Clone, Debug)]
pub struct QuantileDistribution {
    /// `-ln(1 - share)` and nanoseconds.
    points: Vec<(f64, f64)>,
}

fn stretched(share: f64) -> f64 {
    -(-share).ln_1p()
}

impl QuantileDistribution {
    /// Of a distribution in microseconds.
    pub fn from_us(distribution: &SourcedDistribution) -> QuantileDistribution {
        let points = distribution.quantiles.iter().map(|&(share, us)| (stretched(share), us * 1e3)).collect();
        QuantileDistribution { points }
    }

    /// Always the same.
    pub fn constant_ns(ns: f64) -> QuantileDistribution {
        QuantileDistribution { points: vec![(0.0, ns)] }
    }

    /// At a share from 0 up to 1.
    pub fn quantile_ns(&self, share: f64) -> f64 {
        match &self.points[..] {
            [] => 0.0,
            [(_, only)] => *only,
            points => {
                let x = stretched(share);
                let after = points.partition_point(|point| point.0 <= x);
                match (after.checked_sub(1), points.get(after)) {
                    (None, _) => points[0].1,
                    (Some(before), None) => points[before].1,
                    (Some(before), Some(&(x1, y1))) => {
                        let (x0, y0) = points[before];
                        y0 + (y1 - y0) * (x - x0) / (x1 - x0)
                    }
                }
            }
        }
    }

    pub fn draw_ns(&self, random: &mut impl Rng) -> u64 {
        match &self.points[..] {
            // The same number of draws for every request, also for constants.
            [(_, only)] => {
                let _: f64 = random.random();
                only.round() as u64
            }
            _ => self.quantile_ns(random.random::<f64>()).round() as u64,
        }
    }

    pub fn mean_ns(&self) -> f64 {
        let Some((&first, &last)) = self.points.first().zip(self.points.last()) else { return 0.0 };
        // With u = exp(-x) the share that lies above x, the integral of x over shares is -(x + 1) u.
        let area = |x: f64| -(x + 1.0) * (-x).exp();
        let below = first.1 * (1.0 - (-first.0).exp());
        let above = last.1 * (-last.0).exp();
        let between = self.points.windows(2).map(|pair| {
            let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
            let slope = (y1 - y0) / (x1 - x0);
            let share = (-x0).exp() - (-x1).exp();
            (y0 - slope * x0) * share + slope * (area(x1) - area(x0))
        });
        below + above + between.sum::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_pcg::Pcg64Mcg;

    use super::*;

    fn quantiles(points: &[(f64, f64)]) -> QuantileDistribution {
        let distribution =
            SourcedDistribution { quantiles: points.to_vec(), source: String::new(), estimate: false };
        QuantileDistribution::from_us(&distribution)
    }

    #[test]
    fn stated_quantiles_are_drawn() {
        let points = [(0.1, 80.0), (0.5, 100.0), (0.99, 300.0), (0.999, 900.0)];
        let quantiles = quantiles(&points);
        for (share, us) in points {
            assert!((quantiles.quantile_ns(share) - us * 1e3).abs() < 1e-6);
        }
        assert_eq!((quantiles.quantile_ns(0.0), quantiles.quantile_ns(0.9999999)), (80e3, 900e3));
        let mut random = Pcg64Mcg::seed_from_u64(1);
        let mut drawn: Vec<u64> = (0..200_000).map(|_| quantiles.draw_ns(&mut random)).collect();
        drawn.sort_unstable();
        for (share, us) in points {
            let found = drawn[(share * 200_000.0) as usize] as f64;
            assert!((found / (us * 1e3) - 1.0).abs() < 0.05, "{share}: {found}");
        }
        let mean = drawn.iter().sum::<u64>() as f64 / drawn.len() as f64;
        assert!((mean / quantiles.mean_ns() - 1.0).abs() < 0.01, "{mean}, {}", quantiles.mean_ns());
    }

    #[test]
    fn exponential_quantiles_are_straight() {
        // Ten quantiles of one with a mean of 100 us and a small remainder beyond the last.
        let points: Vec<(f64, f64)> = [0.0, 0.2, 0.5, 0.8, 0.9, 0.99, 0.999, 0.9999, 0.99999]
            .map(|share: f64| (share, -100.0 * (1.0 - share).ln()))
            .to_vec();
        let quantiles = quantiles(&points);
        assert!((quantiles.mean_ns() - 100e3).abs() < 10.0, "{}", quantiles.mean_ns());
        assert!((quantiles.quantile_ns(0.95) - 299_573.0).abs() < 1.0);
    }

    #[test]
    fn single_value_is_always_drawn() {
        let mut random = Pcg64Mcg::seed_from_u64(1);
        assert_eq!(quantiles(&[(0.5, 12.5)]).draw_ns(&mut random), 12_500);
        assert_eq!(QuantileDistribution::constant_ns(7.0).mean_ns(), 7.0);
    }
}
