//! The directory attachment mounted for real: by root, and by a user who is nobody.

#[path = "attachments/fixture.rs"]
#[allow(dead_code, reason = "shared with the conformance tests, which use more of it")]
mod fixture;

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags, XattrFlags};
use rustix::io::Errno;
use underlay_attach::{
    AttachSpec, Attachment, FilesystemKind, FuseDirectory, ResourceRegistry, cleanup, privileges, processes,
    programs,
};
use underlay_storage::faults::PowerCut;
use underlay_storage::stack::BackingSpec;

use fixture::{Fixture, MIB, stack};

/// Where the daemon lies that a test in another user's name is to start.
const DAEMON_VARIABLE: &str = "UNDERLAY_TEST_DAEMON";
/// `nobody` of Debian: a user who may do nothing that others may not.
const NOBODY: u32 = 65_534;

fn directory(fixture: &Fixture, capacity_bytes: u64) -> AttachSpec {
    let backing = BackingSpec::File(fixture.path("backing"));
    fixture::spec(stack(&[("data", capacity_bytes, backing)]), FilesystemKind::default(), fixture.path("mnt"))
}

fn attachment() -> Option<FuseDirectory> {
    match std::env::var_os(DAEMON_VARIABLE) {
        Some(daemon) => Some(FuseDirectory::with_daemon(daemon, Vec::new())),
        None => fixture::fuse_directory(),
    }
}

/// What programs expect of a directory, twice over: as it is made, and after it was taken away and attached anew.
fn use_a_directory(attachment: &FuseDirectory) {
    let fixture = Fixture::new();
    let mut spec = directory(&fixture, 64 * MIB);
    let mut attached = attachment.attach(&spec, &fixture.registry).unwrap();
    let root = attached.paths()[0].clone();
    attached.health().unwrap();
    assert_eq!(fs::metadata(&root).unwrap().uid(), rustix::process::geteuid().as_raw());
    change_everything(&root);
    expect_everything(&root);
    attached.detach().unwrap();
    assert!(!root.exists(), "the directory was made for the mount");
    spec.format = false;
    let mut attached = attachment.attach(&spec, &fixture.registry).unwrap();
    expect_everything(&root);
    fill_up(&root);
    expect_everything(&root);
    attached.detach().unwrap();
    drop(attached);
    fixture.assert_nothing_left();
}

fn change_everything(root: &Path) {
    let path = |name: &str| root.join(name);
    fs::create_dir(path("many")).unwrap();
    for index in 0..700 {
        fs::write(path("many").join(index.to_string()), index.to_string()).unwrap();
    }
    fs::write(path("a"), b"first").unwrap();
    fs::hard_link(path("a"), path("b")).unwrap();
    symlink("a", path("link")).unwrap();
    fs::write(path("c"), b"second").unwrap();
    let rename =
        |from: &str, to: &str, flags| rustix::fs::renameat_with(CWD, path(from), CWD, path(to), flags);
    assert_eq!(rename("a", "c", RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename("a", "c", RenameFlags::EXCHANGE).unwrap();
    fs::rename(path("a"), path("renamed")).unwrap();
    rustix::fs::setxattr(path("c"), c"user.note", b"a note", XattrFlags::empty()).unwrap();
    fs::set_permissions(path("c"), fs::Permissions::from_mode(0o640)).unwrap();

    let sparse = OpenOptions::new().read(true).write(true).create_new(true).open(path("sparse")).unwrap();
    sparse.write_all_at(b"far", 5_000_000).unwrap();
    sparse.write_all_at(b"near", 10).unwrap();
    sparse.sync_all().unwrap();
    sparse.set_len(6_000_000).unwrap();
    assert!(sparse.metadata().unwrap().blocks() < 100, "a hole takes no room");

    let mut without_name =
        OpenOptions::new().read(true).write(true).create_new(true).open(path("gone")).unwrap();
    fs::remove_file(path("gone")).unwrap();
    without_name.write_all(b"still here").unwrap();
    without_name.sync_all().unwrap();
    without_name.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    without_name.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still here");

    assert_eq!(fs::remove_dir(path("many")).unwrap_err().raw_os_error(), Some(libc::ENOTEMPTY));
    File::open(root).unwrap().sync_all().unwrap();
}

fn expect_everything(root: &Path) {
    let path = |name: &str| root.join(name);
    let listed: BTreeSet<_> =
        fs::read_dir(path("many")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(listed.len(), 700);
    for index in (0..700).step_by(97) {
        assert_eq!(fs::read_to_string(path("many").join(index.to_string())).unwrap(), index.to_string());
    }
    assert_eq!(fs::read(path("b")).unwrap(), b"first");
    assert_eq!(fs::read(path("c")).unwrap(), b"first");
    assert_eq!(fs::read(path("renamed")).unwrap(), b"second");
    assert_eq!(fs::read_link(path("link")).unwrap(), Path::new("a"));
    let (b, c) = (fs::metadata(path("b")).unwrap(), fs::metadata(path("c")).unwrap());
    assert_eq!((b.ino(), b.nlink(), c.mode() & 0o7777), (c.ino(), 2, 0o640));
    let mut note = [0; 20];
    let length = rustix::fs::getxattr(path("c"), c"user.note", &mut note).unwrap();
    assert_eq!(&note[..length], b"a note");
    let sparse = fs::read(path("sparse")).unwrap();
    let mut expected = vec![0; 6_000_000];
    expected[10..14].copy_from_slice(b"near");
    expected[5_000_000..5_000_003].copy_from_slice(b"far");
    assert!(sparse == expected, "the sparse file differs");
    assert!(!path("gone").exists() && !path("a").exists());
}

/// A full disk is reported, and what is there stays as it is.
fn fill_up(root: &Path) {
    let free = |path: &Path| rustix::fs::statvfs(path).map(|found| found.f_bavail * found.f_frsize).unwrap();
    let before = free(root);
    let path = root.join("filler");
    let file = File::create(&path).unwrap();
    let piece = vec![1; MIB as usize];
    // Pages are taken first and written later, so that the end of the room shows at a sync.
    let refused = (0..)
        .find_map(|index: u64| file.write_all_at(&piece, index * MIB).and_then(|()| file.sync_all()).err())
        .unwrap();
    assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC), "{refused}");
    assert!(free(root) < 2 * MIB, "{} bytes are left", free(root));
    drop(file);
    fs::remove_file(&path).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while free(root) + MIB / 4 < before {
        assert!(Instant::now() < deadline, "{} of {before} bytes are free again", free(root));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn root_has_a_directory() {
    if privileges::probe_privileges().is_err() {
        return eprintln!("\n*** SKIPPED: this test is root's; the one of an ordinary user runs ***\n");
    }
    if let Some(attachment) = attachment() {
        use_a_directory(&attachment);
    }
}

/// The process of the test below. Without the variable, as in `cargo test -- --ignored`, it fails at once.
#[test]
#[ignore = "what the test of an ordinary user runs in that user's name"]
fn ordinary_user_child_uses_directory() {
    assert!(std::env::var_os(DAEMON_VARIABLE).is_some(), "started by a test of this file");
    assert!(privileges::probe_privileges().is_err() && !rustix::process::geteuid().is_root());
    use_a_directory(&attachment().unwrap());
}

#[test]
fn ordinary_user_gets_a_directory() {
    if programs::find_program("fusermount3").is_none() {
        assert!(std::env::var_os("CI").is_none(), "fusermount3 is missing: install the Debian package fuse3");
        return eprintln!("\n*** SKIPPED, NOTHING WAS TESTED: fusermount3 is missing ***\n");
    }
    // Somewhere that everybody may read, unlike a build directory in root's home.
    let place = tempfile::Builder::new().prefix("underlay-user-").tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let (test, daemon) = (place.path().join("test"), place.path().join("underlay-device-daemon"));
    fs::copy(std::env::current_exe().unwrap(), &test).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_underlay-device-daemon"), &daemon).unwrap();
    let mut command = Command::new(test);
    command
        .args(["--exact", "ordinary_user_child_uses_directory", "--ignored", "--nocapture"])
        .env(DAEMON_VARIABLE, daemon)
        .env("TMPDIR", place.path())
        .env_remove("XDG_RUNTIME_DIR")
        .current_dir("/");
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn killed_daemon_keeps_synced_data_and_rest_is_cleaned() {
    let Some(attachment) = attachment() else { return };
    let fixture = Fixture::new();
    let mut spec = directory(&fixture, 64 * MIB);
    let mut attached = attachment.attach(&spec, &fixture.registry).unwrap();
    let root = attached.paths()[0].clone();
    for index in 0..50 {
        let mut file = File::create(root.join(format!("synced-{index}"))).unwrap();
        file.write_all(&vec![index; 10_000]).unwrap();
        file.sync_all().unwrap();
    }
    fs::write(root.join("new"), b"new").unwrap();
    File::open(root.join("new")).unwrap().sync_all().unwrap();
    fs::rename(root.join("new"), root.join("synced-0")).unwrap();
    File::open(&root).unwrap().sync_all().unwrap();
    let daemon = processes::ProcessId::from_pid(attached.daemon_pid().unwrap()).unwrap();
    daemon.signal(rustix::process::Signal::KILL);
    assert!(daemon.wait_gone(Duration::from_secs(20)));
    assert!(fs::read_dir(&root).is_err(), "a dead disk answers with errors");
    assert!(attached.health().unwrap_err().to_string().contains("ended"));
    let _ = attached.detach();
    drop(attached);
    fixture.assert_nothing_left();
    spec.format = false;
    let mut attached = attachment.attach(&spec, &fixture.registry).unwrap();
    assert_eq!(fs::read(root.join("synced-0")).unwrap(), b"new");
    for index in 1..50 {
        assert_eq!(fs::read(root.join(format!("synced-{index}"))).unwrap(), vec![index; 10_000]);
    }
    assert!(!root.join("new").exists());
    attached.detach().unwrap();
    fixture.assert_nothing_left();
}

const OWNER_VARIABLE: &str = "UNDERLAY_TEST_OWNER";

/// The process that the test below kills.
#[test]
#[ignore = "the owner that another test here kills"]
fn killed_owner_child_holds_directory() {
    let place = std::env::var_os(OWNER_VARIABLE).expect("started by a test of this file");
    let place = Path::new(&place);
    let registry = ResourceRegistry::open_at(&place.join("run")).unwrap();
    let volumes = stack(&[("data", 32 * MIB, BackingSpec::File(place.join("backing")))]);
    let spec = fixture::spec(volumes, FilesystemKind::default(), place.join("mnt"));
    let _attached = attachment().unwrap().attach(&spec, &registry).unwrap();
    fs::write(place.join("mnt/data/note"), b"not synced").unwrap();
    fs::write(place.join("ready"), b"").unwrap();
    std::thread::sleep(Duration::from_secs(120));
}

#[test]
fn killed_owner_leftovers_are_cleaned_after_last_use() {
    let Some(attachment) = attachment() else { return };
    let fixture = Fixture::new();
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed_owner_child_holds_directory", "--ignored"])
        .env(OWNER_VARIABLE, fixture.path(""))
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !fixture.path("ready").exists() {
        assert!(Instant::now() < deadline && owner.try_wait().unwrap().is_none(), "the owner is not ready");
        std::thread::sleep(Duration::from_millis(10));
    }
    owner.kill().unwrap();
    owner.wait().unwrap();
    let used = File::open(fixture.path("mnt/data/note")).unwrap();
    let refused = cleanup::clean(&fixture.registry, &mut |_| ()).unwrap_err().to_string();
    assert!(refused.contains("in use"), "{refused}");
    // Its daemon serves on, with all that it needs.
    assert_eq!(fs::read(fixture.path("mnt/data/note")).unwrap(), b"not synced");
    drop(used);
    let mut lines = Vec::new();
    cleanup::clean(&fixture.registry, &mut |line| lines.push(line.to_owned())).unwrap();
    assert!(lines.iter().any(|line| line.contains("unmounted")), "{lines:?}");
    fs::remove_file(fixture.path("ready")).unwrap();
    fixture.assert_nothing_left();
    // What nobody had synced went out with the unmounting.
    let mut spec = directory(&fixture, 32 * MIB);
    spec.format = false;
    let mut attached = attachment.attach(&spec, &fixture.registry).unwrap();
    assert_eq!(fs::read(attached.paths()[0].join("note")).unwrap(), b"not synced");
    attached.detach().unwrap();
    fixture.assert_nothing_left();
}

/// A program syncs one file after the other until the lights go out; each that was acknowledged is there, and so is the
/// last name that a rename gave.
#[test]
fn power_cut_keeps_synced_data() {
    let Some(attachment) = attachment() else { return };
    let fixture = Fixture::new();
    let mut spec = directory(&fixture, 64 * MIB);
    spec.stack.volumes[0].root.for_each_device(&mut |device| device.power_cut_armed = true);
    let mut acknowledged: Vec<(String, Vec<u8>)> = Vec::new();
    for round in 0..12_u64 {
        let mut attached = attachment.attach(&spec, &fixture.registry).unwrap();
        spec.format = false;
        let root = attached.paths()[0].clone();
        for (name, content) in &acknowledged {
            assert_eq!(fs::read(root.join(name)).unwrap(), *content, "{name} in round {round}");
        }
        let (stop, writing_root) = (Arc::new(AtomicBool::new(false)), root.clone());
        let writing = Arc::clone(&stop);
        let writer = std::thread::spawn(move || {
            let mut synced = Vec::new();
            for index in 0_u64.. {
                let name = format!("file-{round}-{index}");
                let content = vec![index as u8; (index * 977 % 30_000) as usize + 1];
                let store = || -> std::io::Result<()> {
                    let temporary = writing_root.join("temporary");
                    let mut file = File::create(&temporary)?;
                    file.write_all(&content)?;
                    // Never synced: any of it may be lost.
                    fs::write(writing_root.join(format!("unsynced-{index}")), &content)?;
                    fs::rename(&temporary, writing_root.join(&name))?;
                    file.sync_all()
                };
                match store() {
                    Ok(()) => synced.push((name, content)),
                    Err(_) => break,
                }
                if writing.load(Ordering::Relaxed) {
                    break;
                }
            }
            synced
        });
        std::thread::sleep(Duration::from_millis(20 + round * 7));
        let cut = PowerCut { seed: round, torn: round % 2 == 0, reordered: round % 3 != 0 };
        attached.served().unwrap().cut_power(&[], cut).unwrap();
        stop.store(true, Ordering::Relaxed);
        acknowledged.extend(writer.join().unwrap());
        // What could not be written out is reported.
        let _ = attached.detach();
        drop(attached);
        fixture.assert_nothing_left();
    }
    assert!(acknowledged.len() > 30, "{} files were synced", acknowledged.len());
}

/// However short the darkness was: what was in memory only is not acknowledged afterwards.
#[test]
fn power_cut_counts_after_immediate_return() {
    let Some(attachment) = attachment() else { return };
    let fixture = Fixture::new();
    let mut spec = directory(&fixture, 64 * MIB);
    spec.stack.volumes[0].root.for_each_device(&mut |device| device.power_cut_armed = true);
    let mut attached = attachment.attach(&spec, &fixture.registry).unwrap();
    let root = attached.paths()[0].clone();
    fs::write(root.join("synced"), "stays").unwrap();
    File::open(root.join("synced")).unwrap().sync_all().unwrap();
    let unsynced = File::create(root.join("unsynced")).unwrap();
    unsynced.write_all_at(&[1; 100_000], 0).unwrap();
    let served = attached.served().unwrap();
    served.cut_power(&[], PowerCut { seed: 1, torn: true, reordered: true }).unwrap();
    served.switch_on().unwrap();
    assert_eq!(unsynced.sync_all().unwrap_err().raw_os_error(), Some(libc::EIO));
    drop(unsynced);
    // What could not be written out is reported.
    let _ = attached.detach();
    spec.format = false;
    let mut attached = attachment.attach(&spec, &fixture.registry).unwrap();
    assert_eq!(fs::read(root.join("synced")).unwrap(), b"stays");
    attached.detach().unwrap();
    fixture.assert_nothing_left();
}

#[test]
fn directory_in_use_stays() {
    let Some(attachment) = attachment() else { return };
    let fixture = Fixture::new();
    let mut attached = attachment.attach(&directory(&fixture, 64 * MIB), &fixture.registry).unwrap();
    let open = File::create(attached.paths()[0].join("open")).unwrap();
    let refused = attached.detach().unwrap_err().to_string();
    assert!(refused.contains("in use") && refused.contains(&std::process::id().to_string()), "{refused}");
    open.write_all_at(b"it still works", 0).unwrap();
    open.sync_all().unwrap();
    drop(open);
    attached.detach().unwrap();
    fixture.assert_nothing_left();
}

#[test]
fn volumes_become_directories_and_foreign_one_is_refused() {
    let Some(attachment) = attachment() else { return };
    let fixture = Fixture::new();
    let backing = |name: &str| BackingSpec::File(fixture.path(name));
    let volumes = stack(&[("data", 32 * MIB, backing("data")), ("log", 16 * MIB, backing("log"))]);
    let mut spec = fixture::spec(volumes, FilesystemKind::default(), fixture.path("mnt"));
    spec.format = false;
    let refused = attachment.attach(&spec, &fixture.registry).unwrap_err().to_string();
    assert!(refused.contains("'data' can't be a directory") && refused.contains("never made"), "{refused}");
    fixture.assert_nothing_left();
    spec.format = true;
    let mut attached = attachment.attach(&spec, &fixture.registry).unwrap();
    assert_eq!(attached.paths(), [fixture.path("mnt/data"), fixture.path("mnt/log")]);
    attached.begin_measurement(1.0).unwrap();
    let mut file = File::create(attached.paths()[1].join("a")).unwrap();
    file.write_all(&[1; 100_000]).unwrap();
    file.sync_all().unwrap();
    let activity = attached.end_measurement().unwrap();
    assert_eq!((activity[0].totals.writes, activity[0].totals.flushes), (0, 0));
    // The data, and the record of where it is; flushed before the record, which is durable by itself.
    assert!(
        activity[1].totals.write_bytes >= 102_400 && activity[1].totals.flushes >= 1,
        "{:?}",
        activity[1].totals
    );
    drop(file);
    attached.detach().unwrap();
    fixture.assert_nothing_left();
}

/// A name that is no UTF-8 is a name all the same.
#[test]
fn names_are_bytes() {
    let Some(attachment) = attachment() else { return };
    let fixture = Fixture::new();
    let mut attached = attachment.attach(&directory(&fixture, 32 * MIB), &fixture.registry).unwrap();
    let root = attached.paths()[0].clone();
    let name = CString::new(b"\xff\xfe name".to_vec()).unwrap();
    let path = root.join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(name.as_bytes()));
    fs::write(&path, b"x").unwrap();
    assert_eq!(fs::read_dir(&root).unwrap().next().unwrap().unwrap().path(), path);
    let long = root.join("n".repeat(256));
    assert_eq!(fs::write(long, b"x").unwrap_err().raw_os_error(), Some(libc::ENAMETOOLONG));
    attached.detach().unwrap();
    fixture.assert_nothing_left();
}
