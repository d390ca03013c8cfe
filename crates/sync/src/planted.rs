//! Bugs that can be planted, to see whether the simulator finds them.
//!
//! Each stands where the right code is, behind [`is_planted`], which is `false` at compile time unless the feature
//! `planted` is on.

/// The list of bugs: each with the part of the stack where it shows.
macro_rules! bugs {
    ($($(#[$about:meta])+ $bug:ident in $subject:literal,)+) => {
        /// Each was in the code once, or is a way to get it wrong that a reader may miss.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum PlantedBug {
            $($(#[$about])+ $bug,)+
        }

        impl PlantedBug {
            pub const ALL: &[PlantedBug] = &[$(PlantedBug::$bug),+];

            /// The part of the stack where it shows, as the simulator calls it.
            pub fn subject(self) -> &'static str {
                match self {
                    $(PlantedBug::$bug => $subject,)+
                }
            }
        }
    };
}

bugs! {
    // Bugs that the code once had.
    /// The initiator's own flush swallows that writes were lost.
    LostWritesForgotten in "remote",
    /// The directory's own commit swallows that a flush failed.
    CommitOutcomeDropped in "directory",
    /// A read falls through to a copy that is out.
    StaleCopyServed in "pool",
    /// Whichever direction of a copy fails, the second member is left out.
    HealthyMemberLeftOut in "pool",
    /// A flush after a failed one succeeds over lost pages.
    FailedSyncForgotten in "pool",
    /// A flush is acknowledged with one durable copy, while a stale one is still read.
    FlushedWithOneCopy in "pool",
    /// A reconnect accepts another volume of the same name.
    OtherVolumeAccepted in "remote",
    /// A second host may write to a volume.
    SecondHostWrites in "remote",
    /// An old connection's write lands after a newer acknowledged one.
    LateWriteLands in "remote",
    /// A process writes while its predecessor on the same host may still be heard.
    SuccessorWritesAtOnce in "remote",
    /// A checkpoint calls itself for each piece of its snapshot.
    CheckpointRecurses in "journal",
    /// Writes are kept without a bound while the initiator's own flush runs.
    KeptWithoutBound in "remote",
    /// An extent's first write that races with a resync leaves a copy listed that was never written.
    FirstWriteMissesResync in "pool",
    /// A killed process's writes in flight are read from a device's cache and taken for durable.
    TailTakenForDurable in "journal",
    /// A flush that fails answers for what the map points to when it has failed, not when it began.
    MovedForgotten in "pool",
    /// Headers that no request can carry are taken. The store's client panics over them, which ends a flusher for good,
    /// without a word.
    HeaderPanicsFlusher in "gateway",
    /// A start believes what the kernel remembers of files, although a sync of them may have failed.
    CachedPagesBelieved in "gateway",
    /// A chunk of `aws-chunked` is kept in memory until all of it is there, however long it is.
    WholeChunkHeld in "gateway",
    /// A listing takes the largest character for one that no key has: it ends there, or goes on without an end.
    LastCharacterHides in "gateway",
    /// A copy that the store refuses is asked for again and again, and never stored from its bytes. Headers that are
    /// longer than any store takes are taken.
    RefusalRetriedForEver in "gateway",
    /// Room on the disk is looked for before it is taken, while others do the same. A failed reservation keeps what it
    /// has got, changes without bodies need no room, and the reserve is never given up.
    RoomOutsideLock in "gateway",
    /// A store's listing is noted by a rule's prefix alone. So the keys of a rule that is gone count as listed.
    RemovedRuleForgets in "gateway",
    /// Bytes that parts and copies consist of are fetched whole, without a limit, and take the room of writes.
    RescuedWithoutLimit in "gateway",
    /// No body, document or reader has to move at any pace, and none makes room for others.
    NoSlowestPace in "gateway",
    /// A newer version is sent to the store while an older request, which got no answer, may still land.
    NewerOvertakes in "gateway",
    /// Pending names, unfinished uploads and their parts are not counted.
    EntriesUncounted in "gateway",
    /// In a directory, a copy that is there already is made again, and leaves a second link beside it.
    LinkLeftBehind in "gateway",
    /// A directory that takes two names for one becomes a store.
    FoldedNamesAccepted in "gateway",
    /// Parts on their way to a store take memory without a limit, and a listing keeps whole records.
    WholeObjectInMemory in "gateway",
    // Bugs that it might have.
    /// A journal's batch is written without force unit access.
    CommitNotForced in "journal",
    /// A checkpoint's header is written before its snapshot is durable.
    HeaderBeforeSnapshot in "journal",
    /// A mirror writes to a region before its journals have the mark.
    MarkSkipped in "layers",
    /// A mirror's flush reaches one member only.
    OneMemberFlushed in "layers",
    /// A stripe's flush reaches one device only.
    OneDeviceFlushed in "layers",
    /// A compressed volume gives replaced units away before the map that left them is durable.
    ReplacedUsedEarly in "layers",
    /// A write-back cache answers a flush before its journal knows which slots are dirty.
    FlushedUnjournalled in "layers",
    /// A pool writes its map before the data that it points to is durable.
    MapBeforeData in "pool",
    /// A pool gives space away though the map that left it was not written.
    FreedUncommitted in "pool",
    /// A pool does not note what it answered, so that it ends with the process.
    NoteSkipped in "pool",
    /// A mirrored volume is written over before the journal knows of the region.
    IntentSkipped in "pool",
    /// A write goes to what a snapshot shares.
    SharedWrittenOver in "pool",
    /// The initiator takes a flush to cover what was written while it was in flight.
    FlushedTooMuch in "remote",
    /// The initiator repeats nothing after a reconnect.
    NothingRepeated in "remote",
    /// The target carries out a forced write as any other.
    ForcedWriteNotForced in "remote",
    /// The directory's commit does not flush the data that it speaks of.
    NamesBeforeData in "directory",
}

impl PlantedBug {
    pub fn name(self) -> String {
        format!("{self:?}")
    }

    pub fn from_name(name: &str) -> Option<PlantedBug> {
        PlantedBug::ALL.iter().copied().find(|bug| bug.name() == name)
    }
}

#[cfg(feature = "planted")]
/// Its number, counted from 1.
static PLANTED: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

/// Plants a bug in the whole process, or none.
#[cfg(feature = "planted")]
pub fn plant(bug: Option<PlantedBug>) {
    PLANTED.store(bug.map_or(0, |bug| bug as u32 + 1), std::sync::atomic::Ordering::SeqCst);
}

/// Whether the wrong code is to be taken.
#[cfg(feature = "planted")]
pub fn is_planted(bug: PlantedBug) -> bool {
    PLANTED.load(std::sync::atomic::Ordering::Relaxed) == bug as u32 + 1
}

/// Whether the wrong code is to be taken: never, without the feature.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn is_planted(_: PlantedBug) -> bool {
    false
}
