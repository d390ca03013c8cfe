//! Requests that a store has not answered and may still carry out, kept for the next start, which must not send
//! anything newer either.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::GatewayEngine;
use super::sent::{OfBucket, SentRequest};
use crate::errors::{GatewayError, GatewayResult};
use crate::model::now_ms;
use crate::store::{LateRequests, RequestEffect, STORE_TIMEOUT};

/// How often what is new is made durable, and what is on its way looked at. After a power cut, the next start may not
/// know requests sent for less than twice this. After a kill it knows, by the [notes](super::sent) of what was sent.
const KEEP_EVERY: Duration = Duration::from_millis(500);

/// A request by its key and effect, and until when it may be carried out (since 1970).
type UnansweredRequests = Vec<(String, RequestEffect, i64)>;

/// Under which the metadata have those of a bucket, whose name follows.
const UNANSWERED: &[u8] = b"unanswered ";

fn key_of(bucket: &str) -> Vec<u8> {
    [UNANSWERED, bucket.as_bytes()].concat()
}

impl GatewayEngine {
    /// Learns what an earlier start has kept, and what it had sent when it was killed.
    pub(super) async fn recall_unanswered(&self, sent: Vec<SentRequest>) -> GatewayResult<()> {
        let has_news = !sent.is_empty();
        self.recall(sent)?;
        if has_news {
            self.keep_unanswered(false).await?;
        }
        self.sent
            .clear()
            .map_err(|error| GatewayError::local("cannot empty the notes of sent requests", error))
    }

    fn recall(&self, sent: Vec<SentRequest>) -> GatewayResult<()> {
        let kept: Vec<(String, UnansweredRequests)> = self.metadata.view()?.states_below(UNANSWERED)?;
        let mut of_buckets: BTreeMap<String, Vec<(String, RequestEffect, Duration)>> = BTreeMap::new();
        let now = now_ms();
        // What is over comes as well: forgetting it removes the row.
        let left =
            |until_ms: i64| Duration::from_millis(u64::try_from(until_ms.saturating_sub(now)).unwrap_or(0));
        for (bucket, kept) in kept {
            let entries = kept.into_iter().map(|(key, effect, until_ms)| (key, effect, left(until_ms)));
            of_buckets.entry(bucket).or_default().extend(entries);
        }
        let news: BTreeSet<String> = sent.iter().map(|sent| sent.bucket.clone()).collect();
        // Behind the others: of two for one name, the later one counts. How long ago it was sent, nobody knows.
        for SentRequest { bucket, key, effect } in sent {
            of_buckets.entry(bucket).or_default().push((key, effect, Duration::MAX));
        }
        for (bucket, unanswered) in of_buckets.into_iter().filter(|(_, unanswered)| !unanswered.is_empty()) {
            let served =
                self.served.buckets.read().get(&bucket).map(|state| Arc::clone(state.backend.late()));
            let late = served.unwrap_or_else(|| self.late_of_removed(&bucket));
            late.recall(unanswered);
            if news.contains(&bucket) {
                late.not_kept();
            }
        }
        Ok(())
    }

    /// Of a bucket that is not served: it may be made again.
    fn late_of_removed(&self, bucket: &str) -> Arc<LateRequests> {
        let late = Arc::new(LateRequests::new(STORE_TIMEOUT));
        let (log, name) = (Arc::clone(&self.sent), bucket.to_owned());
        late.note_sent_in(Arc::new(OfBucket { log, bucket: name }));
        self.late_of_removed.lock().insert(bucket.to_owned(), Arc::clone(&late));
        late
    }

    /// Of each bucket, also of those that were removed lately.
    pub(super) fn late_of_all(&self) -> Vec<(String, Arc<LateRequests>)> {
        let served = self.bucket_states();
        let served = served.iter().map(|state| (state.name.clone(), Arc::clone(state.backend.late())));
        let removed = self.late_of_removed.lock().clone();
        served.chain(removed).collect()
    }

    /// Makes what is new durable. `at_end` requests on their way stay without an answer.
    ///
    /// # Errors
    /// When the metadata can't be written.
    pub(super) async fn keep_unanswered(&self, at_end: bool) -> GatewayResult<()> {
        for (bucket, late) in self.late_of_all() {
            let Some(unanswered) = late.to_keep(at_end) else { continue };
            let until_ms =
                |left: Duration| now_ms().saturating_add(i64::try_from(left.as_millis()).unwrap_or(i64::MAX));
            let entries: UnansweredRequests =
                unanswered.into_iter().map(|(key, effect, left)| (key, effect, until_ms(left))).collect();
            let key = key_of(&bucket);
            let outcome = self
                .committer
                .commit(Vec::new(), move |change| match entries.is_empty() {
                    // Also buckets that have gone had one.
                    true => change.remove_state(&key),
                    false => change.set_state(&key, &entries),
                })
                .await;
            outcome.inspect_err(|_| late.not_kept())?;
            late.kept();
        }
        self.late_of_removed.lock().retain(|_, late| !late.is_over());
        Ok(())
    }

    /// Does so for as long as the engine lives.
    pub(super) fn start_keeping_unanswered(self: &Arc<Self>) {
        let engine = Arc::downgrade(self);
        self.supervisor.run("keeper of unanswered requests", move || {
            let engine = engine.clone();
            async move {
                loop {
                    tokio::time::sleep(KEEP_EVERY).await;
                    // The notes from the end are not overwritten.
                    let Some(engine) = engine.upgrade().filter(|engine| !engine.queue.is_stopped()) else {
                        return;
                    };
                    if let Err(error) = engine.keep_unanswered(false).await {
                        tracing::warn!("cannot record which requests the stores have not answered: {error}");
                    }
                }
            }
        });
    }
}
