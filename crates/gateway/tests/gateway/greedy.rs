//! Clients that take what others need and give nothing: connections without requests, bodies and readers that stand
//! still, documents and chunks as long as may be. Among them is one of good will, who is served all the time. `make
//! gateway-greedy` has many more of them, for longer, and gives the gateway little memory.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::program::Program;
use crate::rig::content;
use crate::signed::{ask, exchange, sign, tags};

const UNSIGNED: &str = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";
const SIGNED: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
const NO_HASH: &str = "UNSIGNED-PAYLOAD";
/// As often as clients try after a SlowDown or a closed connection.
const TRIES: usize = 100;

/// A number from the environment, which `make gateway-greedy` sets.
fn number(name: &str) -> Option<usize> {
    std::env::var(name).ok().map(|text| text.parse().expect(name))
}

fn start(directory: &Path, connections: usize, requests: usize) -> Program {
    let objects = directory.join("objects");
    std::fs::create_dir_all(&objects).unwrap();
    Program::start_small(
        directory,
        &format!(
            "[bucket.lake]\nstore = \"{}\"\n[limits]\nconnections = {connections}\nrequests = {requests}\n",
            objects.display()
        ),
    )
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    SaysNothing,
    HalfAHead,
    SilentDocument,
    LongDocument,
    DocumentInTinyPieces,
    SilentBody,
    TricklingBody,
    OneChunk,
    OneSignedChunk,
    TinyChunks,
    ReadsNothing,
    ReadsATrickle,
    ReadsNoListing,
    ManyElements,
    BeginsUploads,
}

const KINDS: [Kind; 15] = [
    Kind::SaysNothing,
    Kind::HalfAHead,
    Kind::SilentDocument,
    Kind::LongDocument,
    Kind::DocumentInTinyPieces,
    Kind::SilentBody,
    Kind::TricklingBody,
    Kind::OneChunk,
    Kind::OneSignedChunk,
    Kind::TinyChunks,
    Kind::ReadsNothing,
    Kind::ReadsATrickle,
    Kind::ReadsNoListing,
    Kind::ManyElements,
    Kind::BeginsUploads,
];

/// The head of a request for a body of this length, and how it is framed.
fn head_of(
    address: SocketAddr,
    (method, target): (&str, &str),
    hash: &str,
    (decoded, length): (Option<u64>, u64),
) -> String {
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    let decoded = decoded.map(|length| length.to_string());
    let mut headers = Vec::new();
    if let Some(decoded) = &decoded {
        headers.push(("x-amz-decoded-content-length", decoded.as_str()));
    }
    if hash == UNSIGNED {
        headers.push(("x-amz-trailer", "x-amz-checksum-crc32c"));
    }
    sign(address, (method, target, path), &headers, hash, length).head
}

/// One connection of a client, until the gateway has enough of it.
async fn be_greedy(kind: Kind, address: SocketAddr, key: usize) -> std::io::Result<()> {
    const LONG_BYTES: u64 = 128 << 20;
    let mut stream = TcpStream::connect(address).await?;
    let target = format!("/lake/greedy{key}");
    let delete = ("POST", "/lake?delete=");
    let put = ("PUT", target.as_str());
    let head = match kind {
        Kind::SaysNothing => String::new(),
        Kind::HalfAHead => "GET /lake/a HTTP/1.1\r\nHost: test\r\nx-amz-".to_owned(),
        Kind::SilentDocument => head_of(address, delete, NO_HASH, (None, 1000)),
        Kind::LongDocument | Kind::ManyElements => head_of(address, delete, NO_HASH, (None, 4 << 20)),
        Kind::DocumentInTinyPieces => head_of(address, delete, NO_HASH, (Some(1 << 20), 0))
            .replace("content-length: 0\r\n", "transfer-encoding: chunked\r\n"),
        Kind::SilentBody | Kind::TricklingBody => head_of(address, put, NO_HASH, (None, LONG_BYTES)),
        Kind::OneChunk | Kind::TinyChunks => {
            head_of(address, put, UNSIGNED, (Some(LONG_BYTES), 2 * LONG_BYTES))
        }
        Kind::OneSignedChunk => head_of(address, put, SIGNED, (Some(LONG_BYTES), 2 * LONG_BYTES)),
        Kind::ReadsNothing | Kind::ReadsATrickle => {
            head_of(address, ("GET", "/lake/long"), NO_HASH, (None, 0))
        }
        Kind::ReadsNoListing => {
            let target = "/lake?list-type=2&prefix=listed%2F";
            head_of(address, ("GET", target), NO_HASH, (None, 0))
        }
        Kind::BeginsUploads => {
            let target = format!("{target}?uploads=");
            head_of(address, ("POST", &target), NO_HASH, (None, 0))
        }
    };
    stream.write_all(head.as_bytes()).await?;
    let zeros = vec![b' '; 64 << 10];
    match kind {
        Kind::SilentDocument | Kind::SilentBody => stream.write_all(b"<").await?,
        Kind::LongDocument => {
            for _ in 0..63 {
                stream.write_all(&zeros).await?;
            }
        }
        Kind::ManyElements => {
            for _ in 0..63 {
                stream.write_all(&b"<Object/>       ".repeat(4 << 10)).await?;
            }
        }
        Kind::DocumentInTinyPieces => {
            let pieces = b"1\r\n \r\n".repeat(10_000);
            for _ in 0..50 {
                stream.write_all(&pieces).await?;
            }
        }
        Kind::TricklingBody => loop {
            stream.write_all(b"<").await?;
            tokio::time::sleep(Duration::from_millis(200)).await;
        },
        Kind::OneChunk | Kind::OneSignedChunk => {
            let signature = match kind {
                Kind::OneSignedChunk => format!(";chunk-signature={}", "0".repeat(64)),
                _ => String::new(),
            };
            stream.write_all(format!("8000000{signature}\r\n").as_bytes()).await?;
            for _ in 0..100 {
                stream.write_all(&zeros).await?;
            }
        }
        Kind::TinyChunks => {
            let chunks = b"1\r\n \r\n".repeat(10_000);
            for _ in 0..20 {
                stream.write_all(&chunks).await?;
            }
        }
        Kind::ReadsATrickle => loop {
            let mut some = [0; 100];
            if stream.read(&mut some).await? == 0 {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        },
        Kind::SaysNothing
        | Kind::HalfAHead
        | Kind::ReadsNothing
        | Kind::ReadsNoListing
        | Kind::BeginsUploads => {}
    }
    match kind {
        // It says when the gateway has closed it, and takes nothing.
        Kind::ReadsNothing | Kind::ReadsNoListing => {
            while stream.write_all(b"\r\n").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        }
        _ => drop(stream.read_to_end(&mut Vec::new()).await),
    }
    Ok(())
}

/// What a client of good will gets, if need be by several tries.
fn served(address: SocketAddr, method: &str, target: &str, body: &[u8]) -> Vec<u8> {
    let mut last = String::new();
    for _ in 0..TRIES {
        match ask(address, method, target, &[], body) {
            Ok(reply) if reply.status < 300 => return reply.body,
            Ok(reply) => {
                last = format!("{} {}", reply.status, reply.text());
                let code = reply.tag("Code").unwrap_or_default();
                assert!(["SlowDown", "RequestTimeout"].contains(&code.as_str()), "{method} {target}: {last}");
            }
            Err(error) => last = error.to_string(),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("{method} {target} was never served: {last}");
}

/// What the process has had in memory at most.
fn peak_bytes(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn greedy_clients_of_every_kind_shut_nobody_out() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let most = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, most).unwrap();
    let clients = number("UNDERLAY_GATEWAY_GREEDY_CLIENTS").unwrap_or(2);
    let idle = number("UNDERLAY_GATEWAY_GREEDY_IDLE").unwrap_or(200);
    let seconds = number("UNDERLAY_GATEWAY_GREEDY_SECONDS").unwrap_or(0);
    let is_long = seconds > 0;
    let directory = tempfile::tempdir().unwrap();
    // A socket takes up to 128 KiB of the kernel, which counts as the gateway's.
    let (connections, requests) = if is_long { (512, 128) } else { (100, 16) };
    let mut program = start(directory.path(), connections, requests);
    let address = program.address;
    // Distinct blocks, so that readers share none.
    let long = content(1, 24 << 20);
    assert!(served(address, "PUT", "/lake/long", &long).is_empty());

    // A listing of them has more than 100 KiB.
    let folder = "d".repeat(200);
    for index in 0..150 {
        served(address, "PUT", &format!("/lake/listed/{index}/{folder}/{folder}/{folder}"), b"");
    }

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (ends, begun) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let kinds = KINDS.into_iter().flat_map(|kind| std::iter::repeat_n(kind, clients));
    for (key, kind) in kinds.chain(std::iter::repeat_n(Kind::SaysNothing, idle)).enumerate() {
        let (ends, begun) = (Arc::clone(&ends), Arc::clone(&begun));
        runtime.spawn(async move {
            while !ends.load(Ordering::Relaxed) {
                begun.fetch_add(1, Ordering::Relaxed);
                let _ = be_greedy(kind, address, key).await;
                // Else ten thousand of them would do little but connect.
                let pause = if is_long && matches!(kind, Kind::SaysNothing) { 30_000 } else { 500 };
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
        });
    }

    let (loop_start, mut rounds) = (Instant::now(), 0);
    while rounds < 4 || loop_start.elapsed() < Duration::from_secs(seconds as u64) {
        let bytes = content(rounds, 100_000);
        let target = format!("/lake/good/{rounds}");
        served(address, "PUT", &target, &bytes);
        assert!(served(address, "GET", &target, b"") == bytes);
        let listed = served(address, "GET", "/lake?list-type=2&prefix=good%2F", b"");
        assert!(tags(&String::from_utf8(listed).unwrap(), "Key").contains(&format!("good/{rounds}")));
        if rounds >= 2 {
            served(address, "DELETE", &format!("/lake/good/{}", rounds - 2), b"");
        }
        // Also a long answer.
        assert!(served(address, "GET", "/lake/long", b"") == long);
        rounds += 1;
    }
    ends.store(true, Ordering::Relaxed);
    runtime.shutdown_timeout(Duration::from_secs(5));
    let peak = peak_bytes(program.id());
    eprintln!(
        "{rounds} rounds in {:.1} s beside {} connections of greedy clients; the gateway had {} MiB at most",
        loop_start.elapsed().as_secs_f64(),
        begun.load(Ordering::Relaxed),
        peak >> 20
    );
    assert!(peak < 256 << 20, "{} MiB", peak >> 20);
    // It is the one that was started, and everybody is served again at once.
    assert!(program.is_running());
    assert!(served(address, "GET", "/lake/long", b"") == long);
    let (status, log) = program.stop();
    assert!(status.success(), "{log}");
}

/// Places, and not of connections alone, are taken from who says nothing.
#[test]
fn stalled_document_blocks_no_client() {
    let directory = tempfile::tempdir().unwrap();
    let program = start(directory.path(), 100, 4);
    let address = program.address;
    let head = head_of(address, ("POST", "/lake?delete="), NO_HASH, (None, 1000));
    let silent: Vec<std::net::TcpStream> = (0..4)
        .map(|_| {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            std::io::Write::write_all(&mut stream, head.as_bytes()).unwrap();
            std::io::Write::write_all(&mut stream, b"<").unwrap();
            stream
        })
        .collect();
    served(address, "PUT", "/lake/a", b"bytes");
    assert_eq!(served(address, "GET", "/lake/a", b""), b"bytes");
    // Each connection that lost its place got SlowDown.
    let answers: Vec<String> = silent
        .into_iter()
        .map(|mut stream| {
            stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            let mut answer = Vec::new();
            let _ = std::io::Read::read_to_end(&mut stream, &mut answer);
            String::from_utf8_lossy(&answer).into_owned()
        })
        .collect();
    assert!(answers.iter().any(|answer| answer.contains("<Code>SlowDown</Code>")), "{answers:?}");
}

/// As many as may be, and more behind them, half of them with a part of a request's head.
#[test]
fn connections_without_a_request_make_room_for_new_ones() {
    let directory = tempfile::tempdir().unwrap();
    let program = start(directory.path(), 20, 8);
    let waiting: Vec<std::net::TcpStream> = (0..100)
        .map(|index| {
            let mut stream = std::net::TcpStream::connect(program.address).unwrap();
            if index % 2 == 0 {
                let _ =
                    std::io::Write::write_all(&mut stream, b"GET /lake/a HTTP/1.1\r\nHost: test\r\nx-amz-");
            }
            stream
        })
        .collect();
    for round in 0..5 {
        let target = format!("/lake/{round}");
        served(program.address, "PUT", &target, b"bytes");
        assert_eq!(served(program.address, "GET", &target, b""), b"bytes");
    }
    // The ones that came first have been closed.
    let mut first = &waiting[0];
    first.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let ended = std::io::Read::read(&mut first, &mut [0; 100]);
    assert!(!matches!(&ended, Ok(1..)), "{ended:?}");
    let kind = ended.err().map(|error| error.kind());
    assert!(!matches!(kind, Some(std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)), "{kind:?}");
}

/// One that is longer than the memory that there is, by a client that sends its whole body as one chunk.
#[test]
fn single_chunk_body_is_stored_in_little_memory() {
    const LENGTH: usize = 192 << 20;
    let directory = tempfile::tempdir().unwrap();
    let program = start(directory.path(), 100, 8);
    let bytes = content(7, LENGTH);
    let crc = base64::Engine::encode(
        &base64::engine::general_purpose::STANDARD,
        crc_fast::crc32_iscsi(&bytes).to_be_bytes(),
    );
    let before = peak_bytes(program.id());
    let mut body = format!("{LENGTH:x}\r\n").into_bytes();
    body.extend_from_slice(&bytes);
    body.extend_from_slice(format!("\r\n0\r\nx-amz-checksum-crc32c:{crc}\r\n\r\n").as_bytes());
    let put = ("PUT", "/lake/one");
    let head = head_of(program.address, put, UNSIGNED, (Some(LENGTH as u64), body.len() as u64));
    let reply = exchange(program.address, &head, &body).unwrap();
    assert_eq!((reply.status, reply.header("x-amz-checksum-crc32c")), (200, Some(crc.as_str())), "{reply:?}");
    let memory_bytes = peak_bytes(program.id()).saturating_sub(before);
    assert!(memory_bytes < LENGTH as u64 * 3 / 4, "{} MiB", memory_bytes >> 20);
    assert!(served(program.address, "GET", "/lake/one", b"") == bytes);
    // The checksum behind it counts as ever.
    let first = body.len() - crc.len() - 4;
    body[first] = if body[first] == b'A' { b'B' } else { b'A' };
    let reply = exchange(program.address, &head, &body).unwrap();
    assert_eq!(reply.tag("Code").as_deref(), Some("BadDigest"), "{reply:?}");
}

/// The same, with a signature over all of it.
#[test]
fn single_signed_chunk_is_stored_only_if_valid() {
    const LENGTH: usize = 3 << 20;
    let directory = tempfile::tempdir().unwrap();
    let program = start(directory.path(), 100, 8);
    let bytes = content(8, LENGTH);
    let length = LENGTH.to_string();
    let put = |key: &str, spoil: Option<usize>| {
        let target = format!("/lake/{key}");
        let headers = [("x-amz-decoded-content-length", length.as_str())];
        let signed = sign(program.address, ("PUT", &target, &target), &headers, SIGNED, 0);
        let first = signed.sign_next("PAYLOAD", &signed.signature, &bytes);
        let last = signed.sign_next("PAYLOAD", &first, b"");
        let mut body = format!("{LENGTH:x};chunk-signature={first}\r\n").into_bytes();
        let begin = body.len();
        body.extend_from_slice(&bytes);
        body.extend_from_slice(format!("\r\n0;chunk-signature={last}\r\n\r\n").as_bytes());
        if let Some(offset) = spoil {
            body[begin + offset] ^= 1;
        }
        let head =
            signed.head.replace("content-length: 0\r\n", &format!("content-length: {}\r\n", body.len()));
        exchange(program.address, &head, &body).unwrap()
    };
    assert_eq!(put("right", None).status, 200);
    assert!(served(program.address, "GET", "/lake/right", b"") == bytes);
    for offset in [0, 200_000, LENGTH - 1] {
        let reply = put("wrong", Some(offset));
        assert!(matches!(reply.status, 400 | 403), "{offset}: {reply:?}");
    }
    let reply = ask(program.address, "GET", "/lake/wrong", &[], b"").unwrap();
    assert_eq!(reply.status, 404, "{reply:?}");
}

/// Lengths that are wrong, and a document that nobody would read to its end.
#[test]
fn chunks_that_promise_more_than_their_head_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let program = start(directory.path(), 100, 8);
    for line in ["f0000000", "100000000", "fffffffffffffffff", "-1", "9"] {
        let body = format!("{line}\r\n12345678\r\n0\r\nx-amz-checksum-crc32c:AAAAAA==\r\n\r\n");
        let put = ("PUT", "/lake/a");
        let head = head_of(program.address, put, UNSIGNED, (Some(8), body.len() as u64));
        let reply = exchange(program.address, &head, body.as_bytes()).unwrap();
        assert_eq!(reply.status, 400, "{line}: {reply:?}");
    }
    // A document that says beforehand that it is too long is not read.
    let delete = ("POST", "/lake?delete=");
    let head = head_of(program.address, delete, UNSIGNED, (Some(800 << 20), 900 << 20));
    let mut stream = std::net::TcpStream::connect(program.address).unwrap();
    std::io::Write::write_all(&mut stream, head.as_bytes()).unwrap();
    std::io::Write::write_all(&mut stream, b"32000000\r\n").unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(40))).unwrap();
    let mut answer = [0; 12];
    std::io::Read::read_exact(&mut stream, &mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 400");
}
