//! The measured time cut into intervals: the answers in each, by kind of operation.
//!
//! Threads count for themselves and hand over their counts at an interval's end. All other latency results are sums of
//! these, so that each operation is counted in one place only.

use underlay_record::{Histogram, SeriesPoint};
use underlay_sync::{Mutex, MutexGuard};

use crate::mix::OperationKind;
use crate::run::latency_counts::LatencyCounts;

pub(crate) const KINDS: usize = OperationKind::ALL.len();
/// Threads hand over at least this often, so that 32 bits are enough for everything that one thread can do meanwhile.
const MAX_HOLD_NS: u64 = 10_000_000_000;

/// How the intervals are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IntervalCut {
    /// The window's length is known.
    Width { wall_ns: u64 },
    /// It ends with its operations: intervals begin short, and double as soon as there are `most` of them.
    Growing { first_wall_ns: u64, most: usize },
}

/// All threads' counts together. Locked once per thread and interval.
#[derive(Debug)]
pub(crate) struct IntervalSeries {
    begin_ns: u64,
    most: usize,
    inner: Mutex<ThreadIntervals>,
}

#[derive(Debug)]
struct ThreadIntervals {
    width_ns: u64,
    slots: Vec<IntervalSlot>,
    /// Due within the window, but not answered within it: operations in flight at its end, timeouts, and operations
    /// never sent.
    beyond: IntervalSlot,
    lateness: LatencyCounts<u64>,
}

/// One interval, by kind of operation.
#[derive(Debug, Default)]
struct IntervalSlot {
    kinds: [Option<Box<SlotKind>>; KINDS],
    /// Operations of all kinds that failed or were refused.
    failed: u64,
}

#[derive(Debug, Default)]
struct SlotKind {
    /// Latencies of operations that were due within the window.
    due: LatencyCounts<u64>,
    /// Latencies of operations that were due before it.
    early: Option<LatencyCounts<u64>>,
    /// Service times from the actual start; open loop only.
    service: Option<LatencyCounts<u64>>,
}

fn merge(source: &Option<LatencyCounts<u64>>, target: &mut Option<LatencyCounts<u64>>) {
    if let Some(source) = source {
        source.add_to(target.get_or_insert_default());
    }
}

impl IntervalSlot {
    fn absorb(&mut self, other: IntervalSlot) {
        self.failed += other.failed;
        for (mine, others) in self.kinds.iter_mut().zip(other.kinds) {
            match (mine.as_mut(), others) {
                (_, None) => {}
                (None, others) => *mine = others,
                (Some(mine), Some(others)) => {
                    others.due.add_to(&mut mine.due);
                    merge(&others.early, &mut mine.early);
                    merge(&others.service, &mut mine.service);
                }
            }
        }
    }
}

/// Everything of one kind of operation.
#[derive(Debug, Default)]
pub(crate) struct KindLatencies {
    /// For operations that were due within the window.
    pub latency: Histogram,
    /// For operations that were sent within the window; `None` in a closed loop.
    pub service: Option<Histogram>,
    /// How many operations were answered within the window.
    pub answered: u64,
}

/// One interval in its external form: the operations answered in it.
#[derive(Clone, Debug)]
pub struct IntervalLatencies {
    /// Wall time from the window's start.
    pub begin_ns: u64,
    pub length_ns: u64,
    pub kind: OperationKind,
    /// From the intended start.
    pub latency: Histogram,
    /// From the actual start; `None` in a closed loop, where it is the latency.
    pub service: Option<Histogram>,
}

/// One interval of the timeline, all kinds of operation together. Times are modelled.
#[derive(Clone, Debug, Default)]
pub struct TimelineInterval {
    /// From the window's start.
    pub begin_s: f64,
    pub end_s: f64,
    /// For operations answered in it, from their intended start.
    pub latency: Histogram,
    /// Operations that failed or were refused in it.
    pub failed: u64,
}

impl IntervalSeries {
    /// `begin_ns` is where the measured window begins.
    pub(crate) fn new(begin_ns: u64, cut: IntervalCut) -> Self {
        let (width_ns, most) = match cut {
            IntervalCut::Width { wall_ns } => (wall_ns.max(1), usize::MAX),
            IntervalCut::Growing { first_wall_ns, most } => (first_wall_ns.max(1), most.max(2)),
        };
        let intervals = ThreadIntervals {
            width_ns,
            slots: Vec::new(),
            beyond: IntervalSlot::default(),
            lateness: LatencyCounts::default(),
        };
        IntervalSeries { begin_ns, most, inner: Mutex::new(intervals) }
    }

    fn lock(&self) -> MutexGuard<'_, ThreadIntervals> {
        self.inner.lock()
    }

    /// The part of one thread.
    pub(crate) fn thread(&self) -> ThreadSeries<'_> {
        let width_ns = self.lock().width_ns;
        ThreadSeries {
            series: self,
            width_ns,
            interval: 0,
            edge_ns: self.begin_ns,
            kinds: Default::default(),
            lateness: None,
        }
    }

    /// The counts handed over for one kind; `None` if there were none.
    pub(crate) fn latencies(&self, kind: OperationKind) -> Option<KindLatencies> {
        let inner = self.lock();
        let mut all: Option<KindLatencies> = None;
        let in_window = inner.slots.iter().map(|slot| (slot, true));
        for (slot, answered) in in_window.chain([(&inner.beyond, false)]) {
            let Some(counts) = &slot.kinds[kind as usize] else { continue };
            let all = all.get_or_insert_default();
            counts.due.add_to_histogram(&mut all.latency);
            if let Some(service) = &counts.service {
                service.add_to_histogram(all.service.get_or_insert_default());
            }
            if answered {
                all.answered += counts.due.total() + counts.early.as_ref().map_or(0, LatencyCounts::total);
            }
        }
        all
    }

    /// How late operations were sent because of the generator itself.
    pub(crate) fn lateness(&self) -> Histogram {
        self.lock().lateness.histogram()
    }

    /// The intervals up to `end_ns`, where the window ended, each of `parts` parts. Latencies were recorded in modelled
    /// time; `dilation` converts wall time here.
    pub(crate) fn points(&self, end_ns: u64, dilation: f64, parts: u64) -> Vec<SeriesPoint> {
        let inner = self.lock();
        let spans = self.spans(&inner, end_ns, parts).into_iter();
        spans.map(|span| point(&span.latencies(), span.begin_ns, span.end_ns, dilation)).collect()
    }

    /// The same by single parts, with the failures in each.
    pub(crate) fn timeline(&self, end_ns: u64, dilation: f64) -> Vec<TimelineInterval> {
        let inner = self.lock();
        let modelled_s = |wall_ns: u64| wall_ns as f64 / 1e9 / dilation;
        let spans = self.spans(&inner, end_ns, 1).into_iter();
        let interval = |span: IntervalSpan<'_>| TimelineInterval {
            begin_s: modelled_s(span.begin_ns),
            end_s: modelled_s(span.end_ns),
            latency: span.latencies(),
            failed: span.slots.iter().map(|slot| slot.failed).sum(),
        };
        spans.map(interval).collect()
    }

    /// An operation failed, or was refused, at `end_ns`, which is within the window.
    pub(crate) fn add_failed(&self, end_ns: u64) {
        let mut inner = self.lock();
        let place = inner.place_of(end_ns.saturating_sub(self.begin_ns), self.most);
        inner.slot(place).failed += 1;
    }

    /// The intervals up to `end_ns` by kind of operation, for logs that keep all of them.
    pub(crate) fn intervals(&self, end_ns: u64) -> Vec<IntervalLatencies> {
        let inner = self.lock();
        let mut intervals = Vec::new();
        for span in self.spans(&inner, end_ns, 1) {
            for kind in OperationKind::ALL {
                let counts = || span.slots.iter().filter_map(|slot| slot.kinds[kind as usize].as_ref());
                if counts().next().is_none() {
                    continue;
                }
                let mut one = IntervalLatencies {
                    begin_ns: span.begin_ns,
                    length_ns: span.end_ns - span.begin_ns,
                    kind,
                    latency: Histogram::default(),
                    service: None,
                };
                for counts in counts() {
                    counts.due.add_to_histogram(&mut one.latency);
                    if let Some(early) = &counts.early {
                        early.add_to_histogram(&mut one.latency);
                    }
                    if let Some(service) = &counts.service {
                        service.add_to_histogram(one.service.get_or_insert_default());
                    }
                }
                intervals.push(one);
            }
        }
        intervals
    }

    fn spans<'a>(&self, inner: &'a ThreadIntervals, end_ns: u64, parts: u64) -> Vec<IntervalSpan<'a>> {
        let length_ns = end_ns.saturating_sub(self.begin_ns);
        if length_ns == 0 {
            return Vec::new();
        }
        // A last interval of less than half a width would say little, so it is merged with the previous one.
        let width_ns = inner.width_ns.saturating_mul(parts);
        let (whole, rest_ns) = (length_ns / width_ns, length_ns % width_ns);
        let joined = rest_ns == 0 || (rest_ns < width_ns / 2 && whole > 0);
        let count = (whole + u64::from(!joined)).max(1);
        let slots = |from: u64, to: u64| {
            let place = |number: u64| (number.saturating_mul(parts) as usize).min(inner.slots.len());
            &inner.slots[place(from)..place(to).max(place(from))]
        };
        let span = |index: u64| {
            let is_last = index + 1 == count;
            IntervalSpan {
                begin_ns: index * width_ns,
                end_ns: if is_last { length_ns } else { (index + 1) * width_ns },
                slots: slots(index, if is_last { u64::MAX } else { index + 1 }),
            }
        };
        (0..count).map(span).collect()
    }
}

/// One interval of the series, with its operations. Times count from the window's start.
struct IntervalSpan<'a> {
    begin_ns: u64,
    end_ns: u64,
    slots: &'a [IntervalSlot],
}

impl IntervalSpan<'_> {
    fn latencies(&self) -> Histogram {
        let mut latencies = Histogram::default();
        for counts in self.slots.iter().flat_map(|slot| slot.kinds.iter().flatten()) {
            counts.due.add_to_histogram(&mut latencies);
            if let Some(early) = &counts.early {
                early.add_to_histogram(&mut latencies);
            }
        }
        latencies
    }
}

fn point(latencies: &Histogram, begin_ns: u64, end_ns: u64, dilation: f64) -> SeriesPoint {
    let us = latencies.summary_us();
    SeriesPoint {
        t_s: end_ns as f64 / 1e9 / dilation,
        operations: us.count,
        // A modelled second lasts `dilation` wall seconds.
        throughput_per_s: us.count as f64 / ((end_ns - begin_ns) as f64 / 1e9) * dilation,
        mean_us: us.mean,
        p50_us: us.p50,
        p99_us: us.p99,
        max_us: us.max,
    }
}

/// One thread's counts since it last handed over.
#[derive(Debug)]
pub(crate) struct ThreadSeries<'a> {
    series: &'a IntervalSeries,
    width_ns: u64,
    interval: u64,
    /// Operations that end from this instant on belong to another interval.
    edge_ns: u64,
    kinds: [Option<Box<KindCounts>>; KINDS],
    lateness: Option<LatencyCounts<u32>>,
}

/// One thread's counts of one kind of operation.
#[derive(Debug, Default)]
pub(crate) struct KindCounts {
    /// Latencies of operations that were due and answered within the window.
    pub due: LatencyCounts<u32>,
    /// The rare ones, created when there are any.
    pub early: Option<LatencyCounts<u32>>,
    pub beyond: Option<LatencyCounts<u32>>,
    pub beyond_service: Option<LatencyCounts<u32>>,
    /// Service times of operations that were sent and answered within the window; open loop only.
    pub service: Option<LatencyCounts<u32>>,
}

impl ThreadSeries<'_> {
    /// Operations that end before this need no [`Self::advance_to`].
    pub(crate) fn edge_ns(&self) -> u64 {
        self.edge_ns
    }

    /// Must be called with the end of each operation that was answered within the window, before it is counted. True
    /// when that took time, because an interval was handed over.
    #[inline]
    pub(crate) fn advance_to(&mut self, end_ns: u64) -> bool {
        if end_ns < self.edge_ns {
            return false;
        }
        self.flush();
        // Cannot underflow, since only operations answered within the window arrive here.
        let offset_ns = end_ns - self.series.begin_ns;
        self.interval = offset_ns / self.width_ns;
        let interval_end_ns =
            self.series.begin_ns.saturating_add((self.interval + 1).saturating_mul(self.width_ns));
        self.edge_ns = interval_end_ns.min(end_ns.saturating_add(MAX_HOLD_NS));
        true
    }

    /// The counts of one kind.
    #[inline]
    pub(crate) fn kind(&mut self, kind: OperationKind) -> &mut KindCounts {
        self.kinds[kind as usize].get_or_insert_default()
    }

    /// An operation failed, or was refused, at `end_ns`, which is within the window.
    pub(crate) fn add_failed(&mut self, end_ns: u64) {
        self.series.add_failed(end_ns);
    }

    pub(crate) fn add_lateness(&mut self, ns: u64) {
        self.lateness.get_or_insert_default().add(ns);
    }

    /// Hands over the counts.
    pub(crate) fn flush(&mut self) {
        let mut inner = self.series.lock();
        // Widths only double, so this thread's interval lies within one of the present ones, however often other
        // threads have doubled them meanwhile.
        let place = inner.place_of(self.interval * self.width_ns, self.series.most);
        self.width_ns = inner.width_ns;
        for (index, counts) in self.kinds.iter_mut().enumerate() {
            let Some(counts) = counts else { continue };
            let has_service = counts.service.as_ref().is_some_and(|service| !service.is_empty());
            if !counts.due.is_empty() || counts.early.is_some() || has_service {
                let slot = inner.slot(place).kinds[index].get_or_insert_default();
                hand_over(&mut counts.due, &mut slot.due);
                hand_over_rare(&mut counts.early, &mut slot.early);
                if let Some(service) = &mut counts.service {
                    hand_over(service, slot.service.get_or_insert_default());
                }
            }
            if counts.beyond.is_some() || counts.beyond_service.is_some() {
                let slot = inner.beyond.kinds[index].get_or_insert_default();
                if let Some(mut beyond_window) = counts.beyond.take() {
                    hand_over(&mut beyond_window, &mut slot.due);
                }
                hand_over_rare(&mut counts.beyond_service, &mut slot.service);
            }
        }
        if let Some(lateness) = &mut self.lateness {
            hand_over(lateness, &mut inner.lateness);
        }
    }
}

fn hand_over(counts: &mut LatencyCounts<u32>, target: &mut LatencyCounts<u64>) {
    counts.add_to(target);
    counts.clear();
}

fn hand_over_rare(counts: &mut Option<LatencyCounts<u32>>, target: &mut Option<LatencyCounts<u64>>) {
    if let Some(mut counts) = counts.take() {
        hand_over(&mut counts, target.get_or_insert_default());
    }
}

impl ThreadIntervals {
    /// The interval of an instant this long after the window's start; intervals widen until there is room for it.
    fn place_of(&mut self, offset_ns: u64, most: usize) -> usize {
        while offset_ns / self.width_ns >= most as u64 {
            self.widen();
        }
        (offset_ns / self.width_ns) as usize
    }

    fn slot(&mut self, place: usize) -> &mut IntervalSlot {
        if self.slots.len() <= place {
            self.slots.resize_with(place + 1, IntervalSlot::default);
        }
        &mut self.slots[place]
    }

    fn widen(&mut self) {
        self.width_ns = self.width_ns.saturating_mul(2);
        let mut pairs = std::mem::take(&mut self.slots).into_iter();
        while let Some(mut first) = pairs.next() {
            if let Some(second) = pairs.next() {
                first.absorb(second);
            }
            self.slots.push(first);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(thread: &mut ThreadSeries<'_>, end_ns: u64, latency_ns: u64) {
        thread.advance_to(end_ns);
        thread.kind(OperationKind::Read).due.add(latency_ns);
    }

    #[test]
    fn interval_without_operations_is_zero_point() {
        let series = IntervalSeries::new(1_000, IntervalCut::Width { wall_ns: 1_000_000_000 });
        let mut thread = series.thread();
        record(&mut thread, 1_000, 5_000);
        record(&mut thread, 2_500_001_000, 7_000);
        thread.flush();
        let points = series.points(3_000_001_000, 1.0, 1);
        assert_eq!(points.iter().map(|point| point.operations).collect::<Vec<_>>(), [1, 0, 1]);
        assert_eq!(points[1], SeriesPoint { t_s: 2.0, ..SeriesPoint::default() });
    }

    #[test]
    fn timeline_is_finer_than_points_and_counts_failures() {
        let series = IntervalSeries::new(0, IntervalCut::Width { wall_ns: 1_000_000_000 });
        let mut thread = series.thread();
        for second in 0..8 {
            record(&mut thread, second * 1_000_000_000, 1_000);
        }
        thread.add_failed(5_500_000_000);
        thread.flush();
        let points = series.points(8_000_000_000, 2.0, 4);
        let shown: Vec<_> = points.iter().map(|point| (point.t_s, point.operations)).collect();
        assert_eq!(shown, [(2.0, 4), (4.0, 4)]);
        let timeline = series.timeline(8_000_000_000, 2.0);
        assert_eq!(timeline.len(), 8);
        assert_eq!((timeline[5].begin_s, timeline[5].end_s, timeline[5].failed), (2.5, 3.0, 1));
        assert_eq!(timeline.iter().map(|interval| interval.latency.count()).sum::<u64>(), 8);
    }

    #[test]
    fn slow_motion_is_divided_out() {
        let series = IntervalSeries::new(0, IntervalCut::Width { wall_ns: 1_000_000_000 });
        let mut thread = series.thread();
        for step in 0..100 {
            record(&mut thread, step * 10_000_000, 1_000);
        }
        thread.flush();
        let points = series.points(1_000_000_000, 4.0, 1);
        assert_eq!((points[0].t_s, points[0].throughput_per_s), (0.25, 400.0));
    }

    #[test]
    fn kinds_and_the_rare_ones_are_kept_apart() {
        let series = IntervalSeries::new(0, IntervalCut::Width { wall_ns: 1_000 });
        let mut thread = series.thread();
        thread.advance_to(100);
        let read = thread.kind(OperationKind::Read);
        read.due.add(10);
        read.early.get_or_insert_default().add(20);
        read.beyond.get_or_insert_default().add(30);
        read.service.get_or_insert_default().add(5);
        read.beyond_service.get_or_insert_default().add(6);
        thread.kind(OperationKind::Update).due.add(40);
        thread.add_lateness(7);
        assert!(thread.advance_to(1_000), "an interval is over");
        assert!(!thread.advance_to(1_001));
        thread.kind(OperationKind::Update).due.add(50);
        thread.flush();

        let values = |histogram: &Histogram| histogram.values_ns().collect::<Vec<_>>();
        let read = series.latencies(OperationKind::Read).unwrap();
        assert_eq!((values(&read.latency), read.answered), (vec![(10, 1), (30, 1)], 2));
        assert_eq!(values(&read.service.unwrap()), [(5, 1), (6, 1)]);
        let update = series.latencies(OperationKind::Update).unwrap();
        assert_eq!((values(&update.latency), update.answered), (vec![(40, 1), (50, 1)], 2));
        assert!(update.service.is_none() && series.latencies(OperationKind::Scan).is_none());
        assert_eq!(values(&series.lateness()), [(7, 1)]);
        let shown: Vec<_> = series
            .intervals(2_000)
            .iter()
            .map(|one| (one.begin_ns, one.length_ns, one.kind, values(&one.latency)))
            .collect();
        let expected = [
            (0, 1_000, OperationKind::Read, vec![(10, 1), (20, 1)]),
            (0, 1_000, OperationKind::Update, vec![(40, 1)]),
            (1_000, 1_000, OperationKind::Update, vec![(50, 1)]),
        ];
        assert_eq!(shown, expected);
        assert_eq!(series.points(2_000, 1.0, 1).iter().map(|one| one.operations).collect::<Vec<_>>(), [3, 1]);
    }

    proptest! {
        /// However often intervals double, and whichever thread flushes when, no operation is lost or counted twice.
        #[test]
        fn growing_intervals_keep_every_operation(
            gaps_ns in proptest::collection::vec(0u64..400_000, 1..300),
            most in 2usize..20,
        ) {
            let series = IntervalSeries::new(0, IntervalCut::Growing { first_wall_ns: 1_000, most });
            let mut threads = [series.thread(), series.thread(), series.thread()];
            let mut now_ns = 0;
            for (index, gap_ns) in gaps_ns.iter().enumerate() {
                now_ns += gap_ns;
                record(&mut threads[index % 3], now_ns, 1 + index as u64);
            }
            threads.iter_mut().for_each(ThreadSeries::flush);
            let points = series.points(now_ns + 1, 1.0, 1);
            prop_assert!(points.len() <= most);
            prop_assert_eq!(points.iter().map(|point| point.operations).sum::<u64>(), gaps_ns.len() as u64);
            let latencies = series.latencies(OperationKind::Read).unwrap();
            prop_assert_eq!(latencies.answered, gaps_ns.len() as u64);
            prop_assert_eq!(latencies.latency.count(), gaps_ns.len() as u64);
        }
    }
}
