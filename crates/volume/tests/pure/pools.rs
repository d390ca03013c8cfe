//! What a pool answers when there is no space, when a member fails, and when it is asked for what it doesn't do.

use std::sync::Arc;

use crate::pool_model::{self, bytes_of, read_all};
use crate::power_device::{self, PowerDevice, Supply};
use underlay_storage::device::{BlockDevice, DeviceError, DeviceRequest};
use underlay_storage::layers::compress::CompressionCodec;
use underlay_storage::layers::workers::WorkerThreads;
use underlay_volume::pool::{MemberState, PoolError, PoolSettings, SnapshotAccess, VolumeSpec};
use underlay_volume::rate::RateLimits;
use underlay_volume::{VolumeHandle, VolumePool};

const EXTENT: u64 = 256 << 10;

fn devices(count: usize, extents: usize) -> Vec<PowerDevice> {
    let supply = Supply::new(1);
    (0..count).map(|_| supply.device(vec![0; (extents + 5) * EXTENT as usize])).collect()
}

fn members(devices: &[PowerDevice]) -> Vec<Arc<dyn BlockDevice>> {
    devices.iter().map(PowerDevice::as_device).collect()
}

fn open(devices: &[PowerDevice]) -> VolumePool {
    VolumePool::open(members(devices), PoolSettings::default()).expect("the pool opens")
}

fn write(volume: &VolumeHandle, block: u64, blocks: usize, content: u64) -> Result<(), DeviceError> {
    let data = bytes_of(content).repeat(blocks);
    volume.execute(DeviceRequest::Write { offset_bytes: block * 4096, data, fua: false }).map(|_| ())
}

fn assert_consistent(pool: &VolumePool) {
    assert_eq!(pool.check().expect("the pool can be checked").problems, Vec::<String>::new());
}

fn plain(extents: u64) -> VolumeSpec {
    VolumeSpec::new(extents * EXTENT)
}

#[test]
fn full_pool_refuses_until_space_returns() {
    for spec in [
        plain(100),
        VolumeSpec { compress: Some(CompressionCodec::Zstd(1)), ..plain(100) },
        VolumeSpec { mirror: true, ..plain(100) },
        VolumeSpec { compress: Some(CompressionCodec::Lz4), mirror: true, ..plain(100) },
    ] {
        let devices = devices(3, 10);
        let pool = open(&devices);
        let volume = pool.create("thin", &spec).unwrap();
        let other = pool.create("other", &spec).unwrap();
        write(&other, 0, 1, 7).unwrap();
        let mut written = 0;
        let refused = loop {
            match write(&volume, written * 64, 64, 2 * written + 2) {
                Ok(()) => written += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(refused, DeviceError::NoSpace);
        assert!(written >= if spec.mirror { 12 } else { 25 }, "{written} extents of a pool of 30: {spec:?}");
        // Nothing else breaks: what is there is read, and a plain volume is written over.
        let found = read_all(&volume);
        assert!((0..written).all(|extent| found[extent as usize * 64] == 2 * extent + 2));
        assert_eq!(read_all(&other)[0], 7);
        if spec.compress.is_none() {
            write(&volume, 3, 1, 9).unwrap();
        }
        volume.execute(DeviceRequest::Flush).unwrap();
        assert_consistent(&pool);
        // Space comes back by a discard, unflushed, and by deleting.
        volume.execute(DeviceRequest::Discard { offset_bytes: 0, length_bytes: 4 * EXTENT }).unwrap();
        (0..3).for_each(|extent| write(&volume, extent * 64, 64, 5).unwrap());
        pool.delete("thin").unwrap();
        assert_eq!(volume.execute(DeviceRequest::Flush), Err(DeviceError::Gone));
        (0..written - 3).for_each(|extent| write(&other, extent * 64, 64, 4).unwrap());
        assert_consistent(&pool);
        pool.close().unwrap();
        let pool = open(&devices);
        assert_consistent(&pool);
        assert_eq!(read_all(&pool.volume("other").unwrap())[64], 4);
    }
}

#[test]
fn mirrored_volume_survives_member_loss_and_return() {
    let devices = devices(3, 20);
    let pool = open(&devices);
    let specs = [
        ("plain", VolumeSpec { mirror: true, ..plain(12) }),
        ("packed", VolumeSpec { mirror: true, compress: Some(CompressionCodec::Lz4), ..plain(12) }),
    ];
    let volumes: Vec<VolumeHandle> =
        specs.iter().map(|(name, spec)| pool.create(name, spec).unwrap()).collect();
    for volume in &volumes {
        (0..6).for_each(|extent| write(volume, extent * 64, 64, extent + 10).unwrap());
        volume.execute(DeviceRequest::Flush).unwrap();
    }
    for lost in 0..3u64 {
        devices[lost as usize].set_gone(true);
        for (volume, (name, _)) in volumes.iter().zip(&specs) {
            let found = read_all(volume);
            assert_eq!(found[5 * 64 + 10], 15);
            // Over what is there and where nothing was.
            (0..8).for_each(|extent| write(volume, extent * 64 + lost, 3, 100 + lost).unwrap());
            volume.execute(DeviceRequest::Flush).unwrap();
            let info = pool.volume(name).unwrap().info();
            assert!(info.degraded, "{info:?}");
        }
        assert_eq!(pool.info().members[lost as usize].state, MemberState::Out);
        assert!(matches!(
            pool.resync(lost as usize),
            Err(PoolError::MemberFails(..) | PoolError::JournalOnce)
        ));
        devices[lost as usize].set_gone(false);
        // What it has is old: it is not read before it is brought up to date.
        volumes.iter().for_each(|volume| assert_eq!(read_all(volume)[lost as usize], 100 + lost));
        pool.resync(lost as usize).unwrap();
        assert!(pool.list().iter().all(|info| !info.degraded), "{:?}", pool.list());
        assert_consistent(&pool);
    }
    // Each member alone may be lost now, with the pool opened without it.
    let contents: Vec<Vec<u64>> = volumes.iter().map(read_all).collect();
    pool.close().unwrap();
    for lost in 0..3 {
        let supply = Supply::new(2);
        let copies: Vec<PowerDevice> = devices.iter().map(|device| supply.device(device.image())).collect();
        copies[lost].set_gone(true);
        let pool = open(&copies);
        for ((name, _), contents) in specs.iter().zip(&contents) {
            assert_eq!(&read_all(&pool.volume(name).unwrap()), contents, "{name} without member {lost}");
        }
        // And it is remembered as out when it comes back.
        write(&pool.volume("plain").unwrap(), 0, 1, 77).unwrap();
        pool.flush().unwrap();
        copies[lost].set_gone(false);
        let pool = open(&copies);
        assert_eq!(pool.info().members[lost].state, MemberState::Out);
        assert_eq!(read_all(&pool.volume("plain").unwrap())[0], 77);
        pool.resync(lost).unwrap();
        assert_eq!(pool.info().members[lost].state, MemberState::InUse);
        assert_consistent(&pool);
    }
}

#[test]
fn failed_write_survives_unless_on_last_copy() {
    let devices = devices(2, 10);
    let pool = open(&devices);
    let volume = pool.create("twice", &VolumeSpec { mirror: true, ..plain(5) }).unwrap();
    let once = pool.create("once", &plain(5)).unwrap();
    for volume in [&volume, &once] {
        (0..4).for_each(|extent| write(volume, extent * 64, 64, 3).unwrap());
        volume.execute(DeviceRequest::Flush).unwrap();
    }
    devices[1].set_fails_writes(true);
    write(&volume, 0, 2, 4).unwrap();
    volume.execute(DeviceRequest::Flush).unwrap();
    // A volume that has its only copy there hears of it, and what is elsewhere goes on.
    let answers: Vec<_> = (0..4).map(|extent| write(&once, extent * 64, 1, 4)).collect();
    assert!(answers.iter().any(Result::is_ok) && answers.iter().any(Result::is_err), "{answers:?}");
    devices[0].set_fails_writes(true);
    assert!(write(&volume, 0, 2, 5).is_err());
    devices.iter().for_each(|device| device.set_fails_writes(false));
    pool.resync(1).unwrap();
    assert!([4, 5].contains(&read_all(&volume)[0]));
    assert_consistent(&pool);
}

#[test]
fn volumes_are_striped_over_the_members() {
    let devices = devices(4, 20);
    let pool = open(&devices);
    let volume = pool.create("wide", &plain(40)).unwrap();
    let before: Vec<u64> = pool.info().members.iter().map(|member| member.free_bytes).collect();
    write(&volume, 0, 40 * 64, 3).unwrap();
    let slab_counts: Vec<u64> = pool
        .info()
        .members
        .iter()
        .zip(before)
        .map(|(member, free)| (free - member.free_bytes) / EXTENT)
        .collect();
    assert_eq!(slab_counts.iter().sum::<u64>(), 40);
    assert!(slab_counts.iter().all(|count| (7..=13).contains(count)), "{slab_counts:?}");
}

#[test]
fn compression_saves_space_and_tells_how_much() {
    let devices = devices(1, 20);
    let pool = open(&devices);
    let spec = VolumeSpec { compress: Some(CompressionCodec::Lz4), ..plain(60) };
    let volume = pool.create("small", &spec).unwrap();
    // Three times what the pool has.
    (0..60).for_each(|extent| write(&volume, extent * 64, 64, 2 * extent + 1).unwrap());
    volume.execute(DeviceRequest::Flush).unwrap();
    let info = volume.info();
    assert_eq!(info.used_bytes, 60 * EXTENT);
    assert!(info.stored_bytes * 20 < info.used_bytes, "{info:?}");
    volume
        .execute(DeviceRequest::Write { offset_bytes: 0, data: vec![0; EXTENT as usize], fua: true })
        .unwrap();
    assert_eq!(volume.info().used_bytes, 59 * EXTENT, "zeros take no space");
    assert_consistent(&pool);
}

#[test]
fn snapshot_keeps_old_data_and_costs_changes() {
    let devices = devices(2, 20);
    let pool = open(&devices);
    let volume = pool.create("data", &plain(8)).unwrap();
    write(&volume, 0, 8 * 64, 3).unwrap();
    let free = pool.info().free_bytes;
    let snapshot = pool.snapshot("data", "kept", SnapshotAccess::ReadOnly).unwrap();
    let branch = pool.snapshot("kept", "branch", SnapshotAccess::Writable).unwrap();
    assert_eq!(pool.info().free_bytes, free);
    write(&volume, 64, 1, 5).unwrap();
    write(&branch, 65, 1, 7).unwrap();
    assert_eq!(pool.info().free_bytes, free - 2 * EXTENT);
    assert!(write(&snapshot, 0, 1, 9).unwrap_err().to_string().contains("read-only"));
    assert!(read_all(&snapshot).iter().all(|content| *content == 3));
    assert_eq!(read_all(&volume)[63..67], [3, 5, 3, 3]);
    assert_eq!(read_all(&branch)[63..67], [3, 3, 7, 3]);
    assert_eq!(branch.info().origin.as_deref(), Some("kept"));
    assert_consistent(&pool);
    pool.delete("kept").unwrap();
    pool.delete("data").unwrap();
    assert_eq!(branch.info().origin, None);
    assert_eq!(read_all(&branch)[63..67], [3, 3, 7, 3]);
    pool.delete("branch").unwrap();
    assert_consistent(&pool);
    assert_eq!(pool.info().free_bytes, pool.info().space_bytes);
}

#[test]
fn unsupported_requests_are_refused() {
    let refusal = |result: Result<VolumeHandle, PoolError>| result.map(|_| ()).unwrap_err().to_string();
    let few = devices(1, 10);
    let pool = open(&few);
    assert!(refusal(pool.create("m", &VolumeSpec { mirror: true, ..plain(1) })).contains("two members"));
    assert!(refusal(pool.create("", &plain(1))).contains("is not a valid volume name"));
    assert!(refusal(pool.create("../x", &plain(1))).contains("is not a valid volume name"));
    assert!(refusal(pool.create("x", &VolumeSpec::new(5000))).contains("multiple of 4096"));
    assert!(
        refusal(pool.create("x", &VolumeSpec { compress: Some(CompressionCodec::Zstd(40)), ..plain(1) }))
            .contains("1 to 19")
    );
    pool.create("x", &plain(1)).unwrap();
    assert!(refusal(pool.create("x", &plain(1))).contains("already"));
    assert!(refusal(pool.volume("y")).contains("no volume 'y'"));
    pool.close().unwrap();
    assert!(pool.create("late", &plain(1)).is_err());

    let two = devices(2, 10);
    open(&two).close().unwrap();
    let refused = |devices: Vec<Arc<dyn BlockDevice>>| {
        VolumePool::open(devices, PoolSettings::default()).map(|_| ()).unwrap_err().to_string()
    };
    let device = |device: &PowerDevice| device.as_device();
    assert!(refused(vec![device(&two[1]), device(&two[0])]).contains("put the members in that order"));
    assert!(refused(vec![device(&two[0])]).contains("its pool has 2 members, not 1"));
    assert!(refused(vec![device(&two[0]), device(&few[0])]).contains("member 1 does not fit"));
    let blank = devices(1, 10);
    assert!(refused(vec![device(&two[0]), device(&blank[0])]).contains("is blank"));
    blank[0]
        .as_device()
        .execute(DeviceRequest::Write { offset_bytes: 0, data: vec![1; 4096], fua: false })
        .unwrap();
    assert!(refused(vec![device(&blank[0])]).contains("blank devices only"));
    assert!(refused(vec![]).contains("1 to 255"));
    let tiny = Supply::new(1).device(vec![0; EXTENT as usize]);
    assert!(refused(vec![device(&tiny)]).contains("use larger devices"));
}

/// The journal's place is taken when the pool is made, for the longest map that it may get.
#[test]
fn pool_reports_journal_use() {
    let devices = devices(3, 400);
    let pool = open(&devices);
    let info = pool.info();
    assert!(pool.is_new());
    assert_eq!(info.journal_members, 2);
    assert!(info.journal_bytes >= 3 * info.map_limit_bytes, "{info:?}");
    let space = |member: usize| info.members[member].space_bytes;
    assert!(space(0) == space(1) && space(2) - space(0) + (256 << 10) > info.journal_bytes, "{info:?}");
    pool.close().unwrap();
    assert!(!open(&devices).is_new());
}

/// Many threads at once, on volumes of every kind, with a snapshot taken in the middle: each thread has its own blocks
/// and must find in them what it wrote last.
#[test]
fn threads_do_not_disturb_each_other() {
    let devices = devices(3, 40);
    let settings = PoolSettings { workers: WorkerThreads::start(2).unwrap(), ..PoolSettings::default() };
    let pool = VolumePool::open(members(&devices), settings).unwrap();
    let limits = RateLimits { iops: Some(1_000_000), bytes_per_second: None };
    let specs = [
        plain(6),
        VolumeSpec { mirror: true, ..plain(6) },
        VolumeSpec { compress: Some(CompressionCodec::Lz4), limits, ..plain(6) },
        VolumeSpec { compress: Some(CompressionCodec::Lz4), mirror: true, ..plain(6) },
    ];
    for (number, spec) in specs.iter().enumerate() {
        pool.create(&format!("v{number}"), spec).unwrap();
    }
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let pool = &pool;
            scope.spawn(move || {
                let volumes: Vec<VolumeHandle> =
                    (0..4).map(|v| pool.volume(&format!("v{v}")).unwrap()).collect();
                let mut last = vec![[0u64; 96]; 4];
                let mut pick = power_device::Pick::new(thread + 1);
                for round in 0..400u64 {
                    let (v, own) = (pick.below(4), pick.below(96));
                    let block = own as u64 * 4 + thread;
                    let content = 1000 * (thread + 1) + round;
                    match pick.below(8) {
                        0 => {
                            let discard =
                                DeviceRequest::Discard { offset_bytes: block * 4096, length_bytes: 4096 };
                            volumes[v].execute(discard).unwrap();
                            last[v][own] = 0;
                        }
                        1 => drop(volumes[v].execute(DeviceRequest::Flush).unwrap()),
                        2 if round % 40 == 0 => {
                            let name = format!("s{thread}-{round}");
                            pool.snapshot(&format!("v{v}"), &name, SnapshotAccess::ReadOnly).unwrap();
                            pool.delete(&name).unwrap();
                        }
                        3 | 4 => {
                            let read =
                                DeviceRequest::Read { offset_bytes: block * 4096, buffer: vec![1; 4096] };
                            let found = volumes[v].execute(read).unwrap();
                            assert_eq!(pool_model::content_of(&found), last[v][own], "block {block} of v{v}");
                        }
                        _ => {
                            write(&volumes[v], block, 1, content).unwrap();
                            last[v][own] = content;
                        }
                    }
                }
                for (v, volume) in volumes.iter().enumerate() {
                    let found = read_all(volume);
                    for (own, last) in last[v].iter().enumerate() {
                        assert_eq!(found[own * 4 + thread as usize], *last);
                    }
                }
            });
        }
    });
    assert_consistent(&pool);
    pool.close().unwrap();
}

/// The map has its own limit: when it is full, the pool says so, and its journal still takes everything in.
#[test]
fn full_map_refuses_only_snapshots_and_chunks() {
    let devices = devices(2, 100);
    let pool = open(&devices);
    let spec = VolumeSpec { compress: Some(CompressionCodec::Lz4), ..plain(4000) };
    let volume = pool.create("sparse", &spec).unwrap();
    let mut refused = None;
    for extent in 0..4000 {
        // One block in a chunk, and few chunks in an extent: much map for little data.
        for chunk in [0, 5, 11] {
            refused = refused.or(write(&volume, extent * 64 + chunk * 4, 1, 3).err());
        }
    }
    assert_eq!(refused, Some(DeviceError::NoSpace));
    assert!(pool.info().free_bytes > 10 * EXTENT, "{:?}", pool.info());
    let snapshot = pool.snapshot("sparse", "another", SnapshotAccess::ReadOnly).map(|_| ());
    assert!(matches!(snapshot, Err(PoolError::MapFull { .. })), "{snapshot:?}");
    // Over what is there; checkpoints fit.
    (0..400).for_each(|extent| write(&volume, extent * 64, 1, 5).unwrap());
    pool.close().unwrap();
    let pool = open(&devices);
    assert_consistent(&pool);
    assert_eq!(read_all(&pool.volume("sparse").unwrap())[64 * 399], 5);
}

/// Many checkpoints of the journal, some of them cut.
#[test]
fn full_journal_restarts_without_loss() {
    let supply = Supply::new(5);
    let mut devices: Vec<PowerDevice> =
        (0..2).map(|_| supply.device(vec![0; 20 * EXTENT as usize])).collect();
    let mut contents = vec![0u64; 64 * 4];
    {
        let pool = open(&devices);
        pool.create("data", &VolumeSpec { compress: Some(CompressionCodec::Lz4), ..plain(4) }).unwrap();
        pool.close().unwrap();
    }
    let mut pick = power_device::Pick::new(9);
    for round in 0..12u64 {
        let supply = Supply::new(100 + round);
        devices = devices.iter().map(|device| supply.device(device.image_after_cut())).collect();
        let pool = open(&devices);
        assert_consistent(&pool);
        let volume = pool.volume("data").unwrap();
        assert_eq!(read_all(&volume), contents, "round {round}");
        supply.fail_after(600 + pick.below(200) as i64);
        for step in 0.. {
            let block = pick.below(contents.len());
            let content = 1 + 2 * (round * 1000 + step);
            let old = contents[block];
            let written = write(&volume, block as u64, 1, content)
                .and_then(|()| volume.execute(DeviceRequest::Flush).map(|_| ()));
            if written.is_ok() {
                contents[block] = content;
                continue;
            }
            // The last write may be there or not.
            let supply = Supply::new(1);
            let copies: Vec<PowerDevice> =
                devices.iter().map(|device| supply.device(device.image_after_cut())).collect();
            let found = read_all(&open(&copies).volume("data").unwrap())[block];
            assert!(found == old || found == content, "block {block} holds {found}");
            contents[block] = found;
            break;
        }
    }
}
