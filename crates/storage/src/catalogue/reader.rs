//! Reads a catalogue file and keeps going after a mistake, so that all of them are shown at once.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use toml_edit::{Document, Item, TableLike, Value};

use super::curves::{Curve, Distribution};
use super::kinds;
use super::parameters::{Property, Quantity};
use super::{Figure, Label, Medium, Price, Published};

/// One thing wrong in a catalogue file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    pub message: String,
}

/// All that is wrong with a catalogue file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct CatalogueError {
    pub file_name: String,
    /// In the order of the file; never empty.
    pub mistakes: Vec<Mistake>,
}

impl fmt::Display for CatalogueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.mistakes.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{}:{}:{}: {}", self.file_name, mistake.line, mistake.column, mistake.message)?;
        }
        Ok(())
    }
}

/// The file under way: its text, to turn offsets into lines, and what was found wrong so far.
pub(super) struct Ledger<'a> {
    text: &'a str,
    mistakes: RefCell<Vec<(usize, String)>>,
    sources: RefCell<BTreeMap<String, String>>,
    used_sources: RefCell<BTreeSet<String>>,
}

impl Ledger<'_> {
    pub(super) fn mistake(&self, at: usize, message: impl Into<String>) {
        self.mistakes.borrow_mut().push((at.min(self.text.len()), message.into()));
    }

    /// The texts of `[sources]` by their keys.
    pub(super) fn sources(&self) -> BTreeMap<String, String> {
        self.sources.borrow().clone()
    }

    fn into_mistakes(self) -> Vec<Mistake> {
        let mut mistakes = self.mistakes.into_inner();
        mistakes.sort();
        mistakes.into_iter().map(|(at, message)| located(self.text, at, message)).collect()
    }
}

fn located(text: &str, at: usize, message: String) -> Mistake {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    let before = &text[..at];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    Mistake {
        line: before.matches('\n').count() + 1,
        column: before[line_start..].chars().count() + 1,
        message,
    }
}

/// A table of the file: hands out its entries and remembers which were asked for.
pub(super) struct TableReader<'a> {
    pub(super) ledger: &'a Ledger<'a>,
    table: &'a dyn TableLike,
    /// How the table is called in messages, `[model]`.
    name: String,
    pub(super) at: usize,
    known: BTreeSet<&'static str>,
}

fn number(item: &Item) -> Option<f64> {
    value_number(item.as_value()?)
}

fn value_number(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(integer) => Some(*integer.value() as f64),
        Value::Float(float) => Some(*float.value()),
        _ => None,
    }
}

impl<'a> TableReader<'a> {
    pub(super) fn new(ledger: &'a Ledger<'a>, table: &'a dyn TableLike, name: &str, at: usize) -> Self {
        TableReader { ledger, table, name: name.to_owned(), at, known: BTreeSet::new() }
    }

    /// The entry and where it begins; says so when it is needed and absent.
    pub(super) fn entry(&mut self, key: &'static str, needed: Option<&str>) -> Option<(&'a Item, usize)> {
        self.known.insert(key);
        match self.table.get_key_value(key) {
            Some((toml_key, item)) => {
                let at = item.span().or_else(|| toml_key.span()).map_or(self.at, |span| span.start);
                Some((item, at))
            }
            None => {
                if let Some(expected) = needed {
                    self.ledger.mistake(self.at, format!("{} lacks `{key}`: {expected}", self.name));
                }
                None
            }
        }
    }

    pub(super) fn text(&mut self, key: &'static str, expected: &str) -> Option<(String, usize)> {
        let (item, at) = self.entry(key, Some(expected))?;
        match item.as_str() {
            Some(text) if !text.trim().is_empty() => Some((text.to_owned(), at)),
            _ => {
                self.ledger.mistake(at, format!("`{key}` must be {expected}"));
                None
            }
        }
    }

    pub(super) fn optional_text(&mut self, key: &'static str, expected: &str) -> Option<String> {
        self.entry(key, None)?;
        Some(self.text(key, expected)?.0)
    }

    pub(super) fn number(&mut self, key: &'static str, low: f64, high: f64) -> Option<f64> {
        let expected = format!("a number from {} to {}", super::plain_number(low), super::plain_number(high));
        let (item, at) = self.entry(key, Some(&expected))?;
        match number(item) {
            Some(value) if (low..=high).contains(&value) => Some(value),
            _ => {
                self.ledger.mistake(at, format!("`{key}` must be {expected}"));
                None
            }
        }
    }

    pub(super) fn whole(&mut self, key: &'static str, low: f64, high: f64) -> Option<u32> {
        let value = self.number(key, low, high)?;
        if value.fract() != 0.0 {
            self.ledger.mistake(self.at, format!("`{key}` must be a whole number"));
            return None;
        }
        Some(value as u32)
    }

    pub(super) fn flag(&mut self, key: &'static str) -> bool {
        match self.entry(key, None) {
            None => false,
            Some((item, at)) => item.as_bool().unwrap_or_else(|| {
                self.ledger.mistake(at, format!("`{key}` must be true or false"));
                false
            }),
        }
    }

    pub(super) fn choice<T: Copy>(&mut self, key: &'static str, choices: &[(&str, T)]) -> Option<T> {
        let names: Vec<String> = choices.iter().map(|(name, _)| format!("\"{name}\"")).collect();
        let expected = format!("one of {}", names.join(", "));
        let (given, at) = self.text(key, &expected)?;
        let found = choices.iter().find(|(name, _)| *name == given).map(|(_, value)| *value);
        if found.is_none() {
            self.ledger.mistake(at, format!("`{key}` is \"{given}\"; it must be {expected}"));
        }
        found
    }

    pub(super) fn source(&mut self) -> Option<String> {
        let (key, at) = self.text("source", "the key of an entry in [sources]")?;
        if self.ledger.sources.borrow().contains_key(&key) {
            self.ledger.used_sources.borrow_mut().insert(key.clone());
            Some(key)
        } else {
            self.ledger.mistake(at, format!("there is no source \"{key}\" in [sources]"));
            None
        }
    }

    /// Whether the table has what it need not have.
    pub(super) fn has(&mut self, key: &'static str) -> bool {
        self.known.insert(key);
        self.table.contains_key(key)
    }

    /// The reader of a table inside this one.
    pub(super) fn inside(
        &mut self,
        key: &'static str,
        name: &str,
        expected: &str,
    ) -> Option<TableReader<'a>> {
        let (item, at) = self.entry(key, Some(expected))?;
        match item.as_table_like() {
            Some(table) => Some(TableReader::new(self.ledger, table, name, at)),
            None => {
                self.ledger.mistake(at, format!("`{key}` must be {expected}"));
                None
            }
        }
    }

    /// The readers of an array of tables, written `[[key]]` or `key = [{ .. }]`.
    pub(super) fn tables(
        &mut self,
        key: &'static str,
        name: &str,
        expected: &str,
    ) -> Option<Vec<TableReader<'a>>> {
        let (item, at) = self.entry(key, Some(expected))?;
        let mut tables: Vec<(&dyn TableLike, usize)> = Vec::new();
        match (item.as_array_of_tables(), item.as_array()) {
            (Some(array), _) => {
                for table in array {
                    tables.push((table, table.span().map_or(at, |span| span.start)));
                }
            }
            (None, Some(array)) => {
                for value in array {
                    let at = value.span().map_or(at, |span| span.start);
                    match value.as_inline_table() {
                        Some(table) => tables.push((table, at)),
                        None => self.ledger.mistake(at, format!("expected {expected}")),
                    }
                }
            }
            (None, None) => self.ledger.mistake(at, format!("expected {expected}")),
        }
        Some(tables.into_iter().map(|(table, at)| TableReader::new(self.ledger, table, name, at)).collect())
    }

    pub(super) fn quantity(&mut self, key: &'static str, low: f64, high: f64) -> Option<Quantity> {
        let (low_text, high_text) = (super::plain_number(low), super::plain_number(high));
        let expected =
            format!("{{ value = .., source = \"..\" }} with a value from {low_text} to {high_text}");
        let mut table = self.inside(key, &format!("`{key}`"), &expected)?;
        let value = table.number("value", low, high);
        let source = table.source();
        let estimate = table.flag("estimate");
        table.reject_unknown();
        Some(Quantity { value: value?, source: source?, estimate })
    }

    pub(super) fn property(&mut self, key: &'static str) -> Option<Property> {
        let expected = "{ value = true or false, source = \"..\" }";
        let mut table = self.inside(key, &format!("`{key}`"), expected)?;
        let value = table.entry("value", Some("true or false")).and_then(|(item, at)| {
            let value = item.as_bool();
            if value.is_none() {
                table.ledger.mistake(at, "`value` must be true or false");
            }
            value
        });
        let source = table.source();
        let estimate = table.flag("estimate");
        table.reject_unknown();
        Some(Property { value: value?, source: source?, estimate })
    }

    /// `{ value = .., source = ".." }` for one that is always the same, or
    /// `{ quantiles = [[share, value], ..], source = ".." }`.
    pub(super) fn distribution(&mut self, key: &'static str, low: f64, high: f64) -> Option<Distribution> {
        let expected =
            "{ value = .., source = \"..\" } or { quantiles = [[0.5, ..], [0.99, ..]], source = \"..\" }";
        let mut table = self.inside(key, &format!("`{key}`"), expected)?;
        let distribution = table.distribution_here(low, high);
        table.reject_unknown();
        distribution
    }

    /// The same, of this table's own entries.
    pub(super) fn distribution_here(&mut self, low: f64, high: f64) -> Option<Distribution> {
        let quantiles = if self.has("value") {
            self.number("value", low, high).map(|value| vec![(0.5, value)])
        } else {
            self.pairs("quantiles", "pairs of a share and a value, [[0.5, 300], [0.99, 900]], or a `value`")
        };
        let source = self.source();
        let estimate = self.flag("estimate");
        let distribution = Distribution { quantiles: quantiles?, source: source?, estimate };
        if let Some(problem) = distribution.problem(low, high) {
            self.ledger.mistake(self.at, format!("{}: {problem}", self.name));
            return None;
        }
        Some(distribution)
    }

    /// `{ points = [[x, y], ..], source = ".." }`
    pub(super) fn curve(&mut self, key: &'static str, low: f64, high: f64) -> Option<Curve> {
        let expected = "{ points = [[1, ..], [4, ..]], source = \"..\" }";
        let mut table = self.inside(key, &format!("`{key}`"), expected)?;
        let points = table.pairs("points", "pairs of numbers, [[1, 1900], [4, 5200]]");
        let source = table.source();
        let estimate = table.flag("estimate");
        table.reject_unknown();
        let curve = Curve { points: points?, source: source?, estimate };
        if let Some(problem) = curve.problem(low, high) {
            self.ledger.mistake(table.at, format!("{}: {problem}", table.name));
            return None;
        }
        Some(curve)
    }

    fn pairs(&mut self, key: &'static str, expected: &str) -> Option<Vec<(f64, f64)>> {
        let (item, at) = self.entry(key, Some(expected))?;
        let wrong = |at: usize| self.ledger.mistake(at, format!("`{key}` must be {expected}"));
        let Some(array) = item.as_array() else {
            wrong(at);
            return None;
        };
        let mut pairs = Vec::with_capacity(array.len());
        for value in array {
            let pair = value.as_array().filter(|pair| pair.len() == 2);
            let both = pair.and_then(|pair| Some((value_number(pair.get(0)?)?, value_number(pair.get(1)?)?)));
            let Some(both) = both else {
                wrong(value.span().map_or(at, |span| span.start));
                return None;
            };
            pairs.push(both);
        }
        Some(pairs)
    }

    pub(super) fn reject_unknown(&self) {
        for (key, item) in self.table.iter() {
            if self.known.contains(key) {
                continue;
            }
            let key_span = self.table.get_key_value(key).and_then(|(toml_key, _)| toml_key.span());
            let at = key_span.or_else(|| item.span()).map_or(self.at, |span| span.start);
            let hint = match super::nearest(key, self.known.iter().copied()).first() {
                Some(near) => format!("did you mean `{near}`?"),
                None => {
                    format!("it may have {}", self.known.iter().copied().collect::<Vec<_>>().join(", "))
                }
            };
            self.ledger.mistake(at, format!("{} has no `{key}`: {hint}", self.name));
        }
    }
}

const LABELS: &[(&str, Label)] = &[
    ("datasheet", Label::Datasheet),
    ("estimate", Label::Estimate),
    ("proxy", Label::Proxy),
    ("measured", Label::Measured),
];

/// Titles end up on terminals.
const CONTROL_CHARACTER: &str = "a control character, which a terminal would obey: leave it out";

pub(super) fn parse(file_name: &str, text: &str) -> Result<Medium, CatalogueError> {
    parse_with(file_name, text, |ledger, table| medium(ledger, table, true))
}

/// Of a medium that lies behind another one's link.
pub(super) fn parse_inner(file_name: &str, text: &str) -> Result<Medium, CatalogueError> {
    parse_with(file_name, text, |ledger, table| medium(ledger, table, false))
}

/// Reads a file by `read`, which leaves a mistake in the ledger for whatever keeps it from an answer.
pub(super) fn parse_with<T>(
    file_name: &str,
    text: &str,
    read: impl for<'a> FnOnce(&'a Ledger<'a>, &'a dyn TableLike) -> Option<T>,
) -> Result<T, CatalogueError> {
    let failed = |mistakes| CatalogueError { file_name: file_name.to_owned(), mistakes };
    let document = Document::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        failed(vec![located(text, at, error.message().trim().to_owned())])
    })?;
    if let Some(span) = super::control_character(document.as_table()) {
        return Err(failed(vec![located(text, span.start, CONTROL_CHARACTER.to_owned())]));
    }
    let ledger = Ledger {
        text,
        mistakes: RefCell::default(),
        sources: RefCell::default(),
        used_sources: RefCell::default(),
    };
    let content = read(&ledger, document.as_table());
    let mistakes = ledger.into_mistakes();
    match content {
        Some(content) if mistakes.is_empty() => Ok(content),
        _ => Err(failed(mistakes)),
    }
}

/// `may_be_network`: what lies behind a link can't be a network volume.
fn medium<'a>(ledger: &'a Ledger<'a>, table: &'a dyn TableLike, may_be_network: bool) -> Option<Medium> {
    let mut root = TableReader::new(ledger, table, "a medium", 0);
    // First, since every other entry refers to them.
    read_sources(&mut root);
    let name = read_name(&mut root);
    let title = root.text("title", "the product in words");
    let kind = root.choice("kind", &kinds::choices());
    let year = root.number("year", 1950.0, 2100.0);
    let label = root.choice("label", LABELS);
    let note = root.optional_text("note", "a text");
    if label == Some(Label::Proxy) && note.is_none() && table.get("note").is_none() {
        ledger.mistake(0, "a proxy needs a `note` that says what stands for what");
    }
    let capacity = root.quantity("capacity_bytes", 1e6, 1e18);
    let price = price(&mut root);
    let model = kinds::read_model(&mut root, "[model]", kind, may_be_network);
    let tail = kinds::read_tail(&mut root);
    let published = published(&mut root);
    root.reject_unknown();
    reject_unused_sources(&root);
    Some(Medium {
        name: name?,
        title: title?.0,
        kind: kind?,
        year: year? as u16,
        label: label?,
        note,
        capacity: capacity?,
        price: price?,
        sources: ledger.sources.borrow().clone(),
        model: model?,
        tail: tail?,
        published: published?,
    })
}

pub(super) fn read_name(root: &mut TableReader<'_>) -> Option<String> {
    let (name, at) = root.text("name", "the name that studies use, in small letters, digits and dashes")?;
    if !name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-') {
        root.ledger.mistake(at, "`name` may hold small letters, digits and dashes only");
    }
    Some(name)
}

/// Reads `[sources]`, to which the file's other entries then refer.
pub(super) fn read_sources(root: &mut TableReader<'_>) {
    let Some(sources) = root.inside("sources", "[sources]", "a table of texts, one a source") else {
        return;
    };
    for (key, item) in sources.table.iter() {
        let text = item.as_str().unwrap_or_default().trim().to_owned();
        if text.is_empty() {
            let at = item.span().map_or(sources.at, |span| span.start);
            sources
                .ledger
                .mistake(at, format!("the source \"{key}\" must be a text: document, revision, date"));
        }
        // Kept even when empty: one mistake is enough, its users are not to blame.
        sources.ledger.sources.borrow_mut().insert(key.to_owned(), text);
    }
}

/// To be asked when everything else was read.
pub(super) fn reject_unused_sources(root: &TableReader<'_>) {
    for (key, _) in root.ledger.sources.borrow().iter() {
        if !root.ledger.used_sources.borrow().contains(key) {
            let at = root
                .table
                .get("sources")
                .and_then(Item::as_table_like)
                .and_then(|sources| sources.get_key_value(key)?.0.span())
                .map_or(0, |span| span.start);
            root.ledger.mistake(at, format!("no entry refers to the source \"{key}\""));
        }
    }
}

fn price(root: &mut TableReader<'_>) -> Option<Price> {
    let mut table = root.inside("price", "[price]", "a table with usd, date and source")?;
    let usd = table.number("usd", 0.01, 1e9);
    let date = table.text("date", "the year or day of the price");
    let source = table.source();
    let estimate = table.flag("estimate");
    table.reject_unknown();
    Some(Price { usd: usd?, date: date?.0, source: source?, estimate })
}

fn published(root: &mut TableReader<'_>) -> Option<Vec<Published>> {
    const EXPECTED: &str = "one [[published]] for each published figure that the model is checked against";
    let choices: Vec<(&str, Figure)> = Figure::ALL.iter().map(|figure| (figure.name(), *figure)).collect();
    let counts = |table: &mut TableReader<'_>, key, low: f64, high, default: f64| {
        if table.has(key) { table.number(key, low, high) } else { Some(default) }
    };
    let mut all = Vec::new();
    for mut table in root.tables("published", "[[published]]", EXPECTED)? {
        let figure = table.choice("figure", &choices);
        let value = table.number("value", 0.001, 1e9);
        let queue_depth = counts(&mut table, "queue_depth", 1.0, 4096.0, 1.0);
        let block_bytes = counts(&mut table, "block_bytes", 512.0, 16e6, 4096.0);
        if let Some(bytes) = block_bytes
            && bytes % 512.0 != 0.0
        {
            table.ledger.mistake(table.at, "`block_bytes` must be a multiple of 512");
        }
        let percentile = table.has("percentile").then(|| table.number("percentile", 1.0, 99.9999)).flatten();
        if table.has("percentile") && figure.is_some_and(|figure| !figure.has_percentiles()) {
            table.ledger.mistake(table.at, "only latencies have a `percentile`");
        }
        let source = table.source();
        let estimate = table.flag("estimate");
        let note = table.optional_text("note", "the conditions, as a text");
        table.reject_unknown();
        if let (Some(figure), Some(value), Some(queue_depth), Some(block_bytes), Some(source)) =
            (figure, value, queue_depth, block_bytes, source)
        {
            let (queue_depth, block_bytes) = (queue_depth as u32, block_bytes as u32);
            all.push(Published {
                figure,
                value,
                queue_depth,
                block_bytes,
                percentile,
                source,
                estimate,
                note,
            });
        }
    }
    Some(all)
}
