//! A system's figures: running totals and current states.

use std::collections::BTreeMap;

/// The prefix of figures that are a current state (`current_resident_bytes`). All others are running totals.
pub const CURRENT: &str = "current_";

/// What happened between two readings: the difference of totals, and states as of the second reading. A total that has become
/// smaller was reset, because its process restarted, and counts from zero.
pub fn between(before: &BTreeMap<String, f64>, after: &BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    let mut figures = BTreeMap::new();
    for (name, &end) in after {
        let start = before.get(name).copied().unwrap_or(0.0);
        let figure = if name.starts_with(CURRENT) || end < start { end } else { end - start };
        figures.insert(name.clone(), figure);
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_differences_and_states_are_not() {
        let map =
            |pairs: &[(&str, f64)]| pairs.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
        let before = map(&[("reads", 10.0), ("current_bytes", 500.0), ("restarted", 9.0)]);
        let after = map(&[("reads", 25.0), ("current_bytes", 400.0), ("restarted", 4.0), ("new", 7.0)]);
        let expected: BTreeMap<String, f64> =
            map(&[("reads", 15.0), ("current_bytes", 400.0), ("restarted", 4.0), ("new", 7.0)]);
        assert_eq!(between(&before, &after), expected);
    }
}
