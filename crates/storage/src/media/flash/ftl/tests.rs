//! The translation layer against a table that is trivially right, and its write amplification against theory.

use proptest::prelude::*;
use rand::SeedableRng;

use super::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    Write(u32),
    Run(u32, u32),
    Discard(u32, u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => any::<u32>().prop_map(Step::Write),
        2 => (any::<u32>(), 1..200u32).prop_map(|(first, count)| Step::Run(first, count)),
        1 => (any::<u32>(), 1..200u32).prop_map(|(first, count)| Step::Discard(first, count)),
    ]
}

/// Every logical unit has one place which holds it, every count is what the tables say, no block is lost.
fn check(ftl: &Ftl, mapped: &[bool]) -> Result<(), TestCaseError> {
    let mut counted = vec![0; ftl.valid.len()];
    for (slot, unit) in ftl.content.iter().enumerate().filter(|(_, unit)| **unit != NONE) {
        prop_assert_eq!(ftl.place[*unit as usize - 1], slot as u32 + 1, "a slot holds what lies elsewhere");
        counted[slot / ftl.block_units as usize] += 1;
    }
    prop_assert_eq!(&counted, &ftl.valid);
    for (unit, mapped) in mapped.iter().enumerate() {
        let place = ftl.place[unit];
        prop_assert_eq!(place != NONE, *mapped, "unit {}", unit);
        prop_assert!(place == NONE || ftl.content[place as usize - 1] == unit as u32 + 1);
    }
    let mut uses = vec![0; ftl.valid.len()];
    for block in ftl.free.iter().copied().chain([ftl.host.block, ftl.gc.block]) {
        uses[block as usize] += 1;
    }
    for (block, closed) in ftl.closed.iter().enumerate() {
        prop_assert_eq!(uses[block] + usize::from(*closed), 1, "block {} is used twice or lost", block);
    }
    prop_assert_eq!(ftl.clone().victim(), ftl.victim_by_scan(), "the next to be collected");
    prop_assert!(ftl.free.iter().all(|block| ftl.valid[*block as usize] == 0), "a free block holds units");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn mapped_unit_has_one_place(
        units in 1..400u32,
        block_units in 1..20u32,
        spare in 0..40u32,
        steady in any::<bool>(),
        seed in any::<u64>(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let blocks = units.div_ceil(block_units) + spare;
        let (mut ftl, mut mapped) = if steady {
            let mut random = Pcg64Mcg::seed_from_u64(seed);
            (Ftl::steady(units, block_units, blocks, &mut random).0, vec![true; units as usize])
        } else {
            (Ftl::fresh(units, block_units, blocks), vec![false; units as usize])
        };
        check(&ftl, &mapped)?;
        let (mut written, mut collected) = (0, CollectionResult::default());
        for step in steps {
            let (first, count, keep) = match step {
                Step::Write(unit) => (unit % units, 1, true),
                Step::Run(first, count) => (first % units, count, true),
                Step::Discard(first, count) => (first % units, count, false),
            };
            for unit in first..(first + count).min(units) {
                if keep {
                    collected.add(ftl.write(unit));
                    written += 1;
                } else {
                    ftl.discard(unit);
                }
                mapped[unit as usize] = keep;
            }
            check(&ftl, &mapped)?;
        }
        let slots = u64::from(block_units) * ftl.valid.len() as u64;
        prop_assert!(collected.freed <= written + slots, "freed what was never written");
    }
}

/// Garbage collection's work over this many rounds of the whole device.
fn run(ftl: &mut Ftl, units: u32, rounds: f64, mut next: impl FnMut(u32) -> u32) -> f64 {
    let (mut written, mut copied) = (0, 0);
    for index in 0..(f64::from(units) * rounds) as u32 {
        copied += ftl.write(next(index)).copied;
        written += 1;
    }
    1.0 + copied as f64 / f64::from(written)
}

const UNITS: u32 = 400_000;

#[test]
fn random_writes_come_to_the_write_amplification_of_theory() {
    for over_provisioning in [0.07, 0.145, 0.28, 0.5, 1.0] {
        let blocks = 400;
        let block_units = (f64::from(UNITS) * (1.0 + over_provisioning) / f64::from(blocks)).round() as u32;
        let expected = uniform_write_amplification(over_provisioning);
        let mut random = Pcg64Mcg::seed_from_u64(1);
        // The long way: written whole, then over and over.
        let mut ftl = Ftl::fresh(UNITS, block_units, blocks);
        assert_eq!(run(&mut ftl, UNITS, 1.0, |index| index), 1.0);
        run(&mut ftl, UNITS, 4.0, |_| random.random_range(0..UNITS));
        let long = run(&mut ftl, UNITS, 1.0, |_| random.random_range(0..UNITS));
        // The short one, which devices take when they are opened.
        let (mut ftl, collected) = Ftl::steady(UNITS, block_units, blocks, &mut random);
        let short = run(&mut ftl, UNITS, 1.0, |_| random.random_range(0..UNITS));
        eprintln!("{over_provisioning}: {long:.3} long, {short:.3} short, {expected:.3} expected");
        assert!((long / expected - 1.0).abs() < 0.05, "{over_provisioning}: {long}, expected {expected}");
        assert!((short / long - 1.0).abs() < 0.03, "{over_provisioning}: {short} short, {long} long");
        let announced = collected.write_amplification();
        assert!((announced / long - 1.0).abs() < 0.05, "{over_provisioning}: {announced} announced");
    }
}

#[test]
fn sequential_writes_cost_themselves_and_mixtures_lie_between() {
    let mut random = Pcg64Mcg::seed_from_u64(2);
    let (mut ftl, _) = Ftl::steady(UNITS, 1070, 400, &mut random);
    let all_random = run(&mut ftl, UNITS, 1.0, |_| random.random_range(0..UNITS));
    // Nine of ten writes go on where the one before ended.
    let mut position = 0;
    let mixed = run(&mut ftl, UNITS, 6.0, |index| {
        if index % 10 == 0 {
            return random.random_range(0..UNITS);
        }
        position = (position + 1) % UNITS;
        position
    });
    // One round makes the device sequential, the next ones find it so.
    run(&mut ftl, UNITS, 2.0, |index| index % UNITS);
    let sequential = run(&mut ftl, UNITS, 2.0, |index| index % UNITS);
    eprintln!("{all_random:.2} random, {mixed:.2} mixed, {sequential:.3} sequential");
    assert!(sequential < 1.02, "{sequential}");
    assert!(1.5 < mixed && mixed < 0.9 * all_random, "{mixed} mixed, {all_random} random");
}

#[test]
fn block_sized_device_collects_nothing_at_first() {
    let mut ftl = Ftl::fresh(1, 8, 1);
    let collected = (0..8).map(|_| ftl.write(0)).fold(CollectionResult::default(), |mut sum, collected| {
        sum.add(collected);
        sum
    });
    assert_eq!(collected, CollectionResult::default());
}

#[test]
fn blocks_without_stale_units_are_not_copied_in_vain() {
    // Almost without spare: three of four free blocks are the last ones.
    let mut ftl = Ftl::fresh(800, 8, 100);
    assert_eq!(run(&mut ftl, 800, 1.0, |index| index), 1.0);
}

#[test]
fn discarded_device_is_fresh_again() {
    let mut random = Pcg64Mcg::seed_from_u64(3);
    let (mut ftl, _) = Ftl::steady(UNITS, 1070, 400, &mut random);
    (0..UNITS).for_each(|unit| ftl.discard(unit));
    assert_eq!(run(&mut ftl, UNITS, 1.0, |_| random.random_range(0..UNITS)), 1.0);
}

#[test]
fn unused_half_serves_as_spare_space() {
    let mut random = Pcg64Mcg::seed_from_u64(4);
    let (mut ftl, _) = Ftl::steady(UNITS, 1070, 400, &mut random);
    (UNITS / 2..UNITS).for_each(|unit| ftl.discard(unit));
    run(&mut ftl, UNITS, 4.0, |_| random.random_range(0..UNITS / 2));
    let halved = run(&mut ftl, UNITS, 1.0, |_| random.random_range(0..UNITS / 2));
    // 400 blocks of 1070 for 200,000 units.
    let expected = uniform_write_amplification(400.0 * 1070.0 / 200_000.0 - 1.0);
    assert!((halved / expected - 1.0).abs() < 0.05, "{halved}, expected {expected}");
}
