//! Opening what is in the local directory, if it belongs together.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use underlay_files::Folder;

use crate::at_rest::AtRest;
use crate::disk_room::DiskRoom;
use crate::errors::{GatewayError, GatewayResult};
use crate::journal::frame::ContentFraming;
use crate::journal::{Journal, KnownRange};
use crate::meta::{MetadataLocation, MetadataStore};
use crate::model::ContentPlace;

/// The metadata, made if they are not there. Those that don't fit the journal beside them are refused: going by them
/// would remove acknowledged data.
pub(crate) fn open_metadata(
    folder: &Folder,
    journal: &Folder,
    disk: &Arc<DiskRoom>,
    cache_bytes: usize,
) -> std::result::Result<MetadataStore, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.path().display());
    let path: PathBuf = folder.path().join(crate::meta::FILE);
    let noted = crate::journal::noted(journal).map_err(failed)?;
    // Made by us, for us alone: the metadata store itself would go by the umask.
    let file = folder.file(crate::meta::FILE).map_err(failed)?;
    // A start that ended while it made them, on a full disk or by a power cut, has left something that can't be opened,
    // and nothing to keep.
    if noted.epoch == 0 && crate::meta::is_unfinished(&file).map_err(failed)? {
        tracing::info!("{} was not finished, and is begun anew", path.display());
        file.set_len(0).map_err(failed)?;
    }
    let is_new = file.metadata().map_err(failed)?.len() == 0;
    drop(file);
    if is_new && noted.epoch > 0 {
        return Err(format!(
            "{} is missing or empty, and there is a journal beside it, which is worth nothing without it\n  what to do: bring the metadata back; if they are lost, move the whole directory away and begin with an empty one",
            path.display()
        ));
    }
    let surroundings = MetadataLocation {
        disk: Some(Arc::clone(disk)),
        journal: Some(Folder::open(journal.path()).map_err(failed)?),
    };
    let opened = MetadataStore::open_in(surroundings, &path, cache_bytes, noted);
    let metadata = opened.map_err(|error| match disk.is_exhausted() {
        false => error.to_string(),
        // Nothing is damaged then, and nothing has to be brought back.
        true => format!(
            "the disk of {} is full, and the gateway has to write a little to start: {}\n  what to do: make room there, and start the gateway again; nothing is lost",
            folder.path().display(),
            error.to_string().lines().next().unwrap_or_default()
        ),
    })?;
    // Behind this the journal's epoch is noted. Without one, no start has got so far.
    if noted.epoch == 0 {
        // Their names have to be as durable as what will be in them.
        let above = folder.path().parent().unwrap_or(folder.path());
        for directory in [folder.path(), above] {
            let synced = std::fs::File::open(directory).and_then(|directory| directory.sync_all());
            synced.map_err(|error| {
                // The next start has to try it with a new name: a later sync would say nothing about this one.
                if is_new {
                    let _ = folder.remove_file(crate::meta::FILE);
                }
                failed(error)
            })?;
        }
    }
    Ok(metadata)
}

/// Under which the metadata have the key that the journal is encrypted with; 0 for none.
pub(super) const SEALED_BY: &[u8] = b"sealed by";

pub(crate) fn sealed_by(at_rest: Option<&AtRest>) -> std::result::Result<u64, String> {
    at_rest.map_or(Ok(0), AtRest::fingerprint).map_err(|error| error.to_string())
}

/// Whether what is in the journal can be read by this key. One with nothing in it can change its key.
///
/// # Errors
/// When it can't.
pub(crate) fn check_seal(
    metadata: &MetadataStore,
    sealed_by: u64,
    directory: &Path,
) -> std::result::Result<(), String> {
    let failed = |error: GatewayError| error.to_string();
    let view = metadata.view().map_err(failed)?;
    let former = view.number(SEALED_BY).map_err(failed)?.unwrap_or(0);
    if former == sealed_by {
        return Ok(());
    }
    let mut has_some = false;
    view.each_content(|_, record| {
        has_some |= matches!(record.place, ContentPlace::Local { .. });
        Ok(())
    })
    .map_err(failed)?;
    let problem = match (former, sealed_by) {
        (0, _) => "is not encrypted, and the configuration has a key for it",
        (_, 0) => "is encrypted, and the configuration has no key for it",
        _ => "is encrypted with another key than the configuration has",
    };
    match has_some {
        false => Ok(()),
        true => Err(format!(
            "the journal in {} {problem}\n  what to do: configure it as it was ([local] encryption_key_file or encryption_key_env), run `underlay-gateway drain`, and change it then",
            directory.display()
        )),
    }
}

/// Whether the local disk is to have another key than it had, or has one, or none, for the first time.
pub(super) fn is_sealed_anew(metadata: &MetadataStore, sealed_by: u64) -> GatewayResult<bool> {
    Ok(metadata.view()?.number(SEALED_BY)?.unwrap_or(0) != sealed_by)
}

pub(super) fn recover(
    metadata: &MetadataStore,
    folder: Folder,
    disk: Arc<DiskRoom>,
    capacity_bytes: u64,
    framing: ContentFraming,
) -> GatewayResult<Arc<Journal>> {
    let failed = |error: std::io::Error| GatewayError::local("cannot open the journal", error);
    let mut ranges = Vec::new();
    metadata.view()?.each_content(|_, record| {
        if let ContentPlace::Local { segment, offset_bytes } = record.place {
            let size_bytes = record.size_bytes;
            ranges.push(KnownRange { segment, offset_bytes, size_bytes, is_beyond: record.was_fetched() });
        }
        Ok(())
    })?;
    if !metadata.was_closed {
        crate::journal::forget_remembered(&folder, &ranges).map_err(failed)?;
    }
    let journal = Journal::open(folder, capacity_bytes, &ranges, framing).map_err(failed)?;
    Ok(Arc::new(journal.with_disk(disk)))
}

#[cfg(test)]
impl super::GatewayEngine {
    /// Of the metadata.
    pub(crate) fn format(&self) -> Option<u64> {
        self.metadata.view().unwrap().number(crate::meta::FORMAT_KEY).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use underlay_files::Access;

    use super::*;

    #[test]
    fn only_unfinished_metadata_are_recreated() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::make(&directory.path().join("local"), Access::Private).unwrap();
        let journal = folder.make_inner("journal", Access::Private).unwrap();
        let disk = Arc::new(DiskRoom::open(folder.path()).unwrap());
        let path = folder.path().join(crate::meta::FILE);
        let open = || open_metadata(&folder, &journal, &disk, 1 << 20);
        // As a full disk or a power cut leaves them: with a length, and without what the library writes last.
        for unfinished in [vec![0; 5], vec![0; 1 << 16]] {
            std::fs::write(&path, &unfinished).unwrap();
            assert!(open().is_ok());
        }
        // Foreign files are left alone, and so are metadata with a journal.
        std::fs::write(&path, vec![7; 1 << 16]).unwrap();
        assert!(open().is_err());
        assert_eq!(std::fs::read(&path).unwrap(), vec![7; 1 << 16]);
        crate::journal::set_epoch(&journal, 3).unwrap();
        std::fs::write(&path, vec![0; 1 << 16]).unwrap();
        assert!(open().is_err());
        assert_eq!(std::fs::read(&path).unwrap(), vec![0; 1 << 16]);
    }
}
