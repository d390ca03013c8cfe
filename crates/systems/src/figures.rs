//! A system's figures: running totals and current states.

use std::collections::BTreeMap;

/// The prefix of figures that are a current state (`current_resident_bytes`). All others are running totals.
pub const CURRENT: &str = "current_";

/// The change between two readings: the difference of totals, and states as of the second reading. A total that has
/// become smaller was reset, because its process restarted, and counts from zero.
pub fn between(before: &BTreeMap<String, f64>, after: &BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    let mut figures = BTreeMap::new();
    for (name, &end) in after {
        let start = before.get(name).copied().unwrap_or(0.0);
        let figure = if name.starts_with(CURRENT) || end < start { end } else { end - start };
        figures.insert(name.clone(), figure);
    }
    figures
}

/// The counts of each node of a system, for totals that never fall when a node goes down or comes back: a reader of two
/// totals takes a smaller one for a reset of all.
#[derive(Debug, Default)]
pub(crate) struct NodeTotals(BTreeMap<String, NodeCounts>);

/// The totals of one node.
#[derive(Debug, Default)]
struct NodeCounts {
    process: u32,
    /// Of earlier processes, and of counts that began again, as they told last.
    before: BTreeMap<String, f64>,
    last: BTreeMap<String, f64>,
}

impl NodeTotals {
    /// Takes what a node tells. It must be newer than what it told before. Totals that are `stored` go on where its
    /// process ended.
    pub(crate) fn count(
        &mut self,
        node: &str,
        process: u32,
        figures: &BTreeMap<String, f64>,
        stored: &dyn Fn(&str) -> bool,
    ) {
        let counted = self.0.entry(node.to_owned()).or_default();
        if counted.process != process {
            counted.process = process;
            let (retained, ended) =
                std::mem::take(&mut counted.last).into_iter().partition(|(name, _)| stored(name));
            counted.last = retained;
            let ended: BTreeMap<String, f64> = ended;
            for (name, last) in ended {
                *counted.before.entry(name).or_insert(0.0) += last;
            }
        }
        for (name, &figure) in figures.iter().filter(|(name, _)| !name.starts_with(CURRENT)) {
            let last = counted.last.insert(name.clone(), figure).unwrap_or(0.0);
            if figure < last {
                *counted.before.entry(name.clone()).or_insert(0.0) += last;
            }
        }
    }

    /// Of all nodes together. One that tells nothing now counts with what it told last.
    pub(crate) fn total(&self, name: &str) -> f64 {
        let of_node = |counted: &NodeCounts| {
            [&counted.before, &counted.last].iter().filter_map(|part| part.get(name)).sum::<f64>()
        };
        self.0.values().map(of_node).sum()
    }

    /// All totals that any node has told.
    pub(crate) fn totals(&self) -> BTreeMap<String, f64> {
        let parts = self.0.values().flat_map(|counted| counted.before.keys().chain(counted.last.keys()));
        parts.map(|name| (name.clone(), self.total(name))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_continue_when_node_leaves_or_returns() {
        let figures = |reads: f64, files: f64| {
            BTreeMap::from([
                ("reads".to_owned(), reads),
                ("stored_files".to_owned(), files),
                ("current_x".to_owned(), 1.0),
            ])
        };
        let stored = |name: &str| name.starts_with("stored");
        let mut totals = NodeTotals::default();
        totals.count("a", 1, &figures(10.0, 3.0), &stored);
        totals.count("b", 2, &figures(20.0, 4.0), &stored);
        assert_eq!((totals.total("reads"), totals.total("stored_files")), (30.0, 7.0));
        // The second one is away, and comes back as another process that has kept its files.
        totals.count("a", 1, &figures(11.0, 3.0), &stored);
        assert_eq!(totals.total("reads"), 31.0);
        totals.count("b", 3, &figures(5.0, 6.0), &stored);
        assert_eq!((totals.total("reads"), totals.total("stored_files")), (36.0, 9.0));
        assert_eq!(totals.totals().keys().collect::<Vec<_>>(), ["reads", "stored_files"]);
    }

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
