//! The cheapest storage configuration that meets a latency at a rate: every medium of the catalogue with the needed
//! number of devices, and a fast device in front of slow ones or next to them.

mod choice;
mod search;
mod turns;

use schemars::JsonSchema;
use serde::Serialize;
use underlay_storage::catalogue::{CatalogueMedium, LayoutPreset};
use underlay_storage::stack::InitialState;

use crate::calibration::{Calibration, CellPrediction};
use crate::cell::CellPoint;
use crate::refusal::PredictionRefusal;

use search::{OfferSearch, TriedOffer};

/// Space per byte of data, which a study requires too: files that are being rewritten exist twice.
const ROOM: f64 = 1.5;
/// A file system's own space on a device of the machine that runs the study, and XFS's minimum size. Neither is scaled.
const FILE_SYSTEM_BYTES: f64 = 112e6;
const MIN_BYTES: f64 = 320e6;

/// The question.
#[derive(Clone, Debug)]
pub struct StorageGoal {
    /// System, mix, load and sizes; its volumes, storage configuration and arrivals are replaced.
    pub point: CellPoint,
    pub rate_per_s: f64,
    pub p99_us: f64,
    /// Unscaled.
    pub data_bytes: f64,
    /// One byte of the point's sizes stands for this many.
    pub data_scale: f64,
    /// The initial state of flash.
    pub initial: InitialState,
    pub most_devices: u32,
}

impl StorageGoal {
    /// The space that the data needs.
    fn room_bytes(&self) -> f64 {
        let here_bytes = (ROOM * self.data_bytes / self.data_scale + FILE_SYSTEM_BYTES).max(MIN_BYTES);
        here_bytes * self.data_scale
    }

    /// How many devices of this capacity are enough.
    fn fewest(&self, capacity_bytes: f64) -> f64 {
        (self.room_bytes() / capacity_bytes.max(1.0)).ceil().max(1.0)
    }
}

/// Equal devices.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct OfferPart {
    pub medium: String,
    pub devices: u32,
    /// The number of directories on each, where each is a separate directory.
    pub directories: u32,
    /// The size of each, where the medium is a volume sold by size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<f64>,
}

/// A device in front of others.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct OfferCache {
    pub medium: String,
    pub capacity_bytes: f64,
    /// `read` or `write-back`.
    pub mode: &'static str,
}

/// A storage configuration that could be bought.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct StorageOffer {
    /// `4 x ssd-sata`, `6 x hdd-7200-sata + optane-p4800x as read cache`, or the name of a layout of the catalogue.
    pub name: String,
    /// The parts that hold the data: one medium, or two next to each other.
    pub parts: Vec<OfferPart>,
    pub layout: &'static str,
    /// A device in front of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<OfferCache>,
    /// A layout of the catalogue; absent for devices of one medium.
    pub preset: Option<String>,
    /// Three years' rent where it is rented.
    pub usd: f64,
    /// The part of `usd` that is rent.
    pub rent_usd: f64,
    pub capacity_bytes: f64,
    /// Per thousand operations a second of the wanted rate.
    pub usd_per_1000_per_s: f64,
    pub usd_per_tb: f64,
    pub prediction: CellPrediction,
    /// Its p99 is within the bound at the rate.
    pub meets: bool,
    /// So is the upper end of its interval.
    pub is_sure: bool,
}

/// A medium or layout that can't meet the bound, whatever the number of devices.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ExcludedOffer {
    pub name: String,
    pub why: String,
}

/// The crossovers, where another answer becomes the better one.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct AdviceCrossovers {
    /// The cheapest remains the cheapest until it costs this.
    pub until_usd: Option<f64>,
    pub then_by_price: Option<String>,
    /// The highest rate at which the cheapest meets the bound.
    pub until_per_s: Option<f64>,
    pub then_by_rate: Option<String>,
    /// The p99 of the cheapest: a tighter bound excludes it.
    pub until_p99_us: Option<f64>,
    pub then_by_tighter: Option<String>,
    /// From this bound on, something cheaper is enough.
    pub from_p99_us: Option<f64>,
    pub then_by_looser: Option<String>,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct StorageAdvice {
    /// Offers that meet the bound, the cheapest first.
    pub offers: Vec<StorageOffer>,
    /// Tried storage configurations that do not, the cheapest first.
    pub too_slow: Vec<StorageOffer>,
    pub excluded: Vec<ExcludedOffer>,
    /// Places in `offers` and then `too_slow` of those that nothing cheaper beats: the frontier of price and p99.
    pub frontier: Vec<usize>,
    pub turns: AdviceCrossovers,
}

impl StorageAdvice {
    /// Everything that was tried: what meets the bound, then what doesn't.
    pub fn all(&self) -> impl Iterator<Item = &StorageOffer> {
        self.offers.iter().chain(&self.too_slow)
    }
}

/// Searches media and layouts.
///
/// # Errors
/// When the question is outside of what was measured, regardless of the storage.
pub fn search(
    calibration: &Calibration,
    wanted: &StorageGoal,
    media: &[CatalogueMedium],
    layouts: &[LayoutPreset],
) -> Result<StorageAdvice, PredictionRefusal> {
    calibration.check(&wanted.point)?;
    let mut search =
        OfferSearch { calibration, wanted, tried: Vec::new(), excluded: Vec::new(), refused: None };
    search.media(media);
    search.layouts(layouts);
    search.caches(media);
    search.hybrids(media);
    let OfferSearch { mut tried, excluded, refused, .. } = search;
    if let (true, Some(refusal)) = (tried.is_empty(), refused) {
        return Err(refusal);
    }
    tried.sort_by(|a, b| {
        let p99 = |one: &TriedOffer| one.offer.prediction.p99_us.value;
        a.offer.usd.total_cmp(&b.offer.usd).then(p99(a).total_cmp(&p99(b)))
    });
    drop_what_is_beaten(&mut tried);
    let (offers, too_slow): (Vec<TriedOffer>, Vec<TriedOffer>) =
        tried.into_iter().partition(|one| one.offer.meets);
    let turns = turns::turns(calibration, wanted, &offers, &too_slow);
    let plain = |tried: Vec<TriedOffer>| tried.into_iter().map(|one| one.offer).collect();
    let mut advice = StorageAdvice {
        offers: plain(offers),
        too_slow: plain(too_slow),
        excluded,
        frontier: Vec::new(),
        turns,
    };
    advice.frontier = turns::frontier(&advice);
    Ok(advice)
}

/// Keeps offers with caches or several devices only if nothing cheaper beats them: there are many, and each is a little
/// different.
fn drop_what_is_beaten(tried: &mut Vec<TriedOffer>) {
    let mut best_us = f64::INFINITY;
    tried.retain(|one| {
        let us = match one.offer.prediction.is_saturated {
            true => f64::INFINITY,
            false => one.offer.prediction.p99_us.value,
        };
        let is_pair =
            one.choice.preset.is_none() && (one.choice.cache.is_some() || one.choice.devices.len() > 1);
        let is_better = us < best_us;
        best_us = best_us.min(us);
        is_better || !is_pair
    });
}
