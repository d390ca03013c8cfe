//! Sizes, durations, bandwidths, rates and prices as people write them and as tables print them: `2 GiB`, `870 µs`, `25
//! Gbit/s`, `1,105 ops/s`, `$1,210`.

use std::time::Duration;

/// Units of size with their bytes. Decimal and binary are kept apart, as drives and memory are sold.
const SIZE_UNITS: [(&str, u64); 12] = [
    ("PiB", 1 << 50),
    ("PB", 1_000_000_000_000_000),
    ("TiB", 1 << 40),
    ("TB", 1_000_000_000_000),
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
    ("kB", 1_000),
    ("KB", 1_000),
    ("B", 1),
];

const TIME_UNITS: [(&str, u64); 6] = [
    ("h", 3_600_000_000_000),
    ("min", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Units of bandwidth with their bits a second.
const BANDWIDTH_UNITS: [(&str, u64); 11] = [
    ("Gbit/s", 1_000_000_000),
    ("Mbit/s", 1_000_000),
    ("kbit/s", 1_000),
    ("TB/s", 8_000_000_000_000),
    ("GB/s", 8_000_000_000),
    ("MB/s", 8_000_000),
    ("GiB/s", 8 << 30),
    ("MiB/s", 8 << 20),
    ("KiB/s", 8 << 10),
    ("kB/s", 8_000),
    ("B/s", 8),
];

/// Other ways to write a unit: both letters that look like a micro sign, which tables print (U+00B5 and U+03BC), and a
/// capital K.
const OTHER_SPELLINGS: [(&str, &str); 3] = [("\u{b5}s", "us"), ("\u{3bc}s", "us"), ("KB/s", "kB/s")];

/// Units of a rate of operations.
const RATE_UNITS: [&str; 4] = ["", "/s", "ops/s", "IOPS"];

/// Why a quantity could not be read; printed as `expected ...`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("expected a number and a unit, as in {example}")]
    Form { example: &'static str },
    #[error("unknown unit '{unit}': expected one of {expected}")]
    Unit { unit: String, expected: String },
    #[error("too large: expected less than 2^64 {0}")]
    Range(&'static str),
    #[error("a comma separates thousands, as in 1,105: write decimals with a point")]
    Comma,
    #[error("expected a number of operations per second, as in \"1105\" or \"1,105 ops/s\"")]
    Rate,
}

/// Reads `2 GiB`, `1.5 TB` or `4096 B` into bytes. The space is optional; the unit is not.
///
/// # Errors
/// When it is no such text, its unit is unknown, or it is 2^64 bytes or more.
pub fn parse_bytes(text: &str) -> Result<u64, QuantityError> {
    parse_quantity(text, &SIZE_UNITS, "\"2 GiB\" or \"256 GB\"", "bytes")
}

/// Reads `20 s`, `500 ms`, `870 µs`, `1.5 min`, `1 h` or `2 h 5 min`. The space is optional; the unit is not.
///
/// # Errors
/// As [`parse_bytes`], of nanoseconds.
pub fn parse_duration(text: &str) -> Result<Duration, QuantityError> {
    const EXAMPLE: &str = "\"20 s\" or \"500 ms\"";
    let one =
        |text: &str| parse_quantity(text, &TIME_UNITS, EXAMPLE, "nanoseconds").map(Duration::from_nanos);
    // Several parts, each of a smaller unit than the one before.
    let starts: Vec<usize> = text
        .char_indices()
        .zip(std::iter::once(' ').chain(text.chars()))
        .filter(|((_, now), before)| now.is_ascii_digit() && is_blank(*before))
        .map(|((index, _), _)| index)
        .collect();
    if starts.len() < 2 {
        return one(text);
    }
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    let parts: Vec<Duration> =
        starts.iter().zip(ends).map(|(&start, end)| one(&text[start..end])).collect::<Result<_, _>>()?;
    let falls = parts.windows(2).all(|pair| pair[1] < pair[0]);
    match falls && text[..starts[0]].trim().is_empty() {
        true => Ok(parts.into_iter().sum()),
        false => Err(QuantityError::Form { example: EXAMPLE }),
    }
}

/// Seconds: a number of them, or a duration.
///
/// # Errors
/// When it is neither.
pub fn parse_seconds(text: &str) -> Result<f64, QuantityError> {
    match parse_number(text) {
        Some(seconds) => Ok(seconds),
        None => parse_duration(text).map(|duration| duration.as_secs_f64()),
    }
}

/// Reads `1105`, `1,105` or `1,105 ops/s` as operations a second.
///
/// # Errors
/// When it is no such text.
pub fn parse_rate(text: &str) -> Result<f64, QuantityError> {
    let text = text.trim();
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || "+-.,_eE".contains(c));
    let number = &text[..text.len() - unit.len()];
    let unit = unit.trim_matches(is_blank);
    if number.is_empty() {
        return Err(QuantityError::Rate);
    }
    if !RATE_UNITS.contains(&unit) {
        let expected = RATE_UNITS[1..].join(", ");
        return Err(QuantityError::Unit { unit: unit.to_owned(), expected });
    }
    parse_number(number).ok_or(QuantityError::Rate)
}

/// Reads `1210`, `$1,210` or `1210 USD`.
///
/// # Errors
/// When it is no such text.
pub fn parse_dollars(text: &str) -> Result<f64, QuantityError> {
    let text = text.trim();
    let text = text.strip_prefix('$').or_else(|| text.strip_suffix("USD")).unwrap_or(text);
    parse_number(text).ok_or(QuantityError::Form { example: "\"21.40\" or \"$1,210\"" })
}

/// Reads `0.03` or `3 %` as a share.
///
/// # Errors
/// When it is no such text.
pub fn parse_share(text: &str) -> Result<f64, QuantityError> {
    let share = match text.trim().strip_suffix('%') {
        Some(percent) => parse_number(percent).map(|percent| percent / 100.0),
        None => parse_number(text),
    };
    share.ok_or(QuantityError::Form { example: "\"0.03\" or \"3 %\"" })
}

/// Reads how many times: `64`, `x64` or `64x`.
///
/// # Errors
/// When it is no such text.
pub fn parse_factor(text: &str) -> Result<f64, QuantityError> {
    let text = text.trim();
    let number = text.strip_prefix('x').or_else(|| text.strip_suffix('x')).unwrap_or(text);
    parse_number(number).ok_or(QuantityError::Form { example: "\"64\" or \"x64\"" })
}

/// A number without a unit, its thousands perhaps apart.
fn parse_number(text: &str) -> Option<f64> {
    let text = text.trim_matches(is_blank).replace('_', "");
    let (whole, fraction) = text.split_once('.').map_or((text.as_str(), None), |(a, b)| (a, Some(b)));
    let sign = whole.len() - whole.trim_start_matches(['-', '+']).len();
    let whole = format!("{}{}", &whole[..sign], without_commas(&whole[sign..])?);
    let text = fraction.map_or(whole.clone(), |fraction| format!("{whole}.{fraction}"));
    text.parse::<f64>().ok().filter(|number| number.is_finite())
}

/// `1,105` is 1105; `None` where commas don't part thousands.
fn without_commas(text: &str) -> Option<String> {
    let mut groups = text.split(',');
    let first = groups.next().unwrap_or_default();
    let has_commas = first.len() < text.len();
    let is_apart = !has_commas
        || ((1..=3).contains(&first.len())
            && groups.all(|group| group.len() == 3 && group.bytes().all(|byte| byte.is_ascii_digit())));
    is_apart.then(|| text.replace(',', ""))
}

/// A blank, or one of those that keep a number and its unit on a line.
fn is_blank(letter: char) -> bool {
    letter.is_whitespace() || matches!(letter, '\u{a0}' | '\u{202f}' | '\u{2009}')
}

/// Reads `25 Gbit/s` or `120 MB/s` into bits a second. The space is optional; the unit is not.
///
/// # Errors
/// As [`parse_bytes`], of bits a second.
pub fn parse_bandwidth(text: &str) -> Result<u64, QuantityError> {
    parse_quantity(text, &BANDWIDTH_UNITS, "\"25 Gbit/s\" or \"120 MB/s\"", "bits a second")
}

/// The shortest exact form with a decimal or binary unit: [`parse_bytes`] gives the same number back.
pub fn format_bytes(bytes: u64) -> String {
    format_quantity(bytes, &SIZE_UNITS)
}

/// To three digits in a decimal unit, as drives are sold: `4.90 TB`.
pub fn rounded_bytes(bytes: u64) -> String {
    let steps = [("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    for (unit, size) in steps {
        let amount = bytes as f64 / size;
        // An amount that rounds to a whole of this unit is printed in it: 999.97 MB is 1 GB.
        if amount >= 0.9995 {
            let decimals = if amount < 10.0 {
                2
            } else if amount < 100.0 {
                1
            } else {
                0
            };
            let digits = format!("{amount:.decimals$}");
            let digits = if digits.contains('.') {
                digits.trim_end_matches('0').trim_end_matches('.').to_owned()
            } else {
                digits
            };
            return format!("{digits} {unit}");
        }
    }
    format!("{bytes} B")
}

/// The shortest exact form: [`parse_duration`] gives the same duration back, up to 584 years.
pub fn format_duration(duration: Duration) -> String {
    format_quantity(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX), &TIME_UNITS)
}

fn parse_quantity(
    text: &str,
    units: &[(&str, u64)],
    example: &'static str,
    base: &'static str,
) -> Result<u64, QuantityError> {
    let form = || QuantityError::Form { example };
    let text = text.trim_matches(is_blank);
    let unit_start =
        text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '_' | ','))).ok_or_else(form)?;
    let (number, unit) = (&text[..unit_start], text[unit_start..].trim_start_matches(is_blank));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains(',') {
        return Err(QuantityError::Comma);
    }
    let digits_only = |part: &str| part.chars().filter(|&c| c != '_').collect::<String>();
    let (whole, fraction) = (digits_only(whole), digits_only(fraction));
    let whole = without_commas(&whole).ok_or(QuantityError::Comma)?;
    if whole.is_empty() || fraction.contains('.') || (number.contains('.') && fraction.is_empty()) {
        return Err(form());
    }
    let spelling = OTHER_SPELLINGS.iter().find(|(other, _)| *other == unit).map_or(unit, |(_, usual)| usual);
    let factor =
        units.iter().find(|(name, _)| *name == spelling).map(|&(_, factor)| factor).ok_or_else(|| {
            let expected = units.iter().rev().map(|&(name, _)| name).collect::<Vec<_>>().join(", ");
            QuantityError::Unit { unit: unit.to_owned(), expected }
        })?;
    // In integers, so that what is printed reads back exactly; a unit has 50 bits, which leaves room for
    // 18 digits of fraction, and no unit has use for more.
    let range = || QuantityError::Range(base);
    let fraction = &fraction[..fraction.len().min(18)];
    let scale = 10u128.pow(fraction.len() as u32);
    let whole: u128 = whole.parse::<u64>().map_err(|_| range())?.into();
    let part: u128 =
        if fraction.is_empty() { 0 } else { fraction.parse::<u64>().map_err(|_| range())?.into() };
    let factor = u128::from(factor);
    // Below 2^64 * 2^50 plus a smaller fraction: 128 bits are enough.
    let total = whole * factor + (part * factor + scale / 2) / scale;
    u64::try_from(total).map_err(|_| range())
}

fn format_quantity(amount: u64, units: &[(&str, u64)]) -> String {
    let base = units.last().map_or("", |&(name, _)| name);
    units
        .iter()
        .filter(|&&(_, factor)| amount > 0 && amount.is_multiple_of(factor))
        .map(|&(name, factor)| format!("{} {name}", amount / factor))
        // Of forms of one length the first wins, which has the larger unit.
        .min_by_key(String::len)
        .unwrap_or_else(|| format!("{amount} {base}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_are_decimal_or_binary_by_their_unit() {
        assert_eq!(parse_bytes("2 GiB"), Ok(2 << 30));
        assert_eq!(parse_bytes("32 GB"), Ok(32_000_000_000));
        assert_eq!(parse_bytes("32GB"), Ok(32_000_000_000));
        assert_eq!(parse_bytes("1.5 TB"), Ok(1_500_000_000_000));
        assert_eq!(parse_bytes("0.5 KiB"), Ok(512));
        assert_eq!(parse_bytes("1_000 B"), Ok(1000));
    }

    #[test]
    fn durations_have_units() {
        assert_eq!(parse_duration("20 s"), Ok(Duration::from_secs(20)));
        assert_eq!(parse_duration("500 ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("2 min"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_duration("0.5 h"), Ok(Duration::from_secs(1800)));
    }

    #[test]
    fn bandwidths_are_in_bits_or_bytes_by_their_unit() {
        assert_eq!(parse_bandwidth("25 Gbit/s"), Ok(25_000_000_000));
        assert_eq!(parse_bandwidth("120 MB/s"), Ok(960_000_000));
        assert_eq!(parse_bandwidth("1.5 GiB/s"), Ok(12_884_901_888));
        assert!(parse_bandwidth("25 Gbps").unwrap_err().to_string().contains("Gbit/s"));
    }

    /// Both letters that look like it: U+00B5, which keyboards and tables have, and U+03BC, the Greek one.
    #[test]
    fn micro_sign_is_parsed_in_printed_forms() {
        for text in ["193 us", "193 \u{b5}s", "193 \u{3bc}s", "193\u{a0}\u{b5}s", "193\u{202f}\u{b5}s"] {
            assert_eq!(parse_duration(text), Ok(Duration::from_micros(193)), "{text}");
        }
    }

    #[test]
    fn thousands_may_be_apart_and_nothing_else() {
        assert_eq!(parse_bytes("1,105 MB"), Ok(1_105_000_000));
        assert_eq!(parse_bytes("1,234,567 B"), Ok(1_234_567));
        assert_eq!(parse_duration("1,500.5 ms"), Ok(Duration::from_micros(1_500_500)));
        for wrong in ["1,5 GB", "1,5000 B", "1234,567 B", ",105 B", "1,,105 B", "1.5,000 B"] {
            assert_eq!(parse_bytes(wrong), Err(QuantityError::Comma), "{wrong}");
        }
    }

    #[test]
    fn duration_of_two_units_is_parsed_as_printed() {
        assert_eq!(parse_duration("3 min 20 s"), Ok(Duration::from_secs(200)));
        assert_eq!(parse_duration("2 h 5 min"), Ok(Duration::from_secs(7500)));
        for wrong in ["20 s 3 min", "3 min 20", "5 s 5 s", "x 3 min 20 s"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn number_argument_is_parsed_as_printed() {
        for (text, expected) in
            [("1105", 1105.0), ("1,105", 1105.0), ("1,105 ops/s", 1105.0), ("2_000/s", 2000.0)]
        {
            assert_eq!(parse_rate(text), Ok(expected), "{text}");
        }
        assert_eq!(parse_rate("4e3"), Ok(4000.0));
        for wrong in ["", "ops/s", "1,1", "5 MB/s", "inf", "nan"] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_dollars("$1,210"), Ok(1210.0));
        assert_eq!(parse_dollars("21.40 USD"), Ok(21.4));
        assert_eq!(parse_share("3 %"), Ok(0.03));
        assert_eq!(parse_factor("x64"), Ok(64.0));
        assert_eq!(parse_factor("22.1x"), Ok(22.1));
        assert_eq!(parse_seconds("90"), Ok(90.0));
        assert_eq!(parse_seconds("-1"), Ok(-1.0));
        assert_eq!(parse_seconds("1.5 min"), Ok(90.0));
        assert!(parse_seconds("soon").is_err());
    }

    #[test]
    fn invalid_quantity_is_refused_with_reason() {
        for text in ["", "GB", "12", ".5 GB", "5. GB", "1.2.3 GB", "-1 GB", "1e3 GB"] {
            assert!(
                matches!(parse_bytes(text), Err(QuantityError::Form { .. } | QuantityError::Unit { .. })),
                "{text}"
            );
        }
        assert_eq!(parse_bytes("99999999 PB"), Err(QuantityError::Range("bytes")));
        assert_eq!(parse_bytes("99999999999999999999 B"), Err(QuantityError::Range("bytes")));
        assert_eq!(
            parse_duration("2 minutes").unwrap_err().to_string(),
            "unknown unit 'minutes': expected one of ns, us, ms, s, min, h"
        );
    }

    proptest! {
        #[test]
        fn printed_size_reads_back(bytes in prop_oneof![any::<u64>(), (0u64..5000, 0usize..12).prop_map(|(n, unit)| n * SIZE_UNITS[unit].1)]) {
            prop_assert_eq!(parse_bytes(&format_bytes(bytes)), Ok(bytes));
        }

        #[test]
        fn printed_duration_reads_back(ns in any::<u64>()) {
            prop_assert_eq!(parse_duration(&format_duration(Duration::from_nanos(ns))), Ok(Duration::from_nanos(ns)));
        }

        #[test]
        fn arbitrary_text_never_panics(text in "\\PC{0,30}", number in "[0-9., _]{0,40}", unit in "[A-Za-zµ$%/]{0,5}") {
            let _ = parse_bytes(&text);
            for text in [&text, &format!("{number} {unit}"), &format!("{unit}{number}")] {
                let _ = parse_duration(text);
                let _ = parse_bandwidth(text);
                for read in [parse_rate, parse_dollars, parse_share, parse_factor, parse_seconds] {
                    prop_assert!(read(text).is_ok_and(f64::is_finite) || read(text).is_err());
                }
            }
        }
    }
}
