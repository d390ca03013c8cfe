//! The settings, and how the memory budget is divided. The reasons are in `docs.md`.

use std::collections::BTreeMap;
use std::path::Path;

use ::rocksdb::{
    BlockBasedOptions, Cache, DBCompactionStyle, DBCompressionType, LogLevel, Options, ReadOptions,
    WriteOptions,
};

use crate::memory_plan::ProcessMemory;
use crate::setting::{FractionSetting, IntegerSetting, OneOf, OptionalSetting, SettingMistakes, settings};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// With less, the process itself would use up the memory that the measurement is about.
pub(crate) const MIN_BUDGET_BYTES: u64 = 24 * MIB;
/// The number of memtables: one is being filled, the others wait to be flushed.
const MEMTABLES: u64 = 4;
/// Above this nothing would be left for the process.
const MAX_SHARES: f64 = 0.9;
const SHARE: FractionSetting = FractionSetting(0.01..=MAX_SHARES);

settings! {
    /// Every setting with its value in force.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub(crate) struct RocksdbConfig {
        "block_cache_share" => given_block_cache_share: Option<f64> = None, OptionalSetting(SHARE),
            "part of the memory budget for the block cache, indexes and filters in it: 0.35, or 0.6 with io = direct";
        "write_buffer_share" => write_buffer_share: f64 = 0.15, SHARE,
            "part of the memory budget for all write buffers together: 0.15";
        "compression" => compression: RocksdbCompression = RocksdbCompression::None, COMPRESSIONS,
            "of data blocks: none (default), lz4, zstd or snappy, as far as the library has them";
        "io" => direct_io: bool = false, OneOf(&[("buffered", false), ("direct", true)]),
            "buffered (default: through the page cache) or direct (O_DIRECT for tables; the log stays buffered)";
        "wal" => wal: WalMode = WalMode::Async, WALS,
            "write-ahead log: async (default: written, not flushed), sync (flushed before each answer) or off";
        "block_bytes" => block_bytes: u64 = 4096, IntegerSetting(512..=MIB),
            "size of a data block before compression: 4096";
        "bloom_bits" => bloom_bits: u64 = 10, IntegerSetting(0..=30), "bits a key of the filters, 0 for none: 10";
        "compaction" => compaction: RocksdbCompaction = RocksdbCompaction::Level, COMPACTIONS,
            "level (default) or universal";
        "background_jobs" => background_jobs: u64 = 2, IntegerSetting(1..=32), "flushes and compactions at once: 2";
        "checksums" => checks_reads: bool = true, OneOf(&[("check", true), ("ignore", false)]),
            "of data blocks, when clients read them: check (default) or ignore";
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WalMode {
    Async,
    Sync,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RocksdbCompression {
    None,
    Lz4,
    Zstd,
    Snappy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RocksdbCompaction {
    Level,
    Universal,
}

const COMPRESSIONS: OneOf<RocksdbCompression> = OneOf(&[
    ("none", RocksdbCompression::None),
    ("lz4", RocksdbCompression::Lz4),
    ("zstd", RocksdbCompression::Zstd),
    ("snappy", RocksdbCompression::Snappy),
]);
const WALS: OneOf<WalMode> =
    OneOf(&[("async", WalMode::Async), ("sync", WalMode::Sync), ("off", WalMode::Off)]);
const COMPACTIONS: OneOf<RocksdbCompaction> =
    OneOf(&[("level", RocksdbCompaction::Level), ("universal", RocksdbCompaction::Universal)]);

impl RocksdbConfig {
    /// Of the process that embeds it.
    pub(super) fn memory(&self) -> ProcessMemory {
        let cache = self.block_cache_bytes();
        ProcessMemory {
            what: "engine",
            count: 1,
            heap_bytes: cache + self.write_buffers_bytes(),
            direct_bytes: 0,
            // The smallest budget is the process with hardly any cache.
            own_bytes: MIN_BUDGET_BYTES / 2,
            cache_bytes: cache,
        }
    }

    pub(crate) fn compresses(&self) -> bool {
        self.compression != RocksdbCompression::None
    }

    /// The configuration of `values` under a budget, or every mistake.
    pub(crate) fn resolve(
        values: &BTreeMap<String, String>,
        budget_bytes: u64,
    ) -> Result<RocksdbConfig, SettingMistakes> {
        let (config, mut mistakes) = RocksdbConfig::read(values, budget_bytes);
        let shares = config.block_cache_share() + config.write_buffer_share;
        if mistakes.is_empty() && shares > MAX_SHARES {
            let is_given = config.given_block_cache_share.is_some();
            let key = if is_given { "block_cache_share" } else { "write_buffer_share" };
            let problem = format!(
                "block_cache_share and write_buffer_share are {shares:.2} together; expected at most {MAX_SHARES}, \
                 to leave room for the process and its page cache"
            );
            mistakes.push((key.to_owned(), problem));
        }
        if budget_bytes < MIN_BUDGET_BYTES {
            let problem = format!(
                "a budget of {:.1} MiB is too small: RocksDB and its page cache need at least {} MiB",
                budget_bytes as f64 / MIB as f64,
                MIN_BUDGET_BYTES / MIB
            );
            mistakes.insert(0, ("memory".to_owned(), problem));
        }
        if mistakes.is_empty() { Ok(config) } else { Err(mistakes) }
    }

    /// With direct I/O there is no page cache behind the block cache, which takes its place.
    fn block_cache_share(&self) -> f64 {
        self.given_block_cache_share.unwrap_or(if self.direct_io { 0.6 } else { 0.35 })
    }

    /// The block cache, with the indexes and filters in it.
    pub(super) fn block_cache_bytes(&self) -> u64 {
        (self.budget_bytes as f64 * self.block_cache_share()) as u64
    }

    /// All memtables together.
    pub(super) fn write_buffers_bytes(&self) -> u64 {
        (self.budget_bytes as f64 * self.write_buffer_share) as u64
    }

    /// One memtable. RocksDB's minimum is 64 KiB.
    pub(super) fn memtable_bytes(&self) -> u64 {
        (self.write_buffers_bytes() / MEMTABLES).max(64 * KIB)
    }

    /// A table file holds as much as a memtable, so that files shrink with the budget and small data sets still have
    /// several levels. Files larger than RocksDB's default of 64 MiB have no advantage.
    pub(super) fn table_file_bytes(&self) -> u64 {
        self.memtable_bytes().min(64 * MIB)
    }

    /// The size of the first sorted level: as much as level 0 holds when its compaction starts.
    pub(super) fn level_base_bytes(&self) -> u64 {
        4 * self.memtable_bytes()
    }

    /// The read-ahead of compactions. One reads about six files at once with a buffer each, at most 5 % of the budget
    /// per job.
    pub(super) fn compaction_readahead_bytes(&self) -> u64 {
        (self.budget_bytes / 128).clamp(64 * KIB, 2 * MIB)
    }

    /// Table files are written in chunks of this size, and the kernel is asked to flush each, so that dirty pages don't
    /// fill the budget.
    pub(super) fn write_chunk_bytes(&self) -> u64 {
        (self.budget_bytes / 256).clamp(64 * KIB, MIB)
    }

    /// RocksDB's options, and the cache that they share. RocksDB's own log goes to `log_directory`, which is not on the
    /// storage under test.
    pub(super) fn options(&self, log_directory: &Path) -> Result<(Options, Cache), ::rocksdb::Error> {
        let cache = Cache::new_lru_cache(size(self.block_cache_bytes()))?;
        let mut table = BlockBasedOptions::default();
        table.set_block_cache(&cache);
        table.set_cache_index_and_filter_blocks(true);
        table.set_pin_l0_filter_and_index_blocks_in_cache(true);
        table.set_block_size(size(self.block_bytes));
        table.set_format_version(5);
        if self.bloom_bits > 0 {
            table.set_bloom_filter(self.bloom_bits as f64, false);
        }

        let memtable = self.memtable_bytes();
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&table);
        options.set_compression_type(match self.compression {
            RocksdbCompression::None => DBCompressionType::None,
            RocksdbCompression::Lz4 => DBCompressionType::Lz4,
            RocksdbCompression::Zstd => DBCompressionType::Zstd,
            RocksdbCompression::Snappy => DBCompressionType::Snappy,
        });
        options.set_write_buffer_size(size(memtable));
        options.set_max_write_buffer_number(MEMTABLES as i32);
        options.set_db_write_buffer_size(size(self.write_buffers_bytes().max(MEMTABLES * memtable)));
        options.set_target_file_size_base(self.table_file_bytes());
        options.set_max_bytes_for_level_base(self.level_base_bytes());
        options.set_level_compaction_dynamic_level_bytes(true);
        // In proportion to the memtable, as RocksDB's defaults (64 and 256 GiB) are to its default memtable of 64 MiB.
        options.set_soft_pending_compaction_bytes_limit(size(memtable.saturating_mul(1 << 10)));
        options.set_hard_pending_compaction_bytes_limit(size(memtable.saturating_mul(1 << 12)));
        options.set_max_background_jobs(self.background_jobs as i32);
        options.set_compaction_style(match self.compaction {
            RocksdbCompaction::Level => DBCompactionStyle::Level,
            RocksdbCompaction::Universal => DBCompactionStyle::Universal,
        });
        options.set_compaction_readahead_size(size(self.compaction_readahead_bytes()));
        options.set_writable_file_max_buffer_size(self.write_chunk_bytes());
        options.set_bytes_per_sync(self.write_chunk_bytes());
        options.set_wal_bytes_per_sync(self.write_chunk_bytes());
        options.set_use_direct_reads(self.direct_io);
        options.set_use_direct_io_for_flush_and_compaction(self.direct_io);

        options.enable_statistics();
        options.set_stats_dump_period_sec(0);
        options.set_stats_persist_period_sec(0);
        options.set_db_log_dir(log_directory);
        options.set_log_level(LogLevel::Warn);
        options.set_max_log_file_size(size(MIB));
        options.set_keep_log_file_num(2);
        Ok((options, cache))
    }

    /// The options of clients' reads.
    pub(super) fn read_options(&self) -> ReadOptions {
        let mut options = ReadOptions::default();
        options.set_verify_checksums(self.checks_reads);
        options
    }

    pub(super) fn write_options(&self) -> WriteOptions {
        let mut options = WriteOptions::default();
        options.set_sync(self.wal == WalMode::Sync);
        options.disable_wal(self.wal == WalMode::Off);
        options
    }

    /// For the record: the settings, and the sizes that follow from them.
    pub(super) fn applied(&self) -> BTreeMap<String, String> {
        let mut applied = self.recorded();
        applied.insert("block_cache_share".to_owned(), self.block_cache_share().to_string());
        let sizes = [
            ("block_cache_bytes", self.block_cache_bytes()),
            ("write_buffers_bytes", self.write_buffers_bytes()),
            ("memtable_bytes", self.memtable_bytes()),
            ("table_file_bytes", self.table_file_bytes()),
            ("level_base_bytes", self.level_base_bytes()),
            ("compaction_readahead_bytes", self.compaction_readahead_bytes()),
        ];
        applied.extend(sizes.map(|(name, bytes)| (name.to_owned(), bytes.to_string())));
        applied
    }
}

/// RocksDB's C interface takes sizes as `size_t`.
fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn settings_are_accepted_and_recorded() {
        let settings = values(&[
            ("block_cache_share", "40 %"),
            ("write_buffer_share", "0.2"),
            ("compression", "lz4"),
            ("io", "direct"),
            ("wal", "sync"),
            ("block_bytes", "16_384"),
            ("bloom_bits", "0"),
            ("compaction", "universal"),
            ("background_jobs", "4"),
            ("checksums", "ignore"),
        ]);
        assert_eq!(settings.len(), SETTINGS.len());
        let applied = RocksdbConfig::resolve(&settings, 100 * MIB).unwrap().applied();
        for (name, value) in &settings {
            let expected = value.replace("40 %", "0.4").replace('_', "");
            assert_eq!(applied[name], expected, "{name}");
        }
    }

    #[test]
    fn mistakes_are_listed_with_expected_values() {
        let settings = values(&[
            ("block_cache_share", "2"),
            ("write_buffer_share", "NaN"),
            ("compression", "gzip"),
            ("io", "mmap"),
            ("wal", ""),
            ("block_bytes", "4 KiB"),
            ("bloom_bits", "-1"),
            ("compaction", "fifo"),
            ("background_jobs", "99999999999999999999"),
            ("checksums", "off"),
            ("blok_bytes", "1"),
        ]);
        let mistakes = RocksdbConfig::resolve(&settings, MIB).unwrap_err();
        let named: Vec<&str> = mistakes.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(mistakes.len(), settings.len() + 1, "{named:?}");
        assert_eq!(named[0], "memory");
        for (key, problem) in &mistakes[1..] {
            assert!(problem.contains("expected"), "{key}: {problem}");
        }
    }

    #[test]
    fn shares_that_leave_nothing_are_refused() {
        let settings = values(&[("block_cache_share", "0.8"), ("write_buffer_share", "0.3")]);
        let mistakes = RocksdbConfig::resolve(&settings, 64 * MIB).unwrap_err();
        assert_eq!(mistakes[0].0, "block_cache_share");
    }

    #[test]
    fn memory_layout_stays_inside_budget() {
        let mut budget = MIN_BUDGET_BYTES;
        while budget < 1 << 40 {
            for io in ["buffered", "direct"] {
                let config = RocksdbConfig::resolve(&values(&[("io", io)]), budget).unwrap();
                let compactions = config.background_jobs * 6 * config.compaction_readahead_bytes();
                let used = config.block_cache_bytes() + config.write_buffers_bytes() + compactions;
                assert!(used < budget * 9 / 10, "{used} of {budget} with {io} i/o");
                assert!(config.memtable_bytes() * MEMTABLES <= config.write_buffers_bytes().max(256 * KIB));
                assert!(config.table_file_bytes() <= config.level_base_bytes());
            }
            budget *= 2;
        }
    }

    #[test]
    fn levels_shrink_with_the_budget() {
        let levels = |budget_bytes: u64| {
            let config = RocksdbConfig::resolve(&BTreeMap::new(), budget_bytes).unwrap();
            let data_bytes = 4 * budget_bytes;
            ((data_bytes as f64 / config.level_base_bytes() as f64).log10()).ceil()
        };
        assert_eq!(levels(32 * MIB), levels(32 << 30));
    }
}
