//! The names of records: `user` and a number, as in YCSB.

use crate::draw::decimal;

const FNV_OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// FNV-1a over the eight bytes of `number`, lowest first, made non-negative as a signed number: YCSB's hash of
/// record numbers.
pub fn fnv1a_64(number: u64) -> u64 {
    fnv1a_of_bytes(number, 8, 1)
}

/// The hash of the lowest `bytes` bytes, multiplied by `power` for the ones above.
#[inline]
fn fnv1a_of_bytes(number: u64, bytes: u32, power: u64) -> u64 {
    let mut hash = FNV_OFFSET_BASIS;
    let mut rest = number;
    for _ in 0..bytes {
        hash = (hash ^ (rest & 0xff)).wrapping_mul(FNV_PRIME);
        rest >>= 8;
    }
    // Math.abs in YCSB, which leaves Long.MIN_VALUE as it is.
    (hash.wrapping_mul(power) as i64).wrapping_abs() as u64
}

/// [`fnv1a_64`], faster for numbers up to a bound. A zero byte only multiplies, so all the zero bytes above the bound
/// are one multiplication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberHash {
    /// Numbers with more bytes are hashed byte by byte.
    bytes: u32,
    /// The prime to the power of the number of bytes left out.
    power: u64,
}

impl NumberHash {
    /// Fast for the numbers `0 ..= most`, correct for all.
    pub fn up_to(most: u64) -> Self {
        let bytes = 8 - most.leading_zeros() / 8;
        NumberHash { bytes, power: FNV_PRIME.wrapping_pow(8 - bytes) }
    }

    #[inline]
    pub fn hash_number(self, number: u64) -> u64 {
        if self.bytes < 8 && number >> (8 * self.bytes) != 0 {
            return fnv1a_64(number);
        }
        fnv1a_of_bytes(number, self.bytes, self.power)
    }

    /// Replaces many numbers by their hashes.
    #[inline(always)]
    pub fn replace_all(self, numbers: &mut [u64]) {
        let bits = numbers.iter().fold(0, |bits, &number| bits | number);
        if self.bytes < 8 && bits >> (8 * self.bytes) != 0 {
            return replace_all::<8>(numbers, 1);
        }
        // A loop whose iterations are all alike can process several numbers at once.
        match self.bytes {
            1 => replace_all::<1>(numbers, self.power),
            2 => replace_all::<2>(numbers, self.power),
            3 => replace_all::<3>(numbers, self.power),
            4 => replace_all::<4>(numbers, self.power),
            5 => replace_all::<5>(numbers, self.power),
            6 => replace_all::<6>(numbers, self.power),
            7 => replace_all::<7>(numbers, self.power),
            _ => replace_all::<8>(numbers, self.power),
        }
    }
}

#[inline(always)]
fn replace_all<const BYTES: u32>(numbers: &mut [u64], power: u64) {
    for number in numbers {
        *number = fnv1a_of_bytes(*number, BYTES, power);
    }
}

/// The order of loaded records by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertOrder {
    /// Names are hashes of the numbers: loading jumps around in the keyspace.
    Hashed,
    /// Names are the numbers themselves.
    Ordered,
}

impl InsertOrder {
    pub fn name(self) -> &'static str {
        match self {
            InsertOrder::Hashed => "hashed",
            InsertOrder::Ordered => "ordered",
        }
    }
}

/// How record numbers become names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyNaming {
    pub order: InsertOrder,
    /// Numbers of fewer digits are padded with zeros on the left.
    pub zero_padding: u32,
}

impl KeyNaming {
    pub const PREFIX: &'static [u8] = b"user";
    /// The longest padding: far above the 20 digits that a number can have.
    pub const MAX_ZERO_PADDING: u32 = 1000;

    /// The name of record `number`. For many names, use [`RecordKeys`].
    pub fn name(&self, number: u64) -> Vec<u8> {
        let mut names = RecordKeys::new(*self, number, 1);
        names.write(0, number);
        names.get(0).to_vec()
    }

    /// The usual length of names, for sizes. Hashed names have 19 digits (nine in ten hashes do), ordered ones those of
    /// the last number.
    pub fn typical_bytes(&self, record_count: u64) -> u64 {
        let digits = match self.order {
            InsertOrder::Hashed => 19,
            InsertOrder::Ordered => u64::from(record_count.max(1).ilog10()) + 1,
        };
        Self::PREFIX.len() as u64 + digits.max(u64::from(self.zero_padding))
    }
}

/// The names of some records, each in its own place, where they can be rewritten without moving a byte.
#[derive(Clone, Debug)]
pub struct RecordKeys {
    naming: KeyNaming,
    hash: NumberHash,
    places: Vec<KeyBuffer>,
    /// All places, one after the other. Each ends with its name's last digit. Everything before the last
    /// [`decimal::WIDTH`] digits that is not the prefix is zeros of the padding.
    text: Vec<u8>,
    place_bytes: usize,
    /// The parts of the numbers in the names, the highest of each first.
    parts: [Vec<u64>; 3],
}

/// Where a name begins in its place.
type KeyBuffer = usize;

impl RecordKeys {
    /// Room for `places` names. Record numbers up to `most` are fast; any number is correct.
    pub fn new(naming: KeyNaming, most: u64, places: usize) -> Self {
        let digits = decimal::WIDTH.max(naming.zero_padding as usize);
        let place_bytes = (KeyNaming::PREFIX.len() + digits).next_multiple_of(8);
        RecordKeys {
            naming,
            hash: NumberHash::up_to(most),
            places: vec![place_bytes; places],
            text: vec![b'0'; place_bytes * places],
            place_bytes,
            parts: std::array::from_fn(|_| vec![0; places]),
        }
    }

    /// The name in a place; empty before the first one was written.
    #[inline]
    pub fn get(&self, place: usize) -> &[u8] {
        let begin = place * self.place_bytes;
        &self.text[begin + self.places[place]..begin + self.place_bytes]
    }

    /// Writes the name of record `number` in a place.
    pub fn write(&mut self, place: usize, number: u64) {
        let value = match self.naming.order {
            InsertOrder::Hashed => self.hash.hash_number(number),
            InsertOrder::Ordered => number,
        };
        let text = &mut self.text[place * self.place_bytes..][..self.place_bytes];
        self.places[place] =
            write(decimal::parts(value).map(decimal::spread), self.naming.zero_padding, text);
    }

    /// Writes the names of all these records, in consecutive places from the first one. Each step processes all of
    /// them, so that the processor works on several at once.
    #[inline(always)]
    pub fn write_all(&mut self, numbers: &mut [u64]) {
        if self.naming.order == InsertOrder::Hashed {
            self.hash.replace_all(numbers);
        }
        let [high, middle, low] = self.parts.each_mut().map(|parts| &mut parts[..numbers.len()]);
        for (place, &mut value) in numbers.iter_mut().enumerate() {
            [high[place], middle[place], low[place]] = decimal::parts(value);
        }
        for parts in [&mut *high, &mut *middle, &mut *low] {
            for part in parts {
                *part = decimal::spread(*part);
            }
        }
        let texts = self.text.chunks_exact_mut(self.place_bytes);
        for (((text, place), &high), (&middle, &low)) in
            texts.zip(&mut self.places).zip(&*high).zip(middle.iter().zip(&*low))
        {
            *place = write([high, middle, low], self.naming.zero_padding, text);
        }
    }
}

/// Writes a number's digits to the end of a place, and the prefix before them. Returns where the name begins.
#[inline(always)]
fn write(words: decimal::DigitWords, zero_padding: u32, text: &mut [u8]) -> KeyBuffer {
    let end = text.len();
    let digits = text.last_chunk_mut().expect("a place has room for a number's digits");
    let first = end - decimal::WIDTH + decimal::write(words, digits);
    // The prefix is either within the digits that are rewritten each time, or always in the same place.
    let first = first.min(end - zero_padding as usize);
    let start = first - KeyNaming::PREFIX.len();
    text[start..first].copy_from_slice(KeyNaming::PREFIX);
    start
}
