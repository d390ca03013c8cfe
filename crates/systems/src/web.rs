//! Requests to the web servers of systems, from inside their network.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::network_namespace::NetworkNamespace;

/// A server that takes longer is stuck. Busy ones take a few seconds.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// Answers are shorter. A longer one is cut off, and then fails to parse.
const MAX_BYTES: u64 = 32 << 20;

/// The JSON at `path` of the server at `address` in the network `namespace`.
pub(crate) fn get_json(namespace: &NetworkNamespace, address: SocketAddr, path: &str) -> io::Result<Value> {
    get_json_as(namespace, address, path, None)
}

/// The same as a `T`, with a `token` where the server asks for one.
pub(crate) fn get_json_as<T: DeserializeOwned>(
    namespace: &NetworkNamespace,
    address: SocketAddr,
    path: &str,
    token: Option<&str>,
) -> io::Result<T> {
    let answer = namespace.within(|| get(address, path, token))??;
    serde_json::from_slice(&answer).map_err(|error| {
        invalid(format!("{address}{path} did not return the JSON that was expected: {error}"))
    })
}

fn invalid(problem: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

/// The body of the answer. HTTP/1.0 is enough: the server closes the connection after its answer.
fn get(address: SocketAddr, path: &str, token: Option<&str>) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_LIMIT)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    stream.set_write_timeout(Some(ANSWER_LIMIT))?;
    let allowed = token.map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
    let request = format!(
        "GET {path} HTTP/1.0\r\nHost: {address}\r\nAccept: application/json\r\n{allowed}Connection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(MAX_BYTES).read_to_end(&mut answer)?;
    body_of(&answer).map_err(|problem| invalid(format!("{address}{path}: {problem}")))
}

/// The body of an answer of status 200.
fn body_of(answer: &[u8]) -> Result<Vec<u8>, String> {
    const END: &[u8] = b"\r\n\r\n";
    let end = answer.windows(END.len()).position(|window| window == END);
    let Some(end) = end else { return Err("the answer is cut off".to_owned()) };
    let head = String::from_utf8_lossy(&answer[..end]);
    let status = head.lines().next().unwrap_or_default();
    if status.split(' ').nth(1) != Some("200") {
        return Err(format!("answered '{}'", status.escape_debug()));
    }
    let body = &answer[end + END.len()..];
    let chunked = head.lines().any(|line| {
        let line = line.to_ascii_lowercase();
        line.starts_with("transfer-encoding:") && line.contains("chunked")
    });
    if chunked { unchunk(body) } else { Ok(body.to_vec()) }
}

/// Puts together what a server sent in pieces, which it may do although nobody asked.
fn unchunk(mut rest: &[u8]) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    let cut = || "the answer is cut off".to_owned();
    loop {
        let end = rest.windows(2).position(|window| window == b"\r\n").ok_or_else(cut)?;
        let size = String::from_utf8_lossy(&rest[..end]);
        let size = size.split(';').next().unwrap_or_default().trim();
        let size =
            usize::from_str_radix(size, 16).map_err(|_| "a piece of the answer has no size".to_owned())?;
        rest = &rest[end + 2..];
        if size == 0 {
            return Ok(body);
        }
        let (piece, after) = rest.split_at_checked(size).ok_or_else(cut)?;
        body.extend_from_slice(piece);
        rest = after.get(2..).ok_or_else(cut)?;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn answers_are_read_whole_and_in_pieces() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Type: x\r\n\r\n{}\r\n";
        assert_eq!(body_of(whole).unwrap(), b"{}\r\n");
        let pieces =
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n";
        assert_eq!(body_of(pieces).unwrap(), b"abc0123456789");
        for (answer, problem) in [
            (&b""[..], "cut off"),
            (b"HTTP/1.1 404 Not Found\r\n\r\n", "404 Not Found"),
            (b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc", "cut off"),
            (b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\nabc", "no size"),
        ] {
            let found = body_of(answer).unwrap_err();
            assert!(found.contains(problem), "{found}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_answer_never_panics(answer in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = body_of(&answer);
            let _ = unchunk(&answer);
        }

        #[test]
        fn chunked_body_is_reassembled(pieces in proptest::collection::vec(
            proptest::collection::vec(any::<u8>(), 1..50), 0..8)) {
            let mut sent = Vec::new();
            for piece in &pieces {
                sent.extend(format!("{:x}\r\n", piece.len()).into_bytes());
                sent.extend(piece);
                sent.extend(b"\r\n");
            }
            sent.extend(b"0\r\n\r\n");
            prop_assert_eq!(unchunk(&sent).unwrap(), pieces.concat());
        }
    }
}
