//! How times and names are written on pages.

use std::time::SystemTime;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use maud::{Markup, html};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use underlay_report::quantity;

/// Seconds since 1970.
pub(crate) fn now_s() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn utc(at_s: f64) -> Option<jiff::Zoned> {
    let milliseconds = (at_s * 1e3) as i64;
    Some(Timestamp::from_millisecond(milliseconds).ok()?.to_zoned(TimeZone::UTC))
}

/// `14:03:20`, in UTC: a page that shows it names the zone once.
pub(super) fn time_of_day(at_s: f64) -> String {
    utc(at_s).map_or_else(String::new, |timestamp| timestamp.strftime("%H:%M:%S").to_string())
}

/// The same as an element, for which the script tells the browser's own time.
pub(super) fn moment(at_s: f64) -> Markup {
    let whole =
        utc(at_s).map_or_else(String::new, |timestamp| timestamp.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    html! { time datetime=(whole) { (time_of_day(at_s)) } }
}

/// `2026-11-25 14:03 UTC`, of what records have as RFC 3339.
pub(super) fn date_and_time(rfc3339: &str) -> Markup {
    match rfc3339.parse::<Timestamp>() {
        Ok(timestamp) => {
            let words = timestamp.to_zoned(TimeZone::UTC).strftime("%Y-%m-%d %H:%M UTC").to_string();
            html! { time datetime=(timestamp.to_string()) { (words) } }
        }
        Err(_) => html! { (rfc3339) },
    }
}

/// A sentence in which what stands between backticks is typed, or stands in a file.
pub(super) fn prose(text: &str) -> Markup {
    let parts: Vec<&str> = text.split('`').collect();
    // One without its partner is a backtick.
    let is_paired = parts.len() % 2 == 1;
    html! {
        @if !is_paired { (text) }
        @else { @for (place, part) in parts.iter().enumerate() { @if place % 2 == 1 { code { (part) } } @else { (part) } } }
    }
}

/// What a list leaves out for its length, where it does.
pub(super) fn not_shown(left_out: usize, noun: &str) -> Markup {
    html! { @if left_out > 0 { p.muted.small { "Not shown: " (quantity::plural(left_out, noun)) "." } } }
}

/// Distances of labels on a time axis, in seconds.
const STEPS_S: [f64; 12] =
    [5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 21_600.0, 86_400.0];

/// Labels of a time axis: some five round times of day, the first with the zone.
pub(super) fn ticks(from_s: f64, to_s: f64) -> Vec<(f64, String)> {
    let span = to_s - from_s;
    let step = STEPS_S.into_iter().find(|step| span / step <= 6.0).unwrap_or(span.max(1.0) / 5.0);
    let first = (from_s / step).ceil() * step;
    let format = if step < 60.0 { "%H:%M:%S" } else { "%H:%M" };
    let mut ticks: Vec<(f64, String)> = (0..8)
        .map(|index| first + f64::from(index) * step)
        .filter(|tick_s| *tick_s <= to_s)
        .filter_map(|tick_s| Some((tick_s, utc(tick_s)?.strftime(format).to_string())))
        .collect();
    if let Some((_, first)) = ticks.first_mut() {
        first.push_str(" UTC");
    }
    ticks
}

/// All but letters, digits and these.
const ESCAPED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A part of an address: whatever is no plain character is escaped.
pub(crate) fn escaped(text: &str) -> String {
    utf8_percent_encode(text, &ESCAPED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axis_has_few_labels_at_any_length() {
        for span in [1.0, 7.0, 60.0, 299.0, 5_000.0, 90_000.0, 1e7] {
            let found = ticks(1.7e9, 1.7e9 + span);
            assert!(found.len() <= 8 && (span < 6.0 || !found.is_empty()), "{span}: {found:?}");
        }
    }

    #[test]
    fn time_names_its_zone() {
        let shown = date_and_time("2026-11-25T02:00:00Z").into_string();
        assert!(
            shown.contains("2026-11-25 02:00 UTC") && shown.contains("datetime=\"2026-11-25T02:00:00Z\"")
        );
        assert!(date_and_time("<b>").into_string().contains("&lt;b&gt;"));
        let shown = moment(1_764_000_000.0).into_string();
        assert_eq!(shown, "<time datetime=\"2025-11-24T16:00:00Z\">16:00:00</time>");
        let labels = ticks(1.764e9, 1.764e9 + 300.0);
        assert!(labels[0].1.ends_with(" UTC") && !labels[1].1.contains("UTC"), "{labels:?}");
    }

    #[test]
    fn text_between_backticks_becomes_code() {
        assert_eq!(
            prose("use `a <b`, not `c`").into_string(),
            "use <code>a &lt;b</code>, not <code>c</code>"
        );
        assert_eq!(prose("it's 5` long").into_string(), "it's 5` long");
    }

    #[test]
    fn escaped_address_has_plain_characters_only() {
        assert_eq!(escaped("a b/c?<é>"), "a%20b%2Fc%3F%3C%C3%A9%3E");
    }
}
