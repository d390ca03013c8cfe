//! The device daemon is killed at random moments: what was acknowledged as flushed is there, what could not be
//! flushed is not acknowledged, and nobody hangs.
//!
//! The data of a device lies in its backing file once a write was submitted, so a killed daemon alone can't lose
//! what a flush that never reached the device should have kept. That each acknowledged flush is a flush of the
//! device is counted here, and proved call by call in the unit tests of the export.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use underlay_attach::{Attachment, FilesystemKind};
use underlay_storage::stack::BackingSpec;

use crate::fixture::{Fixture, MIB, Random, fuse_loops, modelled, spec, stack, without_hanging};

const ROUNDS: u64 = 100;
/// Alternately: both have a volatile write cache, which a flush has to empty.
const MEDIA: [&str; 2] = ["hdd-7200-sata", "ssd-sata"];
const BLOCK_BYTES: usize = 4096;
const BLOCKS: u64 = 512;

/// What is known of each block: the last version whose flush was acknowledged, and the last that was written.
#[derive(Clone, Copy, Debug, Default)]
struct Versions {
    flushed: u64,
    written: u64,
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
}

fn block_of(number: u64, version: u64) -> Vec<u8> {
    [number, version].iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>().repeat(BLOCK_BYTES / 16)
}

#[test]
fn flushed_blocks_survive_a_hundred_kills() {
    let attachments = fuse_loops();
    if attachments.is_empty() {
        return;
    }
    let fixture = Fixture::new();
    let seed = u64::from(std::process::id());
    let mut random = Random(seed);
    let mut blocks: BTreeMap<u64, Versions> = BTreeMap::new();
    let mut flushes = 0;
    for round in 0..=ROUNDS {
        let medium = MEDIA[(round % 2) as usize];
        let attachment = &attachments[(round / 2) as usize % attachments.len()];
        let volumes = modelled(medium, 16 * MIB, BackingSpec::File(fixture.path("backing")));
        let mut devices = attachment.attach_devices(&volumes, &fixture.registry).unwrap();
        let path = devices.paths()[0].clone();
        verify(&path, &mut blocks, &format!("seed {seed}, round {round}"));
        if round == ROUNDS {
            devices.detach().unwrap();
            break;
        }
        let written_blocks = std::mem::take(&mut blocks);
        let writer_seed = random.below(u64::MAX);
        let (written_blocks, flushed) = {
            let delay = Duration::from_micros(random.below(15_000));
            let pid = devices.daemon_pid().unwrap();
            let killer = std::thread::spawn(move || {
                std::thread::sleep(delay);
                kill(pid);
            });
            let written =
                without_hanging("the writer", move || write_until_error(&path, written_blocks, writer_seed));
            killer.join().unwrap();
            written
        };
        blocks = written_blocks;
        flushes += flushed;
        assert!(devices.health().is_err());
        devices.detach().unwrap();
    }
    assert!(flushes > ROUNDS, "only {flushes} flushes were acknowledged: the test tests nothing");
    fixture.assert_nothing_left();
}

#[test]
fn acknowledged_flushes_are_device_flushes() {
    const FLUSHES: u64 = 40;
    for (attachment, medium) in
        fuse_loops().into_iter().flat_map(|each| MEDIA.map(|medium| (each.clone(), medium)))
    {
        let fixture = Fixture::new();
        let volumes = modelled(medium, 16 * MIB, BackingSpec::Memory);
        let mut devices = attachment.attach_devices(&volumes, &fixture.registry).unwrap();
        let path = devices.paths()[0].clone();
        devices.begin_measurement(1.0).unwrap();
        without_hanging("the writer", move || {
            let file = File::options().write(true).open(path).unwrap();
            for number in 0..FLUSHES {
                file.write_all_at(&block_of(number, 1), number * 7 % BLOCKS * BLOCK_BYTES as u64).unwrap();
                file.sync_all().unwrap();
            }
        });
        let totals = devices.end_measurement().unwrap()[0].totals;
        assert!(totals.flushes >= FLUSHES, "{medium}: {totals:?}");
        assert!(totals.write_bytes >= FLUSHES * BLOCK_BYTES as u64, "{medium}: {totals:?}");
        devices.detach().unwrap();
        fixture.assert_nothing_left();
    }
}

/// Writes blocks and flushes every few of them until the daemon is gone.
fn write_until_error(
    path: &Path,
    mut blocks: BTreeMap<u64, Versions>,
    seed: u64,
) -> (BTreeMap<u64, Versions>, u64) {
    let mut random = Random(seed);
    let file = File::options().write(true).open(path).unwrap();
    let mut version = blocks.values().map(|versions| versions.written).max().unwrap_or(0);
    let mut flushes = 0;
    loop {
        for _ in 0..=random.below(4) {
            version += 1;
            let number = random.below(BLOCKS);
            blocks.entry(number).or_default().written = version;
            // Into the page cache: it is the flush that carries it to the device and tells.
            if file.write_all_at(&block_of(number, version), number * BLOCK_BYTES as u64).is_err() {
                assert!(file.sync_all().is_err(), "a flush to a dead daemon was acknowledged");
                return (blocks, flushes);
            }
        }
        match file.sync_all() {
            Ok(()) => {
                blocks.values_mut().for_each(|versions| versions.flushed = versions.written);
                flushes += 1;
            }
            Err(_) => return (blocks, flushes),
        }
    }
}

/// Every block is whole and no older than its last acknowledged flush.
fn verify(path: &Path, blocks: &mut BTreeMap<u64, Versions>, moment: &str) {
    let file = File::open(path).unwrap();
    for (number, versions) in blocks {
        let mut found = vec![0; BLOCK_BYTES];
        file.read_exact_at(&mut found, number * BLOCK_BYTES as u64).unwrap();
        let version = u64::from_le_bytes(found[8..16].try_into().unwrap());
        let whole = if version == 0 { vec![0; BLOCK_BYTES] } else { block_of(*number, version) };
        assert!(found == whole, "{moment}: block {number} is torn");
        assert!(
            (versions.flushed..=versions.written).contains(&version),
            "{moment}: block {number} has version {version}, {versions:?}"
        );
        // What it shows now is what the next round starts from.
        *versions = Versions { flushed: version, written: version };
    }
}

#[test]
fn flushed_files_on_xfs_survive() {
    let attachments = fuse_loops();
    if attachments.is_empty() {
        return;
    }
    let fixture = Fixture::new();
    let mut random = Random(u64::from(std::process::id()) + 1);
    let backing = BackingSpec::File(fixture.path("backing"));
    let mut wanted = spec(stack(&[("data", 320 * MIB, backing)]), FilesystemKind::Xfs, fixture.path("mnt"));
    let mut losses = 0;
    let mut flushed: Vec<String> = Vec::new();
    for round in 0..6 {
        let attachment = &attachments[round as usize % attachments.len()];
        let mut attached = attachment.attach(&wanted, &fixture.registry).unwrap();
        wanted.format = false;
        let directory = attached.paths()[0].clone();
        for name in &flushed {
            assert_eq!(fs::read_to_string(directory.join(name)).unwrap(), name.repeat(1000), "round {round}");
        }
        let pid = attached.daemon_pid().unwrap();
        goes_before_other_sessions(pid);
        let delay = Duration::from_micros(random.below(40_000));
        let killer = std::thread::spawn(move || {
            std::thread::sleep(delay);
            kill(pid);
        });
        flushed.extend(without_hanging("the writer", move || write_files(directory, round)));
        killer.join().unwrap();
        // It tells that something may be lost, and takes everything away all the same.
        if let Err(error) = attached.detach() {
            assert!(error.to_string().contains("lost"), "{error}");
            attached.detach().unwrap();
            losses += 1;
        }
        fixture.assert_nothing_left();
    }
    assert!(!flushed.is_empty());
    // Not each time: a writer that was stopped while it read, just after a flush, had nothing to lose.
    assert!(losses > 0, "no detach said that something may be lost");
}

/// The names of the files whose flush, and that of their directory, was acknowledged.
fn write_files(directory: PathBuf, round: u32) -> Vec<String> {
    let mut flushed = Vec::new();
    for number in 0.. {
        let name = format!("{round}-{number}");
        let write = || -> std::io::Result<()> {
            let mut file = File::create(directory.join(&name))?;
            file.write_all(name.repeat(1000).as_bytes())?;
            file.sync_all()?;
            File::open(&directory)?.sync_all()
        };
        if write().is_err() {
            break;
        }
        flushed.push(name);
    }
    flushed
}

/// Where the kernel schedules sessions against each other.
fn goes_before_other_sessions(daemon: u32) {
    if let Ok(group) = fs::read_to_string(format!("/proc/{daemon}/autogroup")) {
        assert!(group.trim_end().ends_with("nice -5"), "{group}");
    }
}
