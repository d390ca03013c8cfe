//! The volumes of a pool, served over NVMe/TCP.
//!
//! A [`Server`] opens the pool of a [`PoolFile`], exports each volume as its own subsystem with one namespace
//! (hosts
//! and secrets are a subsystem's, so they are a volume's), and takes commands on a socket in the pool's directory.
//! [`obey`] does a command wherever the pool is: by its server, or by opening it where none runs.

mod admissions;
mod connection;
mod devices;
mod error;
mod exports;
mod faults;
mod listener;
mod lock;
pub mod nqn;
mod opened;
pub mod protocol;
mod real_device;
mod whole_file;
mod writers;

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use underlay_sync::Mutex;

use underlay_files::Folder;
use underlay_storage::stack::Pace;

use crate::pool_file::PoolFile;
pub use connection::Connection;
pub use error::ServerError;
use exports::Exports;
pub use opened::OpenPool;
use protocol::{Command, FailureKind, PoolState, Reply};
use underlay_files::control_socket::ControlSocket;
use writers::KnownWriters;

/// A pool that is being served. Dropping it stops it as [`Server::stop`] does, but tells no errors.
pub struct Server {
    service: Arc<Service>,
    listener: Option<ControlSocket>,
}

struct Service {
    pool: OpenPool,
    exports: Exports,
    /// Commands that change volumes, one at a time.
    changing: Mutex<()>,
    shutdown: AtomicBool,
}

impl Server {
    /// Opens the pool, gives it the volumes of its file, and serves them.
    ///
    /// # Errors
    /// When the pool is in use, a device can't be had, the file asks for what would lose data, a secret is missing, or the
    /// address is taken.
    pub fn start(file: &PoolFile, pace: Pace) -> Result<Server, ServerError> {
        Server::serve(file, pace, OpenPool::open)
    }

    /// As [`start`](Server::start); but where there is no pool yet, what else its devices hold is lost.
    ///
    /// # Errors
    /// As there, except that devices need not be blank.
    pub fn format(file: &PoolFile, pace: Pace) -> Result<Server, ServerError> {
        Server::serve(file, pace, OpenPool::format)
    }

    fn serve(
        file: &PoolFile,
        pace: Pace,
        open: impl FnOnce(&PoolFile) -> Result<OpenPool, ServerError>,
    ) -> Result<Server, ServerError> {
        // Threads started later inherit it: the default of 50 µs would be added to every modelled latency.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let pool = open(file)?;
        pool.apply(file)?;
        if let (Pace::Immediate, Some(stack)) = (pace, pool.stack()) {
            stack.set_pace(pace);
        }
        let writers = KnownWriters::open(&file.directory)?;
        writers.keep_only(&pool.volumes().iter().map(|volume| volume.identity).collect());
        let exports = Exports::new(pool.name(), file.listen, writers);
        for volume in pool.volumes() {
            exports.add(&volume, pool.volume(&volume.name)?, &pool.admission(&volume.name))?;
        }
        // Only now, so that a host that connects finds every volume.
        exports.listen()?;
        let service =
            Arc::new(Service { pool, exports, changing: Mutex::default(), shutdown: AtomicBool::new(false) });
        let control = file.control_socket();
        let obeying = Arc::clone(&service);
        let listener = listener::listen(&control, move |command| obeying.obey(command))
            .map_err(|error| ServerError::io("listen on", control, error))?;
        Ok(Server { service, listener: Some(listener) })
    }

    /// Where it listens, with the port that it got.
    pub fn address(&self) -> SocketAddr {
        self.service.exports.address()
    }

    pub fn state(&self) -> PoolState {
        self.service.state()
    }

    /// What the user should know of the pool if it was made just now.
    pub fn note(&self) -> Option<String> {
        self.service.pool.note()
    }

    /// Whether it was told to end.
    pub fn is_over(&self) -> bool {
        self.service.shutdown.load(Ordering::Relaxed)
    }

    /// Hosts are cut off, everything acknowledged is made durable, the pool is free for others.
    ///
    /// # Errors
    /// When something could not be written.
    pub fn stop(mut self) -> Result<(), ServerError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), ServerError> {
        let Some(listener) = self.listener.take() else { return Ok(()) };
        // In this order: no more commands, then no more requests of hosts, and only then is the pool closed.
        drop(listener);
        // What waits for its modelled time is answered at once, so that nobody waits for a disk that is being switched off.
        if let Some(stack) = self.service.pool.stack() {
            stack.set_pace(Pace::Immediate);
        }
        self.service.exports.stop();
        self.service.pool.close()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl Service {
    fn state(&self) -> PoolState {
        let mut state = self.pool.state();
        state.address = Some(self.exports.address());
        for volume in &mut state.volumes {
            volume.clients = self.exports.clients(&volume.name);
            volume.traffic = self.exports.traffic(&volume.name);
            volume.writer = self.exports.writer(&volume.name);
        }
        state
    }

    fn obey(&self, command: Command) -> Reply {
        // At once where it can't be: a resync may take hours, and nobody expects a cut after that.
        if let Command::CutPower { device, .. } = &command
            && let Err(refused) = self.pool.check_can_lose(device)
        {
            return refused.into_reply();
        }
        let _one_at_a_time = command.changes().then(|| self.changing.lock());
        self.try_obey(command).unwrap_or_else(ServerError::into_reply)
    }

    fn try_obey(&self, command: Command) -> Result<Reply, ServerError> {
        match command {
            Command::Ping => {
                let (pool, pid) = (self.pool.name().to_owned(), std::process::id());
                return Ok(Reply::Pong { pool, address: self.exports.address(), pid });
            }
            Command::List => return Ok(Reply::State(self.state())),
            Command::Create { volume } => {
                // Looked at first: a volume that can't be served is not made.
                exports::check(&volume.admission)?;
                let made = self.pool.create(&volume)?;
                self.exports.add(&made.info(), made, &volume.admission)?;
            }
            Command::Resize { volume, capacity_bytes, shrink } => {
                self.pool.resize(&volume, capacity_bytes, shrink)?;
                self.exports.resized(&volume);
            }
            Command::Snapshot { volume, snapshot, writable } => {
                let made = self.pool.snapshot(&volume, &snapshot, writable)?;
                self.exports.add(&made.info(), made, &self.pool.admission(&snapshot))?;
            }
            Command::Delete { volume, connected } => {
                self.pool.volume(&volume)?;
                let clients = self.exports.clients(&volume);
                if clients > 0 && !connected {
                    return Err(ServerError::Mistake(format!(
                        "{clients} host{} connected to volume '{volume}': disconnect first, or add --connected",
                        if clients == 1 { " is" } else { "s are" }
                    )));
                }
                self.exports.remove(&volume);
                self.pool.delete(&volume)?;
            }
            Command::Resync { member } => self.pool.resync(&member)?,
            Command::Check => return Ok(Reply::Checked { problems: self.pool.check()? }),
            Command::Fault { device, fault } => self.pool.inject(&device, fault)?,
            Command::ClearFaults { device } => self.pool.clear_faults(device.as_deref())?,
            Command::BringBack { device } => self.pool.bring_back(&device)?,
            Command::CutPower { device, cut } => {
                return Ok(Reply::Cut(self.pool.cut_power(&device, cut)?));
            }
            Command::Faults => return Ok(Reply::Faults { devices: self.pool.faults()? }),
            Command::SetPace { pace } => self.modelled()?.set_pace(pace),
            Command::BeginMeasurement { interval_s } => self.modelled()?.begin_measurement(interval_s),
            Command::EndMeasurement => {
                return Ok(Reply::Activity { devices: self.modelled()?.end_measurement() });
            }
            Command::Glance => return Ok(Reply::Glance { devices: self.modelled()?.glance() }),
            Command::Shutdown => self.shutdown.store(true, Ordering::Relaxed),
        }
        Ok(Reply::Done)
    }

    fn modelled(&self) -> Result<&underlay_storage::stack::Stack, ServerError> {
        self.pool.stack().ok_or_else(ServerError::real_devices)
    }
}

impl Command {
    fn changes(&self) -> bool {
        matches!(
            self,
            Command::Create { .. }
                | Command::Resize { .. }
                | Command::Snapshot { .. }
                | Command::Delete { .. }
                | Command::Resync { .. }
                | Command::BringBack { .. }
                | Command::CutPower { .. }
        )
    }
}

/// Does a command on a pool: asks its server, or opens the pool where none runs.
///
/// # Errors
/// When the server does not answer, or the pool can't be opened. What the command itself fails by is a reply.
pub fn obey(file: &PoolFile, command: Command) -> Result<Reply, ServerError> {
    match Folder::open(&file.directory) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        // Nor is anything believed that listens there.
        Err(error) => return Err(devices::directory_error(&file.directory, error)),
    }
    let control = file.control_socket();
    match Connection::open(&control) {
        Ok(mut connection) => {
            return connection
                .ask(&command)
                .map_err(|error| ServerError::io("ask the server at", control, error));
        }
        Err(error) if Connection::is_nobody(&error) => {}
        Err(error) => return Err(ServerError::io("ask the server at", control, error)),
    }
    if matches!(
        command,
        Command::Ping
            | Command::Fault { .. }
            | Command::ClearFaults { .. }
            | Command::BringBack { .. }
            | Command::CutPower { .. }
            | Command::Faults
            | Command::SetPace { .. }
            | Command::BeginMeasurement { .. }
            | Command::EndMeasurement
            | Command::Glance
            | Command::Shutdown
    ) {
        let problem = format!("the pool '{}' is not served: `underlay volume serve` does that", file.name);
        return Ok(Reply::Failed { kind: FailureKind::Mistake, problem });
    }
    if !file.directory.is_dir() || (devices::is_blank(file) && !devices::has_notes(file)) {
        let problem = format!("there is no pool '{}' yet: `underlay volume serve` creates it", file.name);
        return Ok(Reply::Failed { kind: FailureKind::Mistake, problem });
    }
    let pool = OpenPool::open(file)?;
    let done = match command {
        Command::List => Ok(Reply::State(pool.state())),
        Command::Create { volume } => pool.create(&volume).map(|_| Reply::Done),
        Command::Resize { volume, capacity_bytes, shrink } => {
            pool.resize(&volume, capacity_bytes, shrink).map(|()| Reply::Done)
        }
        Command::Snapshot { volume, snapshot, writable } => {
            pool.snapshot(&volume, &snapshot, writable).map(|_| Reply::Done)
        }
        Command::Delete { volume, .. } => pool.delete(&volume).map(|()| Reply::Done),
        Command::Resync { member } => pool.resync(&member).map(|()| Reply::Done),
        _ => pool.check().map(|problems| Reply::Checked { problems }),
    };
    let reply = done.unwrap_or_else(ServerError::into_reply);
    pool.close()?;
    Ok(reply)
}
