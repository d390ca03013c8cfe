//! From keys to paths of a store and back. S3 takes any text as a key; `object_store` and directories know paths: no
//! empty segment, no `.` no `..` and no control character. Those segments get a name that begins with `%underlay-`;
//! everything else stays as it is, so others find objects under their own names. In an S3 store they find the one
//! behind a slash at the end as well: see [`wire`](super::wire).

use std::borrow::Cow;

use object_store::path::Path;

use super::BackendKind;
use crate::errors::{GatewayError, GatewayResult};

const MARK: &str = "%underlay-";
pub(super) const EMPTY: &str = "%underlay-empty";
/// The mark in a URL.
pub(super) const MARK_ENCODED: &str = "%25underlay-";
/// The same of the word.
pub(super) const EMPTY_ENCODED: &str = "%25underlay-empty";
/// Before a segment that no key leads to.
pub(super) const NO_KEY: &str = "%underlay-no-key-";
const DOT: &str = "%underlay-dot";
const DOTS: &str = "%underlay-dots";
/// Before a segment that begins with the mark itself.
const LITERAL: &str = "%underlay-literal-";
/// Before a segment that ends in `#` and digits, which `object_store` takes for an unfinished file of its own.
const HASH: &str = "%underlay-hash-";
/// Before a segment with a control character, which no path of `object_store` has, or with a `#` in a directory:
/// `object_store` first writes a file `d` under the name `d#1`, which must belong to no object.
const ESCAPED: &str = "%underlay-escaped-";

/// Where a store says which gateways it belongs to: no key has this path.
pub(crate) const OWNERS: &str = "%underlay-cluster";

/// S3's own limit.
pub(crate) const MAX_KEY_BYTES: usize = 1024;
/// Linux's file systems take 255 bytes as a name, and `object_store` writes it with `#` and a number first.
const MAX_NAME_BYTES: usize = 250;

/// Why a key can't be stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("{0}")]
    TooLong(String),
    #[error("{0}")]
    Unusable(String),
}

fn segment_of(part: &str, kind: BackendKind) -> String {
    match part {
        other if other.contains(|c: char| c.is_ascii_control()) => escaped(other),
        other if kind == BackendKind::Directory && other.contains('#') => escaped(other),
        "" => EMPTY.to_owned(),
        "." => DOT.to_owned(),
        ".." => DOTS.to_owned(),
        other if other.starts_with(MARK) => format!("{LITERAL}{other}"),
        other => match other.split_once('#') {
            Some((_, digits)) if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                // With a letter at its end it no longer looks like one.
                format!("{HASH}{other}x")
            }
            _ => other.to_owned(),
        },
    }
}

fn escaped(part: &str) -> String {
    let mut name = ESCAPED.to_owned();
    for c in part.chars() {
        match c {
            // All of them are ASCII.
            c if c.is_ascii_control() || matches!(c, '%' | '#') => {
                name.push_str(percent_encoding::percent_encode_byte(c as u8));
            }
            c => name.push(c),
        }
    }
    name
}

/// The name that [`escaped`] got, from the text behind its mark. Other escapes than it writes stay as they are.
fn unescaped(name: &str) -> String {
    let mut part = String::with_capacity(name.len());
    let mut rest = name;
    while let Some((before, tail)) = rest.split_once('%') {
        part.push_str(before);
        let mut byte = [0];
        let digits = tail.as_bytes().get(..2);
        let is_read = digits.is_some_and(|digits| base16ct::mixed::decode(digits, &mut byte).is_ok());
        let decoded = is_read.then(|| char::from(byte[0]));
        match decoded.filter(|c| c.is_ascii_control() || matches!(c, '%' | '#')) {
            Some(c) => {
                part.push(c);
                rest = &tail[2..];
            }
            None => {
                part.push('%');
                rest = tail;
            }
        }
    }
    part.push_str(rest);
    part
}

/// Where a listing of a folder goes on after the key with this end: a path that no object need have. Names that stand
/// for others come in another order, so the rest of a folder goes on at such a key's place among the others. `None` is
/// the beginning.
pub(super) fn offset_of(folder: Option<&Path>, rest: &str) -> Option<Path> {
    let mut above = folder.cloned();
    let mut parts = rest.split('/').peekable();
    while let Some(part) = parts.next() {
        let is_marker = part.is_empty() && parts.peek().is_none();
        let segment = segment_of(part, BackendKind::S3);
        if segment != part && !is_marker {
            return offset_before(above.as_ref(), part).or(above);
        }
        let whole = above.as_ref().map_or_else(|| segment.clone(), |above| format!("{above}/{segment}"));
        match Path::parse(whole) {
            Ok(path) => above = Some(path),
            Err(_) => return above,
        }
    }
    above
}

/// The folder in which all keys with this prefix are, with a slash at its end; empty where that is everything.
pub(crate) fn folder_of(prefix: &str) -> &str {
    match prefix.rfind('/') {
        // Before the first of "/a" there is no folder.
        Some(0) | None => "",
        // Of "a/b/c" and of "a/b/", everything in "a/b".
        Some(end) => &prefix[..=end],
    }
}

/// The largest character: few names have it.
const LAST: char = '\u{10ffff}';

/// A path soon behind which a listing of a folder comes to the first own name that begins so; `None` where that is the
/// folder's first, or no path is there.
pub(super) fn offset_before(folder: Option<&Path>, begin: &str) -> Option<Path> {
    let last = begin.chars().next_back()?;
    let rest = &begin[..begin.len() - last.len_utf8()];
    let former = (char::MIN..last).next_back().filter(|former| !former.is_ascii_control() && *former != '/');
    // A former name that no path can have is left out: then the listing has some more before it.
    let before = former.map_or_else(|| rest.to_owned(), |former| format!("{rest}{former}{LAST}"));
    let before = folder.map_or_else(|| before.clone(), |folder| format!("{folder}/{before}"));
    // Behind the mark itself only the names that stand for others are listed: see `offset_of_escaped`.
    let is_mark = before.rsplit('/').next() == Some(MARK);
    Path::parse(before).ok().filter(|before| *before != Path::ROOT && !is_mark)
}

/// A path right behind which a folder has the names that stand for others.
pub(super) fn offset_of_escaped(folder: Option<&Path>) -> GatewayResult<Path> {
    let text = folder.map_or_else(|| MARK.to_owned(), |folder| format!("{folder}/{MARK}"));
    Path::parse(text).map_err(|error| GatewayError::InvalidArgument(error.to_string()))
}

/// A path behind nearly all that a folder has in the folder of this segment: nothing that is not in it is before that
/// and behind its first. `None` where no path is there.
pub(super) fn offset_behind(folder: Option<&Path>, segment: &str) -> Option<Path> {
    let segment = segment_of(segment, BackendKind::S3);
    let text = folder.map_or_else(|| segment.clone(), |folder| format!("{folder}/{segment}"));
    Path::parse(format!("{text}/{LAST}")).ok()
}

/// Whether a name, and all that begin with it, have the names that stand for others among them.
pub(crate) fn holds_escaped(name: &str) -> bool {
    let last = &name[folder_of(name).len()..];
    !last.is_empty() && MARK.starts_with(last)
}

/// Whether a folder has this below it behind the names that stand for others.
pub(crate) fn is_behind_escaped(rest: &str) -> bool {
    rest > MARK
}

/// The path at which the store has the object of this key.
///
/// # Errors
/// When the key is empty or too long, or has a character that can't be part of a name.
pub fn path_of(key: &str, kind: BackendKind) -> Result<Path, NameError> {
    if key.is_empty() {
        return Err(NameError::Unusable("a key can't be empty".to_owned()));
    }
    if key.len() > MAX_KEY_BYTES {
        return Err(NameError::TooLong(format!(
            "a key has at most {MAX_KEY_BYTES} bytes, and this one {}",
            key.len()
        )));
    }
    if key.contains('\0') {
        return Err(NameError::Unusable("a key can't have a zero byte".to_owned()));
    }
    let segments: Vec<String> = key.split('/').map(|part| segment_of(part, kind)).collect();
    if kind == BackendKind::Directory
        && let Some(long) = segments.iter().find(|segment| segment.len() > MAX_NAME_BYTES)
    {
        return Err(NameError::TooLong(format!(
            "the store behind is a directory, in which a name has at most {MAX_NAME_BYTES} bytes, and `{}...` has {}",
            long.chars().take(20).collect::<String>().escape_debug(),
            long.len()
        )));
    }
    Path::parse(segments.join("/")).map_err(|error| NameError::Unusable(error.to_string()))
}

/// Whether an S3 store lists this key among others as its order has it: it has its own name there.
pub(crate) fn has_own_name(key: &str) -> bool {
    let named = key.strip_suffix('/').unwrap_or(key);
    named.split('/').all(|part| segment_of(part, BackendKind::S3) == part)
}

/// How long the name of this path is in the store.
pub(super) fn length_of(path: &Path, kind: BackendKind) -> usize {
    let has_slash = kind == BackendKind::S3 && is_marker(path);
    path.as_ref().len() - if has_slash { EMPTY.len() } else { 0 }
}

/// Whether its key ends in a slash.
pub(super) fn is_marker(path: &Path) -> bool {
    path.as_ref().rsplit('/').next() == Some(EMPTY)
}

/// The key whose object the store has at this path. Others' objects may be at a path that no key has: [`path_of`] does
/// not lead back to it.
pub fn key_of(path: &Path) -> String {
    let parts = path.as_ref().split('/').map(|segment| match segment {
        EMPTY => Cow::Borrowed(""),
        DOT => Cow::Borrowed("."),
        DOTS => Cow::Borrowed(".."),
        other => Cow::Borrowed(match (other.strip_prefix(LITERAL), other.strip_prefix(HASH)) {
            (Some(literal), _) => literal,
            (None, Some(hash)) => hash.strip_suffix('x').unwrap_or(other),
            _ => match other.strip_prefix(ESCAPED) {
                Some(escaped) => return Cow::Owned(unescaped(escaped)),
                None => other,
            },
        }),
    });
    parts.collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn keys_round_trip_through_paths(key in "([a-c.#/%0-9é \\\\?*~\\x01\\t\\n\\r\\x7f-]|%underlay-|empty|literal-|escaped-){1,24}") {
            for kind in [BackendKind::S3, BackendKind::Directory] {
                let path = path_of(&key, kind).unwrap();
                prop_assert_eq!(key_of(&path), key.clone());
                // Nothing leads out of the store.
                prop_assert!(path.as_ref().split('/').all(|part| !matches!(part, "" | "." | "..")));
                // In a directory these are names of unfinished files.
                prop_assert!(kind == BackendKind::S3 || !path.as_ref().contains('#'));
            }
        }

        #[test]
        fn two_keys_have_two_paths(a in "[a./%#1\\t]{1,8}", b in "[a./%#1\\t]{1,8}") {
            for kind in [BackendKind::S3, BackendKind::Directory] {
                prop_assert_eq!(a == b, path_of(&a, kind).unwrap() == path_of(&b, kind).unwrap());
            }
        }

        #[test]
        fn arbitrary_key_never_panics(key in "\\PC{0,40}") {
            let _ = path_of(&key, BackendKind::Directory);
        }
    }

    #[test]
    fn listing_of_prefix_begins_shortly_before_it() {
        let folder = Path::parse("a/b").unwrap();
        for (begin, expected) in [
            ("c", Some("a/b/b\u{10ffff}")),
            ("cd", Some("a/b/cc\u{10ffff}")),
            (".", Some("a/b/-\u{10ffff}")),
            ("..", Some("a/b/.-\u{10ffff}")),
            ("\u{e000}", Some("a/b/\u{d7ff}\u{10ffff}")),
            // Before these comes a slash, DEL or a blank.
            ("c0", Some("a/b/c")),
            ("0", Some("a/b")),
            ("\u{80}", Some("a/b")),
            (" ", Some("a/b")),
            // No path has a segment of a dot.
            (".0", None),
            ("", None),
        ] {
            let offset = offset_before(Some(&folder), begin);
            assert_eq!(offset.as_ref().map(Path::as_ref), expected, "{begin}");
            assert!(offset.is_none_or(|offset| *offset.as_ref() < *format!("a/b/{begin}")), "{begin}");
        }
        assert_eq!(offset_before(None, "c").unwrap().as_ref(), "b\u{10ffff}");
        assert_eq!(offset_before(None, "0"), None);
        assert_eq!(offset_of_escaped(Some(&folder)).unwrap().as_ref(), "a/b/%underlay-");
    }

    #[test]
    fn listing_goes_on_where_own_names_do() {
        let folder = Path::parse("a").unwrap();
        for (rest, expected) in [
            ("b/c", Some("a/b/c")),
            ("b/", Some("a/b/%underlay-empty")),
            ("b/c#1", Some("a/b/c#0\u{10ffff}")),
            ("b#1/c", Some("a/b#0\u{10ffff}")),
            ("b//c", Some("a/b")),
            ("..", Some("a/.-\u{10ffff}")),
            ("%underlay-x", Some("a/%underlay-w\u{10ffff}")),
        ] {
            let offset = offset_of(Some(&folder), rest);
            assert_eq!(offset.as_ref().map(Path::as_ref), expected, "{rest}");
        }
        // A little early where no path is right before it.
        assert_eq!(offset_of(None, "b#0/c").unwrap().as_ref(), "b#");
        assert_eq!(offset_of(None, "\t/c"), None);
        // That one asks for something else.
        for key in ["%underlay-0", "%underlay- ", "%underlay-\u{80}"] {
            assert_eq!(offset_of(Some(&folder), key).unwrap().as_ref(), "a", "{key}");
        }
        assert_eq!(offset_of(None, "b/c").unwrap().as_ref(), "b/c");
    }

    #[test]
    fn ordinary_keys_keep_their_names_in_s3() {
        for key in ["a", "a/", "a/b", "a#b", "%underlay", "a%underlay-empty"] {
            assert!(has_own_name(key), "{key}");
        }
        for key in ["a//", "/", "a//b", "./a", "a/..", "a#1", "a#1/", "%underlay-x/a", "a\tb"] {
            assert!(!has_own_name(key), "{key}");
        }
    }

    #[test]
    fn ordinary_keys_are_unchanged_and_others_escaped() {
        let path = |key: &str| path_of(key, BackendKind::Directory).map(|path| path.to_string());
        assert_eq!(path("a/b c/d=1/part-0.parquet").unwrap(), "a/b c/d=1/part-0.parquet");
        assert_eq!(path("a/").unwrap(), "a/%underlay-empty");
        assert_eq!(path("/etc/passwd").unwrap(), "%underlay-empty/etc/passwd");
        assert_eq!(path("../x").unwrap(), "%underlay-dots/x");
        assert_eq!(path("%underlay-dot").unwrap(), "%underlay-literal-%underlay-dot");
        assert_eq!(path("a#12").unwrap(), "%underlay-escaped-a%2312");
        assert_eq!(path("a\tb/c#%").unwrap(), "%underlay-escaped-a%09b/%underlay-escaped-c%23%25");
        assert_eq!(path_of("\u{10}x", BackendKind::S3).unwrap().as_ref(), "%underlay-escaped-%10x");
        assert_eq!(path("a%#b").unwrap(), "%underlay-escaped-a%25%23b");
        assert_eq!(path_of("a#12", BackendKind::S3).unwrap().as_ref(), "%underlay-hash-a#12x");
        assert!(path(&"k".repeat(250)).is_ok() && path(&"k".repeat(251)).is_err());
        assert!(path("").is_err() && path("a\0b").is_err());
        assert!(matches!(path(&"k".repeat(256)), Err(NameError::TooLong(_))));
        assert!(path_of(&"k".repeat(256), BackendKind::S3).is_ok());
        assert!(path_of(&"k".repeat(1025), BackendKind::S3).is_err());
    }
}
