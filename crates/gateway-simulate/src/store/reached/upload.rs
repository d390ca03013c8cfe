//! An object on its way to the store in parts.

use std::fmt;

use async_trait::async_trait;
use object_store::{MultipartUpload, PutPayload, PutResult, Result, UploadPart};

use super::{GatewayStore, joined};

pub(super) struct GatewayUpload {
    reached: GatewayStore,
    key: String,
    number: u64,
    parts: usize,
}

impl fmt::Debug for GatewayUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "upload {} of {}", self.number, self.key)
    }
}

impl GatewayUpload {
    pub(super) fn new(reached: GatewayStore, key: String, number: u64) -> GatewayUpload {
        GatewayUpload { reached, key, number, parts: 0 }
    }
}

#[async_trait]
impl MultipartUpload for GatewayUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (reached, number, part) = (self.reached.clone(), self.number, self.parts);
        self.parts += 1;
        let bytes = joined(&data);
        let guard = self.reached.stores().hold(self.reached.gateway(), bytes.len() as u64);
        let label = format!("UploadPart {part} of {:?}, {} bytes", self.key, bytes.len());
        Box::pin(async move {
            let _held = guard;
            reached.change(label, move |objects, _| objects.put_part(number, part, bytes)).await
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let (number, parts) = (self.number, self.parts);
        let label = format!("CompleteMultipartUpload of {:?}", self.key);
        let etag =
            self.reached.change(label, move |objects, now| objects.complete(number, parts, now)).await?;
        Ok(PutResult { e_tag: Some(etag), version: None, extensions: Default::default() })
    }

    async fn abort(&mut self) -> Result<()> {
        let number = self.number;
        // From here on it is the store's own rules that remove it, if the request fails.
        self.reached.note(|objects| {
            objects.uploads.get_mut(&number).into_iter().for_each(|upload| upload.is_excused = true);
        });
        self.reached
            .change(format!("AbortMultipartUpload of {:?}", self.key), move |objects, _| {
                objects.abort(number);
                Ok(())
            })
            .await
    }
}
