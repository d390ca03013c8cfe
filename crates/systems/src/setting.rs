//! The settings of systems. A system declares each of them in one row of [`settings!`]: the name that studies use, the
//! field that holds the value, its type and default, how it is parsed and recorded, and what it means. Parsing,
//! defaults, error messages, the list for users and the record all follow from that row.

use std::ops::RangeInclusive;
use std::path::PathBuf;

const MIB: f64 = (1 << 20) as f64;

/// Settings that are wrong: the name of each, and what was expected of it.
pub(crate) type SettingMistakes = Vec<(String, String)>;

/// How the values of a setting are written in studies and in records. An error says what was expected.
pub(crate) trait SettingKind {
    type Value;
    fn read(&self, text: &str) -> Result<Self::Value, String>;
    fn show(&self, value: &Self::Value) -> String;
}

/// A whole number within these bounds. Studies may write `_` between its digits.
pub(crate) struct IntegerSetting(pub RangeInclusive<u64>);

impl SettingKind for IntegerSetting {
    type Value = u64;

    fn read(&self, text: &str) -> Result<u64, String> {
        let number = text.replace('_', "").parse().ok().filter(|number| self.0.contains(number));
        let (min, max) = (self.0.start(), self.0.end());
        number.ok_or_else(|| format!("expected a whole number from {min} to {max}, not '{text}'"))
    }

    fn show(&self, value: &u64) -> String {
        value.to_string()
    }
}

/// A part of something within these bounds: `0.25` or `25 %`.
pub(crate) struct FractionSetting(pub RangeInclusive<f64>);

impl SettingKind for FractionSetting {
    type Value = f64;

    fn read(&self, text: &str) -> Result<f64, String> {
        let number = match text.strip_suffix('%') {
            Some(percent) => percent.trim().parse::<f64>().map(|percent| percent / 100.0),
            None => text.parse::<f64>(),
        };
        let (min, max) = (self.0.start(), self.0.end());
        number
            .ok()
            .filter(|share| self.0.contains(share))
            .ok_or_else(|| format!("expected a part from {min} to {max}, such as 0.25 or 25 %, not '{text}'"))
    }

    fn show(&self, value: &f64) -> String {
        value.to_string()
    }
}

/// One of these words, in capitals or not, each with its value.
pub(crate) struct OneOf<T: 'static>(pub &'static [(&'static str, T)]);

impl<T: Copy + PartialEq> SettingKind for OneOf<T> {
    type Value = T;

    fn read(&self, text: &str) -> Result<T, String> {
        let found = self.0.iter().find(|&&(name, _)| name.eq_ignore_ascii_case(text));
        found.map(|&(_, value)| value).ok_or_else(|| format!("{}, not '{text}'", expected_one_of(self.0)))
    }

    fn show(&self, value: &T) -> String {
        self.0.iter().find(|(_, choice)| choice == value).map_or("", |&(name, _)| name).to_owned()
    }
}

/// `true` or `false`.
pub(crate) const BOOLEAN: OneOf<bool> = OneOf(&[("true", true), ("false", false)]);

/// A setting that may be left out; the record then says `none`.
pub(crate) struct OptionalSetting<K>(pub K);

impl<K: SettingKind> SettingKind for OptionalSetting<K> {
    type Value = Option<K::Value>;

    fn read(&self, text: &str) -> Result<Self::Value, String> {
        self.0.read(text).map(Some)
    }

    fn show(&self, value: &Self::Value) -> String {
        value.as_ref().map_or_else(|| "none".to_owned(), |value| self.0.show(value))
    }
}

/// Text that a rule of the setting's own accepts, kept as the rule returns it.
pub(crate) struct TextSetting(pub fn(&str) -> Result<String, String>);

impl SettingKind for TextSetting {
    type Value = String;

    fn read(&self, text: &str) -> Result<String, String> {
        (self.0)(text)
    }

    fn show(&self, value: &String) -> String {
        value.clone()
    }
}

/// Several words with commas between them, each of which the rule accepts. No words at all are recorded as `none`.
pub(crate) struct TextListSetting(pub fn(&str) -> Result<(), String>);

impl SettingKind for TextListSetting {
    type Value = Vec<String>;

    fn read(&self, text: &str) -> Result<Vec<String>, String> {
        let words = text.split(',').map(str::trim);
        words.map(|word| (self.0)(word).map(|()| word.to_owned())).collect()
    }

    fn show(&self, value: &Vec<String>) -> String {
        if value.is_empty() { "none".to_owned() } else { value.join(", ") }
    }
}

/// The path of something, which an error calls by these words (`a file`).
pub(crate) struct PathOf(pub &'static str);

impl SettingKind for PathOf {
    type Value = PathBuf;

    fn read(&self, text: &str) -> Result<PathBuf, String> {
        match text {
            "" => Err(format!("expected the path of {}", self.0)),
            _ => Ok(PathBuf::from(text)),
        }
    }

    fn show(&self, value: &PathBuf) -> String {
        value.display().to_string()
    }
}

/// A value with its own parser and its own form in the record.
pub(crate) struct CustomSetting<T> {
    pub read: fn(&str) -> Result<T, String>,
    pub show: fn(&T) -> String,
}

impl<T> SettingKind for CustomSetting<T> {
    type Value = T;

    fn read(&self, text: &str) -> Result<T, String> {
        (self.read)(text)
    }

    fn show(&self, value: &T) -> String {
        (self.show)(value)
    }
}

/// The words that would have been valid.
pub(crate) fn expected_one_of<T>(choices: &[(&str, T)]) -> String {
    let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
    format!("expected one of {}", names.join(", "))
}

/// The error about a memory budget below the smallest one that works.
pub(crate) fn too_small(budget_bytes: u64, min_bytes: u64) -> String {
    let mib = |bytes: u64| bytes as f64 / MIB;
    format!("{:.1} MiB is too small: expected at least {:.0} MiB", mib(budget_bytes), mib(min_bytes))
}

/// The first mistake about memory; others are reported by `check_settings`.
pub(crate) fn about_memory(mistakes: SettingMistakes) -> Option<String> {
    mistakes.into_iter().find(|(key, _)| key == "memory").map(|(_, problem)| problem)
}

/// Declares a system's configuration and its settings, a row each:
///
/// ```text
/// "name in studies" => field: Type = default, kind, "what it means, and its default";
/// ```
///
/// This makes the struct (with the memory budget beside the settings), its `Default`, the list `SETTINGS` for
/// [`SystemCapabilities`](crate::system::SystemCapabilities), and the functions `read` and `recorded`.
macro_rules! settings {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $Config:ident {
            $($(#[$row_attribute:meta])*
            $name:literal => $field:ident: $Value:ty = $default:expr, $kind:expr, $meaning:literal;)*
        }
    ) => {
        $(#[$attribute])*
        $visibility struct $Config {
            /// For everything that is started, and its page cache.
            pub budget_bytes: u64,
            $($(#[$row_attribute])* pub $field: $Value,)*
        }

        impl Default for $Config {
            fn default() -> Self {
                $Config { budget_bytes: 0, $($field: $default,)* }
            }
        }

        /// The settings of a study, as [`crate::system::SystemCapabilities`] lists them.
        $visibility const SETTINGS: &[(&str, &str)] = &[$(($name, $meaning)),*];

        impl $Config {
            /// The defaults overridden by `values`, and which values are invalid. Whether they are consistent is up to
            /// the caller.
            fn read(
                values: &std::collections::BTreeMap<String, String>,
                budget_bytes: u64,
            ) -> ($Config, $crate::setting::SettingMistakes) {
                use $crate::setting::SettingKind as _;
                let mut config = $Config { budget_bytes, ..$Config::default() };
                let mut mistakes = Vec::new();
                for (name, text) in values {
                    let text = text.trim();
                    let outcome = match name.as_str() {
                        $($name => $kind.read(text).map(|value| config.$field = value),)*
                        _ => Err(format!("no such setting; {}", $crate::setting::expected_one_of(SETTINGS))),
                    };
                    if let Err(problem) = outcome {
                        mistakes.push((name.clone(), problem));
                    }
                }
                (config, mistakes)
            }

            /// Every setting with its value in force, as the record shows it.
            fn recorded(&self) -> std::collections::BTreeMap<String, String> {
                use $crate::setting::SettingKind as _;
                [$(($name.to_owned(), $kind.show(&self.$field))),*].into()
            }
        }
    };
}
pub(crate) use settings;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_and_mistakes_say_what_was_expected() {
        let choices = OneOf(&[("fast", 1), ("slow", 2)]);
        assert_eq!((choices.read("FAST"), choices.show(&2)), (Ok(1), "slow".to_owned()));
        assert_eq!(choices.read("quick").unwrap_err(), "expected one of fast, slow, not 'quick'");
        let number = IntegerSetting(4..=1024);
        assert_eq!(number.read("1_024"), Ok(1024));
        assert_eq!(number.read("3").unwrap_err(), "expected a whole number from 4 to 1024, not '3'");
        let share = FractionSetting(0.05..=0.8);
        assert_eq!((share.read("0.25"), share.read("30 %")), (Ok(0.25), Ok(0.3)));
        for wrong in ["NaN", "", "0.9", "4 %"] {
            let expected = format!("expected a part from 0.05 to 0.8, such as 0.25 or 25 %, not '{wrong}'");
            assert_eq!(share.read(wrong).unwrap_err(), expected);
        }
        assert_eq!(OptionalSetting(number).show(&None), "none");
        assert_eq!(too_small(1 << 20, 3 << 19), "1.0 MiB is too small: expected at least 2 MiB");
    }

    #[test]
    fn setting_needs_only_its_row() {
        settings! {
            #[derive(Clone, Debug, PartialEq)]
            struct Config {
                "threads" => threads: u64 = 2, IntegerSetting(1..=8), "threads: 2";
                "sync" => sync: bool = false, BOOLEAN, "true or false (default)";
            }
        }
        let values = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
        };
        let (config, mistakes) = Config::read(&values(&[("sync", " TRUE ")]), 7);
        assert_eq!((&config, mistakes), (&Config { budget_bytes: 7, threads: 2, sync: true }, Vec::new()));
        let recorded = config.recorded();
        assert_eq!((recorded.len(), &*recorded["threads"], &*recorded["sync"]), (2, "2", "true"));
        assert_eq!(SETTINGS.len(), 2);
        let (_, mistakes) = Config::read(&values(&[("thread", "1"), ("threads", "9")]), 0);
        let wrong: Vec<&str> = mistakes.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(wrong, ["thread", "threads"]);
        assert_eq!(mistakes[0].1, "no such setting; expected one of threads, sync");
    }
}
