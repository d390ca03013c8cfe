//! A table whose keys are taken one by one: keys left at the end are unknown, and reported.

use std::ops::Range;

use toml_edit::{Item, TableLike};

use crate::diagnostics::{Diagnostic, Diagnostics, UnknownName};
use crate::field::{Field, ValueNode};
use crate::names::check_name;

/// A table whose keys are taken one by one; what is left at the end was not known.
pub struct Section<'a> {
    /// As messages call it: `[run]`.
    pub title: String,
    /// Where it begins: its header, or the key that holds it.
    pub span: Range<usize>,
    table: &'a dyn TableLike,
    /// Keys that were asked for, in that order: what a message offers instead of an unknown one.
    known: Vec<&'static str>,
    taken: Vec<String>,
}

impl<'a> Section<'a> {
    /// The whole document.
    pub fn root(title: impl Into<String>, table: &'a dyn TableLike) -> Self {
        Section::new(title, 0..0, table)
    }

    fn new(title: impl Into<String>, span: Range<usize>, table: &'a dyn TableLike) -> Self {
        Section { title: title.into(), span, table, known: Vec::new(), taken: Vec::new() }
    }

    /// The key's value, if it is there; either way the key is known from now on.
    pub fn take(&mut self, key: &'static str) -> Option<Field<'a>> {
        self.known.push(key);
        self.taken.push(key.to_owned());
        self.field(key)
    }

    /// Whether the key is there; asking does not make it a known key.
    pub fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Like `take`, and a mistake when it is missing; `example` shows how it is written.
    pub fn require(
        &mut self,
        key: &'static str,
        example: &str,
        findings: &mut Diagnostics,
    ) -> Option<Field<'a>> {
        let field = self.take(key);
        if field.is_none() {
            self.missing(key, format!("expected `{example}` here"), findings);
        }
        field
    }

    /// Reports that a key is not there; `label` says what was expected.
    pub fn missing(&self, key: &str, label: impl Into<String>, findings: &mut Diagnostics) {
        let message = format!("{} has no `{key}`", self.title);
        findings.push(Diagnostic::error(self.span.clone(), message, label));
    }

    /// Several keys at once, each of which may be absent.
    pub fn take_each<const N: usize>(&mut self, keys: [&'static str; N]) -> [Option<Field<'a>>; N] {
        keys.map(|key| self.take(key))
    }

    /// Everything that has not been taken, in the order of the file; nothing is unknown afterwards.
    pub fn take_rest(&mut self) -> Vec<Field<'a>> {
        let keys: Vec<String> = self.table.iter().map(|(key, _)| key.to_owned()).collect();
        let rest: Vec<_> =
            keys.iter().filter(|key| !self.taken.contains(key)).filter_map(|key| self.field(key)).collect();
        self.taken.extend(keys);
        rest
    }

    /// Reports the keys that nobody asked for.
    pub fn finish(&self, findings: &mut Diagnostics) {
        for (key, item) in self.table.iter() {
            if self.taken.iter().any(|used_key| used_key == key) {
                continue;
            }
            let span = self.key_span(key, item);
            let message = format!("unknown key `{key}` in {}", self.title);
            let expected = match self.known.as_slice() {
                [only] => format!("expected `{only}`"),
                many => format!("expected one of {}", many.join(", ")),
            };
            findings.push(Diagnostic::unknown(
                span,
                message,
                UnknownName::Key(key),
                self.known.iter().copied(),
                expected,
            ));
        }
    }

    fn field(&self, key: &str) -> Option<Field<'a>> {
        let item = self.table.get(key)?;
        let node = ValueNode::from_item(item)?;
        let key_span = self.key_span(key, item);
        let span = match node {
            ValueNode::Value(_) => item.span().unwrap_or_else(|| key_span.clone()),
            // A table's own span may reach over all of its lines.
            ValueNode::Table(_) | ValueNode::Tables(_) => match item {
                Item::Value(value) => value.span().unwrap_or_else(|| key_span.clone()),
                _ => key_span.clone(),
            },
        };
        Some(Field { place: format!("`{key}` in {}", self.title), key: key.to_owned(), key_span, span, node })
    }

    fn key_span(&self, key: &str, item: &Item) -> Range<usize> {
        self.table
            .key(key)
            .and_then(|key| key.span())
            .or_else(|| item.span())
            .unwrap_or_else(|| self.span.clone())
    }
}

impl<'a> Field<'a> {
    /// A table with its keys to be taken.
    pub fn section(&self, title: impl Into<String>, findings: &mut Diagnostics) -> Option<Section<'a>> {
        match self.node {
            ValueNode::Table(table) => Some(Section::new(title, self.span.clone(), table)),
            _ => {
                self.mismatch("a table", findings);
                None
            }
        }
    }
}

/// Reads `[GROUP.NAME]` sections: the name, where it stands, and the section. One at least must be there.
pub fn named_sections<'a>(
    root: &mut Section<'a>,
    group: &'static str,
    example: &str,
    findings: &mut Diagnostics,
) -> Vec<(String, Section<'a>)> {
    let Some(field) = root.take(group) else {
        let message = format!("the study has no [{group}.NAME] section");
        findings.push(Diagnostic::error(
            0..0,
            message,
            format!("expected at least one, as in `[{group}.{example}]`"),
        ));
        return Vec::new();
    };
    sections_of(&field, group, example, findings)
}

/// The sections of a group that is there.
pub fn sections_of<'a>(
    field: &Field<'a>,
    group: &str,
    example: &str,
    findings: &mut Diagnostics,
) -> Vec<(String, Section<'a>)> {
    let Some(mut sections) = field.section(format!("[{group}]"), findings) else {
        return Vec::new();
    };
    let fields = sections.take_rest();
    if fields.is_empty() {
        let message = format!("[{group}] has no section of its own name");
        findings.push(Diagnostic::error(
            field.key_span.clone(),
            message,
            format!("expected `[{group}.{example}]`"),
        ));
    }
    let mut named = Vec::new();
    for field in fields {
        if !matches!(field.node, ValueNode::Table(_)) {
            let message = format!("`{}` in [{group}] is outside any named section", field.key);
            let label = format!("expected a section with a name, as in `[{group}.{example}]`");
            findings.push(Diagnostic::error(field.key_span, message, label));
            continue;
        }
        check_name(&field.key, field.key_span.clone(), findings);
        let title = format!("[{group}.{}]", field.key);
        if let Some(mut section) = field.section(title, findings) {
            section.span = field.key_span.clone();
            named.push((field.key, section));
        }
    }
    named
}
