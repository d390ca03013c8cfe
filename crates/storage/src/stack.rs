//! A whole storage as data, and the devices it becomes: what a study describes and an attachment serves.

mod faults;
mod layers;
mod remote;
mod secret_places;
pub mod spec;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use underlay_record::{DeviceActivity, DeviceDescription, DeviceGlance, DeviceId, DeviceInputs};
use underlay_sync::Mutex;

use crate::activity::ActivityTotals;
use crate::backing::{Backing, FileBacking, FlushDurability, MemoryBacking, NullBacking};
use crate::clock::{ModelClock, RealClock, VirtualClock};
use crate::device::BlockDevice;
use crate::faults::{FaultyDevice, PowerCutArming};
use crate::inputs::{self, TracedRequest};
use crate::layers::workers::WorkerThreads;
use crate::layers::{Mirror, SectorLayer};
pub use crate::medium::InitialState;
pub use crate::paced::PacingMode;
use crate::paced::{self, BLOCK_BYTES, Paced, PathCost};
use crate::pacer::Pacer;
use crate::time::ModelTime;
use crate::times::RequestTimes;
use layers::LayerMetrics;
pub use remote::{LayerMetric, OpenedRemote, RemoteConnection, RemoteOpener};
use remote::{NoOpener, RecordedRemote};
pub use secret_places::SecretPlaces;
pub use spec::{BackingSpec, DeviceSpec, RemoteSpec, StackNode, StackSpec, VolumeSpec};

#[derive(Debug, thiserror::Error)]
pub enum StackError {
    #[error("{path}: {source}")]
    Backing { path: PathBuf, source: std::io::Error },
    #[error("{name}: {problem}")]
    Invalid { name: String, problem: String },
    #[error("the thread that paces the devices can't be started: {0}")]
    Pacer(#[source] std::io::Error),
}

/// The running devices of a storage, with the one thread that waits for them all.
pub struct Stack {
    volumes: Vec<Arc<dyn BlockDevice>>,
    devices: Vec<StackDevice>,
    /// Devices that are elsewhere.
    remotes: Vec<Arc<RecordedRemote>>,
    /// The lines of links: driven as devices are, but no devices.
    lines: Vec<Paced>,
    /// The devices of each volume that programs reach directly: a program's request is one to such a device, or one
    /// each to several at once. None of a volume of other layers.
    direct: Vec<Vec<Paced>>,
    layers: Vec<LayerMetrics>,
    /// They have to look after their members when power was cut.
    mirrors: Vec<Arc<Mirror>>,
    /// Its work on devices ends before the stack is gone.
    workers: WorkerThreads,
    pacer: Option<Pacer>,
}

struct StackDevice {
    spec: DeviceSpec,
    /// Of the last measurement that has ended.
    trace: Mutex<Vec<Vec<TracedRequest>>>,
    paced: Paced,
    faulty: FaultyDevice,
    description: DeviceDescription,
}

impl Drop for Stack {
    fn drop(&mut self) {
        // Stops the thread and closes the devices, which ends what is in flight in the layers.
        drop(self.pacer.take());
        self.volumes.clear();
        self.layers.clear();
        self.mirrors.clear();
        self.remotes.clear();
        self.workers.stop();
    }
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

    /// Carries on until nothing is in flight, and returns the instant at which that is.
    pub fn run_until_idle(&self) -> ModelTime {
        paced::run_until_idle(&self.devices, &self.clock)
    }
}

impl Stack {
    /// Opens the backings and starts pacing in real time.
    ///
    /// # Errors
    /// When the spec makes no sense, naming the device or volume, or a backing file can't be had.
    pub fn open(spec: &StackSpec) -> Result<Stack, StackError> {
        Stack::open_with(spec, &NoOpener)
    }

    /// As [`Stack::open`], with what connects to devices that are elsewhere.
    ///
    /// # Errors
    /// As `open`, and when one of them can't be reached.
    pub fn open_with(spec: &StackSpec, opener: &dyn RemoteOpener) -> Result<Stack, StackError> {
        check_spec(spec)?;
        let clock: Arc<dyn ModelClock> = Arc::new(RealClock::new(spec.dilation));
        let workers = layers::workers(spec).map_err(StackError::Pacer)?;
        let mut stack = Stack::build(spec, &clock, workers, opener)?;
        let devices = stack.driven();
        stack.pacer = Some(Pacer::start(devices, clock).map_err(StackError::Pacer)?);
        Ok(stack)
    }

    /// The same stack by a clock that stands still until the driver moves it: for tests and predictions.
    ///
    /// # Errors
    /// As `open`.
    pub fn open_virtual(spec: &StackSpec) -> Result<(Stack, VirtualDriver), StackError> {
        check_spec(spec)?;
        let clock = Arc::new(VirtualClock::default());
        let shared: Arc<dyn ModelClock> = clock.clone();
        let stack = Stack::build(spec, &shared, WorkerThreads::inline(), &NoOpener)?;
        let devices = stack.driven();
        Ok((stack, VirtualDriver { clock, devices }))
    }

    fn build(
        spec: &StackSpec,
        clock: &Arc<dyn ModelClock>,
        workers: WorkerThreads,
        opener: &dyn RemoteOpener,
    ) -> Result<Stack, StackError> {
        let mut stack = Stack {
            volumes: Vec::new(),
            devices: Vec::new(),
            remotes: Vec::new(),
            lines: Vec::new(),
            direct: Vec::new(),
            layers: Vec::new(),
            mirrors: Vec::new(),
            workers: workers.clone(),
            pacer: None,
        };
        for volume in &spec.volumes {
            let (volume_name, seed, workers) = (&volume.name, spec.seed, &workers);
            let opening = layers::OpenContext { volume: volume_name, seed, clock, workers, opener };
            let first = stack.devices.len();
            let device = stack.open_node(&volume.root, &opening)?;
            let opened = stack.devices[first..].iter().filter(|_| volume.root.is_direct());
            stack.direct.push(opened.map(|device| device.paced.clone()).collect());
            stack.volumes.push(match volume.has_small_sectors() {
                true => Arc::new(SectorLayer::new(device)),
                false => device,
            });
        }
        stack.set_pace(PacingMode::Modelled);
        Ok(stack)
    }

    /// Everything that takes time.
    fn driven(&self) -> Vec<Paced> {
        self.devices.iter().map(|device| &device.paced).chain(&self.lines).cloned().collect()
    }

    /// In the order of the spec's volumes.
    pub fn volumes(&self) -> &[Arc<dyn BlockDevice>] {
        &self.volumes
    }

    /// Takes effect once everything in flight has completed.
    pub fn set_pace(&self, pace: PacingMode) {
        for device in self.driven() {
            device.set_pace(pace);
        }
    }

    /// Tells the devices how long a request is on its way to them and its answer on the way back, by the model's
    /// clock: see [`Paced`]. Below a layer that makes its own requests (a mirror, a cache, compression) devices
    /// can't tell whose a request is, and none is dated back.
    pub fn set_path(&self, path: PathCost) {
        self.direct.iter().flatten().for_each(|device| device.set_path(path));
    }

    /// Requests' times at the devices of each volume since they were made, in the order of the spec's volumes; `None`
    /// of a volume whose devices get requests that no program has made.
    pub fn times(&self) -> Vec<Option<RequestTimes>> {
        let sum = |devices: &Vec<Paced>| devices.iter().map(Paced::times).reduce(|sum, one| sum.plus(&one));
        self.direct.iter().map(sum).collect()
    }

    /// Clears all counters and histograms, and samples every `interval_s` (modelled seconds) from now on.
    /// An interval that is no positive number means no samples.
    pub fn begin_measurement(&self, interval_s: f64) {
        let interval = Duration::try_from_secs_f64(interval_s).ok().filter(|interval| !interval.is_zero());
        for device in &self.devices {
            device.faulty.begin_measurement(interval.unwrap_or(Duration::MAX));
        }
        for remote in &self.remotes {
            remote.begin_measurement(interval.unwrap_or(Duration::MAX));
        }
        self.layers.iter().for_each(LayerMetrics::begin_measurement);
    }

    /// How every device stands, in the order of [`end_measurement`](Self::end_measurement); counting goes on.
    pub fn glance(&self) -> Vec<DeviceGlance> {
        let own = self.devices.iter().map(|device| {
            let found = device.faulty.describe(device.description.medium.clone());
            let mut faults: Vec<String> =
                found.faults.iter().map(|active| active.fault.to_string()).collect();
            if !found.powered {
                faults.push("no power".to_owned());
            }
            glance_of(&device.description.id, device.paced.glance(), device.paced.is_modelled(), faults)
        });
        let remotes =
            self.remotes.iter().map(|remote| glance_of(remote.id(), remote.glance(), false, Vec::new()));
        own.chain(remotes).collect()
    }

    /// What every device did since `begin_measurement`, in order over all volumes, those last that are elsewhere;
    /// measuring ends.
    pub fn end_measurement(&self) -> Vec<DeviceActivity> {
        let remotes = self.remotes.iter().map(|remote| remote.end_measurement());
        self.devices
            .iter()
            .map(|device| {
                let measurement = device.paced.end_measurement();
                *device.trace.lock() = measurement.trace;
                DeviceActivity {
                    description: device.description.clone(),
                    duration_s: measurement.duration.as_secs_f64(),
                    totals: measurement.totals,
                    series: measurement.series,
                    modelled: device.paced.is_modelled().then_some(measurement.modelled),
                    delivered: Some(measurement.delivered),
                    wear: device.paced.end_wear(measurement.duration),
                    inputs: None,
                    faults: device.faulty.fault_records(),
                    earlier_faults: device.faulty.earlier_faults(),
                }
            })
            .chain(remotes)
            .collect()
    }
}

fn glance_of(id: &DeviceId, glance: ActivityTotals, is_modelled: bool, faults: Vec<String>) -> DeviceGlance {
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    DeviceGlance {
        id: id.clone(),
        since_s: glance.since.as_secs_f64(),
        totals: glance.totals,
        depth: glance.depth,
        answered: glance.answered,
        modelled_us: is_modelled.then(|| us(glance.modelled)),
        delivered_us: us(glance.delivered),
        modelled: glance.modelled_buckets.sparse(),
        delivered: glance.delivered_buckets.sparse(),
        faults,
        state: None,
    }
}

impl Stack {
    /// The certificate of its inputs: what the requests of the measurement that has ended say of each modelled device,
    /// by its name. It takes a moment, and no device waits for it. Each measurement is returned once.
    pub fn inputs(&self) -> Vec<(String, DeviceInputs)> {
        let inputs_of = |device: &StackDevice| {
            let trace = std::mem::take(&mut *device.trace.lock());
            let DeviceSpec { name, medium, capacity_bytes, initial, .. } = &device.spec;
            Some((name.clone(), inputs::certify(medium.as_ref()?, *capacity_bytes, *initial, &trace)))
        };
        self.devices.iter().filter_map(inputs_of).collect()
    }
}

fn invalid(name: &str, problem: impl Into<String>) -> StackError {
    StackError::Invalid { name: name.to_owned(), problem: problem.into() }
}

fn check_spec(spec: &StackSpec) -> Result<(), StackError> {
    if !(spec.dilation.is_finite() && (1e-6..=1e6).contains(&spec.dilation)) {
        return Err(invalid(
            "dilation",
            format!("{} is not a factor from 0.000001 to 1000000", spec.dilation),
        ));
    }
    // Across all volumes: faults and figures name a device without its volume.
    let mut names = BTreeSet::new();
    let mut files = BTreeSet::new();
    for volume in &spec.volumes {
        let (devices, remotes) = (volume.devices(), volume.remotes());
        if devices.is_empty() && remotes.is_empty() {
            return Err(invalid(&volume.name, "a volume needs at least one device"));
        }
        if let Some(remote) = remotes.into_iter().find(|remote| !names.insert(&remote.name)) {
            return Err(invalid(&remote.name, "two devices have this name; number them"));
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
                // Two devices over one file would overwrite each other's data.
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

fn open_device(
    device: &DeviceSpec,
    seed: u64,
    clock: &Arc<dyn ModelClock>,
) -> Result<FaultyDevice, StackError> {
    let backing: Arc<dyn Backing> = match &device.backing {
        BackingSpec::File(path) => Arc::new(open_file(path, device.capacity_bytes)?),
        BackingSpec::Memory => Arc::new(MemoryBacking::new()),
        BackingSpec::Null => Arc::new(NullBacking),
    };
    let model =
        device.medium.as_ref().map(|medium| medium.model(device.capacity_bytes, seed, device.initial));
    let arming = PowerCutArming::new(device.power_cut_armed, device.medium.as_ref());
    Ok(FaultyDevice::new(&device.name, device.capacity_bytes, backing, model, clock, arming))
}

fn open_file(path: &Path, capacity_bytes: u64) -> Result<FileBacking, StackError> {
    FileBacking::open(path, capacity_bytes, FlushDurability::PageCache)
        .map_err(|source| StackError::Backing { path: path.to_owned(), source })
}

/// Spreads the study's seed over its devices (the finaliser of SplitMix64: Steele, Lea and Flood 2014).
fn device_seed(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add((index + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
