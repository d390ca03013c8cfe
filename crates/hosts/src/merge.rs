//! Merging the results of several hosts.

use underlay_record::{
    GeneratorCost, IntegrityRecord, MeasuredWindow, OperationStats, Pauses, RecordedLatency, SeriesPoint,
};

/// How many error messages, and how many wrong values, are kept.
const MAX_SAMPLES: usize = 10;
/// How many processes that were stopped are kept.
const MAX_STOPPED: usize = 100;
/// The longest time series of a host.
const MAX_POINTS: usize = 20_000;

/// Counts are summed, histograms are merged, and rates are those of all operations over the longest time. In the time
/// series, percentiles are the highest of all hosts, since those of the whole can't be computed from those of its
/// parts.
pub fn merge(parts: &[MeasuredWindow]) -> MeasuredWindow {
    let mut whole = MeasuredWindow::default();
    for part in parts {
        whole.duration_s = whole.duration_s.max(part.duration_s);
        whole.wall_s = whole.wall_s.max(part.wall_s);
        whole.operations = whole.operations.saturating_add(part.operations);
        whole.errors = whole.errors.saturating_add(part.errors);
        whole.latency.histogram.merge(&part.latency.histogram);
        if let Some(part) = &part.integrity {
            let whole: &mut IntegrityRecord = whole.integrity.get_or_insert_default();
            whole.checked = whole.checked.saturating_add(part.checked);
            whole.mismatches = whole.mismatches.saturating_add(part.mismatches);
            add_samples(&mut whole.wrong_values, &part.wrong_values);
        }
        for (kind, stats) in &part.by_operation {
            add_operation(whole.by_operation.entry(kind.clone()).or_default(), stats);
        }
        add_samples(&mut whole.error_samples, &part.error_samples);
        let room = MAX_STOPPED.saturating_sub(whole.stopped_processes.len());
        whole.stopped_processes.extend(part.stopped_processes.iter().take(room).cloned());
    }
    summarise(&mut whole.latency);
    for stats in whole.by_operation.values_mut() {
        summarise(&mut stats.latency);
        summarise(&mut stats.service);
    }
    if whole.duration_s > 0.0 {
        whole.throughput_per_s = whole.operations as f64 / whole.duration_s;
    }
    whole.series = series(parts);
    whole.generator = generator(parts);
    whole
}

/// Each once.
fn add_samples<T: Clone + PartialEq>(whole: &mut Vec<T>, part: &[T]) {
    for sample in part {
        if whole.len() < MAX_SAMPLES && !whole.contains(sample) {
            whole.push(sample.clone());
        }
    }
}

fn summarise(latency: &mut RecordedLatency) {
    latency.us = latency.histogram.summary_us();
}

fn add_operation(whole: &mut OperationStats, part: &OperationStats) {
    whole.count = whole.count.saturating_add(part.count);
    whole.missing = whole.missing.saturating_add(part.missing);
    whole.throttled = whole.throttled.saturating_add(part.throttled);
    whole.errors = whole.errors.saturating_add(part.errors);
    whole.mismatches = whole.mismatches.saturating_add(part.mismatches);
    whole.latency.histogram.merge(&part.latency.histogram);
    whole.service.histogram.merge(&part.service.histogram);
}

/// One interval of the whole.
#[derive(Clone, Copy, Debug, Default)]
struct MergedInterval {
    point: SeriesPoint,
    sum_us: f64,
}

/// Intervals as wide as those of the host with the widest ones. Hosts start together, and widths differ only by powers
/// of two, so that each narrow interval lies within a wide one.
fn series(parts: &[MeasuredWindow]) -> Vec<SeriesPoint> {
    let all = |least: usize| {
        let long_enough = parts.iter().filter(move |part| part.series.len() >= least);
        long_enough.flat_map(|part| part.series.first().map(|first| first.t_s))
    };
    // The only interval of a host may be cut short.
    let widest_s = all(2).reduce(f64::max).or_else(|| all(1).reduce(f64::max));
    let Some(width_s) = widest_s.filter(|width_s| *width_s > 0.0) else { return Vec::new() };
    let mut intervals: Vec<MergedInterval> = Vec::new();
    for part in parts {
        let mut begin_s = 0.0;
        for one in &part.series {
            // By its middle, which rounding can't move across a bound. Limited, so that no worker's series
            // takes too much memory.
            let place = (((begin_s + one.t_s) / 2.0 / width_s) as usize).min(MAX_POINTS - 1);
            begin_s = one.t_s;
            if intervals.len() <= place {
                intervals.resize_with(place + 1, MergedInterval::default);
            }
            let interval = &mut intervals[place];
            interval.sum_us += one.mean_us * one.operations as f64;
            let whole = &mut interval.point;
            whole.t_s = whole.t_s.max(one.t_s);
            whole.operations = whole.operations.saturating_add(one.operations);
            whole.p50_us = whole.p50_us.max(one.p50_us);
            whole.p99_us = whole.p99_us.max(one.p99_us);
            whole.max_us = whole.max_us.max(one.max_us);
        }
    }
    let count = intervals.len();
    let mut begin_s = 0.0;
    for (number, interval) in (1..).zip(&mut intervals) {
        let point = &mut interval.point;
        // The last interval ends when the last host did.
        if number < count || point.t_s <= begin_s {
            point.t_s = number as f64 * width_s;
        }
        let operations = point.operations as f64;
        point.throughput_per_s = operations / (point.t_s - begin_s);
        if point.operations > 0 {
            point.mean_us = interval.sum_us / operations;
        }
        begin_s = point.t_s;
    }
    intervals.into_iter().map(|interval| interval.point).collect()
}

fn generator(parts: &[MeasuredWindow]) -> GeneratorCost {
    let figures = |figure: fn(&GeneratorCost) -> f64| parts.iter().map(move |part| figure(&part.generator));
    let ceilings: Option<Vec<f64>> = parts.iter().map(|part| part.generator.ceiling_per_s).collect();
    let lateness = parts.iter().filter_map(|part| part.generator.lateness_p99_us);
    let pauses = parts.iter().filter_map(|part| part.generator.pauses);
    GeneratorCost {
        cpu_cores: figures(|one| one.cpu_cores).sum(),
        machine_busy: figures(|one| one.machine_busy).fold(0.0, f64::max),
        ceiling_per_s: ceilings.filter(|each| !each.is_empty()).map(|each| each.iter().sum()),
        lateness_p99_us: lateness.reduce(f64::max),
        pauses: pauses.reduce(Pauses::worst),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use underlay_record::{Histogram, StoppedProcess};

    use super::*;

    fn measured(latencies_us: &[u64]) -> MeasuredWindow {
        let mut histogram = Histogram::default();
        latencies_us.iter().for_each(|&us| histogram.record_ns(us * 1000));
        let latency = RecordedLatency::new(histogram);
        let count = latencies_us.len() as u64;
        let stats = OperationStats {
            count,
            latency: latency.clone(),
            service: latency.clone(),
            ..OperationStats::default()
        };
        let mean_us = latencies_us.iter().sum::<u64>() as f64 / count.max(1) as f64;
        let throughput_per_s = count as f64 / 2.0;
        let point =
            SeriesPoint { t_s: 2.0, operations: count, throughput_per_s, mean_us, ..SeriesPoint::default() };
        MeasuredWindow {
            duration_s: 2.0,
            wall_s: 2.0,
            operations: count,
            throughput_per_s,
            latency,
            by_operation: [("read".to_owned(), stats)].into(),
            series: vec![point],
            ..MeasuredWindow::default()
        }
    }

    proptest! {
        /// However operations are spread over hosts, the whole is that of all of them on one.
        #[test]
        fn parts_of_a_run_are_the_run(
            latencies in prop::collection::vec(1u64..10_000_000, 1..100),
            hosts in 1usize..6,
        ) {
            let part = |host: usize| -> Vec<u64> {
                latencies.iter().copied().skip(host).step_by(hosts).collect()
            };
            let parts: Vec<MeasuredWindow> = (0..hosts).map(|host| measured(&part(host))).collect();
            let (found, expected) = (merge(&parts), measured(&latencies));
            prop_assert_eq!(&found.latency, &expected.latency);
            prop_assert_eq!(&found.by_operation, &expected.by_operation);
            prop_assert_eq!(found.operations, expected.operations);
            prop_assert!((found.throughput_per_s - expected.throughput_per_s).abs() < 1e-9);
            prop_assert!((found.series[0].mean_us / expected.series[0].mean_us - 1.0).abs() < 1e-9);
            prop_assert_eq!(found.series[0].operations, expected.series[0].operations);
        }

        /// Intervals of any widths: no operation of them is lost or counted twice, and they follow one another.
        #[test]
        fn intervals_are_merged_by_time(
            hosts in prop::collection::vec((0u32..4, prop::collection::vec(0u64..1000, 0..40)), 1..5),
        ) {
            let parts: Vec<MeasuredWindow> = hosts.iter().map(|(doublings, counts)| with_series(*doublings, counts)).collect();
            let series = merge(&parts).series;
            let expected: u64 = hosts.iter().flat_map(|(_, counts)| counts).sum();
            prop_assert_eq!(series.iter().map(|point| point.operations).sum::<u64>(), expected);
            prop_assert!(series.windows(2).all(|pair| pair[0].t_s < pair[1].t_s), "{:?}", series);
        }
    }

    /// Intervals of 20 ms, doubled so often.
    fn with_series(doublings: u32, counts: &[u64]) -> MeasuredWindow {
        let width_s = 0.02 * f64::from(1 << doublings);
        let point = |(number, &operations): (u32, &u64)| SeriesPoint {
            t_s: f64::from(number) * width_s,
            operations,
            throughput_per_s: operations as f64 / width_s,
            mean_us: 10.0,
            ..SeriesPoint::default()
        };
        MeasuredWindow { series: (1..).zip(counts).map(point).collect(), ..MeasuredWindow::default() }
    }

    #[test]
    fn narrow_intervals_lie_within_wide_ones() {
        let series = merge(&[with_series(0, &[1, 2, 3, 4]), with_series(1, &[10, 20])]).series;
        let found: Vec<(f64, u64, f64)> = series
            .iter()
            .map(|point| (point.t_s, point.operations, point.throughput_per_s.round()))
            .collect();
        assert_eq!(found, [(0.04, 13, 325.0), (0.08, 27, 675.0)]);
    }

    #[test]
    fn uncertainty_is_that_of_worst_host() {
        let mut parts = [measured(&[1]), measured(&[2])];
        parts[0].generator = GeneratorCost {
            cpu_cores: 0.5,
            machine_busy: 0.9,
            ceiling_per_s: Some(100.0),
            lateness_p99_us: Some(5.0),
            pauses: Some(Pauses { paused_wall_s: 1.0, ..Pauses::default() }),
        };
        parts[1].generator = GeneratorCost {
            cpu_cores: 0.75,
            machine_busy: 0.2,
            ceiling_per_s: Some(50.0),
            lateness_p99_us: None,
            pauses: Some(Pauses { paused_wall_s: 0.25, delayed_wall_s: 0.5, ..Pauses::default() }),
        };
        let client = StoppedProcess {
            name: "java".to_owned(),
            pid: 7,
            stopped_wall_s: 2.0,
            ..StoppedProcess::default()
        };
        parts[1].stopped_processes = vec![client.clone()];
        parts[1].error_samples = vec!["read: gone".to_owned()];
        parts[1].integrity =
            Some(IntegrityRecord { checked: 7, mismatches: 1, ..IntegrityRecord::default() });
        let whole = merge(&parts);
        assert_eq!(whole.integrity, parts[1].integrity);
        assert_eq!(whole.stopped_processes, [client]);
        let expected = GeneratorCost {
            cpu_cores: 1.25,
            machine_busy: 0.9,
            ceiling_per_s: Some(150.0),
            lateness_p99_us: Some(5.0),
            pauses: Some(Pauses { paused_wall_s: 1.0, delayed_wall_s: 0.5, ..Pauses::default() }),
        };
        assert_eq!((whole.generator, whole.error_samples), (expected, vec!["read: gone".to_owned()]));
        // Ceilings add up, so without one of them the sum is not known.
        parts[1].generator.ceiling_per_s = None;
        assert_eq!(merge(&parts).generator.ceiling_per_s, None);
        assert_eq!(merge(&[]), MeasuredWindow::default());
    }
}
