//! A ResourceManager and a NodeManager. Containers end with the NodeManager.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::memory::NODE_DIRECT_BYTES;
use super::site::RESOURCE_MANAGER;
use crate::java::{ClassPath, Java};
use crate::java_server::{JavaProcess, JavaServer};
use crate::network_namespace::NetworkNamespace;
use crate::pid_namespace::{NamespaceMounts, contained, program_of};
use crate::system::{SystemError, SystemResources};

const RESOURCE_MANAGER_CLASS: &str = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager";
const NODE_MANAGER_CLASS: &str = "org.apache.hadoop.yarn.server.nodemanager.NodeManager";
/// Both access private members of Java's own classes by reflection.
const OPENED: &str = "--add-opens=java.base/java.lang=ALL-UNNAMED";

/// The servers of YARN. Dropping this kills them and every container.
#[derive(Debug)]
pub(crate) struct Yarn {
    node_manager: JavaProcess,
    resource_manager: JavaProcess,
}

/// How to start them.
#[derive(Clone, Debug)]
pub(crate) struct YarnPlan<'a> {
    /// The system that uses it, which errors name.
    pub system: &'static str,
    pub configuration: &'a Path,
    pub class_path: ClassPath,
    pub scratch: &'a Path,
    /// The data directories of HDFS and tasks.
    pub directories: &'a [PathBuf],
    /// Of each of the two.
    pub heap_bytes: u64,
    pub limit: Duration,
}

impl Yarn {
    /// The working directory of the NodeManager, which contains its file of host names.
    pub(crate) fn node_folder(scratch: &Path) -> PathBuf {
        scratch.join("node-manager")
    }

    /// Starts both. The NodeManager may not have registered yet when this returns.
    pub(crate) fn start(
        java: &Java,
        plan: &YarnPlan<'_>,
        namespace: &Arc<NetworkNamespace>,
        resources: &SystemResources,
    ) -> Result<Yarn, SystemError> {
        let server = |name: &str, class: &str, folder: PathBuf| JavaServer {
            system: plan.system,
            name: name.to_owned(),
            class: class.to_owned(),
            arguments: Vec::new(),
            class_path: plan.class_path.clone(),
            heap_bytes: plan.heap_bytes,
            direct_bytes: Some(NODE_DIRECT_BYTES),
            options: vec![OPENED.to_owned()],
            environment: Vec::new(),
            quick_start: true,
            folder,
            namespace: Some(Arc::clone(namespace)),
            own_mounts: None,
        };
        let folder = plan.scratch.join("resource-manager");
        let resource_manager =
            server("ResourceManager", RESOURCE_MANAGER_CLASS, folder).start(java, resources)?;
        let folder = Yarn::node_folder(plan.scratch);
        let program = program_of(plan.system, java)?;
        let mut node_manager = server("NodeManager", NODE_MANAGER_CLASS, folder.clone());
        let home = program.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
        node_manager.environment = vec![
            ("JAVA_HOME".to_owned(), home.display().to_string()),
            // Containers get it from the NodeManager.
            ("HADOOP_CONF_DIR".to_owned(), plan.configuration.display().to_string()),
        ];
        // Containers leave the process group of their NodeManager. Tasks read `/proc` for their counters.
        let contained = contained(plan.system, java, &folder, NamespaceMounts::Own)?;
        let own = plan.directories.iter().map(PathBuf::as_path).chain([plan.scratch]);
        node_manager.own_mounts = Some(own.map(Path::to_path_buf).collect());
        let node_manager = node_manager.start(&contained, resources)?;
        let yarn = Yarn { node_manager, resource_manager };
        yarn.resource_manager.wait_for_listener(RESOURCE_MANAGER, plan.limit)?;
        Ok(yarn)
    }

    /// Fails with the end of its log if one of them has ended.
    pub(crate) fn check(&self, during: &'static str) -> Result<(), SystemError> {
        self.resource_manager.check(during)?;
        self.node_manager.check(during)
    }

    /// Kills both and every container. They have no state to save.
    pub(crate) fn end(&self) {
        self.node_manager.kill();
        self.resource_manager.kill();
    }
}
