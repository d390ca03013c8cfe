//! Doing again what a target may have lost.

use std::time::Duration;
use underlay_sync::Instant;

use super::association::HostAssociation;
use super::controller::device::NamespaceInfo;
use super::error::InitiatorError;
use super::exchange::{CommandAnswer, CommandExchange, CommandPayload, LostAnswer, PendingAnswer};
use super::queue::may_pass;

/// For each answer.
pub(super) const REPEAT_LIMIT: Duration = Duration::from_secs(120);

/// Waits for what may take long, on a connection that nobody else looks after yet: a target ends one that is silent.
pub(super) struct RetryBackoff {
    /// Between keep-alives; none where the target asks for none.
    pub interval: Option<Duration>,
}

impl RetryBackoff {
    /// How long to wait before the next keep-alive is due.
    pub(super) fn slice(&self, left: Duration) -> Duration {
        self.interval.map_or(left, |interval| interval.min(left))
    }

    pub(super) fn keep_alive(&self, association: &HostAssociation) {
        if self.interval.is_some() {
            // A connection that ends meanwhile reports that to the waiting thread.
            let _ = association.admin().submit(CommandExchange::keep_alive(Box::new(drop)));
        }
    }

    fn wait(
        &self,
        association: &HostAssociation,
        waiting: &PendingAnswer,
    ) -> Option<Result<CommandAnswer, LostAnswer>> {
        let deadline = Instant::now() + REPEAT_LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match waiting.wait(self.slice(left)) {
                None if !left.is_zero() => self.keep_alive(association),
                outcome => return outcome,
            }
        }
    }
}

/// Does again what no flush has covered, and says how much that was. The namespace learns of what the target refuses.
///
/// # Errors
/// When the connection ends meanwhile, or the target can't do it now: then all of it has to be tried again.
pub(super) fn repeat(
    association: &HostAssociation,
    namespace: &NamespaceInfo,
    patience: &RetryBackoff,
) -> Result<usize, InitiatorError> {
    const WHAT: &str = "repeating unflushed writes";
    let mut under_way = Vec::new();
    // All at once: no two touch the same block, so their order does not matter.
    for write in namespace.unflushed() {
        let payload = write.data.clone().map_or(CommandPayload::None, CommandPayload::Send);
        let (exchange, waiting) = CommandExchange::awaited(write.command, payload);
        if association.pick().submit(exchange).is_err() {
            return Err(InitiatorError::Lost { what: WHAT, reason: "it ended again".into() });
        }
        under_way.push((write, waiting));
    }
    let repeated = under_way.len();
    for (write, waiting) in under_way {
        match patience.wait(association, &waiting) {
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
