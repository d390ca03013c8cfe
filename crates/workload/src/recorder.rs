//! What one thread records, and what becomes of it when all threads are merged.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use underlay_record::{Histogram, Latency, OperationStats};

use crate::client::{ClientError, Outcome};
use crate::live::LiveCounters;
use crate::mix::OperationKind;
use crate::series::ThreadSeries;

/// 32-bit counts over the record's bounds: 131 KB of addresses a histogram, of which the kernel supplies only pages
/// that latencies fall on.
type ThreadHistogram = hdrhistogram::Histogram<u32>;

const HIGHEST_NS: u64 = 3_600_000_000_000;
const DIGITS: u8 = 3;
/// Errors that are kept word for word.
const MOST_ERROR_SAMPLES: usize = 10;

fn thread_histogram() -> ThreadHistogram {
    ThreadHistogram::new_with_bounds(1, HIGHEST_NS, DIGITS).expect("constant bounds are valid")
}

fn add(target: &mut Histogram, source: &ThreadHistogram) {
    for step in source.iter_recorded() {
        target.record_n_ns(step.value_iterated_to(), u64::from(step.count_at_value()));
    }
}

/// The measured time, in nanoseconds of the run's clock: from `begin_ns` up to `end_ns`, which is outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub begin_ns: u64,
    pub end_ns: u64,
}

impl Window {
    pub fn contains(self, instant_ns: u64) -> bool {
        (self.begin_ns..self.end_ns).contains(&instant_ns)
    }
}

/// The first errors of a run, each text once. Locked on errors only.
#[derive(Debug, Default)]
pub(crate) struct ErrorSamples {
    texts: Mutex<Vec<String>>,
}

impl ErrorSamples {
    pub fn add(&self, text: &str) {
        let mut texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        if texts.len() < MOST_ERROR_SAMPLES && !texts.iter().any(|known| known == text) {
            texts.push(text.to_owned());
        }
    }

    pub fn into_texts(self) -> Vec<String> {
        self.texts.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The times of one operation on the run's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// When it was due: the actual start in a closed loop.
    pub intended_ns: u64,
    pub start_ns: u64,
    pub end_ns: u64,
}

#[derive(Debug)]
struct KindRecorder {
    count: u64,
    missing: u64,
    throttled: u64,
    errors: u64,
    latency: ThreadHistogram,
    /// Open loop only: in a closed loop it is the latency.
    service: Option<ThreadHistogram>,
}

impl KindRecorder {
    fn new(open_loop: bool) -> Self {
        KindRecorder {
            count: 0,
            missing: 0,
            throttled: 0,
            errors: 0,
            latency: thread_histogram(),
            service: open_loop.then(thread_histogram),
        }
    }
}

/// One thread's measurements. Three rules decide what counts:
///
/// - throughput counts operations *answered* within the window;
/// - latency counts operations that were *due* within it, whenever they were answered, so that what is under way at
///   its end does not vanish; service time those *sent* within it;
/// - errors count if either is true. They have no latency, except timeouts, which took at least as long as they did.
#[derive(Debug)]
pub(crate) struct Recorder<'a> {
    window: Window,
    open_loop: bool,
    modelled_per_wall: f64,
    kinds: [Option<Box<KindRecorder>>; 6],
    lateness: Option<ThreadHistogram>,
    series: ThreadSeries<'a>,
    live: &'a LiveCounters,
    samples: &'a ErrorSamples,
    unstarted: u64,
    integrity_mismatches: u64,
    last_end_ns: u64,
}

impl<'a> Recorder<'a> {
    pub fn new(
        window: Window,
        open_loop: bool,
        dilation: f64,
        series: ThreadSeries<'a>,
        live: &'a LiveCounters,
        samples: &'a ErrorSamples,
    ) -> Self {
        Recorder {
            window,
            open_loop,
            modelled_per_wall: 1.0 / dilation,
            kinds: Default::default(),
            lateness: open_loop.then(thread_histogram),
            series,
            live,
            samples,
            unstarted: 0,
            integrity_mismatches: 0,
            last_end_ns: 0,
        }
    }

    fn modelled_ns(&self, wall_ns: u64) -> u64 {
        // A nanosecond at least: zero cannot be told from "nothing" in a histogram.
        ((wall_ns as f64 * self.modelled_per_wall) as u64).max(1)
    }

    /// An operation was answered, or failed.
    pub fn record(&mut self, kind: OperationKind, times: Times, answer: &Result<Outcome, ClientError>) {
        self.last_end_ns = times.end_ns;
        let due = self.window.contains(times.intended_ns);
        let sent = self.window.contains(times.start_ns);
        let answered = self.window.contains(times.end_ns);
        let latency_ns = self.modelled_ns(times.end_ns - times.intended_ns);
        let service_ns = self.modelled_ns(times.end_ns - times.start_ns);
        match answer {
            Ok(_) => self.live.answered(latency_ns),
            Err(_) => self.live.failed(),
        }
        if !(due || sent || answered) {
            return;
        }
        let open_loop = self.open_loop;
        let recorder =
            self.kinds[kind as usize].get_or_insert_with(|| Box::new(KindRecorder::new(open_loop)));
        let timed = match answer {
            Ok(Outcome::Throttled) => {
                recorder.throttled += 1;
                false
            }
            Ok(outcome) => {
                if answered {
                    recorder.count += 1;
                    recorder.missing += u64::from(*outcome == Outcome::Missing);
                    self.series.record(times.end_ns, latency_ns);
                }
                true
            }
            Err(error) => {
                recorder.errors += 1;
                self.samples.add(&format!("{kind}: {error}"));
                matches!(error, ClientError::Timeout(_))
            }
        };
        if timed && due {
            recorder.latency.saturating_record(latency_ns);
        }
        if timed
            && sent
            && let Some(service) = &mut recorder.service
        {
            service.saturating_record(service_ns);
        }
    }

    /// The values of an answered read were not what was written: an error beside the answer, which stays counted.
    pub fn record_mismatch(&mut self, kind: OperationKind, text: &str) {
        self.integrity_mismatches += 1;
        self.live.failed();
        let open_loop = self.open_loop;
        self.kinds[kind as usize].get_or_insert_with(|| Box::new(KindRecorder::new(open_loop))).errors += 1;
        self.samples.add(text);
    }

    /// How late an operation was sent although its thread was free.
    pub fn record_lateness(&mut self, intended_ns: u64, lateness_ns: u64) {
        if self.window.contains(intended_ns) {
            let modelled_ns = self.modelled_ns(lateness_ns);
            if let Some(lateness) = &mut self.lateness {
                lateness.saturating_record(modelled_ns);
            }
        }
    }

    /// An operation that was due and will not be sent any more: it waited until the window's end, at least.
    pub fn record_unstarted(&mut self, kind: OperationKind, intended_ns: u64) {
        if !self.window.contains(intended_ns) {
            return;
        }
        self.unstarted += 1;
        let waited_ns = self.modelled_ns(self.window.end_ns - intended_ns);
        let open_loop = self.open_loop;
        let recorder =
            self.kinds[kind as usize].get_or_insert_with(|| Box::new(KindRecorder::new(open_loop)));
        recorder.latency.saturating_record(waited_ns);
    }

    /// Hands over what the shared series has not got yet. To be called once, at the thread's end.
    pub fn finish(mut self) -> ThreadRecord {
        self.series.flush();
        ThreadRecord {
            kinds: self.kinds,
            lateness: self.lateness,
            unstarted: self.unstarted,
            integrity_mismatches: self.integrity_mismatches,
            last_end_ns: self.last_end_ns,
        }
    }
}

/// What is left of a thread.
#[derive(Debug)]
pub(crate) struct ThreadRecord {
    kinds: [Option<Box<KindRecorder>>; 6],
    lateness: Option<ThreadHistogram>,
    pub unstarted: u64,
    pub integrity_mismatches: u64,
    /// When its last operation was answered.
    pub last_end_ns: u64,
}

/// All threads together.
#[derive(Debug, Default)]
pub(crate) struct Merged {
    pub operations: u64,
    pub errors: u64,
    pub latency: Histogram,
    pub by_operation: BTreeMap<String, OperationStats>,
    pub lateness_p99_us: Option<f64>,
}

impl Merged {
    pub fn of(threads: &[ThreadRecord]) -> Merged {
        let mut merged = Merged::default();
        for kind in OperationKind::ALL {
            let mut stats = OperationStats::default();
            let (mut latency, mut service) = (Histogram::default(), Histogram::default());
            let mut open_loop = false;
            let mut there = false;
            for recorder in threads.iter().filter_map(|thread| thread.kinds[kind as usize].as_ref()) {
                there = true;
                stats.count += recorder.count;
                stats.missing += recorder.missing;
                stats.throttled += recorder.throttled;
                stats.errors += recorder.errors;
                add(&mut latency, &recorder.latency);
                if let Some(thread_service) = &recorder.service {
                    open_loop = true;
                    add(&mut service, thread_service);
                }
            }
            if !there {
                continue;
            }
            merged.operations += stats.count;
            merged.errors += stats.errors;
            merged.latency.merge(&latency);
            stats.service = Latency::of(if open_loop { service } else { latency.clone() });
            stats.latency = Latency::of(latency);
            merged.by_operation.insert(kind.name().to_owned(), stats);
        }
        let mut lateness = Histogram::default();
        for thread in threads.iter().filter_map(|thread| thread.lateness.as_ref()) {
            add(&mut lateness, thread);
        }
        merged.lateness_p99_us = (lateness.count() > 0).then(|| lateness.quantile_us(0.99));
        merged
    }
}
