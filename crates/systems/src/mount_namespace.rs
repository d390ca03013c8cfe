//! A new mount namespace starts with a copy of every mount on this machine, including those of other runs. A device is
//! in use as long as it is mounted anywhere, so another run could not detach its device until the last process of such
//! a namespace has ended. So the thread that starts a program makes the namespace and unmounts there what is not the
//! program's, before the program runs.
//!
//! Nothing propagates out of such a namespace. Unmounting outside unmounts inside as well, where mounts are shared, as
//! on most machines: so a mount that another run makes later leaves, too. In most containers mounts are private, and a
//! later one doesn't come.

use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use underlay_files::mountinfo::{self, Mount};

/// How an attached directory shows in the table of mounts,
const DIRECTORY: &str = "fuse.underlay";
/// and how the files behind loop devices do.
const EXPORT: &str = "underlay:";
/// Block devices that a program of a user serves.
const SERVED_BY_A_USER: &str = "/dev/ublkb";
const LOOP: &str = "/dev/loop";
const KERNEL_NVME: &str = "/dev/nvme";
/// How the subsystems of our volume servers are called (`underlay_volume::server::nqn`).
const OUR_SUBSYSTEMS: &[u8] = b"nqn.2025-11.internal.underlay:";

/// Gives the calling thread mounts of its own, without those that other runs have attached. Mounts that its own
/// directories `own` are on stay. With `more` it gets other namespaces of its own as well.
pub(crate) fn enter_own_mounts(own: &[&Path], more: UnshareFlags) -> io::Result<()> {
    // SAFETY: these flags change only what the calling thread sees, and no file descriptors.
    unsafe { unshare_unsafe(UnshareFlags::FS | UnshareFlags::NEWNS | more) }?;
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    let table = std::fs::read("/proc/thread-self/mountinfo")?;
    unmount_all(&others(&mountinfo::parse(&table), own, &is_on_file_below, &is_of_our_servers));
    Ok(())
}

/// In reverse order, since later mounts are on top of earlier ones.
fn unmount_all(places: &[PathBuf]) {
    for place in places.iter().rev() {
        // Fails only if it is no longer mounted.
        let _ = unmount(place, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
    }
}

/// The mounts that Underlay made for directories other than `own`, in the order of the table.
fn others(
    mounts: &[Mount],
    own: &[&Path],
    is_on_file_below: &dyn Fn(&Path, &Path) -> bool,
    is_of_our_servers: &dyn Fn(&Path) -> bool,
) -> Vec<PathBuf> {
    let is_export =
        |mount: &Mount| mount.filesystem == "fuse" && mount.source.to_string_lossy().starts_with(EXPORT);
    let exports: Vec<&Path> =
        mounts.iter().filter(|mount| is_export(mount)).map(|mount| mount.mount_point.as_path()).collect();
    let attached = |mount: &Mount| {
        let source = mount.source.to_string_lossy();
        let on_export = || exports.iter().any(|export| is_on_file_below(&mount.source, export));
        mount.filesystem == DIRECTORY
            || is_export(mount)
            || source.starts_with(SERVED_BY_A_USER)
            || (source.starts_with(LOOP) && on_export())
            || (source.starts_with(KERNEL_NVME) && is_of_our_servers(&mount.source))
    };
    let needed = |place: &Path| own.iter().any(|own| own.starts_with(place) || place.starts_with(own));
    // To unmount a shared one would unmount it for others too.
    let others =
        mounts.iter().filter(|mount| !mount.is_shared && attached(mount) && !needed(&mount.mount_point));
    others.map(|mount| mount.mount_point.clone()).collect()
}

/// Whether a loop device is on a file below this directory.
fn is_on_file_below(device: &Path, directory: &Path) -> bool {
    backing_file(device).is_some_and(|file| file.starts_with(directory))
}

fn backing_file(device: &Path) -> Option<PathBuf> {
    let file = Path::new("/sys/class/block").join(device.file_name()?).join("loop/backing_file");
    let text = std::fs::read_to_string(file).ok()?;
    Some(PathBuf::from(text.trim_end_matches('\n')))
}

/// Whether a device of the kernel's NVMe driver is a volume of one of our servers.
fn is_of_our_servers(device: &Path) -> bool {
    let Some(name) = device.file_name() else { return false };
    let subsystem = std::fs::read(Path::new("/sys/class/block").join(name).join("device/subsysnqn"));
    subsystem.is_ok_and(|name| name.starts_with(OUR_SUBSYSTEMS))
}

#[cfg(test)]
mod tests {
    use rustix::mount::{MountFlags, mount};

    use super::*;
    use crate::child::ChildProcess;
    use crate::system::SystemResources;

    const TABLE: &[u8] = b"\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
31 22 0:40 / /run/a/export rw - fuse underlay:session-a rw
32 22 7:0 / /run/a/data\\0400 rw - xfs /dev/loop0 rw
33 22 7:1 / /snap/java ro - squashfs /dev/loop1 ro
34 22 0:41 / /run/b/export rw - fuse underlay:session-b rw
35 22 7:2 / /run/b/data rw - xfs /dev/loop2 rw
39 22 0:44 / /run/d rw - fuse.underlay underlay:session-d rw
40 22 0:45 / /mnt/sshfs rw - fuse.sshfs host: rw
36 22 0:42 / /mnt/shared rw shared:7 - fuse.underlay underlay rw
37 22 0:43 / /mnt/slave rw master:7 - fuse.underlay underlay rw
38 22 259:3 / /run/c rw - ext4 /dev/ublkb0 rw
41 22 259:4 / /run/e rw - xfs /dev/nvme2n1 rw
42 22 259:5 / /srv rw - xfs /dev/nvme0n1p2 rw
";

    fn is_behind(device: &Path, directory: &Path) -> bool {
        let file = match device.to_str() {
            Some("/dev/loop0") => "/run/a/export/data",
            Some("/dev/loop1") => "/var/lib/snapd/java.snap",
            Some("/dev/loop2") => "/run/b/export/data",
            _ => return false,
        };
        Path::new(file).starts_with(directory)
    }

    #[test]
    fn foreign_mounts_are_separated_from_own_and_machine() {
        let mounts = mountinfo::parse(TABLE);
        assert_eq!(mounts.len(), 13);
        assert_eq!(mounts[2].mount_point, Path::new("/run/a/data 0"));
        let served = |device: &Path| device == Path::new("/dev/nvme2n1");
        let found = |own: &str| others(&mounts, &[Path::new(own)], &is_behind, &served);
        let paths = |all: &[&str]| all.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(
            found("/run/b/data/dn0"),
            paths(&[
                "/run/a/export",
                "/run/a/data 0",
                "/run/b/export",
                "/run/d",
                "/mnt/slave",
                "/run/c",
                "/run/e"
            ])
        );
        // A directory of one's own may have the mounts below it.
        let expected = ["/run/b/export", "/run/b/data", "/run/d", "/mnt/slave", "/run/c", "/run/e"];
        assert_eq!(found("/run/a"), paths(&expected));
    }

    #[test]
    fn broken_lines_are_no_mounts() {
        for line in
            ["", "1 2 3", "22 1 254:0 / / rw", "22 1 254:0 / / rw shared:1 -", "22 1 254:0 / / rw - ext4"]
        {
            assert_eq!(mountinfo::parse(line.as_bytes()), [], "{line}");
        }
    }

    /// The program's first look at its mounts, which is before anything could be done about them from outside.
    #[test]
    fn program_starts_without_mounts_of_other_runs() {
        let folder = tempfile::tempdir().unwrap();
        let here = std::fs::canonicalize(folder.path()).unwrap();
        let [other, own] = ["other", "own"].map(|name| here.join(name));
        [&other, &own].iter().for_each(|place| std::fs::create_dir(place).unwrap());
        // In a namespace that goes with this thread, so that nothing stays behind however the test ends.
        let thread = || {
            // SAFETY: these flags change the calling thread's mounts alone.
            unsafe { unshare_unsafe(UnshareFlags::FS | UnshareFlags::NEWNS) }.unwrap();
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
            for place in [&other, &own] {
                mount("/dev/ublkb9999", place.as_path(), "tmpfs", MountFlags::empty(), None).unwrap();
            }
            let mut command = std::process::Command::new("cat");
            command.arg("/proc/self/mountinfo");
            let log = here.join("log");
            let places = vec![own.clone()];
            let child = ChildProcess::spawn_in_own_mounts(
                "test",
                "test",
                command,
                &log,
                &SystemResources::unlimited(),
                places,
            )
            .unwrap();
            assert!(child.state().wait(std::time::Duration::from_secs(60)));
            let shows = |table: Vec<u8>, place: &Path| {
                mountinfo::parse(&table).iter().any(|mount| mount.mount_point == place)
            };
            let inside = std::fs::read(&log).unwrap();
            assert!(!shows(inside.clone(), &other) && shows(inside, &own));
            let outside = || std::fs::read("/proc/thread-self/mountinfo").unwrap();
            assert!(shows(outside(), &other) && shows(outside(), &own));
        };
        std::thread::scope(|scope| scope.spawn(thread).join()).unwrap();
    }
}
