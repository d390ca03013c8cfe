//! Uploads that nobody goes on with. Their parts are in the journal, which has room for so much.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Engine;
use crate::errors::Result;
use crate::model::now_ms;

/// The longest and the shortest pause between two looks.
const PAUSE: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);

impl Engine {
    /// Ends uploads as they expire, for as long as the engine lives.
    pub(super) fn start_expiring(self: &Arc<Self>) {
        let pause = (self.setup.uploads_expire / 10).clamp(*PAUSE.start(), *PAUSE.end());
        let engine = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(pause).await;
                let Some(engine) = engine.upgrade() else { return };
                if let Err(error) = engine.end_expired_uploads().await {
                    tracing::warn!("cannot end uploads that nobody goes on with: {error}");
                }
            }
        });
    }

    /// Ends all uploads of a bucket that is to go.
    pub(super) async fn end_uploads_of(&self, bucket: &str) -> Result<()> {
        let begun = self.metadata.view()?.all_uploads()?;
        for ((name, upload), _) in begun.into_iter().filter(|((name, _), _)| name.bucket == bucket) {
            self.committer
                .commit(Vec::new(), move |change| match change.upload(&name, &upload)? {
                    Some(_) => change.remove_upload(&name, &upload),
                    None => Ok(()),
                })
                .await?;
        }
        Ok(())
    }

    async fn end_expired_uploads(&self) -> Result<()> {
        let after_ms = i64::try_from(self.setup.uploads_expire.as_millis()).unwrap_or(i64::MAX);
        let before_ms = now_ms().saturating_sub(after_ms);
        let begun = self.metadata.view()?.all_uploads()?;
        for ((name, upload), _) in begun.into_iter().filter(|(_, record)| record.begun_ms < before_ms) {
            let at = (name.clone(), upload.clone());
            let ended = self
                .committer
                .commit(Vec::new(), move |change| match change.upload(&at.0, &at.1)? {
                    // Looked at here, so that no part comes in between.
                    Some(record) if record.begun_ms.max(change.last_part_ms(&at.1)?) < before_ms => {
                        change.remove_upload(&at.0, &at.1).map(|()| true)
                    }
                    _ => Ok(false),
                })
                .await?;
            if ended {
                self.counters.expired_uploads.fetch_add(1, Ordering::Relaxed);
                tracing::info!("an upload to {name} has expired: nothing came for {after_ms} ms");
            }
        }
        Ok(())
    }
}
