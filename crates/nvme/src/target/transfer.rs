//! Data that hosts send on demand: an R2T for each command that has such data, and the H2CData PDUs that answer it (TCP
//! 3.3.2.1).

use crate::command::NvmeCommand;
use crate::pdu::{DataState, DataTransfer, FatalStatus, Pdu, PduFraming, ProtocolError};

/// The data of one command. The whole of it is asked for at once: so one R2T a command is outstanding, which every host
/// allows.
struct CommandTransfer {
    command: NvmeCommand,
    data: Vec<u8>,
    length_bytes: usize,
    received_bytes: usize,
    is_damaged: bool,
    budget_bytes: usize,
}

/// The transfers under way, by their tags.
#[derive(Default)]
pub(super) struct TransferTable {
    by_tag: Vec<Option<CommandTransfer>>,
    free_tags: Vec<u16>,
}

/// A command whose data is here.
pub(super) struct ReceivedCommand {
    pub command: NvmeCommand,
    pub data: Vec<u8>,
    pub is_damaged: bool,
    pub budget_bytes: usize,
}

impl TransferTable {
    /// The tag under which the data has to come.
    ///
    /// There are as many transfers as commands under way at most, fewer than there are tags.
    pub(super) fn begin(&mut self, command: NvmeCommand, length_bytes: usize, budget_bytes: usize) -> u16 {
        let data = Vec::new();
        let transfer = CommandTransfer {
            command,
            data,
            length_bytes,
            received_bytes: 0,
            is_damaged: false,
            budget_bytes,
        };
        let tag = self.free_tags.pop().unwrap_or_else(|| {
            self.by_tag.push(None);
            (self.by_tag.len() - 1) as u16
        });
        self.by_tag[usize::from(tag)] = Some(transfer);
        tag
    }

    /// Where the data of a PDU belongs.
    ///
    /// # Errors
    /// When nobody asked for it, or not for that next.
    pub(super) fn place_for(&mut self, data: &DataTransfer) -> Result<&mut [u8], ProtocolError> {
        let error = |status, field_offset, problem| {
            let header = PduFraming::default().head(&Pdu::H2cData(*data), data.length_bytes as usize);
            Err(ProtocolError::new(status, field_offset, &header.as_bytes()[..24], problem))
        };
        let transfer = self.by_tag.get_mut(usize::from(data.transfer_tag)).and_then(Option::as_mut);
        let Some(transfer) = transfer else {
            return error(FatalStatus::InvalidHeaderField, 10, "nothing was requested under this tag");
        };
        if transfer.command.cid != data.cid {
            return error(FatalStatus::InvalidHeaderField, 8, "the tag belongs to another command");
        }
        let (offset, length) = (data.offset_bytes as usize, data.length_bytes as usize);
        // No underflow: `received_bytes` never exceeds the length, and the first test has made `offset`
        // equal to it.
        if offset != transfer.received_bytes || length > transfer.length_bytes - offset {
            return error(FatalStatus::DataOutOfRange, 12, "other data was requested");
        }
        if length == 0 {
            return error(FatalStatus::InvalidHeaderField, 16, "there is no data");
        }
        if data.is_last != (offset + length == transfer.length_bytes) {
            return error(FatalStatus::InvalidHeaderField, 1, "the last data is not where it was announced");
        }
        // Memory is taken when data comes, not when it is asked for.
        transfer.data.resize(transfer.length_bytes, 0);
        Ok(&mut transfer.data[offset..offset + length])
    }

    /// The data of a PDU was put in its place. The command, once it has all of its data.
    pub(super) fn received(&mut self, data: &DataTransfer, state: DataState) -> Option<ReceivedCommand> {
        let place = self.by_tag.get_mut(usize::from(data.transfer_tag))?;
        let transfer = place.as_mut()?;
        transfer.received_bytes += data.length_bytes as usize;
        transfer.is_damaged |= state == DataState::Damaged;
        if transfer.received_bytes < transfer.length_bytes {
            return None;
        }
        let CommandTransfer { command, data: received, is_damaged, budget_bytes, .. } = place.take()?;
        self.free_tags.push(data.transfer_tag);
        Some(ReceivedCommand { command, data: received, is_damaged, budget_bytes })
    }
}
