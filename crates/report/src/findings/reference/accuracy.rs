//! How close our ratios are to the published ones, overall.

use super::{AGREEMENT, Beside};
use crate::quantity;

/// Over every published ratio that there is one of ours for.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, schemars::JsonSchema)]
pub struct Accuracy {
    pub ratios: usize,
    /// The median of the factors, at least 1, by which ours and the published ones differ.
    pub median_factor: f64,
    /// Those of ours that are within 25 % of the published one.
    pub within_quarter: usize,
}

impl Accuracy {
    /// `None` where nothing can be compared.
    pub fn of(figures: &[Beside<'_>]) -> Option<Accuracy> {
        let factor = |one: &Beside<'_>| {
            let factor = (one.our_ratio?.value / one.published_ratio?).ln().abs().exp();
            factor.is_finite().then_some(factor)
        };
        let mut factors: Vec<f64> = figures.iter().filter_map(factor).collect();
        factors.sort_by(f64::total_cmp);
        let (low, high) = (factors.get(factors.len().checked_sub(1)? / 2)?, factors.get(factors.len() / 2)?);
        Some(Accuracy {
            ratios: factors.len(),
            median_factor: (low * high).sqrt(),
            within_quarter: factors.iter().filter(|factor| **factor <= AGREEMENT).count(),
        })
    }

    pub fn in_words(&self) -> String {
        format!(
            "{} beside the paper's: off by a factor of {:.2} in the median, {} ({:.0} %) within 25 %.",
            quantity::plural(self.ratios, "ratio"),
            self.median_factor,
            self.within_quarter,
            100.0 * self.within_quarter as f64 / self.ratios as f64,
        )
    }
}

#[cfg(test)]
mod tests {
    use underlay_record::{Figure, PublishedMetric};

    use super::super::Reading;
    use super::*;
    use crate::statistics::ratio::Ratio;

    #[test]
    fn the_median_is_the_same_in_both_directions() {
        let figure = Figure {
            mix: "a".to_owned(),
            distribution: None,
            data: None,
            data_bytes: None,
            threads: None,
            storage: "flash".to_owned(),
            metric: PublishedMetric::Throughput,
            value: 1.0,
            from: "table".to_owned(),
            up_to: false,
            one_of: None,
        };
        let one = |published: f64, ours: Option<f64>| Beside {
            figure: &figure,
            row: None,
            ours: None,
            published_ratio: Some(published),
            our_ratio: ours.map(|value| Ratio { value, interval: None }),
            reading: Reading::NotCompared,
            less_data: None,
        };
        assert_eq!(Accuracy::of(&[one(2.0, None)]), None);
        let found = Accuracy::of(&[
            one(10.0, Some(11.0)),
            one(10.0, Some(5.0)),
            one(3.0, Some(12.0)),
            one(1.0, None),
        ]);
        let found = found.unwrap();
        assert_eq!((found.ratios, found.within_quarter), (3, 1));
        assert!((found.median_factor - 2.0).abs() < 1e-9, "{found:?}");
        let words =
            "3 ratios beside the paper's: off by a factor of 2.00 in the median, 1 (33 %) within 25 %.";
        assert_eq!(found.in_words(), words);
        let even = Accuracy::of(&[one(1.0, Some(2.0)), one(1.0, Some(8.0))]).unwrap();
        assert!((even.median_factor - 4.0).abs() < 1e-9);
        // A ratio that is nothing can't be compared by a factor.
        assert_eq!(Accuracy::of(&[one(1.0, Some(0.0))]), None);
    }
}
