//! FUSE in the format of a ring entry: the kernel's structures, and requests parsed from them.
//!
//! An entry has a header area with fixed positions and a payload area. The kernel puts the general header and an
//! operation's fixed arguments into the first, and everything else (names, data to write) into the second. All
//! arguments of a reply go into the payload. Layouts follow `<linux/fuse.h>`.

use std::time::{Duration, UNIX_EPOCH};

use fuser::{FileAttr, FileType};

/// An entry's header area.
#[repr(C)]
pub(super) struct EntryHeader {
    /// `fuse_in_header` of a request, `fuse_out_header` of its reply.
    pub in_out: [u8; 128],
    /// The fixed arguments of a request.
    pub arguments: [u8; 128],
    pub flags: u64,
    pub commit_id: u64,
    pub payload_bytes: u32,
    pub padding: u32,
    pub reserved: u64,
}

/// Only the operations that this file system does not simply refuse.
#[derive(Debug, PartialEq, Eq)]
pub enum FuseCall<'a> {
    Lookup {
        name: &'a [u8],
    },
    Attributes,
    /// `keeps` when only times change.
    SetAttributes {
        keeps: bool,
    },
    Open,
    OpenDirectory,
    Read {
        offset: u64,
        length: u32,
    },
    Write {
        offset: u64,
        data: &'a [u8],
        is_synchronous: bool,
    },
    Flush,
    Sync,
    Allocate {
        offset: u64,
        length: u64,
        mode: i32,
    },
    Release,
    List {
        offset: u64,
        length: u32,
    },
    Statistics,
    /// Anything else, by its opcode.
    Other(u32),
}

#[derive(Debug, PartialEq, Eq)]
pub struct FuseRequest<'a> {
    /// The kernel's number for the request, repeated in the reply.
    pub unique: u64,
    pub inode: u64,
    pub call: FuseCall<'a>,
}

// FATTR_MODE, FATTR_UID, FATTR_GID and FATTR_SIZE.
const CHANGES_MORE_THAN_TIMES: u32 = 0b1111;

/// Parses a request from an entry. `None` when the payload is shorter than its arguments say, which no kernel does.
pub fn parse<'a>(in_out: &[u8; 128], arguments: &[u8; 128], payload: &'a [u8]) -> Option<FuseRequest<'a>> {
    let opcode = u32_at(in_out, 4);
    let call = match opcode {
        1 => FuseCall::Lookup { name: payload.split(|byte| *byte == 0).next().unwrap_or_default() },
        3 => FuseCall::Attributes,
        4 => FuseCall::SetAttributes { keeps: u32_at(arguments, 0) & CHANGES_MORE_THAN_TIMES == 0 },
        14 => FuseCall::Open,
        15 => FuseCall::Read { offset: u64_at(arguments, 8), length: u32_at(arguments, 16) },
        16 => FuseCall::Write {
            offset: u64_at(arguments, 8),
            data: payload.get(..u32_at(arguments, 16) as usize)?,
            is_synchronous: u32_at(arguments, 32) as i32 & (libc::O_SYNC | libc::O_DSYNC) != 0,
        },
        17 => FuseCall::Statistics,
        18 | 29 => FuseCall::Release,
        20 => FuseCall::Sync,
        25 => FuseCall::Flush,
        27 => FuseCall::OpenDirectory,
        28 => FuseCall::List { offset: u64_at(arguments, 8), length: u32_at(arguments, 16) },
        43 => FuseCall::Allocate {
            offset: u64_at(arguments, 8),
            length: u64_at(arguments, 16),
            mode: u32_at(arguments, 24) as i32,
        },
        other => FuseCall::Other(other),
    };
    Some(FuseRequest { unique: u64_at(in_out, 8), inode: u64_at(in_out, 16), call })
}

/// How much data a request carries or asks for; 0 for a request without data.
pub(super) fn data_bytes(in_out: &[u8; 128], arguments: &[u8; 128], payload_bytes: u32) -> u32 {
    match u32_at(in_out, 4) {
        15 => u32_at(arguments, 16),
        16 => payload_bytes,
        _ => 0,
    }
}

fn u32_at(bytes: &[u8; 128], offset: usize) -> u32 {
    u32::from_ne_bytes(std::array::from_fn(|index| bytes[offset + index]))
}

fn u64_at(bytes: &[u8; 128], offset: usize) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|index| bytes[offset + index]))
}

/// `fuse_out_header` at the start of an entry's header area. `error` is an error number, or 0.
pub(super) fn put_reply(in_out: &mut [u8; 128], unique: u64, error: i32, payload_bytes: u32) {
    const HEADER_BYTES: u32 = 16;
    in_out[..4].copy_from_slice(&(HEADER_BYTES + payload_bytes).to_ne_bytes());
    in_out[4..8].copy_from_slice(&(-error).to_ne_bytes());
    in_out[8..16].copy_from_slice(&unique.to_ne_bytes());
}

/// The fixed arguments of a reply, one after the other.
#[derive(Default)]
pub(super) struct ReplyArguments {
    bytes: Vec<u8>,
}

impl ReplyArguments {
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn u32(mut self, value: u32) -> Self {
        self.bytes.extend_from_slice(&value.to_ne_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.bytes.extend_from_slice(&value.to_ne_bytes());
        self
    }

    /// `fuse_attr`
    fn attributes(self, attributes: &FileAttr) -> Self {
        let since_epoch = |time: std::time::SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let times = [attributes.atime, attributes.mtime, attributes.ctime].map(since_epoch);
        let kind = if attributes.kind == FileType::Directory { libc::S_IFDIR } else { libc::S_IFREG };
        let with_size = self.u64(attributes.ino.0).u64(attributes.size).u64(attributes.blocks);
        let with_seconds = times.iter().fold(with_size, |bytes, time| bytes.u64(time.as_secs()));
        let with_times = times.iter().fold(with_seconds, |bytes, time| bytes.u32(time.subsec_nanos()));
        with_times
            .u32(kind | u32::from(attributes.perm))
            .u32(attributes.nlink)
            .u32(attributes.uid)
            .u32(attributes.gid)
            .u32(attributes.rdev)
            .u32(attributes.blksize)
            .u32(0)
    }

    /// `fuse_attr_out`
    pub(super) fn attributes_reply(valid: Duration, attributes: &FileAttr) -> Vec<u8> {
        ReplyArguments::default()
            .u64(valid.as_secs())
            .u32(valid.subsec_nanos())
            .u32(0)
            .attributes(attributes)
            .into_bytes()
    }

    /// `fuse_entry_out`
    pub(super) fn entry_reply(valid: Duration, attributes: &FileAttr) -> Vec<u8> {
        let generation = 0;
        ReplyArguments::default()
            .u64(attributes.ino.0)
            .u64(generation)
            .u64(valid.as_secs())
            .u64(valid.as_secs())
            .u32(valid.subsec_nanos())
            .u32(valid.subsec_nanos())
            .attributes(attributes)
            .into_bytes()
    }

    /// `fuse_open_out`
    pub(super) fn open_reply(handle: u64, flags: u32) -> Vec<u8> {
        ReplyArguments::default().u64(handle).u32(flags).u32(0).into_bytes()
    }

    /// `fuse_write_out`
    pub(super) fn written_reply(length: u32) -> Vec<u8> {
        ReplyArguments::default().u32(length).u32(0).into_bytes()
    }

    /// `fuse_statfs_out` of a full file system
    pub(super) fn statistics_reply(blocks: u64, files: u64, block_bytes: u32) -> Vec<u8> {
        const MAX_NAME_BYTES: u32 = 255;
        let counts = ReplyArguments::default().u64(blocks).u64(0).u64(0).u64(files).u64(0);
        let sizes = counts.u32(block_bytes).u32(MAX_NAME_BYTES).u32(block_bytes);
        (0..7).fold(sizes, |bytes, _| bytes.u32(0)).into_bytes()
    }

    /// Adds a `fuse_dirent`; false when the listing has no room for it.
    pub(super) fn add_entry(
        &mut self,
        most_bytes: usize,
        inode: u64,
        next_offset: u64,
        kind: FileType,
        name: &[u8],
    ) -> bool {
        const ENTRY_BYTES: usize = 24;
        let length = (ENTRY_BYTES + name.len()).next_multiple_of(8);
        if self.bytes.len() + length > most_bytes {
            return false;
        }
        let end = self.bytes.len() + length;
        let kind = if kind == FileType::Directory { libc::DT_DIR } else { libc::DT_REG };
        *self = std::mem::take(self).u64(inode).u64(next_offset).u32(name.len() as u32).u32(u32::from(kind));
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }
}

#[cfg(test)]
mod tests {
    use fuser::INodeNo;
    use proptest::prelude::*;

    use super::*;

    fn header(opcode: u32, unique: u64, inode: u64) -> [u8; 128] {
        let mut bytes = [0; 128];
        bytes[4..8].copy_from_slice(&opcode.to_ne_bytes());
        bytes[8..16].copy_from_slice(&unique.to_ne_bytes());
        bytes[16..24].copy_from_slice(&inode.to_ne_bytes());
        bytes
    }

    #[test]
    fn only_reads_and_writes_are_about_data() {
        let mut arguments = [0; 128];
        arguments[16..20].copy_from_slice(&1_048_576_u32.to_ne_bytes());
        for (opcode, payload_bytes, data_bytes) in
            [(15, 0, 1_048_576), (16, 524_288, 524_288), (28, 0, 0), (1, 20, 0)]
        {
            assert_eq!(
                super::data_bytes(&header(opcode, 1, 2), &arguments, payload_bytes),
                data_bytes,
                "{opcode}"
            );
        }
    }

    #[test]
    fn uring_structures_match_kernel_layout() {
        assert_eq!(size_of::<EntryHeader>(), 288);
        assert_eq!(std::mem::offset_of!(EntryHeader, commit_id), 264);
        let attributes = FileAttr {
            ino: INodeNo(2),
            size: 8192,
            blocks: 16,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: FileType::RegularFile,
            perm: 0o600,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        };
        let hour = Duration::from_secs(3600);
        assert_eq!(ReplyArguments::attributes_reply(hour, &attributes).len(), 104);
        assert_eq!(ReplyArguments::entry_reply(hour, &attributes).len(), 128);
        assert_eq!(ReplyArguments::open_reply(2, 1).len(), 16);
        assert_eq!(ReplyArguments::written_reply(4096).len(), 8);
        assert_eq!(ReplyArguments::statistics_reply(2, 1, 4096).len(), 80);
    }

    #[test]
    fn write_is_split_from_payload() {
        let mut arguments = [0; 128];
        arguments[8..16].copy_from_slice(&4096_u64.to_ne_bytes());
        arguments[16..20].copy_from_slice(&3_u32.to_ne_bytes());
        arguments[32..36].copy_from_slice(&libc::O_DSYNC.to_ne_bytes());
        let call = FuseCall::Write { offset: 4096, data: &[1, 2, 3], is_synchronous: true };
        assert_eq!(
            parse(&header(16, 7, 2), &arguments, &[1, 2, 3, 4]),
            Some(FuseRequest { unique: 7, inode: 2, call })
        );
        assert_eq!(parse(&header(16, 7, 2), &arguments, &[1, 2]), None);
    }

    #[test]
    fn full_listing_stops_early() {
        let mut listing = ReplyArguments::default();
        assert!(listing.add_entry(64, 1, 1, FileType::Directory, b"."));
        assert!(listing.add_entry(64, 2, 2, FileType::RegularFile, b"data"));
        assert!(!listing.add_entry(64, 3, 3, FileType::RegularFile, b"log"));
        assert_eq!(listing.into_bytes().len(), 64);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn noise_never_panics(
            opcode in 0_u32..60, noise in proptest::collection::vec(any::<u8>(), 128),
            payload in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut arguments = [0; 128];
            arguments.copy_from_slice(&noise);
            let in_out = header(opcode, 1, 1);
            if let Some(FuseRequest { call: FuseCall::Lookup { name }, .. }) = parse(&in_out, &arguments, &payload) {
                prop_assert!(!name.contains(&0));
            }
        }
    }
}
