//! Makes changes durable, and frees the space that they replaced.

use std::sync::Arc;

use super::{CompressInner, map};
use crate::device::{CompletionCallback, DeviceCompletion, DeviceError, DeviceRequest};
use crate::layers::flushes;
use underlay_sync::planted::{PlantedBug, is_planted};

impl CompressInner {
    /// One flush at a time, since the journal must get changes in order; those that come meanwhile share the
    /// next one.
    pub(super) fn flush(self: &Arc<Self>, done: CompletionCallback) {
        let begins = self.lock().flushes.join(done);
        if begins {
            self.begin_flush();
        }
    }

    fn begin_flush(self: &Arc<Self>) {
        let (waiters, changes, replaced) = {
            let mut state = self.lock();
            let mut replaced = std::mem::take(&mut state.replaced);
            if is_planted(PlantedBug::ReplacedUsedEarly) {
                replaced.drain(..).for_each(|run| state.space.release(run));
            }
            (state.flushes.begin(), state.map.capture(), replaced)
        };
        let inner = Arc::clone(self);
        let flushed = move |completion: DeviceCompletion| {
            if let Err(error) = completion {
                let mut state = inner.lock();
                state.map.give_back(changes);
                state.replaced.extend(replaced);
                drop(state);
                return inner.end_flush(waiters, Err(error));
            }
            {
                let mut state = inner.lock();
                // Only after the flush: another commit may carry the records out at once, and what they point
                // to must be durable by then.
                map::records(&changes).into_iter().for_each(|record| {
                    inner.journal.append(record);
                });
                state.map.note_journalled(&changes);
            }
            let next = Arc::clone(&inner);
            inner.journal.commit(Box::new(move |result| {
                {
                    let mut state = next.lock();
                    match &result {
                        // Not before the commit: until then the journal's map leads there.
                        Ok(()) => replaced.into_iter().for_each(|run| state.space.release(run)),
                        Err(_) => state.replaced.extend(replaced),
                    }
                }
                next.end_flush(waiters, result);
            }));
        };
        self.member.submit(DeviceRequest::Flush, Box::new(flushed));
    }

    fn end_flush(self: &Arc<Self>, waiters: Vec<CompletionCallback>, result: Result<(), DeviceError>) {
        let again = self.lock().flushes.end();
        flushes::answer(waiters, &result);
        if again {
            self.begin_flush();
        }
    }
}
