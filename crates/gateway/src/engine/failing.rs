//! Names that can't be stored: why, for how long, and how it is shown. Failures that pass are tried again soon; refusals by a store ever more seldom.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Engine;
use crate::errors::{Error, Refusal};
use crate::meta::Name;
use crate::model::now_ms;

/// What has failed for less is not worth a line.
const LONG: Duration = Duration::from_secs(60);
/// How often the log lists what has failed for long.
const SAY_EVERY: Duration = Duration::from_secs(60);
/// Names in a line of the log.
const MOST_SAID: usize = 5;
/// A copy that was refused so often is sent as bytes.
pub(super) const MOST_REFUSED_COPIES: u32 = 2;
/// Of the text of an error.
const MOST_WHY_CHARS: usize = 500;

/// Why a name can't be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// The store is down, slow, full, or says something else next time.
    Passing,
    Refused(Refusal),
    /// A bug of the gateway.
    Panicked,
}

impl Cause {
    pub(super) fn of(error: &Error) -> Cause {
        match error {
            Error::Refused { refusal, .. } => Cause::Refused(*refusal),
            Error::NotImplemented(_) => Cause::Refused(Refusal::NotSupported),
            Error::KeyTooLong(_) | Error::NameTaken(_) => Cause::Refused(Refusal::Name),
            Error::AccessDenied(_) => Cause::Refused(Refusal::Denied),
            _ => Cause::Passing,
        }
    }

    /// Whether it would be the same next time, as far as is known.
    pub(super) fn is_lasting(self) -> bool {
        self != Cause::Passing
    }

    /// The label of `/metrics` and `top`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Cause::Passing => "unavailable",
            Cause::Refused(refusal) => refusal.word(),
            Cause::Panicked => "panic",
        }
    }

    /// How long a name waits that has failed so often in a row. Somebody waits for what `is_hurried`.
    pub(super) fn pause(self, attempts: u32, is_hurried: bool) -> Duration {
        let (first_ms, most_s) = match (self, is_hurried) {
            (Cause::Passing, _) | (Cause::Refused(_), true) => (100, 30),
            (Cause::Refused(_), false) => (100, 600),
            (Cause::Panicked, true) => (500, 30),
            (Cause::Panicked, false) => (10_000, 600),
        };
        let pause = Duration::from_millis(first_ms).saturating_mul(2_u32.pow(attempts.min(16)));
        pause.min(Duration::from_secs(most_s))
    }
}

/// An attempt that failed.
pub(super) struct Failure {
    pub(super) cause: Cause,
    pub(super) error: Error,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { cause: Cause::of(&error), error }
    }
}

impl Failure {
    pub(super) fn why(&self) -> String {
        self.error.to_string().chars().take(MOST_WHY_CHARS).collect()
    }
}

/// A name that is not stored, and why not, if an attempt has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unstored {
    pub(crate) name: Name,
    pub(crate) failed: Option<Failed>,
}

/// Since when a name fails, and why it did the last time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    /// Since 1970.
    pub(crate) since_ms: i64,
    pub(crate) cause: Cause,
    pub(crate) why: String,
}

impl fmt::Display for Unstored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.failed {
            None => write!(f, "{}: not tried yet, or waiting for another object", self.name),
            Some(failed) => write!(
                f,
                "{}: {} for {} s: {}",
                self.name,
                failed.cause.word(),
                seconds_since(failed.since_ms),
                failed.why
            ),
        }
    }
}

fn seconds_since(ms: i64) -> i64 {
    now_ms().saturating_sub(ms).max(0) / 1000
}

impl Engine {
    /// Names that have failed for long, the first ones that did, no more than `most`.
    pub(crate) fn failing(&self, most: usize) -> Vec<Unstored> {
        let long_ms = i64::try_from(LONG.as_millis()).unwrap_or(i64::MAX);
        self.queue.failing(now_ms().saturating_sub(long_ms), most)
    }

    /// How many names have failed at their last attempt, by cause.
    pub(crate) fn failing_counts(&self) -> Vec<(Cause, usize)> {
        self.queue.failing_counts()
    }

    /// Names that are not stored, those that failed first, no more than `most`.
    pub(crate) fn unstored(&self, most: usize) -> Vec<Unstored> {
        self.queue.unstored(most)
    }

    /// Whether all that is left to store is refused, again and again since a drain began.
    pub(crate) fn is_held_up(&self) -> bool {
        self.queue.is_held_up()
    }

    /// Has the log list what has failed for long, for as long as the engine lives.
    pub(super) fn start_reporting(self: &Arc<Self>) {
        let engine = Arc::downgrade(self);
        self.supervisor.run("reporter of failures", move || {
            let engine = engine.clone();
            async move {
                loop {
                    tokio::time::sleep(SAY_EVERY).await;
                    let Some(engine) = engine.upgrade() else { return };
                    engine.say_failing();
                }
            }
        });
    }

    fn say_failing(&self) {
        let failing = self.failing(MOST_SAID);
        if failing.is_empty() {
            return;
        }
        let counts: Vec<String> =
            self.failing_counts().iter().map(|(cause, count)| format!("{count} {}", cause.word())).collect();
        let names: Vec<String> = failing.iter().map(Unstored::to_string).collect();
        tracing::warn!(
            "objects fail to be stored, and are safe in the journal: {}\n  {}",
            counts.join(", "),
            names.join("\n  ")
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_tried_ever_more_seldom() {
        let refused = Cause::Refused(Refusal::Request);
        for cause in [Cause::Passing, refused, Cause::Panicked] {
            for is_hurried in [false, true] {
                let pauses: Vec<Duration> =
                    (1..40).map(|attempts| cause.pause(attempts, is_hurried)).collect();
                assert!(pauses.is_sorted(), "{pauses:?}");
            }
        }
        let last = |cause: Cause, is_hurried| cause.pause(u32::MAX, is_hurried).as_secs();
        assert_eq!((last(Cause::Passing, false), last(refused, false)), (30, 600));
        // A drain waits for it.
        assert_eq!((last(refused, true), last(Cause::Panicked, true)), (30, 30));
    }

    #[test]
    fn a_cause_is_told_by_the_type_of_an_error() {
        let refused = Error::Refused { refusal: Refusal::Links, text: "503 no answer".to_owned() };
        assert_eq!(Cause::of(&refused), Cause::Refused(Refusal::Links));
        assert_eq!(Cause::of(&Error::Store("403 AccessDenied".to_owned())), Cause::Passing);
    }
}
