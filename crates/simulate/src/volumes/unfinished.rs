//! Commands that nobody has answered yet.

use std::sync::Arc;

use crate::model::VolumeModel;
use crate::user::DeviceUser;

/// An administrator's command in flight: what it would leave behind if the server died now.
pub(super) enum UnfinishedCommand {
    /// `model` is there once the server has died or has given up: the source is changed before anybody takes stock.
    Snapshot {
        name: String,
        began: u64,
        source: Arc<DeviceUser>,
        model: Option<VolumeModel>,
    },
    Delete {
        name: String,
    },
    Resize {
        name: String,
        blocks: u32,
    },
}

impl UnfinishedCommand {
    /// The server has died, or has given up: a snapshot is of what the source had until then. Where an earlier server
    /// `has_lost` something, the host may have yet to write that again.
    pub(super) fn stays_as_of(&mut self, moment: u64, has_lost: bool) {
        if let UnfinishedCommand::Snapshot { began, source, model, .. } = self
            && model.is_none()
        {
            *model =
                Some(source.with_model(|of_source| of_source.snapshot_at_server(*began, moment, has_lost)));
        }
    }

    pub(super) fn name(&self) -> &str {
        match self {
            UnfinishedCommand::Snapshot { name, .. }
            | UnfinishedCommand::Delete { name }
            | UnfinishedCommand::Resize { name, .. } => name,
        }
    }
}
