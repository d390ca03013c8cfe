//! The process that has the pool, and serves its volumes.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use underlay_sync::UnsimulatedMutex;

use underlay_nvme::target::{
    HostIdentity, Hosts, LeaseStore, NamespaceConfig, SubsystemConfig, Subsystems, Target, TargetConfig,
    Writers,
};
use underlay_storage::device::BlockDevice;
use underlay_storage::layers::compress::Codec;
use underlay_sync::simulation::{Group, World};
use underlay_volume::Pool;
use underlay_volume::pool::{HostMemory, PoolSettings, VolumeInfo, VolumeSpec};

use super::{BLOCK, Unfinished, name_of};
use crate::disk::Disk;
use crate::network::Network;
use crate::script::Volumes;
use crate::slot::Slot;

/// So little that flushes come for want of room, too.
const LONG_BYTES: u64 = 8 << 10;

/// Who may write to which volume, beside the pool: it outlives the server.
#[derive(Clone, Default)]
pub(super) struct Leases(Arc<UnsimulatedMutex<BTreeMap<String, (HostIdentity, bool)>>>);

struct StoredLease {
    volume: String,
    leases: Leases,
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

pub(super) struct Server {
    pub process: Group,
    pub opened: Slot<Result<Pool, String>>,
    /// What the server before it had been asked for and had not answered.
    pub missed: Arc<UnsimulatedMutex<Vec<Unfinished>>>,
    pub has_taken_stock: bool,
}

impl Server {
    /// Begins to open the pool; `is_new` makes its volumes.
    #[expect(clippy::too_many_arguments, reason = "what a server's process is given")]
    pub(super) fn start(
        world: &World,
        setup: &Volumes,
        disks: &[Disk],
        directory: &Path,
        boot: u32,
        network: &Network,
        leases: &Leases,
        is_new: bool,
    ) -> Server {
        let process = world.new_group();
        let opened = Slot::default();
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
        Server { process, opened, missed: Arc::default(), has_taken_stock: is_new }
    }
}

fn open(
    handles: Vec<Arc<dyn BlockDevice>>,
    settings: PoolSettings,
    setup: &Volumes,
    is_new: bool,
) -> Result<Pool, String> {
    let pool = Pool::open(handles, settings).map_err(|error| error.to_string())?;
    if is_new {
        for (number, volume) in setup.volumes.iter().enumerate() {
            if pool.volume(&name_of(number)).is_ok() {
                continue;
            }
            let spec = VolumeSpec {
                compress: volume.compress.then_some(Codec::Lz4),
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

fn serve(pool: &Pool, setup: &Volumes, leases: &Leases) -> Result<Target, String> {
    let subsystems = Arc::new(Subsystems::default());
    for number in 0..setup.volumes.len() {
        let volume = pool.volume(&name_of(number)).map_err(|error| error.to_string())?;
        let info: VolumeInfo = volume.info();
        let config = SubsystemConfig {
            nqn: nqn(&info.name),
            serial_number: format!("{:016x}", info.identity),
            hosts: Hosts::Any(None),
        };
        let subsystem = subsystems.add(config).map_err(|error| error.to_string())?;
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&info.identity.to_be_bytes());
        let namespace = NamespaceConfig { nsid: 1, uuid, device: Arc::new(volume) };
        let store = StoredLease { volume: info.name.clone(), leases: leases.clone() };
        let writers = Writers::OneStored(Arc::new(store));
        subsystem.add_namespace_for(namespace, writers).map_err(|error| error.to_string())?;
    }
    Target::start_with(TargetConfig::default(), subsystems).map_err(|error| error.to_string())
}
