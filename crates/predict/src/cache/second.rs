//! A cache behind a cache: a faster device in front of slower ones may hold what memory did not.
//!
//! Its requests are the misses of the first cache, so it sees no requests for a block while memory keeps it. Let `T1`
//! be the time for which memory keeps an unused block (Che's). Requests for a block of popularity `q` reach the second
//! cache at distances of `T1` plus an exponential time, whose mean gives a rate of `q exp(-q T1)`. The mean distance is
//! exact, its law an approximation. Fricker, Robert, Roberts and Sbihi, "Impact of traffic mix on caching performance
//! in a content-centric network", 2012, have a similar result for a line of caches.
//!
//! - While it fills, nothing is pushed out: a block that is asked for again within the cache's age is found.
//! - When it is full its clock's hand comes by every `tau`, and spares blocks that were asked for since. Let `p` be the
//!   probability of a request within `tau`, and `a` the mean number of requests then. A block is found `p a / (1 - p)`
//!   times before it goes. `tau` is such that the expected number of blocks fills the device.
//! - What the background reads and writes, and the cache takes in, nobody asks for again: it takes space for as long as
//!   `tau`.
//! - Data that is rewritten lies elsewhere afterwards, so that what is cached of it is lost.

use super::{AccessDistribution, CachedBlocks, HALVINGS, PopularityRanks, SCATTERED_RANKS};

/// Ranks with a block of their own, besides the part that all blocks get: up to this share of the blocks. Ranks beyond
/// it are spread over all blocks.
const ALONE: f64 = 0.25;

/// A second cache, and its requests. Times are in requests for records.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SecondCache {
    pub blocks: CachedBlocks,
    /// The share of all blocks that the first cache holds.
    pub first_share: f64,
    /// The share of all blocks that the second one can hold.
    pub second_share: f64,
    /// Blocks of a device that a read of one block touches: two if they are not aligned.
    pub blocks_a_read: f64,
    /// Blocks that background work brings in, per request.
    pub passing_blocks: f64,
    /// The share of all blocks that is rewritten, per request.
    pub rewritten_share: f64,
    /// Requests since it was empty; endless when absent.
    pub age_requests: Option<f64>,
}

/// How often the second cache answers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SecondCacheRatio {
    /// The share of the first cache's misses, 0 to 1.
    pub of_misses: f64,
    /// It is still filling.
    pub is_filling: bool,
}

/// Blocks of equal popularity.
#[derive(Clone, Copy, Debug)]
struct PopularityClass {
    blocks: f64,
    popularity: f64,
}

impl SecondCache {
    /// How often it answers.
    pub fn answered(&self) -> SecondCacheRatio {
        let classes = classes(&self.blocks);
        let all = self.blocks.blocks;
        let first = self.first_share.clamp(0.0, 1.0);
        if first >= 1.0 || self.second_share <= 0.0 || self.second_share.is_nan() {
            return SecondCacheRatio::default();
        }
        let t1 = solve(first * all, |time| {
            classes.iter().map(|class| class.blocks * -(-class.popularity * time).exp_m1()).sum()
        });
        let room = self.second_share.min(1e6) * all;
        let age = self.age_requests.unwrap_or(f64::INFINITY).max(0.0);
        let is_filling =
            self.occupied(&classes, |class| young(class.popularity, t1, age, 0.0).held, age) < room;
        let stay = if is_filling {
            age
        } else {
            solve(room, |time| {
                self.occupied(&classes, |class| full(class.popularity, t1, time, 0.0).held, time)
            })
        };
        let kept_blocks = |class: &PopularityClass, rewritten: f64| {
            let nothing_left = young(class.popularity, t1, age, rewritten);
            match is_filling {
                true => nothing_left,
                false => full(class.popularity, t1, stay, rewritten).limit_to(nothing_left),
            }
        };
        let mean_held = mean_held(&classes, |class| kept_blocks(class, 0.0).held, all);
        let extra = (self.blocks_a_read - 1.0).clamp(0.0, 1.0);
        let (mut found, mut missed) = (0.0, 0.0);
        for class in &classes {
            let misses = class.blocks * class.popularity * (-class.popularity * t1).exp();
            let own = kept_blocks(class, self.rewritten_share).found;
            // Both blocks of a read may be there for its neighbours' sake.
            let by_neighbours = extra * mean_held * mean_held;
            found += misses * (own + (1.0 - own) * by_neighbours);
            missed += misses;
        }
        let of_misses = if missed > 0.0 { (found / missed).clamp(0.0, 1.0) } else { 0.0 };
        SecondCacheRatio { of_misses, is_filling: is_filling && age.is_finite() }
    }

    /// Blocks of the device in use, if passing blocks stay for `time`.
    fn occupied(
        &self,
        classes: &[PopularityClass],
        held_share: impl Fn(&PopularityClass) -> f64,
        time: f64,
    ) -> f64 {
        let mean = mean_held(classes, &held_share, self.blocks.blocks);
        let others = (1.0 - mean).max(0.0).powf((self.blocks_a_read - 1.0).max(0.0));
        let occupied_blocks: f64 =
            classes.iter().map(|class| class.blocks * (1.0 - (1.0 - held_share(class)) * others)).sum();
        let passing = if self.passing_blocks > 0.0 { self.passing_blocks * time } else { 0.0 };
        occupied_blocks + passing
    }
}

fn mean_held(classes: &[PopularityClass], held_share: impl Fn(&PopularityClass) -> f64, all: f64) -> f64 {
    classes.iter().map(|class| class.blocks * held_share(class)).sum::<f64>() / all
}

/// For a block: the probability that a miss of the first cache finds it, and that it is present at any time.
#[derive(Clone, Copy, Debug)]
struct KeptBlocks {
    found: f64,
    held: f64,
}

impl KeptBlocks {
    /// With evictions there are at most as many as without.
    fn limit_to(self, other: KeptBlocks) -> KeptBlocks {
        KeptBlocks { found: self.found.min(other.found), held: self.held.min(other.held) }
    }
}

/// The distance between two misses of the first cache.
struct MissDistance {
    mean: f64,
    /// For the part beyond `t1`.
    rate: f64,
    t1: f64,
}

impl MissDistance {
    fn new(popularity: f64, t1: f64) -> MissDistance {
        let mean = (popularity * t1).min(200.0).exp() / popularity;
        MissDistance { mean, rate: 1.0 / (mean - t1).max(1e-9), t1 }
    }

    /// The probability that it is less than `time`, without a rewrite meanwhile.
    fn within(&self, time: f64, rewritten: f64) -> f64 {
        if time <= self.t1 {
            return 0.0;
        }
        let both = self.rate + rewritten;
        let all = -(-both * (time - self.t1)).exp_m1();
        ((-rewritten * self.t1).exp() * self.rate / both * all).clamp(0.0, 1.0)
    }
}

/// Nothing was evicted since the cache was empty, which is this long ago.
fn young(popularity: f64, t1: f64, age: f64, rewritten: f64) -> KeptBlocks {
    let distance = MissDistance::new(popularity, t1);
    let excess = if age > t1 { distance.within(age, 0.0) / distance.rate } else { 0.0 };
    KeptBlocks {
        found: distance.within(age, rewritten),
        held: ((age.min(t1) + excess) / distance.mean).clamp(0.0, 1.0),
    }
}

/// The clock's hand comes by every `tau`.
fn full(popularity: f64, t1: f64, tau: f64, rewritten: f64) -> KeptBlocks {
    if tau.is_infinite() {
        return young(popularity, t1, tau, rewritten);
    }
    let distance = MissDistance::new(popularity, t1);
    let again = distance.within(tau, rewritten);
    let turns = tau / distance.mean;
    let several = if turns > 1e-9 { turns / -(-turns).exp_m1() } else { 1.0 };
    let rounds = 1.0 - again + again * several;
    KeptBlocks { found: (again * several / rounds).clamp(0.0, 1.0), held: (turns / rounds).clamp(0.0, 1.0) }
}

/// The time at which a growing value reaches the wanted one; endless if it never does.
fn solve(wanted: f64, figure: impl Fn(f64) -> f64) -> f64 {
    let (mut low, mut high) = (0.0f64, 1.0f64);
    while figure(high) < wanted {
        low = high;
        high *= 4.0;
        if high > 1e18 {
            return f64::INFINITY;
        }
    }
    for _ in 0..HALVINGS {
        let middle = low + (high - low) / 2.0;
        if figure(middle) < wanted { low = middle } else { high = middle }
    }
    high
}

fn classes(cached: &CachedBlocks) -> Vec<PopularityClass> {
    let all = cached.blocks;
    let ranks = match cached.law {
        AccessDistribution::Uniform => return vec![PopularityClass { blocks: all, popularity: 1.0 / all }],
        AccessDistribution::Zipfian => PopularityRanks::new(SCATTERED_RANKS),
        AccessDistribution::Latest => PopularityRanks::new(cached.records),
    };
    let mut alone = Vec::new();
    let (mut covered, mut mass) = (0.0, 0.0);
    for &(many, each) in &ranks.groups {
        if covered + many > ALONE * all {
            break;
        }
        covered += many;
        mass += many * each;
        alone.push((many, each));
    }
    let smeared = (1.0 - mass).max(0.0) / all;
    let mut classes: Vec<PopularityClass> = alone
        .into_iter()
        .map(|(many, each)| PopularityClass { blocks: many, popularity: each + smeared })
        .collect();
    classes.push(PopularityClass { blocks: all - covered, popularity: smeared.max(1e-300) });
    classes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64Mcg;
    use std::collections::{BTreeMap, HashMap};

    /// Memory as LRU over blocks.
    struct Lru {
        by_block: HashMap<u64, u64>,
        by_time: BTreeMap<u64, u64>,
        most: usize,
        now: u64,
    }

    impl Lru {
        fn new(most: usize) -> Lru {
            Lru { by_block: HashMap::new(), by_time: BTreeMap::new(), most, now: 0 }
        }

        fn hit(&mut self, block: u64) -> bool {
            self.now += 1;
            let before = self.by_block.insert(block, self.now);
            if let Some(before) = before {
                self.by_time.remove(&before);
            }
            self.by_time.insert(self.now, block);
            if self.by_block.len() > self.most
                && let Some((_, oldest)) = self.by_time.pop_first()
            {
                self.by_block.remove(&oldest);
            }
            before.is_some()
        }
    }

    /// Sets of eight slots with the CLOCK rule, as in the layer.
    struct Clock {
        sets: u64,
        slots: Vec<Option<(u64, bool)>>,
        way: usize,
    }

    const WAYS: usize = 8;

    impl Clock {
        fn new(slots: usize) -> Clock {
            let sets = slots / WAYS;
            Clock { sets: sets as u64, slots: vec![None; sets * WAYS], way: 0 }
        }

        fn slot(&self, block: u64, way: usize) -> usize {
            way * self.sets as usize + (block % self.sets) as usize
        }

        fn has(&mut self, block: u64) -> bool {
            for way in 0..WAYS {
                let slot = self.slot(block, way);
                if let Some((cached_block, used)) = &mut self.slots[slot]
                    && *cached_block == block
                {
                    *used = true;
                    return true;
                }
            }
            false
        }

        fn take_in(&mut self, block: u64) {
            for round in 0..2 {
                for step in 0..WAYS {
                    let way = (self.way + step) % WAYS;
                    let slot = self.slot(block, way);
                    let is_free = match &mut self.slots[slot] {
                        None => true,
                        Some((_, used)) => !std::mem::take(used) || round == 1,
                    };
                    if is_free {
                        self.slots[slot] = Some((block, false));
                        self.way = way;
                        return;
                    }
                }
            }
        }
    }

    /// Request by request: the share of memory's misses that the device answers, after `filling` requests.
    fn simulated(
        law: AccessDistribution,
        blocks: u64,
        each: u64,
        memory: usize,
        device: usize,
        filling: usize,
    ) -> f64 {
        let records = blocks * each;
        let ranks = PopularityRanks::new(1e10);
        let mut sums = Vec::new();
        let mut sum = 0.0;
        for (many, one) in &ranks.groups {
            sum += many * one;
            sums.push(sum);
        }
        let mut random = Pcg64Mcg::seed_from_u64(7);
        let mut draw = || match law {
            AccessDistribution::Uniform => random.random_range(0..records) / each,
            _ => {
                let point = random.random::<f64>() * sum;
                let group = sums.partition_point(|sum| *sum < point).min(sums.len() - 1);
                let before: f64 = ranks.groups[..group].iter().map(|group| group.0).sum();
                let rank = before as u64 + random.random_range(0..ranks.groups[group].0 as u64);
                // Scattered as by hashing.
                (rank.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(0xd6e8_feb8_6659_fd93)
                    >> 11)
                    % records
                    / each
            }
        };
        let (mut first, mut second) = (Lru::new(memory), Clock::new(device));
        let (mut misses, mut found) = (0u64, 0u64);
        for request in 0..filling + 60_000 {
            let block = draw();
            if first.hit(block) {
                continue;
            }
            let is_found = second.has(block);
            if !is_found {
                second.take_in(block);
            }
            if request >= filling {
                misses += 1;
                found += u64::from(is_found);
            }
        }
        found as f64 / misses as f64
    }

    fn analytic(
        law: AccessDistribution,
        blocks: u64,
        each: u64,
        memory: usize,
        device: usize,
        age: Option<f64>,
    ) -> f64 {
        let record_bytes = 4096.0 / each as f64;
        let all = CachedBlocks::new(law, (blocks * each) as f64, record_bytes, 4096.0);
        let second = SecondCache {
            blocks: all,
            first_share: memory as f64 / blocks as f64,
            second_share: device as f64 / blocks as f64,
            blocks_a_read: 1.0,
            passing_blocks: 0.0,
            rewritten_share: 0.0,
            age_requests: age,
        };
        second.answered().of_misses
    }

    #[test]
    fn second_cache_matches_simulated_one() {
        for (law, memory, device) in [
            (AccessDistribution::Uniform, 2_000, 8_000),
            (AccessDistribution::Uniform, 4_000, 16_000),
            (AccessDistribution::Uniform, 8_000, 4_000),
            (AccessDistribution::Zipfian, 1_000, 4_000),
            (AccessDistribution::Zipfian, 1_000, 12_000),
            (AccessDistribution::Zipfian, 4_000, 8_000),
        ] {
            let simulated = simulated(law, 20_000, 4, memory, device, 300_000);
            let analytic = analytic(law, 20_000, 4, memory, device, None);
            assert!(
                (simulated - analytic).abs() < 0.07,
                "{law:?}, {memory} and {device} of 20,000: {simulated} simulated, {analytic} by the formula"
            );
        }
    }

    #[test]
    fn fresh_cache_device_answers_less() {
        // After few requests it is not full.
        let young = analytic(AccessDistribution::Uniform, 20_000, 4, 2_000, 16_000, Some(6_000.0));
        let old = analytic(AccessDistribution::Uniform, 20_000, 4, 2_000, 16_000, None);
        assert!(young < 0.5 * old, "{young} {old}");
        let at_once = analytic(AccessDistribution::Uniform, 20_000, 4, 2_000, 16_000, Some(0.0));
        assert_eq!(at_once, 0.0);
    }

    #[test]
    fn passing_and_rewritten_blocks_reduce_answers() {
        let plain = SecondCache {
            blocks: CachedBlocks::new(AccessDistribution::Uniform, 80_000.0, 1024.0, 4096.0),
            first_share: 0.1,
            second_share: 0.5,
            blocks_a_read: 1.0,
            passing_blocks: 0.0,
            rewritten_share: 0.0,
            age_requests: None,
        };
        let miss_share = |second: SecondCache| second.answered().of_misses;
        assert!(miss_share(SecondCache { passing_blocks: 0.5, ..plain }) < miss_share(plain) - 0.05);
        assert!(miss_share(SecondCache { rewritten_share: 1e-4, ..plain }) < miss_share(plain) - 0.05);
        assert!((miss_share(SecondCache { second_share: 10.0, ..plain }) - 1.0).abs() < 1e-6);
        assert_eq!(miss_share(SecondCache { second_share: 0.0, ..plain }), 0.0);
        assert_eq!(miss_share(SecondCache { first_share: 1.0, ..plain }), 0.0);
    }

    #[test]
    fn full_cache_answers_at_most_a_larger_one() {
        let one = SecondCache {
            blocks: CachedBlocks::new(AccessDistribution::Zipfian, 9_778_380_581.5, 1_000.0, 4096.0),
            first_share: 0.0,
            second_share: 0.6127,
            blocks_a_read: 1.443,
            passing_blocks: 1.487,
            rewritten_share: 0.0,
            age_requests: Some(790_299_283.0),
        };
        let larger = SecondCache { second_share: 0.955, ..one }.answered();
        assert!(larger.is_filling && !one.answered().is_filling);
        assert!(larger.of_misses >= one.answered().of_misses, "{:?} {larger:?}", one.answered());
    }

    proptest! {
        #[test]
        fn more_room_never_answers_less(
            law in prop_oneof![
                Just(AccessDistribution::Uniform), Just(AccessDistribution::Zipfian), Just(AccessDistribution::Latest)],
            records in 1.0f64..1e10, first in 0.0f64..1.2, second in 0.0f64..1.2, more in 0.0f64..0.5,
            a_read in 1.0f64..3.0, passing in 0.0f64..5.0, rewritten in 0.0f64..1.0, age in prop::option::of(0.0f64..1e9),
        ) {
            let one = SecondCache {
                blocks: CachedBlocks::new(law, records, 1_000.0, 4096.0),
                first_share: first, second_share: second, blocks_a_read: a_read,
                passing_blocks: passing, rewritten_share: rewritten, age_requests: age,
            };
            let (less, greater) = (one.answered(), SecondCache { second_share: second + more, ..one }.answered());
            for answered in [less, greater] {
                prop_assert!((0.0..=1.0).contains(&answered.of_misses), "{answered:?}");
            }
            prop_assert!(greater.of_misses >= less.of_misses - 1e-6, "{less:?} {greater:?}");
        }
    }
}
