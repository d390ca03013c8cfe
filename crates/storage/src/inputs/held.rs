//! Estimates that a published figure holds in place.
//!
//! The inside of a flash drive is not published. It is estimated such that the figures come out that are: half or
//! double of it would be a drive that its own sources contradict. Such a value is an estimate by its mark, and known
//! all the same.

use std::cell::OnceCell;

use super::ModelEstimate;
use crate::catalogue::{CatalogueMedium, FigureKind, PublishedPerformance};
use crate::predict;

/// A figure that differs by more is another one: what `media check` allows a model.
const TOLERANCE: f64 = 0.05;
const SEED: u64 = 1;
/// Of the way to half or double, until it is known to 5 % how far an estimate may go.
const HALVINGS: u32 = 4;

/// The published figures of a medium, those that have a source, and what its model makes of them.
pub(super) struct FigureComparison<'a> {
    medium: &'a CatalogueMedium,
    figures: Vec<(&'a PublishedPerformance, OnceCell<Option<f64>>)>,
}

impl<'a> FigureComparison<'a> {
    pub(super) fn from_medium(medium: &'a CatalogueMedium) -> FigureComparison<'a> {
        let sourced = medium.published.iter().filter(|published| !published.estimate);
        // The seeks of a disk are its parameters; a burst takes its time even here.
        let relevant = sourced.filter(|published| {
            !matches!(
                published.figure,
                FigureKind::SeekAverageReadMs
                    | FigureKind::SeekAverageWriteMs
                    | FigureKind::PositioningReadMs
                    | FigureKind::BurstDurationS
            )
        });
        FigureComparison { medium, figures: relevant.map(|published| (published, OnceCell::new())).collect() }
    }

    /// How far towards this factor an estimate may go before the medium misses one of its figures, and the medium that
    /// it makes there; none where it may hardly move.
    pub(super) fn furthest(&self, estimate: &ModelEstimate, factor: f64) -> Option<(f64, CatalogueMedium)> {
        let allowed = |factor: f64| {
            estimate.scaled(self.medium, factor).filter(|changed| !self.is_contradicted_by(changed))
        };
        if let Some(changed) = allowed(factor) {
            return Some((factor, changed));
        }
        let (mut near, mut far, mut found) = (1.0_f64, factor, None);
        for _ in 0..HALVINGS {
            let middle = (near * far).sqrt();
            match allowed(middle) {
                Some(changed) => {
                    near = middle;
                    found = Some((middle, changed));
                }
                None => far = middle,
            }
        }
        found
    }

    /// Whether the changed medium misses a figure that this one has.
    fn is_contradicted_by(&self, changed: &CatalogueMedium) -> bool {
        self.figures.iter().any(|(published, cached_value)| {
            let brief = |medium| predict::published_in_brief(medium, published, SEED);
            let before = *cached_value.get_or_init(|| brief(self.medium));
            match before.zip(brief(changed)) {
                Some((before, after)) => (after / before - 1.0).abs() > TOLERANCE,
                None => false,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue;

    fn scaled(medium: &CatalogueMedium, name: &str, factor: f64) -> CatalogueMedium {
        let estimates = ModelEstimate::find_all(medium);
        let estimate = estimates.iter().find(|one| one.name() == name);
        estimate.unwrap_or_else(|| panic!("no estimate {name}")).scaled(medium, factor).unwrap()
    }

    #[test]
    fn doubled_page_time_contradicts_drive_latency() {
        // AnandTech measured 77.9 us on this drive; how long one of its pages takes was reckoned from that.
        let medium = catalogue::find("nvme-p3700").unwrap();
        let comparison = FigureComparison::from_medium(&medium);
        for factor in [0.5, 2.0] {
            assert!(comparison.is_contradicted_by(&scaled(&medium, "page_read_us", factor)), "{factor}");
        }
        // Its latency is known to 5 %, and so is most of it.
        let estimates = ModelEstimate::find_all(&medium);
        let page = estimates.iter().find(|one| one.name() == "page_read_us").unwrap();
        for factor in [0.5, 2.0] {
            let reached = comparison.furthest(page, factor).map_or(1.0, |(reached, _)| reached);
            assert!((0.85..1.18).contains(&reached), "{reached}");
        }
        // No source speaks of flushes.
        assert!(!comparison.is_contradicted_by(&scaled(&medium, "flush_us", 2.0)));
    }

    #[test]
    fn estimated_figure_contradicts_nothing() {
        // Its mean is reckoned from the bound that the guide gives.
        let medium = catalogue::find("ebs-io2").unwrap();
        let comparison = FigureComparison::from_medium(&medium);
        assert!(!comparison.is_contradicted_by(&scaled(&medium, "read_latency_us", 0.5)));
    }
}
