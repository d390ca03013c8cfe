//! Quantities as people read them: two or three digits and a unit.

use underlay_record::{MetricRow, PriceSum, thousands_apart, usual_unit};

use crate::statistics::{ConfidenceInterval, IntervalEstimate};

/// The text where nothing could be measured.
pub const ABSENT: &str = "–";

/// A number with `digits` significant digits at least, and its thousands apart: `9,120`, `1.8`, `0.042`.
pub fn number(value: f64, digits: i32) -> String {
    if !value.is_finite() {
        return ABSENT.to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    let decimals = |value: f64| (digits - 1 - value.abs().log10().floor() as i32).clamp(0, 6) as usize;
    // Rounding may carry into the next power of ten: 9.96 is 10, not 10.0.
    let factor = 10f64.powi(decimals(value) as i32);
    let rounded = (value * factor).round() / factor;
    let places = if rounded == 0.0 { decimals(value) } else { decimals(rounded) };
    let text = format!("{:.*}", places, rounded.abs());
    let sign = if value < 0.0 { "-" } else { "" };
    format!("{sign}{}", thousands_apart(&text))
}

/// Steps through `units`, each a factor of the one before, until the number reads short.
fn with_unit(value: f64, digits: i32, step: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut index = 0;
    // A value that would be printed as 1,000 belongs to the next unit.
    while value.abs() >= step * 0.9995 && index + 1 < units.len() {
        value /= step;
        index += 1;
    }
    format!("{} {}", number(value, digits), units[index])
}

/// A whole number with its thousands apart: `3,962`.
pub fn count(value: u64) -> String {
    thousands_apart(&value.to_string())
}

/// A latency given in microseconds: `870 µs`, `1.8 ms`, `2.4 s`.
pub fn latency(us: f64) -> String {
    if us != 0.0 && us.abs() < 1.0 {
        return format!("{} ns", number(us * 1e3, 2));
    }
    with_unit(us, 2, 1000.0, &["µs", "ms", "s"])
}

/// A latency's interval in one unit: `1.7–2.0 ms`.
pub fn latency_interval(us: ConfidenceInterval) -> String {
    // A wide symmetric interval may reach below zero, where no latency is.
    let us = ConfidenceInterval { low: us.low.max(0.0), ..us };
    let (divisor, unit) = match us.high {
        high if high >= 999_500.0 => (1e6, "s"),
        high if high >= 999.5 => (1e3, "ms"),
        _ => (1.0, "µs"),
    };
    format!("{}–{} {unit}", number(us.low / divisor, 2), number(us.high / divisor, 2))
}

/// Operations per second without the unit: `9,120`, `31.4`.
pub fn rate(per_s: f64) -> String {
    number(per_s, 3)
}

/// A value in a unit of a benchmark's: times, bytes and rates of bytes as everywhere else (`1.8 ms`, `512 MB/s`),
/// others with the unit as it is given: `2,310 tps`.
pub fn format_with_unit(value: f64, unit: &str) -> String {
    // A record may have the other letter that looks like a micro sign.
    let unit: &str = &usual_unit(unit);
    let us_of = |unit: &str| match unit {
        "ns" | "nsec" => Some(1e-3),
        "us" | "µs" | "usec" => Some(1.0),
        "ms" | "msec" => Some(1e3),
        _ => None,
    };
    match (unit, us_of(unit)) {
        (_, Some(factor)) => latency(value * factor),
        ("s" | "sec" | "seconds", _) if value >= 60.0 => duration(value),
        ("B", _) => bytes(value),
        ("B/s", _) => format!("{}/s", bytes(value)),
        ("count" | "", _) => without_last_zeros(&number(value, 3)),
        _ => format!("{} {unit}", number(value, 3)),
    }
}

/// A metric's value with its unit: `1.8 ms`, `0.4 %`.
pub fn metric(row: &MetricRow) -> String {
    match row.unit.as_ref() {
        "%" => percent(row.value / 100.0),
        unit => format_with_unit(row.value, unit),
    }
}

/// A value in a unit beside an axis that names the unit: a unit of the benchmark's own is left out.
pub fn on_axis_of(value: f64, unit: &str) -> String {
    let unit: &str = &usual_unit(unit);
    let text = format_with_unit(value, unit);
    match text.strip_suffix(unit).and_then(|number| number.strip_suffix(' ')) {
        Some(number) if number.len() + unit.len() > 9 => number.to_owned(),
        _ => text,
    }
}

/// A rate and half its interval in percent: `9,120 ±2 %`.
pub fn rate_with_error(estimate: &IntervalEstimate) -> String {
    match estimate.relative_half_width() {
        Some(share) => format!("{} ±{}", rate(estimate.value), percent(share)),
        None => rate(estimate.value),
    }
}

/// A share as a percentage: `3 %`, `0.4 %`.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent.abs() {
        small if small > 0.0 && small < 0.095 => "<0.1 %".to_owned(),
        small if small < 0.95 && small > 0.0 => format!("{percent:.1} %"),
        _ => format!("{} %", number(percent.round(), 1)),
    }
}

/// How many times: `22.1x`, `4.83x`, `0.95x`.
pub fn ratio(value: f64) -> String {
    format!("{}x", number(value, 3))
}

/// The interval of a ratio: `21.4–22.9`.
pub fn ratio_interval(interval: ConfidenceInterval) -> String {
    format!("{}–{}", number(interval.low, 3), number(interval.high, 3))
}

/// The ends of an interval of ratios, as a sentence has them: `["110", "250"]`, `["5.25", "5.53"]`.
///
/// Digits beyond what the width carries would pretend to know more: the last one stands for at most a quarter of the
/// width, and is the third at most. There are two at least, and as many as it takes for an end that is not 1 not to
/// read as 1.
pub fn times(interval: ConfidenceInterval) -> [String; 2] {
    const MIN_DIGITS: i32 = 2;
    const MAX_DIGITS: i32 = 3;
    const MAX_DIGITS_NEAR_ONE: i32 = 7;
    const WITHOUT_WIDTH: i32 = 3;
    // A width of 0.04 is not quite that in binary.
    let step = ((interval.high - interval.low) / 4.0 * (1.0 + 1e-9)).log10().floor();
    [interval.low, interval.high].map(|end| {
        if !(end.is_finite() && end > 0.0) {
            return number(end, MIN_DIGITS);
        }
        let digits = match step.is_finite() {
            true => (end.log10().floor() - step) as i32 + 1,
            false => WITHOUT_WIDTH,
        };
        let mut digits = digits.clamp(MIN_DIGITS, MAX_DIGITS);
        let reads_as_one = |digits: i32| match end > 1.0 {
            true => significant(end, digits) <= 1.0,
            false => significant(end, digits) >= 1.0,
        };
        while end != 1.0 && reads_as_one(digits) && digits < MAX_DIGITS_NEAR_ONE {
            digits += 1;
        }
        number(significant(end, digits), digits)
    })
}

/// Rounded to so many significant digits, also before the point.
fn significant(value: f64, digits: i32) -> f64 {
    let unit = 10f64.powi(value.abs().log10().floor() as i32 - digits + 1);
    (value / unit).round() * unit
}

/// Dollars: `$21.40`, `$1,210`.
pub fn dollars(usd: f64) -> String {
    if usd.abs() < 99.995 && usd != 0.0 {
        let text = format!("{usd:.2}");
        return if text == "0.00" { format!("${}", number(usd, 2)) } else { format!("${text}") };
    }
    format!("${}", number(usd, 3))
}

/// A price, which is called a rent where it is one: `$200`, `$2,880 (3 years' rent)`.
pub fn price(price: &PriceSum) -> String {
    let remark = price.remark(dollars).map_or(String::new(), |remark| format!(" ({remark})"));
    format!("{}{remark}", dollars(price.usd))
}

/// Dollars that a price comes to for something, in a column of them: `38`, `2,682 rent`.
pub fn price_for(usd: f64, price: &PriceSum) -> String {
    let rent = if price.rent_usd > 0.0 { " rent" } else { "" };
    format!("{}{rent}", number(usd, 2))
}

/// Bytes in decimal units, as disks are sold: `256 GB`.
pub fn bytes(count: f64) -> String {
    with_unit(count, 3, 1000.0, &["B", "kB", "MB", "GB", "TB", "PB"])
}

/// Bytes in binary units, as memory is counted: `512 MiB`.
pub fn memory(count: f64) -> String {
    with_unit(count, 3, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"])
}

/// `1 ms` for `1.0 ms`, `1.5 GB` for `1.50 GB`: of a round number the last zeros say nothing.
pub fn without_last_zeros(label: &str) -> String {
    let Some(point) = label.find('.') else { return label.to_owned() };
    let digits = label[point + 1..].chars().take_while(char::is_ascii_digit).count();
    let (number, unit) = label.split_at(point + 1 + digits);
    let number = number.trim_end_matches('0').trim_end_matches('.');
    format!("{number}{unit}")
}

/// Seconds: `45 s`, `3 min 20 s`, `2 h 5 min`.
pub fn duration(seconds: f64) -> String {
    if seconds < 10.0 {
        return format!("{} s", number(seconds, 2));
    }
    let whole = seconds.round() as u64;
    match (whole / 3600, whole / 60 % 60, whole % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, m, 0) => format!("{m} min"),
        (0, m, s) => format!("{m} min {s} s"),
        (h, 0, _) => format!("{h} h"),
        (h, m, _) => format!("{h} h {m} min"),
    }
}

/// `1 cell`, `3 cells`.
pub fn plural(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{} {noun}s", number(count as f64, 1)) }
}

/// Seconds where there is little room: `45 s`, `5.3 min`, `2.1 h`.
pub fn short_duration(seconds: f64) -> String {
    match seconds {
        long if long >= 5_400.0 => format!("{} h", number(long / 3600.0, 2)),
        middle if middle >= 240.0 => format!("{} min", number(middle / 60.0, 2)),
        short => format!("{} s", number(short, 2)),
    }
}

/// `2.3–8.4 ms`, from the lowest to the highest value, or one of them when they read the same. No interval: it says how
/// far values of several workloads are apart.
pub fn range(values: &[f64], write: impl Fn(f64) -> String) -> Option<String> {
    let low = values.iter().copied().reduce(f64::min)?;
    let high = values.iter().copied().reduce(f64::max)?;
    let (low, high) = (write(low), write(high));
    if low == high {
        return Some(low);
    }
    // One unit is enough for both, and a browser may break the line behind the dash.
    let short = match (low.split_once(' '), high.split_once(' ')) {
        (Some((number, unit)), Some((_, same))) if unit == same => number.to_owned(),
        _ => low,
    };
    Some(format!("{short}–{high}"))
}

/// Names in a sentence: `a, b and c`; beyond `limit`, `a, b and 7 more`.
pub fn list(names: &[String], limit: usize) -> String {
    let shown: Vec<&str> = names.iter().take(limit).map(String::as_str).collect();
    match (names.len(), shown.split_last()) {
        (count, _) if count > limit => format!("{} and {} more", shown.join(", "), count - limit),
        (_, Some((last, before))) if !before.is_empty() => format!("{} and {last}", before.join(", ")),
        _ => shown.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn micro_sign_and_mu_mean_microseconds() {
        assert_eq!(format_with_unit(1840.0, "\u{3bc}s"), format_with_unit(1840.0, "\u{b5}s"));
        assert_eq!(format_with_unit(1840.0, "\u{3bc}s"), "1.8 ms");
    }

    #[test]
    fn quantities_read_well() {
        let latencies =
            [0.31, 7.0, 9.96, 99.7, 870.0, 999.7, 1_840.0, 18_400.0, 182_000.0, 999_700.0, 2_430_000.0];
        let texts: Vec<String> = latencies.into_iter().map(latency).collect();
        insta::assert_snapshot!(texts.join(", "), @"310 ns, 7.0 µs, 10 µs, 100 µs, 870 µs, 1.0 ms, 1.8 ms, 18 ms, 182 ms, 1.0 s, 2.4 s");
        let rates = [0.0, 0.123, 1.5, 31.44, 999.6, 9_120.4, 1_234_567.0].map(rate);
        insta::assert_snapshot!(rates.join(" | "), @"0 | 0.123 | 1.50 | 31.4 | 1,000 | 9,120 | 1,234,567");
        let shares = [0.0, 0.0004, 0.004, 0.0099, 0.03, 0.126, 12.0].map(percent);
        insta::assert_snapshot!(shares.join(" | "), @"0 % | <0.1 % | 0.4 % | 1 % | 3 % | 13 % | 1,200 %");
        let sizes = [0.0, 999.0, 1000.0, 256e9, 999.9e9, 1.6e12].map(bytes);
        insta::assert_snapshot!(sizes.join(" | "), @"0 B | 999 B | 1.00 kB | 256 GB | 1.00 TB | 1.60 TB");
        let times = [0.5, 9.0, 45.2, 60.0, 200.0, 7_500.0, 7_200.0].map(duration);
        insta::assert_snapshot!(times.join(" | "), @"0.50 s | 9.0 s | 45 s | 1 min | 3 min 20 s | 2 h 5 min | 2 h");
        let round = ["1.50 GB", "1.0 ms", "0.50x", "10.05 s", "100", "2.00x"].map(without_last_zeros);
        insta::assert_snapshot!(round.join(" | "), @"1.5 GB | 1 ms | 0.5x | 10.05 s | 100 | 2x");
        let prices = [0.0, 0.0042, 0.5, 21.4, 99.996, 1_210.3].map(dollars);
        insta::assert_snapshot!(prices.join(" | "), @"$0 | $0.0042 | $0.50 | $21.40 | $100 | $1,210");
    }

    #[test]
    fn interval_ends_have_digits_of_its_width() {
        let words = |low, high| times(ConfidenceInterval { low, high }).join(" to ");
        for (low, high, expected) in [
            (114.0, 252.0, "110 to 250"),
            (50.2, 389.0, "50 to 390"),
            (5.25, 5.53, "5.25 to 5.53"),
            (15.1, 23.0, "15 to 23"),
            (17.46, 19.21, "17.5 to 19.2"),
            (0.571, 0.968, "0.57 to 0.97"),
            (0.91, 0.95, "0.91 to 0.95"),
            (1.228, 1.27, "1.23 to 1.27"),
            (9.87, 10.3, "9.9 to 10.3"),
            (0.56, 0.996, "0.56 to 0.996"),
            // Values that surely differ don't read as if they were the same.
            (1.04, 12.3, "1.04 to 12"),
            (1.0004, 1.9, "1.0004 to 1.9"),
            (0.3, 0.9996, "0.30 to 0.9996"),
            (2.0, 2.0, "2.00 to 2.00"),
            (1_234.0, 5_678.0, "1,200 to 5,700"),
        ] {
            assert_eq!(words(low, high), expected);
        }
        for odd in [f64::NAN, f64::INFINITY, 0.0, -1.0, f64::MIN_POSITIVE, f64::MAX] {
            assert!(!words(odd, 1.0).is_empty() && !words(1.0, odd).is_empty());
        }
    }

    #[test]
    fn odd_numbers_never_panic() {
        for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -3.0, f64::MIN_POSITIVE, f64::MAX] {
            for text in
                [latency(odd), rate(odd), ratio(odd), percent(odd), dollars(odd), bytes(odd), duration(odd)]
            {
                assert!(!text.is_empty());
            }
        }
    }
}
