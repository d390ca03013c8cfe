//! An upload in parts that the store keeps until it is completed or aborted.

use object_store::MultipartUpload;
use tokio::runtime::Handle;

use super::STORE_TIMEOUT;

/// Aborts its upload when it is dropped, as when its caller has gone: otherwise its parts would stay in the store.
pub(super) struct UnfinishedUpload(Option<Box<dyn MultipartUpload>>);

impl UnfinishedUpload {
    pub(super) fn new(upload: Box<dyn MultipartUpload>) -> UnfinishedUpload {
        UnfinishedUpload(Some(upload))
    }

    /// For what comes of it, which is up to the caller until it is [`finished`](Self::finished).
    pub(super) fn upload(&mut self) -> &mut (dyn MultipartUpload + 'static) {
        self.0.as_deref_mut().expect("it goes with its upload")
    }

    /// It has been completed.
    pub(super) fn finished(mut self) {
        self.0 = None;
    }

    /// Aborts it, and returns when the store has done so or does not answer. The store's own rules remove the rest.
    pub(super) async fn abort(mut self) {
        if let Some(upload) = self.0.take() {
            // Even if the caller that waits here goes away meanwhile.
            let _ = tokio::spawn(abort(upload)).await;
        }
    }
}

impl Drop for UnfinishedUpload {
    fn drop(&mut self) {
        // Without a runtime the program ends.
        if let (Some(upload), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(abort(upload));
        }
    }
}

async fn abort(mut upload: Box<dyn MultipartUpload>) {
    let _ = tokio::time::timeout(STORE_TIMEOUT, upload.abort()).await;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use async_trait::async_trait;
    use object_store::{PutPayload, PutResult, UploadPart};

    use super::*;

    #[derive(Debug)]
    struct Counted(Arc<AtomicU64>);

    #[async_trait]
    impl MultipartUpload for Counted {
        fn put_part(&mut self, _: PutPayload) -> UploadPart {
            Box::pin(std::future::pending())
        }
        async fn complete(&mut self) -> object_store::Result<PutResult> {
            std::future::pending().await
        }
        async fn abort(&mut self) -> object_store::Result<()> {
            self.0.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    }

    #[tokio::test]
    async fn dropped_upload_leaves_no_parts() {
        let aborted = Arc::new(AtomicU64::new(0));
        let one = || UnfinishedUpload::new(Box::new(Counted(Arc::clone(&aborted))));
        one().finished();
        tokio::task::yield_now().await;
        assert_eq!(aborted.load(Ordering::SeqCst), 0);
        one().abort().await;
        assert_eq!(aborted.load(Ordering::SeqCst), 1);
        let mut dropped = one();
        let never = tokio::spawn(async move {
            let _ = dropped.upload().complete().await;
        });
        tokio::task::yield_now().await;
        never.abort();
        let _ = never.await;
        tokio::task::yield_now().await;
        assert_eq!(aborted.load(Ordering::SeqCst), 2);
    }
}
