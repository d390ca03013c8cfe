//! The client of `benches/gateway`: signed requests over connections that stay open, with as little work for each as
//! can be, so that what is measured is the server. Each request is signed once and sent again and again, which a
//! signature of version 4 allows for 15 minutes.
//!
//! `gateway_load WORD NAME=VALUE...`, with one of the words in `main`; the secret is in `GATEWAY_SECRET`. Prints a line
//! of JSON.

mod answers;
mod writes;

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit as _, Mac as _};
use rustix::net::RecvFlags;
use sha2::{Digest as _, Sha256};

struct Settings(HashMap<String, String>);

impl Settings {
    fn text(&self, name: &str) -> &str {
        self.0.get(name).unwrap_or_else(|| panic!("{name}= is missing"))
    }

    fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or_else(|_| panic!("{name}= has no number"))
    }

    fn path(&self, object: u64) -> String {
        format!("/{}/{}{object}", self.text("bucket"), self.text("prefix"))
    }
}

fn hex(bytes: &[u8]) -> String {
    base16ct::lower::encode_string(bytes)
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

/// What a request's signature covers.
struct Signed<'a> {
    method: &'a str,
    path: &'a str,
    /// As it is signed: sorted, and each value escaped.
    query: &'a str,
    header: Option<(&'a str, &'a str)>,
}

impl<'a> Signed<'a> {
    fn new(method: &'a str, path: &'a str) -> Signed<'a> {
        Signed { method, path, query: "", header: None }
    }

    fn query(self, query: &'a str) -> Signed<'a> {
        Signed { query, ..self }
    }

    /// Signs one header more, whose name comes after those of all requests.
    fn with(self, name: &'a str, value: &'a str) -> Signed<'a> {
        Signed { header: Some((name, value)), ..self }
    }

    /// A request without the end of its head, for headers that are not signed.
    fn head(&self, settings: &Settings) -> String {
        let Signed { method, path, query, header } = *self;
        let secret = std::env::var("GATEWAY_SECRET").expect("GATEWAY_SECRET");
        let time = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
        let (date, host) = (&time[..8], settings.text("host"));
        // In the order in which they are signed.
        let mut headers =
            vec![("host", host), ("x-amz-content-sha256", "UNSIGNED-PAYLOAD"), ("x-amz-date", time.as_str())];
        headers.extend(header);
        headers.sort_unstable();
        let names = headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
        let lines: String = headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
        let canonical = format!("{method}\n{path}\n{query}\n{lines}\n{names}\nUNSIGNED-PAYLOAD");
        let scope = format!("{date}/us-east-1/s3/aws4_request");
        let text =
            format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", hex(&Sha256::digest(canonical.as_bytes())));
        let mut key = format!("AWS4{secret}").into_bytes();
        for part in [date, "us-east-1", "s3", "aws4_request"] {
            key = mac(&key, part);
        }
        let signature = hex(&mac(&key, &text));
        let target = if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") };
        let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        format!(
            "{method} {target} HTTP/1.1\r\n{lines}Authorization: AWS4-HMAC-SHA256 Credential={}/{scope}, \
             SignedHeaders={names}, Signature={signature}\r\n",
            settings.text("key")
        )
    }
}

fn signed(settings: &Settings, method: &str, path: &str) -> String {
    Signed::new(method, path).head(settings)
}

/// What an object has at an offset.
fn pattern(object: u64, offset: u64, length: usize) -> Vec<u8> {
    (offset..offset + length as u64)
        .map(|position| {
            ((position / 8).wrapping_add(object).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> ((position % 8) * 8))
                as u8
        })
        .collect()
}

fn connect(settings: &Settings) -> TcpStream {
    let stream = TcpStream::connect(settings.text("address")).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Sends a request, and reads its answer to the end. The body is thrown away by the kernel unless `wanted` says what it
/// has to be.
fn exchange(stream: &mut TcpStream, request: &[u8], buffer: &mut [u8], wanted: Option<&[u8]>) -> u64 {
    stream.write_all(request).unwrap();
    let (filled, head) = read_head(stream, buffer);
    let text = std::str::from_utf8(&buffer[..head]).expect("a head of text");
    let status = &text[9..12];
    assert!(matches!(status, "200" | "206" | "204"), "{text}");
    let length: u64 = text
        .split("\r\n")
        .find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().unwrap())
        })
        .unwrap_or(0);
    let mut left = length - (filled - head) as u64;
    if let Some(wanted) = wanted {
        let mut body = buffer[head..filled].to_vec();
        let begun = body.len();
        body.resize(length as usize, 0);
        stream.read_exact(&mut body[begun..]).unwrap();
        assert!(body == wanted, "the answer has other bytes than were put");
        return length;
    }
    while left > 0 {
        let most = (buffer.len() as u64).min(left) as usize;
        // Nothing is copied: the kernel drops what has come.
        let (_, received) = rustix::net::recv(&*stream, &mut buffer[..most], RecvFlags::TRUNC).unwrap();
        assert!(received > 0, "the server hung up");
        left -= received as u64;
    }
    length
}

/// How much is there, and where the head ends.
fn read_head(stream: &mut TcpStream, buffer: &mut [u8]) -> (usize, usize) {
    let mut filled = 0;
    loop {
        // Little, so that not much of a body is copied.
        let room = (filled + 2048).min(buffer.len());
        let received = stream.read(&mut buffer[filled..room]).unwrap();
        assert!(received > 0, "the server hung up: {}", String::from_utf8_lossy(&buffer[..filled]));
        filled += received;
        if let Some(position) = buffer[..filled].windows(4).position(|four| four == b"\r\n\r\n") {
            return (filled, position + 4);
        }
        assert!(room < buffer.len(), "the head has no end");
    }
}

fn put(settings: &Settings) {
    let (mut stream, mut buffer) = (connect(settings), vec![0; 1 << 16]);
    let size = settings.number("size");
    for object in 0..settings.number("objects") {
        let mut request = signed(settings, "PUT", &settings.path(object)).into_bytes();
        request.extend_from_slice(format!("Content-Length: {size}\r\n\r\n").as_bytes());
        request.extend_from_slice(&pattern(object, 0, size as usize));
        exchange(&mut stream, &request, &mut buffer, None);
    }
    println!("{{}}");
}

fn next(random: &mut u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random
}

/// As many requests as there is time for, over all connections.
fn get(settings: &Settings) {
    let (size, range, objects) =
        (settings.number("size"), settings.number("range"), settings.number("objects"));
    let heads: Vec<String> =
        (0..objects).map(|object| signed(settings, "GET", &settings.path(object))).collect();
    let (begun, lasts) = (Instant::now(), Duration::from_millis(settings.number("ms")));
    let latencies: Vec<u32> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..settings.number("connections"))
            .map(|index| {
                let heads = &heads;
                scope.spawn(move || {
                    let (mut stream, mut buffer) = (connect(settings), vec![0; 256 << 10]);
                    let (mut random, mut latencies) = (index * 7919 + 1, Vec::new());
                    while begun.elapsed() < lasts {
                        let object = next(&mut random) % objects;
                        let mut request = heads[object as usize].clone();
                        let (offset, length) = match range {
                            0 => (0, size),
                            range => (next(&mut random) % (size / range) * range, range),
                        };
                        if range > 0 {
                            use std::fmt::Write as _;
                            write!(request, "Range: bytes={offset}-{}\r\n", offset + length - 1).unwrap();
                        }
                        request.push_str("\r\n");
                        // The first answer of each connection is looked at.
                        let wanted = latencies.is_empty().then(|| pattern(object, offset, length as usize));
                        let sent = Instant::now();
                        let got = exchange(&mut stream, request.as_bytes(), &mut buffer, wanted.as_deref());
                        assert_eq!(got, length);
                        latencies.push(sent.elapsed().as_micros() as u32);
                    }
                    latencies
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    report(latencies, if range == 0 { size } else { range }, begun.elapsed());
}

/// Each object once, one after the other: who caches has none of them.
fn miss(settings: &Settings) {
    let (mut stream, mut buffer) = (connect(settings), vec![0; 256 << 10]);
    let (first, count) = (settings.number("first"), settings.number("objects"));
    let begun = Instant::now();
    let latencies = (first..first + count)
        .map(|object| {
            let request = format!("{}\r\n", signed(settings, "GET", &settings.path(object)));
            let sent = Instant::now();
            exchange(&mut stream, request.as_bytes(), &mut buffer, None);
            sent.elapsed().as_micros() as u32
        })
        .collect();
    report(latencies, settings.number("size"), begun.elapsed());
}

fn report(mut latencies: Vec<u32>, each_bytes: u64, duration: Duration) {
    latencies.sort_unstable();
    let percentile = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize];
    println!(
        "{{\"requests\": {}, \"bytes\": {}, \"seconds\": {}, \"p50_us\": {}, \"p99_us\": {}}}",
        latencies.len(),
        latencies.len() as u64 * each_bytes,
        duration.as_secs_f64(),
        percentile(0.5),
        percentile(0.99)
    );
}

/// A line that is so long: what comes in goes out `delay_us` later, both ways.
fn relay(settings: &Settings) {
    let listener = TcpListener::bind(settings.text("listen")).unwrap();
    let delay = Duration::from_micros(settings.number("delay_us"));
    for client in listener.incoming() {
        let client = client.unwrap();
        let server = TcpStream::connect(settings.text("to")).unwrap();
        for (from, to) in [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)] {
            to.set_nodelay(true).unwrap();
            carry(from, to, delay);
        }
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (sender, receiver) = mpsc::sync_channel::<(Instant, Vec<u8>)>(1024);
    std::thread::spawn(move || {
        for (due, bytes) in receiver {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Write);
    });
    std::thread::spawn(move || {
        let mut buffer = vec![0; 256 << 10];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            if sender.send((Instant::now() + delay, buffer[..length].to_vec())).is_err() {
                break;
            }
        }
    });
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let word = arguments.next().unwrap_or_default();
    let pairs = arguments.map(|argument| {
        let (name, value) = argument.split_once('=').expect("NAME=VALUE");
        (name.to_owned(), value.to_owned())
    });
    let settings = Settings(pairs.collect());
    match word.as_str() {
        "put" => put(&settings),
        "get" => get(&settings),
        "miss" => miss(&settings),
        "relay" => relay(&settings),
        "write" => writes::write(&settings),
        "fill" => writes::fill(&settings),
        "rename" => writes::rename(&settings),
        "commit" => writes::commit(&settings),
        "sync" => writes::sync(&settings),
        _ => panic!("put, get, miss, relay, write, fill, rename, commit or sync"),
    }
}
