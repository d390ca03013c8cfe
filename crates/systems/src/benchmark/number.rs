//! Numbers in a text: whole ones only.

use std::ops::Range;

/// The number at `place` in `text`.
///
/// # Errors
/// When there is something else, or the text's number is longer than the place: a figure of half a number would look sound.
pub(super) fn number_at(text: &str, place: Range<usize>) -> Result<f64, String> {
    let found = &text[place.clone()];
    let seen = around(text, &place);
    let value = found.trim().parse::<f64>().ok().filter(|value| value.is_finite());
    let Some(value) = value else {
        return Err(format!("`{}` is no number, in: {seen}", found.escape_debug()));
    };
    let (before, after) = (&text[..place.start], &text[place.end..]);
    if found.starts_with(|c: char| c.is_ascii_digit() || c == '.') && continues_backwards(before)
        || continues(after)
    {
        return Err(format!("`{found}` is only a part of a number, in: {seen}"));
    }
    Ok(value)
}

/// Whether a number that ends here goes on in what follows.
fn continues(after: &str) -> bool {
    let mut letters = after.chars();
    match letters.next() {
        Some(c) if c.is_ascii_digit() => true,
        Some('.' | ',') => letters.next().is_some_and(|c| c.is_ascii_digit()),
        Some('e' | 'E') => {
            let next = letters.next();
            next.is_some_and(|c| c.is_ascii_digit())
                || matches!(next, Some('+' | '-')) && letters.next().is_some_and(|c| c.is_ascii_digit())
        }
        _ => false,
    }
}

/// Whether a number that begins here has begun before.
fn continues_backwards(before: &str) -> bool {
    let mut letters = before.chars().rev();
    match letters.next() {
        Some(c) if c.is_ascii_digit() => true,
        Some('.' | ',') => letters.next().is_some_and(|c| c.is_ascii_digit()),
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
            number_at(text, start..start + part.len())
        };
        assert_eq!(read("tps = 123.45 (all)", "123.45"), Ok(123.45));
        assert_eq!(read("a 1e3, b", "1e3"), Ok(1000.0));
        assert_eq!(read("rose by -5 %", "-5"), Ok(-5.0));
        assert_eq!(read("it took 12.", "12"), Ok(12.0));
        assert_eq!(read("1,2,3", "2"), Err("`2` is only a part of a number, in: 1,2,3".to_owned()));
        for (text, part) in [
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
