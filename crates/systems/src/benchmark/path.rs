//! Paths into JSON: `jobs[0].read.clat_ns.percentile["99.000000"]`, and `jobs[*]` for all elements.

use serde_json::Value;

/// A step on the way.
#[derive(Debug, PartialEq)]
enum PathStep {
    Key(String),
    Index(usize),
    Each,
}

/// The values that a path leads to.
///
/// # Errors
/// The mistake in the path.
pub(super) fn values_at<'v>(root: &'v Value, path: &str) -> Result<Vec<&'v Value>, String> {
    let mut found = vec![root];
    for step in steps(path)? {
        found = found
            .into_iter()
            .flat_map(|value| match &step {
                PathStep::Key(key) => value.get(key).into_iter().collect::<Vec<_>>(),
                PathStep::Index(index) => value.get(index).into_iter().collect(),
                PathStep::Each => value.as_array().into_iter().flatten().collect(),
            })
            .collect();
    }
    Ok(found)
}

/// Whether a path can be followed.
///
/// # Errors
/// The mistake in it.
pub(super) fn check(path: &str) -> Result<(), String> {
    steps(path).map(drop)
}

fn steps(path: &str) -> Result<Vec<PathStep>, String> {
    let wrong = |rest: &str| format!("expected a path such as jobs[0].read.iops; it goes wrong at `{rest}`");
    let mut steps = Vec::new();
    // A leading `$` is that of JSONPath.
    let mut rest = path.trim().strip_prefix('$').unwrap_or(path.trim());
    rest = rest.strip_prefix('.').unwrap_or(rest);
    let mut is_first = true;
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix("[\"") {
            let (key, after) = inner.split_once("\"]").ok_or_else(|| wrong(rest))?;
            steps.push(PathStep::Key(key.to_owned()));
            rest = after;
        } else if let Some(inner) = rest.strip_prefix('[') {
            let (index, after) = inner.split_once(']').ok_or_else(|| wrong(rest))?;
            steps.push(match index.trim() {
                "*" => PathStep::Each,
                index => PathStep::Index(index.parse().map_err(|_| wrong(rest))?),
            });
            rest = after;
        } else {
            let key = match (rest.strip_prefix('.'), is_first) {
                (Some(key), false) => key,
                (None, true) => rest,
                _ => return Err(wrong(rest)),
            };
            let end = key.find(['.', '[']).unwrap_or(key.len());
            if end == 0 {
                return Err(wrong(rest));
            }
            steps.push(PathStep::Key(key[..end].to_owned()));
            rest = &key[end..];
        }
        is_first = false;
    }
    if steps.is_empty() { Err(wrong(path)) } else { Ok(steps) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_values() {
        let root: Value =
            serde_json::from_str(r#"{"jobs":[{"iops":1,"p":{"99.0":2}},{"iops":3}],"a":{"b":4}}"#).unwrap();
        let numbers_at = |path: &str| -> Vec<i64> {
            values_at(&root, path).unwrap().iter().filter_map(|value| value.as_i64()).collect()
        };
        assert_eq!(numbers_at("jobs[0].iops"), [1]);
        assert_eq!(numbers_at("jobs[*].iops"), [1, 3]);
        assert_eq!(numbers_at("$.jobs[0].p[\"99.0\"]"), [2]);
        assert_eq!(numbers_at("a.b"), [4]);
        assert!(numbers_at("a.c").is_empty() && numbers_at("jobs[7].iops").is_empty());
        for wrong in ["", "a..b", "a.", "[x]", "[\"a", "a[0"] {
            assert!(values_at(&root, wrong).unwrap_err().contains("goes wrong"), "{wrong}");
        }
    }
}
