//! Zipf's law over ranks, by the method of Gray et al., "Quickly Generating Billion-Record Synthetic Databases"
//! (SIGMOD 1994): the first two ranks exactly, the others by a continuous approximation of the inverse, which YCSB
//! uses too. It gives ranks 2 and 3 up to 17 % too much, and the later octaves of ranks what they are due within 7 %.

use rand::{Rng, RngExt};

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
    theta: f64,
    alpha: f64,
    eta: f64,
    zeta_items: f64,
    /// `1 + 2^-theta`: scaled draws below it are of rank 0 or 1.
    zeta_two: f64,
    /// What `zeta(n)` has beside its tail at `n`: makes following a growing number of items cheap.
    zeta_offset: f64,
}

impl Zipfian {
    /// Ranks over `items`, at least one, with the exponent `theta` (0 < theta < 1).
    pub fn new(items: u64, theta: f64) -> Self {
        Zipfian::with_zeta(items, theta, zeta(items, theta))
    }

    /// The same with a zeta that is known already.
    pub fn with_zeta(items: u64, theta: f64, zeta_items: f64) -> Self {
        let mut zipfian = Zipfian {
            items: items.max(1),
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
        // With two items or fewer every draw is one of the first two ranks, and eta would be 0 / 0.
        self.eta = if self.items <= 2 {
            0.0
        } else {
            (1.0 - (2.0 / self.items as f64).powf(1.0 - self.theta)) / (1.0 - self.zeta_two / self.zeta_items)
        };
    }

    pub fn items(&self) -> u64 {
        self.items
    }

    /// Follows a number of items that has changed, in constant time.
    pub fn set_items(&mut self, items: u64) {
        let items = items.max(1);
        if items == self.items {
            return;
        }
        self.items = items;
        self.zeta_items = if items <= DIRECT_TERMS {
            zeta(items, self.theta)
        } else {
            self.zeta_offset + tail(items as f64, self.theta)
        };
        self.set_eta();
    }

    pub fn next<R: Rng>(&self, rng: &mut R) -> u64 {
        self.rank_of(rng.random())
    }

    /// The rank at the point `u` of the cumulative distribution, 0 <= u < 1.
    pub fn rank_of(&self, u: f64) -> u64 {
        let scaled = u * self.zeta_items;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < self.zeta_two {
            return 1.min(self.items - 1);
        }
        let rank = self.items as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha);
        // Rounding may reach `items` itself at u close to one.
        (rank as u64).min(self.items - 1)
    }
}
