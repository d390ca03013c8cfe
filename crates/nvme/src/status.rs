//! A command's status (base 3.3.3.2.1, NVM 3.1.2).

use std::fmt;

/// A status: its type, its code, and whether trying again is pointless.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct NvmeStatus(u16);

const GENERIC: u16 = 0;
const COMMAND_SPECIFIC: u16 = 1;
const MEDIA: u16 = 2;
const PATH: u16 = 3;

const MORE: u16 = 1 << 13;
const DO_NOT_RETRY: u16 = 1 << 14;
/// Type and code, without what is said about trying again.
const CODE: u16 = 0x7ff;

macro_rules! statuses {
    ($($constant:ident = $kind:ident, $code:literal, $name:literal;)*) => {
        impl NvmeStatus {
            $(#[doc = $name] pub const $constant: NvmeStatus = NvmeStatus($kind << 8 | $code);)*

            /// The specification's name, or `None` for one that Underlay neither gives nor expects.
            pub fn name(self) -> Option<&'static str> {
                match self.plain() {
                    $(NvmeStatus::$constant => Some($name),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    SUCCESS = GENERIC, 0x00, "Successful Completion";
    INVALID_OPCODE = GENERIC, 0x01, "Invalid Command Opcode";
    INVALID_FIELD = GENERIC, 0x02, "Invalid Field in Command";
    COMMAND_ID_CONFLICT = GENERIC, 0x03, "Command ID Conflict";
    DATA_TRANSFER_ERROR = GENERIC, 0x04, "Data Transfer Error";
    INTERNAL_ERROR = GENERIC, 0x06, "Internal Error";
    ABORT_REQUESTED = GENERIC, 0x07, "Command Abort Requested";
    SUBMISSION_QUEUE_DELETED = GENERIC, 0x08, "Command Aborted due to SQ Deletion";
    INVALID_NAMESPACE = GENERIC, 0x0b, "Invalid Namespace or Format";
    COMMAND_SEQUENCE_ERROR = GENERIC, 0x0c, "Command Sequence Error";
    DATA_LENGTH_INVALID = GENERIC, 0x0f, "Data SGL Length Invalid";
    SGL_TYPE_INVALID = GENERIC, 0x11, "SGL Descriptor Type Invalid";
    SGL_OFFSET_INVALID = GENERIC, 0x16, "SGL Offset Invalid";
    HOST_ID_INCONSISTENT = GENERIC, 0x18, "Host Identifier Inconsistent Format";
    KEEP_ALIVE_EXPIRED = GENERIC, 0x19, "Keep Alive Timeout Expired";
    KEEP_ALIVE_INVALID = GENERIC, 0x1a, "Keep Alive Timeout Invalid";
    NAMESPACE_WRITE_PROTECTED = GENERIC, 0x20, "Namespace is Write Protected";
    TRANSIENT_TRANSPORT_ERROR = GENERIC, 0x22, "Transient Transport Error";
    LBA_OUT_OF_RANGE = GENERIC, 0x80, "LBA Out of Range";
    CAPACITY_EXCEEDED = GENERIC, 0x81, "Capacity Exceeded";
    NAMESPACE_NOT_READY = GENERIC, 0x82, "Namespace Not Ready";
    RESERVATION_CONFLICT = GENERIC, 0x83, "Reservation Conflict";
    INVALID_QUEUE_ID = COMMAND_SPECIFIC, 0x01, "Invalid Queue Identifier";
    ABORT_LIMIT_EXCEEDED = COMMAND_SPECIFIC, 0x03, "Abort Command Limit Exceeded";
    EVENT_REQUEST_LIMIT_EXCEEDED = COMMAND_SPECIFIC, 0x05, "Asynchronous Event Request Limit Exceeded";
    INVALID_LOG_PAGE = COMMAND_SPECIFIC, 0x09, "Invalid Log Page";
    FEATURE_NOT_SAVEABLE = COMMAND_SPECIFIC, 0x0d, "Feature Identifier Not Saveable";
    FEATURE_NOT_CHANGEABLE = COMMAND_SPECIFIC, 0x0e, "Feature Not Changeable";
    CONNECT_INCOMPATIBLE_FORMAT = COMMAND_SPECIFIC, 0x80, "Connect Incompatible Format";
    CONNECT_CONTROLLER_BUSY = COMMAND_SPECIFIC, 0x81, "Connect Controller Busy";
    CONNECT_INVALID_PARAMETERS = COMMAND_SPECIFIC, 0x82, "Connect Invalid Parameters";
    CONNECT_RESTART_DISCOVERY = COMMAND_SPECIFIC, 0x83, "Connect Restart Discovery";
    CONNECT_INVALID_HOST = COMMAND_SPECIFIC, 0x84, "Connect Invalid Host";
    INVALID_QUEUE_TYPE = COMMAND_SPECIFIC, 0x85, "Invalid Queue Type";
    AUTHENTICATION_REQUIRED = COMMAND_SPECIFIC, 0x91, "Authentication Required";
    WRITE_FAULT = MEDIA, 0x80, "Write Fault";
    UNRECOVERED_READ_ERROR = MEDIA, 0x81, "Unrecovered Read Error";
    COMPARE_FAILURE = MEDIA, 0x85, "Compare Failure";
    ACCESS_DENIED = MEDIA, 0x86, "Access Denied";
    INTERNAL_PATH_ERROR = PATH, 0x00, "Internal Path Error";
    ABORTED_BY_HOST = PATH, 0x71, "Command Aborted By Host";
}

impl NvmeStatus {
    /// The same, saying that the command would fail again.
    pub const fn do_not_retry(self) -> NvmeStatus {
        NvmeStatus(self.0 | DO_NOT_RETRY)
    }

    /// The same, saying that the error log has an entry for it.
    pub const fn with_more(self) -> NvmeStatus {
        NvmeStatus(self.0 | MORE)
    }

    pub fn says_do_not_retry(self) -> bool {
        self.0 & DO_NOT_RETRY != 0
    }

    pub fn is_success(self) -> bool {
        self.0 & CODE == 0
    }

    /// Type and code alone: what to compare with the constants.
    pub const fn plain(self) -> NvmeStatus {
        NvmeStatus(self.0 & CODE)
    }

    /// The type in bits 10:8, the code in bits 7:0.
    pub const fn code(self) -> u16 {
        self.0 & CODE
    }

    /// The status as the last 16 bits of a completion hold it, above the phase tag.
    pub const fn to_field(self) -> u16 {
        self.0 << 1
    }

    pub const fn from_field(field: u16) -> NvmeStatus {
        NvmeStatus(field >> 1)
    }
}

impl fmt::Display for NvmeStatus {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(formatter, "{name} ({:#05x})", self.code())?,
            None => write!(formatter, "status {:#05x}", self.code())?,
        }
        if self.says_do_not_retry() { formatter.write_str(", do not retry") } else { Ok(()) }
    }
}

impl fmt::Debug for NvmeStatus {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}
