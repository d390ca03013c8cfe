//! The values of a medium that are marked as estimates, and the same medium with one of them half or double.

use serde_json::Value;

use crate::catalogue::Medium;

/// One estimate: a number, a distribution or a curve. Whether a property holds can't be halved.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// Where it stands in the medium as JSON.
    pointer: String,
    name: String,
}

/// The parts of a medium that decide how long requests take.
const PARTS: [&str; 2] = ["/model", "/tail"];

impl Estimate {
    /// All of a medium.
    pub fn of(medium: &Medium) -> Vec<Estimate> {
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

    /// The medium with this value times `factor`; none where that makes no medium.
    pub fn scaled(&self, medium: &Medium, factor: f64) -> Option<Medium> {
        let mut whole = serde_json::to_value(medium).expect("a medium is plain data");
        let entry = whole.pointer_mut(&self.pointer)?.as_object_mut()?;
        if let Some(value) = entry.get_mut("value") {
            let number = value.as_f64()?;
            // What is counted stays a whole number.
            let scaled = number * factor;
            *value =
                Value::from(if number.fract() == 0.0 && scaled >= 1.0 { scaled.round() } else { scaled });
        }
        for key in ["quantiles", "points"] {
            for pair in entry.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten() {
                // Of a share and a value, or a depth and a rate.
                let number = pair.get_mut(1)?;
                *number = Value::from(number.as_f64()? * factor);
            }
        }
        let scaled: Medium = serde_json::from_value(whole).ok()?;
        // Twice nothing is nothing.
        (scaled != *medium && scaled.problems().is_empty()).then_some(scaled)
    }
}

fn collect(value: &Value, pointer: String, found: &mut Vec<Estimate>) {
    match value {
        Value::Object(fields) => {
            let is_estimate = fields.get("estimate").and_then(Value::as_bool) == Some(true);
            let is_number = fields.get("value").is_some_and(Value::is_number);
            let has_numbers =
                is_number || ["quantiles", "points"].iter().any(|key| fields.contains_key(*key));
            if is_estimate && has_numbers {
                let name = pointer.rsplit('/').next().unwrap_or_default().to_owned();
                found.push(Estimate { pointer, name });
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

    #[test]
    fn estimates_are_those_that_the_file_marks() {
        let medium = catalogue::find("ebs-io2").unwrap();
        let names: Vec<String> = Estimate::of(&medium).iter().map(|one| one.name().to_owned()).collect();
        for name in ["request_mb_s", "queue_depth", "read_latency_us", "degraded_factor"] {
            assert!(names.iter().any(|known| known == name), "{name}: {names:?}");
        }
        assert!(!names.iter().any(|name| name == "baseline_iops"), "{names:?}");
    }

    #[test]
    fn every_estimate_of_the_catalogue_can_be_halved_or_doubled_but_for_bounds() {
        let (mut all, mut scaled) = (0, 0);
        for medium in catalogue::builtin() {
            for estimate in Estimate::of(medium) {
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
