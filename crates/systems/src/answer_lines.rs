//! Answers of our own processes, a line each, from a socket that is read with a timeout, so that the reader can do
//! other things meanwhile.

use std::io::{ErrorKind, Read};

/// An answer with every counter of a job has some ten thousand bytes.
const MAX_LINE_BYTES: usize = 16 << 20;

/// Splits a stream with a read timeout into lines.
#[derive(Default)]
pub(crate) struct LineSplitter(Vec<u8>);

impl LineSplitter {
    /// The next line; `None` if none is complete before the timeout.
    pub(crate) fn next(&mut self, stream: &mut impl Read) -> std::io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(end) = self.0.iter().position(|&byte| byte == b'\n') {
                return Ok(Some(self.0.drain(..=end).collect()));
            }
            if self.0.len() > MAX_LINE_BYTES {
                return Err(ErrorKind::InvalidData.into());
            }
            let mut part = [0; 8192];
            match stream.read(&mut part) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.0.extend_from_slice(&part[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Ok(None);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_put_together_from_what_comes() {
        let mut lines = LineSplitter::default();
        let mut found = Vec::new();
        for mut part in [&b"{\"a\":"[..], b"1}\n{\"b\":2}\n{", b"}\n"] {
            while let Ok(Some(line)) = lines.next(&mut part) {
                found.push(String::from_utf8(line).unwrap());
            }
        }
        assert_eq!(found, ["{\"a\":1}\n", "{\"b\":2}\n", "{}\n"]);
        assert!(lines.next(&mut std::io::empty()).is_err());
    }
}
