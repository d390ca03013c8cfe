//! Requests that a store has not answered and may still carry out, kept for the next start, which must not send anything newer either.

use std::sync::Arc;
use std::time::Duration;

use super::Engine;
use super::sent::Sent;
use crate::errors::{Error, Result};
use crate::model::now_ms;
use crate::store::Effect;

/// How often what is new is made durable, and what is on its way looked at. What a power cut finds sent for less than twice this, the next start
/// may not know of. After a kill it knows, by the [notes](super::sent) of what was sent.
const KEEP_EVERY: Duration = Duration::from_millis(500);

/// A request by its key and effect, and until when it may be carried out (since 1970).
type Kept = Vec<(String, Effect, i64)>;

/// Under which the metadata have those of a bucket.
fn key_of(bucket: &str) -> Vec<u8> {
    format!("unanswered {bucket}").into_bytes()
}

impl Engine {
    /// Learns what an earlier start has kept, and what it had sent when it was killed.
    pub(super) async fn recall_unanswered(&self, sent: Vec<Sent>) -> Result<()> {
        let has_news = !sent.is_empty();
        self.recall(sent)?;
        if has_news {
            self.keep_unanswered(false).await?;
        }
        self.sent.clear().map_err(|error| Error::local("cannot empty the notes of what was sent", error))
    }

    fn recall(&self, sent: Vec<Sent>) -> Result<()> {
        let view = self.metadata.view()?;
        for state in self.bucket_states() {
            let kept: Kept = view.state(&key_of(&state.name))?.unwrap_or_default();
            let now = now_ms();
            let left = |until_ms: i64| {
                u64::try_from(until_ms.saturating_sub(now))
                    .ok()
                    .filter(|left| *left > 0)
                    .map(Duration::from_millis)
            };
            let kept =
                kept.into_iter().filter_map(|(key, effect, until_ms)| Some((key, effect, left(until_ms)?)));
            // Behind the others: of two for one name, the later one counts. How long ago it was sent, nobody knows.
            let of_bucket = sent.iter().filter(|sent| sent.bucket == state.name);
            let of_bucket = of_bucket.map(|sent| (sent.key.clone(), sent.effect.clone(), Duration::MAX));
            let count = of_bucket.clone().count();
            state.backend.recall_unanswered(kept.chain(of_bucket).collect());
            if count > 0 {
                state.backend.unanswered_not_kept();
            }
        }
        Ok(())
    }

    /// Makes what is new durable. `at_end` whatever is on its way now stays without an answer.
    ///
    /// # Errors
    /// When the metadata can't be written.
    pub(super) async fn keep_unanswered(&self, at_end: bool) -> Result<()> {
        for state in self.bucket_states() {
            let Some(unanswered) = state.backend.unanswered_to_keep(at_end) else { continue };
            let until_ms =
                |left: Duration| now_ms().saturating_add(i64::try_from(left.as_millis()).unwrap_or(i64::MAX));
            let kept: Kept =
                unanswered.into_iter().map(|(key, effect, left)| (key, effect, until_ms(left))).collect();
            let key = key_of(&state.name);
            let kept = self.committer.commit(Vec::new(), move |change| change.set_state(&key, &kept)).await;
            kept.inspect_err(|_| state.backend.unanswered_not_kept())?;
            state.backend.unanswered_kept();
        }
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
                    // What was kept at the end is not written over.
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
