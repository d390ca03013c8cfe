//! A queueing network in virtual time: clients, cores, and the devices' own models.
//!
//! An operation alternates CPU time and device reads, one after the other. An operation that commits then waits for a
//! flush, shared by all that wait at that time. The background work of writes goes to the same devices. The cores are
//! one queue with as many servers. Clients are a closed population, or operations arrive independently and wait for a
//! free client.

mod background;
mod check;
mod cores;
mod idle;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use underlay_storage::medium::ModelOperation;
use underlay_storage::stack::VolumeSpec;

use crate::demand::MixDemand;
use crate::device_network::{DeviceNetwork, FinishedDeviceRequest, NetworkSetup, VolumeRequest};
use crate::outcome::{FinishedOperation, SimulationOutcome, TimeParts};
use crate::refusal::PredictionRefusal;

use background::BackgroundBacklog;
use check::check;
use cores::CoreQueue;
use idle::idle_times;

/// Events after which a simulation without progress is abandoned.
const MAX_STEPS: u64 = 10_000_000;
/// A queue that grows by more than this part of the operations during the measurement has no end.
const GROWTH: f64 = 0.03;

/// The arrivals of operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OperationArrivals {
    /// Each client sends its next operation after the answer to the last one.
    Closed,
    /// Evenly at this rate.
    Even { per_s: f64 },
    /// At this rate, independently of each other.
    Poisson { per_s: f64 },
}

/// The simulation's input.
#[derive(Clone, Copy, Debug)]
pub struct SimulationScenario<'a> {
    pub demand: &'a MixDemand,
    pub volumes: &'a [VolumeSpec],
    /// Devices of the same name are one device: volumes of a pool.
    pub shares_devices: bool,
    /// How often a cache device in front of a volume holds a client's read, 0 to 1.
    pub cached: f64,
    /// How much of the storage the data occupies; requests go there.
    pub footprint_bytes: u64,
    /// How many times faster each device is than its medium: 1 except for "what if".
    pub device_speed: f64,
    /// For all machines of the system together; enough that nothing waits when absent.
    pub cores: Option<u32>,
    /// How many run at a time, each faster by the same factor. In slow motion, one CPU of the host stands for many
    /// modelled cores, and a thread on it gets all of it. The number of cores when absent.
    pub cores_at_once: Option<u32>,
    pub threads: u32,
    pub arrivals: OperationArrivals,
    /// Measured operations.
    pub operations: usize,
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SimulationEvent {
    Arrival,
    Cpu(usize),
    /// A request that came back over a link.
    Answer(u64, u64),
}

/// The origin of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestOwner {
    Read(usize),
    CommitWrite,
    CommitFlush,
    BackgroundRead,
    BackgroundWrite(u64),
    BackgroundFlush,
}

const KIND_SHIFT: u32 = 56;

impl RequestOwner {
    fn tag(self) -> u64 {
        let (kind, value) = match self {
            RequestOwner::Read(operation) => (0, operation as u64),
            RequestOwner::CommitWrite => (1, 0),
            RequestOwner::CommitFlush => (2, 0),
            RequestOwner::BackgroundRead => (3, 0),
            RequestOwner::BackgroundWrite(bytes) => (4, bytes),
            RequestOwner::BackgroundFlush => (5, 0),
        };
        kind << KIND_SHIFT | value
    }

    fn from_tag(tag: u64) -> RequestOwner {
        let value = tag & ((1 << KIND_SHIFT) - 1);
        match tag >> KIND_SHIFT {
            0 => RequestOwner::Read(value as usize),
            1 => RequestOwner::CommitWrite,
            2 => RequestOwner::CommitFlush,
            3 => RequestOwner::BackgroundRead,
            4 => RequestOwner::BackgroundWrite(value),
            _ => RequestOwner::BackgroundFlush,
        }
    }
}

/// An operation in flight.
#[derive(Clone, Copy, Debug, Default)]
struct InFlightOperation {
    class: usize,
    /// Its intended start: the wait for a client counts.
    began_ns: u64,
    reads_left: u32,
    slice_ns: f64,
    since_ns: u64,
    reads_ns: u64,
    parts: TimeParts,
}

struct QueueSimulation<'a> {
    scenario: SimulationScenario<'a>,
    bank: DeviceNetwork,
    random: Pcg64Mcg,
    events: BinaryHeap<Reverse<(u64, u64, SimulationEvent)>>,
    sequence: u64,
    now_ns: u64,
    operations: Vec<InFlightOperation>,
    free: Vec<usize>,
    cores: CoreQueue,
    /// How many times faster than a modelled core each running one is.
    core_speed: f64,
    backlog: BackgroundBacklog,
    /// Operations that wait until the background has caught up.
    stalled: VecDeque<usize>,
    /// The operations of the commit in progress, and those that wait for the next.
    committing: Vec<usize>,
    to_commit: Vec<usize>,
    /// Where sequential reads continue.
    next_read_bytes: u64,
    /// The intended starts of operations that wait for a client.
    waiting: VecDeque<u64>,
    idle_clients: u32,
    idle_read_ns: f64,
    idle_commit_ns: f64,
    finished: Vec<FinishedOperation>,
    over: usize,
    warmup: usize,
    measured_from_ns: u64,
    /// Operations that waited for a client at that time.
    waited_then: usize,
    /// The room in write-back caches at that time.
    room_then: Option<u64>,
    /// The integral of the operations in flight over the measured time.
    inside: u32,
    inside_ns: u128,
    inside_changed_ns: u64,
}

/// Simulates the scenario.
///
/// # Errors
/// A storage configuration with layers that are not modelled, or an impossible demand.
pub fn simulate(scenario: SimulationScenario<'_>) -> Result<SimulationOutcome, PredictionRefusal> {
    check(&scenario)?;
    let writes = scenario.demand.writing_share() > 0.0;
    let directories: u32 = scenario.volumes.iter().map(|volume| volume.directories.max(1)).sum();
    let largest = scenario.volumes.iter().map(|volume| volume.directories.max(1)).max().unwrap_or(1);
    let setup = NetworkSetup {
        volumes: scenario.volumes,
        shares_devices: scenario.shares_devices,
        writes,
        speed: scenario.device_speed,
        span_bytes: scenario.footprint_bytes / u64::from(directories.max(1)) * u64::from(largest),
        seed: scenario.seed,
    };
    simulate_on(DeviceNetwork::new(&setup)?, scenario)
}

/// The same on existing, idle devices, in place of the scenario's volumes.
///
/// # Errors
/// An impossible demand.
pub fn simulate_on(
    mut bank: DeviceNetwork,
    scenario: SimulationScenario<'_>,
) -> Result<SimulationOutcome, PredictionRefusal> {
    // Before anything divides by a value of the scenario.
    check(&scenario)?;
    // The bytes of `predict1`: a different sequence than the one that devices draw from this seed.
    let mut random = Pcg64Mcg::seed_from_u64(scenario.seed ^ 0x7072_6564_6963_7431);
    let (idle_read_ns, idle_commit_ns, now_ns) = idle_times(&mut bank, &scenario, &mut random);
    let threads = scenario.threads;
    let mut simulation = QueueSimulation {
        scenario,
        bank,
        random,
        events: BinaryHeap::new(),
        sequence: 0,
        now_ns,
        operations: Vec::new(),
        free: Vec::new(),
        cores: CoreQueue::new(limit_concurrent_cores(&scenario)),
        core_speed: core_speed(&scenario),
        backlog: BackgroundBacklog::new(&scenario.demand.background),
        stalled: VecDeque::new(),
        committing: Vec::new(),
        to_commit: Vec::new(),
        next_read_bytes: 0,
        waiting: VecDeque::new(),
        idle_clients: threads,
        idle_read_ns,
        idle_commit_ns,
        finished: Vec::with_capacity(scenario.operations),
        over: 0,
        // A quarter, and at least four operations of each client, since all begin at once.
        warmup: (scenario.operations / 4).max(4 * threads as usize).min(scenario.operations.max(1_000)),
        measured_from_ns: now_ns,
        waited_then: 0,
        room_then: None,
        inside: 0,
        inside_ns: 0,
        inside_changed_ns: now_ns,
    };
    simulation.run();
    Ok(simulation.outcome())
}

impl QueueSimulation<'_> {
    fn push(&mut self, at_ns: u64, event: SimulationEvent) {
        self.sequence += 1;
        self.events.push(Reverse((at_ns, self.sequence, event)));
    }

    fn run(&mut self) {
        match self.scenario.arrivals {
            OperationArrivals::Closed => {
                for _ in 0..self.scenario.threads {
                    self.idle_clients -= 1;
                    self.begin(self.now_ns);
                }
            }
            _ => self.push(self.now_ns, SimulationEvent::Arrival),
        }
        let mut done: Vec<FinishedDeviceRequest> = Vec::new();
        let enough = self.warmup + self.scenario.operations;
        // An open queue that only grows gives no further information.
        let most_waiting = self.scenario.operations.max(20 * self.scenario.threads as usize);
        for _ in 0..MAX_STEPS {
            if self.over >= enough || self.waiting.len() > most_waiting {
                return;
            }
            let device_ns = self.bank.next_ns();
            let event_ns = self.events.peek().map(|Reverse((time_ns, ..))| *time_ns);
            match (device_ns, event_ns) {
                (None, None) => return,
                (Some(device), event) if event.is_none_or(|event| device <= event) => {
                    self.now_ns = self.now_ns.max(device);
                    self.bank.take(self.now_ns, &mut done);
                    for one in done.drain(..) {
                        if one.at_ns > self.now_ns {
                            self.push(one.at_ns, SimulationEvent::Answer(one.tag, one.network_ns));
                        } else {
                            self.answered(RequestOwner::from_tag(one.tag), one.network_ns);
                        }
                    }
                }
                _ => {
                    let Some(Reverse((time_ns, _, event))) = self.events.pop() else { return };
                    self.now_ns = self.now_ns.max(time_ns);
                    match event {
                        SimulationEvent::Arrival => self.arrive(),
                        SimulationEvent::Cpu(operation) => self.computed(operation),
                        SimulationEvent::Answer(tag, network_ns) => {
                            self.answered(RequestOwner::from_tag(tag), network_ns)
                        }
                    }
                }
            }
        }
    }

    fn arrive(&mut self) {
        let distance_ns = match self.scenario.arrivals {
            OperationArrivals::Closed => return,
            OperationArrivals::Even { per_s } => 1e9 / per_s,
            OperationArrivals::Poisson { per_s } => exponential(&mut self.random, 1e9 / per_s),
        };
        self.push(self.now_ns.saturating_add(distance_ns as u64), SimulationEvent::Arrival);
        self.count_inside(1);
        if self.idle_clients > 0 {
            self.idle_clients -= 1;
            self.begin_counted(self.now_ns);
        } else {
            self.waiting.push_back(self.now_ns);
        }
    }

    fn count_inside(&mut self, change: i32) {
        let passed = self.now_ns - self.inside_changed_ns;
        self.inside_changed_ns = self.now_ns;
        self.inside_ns += u128::from(passed) * u128::from(self.inside);
        self.inside = self.inside.saturating_add_signed(change);
    }

    fn begin(&mut self, began_ns: u64) {
        self.count_inside(1);
        self.begin_counted(began_ns);
    }

    fn begin_counted(&mut self, began_ns: u64) {
        let demand = self.scenario.demand;
        let mut draw = self.random.random::<f64>();
        let mut class = 0;
        for (index, one) in demand.classes.iter().enumerate() {
            class = index;
            draw -= one.share;
            if draw < 0.0 {
                break;
            }
        }
        let one = &demand.classes[class];
        let reads = one.reads.floor() as u32 + u32::from(self.random.random::<f64>() < one.reads.fract());
        let slice_ns = one.cpu_us * 1e3 / f64::from(reads + 1) / self.core_speed;
        let under = InFlightOperation {
            class,
            began_ns,
            reads_left: reads,
            slice_ns,
            since_ns: self.now_ns,
            reads_ns: 0,
            parts: TimeParts { client_ns: (self.now_ns - began_ns) as f64, ..TimeParts::default() },
        };
        let place = match self.free.pop() {
            Some(place) => {
                self.operations[place] = under;
                place
            }
            None => {
                self.operations.push(under);
                self.operations.len() - 1
            }
        };
        self.compute(place);
    }

    /// A slice of CPU time.
    fn compute(&mut self, place: usize) {
        self.operations[place].since_ns = self.now_ns;
        if let Some(operation) = self.cores.enter(place) {
            self.on_core(operation);
        }
    }

    fn on_core(&mut self, place: usize) {
        let length_ns = exponential(&mut self.random, self.operations[place].slice_ns) as u64;
        let one = &mut self.operations[place];
        one.parts.cpu_wait_ns += (self.now_ns - one.since_ns) as f64;
        one.parts.cpu_ns += length_ns as f64;
        self.cores.used(length_ns);
        self.push(self.now_ns + length_ns, SimulationEvent::Cpu(place));
    }

    fn computed(&mut self, place: usize) {
        if let Some(next) = self.cores.leave() {
            self.on_core(next);
        }
        self.proceed(place);
    }

    /// Its CPU time is over: determines what comes next.
    fn proceed(&mut self, place: usize) {
        let class = &self.scenario.demand.classes[self.operations[place].class];
        self.operations[place].since_ns = self.now_ns;
        if self.operations[place].reads_left > 0 {
            self.operations[place].reads_left -= 1;
            let (length_bytes, is_sequential) = (class.read_bytes as u64, class.is_sequential);
            let (volume, offset_bytes) = match is_sequential {
                true => (0, self.next_in_order(length_bytes)),
                false => {
                    let volume = self.volume();
                    (volume, self.place_in(volume))
                }
            };
            let request = VolumeRequest {
                operation: ModelOperation::Read,
                offset_bytes,
                length_bytes,
                cached: self.scenario.cached,
            };
            self.bank.submit(RequestOwner::Read(place).tag(), volume, request, self.now_ns);
            return;
        }
        if class.writes {
            if self.backlog.is_too_long() {
                self.stalled.push_back(place);
                return;
            }
            self.leave_work();
        }
        self.commit_or_finish(place);
    }

    fn leave_work(&mut self) {
        self.backlog.add();
        self.work_off();
    }

    fn commit_or_finish(&mut self, place: usize) {
        if self.scenario.demand.classes[self.operations[place].class].commits {
            self.operations[place].since_ns = self.now_ns;
            self.to_commit.push(place);
            self.commit();
        } else {
            self.finish(place);
        }
    }

    /// One commit is in flight at a time; operations that arrive meanwhile share the next.
    fn commit(&mut self) {
        if !self.committing.is_empty() || self.to_commit.is_empty() {
            return;
        }
        std::mem::swap(&mut self.committing, &mut self.to_commit);
        let each = self.scenario.demand.commit_bytes.unwrap_or(0.0);
        // A log's blocks are written in full, however many operations are in them.
        let block_bytes = (each as u64).next_multiple_of(4096).max(4096);
        let offset_bytes = self.backlog.log_offset(block_bytes) % self.bank.capacity_bytes(0).max(1);
        let request = VolumeRequest {
            operation: ModelOperation::Write,
            offset_bytes,
            length_bytes: (each as u64).max(1),
            cached: 0.0,
        };
        self.bank.submit(RequestOwner::CommitWrite.tag(), 0, request, self.now_ns);
    }

    /// The position of a record: systems spread records over their directories and servers by hash or in turn, so all
    /// are equally likely.
    fn volume(&mut self) -> usize {
        match self.bank.volumes() {
            1 => 0,
            _ => self.bank.volume_at(self.random.random::<f64>()),
        }
    }

    /// A random position of data in a volume.
    fn place_in(&mut self, volume: usize) -> u64 {
        let share = self.scenario.footprint_bytes as f64 * self.bank.share(volume);
        let range = (share as u64).clamp(1, self.bank.capacity_bytes(volume));
        self.random.random_range(0..range)
    }

    /// The position of the next sequential read.
    fn next_in_order(&mut self, length_bytes: u64) -> u64 {
        let offset = self.next_read_bytes;
        let end = self.scenario.footprint_bytes.min(self.bank.capacity_bytes(0));
        self.next_read_bytes = offset.saturating_add(length_bytes);
        if self.next_read_bytes > end.saturating_sub(length_bytes) {
            self.next_read_bytes = 0;
        }
        offset
    }

    fn work_off(&mut self) {
        while let Some(work) = self.backlog.next() {
            let (volume, offset_bytes) = work.continues.unwrap_or_else(|| {
                let volume = self.volume();
                let place = self.place_in(volume);
                self.backlog.began_at(work.operation, volume, place);
                (volume, place)
            });
            let owner = match work.operation {
                ModelOperation::Read => RequestOwner::BackgroundRead,
                ModelOperation::Write => RequestOwner::BackgroundWrite(0),
                _ => RequestOwner::BackgroundFlush,
            };
            let request = VolumeRequest {
                operation: work.operation,
                offset_bytes,
                length_bytes: work.length_bytes,
                cached: 0.0,
            };
            self.bank.submit(owner.tag(), volume, request, self.now_ns);
        }
    }

    fn answered(&mut self, owner: RequestOwner, network_ns: u64) {
        match owner {
            RequestOwner::Read(place) => {
                let idle_ns = self.idle_read_ns;
                let one = &mut self.operations[place];
                one.reads_ns += self.now_ns - one.since_ns;
                one.parts.add_device((self.now_ns - one.since_ns) as f64, network_ns as f64, idle_ns);
                self.compute(place);
            }
            RequestOwner::CommitWrite => {
                self.bank.submit(RequestOwner::CommitFlush.tag(), 0, VolumeRequest::flush(), self.now_ns);
            }
            RequestOwner::CommitFlush => {
                let idle_ns = self.idle_commit_ns;
                for place in std::mem::take(&mut self.committing) {
                    let one = &mut self.operations[place];
                    one.parts.add_device((self.now_ns - one.since_ns) as f64, network_ns as f64, idle_ns);
                    self.finish(place);
                }
                self.commit();
            }
            RequestOwner::BackgroundRead => self.caught_up(ModelOperation::Read),
            RequestOwner::BackgroundWrite(_) => self.caught_up(ModelOperation::Write),
            RequestOwner::BackgroundFlush => self.caught_up(ModelOperation::Flush),
        }
    }

    fn caught_up(&mut self, operation: ModelOperation) {
        self.backlog.done(operation);
        self.work_off();
        while !self.backlog.is_too_long() {
            let Some(place) = self.stalled.pop_front() else { return };
            let one = &mut self.operations[place];
            one.parts.queue_ns += (self.now_ns - one.since_ns) as f64;
            self.leave_work();
            self.commit_or_finish(place);
        }
    }

    fn finish(&mut self, place: usize) {
        let InFlightOperation { began_ns, parts, reads_ns, .. } = self.operations[place];
        self.free.push(place);
        self.count_inside(-1);
        self.over += 1;
        if self.over > self.warmup {
            let total_ns = (self.now_ns - began_ns) as f64;
            self.finished.push(FinishedOperation { total_ns, reads_ns: reads_ns as f64, parts });
        } else if self.over == self.warmup {
            self.measured_from_ns = self.now_ns;
            self.waited_then = self.waiting.len();
            self.room_then = self.bank.dirty_room_blocks();
            self.inside_ns = 0;
            self.bank.restart(self.now_ns);
            self.cores.restart();
        }
        match self.scenario.arrivals {
            OperationArrivals::Closed => self.begin(self.now_ns),
            _ => match self.waiting.pop_front() {
                Some(began_ns) => self.begin_counted(began_ns),
                None => self.idle_clients += 1,
            },
        }
    }

    fn outcome(mut self) -> SimulationOutcome {
        self.count_inside(0);
        let span_ns = self.now_ns.saturating_sub(self.measured_from_ns).max(1);
        let usage = self.bank.usage(self.measured_from_ns, self.now_ns);
        let is_cut_short = self.over < self.warmup + self.scenario.operations;
        // At a sustained rate, a queue grows only by chance.
        let grown = self.waiting.len().saturating_sub(self.waited_then);
        let is_saturated = is_cut_short || grown as f64 > GROWTH * self.scenario.operations as f64;
        let cpu = self.cores.utilisation(span_ns);
        let inside = self.inside_ns as f64 / span_ns as f64;
        let cache_full_s = self.bank.dirty_room_blocks().zip(self.room_then).and_then(|(now, then)| {
            let elapsed = then.saturating_sub(now);
            // A batch more or less does not matter.
            (elapsed > 256).then(|| now as f64 / elapsed as f64 * span_ns as f64 / 1e9)
        });
        let outcome = SimulationOutcome::new(self.finished, span_ns, &usage, cpu, inside, is_saturated);
        SimulationOutcome { cache_full_s, ..outcome }
    }
}

fn limit_concurrent_cores(scenario: &SimulationScenario<'_>) -> Option<u32> {
    scenario.cores.map(|cores| scenario.cores_at_once.unwrap_or(cores).clamp(1, cores))
}

fn core_speed(scenario: &SimulationScenario<'_>) -> f64 {
    scenario
        .cores
        .zip(limit_concurrent_cores(scenario))
        .map_or(1.0, |(cores, at_once)| f64::from(cores) / f64::from(at_once))
}

/// A time whose distribution is exponential.
fn exponential(random: &mut Pcg64Mcg, mean: f64) -> f64 {
    -mean * (1.0 - random.random::<f64>()).ln()
}
