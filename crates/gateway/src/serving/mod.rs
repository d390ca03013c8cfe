//! The process: sockets, connections, limits, and how it ends.

mod access_log;
mod admin;
mod connection;
mod descriptors;
mod metrics;
mod over_pipe;
mod request_ids;
mod tls;
mod top;

pub(crate) use admin::token_of;
pub(crate) use over_pipe::OverPipe;
pub(crate) use top::top;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hyper_util::server::graceful::GracefulShutdown;
use openssl::ssl::SslAcceptor;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use underlay_files::Folder;

use crate::cluster::{self, Member, Peers};
use crate::config::{Config, Secrets, StorePlace};
use crate::engine::{Alone, Engine, Progress, Setup, Sharing, lock_directory};
use crate::ownership::Ownership;
use crate::s3::{Forms, Permissions, service};
use crate::store::{self, Reached};
use access_log::AccessLog;
use connection::Connections;
use metrics::Requests;
use request_ids::RequestIds;

/// How often a drain says what it waits for.
const SAY_EVERY: Duration = Duration::from_secs(2);
const LEAVE_AT_LEAST: Duration = Duration::from_secs(5);
/// How long requests of other gateways may take that came before the keys were another's.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// Whoever supervises a broken gateway waits no longer for its end.
pub(crate) const END_LIMIT: Duration = Duration::from_secs(10);
/// Unfinished uploads that the log names.
const MOST_SAID: usize = 5;
/// How often it is looked whether the gateway can go on.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// After an error of `accept` (no descriptors left, for example).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

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
        let (sharing, peers) = cluster::sharing_of(config, secrets)?.unzip();
        let setup = Setup { into_empty, ..setup_of(config, secrets, sharing) };
        Opened::open_locked(config, secrets, (setup, peers), locked, &Progress::default(), true).await
    }

    async fn open_locked(
        config: &Config,
        secrets: &Secrets,
        (setup, peers): (Setup, Option<Arc<Peers>>),
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
                Member::join(config, secrets, engine, ownership, only_draining).await?
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

    /// Stores everything, hands it to the others, and says what is left. Returns whether nothing is.
    pub(crate) async fn finish(&self, until: Instant) -> bool {
        self.engine.begin_drain();
        let leaving = async {
            let Some(member) = &self.member else { return true };
            // What it has to do takes some transactions, also when the time is over.
            let left = until.saturating_duration_since(Instant::now()).max(LEAVE_AT_LEAST);
            member.leave(tokio::time::Instant::now() + left).await
        };
        // At once: as long as others send requests on to slots of ours, there is always something to store.
        let (is_clean, has_left) = tokio::join!(drain(&self.engine, until), leaving);
        is_clean && has_left && !self.keeps_back()
    }

    /// Returns once the gateway can't go on, with the reason.
    async fn breaks_down(&self) -> &'static str {
        loop {
            if self.engine.takes_no_more() {
                return "the metadata can't be written any more, and the log says why: what was acknowledged is safe in the journal\n  what to do: see to the disk of [local], and start the gateway again";
            }
            if self.member.as_ref().is_some_and(Member::has_broken_down) {
                return "a task of the gateway has ended, which is a bug: please report it with the lines above\n  what to do: start the gateway again";
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

async fn bind(address: std::net::SocketAddr) -> Result<TcpListener, String> {
    TcpListener::bind(address).await.map_err(|error| format!("cannot listen on {address}: {error}"))
}

/// Serves until a signal comes, and then until everything is in the stores or the time for that is over.
///
/// # Errors
/// When something that it needs is not there.
pub(crate) async fn serve(config: Config) -> Result<(), String> {
    // Other gateways have as many places as clients, and what is sent on to them takes a connection for each request.
    let of_gateways =
        config.cluster.as_ref().map_or(0, |_| config.limits.connections + config.limits.requests);
    let is_directory = |place: &StorePlace| matches!(place, StorePlace::Directory(_));
    let directories = config.buckets.iter().filter(|bucket| is_directory(&bucket.store)).count();
    descriptors::make_room_for(config.limits.connections, of_gateways, directories)?;
    let secrets = Secrets::read(&config)?;
    let acceptor = config.tls.as_ref().map(tls::acceptor).transpose()?;
    // Both are taken before the work begins: a port that is in use shows at once.
    let (listener, admin_listener) = (bind(config.listen).await?, bind(config.admin.listen).await?);
    let inner_listener = match &config.cluster {
        Some(cluster) => Some(bind(cluster.listen).await?),
        None => None,
    };
    let access_log = AccessLog::open(config.access_log.as_deref())?;
    let mut terminate = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| error.to_string())?;

    // Whose directory it is is settled before a token is made in it.
    let locked = lock_directory(&config.local.directory)?;
    let (readiness, requests) = (Arc::new(Readiness::default()), Arc::new(Requests::default()));
    let admin = Arc::new(admin::Admin {
        progress: Progress::default(),
        opened: OnceLock::new(),
        requests: Arc::clone(&requests),
        readiness: Arc::clone(&readiness),
        token: token_of(&config, true)?,
    });
    // A large bucket may take hours to list: whoever supervises the gateway must not take it for dead meanwhile.
    tokio::spawn(admin::serve(admin_listener, Arc::clone(&admin)));

    let (sharing, peers) = cluster::sharing_of(&config, &secrets)?.unzip();
    let setup = setup_of(&config, &secrets, sharing);
    let opening = Opened::open_locked(&config, &secrets, (setup, peers), locked, &admin.progress, false);
    let opened = tokio::select! {
        opened = opening => opened?,
        // What was taken over by then stays, and the next start goes on.
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    let engine = Arc::clone(&opened.engine);
    // With those that clients have made.
    let directories = engine.count_directories();
    if let Err(why) = descriptors::make_room_for(config.limits.connections, of_gateways, directories) {
        tracing::warn!("{why}");
    }
    admin.opens(Arc::clone(&engine), opened.ownership.clone().zip(opened.peers.clone()));
    let permissions = Arc::new(Permissions::new(&config.keys, &secrets.of_clients));
    let access_log = Arc::new(access_log);
    let connections_of = |is_inner| {
        // Whose key a form is for stands in its body, so none can be sent on to the gateway that has it.
        let has_forms = opened.peers.is_none();
        Ok::<_, String>(Arc::new(Connections {
            service: service(Arc::clone(&engine), Arc::clone(&permissions)),
            forms: has_forms.then(|| Forms::new(Arc::clone(&engine), Arc::clone(&permissions))),
            ids: RequestIds::new()?,
            requests: Arc::clone(&requests),
            slots: Arc::new(Semaphore::new(config.limits.requests)),
            question_slots: Arc::new(Semaphore::new(config.limits.requests)),
            ping_slots: Arc::new(Semaphore::new(config.limits.requests)),
            access_log: Arc::clone(&access_log),
            peers: opened.peers.clone(),
            engine: Arc::clone(&engine),
            is_inner,
        }))
    };
    let connections = connections_of(false)?;
    let scheme = if acceptor.is_some() { "https" } else { "http" };
    let address = listener.local_addr().unwrap_or(config.listen);
    tracing::info!(
        "serving S3 at {scheme}://{address}, health and metrics at http://{}",
        config.admin.listen
    );
    readiness.set(true);
    let (graceful, inner_graceful) = (GracefulShutdown::new(), Arc::new(GracefulShutdown::new()));
    let (most, inner_connections) = (config.limits.connections, connections_of(true)?);
    // They have places of their own: clients that hold all the others must not keep gateways apart.
    let (of_inner, acceptor) = (Arc::clone(&inner_graceful), acceptor.as_ref());
    let mut accepting_inner = Box::pin(async move {
        accept_inner(inner_listener, &inner_connections, acceptor, most, &of_inner).await;
    });
    let broken = tokio::select! {
        () = accept(listener, &connections, acceptor, most, &graceful) => None,
        () = &mut accepting_inner => None,
        why = opened.breaks_down() => Some(why),
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
    };
    readiness.set(false);
    if let Some(why) = broken {
        // Nothing can be stored, since what became of it can't be noted. A new start can.
        opened.end_broken().await;
        return Err(why.to_owned());
    }
    tracing::info!("stopping: no new requests are taken");
    let until = Instant::now() + config.limits.drain;
    engine.begin_drain();
    let finish = async {
        let handing_over = async {
            // The other half is for what has to be stored and handed over.
            if tokio::time::timeout(config.limits.drain / 2, graceful.shutdown()).await.is_err() {
                tracing::warn!("some requests did not end in time and are broken off");
            }
            opened.finish(until).await;
        };
        // Until the keys are another's, other gateways send requests for them here.
        tokio::select! {
            () = handing_over => {}
            () = &mut accepting_inner => {}
        }
        drop(accepting_inner);
        if let Some(inner_graceful) = Arc::into_inner(inner_graceful)
            && tokio::time::timeout(LAST_ANSWERS, inner_graceful.shutdown()).await.is_err()
        {
            tracing::warn!("some requests of other gateways did not end in time and are broken off");
        }
    };
    tokio::select! {
        () = finish => {}
        why = opened.breaks_down() => {
            say_what_is_left(&engine);
            opened.end_broken().await;
            return Err(why.to_owned());
        }
        _ = terminate.recv() => say_what_is_left(&engine),
        _ = interrupt.recv() => say_what_is_left(&engine),
    }
    engine.close().await;
    Ok(())
}

async fn accept_inner(
    listener: Option<TcpListener>,
    connections: &Arc<Connections>,
    acceptor: Option<&SslAcceptor>,
    most: usize,
    graceful: &GracefulShutdown,
) {
    match listener {
        Some(listener) => accept(listener, connections, acceptor, most, graceful).await,
        None => std::future::pending().await,
    }
}

/// Takes connections for as long as it is waited for.
async fn accept(
    listener: TcpListener,
    connections: &Arc<Connections>,
    acceptor: Option<&SslAcceptor>,
    most: usize,
    graceful: &GracefulShutdown,
) {
    let places = Arc::new(Semaphore::new(most));
    loop {
        // One that finds no place waits in the kernel's queue, and takes no memory of ours.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, peer)) => {
                // Small answers must not wait for the client's acknowledgement.
                let _ = stream.set_nodelay(true);
                connections.start(stream, peer, acceptor.cloned(), place, graceful);
            }
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Waits until the stores have everything, and says what it waits for. Returns whether they have.
pub(crate) async fn drain(engine: &Engine, until: Instant) -> bool {
    let mut said = Instant::now();
    while !engine.is_clean() {
        if Instant::now() >= until {
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
            "{count} uploads are unfinished, and what came of them is kept here: {}{more}",
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
}
