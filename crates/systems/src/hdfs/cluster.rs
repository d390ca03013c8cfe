//! A NameNode and its DataNodes, from formatting an empty directory to shutting down.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use underlay_record::{NodeCondition, NodeRole, NodeState};
use underlay_sync::Mutex;

use super::configuration::{LOG_LEVEL, NAMENODE_WEB, datanode_arguments, datanode_web, uri, write};
use super::figures::{
    DataNodeMetrics, NamespaceState, VolumeUse, datanode_figures, is_registered, namenode_figures,
    namespace_state, volumes,
};
use super::plan::{DATANODE_DIRECT_BYTES, HdfsPlan};
use crate::artifacts::HADOOP;
use crate::child::ChildState;
use crate::figures::{CURRENT, NodeTotals};
use crate::java::{ClassPath, Java};
use crate::java_server::{JavaProcess, JavaServer, end_all};
use crate::network_namespace::NetworkNamespace;
use crate::nodes::{PlannedNode, Roster, SystemNodes};
use crate::system::{SystemError, SystemResources};

/// Starting reads the NameNode's image and each directory's list of blocks: on a slow disk both take their time, so
/// these limits only tell a stuck process from a slow one.
const START_LIMIT_S: f64 = 240.0;
const STOP_LIMIT_S: f64 = 60.0;
const POLL: Duration = Duration::from_millis(100);
/// For tools, which are not measured.
const TOOL_HEAP_BYTES: u64 = 128 << 20;
const MIB: f64 = (1 << 20) as f64;

const NAMENODE: &str = "org.apache.hadoop.hdfs.server.namenode.NameNode";
const DATANODE: &str = "org.apache.hadoop.hdfs.server.datanode.DataNode";
const SHELL: &str = "org.apache.hadoop.fs.FsShell";

/// A file system that serves clients. Dropping it kills its processes; [`Hdfs::stop`] shuts them down.
#[derive(Debug)]
pub struct Hdfs {
    plan: HdfsPlan,
    // Dropped before the NameNode, so that their logs are not full of its loss.
    datanodes: Roster<JavaProcess>,
    namenode: JavaProcess,
    namespace: Arc<NetworkNamespace>,
    programs: HdfsPrograms,
    resources: SystemResources,
    shells: AtomicU64,
    totals: Mutex<NodeTotals>,
}

/// The nodes that a file system of so many DataNodes will have.
pub(crate) fn planned_nodes(datanodes: usize) -> Vec<PlannedNode> {
    let planned =
        |number| PlannedNode { name: name_of(number), roles: &[NodeRole::DataNode], shards: Vec::new() };
    if datanodes < 2 { Vec::new() } else { (0..datanodes).map(planned).collect() }
}

/// The effect on clients while so many DataNodes are down and blocks have so many copies.
pub(crate) fn without_datanodes(away: usize, copies: u64) -> Option<String> {
    (away as u64 >= copies).then(|| {
        format!("blocks have {copies} copies: some have none left while {away} DataNodes are away, and can't be read")
    })
}

/// Of a DataNode, counted from 0.
pub(super) fn name_of(number: usize) -> String {
    format!("datanode{}", number + 1)
}

/// State that all programs of the file system share.
#[derive(Clone, Debug)]
struct HdfsPrograms {
    java: Java,
    library: PathBuf,
    configuration: PathBuf,
}

impl HdfsPrograms {
    fn class_path(&self) -> ClassPath {
        ClassPath::new().with_classes(&self.configuration).with_jars(&self.library)
    }

    fn datanode(&self, plan: &HdfsPlan, namespace: &Arc<NetworkNamespace>, number: usize) -> JavaServer {
        let mut datanode = self.server(plan, namespace, &format!("DataNode {}", number + 1), DATANODE);
        datanode.heap_bytes = plan.heaps.datanode_bytes;
        datanode.direct_bytes = Some(DATANODE_DIRECT_BYTES);
        datanode.arguments = datanode_arguments(plan, number);
        datanode
    }

    fn server(
        &self,
        plan: &HdfsPlan,
        namespace: &Arc<NetworkNamespace>,
        name: &str,
        class: &str,
    ) -> JavaServer {
        JavaServer {
            system: plan.system,
            name: name.to_owned(),
            class: class.to_owned(),
            arguments: Vec::new(),
            class_path: self.class_path(),
            heap_bytes: TOOL_HEAP_BYTES,
            direct_bytes: None,
            options: Vec::new(),
            environment: Vec::new(),
            quick_start: true,
            folder: plan.scratch.join(name.to_lowercase().replace(' ', "-")),
            namespace: Some(Arc::clone(namespace)),
            own_mounts: None,
        }
    }
}

impl Hdfs {
    /// Starts the file system of `plan` in the network `namespace`, inside `memory`, after formatting it if it is
    /// empty. When this returns, every DataNode has registered and files can be written.
    ///
    /// # Errors
    /// When the plan or the budget does not allow it, a program is missing, or a server does not start.
    pub fn start(
        plan: &HdfsPlan,
        namespace: &Arc<NetworkNamespace>,
        resources: &SystemResources,
    ) -> Result<Hdfs, SystemError> {
        plan.check()?;
        let needed_bytes = plan.heaps.resident_bytes(plan.datanodes.len() as u64);
        if resources.budget_bytes < needed_bytes {
            return plan.failed(format!(
                "a NameNode and {} DataNodes need {:.0} MiB of memory and the budget is {:.0} MiB: give it more, or \
                 fewer DataNodes",
                plan.datanodes.len(),
                needed_bytes as f64 / MIB,
                resources.budget_bytes as f64 / MIB
            ));
        }
        let programs = HdfsPrograms {
            java: Java::find(plan.system)?,
            library: HADOOP.directory(&|_| {}).map_err(|error| error.into_system_error(plan.system))?,
            configuration: plan.scratch.join("configuration"),
        };
        prepare(plan, &programs)?;
        // A prepared data set has a name directory, and to format it would lose all files.
        let is_new = is_empty(&plan.name_directory);
        if is_new {
            format(plan, namespace, &programs, resources)?;
        }
        let mut namenode = programs.server(plan, namespace, "NameNode", NAMENODE);
        namenode.heap_bytes = plan.heaps.namenode_bytes;
        let namenode = namenode.start(&programs.java, resources)?;
        let mut datanodes = Vec::new();
        for number in 0..plan.datanodes.len() {
            let datanode = programs.datanode(plan, namespace, number);
            datanodes.push((name_of(number), Arc::new(datanode.start(&programs.java, resources)?)));
        }
        // Made before the wait: if that fails, the servers go with it.
        let hdfs = Hdfs {
            plan: plan.clone(),
            datanodes: Roster::new(plan.system, datanodes),
            namenode,
            namespace: Arc::clone(namespace),
            programs,
            resources: resources.clone(),
            shells: AtomicU64::new(0),
            totals: Mutex::default(),
        };
        hdfs.wait_until_ready()?;
        Ok(hdfs)
    }

    fn wait_until_ready(&self) -> Result<(), SystemError> {
        let limit = self.stretched(START_LIMIT_S);
        let started = Instant::now();
        loop {
            self.check_processes("starting")?;
            let state = namespace_state(&self.namespace, NAMENODE_WEB);
            let expected = self.plan.datanodes.len() as u64;
            let problem = match state {
                Ok(state) if state.is_operational() && state.live_datanodes == expected => return Ok(()),
                Ok(state) => {
                    format!(
                        "{} of {expected} DataNodes have registered, and its state is '{}'",
                        state.live_datanodes, state.name
                    )
                }
                Err(error) => format!("the NameNode does not answer: {error}"),
            };
            if started.elapsed() > limit {
                let problem = format!("it is not ready after {:.0} s: {problem}", limit.as_secs_f64());
                return Err(self.namenode.state().failed("starting", problem));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Its URI for clients: `hdfs://127.0.0.1:8020`.
    pub(crate) fn uri(&self) -> String {
        uri(&self.plan)
    }

    /// The directory with `core-site.xml`, `hdfs-site.xml` and `log4j.properties`, for clients and for systems that run
    /// on HDFS.
    pub fn configuration_directory(&self) -> &Path {
        &self.programs.configuration
    }

    /// Hadoop's jars.
    pub fn library(&self) -> &Path {
        &self.programs.library
    }

    /// The configuration and the jars.
    pub fn class_path(&self) -> ClassPath {
        self.programs.class_path()
    }

    pub fn plan(&self) -> &HdfsPlan {
        &self.plan
    }

    pub fn namespace(&self) -> &Arc<NetworkNamespace> {
        &self.namespace
    }

    /// The ids of the running processes.
    pub fn processes(&self) -> Vec<u32> {
        let states = self.states().into_iter().filter(|state| state.is_running());
        states.map(|state| state.pid()).collect()
    }

    /// The states of all processes, the NameNode first, for explaining why a client gets no answers.
    pub fn states(&self) -> Vec<Arc<ChildState>> {
        let datanodes = self.datanodes.present();
        let states = datanodes.iter().map(|process| Arc::clone(process.state()));
        std::iter::once(Arc::clone(self.namenode.state())).chain(states).collect()
    }

    /// Fails with the first process that has ended, unless it was killed here.
    fn check_processes(&self, during: &'static str) -> Result<(), SystemError> {
        if !self.namenode.was_killed() {
            self.namenode.check(during)?;
        }
        self.datanodes.check(during)
    }

    /// Checks that the file system works.
    ///
    /// # Errors
    /// When a process has ended that was not killed here, or files can't be written.
    pub fn health(&self) -> Result<(), SystemError> {
        self.check_processes("running")?;
        let state = self.namespace_state("running")?;
        if state.is_operational() {
            return Ok(());
        }
        let problem = format!("its NameNode does not accept writes: its state is '{}'", state.name);
        Err(self.namenode.state().failed("running", problem))
    }

    fn namespace_state(&self, during: &'static str) -> Result<NamespaceState, SystemError> {
        namespace_state(&self.namespace, NAMENODE_WEB)
            .map_err(|error| self.silent(&self.namenode, during, &error))
    }

    fn silent(&self, process: &JavaProcess, during: &'static str, error: &std::io::Error) -> SystemError {
        let state = process.state();
        state.failed(during, format!("{}, but does not answer: {error}", state.describe()))
    }

    /// The figures of the NameNode and of the running DataNodes. In their names, DataNodes are counted from 1, as in
    /// messages, and directories from 0, as in records.
    ///
    /// # Errors
    /// When a server does not answer.
    pub fn figures(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        const DURING: &str = "reading its figures";
        // Held while nodes are asked: an answer that is counted after a newer one would look like a reset.
        let mut totals = self.totals.lock();
        let mut figures: DataNodeMetrics = namenode_figures(&self.namespace, NAMENODE_WEB)
            .map_err(|error| self.silent(&self.namenode, DURING, &error))?;
        let nodes = self.ask_datanodes(DURING, |address, number| {
            datanode_figures(&self.namespace, address, number, &self.plan.datanodes[number])
        })?;
        for (number, process, node) in nodes {
            totals.count(&name_of(number), process.state().pid(), &node, &|_| false);
            for (name, figure) in node.into_iter().filter(|(name, _)| name.starts_with(CURRENT)) {
                *figures.entry(name).or_default() += figure;
            }
        }
        figures.extend(totals.totals());
        Ok(figures)
    }

    /// The data of each running DataNode in each of its directories.
    ///
    /// # Errors
    /// When a server does not answer.
    pub fn volumes(&self) -> Result<Vec<VolumeUse>, SystemError> {
        let nodes = self.ask_datanodes("reading the use of its directories", |address, number| {
            volumes(&self.namespace, address, number, &self.plan.datanodes[number])
        })?;
        Ok(nodes.into_iter().flat_map(|(_, _, volumes)| volumes).collect())
    }

    /// Asks each DataNode that serves, and tells its number and process with its answer.
    fn ask_datanodes<T>(
        &self,
        during: &'static str,
        ask: impl Fn(SocketAddr, usize) -> std::io::Result<T>,
    ) -> Result<Vec<(usize, Arc<JavaProcess>, T)>, SystemError> {
        let mut answers = Vec::new();
        for (number, (_, condition, process)) in self.datanodes.all().into_iter().enumerate() {
            let Some(process) = process.filter(|_| condition != NodeCondition::Starting) else { continue };
            match ask(datanode_web(number), number) {
                Ok(answer) => answers.push((number, process, answer)),
                // It may have been sent away meanwhile.
                Err(_) if !self.datanodes.is_present(&process) => {}
                Err(error) => return Err(self.silent(&process, during, &error)),
            }
        }
        Ok(answers)
    }

    /// Waits until every block has all of its copies and deleted blocks are gone.
    ///
    /// # Errors
    /// When that takes longer than `limit`, or a process ends meanwhile.
    pub fn settle(&self, limit: Duration) -> Result<(), SystemError> {
        const DURING: &str = "settling";
        let started = Instant::now();
        loop {
            self.check_processes(DURING)?;
            let state = self.namespace_state(DURING)?;
            if state.under_replicated_blocks + state.pending_copies == 0 && state.pending_deletions == 0 {
                return Ok(());
            }
            if started.elapsed() > limit {
                let problem = format!(
                    "after {:.0} s, {} blocks have too few copies, {} are being copied and {} wait for deletion",
                    limit.as_secs_f64(),
                    state.under_replicated_blocks,
                    state.pending_copies,
                    state.pending_deletions
                );
                return Err(self.namenode.state().failed(DURING, problem));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Runs `hdfs dfs` with these arguments, outside of the memory budget, and returns what it printed.
    ///
    /// # Errors
    /// When it fails, or takes longer than `limit`.
    pub fn shell(
        &self,
        words: &[&str],
        during: &'static str,
        limit: Duration,
    ) -> Result<String, SystemError> {
        let mut shell = self.programs.server(&self.plan, &self.namespace, "hdfs dfs", SHELL);
        // Several may run at once.
        let number = self.shells.fetch_add(1, Ordering::Relaxed);
        shell.folder = self.plan.scratch.join(format!("hdfs-dfs-{number}"));
        shell.options.push(format!("-D{LOG_LEVEL}=ERROR"));
        shell.arguments = words.iter().map(|&word| word.to_owned()).collect();
        let output = shell.run(&self.programs.java, &self.resources, during, limit)?;
        // After a failure the folder is kept for its log. If it can't be removed, it stays in the scratch directory.
        let _ = std::fs::remove_dir_all(&shell.folder);
        Ok(output)
    }

    /// Kills the NameNode, without which nothing works.
    pub(crate) fn kill_namenode(&self) {
        self.namenode.kill();
    }

    /// Kills a DataNode, counted from 0, as if it had lost power. It is not restarted.
    pub fn kill_datanode(&self, number: usize) {
        // One that does not run is dead already.
        let _ = SystemNodes::kill(self, &name_of(number));
    }

    /// Shuts down the DataNodes and then the NameNode; those that take too long are killed.
    ///
    /// # Errors
    /// The first server that had to be killed or failed.
    pub fn stop(self) -> Result<(), SystemError> {
        let limit = self.stretched(STOP_LIMIT_S);
        let datanodes = self.datanodes.present();
        let datanodes = end_all(datanodes.iter().map(Arc::as_ref), limit);
        let namenode = self.namenode.end(limit);
        datanodes.and(namenode)
    }

    fn stretched(&self, s: f64) -> Duration {
        stretched(s, self.plan.slow_motion)
    }
}

impl SystemNodes for Hdfs {
    fn list(&self) -> Result<Vec<NodeState>, SystemError> {
        Ok(self.datanodes.states(Some(NodeRole::DataNode)))
    }

    fn stop(&self, name: &str) -> Result<(), SystemError> {
        let limit = self.stretched(STOP_LIMIT_S);
        self.datanodes.stop(name, "stopping a DataNode", |process| process.end(limit))
    }

    fn kill(&self, name: &str) -> Result<(), SystemError> {
        self.datanodes.kill(name, "killing a DataNode")
    }

    fn start(&self, name: &str, process_back: &(dyn Fn() + Sync)) -> Result<(), SystemError> {
        const DURING: &str = "starting a DataNode";
        let preparation = self.datanodes.prepare(name, DURING)?;
        let number =
            (0..self.plan.datanodes.len()).find(|&number| name_of(number) == name).unwrap_or_default();
        let server = self.programs.datanode(&self.plan, &self.namespace, number);
        let started = server.start(&self.programs.java, &self.resources);
        let process = Arc::new(started.map_err(|error| preparation.explained(error))?);
        let arrival = preparation.has(Arc::clone(&process))?;
        process_back();
        let limit = self.stretched(START_LIMIT_S);
        let is_there = || {
            self.namenode.check(DURING)?;
            Ok(is_registered(&self.namespace, datanode_web(number)).unwrap_or(false))
        };
        let registered = process.wait_until(DURING, "registered with the NameNode", limit, &is_there);
        registered.map_err(|error| arrival.explained(error))?;
        arrival.serves()
    }
}

fn stretched(s: f64, slow_motion: f64) -> Duration {
    Duration::try_from_secs_f64(s * slow_motion.max(1.0)).unwrap_or(Duration::MAX)
}

/// Creates the directories and the configuration.
fn prepare(plan: &HdfsPlan, programs: &HdfsPrograms) -> Result<(), SystemError> {
    let make = |directory: &Path| {
        std::fs::create_dir_all(directory).or_else(|error| {
            plan.failed(format!("can't make the directory {}: {error}", directory.display()))
        })
    };
    let directories = plan.datanodes.iter().flatten().map(|directory| directory.path.as_path());
    directories.chain([plan.name_directory.as_path(), &plan.scratch]).try_for_each(make)?;
    write(plan, &programs.configuration).or_else(|error| {
        let folder = programs.configuration.display();
        plan.failed(format!("can't write the configuration in {folder}: {error}"))
    })
}

fn is_empty(directory: &Path) -> bool {
    !directory.join("current/VERSION").exists()
}

/// Formats a new file system. DataNodes refuse to start on directories that belong to another one.
fn format(
    plan: &HdfsPlan,
    namespace: &Arc<NetworkNamespace>,
    programs: &HdfsPrograms,
    resources: &SystemResources,
) -> Result<(), SystemError> {
    if let Some(used) = plan.datanodes.iter().flatten().find(|directory| !is_empty(&directory.path)) {
        return plan.failed(format!(
            "{} has blocks of a file system whose NameNode's directory is gone ({} is empty): use directories of one file \
             system, or empty ones",
            used.path.display(),
            plan.name_directory.display()
        ));
    }
    let mut tool = programs.server(plan, namespace, "NameNode format", NAMENODE);
    tool.arguments = ["-format", "-nonInteractive"].map(str::to_owned).into();
    tool.run(&programs.java, resources, "starting", stretched(START_LIMIT_S, plan.slow_motion)).map(drop)
}
