//! Translates RocksDB's statistics into our figures.

use std::collections::BTreeMap;

/// RocksDB's tickers and our names for them. They are totals since the database was opened.
const TICKERS: &[(&str, &str)] = &[
    ("rocksdb.block.cache.hit", "block_cache_hits"),
    ("rocksdb.block.cache.miss", "block_cache_misses"),
    ("rocksdb.block.cache.data.hit", "block_cache_data_hits"),
    ("rocksdb.block.cache.data.miss", "block_cache_data_misses"),
    ("rocksdb.block.cache.index.miss", "block_cache_index_misses"),
    ("rocksdb.block.cache.filter.miss", "block_cache_filter_misses"),
    ("rocksdb.bloom.filter.useful", "filter_skips"),
    ("rocksdb.memtable.hit", "memtable_hits"),
    ("rocksdb.compact.read.bytes", "compaction_read_bytes"),
    ("rocksdb.compact.write.bytes", "compaction_write_bytes"),
    ("rocksdb.flush.write.bytes", "flush_write_bytes"),
    ("rocksdb.stall.micros", "write_stall_us"),
    ("rocksdb.wal.bytes", "wal_bytes"),
    ("rocksdb.wal.synced", "wal_syncs"),
    ("rocksdb.number.keys.read", "keys_read"),
    ("rocksdb.number.keys.written", "keys_written"),
    ("rocksdb.bytes.read", "user_read_bytes"),
    ("rocksdb.bytes.written", "user_write_bytes"),
];

/// Extracts the totals from RocksDB's report, which has lines such as `rocksdb.block.cache.miss COUNT : 42`. Tickers
/// that this version doesn't report are left out.
pub(super) fn totals(report: &str) -> BTreeMap<String, f64> {
    let mut totals = BTreeMap::new();
    for line in report.lines() {
        let Some((ticker, count)) = line.split_once(" COUNT : ") else { continue };
        let Some(&(_, name)) = TICKERS.iter().find(|&&(ticker_name, _)| ticker_name == ticker.trim()) else {
            continue;
        };
        if let Ok(count) = count.trim().parse::<f64>() {
            totals.insert(name.to_owned(), count);
        }
    }
    totals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickers_are_picked_and_the_rest_is_passed_over() {
        let report = "rocksdb.block.cache.miss COUNT : 42\n\
                      rocksdb.block.cache.hit COUNT : x\n\
                      rocksdb.unknown COUNT : 1\n\
                      rocksdb.db.get.micros P50 : 1.0 P95 : 2.0 COUNT : 3 SUM : 4\n\
                      rocksdb.stall.micros COUNT : 7";
        let expected = [("block_cache_misses".to_owned(), 42.0), ("write_stall_us".to_owned(), 7.0)];
        assert_eq!(totals(report), BTreeMap::from(expected));
        assert!(totals("").is_empty());
    }
}
