//! Untrusted files of a run: limits on what they may hold, and nothing in them that a terminal obeys.

/// Of the head of a run. A plan of ten thousand cells has five.
pub(crate) const MAX_HEAD_BYTES: u64 = 64 << 20;
/// Of a record. An hour of a hundred devices, sampled each second, is a quarter of it.
pub(crate) const MAX_RECORD_BYTES: u64 = 256 << 20;
/// Of all records of a run.
pub(crate) const MAX_RECORDS_BYTES: u64 = 2 << 30;
/// Values in a record; each takes at most some ten times as much memory as text. A sample a second of a hundred devices
/// for an hour has a third of them.
const MAX_VALUES: usize = 16 << 20;
/// Objects and lists in a record. Read as what it may be, an object takes some 600 bytes, from as little as 6 in the
/// file.
const MAX_CONTAINERS: usize = 1 << 20;
/// Distributions in a record. Each may take a megabyte when it is read, from as little as 60 bytes in the file.
const MAX_HISTOGRAMS: usize = 1024;
/// The memory limit of the distributions of all records of a run. Ten thousand cells of twenty have a tenth of it.
pub(crate) const MAX_DISTRIBUTIONS_BYTES: u64 = 4 << 30;
/// Larger numbers measure nothing, and sums of their squares are infinite.
const MAX_NUMBER: f64 = 1e30;
/// The beginning of every distribution's encoding.
const HISTOGRAM: &[u8] = b"HIST";

/// The text of a JSON file with its control characters replaced, but for tabs and ends of lines.
///
/// # Errors
/// When it would take more memory than any record has use for.
pub(crate) fn harmless(text: String) -> Result<String, String> {
    let mut bytes = text.into_bytes();
    let (mut index, mut in_string, mut histograms, mut values, mut containers) = (0, false, 0, 0, 0);
    while index < bytes.len() {
        match (bytes[index], in_string) {
            (b'"', _) => {
                in_string = !in_string;
                histograms += usize::from(in_string && may_be_histogram(&bytes[index + 1..]));
            }
            (b'\\', true) => {
                index += 1;
                unescape_control(&mut bytes[index - 1..]);
            }
            (b',', false) => values += 1,
            (b'{' | b'[', false) => containers += 1,
            (b'-' | b'0'..=b'9', false) => index = end_of_number(&bytes, index)? - 1,
            (0x7f, _) => bytes[index] = b'?',
            // U+0080 to U+009F.
            (0xc2, _) if bytes.get(index + 1).is_some_and(|next| (0x80..=0x9f).contains(next)) => {
                bytes[index..index + 2].fill(b'?');
            }
            _ => {}
        }
        index += 1;
    }
    if values > MAX_VALUES {
        return Err(format!("it holds {values} values, and no record has more than {MAX_VALUES}"));
    }
    if containers > MAX_CONTAINERS {
        return Err(format!(
            "it holds {containers} objects and lists, and no record has more than {MAX_CONTAINERS}"
        ));
    }
    if histograms > MAX_HISTOGRAMS {
        return Err(format!(
            "it holds {histograms} distributions, and no record has more than {MAX_HISTOGRAMS}"
        ));
    }
    // Only whole characters were replaced, by ASCII.
    String::from_utf8(bytes).map_err(|error| error.to_string())
}

/// Where the number ends that begins here.
fn end_of_number(bytes: &[u8], begin: usize) -> Result<usize, String> {
    let is_part = |byte: &&u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
    let end = begin + bytes[begin..].iter().take_while(is_part).count();
    let text = String::from_utf8_lossy(&bytes[begin..end]);
    match text.parse::<f64>() {
        Ok(number) if number.abs() > MAX_NUMBER => {
            let mut shown: String = text.chars().take(40).collect();
            if text.chars().nth(40).is_some() {
                shown.push('…');
            }
            Err(format!("it holds the number {shown}, and no record has one beyond {MAX_NUMBER:e}"))
        }
        // The parser reports anything that is no number.
        _ => Ok(end),
    }
}

/// Replaces what begins with this backslash if it stands for a control character.
fn unescape_control(escape: &mut [u8]) {
    match escape.get(1) {
        Some(b'b' | b'f' | b'r') => escape[..2].fill(b' '),
        Some(b'u') if escape.len() >= 6 && is_control(&escape[2..6]) => {
            escape[..6].copy_from_slice(b"\\ufffd");
        }
        _ => {}
    }
}

/// U+0000 to U+001F but tab and end of line, and U+007F to U+009F.
fn is_control(digits: &[u8]) -> bool {
    let code = std::str::from_utf8(digits).ok().and_then(|digits| u32::from_str_radix(digits, 16).ok());
    let character = code.and_then(char::from_u32);
    character.is_some_and(|character| character.is_control() && !matches!(character, '\n' | '\t'))
}

fn may_be_histogram(string: &[u8]) -> bool {
    // An escape may stand for any letter of it.
    let differs = string.iter().zip(HISTOGRAM).find(|(found, expected)| found != expected);
    string.len() >= HISTOGRAM.len() && differs.is_none_or(|(found, _)| *found == b'\\')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_control_characters_are_replaced() {
        let text =
            |json: &str| -> String { serde_json::from_str(&harmless(json.to_owned()).unwrap()).unwrap() };
        assert_eq!(text(r#""a\u001b[2Jb\u009Bc\u007f""#), "a\u{fffd}[2Jb\u{fffd}c\u{fffd}");
        assert_eq!(text(r#""one\r\b\ftwo""#), "one      two");
        assert_eq!(text("\"\u{7f}\u{9b}ä\u{2028}\""), "???ä\u{2028}");
        for unchanged in [r#""a\\u001b \\\" \t\n\u00e4 \ud83d\ude00""#, r#""\\""#] {
            assert_eq!(harmless(unchanged.to_owned()).unwrap(), unchanged);
        }
        for broken in ["\"\\", "\"\\u00", "\"\\u00é\"", "\\u001b"] {
            assert!(harmless(broken.to_owned()).is_ok());
        }
    }

    #[test]
    fn more_values_than_a_record_has_are_refused() {
        let many = |count: usize| harmless(format!("[{}0]", "0,".repeat(count)));
        assert!(many(MAX_VALUES).is_ok());
        assert!(many(MAX_VALUES + 1).unwrap_err().contains("values"));
    }

    #[test]
    fn more_objects_than_a_record_has_are_refused() {
        // Nesting needs no commas, which is what values are counted by.
        let nested = |count: usize| harmless("{\"a\":".repeat(count));
        assert!(nested(MAX_CONTAINERS).is_ok());
        assert!(nested(MAX_CONTAINERS + 1).unwrap_err().contains("objects"));
    }

    #[test]
    fn absurd_numbers_are_refused() {
        let checked = |json: &str| harmless(json.to_owned());
        for unchanged in ["[1, -2.5e-300, 1e30, 18446744073709551615, -0]", r#""1e31""#, "[1-2]", "-", "[1e]"]
        {
            assert_eq!(checked(unchanged).unwrap(), unchanged);
        }
        for absurd in ["[1e31]", "{\"a\":-1E+300}", "1e999", &"9".repeat(40)] {
            assert!(checked(absurd).unwrap_err().contains("no record has one beyond 1e30"), "{absurd}");
        }
        assert!(checked(&"9".repeat(41)).unwrap_err().contains("9…, "));
        assert!(!checked(&"9".repeat(40)).unwrap_err().contains('…'));
    }

    #[test]
    fn more_distributions_than_a_record_has_are_refused() {
        let many = |one: &str, count: usize| harmless(format!("[{}]", vec![one; count].join(",")));
        assert!(many("\"HISTFAAA\"", MAX_HISTOGRAMS).is_ok());
        for one in ["\"HISTFAAA\"", r#""\u0048ISTFAAA""#, r#""HI\u0053TEAAA""#] {
            assert!(many(one, MAX_HISTOGRAMS + 1).unwrap_err().contains("no record has more"), "{one}");
        }
        assert!(many("\"HDD\"", MAX_HISTOGRAMS + 1).is_ok());
    }
}
