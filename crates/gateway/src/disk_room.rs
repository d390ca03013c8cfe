//! Room on the local disk. Clients are refused while the gateway itself still has some: it can store what it has
//! acknowledged, and so make room again, only while it can write to its metadata.
//!
//! A part of that room is a file, the reserve, which nobody else on the disk can take. When the metadata find the disk
//! full all the same, the reserve is given up, and clients are refused until there is room to make it again.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, retry_on_intr};
use underlay_files::Folder;
use underlay_sync::Mutex;
use underlay_sync::planted::{PlantedBug, is_planted};

use crate::errors::{GatewayError, GatewayResult};
use crate::refusals::{RefusalCause, RefusalLog};

/// Name of the reserve in the local directory.
const RESERVE: &str = "reserve";
const RESERVE_BYTES: u64 = 32 << 20;
/// The room that a body leaves free, beside the reserve.
const LEFT_BY_BODIES_BYTES: u64 = 32 << 20;
/// The room that a change without a body leaves: so empty objects, copies and tags are still taken when bodies no
/// longer are.
const LEFT_BY_CHANGES_BYTES: u64 = 16 << 20;
/// Room that deletions leave, and other work that makes room in the end.
const LEFT_BY_DELETIONS_BYTES: u64 = 4 << 20;
/// With less than this, few changes share a commit: all of one must fit.
const LOW_BYTES: u64 = 128 << 20;
const TRY_EVERY: Duration = Duration::from_secs(1);

/// The room that a client's write is going to need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskNeed {
    /// So many bytes of the journal.
    Body(u64),
    /// Rows of the metadata.
    Change,
    /// The same, and it makes room in the end.
    Deletion,
}

/// The reserve's fate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReserveState {
    Whole,
    GivenUp,
    /// The file system can't set room aside.
    Impossible,
}

#[derive(Debug)]
struct DiskReserve {
    file: Option<File>,
    held: ReserveState,
    tried: Option<Instant>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct DiskRoom {
    folder: Folder,
    reserve: Mutex<DiskReserve>,
    refusals: RefusalLog,
}

impl DiskRoom {
    /// Makes the reserve, or gives up the one that is there if the disk is full: a start has to write as well.
    ///
    /// # Errors
    /// When the directory can't be opened.
    pub(crate) fn open(directory: &Path) -> io::Result<DiskRoom> {
        let folder = Folder::open(directory)?;
        // On a full disk there may be no room for its name: later there is.
        let file = folder.file(RESERVE).ok();
        let is_whole = file.as_ref().and_then(|file| file.metadata().ok()).is_some_and(|found| {
            found.len() >= RESERVE_BYTES && found.blocks().saturating_mul(512) >= RESERVE_BYTES
        });
        let state = if is_whole { ReserveState::Whole } else { ReserveState::GivenUp };
        let room = DiskRoom {
            folder,
            reserve: Mutex::new(DiskReserve { file, held: state, tried: None }),
            refusals: RefusalLog::default(),
        };
        if is_whole && room.free_bytes().is_some_and(|free| free < LEFT_BY_CHANGES_BYTES) {
            room.give_up();
        }
        room.restore();
        Ok(room)
    }

    /// Of the file system of the local directory; `None` where it does not say.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        let disk = rustix::fs::statvfs(self.folder.path()).ok()?;
        Some(disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    /// Of the whole file system; `None` where it does not say.
    pub(crate) fn size_bytes(&self) -> Option<u64> {
        let disk = rustix::fs::statvfs(self.folder.path()).ok()?;
        Some(disk.f_blocks.saturating_mul(disk.f_frsize))
    }

    pub(crate) fn refusals(&self) -> &RefusalLog {
        &self.refusals
    }

    /// Whether there is room for this, without counting it as a refusal where there is none.
    ///
    /// # Errors
    /// When the file system can't be asked.
    pub(crate) fn has_room(&self, need: DiskNeed) -> GatewayResult<bool> {
        let disk = rustix::fs::statvfs(self.folder.path()).map_err(io::Error::from);
        let disk = disk.map_err(|error| match underlay_files::is_storage_failure(&error) {
            true => GatewayError::Busy(format!("the gateway's local disk: {error}")),
            false => GatewayError::local("cannot ask for room on the local disk", error),
        })?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        self.restore();
        let state = self.reserve.lock().held;
        // Without a file that keeps it, the same room has to be free.
        let reserved_bytes = if state == ReserveState::Impossible { RESERVE_BYTES } else { 0 };
        Ok(match need {
            DiskNeed::Deletion | DiskNeed::Change if is_planted(PlantedBug::RoomOutsideLock) => true,
            DiskNeed::Deletion => free >= LEFT_BY_DELETIONS_BYTES,
            DiskNeed::Change => {
                state != ReserveState::GivenUp && free >= reserved_bytes + LEFT_BY_CHANGES_BYTES
            }
            DiskNeed::Body(bytes) => {
                state != ReserveState::GivenUp
                    && free >= bytes.saturating_add(reserved_bytes + LEFT_BY_BODIES_BYTES)
            }
        })
    }

    /// # Errors
    /// `Busy` where a write that needs this would leave too little.
    pub(crate) fn check(&self, need: DiskNeed) -> GatewayResult<()> {
        match self.has_room(need)? {
            true => Ok(()),
            false => Err(self.refusals.refuse(RefusalCause::Disk)),
        }
    }

    /// Whether clients' changes are refused now, without counting it as a refusal.
    pub(crate) fn is_full(&self) -> bool {
        !self.has_room(DiskNeed::Body(0)).unwrap_or(true)
    }

    /// Whether not even the gateway's own changes have room.
    pub(crate) fn is_exhausted(&self) -> bool {
        let free = self.free_bytes().unwrap_or(u64::MAX);
        free < LEFT_BY_DELETIONS_BYTES && self.reserve.lock().held != ReserveState::Whole
    }

    /// Whether so little is free that a large commit might not fit.
    pub(crate) fn is_low(&self) -> bool {
        self.free_bytes().is_some_and(|free| free < LOW_BYTES)
            || self.reserve.lock().held == ReserveState::GivenUp
    }

    /// Frees the reserve. Returns whether there was one, so that there is room now.
    pub(crate) fn give_up(&self) -> bool {
        let mut reserve = self.reserve.lock();
        if reserve.held != ReserveState::Whole || is_planted(PlantedBug::RoomOutsideLock) {
            return false;
        }
        reserve.held = ReserveState::GivenUp;
        reserve.tried = Some(Instant::now());
        let Some(file) = &reserve.file else { return false };
        // Only once that is durable, some file systems use the room for others.
        let freed = file.set_len(0).and_then(|()| file.sync_all());
        tracing::warn!(
            "the local disk is full: the gateway now uses the room that it reserved for the metadata, and clients are answered with SlowDown until there is more\n  what to do: make room on the disk of [local]"
        );
        match freed {
            Ok(()) => true,
            Err(error) => {
                tracing::error!("cannot free the room that is reserved for the metadata: {error}");
                false
            }
        }
    }

    /// Makes the reserve where there is none and there is room for it.
    pub(crate) fn restore(&self) {
        let mut reserve = self.reserve.lock();
        let is_early = reserve.tried.is_some_and(|tried| tried.elapsed() < TRY_EVERY);
        if reserve.held != ReserveState::GivenUp || is_early {
            return;
        }
        reserve.tried = Some(Instant::now());
        if self.free_bytes().is_none_or(|free| free < RESERVE_BYTES + LEFT_BY_CHANGES_BYTES) {
            return;
        }
        if reserve.file.is_none() {
            reserve.file = self.folder.file(RESERVE).ok();
        }
        let Some(file) = &reserve.file else { return };
        let made = retry_on_intr(|| fallocate(file, FallocateFlags::empty(), 0, RESERVE_BYTES));
        reserve.held = match made {
            Ok(()) => ReserveState::Whole,
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => ReserveState::Impossible,
            Err(_) => {
                // Frees the bytes that it got before there were no more.
                let _ = file.set_len(0);
                return;
            }
        };
    }
}

/// Whether the disk has no room, or this user may take no more of it.
pub(crate) fn is_out_of_room(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_is_released_and_recreated() {
        let directory = tempfile::tempdir().unwrap();
        let room = DiskRoom::open(directory.path()).unwrap();
        let allocated_bytes = || std::fs::metadata(directory.path().join(RESERVE)).unwrap().blocks() * 512;
        if room.reserve.lock().held == ReserveState::Impossible {
            // Nothing is set aside here, so nothing can be given up.
            assert!(!room.give_up());
            return;
        }
        assert!(allocated_bytes() >= RESERVE_BYTES);
        assert!(room.check(DiskNeed::Change).is_ok() && !room.is_full());
        assert!(room.give_up() && !room.give_up());
        // However slow this is.
        room.reserve.lock().tried = Some(Instant::now() + Duration::from_secs(3600));
        assert!(allocated_bytes() < RESERVE_BYTES && room.is_low());
        // Clients wait for it, and may make room meanwhile.
        for need in [DiskNeed::Change, DiskNeed::Body(1)] {
            assert!(matches!(room.check(need), Err(GatewayError::Busy(why)) if why.contains("disk is full")));
        }
        room.check(DiskNeed::Deletion).unwrap();
        assert_eq!(room.refusals().counts()[0], ("disk".to_owned(), 2));
        room.reserve.lock().tried = None;
        room.restore();
        assert!(allocated_bytes() >= RESERVE_BYTES && room.check(DiskNeed::Change).is_ok());
        // The next start finds it.
        drop(room);
        assert_eq!(DiskRoom::open(directory.path()).unwrap().reserve.lock().held, ReserveState::Whole);
    }

    #[test]
    fn body_longer_than_free_space_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let room = DiskRoom::open(directory.path()).unwrap();
        assert!(matches!(room.check(DiskNeed::Body(u64::MAX)), Err(GatewayError::Busy(_))));
        assert!(matches!(room.check(DiskNeed::Body(room.free_bytes().unwrap())), Err(GatewayError::Busy(_))));
    }
}
