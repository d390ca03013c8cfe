//! The crossovers, where another answer becomes the better one.

use super::search::{TriedOffer, offer};
use super::{AdviceCrossovers, StorageAdvice, StorageGoal, StorageOffer};
use crate::calibration::Calibration;

/// Steps that narrow a rate down.
const HALVINGS: usize = 7;

/// Finds the crossovers of an answer.
pub(super) fn turns(
    calibration: &Calibration,
    wanted: &StorageGoal,
    offers: &[TriedOffer],
    too_slow: &[TriedOffer],
) -> AdviceCrossovers {
    let mut turns = AdviceCrossovers {
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
    // Offers with the same medium get more expensive with it.
    let others = |one: &&TriedOffer| first.is_some_and(|first| !shares_a_medium(first, one));
    if let Some(other) = offers.iter().find(others) {
        turns.until_usd = Some(other.offer.usd);
        turns.then_by_price = Some(other.offer.name.clone());
    }
    if let Some(first) = first {
        let p99_us = |one: &TriedOffer| one.offer.prediction.p99_us.value;
        turns.until_p99_us = Some(p99_us(first));
        let faster = offers.iter().skip(1).find(|other| p99_us(other) < p99_us(first));
        turns.then_by_tighter = faster.map(|one| one.offer.name.clone());
        // The same storage configuration at another rate.
        let meets = |one: &TriedOffer, rate: f64| {
            offer(calibration, wanted, &one.choice, rate).is_ok_and(|offer| offer.meets)
        };
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
        let then = offers.iter().skip(1).find(|one| meets(one, 1.02 * high));
        turns.then_by_rate = then.map(|one| one.offer.name.clone());
    }
    let dearest = first.map_or(f64::INFINITY, |first| first.offer.usd);
    let nearest = too_slow
        .iter()
        .map(|one| &one.offer)
        .filter(|offer| offer.prediction.cache_full_s.is_none())
        .filter(|offer| offer.usd < dearest && !offer.prediction.is_saturated)
        .min_by(|a, b| a.prediction.p99_us.value.total_cmp(&b.prediction.p99_us.value));
    turns.from_p99_us = nearest.map(|offer| offer.prediction.p99_us.value);
    turns.then_by_looser = nearest.map(|offer| offer.name.clone());
    turns
}

fn shares_a_medium(a: &TriedOffer, b: &TriedOffer) -> bool {
    let media = |one: &TriedOffer| -> Vec<String> {
        let cache = one.choice.cache.iter().map(|(medium, _)| medium.name.clone());
        one.choice.devices.iter().map(|devices| devices.medium.name.clone()).chain(cache).collect()
    };
    let of_a = media(a);
    media(b).iter().any(|name| of_a.contains(name))
}

/// The offers that are faster than everything cheaper.
pub(super) fn frontier(advice: &StorageAdvice) -> Vec<usize> {
    let mut places: Vec<(usize, &StorageOffer)> =
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
