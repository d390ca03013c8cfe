//! Fabrics commands (base 6) and the properties of a controller (base 3.1.3).

use crate::command::{FABRICS, FLAGS_SGL, NvmeCommand, SglDescriptor};
use crate::wire::{array_at, name_at, put, put_terminated, u16_at};

/// The subsystem that every target has, which tells of the others (base 4.5).
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// A qualified name's longest length in bytes, without the zero at its end.
pub const NQN_BYTES: usize = 223;

/// The controller ID by which a host asks for any controller.
pub const ANY_CONTROLLER: u16 = 0xffff;

/// Types of fabrics commands.
pub mod fabrics_type {
    pub const PROPERTY_SET: u8 = 0x00;
    pub const CONNECT: u8 = 0x01;
    pub const PROPERTY_GET: u8 = 0x04;
    pub const AUTHENTICATION_SEND: u8 = 0x05;
    pub const AUTHENTICATION_RECEIVE: u8 = 0x06;
    pub const DISCONNECT: u8 = 0x08;
}

/// Offsets of the properties.
pub mod property {
    /// Controller capabilities, 8 bytes.
    pub const CAP: u32 = 0x00;
    /// Version, 4 bytes.
    pub const VS: u32 = 0x08;
    /// Controller configuration, 4 bytes.
    pub const CC: u32 = 0x14;
    /// Controller status, 4 bytes.
    pub const CSTS: u32 = 0x1c;
    /// NVM subsystem reset, 4 bytes.
    pub const NSSR: u32 = 0x20;
}

/// The controller configuration's enable bit.
pub const CC_ENABLE: u32 = 1;
/// The controller configuration's shutdown notification: none, normal or abrupt.
pub const CC_SHUTDOWN: u32 = 3 << 14;
/// The controller configuration's shutdown notification: normal.
pub const CC_SHUTDOWN_NORMAL: u32 = 1 << 14;
/// The entry sizes that a host asks for when it enables a controller: 64-byte commands, 16-byte completions, the NVM
/// commands.
pub const CC_ENTRY_SIZES: u32 = 6 << 16 | 4 << 20;
/// The controller status: ready.
pub const CSTS_READY: u32 = 1;
/// The controller status: failed, for good.
pub const CSTS_FATAL: u32 = 1 << 1;
/// The controller status: shutdown is in progress.
pub const CSTS_SHUTDOWN_OCCURRING: u32 = 1 << 2;
/// The controller status: shutdown is complete.
pub const CSTS_SHUTDOWN_COMPLETE: u32 = 2 << 2;

/// In a Connect's attributes: the submission queue is used without flow control.
pub const CATTR_NO_FLOW_CONTROL: u8 = 1 << 2;
/// In the answer to a Connect: the host must authenticate before it does anything else.
pub const CONNECT_AUTHENTICATION: u32 = 1 << 17;

/// The security protocol of NVMe's in-band authentication, and its two specific fields.
pub const AUTHENTICATION_PROTOCOL: u8 = 0xe9;
pub const AUTHENTICATION_SPECIFIC: u8 = 1;

fn fabrics_command(kind: u8, cid: u16, sgl: SglDescriptor) -> NvmeCommand {
    NvmeCommand {
        opcode: FABRICS,
        flags: FLAGS_SGL,
        cid,
        nsid: u32::from(kind),
        sgl,
        ..NvmeCommand::default()
    }
}

/// The fields of a Connect command (base 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectCommand {
    pub record_format: u16,
    /// 0 is the admin queue.
    pub queue_id: u16,
    /// The number of entries less one.
    pub sq_size: u16,
    pub attributes: u8,
    /// Keep-alive timeout in milliseconds, of the admin queue; 0 is none.
    pub kato_ms: u32,
}

impl ConnectCommand {
    pub fn from_command(command: &NvmeCommand) -> ConnectCommand {
        ConnectCommand {
            record_format: command.dwords[0] as u16,
            queue_id: (command.dwords[0] >> 16) as u16,
            sq_size: command.dwords[1] as u16,
            attributes: (command.dwords[1] >> 16) as u8,
            kato_ms: command.dwords[2],
        }
    }

    /// The command, whose data is a [`ConnectData`] in the capsule.
    pub fn to_command(&self, cid: u16) -> NvmeCommand {
        let mut command = fabrics_command(
            fabrics_type::CONNECT,
            cid,
            SglDescriptor::new_in_capsule(ConnectData::BYTES as u32),
        );
        command.dwords[0] = u32::from(self.record_format) | u32::from(self.queue_id) << 16;
        command.dwords[1] = u32::from(self.sq_size) | u32::from(self.attributes) << 16;
        command.dwords[2] = self.kato_ms;
        command
    }
}

/// The data of a Connect command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectData {
    pub host_id: [u8; 16],
    /// [`ANY_CONTROLLER`] on the admin queue, the controller's on all others.
    pub controller_id: u16,
    pub subsystem_nqn: String,
    pub host_nqn: String,
}

impl ConnectData {
    pub const BYTES: usize = 1024;
    /// Places in the data, which the answer to a wrong one names.
    pub const HOST_ID_AT: u16 = 0;
    pub const CONTROLLER_ID_AT: u16 = 16;
    pub const SUBSYSTEM_NQN_AT: u16 = 256;
    pub const HOST_NQN_AT: u16 = 512;

    pub fn decode(bytes: &[u8; ConnectData::BYTES]) -> ConnectData {
        ConnectData {
            host_id: array_at(bytes, 0),
            controller_id: u16_at(bytes, 16),
            subsystem_nqn: name_at(bytes, 256, 256),
            host_nqn: name_at(bytes, 512, 256),
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; ConnectData::BYTES];
        put(&mut bytes, 0, &self.host_id);
        put(&mut bytes, 16, &self.controller_id.to_le_bytes());
        put_terminated(&mut bytes, 256, 256, &self.subsystem_nqn);
        put_terminated(&mut bytes, 512, 256, &self.host_nqn);
        bytes
    }
}

/// The first dword of a refused Connect: the place of the wrong parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidParameter {
    pub offset: u16,
    /// In the data; otherwise in the command.
    pub is_in_data: bool,
}

impl InvalidParameter {
    pub fn to_result(self) -> u64 {
        u64::from(self.offset) | u64::from(self.is_in_data) << 16
    }

    pub fn from_result(result: u64) -> InvalidParameter {
        InvalidParameter { offset: result as u16, is_in_data: result & 1 << 16 != 0 }
    }
}

/// A Property Get (base 6.5); the answer's result is the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PropertyGet {
    pub offset: u32,
    /// 8 bytes instead of 4.
    pub is_wide: bool,
}

impl PropertyGet {
    pub fn from_command(command: &NvmeCommand) -> PropertyGet {
        PropertyGet { offset: command.dwords[1], is_wide: command.dwords[0] & 7 == 1 }
    }

    pub fn to_command(&self, cid: u16) -> NvmeCommand {
        let mut command = fabrics_command(fabrics_type::PROPERTY_GET, cid, SglDescriptor::empty());
        command.dwords[0] = u32::from(self.is_wide);
        command.dwords[1] = self.offset;
        command
    }
}

/// A Property Set (base 6.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PropertySet {
    pub offset: u32,
    pub is_wide: bool,
    pub value: u64,
}

impl PropertySet {
    pub fn from_command(command: &NvmeCommand) -> PropertySet {
        PropertySet {
            offset: command.dwords[1],
            is_wide: command.dwords[0] & 7 == 1,
            value: u64::from(command.dwords[2]) | u64::from(command.dwords[3]) << 32,
        }
    }

    pub fn to_command(&self, cid: u16) -> NvmeCommand {
        let mut command = fabrics_command(fabrics_type::PROPERTY_SET, cid, SglDescriptor::empty());
        command.dwords[0] = u32::from(self.is_wide);
        command.dwords[1] = self.offset;
        command.dwords[2] = self.value as u32;
        command.dwords[3] = (self.value >> 32) as u32;
        command
    }
}

/// An Authentication Send or Receive (base 6.1, 6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthCommand {
    pub protocol: u8,
    pub specific: [u8; 2],
    /// The length of what is sent, or the place for what is received.
    pub length_bytes: u32,
}

impl AuthCommand {
    /// One of NVMe's own protocol.
    pub fn new(length_bytes: u32) -> AuthCommand {
        let specific = [AUTHENTICATION_SPECIFIC; 2];
        AuthCommand { protocol: AUTHENTICATION_PROTOCOL, specific, length_bytes }
    }

    pub fn is_nvme(&self) -> bool {
        self.protocol == AUTHENTICATION_PROTOCOL && self.specific == [AUTHENTICATION_SPECIFIC; 2]
    }

    pub fn from_command(command: &NvmeCommand) -> AuthCommand {
        let [_, first, second, protocol] = command.dwords[0].to_le_bytes();
        AuthCommand { protocol, specific: [first, second], length_bytes: command.dwords[1] }
    }

    /// An Authentication Send, whose data is in the capsule: `length_bytes` of it.
    pub fn to_send_command(&self, cid: u16) -> NvmeCommand {
        self.to_command(
            fabrics_type::AUTHENTICATION_SEND,
            cid,
            SglDescriptor::new_in_capsule(self.length_bytes),
        )
    }

    pub fn to_receive_command(&self, cid: u16) -> NvmeCommand {
        self.to_command(
            fabrics_type::AUTHENTICATION_RECEIVE,
            cid,
            SglDescriptor::transport(self.length_bytes),
        )
    }

    fn to_command(self, kind: u8, cid: u16, sgl: SglDescriptor) -> NvmeCommand {
        let mut command = fabrics_command(kind, cid, sgl);
        let [first, second] = self.specific;
        command.dwords[0] = u32::from_le_bytes([0, first, second, self.protocol]);
        command.dwords[1] = self.length_bytes;
        command
    }
}

/// A Disconnect (base 6.4), which deletes an I/O queue.
pub fn disconnect_command(cid: u16) -> NvmeCommand {
    fabrics_command(fabrics_type::DISCONNECT, cid, SglDescriptor::empty())
}
