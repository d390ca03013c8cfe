//! Workers that are started over ssh and communicate through it: nothing listens, and ssh does the authentication.

use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use underlay_files::shell;
use underlay_sync::Mutex;

use crate::HostError;

/// How much of the error output is kept.
const MAX_WORDS_BYTES: usize = 4 << 10;
/// How long to wait for error output after the connection has ended.
const LAST_WORDS_TIME: Duration = Duration::from_secs(2);
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// A host that is reached by ssh, and the program there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SshHost {
    /// The destination for ssh: `host`, `user@host`, or a name from its configuration.
    destination: String,
    program: String,
}

impl SshHost {
    /// `program` is the path of `underlay` there.
    ///
    /// # Errors
    /// When it is not the name of a host: ssh could take it for an option, or a shell for several words.
    pub fn new(destination: &str, program: &str) -> Result<Self, HostError> {
        let is_name = |text: &str| {
            !text.is_empty()
                && !text.starts_with('-')
                && text.chars().all(|letter| letter.is_alphanumeric() || "@._-:%[]".contains(letter))
        };
        if !is_name(destination) {
            return Err(HostError::Job(format!(
                "'ssh:{destination}' is not a host: expected ssh:HOST or ssh:USER@HOST"
            )));
        }
        if program.is_empty() || program.starts_with('-') || program.contains(['\0', '\n']) {
            return Err(HostError::Job(format!(
                "'{program}' is not a program on {destination}: expected a path"
            )));
        }
        Ok(SshHost { destination: destination.to_owned(), program: program.to_owned() })
    }

    pub(crate) fn destination(&self) -> &str {
        &self.destination
    }

    fn command(&self) -> Command {
        let mut command = Command::new("ssh");
        // No terminal, no prompts, and connections to hosts that are gone time out.
        for option in ["BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3"]
        {
            command.args(["-o", option]);
        }
        command.args([
            "-T",
            "--",
            &self.destination,
            &format!("{} worker --stdio", shell::word(&self.program)),
        ]);
        command
    }

    /// Starts the worker there. The stream is connected to its input and output.
    pub(crate) fn start(&self) -> io::Result<(UnixStream, SshProcess)> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = self.command();
        command.stdin(OwnedFd::from(theirs.try_clone()?));
        command.stdout(OwnedFd::from(theirs));
        // In its own process group: Ctrl-C at a terminal is for the coordinator, which then ends the run cleanly.
        let mut child = command.process_group(0).stderr(Stdio::piped()).spawn()?;
        // It holds a copy of the other end of the stream, which must close when ssh ends.
        drop(command);
        let words = Arc::new(Mutex::new(Vec::new()));
        let listening = child.stderr.take().map(|mut errors| {
            let words = Arc::clone(&words);
            std::thread::spawn(move || {
                let mut buffer = [0; 512];
                while let Ok(count @ 1..) = errors.read(&mut buffer) {
                    let mut words = words.lock();
                    words.extend_from_slice(&buffer[..count]);
                    let surplus = words.len().saturating_sub(MAX_WORDS_BYTES);
                    words.drain(..surplus);
                }
            })
        });
        Ok((ours, SshProcess { child, words, listening }))
    }
}

/// A running ssh. Dropping this kills it.
#[derive(Debug)]
pub(crate) struct SshProcess {
    child: Child,
    words: Arc<Mutex<Vec<u8>>>,
    listening: Option<JoinHandle<()>>,
}

impl SshProcess {
    /// The end of the error output of ssh and the worker. Waits a moment for it.
    pub(crate) fn last_words(&self) -> Option<String> {
        let latest = Instant::now() + LAST_WORDS_TIME;
        while self.listening.as_ref().is_some_and(|thread| !thread.is_finished()) && Instant::now() < latest {
            std::thread::sleep(LOOK_INTERVAL);
        }
        let words = self.words.lock();
        let text = String::from_utf8_lossy(&words).trim().to_owned();
        (!text.is_empty()).then_some(text)
    }
}

impl Drop for SshProcess {
    fn drop(&mut self) {
        // Its input has ended, so the worker ends as well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ssh_gets_one_host_and_one_command() {
        let host = SshHost::new("me@loads-1.example", "/opt/it's/underlay").unwrap();
        let command = host.command();
        let words: Vec<&str> = command.get_args().map(|word| word.to_str().unwrap()).collect();
        let expected = ["-T", "--", "me@loads-1.example", r"'/opt/it'\''s/underlay' worker --stdio"];
        assert_eq!(words[words.len() - 4..], expected);
        assert!(words.contains(&"BatchMode=yes"));
    }

    #[test]
    fn invalid_host_never_reaches_ssh() {
        for wrong in ["", "-oProxyCommand=evil", "a b", "a;b", "$(a)", "a'b", "a/b"] {
            let error = SshHost::new(wrong, "underlay").unwrap_err().to_string();
            assert!(error.contains("expected ssh:HOST"), "{error}");
        }
        for wrong in ["", "-v", "a\nb"] {
            assert!(SshHost::new("host", wrong).unwrap_err().to_string().contains("is not a program"));
        }
        for right in ["loads", "me@10.0.0.1", "me@[fe80::1%eth0]", "a_b.c"] {
            assert_eq!(SshHost::new(right, "underlay").unwrap().destination(), right);
        }
    }
}
