//! Java's property files.

use std::collections::BTreeMap;
use std::fmt::Write;

/// A file of properties as `java.util.Properties` reads it.
pub(super) fn text(properties: &BTreeMap<String, String>) -> String {
    let mut text = String::new();
    for (name, value) in properties {
        escape(name, &mut text);
        text.push('=');
        escape(value, &mut text);
        text.push('\n');
    }
    text
}

/// Characters with a meaning there are written as numbers, and so are those outside of ASCII.
fn escape(part: &str, out: &mut String) {
    for unit in part.encode_utf16() {
        match u8::try_from(unit) {
            Ok(letter) if letter.is_ascii_alphanumeric() || b"-_.,/&|()".contains(&letter) => {
                out.push(char::from(letter));
            }
            _ => {
                // Writing to a string never fails.
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_java_characters_are_escaped() {
        let properties = BTreeMap::from([
            ("visibility".to_owned(), "a&(b|c)".to_owned()),
            ("pass word".to_owned(), " #\\ä\n=😀".to_owned()),
        ]);
        let expected =
            "pass\\u0020word=\\u0020\\u0023\\u005c\\u00e4\\u000a\\u003d\\ud83d\\ude00\nvisibility=a&(b|c)\n";
        assert_eq!(text(&properties), expected);
    }
}
