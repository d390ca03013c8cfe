//! The feed: what a run writes for live views while it goes on ([`underlay_record::live`]). It stands between the run
//! and its observer, and adds a sample every second. A feed that can't be written ends, and the run goes on without it.

mod source;
mod writer;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use underlay_attach::ResourceRegistry;
use underlay_attach::registry::ProcessId;
use underlay_files::Folder;
use underlay_record::live::{FEED_VERSION, MAX_FEED_BYTES, MAX_FEED_LINE_BYTES};
use underlay_record::{
    CellEnd, CellState, DeviceId, FeedEntry, FeedLine, LiveLoad, LiveSample, NodeEventRecord, PlannedCell,
    RunRecord,
};
use underlay_sync::{Condvar, Mutex};

use super::control_requests::RunCommand;
use super::{LiveCell, LiveSource, RunError, RunObserver, RunOutcome};
use crate::machine::thread_time;
pub(super) use source::CellSource;
use writer::FeedWriter;

/// The time between samples.
const INTERVAL: Duration = Duration::from_secs(1);
/// A sample of less time than this is mostly noise: rates and shares over some milliseconds.
const MIN_SAMPLE_TIME: Duration = Duration::from_millis(500);
/// How long a report of the generator or a job stays valid.
const LIVE_LIMIT: Duration = Duration::from_secs(5);

/// See the module.
pub(super) struct RunFeed<'a> {
    to: &'a dyn RunObserver,
    /// See [`FeedState`].
    state: Mutex<FeedState>,
}

#[derive(Default)]
struct FeedState {
    /// `None` where it can't be written.
    writer: Option<FeedWriter>,
    written_bytes: u64,
    /// The plan, for a reader that begins with this file.
    planned: Option<FeedEntry>,
    live: Option<(Instant, LiveCell)>,
    position: Option<u32>,
    /// Cells to skip.
    skips: Vec<u32>,
    sampled: Option<Instant>,
    /// The last measured value.
    cost_share: Option<f64>,
    /// A sampler with access to the devices is running.
    has_source: bool,
    /// The position whose placement has been reported.
    grounded: Option<u32>,
    node_events: Vec<NodeEventRecord>,
    faults: Vec<(DeviceId, String)>,
}

impl FeedState {
    fn begin_file(&mut self) {
        let ProcessId { pid, start_ticks } = ResourceRegistry::this_process();
        let begun =
            FeedEntry::Begun { version: FEED_VERSION, process: pid, process_start_ticks: start_ticks };
        self.append(&begun);
    }

    fn write(&mut self, entry: &FeedEntry) {
        if self.written_bytes > MAX_FEED_BYTES {
            if !self.writer.as_ref().is_some_and(FeedWriter::turn) {
                return;
            }
            self.written_bytes = 0;
            self.begin_file();
            if let Some(planned) = self.planned.clone() {
                self.append(&planned);
            }
            for position in self.skips.clone() {
                self.append(&FeedEntry::SkipAsked { position });
            }
            if let Some(position) = self.position {
                self.append(&FeedEntry::CellStarted { position });
                self.grounded = None;
            }
        }
        self.append(entry);
    }

    fn append(&mut self, entry: &FeedEntry) {
        let Some(writer) = &self.writer else { return };
        let elapsed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let line = FeedLine { at_ms: elapsed.as_millis() as u64, entry: entry.clone() };
        // Begins with a newline, so that a line cut short by a full disk or a kill does not swallow this one. Readers
        // skip empty lines.
        let mut text = vec![b'\n'];
        if serde_json::to_writer(&mut text, &line).is_err() || text.len() >= MAX_FEED_LINE_BYTES {
            return;
        }
        text.push(b'\n');
        let length_bytes = text.len() as u64;
        if writer.line(text) {
            self.written_bytes += length_bytes;
        }
    }
}

impl<'a> RunFeed<'a> {
    /// Continues the feed of a run, or begins it.
    pub(super) fn open(directory: &std::path::Path, to: &'a dyn RunObserver) -> RunFeed<'a> {
        let begun = Folder::open(directory).ok().and_then(FeedWriter::begin);
        let (writer, written_bytes) = begun.map_or((None, 0), |(writer, bytes)| (Some(writer), bytes));
        let feed =
            RunFeed { to, state: Mutex::new(FeedState { writer, written_bytes, ..FeedState::default() }) };
        feed.state.lock().begin_file();
        feed
    }

    pub(super) fn entry(&self, entry: &FeedEntry) {
        self.state.lock().write(entry);
    }

    /// Reports a command, here and to the observer.
    pub(super) fn asked(&self, command: &RunCommand, plan: &[PlannedCell]) {
        let message = {
            let mut state = self.state.lock();
            match command {
                RunCommand::Stop => {
                    state.write(&FeedEntry::Asked { what: "stop".to_owned() });
                    "stopping, on command".to_owned()
                }
                RunCommand::Skip { position } => {
                    state.skips.push(*position);
                    state.write(&FeedEntry::SkipAsked { position: *position });
                    match plan.get(*position as usize) {
                        Some(planned) => format!(
                            "{}, repetition {}: to be skipped, on command",
                            planned.cell.id, planned.repetition
                        ),
                        None => return,
                    }
                }
            }
        };
        self.to.notice(&message);
    }

    /// Writes the last line.
    pub(super) fn ended(&self, outcome: &Result<RunOutcome, RunError>) {
        self.entry(&match outcome {
            Ok(RunOutcome { completed, disturbed, failed, unavailable, skipped, left, .. }) => {
                FeedEntry::Ended {
                    completed: completed + disturbed,
                    failed: *failed,
                    unavailable: *unavailable,
                    skipped: *skipped,
                    left: *left,
                    problem: None,
                }
            }
            Err(error) => FeedEntry::Ended {
                completed: 0,
                failed: 0,
                unavailable: 0,
                skipped: 0,
                left: 0,
                problem: Some(error.to_string()),
            },
        });
        // Waits for lines not yet written.
        self.state.lock().writer = None;
    }

    /// A sample of everything that is known without asking.
    fn sample_of(state: &FeedState) -> LiveSample {
        let live_cell = state.live.as_ref().map(|(_, live)| live);
        let live =
            state.live.as_ref().filter(|(seen_at, _)| seen_at.elapsed() < LIVE_LIMIT).map(|(_, live)| live);
        LiveSample {
            position: state.position,
            phase: live_cell.map_or_else(String::new, |live| live.phase.clone().into_owned()),
            preparing: live_cell.is_some_and(|live| live.preparing),
            progress: live.and_then(|live| live.progress),
            figure: live.and_then(|live| live.figure.clone()),
            load: live.filter(|live| live.throughput_per_s > 0.0 || live.p99_us > 0.0).map(|live| LiveLoad {
                throughput_per_s: live.throughput_per_s,
                mean_us: live.mean_us,
                p50_us: live.p50_us,
                p99_us: live.p99_us,
                errors: live.errors,
            }),
            ..LiveSample::default()
        }
    }

    /// Takes a sample of everything, and reports what has happened to nodes and devices since the last one. The sample
    /// itself is left out if it would cover only a moment.
    fn take(&self, source: &dyn LiveSource, cost: &mut SamplerCost) {
        let is_long_enough = cost.at.elapsed() >= MIN_SAMPLE_TIME;
        let is_new = {
            let mut state = self.state.lock();
            let position = state.position;
            std::mem::replace(&mut state.grounded, position) != position
        };
        // Once per cell, since a system may have to be asked.
        if let Some(ground) = is_new.then(|| source.ground()).flatten() {
            self.entry(&ground);
        }
        let mut sample = {
            let mut state = self.state.lock();
            state.sampled = Some(Instant::now());
            RunFeed::sample_of(&state)
        };
        source.fill(&mut sample);
        let cost_share = cost.share();
        let nodes = source.node_events();
        let mut state = self.state.lock();
        state.cost_share = cost_share.or(state.cost_share);
        sample.cost_share = state.cost_share;
        let is_wrong = |sample: &LiveSample| -> Vec<(DeviceId, String)> {
            let faults_of = |device: &underlay_record::LiveDevice| {
                let id = device.id.clone();
                device
                    .faults
                    .iter()
                    .map(move |description| (id.clone(), description.clone()))
                    .collect::<Vec<_>>()
            };
            sample.devices.iter().flat_map(faults_of).collect()
        };
        let mut wrong = is_wrong(&sample);
        // A device that did not answer counts as unchanged.
        let is_told = |device: &DeviceId| sample.devices.iter().any(|one| one.id == *device);
        wrong.extend(state.faults.iter().filter(|(device, _)| !is_told(device)).cloned());
        let reported = std::mem::replace(&mut state.faults, wrong.clone());
        let began = wrong.iter().filter(|one| !reported.contains(one)).map(|one| (one, true));
        let over = reported.iter().filter(|one| !wrong.contains(one)).map(|one| (one, false));
        for ((device, description), began) in began.chain(over) {
            let entry = FeedEntry::Fault { device: device.clone(), what: description.clone(), began };
            state.write(&entry);
        }
        let reported = std::mem::replace(&mut state.node_events, nodes.clone());
        for (index, event) in nodes.into_iter().enumerate() {
            if reported.get(index) != Some(&event) {
                state.write(&FeedEntry::Node { index, event: Box::new(event) });
            }
        }
        if is_long_enough {
            state.write(&FeedEntry::Sample(Box::new(sample)));
        }
    }
}

/// A thread's CPU time since the last report, as a share of a core.
struct SamplerCost {
    at: Instant,
    used: Duration,
}

impl SamplerCost {
    fn begin() -> SamplerCost {
        SamplerCost { at: Instant::now(), used: thread_time() }
    }

    /// Nothing if the time is too short: it counts towards the next report.
    fn share(&mut self) -> Option<f64> {
        let now = SamplerCost::begin();
        let passed = self.at.elapsed();
        if passed < MIN_SAMPLE_TIME {
            return None;
        }
        let share = now.used.saturating_sub(self.used).as_secs_f64() / passed.as_secs_f64();
        *self = now;
        Some(share)
    }
}

/// Wakes a sampler before its time.
#[derive(Default)]
struct SamplerStop {
    is_over: AtomicBool,
    lock: Mutex<()>,
    changed: Condvar,
}

impl SamplerStop {
    /// Marks the end, even after a panic.
    fn end(&self) {
        let _guard = self.lock.lock();
        self.is_over.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// Returns false when it is over.
    fn wait(&self, length: Duration) -> bool {
        let guard = self.lock.lock();
        if !self.is_over.load(Ordering::Relaxed) {
            drop(self.changed.wait_timeout(guard, length));
        }
        !self.is_over.load(Ordering::Relaxed)
    }
}

struct EndsOnDrop<'a>(&'a SamplerStop);

impl Drop for EndsOnDrop<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl RunObserver for RunFeed<'_> {
    fn planned(&self, total: usize, finished: usize, expected: Duration) {
        let entry = FeedEntry::Planned { total, finished, remaining_s: expected.as_secs_f64() };
        {
            let mut state = self.state.lock();
            state.planned = Some(entry.clone());
            state.position = None;
            state.write(&entry);
        }
        self.to.planned(total, finished, expected);
    }

    fn preparing(&self, activity: &str) {
        self.entry(&FeedEntry::Doing { what: activity.to_owned() });
        self.to.preparing(activity);
    }

    fn notice(&self, message: &str) {
        self.entry(&FeedEntry::Notice { what: message.to_owned() });
        self.to.notice(message);
    }

    fn delayed(&self, remaining: Duration) {
        self.to.delayed(remaining);
    }

    fn cell_started(&self, planned: &PlannedCell, number: usize) {
        let position = u32::try_from(number.saturating_sub(1)).unwrap_or(u32::MAX);
        {
            let mut state = self.state.lock();
            // Jobs that run together begin with what their system needs, and then run one by one.
            if state.position != Some(position) {
                state.position = Some(position);
                state.grounded = None;
                state.live = None;
                state.node_events.clear();
                state.faults.clear();
                state.write(&FeedEntry::CellStarted { position });
            }
        }
        self.to.cell_started(planned, number);
    }

    fn live(&self, live: &LiveCell) {
        {
            let mut state = self.state.lock();
            state.live = Some((Instant::now(), live.clone()));
            let is_due = state.sampled.is_none_or(|sampled_at| sampled_at.elapsed() >= INTERVAL);
            if is_due && !state.has_source {
                state.sampled = Some(Instant::now());
                let sample = RunFeed::sample_of(&state);
                state.write(&FeedEntry::Sample(Box::new(sample)));
            }
        }
        self.to.live(live);
    }

    fn cell_ended(&self, planned: &PlannedCell, record: &RunRecord, remaining: Duration) {
        {
            let end = CellEnd {
                position: record.position,
                state: CellState::from_record(record),
                reason: record.reason(),
                wall_s: record.wall_s,
                remaining_s: remaining.as_secs_f64(),
            };
            let mut state = self.state.lock();
            (state.position, state.live) = (None, None);
            state.write(&FeedEntry::CellEnded(end));
        }
        self.to.cell_ended(planned, record, remaining);
    }

    fn run_sampled(&self, source: &dyn LiveSource, act: &mut dyn FnMut()) {
        let ending = SamplerStop::default();
        {
            let mut state = self.state.lock();
            // Earlier samples belong to another phase.
            (state.has_source, state.live) = (true, None);
        }
        std::thread::scope(|scope| {
            let ends = EndsOnDrop(&ending);
            scope.spawn(|| {
                let mut cost = SamplerCost::begin();
                while ending.wait(INTERVAL) {
                    self.take(source, &mut cost);
                }
                // Later events, such as the end of a fault.
                self.take(source, &mut cost);
            });
            act();
            drop(ends);
        });
        self.state.lock().has_source = false;
    }
}

/// Calls a function while the observer samples the source.
pub(super) fn sampled<T>(observer: &dyn RunObserver, source: &dyn LiveSource, act: impl FnOnce() -> T) -> T {
    let (mut act, mut outcome) = (Some(act), None);
    observer.run_sampled(source, &mut || outcome = act.take().map(|act| act()));
    outcome.expect("an observer does what it is to watch")
}

#[cfg(test)]
mod tests;
