//! Data that is not ours, and disks that are kept: nothing is written over what a user may need.

mod support;
#[allow(dead_code)]
#[path = "support/volumes.rs"]
mod volumes;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use support::{Mounted, Playground, can_mount, stderr, stdout};
use underlay_storage::device::{BlockDevice as _, DeviceRequest};
use volumes::VolumeServer;

const MISTAKE: i32 = 2;
const MIB: u64 = 1 << 20;
/// Where Btrfs has its magic number (https://btrfs.readthedocs.io/en/latest/dev/On-disk-format.html).
const BTRFS_MAGIC_OFFSET: u64 = (64 << 10) + 64;
const BTRFS_MAGIC: &[u8] = b"_BHRfS_M";

fn refused(output: &Output, reason: &str) {
    let message = stderr(output);
    assert!(message.contains(reason), "{message}");
    assert_eq!(output.status.code(), Some(MISTAKE), "{message}");
}

fn image(playground: &Playground, name: &str, length_bytes: u64) -> PathBuf {
    let path = playground.path(name);
    File::create(&path).unwrap().set_len(length_bytes).unwrap();
    path
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", stderr(&output));
    stdout(&output).trim().to_owned()
}

/// A loop device that goes with this.
struct Loop(String);

impl Loop {
    fn attach(image: &Path) -> Loop {
        Loop(run("losetup", &["--find", "--show", image.to_str().unwrap()]))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

struct MountPoint(PathBuf);

impl Drop for MountPoint {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn kept_disk_remembers_its_description() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    let mount = |medium: &str, options: &[&str], script: &str| {
        let arguments = [&["mount", medium, "mnt", "--keep", "disk", "--immediate"], options];
        playground.output(&[&arguments.concat()[..], &["--", "sh", "-c", script]].concat())
    };
    let made = mount("ssd-sata", &["--size", "64 MiB", "--filesystem", "ext4"], "echo kept > mnt/file");
    assert!(made.status.success(), "{}", stderr(&made));
    let look = "cat mnt/file; df --output=fstype mnt | tail -1";
    assert_eq!(stdout(&mount("ssd-sata", &[], look)), "kept\next4\n");
    // What it is not is refused before anything is touched.
    let other = mount("ssd-sata", &["--size", "512 MiB"], "true");
    refused(&other, "keeps another disk: it has ext4 on ssd-sata.0 of 64 MiB");
    refused(&mount("ssd-sata", &["--filesystem", "xfs"], "true"), "keeps another disk");
    refused(&mount("ssd-satax2", &[], "true"), "keeps another disk");
    refused(&mount("nvme-9300-max", &[], "true"), "keeps another disk");
    assert_eq!(stdout(&mount("ssd-sata", &[], look)), "kept\next4\n");
    // A file system that is damaged is no reason to make a new one.
    let path = playground.path("disk/ssd-sata.0.img");
    let disk = File::options().read(true).write(true).open(&path).unwrap();
    let mut super_block = vec![0; 1024];
    disk.read_exact_at(&mut super_block, 1024).unwrap();
    disk.write_all_at(&[0; 1024], 1024).unwrap();
    let failed = mount("ssd-sata", &[], "true");
    assert!(!failed.status.success() && !stderr(&failed).contains("format it"), "{}", stderr(&failed));
    disk.write_all_at(&super_block, 1024).unwrap();
    drop(disk);
    assert_eq!(stdout(&mount("ssd-sata", &[], look)), "kept\next4\n");
    // Of a former version: it is not known what it is until it was mounted.
    fs::remove_file(playground.path("disk/disk.json")).unwrap();
    assert!(!mount("ssd-sata", &["--size", "64 MiB"], "true").status.success());
    assert_eq!(
        stdout(&mount("ssd-sata", &["--size", "64 MiB", "--filesystem", "ext4"], look)),
        "kept\next4\n"
    );
    assert_eq!(stdout(&mount("ssd-sata", &[], look)), "kept\next4\n");
    // One whose making was interrupted, and that is whole after all.
    let description = fs::read_to_string(playground.path("disk/disk.json")).unwrap();
    let unfinished = description.replace("\"was_mounted\": true", "\"was_mounted\": false");
    assert_ne!(unfinished, description);
    playground.write("disk/disk.json", &unfinished);
    assert_eq!(stdout(&mount("ssd-sata", &[], look)), "kept\next4\n");
    // And one that has no file system yet.
    playground.write("disk/disk.json", &unfinished);
    File::options().write(true).open(&path).unwrap().write_all_at(&[0; 4096], 0).unwrap();
    assert_eq!(stdout(&mount("ssd-sata", &[], "ls mnt")), "lost+found\n");
    // `--format` begins anew, unless the file is in use.
    let device = Loop::attach(&path);
    refused(&mount("ssd-sata", &["--format"], "true"), &device.0);
    drop(device);
    let anew =
        mount("ssd-sata", &["--format", "--size", "320 MiB"], "ls mnt; df --output=fstype mnt | tail -1");
    assert_eq!(stdout(&anew), "xfs\n", "{}", stderr(&anew));
    playground.write("disk/disk.json", r#"{"devices":[{"image":"../x","capacity_bytes":1}],"#);
    refused(&mount("ssd-sata", &[], "true"), "disk.json");
}

#[test]
fn kept_disk_refuses_other_layout() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    let study = |chunk: &str| {
        let study = support::TINY_STUDY
            .replace("layout = \"stripe\"", &format!("layout = \"stripe\"\nchunk = \"{chunk}\""));
        playground.write("tiny.toml", &study);
        playground.output(&[
            "mount",
            "tiny.toml",
            "mnt",
            "--storage",
            "flash",
            "--keep",
            "disk",
            "--immediate",
            "--",
            "true",
        ])
    };
    assert!(study("64 KiB").status.success());
    refused(&study("256 KiB"), "its devices are put together as");
    assert!(study("64 KiB").status.success());
}

#[test]
fn second_mount_of_kept_disk_is_refused_harmlessly() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    let arguments = ["mount", "ssd-sata", "mnt", "--size", "512 MiB", "--keep", "disk", "--immediate"];
    let first = Mounted::start(&playground, &arguments);
    fs::write(playground.path("mnt/file"), "kept").unwrap();
    for more in [&[][..], &["--format"]] {
        let second = ["mount", "ssd-sata", "other", "--size", "512 MiB", "--keep", "disk", "--immediate"];
        let second = playground.output(&[&second[..], more, &["--", "true"]].concat());
        refused(&second, "mounted by another process");
    }
    assert!(first.end().code().is_some());
    let again = ["mount", "ssd-sata", "mnt", "--keep", "disk", "--immediate", "--", "cat", "mnt/file"];
    let again = playground.output(&again);
    assert_eq!(stdout(&again), "kept", "{}", stderr(&again));
}

fn destroying(file: &str) -> [&str; 9] {
    ["media", "measure", file, "--destroy", "--quick", "--time", "5s", "-o", "medium.toml"]
}

#[test]
fn image_in_use_is_not_measured() {
    let playground = Playground::new();
    let path = image(&playground, "disk.img", 64 * MIB);
    run("/usr/sbin/mkfs.ext4", &["-q", "-F", path.to_str().unwrap()]);
    let before = fs::read(&path).unwrap();
    let measure = |file: &str| playground.output(&destroying(file));
    refused(&measure("disk.img"), "holds ext4");
    assert!(fs::read(&path).unwrap() == before, "it is untouched");
    if !can_mount() {
        return;
    }
    let blank = image(&playground, "blank.img", 64 * MIB);
    let device = Loop::attach(&blank);
    refused(&measure("blank.img"), &device.0);
    // Where nobody can be asked what it is, it is not overwritten either. The other `wipefs` is there for this process
    // alone.
    let broken = playground.write("wipefs", "#!/bin/sh\nexit 1\n");
    fs::set_permissions(&broken, fs::Permissions::from_mode(0o755)).unwrap();
    let mut unshared = Command::new("unshare");
    let script = "mount --bind wipefs /usr/sbin/wipefs && exec \"$@\"";
    unshared
        .args(["--mount", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_underlay")])
        .args(destroying("disk.img"));
    unshared.current_dir(playground.path("")).env("UNDERLAY_RUNTIME_DIR", playground.path("runtime"));
    refused(&unshared.output().unwrap(), "can't be asked");
    assert!(fs::read(&path).unwrap() == before, "it is untouched");
}

#[test]
fn pool_refuses_device_in_use() {
    let playground = Playground::new();
    let serve = |device: &Path, more: &[&str]| {
        let pool = format!("name = \"tank\"\nlisten = \"127.0.0.1:0\"\npaths = [\"{}\"]\n", device.display());
        playground.write("pool.toml", &pool);
        playground.output(&[&["volume", "serve", "pool.toml"], more].concat())
    };
    let path = image(&playground, "disk.img", 512 * MIB);
    let disk = File::options().read(true).write(true).open(&path).unwrap();
    disk.write_all_at(BTRFS_MAGIC, BTRFS_MAGIC_OFFSET).unwrap();
    refused(&serve(&path, &[]), "holds btrfs");
    assert!(playground.output(&["volume", "check", "pool.toml"]).status.code() == Some(MISTAKE));
    let mut found = [0; BTRFS_MAGIC.len()];
    disk.read_exact_at(&mut found, BTRFS_MAGIC_OFFSET).unwrap();
    assert_eq!(found, BTRFS_MAGIC);
    // An explicit word makes the pool.
    let server = VolumeServer::start(&playground, &["--format"]);
    server.stop();
    // Its notes stay those of the pool where the file names another, empty device by now.
    let other = image(&playground, "other.img", 512 * MIB);
    refused(&serve(&other, &[]), "belongs to a pool, but its devices are empty");
    let pool = format!("name = \"tank\"\nlisten = \"127.0.0.1:0\"\npaths = [\"{}\"]\n", path.display());
    playground.write("pool.toml", &pool);
    assert!(playground.output(&["volume", "check", "pool.toml"]).status.success());
    if !can_mount() {
        return;
    }
    let mounted = image(&playground, "mounted.img", 512 * MIB);
    run("/usr/sbin/mkfs.ext4", &["-q", "-F", mounted.to_str().unwrap()]);
    let device = Loop::attach(&mounted);
    let mount_point = MountPoint(playground.path("at"));
    fs::create_dir(&mount_point.0).unwrap();
    run("mount", &[&device.0, mount_point.0.to_str().unwrap()]);
    // Not even with an explicit word.
    for more in [&[][..], &["--format"]] {
        let node = serve(Path::new(&device.0), more);
        assert!(stderr(&node).contains("in use: mounted"), "{}", stderr(&node));
        let file = serve(&mounted, more);
        assert!(stderr(&file).contains(&device.0), "{}", stderr(&file));
    }
    fs::write(mount_point.0.join("file"), "there").unwrap();
}

/// A pool with the blank volume `data`.
fn serve_one_volume(playground: &Playground) -> VolumeServer {
    let pool = "name = \"tank\"\nlisten = \"127.0.0.1:0\"\ninitial = \"fresh\"\n\
                devices = [{ medium = \"nvme-9300-max\", capacity = \"1 GiB\" }]\n\n[volume.data]\ncapacity = \"512 MiB\"\n";
    playground.write("pool.toml", pool);
    VolumeServer::start(playground, &["--immediate"])
}

#[test]
fn volume_with_foreign_content_is_not_formatted() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    let server = serve_one_volume(&playground);
    let (controller, device) = server.connect(&server.nqn("data"));
    let mut block = vec![0; 4096];
    block[64..64 + BTRFS_MAGIC.len()].copy_from_slice(BTRFS_MAGIC);
    device.execute(DeviceRequest::Write { offset_bytes: 64 << 10, data: block.clone(), fua: true }).unwrap();
    drop((controller, device));
    let url = format!("nvme-tcp://{}/data", server.address);
    let mount = |more: &[&str]| {
        playground.output(&[&["mount", &url, "mnt"], more, &["--", "df", "--output=fstype", "mnt"]].concat())
    };
    refused(&mount(&[]), "holds btrfs");
    let (controller, device) = server.connect(&server.nqn("data"));
    let read = device.execute(DeviceRequest::Read { offset_bytes: 64 << 10, buffer: vec![0; 4096] }).unwrap();
    assert_eq!(read, block, "it is untouched");
    drop((controller, device));
    let formatted = mount(&["--format"]);
    assert!(stdout(&formatted).contains("xfs"), "{}", stderr(&formatted));
    // Its present file system stays, whatever the options say.
    assert!(stdout(&mount(&["--filesystem", "ext4"])).contains("xfs"));
    server.stop();
}

/// A directory of ours is no file system that a kernel knows, and is found again as what it is.
#[test]
fn volume_with_directory_is_mounted_as_directory() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    let server = serve_one_volume(&playground);
    let url = format!("nvme-tcp://{}/data", server.address);
    let mount = |more: &[&str], command: &str| {
        playground.output(&[&["mount", &url, "mnt"], more, &["--", "sh", "-c", command]].concat())
    };
    let written = mount(&["--attachment", "fuse-directory"], "echo kept > mnt/file");
    assert!(written.status.success(), "{}", stderr(&written));
    for more in [&[][..], &["--attachment", "fuse-directory"], &["--filesystem", "ext4"]] {
        let read = mount(more, "cat mnt/file");
        assert_eq!(stdout(&read).trim(), "kept", "{more:?}: {}", stderr(&read));
    }
    refused(&mount(&["--attachment", "fuse+loop"], "true"), "was made by fuse-directory");
    let formatted = mount(&["--format", "--attachment", "fuse+loop"], "df --output=fstype mnt");
    assert!(stdout(&formatted).contains("xfs"), "{}", stderr(&formatted));
    refused(&mount(&["--attachment", "fuse-directory"], "true"), "was not made by fuse-directory");
    server.stop();
}
