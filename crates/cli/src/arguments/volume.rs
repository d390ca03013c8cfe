//! `underlay volume`

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{LogLevel, SecretArguments};

#[derive(Debug, Args)]
pub(crate) struct VolumeArguments {
    #[command(subcommand)]
    pub command: VolumeCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// Serve the volumes of a pool over NVMe/TCP until Ctrl-C
    Serve(ServeVolumesArguments),
    /// Create a volume in a pool and serve it at once
    Create(CreateVolumeArguments),
    /// List a pool's volumes: their data, the space that they use, and connected hosts
    List {
        /// The pool's file
        pool: PathBuf,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Change a volume's size; connected hosts are notified
    Resize {
        /// The pool's file
        pool: PathBuf,
        /// The volume
        name: String,
        /// Its new size, as in "32 GiB"
        #[arg(value_name = "SIZE")]
        capacity: String,
        /// Allow it to become smaller; data beyond its new end is lost
        #[arg(long)]
        shrink: bool,
    },
    /// Keep a volume's current content as a volume of its own, which shares its space
    Snapshot {
        /// The pool's file
        pool: PathBuf,
        /// The volume
        name: String,
        /// The snapshot's name
        snapshot: String,
        /// Allow writing to it, which does not change the original volume
        #[arg(long)]
        writable: bool,
    },
    /// Delete a volume or snapshot with all that it holds
    Delete {
        /// The pool's file
        pool: PathBuf,
        /// The volume
        name: String,
        /// Even while hosts are connected to it
        #[arg(long)]
        connected: bool,
    },
    /// Bring a device that was left out up to date, and use it again
    Resync {
        /// The pool's file
        pool: PathBuf,
        /// The device, as `volume list` names it
        device: String,
    },
    /// Verify that every extent of a pool belongs to the right volume
    Check {
        /// The pool's file
        pool: PathBuf,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ServeVolumesArguments {
    /// The pool's file
    pub pool: PathBuf,
    /// Listen here instead of where the file says
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<std::net::SocketAddr>,
    /// Fast-forward: the devices complete at once
    #[arg(long)]
    pub immediate: bool,
    /// Create a missing pool even on devices that hold other data, which is lost. An existing pool is kept
    #[arg(long)]
    pub format: bool,
    /// Once it serves, print its volumes as one JSON object on one line
    #[arg(long)]
    pub json: bool,
    /// Log this level and above on standard error
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: LogLevel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum VolumeCodec {
    None,
    Lz4,
    Zstd,
}

#[derive(Debug, Args)]
pub(crate) struct CreateVolumeArguments {
    /// The pool's file
    pub pool: PathBuf,
    /// The volume: lowercase letters, digits and hyphens
    pub name: String,
    /// Its size, as in "16 GiB": it takes up space only as it is written to
    #[arg(long, value_name = "SIZE")]
    pub capacity: String,
    /// How its data is stored
    #[arg(long, value_name = "CODEC", default_value = "none")]
    pub compress: VolumeCodec,
    /// Keep two copies, on different devices
    #[arg(long)]
    pub mirror: bool,
    /// At most this many requests a second
    #[arg(long, value_name = "PER_SECOND")]
    pub iops: Option<u64>,
    /// At most this bandwidth, as in "400 MB/s"
    #[arg(long, value_name = "BANDWIDTH")]
    pub bandwidth: Option<String>,
    /// The qualified name of a host that may connect; may be given several times [default: any host]
    #[arg(long = "host", value_name = "NQN")]
    pub hosts: Vec<String>,
    // A variable is one of the server's environment; a file is read by the server, too.
    #[command(flatten)]
    pub secrets: SecretArguments,
    /// Let several hosts write at the same time: only for a cluster file system
    #[arg(long)]
    pub shared: bool,
}
