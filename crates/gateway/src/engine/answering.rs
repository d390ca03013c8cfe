//! Other gateways' questions to this one. Each has asked whether its client may.

use std::sync::Arc;
use std::time::Duration;

use super::GatewayEngine;
use super::elsewhere::{PeerAnswer, PeerQuestion};
use crate::errors::{GatewayError, GatewayResult};
use crate::meta::ObjectName;

/// Most bytes that are read at once.
const MAX_READ_BYTES: u64 = 64 << 20;
/// How long a small change of the metadata may take before the disk counts as hanging.
const PING_LIMIT: Duration = Duration::from_secs(20);
/// S3's pages have a thousand.
const MAX_ENTRIES: usize = 1_000;

impl GatewayEngine {
    /// Answers another gateway.
    ///
    /// # Errors
    /// As each of the operations.
    pub async fn answer(self: &Arc<Self>, question: PeerQuestion) -> GatewayResult<PeerAnswer> {
        match question {
            PeerQuestion::List { bucket, mut request, slots } => {
                request.most = request.most.min(MAX_ENTRIES);
                self.list_slots(&bucket, &request, &slots).map(PeerAnswer::Entries)
            }
            PeerQuestion::ListUploads { bucket, prefix, after, most, slots } => {
                let after = after.as_ref().map(|(key, upload)| (key.as_str(), upload.as_deref()));
                let most = usize::try_from(most).unwrap_or(usize::MAX).min(MAX_ENTRIES);
                let (uploads, is_truncated) =
                    self.uploads_in_slots(&bucket, &prefix, after, most, Some(&slots))?;
                Ok(PeerAnswer::Uploads(uploads, is_truncated))
            }
            PeerQuestion::Delete { bucket, keys } => {
                self.delete_here(&bucket, keys).await.map(PeerAnswer::Deleted)
            }
            // The asking gateway waits for a request here that would never end if the local disk hangs.
            PeerQuestion::Ping => {
                let number = self.number();
                let durable =
                    self.committer.commit(Vec::new(), move |change| change.set_number(b"ping", number));
                match tokio::time::timeout(PING_LIMIT, durable).await {
                    Ok(outcome) => outcome.map(|()| PeerAnswer::Pong),
                    Err(_) => Err(GatewayError::Busy("the local disk does not answer".to_owned())),
                }
            }
            PeerQuestion::Look { bucket, key } => {
                let mut record = self.resolve(&bucket, &key).await?.record;
                record.extents.clear();
                Ok(PeerAnswer::Object(Box::new(record)))
            }
            PeerQuestion::Read { bucket, key, etag, range } => {
                let resolved = self.resolve(&bucket, &key).await?;
                if resolved.record.etag != etag {
                    return Err(GatewayError::PreconditionFailed);
                }
                let is_within = range.start <= range.end && range.end <= resolved.record.size_bytes;
                if !is_within || range.end - range.start > MAX_READ_BYTES {
                    return Err(GatewayError::InvalidArgument(
                        "the range is not within the object".to_owned(),
                    ));
                }
                self.piece(&ObjectName::new(bucket, key), &resolved, range).await.map(PeerAnswer::Bytes)
            }
        }
    }
}
