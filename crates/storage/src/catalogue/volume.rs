//! Volumes that are rented by size: their rates, bursts, bounds and price follow the capacity, by rules of the provider.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use underlay_record::RENT_YEARS;

use super::parameters::{CloudParameters, ModelParameters};
use super::quantity::Quantity;
use super::table::TableReader;
use super::{Medium, plain_number};

/// The time that a rent is added up for, so that it can be compared with a price.
pub const RENT_MONTHS: f64 = 12.0 * RENT_YEARS as f64;
/// 1 MiB/s in the catalogue's million bytes a second.
const MIB: f64 = 1.048576;

/// What sizes, rates and prices are counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SizeUnit {
    #[serde(rename = "GiB")]
    Gib,
    #[serde(rename = "GB")]
    Gb,
}

impl SizeUnit {
    const CHOICES: &'static [(&'static str, SizeUnit)] = &[("GiB", SizeUnit::Gib), ("GB", SizeUnit::Gb)];

    pub fn name(self) -> &'static str {
        match self {
            SizeUnit::Gib => "GiB",
            SizeUnit::Gb => "GB",
        }
    }

    fn bytes(self) -> f64 {
        match self {
            SizeUnit::Gib => (1u64 << 30) as f64,
            SizeUnit::Gb => 1e9,
        }
    }
}

/// A rate by the size of its volume: `included` plus what each unit and each of its IOPS adds, or a step for each range of sizes; within
/// bounds that hold for a rate that is bought, too.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RateRule {
    #[serde(default)]
    pub included: Option<f64>,
    #[serde(default)]
    pub per_unit: Option<f64>,
    /// Of a bandwidth: for each IOPS of the volume.
    #[serde(default)]
    pub per_iops: Option<f64>,
    /// The largest size of each range, and the rate within it.
    #[serde(default)]
    pub steps: Option<Vec<(f64, f64)>>,
    #[serde(default)]
    pub least: Option<f64>,
    #[serde(default)]
    pub most: Option<f64>,
    #[serde(default)]
    pub most_per_unit: Option<f64>,
    #[serde(default)]
    pub most_per_iops: Option<f64>,
    pub source: String,
}

/// What a volume may do beyond its rate, and what pays for it. A volume whose rate is as high has no burst.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BurstRule {
    pub rate: RateRule,
    /// A full bucket: so many credits, so many for each unit, or what a full burst takes in so many seconds.
    #[serde(default)]
    pub credits: Option<f64>,
    #[serde(default)]
    pub credits_per_unit: Option<f64>,
    #[serde(default)]
    pub full_burst_s: Option<f64>,
    /// Volumes of this size and more have none.
    #[serde(default)]
    pub below_size: Option<f64>,
}

/// What a volume costs a month.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rent {
    #[serde(default)]
    pub usd_per_unit: Option<f64>,
    /// The largest size of each range, and what a volume in it costs.
    #[serde(default)]
    pub usd_by_size: Option<Vec<(f64, f64)>>,
    /// For each IOPS up to a number of them.
    #[serde(default)]
    pub usd_per_iops: Vec<(f64, f64)>,
    /// For each MiB/s up to a number of them.
    #[serde(default)]
    pub usd_per_mib_s: Vec<(f64, f64)>,
}

/// How a provider sells volumes of a kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeRules {
    /// Sold in whole ones of these.
    pub unit: SizeUnit,
    pub smallest: f64,
    pub largest: f64,
    pub source: String,
    #[serde(default)]
    pub baseline_iops: Option<RateRule>,
    #[serde(default)]
    pub baseline_mb_s: Option<RateRule>,
    #[serde(default)]
    pub burst_iops: Option<BurstRule>,
    #[serde(default)]
    pub burst_mb_s: Option<BurstRule>,
    /// What `[model]` states of what the rules would give: it is the same for every size.
    #[serde(default)]
    pub stated: Vec<String>,
}

/// Parameters of `[model]` that a file states itself.
pub(super) type Stated = BTreeMap<&'static str, f64>;
/// Those that its rules give.
pub(super) type Derived = BTreeMap<&'static str, Quantity>;

pub(super) const BASELINE_IOPS: &str = "baseline_iops";
pub(super) const BASELINE_MB_S: &str = "baseline_mb_s";
pub(super) const BURST_IOPS: &str = "burst_iops";
pub(super) const IO_CREDITS: &str = "io_credits";
pub(super) const BURST_MB_S: &str = "burst_mb_s";
pub(super) const THROUGHPUT_CREDITS_MB: &str = "throughput_credits_mb";
/// All that rules give.
pub(super) const RULED: [&str; 6] =
    [BASELINE_IOPS, BASELINE_MB_S, BURST_IOPS, IO_CREDITS, BURST_MB_S, THROUGHPUT_CREDITS_MB];

impl RateRule {
    fn read(table: &mut TableReader<'_>, key: &'static str) -> Option<RateRule> {
        let mut table = table.inside(
            key,
            &format!("`{key}` in [volume]"),
            "a rule such as { per_unit = 3, source = \"..\" }",
        )?;
        let rule = RateRule::read_here(&mut table);
        table.reject_unknown();
        rule
    }

    fn read_here(table: &mut TableReader<'_>) -> Option<RateRule> {
        let steps = steps(table, "steps");
        let mut number = |key| table.optional_number(key, 0.0, 1e12);
        let (included, per_unit, per_iops) = (number("included"), number("per_unit"), number("per_iops"));
        let (least, most) = (number("least"), number("most"));
        let (most_per_unit, most_per_iops) = (number("most_per_unit"), number("most_per_iops"));
        if let (Some(least), Some(most)) = (least, most)
            && least > most
        {
            table.mistake("`least` is above `most`");
        }
        let source = table.source()?;
        Some(RateRule {
            included,
            per_unit,
            per_iops,
            steps,
            least,
            most,
            most_per_unit,
            most_per_iops,
            source,
        })
    }

    /// What a volume of so many units has without buying more; `None` where all of it is bought.
    fn given(&self, units: f64, iops: f64) -> Option<f64> {
        let parts = [
            self.included,
            self.per_unit.map(|each| each * units),
            self.per_iops.map(|each| each * iops),
            self.steps.as_ref().map(|steps| step(steps, units)),
        ];
        let is_given = parts.iter().any(Option::is_some);
        let sum: f64 = parts.into_iter().flatten().sum();
        let rate = sum.max(self.least.unwrap_or(0.0)).min(self.most.unwrap_or(f64::INFINITY));
        is_given.then_some(rate)
    }

    /// Why a volume of so many units can't have this rate.
    fn refusal(&self, rate: f64, units: f64, iops: f64, words: &Words<'_>) -> Option<String> {
        let is_above = |bound: f64| rate > bound * (1.0 + 1e-6);
        let Words { unit, in_mib } = words;
        let shown = |rate: f64| shown(rate, *in_mib);
        if let Some(least) = self.least.filter(|least| rate < least * (1.0 - 1e-6)) {
            return Some(format!("the provider's smallest is {}", shown(least)));
        }
        if let Some(most) = self.most.filter(|most| is_above(*most)) {
            return Some(format!("the provider sells up to {}", shown(most)));
        }
        // What is included in the price is there whatever the ratio.
        if rate <= self.included.unwrap_or(0.0) * (1.0 + 1e-6) {
            return None;
        }
        if let Some(each) = self.most_per_unit.filter(|each| is_above(each * units)) {
            return Some(format!(
                "the provider sells up to {} for each {unit}, so {} for {} {unit}",
                shown(each),
                shown(each * units),
                plain_number(units)
            ));
        }
        if let Some(each) = self.most_per_iops.filter(|each| is_above(each * iops)) {
            return Some(format!(
                "the provider sells up to {} for each IOPS, so {} for {} IOPS",
                shown(each),
                shown(each * iops),
                plain_number(iops)
            ));
        }
        None
    }

    fn text(&self, unit: SizeUnit) -> String {
        let unit = unit.name();
        let mut parts = Vec::new();
        let mut part = |value: Option<f64>, words: &str| {
            parts.extend(value.map(|value| format!("{}{words}", plain_number(value))));
        };
        part(self.included, "");
        part(self.per_unit, &format!(" for each {unit}"));
        part(self.per_iops, " for each IOPS");
        let mut text = parts.join(" and ");
        for (size, rate) in self.steps.iter().flatten() {
            let comma = if text.is_empty() { "" } else { ", " };
            text += &format!("{comma}{} up to {} {unit}", plain_number(*rate), plain_number(*size));
        }
        if text.is_empty() {
            text += "bought";
        }
        for (value, words) in [
            (self.least, "at least {}".to_owned()),
            (self.most, "at most {}".to_owned()),
            (self.most_per_unit, format!("at most {{}} for each {unit}")),
            (self.most_per_iops, "at most {} for each IOPS".to_owned()),
        ] {
            if let Some(value) = value {
                text += &format!(", {}", words.replace("{}", &plain_number(value)));
            }
        }
        text
    }
}

/// How a rate is shown.
struct Words<'a> {
    unit: &'a str,
    in_mib: bool,
}

fn shown(rate: f64, in_mib: bool) -> String {
    match in_mib {
        true => format!("{} MB/s ({} MiB/s)", plain_number(rate), plain_number(rate / MIB)),
        false => format!("{} IOPS", plain_number(rate)),
    }
}

impl BurstRule {
    fn read(table: &mut TableReader<'_>, key: &'static str) -> Option<BurstRule> {
        const EXPECTED: &str = "a rule such as { included = 3000, credits = 5_400_000, source = \"..\" }";
        let mut table = table.inside(key, &format!("`{key}` in [volume]"), EXPECTED)?;
        let rate = RateRule::read_here(&mut table);
        let credits = table.optional_number("credits", 0.0, 1e15);
        let credits_per_unit = table.optional_number("credits_per_unit", 0.0, 1e15);
        let full_burst_s = table.optional_number("full_burst_s", 0.0, 1e8);
        let below_size = table.optional_number("below_size", 0.0, 1e9);
        table.reject_unknown();
        let rate = rate?;
        if rate.given(1.0, 1.0).is_none() {
            table.mistake("a burst needs its rate: state `included`, `per_unit` or `steps`");
        }
        if [credits, credits_per_unit, full_burst_s].iter().flatten().count() != 1 {
            table.mistake("state one of `credits`, `credits_per_unit` and `full_burst_s`");
        }
        Some(BurstRule { rate, credits, credits_per_unit, full_burst_s, below_size })
    }

    /// Rate and bucket of a volume whose baseline is this one.
    fn given(&self, units: f64, baseline: f64) -> Option<(Quantity, Quantity)> {
        let rate = self.rate.given(units, 0.0).filter(|rate| *rate > baseline)?;
        if self.below_size.is_some_and(|size| units >= size) {
            return None;
        }
        let credits = match (self.credits, self.credits_per_unit, self.full_burst_s) {
            (Some(credits), ..) => credits,
            (_, Some(each), _) => each * units,
            (.., seconds) => seconds.unwrap_or(0.0) * (rate - baseline),
        };
        let quantity = |value| Quantity { value, source: self.rate.source.clone(), estimate: false };
        Some((quantity(rate), quantity(credits)))
    }
}

/// The step that a size belongs to; the last one where it is larger than all.
fn step(steps: &[(f64, f64)], units: f64) -> f64 {
    let found = steps.iter().find(|(size, _)| units <= *size).or(steps.last());
    found.map_or(0.0, |(_, value)| *value)
}

/// Of each range so many, at its own price.
fn in_bands(bands: &[(f64, f64)], amount: f64) -> f64 {
    let mut sum = 0.0;
    let mut from = 0.0;
    for (index, &(end, each)) in bands.iter().enumerate() {
        // The last price holds for what is beyond.
        let end = if index + 1 == bands.len() { f64::INFINITY } else { end };
        sum += (amount.min(end) - from).max(0.0) * each;
        from = end;
    }
    sum
}

/// Pairs whose first numbers grow.
fn steps(table: &mut TableReader<'_>, key: &'static str) -> Option<Vec<(f64, f64)>> {
    if !table.has(key) {
        return None;
    }
    let pairs =
        table.pairs(key, "pairs of the largest size of a range and its value, [[32, 120], [64, 240]]")?;
    let grows = pairs.windows(2).all(|pair| pair[0].0 < pair[1].0);
    let is_sound = pairs.iter().all(|(size, value)| *size > 0.0 && (0.0..1e15).contains(value));
    if pairs.is_empty() || !grows || !is_sound {
        let place = table.place_of(key);
        table.mistake_at(place, format!("`{key}` needs pairs in ascending order of their first number"));
        return None;
    }
    Some(pairs)
}

impl VolumeRules {
    /// `[volume]`; the outer `None` is for a mistake, the inner one for a medium that is no such volume.
    pub(super) fn read(root: &mut TableReader<'_>) -> Option<Option<VolumeRules>> {
        if !root.has("volume") {
            return Some(None);
        }
        let mut table =
            root.inside("volume", "[volume]", "how volumes of this kind are sold, by their size")?;
        let unit = table.choice("unit", SizeUnit::CHOICES);
        let smallest = table.number("smallest", 1e-3, 1e9);
        let largest = table.number("largest", 1e-3, 1e9);
        let source = table.source();
        let mut rate = |key| table.has(key).then(|| RateRule::read(&mut table, key));
        let (baseline_iops, baseline_mb_s) = (rate(BASELINE_IOPS), rate(BASELINE_MB_S));
        let mut burst = |key| table.has(key).then(|| BurstRule::read(&mut table, key));
        let (burst_iops, burst_mb_s) = (burst(BURST_IOPS), burst(BURST_MB_S));
        table.reject_unknown();
        if let (Some(smallest), Some(largest)) = (smallest, largest)
            && smallest > largest
        {
            table.mistake("`smallest` is above `largest`");
        }
        fn sound<T>(read: Option<Option<T>>) -> Option<Option<T>> {
            match read {
                None => Some(None),
                Some(rule) => rule.map(Some),
            }
        }
        Some(Some(VolumeRules {
            unit: unit?,
            smallest: smallest?,
            largest: largest?,
            source: source?,
            baseline_iops: sound(baseline_iops)?,
            baseline_mb_s: sound(baseline_mb_s)?,
            burst_iops: sound(burst_iops)?,
            burst_mb_s: sound(burst_mb_s)?,
            stated: Vec::new(),
        }))
    }

    /// So many units are paid for a capacity.
    pub fn units(&self, capacity_bytes: f64) -> f64 {
        (capacity_bytes / self.unit.bytes() - 1e-9).ceil().max(1.0)
    }

    /// The capacity of so many units.
    pub fn bytes(&self, units: f64) -> u64 {
        (units * self.unit.bytes()) as u64
    }

    /// Why no volume of this capacity is sold.
    pub fn size_refusal(&self, capacity_bytes: f64) -> Option<String> {
        let units = capacity_bytes / self.unit.bytes();
        let is_sold = (self.smallest - 1e-9..=self.largest + 1e-9).contains(&units);
        (!is_sold).then(|| format!("the provider sells {}", self.sizes()))
    }

    /// `from 1 to 16,384 GiB`
    pub fn sizes(&self) -> String {
        format!("from {} to {} {}", plain_number(self.smallest), plain_number(self.largest), self.unit.name())
    }

    /// The same volume with as many units as the capacity takes: its rates, unless stated by hand, and its rent.
    ///
    /// # Errors
    /// Why no such volume is sold.
    pub(super) fn resize(&self, medium: &mut Medium, capacity_bytes: u64) -> Result<(), String> {
        let capacity = capacity_bytes as f64;
        if let Some(why) = self.size_refusal(capacity) {
            return Err(why);
        }
        let units = self.units(capacity);
        if let ModelParameters::Cloud(volume) = &mut medium.model {
            let own: Stated = RULED
                .into_iter()
                .filter(|key| self.stated.iter().any(|stated| stated == key))
                .filter_map(|key| Some((key, value_of(volume, key)?)))
                .collect();
            let mut derived = self.derived(units, &own);
            for (key, place) in
                [(BASELINE_IOPS, &mut volume.baseline_iops), (BASELINE_MB_S, &mut volume.baseline_mb_s)]
            {
                if let Some(quantity) = derived.remove(key) {
                    *place = quantity;
                }
            }
            for (key, place) in [
                (BURST_IOPS, &mut volume.burst_iops),
                (IO_CREDITS, &mut volume.io_credits),
                (BURST_MB_S, &mut volume.burst_mb_s),
                (THROUGHPUT_CREDITS_MB, &mut volume.throughput_credits_mb),
            ] {
                if !own.contains_key(key) {
                    *place = derived.remove(key);
                }
            }
            let rates = rates_of(volume);
            if let Some((_, why)) = self.refusals(units, &rates).into_iter().next() {
                return Err(why);
            }
            if let Some(rent) = &medium.price.rent {
                medium.price.usd = rent.usd(units, &rates);
            }
        }
        medium.capacity = Quantity { value: capacity, ..medium.capacity.clone() };
        // What is stated for every size may not go with what this one has.
        medium.problems().into_iter().next().map_or(Ok(()), Err)
    }

    /// What the rules give of the parameters that are not stated.
    pub(super) fn derived(&self, units: f64, stated: &Stated) -> Derived {
        let mut derived = Derived::new();
        let mut baseline = |key, rule: &Option<RateRule>, iops: f64| {
            let given = rule.as_ref().and_then(|rule| Some((rule.given(units, iops)?, rule.source.clone())));
            match (stated.get(key), given) {
                (Some(value), _) => Some(*value),
                (None, Some((value, source))) => {
                    derived.insert(key, Quantity { value, source, estimate: false });
                    Some(value)
                }
                (None, None) => None,
            }
        };
        let iops = baseline(BASELINE_IOPS, &self.baseline_iops, 0.0);
        let mb_s = baseline(BASELINE_MB_S, &self.baseline_mb_s, iops.unwrap_or(0.0));
        for (rule, baseline, rate_key, credits_key) in [
            (&self.burst_iops, iops, BURST_IOPS, IO_CREDITS),
            (&self.burst_mb_s, mb_s, BURST_MB_S, THROUGHPUT_CREDITS_MB),
        ] {
            let Some((rate, credits)) = rule.as_ref().and_then(|rule| rule.given(units, baseline?)) else {
                continue;
            };
            for (key, quantity) in [(rate_key, rate), (credits_key, credits)] {
                if !stated.contains_key(key) {
                    derived.insert(key, quantity);
                }
            }
        }
        derived
    }

    /// What of the final rates the provider does not sell: the parameter, and why.
    pub(super) fn refusals(&self, units: f64, rates: &Stated) -> Vec<(&'static str, String)> {
        let iops = rates.get(BASELINE_IOPS).copied().unwrap_or(0.0);
        let rules = [(BASELINE_IOPS, &self.baseline_iops, false), (BASELINE_MB_S, &self.baseline_mb_s, true)];
        let refused = rules.into_iter().filter_map(|(key, rule, in_mib)| {
            let rate = *rates.get(key)?;
            let words = Words { unit: self.unit.name(), in_mib };
            let why = rule.as_ref()?.refusal(rate, units, iops, &words)?;
            Some((key, format!("`{key}` is {}: {why}", plain_number(rate))))
        });
        refused.collect()
    }

    /// Every rule in words, with its source.
    pub fn describe(&self) -> Vec<String> {
        let mut lines = vec![format!("  sold {} [{}]", self.sizes(), self.source)];
        for (name, rule) in [(BASELINE_IOPS, &self.baseline_iops), (BASELINE_MB_S, &self.baseline_mb_s)] {
            lines.extend(
                rule.iter().map(|rule| format!("  {name} {} [{}]", rule.text(self.unit), rule.source)),
            );
        }
        for (name, rule) in [(BURST_IOPS, &self.burst_iops), (BURST_MB_S, &self.burst_mb_s)] {
            let Some(rule) = rule else { continue };
            let credits = match (rule.credits, rule.credits_per_unit, rule.full_burst_s) {
                (Some(credits), ..) => format!("{} credits", plain_number(credits)),
                (_, Some(each), _) => {
                    format!("{} credits for each {}", plain_number(each), self.unit.name())
                }
                (.., seconds) => format!("for {} s", plain_number(seconds.unwrap_or(0.0))),
            };
            let below = rule.below_size.map_or_else(String::new, |size| {
                format!(", below {} {}", plain_number(size), self.unit.name())
            });
            lines.push(format!(
                "  {name} {}, {credits}{below} [{}]",
                rule.rate.text(self.unit),
                rule.rate.source
            ));
        }
        lines
    }
}

impl Rent {
    /// The keys of `[price]` that say what a volume costs a month; `None` where there are none of them.
    pub(super) fn read(table: &mut TableReader<'_>) -> Option<Rent> {
        const KEYS: [&str; 4] =
            ["usd_per_unit_month", "usd_month_by_size", "usd_per_iops_month", "usd_per_mib_s_month"];
        // All of them are known, here or not.
        let present = KEYS.map(|key| table.has(key));
        if !present.contains(&true) {
            return None;
        }
        Some(Rent {
            usd_per_unit: table.optional_number("usd_per_unit_month", 0.0, 1e6),
            usd_by_size: steps(table, "usd_month_by_size"),
            usd_per_iops: steps(table, "usd_per_iops_month").unwrap_or_default(),
            usd_per_mib_s: steps(table, "usd_per_mib_s_month").unwrap_or_default(),
        })
    }

    /// For three years.
    pub(super) fn usd(&self, units: f64, rates: &Stated) -> f64 {
        let rate = |key| rates.get(key).copied().unwrap_or(0.0);
        let by_size = self.usd_by_size.as_ref().map_or(0.0, |steps| step(steps, units));
        let month = self.usd_per_unit.unwrap_or(0.0) * units
            + by_size
            + in_bands(&self.usd_per_iops, rate(BASELINE_IOPS))
            + in_bands(&self.usd_per_mib_s, rate(BASELINE_MB_S) / MIB);
        // To the cent, as it is billed.
        (month * RENT_MONTHS * 100.0).round() / 100.0
    }
}

fn value_of(volume: &CloudParameters, key: &str) -> Option<f64> {
    let optional = |quantity: &Option<Quantity>| quantity.as_ref().map(|quantity| quantity.value);
    match key {
        BASELINE_IOPS => Some(volume.baseline_iops.value),
        BASELINE_MB_S => Some(volume.baseline_mb_s.value),
        BURST_IOPS => optional(&volume.burst_iops),
        IO_CREDITS => optional(&volume.io_credits),
        BURST_MB_S => optional(&volume.burst_mb_s),
        THROUGHPUT_CREDITS_MB => optional(&volume.throughput_credits_mb),
        _ => None,
    }
}

/// What a volume's price depends on.
pub(super) fn rates_of(volume: &CloudParameters) -> Stated {
    [BASELINE_IOPS, BASELINE_MB_S].into_iter().filter_map(|key| Some((key, value_of(volume, key)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_of_several_ranges_is_the_sum_of_each() {
        let bands = [(3000.0, 0.0), (80_000.0, 0.005)];
        assert_eq!(in_bands(&bands, 1000.0), 0.0);
        assert_eq!(in_bands(&bands, 4000.0), 5.0);
        assert_eq!(in_bands(&[(32_000.0, 0.065), (64_000.0, 0.0455)], 40_000.0), 2_080.0 + 364.0);
        assert_eq!(in_bands(&[], 5.0), 0.0);
    }

    #[test]
    fn a_size_belongs_to_the_first_range_that_holds_it() {
        let steps = [(32.0, 120.0), (64.0, 240.0), (128.0, 500.0)];
        for (units, expected) in [(1.0, 120.0), (32.0, 120.0), (33.0, 240.0), (128.0, 500.0), (900.0, 500.0)]
        {
            assert_eq!(step(&steps, units), expected, "{units}");
        }
    }
}
