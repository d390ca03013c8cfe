//! Identify (base 5.17, NVM 4.1.5): what a controller and its namespaces are.

use crate::command::{NvmeCommand, SglDescriptor, admin};
use crate::wire::{
    array_at, name_at, put, put_padded, put_terminated, text_at, u16_at, u32_at, u64_at, u128_at,
};

/// By what this target's controllers are known, which have a command more than others.
pub const MODEL_NUMBER: &str = "Underlay volume";

/// Every structure has this size.
pub const IDENTIFY_BYTES: usize = 4096;

/// Controller or namespace structure: what is asked for.
pub mod cns {
    pub const NAMESPACE: u8 = 0x00;
    pub const CONTROLLER: u8 = 0x01;
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    pub const NAMESPACE_DESCRIPTORS: u8 = 0x03;
    pub const COMMAND_SET_NAMESPACE: u8 = 0x05;
    pub const COMMAND_SET_CONTROLLER: u8 = 0x06;
    pub const COMMAND_SET_ACTIVE_NAMESPACES: u8 = 0x07;
    pub const INDEPENDENT_NAMESPACE: u8 = 0x08;
    pub const ALLOCATED_NAMESPACES: u8 = 0x10;
    pub const ALLOCATED_NAMESPACE: u8 = 0x11;
    pub const ATTACHED_CONTROLLERS: u8 = 0x12;
    pub const CONTROLLERS: u8 = 0x13;
}

/// The command set of blocks.
pub const NVM_COMMAND_SET: u8 = 0;

/// Optional admin capabilities are none; these are optional commands of I/O queues.
pub mod oncs {
    pub const COMPARE: u16 = 1;
    pub const DATASET_MANAGEMENT: u16 = 1 << 2;
    pub const WRITE_ZEROES: u16 = 1 << 3;
}

/// SGLs are supported.
pub const SGLS_SUPPORTED: u32 = 1;
/// An SGL may name an offset into the capsule.
pub const SGLS_OFFSET: u32 = 1 << 20;
/// Transport SGL data blocks are supported.
pub const SGLS_TRANSPORT: u32 = 1 << 21;

/// Namespaces may be asked for by an Identify command's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentifyCommand {
    pub cns: u8,
    pub controller_id: u16,
    pub command_set: u8,
    pub nsid: u32,
}

impl IdentifyCommand {
    pub fn new(cns: u8, nsid: u32) -> IdentifyCommand {
        IdentifyCommand { cns, controller_id: 0, command_set: NVM_COMMAND_SET, nsid }
    }

    pub fn from_command(command: &NvmeCommand) -> IdentifyCommand {
        IdentifyCommand {
            cns: command.dwords[0] as u8,
            controller_id: (command.dwords[0] >> 16) as u16,
            command_set: (command.dwords[1] >> 24) as u8,
            nsid: command.nsid,
        }
    }

    pub fn to_command(&self, cid: u16) -> NvmeCommand {
        let sgl = SglDescriptor::transport(IDENTIFY_BYTES as u32);
        let mut command = NvmeCommand::new(admin::IDENTIFY, cid, self.nsid, sgl);
        command.dwords[0] = u32::from(self.cns) | u32::from(self.controller_id) << 16;
        command.dwords[1] = u32::from(self.command_set) << 24;
        command
    }
}

/// A controller's type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ControllerKind {
    #[default]
    Io,
    Discovery,
    /// Any other, by its number.
    Other(u8),
}

impl ControllerKind {
    fn from_number(number: u8) -> ControllerKind {
        match number {
            1 => ControllerKind::Io,
            2 => ControllerKind::Discovery,
            other => ControllerKind::Other(other),
        }
    }

    fn number(self) -> u8 {
        match self {
            ControllerKind::Io => 1,
            ControllerKind::Discovery => 2,
            ControllerKind::Other(other) => other,
        }
    }
}

/// The Identify Controller structure: the fields that Underlay gives or reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControllerData {
    pub serial_number: String,
    pub model_number: String,
    pub firmware_revision: String,
    pub may_have_several_controllers: bool,
    /// The largest transfer, as a power of two of 4096 bytes; 0 is no limit.
    pub mdts: u8,
    pub controller_id: u16,
    pub version: u32,
    /// Optional asynchronous events.
    pub oaes: u32,
    /// Controller attributes: bit 0 a 128-bit host identifier, bit 6 that any traffic keeps the controller alive.
    pub ctratt: u32,
    pub kind: ControllerKind,
    /// How long a host waits for a shutdown, in microseconds.
    pub shutdown_latency_us: u32,
    /// How many aborts may be in flight, less one.
    pub abort_limit: u8,
    /// How many asynchronous event requests may be in flight, less one.
    pub event_request_limit: u8,
    pub firmware_updates: u8,
    pub log_page_attributes: u8,
    /// Entries of the error log, less one.
    pub error_log_entries: u8,
    /// The granularity of the keep-alive timer, in units of 100 ms; 0 is none.
    pub keep_alive_granularity: u16,
    pub max_commands: u16,
    /// The largest namespace ID.
    pub namespaces: u32,
    pub oncs: u16,
    /// Which fused pairs are known; Underlay knows none.
    pub fused_operations: u16,
    /// Bit 0 a volatile write cache, bits 2:1 what a flush of all namespaces does.
    pub volatile_write_cache: u8,
    pub sgls: u32,
    pub subsystem_nqn: String,
    /// The largest command capsule of an I/O queue, in units of 16 bytes.
    pub io_command_capsule_units: u32,
    /// The largest response capsule of an I/O queue, in units of 16 bytes.
    pub io_response_capsule_units: u32,
    pub in_capsule_data_offset_units: u16,
    /// How many SGL descriptors a command capsule may have.
    pub max_sgl_descriptors: u8,
}

impl ControllerData {
    /// The largest transfer in bytes, for a memory page of 4096 bytes.
    pub fn max_transfer_bytes(&self) -> Option<u64> {
        match self.mdts {
            0 => None,
            power => 4096_u64.checked_shl(u32::from(power)),
        }
    }

    /// How many bytes of data the command capsule of an I/O queue may carry right behind the command; none where the
    /// controller wants it elsewhere.
    pub fn capsule_data_bytes(&self) -> u64 {
        if self.in_capsule_data_offset_units != 0 {
            return 0;
        }
        (u64::from(self.io_command_capsule_units) * 16).saturating_sub(64)
    }

    pub fn has_volatile_write_cache(&self) -> bool {
        self.volatile_write_cache & 1 != 0
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; IDENTIFY_BYTES];
        put_padded(&mut bytes, 4, 20, &self.serial_number);
        put_padded(&mut bytes, 24, 40, &self.model_number);
        put_padded(&mut bytes, 64, 8, &self.firmware_revision);
        bytes[76] = u8::from(self.may_have_several_controllers) << 1;
        bytes[77] = self.mdts;
        put(&mut bytes, 78, &self.controller_id.to_le_bytes());
        put(&mut bytes, 80, &self.version.to_le_bytes());
        put(&mut bytes, 88, &self.shutdown_latency_us.to_le_bytes());
        put(&mut bytes, 92, &self.oaes.to_le_bytes());
        put(&mut bytes, 96, &self.ctratt.to_le_bytes());
        bytes[111] = self.kind.number();
        bytes[258] = self.abort_limit;
        bytes[259] = self.event_request_limit;
        bytes[260] = self.firmware_updates;
        bytes[261] = self.log_page_attributes;
        bytes[262] = self.error_log_entries;
        put(&mut bytes, 320, &self.keep_alive_granularity.to_le_bytes());
        // Entries are exactly 64 and 16 bytes.
        bytes[512] = 0x66;
        bytes[513] = 0x44;
        put(&mut bytes, 514, &self.max_commands.to_le_bytes());
        put(&mut bytes, 516, &self.namespaces.to_le_bytes());
        put(&mut bytes, 520, &self.oncs.to_le_bytes());
        put(&mut bytes, 522, &self.fused_operations.to_le_bytes());
        bytes[525] = self.volatile_write_cache;
        put(&mut bytes, 536, &self.sgls.to_le_bytes());
        put(&mut bytes, 540, &self.namespaces.to_le_bytes());
        put_terminated(&mut bytes, 768, 256, &self.subsystem_nqn);
        put(&mut bytes, 1792, &self.io_command_capsule_units.to_le_bytes());
        put(&mut bytes, 1796, &self.io_response_capsule_units.to_le_bytes());
        put(&mut bytes, 1800, &self.in_capsule_data_offset_units.to_le_bytes());
        bytes[1803] = self.max_sgl_descriptors;
        bytes
    }

    pub fn decode(bytes: &[u8; IDENTIFY_BYTES]) -> ControllerData {
        ControllerData {
            serial_number: text_at(bytes, 4, 20),
            model_number: text_at(bytes, 24, 40),
            firmware_revision: text_at(bytes, 64, 8),
            may_have_several_controllers: bytes[76] & 2 != 0,
            mdts: bytes[77],
            controller_id: u16_at(bytes, 78),
            version: u32_at(bytes, 80),
            shutdown_latency_us: u32_at(bytes, 88),
            oaes: u32_at(bytes, 92),
            ctratt: u32_at(bytes, 96),
            kind: ControllerKind::from_number(bytes[111]),
            abort_limit: bytes[258],
            event_request_limit: bytes[259],
            firmware_updates: bytes[260],
            log_page_attributes: bytes[261],
            error_log_entries: bytes[262],
            keep_alive_granularity: u16_at(bytes, 320),
            max_commands: u16_at(bytes, 514),
            namespaces: u32_at(bytes, 516),
            oncs: u16_at(bytes, 520),
            fused_operations: u16_at(bytes, 522),
            volatile_write_cache: bytes[525],
            sgls: u32_at(bytes, 536),
            subsystem_nqn: name_at(bytes, 768, 256),
            io_command_capsule_units: u32_at(bytes, 1792),
            io_response_capsule_units: u32_at(bytes, 1796),
            in_capsule_data_offset_units: u16_at(bytes, 1800),
            max_sgl_descriptors: bytes[1803],
        }
    }
}

/// The Identify Namespace structure: the fields that Underlay gives or reads. Sizes are in blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceData {
    pub size_blocks: u64,
    pub capacity_blocks: u64,
    pub used_blocks: u64,
    /// Bit 0 thin provisioning, bit 4 that the optimal sizes below mean something.
    pub features: u8,
    /// Several controllers may use it.
    pub is_shared: bool,
    /// Deallocated blocks read as zeros.
    pub reads_zeros_after_deallocation: bool,
    /// Write Zeroes may deallocate.
    pub write_zeroes_deallocates: bool,
    pub nvm_capacity_bytes: u128,
    /// The optimal write size in blocks; 0 says nothing.
    pub preferred_blocks: u32,
    pub nguid: [u8; 16],
    pub eui64: [u8; 8],
    pub block_bytes: u32,
}

/// The namespace is thinly provisioned.
pub const NAMESPACE_THIN: u8 = 1;
const NAMESPACE_OPTIMAL_SIZES: u8 = 1 << 4;
const OPTIMAL_WRITE_AT: usize = 72;
const DEALLOCATED_READS_ZEROS: u8 = 1;
const WRITE_ZEROES_DEALLOCATES: u8 = 1 << 3;

impl NamespaceData {
    /// # Panics
    /// If `block_bytes` is no power of two.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.block_bytes.is_power_of_two(), "blocks of {} bytes", self.block_bytes);
        let mut bytes = vec![0; IDENTIFY_BYTES];
        put(&mut bytes, 0, &self.size_blocks.to_le_bytes());
        put(&mut bytes, 8, &self.capacity_blocks.to_le_bytes());
        put(&mut bytes, 16, &self.used_blocks.to_le_bytes());
        bytes[24] = self.features;
        bytes[30] = u8::from(self.is_shared);
        bytes[33] = (u8::from(self.reads_zeros_after_deallocation) * DEALLOCATED_READS_ZEROS)
            | (u8::from(self.write_zeroes_deallocates) * WRITE_ZEROES_DEALLOCATES);
        put(&mut bytes, 48, &self.nvm_capacity_bytes.to_le_bytes());
        if let Some(zero_based) = self.preferred_blocks.checked_sub(1) {
            bytes[24] |= NAMESPACE_OPTIMAL_SIZES;
            // Only this: the granularities beside it are one block. A host would not deallocate less than what they
            // say.
            let zero_based = u16::try_from(zero_based).unwrap_or(u16::MAX);
            put(&mut bytes, OPTIMAL_WRITE_AT, &zero_based.to_le_bytes());
        }
        put(&mut bytes, 104, &self.nguid);
        put(&mut bytes, 120, &self.eui64);
        // The one format: no metadata, and the block size as a power of two.
        bytes[130] = self.block_bytes.trailing_zeros() as u8;
        bytes
    }

    /// A namespace's structure, or `None` if its block size is none: that of a missing namespace is all zeros.
    pub fn decode(bytes: &[u8; IDENTIFY_BYTES]) -> Option<NamespaceData> {
        let format = usize::from(bytes[26] & 0x0f) | usize::from(bytes[26] >> 5 & 3) << 4;
        let block_power = bytes[128 + 4 * format + 2];
        if !(9..=31).contains(&block_power) {
            return None;
        }
        let has_optimal_sizes = bytes[24] & NAMESPACE_OPTIMAL_SIZES != 0;
        Some(NamespaceData {
            size_blocks: u64_at(bytes, 0),
            capacity_blocks: u64_at(bytes, 8),
            used_blocks: u64_at(bytes, 16),
            features: bytes[24] & !NAMESPACE_OPTIMAL_SIZES,
            is_shared: bytes[30] & 1 != 0,
            reads_zeros_after_deallocation: bytes[33] & 7 == DEALLOCATED_READS_ZEROS,
            write_zeroes_deallocates: bytes[33] & WRITE_ZEROES_DEALLOCATES != 0,
            nvm_capacity_bytes: u128_at(bytes, 48),
            preferred_blocks: if has_optimal_sizes {
                u32::from(u16_at(bytes, OPTIMAL_WRITE_AT)) + 1
            } else {
                0
            },
            nguid: array_at(bytes, 104),
            eui64: array_at(bytes, 120),
            block_bytes: 1 << block_power,
        })
    }
}

/// A list of at most 1,024 namespace IDs, ascending, that ends with a zero (base 4.4.2).
pub fn encode_namespace_list(nsids: impl Iterator<Item = u32>) -> Vec<u8> {
    let mut bytes = vec![0; IDENTIFY_BYTES];
    for (place, nsid) in bytes.chunks_exact_mut(4).zip(nsids) {
        place.copy_from_slice(&nsid.to_le_bytes());
    }
    bytes
}

pub fn decode_namespace_list(bytes: &[u8; IDENTIFY_BYTES]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|place| u32_at(place, 0)).take_while(|nsid| *nsid != 0).collect()
}

/// A list of at most 2,047 controller IDs behind their count (base 4.4.1).
pub fn encode_controller_list(controllers: impl Iterator<Item = u16>) -> Vec<u8> {
    let mut bytes = vec![0; IDENTIFY_BYTES];
    let mut count = 0_u16;
    for (place, controller) in bytes[2..].chunks_exact_mut(2).zip(controllers) {
        place.copy_from_slice(&controller.to_le_bytes());
        count += 1;
    }
    put(&mut bytes, 0, &count.to_le_bytes());
    bytes
}

/// By what a namespace is known all over the world (base 5.17.2.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceDescriptors {
    pub nguid: Option<[u8; 16]>,
    pub uuid: Option<[u8; 16]>,
    pub command_set: Option<u8>,
}

impl NamespaceDescriptors {
    const NGUID: u8 = 2;
    const UUID: u8 = 3;
    const COMMAND_SET: u8 = 4;

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(IDENTIFY_BYTES);
        let mut add = |kind: u8, value: &[u8]| {
            bytes.extend([kind, value.len() as u8, 0, 0]);
            bytes.extend(value);
        };
        if let Some(nguid) = &self.nguid {
            add(Self::NGUID, nguid);
        }
        if let Some(uuid) = &self.uuid {
            add(Self::UUID, uuid);
        }
        if let Some(command_set) = self.command_set {
            add(Self::COMMAND_SET, &[command_set]);
        }
        bytes.resize(IDENTIFY_BYTES, 0);
        bytes
    }

    /// Descriptors of kinds or lengths that it doesn't know are passed over.
    pub fn decode(bytes: &[u8; IDENTIFY_BYTES]) -> NamespaceDescriptors {
        let mut found = NamespaceDescriptors::default();
        let mut rest = &bytes[..];
        while let [kind, length, _, _, tail @ ..] = rest {
            let length = usize::from(*length);
            if length == 0 || tail.len() < length {
                break;
            }
            let (value, next) = tail.split_at(length);
            match (*kind, length) {
                (Self::NGUID, 16) => found.nguid = Some(array_at(value, 0)),
                (Self::UUID, 16) => found.uuid = Some(array_at(value, 0)),
                (Self::COMMAND_SET, 1) => found.command_set = Some(value[0]),
                _ => {}
            }
            rest = next;
        }
        found
    }
}

/// Limits that are of the NVM command set alone (NVM 4.1.5.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NvmControllerData {
    /// The largest Write Zeroes, as a power of two of 4096 bytes; 0 is no limit.
    pub write_zeroes_limit: u8,
    /// Ranges of a Dataset Management command; 0 is no limit.
    pub dataset_ranges: u8,
    /// Blocks of a range; 0 is no limit.
    pub dataset_range_blocks: u32,
    /// Blocks of all ranges; 0 is no limit.
    pub dataset_blocks: u64,
}

impl NvmControllerData {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; IDENTIFY_BYTES];
        bytes[1] = self.write_zeroes_limit;
        bytes[3] = self.dataset_ranges;
        put(&mut bytes, 4, &self.dataset_range_blocks.to_le_bytes());
        put(&mut bytes, 8, &self.dataset_blocks.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; IDENTIFY_BYTES]) -> NvmControllerData {
        NvmControllerData {
            write_zeroes_limit: bytes[1],
            dataset_ranges: bytes[3],
            dataset_range_blocks: u32_at(bytes, 4),
            dataset_blocks: u64_at(bytes, 8),
        }
    }
}

/// The properties of a namespace that do not depend on its command set (base 5.17.2.8).
pub fn encode_independent_namespace(is_shared: bool) -> Vec<u8> {
    const READY: u8 = 1;
    let mut bytes = vec![0; IDENTIFY_BYTES];
    bytes[1] = u8::from(is_shared);
    bytes[14] = READY;
    bytes
}
