//! The target: it serves block devices to hosts by NVMe over TCP.
//!
//! Every connection is a queue and has its own thread, which takes commands and hands them to devices.
//! Devices answer on any thread; the thread that has an answer sends it, without waiting for the host.

mod buffers;
mod connection;
mod counters;
mod host_identity;
mod housekeeper;
mod lease;
mod outbox;
mod subsystems;
mod transfer;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use underlay_sync::Instant;
use underlay_sync::rate_limited_log::RateLimitedLog;
use underlay_sync::thread::JoinHandle;
use underlay_sync::{Condvar, Mutex, MutexGuard};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::stream::{ByteStream, RecordedStream, TcpSocket};
use connection::TargetConnection;
use housekeeper::TargetHousekeeper;
use subsystems::controller::queue::TargetQueue;

pub use counters::{ConnectionSnapshot, NamespaceCounters, QueueSnapshot};
pub use host_identity::HostIdentity;
pub use lease::{LEASE_GRACE, LeaseStore, WriterPolicy};
pub use subsystems::{
    AllowedHosts, MAX_NSID, NamespaceConfig, NvmSubsystem, SubsystemConfig, SubsystemError, SubsystemTable,
    TargetNamespace,
};

/// A connection's thread needs little: what is large is on the heap.
const STACK_BYTES: usize = 256 << 10;
/// How long a stopping target waits for its connections, and for what devices have of them.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// After an accept that failed for want of something, which others may give back meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A target's options.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// Port 0 takes a free one. None at all is allowed: then hosts come by [`NvmeTarget::converse`] alone.
    pub listen: Vec<SocketAddr>,
    /// Connections beyond these are closed at once.
    pub max_connections: usize,
    /// Connections whose host has not said, or not proven, who it is. One more takes the place of the oldest one of the
    /// address that has most of them.
    pub max_strangers: usize,
    /// I/O queues of one controller: 1 to 64.
    pub max_io_queues: u16,
    /// How long a host may take to connect its queue and to prove who it is.
    pub handshake_timeout: Duration,
    /// Data of commands in flight, of one connection: further commands wait. One command always gets what it needs.
    pub data_budget_bytes: usize,
}

impl Default for TargetConfig {
    fn default() -> TargetConfig {
        TargetConfig {
            listen: Vec::new(),
            max_connections: 4096,
            max_strangers: 128,
            max_io_queues: 64,
            handshake_timeout: Duration::from_secs(15),
            data_budget_bytes: 16 << 20,
        }
    }
}

/// Why a target can't start.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    #[error(
        "cannot listen on {address}: {error}; is another server using it, or is it not an address of this host?"
    )]
    Listen {
        address: SocketAddr,
        #[source]
        error: std::io::Error,
    },
    #[error("a target needs 1 to 64 I/O queues for each controller, not {0}")]
    Queues(u16),
    #[error("the target's thread can't be started: {0}")]
    Thread(#[source] std::io::Error),
}

/// State that all connections of a target share.
struct TargetShared {
    config: TargetConfig,
    subsystems: Arc<SubsystemTable>,
    housekeeper: TargetHousekeeper,
    addresses: Vec<SocketAddr>,
    is_stopping: AtomicBool,
    last_number: AtomicU64,
    connections: Mutex<BTreeMap<u64, Arc<TargetQueue>>>,
    /// Signalled when a connection has ended.
    ended: Condvar,
    log: TargetLog,
}

/// Events that hosts can cause as often as they like.
#[derive(Default)]
struct TargetLog {
    full: RateLimitedLog,
    evicted: RateLimitedLog,
    refused: RateLimitedLog,
    unproven: RateLimitedLog,
    not_accepted: RateLimitedLog,
}

impl TargetShared {
    fn map(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<TargetQueue>>> {
        self.connections.lock()
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses.clone()
    }

    fn connection(&self, number: u64) -> Option<Arc<TargetQueue>> {
        self.map().get(&number).cloned()
    }

    fn connections(&self) -> Vec<Arc<TargetQueue>> {
        self.map().values().cloned().collect()
    }

    /// `None` when there are too many already, or the target is stopping.
    fn add(self: &Arc<Self>, stream: Arc<dyn ByteStream>) -> Option<Arc<TargetQueue>> {
        let mut connections = self.map();
        // Under the lock: `end` sets the flag before it takes the list, so it misses nothing that is added.
        if self.is_stopping.load(Ordering::SeqCst) {
            return None;
        }
        if connections.len() >= self.config.max_connections {
            if let Some(count) = self.log.full.count() {
                let connections = connections.len();
                tracing::warn!(connections, count, "connections were closed: the limit is reached");
            }
            return None;
        }
        self.make_room(&connections);
        let number = self.last_number.fetch_add(1, Ordering::Relaxed);
        let shared: Weak<TargetShared> = Arc::downgrade(self);
        let queue = Arc::new(TargetQueue::new(number, stream, shared, self.config.data_budget_bytes));
        connections.insert(number, Arc::clone(&queue));
        Some(queue)
    }

    /// Hosts that connect and then say nothing would otherwise keep others out.
    fn make_room(&self, connections: &BTreeMap<u64, Arc<TargetQueue>>) {
        let strangers: Vec<&Arc<TargetQueue>> =
            connections.values().filter(|queue| queue.is_stranger()).collect();
        if strangers.len() < self.config.max_strangers {
            return;
        }
        let mut by_address: BTreeMap<Option<IpAddr>, Vec<&Arc<TargetQueue>>> = BTreeMap::new();
        for queue in strangers {
            by_address.entry(queue.peer().map(|peer| peer.ip())).or_default().push(queue);
        }
        let Some(most) = by_address.into_values().max_by_key(Vec::len) else { return };
        // They are in the order in which they came: the oldest had the most time.
        let oldest = most[0];
        oldest.kill();
        if let Some(count) = self.log.evicted.count() {
            let peer = oldest.peer_name();
            tracing::warn!(peer, count, "closed the oldest connection whose host has not proven who it is");
        }
    }

    fn run(self: &Arc<Self>, queue: &Arc<TargetQueue>) {
        // The connection ends properly, even after a panic.
        let _ending = ConnectionGuard { shared: self, queue };
        TargetConnection::new(Arc::clone(self), Arc::clone(queue)).run();
    }
}

/// Takes a connection out of its controller and its target.
struct ConnectionGuard<'a> {
    shared: &'a Arc<TargetShared>,
    queue: &'a Arc<TargetQueue>,
}

impl Drop for ConnectionGuard<'_> {
    fn drop(&mut self) {
        self.queue.kill();
        if let Some(association) = self.queue.association() {
            let controller = &association.controller;
            controller.remove_queue(association.queue_id, self.queue);
            if association.queue_id == 0 {
                // The controller is its admin queue's (base 3.3.2).
                controller.end();
                if let Some(subsystem) = controller.subsystem() {
                    subsystem.remove_controller(controller);
                }
            }
        }
        self.shared.map().remove(&self.queue.number);
        self.shared.ended.notify_all();
    }
}

/// A target that runs, until it is stopped or dropped.
pub struct NvmeTarget {
    shared: Arc<TargetShared>,
    threads: Vec<JoinHandle<()>>,
    has_panicked: Arc<AtomicBool>,
    stop_listening: Vec<Arc<OwnedFd>>,
}

/// Tells the target's owner when the thread that has this panics. The panic itself goes on.
struct PanicNote {
    has_panicked: Arc<AtomicBool>,
}

impl Drop for PanicNote {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.has_panicked.store(true, Ordering::SeqCst);
        }
    }
}

impl NvmeTarget {
    /// Listens, and serves the hosts that connect. At first there are no subsystems but the one for discovery.
    ///
    /// # Errors
    /// When an address can't be listened on.
    pub fn start(config: TargetConfig) -> Result<NvmeTarget, TargetError> {
        NvmeTarget::start_with(config, Arc::default())
    }

    /// As [`NvmeTarget::start`], with subsystems that are there from the first connection on: a host that comes back to
    /// a target without its subsystem gives up.
    ///
    /// # Errors
    /// As `start`.
    pub fn start_with(
        config: TargetConfig,
        subsystems: Arc<SubsystemTable>,
    ) -> Result<NvmeTarget, TargetError> {
        if !(1..=64).contains(&config.max_io_queues) {
            return Err(TargetError::Queues(config.max_io_queues));
        }
        let mut listeners = Vec::new();
        let mut addresses = Vec::new();
        for address in config.listen.iter().copied() {
            let failed = |error| TargetError::Listen { address, error };
            let listener = TcpListener::bind(address).map_err(failed)?;
            // A connection may be gone between poll and accept, which would then block (accept(2)).
            listener.set_nonblocking(true).map_err(failed)?;
            addresses.push(listener.local_addr().map_err(failed)?);
            listeners.push(listener);
        }
        let shared = Arc::new(TargetShared {
            config,
            subsystems,
            housekeeper: TargetHousekeeper::new().map_err(TargetError::Thread)?,
            addresses,
            is_stopping: AtomicBool::new(false),
            last_number: AtomicU64::new(0),
            connections: Mutex::default(),
            ended: Condvar::new(),
            log: TargetLog::default(),
        });
        let mut target = NvmeTarget {
            shared,
            threads: Vec::new(),
            has_panicked: Arc::default(),
            stop_listening: Vec::new(),
        };
        let shared = Arc::clone(&target.shared);
        target.spawn("nvme-keeper", move || shared.housekeeper.run(&shared))?;
        for listener in listeners {
            let stop =
                eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| TargetError::Thread(error.into()))?;
            let stop = Arc::new(stop);
            target.stop_listening.push(Arc::clone(&stop));
            let shared = Arc::clone(&target.shared);
            target.spawn("nvme-listen", move || listen(&shared, &listener, &stop))?;
        }
        Ok(target)
    }

    fn spawn(&mut self, name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), TargetError> {
        let fate = PanicNote { has_panicked: Arc::clone(&self.has_panicked) };
        let body = move || {
            let _fate = fate;
            body();
        };
        let thread = underlay_sync::thread::ThreadBuilder::new()
            .name(name.to_owned())
            .stack_size(STACK_BYTES)
            .spawn(body);
        self.threads.push(thread.map_err(TargetError::Thread)?);
        Ok(())
    }

    /// Whether a thread of its own has ended with a panic, so that it takes no more hosts, or gives up none that are
    /// silent. What it serves goes on, but nobody should rely on it.
    pub fn has_panicked(&self) -> bool {
        self.has_panicked.load(Ordering::SeqCst)
    }

    /// Where it listens, with the ports that were taken.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.shared.addresses
    }

    /// The served subsystems, which can be changed at any time.
    pub fn subsystems(&self) -> &Arc<SubsystemTable> {
        &self.shared.subsystems
    }

    pub fn connections(&self) -> Vec<ConnectionSnapshot> {
        self.shared.connections().iter().map(|queue| queue.snapshot()).collect()
    }

    /// Serves a host that is connected by this stream, on a new thread.
    pub fn serve(&self, stream: Arc<dyn ByteStream>) {
        serve(&self.shared, stream);
    }

    /// Serves a host that says this and nothing more, and gives back all that it was answered. It ends when everything
    /// was heard; what devices answer later is lost.
    pub fn converse(&self, host: &[u8]) -> Vec<u8> {
        let stream = Arc::new(RecordedStream::new(host));
        let Some(queue) = self.shared.add(stream.clone()) else { return Vec::new() };
        self.shared.run(&queue);
        drop(queue);
        stream.into_answer()
    }

    /// Ends all connections and waits until devices have nothing more of them, though not forever.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.shared.is_stopping.store(true, Ordering::SeqCst);
        for stop in self.stop_listening.drain(..) {
            let _ = rustix::io::write(&*stop, &1_u64.to_ne_bytes());
        }
        self.shared.housekeeper.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        let queues = self.shared.connections();
        queues.iter().for_each(|queue| queue.kill());
        let deadline = Instant::now() + STOP_TIMEOUT;
        let mut connections = self.shared.map();
        while !connections.is_empty()
            && let Some(left) = deadline.checked_duration_since(Instant::now())
            && !left.is_zero()
        {
            let waited = self.shared.ended.wait_timeout(connections, left);
            connections = waited;
        }
        drop(connections);
        while queues.iter().any(|queue| queue.commands_at_device() > 0) && Instant::now() < deadline {
            underlay_sync::thread::sleep(Duration::from_millis(1));
        }
        self.shared.subsystems.end_controllers();
    }
}

impl Drop for NvmeTarget {
    fn drop(&mut self) {
        self.end();
    }
}

/// Takes connections until told to stop. A failure affects one host alone.
fn listen(shared: &Arc<TargetShared>, listener: &TcpListener, stop: &OwnedFd) {
    while !shared.is_stopping.load(Ordering::SeqCst) {
        let mut polled = [PollFd::new(listener, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        if poll(&mut polled, None).is_err() || polled[0].revents().is_empty() {
            continue;
        }
        match listener.accept() {
            Ok((stream, _)) => take(shared, stream),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            // No descriptors left, for one.
            Err(error) => {
                if let Some(count) = shared.log.not_accepted.count() {
                    tracing::warn!(%error, count, "a connection can't be accepted");
                }
                underlay_sync::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

fn take(shared: &Arc<TargetShared>, stream: TcpStream) {
    if stream.set_nonblocking(false).is_err() {
        return;
    }
    if let Ok(socket) = TcpSocket::new(stream) {
        serve(shared, Arc::new(socket));
    }
}

fn serve(shared: &Arc<TargetShared>, stream: Arc<dyn ByteStream>) {
    let Some(queue) = shared.add(Arc::clone(&stream)) else { return stream.close() };
    let running = (Arc::clone(shared), Arc::clone(&queue));
    let thread =
        underlay_sync::thread::ThreadBuilder::new().name("nvme-queue".to_owned()).stack_size(STACK_BYTES);
    let spawned = thread.spawn(move || {
        let (shared, queue) = running;
        shared.run(&queue);
    });
    if spawned.is_err() {
        drop(ConnectionGuard { shared, queue: &queue });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_whose_thread_panics_says_so() {
        let config =
            TargetConfig { listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))], ..TargetConfig::default() };
        let mut target = NvmeTarget::start_with(config, Arc::default()).unwrap();
        target.spawn("nvme-listen", || {}).unwrap();
        target.threads.pop().unwrap().join().unwrap();
        assert!(!target.has_panicked());
        target.spawn("nvme-listen", || panic!("a bug")).unwrap();
        target.threads.pop().unwrap().join().unwrap_err();
        assert!(target.has_panicked());
        target.stop();
    }
}
