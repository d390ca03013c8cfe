//! Abandoned uploads. Their parts take room in the journal and in the store.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use underlay_sync::Mutex;

use super::GatewayEngine;
use crate::errors::GatewayResult;
use crate::meta::ObjectName;
use crate::model::{UploadRecord, now_ms};

/// The longest and the shortest pause between two looks.
const PAUSE: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);

const EXPIRY: &str = "expiry of uploads";

/// The time of day as it is at least. A clock that jumps ahead must not end what somebody is at: what counts is no more
/// than the time at our start and how long that is ago. One that has been ahead for as long as an upload may rest was
/// wrong at our start, and is right: uploads from before its jump have expired by then.
pub(super) struct WallClock {
    since_start: Box<dyn Fn() -> Duration + Send + Sync>,
    believed_after: Duration,
    state: Mutex<ClockStart>,
}

struct ClockStart {
    /// The time at our start.
    at_ms: i64,
    /// Since when the clock has been ahead of that, and the least that it would have made of our start since then.
    ahead: Option<(Duration, i64)>,
}

impl WallClock {
    pub(super) fn new(believed_after: Duration) -> WallClock {
        let started = crate::ownership::boot_ms();
        let since_start =
            Box::new(move || Duration::from_millis(crate::ownership::boot_ms().saturating_sub(started)));
        let state = Mutex::new(ClockStart { at_ms: now_ms(), ahead: None });
        WallClock { since_start, believed_after, state }
    }

    /// Where the clock says that it is `now_ms`.
    fn certainly_ms(&self, now_ms: i64) -> i64 {
        let elapsed = (self.since_start)();
        let since_ms = i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX);
        let mut started = self.state.lock();
        if now_ms <= started.at_ms.saturating_add(since_ms) {
            started.ahead = None;
            return now_ms;
        }
        let at_ms = now_ms.saturating_sub(since_ms);
        let (begun, least_ms) = started.ahead.map_or((elapsed, at_ms), |(begun, ms)| (begun, ms.min(at_ms)));
        started.ahead = Some((begun, least_ms));
        if elapsed.saturating_sub(begun) >= self.believed_after {
            *started = ClockStart { at_ms: least_ms, ahead: None };
        }
        now_ms.min(started.at_ms.saturating_add(since_ms))
    }
}

impl GatewayEngine {
    /// Ends uploads as they expire, for as long as the engine lives.
    pub(super) fn start_expiring(self: &Arc<Self>) {
        let pause = (self.setup.uploads_expire / 10).clamp(*PAUSE.start(), *PAUSE.end());
        let engine = Arc::downgrade(self);
        // The next start tries again to end the others.
        let set_aside = Arc::new(Mutex::new(HashSet::new()));
        self.supervisor.run(EXPIRY, move || {
            let (engine, set_aside) = (engine.clone(), Arc::clone(&set_aside));
            async move {
                loop {
                    tokio::time::sleep(pause).await;
                    let Some(engine) = engine.upgrade() else { return };
                    if let Err(error) = engine.end_expired_uploads(&set_aside).await {
                        tracing::warn!("cannot end abandoned uploads: {error}");
                    }
                }
            }
        });
    }

    /// Names of uploads alone: what they were begun with is long.
    pub(super) fn uploads_that(
        &self,
        are_wanted: impl Fn(&ObjectName, &UploadRecord) -> bool,
    ) -> GatewayResult<Vec<(ObjectName, String)>> {
        let mut wanted = Vec::new();
        self.metadata.view()?.each_upload(|name, upload, record| {
            if are_wanted(&name, &record) {
                wanted.push((name, upload));
            }
        })?;
        Ok(wanted)
    }

    async fn end_expired_uploads(&self, set_aside: &Mutex<HashSet<String>>) -> GatewayResult<()> {
        let after_ms = i64::try_from(self.setup.uploads_expire.as_millis()).unwrap_or(i64::MAX);
        let before_ms = self.clock.certainly_ms(now_ms()).saturating_sub(after_ms);
        for (name, upload) in self.uploads_that(|_, record| record.begun_ms < before_ms)? {
            if set_aside.lock().contains(&upload) {
                continue;
            }
            let item = format!("upload {upload} of {name}");
            let ending = self.end_upload_that_expired(name.clone(), upload.clone(), before_ms);
            let Ok(ended) = self.supervisor.attempt(EXPIRY, &item, ending).await else {
                set_aside.lock().insert(upload);
                continue;
            };
            if ended? {
                self.counters.expired_uploads.fetch_add(1, Ordering::Relaxed);
                tracing::info!("an upload to {name} has expired: nothing came for {after_ms} ms");
            }
        }
        Ok(())
    }

    /// Returns whether it had expired, and is ended.
    async fn end_upload_that_expired(
        &self,
        name: ObjectName,
        upload: String,
        before_ms: i64,
    ) -> GatewayResult<bool> {
        self.committer
            .commit(Vec::new(), move |change| match change.upload(&name, &upload)? {
                // Looked at here, so that no part comes in between.
                Some(record) if record.begun_ms.max(change.last_part_ms(&upload)?) < before_ms => {
                    change.remove_upload(&name, &upload).map(|_| true)
                }
                _ => Ok(false),
            })
            .await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use proptest::prelude::*;

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    /// One that says 1,000,000 at the start, and what moves it on.
    fn clock() -> (WallClock, Arc<AtomicU64>) {
        let passed_ms = Arc::new(AtomicU64::new(0));
        let passed = Arc::clone(&passed_ms);
        let since_start = Box::new(move || Duration::from_millis(passed.load(Ordering::Relaxed)));
        let state = Mutex::new(ClockStart { at_ms: 1_000_000, ahead: None });
        (WallClock { since_start, believed_after: 7 * DAY, state }, passed_ms)
    }

    #[test]
    fn clock_wrong_at_start_is_accepted_later() {
        let (clock, passed_ms) = clock();
        let day_ms = DAY.as_millis() as i64;
        // Far behind, until somebody sets it on the second day.
        let set_ms = 20_000 * day_ms;
        for day in 0..30 {
            passed_ms.store((day * day_ms) as u64, Ordering::Relaxed);
            let own_ms = 1_000_000 + day * day_ms;
            let certain_ms = clock.certainly_ms(if day < 2 { own_ms } else { own_ms + set_ms });
            assert_eq!(certain_ms, if day < 9 { own_ms } else { own_ms + set_ms }, "day {day}");
        }
        // One that jumps further each day is believed as far as it had got by then.
        let (clock, passed_ms) = self::clock();
        for day in 0..8 {
            passed_ms.store((day * day_ms) as u64, Ordering::Relaxed);
            let certain_ms = clock.certainly_ms(1_000_000 + day * day_ms + (day + 1) * 1000);
            assert_eq!(certain_ms, 1_000_000 + day * day_ms + if day < 7 { 0 } else { 1000 });
        }
    }

    #[test]
    fn jumping_clock_expires_nothing_early() {
        let (clock, passed_ms) = clock();
        let day_ms = DAY.as_millis() as i64;
        passed_ms.store(5000, Ordering::Relaxed);
        assert_eq!(clock.certainly_ms(1_005_000), 1_005_000);
        // A year ahead, a year back, and to the end of time.
        assert_eq!(clock.certainly_ms(1_005_000 + 365 * day_ms), 1_005_000);
        assert_eq!(clock.certainly_ms(1_005_000 - 365 * day_ms), 1_005_000 - 365 * day_ms);
        assert_eq!(clock.certainly_ms(i64::MAX), 1_005_000);
        // A really old time still counts as old, by a clock that was right in between.
        assert_eq!(clock.certainly_ms(1_000_000), 1_000_000);
        passed_ms.store(8 * day_ms as u64, Ordering::Relaxed);
        assert_eq!(clock.certainly_ms(i64::MAX), 1_000_000 + 8 * day_ms);
    }

    /// A clock's errors for at most three days in a row: far ahead, a little, or back.
    fn mistakes() -> impl Strategy<Value = Vec<(u64, i64)>> {
        let day_ms = DAY.as_millis() as i64;
        let wrong = prop_oneof![any::<i64>(), -day_ms..day_ms, Just(0)];
        prop::collection::vec((0..day_ms as u64, wrong), 1..60)
    }

    proptest! {
        #[test]
        fn certain_time_of_faulty_clock_is_never_ahead(mistakes in mistakes()) {
            let (clock, passed_ms) = clock();
            let mut passed = 0;
            for (at, (step_ms, wrong_ms)) in mistakes.into_iter().enumerate() {
                passed += step_ms;
                passed_ms.store(passed, Ordering::Relaxed);
                let right_ms = 1_000_000 + passed as i64;
                let said_ms = if at % 4 == 0 { right_ms } else { right_ms.saturating_add(wrong_ms) };
                let certain_ms = clock.certainly_ms(said_ms);
                prop_assert!(certain_ms <= right_ms && certain_ms <= said_ms, "{certain_ms}, {right_ms}, {said_ms}");
                // Its time is believed as far as possible.
                prop_assert!(certain_ms == said_ms.min(right_ms));
            }
        }
    }
}
