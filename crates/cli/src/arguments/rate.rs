//! An offered rate as it is written: one, several steps, or a ramp.

use std::str::FromStr;

use underlay_config::units;

/// Operations per second.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RateArgument {
    Constant(f64),
    /// `1000,2000,4000`: one after the other, each as long as the others.
    Steps(Vec<f64>),
    /// `1000..4000`: evenly from the first to the second.
    Ramp(f64, f64),
}

impl RateArgument {
    /// The rate that it begins with.
    pub(crate) fn first_per_s(&self) -> f64 {
        match self {
            RateArgument::Constant(rate) | RateArgument::Ramp(rate, _) => *rate,
            RateArgument::Steps(rates) => rates.first().copied().unwrap_or_default(),
        }
    }
}

impl FromStr for RateArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rate = |part: &str| match units::parse_rate(part) {
            Ok(rate) if rate > 0.0 => Ok(rate),
            _ => Err(format!("'{part}' is not a rate: expected a number of operations per second above 0")),
        };
        if let Some((from, to)) = text.split_once("..") {
            return Ok(RateArgument::Ramp(rate(from)?, rate(to)?));
        }
        // `1,105 ops/s` and `20,000` are as tables print one rate.
        let groups: Vec<&str> = text.trim().split(',').collect();
        let (first, last) = (groups[0], groups[groups.len() - 1]);
        let is_apart = groups.len() > 1 && units::parse_rate(text).is_ok();
        if is_apart
            && (last.contains('/')
                || last.ends_with("IOPS")
                || groups[1..].iter().any(|group| group.starts_with('0')))
        {
            return rate(text).map(RateArgument::Constant);
        }
        if is_apart && first.len() < 3 {
            let (one, several) = (text.replace(',', ""), text.replace(',', ", "));
            return Err(format!(
                "'{text}' may be one rate or several: write {one} for one, or '{several}' for several"
            ));
        }
        let rates = text.split(',').map(rate).collect::<Result<Vec<f64>, String>>()?;
        Ok(match rates[..] {
            [one] => RateArgument::Constant(one),
            _ => RateArgument::Steps(rates),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_in_their_three_forms() {
        let read = |text: &str| text.parse::<RateArgument>();
        assert_eq!(read("20_000"), Ok(RateArgument::Constant(20_000.0)));
        assert_eq!(read("0.5"), Ok(RateArgument::Constant(0.5)));
        assert_eq!(read("1000, 2000,4e3"), Ok(RateArgument::Steps(vec![1000.0, 2000.0, 4000.0])));
        assert_eq!(read("1000..50_000"), Ok(RateArgument::Ramp(1000.0, 50_000.0)));
        assert_eq!(read("100,200,400"), Ok(RateArgument::Steps(vec![100.0, 200.0, 400.0])));
        assert_eq!(read("50, 100"), Ok(RateArgument::Steps(vec![50.0, 100.0])));
        for wrong in ["", "max", "0", "-5", "1000,", "..5", "5..", "1..2..3", "inf"] {
            assert!(read(wrong).unwrap_err().contains("expected a number of operations"), "{wrong}");
        }
        assert_eq!(read("1000..50_000").unwrap().first_per_s(), 1000.0);
        assert_eq!(read("7,5").unwrap().first_per_s(), 7.0);
    }

    #[test]
    fn rate_is_parsed_as_printed() {
        let read = |text: &str| text.parse::<RateArgument>();
        for (text, expected) in
            [("20,000", 20_000.0), ("1,105 ops/s", 1105.0), ("1,234,056", 1_234_056.0), ("2000/s", 2000.0)]
        {
            assert_eq!(read(text), Ok(RateArgument::Constant(expected)), "{text}");
        }
        assert_eq!(read("1,000..2,000 ops/s"), Ok(RateArgument::Ramp(1000.0, 2000.0)));
        assert!(read("1,105").unwrap_err().contains("may be one rate or several"));
    }
}
