//! The filesystems that a volume can carry.

use std::ffi::{CStr, CString};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::mount::MountFlags;
use serde::{Deserialize, Serialize};

use crate::machine::error::AttachError;
use crate::machine::missing::MissingCapability;
use crate::machine::programs::find_program;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FilesystemKind {
    #[default]
    Xfs,
    Ext4,
}

const MIB: u64 = 1 << 20;

impl FilesystemKind {
    /// Its name for mount(8).
    pub fn name(self) -> &'static str {
        match self {
            FilesystemKind::Xfs => "xfs",
            FilesystemKind::Ext4 => "ext4",
        }
    }

    /// The smallest possible volume, in bytes. XFS's own tool refuses less than 300 MiB.
    pub fn smallest_bytes(self) -> u64 {
        match self {
            FilesystemKind::Xfs => 300 * MIB,
            FilesystemKind::Ext4 => 4 * MIB,
        }
    }

    /// The program for creating or mounting it that this host lacks.
    ///
    /// # Errors
    /// The missing capability.
    pub fn probe(self) -> Result<(), MissingCapability> {
        let (program, package) = self.tool();
        match find_program(program) {
            Some(_) => Ok(()),
            None => Err(MissingCapability::new(
                format!("{program}, which makes {} filesystems", self.name()),
                format!("install the Debian package {package}"),
            )),
        }
    }

    fn tool(self) -> (&'static str, &'static str) {
        match self {
            FilesystemKind::Xfs => ("mkfs.xfs", "xfsprogs"),
            FilesystemKind::Ext4 => ("mkfs.ext4", "e2fsprogs"),
        }
    }

    /// The command that reports its damage without mending anything.
    fn checker(self) -> &'static str {
        match self {
            FilesystemKind::Xfs => "xfs_repair -n",
            FilesystemKind::Ext4 => "e2fsck -n",
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
            FilesystemKind::Xfs if capacity_bytes >= FilesystemKind::Ext4.smallest_bytes() => {
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

    /// Creates the file system. Nothing is discarded first, and nothing is left to be initialised in the background
    /// later, where a measurement would see it.
    ///
    /// # Errors
    /// # Errors
    /// When the program that creates it is missing, or fails.
    pub fn make(self, device: &Path) -> Result<(), AttachError> {
        let (program, _) = self.tool();
        let path = match find_program(program) {
            Some(path) => path,
            None => return self.probe().map_err(AttachError::from),
        };
        let mut command = Command::new(path);
        match self {
            // Sectors and blocks of 4 KiB even where the device has smaller logical ones, since writing parts of its
            // blocks would cost a read each.
            // cost a read each.
            FilesystemKind::Xfs => command.args(["-f", "-q", "-K", "-s", "size=4096"]),
            FilesystemKind::Ext4 => command.args([
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
        // Files written to it elsewhere must not grant rights or devices here.
        let flags = MountFlags::NOATIME | MountFlags::NOSUID | MountFlags::NODEV;
        rustix::mount::mount(device, mount_point, self.name(), flags, self.own_options())
            .map_err(|errno| self.refused(device, mount_point, errno))
    }

    /// Mounts it as before: with these flags, and with these options in addition to its own, where the kernel still
    /// accepts them. The kernel may show some that it does not accept. The mount point may have been exchanged
    /// meanwhile, so its path is checked again.
    ///
    /// # Errors
    /// As [`mount`](Self::mount), and when other users could have replaced the mount point.
    pub(crate) fn mount_again(
        self,
        device: &Path,
        mount_point: &Path,
        flags: MountFlags,
        options: &CStr,
    ) -> Result<(), AttachError> {
        let folder = underlay_files::open_mount_point(mount_point)
            .map_err(|error| AttachError::io("mount again on", mount_point, error))?;
        // By its descriptor: a link that replaces it from now on is not followed.
        let target = format!("/proc/self/fd/{}", folder.as_raw_fd());
        let mount =
            |options: &CStr| rustix::mount::mount(device, target.as_str(), self.name(), flags, options);
        let together = [self.own_options().to_bytes(), options.to_bytes()].join(&b',');
        let mounted = match CString::new(together) {
            Ok(together) if !options.is_empty() => match mount(&together) {
                Err(Errno::INVAL) => mount(self.own_options()),
                outcome => outcome,
            },
            _ => mount(self.own_options()),
        };
        mounted.map_err(|errno| self.refused(device, mount_point, errno))
    }

    fn own_options(self) -> &'static CStr {
        match self {
            // A cloned volume has the identity of its origin, which may be mounted as well.
            FilesystemKind::Xfs => c"nouuid",
            FilesystemKind::Ext4 => c"noinit_itable",
        }
    }

    fn refused(self, device: &Path, mount_point: &Path, errno: Errno) -> AttachError {
        let hint = match errno {
            Errno::NODEV => format!(". This kernel has no {} support", self.name()),
            Errno::INVAL | Errno::UCLEAN | Errno::BADMSG => format!(
                ". The volume may hold no {} file system, or a damaged one; `{}` looks without a change to it",
                self.name(),
                self.checker()
            ),
            // The target refuses the writes of a second host, and the kernel says no more than this.
            Errno::IO => ". A request failed. Where the volume is served to several hosts, another one may be writing to \
                          it: `underlay volume list` on its server shows which"
                .to_owned(),
            _ => String::new(),
        };
        let problem = format!(
            "could not mount {} ({}) on {}: {errno}{hint}",
            device.display(),
            self.name(),
            mount_point.display()
        );
        match errno {
            Errno::INVAL | Errno::UCLEAN | Errno::BADMSG => AttachError::NoFilesystem(problem),
            _ => AttachError::failed(problem),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `mount --keep` formats an unfinished disk because of this alone: a temporary failure must not destroy its data.
    #[test]
    fn transient_failure_is_not_a_missing_filesystem() {
        let (device, place) = (Path::new("/dev/loop0"), Path::new("/mnt"));
        let is_missing =
            |errno| matches!(FilesystemKind::Xfs.refused(device, place, errno), AttachError::NoFilesystem(_));
        assert!([Errno::INVAL, Errno::UCLEAN, Errno::BADMSG].into_iter().all(is_missing));
        for passing in
            [Errno::BUSY, Errno::NOMEM, Errno::IO, Errno::NODEV, Errno::PERM, Errno::NOENT, Errno::NXIO]
        {
            assert!(!is_missing(passing), "{passing}");
        }
    }

    #[test]
    fn too_small_volume_is_refused_with_minimum_size() {
        let refused = FilesystemKind::Xfs.check_capacity("data", 100 * MIB).unwrap_err().to_string();
        assert!(
            refused.contains("'data'") && refused.contains("300 MiB") && refused.contains("ext4"),
            "{refused}"
        );
        let refused = FilesystemKind::Ext4.check_capacity("data", MIB).unwrap_err().to_string();
        assert!(refused.contains("4 MiB") && !refused.contains("use ext4"), "{refused}");
        FilesystemKind::Xfs.check_capacity("data", 300 * MIB).unwrap();
    }
}
