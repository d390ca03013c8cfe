//! `underlay fault`

use clap::{Args, Subcommand, ValueEnum};
use underlay_config::units;

const AFTER_HELP: &str = "\
Examples:
    underlay fault list
    underlay fault /mnt/slow slow --factor 10 --for \"30 s\"
    underlay fault hdd-7200-sata.0 errors --rate 0.01 --operation read --extent 0..1GiB
    underlay fault /mnt/slow power-cut --torn --reordered; underlay fault /mnt/slow return";

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct FaultArguments {
    /// The directory that the storage is mounted on, for all of its devices, or the name of one device
    pub target: Option<String>,
    #[command(subcommand)]
    pub action: FaultAction,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FaultAction {
    /// List the storages served on this machine, with their faults
    List {
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Requests fail with an I/O error
    Errors {
        #[command(flatten)]
        which: WhichRequests,
        /// Only requests that touch these bytes of the device: 0..1GiB
        #[arg(long, value_name = "FROM..TO")]
        extent: Option<String>,
        #[command(flatten)]
        time: FaultTime,
    },
    /// Reads silently return data with a wrong bit
    Corrupt {
        /// The fraction of reads affected: 0.01 is one in a hundred, 1 is all
        #[arg(long, value_parser = units::parse_share)]
        rate: f64,
        /// Only bits of these bytes of the device: 0..1GiB
        #[arg(long, value_name = "FROM..TO")]
        extent: Option<String>,
        /// Seed for choosing them
        #[arg(long, default_value_t = 1)]
        seed: u64,
        #[command(flatten)]
        time: FaultTime,
    },
    /// Requests take longer than the medium's own time
    Spikes {
        #[command(flatten)]
        which: WhichRequests,
        /// By how much: "200 ms"
        #[arg(long, value_name = "TIME")]
        latency: String,
        #[command(flatten)]
        time: FaultTime,
    },
    /// Everything takes longer
    Slow {
        /// How many times longer
        #[arg(long, value_parser = units::parse_factor)]
        factor: f64,
        #[command(flatten)]
        time: FaultTime,
    },
    /// The device is gone, as if its cable was pulled; `return` brings it back
    Vanish {
        #[command(flatten)]
        time: FaultTime,
    },
    /// Nothing new can be stored: a thin device whose pool is empty
    Full {
        #[command(flatten)]
        time: FaultTime,
    },
    /// The device lies: it answers flushes and leaves everything in its buffer, for a power cut to take
    IgnoreFlushes {
        #[command(flatten)]
        time: FaultTime,
    },
    /// Cut the power: only a part of the unflushed writes is there when it returns
    PowerCut {
        /// Writes of several blocks may be there in part
        #[arg(long)]
        torn: bool,
        /// Any unflushed write may be lost, not only the last ones
        #[arg(long)]
        reordered: bool,
        /// The seed that decides which writes are lost
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Bring back a vanished device; after a power cut, power is back and the file system is mounted again
    #[command(visible_alias = "power-on")]
    Return,
    /// Remove all faults; a power cut stays in effect
    Clear,
}

#[derive(Debug, Args)]
pub(crate) struct WhichRequests {
    /// The fraction of requests affected: 0.01 is one in a hundred, 1 is all
    #[arg(long, value_parser = units::parse_share)]
    pub rate: f64,
    /// Only these; may be given several times [default: all]
    #[arg(long, value_name = "OPERATION")]
    pub operation: Vec<FaultOperation>,
    /// Seed for choosing them
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

#[derive(Debug, Args)]
pub(crate) struct FaultTime {
    /// How long, in modelled time: "10 s" [default: until it is cleared]
    #[arg(long = "for", value_name = "TIME")]
    pub duration: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FaultOperation {
    Read,
    Write,
    Flush,
    Discard,
}
