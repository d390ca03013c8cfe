//! The address that a browser begins with. What it shows there opens one session: an address is in the browser's history, and in the list of
//! processes where a program was started with it.

use underlay_sync::UnsimulatedMutex;

use super::OnUsed;
use crate::access::Secret;

pub(crate) struct Entry {
    place: String,
    /// Nothing where the user has a token of their own.
    next: Option<(UnsimulatedMutex<Secret>, OnUsed)>,
}

impl Entry {
    pub(super) fn new(place: String, first: Secret, on_used: OnUsed) -> Entry {
        Entry { place, next: Some((UnsimulatedMutex::new(first), on_used)) }
    }

    pub(super) fn closed(place: String) -> Entry {
        Entry { place, next: None }
    }

    pub(super) fn url(&self) -> String {
        match &self.next {
            Some((next, _)) => self.with(&next.lock()),
            None => format!("{}?token=…", self.place),
        }
    }

    fn with(&self, secret: &Secret) -> String {
        format!("{}?token={}", self.place, secret.reveal())
    }

    /// Whether that is what opens a session; it opens no other from now on.
    pub(super) fn is_used_up_by(&self, shown: &str) -> bool {
        let Some((next, on_used)) = &self.next else { return false };
        let url = {
            let mut next = next.lock();
            // Without another one nobody else could come in: then this one is not used up, and nobody comes in.
            let Some(another) = next.is(shown).then(Secret::generate).and_then(Result::ok) else {
                return false;
            };
            *next = another;
            self.with(&next)
        };
        on_used(&url);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn an_address_opens_one_session_and_the_next_is_told() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&told);
        let on_used = move |url: &str| heard.lock().unwrap().push(url.to_owned());
        let first = Secret::generate().unwrap();
        let entry = Entry::new("http://here:1/".to_owned(), first.clone(), Box::new(on_used));
        assert!(!entry.is_used_up_by("") && !entry.is_used_up_by("wrong"));
        assert!(entry.is_used_up_by(first.reveal()) && !entry.is_used_up_by(first.reveal()));
        assert_eq!(*told.lock().unwrap(), [entry.url()]);
        let next = entry.url();
        assert!(entry.is_used_up_by(next.split_once("token=").unwrap().1));
    }

    #[test]
    fn with_a_token_of_the_user_s_nothing_else_opens_a_session() {
        let entry = Entry::closed("https://here:1/".to_owned());
        assert_eq!(entry.url(), "https://here:1/?token=…");
        assert!(!entry.is_used_up_by("…") && !entry.is_used_up_by(""));
    }
}
