//! A device's use of time: the contract of every medium model.

use serde::{Deserialize, Serialize};

use crate::time::ModelTime;

/// Names one request while it is inside a model. The caller chooses it; it must not be in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelOperation {
    Read,
    Write,
    /// Completes when every write that completed before it was submitted is on the medium.
    Flush,
    Discard,
}

/// A request as a model sees it: where and how much, never the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelRequest {
    pub id: RequestId,
    pub operation: ModelOperation,
    pub offset_bytes: u64,
    pub length_bytes: u64,
    /// Force unit access: a write that may not rest in a volatile buffer.
    pub fua: bool,
}

/// A request that the model has finished, and the exact instant at which it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinishedRequest {
    pub id: RequestId,
    pub at: ModelTime,
}

/// The timing of one device.
///
/// A model is pure: it is seeded, never sleeps, never reads a clock and does no I/O, so the same model
/// paces a running program and answers in virtual time. It may reorder. The caller's duties:
///
/// - `now` never goes back over the calls of `submit` and `complete`, but for `submit` where
///   [`takes_late`](MediumModel::takes_late) allows it;
/// - before `submit(.., now)`, every event up to `now` has been taken by `complete(now, ..)`;
/// - a request lies inside `capacity_bytes` and its length is not zero (but for a flush).
///
/// In return every submitted request is finished exactly once, no earlier than it was submitted, after
/// finitely many calls of `complete(next_completion())`, and the same calls give the same answers.
pub trait MediumModel: Send {
    fn capacity_bytes(&self) -> u64;

    fn submit(&mut self, request: ModelRequest, now: ModelTime);

    /// Whether `submit` may get a request that came before the last `complete`. That request finds parts busy with
    /// requests that were submitted before it, and all else as it was when it came. So each part of the device must
    /// know since when it has been free. Models whose state is that of one instant can't.
    fn takes_late(&self) -> bool {
        false
    }

    /// When to call `complete` next: the instant of the model's next internal event, `None` when nothing is
    /// in flight. An event need not finish a request (a write buffer that drains, say).
    fn next_completion(&self) -> Option<ModelTime>;

    /// Carries the model on to `now`, and appends what has finished, in order of time.
    fn complete(&mut self, now: ModelTime, finished: &mut Vec<FinishedRequest>);

    /// Fast-forward: the request happens at once and takes no time, while the state that it leaves behind
    /// (head position, mapping, buffers) is as if it had. Nothing may be in flight.
    fn absorb(&mut self, request: ModelRequest);

    /// Fast-forward is over, and time counts from `now` on. What time alone fills or empties (credits, a cache that is
    /// emptied when idle) is again as the initial state says: how long a host took until now must not show. Nothing is
    /// in flight.
    fn end_fast_forward(&mut self, _now: ModelTime) {}

    /// Writes and wear since the model was made; `None` for a medium that doesn't wear.
    fn wear(&self) -> Option<underlay_record::FlashWear> {
        None
    }

    /// The ranges of bytes that are acknowledged and that a power cut would take.
    fn unflushed(&self) -> Vec<(u64, u64)> {
        Vec::new()
    }
}

/// A device's state before its first use. It matters to flash, whose free space is spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InitialState {
    /// As it left the factory, or was wholly discarded: nothing is mapped.
    #[default]
    Fresh,
    /// Written over at random until write amplification no longer changes.
    Steady,
}
