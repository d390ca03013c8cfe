//! A study as data: what its TOML says, checked, with every default filled in.
//!
//! Sizes, rates and record counts here are those of the *modelled* machine, as in the study. They are not divided by
//! the data scale or the time scale yet. [`Study::bytes_here`] and [`Study::records_here`] do that. `warmup`,
//! `duration` and the lengths within them are the exception: they are wall time of this machine, because the user's
//! patience is not scaled. Only a study that leaves the slow-motion factor open has modelled time there too, as its
//! wall time is still unknown; [`Study::at`] converts it to wall time.

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
    /// The command line's overrides of the text: `scale.data=100`.
    pub overrides: Vec<String>,
    /// The name of the storage configuration that ratios refer to; always one of `storages`.
    pub baseline: String,
    /// In file order, never empty; so are the next two.
    pub systems: Vec<SystemSpec>,
    pub storages: Vec<StorageSpec>,
    /// Storage configurations that roles of a system name. They are used in every cell of it, and not compared
    /// themselves.
    pub role_storages: Vec<StorageSpec>,
    pub workloads: Vec<WorkloadSpec>,
    /// Faults in a measured cell; may be empty.
    pub faults: Vec<FaultSpec>,
    /// Nodes that go down while a cell is measured; may be empty.
    pub events: Vec<EventSpec>,
    /// The modelled machine; without it, a system uses the CPUs that this host has.
    pub machine: Option<MachineSpec>,
    pub run: RunSettings,
    pub scale: ScaleFactors,
    /// This host chooses the slow-motion factor; [`at`](Study::at) fills it in.
    pub leaves_time_open: bool,
    /// The factor by which [`at`](Study::at) lengthened the times of [run] and of rates.
    pub stretch: f64,
    /// The published figures that `[reference]` names, with the study's own differences from the paper.
    pub reference: Option<ReferenceTable>,
    /// `[short]` has been applied.
    pub short: bool,
    /// The media in the user's files: each file's name as written in the study, and its text.
    pub media_files: BTreeMap<String, String>,
    /// Notes on things that are no mistakes, such as data that fits in memory. May be empty.
    pub notes: Diagnostics,
}

/// `[machine]`: what each node of a system runs on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MachineSpec {
    pub cores: u32,
    /// The network to remote storage that has no `link` of its own.
    pub network: Option<LinkSpec>,
}

/// `[fault.NAME]`
#[derive(Clone, Debug, PartialEq)]
pub struct FaultSpec {
    pub name: String,
    /// Modelled time from the beginning of the measurement; so is `duration`. Without it, the fault stays to the end.
    pub at: Duration,
    pub duration: Option<Duration>,
    /// All modelled storage configurations when absent.
    pub storage: Option<String>,
    /// Which of the storage configuration's devices, from 0; all when absent.
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
    /// Modelled time from the beginning of the measurement.
    pub at: Duration,
    /// How long the node is down, in modelled time; without it, it stays down.
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
    /// The system's own name, as for `underlay_systems::find`; the table's name unless `kind` says otherwise.
    pub kind: String,
    /// The budget of one server on the modelled machine, unscaled: the system's own memory and its page cache.
    pub memory_bytes: u64,
    /// The memory of its processes, independent of the data: not scaled, and part of the budget in addition to
    /// `memory_bytes`.
    pub fixed_memory_bytes: u64,
    /// The nodes of each server, which form one system.
    pub nodes: u32,
    /// Independent servers, each with its own storage and its share of data and load.
    pub servers: u32,
    /// Its data on separate storage: the role, and the name of one of [`Study::role_storages`].
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
    /// The number of sets of these devices per server: 1 until [`under`](Self::under) is called with a system.
    pub nodes: u32,
    /// The kernel's read-ahead on its block devices; this host's default when absent. Not scaled, since requests
    /// aren't.
    pub read_ahead_bytes: Option<u64>,
    /// Settings of the system on this storage configuration, which replace the system's own.
    pub settings: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum StorageSource {
    /// Devices of the catalogue under a file system.
    Modelled {
        devices: Vec<DeviceSpec>,
        layout: StorageLayout,
        layers: VolumeLayers,
        initial: InitialState,
        filesystem: VolumeFilesystem,
    },
    /// A volume for each server, cut from a pool by a volume server and reached over a network.
    Volume(PoolVolume),
    /// Directories on real storage, used as they are.
    Paths(Vec<PathBuf>),
    /// The storage of an external cluster, in the study's words.
    Elsewhere(String),
}

/// `[pool.NAME]`: the devices of a volume server.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolSpec {
    pub name: String,
    pub devices: Vec<DeviceSpec>,
    pub initial: InitialState,
    /// The power of a device can be cut on command, which costs a copy of every written block.
    pub power_cut: bool,
}

/// Each server's volume of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolVolume {
    pub pool: PoolSpec,
    pub transport: VolumeTransport,
    /// Unscaled.
    pub capacity_bytes: u64,
    /// The volume server compresses.
    pub compress: Option<CompressionCodec>,
    /// Two copies on two devices of the pool.
    pub mirror: bool,
    /// A network in modelled time, on top of the actual path of the bytes.
    pub link: Option<LinkSpec>,
    pub filesystem: VolumeFilesystem,
}

/// How a volume is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeTransport {
    NvmeTcp,
}

impl VolumeTransport {
    /// The name in a study.
    pub fn name(self) -> &'static str {
        match self {
            VolumeTransport::NvmeTcp => "nvme-tcp",
        }
    }
}

/// One entry of `devices`: `count` equal devices.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceSpec {
    pub medium: CatalogueMedium,
    /// At least 1.
    pub count: u32,
    /// Unscaled; the medium's own capacity when absent.
    pub capacity_bytes: Option<u64>,
    /// The number of directories on each of them, under [`StorageLayout::Jbod`]; 1 under any other.
    pub directories: u32,
}

impl DeviceSpec {
    /// The unscaled capacity of each of these devices.
    pub(crate) fn capacities(&self) -> impl Iterator<Item = u64> + use<> {
        let capacity_bytes = self.capacity_bytes.unwrap_or(self.medium.capacity_bytes());
        std::iter::repeat_n(capacity_bytes, self.count as usize)
    }
}

/// How several devices become the directories of a system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageLayout {
    /// One volume over all devices, which are equal.
    Stripe {
        /// Bytes on one device before the next: a power of two, at least 4096. Not scaled.
        chunk_bytes: u64,
    },
    /// One volume per device, with one directory unless the device says otherwise.
    Jbod,
    /// One volume, held in full by every device.
    Mirror,
    /// One volume, striped where there are several devices, shown as this many directories.
    Split { chunk_bytes: u64, directories: u32 },
}

/// The layers of each volume of a storage configuration, from the devices up.
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
    /// Million bytes per second in each direction.
    pub bandwidth_mb_s: f64,
    /// In one direction.
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
    /// The file system that is created; none on bare devices.
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

/// `[workload.NAME]`: the product of its lists runs.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadSpec {
    pub name: String,
    /// Batch jobs instead of requests: everything below is then empty. Empty for requests.
    pub jobs: Vec<JobSpec>,
    /// A user's command instead of requests.
    pub benchmark: Option<BenchmarkSpec>,
    /// `load`, `a` to `f`, `delete`; never empty.
    pub mixes: Vec<String>,
    /// Request distributions; empty when each mix uses its YCSB default.
    pub distributions: Vec<String>,
    pub threads: Vec<u32>,
    pub rates: Vec<StudyRate>,
    /// The arrival process of operations at a rate.
    pub arrivals: ArrivalProcess,
    /// The background load.
    pub beside: Option<BesideSpec>,
    /// The rate is searched for; `rates` is then [`StudyRate::Max`].
    pub find_rate: Option<FindRate>,
    pub sizes: Vec<DataSize>,
    /// Fields of a record, and bytes of one field.
    pub fields: u32,
    pub field_bytes: u32,
    /// CoreWorkload properties without a key of their own.
    pub properties: BTreeMap<String, String>,
    /// The fields' labels, and their readers.
    pub visibility: Option<Visibility>,
    /// A regular expression: servers leave records that do not match out of scans.
    pub scan_filter: Option<String>,
    /// The share of the measured time after which the system must compact everything.
    pub compact_at: Option<f64>,
}

/// `beside`: the background load next to the measured operations.
#[derive(Clone, Debug, PartialEq)]
pub struct BesideSpec {
    /// A YCSB mix, or custom shares under the name that spells them out.
    pub mix: String,
    pub threads: u32,
    /// The rate of all its threads on the modelled machine; as fast as the system answers when absent.
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

/// A benchmark in the form of a user's command: one cell.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchmarkSpec {
    pub plan: BenchmarkPlan,
    /// The system's data on the modelled machine, unscaled; 0 where the study names none.
    pub data_bytes: u64,
}

impl BenchmarkSpec {
    /// The text of fio's job file, where its kind is `fio`.
    pub fn fio_job(&self) -> Option<&str> {
        self.plan.job.as_deref().filter(|_| self.plan.figures == MetricSource::OfFio)
    }

    /// The plan for a machine that is slower by this factor.
    ///
    /// # Errors
    /// The option of the fio job that can't be slowed down by it.
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
    /// As written in the study, `256 GB`; absent when it gave `records`.
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
    /// The attachment of modelled storage, by its name; the best one on the host when absent.
    pub attachment: Option<String>,
    /// How much written data may wait in memory for all devices of one storage of a server before writers are held
    /// back. On the modelled machine, unscaled. The kernel's default on this machine when absent.
    pub dirty_limit_bytes: Option<u64>,
    /// Whether every measured operation is written to a file next to its cell's record.
    pub raw: bool,
}

/// The caches' contents when a cell begins. In both cases the system starts anew with a dropped page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialCacheState {
    /// Empty: caches fill during the warm-up, at the device's pace.
    Cold,
    /// The result of a long run of the cell's own mix, in fast-forward.
    Warm,
}

impl Study {
    /// Whether all compared storage configurations are modelled, so that slow motion slows down each of them.
    pub fn is_modelled(&self) -> bool {
        self.storages.iter().all(StorageSpec::is_modelled)
    }

    /// The study with this slow-motion factor. If it was open, the warm-up, the duration, limits of jobs, and the
    /// lengths of rates and search steps were modelled time until now; this multiplies them by the factor.
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

    /// The cores of all modelled machines that one system of the study uses at a time, for the largest system.
    pub fn modelled_cores(&self) -> Option<u32> {
        let machine = self.machine?;
        let nodes = self.systems.iter().map(|system| system.servers.saturating_mul(system.nodes)).max();
        Some(machine.cores.saturating_mul(nodes.unwrap_or(1)))
    }

    /// A size of the modelled machine, scaled to this one: `bytes / scale.data`, at least 1.
    pub fn bytes_here(&self, bytes: u64) -> u64 {
        scaled_down(bytes, self.scale.data)
    }

    /// Whether devices take longer here than modelled, because of the study or of the factor that the host will choose.
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
    /// Settings with the number of nodes, in the form that the system expects, where there are several.
    pub(crate) fn with_nodes(&self, mut settings: BTreeMap<String, String>) -> BTreeMap<String, String> {
        if self.nodes > 1 {
            settings.insert("nodes".to_owned(), self.nodes.to_string());
        }
        settings
    }

    /// Its nodes that can go down and come back one by one; none where its kind is unknown.
    pub fn planned_nodes(&self) -> Vec<PlannedNode> {
        let kind = underlay_systems::find(&self.kind);
        kind.map_or_else(Vec::new, |kind| kind.planned_nodes(&self.with_nodes(self.settings.clone())))
    }

    /// One server's share of an amount for all servers together.
    pub fn share(&self, amount: u64) -> u64 {
        amount / u64::from(self.servers.max(1))
    }

    /// The memory budget of a server on this machine.
    pub(super) fn budget_here(&self, data_scale: f64) -> u64 {
        scaled_down(self.memory_bytes, data_scale).saturating_add(self.fixed_memory_bytes)
    }
}

impl EventSpec {
    /// Whether it applies to this system, or to all.
    pub fn concerns(&self, system: &str) -> bool {
        self.system.as_deref().is_none_or(|name| name == system)
    }

    /// Whether its node is planned to be down at this time.
    pub(super) fn is_under_way_at(&self, time: Duration) -> bool {
        time >= self.at && self.duration.is_none_or(|length| time < self.at.saturating_add(length))
    }
}

impl FaultSpec {
    /// Whether it applies to this storage configuration, or to all.
    pub fn concerns(&self, storage: &str) -> bool {
        self.storage.as_deref().is_none_or(|name| name == storage)
    }

    /// Whether it requires devices that can lose writes.
    pub fn needs_arming(&self) -> bool {
        matches!(self.act, FaultAct::PowerCut { .. } | FaultAct::Device(DeviceFault::IgnoreFlushes))
    }

    /// From the beginning of the measurement; absent when it stays.
    pub fn ends(&self) -> Option<Duration> {
        self.duration.map(|duration| self.at + duration)
    }
}

impl StorageSpec {
    /// Whether programs may address it in sectors of 512 bytes. None for real storage.
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

    /// The storage of a server of this system: that of all its nodes where each has its own devices.
    pub(crate) fn under(&self, system: &SystemSpec) -> StorageSpec {
        let nodes = if self.per_node { system.nodes.max(1) } else { 1 };
        StorageSpec { nodes, ..self.clone() }
    }

    /// Whether its devices are models, so that time and faults can be commanded.
    pub fn is_modelled(&self) -> bool {
        !matches!(self.source, StorageSource::Paths(_) | StorageSource::Elsewhere(_))
    }

    /// The entries of its modelled devices, for one node where each has its own. For a volume, those of its pool.
    pub(crate) fn devices(&self) -> &[DeviceSpec] {
        match &self.source {
            StorageSource::Modelled { devices, .. } => devices,
            StorageSource::Volume(volume) => &volume.pool.devices,
            StorageSource::Paths(_) | StorageSource::Elsewhere(_) => &[],
        }
    }

    /// The unscaled capacity of each modelled device of its entries, and of the cache in front of them.
    pub(crate) fn device_capacities(&self) -> impl Iterator<Item = u64> + '_ {
        let cache = match &self.source {
            StorageSource::Modelled { layers, .. } => layers.cache.as_ref(),
            _ => None,
        };
        let of_cache = cache.map(|cache| cache.capacity_bytes);
        self.devices().iter().flat_map(DeviceSpec::capacities).chain(of_cache)
    }

    /// Whether it belongs to an external cluster and is not attached by the study.
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
    /// Bytes of one record with its key, according to the study: `KEY_BYTES + fields x field_bytes`. Properties that
    /// draw field lengths or pad keys are not taken into account.
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
