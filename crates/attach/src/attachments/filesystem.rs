//! The filesystems that a volume can carry.

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::mount::MountFlags;
use serde::{Deserialize, Serialize};

use crate::machine::error::AttachError;
use crate::machine::missing::Missing;
use crate::machine::programs::find_program;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Filesystem {
    #[default]
    Xfs,
    Ext4,
}

const MIB: u64 = 1 << 20;

impl Filesystem {
    /// As mount(8) calls it.
    pub fn name(self) -> &'static str {
        match self {
            Filesystem::Xfs => "xfs",
            Filesystem::Ext4 => "ext4",
        }
    }

    /// The smallest volume that it can be made on, in bytes. XFS's own tool refuses less than 300 MiB.
    pub fn smallest_bytes(self) -> u64 {
        match self {
            Filesystem::Xfs => 300 * MIB,
            Filesystem::Ext4 => 4 * MIB,
        }
    }

    /// What this host lacks to make and mount it.
    ///
    /// # Errors
    /// What is missing.
    pub fn probe(self) -> Result<(), Missing> {
        let (program, package) = self.tool();
        match find_program(program) {
            Some(_) => Ok(()),
            None => Err(Missing::new(
                format!("{program}, which makes {} filesystems", self.name()),
                format!("install the Debian package {package}"),
            )),
        }
    }

    fn tool(self) -> (&'static str, &'static str) {
        match self {
            Filesystem::Xfs => ("mkfs.xfs", "xfsprogs"),
            Filesystem::Ext4 => ("mkfs.ext4", "e2fsprogs"),
        }
    }

    /// The command that says what is wrong with one, and mends nothing.
    fn checker(self) -> &'static str {
        match self {
            Filesystem::Xfs => "xfs_repair -n",
            Filesystem::Ext4 => "e2fsck -n",
        }
    }

    /// Refuses a volume that is too small, with what to do instead.
    ///
    /// # Errors
    /// When it is too small.
    pub fn check_capacity(self, volume: &str, capacity_bytes: u64) -> Result<(), AttachError> {
        if capacity_bytes >= self.smallest_bytes() {
            return Ok(());
        }
        let advice = match self {
            Filesystem::Xfs if capacity_bytes >= Filesystem::Ext4.smallest_bytes() => {
                "; make it larger, or use ext4"
            }
            _ => "; make it larger",
        };
        Err(AttachError::failed(format!(
            "volume '{volume}' of {:.1} MiB is too small for {}, which needs {} MiB{advice}",
            capacity_bytes as f64 / MIB as f64,
            self.name(),
            self.smallest_bytes() / MIB,
        )))
    }

    /// Makes the filesystem. Nothing is discarded first and nothing is left to be initialised in the
    /// background later, where a measurement would see it.
    ///
    /// # Errors
    /// When the program that makes it is missing, or fails.
    pub fn make(self, device: &Path) -> Result<(), AttachError> {
        let (program, _) = self.tool();
        let path = match find_program(program) {
            Some(path) => path,
            None => return self.probe().map_err(AttachError::from),
        };
        let mut command = Command::new(path);
        match self {
            // Sectors and blocks of 4 KiB also where the device has smaller logical ones: parts of its blocks would cost a read each.
            Filesystem::Xfs => command.args(["-f", "-q", "-K", "-s", "size=4096"]),
            Filesystem::Ext4 => command.args([
                "-F",
                "-q",
                "-b",
                "4096",
                "-E",
                "nodiscard,lazy_itable_init=0,lazy_journal_init=0",
            ]),
        };
        let output = command
            .arg(device)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| AttachError::failed(format!("could not run {program}: {error}")))?;
        if output.status.success() {
            return Ok(());
        }
        let words = [output.stdout, output.stderr].concat();
        Err(AttachError::Failed {
            what: format!("{program} on {} failed ({})", device.display(), output.status),
            output: Some(String::from_utf8_lossy(&words).into_owned()),
        })
    }

    /// Mounts the filesystem, without access times: they would turn reads into writes.
    ///
    /// # Errors
    /// When the kernel refuses, with what may be the reason.
    pub fn mount(self, device: &Path, mount_point: &Path) -> Result<(), AttachError> {
        let options = match self {
            // A cloned volume has the identity of its origin, which may be mounted as well.
            Filesystem::Xfs => c"nouuid",
            Filesystem::Ext4 => c"noinit_itable",
        };
        // What was written to it elsewhere gives nobody rights or devices here.
        let flags = MountFlags::NOATIME | MountFlags::NOSUID | MountFlags::NODEV;
        rustix::mount::mount(device, mount_point, self.name(), flags, options).map_err(
            |errno| {
                let hint = match errno {
                    rustix::io::Errno::NODEV => format!(". This kernel has no {} support", self.name()),
                    rustix::io::Errno::INVAL | rustix::io::Errno::UCLEAN => {
                        format!(
                            ". The volume may hold no {} file system, or a damaged one; `{}` looks without a change to it",
                            self.name(),
                            self.checker()
                        )
                    }
                    // The target refuses the writes of a second host, and this is all that the kernel says
                    // about it.
                    rustix::io::Errno::IO => ". A request failed. Where the volume is served to several hosts, another one may \
                                              be writing to it: `underlay volume list` on its server shows which"
                        .to_owned(),
                    _ => String::new(),
                };
                AttachError::failed(format!(
                    "could not mount {} ({}) on {}: {errno}{hint}",
                    device.display(),
                    self.name(),
                    mount_point.display()
                ))
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_that_is_too_small_is_refused_with_what_fits() {
        let refused = Filesystem::Xfs.check_capacity("data", 100 * MIB).unwrap_err().to_string();
        assert!(
            refused.contains("'data'") && refused.contains("300 MiB") && refused.contains("ext4"),
            "{refused}"
        );
        let refused = Filesystem::Ext4.check_capacity("data", MIB).unwrap_err().to_string();
        assert!(refused.contains("4 MiB") && !refused.contains("use ext4"), "{refused}");
        Filesystem::Xfs.check_capacity("data", 300 * MIB).unwrap();
    }
}
