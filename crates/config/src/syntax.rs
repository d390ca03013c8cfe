//! Text that is not TOML: every place where it is not, and not only the one that a reader of whole documents ends with.

use std::borrow::Cow;
use std::ops::Range;

use toml_parser::parser::{Event, EventKind, RecursionGuard, ValidateWhitespace, parse_document};
use toml_parser::{Expected, ParseError, Source};

use crate::diagnostics::{Diagnostic, Diagnostics};

const MESSAGE: &str = "this is not valid TOML";
/// Only a document has keys and values to check.
pub(crate) const REST: &str = "fix this first: the rest of the file was not checked";
/// The parser's words for text between brackets or braces.
const IN_BRACKETS: [&str; 2] = ["array", "inline table"];
/// As deep as `toml_edit` goes.
const MAX_DEPTH: u32 = 80;

/// Reports all mistakes. `reported` is what the reader said, which also knows keys that are there twice.
pub(crate) fn report(text: &str, reported: (Range<usize>, String), findings: &mut Diagnostics) {
    let source = Source::new(text);
    let mut errors: Vec<ParseError> = Vec::new();
    let mut events: Vec<Event> = Vec::new();
    {
        let mut receiver = ValidateWhitespace::new(&mut events, source);
        let mut receiver = RecursionGuard::new(&mut receiver, MAX_DEPTH);
        parse_document(&source.lex().into_vec(), &mut receiver, &mut errors);
    }
    // The parser only finds where strings and numbers end; decoding finds bad escapes and digits.
    for event in events.iter().filter(|event| event.kind() == EventKind::Scalar) {
        if let Some(raw) = source.get(event) {
            let _ = raw.decode_scalar(&mut Cow::Borrowed(""), &mut errors);
        }
    }
    let mut places: Vec<(Range<usize>, String)> = errors.iter().map(|error| told(error, text)).collect();
    if places.iter().all(|(span, _)| span.start != reported.0.start) {
        places.push(reported);
    }
    places.sort_by_key(|(span, _)| span.start);
    // Both readers find most mistakes: each is shown once.
    places.dedup_by_key(|(span, _)| span.start);
    // Behind an array or table that was not closed everything looks wrong.
    let unclosed =
        places.iter().position(|(_, message)| IN_BRACKETS.iter().any(|word| message.contains(word)));
    places.truncate(unclosed.map_or(places.len(), |first| first + 1));
    let last = places.len().saturating_sub(1);
    for (number, (span, message)) in places.into_iter().enumerate() {
        let finding = Diagnostic::error(span, MESSAGE, message);
        findings.push(if number == last { finding.with_help(REST) } else { finding });
    }
}

/// In the words of the reader.
fn told(error: &ParseError, text: &str) -> (Range<usize>, String) {
    let span = error.unexpected().or(error.context());
    let span = span.map_or(text.len()..text.len(), |span| span.start()..span.end());
    let expected = error.expected().unwrap_or_default().iter().map(|expected| match expected {
        Expected::Literal(literal) if literal.contains(char::is_control) => {
            format!("`{}`", literal.escape_debug())
        }
        Expected::Literal(literal) => format!("`{literal}`"),
        Expected::Description(description) => (*description).to_owned(),
        other => format!("{other:?}"),
    });
    let expected: Vec<String> = expected.collect();
    match expected.is_empty() {
        true => (span, error.description().to_owned()),
        false => (span, format!("{}, expected {}", error.description(), expected.join(", "))),
    }
}
