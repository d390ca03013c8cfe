//! Which blocks a cache keeps, and which slots it may give away.

use super::*;

fn cached(mode: CacheMode, fast: &QueuedDevice, slow: &QueuedDevice) -> Arc<CacheLayer> {
    let settings = CacheSettings { bypass_bytes: 16 * BLOCK as u64, ..CacheSettings::new(mode) };
    Arc::new(CacheLayer::open(fast.as_device(), slow.as_device(), settings).unwrap())
}

fn device(blocks: usize) -> QueuedDevice {
    QueuedDevice::new(vec![0; blocks * BLOCK])
}

#[test]
fn second_read_comes_from_fast_device() {
    let (fast, slow) = (device(64), device(200));
    let cache = cached(CacheMode::Read, &fast, &slow);
    let volume: Arc<dyn BlockDevice> = cache.clone();
    write(&volume, 0, noise(20, 1)).unwrap();
    for _ in 0..3 {
        assert!(read(&volume, 2, 10) == noise(20, 1)[2 * BLOCK..12 * BLOCK]);
    }
    let figures = cache.figures();
    assert_eq!((figures.read_hits, figures.read_misses), (20, 10));
    // A long one passes by.
    read(&volume, 100, 40);
    assert_eq!(cache.figures().cached_bytes, 10 * BLOCK as u64);
    slow.set_gone(true);
    assert!(read(&volume, 2, 10) == noise(20, 1)[2 * BLOCK..12 * BLOCK]);
    slow.set_gone(false);
    // Nor does a fast device that is gone keep anything from being read.
    fast.set_gone(true);
    assert!(read(&volume, 2, 10) == noise(20, 1)[2 * BLOCK..12 * BLOCK]);
}

/// Found by the property of trees: a write to a slot that was just being released. The slot
/// became clean in flight, and could be given to another block.
#[test]
fn slot_being_written_is_not_reused() {
    let write = |first, count, fua| Step::Write { first, count, noise: false, fua };
    let compress = Tree::Compress(CompressionCodec::Lz4, 60, Box::new(Tree::Device));
    let fast = Tree::Mirror(vec![compress, Tree::Device]);
    let steps = [
        write(0, 1, false),
        Step::Discard(1, 1),
        write(32, 1, true),
        write(30, 3, false),
        Step::Flush,
        Step::Run(17),
        Step::Read(17, 3),
        Step::Flush,
        Step::Run(28),
        write(1, 2, true),
        Step::Run(8),
        Step::Run(5),
        write(27, 1, false),
        write(3, 1, false),
        Step::Discard(4, 1),
        Step::Run(12),
        Step::Run(2),
        Step::Run(24),
        write(27, 3, false),
        Step::Run(28),
        Step::Read(3, 3),
        Step::Read(5, 2),
        Step::CleanEnd,
    ];
    let tree = Tree::Cache(CacheMode::WriteBack, Box::new([fast, Tree::Device]));
    promises_hold(&tree, &steps, 16_988_551_351_670_070_338);
}

/// Found by the property of trees: a block was written back, and its slot given away, while a write over
/// it was still on its way to the fast device. It arrived in what was another block's by then.
#[test]
fn slot_being_overwritten_is_not_released() {
    let write = |first, count, noise| Step::Write { first, count, noise, fua: false };
    let compress = Tree::Stripe(vec![
        Tree::Cache(CacheMode::Read, Box::new([Tree::Small, Tree::Device])),
        Tree::Device,
        Tree::Device,
    ]);
    let slow = Tree::Stripe(vec![Tree::Device; 2]);
    let tree = Tree::Stripe(vec![
        Tree::Cache(CacheMode::WriteBack, Box::new([Tree::Small, slow])),
        Tree::Compress(CompressionCodec::Lz4, 50, Box::new(compress)),
    ]);
    let steps = [
        write(44, 1, false),
        Step::CleanEnd,
        Step::Read(85, 1),
        Step::Write { first: 92, count: 6, noise: true, fua: true },
        Step::Run(10),
        Step::Discard(9, 1),
        Step::Fail,
        write(74, 21, false),
        Step::Run(25),
        write(90, 10, true),
        Step::Read(78, 3),
        write(62, 15, true),
        write(65, 1, false),
        Step::Flush,
        write(59, 3, false),
        Step::Run(21),
        write(69, 1, false),
        write(40, 1, false),
        write(7, 3, false),
        write(51, 3, true),
        Step::Read(67, 2),
        write(90, 1, false),
        Step::Flush,
        write(57, 4, true),
        Step::Read(78, 1),
        Step::Flush,
        Step::Run(23),
        Step::Flush,
        write(10, 7, false),
    ];
    promises_hold(&tree, &steps, 17_998_490_143_286_228_725);
}

/// The journal still called it dirty when it went to another block.
#[test]
fn slot_with_failed_release_is_not_reused() {
    // Some of what fails has reached the device all the same.
    for seed in 0..8 {
        let mut pick = Pick::new(seed);
        let (fast, slow) = (device(64), device(200));
        let volume: Arc<dyn BlockDevice> = cached(CacheMode::WriteBack, &fast, &slow);
        write(&volume, 0, noise(2, 1)).unwrap();
        volume.execute(DeviceRequest::Flush).unwrap();
        fast.set_at_once(false);
        let third = DeviceRequest::Write { offset_bytes: 2 * BLOCK as u64, data: noise(1, 2), fua: false };
        volume.submit(third, Box::new(|answer| assert!(answer.is_ok())));
        // It makes one dirty block too many: they are read and written back, and the journal is to say so.
        assert!(fast.step(&mut pick) && fast.step(&mut pick));
        assert!(fast.fail(&mut pick) && fast.waiting() == 0);
        fast.set_at_once(true);
        // Dirty once more, written back once more, and then other blocks for their slots.
        write(&volume, 0, noise(3, 3)).unwrap();
        for block in (3..60).step_by(3) {
            write(&volume, block, noise(1, 10 + block)).unwrap();
        }
        drop(volume);
        let (fast, slow) = (QueuedDevice::new(fast.image()), QueuedDevice::new(slow.image()));
        let volume: Arc<dyn BlockDevice> = cached(CacheMode::WriteBack, &fast, &slow);
        assert!(read(&volume, 0, 3) == noise(3, 3), "seed {seed}");
    }
}

#[test]
fn write_back_limits_dirty_blocks_and_survives_restart() {
    let (fast, slow) = (device(200), device(200));
    let cache = cached(CacheMode::WriteBack, &fast, &slow);
    let volume: Arc<dyn BlockDevice> = cache.clone();
    for block in 0..60 {
        write(&volume, block, noise(1, block)).unwrap();
    }
    let figures = cache.figures();
    assert_eq!(figures.write_hits, 60);
    assert!(figures.written_back_bytes > 0, "{figures:?}");
    assert!(figures.dirty_bytes <= 16 * BLOCK as u64, "a tenth of some 160 slots: {figures:?}");
    volume.execute(DeviceRequest::Flush).unwrap();
    let dirty = cache.figures().dirty_bytes;
    assert!(dirty > 0);
    drop((volume, cache));
    let (fast, slow) = (QueuedDevice::new(fast.image()), QueuedDevice::new(slow.image()));
    let cache = cached(CacheMode::WriteBack, &fast, &slow);
    assert_eq!(cache.figures().dirty_bytes, dirty);
    let volume: Arc<dyn BlockDevice> = cache;
    for block in 0..60 {
        assert!(read(&volume, block, 1) == noise(1, block));
    }
}
