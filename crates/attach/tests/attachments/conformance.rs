//! What every attachment must do, run on each of them.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use underlay_attach::{AttachSpec, Attachment, FilesystemKind, RealPaths};
use underlay_storage::stack::{BackingSpec, PacingMode};

use crate::fixture::{Fixture, MIB, fuse_directory, fuse_loops, spec, stack};

#[test]
fn fuse_loop_with_xfs() {
    for attachment in fuse_loops() {
        let fixture = Fixture::new();
        let volumes =
            stack(&[("data", 320 * MIB, BackingSpec::Memory), ("log", 320 * MIB, BackingSpec::Memory)]);
        conforms(&fixture, &attachment, &spec(volumes, FilesystemKind::Xfs, fixture.path("mnt")), 2);
        assert!(!fixture.path("mnt").exists(), "directories that were made must go");
    }
}

#[test]
fn fuse_loop_with_ext4() {
    for attachment in fuse_loops() {
        let fixture = Fixture::new();
        let volumes = stack(&[("data", 64 * MIB, BackingSpec::Memory)]);
        conforms(&fixture, &attachment, &spec(volumes, FilesystemKind::Ext4, fixture.path("mnt")), 1);
    }
}

#[test]
fn fuse_directories() {
    let Some(attachment) = fuse_directory() else { return };
    let fixture = Fixture::new();
    let volumes = stack(&[("data", 64 * MIB, BackingSpec::Memory), ("log", 64 * MIB, BackingSpec::Memory)]);
    conforms(&fixture, &attachment, &spec(volumes, FilesystemKind::Xfs, fixture.path("mnt")), 2);
    assert!(!fixture.path("mnt").exists(), "directories that were made must go");
}

#[test]
fn directories() {
    let fixture = Fixture::new();
    let disks = ["disk-a", "disk-b"].map(|name| fixture.path(name));
    for disk in &disks {
        fs::create_dir(disk).unwrap();
        fs::write(disk.join("theirs"), "stays").unwrap();
    }
    let attachment = RealPaths::new(disks.to_vec());
    conforms(&fixture, &attachment, &spec(stack(&[]), FilesystemKind::Xfs, fixture.path("mnt")), 2);
    for disk in &disks {
        let names: Vec<_> = fs::read_dir(disk).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["theirs"]);
    }
}

/// All that this host has.
fn modelled_attachments() -> impl Iterator<Item = Box<dyn Attachment>> {
    let loops = fuse_loops().into_iter().map(|attachment| Box::new(attachment) as Box<dyn Attachment>);
    loops.chain(fuse_directory().map(|attachment| Box::new(attachment) as Box<dyn Attachment>))
}

#[test]
fn volume_splits_into_directories() {
    for attachment in modelled_attachments() {
        let fixture = Fixture::new();
        let mut volumes = stack(&[
            ("data", 320 * MIB, BackingSpec::File(fixture.path("data"))),
            ("log", 320 * MIB, BackingSpec::File(fixture.path("log"))),
        ]);
        volumes.volumes[0].directories = 3;
        let mut spec = spec(volumes, FilesystemKind::Xfs, fixture.path("mnt"));
        let expected = ["mnt/data/dir-0", "mnt/data/dir-1", "mnt/data/dir-2", "mnt/log"];
        let expected = expected.map(|path| fixture.path(path));
        for (round, format) in [true, false].into_iter().enumerate() {
            spec.format = format;
            let mut attached = attachment.attach(&spec, &fixture.registry).unwrap();
            assert_eq!(attached.paths(), expected, "{}", attachment.name());
            for path in &expected {
                assert_eq!(fs::read_dir(path).unwrap().count(), round, "{}", path.display());
                fs::write(path.join("file"), "stays").unwrap();
            }
            assert_eq!(fs::read_dir(fixture.path("mnt/data")).unwrap().count(), 3);
            attached.detach().unwrap();
            fixture.assert_nothing_left();
        }
    }
}

#[test]
fn mount_point_accepts_a_single_volume() {
    for attachment in modelled_attachments() {
        let fixture = Fixture::new();
        let volumes =
            stack(&[("data", 320 * MIB, BackingSpec::Memory), ("log", 320 * MIB, BackingSpec::Memory)]);
        let spec = AttachSpec {
            mount_point: Some(fixture.path("mnt")),
            ..spec(volumes, FilesystemKind::Xfs, fixture.path("mnt"))
        };
        let refused = attachment.attach(&spec, &fixture.registry).unwrap_err().to_string();
        assert!(refused.contains("2 volumes"), "{refused}");
        assert!(!fixture.path("mnt").exists());
        fixture.assert_nothing_left();
    }
}

pub(crate) fn conforms(fixture: &Fixture, attachment: &dyn Attachment, spec: &AttachSpec, paths: usize) {
    attachment.probe().unwrap();
    let mut attached = attachment.attach(spec, &fixture.registry).unwrap();
    assert_eq!(attached.name(), attachment.name());
    assert_eq!(attached.paths().len(), paths);
    attached.health().unwrap();
    attached.begin_measurement(0.05).unwrap();
    attached.set_pace(PacingMode::Immediate).unwrap();
    for path in attached.paths() {
        files_behave(path);
    }
    attached.set_pace(PacingMode::Modelled).unwrap();
    let activity = attached.end_measurement().unwrap();
    if attached.daemon_pid().is_some() {
        assert_eq!(activity.len(), paths);
        assert!(
            activity.iter().all(|device| device.totals.write_bytes > 0 && device.totals.flushes > 0),
            "{activity:?}"
        );
    }
    attached.health().unwrap();
    let paths = attached.paths().to_vec();
    attached.detach().unwrap();
    assert!(paths.iter().all(|path| !path.exists()), "{paths:?}");
    attached.detach().unwrap();
    assert!(attached.health().is_err() || attached.daemon_pid().is_none());
    drop(attached);
    fixture.assert_nothing_left();

    // Dropping it does the same as detaching.
    let attached = attachment.attach(spec, &fixture.registry).unwrap();
    fs::write(attached.paths()[0].join("file"), "x").unwrap();
    drop(attached);
    fixture.assert_nothing_left();
}

fn files_behave(path: &Path) {
    // Written, flushed, read back by another handle.
    let content: Vec<u8> = (0..300_000_u32).flat_map(|number| number.to_le_bytes()).collect();
    let mut file = File::create(path.join("file")).unwrap();
    file.write_all(&content).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let mut read = Vec::new();
    File::open(path.join("file")).unwrap().read_to_end(&mut read).unwrap();
    assert!(read == content, "what was written reads back differently");

    // Overwritten in the middle, without alignment.
    let file = OpenOptions::new().read(true).write(true).open(path.join("file")).unwrap();
    file.write_all_at(b"underlay", 4093).unwrap();
    file.sync_data().unwrap();
    let mut part = [0; 10];
    file.read_exact_at(&mut part, 4092).unwrap();
    assert_eq!((part[0], &part[1..9], part[9]), (content[4092], &b"underlay"[..], content[4101]));

    // Cut and grown: the new part is zero.
    file.set_len(5000).unwrap();
    file.set_len(9000).unwrap();
    let mut tail = vec![1; 4000];
    file.read_exact_at(&mut tail, 5000).unwrap();
    assert!(tail.iter().all(|byte| *byte == 0));

    // Renamed over another, as every write-ahead log does.
    fs::write(path.join("current"), "old").unwrap();
    fs::write(path.join("next"), "new").unwrap();
    fs::rename(path.join("next"), path.join("current")).unwrap();
    assert_eq!(fs::read(path.join("current")).unwrap(), b"new");
    assert!(!path.join("next").exists());

    // Many, in many directories, and gone again.
    for number in 0..300 {
        let directory = path.join(format!("many/{}", number % 10));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(number.to_string()), number.to_string()).unwrap();
    }
    let count = |path: &Path| fs::read_dir(path).unwrap().count();
    assert_eq!((0..10).map(|number| count(&path.join(format!("many/{number}")))).sum::<usize>(), 300);
    assert_eq!(fs::read_to_string(path.join("many/7/237")).unwrap(), "237");
    fs::remove_dir_all(path.join("many")).unwrap();
    assert!(!path.join("many").exists());
}
