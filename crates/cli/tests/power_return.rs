//! `underlay fault … return` after a power cut: it asks before it takes a mount away, and gives back what it took.

mod support;

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};
use support::{Mounted, Playground, TINY_STUDY, can_mount, stderr, stdout};

fn write_synced(path: &Path, text: &str) {
    let mut file = File::create(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.sync_all().unwrap();
    File::open(path.parent().unwrap()).unwrap().sync_all().unwrap();
}

/// A line of the table of mounts, if something is mounted there.
fn mounted_at(path: &Path) -> Option<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let place = path.canonicalize().ok()?.display().to_string();
    table.lines().rfind(|line| line.split(' ').nth(4) == Some(&place)).map(str::to_owned)
}

/// A mount namespace that one test makes has the disks of the others as well.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Dropped in this order: the mount before the folder that it is in.
struct Disk {
    _mounted: Mounted,
    directory: PathBuf,
    playground: Playground,
    _turn: MutexGuard<'static, ()>,
}

impl Disk {
    /// `configuration` is a medium, or a study that is written first, and further options.
    fn mount(configuration: &str, options: &[&str]) -> Disk {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let playground = Playground::new();
        let directory = playground.path("disk");
        let medium = match configuration.contains('\n') {
            true => playground.write("study.toml", configuration).display().to_string(),
            false => configuration.to_owned(),
        };
        let arguments = ["mount", medium.as_str(), directory.to_str().unwrap(), "--power-cut"];
        let mounted = Mounted::start(&playground, &[&arguments[..], options].concat());
        Disk { _mounted: mounted, directory, playground, _turn: turn }
    }

    fn fault(&self, action: &[&str]) -> (Option<i32>, String) {
        let arguments = [&["fault", self.directory.to_str().unwrap()][..], action].concat();
        let output = self.playground.output(&arguments);
        (output.status.code(), format!("{}{}", stdout(&output), stderr(&output)))
    }

    fn fault_done(&self, action: &[&str]) -> String {
        let (code, message) = self.fault(action);
        assert_eq!(code, Some(0), "{action:?}: {message}");
        message
    }

    /// What is refused changes nothing, however often it is tried.
    fn return_is_refused(&self, because: &str) {
        let before = mounted_at(&self.directory).unwrap();
        for _ in 0..2 {
            let (code, message) = self.fault(&["return"]);
            assert!(code == Some(4) && message.contains(because), "{code:?}: {message}");
            assert_eq!(mounted_at(&self.directory).as_ref(), Some(&before));
            assert!(self.fault_done(&["list"]).contains("no power"));
        }
    }
}

#[test]
fn return_refused_by_layers_keeps_mount() {
    if !can_mount() {
        return;
    }
    let device = r#"devices = [{ medium = "hdd-7200-sata", capacity = "1 GiB" }]"#;
    let study = TINY_STUDY.replace(device, &format!("{device}\ncompress = \"lz4\""));
    assert_ne!(study, TINY_STUDY);
    let disk = Disk::mount(&study, &["--storage", "hdd"]);
    write_synced(&disk.directory.join("file"), "x");
    disk.fault_done(&["power-cut"]);
    disk.return_is_refused("while the storage runs");
}

#[test]
fn second_mount_of_device_is_named_before_unmounting() {
    if !can_mount() {
        return;
    }
    let disk = Disk::mount("ssd-sata", &["--size", "320 MiB"]);
    let (sub, view) = (disk.directory.join("sub"), disk.playground.path("view"));
    fs::create_dir(&sub).unwrap();
    fs::create_dir(&view).unwrap();
    write_synced(&sub.join("kept"), "x");
    mount_bind(&sub, &view).unwrap();
    disk.fault_done(&["power-cut"]);
    disk.return_is_refused("view shows the directory /sub");
    assert!(mounted_at(&view).is_some());
    unmount(&view, UnmountFlags::empty()).unwrap();
    disk.fault_done(&["return"]);
    assert_eq!(fs::read_to_string(sub.join("kept")).unwrap(), "x");
}

#[test]
fn mount_in_other_namespace_is_named_with_process() {
    if !can_mount() {
        return;
    }
    let disk = Disk::mount("ssd-sata", &["--size", "320 MiB"]);
    let mut other = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sleep", "600"])
        .spawn()
        .unwrap();
    let own = fs::read_link("/proc/self/ns/mnt").unwrap();
    while fs::read_link(format!("/proc/{}/ns/mnt", other.id())).unwrap() == own {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    disk.fault_done(&["power-cut"]);
    disk.return_is_refused(&format!("(process {}) has it mounted in its mount namespace mnt:[", other.id()));
    other.kill().unwrap();
    other.wait().unwrap();
    disk.fault_done(&["return"]);
    write_synced(&disk.directory.join("file"), "works");
}

#[test]
fn program_with_open_file_is_named_without_changes() {
    if !can_mount() {
        return;
    }
    let disk = Disk::mount("ssd-sata", &["--size", "320 MiB"]);
    let open_file = File::create(disk.directory.join("held")).unwrap();
    disk.fault_done(&["power-cut"]);
    disk.return_is_refused(&format!("(process {}) uses", std::process::id()));
    drop(open_file);
    disk.fault_done(&["return"]);
}

#[test]
fn mount_returns_with_flags_and_options() {
    if !can_mount() {
        return;
    }
    for filesystem in ["xfs", "ext4"] {
        let disk = Disk::mount("ssd-sata", &["--size", "320 MiB", "--filesystem", filesystem]);
        write_synced(&disk.directory.join("file"), "x");
        let flags = MountFlags::NOEXEC | MountFlags::NODIRATIME | MountFlags::NOSUID | MountFlags::RDONLY;
        mount_remount(&disk.directory, flags, "").unwrap();
        let options = || {
            let line = mounted_at(&disk.directory).unwrap();
            let fields: Vec<&str> = line.split(' ').collect();
            (fields[3].to_owned(), fields[5].to_owned())
        };
        let before = options();
        assert!(before.1.contains("noexec") && before.1.contains("ro,"), "{before:?}");
        disk.fault_done(&["power-cut"]);
        disk.fault_done(&["return"]);
        assert_eq!(options(), before, "{filesystem}");
        assert_eq!(fs::read_to_string(disk.directory.join("file")).unwrap(), "x");
    }
}

#[test]
fn second_fault_during_recovery_leaves_a_remedy() {
    if !can_mount() {
        return;
    }
    let disk = Disk::mount("ssd-sata", &["--size", "320 MiB"]);
    write_synced(&disk.directory.join("synced"), "kept");
    disk.fault_done(&["power-cut"]);
    disk.fault_done(&["errors", "--rate", "1", "--operation", "read"]);
    let (code, message) = disk.fault(&["return"]);
    let place = disk.directory.canonicalize().unwrap().display().to_string();
    assert_eq!(code, Some(4), "{message}");
    assert!(message.contains(&format!("not mounted now: {place}")), "{message}");
    assert!(message.contains(&format!("`underlay fault {place} return`")), "{message}");
    assert_eq!(mounted_at(&disk.directory), None);
    // Its directory still names it, and its owner waits for the next return.
    assert!(disk.fault_done(&["list"]).contains(&place));
    let (code, _) = disk.fault(&["return"]);
    assert_eq!(code, Some(4), "the disk fails still");
    disk.fault_done(&["clear"]);
    assert!(disk.fault_done(&["return"]).contains("mounted again"));
    assert_eq!(fs::read_to_string(disk.directory.join("synced")).unwrap(), "kept");
    write_synced(&disk.directory.join("afterwards"), "works");
    let (code, message) = disk.fault(&["return"]);
    assert!(code == Some(2) && message.contains("has not vanished"), "{message}");
}

#[test]
fn vanished_device_returns_before_mount() {
    if !can_mount() {
        return;
    }
    let disk = Disk::mount("ssd-sata", &["--size", "320 MiB"]);
    write_synced(&disk.directory.join("synced"), "kept");
    disk.fault_done(&["power-cut"]);
    disk.fault_done(&["vanish"]);
    disk.fault_done(&["return"]);
    assert_eq!(fs::read_to_string(disk.directory.join("synced")).unwrap(), "kept");
}
