//! Writers are held back while much of what they wrote waits for the devices, and no device keeps that.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use underlay_sync::{Mutex, MutexGuard};

use underlay_attach::{AttachError, Attachment, FilesystemKind, RealPaths};
use underlay_storage::stack::BackingSpec;

use crate::fixture::{Fixture, MIB, fuse_loop, spec, stack};

/// Tests that look at a loop device after it was given back: another of them could be its next user.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock()
}

/// What the kernel shows of the page cache's way to a device.
pub(crate) struct Bdi(pub PathBuf);

impl Bdi {
    pub(crate) fn from_path(path: &Path) -> Bdi {
        let number = fs::metadata(path).unwrap().dev();
        Bdi(PathBuf::from(format!("/sys/class/bdi/{}:{}", libc::major(number), libc::minor(number))))
    }

    pub(crate) fn read(&self, file: &str) -> u64 {
        fs::read_to_string(self.0.join(file)).unwrap().trim().parse().unwrap()
    }

    /// As a loop device comes.
    pub(crate) fn assert_unlimited(&self) {
        let found = ["strict_limit", "max_ratio_fine", "min_ratio_fine"].map(|file| self.read(file));
        assert_eq!(found, [0, 1_000_000, 0], "{}", self.0.display());
    }
}

#[test]
fn writer_waits_for_device_and_limit_is_restored() {
    let Some(attachment) = fuse_loop() else { return };
    let _alone = alone();
    let fixture = Fixture::new();
    let volumes = ["one", "other"].map(|name| (name, 320 * MIB, BackingSpec::Memory));
    let wanted = spec(stack(&volumes), FilesystemKind::Xfs, fixture.path("mnt"));
    let mut attached = attachment.attach(&wanted, &fixture.registry).unwrap();
    let devices: Vec<Bdi> = attached.paths().iter().map(|path| Bdi::from_path(path)).collect();
    let too_little = attached.limit_dirty(MIB, &fixture.registry).unwrap_err();
    assert!(too_little.to_string().contains("least that works"), "{too_little}");
    let set = match attached.limit_dirty(16 * MIB, &fixture.registry) {
        Ok(set) => set,
        Err(AttachError::Missing(missing)) if !devices[0].0.join("strict_limit").exists() => {
            return eprintln!("skipped: {missing}");
        }
        Err(error) => panic!("{error}"),
    };
    assert_eq!((set.devices, set.device_bytes), (2, 8 * MIB));
    for device in &devices {
        assert_eq!(device.read("strict_limit"), 1);
        let limit_bytes = device.read("max_bytes");
        // The kernel keeps it as a share of a limit that changes with free memory.
        assert!((6 * MIB..10 * MIB).contains(&limit_bytes), "{limit_bytes}");
    }
    attached.begin_measurement(1.0).unwrap();
    fs::write(attached.paths()[0].join("file"), vec![1; 96 << 20]).unwrap();
    let written: u64 = attached.end_measurement().unwrap().iter().map(|one| one.totals.write_bytes).sum();
    // Nobody synced it.
    assert!(written > 48 * MIB, "{written} of 96 MiB were written before the writer went on");
    attached.detach().unwrap();
    devices.iter().for_each(Bdi::assert_unlimited);
    fixture.assert_nothing_left();

    // Dropped with its limit, too.
    let mut attached = attachment.attach(&wanted, &fixture.registry).unwrap();
    let device = Bdi::from_path(&attached.paths()[0]);
    attached.limit_dirty(16 * MIB, &fixture.registry).unwrap();
    drop(attached);
    device.assert_unlimited();
    fixture.assert_nothing_left();
}

#[test]
fn disks_of_the_user_are_left_as_they_are() {
    let fixture = Fixture::new();
    let disk = fixture.path("disk");
    fs::create_dir(&disk).unwrap();
    let wanted = spec(stack(&[]), FilesystemKind::Xfs, fixture.path("mnt"));
    let mut attached = RealPaths::new(vec![disk]).attach(&wanted, &fixture.registry).unwrap();
    let error = attached.limit_dirty(16 * MIB, &fixture.registry).unwrap_err();
    assert!(
        matches!(&error, AttachError::Missing(missing) if missing.remedy.contains("vm.dirty_bytes")),
        "{error}"
    );
}
