//! Figures that somebody else is asked for, who may take long or never answer: asked by a thread of their own, and kept.

use std::sync::Arc;
use std::time::{Duration, Instant};

use underlay_sync::UnsimulatedMutex;

/// How long somebody waits who asks for what nobody has asked for before.
const FIRST_LIMIT: Duration = Duration::from_millis(1500);
const POLL: Duration = Duration::from_millis(10);

/// What was answered last. One question at a time is under way: whoever does not answer keeps one thread, and nobody waits for it.
pub(super) struct Kept<T>(Arc<UnsimulatedMutex<State<T>>>);

struct State<T> {
    answer: Option<(Instant, T)>,
    is_asking: bool,
}

impl<T: Clone + Default + Send + 'static> Kept<T> {
    pub(super) fn new() -> Kept<T> {
        Kept(Arc::new(UnsimulatedMutex::new(State { answer: None, is_asking: false })))
    }

    /// What is known, and has it asked for where that is older than `fresh`.
    pub(super) fn get(&self, fresh: Duration, ask: impl FnOnce() -> T + Send + 'static) -> T {
        let known = {
            let mut state = self.0.lock();
            let is_fresh = state.answer.as_ref().is_some_and(|(at, _)| at.elapsed() < fresh);
            if !is_fresh && !state.is_asking {
                let kept = Arc::clone(&self.0);
                let asking = move || {
                    let answer = ask();
                    let mut state = kept.lock();
                    (state.answer, state.is_asking) = (Some((Instant::now(), answer)), false);
                };
                state.is_asking =
                    std::thread::Builder::new().name("console-ask".to_owned()).spawn(asking).is_ok();
            }
            state.answer.as_ref().map(|(_, answer)| answer.clone())
        };
        if let Some(known) = known {
            return known;
        }
        let begun = Instant::now();
        while begun.elapsed() < FIRST_LIMIT {
            std::thread::sleep(POLL);
            let state = self.0.lock();
            match &state.answer {
                Some((_, answer)) => return answer.clone(),
                None if !state.is_asking => break,
                None => {}
            }
        }
        T::default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn nobody_waits_for_who_does_not_answer() {
        let kept = Kept::new();
        assert_eq!(kept.get(Duration::ZERO, || 7), 7);
        let (end, ended) = mpsc::channel::<()>();
        let hang = move || {
            let _ = ended.recv();
            8
        };
        let begun = Instant::now();
        assert_eq!(kept.get(Duration::ZERO, hang), 7);
        // One is asking already.
        assert_eq!(kept.get(Duration::ZERO, || 9), 7);
        assert!(begun.elapsed() < FIRST_LIMIT);
        drop(end);
        while kept.get(Duration::MAX, || 0) != 8 {
            std::thread::sleep(POLL);
        }
    }
}
