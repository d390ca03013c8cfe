//! Writes that are refused for want of room: counted by cause, and logged. Thousands may be refused in a second, so the log has the first of
//! each cause, and then one a minute.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use underlay_sync::Mutex;

use crate::errors::Error;

const SAY_EVERY: Duration = Duration::from_secs(60);

/// What there is no room in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The file system of the local directory.
    Disk,
    /// The journal, for whole objects.
    Journal,
    /// The part of the journal that unfinished uploads may take.
    Uploads,
    /// Memory for names that the store is not up to date at.
    Names,
}

/// What is said of a cause.
struct Row {
    cause: Cause,
    /// In the metrics.
    label: &'static str,
    /// For the client, and in the log.
    why: &'static str,
    /// For the gateway's administrator.
    what_to_do: &'static str,
}

const ROWS: [Row; 4] = [
    Row {
        cause: Cause::Disk,
        label: "disk",
        why: "the gateway's local disk is full: try again later",
        what_to_do: "check what else is on the disk of [local] and make room there, or use a larger disk; if the store is slow or down, the journal may have filled it: then make `journal` smaller than the disk",
    },
    Row {
        cause: Cause::Journal,
        label: "journal",
        why: "the journal is full: the store takes objects more slowly than they come, or uploads are unfinished: try again later",
        what_to_do: "see whether the store answers (`underlay-gateway top` shows the last failure), or raise `journal` in [local]",
    },
    Row {
        cause: Cause::Uploads,
        label: "uploads",
        why: "the part of the journal for uploads in parts is full: the store takes parts more slowly than they come: try again later",
        what_to_do: "see whether the store answers (`underlay-gateway top` shows the last failure), abort uploads that clients have left behind, or raise `journal` in [local]",
    },
    Row {
        cause: Cause::Names,
        label: "names",
        why: "as many objects wait for the store as the gateway has memory for, since they come faster than the store takes them: try again later",
        what_to_do: "see whether the store answers or refuses some (`underlay-gateway top` shows both), or raise `memory` in [local]",
    },
];

#[derive(Default)]
struct Told {
    since: Option<Instant>,
    untold: u64,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Refusals {
    counts: [AtomicU64; ROWS.len()],
    told: Mutex<[Told; ROWS.len()]>,
}

impl std::fmt::Debug for Refusals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.counts).finish()
    }
}

impl Refusals {
    /// Counts a refusal. Returns the client's error.
    pub(crate) fn refuse(&self, cause: Cause) -> Error {
        self.refuse_at(cause, Instant::now()).0
    }

    /// The same, and what was written to the log.
    fn refuse_at(&self, cause: Cause, now: Instant) -> (Error, Option<String>) {
        let at = ROWS.iter().position(|row| row.cause == cause).unwrap_or_default();
        let row = &ROWS[at];
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        let mut all = self.told.lock();
        let told = &mut all[at];
        told.untold += 1;
        let is_due = told.since.is_none_or(|since| now.saturating_duration_since(since) >= SAY_EVERY);
        let line = is_due.then(|| {
            format!(
                "{} writes were answered with SlowDown: {}\n  what to do: {}",
                std::mem::take(&mut told.untold),
                row.why,
                row.what_to_do
            )
        });
        if let Some(line) = &line {
            told.since = Some(now);
            tracing::warn!("{line}");
        }
        (Error::Busy(row.why.to_owned()), line)
    }

    /// How many there were since the start, by the cause's name.
    pub(crate) fn counts(&self) -> Vec<(String, u64)> {
        let counts = ROWS.iter().zip(&self.counts);
        counts.map(|(row, count)| (row.label.to_owned(), count.load(Ordering::Relaxed))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_refusal_of_a_cause_is_told_of_and_then_one_a_minute() {
        let (refusals, begun) = (Refusals::default(), Instant::now());
        let said = |cause, after_s| refusals.refuse_at(cause, begun + Duration::from_secs(after_s)).1;
        let first = said(Cause::Disk, 0).unwrap();
        assert!(first.starts_with("1 writes") && first.contains("what to do"), "{first}");
        for after_s in [0, 1, 59] {
            assert_eq!(said(Cause::Disk, after_s), None);
        }
        // Another cause is logged separately.
        assert!(said(Cause::Uploads, 30).is_some() && said(Cause::Uploads, 31).is_none());
        let next = said(Cause::Disk, 60).unwrap();
        assert!(next.starts_with("4 writes"), "{next}");
        let counts = refusals.counts();
        assert_eq!(
            counts,
            [
                ("disk".to_owned(), 5),
                ("journal".to_owned(), 0),
                ("uploads".to_owned(), 2),
                ("names".to_owned(), 0)
            ]
        );
    }

    #[test]
    fn each_cause_has_a_row() {
        for cause in [Cause::Disk, Cause::Journal, Cause::Uploads, Cause::Names] {
            assert_eq!(ROWS.iter().filter(|row| row.cause == cause).count(), 1, "{cause:?}");
        }
    }
}
