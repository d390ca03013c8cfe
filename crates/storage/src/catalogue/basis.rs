//! What a medium rests on: how much of its model was measured, published or estimated, and by how many figures it can
//! be judged.

use serde::Serialize;

use super::CatalogueMedium;

/// Counts of a medium's statements by where they come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MediumBasis {
    /// Values of the model and its tail that were measured, by someone who had the device, or fitted to measurements.
    pub measured_values: usize,
    /// Values that the maker or somebody else states.
    pub published_values: usize,
    /// Values that no source states.
    pub estimated_values: usize,
    /// Figures of the device, or of its generation, that the model is held to: rows of `[[published]]` that are no
    /// estimates, and of `[[measured]]`.
    pub figures: usize,
}

impl MediumBasis {
    /// Measured, published and estimated values, in whole per cent that add up to 100.
    pub fn shares_percent(&self) -> [usize; 3] {
        let all = (self.measured_values + self.published_values + self.estimated_values).max(1);
        let measured = (self.measured_values * 100 + all / 2) / all;
        let estimated = (self.estimated_values * 100 + all / 2) / all;
        // Two shares that are rounded up can make 101 %.
        let measured = measured.min(100 - estimated.min(100));
        [measured, 100 - measured - estimated, estimated]
    }

    /// Whether nothing of the device itself is known: no figure can tell how wrong its model is.
    pub fn is_guess(&self) -> bool {
        self.figures == 0
    }
}

impl CatalogueMedium {
    /// What its model rests on.
    pub fn basis(&self) -> MediumBasis {
        let mut basis = MediumBasis::default();
        let is_measured = |source: &str| {
            self.measurements.contains(source) || self.measured.iter().any(|row| row.source == source)
        };
        for entry in self.entries() {
            let count = match (entry.estimate, is_measured(entry.source)) {
                (true, _) => &mut basis.estimated_values,
                (false, true) => &mut basis.measured_values,
                (false, false) => &mut basis.published_values,
            };
            *count += 1;
        }
        let published = self.published.iter().filter(|figure| !figure.estimate).count();
        basis.figures = published + self.measured.len();
        basis
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue;

    #[test]
    fn shares_add_up_to_hundred() {
        for measured in 0..8 {
            for published in 0..8 {
                for estimated in 0..8 {
                    let basis = MediumBasis {
                        measured_values: measured,
                        published_values: published,
                        estimated_values: estimated,
                        figures: 0,
                    };
                    assert_eq!(basis.shares_percent().iter().sum::<usize>(), 100, "{basis:?}");
                }
            }
        }
    }

    #[test]
    fn values_of_catalogue_are_counted_once() {
        for medium in catalogue::builtin() {
            let basis = medium.basis();
            let entries = medium.model.entries().len();
            let tail: usize = medium.tail.iter().map(|tail| tail.entries().len()).sum();
            let counted = basis.measured_values + basis.published_values + basis.estimated_values;
            assert_eq!(counted, entries + tail, "{}", medium.name);
        }
    }

    #[test]
    fn estimates_of_ours_are_marked_as_such() {
        for medium in catalogue::builtin() {
            for entry in medium.model.entries().iter().filter(|entry| !entry.estimate) {
                let source = medium.source_text(entry.source);
                assert!(!source.starts_with("Our estimate"), "{}: {}: {source}", medium.name, entry.name);
            }
        }
    }

    #[test]
    fn fitted_drive_rests_on_its_measurements() {
        let basis = catalogue::find("samsung-pm9a3-960").unwrap().basis();
        let [measured, _, estimated] = basis.shares_percent();
        assert!(measured > 30 && estimated < 60, "{basis:?}");
        assert!(!basis.is_guess());
        let link = catalogue::find("nvme-tcp-9300").unwrap().basis();
        assert!(link.is_guess(), "{link:?}");
    }
}
