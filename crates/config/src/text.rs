//! From text to a document. Titles and notes end up on terminals: what moves a cursor or hides a line has no business
//! in them.

use std::ops::Range;

use toml_edit::{Document, Item, Table, TableLike, Value};

use crate::diagnostics::{Diagnostic, Diagnostics};
use crate::syntax;

/// Reads a document. `None` after a mistake, which then stands in `findings`: text that is not TOML, or one with a
/// control character.
pub fn parse<'t>(text: &'t str, findings: &mut Diagnostics) -> Option<Document<&'t str>> {
    let document = match Document::parse(text) {
        Ok(document) => document,
        Err(error) => {
            let error = (error.span().unwrap_or(text.len()..text.len()), error.message().to_owned());
            syntax::report(text, error, findings);
            return None;
        }
    };
    if let Some(span) = control_character(document.as_table()) {
        let label = "remove it: a terminal would interpret it";
        findings
            .push(Diagnostic::error(span, "control character in a string", label).with_help(syntax::REST));
        return None;
    }
    Some(document)
}

/// Where the first key or text of a document is that holds a control character other than a tab or a line's end.
fn control_character(document: &Table) -> Option<Range<usize>> {
    find_table_span(document)
}

fn find_table_span(table: &dyn TableLike) -> Option<Range<usize>> {
    table.iter().find_map(|(name, item)| {
        let of_key = || table.key(name).and_then(|key| key.span()).or_else(|| item.span()).unwrap_or(0..0);
        if has_control(name) { Some(of_key()) } else { find_item_span(item) }
    })
}

fn find_item_span(item: &Item) -> Option<Range<usize>> {
    match item {
        Item::None => None,
        Item::Value(value) => find_value_span(value),
        Item::Table(table) => find_table_span(table),
        Item::ArrayOfTables(tables) => tables.iter().find_map(|table| find_table_span(table)),
    }
}

fn find_value_span(value: &Value) -> Option<Range<usize>> {
    match value {
        Value::String(text) => has_control(text.value()).then(|| text.span().unwrap_or(0..0)),
        Value::Array(values) => values.iter().find_map(find_value_span),
        Value::InlineTable(table) => find_table_span(table),
        _ => None,
    }
}

fn has_control(text: &str) -> bool {
    text.chars().any(|character| character.is_control() && !matches!(character, '\n' | '\t'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_found_wherever_they_stand() {
        let found = |text: &str| {
            let document = toml_edit::Document::parse(text).unwrap();
            control_character(document.as_table()).map(|span| text[span].to_owned())
        };
        assert_eq!(found("title = \"a\\tb\"\ntext = '''\nmany\nlines'''\n"), None);
        assert_eq!(found("title = \"a\\u001b[2Jb\"").unwrap(), "\"a\\u001b[2Jb\"");
        assert!(found("[storage.\"a\\u009b\"]\nb = 1").is_some());
        assert!(found("[[a]]\nb = [{ c = \"\\u007f\" }]").is_some());
    }
}
