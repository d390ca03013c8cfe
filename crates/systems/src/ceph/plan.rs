//! The plan of a cluster: where its OSDs are, how large they are, and what memory they have.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::memory_plan::ProcessMemory;
use crate::system::{SystemError, check_attached};

const MIB: u64 = 1 << 20;
/// The share of a file system's free space that its OSDs divide among them; the rest is for its own tables.
pub(crate) const WHOLE_SHARE: f64 = 0.9;
/// Where others write to the same file system: an OSD that finds its file full ends.
pub(crate) const SHARED_SHARE: f64 = 0.6;
/// BlueStore keeps a log and a database on the same device, and refuses writes when it is nearly full.
pub(super) const MIN_BLOCK_BYTES: u64 = 2 << 30;
const BLOCK_UNIT_BYTES: u64 = 1 << 20;
pub(super) const MAX_OSDS: usize = 64;
/// Each program's memory besides caches. Measured after writing 2 GB: 60 to 100, 60, 90 to 200, and 130 to 220 MiB.
const MONITOR_BYTES: u64 = 128 * MIB;
const MANAGER_BYTES: u64 = 96 * MIB;
const GATEWAY_BYTES: u64 = 256 * MIB;
const OSD_OWN_BYTES: u64 = 256 * MIB;
/// BlueStore does not work with less.
const MIN_CACHE_BYTES: u64 = 64 * MIB;

/// A cluster to start.
#[derive(Clone, Debug, PartialEq)]
pub struct CephPlan {
    /// The system that uses it, which errors name.
    pub system: &'static str,
    /// The directory of each OSD, on the storage under test.
    pub osds: Vec<PathBuf>,
    /// Copies of each object, on as many OSDs.
    pub replication: u32,
    /// Whether BlueStore is to be tuned for a device that seeks. It can't tell from a file.
    pub rotational: bool,
    pub memory: CephMemory,
    /// The share of a file system's free space that its OSDs divide among them.
    pub space_share: f64,
    /// The address by which clients reach the gateway over TLS. Without one they do over plain HTTP.
    pub tls: Option<std::net::Ipv4Addr>,
    /// For configuration, logs and the monitor's and the manager's files; not on the storage under test. It is created.
    pub scratch: PathBuf,
    /// How many times slower than its model the storage is. Timeouts are multiplied by it.
    pub slow_motion: f64,
}

/// How the memory of a cluster is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CephMemory {
    /// Of each OSD's BlueStore, which bypasses the page cache.
    pub cache_bytes: u64,
}

impl CephMemory {
    /// Caches for so many OSDs that may use `bytes` together with the other programs.
    pub fn new(bytes: u64, osds: u64) -> CephMemory {
        let left = bytes.saturating_sub(CephMemory::resident_bytes(osds, 0));
        CephMemory { cache_bytes: (left / osds.max(1) / MIB * MIB).max(MIN_CACHE_BYTES) }
    }

    /// The least that a cluster of so many OSDs works with.
    pub fn min_bytes(osds: u64) -> u64 {
        CephMemory::resident_bytes(osds, MIN_CACHE_BYTES)
    }

    /// Its programs, kind by kind.
    pub(crate) fn processes(&self, osds: u64) -> Vec<ProcessMemory> {
        let process = |kind, count, own_bytes| ProcessMemory {
            what: kind,
            count,
            own_bytes,
            ..ProcessMemory::default()
        };
        let osd = process("OSD", osds, OSD_OWN_BYTES + self.cache_bytes);
        vec![
            process("Ceph monitor", 1, MONITOR_BYTES),
            process("Ceph manager", 1, MANAGER_BYTES),
            process("Ceph gateway", 1, GATEWAY_BYTES),
            ProcessMemory { cache_bytes: self.cache_bytes, ..osd },
        ]
    }

    fn resident_bytes(osds: u64, cache_bytes: u64) -> u64 {
        MONITOR_BYTES + MANAGER_BYTES + GATEWAY_BYTES + osds * (OSD_OWN_BYTES + cache_bytes)
    }
}

impl CephPlan {
    /// Puts `osds` on the directories of the attached storage in turn: `ceph/osd-0` on the first one, and so on.
    ///
    /// # Errors
    /// When a directory is missing: created here, it would be on the file system below the missing mount.
    pub fn on_each(system: &'static str, data: &[PathBuf], osds: usize) -> Result<Vec<PathBuf>, SystemError> {
        crate::system::first_data_directory(system, data)?;
        data.iter().try_for_each(|directory| check_attached(system, directory))?;
        let places = data.iter().cycle().take(osds).enumerate();
        Ok(places.map(|(number, directory)| directory.join("ceph").join(format!("osd-{number}"))).collect())
    }

    /// Checks that a cluster can be started like this.
    ///
    /// # Errors
    /// The mistake, with the setting if there is one.
    pub(super) fn check(&self) -> Result<(), SystemError> {
        let setting = |key: &str, problem: String| {
            Err(SystemError::Setting { system: self.system, key: key.to_owned(), problem })
        };
        let count = self.osds.len();
        if count == 0 || count > MAX_OSDS {
            return setting("osds", format!("{count}: expected 1 to {MAX_OSDS}"));
        }
        if self.replication == 0 || self.replication as usize > count {
            return setting(
                "replication",
                format!("{} copies of an object need as many OSDs, not {count}", self.replication),
            );
        }
        self.osds.iter().chain([&self.scratch]).try_for_each(|path| self.check_path(path))
    }

    /// Ceph's configuration expands `$`, and its lines have comments and spaces at their ends cut off.
    fn check_path(&self, path: &Path) -> Result<(), SystemError> {
        let plain = |letter: char| letter.is_alphanumeric() || "/-_.+@=:".contains(letter);
        match path.to_str() {
            Some(text) if path.is_absolute() && text.chars().all(plain) => Ok(()),
            _ => {
                let problem = format!(
                    "'{}' can't be used as a directory of Ceph's: the path must be absolute, of letters, digits and -_.+@=:",
                    path.display().to_string().escape_debug()
                );
                Err(SystemError::starting(self.system, problem))
            }
        }
    }

    /// How large the file of each OSD may become: those on one file system share its free space.
    ///
    /// # Errors
    /// When there is too little of it.
    pub(super) fn block_bytes(&self) -> Result<Vec<u64>, SystemError> {
        let above = |osd: &PathBuf| osd.parent().and_then(Path::parent).unwrap_or(osd).to_owned();
        // Two directories may be on one file system.
        let device = |osd: &PathBuf| std::fs::metadata(above(osd)).map(|found| found.dev()).ok();
        let devices: Vec<Option<u64>> = self.osds.iter().map(device).collect();
        let mut sizes = Vec::new();
        for osd in &self.osds {
            let above = above(osd);
            let on_it = devices.iter().filter(|&&device| device == devices[sizes.len()]).count() as u64;
            let space = rustix::fs::statvfs(&above).map_err(|error| {
                SystemError::starting(
                    self.system,
                    format!("can't tell the free space of {}: {error}", above.display()),
                )
            })?;
            let free_bytes = space.f_bavail.saturating_mul(space.f_frsize);
            let bytes = (free_bytes as f64 * self.space_share) as u64 / on_it.max(1) / BLOCK_UNIT_BYTES
                * BLOCK_UNIT_BYTES;
            if bytes < MIN_BLOCK_BYTES {
                let problem = format!(
                    "{} has {} MiB free for {on_it} OSDs, and each needs {} MiB: use larger devices, fewer OSDs, or a smaller `data` in [scale]",
                    above.display(),
                    free_bytes / MIB,
                    (MIN_BLOCK_BYTES as f64 / self.space_share) as u64 / MIB
                );
                return Err(SystemError::starting(self.system, problem));
            }
            sizes.push(bytes);
        }
        Ok(sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(osds: Vec<PathBuf>) -> CephPlan {
        CephPlan {
            system: "test",
            osds,
            replication: 1,
            rotational: true,
            memory: CephMemory::new(0, 1),
            space_share: WHOLE_SHARE,
            tls: None,
            scratch: "/scratch".into(),
            slow_motion: 1.0,
        }
    }

    #[test]
    fn osds_take_directories_in_turn() {
        let folder = tempfile::TempDir::new().unwrap();
        let data = ["a", "b"].map(|name| folder.path().join(name));
        data.iter().for_each(|path| std::fs::create_dir(path).unwrap());
        let places = CephPlan::on_each("test", &data, 3).unwrap();
        let expected = [data[0].join("ceph/osd-0"), data[1].join("ceph/osd-1"), data[0].join("ceph/osd-2")];
        assert_eq!(places, expected);
        std::fs::remove_dir(&data[1]).unwrap();
        let error = CephPlan::on_each("test", &data, 3).unwrap_err().to_string();
        assert!(error.contains("is the storage attached?"), "{error}");
    }

    #[test]
    fn invalid_plan_is_explained() {
        let wrong = |plan: CephPlan| plan.check().unwrap_err().to_string();
        assert!(wrong(plan(Vec::new())).contains("setting 'osds'"));
        let good = plan(vec!["/data/ceph/osd-0".into()]);
        assert!(good.check().is_ok());
        assert!(wrong(CephPlan { replication: 2, ..good.clone() }).contains("2 copies"));
        assert!(wrong(CephPlan { scratch: "/a $b".into(), ..good }).contains("/a $b"));
    }

    #[test]
    fn caches_take_what_the_programs_leave() {
        for osds in [1, 3, 7] {
            let mut bytes = CephMemory::min_bytes(osds);
            while bytes < 1 << 40 {
                let memory = CephMemory::new(bytes, osds);
                assert!(CephMemory::resident_bytes(osds, memory.cache_bytes) <= bytes);
                bytes += bytes / 3;
            }
            assert_eq!(CephMemory::new(0, osds).cache_bytes, MIN_CACHE_BYTES);
        }
    }
}
