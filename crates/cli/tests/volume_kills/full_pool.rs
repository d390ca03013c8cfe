//! A pool that is full when an initiator writes again what it had kept. The server was killed and has lost what it
//! noted, as by a crash of its host; before the initiator is back another volume takes the space. What the initiator's
//! writes were answered with is void then, so flushes fail until the blocks are written again.

use std::time::Duration;

use underlay_nvme::initiator::{ControllerOptions, NvmeController};
use underlay_storage::device::{BlockDevice, DeviceError, DeviceRequest};

use crate::parts::{BLOCK, Random, fill};
use crate::support::stderr;
use crate::volumes::VolumeServer;
use crate::{forget_unflushed, kills, playground};

/// Of the kills that are asked for, one in this many finds the pool full.
const SHARE: u64 = 6;
const SLAB: u64 = 256 << 10;
/// So many slabs are written to and kept.
const KEPT: u64 = 12;
const KEPT_VOLUMES: [&str; 3] = ["plain", "small", "twice"];
const POOL: &str = r#"
name = "kills"
listen = "127.0.0.1:0"
devices = [{ medium = "nvme-9300-max", count = 3, capacity = "16 MiB" }]
initial = "fresh"

[volume.plain]
capacity = "8 MiB"

[volume.small]
capacity = "8 MiB"
compress = "lz4"

[volume.twice]
capacity = "8 MiB"
mirror = true

[volume.filler]
capacity = "64 MiB"
"#;

fn write(device: &dyn BlockDevice, offset_bytes: u64, data: Vec<u8>) -> Result<(), DeviceError> {
    device.execute(DeviceRequest::Write { offset_bytes, data, fua: false }).map(drop)
}

fn flush(device: &dyn BlockDevice) -> Result<(), DeviceError> {
    device.execute(DeviceRequest::Flush).map(drop)
}

/// Whole slabs, which do not compress: a compressed volume needs as much space.
fn content(slab: u64, version: u64) -> Vec<u8> {
    let mut random = Random(slab ^ version.rotate_left(32));
    (0..SLAB / 8).flat_map(|_| random.below(u64::MAX).to_le_bytes()).collect()
}

fn read(device: &dyn BlockDevice, slab: u64) -> Result<Vec<u8>, DeviceError> {
    device.execute(DeviceRequest::Read { offset_bytes: slab * SLAB, buffer: vec![1; SLAB as usize] })
}

/// Writes until there is no space, in slabs and then in single blocks; how many slabs it took.
fn fill_up(device: &dyn BlockDevice) -> u64 {
    let mut block = vec![0; BLOCK as usize];
    let mut filled = 0;
    for slab in 0.. {
        match write(device, slab * SLAB, content(slab, 7)) {
            Ok(()) => filled += 1,
            Err(DeviceError::NoSpace) => break,
            Err(error) => panic!("filling: {error}"),
        }
    }
    fill(filled, 7, &mut block);
    // Chunks may lie where no slab fits.
    assert_eq!(write(device, filled * SLAB, block), Err(DeviceError::NoSpace));
    flush(device).unwrap();
    filled
}

/// How it went on.
#[derive(Debug, Default)]
struct Outcome {
    /// Slabs whose content was gone.
    lost: u64,
    failed_flushes: u64,
}

fn strike(number: u64, random: &mut Random) -> Outcome {
    let playground = playground(POOL);
    let volume = KEPT_VOLUMES[(number % 3) as usize];
    // Each third one is nearly full: there is space for a part of what is kept.
    let spare = if number % 3 == (number / 3) % 3 { 1 + random.below(KEPT / 2) } else { 0 };
    let first = VolumeServer::start(&playground, &["--immediate"]);
    let address = first.address.clone();
    let controller = NvmeController::connect(ControllerOptions::new(&address, first.nqn(volume))).unwrap();
    let kept_device = controller.namespace(1).unwrap();
    // Flushed, so never touched by what follows.
    write(&kept_device, KEPT * SLAB, content(KEPT, 1)).unwrap();
    flush(&kept_device).unwrap();
    for slab in 0..KEPT {
        write(&kept_device, slab * SLAB, content(slab, 1)).unwrap();
    }
    assert!(kept_device.kept_bytes() as u64 >= KEPT * SLAB, "nothing is kept: {}", kept_device.kept_bytes());
    let reconnects = controller.figures().reconnects;
    first.kill();
    forget_unflushed(&playground);

    // Elsewhere, so that the initiator does not find it.
    let second_server = VolumeServer::start(&playground, &["--immediate", "--listen", "127.0.0.2:0"]);
    let (filling, filler) = second_server.connect(&second_server.nqn("filler"));
    let filled = fill_up(&filler);
    assert!(filled > spare, "{filled} slabs");
    if spare > 0 {
        filler.execute(DeviceRequest::Discard { offset_bytes: 0, length_bytes: spare * SLAB }).unwrap();
        flush(&filler).unwrap();
    }
    drop((filler, filling));
    assert_eq!(second_server.stop(), Some(130));

    let mut outcome = Outcome::default();
    // A flush that waits for the server is no other than one that comes later.
    let waits = random.below(2) == 0;
    let (server, waited) = std::thread::scope(|scope| {
        let waiting = waits.then(|| scope.spawn(|| flush(&kept_device)));
        std::thread::sleep(Duration::from_millis(random.below(20)));
        let server = VolumeServer::start(&playground, &["--immediate", "--listen", &address]);
        (server, waiting.map(|waiting| waiting.join().unwrap()))
    });
    for result in waited.into_iter().chain((0..3).map(|_| flush(&kept_device))) {
        assert!(result.is_err(), "{volume}, {spare} spare: a flush succeeded with the pool full");
        outcome.failed_flushes += 1;
    }
    assert!(controller.figures().reconnects > reconnects);
    let mut lost = Vec::new();
    for slab in 0..=KEPT {
        match read(&kept_device, slab) {
            Ok(found) => assert!(found == content(slab, 1), "{volume}: slab {slab} is not what was answered"),
            Err(_) => lost.push(slab),
        }
    }
    assert!(!lost.is_empty() && !lost.contains(&KEPT), "{volume}, {spare} spare: lost {lost:?}");
    outcome.lost = lost.len() as u64;

    // Space alone brings nothing back.
    let (filling, filler) = server.connect(&server.nqn("filler"));
    filler.execute(DeviceRequest::Discard { offset_bytes: 0, length_bytes: filled * SLAB }).unwrap();
    flush(&filler).unwrap();
    drop((filler, filling));
    for (index, &slab) in lost.iter().enumerate() {
        assert!(flush(&kept_device).is_err(), "{volume}: {index} of {} were written again", lost.len());
        outcome.failed_flushes += 1;
        write(&kept_device, slab * SLAB, content(slab, 2)).unwrap();
    }
    flush(&kept_device).unwrap_or_else(|error| panic!("{volume}: all is written again, and {error}"));
    drop((kept_device, controller));

    // What was flushed needs no notes.
    server.kill();
    forget_unflushed(&playground);
    let checked = playground.output(&["volume", "check", "pool.toml"]);
    assert!(checked.status.success(), "{}", stderr(&checked));
    let server = VolumeServer::start(&playground, &["--immediate"]);
    let (controller, device) = server.connect(&server.nqn(volume));
    for slab in 0..=KEPT {
        let version = if lost.contains(&slab) { 2 } else { 1 };
        assert!(read(&device, slab).unwrap() == content(slab, version), "{volume}: slab {slab} at the end");
    }
    drop((device, controller));
    assert_eq!(server.stop(), Some(130));
    assert_eq!(playground.left_behind(), [""; 0]);
    outcome
}

#[test]
fn full_pool_survives_rewrites_by_initiator() {
    let (strikes, seed) = ((kills() / SHARE).max(3), u64::from(std::process::id()));
    println!("full pool: seed {seed}");
    let mut random = Random(seed);
    let (mut lost, mut failed_flushes) = (0, 0);
    for number in 0..strikes {
        let outcome = strike(number, &mut random);
        lost += outcome.lost;
        failed_flushes += outcome.failed_flushes;
    }
    println!(
        "volumes of a full pool: {strikes} kills, {lost} kept writes found no space; {failed_flushes} flushes failed until all was \
         written again, none succeeded before"
    );
    assert!(lost >= strikes && failed_flushes >= 4 * strikes, "{lost} lost, {failed_flushes} flushes");
}
