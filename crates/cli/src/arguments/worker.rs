//! `underlay worker`, and the options of `underlay ycsb` for workers.

use std::path::PathBuf;

use clap::Args;
use underlay_config::units;
use underlay_systems::connect_allowlist::AllowedEndpoint;

use super::LogLevel;

#[derive(Debug, Args)]
pub(crate) struct WorkerArguments {
    /// Listen here: 0.0.0.0:7400 for all hosts with the token or a certificate
    #[arg(long, value_name = "HOST:PORT", required_unless_present = "stdio")]
    pub listen: Option<String>,
    /// Talk to the coordinator over standard input and output, as with ssh, and exit when it does
    #[arg(long, conflicts_with_all = ["listen", "token_file", "authority", "end_when_idle"])]
    pub stdio: bool,
    #[command(flatten)]
    pub trust: TrustArguments,
    /// Allow connections to this host only; may be repeated, or UNDERLAY_MAY_CONNECT=HOST[:PORT],... Needed where the
    /// environment has a user and a password of a system
    #[arg(long, value_name = "HOST[:PORT]", value_delimiter = ',')]
    pub may_connect: Vec<AllowedEndpoint>,
    /// Exit after this long without a coordinator
    #[arg(long, value_name = "SECONDS", value_parser = units::parse_seconds)]
    pub end_when_idle: Option<f64>,
    /// Log this level and above on standard error
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: LogLevel,
}

/// How workers and their coordinator know each other.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct TrustArguments {
    /// A file whose first line workers and coordinator share: `(umask 077; openssl rand -hex 32 > token)`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["authority", "certificate", "key"])]
    pub token_file: Option<PathBuf>,
    /// Instead of a token, mutual TLS: the certificates, in PEM form, of the authority that signed those of both sides
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub authority: Option<PathBuf>,
    /// This host's certificate in PEM form, with those between it and the authority
    #[arg(long, value_name = "FILE", requires = "key")]
    pub certificate: Option<PathBuf>,
    /// Its private key in PEM form
    #[arg(long, value_name = "FILE", requires = "authority")]
    pub key: Option<PathBuf>,
}

/// Where a load comes from when it does not come from here.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct WorkersArguments {
    /// Generate the load on these hosts, where `underlay worker` listens, or which ssh reaches: a:7400,ssh:me@b
    #[arg(long, value_name = "WORKER,...", value_delimiter = ',', conflicts_with_all = ["dir", "find_rate", "hlog", "raw"])]
    pub workers: Vec<String>,
    #[command(flatten)]
    pub trust: TrustArguments,
    /// Where underlay is on hosts that ssh reaches [default: underlay]
    #[arg(long, value_name = "PATH", requires = "workers")]
    pub remote_program: Option<String>,
}
