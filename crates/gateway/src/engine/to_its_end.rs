//! Work that goes on when whoever asked for it has gone.

use std::future::Future;

use crate::errors::{Error, Result};

/// Does something to its end, also where whoever asked for it goes away meanwhile. What has been sent to the store can't be taken back: the key's
/// turn, and the slot's pass, belong to it until the store has answered or counts as failing, or the next writer's object would be overwritten by it. Whatever
/// comes before the sending, waiting for a turn above all, is better left to whoever asked.
pub(super) async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    match tokio::spawn(work).await {
        Ok(outcome) => outcome,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(Error::Busy("the gateway is stopping".to_owned())),
        },
    }
}
