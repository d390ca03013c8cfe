//! The processes of an instance above HDFS: ZooKeeper, manager, tablet servers, garbage collector, and the order in which they
//! come and go.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::NAME;
use super::identity::{Identity, Life};
use super::memory::{
    Division, GC_HEAP_BYTES, MANAGER_HEAP_BYTES, MIB, SERVER_DIRECT_BYTES, ZOOKEEPER_HEAP_BYTES,
};
use super::site::{
    LOGGING, LOGGING_FILE, LogVolume, PREFERRED_LOG, SITE_FILE, Site, ZOOKEEPER, ZOOKEEPER_FILE, text,
    write_private, zookeeper,
};
use crate::java::{ClassPath, Java};
use crate::java_server::{JavaProcess, JavaServer, end_all};
use crate::network_namespace::NetworkNamespace;
use crate::system::{Memory, SystemError};

pub const INSTANCE: &str = "underlay";
const MAIN: &str = "org.apache.accumulo.start.Main";
const MANAGER_PORT: u16 = 9999;
const TABLET_SERVER_PORT: u16 = 9997;
/// Of a tool, which holds no data.
const TOOL_HEAP_BYTES: u64 = 96 * MIB;
/// Direct memory of servers that move no data.
const SMALL_DIRECT_BYTES: u64 = 16 * MIB;

/// Where processes find their programs and what they run in.
#[derive(Debug)]
pub struct ProcessEnvironment {
    pub java: Java,
    /// The files of [`crate::artifacts::ACCUMULO`].
    pub library: PathBuf,
    pub scratch: PathBuf,
    pub namespace: Arc<NetworkNamespace>,
    pub memory: Memory,
    /// How long starting or stopping may take.
    pub limit: Duration,
}

impl ProcessEnvironment {
    pub fn site_file(&self) -> PathBuf {
        self.scratch.join(SITE_FILE)
    }

    pub fn logging_option(&self) -> String {
        format!("-Dlog4j2.configurationFile={}", self.scratch.join(LOGGING_FILE).display())
    }

    /// A process as all of them are, with a heap of a tool.
    fn program(&self, name: &str, class: &str, arguments: &[&str], class_path: ClassPath) -> JavaServer {
        JavaServer {
            system: NAME,
            name: name.to_owned(),
            class: class.to_owned(),
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            class_path,
            heap_bytes: TOOL_HEAP_BYTES,
            direct_bytes: Some(SMALL_DIRECT_BYTES),
            options: vec![
                self.logging_option(),
                format!("-Daccumulo.properties=file://{}", self.site_file().display()),
            ],
            environment: Vec::new(),
            quick_start: true,
            folder: self.scratch.join(name.to_lowercase().replace(' ', "-")),
            namespace: Some(Arc::clone(&self.namespace)),
        }
    }

    fn failed(&self, problem: String) -> SystemError {
        SystemError::starting(NAME, problem)
    }

    fn io<'a>(&self, what: &'a Path) -> impl FnOnce(io::Error) -> SystemError + use<'a> {
        move |error| SystemError::starting(NAME, format!("can't write {}: {error}", what.display()))
    }
}

/// ZooKeeper, which comes before everything else.
pub fn start_zookeeper(
    ground: &ProcessEnvironment,
    directory: &Path,
    session_timeout: Duration,
) -> Result<JavaProcess, SystemError> {
    std::fs::create_dir_all(&ground.scratch).map_err(ground.io(&ground.scratch))?;
    std::fs::create_dir_all(directory).map_err(ground.io(directory))?;
    let (file, logging) = (ground.scratch.join(ZOOKEEPER_FILE), ground.scratch.join(LOGGING_FILE));
    write_private(&file, &zookeeper(directory, session_timeout)).map_err(ground.io(&file))?;
    write_private(&logging, LOGGING).map_err(ground.io(&logging))?;
    let path = ClassPath::new().with_jars(&ground.library);
    let class = "org.apache.zookeeper.server.ZooKeeperServerMain";
    let mut program = ground.program("ZooKeeper", class, &[&file.display().to_string()], path);
    program.heap_bytes = ZOOKEEPER_HEAP_BYTES;
    // Its log is made larger by this much at a time, in KiB; its own default is 64 MiB, more than it ever writes here.
    program.options.push("-Dzookeeper.preAllocSize=1024".to_owned());
    program.start(&ground.java, &ground.memory)
}

/// The processes that were started. Dropping them ends them at once.
#[derive(Debug)]
pub struct Servers {
    pub zookeeper: JavaProcess,
    pub manager: JavaProcess,
    pub tablet_servers: Vec<JavaProcess>,
    pub garbage_collector: JavaProcess,
}

/// What the servers above HDFS need.
#[derive(Debug)]
pub struct Plan<'a> {
    pub site: Site<'a>,
    /// With the configuration of HDFS.
    pub hdfs_configuration: PathBuf,
    /// Where the identity of the instance lies.
    pub metadata: &'a Path,
}

impl Servers {
    /// Makes the instance if it is new, clears up after one that was ended in the middle, and starts its processes. They take
    /// clients when this returns.
    pub fn start(
        ground: &ProcessEnvironment,
        plan: &Plan<'_>,
        zookeeper: JavaProcess,
        identity: &mut Identity,
    ) -> Result<Servers, SystemError> {
        let site = &plan.site;
        let file = ground.site_file();
        write_private(&file, &text(&site.properties())).map_err(ground.io(&file))?;
        let address = ZOOKEEPER
            .parse::<SocketAddr>()
            .map_err(|error| ground.failed(format!("{ZOOKEEPER} is no address: {error}")))?;
        zookeeper.wait_for_listener(address, ground.limit)?;
        let path = ClassPath::new().with_classes(&plan.hdfs_configuration).with_jars(&ground.library);
        let program = |name: &str, words: &[&str]| ground.program(name, MAIN, words, path.clone());
        match identity.life {
            Life::Making => {
                let words = ["init", "--instance-name", INSTANCE, "--password", &identity.password];
                let tool = program("init", &words);
                let made = tool.run(&ground.java, "making the instance", ground.limit);
                // The password was in its arguments. Nobody misses the folder.
                let _ = std::fs::remove_dir_all(&tool.folder);
                made?;
            }
            Life::Running => {
                // What ended without a word still holds its locks, for as long as a session lasts. Nobody else can be there.
                let locks = program("zoo-zap", &["zoo-zap", "-manager", "-tservers", "--gc"]);
                locks.run(&ground.java, "starting", ground.limit)?;
                set_to_run(ground, &path)?;
            }
            Life::Stopped => set_to_run(ground, &path)?,
        }
        identity.life = Life::Running;
        identity.logs = site.logs.iter().map(|log| log.directory.clone()).collect();
        identity.write(plan.metadata).map_err(ground.io(plan.metadata))?;

        let mut tablet_servers = Vec::new();
        for number in 0..site.config.nodes {
            tablet_servers.push(tablet_server(ground, site, number, &program)?);
        }
        // It looks for them, and looks again a second later.
        let mut manager = program("manager", &["manager", "-a", "127.0.0.1"]);
        manager.heap_bytes = MANAGER_HEAP_BYTES;
        let manager = manager.start(&ground.java, &ground.memory)?;
        let mut collector = program("garbage collector", &["gc", "-a", "127.0.0.1"]);
        collector.heap_bytes = GC_HEAP_BYTES;
        let garbage_collector = collector.start(&ground.java, &ground.memory)?;

        for (number, server) in (0..).zip(&tablet_servers) {
            server.wait_for_listener(address_of(number), ground.limit)?;
        }
        manager.wait_for_listener((Ipv4Addr::LOCALHOST, MANAGER_PORT).into(), ground.limit)?;
        garbage_collector.check("starting")?;
        Ok(Servers { zookeeper, manager, tablet_servers, garbage_collector })
    }

    /// All of them, ZooKeeper first.
    pub fn all(&self) -> impl Iterator<Item = &JavaProcess> {
        [&self.zookeeper, &self.manager]
            .into_iter()
            .chain(&self.tablet_servers)
            .chain([&self.garbage_collector])
    }

    /// Has every tablet written out and every server ended, ZooKeeper last.
    pub fn stop(self, ground: &ProcessEnvironment, hdfs_configuration: &Path) -> Result<(), SystemError> {
        const DURING: &str = "stopping";
        for process in self.all() {
            process.check(DURING)?;
        }
        let path = ClassPath::new().with_classes(hdfs_configuration).with_jars(&ground.library);
        let tool = ground.program("stop-all", MAIN, &["admin", "stopAll"], path);
        tool.run(&ground.java, DURING, ground.limit)?;
        self.manager.wait_for_end(ground.limit)?;
        // It waited for them. What they end with is whether they lost their lock before or after they were told to.
        for server in &self.tablet_servers {
            if !server.state().wait(ground.limit) {
                return Err(server.state().failed(DURING, server.state().describe()));
            }
        }
        end_all([&self.garbage_collector], ground.limit)?;
        end_all([&self.zookeeper], ground.limit)
    }
}

/// A manager that was told to shut everything down does so again when it comes back, unless it is told otherwise.
fn set_to_run(ground: &ProcessEnvironment, path: &ClassPath) -> Result<(), SystemError> {
    let class = "org.apache.accumulo.manager.state.SetGoalState";
    let tool = ground.program("goal-state", class, &["NORMAL"], path.clone());
    tool.run(&ground.java, "starting", ground.limit).map(drop)
}

fn tablet_server(
    ground: &ProcessEnvironment,
    site: &Site<'_>,
    number: u64,
    program: &dyn Fn(&str, &[&str]) -> JavaServer,
) -> Result<JavaProcess, SystemError> {
    let address = address_of(number).ip().to_string();
    let mut words = vec!["tserver", "-a", &address];
    let logs: Vec<String> = site.logs.iter().filter_map(|log| LogVolume::uri(&log.directory)).collect();
    let own = usize::try_from(number).ok().and_then(|number| logs.get(number % logs.len().max(1)));
    let own = own.map(|log| format!("{PREFERRED_LOG}={log}"));
    if let Some(own) = &own {
        words.extend(["-o", own]);
    }
    let Division { heap_bytes, .. } = site.division;
    let mut server = program(&format!("tablet server {}", number + 1), &words);
    (server.heap_bytes, server.direct_bytes) = (heap_bytes, Some(SERVER_DIRECT_BYTES));
    server.quick_start = false;
    if let Some(native) = &site.config.native_maps {
        server.options.push(format!("-Daccumulo.native.lib.path={}", native.display()));
    }
    server.start(&ground.java, &ground.memory)
}

/// Tablet servers have addresses of their own, as on machines of their own.
fn address_of(number: u64) -> SocketAddr {
    let last = u8::try_from(number + 1).unwrap_or(u8::MAX);
    (Ipv4Addr::new(127, 0, 0, last), TABLET_SERVER_PORT).into()
}
