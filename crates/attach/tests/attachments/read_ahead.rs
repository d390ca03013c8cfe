//! How far the kernel reads ahead is the study's while a storage is attached, and the device's own again afterwards.

use std::fs::{self, File};
use std::io::Read as _;

use underlay_attach::{AttachError, AttachedStorage, Attachment, FilesystemKind, RealPaths, page_cache};
use underlay_storage::stack::BackingSpec;

use crate::dirty_limit::{Bdi, alone};
use crate::fixture::{Fixture, MIB, fuse_loop, spec, stack};

const FILE: &str = "read_ahead_kb";

/// How many requests the device had while the first MiB of a file was read in pages, each for itself.
fn requests_for_a_mib(attached: &AttachedStorage) -> u64 {
    page_cache::drop_file_caches(attached.paths()).unwrap();
    attached.begin_measurement(1.0).unwrap();
    let mut file = File::open(attached.paths()[0].join("file")).unwrap();
    let mut page = [0; 4096];
    for _ in 0..256 {
        file.read_exact(&mut page).unwrap();
    }
    let devices = attached.end_measurement().unwrap();
    devices.iter().map(|device| device.totals.reads).sum()
}

#[test]
fn read_ahead_is_set_and_restored() {
    let Some(attachment) = fuse_loop() else { return };
    let _alone = alone();
    let fixture = Fixture::new();
    let volumes = ["one", "other"].map(|name| (name, 320 * MIB, BackingSpec::Memory));
    let wanted = spec(stack(&volumes), FilesystemKind::Xfs, fixture.path("mnt"));
    let mut attached = attachment.attach(&wanted, &fixture.registry).unwrap();
    let devices: Vec<Bdi> = attached.paths().iter().map(|path| Bdi::from_path(path)).collect();
    let before: Vec<u64> = devices.iter().map(|device| device.read(FILE)).collect();
    let now = || devices.iter().map(|device| device.read(FILE)).collect::<Vec<_>>();
    assert!(before.iter().all(|&kib| kib > 0 && kib != 1024), "{before:?}");

    fs::write(attached.paths()[0].join("file"), vec![7; 4 << 20]).unwrap();
    attached.read_ahead(1 << 20, &fixture.registry).unwrap();
    assert_eq!(now(), [1024, 1024]);
    let far = requests_for_a_mib(&attached);
    attached.read_ahead(0, &fixture.registry).unwrap();
    assert_eq!(now(), [0, 0]);
    let none = requests_for_a_mib(&attached);
    assert!(none >= 250 && far * 4 < none, "{far} requests with a read-ahead of 1 MiB, {none} with none");
    attached.detach().unwrap();
    assert_eq!(now(), before);
    fixture.assert_nothing_left();

    // Dropped as it is, too.
    let mut attached = attachment.attach(&wanted, &fixture.registry).unwrap();
    let device = Bdi::from_path(&attached.paths()[0]);
    let before = device.read(FILE);
    attached.read_ahead(16 << 10, &fixture.registry).unwrap();
    assert_eq!(device.read(FILE), 16);
    drop(attached);
    assert_eq!(device.read(FILE), before);
    fixture.assert_nothing_left();
}

#[test]
fn disks_of_the_user_keep_their_read_ahead() {
    let fixture = Fixture::new();
    let disk = fixture.path("disk");
    fs::create_dir(&disk).unwrap();
    let wanted = spec(stack(&[]), FilesystemKind::Xfs, fixture.path("mnt"));
    let mut attached = RealPaths::new(vec![disk]).attach(&wanted, &fixture.registry).unwrap();
    let error = attached.read_ahead(16 << 10, &fixture.registry).unwrap_err();
    assert!(
        matches!(&error, AttachError::Missing(missing) if missing.remedy.contains("blockdev --setra")),
        "{error}"
    );
}
