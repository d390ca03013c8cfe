//! The table of records, and the statements on it.

use std::collections::BTreeMap;

use super::config::{CassandraCompaction, CassandraCompression, CassandraConfig, TableLayout};

pub(super) const KEYSPACE: &str = "ycsb";

/// The one table: its name, its columns and how it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CassandraTable {
    pub name: &'static str,
    key: &'static str,
    column_type: &'static str,
    pub fields: u32,
    compression: BTreeMap<String, String>,
    compaction: BTreeMap<String, String>,
    replication: String,
}

/// A kind of request to the table. Each is prepared once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum TableRequest {
    ReadAll,
    ReadOne(u32),
    ScanAll,
    ScanOne(u32),
    /// Scans that also return keys.
    ScanRecordsAll,
    ScanRecordsOne(u32),
    /// All fields. Those without a value are bound to null.
    Insert,
    /// These fields. If there are none, the record exists afterwards.
    Update(Vec<u32>),
    Delete,
}

impl CassandraTable {
    pub(super) fn new(config: &CassandraConfig, fields: u32) -> CassandraTable {
        let (name, key, column_type) = match config.table_layout {
            TableLayout::Fields => ("records", "id", "blob"),
            TableLayout::YcsbUsertable => ("usertable", "y_id", "varchar"),
        };
        let options = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect::<BTreeMap<_, _>>()
        };
        let chunk = config.chunk_kib.to_string();
        let compressed = |class: &str| options(&[("class", class), ("chunk_length_in_kb", &chunk)]);
        let compaction = match config.compaction {
            CassandraCompaction::Stcs => "SizeTieredCompactionStrategy",
            CassandraCompaction::Lcs => "LeveledCompactionStrategy",
            CassandraCompaction::Ucs => "UnifiedCompactionStrategy",
            CassandraCompaction::Twcs => "TimeWindowCompactionStrategy",
        };
        let copies = config.replication_factor;
        CassandraTable {
            name,
            key,
            column_type,
            fields,
            compression: match config.compression {
                CassandraCompression::Lz4 => compressed("LZ4Compressor"),
                CassandraCompression::Zstd => compressed("ZstdCompressor"),
                CassandraCompression::Snappy => compressed("SnappyCompressor"),
                CassandraCompression::None => options(&[("enabled", "false")]),
            },
            compaction: options(&[("class", compaction)]),
            replication: match &config.datacenter {
                Some(datacenter) => {
                    format!("{{'class': 'NetworkTopologyStrategy', '{datacenter}': {copies}}}")
                }
                None => format!("{{'class': 'SimpleStrategy', 'replication_factor': {copies}}}"),
            },
        }
    }

    pub(super) fn create_keyspace(&self) -> String {
        format!("CREATE KEYSPACE IF NOT EXISTS {KEYSPACE} WITH replication = {}", self.replication)
    }

    pub(super) fn create(&self) -> String {
        let kind = self.column_type;
        let mut columns = format!("{} {kind} PRIMARY KEY", self.key);
        for field in 0..self.fields {
            columns.push_str(&format!(", field{field} {kind}"));
        }
        format!("CREATE TABLE IF NOT EXISTS {KEYSPACE}.{} ({columns}) WITH {}", self.name, self.options())
    }

    /// Gives an existing table the options of this one.
    pub(super) fn alter(&self) -> String {
        format!("ALTER TABLE {KEYSPACE}.{} WITH {}", self.name, self.options())
    }

    fn options(&self) -> String {
        let map = |options: &BTreeMap<String, String>| {
            let pairs: Vec<String> =
                options.iter().map(|(key, value)| format!("'{key}': '{value}'")).collect();
            format!("{{{}}}", pairs.join(", "))
        };
        format!("compression = {} AND compaction = {}", map(&self.compression), map(&self.compaction))
    }

    /// How an existing table with these options differs from this one: (setting, its value).
    pub(super) fn differences(
        &self,
        compression: &BTreeMap<String, String>,
        compaction: &BTreeMap<String, String>,
    ) -> Vec<(&'static str, String)> {
        // Cassandra returns class names with their package.
        let short = |value: &String| value.rsplit('.').next().unwrap_or_default().to_owned();
        let option = |options: &BTreeMap<String, String>, key: &str| options.get(key).map(short);
        let mut differences = Vec::new();
        let mut compare =
            |setting, key, here: &BTreeMap<String, String>, actual: &BTreeMap<String, String>| {
                if let (Some(wanted), found) = (option(here, key), option(actual, key))
                    && found.as_ref() != Some(&wanted)
                {
                    differences.push((setting, found.unwrap_or_else(|| "none".to_owned())));
                }
            };
        compare("compression", "class", &self.compression, compression);
        compare("compression", "enabled", &self.compression, compression);
        compare("chunk_kib", "chunk_length_in_kb", &self.compression, compression);
        compare("compaction", "class", &self.compaction, compaction);
        differences
    }

    /// The statement for a question. Fields that the table doesn't have are left out of reads.
    pub(super) fn statement(&self, question: &TableRequest) -> String {
        let (key, table) = (self.key, format!("{KEYSPACE}.{}", self.name));
        let columns = |fields: &[u32]| {
            let fields = fields.iter().filter(|&&field| field < self.fields);
            let names: Vec<String> = fields.map(|field| format!("field{field}")).collect();
            if names.is_empty() { key.to_owned() } else { names.join(", ") }
        };
        let all: Vec<u32> = (0..self.fields).collect();
        // Like YCSB's binding: in the order of the keys' hashes, starting at the hash of the first key.
        let from_key = format!("WHERE token({key}) >= token(?) LIMIT ?");
        match question {
            TableRequest::ReadAll => format!("SELECT {} FROM {table} WHERE {key} = ?", columns(&all)),
            TableRequest::ReadOne(field) => {
                format!("SELECT {} FROM {table} WHERE {key} = ?", columns(&[*field]))
            }
            TableRequest::ScanAll => format!("SELECT {} FROM {table} {from_key}", columns(&all)),
            TableRequest::ScanOne(field) => format!("SELECT {} FROM {table} {from_key}", columns(&[*field])),
            TableRequest::ScanRecordsAll => {
                format!("SELECT {key}, {} FROM {table} {from_key}", columns(&all))
            }
            TableRequest::ScanRecordsOne(field) => {
                format!("SELECT {key}, {} FROM {table} {from_key}", columns(&[*field]))
            }
            TableRequest::Update(fields) if fields.is_empty() => {
                format!("INSERT INTO {table} ({key}) VALUES (?)")
            }
            TableRequest::Update(fields) => {
                let set: Vec<String> = fields.iter().map(|field| format!("field{field} = ?")).collect();
                format!("UPDATE {table} SET {} WHERE {key} = ?", set.join(", "))
            }
            TableRequest::Insert => {
                let names: String = all.iter().map(|field| format!(", field{field}")).collect();
                format!("INSERT INTO {table} ({key}{names}) VALUES (?{})", ", ?".repeat(all.len()))
            }
            TableRequest::Delete => format!("DELETE FROM {table} WHERE {key} = ?"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_those_of_ycsb() {
        let config =
            CassandraConfig { table_layout: TableLayout::YcsbUsertable, ..CassandraConfig::default() };
        let table = CassandraTable::new(&config, 2);
        let statements = [
            TableRequest::ReadAll,
            TableRequest::ReadOne(1),
            TableRequest::ReadOne(2),
            TableRequest::ScanAll,
            TableRequest::Insert,
            TableRequest::Update(vec![1, 0]),
            TableRequest::Update(vec![]),
            TableRequest::Delete,
        ]
        .map(|question| table.statement(&question));
        let expected = [
            "SELECT field0, field1 FROM ycsb.usertable WHERE y_id = ?",
            "SELECT field1 FROM ycsb.usertable WHERE y_id = ?",
            "SELECT y_id FROM ycsb.usertable WHERE y_id = ?",
            "SELECT field0, field1 FROM ycsb.usertable WHERE token(y_id) >= token(?) LIMIT ?",
            "INSERT INTO ycsb.usertable (y_id, field0, field1) VALUES (?, ?, ?)",
            "UPDATE ycsb.usertable SET field1 = ?, field0 = ? WHERE y_id = ?",
            "INSERT INTO ycsb.usertable (y_id) VALUES (?)",
            "DELETE FROM ycsb.usertable WHERE y_id = ?",
        ];
        assert_eq!(statements, expected);
        assert_eq!(
            table.create(),
            "CREATE TABLE IF NOT EXISTS ycsb.usertable (y_id varchar PRIMARY KEY, field0 varchar, field1 varchar) WITH \
             compression = {'chunk_length_in_kb': '16', 'class': 'LZ4Compressor'} AND \
             compaction = {'class': 'SizeTieredCompactionStrategy'}"
        );
    }

    #[test]
    fn another_way_of_storing_is_noticed() {
        let table = CassandraTable::new(&CassandraConfig::default(), 1);
        let map = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect::<BTreeMap<_, _>>()
        };
        let lz4 =
            map(&[("class", "org.apache.cassandra.io.compress.LZ4Compressor"), ("chunk_length_in_kb", "16")]);
        let stcs = map(&[
            ("class", "org.apache.cassandra.db.compaction.SizeTieredCompactionStrategy"),
            ("max_threshold", "32"),
        ]);
        assert_eq!(table.differences(&lz4, &stcs), []);
        let none = map(&[("enabled", "false")]);
        let found = table.differences(&none, &stcs);
        assert_eq!(found[0], ("compression", "none".to_owned()));
        let uncompressed = CassandraTable::new(
            &CassandraConfig { compression: CassandraCompression::None, ..CassandraConfig::default() },
            1,
        );
        assert_eq!(uncompressed.differences(&none, &stcs), []);
        assert_eq!(uncompressed.differences(&lz4, &stcs).len(), 1);
    }
}
