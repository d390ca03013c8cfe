//! The file systems of a storage whose power comes back: the checks before they are unmounted, and how they are
//! restored.

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, MountPropagationFlags, mount_change};
use serde::{Deserialize, Serialize};
use underlay_files::{Access, Folder, shell};

use crate::attachments::filesystem::FilesystemKind;
use crate::machine::error::AttachError;
use crate::machine::mounts::{self, Mount};
use crate::machine::processes;

/// In the storage's session directory: the file systems to mount again. The file exists from before the first is
/// unmounted until the last is mounted, so that a restart that failed or was killed can be completed.
const PENDING: &str = "return.json";
const LOCK: &str = "return.lock";
const MAX_PENDING_BYTES: u64 = 1 << 20;
/// How long a program that has just ended may take to release its files.
const HOLDERS_LIMIT: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(300);

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RemountPlan {
    pub device: PathBuf,
    pub mount_point: PathBuf,
    pub filesystem: FilesystemKind,
    /// As in `/proc/self/mountinfo`: the options of the mount, and those of the file system.
    pub options: String,
    pub super_options: String,
    pub is_private: bool,
    /// Its unmounting propagates to other mount namespaces. Earlier versions did not note it.
    #[serde(default)]
    pub is_shared: bool,
}

/// Flags of a mount, by their words in mountinfo.
const FLAGS: [(&str, MountFlags); 11] = [
    ("ro", MountFlags::RDONLY),
    ("nosuid", MountFlags::NOSUID),
    ("nodev", MountFlags::NODEV),
    ("noexec", MountFlags::NOEXEC),
    ("noatime", MountFlags::NOATIME),
    ("nodiratime", MountFlags::NODIRATIME),
    ("relatime", MountFlags::RELATIME),
    ("sync", MountFlags::SYNCHRONOUS),
    ("dirsync", MountFlags::DIRSYNC),
    ("lazytime", MountFlags::LAZYTIME),
    ("nosymfollow", MountFlags::NOSYMFOLLOW),
];
/// The words of [`FLAGS`] that belong to a file system rather than a mount. A file system that failed without power may
/// report `ro`, which ends with its mount.
const SUPER_FLAGS: [&str; 3] = ["sync", "dirsync", "lazytime"];
/// Words that mountinfo shows among a file system's options but that no mount accepts.
const STATES: [&str; 5] = ["rw", "ro", "seclabel", "shutdown", "emergency_ro"];

impl RemountPlan {
    fn flags(&self) -> MountFlags {
        let own = self.options.split(',');
        let shared = self.super_options.split(',').filter(|word| SUPER_FLAGS.contains(word));
        let words: Vec<&str> = own.chain(shared).collect();
        let mut flags = MountFlags::empty();
        for (_, flag) in FLAGS.iter().filter(|(word, _)| words.contains(word)) {
            flags |= *flag;
        }
        // Neither of the two words means that every access is recorded, which is not the kernel's default.
        let is_strict = !flags.intersects(MountFlags::NOATIME | MountFlags::RELATIME);
        if is_strict { flags | MountFlags::STRICTATIME } else { flags }
    }

    fn filesystem_options(&self) -> CString {
        let is_option = |word: &&str| !STATES.contains(word) && !SUPER_FLAGS.contains(word);
        let options: Vec<&str> = self.super_options.split(',').filter(is_option).collect();
        CString::new(options.join(",")).unwrap_or_default()
    }

    /// Mounts it as before.
    pub(super) fn mount(&self) -> Result<(), AttachError> {
        let (device, place) = (&self.device, &self.mount_point);
        self.filesystem.mount_again(device, place, self.flags(), &self.filesystem_options())?;
        if self.is_private {
            mount_change(place, MountPropagationFlags::PRIVATE)
                .map_err(|errno| AttachError::io("make private the mount at", place, errno))?;
        }
        Ok(())
    }
}

/// The mounts of these devices, in the order of the table of mounts.
///
/// # Errors
/// When a mount from these devices could not be restored unchanged; the message names it.
pub(super) fn plan(table: &[Mount], devices: &[PathBuf]) -> Result<Vec<RemountPlan>, AttachError> {
    let own: Vec<&Mount> = table.iter().filter(|mount| devices.contains(&mount.source)).collect();
    let mut remounts: Vec<RemountPlan> = Vec::new();
    for mount in &own {
        let (device, place) = (mount.source.display(), mount.mount_point.display());
        if mount.root != Path::new("/") {
            return Err(restart_error(format!(
                "{place} shows the directory {} of the file system on {device}",
                mount.root.display()
            )));
        }
        if let Some(first) = remounts.iter().find(|first| first.device == mount.source) {
            return Err(restart_error(format!(
                "{place} is a second mount of {device}, which is also at {}",
                first.mount_point.display()
            )));
        }
        let filesystem = match mount.filesystem.as_str() {
            "xfs" => FilesystemKind::Xfs,
            "ext4" => FilesystemKind::Ext4,
            other => return Err(restart_error(format!("{place} has a file system of the type {other}"))),
        };
        let is_known = |word: &&str| *word == "rw" || FLAGS.iter().any(|(flag, _)| flag == word);
        if let Some(unknown) = mount.options.split(',').find(|word| !is_known(word)) {
            return Err(restart_error(format!("{place} is mounted with {unknown}")));
        }
        remounts.push(RemountPlan {
            device: mount.source.clone(),
            mount_point: mount.mount_point.clone(),
            filesystem,
            options: mount.options.clone(),
            super_options: mount.super_options.clone(),
            is_private: mount.is_private,
            is_shared: mount.is_shared,
        });
    }
    let is_inside = |mount: &&Mount| {
        !devices.contains(&mount.source)
            && own.iter().any(|own| mount.mount_point.starts_with(&own.mount_point))
            // An earlier mount that is hidden is not in the way.
            && table.iter().rfind(|last| last.mount_point == mount.mount_point) == Some(*mount)
    };
    if let Some(inside) = table.iter().find(is_inside) {
        let (place, source) = (inside.mount_point.display(), inside.source.display());
        return Err(restart_error(format!("{source} is mounted inside it at {place}")));
    }
    Ok(remounts)
}

/// The error for `obstacle`, a mount that could not be restored.
fn restart_error(obstacle: String) -> AttachError {
    AttachError::InUse(format!(
        "{obstacle}. The power comes back as with a boot, after which that would not be mounted as it is now. \
         Nothing has changed: unmount it and try again"
    ))
}

/// Refuses while others use one of them: programs with open files, and other mount namespaces.
pub(super) fn check_free(remounts: &[RemountPlan]) -> Result<(), AttachError> {
    for remount in remounts {
        // If this one is shared, unmounting here unmounts there as well. A mount that only receives propagates nothing.
        let other_mounts = processes::mounted_elsewhere(&remount.device);
        if let Some(first) = other_mounts.iter().find(|other| other.is_private || !remount.is_shared) {
            return Err(AttachError::InUse(format!(
                "{} can't be mounted anew: {first}. Nothing has changed: end it and try again",
                remount.device.display()
            )));
        }
    }
    let deadline = Instant::now() + HOLDERS_LIMIT;
    for remount in remounts {
        while !processes::holders_on(&remount.mount_point, &remount.device).is_empty() {
            if Instant::now() >= deadline {
                return Err(mounts::explain(&remount.mount_point, mounts::UnmountError::Busy));
            }
            std::thread::sleep(POLL);
        }
    }
    Ok(())
}

/// Refuses mount points that others could exchange while nothing is mounted there. Existing mounts on them may belong
/// to anyone.
pub(super) fn check_places(remounts: &[RemountPlan]) -> Result<(), AttachError> {
    // A file system without power may not even report the owners of its directories, so paths inside of one are checked
    // when it is mounted.
    let is_inside = |place: &Path| {
        let mut others = remounts.iter().filter(|other| other.mount_point != place);
        others.any(|other| place.starts_with(&other.mount_point))
    };
    for place in remounts.iter().map(|remount| remount.mount_point.as_path()) {
        let Some(above) = place.parent().filter(|_| !is_inside(place)) else { continue };
        underlay_files::check_trusted_path(above).map_err(|error| {
            AttachError::failed(format!(
                "{} can't be mounted again safely: {error}. Nothing has changed: end the storage, and mount it elsewhere",
                place.display()
            ))
        })?;
    }
    Ok(())
}

/// All file systems to mount again, in the order of unmounting: those left by an earlier restart, and then those
/// mounted now, in the order of the table of mounts. The last to be unmounted is the first to be mounted.
pub(super) fn sort_for_unmounting(left: &[RemountPlan], mounted: &[RemountPlan]) -> Vec<RemountPlan> {
    left.iter().chain(mounted.iter().rev()).cloned().collect()
}

/// The part of `planned` to mount again after an interrupted restart: all that is not in the table of mounts. This
/// includes mounts whose unmounting has not ended: the kernel first removes a mount from its table, and continues to
/// write out.
pub(super) fn still_to_mount(
    mut planned: Vec<RemountPlan>,
    table: std::io::Result<Vec<Mount>>,
) -> Vec<RemountPlan> {
    // At worst it names one that is mounted, which the next call notices.
    let table = table.unwrap_or_default();
    planned.retain(|remount| table.iter().all(|mount| mount.source != remount.device));
    planned
}

/// Mounts that an earlier restart has unmounted and not mounted again.
pub(super) fn pending(session: &Path) -> Result<Vec<RemountPlan>, AttachError> {
    let path = session.join(PENDING);
    let unreadable = |error: std::io::Error| AttachError::io("read", &path, error);
    let folder = Folder::open(session).map_err(unreadable)?;
    if !folder.has(PENDING) {
        return Ok(Vec::new());
    }
    let text = folder.read_text(PENDING, MAX_PENDING_BYTES).map_err(unreadable)?;
    serde_json::from_str(&text).map_err(|error| unreadable(std::io::Error::other(error)))
}

/// Allows one restart at a time, as long as this lives.
pub(super) struct RestartLock {
    folder: Folder,
    _lock: std::fs::File,
}

impl RestartLock {
    pub(super) fn take(session: &Path) -> Result<RestartLock, AttachError> {
        let cannot = |error: std::io::Error| AttachError::io("lock", &session.join(LOCK), error);
        let folder = Folder::open(session).map_err(cannot)?;
        let lock = folder.file(LOCK).map_err(cannot)?;
        match lock.try_lock() {
            Ok(()) => Ok(RestartLock { folder, _lock: lock }),
            Err(std::fs::TryLockError::WouldBlock) => Err(AttachError::InUse(
                "another process is bringing back the power of this storage: wait until it has ended"
                    .to_owned(),
            )),
            Err(std::fs::TryLockError::Error(error)) => Err(cannot(error)),
        }
    }

    /// Records the file systems that are still to be mounted.
    pub(super) fn note(&self, remounts: &[RemountPlan]) -> Result<(), AttachError> {
        let noted = match remounts {
            [] => self.folder.remove_if_there(PENDING),
            some => serde_json::to_vec(some)
                .map_err(std::io::Error::other)
                .and_then(|text| self.folder.replace(PENDING, Access::Private, &text)),
        };
        noted.map_err(|error| AttachError::io("note in", &self.folder.path().join(PENDING), error))
    }
}

/// An interrupted restart: the file systems that are not mounted now, and how to restore them.
pub(super) fn unfinished(error: &AttachError, unmounted: &[RemountPlan]) -> AttachError {
    let [first, ..] = unmounted else { return AttachError::failed(error.to_string()) };
    let places: Vec<String> =
        unmounted.iter().map(|remount| remount.mount_point.display().to_string()).collect();
    AttachError::failed(format!(
        "{error}\n  not mounted now: {}. What is written there goes to this host's own disk\n  the way back: \
         `underlay fault {} return` once that is mended; it mounts them as they were. If the device daemon has ended, end the storage's \
         owner instead, and mount it again with the same --keep",
        places.join(", "),
        shell::word(&first.mount_point.to_string_lossy())
    ))
}

#[cfg(test)]
mod tests {
    use underlay_files::mountinfo;

    use super::*;

    fn mount_points(remounts: &[RemountPlan]) -> Vec<&str> {
        remounts.iter().filter_map(|remount| remount.mount_point.to_str()).collect()
    }

    #[test]
    fn nested_mounts_are_recorded_outer_first() {
        let session = tempfile::tempdir().unwrap();
        let inner = "40 32 7:5 / /mnt/slow/inner rw - ext4 /dev/loop5 rw\n";
        let mounted = planned(inner, &["/dev/loop0", "/dev/loop5"]).unwrap();
        assert_eq!(mount_points(&mounted), ["/mnt/slow", "/mnt/slow/inner"]);
        // As the first note leaves it if the process is killed before the first unmount.
        RestartLock::take(session.path()).unwrap().note(&sort_for_unmounting(&[], &mounted)).unwrap();
        let mut left = pending(session.path()).unwrap();
        assert_eq!(mount_points(&left), ["/mnt/slow/inner", "/mnt/slow"]);
        left.reverse();
        assert_eq!(left, mounted);
        // A file system that an earlier restart has unmounted was inside of one that is unmounted now.
        let [outer, inner] = mounted.try_into().unwrap();
        assert_eq!(
            sort_for_unmounting(std::slice::from_ref(&inner), std::slice::from_ref(&outer)),
            [inner.clone(), outer.clone()]
        );
    }

    #[test]
    fn mount_with_slow_unmount_stays_on_list() {
        let mounted = planned("", &["/dev/loop0", "/dev/ublkb0"]).unwrap();
        let planned = sort_for_unmounting(&[], &mounted);
        assert_eq!(mount_points(&planned), ["/mnt/log", "/mnt/slow"]);
        // The kernel has removed /mnt/log from its table, and is still writing out.
        let table = |text: &str| Ok(mountinfo::parse(text.as_bytes()));
        let slow = "32 22 7:0 / /mnt/slow rw - xfs /dev/loop0 rw\n";
        assert_eq!(mount_points(&still_to_mount(planned.clone(), table(slow))), ["/mnt/log"]);
        assert_eq!(still_to_mount(planned.clone(), table("")), planned);
        // Mounts that can't be checked are kept.
        let unreadable = Err(std::io::Error::other("no /proc"));
        assert_eq!(still_to_mount(planned.clone(), unreadable), planned);
        assert_eq!(still_to_mount(planned, table(TABLE)), []);
    }

    #[test]
    fn exchangeable_mount_point_is_refused_before_unmounting() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let outer = folder.path().canonicalize().unwrap();
        let theirs = outer.join("theirs");
        std::fs::create_dir_all(theirs.join("place")).unwrap();
        let mounted_on = |place: &Path| {
            let line = format!("34 22 7:3 / {} rw - ext4 /dev/loop3 rw\n", place.display());
            planned(&line, &["/dev/loop3"]).unwrap()
        };
        let remounts = mounted_on(&theirs.join("place"));
        check_places(&remounts).unwrap();
        std::os::unix::fs::chown(&theirs, Some(12_345), None).unwrap();
        let refused = check_places(&remounts).unwrap_err().to_string();
        assert!(refused.contains("user 12345") && refused.contains("Nothing has changed"), "{refused}");
        // Inside of another one of the storage, which may be without power.
        check_places(&[remounts, mounted_on(&outer)].concat()).unwrap();
    }

    #[test]
    fn unsupported_flag_is_refused() {
        let mountinfo_line = |flags: &str| format!("34 22 7:3 / /mnt/x rw,{flags} - ext4 /dev/loop3 rw\n");
        let refused = planned(&mountinfo_line("idmapped"), &["/dev/loop3"]).unwrap_err();
        assert!(refused.contains("/mnt/x is mounted with idmapped"), "{refused}");
        let [remount] =
            planned(&mountinfo_line("nosymfollow,relatime"), &["/dev/loop3"]).unwrap().try_into().unwrap();
        assert_eq!(remount.flags(), MountFlags::NOSYMFOLLOW | MountFlags::RELATIME);
    }

    #[test]
    fn note_of_earlier_version_is_parsed() {
        let text = r#"{"device":"/dev/loop0","mount_point":"/m","filesystem":"xfs","options":"rw","super_options":"rw","is_private":true}"#;
        let remount: RemountPlan = serde_json::from_str(text).unwrap();
        assert!(remount.is_private && !remount.is_shared);
    }

    const TABLE: &str = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
31 22 0:40 / /run/a/export rw - fuse underlay:session-a rw
32 22 7:0 / /mnt/slow rw,nosuid,nodev,noatime shared:9 - xfs /dev/loop0 rw,attr2,inode64,nouuid,noquota
33 22 259:3 / /mnt/log ro,noexec,relatime - ext4 /dev/ublkb0 ro,sync,stripe=16
";

    fn planned(more: &str, devices: &[&str]) -> Result<Vec<RemountPlan>, String> {
        let table = mountinfo::parse(format!("{TABLE}{more}").as_bytes());
        let devices: Vec<PathBuf> = devices.iter().map(PathBuf::from).collect();
        plan(&table, &devices).map_err(|error| error.to_string())
    }

    #[test]
    fn filesystems_behind_loop_and_ublk_keep_mount_options() {
        let [slow, log] = planned("", &["/dev/loop0", "/dev/ublkb0"]).unwrap().try_into().unwrap();
        assert_eq!((slow.mount_point.to_str(), slow.filesystem), (Some("/mnt/slow"), FilesystemKind::Xfs));
        let expected = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
        assert_eq!((slow.flags(), slow.is_private), (expected, false));
        assert_eq!(slow.filesystem_options().as_c_str(), c"attr2,inode64,nouuid,noquota");
        assert_eq!((log.mount_point.to_str(), log.filesystem), (Some("/mnt/log"), FilesystemKind::Ext4));
        let expected =
            MountFlags::RDONLY | MountFlags::NOEXEC | MountFlags::RELATIME | MountFlags::SYNCHRONOUS;
        assert_eq!((log.flags(), log.is_private), (expected, true));
        assert_eq!(log.filesystem_options().as_c_str(), c"stripe=16");
        // Neither the host's own, nor those of other storage.
        assert_eq!(planned("", &["/dev/ublkb0"]).unwrap(), [log]);
        assert_eq!(planned("", &[]), Ok(Vec::new()));
    }

    #[test]
    fn failed_filesystem_returns_writable() {
        let given_up = "34 22 7:3 / /mnt/x rw - ext4 /dev/loop3 ro,shutdown,emergency_ro,errors=remount-ro\n";
        let [remount] = planned(given_up, &["/dev/loop3"]).unwrap().try_into().unwrap();
        assert_eq!(remount.flags(), MountFlags::STRICTATIME);
        assert_eq!(remount.filesystem_options().as_c_str(), c"errors=remount-ro");
    }

    #[test]
    fn mount_that_would_not_return_is_named_and_refused() {
        for (more, named) in [
            ("40 22 7:0 / /mnt/again rw - xfs /dev/loop0 rw\n", "/mnt/again is a second mount"),
            ("40 22 7:0 /sub /view ro - xfs /dev/loop0 rw\n", "/view shows the directory /sub"),
            (
                "40 32 0:50 / /mnt/slow/tmp rw - tmpfs scratch rw\n",
                "scratch is mounted inside it at /mnt/slow/tmp",
            ),
            ("40 32 0:50 / /mnt/slow rw - tmpfs over rw\n", "over is mounted inside it at /mnt/slow"),
        ] {
            let refused = planned(more, &["/dev/loop0"]).unwrap_err();
            assert!(refused.contains(named) && refused.contains("Nothing has changed"), "{refused}");
            assert!(planned(more, &["/dev/ublkb0"]).is_ok(), "{more}");
        }
        let other = "34 22 7:3 / /mnt/x rw - btrfs /dev/loop3 rw\n";
        assert!(planned(other, &["/dev/loop3"]).unwrap_err().contains("btrfs"));
        // It is a sibling, not inside.
        let unrelated = "34 22 7:3 / /mnt/slower rw - xfs /dev/loop3 rw\n";
        assert!(planned(unrelated, &["/dev/loop0"]).is_ok());
    }

    #[test]
    fn unfinished_return_is_noted_with_remedy() {
        let session = tempfile::tempdir().unwrap();
        assert_eq!(pending(session.path()).unwrap(), []);
        let turn = RestartLock::take(session.path()).unwrap();
        assert!(matches!(RestartLock::take(session.path()), Err(AttachError::InUse(_))));
        let remounts = planned("", &["/dev/loop0", "/dev/ublkb0"]).unwrap();
        turn.note(&remounts).unwrap();
        assert_eq!(pending(session.path()).unwrap(), remounts);
        let message = unfinished(&AttachError::failed("no"), &remounts).to_string();
        assert!(message.contains("not mounted now: /mnt/slow, /mnt/log"), "{message}");
        assert!(message.contains("`underlay fault /mnt/slow return`"), "{message}");
        turn.note(&[]).unwrap();
        assert_eq!(pending(session.path()).unwrap(), []);
        drop(turn);
        assert!(RestartLock::take(session.path()).is_ok());
    }
}
