//! The session of one coordinator with a worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use underlay_record::MeasuredWindow;
use underlay_sync::Mutex;
use underlay_workload::{RunError, RunHandle, run};

use crate::frame::{FrameError, FrameReader, MAX_BYTES, send};
use crate::generator::{LoadGenerator, StoppedIn};
use crate::job::RemoteJob;
use crate::message::{
    CoordinatorRequest, MeasuredPart, PREFACE, ProgressReport, WorkerAnswer, WorkerWelcome,
};
use crate::stream::PeerStream;

/// A coordinator sends several requests per second. If it is silent for this long it counts as gone, and its run is
/// stopped.
const MAX_SILENCE: Duration = Duration::from_secs(30);
/// The limit for connecting to a system.
const MAX_CONNECT: Duration = Duration::from_secs(180);
/// How often it checks whether it should stop, and whether a run is connected.
const TICK: Duration = Duration::from_millis(50);
/// The start of a run can't be further ahead than this.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// How long it takes to wake the threads of a run.
const GATE_TIME: Duration = Duration::from_millis(2);

/// A run of this worker.
struct RunningJob {
    control: Arc<RunHandle<'static>>,
    /// `None` cancels the run.
    start: SyncSender<Option<Instant>>,
    lateness_ns: Arc<AtomicU64>,
    /// Watches the processes of its clients until it is dropped.
    stopped_in: Option<StoppedIn>,
    handle: JoinHandle<Result<MeasuredWindow, RunError>>,
}

pub(crate) struct WorkerSession<'a> {
    generator: &'a LoadGenerator,
    stream: PeerStream,
    reader: FrameReader,
    running: Option<RunningJob>,
    stop: &'a AtomicBool,
}

impl Drop for WorkerSession<'_> {
    fn drop(&mut self) {
        self.end_run();
    }
}

/// Sends a worker's first message.
pub(crate) fn send_welcome(stream: &mut PeerStream, is_taken: bool) -> Result<(), FrameError> {
    stream.wait_at_most(MAX_SILENCE);
    std::io::Write::write_all(stream, &PREFACE)?;
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    send(stream, &WorkerWelcome { version: env!("CARGO_PKG_VERSION").to_owned(), cores, is_taken })
}

impl<'a> WorkerSession<'a> {
    pub(crate) fn new(generator: &'a LoadGenerator, stream: PeerStream, stop: &'a AtomicBool) -> Self {
        WorkerSession { generator, stream, reader: FrameReader::new(), running: None, stop }
    }

    /// Answers until the coordinator is gone or the worker should stop.
    pub(crate) fn serve(mut self) -> Result<(), FrameError> {
        send_welcome(&mut self.stream, false)?;
        let mut heard = Instant::now();
        while !self.stop.load(Ordering::Relaxed) {
            // In short waits, to notice `stop`. A timeout loses nothing: the reader keeps what has arrived.
            self.stream.wait_at_most(TICK);
            let request: CoordinatorRequest = match self.reader.receive(&mut self.stream, MAX_BYTES) {
                Ok(request) => request,
                Err(FrameError::Ended) => return Ok(()),
                Err(error) if error.is_timeout() && heard.elapsed() < MAX_SILENCE => continue,
                Err(error) if error.is_timeout() => {
                    let silence = format!("it was silent for {} s", MAX_SILENCE.as_secs());
                    return Err(std::io::Error::new(std::io::ErrorKind::TimedOut, silence).into());
                }
                Err(error) => return Err(error),
            };
            let answer = self.answer(request);
            self.stream.wait_at_most(MAX_SILENCE);
            send(&mut self.stream, &answer)?;
            heard = Instant::now();
        }
        Ok(())
    }

    fn answer(&mut self, request: CoordinatorRequest) -> WorkerAnswer {
        let done =
            |result: Result<(), String>| result.map_or_else(WorkerAnswer::Failed, |()| WorkerAnswer::Done);
        match request {
            CoordinatorRequest::Time => WorkerAnswer::Time { now_ns: self.generator.now_ns() },
            CoordinatorRequest::Prepare(job) => done(self.prepare(&job)),
            CoordinatorRequest::Start { at_ns } => done(self.start(at_ns)),
            CoordinatorRequest::Report => {
                self.report().map_or_else(WorkerAnswer::Failed, WorkerAnswer::Report)
            }
            CoordinatorRequest::Collect => self
                .collect()
                .map_or_else(WorkerAnswer::Failed, |part| WorkerAnswer::Measured(Box::new(part))),
            CoordinatorRequest::Stop => {
                self.end_run();
                WorkerAnswer::Done
            }
        }
    }

    fn prepare(&mut self, job: &RemoteJob) -> Result<(), String> {
        self.end_run();
        let spec = job.spec()?;
        let connect = self.generator.connect(job)?;
        let (connected, is_connected) = mpsc::sync_channel(1);
        let (start, starts) = mpsc::sync_channel(1);
        let lateness_ns = Arc::new(AtomicU64::new(0));
        let mut control = RunHandle::new();
        control.keeps_particulars = true;
        control.on_connected = Some(starter(connected, starts, Arc::clone(&lateness_ns)));
        let control = Arc::new(control);
        let own = Arc::clone(&control);
        let stopped_in = self.generator.watch();
        let handle = std::thread::Builder::new()
            .name("run".to_owned())
            .spawn(move || run(&spec, &*connect, &own))
            .map_err(|error| format!("no thread for the run: {error}"))?;
        self.generator.set_running(Some(Arc::clone(&control)));
        self.running = Some(RunningJob { control, start, lateness_ns, stopped_in, handle });
        let latest = Instant::now() + MAX_CONNECT;
        while is_connected.recv_timeout(TICK).is_err() {
            // If the run has ended without connecting, it has an error.
            if self.running.as_ref().is_some_and(|running| running.handle.is_finished()) {
                return Err(self
                    .collect()
                    .err()
                    .unwrap_or_else(|| "the run ended before it started".to_owned()));
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err("the coordinator stopped it".to_owned());
            }
            if Instant::now() > latest {
                self.end_run();
                return Err(format!("connecting took longer than {} s", MAX_CONNECT.as_secs()));
            }
        }
        Ok(())
    }

    fn start(&mut self, at_ns: u64) -> Result<(), String> {
        let running = self.running.as_ref().ok_or("nothing was prepared")?;
        let now_ns = self.generator.now_ns();
        let wait = Duration::from_nanos(at_ns.saturating_sub(now_ns));
        if wait < GATE_TIME {
            let late_ms = now_ns.saturating_sub(at_ns) / 1_000_000;
            self.end_run();
            return Err(format!(
                "the command to start came {late_ms} ms too late: is the network or that host overloaded?"
            ));
        }
        if wait > MAX_WAIT {
            self.end_run();
            return Err(format!(
                "the command to start is for {} s from now, which is too late",
                wait.as_secs()
            ));
        }
        let start_time = self.generator.instant(now_ns) + wait;
        running.start.try_send(Some(start_time)).map_err(|_| "it has already started".to_owned())
    }

    fn report(&self) -> Result<ProgressReport, String> {
        let running = self.running.as_ref().ok_or("nothing was prepared")?;
        Ok(report_of(&running.control, running.handle.is_finished()))
    }

    fn collect(&mut self) -> Result<MeasuredPart, String> {
        let RunningJob { control, lateness_ns, stopped_in, handle, .. } = match self.running.take() {
            None => return Err("nothing was prepared".to_owned()),
            Some(running) if !running.handle.is_finished() => {
                self.running = Some(running);
                return Err("its run is not finished".to_owned());
            }
            Some(running) => running,
        };
        self.generator.set_running(None);
        match handle.join() {
            Ok(Ok(measured)) => {
                let aftermath = control.aftermath();
                let stopped =
                    stopped_in.zip(aftermath.window).map(|(stopped_in, window)| stopped_in(&window));
                Ok(MeasuredPart {
                    measured: MeasuredWindow { stopped_processes: stopped.unwrap_or_default(), ..measured },
                    particulars: control.particulars().into(),
                    unstarted: aftermath.unstarted,
                    outside: aftermath.outside,
                    reconnections: aftermath.reconnections,
                    lost_threads: aftermath.lost_threads,
                    start_lateness_ns: lateness_ns.load(Ordering::Relaxed),
                })
            }
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("its run panicked: a bug in underlay".to_owned()),
        }
    }

    fn end_run(&mut self) {
        self.generator.set_running(None);
        if let Some(RunningJob { control, start, handle, .. }) = self.running.take() {
            // A run that has started sees `stop`; one that still waits for its start gets `None`.
            control.stop.store(true, Ordering::Relaxed);
            let _ = start.try_send(None);
            let _ = handle.join();
        }
    }
}

pub(crate) fn report_of(control: &RunHandle<'_>, has_ended: bool) -> ProgressReport {
    let progress = control.progress();
    ProgressReport {
        operations: progress.operations,
        errors: progress.errors,
        throughput_per_s: finite(progress.throughput_per_s),
        mean_us: finite(progress.mean_us),
        p50_us: finite(progress.p50_us),
        p99_us: finite(progress.p99_us),
        has_ended,
    }
}

/// JSON has no infinities and NaNs.
fn finite(number: f64) -> f64 {
    if number.is_finite() { number } else { 0.0 }
}

/// The function that a run calls when it is connected: it reports that, and waits for the time to start.
fn starter(
    connected: SyncSender<()>,
    starts: Receiver<Option<Instant>>,
    lateness_ns: Arc<AtomicU64>,
) -> Box<dyn Fn() -> Option<Instant> + Send + Sync> {
    let starts = Mutex::new(starts);
    Box::new(move || {
        // Fails if the session is gone, and then there is no start either.
        let _ = connected.send(());
        let start_time = starts.lock().recv().ok().flatten()?;
        let earliest = Instant::now() + GATE_TIME;
        let lateness = earliest.saturating_duration_since(start_time);
        lateness_ns.store(u64::try_from(lateness.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        Some(start_time)
    })
}
