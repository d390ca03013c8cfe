//! Another process's answer, with a time limit.

use std::io::{BufRead as _, BufReader, Read};
use std::sync::mpsc;
use std::time::Duration;

/// Its first line with the line's end, or its outcome if its output ended before.
///
/// # Errors
/// When there is no such line within the limit, it is longer than `max_bytes`, or it can't be read.
pub(super) fn first_line(
    output: impl Read + Send + 'static,
    max_bytes: u64,
    limit: Duration,
) -> Result<String, String> {
    let line = within(limit, move || {
        let mut line = String::new();
        BufReader::new(output.take(max_bytes)).read_line(&mut line).map(|_| line)
    })?;
    match line {
        Ok(line) if line.len() as u64 >= max_bytes && !line.ends_with('\n') => Err(too_long(max_bytes)),
        Ok(line) => Ok(line),
        Err(error) => Err(error.to_string()),
    }
}

/// All of it.
///
/// # Errors
/// When its end does not come within the limit, it is longer than `max_bytes`, or it can't be read.
pub(super) fn whole(
    output: impl Read + Send + 'static,
    max_bytes: u64,
    limit: Duration,
) -> Result<Vec<u8>, String> {
    let read = within(limit, move || {
        let mut bytes = Vec::new();
        output.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes).map(|_| bytes)
    })?;
    match read {
        Ok(bytes) if bytes.len() as u64 > max_bytes => Err(too_long(max_bytes)),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(error.to_string()),
    }
}

fn too_long(max_bytes: u64) -> String {
    format!("it said more than {max_bytes} bytes")
}

/// On a thread of its own, which ends when the other process closes its output: a caller that gives up has to end that
/// process.
fn within<T: Send + 'static>(
    limit: Duration,
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let (sender, receiver) = mpsc::channel();
    let reading = move || {
        let _ = sender.send(read());
    };
    std::thread::Builder::new()
        .name("console-reads".to_owned())
        .spawn(reading)
        .map_err(|error| error.to_string())?;
    receiver.recv_timeout(limit).map_err(|_| format!("it said nothing for {} s", limit.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn output_beyond_length_limit_is_refused() {
        assert_eq!(first_line(&b"one\ntwo\n"[..], 9, LONG).unwrap(), "one\n");
        assert_eq!(first_line(&b""[..], 9, LONG).unwrap(), "");
        assert!(first_line(std::io::repeat(b'x'), 9, LONG).unwrap_err().contains("9 bytes"));
        assert_eq!(whole(&b"one\ntwo"[..], 7, LONG).unwrap(), b"one\ntwo");
        assert!(whole(&b"one\ntwo"[..], 6, LONG).is_err());
        assert!(whole(std::io::repeat(b'x'), 9, LONG).unwrap_err().contains("9 bytes"));
    }

    #[test]
    fn silent_child_is_not_awaited() {
        let (silent, open) = std::os::unix::net::UnixStream::pair().unwrap();
        let refused = whole(silent, 9, Duration::from_millis(50)).unwrap_err();
        assert!(refused.contains("nothing"), "{refused}");
        drop(open);
    }
}
