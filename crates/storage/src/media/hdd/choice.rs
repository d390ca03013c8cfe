//! The arm's next request: the shortest positioning time, and the bounds to being passed over.

use super::read_ahead::ReadAhead;
use super::{HddModel, WaitingRequest, continues};
use crate::medium::ModelOperation;

/// A request that the arm could serve next.
#[derive(Clone, Copy, Debug)]
pub(super) enum ArmCandidate {
    /// By its index in the queue.
    Host(usize),
    /// By its first byte.
    Drain(u64),
}

/// Keeps requests from being passed over forever, without serving all in order of arrival.
///
/// Of two choices in a row only one may be for age. A disk with more work than fits in the age bound has only aged
/// requests. If age alone decided, it would serve them in the order of arrival, at less than half the rate, and never
/// recover.
#[derive(Debug, Default)]
pub(super) struct ArmFairness {
    /// The duty that has been the cache's oldest, and since when. In a cache that stays full every extent is
    /// old; what counts is for how long the disk has passed over the one whose turn it is.
    head: Option<(u64, u64)>,
    forced_last: bool,
    /// Of the last choice for age, whether it was for the cache.
    drained_last: bool,
}

impl HddModel {
    pub(super) fn enqueue(&mut self, waiting: WaitingRequest, now_ns: u64) {
        self.queue.push_back(WaitingRequest { eligible_ns: now_ns, ..waiting });
    }

    pub(super) fn dequeue(&mut self, index: usize, now_ns: u64) -> Option<WaitingRequest> {
        let waiting = self.queue.remove(index)?;
        // One more comes within the queue's depth, and its age counts from now.
        if let Some(entered) = self.queue.get_mut(self.queue_depth.saturating_sub(1)) {
            entered.eligible_ns = now_ns;
        }
        Some(waiting)
    }

    pub(super) fn choose(&mut self, now_ns: u64, stream: Option<&(u64, ReadAhead)>) -> Option<ArmCandidate> {
        let forced = self.overdue(now_ns);
        self.fairness.forced_last = forced.is_some();
        forced.or_else(|| self.nearest(now_ns, stream))
    }

    fn is_too_old(&self, since_ns: u64, now_ns: u64) -> bool {
        now_ns.saturating_sub(since_ns) > self.queue_age_ns
    }

    /// The request that must not be passed over again.
    fn overdue(&mut self, now_ns: u64) -> Option<ArmCandidate> {
        let oldest = self.cache.oldest(1).next();
        self.fairness.head = match (oldest, self.fairness.head) {
            (Some(extent), Some((duty, since_ns))) if extent.duty == duty => Some((duty, since_ns)),
            (Some(extent), _) => Some((extent.duty, now_ns)),
            (None, _) => None,
        };
        if self.fairness.forced_last {
            return None;
        }
        let host =
            self.queue.front().filter(|waiting| self.is_too_old(waiting.eligible_ns, now_ns)).is_some();
        let drain = oldest
            .filter(|_| self.fairness.head.is_some_and(|(_, since_ns)| self.is_too_old(since_ns, now_ns)));
        match drain {
            Some(extent) if !host || !self.fairness.drained_last => {
                self.fairness.drained_last = true;
                Some(ArmCandidate::Drain(extent.first_byte))
            }
            _ if host => {
                self.fairness.drained_last = false;
                Some(ArmCandidate::Host(0))
            }
            _ => None,
        }
    }

    fn nearest(&self, now_ns: u64, stream: Option<&(u64, ReadAhead)>) -> Option<ArmCandidate> {
        let hurry = !self.flushes.is_empty()
            || !self.blocked.is_empty()
            || self.cache.used_bytes() > self.cache.limit_bytes() / 2
            || self.cache.oldest(1).any(|extent| self.is_too_old(extent.since_ns, now_ns));
        let from = self.head_place();
        let hosts = self.queue.iter().take(self.queue_depth).enumerate().map(|(index, waiting)| {
            let write = waiting.request.operation == ModelOperation::Write;
            let reach_ns = match stream {
                Some((reached, ahead)) if !write && continues(waiting, *reached, ahead) => 0,
                _ => self.reach_ns(&from, waiting.first_byte(), write, now_ns),
            };
            (reach_ns, ArmCandidate::Host(index))
        });
        // Reads wait for nothing but reads, unless the cache must be emptied.
        let drains = (self.queue.is_empty() || hurry)
            .then(|| self.cache.oldest(self.queue_depth).chain(self.cache.next_at(self.head_byte)))
            .into_iter()
            .flatten()
            .map(|extent| {
                (
                    self.reach_ns(&from, extent.first_byte, true, now_ns),
                    ArmCandidate::Drain(extent.first_byte),
                )
            });
        hosts.chain(drains).min_by_key(|(reach_ns, _)| *reach_ns).map(|(_, candidate)| candidate)
    }
}
