//! Its four servers: the master and the worker, and those of the job service, which stores what was acknowledged
//! before.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::MIB;
use super::configuration::{CacheTiers, server_properties};
use super::figures::AlluxioMetrics;
use crate::ceph::CephBucket;
use crate::java::{ClassPath, Java};
use crate::java_server::{JavaProcess, JavaServer, end_all};
use crate::network_namespace::NetworkNamespace;
use crate::private_file::write_private;
use crate::system::{SystemError, SystemResources};

const MASTER_HEAP_BYTES: u64 = 192 * MIB;
const WORKER_HEAP_BYTES: u64 = 192 * MIB;
const JOB_MASTER_HEAP_BYTES: u64 = 96 * MIB;
/// It uploads by parts, which it holds.
const JOB_WORKER_HEAP_BYTES: u64 = 160 * MIB;
pub(super) const HEAPS_BYTES: u64 =
    MASTER_HEAP_BYTES + WORKER_HEAP_BYTES + JOB_MASTER_HEAP_BYTES + JOB_WORKER_HEAP_BYTES;
/// Buffers of connections outside of a heap, at most.
const DIRECT_BYTES: u64 = 64 * MIB;
/// Buffers, code and threads of each.
pub(super) const JAVA_OWN_BYTES: u64 = DIRECT_BYTES + 120 * MIB;

const fn local(port: u16) -> SocketAddr {
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))
}
const MASTER: SocketAddr = local(19998);
const MASTER_WEB: SocketAddr = local(19999);
const WORKER: SocketAddr = local(29999);
const JOB_MASTER: SocketAddr = local(20001);
const JOB_WORKER: SocketAddr = local(30001);

/// How long each may take to end when asked; none has a state to save.
const END_LIMIT: Duration = Duration::from_secs(20);

/// How to start it.
#[derive(Clone, Debug)]
pub(crate) struct AlluxioPlan {
    pub system: &'static str,
    pub java: Java,
    /// The jars of the servers.
    pub library: PathBuf,
    pub scratch: PathBuf,
    pub tiers: CacheTiers,
    /// Where it puts what it stores, file by file, before it sends it.
    pub uploads: PathBuf,
    pub behind: CephBucket,
    /// The clients' properties, which hold for the servers as well.
    pub clients: BTreeMap<String, String>,
    pub slow_motion: f64,
}

/// A running Alluxio. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Alluxio {
    system: &'static str,
    namespace: Arc<NetworkNamespace>,
    /// In the order in which they were started.
    servers: Vec<JavaProcess>,
}

impl AlluxioPlan {
    fn server(
        &self,
        name: &str,
        class: &str,
        heap_bytes: u64,
        namespace: &Arc<NetworkNamespace>,
    ) -> JavaServer {
        let options = [
            format!("-Dalluxio.site.conf.dir={}", self.scratch.display()),
            format!("-Dalluxio.home={}", self.scratch.display()),
            format!("-Dalluxio.logs.dir={}", self.scratch.join("logs").display()),
            format!("-Dlog4j2.configurationFile=file:{}", self.scratch.join(LOG_SETTINGS).display()),
        ];
        JavaServer {
            system: self.system,
            name: name.to_owned(),
            class: class.to_owned(),
            arguments: Vec::new(),
            class_path: ClassPath::new().with_jars(&self.library),
            heap_bytes,
            direct_bytes: Some(DIRECT_BYTES),
            options: options.into_iter().chain(OPENED.map(str::to_owned)).collect(),
            environment: Vec::new(),
            quick_start: false,
            folder: self.scratch.join(name.to_lowercase().replace(' ', "-")),
            namespace: Some(Arc::clone(namespace)),
            own_mounts: None,
        }
    }

    /// Folders, and the files of properties.
    fn prepare(&self) -> Result<(), SystemError> {
        let failed = |path: &std::path::Path, error: std::io::Error| {
            SystemError::starting(self.system, format!("can't write to {}: {error}", path.display()))
        };
        let journal = self.scratch.join(JOURNAL);
        let flash = self.tiers.flash.as_ref().map(|(folder, _)| folder);
        // Its web server, which tells figures, wants a folder of pages.
        let pages = self.scratch.join("webui");
        let folders = [
            journal.clone(),
            self.uploads.clone(),
            self.scratch.join("logs"),
            pages.join("master/build"),
            pages.join("worker/build"),
        ];
        for folder in folders.iter().chain(flash) {
            std::fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
        }
        let site = self.scratch.join("alluxio-site.properties");
        let text = server_properties(
            &self.behind,
            &self.tiers,
            &journal,
            &self.uploads,
            &self.clients,
            self.slow_motion,
        );
        write_private(&site, &text).map_err(|error| failed(&site, error))?;
        let log = self.scratch.join(LOG_SETTINGS);
        std::fs::write(&log, LOGGING).map_err(|error| failed(&log, error))
    }
}

const JOURNAL: &str = "journal";
const LOG_SETTINGS: &str = "log4j2.properties";
const LOGGING: &str = "\
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %-5p %c{1} - %m%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
";
/// Java's own classes that it accesses by reflection.
const OPENED: [&str; 2] =
    ["--add-opens=java.base/java.lang=ALL-UNNAMED", "--add-opens=java.base/java.nio=ALL-UNNAMED"];

/// The options of the job worker. It is a client too, and what it reads to store it is no job's: it tells nobody, and
/// reads by itself what the worker would count.
const UNCOUNTED: [&str; 2] =
    ["-Dalluxio.user.metrics.collection.enabled=false", "-Dalluxio.user.short.circuit.enabled=true"];

impl Alluxio {
    /// Starts it in `namespace`, in which the folder of the memory tier is mounted, inside `resources`. When this
    /// returns, it serves.
    ///
    /// # Errors
    /// When a server can't be started, or does not listen within `limit`.
    pub(crate) fn start(
        plan: &AlluxioPlan,
        namespace: &Arc<NetworkNamespace>,
        resources: &SystemResources,
        limit: Duration,
    ) -> Result<Alluxio, SystemError> {
        plan.prepare()?;
        let mut format = plan.server("Format", "alluxio.cli.Format", MASTER_HEAP_BYTES, namespace);
        format.arguments = vec!["master".to_owned()];
        format.quick_start = true;
        format.run(&plan.java, resources, "starting", limit)?;
        let mut servers: Vec<JavaProcess> = Vec::new();
        // Those of one line need only those before.
        for line in [
            &[("Alluxio master", "alluxio.master.AlluxioMaster", MASTER_HEAP_BYTES, MASTER)][..],
            &[
                ("Alluxio job master", "alluxio.master.AlluxioJobMaster", JOB_MASTER_HEAP_BYTES, JOB_MASTER),
                ("Alluxio worker", "alluxio.worker.AlluxioWorker", WORKER_HEAP_BYTES, WORKER),
            ],
            &[("Alluxio job worker", "alluxio.worker.AlluxioJobWorker", JOB_WORKER_HEAP_BYTES, JOB_WORKER)],
        ] {
            let first = servers.len();
            for &(name, class, heap_bytes, address) in line {
                let mut server = plan.server(name, class, heap_bytes, namespace);
                if address == JOB_WORKER {
                    server.options.extend(UNCOUNTED.map(str::to_owned));
                }
                servers.push(server.start(&plan.java, resources)?);
            }
            for (server, &(.., address)) in servers[first..].iter().zip(line) {
                server.wait_for_listener(address, limit)?;
            }
        }
        Ok(Alluxio { system: plan.system, namespace: Arc::clone(namespace), servers })
    }

    /// The cluster's totals since its start.
    ///
    /// # Errors
    /// When the master does not answer.
    pub(crate) fn figures(&self, during: &'static str) -> Result<AlluxioMetrics, SystemError> {
        AlluxioMetrics::ask(self.system, &self.namespace, MASTER_WEB, during)
    }

    /// Fails with the end of its log if a server has ended.
    pub(crate) fn check(&self, during: &'static str) -> Result<(), SystemError> {
        self.servers.iter().try_for_each(|server| server.check(during))
    }

    pub(crate) fn kill(&self) {
        self.servers.iter().for_each(JavaProcess::kill);
    }

    /// Asks all to end and waits.
    ///
    /// # Errors
    /// When one had to be killed, or its end was a failure.
    pub(crate) fn stop(self) -> Result<(), SystemError> {
        end_all(&self.servers, END_LIMIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Java's options win over the properties file, which has the clients' properties.
    #[test]
    fn job_worker_reads_are_not_client_reads() {
        let blocks = super::super::BlockSettings { bytes: 1, writers: 1, tier_bytes: 1 };
        let clients = super::super::client_properties(None, false, blocks, 1.0);
        for option in UNCOUNTED {
            let (name, value) = option.strip_prefix("-D").unwrap().split_once('=').unwrap();
            assert_ne!(clients[name], value, "{name}");
        }
    }
}
