//! Properties in YCSB's formats: Java `.properties` files (`-P file`) and single settings (`-p key=value`).

use std::fmt;
use std::path::Path;

pub use crate::ycsb::property_names::{KNOWN, KnownProperty, PropertyScope, known, suggestion};

/// A file longer than this is not a properties file.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Where a property was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PropertyOrigin {
    File {
        name: String,
        /// Counted from 1; 0 is the whole file.
        line: u32,
    },
    /// The text as given: `-p fieldcount=ten`.
    Argument(String),
}

impl fmt::Display for PropertyOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PropertyOrigin::File { name, line: 0 } => f.write_str(name),
            PropertyOrigin::File { name, line } => write!(f, "{name}:{line}"),
            PropertyOrigin::Argument(text) => f.write_str(text),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct YcsbProperty {
    pub name: String,
    pub value: String,
    pub origin: PropertyOrigin,
}

/// A mistake in one property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PropertyError {
    pub origin: PropertyOrigin,
    /// The mistake, and the expected value.
    pub problem: String,
}

impl fmt::Display for PropertyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.origin, self.problem)
    }
}

/// Every mistake found, one per line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PropertyErrors(pub Vec<PropertyError>);

impl fmt::Display for PropertyErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, error) in self.0.iter().enumerate() {
            if position > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for PropertyErrors {}

/// A name that is not a CoreWorkload property. Bindings have their own (`cassandra.keyspace`), so it is not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownProperty {
    pub property: YcsbProperty,
    /// The known name that was probably meant.
    pub suggestion: Option<&'static str>,
}

/// A property that is accepted but changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PropertyWithoutEffect {
    pub property: YcsbProperty,
    /// Why it has no effect here.
    pub reason: &'static str,
}

/// Properties in the order given; of several with the same name the last counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct YcsbProperties {
    entries: Vec<YcsbProperty>,
}

impl YcsbProperties {
    pub fn new() -> Self {
        YcsbProperties::default()
    }

    /// Adds the properties of a file.
    ///
    /// # Errors
    /// When it can't be read, is larger than 1 MiB, or has a malformed escape; then nothing was added.
    pub fn read_file(&mut self, path: &Path) -> Result<(), PropertyErrors> {
        let name = path.display().to_string();
        let failed = |problem: String| {
            PropertyErrors(vec![PropertyError {
                origin: PropertyOrigin::File { name: name.clone(), line: 0 },
                problem,
            }])
        };
        let bytes = underlay_files::read_or_pipe(path, MAX_FILE_BYTES)
            .map_err(|error| failed(format!("cannot be read: {error}")))?;
        // Java reads such files as Latin-1. Most are UTF-8 by now, and are read as such.
        let text = String::from_utf8(bytes)
            .unwrap_or_else(|error| error.into_bytes().into_iter().map(char::from).collect());
        self.add_text(&name, text.strip_prefix('\u{feff}').unwrap_or(&text))
    }

    /// Adds the properties of a text in the `.properties` format; `file_name` is for messages.
    ///
    /// # Errors
    /// Every malformed escape and nameless value; then nothing was added.
    pub fn add_text(&mut self, file_name: &str, text: &str) -> Result<(), PropertyErrors> {
        let mut entries = Vec::new();
        let mut errors = Vec::new();
        for (line, logical) in logical_lines(text) {
            let origin = PropertyOrigin::File { name: file_name.to_owned(), line };
            match parse_line(&logical) {
                Ok((name, value)) => entries.push(YcsbProperty { name, value, origin }),
                Err(problem) => errors.push(PropertyError { origin, problem }),
            }
        }
        if !errors.is_empty() {
            return Err(PropertyErrors(errors));
        }
        self.entries.extend(entries);
        Ok(())
    }

    /// Adds one `key=value`, as in `-p`. The value is taken literally, without escapes.
    ///
    /// # Errors
    /// When there is no `=` or no name before it.
    pub fn add_argument(&mut self, argument: &str) -> Result<(), PropertyErrors> {
        let origin = PropertyOrigin::Argument(format!("-p {argument}"));
        match argument.split_once('=') {
            Some((name, value)) if !name.trim().is_empty() => {
                self.add(name.trim(), value.trim(), origin);
                Ok(())
            }
            _ => Err(PropertyErrors(vec![PropertyError {
                origin,
                problem: "expected name=value, as in -p recordcount=1000".to_owned(),
            }])),
        }
    }

    /// Adds one property from another source.
    pub fn add(&mut self, name: &str, value: &str, origin: PropertyOrigin) {
        self.entries.push(YcsbProperty { name: name.to_owned(), value: value.to_owned(), origin });
    }

    /// The effective property of this name: the last one given.
    pub fn get(&self, name: &str) -> Option<&YcsbProperty> {
        self.entries.iter().rfind(|property| property.name == name)
    }

    /// The effective properties, by name.
    pub fn iter(&self) -> impl Iterator<Item = &YcsbProperty> {
        self.entries.iter().enumerate().filter_map(|(position, property)| {
            let repeated = self.entries[position + 1..].iter().any(|later| later.name == property.name);
            (!repeated).then_some(property)
        })
    }

    /// Properties that are accepted but change nothing, for a note to the user.
    pub fn without_effect(&self) -> Vec<PropertyWithoutEffect> {
        let found = self.iter().filter_map(|property| match known(&property.name)?.scope {
            PropertyScope::Nothing(reason) => {
                Some(PropertyWithoutEffect { property: property.clone(), reason })
            }
            PropertyScope::Workload | PropertyScope::Output => None,
        });
        found.collect()
    }

    /// Those that are not CoreWorkload properties: a binding's, or typing errors.
    pub fn unknown(&self) -> Vec<UnknownProperty> {
        self.iter()
            .filter(|property| known(&property.name).is_none())
            .map(|property| UnknownProperty {
                property: property.clone(),
                suggestion: suggestion(&property.name),
            })
            .collect()
    }
}

/// The logical lines of a text, each with the number of its first natural line, from 1: without comments and blank
/// lines, and with lines that end in an odd number of backslashes joined to the next.
fn logical_lines(text: &str) -> Vec<(u32, String)> {
    let mut lines = Vec::new();
    let mut open: Option<(u32, String)> = None;
    // A lone carriage return ends a line too.
    let unified = text.replace("\r\n", "\n").replace('\r', "\n");
    for (index, natural) in unified.split('\n').enumerate() {
        let trimmed = natural.trim_start_matches([' ', '\t', '\u{c}']);
        if open.is_none() && (trimmed.is_empty() || trimmed.starts_with(['#', '!'])) {
            continue;
        }
        let continues = trimmed.bytes().rev().take_while(|&byte| byte == b'\\').count() % 2 == 1;
        let content = if continues { &trimmed[..trimmed.len() - 1] } else { trimmed };
        let (_, line) =
            open.get_or_insert_with(|| (u32::try_from(index + 1).unwrap_or(u32::MAX), String::new()));
        line.push_str(content);
        if !continues {
            lines.extend(open.take());
        }
    }
    lines.extend(open);
    lines
}

/// Splits a logical line at the first unescaped `=`, `:` or blank, and resolves escapes on both sides.
fn parse_line(line: &str) -> Result<(String, String), String> {
    let mut escaped = false;
    let name_end = line
        .char_indices()
        .find(|&(_, character)| {
            let separates = !escaped && matches!(character, '=' | ':' | ' ' | '\t' | '\u{c}');
            escaped = !escaped && character == '\\';
            separates
        })
        .map_or(line.len(), |(index, _)| index);
    let blanks = [' ', '\t', '\u{c}'];
    let mut value = line[name_end..].trim_start_matches(blanks);
    if let Some(rest) = value.strip_prefix(['=', ':']) {
        value = rest.trim_start_matches(blanks);
    }
    if name_end == 0 {
        return Err(format!("'{line}' has no name: expected name=value"));
    }
    Ok((unescape(&line[..name_end])?, unescape(without_blanks_at_the_end(value))?))
}

/// YCSB parses numbers strictly, so a blank at a line's end would make them invalid. It is never intended, unless it is
/// escaped.
fn without_blanks_at_the_end(value: &str) -> &str {
    let trimmed = value.trim_end_matches([' ', '\t', '\u{c}']);
    let ends_in_an_escape = trimmed.bytes().rev().take_while(|&byte| byte == b'\\').count() % 2 == 1;
    if ends_in_an_escape { value.get(..=trimmed.len()).unwrap_or(value) } else { trimmed }
}

fn unescape(text: &str) -> Result<String, String> {
    if !text.contains('\\') {
        return Ok(text.to_owned());
    }
    let mut plain = String::with_capacity(text.len());
    // Java's \u escapes are UTF-16 units, so a pair of them may be one character.
    let mut units: Vec<u16> = Vec::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        let escape = if character == '\\' { characters.next() } else { None };
        if escape == Some('u') {
            let digits: String = characters.by_ref().take(4).collect();
            let hexadecimal = digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            let unit = hexadecimal.then(|| u16::from_str_radix(&digits, 16).ok()).flatten();
            units.push(unit.ok_or_else(|| {
                format!("'\\u{digits}' is no character: expected \\u and four hexadecimal digits")
            })?);
            continue;
        }
        plain.extend(
            char::decode_utf16(units.drain(..)).map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER)),
        );
        match (character, escape) {
            ('\\', Some('t')) => plain.push('\t'),
            ('\\', Some('n')) => plain.push('\n'),
            ('\\', Some('r')) => plain.push('\r'),
            ('\\', Some('f')) => plain.push('\u{c}'),
            ('\\', Some(other)) => plain.push(other),
            ('\\', None) => {}
            (other, _) => plain.push(other),
        }
    }
    plain.extend(char::decode_utf16(units).map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER)));
    Ok(plain)
}
