//! The measured time cut into intervals: throughput and latency of each.

use std::sync::{Mutex, PoisonError};

use hdrhistogram::Histogram;
use underlay_record::SeriesPoint;

/// One hour, as in the totals.
const HIGHEST_NS: u64 = 3_600_000_000_000;
/// Two digits: an interval's percentiles are drawn, not compared, and every thread holds one of these.
const DIGITS: u8 = 2;

fn interval_histogram() -> Histogram<u32> {
    Histogram::new_with_bounds(1, HIGHEST_NS, DIGITS).expect("constant bounds are valid")
}

/// How the intervals are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The window's length is known.
    Width { wall_ns: u64 },
    /// It ends with its operations: intervals begin short and double as soon as there are `most` of them.
    Growing { first_wall_ns: u64, most: usize },
}

/// All threads' intervals together. Locked once a thread and interval.
#[derive(Debug)]
pub(crate) struct Series {
    begin_ns: u64,
    most: usize,
    inner: Mutex<Intervals>,
}

#[derive(Debug)]
struct Intervals {
    width_ns: u64,
    slots: Vec<Histogram<u32>>,
}

impl Series {
    /// `begin_ns` is where the measured window begins.
    pub fn new(begin_ns: u64, cut: Cut) -> Self {
        let (width_ns, most) = match cut {
            Cut::Width { wall_ns } => (wall_ns.max(1), usize::MAX),
            Cut::Growing { first_wall_ns, most } => (first_wall_ns.max(1), most.max(2)),
        };
        Series { begin_ns, most, inner: Mutex::new(Intervals { width_ns, slots: Vec::new() }) }
    }

    /// One thread's part.
    pub fn thread(&self) -> ThreadSeries<'_> {
        let width_ns = self.inner.lock().unwrap_or_else(PoisonError::into_inner).width_ns;
        ThreadSeries { series: self, width_ns, interval: 0, histogram: interval_histogram() }
    }

    /// The intervals up to `end_ns`, where the window ended. Latencies were recorded in modelled time; `dilation`
    /// turns wall time into it here.
    pub fn points(&self, end_ns: u64, dilation: f64) -> Vec<SeriesPoint> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let length_ns = end_ns.saturating_sub(self.begin_ns);
        if length_ns == 0 {
            return Vec::new();
        }
        // A last interval of less than half a width would say little: it is joined to the one before.
        let width_ns = inner.width_ns;
        let (whole, rest_ns) = (length_ns / width_ns, length_ns % width_ns);
        let joined = rest_ns == 0 || (rest_ns < width_ns / 2 && whole > 0);
        let count = (whole + u64::from(!joined)).max(1);
        let empty = interval_histogram();
        let mut points = Vec::new();
        for index in 0..count {
            let last = index + 1 == count;
            let begin_ns = index * width_ns;
            let finish_ns = if last { length_ns } else { begin_ns + width_ns };
            let mut histogram = inner.slots.get(index as usize).unwrap_or(&empty).clone();
            if last {
                for slot in inner.slots.iter().skip(index as usize + 1) {
                    histogram.add(slot).expect("equal bounds by construction");
                }
            }
            points.push(point(&histogram, finish_ns, finish_ns - begin_ns, dilation));
        }
        points
    }
}

fn point(histogram: &Histogram<u32>, finish_ns: u64, span_ns: u64, dilation: f64) -> SeriesPoint {
    let us = |ns: u64| if histogram.is_empty() { 0.0 } else { ns as f64 / 1e3 };
    SeriesPoint {
        t_s: finish_ns as f64 / 1e9 / dilation,
        operations: histogram.len(),
        throughput_per_s: histogram.len() as f64 / (span_ns as f64 / 1e9) * dilation,
        mean_us: if histogram.is_empty() { 0.0 } else { histogram.mean() / 1e3 },
        p50_us: us(histogram.value_at_quantile(0.5)),
        p99_us: us(histogram.value_at_quantile(0.99)),
        max_us: us(histogram.max()),
    }
}

/// One thread's current interval.
#[derive(Debug)]
pub(crate) struct ThreadSeries<'a> {
    series: &'a Series,
    width_ns: u64,
    interval: u64,
    histogram: Histogram<u32>,
}

impl ThreadSeries<'_> {
    /// An operation that ended at `end_ns`, within the window, after `latency_ns` of modelled time.
    pub fn record(&mut self, end_ns: u64, latency_ns: u64) {
        let offset_ns = end_ns - self.series.begin_ns;
        if offset_ns / self.width_ns != self.interval {
            self.flush();
            self.interval = offset_ns / self.width_ns;
        }
        self.histogram.saturating_record(latency_ns.max(1));
    }

    /// Hands the current interval over.
    pub fn flush(&mut self) {
        if self.histogram.is_empty() {
            // Others may have widened the intervals meanwhile: it does not matter, they nest.
            return;
        }
        let mut inner = self.series.inner.lock().unwrap_or_else(PoisonError::into_inner);
        // Widths only double, so this thread's interval lies within one of the present ones.
        let offset_ns = self.interval * self.width_ns;
        while offset_ns / inner.width_ns >= self.series.most as u64 {
            inner.widen();
        }
        let slot = (offset_ns / inner.width_ns) as usize;
        if inner.slots.len() <= slot {
            inner.slots.resize_with(slot + 1, interval_histogram);
        }
        inner.slots[slot].add(&self.histogram).expect("equal bounds by construction");
        self.width_ns = inner.width_ns;
        drop(inner);
        self.histogram.reset();
    }
}

impl Intervals {
    fn widen(&mut self) {
        self.width_ns = self.width_ns.saturating_mul(2);
        let mut pairs = std::mem::take(&mut self.slots).into_iter();
        while let Some(mut first) = pairs.next() {
            if let Some(second) = pairs.next() {
                first.add(&second).expect("equal bounds by construction");
            }
            self.slots.push(first);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_interval_without_operations_is_a_point_at_zero() {
        let series = Series::new(1_000, Cut::Width { wall_ns: 1_000_000_000 });
        let mut thread = series.thread();
        thread.record(1_000, 5_000);
        thread.record(2_500_001_000, 7_000);
        thread.flush();
        let points = series.points(3_000_001_000, 1.0);
        assert_eq!(points.iter().map(|point| point.operations).collect::<Vec<_>>(), [1, 0, 1]);
        assert_eq!(points[1], SeriesPoint { t_s: 2.0, ..SeriesPoint::default() });
    }

    #[test]
    fn slow_motion_is_divided_out() {
        let series = Series::new(0, Cut::Width { wall_ns: 1_000_000_000 });
        let mut thread = series.thread();
        for step in 0..100 {
            thread.record(step * 10_000_000, 1_000);
        }
        thread.flush();
        let points = series.points(1_000_000_000, 4.0);
        assert_eq!((points[0].t_s, points[0].throughput_per_s), (0.25, 400.0));
    }

    proptest! {
        /// However often intervals double, and whichever thread flushes when, no operation is lost or counted twice.
        #[test]
        fn growing_intervals_keep_every_operation(
            gaps_ns in proptest::collection::vec(0u64..400_000, 1..300),
            most in 2usize..20,
        ) {
            let series = Series::new(0, Cut::Growing { first_wall_ns: 1_000, most });
            let mut threads = [series.thread(), series.thread(), series.thread()];
            let mut now_ns = 0;
            for (index, gap_ns) in gaps_ns.iter().enumerate() {
                now_ns += gap_ns;
                threads[index % 3].record(now_ns, 1 + index as u64);
            }
            threads.iter_mut().for_each(ThreadSeries::flush);
            let points = series.points(now_ns + 1, 1.0);
            prop_assert!(points.len() <= most);
            prop_assert_eq!(points.iter().map(|point| point.operations).sum::<u64>(), gaps_ns.len() as u64);
        }
    }
}
