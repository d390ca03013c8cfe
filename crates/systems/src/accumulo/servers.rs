//! The processes of an instance above HDFS (ZooKeeper, manager, tablet servers, garbage collector), and the order in
//! which they start and stop.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use underlay_record::NodeCondition;

use super::NAME;
use super::identity::{InstanceIdentity, InstanceStage};
use super::memory::{
    AccumuloMemoryLayout, GC_HEAP_BYTES, MANAGER_HEAP_BYTES, MIB, SERVER_DIRECT_BYTES, ZOOKEEPER_HEAP_BYTES,
};
use super::site::{
    AccumuloSite, LOGGING, LOGGING_FILE, LogVolume, PREFERRED_LOG, SITE_FILE, ZOOKEEPER, ZOOKEEPER_FILE,
    text, zookeeper,
};
use crate::child::ChildState;
use crate::java::{ClassPath, Java};
use crate::java_server::{JavaProcess, JavaServer, end_all};
use crate::network_namespace::NetworkNamespace;
use crate::nodes::{Roster, unknown};
use crate::private_file::write_private;
use crate::system::{SystemError, SystemResources};

pub(super) const INSTANCE: &str = "underlay";
const MAIN: &str = "org.apache.accumulo.start.Main";
const MANAGER_PORT: u16 = 9999;
const TABLET_SERVER_PORT: u16 = 9997;
/// The heap of tools, which hold no data.
const TOOL_HEAP_BYTES: u64 = 96 * MIB;
/// The direct memory of servers that transfer no data.
const SMALL_DIRECT_BYTES: u64 = 16 * MIB;

/// State that all processes share: their programs, network and resources.
#[derive(Debug)]
pub(super) struct ProcessEnvironment {
    pub java: Java,
    /// The files of [`crate::artifacts::ACCUMULO`].
    pub library: PathBuf,
    pub scratch: PathBuf,
    pub namespace: Arc<NetworkNamespace>,
    pub resources: SystemResources,
    /// How long starting or stopping may take.
    pub limit: Duration,
}

impl ProcessEnvironment {
    pub(super) fn site_file(&self) -> PathBuf {
        self.scratch.join(SITE_FILE)
    }

    pub(super) fn logging_option(&self) -> String {
        format!("-Dlog4j2.configurationFile={}", self.scratch.join(LOGGING_FILE).display())
    }

    /// A process with the common options and the heap of a tool.
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
            own_mounts: None,
        }
    }

    fn failed(&self, problem: String) -> SystemError {
        SystemError::starting(NAME, problem)
    }

    fn io<'a>(&self, path: &'a Path) -> impl FnOnce(io::Error) -> SystemError + use<'a> {
        move |error| SystemError::starting(NAME, format!("can't write {}: {error}", path.display()))
    }
}

/// Starts ZooKeeper, which everything else needs.
pub(super) fn start_zookeeper(
    environment: &ProcessEnvironment,
    directory: &Path,
    session_timeout: Duration,
) -> Result<JavaProcess, SystemError> {
    std::fs::create_dir_all(&environment.scratch).map_err(environment.io(&environment.scratch))?;
    std::fs::create_dir_all(directory).map_err(environment.io(directory))?;
    let (file, logging) = (environment.scratch.join(ZOOKEEPER_FILE), environment.scratch.join(LOGGING_FILE));
    write_private(&file, &zookeeper(directory, session_timeout)).map_err(environment.io(&file))?;
    write_private(&logging, LOGGING).map_err(environment.io(&logging))?;
    let path = ClassPath::new().with_jars(&environment.library);
    let class = "org.apache.zookeeper.server.ZooKeeperServerMain";
    let mut program = environment.program("ZooKeeper", class, &[&file.display().to_string()], path);
    program.heap_bytes = ZOOKEEPER_HEAP_BYTES;
    // ZooKeeper preallocates its log in steps of this many KiB. The default is 64 MiB, more than it ever writes here.
    program.options.push("-Dzookeeper.preAllocSize=1024".to_owned());
    program.start(&environment.java, &environment.resources)
}

/// The running processes. Dropping them kills them.
#[derive(Debug)]
pub(super) struct AccumuloServers {
    pub zookeeper: JavaProcess,
    pub manager: JavaProcess,
    pub tablet_servers: Roster<JavaProcess>,
    /// How to start each of them again.
    programs: Vec<JavaServer>,
    pub garbage_collector: JavaProcess,
}

/// How to start the servers above HDFS.
#[derive(Debug)]
pub(super) struct AccumuloPlan<'a> {
    pub site: AccumuloSite<'a>,
    /// The configuration directory of HDFS.
    pub hdfs_configuration: PathBuf,
    /// The directory with the identity of the instance.
    pub metadata: &'a Path,
}

impl AccumuloServers {
    /// Initialises the instance if it is new, cleans up if it was killed, and starts its processes. They accept clients
    /// when this returns.
    pub(super) fn start(
        environment: &ProcessEnvironment,
        plan: &AccumuloPlan<'_>,
        zookeeper: JavaProcess,
        identity: &mut InstanceIdentity,
    ) -> Result<AccumuloServers, SystemError> {
        let site = &plan.site;
        let file = environment.site_file();
        write_private(&file, &text(&site.properties())).map_err(environment.io(&file))?;
        let address = ZOOKEEPER
            .parse::<SocketAddr>()
            .map_err(|error| environment.failed(format!("{ZOOKEEPER} is no address: {error}")))?;
        zookeeper.wait_for_listener(address, environment.limit)?;
        let path = ClassPath::new().with_classes(&plan.hdfs_configuration).with_jars(&environment.library);
        let program = |name: &str, words: &[&str]| environment.program(name, MAIN, words, path.clone());
        match identity.life {
            InstanceStage::Making => {
                let words = ["init", "--instance-name", INSTANCE, "--password", &identity.password];
                let tool = program("init", &words);
                let made = tool.run(
                    &environment.java,
                    &environment.resources,
                    "initialising the instance",
                    environment.limit,
                );
                // Its folder contains the arguments, and so the password.
                let _ = std::fs::remove_dir_all(&tool.folder);
                made?;
            }
            InstanceStage::Running => {
                // Killed servers still hold their locks until their sessions expire. Removing them is safe, because no
                // other server can be running.
                let locks = program("zoo-zap", &["zoo-zap", "-manager", "-tservers", "--gc"]);
                locks.run(&environment.java, &environment.resources, "starting", environment.limit)?;
                set_to_run(environment, &path)?;
            }
            InstanceStage::Stopped => set_to_run(environment, &path)?,
        }
        identity.life = InstanceStage::Running;
        identity.logs = site.logs.iter().map(|log| log.directory.clone()).collect();
        identity.write(plan.metadata).map_err(environment.io(plan.metadata))?;

        let servers: Vec<JavaServer> =
            (0..site.config.nodes).map(|number| tablet_server(site, number, &program)).collect();
        let mut tablet_servers = Vec::new();
        for server in &servers {
            tablet_servers.push(Arc::new(server.start(&environment.java, &environment.resources)?));
        }
        // Started after the tablet servers: if the manager doesn't find them, it looks again only a second later.
        let mut manager = program("manager", &["manager", "-a", "127.0.0.1"]);
        manager.heap_bytes = MANAGER_HEAP_BYTES;
        let manager = manager.start(&environment.java, &environment.resources)?;
        let mut collector = program("garbage collector", &["gc", "-a", "127.0.0.1"]);
        collector.heap_bytes = GC_HEAP_BYTES;
        let garbage_collector = collector.start(&environment.java, &environment.resources)?;

        for (number, server) in (0..).zip(&tablet_servers) {
            server.wait_for_listener(address_of(number), environment.limit)?;
        }
        manager.wait_for_listener((Ipv4Addr::LOCALHOST, MANAGER_PORT).into(), environment.limit)?;
        garbage_collector.check("starting")?;
        let named = (0..).zip(tablet_servers).map(|(number, server)| (name_of(number), server));
        let tablet_servers = Roster::new(NAME, named);
        Ok(AccumuloServers { zookeeper, manager, tablet_servers, programs: servers, garbage_collector })
    }

    /// The states of all processes that were not sent away, ZooKeeper first.
    pub(super) fn states(&self) -> Vec<Arc<ChildState>> {
        let tablet_servers = self.tablet_servers.present();
        let first = [&self.zookeeper, &self.manager].into_iter();
        let all = first.chain(tablet_servers.iter().map(Arc::as_ref)).chain([&self.garbage_collector]);
        all.map(|process| Arc::clone(process.state())).collect()
    }

    /// The processes of the tablet servers that serve, by the address that each has in the instance.
    pub(super) fn serving(&self) -> BTreeMap<String, u32> {
        let states = (0..).zip(self.tablet_servers.states(None));
        let serving = states.filter(|(_, state)| state.condition == NodeCondition::Serving);
        serving.filter_map(|(number, state)| Some((address_of(number).to_string(), state.process?))).collect()
    }

    /// Fails if a process has ended by itself.
    pub(super) fn check(&self, during: &'static str) -> Result<(), SystemError> {
        [&self.zookeeper, &self.manager].into_iter().try_for_each(|process| process.check(during))?;
        self.tablet_servers.check(during)?;
        self.garbage_collector.check(during)
    }

    /// Has a tablet server hand its tablets over and end.
    pub(super) fn stop_tablet_server(
        &self,
        environment: &ProcessEnvironment,
        hdfs_configuration: &Path,
        name: &str,
    ) -> Result<(), SystemError> {
        const DURING: &str = "stopping a tablet server";
        self.tablet_servers.stop(name, DURING, |server| {
            let number =
                (0..self.programs.len() as u64).find(|number| name_of(*number) == name).unwrap_or_default();
            let path = ClassPath::new().with_classes(hdfs_configuration).with_jars(&environment.library);
            let words = ["admin", "stop", &address_of(number).to_string()];
            let tool = environment.program(&format!("stop-{name}"), MAIN, &words, path);
            tool.run(&environment.java, &environment.resources, DURING, environment.limit)?;
            server.state().wait(environment.limit);
            // One that was killed meanwhile was not stopped. Otherwise its exit status depends on whether it lost its
            // lock before it ended, so it means nothing.
            if server.was_killed() {
                Err(server.state().failed(DURING, server.state().describe()))
            } else {
                Ok(())
            }
        })
    }

    /// Starts a tablet server again; `has_tablets` asks the one at this address whether it has any.
    pub(super) fn start_tablet_server(
        &self,
        environment: &ProcessEnvironment,
        name: &str,
        process_back: &(dyn Fn() + Sync),
        has_tablets: &dyn Fn(&str) -> bool,
    ) -> Result<(), SystemError> {
        const DURING: &str = "starting a tablet server";
        let preparation = self.tablet_servers.prepare(name, DURING)?;
        let programs = (0..).zip(&self.programs).find(|(number, _)| name_of(*number) == name);
        let (number, program) = programs.ok_or_else(|| unknown(NAME, DURING, name, []))?;
        let started = program.start(&environment.java, &environment.resources);
        let process = Arc::new(started.map_err(|error| preparation.explained(error))?);
        let arrival = preparation.has(Arc::clone(&process))?;
        process_back();
        let address = address_of(number).to_string();
        let has_tablets = || Ok(has_tablets(&address));
        // The lock of the one that was killed has to expire first.
        let served = process.wait_until(DURING, "in charge of a tablet", environment.limit, &has_tablets);
        served.map_err(|error| arrival.explained(error))?;
        arrival.serves()
    }

    /// Flushes every tablet and stops every server, ZooKeeper last.
    pub(super) fn stop(
        self,
        environment: &ProcessEnvironment,
        hdfs_configuration: &Path,
    ) -> Result<(), SystemError> {
        const DURING: &str = "stopping";
        self.check(DURING)?;
        let path = ClassPath::new().with_classes(hdfs_configuration).with_jars(&environment.library);
        let tool = environment.program("stop-all", MAIN, &["admin", "stopAll"], path);
        tool.run(&environment.java, &environment.resources, DURING, environment.limit)?;
        self.manager.wait_for_end(environment.limit)?;
        // The manager waited for them. Their exit status depends on whether they lost their lock before or after the
        // stop command, so it means nothing.
        for server in self.tablet_servers.present() {
            if !server.state().wait(environment.limit) {
                return Err(server.state().failed(DURING, server.state().describe()));
            }
        }
        end_all([&self.garbage_collector], environment.limit)?;
        end_all([&self.zookeeper], environment.limit)
    }
}

/// The goal state is persistent: a manager that has shut everything down would do so again after its next start.
fn set_to_run(environment: &ProcessEnvironment, path: &ClassPath) -> Result<(), SystemError> {
    let class = "org.apache.accumulo.manager.state.SetGoalState";
    let tool = environment.program("goal-state", class, &["NORMAL"], path.clone());
    tool.run(&environment.java, &environment.resources, "starting", environment.limit).map(drop)
}

fn tablet_server(
    site: &AccumuloSite<'_>,
    number: u64,
    program: &dyn Fn(&str, &[&str]) -> JavaServer,
) -> JavaServer {
    let address = address_of(number).ip().to_string();
    let mut words = vec!["tserver", "-a", &address];
    let logs: Vec<String> = site.logs.iter().filter_map(|log| LogVolume::uri(&log.directory)).collect();
    let own = usize::try_from(number).ok().and_then(|number| logs.get(number % logs.len().max(1)));
    let own = own.map(|log| format!("{PREFERRED_LOG}={log}"));
    if let Some(own) = &own {
        words.extend(["-o", own]);
    }
    let AccumuloMemoryLayout { heap_bytes, .. } = site.division;
    let mut server = program(&format!("tablet server {}", number + 1), &words);
    (server.heap_bytes, server.direct_bytes) = (heap_bytes, Some(SERVER_DIRECT_BYTES));
    server.quick_start = false;
    if let Some(native) = &site.config.native_maps {
        server.options.push(format!("-Daccumulo.native.lib.path={}", native.display()));
    }
    server
}

/// Of a tablet server, counted from 0.
pub(super) fn name_of(number: u64) -> String {
    format!("tserver{}", number + 1)
}

/// Each tablet server has its own address, as if on its own machine.
fn address_of(number: u64) -> SocketAddr {
    let last = u8::try_from(number + 1).unwrap_or(u8::MAX);
    (Ipv4Addr::new(127, 0, 0, last), TABLET_SERVER_PORT).into()
}
