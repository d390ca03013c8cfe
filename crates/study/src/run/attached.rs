//! The storage of a cell's servers: one attached instance each, with the process that serves it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use underlay_attach::{AttachError, AttachedStorage, Processors, ResourceRegistry, choice};
use underlay_files::{Access, Folder};
use underlay_record::{
    DeviceActivity, DeviceGlance, DirtyLimitRecord, Histogram, LayerActivity, NetworkRecord, PathRecord,
};
use underlay_storage::stack::PacingMode;
use underlay_systems::system::{NodePaths, StoragePaths};

use super::cell_plan::CellPlan;
use super::interruptible::unless_stopped;
use super::prepared::{InitialData, PreparedDataset, copy_onto_paths};
use super::storage::{self, attach_paths, attach_spec, image_files, stack as stack_of};
use super::volume_server::{self, VolumeServer};
use super::{CellError, faults, images};
use crate::spec::{FaultSpec, PoolVolume, StorageSource, StorageSpec};

/// The storage of all servers of a cell. Dropping it detaches it.
pub(super) struct CellStorages {
    /// One per server. Dropped before the process that serves it.
    servers: Vec<AttachedStorage>,
    /// The number of nodes of a server that have equal, separate parts of its storage; 1 where all share it.
    nodes: usize,
    /// The storages of the system's roles, server by server.
    roles: Vec<StorageRole>,
    pool: Option<ServedPool>,
    dirty_limits: Vec<DirtyLimitRecord>,
}

/// The storage that one server has for a part of its data.
struct StorageRole {
    server: usize,
    name: String,
    attached: AttachedStorage,
}

/// The pool that serves volumes.
struct ServedPool {
    server: VolumeServer,
    volume: PoolVolume,
    time_scale: f64,
}

impl CellStorages {
    /// Attaches storage for each server, with the data of `source`, or fresh and empty without it. The study's limit of
    /// dirty pages applies from then on.
    pub(super) fn attach(
        plan: &CellPlan<'_>,
        source: Option<&PreparedDataset>,
        folder: &Path,
        registry: &ResourceRegistry,
    ) -> Result<CellStorages, CellError> {
        let mut storages = CellStorages::attach_all(plan, source, folder, registry)?;
        if let Some(limit_bytes) = plan.study.run.dirty_limit_bytes {
            storages.limit_dirty(plan, plan.study.bytes_here(limit_bytes), registry)?;
        }
        storages.set_read_ahead(plan, registry)?;
        Ok(storages)
    }

    fn attach_all(
        plan: &CellPlan<'_>,
        source: Option<&PreparedDataset>,
        folder: &Path,
        registry: &ResourceRegistry,
    ) -> Result<CellStorages, CellError> {
        let server_folder = |server: u32| -> Result<PathBuf, CellError> {
            let folder = folder.join(format!("server-{server}"));
            fs::create_dir_all(&folder)?;
            Ok(folder)
        };
        let nodes = plan.storage.nodes.max(1) as usize;
        let mut storages = CellStorages {
            servers: Vec::new(),
            nodes,
            roles: Vec::new(),
            pool: None,
            dirty_limits: Vec::new(),
        };
        for server in 0..plan.system.servers {
            for (role, storage) in plan.roles() {
                let folder = server_folder(server)?.join(role);
                fs::create_dir_all(&folder)?;
                let prepared = source.and_then(|source| source.roles.get(role)).map(PathBuf::as_path);
                let attached =
                    attach_devices(plan, storage, prepared.map(InitialContent::Images), &folder, registry)?;
                storages.roles.push(StorageRole { server: server as usize, name: role.to_owned(), attached });
            }
        }
        // An external cluster already has its storage. Only roles can be attached for it.
        if plan.storage.is_elsewhere() {
            return Ok(storages);
        }
        let StorageSource::Volume(volume) = &plan.storage.source else {
            for server in 0..plan.system.servers {
                let folder = server_folder(server)?;
                let prepared = source.map(|source| match &source.data {
                    InitialData::Images(images) => InitialContent::Images(images),
                    InitialData::Trees(trees) => InitialContent::Trees(trees),
                });
                storages.servers.push(attach_devices(plan, &plan.storage, prepared, &folder, registry)?);
            }
            return Ok(storages);
        };
        let pool_folder = folder.join("pool");
        let devices = volume_server::devices_folder(&pool_folder);
        Folder::make(&devices, Access::Private)?;
        if let Some(InitialData::Images(prepared)) = source.map(|source| &source.data) {
            // Before the server starts, since it opens the devices that it finds here.
            images::clone_folder(&volume_server::devices_folder(prepared), &devices)?;
        }
        let server = VolumeServer::start(plan, &pool_folder)?;
        storages.pool = Some(ServedPool { server, volume: volume.clone(), time_scale: plan.scale.time });
        for server in 0..plan.system.servers {
            // The server already belongs to `storages`, so a failed attachment drops it too.
            let way = storages.pool.as_ref().expect("made just now").server.volume(server);
            let stack = storage::stack_of_volume(&plan.storage, way, plan.scale.time, plan.seed);
            let mount_root = server_folder(server)?.join("mnt");
            let spec = storage::attach_spec(&plan.storage, stack, &mount_root, source.is_none());
            let attachment = choice::choose_for(&spec.stack, plan.study.run.attachment.as_deref())?;
            storages.servers.push(attachment.attach(&spec, registry)?);
        }
        Ok(storages)
    }

    /// Each storage of a server, or of one of its nodes, gets the whole limit, which its devices share.
    fn limit_dirty(
        &mut self,
        plan: &CellPlan<'_>,
        limit_bytes: u64,
        registry: &ResourceRegistry,
    ) -> Result<(), CellError> {
        let name_of = |role: &str| {
            let found = plan.roles().into_iter().find(|(name, _)| *name == role);
            found.map_or_else(|| role.to_owned(), |(_, storage)| storage.name.clone())
        };
        // Each node has its own memory.
        let of_nodes_bytes = limit_bytes.saturating_mul(self.nodes as u64);
        let compared =
            self.servers.iter_mut().map(|attached| (plan.storage.name.clone(), of_nodes_bytes, attached));
        let roles = self.roles.iter_mut().map(|role| (name_of(&role.name), limit_bytes, &mut role.attached));
        for (storage, limit_bytes, attached) in compared.chain(roles) {
            let unset = DirtyLimitRecord { storage, device_bytes: None, devices: 0, reason: None };
            let limit = match attached.limit_dirty(limit_bytes, registry) {
                Ok(set) => {
                    DirtyLimitRecord { device_bytes: Some(set.device_bytes), devices: set.devices, ..unset }
                }
                Err(AttachError::Missing(missing)) => {
                    DirtyLimitRecord { reason: Some(missing.to_string()), ..unset }
                }
                Err(other) => return Err(other.into()),
            };
            // All servers have equal storage.
            if !self.dirty_limits.iter().any(|earlier| earlier.storage == limit.storage) {
                self.dirty_limits.push(limit);
            }
        }
        if plan.storage.is_elsewhere() {
            self.dirty_limits.push(DirtyLimitRecord {
                storage: plan.storage.name.clone(),
                device_bytes: None,
                devices: 0,
                reason: Some("it is under a cluster that is already running".to_owned()),
            });
        }
        Ok(())
    }

    /// Sets the kernel's read-ahead where the storage configuration asks for it. A host that can't set it can't measure
    /// its effect.
    fn set_read_ahead(&mut self, plan: &CellPlan<'_>, registry: &ResourceRegistry) -> Result<(), CellError> {
        if let Some(bytes) = plan.storage.read_ahead_bytes {
            for attached in &mut self.servers {
                attached.read_ahead(bytes, registry)?;
            }
        }
        let roles = plan.roles();
        for role in &mut self.roles {
            let storage = roles.iter().find(|(name, _)| *name == role.name).map(|(_, storage)| storage);
            if let Some(bytes) = storage.and_then(|storage| storage.read_ahead_bytes) {
                role.attached.read_ahead(bytes, registry)?;
            }
        }
        Ok(())
    }

    /// The effective limits of dirty pages, one per storage; empty without a limit in the study.
    pub(super) fn dirty_limits(&self) -> &[DirtyLimitRecord] {
        &self.dirty_limits
    }

    /// One per server, in order; empty for an external cluster.
    pub(super) fn servers(&self) -> &[AttachedStorage] {
        &self.servers
    }

    /// The directories of one server's roles.
    fn roles_of(&self, server: usize) -> BTreeMap<String, PathBuf> {
        let own = self.roles.iter().filter(|role| role.server == server);
        own.map(|role| (role.name.clone(), role.attached.paths()[0].clone())).collect()
    }

    /// The directories of roles: server, role and paths.
    pub(super) fn directories_of_roles(&self) -> impl Iterator<Item = (usize, &str, &[PathBuf])> {
        self.roles.iter().map(|role| (role.server, role.name.as_str(), role.attached.paths()))
    }

    /// A server's data directories, and its scratch directory.
    pub(super) fn paths_of(&self, server: usize, scratch: PathBuf) -> StoragePaths {
        let attached = self.servers.get(server);
        let data = attached.map_or_else(Vec::new, |attached| attached.paths().to_vec());
        let (data, further_nodes) = split_by_node(&data, self.nodes);
        StoragePaths { data, roles: self.roles_of(server), further_nodes, scratch }
    }

    /// All directories that servers were given.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        self.all().flat_map(|attached| attached.paths().to_vec()).collect()
    }

    /// Writes dirty pages from the page cache to the file systems and the bare devices.
    pub(super) fn write_out(&self) -> Result<(), CellError> {
        let write_out = |path: &PathBuf| -> std::io::Result<()> {
            let opened = File::open(path)?;
            match opened.metadata()?.file_type().is_block_device() {
                true => opened.sync_all(),
                false => Ok(rustix::fs::syncfs(&opened)?),
            }
        };
        for attached in self.all() {
            attached.run_with_watchdog(|| attached.paths().iter().try_for_each(write_out))?;
        }
        Ok(())
    }

    fn all(&self) -> impl Iterator<Item = &AttachedStorage> {
        self.servers.iter().chain(self.roles.iter().map(|role| &role.attached))
    }

    /// The attachment's name.
    pub(super) fn name(&self) -> &'static str {
        self.servers.first().map_or("none", AttachedStorage::name)
    }

    pub(super) fn set_pace(&self, pace: PacingMode) -> Result<(), CellError> {
        if let Some(pool) = &self.pool {
            pool.server.set_pace(pace)?;
        }
        for attached in self.all() {
            attached.set_pace(pace)?;
        }
        Ok(())
    }

    pub(super) fn begin_measurement(&self, interval_s: f64) -> Result<(), CellError> {
        if let Some(pool) = &self.pool {
            pool.server.begin_measurement(interval_s)?;
        }
        for attached in self.all() {
            attached.begin_measurement(interval_s)?;
        }
        Ok(())
    }

    /// The faults since the devices were attached that may show in their data, in words. Counting them ends here.
    pub(super) fn faults_in_data(&self) -> Result<Vec<String>, CellError> {
        let without_pool = self.servers.iter().filter(|_| self.pool.is_none());
        without_pool.chain(self.roles.iter().map(|role| &role.attached)).try_for_each(faults::end_all)?;
        // Faults that have ended count as earlier from here on. This shows whether they only slowed a device.
        self.begin_measurement(faults::UNSAMPLED_S)?;
        Ok(faults::faults_in_data(&self.end_measurement()?.0))
    }

    /// The activity of every device, in the order of [`storage::describe`], and of the network where there is one.
    pub(super) fn end_measurement(&self) -> Result<(Vec<DeviceActivity>, Option<NetworkRecord>), CellError> {
        let mut seen = Vec::new();
        for attached in &self.servers {
            seen.extend(attached.end_measurement()?);
        }
        let (mut devices, network) = match &self.pool {
            None => (seen, None),
            Some(pool) => {
                let (devices, cores) = pool.server.end_measurement()?;
                let layers = self.layers_of_servers()?;
                let network = pool.network(&seen, &devices, &layers, cores, self.name());
                (devices, Some(network))
            }
        };
        for role in &self.roles {
            devices.extend(role.attached.end_measurement()?);
        }
        Ok((devices, network))
    }

    /// The state of every device, under its name in records, and of every layer; counting continues. It uses its own
    /// connections, so that a late answer does not disturb any connection of the measurement.
    pub(super) fn glance(
        &self,
        plan: &CellPlan<'_>,
    ) -> Result<(Vec<DeviceGlance>, Vec<LayerActivity>), CellError> {
        let mut layers = Vec::new();
        let mut seen = match &self.pool {
            Some(pool) => {
                let (devices, volumes) = pool.server.glance()?;
                layers.extend(volumes);
                devices
            }
            None => {
                let of_each = self.servers.iter().map(watched).collect::<Result<Vec<_>, _>>()?;
                for (server, (_, of_server)) in of_each.iter().enumerate() {
                    layers.extend(of_server.iter().cloned().map(|layer| LayerActivity {
                        server: storage::server_number(server, self.servers.len()),
                        ..layer
                    }));
                }
                of_each.into_iter().flat_map(|(devices, _)| devices).collect()
            }
        };
        for role in &self.roles {
            seen.extend(watched(&role.attached)?.0);
        }
        let described = storage::describe(&plan.storage, &plan.roles(), plan.system.servers, self.name());
        if described.devices.len() == seen.len() {
            for (one, device) in seen.iter_mut().zip(described.devices) {
                one.id = device.id;
            }
        }
        Ok((seen, layers))
    }

    /// Adds to the devices' activity how well the data about their media support it; devices of a pool have none.
    /// Called after all measurements, since it takes the daemons a moment. `stop` ends it.
    pub(super) fn add_inputs(
        &self,
        devices: &mut [DeviceActivity],
        stop: &AtomicBool,
    ) -> Result<(), CellError> {
        // In the order of `end_measurement`.
        let mut rest = devices.iter_mut();
        for attached in self.all() {
            let served_inputs = match attached.served() {
                Some(served) => unless_stopped(stop, move || served.inputs(INPUTS_LIMIT)),
                None => Some(attached.inputs()),
            };
            let Some(served_inputs) = served_inputs else { return Ok(()) };
            for (name, inputs) in served_inputs? {
                if let Some(device) = rest.find(|device| device.description.id.name == name) {
                    device.inputs = Some(inputs);
                }
            }
        }
        Ok(())
    }

    /// Sets the CPUs that the system runs on.
    pub(super) fn watch_for_programs_on(&self, cpus: &Processors) {
        let roles = self.roles.iter().map(|role| &role.attached);
        self.servers.iter().chain(roles).for_each(|attached| attached.watch_for_programs_on(cpus));
    }

    /// Programs' waits on the path to each volume in the finished measurement, those of roles last.
    pub(super) fn path_records(&self) -> Vec<PathRecord> {
        let records_of = |attached: &AttachedStorage, server: usize, role: Option<&String>| {
            let server = storage::server_number(server, self.servers.len().max(1));
            let mut paths = attached.path_records();
            for path in &mut paths {
                (path.id.server, path.id.role) = (server, role.cloned());
            }
            paths
        };
        let servers = self.servers.iter().enumerate();
        let roles = self.roles.iter();
        servers
            .flat_map(|(server, attached)| records_of(attached, server, None))
            .chain(roles.flat_map(|role| records_of(&role.attached, role.server, Some(&role.name))))
            .collect()
    }

    pub(super) fn layers(&self) -> Result<Vec<LayerActivity>, CellError> {
        let mut layers = self.layers_of_servers()?;
        if let Some(pool) = &self.pool {
            layers.extend(pool.server.volumes()?);
        }
        Ok(layers)
    }

    fn layers_of_servers(&self) -> Result<Vec<LayerActivity>, CellError> {
        let mut layers = Vec::new();
        for (server, attached) in self.servers.iter().enumerate() {
            layers.extend(attached.layers()?.into_iter().map(|layer| LayerActivity {
                server: storage::server_number(server, self.servers.len()),
                ..layer
            }));
        }
        Ok(layers)
    }

    /// `Err` when one of them can no longer be used.
    pub(super) fn health(&self) -> Result<(), CellError> {
        // First the cause, then its possible effect.
        if let Some(pool) = &self.pool {
            pool.server.health()?;
        }
        self.all().try_for_each(AttachedStorage::health)?;
        Ok(())
    }

    /// Detaches everything. When this returns, all written data is in the images or on the real paths.
    pub(super) fn detach(self) -> Result<(), CellError> {
        match self.clear_away()? {
            None => Ok(()),
            Some(in_use) => Err(CellError::Failed(in_use)),
        }
    }

    /// Like [`detach`](Self::detach), after a measurement whose metrics stay valid even if another program keeps a part
    /// in use. Such a program may have copied our mounts into its own mount namespace. Returns that program, if there
    /// is one.
    pub(super) fn clear_away(mut self) -> Result<Option<String>, CellError> {
        let mut in_use = Vec::new();
        let roles = self.roles.iter_mut().map(|role| &mut role.attached);
        for attached in self.servers.iter_mut().chain(roles) {
            match attached.detach() {
                Err(AttachError::InUse(holder)) => in_use.push(holder),
                detached => detached?,
            }
        }
        // Before the pool's server: requests to a dropped server end only by their timeout.
        self.servers.clear();
        if let Some(pool) = self.pool.take() {
            pool.server.stop()?;
        }
        Ok((!in_use.is_empty()).then(|| in_use.join("; ")))
    }
}

impl ServedPool {
    /// The cost of the network to the volumes, from the times `seen` at the servers' ends and at the `devices`.
    fn network(
        &self,
        seen: &[DeviceActivity],
        devices: &[DeviceActivity],
        layers: &[LayerActivity],
        server_cpu_cores: f64,
        attachment: &str,
    ) -> NetworkRecord {
        let delivered = |all: &[DeviceActivity]| {
            let mut sum = Histogram::default();
            all.iter().filter_map(|device| device.delivered.as_ref()).for_each(|one| sum.merge(one));
            sum
        };
        let (requests, at_devices) = (delivered(seen), delivered(devices));
        let or_zero = |histogram: &Histogram, value: f64| if histogram.count() > 0 { value } else { 0.0 };
        // Microseconds of wall time. The largest value of several initiators is on the safe side.
        let round_trip_wall_us = layers
            .iter()
            .filter(|layer| layer.kind == "remote")
            .filter_map(|layer| layer.figures.get(ROUND_TRIP_NS).map(|ns| ns / 1e3))
            .reduce(f64::max)
            .filter(|us| *us > 0.0);
        let totals = seen.iter().map(|device| device.totals);
        let bytes: f64 = totals.map(|all| (all.read_bytes + all.write_bytes) as f64).sum();
        let link_us = self.volume.link.map(|link| {
            let mean_bytes = if requests.count() > 0 { bytes / requests.count() as f64 } else { 0.0 };
            // A million bytes per second are one byte per microsecond.
            2.0 * link.latency_us + mean_bytes / link.bandwidth_mb_s
        });
        NetworkRecord {
            transport: self.volume.transport.name().to_owned(),
            initiator: if attachment == KERNEL_ATTACHMENT { "kernel initiator" } else { "own initiator" }
                .to_owned(),
            requests: requests.count(),
            request_mean_us: or_zero(&requests, requests.mean_us()),
            request_p50_us: or_zero(&requests, requests.quantile_us(0.5)),
            request_p99_us: or_zero(&requests, requests.quantile_us(0.99)),
            device_mean_us: or_zero(&at_devices, at_devices.mean_us()),
            round_trip_p50_us: round_trip_wall_us.map(|us| us / self.time_scale),
            link_us,
            server_cpu_cores,
        }
    }
}

/// A daemon that takes longer to answer is not sampled.
const WATCH_LIMIT: Duration = Duration::from_secs(1);
/// Testing a medium again in virtual time takes seconds.
const INPUTS_LIMIT: Duration = Duration::from_secs(600);

fn watched(attached: &AttachedStorage) -> Result<(Vec<DeviceGlance>, Vec<LayerActivity>), AttachError> {
    match attached.served() {
        Some(served) => served.watch(WATCH_LIMIT),
        // The kernel's own counters.
        None => Ok((attached.glance()?, Vec::new())),
    }
}

/// A `remote` layer's name for the round trip of a command without a device.
const ROUND_TRIP_NS: &str = "network_p50_ns";
/// The attachment that connects by the kernel.
const KERNEL_ATTACHMENT: &str = "nvme-kernel";

/// The initial contents of one storage.
#[derive(Clone, Copy)]
enum InitialContent<'a> {
    /// A folder of backing files to be cloned.
    Images(&'a Path),
    /// The trees to copy into the directories, in order.
    Trees(&'a [PathBuf]),
}

/// Where the backing files are of a storage that is attached in this folder.
pub(super) fn images_folder(folder: &Path) -> PathBuf {
    folder.join("images")
}

/// The directories of the first node and of the others: equal parts, in order.
fn split_by_node(directories: &[PathBuf], nodes: usize) -> (Vec<PathBuf>, Vec<NodePaths>) {
    let mut of_nodes = directories.chunks((directories.len() / nodes).max(1)).map(<[PathBuf]>::to_vec);
    let first = of_nodes.next().unwrap_or_default();
    // The check of a study ensures that nodes with storage of their own have no roles.
    (first, of_nodes.map(|data| NodePaths { data, ..NodePaths::default() }).collect())
}

/// A server's own devices, or the directories that the study names.
fn attach_devices(
    plan: &CellPlan<'_>,
    storage: &StorageSpec,
    source: Option<InitialContent<'_>>,
    folder: &Path,
    registry: &ResourceRegistry,
) -> Result<AttachedStorage, CellError> {
    let mount_root = folder.join("mnt");
    let images_folder = images_folder(folder);
    fs::create_dir_all(&images_folder)?;
    let mut stack = stack_of(storage, &images_folder, plan.scale.data, plan.scale.time, plan.seed);
    if faults::concerning(plan.study, storage).into_iter().any(FaultSpec::needs_arming) {
        for volume in stack.iter_mut().flat_map(|stack| &mut stack.volumes) {
            volume.root.for_each_device(&mut |device| device.power_cut_armed = true);
        }
    }
    let way = plan.study.run.attachment.as_deref();
    match (stack, source) {
        (Some(stack), Some(InitialContent::Images(prepared))) => {
            for image in image_files(&stack) {
                let name = image.file_name().expect("an image has a name");
                images::clone_image(&prepared.join(name), &image)?;
            }
            let spec = attach_spec(storage, stack, &mount_root, false);
            Ok(choice::choose_for(&spec.stack, way)?.attach(&spec, registry)?)
        }
        (Some(stack), _) => {
            let spec = attach_spec(storage, stack, &mount_root, true);
            Ok(choice::choose_for(&spec.stack, way)?.attach(&spec, registry)?)
        }
        (None, source) => {
            let attached = attach_paths(storage, registry)?;
            if let Some(InitialContent::Trees(trees)) = source {
                copy_onto_paths(plan, trees, attached.paths())?;
            }
            Ok(attached)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::storage;
    use crate::spec::Study;

    #[test]
    fn ring_nodes_get_own_storages() {
        const STUDY: &str = r#"
name = "ring"
[system.cassandra]
memory = "24 GiB"
nodes = 3
replication_factor = 2
[system.one]
kind = "cassandra"
memory = "8 GiB"
[storage.flash]
devices = [{ medium = "nvme-9300-max", count = 2 }]
layout = "jbod"
per = "node"
[workload.ycsb]
data = "16 GB"
mixes = ["a"]
threads = 8
"#;
        let study = Study::parse("ring.toml", STUDY, false).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let of_system = |system: usize| {
            let storage = study.storages[0].under(&study.systems[system]);
            let stack = storage::stack(&storage, Path::new("/images"), 1000.0, 1.0, 7).unwrap();
            let mounts: Vec<PathBuf> =
                stack.volumes.iter().map(|volume| volume.name.clone().into()).collect();
            (split_by_node(&mounts, storage.nodes as usize), storage::image_files(&stack).len())
        };
        let ((first, further), images) = of_system(0);
        assert_eq!((first.len(), further.len(), images), (2, 2, 6));
        let all: Vec<Vec<PathBuf>> =
            std::iter::once(first).chain(further.into_iter().map(|node| node.data)).collect();
        for (number, own) in (1..).zip(&all) {
            let is_own = |mount: &PathBuf| mount.to_string_lossy().contains(&format!("node{number}"));
            assert!(own.len() == 2 && own.iter().all(is_own), "{all:?}");
        }
        // The other system has a single node, and so one storage.
        let ((alone, further), images) = of_system(1);
        assert_eq!((alone.len(), further.len(), images), (2, 0, 2));
    }
}
