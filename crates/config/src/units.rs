//! Sizes, durations and bandwidths as people write them: `2 GiB`, `500 ms`, `25 Gbit/s`.

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
const BANDWIDTH_UNITS: [(&str, u64); 7] = [
    ("Gbit/s", 1_000_000_000),
    ("Mbit/s", 1_000_000),
    ("GB/s", 8_000_000_000),
    ("MB/s", 8_000_000),
    ("GiB/s", 8 << 30),
    ("MiB/s", 8 << 20),
    ("kB/s", 8_000),
];

/// Why a quantity could not be read; printed as `expected ...`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("expected a number and a unit, as in {example}")]
    Form { example: &'static str },
    #[error("unknown unit '{unit}': expected one of {expected}")]
    Unit { unit: String, expected: String },
    #[error("too large: expected less than 2^64 {0}")]
    Range(&'static str),
}

/// Reads `2 GiB`, `1.5 TB` or `4096 B` into bytes. The space is optional; the unit is not.
///
/// # Errors
/// When it is no such text, its unit is unknown, or it is 2^64 bytes or more.
pub fn parse_bytes(text: &str) -> Result<u64, QuantityError> {
    parse_quantity(text, &SIZE_UNITS, "\"2 GiB\" or \"256 GB\"", "bytes")
}

/// Reads `20 s`, `500 ms`, `1.5 min` or `1 h`. The space is optional; the unit is not.
///
/// # Errors
/// As [`parse_bytes`], of nanoseconds.
pub fn parse_duration(text: &str) -> Result<Duration, QuantityError> {
    parse_quantity(text, &TIME_UNITS, "\"20 s\" or \"500 ms\"", "nanoseconds").map(Duration::from_nanos)
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
        // What rounds to a whole of this unit is printed in it: 999.97 MB is 1 GB.
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
    let text = text.trim();
    let unit_start = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).ok_or_else(form)?;
    let (number, unit) = (&text[..unit_start], text[unit_start..].trim_start());
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits_only = |part: &str| part.chars().filter(|&c| c != '_').collect::<String>();
    let (whole, fraction) = (digits_only(whole), digits_only(fraction));
    if whole.is_empty() || fraction.contains('.') || (number.contains('.') && fraction.is_empty()) {
        return Err(form());
    }
    let factor =
        units.iter().find(|(name, _)| *name == unit).map(|&(_, factor)| factor).ok_or_else(|| {
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

    #[test]
    fn what_is_no_quantity_is_refused_with_the_reason() {
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
        fn a_printed_size_reads_back(bytes in prop_oneof![any::<u64>(), (0u64..5000, 0usize..12).prop_map(|(n, unit)| n * SIZE_UNITS[unit].1)]) {
            prop_assert_eq!(parse_bytes(&format_bytes(bytes)), Ok(bytes));
        }

        #[test]
        fn a_printed_duration_reads_back(ns in any::<u64>()) {
            prop_assert_eq!(parse_duration(&format_duration(Duration::from_nanos(ns))), Ok(Duration::from_nanos(ns)));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,30}", number in "[0-9._]{0,40}", unit in "[A-Za-z]{0,4}") {
            let _ = parse_bytes(&text);
            let _ = parse_duration(&format!("{number} {unit}"));
        }
    }
}
