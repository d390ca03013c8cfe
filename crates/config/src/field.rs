//! One key with its value: what it may hold, and what is said where it holds something else.

use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use toml_edit::{ArrayOfTables, Item, TableLike, Value};

use crate::diagnostics::{Diagnostic, Diagnostics, UnknownName};
use crate::names::check_name;
use crate::units;

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Spanned<T> {
    pub value: T,
    pub span: Range<usize>,
}

impl<T> Spanned<T> {
    pub fn new(value: T, span: Range<usize>) -> Self {
        Spanned { value, span }
    }
}

/// Something that a key may hold.
#[derive(Clone, Copy)]
pub(crate) enum ValueNode<'a> {
    Value(&'a Value),
    Table(&'a dyn TableLike),
    Tables(&'a ArrayOfTables),
}

impl<'a> ValueNode<'a> {
    pub(crate) fn from_item(item: &'a Item) -> Option<Self> {
        match item {
            Item::None => None,
            Item::Value(Value::InlineTable(table)) => Some(ValueNode::Table(table)),
            Item::Value(value) => Some(ValueNode::Value(value)),
            Item::Table(table) => Some(ValueNode::Table(table)),
            Item::ArrayOfTables(tables) => Some(ValueNode::Tables(tables)),
        }
    }

    fn kind(self) -> &'static str {
        match self {
            ValueNode::Value(Value::String(_)) => "a string",
            ValueNode::Value(Value::Integer(_)) => "an integer",
            ValueNode::Value(Value::Float(_)) => "a float",
            ValueNode::Value(Value::Boolean(_)) => "a boolean",
            ValueNode::Value(Value::Datetime(_)) => "a date or time",
            ValueNode::Value(Value::Array(_)) | ValueNode::Tables(_) => "an array",
            ValueNode::Value(Value::InlineTable(_)) | ValueNode::Table(_) => "a table",
        }
    }
}

/// One key of a section with its value, or one element of an array.
pub struct Field<'a> {
    pub key: String,
    /// As messages call it: `` `warmup` in [run] ``.
    pub place: String,
    pub key_span: Range<usize>,
    pub span: Range<usize>,
    pub(crate) node: ValueNode<'a>,
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
            ValueNode::Value(Value::String(text)) => {
                Some(Spanned::new(text.value().clone(), self.span.clone()))
            }
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
    pub fn word(&self, words: &[&'static str], findings: &mut Diagnostics) -> Option<Spanned<&'static str>> {
        let list = words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ");
        let text = self.text(&format!("one of {list}"), findings)?;
        if let Some(word) = words.iter().find(|word| **word == text.value) {
            return Some(Spanned::new(word, text.span));
        }
        let message = format!("unknown value \"{}\" for {}", text.value.escape_debug(), self.place);
        findings.push(Diagnostic::unknown(
            text.span,
            message,
            UnknownName::Value(&text.value),
            words.iter().copied(),
            format!("expected one of {list}"),
        ));
        None
    }

    /// An integer within `allowed`.
    pub fn whole(&self, allowed: RangeInclusive<u64>, findings: &mut Diagnostics) -> Option<Spanned<u64>> {
        let expected = || match *allowed.end() {
            u64::MAX => format!("an integer of at least {}", allowed.start()),
            end => format!("an integer from {} to {end}", allowed.start()),
        };
        let ValueNode::Value(Value::Integer(integer)) = self.node else {
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

    /// An integer or a float that is a finite number; `expected` says which, where it is something else.
    pub fn number(&self, expected: &str, findings: &mut Diagnostics) -> Option<f64> {
        match self.as_number() {
            Some(number) if number.is_finite() => Some(number),
            Some(_) => {
                self.invalid(format!("expected {expected}"), findings);
                None
            }
            None => {
                self.mismatch(expected, findings);
                None
            }
        }
    }

    /// A number within `allowed`; `expected` says which, where it is something else.
    pub fn number_within(
        &self,
        allowed: RangeInclusive<f64>,
        expected: &str,
        findings: &mut Diagnostics,
    ) -> Option<f64> {
        let number = self.number(expected, findings)?;
        let is_allowed = allowed.contains(&number);
        if !is_allowed {
            self.invalid(format!("expected {expected}"), findings);
        }
        is_allowed.then_some(number)
    }

    /// Operations a second within `allowed`: a number, or one as tables print it, `"1,105 ops/s"`.
    pub fn rate_per_s(
        &self,
        allowed: RangeInclusive<f64>,
        expected: &str,
        findings: &mut Diagnostics,
    ) -> Option<f64> {
        let Some(text) = self.as_text() else { return self.number_within(allowed, expected, findings) };
        let rate = units::parse_rate(text).ok().filter(|rate| allowed.contains(rate));
        if rate.is_none() {
            self.invalid(format!("expected {expected}"), findings);
        }
        rate
    }

    /// An integer or a float, as it is; `None` without a word for another type.
    pub fn as_number(&self) -> Option<f64> {
        match self.node {
            ValueNode::Value(Value::Integer(integer)) => Some(*integer.value() as f64),
            ValueNode::Value(Value::Float(float)) => Some(*float.value()),
            _ => None,
        }
    }

    /// Whether it is the word `true`.
    pub fn as_true(&self) -> bool {
        matches!(self.node, ValueNode::Value(Value::Boolean(boolean)) if *boolean.value())
    }

    /// A boolean; `None` without a word for another type.
    pub fn as_boolean(&self) -> Option<bool> {
        match self.node {
            ValueNode::Value(Value::Boolean(boolean)) => Some(*boolean.value()),
            _ => None,
        }
    }

    pub fn boolean(&self, findings: &mut Diagnostics) -> Option<bool> {
        match self.node {
            ValueNode::Value(Value::Boolean(boolean)) => Some(*boolean.value()),
            _ => {
                self.mismatch("true or false", findings);
                None
            }
        }
    }

    pub fn as_text(&self) -> Option<&'a str> {
        match self.node {
            ValueNode::Value(value) => value.as_str(),
            _ => None,
        }
    }

    /// A string, number or boolean as text, for settings that Underlay only hands on.
    pub fn scalar(&self, findings: &mut Diagnostics) -> Option<String> {
        match self.node {
            ValueNode::Value(Value::String(text)) => Some(text.value().clone()),
            ValueNode::Value(Value::Integer(integer)) => Some(integer.value().to_string()),
            ValueNode::Value(Value::Float(float)) => Some(float.value().to_string()),
            ValueNode::Value(Value::Boolean(boolean)) => Some(boolean.value().to_string()),
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
            Ok(0) => self.invalid("expected more than zero", findings),
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
            Ok(Duration::ZERO) if !allow_zero => self.invalid("expected more than zero", findings),
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
            Ok(0) => self.invalid("expected more than zero", findings),
            Ok(bits_per_s) => return Some(Spanned::new(bits_per_s as f64 / 8e6, text.span)),
            Err(error) => self.invalid(error.to_string(), findings),
        }
        None
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
        matches!(self.node, ValueNode::Value(Value::Array(_)) | ValueNode::Tables(_))
    }

    pub fn is_table(&self) -> bool {
        matches!(self.node, ValueNode::Table(_))
    }

    /// The elements of an array; none where it is something else.
    pub fn elements(&self) -> Vec<Field<'a>> {
        let element = |node: ValueNode<'a>, span: Option<Range<usize>>| Field {
            key: self.key.clone(),
            place: self.place.clone(),
            key_span: self.key_span.clone(),
            span: span.unwrap_or_else(|| self.span.clone()),
            node,
        };
        match self.node {
            ValueNode::Value(Value::Array(array)) => array
                .iter()
                .map(|value| match value {
                    Value::InlineTable(table) => element(ValueNode::Table(table), table.span()),
                    value => element(ValueNode::Value(value), value.span()),
                })
                .collect(),
            ValueNode::Tables(tables) => {
                tables.iter().map(|table| element(ValueNode::Table(table), table.span())).collect()
            }
            ValueNode::Value(_) | ValueNode::Table(_) => Vec::new(),
        }
    }

    /// Reports that an element is equal to the one at `first`.
    pub fn repeated(&self, first: Range<usize>, findings: &mut Diagnostics) {
        let message = match self.node {
            ValueNode::Value(value) => {
                format!("{} contains {} twice", self.place, value.clone().decorated("", ""))
            }
            ValueNode::Table(_) | ValueNode::Tables(_) => {
                format!("{} contains the same element twice", self.place)
            }
        };
        findings.push(
            Diagnostic::error(self.span.clone(), message, "again here").with_context(first, "first here"),
        );
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
                Some(earlier) => element.repeated(earlier.span.clone(), findings),
                None => list.push(read),
            }
        }
        list
    }
}
