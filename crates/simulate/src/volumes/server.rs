//! The process that has the pool, and serves its volumes.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use underlay_sync::UnsimulatedMutex;

use underlay_nvme::target::{
    AllowedHosts, HostIdentity, LeaseStore, NamespaceConfig, NvmeTarget, SubsystemConfig, SubsystemTable,
    TargetConfig, WriterPolicy,
};
use underlay_storage::device::BlockDevice;
use underlay_storage::layers::compress::CompressionCodec;
use underlay_sync::simulation::{SimulatedWorld, TaskGroup};
use underlay_volume::VolumePool;
use underlay_volume::pool::{HostMemory, PoolSettings, VolumeInfo, VolumeSpec};

use super::{BLOCK, UnfinishedCommand, name_of};
use crate::disk::SimulatedDisk;
use crate::network::SimulatedNetwork;
use crate::script::VolumesSetup;
use crate::slot::SharedSlot;

/// So little that flushes come for want of room, too.
const LONG_BYTES: u64 = 8 << 10;

/// Who may write to which volume, beside the pool: it outlives the server.
#[derive(Clone, Default)]
pub(super) struct VolumeLeases(Arc<UnsimulatedMutex<BTreeMap<String, (HostIdentity, bool)>>>);

struct StoredLease {
    volume: String,
    leases: VolumeLeases,
}

impl LeaseStore for StoredLease {
    fn load(&self) -> Option<(HostIdentity, bool)> {
        self.leases.0.lock().get(&self.volume).cloned()
    }

    fn store(&self, writer: &HostIdentity, is_held: bool) -> io::Result<()> {
        let mut leases = self.leases.0.lock();
        leases.insert(self.volume.clone(), (writer.clone(), is_held));
        Ok(())
    }
}

pub(super) struct SimulatedServer {
    pub process: TaskGroup,
    pub opened: SharedSlot<Result<VolumePool, String>>,
    /// What the server before it had been asked for and had not answered.
    pub missed: Arc<UnsimulatedMutex<Vec<UnfinishedCommand>>>,
    pub has_taken_stock: bool,
}

impl SimulatedServer {
    /// Begins to open the pool; `is_new` makes its volumes.
    #[expect(clippy::too_many_arguments, reason = "what a server's process is given")]
    pub(super) fn start(
        world: &SimulatedWorld,
        setup: &VolumesSetup,
        disks: &[SimulatedDisk],
        directory: &Path,
        boot: u32,
        network: &SimulatedNetwork,
        leases: &VolumeLeases,
        is_new: bool,
    ) -> SimulatedServer {
        let process = world.new_group();
        let opened = SharedSlot::default();
        let handles = disks.iter().map(|disk| disk.device(process)).collect();
        let host_memory = setup.has_host_memory.then(|| HostMemory {
            directory: directory.to_owned(),
            boot: format!("boot {boot}"),
            long_bytes: LONG_BYTES,
        });
        let settings = PoolSettings { host_memory, ..PoolSettings::default() };
        let (setup, network, slot) = (setup.clone(), network.clone(), opened.clone());
        let leases = leases.clone();
        let open = move || {
            let outcome = open(handles, settings, &setup, is_new).and_then(|pool| {
                if setup.is_remote {
                    network.listen(process, Arc::new(serve(&pool, &setup, &leases)?));
                }
                Ok(pool)
            });
            slot.fill(outcome);
        };
        world.spawn(process, open).expect("a thread can be had");
        SimulatedServer { process, opened, missed: Arc::default(), has_taken_stock: is_new }
    }
}

fn open(
    handles: Vec<Arc<dyn BlockDevice>>,
    settings: PoolSettings,
    setup: &VolumesSetup,
    is_new: bool,
) -> Result<VolumePool, String> {
    let pool = VolumePool::open(handles, settings).map_err(|error| error.to_string())?;
    if is_new {
        for (number, volume) in setup.volumes.iter().enumerate() {
            if pool.volume(&name_of(number)).is_ok() {
                continue;
            }
            let spec = VolumeSpec {
                compress: volume.compress.then_some(CompressionCodec::Lz4),
                mirror: volume.mirror,
                ..VolumeSpec::new(u64::from(volume.blocks) * BLOCK)
            };
            pool.create(&name_of(number), &spec).map_err(|error| error.to_string())?;
        }
    }
    Ok(pool)
}

pub(super) fn nqn(volume: &str) -> String {
    format!("nqn.2025-11.internal.underlay:simulated:{volume}")
}

fn serve(pool: &VolumePool, setup: &VolumesSetup, leases: &VolumeLeases) -> Result<NvmeTarget, String> {
    let subsystems = Arc::new(SubsystemTable::default());
    for number in 0..setup.volumes.len() {
        let volume = pool.volume(&name_of(number)).map_err(|error| error.to_string())?;
        let info: VolumeInfo = volume.info();
        let config = SubsystemConfig {
            nqn: nqn(&info.name),
            serial_number: format!("{:016x}", info.identity),
            hosts: AllowedHosts::Any(None),
        };
        let subsystem = subsystems.add(config).map_err(|error| error.to_string())?;
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&info.identity.to_be_bytes());
        let namespace = NamespaceConfig { nsid: 1, uuid, device: Arc::new(volume) };
        let store = StoredLease { volume: info.name.clone(), leases: leases.clone() };
        let writers = WriterPolicy::OneStored(Arc::new(store));
        subsystem.add_namespace_for(namespace, writers).map_err(|error| error.to_string())?;
    }
    NvmeTarget::start_with(TargetConfig::default(), subsystems).map_err(|error| error.to_string())
}
