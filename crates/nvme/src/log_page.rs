//! Log pages (base 5.16).

use crate::command::{NvmeCommand, SglDescriptor, admin};
use crate::status::NvmeStatus;
use crate::wire::{name_at, put, put_padded, text_at, u16_at, u32_at, u64_at, u128_at};

/// Log page identifiers.
pub const SUPPORTED_PAGES: u8 = 0x00;
pub const ERRORS: u8 = 0x01;
pub const SMART: u8 = 0x02;
pub const FIRMWARE_SLOTS: u8 = 0x03;
pub const CHANGED_NAMESPACES: u8 = 0x04;
pub const COMMAND_EFFECTS: u8 = 0x05;
pub const DISCOVERY: u8 = 0x70;

/// A Get Log Page command's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetLogPage {
    pub page: u8,
    /// Bits that are of the page.
    pub specific: u8,
    /// Reading the page doesn't take back the event that told of it.
    pub retain_event: bool,
    pub offset_bytes: u64,
    pub length_bytes: u64,
    /// The offset counts entries of a page, not bytes.
    pub offset_is_index: bool,
    pub nsid: u32,
}

impl GetLogPage {
    pub fn new(page: u8, offset_bytes: u64, length_bytes: u64) -> GetLogPage {
        GetLogPage {
            page,
            specific: 0,
            retain_event: false,
            offset_bytes,
            length_bytes,
            offset_is_index: false,
            nsid: crate::command::ALL_NAMESPACES,
        }
    }

    pub fn from_command(command: &NvmeCommand) -> GetLogPage {
        let [dword10, dword11, low, high, dword14, _] = command.dwords;
        let dwords = u64::from(dword10 >> 16) | u64::from(dword11 & 0xffff) << 16;
        GetLogPage {
            page: dword10 as u8,
            specific: (dword10 >> 8 & 0x7f) as u8,
            retain_event: dword10 & 1 << 15 != 0,
            offset_bytes: u64::from(low) | u64::from(high) << 32,
            length_bytes: (dwords + 1) * 4,
            offset_is_index: dword14 & 1 << 23 != 0,
            nsid: command.nsid,
        }
    }

    /// # Panics
    /// If the length is zero, no multiple of four, or over 16 GiB.
    pub fn to_command(&self, cid: u16) -> NvmeCommand {
        assert!(self.length_bytes > 0 && self.length_bytes.is_multiple_of(4), "{} bytes", self.length_bytes);
        let dwords = u32::try_from(self.length_bytes / 4 - 1).expect("a log page is no larger than 16 GiB");
        let length = u32::try_from(self.length_bytes).unwrap_or(u32::MAX);
        let mut command =
            NvmeCommand::new(admin::GET_LOG_PAGE, cid, self.nsid, SglDescriptor::transport(length));
        command.dwords = [
            u32::from(self.page)
                | u32::from(self.specific & 0x7f) << 8
                | u32::from(self.retain_event) << 15
                | dwords << 16,
            dwords >> 16,
            self.offset_bytes as u32,
            (self.offset_bytes >> 32) as u32,
            u32::from(self.offset_is_index) << 23,
            0,
        ];
        command
    }
}

/// The page that lists pages: each has a dword, whose lowest bit says that it is there.
pub fn encode_supported_pages(pages: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 1024];
    for page in pages {
        bytes[usize::from(*page) * 4] = 1;
    }
    bytes
}

/// An entry of the error log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorEntry {
    /// Counts errors from 1; 0 is no entry.
    pub number: u64,
    pub sq_id: u16,
    pub cid: u16,
    pub status: NvmeStatus,
    pub lba: u64,
    pub nsid: u32,
}

impl ErrorEntry {
    pub const BYTES: usize = 64;
    const TRANSPORT_TCP: u8 = 3;

    pub fn encode(&self) -> [u8; ErrorEntry::BYTES] {
        let mut bytes = [0; ErrorEntry::BYTES];
        put(&mut bytes, 0, &self.number.to_le_bytes());
        put(&mut bytes, 8, &self.sq_id.to_le_bytes());
        put(&mut bytes, 10, &self.cid.to_le_bytes());
        put(&mut bytes, 12, &self.status.to_field().to_le_bytes());
        // Which byte of the command was wrong isn't told.
        put(&mut bytes, 14, &u16::MAX.to_le_bytes());
        put(&mut bytes, 16, &self.lba.to_le_bytes());
        put(&mut bytes, 24, &self.nsid.to_le_bytes());
        bytes[29] = ErrorEntry::TRANSPORT_TCP;
        bytes
    }

    pub fn decode(bytes: &[u8; ErrorEntry::BYTES]) -> ErrorEntry {
        ErrorEntry {
            number: u64_at(bytes, 0),
            sq_id: u16_at(bytes, 8),
            cid: u16_at(bytes, 10),
            status: NvmeStatus::from_field(u16_at(bytes, 12)),
            lba: u64_at(bytes, 16),
            nsid: u32_at(bytes, 24),
        }
    }
}

/// SMART / health information, of the whole controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmartLog {
    /// Bit 0: spare capacity is low; bit 2: reliability is degraded; bit 3: read-only.
    pub critical_warning: u8,
    pub temperature_kelvin: u16,
    pub available_spare_percent: u8,
    pub spare_threshold_percent: u8,
    pub used_percent: u8,
    /// In thousands of 512 bytes, rounded up.
    pub data_units_read: u128,
    pub data_units_written: u128,
    pub read_commands: u128,
    pub write_commands: u128,
    pub power_on_hours: u128,
    pub media_errors: u128,
    pub error_log_entries: u128,
}

impl SmartLog {
    pub const BYTES: usize = 512;

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; SmartLog::BYTES];
        bytes[0] = self.critical_warning;
        put(&mut bytes, 1, &self.temperature_kelvin.to_le_bytes());
        bytes[3] = self.available_spare_percent;
        bytes[4] = self.spare_threshold_percent;
        bytes[5] = self.used_percent;
        put(&mut bytes, 32, &self.data_units_read.to_le_bytes());
        put(&mut bytes, 48, &self.data_units_written.to_le_bytes());
        put(&mut bytes, 64, &self.read_commands.to_le_bytes());
        put(&mut bytes, 80, &self.write_commands.to_le_bytes());
        put(&mut bytes, 128, &self.power_on_hours.to_le_bytes());
        put(&mut bytes, 160, &self.media_errors.to_le_bytes());
        put(&mut bytes, 176, &self.error_log_entries.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; SmartLog::BYTES]) -> SmartLog {
        SmartLog {
            critical_warning: bytes[0],
            temperature_kelvin: u16_at(bytes, 1),
            available_spare_percent: bytes[3],
            spare_threshold_percent: bytes[4],
            used_percent: bytes[5],
            data_units_read: u128_at(bytes, 32),
            data_units_written: u128_at(bytes, 48),
            read_commands: u128_at(bytes, 64),
            write_commands: u128_at(bytes, 80),
            power_on_hours: u128_at(bytes, 128),
            media_errors: u128_at(bytes, 160),
            error_log_entries: u128_at(bytes, 176),
        }
    }
}

/// One slot, which is active and can't be changed.
pub fn encode_firmware_slots(revision: &str) -> Vec<u8> {
    let mut bytes = vec![0; 512];
    bytes[0] = 1;
    put_padded(&mut bytes, 8, 8, revision);
    bytes
}

/// The namespaces that appeared, went or changed since the page was last read. More than 1,024 are reported
/// as "many".
pub fn encode_changed_namespaces(nsids: &[u32]) -> Vec<u8> {
    const PLACES: usize = 1024;
    let many = [crate::command::ALL_NAMESPACES];
    let nsids = if nsids.len() > PLACES { &many[..] } else { nsids };
    crate::identify::encode_namespace_list(nsids.iter().copied())
}

/// A command's effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandEffect {
    pub opcode: u8,
    pub changes_blocks: bool,
}

/// The commands that are known, and their effects.
pub fn encode_command_effects(admin: &[u8], io: &[CommandEffect]) -> Vec<u8> {
    const SUPPORTED: u8 = 1;
    const CHANGES_BLOCKS: u8 = 2;
    const IO_AT: usize = 1024;
    let mut bytes = vec![0; 4096];
    for opcode in admin {
        bytes[usize::from(*opcode) * 4] = SUPPORTED;
    }
    for effect in io {
        let changes = if effect.changes_blocks { CHANGES_BLOCKS } else { 0 };
        bytes[IO_AT + usize::from(effect.opcode) * 4] = SUPPORTED | changes;
    }
    bytes
}

/// The target of an entry of the discovery log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscoveredKind {
    /// Another discovery subsystem.
    Referral,
    /// A subsystem with namespaces.
    Nvm,
    /// The discovery subsystem that was asked.
    Current,
    Other(u8),
}

impl DiscoveredKind {
    fn number(self) -> u8 {
        match self {
            DiscoveredKind::Referral => 1,
            DiscoveredKind::Nvm => 2,
            DiscoveredKind::Current => 3,
            DiscoveredKind::Other(other) => other,
        }
    }

    fn from_number(number: u8) -> DiscoveredKind {
        match number {
            1 => DiscoveredKind::Referral,
            2 => DiscoveredKind::Nvm,
            3 => DiscoveredKind::Current,
            other => DiscoveredKind::Other(other),
        }
    }
}

/// An entry of the discovery log: a subsystem and an address at which it is reached by TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryEntry {
    pub transport: u8,
    /// 1 is IPv4, 2 is IPv6.
    pub address_family: u8,
    pub kind: DiscoveredKind,
    pub port_id: u16,
    pub subsystem_nqn: String,
    /// The address in text, without the port.
    pub address: String,
    /// The port in text.
    pub service: String,
}

impl DiscoveryEntry {
    pub const BYTES: usize = 1024;
    pub const TCP: u8 = 3;
    pub const IPV4: u8 = 1;
    pub const IPV6: u8 = 2;
    /// Admin queues have at most this many entries.
    const ADMIN_QUEUE_ENTRIES: u16 = 32;
    /// No secure channel is required, and flow control may be off.
    const REQUIREMENTS: u8 = 2 | 1 << 2;

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; DiscoveryEntry::BYTES];
        bytes[0] = self.transport;
        bytes[1] = self.address_family;
        bytes[2] = self.kind.number();
        bytes[3] = DiscoveryEntry::REQUIREMENTS;
        put(&mut bytes, 4, &self.port_id.to_le_bytes());
        put(&mut bytes, 6, &crate::fabrics::ANY_CONTROLLER.to_le_bytes());
        put(&mut bytes, 8, &DiscoveryEntry::ADMIN_QUEUE_ENTRIES.to_le_bytes());
        put_padded(&mut bytes, 32, 32, &self.service);
        crate::wire::put_terminated(&mut bytes, 256, 256, &self.subsystem_nqn);
        put_padded(&mut bytes, 512, 256, &self.address);
        bytes
    }

    pub fn decode(bytes: &[u8; DiscoveryEntry::BYTES]) -> DiscoveryEntry {
        DiscoveryEntry {
            transport: bytes[0],
            address_family: bytes[1],
            kind: DiscoveredKind::from_number(bytes[2]),
            port_id: u16_at(bytes, 4),
            service: text_at(bytes, 32, 32),
            subsystem_nqn: name_at(bytes, 256, 256),
            address: text_at(bytes, 512, 256),
        }
    }
}

/// The head of the discovery log page, before its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscoveryHead {
    /// Changes with the page's contents.
    pub generation: u64,
    pub entries: u64,
}

impl DiscoveryHead {
    pub const BYTES: usize = 1024;

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; DiscoveryHead::BYTES];
        put(&mut bytes, 0, &self.generation.to_le_bytes());
        put(&mut bytes, 8, &self.entries.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; DiscoveryHead::BYTES]) -> DiscoveryHead {
        DiscoveryHead { generation: u64_at(bytes, 0), entries: u64_at(bytes, 8) }
    }
}

/// An asynchronous event (base 5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    NamespacesChanged,
    DiscoveryChanged,
    /// Any other: its type, its information and the log page that tells more.
    Other {
        kind: u8,
        information: u8,
        page: u8,
    },
}

impl AsyncEvent {
    const NOTICE: u8 = 2;
    const NAMESPACE: u8 = 0x00;
    const DISCOVERED: u8 = 0xf0;

    pub fn to_result(self) -> u64 {
        let (kind, information, page) = match self {
            AsyncEvent::NamespacesChanged => (AsyncEvent::NOTICE, AsyncEvent::NAMESPACE, CHANGED_NAMESPACES),
            AsyncEvent::DiscoveryChanged => (AsyncEvent::NOTICE, AsyncEvent::DISCOVERED, DISCOVERY),
            AsyncEvent::Other { kind, information, page } => (kind & 7, information, page),
        };
        u64::from(kind) | u64::from(information) << 8 | u64::from(page) << 16
    }

    pub fn from_result(result: u64) -> AsyncEvent {
        let (kind, information, page) = (result as u8 & 7, (result >> 8) as u8, (result >> 16) as u8);
        match (kind, information, page) {
            (AsyncEvent::NOTICE, AsyncEvent::NAMESPACE, CHANGED_NAMESPACES) => AsyncEvent::NamespacesChanged,
            (AsyncEvent::NOTICE, AsyncEvent::DISCOVERED, DISCOVERY) => AsyncEvent::DiscoveryChanged,
            _ => AsyncEvent::Other { kind, information, page },
        }
    }
}

/// The namespaces that a page of changed ones names; `None` says that there are too many to name.
pub fn decode_changed_namespaces(bytes: &[u8; 4096]) -> Option<Vec<u32>> {
    if u32_at(bytes, 0) == crate::command::ALL_NAMESPACES {
        return None;
    }
    Some(crate::identify::decode_namespace_list(bytes))
}
