//! The devices of a storage configuration in virtual time: the same models that pace a running program, arranged like
//! its layers.

mod device;
mod front;
mod tree;

use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use underlay_storage::media::link::{LinkDirection, LinkModel};
use underlay_storage::medium::{FinishedRequest, MediumModel, ModelOperation, ModelRequest, RequestId};
use underlay_storage::stack::{StackNode, VolumeSpec};
use underlay_storage::time::ModelTime;

use crate::refusal::PredictionRefusal;

use device::SimulatedDevice;
use front::FrontCache;
use tree::{DevicePart, FoundDevices, NetworkTree};

/// Every medium addresses blocks of this size.
const BLOCK_BYTES: u64 = 4096;
/// The maximum number of devices in one storage configuration of a study.
pub const MAX_DEVICES: usize = 64;

/// A request in the form that a volume gets.
#[derive(Clone, Copy, Debug)]
pub struct VolumeRequest {
    pub operation: ModelOperation,
    /// Within the volume; requests beyond its end wrap around to its start.
    pub offset_bytes: u64,
    pub length_bytes: u64,
    /// For a read: the probability that a cache device in front of the volume holds all of it, 0 to 1.
    pub cached: f64,
}

impl VolumeRequest {
    pub(crate) fn flush() -> VolumeRequest {
        VolumeRequest { operation: ModelOperation::Flush, offset_bytes: 0, length_bytes: 0, cached: 0.0 }
    }
}

/// A completed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinishedDeviceRequest {
    /// The tag given to `submit`.
    pub tag: u64,
    pub at_ns: u64,
    /// The part of its time that it spent on a link.
    pub network_ns: u64,
}

/// The parts of a bank.
#[derive(Clone, Copy, Debug)]
pub struct NetworkSetup<'a> {
    pub volumes: &'a [VolumeSpec],
    /// Devices of the same name are one device, which these volumes share: those of a pool.
    pub shares_devices: bool,
    /// If nothing writes, the earlier history of flash does not matter, and is not simulated.
    pub writes: bool,
    /// How many times faster each device is than its medium, 1 for the catalogue's speed.
    pub speed: f64,
    /// The used part of each volume.
    pub span_bytes: u64,
    /// Determines the differences between equal devices.
    pub seed: u64,
}

/// The volumes of a storage configuration: devices, striped or mirrored, perhaps with a cache in front, perhaps behind
/// a link.
pub struct DeviceNetwork {
    volumes: Vec<NetworkVolume>,
    devices: Vec<SimulatedDevice>,
    span_bytes: u64,
    random: Pcg64Mcg,
    /// Requests in flight by place, and the free places.
    flights: Vec<InFlightRequest>,
    free: Vec<usize>,
    finished: Vec<FinishedRequest>,
    parts: Vec<DevicePart>,
}

struct NetworkVolume {
    tree: NetworkTree,
    front: Option<FrontCache>,
    link: Option<LinkModel>,
    capacity_bytes: u64,
    /// Its start on shared devices.
    base_bytes: u64,
    /// Its number of directories: a system that fills directories evenly puts this many shares of its data here.
    directories: u32,
}

/// The next step after all parts of a request are complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RequestContinuation {
    #[default]
    Answer,
    /// The answer, and the cache takes in the data read.
    Fill,
    /// The answer, and perhaps dirty blocks are written back.
    WriteBack,
    /// The cache's journal must record the flush first.
    Journal,
    /// Nothing follows.
    Nothing,
    /// The steps of writing a batch back.
    BatchRead,
    BatchWritten,
    BatchFlushed,
    BatchReleased,
}

#[derive(Clone, Copy, Debug, Default)]
struct InFlightRequest {
    tag: u64,
    volume: usize,
    parts: u32,
    length_bytes: u64,
    reads: bool,
    network_ns: u64,
    /// Must be durable when it completes.
    fua: bool,
    then: RequestContinuation,
}

impl DeviceNetwork {
    /// The devices of these volumes, all idle.
    ///
    /// # Errors
    /// A layer that is not modelled here, or more devices than a study may have.
    pub fn new(setup: &NetworkSetup<'_>) -> Result<DeviceNetwork, PredictionRefusal> {
        let mut found = FoundDevices::new(setup.writes, setup.speed, setup.seed, setup.shares_devices);
        let mut volumes = Vec::new();
        for spec in setup.volumes {
            // A link followed by a cache can only be outermost: further in, `NetworkTree` refuses them.
            let (node, link) = match &spec.root {
                StackNode::Link { bandwidth_mb_s, latency_us, member } => {
                    let sound = (0.001..=1e6).contains(bandwidth_mb_s) && (0.0..=60e6).contains(latency_us);
                    if !sound {
                        return Err(PredictionRefusal::Layer {
                            what: "a link without a sound bandwidth".to_owned(),
                        });
                    }
                    let one_way = Duration::from_nanos((latency_us * 1e3) as u64);
                    (&**member, Some(LinkModel::plain(*bandwidth_mb_s, one_way)))
                }
                other => (other, None),
            };
            let (node, front) = match node {
                StackNode::Cache { mode, fast, slow, bypass_bytes, dirty_percent } => {
                    let StackNode::Device(fast) = &**fast else {
                        return Err(PredictionRefusal::Layer {
                            what: "a cache on several devices".to_owned(),
                        });
                    };
                    let device = found.device(fast)?;
                    let capacity_bytes = found.devices[device].model.capacity_bytes();
                    let front = FrontCache::new(device, capacity_bytes, *mode, *bypass_bytes, *dirty_percent);
                    (&**slow, Some(front))
                }
                other => (other, None),
            };
            let tree = NetworkTree::from_node(node, &mut found)?;
            let capacity_bytes = tree.capacity_bytes(&found.devices);
            let least = front.as_ref().map_or(u64::MAX, |front| front.capacity_bytes).min(capacity_bytes);
            if least < 16 * BLOCK_BYTES {
                return Err(PredictionRefusal::Layer { what: format!("{}, which has no room", spec.name) });
            }
            // Volumes on the same devices follow one another.
            let before = if setup.shares_devices { volumes.len() as u64 } else { 0 };
            volumes.push(NetworkVolume {
                tree,
                front,
                link,
                capacity_bytes,
                base_bytes: before.saturating_mul(setup.span_bytes),
                directories: spec.directories.max(1),
            });
        }
        if volumes.is_empty() {
            return Err(PredictionRefusal::Layer { what: "a storage without devices".to_owned() });
        }
        Ok(DeviceNetwork::with(volumes, found.devices, setup.span_bytes, setup.seed))
    }

    /// Devices with the caller's models, each a volume.
    ///
    /// # Panics
    /// Without a model.
    pub fn from_models(models: Vec<Box<dyn MediumModel>>) -> DeviceNetwork {
        assert!(!models.is_empty(), "a bank of no devices");
        let volumes = models.iter().enumerate().map(|(place, model)| NetworkVolume {
            tree: NetworkTree::Device(place),
            front: None,
            link: None,
            capacity_bytes: model.capacity_bytes(),
            base_bytes: 0,
            directories: 1,
        });
        let volumes = volumes.collect();
        let devices = models.into_iter().map(|model| SimulatedDevice::from_model(model, 1.0)).collect();
        DeviceNetwork::with(volumes, devices, u64::MAX, 1)
    }

    fn with(
        volumes: Vec<NetworkVolume>,
        devices: Vec<SimulatedDevice>,
        span_bytes: u64,
        seed: u64,
    ) -> DeviceNetwork {
        DeviceNetwork {
            volumes,
            devices,
            span_bytes,
            random: Pcg64Mcg::seed_from_u64(seed ^ 0x6361_6368_6573),
            flights: Vec::new(),
            free: Vec::new(),
            finished: Vec::new(),
            parts: Vec::new(),
        }
    }

    pub fn volumes(&self) -> usize {
        self.volumes.len()
    }

    pub fn capacity_bytes(&self, volume: usize) -> u64 {
        self.volumes[volume].capacity_bytes
    }

    /// The share of the data in a volume, 0 to 1: directories fill evenly.
    pub fn share(&self, volume: usize) -> f64 {
        let all: u32 = self.volumes.iter().map(|one| one.directories).sum();
        f64::from(self.volumes[volume].directories) / f64::from(all.max(1))
    }

    /// The volume of a record: `draw` is from 0 to 1.
    pub fn volume_at(&self, draw: f64) -> usize {
        let mut left = draw;
        for volume in 0..self.volumes.len() {
            left -= self.share(volume);
            if left < 0.0 {
                return volume;
            }
        }
        self.volumes.len() - 1
    }

    /// How many more dirty blocks fit into write-back caches; `None` without such a cache.
    pub fn dirty_room_blocks(&self) -> Option<u64> {
        let fronts = self.volumes.iter().filter_map(|volume| volume.front.as_ref());
        let rooms = fronts.filter(|front| front.writes_back()).map(FrontCache::room_blocks);
        rooms.fold(None, |sum, room| Some(sum.unwrap_or(0) + room))
    }

    /// Sends a request; `take` answers with its tag. Everything up to `now_ns` must have been taken.
    pub fn submit(&mut self, tag: u64, volume: usize, request: VolumeRequest, now_ns: u64) {
        let one = &mut self.volumes[volume];
        let reads = request.operation == ModelOperation::Read;
        let mut arrives_ns = now_ns;
        if let Some(link) = &mut one.link {
            let data_bytes =
                if request.operation == ModelOperation::Write { request.length_bytes } else { 0 };
            arrives_ns = link.send(LinkDirection::ToTarget, data_bytes, ModelTime::from_ns(now_ns)).as_ns();
        }
        // A model's clock never goes back: a request in transit is submitted now, and its transit time is added to the
        // answer.
        let network_ns = arrives_ns - now_ns;
        let length_bytes = request.length_bytes.clamp(BLOCK_BYTES, one.capacity_bytes / 2);
        let length_bytes = length_bytes.div_ceil(BLOCK_BYTES) * BLOCK_BYTES;
        let last = one.capacity_bytes - length_bytes;
        let offset_bytes = request.offset_bytes.wrapping_add(one.base_bytes);
        let offset_bytes = (offset_bytes % (last + 1)) / BLOCK_BYTES * BLOCK_BYTES;
        self.parts.clear();
        let then = self.route(volume, request, offset_bytes, length_bytes);
        let flight =
            InFlightRequest { tag, volume, parts: 0, length_bytes, reads, network_ns, fua: false, then };
        self.fly(flight, request.operation, now_ns);
    }

    /// Determines the devices of a request, and what follows.
    fn route(
        &mut self,
        volume: usize,
        request: VolumeRequest,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> RequestContinuation {
        let NetworkVolume { tree, front, .. } = &mut self.volumes[volume];
        let (operation, devices, parts) = (request.operation, &self.devices, &mut self.parts);
        let Some(front) = front else {
            tree.split(operation, offset_bytes, length_bytes, devices, parts);
            return RequestContinuation::Answer;
        };
        let is_cached = request.cached > 0.0 && self.random.random::<f64>() < request.cached;
        let last = front.capacity_bytes.saturating_sub(length_bytes);
        match operation {
            ModelOperation::Read if is_cached => {
                let offset_bytes = place(&mut self.random, last);
                parts.push(DevicePart { device: front.device, offset_bytes, length_bytes });
                RequestContinuation::Answer
            }
            ModelOperation::Read => {
                tree.split(operation, offset_bytes, length_bytes, devices, parts);
                if front.takes_in(length_bytes) {
                    RequestContinuation::Fill
                } else {
                    RequestContinuation::Answer
                }
            }
            ModelOperation::Flush => {
                if !front.writes_back() || std::mem::take(&mut front.is_direct) {
                    tree.split(operation, 0, 0, devices, parts);
                }
                if front.writes_back() {
                    parts.push(DevicePart { device: front.device, offset_bytes: 0, length_bytes: 0 });
                    return RequestContinuation::Journal;
                }
                RequestContinuation::Answer
            }
            _ if front.writes_back() => {
                if front.takes_write(length_bytes) {
                    let offset_bytes = place(&mut self.random, last);
                    parts.push(DevicePart { device: front.device, offset_bytes, length_bytes });
                } else {
                    tree.split(operation, offset_bytes, length_bytes, devices, parts);
                }
                RequestContinuation::WriteBack
            }
            // Through to the slow devices. Its cached blocks change too, but the blocks that a log or a table writes to
            // are rarely cached.
            _ => {
                tree.split(operation, offset_bytes, length_bytes, devices, parts);
                RequestContinuation::Answer
            }
        }
    }

    /// Submits `self.parts` as one flight.
    fn fly(&mut self, flight: InFlightRequest, operation: ModelOperation, now_ns: u64) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.flights.push(InFlightRequest::default());
            self.flights.len() - 1
        });
        self.flights[place] = InFlightRequest { parts: self.parts.len() as u32, ..flight };
        for part in &self.parts {
            let request = ModelRequest {
                id: RequestId(place as u64),
                operation,
                offset_bytes: part.offset_bytes,
                length_bytes: part.length_bytes,
                fua: flight.fua,
            };
            self.devices[part.device].submit(request, now_ns);
        }
    }

    /// The time of the next event.
    pub fn next_ns(&self) -> Option<u64> {
        self.devices.iter().filter_map(|device| device.next_ns).min()
    }

    /// Advances every device to `now_ns`, and appends the completed requests.
    pub fn take(&mut self, now_ns: u64, done: &mut Vec<FinishedDeviceRequest>) {
        for place in 0..self.devices.len() {
            let device = &mut self.devices[place];
            if device.next_ns.is_none_or(|next| next > now_ns) {
                continue;
            }
            let mut finished = std::mem::take(&mut self.finished);
            finished.clear();
            device.complete(now_ns, &mut finished);
            for one in &finished {
                let flight = one.id.0 as usize;
                self.flights[flight].parts -= 1;
                if self.flights[flight].parts == 0 {
                    self.free.push(flight);
                    self.landed(self.flights[flight], now_ns, done);
                }
            }
            self.finished = finished;
        }
    }

    /// All parts of a request are complete.
    fn landed(&mut self, flight: InFlightRequest, now_ns: u64, done: &mut Vec<FinishedDeviceRequest>) {
        let InFlightRequest { volume, length_bytes, then, .. } = flight;
        match then {
            RequestContinuation::Answer => self.answer(flight, now_ns, done),
            RequestContinuation::Fill => {
                self.answer(flight, now_ns, done);
                self.write_to_front(
                    InFlightRequest { then: RequestContinuation::Nothing, ..flight },
                    length_bytes,
                    now_ns,
                );
            }
            RequestContinuation::WriteBack => {
                self.answer(flight, now_ns, done);
                self.write_back(volume, now_ns);
            }
            // The flush is answered once the cache's journal has recorded it.
            RequestContinuation::Journal => {
                let entry = InFlightRequest { fua: true, then: RequestContinuation::Answer, ..flight };
                self.write_to_front(entry, BLOCK_BYTES, now_ns);
            }
            RequestContinuation::Nothing => {}
            // From here on like the cache itself: written-back data must be durable before the front forgets it.
            RequestContinuation::BatchRead => {
                self.parts.clear();
                let NetworkVolume { tree, front, capacity_bytes, .. } = &self.volumes[volume];
                for &(offset_bytes, length_bytes) in front.iter().flat_map(|front| &front.runs) {
                    let last = capacity_bytes.saturating_sub(length_bytes);
                    tree.split(
                        ModelOperation::Write,
                        offset_bytes.min(last),
                        length_bytes,
                        &self.devices,
                        &mut self.parts,
                    );
                }
                self.fly(
                    InFlightRequest { then: RequestContinuation::BatchWritten, ..flight },
                    ModelOperation::Write,
                    now_ns,
                );
            }
            RequestContinuation::BatchWritten => {
                self.parts.clear();
                self.volumes[volume].tree.split(ModelOperation::Flush, 0, 0, &self.devices, &mut self.parts);
                self.fly(
                    InFlightRequest { then: RequestContinuation::BatchFlushed, ..flight },
                    ModelOperation::Flush,
                    now_ns,
                );
            }
            RequestContinuation::BatchFlushed => {
                let entry = InFlightRequest { fua: true, then: RequestContinuation::BatchReleased, ..flight };
                self.write_to_front(entry, BLOCK_BYTES, now_ns);
            }
            RequestContinuation::BatchReleased => {
                if let Some(front) = &mut self.volumes[volume].front {
                    front.end_batch();
                }
                // The next batch, if there are still too many dirty blocks.
                self.write_back(volume, now_ns);
            }
        }
    }

    fn answer(&mut self, flight: InFlightRequest, now_ns: u64, done: &mut Vec<FinishedDeviceRequest>) {
        let InFlightRequest { tag, volume, length_bytes, reads, mut network_ns, .. } = flight;
        if let Some(link) = &mut self.volumes[volume].link {
            let data_bytes = if reads { length_bytes } else { 0 };
            let now = ModelTime::from_ns(now_ns);
            network_ns += link.send(LinkDirection::FromTarget, data_bytes, now).as_ns() - now_ns;
        }
        done.push(FinishedDeviceRequest { tag, at_ns: now_ns + network_ns, network_ns });
    }

    /// A write to the cache device alone.
    fn write_to_front(&mut self, flight: InFlightRequest, length_bytes: u64, now_ns: u64) {
        let Some(front) = &self.volumes[flight.volume].front else { return };
        let last = front.capacity_bytes.saturating_sub(length_bytes);
        let device = front.device;
        let offset_bytes = place(&mut self.random, last);
        self.parts.clear();
        self.parts.push(DevicePart { device, offset_bytes, length_bytes });
        self.fly(flight, ModelOperation::Write, now_ns);
    }

    /// Begins to write a batch back, if one is due and none is in flight.
    fn write_back(&mut self, volume: usize, now_ns: u64) {
        let span_bytes = self.span_bytes.min(self.volumes[volume].capacity_bytes);
        let Some(front) = &mut self.volumes[volume].front else { return };
        let (device, capacity_bytes) = (front.device, front.capacity_bytes);
        if !front.begin_batch(span_bytes) {
            return;
        }
        self.parts.clear();
        for &(_, length_bytes) in &front.runs {
            let last = capacity_bytes.saturating_sub(length_bytes);
            self.parts.push(DevicePart { device, offset_bytes: place(&mut self.random, last), length_bytes });
        }
        let flight =
            InFlightRequest { volume, then: RequestContinuation::BatchRead, ..InFlightRequest::default() };
        self.fly(flight, ModelOperation::Read, now_ns);
    }

    /// Resets the devices' utilisation.
    pub fn restart(&mut self, now_ns: u64) {
        self.devices.iter_mut().for_each(|device| device.restart(now_ns));
    }

    /// For each device since then: the share of the time in which it had a request, and the mean number of requests.
    pub fn usage(&mut self, since_ns: u64, now_ns: u64) -> Vec<(f64, f64)> {
        let span_ns = now_ns.saturating_sub(since_ns).max(1) as f64;
        self.devices.iter_mut().map(|device| device.usage(span_ns, now_ns)).collect()
    }
}

/// A block up to this place, at random.
fn place(random: &mut Pcg64Mcg, last_bytes: u64) -> u64 {
    random.random_range(0..=last_bytes) / BLOCK_BYTES * BLOCK_BYTES
}
