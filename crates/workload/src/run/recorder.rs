//! The records of one thread, and the merged result of all threads.

use std::collections::BTreeMap;

use underlay_record::{Histogram, IntegrityRecord, OperationStats, RecordedLatency, WrongValue};
use underlay_sync::Mutex;

use crate::client::{ClientError, OperationOutcome};
use crate::draw::operations::VerifiedRecords;
use crate::mix::OperationKind;
use crate::run::latency_counts::bucket_of;
use crate::run::live::LiveCounters;
use crate::run::raw::{RawAnswer, RawThread};
use crate::run::series::{IntervalSeries, KINDS, ThreadSeries};
use crate::run::simd_kernels;
use crate::run::ycsb_stats::{EdgeSide, EndingCounts, TimedPart};

/// How many errors are kept verbatim, and how many wrong values.
const MAX_SAMPLES: usize = 10;

/// The measured time, in nanoseconds of the run's clock: from `begin_ns` up to `end_ns`, which is excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MeasuredSpan {
    pub begin_ns: u64,
    pub end_ns: u64,
}

impl MeasuredSpan {
    pub(crate) fn contains(self, instant_ns: u64) -> bool {
        (self.begin_ns..self.end_ns).contains(&instant_ns)
    }
}

/// The first errors and wrong values of a run, each once. Locked only for these.
#[derive(Debug, Default)]
pub(crate) struct ErrorSamples {
    errors: Mutex<Vec<String>>,
    wrong_values: Mutex<Vec<WrongValue>>,
}

impl ErrorSamples {
    pub(crate) fn add_error(&self, text: String) {
        add(&self.errors, text);
    }

    pub(crate) fn add_wrong_value(&self, value: WrongValue) {
        add(&self.wrong_values, value);
    }

    pub(crate) fn into_parts(self) -> (Vec<String>, Vec<WrongValue>) {
        let errors = self.errors.into_inner();
        (errors, self.wrong_values.into_inner())
    }
}

fn add<T: PartialEq>(samples: &Mutex<Vec<T>>, sample: T) {
    let mut samples = samples.lock();
    if samples.len() < MAX_SAMPLES && !samples.contains(&sample) {
        samples.push(sample);
    }
}

/// The times of one operation on the run's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OperationTimes {
    /// When it was due: the actual start in a closed loop.
    pub intended_ns: u64,
    pub start_ns: u64,
    pub end_ns: u64,
    /// For a read-modify-write whose read found its record: when the read ended.
    pub read_end_ns: Option<u64>,
}

/// Consecutive operations, with room to compute where they count.
#[derive(Debug)]
pub(crate) struct OperationBurst {
    kinds: [OperationKind; OperationBurst::MAX],
    ends_ns: [u64; OperationBurst::MAX],
    count: usize,
    latencies_ns: [u64; OperationBurst::MAX],
    buckets: [usize; OperationBurst::MAX],
    live_buckets: [usize; OperationBurst::MAX],
}

impl Default for OperationBurst {
    fn default() -> Self {
        OperationBurst {
            kinds: [OperationKind::Read; OperationBurst::MAX],
            ends_ns: [0; OperationBurst::MAX],
            count: 0,
            latencies_ns: [0; OperationBurst::MAX],
            buckets: [0; OperationBurst::MAX],
            live_buckets: [0; OperationBurst::MAX],
        }
    }
}

impl OperationBurst {
    /// The maximum number of operations in a burst.
    pub(crate) const MAX: usize = 64;

    pub(crate) fn is_full(&self) -> bool {
        self.count == OperationBurst::MAX
    }

    /// Adds one; the burst must not be full ([`Self::is_full`]).
    #[inline]
    pub(crate) fn add(&mut self, kind: OperationKind, end_ns: u64) {
        self.kinds[self.count] = kind;
        self.ends_ns[self.count] = end_ns;
        self.count += 1;
    }
}

/// The counts for a kind of operation besides its latencies.
#[derive(Clone, Copy, Debug, Default)]
struct AnswerCounts {
    missing: u64,
    throttled: u64,
    errors: u64,
    mismatches: u64,
    /// Anything at all was recorded for it.
    is_there: bool,
}

/// One thread's measurements. Three rules decide what counts:
///
/// - throughput counts operations *answered* within the window;
/// - latency counts operations that were *due* within it, whenever they were answered, so that what is in flight at
///   its end does not vanish; service time those *sent* within it;
/// - errors count if either is true. They have no latency, except timeouts, which took at least as long as they did.
#[derive(Debug)]
pub(crate) struct ThreadRecorder<'a> {
    window: MeasuredSpan,
    open_loop: bool,
    /// Modelled time passes at the speed of wall time.
    is_undilated: bool,
    modelled_per_wall: f64,
    answers: [AnswerCounts; KINDS],
    series: ThreadSeries<'a>,
    live: &'a LiveCounters,
    samples: &'a ErrorSamples,
    /// Keeps every operation, if requested.
    raw: Option<RawThread>,
    /// Keeps details that a record does not have, if requested.
    particulars: Option<&'a Mutex<EndingCounts>>,
    unstarted: u64,
    /// Timeouts among the latencies.
    timed_timeouts: u64,
    checked: u64,
    last_end_ns: u64,
    /// Answered before or after the window.
    outside: u64,
    /// Up to this time of the warm-up, or the window's beginning, every operation that was due had been sent.
    caught_up_ns: u64,
}

impl<'a> ThreadRecorder<'a> {
    pub(crate) fn new(
        window: MeasuredSpan,
        open_loop: bool,
        dilation: f64,
        series: ThreadSeries<'a>,
        live: &'a LiveCounters,
        samples: &'a ErrorSamples,
    ) -> Self {
        ThreadRecorder {
            window,
            open_loop,
            is_undilated: dilation == 1.0,
            modelled_per_wall: 1.0 / dilation,
            answers: [AnswerCounts::default(); KINDS],
            series,
            live,
            samples,
            raw: None,
            particulars: None,
            unstarted: 0,
            timed_timeouts: 0,
            checked: 0,
            last_end_ns: 0,
            outside: 0,
            caught_up_ns: 0,
        }
    }

    /// For a rate: no operation is due before `first_due_ns`.
    pub(crate) fn note_first_due(&mut self, first_due_ns: u64) {
        self.caught_up_ns = first_due_ns.min(self.window.begin_ns);
    }

    /// For a rate: the thread is free since `free_ns`, and its next operation is due at `due_ns`. It may be overdue.
    #[inline]
    pub(crate) fn note_next_due(&mut self, free_ns: u64, due_ns: u64) {
        if free_ns <= due_ns.min(self.window.begin_ns) {
            self.caught_up_ns = due_ns.min(self.window.begin_ns);
        }
    }

    /// Keeps every operation from now on.
    pub(crate) fn keep_raw(&mut self, raw: Option<RawThread>) {
        self.raw = raw;
    }

    /// Keeps particulars from now on.
    pub(crate) fn keep_particulars(&mut self, particulars: Option<&'a Mutex<EndingCounts>>) {
        self.particulars = particulars;
    }

    /// True when it took time. The times' differences are the recorded latencies, to the nanosecond.
    fn log(&mut self, kind: OperationKind, times: OperationTimes, answer: RawAnswer) -> bool {
        if self.raw.is_none() {
            return false;
        }
        let intended_ns = self.modelled_at(times.intended_ns);
        let end_ns = intended_ns.saturating_add_unsigned(self.span_ns(times.intended_ns, times.end_ns));
        let start_ns = match answer {
            // It never started: the window's end, which cuts off its wait, stands for its start.
            RawAnswer::Unstarted => end_ns,
            _ => end_ns.saturating_sub_unsigned(self.span_ns(times.start_ns, times.end_ns)),
        };
        let read_end_ns = times
            .read_end_ns
            .map(|read_end_ns| start_ns.saturating_add_unsigned(self.span_ns(times.start_ns, read_end_ns)));
        let times = [intended_ns, start_ns, end_ns];
        self.raw.as_mut().is_some_and(|raw| raw.push(kind, times, read_end_ns, answer))
    }

    /// An instant in modelled time from the window's start, below zero before it.
    fn modelled_at(&self, instant_ns: u64) -> i64 {
        let wall_ns = instant_ns.wrapping_sub(self.window.begin_ns) as i64;
        if self.is_undilated { wall_ns } else { (wall_ns as f64 * self.modelled_per_wall).floor() as i64 }
    }

    /// The modelled time from one reading of the clock to another, which may seem slightly earlier, since readings of
    /// two cores are not ordered to the nanosecond. It is the difference of both in modelled time, so that a log of
    /// them gives the same result.
    #[inline]
    fn span_ns(&self, from_ns: u64, to_ns: u64) -> u64 {
        if self.is_undilated {
            return to_ns.saturating_sub(from_ns).max(1);
        }
        (self.modelled_at(to_ns) - self.modelled_at(from_ns)).max(1) as u64
    }

    #[inline]
    fn modelled_ns(&self, wall_ns: u64) -> u64 {
        let modelled_ns =
            if self.is_undilated { wall_ns } else { (wall_ns as f64 * self.modelled_per_wall) as u64 };
        // At least a nanosecond: a histogram can't tell zero from "nothing".
        modelled_ns.max(1)
    }

    /// An operation was answered, or failed. True when recording that took time, so that the end of the operation is no
    /// longer a good reading of the present time.
    #[inline]
    pub(crate) fn record(
        &mut self,
        kind: OperationKind,
        times: OperationTimes,
        answer: &Result<OperationOutcome, ClientError>,
    ) -> bool {
        // Due no later than sent, sent no later than answered: if both ends are inside, so is the start.
        let is_inside = times.intended_ns >= self.window.begin_ns && times.end_ns < self.window.end_ns;
        match answer {
            Ok(outcome @ (OperationOutcome::Found | OperationOutcome::Missing)) if is_inside => {
                self.last_end_ns = times.end_ns;
                let latency_ns = self.span_ns(times.intended_ns, times.end_ns);
                self.live.answered(latency_ns);
                let took_time = self.series.advance_to(times.end_ns);
                let counts = self.series.kind(kind);
                counts.due.add(latency_ns);
                if self.open_loop {
                    let service_ns = self.span_ns(times.start_ns, times.end_ns);
                    self.series.kind(kind).service.get_or_insert_default().add(service_ns);
                }
                let answers = &mut self.answers[kind as usize];
                answers.is_there = true;
                if *outcome == OperationOutcome::Missing {
                    answers.missing += 1;
                    self.record_failed(kind, times, RawAnswer::Missing);
                }
                match self.raw {
                    None => took_time,
                    Some(_) => self.log(kind, times, RawAnswer::from_answer(answer)) || took_time,
                }
            }
            _ => {
                self.record_rare(kind, times, answer);
                true
            }
        }
    }

    /// Until when operations that begin at `begin_ns`, one after the other, may be recorded together; zero if each must
    /// be recorded separately.
    pub(crate) fn burst_end_ns(&self, begin_ns: u64) -> u64 {
        if self.open_loop || self.raw.is_some() || begin_ns < self.window.begin_ns {
            return 0;
        }
        self.window.end_ns.min(self.series.edge_ns())
    }

    /// Operations that found their records, one after the other from `begin_ns` on, before [`Self::burst_end_ns`].
    /// Removes them from the burst.
    #[inline]
    pub(crate) fn record_burst(&mut self, begin_ns: u64, burst: &mut OperationBurst) {
        let OperationBurst { kinds, ends_ns, count, latencies_ns, buckets, live_buckets } = burst;
        let count = std::mem::take(count);
        let ends_ns = &ends_ns[..count];
        let Some(&last_end_ns) = ends_ns.last() else { return };
        latencies_ns[0] = self.span_ns(begin_ns, ends_ns[0]);
        let pairs = latencies_ns[1..].iter_mut().zip(ends_ns.windows(2));
        if self.is_undilated {
            simd_kernels::widest(
                #[inline(always)]
                || {
                    pairs.for_each(|(latency_ns, ends_ns)| {
                        *latency_ns = ends_ns[1].saturating_sub(ends_ns[0]).max(1)
                    })
                },
            );
        } else {
            pairs.for_each(|(latency_ns, ends_ns)| *latency_ns = self.span_ns(ends_ns[0], ends_ns[1]));
        }
        // For the full capacity: a loop of constant length is faster than a shorter one of variable length.
        simd_kernels::widest(
            #[inline(always)]
            || {
                for place in 0..OperationBurst::MAX {
                    buckets[place] = bucket_of(latencies_ns[place]);
                    live_buckets[place] = LiveCounters::bucket_of(latencies_ns[place]);
                }
            },
        );
        for ((&kind, &bucket), &live_bucket) in kinds[..count].iter().zip(&*buckets).zip(&*live_buckets) {
            self.live.answered_in(live_bucket);
            self.series.kind(kind).due.add_in(bucket);
            self.answers[kind as usize].is_there = true;
        }
        self.last_end_ns = last_end_ns.max(self.last_end_ns);
    }

    /// Operations that failed, were refused, or cross an edge of the window.
    #[cold]
    fn record_rare(
        &mut self,
        kind: OperationKind,
        times: OperationTimes,
        answer: &Result<OperationOutcome, ClientError>,
    ) {
        self.last_end_ns = times.end_ns;
        let due = self.window.contains(times.intended_ns);
        let sent = self.window.contains(times.start_ns);
        let answered = self.window.contains(times.end_ns);
        let latency_ns = self.span_ns(times.intended_ns, times.end_ns);
        let service_ns = self.span_ns(times.start_ns, times.end_ns);
        match answer {
            Ok(_) => self.live.answered(latency_ns),
            Err(_) => self.live.failed(),
        }
        if !answered && matches!(answer, Ok(OperationOutcome::Found | OperationOutcome::Missing)) {
            self.outside += 1;
        }
        if !(due || sent || answered) {
            return;
        }
        self.log(kind, times, RawAnswer::from_answer(answer));
        if *answer != Ok(OperationOutcome::Found) {
            self.record_failed(kind, times, RawAnswer::from_answer(answer));
        }
        if answered && matches!(answer, Ok(OperationOutcome::Throttled) | Err(_)) {
            self.series.add_failed(times.end_ns);
        }
        let answers = &mut self.answers[kind as usize];
        answers.is_there = true;
        let outcome = match answer {
            Ok(OperationOutcome::Throttled) => {
                // A refusal is fast: as a throughput or a latency it would flatter the system.
                answers.throttled += 1;
                return;
            }
            Ok(outcome) => Some(*outcome),
            Err(error) => {
                answers.errors += 1;
                self.samples.add_error(format!("{kind}: {error}"));
                // An error says nothing about how long an answer takes. A timeout does: at least that long.
                if !matches!(error, ClientError::Timeout(_)) {
                    return;
                }
                self.timed_timeouts += u64::from(due);
                None
            }
        };
        // A timeout is no answer, whenever it comes.
        let answered = answered && outcome.is_some();
        if answered {
            answers.missing += u64::from(outcome == Some(OperationOutcome::Missing));
            self.series.advance_to(times.end_ns);
        }
        let open_loop = self.open_loop;
        let counts = self.series.kind(kind);
        match (due, answered) {
            (true, true) => counts.due.add(latency_ns),
            (true, false) => counts.beyond.get_or_insert_default().add(latency_ns),
            (false, true) => counts.early.get_or_insert_default().add(latency_ns),
            (false, false) => {}
        }
        match (due, sent) {
            (true, false) => self.record_edge(kind, EdgeSide::Unsent, latency_ns),
            (false, true) => self.record_edge(kind, EdgeSide::Overdue, latency_ns),
            (true, true) | (false, false) => {}
        }
        let counts = self.series.kind(kind);
        if open_loop && sent {
            let service = if answered { &mut counts.service } else { &mut counts.beyond_service };
            service.get_or_insert_default().add(service_ns);
        }
    }

    /// The record counts an operation that was not sent within the window, or misses one that was.
    #[cold]
    fn record_edge(&mut self, kind: OperationKind, edge: EdgeSide, latency_ns: u64) {
        if let Some(place) = self.particulars {
            place.lock().add_edge(kind, edge, latency_ns);
        }
    }

    /// An operation that did not succeed also has its time in the details.
    #[cold]
    fn record_failed(&mut self, kind: OperationKind, times: OperationTimes, answer: RawAnswer) {
        let Some(place) = self.particulars else { return };
        if self.window.contains(times.start_ns) {
            let timed = TimedPart {
                intended_ns: self.span_ns(times.intended_ns, times.end_ns),
                service_ns: self.span_ns(times.start_ns, times.end_ns),
            };
            place.lock().add_failed(kind, answer, timed);
        }
    }

    /// An insert failed and will be repeated: it is not an error yet.
    #[cold]
    pub(crate) fn record_repeated(
        &mut self,
        kind: OperationKind,
        times: OperationTimes,
        answer: &Result<OperationOutcome, ClientError>,
    ) {
        let answer = match RawAnswer::from_answer(answer) {
            // Only its last attempt counts: this one is an error, which has no time in the record.
            RawAnswer::Timeout => RawAnswer::Error,
            answer => answer,
        };
        let is_within =
            [times.intended_ns, times.start_ns, times.end_ns].iter().any(|&ns| self.window.contains(ns));
        if is_within {
            self.log(kind, times, answer);
        }
        self.record_failed(kind, times, answer);
    }

    /// The read and the update of a read-modify-write, each as an operation of its kind. They count if the whole was
    /// sent within the window.
    pub(crate) fn record_parts(
        &mut self,
        times: OperationTimes,
        answer: &Result<OperationOutcome, ClientError>,
    ) {
        let Some(place) = self.particulars else { return };
        if !self.window.contains(times.start_ns) {
            return;
        }
        let answer = RawAnswer::from_answer(answer);
        let timed = |intended_ns: u64, start_ns: u64, end_ns: u64| TimedPart {
            intended_ns: self.span_ns(intended_ns, end_ns),
            service_ns: self.span_ns(start_ns, end_ns),
        };
        let OperationTimes { intended_ns, start_ns, end_ns, read_end_ns } = times;
        let mut counts = place.lock();
        let (read_answer, read_end_ns) = match read_end_ns {
            // In a closed loop the update is due when it is sent.
            Some(sent_ns) => {
                let due_ns = if self.open_loop { intended_ns } else { sent_ns };
                counts.add_part(OperationKind::Update, answer, timed(due_ns, sent_ns, end_ns));
                (RawAnswer::Found, sent_ns)
            }
            None => (answer, end_ns),
        };
        counts.add_part(OperationKind::Read, read_answer, timed(intended_ns, start_ns, read_end_ns));
    }

    /// The records of an answer were checked, which took `took_ns`. Wrong values are counted separately from errors,
    /// and at any time: the answer remains counted.
    pub(crate) fn record_check(&mut self, kind: OperationKind, checked: &VerifiedRecords, took_ns: u64) {
        self.checked += u64::from(checked.records);
        if let Some(place) = self.particulars {
            let each_ns = self.modelled_ns(took_ns / u64::from(checked.records.max(1)));
            place.lock().add_checks(u64::from(checked.records), each_ns);
        }
        if let Some(wrong) = &checked.first_mismatch {
            self.live.failed();
            let answers = &mut self.answers[kind as usize];
            answers.is_there = true;
            answers.mismatches += u64::from(checked.mismatches);
            self.samples.add_wrong_value(wrong.clone());
        }
    }

    /// How long it took to close the connection.
    pub(crate) fn record_closing(&mut self, took_ns: u64) {
        if let Some(place) = self.particulars {
            let closing_ns = self.modelled_ns(took_ns);
            place.lock().add_closing(closing_ns);
        }
    }

    /// How late an operation was sent although its thread was free.
    pub(crate) fn record_lateness(&mut self, intended_ns: u64, lateness_ns: u64) {
        if self.window.contains(intended_ns) {
            let modelled_ns = self.modelled_ns(lateness_ns);
            self.series.add_lateness(modelled_ns);
        }
    }

    /// An operation that was due and will not be sent any more: it waited at least until `end_ns`.
    pub(crate) fn record_unstarted(&mut self, kind: OperationKind, intended_ns: u64, end_ns: u64) {
        if !self.window.contains(intended_ns) {
            return;
        }
        self.unstarted += 1;
        let waited_ns = self.span_ns(intended_ns, end_ns);
        self.answers[kind as usize].is_there = true;
        self.log(
            kind,
            OperationTimes { intended_ns, start_ns: end_ns, end_ns, read_end_ns: None },
            RawAnswer::Unstarted,
        );
        self.series.kind(kind).beyond.get_or_insert_default().add(waited_ns);
        self.record_edge(kind, EdgeSide::Unsent, waited_ns);
    }

    /// Hands over the remaining counts to the shared series. Must be called once, at the thread's end.
    pub(crate) fn finish(mut self) -> ThreadRecord {
        self.series.flush();
        if let Some(raw) = &mut self.raw {
            raw.flush();
        }
        ThreadRecord {
            answers: self.answers,
            open_loop: self.open_loop,
            unstarted: self.unstarted,
            timed_timeouts: self.timed_timeouts,
            checked: self.checked,
            last_end_ns: self.last_end_ns,
            outside: self.outside,
            caught_up_ns: self.open_loop.then_some(self.caught_up_ns),
        }
    }
}

/// The results of a finished thread. Its latencies are in the series.
#[derive(Debug)]
pub(crate) struct ThreadRecord {
    answers: [AnswerCounts; KINDS],
    open_loop: bool,
    pub unstarted: u64,
    pub timed_timeouts: u64,
    /// Records whose values were checked.
    pub checked: u64,
    /// When its last operation was answered.
    pub last_end_ns: u64,
    /// Operations that were answered before or after the window.
    pub outside: u64,
    /// For a rate: since when operations were continuously in flight or overdue as the window began. The window's
    /// beginning if there were none.
    pub caught_up_ns: Option<u64>,
}

impl ThreadRecord {
    /// Records whose values differ from the written ones.
    pub(crate) fn mismatches(&self) -> u64 {
        self.answers.iter().map(|answers| answers.mismatches).sum()
    }
}

/// All threads together.
#[derive(Debug, Default)]
pub(crate) struct MergedRecorder {
    pub operations: u64,
    pub errors: u64,
    pub latency: Histogram,
    pub by_operation: BTreeMap<String, OperationStats>,
    pub lateness_p99_us: Option<f64>,
    /// The result of checking values, over all threads and kinds; counts only.
    pub integrity: IntegrityRecord,
}

impl MergedRecorder {
    /// From finished threads, and the series of their counts.
    pub(crate) fn from_threads(threads: &[ThreadRecord], series: &IntervalSeries) -> MergedRecorder {
        let mut merged = MergedRecorder::default();
        let open_loop = threads.iter().any(|thread| thread.open_loop);
        for kind in OperationKind::ALL {
            let mut stats = OperationStats::default();
            let mut is_there = false;
            for answers in threads.iter().map(|thread| &thread.answers[kind as usize]) {
                is_there |= answers.is_there;
                stats.missing += answers.missing;
                stats.throttled += answers.throttled;
                stats.errors += answers.errors;
                stats.mismatches += answers.mismatches;
            }
            if !is_there {
                continue;
            }
            let latencies = series.latencies(kind).unwrap_or_default();
            stats.count = latencies.answered;
            merged.operations += stats.count;
            merged.errors += stats.errors;
            merged.latency.merge(&latencies.latency);
            let service =
                if open_loop { latencies.service.unwrap_or_default() } else { latencies.latency.clone() };
            stats.service = RecordedLatency::new(service);
            stats.latency = RecordedLatency::new(latencies.latency);
            merged.by_operation.insert(kind.name().to_owned(), stats);
        }
        merged.integrity = IntegrityRecord {
            checked: threads.iter().map(|thread| thread.checked).sum(),
            mismatches: threads.iter().map(ThreadRecord::mismatches).sum(),
            wrong_values: Vec::new(),
        };
        let lateness = series.lateness();
        merged.lateness_p99_us = (lateness.count() > 0).then(|| lateness.quantile_us(0.99));
        merged
    }
}
