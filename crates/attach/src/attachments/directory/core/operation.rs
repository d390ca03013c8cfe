//! The changes that the tree is made of, and how they stand in the journal.
//!
//! A record of the journal is one transaction: operations one after the other, each a tag and its fields. Numbers are
//! LEB128; a byte string has its length before it. A snapshot is the transaction that makes the whole tree anew.

use std::ops::Range;

/// Seconds and nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    pub s: i64,
    pub ns: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

const KINDS: [Kind; 7] = [
    Kind::File,
    Kind::Directory,
    Kind::Symlink,
    Kind::Fifo,
    Kind::Socket,
    Kind::CharDevice,
    Kind::BlockDevice,
];

/// What stat(2) shows and may change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The twelve bits of permissions, set-ids and sticky.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    Make {
        inode: u64,
        kind: Kind,
        /// Where its blocks should begin, on the device.
        home: u64,
        device_number: u32,
        /// Of a symbolic link.
        target: Vec<u8>,
        attributes: Attributes,
    },
    SetAttributes {
        inode: u64,
        attributes: Attributes,
    },
    Link {
        parent: u64,
        name: Vec<u8>,
        inode: u64,
    },
    Unlink {
        parent: u64,
        name: Vec<u8>,
    },
    Map {
        inode: u64,
        at: u64,
        device: u64,
        count: u64,
        written: bool,
    },
    Unmap {
        inode: u64,
        range: Range<u64>,
    },
    SetXattr {
        inode: u64,
        name: Vec<u8>,
        value: Vec<u8>,
    },
    RemoveXattr {
        inode: u64,
        name: Vec<u8>,
    },
    /// The inode is gone, and its blocks are free.
    Remove {
        inode: u64,
    },
    /// Inodes below this number have been used.
    NextInode {
        inode: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a record is damaged at byte {0}")]
pub struct Unreadable(pub usize);

impl Operation {
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Operation::Make { inode, kind, home, device_number, target, attributes } => {
                out.push(1);
                put(out, *inode);
                out.push(KINDS.iter().position(|known| known == kind).unwrap_or(0) as u8);
                put(out, *home);
                put(out, u64::from(*device_number));
                put_bytes(out, target);
                put_attributes(out, attributes);
            }
            Operation::SetAttributes { inode, attributes } => {
                out.push(2);
                put(out, *inode);
                put_attributes(out, attributes);
            }
            Operation::Link { parent, name, inode } => {
                out.push(3);
                put(out, *parent);
                put_bytes(out, name);
                put(out, *inode);
            }
            Operation::Unlink { parent, name } => {
                out.push(4);
                put(out, *parent);
                put_bytes(out, name);
            }
            Operation::Map { inode, at, device, count, written } => {
                out.push(if *written { 5 } else { 6 });
                put(out, *inode);
                put(out, *at);
                put(out, *device);
                put(out, *count);
            }
            Operation::Unmap { inode, range } => {
                out.push(7);
                put(out, *inode);
                put(out, range.start);
                put(out, range.end);
            }
            Operation::SetXattr { inode, name, value } => {
                out.push(8);
                put(out, *inode);
                put_bytes(out, name);
                put_bytes(out, value);
            }
            Operation::RemoveXattr { inode, name } => {
                out.push(9);
                put(out, *inode);
                put_bytes(out, name);
            }
            Operation::Remove { inode } => {
                out.push(10);
                put(out, *inode);
            }
            Operation::NextInode { inode } => {
                out.push(11);
                put(out, *inode);
            }
        }
    }
}

/// All operations of a record.
///
/// # Errors
/// Where they are damaged.
pub fn decode(record: &[u8]) -> Result<Vec<Operation>, Unreadable> {
    let mut reader = Reader { bytes: record, at: 0 };
    let mut operations = Vec::new();
    while reader.at < record.len() {
        operations.push(reader.operation().ok_or(Unreadable(reader.at))?);
    }
    Ok(operations)
}

fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn put_attributes(out: &mut Vec<u8>, attributes: &Attributes) {
    let Attributes { mode, uid, gid, size, atime, mtime, ctime } = attributes;
    [u64::from(*mode), u64::from(*uid), u64::from(*gid), *size].into_iter().for_each(|field| put(out, field));
    for time in [atime, mtime, ctime] {
        // Sign and magnitude folded, so that times before 1970 stay short.
        put(out, ((time.s << 1) ^ (time.s >> 63)) as u64);
        put(out, u64::from(time.ns));
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn operation(&mut self) -> Option<Operation> {
        Some(match self.byte()? {
            1 => Operation::Make {
                inode: self.number()?,
                kind: *KINDS.get(usize::from(self.byte()?))?,
                home: self.number()?,
                device_number: self.number()?.try_into().ok()?,
                target: self.string()?,
                attributes: self.attributes()?,
            },
            2 => Operation::SetAttributes { inode: self.number()?, attributes: self.attributes()? },
            3 => Operation::Link { parent: self.number()?, name: self.string()?, inode: self.number()? },
            4 => Operation::Unlink { parent: self.number()?, name: self.string()? },
            tag @ (5 | 6) => Operation::Map {
                inode: self.number()?,
                at: self.number()?,
                device: self.number()?,
                count: self.number()?,
                written: tag == 5,
            },
            7 => Operation::Unmap { inode: self.number()?, range: self.number()?..self.number()? },
            8 => Operation::SetXattr { inode: self.number()?, name: self.string()?, value: self.string()? },
            9 => Operation::RemoveXattr { inode: self.number()?, name: self.string()? },
            10 => Operation::Remove { inode: self.number()? },
            11 => Operation::NextInode { inode: self.number()? },
            _ => return None,
        })
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                return None;
            }
            number |= part << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn string(&mut self) -> Option<Vec<u8>> {
        let length = usize::try_from(self.number()?).ok()?;
        let bytes = self.bytes.get(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        Some(bytes.to_vec())
    }

    fn attributes(&mut self) -> Option<Attributes> {
        Some(Attributes {
            mode: self.number()?.try_into().ok()?,
            uid: self.number()?.try_into().ok()?,
            gid: self.number()?.try_into().ok()?,
            size: self.number()?,
            atime: self.time()?,
            mtime: self.time()?,
            ctime: self.time()?,
        })
    }

    fn time(&mut self) -> Option<Timestamp> {
        let folded = self.number()?;
        let s = (folded >> 1) as i64 ^ -((folded & 1) as i64);
        Some(Timestamp { s, ns: self.number()?.try_into().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn some_attributes() -> impl Strategy<Value = Attributes> {
        let time = || (any::<i64>(), 0..1_000_000_000_u32).prop_map(|(s, ns)| Timestamp { s, ns });
        (0..0o10000_u32, any::<u32>(), any::<u32>(), any::<u64>(), time(), time(), time()).prop_map(
            |(mode, uid, gid, size, atime, mtime, ctime)| Attributes {
                mode,
                uid,
                gid,
                size,
                atime,
                mtime,
                ctime,
            },
        )
    }

    fn some_operation() -> impl Strategy<Value = Operation> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..20);
        let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
        (0..10_u8, numbers, bytes(), bytes(), some_attributes(), 0..7_usize, any::<bool>()).prop_map(
            |(tag, (inode, at, device, count), name, value, attributes, kind, written)| match tag {
                0 => Operation::Make {
                    inode,
                    kind: KINDS[kind],
                    home: at,
                    device_number: device as u32,
                    target: name,
                    attributes,
                },
                1 => Operation::SetAttributes { inode, attributes },
                2 => Operation::Link { parent: at, name, inode },
                3 => Operation::Unlink { parent: inode, name },
                4 => Operation::Map { inode, at, device, count, written },
                5 => Operation::Unmap { inode, range: at..count },
                6 => Operation::SetXattr { inode, name, value },
                7 => Operation::RemoveXattr { inode, name },
                8 => Operation::Remove { inode },
                _ => Operation::NextInode { inode },
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn records_read_back(operations in proptest::collection::vec(some_operation(), 0..10)) {
            let mut record = Vec::new();
            operations.iter().for_each(|operation| operation.encode(&mut record));
            prop_assert_eq!(decode(&record), Ok(operations));
        }

        #[test]
        fn noise_never_panics(record in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&record);
        }
    }
}
