//! How times and names are written on pages.

use std::time::SystemTime;

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Seconds since 1970.
pub(crate) fn now_s() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn zoned(at_s: f64) -> Option<jiff::Zoned> {
    let milliseconds = (at_s * 1e3) as i64;
    Some(Timestamp::from_millisecond(milliseconds).ok()?.to_zoned(TimeZone::system()))
}

/// `14:03:20`
pub(super) fn time_of_day(at_s: f64) -> String {
    zoned(at_s).map_or_else(String::new, |at| at.strftime("%H:%M:%S").to_string())
}

/// `2026-11-25 14:03`, of what records have as RFC 3339.
pub(super) fn date_and_time(rfc3339: &str) -> String {
    match rfc3339.parse::<Timestamp>() {
        Ok(at) => at.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M").to_string(),
        Err(_) => rfc3339.to_owned(),
    }
}

/// Distances of labels on a time axis, in seconds.
const STEPS_S: [f64; 12] =
    [5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 21_600.0, 86_400.0];

/// Labels of a time axis: some five round times of day.
pub(super) fn ticks(from_s: f64, to_s: f64) -> Vec<(f64, String)> {
    let span = to_s - from_s;
    let step = STEPS_S.into_iter().find(|step| span / step <= 6.0).unwrap_or(span.max(1.0) / 5.0);
    let first = (from_s / step).ceil() * step;
    let format = if step < 60.0 { "%H:%M:%S" } else { "%H:%M" };
    (0..8)
        .map(|index| first + f64::from(index) * step)
        .filter(|at| *at <= to_s)
        .filter_map(|at| Some((at, zoned(at)?.strftime(format).to_string())))
        .collect()
}

/// A part of an address: whatever is no plain character is escaped.
pub(crate) fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { (byte as char).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_a_few_labels_whatever_its_length() {
        for span in [1.0, 7.0, 60.0, 299.0, 5_000.0, 90_000.0, 1e7] {
            let found = ticks(1.7e9, 1.7e9 + span);
            assert!(found.len() <= 8 && (span < 6.0 || !found.is_empty()), "{span}: {found:?}");
        }
    }

    #[test]
    fn an_address_has_plain_characters_only() {
        assert_eq!(escaped("a b/c?<é>"), "a%20b%2Fc%3F%3C%C3%A9%3E");
    }
}
