//! Which keys of a bucket the metadata speak for: those of exclusive prefixes. The rules decide that, and they may
//! change between two starts. So the metadata note the rules under which they were written, and a start lists what has
//! become exclusive since.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use underlay_sync::planted::{PlantedBug, is_planted};

use super::RuleState;
use crate::config::StoreConsistency;
use crate::errors::GatewayResult;
use crate::meta::{MetadataChange, MetadataView};

/// Prefixes, and whether the keys that each decides are known. The longest prefix of a key decides, as in the rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PrefixRegions(BTreeMap<String, bool>);

/// Under which the metadata have those of a bucket.
fn key_of(bucket: &str) -> Vec<u8> {
    format!("known {bucket}").into_bytes()
}

/// For the fuzzer: any bytes as such a note.
pub(super) fn read_any(data: &[u8]) {
    if let Ok(regions) = postcard::from_bytes::<PrefixRegions>(data) {
        assert!(
            regions.missing(&PrefixRegions::default()).is_empty() && regions.missing(&regions).is_empty()
        );
        assert_eq!(regions.without_unwanted(&regions), regions);
    }
}

impl PrefixRegions {
    /// As it should be by these rules.
    pub(super) fn wanted(rules: &[RuleState]) -> PrefixRegions {
        let row = |state: &RuleState| {
            (state.rule.prefix.clone(), state.rule.consistency == StoreConsistency::Exclusive)
        };
        PrefixRegions(rules.iter().map(row).collect())
    }

    /// A bucket's regions in the metadata; nothing where they have none.
    ///
    /// # Errors
    /// When they can't be read.
    pub(super) fn known(view: &MetadataView, bucket: &str) -> GatewayResult<PrefixRegions> {
        Ok(view.state(&key_of(bucket))?.unwrap_or_default())
    }

    /// Changes the note.
    ///
    /// # Errors
    /// When it can't be read or written.
    pub(super) fn note(
        change: &mut MetadataChange<'_>,
        bucket: &str,
        note: impl FnOnce(PrefixRegions) -> PrefixRegions,
    ) -> GatewayResult<()> {
        let regions = change.state(&key_of(bucket))?.unwrap_or_default();
        change.set_state(&key_of(bucket), &note(regions))
    }

    /// Removes the note of a bucket that has gone.
    ///
    /// # Errors
    /// When it can't be written.
    pub(super) fn forget(change: &mut MetadataChange<'_>, bucket: &str) -> GatewayResult<()> {
        change.remove_state(&key_of(bucket))
    }

    /// Whether the metadata speak for this key.
    pub(super) fn covers(&self, key: &str) -> bool {
        let longest = self.0.iter().filter(|(prefix, _)| key.starts_with(prefix.as_str()));
        longest.max_by_key(|(prefix, _)| prefix.len()).is_some_and(|(_, is_known)| *is_known)
    }

    /// The same, with the prefixes of `other` as well: each decides alike in both for all the keys that it decides.
    pub(super) fn divided_by(&self, other: &PrefixRegions) -> PrefixRegions {
        let prefixes = self.0.keys().chain(other.0.keys());
        PrefixRegions(prefixes.map(|prefix| (prefix.clone(), self.covers(prefix))).collect())
    }

    /// Prefixes, as [divided](Self::divided_by), whose keys are wanted and not known.
    pub(super) fn missing(&self, wanted: &PrefixRegions) -> Vec<String> {
        if is_planted(PlantedBug::RemovedRuleForgets) {
            let is_missing = |prefix: &String| wanted.0[prefix] && self.0.get(prefix) != Some(&true);
            return wanted.0.keys().filter(|prefix| is_missing(prefix)).cloned().collect();
        }
        let divided = self.divided_by(wanted).0;
        let missing = divided.into_iter().filter(|(prefix, is_known)| !is_known && wanted.covers(prefix));
        missing.map(|(prefix, _)| prefix).collect()
    }

    /// Whether this prefix is the one that decides the key. Each has to be [divided](Self::divided_by) already.
    pub(super) fn decides(&self, prefix: &str, key: &str) -> bool {
        key.starts_with(prefix)
            && !self.0.keys().any(|other| other.len() > prefix.len() && key.starts_with(other.as_str()))
    }

    /// The keys that this prefix decides are known from now on.
    pub(super) fn with(mut self, prefix: &str) -> PrefixRegions {
        self.0.insert(prefix.to_owned(), true);
        self
    }

    /// Unwanted regions are forgotten.
    pub(super) fn without_unwanted(&self, wanted: &PrefixRegions) -> PrefixRegions {
        let mut divided = self.divided_by(wanted);
        for (prefix, is_known) in &mut divided.0 {
            *is_known &= wanted.covers(prefix);
        }
        divided
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn regions(rows: &[(&str, bool)]) -> PrefixRegions {
        PrefixRegions(rows.iter().map(|(prefix, is_known)| ((*prefix).to_owned(), *is_known)).collect())
    }

    #[test]
    fn keys_of_removed_rule_are_relisted() {
        let before = regions(&[("", true), ("raw/", false)]);
        assert_eq!(before.missing(&regions(&[("", true)])), ["raw/"]);
        // Narrowed.
        let narrowed = regions(&[("", true), ("raw/x/", false)]);
        assert_eq!(before.missing(&narrowed), ["raw/"]);
        let divided = before.divided_by(&narrowed);
        assert!(divided.decides("raw/", "raw/y") && !divided.decides("raw/", "raw/x/y"));
        // Made exclusive, which is the same.
        assert_eq!(before.missing(&regions(&[("", true), ("raw/", true)])), ["raw/"]);
        assert!(before.missing(&before).is_empty());
        // Nothing is known of a bucket that is new.
        assert_eq!(PrefixRegions::default().missing(&before), [""]);
    }

    proptest! {
        /// Against what each key is by itself.
        #[test]
        fn known_regions_after_changes_match_rules(
            histories in proptest::collection::vec(
                proptest::collection::btree_map("[ab]{0,3}", any::<bool>(), 0..5), 1..5),
        ) {
            let keys: Vec<String> =
                (0..81).map(|at: u32| (0..4).map(|digit| ['a', 'b', 'c'][(at / 3_u32.pow(digit) % 3) as usize]).collect()).collect();
            let mut known = PrefixRegions::default();
            let mut is_known = vec![false; keys.len()];
            for mut rules in histories {
                rules.entry(String::new()).or_insert(true);
                let wanted = PrefixRegions(rules);
                known = known.without_unwanted(&wanted);
                for (key, is_known) in keys.iter().zip(&mut is_known) {
                    *is_known &= wanted.covers(key);
                    prop_assert_eq!(known.covers(key), *is_known);
                }
                for prefix in known.missing(&wanted) {
                    let divided = known.divided_by(&wanted);
                    for (key, is_known) in keys.iter().zip(&mut is_known) {
                        if divided.decides(&prefix, key) {
                            prop_assert!(!*is_known, "{} is listed twice", key);
                            *is_known = true;
                        }
                    }
                    known = divided.with(&prefix);
                }
                for (key, is_known) in keys.iter().zip(&is_known) {
                    prop_assert_eq!(*is_known, wanted.covers(key), "{}", key);
                }
            }
        }
    }
}
