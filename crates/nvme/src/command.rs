//! Commands and completions: the 64-byte entry of a submission queue (base 3.3.3.1), the 16-byte entry of a
//! completion queue (base 3.3.3.2), and where a command's data is (base 4.1.2, TCP 3.4).

use crate::status::NvmeStatus;
use crate::wire::{array_at, put, u16_at, u32_at, u64_at};

pub const COMMAND_BYTES: usize = 64;
pub const COMPLETION_BYTES: usize = 16;

/// Stands for all namespaces where a command allows it.
pub const ALL_NAMESPACES: u32 = 0xffff_ffff;

/// Opcodes of the admin queue (base 5). Their lowest two bits say which way data goes.
pub mod admin {
    pub const GET_LOG_PAGE: u8 = 0x02;
    pub const IDENTIFY: u8 = 0x06;
    pub const ABORT: u8 = 0x08;
    pub const SET_FEATURES: u8 = 0x09;
    pub const GET_FEATURES: u8 = 0x0a;
    pub const ASYNC_EVENT_REQUEST: u8 = 0x0c;
    pub const KEEP_ALIVE: u8 = 0x18;
    /// Of this vendor's, without data: this controller takes the place of those that its host made before it.
    /// Dwords 10 and 11 are an instance of the host's, 12 and 13 a number that grows with each of its
    /// controllers. The result is 0 if this initiator was the last one to write, or nobody was; otherwise a
    /// number for the one that was.
    pub const REPLACE_FORMER: u8 = 0xc0;
}

/// Opcodes of I/O queues (NVM 3.2).
pub mod nvm {
    pub const FLUSH: u8 = 0x00;
    pub const WRITE: u8 = 0x01;
    pub const READ: u8 = 0x02;
    pub const COMPARE: u8 = 0x05;
    pub const WRITE_ZEROES: u8 = 0x08;
    pub const DATASET_MANAGEMENT: u8 = 0x09;
}

/// The opcode of all fabrics commands, on both kinds of queues.
pub const FABRICS: u8 = 0x7f;

/// In the flags: the data pointer is an SGL, as fabrics require (bits 7:6), and no metadata buffer is an SGL.
pub const FLAGS_SGL: u8 = 0x40;
/// In the flags: the command is one of a fused pair (bits 1:0).
pub const FLAGS_FUSED: u8 = 0x03;

/// Dword 12 of reads and writes: force unit access.
pub const FUA: u32 = 1 << 30;
/// Dword 12 of Write Zeroes: deallocate.
pub const DEALLOCATE: u32 = 1 << 25;
/// Dword 11 of Dataset Management: deallocate.
pub const DATASET_DEALLOCATE: u32 = 1 << 2;

/// An SGL data block descriptor, addressed by an offset into the capsule.
const IN_CAPSULE: u8 = 0x01;
/// A transport SGL data block descriptor: the data goes in data PDUs.
const TRANSPORT: u8 = 0x5a;

/// Where a command's data is. Over TCP there are two places: the capsule itself, and data PDUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SglDescriptor {
    /// An offset into the capsule's data.
    pub address: u64,
    pub length_bytes: u32,
    /// The descriptor's type and subtype.
    pub identifier: u8,
}

impl SglDescriptor {
    pub fn new_in_capsule(length_bytes: u32) -> SglDescriptor {
        SglDescriptor { address: 0, length_bytes, identifier: IN_CAPSULE }
    }

    pub fn transport(length_bytes: u32) -> SglDescriptor {
        SglDescriptor { address: 0, length_bytes, identifier: TRANSPORT }
    }

    /// The descriptor of a command without data.
    pub fn empty() -> SglDescriptor {
        SglDescriptor::transport(0)
    }

    pub fn is_in_capsule(&self) -> bool {
        self.identifier == IN_CAPSULE
    }

    pub fn is_transport(&self) -> bool {
        self.identifier == TRANSPORT
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataDirection {
    None,
    HostToController,
    ControllerToHost,
}

/// A command. The meaning of `dwords` (10 to 15) depends on the opcode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NvmeCommand {
    pub opcode: u8,
    pub flags: u8,
    /// Chosen by the host, unique among the queue's commands in flight.
    pub cid: u16,
    /// The namespace; of fabrics commands the lowest byte is their type.
    pub nsid: u32,
    /// Dwords 2 to 5: reserved, or the metadata pointer.
    pub reserved: [u32; 4],
    pub sgl: SglDescriptor,
    /// Dwords 10 to 15.
    pub dwords: [u32; 6],
}

impl NvmeCommand {
    pub fn new(opcode: u8, cid: u16, nsid: u32, sgl: SglDescriptor) -> NvmeCommand {
        NvmeCommand { opcode, flags: FLAGS_SGL, cid, nsid, sgl, ..NvmeCommand::default() }
    }

    /// A read, a write, a compare or a Write Zeroes of 1 to 65,536 blocks.
    ///
    /// # Panics
    /// If `blocks` is out of that range.
    pub fn blocks(opcode: u8, cid: u16, nsid: u32, sgl: SglDescriptor, lba: u64, blocks: u32) -> NvmeCommand {
        let mut command = NvmeCommand::new(opcode, cid, nsid, sgl);
        command.set_blocks(lba, blocks);
        command
    }

    /// The same command, its flags included, for other blocks.
    ///
    /// # Panics
    /// As [`NvmeCommand::blocks`].
    pub fn set_blocks(&mut self, lba: u64, blocks: u32) {
        assert!((1..=65_536).contains(&blocks), "{blocks} blocks in a command");
        self.dwords[0] = lba as u32;
        self.dwords[1] = (lba >> 32) as u32;
        self.dwords[2] = self.dwords[2] & !0xffff | (blocks - 1);
    }

    pub fn decode(bytes: &[u8; COMMAND_BYTES]) -> NvmeCommand {
        let dword = |number: usize| u32_at(bytes, number * 4);
        NvmeCommand {
            opcode: bytes[0],
            flags: bytes[1],
            cid: u16_at(bytes, 2),
            nsid: dword(1),
            reserved: std::array::from_fn(|index| dword(2 + index)),
            sgl: SglDescriptor { address: u64_at(bytes, 24), length_bytes: dword(8), identifier: bytes[39] },
            dwords: std::array::from_fn(|index| dword(10 + index)),
        }
    }

    pub fn encode(&self) -> [u8; COMMAND_BYTES] {
        let mut bytes = [0; COMMAND_BYTES];
        bytes[0] = self.opcode;
        bytes[1] = self.flags;
        put(&mut bytes, 2, &self.cid.to_le_bytes());
        put(&mut bytes, 4, &self.nsid.to_le_bytes());
        for (index, dword) in self.reserved.iter().enumerate() {
            put(&mut bytes, 8 + index * 4, &dword.to_le_bytes());
        }
        put(&mut bytes, 24, &self.sgl.address.to_le_bytes());
        put(&mut bytes, 32, &self.sgl.length_bytes.to_le_bytes());
        bytes[39] = self.sgl.identifier;
        for (index, dword) in self.dwords.iter().enumerate() {
            put(&mut bytes, 40 + index * 4, &dword.to_le_bytes());
        }
        bytes
    }

    /// Which way data goes, as the opcode (of fabrics commands their type) says in its lowest two bits.
    pub fn direction(&self) -> DataDirection {
        let code = if self.opcode == FABRICS { self.fabrics_type() } else { self.opcode };
        match code & 3 {
            1 => DataDirection::HostToController,
            2 => DataDirection::ControllerToHost,
            _ => DataDirection::None,
        }
    }

    pub fn fabrics_type(&self) -> u8 {
        self.nsid as u8
    }

    /// The first block of a read, write, compare or Write Zeroes.
    pub fn lba(&self) -> u64 {
        u64::from(self.dwords[0]) | u64::from(self.dwords[1]) << 32
    }

    /// The number of blocks of a read, write, compare or Write Zeroes: 1 to 65,536.
    pub fn block_count(&self) -> u32 {
        (self.dwords[2] & 0xffff) + 1
    }

    pub fn is_fua(&self) -> bool {
        self.dwords[2] & FUA != 0
    }
}

/// The answer to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionEntry {
    /// Dwords 0 and 1, whose meaning depends on the command.
    pub result: u64,
    /// How far the controller has consumed the submission queue; meaningless without flow control.
    pub sq_head: u16,
    pub sq_id: u16,
    pub cid: u16,
    pub status: NvmeStatus,
}

impl CompletionEntry {
    pub fn decode(bytes: &[u8; COMPLETION_BYTES]) -> CompletionEntry {
        CompletionEntry {
            result: u64_at(bytes, 0),
            sq_head: u16_at(bytes, 8),
            sq_id: u16_at(bytes, 10),
            cid: u16_at(bytes, 12),
            status: NvmeStatus::from_field(u16_at(bytes, 14)),
        }
    }

    pub fn encode(&self) -> [u8; COMPLETION_BYTES] {
        let mut bytes = [0; COMPLETION_BYTES];
        put(&mut bytes, 0, &self.result.to_le_bytes());
        put(&mut bytes, 8, &self.sq_head.to_le_bytes());
        put(&mut bytes, 10, &self.sq_id.to_le_bytes());
        put(&mut bytes, 12, &self.cid.to_le_bytes());
        put(&mut bytes, 14, &self.status.to_field().to_le_bytes());
        bytes
    }
}

/// One range of a Dataset Management command (NVM 3.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatasetRange {
    pub attributes: u32,
    pub blocks: u32,
    pub lba: u64,
}

impl DatasetRange {
    pub const BYTES: usize = 16;
    /// How many ranges one command may have.
    pub const MAX_COUNT: usize = 256;

    pub fn decode(bytes: &[u8; DatasetRange::BYTES]) -> DatasetRange {
        DatasetRange { attributes: u32_at(bytes, 0), blocks: u32_at(bytes, 4), lba: u64_at(bytes, 8) }
    }

    pub fn encode(&self) -> [u8; DatasetRange::BYTES] {
        let mut bytes = [0; DatasetRange::BYTES];
        put(&mut bytes, 0, &self.attributes.to_le_bytes());
        put(&mut bytes, 4, &self.blocks.to_le_bytes());
        put(&mut bytes, 8, &self.lba.to_le_bytes());
        bytes
    }

    /// The ranges of a command's data. Bytes behind the last whole one are ignored.
    pub fn decode_all(data: &[u8]) -> impl Iterator<Item = DatasetRange> {
        data.chunks_exact(DatasetRange::BYTES).map(|bytes| DatasetRange::decode(&array_at(bytes, 0)))
    }
}
