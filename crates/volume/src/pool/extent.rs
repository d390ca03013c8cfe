//! What a volume's map says of 256 KiB of it, and how that is written down.

use std::sync::Arc;

/// The unit of addressing of volumes and members.
pub const BLOCK_BYTES: u64 = 4096;
/// What a map's entry speaks of, and the size in which members' space is given out.
pub const EXTENT_BYTES: u64 = 256 << 10;
pub const BLOCKS: u32 = (EXTENT_BYTES / BLOCK_BYTES) as u32;
/// What is compressed as one.
pub const CHUNK_BYTES: u64 = 16 << 10;
pub const CHUNKS: usize = (EXTENT_BYTES / CHUNK_BYTES) as usize;

/// A slab is an extent's worth of space on a member; slabs are numbered over all members.
pub type Slab = u32;
/// A block of a slab: slab number times 64, plus the block in it.
pub type Unit = u64;

pub fn first_unit(slab: Slab) -> Unit {
    u64::from(slab) * u64::from(BLOCKS)
}

pub fn slab_of(unit: Unit) -> Slab {
    (unit / u64::from(BLOCKS)) as Slab
}

/// `count` bits from `from` on.
pub fn mask(from: u32, count: u32) -> u64 {
    if count == 0 { 0 } else { (u64::MAX >> (64 - count)) << from }
}

/// The runs of ones in `bits`, as (first, count).
pub fn runs(mut bits: u64) -> impl Iterator<Item = (u32, u32)> {
    std::iter::from_fn(move || {
        if bits == 0 {
            return None;
        }
        let first = bits.trailing_zeros();
        let count = (!(bits >> first)).trailing_zeros();
        bits &= !mask(first, count);
        Some((first, count))
    })
}

/// An extent that is mapped. What is not mapped reads as zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MappedExtent {
    Plain(PlainExtent),
    Packed(Arc<PackedExtent>),
}

/// Stored as it is, in its own slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainExtent {
    pub slab: Slab,
    /// Another slab with the same.
    pub copy: Option<Slab>,
    /// By block: whether it was written. All other blocks read as zeros, not as the slab's old bytes.
    pub valid: u64,
}

/// Stored chunk by chunk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackedExtent {
    pub chunks: [Option<StoredChunk>; CHUNKS],
    /// Absent where no chunk has a second copy.
    pub copies: Option<Box<[Option<Unit>; CHUNKS]>>,
}

/// Where a chunk lies, in one word: most of a compressed volume's memory is these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredChunk(std::num::NonZeroU64);

impl StoredChunk {
    /// `bytes` is 1 to 16384; a chunk that is as long as ever is stored as it is.
    pub fn new(unit: Unit, bytes: u32) -> Option<StoredChunk> {
        // 48 bits of unit, 16 of length. The length is never 0, so neither is the word, and an `Option` of it
        // is no longer.
        let fits = (1..=CHUNK_BYTES as u32).contains(&bytes) && unit < 1 << 48;
        fits.then(|| std::num::NonZeroU64::new(unit << 16 | u64::from(bytes)).map(StoredChunk)).flatten()
    }

    pub fn unit(self) -> Unit {
        self.0.get() >> 16
    }

    pub fn bytes(self) -> u32 {
        (self.0.get() & 0xFFFF) as u32
    }

    pub fn units(self) -> u32 {
        self.bytes().div_ceil(BLOCK_BYTES as u32)
    }
}

/// Something that a map pointed to and no longer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleasedSpace {
    Slab(Slab),
    Run { unit: Unit, units: u32 },
}

impl ReleasedSpace {
    pub fn slab(self) -> Slab {
        match self {
            ReleasedSpace::Slab(slab) => slab,
            ReleasedSpace::Run { unit, .. } => slab_of(unit),
        }
    }
}

/// What a plain extent counts for in the map, at its longest: 9 bytes of the record around it, then tag,
/// slab, copy and valid blocks (1, 4, 4, 8).
pub const PLAIN_MAP_BYTES: u64 = 26;

/// What an extent takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtentUsage {
    pub used_bytes: u64,
    pub stored_bytes: u64,
    /// In the encoded map.
    pub map_bytes: u64,
    /// What is there only once.
    pub single: u64,
}

impl MappedExtent {
    pub fn pieces(&self) -> Vec<ReleasedSpace> {
        match self {
            MappedExtent::Plain(plain) => {
                [Some(plain.slab), plain.copy].into_iter().flatten().map(ReleasedSpace::Slab).collect()
            }
            MappedExtent::Packed(packed) => (0..CHUNKS).flat_map(|chunk| packed.pieces_of(chunk)).collect(),
        }
    }

    pub fn usage(&self) -> ExtentUsage {
        match self {
            MappedExtent::Plain(plain) => {
                let bytes = u64::from(plain.valid.count_ones()) * BLOCK_BYTES;
                // The longest, so that a discard never makes the map longer.
                let map_bytes = PLAIN_MAP_BYTES;
                ExtentUsage {
                    used_bytes: bytes,
                    stored_bytes: bytes,
                    map_bytes,
                    single: u64::from(plain.copy.is_none()),
                }
            }
            MappedExtent::Packed(packed) => {
                let mut usage =
                    ExtentUsage { map_bytes: self.encoded_bytes() as u64, ..ExtentUsage::default() };
                for (chunk, stored) in packed.stored() {
                    usage.used_bytes += CHUNK_BYTES;
                    usage.stored_bytes += u64::from(stored.bytes());
                    usage.single += u64::from(packed.copy(chunk).is_none());
                }
                usage
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        match self {
            MappedExtent::Plain(plain) => plain.valid == 0,
            MappedExtent::Packed(packed) => packed.stored().next().is_none(),
        }
    }

    /// The length of [`MappedExtent::encode`]'s output, with the record around it.
    pub fn encoded_bytes(&self) -> usize {
        let mut bytes = Vec::with_capacity(160);
        self.encode(&mut bytes);
        // The record's tag, volume and index.
        bytes.len() + 9
    }

    pub fn encode(&self, bytes: &mut Vec<u8>) {
        match self {
            MappedExtent::Plain(PlainExtent { slab, copy, valid }) => {
                let full = *valid == u64::MAX;
                let copies = if copy.is_some() { WITH_COPIES } else { 0 };
                bytes.push(PLAIN | copies | if full { FULL } else { 0 });
                bytes.extend(slab.to_le_bytes());
                bytes.extend(copy.iter().flat_map(|copy| copy.to_le_bytes()));
                if !full {
                    bytes.extend(valid.to_le_bytes());
                }
            }
            MappedExtent::Packed(packed) => {
                bytes.push(PACKED | if packed.copies.is_some() { WITH_COPIES } else { 0 });
                let present = packed.stored().fold(0u16, |bits, (chunk, _)| bits | 1 << chunk);
                bytes.extend(present.to_le_bytes());
                // Neighbours on the volume are mostly neighbours on the member: small numbers.
                let (mut expected, mut expected_copy) = (0, 0);
                for (chunk, stored) in packed.stored() {
                    put_number(u64::from(stored.bytes()), bytes);
                    put_signed(stored.unit().wrapping_sub(expected) as i64, bytes);
                    expected = stored.unit() + u64::from(stored.units());
                    if packed.copies.is_some() {
                        let copy = packed.copy(chunk);
                        bytes.push(u8::from(copy.is_some()));
                        if let Some(copy) = copy {
                            put_signed(copy.wrapping_sub(expected_copy) as i64, bytes);
                            expected_copy = copy + u64::from(stored.units());
                        }
                    }
                }
            }
        }
    }

    /// An extent at the beginning of `bytes`, and what follows it.
    pub fn decode(bytes: &[u8]) -> Option<(MappedExtent, &[u8])> {
        let (tag, mut rest) = bytes.split_first()?;
        let with_copies = tag & WITH_COPIES != 0;
        match tag & !(WITH_COPIES | FULL) {
            PLAIN => {
                let slab = take_u32(&mut rest)?;
                let copy = if with_copies { Some(take_u32(&mut rest)?) } else { None };
                let valid = if tag & FULL != 0 { u64::MAX } else { take_u64(&mut rest)? };
                Some((MappedExtent::Plain(PlainExtent { slab, copy, valid }), rest))
            }
            PACKED if tag & FULL == 0 => {
                let (present, after) = rest.split_first_chunk::<2>()?;
                let present = u16::from_le_bytes(*present);
                rest = after;
                let mut packed = PackedExtent::default();
                let mut copies = Box::new([None; CHUNKS]);
                let (mut expected, mut expected_copy) = (0u64, 0u64);
                for chunk in (0..CHUNKS).filter(|chunk| present >> chunk & 1 == 1) {
                    let stored_bytes = u32::try_from(take_number(&mut rest)?).ok()?;
                    let unit = expected.wrapping_add(take_signed(&mut rest)? as u64);
                    let stored = StoredChunk::new(unit, stored_bytes)?;
                    expected = unit + u64::from(stored.units());
                    packed.chunks[chunk] = Some(stored);
                    if with_copies {
                        let (flag, after) = rest.split_first()?;
                        rest = after;
                        if *flag != 0 {
                            let copy = expected_copy.wrapping_add(take_signed(&mut rest)? as u64);
                            // Checked as `StoredChunk::new` does, so that damaged bytes can't make the sum below
                            // overflow.
                            copies[chunk] = Some(copy).filter(|copy| *copy < 1 << 48)?.into();
                            expected_copy = copy + u64::from(stored.units());
                        }
                    }
                }
                packed.copies = with_copies.then_some(copies);
                Some((MappedExtent::Packed(Arc::new(packed)), rest))
            }
            _ => None,
        }
    }
}

impl PackedExtent {
    pub fn stored(&self) -> impl Iterator<Item = (usize, StoredChunk)> + '_ {
        self.chunks.iter().enumerate().filter_map(|(chunk, stored)| stored.map(|stored| (chunk, stored)))
    }

    pub fn copy(&self, chunk: usize) -> Option<Unit> {
        self.copies.as_ref().and_then(|copies| copies[chunk])
    }

    pub fn pieces_of(&self, chunk: usize) -> impl Iterator<Item = ReleasedSpace> + use<> {
        let stored = self.chunks[chunk];
        let copy = self.copy(chunk);
        stored.into_iter().flat_map(move |stored| {
            let units = stored.units();
            std::iter::once(stored.unit()).chain(copy).map(move |unit| ReleasedSpace::Run { unit, units })
        })
    }

    pub fn set(&mut self, chunk: usize, stored: Option<StoredChunk>, copy: Option<Unit>) {
        self.chunks[chunk] = stored;
        if copy.is_some() || self.copies.is_some() {
            self.copies.get_or_insert_with(|| Box::new([None; CHUNKS]))[chunk] = copy;
        }
        if self.copies.as_ref().is_some_and(|copies| copies.iter().all(Option::is_none)) {
            self.copies = None;
        }
    }
}

const PLAIN: u8 = 0;
const PACKED: u8 = 1;
const WITH_COPIES: u8 = 2;
const FULL: u8 = 4;

/// LEB128: seven bits a byte, the lowest first.
fn put_number(mut number: u64, bytes: &mut Vec<u8>) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn put_signed(number: i64, bytes: &mut Vec<u8>) {
    // Zigzag, so that small negative numbers are short as well.
    put_number((number << 1 ^ number >> 63) as u64, bytes);
}

fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn take_signed(bytes: &mut &[u8]) -> Option<i64> {
    take_number(bytes).map(|number| (number >> 1) as i64 ^ -((number & 1) as i64))
}

pub fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    let (number, rest) = bytes.split_first_chunk::<4>()?;
    *bytes = rest;
    Some(u32::from_le_bytes(*number))
}

pub fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    let (number, rest) = bytes.split_first_chunk::<8>()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*number))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn extent() -> impl Strategy<Value = MappedExtent> {
        let plain = (any::<u32>(), any::<Option<u32>>(), prop_oneof![Just(u64::MAX), any::<u64>()])
            .prop_map(|(slab, copy, valid)| MappedExtent::Plain(PlainExtent { slab, copy, valid }));
        let chunk = (0..CHUNKS, 0..1u64 << 38, 1..=CHUNK_BYTES as u32, prop::option::of(0..1u64 << 38));
        let packed = prop::collection::vec(chunk, 0..20).prop_map(|chunks| {
            let mut packed = PackedExtent::default();
            for (chunk, unit, bytes, copy) in chunks {
                packed.set(chunk, StoredChunk::new(unit, bytes), copy);
            }
            MappedExtent::Packed(Arc::new(packed))
        });
        prop_oneof![plain, packed]
    }

    proptest! {
        #[test]
        fn encoded_extent_decodes_to_itself(extent in extent(), trailing in prop::collection::vec(any::<u8>(), 0..9)) {
            let mut bytes = Vec::new();
            extent.encode(&mut bytes);
            prop_assert_eq!(extent.encoded_bytes(), bytes.len() + 9);
            bytes.extend(&trailing);
            let (decoded, rest) = MappedExtent::decode(&bytes).unwrap();
            prop_assert_eq!(decoded, extent);
            prop_assert_eq!(rest, trailing.as_slice());
        }

        #[test]
        fn runs_are_the_bits(bits in any::<u64>()) {
            let mut again = 0;
            let mut end = 0;
            for (first, count) in runs(bits) {
                prop_assert!(again == 0 || first > end, "runs touch");
                again |= mask(first, count);
                end = first + count;
            }
            prop_assert_eq!(again, bits);
        }
    }
}
