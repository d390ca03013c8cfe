//! What members hear of space that nobody needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::pool_model::bytes_of;
use crate::power_device::{PowerDevice, Supply};
use underlay_storage::device::{BlockDevice, DeviceRequest};
use underlay_volume::pool::{PoolSettings, VolumeSpec};
use underlay_volume::{VolumeHandle, VolumePool};

const EXTENT: u64 = 256 << 10;
const EXTENTS: u64 = 100;

fn pool() -> (PowerDevice, VolumePool, Arc<AtomicU64>) {
    let device = Supply::new(1).device(vec![0; 240 * EXTENT as usize]);
    let pool = VolumePool::open(vec![device.as_device()], PoolSettings::default()).unwrap();
    let discards = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&discards);
    device.hold_when(move |request| {
        let is_discard = matches!(request, DeviceRequest::Discard { .. });
        counted.fetch_add(u64::from(is_discard), Ordering::SeqCst);
        is_discard
    });
    (device, pool, discards)
}

fn write(volume: &VolumeHandle, extent: u64) {
    let write = DeviceRequest::Write { offset_bytes: extent * EXTENT, data: bytes_of(3), fua: false };
    volume.execute(write).unwrap();
}

fn assert_all_is_free(device: &PowerDevice, pool: &VolumePool) {
    while device.held() > 0 {
        device.let_go();
    }
    assert_eq!(pool.info().free_bytes, pool.info().space_bytes);
    assert_eq!(pool.check().unwrap().problems, Vec::<String>::new());
}

#[test]
fn slabs_that_lie_together_are_discarded_together() {
    let (device, pool, discards) = pool();
    let volume = pool.create("volume", &VolumeSpec::new(EXTENTS * EXTENT)).unwrap();
    (0..EXTENTS).for_each(|extent| write(&volume, extent));
    pool.delete("volume").unwrap();
    assert_eq!(discards.load(Ordering::SeqCst), 1);
    assert_all_is_free(&device, &pool);
}

#[test]
fn scattered_slabs_are_discarded_few_at_a_time() {
    for delete in [true, false] {
        let (device, pool, discards) = pool();
        let volumes =
            ["one", "other"].map(|name| pool.create(name, &VolumeSpec::new(EXTENTS * EXTENT)).unwrap());
        for extent in 0..EXTENTS {
            volumes.iter().for_each(|volume| write(volume, extent));
        }
        if delete {
            pool.delete("one").unwrap();
        } else {
            pool.resize("one", 4096).unwrap();
        }
        let mut rounds = 0;
        while device.held() > 0 {
            assert!(device.held() <= 16, "{} are in flight at once", device.held());
            device.let_go();
            rounds += 1;
        }
        let left = u64::from(!delete);
        assert_eq!(discards.load(Ordering::SeqCst), EXTENTS - left);
        assert!(rounds > 5);
        if !delete {
            pool.delete("one").unwrap();
        }
        pool.delete("other").unwrap();
        assert_all_is_free(&device, &pool);
    }
}
