//! Why a pool can't be served, or a command not be done.

use std::path::PathBuf;

use super::protocol::{FailureKind, PoolReply};
use crate::pool::PoolError;

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("cannot {act} {}: {source}", path.display())]
    Io { act: &'static str, path: PathBuf, source: std::io::Error },
    #[error("the pool '{pool}' is in use by process {}: stop that first, or query it with `underlay volume \
         list`", pid.map_or("?".to_owned(), |pid| pid.to_string()))]
    Taken { pool: String, pid: Option<u32> },
    #[error(
        "cannot listen on {address}: {source}; choose another `listen` in the pool's file, or `--listen`"
    )]
    Listen { address: std::net::SocketAddr, source: std::io::Error },
    #[error("the device {name}: {problem}")]
    Device { name: String, problem: String },
    #[error("the pool '{pool}': {source}")]
    Pool { pool: String, source: PoolError },
    #[error("{0}")]
    Volume(#[from] PoolError),
    /// What was asked for can't be, in words that say what can.
    #[error("{0}")]
    Mistake(String),
    #[error("{0}")]
    Failed(String),
}

impl ServerError {
    pub(super) fn io(act: &'static str, path: impl Into<PathBuf>, source: std::io::Error) -> ServerError {
        ServerError::Io { act, path: path.into(), source }
    }

    pub(super) fn real_devices() -> ServerError {
        ServerError::Mistake("the pool's devices are real: nothing of them is modelled".to_owned())
    }

    /// Whether another command or file would be right; otherwise the storage or the host is to blame.
    pub fn is_mistake(&self) -> bool {
        match self {
            ServerError::Taken { .. } | ServerError::Listen { .. } | ServerError::Mistake(_) => true,
            ServerError::Volume(error) | ServerError::Pool { source: error, .. } => is_mistake(error),
            ServerError::Io { .. } | ServerError::Device { .. } | ServerError::Failed(_) => false,
        }
    }

    pub(super) fn into_reply(self) -> PoolReply {
        let kind = if self.is_mistake() { FailureKind::Mistake } else { FailureKind::Failed };
        PoolReply::Failed { kind, problem: self.to_string() }
    }
}

fn is_mistake(error: &PoolError) -> bool {
    !matches!(
        error,
        PoolError::Map(_)
            | PoolError::Journal(_)
            | PoolError::Mirror(_)
            | PoolError::Device(_)
            | PoolError::MemberFails(..)
            | PoolError::JournalOnce
            | PoolError::NotResynced(..)
            | PoolError::NotAlike { .. }
            | PoolError::UnreadNotes { .. }
            | PoolError::HostMemory { .. }
            | PoolError::Thread(_)
    )
}
