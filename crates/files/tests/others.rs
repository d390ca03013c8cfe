//! Files that another user of the host may have put there. These tests stand for the other user by giving folders away,
//! which takes root; in CI they must run.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};

use underlay_files::{
    Access, Folder, append, check_trusted_file, check_trusted_path, check_trusted_path_to, remove_tree,
    replace_with, write,
};

const SOMEONE: u32 = 65_534;

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    assert!(is_root || std::env::var_os("CI").is_none(), "CI must run these tests as root");
    if !is_root {
        eprintln!("NOT RUN: this test stands for another user by giving folders away, which needs root");
    }
    is_root
}

fn made(path: PathBuf, mode: u32, owner: u32) -> PathBuf {
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    chown(&path, Some(owner), Some(owner)).unwrap();
    path
}

fn refusal<T>(outcome: std::io::Result<T>) -> String {
    outcome.err().expect("it was not refused").to_string()
}

#[test]
fn exchangeable_path_is_refused() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path_of = |name: &str| folder.path().join(name);
    let theirs = made(path_of("theirs"), 0o755, SOMEONE);
    made(theirs.join("ours"), 0o700, 0);
    let open = made(path_of("open"), 0o777, 0);
    made(open.join("ours"), 0o700, 0);
    let of_a_group = made(path_of("group"), 0o775, 0);
    chown(&of_a_group, None, Some(SOMEONE)).unwrap();
    made(of_a_group.join("ours"), 0o700, 0);
    let sticky = made(path_of("sticky"), 0o1777, 0);
    made(sticky.join("ours"), 0o700, 0);
    made(sticky.join("theirs"), 0o755, SOMEONE);
    symlink(sticky.join("ours"), sticky.join("our-link")).unwrap();
    symlink(sticky.join("ours"), sticky.join("their-link")).unwrap();
    std::os::unix::fs::lchown(sticky.join("their-link"), Some(SOMEONE), Some(SOMEONE)).unwrap();

    for safe in ["sticky", "sticky/ours", "sticky/our-link", "sticky/ours/../ours"] {
        check_trusted_path(&path_of(safe)).unwrap_or_else(|error| panic!("{safe}: {error}"));
    }
    let refused = [
        ("theirs", "belongs to user 65534"),
        ("theirs/ours", "belongs to user 65534"),
        ("open/ours", "can be written to by everybody"),
        ("group/ours", "can be written to by group 65534"),
        ("sticky/theirs", "belongs to user 65534"),
        ("sticky/their-link", "is a link of user 65534"),
        ("sticky/ours/../their-link", "is a link of user 65534"),
    ];
    for (path, reason) in refused {
        let message = refusal(check_trusted_path(&path_of(path)));
        assert!(message.contains(reason) && message.contains("name a directory"), "{path}: {message}");
        assert!(Folder::open(&path_of(path)).is_err(), "{path}");
        assert!(Folder::make(&path_of(path).join("new"), Access::Private).is_err(), "{path}");
        assert!(!path_of(path).join("new").exists(), "{path}");
    }
    // A mount point may be anybody's, if it stays where it is.
    check_trusted_path_to(&path_of("theirs")).unwrap();
    assert!(
        refusal(check_trusted_path_to(&path_of("sticky/their-link"))).contains("is a link of user 65534")
    );
    assert!(refusal(check_trusted_path_to(&path_of("theirs/ours"))).contains("belongs to user 65534"));
    Folder::make(&sticky.join("new/newer"), Access::Private).unwrap();
    assert!(refusal(Folder::open(&sticky)).contains("everybody"), "it is no folder of ours alone");
}

#[test]
fn exchangeable_program_is_not_run_by_root() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path_of = |name: &str| folder.path().join(name);
    for (name, mode, owner, group) in [
        ("ours.jar", 0o644, 0, 0),
        ("theirs.jar", 0o644, SOMEONE, 0),
        ("open.jar", 0o666, 0, 0),
        ("group.jar", 0o664, 0, SOMEONE),
    ] {
        fs::write(path_of(name), "").unwrap();
        fs::set_permissions(path_of(name), fs::Permissions::from_mode(mode)).unwrap();
        chown(path_of(name), Some(owner), Some(group)).unwrap();
    }
    made(path_of("theirs"), 0o755, SOMEONE);
    fs::write(path_of("theirs/ours.jar"), "").unwrap();
    symlink(path_of("ours.jar"), path_of("theirs/link.jar")).unwrap();
    symlink(path_of("ours.jar"), path_of("link.jar")).unwrap();
    symlink(path_of("theirs.jar"), path_of("bad-link.jar")).unwrap();
    symlink(path_of("theirs/ours.jar"), path_of("far-link.jar")).unwrap();

    for safe in ["ours.jar", "link.jar"] {
        check_trusted_file(&path_of(safe)).unwrap_or_else(|error| panic!("{safe}: {error}"));
    }
    for (path, reason) in [
        ("theirs.jar", "belongs to user 65534"),
        ("bad-link.jar", "belongs to user 65534"),
        ("open.jar", "can be written to by everybody"),
        ("group.jar", "can be written to by group 65534"),
        ("theirs/ours.jar", "belongs to user 65534"),
        ("theirs/link.jar", "belongs to user 65534"),
        ("far-link.jar", "belongs to user 65534"),
    ] {
        let message = refusal(check_trusted_file(&path_of(path)));
        assert!(message.contains(reason), "{path}: {message}");
    }
    assert!(check_trusted_file(&path_of("none.jar")).is_err());
}

#[test]
fn folder_is_created_new_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path_of = |name: &str| folder.path().join(name);
    fs::create_dir(path_of("there")).unwrap();
    symlink(path_of("elsewhere"), path_of("dangling")).unwrap();
    symlink(path_of("there"), path_of("link")).unwrap();
    for name in ["there", "dangling", "link"] {
        let error = Folder::make_new(&path_of(name), Access::Private).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists, "{name}");
    }
    assert!(!path_of("elsewhere").exists());
}

#[test]
fn links_in_a_folder_of_ours_are_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let path_of = |name: &str| folder.path().join(name);
    fs::write(path_of("victim"), "kept").unwrap();
    let ours = Folder::make(&path_of("ours"), Access::Private).unwrap();
    for name in ["page", "lock", "run.json.part"] {
        symlink(path_of("victim"), path_of("ours").join(name)).unwrap();
    }
    assert!(refusal(ours.replace("page", Access::Readable, b"new")).contains("a link is there"));
    assert!(ours.file("lock").is_err());
    assert!(ours.read_text("page", 99).is_err());
    // A crash's leftover is removed, and not the file that it points to.
    ours.replace("run.json", Access::Readable, b"new").unwrap();
    assert_eq!(fs::read(path_of("ours/run.json")).unwrap(), b"new");
    assert_eq!(fs::read(path_of("victim")).unwrap(), b"kept");
    // However its path is changed meanwhile.
    fs::rename(path_of("ours"), path_of("moved")).unwrap();
    fs::create_dir(path_of("ours")).unwrap();
    ours.replace("late", Access::Readable, b"new").unwrap();
    assert!(path_of("moved/late").exists() && !path_of("ours/late").exists());
}

#[test]
fn only_regular_files_are_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path_of = |name: &str| folder.path().join(name);
    fs::write(path_of("victim"), "kept").unwrap();
    symlink(path_of("victim"), path_of("link")).unwrap();
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, path_of("fifo"), fifo, rustix::fs::Mode::RUSR, 0).unwrap();
    let replace = |name: &str| {
        replace_with(&path_of(name), Access::Readable, |mut file: fs::File| file.write_all(b"new"))
    };
    for (name, problem) in [("link", "a link is there"), ("fifo", "a pipe is there")] {
        assert!(refusal(replace(name)).contains(problem), "{name}");
        assert!(underlay_files::check_replaceable(&path_of(name)).is_err(), "{name}");
    }
    assert!(replace(".").is_err());
    replace("new").unwrap();
    replace("new").unwrap();
    // A failure leaves the old file, and nothing beside it.
    let failing = replace_with(&path_of("new"), Access::Readable, |mut file: fs::File| {
        file.write_all(b"half")?;
        Err::<(), _>(std::io::Error::other("no more"))
    });
    assert_eq!(refusal(failing), "no more");
    assert_eq!(fs::read(path_of("new")).unwrap(), b"new");
    assert_eq!(fs::read(path_of("victim")).unwrap(), b"kept");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4);
}

/// As `--out /dev/stdout`, a link in a folder of root's.
#[test]
fn named_link_is_followed_if_trusted() {
    let folder = tempfile::tempdir().unwrap();
    let path_of = |name: &str| folder.path().join(name);
    fs::write(path_of("file"), "long before").unwrap();
    symlink(path_of("file"), path_of("link")).unwrap();
    write(&path_of("link"), b"it").unwrap();
    append(&path_of("link")).unwrap().write_all(b" and more").unwrap();
    assert_eq!(fs::read(path_of("file")).unwrap(), b"it and more");
    assert!(path_of("link").symlink_metadata().unwrap().is_symlink());
    write(Path::new("/dev/null"), b"it").unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    assert!(refusal(write(&path_of("link"), b"no")).contains("a link is there"));
    assert!(refusal(append(&path_of("link"))).contains("a link is there"));
    assert_eq!(fs::read(path_of("file")).unwrap(), b"it and more");
}

#[test]
fn link_on_path_stops_removal() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    let path_of = |name: &str| root.join(name);
    fs::create_dir_all(path_of("ours/tree")).unwrap();
    fs::create_dir_all(path_of("victim/tree/inner")).unwrap();
    fs::rename(path_of("ours"), path_of("away")).unwrap();
    symlink(path_of("victim"), path_of("ours")).unwrap();
    assert!(refusal(remove_tree(&path_of("ours/tree"))).contains("no longer a directory"));
    assert!(path_of("victim/tree/inner").exists());
    symlink(path_of("victim"), path_of("away/tree/link")).unwrap();
    remove_tree(&path_of("away/tree")).unwrap();
    assert!(!path_of("away/tree").exists() && path_of("victim/tree/inner").exists());
    if is_root() {
        made(path_of("theirs"), 0o755, SOMEONE);
        assert!(refusal(remove_tree(&path_of("theirs"))).contains("belongs to user 65534"));
    }
}

#[test]
fn long_file_is_not_read_beyond_limit() {
    let folder = tempfile::tempdir().unwrap();
    let long = fs::File::create(folder.path().join("long")).unwrap();
    long.set_len(1 << 40).unwrap();
    let message = refusal(underlay_files::read_text(&folder.path().join("long"), 4 << 20));
    assert_eq!(message, "it is longer than 4 MiB");
    fs::write(folder.path().join("a"), "äb").unwrap();
    assert_eq!(underlay_files::read_text(&folder.path().join("a"), 3).unwrap(), "äb");
    assert_eq!(refusal(underlay_files::read_text(&folder.path().join("a"), 2)), "it is longer than 2 bytes");
}

/// Version 2 of `system.posix_acl_access`: user 65534 may write, regardless of the folder's owner and group.
const ACCESS_LIST: [(u16, u16, u32); 5] =
    [(1, 7, u32::MAX), (2, 7, SOMEONE), (4, 5, u32::MAX), (0x10, 7, u32::MAX), (0x20, 5, u32::MAX)];

#[test]
fn folder_opened_by_acl_is_refused() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let open = made(folder.path().join("open"), 0o775, 0);
    made(open.join("ours"), 0o700, 0);
    check_trusted_path(&open.join("ours")).unwrap();
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, user) in ACCESS_LIST {
        list.extend(tag.to_le_bytes());
        list.extend(permissions.to_le_bytes());
        list.extend(user.to_le_bytes());
    }
    let flags = rustix::fs::XattrFlags::empty();
    match rustix::fs::setxattr(&open, "system.posix_acl_access", &list, flags) {
        Err(rustix::io::Errno::NOTSUP) => {
            return eprintln!("NOT RUN: the file system has no access control lists");
        }
        outcome => outcome.unwrap(),
    }
    assert!(refusal(check_trusted_path(&open.join("ours"))).contains("access control list"));
    assert!(refusal(Folder::open(&open)).contains("access control list"));
}

#[test]
fn killed_writer_leftovers_are_removed_and_others_stay() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.parquet.4711.part", "b.json.part", "c.json", "part"] {
        fs::write(folder.path().join(name), "x").unwrap();
    }
    fs::create_dir(folder.path().join("d.part")).unwrap();
    symlink("c.json", folder.path().join("e.part")).unwrap();
    Folder::open(folder.path()).unwrap().remove_parts().unwrap();
    let mut left: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["c.json", "d.part", "e.part", "part"]);
}

#[test]
fn slower_of_two_writers_notices_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let outcome = replace_with(&path, Access::Readable, |mut file| {
        file.write_all(b"slow")?;
        replace_with(&path, Access::Readable, |mut file| file.write_all(b"fast"))
    });
    assert!(refusal(outcome).contains("another process"));
    assert_eq!(fs::read_to_string(&path).unwrap(), "fast");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
}
