//! Features (base 5.27, NVM 4.1.3) that Set Features and Get Features know.

use crate::command::{NvmeCommand, SglDescriptor, admin};

pub const ARBITRATION: u8 = 0x01;
pub const POWER_MANAGEMENT: u8 = 0x02;
pub const TEMPERATURE_THRESHOLD: u8 = 0x04;
pub const ERROR_RECOVERY: u8 = 0x05;
pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
pub const NUMBER_OF_QUEUES: u8 = 0x07;
pub const WRITE_ATOMICITY: u8 = 0x0a;
pub const ASYNC_EVENT_CONFIGURATION: u8 = 0x0b;
pub const KEEP_ALIVE_TIMER: u8 = 0x0f;
pub const HOST_BEHAVIOR: u8 = 0x16;
pub const HOST_IDENTIFIER: u8 = 0x81;

/// In the asynchronous event configuration: a namespace appeared, went or changed.
pub const EVENT_NAMESPACE_CHANGED: u32 = 1 << 8;
/// In the asynchronous event configuration: what discovery tells has changed.
pub const EVENT_DISCOVERY_CHANGED: u32 = 1 << 31;

/// Which value of a feature Get Features asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureSelect {
    Current,
    Default,
    Saved,
    /// The feature's capabilities: bits for saveable, namespace specific and changeable.
    Capabilities,
}

/// In the answer to `FeatureSelect::Capabilities`: the feature can be changed.
pub const CHANGEABLE: u32 = 1 << 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetFeatures {
    pub feature: u8,
    /// `None` for a number that the specification doesn't know.
    pub select: Option<FeatureSelect>,
    pub dword11: u32,
}

impl GetFeatures {
    pub fn from_command(command: &NvmeCommand) -> GetFeatures {
        let select = match command.dwords[0] >> 8 & 7 {
            0 => Some(FeatureSelect::Current),
            1 => Some(FeatureSelect::Default),
            2 => Some(FeatureSelect::Saved),
            3 => Some(FeatureSelect::Capabilities),
            _ => None,
        };
        GetFeatures { feature: command.dwords[0] as u8, select, dword11: command.dwords[1] }
    }

    /// Asks for the current value of a feature whose value is the result itself.
    pub fn current(feature: u8, cid: u16) -> NvmeCommand {
        let mut command = NvmeCommand::new(admin::GET_FEATURES, cid, 0, SglDescriptor::empty());
        command.dwords[0] = u32::from(feature);
        command
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetFeatures {
    pub feature: u8,
    /// The value is to be kept over resets.
    pub save: bool,
    pub dword11: u32,
}

impl SetFeatures {
    pub fn from_command(command: &NvmeCommand) -> SetFeatures {
        SetFeatures {
            feature: command.dwords[0] as u8,
            save: command.dwords[0] & 1 << 31 != 0,
            dword11: command.dwords[1],
        }
    }

    pub fn to_command(&self, cid: u16) -> NvmeCommand {
        let mut command = NvmeCommand::new(admin::SET_FEATURES, cid, 0, SglDescriptor::empty());
        command.dwords[0] = u32::from(self.feature) | u32::from(self.save) << 31;
        command.dwords[1] = self.dword11;
        command
    }
}

/// How many I/O queues a host asks for or gets (base 5.27.1.5): submission and completion queues are pairs over
/// fabrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCount {
    pub submission: u32,
    pub completion: u32,
}

impl QueueCount {
    pub fn pairs(count: u32) -> QueueCount {
        QueueCount { submission: count, completion: count }
    }

    /// From the value of the feature. 65,536 of a kind is not allowed; that is for the caller to refuse.
    pub fn from_value(value: u32) -> QueueCount {
        QueueCount { submission: (value & 0xffff) + 1, completion: (value >> 16) + 1 }
    }

    /// The value of the feature, each number less one.
    pub fn to_value(self) -> u32 {
        let zero_based = |count: u32| count.clamp(1, 65_536) - 1;
        zero_based(self.submission) | zero_based(self.completion) << 16
    }
}
