//! The process: sockets, connections, limits, and how it ends.

mod accepting;
mod access_log;
mod admin;
mod connection;
mod descriptors;
pub mod in_process;
mod lingering;
mod metrics;
mod over_pipe;
mod places;
mod received;
mod reload;
mod request_ids;
mod running;
mod seats;
mod short_connections;
mod tls;
mod top;

pub(crate) use admin::token_of;
pub(crate) use over_pipe::OverPipe;
pub(crate) use top::top;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use underlay_files::Folder;

use crate::check::require_metadata;
use crate::cluster::{self, ClusterMember, EtcdKv, PeerClients};
use crate::config::{ConfigSecrets, GatewayConfig, MachineSizes, StorePlace, check_sizes};
use crate::engine::{
    EngineSetup, GatewayEngine, ImportProgress, KeySharing, MAX_BUCKETS, OfflineDrain, RoomKind,
    lock_directory,
};
use crate::failure::CommandFailure;
use crate::memory::MemoryBudget;
use crate::ownership::SlotOwnership;
use crate::s3::{BucketAddressing, KeyPermissions, PostForms, service};
use crate::store::{self, EndpointAccess};
use crate::supervision::LoopSupervisor;
use access_log::AccessLog;
use connection::{ANSWERS_BYTES, ConnectionSet, DOCUMENTS_KIB};
use metrics::RequestMetrics;
use request_ids::RequestIds;
use seats::ConnectionSeats;

/// A drain waits so long at least for what a store refuses.
const REFUSED_FOR: Duration = Duration::from_secs(20);
/// Names that are not stored, as the log lists them at the end.
const MAX_LOGGED_UNSTORED: usize = 100;
/// How often a drain says what it waits for.
const SAY_EVERY: Duration = Duration::from_secs(2);
const MIN_SHUTDOWN_TIME: Duration = Duration::from_secs(5);
/// A broken gateway ends within this time, so that its supervisor can start it again.
pub(crate) const END_LIMIT: Duration = Duration::from_secs(10);
/// Unfinished uploads that the log names.
const MAX_LOGGED: usize = 5;
/// How often it is looked whether the gateway can go on.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The engine's parameters, from the configuration.
pub(crate) fn setup_of(
    config: &GatewayConfig,
    secrets: &ConfigSecrets,
    sharing: Option<KeySharing>,
) -> EngineSetup {
    let reached = EndpointAccess { endpoint: config.s3.clone(), secret: secrets.of_store.clone() };
    EngineSetup {
        local: config.local.clone(),
        patience: config.limits.patience,
        flushes: config.limits.flushes,
        uploads_expire: config.limits.uploads_expire,
        buckets: config.buckets.clone(),
        new_buckets: config.new_buckets.clone(),
        open_store: Box::new(move |place| store::open(place, &reached).map_err(|error| error.to_string())),
        create_place: Box::new(|under, bucket| {
            store::create_below(under, bucket).map_err(|error| error.to_string())
        }),
        sharing,
        alone: None,
        at_rest: secrets.at_rest.clone(),
        into_empty: Vec::new(),
    }
}

/// An engine, with those that it shares its stores with.
pub(crate) struct OpenEngine {
    pub(crate) engine: Arc<GatewayEngine>,
    member: Option<ClusterMember>,
    ownership: Option<Arc<SlotOwnership>>,
    peers: Option<Arc<PeerClients>>,
}

impl OpenEngine {
    /// Opens the engine for draining, also [into empty directories](EngineSetup::into_empty), and joins the cluster, if
    /// there is one, where it is given no keys.
    ///
    /// # Errors
    /// When either can't be.
    pub(crate) async fn to_drain(
        config: &GatewayConfig,
        secrets: &ConfigSecrets,
        into_empty: Vec<String>,
    ) -> Result<OpenEngine, String> {
        let locked = lock_directory(&config.local.directory)?;
        let (sharing, peers) = cluster::sharing_of(config, secrets, None)?.unzip();
        let setup = EngineSetup { into_empty, ..setup_of(config, secrets, sharing) };
        OpenEngine::open_locked(
            (config, secrets),
            (setup, peers, None),
            locked,
            &ImportProgress::default(),
            true,
        )
        .await
    }

    async fn open_locked(
        (config, secrets): (&GatewayConfig, &ConfigSecrets),
        (setup, peers, etcd): (EngineSetup, Option<Arc<PeerClients>>, Option<Box<dyn EtcdKv>>),
        locked: (Folder, std::fs::File),
        progress: &ImportProgress,
        only_draining: bool,
    ) -> Result<OpenEngine, String> {
        let ownership = setup.sharing.as_ref().map(|sharing| Arc::clone(&sharing.ownership));
        let engine = GatewayEngine::open_locked(setup, locked, progress).await?;
        let member = match &ownership {
            None => None,
            Some(ownership) => {
                let (engine, ownership) = (Arc::clone(&engine), Arc::clone(ownership));
                ClusterMember::join((config, secrets), etcd, engine, ownership, only_draining).await?
            }
        };
        Ok(OpenEngine { engine, member, ownership, peers })
    }

    /// Opens the engine without the others, who are stopped, to store what is left in it.
    ///
    /// # Errors
    /// When it can't be opened.
    pub(crate) async fn alone(
        config: &GatewayConfig,
        secrets: &ConfigSecrets,
        alone: OfflineDrain,
        into_empty: Vec<String>,
    ) -> Result<OpenEngine, String> {
        let setup = EngineSetup { alone: Some(alone), into_empty, ..setup_of(config, secrets, None) };
        let engine = GatewayEngine::open(setup).await?;
        Ok(OpenEngine { engine, member: None, ownership: None, peers: None })
    }

    /// Stores everything, hands it to the others, and says what is left.
    pub(crate) async fn finish(&self, deadline: Instant) -> ShutdownOutcome {
        self.engine.begin_drain();
        let leaving = async {
            let Some(member) = &self.member else { return true };
            // Its work takes some transactions, also when the time is over.
            let left = deadline.saturating_duration_since(Instant::now()).max(MIN_SHUTDOWN_TIME);
            member.leave(tokio::time::Instant::now() + left).await
        };
        tokio::pin!(leaving);
        // At once: as long as others send requests on to slots of ours, there is always something to store.
        let draining = drain(&self.engine, deadline);
        tokio::pin!(draining);
        let (is_clean, has_left) = tokio::select! {
            is_clean = &mut draining => {
                // Names that the store refuses keep their slots from being handed over.
                let patience = if is_clean { None } else { Some(MIN_SHUTDOWN_TIME) };
                (is_clean, self.leave_within(patience, leaving).await)
            }
            has_left = &mut leaving => (draining.await, has_left),
        };
        ShutdownOutcome { is_stored: is_clean && !self.keeps_back(), has_left }
    }

    /// The same, where nobody else looks whether it can go on.
    ///
    /// # Errors
    /// When it can't.
    pub(crate) async fn finish_unless_broken(
        &self,
        deadline: Instant,
    ) -> Result<ShutdownOutcome, GatewayFault> {
        let no_other = LoopSupervisor::default();
        tokio::select! {
            finished = self.finish(deadline) => Ok(finished),
            broken = self.breaks_down(&no_other) => {
                say_what_is_left(&self.engine);
                self.end_broken().await;
                Err(broken)
            }
        }
    }

    /// Waits until everything is handed over, or takes the gateway from the cluster at the end of its patience.
    async fn leave_within(&self, patience: Option<Duration>, leaving: impl Future<Output = bool>) -> bool {
        let Some(patience) = patience else { return leaving.await };
        match (tokio::time::timeout(patience, leaving).await, &self.member) {
            (Ok(has_left), _) => has_left,
            (Err(_), Some(member)) => member.leave(tokio::time::Instant::now()).await,
            (Err(_), None) => true,
        }
    }

    /// Returns once the gateway can't go on, with the reason.
    async fn breaks_down(&self, of_process: &LoopSupervisor) -> GatewayFault {
        loop {
            if self.engine.takes_no_more() {
                return GatewayFault::Failed("the metadata can't be written any more, and the log says why: acknowledged data is safe in the journal\n  what to do: check the disk of [local], and start the gateway again".to_owned());
            }
            let supervisors = [&self.engine.supervisor, of_process];
            if let Some(reason) = supervisors.into_iter().find_map(LoopSupervisor::failure) {
                return GatewayFault::Bug(reason);
            }
            if self.member.as_ref().is_some_and(ClusterMember::has_broken_down) {
                return GatewayFault::Bug("a task of the gateway has ended, which is a bug: please report it with the lines above\n  what to do: start the gateway again".to_owned());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Takes the gateway from the cluster at once, even with unstored data, and closes what can be closed: its disk may
    /// hang as well.
    async fn end_broken(&self) {
        let end = async {
            if let Some(member) = &self.member {
                member.leave(tokio::time::Instant::now()).await;
            }
            self.engine.close().await;
        };
        end_within(END_LIMIT, end).await;
    }

    /// Closes the metadata, after which nothing is acknowledged. Returns whether the local disk let it within the
    /// limit.
    pub(crate) async fn close_metadata(&self, limit: Duration) -> bool {
        end_within(limit, self.engine.close_metadata()).await
    }

    /// Closes the cache, on which nothing depends: the stores have what is in it.
    pub(crate) async fn close_cache(&self) {
        end_within(END_LIMIT, self.engine.close_cache()).await;
    }

    /// Whether something is here that the store is not to get, and says so.
    fn keeps_back(&self) -> bool {
        match self.engine.kept_back() {
            Ok(0) => false,
            Ok(count) => {
                tracing::warn!(
                    "{count} objects are not stored: other gateways have got their keys since, and may have stored newer versions"
                );
                true
            }
            Err(error) => {
                tracing::warn!("{error}");
                true
            }
        }
    }
}

/// How a gateway's shutdown went.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShutdownOutcome {
    /// Whether the stores have everything.
    pub(crate) is_stored: bool,
    /// Whether other gateways have all keys.
    pub(crate) has_left: bool,
}

/// Why a gateway can't go on. Each kind has its exit code.
#[derive(Debug)]
pub(crate) enum GatewayFault {
    /// Something that it needs failed.
    Failed(String),
    /// A bug in the gateway.
    Bug(String),
}

impl From<String> for GatewayFault {
    fn from(reason: String) -> GatewayFault {
        GatewayFault::Failed(reason)
    }
}

impl From<GatewayFault> for CommandFailure {
    fn from(broken: GatewayFault) -> CommandFailure {
        match broken {
            GatewayFault::Failed(reason) => CommandFailure::Failed(reason),
            GatewayFault::Bug(reason) => CommandFailure::Bug(reason),
        }
    }
}

/// Whether requests are served, for `/health/ready`.
#[derive(Default)]
pub(crate) struct ReadyState {
    is_ready: AtomicBool,
}

impl ReadyState {
    pub(crate) fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::Relaxed)
    }

    fn set(&self, is_ready: bool) {
        self.is_ready.store(is_ready, Ordering::Relaxed);
    }
}

/// State that connections of clients and of other gateways share.
struct ServingContext {
    requests: Arc<RequestMetrics>,
    permissions: Arc<KeyPermissions>,
    access_log: Arc<AccessLog>,
    addressing: Arc<BucketAddressing>,
    most_requests: usize,
}

impl ServingContext {
    fn connections(&self, opened: &OpenEngine, is_inner: bool) -> Result<Arc<ConnectionSet>, String> {
        let engine = &opened.engine;
        let (permissions, addressing) = (&self.permissions, &self.addressing);
        // Whose key a form is for stands in its body, so none can be sent on to the gateway that has it.
        let has_forms = opened.peers.is_none();
        let slots = || Arc::new(Semaphore::new(self.most_requests));
        Ok(Arc::new(ConnectionSet {
            service: service(Arc::clone(engine), Arc::clone(permissions), Arc::clone(addressing)),
            forms: has_forms
                .then(|| PostForms::new(Arc::clone(engine), Arc::clone(permissions), Arc::clone(addressing))),
            ids: RequestIds::new()?,
            requests: Arc::clone(&self.requests),
            slots: slots(),
            question_slots: slots(),
            ping_slots: slots(),
            seats: ConnectionSeats::new(is_inner),
            slot_wishes: Arc::default(),
            documents: Arc::new(Semaphore::new(DOCUMENTS_KIB)),
            answers: MemoryBudget::new(ANSWERS_BYTES),
            permissions: Arc::clone(permissions),
            access_log: Arc::clone(&self.access_log),
            peers: opened.peers.clone(),
            engine: Arc::clone(engine),
            addressing: Arc::clone(addressing),
            is_inner,
        }))
    }
}

/// Has slow clients make room where the engine needs some.
fn give_room(engine: &GatewayEngine, connections: &ConnectionSet) {
    let (seats, wishes) = (Arc::clone(&connections.seats), Arc::clone(&connections.slot_wishes));
    engine.ask_for_room(move |wanted| {
        if wanted == RoomKind::Bytes {
            seats.make_room_in_journal();
        }
        wishes.load(Ordering::Relaxed) > 0
    });
}

async fn bind(address: std::net::SocketAddr) -> Result<TcpListener, CommandFailure> {
    TcpListener::bind(address).await.map_err(|error| {
        let text = format!("cannot listen on {address}: {error}");
        match error.kind() {
            // Ports below 1024 take a right that a new start does not bring.
            std::io::ErrorKind::PermissionDenied => CommandFailure::Mistake(text),
            _ => CommandFailure::Failed(text),
        }
    })
}

/// Serves until a signal comes, and then until everything is in the stores or the time for that is over. Returns
/// whether it is. SIGHUP has it read `path` anew, which the configuration is from.
///
/// # Errors
/// When something that it needs is not there, or it can't go on.
pub(crate) async fn serve(config: GatewayConfig, path: &Path) -> Result<bool, CommandFailure> {
    // Before anything else: until somebody listens, this signal ends the process.
    let hangup = signal(SignalKind::hangup()).map_err(|error| error.to_string())?;
    // Other gateways have as many places as clients, and what is sent on to them takes a connection for each request.
    let of_gateways =
        config.cluster.as_ref().map_or(0, |_| config.limits.connections + config.limits.requests);
    let is_directory = |place: &StorePlace| matches!(place, StorePlace::Directory(_));
    let directories = config.buckets.iter().filter(|bucket| is_directory(&bucket.store)).count();
    let needed = descriptors::DescriptorUse {
        connections: config.limits.connections,
        of_gateways,
        directories,
        cache_files: config.local.cache_files(),
    };
    let machine = MachineSizes::look(&config.local.directory);
    for warning in check_sizes(&config.local, &machine).map_err(CommandFailure::Mistake)? {
        tracing::warn!("{warning}");
    }
    descriptors::make_room_for(needed).map_err(CommandFailure::Mistake)?;
    places::check(&config)?;
    let secrets = ConfigSecrets::read(&config).map_err(CommandFailure::Mistake)?;
    let sealing =
        config.tls.as_ref().map(tls::TlsFrontend::new).transpose().map_err(CommandFailure::Mistake)?;
    let sealing = sealing.map(Arc::new);
    // Both are taken before the work begins: a port that is in use shows at once.
    let (listener, admin_listener) = (bind(config.listen).await?, bind(config.admin.listen).await?);
    let inner_listener = match &config.cluster {
        Some(cluster) => Some(bind(cluster.listen).await?),
        None => None,
    };
    let health_listener = match config.admin.health {
        Some(address) => Some(bind(address).await?),
        None => None,
    };
    let access_log = AccessLog::open(config.access_log.as_deref())?;
    let mut terminate = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| error.to_string())?;

    // One that is new has acknowledged nothing.
    let is_new = require_metadata(&config.local.directory).is_err();
    // Whose directory it is is settled before a token is made in it.
    let locked = lock_directory(&config.local.directory)?;
    let (readiness, requests) = (Arc::new(ReadyState::default()), Arc::new(RequestMetrics::default()));
    let admin = Arc::new(admin::AdminService {
        progress: ImportProgress::default(),
        opened: OnceLock::new(),
        requests: Arc::clone(&requests),
        readiness: Arc::clone(&readiness),
        token: token_of(&config, true).map_err(|reason| match config.admin.token {
            // The gateway makes its own; one that is named has to be there.
            Some(_) => CommandFailure::Mistake(reason),
            None => CommandFailure::Failed(reason),
        })?,
        supervisor: LoopSupervisor::default(),
    });
    // A large bucket may take hours to list, and a supervisor must not take the gateway for dead meanwhile.
    let (admin_listener, of_admin) = (Arc::new(admin_listener), Arc::clone(&admin));
    admin.supervisor.run("admin port", move || {
        let admin = Arc::clone(&of_admin);
        short_connections::serve(Arc::clone(&admin_listener), move |request| admin.answer(request))
    });
    if let Some(listener) = health_listener {
        let (listener, of_health) = (Arc::new(listener), Arc::clone(&admin));
        admin.supervisor.run("health port", move || {
            let admin = Arc::clone(&of_health);
            short_connections::serve(Arc::clone(&listener), move |request| admin.answer_probe(request))
        });
    }

    let (sharing, peers) = cluster::sharing_of(&config, &secrets, None)?.unzip();
    let setup = setup_of(&config, &secrets, sharing);
    let opening =
        OpenEngine::open_locked((&config, &secrets), (setup, peers, None), locked, &admin.progress, false);
    let opened = tokio::select! {
        opened = opening => opened?,
        // Objects taken over by then stay, and the next start goes on.
        _ = terminate.recv() => return Ok(ends_unopened(is_new)),
        _ = interrupt.recv() => return Ok(ends_unopened(is_new)),
    };
    let engine = Arc::clone(&opened.engine);
    // With those that clients have made.
    let directories = engine.count_directories();
    if let Err(reason) = descriptors::make_room_for(descriptors::DescriptorUse { directories, ..needed }) {
        tracing::warn!("{reason}");
    }
    if config.new_buckets.as_ref().is_some_and(|new| is_directory(&new.under)) {
        engine.limit_directories(descriptors::room_for_directories(needed, MAX_BUCKETS));
    }
    admin.opens(Arc::clone(&engine), opened.ownership.clone().zip(opened.peers.clone()));
    let permissions = Arc::new(KeyPermissions::new(&config.keys, &secrets.of_clients));
    let access_log = Arc::new(access_log);
    let addressing =
        Arc::new(BucketAddressing::new(&config.hosts, config.region.as_deref(), config.tls.is_some()));
    let front = ServingContext {
        requests,
        permissions,
        access_log,
        addressing,
        most_requests: config.limits.requests,
    };
    let reloads = reload::ReloadTargets {
        path: path.to_owned(),
        running: config.clone(),
        permissions: Arc::clone(&front.permissions),
        front: sealing.clone(),
        access_log: Arc::clone(&front.access_log),
    };
    // Behind a lock, so that a panic does not take what the next signal needs.
    let reloads = Arc::new(tokio::sync::Mutex::new((hangup, reloads)));
    let reloading = admin.supervisor.run("reload", move || {
        let reloads = Arc::clone(&reloads);
        async move {
            let (hangup, reloads) = &mut *reloads.lock().await;
            reload::on_hangup(hangup, reloads).await;
        }
    });
    let scheme = if sealing.is_some() { "https" } else { "http" };
    let address = listener.local_addr().unwrap_or(config.listen);
    tracing::info!(
        "serving S3 at {scheme}://{address}, health and metrics at http://{}",
        config.admin.listen
    );
    let signals = futures_util::stream::poll_fn(move |context| {
        let has_come = terminate.poll_recv(context).is_ready() || interrupt.poll_recv(context).is_ready();
        if has_come { Poll::Ready(Some(())) } else { Poll::Pending }
    });
    let is_serving = |is_serving| {
        readiness.set(is_serving);
        if !is_serving {
            // Anything loaded from here on would be for nobody.
            reloading.abort();
        }
    };
    let arrivals = (listener, inner_listener);
    let running =
        opened.run(&config, &front, arrivals, sealing.as_deref(), &admin.supervisor, signals, is_serving);
    Ok(running.await?)
}

/// Returns whether that came to its end within the limit.
async fn end_within(limit: Duration, ending: impl Future<Output = ()>) -> bool {
    let has_ended = tokio::time::timeout(limit, ending).await.is_ok();
    if !has_ended {
        tracing::warn!("the local disk does not answer: ending without it");
    }
    has_ended
}

/// At a signal before it was open. Returns whether the stores have everything, as far as is known.
fn ends_unopened(is_new: bool) -> bool {
    if !is_new {
        tracing::warn!(
            "stopped before it had opened its stores, so nobody knows whether the stores have everything: run `drain` to be sure"
        );
    }
    is_new
}

/// Waits until the stores have everything, and says what it waits for. Returns whether they have.
pub(crate) async fn drain(engine: &GatewayEngine, deadline: Instant) -> bool {
    let begun = Instant::now();
    let mut last_logged = begun;
    while !engine.is_clean() {
        if Instant::now() >= deadline {
            say_what_is_left(engine);
            return false;
        }
        if begun.elapsed() >= REFUSED_FOR && engine.is_held_up() {
            tracing::warn!("the stores refuse each time what is left, so the gateway does not wait for it");
            say_what_is_left(engine);
            return false;
        }
        if last_logged.elapsed() >= SAY_EVERY {
            last_logged = Instant::now();
            let (count, _) = engine.pending();
            match engine.last_failure() {
                Some((name, reason)) => {
                    tracing::info!("waiting for {count} objects to be stored; {name}: {reason}")
                }
                None => tracing::info!("waiting for {count} objects to be stored"),
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tracing::info!("the stores have everything");
    if let Ok((some, count)) = engine.some_uploads(MAX_LOGGED)
        && count > 0
    {
        let more = if count > some.len() { ", ..." } else { "" };
        tracing::info!(
            "{count} uploads are unfinished, and this gateway keeps their parts: {}{more}",
            some.join(", ")
        );
    }
    true
}

fn say_what_is_left(engine: &GatewayEngine) {
    let (count, _) = engine.pending();
    tracing::warn!(
        "{count} objects are not in their store yet: they are safe in the journal, and the next start goes on"
    );
    let unstored = engine.unstored(MAX_LOGGED_UNSTORED);
    for one in &unstored {
        tracing::warn!("not stored: {one}");
    }
    if count > unstored.len() {
        tracing::warn!("not stored: {} more", count - unstored.len());
    }
}
