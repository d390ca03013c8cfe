//! A worker's or a coordinator's connection: any bytes are read or refused, and messages are divided, planned and
//! merged without a panic.
//!
//! The first byte says in how long pieces the others come.

#![no_main]

use std::io::{self, Read};

use libfuzzer_sys::fuzz_target;
use underlay_hosts::frame::{FrameReader, MAX_BYTES, send};
use underlay_hosts::merge;
use underlay_hosts::message::{CoordinatorRequest, WorkerAnswer, WorkerWelcome};

/// Bytes in pieces of one length, with a wait that was too long after each.
struct Halting<'a> {
    bytes: &'a [u8],
    piece: usize,
    waits: bool,
}

impl Read for Halting<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.waits = !self.waits;
        if self.waits {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let length = self.piece.min(into.len());
        self.bytes.read(&mut into[..length])
    }
}

/// Every message of a stream.
fn messages<M: serde::Serialize + serde::de::DeserializeOwned>(bytes: &[u8], piece: usize) -> Vec<M> {
    let mut stream = Halting { bytes, piece, waits: false };
    let (mut reader, mut found) = (FrameReader::new(), Vec::new());
    loop {
        match reader.receive::<M>(&mut stream, MAX_BYTES) {
            Ok(message) => {
                // What was read can be sent again.
                let mut again = Vec::new();
                send(&mut again, &message).unwrap();
                FrameReader::new().receive::<M>(&mut again.as_slice(), MAX_BYTES).unwrap();
                found.push(message);
            }
            Err(error) if error.is_timeout() => {}
            Err(_) => return found,
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&piece, bytes)) = data.split_first() else { return };
    let piece = usize::from(piece) + 1;
    messages::<WorkerWelcome>(bytes, piece);
    for request in messages::<CoordinatorRequest>(bytes, piece) {
        if let CoordinatorRequest::Prepare(job) = request {
            let _ = job.spec();
            for part in job.divided(3).unwrap_or_default() {
                let _ = part.spec();
            }
        }
    }
    let mut measured = Vec::new();
    for answer in messages::<WorkerAnswer>(bytes, piece) {
        if let WorkerAnswer::Measured(part) = answer {
            measured.push(part.measured);
        }
    }
    merge(&measured);
});
