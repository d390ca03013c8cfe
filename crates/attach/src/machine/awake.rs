//! Idle CPUs that respond at once.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileTypeExt as _;

const CPUS: &str = "/proc/cpuinfo";
const DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";
const LATENCY_LIMIT: &str = "/dev/cpu_dma_latency";
/// The lightest sleep state of real processors, from which they wake in a microsecond or two. Deeper ones take up to
/// some 200.
const LIGHT_SLEEP_US: i32 = 2;

/// Keeps this host's CPUs from deep sleep while it lives.
///
/// A request to a modelled device wakes three or four threads on its way there and back. On a sleeping CPU each costs
/// 10 to 50 µs, since a virtual machine's CPU goes back to its hypervisor; the real device's interrupt costs that once.
/// The limit is the kernel's own (PM QoS): it applies while the file is open, so it ends with the process in any case.
#[derive(Debug)]
pub struct IdlePreventer {
    _held: File,
    limit_us: u32,
}

impl IdlePreventer {
    /// `None` where the kernel accepts no limit, or not from this process: CPUs then sleep as usual.
    pub fn keep() -> Option<IdlePreventer> {
        let driver = fs::read_to_string(DRIVER).ok()?;
        let cpus = fs::read_to_string(CPUS).unwrap_or_default();
        let limit_us = limit_for(driver.trim(), is_virtual(&cpus))?;
        let mut file = File::options().write(true).open(LATENCY_LIMIT).ok()?;
        if !file.metadata().ok()?.file_type().is_char_device() {
            return None;
        }
        file.write_all(&limit_us.to_ne_bytes()).ok()?;
        Some(IdlePreventer { _held: file, limit_us: limit_us.unsigned_abs() })
    }

    /// How long a CPU may take to wake up.
    pub fn limit_us(&self) -> u32 {
        self.limit_us
    }
}

/// Every sleep of a virtual CPU is its hypervisor's, even if the driver claims otherwise. Without a driver the kernel
/// ignores the limit.
fn limit_for(driver: &str, is_virtual: bool) -> Option<i32> {
    (driver != "none").then_some(if is_virtual { 0 } else { LIGHT_SLEEP_US })
}

/// Hypervisors set this flag for their guests, on x86.
fn is_virtual(cpus: &str) -> bool {
    let flags = cpus.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|line| line.split_whitespace().any(|flag| flag == "hypervisor"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_processors_stay_awake_and_real_ones_sleep_lightly() {
        assert_eq!(limit_for("haltpoll", true), Some(0));
        assert_eq!(limit_for("acpi_idle", true), Some(0));
        assert_eq!(limit_for("intel_idle", false), Some(2));
        assert_eq!(limit_for("none", true), None);
        assert!(is_virtual("model name\t: any\nflags\t\t: fpu vme hypervisor lm\n"));
        assert!(!is_virtual("model name\t: a hypervisor\nflags\t\t: fpu vme lm\n"));
    }

    #[test]
    fn latency_limit_matches_request() {
        // Only root may set one, and not every kernel has it.
        if let Some(awake) = IdlePreventer::keep() {
            assert!(awake.limit_us() <= 2, "{awake:?}");
        }
    }
}
