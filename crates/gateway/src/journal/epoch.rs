//! How far the metadata were when the journal beside them was opened: older ones don't fit it.

use std::io;

use underlay_files::Folder;

use super::{commits, numbers_in};

/// How often the metadata had been opened when the journal was opened last.
const EPOCH: &str = "epoch";

/// How far the metadata must have got, at least. If they have less, they are an older copy, or have lost acknowledged
/// changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NotedEpoch {
    pub(crate) epoch: u64,
    pub(crate) commits: u64,
}

/// # Errors
/// When the folder can't be read, or has segments and does not say.
pub(crate) fn noted(folder: &Folder) -> io::Result<NotedEpoch> {
    Ok(NotedEpoch { epoch: epoch_of(folder)?, commits: commits::noted(folder)? })
}

/// How often the metadata were opened before the journal in this folder was opened last: 0 if none is there.
fn epoch_of(folder: &Folder) -> io::Result<u64> {
    match folder.read_text(EPOCH, 32) {
        Ok(text) => epoch_in(&text).ok_or_else(|| {
            let path = folder.path().join(EPOCH);
            io::Error::other(format!(
                "{} is damaged: it says how often the metadata had been opened\n  what to do: bring back the whole local directory from a copy; if the metadata beside it are certainly the newest, remove this file",
                path.display()
            ))
        }),
        // Segments of an older gateway, of any metadata.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Ok(u64::from(!numbers_in(folder)?.is_empty()))
        }
        Err(error) => Err(error),
    }
}

/// Before anything is removed or written by what metadata of this epoch say.
///
/// # Errors
/// When it can't be made durable.
pub(crate) fn set_epoch(folder: &Folder, epoch: u64) -> io::Result<()> {
    folder.replace(EPOCH, underlay_files::Access::Private, epoch.to_string().as_bytes())
}

pub(super) fn epoch_in(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}
