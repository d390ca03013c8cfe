//! A new mount namespace starts with a copy of every mount on this machine, including those of other runs. A device is in use as
//! long as it is mounted anywhere, so a run's device could not be detached until the last such process of another run has ended.
//!
//! If mounts are shared, as on most machines, unmounting outside unmounts the copy as well. If they are private, as in most
//! containers, it does not: then the process must unmount what isn't its own.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use underlay_files::mountinfo::{self, Mount};

/// How an attached directory shows in the table of mounts,
const DIRECTORY: &str = "fuse.underlay";
/// and how the files behind loop devices do.
const EXPORT: &str = "underlay:";
/// Block devices that a program of a user serves.
const SERVED_BY_A_USER: &str = "/dev/ublkb";
const LOOP: &str = "/dev/loop";
const POLL: Duration = Duration::from_millis(5);

/// Unmounts, in the namespace of `process`, what other runs have attached. The mounts that its own directories `own` are on stay.
/// Waits up to `limit` for a process that has just started to enter its namespace.
pub(crate) fn let_go_of_others(process: u32, own: &[&Path], limit: Duration) -> io::Result<()> {
    let_go(process, limit, |mounts| others(mounts, own, &backing_file))
}

/// The same in the namespace of the calling thread, before its program runs.
pub(crate) fn let_go_of_others_here(own: &[&Path]) -> io::Result<()> {
    let table = std::fs::read("/proc/thread-self/mountinfo")?;
    unmount_all(&others(&mountinfo::parse(&table), own, &backing_file));
    Ok(())
}

/// In reverse order, since later mounts are on top of earlier ones.
fn unmount_all(places: &[PathBuf]) {
    for place in places.iter().rev() {
        // Fails only if it is no longer mounted.
        let _ = unmount(place, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
    }
}

fn let_go(process: u32, limit: Duration, chosen: impl Fn(&[Mount]) -> Vec<PathBuf> + Sync) -> io::Result<()> {
    let link = PathBuf::from(format!("/proc/{process}/ns/mnt"));
    let ours = std::fs::metadata("/proc/thread-self/ns/mnt")?.ino();
    let started = Instant::now();
    while std::fs::metadata(&link)?.ino() == ours {
        if started.elapsed() > limit {
            let problem = format!("process {process} did not get a mount namespace of its own");
            return Err(io::Error::new(io::ErrorKind::TimedOut, problem));
        }
        std::thread::sleep(POLL);
    }
    let link = File::open(link)?;
    // Opened before entering: in the namespace, `/proc` may be that of other processes.
    let mut table = File::open(format!("/proc/{process}/mountinfo"))?;
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("in-namespace".to_owned());
        let thread = thread.spawn_scoped(scope, || -> io::Result<()> {
            // SAFETY: this flag gives the calling thread a working directory of its own, which setns(2) requires for mounts.
            unsafe { unshare_unsafe(UnshareFlags::FS) }?;
            move_into_link_name_space(link.as_fd(), Some(LinkNameSpaceType::Mount))?;
            let mut text = Vec::new();
            table.read_to_end(&mut text)?;
            unmount_all(&chosen(&mountinfo::parse(&text)));
            Ok(())
        })?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The mounts that Underlay made for directories other than `own`, in the order of the table.
fn others(mounts: &[Mount], own: &[&Path], backing: &dyn Fn(&Path) -> Option<PathBuf>) -> Vec<PathBuf> {
    let is_export =
        |mount: &Mount| mount.filesystem == "fuse" && mount.source.to_string_lossy().starts_with(EXPORT);
    let exports: Vec<&Path> =
        mounts.iter().filter(|mount| is_export(mount)).map(|mount| mount.mount_point.as_path()).collect();
    let attached = |mount: &Mount| {
        let source = mount.source.to_string_lossy();
        let on_export = || {
            backing(&mount.source).is_some_and(|file| exports.iter().any(|export| file.starts_with(export)))
        };
        mount.filesystem == DIRECTORY
            || is_export(mount)
            || source.starts_with(SERVED_BY_A_USER)
            || (source.starts_with(LOOP) && on_export())
    };
    let needed = |place: &Path| own.iter().any(|own| own.starts_with(place) || place.starts_with(own));
    let others =
        mounts.iter().filter(|mount| mount.is_private && attached(mount) && !needed(&mount.mount_point));
    others.map(|mount| mount.mount_point.clone()).collect()
}

/// The file behind a loop device.
fn backing_file(device: &Path) -> Option<PathBuf> {
    let name = device.file_name()?;
    let file = Path::new("/sys/class/block").join(name).join("loop/backing_file");
    let text = std::fs::read_to_string(file).ok()?;
    Some(PathBuf::from(text.trim_end_matches('\n')))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};

    use super::*;

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
";

    fn behind(device: &Path) -> Option<PathBuf> {
        let file = match device.to_str()? {
            "/dev/loop0" => "/run/a/export/data",
            "/dev/loop1" => "/var/lib/snapd/java.snap",
            "/dev/loop2" => "/run/b/export/data",
            _ => return None,
        };
        Some(PathBuf::from(file))
    }

    #[test]
    fn what_others_attached_is_told_from_ones_own_and_from_the_machines() {
        let mounts = mountinfo::parse(TABLE);
        assert_eq!(mounts.len(), 11);
        assert_eq!(mounts[2].mount_point, Path::new("/run/a/data 0"));
        let found = |own: &str| others(&mounts, &[Path::new(own)], &behind);
        let paths = |all: &[&str]| all.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(
            found("/run/b/data/dn0"),
            paths(&["/run/a/export", "/run/a/data 0", "/run/b/export", "/run/d", "/run/c"])
        );
        // A directory of one's own may have the mounts below it.
        assert_eq!(found("/run/a"), paths(&["/run/b/export", "/run/b/data", "/run/d", "/run/c"]));
    }

    #[test]
    fn broken_lines_are_no_mounts() {
        for line in
            ["", "1 2 3", "22 1 254:0 / / rw", "22 1 254:0 / / rw shared:1 -", "22 1 254:0 / / rw - ext4"]
        {
            assert_eq!(mountinfo::parse(line.as_bytes()), [], "{line}");
        }
    }

    #[test]
    fn a_process_lets_go_and_the_mount_outside_stays() {
        let folder = tempfile::tempdir().unwrap();
        let place = std::fs::canonicalize(folder.path()).unwrap();
        let seen_by = |process: &str| {
            let table = std::fs::read(format!("/proc/{process}/mountinfo")).unwrap();
            mountinfo::parse(&table).iter().any(|mount| mount.mount_point == place)
        };
        // In a namespace that goes with this thread, so that nothing stays behind however the test ends.
        let thread = || {
            // SAFETY: these flags change the calling thread's mounts alone.
            unsafe { unshare_unsafe(UnshareFlags::FS | UnshareFlags::NEWNS) }.unwrap();
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
            mount("none", &place, "tmpfs", MountFlags::empty(), None).unwrap();
            let mut inside = Command::new("unshare")
                .args(["--mount", "--propagation", "unchanged", "sleep", "60"])
                .spawn()
                .unwrap();
            let chosen = |mounts: &[Mount]| {
                mounts
                    .iter()
                    .filter(|mount| mount.mount_point == place)
                    .map(|mount| mount.mount_point.clone())
                    .collect()
            };
            let let_go = let_go(inside.id(), Duration::from_secs(20), chosen);
            let seen = (seen_by(&inside.id().to_string()), seen_by("thread-self"));
            inside.kill().unwrap();
            inside.wait().unwrap();
            let_go.unwrap();
            assert_eq!(seen, (false, true));
        };
        std::thread::scope(|scope| scope.spawn(thread).join()).unwrap();
    }
}
