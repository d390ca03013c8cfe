//! This process's rights.

use std::fs;

use crate::machine::missing::MissingCapability;

/// Mounting and loop devices need CAP_SYS_ADMIN, bit 21 of the effective set (capabilities(7)).
///
/// # Errors
/// The missing capability.
pub fn probe_privileges() -> Result<(), MissingCapability> {
    const CAP_SYS_ADMIN: u32 = 21;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective =
        status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    match effective {
        Some(set) if set & (1 << CAP_SYS_ADMIN) != 0 => Ok(()),
        _ => Err(MissingCapability::new(
            "the right to mount (CAP_SYS_ADMIN)",
            "run with sudo, in a container with --privileged; or use real storage with `paths = [...]`, which needs no right",
        )),
    }
}

/// # Errors
/// The missing capability.
pub(crate) fn probe_fuse() -> Result<(), MissingCapability> {
    match fs::File::options().read(true).write(true).open("/dev/fuse") {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Err(MissingCapability::new(
            format!("FUSE (/dev/fuse: {error})"),
            "run with sudo, or let every user open it, as udev does where it runs: `sudo chmod 0666 /dev/fuse`",
        )),
        Err(error) => Err(MissingCapability::new(
            format!("FUSE (/dev/fuse: {error})"),
            "load the module with `modprobe fuse`, and in a container pass --device /dev/fuse",
        )),
    }
}
