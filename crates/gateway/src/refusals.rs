//! Writes that are refused for want of room: counted by cause, and logged. Thousands may be refused in a second, so the
//! log has the first of each cause, and then one a minute.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use underlay_sync::Mutex;

use crate::errors::GatewayError;

const SAY_EVERY: Duration = Duration::from_secs(60);

/// The resource without room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusalCause {
    /// The file system of the local directory.
    Disk,
    /// The journal, for whole objects.
    Journal,
    /// The part of the journal that unfinished uploads may take.
    Uploads,
    /// Memory for names that the store is not up to date at.
    Names,
}

/// The messages for a cause.
struct RefusalRow {
    cause: RefusalCause,
    /// In the metrics.
    label: &'static str,
    /// For the client, and in the log.
    why: &'static str,
    /// For the gateway's administrator.
    what_to_do: &'static str,
}

const ROWS: [RefusalRow; 4] = [
    RefusalRow {
        cause: RefusalCause::Disk,
        label: "disk",
        why: "the gateway's local disk is full: try again later",
        what_to_do: "check what else is on the disk of [local] and make room there, or use a larger disk; if the store is slow or down, the journal may have filled it: then make `journal` smaller than the disk",
    },
    RefusalRow {
        cause: RefusalCause::Journal,
        label: "journal",
        why: "the journal is full: the store takes objects more slowly than they come, or uploads are unfinished: try again later",
        what_to_do: "see whether the store answers (`underlay-gateway top` shows the last failure), or raise `journal` in [local]",
    },
    RefusalRow {
        cause: RefusalCause::Uploads,
        label: "uploads",
        why: "the part of the journal for uploads in parts is full: the store takes parts more slowly than they come: try again later",
        what_to_do: "see whether the store answers (`underlay-gateway top` shows the last failure), abort uploads that clients have left behind, or raise `journal` in [local]",
    },
    RefusalRow {
        cause: RefusalCause::Names,
        label: "names",
        why: "as many objects wait for the store as the gateway has memory for, since they come faster than the store takes them: try again later",
        what_to_do: "see whether the store answers or refuses some (`underlay-gateway top` shows both), or raise `memory` in [local]",
    },
];

#[derive(Default)]
struct RefusalReport {
    since: Option<Instant>,
    untold: u64,
}

/// See the module.
#[derive(Default)]
pub(crate) struct RefusalLog {
    counts: [AtomicU64; ROWS.len()],
    told: Mutex<[RefusalReport; ROWS.len()]>,
}

impl std::fmt::Debug for RefusalLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.counts).finish()
    }
}

impl RefusalLog {
    /// Counts a refusal. Returns the client's error.
    pub(crate) fn refuse(&self, cause: RefusalCause) -> GatewayError {
        self.refuse_at(cause, Instant::now()).0
    }

    /// The same, and what was written to the log.
    fn refuse_at(&self, cause: RefusalCause, now: Instant) -> (GatewayError, Option<String>) {
        let index = ROWS.iter().position(|row| row.cause == cause).unwrap_or_default();
        let row = &ROWS[index];
        self.counts[index].fetch_add(1, Ordering::Relaxed);
        let mut all = self.told.lock();
        let report = &mut all[index];
        report.untold += 1;
        let is_due = report.since.is_none_or(|previous| now.saturating_duration_since(previous) >= SAY_EVERY);
        let line = is_due.then(|| {
            format!(
                "{} writes were answered with SlowDown: {}\n  what to do: {}",
                std::mem::take(&mut report.untold),
                row.why,
                row.what_to_do
            )
        });
        if let Some(line) = &line {
            report.since = Some(now);
            tracing::warn!("{line}");
        }
        (GatewayError::Busy(row.why.to_owned()), line)
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
    fn refusals_are_logged_once_and_then_each_minute() {
        let (refusals, begun) = (RefusalLog::default(), Instant::now());
        let line_after = |cause, after_s| refusals.refuse_at(cause, begun + Duration::from_secs(after_s)).1;
        let first = line_after(RefusalCause::Disk, 0).unwrap();
        assert!(first.starts_with("1 writes") && first.contains("what to do"), "{first}");
        for after_s in [0, 1, 59] {
            assert_eq!(line_after(RefusalCause::Disk, after_s), None);
        }
        // Another cause is logged separately.
        assert!(
            line_after(RefusalCause::Uploads, 30).is_some()
                && line_after(RefusalCause::Uploads, 31).is_none()
        );
        let next = line_after(RefusalCause::Disk, 60).unwrap();
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
    fn refusal_causes_all_have_rows() {
        for cause in [RefusalCause::Disk, RefusalCause::Journal, RefusalCause::Uploads, RefusalCause::Names] {
            assert_eq!(ROWS.iter().filter(|row| row.cause == cause).count(), 1, "{cause:?}");
        }
    }
}
