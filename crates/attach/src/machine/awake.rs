//! Idle CPUs that answer at once.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileTypeExt as _;

const DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";
const LATENCY_LIMIT: &str = "/dev/cpu_dma_latency";
/// The lightest sleep of real processors, from which one is back in a microsecond or two. Deeper ones take up to some 200.
const LIGHT_SLEEP_US: i32 = 2;

/// Keeps this host's CPUs from deep sleep while it lives.
///
/// A request to a modelled device rouses three or four threads on its way there and back. On a CPU that sleeps each costs 10 to 50 µs, since a
/// virtual machine's CPU goes back to its hypervisor; the real device's interrupt costs that once. The limit is the kernel's own (PM QoS): it
/// holds while the file is open, so that it ends with the process however that ends.
#[derive(Debug)]
pub struct Awake {
    _held: File,
    limit_us: u32,
}

impl Awake {
    /// `None` where the kernel takes no limit, or not from this process: then CPUs sleep as they like.
    pub fn keep() -> Option<Awake> {
        let driver = fs::read_to_string(DRIVER).ok()?;
        let limit_us = limit_for(driver.trim());
        let mut held = File::options().write(true).open(LATENCY_LIMIT).ok()?;
        if !held.metadata().ok()?.file_type().is_char_device() {
            return None;
        }
        held.write_all(&limit_us.to_ne_bytes()).ok()?;
        Some(Awake { _held: held, limit_us: limit_us.unsigned_abs() })
    }

    /// How long a CPU may take to wake up.
    pub fn limit_us(&self) -> u32 {
        self.limit_us
    }
}

/// To the driver of virtual machines every sleep is the hypervisor's, and it claims to be back from it in a microsecond.
fn limit_for(driver: &str) -> i32 {
    if driver == "haltpoll" { 0 } else { LIGHT_SLEEP_US }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_processors_do_not_sleep_at_all_and_real_ones_lightly() {
        assert_eq!(["haltpoll", "intel_idle", "acpi_idle", "none"].map(limit_for), [0, 2, 2, 2]);
    }

    #[test]
    fn the_limit_is_what_was_asked_for() {
        // Only root may set one, and not every kernel has it.
        if let Some(awake) = Awake::keep() {
            assert!(awake.limit_us() <= 2, "{awake:?}");
        }
    }
}
