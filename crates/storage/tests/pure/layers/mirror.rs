//! What a mirror does when members fail, go and come back.

use underlay_storage::layers::mirror::MirrorError;

use super::*;

/// Where the data begins on each member, behind the journal.
fn data_start(device: &Arc<dyn BlockDevice>) -> u64 {
    (DEVICE_BLOCKS * BLOCK) as u64 - device.geometry().capacity_bytes
}

fn mirrored(devices: &[QueuedDevice]) -> Mirror {
    let members = devices.iter().map(QueuedDevice::as_device).collect();
    Mirror::open(members, MirrorSettings { region_bytes: 16 << 10, marked_regions: 2 }).unwrap()
}

fn try_mirrored(devices: &[QueuedDevice]) -> Result<Mirror, MirrorError> {
    let members = devices.iter().map(QueuedDevice::as_device).collect();
    Mirror::open(members, MirrorSettings { region_bytes: 16 << 10, marked_regions: 2 })
}

fn again(images: Vec<Vec<u8>>) -> Vec<QueuedDevice> {
    images.into_iter().map(QueuedDevice::new).collect()
}

fn images(devices: &[QueuedDevice]) -> Vec<Vec<u8>> {
    devices.iter().map(QueuedDevice::image).collect()
}

fn devices() -> Vec<QueuedDevice> {
    (0..2).map(|_| QueuedDevice::new(vec![0; DEVICE_BLOCKS * BLOCK])).collect()
}

#[test]
fn returning_member_is_resynced_before_reads() {
    let devices = devices();
    let mirror = Arc::new(mirrored(&devices));
    let device: Arc<dyn BlockDevice> = mirror.clone();
    write(&device, 0, noise(100, 1)).unwrap();
    device.execute(DeviceRequest::Flush).unwrap();
    devices[1].set_gone(true);
    write(&device, 10, noise(3, 2)).unwrap();
    assert_eq!((mirror.health().in_sync, mirror.health().out), (1, 1));
    device.execute(DeviceRequest::Flush).unwrap();
    write(&device, 70, noise(3, 3)).unwrap();
    devices[1].set_gone(false);
    // A flush looks for it.
    device.execute(DeviceRequest::Flush).unwrap();
    let health = mirror.health();
    assert_eq!((health.in_sync, health.out, health.resyncing), (2, 0, 0));
    assert!(health.resynced_bytes >= 2 * (16 << 10), "{health:?}");
    assert!(health.resynced_bytes < 100 * BLOCK as u64, "more was copied than it had missed: {health:?}");
    let expected = read(&device, 0, 100);
    // The other one's data is no longer asked for.
    devices[0].set_gone(true);
    assert!(read(&device, 0, 100) == expected);
    assert_eq!(mirror.health().in_sync, 1);
}

#[test]
fn last_member_is_never_left_out() {
    let devices = devices();
    let mirror = Arc::new(mirrored(&devices));
    let device: Arc<dyn BlockDevice> = mirror.clone();
    devices.iter().for_each(|device| device.set_gone(true));
    assert!(write(&device, 0, noise(1, 1)).is_err());
    assert!(device.execute(DeviceRequest::Flush).is_err());
    assert_eq!(mirror.health().in_sync, 1);
    devices.iter().for_each(|device| device.set_gone(false));
    write(&device, 0, noise(1, 2)).unwrap();
    device.execute(DeviceRequest::Flush).unwrap();
    assert_eq!(mirror.health().in_sync, 2);
    assert!(read(&device, 0, 1) == noise(1, 2));
}

#[test]
fn stale_member_does_not_win_after_restart() {
    for stale in 0..2 {
        let devices = devices();
        let device: Arc<dyn BlockDevice> = Arc::new(mirrored(&devices));
        write(&device, 0, noise(4, 1)).unwrap();
        device.execute(DeviceRequest::Flush).unwrap();
        devices[stale].set_gone(true);
        write(&device, 0, noise(4, 2)).unwrap();
        drop(device);
        let devices: Vec<QueuedDevice> =
            devices.iter().map(|device| QueuedDevice::new(device.image())).collect();
        let device: Arc<dyn BlockDevice> = Arc::new(mirrored(&devices));
        for (other, member) in devices.iter().enumerate() {
            member.set_gone(true);
            assert!(read(&device, 0, 4) == noise(4, 2), "member {stale} was away, {other} is now");
            member.set_gone(false);
            device.execute(DeviceRequest::Flush).unwrap();
        }
    }
}

/// Found by the property: a member whose unflushed data was gone was read before others had answered the
/// request that it had failed.
#[test]
fn failed_member_is_not_read_while_others_work() {
    for seed in 0..32 {
        let steps = [
            Step::Write { first: 14, count: 20, noise: false, fua: false },
            Step::Run(4),
            Step::Write { first: 0, count: 1, noise: false, fua: false },
            Step::Vanish,
            Step::Return,
            Step::Read(0, 1),
            Step::Read(0, 15),
            Step::Read(14, 10),
        ];
        promises_hold(&Tree::Mirror(vec![Tree::Device; 2]), &steps, seed);
    }
}

/// Found by the property: the member that was being brought up to date had the latest journal.
#[test]
fn resyncing_member_does_not_rule_after_restart() {
    let steps = [
        Step::Write { first: 0, count: 1, noise: false, fua: false },
        Step::PowerCut,
        Step::Write { first: 52, count: 13, noise: false, fua: false },
        Step::Flush,
        Step::Write { first: 0, count: 1, noise: false, fua: false },
        Step::Read(0, 1),
        Step::Read(0, 1),
        Step::Run(18),
        Step::Write { first: 0, count: 5, noise: false, fua: false },
        Step::Fail,
        Step::Flush,
        Step::Read(0, 1),
        Step::Fail,
        Step::Run(7),
        Step::PowerCut,
    ];
    promises_hold(&Tree::Mirror(vec![Tree::Device; 2]), &steps, 514_537_313_823_687_215);
}

#[test]
fn reads_go_to_the_member_with_less_to_do() {
    let devices = devices();
    let device: Arc<dyn BlockDevice> = Arc::new(mirrored(&devices));
    devices.iter().for_each(|device| device.set_at_once(false));
    for block in 0..10 {
        let buffer = vec![0; BLOCK];
        let request = DeviceRequest::Read { offset_bytes: block * BLOCK as u64, buffer };
        device.submit(request, Box::new(|answer| assert!(answer.is_ok())));
    }
    assert_eq!((devices[0].waiting(), devices[1].waiting()), (5, 5));
    let mut pick = Pick::new(1);
    devices.iter().for_each(|device| while device.step(&mut pick) {});
}

/// Member 1 was being brought up to date: it has heard that it was out, and lacks the first blocks.
fn with_a_stale_one() -> Vec<Vec<u8>> {
    let devices = devices();
    let device: Arc<dyn BlockDevice> = Arc::new(mirrored(&devices));
    write(&device, 0, noise(60, 1)).unwrap();
    device.execute(DeviceRequest::Flush).unwrap();
    devices[1].set_gone(true);
    write(&device, 0, noise(60, 2)).unwrap();
    device.execute(DeviceRequest::Flush).unwrap();
    devices[1].set_gone(false);
    devices[1].set_at_once(false);
    device.execute(DeviceRequest::Flush).unwrap();
    let mut pick = Pick::new(1);
    assert!(devices[1].step(&mut pick), "it is looked for");
    // A region is marked, which is noted on both.
    let request = DeviceRequest::Write { offset_bytes: 100 * BLOCK as u64, data: noise(1, 3), fua: false };
    device.submit(request, Box::new(drop));
    (0..6).for_each(|_| assert!(devices[1].step(&mut pick)));
    images(&devices)
}

#[test]
fn mirror_with_only_stale_member_is_refused() {
    let stale = with_a_stale_one();
    for blank in [false, true] {
        let devices = again(stale.clone());
        if blank {
            // Someone gives a new device in the place of the one that has the data.
            let devices = [QueuedDevice::new(vec![0; DEVICE_BLOCKS * BLOCK]), devices[1].clone()];
            let refused = try_mirrored(&devices).map(|_| ()).unwrap_err();
            assert!(matches!(refused, MirrorError::OnlyStale { .. }), "{refused}");
            continue;
        }
        devices[0].set_gone(true);
        let refused = try_mirrored(&devices).map(|_| ()).unwrap_err();
        assert!(matches!(refused, MirrorError::OnlyStale { number: 2, .. }), "{refused}");
        devices[0].set_gone(false);
        let device: Arc<dyn BlockDevice> = Arc::new(mirrored(&devices));
        devices[0].set_gone(true);
        assert!(read(&device, 0, 60) == noise(60, 2), "it was brought up to date by the other one");
    }
}

/// An opening was cut off when one member had written down that both are in, and the other had not. Then that one was
/// used alone: the two are of the same epoch, and the one with more commits has the old data.
#[test]
fn outdated_member_does_not_rule() {
    let devices = devices();
    let device: Arc<dyn BlockDevice> = Arc::new(mirrored(&devices));
    devices[1].set_gone(true);
    for block in 0..40 {
        write(&device, block, noise(1, 1)).unwrap();
        device.execute(DeviceRequest::Flush).unwrap();
    }
    devices[1].set_gone(false);
    device.execute(DeviceRequest::Flush).unwrap();
    drop(device);
    let before = images(&devices);
    let devices = again(before.clone());
    drop(mirrored(&devices));
    let first = devices[0].image();
    let devices = again(vec![first.clone(), before[1].clone()]);
    devices[0].set_gone(true);
    let device: Arc<dyn BlockDevice> = Arc::new(mirrored(&devices));
    write(&device, 0, noise(4, 3)).unwrap();
    device.execute(DeviceRequest::Flush).unwrap();
    let second = devices[1].image();
    let device: Arc<dyn BlockDevice> = Arc::new(mirrored(&again(vec![first, second])));
    (0..4).for_each(|_| assert!(read(&device, 0, 4) == noise(4, 3)));
}

/// Found by the property of pools: it was left out without hearing of it, and an opening without the other one failed
/// or came to nothing. Each of the two says then that the other one is out.
#[test]
fn opening_without_data_member_does_not_exclude_it() {
    let devices = devices();
    let device: Arc<dyn BlockDevice> = Arc::new(mirrored(&devices));
    write(&device, 0, noise(4, 1)).unwrap();
    device.execute(DeviceRequest::Flush).unwrap();
    devices[1].set_gone(true);
    write(&device, 0, noise(4, 2)).unwrap();
    device.execute(DeviceRequest::Flush).unwrap();
    let devices = again(images(&devices));
    devices[0].set_gone(true);
    drop(mirrored(&devices));
    devices[0].set_gone(false);
    let device: Arc<dyn BlockDevice> = Arc::new(mirrored(&devices));
    for (other, member) in devices.iter().enumerate() {
        member.set_gone(true);
        assert!(read(&device, 0, 4) == noise(4, 2), "without member {other}");
        member.set_gone(false);
        device.execute(DeviceRequest::Flush).unwrap();
    }
}

/// A region is marked, and one member can't read it or can't be written to when it is made alike.
#[test]
fn member_failing_region_repair_is_left_out() {
    for failing in 0..2 {
        for writes in [false, true] {
            let devices = devices();
            let device: Arc<dyn BlockDevice> = Arc::new(mirrored(&devices));
            write(&device, 0, noise(4, 1)).unwrap();
            device.execute(DeviceRequest::Flush).unwrap();
            let start = data_start(&device);
            let devices = again(images(&devices));
            devices[failing].fail_when(move |request| match request {
                DeviceRequest::Read { offset_bytes, .. } => *offset_bytes >= start,
                DeviceRequest::Write { offset_bytes, .. } => writes && *offset_bytes >= start,
                _ => false,
            });
            let device = Arc::new(mirrored(&devices));
            let health = device.health();
            // The first one is the source, if it can be read; and what can't be read is written anew.
            let out = usize::from(writes);
            assert_eq!((health.in_sync, health.out), (2 - out, out), "member {failing}, writes {writes}");
            let device: Arc<dyn BlockDevice> = device;
            assert!(read(&device, 0, 4) == noise(4, 1));
        }
    }
}
