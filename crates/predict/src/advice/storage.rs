//! The cheapest storage that keeps to a latency at a rate: every medium of the catalogue, as many devices as it takes.

use schemars::JsonSchema;
use serde::Serialize;
use underlay_storage::catalogue::{LayoutPreset, Medium, PresetLayout};
use underlay_storage::stack::InitialState;
use underlay_storage::stack::{BackingSpec, DeviceSpec, Node, VolumeSpec};

use super::memory::read_iops;
use crate::bank::MAX_DEVICES;
use crate::calibration::{Calibration, Prediction};
use crate::cell::Point;
use crate::refusal::Refusal;
use crate::simulation::Arrivals;

/// Room for each byte of data, which a study asks for too: files that are being rewritten are there twice.
const ROOM: f64 = 1.5;
/// What a file system takes of a device on the machine that the study runs on, and what XFS needs at least: sizes that are not scaled.
const FILE_SYSTEM_BYTES: f64 = 112e6;
const LEAST_BYTES: f64 = 320e6;
/// Bytes on one device before the stripe goes on to the next: what a study has by default.
const CHUNK_BYTES: u64 = 512 << 10;
/// Devices are whole multiples of this, as a study makes them.
const CAPACITY_UNIT_BYTES: u64 = 1 << 20;
/// Steps that narrow down a rate.
const HALVINGS: usize = 7;

/// What is wanted.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// System, mix, load and sizes: its volumes, storage and arrivals are replaced.
    pub point: Point,
    pub rate_per_s: f64,
    pub p99_us: f64,
    /// Unscaled.
    pub data_bytes: f64,
    /// One byte of the point's sizes stands for so many.
    pub data_scale: f64,
    /// What flash went through before.
    pub initial: InitialState,
    pub most_devices: u32,
}

impl Wanted {
    /// What a storage must have to hold the data.
    fn room_bytes(&self) -> f64 {
        let here_bytes = (ROOM * self.data_bytes / self.data_scale + FILE_SYSTEM_BYTES).max(LEAST_BYTES);
        here_bytes * self.data_scale
    }

    /// How many devices of this capacity do.
    fn fewest(&self, capacity_bytes: f64) -> f64 {
        (self.room_bytes() / capacity_bytes.max(1.0)).ceil().max(1.0)
    }
}

/// A storage that could be bought.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Offer {
    /// `4 x ssd-sata`, or the name of a layout of the catalogue.
    pub name: String,
    pub medium: String,
    pub devices: u32,
    pub layout: &'static str,
    /// A layout of the catalogue; absent where it is devices of one medium.
    pub preset: Option<String>,
    pub usd: f64,
    pub capacity_bytes: f64,
    /// For each thousand operations a second that are wanted.
    pub usd_per_1000_per_s: f64,
    pub usd_per_tb: f64,
    pub prediction: Prediction,
    /// Its p99 is within the bound at the rate.
    pub meets: bool,
    /// So is the upper end of its interval.
    pub is_sure: bool,
}

/// A medium or layout that can't be it, whatever the number of devices.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Excluded {
    pub name: String,
    pub why: String,
}

/// Where the answer becomes another one.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Turns {
    /// The cheapest stays the cheapest until it costs this.
    pub until_usd: Option<f64>,
    pub then_by_price: Option<String>,
    /// The highest rate at which the cheapest keeps to the bound.
    pub until_per_s: Option<f64>,
    pub then_by_rate: Option<String>,
    /// The p99 of the cheapest: with a tighter bound than this it is out.
    pub until_p99_us: Option<f64>,
    pub then_by_tighter: Option<String>,
    /// From this bound on, something cheaper does.
    pub from_p99_us: Option<f64>,
    pub then_by_looser: Option<String>,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Advice {
    /// Those that meet the bound, the cheapest first.
    pub offers: Vec<Offer>,
    /// What was tried and does not, the cheapest first.
    pub too_slow: Vec<Offer>,
    pub excluded: Vec<Excluded>,
    /// Places in `offers` and then `too_slow` of those that nothing cheaper beats: the frontier of price and p99.
    pub frontier: Vec<usize>,
    pub turns: Turns,
}

impl Advice {
    /// Everything that was tried: what meets the bound, then what doesn't.
    pub fn all(&self) -> impl Iterator<Item = &Offer> {
        self.offers.iter().chain(&self.too_slow)
    }
}

/// Devices in the place of the point's own.
#[derive(Clone, Debug)]
struct Choice<'a> {
    name: String,
    medium: &'a Medium,
    devices: u32,
    layout: PresetLayout,
    preset: Option<String>,
}

impl Choice<'_> {
    fn usd(&self) -> f64 {
        self.medium.price_usd() * f64::from(self.devices)
    }

    fn capacity_bytes(&self) -> f64 {
        match self.layout {
            PresetLayout::Mirror => self.medium.capacity_bytes() as f64,
            _ => self.medium.capacity_bytes() as f64 * f64::from(self.devices),
        }
    }

    fn layout_name(&self) -> &'static str {
        match self.layout {
            _ if self.devices == 1 => "single",
            PresetLayout::Mirror => "mirror",
            PresetLayout::Jbod => "jbod",
            _ => "stripe",
        }
    }

    fn volumes(&self, wanted: &Wanted) -> Vec<VolumeSpec> {
        let units = (self.medium.capacity_bytes() as f64 / wanted.data_scale) as u64 / CAPACITY_UNIT_BYTES;
        let device = |index: u32| DeviceSpec {
            initial: wanted.initial,
            ..DeviceSpec::new(
                format!("{}.{index}", self.medium.name),
                Some(self.medium.clone()),
                (units * CAPACITY_UNIT_BYTES).max(CAPACITY_UNIT_BYTES),
                BackingSpec::Null,
            )
        };
        let devices: Vec<DeviceSpec> = (0..self.devices).map(device).collect();
        let volume = match self.layout {
            PresetLayout::Mirror => {
                let members = devices.into_iter().map(Node::Device).collect();
                VolumeSpec::new("volume", Node::Mirror { members })
            }
            PresetLayout::Stripe { chunk_bytes } | PresetLayout::Split { chunk_bytes, .. } => {
                VolumeSpec::striped("volume", devices, chunk_bytes)
            }
            // A directory each, as a study has it.
            PresetLayout::Jbod => {
                let alone = |device| VolumeSpec::striped("volume", vec![device], CHUNK_BYTES);
                return devices.into_iter().map(alone).collect();
            }
        };
        vec![volume]
    }
}

/// Searches media and layouts.
///
/// # Errors
/// When the question is outside of what was measured, whatever the storage.
pub fn search(
    calibration: &Calibration,
    wanted: &Wanted,
    media: &[Medium],
    layouts: &[LayoutPreset],
) -> Result<Advice, Refusal> {
    calibration.check(&wanted.point)?;
    let mut offers: Vec<Offer> = Vec::new();
    let mut excluded = Vec::new();
    let mut refused: Option<Refusal> = None;
    for medium in media {
        let fewest = wanted.fewest(medium.capacity_bytes() as f64);
        if fewest > f64::from(wanted.most_devices) {
            let why = format!("{fewest:.0} devices would be needed for the data alone");
            excluded.push(Excluded { name: medium.name.clone(), why });
            continue;
        }
        match fewest_that_meet(calibration, wanted, medium, fewest as u32) {
            Ok(tried) => offers.extend(tried),
            Err(refusal) => {
                excluded.push(Excluded { name: medium.name.clone(), why: refusal.to_string() });
                refused = Some(refusal);
            }
        }
    }
    for layout in layouts {
        match of_layout(calibration, wanted, layout) {
            Ok(offer) => offers.push(offer),
            Err(why) => excluded.push(Excluded { name: layout.name.clone(), why }),
        }
    }
    if let (true, Some(refusal)) = (offers.is_empty(), refused) {
        return Err(refusal);
    }
    offers.sort_by(|a, b| {
        a.usd.total_cmp(&b.usd).then(a.prediction.p99_us.value.total_cmp(&b.prediction.p99_us.value))
    });
    let (offers, too_slow): (Vec<Offer>, Vec<Offer>) = offers.into_iter().partition(|offer| offer.meets);
    let turns = turns(calibration, wanted, media, layouts, &offers, &too_slow);
    let mut advice = Advice { offers, too_slow, excluded, frontier: Vec::new(), turns };
    advice.frontier = frontier(&advice);
    Ok(advice)
}

/// The smallest number of devices of a medium that meets the bound, and what was tried beside it.
fn fewest_that_meet(
    calibration: &Calibration,
    wanted: &Wanted,
    medium: &Medium,
    fewest: u32,
) -> Result<Vec<Offer>, Refusal> {
    let most = wanted.most_devices.min(MAX_DEVICES as u32);
    let ask = |devices: u32| {
        let name = format!("{devices} x {}", medium.name);
        let layout = PresetLayout::Stripe { chunk_bytes: CHUNK_BYTES };
        offer(calibration, wanted, &Choice { name, medium, devices, layout, preset: None }, wanted.rate_per_s)
    };
    let first = ask(fewest)?;
    if first.meets {
        return Ok(vec![first]);
    }
    // What reads alone need is a lower bound, which spares trying numbers that can't do.
    let reads_per_s = wanted.rate_per_s * first.prediction.reads_per_operation;
    let needed = (reads_per_s / read_iops(medium)).ceil() as u32;
    let mut low = fewest;
    let mut high = needed.max(fewest + 1).min(most);
    let mut tried = vec![first];
    loop {
        if high <= low {
            return Ok(tried);
        }
        let found = ask(high)?;
        let meets = found.meets;
        tried.push(found);
        if meets {
            break;
        }
        low = high;
        if high == most {
            return Ok(tried);
        }
        high = (high + high.div_ceil(2)).min(most);
    }
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        let found = ask(middle)?;
        if found.meets {
            high = middle
        } else {
            low = middle
        }
        tried.push(found);
    }
    // Of those that meet it the smallest; of the others the one that is nearest to the bound.
    let best = tried.iter().filter(|offer| offer.meets).min_by_key(|offer| offer.devices).cloned();
    let short = tried.iter().filter(|offer| !offer.meets).max_by_key(|offer| offer.devices).cloned();
    Ok(best.into_iter().chain(short).collect())
}

fn of_layout(calibration: &Calibration, wanted: &Wanted, layout: &LayoutPreset) -> Result<Offer, String> {
    let [device] = layout.devices.as_slice() else {
        return Err(
            "devices of several media, each with directories of its own, are not predicted".to_owned()
        );
    };
    if layout.layout == PresetLayout::Jbod && device.count > 1 && !fills_directories(calibration, wanted) {
        return Err("a directory for each device, and no measured cell shows that the system fills several: measure one with `layout = \"jbod\"` first".to_owned());
    }
    if device.count > wanted.most_devices {
        return Err(format!("it has {} devices", device.count));
    }
    if (layout.capacity_bytes() as f64) < wanted.room_bytes() {
        return Err("the data does not fit".to_owned());
    }
    let Some((medium, _)) = layout.media().next() else { return Err("its medium is not known".to_owned()) };
    let choice = Choice {
        name: layout.name.clone(),
        medium: &medium,
        devices: device.count,
        layout: layout.layout,
        preset: Some(layout.name.clone()),
    };
    offer(calibration, wanted, &choice, wanted.rate_per_s).map_err(|refusal| refusal.to_string())
}

/// Whether the system was measured on several directories, which it then fills alike.
fn fills_directories(calibration: &Calibration, wanted: &Wanted) -> bool {
    calibration.cells().iter().any(|cell| {
        let point = &cell.point;
        point.system == wanted.point.system && point.volumes.len() > point.servers.max(1) as usize
    })
}

fn offer(
    calibration: &Calibration,
    wanted: &Wanted,
    choice: &Choice<'_>,
    rate_per_s: f64,
) -> Result<Offer, Refusal> {
    let point = Point {
        volumes: choice.volumes(wanted),
        not_modelled: None,
        storage: choice.name.clone(),
        arrivals: Arrivals::Even { per_s: rate_per_s },
        ..wanted.point.clone()
    };
    let prediction = calibration.predict(&point)?;
    let meets = !prediction.is_saturated && prediction.p99_us.value <= wanted.p99_us;
    Ok(Offer {
        name: choice.name.clone(),
        medium: choice.medium.name.clone(),
        devices: choice.devices,
        layout: choice.layout_name(),
        preset: choice.preset.clone(),
        usd: choice.usd(),
        capacity_bytes: choice.capacity_bytes(),
        usd_per_1000_per_s: choice.usd() / (rate_per_s / 1e3),
        usd_per_tb: choice.usd() / (choice.capacity_bytes() / 1e12),
        is_sure: meets && prediction.p99_us.high <= wanted.p99_us,
        meets,
        prediction,
    })
}

/// The same storage at another rate.
fn again(
    calibration: &Calibration,
    wanted: &Wanted,
    media: &[Medium],
    layouts: &[LayoutPreset],
    offer: &Offer,
    rate_per_s: f64,
) -> Option<bool> {
    let medium = media.iter().find(|medium| medium.name == offer.medium)?;
    let preset = offer.preset.as_ref().and_then(|name| layouts.iter().find(|layout| layout.name == *name));
    let layout = preset.map_or(PresetLayout::Stripe { chunk_bytes: CHUNK_BYTES }, |preset| preset.layout);
    let choice = Choice {
        name: offer.name.clone(),
        medium,
        devices: offer.devices,
        layout,
        preset: offer.preset.clone(),
    };
    self::offer(calibration, wanted, &choice, rate_per_s).ok().map(|offer| offer.meets)
}

fn turns(
    calibration: &Calibration,
    wanted: &Wanted,
    media: &[Medium],
    layouts: &[LayoutPreset],
    offers: &[Offer],
    too_slow: &[Offer],
) -> Turns {
    let mut turns = Turns {
        until_usd: None,
        then_by_price: None,
        until_per_s: None,
        then_by_rate: None,
        until_p99_us: None,
        then_by_tighter: None,
        from_p99_us: None,
        then_by_looser: None,
    };
    let first = offers.first();
    if let Some(second) = offers.get(1) {
        turns.until_usd = Some(second.usd);
        turns.then_by_price = Some(second.name.clone());
    }
    if let Some(first) = first {
        turns.until_p99_us = Some(first.prediction.p99_us.value);
        let faster =
            offers.iter().skip(1).find(|other| other.prediction.p99_us.value < first.prediction.p99_us.value);
        turns.then_by_tighter = faster.map(|offer| offer.name.clone());
        let meets =
            |offer: &Offer, rate| again(calibration, wanted, media, layouts, offer, rate).unwrap_or(false);
        let (mut low, mut high) = (wanted.rate_per_s, 2.0 * wanted.rate_per_s);
        while meets(first, high) && high < 64.0 * wanted.rate_per_s {
            low = high;
            high *= 2.0;
        }
        for _ in 0..HALVINGS {
            let middle = (low * high).sqrt();
            if meets(first, middle) { low = middle } else { high = middle }
        }
        turns.until_per_s = Some(low);
        let then = offers.iter().skip(1).find(|offer| meets(offer, 1.02 * high));
        turns.then_by_rate = then.map(|offer| offer.name.clone());
    }
    let dearest = first.map_or(f64::INFINITY, |first| first.usd);
    let nearest = too_slow
        .iter()
        .filter(|offer| offer.usd < dearest && !offer.prediction.is_saturated)
        .min_by(|a, b| a.prediction.p99_us.value.total_cmp(&b.prediction.p99_us.value));
    turns.from_p99_us = nearest.map(|offer| offer.prediction.p99_us.value);
    turns.then_by_looser = nearest.map(|offer| offer.name.clone());
    turns
}

/// Those that are faster than everything cheaper.
fn frontier(advice: &Advice) -> Vec<usize> {
    let mut places: Vec<(usize, &Offer)> =
        advice.all().enumerate().filter(|(_, offer)| !offer.prediction.is_saturated).collect();
    places.sort_by(|a, b| a.1.usd.total_cmp(&b.1.usd));
    let mut best = f64::INFINITY;
    let mut frontier = Vec::new();
    for (place, offer) in places {
        if offer.prediction.p99_us.value < best {
            best = offer.prediction.p99_us.value;
            frontier.push(place);
        }
    }
    frontier
}
