//! What `nodetool` prints, read. None of these forms is promised by Cassandra: what is not there is left out.

use std::collections::BTreeMap;

/// Figures of one node.
pub type Figures = BTreeMap<String, f64>;

/// A line of `compactionstats`, and what we call it.
const COMPACTION: &[(&str, &str)] = &[
    ("pending tasks", "current_pending_compactions"),
    ("compactions completed", "compactions"),
    ("data compacted", "compacted_bytes"),
    ("compactions aborted", "compactions_aborted"),
];

/// Reads `compactionstats`: lines of a name, spaces and a number.
pub fn compaction_figures(output: &str) -> Figures {
    let mut figures = Figures::new();
    for line in output.lines() {
        let Some(&(key, name)) = COMPACTION.iter().find(|(key, _)| line.starts_with(key)) else { continue };
        let number = line[key.len()..].trim_start_matches(':').split_whitespace().next();
        if let Some(number) = number.and_then(|number| number.parse::<f64>().ok()).filter(|n| n.is_finite()) {
            figures.insert(name.to_owned(), number);
        }
    }
    figures
}

/// How many nodes `status` calls up and normal.
pub fn nodes_up(output: &str) -> usize {
    output.lines().filter(|line| line.split_whitespace().next() == Some("UN")).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn map(pairs: &[(&str, f64)]) -> Figures {
        pairs.iter().map(|&(name, value)| (name.to_owned(), value)).collect()
    }

    #[test]
    fn compactions_are_read_from_lines() {
        let output = "concurrent compactors            2           \npending tasks                    3           \n\
                      - ycsb.records: 3\n\
                      compactions completed            12          \ndata compacted                   490         \n\
                      compressed data compacted        519         \ncompactions aborted              0           \n";
        let expected = map(&[
            ("current_pending_compactions", 3.0),
            ("compactions", 12.0),
            ("compacted_bytes", 490.0),
            ("compactions_aborted", 0.0),
        ]);
        assert_eq!(compaction_figures(output), expected);
        assert_eq!(compaction_figures("pending tasks: 4\n"), map(&[("current_pending_compactions", 4.0)]));
    }

    #[test]
    fn only_nodes_that_are_up_and_normal_count() {
        let output = "Datacenter: datacenter1\n=======================\nStatus=Up/Down\n|/ State=Normal/Leaving\n\
                      --  Address     Load  Tokens\nUN  127.0.0.1   1 KiB  16\nDN  127.0.0.2   ?  16\nUJ  127.0.0.3  ?  16\n";
        assert_eq!(nodes_up(output), 1);
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in "(pending tasks|data compacted|UN|:| |,|\n|[0-9]|é|NaN|1e999){0,60}") {
            prop_assert!(compaction_figures(&text).values().all(|figure| figure.is_finite()));
            nodes_up(&text);
        }
    }
}
