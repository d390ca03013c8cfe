//! The names of records: `user` and a number, YCSB's way.

const FNV_OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// FNV-1a over the eight bytes of `number`, lowest first, made non-negative as a signed number: YCSB's hash of
/// record numbers.
pub fn fnv1a_64(number: u64) -> u64 {
    let mut hash = FNV_OFFSET_BASIS;
    for byte in number.to_le_bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME);
    }
    (hash as i64).wrapping_abs() as u64
}

/// The order that loading writes records in, seen by their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertOrder {
    /// Names are hashes of the numbers: loading jumps about in the keyspace.
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

/// Makes names of record numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyNaming {
    pub order: InsertOrder,
    /// Numbers of fewer digits are filled up with zeros on the left.
    pub zero_padding: u32,
}

impl KeyNaming {
    pub const PREFIX: &'static [u8] = b"user";
    /// The longest padding: far above the 20 digits that a number can have.
    pub const MAX_ZERO_PADDING: u32 = 1000;

    /// Replaces `name` by the name of record `number`. Allocates only when `name` has to grow.
    pub fn write(&self, number: u64, name: &mut Vec<u8>) {
        name.clear();
        name.extend_from_slice(Self::PREFIX);
        let mut value = match self.order {
            InsertOrder::Hashed => fnv1a_64(number),
            InsertOrder::Ordered => number,
        };
        let mut digits = [0u8; 20];
        let mut first = digits.len();
        loop {
            first -= 1;
            digits[first] = b'0' + (value % 10) as u8;
            value /= 10;
            if value == 0 {
                break;
            }
        }
        let padding = (self.zero_padding as usize).saturating_sub(digits.len() - first);
        name.resize(name.len() + padding, b'0');
        name.extend_from_slice(&digits[first..]);
    }

    pub fn name(&self, number: u64) -> Vec<u8> {
        let mut name = Vec::new();
        self.write(number, &mut name);
        name
    }

    /// The length of most names, for sizes: 19 digits when hashed (nine in ten hashes have as many), those of the
    /// last number when ordered.
    pub fn typical_bytes(&self, record_count: u64) -> u64 {
        let digits = match self.order {
            InsertOrder::Hashed => 19,
            InsertOrder::Ordered => u64::from(record_count.max(1).ilog10()) + 1,
        };
        Self::PREFIX.len() as u64 + digits.max(u64::from(self.zero_padding))
    }
}
