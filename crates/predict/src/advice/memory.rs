//! Memory or devices: how often memory answers, and when a byte of it is worth its price.
//!
//! The five-minute rule (Gray and Putzolu 1987; Gray and Graefe 1997): a page belongs in memory if it is requested more
//! often than once in `(price of a device / its reads per second) / (price of the memory that the page takes)`.

use schemars::JsonSchema;
use serde::Serialize;
use underlay_record::EstimatedValue;
use underlay_record::PriceSum;
use underlay_storage::catalogue::CatalogueMedium;
use underlay_storage::predict::{AccessPattern, ClosedLoop, closed_loop};
use underlay_storage::stack::InitialState;

use crate::cache::BLOCK_BYTES;
use crate::calibration::Calibration;
use crate::cell::CellPoint;
use crate::refusal::PredictionRefusal;
use crate::simulation::OperationArrivals;

/// The memory sizes to answer for, as shares of the data.
const SHARES: [f64; 9] =
    [1.0 / 32.0, 1.0 / 16.0, 1.0 / 8.0, 3.0 / 16.0, 1.0 / 4.0, 3.0 / 8.0, 1.0 / 2.0, 3.0 / 4.0, 1.0];

/// One size of memory.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct MemorySize {
    /// Unscaled.
    pub memory_bytes: f64,
    /// The share of operations that memory answers, by the curve.
    pub hit_ratio: f64,
    pub reads_per_operation: f64,
    /// The throughput of the question's storage configuration with it; absent outside the measured range.
    pub throughput_per_s: Option<EstimatedValue>,
    pub p99_us: Option<EstimatedValue>,
    /// The price of the memory together with the devices for its misses at the rate.
    pub usd: f64,
    /// The part of `usd` that is three years' rent of devices.
    pub rent_usd: f64,
    /// How many devices its misses need at this rate.
    pub devices: f64,
}

/// When a page belongs in memory rather than on a medium.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct BreakEven {
    pub medium: String,
    /// The price per read per second of the medium; three years' rent where it is rented.
    pub usd_per_read_per_s: f64,
    pub is_rented: bool,
    /// A page belongs in memory if it is requested more often than once in this many seconds.
    pub interval_s: f64,
    /// The memory price at which memory and medium cost the same for a page with the average request rate.
    pub usd_per_gib_at_average: f64,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct MemoryAdvice {
    pub data_bytes: f64,
    pub rate_per_s: f64,
    pub usd_per_gib: f64,
    /// When and where this price was found.
    pub price_source: String,
    /// The part of the memory that caches data.
    pub useful_share: f64,
    pub is_assumed: bool,
    pub sizes: Vec<MemorySize>,
    pub break_even: Vec<BreakEven>,
    /// Seconds between two requests for the same block, on average over the blocks.
    pub block_interval_s: f64,
}

/// The question.
#[derive(Clone, Debug)]
pub struct MemoryGoal<'a> {
    pub point: CellPoint,
    pub rate_per_s: f64,
    pub data_scale: f64,
    pub usd_per_gib: f64,
    /// When and where this price was found, in words.
    pub price_source: String,
    /// The medium that misses go to.
    pub medium: &'a CatalogueMedium,
}

/// Describes the effect of each memory size.
///
/// # Errors
/// When nothing was measured for the system and mix, or its distribution has no curve.
pub fn advise(
    calibration: &Calibration,
    wanted: &MemoryGoal<'_>,
    media: &[CatalogueMedium],
) -> Result<MemoryAdvice, PredictionRefusal> {
    let point = &wanted.point;
    let curve = calibration.miss_curve(point)?;
    let iops = read_iops(wanted.medium);
    let sizes = SHARES
        .iter()
        .map(|share| {
            let memory_bytes = share * point.data_bytes();
            let reads_per_operation = curve.reads(point.records, point.record_bytes, memory_bytes);
            // Without a given rate: the highest throughput with this memory.
            let closed = CellPoint { memory_bytes, arrivals: OperationArrivals::Closed, ..point.clone() };
            let predicted = calibration.predict(&closed).ok();
            let unscaled_bytes = memory_bytes * wanted.data_scale;
            let devices = wanted.rate_per_s * reads_per_operation / iops;
            let memory = PriceSum::new(wanted.usd_per_gib * unscaled_bytes / GIB, false);
            let price = memory + wanted.medium.price() * devices;
            MemorySize {
                memory_bytes: unscaled_bytes,
                hit_ratio: curve.hit_ratio(point.records, point.record_bytes, memory_bytes),
                reads_per_operation,
                throughput_per_s: predicted.as_ref().map(|found| found.throughput_per_s),
                p99_us: predicted.as_ref().map(|found| found.p99_us),
                usd: price.usd,
                rent_usd: price.rent_usd,
                devices,
            }
        })
        .collect();
    // From here on in blocks, since a device read fetches a whole one.
    let each = (BLOCK_BYTES / point.record_bytes).max(1.0);
    let blocks = point.records * wanted.data_scale / each;
    let block_interval_s = blocks / wanted.rate_per_s;
    let pages_per_gib = GIB / BLOCK_BYTES.max(point.record_bytes);
    let break_even = media
        .iter()
        .map(|medium| {
            let usd_per_read_per_s = medium.price_usd() / read_iops(medium);
            BreakEven {
                medium: medium.name.clone(),
                usd_per_read_per_s,
                is_rented: medium.price.rented,
                // Gray's rule: at this interval, the reads of a page cost as much as its memory.
                interval_s: usd_per_read_per_s * pages_per_gib / wanted.usd_per_gib,
                usd_per_gib_at_average: usd_per_read_per_s * pages_per_gib / block_interval_s,
            }
        })
        .collect();
    Ok(MemoryAdvice {
        data_bytes: point.data_bytes() * wanted.data_scale,
        rate_per_s: wanted.rate_per_s,
        usd_per_gib: wanted.usd_per_gib,
        price_source: wanted.price_source.clone(),
        useful_share: curve.useful_share,
        is_assumed: curve.is_assumed,
        sizes,
        break_even,
        block_interval_s,
    })
}

const GIB: f64 = 1_073_741_824.0;

/// Small reads per second of one device.
pub(crate) fn read_iops(medium: &CatalogueMedium) -> f64 {
    let mut model = medium.model(medium.capacity_bytes(), 1, InitialState::Fresh);
    let load = ClosedLoop {
        pattern: AccessPattern::RandomRead,
        block_bytes: BLOCK_BYTES as u64,
        queue_depth: 128,
        requests: 1_500,
        warmup: 300,
        seed: 1,
    };
    closed_loop(&mut *model, &load).iops.max(1.0)
}
