//! The settings: whether the generator makes values for it.

use std::collections::BTreeMap;

use crate::setting::{OneOf, SettingKind as _, SettingMistakes};

/// The parts of a request that `null` takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum NullValues {
    /// Keys and values are made, as for a real system.
    #[default]
    Made,
    /// Keys only.
    LeftOut,
}

const VALUES: OneOf<NullValues> = OneOf(&[("made", NullValues::Made), ("none", NullValues::LeftOut)]);

/// Everything that is wrong, each with what was expected.
pub(super) fn check(settings: &BTreeMap<String, String>) -> SettingMistakes {
    let problem = |(key, value): (&String, &String)| match key.as_str() {
        "values" => VALUES.read(value).err().map(|problem| (key.clone(), problem)),
        _ => Some((key.clone(), "null has no such setting: leave it out".to_owned())),
    };
    settings.iter().filter_map(problem).collect()
}

/// The setting, once it was checked.
pub(super) fn values(settings: &BTreeMap<String, String>) -> NullValues {
    settings.get("values").and_then(|value| VALUES.read(value).ok()).unwrap_or_default()
}

pub(super) fn applied(values: NullValues) -> BTreeMap<String, String> {
    [("values".to_owned(), VALUES.show(&values))].into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(key: &str, value: &str) -> BTreeMap<String, String> {
        [(key.to_owned(), value.to_owned())].into()
    }

    #[test]
    fn values_are_made_unless_they_are_left_out() {
        assert_eq!(values(&BTreeMap::new()), NullValues::Made);
        let none = settings("values", "none");
        assert_eq!((check(&none), values(&none)), (Vec::new(), NullValues::LeftOut));
        assert_eq!(applied(NullValues::LeftOut), none);
        let wrong = check(&settings("values", "some"));
        assert_eq!(wrong, [("values".to_owned(), "expected one of made, none, not 'some'".to_owned())]);
        let unknown = check(&settings("wal", "sync"));
        assert_eq!(unknown, [("wal".to_owned(), "null has no such setting: leave it out".to_owned())]);
    }
}
