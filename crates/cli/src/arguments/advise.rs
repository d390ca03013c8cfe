//! `underlay advise`

use std::path::PathBuf;

use clap::{Args, Subcommand};
use underlay_config::units;

#[derive(Debug, Args)]
pub(crate) struct AdviseArguments {
    #[command(subcommand)]
    pub command: AdviseCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AdviseCommand {
    /// Into how many directories to split devices of unlike bandwidth under Hadoop
    Split(SplitArguments),
    /// The cheapest storage of the catalogue that keeps to a latency at a rate, predicted from runs
    Storage(AdviseStorageArguments),
    /// Memory or devices: the throughput of each memory size, and when it is worth its price
    Memory(AdviseMemoryArguments),
}

/// Which of a run's cells the advice is about.
#[derive(Debug, Args)]
pub(crate) struct AboutArguments {
    /// Runs that were measured, on modelled storage
    #[arg(long, value_name = "RUN", required = true, num_args = 1..)]
    pub from: Vec<PathBuf>,
    /// Operations per second
    #[arg(long, value_name = "PER_SECOND", value_parser = units::parse_rate)]
    pub rate: f64,
    /// The data set, as in "2 TB" [default: the first that was measured]
    #[arg(long, value_name = "SIZE")]
    pub data: Option<String>,
    /// The system, where several were measured [default: the first]
    #[arg(long)]
    pub system: Option<String>,
    /// The mix [default: the first that was measured]
    #[arg(long)]
    pub mix: Option<String>,
    /// The distribution of requests [default: the first that was measured]
    #[arg(long)]
    pub distribution: Option<String>,
    /// For scripts
    #[arg(long)]
    pub json: bool,
}

const STORAGE_HELP: &str = "\
It considers every medium of the catalogue (as few devices as keep to the bound), every published layout, and a fast \
device in front of slower ones or beside them. Each is predicted in virtual time with what an operation of the \
measured system asks for. Prices are those of the catalogue, which `underlay media show` dates; cloud \
volumes are priced as three years' rent.

Example:
    underlay advise storage --from runs/quickstart-2026-11-25T0201 --rate 20000 --p99 10ms --data 600GB -o verify.toml";

#[derive(Debug, Args)]
#[command(after_help = STORAGE_HELP)]
pub(crate) struct AdviseStorageArguments {
    #[command(flatten)]
    pub about: AboutArguments,
    /// The limit of the 99th percentile of latency, as in 10ms
    #[arg(long, value_name = "TIME")]
    pub p99: String,
    /// The system's memory [default: as measured]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// Client threads [default: the most that were measured]
    #[arg(long)]
    pub threads: Option<u32>,
    /// No storage of more devices
    #[arg(long, value_name = "N", default_value_t = 24)]
    pub most_devices: u32,
    /// Write a page that draws them: price against latency
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write the study that measures the three cheapest
    #[arg(long, short = 'o', value_name = "FILE")]
    pub out: Option<PathBuf>,
}

const MEMORY_HELP: &str = "\
The share of operations that memory answers follows from the distribution of requests (uniform, zipfian, latest) and \
from what was measured. The five-minute rule says when a block is better kept in memory than read from a device, \
at the catalogue's prices. The price of memory moves fast, so give your own.

Example:
    underlay advise memory --from runs/quickstart-2026-11-25T0201 --rate 20000 --usd-per-gib 4";

#[derive(Debug, Args)]
#[command(after_help = MEMORY_HELP)]
pub(crate) struct AdviseMemoryArguments {
    #[command(flatten)]
    pub about: AboutArguments,
    /// The price of a GiB of memory, in US dollars [default: the catalogue's]
    #[arg(long, value_name = "USD", value_parser = units::parse_dollars)]
    pub usd_per_gib: Option<f64>,
    /// The storage below, by its name in the run's study [default: its baseline]
    #[arg(long, value_name = "NAME")]
    pub storage: Option<String>,
}

const SPLIT_HELP: &str = "\
HDFS and MapReduce fill their directories in turn, on any device: with one directory per device, \
a fast one gets no more than a slow one. Split into directories in proportion to bandwidth, each \
device gets its share.

Example:
    underlay advise split hdd=6@120MB/s ssd=1@1300MB/s";

#[derive(Debug, Args)]
#[command(after_help = SPLIT_HELP)]
pub(crate) struct SplitArguments {
    /// Equal devices: their name and number, and the sequential bandwidth of one
    #[arg(value_name = "NAME=COUNT@BANDWIDTH", required = true)]
    pub devices: Vec<String>,
    /// Where the devices are mounted: NAME-0, NAME-1 ... below this
    #[arg(long, value_name = "DIR", default_value = "/data")]
    pub root: String,
    /// For scripts
    #[arg(long)]
    pub json: bool,
}
