//! The exerciser: random operations with a copy in memory beside, on every attachment that this host has and every
//! stack of layers. `make exercise` does a million on each and prints a table.
//!
//! `UNDERLAY_EXERCISE_OPERATIONS` sets the number, `UNDERLAY_EXERCISE_SEED` another sequence (`make exercise` takes a
//! new one every time and prints it), `UNDERLAY_EXERCISE_ONLY` takes the lines of the table with this text in them: an
//! attachment, a stack.

mod aligned;
mod device;
mod files;
#[path = "../attachments/fixture.rs"]
#[allow(dead_code, reason = "shared with the conformance tests, which use more of it")]
mod fixture;
mod stacks;

use std::time::Instant;

use underlay_attach::{Attachment, FilesystemKind};
use underlay_storage::stack::{BackingSpec, DeviceSpec, StackNode};

use device::Range;
use files::Files;
use fixture::{Fixture, MIB};

/// Enough at once, each in its own part, that requests overtake each other.
const WORKERS: u64 = 4;
/// `make exercise`, which runs each night, does a million.
const DEFAULT_OPERATIONS: u64 = 8_000;
const DEFAULT_SEED: u64 = 18_572;

fn number_from(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable} is '{text}': expected a number")),
        Err(_) => default,
    }
}

fn operations() -> u64 {
    number_from("UNDERLAY_EXERCISE_OPERATIONS", DEFAULT_OPERATIONS)
}

fn seed() -> u64 {
    number_from("UNDERLAY_EXERCISE_SEED", DEFAULT_SEED)
}

fn is_wanted(attachment: &str, stack: &str) -> bool {
    let only = std::env::var("UNDERLAY_EXERCISE_ONLY").unwrap_or_default();
    format!("{attachment} {stack}").contains(&only)
}

/// Runs `work` on a number of threads, each with its number, and fails when one does.
fn concurrently<T: Send + 'static>(workers: Vec<T>, work: impl Fn(T) + Send + Sync + Clone + 'static) {
    let threads: Vec<_> = workers
        .into_iter()
        .map(|worker| {
            let work = work.clone();
            std::thread::spawn(move || work(worker))
        })
        .collect();
    let failed = threads.into_iter().filter_map(|thread| thread.join().err()).count();
    assert_eq!(failed, 0, "parts found differences: see above");
}

fn tell(attachment: &str, stack: &str, phase: &str, started: Instant) {
    println!(
        "{attachment:<16} {stack:<26} {phase:<6} {:>9} operations without a difference, {:.1} s",
        operations(),
        started.elapsed().as_secs_f64()
    );
}

#[test]
fn block_devices_keep_every_byte() {
    const BYTES: u64 = 16 * MIB;
    for attachment in fixture::fuse_loops() {
        for named in stacks::all(BYTES) {
            if !is_wanted(attachment.name(), named.name) {
                continue;
            }
            let started = Instant::now();
            let fixture = Fixture::new();
            let mut devices =
                attachment.attach_devices(&stacks::stack(named.root), &fixture.registry).unwrap();
            let path = devices.paths()[0].clone();
            // A layer may keep something of its members for itself.
            let part = device::size_bytes(&path) / WORKERS / device::BLOCK_BYTES * device::BLOCK_BYTES;
            let ranges = (0..WORKERS).map(|worker| Range::new(&path, worker * part, part, seed() + worker));
            concurrently(ranges.collect(), |mut range| range.run(operations() / WORKERS));
            devices.detach().unwrap();
            fixture.assert_nothing_left();
            tell(attachment.name(), named.name, "device", started);
        }
    }
}

#[test]
fn files_keep_every_byte() {
    for attachment in fixture::fuse_loops() {
        for (index, named) in stacks::all(320 * MIB).into_iter().enumerate() {
            let filesystem = if index % 2 == 0 { FilesystemKind::Xfs } else { FilesystemKind::Ext4 };
            let name = format!("{}, {}", named.name, filesystem.name());
            exercise_files(&attachment, &name, filesystem, stacks::stack(named.root));
        }
    }
}

#[test]
fn own_directory_files_keep_all_bytes() {
    let Some(attachment) = fixture::fuse_directory() else { return };
    for named in stacks::all(320 * MIB) {
        exercise_files(&attachment, named.name, FilesystemKind::default(), stacks::stack(named.root));
    }
}

fn exercise_files(
    attachment: &dyn Attachment,
    name: &str,
    filesystem: FilesystemKind,
    stack: underlay_storage::stack::StackSpec,
) {
    if !is_wanted(attachment.name(), name) {
        return;
    }
    let started = Instant::now();
    let fixture = Fixture::new();
    let spec = fixture::spec(stack, filesystem, fixture.path("mnt"));
    let mut attached = attachment.attach(&spec, &fixture.registry).unwrap();
    let directory = attached.paths()[0].clone();
    let workers: Vec<Files> = (0..WORKERS)
        .map(|worker| Files::new(&directory.join(format!("part-{worker}")), seed() + worker))
        .collect();
    let name = format!("{name}{}", workers[0].left_out());
    concurrently(workers, |mut files| files.run(operations() / WORKERS));
    attached.detach().unwrap();
    fixture.assert_nothing_left();
    tell(attachment.name(), &name, "files", started);
}

/// What the exerciser knows outlives the attachment: detached in the middle and attached again, nothing differs.
#[test]
fn files_are_the_same_after_attaching_anew() {
    let loops = fixture::fuse_loops().into_iter().map(|each| Box::new(each) as Box<dyn Attachment>);
    let directory = fixture::fuse_directory().map(|each| Box::new(each) as Box<dyn Attachment>);
    for attachment in loops.chain(directory) {
        let fixture = Fixture::new();
        let backing = BackingSpec::File(fixture.path("backing"));
        let root = StackNode::Device(DeviceSpec::new("a", None, 320 * MIB, backing));
        let mut spec = fixture::spec(stacks::stack(root), FilesystemKind::Xfs, fixture.path("mnt"));
        let mut attached = attachment.attach(&spec, &fixture.registry).unwrap();
        let mut files = Files::new(&attached.paths()[0].join("part"), seed());
        spec.format = false;
        for _ in 0..4 {
            files.run(operations() / 40);
            files.close();
            attached.detach().unwrap();
            attached = attachment.attach(&spec, &fixture.registry).unwrap();
            files.reopen_at(&attached.paths()[0].join("part"));
            files.check();
        }
        files.close();
        attached.detach().unwrap();
        fixture.assert_nothing_left();
    }
}

/// Without this, an exerciser that compares nothing would pass.
#[test]
fn foreign_change_is_detected() {
    use std::os::unix::fs::FileExt;
    let directory = tempfile::tempdir().unwrap();
    let mut files = Files::new(&directory.path().join("part"), seed());
    files.run(500);
    let changed = std::fs::read_dir(directory.path().join("part"))
        .unwrap()
        .map(|entry| std::fs::OpenOptions::new().read(true).write(true).open(entry.unwrap().path()).unwrap())
        .find(|file| file.metadata().unwrap().len() > 0)
        .expect("a file with something in it");
    let mut byte = [0];
    let middle = changed.metadata().unwrap().len() / 2;
    changed.read_exact_at(&mut byte, middle).unwrap();
    changed.write_all_at(&[byte[0] ^ 1], middle).unwrap();
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| files.check()));
    let message = *found.expect_err("the change was not noticed").downcast::<String>().unwrap();
    assert!(message.contains(&format!("the first at {middle}")) && message.contains("seed"), "{message}");
}
