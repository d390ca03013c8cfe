//! `underlay new`

use std::path::PathBuf;

use clap::Args;
use underlay_systems::system::System;

use crate::bundled_studies;

const NEW_HELP: &str = "\
Examples:
    underlay new disks                                        RocksDB on a disk and an NVMe drive
    underlay new disks --system cassandra --storage hdd,nvme
    underlay new disks --storage hddx6,optane-p4800x,ebs      a stripe, a product, a cloud volume
    underlay new disks --storage nvme,/mnt/disk               a model beside a disk of yours
    underlay new mine --like quickstart                       a copy of a bundled study";

fn system_help() -> String {
    let (null_systems, systems): (Vec<_>, Vec<_>) =
        underlay_systems::all().partition(|system| system.capabilities().keeps_nothing);
    let names =
        |systems: Vec<&dyn System>| systems.iter().map(|one| one.name()).collect::<Vec<_>>().join(", ");
    format!("{}, or {}, which stores nothing", names(systems), names(null_systems))
}

fn like_help() -> String {
    let studies: Vec<&str> = bundled_studies::names().collect();
    format!("Copy a study that comes with Underlay: {}", studies.join(", "))
}

#[derive(Debug, Args)]
#[command(after_help = NEW_HELP)]
pub(crate) struct NewArguments {
    /// The study's name: up to 40 lowercase letters, digits and hyphens
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The file to write, which must not exist yet; - prints it [default: NAME.toml]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    #[arg(long, value_name = "SYSTEM", default_value = "rocksdb", help = system_help())]
    pub system: String,
    /// Storages to compare, the baseline first: hdd, ssd, nvme, optane, pmem, ebs, nvme-tcp; media and layouts from
    /// `underlay media list`; several devices as in hddx6; a medium's file; a directory of a disk that you have
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "hdd,nvme")]
    pub storage: Vec<String>,
    #[arg(long, value_name = "STUDY", conflicts_with_all = ["system", "storage"], help = like_help())]
    pub like: Option<String>,
}
