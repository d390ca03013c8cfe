//! The server: who is let in, how many at once, and which page an address has.

mod actions;
mod answer;
mod assets;
mod connection;
mod entry;
mod guard;
mod leisure;
mod places;
mod routes;
mod stream;
mod visits;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use openssl::ssl::SslContext;

use crate::access::{Names, Secret};
use crate::drawn::Drawn;
use crate::host::Host;
use crate::hub::Hub;
use crate::page::escaped;
use entry::Entry;
use places::Places;

/// Whoever is measured beside it needs the CPUs more.
const NICENESS: i32 = 10;
/// Under way at once.
const MAX_NODE_COMMANDS: usize = 6;
const POLL: Duration = Duration::from_millis(100);

/// What to serve, and where.
pub struct Options {
    /// An address of this host's own, of which nobody else hears; with `tls` any.
    pub listen: SocketAddr,
    /// Whose runs are shown.
    pub runs: PathBuf,
    /// The run that the printed address opens on; the list where absent. It may be about to begin.
    pub opens_on: Option<String>,
    /// Where studies are edited.
    pub studies: PathBuf,
    pub names: Names,
    /// The user's own, which scripts send and which opens a browser's session as often as it is shown. Without one, the address that is
    /// printed opens one session, and the next is told to `on_used`.
    pub token: Option<Secret>,
    pub on_used: OnUsed,
    /// Whoever connects has to show a certificate that this trusts.
    pub tls: Option<SslContext>,
}

/// Called with the next address whenever one was used.
pub type OnUsed = Box<dyn Fn(&str) + Send + Sync>;

#[derive(Debug, thiserror::Error)]
pub enum ConsoleError {
    /// The user's to mend.
    #[error("{0}")]
    Mistake(String),
    #[error("{0}")]
    Failed(String),
}

/// A console that listens. Nobody is answered before [`run`](Console::run).
pub struct Console {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<SslContext>,
    shared: Arc<Shared>,
}

/// What every request needs.
pub(crate) struct Shared {
    pub hub: Hub,
    pub drawn: Drawn,
    pub names: Names,
    pub token: Option<Secret>,
    /// What the next browser shows in its address, once.
    pub entry: Entry,
    /// What the cookie has.
    pub session: Secret,
    /// Where browsers are served.
    pub name: String,
    pub is_tls: bool,
    pub streams: Places,
    /// Each may take as long as a node takes to start.
    pub node_commands: Places,
}

impl Shared {
    pub(crate) fn scheme(&self) -> &'static str {
        if self.is_tls { "https" } else { "http" }
    }
}

impl Console {
    /// # Errors
    /// When the address is taken, or not loopback without TLS.
    pub fn listen(options: Options, host: Arc<dyn Host>) -> Result<Console, ConsoleError> {
        let Options { listen, runs, opens_on, studies, names, token, on_used, tls } = options;
        if !listen.ip().is_loopback() && tls.is_none() {
            return Err(ConsoleError::Mistake(format!(
                "{listen} can be reached from other hosts, and without certificates the console speaks plain HTTP: give --authority, \
                 --certificate and --key, or listen on 127.0.0.1 and forward the port, as `ssh -L 7100:127.0.0.1:7100 HOST` does"
            )));
        }
        if listen.ip().is_unspecified() && names.first().is_none() {
            return Err(ConsoleError::Mistake(format!(
                "{listen} is every address of this host: give --name with what other hosts call it, as its certificate does"
            )));
        }
        let cannot =
            |error: std::io::Error| ConsoleError::Failed(format!("cannot listen on {listen}: {error}"));
        let listener = TcpListener::bind(listen).map_err(cannot)?;
        listener.set_nonblocking(true).map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let random = || {
            Secret::generate()
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
        let entry = match &token {
            Some(_) => Entry::closed(place),
            None => Entry::new(place, random()?, on_used),
        };
        let shared = Arc::new(Shared {
            hub: Hub::new(runs, opens_on, studies, host, random()?),
            drawn: Drawn::default(),
            names,
            token,
            entry,
            session: random()?,
            name,
            is_tls: tls.is_some(),
            streams: Places::of(stream::MAX_STREAMS),
            node_commands: Places::of(MAX_NODE_COMMANDS),
        });
        Ok(Console { listener, address, tls, shared })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where a browser begins, once: what it has is exchanged for a cookie. Where the user has a token, they know what to add.
    pub fn url(&self) -> String {
        self.shared.entry.url()
    }

    /// Serves until `stop` is raised.
    ///
    /// # Errors
    /// When there are no threads or sockets to be had.
    pub fn run(self, stop: &AtomicBool) -> Result<(), ConsoleError> {
        let failed =
            |error: std::io::Error| ConsoleError::Failed(format!("the console could not go on: {error}"));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(48)
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
            let accepting = tokio::spawn(connection::accept(
                listener,
                routes::router(Arc::clone(&self.shared)),
                self.tls,
            ));
            while !stop.load(Ordering::Relaxed) && !accepting.is_finished() {
                tokio::time::sleep(POLL).await;
            }
            accepting.abort();
            Ok(())
        });
        // Pages that are open need not be waited for.
        runtime.shutdown_background();
        outcome.map_err(failed)
    }
}

#[cfg(test)]
mod tests;
