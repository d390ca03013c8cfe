//! The address that a browser begins with. It opens one session, soon or not at all: an address is in the browser's
//! history, and perhaps in a list of processes or in a log. The next one is made when somebody asks for it.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use underlay_sync::UnsimulatedMutex;

use super::own_files::AddressFile;
use crate::access::AccessSecret;

/// For so long an address that nobody has opened opens a session.
pub const ADDRESS_VALID: Duration = Duration::from_secs(300);

pub(crate) struct LoginAddress {
    place: String,
    pending: UnsimulatedMutex<PendingLogin>,
}

struct PendingLogin {
    /// The secret that opens a session, and its expiry.
    secret: Option<(AccessSecret, Instant)>,
    file: AddressFile,
    /// The console ends: nothing opens a session any more.
    is_closed: bool,
}

impl PendingLogin {
    fn end(&mut self) {
        self.secret = None;
        self.file.remove();
    }

    fn living(&mut self) -> Option<&AccessSecret> {
        if self.secret.as_ref().is_some_and(|(_, expiry)| Instant::now() >= *expiry) {
            self.end();
        }
        self.secret.as_ref().map(|(secret, _)| secret)
    }
}

impl LoginAddress {
    /// Nothing opens a session before [`issue`](LoginAddress::issue).
    pub(super) fn new(place: String, file: AddressFile) -> LoginAddress {
        LoginAddress {
            place,
            pending: UnsimulatedMutex::new(PendingLogin { secret: None, file, is_closed: false }),
        }
    }

    /// A new address; the one before it opens nothing any more.
    ///
    /// # Errors
    /// When the kernel has no random numbers.
    pub(super) fn issue(&self) -> io::Result<String> {
        self.renew(&mut self.pending.lock())
    }

    /// The same, written into the file that is for this user alone. It goes when the address does.
    ///
    /// # Errors
    /// When there is no address to be had, or the file can't be written: then there is none.
    pub(super) fn issue_into_file(&self) -> io::Result<PathBuf> {
        let mut pending = self.pending.lock();
        let address = self.renew(&mut pending)?;
        let written = pending.file.write(&address);
        if written.is_err() {
            pending.end();
        }
        written
    }

    fn renew(&self, pending: &mut PendingLogin) -> io::Result<String> {
        pending.end();
        if pending.is_closed {
            return Err(io::Error::other("the console ends"));
        }
        let secret = AccessSecret::generate().map_err(io::Error::other)?;
        let address = format!("{}?token={}", self.place, secret.reveal());
        pending.secret = Some((secret, Instant::now() + ADDRESS_VALID));
        Ok(address)
    }

    /// Whether that would open a session. It still does afterwards.
    pub(super) fn is_opened_by(&self, shown: &str) -> bool {
        self.pending.lock().living().is_some_and(|secret| secret.is(shown))
    }

    /// Whether that opens a session; it opens no other from now on.
    pub(super) fn is_used_up_by(&self, shown: &str) -> bool {
        let mut pending = self.pending.lock();
        let opens = pending.living().is_some_and(|secret| secret.is(shown));
        if opens {
            pending.end();
        }
        opens
    }

    /// Ends what is too old, so that its file goes too.
    pub(super) fn expire(&self) {
        self.pending.lock().living();
    }

    /// Nothing opens a session any more, and there is no next address: its file may be another console's soon.
    pub(super) fn close(&self) {
        let mut pending = self.pending.lock();
        pending.is_closed = true;
        pending.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret_in(address: &str) -> String {
        address.split_once("token=").unwrap().1.to_owned()
    }

    #[test]
    fn address_opens_one_session_and_next_is_on_request() {
        let folder = tempfile::tempdir().unwrap();
        let entry =
            LoginAddress::new("http://here:1/".to_owned(), AddressFile::new(folder.path(), "console-1"));
        for guess in ["", "wrong"] {
            assert!(!entry.is_used_up_by(guess) && !entry.is_opened_by(guess));
        }
        let first = secret_in(&entry.issue().unwrap());
        assert!(entry.is_opened_by(&first) && !entry.is_used_up_by("wrong"));
        assert!(entry.is_used_up_by(&first) && !entry.is_used_up_by(&first) && !entry.is_opened_by(""));
        let (second, third) = (secret_in(&entry.issue().unwrap()), secret_in(&entry.issue().unwrap()));
        assert!(!entry.is_used_up_by(&second) && entry.is_used_up_by(&third));
    }

    #[test]
    fn unopened_address_expires_with_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let entry =
            LoginAddress::new("http://here:1/".to_owned(), AddressFile::new(folder.path(), "console-1"));
        let file = entry.issue_into_file().unwrap();
        let secret = secret_in(std::fs::read_to_string(&file).unwrap().trim());
        entry.expire();
        assert!(file.is_file() && entry.is_opened_by(&secret));
        entry.pending.lock().secret.as_mut().unwrap().1 = Instant::now();
        entry.expire();
        assert!(!file.exists() && !entry.is_used_up_by(&secret));
        // One that is opened takes its file along too.
        let file = entry.issue_into_file().unwrap();
        let secret = secret_in(std::fs::read_to_string(&file).unwrap().trim());
        assert!(entry.is_used_up_by(&secret) && !file.exists());
    }

    #[test]
    fn ending_console_makes_no_address_and_keeps_successor_file() {
        let folder = tempfile::tempdir().unwrap();
        let entry =
            LoginAddress::new("http://here:1/".to_owned(), AddressFile::new(folder.path(), "console-1"));
        let file = entry.issue_into_file().unwrap();
        entry.close();
        assert!(!file.exists() && entry.issue_into_file().is_err() && entry.issue().is_err());
        std::fs::write(&file, "another console's").unwrap();
        entry.close();
        drop(entry);
        assert!(file.exists());
    }
}
