//! Numbers in YCSB's format, which is Java's.

/// A double in the format of `Double.toString`: with at least one digit after the point, and with an exponent from 10^7
/// up and below 10^-3.
pub(super) fn double(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let magnitude = value.abs();
    if magnitude == 0.0 || (1e-3..1e7).contains(&magnitude) {
        return format!("{value:?}");
    }
    // The shortest digits that parse to the same number: `1.23456789e7`.
    let text = format!("{value:e}");
    let (digits, exponent) = text.split_once('e').expect("an exponent was asked for");
    let point = if digits.contains('.') { "" } else { ".0" };
    format!("{digits}{point}E{exponent}")
}

/// A double in the format of `DecimalFormat("#.##")`: at most two digits after the point, without trailing zeros.
pub(super) fn two_decimals(value: f64) -> String {
    if !value.is_finite() {
        return if value.is_nan() { "NaN".to_owned() } else { format!("{value}").replace("inf", "∞") };
    }
    let text = format!("{value:.2}");
    let trimmed = text.trim_end_matches('0').trim_end_matches('.');
    trimmed.to_owned()
}

/// A percentile's name: `95th`, `1st`, `99.9`. Whole numbers have an ending, the others none.
pub(super) fn ordinal(percentile: f64) -> String {
    if percentile.fract() != 0.0 {
        return double(percentile);
    }
    let whole = percentile as u64;
    let ending = match (whole % 100, whole % 10) {
        (11..=13, _) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
        _ => "th",
    };
    format!("{whole}{ending}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As printed by Java 17.
    #[test]
    fn doubles_are_javas() {
        let expected = [
            (0.0, "0.0"),
            (1.0, "1.0"),
            (2500.0, "2500.0"),
            (0.001, "0.001"),
            (0.000999, "9.99E-4"),
            (1e7, "1.0E7"),
            (9_999_999.999, "9999999.999"),
            (12_345_678.9, "1.23456789E7"),
            (1.0 / 3.0, "0.3333333333333333"),
            (1e21, "1.0E21"),
            (123_456_789_012.0, "1.23456789012E11"),
            (-0.5, "-0.5"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "Infinity"),
            (f64::NEG_INFINITY, "-Infinity"),
        ];
        for (value, text) in expected {
            assert_eq!(double(value), text);
        }
    }

    #[test]
    fn short_decimals_are_javas() {
        let expected = [
            (0.0, "0"),
            (0.5, "0.5"),
            (0.001, "0"),
            (9_999_999.999, "10000000"),
            (1.0 / 3.0, "0.33"),
            (100.0, "100"),
            (2.345, "2.35"),
            (1.005, "1"),
            (123_456.789, "123456.79"),
            (999.996, "1000"),
            (f64::INFINITY, "∞"),
        ];
        for (value, text) in expected {
            assert_eq!(two_decimals(value), text);
        }
    }

    #[test]
    fn percentiles_have_the_endings_of_their_numbers() {
        let expected = [
            (1.0, "1st"),
            (2.0, "2nd"),
            (3.0, "3rd"),
            (11.0, "11th"),
            (12.0, "12th"),
            (21.0, "21st"),
            (50.0, "50th"),
            (99.0, "99th"),
            (99.9, "99.9"),
            (100.0, "100th"),
        ];
        for (percentile, text) in expected {
            assert_eq!(ordinal(percentile), text);
        }
    }

    proptest! {
        #[test]
        fn double_survives_round_trip(bits in any::<u64>()) {
            let value = f64::from_bits(bits);
            prop_assume!(value.is_finite());
            let text = double(value);
            prop_assert!(text.contains('.'), "{text}");
            prop_assert_eq!(text.parse::<f64>().unwrap().to_bits(), bits);
        }
    }
}
