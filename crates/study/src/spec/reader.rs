//! Walks a parsed TOML document section by section, keeping every place for the messages.

use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use toml_edit::{ArrayOfTables, Document, Item, TableLike, Value};

use super::media_files::{Media, ReadFile};
use super::{
    StorageSpec, Study, checks, execution, fault, servers, short, storage, suggest, syntax, system, workload,
};
use crate::diagnostics::{Diagnostic, Diagnostics};
use crate::units;

/// Names of studies, systems, storages and workloads end up in file names.
const NAME_MAX: usize = 40;

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Spanned<T> {
    pub value: T,
    pub span: Range<usize>,
}

impl<T> Spanned<T> {
    pub fn new(value: T, span: Range<usize>) -> Self {
        Spanned { value, span }
    }
}

pub(super) fn read_study(
    file_name: &str,
    text: &str,
    short: bool,
    read_file: ReadFile<'_>,
) -> Result<Study, Diagnostics> {
    let media = Media::new(read_file);
    let mut findings = Diagnostics::new(file_name, text);
    let document = match Document::parse(text) {
        Ok(document) => document,
        Err(error) => {
            let error = (error.span().unwrap_or(text.len()..text.len()), error.message().to_owned());
            syntax::report(text, error, &mut findings);
            return Err(findings);
        }
    };
    if let Some(span) = underlay_storage::catalogue::control_character(document.as_table()) {
        let label = "a terminal would obey it: leave it out";
        findings.push(Diagnostic::error(span, "a text with a control character", label));
        return Err(findings);
    }
    let mut root = Section::new("the study", 0..0, document.as_table());

    let name = root.require("name", "name = \"hdd-or-nvme\"", &mut findings);
    let name = name.and_then(|field| field.name(&mut findings));
    let title = root.take("title").and_then(|field| field.text("a string", &mut findings));
    let baseline = root.take("baseline").and_then(|field| field.text("the name of a storage", &mut findings));
    let systems = system::read(&mut root, &mut findings);
    let (storage_names, storages) = storage::read(&mut root, &media, &mut findings);
    let workloads = workload::read(&mut root, &mut findings);
    let faults = fault::read(&mut root, &mut findings);
    let run = execution::read_run(&mut root, &mut findings);
    let scale = execution::read_scale(&mut root, &mut findings);
    let shortened = short::read(&mut root, &workloads, &mut findings);
    let reference = execution::read_reference(&mut root, &mut findings);
    root.finish(&mut findings);

    let full = checks::Sites {
        baseline,
        scale,
        run,
        reference,
        systems,
        storage_names,
        storages,
        workloads,
        faults,
    };
    shortened.check(&full, &mut findings);
    let cut_down = shortened.applied_to(full.clone());
    // Both forms must be sound, so that a mistake in one doesn't wait for the day it is asked for.
    let (sites, other) = if short { (cut_down, full) } else { (full, cut_down) };
    checks::check(&sites, &mut findings);
    let mut of_other = Diagnostics::default();
    checks::check(&other, &mut of_other);
    of_other.retain_errors();
    for finding in of_other.findings() {
        if !findings.findings().contains(finding) {
            findings.push(finding.clone());
        }
    }
    findings.sort();
    if findings.has_errors() {
        // Notes weigh a study that works; among mistakes they would only distract.
        findings.retain_errors();
        return Err(findings);
    }
    let (Some(name), Some(baseline)) = (name, sites.baseline_name()) else {
        return Err(findings);
    };
    let storages: Vec<(bool, StorageSpec)> =
        sites.storages.iter().map(|site| (servers::is_for_a_role(site, &sites), site.spec.clone())).collect();
    let of = |for_a_role: bool| {
        let kept = storages.iter().filter(move |(role, _)| *role == for_a_role);
        kept.map(|(_, spec)| spec.clone()).collect()
    };
    Ok(Study {
        name,
        title: title.map(|title| title.value),
        source_toml: text.to_owned(),
        baseline,
        systems: sites.systems.into_iter().map(|site| site.spec).collect(),
        storages: of(false),
        role_storages: of(true),
        workloads: sites.workloads.into_iter().map(|site| site.into_spec()).collect(),
        faults: sites.faults.into_iter().map(|site| site.spec).collect(),
        run: sites.run.settings,
        scale: sites.scale.value,
        reference: sites.reference.map(|reference| reference.value),
        short,
        media_files: media.into_texts(),
        notes: findings,
    })
}

/// Something that a key may hold.
#[derive(Clone, Copy)]
enum Node<'a> {
    Value(&'a Value),
    Table(&'a dyn TableLike),
    Tables(&'a ArrayOfTables),
}

impl<'a> Node<'a> {
    fn of(item: &'a Item) -> Option<Self> {
        match item {
            Item::None => None,
            Item::Value(Value::InlineTable(table)) => Some(Node::Table(table)),
            Item::Value(value) => Some(Node::Value(value)),
            Item::Table(table) => Some(Node::Table(table)),
            Item::ArrayOfTables(tables) => Some(Node::Tables(tables)),
        }
    }

    fn kind(self) -> &'static str {
        match self {
            Node::Value(Value::String(_)) => "a string",
            Node::Value(Value::Integer(_)) => "an integer",
            Node::Value(Value::Float(_)) => "a float",
            Node::Value(Value::Boolean(_)) => "a boolean",
            Node::Value(Value::Datetime(_)) => "a date or time",
            Node::Value(Value::Array(_)) | Node::Tables(_) => "an array",
            Node::Value(Value::InlineTable(_)) | Node::Table(_) => "a table",
        }
    }
}

/// A table whose keys are taken one by one; what is left at the end was not known.
pub(super) struct Section<'a> {
    /// As messages call it: `[run]`.
    pub title: String,
    /// Where it begins: its header, or the key that holds it.
    pub span: Range<usize>,
    table: &'a dyn TableLike,
    known: Vec<&'static str>,
    taken: Vec<String>,
}

impl<'a> Section<'a> {
    pub fn new(title: impl Into<String>, span: Range<usize>, table: &'a dyn TableLike) -> Self {
        Section { title: title.into(), span, table, known: Vec::new(), taken: Vec::new() }
    }

    /// The key's value, if it is there; either way the key is known from now on.
    pub fn take(&mut self, key: &'static str) -> Option<Field<'a>> {
        self.known.push(key);
        self.taken.push(key.to_owned());
        self.field(key)
    }

    /// Whether the key stands there; it is no more known for that.
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
            let message = format!("`{key}` is missing in {}", self.title);
            findings.push(Diagnostic::error(
                self.span.clone(),
                message,
                format!("expected `{example}` here"),
            ));
        }
        field
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
    pub fn finish(self, findings: &mut Diagnostics) {
        for (key, item) in self.table.iter() {
            if self.taken.iter().any(|taken| taken == key) {
                continue;
            }
            let span = self.key_span(key, item);
            let message = format!("unknown key `{key}` in {}", self.title);
            let expected = format!("expected one of {}", self.known.join(", "));
            findings.push(match suggest::closest(key, self.known.iter().copied()) {
                Some(meant) => {
                    Diagnostic::error(span, message, format!("did you mean `{meant}`?")).with_help(expected)
                }
                None => Diagnostic::error(span, message, "").with_help(expected),
            });
        }
    }

    fn field(&self, key: &str) -> Option<Field<'a>> {
        let item = self.table.get(key)?;
        let node = Node::of(item)?;
        let key_span = self.key_span(key, item);
        let span = match node {
            Node::Value(_) => item.span().unwrap_or_else(|| key_span.clone()),
            // A table's own span may reach over all of its lines.
            Node::Table(_) | Node::Tables(_) => match item {
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

/// Reads `[GROUP.NAME]` sections: the name, where it stands, and the section. One at least must be there.
pub(super) fn named_sections<'a>(
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
pub(super) fn sections_of<'a>(
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
        let message = format!("[{group}] names nothing");
        findings.push(Diagnostic::error(
            field.key_span.clone(),
            message,
            format!("expected `[{group}.{example}]`"),
        ));
    }
    let mut named = Vec::new();
    for field in fields {
        if !matches!(field.node, Node::Table(_)) {
            let message = format!("`{}` stands in [{group}] outside of a named section", field.key);
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

/// Says whether a name can be a part of file names, and reports it when not.
fn check_name(name: &str, span: Range<usize>, findings: &mut Diagnostics) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let problem = if name.is_empty() {
        "a name may not be empty".to_owned()
    } else if name.len() > NAME_MAX {
        format!("this name is longer than {NAME_MAX} characters")
    } else if name.chars().all(allowed) && !name.starts_with('-') {
        return true;
    } else {
        format!("`{}` cannot be a name", name.escape_debug())
    };
    let label = "expected small letters, digits and dashes, not beginning with a dash";
    findings.push(Diagnostic::error(span, problem, label).with_help("names become parts of file names"));
    false
}

/// One key of a section with its value, or one element of an array.
pub(super) struct Field<'a> {
    pub key: String,
    /// As messages call it: `` `warmup` in [run] ``.
    pub place: String,
    pub key_span: Range<usize>,
    pub span: Range<usize>,
    node: Node<'a>,
}

impl<'a> Field<'a> {
    /// Reports that the value is of another type than `expected`.
    pub fn mismatch(&self, expected: &str, findings: &mut Diagnostics) {
        let message = format!("wrong type for {}", self.place);
        let label = format!("expected {expected}, found {}", self.node.kind());
        findings.push(Diagnostic::error(self.span.clone(), message, label));
    }

    pub fn invalid(&self, expected: impl Into<String>, findings: &mut Diagnostics) {
        let message = format!("wrong value for {}", self.place);
        findings.push(Diagnostic::error(self.span.clone(), message, expected));
    }

    pub fn text(&self, expected: &str, findings: &mut Diagnostics) -> Option<Spanned<String>> {
        match self.node {
            Node::Value(Value::String(text)) => Some(Spanned::new(text.value().clone(), self.span.clone())),
            _ => {
                self.mismatch(expected, findings);
                None
            }
        }
    }

    pub fn name(&self, findings: &mut Diagnostics) -> Option<String> {
        let name = self.text("a string", findings)?;
        check_name(&name.value, name.span, findings).then_some(name.value)
    }

    /// One word of a closed list.
    pub fn word(&self, known: &[&'static str], findings: &mut Diagnostics) -> Option<Spanned<&'static str>> {
        let list = known.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ");
        let text = self.text(&format!("one of {list}"), findings)?;
        if let Some(word) = known.iter().find(|word| **word == text.value) {
            return Some(Spanned::new(word, text.span));
        }
        let message = format!("unknown value \"{}\" for {}", text.value.escape_debug(), self.place);
        findings.push(match suggest::closest(&text.value, known.iter().copied()) {
            Some(meant) => Diagnostic::error(text.span, message, format!("did you mean \"{meant}\"?"))
                .with_help(format!("expected one of {list}")),
            None => Diagnostic::error(text.span, message, format!("expected one of {list}")),
        });
        None
    }

    /// An integer within `allowed`.
    pub fn whole(&self, allowed: RangeInclusive<u64>, findings: &mut Diagnostics) -> Option<Spanned<u64>> {
        let expected = || match *allowed.end() {
            u64::MAX => format!("an integer of at least {}", allowed.start()),
            end => format!("an integer from {} to {end}", allowed.start()),
        };
        let Node::Value(Value::Integer(integer)) = self.node else {
            self.mismatch(&expected(), findings);
            return None;
        };
        match u64::try_from(*integer.value()) {
            Ok(value) if allowed.contains(&value) => Some(Spanned::new(value, self.span.clone())),
            _ => {
                self.invalid(format!("expected {}", expected()), findings);
                None
            }
        }
    }

    /// `whole` for what fits 32 bits.
    pub fn count(&self, allowed: RangeInclusive<u32>, findings: &mut Diagnostics) -> Option<Spanned<u32>> {
        let wide = u64::from(*allowed.start())..=u64::from(*allowed.end());
        let whole = self.whole(wide, findings)?;
        u32::try_from(whole.value).ok().map(|value| Spanned::new(value, whole.span))
    }

    /// An integer or a float, as it is; `None` without a word for another type.
    pub fn as_number(&self) -> Option<f64> {
        match self.node {
            Node::Value(Value::Integer(integer)) => Some(*integer.value() as f64),
            Node::Value(Value::Float(float)) => Some(*float.value()),
            _ => None,
        }
    }

    /// Whether it is the word `true`.
    pub fn as_true(&self) -> bool {
        matches!(self.node, Node::Value(Value::Boolean(boolean)) if *boolean.value())
    }

    pub fn boolean(&self, findings: &mut Diagnostics) -> Option<bool> {
        match self.node {
            Node::Value(Value::Boolean(boolean)) => Some(*boolean.value()),
            _ => {
                self.mismatch("true or false", findings);
                None
            }
        }
    }

    pub fn as_text(&self) -> Option<&'a str> {
        match self.node {
            Node::Value(value) => value.as_str(),
            _ => None,
        }
    }

    /// A string, number or boolean as text, for settings that Underlay only hands on.
    pub fn scalar(&self, findings: &mut Diagnostics) -> Option<String> {
        match self.node {
            Node::Value(Value::String(text)) => Some(text.value().clone()),
            Node::Value(Value::Integer(integer)) => Some(integer.value().to_string()),
            Node::Value(Value::Float(float)) => Some(float.value().to_string()),
            Node::Value(Value::Boolean(boolean)) => Some(boolean.value().to_string()),
            _ => {
                self.mismatch("a string, a number or a boolean", findings);
                None
            }
        }
    }

    /// As [`scalar`](Self::scalar), and a list of such as one text with commas.
    pub fn setting(&self, findings: &mut Diagnostics) -> Option<String> {
        if !self.is_array() {
            return self.scalar(findings);
        }
        let parts: Vec<Option<String>> =
            self.one_or_many(findings).iter().map(|element| element.scalar(findings)).collect();
        let parts = parts.into_iter().collect::<Option<Vec<String>>>()?;
        (!parts.is_empty()).then(|| parts.join(", "))
    }

    /// A size such as `"2 GiB"`, more than zero. The span is the string's.
    pub fn bytes(&self, findings: &mut Diagnostics) -> Option<Spanned<u64>> {
        let text = self.text("a size such as \"2 GiB\" or \"256 GB\"", findings)?;
        match units::parse_bytes(&text.value) {
            Ok(0) => self.invalid("expected more than nothing", findings),
            Ok(bytes) => return Some(Spanned::new(bytes, text.span)),
            Err(error) => self.invalid(error.to_string(), findings),
        }
        None
    }

    /// A duration such as `"20 s"`, up to a week.
    pub fn duration(&self, allow_zero: bool, findings: &mut Diagnostics) -> Option<Spanned<Duration>> {
        const MAX: Duration = Duration::from_secs(7 * 24 * 3600);
        let text = self.text("a duration such as \"20 s\" or \"500 ms\"", findings)?;
        match units::parse_duration(&text.value) {
            Ok(Duration::ZERO) if !allow_zero => self.invalid("expected more than no time", findings),
            Ok(duration) if duration > MAX => self.invalid("expected at most a week, \"168 h\"", findings),
            Ok(duration) => return Some(Spanned::new(duration, text.span)),
            Err(error) => self.invalid(error.to_string(), findings),
        }
        None
    }

    /// A bandwidth such as `"25 Gbit/s"` in million bytes a second, more than zero.
    pub fn bandwidth_mb_s(&self, findings: &mut Diagnostics) -> Option<Spanned<f64>> {
        let text = self.text("a bandwidth such as \"25 Gbit/s\" or \"120 MB/s\"", findings)?;
        match units::parse_bandwidth(&text.value) {
            Ok(0) => self.invalid("expected more than nothing", findings),
            Ok(bits_per_s) => return Some(Spanned::new(bits_per_s as f64 / 8e6, text.span)),
            Err(error) => self.invalid(error.to_string(), findings),
        }
        None
    }

    /// A table with its keys to be taken.
    pub fn section(&self, title: impl Into<String>, findings: &mut Diagnostics) -> Option<Section<'a>> {
        match self.node {
            Node::Table(table) => Some(Section::new(title, self.span.clone(), table)),
            _ => {
                self.mismatch("a table", findings);
                None
            }
        }
    }

    /// The elements of an array, or the value alone as its only element. An empty array is a mistake.
    pub fn one_or_many(&self, findings: &mut Diagnostics) -> Vec<Field<'a>> {
        if !self.is_array() {
            return vec![Field {
                key: self.key.clone(),
                place: self.place.clone(),
                key_span: self.key_span.clone(),
                span: self.span.clone(),
                node: self.node,
            }];
        }
        let elements = self.elements();
        if elements.is_empty() {
            let message = format!("{} is empty", self.place);
            findings.push(Diagnostic::error(self.span.clone(), message, "expected at least one element"));
        }
        elements
    }

    pub fn is_array(&self) -> bool {
        matches!(self.node, Node::Value(Value::Array(_)) | Node::Tables(_))
    }

    pub fn is_table(&self) -> bool {
        matches!(self.node, Node::Table(_))
    }

    fn elements(&self) -> Vec<Field<'a>> {
        let element = |node: Node<'a>, span: Option<Range<usize>>| Field {
            key: self.key.clone(),
            place: self.place.clone(),
            key_span: self.key_span.clone(),
            span: span.unwrap_or_else(|| self.span.clone()),
            node,
        };
        match self.node {
            Node::Value(Value::Array(array)) => array
                .iter()
                .map(|value| match value {
                    Value::InlineTable(table) => element(Node::Table(table), table.span()),
                    value => element(Node::Value(value), value.span()),
                })
                .collect(),
            Node::Tables(tables) => {
                tables.iter().map(|table| element(Node::Table(table), table.span())).collect()
            }
            Node::Value(_) | Node::Table(_) => Vec::new(),
        }
    }

    /// A list (or its only element) read by `read`; an element equal to an earlier one is a mistake.
    pub fn list<T: PartialEq>(
        &self,
        findings: &mut Diagnostics,
        read: impl Fn(&Field<'a>, &mut Diagnostics) -> Option<Spanned<T>>,
    ) -> Vec<Spanned<T>> {
        let mut list: Vec<Spanned<T>> = Vec::new();
        for element in self.one_or_many(findings) {
            let Some(read) = read(&element, findings) else { continue };
            match list.iter().find(|earlier| earlier.value == read.value) {
                Some(earlier) => findings.push(
                    Diagnostic::error(
                        read.span,
                        format!("{} has the same element twice", self.place),
                        "again here",
                    )
                    .with_context(earlier.span.clone(), "first here"),
                ),
                None => list.push(read),
            }
        }
        list
    }
}
