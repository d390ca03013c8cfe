//! A queue from many threads to one.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::{Condvar, Instant, Mutex};

/// The receiver is gone; what was sent comes back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SendError<T>(pub T);

impl<T> fmt::Debug for SendError<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SendError(..)")
    }
}

/// All senders are gone, and nothing is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvTimeoutError {
    Timeout,
    Disconnected,
}

struct ChannelShared<T> {
    state: Mutex<ChannelState<T>>,
    changed: Condvar,
}

struct ChannelState<T> {
    items: VecDeque<T>,
    senders: usize,
    has_receiver: bool,
}

pub struct Sender<T> {
    shared: Arc<ChannelShared<T>>,
}

pub struct Receiver<T> {
    shared: Arc<ChannelShared<T>>,
}

/// As `std::sync::mpsc::channel`.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let state = ChannelState { items: VecDeque::new(), senders: 1, has_receiver: true };
    let shared = Arc::new(ChannelShared { state: Mutex::new(state), changed: Condvar::new() });
    (Sender { shared: Arc::clone(&shared) }, Receiver { shared })
}

impl<T> Sender<T> {
    /// # Errors
    /// When nobody will receive it.
    pub fn send(&self, item: T) -> Result<(), SendError<T>> {
        let mut state = self.shared.state.lock();
        if !state.has_receiver {
            return Err(SendError(item));
        }
        state.items.push_back(item);
        // Unlocked before the notification, or the receiver would wake only to wait for the lock.
        drop(state);
        self.shared.changed.notify_one();
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.shared.state.lock().senders += 1;
        Sender { shared: Arc::clone(&self.shared) }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let is_last = {
            let mut state = self.shared.state.lock();
            state.senders -= 1;
            state.senders == 0
        };
        if is_last {
            self.shared.changed.notify_all();
        }
    }
}

impl<T> Receiver<T> {
    /// # Errors
    /// When nothing is left and nobody can send more.
    pub fn recv(&self) -> Result<T, RecvError> {
        let mut state = self.shared.state.lock();
        loop {
            if let Some(item) = state.items.pop_front() {
                return Ok(item);
            }
            if state.senders == 0 {
                return Err(RecvError);
            }
            state = self.shared.changed.wait(state);
        }
    }

    /// # Errors
    /// As [`Receiver::recv`], and when nothing came in time.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        let deadline = Instant::now() + timeout;
        let mut state = self.shared.state.lock();
        loop {
            if let Some(item) = state.items.pop_front() {
                return Ok(item);
            }
            if state.senders == 0 {
                return Err(RecvTimeoutError::Disconnected);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(RecvTimeoutError::Timeout);
            }
            state = self.shared.changed.wait_timeout(state, left);
        }
    }

    /// The next value, if there is one now.
    pub fn try_recv(&self) -> Option<T> {
        self.shared.state.lock().items.pop_front()
    }

    /// Everything that is there now.
    pub fn try_iter(&self) -> impl Iterator<Item = T> + '_ {
        std::iter::from_fn(|| self.try_recv())
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let left = {
            let mut state = self.shared.state.lock();
            state.has_receiver = false;
            std::mem::take(&mut state.items)
        };
        // Dropped outside the lock: an item's destructor may send on this channel.
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_arrive_in_order_and_both_sides_see_end() {
        let (sender, receiver) = channel();
        let other = sender.clone();
        let thread = std::thread::spawn(move || (0..1000).for_each(|number| other.send(number).unwrap()));
        assert!((0..1000).all(|number| receiver.recv() == Ok(number)));
        thread.join().unwrap();
        assert_eq!(receiver.recv_timeout(Duration::from_millis(1)), Err(RecvTimeoutError::Timeout));
        drop(sender);
        assert_eq!(receiver.recv(), Err(RecvError));
        assert_eq!(receiver.recv_timeout(Duration::from_secs(60)), Err(RecvTimeoutError::Disconnected));
        let (sender, receiver) = channel();
        drop(receiver);
        assert_eq!(sender.send(7), Err(SendError(7)));
    }
}
