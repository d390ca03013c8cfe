//! Durations as findings tell them.

/// Microseconds in the unit that reads short, rounded: `132.8 ms`, `36.0 µs`, `0.30 µs`, `2.431 s`.
pub fn latency_in_words(us: f64) -> String {
    let (value, unit) = match us.abs() {
        // A value that would be printed as 1,000 belongs to the next unit.
        long if long >= 999_950.0 => (us / 1e6, "s"),
        middle if middle >= 999.95 => (us / 1e3, "ms"),
        _ => (us, "µs"),
    };
    let decimals = match value.abs() {
        small if small < 0.999 => 2,
        small if small >= 100.0 || unit == "µs" => 1,
        small if small >= 10.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_is_printed_in_fitting_unit() {
        for (us, words) in [
            (0.3, "0.30 µs"),
            (36.0, "36.0 µs"),
            (999.9, "999.9 µs"),
            (999.99, "1.000 ms"),
            (1_000.0, "1.000 ms"),
            (12_345.0, "12.35 ms"),
            (132_776.0, "132.8 ms"),
            (2_431_000.0, "2.431 s"),
            (-20.0, "-20.0 µs"),
        ] {
            assert_eq!(latency_in_words(us), words);
        }
    }
}
