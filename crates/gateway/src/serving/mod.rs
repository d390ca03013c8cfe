//! The process: sockets, connections, limits, and how it ends.

mod accepting;
mod access_log;
mod admin;
mod connection;
mod descriptors;
mod health;
pub mod in_process;
mod metrics;
mod over_pipe;
mod places;
mod received;
mod reload;
mod request_ids;
mod running;
mod seats;
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
use crate::cluster::{self, Kv, Member, Peers};
use crate::config::{Config, Machine, Secrets, StorePlace, check_sizes};
use crate::engine::{Alone, Engine, Progress, Setup, Sharing, Wanted, lock_directory};
use crate::failure::Failure;
use crate::memory::Memory;
use crate::ownership::Ownership;
use crate::s3::{Addressing, Forms, Permissions, service};
use crate::store::{self, Reached};
use crate::supervision::Supervisor;
use access_log::AccessLog;
use connection::{ANSWERS_BYTES, Connections, DOCUMENTS_KIB};
use metrics::Requests;
use request_ids::RequestIds;
use seats::Seats;

/// A drain waits so long at least for what a store refuses.
const REFUSED_FOR: Duration = Duration::from_secs(20);
/// Names that are not stored, of which the log speaks at the end.
const MOST_SAID_UNSTORED: usize = 100;
/// How often a drain says what it waits for.
const SAY_EVERY: Duration = Duration::from_secs(2);
const LEAVE_AT_LEAST: Duration = Duration::from_secs(5);
/// A broken gateway ends within this time, so that its supervisor can start it again.
pub(crate) const END_LIMIT: Duration = Duration::from_secs(10);
/// Unfinished uploads that the log names.
const MOST_SAID: usize = 5;
/// How often it is looked whether the gateway can go on.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What the engine is opened with, as the configuration says.
pub(crate) fn setup_of(config: &Config, secrets: &Secrets, sharing: Option<Sharing>) -> Setup {
    let reached = Reached { endpoint: config.s3.clone(), secret: secrets.of_store.clone() };
    Setup {
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
pub(crate) struct Opened {
    pub(crate) engine: Arc<Engine>,
    member: Option<Member>,
    ownership: Option<Arc<Ownership>>,
    peers: Option<Arc<Peers>>,
}

impl Opened {
    /// Opens the engine for draining, also [into empty directories](Setup::into_empty), and joins the cluster, if there is one, where it is given
    /// no keys.
    ///
    /// # Errors
    /// When either can't be.
    pub(crate) async fn to_drain(
        config: &Config,
        secrets: &Secrets,
        into_empty: Vec<String>,
    ) -> Result<Opened, String> {
        let locked = lock_directory(&config.local.directory)?;
        let (sharing, peers) = cluster::sharing_of(config, secrets, None)?.unzip();
        let setup = Setup { into_empty, ..setup_of(config, secrets, sharing) };
        Opened::open_locked((config, secrets), (setup, peers, None), locked, &Progress::default(), true).await
    }

    async fn open_locked(
        (config, secrets): (&Config, &Secrets),
        (setup, peers, etcd): (Setup, Option<Arc<Peers>>, Option<Box<dyn Kv>>),
        locked: (Folder, std::fs::File),
        progress: &Progress,
        only_draining: bool,
    ) -> Result<Opened, String> {
        let ownership = setup.sharing.as_ref().map(|sharing| Arc::clone(&sharing.ownership));
        let engine = Engine::open_locked(setup, locked, progress).await?;
        let member = match &ownership {
            None => None,
            Some(ownership) => {
                let (engine, ownership) = (Arc::clone(&engine), Arc::clone(ownership));
                Member::join((config, secrets), etcd, engine, ownership, only_draining).await?
            }
        };
        Ok(Opened { engine, member, ownership, peers })
    }

    /// Opens the engine without the others, who are stopped, to store what is left in it.
    ///
    /// # Errors
    /// When it can't be opened.
    pub(crate) async fn alone(
        config: &Config,
        secrets: &Secrets,
        alone: Alone,
        into_empty: Vec<String>,
    ) -> Result<Opened, String> {
        let setup = Setup { alone: Some(alone), into_empty, ..setup_of(config, secrets, None) };
        let engine = Engine::open(setup).await?;
        Ok(Opened { engine, member: None, ownership: None, peers: None })
    }

    /// Stores everything, hands it to the others, and says what is left.
    pub(crate) async fn finish(&self, until: Instant) -> Finished {
        self.engine.begin_drain();
        let leaving = async {
            let Some(member) = &self.member else { return true };
            // What it has to do takes some transactions, also when the time is over.
            let left = until.saturating_duration_since(Instant::now()).max(LEAVE_AT_LEAST);
            member.leave(tokio::time::Instant::now() + left).await
        };
        tokio::pin!(leaving);
        // At once: as long as others send requests on to slots of ours, there is always something to store.
        let draining = drain(&self.engine, until);
        tokio::pin!(draining);
        let (is_clean, has_left) = tokio::select! {
            is_clean = &mut draining => {
                // What the store refuses keeps its slots from being handed over.
                let patience = if is_clean { None } else { Some(LEAVE_AT_LEAST) };
                (is_clean, self.leave_within(patience, leaving).await)
            }
            has_left = &mut leaving => (draining.await, has_left),
        };
        Finished { is_stored: is_clean && !self.keeps_back(), has_left }
    }

    /// The same, where nobody else looks whether it can go on.
    ///
    /// # Errors
    /// When it can't.
    pub(crate) async fn finish_unless_broken(&self, until: Instant) -> Result<Finished, Broken> {
        let no_other = Supervisor::default();
        tokio::select! {
            finished = self.finish(until) => Ok(finished),
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
    async fn breaks_down(&self, of_process: &Supervisor) -> Broken {
        loop {
            if self.engine.takes_no_more() {
                return Broken::Failed("the metadata can't be written any more, and the log says why: what was acknowledged is safe in the journal\n  what to do: check the disk of [local], and start the gateway again".to_owned());
            }
            let supervisors = [&self.engine.supervisor, of_process];
            if let Some(why) = supervisors.into_iter().find_map(Supervisor::failure) {
                return Broken::Bug(why);
            }
            if self.member.as_ref().is_some_and(Member::has_broken_down) {
                return Broken::Bug("a task of the gateway has ended, which is a bug: please report it with the lines above\n  what to do: start the gateway again".to_owned());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Takes the gateway from the cluster at once, whatever it still has, and closes what can be closed: its disk may hang as well.
    async fn end_broken(&self) {
        let end = async {
            if let Some(member) = &self.member {
                member.leave(tokio::time::Instant::now()).await;
            }
            self.engine.close().await;
        };
        if tokio::time::timeout(END_LIMIT, end).await.is_err() {
            tracing::warn!("the local disk does not answer: ending without it");
        }
    }

    /// Whether something is here that the store is not to get, and says so.
    fn keeps_back(&self) -> bool {
        match self.engine.kept_back() {
            Ok(0) => false,
            Ok(count) => {
                tracing::warn!(
                    "{count} objects are not stored: other gateways have got their keys since, and what those have stored may be newer"
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

/// What became of the end of a gateway.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finished {
    /// Whether the stores have everything.
    pub(crate) is_stored: bool,
    /// Whether other gateways have all keys.
    pub(crate) has_left: bool,
}

/// Why a gateway can't go on. Each kind has its exit code.
#[derive(Debug)]
pub(crate) enum Broken {
    /// Something that it needs failed.
    Failed(String),
    /// A bug in the gateway.
    Bug(String),
}

impl From<String> for Broken {
    fn from(why: String) -> Broken {
        Broken::Failed(why)
    }
}

impl From<Broken> for Failure {
    fn from(broken: Broken) -> Failure {
        match broken {
            Broken::Failed(why) => Failure::Failed(why),
            Broken::Bug(why) => Failure::Bug(why),
        }
    }
}

/// Whether requests are served, for `/health/ready`.
#[derive(Default)]
pub(crate) struct Readiness {
    is_ready: AtomicBool,
}

impl Readiness {
    pub(crate) fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::Relaxed)
    }

    fn set(&self, is_ready: bool) {
        self.is_ready.store(is_ready, Ordering::Relaxed);
    }
}

/// What connections of clients and of other gateways have in common.
struct Serving {
    requests: Arc<Requests>,
    permissions: Arc<Permissions>,
    access_log: Arc<AccessLog>,
    addressing: Arc<Addressing>,
    most_requests: usize,
}

impl Serving {
    fn connections(&self, opened: &Opened, is_inner: bool) -> Result<Arc<Connections>, String> {
        let engine = &opened.engine;
        let (permissions, addressing) = (&self.permissions, &self.addressing);
        // Whose key a form is for stands in its body, so none can be sent on to the gateway that has it.
        let has_forms = opened.peers.is_none();
        let slots = || Arc::new(Semaphore::new(self.most_requests));
        Ok(Arc::new(Connections {
            service: service(Arc::clone(engine), Arc::clone(permissions), Arc::clone(addressing)),
            forms: has_forms
                .then(|| Forms::new(Arc::clone(engine), Arc::clone(permissions), Arc::clone(addressing))),
            ids: RequestIds::new()?,
            requests: Arc::clone(&self.requests),
            slots: slots(),
            question_slots: slots(),
            ping_slots: slots(),
            seats: Seats::new(is_inner),
            slot_wishes: Arc::default(),
            documents: Arc::new(Semaphore::new(DOCUMENTS_KIB)),
            answers: Memory::new(ANSWERS_BYTES),
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
fn give_room(engine: &Engine, connections: &Connections) {
    let (seats, wishes) = (Arc::clone(&connections.seats), Arc::clone(&connections.slot_wishes));
    engine.ask_for_room(move |wanted| {
        if wanted == Wanted::Bytes {
            seats.make_room_in_journal();
        }
        wishes.load(Ordering::Relaxed) > 0
    });
}

async fn bind(address: std::net::SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        let text = format!("cannot listen on {address}: {error}");
        match error.kind() {
            // Ports below 1024 take a right that a new start does not bring.
            std::io::ErrorKind::PermissionDenied => Failure::Mistake(text),
            _ => Failure::Failed(text),
        }
    })
}

/// Serves until a signal comes, and then until everything is in the stores or the time for that is over. Returns whether it is. SIGHUP has it read
/// `path` anew, which the configuration is from.
///
/// # Errors
/// When something that it needs is not there, or it can't go on.
pub(crate) async fn serve(config: Config, path: &Path) -> Result<bool, Failure> {
    // Before anything else: until somebody listens, this signal ends the process.
    let hangup = signal(SignalKind::hangup()).map_err(|error| error.to_string())?;
    // Other gateways have as many places as clients, and what is sent on to them takes a connection for each request.
    let of_gateways =
        config.cluster.as_ref().map_or(0, |_| config.limits.connections + config.limits.requests);
    let is_directory = |place: &StorePlace| matches!(place, StorePlace::Directory(_));
    let directories = config.buckets.iter().filter(|bucket| is_directory(&bucket.store)).count();
    let taken = descriptors::Taken {
        connections: config.limits.connections,
        of_gateways,
        directories,
        cache_files: config.local.cache_files(),
    };
    let machine = Machine::look(&config.local.directory);
    for warning in check_sizes(&config.local, &machine).map_err(Failure::Mistake)? {
        tracing::warn!("{warning}");
    }
    descriptors::make_room_for(taken).map_err(Failure::Mistake)?;
    places::check(&config)?;
    let secrets = Secrets::read(&config).map_err(Failure::Mistake)?;
    let sealing = config.tls.as_ref().map(tls::Front::new).transpose().map_err(Failure::Mistake)?;
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
    let (readiness, requests) = (Arc::new(Readiness::default()), Arc::new(Requests::default()));
    let admin = Arc::new(admin::Admin {
        progress: Progress::default(),
        opened: OnceLock::new(),
        requests: Arc::clone(&requests),
        readiness: Arc::clone(&readiness),
        token: token_of(&config, true).map_err(|why| match config.admin.token {
            // The gateway makes its own; one that is named has to be there.
            Some(_) => Failure::Mistake(why),
            None => Failure::Failed(why),
        })?,
        supervisor: Supervisor::default(),
    });
    // A large bucket may take hours to list, and a supervisor must not take the gateway for dead meanwhile.
    let (admin_listener, of_admin) = (Arc::new(admin_listener), Arc::clone(&admin));
    admin
        .supervisor
        .run("admin port", move || admin::serve(Arc::clone(&admin_listener), Arc::clone(&of_admin)));
    if let Some(listener) = health_listener {
        let (listener, of_health) = (Arc::new(listener), Arc::clone(&admin));
        admin
            .supervisor
            .run("health port", move || health::serve(Arc::clone(&listener), Arc::clone(&of_health)));
    }

    let (sharing, peers) = cluster::sharing_of(&config, &secrets, None)?.unzip();
    let setup = setup_of(&config, &secrets, sharing);
    let opening =
        Opened::open_locked((&config, &secrets), (setup, peers, None), locked, &admin.progress, false);
    let opened = tokio::select! {
        opened = opening => opened?,
        // What was taken over by then stays, and the next start goes on.
        _ = terminate.recv() => return Ok(ends_unopened(is_new)),
        _ = interrupt.recv() => return Ok(ends_unopened(is_new)),
    };
    let engine = Arc::clone(&opened.engine);
    // With those that clients have made.
    let directories = engine.count_directories();
    if let Err(why) = descriptors::make_room_for(descriptors::Taken { directories, ..taken }) {
        tracing::warn!("{why}");
    }
    admin.opens(Arc::clone(&engine), opened.ownership.clone().zip(opened.peers.clone()));
    let permissions = Arc::new(Permissions::new(&config.keys, &secrets.of_clients));
    let access_log = Arc::new(access_log);
    let addressing = Arc::new(Addressing::new(&config.hosts, config.region.as_deref(), config.tls.is_some()));
    let front =
        Serving { requests, permissions, access_log, addressing, most_requests: config.limits.requests };
    let reloads = reload::Reloads {
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
            // What is loaded from here on would be for nobody.
            reloading.abort();
        }
    };
    let arrivals = (listener, inner_listener);
    let running =
        opened.run(&config, &front, arrivals, sealing.as_deref(), &admin.supervisor, signals, is_serving);
    Ok(running.await?)
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
pub(crate) async fn drain(engine: &Engine, until: Instant) -> bool {
    let begun = Instant::now();
    let mut said = begun;
    while !engine.is_clean() {
        if Instant::now() >= until {
            say_what_is_left(engine);
            return false;
        }
        if begun.elapsed() >= REFUSED_FOR && engine.is_held_up() {
            tracing::warn!("the stores refuse each time what is left, so the gateway does not wait for it");
            say_what_is_left(engine);
            return false;
        }
        if said.elapsed() >= SAY_EVERY {
            said = Instant::now();
            let (count, _) = engine.pending();
            match engine.last_failure() {
                Some((name, why)) => {
                    tracing::info!("waiting for {count} objects to be stored; {name}: {why}")
                }
                None => tracing::info!("waiting for {count} objects to be stored"),
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tracing::info!("the stores have everything");
    if let Ok((some, count)) = engine.some_uploads(MOST_SAID)
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

fn say_what_is_left(engine: &Engine) {
    let (count, _) = engine.pending();
    tracing::warn!(
        "{count} objects are not in their store yet: they are safe in the journal, and the next start goes on"
    );
    let unstored = engine.unstored(MOST_SAID_UNSTORED);
    for one in &unstored {
        tracing::warn!("not stored: {one}");
    }
    if count > unstored.len() {
        tracing::warn!("not stored: {} more", count - unstored.len());
    }
}
