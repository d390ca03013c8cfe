//! The kinds of values that many keys take.

use std::time::Duration;

use serde_json::{Value, json};

use super::KeyKind;
use super::schema::{one_or_many_schema, words_schema};
use crate::diagnostics::Diagnostics;
use crate::field::{Field, Spanned};

/// `20 s`, `500 ms`, up to a week.
#[derive(Clone, Copy, Debug)]
pub struct DurationKind {
    pub allows_zero: bool,
}

impl KeyKind for DurationKind {
    type Value = Duration;

    fn read(&self, field: &Field<'_>, findings: &mut Diagnostics) -> Option<Spanned<Duration>> {
        field.duration(self.allows_zero, findings)
    }

    fn describe(&self) -> String {
        let least = if self.allows_zero { "" } else { ", more than zero" };
        format!("a duration such as \"20 s\" or \"500 ms\"{least}")
    }

    fn schema(&self) -> Value {
        quantity_schema("h|min|s|ms|us|ns", "20 s")
    }
}

/// `2 GiB`, `450 GB`, more than zero.
#[derive(Clone, Copy, Debug)]
pub struct BytesKind;

impl KeyKind for BytesKind {
    type Value = u64;

    fn read(&self, field: &Field<'_>, findings: &mut Diagnostics) -> Option<Spanned<u64>> {
        field.bytes(findings)
    }

    fn describe(&self) -> String {
        "a size such as \"2 GiB\" or \"256 GB\"".to_owned()
    }

    fn schema(&self) -> Value {
        quantity_schema("[KkMGTP]i?B|B", "450 GB")
    }
}

/// `25 Gbit/s`, `120 MB/s`, in million bytes a second.
#[derive(Clone, Copy, Debug)]
pub struct BandwidthKind;

impl KeyKind for BandwidthKind {
    type Value = f64;

    fn read(&self, field: &Field<'_>, findings: &mut Diagnostics) -> Option<Spanned<f64>> {
        field.bandwidth_mb_s(findings)
    }

    fn describe(&self) -> String {
        "a bandwidth such as \"25 Gbit/s\" or \"120 MB/s\"".to_owned()
    }

    fn schema(&self) -> Value {
        quantity_schema("[GM]bit/s|[kMG]i?B/s", "25 Gbit/s")
    }
}

fn quantity_schema(units: &str, example: &str) -> Value {
    json!({ "type": "string", "pattern": format!(r"^\s*[0-9][0-9_.]*\s*({units})\s*$"), "examples": [example] })
}

/// An integer within bounds; `u64::MAX` is no upper bound.
#[derive(Clone, Copy, Debug)]
pub struct WholeKind {
    pub min: u64,
    pub max: u64,
}

impl KeyKind for WholeKind {
    type Value = u64;

    fn read(&self, field: &Field<'_>, findings: &mut Diagnostics) -> Option<Spanned<u64>> {
        field.whole(self.min..=self.max, findings)
    }

    fn describe(&self) -> String {
        match self.max {
            u64::MAX => format!("an integer of at least {}", self.min),
            max => format!("an integer from {} to {max}", self.min),
        }
    }

    fn schema(&self) -> Value {
        let mut schema = json!({ "type": "integer", "minimum": self.min });
        if self.max != u64::MAX {
            schema["maximum"] = json!(self.max);
        }
        schema
    }
}

/// [`WholeKind`] for what fits 32 bits.
#[derive(Clone, Copy, Debug)]
pub struct CountKind {
    pub min: u32,
    pub max: u32,
}

impl KeyKind for CountKind {
    type Value = u32;

    fn read(&self, field: &Field<'_>, findings: &mut Diagnostics) -> Option<Spanned<u32>> {
        field.count(self.min..=self.max, findings)
    }

    fn describe(&self) -> String {
        format!("an integer from {} to {}", self.min, self.max)
    }

    fn schema(&self) -> Value {
        WholeKind { min: self.min.into(), max: self.max.into() }.schema()
    }
}

/// How many times as much: from 1 to `max`.
#[derive(Clone, Copy, Debug)]
pub struct FactorKind {
    pub max: f64,
}

impl KeyKind for FactorKind {
    type Value = f64;

    fn read(&self, field: &Field<'_>, findings: &mut Diagnostics) -> Option<Spanned<f64>> {
        let factor =
            field.number_within(1.0..=self.max, &format!("a factor from 1 to {}", self.max), findings)?;
        Some(Spanned::new(factor, field.span.clone()))
    }

    fn describe(&self) -> String {
        format!("a number from 1 to {}", self.max)
    }

    fn schema(&self) -> Value {
        json!({ "type": "number", "minimum": 1.0, "maximum": self.max })
    }
}

/// A part of a whole, from 0 to 1.
#[derive(Clone, Copy, Debug)]
pub struct ShareKind;

impl KeyKind for ShareKind {
    type Value = f64;

    fn read(&self, field: &Field<'_>, findings: &mut Diagnostics) -> Option<Spanned<f64>> {
        let share = field.number_within(0.0..=1.0, "a share from 0 to 1", findings)?;
        Some(Spanned::new(share, field.span.clone()))
    }

    fn describe(&self) -> String {
        "a number from 0 to 1".to_owned()
    }

    fn schema(&self) -> Value {
        json!({ "type": "number", "minimum": 0.0, "maximum": 1.0 })
    }
}

#[derive(Clone, Copy, Debug)]
pub struct BooleanKind;

impl KeyKind for BooleanKind {
    type Value = bool;

    fn read(&self, field: &Field<'_>, findings: &mut Diagnostics) -> Option<Spanned<bool>> {
        Some(Spanned::new(field.boolean(findings)?, field.span.clone()))
    }

    fn describe(&self) -> String {
        "true or false".to_owned()
    }

    fn schema(&self) -> Value {
        json!({ "type": "boolean" })
    }
}

/// `true`, whose opposite would say nothing.
#[derive(Clone, Copy, Debug)]
pub struct OnlyTrue;

impl KeyKind for OnlyTrue {
    type Value = ();

    fn read(&self, field: &Field<'_>, findings: &mut Diagnostics) -> Option<Spanned<()>> {
        if !field.as_true() {
            field.mismatch("true", findings);
            return None;
        }
        Some(Spanned::new((), field.span.clone()))
    }

    fn describe(&self) -> String {
        "true".to_owned()
    }

    fn schema(&self) -> Value {
        json!({ "const": true })
    }
}

/// Any text. The words say what it is in a message about another type: `the name of a storage`.
#[derive(Clone, Copy, Debug)]
pub struct AnyText(pub &'static str);

impl KeyKind for AnyText {
    type Value = String;

    fn read(&self, field: &Field<'_>, findings: &mut Diagnostics) -> Option<Spanned<String>> {
        field.text(self.0, findings)
    }

    fn describe(&self) -> String {
        "text".to_owned()
    }

    fn schema(&self) -> Value {
        json!({ "type": "string" })
    }
}

/// One of these words, each with its value.
#[derive(Clone, Copy, Debug)]
pub struct WordKind<T: 'static>(pub &'static [(&'static str, T)]);

impl<T: Copy + Sync> KeyKind for WordKind<T> {
    type Value = T;

    fn read(&self, field: &Field<'_>, findings: &mut Diagnostics) -> Option<Spanned<T>> {
        let words: Vec<&'static str> = self.0.iter().map(|&(word, _)| word).collect();
        let found = field.word(&words, findings)?;
        let &(_, value) = self.0.iter().find(|(word, _)| *word == found.value)?;
        Some(Spanned::new(value, found.span))
    }

    fn describe(&self) -> String {
        quote_words(self.0.iter().map(|&(word, _)| word))
    }

    fn schema(&self) -> Value {
        words_schema(self.0.iter().map(|&(word, _)| word))
    }
}

/// One word of a list that is put together when it is needed.
#[derive(Clone, Copy, Debug)]
pub struct AnyWord(pub fn() -> Vec<&'static str>);

impl KeyKind for AnyWord {
    type Value = &'static str;

    fn read(&self, field: &Field<'_>, findings: &mut Diagnostics) -> Option<Spanned<&'static str>> {
        field.word(&(self.0)(), findings)
    }

    fn describe(&self) -> String {
        quote_words((self.0)())
    }

    fn schema(&self) -> Value {
        words_schema((self.0)())
    }
}

/// `"cold" or "warm"`
fn quote_words<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = words.into_iter().map(|word| format!("\"{word}\"")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}

/// A value, or a list of different ones.
#[derive(Clone, Copy, Debug)]
pub struct ListKind<K>(pub K);

impl<K: KeyKind> KeyKind for ListKind<K>
where
    K::Value: PartialEq,
{
    type Value = Vec<Spanned<K::Value>>;

    fn read(&self, field: &Field<'_>, findings: &mut Diagnostics) -> Option<Spanned<Self::Value>> {
        let list = field.list(findings, |element, findings| self.0.read(element, findings));
        Some(Spanned::new(list, field.span.clone()))
    }

    fn describe(&self) -> String {
        format!("{}, or a list of such", self.0.describe())
    }

    fn schema(&self) -> Value {
        one_or_many_schema(self.0.schema())
    }
}

/// A value that its section's reader takes apart itself: it has a schema here, and its field from
/// [`Section::take_key`](crate::Section::take_key).
#[derive(Clone, Copy, Debug)]
pub struct OwnSchema(pub fn() -> Value);

impl KeyKind for OwnSchema {
    type Value = ();

    fn read(&self, field: &Field<'_>, _: &mut Diagnostics) -> Option<Spanned<()>> {
        Some(Spanned::new((), field.span.clone()))
    }

    fn describe(&self) -> String {
        let schema = (self.0)();
        let Some(words) = schema["enum"].as_array() else { return "a value as in the example".to_owned() };
        quote_words(words.iter().filter_map(Value::as_str))
    }

    fn schema(&self) -> Value {
        (self.0)()
    }
}
