//! The command line of `underlay-gateway`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand, ValueEnum};

use crate::config::{ConfigSecrets, GatewayConfig, StorePlace, read_at_rest_key};
use crate::failure::CommandFailure;
use crate::init::{self, InitOptions};
use crate::meta::wait_until_closed;
use crate::serving::{self, GatewayFault, OpenEngine};
use crate::{check, cluster};

/// As `underlay` has them: a script tells by them whose turn it is.
const INCOMPLETE: u8 = 1;
const MISTAKE: u8 = 2;
const FAILED: u8 = 4;
const BUG: u8 = 70;

/// The metadata are closed by a thread of their own. Where that takes longer, the next start does.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

const AFTER_HELP: &str = "\
Exit codes:
    0  done
    1  finished, but with problems: something is damaged, or not in its store yet
    2  a mistake in an argument, in the configuration, or in a secret or certificate that it names
    4  something that the gateway needs failed: a disk, a store, etcd, a port
   70  a bug in the gateway";

/// An S3 gateway: a cache with write-back and O(1) rename in front of an S3 store or a directory
#[derive(Debug, Parser)]
#[command(name = "underlay-gateway", version, after_help = AFTER_HELP, max_term_width = 100)]
struct GatewayArguments {
    /// How much is logged, on standard error
    #[arg(long, value_enum, default_value = "info", global = true)]
    log_level: LogLevel,
    #[command(subcommand)]
    command: GatewayCommand,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
}

#[derive(Debug, Subcommand)]
enum GatewayCommand {
    /// Write a small gateway.toml and a secret into a directory, and say how to start it
    Init(InitOptions),
    /// Serve S3 until SIGTERM or Ctrl-C, then store what is not stored yet; a second signal stops at once
    Serve {
        /// gateway.toml
        config: PathBuf,
    },
    /// Show what a running gateway does, once a second
    Top {
        /// gateway.toml
        config: PathBuf,
        /// Once, and end
        #[arg(long)]
        once: bool,
        /// One line of JSON each time
        #[arg(long)]
        json: bool,
    },
    /// With the gateway stopped: find damage in its local directory, and read every byte of its journal
    Check {
        /// gateway.toml
        config: PathBuf,
    },
    /// With the gateway stopped: put right what `check` found
    Repair {
        /// gateway.toml
        config: PathBuf,
        /// Give up objects and parts whose bytes are damaged: they are gone for clients, or are again what the store
        /// has
        #[arg(long)]
        drop_damaged: bool,
    },
    /// With the gateway stopped: store everything that is not stored yet
    Drain {
        /// gateway.toml
        config: PathBuf,
        /// How long to try, in seconds: 90 or 90s
        #[arg(long, default_value = "3600", value_parser = seconds)]
        timeout: u64,
        /// Of several gateways, when etcd has lost its data and all of them are stopped: store what this one has,
        /// without asking etcd
        #[arg(long)]
        without_etcd: bool,
        /// With --without-etcd, where etcd can't say it: you know that `abandon` has not given this gateway's keys to
        /// others
        #[arg(long, requires = "without_etcd")]
        not_abandoned: bool,
        /// A bucket whose directory has nothing of what was stored there: you know that it is mounted, and that those
        /// objects are lost. May be given several times
        #[arg(long, value_name = "BUCKET")]
        into_empty: Vec<String>,
    },
    /// Show which gateways of a cluster are there, and which keys they have
    Members {
        /// gateway.toml
        config: PathBuf,
    },
    /// Give the keys of a gateway that does not come back to the others. Acknowledged data that the store lacks is lost
    Abandon {
        /// gateway.toml of another one
        config: PathBuf,
        /// Its name
        member: String,
    },
}

fn seconds(text: &str) -> Result<u64, String> {
    let number = text.strip_suffix('s').unwrap_or(text).trim_end();
    number.parse().map_err(|_| "expected whole seconds, such as 90".to_owned())
}

/// Of a command that stores what is not stored yet.
fn stored(is_stored: bool) -> ExitCode {
    if is_stored { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE) }
}

pub(crate) fn main() -> ExitCode {
    // New files are for this user alone.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let arguments = match GatewayArguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Standard output may be gone.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(MISTAKE) } else { ExitCode::SUCCESS };
        }
    };
    let level = match arguments.log_level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
    };
    start_log(level);
    match std::panic::catch_unwind(|| run(arguments.command)) {
        Ok(Ok(code)) => code,
        Ok(Err(failure)) => {
            let (text, code) = match failure {
                CommandFailure::Mistake(text) => (text, MISTAKE),
                CommandFailure::Failed(text) => (text, FAILED),
                CommandFailure::Bug(text) => (text, BUG),
            };
            let _ = writeln!(std::io::stderr(), "underlay-gateway: {text}");
            ExitCode::from(code)
        }
        Err(_) => {
            let _ = writeln!(
                std::io::stderr(),
                "underlay-gateway: this is a bug, please report it with the lines above"
            );
            ExitCode::from(BUG)
        }
    }
}

fn start_log(level: &str) {
    use tracing_subscriber::filter::{LevelFilter, Targets};
    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::util::SubscriberInitExt as _;
    let level: LevelFilter = level.parse().unwrap_or(LevelFilter::INFO);
    // The access log has the requests that s3s refuses; its own log of them is noise. Below warnings it logs whole
    // requests with their signatures, and a presigned URL is as good as a password.
    let targets = Targets::new()
        .with_default(level.min(LevelFilter::WARN))
        .with_target("underlay_gateway", level)
        .with_target("s3s", if level == LevelFilter::DEBUG { LevelFilter::WARN } else { LevelFilter::OFF });
    let to_stderr =
        tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false).with_ansi(false);
    // A second call, as in tests, leaves the first one's.
    let _ = tracing_subscriber::registry().with(to_stderr).with(targets).try_init();
}

fn read_config(path: &Path) -> Result<GatewayConfig, CommandFailure> {
    GatewayConfig::load(path)
}

/// Whether the configuration has the buckets that `--into-empty` names, as far as it tells.
fn check_named(config: &GatewayConfig, named: &[String]) -> Result<(), CommandFailure> {
    for name in named {
        match config.buckets.iter().find(|bucket| bucket.name == *name).map(|bucket| &bucket.store) {
            Some(StorePlace::Directory(_)) => {}
            Some(place) => {
                return Err(CommandFailure::Mistake(format!(
                    "--into-empty {name}: that bucket is over {place}, and not over a directory"
                )));
            }
            // Clients may have made it.
            None if config.new_buckets.is_some() => {}
            None => {
                return Err(CommandFailure::Mistake(format!(
                    "--into-empty {name}: there is no [bucket.{name}] in the configuration"
                )));
            }
        }
    }
    Ok(())
}

fn runtime() -> Result<tokio::runtime::Runtime, CommandFailure> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| CommandFailure::Failed(format!("cannot start threads: {error}")))
}

fn run(command: GatewayCommand) -> Result<ExitCode, CommandFailure> {
    match command {
        GatewayCommand::Init(wishes) => {
            say(&init::init(&wishes)?);
            Ok(ExitCode::SUCCESS)
        }
        GatewayCommand::Serve { config: path } => {
            let config = read_config(&path)?;
            let runtime = runtime()?;
            let outcome = runtime.block_on(serving::serve(config, &path));
            // Tasks that wait for a hanging disk are abandoned.
            runtime.shutdown_timeout(serving::END_LIMIT);
            wait_until_closed(CLOSE_LIMIT);
            Ok(stored(outcome?))
        }
        GatewayCommand::Top { config, once, json } => {
            serving::top(&read_config(&config)?, once, json).map_err(CommandFailure::Failed)?;
            Ok(ExitCode::SUCCESS)
        }
        GatewayCommand::Check { config } => {
            let config = read_config(&config)?;
            let at_rest = read_at_rest_key(&config).map_err(CommandFailure::Mistake)?;
            let report = check::check(&config, at_rest).map_err(CommandFailure::Failed)?;
            say(&report.to_string());
            Ok(if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE) })
        }
        GatewayCommand::Repair { config, drop_damaged } => {
            let config = read_config(&config)?;
            let at_rest = read_at_rest_key(&config).map_err(CommandFailure::Mistake)?;
            let repaired = check::repair(&config, at_rest, drop_damaged);
            let report = repaired.map_err(CommandFailure::Failed)?;
            say(&report.to_string());
            Ok(if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE) })
        }
        GatewayCommand::Members { config } => {
            let config = read_config(&config)?;
            ConfigSecrets::read(&config).map_err(CommandFailure::Mistake)?;
            let text = runtime()?.block_on(cluster::members(&config)).map_err(CommandFailure::Failed)?;
            say(&text);
            Ok(ExitCode::SUCCESS)
        }
        GatewayCommand::Abandon { config, member } => {
            let config = read_config(&config)?;
            ConfigSecrets::read(&config).map_err(CommandFailure::Mistake)?;
            let text =
                runtime()?.block_on(cluster::abandon(&config, &member)).map_err(CommandFailure::Failed)?;
            say(&text);
            Ok(ExitCode::SUCCESS)
        }
        GatewayCommand::Drain { config, timeout, without_etcd, not_abandoned, into_empty } => {
            let config = read_config(&config)?;
            check_named(&config, &into_empty)?;
            let secrets = ConfigSecrets::read(&config).map_err(CommandFailure::Mistake)?;
            check::require_metadata(&config.local.directory).map_err(CommandFailure::Failed)?;
            let runtime = runtime()?;
            let is_clean = runtime.block_on(async {
                let limit = Duration::from_secs(timeout);
                let deadline =
                    Instant::now().checked_add(limit).ok_or_else(|| "the timeout is too long".to_owned())?;
                let opened = match without_etcd {
                    true => {
                        let alone = cluster::alone(&config, not_abandoned).await?;
                        OpenEngine::alone(&config, &secrets, alone, into_empty).await?
                    }
                    // In a cluster it waits for etcd, and may do so forever.
                    false => match tokio::time::timeout(limit, OpenEngine::to_drain(&config, &secrets, into_empty)).await {
                        Ok(opened) => opened?,
                        Err(_) => return Err(GatewayFault::Failed(format!("the gateway was not ready within {timeout} s, and stored nothing: check that its store and, with [cluster], etcd answer"))),
                    },
                };
                let finished = opened.finish_unless_broken(deadline).await?;
                let is_closed = opened.close_metadata(limit.max(serving::END_LIMIT)).await;
                let is_clean = is_closed && opened.engine.is_clean();
                opened.close_cache().await;
                Ok::<bool, GatewayFault>(finished.is_stored && finished.has_left && is_clean)
            });
            runtime.shutdown_timeout(serving::END_LIMIT);
            wait_until_closed(CLOSE_LIMIT);
            Ok(stored(is_clean?))
        }
    }
}

fn say(text: &str) {
    // A closed output means that nobody wants to read it.
    let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
}
