//! Text for a terminal. Some of it comes from servers, workers and files of others: what would move the cursor, hide a
//! line or answer for the user is not passed on. Colours are, which are ours.

use std::borrow::Cow;

const REPLACEMENT: char = '\u{fffd}';

/// The text with its control characters replaced, but for tabs, ends of lines and changes of colour. A carriage return
/// alone is replaced.
pub(crate) fn harmless(text: &str) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut passed = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        let length = passed_whole(rest).unwrap_or(character.len_utf8());
        match length == character.len_utf8() && is_obeyed(character) {
            true => passed.push(REPLACEMENT),
            false => passed.push_str(&rest[..length]),
        }
        rest = &rest[length..];
    }
    Cow::Owned(passed)
}

fn is_obeyed(character: char) -> bool {
    character.is_control() && !matches!(character, '\n' | '\t')
}

/// Of what is passed on at the beginning though it has control characters: a change of colour, the end of a line of
/// CSV.
fn passed_whole(text: &str) -> Option<usize> {
    if text.starts_with("\r\n") { Some(2) } else { colour_length(text) }
}

/// Of a change of the letters' colour at the beginning: `ESC [ 1 ; 31 m`.
fn colour_length(text: &str) -> Option<usize> {
    let parameters = text.strip_prefix("\u{1b}[")?;
    let end = parameters.find(|letter: char| !letter.is_ascii_digit() && letter != ';')?;
    // Others hide text, or make it look like something else's.
    let is_plain = |code: &str| matches!(code.parse().unwrap_or(0), 0..=2 | 30..=37 | 39 | 90..=97);
    let is_colour = parameters[end..].starts_with('m') && parameters[..end].split(';').all(is_plain);
    is_colour.then_some(2 + end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_colours_reach_the_terminal() {
        for text in ["plain\n\täöü", "a,b\r\nc,d\r\n", "\u{1b}[1;31mred\u{1b}[0m \u{1b}[m"] {
            assert_eq!(harmless(text), text);
        }
        let replaced = [
            ("a\u{1b}[2Jb", "a\u{fffd}[2Jb"),
            ("\u{1b}]0;title\u{7}", "\u{fffd}]0;title\u{fffd}"),
            ("good\rbad\u{8}\u{9b}1m", "good\u{fffd}bad\u{fffd}\u{fffd}1m"),
            ("\u{1b}", "\u{fffd}"),
            ("\u{1b}[31", "\u{fffd}[31"),
            ("\u{1b}[8mhidden\u{1b}[7m", "\u{fffd}[8mhidden\u{fffd}[7m"),
        ];
        for (text, expected) in replaced {
            assert_eq!(harmless(text), expected);
        }
    }
}
