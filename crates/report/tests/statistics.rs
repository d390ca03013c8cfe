//! The statistics against data whose truth is known.

mod fixture;

use fixture::noise::Noise;
use proptest::prelude::*;
use underlay_record::{Histogram, Latency, Measured, SeriesPoint};
use underlay_report::statistics::quantile::{design_effect, is_measurable, merged, quantile_us};
use underlay_report::statistics::ratio::{Difference, Ratio};
use underlay_report::statistics::series::mean_error;
use underlay_report::statistics::throughput::{mean_latency_us, throughput};
use underlay_report::statistics::{Estimate, StandardError, trend};

const SIMULATIONS: usize = 500;

/// A repetition whose intervals have the given rates, one second each.
fn repetition(rates: &[f64]) -> Measured {
    let series: Vec<SeriesPoint> = rates
        .iter()
        .enumerate()
        .map(|(index, rate)| SeriesPoint {
            t_s: (index + 1) as f64,
            operations: rate.round() as u64,
            throughput_per_s: *rate,
            mean_us: 8e6 / rate,
            ..SeriesPoint::default()
        })
        .collect();
    let operations = series.iter().map(|point| point.operations).sum();
    Measured {
        duration_s: rates.len() as f64,
        operations,
        throughput_per_s: operations as f64 / rates.len() as f64,
        series,
        ..Measured::default()
    }
}

fn share_covered(mut covers: impl FnMut(&mut Noise) -> bool) -> f64 {
    let mut noise = Noise::new(2024);
    (0..SIMULATIONS).filter(|_| covers(&mut noise)).count() as f64 / SIMULATIONS as f64
}

#[test]
fn the_interval_of_a_correlated_series_covers_its_mean() {
    for (count, correlation) in [(60, 0.0), (60, 0.5), (120, 0.7), (300, 0.9), (30, 0.3)] {
        let covered = share_covered(|noise| {
            let series = mean_error(&noise.ar1(count, correlation)).expect("long enough");
            series.mean.abs() <= series.error.half_width()
        });
        assert!((0.90..=0.995).contains(&covered), "{count} samples, correlation {correlation}: {covered}");
    }
}

#[test]
fn ignoring_the_correlation_would_not_cover() {
    let covered = share_covered(|noise| {
        let samples = noise.ar1(120, 0.7);
        let error = StandardError::between(&samples).expect("two samples");
        samples.iter().sum::<f64>().abs() / 120.0 <= error.half_width()
    });
    assert!(covered < 0.75, "the test data would not tell a corrected interval from a naive one: {covered}");
}

#[test]
fn the_interval_of_a_throughput_covers_it_with_and_without_a_spread_of_repetitions() {
    // Two repetitions can hardly show their spread; the report says so of such a run.
    for (spread, repetitions, least) in [(0.0, 3, 0.92), (0.05, 3, 0.89), (0.05, 5, 0.92), (0.02, 2, 0.80)] {
        let covered = share_covered(|noise| {
            let measured: Vec<Measured> = (0..repetitions)
                .map(|_| {
                    let level = 10_000.0 * (1.0 + spread * noise.normal());
                    let rates: Vec<f64> =
                        noise.ar1(60, 0.5).iter().map(|x| level * (1.0 + 0.03 * x)).collect();
                    repetition(&rates)
                })
                .collect();
            let all: Vec<&Measured> = measured.iter().collect();
            throughput(&all).expect("measured").interval.expect("an interval").contains(10_000.0)
        });
        assert!(covered >= least, "spread {spread}, {repetitions} repetitions: {covered}");
    }
}

#[test]
fn equal_storages_differ_seldom_and_unequal_ones_show() {
    let cell = |noise: &mut Noise, level: f64| {
        let measured: Vec<Measured> = (0..3)
            .map(|_| {
                let rates: Vec<f64> = noise.ar1(60, 0.5).iter().map(|x| level * (1.0 + 0.03 * x)).collect();
                repetition(&rates)
            })
            .collect();
        throughput(&measured.iter().collect::<Vec<_>>()).expect("measured")
    };
    let called_equal = share_covered(|noise| {
        let ratio = Ratio::of(&cell(noise, 5_000.0), &cell(noise, 5_000.0)).expect("both positive");
        ratio.difference() == Difference::NoneSeen
    });
    assert!(called_equal >= 0.91, "{called_equal}");
    let called_more = share_covered(|noise| {
        let ratio = Ratio::of(&cell(noise, 6_000.0), &cell(noise, 5_000.0)).expect("both positive");
        ratio.difference() == Difference::More
    });
    assert!(called_more >= 0.99, "{called_more}");
}

#[test]
fn the_interval_of_a_quantile_covers_it() {
    // Exponential with a mean of 1 ms: its quantiles are −ln(1 − q) ms.
    for (quantile, truth) in [(0.5, 693.1), (0.99, 4605.2), (0.999, 6907.8)] {
        let mut noise = Noise::new(5);
        let simulations = 200;
        let covered = (0..simulations)
            .filter(|_| {
                let mut histogram = Histogram::default();
                for _ in 0..20_000 {
                    histogram.record_ns((-noise.uniform().ln() * 1e6) as u64);
                }
                let measured = Measured { latency: Latency::of(histogram.clone()), ..Measured::default() };
                let estimate = quantile_us(&[&measured], &histogram, quantile).expect("enough operations");
                // The histogram itself rounds by up to 0.1 %.
                let interval = estimate.interval.expect("an interval");
                interval.low * 0.999 <= truth && truth <= interval.high * 1.001
            })
            .count() as f64
            / f64::from(simulations);
        assert!((0.90..=1.0).contains(&covered), "quantile {quantile}: {covered}");
    }
}

#[test]
fn operations_of_one_moment_count_as_fewer() {
    let mut noise = Noise::new(3);
    let mut histogram = Histogram::default();
    let mut series = Vec::new();
    for (index, x) in noise.ar1(60, 0.8).iter().enumerate() {
        let mean_us = 1000.0 * (1.0 + 0.3 * x).max(0.1);
        histogram.record_n_ns((mean_us * 1e3) as u64, 1000);
        series.push(SeriesPoint {
            t_s: index as f64 + 1.0,
            operations: 1000,
            mean_us,
            ..SeriesPoint::default()
        });
    }
    let correlated = Measured { latency: Latency::of(histogram), series, ..Measured::default() };
    assert!(design_effect(&[&correlated]) > 1000.0, "1,000 operations of an interval share one latency");
    let all = merged(&[&correlated]);
    let wide = quantile_us(&[&correlated], &all, 0.5).expect("measurable").interval.expect("an interval");
    let independent = Measured { series: Vec::new(), ..correlated.clone() };
    let narrow = quantile_us(&[&independent], &all, 0.5).expect("measurable").interval.expect("an interval");
    assert!(wide.high - wide.low > 3.0 * (narrow.high - narrow.low), "{wide:?} against {narrow:?}");
}

#[test]
fn a_trend_is_seen_and_noise_is_not() {
    let falsely = share_covered(|noise| {
        let steady: Vec<f64> = noise.ar1(60, 0.6).iter().map(|x| 1000.0 * (1.0 + 0.1 * x)).collect();
        trend::change(&steady).is_some()
    });
    assert!(falsely <= 0.04, "{falsely}");
    let rightly = share_covered(|noise| {
        let rising: Vec<f64> = noise
            .ar1(60, 0.5)
            .iter()
            .enumerate()
            .map(|(index, x)| 1000.0 * (0.8 + 0.4 * index as f64 / 59.0 + 0.05 * x))
            .collect();
        trend::change(&rising).is_some_and(|change| (change - 0.4).abs() < 0.15)
    });
    assert!(rightly >= 0.95, "{rightly}");
    assert_eq!(trend::change(&[]), None);
    assert_eq!(trend::change(&[0.0; 20]), None);
    assert_eq!(trend::change(&[5.0; 20]), None);
}

#[test]
fn what_can_not_be_told_is_absent() {
    assert!(throughput(&[]).is_none());
    assert!(mean_latency_us(&[&Measured::default()]).is_none());
    let brief = repetition(&[100.0, 110.0]);
    let estimate = throughput(&[&brief]).expect("it lasted");
    assert_eq!((estimate.value, estimate.interval), (105.0, None));
    assert!(!is_measurable(9_999, 0.999));
    assert!(is_measurable(10_000, 0.999));
    let mut few = Histogram::default();
    few.record_n_ns(1_000_000, 500);
    let measured = Measured { latency: Latency::of(few.clone()), ..Measured::default() };
    assert!(quantile_us(&[&measured], &few, 0.99).is_none());
    assert!(quantile_us(&[&measured], &few, 0.5).is_some());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Against the textbook: without correlation the error is s / √n.
    #[test]
    fn a_shuffled_series_has_the_textbook_error(seed in any::<u64>(), scale in 0.001f64..1e6) {
        let samples: Vec<f64> = Noise::new(seed).ar1(400, 0.0).iter().map(|x| scale * x).collect();
        let textbook = StandardError::between(&samples).expect("two samples").value;
        let found = mean_error(&samples).expect("long enough").error.value;
        prop_assert!((0.9..1.9).contains(&(found / textbook)), "{found} against {textbook}");
    }

    #[test]
    fn any_series_has_a_finite_error(samples in prop::collection::vec(-1e9f64..1e9, 0..80)) {
        match mean_error(&samples) {
            None => prop_assert!(samples.len() < 8),
            Some(series) => {
                prop_assert!(series.error.value.is_finite() && series.error.value >= 0.0);
                prop_assert!(series.effective_samples >= 1.0);
                prop_assert!(series.effective_samples <= samples.len() as f64 + 1e-9);
            }
        }
    }

    #[test]
    fn the_larger_error_rules(a in 0.0f64..10.0, b in 0.0f64..10.0, da in 1.0f64..1e3, db in 1.0f64..10.0) {
        let within = StandardError { value: a, degrees_of_freedom: da };
        let between = StandardError { value: b, degrees_of_freedom: db };
        let larger = StandardError::larger(Some(within), Some(between)).expect("both given");
        prop_assert_eq!(larger.value, a.max(b));
        prop_assert!(larger.degrees_of_freedom >= da.min(db) * 0.999);
        prop_assert!(larger.half_width() >= 1.95 * larger.value);
    }

    /// The ratio the other way round has the interval the other way round.
    #[test]
    fn a_ratio_and_its_inverse_agree(x in 1.0f64..1e6, y in 1.0f64..1e6, ex in 0.001f64..0.3, ey in 0.001f64..0.3) {
        let estimate = |value: f64, relative: f64| {
            Estimate::with_error(value, StandardError { value: value * relative, degrees_of_freedom: 12.0 })
        };
        let there = Ratio::of(&estimate(x, ex), &estimate(y, ey)).expect("positive");
        let back = Ratio::of(&estimate(y, ey), &estimate(x, ex)).expect("positive");
        let (a, b) = (there.interval.expect("an interval"), back.interval.expect("an interval"));
        prop_assert!((a.low * b.high - 1.0).abs() < 1e-9 && (a.high * b.low - 1.0).abs() < 1e-9);
        prop_assert!(a.contains(there.value));
    }

    /// Against a sorted list of the operations themselves.
    #[test]
    fn quantiles_are_those_of_the_sorted_operations(
        each in prop::collection::vec(prop::collection::vec(1_000u64..50_000_000, 40..120), 1..4),
        share in 0.05f64..0.75,
    ) {
        let repetitions: Vec<Measured> = each
            .iter()
            .map(|latencies| {
                let mut histogram = Histogram::default();
                latencies.iter().for_each(|ns| histogram.record_ns(*ns));
                Measured { latency: Latency::of(histogram), ..Measured::default() }
            })
            .collect();
        let refs: Vec<&Measured> = repetitions.iter().collect();
        let mut sorted: Vec<u64> = each.concat();
        sorted.sort_unstable();
        match quantile_us(&refs, &merged(&refs), share) {
            None => prop_assert!(sorted.len() as f64 * (1.0 - share) < 10.0),
            Some(estimate) => {
                let rank = ((sorted.len() as f64 * share).ceil() as usize).clamp(1, sorted.len());
                let around = [rank.saturating_sub(2), (rank).min(sorted.len() - 1)];
                let (low, high) = (sorted[around[0]] as f64 / 1e3, sorted[around[1]] as f64 / 1e3);
                prop_assert!(estimate.value >= low * 0.998 && estimate.value <= high * 1.002);
                let interval = estimate.interval.expect("an interval");
                prop_assert!(interval.low <= estimate.value && estimate.value <= interval.high);
            }
        }
    }
}
