//! How close our ratios are to the published ones, overall.

use super::{AGREEMENT, PublishedComparison};
use crate::quantity;

/// Over every published ratio that there is one of ours for.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, schemars::JsonSchema)]
pub struct ReferenceAccuracy {
    pub ratios: usize,
    /// The median of the factors, at least 1, by which ours and the published ones differ.
    pub median_factor: f64,
    /// Those of ours that are within 25 % of the published one.
    pub within_quarter: usize,
}

impl ReferenceAccuracy {
    /// `None` where nothing can be compared. Where several rows of ours fit one published figure, their median stands
    /// for all of them: a figure counts once, however many rows a study has for it.
    pub fn from_figures(figures: &[PublishedComparison<'_>]) -> Option<ReferenceAccuracy> {
        let factor = |one: &PublishedComparison<'_>| {
            let factor = (one.our_ratio?.value / one.published_ratio?).ln().abs().exp();
            factor.is_finite().then_some(factor)
        };
        // The rows of a figure follow one another.
        let of_figures = figures.chunk_by(|one, next| std::ptr::eq(one.figure, next.figure));
        let factors: Vec<f64> =
            of_figures.filter_map(|rows| median(rows.iter().filter_map(factor).collect())).collect();
        let median_factor = median(factors.clone())?;
        Some(ReferenceAccuracy {
            ratios: factors.len(),
            median_factor,
            within_quarter: factors.iter().filter(|factor| **factor <= AGREEMENT).count(),
        })
    }

    pub fn describe(&self) -> String {
        format!(
            "{} beside the paper's: off by a factor of {:.2} in the median, {} ({:.0} %) within 25 %.",
            quantity::plural(self.ratios, "ratio"),
            self.median_factor,
            self.within_quarter,
            100.0 * self.within_quarter as f64 / self.ratios as f64,
        )
    }
}

/// Of two factors in the middle, what is as far from one as from the other.
fn median(mut factors: Vec<f64>) -> Option<f64> {
    factors.sort_by(f64::total_cmp);
    let (low, high) = (factors.get(factors.len().checked_sub(1)? / 2)?, factors.get(factors.len() / 2)?);
    Some((low * high).sqrt())
}

#[cfg(test)]
mod tests {
    use underlay_record::{PublishedFigure, PublishedMetric};

    use super::super::ReferenceReading;
    use super::*;
    use crate::statistics::ratio::EstimateRatio;

    #[test]
    fn median_ratio_is_symmetric() {
        let figure = PublishedFigure {
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
        let all = vec![figure; 4];
        let published_figure = |figure: usize, published: f64, ours: Option<f64>| PublishedComparison {
            figure: &all[figure],
            row: None,
            ours: None,
            published_ratio: Some(published),
            our_ratio: ours.map(|value| EstimateRatio { value, interval: None }),
            reading: ReferenceReading::NotCompared,
            less_data: None,
        };
        assert_eq!(ReferenceAccuracy::from_figures(&[published_figure(0, 2.0, None)]), None);
        let found = ReferenceAccuracy::from_figures(&[
            published_figure(0, 10.0, Some(11.0)),
            published_figure(1, 10.0, Some(5.0)),
            published_figure(2, 3.0, Some(12.0)),
            published_figure(3, 1.0, None),
        ]);
        let found = found.unwrap();
        assert_eq!((found.ratios, found.within_quarter), (3, 1));
        assert!((found.median_factor - 2.0).abs() < 1e-9, "{found:?}");
        let words =
            "3 ratios beside the paper's: off by a factor of 2.00 in the median, 1 (33 %) within 25 %.";
        assert_eq!(found.describe(), words);
        let even = ReferenceAccuracy::from_figures(&[
            published_figure(0, 1.0, Some(2.0)),
            published_figure(1, 1.0, Some(8.0)),
        ])
        .unwrap();
        assert!((even.median_factor - 4.0).abs() < 1e-9);
        // A ratio that is nothing can't be compared by a factor.
        assert_eq!(ReferenceAccuracy::from_figures(&[published_figure(0, 1.0, Some(0.0))]), None);
        // Three rows for one figure and one for another: two figures.
        let rows = [(0, 1.1), (0, 2.0), (0, 9.0), (1, 1.0)]
            .map(|(number, ours)| published_figure(number, 1.0, Some(ours)));
        let found = ReferenceAccuracy::from_figures(&rows).unwrap();
        assert_eq!((found.ratios, found.within_quarter), (2, 1));
        assert!((found.median_factor - 2f64.sqrt()).abs() < 1e-9, "{found:?}");
    }
}
