use std::io;

use redb::StorageBackend;
use underlay_files::{Access, Folder};
use underlay_sync::Mutex;

use super::*;
use crate::from_disk::TwoWays as _;
use crate::from_disk::tests::Cached;

#[test]
fn another_format_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(FILE);
    let open = || MetadataStore::open(&path, 1 << 20, NotedEpoch::default());
    let format = |metadata: &MetadataStore| metadata.view().unwrap().number(FORMAT_KEY).unwrap();
    let set = |format: u64| {
        let metadata = open().unwrap();
        set_number(&metadata, FORMAT_KEY, format).unwrap();
    };
    assert_eq!(format(&open().unwrap()), Some(FORMAT));
    set(FORMAT_OF_MORE);
    assert_eq!(format(&open().unwrap()), Some(FORMAT_OF_MORE));
    set(FORMAT_OF_PARTS);
    assert_eq!(format(&open().unwrap()), Some(FORMAT_OF_PARTS));
    set(FORMAT_OF_PARTS + 1);
    let message = open().map(drop).unwrap_err().to_string();
    assert!(message.contains("has format 5"), "{message}");
}

fn set_number(metadata: &MetadataStore, key: &[u8], number: u64) -> std::result::Result<(), String> {
    let transaction = metadata.database.begin_write().map_err(|error| error.to_string())?;
    MetadataChange::begin(&transaction).unwrap().set_number(key, number).unwrap();
    transaction.commit().map_err(|error| error.to_string())?;
    // As the committer does.
    metadata.database.forget_view();
    Ok(())
}

/// The test's disk, which outlives the store that has it open.
#[derive(Clone, Debug, Default)]
struct Disk(Arc<Mutex<Cached>>);

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        self.0.lock().length()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match self.0.lock().read_remembered(out, offset)? == out.len() {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.lock().resize(len as usize);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.lock().sync()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.lock().write(offset as usize, data);
        Ok(())
    }
}

impl Disk {
    fn open(&self) -> GatewayResult<MetadataStore> {
        let (surroundings, path) = (MetadataLocation::default(), Path::new("metadata of the test"));
        MetadataStore::open_over(self.clone(), surroundings, path, 1 << 20, NotedEpoch::default())
    }

    /// One commit that is durable, and one whose sync fails.
    fn after_a_failed_sync() -> Disk {
        let disk = Disk::default();
        let metadata = disk.open().unwrap();
        // So many that what a start writes is not in the page of what the failed sync wrote: it would be written again
        // with it.
        let transaction = metadata.database.begin_write().unwrap();
        for number in 0..2_000 {
            MetadataChange::begin(&transaction)
                .unwrap()
                .set_number(format!("filler {number}").as_bytes(), number)
                .unwrap();
        }
        transaction.commit().unwrap();
        set_number(&metadata, b"test", 1).unwrap();
        disk.0.lock().fails_syncs = 1;
        set_number(&metadata, b"test", 2).unwrap_err();
        disk
    }
}

fn number_in(metadata: &MetadataStore) -> Option<u64> {
    metadata.view().unwrap().number(b"test").unwrap()
}

/// Two faults at once: a sync that fails, and a power cut after the next start.
#[test]
fn commit_with_failed_sync_is_dropped_at_restart() {
    let disk = Disk::after_a_failed_sync();
    make_sure(&mut *disk.0.lock()).unwrap();
    let metadata = disk.open().unwrap();
    assert_eq!(number_in(&metadata), Some(1), "the disk has never had the other one");
    set_number(&metadata, b"more", 7).unwrap();
    disk.0.lock().lose_power();
    // Its writes at the end come too late.
    std::mem::forget(metadata);
    let metadata = disk.open().unwrap();
    assert_eq!(number_in(&metadata), Some(1));
    assert_eq!(metadata.view().unwrap().number(b"more").unwrap(), Some(7));
}

/// That the test above could fail: what the kernel remembers looks as if all were well.
#[test]
fn unsynced_commit_looks_sound_until_power_cut() {
    let disk = Disk::after_a_failed_sync();
    let metadata = disk.open().unwrap();
    assert_eq!(number_in(&metadata), Some(2));
    std::mem::forget(metadata);
    disk.0.lock().lose_power();
    let is_lost = disk.open().map_or(true, |metadata| number_in(&metadata) != Some(2));
    assert!(is_lost, "the disk has what no sync has written");
}

#[test]
fn metadata_are_marked_closed_only_after_successful_syncs() {
    let directory = tempfile::tempdir().unwrap();
    let folder = Folder::open(directory.path()).unwrap();
    folder.make_inner("journal", Access::Private).unwrap();
    let is_closed = || directory.path().join("journal/closed").exists();
    let surroundings = || MetadataLocation { disk: None, journal: Some(folder.inner("journal").unwrap()) };
    let path = directory.path().join(FILE);
    let open = || MetadataStore::open_in(surroundings(), &path, 1 << 20, NotedEpoch::default()).unwrap();
    for _ in 0..2 {
        let metadata = open();
        assert!(!is_closed());
        set_number(&metadata, b"test", 1).unwrap();
        drop(metadata);
        assert!(is_closed());
    }
    // A process that was killed.
    let metadata = open();
    assert!(metadata.was_closed);
    let copy = directory.path().join("copy");
    std::fs::copy(&path, &copy).unwrap();
    drop(metadata);
    std::fs::remove_file(directory.path().join("journal/closed")).unwrap();
    std::fs::rename(&copy, &path).unwrap();
    let metadata = open();
    assert!(!metadata.was_closed && number_in(&metadata) == Some(1));
    drop(metadata);
    // One whose sync fails.
    let disk = Disk::default();
    let metadata =
        MetadataStore::open_over(disk.clone(), surroundings(), &path, 1 << 20, NotedEpoch::default())
            .unwrap();
    surroundings().reopen().unwrap();
    disk.0.lock().fails_syncs = 1;
    set_number(&metadata, b"test", 2).unwrap_err();
    drop(metadata);
    assert!(!is_closed());
}

/// A disk without room before the reserve is given up.
#[derive(Debug)]
struct Full {
    inner: Disk,
    reserve: std::path::PathBuf,
    is_full: Arc<AtomicBool>,
}

impl Full {
    fn room(&self) -> io::Result<()> {
        let is_given_up = std::fs::metadata(&self.reserve).is_ok_and(|found| found.len() == 0);
        match self.is_full.load(Ordering::Acquire) && !is_given_up {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }
}

impl StorageBackend for Full {
    fn len(&self) -> io::Result<u64> {
        StorageBackend::len(&self.inner)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.room().and_then(|()| self.inner.set_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.inner.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.room().and_then(|()| self.inner.write(offset, data))
    }
}

#[test]
fn commit_on_full_disk_uses_reserve() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(crate::disk_room::DiskRoom::open(directory.path()).unwrap());
    let reserve = directory.path().join("reserve");
    if std::fs::metadata(&reserve).unwrap().len() == 0 {
        // This file system can't set room aside.
        return;
    }
    let is_full = Arc::new(AtomicBool::new(false));
    let file = Full { inner: Disk::default(), reserve: reserve.clone(), is_full: Arc::clone(&is_full) };
    let surroundings = MetadataLocation { disk: Some(disk), journal: None };
    let path = directory.path().join(FILE);
    let metadata =
        MetadataStore::open_over(file, surroundings, &path, 1 << 20, NotedEpoch::default()).unwrap();
    is_full.store(true, Ordering::Release);
    for number in [1, 2] {
        set_number(&metadata, b"test", number).unwrap();
        assert_eq!(number_in(&metadata), Some(number));
    }
    assert_eq!(std::fs::metadata(&reserve).unwrap().len(), 0);
}

#[test]
fn bucket_with_stored_parts_has_only_uploads() {
    let directory = tempfile::tempdir().unwrap();
    let metadata = MetadataStore::open(&directory.path().join(FILE), 1 << 20, NotedEpoch::default()).unwrap();
    let transaction = metadata.database.begin_write().unwrap();
    let mut change = MetadataChange::begin(&transaction).unwrap();
    let none = crate::model::StoredRecord { content: None };
    for number in 0..3 {
        let part = ObjectName::new("lake", crate::staged::name_of(number, "a"));
        change.set_stored(&part, Some(&none)).unwrap();
        change.mark_pending(&part).unwrap();
    }
    // Neighbours in the order of names.
    for other in [ObjectName::new("lak", "e"), ObjectName::new("lake.a", "a"), ObjectName::new("lakes", "a")]
    {
        change.set_stored(&other, Some(&none)).unwrap();
    }
    assert!(!change.bucket_has_more_than_uploads("lake").unwrap() && change.bucket_has_rows("lake").unwrap());
    change.mark_pending(&ObjectName::new("lake", "\u{1}")).unwrap();
    assert!(change.bucket_has_more_than_uploads("lake").unwrap());
    assert!(!change.bucket_has_rows("la").unwrap());
}
