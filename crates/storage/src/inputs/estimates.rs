//! The values of a medium that are marked as estimates, and the same medium with one of them half or double.

use serde_json::Value;

use crate::catalogue::CatalogueMedium;

/// One estimate: a number, a distribution or a curve. Whether a property holds can't be halved.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelEstimate {
    /// Where it stands in the medium as JSON.
    pointer: String,
    name: String,
}

/// The parts of a medium that decide how long requests take.
const PARTS: [&str; 2] = ["/model", "/tail"];

impl ModelEstimate {
    /// All of a medium.
    pub fn find_all(medium: &CatalogueMedium) -> Vec<ModelEstimate> {
        let whole = serde_json::to_value(medium).expect("a medium is plain data");
        let mut found = Vec::new();
        for part in PARTS {
            if let Some(value) = whole.pointer(part) {
                collect(value, part.to_owned(), &mut found);
            }
        }
        found
    }

    /// As the medium's file calls it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is the curve of a measured service. A model takes its gain from depth: all of it times a factor would
    /// be the same.
    fn is_rate_at_depths(&self) -> bool {
        self.name == "iops" && self.pointer.contains("/service/")
    }

    /// The medium with this value times `factor`; none where that makes no medium.
    pub fn scaled(&self, medium: &CatalogueMedium, factor: f64) -> Option<CatalogueMedium> {
        let mut whole = serde_json::to_value(medium).expect("a medium is plain data");
        let entry = whole.pointer_mut(&self.pointer)?.as_object_mut()?;
        if let Some(value) = entry.get_mut("value") {
            let number = value.as_f64()?;
            // Counts stay whole numbers.
            let scaled = number * factor;
            *value =
                Value::from(if number.fract() == 0.0 && scaled >= 1.0 { scaled.round() } else { scaled });
        }
        let is_of_depths = self.is_rate_at_depths();
        for key in ["quantiles", "points"] {
            let mut first = None;
            for pair in entry.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten() {
                // Of a share and a value, or a depth and a rate.
                let (x, y) = (pair.get(0)?.as_f64()?, pair.get(1)?.as_f64()?);
                let scaled = match is_of_depths {
                    true => beside_one(*first.get_or_insert(y), x, y, factor),
                    false => y * factor,
                };
                *pair.get_mut(1)? = Value::from(scaled);
            }
        }
        let scaled: CatalogueMedium = serde_json::from_value(whole).ok()?;
        // Twice nothing is nothing.
        (scaled != *medium && scaled.problems().is_empty()).then_some(scaled)
    }
}

/// A rate at a depth times a factor, where one request at a time has the rate `alone`. That one is what the latency
/// says and stays; what can be estimated is how much more comes of more requests at once: no less than nothing, and no
/// more than as many times as there are requests. Where the file itself has less or more, so may be its multiple.
fn beside_one(alone: f64, depth: f64, rate: f64, factor: f64) -> f64 {
    if depth <= 1.0 {
        return rate;
    }
    (rate * factor).clamp(rate.min(alone), rate.max(depth * alone))
}

fn collect(value: &Value, pointer: String, found: &mut Vec<ModelEstimate>) {
    match value {
        Value::Object(fields) => {
            let is_estimate = fields.get("estimate").and_then(Value::as_bool) == Some(true);
            let is_number = fields.get("value").is_some_and(Value::is_number);
            let has_numbers =
                is_number || ["quantiles", "points"].iter().any(|key| fields.contains_key(*key));
            if is_estimate && has_numbers {
                let name = pointer.rsplit('/').next().unwrap_or_default().to_owned();
                found.push(ModelEstimate { pointer, name });
                return;
            }
            for (key, field) in fields {
                collect(field, format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1")), found);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                collect(item, format!("{pointer}/{index}"), found);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue;
    use crate::predict::{self, AccessPattern, ClosedLoop};
    use crate::stack::InitialState;

    #[test]
    fn estimates_are_those_that_the_file_marks() {
        let medium = catalogue::find("ebs-io2").unwrap();
        let names: Vec<String> =
            ModelEstimate::find_all(&medium).iter().map(|one| one.name().to_owned()).collect();
        for name in ["request_mb_s", "queue_depth", "read_latency_us", "degraded_factor"] {
            assert!(names.iter().any(|candidate| candidate == name), "{name}: {names:?}");
        }
        assert!(!names.iter().any(|name| name == "baseline_iops"), "{names:?}");
    }

    /// How many reads a second a medium answers at a depth.
    fn iops(medium: &CatalogueMedium, queue_depth: usize) -> f64 {
        let load = ClosedLoop {
            pattern: AccessPattern::RandomRead,
            block_bytes: 4096,
            queue_depth,
            requests: 20_000,
            warmup: 1_000,
            seed: 1,
        };
        predict::closed_loop(&mut *medium.model(1 << 30, 1, InitialState::Fresh), &load).iops
    }

    #[test]
    fn estimated_service_rate_changes_depth_not_latency() {
        let medium = catalogue::find("i3-2xlarge").unwrap();
        let estimates = ModelEstimate::find_all(&medium);
        let of_reads = estimates.iter().find(|one| one.pointer.ends_with("/service/0/iops")).unwrap();
        let (alone, deep) = (iops(&medium, 1), iops(&medium, 256));
        for factor in [0.5, 2.0] {
            let changed = of_reads.scaled(&medium, factor).unwrap();
            let (new_alone, new_deep) = (iops(&changed, 1), iops(&changed, 256));
            assert!((new_alone / alone - 1.0).abs() < 0.01, "alone: {alone}, {new_alone}");
            assert!((new_deep / deep / factor - 1.0).abs() < 0.05, "deep: {deep}, {new_deep} for {factor}");
        }
    }

    #[test]
    fn depth_gain_stays_between_zero_and_littles_law() {
        assert_eq!(beside_one(100.0, 1.0, 100.0, 2.0), 100.0);
        assert_eq!(beside_one(100.0, 32.0, 1_000.0, 2.0), 2_000.0);
        assert_eq!(beside_one(100.0, 4.0, 300.0, 2.0), 400.0);
        assert_eq!(beside_one(100.0, 32.0, 150.0, 0.5), 100.0);
        // A device that does less with more to do, as its file has it.
        assert_eq!(beside_one(100.0, 32.0, 80.0, 0.5), 80.0);
        assert_eq!(beside_one(100.0, 2.0, 250.0, 2.0), 250.0);
    }

    #[test]
    fn catalogue_estimates_scale_by_two_within_bounds() {
        let (mut all, mut scaled) = (0, 0);
        for medium in catalogue::builtin() {
            for estimate in ModelEstimate::find_all(medium) {
                for factor in [0.5, 2.0] {
                    all += 1;
                    let Some(changed) = estimate.scaled(medium, factor) else { continue };
                    scaled += 1;
                    assert_ne!(&changed, medium, "{} of {}", estimate.name(), medium.name);
                    assert!(changed.problems().is_empty());
                }
            }
        }
        assert!(all > 100 && scaled * 10 > all * 8, "{scaled} of {all}");
    }
}
