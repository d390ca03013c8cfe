//! `underlay advise`

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub(crate) struct AdviseArguments {
    #[command(subcommand)]
    pub command: AdviseCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AdviseCommand {
    /// Into how many directories to split devices of unlike bandwidth under Hadoop
    Split(SplitArguments),
}

const SPLIT_HELP: &str = "\
HDFS and MapReduce fill their directories in turn, whatever lies below: with one directory per device,
a fast one gets no more than a slow one. Split into directories in proportion to bandwidth, each
device gets what it can take.

Example:
    underlay advise split hdd=6@120MB/s ssd=1@1300MB/s";

#[derive(Debug, Args)]
#[command(after_help = SPLIT_HELP)]
pub(crate) struct SplitArguments {
    /// Equal devices: what to call them, how many, and the sequential bandwidth of one
    #[arg(value_name = "NAME=COUNT@BANDWIDTH", required = true)]
    pub devices: Vec<String>,
    /// Where the devices are mounted: NAME-0, NAME-1 ... below this
    #[arg(long, value_name = "DIR", default_value = "/data")]
    pub root: String,
    /// For scripts
    #[arg(long)]
    pub json: bool,
}
