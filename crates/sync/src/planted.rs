//! Bugs that can be planted, so that it can be seen whether the simulator finds them.
//!
//! Each stands where the right code is, behind [`is_planted`], which is `false` at compile time unless the feature
//! `planted` is on.

/// Each was in the code once, or is a way to get it wrong that a reader may miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Bug {
    /// The initiator's own flush swallows that writes were lost.
    LostWritesForgotten = 1,
    /// The directory's own commit swallows that a flush failed.
    CommitOutcomeDropped,
    /// A read falls through to a copy that is out.
    StaleCopyServed,
    /// Whichever direction of a copy fails, the second member is left out.
    HealthyMemberLeftOut,
    /// A flush after a failed one succeeds over lost pages.
    FailedSyncForgotten,
    /// A flush is acknowledged with one durable copy, while a stale one is still read.
    FlushedWithOneCopy,
    /// A reconnect accepts another volume of the same name.
    OtherVolumeAccepted,
    /// A second host may write to a volume.
    SecondHostWrites,
    /// An old connection's write lands after a newer acknowledged one.
    LateWriteLands,
    /// A checkpoint calls itself for each piece of its snapshot.
    CheckpointRecurses,
    /// Writes are kept without a bound while the initiator's own flush runs.
    KeptWithoutBound,
    /// An extent's first write that races with a resync leaves a copy listed that was never written.
    FirstWriteMissesResync,
}

impl Bug {
    pub const ALL: [Bug; 12] = [
        Bug::LostWritesForgotten,
        Bug::CommitOutcomeDropped,
        Bug::StaleCopyServed,
        Bug::HealthyMemberLeftOut,
        Bug::FailedSyncForgotten,
        Bug::FlushedWithOneCopy,
        Bug::OtherVolumeAccepted,
        Bug::SecondHostWrites,
        Bug::LateWriteLands,
        Bug::CheckpointRecurses,
        Bug::KeptWithoutBound,
        Bug::FirstWriteMissesResync,
    ];

    pub fn name(self) -> String {
        format!("{self:?}")
    }

    pub fn of_name(name: &str) -> Option<Bug> {
        Bug::ALL.into_iter().find(|bug| bug.name() == name)
    }

    /// The part of the stack where it shows.
    pub fn subject(self) -> Option<&'static str> {
        Some(match self {
            Bug::CommitOutcomeDropped => "directory",
            Bug::StaleCopyServed | Bug::FailedSyncForgotten | Bug::FlushedWithOneCopy => "pool",
            Bug::FirstWriteMissesResync => "pool",
            Bug::LostWritesForgotten | Bug::OtherVolumeAccepted | Bug::SecondHostWrites => "remote",
            Bug::LateWriteLands | Bug::KeptWithoutBound => "remote",
            Bug::HealthyMemberLeftOut | Bug::CheckpointRecurses => return None,
        })
    }
}

#[cfg(feature = "planted")]
static PLANTED: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

/// Plants a bug in the whole process, or none.
#[cfg(feature = "planted")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.store(bug.map_or(0, |bug| bug as u32), std::sync::atomic::Ordering::SeqCst);
}

/// Whether the wrong code is to be taken.
#[cfg(feature = "planted")]
pub fn is_planted(bug: Bug) -> bool {
    PLANTED.load(std::sync::atomic::Ordering::Relaxed) == bug as u32
}

/// Whether the wrong code is to be taken: never, without the feature.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn is_planted(_: Bug) -> bool {
    false
}
