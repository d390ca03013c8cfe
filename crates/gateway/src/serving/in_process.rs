//! A gateway inside another program: without ports, signals and an operator. That program provides the connections and
//! the stores' locations. Everything else is what [`serve`](super::serve) does. For simulations.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use super::accepting::ConnectionSource;
use super::access_log::AccessLog;
use super::metrics::RequestMetrics;
use super::{GatewayFault, OpenEngine, ServingContext, ends_unopened, require_metadata, setup_of};
use crate::blocking;
use crate::cluster;
use crate::config::{ConfigSecrets, GatewayConfig};
use crate::engine::{EngineSetup, ImportProgress, OpenStore, lock_directory};
use crate::s3::{BucketAddressing, KeyPermissions};
use crate::supervision::LoopSupervisor;

pub use crate::cluster::SimulatedCluster;
pub use crate::cluster::{
    ConnectPeer, EtcdError, EtcdKv, EtcdPut, EtcdResult, EtcdRow, PeerStream, TransactionGuard,
};

/// Connections that are handed over one by one.
pub struct HandedConnections<S>(pub mpsc::UnboundedReceiver<S>);

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> ConnectionSource for HandedConnections<S> {
    type Stream = S;

    async fn next(&mut self) -> io::Result<(S, SocketAddr)> {
        match self.0.recv().await {
            Some(stream) => Ok((stream, SocketAddr::from(([127, 0, 0, 1], 1)))),
            None => std::future::pending().await,
        }
    }
}

/// From here on this thread does all of a gateway's work itself, and each piece of work that may block begins after a
/// delay from `delays`.
pub fn simulate(delays: impl Fn() -> Duration + 'static) {
    blocking::simulate(delays);
}

/// Why a gateway did not start, or could not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayFailure {
    pub why: String,
    pub is_bug: bool,
}

impl From<String> for GatewayFailure {
    fn from(reason: String) -> GatewayFailure {
        GatewayFailure { why: reason, is_bug: false }
    }
}

/// With `others`, of a cluster, come their connections. Serves until `terminate` is done, and then until everything is
/// in the stores or the time for that is over. Returns whether it is.
///
/// # Errors
/// When something that it needs is not there, or it can't go on.
pub async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    config: GatewayConfig,
    open_store: Box<OpenStore>,
    clients: HandedConnections<S>,
    others: Option<(HandedConnections<S>, SimulatedCluster)>,
    ready: impl FnOnce(),
    terminate: impl Future<Output = ()>,
) -> Result<bool, GatewayFailure> {
    let secrets = ConfigSecrets::read(&config)?;
    // One that is new has acknowledged nothing.
    let is_new = require_metadata(&config.local.directory).is_err();
    let locked = lock_directory(&config.local.directory)?;
    let (arrivals, etcd, connect) = match others {
        Some((arrivals, SimulatedCluster { etcd, connect })) => (Some(arrivals), Some(etcd), Some(connect)),
        None => (None, None, None),
    };
    let (sharing, peers) = cluster::sharing_of(&config, &secrets, connect)?.unzip();
    let setup = EngineSetup { open_store, ..setup_of(&config, &secrets, sharing) };
    let progress = ImportProgress::default();
    let opening =
        OpenEngine::open_locked((&config, &secrets), (setup, peers, etcd), locked, &progress, false);
    let mut terminate = pin!(terminate);
    let opened = tokio::select! {
        // In one order, so that a run can be repeated.
        biased;
        opened = opening => opened?,
        () = &mut terminate => return Ok(ends_unopened(is_new)),
    };
    let front = ServingContext {
        requests: Arc::new(RequestMetrics::default()),
        permissions: Arc::new(KeyPermissions::new(&config.keys, &secrets.of_clients)),
        access_log: Arc::new(AccessLog::disabled()),
        addressing: Arc::new(BucketAddressing::new(&config.hosts, config.region.as_deref(), false)),
        most_requests: config.limits.requests,
    };
    let mut ready = Some(ready);
    let is_serving = |is_serving| {
        if let Some(ready) = ready.take_if(|_| is_serving) {
            ready();
        }
    };
    let signals = futures_util::stream::once(terminate).chain(futures_util::stream::pending());
    let (arrivals, no_other) = ((clients, arrivals), LoopSupervisor::default());
    let running = opened.run(&config, &front, arrivals, None, &no_other, signals, is_serving);
    running.await.map_err(ended)
}

fn ended(broken: GatewayFault) -> GatewayFailure {
    match broken {
        GatewayFault::Failed(reason) => GatewayFailure { why: reason, is_bug: false },
        GatewayFault::Bug(reason) => GatewayFailure { why: reason, is_bug: true },
    }
}
