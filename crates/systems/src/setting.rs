//! Reading the values of settings as studies write them. An error says what was expected.

use std::ops::RangeInclusive;

const MIB: f64 = (1 << 20) as f64;

/// The choice of this name, in capitals or not.
pub fn one_of<T: Copy>(text: &str, choices: &[(&str, T)]) -> Result<T, String> {
    let found = choices.iter().find(|&&(name, _)| name.eq_ignore_ascii_case(text));
    found.map(|&(_, value)| value).ok_or_else(|| expected_one_of(choices))
}

/// What [`one_of`] reads as `value`: nothing if there is no such choice.
pub fn name_of<T: PartialEq>(value: T, choices: &[(&str, T)]) -> String {
    choices.iter().find(|(_, choice)| *choice == value).map_or("", |&(name, _)| name).to_owned()
}

/// The complaint about a word that is none of these names.
pub fn expected_one_of<T>(choices: &[(&str, T)]) -> String {
    let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
    format!("expected one of {}", names.join(", "))
}

/// A whole number, with `_` between its digits where one likes.
pub fn within(text: &str, least: u64, most: u64) -> Result<u64, String> {
    let number = text.replace('_', "").parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("expected a whole number from {least} to {most}"))
}

/// A part: `0.25` or `25 %`. A mistake is shown the `example`.
pub fn share(text: &str, range: &RangeInclusive<f64>, example: &str) -> Result<f64, String> {
    let number = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map(|percent| percent / 100.0),
        None => text.parse::<f64>(),
    };
    number.ok().filter(|share| range.contains(share)).ok_or_else(|| {
        format!("expected a part from {} to {}, such as {example}", range.start(), range.end())
    })
}

/// The complaint about a memory budget.
pub fn too_small(budget_bytes: u64, least_bytes: u64) -> String {
    let mib = |bytes: u64| bytes as f64 / MIB;
    format!("{:.1} MiB is too small: expected at least {:.0} MiB", mib(budget_bytes), mib(least_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_and_mistakes_say_what_was_expected() {
        let choices = [("fast", 1), ("slow", 2)];
        assert_eq!((one_of("FAST", &choices), name_of(2, &choices)), (Ok(1), "slow".to_owned()));
        assert_eq!(one_of("quick", &choices).unwrap_err(), "expected one of fast, slow");
        assert_eq!(within("1_024", 4, 1024), Ok(1024));
        assert_eq!(within("3", 4, 1024).unwrap_err(), "expected a whole number from 4 to 1024");
        let range = 0.05..=0.8;
        assert_eq!((share("0.25", &range, ""), share("30 %", &range, "")), (Ok(0.25), Ok(0.3)));
        for wrong in ["NaN", "", "0.9", "4 %"] {
            assert_eq!(
                share(wrong, &range, "0.25 or 25 %").unwrap_err(),
                "expected a part from 0.05 to 0.8, such as 0.25 or 25 %"
            );
        }
        assert_eq!(too_small(1 << 20, 3 << 19), "1.0 MiB is too small: expected at least 2 MiB");
    }
}
