//! Doing again what a target may have lost.

use std::time::Duration;

use super::association::Association;
use super::device::Namespace;
use super::error::InitiatorError;
use super::exchange::{Exchange, Payload};
use super::queue::may_pass;
use super::unflushed::Kept;

/// For each answer.
const REPEAT_LIMIT: Duration = Duration::from_secs(120);

/// Does writes again that touch different blocks. The namespace learns of those that the target refuses.
///
/// # Errors
/// When the connection ends meanwhile, or the target can't do it now: then all of it has to be tried again.
pub(super) fn repeat(
    association: &Association,
    namespace: &Namespace,
    batch: Vec<(u64, Kept)>,
) -> Result<(), InitiatorError> {
    const WHAT: &str = "repeating what was not flushed";
    let mut under_way = Vec::new();
    for (number, write) in batch {
        let payload = write.data.clone().map_or(Payload::None, Payload::Send);
        let (exchange, waiting) = Exchange::awaited(write.command, payload);
        if association.pick().submit(exchange).is_err() {
            return Err(InitiatorError::Lost { what: WHAT, reason: "it ended again".into() });
        }
        under_way.push((number, write, waiting));
    }
    for (number, write, waiting) in under_way {
        match waiting.wait(REPEAT_LIMIT) {
            Some(Ok(answer)) => match answer.completion.status {
                status if status.is_success() => namespace.repeated(number, &write),
                status if may_pass(status) => return Err(InitiatorError::Command { what: WHAT, status }),
                status => namespace.lose(number, &write, status),
            },
            Some(Err(lost)) => return Err(InitiatorError::lost(WHAT, lost)),
            None => return Err(InitiatorError::TimedOut { what: WHAT }),
        }
    }
    Ok(())
}
