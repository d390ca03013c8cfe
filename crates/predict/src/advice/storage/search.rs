//! The candidates: every medium alone, published layouts, and a fast device in front of slow ones or next to them.

use underlay_storage::catalogue::{CatalogueMedium, LayoutPreset, MediumKind, VolumeRules};
use underlay_storage::layers::cache::CacheMode;
use underlay_storage::predict::{AccessPattern, ClosedLoop, closed_loop};
use underlay_storage::stack::InitialState;

use super::choice::DeviceChoice;
use super::{ExcludedOffer, StorageGoal, StorageOffer};
use crate::advice::memory::read_iops;
use crate::cache::{AccessDistribution, BLOCK_BYTES};
use crate::calibration::Calibration;
use crate::cell::CellPoint;
use crate::device_network::MAX_DEVICES;
use crate::refusal::PredictionRefusal;
use crate::simulation::OperationArrivals;

/// This many of the slower media get a fast device in front of them or next to them, the cheapest ...
const SLOW_MEDIA: usize = 4;
/// ... and this many of the faster ones are tried with each: those cheaper than all that are as fast.
const FAST_MEDIA: usize = 4;
/// Pairs that cost this many times as much as a single sufficient medium are not tried.
const WORTH_IT: f64 = 1.5;
/// Devices are whole multiples of a unit, so a volume of exactly the needed size would be too small.
const SLACK: f64 = 1.02;
/// Volumes are doubled up to this many times ...
const MAX_DOUBLINGS: i32 = 14;
/// ... and the interval between the last two sizes is halved this often.
const HALVINGS: u32 = 5;

/// A tried storage configuration, with its parts.
pub(super) struct TriedOffer {
    pub choice: DeviceChoice,
    pub offer: StorageOffer,
}

pub(super) struct OfferSearch<'a> {
    pub calibration: &'a Calibration,
    pub wanted: &'a StorageGoal,
    pub tried: Vec<TriedOffer>,
    pub excluded: Vec<ExcludedOffer>,
    /// Why there is no answer at all, if there is none.
    pub refused: Option<PredictionRefusal>,
}

impl OfferSearch<'_> {
    fn exclude(&mut self, name: &str, reason: impl Into<String>) {
        self.excluded.push(ExcludedOffer { name: name.to_owned(), why: reason.into() });
    }

    /// Every medium, with the smallest number of devices that hold the data and meet the bound.
    pub(super) fn media(&mut self, media: &[CatalogueMedium]) {
        for medium in media {
            if let Some(rules) = &medium.volume {
                self.volumes(medium, rules);
                continue;
            }
            let fewest = self.wanted.fewest(medium.capacity_bytes() as f64);
            if fewest > f64::from(self.wanted.most_devices) {
                self.exclude(&medium.name, format!("{fewest:.0} devices would be needed for the data alone"));
                continue;
            }
            match self.fewest_that_meet(fewest as u32, |count| DeviceChoice::striped(medium, count, None)) {
                Ok(tried) => self.tried.extend(tried),
                Err(refusal) => {
                    self.exclude(&medium.name, refusal.to_string());
                    self.refused = Some(refusal);
                }
            }
        }
    }

    /// Volumes rented by size: as large as the data needs, more of them where each has its own rates, and larger ones
    /// where the rates follow the size.
    fn volumes(&mut self, medium: &CatalogueMedium, rules: &VolumeRules) {
        let fewest = self.wanted.fewest(rules.bytes(rules.largest) as f64 / SLACK);
        if fewest > f64::from(self.wanted.most_devices) {
            self.exclude(&medium.name, format!("{fewest:.0} volumes would be needed for the data alone"));
            return;
        }
        let fewest = fewest as u32;
        let wanted = self.wanted;
        if let Err(reason) = fitted(medium, wanted, fewest, 1.0) {
            self.exclude(&medium.name, reason);
            return;
        }
        let striped = |count: u32| {
            let volume = fitted(medium, wanted, count, 1.0).unwrap_or_else(|_| medium.clone());
            DeviceChoice::striped(&volume, count, None)
        };
        let refusal = match self.fewest_that_meet(fewest, striped) {
            Ok(tried) => {
                let meets = tried.iter().any(|one| one.offer.meets);
                self.tried.extend(tried);
                match meets {
                    true => None,
                    false => self.larger_volumes(medium, rules, fewest).err(),
                }
            }
            Err(refusal) => Some(refusal),
        };
        if let Some(refusal) = refusal {
            self.exclude(&medium.name, refusal.to_string());
            self.refused = Some(refusal);
        }
    }

    /// The smallest volumes whose rates meet the bound, larger than the data needs.
    fn larger_volumes(
        &mut self,
        medium: &CatalogueMedium,
        rules: &VolumeRules,
        count: u32,
    ) -> Result<(), PredictionRefusal> {
        let (mut below, mut found) = (1.0, None);
        for doublings in 1..=MAX_DOUBLINGS {
            let times = 2f64.powi(doublings);
            let Ok(volume) = fitted(medium, self.wanted, count, times) else { break };
            let tried = self.ask(DeviceChoice::striped(&volume, count, None))?;
            if tried.offer.meets {
                found = Some((times, tried));
                break;
            }
            below = times;
        }
        // The largest on the market usually lies between two doublings.
        let largest_bytes = rules.bytes(rules.largest);
        if found.is_none()
            && let Ok(volume) = medium.with_size(largest_bytes)
        {
            let share_bytes = SLACK * self.wanted.room_bytes() / f64::from(count.max(1));
            let times = largest_bytes as f64 / share_bytes;
            if times > below
                && let Ok(tried) = self.ask(DeviceChoice::striped(&volume, count, None))
                && tried.offer.meets
            {
                found = Some((times, tried));
            }
        }
        let Some((mut above, mut best)) = found else { return Ok(()) };
        for _ in 0..HALVINGS {
            let middle = (below * above).sqrt();
            let Ok(volume) = fitted(medium, self.wanted, count, middle) else { break };
            // A found offer already meets it.
            let Ok(tried) = self.ask(DeviceChoice::striped(&volume, count, None)) else { break };
            match tried.offer.meets {
                true => (above, best) = (middle, tried),
                false => below = middle,
            }
        }
        self.tried.push(best);
        Ok(())
    }

    pub(super) fn layouts(&mut self, layouts: &[LayoutPreset]) {
        for layout in layouts {
            match self.layout(layout) {
                Ok(tried) => self.tried.push(tried),
                Err(reason) => self.exclude(&layout.name, reason),
            }
        }
    }

    fn layout(&self, layout: &LayoutPreset) -> Result<TriedOffer, String> {
        let choice = DeviceChoice::from_layout(layout)?;
        if choice.has_directories() && !self.fills_directories() {
            return Err("a directory for each device, and no measured cell shows that the system fills several: measure one with `layout = \"jbod\"` first".to_owned());
        }
        if choice.count() > self.wanted.most_devices {
            return Err(format!("it has {} devices", choice.count()));
        }
        if choice.capacity_bytes() < self.wanted.room_bytes() {
            return Err("the data does not fit".to_owned());
        }
        self.ask(choice).map_err(|refusal| refusal.to_string())
    }

    /// A fast device in front of slow ones that don't meet the bound alone.
    pub(super) fn caches(&mut self, media: &[CatalogueMedium]) {
        let point = &self.wanted.point;
        if AccessDistribution::parse(&point.distribution).is_none() {
            let reason = format!("caches under the distribution {} are not modelled", point.distribution);
            return self.exclude("a cache in front", reason);
        }
        let writes = self.calibration.cells().iter().any(|cell| {
            cell.point.system == point.system
                && cell.point.mix == point.mix
                && cell.demand.writing_share() > 0.0
        });
        let modes: &[CacheMode] =
            if writes { &[CacheMode::Read, CacheMode::WriteBack] } else { &[CacheMode::Read] };
        let slow_media = self.fitted(media);
        for (slow, fast) in self.pairs(&slow_media, media) {
            let fewest = self.wanted.fewest(slow.capacity_bytes() as f64) as u32;
            for &mode in modes {
                let choice_with = |count: u32| DeviceChoice::striped(slow, count, Some((fast, mode)));
                match self.fewest_that_meet(fewest, choice_with) {
                    Ok(tried) => self.tried.extend(tried),
                    Err(refusal) => return self.exclude("a cache in front", refusal.to_string()),
                }
            }
        }
    }

    /// Slow devices and a fast one, each with its own directories.
    pub(super) fn hybrids(&mut self, media: &[CatalogueMedium]) {
        if !self.fills_directories() {
            return self.exclude(
                "disks and flash side by side",
                "no measured cell shows that the system fills several directories: measure one with `layout = \"jbod\"` first",
            );
        }
        let slow_media = self.fitted(media);
        for (slow, fast) in self.pairs(&slow_media, media) {
            let most = self.most_devices();
            let suffices = |&count: &u32| {
                DeviceChoice::side_by_side(slow, count, fast).capacity_bytes() >= self.wanted.room_bytes()
            };
            let Some(fewest) = (1..most).find(suffices) else { continue };
            match self.fewest_that_meet(fewest, |count| DeviceChoice::side_by_side(slow, count, fast)) {
                Ok(tried) => self.tried.extend(tried),
                Err(refusal) => return self.exclude("disks and flash side by side", refusal.to_string()),
            }
        }
    }

    /// Volumes as large as the data needs, and every other medium unchanged.
    fn fitted(&self, media: &[CatalogueMedium]) -> Vec<CatalogueMedium> {
        let sized = |medium: &CatalogueMedium| {
            let largest =
                medium.volume.as_ref().map_or(f64::INFINITY, |rules| rules.bytes(rules.largest) as f64);
            fitted(medium, self.wanted, self.wanted.fewest(largest / SLACK) as u32, 1.0)
                .unwrap_or_else(|_| medium.clone())
        };
        media.iter().map(sized).collect()
    }

    /// Slow media that are not enough alone, each with fast ones, as long as both together are worth it.
    fn pairs<'m>(
        &self,
        slow: &'m [CatalogueMedium],
        fast: &'m [CatalogueMedium],
    ) -> Vec<(&'m CatalogueMedium, &'m CatalogueMedium)> {
        let alone = || self.tried.iter().filter(|one| one.offer.meets && one.choice.cache.is_none());
        let least_usd = alone().map(|one| one.offer.usd).fold(f64::INFINITY, f64::min);
        let price = |medium: &CatalogueMedium| {
            medium.price_usd() * self.wanted.fewest(medium.capacity_bytes() as f64)
        };
        let is_enough = |medium: &CatalogueMedium| {
            let fewest = self.wanted.fewest(medium.capacity_bytes() as f64) as u32;
            self.tried.iter().any(|one| {
                one.offer.meets
                    && one.choice.cache.is_none()
                    && matches!(one.choice.devices.as_slice(), [only] if only.medium.name == medium.name && only.count <= fewest)
            })
        };
        let mut slow: Vec<&CatalogueMedium> = slow
            .iter()
            .filter(|medium| {
                let fewest = self.wanted.fewest(medium.capacity_bytes() as f64);
                fewest < f64::from(self.wanted.most_devices) && !is_enough(medium)
            })
            .collect();
        slow.sort_by(|a, b| price(a).total_cmp(&price(b)));
        slow.truncate(SLOW_MEDIA);
        let mut fast: Vec<(&CatalogueMedium, f64)> =
            fast.iter().map(|medium| (medium, idle_read_us(medium))).collect();
        fast.sort_by(|a, b| a.0.price_usd().total_cmp(&b.0.price_usd()).then(a.1.total_cmp(&b.1)));
        let mut best_us = f64::INFINITY;
        fast.retain(|(_, us)| {
            let is_faster = *us < best_us;
            best_us = best_us.min(*us);
            is_faster
        });
        let mut pairs = Vec::new();
        for slow in slow {
            let slow_us = idle_read_us(slow);
            // A rented volume and a purchased drive can't be in one machine.
            let is_cloud = |medium: &CatalogueMedium| medium.kind == MediumKind::Cloud;
            let worth = fast.iter().filter(|(fast, us)| {
                is_cloud(fast) == is_cloud(slow)
                    && *us < 0.5 * slow_us
                    && price(slow) + fast.price_usd() < WORTH_IT * least_usd
            });
            pairs.extend(worth.take(FAST_MEDIA).map(|(fast, _)| (slow, *fast)));
        }
        pairs
    }

    fn most_devices(&self) -> u32 {
        self.wanted.most_devices.min(MAX_DEVICES as u32)
    }

    /// The smallest number of devices that meets the bound, and the other numbers tried.
    fn fewest_that_meet(
        &self,
        fewest: u32,
        choice_of: impl Fn(u32) -> DeviceChoice,
    ) -> Result<Vec<TriedOffer>, PredictionRefusal> {
        let ask = |count: u32| self.ask(choice_of(count));
        let first = choice_of(fewest);
        // A device in front of the others is one of them.
        let most = self.most_devices().saturating_sub(first.count() - fewest);
        let first = self.ask(first)?;
        if first.offer.meets {
            return Ok(vec![first]);
        }
        // The reads alone give a lower bound, so that hopeless numbers need not be tried.
        let prediction = &first.offer.prediction;
        let device_reads = prediction.reads_per_operation * (1.0 - prediction.cached_share.unwrap_or(0.0));
        let iops = read_iops(&first.choice.devices[0].medium);
        let needed = match first.choice.has_directories() {
            true => fewest + 1,
            false => (self.wanted.rate_per_s * device_reads / iops).ceil() as u32,
        };
        let mut low = fewest;
        let mut high = needed.max(fewest + 1).min(most);
        let mut tried = vec![first];
        loop {
            if high <= low {
                return Ok(tried);
            }
            let found = ask(high)?;
            let meets = found.offer.meets;
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
            if found.offer.meets {
                high = middle
            } else {
                low = middle
            }
            tried.push(found);
        }
        // Among those that meet it the smallest; among the others the closest to the bound.
        let (best, short): (Vec<TriedOffer>, Vec<TriedOffer>) =
            tried.into_iter().partition(|one| one.offer.meets);
        let best = best.into_iter().min_by_key(|one| one.choice.holding());
        let short = short.into_iter().max_by_key(|one| one.choice.holding());
        Ok(best.into_iter().chain(short).collect())
    }

    /// Whether the system was measured on several directories, which it then fills evenly.
    fn fills_directories(&self) -> bool {
        self.calibration.cells().iter().any(|cell| {
            let point = &cell.point;
            point.system == self.wanted.point.system && point.volumes.len() > point.servers.max(1) as usize
        })
    }

    fn ask(&self, choice: DeviceChoice) -> Result<TriedOffer, PredictionRefusal> {
        let offer = offer(self.calibration, self.wanted, &choice, self.wanted.rate_per_s)?;
        Ok(TriedOffer { choice, offer })
    }
}

/// A volume that holds its share of the data, times this factor; other media unchanged.
fn fitted(
    medium: &CatalogueMedium,
    wanted: &StorageGoal,
    count: u32,
    times: f64,
) -> Result<CatalogueMedium, String> {
    let Some(rules) = &medium.volume else { return Ok(medium.clone()) };
    let share_bytes = SLACK * wanted.room_bytes() / f64::from(count.max(1)) * times;
    let mut units = rules.units(share_bytes).max(rules.smallest.ceil());
    if units > rules.largest {
        return Err(format!("it is sold {}", rules.sizes()));
    }
    loop {
        match medium.with_size(rules.bytes(units)) {
            Ok(volume) => return Ok(volume),
            // Its stated rates are only sold with larger volumes.
            Err(_) if units < rules.largest => units = (units * 2.0).min(rules.largest),
            Err(reason) => return Err(reason),
        }
    }
}

/// A choice's prediction at a rate.
pub(super) fn offer(
    calibration: &Calibration,
    wanted: &StorageGoal,
    choice: &DeviceChoice,
    rate_per_s: f64,
) -> Result<StorageOffer, PredictionRefusal> {
    let point = CellPoint {
        volumes: choice.volumes(wanted),
        shares_devices: false,
        filled_by: None,
        not_modelled: None,
        assumed: None,
        storage: choice.name.clone(),
        arrivals: OperationArrivals::Even { per_s: rate_per_s },
        ..wanted.point.clone()
    };
    let prediction = calibration.predict(&point)?;
    // A cache that fills up helps only for a while.
    let lasts = !prediction.is_saturated && prediction.cache_full_s.is_none();
    let meets = lasts && prediction.p99_us.value <= wanted.p99_us;
    let (price, capacity_bytes) = (choice.price(), choice.capacity_bytes());
    let usd = price.usd;
    Ok(StorageOffer {
        name: choice.name.clone(),
        parts: choice.parts(),
        layout: choice.layout_name(),
        cache: choice.cache(),
        preset: choice.preset.clone(),
        usd,
        rent_usd: price.rent_usd,
        capacity_bytes,
        usd_per_1000_per_s: usd / (rate_per_s / 1e3),
        usd_per_tb: usd / (capacity_bytes / 1e12),
        is_sure: meets && prediction.p99_us.high <= wanted.p99_us,
        meets,
        prediction,
    })
}

/// A small read's mean time on an idle device.
fn idle_read_us(medium: &CatalogueMedium) -> f64 {
    let mut model = medium.model(medium.capacity_bytes(), 1, InitialState::Fresh);
    let load = ClosedLoop {
        pattern: AccessPattern::RandomRead,
        block_bytes: BLOCK_BYTES as u64,
        queue_depth: 1,
        requests: 200,
        warmup: 20,
        seed: 1,
    };
    1e6 / closed_loop(&mut *model, &load).iops.max(1e-3)
}
