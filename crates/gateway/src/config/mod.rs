//! The configuration: what a gateway serves, from where, to whom, and with how much of this machine.

mod apart;
mod cluster;
mod read;
mod secrets;
mod sizes;

pub(crate) use secrets::{Secrets, at_rest_of};
pub(crate) use sizes::{Machine, check as check_sizes, region_bytes};

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use underlay_config::Diagnostics;

use crate::failure::Failure;

/// The content of a `gateway.toml`.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub listen: SocketAddr,
    /// Names by which clients reach the gateway, besides its address. A bucket's name may precede them.
    pub hosts: Vec<String>,
    /// The region that clients sign for; without it, any one.
    pub region: Option<String>,
    pub tls: Option<Tls>,
    pub local: Local,
    pub limits: Limits,
    pub s3: S3Endpoint,
    pub buckets: Vec<Bucket>,
    /// Where buckets go that clients create; without it they can't.
    pub new_buckets: Option<NewBuckets>,
    pub keys: Vec<Key>,
    pub admin: Admin,
    pub access_log: Option<PathBuf>,
    /// With whom it shares its stores.
    pub cluster: Option<Cluster>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Tls {
    /// PEM, the server's own certificate first.
    pub certificate: PathBuf,
    /// PEM, for this user alone.
    pub key: PathBuf,
}

/// What the gateway has on this machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Local {
    pub directory: PathBuf,
    /// What may be acknowledged and not yet in the store, with unfinished uploads.
    pub journal_bytes: u64,
    /// Blocks of objects in memory.
    pub memory_bytes: u64,
    /// Blocks on flash; zero for none.
    pub flash_bytes: u64,
    pub block_bytes: u64,
    /// The metadata store's own cache.
    pub metadata_bytes: u64,
    /// Where the key is that the journal and the cache are encrypted with.
    pub encryption: Option<SecretPlace>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    pub connections: usize,
    pub requests: usize,
    /// How long a write waits for room in the journal.
    pub patience: Duration,
    /// Objects that are flushed at the same time.
    pub flushes: usize,
    /// An upload that no part came to for so long is given up.
    pub uploads_expire: Duration,
    /// How long requests under way may take after SIGTERM.
    pub drain: Duration,
}

/// How S3 stores behind are reached.
#[derive(Clone, Debug, PartialEq)]
pub struct S3Endpoint {
    pub url: Option<String>,
    /// PEM of the authority that signed its certificate, in place of those that this machine trusts.
    pub authority: Option<PathBuf>,
    pub region: String,
    pub has_virtual_hosts: bool,
    pub key_id: Option<String>,
    pub secret: Option<SecretPlace>,
}

/// Where a secret is: never in the file itself.
#[derive(Clone, Debug, PartialEq)]
pub enum SecretPlace {
    Environment(String),
    File(PathBuf),
}

/// Where the objects of a bucket are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorePlace {
    S3 { bucket: String, prefix: String },
    Directory(PathBuf),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Bucket {
    pub name: String,
    pub store: StorePlace,
    /// By prefix, the longest first; the last has the empty one.
    pub rules: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct NewBuckets {
    pub under: StorePlace,
    pub rule: Rule,
}

/// How keys with a prefix are treated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub prefix: String,
    pub write: Write,
    pub consistency: Consistency,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Acknowledged when it is durable here; stored when it is this old.
    Back { after: Duration },
    /// Acknowledged when the store has it.
    Through,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// Nobody else writes there: the gateway's metadata are the truth.
    Exclusive,
    /// Others may write; what the store said counts for so long.
    Ttl(Duration),
    /// Others may write; the store is asked each time.
    Revalidate,
}

/// An access key of a client.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    pub name: String,
    pub id: String,
    pub secret: SecretPlace,
    pub grants: Vec<Grant>,
}

/// What a key may do where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// `None` for every bucket.
    pub bucket: Option<String>,
    pub prefix: String,
    pub read: bool,
    pub write: bool,
}

/// The port for those who run the gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct Admin {
    pub listen: SocketAddr,
    /// Where `/health/live` and `/health/ready` answer as well, and nothing else does: probes come from other hosts.
    pub health: Option<SocketAddr>,
    /// Without one, the gateway makes a token and keeps it in its directory.
    pub token: Option<PathBuf>,
}

/// Several gateways over the same stores.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// URLs of etcd.
    pub etcd: Vec<String>,
    pub etcd_user: Option<(String, SecretPlace)>,
    /// Of the cluster's keys in etcd.
    pub prefix: String,
    /// Of this gateway.
    pub name: String,
    /// For the other gateways.
    pub listen: SocketAddr,
    /// How they reach it, if that is another address.
    pub address: Option<String>,
    /// The gateways' own.
    pub secret: SecretPlace,
    /// PEM of the authority that signed the certificates of etcd and of the gateways.
    pub authority: Option<PathBuf>,
    pub ttl: Duration,
    /// So many segments of a key say where it belongs.
    pub segments: usize,
}

/// Longest configuration that is read.
const MOST_BYTES: u64 = 1 << 20;

impl Config {
    /// Reads the text of a configuration.
    ///
    /// # Errors
    /// Every mistake in it, with its line.
    pub fn parse(file_name: &str, text: &str) -> Result<Config, Box<Diagnostics>> {
        Config::parse_with_notes(file_name, text).map(|(config, _)| config)
    }

    /// The same, with what is no mistake and may yet not be meant.
    ///
    /// # Errors
    /// As [`parse`](Config::parse).
    pub fn parse_with_notes(
        file_name: &str,
        text: &str,
    ) -> Result<(Config, Box<Diagnostics>), Box<Diagnostics>> {
        let mut findings = Diagnostics::new(file_name, text);
        let config = read::read(text, &mut findings);
        findings.sort();
        match config {
            Some(config) if !findings.has_errors() => Ok((config, Box::new(findings))),
            _ => Err(Box::new(findings)),
        }
    }

    /// Reads a file, and logs what may not be meant in it.
    ///
    /// # Errors
    /// When it can't be read, or has a mistake.
    pub(crate) fn load(path: &Path) -> Result<Config, Failure> {
        let text = underlay_files::read_text(path, MOST_BYTES)
            .map_err(|error| Failure::Mistake(format!("{}: {error}", path.display())))?;
        let (config, notes) = Config::parse_with_notes(&path.display().to_string(), &text)
            .map_err(|findings| Failure::Mistake(format!("\n{findings}")))?;
        if !notes.is_empty() {
            tracing::warn!("\n{notes}");
        }
        Ok(config)
    }
}

impl StorePlace {
    /// Reads `s3://bucket/prefix` or an absolute path.
    pub(crate) fn parse(text: &str) -> Option<StorePlace> {
        if let Some(rest) = text.strip_prefix("s3://") {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            let is_name =
                |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.' | '_');
            return (!bucket.is_empty() && bucket.chars().all(is_name))
                .then(|| StorePlace::S3 { bucket: bucket.to_owned(), prefix: prefix.to_owned() });
        }
        let path = PathBuf::from(text);
        path.is_absolute().then_some(StorePlace::Directory(path))
    }
}

impl std::fmt::Display for StorePlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StorePlace::S3 { bucket, prefix } => write!(f, "s3://{bucket}/{prefix}"),
            StorePlace::Directory(path) => write!(f, "{}", path.display()),
        }
    }
}
