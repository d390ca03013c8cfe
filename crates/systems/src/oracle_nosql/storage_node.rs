//! The processes of a storage node: an agent, which starts the replication nodes and the administration that it hosts.
//!
//! Oracle NoSQL Database keeps absolute paths in its data, and the same data are found at another path in each run. So
//! it gets paths by way of its working directory (`/proc/self/cwd/storage1`), which has links to where they are this
//! time.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::NAME;
use super::agent_log::LogPlace;
use super::config::NosqlConfig;
use super::home::KvHome;
use super::memory::{ADMIN_HEAP_BYTES, AGENT_HEAP_BYTES, MIB};
use super::places::{ReplicationDirectory, StorageNodePlace};
use crate::child::ChildState;
use crate::java::Java;
use crate::java_server::{JavaProcess, JavaServer};
use crate::network_namespace::NetworkNamespace;
use crate::nodes::NodeProcess;
use crate::pid_namespace::{processes_below, wait_until_gone};
use crate::private_file::write_private;
use crate::system::{SystemError, SystemResources};

pub(super) const STORE: &str = "underlay";
const MAIN: &str = "oracle.kv.impl.util.KVStoreMain";
/// Storage nodes have their own addresses, as if on their own machines. But parts of them listen on every address, so
/// they have their own ports as well: the registry's, those of replication, and those of services.
const FIRST_PORT: u16 = 5000;
const PORTS_OF_A_NODE: u16 = 200;
const PORTS_OF_REPLICATION: u16 = 40;
/// The heap of tools, which hold no data.
const TOOL_HEAP_BYTES: u64 = 96 * MIB;
/// Commands and parameters are taken apart by regular expressions, which need a deep stack for long ones.
const STACK: &str = "-Xss2m";
const SMALL_DIRECT_BYTES: u64 = 16 * MIB;
/// For what a file system needs itself, and for the administration.
const USABLE_SHARE: f64 = 0.95;
const ADMIN_MIB: u64 = 256;
/// How long it is waited until killed processes are gone, which never takes so long.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// The working directory of a storage node, as its processes see it.
const HERE: &str = "/proc/self/cwd";

/// The common plan of all storage nodes.
pub(super) struct StorageNodePlan {
    pub config: NosqlConfig,
    pub home: KvHome,
    /// For tools, and for what starts other processes.
    pub java: Java,
    pub contained: Java,
    pub network: Arc<NetworkNamespace>,
    pub resources: SystemResources,
    pub scratch: PathBuf,
    /// How long starting or stopping may take.
    pub limit: Duration,
}

/// The endpoint of a storage node's registry.
pub(super) fn endpoint(number: u64) -> SocketAddr {
    let last = u8::try_from(number).unwrap_or(u8::MAX);
    let before = u16::from(last.saturating_sub(1));
    (Ipv4Addr::new(127, 0, 0, last), FIRST_PORT + before * PORTS_OF_A_NODE).into()
}

/// The administration's database is beside the store's, on a device that the data scale makes small. JE writes nothing
/// while a disk has less than 5 GiB free (`je.freeDisk`), so the administration would lose each command. No parameter
/// of the administration changes that, but a file in the environment's directory does, which JE reads last.
fn let_it_fill_the_disk(administration: &Path) -> std::io::Result<()> {
    let environment = administration.join("admin1/env");
    std::fs::create_dir_all(&environment)?;
    write_private(&environment.join("je.properties"), "je.freeDisk=0\n")
}

impl StorageNodePlan {
    /// A process in the working directory of the storage node `name`, with the options that all have in common.
    fn program(&self, node: &str, name: &str, arguments: Vec<String>) -> JavaServer {
        JavaServer {
            system: NAME,
            name: name.to_owned(),
            class: MAIN.to_owned(),
            arguments,
            class_path: self.home.server(),
            heap_bytes: TOOL_HEAP_BYTES,
            direct_bytes: Some(SMALL_DIRECT_BYTES),
            options: vec![STACK.to_owned()],
            environment: Vec::new(),
            quick_start: true,
            folder: self.folder(node),
            namespace: Some(Arc::clone(&self.network)),
            own_mounts: None,
        }
    }

    /// A tool that belongs to no storage node.
    pub(super) fn tool(&self, name: &str, arguments: Vec<String>) -> JavaServer {
        self.program("tools", name, arguments)
    }

    fn folder(&self, node: &str) -> PathBuf {
        self.scratch.join(node)
    }

    /// Where the servers of a storage node log, and write their statistics down.
    pub(super) fn logs(&self, place: &StorageNodePlace) -> PathBuf {
        self.folder(&place.name()).join("log")
    }

    /// Where an agent tells how its services end, among others.
    pub(super) fn log_of_agent(&self, place: &StorageNodePlace) -> PathBuf {
        self.logs(place).join(format!("{}_0.log", place.name()))
    }

    /// Makes the working directory of a storage node anew, with links to its directories. Logs are kept off the storage
    /// under test.
    pub(super) fn make_folder(&self, place: &StorageNodePlace) -> Result<(), SystemError> {
        let folder = self.folder(&place.name());
        let made = || -> io::Result<()> {
            match std::fs::remove_dir_all(&folder) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            for made in ["log", "collector"] {
                std::fs::create_dir_all(folder.join(made))?;
            }
            symlink(std::path::absolute(&place.home)?, folder.join("home"))?;
            for (number, storage) in (1..).zip(&place.storages) {
                symlink(std::path::absolute(&storage.directory)?, folder.join(format!("storage{number}")))?;
            }
            Ok(())
        };
        made().map_err(|error| {
            SystemError::starting(NAME, format!("can't make the directory {}: {error}", folder.display()))
        })?;
        link_logs(place)
    }

    /// Writes the boot configuration of a new storage node.
    pub(super) fn configure(&self, place: &StorageNodePlace) -> Result<(), SystemError> {
        let root = place.home.join("root");
        let administration = place.home.join("admin");
        let made = std::fs::create_dir(&administration).and_then(|()| match place.number {
            1 => let_it_fill_the_disk(&administration),
            _ => Ok(()),
        });
        made.map_err(|error| {
            SystemError::starting(NAME, format!("can't make {}: {error}", administration.display()))
        })?;
        let arguments = self.boot_arguments(place)?;
        let tool = self.program(&place.name(), &format!("makebootconfig {}", place.name()), arguments);
        let output = tool.run(&self.java, &self.resources, "writing its boot configuration", self.limit)?;
        match root.join("config.xml").is_file() {
            true => Ok(()),
            false => {
                let problem =
                    format!("there is no boot configuration for {}: {}", place.name(), output.trim());
                Err(SystemError::starting(NAME, problem))
            }
        }
    }

    fn boot_arguments(&self, place: &StorageNodePlace) -> Result<Vec<String>, SystemError> {
        let (address, port) = (endpoint(place.number).ip(), endpoint(place.number).port());
        let services = port + PORTS_OF_REPLICATION;
        let nodes = self.config.division().storage_node_mib(self.config.capacity);
        let mut words = vec![
            "makebootconfig".to_owned(),
            "-root".to_owned(),
            "home/root".to_owned(),
            "-host".to_owned(),
            address.to_string(),
            "-port".to_owned(),
            port.to_string(),
            "-harange".to_owned(),
            format!("{},{}", port + 1, services - 1),
            "-servicerange".to_owned(),
            format!("{services},{}", port + PORTS_OF_A_NODE - 1),
            "-admin-web-port".to_owned(),
            "-1".to_owned(),
            "-capacity".to_owned(),
            self.config.capacity.to_string(),
            "-memory_mb".to_owned(),
            nodes.to_string(),
            // Nobody else can enter the network that it is in.
            "-store-security".to_owned(),
            "none".to_owned(),
            // It knows only Java of certain vendors, and fewer MiB than a budget may have. Errors show all the same.
            "-force".to_owned(),
            "-admindir".to_owned(),
            format!("{HERE}/home/admin"),
            "-admindirsize".to_owned(),
            format!("{ADMIN_MIB}-MB"),
        ];
        for (number, storage) in (1..).zip(&place.storages) {
            words.extend(["-storagedir".to_owned(), format!("{HERE}/storage{number}")]);
            words.extend(["-storagedirsize".to_owned(), format!("{}-MB", size_mib(storage)?)]);
        }
        if place.number != 1 {
            words.push("-noadmin".to_owned());
        }
        Ok(words)
    }

    /// Starts the agent of a storage node. It need not answer yet when this returns.
    pub(super) fn start(&self, place: &StorageNodePlace) -> Result<StorageNode, SystemError> {
        let words = ["start", "-root", "home/root"].map(str::to_owned).to_vec();
        let name = format!("storage node {}", place.number);
        let mut agent = self.program(&place.name(), &name, words);
        agent.heap_bytes = AGENT_HEAP_BYTES;
        let of_services = self.options_of_services(&agent.folder);
        agent.options.push(format!("-Doracle.kv.jvm.extraargs={of_services}"));
        let process = agent.start(&self.contained, &self.resources)?;
        Ok(StorageNode { place: place.clone(), process })
    }

    /// Java's options for the processes that an agent starts. Replication nodes have further ones, which override
    /// these.
    fn options_of_services(&self, folder: &Path) -> String {
        let heap_mib = ADMIN_HEAP_BYTES / MIB;
        let hosts = crate::java_server::hosts_option(&folder.join("hosts"));
        let temporary = folder.join("tmp");
        let mut options = vec![
            "-Xms16m".to_owned(),
            format!("-Xmx{heap_mib}m"),
            "-XX:+UseSerialGC".to_owned(),
            STACK.to_owned(),
            "-XX:ReservedCodeCacheSize=64m".to_owned(),
            "-XX:MaxDirectMemorySize=64m".to_owned(),
            "-XX:+ExitOnOutOfMemoryError".to_owned(),
            "-XX:-UsePerfData".to_owned(),
            "-Djava.net.preferIPv4Stack=true".to_owned(),
            format!("-Djava.io.tmpdir={}", temporary.display()),
            hosts,
        ];
        options.extend(self.resources.java_option());
        options.join(";")
    }

    /// The parameters of storage nodes: how long an agent lets a service write everything out before it kills it.
    pub(super) fn parameters(&self) -> BTreeMap<String, String> {
        let wait = format!("{}_SECONDS", self.limit.as_secs());
        BTreeMap::from([("serviceStopWait".to_owned(), wait)])
    }

    /// Shuts a storage node down with all that it hosts.
    ///
    /// # Errors
    /// When a service has not ended by itself, among others: then it may not have written everything out.
    pub(super) fn stop(&self, node: &StorageNode) -> Result<(), SystemError> {
        const DURING: &str = "stopping";
        let words = ["stop", "-root", "home/root"].map(str::to_owned).to_vec();
        let name = node.place.name();
        let log = self.log_of_agent(&node.place);
        let before = LogPlace::end_of(&log);
        self.program(&name, &format!("stop {name}"), words).run(
            &self.java,
            &self.resources,
            DURING,
            self.limit,
        )?;
        node.process.wait_for_end(self.limit)?;
        let ends = before.unclean_ends().map_err(|error| {
            let problem = format!("can't read how the services of {name} ended: {}: {error}", log.display());
            SystemError::failed(NAME, DURING, problem)
        })?;
        match ends.first() {
            None => Ok(()),
            Some(line) => {
                let problem =
                    format!("a service of {name} did not end by itself and may have lost data: {line}");
                Err(SystemError::failed(NAME, DURING, problem))
            }
        }
    }
}

/// Leads what a storage node logs from its root to its working directory. Links are made at each start, since a copy of
/// the data need not have them: then the servers would log to the storage under test.
fn link_logs(place: &StorageNodePlace) -> Result<(), SystemError> {
    let store = place.home.join("root").join(STORE);
    let links = [
        (store.join("log"), Path::new(HERE).join("log")),
        (store.join(place.name()).join("collector"), Path::new(HERE).join("collector")),
    ];
    for (link, target) in links {
        let made = || -> io::Result<()> {
            std::fs::create_dir_all(link.parent().unwrap_or(&store))?;
            match std::fs::symlink_metadata(&link) {
                Ok(found) if found.is_symlink() => std::fs::remove_file(&link)?,
                Ok(_) => {
                    return Err(io::Error::new(
                        io::ErrorKind::AlreadyExists,
                        "it is not a link, so the store has been started by other means; move it away and start again",
                    ));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            symlink(target, &link)
        };
        made().map_err(|error| {
            SystemError::starting(
                NAME,
                format!("can't link {} to the run's directory: {error}", link.display()),
            )
        })?;
    }
    Ok(())
}

/// The part of a volume that each of its replication nodes may fill.
fn size_mib(storage: &ReplicationDirectory) -> Result<u64, SystemError> {
    let volume = rustix::fs::statvfs(&storage.directory).map_err(|error| {
        let directory = storage.directory.display();
        SystemError::starting(NAME, format!("can't find out how large the volume of {directory} is: {error}"))
    })?;
    let bytes = (volume.f_blocks * volume.f_frsize) as f64 * USABLE_SHARE / storage.sharing.max(1) as f64;
    Ok((bytes as u64 / MIB).saturating_sub(ADMIN_MIB / storage.sharing.max(1)).max(1))
}

/// A storage node with its processes. Dropping it kills them.
pub(super) struct StorageNode {
    pub place: StorageNodePlace,
    pub process: JavaProcess,
}

impl NodeProcess for StorageNode {
    fn state(&self) -> &Arc<ChildState> {
        self.process.state()
    }

    fn kill(&self) {
        StorageNode::kill(self);
    }
}

impl Drop for StorageNode {
    fn drop(&mut self) {
        self.kill();
    }
}

impl StorageNode {
    /// Kills the agent and all that it has started, and waits until they are gone.
    pub(super) fn kill(&self) {
        let processes = self.processes();
        self.process.kill();
        wait_until_gone(&processes, KILL_LIMIT);
    }

    pub(super) fn wait_for_agent(&self, limit: Duration) -> Result<(), SystemError> {
        self.process.wait_for_listener(endpoint(self.place.number), limit)
    }

    /// The agent with all that it has started.
    pub(super) fn processes(&self) -> Vec<u32> {
        match self.state().is_running() {
            true => processes_below(self.state().pid()),
            false => Vec::new(),
        }
    }
}

/// Runs `work` for each of these at once and returns the first error.
pub(super) fn run_parallel<T: Sync>(
    all: &[T],
    work: impl Fn(&T) -> Result<(), SystemError> + Sync,
) -> Result<(), SystemError> {
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = all.iter().map(|one| scope.spawn(move || work(one))).collect();
        let outcomes = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        let outcomes: Vec<_> = outcomes.collect();
        outcomes.into_iter().collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_nodes_have_their_own_addresses_and_ports() {
        assert_eq!(endpoint(1).to_string(), "127.0.0.1:5000");
        assert_eq!(endpoint(3).to_string(), "127.0.0.3:5400");
        assert_eq!(endpoint(32).port(), 11_200);
    }

    #[test]
    fn logs_leave_storage_even_without_links() {
        let folder = tempfile::TempDir::new().unwrap();
        let place = StorageNodePlace { number: 2, home: folder.path().to_owned(), storages: Vec::new() };
        let links = ["root/underlay/log", "root/underlay/sn2/collector"].map(|link| folder.path().join(link));
        let targets = || links.clone().map(|link| std::fs::read_link(link).unwrap());
        link_logs(&place).unwrap();
        assert_eq!(targets(), ["/proc/self/cwd/log", "/proc/self/cwd/collector"].map(PathBuf::from));
        std::fs::remove_file(&links[0]).unwrap();
        std::fs::remove_file(&links[1]).unwrap();
        symlink("/elsewhere", &links[1]).unwrap();
        link_logs(&place).unwrap();
        assert_eq!(targets(), ["/proc/self/cwd/log", "/proc/self/cwd/collector"].map(PathBuf::from));
        std::fs::remove_file(&links[0]).unwrap();
        std::fs::create_dir(&links[0]).unwrap();
        let refused = link_logs(&place).unwrap_err().to_string();
        assert!(refused.contains("root/underlay/log") && refused.contains("move it away"), "{refused}");
        assert!(links[0].is_dir());
    }

    #[test]
    fn volume_is_divided_among_replication_nodes() {
        let folder = tempfile::TempDir::new().unwrap();
        let memory_of = |sharing| {
            size_mib(&ReplicationDirectory { directory: folder.path().to_owned(), volume: None, sharing })
                .unwrap()
        };
        assert!(
            memory_of(3) * 3 <= memory_of(1) + ADMIN_MIB && memory_of(3) * 4 > memory_of(1),
            "{} {}",
            memory_of(1),
            memory_of(3)
        );
        let missing =
            ReplicationDirectory { directory: folder.path().join("none"), volume: None, sharing: 1 };
        assert!(size_mib(&missing).unwrap_err().to_string().contains("none"));
    }
}
