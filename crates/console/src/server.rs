//! The server: who is let in, how many at once, and which page an address has.

mod actions;
mod answer;
mod assets;
mod connection;
mod guard;
mod leisure;
mod places;
mod routes;
mod stream;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::access::{Names, Secret};
use crate::drawn::Drawn;
use crate::host::Host;
use crate::hub::Hub;
use places::Places;

/// Whoever is measured beside it needs the CPUs more.
const NICENESS: i32 = 10;
/// Under way at once.
const MAX_NODE_COMMANDS: usize = 6;
const POLL: Duration = Duration::from_millis(100);

/// What to serve, and where.
pub struct Options {
    /// An address of this host's own, of which nobody else hears.
    pub listen: SocketAddr,
    /// Whose runs are shown.
    pub runs: PathBuf,
    /// Where studies are edited.
    pub studies: PathBuf,
    pub names: Names,
    pub token: Secret,
}

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
    token: Secret,
    shared: Arc<Shared>,
}

/// What every request needs.
pub(crate) struct Shared {
    pub hub: Hub,
    pub drawn: Drawn,
    pub names: Names,
    pub token: Secret,
    /// What the cookie has. The token itself stays in the address that was printed.
    pub session: Secret,
    /// Where browsers are served.
    pub name: String,
    pub streams: Places,
    /// Each may take as long as a node takes to start.
    pub node_commands: Places,
}

impl Console {
    /// # Errors
    /// When the address is not loopback, or is taken.
    pub fn listen(options: Options, host: Arc<dyn Host>) -> Result<Console, ConsoleError> {
        let Options { listen, runs, studies, names, token } = options;
        if !listen.ip().is_loopback() {
            return Err(ConsoleError::Mistake(format!(
                "{listen} can be reached from other hosts, and the console speaks plain HTTP: listen on 127.0.0.1 and forward the \
                 port, as `ssh -L 7100:127.0.0.1:7100 HOST` does"
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
        // A label of a name has 63 characters at most.
        let name = format!("u-{}.localhost", random()?.reveal());
        let shared = Arc::new(Shared {
            hub: Hub::new(runs, studies, host, random()?),
            drawn: Drawn::default(),
            names,
            token: token.clone(),
            session: random()?,
            name,
            streams: Places::of(stream::MAX_STREAMS),
            node_commands: Places::of(MAX_NODE_COMMANDS),
        });
        Ok(Console { listener, address, token, shared })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where a browser begins. It has the token, which is exchanged for a cookie.
    pub fn url(&self) -> String {
        format!("{}?token={}", self.place(), self.token.reveal())
    }

    /// The same without the token.
    pub fn place(&self) -> String {
        format!("http://{}:{}/", self.shared.name, self.address.port())
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
            let accepting =
                tokio::spawn(connection::accept(listener, routes::router(Arc::clone(&self.shared))));
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
