//! The server: who is let in, how many at once, and which page an address has.

mod actions;
mod answer;
mod assets;
mod caller;
mod connection;
mod connection_limits;
mod login;
mod named_runs;
mod outsiders;
mod own_files;
mod permits;
mod request_guard;
mod routes;
mod stream;
mod studies;
mod work;

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use openssl::ssl::SslContext;
use underlay_sync::UnsimulatedMutex;

use crate::access::{AccessSecret, HostNames};
use crate::drawn::DrawnPages;
use crate::host::ConsoleHost;
use crate::hub::ConsoleHub;
use crate::page::escaped;
pub use login::ADDRESS_VALID;
use login::LoginAddress;
use own_files::OwnSocket;
use permits::PermitPool;
use work::{RunningCommands, WorkPermits};

/// A system under test on the same host needs the CPUs more.
const NICENESS: i32 = 10;
const POLL: Duration = Duration::from_millis(100);
/// A console that ends waits so long for its work on a storage: power returns to all devices, and file systems are
/// mounted again. Otherwise the user has to finish it by hand. systemd kills a service after 90 s.
const STORAGE_LIMIT: Duration = Duration::from_secs(80);

/// The runs to serve, and the address.
pub struct ConsoleOptions {
    pub listen: ListenAddress,
    /// Whose runs are shown.
    pub runs: PathBuf,
    /// The run that the printed address opens on; the list where absent. It may be about to begin.
    pub opens_on: Option<String>,
    /// Where studies are edited.
    pub studies: PathBuf,
    pub names: HostNames,
    /// The monitors' token. It reads everything and changes nothing, because a program that takes the port while the
    /// console is down receives it.
    pub token: Option<AccessSecret>,
    /// A directory of this user's alone, for the Unix socket and an address that nobody was there to read.
    pub own_folder: PathBuf,
    /// Each client has to show a certificate that this trusts.
    pub tls: Option<SslContext>,
}

/// Where browsers and monitors come in.
pub enum ListenAddress {
    /// An address of this host that no other host reaches; with `tls` any.
    At(SocketAddr),
    /// A socket that a service manager has listened on since the host's start.
    Passed(TcpListener),
}

#[derive(Debug, thiserror::Error)]
pub enum ConsoleError {
    /// The user's to mend.
    #[error("{0}")]
    Mistake(String),
    #[error("{0}")]
    Failed(String),
}

/// A console that listens. Nobody is answered before [`run`](ConsoleServer::run).
pub struct ConsoleServer {
    listener: TcpListener,
    own_listener: UnixListener,
    address: SocketAddr,
    tls: Option<SslContext>,
    shared: Arc<ServerShared>,
}

/// State that every request needs.
pub(crate) struct ServerShared {
    pub hub: ConsoleHub,
    pub drawn: DrawnPages,
    pub names: HostNames,
    /// It only reads.
    pub token: Option<AccessSecret>,
    /// The secret in the address, valid once.
    pub entry: LoginAddress,
    /// Where this user's programs are heard.
    pub socket: OwnSocket,
    /// The secret in the cookie.
    pub session: AccessSecret,
    /// Where browsers are served.
    pub name: String,
    pub is_tls: bool,
    pub streams: PermitPool,
    pub work: WorkPermits,
    /// Commands that are being done.
    pub under_way: RunningCommands,
    /// Held while a study is compared with what its reader began with, and replaced.
    pub saving: UnsimulatedMutex<()>,
}

impl ServerShared {
    pub(crate) fn scheme(&self) -> &'static str {
        if self.is_tls { "https" } else { "http" }
    }
}

impl ConsoleServer {
    /// # Errors
    /// When the address is taken, or not loopback without TLS.
    pub fn listen(
        options: ConsoleOptions,
        host: Arc<dyn ConsoleHost>,
    ) -> Result<ConsoleServer, ConsoleError> {
        let ConsoleOptions { listen, runs, opens_on, studies, names, token, own_folder, tls } = options;
        let requested = match &listen {
            ListenAddress::At(address) => Ok(*address),
            ListenAddress::Passed(listener) => listener.local_addr(),
        };
        let requested = requested
            .map_err(|error| ConsoleError::Mistake(format!("the passed socket is no TCP socket: {error}")))?;
        if !requested.ip().is_loopback() && tls.is_none() {
            return Err(ConsoleError::Mistake(format!(
                "{requested} can be reached from other hosts, and without certificates the console speaks plain HTTP: give --authority, \
                 --certificate and --key, or listen on 127.0.0.1 and forward the port, as `ssh -L 7100:127.0.0.1:7100 HOST` does"
            )));
        }
        if requested.ip().is_unspecified() && names.first().is_none() {
            return Err(ConsoleError::Mistake(format!(
                "{requested} is every address of this host: give --name with what other hosts call it, as its certificate does"
            )));
        }
        let cannot =
            |error: std::io::Error| ConsoleError::Failed(format!("cannot listen on {requested}: {error}"));
        let listener = match listen {
            ListenAddress::At(address) => TcpListener::bind(address).map_err(cannot)?,
            ListenAddress::Passed(listener) => listener,
        };
        listener.set_nonblocking(true).map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let (socket, own_listener, address_file) =
            OwnSocket::listen(&own_folder, address.port()).map_err(|error| {
                let place = own_folder.display();
                ConsoleError::Failed(format!("cannot make the console's Unix socket in {place}: {error}"))
            })?;
        let random = || {
            AccessSecret::generate()
                .map_err(|error| ConsoleError::Failed(format!("there are no random numbers: {error}")))
        };
        let name = match (&tls, names.first()) {
            // A label of a name has 63 characters at most.
            (None, _) => format!("u-{}.localhost", random()?.reveal()),
            (Some(_), Some(name)) => name.to_owned(),
            (Some(_), None) if address.is_ipv6() => format!("[{}]", address.ip()),
            (Some(_), None) => address.ip().to_string(),
        };
        let scheme = if tls.is_some() { "https" } else { "http" };
        let opens_on_page =
            opens_on.as_deref().map_or_else(String::new, |run| format!("runs/{}", escaped(run)));
        let place = format!("{scheme}://{name}:{}/{opens_on_page}", address.port());
        let entry = LoginAddress::new(place, address_file);
        let shared = Arc::new(ServerShared {
            hub: ConsoleHub::new(runs, opens_on, studies, host, random()?),
            drawn: DrawnPages::default(),
            names,
            token,
            entry,
            socket,
            session: random()?,
            name,
            is_tls: tls.is_some(),
            streams: PermitPool::new(stream::MAX_STREAMS),
            work: WorkPermits::new(),
            under_way: RunningCommands::default(),
            saving: UnsimulatedMutex::new(()),
        });
        Ok(ConsoleServer { listener, own_listener, address, tls, shared })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where this user's programs are heard.
    pub fn socket(&self) -> &Path {
        self.shared.socket.path()
    }

    /// Where a browser begins, once and within [`ADDRESS_VALID`]: what the address has is exchanged for a cookie. It is
    /// as good as a password until then, so that it goes to a terminal and nowhere else.
    ///
    /// # Errors
    /// When there are no random numbers.
    pub fn new_address(&self) -> Result<String, ConsoleError> {
        self.shared
            .entry
            .issue()
            .map_err(|error| ConsoleError::Failed(format!("there is no new address: {error}")))
    }

    /// The same where there is no terminal: written into a file of this user's alone, which goes when the address does.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn new_address_in_file(&self) -> Result<PathBuf, ConsoleError> {
        let written = self.shared.entry.issue_into_file();
        written.map_err(|error| {
            ConsoleError::Failed(format!("cannot write the new address into a file: {error}"))
        })
    }

    /// Serves until `stop` is raised. Then it calls `say_wait` once if it has to wait for what it does to a storage.
    ///
    /// # Errors
    /// When there are no threads or sockets to be had.
    pub fn run(self, stop: &AtomicBool, say_wait: &dyn Fn()) -> Result<(), ConsoleError> {
        let failed =
            |error: std::io::Error| ConsoleError::Failed(format!("the console could not go on: {error}"));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(work::max_threads())
            .thread_name("console")
            .on_thread_start(|| {
                // Of this thread alone, as Linux has it: what the program starts is not to be as patient.
                let _ = rustix::process::nice(NICENESS);
            })
            .enable_all()
            .build()
            .map_err(failed)?;
        let outcome = runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(self.listener)?;
            let own_listener = tokio::net::UnixListener::from_std(self.own_listener)?;
            let router = routes::router(Arc::clone(&self.shared));
            let mut accepting_own = tokio::spawn(connection::accept_own(own_listener, router.clone()));
            let mut accepting = tokio::spawn(connection::accept(listener, router, self.tls));
            while !stop.load(Ordering::Relaxed) && !accepting.is_finished() && !accepting_own.is_finished() {
                self.shared.entry.expire();
                tokio::time::sleep(POLL).await;
            }
            // First: as soon as the port is free, another console may have it and these names.
            self.shared.entry.close();
            self.shared.socket.remove();
            accepting.abort();
            accepting_own.abort();
            // Neither ends by itself: a console that nobody can reach any more must not end as if it had been stopped.
            let panicked = [(&mut accepting).await, (&mut accepting_own).await]
                .into_iter()
                .any(|ended| ended.is_err_and(|error| error.is_panic()));
            self.shared.under_way.close();
            let ending = Instant::now();
            let mut has_waited = false;
            while self.shared.under_way.changes_storage() && ending.elapsed() < STORAGE_LIMIT {
                if !has_waited {
                    say_wait();
                }
                has_waited = true;
                tokio::time::sleep(POLL).await;
            }
            if has_waited {
                // The answer is on its way.
                tokio::time::sleep(POLL).await;
            }
            match panicked {
                true => Err(std::io::Error::other(
                    "a bug ended what takes its connections, please report it with the lines above",
                )),
                false => Ok(()),
            }
        });
        // Where it failed at once. Tasks that are not waited for share them, so that they aren't dropped here.
        self.shared.entry.close();
        self.shared.socket.remove();
        // Pages that are open need not be waited for.
        runtime.shutdown_background();
        outcome.map_err(failed)
    }
}

/// The Unix sockets of this user's consoles that run now.
pub fn sockets(own_folder: &Path) -> Vec<PathBuf> {
    own_files::sockets(own_folder)
}

/// Removes the sockets and addresses of this user's consoles that were killed, and says which.
///
/// # Errors
/// When another console is starting for long, or a file can't be removed.
pub fn remove_leftovers(own_folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    own_files::remove_leftovers(own_folder)
}

#[cfg(test)]
mod tests;
