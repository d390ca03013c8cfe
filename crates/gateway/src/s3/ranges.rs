//! The `Range` header: RFC 9110, section 14. Anything but a range of bytes is ignored, and so are several ranges at
//! once, as in S3.

use s3s::dto::Range;

/// `s3s` takes no larger positions. No object is so long, so they mean the same.
const LAST_POSITION: u64 = i64::MAX as u64;

/// The one range that a header asks for.
pub(super) fn parse(text: &str) -> Option<Range> {
    let (unit, ranges) = text.split_once('=')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return None;
    }
    // RFC 9110, section 5.6.1: a list has blanks around its commas alone, so one before the first range makes it
    // malformed. Empty elements don't count.
    let mut ranges = ranges.split(',').enumerate().filter_map(|(place, range)| {
        let range = range.trim_end_matches([' ', '\t']);
        let range = if place == 0 { range } else { range.trim_start_matches([' ', '\t']) };
        (!range.is_empty()).then_some(range)
    });
    let (range, None) = (ranges.next()?, ranges.next()) else { return None };
    let (first, last) = range.split_once('-')?;
    match (first, last) {
        ("", length) => Some(Range::Suffix { length: position(length)? }),
        (first, "") => Some(Range::Int { first: position(first)?, last: None }),
        (first, last) => {
            let (first, last) = (position(first)?, position(last)?);
            (first <= last).then_some(Range::Int { first, last: Some(last) })
        }
    }
}

/// A number of any length.
fn position(digits: &str) -> Option<u64> {
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(digits.parse().unwrap_or(LAST_POSITION).min(LAST_POSITION))
}

/// Whether it asks for the last bytes of an object that has none: RFC 9110, section 14.1.2, lets it have the whole.
pub(super) fn is_end_of_nothing(range: &Range, size_bytes: u64) -> bool {
    size_bytes == 0 && matches!(range, Range::Suffix { length } if *length > 0)
}

/// The bytes of an object of this size, if it has any of them.
pub(super) fn within(range: &Range, size_bytes: u64) -> Option<std::ops::Range<u64>> {
    let range = range.check(size_bytes).ok()?;
    // Of nothing, the last bytes are nothing, which no Content-Range can say.
    (!range.is_empty()).then_some(range)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn single_range_is_parsed_and_others_are_none() {
        let from = |first, last| Some(Range::Int { first, last });
        let last = |length| Some(Range::Suffix { length });
        for (text, expected) in [
            ("bytes=0-4", from(0, Some(4))),
            ("Bytes=0-4", from(0, Some(4))),
            ("bytes=0-4 ,", from(0, Some(4))),
            ("bytes= ,\t0-4", from(0, Some(4))),
            ("bytes= 0-4", None),
            ("bytes= -1", None),
            ("bytes=0 -1", None),
            ("bytes=3-", from(3, None)),
            ("bytes=-5", last(5)),
            ("bytes=-0", last(0)),
            ("bytes=0-18446744073709551615", from(0, Some(LAST_POSITION))),
            ("bytes=99999999999999999999999-", from(LAST_POSITION, None)),
            ("bytes=-99999999999999999999999", last(LAST_POSITION)),
            ("bytes=9-5", None),
            ("bytes=a-b", None),
            ("bytes=+1-5", None),
            ("bytes=-", None),
            ("bytes=--1", None),
            ("bytes=,", None),
            ("bytes=", None),
            ("bytes", None),
            ("octets=0-5", None),
            ("bytes=0-1,5-6", None),
            ("", None),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
    }

    #[test]
    fn range_has_object_bytes_or_is_none() {
        let cut = |text: &str, size_bytes| within(&parse(text).unwrap(), size_bytes);
        assert_eq!(cut("bytes=3-", 10), Some(3..10));
        assert_eq!(cut("bytes=0-99", 10), Some(0..10));
        assert_eq!(cut("bytes=-3", 10), Some(7..10));
        assert_eq!(cut("bytes=-30", 10), Some(0..10));
        for (text, size_bytes) in [("bytes=10-", 10), ("bytes=-0", 10), ("bytes=-1", 0), ("bytes=0-", 0)] {
            assert_eq!(cut(text, size_bytes), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn parsed_range_round_trips(text in "bytes=[0-9]{0,22}-[0-9]{0,22}", other in "\\PC{0,30}") {
            if let Some(range) = parse(&text) {
                prop_assert_eq!(Range::parse(&range.to_header_string()).ok(), Some(range));
            }
            let _ = parse(&other);
        }
    }
}
