//! Managers of executors: Spark's own master and workers, YARN, or a cluster that runs already.

use super::servers::SparkServers;
use super::shuffle_service::ShuffleService;
use crate::hadoop::Yarn;
use crate::java_server::JavaProcess;
use crate::nodes::Roster;
use crate::system::SystemError;

/// Dropping this kills what was started, and every executor.
#[derive(Debug)]
pub(super) enum ClusterManager {
    Standalone(Box<SparkServers>),
    Yarn(Box<Yarn>),
    /// Nothing of it is ours.
    Elsewhere,
}

impl ClusterManager {
    /// Fails with the end of a server's log if it has ended and was not sent away.
    pub(super) fn check(&self, during: &'static str) -> Result<(), SystemError> {
        match self {
            ClusterManager::Standalone(servers) => servers.check(during),
            ClusterManager::Yarn(yarn) => yarn.check(during),
            ClusterManager::Elsewhere => Ok(()),
        }
    }

    /// Spark's own workers, which can go away and come back.
    pub(super) fn workers(&self) -> Option<&Roster<JavaProcess>> {
        match self {
            ClusterManager::Standalone(servers) => Some(&servers.workers),
            ClusterManager::Yarn(_) | ClusterManager::Elsewhere => None,
        }
    }

    pub(super) fn shuffle_service(&self) -> Option<ShuffleService> {
        match self {
            ClusterManager::Standalone(servers) => servers.shuffle_service(),
            ClusterManager::Yarn(_) | ClusterManager::Elsewhere => None,
        }
    }

    /// Starts a worker again that was sent away.
    pub(super) fn start_again(
        &self,
        name: &str,
        process_back: &(dyn Fn() + Sync),
    ) -> Result<(), SystemError> {
        const DURING: &str = "starting a worker";
        match self {
            ClusterManager::Standalone(servers) => servers.start_again(name, process_back),
            ClusterManager::Yarn(_) | ClusterManager::Elsewhere => {
                Err(crate::nodes::unknown(super::NAME, DURING, name, []))
            }
        }
    }

    /// Kills what was started, and every executor. None of it has a state to save.
    pub(super) fn end(&self) {
        match self {
            ClusterManager::Standalone(servers) => servers.end(),
            ClusterManager::Yarn(yarn) => yarn.end(),
            ClusterManager::Elsewhere => {}
        }
    }
}
