//! Mirrored volumes when two things go wrong: a member that is out, and another one that fails, cuts of power, members
//! that come and go while they are brought up to date.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::pool_model::{bytes_of, content_of};
use crate::power_device::{PowerDevice, Supply};
use underlay_storage::device::{BlockDevice, DeviceCompletion, DeviceError, DeviceRequest};
use underlay_storage::layers::compress::CompressionCodec;
use underlay_volume::pool::{MemberState, PoolError, PoolSettings, VolumeSpec};
use underlay_volume::{VolumeHandle, VolumePool};

const EXTENT: u64 = 256 << 10;
const EXTENTS: u64 = 8;
/// The label is in the first block, what volumes hold behind the journal.
const DATA: u64 = 4 * EXTENT;

fn devices(supply: &Arc<Supply>, count: usize) -> Vec<PowerDevice> {
    (0..count).map(|_| supply.device(vec![0; 24 * EXTENT as usize])).collect()
}

fn try_open(devices: &[PowerDevice]) -> Result<VolumePool, PoolError> {
    let members: Vec<Arc<dyn BlockDevice>> = devices.iter().map(PowerDevice::as_device).collect();
    VolumePool::open(members, PoolSettings::default())
}

fn open(devices: &[PowerDevice]) -> VolumePool {
    try_open(devices).expect("the pool opens")
}

fn again(devices: &[PowerDevice], image: impl Fn(&PowerDevice) -> Vec<u8>) -> Vec<PowerDevice> {
    let supply = Supply::new(77);
    devices.iter().map(|device| supply.device(image(device))).collect()
}

fn twice(compress: bool) -> VolumeSpec {
    let compress = compress.then_some(CompressionCodec::Lz4);
    VolumeSpec { mirror: true, compress, ..VolumeSpec::new(EXTENTS * EXTENT) }
}

fn write(volume: &VolumeHandle, block: u64, blocks: usize, content: u64) -> DeviceCompletion {
    let data = bytes_of(content).repeat(blocks);
    volume.execute(DeviceRequest::Write { offset_bytes: block * 4096, data, fua: false })
}

/// The first block of each extent.
fn write_firsts(volume: &VolumeHandle, content: u64) {
    (0..EXTENTS).for_each(|extent| drop(write(volume, extent * 64, 1, content).expect("it is written")));
}

fn flush(volume: &VolumeHandle) -> DeviceCompletion {
    volume.execute(DeviceRequest::Flush)
}

fn read(volume: &VolumeHandle, block: u64) -> Result<u64, DeviceError> {
    let read = DeviceRequest::Read { offset_bytes: block * 4096, buffer: vec![1; 4096] };
    volume.execute(read).map(|block| content_of(&block))
}

fn read_firsts(volume: &VolumeHandle) -> Vec<Result<u64, DeviceError>> {
    (0..EXTENTS).map(|extent| read(volume, extent * 64)).collect()
}

fn states(pool: &VolumePool) -> Vec<MemberState> {
    pool.info().members.iter().map(|member| member.state).collect()
}

fn assert_consistent(pool: &VolumePool) {
    assert_eq!(pool.check().expect("the pool can be checked").problems, Vec::<String>::new());
}

/// Member 2 is out, and its copies are old; what it lacks is durable on the others.
fn with_one_out(devices: &[PowerDevice], compress: bool) -> (VolumePool, VolumeHandle) {
    let pool = open(devices);
    let volume = pool.create("twice", &twice(compress)).unwrap();
    write_firsts(&volume, 11);
    flush(&volume).unwrap();
    devices[2].set_gone(true);
    write_firsts(&volume, 21);
    flush(&volume).unwrap();
    devices[2].set_gone(false);
    assert_eq!(states(&pool)[2], MemberState::Out);
    (pool, volume)
}

#[test]
fn stale_copy_is_not_served_for_unreadable_one() {
    for lost in 0..2 {
        // Packed chunks go to a new place: with a member out they are on the other two.
        let devices = devices(&Supply::new(1), 3);
        let (pool, _) = with_one_out(&devices, false);
        pool.close().unwrap();
        let devices = again(&devices, PowerDevice::image);
        devices[lost].fail_when(|request| matches!(request, DeviceRequest::Read { .. }));
        let pool = match try_open(&devices) {
            Ok(pool) => pool,
            Err(error) => panic!("it opens with what it has: {error}"),
        };
        let volume = pool.volume("twice").unwrap();
        let found = read_firsts(&volume);
        assert!(found.iter().all(|found| found.as_ref().map_or(true, |found| *found == 21)), "{found:?}");
        assert!(found.iter().any(Result::is_err), "no extent is on both: that is no test");
        assert_eq!(states(&pool)[lost], MemberState::Unread);
        assert_eq!(states(&pool)[2], MemberState::Out);

        // The old copies are nobody's source, and a member that has missed nothing needs none.
        assert!(matches!(pool.resync(2), Err(PoolError::NotResynced(2, _))));
        assert_eq!(states(&pool)[2], MemberState::Out);
        pool.resync(lost).unwrap_err();
        devices[lost].fail_when(|_| false);
        assert!(read_firsts(&volume).into_iter().all(|found| found == Ok(21)), "it answers again");
        // Only its half of the journal waits for the next opening.
        assert!(matches!(pool.resync(lost), Err(PoolError::MemberFails(..) | PoolError::JournalOnce)));
        pool.resync(2).unwrap();
        assert_eq!(states(&pool), [MemberState::InUse; 3]);
        pool.close().unwrap();
        let pool = open(&devices);
        let volume = pool.volume("twice").unwrap();
        for (failed, device) in devices.iter().enumerate() {
            device.set_gone(true);
            assert!(read_firsts(&volume).into_iter().all(|found| found == Ok(21)), "without {failed}");
            device.set_gone(false);
            if states(&pool)[failed] == MemberState::Out {
                pool.resync(failed).unwrap();
            }
        }
        assert_consistent(&pool);
    }
}

/// Nothing may be written that a member misses which can't be recorded as out.
#[test]
fn member_unread_at_opening_misses_nothing() {
    let devices = devices(&Supply::new(1), 3);
    let (pool, _) = with_one_out(&devices, false);
    pool.close().unwrap();
    let devices = again(&devices, PowerDevice::image);
    devices[1].set_gone(true);
    let pool = open(&devices);
    let volume = pool.volume("twice").unwrap();
    // Nothing new is put there.
    let later = pool.create("later", &VolumeSpec::new(EXTENTS * EXTENT)).unwrap();
    write_firsts(&later, 33);
    flush(&later).unwrap();
    let answers: Vec<bool> = (0..EXTENTS).map(|extent| write(&volume, extent * 64, 1, 31).is_ok()).collect();
    let _ = flush(&volume);
    devices[1].set_gone(false);
    let devices = again(&devices, PowerDevice::image);
    let pool = open(&devices);
    assert_eq!(states(&pool), [MemberState::InUse, MemberState::InUse, MemberState::Out]);
    let volume = pool.volume("twice").unwrap();
    for device in &devices[..2] {
        // Whichever copy is read.
        device.fail_when(|request| matches!(request, DeviceRequest::Read { .. }));
        for (found, answered) in read_firsts(&volume).into_iter().zip(&answers) {
            assert!(!answered || found.as_ref().map_or(true, |found| *found == 31), "{found:?}");
        }
        device.fail_when(|_| false);
    }
}

/// A device that shows another label when it answers is not the member.
#[test]
fn member_replaced_by_other_device_is_not_touched() {
    let devices = devices(&Supply::new(1), 3);
    let (pool, _) = with_one_out(&devices, false);
    pool.close().unwrap();
    let foreign = Supply::new(2).device(vec![7; 24 * EXTENT as usize]);
    let members = [again(&devices[..2], PowerDevice::image), vec![foreign.clone()]].concat();
    foreign.set_gone(true);
    let pool = open(&members);
    let once = pool.create("once", &VolumeSpec::new(EXTENTS * EXTENT)).unwrap();
    foreign.set_gone(false);
    assert!(matches!(pool.resync(2), Err(PoolError::MemberFails(2, _))));
    write_firsts(&once, 3);
    write_firsts(&pool.volume("twice").unwrap(), 41);
    pool.flush().unwrap();
    assert!(foreign.image().iter().all(|byte| *byte == 7), "it was written to");
}

/// The power failed in an overwrite, and one member can't be written to when the copies are made alike.
#[test]
fn failing_member_is_left_out_of_repair() {
    for failing in 0..2 {
        let devices = devices(&Supply::new(1), 2);
        let pool = open(&devices);
        let volume = pool.create("twice", &twice(false)).unwrap();
        write_firsts(&volume, 11);
        flush(&volume).unwrap();
        write_firsts(&volume, 21);
        flush(&volume).unwrap();
        // A cut: the journal still has the regions noted.
        let devices = again(&devices, PowerDevice::image_after_cut);
        devices[failing].fail_when(|request| match request {
            DeviceRequest::Read { offset_bytes, .. } | DeviceRequest::Write { offset_bytes, .. } => {
                *offset_bytes >= DATA
            }
            _ => false,
        });
        let pool = open(&devices);
        assert_eq!(states(&pool)[failing], MemberState::Out);
        assert_eq!(states(&pool)[1 - failing], MemberState::InUse, "member {failing} fails");
        let volume = pool.volume("twice").unwrap();
        assert!(read_firsts(&volume).into_iter().all(|found| found == Ok(21)));
    }
}

/// A block that can't be read is written anew from the other copy; where neither can be read nobody is left out.
#[test]
fn unreadable_block_costs_no_member() {
    for failing in [vec![0], vec![1], vec![0, 1]] {
        let devices = devices(&Supply::new(1), 2);
        let pool = open(&devices);
        let volume = pool.create("twice", &twice(false)).unwrap();
        write_firsts(&volume, 11);
        write_firsts(&volume, 21);
        flush(&volume).unwrap();
        let devices = again(&devices, PowerDevice::image_after_cut);
        for member in &failing {
            let is_data = |request: &DeviceRequest| matches!(request, DeviceRequest::Read { offset_bytes, .. } if *offset_bytes >= DATA);
            devices[*member].fail_when(is_data);
        }
        if failing.len() == 2 {
            let refused = try_open(&devices).map(|_| ()).unwrap_err();
            assert!(matches!(refused, PoolError::NotAlike { .. }), "{refused}");
            devices.iter().for_each(|device| device.fail_when(|_| false));
        }
        let pool = open(&devices);
        assert_eq!(states(&pool), [MemberState::InUse; 2]);
        let volume = pool.volume("twice").unwrap();
        devices.iter().for_each(|device| device.fail_when(|_| false));
        assert!(read_firsts(&volume).into_iter().all(|found| found == Ok(21)));
    }
}

#[test]
fn failing_flush_is_no_inconsistency() {
    let devices = devices(&Supply::new(1), 3);
    let (pool, _) = with_one_out(&devices, false);
    let volume = pool.create("later", &twice(false)).unwrap();
    write_firsts(&volume, 31);
    devices[0].fail_when(|request| matches!(request, DeviceRequest::Flush));
    assert!(matches!(pool.check(), Err(PoolError::Device(_))));
    devices[0].fail_when(|_| false);
    assert_consistent(&pool);
}

/// With a member out another one fails its flush, and can't be left out: what it has not made durable is still read.
#[test]
fn flush_failed_by_second_member_is_not_acknowledged() {
    let mut acknowledged = 0;
    for (seed, compress) in (0..20).flat_map(|seed| [(seed, false), (seed, true)]) {
        let supply = Supply::new(seed);
        let devices = devices(&supply, 3);
        let (pool, _) = with_one_out(&devices, compress);
        // On the other two, all of it.
        let volume = pool.create("later", &twice(compress)).unwrap();
        write_firsts(&volume, 31);
        flush(&volume).unwrap();
        write_firsts(&volume, 41);
        devices[0].fail_when(|request| matches!(request, DeviceRequest::Flush));
        let is_durable = flush(&volume).is_ok();
        acknowledged += usize::from(is_durable);
        supply.cut();
        let pool = open(&again(&devices, PowerDevice::image_after_cut));
        let volume = pool.volume("later").unwrap();
        for found in read_firsts(&volume) {
            let found = found.unwrap();
            assert!(found == 41 || !is_durable && found == 31, "seed {seed}: {found} after a cut");
        }
    }
    assert_eq!(acknowledged, 0);
}

#[test]
fn flush_failed_by_one_member_is_acknowledged_without_it() {
    for seed in 0..10 {
        let supply = Supply::new(seed);
        let devices = devices(&supply, 3);
        let pool = open(&devices);
        let volume = pool.create("twice", &twice(false)).unwrap();
        write_firsts(&volume, 31);
        flush(&volume).unwrap();
        write_firsts(&volume, 41);
        devices[2].fail_when(|request| matches!(request, DeviceRequest::Flush));
        flush(&volume).unwrap();
        supply.cut();
        let pool = open(&again(&devices, PowerDevice::image_after_cut));
        assert_eq!(states(&pool)[2], MemberState::Out);
        assert!(read_firsts(&pool.volume("twice").unwrap()).into_iter().all(|found| found == Ok(41)));
    }
}

/// One copy of a first write is in flight while the member with the other one goes, loses it, and is brought up to
/// date: the map does not have the extent yet, so it is not copied.
#[test]
fn first_write_overtaken_by_resync_lists_no_lost_copy() {
    for compress in [false, true] {
        let devices = devices(&Supply::new(1), 3);
        let pool = open(&devices);
        let volume = pool.create("twice", &twice(compress)).unwrap();
        let is_data = |request: &DeviceRequest| matches!(request, DeviceRequest::Write { offset_bytes, .. } if *offset_bytes >= DATA);
        devices[0].hold_when(is_data);
        let written = Arc::new(AtomicUsize::new(0));
        for extent in 0..EXTENTS {
            let written = Arc::clone(&written);
            let request =
                DeviceRequest::Write { offset_bytes: extent * EXTENT, data: bytes_of(12), fua: false };
            let done = move |completion: DeviceCompletion| {
                completion.expect("it is written");
                written.fetch_add(1, Ordering::SeqCst);
            };
            volume.submit(request, Box::new(done));
        }
        let under_way = devices[0].held();
        assert_eq!(written.load(Ordering::SeqCst), EXTENTS as usize - under_way);
        assert!(under_way > 2, "{under_way}");
        devices[2].set_gone(true);
        devices[2].forget();
        pool.flush().unwrap();
        assert_eq!(states(&pool)[2], MemberState::Out);
        devices[2].set_gone(false);
        pool.resync(2).unwrap();
        assert_eq!(states(&pool), [MemberState::InUse; 3]);
        devices[0].hold_when(|_| false);
        devices[0].let_go();
        assert_eq!(written.load(Ordering::SeqCst), EXTENTS as usize);
        for failed in [0, 2] {
            devices[failed].fail_when(|request| matches!(request, DeviceRequest::Read { .. }));
            let found = read_firsts(&volume);
            assert!(found.iter().all(|found| found.as_ref().map_or(true, |c| *c == 12)), "{found:?}");
            devices[failed].fail_when(|_| false);
        }
        assert!(volume.info().degraded);
        assert_consistent(&pool);
        // What has one copy gets its second one.
        pool.resync(2).unwrap();
        assert!(!volume.info().degraded);
        assert_consistent(&pool);
        devices[0].set_gone(true);
        assert!(read_firsts(&volume).into_iter().all(|found| found == Ok(12)));
    }
}
