//! Waiting for the parts of one request, and for one step after another.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use underlay_sync::Mutex;

/// Calls its end when every part has arrived, with what each of them brought, in the order of the parts.
pub struct Gather<T> {
    remaining: AtomicUsize,
    parts: Mutex<Vec<Option<T>>>,
    #[allow(clippy::type_complexity)]
    end: Mutex<Option<Box<dyn FnOnce(Vec<T>) + Send>>>,
}

impl<T: Send + 'static> Gather<T> {
    /// Without parts the end comes at once.
    pub fn new(parts: usize, end: impl FnOnce(Vec<T>) + Send + 'static) -> Arc<Gather<T>> {
        if parts == 0 {
            end(Vec::new());
            return Arc::new(Gather { remaining: 0.into(), parts: Mutex::default(), end: Mutex::new(None) });
        }
        Arc::new(Gather {
            remaining: parts.into(),
            parts: Mutex::new((0..parts).map(|_| None).collect()),
            end: Mutex::new(Some(Box::new(end))),
        })
    }

    /// Each part arrives once.
    pub fn arrive(&self, part: usize, brought: T) {
        self.parts.lock()[part] = Some(brought);
        if self.remaining.fetch_sub(1, Ordering::SeqCst) > 1 {
            return;
        }
        let parts = std::mem::take(&mut *self.parts.lock());
        let end = self.end.lock().take();
        if let Some(end) = end {
            end(parts.into_iter().flatten().collect());
        }
    }
}

type Step = Box<dyn FnMut(Next) + Send>;

/// Goes on to the next step; dropping it ends the sequence.
pub struct Next {
    sequence: Arc<Sequence>,
}

struct Sequence {
    step: Mutex<Step>,
    /// Steps that are asked for: the thread that raises it from zero takes them all.
    turns: AtomicUsize,
}

/// Does `step` again whenever the last one goes on. Steps that are over before they return follow one another in a
/// loop: on devices that answer at once a long sequence of calls would use up the stack.
pub fn repeat(step: impl FnMut(Next) + Send + 'static) {
    let sequence = Arc::new(Sequence { step: Mutex::new(Box::new(step)), turns: AtomicUsize::new(0) });
    Next { sequence }.resume();
}

impl Next {
    pub fn resume(self) {
        let Next { sequence } = self;
        if sequence.turns.fetch_add(1, Ordering::SeqCst) > 0 {
            return;
        }
        loop {
            let next = Next { sequence: Arc::clone(&sequence) };
            sequence.step.lock()(next);
            if sequence.turns.fetch_sub(1, Ordering::SeqCst) == 1 {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use underlay_sync::channel;

    use super::*;

    #[test]
    fn a_million_steps_at_once_need_no_more_stack_than_one() {
        let (sender, receiver) = channel();
        let mut left = 1_000_000;
        repeat(move |next| match left {
            0 => sender.send(()).unwrap(),
            _ => {
                left -= 1;
                next.resume();
            }
        });
        receiver.try_recv().unwrap();
    }

    #[test]
    fn a_step_may_go_on_later_from_another_thread() {
        let (sender, receiver) = channel();
        repeat(move |next| sender.send(next).unwrap());
        for _ in 0..3 {
            let next = receiver.recv().unwrap();
            std::thread::spawn(move || next.resume()).join().unwrap();
        }
        // Whoever holds it last ends it.
        drop(receiver.recv().unwrap());
        assert!(receiver.recv().is_err());
    }
}
