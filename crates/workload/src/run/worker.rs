//! One thread's run: sends operations when they are due, one at a time, and times them.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::client::{Client, ClientError, OperationOutcome};
use crate::draw::operations::OperationSource;
use crate::mix::OperationKind;
use crate::run::clock::RunClock;
use crate::run::pacing::ThreadSchedule;
use crate::run::recorder::{MeasuredSpan, OperationBurst, OperationTimes, ThreadRecord, ThreadRecorder};

/// How many arrivals a stopped thread still accounts for: with more, a user would have to wait.
const MAX_COUNTED_AFTER_STOP: u32 = 1_000_000;
/// How often a thread tries to restore a lost connection, and the first pause before that; each pause is twice the
/// previous one.
const RECONNECT_ATTEMPTS: u32 = 5;
const FIRST_RECONNECT_PAUSE_NS: u64 = 100_000_000;

/// Operations of a closed loop that follow one another within this time are recorded together. Live progress lags by
/// the same time.
const MAX_BURST_NS: u64 = 20_000;

/// Why a thread ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ThreadEnding {
    /// The window is over.
    WindowClosed,
    /// There are no more operations.
    Exhausted,
    Stopped,
    /// The connection was lost for good.
    Lost(ClientError),
}

pub(crate) type ClientReconnector<'a> = &'a dyn Fn() -> Result<Box<dyn Client>, ClientError>;

/// Everything that a thread needs.
pub(crate) struct WorkerThread<'a, C: RunClock> {
    pub clock: C,
    pub client: Box<dyn Client>,
    pub reconnect: ClientReconnector<'a>,
    pub source: OperationSource<'a>,
    pub recorder: ThreadRecorder<'a>,
    /// `None` is a closed loop: an operation is due as soon as the previous one was answered.
    pub schedule: Option<ThreadSchedule>,
    pub window: MeasuredSpan,
    pub stop: &'a AtomicBool,
    /// Slow motion stretches the pauses too.
    pub dilation: f64,
    /// Room for operations that are recorded together.
    pub burst: OperationBurst,
}

/// An operation that was sent and answered.
struct AnsweredOperation {
    kind: OperationKind,
    due_ns: Option<u64>,
    start_ns: u64,
    end_ns: u64,
    answer: Result<OperationOutcome, ClientError>,
}

/// The results of a thread.
#[derive(Debug)]
pub(crate) struct WorkerReport {
    pub record: ThreadRecord,
    pub ending: ThreadEnding,
    /// When it noticed that it was stopped.
    pub stopped_ns: Option<u64>,
    pub reconnections: u32,
}

impl<C: RunClock> WorkerThread<'_, C> {
    /// Runs from the clock's present time on until the window ends, operations run out, or it is stopped.
    pub(crate) fn run(mut self) -> WorkerReport {
        let mut reconnections = 0;
        let mut ending = self.send_operations(&mut reconnections);
        let stopped_ns = (ending == ThreadEnding::Stopped).then(|| self.clock.now_ns());
        // Operations due up to this time count as never sent: the window's end, or when the run was stopped.
        let until_ns = match ending {
            ThreadEnding::WindowClosed => Some(self.window.end_ns),
            // Where operations are numbered, other threads send the ones that this thread could not.
            ThreadEnding::Lost(_) if !self.source.is_limited() => Some(self.window.end_ns),
            ThreadEnding::Stopped if !self.source.is_limited() => {
                stopped_ns.map(|stopped_at_ns| stopped_at_ns.min(self.window.end_ns))
            }
            ThreadEnding::Lost(_) | ThreadEnding::Exhausted | ThreadEnding::Stopped => None,
        };
        if until_ns.is_some_and(|until_ns| !self.account_for_the_unstarted(until_ns)) {
            ending = ThreadEnding::Stopped;
        }
        let begun_ns = self.clock.now_ns();
        drop(self.client);
        self.recorder.record_closing(self.clock.now_ns().saturating_sub(begun_ns));
        WorkerReport { record: self.recorder.finish(), ending, stopped_ns, reconnections }
    }

    fn send_operations(&mut self, reconnections: &mut u32) -> ThreadEnding {
        // When the thread became free: the end of the previous operation.
        let mut free_ns = self.clock.now_ns();
        // Whether that is still the present time. In a closed loop it is the start of an operation that has been drawn,
        // and the clock need not be read again.
        let mut is_present = true;
        if let Some(schedule) = &self.schedule {
            self.recorder.note_first_due(schedule.peek_ns());
        }
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return ThreadEnding::Stopped;
            }
            let due_ns = self.schedule.as_ref().map(ThreadSchedule::peek_ns);
            if let Some(due_ns) = due_ns {
                self.recorder.note_next_due(free_ns, due_ns);
            }
            if free_ns.max(due_ns.unwrap_or(0)) >= self.window.end_ns {
                // Nothing more is due, but the window is not over: the thread must not seem to end early.
                let now_ns = self.clock.wait_until_ns(self.window.end_ns, self.stop);
                return if now_ns < self.window.end_ns {
                    ThreadEnding::Stopped
                } else {
                    ThreadEnding::WindowClosed
                };
            }
            let sent = if self.may_send_burst() {
                match self.send_burst() {
                    (_, Some(odd)) => odd,
                    (ended_ns, None) => {
                        (free_ns, is_present) = (ended_ns, false);
                        continue;
                    }
                }
            } else {
                match self.send_next(due_ns, free_ns, is_present) {
                    Ok(sent) => sent,
                    Err(ending) => return ending,
                }
            };
            let AnsweredOperation { kind, due_ns, start_ns, end_ns, answer } = sent;
            free_ns = end_ns;
            if let Some(schedule) = &mut self.schedule {
                schedule.advance();
            }
            let has_parts = kind == OperationKind::ReadModifyWrite;
            let read_end_ns = if has_parts { self.source.read_end_ns() } else { None };
            let times =
                OperationTimes { intended_ns: due_ns.unwrap_or(start_ns), start_ns, end_ns, read_end_ns };
            let took_time = self.recorder.record(kind, times, &answer);
            if has_parts {
                self.recorder.record_parts(times, &answer);
            }
            is_present = !(took_time || has_parts || self.source.checks_values());
            self.source.finish();
            if self.source.checks_values() {
                let begun_ns = self.clock.now_ns();
                let checked = self.source.check(&answer);
                let took_ns = self.clock.now_ns().saturating_sub(begun_ns);
                self.recorder.record_check(kind, &checked, took_ns);
            }
            if let Err(ClientError::Lost(_)) = &answer {
                match self.make_connection_again() {
                    Ok(()) => *reconnections += 1,
                    Err(ending) => return ending,
                }
                free_ns = self.clock.now_ns();
            }
        }
    }

    /// Sends the next operation when it is due. The thread is free since `free_ns`, which is now if `is_present`.
    #[inline]
    fn send_next(
        &mut self,
        due_ns: Option<u64>,
        free_ns: u64,
        is_present: bool,
    ) -> Result<AnsweredOperation, ThreadEnding> {
        let Some(preparation) = self.source.prepare() else { return Err(ThreadEnding::Exhausted) };
        let mut start_ns = match due_ns {
            None if is_present && preparation.is_at_hand => free_ns,
            None => {
                self.source.launch();
                self.clock.now_ns()
            }
            Some(due_ns) => {
                let start_ns = self.clock.wait_until_ns(due_ns, self.stop);
                if start_ns < due_ns {
                    return Err(ThreadEnding::Stopped);
                }
                self.source.launch();
                // From when the thread was free. Waiting for the previous answer is due to the system, and part of the
                // latency; lateness is the generator's own addition.
                self.recorder.record_lateness(due_ns, start_ns.saturating_sub(due_ns.max(free_ns)));
                start_ns
            }
        };
        let clock = &self.clock;
        let mut answer = self.source.execute(self.client.as_mut(), || clock.now_ns());
        let mut end_ns = self.clock.now_ns();
        while self.source.may_try_again(&answer) {
            let times = OperationTimes {
                intended_ns: due_ns.unwrap_or(start_ns),
                start_ns,
                end_ns,
                read_end_ns: None,
            };
            self.recorder.record_repeated(preparation.kind, times, &answer);
            // A pause is in modelled time, the clock in wall time.
            let until_ns = end_ns.saturating_add((self.source.next_pause_ns() as f64 * self.dilation) as u64);
            if self.clock.wait_until_ns(until_ns, self.stop) < until_ns {
                return Err(ThreadEnding::Stopped);
            }
            start_ns = self.clock.now_ns();
            let clock = &self.clock;
            // `due_ns` stays: in an open loop the latency covers failed attempts and the pauses between them.
            answer = self.source.execute(self.client.as_mut(), || clock.now_ns());
            end_ns = self.clock.now_ns();
        }
        Ok(AnsweredOperation { kind: preparation.kind, due_ns, start_ns, end_ns, answer })
    }

    #[inline]
    fn may_send_burst(&self) -> bool {
        self.schedule.is_none() && self.source.has_prompt() && !self.source.checks_values()
    }

    /// In a closed loop, sends the drawn operations back to back and records them together. This takes less time than
    /// one by one, and operations of an in-memory system take little more. Returns when the last of them ended. One
    /// with another outcome, or one too late to be recorded with the others, is left to the caller.
    #[inline]
    fn send_burst(&mut self) -> (u64, Option<AnsweredOperation>) {
        let begin_ns = self.clock.now_ns();
        let end_ns = self.recorder.burst_end_ns(begin_ns).min(begin_ns.saturating_add(MAX_BURST_NS));
        let (mut start_ns, mut odd) = (begin_ns, None);
        while !self.burst.is_full()
            && let Some(kind) = self.source.take_prompt()
        {
            let clock = &self.clock;
            let answer = self.source.execute(self.client.as_mut(), || clock.now_ns());
            let now_ns = self.clock.now_ns();
            // `record_burst` takes only operations that found their records before this time.
            if now_ns >= end_ns || answer != Ok(OperationOutcome::Found) {
                odd = Some(AnsweredOperation { kind, due_ns: None, start_ns, end_ns: now_ns, answer });
                break;
            }
            self.burst.add(kind, now_ns);
            start_ns = now_ns;
        }
        self.recorder.record_burst(begin_ns, &mut self.burst);
        if odd.is_none() {
            self.source.draw_ahead();
        }
        (start_ns, odd)
    }

    fn make_connection_again(&mut self) -> Result<(), ThreadEnding> {
        let mut pause_ns = (FIRST_RECONNECT_PAUSE_NS as f64 * self.dilation) as u64;
        let mut last = ClientError::Lost("no connection was tried".to_owned());
        for _ in 0..RECONNECT_ATTEMPTS {
            let until_ns = self.clock.now_ns().saturating_add(pause_ns);
            if self.clock.wait_until_ns(until_ns, self.stop) < until_ns {
                return Err(ThreadEnding::Stopped);
            }
            match (self.reconnect)() {
                Ok(client) => {
                    self.client = client;
                    return Ok(());
                }
                Err(error) => last = error,
            }
            pause_ns = pause_ns.saturating_mul(2);
        }
        Err(ThreadEnding::Lost(last))
    }

    /// Arrivals within the window that this thread did not reach have waited until its end, or until the stop: leaving
    /// them out would make a saturated system look fast. False if a stop cut this short: an extreme rate has more
    /// arrivals than can be counted.
    fn account_for_the_unstarted(&mut self, until_ns: u64) -> bool {
        let Some(schedule) = &mut self.schedule else { return true };
        let mut left_after_stop = MAX_COUNTED_AFTER_STOP;
        while schedule.peek_ns() < until_ns {
            if self.stop.load(Ordering::Relaxed) {
                if left_after_stop == 0 {
                    return false;
                }
                left_after_stop -= 1;
            }
            let due_ns = schedule.peek_ns();
            schedule.advance();
            if due_ns < self.window.begin_ns {
                continue;
            }
            let Some(kind) = self.source.skip() else { break };
            self.recorder.record_unstarted(kind, due_ns, until_ns);
        }
        true
    }
}
