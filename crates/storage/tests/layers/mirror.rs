//! What a mirror does when members fail, go and come back.

use super::*;

fn mirrored(devices: &[QueuedDevice]) -> Mirror {
    let members = devices.iter().map(QueuedDevice::as_device).collect();
    Mirror::open(members, MirrorSettings { region_bytes: 16 << 10, marked_regions: 2 }).unwrap()
}

fn devices() -> Vec<QueuedDevice> {
    (0..2).map(|_| QueuedDevice::new(vec![0; DEVICE_BLOCKS * BLOCK])).collect()
}

#[test]
fn a_member_that_was_away_is_brought_up_to_date_before_it_is_read() {
    let devices = devices();
    let mirror = Arc::new(mirrored(&devices));
    let device: Arc<dyn BlockDevice> = mirror.clone();
    write(&device, 0, noise(100, 1)).unwrap();
    device.execute(Request::Flush).unwrap();
    devices[1].set_gone(true);
    write(&device, 10, noise(3, 2)).unwrap();
    assert_eq!((mirror.health().in_sync, mirror.health().out), (1, 1));
    device.execute(Request::Flush).unwrap();
    write(&device, 70, noise(3, 3)).unwrap();
    devices[1].set_gone(false);
    // A flush looks for it.
    device.execute(Request::Flush).unwrap();
    let health = mirror.health();
    assert_eq!((health.in_sync, health.out, health.resyncing), (2, 0, 0));
    assert!(health.resynced_bytes >= 2 * (16 << 10), "{health:?}");
    assert!(health.resynced_bytes < 100 * BLOCK as u64, "more was copied than it had missed: {health:?}");
    let expected = read(&device, 0, 100);
    // Whatever the other one has is not asked for any more.
    devices[0].set_gone(true);
    assert!(read(&device, 0, 100) == expected);
    assert_eq!(mirror.health().in_sync, 1);
}

#[test]
fn the_last_member_is_never_left_out() {
    let devices = devices();
    let mirror = Arc::new(mirrored(&devices));
    let device: Arc<dyn BlockDevice> = mirror.clone();
    devices.iter().for_each(|device| device.set_gone(true));
    assert!(write(&device, 0, noise(1, 1)).is_err());
    assert!(device.execute(Request::Flush).is_err());
    assert_eq!(mirror.health().in_sync, 1);
    devices.iter().for_each(|device| device.set_gone(false));
    write(&device, 0, noise(1, 2)).unwrap();
    device.execute(Request::Flush).unwrap();
    assert_eq!(mirror.health().in_sync, 2);
    assert!(read(&device, 0, 1) == noise(1, 2));
}

#[test]
fn a_stale_member_does_not_win_after_a_restart() {
    for stale in 0..2 {
        let devices = devices();
        let device: Arc<dyn BlockDevice> = Arc::new(mirrored(&devices));
        write(&device, 0, noise(4, 1)).unwrap();
        device.execute(Request::Flush).unwrap();
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
            device.execute(Request::Flush).unwrap();
        }
    }
}

/// Found by the property: a member whose unflushed data was gone was read before others had answered the
/// request that it had failed.
#[test]
fn a_member_that_failed_is_not_read_while_the_others_are_still_at_it() {
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
fn a_member_that_was_being_brought_up_to_date_does_not_rule_after_a_restart() {
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
        let request = Request::Read { offset_bytes: block * BLOCK as u64, buffer };
        device.submit(request, Box::new(|answer| assert!(answer.is_ok())));
    }
    assert_eq!((devices[0].waiting(), devices[1].waiting()), (5, 5));
    let mut pick = Pick::new(1);
    devices.iter().for_each(|device| while device.step(&mut pick) {});
}
