//! The configuration: what a gateway serves, from where, to whom, and with how much of this machine.

mod apart;
mod cluster;
mod read;
mod secrets;
mod sizes;

pub(crate) use secrets::{ConfigSecrets, read_at_rest_key};
pub(crate) use sizes::{MachineSizes, check as check_sizes, region_bytes};

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use underlay_config::Diagnostics;

use crate::failure::CommandFailure;

/// The content of a `gateway.toml`.
#[derive(Clone, Debug, PartialEq)]
pub struct GatewayConfig {
    pub listen: SocketAddr,
    /// Names by which clients reach the gateway, besides its address. A bucket's name may precede them.
    pub hosts: Vec<String>,
    /// The region that clients sign for; without it, any one.
    pub region: Option<String>,
    pub tls: Option<TlsConfig>,
    pub local: LocalConfig,
    pub limits: GatewayLimits,
    pub s3: S3Endpoint,
    pub buckets: Vec<BucketConfig>,
    /// Where buckets go that clients create; without it they can't.
    pub new_buckets: Option<NewBuckets>,
    pub keys: Vec<AccessKey>,
    pub admin: AdminConfig,
    pub access_log: Option<PathBuf>,
    /// With whom it shares its stores.
    pub cluster: Option<ClusterConfig>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TlsConfig {
    /// PEM, the server's own certificate first.
    pub certificate: PathBuf,
    /// PEM, for this user alone.
    pub key: PathBuf,
}

/// The gateway's resources on this machine.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalConfig {
    pub directory: PathBuf,
    /// Bytes that may be acknowledged and not yet in the store, with unfinished uploads.
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
pub struct GatewayLimits {
    pub connections: usize,
    pub requests: usize,
    /// How long a write waits for room in the journal.
    pub patience: Duration,
    /// Objects that are flushed at the same time.
    pub flushes: usize,
    /// An upload that no part came to for so long is given up.
    pub uploads_expire: Duration,
    /// How long requests in flight may take after SIGTERM.
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
pub struct BucketConfig {
    pub name: String,
    pub store: StorePlace,
    /// By prefix, the longest first; the last has the empty one.
    pub rules: Vec<PrefixRule>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct NewBuckets {
    pub under: StorePlace,
    pub rule: PrefixRule,
}

/// How keys with a prefix are treated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixRule {
    pub prefix: String,
    pub write: WriteMode,
    pub consistency: StoreConsistency,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode {
    /// Acknowledged when it is durable here; stored when it is this old.
    Back { after: Duration },
    /// Acknowledged when the store has it.
    Through,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreConsistency {
    /// Nobody else writes there: the gateway's metadata are the truth.
    Exclusive,
    /// Others may write; what the store said counts for so long.
    Ttl(Duration),
    /// Others may write; the store is asked each time.
    Revalidate,
}

/// An access key of a client.
#[derive(Clone, Debug, PartialEq)]
pub struct AccessKey {
    pub name: String,
    pub id: String,
    pub secret: SecretPlace,
    pub grants: Vec<KeyGrant>,
}

/// A key's permissions on a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyGrant {
    /// `None` for every bucket.
    pub bucket: Option<String>,
    pub prefix: String,
    pub read: bool,
    pub write: bool,
}

/// The port for those who run the gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct AdminConfig {
    pub listen: SocketAddr,
    /// Where `/health/live` and `/health/ready` answer as well, and nothing else does: probes come from other hosts.
    pub health: Option<SocketAddr>,
    /// Without one, the gateway makes a token and keeps it in its directory.
    pub token: Option<PathBuf>,
}

/// Several gateways over the same stores.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterConfig {
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
const MAX_BYTES: u64 = 1 << 20;

impl GatewayConfig {
    /// Reads the text of a configuration.
    ///
    /// # Errors
    /// Every mistake in it, with its line.
    pub fn parse(file_name: &str, text: &str) -> Result<GatewayConfig, Box<Diagnostics>> {
        GatewayConfig::parse_with_notes(file_name, text).map(|(config, _)| config)
    }

    /// The same, with what is no mistake and may yet not be meant.
    ///
    /// # Errors
    /// As [`parse`](GatewayConfig::parse).
    pub fn parse_with_notes(
        file_name: &str,
        text: &str,
    ) -> Result<(GatewayConfig, Box<Diagnostics>), Box<Diagnostics>> {
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
    pub(crate) fn load(path: &Path) -> Result<GatewayConfig, CommandFailure> {
        let text = underlay_files::read_text(path, MAX_BYTES)
            .map_err(|error| CommandFailure::Mistake(format!("{}: {error}", path.display())))?;
        let (config, notes) = GatewayConfig::parse_with_notes(&path.display().to_string(), &text)
            .map_err(|findings| CommandFailure::Mistake(format!("\n{findings}")))?;
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
