//! There is nothing to set.

use std::collections::BTreeMap;

/// Every setting is a mistake.
pub(super) fn check(settings: &BTreeMap<String, String>) -> Vec<(String, String)> {
    settings.keys().map(|key| (key.clone(), "null has no settings: leave it out".to_owned())).collect()
}
