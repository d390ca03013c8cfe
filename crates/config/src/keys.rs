//! Keys as data: a row says what a key is called, what it takes, what holds when it is left out, and what it means. The
//! reader, its messages, the JSON Schema and the reference for users all come from that row.

mod kinds;
mod schema;

use serde_json::{Value, json};
use toml_edit::DocumentMut;

use crate::diagnostics::Diagnostics;
use crate::field::{Field, Spanned};
use crate::section::Section;

pub use kinds::{
    AnyText, AnyWord, BandwidthKind, BooleanKind, BytesKind, CountKind, DurationKind, FactorKind, ListKind,
    OnlyTrue, OwnSchema, ShareKind, WholeKind, WordKind,
};
pub use schema::{list_schema, name_schema, named_schema, one_or_many_schema, table_schema, words_schema};

/// What a key takes: how it is read, and what a schema says of it.
pub trait KeyKind: Copy + Sync {
    type Value;

    /// `None` after a mistake, which is among the findings.
    fn read(&self, field: &Field<'_>, findings: &mut Diagnostics) -> Option<Spanned<Self::Value>>;

    /// What it takes, in words: `a duration such as "20 s"`.
    fn describe(&self) -> String;

    /// A JSON Schema of the values, without a description.
    fn schema(&self) -> Value;
}

/// What holds where a key is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyDefault {
    /// It has to be there.
    Required,
    /// Nothing that would need words.
    Nothing,
    /// This value, as TOML has it: `"20 s"` with its quotes.
    Value(&'static str),
    /// What is found out while it runs, in words: `the best that works here`.
    Described(&'static str),
}

/// One key of a section.
#[derive(Clone, Copy, Debug)]
pub struct KeyRow<K> {
    pub name: &'static str,
    pub kind: K,
    pub default: KeyDefault,
    /// A value as TOML has it.
    pub example: &'static str,
    /// A sentence for people who write studies.
    pub meaning: &'static str,
}

impl<K: Copy> KeyRow<K> {
    /// One that may be left out, and then says nothing.
    pub const fn new(name: &'static str, kind: K, example: &'static str, meaning: &'static str) -> Self {
        KeyRow { name, kind, default: KeyDefault::Nothing, example, meaning }
    }

    #[must_use]
    pub const fn required(self) -> Self {
        KeyRow { default: KeyDefault::Required, ..self }
    }

    /// With a default as TOML has it.
    #[must_use]
    pub const fn or(self, default: &'static str) -> Self {
        KeyRow { default: KeyDefault::Value(default), ..self }
    }

    /// With a default in words.
    #[must_use]
    pub const fn or_else(self, default: &'static str) -> Self {
        KeyRow { default: KeyDefault::Described(default), ..self }
    }
}

impl<K: KeyKind> KeyRow<K> {
    /// Reads a value as TOML has it.
    fn read_text(&self, text: &str) -> Result<K::Value, String> {
        let line = format!("{} = {text}\n", self.name);
        let document: DocumentMut = line.parse().map_err(|error| format!("{line}: {error}"))?;
        let mut findings = Diagnostics::new("key", &line);
        let field = Section::root("the key", document.as_table()).take(self.name);
        let value = field.and_then(|field| self.kind.read(&field, &mut findings));
        value.map(|value| value.value).ok_or_else(|| findings.to_string())
    }

    /// The value of [`KeyDefault::Value`].
    ///
    /// # Panics
    /// If the row has none, or one that the key does not take: a test reads the rows of all sections.
    pub fn default_value(&self) -> K::Value {
        let KeyDefault::Value(text) = self.default else { panic!("`{}` has no default", self.name) };
        self.read_text(text).unwrap_or_else(|problem| panic!("{problem}"))
    }
}

/// A [`KeyRow`] of any kind: what lists of keys hold.
pub trait SectionKey: Sync {
    fn name(&self) -> &'static str;
    fn default(&self) -> KeyDefault;
    fn example(&self) -> &'static str;
    fn meaning(&self) -> &'static str;

    /// What the key takes, in words.
    fn describe_values(&self) -> String;

    /// Without a description.
    fn value_schema(&self) -> Value;

    /// Whether the row's own example and default can be read.
    ///
    /// # Errors
    /// What the reader says of the one that can't.
    fn check(&self) -> Result<(), String>;

    /// The key's JSON Schema.
    fn schema(&self) -> Value {
        let mut schema = self.value_schema();
        let meaning = match self.default() {
            KeyDefault::Required | KeyDefault::Nothing => self.meaning().to_owned(),
            KeyDefault::Value(value) => format!("{} Default: {value}.", self.meaning()),
            KeyDefault::Described(words) => format!("{} Default: {words}.", self.meaning()),
        };
        schema["description"] = json!(meaning);
        schema
    }
}

impl<K: KeyKind> SectionKey for KeyRow<K> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn default(&self) -> KeyDefault {
        self.default
    }

    fn example(&self) -> &'static str {
        self.example
    }

    fn meaning(&self) -> &'static str {
        self.meaning
    }

    fn describe_values(&self) -> String {
        self.kind.describe()
    }

    fn value_schema(&self) -> Value {
        self.kind.schema()
    }

    fn check(&self) -> Result<(), String> {
        let default = match self.default {
            KeyDefault::Value(text) => Some(text),
            KeyDefault::Required | KeyDefault::Nothing | KeyDefault::Described(_) => None,
        };
        default.into_iter().chain([self.example]).try_for_each(|text| self.read_text(text).map(drop))
    }
}

/// The keys of a section of one kind.
#[derive(Clone, Copy)]
pub struct KeySection {
    /// `run`, `storage.NAME`, `storage.NAME.cache`
    pub path: &'static str,
    /// A sentence for people who write studies.
    pub meaning: &'static str,
    pub keys: &'static [&'static dyn SectionKey],
}

impl KeySection {
    /// A table of these keys and no others.
    pub fn schema(&self) -> Value {
        table_schema(self.keys)
    }

    /// The names of the keys, in their order.
    pub fn names(&self) -> Vec<&'static str> {
        self.keys.iter().map(|key| key.name()).collect()
    }
}

impl<'a> Section<'a> {
    /// The field of a key, if it is there. One that has to be there and is not is reported.
    pub fn take_key<K: Copy>(&mut self, row: &KeyRow<K>, findings: &mut Diagnostics) -> Option<Field<'a>> {
        match row.default {
            KeyDefault::Required => {
                self.require(row.name, &format!("{} = {}", row.name, row.example), findings)
            }
            KeyDefault::Nothing | KeyDefault::Value(_) | KeyDefault::Described(_) => self.take(row.name),
        }
    }

    /// The value of a key; `None` where it is left out, and after a mistake.
    pub fn read<K: KeyKind>(
        &mut self,
        row: &KeyRow<K>,
        findings: &mut Diagnostics,
    ) -> Option<Spanned<K::Value>> {
        self.take_key(row, findings).and_then(|field| row.kind.read(&field, findings))
    }

    /// The value of a key, `Some(None)` where it is left out, and `None` after a mistake.
    pub fn read_optional<K: KeyKind>(
        &mut self,
        row: &KeyRow<K>,
        findings: &mut Diagnostics,
    ) -> Option<Option<Spanned<K::Value>>> {
        match self.take_key(row, findings) {
            Some(field) => row.kind.read(&field, findings).map(Some),
            None => Some(None),
        }
    }
}
