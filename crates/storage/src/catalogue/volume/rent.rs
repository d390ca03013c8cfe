//! A volume's monthly rent.

use serde::{Deserialize, Serialize};
use underlay_record::RENT_YEARS;

use super::{BASELINE_IOPS, BASELINE_MB_S, MIB, StatedParameters, step, steps};
use crate::catalogue::table::TableReader;

/// The time that a rent is added up for, so that it can be compared with a price.
pub const RENT_MONTHS: f64 = 12.0 * RENT_YEARS as f64;

/// A volume's monthly rent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VolumeRent {
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

impl VolumeRent {
    /// The keys of `[price]` that say what a volume costs a month; `None` where there are none of them.
    pub(in crate::catalogue) fn read(table: &mut TableReader<'_>) -> Option<VolumeRent> {
        const KEYS: [&str; 4] =
            ["usd_per_unit_month", "usd_month_by_size", "usd_per_iops_month", "usd_per_mib_s_month"];
        // All of them are known, here or not.
        let present = KEYS.map(|key| table.has(key));
        if !present.contains(&true) {
            return None;
        }
        Some(VolumeRent {
            usd_per_unit: table.optional_number("usd_per_unit_month", 0.0, 1e6),
            usd_by_size: steps(table, "usd_month_by_size"),
            usd_per_iops: steps(table, "usd_per_iops_month").unwrap_or_default(),
            usd_per_mib_s: steps(table, "usd_per_mib_s_month").unwrap_or_default(),
        })
    }

    /// For three years.
    pub(in crate::catalogue) fn usd(&self, units: f64, rates: &StatedParameters) -> f64 {
        let rate = |key| rates.get(key).copied().unwrap_or(0.0);
        let by_size = self.usd_by_size.as_ref().map_or(0.0, |steps| step(steps, units));
        let month = self.usd_per_unit.unwrap_or(0.0) * units
            + by_size
            + charge_bands(&self.usd_per_iops, rate(BASELINE_IOPS))
            + charge_bands(&self.usd_per_mib_s, rate(BASELINE_MB_S) / MIB);
        // To the cent, as it is billed.
        (month * RENT_MONTHS * 100.0).round() / 100.0
    }
}

/// Of each range so many, at its own price.
fn charge_bands(bands: &[(f64, f64)], amount: f64) -> f64 {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn banded_price_sums_each_range() {
        let bands = [(3000.0, 0.0), (80_000.0, 0.005)];
        assert_eq!(charge_bands(&bands, 1000.0), 0.0);
        assert_eq!(charge_bands(&bands, 4000.0), 5.0);
        assert_eq!(charge_bands(&[(32_000.0, 0.065), (64_000.0, 0.0455)], 40_000.0), 2_080.0 + 364.0);
        assert_eq!(charge_bands(&[], 5.0), 0.0);
    }
}
