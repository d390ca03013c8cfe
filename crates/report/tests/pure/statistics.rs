//! The statistics against data whose truth is known.

use crate::fixture::noise::Noise;
use proptest::prelude::*;
use underlay_record::{Histogram, MeasuredWindow, RecordedLatency, SeriesPoint};
use underlay_report::statistics::multiple::holm;
use underlay_report::statistics::quantile::{design_effect, is_measurable, merged, quantile_us};
use underlay_report::statistics::ratio::{EstimateRatio, RatioDifference};
use underlay_report::statistics::series::mean_error;
use underlay_report::statistics::settling::{SettlingVerdict, settling};
use underlay_report::statistics::throughput::{mean_latency_us, throughput};
use underlay_report::statistics::{IntervalEstimate, StandardError, trend};

const SIMULATIONS: usize = 500;

/// A repetition whose intervals have the given rates, one second each.
fn repetition(rates: &[f64]) -> MeasuredWindow {
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
    MeasuredWindow {
        duration_s: rates.len() as f64,
        operations,
        throughput_per_s: operations as f64 / rates.len() as f64,
        series,
        ..MeasuredWindow::default()
    }
}

fn share_covered(mut covers: impl FnMut(&mut Noise) -> bool) -> f64 {
    let mut noise = Noise::new(2024);
    (0..SIMULATIONS).filter(|_| covers(&mut noise)).count() as f64 / SIMULATIONS as f64
}

#[test]
fn interval_of_correlated_series_covers_mean() {
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
fn throughput_interval_covers_true_value() {
    // Two repetitions can hardly show their spread; the report says so of such a run.
    for (spread, repetitions, least) in [(0.0, 3, 0.92), (0.05, 3, 0.89), (0.05, 5, 0.92), (0.02, 2, 0.80)] {
        let covered = share_covered(|noise| {
            let measured: Vec<MeasuredWindow> = (0..repetitions)
                .map(|_| {
                    let level = 10_000.0 * (1.0 + spread * noise.normal());
                    let rates: Vec<f64> =
                        noise.ar1(60, 0.5).iter().map(|x| level * (1.0 + 0.03 * x)).collect();
                    repetition(&rates)
                })
                .collect();
            let all: Vec<&MeasuredWindow> = measured.iter().collect();
            throughput(&all).expect("measured").interval.expect("an interval").contains(10_000.0)
        });
        assert!(covered >= least, "spread {spread}, {repetitions} repetitions: {covered}");
    }
}

#[test]
fn equal_storages_differ_seldom_and_unequal_ones_show() {
    let cell = |noise: &mut Noise, level: f64| {
        let measured: Vec<MeasuredWindow> = (0..3)
            .map(|_| {
                let rates: Vec<f64> = noise.ar1(60, 0.5).iter().map(|x| level * (1.0 + 0.03 * x)).collect();
                repetition(&rates)
            })
            .collect();
        throughput(&measured.iter().collect::<Vec<_>>()).expect("measured")
    };
    let called_equal = share_covered(|noise| {
        let ratio = EstimateRatio::new(&cell(noise, 5_000.0), &cell(noise, 5_000.0)).expect("both positive");
        ratio.difference() == RatioDifference::NoneSeen
    });
    assert!(called_equal >= 0.91, "{called_equal}");
    let called_more = share_covered(|noise| {
        let ratio = EstimateRatio::new(&cell(noise, 6_000.0), &cell(noise, 5_000.0)).expect("both positive");
        ratio.difference() == RatioDifference::More
    });
    assert!(called_more >= 0.99, "{called_more}");
}

/// Three repetitions of a cell of this throughput, which repetitions miss by 2 %.
fn cell_of(noise: &mut Noise, level: f64) -> IntervalEstimate {
    let measured: Vec<MeasuredWindow> = (0..3)
        .map(|_| {
            let level = level * (1.0 + 0.02 * noise.normal());
            let rates: Vec<f64> = noise.ar1(60, 0.5).iter().map(|x| level * (1.0 + 0.03 * x)).collect();
            repetition(&rates)
        })
        .collect();
    throughput(&measured.iter().collect::<Vec<_>>()).expect("measured")
}

#[test]
fn equal_runs_seldom_differ_in_any_cell() {
    let p_values = |noise: &mut Noise, cells: usize, factor: f64| -> Vec<f64> {
        (0..cells)
            .map(|_| {
                let [a, b] =
                    [1.0, factor].map(|factor| cell_of(noise, 5_000.0 * factor).widen_for_repetitions(3));
                EstimateRatio::p_value(&b, &a).expect("both have errors")
            })
            .collect()
    };
    let one_alarm = |p_values: &[f64]| p_values.iter().any(|p| *p < 0.05);
    let mut naive = 0;
    let falsely = share_covered(|noise| {
        let found = p_values(noise, 8, 1.0);
        naive += u32::from(one_alarm(&found));
        one_alarm(&holm(&found))
    });
    assert!(falsely <= 0.07, "{falsely} of pairs of runs show a difference that is none");
    assert!(
        f64::from(naive) > 0.08 * SIMULATIONS as f64,
        "uncorrected the test data would show as few: {naive}"
    );
    let rightly = share_covered(|noise| {
        let mut found = p_values(noise, 7, 1.0);
        found.extend(p_values(noise, 1, 1.6));
        holm(&found)[7] < 0.05
    });
    assert!(rightly >= 0.9, "{rightly}");
}

#[test]
fn p_value_below_five_percent_matches_interval() {
    let mut noise = Noise::new(9);
    for _ in 0..300 {
        let (a, b) = (cell_of(&mut noise, 5_000.0), cell_of(&mut noise, 5_200.0));
        let ratio = EstimateRatio::new(&b, &a).expect("both positive");
        let p = EstimateRatio::p_value(&b, &a).expect("both have errors");
        assert_eq!(p < 0.05, ratio.difference() != RatioDifference::NoneSeen, "{ratio:?} has {p}");
    }
    let bare = IntervalEstimate::bare(3.0);
    assert_eq!(EstimateRatio::p_value(&bare, &bare), None);
    let exact = IntervalEstimate::with_error(3.0, StandardError { value: 0.0, degrees_of_freedom: 2.0 });
    assert_eq!(EstimateRatio::p_value(&exact, &exact), Some(1.0));
}

#[test]
fn quantile_interval_covers_quantile() {
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
                let measured = MeasuredWindow {
                    latency: RecordedLatency::new(histogram.clone()),
                    ..MeasuredWindow::default()
                };
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
    let correlated =
        MeasuredWindow { latency: RecordedLatency::new(histogram), series, ..MeasuredWindow::default() };
    assert!(design_effect(&[&correlated]) > 1000.0, "1,000 operations of an interval share one latency");
    let all = merged(&[&correlated]);
    let wide = quantile_us(&[&correlated], &all, 0.5).expect("measurable").interval.expect("an interval");
    let independent = MeasuredWindow { series: Vec::new(), ..correlated.clone() };
    let narrow = quantile_us(&[&independent], &all, 0.5).expect("measurable").interval.expect("an interval");
    assert!(wide.high - wide.low > 3.0 * (narrow.high - narrow.low), "{wide:?} against {narrow:?}");
}

/// Rates of 1,000 with 5 % of correlated noise, after a beginning of `first` samples that is lower by `depth`, less so
/// towards its end.
fn warming(noise: &mut Noise, count: usize, first: usize, depth: f64, correlation: f64) -> Vec<f64> {
    let lack = |index: usize| if index < first { depth * (1.0 - index as f64 / first as f64) } else { 0.0 };
    noise
        .ar1(count, correlation)
        .iter()
        .enumerate()
        .map(|(index, sample)| 1_000.0 * (1.0 - lack(index)) + 50.0 * sample)
        .collect()
}

#[test]
fn warm_up_end_is_found() {
    for (count, first, correlation) in [(40, 8, 0.0), (40, 12, 0.3), (80, 20, 0.5)] {
        let found = share_covered(|noise| {
            match settling(&warming(noise, count, first, 0.7, correlation)).expect("long enough") {
                SettlingVerdict::WarmsUp { samples, difference } => {
                    (first / 2..=first + count / 8).contains(&samples) && (-0.7..-0.2).contains(&difference)
                }
                _ => false,
            }
        });
        assert!(
            found > 0.8,
            "{count} samples, {first} of them warming up, correlation {correlation}: {found}"
        );
    }
}

#[test]
fn steady_series_seldom_has_warm_up() {
    for (count, correlation) in [(40, 0.0), (40, 0.5), (80, 0.7)] {
        let alarms = share_covered(|noise| {
            settling(&warming(noise, count, 0, 0.0, correlation)) != Some(SettlingVerdict::Steady)
        });
        assert!(alarms < 0.04, "{count} samples, correlation {correlation}: {alarms}");
    }
}

#[test]
fn series_steady_only_at_end_never_settles() {
    let mut noise = Noise::new(3);
    assert_eq!(settling(&warming(&mut noise, 40, 30, 0.8, 0.0)), Some(SettlingVerdict::NeverSettles));
    assert_eq!(settling(&[5.0; 15]), None, "too short to tell");
    assert_eq!(settling(&[5.0; 40]), Some(SettlingVerdict::Steady));
    assert_eq!(settling(&[f64::NAN; 40]), None);
}

#[test]
fn trend_is_detected_and_noise_is_not() {
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
fn undetermined_statistics_are_absent() {
    assert!(throughput(&[]).is_none());
    assert!(mean_latency_us(&[&MeasuredWindow::default()]).is_none());
    let brief = repetition(&[100.0, 110.0]);
    let estimate = throughput(&[&brief]).expect("it lasted");
    assert_eq!((estimate.value, estimate.interval), (105.0, None));
    assert!(!is_measurable(9_999, 0.999));
    assert!(is_measurable(10_000, 0.999));
    let mut few = Histogram::default();
    few.record_n_ns(1_000_000, 500);
    let measured = MeasuredWindow { latency: RecordedLatency::new(few.clone()), ..MeasuredWindow::default() };
    assert!(quantile_us(&[&measured], &few, 0.99).is_none());
    assert!(quantile_us(&[&measured], &few, 0.5).is_some());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Against the textbook: without correlation the error is s / √n.
    #[test]
    fn shuffled_series_has_textbook_error(seed in any::<u64>(), scale in 0.001f64..1e6) {
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
    fn combined_error_is_the_larger_one(a in 0.0f64..10.0, b in 0.0f64..10.0, da in 1.0f64..1e3, db in 1.0f64..10.0) {
        let within_error = StandardError { value: a, degrees_of_freedom: da };
        let between = StandardError { value: b, degrees_of_freedom: db };
        let larger = StandardError::larger(Some(within_error), Some(between)).expect("both given");
        prop_assert_eq!(larger.value, a.max(b));
        prop_assert!(larger.degrees_of_freedom >= da.min(db) * 0.999);
        prop_assert!(larger.half_width() >= 1.95 * larger.value);
    }

    /// The ratio the other way round has the interval the other way round.
    #[test]
    fn ratio_and_its_inverse_agree(x in 1.0f64..1e6, y in 1.0f64..1e6, ex in 0.001f64..0.3, ey in 0.001f64..0.3) {
        let estimate = |value: f64, relative: f64| {
            IntervalEstimate::with_error(value, StandardError { value: value * relative, degrees_of_freedom: 12.0 })
        };
        let forward = EstimateRatio::new(&estimate(x, ex), &estimate(y, ey)).expect("positive");
        let back = EstimateRatio::new(&estimate(y, ey), &estimate(x, ex)).expect("positive");
        let (a, b) = (forward.interval.expect("an interval"), back.interval.expect("an interval"));
        prop_assert!((a.low * b.high - 1.0).abs() < 1e-9 && (a.high * b.low - 1.0).abs() < 1e-9);
        prop_assert!(a.contains(forward.value));
    }

    /// Against a sorted list of the operations themselves.
    #[test]
    fn quantiles_are_those_of_the_sorted_operations(
        each in prop::collection::vec(prop::collection::vec(1_000u64..50_000_000, 40..120), 1..4),
        share in 0.05f64..0.75,
    ) {
        let repetitions: Vec<MeasuredWindow> = each
            .iter()
            .map(|latencies| {
                let mut histogram = Histogram::default();
                latencies.iter().for_each(|ns| histogram.record_ns(*ns));
                MeasuredWindow { latency: RecordedLatency::new(histogram), ..MeasuredWindow::default() }
            })
            .collect();
        let refs: Vec<&MeasuredWindow> = repetitions.iter().collect();
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
