//! Headers that objects keep: which are taken from clients, and how those are written that are not ASCII.
//!
//! S3 keeps text. User metadata that are not ASCII come and go as encoded words (RFC 2047; "Working with object
//! metadata" in the S3 User Guide). `s3s` encodes them for clients, and this module for stores. Other headers that are
//! not ASCII are UTF-8, as S3 takes them.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{HeaderName, HeaderValue};
use underlay_sync::planted::{PlantedBug, is_planted};

use crate::errors::{GatewayError, GatewayResult};
use crate::model::ObjectHeaders;

/// S3's limit of user metadata: the bytes of names and values in UTF-8.
const MAX_USER_BYTES: usize = 2048;
/// S3 takes 8 KiB of headers with a request. The gateway's own additions to a request (who signed it, when, for which
/// host) have the rest.
const MAX_HEADER_BYTES: usize = 7 << 10;
/// The name that `Expires` has among the user metadata, for `object_store`, which does not know it. No client can give
/// metadata such a name.
pub(crate) const EXPIRES: &str = "%underlay-expires";
const USER_PREFIX: &str = "x-amz-meta-";
/// What a word of RFC 2047 begins and ends with, and how long it may be.
const WORD_BEGIN: &str = "=?";
const WORD_END: &str = "?=";
const UTF_8_BASE64: &str = "=?UTF-8?B?";
/// 45 bytes are 60 characters of base64: with what is around them no more than the 75 of RFC 2047.
const MAX_WORD_BYTES: usize = 45;

impl ObjectHeaders {
    /// The headers that aren't user metadata, with their names.
    pub(crate) fn plain(&self) -> [(&'static str, Option<&String>); 6] {
        [
            ("content-type", self.content_type.as_ref()),
            ("cache-control", self.cache_control.as_ref()),
            ("content-disposition", self.content_disposition.as_ref()),
            ("content-encoding", self.content_encoding.as_ref()),
            ("content-language", self.content_language.as_ref()),
            ("expires", self.expires.as_ref()),
        ]
    }

    /// Whether every store can keep them. Call this before accepting an object with them: nothing would ever store what
    /// no request can carry.
    ///
    /// # Errors
    /// When they are too long, or a name or value is none that HTTP has.
    pub(crate) fn check(&self) -> GatewayResult<()> {
        let mut all_bytes = 0;
        for (name, value) in self.plain() {
            let Some(value) = value else { continue };
            if HeaderValue::from_str(value).is_err() && !is_planted(PlantedBug::HeaderPanicsFlusher) {
                return Err(GatewayError::InvalidArgument(format!(
                    "the header {name} has a control character"
                )));
            }
            all_bytes += name.len() + value.len();
        }
        let mut user_bytes = 0;
        for (name, value) in &self.user {
            let is_wrong_name = !is_user_name(name) && !is_planted(PlantedBug::HeaderPanicsFlusher);
            if is_wrong_name || name == EXPIRES {
                return Err(GatewayError::InvalidArgument(format!(
                    "{USER_PREFIX}{} can't be the name of a header",
                    name.escape_debug()
                )));
            }
            let has_control = value.chars().any(|one| one.is_ascii_control() && one != '\t');
            if has_control && !is_planted(PlantedBug::HeaderPanicsFlusher) {
                return Err(GatewayError::InvalidArgument(format!(
                    "the value of {USER_PREFIX}{name} has a control character"
                )));
            }
            user_bytes += name.len() + value.len();
            all_bytes += USER_PREFIX.len() + name.len() + written(value).len();
        }
        if user_bytes > MAX_USER_BYTES {
            return Err(GatewayError::MetadataTooLarge);
        }
        if all_bytes > MAX_HEADER_BYTES && !is_planted(PlantedBug::RefusalRetriedForEver) {
            return Err(GatewayError::HeadersTooLarge);
        }
        Ok(())
    }
}

/// Whether HTTP has such a name for a header.
pub(crate) fn is_user_name(name: &str) -> bool {
    !name.is_empty() && HeaderName::from_bytes(format!("{USER_PREFIX}{name}").as_bytes()).is_ok()
}

/// A value of user metadata as it is written in a header: as encoded words where it is not plain ASCII, or would be
/// taken for such a word.
pub(crate) fn written(value: &str) -> Cow<'_, str> {
    let is_plain = value.bytes().all(|byte| (b' '..0x7f).contains(&byte))
        && value.trim() == value
        && !value.starts_with(WORD_BEGIN);
    if is_plain {
        return Cow::Borrowed(value);
    }
    let mut words = String::new();
    let mut rest = value;
    while !rest.is_empty() {
        let mut end = rest.len().min(MAX_WORD_BYTES);
        while !rest.is_char_boundary(end) {
            end -= 1;
        }
        if !words.is_empty() {
            words.push(' ');
        }
        words.push_str(UTF_8_BASE64);
        words.push_str(&STANDARD.encode(&rest[..end]));
        words.push_str(WORD_END);
        rest = &rest[end..];
    }
    Cow::Owned(words)
}

/// What a value of user metadata says. One that is not made of encoded words alone stays as it is.
pub(crate) fn read(value: &str) -> Cow<'_, str> {
    let mut bytes = Vec::new();
    let mut words = value.split_ascii_whitespace().peekable();
    if words.peek().is_none() {
        return Cow::Borrowed(value);
    }
    for word in words {
        let Some(mut decoded) = decoded_word(word) else { return Cow::Borrowed(value) };
        bytes.append(&mut decoded);
    }
    // Writers may cut a character in two, so the whole is looked at.
    String::from_utf8(bytes).map_or(Cow::Borrowed(value), Cow::Owned)
}

/// The UTF-8 of an encoded word.
fn decoded_word(word: &str) -> Option<Vec<u8>> {
    let inner = word.strip_prefix(WORD_BEGIN)?.strip_suffix(WORD_END)?;
    let mut parts = inner.splitn(3, '?');
    let (charset, encoding, text) = (parts.next()?, parts.next()?, parts.next()?);
    let bytes = match encoding {
        "B" | "b" => STANDARD.decode(text).ok()?,
        "Q" | "q" => unquoted(text)?,
        _ => return None,
    };
    // RFC 2231 lets a language follow.
    let charset = charset.split('*').next().unwrap_or(charset);
    if charset.eq_ignore_ascii_case("iso-8859-1") {
        return Some(bytes.iter().map(|byte| char::from(*byte)).collect::<String>().into_bytes());
    }
    let is_utf_8 = ["utf-8", "us-ascii"].iter().any(|name| charset.eq_ignore_ascii_case(name));
    is_utf_8.then_some(bytes)
}

fn unquoted(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'_' => bytes.push(b' '),
            b'=' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let (high, low) = (digit(rest.next())?, digit(rest.next())?);
                bytes.push(u8::try_from(high * 16 + low).ok()?);
            }
            byte => bytes.push(byte),
        }
    }
    Some(bytes)
}

/// For the fuzzer: any text as a header's value.
pub(crate) fn read_any(text: &str) {
    let read = read(text);
    assert_eq!(self::read(&written(&read)), read);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn user(name: &str, value: &str) -> ObjectHeaders {
        ObjectHeaders { user: vec![(name.to_owned(), value.to_owned())], ..ObjectHeaders::default() }
    }

    #[test]
    fn non_ascii_metadata_become_encoded_words() {
        for (value, expected) in [
            ("plain text", "plain text"),
            ("é", "=?UTF-8?B?w6k=?="),
            (" a", "=?UTF-8?B?IGE=?="),
            ("=?UTF-8?B?w6k=?=", "=?UTF-8?B?PT9VVEYtOD9CP3c2az0/PQ==?="),
            ("", ""),
        ] {
            assert_eq!(written(value), expected);
            assert_eq!(read(expected), value);
        }
        let long = "é".repeat(100);
        let words = written(&long);
        assert!(words.split(' ').count() > 1 && words.split(' ').all(|word| word.len() <= 75), "{words}");
        assert_eq!(read(&words), long);
    }

    #[test]
    fn encoded_words_of_others_are_read() {
        for (value, expected) in [
            ("=?utf-8?q?caf=C3=A9_au_lait?=", "café au lait"),
            ("=?ISO-8859-1?Q?caf=E9?=", "café"),
            ("=?UTF-8*en?B?w6k=?=", "é"),
            // Of a character that was cut in two.
            ("=?UTF-8?B?ww==?= =?UTF-8?B?qQ==?=", "é"),
        ] {
            assert_eq!(read(value), expected);
        }
        for other in ["=?x?=", "=?UTF-8?B?%?=", "=?UTF-8?B?/w==?=", "=?KOI8-R?B?w6k=?=", "a =?UTF-8?B?w6k=?="]
        {
            assert_eq!(read(other), other);
        }
    }

    #[test]
    fn headers_that_no_request_can_carry_are_refused() {
        assert_eq!(user("a", "b").check(), Ok(()));
        for (name, value) in
            [("a", "a\nb"), ("a", "a\0"), ("a", "\u{7f}"), ("a b", "c"), ("é", "c"), ("", "c")]
        {
            assert!(
                matches!(user(name, value).check(), Err(GatewayError::InvalidArgument(_))),
                "{name} {value}"
            );
        }
        let typed =
            |text: &str| ObjectHeaders { content_type: Some(text.to_owned()), ..ObjectHeaders::default() };
        assert!(typed("image/png\u{1}").check().is_err() && typed("a\r\nb: c").check().is_err());
        assert!(typed("text/plain; name=\"é\"").check().is_ok());
    }

    #[test]
    fn headers_are_as_long_as_a_store_takes_them() {
        assert_eq!(user("a", &"b".repeat(2047)).check(), Ok(()));
        assert_eq!(user("a", &"b".repeat(2048)).check(), Err(GatewayError::MetadataTooLarge));
        let disposed = |length| ObjectHeaders {
            content_disposition: Some("a".repeat(length)),
            ..user("a", &"b".repeat(2047))
        };
        assert_eq!(disposed(5000).check(), Ok(()));
        assert_eq!(disposed(5100).check(), Err(GatewayError::HeadersTooLarge));
    }

    proptest! {
        #[test]
        fn written_headers_are_read_back(value in "\\PC{0,80}", words in "(=\\?|\\?=|UTF-8|\\?[BQbq]\\?|[a-zA-Z0-9/+=_]{0,8}| ){0,12}") {
            for text in [value, words] {
                let written = written(&text);
                prop_assert_eq!(read(&written), &*text);
                read_any(&text);
            }
        }

        #[test]
        fn accepted_headers_fit_a_request(name in "\\PC{0,8}", value in "[\\x00-\\x7fé]{0,20}") {
            if user(&name, &value).check().is_ok() {
                let full_name = format!("{USER_PREFIX}{name}");
                prop_assert!(HeaderName::from_bytes(full_name.as_bytes()).is_ok());
                let value = written(&value);
                prop_assert!(HeaderValue::from_str(&value).is_ok());
            }
        }
    }
}
