//! Records in RocksDB: one key-value pair per record, whose value is its fields as [`crate::wire`] encodes them.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use ::rocksdb::{
    Cache, DB, DBPinnableSlice, Error, FlushOptions, Options, ReadOptions, WriteOptions, properties,
};
use underlay_sync::RwLock;
use underlay_workload::client::FieldSelection;

use super::config::{RocksdbConfig, WalMode};
use super::statistics;
use crate::process_memory::resident_bytes;
use crate::wire::{FrameError, RECORD_KEY, ValuesBuilder, WireValues};

/// The number of locks that the keys share: many more than client threads, so that two keys rarely contend.
const LOCKS: usize = 1024;
/// How often settling checks for background work...
const REST_POLL: Duration = Duration::from_millis(5);
/// ...and how often in a row it must find none, because a flush that ends may start a compaction.
const REST_LOOKS: u32 = 3;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoreError {
    #[error("RocksDB: {0}")]
    Engine(#[from] Error),
    /// The database holds values that are not our records.
    #[error("the stored record can't be read ({0}): was this database written by another program?")]
    Record(#[source] FrameError),
    #[error(transparent)]
    Answer(#[from] FrameError),
    #[error("{0}")]
    NotAtRest(String),
}

/// An open database. Dropping it closes it.
pub(super) struct RocksdbStore {
    db: DB,
    /// Holds the statistics.
    options: Options,
    cache: Cache,
    reads: ReadOptions,
    writes: WriteOptions,
    config: RocksdbConfig,
    /// The number of fields in a whole record.
    fields: u32,
    /// Updating some of a record's fields reads, modifies and writes it, so it must not overlap with another write to
    /// the record. Writes that don't need to read share the lock.
    locks: Vec<RwLock<()>>,
}

impl RocksdbStore {
    pub(super) fn open(
        directory: &Path,
        wal_directory: Option<&Path>,
        log_directory: &Path,
        config: &RocksdbConfig,
        fields: u32,
    ) -> Result<RocksdbStore, StoreError> {
        let (mut options, cache) = config.options(log_directory)?;
        if let Some(wal_directory) = wal_directory {
            options.set_wal_dir(wal_directory);
        }
        let db = DB::open(&options, directory)?;
        Ok(RocksdbStore {
            db,
            options,
            cache,
            reads: config.read_options(),
            config: *config,
            writes: config.write_options(),
            fields,
            locks: (0..LOCKS).map(|_| RwLock::new(())).collect(),
        })
    }

    /// Appends the requested fields of a record to `out`, as [`WireValues`]. Returns `false` if there is no such
    /// record.
    pub(super) fn read(
        &self,
        key: &[u8],
        fields: FieldSelection,
        out: &mut Vec<u8>,
    ) -> Result<bool, StoreError> {
        let Some(record) = self.db.get_pinned_opt(key, &self.reads)? else { return Ok(false) };
        stored(&record)?.append_selected(fields, out)?;
        Ok(true)
    }

    /// Reads up to `limit` records in key order, beginning at `start`, and returns how many there were. The requested
    /// fields of each are copied out of the database, as a program that embeds it would do, and then dropped.
    pub(super) fn scan(
        &self,
        start: &[u8],
        limit: u64,
        fields: FieldSelection,
        scratch: &mut Vec<u8>,
    ) -> Result<u64, StoreError> {
        let mut records = self.db.raw_iterator_opt(self.config.read_options());
        let mut count = 0;
        if limit > 0 {
            records.seek(start);
        }
        while count < limit {
            let Some(record) = records.value() else { break };
            scratch.clear();
            WireValues::parse(record).map_err(StoreError::Record)?.append_selected(fields, scratch)?;
            black_box(&scratch);
            count += 1;
            if count < limit {
                records.next();
            }
        }
        records.status()?;
        Ok(count)
    }

    /// Like [`scan`](Self::scan), but writes each record's key and requested fields to `out`.
    pub(super) fn scan_records(
        &self,
        start: &[u8],
        limit: u64,
        fields: FieldSelection,
        out: &mut ValuesBuilder<'_>,
    ) -> Result<u64, StoreError> {
        let mut records = self.db.raw_iterator_opt(self.config.read_options());
        let mut count = 0;
        if limit > 0 {
            records.seek(start);
        }
        while count < limit {
            let Some((key, record)) = records.item() else { break };
            out.push(u32::from(RECORD_KEY), key)?;
            let record = WireValues::parse(record).map_err(StoreError::Record)?;
            for (field, value) in record.iter() {
                if matches!(fields, FieldSelection::All) || fields == FieldSelection::One(u32::from(field)) {
                    out.push(u32::from(field), value)?;
                }
            }
            count += 1;
            if count < limit {
                records.next();
            }
        }
        records.status()?;
        Ok(count)
    }

    /// Writes a whole record.
    pub(super) fn insert(
        &self,
        key: &[u8],
        values: &WireValues<'_>,
        scratch: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        let _shared = self.lock_of(key).read();
        if values.is_ordered() {
            return Ok(self.db.put_opt(key, values.as_bytes(), &self.writes)?);
        }
        scratch.clear();
        WireValues::NONE.append_merged(values, scratch)?;
        Ok(self.db.put_opt(key, &*scratch, &self.writes)?)
    }

    /// Writes the given fields and keeps the others. Creates the record if there is none. A whole record is written
    /// without reading the old one.
    pub(super) fn update(
        &self,
        key: &[u8],
        values: &WireValues<'_>,
        scratch: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        if values.is_whole_record(self.fields) {
            return self.insert(key, values, scratch);
        }
        let _alone = self.lock_of(key).write();
        scratch.clear();
        match self.db.get_pinned_opt(key, &self.reads)? {
            Some(record) => stored(&record)?.append_merged(values, scratch)?,
            None => WireValues::NONE.append_merged(values, scratch)?,
        }
        Ok(self.db.put_opt(key, &*scratch, &self.writes)?)
    }

    /// Deletes a record, whether it exists or not: RocksDB just writes a tombstone.
    pub(super) fn delete(&self, key: &[u8]) -> Result<(), StoreError> {
        let _shared = self.lock_of(key).read();
        Ok(self.db.delete_opt(key, &self.writes)?)
    }

    fn lock_of(&self, key: &[u8]) -> &RwLock<()> {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        &self.locks[hasher.finish() as usize % LOCKS]
    }

    /// Flushes the memtables and waits until no flush or compaction is running or pending.
    pub(super) fn settle(&self, limit: Duration) -> Result<(), StoreError> {
        let started = Instant::now();
        let mut flush = FlushOptions::default();
        flush.set_wait(false);
        self.db.flush_opt(&flush)?;
        let mut looks = 0;
        loop {
            let busy = self.background_work()?;
            looks = if busy.is_empty() { looks + 1 } else { 0 };
            if looks == REST_LOOKS {
                break;
            }
            if started.elapsed() > limit {
                let due = self.property(properties::ESTIMATE_PENDING_COMPACTION_BYTES)?;
                return Err(StoreError::NotAtRest(format!(
                    "background work continues after {:.0} s ({}; {:.0} MiB to compact): allow more time, or load less data",
                    limit.as_secs_f64(),
                    if busy.is_empty() { "almost finished".to_owned() } else { busy.join(", ") },
                    due as f64 / f64::from(1 << 20),
                )));
            }
            std::thread::sleep(REST_POLL);
        }
        self.sync_log()
    }

    /// Flushes everything: all acknowledged writes are on the storage when this returns.
    pub(super) fn write_out(&self) -> Result<(), StoreError> {
        self.db.flush()?;
        self.sync_log()
    }

    fn sync_log(&self) -> Result<(), StoreError> {
        if self.config.wal != WalMode::Off {
            self.db.flush_wal(true)?;
        }
        Ok(())
    }

    fn property(&self, name: &std::ffi::CStr) -> Result<u64, StoreError> {
        Ok(self.db.property_int_value(name)?.unwrap_or(0))
    }

    /// Describes what is running or pending in the background.
    fn background_work(&self) -> Result<Vec<String>, StoreError> {
        let works = [
            (properties::NUM_IMMUTABLE_MEM_TABLE, "memtables to flush"),
            (properties::MEM_TABLE_FLUSH_PENDING, "flushes pending"),
            (properties::NUM_RUNNING_FLUSHES, "flushes running"),
            (properties::COMPACTION_PENDING, "compactions pending"),
            (properties::NUM_RUNNING_COMPACTIONS, "compactions running"),
        ];
        let mut busy = Vec::new();
        for (property, meaning) in works {
            match self.property(property)? {
                0 => {}
                count => busy.push(format!("{count} {meaning}")),
            }
        }
        Ok(busy)
    }

    /// Running totals from RocksDB's statistics, and current states.
    pub(super) fn figures(&self) -> Result<BTreeMap<String, f64>, StoreError> {
        let mut figures = statistics::totals(&self.options.get_statistics().unwrap_or_default());
        let states = [
            ("current_live_data_bytes", properties::ESTIMATE_LIVE_DATA_SIZE),
            ("current_table_files_bytes", properties::TOTAL_SST_FILES_SIZE),
            ("current_memtables_bytes", properties::SIZE_ALL_MEM_TABLES),
            ("current_pending_compaction_bytes", properties::ESTIMATE_PENDING_COMPACTION_BYTES),
            ("current_records_estimate", properties::ESTIMATE_NUM_KEYS),
            ("current_background_errors", properties::BACKGROUND_ERRORS),
        ];
        for (name, property) in states {
            figures.insert(name.to_owned(), self.property(property)? as f64);
        }
        for level in 0.. {
            let files = self.db.property_value(properties::num_files_at_level(level))?;
            let Some(files) = files.and_then(|text| text.trim().parse().ok()) else { break };
            figures.insert(format!("current_level_{level}_files"), files);
        }
        figures.insert("current_block_cache_bytes".to_owned(), self.cache.get_usage() as f64);
        figures.insert("current_block_cache_pinned_bytes".to_owned(), self.cache.get_pinned_usage() as f64);
        if let Some(bytes) = resident_bytes(std::process::id()) {
            figures.insert("current_resident_bytes".to_owned(), bytes as f64);
        }
        figures.extend(self.gauges()?);
        Ok(figures)
    }

    /// How many compactions are running.
    pub(super) fn gauges(&self) -> Result<BTreeMap<String, f64>, StoreError> {
        let running = self.property(properties::NUM_RUNNING_COMPACTIONS)?;
        let is_stopped = self.property(properties::IS_WRITE_STOPPED)? > 0;
        let is_delayed = self.property(properties::ACTUAL_DELAYED_WRITE_RATE)? > 0;
        let gauges = [
            ("current_compactions_running", running as f64),
            ("current_writes_delayed", f64::from(u8::from(is_delayed && !is_stopped))),
            ("current_writes_stopped", f64::from(u8::from(is_stopped))),
        ];
        Ok(gauges.map(|(name, value)| (name.to_owned(), value)).into())
    }
}

fn stored<'a>(record: &'a DBPinnableSlice<'_>) -> Result<WireValues<'a>, StoreError> {
    WireValues::parse(record).map_err(StoreError::Record)
}
