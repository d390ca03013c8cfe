//! Work that goes on when its caller has gone.

use std::future::Future;

use crate::errors::{GatewayError, GatewayResult};

/// Does something to its end, even if the caller goes away meanwhile. Requests sent to the store can't be taken back.
/// It keeps the key's turn, and the slot's pass, until the store has answered or counts as failing: otherwise it would
/// overwrite the next writer's object. Anything before the sending, above all waiting for a turn, is better left to the
/// caller.
pub(super) async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = GatewayResult<T>> + Send + 'static,
) -> GatewayResult<T> {
    match tokio::spawn(work).await {
        Ok(outcome) => outcome,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(GatewayError::Busy("the gateway is stopping".to_owned())),
        },
    }
}
