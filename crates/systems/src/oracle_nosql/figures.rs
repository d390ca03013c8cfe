//! Berkeley DB JE's counts in each replication node, as the node writes them once a second: a table whose rows have the
//! changes since the row before, and the state at that moment.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// The end of a table's name, behind that of the replication node.
const TABLE: &str = ".je.stat.csv";
/// Those of the administration are no figures of the data.
const OF_REPLICATION_NODE: &str = "rg";
/// More than a table grows between two looks; what is left is read at the next one.
const MAX_BYTES: u64 = 64 << 20;

/// Running totals, with the columns whose sum each is.
const TOTALS: &[(&str, &[&str])] = &[
    ("cache_misses", &["I/O:nCacheMiss"]),
    ("record_fetches", &["Cache:nLNsFetch"]),
    ("record_fetch_misses", &["Cache:nLNsFetchMiss"]),
    ("leaf_fetches", &["Cache:nBINsFetch"]),
    ("leaf_fetch_misses", &["Cache:nBINsFetchMiss"]),
    ("inner_node_fetches", &["Cache:nUpperINsFetch"]),
    ("inner_node_fetch_misses", &["Cache:nUpperINsFetchMiss"]),
    ("evicted_nodes", &["Cache:nNodesEvicted"]),
    ("evicted_dirty_nodes", &["Cache:nDirtyNodesEvicted"]),
    ("evicted_records", &["Cache:nLNsEvicted"]),
    ("cleaned_files", &["Cleaning:nCleanerRuns"]),
    ("deleted_files", &["Cleaning:nCleanerDeletions"]),
    ("cleaner_entries_read", &["Cleaning:nCleanerEntriesRead"]),
    ("cleaner_disk_reads", &["Cleaning:nCleanerDisksReads"]),
    ("cleaner_migrated_records", &["Cleaning:nLNsMigrated"]),
    ("cleaner_migrated_nodes", &["Cleaning:nINsMigrated"]),
    ("checkpoints", &["Checkpoints:nCheckpoints"]),
    ("checkpoint_written_nodes", &["Checkpoints:nFullINFlush"]),
    ("checkpoint_written_deltas", &["Checkpoints:nDeltaINFlush"]),
    ("log_fsyncs", &["I/O:nLogFSyncs"]),
    ("commit_fsyncs", &["I/O:nFSyncs"]),
    ("commit_fsync_requests", &["I/O:nFSyncRequests"]),
    ("log_writes", &["I/O:nSequentialWrites", "I/O:nRandomWrites"]),
    ("log_written_bytes", &["I/O:nSequentialWriteBytes", "I/O:nRandomWriteBytes"]),
    ("log_reads", &["I/O:nSequentialReads", "I/O:nRandomReads"]),
    ("log_read_bytes", &["I/O:nSequentialReadBytes", "I/O:nRandomReadBytes"]),
    ("lock_waits", &["Locks:nWaits"]),
];
/// States whose sum over all nodes is shown.
const STATES: &[(&str, &str)] = &[
    ("current_cache_bytes", "Cache:cacheTotalBytes"),
    ("current_log_bytes", "Cleaning:totalLogSize"),
    ("current_active_log_bytes", "Cleaning:activeLogSize"),
    ("current_reserved_log_bytes", "Cleaning:reservedLogSize"),
];
/// A state whose smallest value is shown. Negative until the cleaner has looked for the first time.
const UTILIZATION: (&str, &str) = ("current_log_utilization_percent", "Cleaning:minUtilization");

/// The tables of all replication nodes, each with how far it has been read.
#[derive(Debug, Default)]
pub(super) struct ReplicationStatistics {
    folders: Vec<PathBuf>,
    tables: BTreeMap<PathBuf, StatisticsTable>,
}

#[derive(Debug, Default)]
struct StatisticsTable {
    read_bytes: u64,
    columns: Vec<String>,
    totals: BTreeMap<&'static str, f64>,
    states: BTreeMap<&'static str, f64>,
}

impl ReplicationStatistics {
    /// Of the replication nodes that log into these folders.
    pub(super) fn new(folders: Vec<PathBuf>) -> ReplicationStatistics {
        ReplicationStatistics { folders, tables: BTreeMap::new() }
    }

    /// Reads what has been added, and returns totals and states of all nodes together. A node that does not run counts
    /// with its last states.
    ///
    /// # Errors
    /// When a table is there and can't be read.
    pub(super) fn figures(&mut self) -> io::Result<BTreeMap<String, f64>> {
        for folder in &self.folders {
            for path in tables_in(folder)? {
                self.tables.entry(path.clone()).or_default().read(&path)?;
            }
        }
        let mut figures = self.states();
        for (name, _) in TOTALS {
            let all = self.tables.values().filter_map(|table| table.totals.get(name));
            figures.insert((*name).to_owned(), all.sum());
        }
        Ok(figures)
    }

    /// How many replication nodes have a table.
    pub(super) fn tables(&self) -> u64 {
        self.tables.len() as u64
    }

    fn states(&self) -> BTreeMap<String, f64> {
        let mut figures = BTreeMap::new();
        for (name, _) in STATES {
            let all = self.tables.values().filter_map(|table| table.states.get(name));
            figures.insert((*name).to_owned(), all.sum());
        }
        let of_nodes = self.tables.values().filter_map(|table| table.states.get(UTILIZATION.0));
        if let Some(least) = of_nodes.copied().filter(|percent| *percent >= 0.0).reduce(f64::min) {
            figures.insert(UTILIZATION.0.to_owned(), least);
        }
        figures
    }
}

fn tables_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(OF_REPLICATION_NODE) && name.ends_with(TABLE) {
            found.push(path);
        }
    }
    Ok(found)
}

impl StatisticsTable {
    fn read(&mut self, path: &Path) -> io::Result<()> {
        let mut file = File::open(path)?;
        if file.metadata()?.len() < self.read_bytes {
            // It was begun anew.
            self.read_bytes = 0;
        }
        file.seek(SeekFrom::Start(self.read_bytes))?;
        let mut bytes = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut bytes)?;
        // The last line may be in flight.
        let complete = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |index| index + 1);
        self.read_bytes += complete as u64;
        String::from_utf8_lossy(&bytes[..complete]).lines().for_each(|line| self.take_in(line));
        Ok(())
    }

    fn take_in(&mut self, line: &str) {
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        if cells[0] == "time" {
            self.columns = cells.iter().map(|&cell| cell.to_owned()).collect();
            return;
        }
        // A row of another table than the head speaks of.
        if cells.len() != self.columns.len() {
            return;
        }
        let row: BTreeMap<&str, f64> = self
            .columns
            .iter()
            .zip(&cells)
            .filter_map(|(column, cell)| Some((column.as_str(), cell.parse::<f64>().ok()?)))
            .filter(|(_, number)| number.is_finite())
            .collect();
        for (name, columns) in TOTALS {
            let added: f64 = columns.iter().filter_map(|column| row.get(column)).sum();
            // A total never falls.
            *self.totals.entry(name).or_default() += added.max(0.0);
        }
        for (name, column) in STATES.iter().chain([&UTILIZATION]) {
            if let Some(&state) = row.get(column) {
                self.states.insert(name, state);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    const HEAD: &str = "time,Cache:cacheTotalBytes,Cleaning:minUtilization,Cleaning:nCleanerRuns,I/O:nSequentialWrites,I/O:nRandomWrites,Op:map\n";

    #[test]
    fn rows_are_added_up_and_the_last_states_count() {
        let folder = tempfile::TempDir::new().unwrap();
        let nodes = ["sn1", "sn2"].map(|name| folder.path().join(name));
        nodes.iter().for_each(|node| std::fs::create_dir(node).unwrap());
        let add = |node: usize, name: &str, text: &str| {
            let path = nodes[node].join(name);
            let mut file = File::options().create(true).append(true).open(path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        };
        let mut statistics = ReplicationStatistics::new(nodes.to_vec());
        assert_eq!(statistics.figures().unwrap()["cleaned_files"], 0.0);
        assert_eq!(statistics.tables(), 0);
        add(0, "rg1-rn1.je.stat.csv", HEAD);
        add(0, "rg1-rn1.je.stat.csv", "2026-11-23 18:00:01.000 UTC,100,-1,2,5,1, \n");
        add(0, "admin1.je.stat.csv", &format!("{HEAD}x,7,7,7,7,7,7\n"));
        add(1, "rg1-rn2.je.stat.csv", &format!("{HEAD}x,50,60,1,1, ,{{a:1;b:2}}\ny,60,70,0,1"));
        let figures = statistics.figures().unwrap();
        assert_eq!(statistics.tables(), 2);
        assert_eq!((figures["cleaned_files"], figures["log_writes"]), (3.0, 7.0));
        assert_eq!(
            (figures["current_cache_bytes"], figures["current_log_utilization_percent"]),
            (150.0, 60.0)
        );
        // The line that was in flight is complete now. A node that was started again has a head of its own.
        add(1, "rg1-rn2.je.stat.csv", ",1,\n");
        add(0, "rg1-rn1.je.stat.csv", "time,I/O:nRandomWrites,Cleaning:nCleanerRuns\nz,4,1\nz,4\nz,x,-5\n");
        let figures = statistics.figures().unwrap();
        assert_eq!((figures["cleaned_files"], figures["log_writes"]), (4.0, 13.0));
        assert_eq!(
            (figures["current_cache_bytes"], figures["current_log_utilization_percent"]),
            (160.0, 70.0)
        );
        std::fs::remove_dir_all(&nodes[0]).unwrap();
        assert!(statistics.figures().is_err());
    }
}
