//! What other gateways ask of this one. Each has asked whether its client may.

use std::sync::Arc;
use std::time::Duration;

use super::Engine;
use super::elsewhere::{Answer, Question};
use crate::errors::{Error, Result};
use crate::meta::Name;

/// Most bytes that are read at once.
const MOST_READ_BYTES: u64 = 64 << 20;
/// How long a small change of the metadata may take before the disk counts as hanging.
const PING_LIMIT: Duration = Duration::from_secs(20);
/// S3's pages have a thousand.
const MOST_ENTRIES: usize = 1_000;

impl Engine {
    /// Answers another gateway.
    ///
    /// # Errors
    /// As each of the operations.
    pub async fn answer(self: &Arc<Self>, question: Question) -> Result<Answer> {
        match question {
            Question::List { bucket, mut request, slots } => {
                request.most = request.most.min(MOST_ENTRIES);
                self.list_slots(&bucket, &request, &slots).map(Answer::Entries)
            }
            Question::ListUploads { bucket, prefix, after, most, slots } => {
                let after = after.as_ref().map(|(key, upload)| (key.as_str(), upload.as_deref()));
                let most = usize::try_from(most).unwrap_or(usize::MAX).min(MOST_ENTRIES);
                let (uploads, is_truncated) =
                    self.uploads_in_slots(&bucket, &prefix, after, most, Some(&slots))?;
                Ok(Answer::Uploads(uploads, is_truncated))
            }
            Question::Delete { bucket, keys } => self.delete_here(&bucket, keys).await.map(Answer::Deleted),
            // The asking gateway waits for a request here that would never end if the local disk hangs.
            Question::Ping => {
                let number = self.number();
                let durable =
                    self.committer.commit(Vec::new(), move |change| change.set_number(b"ping", number));
                match tokio::time::timeout(PING_LIMIT, durable).await {
                    Ok(outcome) => outcome.map(|()| Answer::Pong),
                    Err(_) => Err(Error::Busy("the local disk does not answer".to_owned())),
                }
            }
            Question::Look { bucket, key } => {
                let mut record = self.resolve(&bucket, &key).await?.record;
                record.extents.clear();
                Ok(Answer::Object(Box::new(record)))
            }
            Question::Read { bucket, key, etag, range } => {
                let resolved = self.resolve(&bucket, &key).await?;
                if resolved.record.etag != etag {
                    return Err(Error::PreconditionFailed);
                }
                let is_within = range.start <= range.end && range.end <= resolved.record.size_bytes;
                if !is_within || range.end - range.start > MOST_READ_BYTES {
                    return Err(Error::InvalidArgument("the range is not within the object".to_owned()));
                }
                self.piece(&Name::new(bucket, key), &resolved, range).await.map(Answer::Bytes)
            }
        }
    }
}
