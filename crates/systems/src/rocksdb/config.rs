//! The settings, and how the memory budget is divided. The reasons are in `docs.md`.

use std::collections::BTreeMap;
use std::path::Path;

use ::rocksdb::{
    BlockBasedOptions, Cache, DBCompactionStyle, DBCompressionType, LogLevel, Options, ReadOptions,
    WriteOptions,
};

use crate::setting::{expected_one_of, share, within};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Below this the process itself would crowd out what is to be measured.
pub const MIN_BUDGET_BYTES: u64 = 24 * MIB;
/// Memtables that exist at once: one is filled, the others wait to be written.
const MEMTABLES: u64 = 4;
/// A share is from this...
const MIN_SHARE: f64 = 0.01;
/// ...to where nothing would be left for the process.
const MAX_SHARES: f64 = 0.9;

/// What a study may set, as [`crate::system::Capabilities`] gives it.
pub const SETTINGS: &[(&str, &str)] = &[
    (
        "block_cache_share",
        "part of the memory budget for the block cache, indexes and filters in it: 0.35, or 0.6 with io = direct",
    ),
    ("write_buffer_share", "part of the memory budget for all write buffers together: 0.15"),
    ("compression", "of data blocks: none (default), lz4, zstd or snappy, as far as the library has them"),
    (
        "io",
        "buffered (default: through the page cache) or direct (O_DIRECT for tables; the log stays buffered)",
    ),
    (
        "wal",
        "write-ahead log: async (default: written, not flushed), sync (flushed before each answer) or off",
    ),
    ("block_bytes", "size of a data block before compression: 4096"),
    ("bloom_bits", "bits a key of the filters, 0 for none: 10"),
    ("compaction", "level (default) or universal"),
    ("background_jobs", "flushes and compactions at once: 2"),
    ("checksums", "of data blocks, when clients read them: check (default) or ignore"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wal {
    Async,
    Sync,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    None,
    Lz4,
    Zstd,
    Snappy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compaction {
    Level,
    Universal,
}

/// Every setting with its value in force.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    pub budget_bytes: u64,
    pub block_cache_share: f64,
    pub write_buffer_share: f64,
    pub compression: Compression,
    pub direct_io: bool,
    pub wal: Wal,
    pub block_bytes: u64,
    pub bloom_bits: u64,
    pub compaction: Compaction,
    pub background_jobs: u64,
    /// Checksums of blocks that clients read are checked.
    pub checks_reads: bool,
}

impl Config {
    /// The configuration of `values` under a budget, or every mistake: (setting, what was expected).
    pub fn resolve(
        values: &BTreeMap<String, String>,
        budget_bytes: u64,
    ) -> Result<Config, Vec<(String, String)>> {
        let mut config = Config {
            budget_bytes,
            block_cache_share: 0.0,
            write_buffer_share: 0.15,
            compression: Compression::None,
            direct_io: false,
            wal: Wal::Async,
            block_bytes: 4096,
            bloom_bits: 10,
            compaction: Compaction::Level,
            background_jobs: 2,
            checks_reads: true,
        };
        let share = |text| share(text, &(MIN_SHARE..=MAX_SHARES), "0.35 or 35 %");
        let mut block_cache_share = None;
        let mut mistakes = Vec::new();
        if budget_bytes < MIN_BUDGET_BYTES {
            let problem = format!(
                "a budget of {:.1} MiB is too small: RocksDB and its page cache need at least {} MiB",
                budget_bytes as f64 / MIB as f64,
                MIN_BUDGET_BYTES / MIB
            );
            mistakes.push(("memory".to_owned(), problem));
        }
        for (key, value) in values {
            let value = value.trim();
            let expected = match key.as_str() {
                "block_cache_share" => share(value).map(|share| block_cache_share = Some(share)),
                "write_buffer_share" => share(value).map(|share| config.write_buffer_share = share),
                "compression" => one_of(
                    value,
                    &[
                        ("none", Compression::None),
                        ("lz4", Compression::Lz4),
                        ("zstd", Compression::Zstd),
                        ("snappy", Compression::Snappy),
                    ],
                )
                .map(|compression| config.compression = compression),
                "io" => {
                    one_of(value, &[("buffered", false), ("direct", true)]).map(|io| config.direct_io = io)
                }
                "wal" => one_of(value, &[("async", Wal::Async), ("sync", Wal::Sync), ("off", Wal::Off)])
                    .map(|wal| config.wal = wal),
                "block_bytes" => within(value, 512, MIB).map(|bytes| config.block_bytes = bytes),
                "bloom_bits" => within(value, 0, 30).map(|bits| config.bloom_bits = bits),
                "compaction" => {
                    one_of(value, &[("level", Compaction::Level), ("universal", Compaction::Universal)])
                        .map(|compaction| config.compaction = compaction)
                }
                "background_jobs" => within(value, 1, 32).map(|jobs| config.background_jobs = jobs),
                "checksums" => one_of(value, &[("check", true), ("ignore", false)])
                    .map(|checks| config.checks_reads = checks),
                _ => {
                    let problem = format!("no such setting; {}", expected_one_of(SETTINGS));
                    mistakes.push((key.clone(), problem));
                    continue;
                }
            };
            if let Err(expected) = expected {
                mistakes.push((key.clone(), format!("{expected}, not '{value}'")));
            }
        }
        config.block_cache_share = block_cache_share.unwrap_or(if config.direct_io { 0.6 } else { 0.35 });
        let shares = config.block_cache_share + config.write_buffer_share;
        if mistakes.is_empty() && shares > MAX_SHARES {
            let key = if block_cache_share.is_some() { "block_cache_share" } else { "write_buffer_share" };
            let problem = format!(
                "block_cache_share and write_buffer_share are {shares:.2} together; expected at most {MAX_SHARES}, \
                 to leave room for the process and its page cache"
            );
            mistakes.push((key.to_owned(), problem));
        }
        if mistakes.is_empty() { Ok(config) } else { Err(mistakes) }
    }

    /// The block cache, with the indexes and filters in it.
    pub fn block_cache_bytes(&self) -> u64 {
        (self.budget_bytes as f64 * self.block_cache_share) as u64
    }

    /// All memtables together.
    pub fn write_buffers_bytes(&self) -> u64 {
        (self.budget_bytes as f64 * self.write_buffer_share) as u64
    }

    /// One memtable; RocksDB takes nothing below 64 KiB.
    pub fn memtable_bytes(&self) -> u64 {
        (self.write_buffers_bytes() / MEMTABLES).max(64 * KIB)
    }

    /// A table file holds what a memtable holds, so that files shrink with the budget and small data still has
    /// several levels; beyond RocksDB's default of 64 MiB larger files bring nothing.
    pub fn table_file_bytes(&self) -> u64 {
        self.memtable_bytes().min(64 * MIB)
    }

    /// The first sorted level: as much as level 0 holds when its compaction starts.
    pub fn level_base_bytes(&self) -> u64 {
        4 * self.memtable_bytes()
    }

    /// A compaction reads some six files at once, each with such a buffer: 5 % of the budget a job at most.
    pub fn compaction_readahead_bytes(&self) -> u64 {
        (self.budget_bytes / 128).clamp(64 * KIB, 2 * MIB)
    }

    /// A table file is written in parts of this size, and the kernel is asked to write them out as they come, so
    /// that dirty pages don't fill the budget.
    pub fn write_chunk_bytes(&self) -> u64 {
        (self.budget_bytes / 256).clamp(64 * KIB, MIB)
    }

    /// RocksDB's options, and the cache that they share. RocksDB's own log goes to `log_directory`, which is not on the
    /// storage under test.
    pub fn options(&self, log_directory: &Path) -> Result<(Options, Cache), ::rocksdb::Error> {
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
            Compression::None => DBCompressionType::None,
            Compression::Lz4 => DBCompressionType::Lz4,
            Compression::Zstd => DBCompressionType::Zstd,
            Compression::Snappy => DBCompressionType::Snappy,
        });
        options.set_write_buffer_size(size(memtable));
        options.set_max_write_buffer_number(MEMTABLES as i32);
        options.set_db_write_buffer_size(size(self.write_buffers_bytes().max(MEMTABLES * memtable)));
        options.set_target_file_size_base(self.table_file_bytes());
        options.set_max_bytes_for_level_base(self.level_base_bytes());
        options.set_level_compaction_dynamic_level_bytes(true);
        // To a memtable as RocksDB's defaults (64 and 256 GiB) are to its default of 64 MiB.
        options.set_soft_pending_compaction_bytes_limit(size(memtable.saturating_mul(1 << 10)));
        options.set_hard_pending_compaction_bytes_limit(size(memtable.saturating_mul(1 << 12)));
        options.set_max_background_jobs(self.background_jobs as i32);
        options.set_compaction_style(match self.compaction {
            Compaction::Level => DBCompactionStyle::Level,
            Compaction::Universal => DBCompactionStyle::Universal,
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

    /// How clients read.
    pub fn read_options(&self) -> ReadOptions {
        let mut options = ReadOptions::default();
        options.set_verify_checksums(self.checks_reads);
        options
    }

    pub fn write_options(&self) -> WriteOptions {
        let mut options = WriteOptions::default();
        options.set_sync(self.wal == Wal::Sync);
        options.disable_wal(self.wal == Wal::Off);
        options
    }

    /// For the record: the settings, and the sizes that follow from them.
    pub fn applied(&self) -> BTreeMap<String, String> {
        let text = |value: &dyn std::fmt::Display| value.to_string();
        let settings = [
            ("block_cache_share", text(&self.block_cache_share)),
            ("write_buffer_share", text(&self.write_buffer_share)),
            ("compression", format!("{:?}", self.compression).to_lowercase()),
            ("io", text(&if self.direct_io { "direct" } else { "buffered" })),
            ("wal", format!("{:?}", self.wal).to_lowercase()),
            ("block_bytes", text(&self.block_bytes)),
            ("bloom_bits", text(&self.bloom_bits)),
            ("compaction", format!("{:?}", self.compaction).to_lowercase()),
            ("background_jobs", text(&self.background_jobs)),
            ("checksums", text(&if self.checks_reads { "check" } else { "ignore" })),
            ("block_cache_bytes", text(&self.block_cache_bytes())),
            ("write_buffers_bytes", text(&self.write_buffers_bytes())),
            ("memtable_bytes", text(&self.memtable_bytes())),
            ("table_file_bytes", text(&self.table_file_bytes())),
            ("level_base_bytes", text(&self.level_base_bytes())),
            ("compaction_readahead_bytes", text(&self.compaction_readahead_bytes())),
        ];
        settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// As [`crate::setting::one_of`], and small letters are told from capitals.
fn one_of<T: Copy>(text: &str, choices: &[(&str, T)]) -> Result<T, String> {
    choices
        .iter()
        .find(|&&(name, _)| name == text)
        .map(|&(_, value)| value)
        .ok_or_else(|| expected_one_of(choices))
}

/// RocksDB takes sizes as the machine's word.
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
    fn every_setting_has_a_value_that_is_taken_and_recorded() {
        let given = values(&[
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
        assert_eq!(given.len(), SETTINGS.len());
        let applied = Config::resolve(&given, 100 * MIB).unwrap().applied();
        for (name, value) in &given {
            let expected = value.replace("40 %", "0.4").replace('_', "");
            assert_eq!(applied[name], expected, "{name}");
        }
    }

    #[test]
    fn every_mistake_is_listed_with_what_was_expected() {
        let given = values(&[
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
        let mistakes = Config::resolve(&given, MIB).unwrap_err();
        let named: Vec<&str> = mistakes.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(mistakes.len(), given.len() + 1, "{named:?}");
        assert_eq!(named[0], "memory");
        for (key, problem) in &mistakes[1..] {
            assert!(problem.contains("expected"), "{key}: {problem}");
        }
    }

    #[test]
    fn shares_that_leave_nothing_are_refused() {
        let given = values(&[("block_cache_share", "0.8"), ("write_buffer_share", "0.3")]);
        let mistakes = Config::resolve(&given, 64 * MIB).unwrap_err();
        assert_eq!(mistakes[0].0, "block_cache_share");
    }

    #[test]
    fn what_is_divided_stays_inside_the_budget() {
        let mut budget = MIN_BUDGET_BYTES;
        while budget < 1 << 40 {
            for io in ["buffered", "direct"] {
                let config = Config::resolve(&values(&[("io", io)]), budget).unwrap();
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
            let config = Config::resolve(&BTreeMap::new(), budget_bytes).unwrap();
            let data_bytes = 4 * budget_bytes;
            ((data_bytes as f64 / config.level_base_bytes() as f64).log10()).ceil()
        };
        assert_eq!(levels(32 * MIB), levels(32 << 30));
    }
}
