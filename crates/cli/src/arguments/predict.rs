//! `underlay predict` and `underlay explain`

use std::path::PathBuf;

use clap::Args;

use super::SelectionArguments;

const PREDICT_HELP: &str = "\
Every cell is answered in virtual time: what an operation asks for comes from measured cells of the same system \
and mix, and the models of the study's own devices answer it. Each figure comes with its 95 % interval. \
Questions beyond the measurements are refused, with the reason (exit code 1). \
`docs/prediction.md` says how it works and how wrong it is.

Example:
    underlay predict bigger.toml --from runs/quickstart-2026-11-25T0201";

#[derive(Debug, Args)]
#[command(after_help = PREDICT_HELP)]
pub(crate) struct PredictArguments {
    /// The study whose cells are asked about: it is not run
    #[arg(required_unless_present = "held_out")]
    pub study: Option<PathBuf>,
    /// Runs that were measured, on modelled storage
    #[arg(long, value_name = "RUN", required = true, num_args = 1..)]
    pub from: Vec<PathBuf>,
    #[command(flatten)]
    pub selection: SelectionArguments,
    /// Say how wrong predictions from these runs are: predict each of their cells with its storage, its size or its
    /// number of threads left out
    #[arg(long, conflicts_with_all = ["study", "only", "set", "repetitions", "short"])]
    pub held_out: bool,
    /// Predict its short form
    #[arg(long)]
    pub short: bool,
    /// For scripts
    #[arg(long)]
    pub json: bool,
}

const EXPLAIN_HELP: &str = "\
Each measured cell is simulated with its measured demands. Time that the simulation does not account \
for (locks, batching, anything that is neither a device nor a CPU) is called unexplained. Where it is negative, \
operations wait longer in the simulation than they did.

Example:
    underlay explain runs/quickstart-2026-11-25T0201 --only mix=a";

#[derive(Debug, Args)]
#[command(after_help = EXPLAIN_HELP)]
pub(crate) struct ExplainArguments {
    /// The run's directory [default: the newest below runs/]
    pub run: Option<PathBuf>,
    /// Only cells with these values, as in storage=nvme,mix=c
    #[arg(long, value_name = "DIMENSION=VALUE")]
    pub only: Vec<String>,
    /// For scripts
    #[arg(long)]
    pub json: bool,
}
