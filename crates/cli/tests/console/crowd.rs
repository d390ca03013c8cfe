//! Two hundred open pages, half of which read slowly or nothing at all: the console's memory has a bound, it answers
//! others, and the run goes on.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use underlay_record::CellStatus;

use crate::elsewhere::{Plain, cookie, request};
use crate::support::{NULL_STUDY, Playground, records, secret, wait_for};
use crate::{LIMIT, Running, console};

const TOKEN: &str = "correct-horse-battery-staple";
const PAGES: usize = 200;
/// How long they are open.
const OPEN: Duration = Duration::from_secs(25);
/// Of the console's process: a build with debug information begins with some 40 MiB.
const MAX_BYTES: u64 = 256 << 20;

/// The most that a process ever had in memory.
fn peak_bytes(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn two_hundred_pages_and_slow_readers_take_bounded_memory() {
    let playground = Playground::new();
    let study = NULL_STUDY.replace("300 ms", "9 s");
    playground.write("null.toml", &study);
    secret(&playground, "token", TOKEN);
    std::fs::create_dir_all(playground.path("disk")).unwrap();
    std::fs::create_dir(playground.path("runs")).unwrap();
    let (console, url) = console(&playground, &["--token-file", "token"]);
    let mut run = playground.underlay(&["run", "null.toml", "--out", "runs/one", "--quiet"]);
    let mut run = run.stdout(Stdio::null()).spawn().map(Running).unwrap();
    wait_for("the run to begin", LIMIT, || playground.path("runs/one/feed.jsonl").is_file());
    let (server, cookie) = (Plain::from_url(&url), cookie(&url));
    let open = |_| {
        let mut stream = server.connect();
        let ask = "GET /stream?topic=run/5m/one&topic=runs HTTP/1.1";
        write!(stream, "{ask}\r\nHost: {}\r\n{cookie}\r\n\r\n", server.host()).unwrap();
        stream
    };
    let mut pages: Vec<TcpStream> = (0..PAGES).map(open).collect();
    let begun = Instant::now();
    let mut seen = 0;
    let mut chunk = vec![0; 256 << 10];
    while begun.elapsed() < OPEN {
        for (place, page) in pages.iter_mut().enumerate() {
            // A quarter reads what comes, a quarter a little of it, and the rest nothing.
            let most = match place % 4 {
                0 => chunk.len(),
                1 => 64,
                _ => continue,
            };
            page.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            seen += page.read(&mut chunk[..most]).unwrap_or(0);
        }
        // A program with a token gets answers beside them.
        let answer =
            request(&mut server.connect(), "GET /api/runs HTTP/1.1", &server.host(), &[&bearer()], "");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    assert!(seen > 1 << 20, "pages got {seen} bytes");
    let peak_bytes = peak_bytes(console.0.id());
    assert!(peak_bytes < MAX_BYTES, "the console took {} MiB", peak_bytes >> 20);
    drop(pages);
    assert!(run.0.wait().unwrap().success());
    let found = records(&playground.path("runs/one"));
    assert!(found.len() == 4 && found.iter().all(|record| record.status == CellStatus::Completed));
}

/// Clients that connect and send nothing keep nobody out.
#[test]
fn silent_strangers_keep_nobody_out() {
    let playground = Playground::new();
    secret(&playground, "token", TOKEN);
    std::fs::create_dir(playground.path("runs")).unwrap();
    let (_console, url) = console(&playground, &["--token-file", "token"]);
    let server = Plain::from_url(&url);
    let strangers: Vec<TcpStream> = (0..600).map(|_| server.connect()).collect();
    let answer = request(&mut server.connect(), "GET /api/runs HTTP/1.1", &server.host(), &[&bearer()], "");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(strangers);
}

fn bearer() -> String {
    format!("Authorization: Bearer {TOKEN}")
}
