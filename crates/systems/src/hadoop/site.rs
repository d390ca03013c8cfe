//! The configuration of YARN and MapReduce.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use super::config::HadoopConfig;
use super::memory::MIB;
use crate::hdfs::configuration::properties_file;

/// Where the ResourceManager accepts jobs.
pub(super) const RESOURCE_MANAGER: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8032);
const FIFO: &str = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler";
/// The defaults are one and three seconds, which a small job would spend mostly waiting.
pub(super) const HEARTBEAT_MS: u64 = 100;
/// Hadoop's default for copies of a job's own files. More than there are DataNodes would never be reached.
const MAX_SUBMITTED_COPIES: u64 = 10;

type SiteProperties = Vec<(&'static str, String)>;

/// The values that the configuration is made from.
#[derive(Clone, Debug)]
pub(super) struct HadoopSite<'a> {
    pub config: &'a HadoopConfig,
    /// The local directories of the NodeManager, in the order of the storage's directories.
    pub local_directories: &'a [PathBuf],
    pub log_directory: PathBuf,
    pub state_directory: PathBuf,
    /// Hadoop's jars, the configuration directory, and the classes of our own jobs.
    pub library: &'a Path,
    pub configuration: &'a Path,
    pub classes: &'a Path,
    /// Options of every Java process that the NodeManager starts, one word each.
    pub java_options: Vec<String>,
    pub slow_motion: f64,
}

/// A machine that runs containers of any kind.
#[derive(Clone, Debug)]
pub(crate) struct YarnSite<'a> {
    /// Of the NodeManager, and so of its containers.
    pub local_directories: &'a [PathBuf],
    pub log_directory: &'a Path,
    /// Where the ResourceManager keeps what it knows of nodes. By default that is a predictable path below `/tmp`.
    pub state_directory: &'a Path,
    /// Every container's class path, with commas between.
    pub class_path: String,
    /// The memory of all containers together.
    pub containers_bytes: u64,
    pub cores: u64,
    /// Services inside of the NodeManager.
    pub services: &'static str,
    pub slow_motion: f64,
}

fn stretched_ms(ms: f64, slow_motion: f64) -> String {
    format!("{:.0}", (ms * slow_motion).ceil().min(f64::from(i32::MAX)))
}

impl YarnSite<'_> {
    fn properties(&self) -> SiteProperties {
        let stretched_ms = |ms: f64| stretched_ms(ms, self.slow_motion);
        let mib = |bytes: u64| (bytes / MIB).to_string();
        let state =
            |subdirectory: &str| format!("file://{}", self.state_directory.join(subdirectory).display());
        let local = |port: u16| format!("127.0.0.1:{port}");
        let directories: Vec<String> =
            self.local_directories.iter().map(|directory| directory.display().to_string()).collect();
        vec![
            ("yarn.resourcemanager.hostname", "127.0.0.1".to_owned()),
            ("yarn.resourcemanager.webapp.address", local(8088)),
            ("yarn.resourcemanager.scheduler.class", FIFO.to_owned()),
            ("yarn.scheduler.minimum-allocation-mb", "1".to_owned()),
            ("yarn.scheduler.maximum-allocation-mb", mib(self.containers_bytes)),
            ("yarn.node-attribute.fs-store.root-dir", state("attributes")),
            ("yarn.node-labels.fs-store.root-dir", state("labels")),
            ("yarn.resourcemanager.nodemanagers.heartbeat-interval-ms", HEARTBEAT_MS.to_string()),
            // Silent NodeManagers and masters are given up after ten minutes, Hadoop's default.
            ("yarn.nm.liveness-monitor.expiry-interval-ms", stretched_ms(600_000.0)),
            ("yarn.am.liveness-monitor.expiry-interval-ms", stretched_ms(600_000.0)),
            ("yarn.nodemanager.hostname", "127.0.0.1".to_owned()),
            ("yarn.nodemanager.address", local(8041)),
            ("yarn.nodemanager.localizer.address", local(8040)),
            ("yarn.nodemanager.webapp.address", local(8042)),
            ("yarn.nodemanager.resource.memory-mb", mib(self.containers_bytes)),
            ("yarn.nodemanager.resource.cpu-vcores", self.cores.to_string()),
            // Heaps are fixed, and the kernel enforces the budget. YARN would kill containers for what they map.
            ("yarn.nodemanager.vmem-check-enabled", "false".to_owned()),
            ("yarn.nodemanager.pmem-check-enabled", "false".to_owned()),
            ("yarn.nodemanager.container-monitor.enabled", "false".to_owned()),
            ("yarn.nodemanager.aux-services", self.services.to_owned()),
            ("yarn.nodemanager.local-dirs", directories.join(",")),
            ("yarn.nodemanager.log-dirs", self.log_directory.display().to_string()),
            // By default YARN stops using disks that are 90 % full, which a small modelled disk may well be.
            (
                "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage",
                "100".to_owned(),
            ),
            ("yarn.nodemanager.disk-health-checker.min-free-space-per-disk-mb", "0".to_owned()),
            ("yarn.nodemanager.sleep-delay-before-sigkill.ms", "100".to_owned()),
            ("yarn.nodemanager.env-whitelist", "JAVA_HOME,MALLOC_ARENA_MAX,PATH".to_owned()),
            ("yarn.application.classpath", self.class_path.clone()),
        ]
    }

    /// Writes `yarn-site.xml` into this directory.
    pub(crate) fn write(&self, configuration: &Path) -> std::io::Result<()> {
        std::fs::write(configuration.join("yarn-site.xml"), properties_file(&self.properties()))
    }
}

impl HadoopSite<'_> {
    fn stretched_ms(&self, ms: f64) -> String {
        stretched_ms(ms, self.slow_motion)
    }

    fn yarn(&self) -> YarnSite<'_> {
        YarnSite {
            local_directories: self.local_directories,
            log_directory: &self.log_directory,
            state_directory: &self.state_directory,
            class_path: format!("{}/*,{}", self.library.display(), self.configuration.display()),
            containers_bytes: self.config.division().node_bytes(),
            cores: self.config.containers + 1,
            services: "mapreduce_shuffle",
            slow_motion: self.slow_motion,
        }
    }

    /// `mapred-site.xml`
    pub(super) fn mapreduce(&self) -> SiteProperties {
        let division = self.config.division();
        let mib = |bytes: u64| (bytes / MIB).to_string();
        let options = |heap_bytes: u64, quick: bool| {
            let mut words = self.java_options.clone();
            words.push(format!("-Xmx{}m", heap_bytes / MIB));
            if quick {
                words.push("-XX:TieredStopAtLevel=1".to_owned());
            }
            words.join(" ")
        };
        let of_tasks = options(division.task_heap_bytes, !self.config.full_compiler);
        vec![
            ("mapreduce.framework.name", "yarn".to_owned()),
            ("mapreduce.application.classpath", self.classes.display().to_string()),
            // There is no history server: the job client reads the history where masters leave it.
            ("mapreduce.jobhistory.address", String::new()),
            ("yarn.app.mapreduce.am.resource.mb", mib(division.master_bytes())),
            ("yarn.app.mapreduce.am.command-opts", options(division.master_heap_bytes, true)),
            ("yarn.app.mapreduce.am.scheduler.heartbeat.interval-ms", HEARTBEAT_MS.to_string()),
            ("mapreduce.map.memory.mb", mib(division.task_bytes())),
            ("mapreduce.reduce.memory.mb", mib(division.task_bytes())),
            ("mapreduce.map.java.opts", of_tasks.clone()),
            ("mapreduce.reduce.java.opts", of_tasks),
            ("mapreduce.task.io.sort.mb", mib(division.sort_buffer_bytes)),
            ("mapreduce.task.io.sort.factor", self.config.sort_factor.to_string()),
            ("mapreduce.reduce.shuffle.parallelcopies", self.config.parallel_copies.to_string()),
            ("mapreduce.job.reduce.slowstart.completedmaps", self.config.slowstart.to_string()),
            // A speculative second attempt would compete with the first for the same machine.
            ("mapreduce.map.speculative", "false".to_owned()),
            ("mapreduce.reduce.speculative", "false".to_owned()),
            ("mapreduce.task.timeout", self.stretched_ms(600_000.0)),
            ("mapreduce.reduce.shuffle.connect.timeout", self.stretched_ms(180_000.0)),
            ("mapreduce.reduce.shuffle.read.timeout", self.stretched_ms(180_000.0)),
            (
                "mapreduce.client.submit.file.replication",
                self.config.datanodes.min(MAX_SUBMITTED_COPIES).to_string(),
            ),
        ]
    }

    /// Writes both files into the configuration directory.
    pub(super) fn write(&self) -> std::io::Result<()> {
        self.yarn().write(self.configuration)?;
        std::fs::write(self.configuration.join("mapred-site.xml"), properties_file(&self.mapreduce()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site<'a>(config: &'a HadoopConfig, directories: &'a [PathBuf], slow_motion: f64) -> HadoopSite<'a> {
        HadoopSite {
            config,
            local_directories: directories,
            log_directory: "/run/cell-1/hadoop/containers".into(),
            state_directory: "/run/cell-1/hadoop/nodes".into(),
            library: Path::new("/cache/hadoop"),
            configuration: Path::new("/run/cell-1/hadoop/configuration"),
            classes: Path::new("/cache/classes/hadoop-jobs"),
            java_options: vec!["-XX:+UseSerialGC".to_owned()],
            slow_motion,
        }
    }

    #[test]
    fn small_undilated_and_large_slowed_site() {
        let directories = ["/mnt/a/local".into(), "/mnt/b/local".into()];
        let small = HadoopConfig { budget_bytes: 2 << 30, ..HadoopConfig::default() };
        let large = HadoopConfig {
            budget_bytes: 48 << 30,
            containers: 16,
            full_compiler: true,
            ..HadoopConfig::default()
        };
        for (name, config, slow_motion) in [("small", &small, 1.0), ("large", &large, 8.0)] {
            let site = site(config, &directories, slow_motion);
            insta::assert_snapshot!(format!("{name}-yarn"), properties_file(&site.yarn().properties()));
            insta::assert_snapshot!(format!("{name}-mapreduce"), properties_file(&site.mapreduce()));
        }
    }

    #[test]
    fn requested_number_of_tasks_fits_with_master() {
        for containers in [1, 2, 7] {
            let config = HadoopConfig { budget_bytes: 8 << 30, containers, ..HadoopConfig::default() };
            let site = site(&config, &[], 1.0);
            let value_of = |properties: &SiteProperties, name: &str| -> u64 {
                properties.iter().find(|(key, _)| *key == name).unwrap().1.parse().unwrap()
            };
            let (yarn, mapreduce) = (site.yarn().properties(), site.mapreduce());
            let node = value_of(&yarn, "yarn.nodemanager.resource.memory-mb");
            let master = value_of(&mapreduce, "yarn.app.mapreduce.am.resource.mb");
            for kind in ["mapreduce.map.memory.mb", "mapreduce.reduce.memory.mb"] {
                assert_eq!((node - master) / value_of(&mapreduce, kind), containers);
            }
        }
    }
}
