//! The power of a mounted disk is cut at random moments under RocksDB with synced writes: opened again afterwards, it
//! has every record that it acknowledged. `UNDERLAY_POWER_CUTS` sets the number of cuts; `make power-cuts` does.

mod support;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use underlay_attach::{
    AttachSpec, AttachedStorage, Attachment as _, BlockAttachment, FilesystemKind, ResourceRegistry,
    ServedStorage,
};
use underlay_storage::catalogue;
use underlay_storage::faults::{DeviceFault, PowerCut, WriteSurvival};
use underlay_storage::stack::{BackingSpec, DeviceSpec, StackSpec, VolumeSpec};
use underlay_systems::rocksdb::Rocksdb;
use underlay_systems::system::{RunningSystem, StoragePaths, System as _, SystemResources, SystemSettings};
use underlay_workload::client::{FieldSelection, FieldValues, OperationOutcome};

const CUTS_VARIABLE: &str = "UNDERLAY_POWER_CUTS";
const USUAL_CUTS: u64 = 10;
/// So few synced writes are unflushed at a time that a few cuts may take none of them: up to so many times more, until
/// one did.
const MAX_EXTRA_CUTS: u64 = 10;
const CUTS_A_DISK: u64 = 20;
const MEDIA: [&str; 2] = ["hdd-7200-sata", "ssd-sata"];
const WRITERS: u64 = 4;
const MAX_RUN_US: u64 = 120_000;
/// Large enough that memtables fill up and compaction is in progress when the lights go out.
const VALUE_BYTES: usize = 2000;
/// How many of the older records are checked after each cut; those of the last round all are.
const SAMPLE: u64 = 500;

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % limit
    }
}

fn key(writer: u64, number: u64) -> Vec<u8> {
    [writer.to_be_bytes(), number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()].concat()
}

fn value(writer: u64, number: u64) -> FieldValues {
    let mut values = FieldValues::default();
    let bytes: Vec<u8> =
        [writer, number].iter().flat_map(|word| word.to_le_bytes()).cycle().take(VALUE_BYTES).collect();
    values.push(0, &bytes);
    values
}

struct Disk {
    attached: AttachedStorage,
    served: ServedStorage,
    directory: PathBuf,
    scratch: PathBuf,
    /// How many records each writer knows to be there.
    acknowledged: [u64; WRITERS as usize],
}

impl Disk {
    fn make(folder: &Path, medium: &str) -> Disk {
        let registry = ResourceRegistry::open_at(&folder.join("runtime")).unwrap();
        let medium = Some(catalogue::find(medium).unwrap());
        let mut device = DeviceSpec::new("disk.0", medium, 512 << 20, BackingSpec::Memory);
        device.power_cut_armed = true;
        let spec = AttachSpec {
            // So fast that a thousand cuts can be waited for; what is lost does not depend on it.
            stack: StackSpec {
                volumes: vec![VolumeSpec::striped("disk", vec![device], 65536)],
                dilation: 0.02,
                seed: 1,
            },
            filesystem: Some(FilesystemKind::Xfs),
            mount_root: folder.join("mnt"),
            format: true,
            mount_point: None,
        };
        let program = env!("CARGO_BIN_EXE_underlay");
        let attachment = BlockAttachment::with_daemon(program, vec!["device-daemon".into()]);
        let attached = attachment.attach(&spec, &registry).unwrap();
        let served = attached.served().unwrap();
        let directory = attached.paths()[0].join("db");
        Disk {
            attached,
            served,
            directory,
            scratch: folder.join("scratch"),
            acknowledged: [0; WRITERS as usize],
        }
    }

    fn open(&self) -> Result<Box<dyn RunningSystem>, String> {
        let paths = StoragePaths {
            data: vec![self.directory.clone()],
            scratch: self.scratch.clone(),
            ..StoragePaths::default()
        };
        let resources = SystemResources::with_budget(32 << 20);
        let settings = SystemSettings {
            values: [("wal".to_owned(), "sync".to_owned())].into(),
            fields: 1,
            field_bytes: VALUE_BYTES as u32,
            timeout: Duration::from_secs(30),
            ..SystemSettings::default()
        };
        std::fs::create_dir_all(&self.directory).map_err(|error| error.to_string())?;
        Rocksdb::with_program(env!("CARGO_BIN_EXE_underlay"))
            .start(&paths, &resources, &settings)
            .map_err(|error| format!("it does not open: {error}"))
    }

    /// One life of the database: opened, looked through, written to, and cut off.
    fn live(
        &mut self,
        random: &mut Random,
        fresh: &mut [u64; WRITERS as usize],
    ) -> Result<WriteSurvival, String> {
        let running = self.open()?;
        self.verify(running.as_ref(), random, fresh)?;
        *fresh = self.acknowledged;
        let is_dark = AtomicBool::new(false);
        let delay = Duration::from_micros(random.below(MAX_RUN_US));
        let cut = PowerCut {
            seed: random.below(u64::MAX),
            torn: random.below(2) == 0,
            reordered: random.below(4) > 0,
        };
        let (served, is_dark) = (&self.served, &is_dark);
        let survival = std::thread::scope(|scope| {
            for (writer, acknowledged) in (0..).zip(&mut self.acknowledged) {
                let mut client = running.connect().map_err(|error| error.to_string())?;
                scope.spawn(move || {
                    while client.insert(&key(writer, *acknowledged), &value(writer, *acknowledged)).is_ok() {
                        // What is heard after the lights went out, nobody could have heard.
                        if is_dark.load(Ordering::SeqCst) {
                            break;
                        }
                        *acknowledged += 1;
                    }
                });
            }
            std::thread::sleep(delay);
            is_dark.store(true, Ordering::SeqCst);
            served.cut_power(&[], cut).map_err(|error| error.to_string())
        })?;
        // Killed, as its machine was.
        drop(running);
        self.served.restore_power().map_err(|error| error.to_string())?;
        Ok(survival)
    }

    fn verify(&self, running: &dyn RunningSystem, random: &mut Random, fresh: &[u64]) -> Result<(), String> {
        let mut client = running.connect().map_err(|error| error.to_string())?;
        let mut found = FieldValues::default();
        for (writer, (&count, &fresh)) in (0..).zip(self.acknowledged.iter().zip(fresh)) {
            let older = (0..SAMPLE.min(fresh)).map(|_| random.below(fresh)).collect::<Vec<_>>();
            for number in older.into_iter().chain(fresh..count) {
                match client.read(&key(writer, number), FieldSelection::All, &mut found) {
                    Ok(OperationOutcome::Found) if found == value(writer, number) => {}
                    other => {
                        return Err(format!(
                            "record {number} of writer {writer}, acknowledged up to {count}: {other:?}"
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    fn total(&self) -> u64 {
        self.acknowledged.iter().sum()
    }
}

#[test]
fn rocksdb_keeps_every_synced_write() {
    if !support::can_mount() {
        return;
    }
    let cuts = std::env::var(CUTS_VARIABLE).ok().map_or(USUAL_CUTS, |text| text.parse().unwrap());
    let seed = u64::from(std::process::id());
    let mut random = Random(seed);
    let (mut survival, mut acknowledged, mut done) = (WriteSurvival::default(), 0, 0);
    let most = cuts * MAX_EXTRA_CUTS;
    while done < cuts || (survival.lost == 0 && done < most) {
        let playground = support::Playground::new();
        let medium = MEDIA[(done / CUTS_A_DISK % 2) as usize];
        let mut disk = Disk::make(playground.folder.path(), medium);
        let mut fresh = [0; WRITERS as usize];
        for _ in 0..CUTS_A_DISK.min(cuts) {
            done += 1;
            survival += disk
                .live(&mut random, &mut fresh)
                .unwrap_or_else(|problem| panic!("seed {seed}, {medium}, cut {done}: {problem}"));
        }
        let running = disk.open().unwrap();
        disk.verify(running.as_ref(), &mut random, &[0; WRITERS as usize]).unwrap();
        running.stop().unwrap();
        acknowledged += disk.total();
        disk.attached.detach().unwrap();
        assert_eq!(playground.left_behind(), [""; 0]);
    }
    println!(
        "rocksdb: {done} power cuts, {acknowledged} acknowledged synced writes, all there; of the device's unflushed \
         writes {} survived, {} in part, {} were lost",
        survival.survived, survival.torn, survival.lost
    );
    assert!(acknowledged > done && survival.lost > 0, "{acknowledged} writes, {survival:?}");
}

/// The same on a disk that answers flushes without carrying them out: the checks must see it.
#[test]
fn disk_ignoring_flushes_loses_records() {
    if !support::can_mount() {
        return;
    }
    let found_out = (0..10).find_map(|attempt| {
        let playground = support::Playground::new();
        let mut disk = Disk::make(playground.folder.path(), "hdd-7200-sata");
        disk.served.inject("disk.0", DeviceFault::IgnoreFlushes, None).unwrap();
        let mut fresh = [0; WRITERS as usize];
        let found = (0..5).find_map(|_| disk.live(&mut Random(attempt), &mut fresh).err());
        let _ = disk.attached.detach();
        found
    });
    println!("found out: {}", found_out.expect("nobody noticed"));
}
