//! Changes of the maps that the journal does not know yet, kept where they outlive the pool's process.
//!
//! A drive whose controller is reset forgets nothing that it has answered: only a power cut takes what was not flushed.
//! When a pool's process is killed, the data of answered writes is on the members, but the map that finds it there is
//! in memory until a flush writes it to the journal. So each change is noted here before it is made, by one write to a
//! plain file, which is never synced: the host's page cache keeps it. It stands for a storage server's battery-backed
//! memory.
//!
//! Two files of a session take turns. A flush that begins turns to the other file, if that is no longer needed; once it
//! is committed, the journal knows everything in the first one. Opening the pool reads both, the older one first. Their
//! notes are the history of all changes up to the last one, from some point on that the journal has reached: so the
//! last note about an extent is right, even if the journal has an older one.
//!
//! | file | bytes |
//! | --- | --- |
//! | magic | 8 |
//! | identity of the pool | 8 |
//! | session: this opening of the pool, which the journal names as well | 8 |
//! | generation: one more at each turn | 8 |
//! | boot of the host, filled up with zeros | 40 |
//! | CRC-32 of the above | 4 |
//! | notes: length, CRC-32 of the generation and the record, and a record as in the journal | 4, 4, length |
//!
//! Numbers are little-endian. A note that can't be read ends the file: it was not answered, or is left from an older
//! generation.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use underlay_sync::{Mutex, MutexGuard};

use underlay_storage::device::DeviceError;

use super::extent::{take_u32, take_u64};
use super::host_memory::{BOOT_BYTES, HostMemory, boot_field};
use super::record::PoolRecord;
use underlay_files::plain_file;

const MAGIC: &[u8; 8] = b"UNDLYUF1";
const HEADER_BYTES: usize = 76;
const FRAME_BYTES: usize = 8;
/// Only flushes that keep failing let a file get much longer than `HostMemory::long_bytes`.
const MAX_BYTES: u64 = 16 << 30;
/// A session has two of them; the next one has the other two, so that both have notes until the journal names the later
/// one.
const FILES: [[&str; 2]; 2] = [["unflushed.0", "unflushed.1"], ["unflushed.2", "unflushed.3"]];
/// Whose notes they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoteOwner {
    pub identity: u64,
    pub session: u64,
}

/// The beginning of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotesHeader {
    pub owner: NoteOwner,
    pub generation: u64,
    pub boot: [u8; BOOT_BYTES],
}

impl NotesHeader {
    pub fn new(owner: NoteOwner, generation: u64, boot: &str) -> NotesHeader {
        NotesHeader { owner, generation, boot: boot_field(boot) }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for number in [self.owner.identity, self.owner.session, self.generation] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.boot);
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        debug_assert_eq!(bytes.len(), HEADER_BYTES);
        bytes
    }
}

/// Appends a note to `bytes`.
pub fn encode_note(generation: u64, record: &PoolRecord, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    bytes.extend([0; FRAME_BYTES]);
    record.encode(bytes);
    let crc = checksum(generation, &bytes[start + FRAME_BYTES..]);
    let length = (bytes.len() - start - FRAME_BYTES) as u32;
    bytes[start..start + 4].copy_from_slice(&length.to_le_bytes());
    bytes[start + 4..start + FRAME_BYTES].copy_from_slice(&crc.to_le_bytes());
}

/// A file's header and its notes, as far as they can be read; nothing where it has no header.
pub fn decode(file: &[u8]) -> Option<(NotesHeader, Vec<PoolRecord>)> {
    let header = decode_header(file)?;
    let mut notes = &file[HEADER_BYTES..];
    let mut records = Vec::new();
    while let Some((record, remainder)) = decode_note(header.generation, notes) {
        records.push(record);
        notes = remainder;
    }
    Some((header, records))
}

fn header_of(path: &Path) -> io::Result<Option<NotesHeader>> {
    let Some(file) = plain_file::open(path)? else { return Ok(None) };
    let mut bytes = [0; HEADER_BYTES];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(decode_header(&bytes))
}

fn decode_header(file: &[u8]) -> Option<NotesHeader> {
    let (fields, mut crc) = file.get(..HEADER_BYTES)?.split_at(HEADER_BYTES - 4);
    if take_u32(&mut crc)? != crc32fast::hash(fields) {
        return None;
    }
    let mut rest = fields.strip_prefix(MAGIC)?;
    let (identity, session) = (take_u64(&mut rest)?, take_u64(&mut rest)?);
    let generation = take_u64(&mut rest)?;
    Some(NotesHeader {
        owner: NoteOwner { identity, session },
        generation,
        boot: *rest.first_chunk::<BOOT_BYTES>()?,
    })
}

fn decode_note(generation: u64, mut bytes: &[u8]) -> Option<(PoolRecord, &[u8])> {
    let (length, crc) = (take_u32(&mut bytes)? as usize, take_u32(&mut bytes)?);
    let (record, remainder) = bytes.split_at_checked(length)?;
    if checksum(generation, record) != crc {
        return None;
    }
    let (record, rest) = PoolRecord::decode(record)?;
    rest.is_empty().then_some((record, remainder))
}

fn checksum(generation: u64, record: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&generation.to_le_bytes());
    hasher.update(record);
    hasher.finalize()
}

/// What was noted in a session that was never closed, in order; nothing if the host was started since.
///
/// # Errors
/// When a file is there and can't be read.
pub fn left_over(memory: &HostMemory, owner: NoteOwner) -> io::Result<Vec<PoolRecord>> {
    let mut found = Vec::new();
    for name in FILES.as_flattened() {
        let Some(file) = plain_file::read(&memory.directory.join(name), MAX_BYTES)? else { continue };
        let ours = |header: &NotesHeader| *header == NotesHeader::new(owner, header.generation, &memory.boot);
        found.extend(decode(&file).filter(|(header, _)| ours(header)));
    }
    found.sort_by_key(|(header, _)| header.generation);
    Ok(found.into_iter().flat_map(|(_, records)| records).collect())
}

/// Keeps notes once it was begun; until then, or where nobody begins it, noting does nothing.
#[derive(Default)]
pub struct UnflushedNotes {
    keeps: AtomicBool,
    /// Bytes in the current file after which [`UnflushedNotes::is_long`] says so, and how many more until it says so
    /// again.
    long_bytes: AtomicU64,
    step_bytes: AtomicU64,
    current_bytes: AtomicU64,
    turns: Mutex<Option<NoteFiles>>,
}

struct NoteFiles {
    header: NotesHeader,
    names: [&'static str; 2],
    files: [File; 2],
    /// Of the session before.
    previous: [PathBuf; 2],
    current: usize,
    end_bytes: u64,
    /// The journal knows everything in the other file.
    other_is_free: bool,
    note: Vec<u8>,
}

impl UnflushedNotes {
    fn lock(&self) -> MutexGuard<'_, Option<NoteFiles>> {
        self.turns.lock()
    }

    /// Keeps notes from now on, in files that have none of the former session's. They count once the journal has this
    /// session durably.
    ///
    /// # Errors
    /// When the files can't be made.
    pub fn begin(&self, memory: &HostMemory, owner: NoteOwner, previous: NoteOwner) -> io::Result<()> {
        let is_formers = |name: &&str| {
            let header = header_of(&memory.directory.join(name));
            header.is_ok_and(|header| header.is_some_and(|header| header.owner == previous))
        };
        let pair = usize::from(FILES[0].iter().any(is_formers));
        let open = |name: &str| plain_file::for_writing().truncate(true).open(memory.directory.join(name));
        let names = FILES[pair];
        let files = [open(names[0])?, open(names[1])?];
        let previous = FILES[1 - pair].map(|name| memory.directory.join(name));
        let header = NotesHeader::new(owner, 1, &memory.boot);
        files[0].write_all_at(&header.encode(), 0)?;
        let end_bytes = HEADER_BYTES as u64;
        let note = Vec::new();
        let turns =
            NoteFiles { header, names, files, previous, current: 0, end_bytes, other_is_free: true, note };
        *self.lock() = Some(turns);
        self.step_bytes.store(memory.long_bytes.max(1), Ordering::Relaxed);
        self.count(end_bytes);
        self.keeps.store(true, Ordering::Release);
        Ok(())
    }

    /// The journal names this session: what the former one noted is void.
    pub fn forget_former(&self) {
        if let Some(turns) = self.lock().as_ref() {
            // They only take space.
            turns.previous.iter().for_each(|path| drop(fs::remove_file(path)));
        }
    }

    /// Called before a change is made, so that no change is made, and none gets into the journal, that is not noted.
    ///
    /// # Errors
    /// When it can't be written. The change must not be made then.
    pub fn note(&self, record: &PoolRecord) -> Result<(), DeviceError> {
        if !self.keeps.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut turns = self.lock();
        let Some(turns) = turns.as_mut() else { return Ok(()) };
        turns.note.clear();
        encode_note(turns.header.generation, record, &mut turns.note);
        turns.files[turns.current].write_all_at(&turns.note, turns.end_bytes).map_err(|error| {
            DeviceError::Io(format!(
                "a change of the pool's map can't be recorded in {} of its directory: {error}",
                turns.names[turns.current]
            ))
        })?;
        // Only after a whole write: the next note takes the place of one that failed half-way.
        turns.end_bytes += turns.note.len() as u64;
        self.current_bytes.store(turns.end_bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Before a flush takes the changes of maps along: what is noted from now on it need not know.
    pub fn turn(&self) {
        let mut turns = self.lock();
        let has_notes = |turns: &&mut NoteFiles| turns.end_bytes > HEADER_BYTES as u64;
        let Some(turns) = turns.as_mut().filter(|turns| turns.other_is_free).filter(has_notes) else {
            return;
        };
        let header = NotesHeader { generation: turns.header.generation + 1, ..turns.header.clone() };
        let other = 1 - turns.current;
        // Where it can't be written the current file goes on, and the next flush tries again.
        // Older notes stay behind the header: their checksums are of an older generation, so they end the
        // file.
        if turns.files[other].write_all_at(&header.encode(), 0).is_ok() {
            turns.header = header;
            turns.current = other;
            turns.end_bytes = HEADER_BYTES as u64;
            turns.other_is_free = false;
            self.count(turns.end_bytes);
        }
    }

    /// The journal knows all changes that were noted before the last turn, or they were noted again since.
    pub fn free_other(&self) {
        if let Some(turns) = self.lock().as_mut() {
            turns.other_is_free = true;
        }
    }

    /// Whether enough is noted that a flush is due. Says so once for each such amount.
    pub fn is_long(&self) -> bool {
        let long_bytes = self.long_bytes.load(Ordering::Relaxed);
        if self.current_bytes.load(Ordering::Relaxed) < long_bytes || !self.keeps.load(Ordering::Relaxed) {
            return false;
        }
        // Of those that ask at the same time one gets `true`, so that one flush begins.
        let next = long_bytes + self.step_bytes.load(Ordering::Relaxed);
        self.long_bytes.compare_exchange(long_bytes, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// The journal knows everything, and nothing will change after this.
    pub fn end(&self) {
        self.keeps.store(false, Ordering::Release);
        if let Some(turns) = self.lock().take() {
            // They take space for nothing. The next session does not believe them anyway.
            turns.files.iter().for_each(|file| drop(file.set_len(0)));
        }
    }

    fn count(&self, end_bytes: u64) {
        self.current_bytes.store(end_bytes, Ordering::Relaxed);
        self.long_bytes.store(self.step_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OWNER: NoteOwner = NoteOwner { identity: 7, session: 8 };
    const FORMER: NoteOwner = NoteOwner { identity: 7, session: 3 };

    /// Hosts have such notes.
    #[test]
    fn checksum_of_note_stays() {
        assert_eq!(checksum(7, b"record"), 0x9e80_ed35);
    }

    fn memory(directory: &Path) -> HostMemory {
        HostMemory { directory: directory.to_owned(), boot: "first".into(), long_bytes: 1000 }
    }

    fn record(index: u32) -> PoolRecord {
        PoolRecord::Extent { volume: 3, index, extent: None }
    }

    fn indices(memory: &HostMemory, owner: NoteOwner) -> Vec<u32> {
        let index = |record| match record {
            PoolRecord::Extent { index, .. } => index,
            other => panic!("{other:?} was never noted"),
        };
        left_over(memory, owner).unwrap().into_iter().map(index).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Against a plain list of all notes: what is read is an end of it, and no shorter than what no flush has
        /// covered.
        #[test]
        fn reading_ends_history_and_begins_early_enough(steps in prop::collection::vec(0..10u8, 1..80)) {
            let folder = tempfile::tempdir().unwrap();
            let memory = memory(folder.path());
            let unflushed = UnflushedNotes::default();
            unflushed.begin(&memory, OWNER, FORMER).unwrap();
            let (mut noted, mut needed_from, mut captured) = (0u32, 0u32, None);
            for step in steps {
                match step {
                    0 => {
                        unflushed.turn();
                        captured = Some(noted);
                    }
                    // The flush is committed.
                    1 => if let Some(captured) = captured.take() {
                        unflushed.free_other();
                        needed_from = captured;
                    },
                    // The flush has failed.
                    2 => captured = None,
                    _ => {
                        unflushed.note(&record(noted)).unwrap();
                        noted += 1;
                    }
                }
                let read = indices(&memory, OWNER);
                let first = noted - read.len() as u32;
                prop_assert!(first <= needed_from, "{first} is read first, {needed_from} is needed");
                prop_assert!(read.into_iter().eq(first..noted));
            }
        }

        #[test]
        fn damaged_file_is_read_up_to_damage(
            count in 1..30u32,
            cut in any::<prop::sample::Index>(),
            flip in 1..=255u8,
        ) {
            let header = NotesHeader::new(OWNER, 5, "boot");
            let mut file = header.encode();
            let mut ends = vec![file.len()];
            for index in 0..count {
                encode_note(5, &record(index), &mut file);
                ends.push(file.len());
            }
            let cut_bytes = cut.index(file.len());
            let whole = ends.iter().filter(|end| **end <= cut_bytes).count();
            let mut changed = file.clone();
            changed[cut_bytes] ^= flip;
            for damaged in [&file[..cut_bytes], &changed] {
                match decode(damaged) {
                    None => prop_assert_eq!(whole, 0),
                    Some((found, records)) => {
                        prop_assert_eq!(&found, &header);
                        prop_assert!(records.into_iter().eq((0..whole as u32 - 1).map(record)));
                    }
                }
            }
        }
    }

    #[test]
    fn other_boot_or_pool_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let memory = memory(folder.path());
        let unflushed = UnflushedNotes::default();
        unflushed.note(&record(1)).unwrap();
        assert!(indices(&memory, OWNER).is_empty(), "nothing was begun");
        unflushed.begin(&memory, OWNER, FORMER).unwrap();
        unflushed.note(&record(2)).unwrap();
        assert_eq!(indices(&memory, OWNER), [2]);
        for other in [NoteOwner { session: 9, ..OWNER }, NoteOwner { identity: 9, ..OWNER }] {
            assert!(indices(&memory, other).is_empty());
        }
        let later = HostMemory { boot: "second".into(), ..memory.clone() };
        assert!(indices(&later, OWNER).is_empty());
        unflushed.end();
        assert!(indices(&memory, OWNER).is_empty());
        assert!(FILES[0].iter().all(|name| fs::metadata(folder.path().join(name)).unwrap().len() == 0));
    }

    #[test]
    fn older_notes_stay_until_journal_names_next_session() {
        let folder = tempfile::tempdir().unwrap();
        let memory = memory(folder.path());
        let begin = |owner, previous, number| {
            let unflushed = UnflushedNotes::default();
            unflushed.begin(&memory, owner, previous).unwrap();
            unflushed.note(&record(number)).unwrap();
            unflushed
        };
        begin(OWNER, FORMER, 1);
        let next = NoteOwner { session: 9, ..OWNER };
        // Several are begun and end before the journal has them.
        for number in 2..5 {
            begin(next, OWNER, number);
            assert_eq!((indices(&memory, OWNER), indices(&memory, next)), (vec![1], vec![number]));
        }
        let last = NoteOwner { session: 10, ..OWNER };
        begin(last, OWNER, 5).forget_former();
        assert_eq!((indices(&memory, OWNER), indices(&memory, last)), (vec![], vec![5]));
        begin(OWNER, last, 6).forget_former();
        assert_eq!((indices(&memory, OWNER), indices(&memory, last)), (vec![6], vec![]));
    }

    #[test]
    fn length_warning_comes_once_per_growth() {
        let folder = tempfile::tempdir().unwrap();
        let unflushed = UnflushedNotes::default();
        unflushed.begin(&memory(folder.path()), OWNER, FORMER).unwrap();
        assert!(!unflushed.is_long());
        for (current_bytes, expected) in [(1000, true), (1001, false), (2000, true), (2000, false)] {
            unflushed.current_bytes.store(current_bytes, Ordering::Relaxed);
            assert_eq!(unflushed.is_long(), expected, "{current_bytes}");
        }
        unflushed.turn();
        assert!(!unflushed.is_long());
    }
}
