//! A network of a simulated world: connections that are slow, stall, break at both ends or at one, or lead to another
//! server.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use underlay_nvme::initiator::StreamDialer;
use underlay_nvme::stream::{ByteStream, StreamReadiness};
use underlay_nvme::target::NvmeTarget;
use underlay_sync::simulation::{SimulatedWorld, TaskGroup};
use underlay_sync::{Condvar, Instant, Mutex, UnsimulatedMutex, thread};

/// One way, in virtual time.
const LATENCY_US: u64 = 40;
const JITTER_US: u64 = 60;

#[derive(Clone)]
pub(crate) struct SimulatedNetwork {
    shared: Arc<NetworkShared>,
}

struct NetworkShared {
    world: SimulatedWorld,
    hardware: TaskGroup,
    state: UnsimulatedMutex<NetworkState>,
}

#[derive(Default)]
struct NetworkState {
    /// The process that listens.
    server: Option<(TaskGroup, Arc<NvmeTarget>)>,
    wires: Vec<Weak<NetworkWire>>,
    /// Nothing gets through, and neither end notices.
    is_stalled: bool,
}

struct NetworkWire {
    network: SimulatedNetwork,
    host: TaskGroup,
    server: TaskGroup,
    state: Mutex<WireEnds>,
    changed: Condvar,
}

#[derive(Default)]
struct WireEnds {
    /// What the host and the server have yet to receive.
    arrived: [VecDeque<u8>; 2],
    /// On its way while the network stalls.
    held: [Vec<ArrivingData>; 2],
    /// When the last bytes arrive: later ones do not overtake them.
    last_arrival: [Duration; 2],
    has_ended: [bool; 2],
    is_woken: [bool; 2],
    is_broken: [bool; 2],
    /// What the host has sent is held on its way, and so is its end.
    is_late: bool,
}

enum ArrivingData {
    Bytes(Vec<u8>),
    End,
}

const HOST: usize = 0;
const SERVER: usize = 1;

/// One end of a connection.
struct WireEnd {
    wire: Arc<NetworkWire>,
    side: usize,
}

impl SimulatedNetwork {
    pub(crate) fn new(world: &SimulatedWorld) -> SimulatedNetwork {
        let (hardware, state) = (world.own_group(), UnsimulatedMutex::default());
        SimulatedNetwork { shared: Arc::new(NetworkShared { world: world.clone(), hardware, state }) }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, NetworkState> {
        self.shared.state.lock()
    }

    pub(crate) fn listen(&self, server: TaskGroup, target: Arc<NvmeTarget>) {
        self.lock().server = Some((server, target));
    }

    pub(crate) fn stop_listening(&self) {
        // The target belongs to a process that may be dead: it is not to end itself.
        std::mem::forget(self.lock().server.take());
    }

    /// For the initiators of a host.
    pub(crate) fn dialer(&self, host: TaskGroup) -> StreamDialer {
        let network = self.clone();
        StreamDialer::new(move |_, patience| network.dial(host, patience))
    }

    fn dial(&self, host: TaskGroup, patience: Duration) -> io::Result<Arc<dyn ByteStream>> {
        let world = &self.shared.world;
        let trip_us = LATENCY_US + world.with_random(|random| random.below(JITTER_US));
        // A TCP handshake takes a round trip.
        thread::sleep(Duration::from_micros(2 * trip_us));
        if self.lock().is_stalled {
            thread::sleep(patience);
            return Err(io::ErrorKind::TimedOut.into());
        }
        let server = self.lock().server.as_ref().map(|(group, target)| (*group, Arc::clone(target)));
        let Some((server, target)) = server else { return Err(io::ErrorKind::ConnectionRefused.into()) };
        let wire = Arc::new(NetworkWire {
            network: self.clone(),
            host,
            server,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        self.lock().wires.push(Arc::downgrade(&wire));
        let end = Arc::new(WireEnd { wire: Arc::clone(&wire), side: SERVER });
        world.enter(server, || target.serve(end));
        Ok(Arc::new(WireEnd { wire, side: HOST }))
    }

    fn wires(&self) -> Vec<Arc<NetworkWire>> {
        let mut state = self.lock();
        state.wires.retain(|wire| wire.strong_count() > 0);
        state.wires.iter().filter_map(Weak::upgrade).collect()
    }

    /// One connection breaks, or all do; both ends learn of it.
    pub(crate) fn break_connections(&self, connection: Option<u64>) {
        let wires = self.wires();
        let count = wires.len().max(1) as u64;
        for (number, wire) in wires.iter().enumerate() {
            if connection.is_none_or(|connection| connection % count == number as u64) {
                wire.state.lock().is_broken = [true; 2];
                wire.changed.notify_all();
            }
        }
    }

    /// All connections break, as their host sees it. The server takes them for alive, and what is on its way to it
    /// arrives when it is released; new connections are none the worse for it.
    pub(crate) fn strand_connections(&self) {
        for wire in self.wires() {
            let mut ends = wire.state.lock();
            ends.is_broken[HOST] = true;
            ends.is_late = true;
            drop(ends);
            wire.changed.notify_all();
        }
    }

    /// Nothing gets through until it is released.
    pub(crate) fn set_stalled(&self, stalled: bool) {
        self.lock().is_stalled = stalled;
        if stalled {
            return;
        }
        for wire in self.wires() {
            let delayed = {
                let mut ends = wire.state.lock();
                ends.is_late = false;
                std::mem::take(&mut ends.held)
            };
            for (side, items) in delayed.into_iter().enumerate() {
                items.into_iter().for_each(|item| wire.arrive(side, item));
            }
        }
    }

    /// A process has ended: the kernel of its host closes its connections.
    pub(crate) fn process_ended(&self, process: TaskGroup) {
        for wire in self.wires() {
            for (side, group) in [(HOST, wire.host), (SERVER, wire.server)] {
                if group == process {
                    wire.hang_up(side);
                }
            }
        }
    }
}

impl NetworkWire {
    /// Bytes from a side, or its end, on their way to the other one.
    fn send(self: &Arc<NetworkWire>, from: usize, item: ArrivingData) {
        let world = &self.network.shared.world;
        let trip_us = LATENCY_US + world.with_random(|random| random.below(JITTER_US));
        let to = 1 - from;
        let now = world.now();
        let arrival = {
            let mut ends = self.state.lock();
            let arrival =
                (now + Duration::from_micros(trip_us)).max(ends.last_arrival[to] + Duration::from_nanos(1));
            ends.last_arrival[to] = arrival;
            arrival
        };
        let wire = Arc::clone(self);
        world.call_after(arrival.saturating_sub(now), self.network.shared.hardware, move || {
            // Looked at on arrival, not when it was sent: a stall also holds what is already on its way.
            let is_stalled = wire.network.lock().is_stalled;
            let mut ends = wire.state.lock();
            if is_stalled || to == SERVER && ends.is_late {
                ends.held[to].push(item);
            } else {
                drop(ends);
                wire.arrive(to, item);
            }
        });
    }

    fn arrive(&self, side: usize, item: ArrivingData) {
        {
            let mut ends = self.state.lock();
            // Behind what is held: TCP keeps the order.
            if !ends.held[side].is_empty() {
                return ends.held[side].push(item);
            }
            match item {
                ArrivingData::Bytes(bytes) => ends.arrived[side].extend(bytes),
                ArrivingData::End => ends.has_ended[side] = true,
            }
        }
        self.changed.notify_all();
    }

    fn hang_up(self: &Arc<NetworkWire>, side: usize) {
        self.state.lock().has_ended[side] = true;
        self.changed.notify_all();
        self.send(side, ArrivingData::End);
    }
}

impl ByteStream for WireEnd {
    fn receive(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut ends = self.wire.state.lock();
        loop {
            if ends.is_broken[self.side] {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            if !ends.arrived[self.side].is_empty() {
                return io::Read::read_vectored(&mut ends.arrived[self.side], buffers);
            }
            if ends.has_ended[self.side] {
                return Ok(0);
            }
            ends = self.wire.changed.wait(ends);
        }
    }

    fn send(&self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        {
            let ends = self.wire.state.lock();
            if ends.is_broken[self.side] || ends.has_ended[self.side] {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
        let mut bytes = Vec::with_capacity(from.iter().map(|piece| piece.len()).sum());
        from.iter().for_each(|piece| bytes.extend_from_slice(piece));
        let length = bytes.len();
        self.wire.send(self.side, ArrivingData::Bytes(bytes));
        Ok(length)
    }

    fn wait(
        &self,
        to_receive: bool,
        to_send: bool,
        at_most: Option<Duration>,
    ) -> io::Result<StreamReadiness> {
        let deadline = at_most.map(|time| Instant::now() + time);
        let mut ends = self.wire.state.lock();
        loop {
            let is_over = ends.has_ended[self.side] || ends.is_broken[self.side];
            let has_some = !ends.arrived[self.side].is_empty() || is_over;
            let is_woken = std::mem::take(&mut ends.is_woken[self.side]);
            let readiness = StreamReadiness { can_receive: to_receive && has_some, is_woken };
            if readiness.can_receive || is_woken || to_send {
                return Ok(readiness);
            }
            ends = match deadline {
                None => self.wire.changed.wait(ends),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(readiness);
                    }
                    self.wire.changed.wait_timeout(ends, left)
                }
            };
        }
    }

    fn wake(&self) {
        self.wire.state.lock().is_woken[self.side] = true;
        self.wire.changed.notify_all();
    }

    fn close(&self) {
        self.wire.hang_up(self.side);
    }

    fn close_sending(&self) {
        self.wire.send(self.side, ArrivingData::End);
    }

    fn is_hung_up(&self) -> bool {
        let ends = self.wire.state.lock();
        ends.has_ended[self.side] || ends.is_broken[self.side]
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        None
    }
}
