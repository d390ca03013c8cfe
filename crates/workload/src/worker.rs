//! One thread's run: sends operations when they are due, one at a time, and times them.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::client::{Client, ClientError};
use crate::operations::OperationSource;
use crate::pacing::{Clock, Schedule};
use crate::recorder::{Recorder, ThreadRecord, Times, Window};

/// How often a lost connection is made again before the thread gives up, and the first pause before that; each pause is
/// twice the one before.
const RECONNECT_ATTEMPTS: u32 = 5;
const FIRST_RECONNECT_PAUSE_NS: u64 = 100_000_000;

/// Why a thread ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The window is over.
    WindowClosed,
    /// There are no more operations.
    Exhausted,
    Stopped,
    /// The connection was lost for good.
    Lost(ClientError),
}

pub(crate) type Reconnect<'a> = &'a dyn Fn() -> Result<Box<dyn Client>, ClientError>;

/// Everything that one thread needs.
pub(crate) struct Worker<'a, C: Clock> {
    pub clock: C,
    pub client: Box<dyn Client>,
    pub reconnect: Reconnect<'a>,
    pub source: OperationSource<'a>,
    pub recorder: Recorder<'a>,
    /// `None` is a closed loop: an operation is due as soon as the one before was answered.
    pub schedule: Option<Schedule>,
    pub window: Window,
    pub stop: &'a AtomicBool,
    /// Slow motion stretches the pauses too.
    pub dilation: f64,
}

/// What a thread leaves behind.
#[derive(Debug)]
pub(crate) struct WorkerReport {
    pub record: ThreadRecord,
    pub ending: Ending,
    pub reconnections: u32,
}

impl<C: Clock> Worker<'_, C> {
    /// Runs from the clock's present time on until the window ends, operations run out, or it is stopped.
    pub fn run(mut self) -> WorkerReport {
        let mut reconnections = 0;
        let ending = self.send_operations(&mut reconnections);
        if matches!(ending, Ending::WindowClosed | Ending::Lost(_)) {
            self.account_for_the_unstarted();
        }
        WorkerReport { record: self.recorder.finish(), ending, reconnections }
    }

    fn send_operations(&mut self, reconnections: &mut u32) -> Ending {
        // When the thread became free: the end of the operation before.
        let mut free_ns = self.clock.now_ns();
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Ending::Stopped;
            }
            let due_ns = self.schedule.as_ref().map(Schedule::peek_ns);
            if free_ns.max(due_ns.unwrap_or(0)) >= self.window.end_ns {
                // Nothing more is due, but the window is not over: whoever watches must not see the thread end early.
                let now_ns = self.clock.wait_until_ns(self.window.end_ns, self.stop);
                return if now_ns < self.window.end_ns { Ending::Stopped } else { Ending::WindowClosed };
            }
            let Some(kind) = self.source.prepare() else { return Ending::Exhausted };
            let start_ns = match due_ns {
                None => {
                    self.source.launch();
                    self.clock.now_ns()
                }
                Some(due_ns) => {
                    let start_ns = self.clock.wait_until_ns(due_ns, self.stop);
                    if start_ns < due_ns {
                        return Ending::Stopped;
                    }
                    self.source.launch();
                    self.recorder.record_lateness(due_ns, start_ns - due_ns.max(free_ns));
                    start_ns
                }
            };
            let answer = self.source.execute(self.client.as_mut());
            let end_ns = self.clock.now_ns();
            free_ns = end_ns;
            if let Some(schedule) = &mut self.schedule {
                schedule.advance();
            }
            let times = Times { intended_ns: due_ns.unwrap_or(start_ns), start_ns, end_ns };
            self.recorder.record(kind, times, &answer);
            if let Err(mismatch) = self.source.finish(&answer) {
                self.recorder.record_mismatch(kind, &mismatch);
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

    fn make_connection_again(&mut self) -> Result<(), Ending> {
        let mut pause_ns = (FIRST_RECONNECT_PAUSE_NS as f64 * self.dilation) as u64;
        let mut last = ClientError::Lost("no connection was tried".to_owned());
        for _ in 0..RECONNECT_ATTEMPTS {
            let until_ns = self.clock.now_ns().saturating_add(pause_ns);
            if self.clock.wait_until_ns(until_ns, self.stop) < until_ns {
                return Err(Ending::Stopped);
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
        Err(Ending::Lost(last))
    }

    /// Arrivals within the window that this thread did not get to have waited until its end: leaving them out would
    /// make a saturated system look fast.
    fn account_for_the_unstarted(&mut self) {
        let Some(schedule) = &mut self.schedule else { return };
        while schedule.peek_ns() < self.window.end_ns {
            let due_ns = schedule.peek_ns();
            schedule.advance();
            if due_ns < self.window.begin_ns {
                continue;
            }
            let Some(kind) = self.source.skip() else { return };
            self.recorder.record_unstarted(kind, due_ns);
        }
    }
}
