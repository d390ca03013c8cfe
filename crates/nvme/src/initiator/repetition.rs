//! Doing again what a target may have lost.

use std::time::Duration;

use super::association::Association;
use super::device::Namespace;
use super::error::InitiatorError;
use super::exchange::{Exchange, Payload};
use super::queue::may_pass;

/// For each answer.
pub(super) const REPEAT_LIMIT: Duration = Duration::from_secs(120);

/// Does again what no flush has covered, and says how much that was. The namespace learns of what the target refuses.
///
/// # Errors
/// When the connection ends meanwhile, or the target can't do it now: then all of it has to be tried again.
pub(super) fn repeat(association: &Association, namespace: &Namespace) -> Result<usize, InitiatorError> {
    const WHAT: &str = "repeating what was not flushed";
    let mut under_way = Vec::new();
    for write in namespace.unflushed() {
        let payload = write.data.clone().map_or(Payload::None, Payload::Send);
        let (exchange, waiting) = Exchange::awaited(write.command, payload);
        if association.pick().submit(exchange).is_err() {
            return Err(InitiatorError::Lost { what: WHAT, reason: "it ended again".into() });
        }
        under_way.push((write, waiting));
    }
    let repeated = under_way.len();
    for (write, waiting) in under_way {
        match waiting.wait(REPEAT_LIMIT) {
            Some(Ok(answer)) => match answer.completion.status {
                status if status.is_success() => namespace.repeated(&write),
                status if may_pass(status) => return Err(InitiatorError::Command { what: WHAT, status }),
                status => namespace.lose(&write, status),
            },
            Some(Err(lost)) => return Err(InitiatorError::lost(WHAT, lost)),
            None => return Err(InitiatorError::TimedOut { what: WHAT }),
        }
    }
    Ok(repeated)
}
