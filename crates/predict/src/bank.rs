//! The devices of a storage in virtual time: the same models that pace a running program, put together as its layers put them.

use std::time::Duration;

use underlay_storage::catalogue::MediumKind;
use underlay_storage::media::link::{Link, LinkDirection};
use underlay_storage::medium::{Finished, MediumModel, ModelRequest, Operation, RequestId};
use underlay_storage::stack::{DeviceSpec, InitialState, Node, VolumeSpec};
use underlay_storage::time::Time;

use crate::refusal::Refusal;

/// Every medium addresses blocks of this size.
const BLOCK_BYTES: u64 = 4096;
/// As many devices as a study takes in one storage.
pub const MAX_DEVICES: usize = 64;

/// A request as a volume gets it.
#[derive(Clone, Copy, Debug)]
pub struct VolumeRequest {
    pub operation: Operation,
    /// Within the volume; what goes beyond its end begins at its start again.
    pub offset_bytes: u64,
    pub length_bytes: u64,
}

/// A request that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// As `submit` was told.
    pub tag: u64,
    pub at_ns: u64,
    /// The part of its time that it spent on a link.
    pub network_ns: u64,
}

/// The volumes of a storage, each a device, a stripe or a mirror, perhaps behind a link.
pub struct Bank {
    volumes: Vec<Volume>,
    devices: Vec<Device>,
    /// Requests under way by their place, and the places that are free.
    flights: Vec<Flight>,
    free: Vec<usize>,
    finished: Vec<Finished>,
}

struct Volume {
    layout: Layout,
    /// Places of its devices.
    members: Vec<usize>,
    link: Option<Link>,
    capacity_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
enum Layout {
    Striped { chunk_bytes: u64 },
    Mirrored,
}

struct Device {
    model: Box<dyn MediumModel>,
    /// How many times faster than the catalogue has it.
    speed: f64,
    /// In the model's own time, which `speed` stretches.
    next_ns: Option<u64>,
    under_way: u32,
    busy_ns: u64,
    /// The integral of the requests under way over time.
    queue_ns: u128,
    changed_ns: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Flight {
    tag: u64,
    volume: usize,
    parts: u32,
    length_bytes: u64,
    reads: bool,
    network_ns: u64,
}

impl Bank {
    /// The devices of these volumes, all idle. `speed` is how many times faster each is than its medium, 1 for what the catalogue
    /// says; `seed` sets what differs between equal devices. Where nothing `writes`, what flash went through before does not matter,
    /// and is not gone through again.
    ///
    /// # Errors
    /// A layer that is not modelled here, or more devices than a study may have.
    pub fn new(volumes: &[VolumeSpec], writes: bool, speed: f64, seed: u64) -> Result<Bank, Refusal> {
        let mut bank = Bank {
            volumes: Vec::new(),
            devices: Vec::new(),
            flights: Vec::new(),
            free: Vec::new(),
            finished: Vec::new(),
        };
        for spec in volumes {
            let (node, link) = match &spec.root {
                Node::Link { bandwidth_mb_s, latency_us, member } => {
                    let sound = (0.001..=1e6).contains(bandwidth_mb_s) && (0.0..=60e6).contains(latency_us);
                    if !sound {
                        return Err(Refusal::Layer { what: "a link without a sound bandwidth".to_owned() });
                    }
                    let one_way = Duration::from_nanos((latency_us * 1e3) as u64);
                    (&**member, Some(Link::plain(*bandwidth_mb_s, one_way)))
                }
                other => (other, None),
            };
            let (layout, members) = layout_of(node)?;
            if bank.devices.len() + members.len() > MAX_DEVICES {
                return Err(Refusal::Layer { what: format!("a storage of more than {MAX_DEVICES} devices") });
            }
            let mut places = Vec::new();
            for device in members {
                places.push(bank.devices.len());
                let own = seed.wrapping_add(bank.devices.len() as u64);
                bank.devices.push(Device::new(device, writes, speed, own)?);
            }
            let each = || places.iter().map(|&place| bank.devices[place].model.capacity_bytes());
            let smallest = each().min().unwrap_or(0);
            let capacity_bytes = match layout {
                Layout::Mirrored => smallest,
                Layout::Striped { chunk_bytes } => {
                    (smallest / chunk_bytes * chunk_bytes).saturating_mul(places.len() as u64)
                }
            };
            if capacity_bytes < 16 * BLOCK_BYTES {
                return Err(Refusal::Layer { what: format!("{}, which has no room", spec.name) });
            }
            bank.volumes.push(Volume { layout, members: places, link, capacity_bytes });
        }
        if bank.volumes.is_empty() {
            return Err(Refusal::Layer { what: "a storage without devices".to_owned() });
        }
        Ok(bank)
    }

    /// Devices with models of the caller's, each a volume.
    ///
    /// # Panics
    /// Without a model.
    pub fn of_models(models: Vec<Box<dyn MediumModel>>) -> Bank {
        assert!(!models.is_empty(), "a bank of no devices");
        let volumes = models.iter().enumerate().map(|(place, model)| Volume {
            layout: Layout::Mirrored,
            members: vec![place],
            link: None,
            capacity_bytes: model.capacity_bytes(),
        });
        Bank {
            volumes: volumes.collect(),
            devices: models.into_iter().map(|model| Device::of(model, 1.0)).collect(),
            flights: Vec::new(),
            free: Vec::new(),
            finished: Vec::new(),
        }
    }

    pub fn volumes(&self) -> usize {
        self.volumes.len()
    }

    pub fn capacity_bytes(&self, volume: usize) -> u64 {
        self.volumes[volume].capacity_bytes
    }

    /// Sends a request; `take` answers with its tag. Everything up to `now_ns` must have been taken.
    pub fn submit(&mut self, tag: u64, volume: usize, request: VolumeRequest, now_ns: u64) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.flights.push(Flight::default());
            self.flights.len() - 1
        });
        let one = &mut self.volumes[volume];
        let reads = request.operation == Operation::Read;
        let mut arrives_ns = now_ns;
        if let Some(link) = &mut one.link {
            let data_bytes = if request.operation == Operation::Write { request.length_bytes } else { 0 };
            arrives_ns = link.send(LinkDirection::ToTarget, data_bytes, Time::from_ns(now_ns)).as_ns();
        }
        // A model's clock never goes back: what is on its way there is submitted now, and its way is added to the answer.
        let network_ns = arrives_ns - now_ns;
        let length_bytes = request.length_bytes.clamp(BLOCK_BYTES, one.capacity_bytes / 2);
        let length_bytes = length_bytes.div_ceil(BLOCK_BYTES) * BLOCK_BYTES;
        let last = one.capacity_bytes - length_bytes;
        let offset_bytes = (request.offset_bytes % (last + 1)) / BLOCK_BYTES * BLOCK_BYTES;
        let parts: Vec<(usize, u64, u64)> = match (request.operation, one.layout) {
            (Operation::Flush, _) => one.members.iter().map(|&device| (device, 0, 0)).collect(),
            (Operation::Read, Layout::Mirrored) => {
                let idlest = one.members.iter().copied().min_by_key(|&device| self.devices[device].under_way);
                vec![(idlest.unwrap_or(0), offset_bytes, length_bytes)]
            }
            (_, Layout::Mirrored) => {
                one.members.iter().map(|&device| (device, offset_bytes, length_bytes)).collect()
            }
            (_, Layout::Striped { chunk_bytes }) => {
                striped(&one.members, chunk_bytes, offset_bytes, length_bytes)
            }
        };
        self.flights[place] =
            Flight { tag, volume, parts: parts.len() as u32, length_bytes, reads, network_ns };
        for (device, offset_bytes, length_bytes) in parts {
            self.devices[device].submit(
                ModelRequest {
                    id: RequestId(place as u64),
                    operation: request.operation,
                    offset_bytes,
                    length_bytes,
                    fua: false,
                },
                now_ns,
            );
        }
    }

    /// When something happens next.
    pub fn next_ns(&self) -> Option<u64> {
        self.devices.iter().filter_map(|device| device.next_ns).min()
    }

    /// Carries every device on to `now_ns`, and appends what is done.
    pub fn take(&mut self, now_ns: u64, done: &mut Vec<Done>) {
        for place in 0..self.devices.len() {
            let device = &mut self.devices[place];
            if device.next_ns.is_none_or(|next| next > now_ns) {
                continue;
            }
            self.finished.clear();
            device.complete(now_ns, &mut self.finished);
            for index in 0..self.finished.len() {
                let flight = self.finished[index].id.0 as usize;
                let one = &mut self.flights[flight];
                one.parts -= 1;
                if one.parts > 0 {
                    continue;
                }
                let Flight { tag, volume, length_bytes, reads, mut network_ns, .. } = *one;
                if let Some(link) = &mut self.volumes[volume].link {
                    let data_bytes = if reads { length_bytes } else { 0 };
                    let now = Time::from_ns(now_ns);
                    network_ns += link.send(LinkDirection::FromTarget, data_bytes, now).as_ns() - now_ns;
                }
                self.free.push(flight);
                done.push(Done { tag, at_ns: now_ns + network_ns, network_ns });
            }
        }
    }

    /// Forgets how busy the devices have been until now.
    pub fn restart(&mut self, now_ns: u64) {
        for device in &mut self.devices {
            (device.busy_ns, device.queue_ns) = (0, 0);
            device.changed_ns = now_ns;
        }
    }

    /// Of each device since then: the share of the time in which it had a request, and the mean number of them.
    pub fn usage(&mut self, since_ns: u64, now_ns: u64) -> Vec<(f64, f64)> {
        let span = now_ns.saturating_sub(since_ns).max(1) as f64;
        self.devices
            .iter_mut()
            .map(|device| {
                device.count(now_ns);
                (device.busy_ns as f64 / span, device.queue_ns as f64 / span)
            })
            .collect()
    }
}

impl Device {
    fn new(spec: &DeviceSpec, writes: bool, speed: f64, seed: u64) -> Result<Device, Refusal> {
        let Some(medium) = &spec.medium else {
            return Err(Refusal::Layer { what: format!("{}, which takes no time", spec.name) });
        };
        if let Some(problem) = medium.problems().into_iter().next() {
            return Err(Refusal::Layer { what: format!("{}: {problem}", spec.name) });
        }
        // A model keeps a map of its blocks, of a bounded sample where it is large.
        let capacity_bytes = spec.capacity_bytes.clamp(1 << 20, 1 << 50);
        let is_read_flash = medium.kind == MediumKind::Flash && !writes;
        let initial = if is_read_flash { InitialState::Fresh } else { spec.initial };
        Ok(Device::of(medium.model(capacity_bytes, seed, initial), speed))
    }

    fn of(model: Box<dyn MediumModel>, speed: f64) -> Device {
        Device { model, speed, next_ns: None, under_way: 0, busy_ns: 0, queue_ns: 0, changed_ns: 0 }
    }

    /// Our time as the model's: a device twice as fast has twice as much of it.
    fn inner(&self, ns: u64) -> Time {
        Time::from_ns(if self.speed == 1.0 { ns } else { (ns as f64 * self.speed) as u64 })
    }

    fn outer(&self, time: Time) -> u64 {
        if self.speed == 1.0 { time.as_ns() } else { (time.as_ns() as f64 / self.speed).ceil() as u64 }
    }

    fn count(&mut self, now_ns: u64) {
        let passed = now_ns.saturating_sub(self.changed_ns);
        self.changed_ns = now_ns.max(self.changed_ns);
        self.queue_ns += u128::from(passed) * u128::from(self.under_way);
        if self.under_way > 0 {
            self.busy_ns += passed;
        }
    }

    fn submit(&mut self, request: ModelRequest, now_ns: u64) {
        self.count(now_ns);
        self.under_way += 1;
        self.model.submit(request, self.inner(now_ns));
        self.look_ahead();
    }

    fn complete(&mut self, now_ns: u64, finished: &mut Vec<Finished>) {
        self.count(now_ns);
        // Rounding of the two clocks must not leave an event behind.
        let now = self.inner(now_ns).max(self.model.next_completion().unwrap_or_default());
        self.model.complete(now, finished);
        self.under_way -= finished.len() as u32;
        self.look_ahead();
    }

    fn look_ahead(&mut self) {
        self.next_ns = self.model.next_completion().map(|at| self.outer(at));
    }
}

fn layout_of(node: &Node) -> Result<(Layout, Vec<&DeviceSpec>), Refusal> {
    let devices = |members: &'_ [Node]| -> Result<Vec<usize>, Refusal> {
        (0..members.len())
            .map(|index| match &members[index] {
                Node::Device(_) => Ok(index),
                other => Err(Refusal::Layer { what: format!("{} below another layer", name_of(other)) }),
            })
            .collect()
    };
    match node {
        Node::Device(device) => Ok((Layout::Striped { chunk_bytes: 1 << 20 }, vec![device])),
        Node::Stripe { chunk_bytes, members } => {
            if *chunk_bytes < BLOCK_BYTES || !chunk_bytes.is_multiple_of(BLOCK_BYTES) {
                return Err(Refusal::Layer { what: format!("a stripe by {chunk_bytes} bytes") });
            }
            devices(members)?;
            Ok((Layout::Striped { chunk_bytes: *chunk_bytes }, plain(members)))
        }
        Node::Mirror { members } => {
            devices(members)?;
            Ok((Layout::Mirrored, plain(members)))
        }
        other => Err(Refusal::Layer { what: name_of(other).to_owned() }),
    }
}

fn plain(members: &[Node]) -> Vec<&DeviceSpec> {
    members
        .iter()
        .filter_map(|member| match member {
            Node::Device(device) => Some(device),
            _ => None,
        })
        .collect()
}

/// What a layer is called in a refusal.
fn name_of(node: &Node) -> &'static str {
    match node {
        Node::Device(_) => "a device",
        Node::Remote(_) => "a volume of a pool, which is reached over a real network",
        Node::Stripe { .. } => "a stripe",
        Node::Mirror { .. } => "a mirror",
        Node::Compress { .. } => "compression",
        Node::Cache { .. } => "a cache device",
        Node::Link { .. } => "a link",
    }
}

/// At most one request a device, as the layer makes them: the chunks that it takes of one lie side by side there.
fn striped(
    members: &[usize],
    chunk_bytes: u64,
    offset_bytes: u64,
    length_bytes: u64,
) -> Vec<(usize, u64, u64)> {
    let count = members.len() as u64;
    if count == 1 {
        return vec![(members[0], offset_bytes, length_bytes)];
    }
    let mut parts: Vec<(usize, u64, u64)> = Vec::new();
    let mut done = 0;
    while done < length_bytes {
        let at = offset_bytes + done;
        let (chunk, inside) = (at / chunk_bytes, at % chunk_bytes);
        let length = (chunk_bytes - inside).min(length_bytes - done);
        let device = members[(chunk % count) as usize];
        let on_device = chunk / count * chunk_bytes + inside;
        match parts.iter_mut().find(|part| part.0 == device) {
            Some(part) => part.2 += length,
            None => parts.push((device, on_device, length)),
        }
        done += length;
    }
    parts
}
