//! What starts executors: Spark's own master and workers, YARN, or a cluster that runs already.

use super::servers::Servers;
use super::shuffle_service::ShuffleService;
use crate::hadoop::Yarn;
use crate::java_server::JavaProcess;
use crate::nodes::Roster;
use crate::system::SystemError;

/// Dropping this kills what was started, and every executor.
#[derive(Debug)]
pub(super) enum Manager {
    Standalone(Box<Servers>),
    Yarn(Box<Yarn>),
    /// Nothing of it is ours.
    Elsewhere,
}

impl Manager {
    /// Fails with the end of a server's log if it has ended and was not sent away.
    pub(super) fn check(&self, during: &'static str) -> Result<(), SystemError> {
        match self {
            Manager::Standalone(servers) => servers.check(during),
            Manager::Yarn(yarn) => yarn.check(during),
            Manager::Elsewhere => Ok(()),
        }
    }

    /// Spark's own workers, which can go away and come back.
    pub(super) fn workers(&self) -> Option<&Roster<JavaProcess>> {
        match self {
            Manager::Standalone(servers) => Some(&servers.workers),
            Manager::Yarn(_) | Manager::Elsewhere => None,
        }
    }

    pub(super) fn shuffle_service(&self) -> Option<ShuffleService> {
        match self {
            Manager::Standalone(servers) => servers.shuffle_service(),
            Manager::Yarn(_) | Manager::Elsewhere => None,
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
            Manager::Standalone(servers) => servers.start_again(name, process_back),
            Manager::Yarn(_) | Manager::Elsewhere => {
                Err(crate::nodes::unknown(super::NAME, DURING, name, []))
            }
        }
    }

    /// Kills what was started, and every executor. None of it has a state to save.
    pub(super) fn end(&self) {
        match self {
            Manager::Standalone(servers) => servers.end(),
            Manager::Yarn(yarn) => yarn.end(),
            Manager::Elsewhere => {}
        }
    }
}
