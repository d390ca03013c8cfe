//! Written values: printable bytes, drawn or derived, in a reusable buffer.
//!
//! Bytes are between 0x20 and 0x5f, six random bits each, so that text columns accept them. A share of every value is
//! random and the rest repeats one word; `compressibility` sets the share.

use std::sync::Arc;

use rand::{Rng, RngExt};

use crate::draw::distribution::{ZIPFIAN_CONSTANT, Zipfian};
use crate::draw::length_histogram::LengthHistogram;

/// Repeated over the compressible part.
const FILLER: [u8; 8] = *b"underlay";

/// The length of field values, in bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum FieldLength {
    Constant(u32),
    /// Every length from the first to the second, both included, equally likely.
    Uniform(u32, u32),
    /// From the first to the second, short ones most likely by Zipf's law.
    Zipfian(u32, u32),
    /// With the frequencies of a histogram.
    Histogram(Arc<LengthHistogram>),
}

impl FieldLength {
    pub fn max_bytes(&self) -> u32 {
        match *self {
            FieldLength::Constant(max) | FieldLength::Uniform(_, max) | FieldLength::Zipfian(_, max) => max,
            FieldLength::Histogram(ref histogram) => histogram.max_bytes(),
        }
    }

    /// The expected length.
    pub fn mean_bytes(&self) -> f64 {
        match *self {
            FieldLength::Histogram(ref histogram) => histogram.mean_bytes(),
            FieldLength::Constant(length) => f64::from(length),
            FieldLength::Uniform(min, max) => (f64::from(min) + f64::from(max)) / 2.0,
            FieldLength::Zipfian(min, max) => {
                let count = u64::from(max - min) + 1;
                // The mean rank: the sum of k (k + 1)^-theta is zeta(n, theta - 1) - zeta(n, theta).
                let zeta = crate::draw::distribution::zeta;
                let mass = zeta(count, ZIPFIAN_CONSTANT);
                f64::from(min) + (zeta(count, ZIPFIAN_CONSTANT - 1.0) - mass) / mass
            }
        }
    }
}

/// Draws lengths or counts from a closed range: field lengths and scan lengths.
#[derive(Clone, Debug)]
pub enum LengthChooser {
    Constant(u32),
    Uniform(u32, u32),
    Zipfian(u32, Zipfian),
    Histogram(Arc<LengthHistogram>),
}

impl LengthChooser {
    /// Short lengths most likely, by Zipf's law over `min ..= max`.
    pub fn zipfian(min: u32, max: u32) -> Self {
        let count = u64::from(max.saturating_sub(min)) + 1;
        LengthChooser::Zipfian(min, Zipfian::new(count, ZIPFIAN_CONSTANT))
    }

    pub fn from_length(length: &FieldLength) -> Self {
        match *length {
            FieldLength::Histogram(ref histogram) => LengthChooser::Histogram(Arc::clone(histogram)),
            FieldLength::Constant(length) => LengthChooser::Constant(length),
            FieldLength::Uniform(min, max) => LengthChooser::Uniform(min, max.max(min)),
            FieldLength::Zipfian(min, max) => LengthChooser::zipfian(min, max),
        }
    }

    pub fn next<R: Rng>(&self, rng: &mut R) -> u32 {
        match self {
            LengthChooser::Constant(length) => *length,
            LengthChooser::Uniform(min, max) => rng.random_range(*min..=*max),
            LengthChooser::Zipfian(min, ranks) => min + ranks.next(rng) as u32,
            LengthChooser::Histogram(histogram) => histogram.next(rng),
        }
    }
}

/// A stream of words for value bytes: SplitMix64, a counter passed through a mixing function (Steele, Lea and Flood,
/// "Fast Splittable Pseudorandom Number Generators", 2014). One multiplication chain per word, restartable from 64
/// bits.
#[derive(Clone, Copy, Debug)]
pub struct WordStream {
    state: u64,
}

impl WordStream {
    pub fn new(seed: u64) -> Self {
        WordStream { state: seed }
    }

    pub fn next_word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }
}

/// SplitMix64's mixing function: every bit of the input reaches every bit of the output.
pub(crate) fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Eight printable bytes from 48 of the word's bits.
fn printable(word: u64) -> [u8; 8] {
    ((word & 0x3f3f_3f3f_3f3f_3f3f) + 0x2020_2020_2020_2020).to_le_bytes()
}

/// Fills a value: `compressibility` (0 to 1) of it repeats a word, the rest is drawn from `words`.
pub fn fill(value: &mut [u8], words: &mut WordStream, compressibility: f64) {
    let (random, filler) = value.split_at_mut(random_bytes(value.len(), compressibility));
    fill_random(random, words);
    fill_repeating(filler);
}

/// How many bytes of a value are drawn, counted from its start.
pub(crate) fn random_bytes(length: usize, compressibility: f64) -> usize {
    ((length as f64 * (1.0 - compressibility)).ceil() as usize).min(length)
}

/// Fills the drawn part of a value.
pub(crate) fn fill_random(bytes: &mut [u8], words: &mut WordStream) {
    let mut chunks = bytes.chunks_exact_mut(8);
    for chunk in &mut chunks {
        chunk.copy_from_slice(&printable(words.next_word()));
    }
    let rest = chunks.into_remainder();
    if !rest.is_empty() {
        // Byte by byte, since a copy of variable length would take longer for so few.
        let drawn = printable(words.next_word());
        rest.iter_mut().zip(drawn).for_each(|(byte, drawn)| *byte = drawn);
    }
}

/// Fills the part of a value that repeats.
pub(crate) fn fill_repeating(bytes: &mut [u8]) {
    let mut chunks = bytes.chunks_exact_mut(8);
    for chunk in &mut chunks {
        chunk.copy_from_slice(&FILLER);
    }
    let rest = chunks.into_remainder();
    let length = rest.len();
    rest.copy_from_slice(&FILLER[..length]);
}
