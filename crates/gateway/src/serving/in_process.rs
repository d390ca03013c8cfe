//! A gateway inside another program: without ports, signals and an operator. Connections are whatever that program has for them, and it says where
//! the stores are. Everything else is what [`serve`](super::serve) does. For simulations.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use super::accepting::Arrivals;
use super::access_log::AccessLog;
use super::metrics::Requests;
use super::{Broken, Opened, Serving, setup_of};
use crate::blocking;
use crate::cluster::{self, Simulated};
use crate::config::{Config, Secrets};
use crate::engine::{OpenStore, Progress, Setup, lock_directory};
use crate::s3::{Addressing, Permissions};
use crate::supervision::Supervisor;

pub use crate::cluster::Simulated as SimulatedCluster;
pub use crate::cluster::{Compare, ConnectPeer, EtcdError, EtcdResult, Kv, PeerStream, Put, Row};

/// Connections that are handed over one by one.
pub struct Handed<S>(pub mpsc::UnboundedReceiver<S>);

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Arrivals for Handed<S> {
    type Stream = S;

    async fn next(&mut self) -> io::Result<(S, SocketAddr)> {
        match self.0.recv().await {
            Some(stream) => Ok((stream, SocketAddr::from(([127, 0, 0, 1], 1)))),
            None => std::future::pending().await,
        }
    }
}

/// From here on, whatever this thread does for a gateway it does itself, and each piece of work that may block begins after a delay that `delays` says.
pub fn simulate(delays: impl Fn() -> Duration + 'static) {
    blocking::simulate(delays);
}

/// Why a gateway did not start, or could not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub why: String,
    pub is_bug: bool,
}

impl From<String> for Ended {
    fn from(why: String) -> Ended {
        Ended { why, is_bug: false }
    }
}

/// With `others`, of a cluster, come their connections. Serves until `terminate` is done, and then until everything is in the stores or the time for that is over. Returns whether it is.
///
/// # Errors
/// When something that it needs is not there, or it can't go on.
pub async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    config: Config,
    open_store: Box<OpenStore>,
    clients: Handed<S>,
    others: Option<(Handed<S>, Simulated)>,
    ready: impl FnOnce(),
    terminate: impl Future<Output = ()>,
) -> Result<bool, Ended> {
    let secrets = Secrets::read(&config)?;
    let locked = lock_directory(&config.local.directory)?;
    let (arrivals, etcd, connect) = match others {
        Some((arrivals, Simulated { etcd, connect })) => (Some(arrivals), Some(etcd), Some(connect)),
        None => (None, None, None),
    };
    let (sharing, peers) = cluster::sharing_of(&config, &secrets, connect)?.unzip();
    let setup = Setup { open_store, ..setup_of(&config, &secrets, sharing) };
    let progress = Progress::default();
    let opened =
        Opened::open_locked((&config, &secrets), (setup, peers, etcd), locked, &progress, false).await?;
    let front = Serving {
        requests: Arc::new(Requests::default()),
        permissions: Arc::new(Permissions::new(&config.keys, &secrets.of_clients)),
        access_log: Arc::new(AccessLog::none()),
        addressing: Arc::new(Addressing::new(&config.hosts, config.region.as_deref(), false)),
        most_requests: config.limits.requests,
    };
    let mut ready = Some(ready);
    let is_serving = |is_serving| {
        if let Some(ready) = ready.take_if(|_| is_serving) {
            ready();
        }
    };
    let signals = futures_util::stream::once(terminate).chain(futures_util::stream::pending());
    let (arrivals, no_other) = ((clients, arrivals), Supervisor::default());
    let running = opened.run(&config, &front, arrivals, None, &no_other, signals, is_serving);
    running.await.map_err(ended)
}

fn ended(broken: Broken) -> Ended {
    match broken {
        Broken::Failed(why) => Ended { why, is_bug: false },
        Broken::Bug(why) => Ended { why, is_bug: true },
    }
}
