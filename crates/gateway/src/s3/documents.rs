//! Rewrites XML documents of requests in the one form that `s3s` reads: without CDATA, which it would drop, and without
//! prefixes of names, which it would take for a part of them.

use std::borrow::Cow;

use crate::form::find;

const CDATA: &[u8] = b"<![CDATA[";
const MARK: &[u8] = b"\xef\xbb\xbf";
/// `&#x10FFFF;`, and some zeros.
const MAX_REFERENCE_BYTES: usize = 16;

/// The same document in other words. The parser reports documents that are no XML.
pub(super) fn plain(document: &[u8]) -> Cow<'_, [u8]> {
    let document = document.strip_prefix(MARK).unwrap_or(document);
    match is_plain(document) {
        true => Cow::Borrowed(document),
        false => rewritten(document).map_or(Cow::Borrowed(document), Cow::Owned),
    }
}

/// Elements whose values are numbers, of those in documents that an operation here reads.
const NUMBERS: [&[u8]; 2] = [b"PartNumber", b"Size"];
const TRUTH: &[u8] = b"Quiet";
const TIME: &[u8] = b"LastModifiedTime";

/// A [plain] document without the white space around values whose types don't keep it: XML Schema, part 2, section
/// 4.3.6. `s3s` would take it for a part of them.
///
/// `None` if the document is malformed in a way that `s3s` passes over: by what stands outside of its element, by a
/// document type, or by a number that only begins as one.
pub(super) fn collapse(document: &[u8]) -> Option<Cow<'_, [u8]>> {
    let mut text: Option<Vec<u8>> = None;
    // What has been written to `text`, if there is one.
    let (mut written, mut place, mut depth) = (0, 0, 0_usize);
    let (mut name, mut is_ended) = (&b""[..], false);
    loop {
        let begin = document[place..].iter().position(|byte| *byte == b'<');
        let value = &document[place..begin.map_or(document.len(), |begin| place + begin)];
        let is_space = value.trim_ascii().is_empty();
        if depth == 0 && !is_space {
            return None;
        }
        let Some(begin) = begin else { break };
        let tag = place + begin;
        let is_end = document[tag..].starts_with(b"</");
        // Of an element without elements.
        let collapsed = if is_end { value_of(name, value)? } else { value };
        if collapsed != value {
            let text = text.get_or_insert_with(|| Vec::with_capacity(document.len() + 4));
            text.extend_from_slice(&document[written..place]);
            text.extend_from_slice(collapsed);
            written = tag;
        }
        place = tag
            + match document[tag..].starts_with(b"<?") {
                true => find(&document[tag..], b"?>")? + 2,
                false => end_of_tag(&document[tag..])?,
            };
        name = b"";
        match document[tag + 1] {
            b'!' => return None,
            b'?' => {}
            b'/' => depth = depth.checked_sub(1)?,
            _ if is_ended => return None,
            _ if document[..place].ends_with(b"/>") => {}
            _ => {
                depth += 1;
                name = name_of(&document[tag + 1..place]);
            }
        }
        is_ended = is_ended || (depth == 0 && document[tag + 1] != b'?');
    }
    Some(match text {
        None => Cow::Borrowed(document),
        Some(mut text) => {
            text.extend_from_slice(&document[written..]);
            Cow::Owned(text)
        }
    })
}

/// The value of an element of this name as `s3s` reads it. `None` if its type has no such value.
fn value_of<'a>(name: &[u8], value: &'a [u8]) -> Option<&'a [u8]> {
    let trimmed = value.trim_ascii();
    match name {
        // References are left to the parser.
        _ if value.contains(&b'&') => Some(value),
        _ if NUMBERS.contains(&name) => {
            let digits = trimmed.strip_prefix(b"-").or_else(|| trimmed.strip_prefix(b"+")).unwrap_or(trimmed);
            (!digits.is_empty() && digits.iter().all(u8::is_ascii_digit)).then_some(trimmed)
        }
        TRUTH => Some(match trimmed {
            b"1" => b"true",
            b"0" => b"false",
            other => other,
        }),
        TIME => Some(trimmed),
        _ => Some(value),
    }
}

/// Names of the elements of a [plain] document, in order.
pub(super) fn names(document: &[u8]) -> impl Iterator<Item = &[u8]> {
    let tags = document.split(|byte| *byte == b'<').skip(1);
    tags.filter(|tag| !tag.starts_with(b"/") && !tag.starts_with(b"?")).map(name_of)
}

/// Of a tag, behind its `<`.
fn name_of(tag: &[u8]) -> &[u8] {
    let is_end = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b'/' | b'>');
    tag.iter().position(is_end).map_or(tag, |end| &tag[..end])
}

/// Whether nothing has to be rewritten, as in most documents.
fn is_plain(document: &[u8]) -> bool {
    let mut rest = document;
    while let Some(begin) = rest.iter().position(|byte| *byte == b'<') {
        rest = &rest[begin + 1..];
        let is_end = |byte: &u8| byte.is_ascii_whitespace() || *byte == b'>';
        let name = rest.iter().position(is_end).map_or(rest, |end| &rest[..end]);
        if rest.starts_with(b"!") || name.contains(&b':') {
            return false;
        }
    }
    find(document, b"&#").is_none()
}

fn rewritten(document: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::with_capacity(document.len());
    let mut rest = document;
    while let Some(begin) = rest.iter().position(|byte| *byte == b'<') {
        resolve(&rest[..begin], &mut text);
        rest = &rest[begin..];
        if let Some(data) = rest.strip_prefix(CDATA) {
            let end = find(data, b"]]>")?;
            escape(&data[..end], &mut text);
            rest = &data[end + 3..];
        } else if rest.starts_with(b"<!--") {
            rest = &rest[find(rest, b"-->")? + 3..];
        } else if rest.starts_with(b"<?") {
            let end = find(rest, b"?>")? + 2;
            text.extend_from_slice(&rest[..end]);
            rest = &rest[end..];
        } else if rest.starts_with(b"<!") {
            // A document type may define anything.
            return None;
        } else {
            let end = end_of_tag(rest)?;
            tag(&rest[..end], &mut text);
            rest = &rest[end..];
        }
    }
    resolve(rest, &mut text);
    Some(text)
}

/// Writes numeric character references as plain characters: `s3s` does not accept all planes, nor control characters,
/// which S3's keys may have.
fn resolve(mut rest: &[u8], text: &mut Vec<u8>) {
    while let Some(begin) = find(rest, b"&#") {
        text.extend_from_slice(&rest[..begin]);
        rest = &rest[begin..];
        let end = rest.iter().take(MAX_REFERENCE_BYTES).position(|byte| *byte == b';');
        let character = end.and_then(|end| referred(&rest[2..end]));
        match (character, end) {
            (Some(character), Some(end)) => {
                text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                rest = &rest[end + 1..];
            }
            _ => {
                text.extend_from_slice(&rest[..2]);
                rest = &rest[2..];
            }
        }
    }
    text.extend_from_slice(rest);
}

fn referred(number: &[u8]) -> Option<char> {
    let number = std::str::from_utf8(number).ok().filter(|number| !number.contains('+'))?;
    let code = match number.strip_prefix('x') {
        Some(digits) => u32::from_str_radix(digits, 16).ok()?,
        None => number.parse().ok()?,
    };
    // A character with a meaning in XML stays a number.
    matches!(code, 0x1..=0x8 | 0xb | 0xc | 0xe..=0x1f | 0xfffe | 0xffff | 0x1_0000..=0xf_ffff)
        .then(|| char::from_u32(code))?
}

/// Behind its `>`, which in quotes is none.
fn end_of_tag(bytes: &[u8]) -> Option<usize> {
    let mut quote = None;
    for (place, byte) in bytes.iter().enumerate() {
        match (quote, byte) {
            (None, b'>') => return Some(place + 1),
            (None, b'"' | b'\'') => quote = Some(*byte),
            (Some(open), byte) if open == *byte => quote = None,
            _ => {}
        }
    }
    None
}

/// `<a:ObjectName b="c">` as `<ObjectName b="c">`.
fn tag(tag: &[u8], text: &mut Vec<u8>) {
    let begin = if tag.starts_with(b"</") { 2 } else { 1 };
    let name = name_of(&tag[begin..]);
    let prefix = name.iter().position(|byte| *byte == b':').map_or(0, |colon| colon + 1);
    text.extend_from_slice(&tag[..begin]);
    text.extend_from_slice(&tag[begin + prefix..]);
}

fn escape(data: &[u8], text: &mut Vec<u8>) {
    for byte in data {
        match byte {
            b'&' => text.extend_from_slice(b"&amp;"),
            b'<' => text.extend_from_slice(b"&lt;"),
            b'>' => text.extend_from_slice(b"&gt;"),
            b'\r' => text.extend_from_slice(b"&#13;"),
            other => text.push(*other),
        }
    }
}

/// Makes an answer XML that parses. XML 1.0 has no control characters but three, not even escaped: they become U+FFFD.
/// One of the three, a carriage return, comes back as a line feed unless it is escaped.
pub(super) fn well_formed(answer: &[u8]) -> Option<Vec<u8>> {
    let is_odd = |(place, byte): (usize, &u8)| match byte {
        b'\t' | b'\n' => false,
        0..b' ' => true,
        // U+FFFE and U+FFFF are none either.
        0xef => matches!(answer.get(place + 1..place + 3), Some([0xbf, 0xbe | 0xbf])),
        _ => false,
    };
    if !answer.iter().enumerate().any(is_odd) {
        return None;
    }
    let mut text = String::with_capacity(answer.len() + 16);
    for c in String::from_utf8_lossy(answer).chars() {
        match c {
            '\r' => text.push_str("&#13;"),
            '\t' | '\n' => text.push(c),
            '\u{0}'..'\u{20}' | '\u{fffe}' | '\u{ffff}' => text.push('\u{fffd}'),
            other => text.push(other),
        }
    }
    Some(text.into_bytes())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn cdata_and_prefixes_are_written_as_s3s_reads_them() {
        let read = |text: &str| String::from_utf8(plain(text.as_bytes()).into_owned()).unwrap();
        for (text, expected) in [
            ("<a>b</a>", "<a>b</a>"),
            ("<Key><![CDATA[cd&ata<>]]></Key>", "<Key>cd&amp;ata&lt;&gt;</Key>"),
            ("<Key>a<![CDATA[b]]>c<![CDATA[]]></Key>", "<Key>abc</Key>"),
            ("<s3:Key xmlns:s3=\"urn:x>\">a:b</s3:Key>", "<Key xmlns:s3=\"urn:x>\">a:b</Key>"),
            ("<a:b/><c:d />", "<b/><d />"),
            ("\u{feff}<?xml version=\"1.0\"?><a/>", "<?xml version=\"1.0\"?><a/>"),
            ("<a><!-- <b:c> --></a>", "<a></a>"),
            ("<Key>&#x2;&#128512;&#38;&#13;&#;&#x;</Key>", "<Key>\u{2}\u{1f600}&#38;&#13;&#;&#x;</Key>"),
            // Not ours to read.
            ("<!DOCTYPE a><s3:a/>", "<!DOCTYPE a><s3:a/>"),
            ("<s3:a", "<s3:a"),
            ("<![CDATA[a", "<![CDATA[a"),
            ("no XML", "no XML"),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
    }

    #[test]
    fn white_space_around_numbers_and_truths_is_left_out() {
        let read = |text: &str| String::from_utf8(collapse(text.as_bytes()).unwrap().into_owned()).unwrap();
        for (text, expected) in [
            ("<a> b </a>", "<a> b </a>"),
            ("<Key> 1 </Key>", "<Key> 1 </Key>"),
            ("<d>\n<Quiet> true\n</Quiet></d>", "<d>\n<Quiet>true</Quiet></d>"),
            (
                "<d><Quiet>1</Quiet><Quiet x='>'> 0</Quiet></d>",
                "<d><Quiet>true</Quiet><Quiet x='>'>false</Quiet></d>",
            ),
            (
                "<p><PartNumber>\t7 </PartNumber><ETag> e </ETag></p>",
                "<p><PartNumber>7</PartNumber><ETag> e </ETag></p>",
            ),
            ("<Size>-1</Size>", "<Size>-1</Size>"),
            ("<LastModifiedTime> t </LastModifiedTime>", "<LastModifiedTime>t</LastModifiedTime>"),
            ("<?xml version=\"1.0\"?>\n<a/>\n", "<?xml version=\"1.0\"?>\n<a/>\n"),
            ("<a><b/></a><?of > somebody?> ", "<a><b/></a><?of > somebody?> "),
            ("<Size>&#49;</Size>", "<Size>&#49;</Size>"),
            ("", ""),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
    }

    #[test]
    fn document_with_anything_outside_of_its_element_is_malformed() {
        for text in [
            "<a/>b",
            "<a></a> b",
            "b<a/>",
            "<a/><b/>",
            "<a></a></a>",
            "<a",
            "no XML",
            "<!DOCTYPE a><a/>",
            "<PartNumber>1x</PartNumber>",
            "<PartNumber> </PartNumber>",
            "<Size>1.5</Size>",
            "<Size>--1</Size>",
        ] {
            assert_eq!(collapse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn names_of_elements_come_in_order() {
        let found: Vec<&[u8]> = names(b"<?xml?>\n<a b=\"c\"><d/><e>f</e></a>").collect();
        assert_eq!(found, [b"a", b"d", b"e"]);
    }

    #[test]
    fn answers_have_no_characters_that_xml_does_not_have() {
        let written = |text: &str| well_formed(text.as_bytes()).map(|text| String::from_utf8(text).unwrap());
        assert_eq!(written("<Key>a\tb\nc\u{7f}é</Key>"), None);
        assert_eq!(written("<Key>a\u{10}b\rc\u{ffff}</Key>").unwrap(), "<Key>a\u{fffd}b&#13;c\u{fffd}</Key>");
    }

    proptest! {
        #[test]
        fn plain_document_is_unchanged(bytes in prop::collection::vec(any::<u8>(), 0..60), text in "(<|>|/|!|--|\\[CDATA\\[|\\]\\]>|[a:\"' &?]){0,20}") {
            let _ = plain(&bytes);
            let once = plain(text.as_bytes()).into_owned();
            prop_assert!(once.len() <= 5 * text.len() + 5);
            let _ = well_formed(&bytes);
            for document in [bytes.as_slice(), text.as_bytes()] {
                let collapsed = collapse(document);
                prop_assert!(collapsed.is_none_or(|collapsed| collapsed.len() <= document.len() + 4 * document.len()));
                let _ = names(document).count();
            }
        }
    }
}
