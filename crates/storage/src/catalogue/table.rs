//! Tables of a catalogue file: entries that name their sources, quantities, distributions and curves.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use underlay_config::{Diagnostic, Diagnostics, Field, Section, Spanned};

use super::curves::{SourcedCurve, SourcedDistribution};
use super::plain_number;
use super::quantity::{SourcedProperty, SourcedQuantity};

/// The file being read: what was found wrong so far, and the sources that its entries may refer to.
struct FileFindings {
    findings: RefCell<Diagnostics>,
    /// The texts of `[sources]` by their keys, and where each key stands.
    sources: BTreeMap<String, Spanned<String>>,
    used_sources: RefCell<BTreeSet<String>>,
}

/// A table of the file: hands out its entries and remembers which were asked for.
pub(super) struct TableReader<'a> {
    ledger: &'a FileFindings,
    section: Section<'a>,
    /// Values of entries that the table does not state.
    derived: BTreeMap<&'static str, SourcedQuantity>,
}

/// Reads a file by `read`, which leaves a mistake for everything that keeps it from an answer; messages call the file
/// `title`.
pub(super) fn parse_with<T>(
    file_name: &str,
    title: &str,
    text: &str,
    read: impl for<'a> FnOnce(TableReader<'a>) -> Option<T>,
) -> Result<T, Diagnostics> {
    let mut findings = Diagnostics::new(file_name, text);
    let Some(document) = underlay_config::parse(text, &mut findings) else { return Err(findings) };
    let mut section = Section::root(title, document.as_table());
    // First, since every other entry refers to them.
    let sources = read_sources(&mut section, &mut findings);
    let ledger = FileFindings { findings: RefCell::new(findings), sources, used_sources: RefCell::default() };
    let content = read(TableReader { ledger: &ledger, section, derived: BTreeMap::new() });
    let mut findings = ledger.findings.into_inner();
    findings.sort();
    match content {
        Some(content) if findings.is_empty() => Ok(content),
        _ => Err(findings),
    }
}

fn read_sources(root: &mut Section<'_>, findings: &mut Diagnostics) -> BTreeMap<String, Spanned<String>> {
    const EXPECTED: &str = "expected a table with one text per source";
    let Some(field) = root.take("sources") else {
        root.missing("sources", EXPECTED, findings);
        return BTreeMap::new();
    };
    let Some(mut section) = field.section("[sources]", findings) else { return BTreeMap::new() };
    let sources = section.take_rest().into_iter().map(|field| {
        const EXPECTED: &str = "a string: document, revision, date";
        let text = field.text(EXPECTED, findings).map(|text| text.value.trim().to_owned());
        if text.as_deref() == Some("") {
            field.invalid(format!("expected {EXPECTED}"), findings);
        }
        let text = text.unwrap_or_default();
        // Kept even when empty: one mistake is enough, its users are not to blame.
        (field.key, Spanned::new(text, field.key_span))
    });
    sources.collect()
}

/// Which numbers an entry may hold.
#[derive(Clone, Copy)]
pub(super) enum NumberRange {
    All,
    /// Of things that are counted.
    Whole,
}

impl NumberRange {
    fn has(self, value: f64) -> bool {
        match self {
            NumberRange::All => true,
            NumberRange::Whole => value.fract() == 0.0,
        }
    }

    fn name(self) -> &'static str {
        match self {
            NumberRange::All => "a number",
            NumberRange::Whole => "a whole number",
        }
    }
}

/// As messages give the ends of what is allowed.
fn bounds(low: f64, high: f64) -> String {
    format!("from {} to {}", plain_number(low), plain_number(high))
}

impl<'a> TableReader<'a> {
    /// Something wrong with the table as a whole.
    pub(super) fn mistake(&self, message: impl Into<String>) {
        self.mistake_at(self.section.span.clone(), message);
    }

    pub(super) fn mistake_at(&self, span: Range<usize>, message: impl Into<String>) {
        self.ledger.findings.borrow_mut().push(Diagnostic::error(span, message, ""));
    }

    /// Reads a field by what `config` knows of values.
    pub(super) fn read<T>(&self, read: impl FnOnce(&mut Diagnostics) -> Option<T>) -> Option<T> {
        read(&mut self.ledger.findings.borrow_mut())
    }

    /// Where this table stands.
    pub(super) fn place(&self) -> Range<usize> {
        self.section.span.clone()
    }

    /// Where the value of a key stands that was read; the table itself where it has none.
    pub(super) fn place_of(&mut self, key: &'static str) -> Range<usize> {
        self.section.take(key).map_or_else(|| self.place(), |field| field.span)
    }

    /// Two statements that can't be about one device.
    pub(super) fn contradiction(&self, message: &str, one: Range<usize>, other: Range<usize>) {
        let finding = Diagnostic::error(one, message, "no device can do both");
        self.ledger.findings.borrow_mut().push(finding.with_context(other, "contradicts this"));
    }

    /// The value is of another type.
    fn mismatch(&self, field: &Field<'_>, expected: &str) {
        field.mismatch(expected, &mut self.ledger.findings.borrow_mut());
    }

    fn invalid(&self, field: &Field<'_>, expected: &str) {
        field.invalid(format!("expected {expected}"), &mut self.ledger.findings.borrow_mut());
    }

    /// An entry that may be left out.
    pub(super) fn optional(&mut self, key: &'static str) -> Option<Field<'a>> {
        self.section.take(key)
    }

    /// An entry that must be there.
    pub(super) fn required(&mut self, key: &'static str, expected: &str) -> Option<Field<'a>> {
        let field = self.section.take(key);
        if field.is_none() {
            let label = format!("expected {expected}");
            self.section.missing(key, label, &mut self.ledger.findings.borrow_mut());
        }
        field
    }

    /// Finds what is wrong with a load's `block_bytes`. Both values are absent where they could not be read.
    pub(super) fn check_block(&self, block_bytes: Option<f64>, capacity_bytes: Option<f64>) {
        if block_bytes.is_some_and(|bytes| bytes % 512.0 != 0.0) {
            self.mistake("`block_bytes` must be a multiple of 512");
        }
        if let Some((bytes, capacity_bytes)) = block_bytes.zip(capacity_bytes)
            && bytes > capacity_bytes
        {
            self.mistake(format!("`block_bytes` is {bytes}, more than the medium holds"));
        }
    }

    /// Whether the table has what it need not have.
    pub(super) fn has(&mut self, key: &'static str) -> bool {
        self.section.take(key).is_some()
    }

    /// Whether `[sources]` has this key.
    pub(super) fn has_source(&self, key: &str) -> bool {
        self.ledger.sources.contains_key(key)
    }

    pub(super) fn text(&mut self, key: &'static str, expected: &str) -> Option<Spanned<String>> {
        let field = self.required(key, expected)?;
        match field.as_text() {
            Some(text) if !text.trim().is_empty() => Some(Spanned::new(text.to_owned(), field.span)),
            Some(_) => {
                self.invalid(&field, expected);
                None
            }
            None => {
                self.mismatch(&field, expected);
                None
            }
        }
    }

    pub(super) fn optional_text(&mut self, key: &'static str, expected: &str) -> Option<String> {
        if self.has(key) { Some(self.text(key, expected)?.value) } else { None }
    }

    /// `name`, which studies use.
    pub(super) fn name(&mut self) -> Option<String> {
        const EXPECTED: &str = "the name that studies use, in lowercase letters, digits and hyphens";
        let name = self.text("name", EXPECTED)?;
        if !name.value.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        {
            self.mistake_at(name.span, "a name has lowercase letters, digits and hyphens only");
        }
        Some(name.value)
    }

    pub(super) fn number(&mut self, key: &'static str, low: f64, high: f64) -> Option<f64> {
        self.number_of(NumberRange::All, key, low, high)
    }

    /// One that may be left out.
    pub(super) fn optional_number(&mut self, key: &'static str, low: f64, high: f64) -> Option<f64> {
        if self.has(key) { self.number(key, low, high) } else { None }
    }

    pub(super) fn whole(&mut self, key: &'static str, low: f64, high: f64) -> Option<u32> {
        self.number_of(NumberRange::Whole, key, low, high).map(|value| value as u32)
    }

    fn number_of(&mut self, allowed: NumberRange, key: &'static str, low: f64, high: f64) -> Option<f64> {
        let expected = format!("{} {}", allowed.name(), bounds(low, high));
        let field = self.required(key, &expected)?;
        let Some(value) = field.as_number() else {
            self.mismatch(&field, &expected);
            return None;
        };
        let is_sound = (low..=high).contains(&value) && allowed.has(value);
        if !is_sound {
            self.invalid(&field, &expected);
        }
        is_sound.then_some(value)
    }

    pub(super) fn flag(&mut self, key: &'static str) -> bool {
        let Some(field) = self.optional(key) else { return false };
        self.read(|findings| field.boolean(findings)).unwrap_or(false)
    }

    pub(super) fn choice<T: Copy>(&mut self, key: &'static str, choices: &[(&'static str, T)]) -> Option<T> {
        let words: Vec<&'static str> = choices.iter().map(|(word, _)| *word).collect();
        let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
        let field = self.required(key, &format!("one of {}", quoted.join(", ")))?;
        let word = self.read(|findings| field.word(&words, findings))?;
        choices.iter().find(|(choice_name, _)| *choice_name == word.value).map(|(_, value)| *value)
    }

    /// `source`, which must be a key of `[sources]`.
    pub(super) fn source(&mut self) -> Option<String> {
        let Spanned { value: key, span } = self.text("source", "the key of an entry in [sources]")?;
        if !self.check_source(&key, span) {
            return None;
        }
        self.ledger.used_sources.borrow_mut().insert(key.clone());
        Some(key)
    }

    /// Whether `[sources]` has this key.
    fn check_source(&self, key: &str, span: Range<usize>) -> bool {
        let is_there = self.ledger.sources.contains_key(key);
        if !is_there {
            self.mistake_at(span, format!("there is no source \"{}\" in [sources]", key.escape_debug()));
        }
        is_there
    }

    /// An optional list of keys of `[sources]`. Naming a source here does not use it: an entry has to.
    pub(super) fn source_keys(&mut self, key: &'static str) -> Option<BTreeSet<String>> {
        const EXPECTED: &str = "a list of keys of entries in [sources]";
        if !self.has(key) {
            return Some(BTreeSet::new());
        }
        let field = self.required(key, EXPECTED)?;
        if !field.is_array() {
            self.mismatch(&field, EXPECTED);
            return None;
        }
        let key_of = |element: Field<'_>| {
            let Some(key) = element.as_text() else {
                self.mismatch(&element, EXPECTED);
                return None;
            };
            self.check_source(key, element.span.clone());
            Some(key.to_owned())
        };
        field.elements().into_iter().map(key_of).collect()
    }

    /// The reader of a table inside this one.
    pub(super) fn inside(
        &mut self,
        key: &'static str,
        name: &str,
        expected: &str,
    ) -> Option<TableReader<'a>> {
        let field = self.required(key, expected)?;
        if !field.is_table() {
            self.mismatch(&field, expected);
            return None;
        }
        self.read(|findings| field.section(name, findings)).map(|section| self.with_section(section))
    }

    /// The readers of an array of tables, written `[[key]]` or `key = [{ .. }]`.
    pub(super) fn tables(
        &mut self,
        key: &'static str,
        name: &str,
        expected: &str,
    ) -> Option<Vec<TableReader<'a>>> {
        let field = self.required(key, expected)?;
        if !field.is_array() {
            self.mismatch(&field, expected);
            return Some(Vec::new());
        }
        let read = |element: Field<'a>| match element.is_table() {
            true => self.read(|findings| element.section(name, findings)),
            false => {
                self.mismatch(&element, expected);
                None
            }
        };
        let sections: Vec<Section<'a>> = field.elements().into_iter().filter_map(read).collect();
        Some(sections.into_iter().map(|section| self.with_section(section)).collect())
    }

    fn with_section(&self, section: Section<'a>) -> TableReader<'a> {
        TableReader { ledger: self.ledger, section, derived: BTreeMap::new() }
    }

    /// Entries that a rule elsewhere gives where this table does not state them.
    pub(super) fn derive(&mut self, derived: BTreeMap<&'static str, SourcedQuantity>) {
        self.derived = derived;
    }

    pub(super) fn is_derived(&self, key: &str) -> bool {
        self.derived.contains_key(key)
    }

    /// The number of an entry `{ value = .. }`, as it is; what is wrong with it is found when it is read.
    pub(super) fn peeked(&mut self, key: &'static str) -> Option<f64> {
        let field = self.section.take(key)?;
        let mut ignored = Diagnostics::new("", "");
        let mut entry = field.section("", &mut ignored)?;
        entry.take("value")?.as_number()
    }

    pub(super) fn quantity(
        &mut self,
        allowed: NumberRange,
        key: &'static str,
        low: f64,
        high: f64,
    ) -> Option<SourcedQuantity> {
        let (low_text, high_text) = (plain_number(low), plain_number(high));
        let expected =
            format!("{{ value = .., source = \"..\" }} with a value from {low_text} to {high_text}");
        if !self.has(key)
            && let Some(derived) = self.derived.get(key)
        {
            return Some(derived.clone());
        }
        let mut table = self.inside(key, &format!("`{key}`"), &expected)?;
        let value = table.number_of(allowed, "value", low, high);
        let source = table.source();
        let estimate = table.flag("estimate");
        table.reject_unknown();
        Some(SourcedQuantity { value: value?, source: source?, estimate })
    }

    pub(super) fn property(&mut self, key: &'static str) -> Option<SourcedProperty> {
        let expected = "{ value = true or false, source = \"..\" }";
        let mut table = self.inside(key, &format!("`{key}`"), expected)?;
        let value = table
            .required("value", "true or false")
            .and_then(|field| table.read(|findings| field.boolean(findings)));
        let source = table.source();
        let estimate = table.flag("estimate");
        table.reject_unknown();
        Some(SourcedProperty { value: value?, source: source?, estimate })
    }

    /// `{ value = .., source = ".." }` for one that is always the same, or
    /// `{ quantiles = [[share, value], ..], source = ".." }`.
    pub(super) fn distribution(
        &mut self,
        key: &'static str,
        low: f64,
        high: f64,
    ) -> Option<SourcedDistribution> {
        let expected =
            "{ value = .., source = \"..\" } or { quantiles = [[0.5, ..], [0.99, ..]], source = \"..\" }";
        let mut table = self.inside(key, &format!("`{key}`"), expected)?;
        let distribution = table.distribution_here(low, high);
        table.reject_unknown();
        distribution
    }

    /// The same, of this table's own entries.
    pub(super) fn distribution_here(&mut self, low: f64, high: f64) -> Option<SourcedDistribution> {
        let quantiles = if self.has("value") {
            self.number("value", low, high).map(|value| vec![(0.5, value)])
        } else {
            self.pairs("quantiles", "pairs of a share and a value, [[0.5, 300], [0.99, 900]], or a `value`")
        };
        let source = self.source();
        let estimate = self.flag("estimate");
        let distribution = SourcedDistribution { quantiles: quantiles?, source: source?, estimate };
        if let Some(problem) = distribution.problem(low, high) {
            self.mistake(format!("{}: {problem}", self.section.title));
            return None;
        }
        Some(distribution)
    }

    /// `{ points = [[x, y], ..], source = ".." }`
    pub(super) fn curve(&mut self, key: &'static str, low: f64, high: f64) -> Option<SourcedCurve> {
        let expected = "{ points = [[1, ..], [4, ..]], source = \"..\" }";
        let mut table = self.inside(key, &format!("`{key}`"), expected)?;
        let points = table.pairs("points", "pairs of numbers, [[1, 1900], [4, 5200]]");
        let source = table.source();
        let estimate = table.flag("estimate");
        table.reject_unknown();
        let curve = SourcedCurve { points: points?, source: source?, estimate };
        if let Some(problem) = curve.problem(low, high) {
            table.mistake(format!("{}: {problem}", table.section.title));
            return None;
        }
        Some(curve)
    }

    pub(super) fn pairs(&mut self, key: &'static str, expected: &str) -> Option<Vec<(f64, f64)>> {
        let field = self.required(key, expected)?;
        if !field.is_array() {
            self.mismatch(&field, expected);
            return None;
        }
        let pair = |element: Field<'_>| {
            let pair = match element.elements().as_slice() {
                [x, y] => x.as_number().zip(y.as_number()),
                _ => None,
            };
            if pair.is_none() {
                self.invalid(&element, expected);
            }
            pair
        };
        field.elements().into_iter().map(pair).collect()
    }

    pub(super) fn reject_unknown(&self) {
        self.section.finish(&mut self.ledger.findings.borrow_mut());
    }

    /// The same for the file's own table, whose sources must all be referred to: their texts by their keys.
    pub(super) fn finish_file(&self) -> BTreeMap<String, String> {
        self.reject_unknown();
        let used = self.ledger.used_sources.borrow();
        for (key, source) in self.ledger.sources.iter().filter(|(key, _)| !used.contains(*key)) {
            let message = format!("no entry uses the source \"{}\"", key.escape_debug());
            self.mistake_at(source.span.clone(), message);
        }
        self.ledger.sources.iter().map(|(key, source)| (key.clone(), source.value.clone())).collect()
    }
}
