//! A whole storage as data, and the devices it becomes: what a study describes and an attachment serves.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use underlay_record::{DeviceActivity, DeviceDescription};

use crate::backing::{Backing, Durability, FileBacking, MemoryBacking, NullBacking};
use crate::catalogue::Medium;
use crate::clock::{Clock, RealClock, VirtualClock};
use crate::device::BlockDevice;
use crate::layers::Stripe;
use crate::paced::{self, BLOCK_BYTES, Paced};
use crate::pacer::Pacer;
use crate::time::Time;

/// Where a modelled device keeps its bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackingSpec {
    /// A sparse file, made when it is not there. What was flushed outlives the process, but not a crash of
    /// the host: see [`Durability::PageCache`].
    File(PathBuf),
    Memory,
    /// Keeps nothing and reads zeros: for measuring the path itself.
    Null,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceSpec {
    /// `hdd-7200-sata.0`
    pub name: String,
    /// The timing; absent for a device that completes at once.
    pub medium: Option<Medium>,
    /// On this machine, that is after the data scale. The model keeps its medium's full-stroke seeks: a
    /// scaled disk has fewer cylinders, not a shorter arm.
    pub capacity_bytes: u64,
    pub backing: BackingSpec,
    /// What the device went through before it is first used.
    #[serde(default)]
    pub initial: InitialState,
    /// Keeps what is needed to lose unflushed writes by a power cut; costs a copy of every block written.
    #[serde(default)]
    pub power_cut_armed: bool,
}

impl DeviceSpec {
    /// Fresh, and not armed for power cuts.
    pub fn new(
        name: impl Into<String>,
        medium: Option<Medium>,
        capacity_bytes: u64,
        backing: BackingSpec,
    ) -> DeviceSpec {
        let (initial, power_cut_armed) = (InitialState::default(), false);
        DeviceSpec { name: name.into(), medium, capacity_bytes, backing, initial, power_cut_armed }
    }
}

/// What a device went through before it is first used. It matters to flash, whose free space is spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InitialState {
    /// As it left the factory, or was wholly discarded: nothing is mapped.
    #[default]
    Fresh,
    /// Written over at random until write amplification no longer changes.
    Steady,
}

/// One block device that a program will see.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeSpec {
    pub name: String,
    pub root: Node,
}

/// A device, or a layer over what lies below it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Node {
    Device(DeviceSpec),
    Stripe {
        /// Bytes on one member before the stripe goes on to the next.
        chunk_bytes: u64,
        members: Vec<Node>,
    },
}

impl Node {
    /// What lies directly below.
    pub fn members(&self) -> &[Node] {
        match self {
            Node::Device(_) => &[],
            Node::Stripe { members, .. } => members,
        }
    }

    /// All devices below, in order.
    pub fn devices(&self) -> Vec<&DeviceSpec> {
        match self {
            Node::Device(device) => vec![device],
            layer => layer.members().iter().flat_map(Node::devices).collect(),
        }
    }

    /// Changes every device below, in order.
    pub fn for_each_device(&mut self, change: &mut impl FnMut(&mut DeviceSpec)) {
        match self {
            Node::Device(device) => change(device),
            Node::Stripe { members, .. } => {
                members.iter_mut().for_each(|member| member.for_each_device(change));
            }
        }
    }
}

impl VolumeSpec {
    /// A device alone, or several striped.
    pub fn striped(name: impl Into<String>, devices: Vec<DeviceSpec>, chunk_bytes: u64) -> VolumeSpec {
        let mut members: Vec<Node> = devices.into_iter().map(Node::Device).collect();
        let root = match members.len() {
            1 => members.remove(0),
            _ => Node::Stripe { chunk_bytes, members },
        };
        VolumeSpec { name: name.into(), root }
    }

    pub fn devices(&self) -> Vec<&DeviceSpec> {
        self.root.devices()
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StackSpec {
    pub volumes: Vec<VolumeSpec>,
    /// Slow motion: `scale.time` of the study.
    pub dilation: f64,
    pub seed: u64,
}

/// Whether requests take their modelled time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    Modelled,
    /// Fast-forward: requests complete at once while the models' state goes on.
    Immediate,
}

#[derive(Debug, thiserror::Error)]
pub enum StackError {
    #[error("{path}: {source}")]
    Backing { path: PathBuf, source: std::io::Error },
    #[error("{name}: {problem}")]
    Invalid { name: String, problem: String },
    #[error("the thread that paces the devices can't be started: {0}")]
    Pacer(std::io::Error),
}

/// The running devices of a storage, with the one thread that waits for them all.
pub struct Stack {
    volumes: Vec<Arc<dyn BlockDevice>>,
    devices: Vec<Device>,
    // Dropped with the stack: it stops the thread and closes the devices.
    _pacer: Option<Pacer>,
}

struct Device {
    paced: Paced,
    description: DeviceDescription,
}

/// Runs a stack in virtual time, without a thread.
#[derive(Clone)]
pub struct VirtualDriver {
    clock: Arc<VirtualClock>,
    devices: Vec<Paced>,
}

impl VirtualDriver {
    pub fn clock(&self) -> &VirtualClock {
        &self.clock
    }

    /// Carries on to the next event of any device; false when there is none.
    pub fn step(&self) -> bool {
        paced::step(&self.devices, &self.clock)
    }

    /// Carries on until nothing is under way, and returns the instant at which that is.
    pub fn run_until_idle(&self) -> Time {
        paced::run_until_idle(&self.devices, &self.clock)
    }
}

impl Stack {
    /// Opens the backings and starts pacing in real time.
    ///
    /// # Errors
    /// When the spec makes no sense, naming the device or volume, or a backing file can't be had.
    pub fn open(spec: &StackSpec) -> Result<Stack, StackError> {
        check_spec(spec)?;
        let clock: Arc<dyn Clock> = Arc::new(RealClock::new(spec.dilation));
        let mut stack = Stack::build(spec, &clock)?;
        let devices = stack.devices.iter().map(|device| device.paced.clone()).collect();
        stack._pacer = Some(Pacer::start(devices, clock).map_err(StackError::Pacer)?);
        Ok(stack)
    }

    /// The same stack by a clock that stands still until the driver moves it: for tests and predictions.
    ///
    /// # Errors
    /// As `open`.
    pub fn open_virtual(spec: &StackSpec) -> Result<(Stack, VirtualDriver), StackError> {
        check_spec(spec)?;
        let clock = Arc::new(VirtualClock::default());
        let shared: Arc<dyn Clock> = clock.clone();
        let stack = Stack::build(spec, &shared)?;
        let devices = stack.devices.iter().map(|device| device.paced.clone()).collect();
        Ok((stack, VirtualDriver { clock, devices }))
    }

    fn build(spec: &StackSpec, clock: &Arc<dyn Clock>) -> Result<Stack, StackError> {
        let mut stack = Stack { volumes: Vec::new(), devices: Vec::new(), _pacer: None };
        for volume in &spec.volumes {
            let device = stack.open_node(&volume.root, volume, spec.seed, clock)?;
            stack.volumes.push(device);
        }
        Ok(stack)
    }

    fn open_node(
        &mut self,
        node: &Node,
        volume: &VolumeSpec,
        seed: u64,
        clock: &Arc<dyn Clock>,
    ) -> Result<Arc<dyn BlockDevice>, StackError> {
        match node {
            Node::Device(device) => {
                let paced = open_device(device, device_seed(seed, self.devices.len() as u64), clock)?;
                self.devices.push(Device { paced: paced.clone(), description: describe(device) });
                Ok(Arc::new(paced))
            }
            Node::Stripe { chunk_bytes, members } => {
                let members = members
                    .iter()
                    .map(|member| self.open_node(member, volume, seed, clock))
                    .collect::<Result<_, _>>()?;
                let stripe = Stripe::new(members, *chunk_bytes)
                    .map_err(|error| invalid(&volume.name, error.to_string()))?;
                Ok(Arc::new(stripe))
            }
        }
    }

    /// In the order of the spec's volumes.
    pub fn volumes(&self) -> &[Arc<dyn BlockDevice>] {
        &self.volumes
    }

    /// Takes effect once everything under way has completed.
    pub fn set_pace(&self, pace: Pace) {
        for device in &self.devices {
            device.paced.set_pace(pace);
        }
    }

    /// Clears all counters and histograms, and samples every `interval_s` (modelled seconds) from now on.
    /// An interval that is no positive number means no samples.
    pub fn begin_measurement(&self, interval_s: f64) {
        let interval = Duration::try_from_secs_f64(interval_s).ok().filter(|interval| !interval.is_zero());
        for device in &self.devices {
            device.paced.begin_measurement(interval.unwrap_or(Duration::MAX));
        }
    }

    /// What every device (in order, over all volumes) did since `begin_measurement`; measuring ends.
    pub fn end_measurement(&self) -> Vec<DeviceActivity> {
        self.devices
            .iter()
            .map(|device| {
                let measurement = device.paced.end_measurement();
                DeviceActivity {
                    description: device.description.clone(),
                    duration_s: measurement.duration.as_secs_f64(),
                    totals: measurement.totals,
                    series: measurement.series,
                    modelled: device.paced.is_modelled().then_some(measurement.modelled),
                    delivered: Some(measurement.delivered),
                }
            })
            .collect()
    }
}

fn invalid(name: &str, problem: impl Into<String>) -> StackError {
    StackError::Invalid { name: name.to_owned(), problem: problem.into() }
}

fn check_spec(spec: &StackSpec) -> Result<(), StackError> {
    if !(spec.dilation.is_finite() && (1e-6..=1e6).contains(&spec.dilation)) {
        return Err(invalid("dilation", format!("{} is no factor from 0.000001 to 1000000", spec.dilation)));
    }
    let mut names = BTreeSet::new();
    let mut files = BTreeSet::new();
    for volume in &spec.volumes {
        let devices = volume.devices();
        if devices.is_empty() {
            return Err(invalid(&volume.name, "a volume needs at least one device"));
        }
        for device in devices {
            if !names.insert(&device.name) {
                return Err(invalid(&device.name, "two devices have this name; number them"));
            }
            if device.capacity_bytes == 0 || !device.capacity_bytes.is_multiple_of(u64::from(BLOCK_BYTES)) {
                let problem = format!(
                    "a capacity of {} bytes; it must be a positive multiple of {BLOCK_BYTES}",
                    device.capacity_bytes
                );
                return Err(invalid(&device.name, problem));
            }
            if let Some(problem) =
                device.medium.as_ref().and_then(|medium| medium.problems().into_iter().next())
            {
                return Err(invalid(&device.name, problem));
            }
            if let BackingSpec::File(path) = &device.backing
                && !files.insert(path.as_path())
            {
                return Err(invalid(
                    &device.name,
                    format!("{} backs another device already", path.display()),
                ));
            }
        }
    }
    Ok(())
}

fn open_device(device: &DeviceSpec, seed: u64, clock: &Arc<dyn Clock>) -> Result<Paced, StackError> {
    let backing: Arc<dyn Backing> = match &device.backing {
        BackingSpec::File(path) => Arc::new(open_file(path, device.capacity_bytes)?),
        BackingSpec::Memory => Arc::new(MemoryBacking::new()),
        BackingSpec::Null => Arc::new(NullBacking),
    };
    let model = device.medium.as_ref().map(|medium| medium.model(device.capacity_bytes, seed));
    Ok(Paced::new(device.capacity_bytes, backing, model, Arc::clone(clock)))
}

fn open_file(path: &Path, capacity_bytes: u64) -> Result<FileBacking, StackError> {
    FileBacking::open(path, capacity_bytes, Durability::PageCache)
        .map_err(|source| StackError::Backing { path: path.to_owned(), source })
}

fn describe(device: &DeviceSpec) -> DeviceDescription {
    DeviceDescription {
        name: device.name.clone(),
        medium: device.medium.as_ref().map(|medium| medium.name.clone()),
        capacity_bytes: device.medium.as_ref().map(Medium::capacity_bytes),
        price_usd: device.medium.as_ref().map(Medium::price_usd),
        price_source: device.medium.as_ref().map(Medium::price_source),
    }
}

/// Spreads the study's seed over its devices (the finaliser of SplitMix64: Steele, Lea and Flood 2014).
fn device_seed(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add((index + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
