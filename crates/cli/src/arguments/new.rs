//! `underlay new`

use std::path::PathBuf;

use clap::Args;

const NEW_HELP: &str = "\
Examples:
    underlay new disks                                        RocksDB on a hard disk and an NVMe drive
    underlay new disks --system cassandra --storage hdd,nvme
    underlay new disks --storage hddx6,optane-p4800x,ebs      six striped disks, a product, a cloud volume
    underlay new disks --storage nvme,/mnt/disk               a model beside a disk that you have
    underlay new mine --like quickstart                       a copy of a study that comes with Underlay";

#[derive(Debug, Args)]
#[command(after_help = NEW_HELP)]
pub(crate) struct NewArguments {
    /// The study's name: up to 40 lowercase letters, digits and hyphens
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The file to write, which must not exist yet; - prints it [default: NAME.toml]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// rocksdb, je, je-ha, oracle-nosql, cassandra, accumulo, hadoop, spark, or null, which stores nothing
    #[arg(long, value_name = "SYSTEM", default_value = "rocksdb")]
    pub system: String,
    /// Storages to compare, the baseline first: hdd, ssd, nvme, optane, pmem, ebs, nvme-tcp; media and layouts from
    /// `underlay media list`; several devices as in hddx6; a medium's file; a directory of a disk that you have
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "hdd,nvme")]
    pub storage: Vec<String>,
    /// Copy a study that comes with Underlay: quickstart, accumulo-flash, cassandra-nvme-tcp, fio, mapreduce-ssd,
    /// oracle-nosql-flash, oracle-nosql-flash-je-ha, oracle-nosql-flash-rocksdb, oracle-nosql-flash-shards,
    /// oracle-nosql-flash-shards-je-ha, postgresql, spark-object-store, sqlite
    #[arg(long, value_name = "STUDY", conflicts_with_all = ["system", "storage"])]
    pub like: Option<String>,
}
