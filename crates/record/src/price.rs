//! The devices' price, and its rented part.

use std::iter::Sum;
use std::ops::{Add, Mul};

/// The price of something rented is so many years' rent, so that it can stand beside that of something bought.
pub const RENT_YEARS: u32 = 3;

/// A sum of prices in US dollars.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PriceSum {
    pub usd: f64,
    /// The part of it that is [`RENT_YEARS`] years' rent.
    pub rent_usd: f64,
}

impl PriceSum {
    pub fn new(usd: f64, is_rent: bool) -> PriceSum {
        PriceSum { usd, rent_usd: if is_rent { usd } else { 0.0 } }
    }

    /// Nothing of it buys anything.
    pub fn is_rent(&self) -> bool {
        self.usd > 0.0 && self.rent_usd >= self.usd * (1.0 - 1e-9)
    }

    /// The remark beside dollars that were computed from it, such as those for a terabyte.
    pub fn remark_on_part(&self) -> Option<String> {
        match self.rent_usd {
            rent if rent <= 0.0 => None,
            _ if self.is_rent() => Some(format!("{RENT_YEARS} years' rent")),
            _ => Some(format!("partly {RENT_YEARS} years' rent")),
        }
    }

    /// The remark behind the dollars: `3 years' rent` where all of it is. None of what is bought.
    pub fn remark(&self, dollars: impl Fn(f64) -> String) -> Option<String> {
        match self.rent_usd {
            rent if rent <= 0.0 => None,
            _ if self.is_rent() => Some(format!("{RENT_YEARS} years' rent")),
            rent => Some(format!("{} of it {RENT_YEARS} years' rent", dollars(rent))),
        }
    }
}

impl Add for PriceSum {
    type Output = PriceSum;

    fn add(self, other: PriceSum) -> PriceSum {
        PriceSum { usd: self.usd + other.usd, rent_usd: self.rent_usd + other.rent_usd }
    }
}

impl Mul<f64> for PriceSum {
    type Output = PriceSum;

    fn mul(self, count: f64) -> PriceSum {
        PriceSum { usd: self.usd * count, rent_usd: self.rent_usd * count }
    }
}

impl Sum for PriceSum {
    fn sum<I: Iterator<Item = PriceSum>>(prices: I) -> PriceSum {
        prices.fold(PriceSum::default(), Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rent_is_named_also_within_a_sum() {
        let dollars = |usd: f64| format!("${usd}");
        let (drive, volume) = (PriceSum::new(200.0, false), PriceSum::new(2_880.0, true));
        assert_eq!(drive.remark(dollars), None);
        assert_eq!(volume.remark(dollars).as_deref(), Some("3 years' rent"));
        assert_eq!((volume * 2.0).remark(dollars).as_deref(), Some("3 years' rent"));
        let both: PriceSum = [drive, volume].into_iter().sum();
        assert_eq!((both.usd, both.is_rent()), (3_080.0, false));
        assert_eq!(both.remark(dollars).as_deref(), Some("$2880 of it 3 years' rent"));
        assert_eq!(both.remark_on_part().as_deref(), Some("partly 3 years' rent"));
        assert_eq!((PriceSum::default().remark(dollars), drive.remark_on_part()), (None, None));
    }
}
