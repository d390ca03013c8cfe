//! A child's output, on its way through a pipe into a log of ours. A program that opens its own output again
//! (`/dev/stdout`, `tee /dev/stderr`) would cut a file off and write over what is there; of a pipe it gets another end.

use std::fs::File;
use std::io::{self, Write as _};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::fs::{Gid, OFlags, Uid, fchown, fcntl_getfl, fcntl_setfl};
use underlay_sync::Mutex;

const CHUNK_BYTES: usize = 64 << 10;

/// The end of the pipe that we read, and the log.
#[derive(Debug)]
pub(crate) struct OutputPipe {
    inner: Arc<OutputPipeState>,
}

#[derive(Debug)]
struct OutputPipeState {
    reader: OwnedFd,
    log: Mutex<OutputLog>,
}

#[derive(Debug)]
struct OutputLog {
    file: File,
    /// How many more bytes are kept. Later output is read, so that nobody hangs, and lost.
    room_bytes: u64,
}

/// The result of reading.
#[derive(PartialEq, Eq)]
enum ReadOutcome {
    /// Nothing for the moment.
    Nothing,
    /// Nobody can print any more.
    End,
}

impl OutputPipe {
    /// A pipe into `log`, which keeps the first `limit_bytes`, and its end for the child, which belongs to `user`. The
    /// pipe is read from now on, until every process that has the other end is gone.
    ///
    /// # Errors
    /// When there can be no pipe or no thread.
    pub(crate) fn into_log(
        log: File,
        limit_bytes: u64,
        user: Option<(Uid, Gid)>,
    ) -> io::Result<(OutputPipe, OwnedFd)> {
        let (reader, writer) = io::pipe()?;
        let (reader, writer) = (OwnedFd::from(reader), OwnedFd::from(writer));
        if let Some((uid, gid)) = user {
            // Otherwise it could not open its own output by name.
            fchown(&writer, Some(uid), Some(gid))?;
        }
        // Only our end: the flag belongs to the open file, and the child has another.
        fcntl_setfl(&reader, fcntl_getfl(&reader)? | OFlags::NONBLOCK)?;
        let log = Mutex::new(OutputLog { file: log, room_bytes: limit_bytes });
        let inner = Arc::new(OutputPipeState { reader, log });
        let copied = Arc::clone(&inner);
        std::thread::Builder::new().name("printed".to_owned()).spawn(move || copied.copy())?;
        Ok((OutputPipe { inner }, writer))
    }

    /// Copies what the pipe holds now. Once a process is gone, all that it has printed is in the log when this returns.
    pub(crate) fn drain(&self) {
        let _ = self.inner.take_what_is_there();
    }
}

impl OutputPipeState {
    fn copy(&self) {
        loop {
            let mut waiting = [PollFd::new(&self.reader, PollFlags::IN)];
            // An interrupted wait ends as one that found nothing.
            let _ = poll(&mut waiting, None);
            if self.take_what_is_there() == ReadOutcome::End {
                return;
            }
        }
    }

    fn take_what_is_there(&self) -> ReadOutcome {
        // Read and written under one lock: its next holder finds everything in the log that was taken before.
        let mut log = self.log.lock();
        let mut bytes = [0; CHUNK_BYTES];
        loop {
            match rustix::io::read(&self.reader, &mut bytes) {
                Ok(0) => return ReadOutcome::End,
                Ok(count) => log.keep(&bytes[..count]),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return ReadOutcome::Nothing,
                Err(_) => return ReadOutcome::End,
            }
        }
    }
}

impl OutputLog {
    fn keep(&mut self, bytes: &[u8]) {
        let length = usize::try_from(self.room_bytes).unwrap_or(usize::MAX).min(bytes.len());
        // The run itself ends when a disk stays full; the program must not hang for it.
        if self.file.write_all(&bytes[..length]).is_ok() {
            self.room_bytes -= length as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn printed_by(script: &str, limit_bytes: u64) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let (printed, writer) =
            OutputPipe::into_log(File::create(&path).unwrap(), limit_bytes, None).unwrap();
        let errors = writer.try_clone().unwrap();
        let mut child = Command::new("/bin/sh")
            .args(["-c", script])
            .stdout(Stdio::from(writer))
            .stderr(Stdio::from(errors))
            .spawn()
            .unwrap();
        child.wait().unwrap();
        printed.drain();
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn program_reopening_its_output_loses_nothing() {
        let script =
            "echo tps = 12; echo tps = 345678 > /dev/stdout; echo x; echo y | tee /dev/stderr; echo z";
        assert_eq!(printed_by(script, 1 << 20), "tps = 12\ntps = 345678\nx\ny\ny\nz\n");
    }

    #[test]
    fn excess_output_is_lost_without_hanging() {
        assert_eq!(printed_by("yes 1234567 | head -c 10000000", 16), "1234567\n1234567\n");
    }

    #[test]
    fn lingering_child_delays_nobody() {
        assert_eq!(printed_by("echo a; sleep 1 & echo b", 1 << 20), "a\nb\n");
    }
}
