//! Figures that somebody else is asked for, who may take long or never answer: asked by a thread of their own, and
//! kept.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use underlay_sync::UnsimulatedMutex;

/// How long somebody waits who asks for what nobody has asked for before.
const FIRST_LIMIT: Duration = Duration::from_millis(1500);
/// And who asks for what is known, but is no longer true for sure.
const NEXT_LIMIT: Duration = Duration::from_millis(250);
const POLL: Duration = Duration::from_millis(10);

/// The last answer. One question at a time is in flight: a peer that does not answer keeps one thread, and nobody waits
/// for it.
pub(super) struct CachedAnswer<T>(Arc<UnsimulatedMutex<CachedAnswerState<T>>>);

struct CachedAnswerState<T> {
    answer: Option<(Instant, T)>,
    /// Raised when everything known is forgotten, with what is being asked for then.
    round: u64,
    is_asking: bool,
}

impl<T: Clone + Default + Send + 'static> CachedAnswer<T> {
    pub(super) fn new() -> CachedAnswer<T> {
        CachedAnswer(Arc::new(UnsimulatedMutex::new(CachedAnswerState {
            answer: None,
            round: 0,
            is_asking: false,
        })))
    }

    /// The last answer is no longer valid.
    pub(super) fn forget(&self) {
        let mut state = self.0.lock();
        state.round += 1;
        (state.answer, state.is_asking) = (None, false);
    }

    /// The last answer; asks again if that is older than `fresh`.
    pub(super) fn get(&self, fresh: Duration, ask: impl FnOnce() -> T + Send + 'static) -> T {
        let begun = Instant::now();
        let previous = {
            let mut state = self.0.lock();
            let is_fresh = state.answer.as_ref().is_some_and(|(instant, _)| instant.elapsed() < fresh);
            if let Some((_, answer)) = state.answer.as_ref().filter(|_| is_fresh) {
                return answer.clone();
            }
            if !state.is_asking {
                let (shared, round) = (Arc::clone(&self.0), state.round);
                let asking = move || {
                    // Even if the question panics, others may be asked after it.
                    let answer = catch_unwind(AssertUnwindSafe(ask)).ok();
                    let mut state = shared.lock();
                    if state.round == round {
                        state.is_asking = false;
                        if let Some(answer) = answer {
                            state.answer = Some((Instant::now(), answer));
                        }
                    }
                };
                state.is_asking =
                    std::thread::Builder::new().name("console-ask".to_owned()).spawn(asking).is_ok();
            }
            state.answer.as_ref().map(|(_, answer)| answer.clone())
        };
        let limit = if previous.is_some() { NEXT_LIMIT } else { FIRST_LIMIT };
        while begun.elapsed() < limit {
            std::thread::sleep(POLL);
            let state = self.0.lock();
            match &state.answer {
                Some((instant, answer)) if *instant >= begun => return answer.clone(),
                _ if !state.is_asking => break,
                _ => {}
            }
        }
        previous.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn cached_answer_is_used_while_source_hangs() {
        let cached = CachedAnswer::new();
        assert_eq!(cached.get(Duration::ZERO, || 7), 7);
        let (end, ended) = mpsc::channel::<()>();
        let hang = move || {
            let _ = ended.recv();
            8
        };
        let begun = Instant::now();
        assert_eq!(cached.get(Duration::ZERO, hang), 7);
        // One is asking already.
        assert_eq!(cached.get(Duration::ZERO, || 9), 7);
        assert!(begun.elapsed() < FIRST_LIMIT);
        drop(end);
        while cached.get(Duration::MAX, || 0) != 8 {
            std::thread::sleep(POLL);
        }
    }

    #[test]
    fn panicking_question_can_be_asked_again() {
        let cached = CachedAnswer::new();
        assert_eq!(cached.get(Duration::ZERO, || 7), 7);
        assert_eq!(cached.get(Duration::ZERO, || panic!("expected by this test")), 7);
        while cached.get(Duration::ZERO, || 8) != 8 {
            std::thread::sleep(POLL);
        }
    }

    #[test]
    fn answer_from_before_forget_is_dropped() {
        let cached = CachedAnswer::new();
        let (end, ended) = mpsc::channel::<()>();
        let asking = {
            let cached = CachedAnswer(Arc::clone(&cached.0));
            let slow = move || {
                let _ = ended.recv();
                "old"
            };
            std::thread::spawn(move || cached.get(Duration::ZERO, slow))
        };
        while !cached.0.lock().is_asking {
            std::thread::sleep(POLL);
        }
        cached.forget();
        assert_eq!(cached.get(Duration::MAX, || "new"), "new");
        drop(end);
        asking.join().unwrap();
        assert_eq!(cached.get(Duration::MAX, || "newer"), "new");
    }
}
