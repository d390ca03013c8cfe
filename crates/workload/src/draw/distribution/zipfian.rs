//! Zipf's law over ranks, by the method of Gray et al., "Quickly Generating Billion-Record Synthetic Databases" (SIGMOD
//! 1994). The first two ranks are exact; the others use a continuous approximation of the inverse, as in YCSB. It gives
//! ranks 2 and 3 up to 17 % too much, and the later octaves of ranks their due share within 7 %.

use rand::Rng;

/// The exponent that YCSB uses.
pub const ZIPFIAN_CONSTANT: f64 = 0.99;

/// From here on zeta is summed by formula: its error is below 1e-15 there.
const DIRECT_TERMS: u64 = 64;

/// `sum of i^-theta for i in 1..=n`. Large `n` cost no more than small ones: the tail is the Euler-Maclaurin
/// formula, whose first neglected term is of order `theta^5 * 64^(-theta - 5)`.
pub fn zeta(n: u64, theta: f64) -> f64 {
    let direct = n.min(DIRECT_TERMS);
    let head: f64 = (1..=direct).map(|i| (i as f64).powf(-theta)).sum();
    if n <= DIRECT_TERMS {
        return head;
    }
    head + tail(n as f64, theta) - tail(DIRECT_TERMS as f64, theta)
}

/// The antiderivative of `x^-theta` with the boundary terms of Euler-Maclaurin at `x`.
fn tail(x: f64, theta: f64) -> f64 {
    let power = x.powf(-theta);
    let integral = if theta == 1.0 { x.ln() } else { x * power / (1.0 - theta) };
    let third = theta * (theta + 1.0) * (theta + 2.0);
    integral + power / 2.0 - theta * power / (12.0 * x) + third * power / (720.0 * x * x * x)
}

/// Ranks `0 .. items`, rank `k` with probability close to `(k + 1)^-theta / zeta(items)`.
#[derive(Clone, Copy, Debug)]
pub struct Zipfian {
    items: u64,
    /// The same as a number with fractions.
    width: f64,
    /// The initial number of items.
    first_width: f64,
    theta: f64,
    alpha: f64,
    eta: f64,
    zeta_items: f64,
    /// `1 + 2^-theta`: scaled draws below it have rank 0 or 1.
    zeta_two: f64,
    /// The part of `zeta(n)` besides its tail at `n`: this makes following a growing number of items cheap.
    zeta_offset: f64,
}

impl Zipfian {
    /// Ranks over `items`, at least one, with the exponent `theta` (0 < theta < 1).
    pub fn new(items: u64, theta: f64) -> Self {
        Zipfian::with_zeta(items, theta, zeta(items, theta))
    }

    /// The same with a known zeta.
    pub fn with_zeta(items: u64, theta: f64, zeta_items: f64) -> Self {
        let mut zipfian = Zipfian {
            items: items.max(1),
            width: items.max(1) as f64,
            first_width: items.max(1) as f64,
            theta,
            alpha: 1.0 / (1.0 - theta),
            eta: 0.0,
            zeta_items,
            zeta_two: 1.0 + 0.5f64.powf(theta),
            zeta_offset: zeta(DIRECT_TERMS, theta) - tail(DIRECT_TERMS as f64, theta),
        };
        zipfian.set_eta();
        zipfian
    }

    fn set_eta(&mut self) {
        let curve_width = if self.first_width > 2.0 { self.first_width } else { self.width };
        // With two items or fewer every draw is one of the first two ranks, and eta would be 0 / 0.
        self.eta = if self.items <= 2 {
            0.0
        } else {
            (1.0 - (2.0 / curve_width).powf(1.0 - self.theta)) / (1.0 - self.zeta_two / self.zeta_items)
        };
    }

    pub fn items(&self) -> u64 {
        self.items
    }

    /// Adapts to a new number of items, in constant time, and by YCSB's law. Zeta is that of the present items, but the
    /// curve of the ranks from 2 on keeps the shape of the initial items. So if many were added, the ranks just above 1
    /// are skipped.
    pub fn set_items(&mut self, items: u64) {
        let items = items.max(1);
        if items == self.items {
            return;
        }
        self.items = items;
        self.width = items as f64;
        self.zeta_items = if items <= DIRECT_TERMS {
            zeta(items, self.theta)
        } else {
            self.zeta_offset + tail(items as f64, self.theta)
        };
        self.set_eta();
    }

    #[inline]
    pub fn next<R: Rng>(&self, rng: &mut R) -> u64 {
        self.rank_of(point_of(rng.next_u64()))
    }

    /// The rank at the point `u` of the cumulative distribution, 0 <= u < 1.
    #[inline]
    pub fn rank_of(&self, u: f64) -> u64 {
        let scaled = u * self.zeta_items;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < self.zeta_two {
            return 1.min(self.items - 1);
        }
        let rank = self.width * self.stretched(self.eta * u - self.eta + 1.0);
        // Through a signed number, which processors convert from fractions in one step. Rounding may reach `items`
        // itself at u close to one.
        (rank as i64 as u64).min(self.items - 1)
    }

    /// Replaces random bits by the ranks that they stand for, like repeated [`Self::next`].
    #[inline(always)]
    pub fn replace_all(&self, bits: &mut [u64]) {
        if self.theta != ZIPFIAN_CONSTANT {
            bits.iter_mut().for_each(|bits| *bits = self.rank_of(point_of(*bits)));
            return;
        }
        for bits in bits {
            *bits = self.rank_without_branches(point_of(*bits));
        }
    }

    /// [`Self::rank_of`] in a form that computes all cases and then selects one.
    #[inline(always)]
    fn rank_without_branches(&self, u: f64) -> u64 {
        let scaled = u * self.zeta_items;
        let rank = self.width * self.hundredth_power(self.eta * u - self.eta + 1.0);
        // SAFETY: eta and u are from 0 to 1, so the power is too, and the width is a number of records.
        let rank = unsafe { rank.to_int_unchecked::<i64>() } as u64;
        let rank = rank.min(self.items - 1);
        let rank = if scaled < self.zeta_two { 1.min(self.items - 1) } else { rank };
        if scaled < 1.0 { 0 } else { rank }
    }

    /// `base^alpha`. With YCSB's exponent alpha is 100 except for rounding: a few multiplications, and no logarithm.
    /// This changes less than 1e-13 of the rank.
    #[inline]
    fn stretched(&self, base: f64) -> f64 {
        if self.theta != ZIPFIAN_CONSTANT { base.powf(self.alpha) } else { self.hundredth_power(base) }
    }

    #[inline(always)]
    fn hundredth_power(&self, base: f64) -> f64 {
        let fourth = (base * base) * (base * base);
        let sixteenth = (fourth * fourth) * (fourth * fourth);
        let thirty_second = sixteenth * sixteenth;
        (thirty_second * thirty_second) * (thirty_second * fourth)
    }
}

/// A number from 0 up to 1, which is excluded: as many random bits as its fraction has.
#[inline(always)]
fn point_of(bits: u64) -> f64 {
    (bits >> (u64::BITS - f64::MANTISSA_DIGITS)) as f64 / (1u64 << f64::MANTISSA_DIGITS) as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranks_are_the_same_with_and_without_branches(items in 1u64..10_000_000_001, u in 0.0f64..1.0) {
            let zipfian = Zipfian::new(items, ZIPFIAN_CONSTANT);
            prop_assert_eq!(zipfian.rank_without_branches(u), zipfian.rank_of(u));
        }

        #[test]
        fn hundredth_power_matches_library(items in 3u64..10_000_000_001, u in 0.0f64..1.0) {
            let zipfian = Zipfian::new(items, ZIPFIAN_CONSTANT);
            let base = zipfian.eta * u - zipfian.eta + 1.0;
            let (found, expected) = (zipfian.stretched(base), base.powf(zipfian.alpha));
            prop_assert!((found / expected - 1.0).abs() < 1e-12, "{found}, expected {expected}");
        }
    }
}
