//! Answers that are read as a whole: they are short.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use super::{Settings, connect};

/// One that stays open.
pub(super) struct Connection {
    stream: TcpStream,
    /// What has come, and was not read yet.
    buffer: Vec<u8>,
}

/// The text between two others. Without them there is nothing to go on with.
pub(super) fn between<'a>(text: &'a str, begin: &str, end: &str) -> &'a str {
    let rest = text.split_once(begin).map(|(_, rest)| rest);
    let found = rest.and_then(|rest| rest.split_once(end)).map(|(found, _)| found);
    found.unwrap_or_else(|| panic!("no {begin} in {text}"))
}

impl Connection {
    pub(super) fn open(settings: &Settings) -> Connection {
        Connection { stream: connect(settings), buffer: Vec::new() }
    }

    /// The body of the answer.
    pub(super) fn ask(&mut self, request: &[u8]) -> String {
        self.exchange(request).1
    }

    /// The value of a header of the answer, whose name is in lower case.
    pub(super) fn ask_for_header(&mut self, request: &[u8], name: &str) -> String {
        let (head, _) = self.exchange(request);
        header(&head, name).unwrap_or_else(|| panic!("no {name} in {head}")).to_owned()
    }

    fn exchange(&mut self, request: &[u8]) -> (String, String) {
        self.stream.write_all(request).unwrap();
        let head = loop {
            let end = self.position(b"\r\n\r\n");
            let head = String::from_utf8(self.take(end + 4)).expect("a head of text");
            // What comes before the answer itself.
            if !head[9..].starts_with('1') {
                break head;
            }
        };
        let body = match (header(&head, "content-length"), header(&head, "transfer-encoding")) {
            (Some(length), _) => self.take(length.parse().unwrap()),
            (None, Some("chunked")) => self.chunks(),
            (None, _) => Vec::new(),
        };
        let body = String::from_utf8(body).expect("a body of text");
        assert!(head[9..].starts_with('2'), "{head}{body}");
        (head, body)
    }

    fn chunks(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let end = self.position(b"\r\n");
            let line = String::from_utf8(self.take(end + 2)).expect("a length");
            let length = usize::from_str_radix(line.trim().split(';').next().unwrap(), 16).unwrap();
            let chunk = self.take(length + 2);
            body.extend_from_slice(&chunk[..length]);
            if length == 0 {
                return body;
            }
        }
    }

    /// Where this comes first.
    fn position(&mut self, wanted: &[u8]) -> usize {
        loop {
            if let Some(place) = self.buffer.windows(wanted.len()).position(|bytes| bytes == wanted) {
                return place;
            }
            self.receive();
        }
    }

    fn take(&mut self, length: usize) -> Vec<u8> {
        while self.buffer.len() < length {
            self.receive();
        }
        self.buffer.drain(..length).collect()
    }

    fn receive(&mut self) {
        let mut bytes = [0; 16 << 10];
        let length = self.stream.read(&mut bytes).unwrap();
        assert!(length > 0, "the server hung up: {}", String::from_utf8_lossy(&self.buffer));
        self.buffer.extend_from_slice(&bytes[..length]);
    }
}

fn header<'a>(head: &'a str, wanted: &str) -> Option<&'a str> {
    head.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case(wanted).then(|| value.trim())
    })
}
