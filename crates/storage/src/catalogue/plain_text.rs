//! Text of files that ends on terminals: what moves a cursor or hides a line has no business in a title.

use std::ops::Range;

use toml_edit::{Item, Table, TableLike, Value};

/// Where the first key or text of a document is that holds a control character other than a tab or a line's end.
pub fn control_character(document: &Table) -> Option<Range<usize>> {
    of_table(document)
}

fn of_table(table: &dyn TableLike) -> Option<Range<usize>> {
    table.iter().find_map(|(name, item)| {
        let of_key = || table.key(name).and_then(|key| key.span()).or_else(|| item.span()).unwrap_or(0..0);
        if has_control(name) { Some(of_key()) } else { of_item(item) }
    })
}

fn of_item(item: &Item) -> Option<Range<usize>> {
    match item {
        Item::None => None,
        Item::Value(value) => of_value(value),
        Item::Table(table) => of_table(table),
        Item::ArrayOfTables(tables) => tables.iter().find_map(|table| of_table(table)),
    }
}

fn of_value(value: &Value) -> Option<Range<usize>> {
    match value {
        Value::String(text) => has_control(text.value()).then(|| text.span().unwrap_or(0..0)),
        Value::Array(values) => values.iter().find_map(of_value),
        Value::InlineTable(table) => of_table(table),
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
