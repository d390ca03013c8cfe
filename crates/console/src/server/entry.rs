//! The address that a browser begins with. What it shows there opens one session: an address is in the browser's history, and in the list of
//! processes where a program was started with it.

use std::sync::Arc;

use underlay_sync::UnsimulatedMutex;

use super::OnUsed;
use crate::access::Secret;

pub(crate) struct Entry {
    place: String,
    /// Nothing where the user has a token of their own.
    next: Option<(UnsimulatedMutex<Secret>, Arc<OnUsed>)>,
}

impl Entry {
    pub(super) fn new(place: String, first: Secret, on_used: OnUsed) -> Entry {
        Entry { place, next: Some((UnsimulatedMutex::new(first), Arc::new(on_used))) }
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
        // A terminal that is held (Ctrl-S) or a full pipe keeps whoever tells, and nobody who asks for a page.
        let (tell, told) = (Arc::clone(on_used), url.clone());
        let telling = std::thread::Builder::new().name("console-tell".to_owned());
        if telling.spawn(move || tell(&told)).is_err() {
            on_used(&url);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_address_opens_one_session_and_the_next_is_told() {
        let (tell, told) = mpsc::sync_channel(0);
        let on_used = move |url: &str| drop(tell.send(url.to_owned()));
        let first = Secret::generate().unwrap();
        let entry = Entry::new("http://here:1/".to_owned(), first.clone(), Box::new(on_used));
        assert!(!entry.is_used_up_by("") && !entry.is_used_up_by("wrong"));
        assert!(entry.is_used_up_by(first.reveal()) && !entry.is_used_up_by(first.reveal()));
        // Nobody has listened until now, and nobody was kept waiting.
        let next = told.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(next, entry.url());
        assert!(entry.is_used_up_by(next.split_once("token=").unwrap().1));
    }

    #[test]
    fn with_a_token_of_the_user_s_nothing_else_opens_a_session() {
        let entry = Entry::closed("https://here:1/".to_owned());
        assert_eq!(entry.url(), "https://here:1/?token=…");
        assert!(!entry.is_used_up_by("…") && !entry.is_used_up_by(""));
    }
}
