//! Names that can't be stored: why, for how long, and how it is shown. Failures that pass are tried again soon;
//! refusals by a store ever more seldom.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::GatewayEngine;
use crate::errors::{GatewayError, StoreRefusal};
use crate::meta::ObjectName;
use crate::model::now_ms;

/// A shorter failure is not worth a line.
const LONG: Duration = Duration::from_secs(60);
/// How often the log lists what has failed for long.
const SAY_EVERY: Duration = Duration::from_secs(60);
/// Names in a line of the log.
const MAX_LOGGED: usize = 5;
/// A copy that was refused so often is sent as bytes.
pub(super) const MAX_REFUSED_COPIES: u32 = 2;
/// Of the text of an error.
const MAX_REASON_CHARS: usize = 500;

/// Why a name can't be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FailureCause {
    /// The store is down, slow, full, or says something else next time.
    Passing,
    Refused(StoreRefusal),
    /// A bug of the gateway.
    Panicked,
}

impl FailureCause {
    pub(super) fn from_error(error: &GatewayError) -> FailureCause {
        match error {
            GatewayError::Refused { refusal, .. } => FailureCause::Refused(*refusal),
            GatewayError::NotImplemented(_) => FailureCause::Refused(StoreRefusal::NotSupported),
            GatewayError::KeyTooLong(_) | GatewayError::NameTaken(_) => {
                FailureCause::Refused(StoreRefusal::Name)
            }
            GatewayError::AccessDenied(_) => FailureCause::Refused(StoreRefusal::Denied),
            GatewayError::TooLarge(_) => FailureCause::Refused(StoreRefusal::TooLarge),
            _ => FailureCause::Passing,
        }
    }

    /// Whether it would be the same next time, as far as is known.
    pub(super) fn is_lasting(self) -> bool {
        self != FailureCause::Passing
    }

    /// The label of `/metrics` and `top`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            FailureCause::Passing => "unavailable",
            FailureCause::Refused(refusal) => refusal.word(),
            FailureCause::Panicked => "panic",
        }
    }

    /// How long a name waits that has failed so often in a row. Somebody waits for what `is_hurried`.
    pub(super) fn pause(self, attempts: u32, is_hurried: bool) -> Duration {
        let (first_ms, most_s) = match (self, is_hurried) {
            (FailureCause::Passing, _) | (FailureCause::Refused(_), true) => (100, 30),
            (FailureCause::Refused(_), false) => (100, 600),
            (FailureCause::Panicked, true) => (500, 30),
            (FailureCause::Panicked, false) => (10_000, 600),
        };
        let pause = Duration::from_millis(first_ms).saturating_mul(2_u32.pow(attempts.min(16)));
        pause.min(Duration::from_secs(most_s))
    }
}

/// An attempt that failed.
pub(super) struct FailedAttempt {
    pub(super) cause: FailureCause,
    pub(super) error: GatewayError,
}

impl From<GatewayError> for FailedAttempt {
    fn from(error: GatewayError) -> FailedAttempt {
        FailedAttempt { cause: FailureCause::from_error(&error), error }
    }
}

impl FailedAttempt {
    pub(super) fn reason(&self) -> String {
        self.error.to_string().chars().take(MAX_REASON_CHARS).collect()
    }
}

/// A name that is not stored, and why not, if an attempt has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnstoredName {
    pub(crate) name: ObjectName,
    pub(crate) failed: Option<FailingName>,
}

/// Since when a name fails, and why it did the last time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FailingName {
    /// Since 1970.
    pub(crate) since_ms: i64,
    pub(crate) cause: FailureCause,
    pub(crate) why: String,
}

impl fmt::Display for UnstoredName {
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

impl GatewayEngine {
    /// Names that have failed for long, the first ones that did, no more than `most`; those of unfinished uploads come
    /// last.
    pub(crate) fn failing(&self, most: usize) -> Vec<UnstoredName> {
        let long_ms = i64::try_from(LONG.as_millis()).unwrap_or(i64::MAX);
        let before_ms = now_ms().saturating_sub(long_ms);
        let mut failing = self.queue.failing(before_ms, most);
        failing.extend(self.spills.failing(before_ms, most - failing.len()));
        failing
    }

    /// How many names, and parts of unfinished uploads, have failed at their last attempt, by cause.
    pub(crate) fn failing_counts(&self) -> Vec<(FailureCause, usize)> {
        let mut counts = self.spills.failing_counts();
        for (cause, count) in self.queue.failing_counts() {
            *counts.entry(cause).or_default() += count;
        }
        counts.into_iter().collect()
    }

    /// Names that are not stored, those that failed first, no more than `most`.
    pub(crate) fn unstored(&self, most: usize) -> Vec<UnstoredName> {
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
        let failing = self.failing(MAX_LOGGED);
        if failing.is_empty() {
            return;
        }
        let counts: Vec<String> =
            self.failing_counts().iter().map(|(cause, count)| format!("{count} {}", cause.word())).collect();
        let names: Vec<String> = failing.iter().map(UnstoredName::to_string).collect();
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
    fn refused_name_is_retried_less_and_less() {
        let refused = FailureCause::Refused(StoreRefusal::Request);
        for cause in [FailureCause::Passing, refused, FailureCause::Panicked] {
            for is_hurried in [false, true] {
                let pauses: Vec<Duration> =
                    (1..40).map(|attempts| cause.pause(attempts, is_hurried)).collect();
                assert!(pauses.is_sorted(), "{pauses:?}");
            }
        }
        let last = |cause: FailureCause, is_hurried| cause.pause(u32::MAX, is_hurried).as_secs();
        assert_eq!((last(FailureCause::Passing, false), last(refused, false)), (30, 600));
        // A drain waits for it.
        assert_eq!((last(refused, true), last(FailureCause::Panicked, true)), (30, 30));
    }

    #[test]
    fn failure_cause_follows_error_type() {
        let refused =
            GatewayError::Refused { refusal: StoreRefusal::Links, text: "503 no answer".to_owned() };
        assert_eq!(FailureCause::from_error(&refused), FailureCause::Refused(StoreRefusal::Links));
        assert_eq!(
            FailureCause::from_error(&GatewayError::Store("403 AccessDenied".to_owned())),
            FailureCause::Passing
        );
    }
}
