//! The process: sockets, connections, limits, and how it ends.

mod access_log;
mod admin;
mod connection;
mod descriptors;
mod metrics;
mod request_ids;
mod tls;
mod top;

pub(crate) use admin::token_of;
pub(crate) use top::top;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;

use crate::config::{Config, Secrets};
use crate::engine::{Engine, Setup};
use crate::s3::{Forms, Permissions, service};
use crate::store::{self, Reached};
use access_log::AccessLog;
use connection::Connections;
use metrics::Requests;
use request_ids::RequestIds;

/// How often a drain says what it waits for.
const SAY_EVERY: Duration = Duration::from_secs(2);
/// After an error of `accept` (no descriptors left, for example).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the engine is opened with, as the configuration says.
pub(crate) fn setup_of(config: &Config, secrets: &Secrets) -> Setup {
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
    descriptors::make_room_for(config.limits.connections)?;
    let secrets = Secrets::read(&config)?;
    let acceptor = config.tls.as_ref().map(tls::acceptor).transpose()?;
    // Both are taken before the work begins: a port that is in use shows at once.
    let (listener, admin_listener) = (bind(config.listen).await?, bind(config.admin.listen).await?);
    let access_log = AccessLog::open(config.access_log.as_deref())?;
    let mut terminate = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| error.to_string())?;

    let opening = Engine::open(setup_of(&config, &secrets));
    let engine = tokio::select! {
        engine = opening => engine?,
        // What was taken over by then stays, and the next start goes on.
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    let token = token_of(&config, true)?;
    let (readiness, requests) = (Arc::new(Readiness::default()), Arc::new(Requests::default()));
    let admin = admin::Admin {
        engine: Arc::clone(&engine),
        requests: Arc::clone(&requests),
        readiness: Arc::clone(&readiness),
        token,
    };
    tokio::spawn(admin::serve(admin_listener, Arc::new(admin)));

    let permissions = Arc::new(Permissions::new(&config.keys, &secrets.of_clients));
    let connections = Arc::new(Connections {
        service: service(Arc::clone(&engine), Arc::clone(&permissions)),
        forms: Forms::new(Arc::clone(&engine), permissions),
        ids: RequestIds::new()?,
        requests: Arc::clone(&requests),
        slots: Arc::new(Semaphore::new(config.limits.requests)),
        access_log,
    });
    let scheme = if acceptor.is_some() { "https" } else { "http" };
    let address = listener.local_addr().unwrap_or(config.listen);
    tracing::info!(
        "serving S3 at {scheme}://{address}, health and metrics at http://{}",
        config.admin.listen
    );
    readiness.set(true);
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(config.limits.connections));
    loop {
        let accept = async {
            // One that finds no place waits in the kernel's queue, and takes no memory of ours.
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        tokio::select! {
            (place, accepted) = accept => match (place, accepted) {
                (Ok(place), Ok((stream, peer))) => {
                    // Small answers must not wait for the client's acknowledgement.
                    let _ = stream.set_nodelay(true);
                    connections.start(stream, peer, acceptor.clone(), place, &graceful);
                }
                (_, Err(error)) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
                (Err(_), _) => break,
            },
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        }
    }
    drop(listener);
    readiness.set(false);
    tracing::info!("stopping: no new requests are taken");
    let until = Instant::now() + config.limits.drain;
    engine.begin_drain();
    let finish = async {
        let ended = tokio::time::timeout(config.limits.drain, graceful.shutdown()).await;
        if ended.is_err() {
            tracing::warn!("some requests did not end in time and are broken off");
        }
        drain(&engine, until).await;
    };
    tokio::select! {
        () = finish => {}
        _ = terminate.recv() => say_what_is_left(&engine),
        _ = interrupt.recv() => say_what_is_left(&engine),
    }
    engine.close().await;
    Ok(())
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
    true
}

fn say_what_is_left(engine: &Engine) {
    let (count, _) = engine.pending();
    tracing::warn!(
        "{count} objects are not in their store yet: they are safe in the journal, and the next start goes on"
    );
}
