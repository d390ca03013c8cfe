//! Storages that could be bought, price against latency: what `underlay advise storage` found, for a page that draws
//! it.

use crate::explained::EstimatedValue;
use crate::price::PriceSum;

/// A storage with its price and what it is predicted to do.
#[derive(Clone, Debug, PartialEq)]
pub struct PricedStorage {
    pub name: String,
    /// The products in words, with the dates of their prices.
    pub about: String,
    pub price: PriceSum,
    /// For each thousand operations a second that are wanted.
    pub usd_per_1000_per_s: f64,
    pub usd_per_tb: f64,
    pub mean_us: EstimatedValue,
    pub p99_us: EstimatedValue,
    /// Of the busiest device, 0 to 1.
    pub device_busy: f64,
    /// The rate is more than it can do, so that latencies grow without end.
    pub is_saturated: bool,
    /// Its p99 is within the bound.
    pub meets: bool,
    /// So is the upper end of its interval.
    pub is_sure: bool,
    /// Nothing that costs less is faster.
    pub is_on_frontier: bool,
}

/// A question about storages to buy, and its answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Frontier {
    /// One sentence: `rocksdb, mix a, uniform: 20,000 ops/s within a p99 of 10 ms`.
    pub title: String,
    /// One sentence.
    pub answer: String,
    /// Under which conditions, a few words each.
    pub facts: Vec<String>,
    pub p99_bound_us: f64,
    /// Those that meet the bound, the cheapest first, then the others.
    pub storages: Vec<PricedStorage>,
    /// Where the answer becomes another one, a sentence each.
    pub turns: Vec<String>,
    /// Assumptions, a sentence each.
    pub notes: Vec<String>,
    /// Excluded storages, with the reason.
    pub excluded: Vec<(String, String)>,
}
