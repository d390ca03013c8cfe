//! What there is to set: whether the generator makes values for it.

use std::collections::BTreeMap;

use crate::setting;

/// What `null` takes of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Values {
    /// Keys and values are made, as for a real system.
    #[default]
    Made,
    /// Keys only.
    LeftOut,
}

const VALUES: [(&str, Values); 2] = [("made", Values::Made), ("none", Values::LeftOut)];

/// Everything that is wrong, each with what was expected.
pub(super) fn check(settings: &BTreeMap<String, String>) -> Vec<(String, String)> {
    let problem = |(key, value): (&String, &String)| match key.as_str() {
        "values" => setting::one_of(value, &VALUES).err().map(|problem| (key.clone(), problem)),
        _ => Some((key.clone(), "null has no such setting: leave it out".to_owned())),
    };
    settings.iter().filter_map(problem).collect()
}

/// The setting, once it was checked.
pub(super) fn values(settings: &BTreeMap<String, String>) -> Values {
    settings.get("values").and_then(|value| setting::one_of(value, &VALUES).ok()).unwrap_or_default()
}

pub(super) fn applied(values: Values) -> BTreeMap<String, String> {
    [("values".to_owned(), setting::name_of(values, &VALUES))].into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(key: &str, value: &str) -> BTreeMap<String, String> {
        [(key.to_owned(), value.to_owned())].into()
    }

    #[test]
    fn values_are_made_unless_they_are_left_out() {
        assert_eq!(values(&BTreeMap::new()), Values::Made);
        let none = settings("values", "none");
        assert_eq!((check(&none), values(&none)), (Vec::new(), Values::LeftOut));
        assert_eq!(applied(Values::LeftOut), none);
        let wrong = check(&settings("values", "some"));
        assert_eq!(wrong, [("values".to_owned(), "expected one of made, none".to_owned())]);
        let unknown = check(&settings("wal", "sync"));
        assert_eq!(unknown, [("wal".to_owned(), "null has no such setting: leave it out".to_owned())]);
    }
}
