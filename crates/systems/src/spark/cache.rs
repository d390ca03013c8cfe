//! The cache between jobs and the object store: the S3 gateway or Alluxio.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use underlay_record::CacheUse;

use super::NAME;
use super::config::{SparkConfig, WRITES};
use super::driver::SparkDriver;
use super::memory::{CacheKind, MIB};
use crate::alluxio;
use crate::artifacts::{ALLUXIO, ALLUXIO_CLIENT, ArtifactError};
use crate::ceph::{CephBucket, S3Keys, StoreRequest};
use crate::certificate::ServerCertificate;
use crate::gateway::{self, GatewayProcess};
use crate::java::Java;
use crate::memory_folder::MemoryFolder;
use crate::network_namespace::NetworkNamespace;
use crate::setting::SettingKind as _;
use crate::system::{StoragePaths, SystemError, SystemResources, first_data_directory, make_on};

/// The variable that names another program than the one that is found.
const PROGRAM_VARIABLE: &str = "UNDERLAY_GATEWAY";
/// The bucket as the gateway has it, so that S3A knows by the name which of the two is asked.
const CACHED: &str = "underlay-cache";
/// On a storage.
const FOLDER: &str = "spark-cache";
/// Below that, and in the scratch directory.
const GATEWAY: &str = "gateway";
const POLL: Duration = Duration::from_millis(200);
/// How late Alluxio's clients tell what they have done.
const TOLD_AFTER: Duration = Duration::from_millis(2500);
/// The gateway needs some room for its metadata.
const MIN_JOURNAL_BYTES: u64 = 64 * MIB;
const MAX_JOURNAL_BYTES: u64 = 256 << 30;

/// A cache that can be started between jobs and a store.
pub(super) struct CacheStarter {
    /// Of the gateway's clients.
    keys: S3Keys,
    /// The gateway's certificate, where clients speak TLS.
    certificate: Option<ServerCertificate>,
    variable: fn(&str) -> Option<String>,
    /// The folder of a cache on a storage.
    folder: PathBuf,
    scratch: PathBuf,
    slow_motion: f64,
    /// Alluxio's parameters, if the session has its client.
    alluxio: Option<OfAlluxio>,
}

struct OfAlluxio {
    java: Java,
    /// Jars of the servers and of the client.
    servers: PathBuf,
    client: PathBuf,
    clients_properties: BTreeMap<String, String>,
}

impl std::fmt::Debug for CacheStarter {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("CacheStarter").field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// A running cache. Dropping it kills it.
#[derive(Debug)]
pub(super) struct RunningCache {
    kind: CacheKind,
    write: String,
    running: CacheServer,
}

#[derive(Debug)]
enum CacheServer {
    Gateway(Box<GatewayProcess>),
    Alluxio(Box<alluxio::Alluxio>),
}

/// The bytes of objects that a store sent and received.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct StoreTraffic {
    sent_bytes: u64,
    received_bytes: u64,
    /// When the store last had something new, in seconds since 1970.
    stored_at_s: Option<f64>,
}

/// A cache's totals since its start, for comparing two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CacheTotals {
    read_bytes: u64,
    fetched_bytes: u64,
    blocks: Option<(u64, u64)>,
    written_bytes: u64,
    stored_bytes: u64,
    dirty_bytes: u64,
    dirty_objects: u64,
    avoided_uploads: Option<u64>,
    memory_bytes: u64,
}

/// The program of the gateway.
pub(super) fn program(variable: fn(&str) -> Option<String>) -> Result<PathBuf, SystemError> {
    match variable(PROGRAM_VARIABLE).filter(|named| !named.is_empty()) {
        Some(named) => gateway::trusted(NAME, named.into()),
        None => gateway::find(NAME),
    }
}

/// Where the cache keeps what it does not keep in memory: on the storage of its role, or else beside the executors'
/// files.
fn storage(paths: &StoragePaths) -> Result<&Path, SystemError> {
    let own = paths.roles.get("cache_storage").or_else(|| paths.roles.get("shuffle"));
    own.map_or_else(|| first_data_directory(NAME, &paths.data).map(PathBuf::as_path), |own| Ok(own.as_path()))
}

/// The URL of what jobs call `name`, behind such a cache.
pub(super) fn url(kind: CacheKind, name: &str) -> String {
    match kind {
        CacheKind::Gateway => format!("s3a://{CACHED}/{name}"),
        CacheKind::Alluxio => format!("alluxio://{}/{name}", alluxio::AUTHORITY),
    }
}

impl CacheStarter {
    /// Finds what `config` asks for, before anything is started.
    ///
    /// # Errors
    /// When a program is missing, or the storage is.
    pub(super) fn new(
        config: &SparkConfig,
        paths: &StoragePaths,
        scratch: &Path,
        variable: fn(&str) -> Option<String>,
        slow_motion: f64,
    ) -> Result<CacheStarter, SystemError> {
        let of_system = |error: ArtifactError| error.into_system_error(NAME);
        let alluxio = match config.cache {
            Some(CacheKind::Alluxio) => Some(OfAlluxio {
                java: Java::find(NAME)?,
                servers: ALLUXIO.directory(&|_| {}).map_err(of_system)?,
                client: ALLUXIO_CLIENT.directory(&|_| {}).map_err(of_system)?,
                clients_properties: alluxio::client_properties(
                    config.flush_after(),
                    config.cache_is_short,
                    alluxio::BlockSettings {
                        bytes: config.block_bytes,
                        writers: config.slots(),
                        tier_bytes: config.division().cache_bytes,
                    },
                    slow_motion,
                ),
            }),
            Some(CacheKind::Gateway) | None => None,
        };
        let folder = match config.cache {
            Some(_) => make_on(NAME, storage(paths)?, Path::new(FOLDER))?,
            None => PathBuf::new(),
        };
        let (keys, scratch) = (gateway::draw_keys(NAME)?, scratch.join("cache"));
        let certificate = match config.version.needs_tls() && config.takes_a_cache() {
            true => Some(gateway::make_certificate(NAME, &scratch.join(GATEWAY))?),
            false => None,
        };
        Ok(CacheStarter { keys, certificate, variable, folder, scratch, slow_motion, alluxio })
    }

    /// The certificate that a session must trust besides the store's, for a gateway in between, now or later.
    pub(super) fn certificate(&self) -> Option<&ServerCertificate> {
        self.certificate.as_ref()
    }

    /// Makes what those who enter `namespace` from now on must see: before Spark's processes are started.
    ///
    /// # Errors
    /// When memory can't be mounted.
    pub(super) fn furnish(
        &self,
        config: &SparkConfig,
        namespace: &NetworkNamespace,
        paths: &StoragePaths,
    ) -> Result<(), SystemError> {
        if self.alluxio.is_none() {
            return Ok(());
        }
        let folder = self.memory_folder();
        std::fs::create_dir_all(&folder).map_err(|error| {
            SystemError::starting(NAME, format!("can't make {}: {error}", folder.display()))
        })?;
        let own: Vec<&Path> = paths
            .data
            .iter()
            .chain(paths.roles.values())
            .chain([&paths.scratch, &folder])
            .map(PathBuf::as_path)
            .collect();
        // Alluxio fills its quota, and writes a little beside it.
        let bytes = config.division().cache_bytes + 16 * MIB;
        namespace.share(MemoryFolder::make(NAME, &folder, bytes, &own)?);
        Ok(())
    }

    fn memory_folder(&self) -> PathBuf {
        self.scratch.join("memory")
    }

    /// A session's settings for reaching them, beside the store's own.
    pub(super) fn settings(&self) -> BTreeMap<String, String> {
        let is_secured = self.certificate.is_some();
        let scheme = if is_secured { "https" } else { "http" };
        // The gateway takes signatures of version 4 alone. Over TLS nothing else was asked for.
        let signer = (!is_secured).then(|| ("signing-algorithm", "AWSS3V4SignerType".to_owned()));
        let mut settings: BTreeMap<String, String> = [
            ("endpoint", format!("{scheme}://{}", gateway::ADDRESS)),
            ("endpoint.region", "us-east-1".to_owned()),
            ("path.style.access", "true".to_owned()),
            ("connection.ssl.enabled", is_secured.to_string()),
            ("access.key", self.keys.access.clone()),
            ("secret.key", self.keys.secret.clone()),
        ]
        .into_iter()
        .chain(signer)
        .map(|(name, value)| (format!("spark.hadoop.fs.s3a.bucket.{CACHED}.{name}"), value))
        .collect();
        if let Some(alluxio) = &self.alluxio {
            let mut add = |name: &str, value: &str| {
                settings.insert(format!("spark.hadoop.{name}"), value.to_owned());
            };
            add("fs.alluxio.impl", "alluxio.hadoop.FileSystem");
            alluxio.clients_properties.iter().for_each(|(name, value)| add(name, value));
        }
        settings
    }

    /// The jars that the driver and executors need for it.
    pub(super) fn library(&self) -> Option<&Path> {
        self.alluxio.as_ref().map(|alluxio| alluxio.client.as_path())
    }

    /// Starts one in front of `bucket`, which exists.
    ///
    /// # Errors
    /// When it does not start.
    pub(super) fn start(
        &self,
        kind: CacheKind,
        config: &SparkConfig,
        bucket: CephBucket,
        namespace: &Arc<NetworkNamespace>,
        resources: &SystemResources,
        limit: Duration,
    ) -> Result<RunningCache, SystemError> {
        let memory_bytes = config.division().cache_bytes;
        let flash_bytes = config.cache_flash_bytes.unwrap_or(0);
        let running = match (kind, &self.alluxio) {
            (CacheKind::Gateway, _) => {
                let free_bytes = underlay_files::free_bytes(&self.folder).unwrap_or(u64::MAX);
                let usual = (free_bytes.saturating_sub(flash_bytes) / 2).min(MAX_JOURNAL_BYTES);
                let journal_bytes = config.cache_journal_bytes.unwrap_or(usual).max(MIN_JOURNAL_BYTES);
                let plan = gateway::GatewayPlan {
                    system: NAME,
                    program: program(self.variable)?,
                    directory: self.folder.join(GATEWAY),
                    scratch: self.scratch.join(GATEWAY),
                    sizes: gateway::GatewaySizes {
                        memory_bytes,
                        flash_bytes,
                        journal_bytes: journal_bytes / MIB * MIB,
                    },
                    flush_after: config.flush_after().map(|after| after.mul_f64(self.slow_motion)),
                    patience: Duration::from_secs(60).mul_f64(self.slow_motion),
                    certificate: self.certificate.clone(),
                    serves: CACHED.to_owned(),
                    store: bucket,
                };
                CacheServer::Gateway(Box::new(GatewayProcess::start(
                    &plan, &self.keys, namespace, resources, limit,
                )?))
            }
            (CacheKind::Alluxio, Some(alluxio)) => {
                let plan = alluxio::AlluxioPlan {
                    system: NAME,
                    java: alluxio.java.clone(),
                    library: alluxio.servers.clone(),
                    scratch: self.scratch.join("alluxio"),
                    tiers: alluxio::CacheTiers {
                        memory: self.memory_folder(),
                        memory_bytes,
                        flash: (flash_bytes > 0).then(|| (self.folder.join("alluxio"), flash_bytes)),
                    },
                    // Of the modelled cache, as the tiers are.
                    uploads: self.folder.join("alluxio-uploads"),
                    behind: bucket,
                    clients: alluxio.clients_properties.clone(),
                    slow_motion: self.slow_motion,
                };
                CacheServer::Alluxio(Box::new(alluxio::Alluxio::start(&plan, namespace, resources, limit)?))
            }
            (CacheKind::Alluxio, None) => {
                return Err(SystemError::starting(NAME, "its session was started without Alluxio's client"));
            }
        };
        Ok(RunningCache { kind, write: WRITES.show(&config.cache_is_back), running })
    }
}

impl RunningCache {
    pub(super) fn kind(&self) -> CacheKind {
        self.kind
    }

    /// Its totals. Clients of Alluxio tell of themselves some time later.
    pub(super) fn totals(&self, during: &'static str) -> Result<CacheTotals, SystemError> {
        Ok(match &self.running {
            CacheServer::Gateway(gateway) => {
                let status = gateway.status(during)?;
                CacheTotals {
                    read_bytes: status.sent_bytes,
                    fetched_bytes: status.sum(|prefix| prefix.fetched_bytes),
                    blocks: Some((status.sum(|prefix| prefix.hits), status.sum(|prefix| prefix.misses))),
                    written_bytes: status.accepted_bytes,
                    stored_bytes: status.flushed_bytes,
                    dirty_bytes: status.journal_bytes,
                    dirty_objects: status.pending_objects,
                    avoided_uploads: Some(status.avoided_uploads()),
                    memory_bytes: status.cached_bytes,
                }
            }
            CacheServer::Alluxio(alluxio) => {
                let figures = alluxio.figures(during)?;
                CacheTotals {
                    read_bytes: figures.read_bytes,
                    fetched_bytes: figures.fetched_bytes,
                    blocks: None,
                    written_bytes: figures.written_bytes,
                    stored_bytes: figures.stored_bytes,
                    // Only a walk through its files tells.
                    dirty_bytes: 0,
                    dirty_objects: figures.waiting_files,
                    avoided_uploads: None,
                    memory_bytes: figures.used_bytes,
                }
            }
        })
    }

    /// The same as a job has ended, with what the store lacks.
    pub(super) fn totals_at_end(
        &self,
        during: &'static str,
        driver: &SparkDriver,
        limit: Duration,
        healthy: &dyn Fn() -> Result<(), SystemError>,
    ) -> Result<CacheTotals, SystemError> {
        let CacheServer::Alluxio(_) = &self.running else { return self.totals(during) };
        let (dirty_objects, dirty_bytes) = unstored(during, driver, limit, healthy)?;
        Ok(CacheTotals { dirty_objects, dirty_bytes, ..self.totals(during)? })
    }

    /// Waits until the store has everything.
    ///
    /// # Errors
    /// When it fails, or does not have everything after `limit`.
    pub(super) fn drain(
        &self,
        during: &'static str,
        driver: &SparkDriver,
        limit: Duration,
        healthy: &dyn Fn() -> Result<(), SystemError>,
    ) -> Result<(), SystemError> {
        match &self.running {
            CacheServer::Gateway(gateway) => gateway.drain(during, limit, healthy).map(drop),
            CacheServer::Alluxio(_) => {
                let began = std::time::Instant::now();
                loop {
                    let (files, bytes) = unstored(during, driver, limit, healthy)?;
                    if files == 0 {
                        return Ok(());
                    }
                    healthy()?;
                    if began.elapsed() > limit {
                        let problem = format!(
                            "after {:.0} s the store still lacks {files} files ({bytes} bytes) that Alluxio has acknowledged",
                            limit.as_secs_f64()
                        );
                        return Err(SystemError::failed(NAME, during, problem));
                    }
                    std::thread::sleep(POLL);
                }
            }
        }
    }

    /// How long after a job its figures are complete.
    pub(super) fn told_after(&self) -> Duration {
        match &self.running {
            CacheServer::Gateway(_) => Duration::ZERO,
            CacheServer::Alluxio(_) => TOLD_AFTER,
        }
    }

    /// A job's use of the cache, from its beginning until the store had everything: the totals at the beginning, at its
    /// end and then, and the store's traffic.
    pub(super) fn used(
        &self,
        [before, at_end, drained]: [&CacheTotals; 3],
        traffic: StoreTraffic,
        drain: Duration,
    ) -> CacheUse {
        let difference = |pick: fn(&CacheTotals) -> u64| pick(drained).saturating_sub(pick(before));
        let blocks = drained.blocks.zip(before.blocks);
        let avoided = drained.avoided_uploads.zip(before.avoided_uploads);
        // Alluxio's job service keeps to itself what it stores.
        let (fetched_bytes, stored_bytes) = match &self.running {
            CacheServer::Gateway(_) => {
                (difference(|totals| totals.fetched_bytes), difference(|totals| totals.stored_bytes))
            }
            CacheServer::Alluxio(_) => (traffic.sent_bytes, traffic.received_bytes),
        };
        CacheUse {
            kind: self.kind.name().to_owned(),
            write: self.write.clone(),
            read_bytes: difference(|totals| totals.read_bytes),
            fetched_bytes,
            hits: blocks.map(|(now, then)| now.0.saturating_sub(then.0)),
            misses: blocks.map(|(now, then)| now.1.saturating_sub(then.1)),
            written_bytes: difference(|totals| totals.written_bytes),
            stored_bytes,
            dirty_bytes: at_end.dirty_bytes,
            dirty_objects: at_end.dirty_objects,
            avoided_uploads: avoided.map(|(now, then)| now.saturating_sub(then)),
            drain_s: drain.as_secs_f64(),
        }
    }

    pub(super) fn check(&self, during: &'static str) -> Result<(), SystemError> {
        match &self.running {
            CacheServer::Gateway(gateway) => gateway.check(during),
            CacheServer::Alluxio(alluxio) => alluxio.check(during),
        }
    }

    pub(super) fn kill(&self) {
        match &self.running {
            CacheServer::Gateway(gateway) => gateway.kill(),
            CacheServer::Alluxio(alluxio) => alluxio.kill(),
        }
    }

    pub(super) fn stop(self) -> Result<(), SystemError> {
        match self.running {
            CacheServer::Gateway(gateway) => gateway.stop(),
            CacheServer::Alluxio(alluxio) => alluxio.stop(),
        }
    }
}

impl StoreTraffic {
    pub(super) fn from_requests(requests: &[StoreRequest]) -> StoreTraffic {
        let sum = |kind: &str, pick: fn(&StoreRequest) -> u64| -> u64 {
            requests.iter().filter(|request| request.kind == kind).map(pick).fold(0, u64::saturating_add)
        };
        StoreTraffic {
            sent_bytes: sum("get", |request| request.sent_bytes),
            received_bytes: sum("put", |request| request.received_bytes),
            stored_at_s: requests
                .iter()
                .filter(|request| matches!(request.kind.as_str(), "put" | "copy" | "multipart" | "delete"))
                .map(|request| request.at_s + request.took_s)
                .reduce(f64::max),
        }
    }

    /// How long after this moment the store last had something new; `None` if it never had.
    pub(super) fn stored_after(self, moment_s: f64) -> Option<Duration> {
        self.stored_at_s.map(|at_s| Duration::try_from_secs_f64(at_s - moment_s).unwrap_or_default())
    }

    pub(super) fn and(self, other: StoreTraffic) -> StoreTraffic {
        StoreTraffic {
            sent_bytes: self.sent_bytes.saturating_add(other.sent_bytes),
            received_bytes: self.received_bytes.saturating_add(other.received_bytes),
            stored_at_s: [self.stored_at_s, other.stored_at_s].into_iter().flatten().reduce(f64::max),
        }
    }
}

impl CacheTotals {
    pub(super) fn has_stored_all(&self) -> bool {
        self.dirty_objects == 0
    }

    /// Running totals, for the figures of a cell.
    pub(super) fn figures(&self) -> Vec<(String, f64)> {
        let mut figures = vec![
            ("cache_read_bytes", self.read_bytes),
            ("cache_fetched_bytes", self.fetched_bytes),
            ("cache_written_bytes", self.written_bytes),
            ("cache_stored_bytes", self.stored_bytes),
        ];
        if let Some((hits, misses)) = self.blocks {
            figures.extend([("cache_hits", hits), ("cache_misses", misses)]);
        }
        figures.into_iter().map(|(name, value)| (name.to_owned(), value as f64)).collect()
    }

    /// The gauges over time.
    pub(super) fn gauges(&self) -> Vec<(String, f64)> {
        let mut gauges = vec![
            ("current_cache_unstored_objects", self.dirty_objects),
            ("current_cache_memory_bytes", self.memory_bytes),
        ];
        if self.blocks.is_some() {
            gauges.push(("current_cache_journal_bytes", self.dirty_bytes));
        }
        gauges.into_iter().map(|(name, value)| (name.to_owned(), value as f64)).collect()
    }
}

/// Files that Alluxio has and the store has not, and their bytes, by a walk through all of them.
fn unstored(
    during: &'static str,
    driver: &SparkDriver,
    limit: Duration,
    healthy: &dyn Fn() -> Result<(), SystemError>,
) -> Result<(u64, u64), SystemError> {
    let request = json!({ "do": "unstored", "path": format!("alluxio://{}/", alluxio::AUTHORITY) });
    let answer = driver.request_within(during, &request, limit, healthy)?;
    let number = |name: &str| answer[name].as_u64().unwrap_or_default();
    Ok((number("files"), number("bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateway_bucket_has_own_settings() {
        let mut caches = CacheStarter {
            keys: S3Keys { access: "JOBS".to_owned(), secret: "hidden".to_owned() },
            certificate: None,
            variable: |_| None,
            folder: PathBuf::new(),
            scratch: PathBuf::new(),
            slow_motion: 1.0,
            alluxio: None,
        };
        let setting_of = |caches: &CacheStarter, name: &str| {
            caches.settings().remove(&format!("spark.hadoop.fs.s3a.{name}"))
        };
        let of_bucket =
            |caches: &CacheStarter, name: &str| setting_of(caches, &format!("bucket.{CACHED}.{name}"));
        assert_eq!(of_bucket(&caches, "endpoint").as_deref(), Some("http://127.0.0.1:9000"));
        assert_eq!(of_bucket(&caches, "signing-algorithm").as_deref(), Some("AWSS3V4SignerType"));
        assert_eq!(setting_of(&caches, "endpoint"), None, "the store itself stays known");
        assert!(!format!("{caches:?}").contains("hidden"));
        assert!(url(CacheKind::Gateway, "a").ends_with("//underlay-cache/a"));

        let folder = tempfile::TempDir::new().unwrap();
        caches.certificate = Some(gateway::make_certificate("test", &folder.path().join("made")).unwrap());
        assert_eq!(of_bucket(&caches, "endpoint").as_deref(), Some("https://127.0.0.1:9000"));
        assert_eq!(of_bucket(&caches, "connection.ssl.enabled").as_deref(), Some("true"));
        assert_eq!(of_bucket(&caches, "signing-algorithm"), None);
    }

    /// One may be put in between later, by the session that there is.
    #[test]
    fn tls_session_has_gateway_certificate_from_start() {
        let folder = tempfile::TempDir::new().unwrap();
        let paths = StoragePaths { data: vec![folder.path().to_owned()], ..StoragePaths::default() };
        let has_one = |pairs: &[(&str, &str)]| {
            let values = pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
            let config = SparkConfig::resolve(&values, Some(8 << 30), Some(1)).unwrap();
            let caches = CacheStarter::new(&config, &paths, folder.path(), |_| None, 1.0).unwrap();
            caches.certificate().is_some_and(|made| made.key().is_file())
        };
        assert!(!has_one(&[("store", "s3a")]) && !has_one(&[("version", "4.1")]));
        assert!(has_one(&[("store", "s3a"), ("version", "4.1")]));
        assert!(has_one(&[("store", "s3a"), ("version", "4.1"), ("cache", "gateway")]));
        assert!(!has_one(&[("store", "s3a"), ("version", "4.1"), ("manager", "yarn")]));
    }

    #[test]
    fn cache_prefers_role_storage_then_executor_storage() {
        let mut paths = StoragePaths { data: vec!["/data".into()], ..StoragePaths::default() };
        assert_eq!(storage(&paths).unwrap(), Path::new("/data"));
        paths.roles.insert("shuffle".to_owned(), "/fast".into());
        assert_eq!(storage(&paths).unwrap(), Path::new("/fast"));
        paths.roles.insert("cache_storage".to_owned(), "/cache".into());
        assert_eq!(storage(&paths).unwrap(), Path::new("/cache"));
    }
}
