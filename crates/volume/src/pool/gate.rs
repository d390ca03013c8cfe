//! Keeps requests out of a volume while what they work on is exchanged under them.

use underlay_sync::{Condvar, Mutex, MutexGuard};

use underlay_storage::device::{CompletionCallback, DeviceRequest};

#[derive(Default)]
pub(super) struct RequestGate {
    state: Mutex<GateState>,
    drained: Condvar,
}

#[derive(Default)]
struct GateState {
    under_way: u64,
    closed: bool,
    /// The volume was deleted, or the pool closed.
    gone: bool,
    waiting: Vec<(DeviceRequest, CompletionCallback)>,
}

/// The gate's answer to a request.
pub(super) enum GateEntry {
    Admitted(DeviceRequest, CompletionCallback),
    /// It will come again when the gate opens.
    Waits,
    Gone(CompletionCallback),
}

impl RequestGate {
    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock()
    }

    pub(super) fn enter(&self, request: DeviceRequest, done: CompletionCallback) -> GateEntry {
        let mut state = self.lock();
        if state.gone {
            return GateEntry::Gone(done);
        }
        if state.closed {
            state.waiting.push((request, done));
            return GateEntry::Waits;
        }
        state.under_way += 1;
        GateEntry::Admitted(request, done)
    }

    pub(super) fn leave(&self) {
        let mut state = self.lock();
        state.under_way -= 1;
        if state.under_way == 0 && state.closed {
            self.drained.notify_all();
        }
    }

    /// Waits until no request is in flight; those that come meanwhile wait for [`RequestGate::open`].
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        while state.under_way > 0 {
            state = self.drained.wait(state);
        }
    }

    /// Returns the requests that waited; they have to enter again.
    pub(super) fn open(&self) -> Vec<(DeviceRequest, CompletionCallback)> {
        let mut state = self.lock();
        state.closed = false;
        std::mem::take(&mut state.waiting)
    }

    /// Shuts it for good. Returns the requests that waited.
    pub(super) fn shut(&self) -> Vec<(DeviceRequest, CompletionCallback)> {
        let mut state = self.lock();
        state.gone = true;
        state.closed = false;
        std::mem::take(&mut state.waiting)
    }
}
