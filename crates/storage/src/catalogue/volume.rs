//! Volumes that are rented by size: their rates, bursts, bounds and price follow the capacity, by rules of the
//! provider.

mod rent;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::parameters::{CloudParameters, ModelParameters};
use super::quantity::{SET_BY_STUDY, SourcedQuantity};
use super::table::TableReader;
use super::{CatalogueMedium, plain_number};
pub use rent::{RENT_MONTHS, VolumeRent};

/// 1 MiB/s in the catalogue's million bytes a second.
const MIB: f64 = 1.048576;

/// The units of sizes, rates and prices.
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

/// A rate by the size of its volume: `included` plus what each unit and each of its IOPS adds, or a step for each range
/// of sizes; within bounds that hold for a rate that is bought, too.
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

/// A volume's bursts beyond its rate, and their credits. A volume whose rate is as high has no burst.
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
pub(super) type StatedParameters = BTreeMap<&'static str, f64>;
/// Those that its rules give.
pub(super) type DerivedParameters = BTreeMap<&'static str, SourcedQuantity>;

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

    /// The included rate of a volume of so many units; `None` where all of it is bought.
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

    /// Whether its user chooses the rate, within bounds. A rate that follows from size or IOPS is chosen only where the
    /// rule says how much of it is sold.
    fn is_bought(&self) -> bool {
        let has_ratio = self.most_per_unit.is_some() || self.most_per_iops.is_some();
        let follows = self.per_unit.is_some() || self.per_iops.is_some() || self.steps.is_some();
        let leaves_room = |included: f64| self.most.is_some_and(|most| most > included);
        has_ratio || !follows && self.included.is_none_or(leaves_room)
    }

    /// Why a volume of so many units can't have this rate.
    fn refusal(&self, rate: f64, units: f64, iops: f64, words: &RateWords<'_>) -> Option<String> {
        let is_above = |bound: f64| rate > bound * (1.0 + 1e-6);
        let RateWords { unit, in_mib } = words;
        let shown = |rate: f64| shown(rate, *in_mib);
        if let Some(least) = self.least.filter(|least| rate < least * (1.0 - 1e-6)) {
            return Some(format!("the provider's smallest is {}", shown(least)));
        }
        if let Some(most) = self.most.filter(|most| is_above(*most)) {
            return Some(format!("the provider sells up to {}", shown(most)));
        }
        if let Some(rule_rate) =
            self.given(units, iops).filter(|rule_rate| !self.is_bought() && differs(rate, *rule_rate))
        {
            return Some(format!(
                "the provider gives {} with {} {unit}, and sells no other rate",
                shown(rule_rate),
                plain_number(units)
            ));
        }
        // A rate that the price includes is there regardless of the ratio.
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

/// Whether a figure is another one, and not the same one as people round it.
fn differs(stated: f64, expected: f64) -> bool {
    (stated - expected).abs() > expected * 1e-3
}

/// How a rate is shown.
struct RateWords<'a> {
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
    fn given(&self, units: f64, baseline: f64) -> Option<(SourcedQuantity, SourcedQuantity)> {
        let rate = self.rate.given(units, 0.0).filter(|rate| *rate > baseline)?;
        if self.below_size.is_some_and(|size| units >= size) {
            return None;
        }
        let credits = match (self.credits, self.credits_per_unit, self.full_burst_s) {
            (Some(credits), ..) => credits,
            (_, Some(each), _) => each * units,
            (.., seconds) => seconds.unwrap_or(0.0) * (rate - baseline),
        };
        let quantity = |value| SourcedQuantity { value, source: self.rate.source.clone(), estimate: false };
        Some((quantity(rate), quantity(credits)))
    }
}

/// The step that a size belongs to; the last one where it is larger than all.
fn step(steps: &[(f64, f64)], units: f64) -> f64 {
    let found = steps.iter().find(|(size, _)| units <= *size).or(steps.last());
    found.map_or(0.0, |(_, value)| *value)
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
    pub(super) fn resize(&self, medium: &mut CatalogueMedium, capacity_bytes: u64) -> Result<(), String> {
        let capacity = capacity_bytes as f64;
        if let Some(reason) = self.size_refusal(capacity) {
            return Err(reason);
        }
        let units = self.units(capacity);
        if let ModelParameters::Cloud(volume) = &mut medium.model {
            let own: StatedParameters = RULED
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
            let refusals = self.refusals(units, &rates).into_iter().chain(self.burst_refusals(units, volume));
            if let Some((_, reason)) = refusals.into_iter().next() {
                return Err(reason);
            }
            if let Some(rent) = &medium.price.rent {
                medium.price.usd = rent.usd(units, &rates);
            }
        }
        medium.capacity = SourcedQuantity { value: capacity, ..medium.capacity.clone() };
        // Values stated for every size may contradict this size's.
        medium.problems().into_iter().next().map_or(Ok(()), Err)
    }

    /// The parameters that the rules give and the file does not state.
    pub(super) fn derived(&self, units: f64, stated: &StatedParameters) -> DerivedParameters {
        let mut derived = DerivedParameters::new();
        let mut baseline = |key, rule: &Option<RateRule>, iops: f64| {
            let rule_value =
                rule.as_ref().and_then(|rule| Some((rule.given(units, iops)?, rule.source.clone())));
            match (stated.get(key), rule_value) {
                (Some(value), _) => Some(*value),
                (None, Some((value, source))) => {
                    derived.insert(key, SourcedQuantity { value, source, estimate: false });
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

    /// Final rates that the provider does not sell: the parameter, and why.
    pub(super) fn refusals(&self, units: f64, rates: &StatedParameters) -> Vec<(&'static str, String)> {
        let iops = rates.get(BASELINE_IOPS).copied().unwrap_or(0.0);
        let rules = [(BASELINE_IOPS, &self.baseline_iops, false), (BASELINE_MB_S, &self.baseline_mb_s, true)];
        let refused = rules.into_iter().filter_map(|(key, rule, in_mib)| {
            let rate = *rates.get(key)?;
            let words = RateWords { unit: self.unit.name(), in_mib };
            let reason = rule.as_ref()?.refusal(rate, units, iops, &words)?;
            Some((key, format!("`{key}` is {}: {reason}", plain_number(rate))))
        });
        refused.collect()
    }

    /// Final bursts that the provider does not give: the parameter, and why. A burst follows from the size, and none is
    /// sold. Of one that `[model]` states and no rule speaks of, nothing is known.
    pub(super) fn burst_refusals(&self, units: f64, volume: &CloudParameters) -> Vec<(&'static str, String)> {
        let bursts = [
            (&self.burst_iops, BASELINE_IOPS, [BURST_IOPS, IO_CREDITS], ["IOPS", "credits"]),
            (&self.burst_mb_s, BASELINE_MB_S, [BURST_MB_S, THROUGHPUT_CREDITS_MB], ["MB/s", "MB of credits"]),
        ];
        let mut refused = Vec::new();
        for (rule, baseline_key, keys, units_of_keys) in bursts {
            let baseline = value_of(volume, baseline_key).unwrap_or(0.0);
            let expected = rule.as_ref().and_then(|rule| rule.given(units, baseline));
            let expected = expected.map(|(rate, credits)| [rate.value, credits.value]);
            for (index, key) in keys.into_iter().enumerate() {
                let Some(stated) = quantity_of(volume, key) else { continue };
                if rule.is_none() && stated.source != SET_BY_STUDY {
                    continue;
                }
                let size = format!("{} {}", plain_number(units), self.unit.name());
                let reason = match expected {
                    Some(expected) if differs(stated.value, expected[index]) => format!(
                        "the provider gives {} {} with {size}, and sells no other burst",
                        plain_number(expected[index]),
                        units_of_keys[index]
                    ),
                    Some(_) => continue,
                    None => format!("the provider gives no burst with {size}, and sells none"),
                };
                refused.push((key, format!("`{key}` is {}: {reason}", plain_number(stated.value))));
            }
        }
        refused
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

fn value_of(volume: &CloudParameters, key: &str) -> Option<f64> {
    quantity_of(volume, key).map(|quantity| quantity.value)
}

fn quantity_of<'a>(volume: &'a CloudParameters, key: &str) -> Option<&'a SourcedQuantity> {
    match key {
        BASELINE_IOPS => Some(&volume.baseline_iops),
        BASELINE_MB_S => Some(&volume.baseline_mb_s),
        BURST_IOPS => volume.burst_iops.as_ref(),
        IO_CREDITS => volume.io_credits.as_ref(),
        BURST_MB_S => volume.burst_mb_s.as_ref(),
        THROUGHPUT_CREDITS_MB => volume.throughput_credits_mb.as_ref(),
        _ => None,
    }
}

/// The rates that a volume's price depends on.
pub(super) fn rates_of(volume: &CloudParameters) -> StatedParameters {
    [BASELINE_IOPS, BASELINE_MB_S].into_iter().filter_map(|key| Some((key, value_of(volume, key)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_belongs_to_first_fitting_range() {
        let steps = [(32.0, 120.0), (64.0, 240.0), (128.0, 500.0)];
        for (units, expected) in [(1.0, 120.0), (32.0, 120.0), (33.0, 240.0), (128.0, 500.0), (900.0, 500.0)]
        {
            assert_eq!(step(&steps, units), expected, "{units}");
        }
    }
}
