//! Files with a secret in them: once others can read one, it is no secret.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags, Stat, fstat};

use crate::read::check_regular;
use crate::trusted_path::{User, access_list, has_access_list};

/// The text of a regular file that belongs to this user or to root, and that nobody else can read or write to.
///
/// # Errors
/// When it is not so, the file can't be read, or is longer than `most_bytes`.
pub fn read_secret(path: &Path, most_bytes: u64) -> io::Result<String> {
    read(path, most_bytes, |_| false)
}

/// The same, or one that root lets the group of this process read, as containers get theirs: `root` and the pod's
/// group, 0440.
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
    if let Some(reason) = exposure(&file, is_given)? {
        let problem = format!("it {reason}: `chown` it to this user, and `chmod 600` it");
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
    if !User::current().trusts(&found) {
        return Ok(Some(format!("belongs to user {}", found.st_uid)));
    }
    let mode = Mode::from_raw_mode(found.st_mode);
    if mode.intersects(Mode::RWXO) {
        return Ok(Some("is open to everybody".to_owned()));
    }
    if !mode.intersects(Mode::RWXG) {
        return Ok(None);
    }
    // With an access control list the group's bits are its mask: the most that anyone whom it names can have. systemd
    // lets the user of a unit read its credentials by one that names nobody else.
    if has_access_list(file) {
        let is_ours_alone = access_list(file).is_ok_and(|list| names_only(&list, User::current().number));
        return Ok((!is_ours_alone).then(|| "is open to those on its access control list".to_owned()));
    }
    // A group with the owner's number has only the owner in it, as most distributions make users.
    let is_closed = found.st_gid == found.st_uid || is_given(&found);
    Ok((!is_closed).then(|| format!("is open to group {}", found.st_gid)))
}

/// The version of an access control list as the kernel gives it (`posix_acl_xattr.h`): a head with it, then entries of
/// 8 bytes.
const ACL_VERSION: u32 = 2;
/// Tags of its entries: the file's owner, a user by number, the file's group, a group by number, the mask, and
/// everybody else.
const ACL_OWNER: u16 = 1;
const ACL_USER: u16 = 2;
const ACL_OWN_GROUP: u16 = 4;
const ACL_GROUP: u16 = 8;
const ACL_MASK: u16 = 16;
const ACL_OTHER: u16 = 32;

/// Whether an access control list lets nobody do anything but the owner, root and this user. An unknown entry admits
/// somebody.
fn names_only(list: &[u8], user: u32) -> bool {
    let Some((head, entries)) = list.split_first_chunk::<4>() else { return false };
    let (entries, rest) = entries.as_chunks::<8>();
    if u32::from_le_bytes(*head) != ACL_VERSION || !rest.is_empty() {
        return false;
    }
    entries.iter().all(|&[tag, tag_high, rights, rights_high, number @ ..]| {
        let may_nothing = [rights, rights_high] == [0, 0];
        match u16::from_le_bytes([tag, tag_high]) {
            // The mask only takes away.
            ACL_OWNER | ACL_MASK => true,
            ACL_USER => may_nothing || [0, user].contains(&u32::from_le_bytes(number)),
            ACL_OWN_GROUP | ACL_GROUP | ACL_OTHER => may_nothing,
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn secret_must_be_private() {
        let folder = tempfile::tempdir().unwrap();
        let path_of = |name: &str| folder.path().join(name);
        let secret = path_of("secret");
        fs::write(&secret, "word\n").unwrap();
        let read_with_mode = |mode: u32| {
            fs::set_permissions(&secret, fs::Permissions::from_mode(mode)).unwrap();
            read_secret(&secret, 16).map_err(|error| error.to_string())
        };
        assert_eq!(read_with_mode(0o600).unwrap(), "word\n");
        assert_eq!(read_with_mode(0o400).unwrap(), "word\n");
        for open in [0o604, 0o602, 0o644, 0o666] {
            let refused = read_with_mode(open).unwrap_err();
            assert!(refused.contains("everybody") && refused.contains("chmod 600"), "{open:o}: {refused}");
        }
        read_with_mode(0o600).unwrap();
        // As containers have them.
        std::os::unix::fs::symlink(&secret, path_of("link")).unwrap();
        assert_eq!(read_secret(&path_of("link"), 16).unwrap(), "word\n");
        assert!(read_secret(&secret, 4).is_err());
        rustix::fs::mknodat(rustix::fs::CWD, path_of("pipe"), rustix::fs::FileType::Fifo, Mode::RUSR, 0)
            .unwrap();
        for wrong in ["pipe", ".", "none"] {
            assert!(read_secret(&path_of(wrong), 16).is_err(), "{wrong}");
        }
    }

    /// As `getxattr` gives it: tag, rights, number.
    fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut bytes = 2_u32.to_le_bytes().to_vec();
        for (tag, rights, number) in entries {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(rights.to_le_bytes());
            bytes.extend(number.to_le_bytes());
        }
        bytes
    }

    const NOBODY: u32 = u32::MAX;

    #[test]
    fn systemd_credential_with_acl_is_accepted() {
        let credential = [(1, 4, NOBODY), (2, 4, 990), (4, 0, NOBODY), (16, 4, NOBODY), (32, 0, NOBODY)];
        assert!(names_only(&list(&credential), 990));
        // Another user's, or open to somebody besides.
        assert!(!names_only(&list(&credential), 991));
        for more in [(2, 4, 1000), (4, 4, NOBODY), (8, 4, 990), (32, 4, NOBODY), (64, 0, NOBODY)] {
            assert!(!names_only(&list(&[&credential[..], &[more]].concat()), 990), "{more:?}");
        }
        // And what can't be understood.
        let whole = list(&credential);
        assert!(!names_only(&whole[..whole.len() - 1], 990));
        assert!(!names_only(&[&[3, 0, 0, 0][..], &whole[4..]].concat(), 990));
        assert!(!names_only(&[], 990));
    }

    #[test]
    fn secret_with_acl_is_read_for_this_user_alone() {
        let folder = tempfile::tempdir().unwrap();
        let secret = folder.path().join("secret");
        fs::write(&secret, "word\n").unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        let own = rustix::process::geteuid().as_raw();
        for (user, is_read) in [(own, true), (own + 1, false)] {
            let entries = [(1, 6, NOBODY), (2, 4, user), (4, 0, NOBODY), (16, 4, NOBODY), (32, 0, NOBODY)];
            let flags = rustix::fs::XattrFlags::empty();
            match rustix::fs::setxattr(&secret, "system.posix_acl_access", &list(&entries), flags) {
                Ok(()) => {}
                // This file system has none.
                Err(rustix::io::Errno::OPNOTSUPP) => return,
                Err(error) => panic!("{error}"),
            }
            let found = read_secret(&secret, 16);
            assert_eq!(found.is_ok(), is_read, "{user}: {found:?}");
        }
    }
}
