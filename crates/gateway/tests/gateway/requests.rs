//! Requests that no client of good will sends, and what the program says for itself.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use crate::program::{Program, command};
use crate::signed::ask;

/// The raw answer to these bytes.
fn exchange(program: &Program, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(program.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // The gateway may have answered and hung up before it has read all.
    let _ = stream.write_all(bytes);
    // A client that hangs up behind a whole request may get no answer, so only what is cut short ends this way.
    if !bytes.ends_with(b"\r\n\r\n") {
        let _ = stream.shutdown(Shutdown::Write);
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn unsigned_or_malformed_requests_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let objects = directory.path().join("objects");
    std::fs::create_dir_all(&objects).unwrap();
    std::fs::write(directory.path().join("outside"), "not for you").unwrap();
    let sections = format!(
        "[bucket.lake]\nstore = \"{}\"\n[limits]\nconnections = 40\nrequests = 8\n",
        objects.display()
    );
    let program = Program::start(directory.path(), &sections);
    let get = |path: &str| {
        exchange(
            &program,
            format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").as_bytes(),
        )
    };
    for path in [
        "/",
        "/lake",
        "/lake/a",
        "/lake/../outside",
        "/lake/%2e%2e/outside",
        "/lake//etc/passwd",
        "/lake/a%00b",
        "/../../etc/passwd",
    ] {
        let answer = get(path);
        assert!(answer.starts_with("HTTP/1.1 4") && !answer.contains("not for you"), "{path}: {answer}");
    }
    let old = "GET /lake/a HTTP/1.1\r\nHost: test\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\nAuthorization: AWS TESTKEY:c2lnbmF0dXJl\r\nConnection: close\r\n\r\n";
    assert!(exchange(&program, old.as_bytes()).starts_with("HTTP/1.1 4"));
    // A form is refused before its body is read: this one announces 4 GiB and never sends them.
    let form = "POST /lake HTTP/1.1\r\nHost: test\r\nContent-Type: Multipart/Form-Data; boundary=x\r\nContent-Length: 4294967296\r\n\r\n";
    let answer = exchange(&program, form.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("16 MiB by a form"), "{answer}");
    // Refused before its body, which waits for an answer: what follows is no body, nor a request without its first
    // letter.
    let waiting = "PUT /lake/a HTTP/1.1\r\nHost: test\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nGET /lake/b HTTP/1.1\r\nHost: test\r\n\r\n";
    let answer = exchange(&program, waiting.as_bytes());
    assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{answer}");
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("connection: close"), "{answer}");
    // Without a body the gateway sends no 100 Continue: botocore would take it for the answer to its next request.
    for (asks, answers) in [("Expect: 100-continue\r\n", 1), ("", 2)] {
        let empty = format!(
            "PUT /lake/a HTTP/1.1\r\nHost: test\r\n{asks}Content-Length: 0\r\n\r\nGET /lake/b HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
        );
        let answer = exchange(&program, empty.as_bytes());
        assert_eq!(answer.matches("HTTP/1.1").count(), answers, "{answer}");
    }
    // Neither garbage nor floods take it down.
    exchange(&program, &[0xff; 4096]);
    exchange(&program, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03");
    let flood: String = (0..5000).map(|index| format!("x-amz-meta-{index}: {index}\r\n")).collect();
    let answer = exchange(&program, format!("GET /lake/a HTTP/1.1\r\nHost: test\r\n{flood}\r\n").as_bytes());
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    let long = format!("GET /lake/{} HTTP/1.1\r\nHost: test\r\n\r\n", "a".repeat(1 << 20));
    exchange(&program, long.as_bytes());
    // More connections than there may be wait, and are served when others end.
    let idle: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(program.address).unwrap()).collect();
    assert!(program.ask("/health/live", "").unwrap().starts_with("HTTP/1.1 200"));
    drop(idle);
    assert!(get("/lake/a").starts_with("HTTP/1.1 403"), "{}", get("/lake/a"));

    for path in ["/metrics", "/status"] {
        assert!(program.ask(path, "").unwrap().starts_with("HTTP/1.1 401"), "{path}");
        assert!(
            program.ask(path, "Authorization: Bearer wrong\r\n").unwrap().starts_with("HTTP/1.1 401"),
            "{path}"
        );
        let allowed = program.ask(path, &format!("Authorization: Bearer {}\r\n", program.token())).unwrap();
        assert!(allowed.starts_with("HTTP/1.1 200") && allowed.contains("journal_bytes"), "{allowed}");
    }
    let top = command().args(["top", "--once"]).arg(program.config()).output().unwrap();
    assert!(top.status.success() && String::from_utf8_lossy(&top.stdout).contains("journal"), "{top:?}");
    // A second gateway over the same directory does not start, nor does the check.
    let config = std::fs::read_to_string(program.config()).unwrap();
    let second = directory.path().join("second.toml");
    std::fs::write(
        &second,
        config
            .replace(&program.address.to_string(), "127.0.0.1:0")
            .replace(&program.admin.to_string(), "127.0.0.1:0"),
    )
    .unwrap();
    for word in ["serve", "check"] {
        let refused = command()
            .arg(word)
            .arg(&second)
            .env("GATEWAY_SECRET", "a-secret-of-the-test-only")
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            refused.status.code() == Some(4) && stderr.contains("another gateway is using this directory"),
            "{stderr}"
        );
    }
    let (config, directory_path) = (program.config().to_owned(), directory.path().join("local"));
    let (status, log) = program.stop();
    assert!(status.success(), "{log}");
    let check = command().arg("check").arg(&config).output().unwrap();
    assert!(
        check.status.success() && String::from_utf8_lossy(&check.stdout).contains("in order"),
        "{check:?}"
    );
    // Everything in its directory is for this user alone.
    for entry in std::fs::read_dir(directory_path).unwrap() {
        let entry = entry.unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(&entry.metadata().unwrap().permissions());
        assert_eq!(mode & 0o077, 0, "{:?} {mode:o}", entry.path());
    }
}

/// What a process has in memory.
fn resident_bytes(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Ten thousand clients that begin and never go on, and one of good will among them.
#[test]
fn ten_thousand_connections_take_little_memory_and_block_nobody() {
    const CONNECTIONS: usize = 10_000;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    rustix::process::setrlimit(
        rustix::process::Resource::Nofile,
        rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum },
    )
    .unwrap();
    let directory = tempfile::tempdir().unwrap();
    let objects = directory.path().join("objects");
    std::fs::create_dir_all(&objects).unwrap();
    let sections = format!(
        "[bucket.lake]\nstore = \"{}\"\n[limits]\nconnections = {}\nrequests = 8\n",
        objects.display(),
        CONNECTIONS + 100
    );
    let program = Program::start(directory.path(), &sections);
    let before = resident_bytes(program.id());
    let mut waiting = Vec::with_capacity(CONNECTIONS);
    for index in 0..CONNECTIONS {
        let mut stream = TcpStream::connect(program.address).unwrap();
        // Half of them say nothing at all, and half of them a part of a request.
        if index % 2 == 0 {
            stream.write_all(b"GET /lake/a HTTP/1.1\r\nHost: test\r\nx-amz-").unwrap();
        }
        waiting.push(stream);
    }
    let asked = "GET /lake/a HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
    let answer = exchange(&program, asked.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    let memory_bytes = resident_bytes(program.id()).saturating_sub(before);
    assert!(
        memory_bytes < (CONNECTIONS as u64) * (32 << 10),
        "{} KiB a connection",
        (memory_bytes >> 10) / CONNECTIONS as u64
    );
    drop(waiting);
    assert!(exchange(&program, asked.as_bytes()).starts_with("HTTP/1.1 403"));
    let (status, log) = program.stop();
    assert!(status.success(), "{log}");
}

/// Buckets are made one at a time, but for the look at their store: what is removed meanwhile is no reason to refuse
/// one.
#[test]
fn concurrent_bucket_removals_block_no_creation() {
    const CLIENTS: usize = 6;
    let directory = tempfile::tempdir().unwrap();
    let under = directory.path().join("buckets");
    let sections = format!("[new_buckets]\nstore = \"{}\"\nwrite = \"back\"\n", under.display());
    let program = Program::start(directory.path(), &sections);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let address = program.address;
            scope.spawn(move || {
                let path = format!("/own{client}");
                for round in 0..30 {
                    for (method, status) in [("PUT", 200), ("DELETE", 204)] {
                        let reply = ask(address, method, &path, &[], b"").unwrap();
                        assert_eq!(reply.status, status, "{method} {path}, {round}: {}", reply.text());
                    }
                }
            });
        }
    });
    assert_eq!(std::fs::read_dir(&under).unwrap().count(), 0);
    // What can't be made is said, and not where it would be.
    std::fs::write(under.join("taken"), "by a file").unwrap();
    let reply = ask(program.address, "PUT", "/taken", &[], b"").unwrap();
    let text = reply.text();
    assert!(reply.status == 503 && text.contains("no place for this bucket"), "{text}");
    assert!(!text.contains(&*under.to_string_lossy()), "{text}");
}

/// What is to be deleted from its store first can't be, so it stays, and so do its uploads.
#[test]
fn undeletable_bucket_keeps_its_uploads() {
    let directory = tempfile::tempdir().unwrap();
    let under = directory.path().join("buckets");
    let sections = format!("[new_buckets]\nstore = \"{}\"\nwrite = \"through\"\n", under.display());
    let program = Program::start(directory.path(), &sections);
    let ask = |method: &str, target: &str| ask(program.address, method, target, &[], b"").unwrap();
    assert_eq!(ask("PUT", "/made").status, 200);
    let upload = ask("POST", "/made/part?uploads=").tag("UploadId").unwrap();
    let part = format!("/made/part?partNumber=1&uploadId={upload}");
    assert_eq!(ask("PUT", &part).status, 200);
    // With an object, and with one whose deletion fails: a link has taken the place of its directory.
    assert_eq!(ask("PUT", "/made/folder/a").status, 200);
    let refused = ask("DELETE", "/made");
    assert_eq!((refused.status, refused.code().as_str()), (409, "BucketNotEmpty"));
    let folder = under.join("made").join("folder");
    std::fs::remove_dir_all(&folder).unwrap();
    std::os::unix::fs::symlink(directory.path(), &folder).unwrap();
    ask("DELETE", "/made/folder/a");
    assert_eq!(ask("HEAD", "/made/folder/a").status, 404);
    let refused = ask("DELETE", "/made");
    assert_eq!((refused.status, refused.code().as_str()), (503, "SlowDown"), "{}", refused.text());
    assert_eq!(ask("GET", &format!("/made/part?uploadId={upload}")).status, 200, "the upload is there");
    std::fs::remove_file(&folder).unwrap();
    let begun = std::time::Instant::now();
    while ask("DELETE", "/made").status != 204 {
        assert!(begun.elapsed() < Duration::from_secs(120), "it stays forever");
    }
    assert_eq!(ask("HEAD", "/made").status, 404);
}

#[test]
fn configuration_error_names_its_line() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("gateway.toml");
    let text = "listen = \"localhost\"\n[local]\ndirectory = \"relative\"\njurnal = \"1 GiB\"\n[s3]\nendpoint = \"http://10.0.0.5\"\nauthority = \"/ca.pem\"\n[bucket.Lake]\nstore = \"s3:/x\"\nwrite = \"back\"\nconsistency = \"ttl\"\n[bucket.inner]\nstore = \"/srv/objects/a\"\n[new_buckets]\nstore = \"/srv/objects\"\n";
    std::fs::write(&config, text).unwrap();
    let output = command().arg("serve").arg(&config).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    for part in [
        "did you mean `journal`?",
        "absolute path",
        "only a store by https:// shows a certificate",
        "not a valid name of a bucket",
        "gateway.toml:1:",
        "writes that the store lacks",
        "[new_buckets] and [bucket.inner] are over the same objects",
        "[key.NAME]",
    ] {
        assert!(stderr.contains(part), "{part} is not in: {stderr}");
    }
}
