//! A sample of the units against all of them.

use proptest::prelude::*;
use rand::RngExt;

use super::*;

const GIB: u64 = 1 << 30;
const CAPACITY: u64 = 2 * GIB;

fn shape(over_provisioning: f64) -> TranslationShape {
    TranslationShape { capacity_bytes: CAPACITY, over_provisioning, superblocks: 150.0 }
}

/// Write amplification over this many bytes, each place given by `next`.
fn amplification(
    translation: &mut FlashTranslation,
    total_bytes: u64,
    length_bytes: u64,
    mut next: impl FnMut(u64) -> u64,
) -> f64 {
    let (mut host, mut all) = (0.0, 0.0);
    for index in 0..total_bytes / length_bytes {
        let work = translation.write(next(index), length_bytes);
        host += work.host_bytes;
        all += work.bytes();
    }
    all / host
}

/// The same writes on a device that is mapped whole, and on one mapped by one unit of eight.
fn both(initial: InitialState, over_provisioning: f64) -> [FlashTranslation; 2] {
    [1 << 19, 1 << 16]
        .map(|most_units| FlashTranslation::with_units(&shape(over_provisioning), 5, initial, most_units))
}

fn random(seed: u64) -> Pcg64Mcg {
    Pcg64Mcg::seed_from_u64(seed)
}

fn agree(label: &str, found: [f64; 2], tolerance: f64) {
    eprintln!("{label}: {:.3} exact, {:.3} sampled", found[0], found[1]);
    assert!((found[1] / found[0] - 1.0).abs() < tolerance, "{label}: {found:?}");
}

#[test]
fn sampled_device_wears_like_whole() {
    for over_provisioning in [0.08, 0.145, 0.28] {
        let uniform = both(InitialState::Steady, over_provisioning).map(|mut translation| {
            let mut random = random(1);
            amplification(&mut translation, CAPACITY, 4096, |_| {
                random.random_range(0..CAPACITY / 4096) * 4096
            })
        });
        agree("uniform", uniform, 0.06);
        let skewed = both(InitialState::Steady, over_provisioning).map(|mut translation| {
            let mut random = random(2);
            // Nine of ten writes go to a tenth of the units, which lie all over the device.
            let mut next = |_| {
                let unit = random.random_range(0..CAPACITY / 40960) * 10;
                let cold = random.random_range(0..10u64) == 0;
                (unit + if cold { random.random_range(1..10) } else { 0 }) % (CAPACITY / 4096) * 4096
            };
            amplification(&mut translation, 4 * CAPACITY, 4096, &mut next);
            amplification(&mut translation, CAPACITY, 4096, &mut next)
        });
        agree("skewed", skewed, 0.08);
        let large = both(InitialState::Steady, over_provisioning).map(|mut translation| {
            let mut random = random(3);
            amplification(&mut translation, CAPACITY, 131_072, |_| {
                random.random_range(0..CAPACITY / 131_072) * 131_072
            })
        });
        agree("blocks of 128 KiB", large, 0.06);
    }
}

#[test]
fn sampled_device_reaches_steady_state_like_whole() {
    let curves = both(InitialState::Fresh, 0.08).map(|mut translation| {
        let mut random = random(4);
        // Sequentially, and then at random.
        amplification(&mut translation, CAPACITY, 131_072, |index| index * 131_072);
        [0; 24].map(|_| {
            amplification(&mut translation, CAPACITY / 16, 4096, |_| {
                random.random_range(0..CAPACITY / 4096) * 4096
            })
        })
    });
    for (sixteenth, (exact, sampled)) in curves[0].iter().zip(curves[1]).enumerate() {
        eprintln!("after {} of 16: {exact:.2} exact, {sampled:.2} sampled", sixteenth + 1);
        assert!((sampled / exact - 1.0).abs() < 0.1, "after {} of 16: {exact}, {sampled}", sixteenth + 1);
    }
    // The spare takes in the first writes, and then the fall is steep.
    assert!(curves[0][0] < 2.0 && curves[0][23] > 6.0, "{:?}", curves[0]);
}

#[test]
fn sequential_pass_touches_each_group_once() {
    for most_units in [1 << 19, 1 << 16, 1000] {
        let mut translation = FlashTranslation::with_units(&shape(0.1), 9, InitialState::Fresh, most_units);
        let groups = translation.sample.groups();
        let before = translation.clone();
        // Pieces that fit no group.
        let mut offset = 0;
        while offset < CAPACITY {
            let length = 12_288.min(CAPACITY - offset);
            translation.write(offset, length);
            offset += length;
        }
        let written = |translation: &FlashTranslation| translation.ftl.mapped_units();
        assert_eq!((written(&before), written(&translation)), (0, groups));
        translation.discard(1, CAPACITY - 1);
        let left = written(&translation);
        assert!(left <= 1, "the first unit is not covered, all others are: {left}");
    }
}

#[test]
fn largest_device_needs_little_memory() {
    for capacity_bytes in [3_840_000_000_000, 64_000_000_000_000, 1_000_000_000_000_000_000] {
        let shape = TranslationShape { capacity_bytes, over_provisioning: 0.1, superblocks: 1e6 };
        let mut translation = FlashTranslation::new(&shape, 1, InitialState::Steady);
        let mut random = random(6);
        let units = capacity_bytes / 4096;
        let found = amplification(&mut translation, 1 << 32, 4096, |_| random.random_range(0..units) * 4096);
        let expected = crate::media::flash::ftl::uniform_write_amplification(0.1);
        assert!((found / expected - 1.0).abs() < 0.06, "{found}, {expected} expected");
        assert!(translation.ftl.memory_bytes() < 10 << 20);
        // Even a request as large as the device is answered.
        translation.discard(0, capacity_bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn any_size_takes_any_range(
        capacity_bytes in 512..20_000_000u64,
        most_units in 1..600u64,
        over_provisioning in 0.01..3.0,
        superblocks in 0.1..1e7,
        steady in any::<bool>(),
        steps in prop::collection::vec((any::<u64>(), any::<u64>(), 0..6u8), 1..80),
    ) {
        let shape = TranslationShape { capacity_bytes, over_provisioning, superblocks };
        let initial = if steady { InitialState::Steady } else { InitialState::Fresh };
        let mut translation = FlashTranslation::with_units(&shape, 3, initial, most_units);
        let groups = translation.sample.groups();
        prop_assert!(groups <= most_units);
        prop_assert_eq!(translation.ftl.mapped_units(), if steady { groups } else { 0 });
        for (first, length, kind) in steps {
            // Any bytes, not only whole units.
            let first = first % capacity_bytes;
            let length = 1 + length % (capacity_bytes - first);
            if kind == 0 {
                translation.discard(first, length);
            } else {
                let work = translation.write(first, length);
                prop_assert!(work.host_bytes >= length as f64 && work.host_bytes < length as f64 + 8192.0);
                prop_assert!(work.copied_bytes >= 0.0 && work.copied_bytes.is_finite());
            }
            prop_assert!(translation.ftl.mapped_units() <= groups);
            let reads = translation.reads_per_copied_page(4.0);
            prop_assert!((1.0 - 1e-9..=4.0 + 1e-9).contains(&reads), "{}", reads);
        }
        // Written whole, all of it is mapped; discarded whole, nothing.
        translation.write(0, capacity_bytes);
        prop_assert_eq!(translation.ftl.mapped_units(), groups);
        translation.discard(0, capacity_bytes.next_multiple_of(MAPPING_BYTES));
        prop_assert_eq!(translation.ftl.mapped_units(), 0);
    }
}
