//! Dates as HTTP writes them: RFC 9110, section 5.6.7, has three forms, and recipients must accept all of them.

use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
/// A date of two digits that seems to be further ahead is one of the past.
const MAX_YEARS_AHEAD: i16 = 50;

/// Seconds since 1970, or `None` for what is no date.
pub(super) fn parse(text: &str, now_s: i64) -> Option<i64> {
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let (day, month, year, time) = match words.as_slice() {
        // Sun, 06 Nov 1994 08:49:37 GMT
        [weekday, day, month, year, time, "GMT"] if is_name(weekday.strip_suffix(',')?) => {
            (digits(day, 2)?, *month, digits(year, 4)?, *time)
        }
        // Sunday, 06-Nov-94 08:49:37 GMT
        [weekday, date, time, "GMT"] if is_name(weekday.strip_suffix(',')?) => {
            let [day, month, year] = date.split('-').collect::<Vec<_>>()[..] else { return None };
            (digits(day, 2)?, month, expand_two_digits(digits(year, 2)?, now_s)?, *time)
        }
        // Sun Nov  6 08:49:37 1994
        [weekday, month, day, time, year] if is_name(weekday) => {
            (digits(day, day.len())?, *month, digits(year, 4)?, *time)
        }
        _ => return None,
    };
    let month = MONTHS.iter().position(|name| *name == month)? + 1;
    let [hour, minute, second] = time.split(':').collect::<Vec<_>>()[..] else { return None };
    let small = |text: &str| i8::try_from(digits(text, 2)?).ok();
    // A leap second is written as 60, and time here has none.
    let second = small(second).filter(|second| *second <= 60)?.min(59);
    let time = Time::new(small(hour)?, small(minute)?, second, 0).ok()?;
    let date = Date::new(year, i8::try_from(month).ok()?, i8::try_from(day).ok()?).ok()?;
    Some(date.to_datetime(time).to_zoned(TimeZone::UTC).ok()?.timestamp().as_second())
}

fn is_name(weekday: &str) -> bool {
    (3..=9).contains(&weekday.len()) && weekday.bytes().all(|byte| byte.is_ascii_alphabetic())
}

/// A number of just so many digits.
fn digits(text: &str, count: usize) -> Option<i16> {
    (text.len() == count && (1..=4).contains(&count) && text.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| text.parse().ok())?
}

fn expand_two_digits(year: i16, now_s: i64) -> Option<i16> {
    let now = jiff::Timestamp::from_second(now_s).ok()?.to_zoned(TimeZone::UTC).year();
    let year = now - now % 100 + year;
    Some(if year > now + MAX_YEARS_AHEAD { year - 100 } else { year })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// In 2026.
    const NOW_S: i64 = 1_780_000_000;

    #[test]
    fn date_in_three_forms_is_parsed() {
        for text in
            ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"]
        {
            assert_eq!(parse(text, NOW_S), Some(784_111_777), "{text}");
        }
        assert_eq!(parse("Thursday, 01-Jan-70 00:00:00 GMT", NOW_S), Some(3_155_760_000));
        assert_eq!(parse("Friday, 01-Jan-77 00:00:00 GMT", NOW_S), Some(220_924_800));
    }

    #[test]
    fn invalid_date_is_none() {
        for text in [
            "",
            "0",
            "yesterday",
            "Thu, 03 Jul 2025 03:40:28 UTC",
            "Thu, 03 Jul 2025 03:40:28",
            "Thu, 03 Jul 2025 24:40:28 GMT",
            "Thu, 31 Feb 2025 03:40:28 GMT",
            "Thu, 3 Jul 2025 03:40:28 GMT",
            "2025-07-03T03:40:28Z",
            "Thu 03 Jul 2025 03:40:28 GMT",
        ] {
            assert_eq!(parse(text, NOW_S), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_date_text_never_panics(text in "\\PC{0,40}", words in "[A-Za-z]{3,9},? [0-9A-Za-z-]{1,9} [A-Za-z0-9:]{2,8} [0-9:]{2,8}( [0-9]{4}| GMT)?") {
            let _ = (parse(&text, NOW_S), parse(&words, i64::MAX));
        }
    }
}
