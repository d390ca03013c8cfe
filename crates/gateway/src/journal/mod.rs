//! The journal: bytes that clients were told are safe and that the store does not have yet.
//!
//! It holds bytes only. Only the metadata list its contents: a content counts from the commit that enters it, which
//! comes after its bytes are durable. So a torn tail is what no commit speaks of, and is cut off at the next start.

mod commits;
mod epoch;
pub mod frame;
mod segment;
mod writer;

pub(crate) use commits::JournalCommits;
pub(crate) use epoch::{NotedEpoch, noted, set_epoch};
pub(crate) use segment::JournalSegment;
pub(crate) use writer::{ContentWriter, WrittenContent};

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Notify;
use underlay_files::Folder;
use underlay_sync::Mutex;
use underlay_sync::planted::{PlantedBug, is_planted};

use crate::disk_room::{DiskNeed, DiskRoom, is_out_of_room};
use crate::errors::{GatewayError, GatewayResult};
use crate::model::ContentId;
use crate::refusals::RefusalCause;
use segment::ReservedRange;

/// A segment that is longer takes no more.
const SEGMENT_BYTES: u64 = 256 << 20;
const EXTENSION: &str = "segment";
/// Bytes beyond the limit leave this fraction of the disk, or of the limit, to clients' writes.
const KEPT_FOR_WRITES: u64 = 8;

/// See the module.
pub(crate) struct Journal {
    framing: frame::ContentFraming,
    folder: Folder,
    capacity_bytes: u64,
    /// Room on the journal's disk; `None` if it is not checked.
    disk: Option<Arc<DiskRoom>>,
    state: Mutex<JournalState>,
    /// Told when room was given back.
    room: Notify,
}

struct JournalState {
    segments: BTreeMap<u64, Arc<JournalSegment>>,
    active: Option<Arc<JournalSegment>>,
    next_number: u64,
    used_bytes: u64,
    /// Of those, what may still be taken from the disk.
    unallocated_bytes: u64,
    /// Ranges of what was taken beyond the limit, and how many of the bytes above are theirs.
    beyond: HashSet<(u64, u64)>,
    beyond_bytes: u64,
    /// Contents that someone is reading, and how many are.
    pins: HashMap<ContentId, usize>,
    /// Ranges that are free as soon as nobody reads them.
    waiting: HashMap<ContentId, ReleasedRange>,
}

/// The part of the journal that needs room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JournalShare {
    /// So many bytes of it: what clients write.
    First(u64),
    /// Besides the limit.
    Beyond,
}

/// A range of the metadata in a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownRange {
    pub(crate) segment: u64,
    pub(crate) offset_bytes: u64,
    pub(crate) size_bytes: u64,
    /// Whether it was taken beyond the limit.
    pub(crate) is_beyond: bool,
}

/// A range of the journal that nothing uses any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReleasedRange {
    pub(crate) content: ContentId,
    pub(crate) segment: u64,
    pub(crate) offset_bytes: u64,
    pub(crate) size_bytes: u64,
}

impl Journal {
    /// Opens the journal and removes ranges that no content of `known_ranges` points to: a crash left them
    /// half-written. Nothing is appended to a segment that is there already.
    ///
    /// # Errors
    /// When the folder can't be used. A content whose segment is missing is no error here: reading it will be.
    pub(crate) fn open(
        folder: Folder,
        capacity_bytes: u64,
        known_ranges: &[KnownRange],
        framing: frame::ContentFraming,
    ) -> io::Result<Journal> {
        Journal::take(folder, capacity_bytes, known_ranges, true, framing)
    }

    /// For reading what `known_ranges` speaks of. Removes nothing.
    ///
    /// # Errors
    /// As [`open`](Journal::open).
    pub(crate) fn look(
        folder: Folder,
        known_ranges: &[KnownRange],
        framing: frame::ContentFraming,
    ) -> io::Result<Journal> {
        Journal::take(folder, u64::MAX, known_ranges, false, framing)
    }

    fn take(
        folder: Folder,
        capacity_bytes: u64,
        known_ranges: &[KnownRange],
        removes: bool,
        framing: frame::ContentFraming,
    ) -> io::Result<Journal> {
        let mut in_use: BTreeMap<u64, BTreeMap<u64, u64>> = BTreeMap::new();
        let (mut beyond_ranges, mut beyond_bytes) = (HashSet::new(), 0);
        for range in known_ranges {
            let stored = framing.stored_bytes(range.size_bytes);
            if range.is_beyond && beyond_ranges.insert((range.segment, range.offset_bytes)) {
                beyond_bytes += stored;
            }
            in_use.entry(range.segment).or_default().insert(range.offset_bytes, stored);
        }
        let mut next_number = in_use.keys().next_back().map_or(0, |last| last + 1);
        // A number is not given again, even if its file is missing: the metadata may still name it.
        for number in numbers_in(&folder)? {
            next_number = next_number.max(number + 1);
            if removes && !in_use.contains_key(&number) {
                folder.remove_file(&file_name(number))?;
            }
        }
        let (mut segments, mut used_bytes) = (BTreeMap::new(), 0);
        for (number, ranges) in in_use {
            if !folder.has(&file_name(number)) {
                tracing::error!("segment {number} of the journal is missing: run `underlay-gateway check`");
                continue;
            }
            let file = folder.file(&file_name(number))?;
            if removes {
                cut(&file, &ranges)?;
            }
            let segment = JournalSegment::new(number, file, ranges, true);
            used_bytes += segment.used_bytes();
            segments.insert(number, Arc::new(segment));
        }
        let state = JournalState {
            segments,
            // What was there takes nothing more: its end may be a write that was broken off.
            active: None,
            next_number,
            used_bytes,
            unallocated_bytes: 0,
            beyond: beyond_ranges,
            beyond_bytes,
            pins: HashMap::new(),
            waiting: HashMap::new(),
        };
        let state = Mutex::new(state);
        Ok(Journal { framing, folder, capacity_bytes, disk: None, state, room: Notify::new() })
    }

    /// The same, which takes only what this disk has room for.
    pub(crate) fn with_disk(self, disk: Arc<DiskRoom>) -> Journal {
        Journal { disk: Some(disk), ..self }
    }

    /// That there is no room within the first `most_bytes`, for the client and, once, for the count of such answers.
    pub(crate) fn refuse(&self, most_bytes: u64) -> GatewayError {
        let cause =
            if most_bytes < self.capacity_bytes { RefusalCause::Uploads } else { RefusalCause::Journal };
        match &self.disk {
            Some(disk) => disk.refusals().refuse(cause),
            None => GatewayError::Busy("the journal is full".to_owned()),
        }
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.state.lock().used_bytes
    }

    /// Without what was taken beyond the limit.
    pub(crate) fn limited_bytes(&self) -> u64 {
        let state = self.state.lock();
        state.used_bytes.saturating_sub(state.beyond_bytes)
    }

    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Room for a content within the first `most_bytes` of the journal, and a wait while that is taken. A caller that
    /// gives up waiting drops this and [refuses](Self::refuse).
    ///
    /// # Errors
    /// `TooLarge` for what never fits, and when the disk has no room.
    pub(crate) async fn reserve(
        self: &Arc<Self>,
        content: ContentId,
        size_bytes: u64,
        most_bytes: u64,
    ) -> GatewayResult<ContentWriter> {
        let most_bytes = most_bytes.min(self.capacity_bytes);
        let stored = self.framing.stored_bytes(size_bytes);
        if stored > most_bytes {
            return Err(GatewayError::TooLarge(format!(
                "{size_bytes} bytes do not fit the {most_bytes} bytes that the gateway's journal has for them: raise `journal` in [local], or send the object in smaller parts"
            )));
        }
        loop {
            // Registered before looking: what is freed in between must wake us.
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            if is_planted(PlantedBug::RoomOutsideLock) {
                self.disk.as_ref().map_or(Ok(()), |disk| disk.check(DiskNeed::Body(stored)))?;
                // Others look at the same room before this one takes it.
                tokio::task::yield_now().await;
            }
            if let Some(writer) =
                self.reserve_in(JournalShare::First(most_bytes), content, size_bytes, stored)?
            {
                return Ok(writer);
            }
            room.await;
        }
    }

    /// Room besides the limit for what clients write, for bytes that are about to be overwritten in the store. Of these
    /// there may be as many as the limit says, or one content that is longer.
    ///
    /// # Errors
    /// `Busy` while others have that room, or when the disk has none that clients' writes don't need.
    pub(crate) fn reserve_beyond(
        self: &Arc<Self>,
        content: ContentId,
        size_bytes: u64,
    ) -> GatewayResult<ContentWriter> {
        let stored = self.framing.stored_bytes(size_bytes);
        self.reserve_in(JournalShare::Beyond, content, size_bytes, stored)?.ok_or_else(|| {
            GatewayError::Busy(format!(
                "{size_bytes} bytes that copies or unfinished uploads need have to be fetched before the store's object is replaced, and there is no room for them yet"
            ))
        })
    }

    /// Whether contents of these sizes that have found no room beyond the limit may find some once what is there now has
    /// gone.
    pub(crate) fn may_fit_beyond(&self, sizes_bytes: impl Iterator<Item = u64>) -> bool {
        let state = self.state.lock();
        if state.beyond_bytes == 0 {
            return false;
        }
        let needed = self.stored_together(sizes_bytes).saturating_add(state.unallocated_bytes);
        self.disk
            .as_ref()
            .is_none_or(|disk| self.has_room_beyond(disk, needed, state.beyond_bytes).unwrap_or(true))
    }

    /// Whether the disk has this room once `freed_bytes` have gone. What is fetched leaves a part to clients' writes.
    fn has_room_beyond(&self, disk: &DiskRoom, needed: u64, freed_bytes: u64) -> GatewayResult<bool> {
        let kept_for_writes =
            disk.size_bytes().unwrap_or(u64::MAX).min(self.capacity_bytes) / KEPT_FOR_WRITES;
        disk.has_room(DiskNeed::Body(needed.saturating_add(kept_for_writes).saturating_sub(freed_bytes)))
    }

    /// Whether contents of these sizes can be there together beyond the limit.
    pub(crate) fn fit_beyond(&self, sizes_bytes: impl Iterator<Item = u64>) -> bool {
        self.stored_together(sizes_bytes) <= self.capacity_bytes
    }

    /// Each content is framed by itself.
    fn stored_together(&self, sizes_bytes: impl Iterator<Item = u64>) -> u64 {
        sizes_bytes.map(|size_bytes| self.framing.stored_bytes(size_bytes)).fold(0, u64::saturating_add)
    }

    /// Whether this share of the journal has room, and the disk as well. To be asked under the lock: what others have
    /// been given by now is no longer free, or counted in the state.
    fn has_room(&self, state: &JournalState, share: JournalShare, stored: u64) -> GatewayResult<bool> {
        let is_within = match share {
            JournalShare::First(most_bytes) if is_planted(PlantedBug::RescuedWithoutLimit) => {
                state.used_bytes.saturating_add(stored) <= most_bytes
            }
            JournalShare::Beyond if is_planted(PlantedBug::RescuedWithoutLimit) => true,
            JournalShare::First(most_bytes) => {
                state.used_bytes.saturating_sub(state.beyond_bytes).saturating_add(stored) <= most_bytes
            }
            JournalShare::Beyond => {
                state.beyond_bytes == 0 || state.beyond_bytes.saturating_add(stored) <= self.capacity_bytes
            }
        };
        let Some(disk) = self.disk.as_ref().filter(|_| is_within) else { return Ok(is_within) };
        let needed = stored.saturating_add(state.unallocated_bytes);
        match share {
            JournalShare::First(_) if is_planted(PlantedBug::RoomOutsideLock) => Ok(true),
            JournalShare::Beyond if is_planted(PlantedBug::RescuedWithoutLimit) => {
                disk.has_room(DiskNeed::Body(needed))
            }
            JournalShare::First(_) => disk.check(DiskNeed::Body(needed)).map(|()| true),
            JournalShare::Beyond => self.has_room_beyond(disk, needed, 0),
        }
    }

    fn reserve_in(
        self: &Arc<Self>,
        share: JournalShare,
        content: ContentId,
        size_bytes: u64,
        stored: u64,
    ) -> GatewayResult<Option<ContentWriter>> {
        let failed = |error: &io::Error| match (is_out_of_room(error), &self.disk) {
            // Fetched bytes are no client's write.
            (true, Some(disk)) if share != JournalShare::Beyond => disk.refusals().refuse(RefusalCause::Disk),
            _ if underlay_files::is_storage_failure(error) => {
                GatewayError::Busy(format!("the gateway's local disk: {error}"))
            }
            _ => GatewayError::local("cannot make room in the journal", error),
        };
        let mut state = self.state.lock();
        if !self.has_room(&state, share, stored)? {
            return Ok(None);
        }
        loop {
            let segment = match &state.active {
                Some(segment) => Arc::clone(segment),
                None => {
                    let number = state.next_number;
                    // Even if this fails: a name that could not be made durable is not tried again, since a later sync
                    // would say nothing about it.
                    state.next_number += 1;
                    let file = self.folder.file(&file_name(number)).map_err(|error| failed(&error))?;
                    // The name has to be durable before anything in it counts.
                    let synced = File::open(self.folder.path()).and_then(|folder| folder.sync_all());
                    if let Err(error) = synced {
                        let _ = self.folder.remove_file(&file_name(number));
                        return Err(failed(&error));
                    }
                    let segment = Arc::new(JournalSegment::new(number, file, BTreeMap::new(), false));
                    state.segments.insert(number, Arc::clone(&segment));
                    state.active = Some(Arc::clone(&segment));
                    segment
                }
            };
            let reserved = segment.reserve(stored, SEGMENT_BYTES).map_err(|error| failed(&error))?;
            if let Some(ReservedRange { offset_bytes, is_allocated }) = reserved {
                state.used_bytes += stored;
                if share == JournalShare::Beyond && state.beyond.insert((segment.number(), offset_bytes)) {
                    state.beyond_bytes += stored;
                }
                let unallocated_bytes = if is_allocated { 0 } else { stored };
                state.unallocated_bytes += unallocated_bytes;
                return Ok(Some(ContentWriter {
                    journal: Arc::clone(self),
                    segment,
                    content,
                    offset_bytes,
                    size_bytes,
                    stored_bytes: stored,
                    unallocated_bytes,
                    written_bytes: 0,
                    next_chunk: 0,
                    buffer: Vec::new(),
                    is_kept: false,
                }));
            }
            state.active = None;
            self.remove_if_empty(&mut state, &segment);
        }
    }

    fn remove_if_empty(&self, state: &mut JournalState, segment: &JournalSegment) {
        if segment.used_bytes() == 0 && state.segments.remove(&segment.number()).is_some() {
            // At worst it is removed at the next start.
            let _ = self.folder.remove_file(&file_name(segment.number()));
        }
    }

    fn free(&self, state: &mut JournalState, segment: u64, offset_bytes: u64) {
        let Some(segment) = state.segments.get(&segment).cloned() else { return };
        let (length, is_over) = segment.free(offset_bytes);
        state.used_bytes = state.used_bytes.saturating_sub(length);
        if state.beyond.remove(&(segment.number(), offset_bytes)) {
            state.beyond_bytes = state.beyond_bytes.saturating_sub(length);
        }
        if is_over {
            self.remove_if_empty(state, &segment);
        }
        self.room.notify_waiters();
    }

    /// Nothing uses these any more, as a commit said. Those that are being read are freed by the last reader.
    pub(crate) fn release(&self, released: Vec<ReleasedRange>) {
        let mut state = self.state.lock();
        for range in released {
            match state.pins.contains_key(&range.content) {
                true => drop(state.waiting.insert(range.content, range)),
                false => self.free(&mut state, range.segment, range.offset_bytes),
            }
        }
    }

    /// Calls `look` and keeps the contents that it returns from being freed. A commit that comes in between either
    /// shows in what `look` sees, or its release comes after the pins.
    pub(crate) fn pin<T>(
        self: &Arc<Self>,
        look: impl FnOnce() -> GatewayResult<(Vec<ContentId>, T)>,
    ) -> GatewayResult<(ContentPins, T)> {
        let mut state = self.state.lock();
        let (contents, found) = look()?;
        for content in &contents {
            *state.pins.entry(*content).or_default() += 1;
        }
        Ok((ContentPins { journal: Arc::clone(self), contents }, found))
    }

    /// How many pins a content has.
    pub(crate) fn pin_count(&self, content: ContentId) -> usize {
        self.state.lock().pins.get(&content).copied().unwrap_or(0)
    }

    /// A range of a content. Blocks.
    ///
    /// # Errors
    /// When it can't be read, or is not what was written.
    pub(crate) fn read(
        &self,
        content: ContentId,
        size_bytes: u64,
        place: (u64, u64),
        range: std::ops::Range<u64>,
    ) -> GatewayResult<Bytes> {
        let (number, offset_bytes) = place;
        let Some(span) = self.framing.span_of(size_bytes, &range) else { return Ok(Bytes::new()) };
        let segment = self.state.lock().segments.get(&number).cloned();
        let damaged = |problem: &dyn std::fmt::Display| {
            GatewayError::Local(format!(
                "content {} in segment {number} of the journal: {problem}\n  what to do: stop the gateway and run `underlay-gateway check`",
                content.0
            ))
        };
        let segment = segment.ok_or_else(|| damaged(&"the segment is missing"))?;
        let mut framed = vec![0; span.length_bytes as usize];
        segment.read(&mut framed, offset_bytes + span.offset_bytes).map_err(|error| damaged(&error))?;
        let unframed = self.framing.unframe(content, &span, &framed);
        let plain = unframed.map_err(|chunk| damaged(&format_args!("chunk {chunk} has a wrong checksum")))?;
        let wanted = span.skip_bytes..span.skip_bytes + (range.end - range.start) as usize;
        Ok(Bytes::from(plain).slice(wanted))
    }
}

fn file_name(number: u64) -> String {
    format!("{number:016x}.{EXTENSION}")
}

/// Numbers of the segments that are there.
fn numbers_in(folder: &Folder) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(folder.path())? {
        numbers.extend(entry?.file_name().to_str().and_then(number_in));
    }
    Ok(numbers)
}

/// Of a segment, by its file's name. A name of another form is no file of ours, and neither is one that would leave no
/// number for the next.
fn number_in(name: &str) -> Option<u64> {
    let number = u64::from_str_radix(name.strip_suffix(EXTENSION)?.strip_suffix('.')?, 16).ok()?;
    (file_name(number) == name && number < u64::MAX / 2).then_some(number)
}

/// Has the kernel forget what it remembers of the segments that these lie in: later reads get what the disk has, and
/// its checksums say whether that is what was written. Call this if the last user of the journal ended without closing
/// it.
///
/// # Errors
/// When one can't be opened.
pub(crate) fn forget_remembered(folder: &Folder, known_ranges: &[KnownRange]) -> io::Result<()> {
    let numbers: BTreeSet<u64> = known_ranges.iter().map(|range| range.segment).collect();
    for number in numbers.into_iter().filter(|number| folder.has(&file_name(*number))) {
        let file = folder.file(&file_name(number))?;
        // Unsynced bytes are not needed, and the kernel reports their error once: needed bytes have their checksums.
        let _ = file.sync_all();
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    }
    Ok(())
}

/// For the fuzzer: any text as what the journal's folder says.
pub(crate) fn read_any(text: &str) {
    let _ = (epoch::epoch_in(text), commits::count_in(text));
    if let Some(number) = number_in(text) {
        assert_eq!(file_name(number), text);
    }
}

/// Removes what lies between the ranges and behind them.
fn cut(file: &File, ranges: &BTreeMap<u64, u64>) -> io::Result<()> {
    let mut position = 0;
    for (offset, length) in ranges {
        if *offset > position {
            let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            // Where holes can't be made, the room comes back when the segment goes.
            let _ = rustix::fs::fallocate(file, flags, position, offset - position);
        }
        position = offset + length;
    }
    if file.metadata()?.len() > position {
        file.set_len(position)?;
    }
    Ok(())
}

/// Keeps contents from being freed while it lives.
pub(crate) struct ContentPins {
    journal: Arc<Journal>,
    contents: Vec<ContentId>,
}

impl Drop for ContentPins {
    fn drop(&mut self) {
        let mut state = self.journal.state.lock();
        for content in &self.contents {
            let Some(count) = state.pins.get_mut(content) else { continue };
            *count -= 1;
            if *count > 0 {
                continue;
            }
            state.pins.remove(content);
            if let Some(range) = state.waiting.remove(content) {
                self.journal.free(&mut state, range.segment, range.offset_bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fetched_content_must_fit_with_its_checksums() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::open(directory.path()).unwrap();
        let journal = Journal::open(folder, 1000, &[], frame::ContentFraming::default()).unwrap();
        let least = frame::CHECKSUM_BYTES;
        assert!(journal.fit_beyond([500 - least, 500 - least].into_iter()));
        assert!(!journal.fit_beyond([500 - least, 501 - least].into_iter()));
        assert!(!journal.fit_beyond([u64::MAX / 2, u64::MAX / 2].into_iter()));
    }

    #[test]
    fn only_files_of_its_own_are_segments() {
        assert_eq!(number_in(&file_name(0x1f)), Some(0x1f));
        for name in [
            "1f.segment",
            "+00000000000001f.segment",
            "000000000000001F.segment",
            "000000000000001f.segment.old",
            "ffffffffffffffff.segment",
            ".segment",
            "segment",
        ] {
            assert_eq!(number_in(name), None, "{name}");
        }
    }
}
