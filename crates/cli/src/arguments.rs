//! The command line's arguments.

mod advise;
mod console;
mod fault;
mod new;
mod node;
mod predict;
mod probing;
mod rate;
mod secrets;
mod volume;
mod worker;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use underlay_config::units;

pub(crate) use advise::{
    AboutArguments, AdviseArguments, AdviseCommand, AdviseMemoryArguments, AdviseStorageArguments,
    SplitArguments,
};
pub(crate) use console::{ConsoleArguments, ServedAt};
pub(crate) use fault::{FaultAction, FaultArguments, FaultOperation, FaultTime, WhichRequests};
pub(crate) use new::NewArguments;
pub(crate) use node::{NodeAction, NodeArguments};
pub(crate) use predict::{ExplainArguments, PredictArguments};
pub(crate) use probing::{MeasureArguments, ServeArguments, VerifyArguments};
pub(crate) use rate::RateArgument;
pub(crate) use secrets::SecretArguments;
pub(crate) use volume::{
    CreateVolumeArguments, ServeVolumesArguments, VolumeArguments, VolumeCodec, VolumeCommand,
};
pub(crate) use worker::{TrustArguments, WorkerArguments, WorkersArguments};

/// `0.2.0 (commit 1a2b3c4d5e6f, release build for x86_64-unknown-linux-gnu)`
const VERSION: &str = env!("UNDERLAY_VERSION");

/// How much a long-lived command logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
}

const AFTER_HELP: &str = "\
Exit codes:
    0  done
    1  finished with problems: a cell failed, was skipped or cannot run here,
       operations failed, a fitted medium is far from its disk
    2  a mistake in an argument, a study or a medium
    3  this host lacks something: see `underlay doctor`
    4  a system, its storage or a worker failed, or standard output failed
   70  a bug in underlay
  130  stopped by Ctrl-C or SIGTERM; finished work is kept";

/// What does different storage do to my data system?
#[derive(Debug, Parser)]
#[command(name = "underlay", version = VERSION, after_help = AFTER_HELP, max_term_width = 100)]
pub(crate) struct CliArguments {
    #[command(subcommand)]
    pub command: CliCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    /// Write a study to start from
    New(NewArguments),
    /// Run a study: every system on every storage under every workload, then compare
    Run(RunArguments),
    /// Find every mistake in a study without running it
    Check(CheckArguments),
    /// Show a run, or compare two runs side by side: HTML by default, or CSV or JSON for scripts
    Report(ReportArguments),
    /// Watch runs in a browser while they happen, and command them
    Console(ConsoleArguments),
    /// Answer a study's cells from runs on other storages, without running it
    Predict(PredictArguments),
    /// Show where operations spent their time, and the gain from faster devices, more memory or more cores
    Explain(ExplainArguments),
    /// Say what a key of a study takes, its default and what it means
    ExplainKey {
        /// A key or a section, as in duration, run.duration or run; all are listed without one
        key: Option<String>,
    },
    /// Load or run one YCSB workload on one system, without a study
    Ycsb(YcsbArguments),
    /// Generate a part of a load that another host coordinates (`underlay ycsb --workers`)
    Worker(WorkerArguments),
    /// Give any program a modelled disk: a directory that is as slow as the medium
    Mount(MountArguments),
    /// Let a device fail while a program uses it: errors, wrong bits, slowness, a pulled cable, a power cut
    Fault(FaultArguments),
    /// Stop, kill and start nodes of a system while it is measured
    Node(NodeArguments),
    /// Volumes of a pool of devices, served over NVMe/TCP
    Volume(VolumeArguments),
    /// An S3 gateway: cache, write-back and O(1) rename in front of an S3 store or a directory
    #[command(
        disable_help_flag = true,
        after_help = "It is a program of its own, underlay-gateway: `underlay gateway --help` is that one's."
    )]
    Gateway {
        /// Those of underlay-gateway: init, serve, top, check, repair, drain
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<std::ffi::OsString>,
    },
    /// The catalogue of media
    Media(MediaArguments),
    /// Which storage to buy, memory or devices, and how to lay out unlike devices
    Advise(AdviseArguments),
    /// Show what this host can do, and how to get the rest
    Doctor {
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Remove a killed run's leftovers: mounts, loop devices, processes, cgroups, files
    Clean,
    /// Print a JSON Schema: of a study, of a cell's record, or of a command's --json output
    Schema {
        /// What the schema describes
        #[arg(value_enum, default_value = "record")]
        subject: SchemaSubject,
        /// Write all schemas to this directory, each to a file of its own
        #[arg(long, value_name = "DIR", conflicts_with = "subject")]
        dir: Option<PathBuf>,
    },
    /// Print a completion script for a shell
    #[command(
        after_help = "bash: underlay completions bash > ~/.local/share/bash-completion/completions/underlay"
    )]
    Completions {
        /// The shell that the completions are for
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Write the man pages, one for each command, to a directory
    Man {
        /// Created if missing
        dir: PathBuf,
    },
    #[command(hide = true)]
    DeviceDaemon {
        #[arg(long)]
        config: PathBuf,
    },
    #[command(hide = true)]
    Engine {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<std::ffi::OsString>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SchemaSubject {
    /// A study's file, for editors that complete and check it
    Study,
    /// A cell's record, as `underlay run` writes it
    Record,
    /// `underlay report --json`
    Report,
    /// `underlay report A B --json`
    Comparison,
    /// `underlay check --json`
    Check,
    /// `underlay doctor --json`
    Doctor,
    /// `underlay predict --json`
    Predict,
    /// `underlay predict --held-out --json`
    HeldOut,
    /// `underlay explain --json`
    Explain,
    /// `underlay advise storage --json`
    AdviseStorage,
    /// `underlay advise memory --json`
    AdviseMemory,
}

/// A part of a study, or another form of it.
#[derive(Debug, Args)]
pub(crate) struct SelectionArguments {
    /// Only cells with these values, as in storage=nvme,mix=c; name a dimension again to add a value
    #[arg(long, value_name = "DIMENSION=VALUE")]
    pub only: Vec<String>,
    /// Override a key of the study, as in scale.data=100
    #[arg(long, value_name = "KEY.PATH=VALUE")]
    pub set: Vec<String>,
    /// Override the study's number of repetitions (1 to 1000)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000), allow_negative_numbers = true)]
    pub repetitions: Option<u32>,
}

impl SelectionArguments {
    pub(crate) fn limit(&self) -> underlay_record::CellLimit {
        underlay_record::CellLimit { only: self.only.clone(), repetitions: self.repetitions }
    }
}

#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// The study's file [default: studies/quickstart.toml where that is, with --resume the study that the run holds]
    pub study: Option<PathBuf>,
    /// Where to write the run: a directory that is new or empty [default: runs/NAME-TIME]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Continue an interrupted run [default: the newest below runs/]
    #[arg(long, value_name = "RUN", num_args = 0..=1, conflicts_with_all = ["out", "short", "set"])]
    pub resume: Option<Option<PathBuf>>,
    #[command(flatten)]
    pub selection: SelectionArguments,
    /// Run the study's short form, if it has one
    #[arg(long)]
    pub short: bool,
    /// Store disk images here during the run [default: below the run]
    #[arg(long, value_name = "DIR")]
    pub work: Option<PathBuf>,
    /// Override the slow-motion factor; `warmup` and `duration` keep the study's clock, modelled or wall time [default:
    /// the study's, or the smallest that this host keeps up with]
    #[arg(long, value_name = "FACTOR", conflicts_with = "resume", value_parser = units::parse_factor)]
    pub time: Option<f64>,
    /// No live progress
    #[arg(long, short)]
    pub quiet: bool,
    /// Serve the console while it runs, and say where; afterwards it shows the report
    #[arg(long)]
    pub console: bool,
    /// How long the console stays after the run, as in `10 min`; `0 s` ends both together [default: until Ctrl-C, or 1
    /// minute if no terminal is in the foreground]
    #[arg(long, value_name = "TIME", requires = "console")]
    pub console_stays: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArguments {
    /// The study's file
    pub study: PathBuf,
    #[command(flatten)]
    pub selection: SelectionArguments,
    /// Check its short form
    #[arg(long)]
    pub short: bool,
    /// Print the cells that it would run as JSON, or its mistakes: {"errors": [{"file", "line", "column", "message",
    /// ...}]}
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReportArguments {
    /// The run's directory [default: the newest below runs/]; given two, each cell of the second is compared with the
    /// same cell of the first
    #[arg(num_args = 0..=2, value_name = "RUN")]
    pub runs: Vec<PathBuf>,
    /// Open the HTML file in a browser
    #[arg(long, conflicts_with_all = ["csv", "json"])]
    pub open: bool,
    /// One line a cell, comma-separated, to standard output; of two runs one line a figure
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// The whole report as JSON, for scripts, to standard output
    #[arg(long)]
    pub json: bool,
    /// Where to write the HTML [default: report.html in the run's directory; of two runs against.html in that of the
    /// second]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "csv"])]
    pub out: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum YcsbPhase {
    /// Insert the records
    Load,
    /// Run the mix on loaded records
    Run,
}

#[derive(Debug, Args)]
pub(crate) struct YcsbArguments {
    /// Load the records, or run operations on them
    pub phase: YcsbPhase,
    /// The system: rocksdb, je, je-ha, oracle-nosql, cassandra or accumulo; or null, which does nothing and shows the
    /// generator's limit. Hadoop and Spark run jobs, not YCSB: use a study
    pub system: String,
    /// Where the system keeps its data: any directory, including one on a modelled disk (`underlay mount`). `null`
    /// needs none, and neither does a cluster that is already running (`--set endpoints=HOST:PORT` of cassandra, `--set
    /// zookeepers=HOST:PORT` of accumulo)
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// A file of CoreWorkload properties; may be given several times
    #[arg(short = 'P', value_name = "FILE")]
    pub property_files: Vec<PathBuf>,
    /// A single property; overrides those in files: -p recordcount=1000000
    #[arg(short = 'p', value_name = "KEY=VALUE")]
    pub properties: Vec<String>,
    /// The mix, if the properties name none: a, b, c, d, e, f or delete
    #[arg(long, value_name = "MIX")]
    pub mix: Option<String>,
    /// Client threads, overrides the property threadcount
    #[arg(long)]
    pub threads: Option<u32>,
    /// Operations per second, over the property target: an open loop, latency from the intended start. 1000,2000,4000
    /// for steps of equal length, 1000..4000 for a ramp
    #[arg(long, value_name = "PER_SECOND", allow_hyphen_values = true)]
    pub rate: Option<RateArgument>,
    /// Find the highest rate that keeps to a latency: p99=10ms, or p99=10ms,p99.9=50ms for both. The search starts at
    /// --rate and goes up to 1,000 times that
    #[arg(long, value_name = "PERCENTILE=TIME", conflicts_with_all = ["hlog", "raw", "json", "duration"], requires = "rate")]
    pub find_rate: Option<String>,
    /// Seconds that each step of such a search is measured; preceded by a quarter of that as warm-up
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 10.0,
        value_parser = units::parse_seconds,
        requires = "find_rate",
        allow_hyphen_values = true
    )]
    pub step: f64,
    /// How operations of a rate follow one another [default: constant]
    #[arg(long, value_enum, value_name = "KIND")]
    pub arrivals: Option<YcsbArrivals>,
    /// Seconds to measure [default: until operationcount, or 60]
    #[arg(long, value_name = "SECONDS", value_parser = units::parse_seconds, allow_hyphen_values = true)]
    pub duration: Option<f64>,
    /// Seconds of warm-up before the measurement
    #[arg(long, value_name = "SECONDS", value_parser = units::parse_seconds, default_value_t = 0.0, allow_hyphen_values = true)]
    pub warmup: f64,
    /// The memory budget of the system with its page cache [default: 512 MiB]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// A setting of the system: --set compression=lz4
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
    /// Report progress every `status.interval` seconds (10), as YCSB does
    #[arg(short = 's')]
    pub status: bool,
    /// Prefix of each progress line (-s)
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    /// Write the latencies of every interval to this file, which viewers of HdrHistogram logs open
    #[arg(long, value_name = "FILE")]
    pub hlog: Option<PathBuf>,
    /// Write every operation to this file, as Parquet
    #[arg(long, value_name = "FILE")]
    pub raw: Option<PathBuf>,
    /// Print the measurement as JSON instead of YCSB's text
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub from: WorkersArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum YcsbArrivals {
    /// Evenly
    Constant,
    /// Independently of one another, so that bursts occur
    Poisson,
}

/// A device's state before its first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum InitialStateArgument {
    Fresh,
    Steady,
}

#[derive(Debug, Args)]
pub(crate) struct MountArguments {
    /// A medium of the catalogue, or several striped by 64 KiB: hdd-7200-sata, nvme-9300-maxx2; a layout of the
    /// catalogue: accumulo-hdd; a medium's file; with --storage a study's; or a volume of a server:
    /// nvme-tcp://127.0.0.1:4420/data
    #[arg(value_name = "MEDIUM[xN]")]
    pub medium: String,
    /// The directory to mount on; created if missing
    pub dir: PathBuf,
    /// Mount this storage of a study, with its layers and in its scale; several volumes become subdirectories of DIR
    #[arg(long, value_name = "NAME", conflicts_with_all = ["size", "filesystem", "initial"])]
    pub storage: Option<String>,
    /// The size of each device; a cloud volume's rates follow it [default: 8 GiB of the medium, or the kept disk's
    /// size]
    #[arg(long, value_name = "SIZE")]
    pub size: Option<String>,
    /// Slow motion: every latency this many times longer [default: 1, or the study's]
    #[arg(long, value_name = "FACTOR", value_parser = units::parse_factor)]
    pub time: Option<f64>,
    /// xfs or ext4 [default: xfs, or that of the kept disk or the volume]
    #[arg(long, value_name = "NAME")]
    pub filesystem: Option<String>,
    /// Create a new file system; this erases the kept disk or the volume
    #[arg(long)]
    pub format: bool,
    /// fuse-uring+loop, fuse+loop and so on, as `underlay doctor` lists them [default: the best that works here]
    #[arg(long, value_name = "NAME")]
    pub attachment: Option<String>,
    /// Keep the disk's content in this directory, and reuse it next time; otherwise it is deleted at the end
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// Fast-forward: the devices complete at once, to fill a disk that is kept
    #[arg(long)]
    pub immediate: bool,
    /// A flash device's state: fresh from the factory, or overwritten until it no longer slows down
    #[arg(long, value_name = "STATE", default_value = "steady")]
    pub initial: InitialStateArgument,
    /// Keep the data for power cuts (`underlay fault DIR power-cut`)
    #[arg(long)]
    pub power_cut: bool,
    /// Of a server's volume: the qualified name by which this host is known there [default: the host's own]
    #[arg(long, value_name = "NQN")]
    pub host_nqn: Option<String>,
    #[command(flatten)]
    pub secrets: SecretArguments,
    /// Write the devices' statistics to this file, as JSON, at the end
    #[arg(long, value_name = "FILE")]
    pub activity: Option<PathBuf>,
    /// A command to run on it; without one the disk stays until Ctrl-C
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<std::ffi::OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct MediaArguments {
    #[command(subcommand)]
    pub command: MediaCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MediaCommand {
    /// All media and layouts, a line each
    List {
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// A medium or layout: every number's source, published figures beside the model's
    Show {
        /// Its name, as `underlay media list` prints it
        name: String,
    },
    /// Find every mistake in a medium's or layout's file, and compare a model with its published figures
    Check {
        /// A medium of your own, in TOML
        file: PathBuf,
    },
    /// Media side by side under the same loads: throughput and latency at rising queue depths, in virtual time
    Compare(CompareMediaArguments),
    /// Profile a real disk, and fit a medium to it
    Measure(MeasureArguments),
    /// Probe a modelled device on this machine, and show how far it is from its model and its published figures
    Verify(VerifyArguments),
    /// A bare modelled device for scripts: prints its path; `begin` and `end` on its input frame a measurement
    #[command(hide = true)]
    Serve(ServeArguments),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  underlay media compare hdd-7200-sata ssd-sata nvme-p4500
  underlay media compare samsung-pm9a3-960 my-disk.toml --html curves.html")]
pub(crate) struct CompareMediaArguments {
    /// Two to six media: names of the catalogue, or files that end in .toml. The first is the baseline
    #[arg(required = true, num_args = 2..=6, value_name = "MEDIUM")]
    pub media: Vec<String>,
    /// Also write curves of latency over throughput to this file, as a page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// A number of the command line in a message: hundreds of digits are written as they were typed.
pub(crate) fn as_typed(number: f64) -> String {
    if number.is_finite() && number.abs() >= 1e9 { format!("{number:e}") } else { number.to_string() }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    /// Every command that a user sees, with those below it.
    fn all_commands() -> Vec<clap::Command> {
        let mut found = Vec::new();
        let mut left = vec![CliArguments::command()];
        while let Some(command) = left.pop() {
            left.extend(command.get_subcommands().filter(|below| !below.is_hide_set()).cloned());
            found.push(command);
        }
        found
    }

    #[test]
    fn paragraphs_of_help_are_wrapped_by_the_terminal_alone() {
        for command in all_commands() {
            let Some(text) = command.get_after_help() else { continue };
            let text = text.to_string();
            let lines: Vec<&str> = text.lines().collect();
            for pair in lines.windows(2) {
                let is_prose =
                    |line: &str| !line.is_empty() && !line.starts_with(' ') && !line.ends_with(':');
                let is_wrapped_here = pair.iter().all(|line| is_prose(line));
                assert!(!is_wrapped_here, "{}: {pair:?}", command.get_name());
            }
            // 80 columns would break tables.
            let long = lines.iter().find(|line| line.starts_with(' ') && line.chars().count() > 120);
            assert_eq!(long, None, "{}", command.get_name());
            assert!(!text.contains('\\'), "{}: {text}", command.get_name());
        }
    }

    #[test]
    fn arguments_have_help() {
        for command in all_commands() {
            for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
                let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
                assert!(!help.is_empty(), "{} {}", command.get_name(), argument.get_id());
                assert!(!help.contains('\\'), "{}: {help}", command.get_name());
            }
        }
    }

    #[test]
    fn limits_of_numbers_are_told() {
        let refused =
            CliArguments::try_parse_from(["underlay", "run", "--repetitions", "-1"]).unwrap_err().to_string();
        assert!(refused.contains("1..=1000"), "{refused}");
    }
}
