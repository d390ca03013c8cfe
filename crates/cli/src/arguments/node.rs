//! `underlay node`

use clap::{Args, Subcommand};

const AFTER_HELP: &str = "\
The system is that of the cell that `underlay run` or `underlay ycsb` measures now. If several run, name one by \
its process (--process).

Examples:
    underlay node list
    underlay node kill shard1-node2; underlay node start shard1-node2
    underlay node stop \"any replica\"";

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct NodeArguments {
    #[command(subcommand)]
    pub action: NodeAction,
    /// The process id of the run, where several run
    #[arg(long, global = true, value_name = "ID")]
    pub process: Option<u32>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NodeAction {
    /// The nodes of the system that runs now, and how they are
    List {
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Shut a node down as an operator would
    Stop {
        /// Its name, or which one: "any node", "master of shard 1"
        node: String,
    },
    /// Kill a node (SIGKILL), also one that is being started
    Kill {
        /// Its name, or which one: "any node", "master of shard 1"
        node: String,
    },
    /// Start a node that is away, and wait until it does its part again
    Start {
        /// Its name
        node: String,
    },
}
