//! Waiting for the parts of one request, and for one step after another.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use underlay_sync::Mutex;

/// Adds the parts of one request up, and calls its end with the sum when every part has arrived.
pub struct CompletionJoin<A> {
    state: Mutex<JoinState<A>>,
}

struct JoinState<A> {
    remaining: usize,
    /// Both are there until the last part has arrived.
    sum_and_end: Option<(A, JoinCallback<A>)>,
}

type JoinCallback<A> = Box<dyn FnOnce(A) + Send>;

impl<A> CompletionJoin<A> {
    /// Without parts the end comes at once.
    pub fn new(parts: usize, start: A, end: impl FnOnce(A) + Send + 'static) -> CompletionJoin<A> {
        let sum_and_end = if parts == 0 {
            end(start);
            None
        } else {
            Some((start, Box::new(end) as JoinCallback<A>))
        };
        CompletionJoin { state: Mutex::new(JoinState { remaining: parts, sum_and_end }) }
    }

    /// Each part arrives once, and is added under a lock.
    pub fn arrive(&self, add: impl FnOnce(&mut A)) {
        let mut state = self.state.lock();
        if let Some((sum, _)) = &mut state.sum_and_end {
            add(sum);
        }
        state.remaining -= 1;
        if state.remaining > 0 {
            return;
        }
        let over = state.sum_and_end.take();
        // The end may begin the next request.
        drop(state);
        if let Some((sum, end)) = over {
            end(sum);
        }
    }
}

/// A [`CompletionJoin`] that keeps what each part gave, in the order of the parts.
pub struct GatherJoin<T> {
    join: CompletionJoin<Vec<Option<T>>>,
}

impl<T: Send + 'static> GatherJoin<T> {
    pub fn new(parts: usize, end: impl FnOnce(Vec<T>) + Send + 'static) -> Arc<GatherJoin<T>> {
        let results = (0..parts).map(|_| None).collect();
        let end = |results: Vec<Option<T>>| end(results.into_iter().flatten().collect());
        Arc::new(GatherJoin { join: CompletionJoin::new(parts, results, end) })
    }

    /// Each part arrives once.
    pub fn arrive(&self, part: usize, result: T) {
        self.join.arrive(|results| results[part] = Some(result));
    }
}

type SequenceStep = Box<dyn FnMut(NextStep) + Send>;

/// Goes on to the next step; dropping it ends the sequence.
pub struct NextStep {
    sequence: Arc<StepSequence>,
}

struct StepSequence {
    step: Mutex<SequenceStep>,
    /// Steps that are asked for: the thread that raises it from zero takes them all.
    turns: AtomicUsize,
}

/// Does `step` again whenever the last one goes on. Steps that are over before they return follow one another in a
/// loop: on devices that answer at once a long sequence of calls would use up the stack.
pub fn repeat(step: impl FnMut(NextStep) + Send + 'static) {
    let sequence = Arc::new(StepSequence { step: Mutex::new(Box::new(step)), turns: AtomicUsize::new(0) });
    NextStep { sequence }.resume();
}

impl NextStep {
    pub fn resume(self) {
        let NextStep { sequence } = self;
        if sequence.turns.fetch_add(1, Ordering::SeqCst) > 0 {
            return;
        }
        loop {
            let next = NextStep { sequence: Arc::clone(&sequence) };
            // Never taken twice: a thread that resumes while a step runs only raises `turns`.
            sequence.step.lock()(next);
            // Above 1 if the step has gone on by now: then the next one is this thread's, too.
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
    fn million_steps_at_once_need_one_stack_frame() {
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
    fn step_may_resume_on_another_thread() {
        let (sender, receiver) = channel();
        repeat(move |next| sender.send(next).unwrap());
        for _ in 0..3 {
            let next = receiver.recv().unwrap();
            std::thread::spawn(move || next.resume()).join().unwrap();
        }
        // Dropping the last step ends the sequence.
        drop(receiver.recv().unwrap());
        assert!(receiver.recv().is_err());
    }
}
