//! A pool's file, opened: its devices, its volumes, and who may connect to them.

mod power;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use underlay_sync::{Mutex, MutexGuard};

use underlay_config::units::format_bytes;
use underlay_files::Folder;
use underlay_storage::clock::RealClock;
use underlay_storage::faults::{DeviceFault, DeviceFaults};
use underlay_storage::layers::compress::CompressionCodec;
use underlay_storage::layers::workers::WorkerThreads;
use underlay_storage::stack::{PacingMode, Stack};

use super::admissions::VolumeAdmissions;
use super::devices::{
    check_devices_are_there, check_holds_something, directory_error, has_notes, not_blank, open_modelled,
    open_real,
};
use super::error::ServerError;
use super::faults::KnownFaults;
use super::lock::{LockError, PoolLock};
use super::nqn;
use super::protocol::{MemberStatus, PoolState, VolumeState, VolumeTraffic};
use crate::pool::{
    HostMemory, MemberInfo, PoolError, PoolInfo, PoolSettings, SnapshotAccess, VolumeHandle, VolumeInfo,
    VolumePool,
};
use crate::pool_file::{PoolDevices, PoolFile, VolumeAdmission, VolumeFile};

/// From this many bytes on, or this share of a member, a note says how much the journal takes.
const NOTABLE_JOURNAL_BYTES: u64 = 1 << 30;
const NOTABLE_JOURNAL_SHARE: f64 = 0.05;

/// Nobody else can open it while it lives.
pub struct OpenPool {
    name: String,
    pool: VolumePool,
    admissions: Mutex<VolumeAdmissions>,
    members: Vec<String>,
    /// The modelled devices; absent where they are real.
    stack: Option<Stack>,
    /// Of the modelled devices.
    faults: Option<KnownFaults>,
    /// One change of these at a time: what a power cut makes sure of must hold until it is done. A resync doesn't wait
    /// for it.
    faulting: Mutex<()>,
    is_closed: AtomicBool,
    _lock: PoolLock,
}

impl Drop for OpenPool {
    fn drop(&mut self) {
        let _ = self.close();
    }
}

impl OpenPool {
    /// Opens the pool, or makes it where its devices are new. Takes the time of this machine, not of its models.
    ///
    /// # Errors
    /// When another process has it, or a device can't be had or belongs to another pool.
    pub fn open(file: &PoolFile) -> Result<OpenPool, ServerError> {
        OpenPool::open_or_make(file, false)
    }

    /// As [`open`](OpenPool::open); but where there is no pool yet, what else its devices hold is lost.
    ///
    /// # Errors
    /// As there, except that devices need not be blank.
    pub fn format(file: &PoolFile) -> Result<OpenPool, ServerError> {
        OpenPool::open_or_make(file, true)
    }

    fn open_or_make(file: &PoolFile, format: bool) -> Result<OpenPool, ServerError> {
        let directory = &file.directory;
        // Before anything is written to it: others who can write there could make the server believe anything
        // about the pool.
        let folder = Folder::make(directory, underlay_files::Access::Private)
            .map_err(|error| directory_error(directory, error))?;
        let lock = PoolLock::take(&folder).map_err(|error| match error {
            LockError::Taken(pid) => ServerError::Taken { pool: file.name.clone(), pid },
            LockError::Io(error) => ServerError::io("lock", directory, error),
        })?;
        check_devices_are_there(file)?;
        let had_notes = has_notes(file);
        let admissions = Mutex::new(VolumeAdmissions::open(directory)?);
        let (stack, names, devices) = match &file.devices {
            PoolDevices::Modelled { .. } => open_modelled(file)?,
            PoolDevices::Paths(paths) => {
                let opened = paths.iter().map(|path| open_real(path)).collect::<Result<Vec<_>, _>>()?;
                let names = paths.iter().map(|path| path.display().to_string()).collect();
                (None, names, opened)
            }
        };
        if had_notes && !format && stack.is_none() {
            check_holds_something(file, &devices)?;
        }
        let faults = stack.as_ref().map(|stack| KnownFaults::open(directory, stack)).transpose()?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let workers = WorkerThreads::start(threads).map_err(|error| {
            ServerError::Failed(format!("no thread for compressing could be started: {error}"))
        })?;
        let clock = Arc::new(RealClock::new(file.dilation));
        let host_memory = HostMemory::for_this_boot(directory)
            .map_err(|error| ServerError::io("identify this boot of the host for", directory, error))?;
        let settings = PoolSettings {
            clock,
            workers,
            host_memory: Some(host_memory),
            format,
            ..PoolSettings::default()
        };
        let pool = VolumePool::open(devices.clone(), settings).map_err(|source| {
            if let PoolError::NotBlank { index } = source {
                return not_blank(&names[index], &*devices[index]);
            }
            match faults.as_ref().and_then(KnownFaults::remedy) {
                // No server is there that could be asked to clear them.
                Some(remedy) => ServerError::Failed(format!("the pool '{}': {source}. {remedy}", file.name)),
                None => ServerError::Pool { pool: file.name.clone(), source },
            }
        })?;
        if let Some(stack) = &stack {
            stack.set_pace(PacingMode::Modelled);
        }
        Ok(OpenPool {
            name: file.name.clone(),
            pool,
            admissions,
            members: names,
            stack,
            faults,
            faulting: Mutex::new(()),
            is_closed: AtomicBool::new(false),
            _lock: lock,
        })
    }

    /// Gives the pool the volumes that its file names: missing ones are made, larger ones grow, limits and hosts are
    /// set.
    ///
    /// # Errors
    /// When a volume would become smaller or be stored in another way; then none is changed.
    pub fn apply(&self, file: &PoolFile) -> Result<(), ServerError> {
        let existing: BTreeMap<String, VolumeInfo> =
            self.pool.list().into_iter().map(|volume| (volume.name.clone(), volume)).collect();
        for wanted in &file.volumes {
            if let Some(found) = existing.get(&wanted.name) {
                check_change(found, wanted)?;
            }
        }
        for wanted in &file.volumes {
            let Some(found) = existing.get(&wanted.name) else {
                self.create(wanted)?;
                continue;
            };
            // First: a later failure leaves no volume that is open to more hosts than it should be.
            self.admissions().set(&wanted.name, wanted.admission.clone())?;
            if wanted.spec.capacity_bytes > found.capacity_bytes {
                self.pool.resize(&wanted.name, wanted.spec.capacity_bytes)?;
            }
            if wanted.spec.limits != found.limits {
                self.pool.set_limits(&wanted.name, wanted.spec.limits)?;
            }
        }
        Ok(())
    }

    pub(super) fn create(&self, wanted: &VolumeFile) -> Result<VolumeHandle, ServerError> {
        check_name(&wanted.name)?;
        if self.pool.volume(&wanted.name).is_ok() {
            return Err(crate::pool::PoolError::Exists(wanted.name.clone()).into());
        }
        // First, so that it never is there for hosts that it is not for. And it stays when the pool fails: the volume
        // may have come about all the same, and a new one of this name comes with its own list of hosts.
        self.admissions().set(&wanted.name, wanted.admission.clone())?;
        Ok(self.pool.create(&wanted.name, &wanted.spec)?)
    }

    pub(super) fn resize(&self, name: &str, capacity_bytes: u64, shrink: bool) -> Result<(), ServerError> {
        let before = self.pool.volume(name)?.info().capacity_bytes;
        if capacity_bytes < before && !shrink {
            return Err(ServerError::Mistake(format!(
                "volume '{name}' has {before} bytes: at {capacity_bytes}, data past its new end would be \
                     lost; --shrink allows that"
            )));
        }
        Ok(self.pool.resize(name, capacity_bytes)?)
    }

    /// A snapshot is for the hosts that its source is for.
    pub(super) fn snapshot(
        &self,
        source: &str,
        name: &str,
        writable: bool,
    ) -> Result<VolumeHandle, ServerError> {
        check_name(name)?;
        self.pool.volume(source)?;
        if self.pool.volume(name).is_ok() {
            return Err(crate::pool::PoolError::Exists(name.to_owned()).into());
        }
        let admission = self.admissions().get(source);
        self.admissions().set(name, admission)?;
        let access = if writable { SnapshotAccess::Writable } else { SnapshotAccess::ReadOnly };
        Ok(self.pool.snapshot(source, name, access)?)
    }

    pub(super) fn delete(&self, name: &str) -> Result<(), ServerError> {
        // Only once the volume is gone for good: an error may mean that it comes back.
        self.pool.delete(name)?;
        self.admissions().set(name, VolumeAdmission::default())
    }

    /// Brings a member that was left out up to date; by the name that `state` has for it.
    pub(super) fn resync(&self, member: &str) -> Result<(), ServerError> {
        let Some(index) = self.members.iter().position(|name| name == member) else {
            return Err(ServerError::Mistake(format!(
                "the pool has no device '{}', but {}",
                member.escape_debug(),
                self.members.join(", ")
            )));
        };
        Ok(self.pool.resync(index)?)
    }

    pub(super) fn inject(&self, device: &str, fault: DeviceFault) -> Result<(), ServerError> {
        let (stack, faults) = self.modelled()?;
        // What the pool's journal takes for durable it never writes again, so a power cut would leave its two copies
        // unlike.
        if matches!(fault, DeviceFault::IgnoreFlushes) {
            return Err(ServerError::Mistake(format!(
                "{device} belongs to a pool, whose devices can't ignore flushes: try this fault on the devices of a mount"
            )));
        }
        let _one_at_a_time = self.faulting.lock();
        faults.inject(stack, device, fault)
    }

    pub(super) fn clear_faults(&self, device: Option<&str>) -> Result<(), ServerError> {
        let (stack, faults) = self.modelled()?;
        let _one_at_a_time = self.faulting.lock();
        faults.clear(stack, device)
    }

    /// What is wrong with each modelled device.
    pub(super) fn faults(&self) -> Result<Vec<DeviceFaults>, ServerError> {
        Ok(self.modelled()?.0.faults())
    }

    fn modelled(&self) -> Result<(&Stack, &KnownFaults), ServerError> {
        self.stack.as_ref().zip(self.faults.as_ref()).ok_or_else(ServerError::real_devices)
    }

    pub(super) fn volumes(&self) -> Vec<VolumeInfo> {
        self.pool.list()
    }

    pub(super) fn volume(&self, name: &str) -> Result<VolumeHandle, ServerError> {
        Ok(self.pool.volume(name)?)
    }

    pub(super) fn admission(&self, volume: &str) -> VolumeAdmission {
        self.admissions().get(volume)
    }

    pub(super) fn stack(&self) -> Option<&Stack> {
        self.stack.as_ref()
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// What its user should know of a pool that was made just now: that a notable part of its space is not for volumes.
    pub fn note(&self) -> Option<String> {
        let info = self.pool.info();
        if !self.pool.is_new() {
            return None;
        }
        let share = journal_share(&info);
        let is_notable = info.journal_bytes >= NOTABLE_JOURNAL_BYTES || share >= NOTABLE_JOURNAL_SHARE;
        let names = self.members[..info.journal_members].join(" and of ");
        is_notable.then(|| {
            format!(
                "the journal of '{}' takes {:.1} GiB of {names}, {:.1} % of it: it has room for a map of {:.1} \
                     GiB, the largest that volumes of this pool may need",
                self.name,
                gib(info.journal_bytes),
                100.0 * share,
                gib(info.map_limit_bytes)
            )
        })
    }

    /// What is wrong with the pool, in words; nothing when it is as it should be.
    ///
    /// # Errors
    /// When it can't be looked at.
    pub fn check(&self) -> Result<Vec<String>, ServerError> {
        Ok(self.pool.check()?.problems)
    }

    /// The pool without what only its server knows.
    pub fn state(&self) -> PoolState {
        let info = self.pool.info();
        let member = |(name, member): (&String, MemberInfo)| MemberStatus {
            name: name.clone(),
            space_bytes: member.space_bytes,
            free_bytes: member.free_bytes,
            state: member.state,
        };
        let volume = |volume: VolumeInfo| VolumeState {
            nqn: nqn::volume_nqn(&self.name, &volume.name),
            admission: self.admission(&volume.name),
            capacity_bytes: volume.capacity_bytes,
            used_bytes: volume.used_bytes,
            stored_bytes: volume.stored_bytes,
            compress: volume.compress.map(|codec| codec_name(codec).to_owned()),
            mirror: volume.mirror,
            degraded: volume.degraded,
            writable: volume.access == SnapshotAccess::Writable,
            snapshot_of: volume.origin,
            limits: volume.limits,
            clients: 0,
            writer: None,
            traffic: VolumeTraffic::default(),
            name: volume.name,
        };
        PoolState {
            pool: self.name.clone(),
            address: None,
            members: self.members.iter().zip(info.members).map(member).collect(),
            space_bytes: info.space_bytes,
            free_bytes: info.free_bytes,
            volumes: self.pool.list().into_iter().map(volume).collect(),
        }
    }

    /// Makes everything durable and ends the pool. Devices are not waited for.
    ///
    /// # Errors
    /// When something could not be written.
    pub fn close(&self) -> Result<(), ServerError> {
        if self.is_closed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        if let Some(stack) = &self.stack {
            stack.set_pace(PacingMode::Immediate);
        }
        self.pool.close().map_err(|source| ServerError::Pool { pool: self.name.clone(), source })
    }

    fn admissions(&self) -> MutexGuard<'_, VolumeAdmissions> {
        self.admissions.lock()
    }
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

/// Of the smallest member that has it.
fn journal_share(info: &PoolInfo) -> f64 {
    let share =
        |member: &MemberInfo| info.journal_bytes as f64 / (info.journal_bytes + member.space_bytes) as f64;
    info.members.iter().take(info.journal_members).map(share).fold(0.0, f64::max)
}

fn check_change(found: &VolumeInfo, wanted: &VolumeFile) -> Result<(), ServerError> {
    let name = &wanted.name;
    if wanted.spec.capacity_bytes < found.capacity_bytes {
        return Err(ServerError::Mistake(format!(
            "volume '{name}' has {}, but the pool's file says {}: write the larger capacity there, or shrink \
                 the volume with `underlay volume resize POOL.toml {name} SIZE --shrink` if data past its \
                 new end may be lost",
            format_bytes(found.capacity_bytes),
            format_bytes(wanted.spec.capacity_bytes)
        )));
    }
    let as_stored = |codec: Option<CompressionCodec>| codec.map_or("none", codec_name);
    let (current, shall_be) = (as_stored(found.compress), as_stored(wanted.spec.compress));
    if current != shall_be || found.mirror != wanted.spec.mirror {
        return Err(ServerError::Mistake(format!(
            "volume '{name}' has compress = \"{current}\", mirror = {}, but the pool's file says \"{shall_be}\", {}: \
                 how a volume is stored never changes, so create another one and copy, or undo this change in \
                 the pool's file",
            found.mirror, wanted.spec.mirror
        )));
    }
    Ok(())
}

fn codec_name(codec: CompressionCodec) -> &'static str {
    match codec {
        CompressionCodec::Lz4 => "lz4",
        CompressionCodec::Zstd(_) => "zstd",
    }
}

/// As in the pool's file: names become a part of qualified names.
fn check_name(name: &str) -> Result<(), ServerError> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !name.is_empty() && name.len() <= 40 && name.chars().all(allowed) && !name.starts_with('-') {
        return Ok(());
    }
    Err(ServerError::Mistake(format!(
        "'{}' is not a valid volume name: use up to 40 lowercase letters, digits and hyphens, not starting with a hyphen",
        name.escape_debug()
    )))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use underlay_storage::stack::{BackingSpec, InitialState};

    use super::super::devices::is_blank;
    use super::*;
    use crate::pool_file::ModelledDevices;

    /// Of one device, the file `disk.img`.
    fn real(directory: &Path, capacity_bytes: u64) -> PoolFile {
        let path = directory.join("disk.img");
        if !path.exists() {
            std::fs::File::create(&path).unwrap().set_len(capacity_bytes).unwrap();
        }
        PoolFile {
            name: "tank".into(),
            listen: ([127, 0, 0, 1], 0).into(),
            directory: directory.join("tank.pool"),
            devices: PoolDevices::Paths(vec![path]),
            power_cut: false,
            volumes: Vec::new(),
            dilation: 1.0,
        }
    }

    fn opened(directory: &Path, capacity_bytes: u64) -> OpenPool {
        open_when_free(|| OpenPool::open(&real(directory, capacity_bytes)))
    }

    /// A thread of the one before may hold the device for a moment longer, with the last answer that it gave, and a
    /// process that another test starts the lock of its directory, between fork and exec.
    fn open_when_free(open: impl Fn() -> Result<OpenPool, ServerError>) -> OpenPool {
        loop {
            match open() {
                Err(ServerError::Device { problem, .. }) if problem.contains("another process") => {
                    std::thread::yield_now();
                }
                Err(ServerError::Taken { pid, .. }) if pid == Some(std::process::id()) => {
                    std::thread::yield_now();
                }
                outcome => return outcome.unwrap(),
            }
        }
    }

    #[test]
    fn device_with_other_data_is_refused_by_name() {
        use std::os::unix::fs::FileExt as _;

        const CAPACITY_BYTES: u64 = 1 << 30;
        let btrfs = (64 << 10) + 64;
        for (offset, content, name) in [
            (btrfs, &b"_BHRfS_M"[..], "btrfs"),
            (CAPACITY_BYTES - 700, &b"the end of someone's data"[..], "data of an unknown kind"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let file = real(folder.path(), CAPACITY_BYTES);
            let disk = std::fs::File::options().read(true).write(true).open(folder.path().join("disk.img"));
            let disk = disk.unwrap();
            disk.write_all_at(content, offset).unwrap();
            let problem = OpenPool::open(&file).err().unwrap();
            assert!(problem.is_mistake() && problem.to_string().contains(name), "{problem}");
            let mut found = vec![0; content.len()];
            disk.read_exact_at(&mut found, offset).unwrap();
            assert_eq!(found, content, "it is untouched");
            // `format` takes it all the same. Then it is a pool like any other, which a second `format` leaves alone.
            let pool = open_when_free(|| OpenPool::format(&file));
            disk.read_exact_at(&mut found, offset).unwrap();
            assert_ne!(found, content);
            let identity = pool.pool.info().identity;
            drop(pool);
            assert_eq!(open_when_free(|| OpenPool::format(&file)).pool.info().identity, identity);
            assert_eq!(open_when_free(|| OpenPool::open(&file)).pool.info().identity, identity);
        }
    }

    pub(super) fn modelled(directory: &Path) -> PoolFile {
        let medium = underlay_storage::catalogue::find("ssd-sata").unwrap();
        let devices = vec![ModelledDevices { medium, count: 2, capacity_bytes: Some(64 << 20) }];
        PoolFile {
            name: "tank".into(),
            listen: PoolFile::usual_address(),
            directory: directory.join("tank.pool"),
            devices: PoolDevices::Modelled { devices, initial: InitialState::Fresh },
            power_cut: true,
            volumes: Vec::new(),
            dilation: 1.0,
        }
    }

    #[test]
    fn directory_writable_by_others_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;

        let folder = tempfile::tempdir().unwrap();
        let file = modelled(folder.path());
        drop(OpenPool::open(&file).unwrap());
        std::fs::set_permissions(&file.directory, std::fs::Permissions::from_mode(0o777)).unwrap();
        let problem = OpenPool::open(&file).err().unwrap();
        assert!(problem.is_mistake() && problem.to_string().contains("chmod go-w"), "{problem}");
    }

    #[test]
    fn pool_with_missing_devices_is_not_recreated() {
        let folder = tempfile::tempdir().unwrap();
        let file = modelled(folder.path());
        assert!(is_blank(&file));
        drop(OpenPool::open(&file).unwrap());
        assert!(!is_blank(&file));
        for device in file.modelled() {
            let BackingSpec::File(path) = &device.backing else { panic!("it has no file") };
            std::fs::remove_file(path).unwrap();
        }
        let problem = OpenPool::open(&file).err().unwrap();
        assert!(problem.is_mistake() && problem.to_string().contains("put them back"), "{problem}");
        assert!(is_blank(&file), "nothing was made");
    }

    #[test]
    fn large_journal_use_is_reported_once() {
        let small = tempfile::tempdir().unwrap();
        assert_eq!(opened(small.path(), 64 << 20).note(), None);
        let large = tempfile::tempdir().unwrap();
        let note = opened(large.path(), 1 << 40).note().unwrap();
        assert!(note.contains("takes 3.4 GiB of") && note.contains("0.3 %"), "{note}");
        assert_eq!(opened(large.path(), 1 << 40).note(), None, "it was there before");
    }
}
