//! A device's activity over a measurement: counters, latencies, and rates by interval.

use std::time::Duration;

use underlay_record::{DeviceSample, DeviceTotals, Histogram, LatencyBuckets};

use crate::inputs::{RequestTracer, TracedRequest};
use crate::medium::{ModelOperation, ModelRequest};
use crate::time::ModelTime;

/// A shorter interval would only measure the sampling.
const MIN_INTERVAL: Duration = Duration::from_millis(1);

/// Counts what a device does. All times are the model's.
#[derive(Debug)]
pub struct ActivityCounter {
    began: ModelTime,
    /// Up to where busy time and queue depth have been summed.
    seen: ModelTime,
    interval: Duration,
    /// Requests in flight.
    depth: u32,
    totals: DeviceTotals,
    modelled: Histogram,
    delivered: Histogram,
    series: Vec<DeviceSample>,
    /// The totals at the start of the running interval.
    interval_totals: DeviceTotals,
    interval_began: ModelTime,
    /// For glances while it counts: reading a histogram would keep the device waiting.
    answered: u64,
    modelled_ns: u64,
    delivered_ns: u64,
    modelled_buckets: LatencyBuckets,
    delivered_buckets: LatencyBuckets,
    /// A sample of the requests, while something is measured.
    tracer: RequestTracer,
    /// When the last request in flight was over.
    idle_since: Option<ModelTime>,
}

/// Running totals, cheap to take.
#[derive(Clone, Debug)]
pub struct ActivityTotals {
    /// Since counting began.
    pub since: Duration,
    pub totals: DeviceTotals,
    pub depth: u32,
    pub answered: u64,
    /// Latencies that the model asked for, summed up.
    pub modelled: Duration,
    /// Those from arrival to reply.
    pub delivered: Duration,
    pub modelled_buckets: LatencyBuckets,
    pub delivered_buckets: LatencyBuckets,
}

/// The result of `ActivityCounter::end`.
#[derive(Debug)]
pub struct ActivityMeasurement {
    pub duration: Duration,
    pub totals: DeviceTotals,
    pub series: Vec<DeviceSample>,
    pub modelled: Histogram,
    pub delivered: Histogram,
    /// Stretches of requests, none left out in each.
    pub trace: Vec<Vec<TracedRequest>>,
}

impl ActivityCounter {
    pub fn new(now: ModelTime) -> Self {
        ActivityCounter {
            began: now,
            seen: now,
            interval: Duration::MAX,
            depth: 0,
            totals: DeviceTotals::default(),
            modelled: Histogram::default(),
            delivered: Histogram::default(),
            series: Vec::new(),
            interval_totals: DeviceTotals::default(),
            interval_began: now,
            answered: 0,
            modelled_ns: 0,
            delivered_ns: 0,
            modelled_buckets: LatencyBuckets::default(),
            delivered_buckets: LatencyBuckets::default(),
            tracer: RequestTracer::default(),
            idle_since: None,
        }
    }

    /// Starts over; requests in flight stay counted in the queue depth.
    pub fn begin(&mut self, now: ModelTime, interval: Duration) {
        let depth = self.depth;
        let now = now.max(self.seen);
        *self = ActivityCounter { depth, interval: interval.max(MIN_INTERVAL), ..ActivityCounter::new(now) };
    }

    /// Notes a request that is about to arrive, for the trace of a measurement.
    pub fn note(&mut self, request: &ModelRequest, now: ModelTime) {
        if self.interval != Duration::MAX {
            let idle_ns =
                self.idle_since.map_or(0, |idle_since| now.duration_since(idle_since).as_nanos() as u64);
            self.tracer.note(request, self.depth, idle_ns);
        }
    }

    pub fn arrived(&mut self, now: ModelTime) {
        self.advance(now);
        self.depth += 1;
    }

    /// A request is over; `modelled` is what its model asked for, absent without one.
    pub fn replied(
        &mut self,
        now: ModelTime,
        operation: ModelOperation,
        length_bytes: u64,
        modelled: Option<Duration>,
        delivered: Duration,
    ) {
        self.advance(now);
        self.depth = self.depth.saturating_sub(1);
        if self.depth == 0 {
            self.idle_since = Some(now);
        }
        match operation {
            ModelOperation::Read => {
                self.totals.reads += 1;
                self.totals.read_bytes += length_bytes;
            }
            ModelOperation::Write => {
                self.totals.writes += 1;
                self.totals.write_bytes += length_bytes;
            }
            ModelOperation::Flush => self.totals.flushes += 1,
            ModelOperation::Discard => self.totals.discards += 1,
        }
        self.answered += 1;
        let delivered_ns = delivered.as_nanos() as u64;
        self.delivered_ns = self.delivered_ns.saturating_add(delivered_ns);
        if let Some(modelled) = modelled {
            let modelled_ns = modelled.as_nanos() as u64;
            self.modelled_ns = self.modelled_ns.saturating_add(modelled_ns);
            self.modelled_buckets.record_ns(modelled_ns);
            self.modelled.record_ns(modelled_ns);
        }
        self.delivered_buckets.record_ns(delivered_ns);
        self.delivered.record_ns(delivered_ns);
    }

    /// A request is no longer waited for: its device went from under it.
    pub fn abandoned(&mut self, now: ModelTime) {
        self.advance(now);
        self.depth = self.depth.saturating_sub(1);
    }

    /// Closes the measurement; counting goes on without sampling.
    pub fn end(&mut self, now: ModelTime) -> ActivityMeasurement {
        self.advance(now);
        let now = now.max(self.seen);
        // The last stretch is a sample when it is long enough for its rates to mean something.
        if self.interval != Duration::MAX && now.duration_since(self.interval_began) * 2 >= self.interval {
            self.close_interval(now);
        }
        let depth = self.depth;
        let ended = std::mem::replace(self, ActivityCounter { depth, ..ActivityCounter::new(now) });
        ActivityMeasurement {
            duration: now.duration_since(ended.began),
            totals: ended.totals,
            series: ended.series,
            modelled: ended.modelled,
            delivered: ended.delivered,
            trace: ended.tracer.into_segments(),
        }
    }

    /// How it stands; counting goes on.
    pub fn glance(&mut self, now: ModelTime) -> ActivityTotals {
        self.advance(now);
        ActivityTotals {
            since: now.max(self.seen).duration_since(self.began),
            totals: self.totals,
            depth: self.depth,
            answered: self.answered,
            modelled: Duration::from_nanos(self.modelled_ns),
            delivered: Duration::from_nanos(self.delivered_ns),
            modelled_buckets: self.modelled_buckets.clone(),
            delivered_buckets: self.delivered_buckets.clone(),
        }
    }

    fn advance(&mut self, now: ModelTime) {
        while self.interval != Duration::MAX {
            let boundary = self.interval_began + self.interval;
            if now < boundary {
                break;
            }
            self.integrate(boundary);
            self.close_interval(boundary);
        }
        self.integrate(now);
    }

    fn integrate(&mut self, now: ModelTime) {
        let span_us = now.duration_since(self.seen).as_secs_f64() * 1e6;
        if self.depth > 0 {
            self.totals.busy_us += span_us;
        }
        self.totals.queue_us += span_us * f64::from(self.depth);
        self.seen = self.seen.max(now);
    }

    fn close_interval(&mut self, end: ModelTime) {
        let span_s = end.duration_since(self.interval_began).as_secs_f64();
        let (now, then) = (&self.totals, &self.interval_totals);
        self.series.push(DeviceSample {
            t_s: end.duration_since(self.began).as_secs_f64(),
            read_iops: (now.reads - then.reads) as f64 / span_s,
            write_iops: (now.writes - then.writes) as f64 / span_s,
            read_bytes_per_s: (now.read_bytes - then.read_bytes) as f64 / span_s,
            write_bytes_per_s: (now.write_bytes - then.write_bytes) as f64 / span_s,
            queue_depth: (now.queue_us - then.queue_us) / span_s / 1e6,
            busy: ((now.busy_us - then.busy_us) / span_s / 1e6).clamp(0.0, 1.0),
        });
        self.interval_totals = self.totals;
        self.interval_began = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> ModelTime {
        ModelTime::from_ns(ms * 1_000_000)
    }

    #[test]
    fn samples_split_busy_time_and_depth_at_the_interval() {
        let mut activity = ActivityCounter::new(ModelTime::ZERO);
        activity.begin(ms(0), Duration::from_millis(100));
        activity.arrived(ms(50));
        activity.arrived(ms(150));
        let span = Duration::from_millis(100);
        activity.replied(ms(250), ModelOperation::Read, 4096, Some(span), span);
        activity.replied(ms(260), ModelOperation::Write, 8192, Some(span), span);
        let ended = activity.end(ms(300));
        let depths: Vec<f64> = ended.series.iter().map(|sample| sample.queue_depth).collect();
        let busy: Vec<f64> = ended.series.iter().map(|sample| sample.busy).collect();
        for (got, want) in depths.iter().zip([0.5, 1.5, 1.1]) {
            assert!((got - want).abs() < 1e-9, "{depths:?}");
        }
        for (got, want) in busy.iter().zip([0.5, 1.0, 0.6]) {
            assert!((got - want).abs() < 1e-9, "{busy:?}");
        }
        assert_eq!(ended.series.len(), 3);
        assert!((ended.series[2].read_iops - 10.0).abs() < 1e-9);
        assert_eq!((ended.totals.reads, ended.totals.write_bytes), (1, 8192));
        assert!((ended.totals.busy_us - 210_000.0).abs() < 1e-6);
    }

    #[test]
    fn activity_snapshot_changes_nothing() {
        let mut activity = ActivityCounter::new(ModelTime::ZERO);
        activity.begin(ms(0), Duration::from_millis(100));
        activity.arrived(ms(50));
        let under_way = activity.glance(ms(150));
        assert_eq!(
            (under_way.depth, under_way.answered, under_way.since),
            (1, 0, Duration::from_millis(150))
        );
        assert!((under_way.totals.queue_us - 1e5).abs() < 1e-6);
        activity.replied(
            ms(200),
            ModelOperation::Read,
            4096,
            Some(Duration::from_millis(140)),
            Duration::from_millis(150),
        );
        let answered = activity.glance(ms(220));
        assert_eq!((answered.depth, answered.answered, answered.totals.reads), (0, 1, 1));
        assert_eq!(
            (answered.modelled, answered.delivered),
            (Duration::from_millis(140), Duration::from_millis(150))
        );
        let half_us = |buckets: &LatencyBuckets| buckets.sparse().quantile_us(0.5).unwrap();
        assert!((half_us(&answered.modelled_buckets) / 140e3 - 1.0).abs() < 0.07);
        assert!((half_us(&answered.delivered_buckets) / 150e3 - 1.0).abs() < 0.07);
        let ended = activity.end(ms(300));
        assert_eq!((ended.totals.reads, ended.series.len()), (1, 3));
    }

    #[test]
    fn beginning_anew_keeps_what_is_under_way() {
        let mut activity = ActivityCounter::new(ModelTime::ZERO);
        activity.arrived(ms(1));
        activity.begin(ms(10), Duration::from_millis(10));
        let ended = activity.end(ms(30));
        assert_eq!(ended.series.len(), 2);
        assert!(ended.series.iter().all(|sample| sample.queue_depth == 1.0));
        assert_eq!(ended.totals.reads, 0);
    }
}
