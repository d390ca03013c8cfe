//! Numbers in a text: whole ones only.

use std::ops::Range;

/// The number at `place` in `text`, a part of `matched`: what the pattern itself has around the number is on purpose.
///
/// # Errors
/// When there is something else, or the text's number is longer than the place: a figure of half a number would look
/// sound.
pub(super) fn number_at(text: &str, place: Range<usize>, matched: Range<usize>) -> Result<f64, String> {
    let found = &text[place.clone()];
    let seen = around(text, &place);
    let value = found.trim().parse::<f64>().ok().filter(|value| value.is_finite());
    let Some(value) = value else {
        return Err(format!("`{}` is no number, in: {seen}", found.escape_debug()));
    };
    let (before, after) = (&text[..place.start], &text[place.end..]);
    let begins_with_digits = found.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    if begins_with_digits && (continues_backwards(before) || is_negative(before)) || continues(after) {
        return Err(format!("`{found}` is only a part of a number, in: {seen}"));
    }
    if matched.end == place.end && has_multiple(after) {
        return Err(format!(
            "`{found}` has a letter behind it that multiplies it, in: {seen}; have the program print whole numbers, or let the pattern have the \
             letter and the unit say it"
        ));
    }
    Ok(value)
}

/// Whether a number that ends here goes on in what follows.
fn continues(after: &str) -> bool {
    let mut letters = after.chars();
    match letters.next() {
        Some(c) if c.is_ascii_digit() => true,
        Some('.' | ',' | '_' | '\'' | '\u{a0}' | '\u{2009}' | '\u{202f}') => {
            letters.next().is_some_and(|c| c.is_ascii_digit())
        }
        Some('e' | 'E') => {
            let next = letters.next();
            next.is_some_and(|c| c.is_ascii_digit())
                || matches!(next, Some('+' | '-')) && letters.next().is_some_and(|c| c.is_ascii_digit())
        }
        _ => false,
    }
}

/// Whether `k`, `M`, `G` or `T` follows and nothing else does, as in `12.3k`: of `12 MB/s`, the letter is of a unit.
fn has_multiple(after: &str) -> bool {
    let mut letters = after.chars();
    matches!(letters.next(), Some('k' | 'K' | 'M' | 'G' | 'T'))
        && letters.next().is_none_or(|c| !c.is_alphanumeric() && c != '/')
}

/// Whether a minus sign stands before, and is none between two words or numbers.
fn is_negative(before: &str) -> bool {
    before.strip_suffix('-').is_some_and(|rest| !rest.ends_with(|c: char| c.is_alphanumeric() || c == '-'))
}

/// Whether a number that begins here has begun before.
fn continues_backwards(before: &str) -> bool {
    let mut letters = before.chars().rev();
    match letters.next() {
        Some(c) if c.is_ascii_digit() => true,
        // Between groups of digits: an underscore, an apostrophe, spaces that don't break.
        Some('.' | ',' | '_' | '\'' | '\u{a0}' | '\u{2009}' | '\u{202f}') => {
            letters.next().is_some_and(|c| c.is_ascii_digit())
        }
        _ => false,
    }
}

/// The line of a place, for a message.
fn around(text: &str, place: &Range<usize>) -> String {
    const MAX: usize = 200;
    let start = text[..place.start].rfind('\n').map_or(0, |found| found + 1);
    let end = text[place.end..].find('\n').map_or(text.len(), |found| place.end + found);
    text[start..end].chars().take(MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_number_is_none() {
        let read = |text: &str, part: &str| {
            let start = text.find(part).unwrap();
            let place = start..start + part.len();
            number_at(text, place.clone(), place)
        };
        assert_eq!(read("tps = 123.45 (all)", "123.45"), Ok(123.45));
        assert_eq!(read("a 1e3, b", "1e3"), Ok(1000.0));
        assert_eq!(read("rose by -5 %", "-5"), Ok(-5.0));
        assert_eq!(read("it took 12.", "12"), Ok(12.0));
        assert_eq!(read("1,2,3", "2"), Err("`2` is only a part of a number, in: 1,2,3".to_owned()));
        assert_eq!(read("12 MB/s", "12"), Ok(12.0));
        assert_eq!(read("IOPS=12MB", "12"), Ok(12.0));
        assert_eq!(read("a-5 2026-11", "11"), Ok(11.0));
        let text = "IOPS=12.3k, more";
        assert!(number_at(text, 5..9, 0..9).unwrap_err().contains("multiplies"));
        assert_eq!(number_at(text, 5..9, 0..10), Ok(12.3), "the pattern has the letter");
        for (text, part) in [
            ("change: -5 %", "5"),
            ("1_234", "234"),
            ("1\u{202f}234", "1"),
            ("tps = 123.45", "123"),
            ("tps = 123.45", "45"),
            ("n 1,234 x", "1"),
            ("2e10", "2"),
            ("1234", "23"),
        ] {
            assert!(read(text, part).unwrap_err().contains("part of a number"), "{text} {part}");
        }
        for (text, part) in [("tps = nan", "nan"), ("inf", "inf"), ("-", "-"), ("1.2.3", "1.2.3")] {
            assert!(read(text, part).unwrap_err().contains("no number"), "{text}");
        }
    }
}
