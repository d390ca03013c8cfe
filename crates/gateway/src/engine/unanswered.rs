//! Requests that a store has not answered and may still carry out, kept for the next start, which must not send
//! anything newer either.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::GatewayEngine;
use super::sent::{OfBucket, SentRequest};
use crate::errors::{GatewayError, GatewayResult};
use crate::meta::ObjectName;
use crate::model::now_ms;
use crate::store::{LateRequests, RecalledRequest, RequestEffect, STORE_TIMEOUT};

/// How often what is new is made durable, and what is on its way looked at. After a power cut, the next start may not
/// know requests sent for less than twice this. After a kill it knows, by the [notes](super::sent) of what was sent.
const KEEP_EVERY: Duration = Duration::from_millis(500);
/// Rows that one commit writes: others' commits wait for it.
const ROWS_PER_COMMIT: usize = 1000;

/// Under which the metadata have, by the name that follows, what was sent there last, and until when it may be carried
/// out (since 1970).
const UNANSWERED_NAME: &[u8] = b"unanswered-name ";
type UnansweredRow = (RequestEffect, i64);

/// Under which earlier versions had all of a bucket, whose name follows, as one row.
const UNANSWERED_LIST: &[u8] = b"unanswered ";
type UnansweredList = Vec<(String, RequestEffect, i64)>;

fn row_of(name: &ObjectName) -> Vec<u8> {
    [UNANSWERED_NAME, &name.to_bytes()].concat()
}

fn list_of(bucket: &str) -> Vec<u8> {
    [UNANSWERED_LIST, bucket.as_bytes()].concat()
}

impl GatewayEngine {
    /// Learns what an earlier start has kept, and what it had sent when it was killed.
    pub(super) async fn recall_unanswered(&self, sent: Vec<SentRequest>) -> GatewayResult<()> {
        let lists: Vec<(String, UnansweredList)> = self.metadata.view()?.states_below(UNANSWERED_LIST)?;
        let of_lists: Vec<Vec<u8>> = lists.iter().map(|(bucket, _)| list_of(bucket)).collect();
        let has_news = !sent.is_empty() || !lists.is_empty();
        self.recall(lists, sent)?;
        if has_news {
            self.keep_unanswered(false).await?;
        }
        if !of_lists.is_empty() {
            // The names have rows of their own by now.
            self.committer
                .commit(Vec::new(), move |change| {
                    of_lists.iter().try_for_each(|key| change.remove_state(key))
                })
                .await?;
        }
        self.sent
            .clear()
            .map_err(|error| GatewayError::local("cannot empty the notes of sent requests", error))
    }

    fn recall(&self, lists: Vec<(String, UnansweredList)>, sent: Vec<SentRequest>) -> GatewayResult<()> {
        let now = now_ms();
        // What is over comes as well: forgetting it removes the row.
        let left =
            |until_ms: i64| Duration::from_millis(u64::try_from(until_ms.saturating_sub(now)).unwrap_or(0));
        let mut of_buckets: BTreeMap<String, Vec<RecalledRequest>> = BTreeMap::new();
        for (bucket, list) in lists {
            let requests = list.into_iter().map(|(name, effect, until_ms)| RecalledRequest {
                name,
                effect,
                left: left(until_ms),
                is_kept: false,
            });
            of_buckets.entry(bucket).or_default().extend(requests);
        }
        // Behind the list: where a start was killed between the two, rows are as new or newer.
        let rows: Vec<(String, UnansweredRow)> = self.metadata.view()?.states_below(UNANSWERED_NAME)?;
        for (name, (effect, until_ms)) in rows {
            let ObjectName { bucket, key: name } = ObjectName::from_bytes(name.as_bytes())
                .ok_or_else(|| GatewayError::local("cannot read the metadata", "a key is damaged"))?;
            let request = RecalledRequest { name, effect, left: left(until_ms), is_kept: true };
            of_buckets.entry(bucket).or_default().push(request);
        }
        // Behind the others: of two for one name, the later one counts. How long ago it was sent, nobody knows.
        for SentRequest { bucket, key: name, effect } in sent {
            let request = RecalledRequest { name, effect, left: Duration::MAX, is_kept: false };
            of_buckets.entry(bucket).or_default().push(request);
        }
        for (bucket, requests) in of_buckets.into_iter().filter(|(_, requests)| !requests.is_empty()) {
            let served =
                self.served.buckets.read().get(&bucket).map(|state| Arc::clone(state.backend.late()));
            let late = served.unwrap_or_else(|| self.late_of_removed(&bucket));
            let view = self.metadata.view()?;
            // What is pending is sent by a flusher. Where nobody can tell, the name takes a place.
            let is_of_client =
                |key: &str| !matches!(view.pending(&ObjectName::new(bucket.as_str(), key)), Ok(Some(_)));
            late.recall(requests, is_of_client);
        }
        Ok(())
    }

    /// Of a bucket that is not served: it may be made again.
    fn late_of_removed(&self, bucket: &str) -> Arc<LateRequests> {
        let late = Arc::new(LateRequests::new(STORE_TIMEOUT));
        let (log, name) = (Arc::clone(&self.sent), bucket.to_owned());
        late.note_sent_in(Arc::new(OfBucket { log, bucket: name }));
        // Only requests to S3 are noted for the next start.
        late.limit_by(Arc::clone(&self.s3_late_places));
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
        let _turn = self.keeping.lock().await;
        for (bucket, late) in self.late_of_all() {
            // Of an attempt that was given up, nobody knows what is kept.
            late.not_kept();
            let Some(changes) = late.to_keep(at_end) else { continue };
            let until_ms =
                |left: Duration| now_ms().saturating_add(i64::try_from(left.as_millis()).unwrap_or(i64::MAX));
            let rows = changes.into_iter().map(|(name, kept)| {
                let row = kept.map(|(effect, left)| -> UnansweredRow { (effect, until_ms(left)) });
                (row_of(&ObjectName::new(bucket.as_str(), &*name)), row)
            });
            let mut rows = rows.collect::<Vec<_>>().into_iter();
            loop {
                let some: Vec<_> = rows.by_ref().take(ROWS_PER_COMMIT).collect();
                if some.is_empty() {
                    break;
                }
                let outcome = self
                    .committer
                    .commit(Vec::new(), move |change| {
                        some.iter().try_for_each(|(key, row)| match row {
                            Some(row) => change.set_state(key, row),
                            // Also buckets that have gone had some.
                            None => change.remove_state(key),
                        })
                    })
                    .await;
                outcome.inspect_err(|_| late.not_kept())?;
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ConfigSecrets, GatewayConfig};
    use crate::serving::setup_of;

    /// Longer than any test.
    const LONG_MS: i64 = 3_600_000;

    async fn open(directory: &std::path::Path) -> Arc<GatewayEngine> {
        let (local, objects) = (directory.join("local"), directory.join("objects"));
        std::fs::create_dir_all(&objects).unwrap();
        let text = format!(
            "listen = \"127.0.0.1:9000\"\n[local]\ndirectory = \"{}\"\n[bucket.lake]\nstore = \"{}\"\n\
             [key.test]\nid = \"TEST\"\nsecret_env = \"NONE\"\nallow = [{{ bucket = \"*\", may = [\"read\"] }}]\n",
            local.display(),
            objects.display()
        );
        let config = GatewayConfig::parse("gateway.toml", &text).unwrap();
        // The one before may still be letting go of the directory.
        let opened = async {
            loop {
                match GatewayEngine::open(setup_of(&config, &ConfigSecrets::default(), None)).await {
                    Ok(engine) => return engine,
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        };
        tokio::time::timeout(STORE_TIMEOUT, opened).await.unwrap()
    }

    fn rows(engine: &GatewayEngine) -> Vec<(String, UnansweredRow)> {
        engine.metadata.view().unwrap().states_below(UNANSWERED_NAME).unwrap()
    }

    #[tokio::test]
    async fn unanswered_list_of_earlier_version_becomes_rows() {
        let directory = tempfile::tempdir().unwrap();
        let engine = open(directory.path()).await;
        let (until_ms, over_ms) = (now_ms() + LONG_MS, now_ms() - 1);
        let list = |key: &str, until_ms| (key.to_owned(), RequestEffect::Delete, until_ms);
        let of_lake: UnansweredList = vec![list("a", until_ms), list("over", over_ms)];
        let of_removed: UnansweredList = vec![list("b", until_ms)];
        let written = engine.committer.commit(Vec::new(), move |change| {
            change.set_state(&list_of("lake"), &of_lake)?;
            change.set_state(&list_of("removed"), &of_removed)
        });
        written.await.unwrap();
        engine.close().await;
        drop(engine);
        // The second start has rows alone.
        for _ in 0..2 {
            let engine = open(directory.path()).await;
            let names: Vec<String> = rows(&engine).into_iter().map(|(name, _)| name).collect();
            assert_eq!(names, ["lake\0a", "removed\0b"]);
            let lists: Vec<(String, UnansweredList)> =
                engine.metadata.view().unwrap().states_below(UNANSWERED_LIST).unwrap();
            assert!(lists.is_empty());
            let lake = engine.bucket("lake").unwrap();
            assert!(lake.backend.follow("a", RequestEffect::Copy).is_err());
            assert!(lake.backend.follow("over", RequestEffect::Copy).is_ok());
            assert_eq!(engine.late_of_removed.lock()["removed"].names(), ["b"]);
            engine.close().await;
        }
    }

    #[tokio::test]
    async fn rows_of_unanswered_requests_go_when_those_are_over() {
        let directory = tempfile::tempdir().unwrap();
        let engine = open(directory.path()).await;
        let request = |name: &str, left| RecalledRequest {
            name: name.to_owned(),
            effect: RequestEffect::Delete,
            left,
            is_kept: false,
        };
        let late = Arc::clone(engine.bucket("lake").unwrap().backend.late());
        // More than one commit writes.
        let many = (0..2 * ROWS_PER_COMMIT + 1).map(|number| request(&number.to_string(), STORE_TIMEOUT));
        late.recall(many.collect(), |_| true);
        engine.keep_unanswered(false).await.unwrap();
        assert_eq!(rows(&engine).len(), 2 * ROWS_PER_COMMIT + 1);
        late.recall(
            (1..2 * ROWS_PER_COMMIT + 1).map(|number| request(&number.to_string(), Duration::ZERO)).collect(),
            |_| true,
        );
        engine.keep_unanswered(false).await.unwrap();
        let left: Vec<String> = rows(&engine).into_iter().map(|(name, _)| name).collect();
        assert_eq!(left, ["lake\u{0}0"]);
    }
}
