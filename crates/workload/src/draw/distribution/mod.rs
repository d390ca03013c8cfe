//! Which record the next operation accesses: YCSB's request distributions, each in constant memory.
//!
//! A generator draws record *numbers*; [`crate::draw::keys`] turns them into names. Every thread has its own generator
//! with its own random numbers, so nothing is shared on the path to a request.

mod counter;
mod exponential;
mod hotspot;
mod latest;
mod remainder;
mod scrambled;
mod sequential;
mod uniform;
mod zipfian;

use std::fmt;
use std::sync::Arc;

use rand::Rng;

pub use counter::CounterDistribution;
pub use exponential::Exponential;
pub use hotspot::Hotspot;
pub use latest::Latest;
pub use scrambled::ScrambledZipfian;
pub use sequential::Sequential;
pub use uniform::Uniform;
pub use zipfian::{ZIPFIAN_CONSTANT, Zipfian, zeta};

/// The record numbers `first ..= last`, never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRange {
    first: u64,
    last: u64,
}

impl KeyRange {
    /// `count` numbers from `first` on; `None` when there are none, or the last would not fit 63 bits, as YCSB's do.
    pub fn new(first: u64, count: u64) -> Option<Self> {
        let last = first.checked_add(count.checked_sub(1)?)?;
        (last < i64::MAX as u64).then_some(KeyRange { first, last })
    }

    pub fn first(self) -> u64 {
        self.first
    }

    pub fn last(self) -> u64 {
        self.last
    }

    /// The number of record numbers, at least one.
    pub fn count(self) -> u64 {
        self.last - self.first + 1
    }
}

/// A request distribution by its CoreWorkload name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestDistribution {
    Uniform,
    Zipfian,
    Latest,
    Hotspot,
    Exponential,
    Sequential,
}

impl RequestDistribution {
    pub const ALL: [RequestDistribution; 6] = [
        RequestDistribution::Uniform,
        RequestDistribution::Zipfian,
        RequestDistribution::Latest,
        RequestDistribution::Hotspot,
        RequestDistribution::Exponential,
        RequestDistribution::Sequential,
    ];

    pub fn name(self) -> &'static str {
        match self {
            RequestDistribution::Uniform => "uniform",
            RequestDistribution::Zipfian => "zipfian",
            RequestDistribution::Latest => "latest",
            RequestDistribution::Hotspot => "hotspot",
            RequestDistribution::Exponential => "exponential",
            RequestDistribution::Sequential => "sequential",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        RequestDistribution::ALL.into_iter().find(|distribution| distribution.name() == name)
    }

    /// `uniform, zipfian, ...`: the expected values in a message.
    pub fn names() -> String {
        RequestDistribution::ALL.map(RequestDistribution::name).join(", ")
    }
}

impl fmt::Display for RequestDistribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One thread's generator of record numbers.
#[derive(Clone, Debug)]
pub enum KeyChooser {
    Uniform(Uniform),
    Zipfian(ScrambledZipfian),
    Latest(Latest),
    Hotspot(Hotspot),
    Exponential(Exponential),
    Sequential(Arc<Sequential>),
}

impl KeyChooser {
    /// A record number up to `last_acknowledged`, the highest number up to which every insert was answered.
    pub fn next<R: Rng>(&mut self, rng: &mut R, last_acknowledged: u64) -> u64 {
        match self {
            KeyChooser::Uniform(uniform) => uniform.next(rng),
            // The keyspace is larger than the existing records, so that popular keys stay popular while it grows.
            // Numbers that do not exist yet are drawn again.
            KeyChooser::Zipfian(zipfian) => loop {
                let number = zipfian.next(rng);
                if number <= last_acknowledged {
                    return number;
                }
            },
            KeyChooser::Latest(latest) => latest.next(rng, last_acknowledged),
            KeyChooser::Hotspot(hotspot) => hotspot.next(rng),
            KeyChooser::Exponential(exponential) => exponential.next(rng, last_acknowledged),
            KeyChooser::Sequential(sequential) => sequential.next(),
        }
    }

    /// Fills the buffer with record numbers, in the order in which [`KeyChooser::next`] would return them. Numbers that
    /// do not exist yet are drawn again from `redraws`, so that the others do not depend on how many are drawn at once.
    #[inline(always)]
    pub fn fill<R: Rng>(
        &mut self,
        rng: &mut R,
        redraws: &mut R,
        last_acknowledged: u64,
        numbers: &mut [u64],
    ) {
        match self {
            KeyChooser::Zipfian(_) => {
                numbers.iter_mut().for_each(|bits| *bits = rng.next_u64());
                self.replace_all(redraws, last_acknowledged, numbers);
            }
            others => numbers.fill_with(|| others.next(rng, last_acknowledged)),
        }
    }

    /// Whether each number is derived from 64 random bits.
    pub fn takes_bits(&self) -> bool {
        matches!(self, KeyChooser::Zipfian(_))
    }

    /// [`Self::fill`] with bits that were drawn earlier, where it [`Self::takes_bits`].
    #[inline(always)]
    pub fn replace_all<R: Rng>(&self, redraws: &mut R, last_acknowledged: u64, bits: &mut [u64]) {
        if let KeyChooser::Zipfian(zipfian) = self {
            zipfian.replace_all(bits);
            for number in bits {
                while *number > last_acknowledged {
                    *number = zipfian.next(redraws);
                }
            }
        }
    }
}
