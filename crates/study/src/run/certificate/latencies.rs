//! Whether devices took as long as their models require, and how long programs waited for them.

use underlay_record::certificate_metrics::{DELIVERED_P50, DELIVERED_P99, MODELLED_P50, MODELLED_P99};
use underlay_record::{
    CertificateVerdict, Check, CheckId, DeviceActivity, Histogram, MetricRow, PathRecord, latency_in_words,
    path,
};

use super::{MEAN_TOLERANCE, slower_remedy, waits};

const P50_TOLERANCE: f64 = 0.10;
/// The median is compared with the model's at ranks this close to the middle. Half the requests may be writes that a
/// cache absorbs in 0.1 ms, and half may be flushes of 8 ms. The median then lies on the edge, where a single request
/// moves it by any amount.
const P50_RANKS: f64 = 0.05;
/// If one reply in a hundred is late, it delays one operation, which is little compared with the wait for a core. So
/// the tolerance is twice that of the middle.
const P99_TOLERANCE: f64 = 0.20;
/// The path cost may be this share of the mean modelled latency.
const FLOOR_SHARE: f64 = 0.10;
/// A latency this close to the path cost is lost in it; such a difference is not an error of the model.
const FLOOR_SLACK: f64 = 1.0;

/// The latencies of all modelled devices together.
pub(super) struct DeviceLatencies {
    modelled: Histogram,
    /// Programs' waits, as far as known.
    delivered: Histogram,
    pub(super) any_modelled: bool,
}

impl DeviceLatencies {
    pub(super) fn new(devices: &[DeviceActivity], paths: &[PathRecord]) -> DeviceLatencies {
        let mut modelled = Histogram::default();
        let mut delivered = Histogram::default();
        let mut any_modelled = false;
        for device in devices {
            if let (Some(asked), Some(got)) = (&device.modelled, &device.delivered) {
                any_modelled = true;
                modelled.merge(asked);
                delivered.merge(got);
            }
        }
        // The actual path cost under the cell's own load, not just the assumed one.
        let delivered = path::waited(paths, &delivered).unwrap_or(delivered);
        DeviceLatencies { modelled, delivered, any_modelled }
    }

    /// How late requests are by what this check compares, in modelled time. A few may be late by any amount when CPU
    /// time is short, so p99 uses the mean's lateness.
    pub(super) fn late_us(&self, check: CheckId) -> Option<f64> {
        match check {
            CheckId::DeviceLatencyMean | CheckId::DeviceLatencyP99 => {
                Some(self.delivered.mean_us() - self.modelled.mean_us())
            }
            CheckId::DeviceLatencyP50 => Some(self.delivered.quantile_us(0.5) - self.modelled_median_us()),
            _ => None,
        }
    }

    /// By how much this check was missed, in modelled time. This shows whether it depends on the slow-motion factor.
    pub(super) fn missed_us(&self, check: CheckId) -> Option<f64> {
        match check {
            CheckId::DeviceLatencyP99 => {
                Some(self.delivered.quantile_us(0.99) - self.modelled.quantile_us(0.99))
            }
            _ => self.late_us(check),
        }
    }

    /// The modelled latency to compare the delivered median with: among those near the middle, the one closest to it.
    fn modelled_median_us(&self) -> f64 {
        let quantile_us = |rank: f64| self.modelled.quantile_us(rank);
        self.delivered.quantile_us(0.5).clamp(quantile_us(0.5 - P50_RANKS), quantile_us(0.5 + P50_RANKS))
    }

    pub(super) fn requests(&self) -> u64 {
        self.modelled.count()
    }

    pub(super) fn checks(&self, paths: &[PathRecord], own_us: Option<f64>, time_scale: f64) -> Vec<Check> {
        let DeviceLatencies { modelled, delivered, .. } = self;
        let mut checks = Vec::new();
        if modelled.count() == 0 {
            return checks;
        }
        let slower = slower_remedy(time_scale);
        let floor_us = own_us.unwrap_or(0.0);
        let pairs = [
            (CheckId::DeviceLatencyMean, modelled.mean_us(), delivered.mean_us(), MEAN_TOLERANCE),
            (CheckId::DeviceLatencyP50, self.modelled_median_us(), delivered.quantile_us(0.5), P50_TOLERANCE),
            (
                CheckId::DeviceLatencyP99,
                modelled.quantile_us(0.99),
                delivered.quantile_us(0.99),
                P99_TOLERANCE,
            ),
        ];
        for (id, asked, got, tolerance) in pairs {
            let remedy = waits::remedy(paths, self.late_us(id).unwrap_or(0.0), time_scale, &slower);
            checks.push(latency_check(id, asked, got, tolerance, floor_us, &remedy));
        }
        checks.extend(waits::checks(paths, time_scale, &slower));
        if let Some(floor_us) = own_us {
            let share = floor_us / modelled.mean_us().max(f64::MIN_POSITIVE);
            let finding = format!(
                "the path to the device takes {} by itself, {:.1} % of the mean latency \
                 modelled (allowed: {:.0} %)",
                latency_in_words(floor_us),
                share * 100.0,
                FLOOR_SHARE * 100.0
            );
            checks.push(
                Check::new(CheckId::PathOverhead, share <= FLOOR_SHARE, finding)
                    .with_extent(share)
                    .with_remedy(&slower),
            );
        }
        checks
    }

    pub(super) fn verdict(&self, checks: &[Check]) -> CertificateVerdict {
        match (checks.iter().all(|check| check.passed), self.any_modelled) {
            (false, _) => CertificateVerdict::Doubtful,
            (true, true) => CertificateVerdict::Faithful,
            (true, false) => CertificateVerdict::RealStorage,
        }
    }

    /// None where no request was modelled.
    pub(super) fn metrics(&self) -> impl Iterator<Item = MetricRow> {
        let each = [
            (MODELLED_P50, &self.modelled, 0.5),
            (DELIVERED_P50, &self.delivered, 0.5),
            (MODELLED_P99, &self.modelled, 0.99),
            (DELIVERED_P99, &self.delivered, 0.99),
        ];
        each.into_iter()
            .filter(|(_, histogram, _)| histogram.count() > 0)
            .filter_map(|(described, histogram, quantile)| described.row(histogram.quantile_us(quantile)))
    }
}

fn latency_check(id: CheckId, asked: f64, got: f64, tolerance: f64, floor_us: f64, remedy: &str) -> Check {
    let error = if asked > 0.0 { got / asked - 1.0 } else { 0.0 };
    let within_floor = (got - asked).abs() <= floor_us * FLOOR_SLACK;
    let passed = error.abs() <= tolerance || within_floor;
    let note = if passed && error.abs() > tolerance { ", less than the path's own cost" } else { "" };
    let finding = format!(
        "modelled {}, delivered {}: {:+.1} % (allowed: {:.0} %){note}",
        latency_in_words(asked),
        latency_in_words(got),
        error * 100.0,
        tolerance * 100.0
    );
    Check::new(id, passed, finding).with_extent(error.abs()).with_remedy(remedy)
}
