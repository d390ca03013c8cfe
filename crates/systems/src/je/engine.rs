//! The parameters of JE that both systems have in common, and how JE calls them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::memory::{JeMemoryLayout, MIB};
use crate::artifacts::{self, JE};
use crate::java::{ClassPath, Java};
use crate::jvm::{self, JvmChild};
use crate::setting::{FractionSetting, IntegerSetting, OneOf};
use crate::system::{LoadProgress, SystemError};

/// The sync policy of a commit, by JE's names.
pub(crate) const SYNC_POLICIES: OneOf<&str> =
    OneOf(&[("SYNC", "SYNC"), ("WRITE_NO_SYNC", "WRITE_NO_SYNC"), ("NO_SYNC", "NO_SYNC")]);
/// Operations of a process until Java has compiled what it runs for them: it does so after some 15,000 calls, and takes
/// a while.
pub(crate) const OPERATIONS_TO_COMPILE: u64 = 50_000;
pub(crate) const HEAP_SHARE: FractionSetting = FractionSetting(0.1..=0.9);
/// Beyond this, the heap has no room for anything else.
pub(crate) const CACHE_SHARE: FractionSetting = FractionSetting(0.1..=0.8);
/// JE's bounds are 1,000,000 bytes and 1 GiB.
pub(crate) const LOG_FILE_MIB: IntegerSetting = IntegerSetting(1..=1024);
pub(crate) const CLEANER_MIN_UTILIZATION: IntegerSetting = IntegerSetting(0..=90);
pub(crate) const CLEANER_THREADS: IntegerSetting = IntegerSetting(1..=64);
pub(crate) const CHECKPOINTER_BYTES_MIB: IntegerSetting = IntegerSetting(1..=1 << 20);
pub(crate) const KEYS_PER_NODE: IntegerSetting = IntegerSetting(4..=32_767);

/// JE's own limits, which slow motion stretches.
const FSYNC_TIMEOUT: Duration = Duration::from_millis(500);
const LATCH_TIMEOUT: Duration = Duration::from_secs(300);
/// JE accepts no longer time for a lock.
const MAX_LOCK_TIMEOUT: Duration = Duration::from_secs(75 * 60);

/// The settings of each environment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct JeEnvironment {
    pub division: JeMemoryLayout,
    pub log_file_mib: u64,
    pub cleaner_min_utilization: u64,
    pub cleaner_threads: u64,
    pub checkpointer_bytes_mib: u64,
    pub keys_per_node: u64,
    /// How long an operation may wait for another one's lock: as long as its client waits for an answer.
    pub lock_timeout: Duration,
    pub slow_motion: f64,
}

impl JeEnvironment {
    /// JE's parameters, by its names.
    pub(crate) fn parameters(&self) -> BTreeMap<String, String> {
        let stretched = |time: Duration| time.mul_f64(self.slow_motion.max(1.0));
        [
            ("je.maxMemory", self.division.cache_bytes.to_string()),
            ("je.log.fileMax", (self.log_file_mib * MIB).to_string()),
            ("je.cleaner.minUtilization", self.cleaner_min_utilization.to_string()),
            ("je.cleaner.threads", self.cleaner_threads.to_string()),
            ("je.checkpointer.bytesInterval", (self.checkpointer_bytes_mib * MIB).to_string()),
            ("je.nodeMaxEntries", self.keys_per_node.to_string()),
            ("je.lock.timeout", duration(self.lock_timeout.min(MAX_LOCK_TIMEOUT))),
            ("je.log.fsyncTimeout", duration(stretched(FSYNC_TIMEOUT))),
            ("je.env.latchTimeout", duration(stretched(LATCH_TIMEOUT))),
            // JE would keep 5 GB free, which is more than many modelled devices have.
            ("je.freeDisk", "0".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }
}

/// As JE reads it.
pub(crate) fn duration(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}

/// Fetches JE and compiles the drivers: what a Java process finds its classes by.
pub(crate) fn class_path(
    system: &'static str,
    progress: &dyn Fn(&LoadProgress),
) -> Result<ClassPath, SystemError> {
    Java::find(system)?;
    let library = JE.directory(progress).map_err(|error| error.into_system_error(system))?;
    let child = JvmChild::prepare(system, progress)?;
    let needed = ClassPath::new().with_classes(child).with_jars(&library);
    let drivers = jvm::JE.classes(system, &needed, progress)?;
    Ok(ClassPath::new().with_classes(drivers).with_jars(library))
}

/// For the record: JE's version under the name of the system, and Java's.
pub(crate) fn versions(system: &'static str) -> BTreeMap<String, String> {
    artifacts::versions(system, &[(system, &JE, "je")])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_have_the_names_and_units_of_je() {
        let engine = JeEnvironment {
            division: JeMemoryLayout::new(256 * MIB, 0.5, 0.5),
            log_file_mib: 10,
            cleaner_min_utilization: 50,
            cleaner_threads: 1,
            checkpointer_bytes_mib: 20,
            keys_per_node: 128,
            lock_timeout: Duration::from_secs(10_000),
            slow_motion: 4.0,
        };
        let parameters = engine.parameters();
        assert_eq!(parameters["je.maxMemory"], (40 * MIB).to_string());
        assert_eq!(parameters["je.log.fileMax"], "10485760");
        assert_eq!(parameters["je.lock.timeout"], "4500000 ms");
        assert_eq!(parameters["je.log.fsyncTimeout"], "2000 ms");
    }
}
