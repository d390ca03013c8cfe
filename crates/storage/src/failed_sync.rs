//! A sync that failed once stays failed.
//!
//! Linux tells of a page that could not be written back once for each open file, and then takes the page for clean: a
//! second `fsync` succeeds over data that is on no disk. And of two that run at the same time only one gets the error.
//! So syncs go one after the other, and after one that failed none succeeds until the file is opened anew.

use std::sync::Arc;
use underlay_sync::planted::{PlantedBug, is_planted};
use underlay_sync::{Mutex, MutexGuard};

use crate::device::{
    BlockDevice, CompletionCallback, DeviceCompletion, DeviceError, DeviceGeometry, DeviceRequest,
};

/// For callers whose sync blocks.
#[derive(Debug, Default)]
pub struct SyncLatch {
    failure: Mutex<Option<DeviceError>>,
}

impl SyncLatch {
    /// Syncs, unless that has failed before.
    ///
    /// # Errors
    /// When `sync` fails now or has failed once.
    pub fn run(&self, sync: impl FnOnce() -> Result<(), DeviceError>) -> Result<(), DeviceError> {
        // Held meanwhile: the kernel may report a sync's error to another one that runs beside it.
        let mut failure = self.failure.lock();
        if let Some(failure) = &*failure {
            return Err(again(failure));
        }
        let outcome = sync();
        if !is_planted(PlantedBug::FailedSyncForgotten) {
            *failure = outcome.clone().err();
        }
        outcome
    }
}

/// A device over the page cache, whose flushes can be believed. A forced write is a write and a flush here, to tell
/// their failures apart: only a failed flush casts doubt on earlier writes.
pub struct BelievableSync<D> {
    device: Arc<D>,
    state: Arc<Mutex<FailedSyncState>>,
}

#[derive(Default)]
struct FailedSyncState {
    failure: Option<DeviceError>,
    is_under_way: bool,
    /// Callbacks that the next flush answers.
    waiting: Vec<CompletionCallback>,
}

impl<D: BlockDevice + 'static> BelievableSync<D> {
    pub fn new(device: D) -> BelievableSync<D> {
        BelievableSync { device: Arc::new(device), state: Arc::default() }
    }
}

impl<D: BlockDevice + 'static> BlockDevice for BelievableSync<D> {
    fn geometry(&self) -> DeviceGeometry {
        self.device.geometry()
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        match request {
            DeviceRequest::Flush => flush(&self.device, &self.state, done),
            DeviceRequest::Write { offset_bytes, data, fua: true } => {
                let refused = self.state.lock().failure.as_ref().map(again);
                if let Some(refused) = refused {
                    return done(Err(refused));
                }
                let (device, state) = (Arc::clone(&self.device), Arc::clone(&self.state));
                let written = move |completion: DeviceCompletion| match completion {
                    Ok(_) => flush(&device, &state, done),
                    Err(error) => done(Err(error)),
                };
                let write = DeviceRequest::Write { offset_bytes, data, fua: false };
                self.device.submit(write, Box::new(written));
            }
            other => self.device.submit(other, done),
        }
    }
}

/// Begins a flush, or joins the next one while one is in flight.
fn flush<D: BlockDevice + 'static>(
    device: &Arc<D>,
    state: &Arc<Mutex<FailedSyncState>>,
    done: CompletionCallback,
) {
    let mut guard = state.lock();
    if let Some(refused) = guard.failure.as_ref().map(again) {
        drop(guard);
        return done(Err(refused));
    }
    guard.waiting.push(done);
    if !guard.is_under_way {
        start(device, state, guard);
    }
}

fn start<D: BlockDevice + 'static>(
    device: &Arc<D>,
    state: &Arc<Mutex<FailedSyncState>>,
    mut guard: MutexGuard<'_, FailedSyncState>,
) {
    guard.is_under_way = true;
    // Those that come later wait for the next one: this one need not cover what they wrote.
    let answered = std::mem::take(&mut guard.waiting);
    drop(guard);
    let (own_device, own_state) = (Arc::clone(device), Arc::clone(state));
    let flushed = move |completion: DeviceCompletion| {
        let outcome = completion.map(drop);
        let mut guard = own_state.lock();
        guard.is_under_way = false;
        let mut refused = Vec::new();
        if let Err(error) = &outcome
            && !is_planted(PlantedBug::FailedSyncForgotten)
        {
            guard.failure = Some(error.clone());
            refused = std::mem::take(&mut guard.waiting);
        }
        if guard.waiting.is_empty() {
            drop(guard);
        } else {
            start(&own_device, &own_state, guard);
        }
        // A caller that gets the outcome may drop the device and open it again, so this must not hold it any longer.
        drop(own_device);
        for done in answered {
            done(outcome.clone().map(|()| Vec::new()));
        }
        if let Err(error) = &outcome {
            refused.into_iter().for_each(|done| done(Err(again(error))));
        }
    };
    device.submit(DeviceRequest::Flush, Box::new(flushed));
}

fn again(failure: &DeviceError) -> DeviceError {
    DeviceError::Io(format!(
        "an earlier flush failed ({failure}), so earlier writes may be lost: nothing is durable \
             here until the device is opened again"
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// As a file over the page cache: it reports each failure once.
    #[derive(Default)]
    struct Forgetful {
        failures: AtomicUsize,
        flushes: AtomicUsize,
        holds: Mutex<Option<Vec<CompletionCallback>>>,
        fails_writes: AtomicUsize,
    }

    impl Forgetful {
        fn outcome(&self) -> DeviceCompletion {
            self.flushes.fetch_add(1, Ordering::SeqCst);
            let decremented =
                self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
            if decremented.is_ok() {
                Err(DeviceError::Io("written back in vain".into()))
            } else {
                Ok(Vec::new())
            }
        }
    }

    impl BlockDevice for Arc<Forgetful> {
        fn geometry(&self) -> DeviceGeometry {
            DeviceGeometry { capacity_bytes: 1 << 20, block_bytes: 4096, optimal_io_bytes: 4096 }
        }

        fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
            match request {
                DeviceRequest::Flush => {
                    if let Some(callbacks) = &mut *self.holds.lock() {
                        return callbacks.push(done);
                    }
                    done(self.outcome());
                }
                DeviceRequest::Write { fua, .. } => {
                    assert!(!fua);
                    let full = self.fails_writes.load(Ordering::SeqCst) > 0;
                    done(if full { Err(DeviceError::NoSpace) } else { Ok(Vec::new()) });
                }
                _ => done(Ok(Vec::new())),
            }
        }
    }

    fn device() -> (Arc<Forgetful>, BelievableSync<Arc<Forgetful>>) {
        let inner = Arc::new(Forgetful::default());
        (Arc::clone(&inner), BelievableSync::new(inner))
    }

    fn forced() -> DeviceRequest {
        DeviceRequest::Write { offset_bytes: 0, data: vec![1; 4096], fua: true }
    }

    #[test]
    fn flush_after_failed_sync_fails() {
        for begin in [|| DeviceRequest::Flush, forced] {
            let (inner, device) = device();
            device.execute(begin()).unwrap();
            inner.failures.store(1, Ordering::SeqCst);
            assert!(device.execute(begin()).unwrap_err().to_string().contains("in vain"));
            for request in [DeviceRequest::Flush, forced(), DeviceRequest::Flush] {
                let refused = device.execute(request).unwrap_err().to_string();
                assert!(refused.contains("in vain") && refused.contains("opened again"), "{refused}");
            }
            // Others go on.
            let plain = DeviceRequest::Write { offset_bytes: 0, data: vec![1; 4096], fua: false };
            device.execute(plain).unwrap();
            device.execute(DeviceRequest::Read { offset_bytes: 0, buffer: vec![0; 4096] }).unwrap();
        }
    }

    #[test]
    fn refused_forced_write_affects_no_others() {
        let (inner, device) = device();
        inner.fails_writes.store(1, Ordering::SeqCst);
        assert_eq!(device.execute(forced()), Err(DeviceError::NoSpace));
        inner.fails_writes.store(0, Ordering::SeqCst);
        device.execute(DeviceRequest::Flush).unwrap();
        device.execute(forced()).unwrap();
    }

    #[test]
    fn concurrent_flushes_share_one_and_its_failure() {
        let (inner, device) = device();
        *inner.holds.lock() = Some(Vec::new());
        let outcomes = Arc::new(Mutex::new(Vec::new()));
        for _ in 0..5 {
            let outcomes = Arc::clone(&outcomes);
            device
                .submit(DeviceRequest::Flush, Box::new(move |outcome| outcomes.lock().push(outcome.is_ok())));
        }
        inner.failures.store(1, Ordering::SeqCst);
        let callbacks = inner.holds.lock().take().unwrap_or_default();
        assert_eq!(callbacks.len(), 1, "one at a time");
        callbacks.into_iter().for_each(|done| done(inner.outcome()));
        assert_eq!(*outcomes.lock(), [false; 5]);
        assert_eq!(inner.flushes.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn latch_stays_shut() {
        let latch = SyncLatch::default();
        latch.run(|| Ok(())).unwrap();
        latch.run(|| Err(DeviceError::NoSpace)).unwrap_err();
        assert!(latch.run(|| Ok(())).unwrap_err().to_string().contains("opened again"));
    }
}
