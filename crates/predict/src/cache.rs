//! How often a cache misses, depending on its size and the law of the requests.
//!
//! The cache holds blocks, each of several records. Under independent requests an LRU cache behaves as if every block
//! stayed for the same time `T` after its last use. See Che, Tung and Wang 2002; Fricker, Robert and Roberts, "A
//! versatile and accurate approximation for LRU cache performance", arXiv 1202.3974. A block of popularity `q` is there
//! with probability `1 - exp(-qT)`, and `T` is such that the expected number of blocks fills the cache.
//!
//! YCSB scatters its popular records over all others by hashing. So a block's popularity is that of the ranks that fall
//! on it, each with probability one over the number of blocks `B`, and with `S(T) = sum over ranks of (1 - exp(-p T))`
//! - the share of blocks in the cache is `1 - exp(-S(T) / B)`, and
//! - the share of requests that miss is `sum of p exp(-p T) * exp(-S(T) / B)`.

mod second;

pub use second::{SecondCache, SecondCacheRatio};

/// The exponent of YCSB's zipfian distribution.
const ZIPFIAN: f64 = 0.99;
/// How many ranks YCSB draws before it scatters them, regardless of the number of records.
const SCATTERED_RANKS: f64 = 1e10;
/// Ranks up to this one are summed one by one, the others in groups.
const SINGLE_RANKS: u32 = 64;
/// How much longer a group of ranks is than the previous one.
const GROUP_GROWTH: f64 = 1.08;
const HALVINGS: usize = 60;

/// The law of requests, as far as it is modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessDistribution {
    Uniform,
    /// Zipf's law over records that are scattered by hashing.
    Zipfian,
    /// Zipf's law over how long ago a record was inserted.
    Latest,
}

impl AccessDistribution {
    /// Its name in studies and records; `None` for one that is not modelled.
    pub fn parse(distribution: &str) -> Option<AccessDistribution> {
        match distribution {
            "uniform" => Some(AccessDistribution::Uniform),
            "zipfian" => Some(AccessDistribution::Zipfian),
            "latest" => Some(AccessDistribution::Latest),
            _ => None,
        }
    }
}

/// A cache's blocks, and their requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CachedBlocks {
    pub law: AccessDistribution,
    pub records: f64,
    /// Blocks that hold them.
    pub blocks: f64,
}

impl CachedBlocks {
    /// Records of `record_bytes` each in blocks of `block_bytes`; a longer record has a block of its own length.
    pub fn new(law: AccessDistribution, records: f64, record_bytes: f64, block_bytes: f64) -> CachedBlocks {
        let records = records.max(1.0);
        let each = (block_bytes / record_bytes.max(1.0)).max(1.0);
        CachedBlocks { law, records, blocks: (records / each).max(1.0) }
    }

    /// The share of requests that miss a cache with this share of the blocks (0 to 1).
    pub fn miss_ratio(&self, cached_share: f64) -> f64 {
        let share = if cached_share.is_nan() { 0.0 } else { cached_share.clamp(0.0, 1.0) };
        if share <= 0.0 {
            return 1.0;
        }
        if share >= 1.0 {
            return 0.0;
        }
        let ranks = match self.law {
            AccessDistribution::Uniform => return 1.0 - share,
            AccessDistribution::Zipfian => PopularityRanks::new(SCATTERED_RANKS),
            AccessDistribution::Latest => PopularityRanks::new(self.records),
        };
        // 1 - exp(-S / B) is the share: S is known, and T is wanted.
        let wanted = -(1.0 - share).ln() * self.blocks;
        if wanted >= ranks.last() {
            return 0.0;
        }
        let (mut low, mut high) = (0.0f64, 1.0f64);
        while ranks.seen(high) < wanted && high < 1e300 {
            low = high;
            high *= 4.0;
        }
        for _ in 0..HALVINGS {
            let middle = low + (high - low) / 2.0;
            if ranks.seen(middle) < wanted { low = middle } else { high = middle }
        }
        (ranks.unseen_mass(high) * (1.0 - share)).clamp(0.0, 1.0)
    }
}

/// Ranks in groups of nearly equal popularity: (how many, popularity of one).
struct PopularityRanks {
    groups: Vec<(f64, f64)>,
}

impl PopularityRanks {
    fn new(count: f64) -> PopularityRanks {
        let count = count.clamp(1.0, 1e15).floor();
        let mut groups: Vec<(f64, f64)> = Vec::new();
        let mut first = 1.0;
        let mut length = 1.0f64;
        while first <= count {
            if first > f64::from(SINGLE_RANKS) {
                length = (first * (GROUP_GROWTH - 1.0)).floor().max(1.0);
            }
            let many = length.min(count - first + 1.0);
            let (from, to) = (first - 0.5, first - 0.5 + many);
            // The integral over the group, which its mean stands for.
            let mass = (to.powf(1.0 - ZIPFIAN) - from.powf(1.0 - ZIPFIAN)) / (1.0 - ZIPFIAN);
            let mass = if many == 1.0 { first.powf(-ZIPFIAN) } else { mass };
            groups.push((many, mass / many));
            first += many;
        }
        let all: f64 = groups.iter().map(|(many, each)| many * each).sum();
        groups.iter_mut().for_each(|group| group.1 /= all);
        PopularityRanks { groups }
    }

    fn last(&self) -> f64 {
        self.groups.iter().map(|group| group.0).sum()
    }

    /// The number of ranks requested within `time` requests.
    fn seen(&self, time: f64) -> f64 {
        self.groups.iter().map(|(many, each)| many * -(-each * time).exp_m1()).sum()
    }

    /// The share of requests to ranks that were not requested within `time` requests.
    fn unseen_mass(&self, time: f64) -> f64 {
        self.groups.iter().map(|(many, each)| many * each * (-each * time).exp()).sum()
    }
}

/// Device reads per operation, by data and memory: measurements fitted to a law.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MissCurve {
    pub law: AccessDistribution,
    /// The part of the memory that holds blocks of data.
    pub useful_share: f64,
    /// Device reads per miss.
    pub reads_per_miss: f64,
    /// The two can't be separated: the share is assumed.
    pub is_assumed: bool,
}

/// A measured point of the curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CachePoint {
    pub records: f64,
    pub record_bytes: f64,
    pub memory_bytes: f64,
    /// Device reads per operation.
    pub reads: f64,
}

/// The unit in bytes of reading and caching.
pub const BLOCK_BYTES: f64 = 4096.0;
/// The share of the memory if no measurement shows it: the rest of write buffers, heap and blocks that are cached
/// twice.
const USUAL_SHARE: f64 = 0.7;
/// Fewer reads count as none.
const FEW_READS: f64 = 0.03;

impl CachePoint {
    fn misses(&self, law: AccessDistribution, useful_share: f64) -> f64 {
        let blocks = CachedBlocks::new(law, self.records, self.record_bytes, BLOCK_BYTES);
        let data_bytes = self.records * self.record_bytes;
        blocks.miss_ratio(useful_share * self.memory_bytes / data_bytes.max(1.0))
    }
}

impl MissCurve {
    /// The curve closest to the measurements; `None` without points.
    pub fn fit(law: AccessDistribution, points: &[CachePoint]) -> Option<MissCurve> {
        let with_reads = points.iter().filter(|point| point.reads > FEW_READS);
        let ratio = |point: &CachePoint| point.records * point.record_bytes / point.memory_bytes.max(1.0);
        let (mut smallest, mut largest) = (f64::INFINITY, 0.0f64);
        for point in with_reads {
            smallest = smallest.min(ratio(point));
            largest = largest.max(ratio(point));
        }
        if points.is_empty() {
            return None;
        }
        let is_assumed = largest < 1.2 * smallest;
        let curve = |useful_share: f64| {
            let misses: Vec<f64> = points.iter().map(|point| point.misses(law, useful_share)).collect();
            // Least squares of the relative errors: a mean of the ratios, weighted by their precision.
            let (mut up, mut down) = (0.0, 0.0);
            for (point, miss) in points.iter().zip(&misses) {
                let weight = 1.0 / (FEW_READS + point.reads).powi(2);
                up += weight * miss * point.reads;
                down += weight * miss * miss;
            }
            let reads_per_miss = if down > 0.0 { (up / down).max(0.0) } else { 0.0 };
            let error: f64 = points
                .iter()
                .zip(&misses)
                .map(|(point, miss)| {
                    ((point.reads - reads_per_miss * miss) / (FEW_READS + point.reads)).powi(2)
                })
                .sum();
            // A share far from the usual one must improve the fit.
            let unusual = ((useful_share - USUAL_SHARE) / 0.5).powi(2) * 1e-3;
            (error + unusual, MissCurve { law, useful_share, reads_per_miss, is_assumed })
        };
        if is_assumed {
            return Some(curve(USUAL_SHARE).1);
        }
        (4..=24)
            .map(|step| curve(f64::from(step) * 0.05))
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(_, curve)| curve)
    }

    /// Device reads per operation.
    pub fn reads(&self, records: f64, record_bytes: f64, memory_bytes: f64) -> f64 {
        let point = CachePoint { records, record_bytes, memory_bytes, reads: 0.0 };
        self.reads_per_miss * point.misses(self.law, self.useful_share)
    }

    /// The share of operations that memory answers.
    pub fn hit_ratio(&self, records: f64, record_bytes: f64, memory_bytes: f64) -> f64 {
        let point = CachePoint { records, record_bytes, memory_bytes, reads: 0.0 };
        1.0 - point.misses(self.law, self.useful_share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64Mcg;
    use std::collections::{BTreeMap, HashMap};

    /// An LRU cache, request by request.
    fn simulated(blocks: u64, each: u64, cached: usize, scattered: bool) -> f64 {
        let mut random = Pcg64Mcg::seed_from_u64(7);
        let records = blocks * each;
        // Zipf by inversion of the integral, over at most ten thousand times as many ranks as there are records.
        let ranks: f64 = if scattered { 1e10 } else { records as f64 };
        let mut used: HashMap<u64, u64> = HashMap::new();
        let mut order: BTreeMap<u64, u64> = BTreeMap::new();
        let (mut misses, mut counted) = (0u64, 0u64);
        let power = 1.0 - ZIPFIAN;
        for now in 0..400_000u64 {
            let top = (ranks + 0.5).powf(power);
            let low = 0.5f64.powf(power);
            let rank = ((random.random::<f64>() * (top - low) + low).powf(1.0 / power) + 0.5) as u64;
            let record =
                rank.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(0xbf58_476d_1ce4_e5b9)
                    % records;
            let block = record / each;
            match used.insert(block, now) {
                Some(before) => {
                    order.remove(&before);
                }
                None => {
                    if now > 200_000 {
                        misses += 1;
                    }
                }
            }
            order.insert(now, block);
            if used.len() > cached {
                let (_, oldest) = order.pop_first().unwrap();
                used.remove(&oldest);
            }
            counted += u64::from(now > 200_000);
        }
        misses as f64 / counted as f64
    }

    #[test]
    fn miss_curve_matches_simulated_cache() {
        for (cached, scattered) in [(500, true), (2_000, true), (6_000, true), (1_000, false), (5_000, false)]
        {
            let law = if scattered { AccessDistribution::Zipfian } else { AccessDistribution::Latest };
            let (blocks, each) = (10_000u64, 4u64);
            let curve = CachedBlocks { law, records: (blocks * each) as f64, blocks: blocks as f64 };
            let expected = simulated(blocks, each, cached, scattered);
            let found = curve.miss_ratio(cached as f64 / blocks as f64);
            assert!((found - expected).abs() < 0.02, "{cached} of {law:?}: {found}, simulated {expected}");
        }
    }

    #[test]
    fn fit_recovers_generating_parameters() {
        for law in [AccessDistribution::Uniform, AccessDistribution::Zipfian] {
            let truth = MissCurve { law, useful_share: 0.6, reads_per_miss: 1.4, is_assumed: false };
            let point = |records: f64| CachePoint {
                records,
                record_bytes: 1000.0,
                memory_bytes: 1e8,
                reads: truth.reads(records, 1000.0, 1e8),
            };
            let fitted = MissCurve::fit(law, &[point(2.5e5), point(5e5), point(1e6)]).unwrap();
            assert!((fitted.useful_share - 0.6).abs() < 0.051, "{fitted:?}");
            assert!((fitted.reads_per_miss / 1.4 - 1.0).abs() < 0.05, "{fitted:?}");
            assert!(!fitted.is_assumed);
            let one = MissCurve::fit(law, &[point(5e5)]).unwrap();
            assert!(one.is_assumed);
            assert!((one.reads(5e5, 1000.0, 1e8) / truth.reads(5e5, 1000.0, 1e8) - 1.0).abs() < 1e-9);
        }
        assert_eq!(MissCurve::fit(AccessDistribution::Uniform, &[]), None);
    }

    proptest! {
        #[test]
        fn more_memory_never_misses_more(
            share in 0.0f64..1.2, more in 0.0f64..0.5, records in 1.0f64..1e12, bytes in 1.0f64..1e6,
        ) {
            for law in [AccessDistribution::Uniform, AccessDistribution::Zipfian, AccessDistribution::Latest] {
                let blocks = CachedBlocks::new(law, records, bytes, BLOCK_BYTES);
                let (less, greater) = (blocks.miss_ratio(share), blocks.miss_ratio(share + more));
                prop_assert!((0.0..=1.0).contains(&less));
                prop_assert!(greater <= less + 1e-9, "{law:?}: {less} {greater}");
            }
        }
    }
}
