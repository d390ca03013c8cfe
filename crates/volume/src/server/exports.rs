//! Volumes as subsystems of an NVMe/TCP target.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use underlay_sync::Instant;
use underlay_sync::{Mutex, MutexGuard};

use underlay_nvme::auth::{ControllerSecrets, read_secrets};
use underlay_nvme::target::{
    AllowedHosts, NamespaceConfig, NvmSubsystem, NvmeTarget, SubsystemConfig, SubsystemError, SubsystemTable,
    TargetConfig, TargetError, WriterPolicy,
};

use super::error::ServerError;
use super::nqn;
use super::protocol::VolumeTraffic;
use super::writers::KnownWriters;
use crate::pool::{SnapshotAccess, VolumeHandle, VolumeInfo};
use crate::pool_file::VolumeAdmission;

/// Each subsystem has one.
const NSID: u32 = 1;

pub(super) struct VolumeExports {
    pool: String,
    writers: Arc<KnownWriters>,
    subsystems: Arc<SubsystemTable>,
    volumes: Mutex<BTreeMap<String, ExportedVolume>>,
    /// Once it listens, and until it is stopped.
    target: Mutex<Option<NvmeTarget>>,
    wanted: SocketAddr,
    address: OnceLock<SocketAddr>,
}

struct ExportedVolume {
    subsystem: Arc<NvmSubsystem>,
    since: Instant,
}

impl VolumeExports {
    /// Nobody hears of them yet.
    pub(super) fn new(pool: &str, listen: SocketAddr, writers: Arc<KnownWriters>) -> VolumeExports {
        VolumeExports {
            pool: pool.to_owned(),
            writers,
            wanted: listen,
            subsystems: Arc::default(),
            volumes: Mutex::default(),
            target: Mutex::default(),
            address: OnceLock::new(),
        }
    }

    /// Serves what was added and what will be.
    pub(super) fn listen(&self) -> Result<(), ServerError> {
        let config = TargetConfig { listen: vec![self.wanted], ..TargetConfig::default() };
        let target =
            NvmeTarget::start_with(config, Arc::clone(&self.subsystems)).map_err(|error| match error {
                TargetError::Listen { address, error } => ServerError::Listen { address, source: error },
                other => ServerError::Failed(other.to_string()),
            })?;
        if let Some(&address) = target.addresses().first() {
            let _ = self.address.set(address);
        }
        *self.target.lock() = Some(target);
        Ok(())
    }

    /// Where it listens, with the port that it got.
    pub(super) fn address(&self) -> SocketAddr {
        self.address.get().copied().unwrap_or(self.wanted)
    }

    /// Hosts that are admitted can connect from now on.
    pub(super) fn add(
        &self,
        info: &VolumeInfo,
        volume: VolumeHandle,
        admission: &VolumeAdmission,
    ) -> Result<(), ServerError> {
        let config = SubsystemConfig {
            nqn: nqn::volume_nqn(&self.pool, &info.name),
            serial_number: format!("{:016x}", info.identity),
            hosts: hosts(admission)?,
        };
        let refused = |error: SubsystemError| {
            ServerError::Failed(format!("volume '{}' can't be served: {error}", info.name))
        };
        let subsystem = self.subsystems.add(config).map_err(refused)?;
        let namespace = NamespaceConfig { nsid: NSID, uuid: uuid(info.identity), device: Arc::new(volume) };
        // What is read-only refuses writes by itself.
        let writers = match admission.shared || info.access == SnapshotAccess::ReadOnly {
            true => WriterPolicy::All,
            false => WriterPolicy::OneStored(self.writers.store_for(&info.name, info.identity)),
        };
        subsystem.add_namespace_for(namespace, writers).map_err(refused)?;
        self.lock().insert(info.name.clone(), ExportedVolume { subsystem, since: Instant::now() });
        Ok(())
    }

    /// Its hosts are cut off.
    pub(super) fn remove(&self, volume: &str) {
        if let Some(exported) = self.lock().remove(volume) {
            // It is there: nobody else removes it.
            let _ = self.subsystems.remove(exported.subsystem.nqn());
        }
    }

    /// Tells its hosts.
    pub(super) fn resized(&self, volume: &str) {
        if let Some(exported) = self.lock().get(volume) {
            let _ = exported.subsystem.resize_namespace(NSID);
        }
    }

    /// How many hosts are connected.
    pub(super) fn clients(&self, volume: &str) -> u32 {
        let volumes = self.lock();
        let Some(exported) = volumes.get(volume) else { return 0 };
        let hosts: BTreeSet<String> =
            exported.subsystem.queues().into_iter().map(|queue| queue.host_nqn).collect();
        u32::try_from(hosts.len()).unwrap_or(u32::MAX)
    }

    /// The one host that writes, if one does.
    pub(super) fn writer(&self, volume: &str) -> Option<String> {
        let subsystem = self.lock().get(volume).map(|exported| Arc::clone(&exported.subsystem))?;
        let writer = subsystem.namespace(NSID)?.writer()?.nqn;
        // One that is gone keeps its place for a while, and writes nothing.
        subsystem.queues().iter().any(|queue| queue.host_nqn == writer).then_some(writer)
    }

    pub(super) fn traffic(&self, volume: &str) -> VolumeTraffic {
        let volumes = self.lock();
        let Some((exported, namespace)) =
            volumes.get(volume).and_then(|exported| Some((exported, exported.subsystem.namespace(NSID)?)))
        else {
            return VolumeTraffic::default();
        };
        let counters = namespace.counters();
        VolumeTraffic {
            reads: counters.reads,
            writes: counters.writes,
            flushes: counters.flushes,
            read_bytes: counters.read_bytes,
            written_bytes: counters.written_bytes,
            errors: counters.errors,
            served_s: exported.since.elapsed().as_secs_f64(),
        }
    }

    /// Whether a thread that takes hosts has ended with a panic.
    pub(super) fn has_panicked(&self) -> bool {
        self.target.lock().as_ref().is_some_and(NvmeTarget::has_panicked)
    }

    /// Ends all connections.
    pub(super) fn stop(&self) {
        let target = self.target.lock().take();
        if let Some(target) = target {
            target.stop();
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, ExportedVolume>> {
        self.volumes.lock()
    }
}

/// Whether a volume could be served to these hosts.
pub(super) fn check(admission: &VolumeAdmission) -> Result<(), ServerError> {
    for host in &admission.hosts {
        crate::pool_file::check_nqn(host).map_err(|expected| {
            ServerError::Mistake(format!("the host '{}': {expected}", host.escape_debug()))
        })?;
    }
    hosts(admission).map(|_| ())
}

fn hosts(admission: &VolumeAdmission) -> Result<AllowedHosts, ServerError> {
    let variable = |name: &str| std::env::var(name).ok();
    let secrets = read_secrets(&admission.secrets, variable).map_err(|error| {
        ServerError::Mistake(format!("the secrets of {} and its server: {error}", admission.hosts.join(", ")))
    })?;
    let secrets = secrets.map(|(host, controller)| ControllerSecrets { host, controller });
    if admission.hosts.is_empty() {
        return Ok(AllowedHosts::Any(secrets));
    }
    Ok(AllowedHosts::Listed(admission.hosts.iter().map(|host| (host.clone(), secrets.clone())).collect()))
}

/// What hosts recognize a volume by; of version 8, for custom identifiers (RFC 9562, section 5.8).
fn uuid(identity: u64) -> [u8; 16] {
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&identity.to_be_bytes());
    // The version and variant bits take six of the first ten bytes' bits: the identity stands once more where none do.
    uuid[8..].copy_from_slice(&identity.rotate_left(29).to_be_bytes());
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

#[cfg(test)]
mod tests {
    use underlay_storage::stack::SecretPlaces;

    use super::*;

    #[test]
    fn identities_differ_as_identifiers() {
        let all: BTreeSet<[u8; 16]> = (0..64).map(|bit| uuid(1 << bit)).chain([uuid(0)]).collect();
        assert_eq!(all.len(), 65);
        assert!(all.iter().all(|uuid| uuid[6] >> 4 == 8 && uuid[8] >> 6 == 2));
    }

    #[test]
    fn missing_secret_is_named() {
        let admission = VolumeAdmission {
            hosts: vec!["nqn.2014-08.org.example:a".into()],
            secrets: SecretPlaces {
                secret_env: Some("UNDERLAY_TEST_NO_SUCH_VARIABLE".into()),
                ..SecretPlaces::default()
            },
            shared: false,
        };
        let problem = check(&admission).unwrap_err().to_string();
        assert!(problem.contains("UNDERLAY_TEST_NO_SUCH_VARIABLE is not set"), "{problem}");
        let admission = VolumeAdmission { hosts: vec!["my-host".into()], ..VolumeAdmission::default() };
        assert!(check(&admission).unwrap_err().to_string().contains("my-host"));
    }
}
