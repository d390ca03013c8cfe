//! The changes that the tree consists of, and their format in the journal.
//!
//! A record of the journal is one transaction: operations one after the other, each a tag and its fields. Numbers are
//! LEB128; a byte string is preceded by its length. A snapshot is the transaction that builds the whole tree.

use std::ops::Range;

/// Seconds and nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileTimestamp {
    pub s: i64,
    pub ns: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InodeKind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

const KINDS: [InodeKind; 7] = [
    InodeKind::File,
    InodeKind::Directory,
    InodeKind::Symlink,
    InodeKind::Fifo,
    InodeKind::Socket,
    InodeKind::CharDevice,
    InodeKind::BlockDevice,
];

/// The attributes that stat(2) shows and that can change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InodeAttributes {
    /// The twelve bits of permissions, set-ids and sticky.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub atime: FileTimestamp,
    pub mtime: FileTimestamp,
    pub ctime: FileTimestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeOperation {
    Make {
        inode: u64,
        kind: InodeKind,
        /// Where its blocks should begin on the device.
        home: u64,
        device_number: u32,
        /// The target of a symbolic link.
        target: Vec<u8>,
        attributes: InodeAttributes,
    },
    SetAttributes {
        inode: u64,
        attributes: InodeAttributes,
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
pub struct UnreadableOperation(pub usize);

impl TreeOperation {
    pub fn encode(&self, out: &mut Vec<u8>) {
        // Tags and the order of `KINDS` are stored on disks: a number never gets another meaning.
        match self {
            TreeOperation::Make { inode, kind, home, device_number, target, attributes } => {
                out.push(1);
                put(out, *inode);
                out.push(KINDS.iter().position(|candidate| candidate == kind).unwrap_or(0) as u8);
                put(out, *home);
                put(out, u64::from(*device_number));
                put_bytes(out, target);
                put_attributes(out, attributes);
            }
            TreeOperation::SetAttributes { inode, attributes } => {
                out.push(2);
                put(out, *inode);
                put_attributes(out, attributes);
            }
            TreeOperation::Link { parent, name, inode } => {
                out.push(3);
                put(out, *parent);
                put_bytes(out, name);
                put(out, *inode);
            }
            TreeOperation::Unlink { parent, name } => {
                out.push(4);
                put(out, *parent);
                put_bytes(out, name);
            }
            TreeOperation::Map { inode, at: offset, device, count, written } => {
                out.push(if *written { 5 } else { 6 });
                put(out, *inode);
                put(out, *offset);
                put(out, *device);
                put(out, *count);
            }
            TreeOperation::Unmap { inode, range } => {
                out.push(7);
                put(out, *inode);
                put(out, range.start);
                put(out, range.end);
            }
            TreeOperation::SetXattr { inode, name, value } => {
                out.push(8);
                put(out, *inode);
                put_bytes(out, name);
                put_bytes(out, value);
            }
            TreeOperation::RemoveXattr { inode, name } => {
                out.push(9);
                put(out, *inode);
                put_bytes(out, name);
            }
            TreeOperation::Remove { inode } => {
                out.push(10);
                put(out, *inode);
            }
            TreeOperation::NextInode { inode } => {
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
pub fn decode(record: &[u8]) -> Result<Vec<TreeOperation>, UnreadableOperation> {
    let mut reader = OperationReader { bytes: record, at: 0 };
    let mut operations = Vec::new();
    while reader.at < record.len() {
        operations.push(reader.operation().ok_or(UnreadableOperation(reader.at))?);
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

fn put_attributes(out: &mut Vec<u8>, attributes: &InodeAttributes) {
    let InodeAttributes { mode, uid, gid, size, atime, mtime, ctime } = attributes;
    [u64::from(*mode), u64::from(*uid), u64::from(*gid), *size].into_iter().for_each(|field| put(out, field));
    for time in [atime, mtime, ctime] {
        // Sign and magnitude are folded, so that times before 1970 stay short.
        put(out, ((time.s << 1) ^ (time.s >> 63)) as u64);
        put(out, u64::from(time.ns));
    }
}

struct OperationReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl OperationReader<'_> {
    fn operation(&mut self) -> Option<TreeOperation> {
        Some(match self.byte()? {
            1 => TreeOperation::Make {
                inode: self.number()?,
                kind: *KINDS.get(usize::from(self.byte()?))?,
                home: self.number()?,
                device_number: self.number()?.try_into().ok()?,
                target: self.string()?,
                attributes: self.attributes()?,
            },
            2 => TreeOperation::SetAttributes { inode: self.number()?, attributes: self.attributes()? },
            3 => TreeOperation::Link { parent: self.number()?, name: self.string()?, inode: self.number()? },
            4 => TreeOperation::Unlink { parent: self.number()?, name: self.string()? },
            tag @ (5 | 6) => TreeOperation::Map {
                inode: self.number()?,
                at: self.number()?,
                device: self.number()?,
                count: self.number()?,
                written: tag == 5,
            },
            7 => TreeOperation::Unmap { inode: self.number()?, range: self.number()?..self.number()? },
            8 => {
                TreeOperation::SetXattr { inode: self.number()?, name: self.string()?, value: self.string()? }
            }
            9 => TreeOperation::RemoveXattr { inode: self.number()?, name: self.string()? },
            10 => TreeOperation::Remove { inode: self.number()? },
            11 => TreeOperation::NextInode { inode: self.number()? },
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

    fn attributes(&mut self) -> Option<InodeAttributes> {
        Some(InodeAttributes {
            mode: self.number()?.try_into().ok()?,
            uid: self.number()?.try_into().ok()?,
            gid: self.number()?.try_into().ok()?,
            size: self.number()?,
            atime: self.time()?,
            mtime: self.time()?,
            ctime: self.time()?,
        })
    }

    fn time(&mut self) -> Option<FileTimestamp> {
        let folded = self.number()?;
        let s = (folded >> 1) as i64 ^ -((folded & 1) as i64);
        Some(FileTimestamp { s, ns: self.number()?.try_into().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn some_attributes() -> impl Strategy<Value = InodeAttributes> {
        let time = || (any::<i64>(), 0..1_000_000_000_u32).prop_map(|(s, ns)| FileTimestamp { s, ns });
        (0..0o10000_u32, any::<u32>(), any::<u32>(), any::<u64>(), time(), time(), time()).prop_map(
            |(mode, uid, gid, size, atime, mtime, ctime)| InodeAttributes {
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

    fn some_operation() -> impl Strategy<Value = TreeOperation> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..20);
        let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
        (0..10_u8, numbers, bytes(), bytes(), some_attributes(), 0..7_usize, any::<bool>()).prop_map(
            |(tag, (inode, offset, device, count), name, value, attributes, kind, written)| match tag {
                0 => TreeOperation::Make {
                    inode,
                    kind: KINDS[kind],
                    home: offset,
                    device_number: device as u32,
                    target: name,
                    attributes,
                },
                1 => TreeOperation::SetAttributes { inode, attributes },
                2 => TreeOperation::Link { parent: offset, name, inode },
                3 => TreeOperation::Unlink { parent: inode, name },
                4 => TreeOperation::Map { inode, at: offset, device, count, written },
                5 => TreeOperation::Unmap { inode, range: offset..count },
                6 => TreeOperation::SetXattr { inode, name, value },
                7 => TreeOperation::RemoveXattr { inode, name },
                8 => TreeOperation::Remove { inode },
                _ => TreeOperation::NextInode { inode },
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
