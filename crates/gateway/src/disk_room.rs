//! Room on the local disk. Clients are refused while the gateway itself still has some: it can store what it has acknowledged, and
//! so make room again, only while it can write to its metadata.
//!
//! A part of that room is a file, the reserve, which nobody else on the disk can take. When the metadata find the disk full all the same, the
//! reserve is given up, and clients are refused until there is room to make it again.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use underlay_files::Folder;
use underlay_sync::Mutex;
use underlay_sync::planted::{PlantedBug, is_planted};

use crate::errors::{Error, Result};
use crate::refusals::{Cause, Refusals};

/// Name of the reserve in the local directory.
const RESERVE: &str = "reserve";
const RESERVE_BYTES: u64 = 32 << 20;
/// What a body leaves free, beside the reserve.
const LEFT_BY_BODIES_BYTES: u64 = 32 << 20;
/// What a change without a body leaves: so empty objects, copies and tags are still taken when bodies no longer are.
const LEFT_BY_CHANGES_BYTES: u64 = 16 << 20;
/// What a deletion leaves, and whatever else makes room in the end.
const LEFT_BY_DELETIONS_BYTES: u64 = 4 << 20;
/// With less than this, few changes share a commit: all of one must fit.
const LOW_BYTES: u64 = 128 << 20;
const TRY_EVERY: Duration = Duration::from_secs(1);

/// What a client's write is going to need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// So many bytes of the journal.
    Body(u64),
    /// Rows of the metadata.
    Change,
    /// The same, and it makes room in the end.
    Deletion,
}

/// What became of the reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    Whole,
    GivenUp,
    /// The file system can't set room aside.
    Impossible,
}

#[derive(Debug)]
struct Reserve {
    file: Option<File>,
    held: Held,
    tried: Option<Instant>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct DiskRoom {
    folder: Folder,
    reserve: Mutex<Reserve>,
    refusals: Refusals,
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
        let held = if is_whole { Held::Whole } else { Held::GivenUp };
        let room = DiskRoom {
            folder,
            reserve: Mutex::new(Reserve { file, held, tried: None }),
            refusals: Refusals::default(),
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

    pub(crate) fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// Whether there is room for this, without counting it as a refusal where there is none.
    ///
    /// # Errors
    /// When the file system can't be asked.
    pub(crate) fn has_room(&self, need: Need) -> Result<bool> {
        let disk = rustix::fs::statvfs(self.folder.path()).map_err(io::Error::from);
        let disk = disk.map_err(|error| match underlay_files::is_storage_failure(&error) {
            true => Error::Busy(format!("the gateway's local disk: {error}")),
            false => Error::local("cannot ask for room on the local disk", error),
        })?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        self.restore();
        let held = self.reserve.lock().held;
        // Without a file that keeps it, the same room has to be free.
        let kept = if held == Held::Impossible { RESERVE_BYTES } else { 0 };
        Ok(match need {
            Need::Deletion | Need::Change if is_planted(PlantedBug::RoomOutsideLock) => true,
            Need::Deletion => free >= LEFT_BY_DELETIONS_BYTES,
            Need::Change => held != Held::GivenUp && free >= kept + LEFT_BY_CHANGES_BYTES,
            Need::Body(bytes) => {
                held != Held::GivenUp && free >= bytes.saturating_add(kept + LEFT_BY_BODIES_BYTES)
            }
        })
    }

    /// # Errors
    /// `Busy` where a write that needs this would leave too little.
    pub(crate) fn check(&self, need: Need) -> Result<()> {
        match self.has_room(need)? {
            true => Ok(()),
            false => Err(self.refusals.refuse(Cause::Disk)),
        }
    }

    /// Whether clients' changes are refused now, without counting it as a refusal.
    pub(crate) fn is_full(&self) -> bool {
        !self.has_room(Need::Body(0)).unwrap_or(true)
    }

    /// Whether not even the gateway's own changes have room.
    pub(crate) fn is_exhausted(&self) -> bool {
        let free = self.free_bytes().unwrap_or(u64::MAX);
        free < LEFT_BY_DELETIONS_BYTES && self.reserve.lock().held != Held::Whole
    }

    /// Whether so little is free that a large commit might not fit.
    pub(crate) fn is_low(&self) -> bool {
        self.free_bytes().is_some_and(|free| free < LOW_BYTES) || self.reserve.lock().held == Held::GivenUp
    }

    /// Frees the reserve. Returns whether there was one, so that there is room now.
    pub(crate) fn give_up(&self) -> bool {
        let mut reserve = self.reserve.lock();
        if reserve.held != Held::Whole || is_planted(PlantedBug::RoomOutsideLock) {
            return false;
        }
        reserve.held = Held::GivenUp;
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
        if reserve.held != Held::GivenUp || is_early {
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
        let made = fallocate(file, FallocateFlags::empty(), 0, RESERVE_BYTES);
        reserve.held = match made {
            Ok(()) => Held::Whole,
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Held::Impossible,
            Err(_) => {
                // What it has got before there was no more.
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
    fn a_reserve_is_room_until_it_is_given_up_and_is_made_again() {
        let directory = tempfile::tempdir().unwrap();
        let room = DiskRoom::open(directory.path()).unwrap();
        let taken = || std::fs::metadata(directory.path().join(RESERVE)).unwrap().blocks() * 512;
        if room.reserve.lock().held == Held::Impossible {
            // Nothing is set aside here, so nothing can be given up.
            assert!(!room.give_up());
            return;
        }
        assert!(taken() >= RESERVE_BYTES);
        assert!(room.check(Need::Change).is_ok() && !room.is_full());
        assert!(room.give_up() && !room.give_up());
        // However slow this is.
        room.reserve.lock().tried = Some(Instant::now() + Duration::from_secs(3600));
        assert!(taken() < RESERVE_BYTES && room.is_low());
        // Clients wait for it, and may make room meanwhile.
        for need in [Need::Change, Need::Body(1)] {
            assert!(matches!(room.check(need), Err(Error::Busy(why)) if why.contains("disk is full")));
        }
        room.check(Need::Deletion).unwrap();
        assert_eq!(room.refusals().counts()[0], ("disk".to_owned(), 2));
        room.reserve.lock().tried = None;
        room.restore();
        assert!(taken() >= RESERVE_BYTES && room.check(Need::Change).is_ok());
        // The next start finds it.
        drop(room);
        assert_eq!(DiskRoom::open(directory.path()).unwrap().reserve.lock().held, Held::Whole);
    }

    #[test]
    fn no_body_is_taken_that_is_longer_than_what_is_free() {
        let directory = tempfile::tempdir().unwrap();
        let room = DiskRoom::open(directory.path()).unwrap();
        assert!(matches!(room.check(Need::Body(u64::MAX)), Err(Error::Busy(_))));
        assert!(matches!(room.check(Need::Body(room.free_bytes().unwrap())), Err(Error::Busy(_))));
    }
}
