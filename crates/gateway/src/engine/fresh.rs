//! Stores' recent answers about keys that others may write to. Each counts for the `ttl` of its prefix, and all
//! prefixes together have room for so many bytes: what was asked for first makes room for what comes.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use underlay_sync::Mutex;

use crate::store::StoredInfo;

/// An answer takes so much besides its texts: places in maps, and what each text takes on the heap.
const ANSWER_BYTES: u64 = 640;
/// A user's header takes so much besides its texts.
const HEADER_BYTES: u64 = 80;
/// However little memory there is.
const MIN_BYTES: u64 = 4 << 20;

/// Bytes that answers may take, beside the memory for blocks.
pub(super) fn most_bytes(memory_bytes: u64) -> u64 {
    (memory_bytes / 8).max(MIN_BYTES)
}

/// Of all prefixes.
#[derive(Debug)]
pub(crate) struct FreshAnswers {
    state: Mutex<FreshState>,
    most_bytes: u64,
}

#[derive(Debug, Default)]
struct FreshState {
    prefixes: HashMap<u64, PrefixState>,
    next_prefix: u64,
    /// When each answer was asked for, and when it counts no more.
    ages: BTreeSet<AnswerTime>,
    ends: BTreeSet<AnswerTime>,
    bytes: u64,
}

/// With the prefix and the key.
type AnswerTime = (Instant, u64, Arc<str>);

#[derive(Debug, Default)]
struct PrefixState {
    /// Another one with each of our own writes: an answer that was asked for before one is not kept.
    generation: u64,
    found: HashMap<Arc<str>, FreshAnswer>,
}

#[derive(Debug)]
struct FreshAnswer {
    found: Arc<StoredInfo>,
    asked_at: Instant,
    ends_at: Instant,
    bytes: u64,
}

/// Of one prefix, whose answers go with this.
#[derive(Debug)]
pub(crate) struct PrefixAnswers {
    all: Arc<FreshAnswers>,
    prefix: u64,
}

impl FreshAnswers {
    pub(super) fn new(most_bytes: u64) -> Arc<FreshAnswers> {
        Arc::new(FreshAnswers { state: Mutex::default(), most_bytes })
    }

    /// For one more prefix.
    pub(super) fn prefix(self: &Arc<Self>) -> PrefixAnswers {
        let mut state = self.state.lock();
        let prefix = state.next_prefix;
        state.next_prefix += 1;
        state.prefixes.insert(prefix, PrefixState::default());
        drop(state);
        PrefixAnswers { all: Arc::clone(self), prefix }
    }
}

impl PrefixAnswers {
    /// What is known of a key.
    ///
    /// # Errors
    /// When nothing is: then with what an answer that is asked for now is [kept](Self::keep).
    pub(super) fn find(&self, key: &str) -> Result<Arc<StoredInfo>, u64> {
        let state = self.all.state.lock();
        let Some(prefix) = state.prefixes.get(&self.prefix) else { return Err(0) };
        let answer = prefix.found.get(key).filter(|answer| Instant::now() < answer.ends_at);
        answer.map(|answer| Arc::clone(&answer.found)).ok_or(prefix.generation)
    }

    /// Keeps an answer for so long, unless something was written since it was asked for: it may be older than that.
    pub(super) fn keep(&self, key: &str, asked_in: u64, ttl: Duration, found: &StoredInfo) {
        let (bytes, now) = (bytes_of(key, found), Instant::now());
        let mut guard = self.all.state.lock();
        let state = &mut *guard;
        state.forget_ended(now);
        let is_outdated = state.prefixes.get(&self.prefix).is_none_or(|prefix| prefix.generation != asked_in);
        if is_outdated || bytes > self.all.most_bytes {
            return;
        }
        state.forget(self.prefix, key);
        while state.bytes + bytes > self.all.most_bytes {
            let Some((_, prefix, oldest)) = state.ages.first().cloned() else { break };
            state.forget(prefix, &oldest);
        }
        let (key, ends_at): (Arc<str>, _) = (key.into(), now + ttl);
        let answer = FreshAnswer { found: Arc::new(found.clone()), asked_at: now, ends_at, bytes };
        if let Some(prefix) = state.prefixes.get_mut(&self.prefix) {
            state.ages.insert((now, self.prefix, Arc::clone(&key)));
            state.ends.insert((ends_at, self.prefix, Arc::clone(&key)));
            state.bytes += bytes;
            prefix.found.insert(key, answer);
        }
    }

    /// Forgets what the store said of a key, since it was written to.
    pub(super) fn forget(&self, key: &str) {
        let mut state = self.all.state.lock();
        state.renew(self.prefix);
        state.forget(self.prefix, key);
    }

    /// The same of all such keys.
    pub(super) fn forget_those(&self, is_one: impl Fn(&str) -> bool) {
        let mut state = self.all.state.lock();
        state.renew(self.prefix);
        let Some(prefix) = state.prefixes.get(&self.prefix) else { return };
        let keys: Vec<Arc<str>> = prefix.found.keys().filter(|key| is_one(key)).cloned().collect();
        keys.iter().for_each(|key| state.forget(self.prefix, key));
    }
}

impl Drop for PrefixAnswers {
    fn drop(&mut self) {
        self.forget_those(|_| true);
        self.all.state.lock().prefixes.remove(&self.prefix);
    }
}

impl FreshState {
    /// Answers that were asked for before are not kept.
    fn renew(&mut self, prefix: u64) {
        if let Some(prefix) = self.prefixes.get_mut(&prefix) {
            prefix.generation += 1;
        }
    }

    fn forget(&mut self, prefix: u64, key: &str) {
        let found = self.prefixes.get_mut(&prefix).and_then(|state| state.found.remove_entry(key));
        let Some((key, answer)) = found else { return };
        self.bytes -= answer.bytes;
        self.ages.remove(&(answer.asked_at, prefix, Arc::clone(&key)));
        self.ends.remove(&(answer.ends_at, prefix, key));
    }

    fn forget_ended(&mut self, now: Instant) {
        while let Some((end, prefix, key)) = self.ends.first()
            && *end <= now
        {
            let (prefix, key) = (*prefix, Arc::clone(key));
            self.forget(prefix, &key);
        }
    }
}

/// What an answer takes.
fn bytes_of(key: &str, found: &StoredInfo) -> u64 {
    let texts = found.headers.plain().map(|(_, value)| value).into_iter().chain([found.etag.as_ref()]);
    let text_bytes: usize = texts.flatten().map(String::len).sum();
    let user_bytes: u64 =
        found.headers.user.iter().map(|(name, value)| HEADER_BYTES + (name.len() + value.len()) as u64).sum();
    ANSWER_BYTES + (key.len() + text_bytes) as u64 + user_bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ObjectHeaders;

    /// Longer than any test.
    const LONG: Duration = Duration::from_secs(3600);

    fn found(header_bytes: usize) -> StoredInfo {
        let user = vec![("long".to_owned(), "x".repeat(header_bytes))];
        let headers = ObjectHeaders { user, ..ObjectHeaders::default() };
        StoredInfo { size_bytes: 1, etag: Some("e".to_owned()), modified_ms: 1, headers }
    }

    fn keep(answers: &PrefixAnswers, key: &str, ttl: Duration, header_bytes: usize) {
        let asked_in = answers.find(key).map(|_| 0).unwrap_or_else(|generation| generation);
        answers.keep(key, asked_in, ttl, &found(header_bytes));
    }

    #[test]
    fn answers_beyond_memory_drop_oldest_of_all_prefixes() {
        let all = FreshAnswers::new(10 << 10);
        let (first, second) = (all.prefix(), all.prefix());
        keep(&first, "a", LONG, 4000);
        keep(&second, "a", LONG, 4000);
        keep(&first, "b", LONG, 4000);
        assert!(first.find("a").is_err() && second.find("a").is_ok() && first.find("b").is_ok());
        // One that is larger than all there is takes nothing from others.
        keep(&first, "c", LONG, 20_000);
        assert!(first.find("c").is_err() && second.find("a").is_ok() && first.find("b").is_ok());
        // Small ones in its place are many.
        for number in 0..1000 {
            keep(&second, &format!("key{number}"), LONG, 10);
            assert!(all.state.lock().bytes <= 10 << 10);
        }
        assert!(second.find("key999").is_ok() && second.find("key0").is_err() && first.find("b").is_err());
        let state = all.state.lock();
        let count: usize = state.prefixes.values().map(|prefix| prefix.found.len()).sum();
        assert!(count > 5 && count == state.ages.len() && count == state.ends.len(), "{count}");
    }

    #[test]
    fn answers_beyond_ttl_go_when_others_come() {
        let all = FreshAnswers::new(1 << 20);
        let (short, long) = (all.prefix(), all.prefix());
        for number in 0..100 {
            keep(&short, &format!("key{number}"), Duration::ZERO, 100);
        }
        assert!(short.find("key99").is_err());
        keep(&long, "a", LONG, 100);
        let state = all.state.lock();
        assert_eq!((state.ages.len(), state.ends.len()), (1, 1));
        assert_eq!(state.bytes, bytes_of("a", &found(100)));
    }

    #[test]
    fn answer_asked_for_before_write_is_not_kept() {
        let all = FreshAnswers::new(1 << 20);
        let answers = all.prefix();
        let before = answers.find("a").unwrap_err();
        answers.forget("b");
        answers.keep("a", before, LONG, &found(1));
        assert!(answers.find("a").is_err());
        keep(&answers, "a", LONG, 1);
        keep(&answers, "b", LONG, 1);
        answers.forget_those(|key| key == "a");
        assert!(answers.find("a").is_err() && answers.find("b").is_ok());
        drop(answers);
        let state = all.state.lock();
        assert!(state.bytes == 0 && state.ages.is_empty() && state.ends.is_empty());
        assert!(state.prefixes.is_empty());
    }
}
