//! The power of a mounted disk is cut at random moments under a program that syncs: all acknowledged data is there
//! afterwards, the filesystem mounts again and its own checker finds nothing.
//!
//! The same on a mirror with a second fault beside the cut: `second_fault`.
//!
//! `UNDERLAY_POWER_CUTS` sets the number of cuts for each filesystem; `make power-cuts` does.

#[path = "../attachments/fixture.rs"]
#[allow(dead_code)]
mod fixture;
mod second_fault;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use underlay_attach::{AttachedStorage, Attachment, FilesystemKind, ServedStorage, mounts};
use underlay_storage::faults::{DeviceFault, PowerCut, WriteSurvival};
use underlay_storage::stack::BackingSpec;

use fixture::{Fixture, MIB, Random, fuse_loop, modelled, spec, without_hanging};

const CUTS_VARIABLE: &str = "UNDERLAY_POWER_CUTS";
const USUAL_CUTS: u64 = 25;
/// So often the disk is made anew, alternately of one kind and the other.
const CUTS_A_DISK: u64 = 20;
const MEDIA: [&str; 2] = ["hdd-7200-sata", "ssd-sata"];
/// The longest that a program runs before the lights go out.
const MAX_RUN_US: u64 = 60_000;
const LIMIT: Duration = Duration::from_secs(60);

/// What a program may rely on: only what a sync acknowledged.
#[derive(Default)]
struct Acknowledged {
    /// Files that were written, synced, and their directory synced.
    files: Vec<String>,
    /// The bytes of the log up to which it was synced.
    log_bytes: u64,
    /// Records of a table that is written in place.
    records: BTreeMap<u64, Versions>,
    /// The last name that a rename gave and a sync acknowledged, and the one before it was tried.
    renamed: Option<u64>,
    syncs: u64,
    /// Set before the power is cut. A program would die with its machine; this one lives on, and may get answers that
    /// no program could have received: XFS answers the sync of a directory with success after it has shut down.
    is_dark: bool,
}

impl Acknowledged {
    /// Takes down what a sync has acknowledged, if it was still light.
    fn note(
        acknowledged: &Mutex<Acknowledged>,
        syncs: u64,
        note: impl FnOnce(&mut Acknowledged),
    ) -> std::io::Result<()> {
        let mut acknowledged = acknowledged.lock().unwrap();
        if acknowledged.is_dark {
            return Err(std::io::Error::other("the power is off"));
        }
        note(&mut acknowledged);
        acknowledged.syncs += syncs;
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Versions {
    synced: u64,
    written: u64,
    /// Ever given, also to what a cut took.
    highest: u64,
}

fn content(name: &str) -> Vec<u8> {
    let bytes = name.bytes().fold(0usize, |sum, byte| (sum * 31 + usize::from(byte)) % 50_000) + 1;
    name.bytes().cycle().take(bytes).collect()
}

/// The log's byte at an offset, the same in every run.
fn log_byte(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

const RECORD_BYTES: usize = 4096;
const RECORDS: u64 = 64;

fn record(number: u64, version: u64) -> Vec<u8> {
    [number, version].iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>().repeat(RECORD_BYTES / 16)
}

/// Four programs at once, until the first error, which the cut brings.
fn write_until_cut(directory: &Path, round: u64, seed: u64, acknowledged: &Arc<Mutex<Acknowledged>>) {
    let stop = Arc::new(AtomicBool::new(false));
    type Program = fn(&Path, u64, &mut Random, &Mutex<Acknowledged>, &AtomicBool) -> std::io::Result<()>;
    let programs: [Program; 4] = [write_files, append_log, update_table, scribble];
    let threads: Vec<_> = programs
        .into_iter()
        .enumerate()
        .map(|(index, program)| {
            let (directory, acknowledged, stop) =
                (directory.to_owned(), Arc::clone(acknowledged), Arc::clone(&stop));
            let mut random = Random(seed ^ index as u64);
            std::thread::spawn(move || {
                let ended = program(&directory, round, &mut random, &acknowledged, &stop);
                stop.store(true, Ordering::SeqCst);
                ended.expect_err("only an error ends it")
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

fn stopped(stop: &AtomicBool) -> std::io::Result<()> {
    if stop.load(Ordering::SeqCst) { Err(std::io::Error::other("another one has failed")) } else { Ok(()) }
}

fn write_files(
    directory: &Path,
    round: u64,
    _random: &mut Random,
    acknowledged: &Mutex<Acknowledged>,
    stop: &AtomicBool,
) -> std::io::Result<()> {
    let folder = File::open(directory)?;
    for number in 0.. {
        stopped(stop)?;
        let name = format!("file-{round}-{number}");
        let mut file = File::create(directory.join(&name))?;
        file.write_all(&content(&name))?;
        file.sync_all()?;
        folder.sync_all()?;
        Acknowledged::note(acknowledged, 2, |acknowledged| acknowledged.files.push(name))?;
        // The way in which programs replace a file: the name means the old one or the new one, never neither.
        let version = round * 1_000_000 + number;
        let mut file = File::create(directory.join("current.new"))?;
        file.write_all(&content(&version.to_string()))?;
        file.sync_all()?;
        fs::rename(directory.join("current.new"), directory.join("current"))?;
        folder.sync_all()?;
        Acknowledged::note(acknowledged, 2, |acknowledged| acknowledged.renamed = Some(version))?;
    }
    Ok(())
}

fn append_log(
    directory: &Path,
    _round: u64,
    random: &mut Random,
    acknowledged: &Mutex<Acknowledged>,
    stop: &AtomicBool,
) -> std::io::Result<()> {
    let file = File::options().create(true).truncate(false).write(true).open(directory.join("log"))?;
    let mut offset = acknowledged.lock().unwrap().log_bytes;
    loop {
        stopped(stop)?;
        let bytes: Vec<u8> = (offset..offset + 1 + random.below(20_000)).map(log_byte).collect();
        file.write_all_at(&bytes, offset)?;
        file.sync_data()?;
        offset += bytes.len() as u64;
        Acknowledged::note(acknowledged, 1, |acknowledged| acknowledged.log_bytes = offset)?;
    }
}

fn update_table(
    directory: &Path,
    _round: u64,
    random: &mut Random,
    acknowledged: &Mutex<Acknowledged>,
    stop: &AtomicBool,
) -> std::io::Result<()> {
    let file = File::options().create(true).truncate(false).write(true).open(directory.join("table"))?;
    loop {
        stopped(stop)?;
        for _ in 0..1 + random.below(6) {
            let number = random.below(RECORDS);
            let version = {
                let mut acknowledged = acknowledged.lock().unwrap();
                let versions = acknowledged.records.entry(number).or_default();
                versions.highest += 1;
                versions.written = versions.highest;
                versions.written
            };
            file.write_all_at(&record(number, version), number * RECORD_BYTES as u64)?;
        }
        file.sync_data()?;
        Acknowledged::note(acknowledged, 1, |acknowledged| {
            acknowledged.records.values_mut().for_each(|versions| versions.synced = versions.written);
        })?;
    }
}

/// Makes and removes files without ever syncing: nothing is promised of them but a sound filesystem.
fn scribble(
    directory: &Path,
    _round: u64,
    random: &mut Random,
    _known: &Mutex<Acknowledged>,
    stop: &AtomicBool,
) -> std::io::Result<()> {
    let folder = directory.join("scribbles");
    fs::create_dir_all(&folder)?;
    loop {
        stopped(stop)?;
        let path = folder.join(random.below(50).to_string());
        if random.below(3) == 0 {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        } else {
            File::create(&path)?.write_all(&vec![1; random.below(60_000) as usize])?;
        }
    }
}

/// Holds the directory against what was acknowledged; afterwards what it shows is what is known.
fn verify(directory: &Path, acknowledged: &mut Acknowledged) -> Result<(), String> {
    for name in acknowledged.files.drain(..) {
        let found = fs::read(directory.join(&name)).map_err(|error| format!("{name}: {error}"))?;
        if found != content(&name) {
            return Err(format!("{name} holds {} bytes, not what was synced", found.len()));
        }
        // Or the disk would be full some day.
        fs::remove_file(directory.join(&name)).map_err(|error| format!("{name}: {error}"))?;
    }
    if let Some(version) = acknowledged.renamed {
        let found = fs::read(directory.join("current")).map_err(|error| format!("current: {error}"))?;
        // The next rename may have happened without being acknowledged: its version is one higher, or the first
        // of this round.
        let fits = found == content(&version.to_string()) || is_later(&found, version);
        if !fits {
            return Err(format!(
                "`current` is neither version {version} nor a later one: {} bytes of {:?}",
                found.len(),
                String::from_utf8_lossy(&found[..found.len().min(30)])
            ));
        }
    }
    if acknowledged.log_bytes > 0 {
        let found = fs::read(directory.join("log")).map_err(|error| format!("log: {error}"))?;
        let wrong = (0..acknowledged.log_bytes)
            .find(|offset| found.get(*offset as usize) != Some(&log_byte(*offset)));
        if let Some(offset) = wrong {
            return Err(format!(
                "the log was synced up to {} and is wrong at {offset}",
                acknowledged.log_bytes
            ));
        }
    }
    if !acknowledged.records.is_empty() {
        let table = match fs::read(directory.join("table")) {
            // Nothing of it was ever synced.
            Err(error)
                if error.kind() == std::io::ErrorKind::NotFound
                    && acknowledged.records.values().all(|versions| versions.synced == 0) =>
            {
                Vec::new()
            }
            read => read.map_err(|error| format!("table: {error}"))?,
        };
        for (number, versions) in &mut acknowledged.records {
            // The table may end before a record that was never synced.
            let start = (*number as usize * RECORD_BYTES).min(table.len());
            let mut found = table[start..].iter().copied().take(RECORD_BYTES).collect::<Vec<u8>>();
            found.resize(RECORD_BYTES, 0);
            let version = u64::from_le_bytes(found[8..16].try_into().unwrap());
            let whole = if version == 0 { vec![0; RECORD_BYTES] } else { record(*number, version) };
            if found != whole || !(versions.synced..=versions.written).contains(&version) {
                return Err(format!("record {number} has version {version}, known is {versions:?}"));
            }
            (versions.synced, versions.written) = (version, version);
        }
    }
    Ok(())
}

/// Whether this is the content of a version after the acknowledged one.
fn is_later(found: &[u8], version: u64) -> bool {
    let text: String = found.iter().take(20).map(|byte| char::from(*byte)).collect();
    (1..=20.min(text.len())).any(|digits| {
        text[..digits]
            .parse::<u64>()
            .is_ok_and(|later| later > version && found == content(&later.to_string()))
    })
}

/// The filesystem's own checker, on the recovered and unmounted volume.
fn check(filesystem: FilesystemKind, device: &Path) -> Result<(), String> {
    let (program, arguments): (_, &[&str]) = match filesystem {
        FilesystemKind::Xfs => ("xfs_repair", &["-n"]),
        FilesystemKind::Ext4 => ("e2fsck", &["-f", "-n"]),
    };
    let output =
        Command::new(program).args(arguments).arg(device).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let words = [output.stdout, output.stderr].concat();
    Err(format!("{program} found damage:\n{}", String::from_utf8_lossy(&words)))
}

/// What the checker finds of a file system that was mounted, and so recovered, and what is there of what was
/// acknowledged.
fn look(
    filesystem: FilesystemKind,
    directory: &Path,
    acknowledged: &Mutex<Acknowledged>,
) -> Result<(), String> {
    let device = mounts::find(directory).ok_or("it is not mounted")?.source;
    // The checkers want it unmounted.
    mounts::try_unmount(directory, LIMIT).map_err(|error| mounts::explain(directory, error).to_string())?;
    let checked = check(filesystem, &device);
    filesystem.mount(&device, directory).map_err(|error| error.to_string())?;
    checked?;
    verify(directory, &mut acknowledged.lock().unwrap())
}

fn some_cut(random: &mut Random) -> PowerCut {
    PowerCut { seed: random.below(u64::MAX), torn: random.below(2) == 0, reordered: random.below(4) > 0 }
}

struct Disk {
    attached: AttachedStorage,
    served: ServedStorage,
    filesystem: FilesystemKind,
    directory: PathBuf,
    known: Arc<Mutex<Acknowledged>>,
}

impl Disk {
    fn make(fixture: &Fixture, filesystem: FilesystemKind, medium: &str) -> Option<Disk> {
        let mut stack = modelled(medium, 320 * MIB, BackingSpec::Memory);
        stack.volumes[0].root.for_each_device(&mut |device| device.power_cut_armed = true);
        let attached =
            fuse_loop()?.attach(&spec(stack, filesystem, fixture.path("mnt")), &fixture.registry).unwrap();
        let served = attached.served().unwrap();
        let directory = attached.paths()[0].clone();
        Some(Disk { attached, served, filesystem, directory, known: Arc::default() })
    }

    /// One cut under load, and everything that must hold afterwards.
    fn cut(&self, random: &mut Random, round: u64) -> Result<WriteSurvival, String> {
        let (directory, acknowledged) = (self.directory.clone(), Arc::clone(&self.known));
        let seed = random.below(u64::MAX);
        let delay = Duration::from_micros(random.below(MAX_RUN_US));
        let cut = some_cut(random);
        let served = self.served.clone();
        let (lights, dark) = (Arc::clone(&self.known), |acknowledged: &Mutex<Acknowledged>, is_dark| {
            acknowledged.lock().unwrap().is_dark = is_dark;
        });
        dark(&lights, false);
        let cutter = std::thread::spawn(move || {
            std::thread::sleep(delay);
            dark(&lights, true);
            served.cut_power(&[], cut).unwrap()
        });
        without_hanging("the writer", move || write_until_cut(&directory, round, seed, &acknowledged));
        let survival = cutter.join().unwrap();
        let recovered = || -> Result<(), String> {
            self.served.restore_power().map_err(|error| error.to_string())?;
            look(self.filesystem, &self.directory, &self.known)
        };
        recovered().map(|()| survival).map_err(|problem| {
            format!("{} round {round}, {cut:?} after {delay:?}: {problem}", self.filesystem.name())
        })
    }
}

fn cuts() -> u64 {
    std::env::var(CUTS_VARIABLE).ok().map_or(USUAL_CUTS, |text| text.parse().unwrap())
}

fn survive(filesystem: FilesystemKind) {
    let cuts = cuts();
    let seed = u64::from(std::process::id());
    let mut random = Random(seed);
    let fixture = Fixture::new();
    let (mut survival, mut syncs) = (WriteSurvival::default(), 0);
    let mut round = 0;
    while round < cuts {
        let medium = MEDIA[(round / CUTS_A_DISK % 2) as usize];
        let Some(mut disk) = Disk::make(&fixture, filesystem, medium) else { return };
        for _ in 0..CUTS_A_DISK.min(cuts - round) {
            round += 1;
            match disk.cut(&mut random, round) {
                Ok(one) => survival += one,
                Err(problem) => panic!("seed {seed}, {medium}: {problem}"),
            }
        }
        syncs += disk.known.lock().unwrap().syncs;
        disk.attached.detach().unwrap();
        fixture.assert_nothing_left();
    }
    println!(
        "{}: {cuts} power cuts, {syncs} acknowledged syncs, all intact; of the unflushed writes {} survived, \
         {} in part, {} were lost",
        filesystem.name(),
        survival.survived,
        survival.torn,
        survival.lost
    );
    // A test in which nothing was acknowledged or lost would test nothing. How much is in flight at a cut is up
    // to the host's load, so no more is asked.
    assert!(syncs > cuts && survival.lost > 0 && survival.survived > 0, "{syncs} syncs, {survival:?}");
}

#[test]
fn xfs_keeps_what_it_acknowledged() {
    survive(FilesystemKind::Xfs);
}

#[test]
fn ext4_keeps_what_it_acknowledged() {
    survive(FilesystemKind::Ext4);
}

/// The same checks on a disk that answers flushes without carrying them out: they must see it.
#[test]
fn disk_ignoring_flushes_is_detected() {
    for filesystem in [FilesystemKind::Xfs, FilesystemKind::Ext4] {
        let mut found_out = None;
        for attempt in 0..10 {
            let fixture = Fixture::new();
            let Some(mut disk) = Disk::make(&fixture, filesystem, "hdd-7200-sata") else { return };
            let mut random = Random(attempt);
            for device in disk.served.faults().unwrap() {
                disk.served.inject(&device.device, DeviceFault::IgnoreFlushes, None).unwrap();
            }
            found_out = (0..5).find_map(|round| disk.cut(&mut random, round).err());
            // Its filesystem may be past mounting.
            let _ = disk.attached.detach();
            drop(disk);
            fixture.assert_nothing_left();
            if found_out.is_some() {
                break;
            }
        }
        let found_out = found_out.unwrap_or_else(|| panic!("{}: nobody noticed", filesystem.name()));
        println!("found out: {found_out}");
    }
}
