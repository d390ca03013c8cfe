//! Percent-encoding as S3 wants it. Escapes are written with capitals and read with either case.

use std::borrow::Cow;
use std::string::FromUtf8Error;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, utf8_percent_encode};

/// What is escaped in a query: everything but letters, digits and `-_.~`.
const QUERY: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// A key in a path keeps its slashes.
const PATH: AsciiSet = QUERY.remove(b'/');
/// As S3's listings have it.
const LISTING: AsciiSet = PATH.remove(b'*');

/// A name or a value as part of a query.
pub(crate) fn escape_in_query(text: &str) -> String {
    utf8_percent_encode(text, &QUERY).to_string()
}

/// A key as part of a path.
pub(crate) fn escape_in_path(key: &[u8]) -> String {
    percent_encoding::percent_encode(key, &PATH).to_string()
}

/// A name in a listing with `encoding-type=url`.
pub(crate) fn escape_in_listing(name: &str) -> String {
    utf8_percent_encode(name, &LISTING).to_string()
}

/// The bytes that a text stands for. What only looks like an escape stays as it is.
pub(crate) fn decode(text: &str) -> Vec<u8> {
    Cow::<[u8]>::from(percent_decode(text.as_bytes())).into_owned()
}

/// The text of a form: with `+` for a space.
///
/// # Errors
/// When it is not UTF-8.
pub(crate) fn decode_form(text: &str) -> Result<String, FromUtf8Error> {
    String::from_utf8(decode(&text.replace('+', " ")))
}

/// Whether two hexadecimal digits stand behind each percent sign.
pub(crate) fn has_whole_escapes(text: &[u8]) -> bool {
    text.iter().enumerate().all(|(place, byte)| {
        let digits = text.get(place + 1..place + 3);
        *byte != b'%' || digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_differ_in_slash_and_asterisk() {
        let text = "a/b c*é-_.~+%";
        assert_eq!(escape_in_query(text), "a%2Fb%20c%2A%C3%A9-_.~%2B%25");
        assert_eq!(escape_in_path(text.as_bytes()), "a/b%20c%2A%C3%A9-_.~%2B%25");
        assert_eq!(escape_in_listing(text), "a/b%20c*%C3%A9-_.~%2B%25");
    }

    #[test]
    fn escapes_of_either_case_are_decoded() {
        assert_eq!(decode("a%2fb%2F%c3%A9+%"), "a/b/é+%".as_bytes());
        for text in ["%", "%4", "%zz", "%+f", "%4é"] {
            assert_eq!(decode(text), text.as_bytes(), "{text}");
            assert!(!has_whole_escapes(text.as_bytes()), "{text}");
        }
        assert!(has_whole_escapes("a+b%2f%C3%A9é".as_bytes()));
    }

    #[test]
    fn plus_is_a_space_in_a_form_alone() {
        assert_eq!(decode_form("a+b%2B").as_deref(), Ok("a b+"));
        assert_eq!(decode("a+b%2B"), b"a+b+");
        assert!(decode_form("%ff").is_err());
    }
}
