//! Files with a secret in them: once others can read one, it is no secret.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags, Stat, fstat};

use crate::read::check_regular;
use crate::trusted_path::{User, has_access_list};

/// The text of a regular file that belongs to this user or to root, and that nobody else can read or write to.
///
/// # Errors
/// When it is not so, the file can't be read, or is longer than `most_bytes`.
pub fn read_secret(path: &Path, most_bytes: u64) -> io::Result<String> {
    read(path, most_bytes, |_| false)
}

/// The same, or one that root lets the group of this process read, as containers get theirs: `root` and the pod's group, 0440.
///
/// # Errors
/// As [`read_secret`].
pub fn read_given_secret(path: &Path, most_bytes: u64) -> io::Result<String> {
    read(path, most_bytes, is_given_by_root)
}

fn read(path: &Path, most_bytes: u64, is_given: impl Fn(&Stat) -> bool) -> io::Result<String> {
    // A pipe is not waited for.
    let flags = (OFlags::NONBLOCK | OFlags::CLOEXEC).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if let Some(why) = exposure(&file, is_given)? {
        let problem = format!("it {why}: `chown` it to this user, and `chmod 600` it");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
    }
    crate::read::text(file, most_bytes)
}

fn is_given_by_root(found: &Stat) -> bool {
    let group = rustix::process::getegid();
    let writes = Mode::from_raw_mode(found.st_mode).contains(Mode::WGRP);
    !rustix::process::geteuid().is_root() && found.st_uid == 0 && found.st_gid == group.as_raw() && !writes
}

fn exposure(file: &File, is_given: impl Fn(&Stat) -> bool) -> io::Result<Option<String>> {
    check_regular(file)?;
    let found = fstat(file)?;
    if !User::of_this_process().trusts(&found) {
        return Ok(Some(format!("belongs to user {}", found.st_uid)));
    }
    let mode = Mode::from_raw_mode(found.st_mode);
    if mode.intersects(Mode::RWXO) {
        return Ok(Some("is open to everybody".to_owned()));
    }
    if !mode.intersects(Mode::RWXG) {
        return Ok(None);
    }
    // With an access control list the group's bits are its mask: the most that anyone whom it names can have.
    if has_access_list(file) {
        return Ok(Some("is open to those on its access control list".to_owned()));
    }
    // A group with the owner's number has only the owner in it, as most distributions make users.
    let is_closed = found.st_gid == found.st_uid || is_given(&found);
    Ok((!is_closed).then(|| format!("is open to group {}", found.st_gid)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_secret_is_for_one_user() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let secret = at("secret");
        fs::write(&secret, "word\n").unwrap();
        let with = |mode: u32| {
            fs::set_permissions(&secret, fs::Permissions::from_mode(mode)).unwrap();
            read_secret(&secret, 16).map_err(|error| error.to_string())
        };
        assert_eq!(with(0o600).unwrap(), "word\n");
        assert_eq!(with(0o400).unwrap(), "word\n");
        for open in [0o604, 0o602, 0o644, 0o666] {
            let refused = with(open).unwrap_err();
            assert!(refused.contains("everybody") && refused.contains("chmod 600"), "{open:o}: {refused}");
        }
        with(0o600).unwrap();
        // As containers have them.
        std::os::unix::fs::symlink(&secret, at("link")).unwrap();
        assert_eq!(read_secret(&at("link"), 16).unwrap(), "word\n");
        assert!(read_secret(&secret, 4).is_err());
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
        for wrong in ["pipe", ".", "none"] {
            assert!(read_secret(&at(wrong), 16).is_err(), "{wrong}");
        }
    }
}
