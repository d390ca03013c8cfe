//! A study as data: what its TOML says, checked, with every default filled in.
//!
//! Sizes, rates and record counts here are those of the *modelled* machine, as the study speaks of them:
//! nothing is divided by the data scale or the time scale yet. [`Study::bytes_here`] and
//! [`Study::records_here`] do that. `warmup`, `duration` and what divides them are the exception: they are wall time of
//! this machine, because the user's patience is not scaled. Only a study that leaves the factor of slow motion open
//! speaks of modelled time there too, as it can't know what that takes; [`Study::at`] makes wall time of it.

mod find_rate;
mod memory;
pub(super) mod rate;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use underlay_record::{NodeChoice, NodeExit, ReferenceTable, ScaleFactors};
use underlay_storage::catalogue::CatalogueMedium;
use underlay_storage::faults::DeviceFault;
use underlay_storage::layers::cache::CacheMode;
use underlay_storage::layers::compress::CompressionCodec;
use underlay_storage::stack::InitialState;
use underlay_systems::benchmark::{BenchmarkPlan, MetricSource, fio};
use underlay_systems::nodes::PlannedNode;
use underlay_systems::system::Visibility;
use underlay_workload::ArrivalProcess;

use underlay_config::Diagnostics;

pub use find_rate::FindRate;
pub use rate::{ChangingRate, StudyRate};

/// Bytes of one key as the generator writes it: `user` and the 19 digits that a hashed key number mostly has.
pub const KEY_BYTES: u64 = 23;

/// A whole study, ready to be expanded into cells.
#[derive(Clone, Debug)]
pub struct Study {
    /// `[a-z0-9-]`, at most 40 characters: it names the run's directory.
    pub name: String,
    pub title: Option<String>,
    /// The text it was read from, for the run's own record.
    pub source_toml: String,
    /// The command line's overrides of that: `scale.data=100`.
    pub overrides: Vec<String>,
    /// The name of the storage that ratios are against; always one of `storages`.
    pub baseline: String,
    /// In the order of the file, never empty; so are the next two.
    pub systems: Vec<SystemSpec>,
    pub storages: Vec<StorageSpec>,
    /// Those that a role of a system names: they are under every cell of it, and not compared themselves.
    pub role_storages: Vec<StorageSpec>,
    pub workloads: Vec<WorkloadSpec>,
    /// Faults in a measured cell; may be empty.
    pub faults: Vec<FaultSpec>,
    /// Nodes that go away while a cell is measured; may be empty.
    pub events: Vec<EventSpec>,
    /// The machine that is modelled; without it, a system takes what CPUs this host has.
    pub machine: Option<MachineSpec>,
    pub run: RunSettings,
    pub scale: ScaleFactors,
    /// Its factor of slow motion is this host's to choose: [`at`](Study::at) has it filled in.
    pub leaves_time_open: bool,
    /// How many times longer [`at`](Study::at) made the times of [run] and of rates than the study has them.
    pub stretch: f64,
    /// The published figures that `[reference]` names, with the study's own departures from them.
    pub reference: Option<ReferenceTable>,
    /// `[short]` has been applied.
    pub short: bool,
    /// The media that are files of the user's: each file's name as the study writes it, and its text.
    pub media_files: BTreeMap<String, String>,
    /// Notes on things that are no mistakes: data that fits in memory, say. May be empty.
    pub notes: Diagnostics,
}

/// `[machine]`: what each node of a system runs on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MachineSpec {
    pub cores: u32,
    /// To storage that is reached over the network, where that names no `link` of its own.
    pub network: Option<LinkSpec>,
}

/// `[fault.NAME]`
#[derive(Clone, Debug, PartialEq)]
pub struct FaultSpec {
    pub name: String,
    /// Modelled time from the beginning of what is measured; so is `duration`, without which it stays to the end.
    pub at: Duration,
    pub duration: Option<Duration>,
    /// All modelled storages when absent.
    pub storage: Option<String>,
    /// Which of the storage's devices, from 0; all when absent.
    pub device: Option<usize>,
    pub act: FaultAct,
}

#[derive(Clone, Debug, PartialEq)]
pub enum FaultAct {
    /// Its seed is 0, and an extent is unscaled.
    Device(DeviceFault),
    PowerCut {
        torn: bool,
        reordered: bool,
    },
}

/// `[event.NAME]`
#[derive(Clone, Debug, PartialEq)]
pub struct EventSpec {
    pub name: String,
    /// Modelled time from the beginning of what is measured.
    pub at: Duration,
    /// How long the node is away, in modelled time; without it, it stays away.
    pub duration: Option<Duration>,
    pub node: NodeChoice,
    pub how: NodeExit,
    /// All systems of several nodes when absent.
    pub system: Option<String>,
}

/// `[system.NAME]`
#[derive(Clone, Debug, PartialEq)]
pub struct SystemSpec {
    pub name: String,
    /// The system's own name, as `underlay_systems::find` takes it; the table's name unless `kind` says otherwise.
    pub kind: String,
    /// The budget of one server on the modelled machine, unscaled: the system's own memory and its page cache.
    pub memory_bytes: u64,
    /// The memory of its processes, independent of the data: not scaled, and part of the budget beside `memory_bytes`.
    pub fixed_memory_bytes: u64,
    /// Of each server, which are one system together.
    pub nodes: u32,
    /// Independent servers, each with its own storage and its share of data and load.
    pub servers: u32,
    /// Its data on a separate storage: the role, and the name of one of [`Study::role_storages`].
    pub roles: BTreeMap<String, String>,
    /// The system's own settings, accepted by its `check_settings`.
    pub settings: BTreeMap<String, String>,
}

/// `[storage.NAME]`
#[derive(Clone, Debug, PartialEq)]
pub struct StorageSpec {
    pub name: String,
    pub source: StorageSource,
    /// Each node of a system has these devices to itself; otherwise all nodes of a server share them.
    pub per_node: bool,
    /// How many sets of these devices a server has: 1 until a system is known, by [`under`](Self::under).
    pub nodes: u32,
    /// How far the kernel reads ahead on its block devices; as far as this host has it when absent. Not scaled:
    /// requests aren't.
    pub read_ahead_bytes: Option<u64>,
    /// Settings of the system on this storage, which replace the system's own.
    pub settings: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum StorageSource {
    /// Devices of the catalogue under a filesystem.
    Modelled {
        devices: Vec<DeviceSpec>,
        layout: StorageLayout,
        layers: VolumeLayers,
        initial: InitialState,
        filesystem: VolumeFilesystem,
    },
    /// A volume for each server, cut from a pool by a volume server and reached over a network.
    Volume(PoolVolume),
    /// Directories on storage that is really there, used as they are.
    Paths(Vec<PathBuf>),
    /// That of a cluster that runs already, in the study's words.
    Elsewhere(String),
}

/// `[pool.NAME]`: the devices of a volume server.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolSpec {
    pub name: String,
    pub devices: Vec<DeviceSpec>,
    pub initial: InitialState,
    /// The power of a device can be cut on command, which costs a copy of every block written.
    pub power_cut: bool,
}

/// Each server's volume of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolVolume {
    pub pool: PoolSpec,
    pub transport: VolumeTransport,
    /// Unscaled.
    pub capacity_bytes: u64,
    /// Done by the volume server.
    pub compress: Option<CompressionCodec>,
    /// Two copies, on two devices of the pool.
    pub mirror: bool,
    /// A network in modelled time, on top of the way that the bytes really take.
    pub link: Option<LinkSpec>,
    pub filesystem: VolumeFilesystem,
}

/// How a volume is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeTransport {
    NvmeTcp,
}

impl VolumeTransport {
    /// As a study writes it.
    pub fn name(self) -> &'static str {
        match self {
            VolumeTransport::NvmeTcp => "nvme-tcp",
        }
    }
}

/// One entry of `devices`: `count` equal ones.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceSpec {
    pub medium: CatalogueMedium,
    /// At least 1.
    pub count: u32,
    /// Unscaled; the medium's own capacity when absent.
    pub capacity_bytes: Option<u64>,
    /// How many directories each of them is shown as, under [`StorageLayout::Jbod`]; 1 under any other.
    pub directories: u32,
}

impl DeviceSpec {
    /// Unscaled, of each of these devices.
    pub(crate) fn capacities(&self) -> impl Iterator<Item = u64> + use<> {
        let capacity_bytes = self.capacity_bytes.unwrap_or(self.medium.capacity_bytes());
        std::iter::repeat_n(capacity_bytes, self.count as usize)
    }
}

/// How several devices become the directories that a system gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageLayout {
    /// One volume over all devices, which are equal.
    Stripe {
        /// Bytes on one device before the next: a power of two, at least 4096. Not scaled.
        chunk_bytes: u64,
    },
    /// One volume for each device, of one directory if the device does not say otherwise.
    Jbod,
    /// One volume that every device holds all of.
    Mirror,
    /// One volume, striped where there are several devices, shown as this many directories.
    Split { chunk_bytes: u64, directories: u32 },
}

/// The layers of each volume of a storage, from the devices up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VolumeLayers {
    pub cache: Option<Box<CacheSpec>>,
    pub compress: Option<CompressionCodec>,
    pub link: Option<LinkSpec>,
}

/// A cache on a separate, faster device.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheSpec {
    pub medium: CatalogueMedium,
    /// Unscaled.
    pub capacity_bytes: u64,
    pub mode: CacheMode,
}

/// A network between the storage and the system.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpec {
    /// Million bytes a second each way.
    pub bandwidth_mb_s: f64,
    /// One way.
    pub latency_us: f64,
}

/// A volume's use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeFilesystem {
    Xfs,
    Ext4,
    /// The system gets the block devices.
    None,
}

impl VolumeFilesystem {
    /// The one that is made; none on bare devices.
    pub fn made(self) -> Option<&'static str> {
        Some(self.name()).filter(|_| self != VolumeFilesystem::None)
    }

    /// `xfs`, `ext4` or `none`, as a study writes it.
    pub fn name(self) -> &'static str {
        match self {
            VolumeFilesystem::Xfs => "xfs",
            VolumeFilesystem::Ext4 => "ext4",
            VolumeFilesystem::None => "none",
        }
    }
}

/// `[workload.NAME]`: the product of its lists is what runs.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadSpec {
    pub name: String,
    /// Batch jobs instead of requests: everything below is then empty. Empty where it is requests.
    pub jobs: Vec<JobSpec>,
    /// A command of the user's instead of requests.
    pub benchmark: Option<BenchmarkSpec>,
    /// `load`, `a` to `f`, `delete`; never empty.
    pub mixes: Vec<String>,
    /// Request distributions; empty when each mix uses the one that YCSB gives it.
    pub distributions: Vec<String>,
    pub threads: Vec<u32>,
    pub rates: Vec<StudyRate>,
    /// How the operations of a rate follow one another.
    pub arrivals: ArrivalProcess,
    /// The background load.
    pub beside: Option<BesideSpec>,
    /// The rate is to be found; `rates` is [`StudyRate::Max`] then.
    pub find_rate: Option<FindRate>,
    pub sizes: Vec<DataSize>,
    /// Fields of a record, and bytes of one field.
    pub fields: u32,
    pub field_bytes: u32,
    /// CoreWorkload properties beyond those that have a key of their own.
    pub properties: BTreeMap<String, String>,
    /// The fields' labels, and their readers.
    pub visibility: Option<Visibility>,
    /// A regular expression: scans leave out, on the servers, what does not match.
    pub scan_filter: Option<String>,
    /// The share of the measured time after which the system has to compact everything.
    pub compact_at: Option<f64>,
}

/// `beside`: operations that go on beside the measured ones.
#[derive(Clone, Debug, PartialEq)]
pub struct BesideSpec {
    /// YCSB's, or shares of one's own by the name that spells them out.
    pub mix: String,
    pub threads: u32,
    /// Of all its threads, on the modelled machine; as many as the system answers when absent.
    pub rate_per_s: Option<f64>,
}

/// A batch job, which is a separate cell.
#[derive(Clone, Debug, PartialEq)]
pub struct JobSpec {
    /// One of the system's jobs.
    pub name: String,
    /// On the modelled machine, unscaled.
    pub data_bytes: u64,
    /// Tasks; the system's own choice when absent.
    pub maps: Option<u32>,
    pub reduces: Option<u32>,
    /// The share of generated values that repeats, 0 to 1.
    pub compressibility: f64,
    /// A job that takes longer has failed. Wall time of this machine, not scaled.
    pub limit: Duration,
}

/// A benchmark that is a command of the user's: one cell.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchmarkSpec {
    pub plan: BenchmarkPlan,
    /// The system's data, on the modelled machine, unscaled; 0 where the study names none.
    pub data_bytes: u64,
}

impl BenchmarkSpec {
    /// The text of fio's job file, where its kind is `fio`.
    pub fn fio_job(&self) -> Option<&str> {
        self.plan.job.as_deref().filter(|_| self.plan.figures == MetricSource::OfFio)
    }

    /// The plan on a machine that is slower by this factor.
    ///
    /// # Errors
    /// The option of fio's job that can't be slowed by it.
    pub fn plan_at(&self, time: f64) -> Result<BenchmarkPlan, String> {
        let Some(job) = self.fio_job() else { return Ok(self.plan.clone()) };
        let slowed =
            fio::slowed(job, time).map_err(|mistake| format!("{}: {}", mistake.message, mistake.expected))?;
        Ok(BenchmarkPlan { job: Some(slowed), ..self.plan.clone() })
    }
}

/// One size of the data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataSize {
    /// As the study writes it, `256 GB`; absent when it gave `records`.
    pub label: Option<String>,
    /// On the modelled machine, unscaled.
    pub records: u64,
}

/// `[run]`
#[derive(Clone, Debug, PartialEq)]
pub struct RunSettings {
    /// Wall time of this machine, not scaled; so is `duration`. The warm-up may be zero.
    pub warmup: Duration,
    /// How long a mix is measured.
    pub duration: Duration,
    pub repetitions: u32,
    pub seed: u64,
    pub cache: InitialCacheState,
    /// The way to attach modelled storages, by its name; the best that the host has when absent.
    pub attachment: Option<String>,
    /// How much of what is written may wait in memory for the devices of one storage of a server, all of them together,
    /// before writers are held back: on the modelled machine, unscaled. As this machine's kernel has it when absent.
    pub dirty_limit_bytes: Option<u64>,
    /// Whether every operation that is measured is written to a file beside its cell's record.
    pub raw: bool,
}

/// The caches' contents when a cell begins. Both begin with a fresh start of the system on dropped page caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialCacheState {
    /// Nothing: caches fill during the warm-up, at the device's pace.
    Cold,
    /// The result of a long run of the cell's own mix, in fast-forward.
    Warm,
}

impl Study {
    /// Whether all storages that it compares are, so that slow motion slows down each of them.
    pub fn is_modelled(&self) -> bool {
        self.storages.iter().all(StorageSpec::is_modelled)
    }

    /// The study with this factor of slow motion. If it was open, the warm-up, the duration, limits of jobs, and the
    /// lengths of rates and of a search's steps, which were modelled time until now, become as many times longer.
    pub fn with_slow_motion(&self, time: f64) -> Study {
        let mut study = Study { leaves_time_open: false, ..self.clone() };
        study.scale.time = time;
        if self.leaves_time_open {
            study.stretch = time;
            study.run.warmup = self.run.warmup.mul_f64(time);
            study.run.duration = self.run.duration.mul_f64(time);
            for wanted in study.workloads.iter_mut().filter_map(|workload| workload.find_rate.as_mut()) {
                wanted.step = wanted.step.map(|step| step.mul_f64(time));
            }
            for job in study.workloads.iter_mut().flat_map(|workload| &mut workload.jobs) {
                job.limit = job.limit.mul_f64(time);
            }
            for benchmark in study.workloads.iter_mut().filter_map(|workload| workload.benchmark.as_mut()) {
                benchmark.plan.limit = benchmark.plan.limit.mul_f64(time);
            }
            for rate in study.workloads.iter_mut().flat_map(|workload| &mut workload.rates) {
                if let StudyRate::Changing(changing) = rate {
                    changing.stretch(time);
                }
            }
        }
        study
    }

    /// The cores of all modelled machines that one system of the study has at a time: those of its largest one.
    pub fn modelled_cores(&self) -> Option<u32> {
        let machine = self.machine?;
        let nodes = self.systems.iter().map(|system| system.servers.saturating_mul(system.nodes)).max();
        Some(machine.cores.saturating_mul(nodes.unwrap_or(1)))
    }

    /// A size of the modelled machine on this one: `bytes / scale.data`, at least 1.
    pub fn bytes_here(&self, bytes: u64) -> u64 {
        scaled_down(bytes, self.scale.data)
    }

    /// Whether devices take longer here than they are modelled to, by the study or as the host will choose.
    pub(crate) fn is_slowed(&self) -> bool {
        self.leaves_time_open || self.scale.time > 1.0
    }

    /// The memory budget of a server of the system on this machine.
    pub fn budget_here(&self, system: &SystemSpec) -> u64 {
        system.budget_here(self.scale.data)
    }

    /// How many records of a cell's data set are stored on this machine: `records / scale.data`, at least 1.
    pub fn records_here(&self, records: u64) -> u64 {
        scaled_down(records, self.scale.data)
    }
}

impl SystemSpec {
    /// Settings with the number of nodes, as the system takes it, where there are several.
    pub(crate) fn with_nodes(&self, mut settings: BTreeMap<String, String>) -> BTreeMap<String, String> {
        if self.nodes > 1 {
            settings.insert("nodes".to_owned(), self.nodes.to_string());
        }
        settings
    }

    /// Its nodes that can go away and come back one by one; none where its kind is not known.
    pub fn planned_nodes(&self) -> Vec<PlannedNode> {
        let kind = underlay_systems::find(&self.kind);
        kind.map_or_else(Vec::new, |kind| kind.planned_nodes(&self.with_nodes(self.settings.clone())))
    }

    /// One server's share of something that is asked of all of them together.
    pub fn share(&self, amount: u64) -> u64 {
        amount / u64::from(self.servers.max(1))
    }

    /// The memory budget of a server on this machine.
    pub(super) fn budget_here(&self, data_scale: f64) -> u64 {
        scaled_down(self.memory_bytes, data_scale).saturating_add(self.fixed_memory_bytes)
    }
}

impl EventSpec {
    /// Whether it is for this system, or for all.
    pub fn concerns(&self, system: &str) -> bool {
        self.system.as_deref().is_none_or(|name| name == system)
    }

    /// Whether its node is planned to be away then.
    pub(super) fn is_under_way_at(&self, time: Duration) -> bool {
        time >= self.at && self.duration.is_none_or(|length| time < self.at.saturating_add(length))
    }
}

impl FaultSpec {
    /// Whether it is for this storage, or for all.
    pub fn concerns(&self, storage: &str) -> bool {
        self.storage.as_deref().is_none_or(|name| name == storage)
    }

    /// Whether devices must be able to lose writes for it.
    pub fn needs_arming(&self) -> bool {
        matches!(self.act, FaultAct::PowerCut { .. } | FaultAct::Device(DeviceFault::IgnoreFlushes))
    }

    /// From the beginning of what is measured; absent when it stays.
    pub fn ends(&self) -> Option<Duration> {
        self.duration.map(|duration| self.at + duration)
    }
}

impl StorageSpec {
    /// Whether programs may address it in sectors of 512 bytes. Nothing of storage that is really there.
    pub fn has_small_sectors(&self) -> Option<bool> {
        match &self.source {
            StorageSource::Modelled { devices, layers, .. } => {
                let cache = layers.cache.iter().map(|cache| &cache.medium);
                let mut media = devices.iter().map(|device| &device.medium).chain(cache);
                Some(layers.compress.is_none() && media.all(CatalogueMedium::has_small_sectors))
            }
            StorageSource::Volume(_) => Some(false),
            StorageSource::Paths(_) | StorageSource::Elsewhere(_) => None,
        }
    }

    /// The storage of a server of this system: of all its nodes where each has devices to itself.
    pub(crate) fn under(&self, system: &SystemSpec) -> StorageSpec {
        let nodes = if self.per_node { system.nodes.max(1) } else { 1 };
        StorageSpec { nodes, ..self.clone() }
    }

    /// Whether its devices are models, so that time and faults can be commanded.
    pub fn is_modelled(&self) -> bool {
        !matches!(self.source, StorageSource::Paths(_) | StorageSource::Elsewhere(_))
    }

    /// The entries of its modelled devices, of one node where each has its own; of a volume those of its pool.
    pub(crate) fn devices(&self) -> &[DeviceSpec] {
        match &self.source {
            StorageSource::Modelled { devices, .. } => devices,
            StorageSource::Volume(volume) => &volume.pool.devices,
            StorageSource::Paths(_) | StorageSource::Elsewhere(_) => &[],
        }
    }

    /// Unscaled, of each modelled device of its entries, and of the cache in front of them.
    pub(crate) fn device_capacities(&self) -> impl Iterator<Item = u64> + '_ {
        let cache = match &self.source {
            StorageSource::Modelled { layers, .. } => layers.cache.as_ref(),
            _ => None,
        };
        let of_cache = cache.map(|cache| cache.capacity_bytes);
        self.devices().iter().flat_map(DeviceSpec::capacities).chain(of_cache)
    }

    /// Whether it is under a cluster that is already running, and not attached by the study.
    pub fn is_elsewhere(&self) -> bool {
        matches!(self.source, StorageSource::Elsewhere(_))
    }

    /// How many copies of each record a system stores here.
    pub(crate) fn copies_of(&self, system: &SystemSpec) -> u64 {
        let kind = underlay_systems::find(&system.kind);
        kind.map_or(1, |kind| kind.copies(&system.with_nodes(self.settings_of(system)))).max(1)
    }

    /// The settings of a system on this storage.
    pub fn settings_of(&self, system: &SystemSpec) -> BTreeMap<String, String> {
        let mut settings = system.settings.clone();
        settings.extend(self.settings.iter().map(|(key, value)| (key.clone(), value.clone())));
        settings
    }
}

impl WorkloadSpec {
    /// Bytes of one record with its key, by the study's own words: `KEY_BYTES + fields x field_bytes`. Properties
    /// that draw field lengths or pad keys are not taken into account.
    pub fn record_bytes(&self) -> u64 {
        KEY_BYTES + u64::from(self.fields) * u64::from(self.field_bytes)
    }

    /// Whether a `load` mix makes loading itself a measurement; otherwise it may be fast-forwarded.
    pub fn measures_loading(&self) -> bool {
        self.mixes.iter().any(|mix| mix == "load")
    }
}

pub(super) fn scaled_down(amount: u64, factor: f64) -> u64 {
    ((amount as f64 / factor).round() as u64).max(1)
}

#[cfg(test)]
mod tests {
    use underlay_workload::CoreWorkload;

    use super::*;

    #[test]
    fn keys_are_as_long_as_the_generator_makes_them() {
        let workload = CoreWorkload::new(1_000_000, 10, 100);
        assert_eq!(workload.record_bytes(), (KEY_BYTES + 10 * 100) as f64);
    }
}
