//! A block that is read while it comes from the store: its first reader need not wait for its end.

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use crate::errors::GatewayResult;
use crate::store::StoredInfo;

/// Who asked first for a block, and reads it while it comes.
pub(super) struct FirstReader {
    pub(super) found: oneshot::Sender<GatewayResult<StoredInfo>>,
    pub(super) pieces: mpsc::UnboundedSender<Bytes>,
}

/// A block on its way from the store.
pub(crate) struct ArrivingBlock {
    /// The store's headers of the object.
    pub(crate) found: StoredInfo,
    /// Where the block begins in the object.
    pub(crate) begins: u64,
    /// Its bytes in order. They end too early if the store's answer does, or has more or fewer bytes than it should:
    /// the last ones come when that is known. At most a block waits here.
    pub(crate) pieces: mpsc::UnboundedReceiver<Bytes>,
}

/// The bytes of a block that somebody reads while they come, all but the last: those are held back until nothing can be
/// wrong with them.
pub(super) struct HandedOn {
    to: mpsc::UnboundedSender<Bytes>,
    last: Option<Bytes>,
}

impl HandedOn {
    pub(super) fn new(to: mpsc::UnboundedSender<Bytes>) -> HandedOn {
        HandedOn { to, last: None }
    }

    pub(super) fn next(&mut self, part: Bytes) {
        if let Some(before) = self.last.replace(part) {
            // Who asked may have gone; others may want the block all the same.
            let _ = self.to.send(before);
        }
    }

    pub(super) fn end(self) {
        if let Some(last) = self.last {
            let _ = self.to.send(last);
        }
    }
}

/// Lets the block's reader have the end of it, before anything else is done with it.
pub(super) async fn end_of(handed_on: Option<HandedOn>) {
    if let Some(handed_on) = handed_on {
        handed_on.end();
        // On a single core the cache would take the block in first.
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_bytes_of_arriving_block_are_held_back() {
        let (sender, mut pieces) = mpsc::unbounded_channel();
        let mut handed_on = HandedOn::new(sender);
        handed_on.next(Bytes::from_static(b"one"));
        assert!(pieces.try_recv().is_err());
        handed_on.next(Bytes::from_static(b"two"));
        assert_eq!(pieces.try_recv().unwrap(), "one");
        assert!(pieces.try_recv().is_err());
        handed_on.end();
        assert_eq!(pieces.try_recv().unwrap(), "two");
        // Of a block that something is wrong with they never come.
        let (sender, mut pieces) = mpsc::unbounded_channel();
        let mut handed_on = HandedOn::new(sender);
        handed_on.next(Bytes::from_static(b"one"));
        drop(handed_on);
        assert!(pieces.try_recv().is_err());
    }
}
