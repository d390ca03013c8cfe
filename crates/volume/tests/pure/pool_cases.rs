//! Power cuts and kills at the one moment that matters, for each way to get it wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::pool_model::{bytes_of, read_all};
use crate::power_device::{PowerDevice, Supply};
use tempfile::TempDir;
use underlay_storage::device::{BlockDevice, DeviceRequest};
use underlay_storage::layers::compress::CompressionCodec;
use underlay_volume::pool::{HostMemory, MemberState, PoolError, PoolSettings, SnapshotAccess, VolumeSpec};
use underlay_volume::{VolumeHandle, VolumePool};

const EXTENT: u64 = 256 << 10;

fn devices(supply: &Arc<Supply>, count: usize) -> Vec<PowerDevice> {
    (0..count).map(|_| supply.device(vec![0; 20 * EXTENT as usize])).collect()
}

fn open_with(devices: &[PowerDevice], host_memory: Option<HostMemory>) -> Result<VolumePool, PoolError> {
    let members: Vec<Arc<dyn BlockDevice>> = devices.iter().map(PowerDevice::as_device).collect();
    VolumePool::open(members, PoolSettings { host_memory, ..PoolSettings::default() })
}

fn open(devices: &[PowerDevice]) -> VolumePool {
    open_with(devices, None).expect("the pool opens")
}

fn memory(host: &TempDir, boot: &str) -> Option<HostMemory> {
    Some(HostMemory { directory: host.path().to_owned(), boot: boot.into(), long_bytes: 1 << 20 })
}

/// The devices as someone else finds them.
fn again(devices: &[PowerDevice], image: impl Fn(&PowerDevice) -> Vec<u8>) -> Vec<PowerDevice> {
    let supply = Supply::new(77);
    devices.iter().map(|device| supply.device(image(device))).collect()
}

fn write(volume: &VolumeHandle, block: u64, blocks: usize, content: u64, fua: bool) {
    let data = bytes_of(content).repeat(blocks);
    volume.execute(DeviceRequest::Write { offset_bytes: block * 4096, data, fua }).expect("it is written");
}

fn discard(volume: &VolumeHandle, block: u64, blocks: u64) {
    let request = DeviceRequest::Discard { offset_bytes: block * 4096, length_bytes: blocks * 4096 };
    volume.execute(request).expect("it is discarded");
}

fn assert_consistent(pool: &VolumePool) {
    assert_eq!(pool.check().expect("the pool can be checked").problems, Vec::<String>::new());
}

fn spec(compress: bool, mirror: bool) -> VolumeSpec {
    VolumeSpec { compress: compress.then_some(CompressionCodec::Lz4), mirror, ..VolumeSpec::new(4 * EXTENT) }
}

const KINDS: [(&str, bool, bool); 4] = [
    ("plain", false, false),
    ("packed", true, false),
    ("plain-twice", false, true),
    ("packed-twice", true, true),
];

/// The volume has left a slab that it shared, in memory; in the journal it still points there. If the snapshot took it
/// for its own by now and wrote in place, a power cut would show the snapshot's data in the volume.
#[test]
fn left_slab_is_shared_until_journalled() {
    for seed in 0..20 {
        let supply = Supply::new(seed);
        let devices = devices(&supply, 1);
        let pool = open(&devices);
        let volume = pool.create("volume", &spec(false, false)).unwrap();
        write(&volume, 0, 64, 11, false);
        let snapshot = pool.snapshot("volume", "snapshot", SnapshotAccess::Writable).unwrap();
        write(&volume, 0, 64, 13, false);
        write(&snapshot, 5, 3, 15, true);
        supply.cut();
        let pool = open(&again(&devices, PowerDevice::image_after_cut));
        let found = read_all(&pool.volume("volume").unwrap());
        assert!(
            found[..64].iter().all(|content| [11, 13].contains(content)),
            "seed {seed}: {:?}",
            &found[..64]
        );
        let found = read_all(&pool.volume("snapshot").unwrap());
        assert_eq!(found[4..9], [11, 15, 15, 15, 11], "seed {seed}");
        assert_consistent(&pool);
    }
}

/// The power fails when one copy has been written over and the other has not, or has in part.
#[test]
fn copies_are_repaired_after_cut_overwrite() {
    let mut differed = 0;
    for seed in 0..20 {
        let supply = Supply::new(seed);
        let devices = devices(&supply, 2);
        let pool = open(&devices);
        let volume = pool.create("twice", &spec(false, true)).unwrap();
        write(&volume, 0, 64, 11, false);
        volume.execute(DeviceRequest::Flush).unwrap();
        // The journal notes the region by a first overwrite, whose two copies are written.
        write(&volume, 0, 1, 13, true);
        supply.set_queued(true);
        let answered = Arc::new(AtomicBool::new(false));
        let is_answered = Arc::clone(&answered);
        let request = DeviceRequest::Write { offset_bytes: 4096, data: bytes_of(15).repeat(63), fua: false };
        volume.submit(request, Box::new(move |_| is_answered.store(true, Ordering::SeqCst)));
        if seed % 2 == 0 {
            assert!(supply.step());
        }
        assert!(!answered.load(Ordering::SeqCst));
        supply.cut();
        let found = again(&devices, PowerDevice::image_after_cut);
        // Pools of one and the same content but for the copies: the data of two members in the same places.
        let data = |device: &PowerDevice| device.image().split_off(4 * EXTENT as usize);
        differed += usize::from(data(&found[0]) != data(&found[1]));
        let pool = open(&found);
        let contents = read_all(&pool.volume("twice").unwrap());
        assert_eq!(contents[0], 13);
        assert!(contents[1..64].iter().all(|content| [11, 15].contains(content)));
        pool.close().unwrap();
        for lost in 0..2 {
            let left = again(&found, PowerDevice::image);
            left[lost].set_gone(true);
            let pool = open(&left);
            assert_eq!(
                read_all(&pool.volume("twice").unwrap()),
                contents,
                "seed {seed}, without member {lost}"
            );
        }
    }
    assert!(differed > 10, "{differed} cuts of 20 left copies that differ: that is no test");
}

fn change(pool: &VolumePool) -> Vec<Vec<u64>> {
    let change = |name: &str| {
        let volume = pool.volume(name).unwrap();
        // New, over what is there, over a part of it, discarded, and discarded and written again.
        write(&volume, 0, 70, 22, false);
        write(&volume, 10, 5, 23, false);
        discard(&volume, 30, 8);
        write(&volume, 33, 2, 25, false);
        discard(&volume, 128, 64);
        write(&volume, 200, 1, 27, false);
        read_all(&volume)
    };
    KINDS.iter().map(|(name, ..)| change(name)).collect()
}

fn made(devices: &[PowerDevice], memory: Option<HostMemory>) -> VolumePool {
    let pool = open_with(devices, memory).expect("the pool opens");
    for (name, compress, mirror) in KINDS {
        let volume = pool.create(name, &spec(compress, mirror)).unwrap();
        write(&volume, 100, 100, 18, false);
        volume.execute(DeviceRequest::Flush).unwrap();
    }
    pool
}

fn contents(pool: &VolumePool) -> Vec<Vec<u64>> {
    KINDS.iter().map(|(name, ..)| read_all(&pool.volume(name).unwrap())).collect()
}

#[test]
fn killed_process_loses_nothing_answered() {
    let host = TempDir::new().unwrap();
    let devices = devices(&Supply::new(3), 3);
    let pool = made(&devices, memory(&host, "first"));
    let flushed = contents(&pool);
    let answered = change(&pool);
    assert_ne!(flushed, answered);
    let killed = again(&devices, PowerDevice::image);
    // Where nothing was noted, it is as a power cut would leave it.
    let reopened = open(&again(&killed, PowerDevice::image));
    let found = contents(&reopened);
    assert!(found.iter().zip(&answered).all(|(found, answered)| found[200] == 0 && answered[200] == 27));
    assert_consistent(&reopened);
    let restarted = open_with(&again(&killed, PowerDevice::image), memory(&host, "second")).unwrap();
    assert_eq!(contents(&restarted)[0][200], 0, "the host has lost what it noted before");
    assert_consistent(&restarted);

    // That opening has begun its own notes in the same files, so these are made once more.
    let host = TempDir::new().unwrap();
    let devices = self::devices(&Supply::new(4), 3);
    let pool = made(&devices, memory(&host, "first"));
    let answered = change(&pool);
    let mut killed = again(&devices, PowerDevice::image);
    for _ in 0..3 {
        let pool = open_with(&killed, memory(&host, "first")).unwrap();
        assert_eq!(contents(&pool), answered);
        assert_consistent(&pool);
        // It is durable by now: killed once more, and cut off.
        killed = again(&killed, PowerDevice::image_after_cut);
    }
    let pool = open_with(&killed, None).unwrap();
    assert_eq!(contents(&pool), answered);
}

/// Notes of a session speak of places that the next one gives away again.
#[test]
fn notes_of_an_older_session_are_void() {
    let host = TempDir::new().unwrap();
    let devices = devices(&Supply::new(5), 2);
    let pool = made(&devices, memory(&host, "first"));
    change(&pool);
    let killed = again(&devices, PowerDevice::image);
    // Someone uses the pool without the host's memory in between.
    let pool = open(&killed);
    let volume = pool.volume("packed").unwrap();
    write(&volume, 0, 256, 32, false);
    pool.close().unwrap();
    let answered = contents(&pool_again(&killed));
    let pool = open_with(&killed, memory(&host, "first")).unwrap();
    assert_eq!(contents(&pool), answered);
    assert_consistent(&pool);
}

fn pool_again(devices: &[PowerDevice]) -> VolumePool {
    open(&again(devices, PowerDevice::image))
}

/// A member was left out, and the journal has not heard of it: its copy is old.
#[test]
fn left_out_member_stays_out_after_kill() {
    let host = TempDir::new().unwrap();
    for lost in 0..2 {
        let devices = devices(&Supply::new(6), 2);
        let pool = made(&devices, memory(&host, "first"));
        let volume = pool.volume("plain-twice").unwrap();
        write(&volume, 100, 1, 31, false);
        volume.execute(DeviceRequest::Flush).unwrap();
        devices[lost].set_fails_writes(true);
        write(&volume, 100, 1, 33, false);
        assert_eq!(pool.info().members[lost].state, MemberState::Out);
        let killed = again(&devices, PowerDevice::image);
        let pool = open_with(&killed, memory(&host, "first")).unwrap();
        assert_eq!(pool.info().members[lost].state, MemberState::Out);
        let volume = pool.volume("plain-twice").unwrap();
        (0..10).for_each(|_| assert_eq!(read_all(&volume)[100], 33));
        pool.resync(lost).unwrap();
        killed[1 - lost].set_gone(true);
        assert_eq!(read_all(&volume)[100], 33);
    }
}

/// Flushes that fail on a member leave what lies there to later ones, and the files take turns meanwhile.
#[test]
fn unflushed_blocks_survive_kill() {
    let host = TempDir::new().unwrap();
    let devices = devices(&Supply::new(8), 2);
    let pool = open_with(&devices, memory(&host, "first")).unwrap();
    let volume = pool.create("plain", &spec(false, false)).unwrap();
    (0..4).for_each(|extent| write(&volume, extent * 64, 64, 11, false));
    devices[1].set_gone(true);
    assert!(
        (0..3).all(|_| volume.execute(DeviceRequest::Flush).is_err()),
        "some of it lies on the member that is gone"
    );
    devices[1].set_gone(false);
    let pool = open_with(&again(&devices, PowerDevice::image), memory(&host, "first")).unwrap();
    assert!(read_all(&pool.volume("plain").unwrap()).iter().all(|content| *content == 11));
    assert_consistent(&pool);
}

/// A program writes and never flushes, and still the notes stay short.
#[test]
fn notes_that_are_long_are_followed_by_a_flush() {
    let host = TempDir::new().unwrap();
    let devices = devices(&Supply::new(9), 1);
    let pool = open_with(&devices, memory(&host, "first")).unwrap();
    let volume = pool.create("plain", &spec(false, false)).unwrap();
    // Its slab stays: no flush comes from a want of space.
    write(&volume, 8, 1, 11, false);
    for _ in 0..30_000 {
        write(&volume, 7, 1, 11, false);
        discard(&volume, 7, 1);
    }
    let noted = std::fs::read_dir(host.path()).unwrap().map(|file| file.unwrap().metadata().unwrap().len());
    assert!(noted.max().unwrap() < (1 << 20) + 1000, "a file is longer than it may get");
    assert_consistent(&pool);
}

#[test]
fn missing_host_memory_is_named() {
    let host = TempDir::new().unwrap();
    let directory = host.path().join("nowhere");
    let devices = devices(&Supply::new(7), 1);
    let refused =
        open_with(&devices, Some(HostMemory { directory, ..memory(&host, "first").unwrap() })).map(|_| ());
    assert!(refused.unwrap_err().to_string().contains("nowhere"));
    assert!(open_with(&devices, memory(&host, "first")).is_ok());
}
