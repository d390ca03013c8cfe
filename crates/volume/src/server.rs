//! The volumes of a pool, served over NVMe/TCP.
//!
//! A [`PoolServer`] opens the pool of a [`PoolFile`], exports each volume as its own subsystem with one namespace
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
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use underlay_sync::Mutex;

use underlay_files::Folder;
use underlay_storage::stack::PacingMode;

use crate::pool_file::PoolFile;
pub use connection::PoolConnection;
pub use error::ServerError;
use exports::VolumeExports;
pub use opened::OpenPool;
use protocol::{FailureKind, PoolCommand, PoolReply, PoolState};
use underlay_files::control_socket::ControlSocket;
use writers::KnownWriters;

/// A pool that is being served. Dropping it stops it as [`PoolServer::stop`] does, but tells no errors.
pub struct PoolServer {
    service: Arc<PoolService>,
    listener: Option<ControlSocket>,
}

struct PoolService {
    pool: OpenPool,
    exports: VolumeExports,
    /// Commands that change volumes, one at a time.
    changing: Mutex<()>,
    shutdown: AtomicBool,
}

impl PoolServer {
    /// Opens the pool, gives it the volumes of its file, and serves them.
    ///
    /// # Errors
    /// When the pool is in use, a device can't be had, the file asks for what would lose data, a secret is missing, or
    /// the address is taken.
    pub fn start(file: &PoolFile, pace: PacingMode) -> Result<PoolServer, ServerError> {
        PoolServer::serve(file, pace, OpenPool::open)
    }

    /// As [`start`](PoolServer::start); but where there is no pool yet, what else its devices hold is lost.
    ///
    /// # Errors
    /// As there, except that devices need not be blank.
    pub fn format(file: &PoolFile, pace: PacingMode) -> Result<PoolServer, ServerError> {
        PoolServer::serve(file, pace, OpenPool::format)
    }

    fn serve(
        file: &PoolFile,
        pace: PacingMode,
        open: impl FnOnce(&PoolFile) -> Result<OpenPool, ServerError>,
    ) -> Result<PoolServer, ServerError> {
        // Threads started later inherit it: the default of 50 µs would be added to every modelled latency.
        let _ = underlay_sync::timer_slack::narrow();
        let pool = open(file)?;
        pool.apply(file)?;
        if let (PacingMode::Immediate, Some(stack)) = (pace, pool.stack()) {
            stack.set_pace(pace);
        }
        let writers = KnownWriters::open(&file.directory)?;
        writers.keep_only(&pool.volumes().iter().map(|volume| volume.identity).collect());
        let exports = VolumeExports::new(pool.name(), file.listen, writers);
        for volume in pool.volumes() {
            exports.add(&volume, pool.volume(&volume.name)?, &pool.admission(&volume.name))?;
        }
        // Only now, so that a host that connects finds every volume.
        exports.listen()?;
        let service = Arc::new(PoolService {
            pool,
            exports,
            changing: Mutex::default(),
            shutdown: AtomicBool::new(false),
        });
        let control = file.control_socket();
        let obeying = Arc::clone(&service);
        let listener = listener::listen(&control, move |command| obeying.obey(command))
            .map_err(|error| ServerError::io("listen on", control, error))?;
        Ok(PoolServer { service, listener: Some(listener) })
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

    /// Whether somebody asked it to end.
    pub fn is_over(&self) -> bool {
        self.service.shutdown.load(Ordering::Relaxed)
    }

    /// Whether a bug has ended a thread that it needs, so that it serves no new hosts.
    pub fn has_panicked(&self) -> bool {
        self.service.exports.has_panicked()
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
        // What waits for its modelled time is answered at once, so that nobody waits for a disk that is being switched
        // off.
        if let Some(stack) = self.service.pool.stack() {
            stack.set_pace(PacingMode::Immediate);
        }
        self.service.exports.stop();
        self.service.pool.close()
    }
}

impl Drop for PoolServer {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl PoolService {
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

    fn obey(&self, command: PoolCommand) -> PoolReply {
        // At once where it can't be: a resync may take hours, and nobody expects a cut after that.
        if let PoolCommand::CutPower { device, .. } = &command
            && let Err(refused) = self.pool.check_can_lose(device)
        {
            return refused.into_reply();
        }
        let _one_at_a_time = command.changes().then(|| self.changing.lock());
        self.try_obey(command).unwrap_or_else(ServerError::into_reply)
    }

    fn try_obey(&self, command: PoolCommand) -> Result<PoolReply, ServerError> {
        match command {
            PoolCommand::Ping => {
                let (pool, pid) = (self.pool.name().to_owned(), std::process::id());
                return Ok(PoolReply::Pong { pool, address: self.exports.address(), pid });
            }
            PoolCommand::List => return Ok(PoolReply::State(self.state())),
            PoolCommand::Create { volume } => {
                // Looked at first: a volume that can't be served is not made.
                exports::check(&volume.admission)?;
                let made = self.pool.create(&volume)?;
                self.exports.add(&made.info(), made, &volume.admission)?;
            }
            PoolCommand::Resize { volume, capacity_bytes, shrink } => {
                self.pool.resize(&volume, capacity_bytes, shrink)?;
                self.exports.resized(&volume);
            }
            PoolCommand::Snapshot { volume, snapshot, writable } => {
                let made = self.pool.snapshot(&volume, &snapshot, writable)?;
                self.exports.add(&made.info(), made, &self.pool.admission(&snapshot))?;
            }
            PoolCommand::Delete { volume, connected } => {
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
            PoolCommand::Resync { member } => self.pool.resync(&member)?,
            PoolCommand::Check => return Ok(PoolReply::Checked { problems: self.pool.check()? }),
            PoolCommand::Fault { device, fault } => self.pool.inject(&device, fault)?,
            PoolCommand::ClearFaults { device } => self.pool.clear_faults(device.as_deref())?,
            PoolCommand::BringBack { device } => self.pool.bring_back(&device)?,
            PoolCommand::CutPower { device, cut } => {
                return Ok(PoolReply::Cut(self.pool.cut_power(&device, cut)?));
            }
            PoolCommand::Faults => return Ok(PoolReply::Faults { devices: self.pool.faults()? }),
            PoolCommand::SetPace { pace } => self.modelled()?.set_pace(pace),
            PoolCommand::BeginMeasurement { interval_s } => self.modelled()?.begin_measurement(interval_s),
            PoolCommand::EndMeasurement => {
                return Ok(PoolReply::Activity { devices: self.modelled()?.end_measurement() });
            }
            PoolCommand::Glance => return Ok(PoolReply::Glance { devices: self.modelled()?.glance() }),
            PoolCommand::Shutdown => self.shutdown.store(true, Ordering::Relaxed),
        }
        Ok(PoolReply::Done)
    }

    fn modelled(&self) -> Result<&underlay_storage::stack::Stack, ServerError> {
        self.pool.stack().ok_or_else(ServerError::real_devices)
    }
}

impl PoolCommand {
    fn changes(&self) -> bool {
        matches!(
            self,
            PoolCommand::Create { .. }
                | PoolCommand::Resize { .. }
                | PoolCommand::Snapshot { .. }
                | PoolCommand::Delete { .. }
                | PoolCommand::Resync { .. }
                | PoolCommand::BringBack { .. }
                | PoolCommand::CutPower { .. }
        )
    }
}

/// Does a command on a pool: asks its server, or opens the pool where none runs.
///
/// # Errors
/// When the server does not answer, or the pool can't be opened. What the command itself fails by is a reply.
pub fn obey(file: &PoolFile, command: PoolCommand) -> Result<PoolReply, ServerError> {
    match Folder::open(&file.directory) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        // Nor is anything believed that listens there.
        Err(error) => return Err(devices::directory_error(&file.directory, error)),
    }
    let control = file.control_socket();
    match PoolConnection::open(&control) {
        Ok(mut connection) => {
            return connection
                .ask(&command)
                .map_err(|error| ServerError::io("ask the server at", control, error));
        }
        Err(error) if PoolConnection::is_nobody(&error) => {}
        Err(error) => return Err(ServerError::io("ask the server at", control, error)),
    }
    if matches!(
        command,
        PoolCommand::Ping
            | PoolCommand::Fault { .. }
            | PoolCommand::ClearFaults { .. }
            | PoolCommand::BringBack { .. }
            | PoolCommand::CutPower { .. }
            | PoolCommand::Faults
            | PoolCommand::SetPace { .. }
            | PoolCommand::BeginMeasurement { .. }
            | PoolCommand::EndMeasurement
            | PoolCommand::Glance
            | PoolCommand::Shutdown
    ) {
        let problem = format!("the pool '{}' is not served: `underlay volume serve` does that", file.name);
        return Ok(PoolReply::Failed { kind: FailureKind::Mistake, problem });
    }
    if !file.directory.is_dir() || (devices::is_blank(file) && !devices::has_notes(file)) {
        let problem = format!("there is no pool '{}' yet: `underlay volume serve` creates it", file.name);
        return Ok(PoolReply::Failed { kind: FailureKind::Mistake, problem });
    }
    let pool = OpenPool::open(file)?;
    let done = match command {
        PoolCommand::List => Ok(PoolReply::State(pool.state())),
        PoolCommand::Create { volume } => pool.create(&volume).map(|_| PoolReply::Done),
        PoolCommand::Resize { volume, capacity_bytes, shrink } => {
            pool.resize(&volume, capacity_bytes, shrink).map(|()| PoolReply::Done)
        }
        PoolCommand::Snapshot { volume, snapshot, writable } => {
            pool.snapshot(&volume, &snapshot, writable).map(|_| PoolReply::Done)
        }
        PoolCommand::Delete { volume, .. } => pool.delete(&volume).map(|()| PoolReply::Done),
        PoolCommand::Resync { member } => pool.resync(&member).map(|()| PoolReply::Done),
        _ => pool.check().map(|problems| PoolReply::Checked { problems }),
    };
    let reply = done.unwrap_or_else(ServerError::into_reply);
    pool.close()?;
    Ok(reply)
}
