//! Stores that refuse, and clients' headers that no store takes: nothing is acknowledged that can't be stored, and what
//! can't be stops nothing else.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use openssl::hash::MessageDigest;
use openssl::pkey::PKey;
use openssl::sign::Signer;
use underlay_gateway::engine::{CopyRequest, GatewayEngine, WriteConditions};
use underlay_gateway::store::BackendKind;

use crate::own_s3::OwnS3;
use crate::program::{KEY, Program, SECRET, command};
use crate::rig::{BUCKET, Ground, content, delete, get, in_directory, in_memory, put};
use crate::signed::{Reply, ask, exchange};

const TIMEOUT: Duration = Duration::from_secs(60);

async fn until(condition: &str, is_so: impl AsyncFn() -> bool) {
    let begun = Instant::now();
    while !is_so().await {
        assert!(begun.elapsed() < TIMEOUT, "{condition}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn wait_for(condition: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < TIMEOUT, "{condition}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

async fn is_pending(engine: &GatewayEngine, count: usize) -> bool {
    engine.pending().0 == count
}

/// More names panic than there are flushers. Each is set aside, all others are stored, and nothing is lost.
#[tokio::test(flavor = "multi_thread")]
async fn panic_in_store_client_stops_no_flusher() {
    let directory = tempfile::tempdir().unwrap();
    let ground = Ground::new(in_memory(), BackendKind::S3);
    let poisoned: Vec<String> = (0..9).map(|index| format!("poisoned/{index}")).collect();
    let bytes = content(1, 1000);
    {
        let engine = ground.open(directory.path()).await;
        put(&engine, "poisoned/0", &bytes, WriteConditions::default()).await.unwrap();
        until("the first object is stored", async || engine.is_clean()).await;
        ground.mood.panics_at.lock().extend(poisoned.iter().cloned());
        for key in &poisoned {
            put(&engine, key, &bytes, WriteConditions::default()).await.unwrap();
        }
        // Deletions are flushed by the same loops.
        delete(&engine, "poisoned/0").await.unwrap();
        for index in 0..20 {
            put(&engine, &format!("good/{index}"), &bytes, WriteConditions::default()).await.unwrap();
        }
        until("the others are stored", async || is_pending(&engine, poisoned.len()).await).await;
        until("the panic is reported", async || engine.last_failure().is_some()).await;
        assert_eq!(ground.stored().await.len(), 21);
        assert_eq!(get(&engine, "poisoned/8", None).await.unwrap(), bytes);
        engine.close().await;
    }
    // The next start meets the same names first.
    let engine = ground.open(directory.path()).await;
    put(&engine, "later", &bytes, WriteConditions::default()).await.unwrap();
    until("what comes later is stored", async || is_pending(&engine, poisoned.len()).await).await;
    ground.drain(&engine).await;
    let mut expected: Vec<(String, Bytes)> =
        poisoned[1..].iter().map(|key| (key.clone(), bytes.clone())).collect();
    expected.extend((0..20).map(|index| (format!("good/{index}"), bytes.clone())));
    expected.push(("later".to_owned(), bytes.clone()));
    expected.sort();
    assert_eq!(ground.stored().await, expected);
}

/// A directory can't give every file a second name (another file system, too many links): then the copy is stored from
/// its bytes.
#[tokio::test(flavor = "multi_thread")]
async fn copy_refused_by_directory_is_stored_as_bytes() {
    let (directory, store) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ground = Ground::new(in_directory(store.path()), BackendKind::Directory);
    let engine = ground.open(directory.path()).await;
    let bytes = content(2, 300_000);
    put(&engine, "from", &bytes, WriteConditions::default()).await.unwrap();
    until("the source is stored", async || engine.is_clean()).await;
    ground.mood.refuses_copies.store(true, Ordering::Relaxed);
    let request = CopyRequest {
        from: (BUCKET.to_owned(), "from".to_owned()),
        to: (BUCKET.to_owned(), "to".to_owned()),
        ..CopyRequest::default()
    };
    engine.copy(request).await.unwrap();
    until("the copy is stored", async || engine.is_clean()).await;
    assert!(ground.mood.copies.load(Ordering::Relaxed) > 0, "the store was asked to copy it first");
    assert_eq!(ground.stored().await, [("from".to_owned(), bytes.clone()), ("to".to_owned(), bytes)]);
}

/// So AWS answers a copy of an object above 5 GiB.
#[test]
fn copy_refused_by_s3_is_stored_as_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let store = OwnS3::start(0);
    store.may_list(usize::MAX);
    let program = Program::start(directory.path(), &store.sections(directory.path(), "write = \"back\""));
    let meta = [("x-amz-meta-a", "b")];
    assert_eq!(ask(program.address, "PUT", "/lake/from", &meta, b"some bytes").unwrap().status, 200);
    wait_for("the source is not stored", || store.object("from").is_some());
    // A copy of what is stored, and not of what the journal has.
    let token = format!("Authorization: Bearer {}\r\n", program.token());
    wait_for("the source is still pending", || {
        program.ask("/metrics", &token).unwrap().contains("_pending_objects 0\n")
    });
    let source = [("x-amz-copy-source", "/lake/from")];
    assert_eq!(ask(program.address, "PUT", "/lake/to", &source, b"").unwrap().status, 200);
    wait_for("the copy is not stored", || store.object("to").is_some());
    assert_eq!(store.object("to").unwrap(), b"some bytes");
    assert!(store.copies() > 0 && store.headers("to").iter().any(|line| line == "x-amz-meta-a: b"));
    let (status, log) = program.stop();
    assert!(status.success(), "{log}");
}

/// What others have stored with UTF-8 in its headers is served, and what clients send in either form is stored: both
/// are returned as S3 does.
#[test]
fn headers_that_are_not_ascii_come_and_go() {
    let directory = tempfile::tempdir().unwrap();
    let store = OwnS3::start(0);
    store.put_directly(
        "direct",
        b"bytes",
        &[
            "x-amz-meta-u: é".as_bytes(),
            b"x-amz-meta-latin: caf\xe9",
            b"x-amz-meta-word: =?UTF-8?Q?caf=C3=A9?=",
            "Content-Disposition: attachment; filename=\"é.txt\"".as_bytes(),
            "Cache-Control: é".as_bytes(),
        ],
    );
    store.may_list(usize::MAX);
    let mut program =
        Program::start(directory.path(), &store.sections(directory.path(), "write = \"through\""));
    for method in ["GET", "HEAD", "GET"] {
        let reply = ask(program.address, method, "/lake/direct", &[], b"").unwrap();
        assert_eq!(reply.status, 200, "{}", reply.text());
        for (name, value) in [
            ("x-amz-meta-u", "=?UTF-8?B?w6k=?="),
            ("x-amz-meta-latin", "=?UTF-8?B?Y2Fmw6k=?="),
            ("x-amz-meta-word", "=?UTF-8?B?Y2Fmw6k=?="),
            ("content-disposition", "attachment; filename=\"é.txt\""),
            ("cache-control", "é"),
        ] {
            assert_eq!(reply.header(name), Some(value), "{}", reply.head);
        }
    }
    for (key, value) in [("word", "=?UTF-8?B?w6k=?="), ("raw", "é")] {
        let meta = [("x-amz-meta-u", value)];
        let reply = ask(program.address, "PUT", &format!("/lake/{key}"), &meta, b"bytes").unwrap();
        assert_eq!(reply.status, 200, "{key}: {}", reply.text());
        assert!(store.headers(key).iter().any(|line| line == "x-amz-meta-u: =?UTF-8?B?w6k=?="));
        let reply = ask(program.address, "HEAD", &format!("/lake/{key}"), &[], b"").unwrap();
        assert_eq!(reply.header("x-amz-meta-u"), Some("=?UTF-8?B?w6k=?="), "{}", reply.head);
    }
    // Also by a gateway that knows them from the store alone.
    program.kill();
    std::fs::remove_dir_all(directory.path().join("local")).unwrap();
    program.start_again();
    for key in ["direct", "word", "raw"] {
        let reply = ask(program.address, "GET", &format!("/lake/{key}"), &[], b"").unwrap();
        assert_eq!((reply.status, reply.header("x-amz-meta-u")), (200, Some("=?UTF-8?B?w6k=?=")), "{key}");
    }
    let (status, log) = program.stop();
    assert!(status.success(), "{log}");
}

fn code_of(reply: &Reply) -> (u16, String) {
    (reply.status, reply.tag("Code").unwrap_or_default())
}

/// Sends a form with these fields and a file of this type, whose policy allows them.
fn send_form(address: SocketAddr, fields: &[(&str, &str)], file_type: &[u8]) -> Reply {
    let conditions: String =
        fields.iter().map(|(name, _)| format!(", [\"starts-with\", \"${name}\", \"\"]")).collect();
    let policy = format!(
        "{{\"expiration\": \"2099-01-01T00:00:00Z\", \"conditions\": [{{\"bucket\": \"lake\"}}, [\"starts-with\", \"$key\", \"\"]{conditions}]}}"
    );
    let policy = STANDARD.encode(policy);
    let key = PKey::hmac(SECRET.as_bytes()).unwrap();
    let mut signer = Signer::new(MessageDigest::sha1(), &key).unwrap();
    let signature = STANDARD.encode(signer.sign_oneshot_to_vec(policy.as_bytes()).unwrap());
    let ours = [("key", "form"), ("AWSAccessKeyId", KEY), ("policy", &policy), ("signature", &signature)];
    let mut body = Vec::new();
    for (name, value) in ours.iter().chain(fields) {
        let part = format!("--x\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
        body.extend_from_slice(part.as_bytes());
    }
    body.extend_from_slice(
        b"--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\nContent-Type: ",
    );
    body.extend_from_slice(file_type);
    body.extend_from_slice(b"\r\n\r\nbytes\r\n--x--\r\n");
    let head = format!(
        "POST /lake HTTP/1.1\r\nHost: {address}\r\nContent-Type: multipart/form-data; boundary=x\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    exchange(address, &head, &body).unwrap()
}

/// Browsers send UTF-8. The store and clients get what a PUT would have said.
#[test]
fn non_ascii_form_headers_become_encoded_words() {
    let directory = tempfile::tempdir().unwrap();
    let store = OwnS3::start(0);
    store.may_list(usize::MAX);
    let program = Program::start(directory.path(), &store.sections(directory.path(), "write = \"through\""));
    let fields = [("Content-Disposition", "é"), ("Cache-Control", "no-store"), ("x-amz-meta-u", "é")];
    let reply = send_form(program.address, &fields, "text/é".as_bytes());
    assert_eq!(reply.status, 204, "{}", reply.text());
    let sent = store.headers("form");
    for line in [
        "content-disposition: =?UTF-8?B?w6k=?=",
        "content-type: =?UTF-8?B?dGV4dC/DqQ==?=",
        "cache-control: no-store",
        "x-amz-meta-u: =?UTF-8?B?w6k=?=",
    ] {
        assert!(sent.iter().any(|found| found == line), "{line}: {sent:?}");
    }
    let found = ask(program.address, "HEAD", "/lake/form", &[], b"").unwrap();
    assert_eq!(found.header("content-disposition"), Some("=?UTF-8?B?w6k=?="), "{}", found.head);
}

/// All operations that take headers refuse the same ones, before they acknowledge anything.
#[test]
fn headers_that_no_store_takes_are_refused_everywhere() {
    let directory = tempfile::tempdir().unwrap();
    let store = OwnS3::start(0);
    store.may_list(usize::MAX);
    let program = Program::start(directory.path(), &store.sections(directory.path(), "write = \"back\""));
    let address = program.address;
    assert_eq!(ask(address, "PUT", "/lake/source", &[], b"bytes").unwrap().status, 200);
    let (long, longer) = ("a".repeat(2100), "a".repeat(9000));
    let cases: [(&str, &str, &str); 5] = [
        // A line feed, a zero byte and DEL, in words.
        ("x-amz-meta-a", "=?UTF-8?B?YQpi?=", "InvalidArgument"),
        ("x-amz-meta-a", "=?UTF-8?Q?a=00?=", "InvalidArgument"),
        ("x-amz-meta-a", "=?UTF-8?Q?a=7F?=", "InvalidArgument"),
        ("x-amz-meta-a", &long, "MetadataTooLarge"),
        ("content-disposition", &longer, "RequestHeaderSectionTooLarge"),
    ];
    for (name, value, code) in cases {
        let refused = (400, code.to_owned());
        let header = (name, value);
        let replace =
            [header, ("x-amz-copy-source", "/lake/source"), ("x-amz-metadata-directive", "REPLACE")];
        for (method, target, headers) in [
            ("PUT", "/lake/put", &[header][..]),
            ("PUT", "/lake/copy", &replace[..]),
            ("POST", "/lake/created?uploads=", &[header][..]),
        ] {
            let reply = ask(address, method, target, headers, b"").unwrap();
            assert_eq!(code_of(&reply), refused, "{method} {target} {name}: {}", reply.text());
        }
        let reply = send_form(address, &[header], b"text/plain");
        assert_eq!(code_of(&reply), refused, "a form, {name}: {}", reply.text());
    }
    type Fields = [(&'static str, &'static str)];
    let forms: [(&Fields, &[u8]); 4] = [
        (&[], b"image/png\x01"),
        (&[], b"image/png\x7f"),
        (&[("x-amz-meta-a b", "c")], b"text/plain"),
        (&[("cache-control", "a\nb")], b"text/plain"),
    ];
    for (fields, file_type) in forms {
        let reply = send_form(address, fields, file_type);
        let refused = (400, "InvalidArgument".to_owned());
        assert_eq!(code_of(&reply), refused, "{fields:?} {file_type:?}: {}", reply.text());
    }
    // And what is right is stored.
    let reply = send_form(address, &[("x-amz-meta-a", "é")], b"image/png");
    assert_eq!(reply.status, 204, "{}", reply.text());
    wait_for("the form's object is not stored", || store.object("form").is_some());
    let (status, log) = program.stop();
    assert!(status.success() && !log.contains("a bug"), "{log}");
    assert!(["put", "copy", "created"].iter().all(|key| store.object(key).is_none()));
}

/// Until `/metrics` has this behind the name of the figure for what can't be stored.
fn wait_for_failing(program: &Program, line: &str) {
    let token = format!("Authorization: Bearer {}\r\n", program.token());
    wait_for("/metrics does not say what fails", || {
        let metrics = program.ask("/metrics", &token).unwrap();
        metrics.contains(&format!("underlay_gateway_failing_objects{line}"))
    });
}

/// The figures and the log show what can't be stored and why, and the exit code warns before the machine is taken away.
#[test]
fn refused_objects_are_shown_and_drain_exits_1() {
    let directory = tempfile::tempdir().unwrap();
    let store = OwnS3::start(0);
    store.may_list(usize::MAX);
    store.refuse_puts(true);
    let of_bucket = "write = \"back\"\n[limits]\ndrain = \"2 s\"";
    let mut program = Program::start(directory.path(), &store.sections(directory.path(), of_bucket));
    for key in ["a", "b"] {
        let target = format!("/lake/{key}");
        assert_eq!(ask(program.address, "PUT", &target, &[], b"bytes").unwrap().status, 200);
    }
    wait_for_failing(&program, "{cause=\"denied\"} 2\n");
    let top = command().args(["top", "--once"]).arg(program.config()).output().unwrap();
    let printed = String::from_utf8_lossy(&top.stdout).into_owned();
    assert!(printed.contains("2 objects fail to be stored: denied"), "{printed}");
    program.terminate();
    let (status, log) = program.wait_end();
    assert_eq!(status.code(), Some(1), "{log}");
    let drain = |timeout: &str| {
        let mut drain = command();
        drain.args(["drain", "--timeout", timeout]).arg(program.config()).env("GATEWAY_SECRET", SECRET);
        drain.output().unwrap()
    };
    let drained = drain("2");
    let printed = String::from_utf8_lossy(&drained.stderr).into_owned();
    assert_eq!(drained.status.code(), Some(1), "{printed}");
    assert!(
        printed.contains("not stored: lake/a: denied") && printed.contains("not stored: lake/b: denied"),
        "{printed}"
    );
    store.refuse_puts(false);
    let drained = drain("60");
    assert!(drained.status.success(), "{}", String::from_utf8_lossy(&drained.stderr));
    assert!(store.object("a").is_some() && store.object("b").is_some());
}

/// A deletion that the store has not carried out must not be settled: the object would come back.
#[test]
fn deletion_in_a_missing_bucket_is_not_done() {
    let directory = tempfile::tempdir().unwrap();
    let store = OwnS3::start(0);
    store.may_list(usize::MAX);
    let rules =
        "write = \"back\"\n[[bucket.lake.prefix]]\nprefix = \"shared/\"\nconsistency = \"revalidate\"";
    let mut program = Program::start(directory.path(), &store.sections(directory.path(), rules));
    for key in ["own", "shared/theirs"] {
        assert_eq!(ask(program.address, "PUT", &format!("/lake/{key}"), &[], b"bytes").unwrap().status, 200);
        wait_for("it is not stored", || store.object(key).is_some());
    }
    store.lack_bucket(true);
    assert_eq!(ask(program.address, "DELETE", "/lake/own", &[], b"").unwrap().status, 204);
    assert_eq!(ask(program.address, "DELETE", "/lake/shared/theirs", &[], b"").unwrap().status, 503);
    wait_for_failing(&program, "{cause=\"no_bucket\"} 1\n");
    store.lack_bucket(false);
    program.kill_and_start();
    wait_for("it is not deleted", || store.object("own").is_none());
    assert!(store.object("shared/theirs").is_some());
    assert_eq!(ask(program.address, "GET", "/lake/own", &[], b"").unwrap().status, 404);
}

/// 412 would tell a client that somebody else has committed; 409 is to be tried again.
#[test]
fn conflict_in_store_is_no_failed_condition() {
    let directory = tempfile::tempdir().unwrap();
    let store = OwnS3::start(0);
    store.may_list(usize::MAX);
    let program =
        Program::start(directory.path(), &store.sections(directory.path(), "consistency = \"revalidate\""));
    store.be_busy(true);
    let if_absent = [("if-none-match", "*")];
    for headers in [&[][..], &if_absent[..]] {
        let reply = ask(program.address, "PUT", "/lake/a", headers, b"bytes").unwrap();
        assert_eq!(reply.status, 503, "{headers:?}: {}", reply.text());
    }
    assert_eq!(ask(program.address, "DELETE", "/lake/a", &[], b"").unwrap().status, 503);
    store.be_busy(false);
    assert_eq!(ask(program.address, "PUT", "/lake/a", &if_absent, b"bytes").unwrap().status, 200);
}

/// A part is sent whole at each attempt, so a store that refuses it is asked ever more seldom, and the figures say why.
#[test]
fn refused_parts_of_uploads_are_shown() {
    let directory = tempfile::tempdir().unwrap();
    let store = OwnS3::start(0);
    store.may_list(usize::MAX);
    store.refuse_puts(true);
    let sections = store.sections(directory.path(), "write = \"back\"");
    let program = Program::start_with_local(directory.path(), "journal = \"32 MiB\"\n", &sections);
    let begun = ask(program.address, "POST", "/lake/a?uploads=", &[], b"").unwrap();
    let upload = begun.tag("UploadId").unwrap();
    let part = vec![7; 5 << 20];
    for number in 1..=4 {
        let target = format!("/lake/a?partNumber={number}&uploadId={upload}");
        assert_eq!(ask(program.address, "PUT", &target, &[], &part).unwrap().status, 200);
    }
    wait_for_failing(&program, "{cause=\"denied\"} ");
}

/// It is what one runs before a machine is taken away: a typing error must not say that all is well.
#[test]
fn drain_of_foreign_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let objects = directory.path().join("objects");
    std::fs::create_dir_all(&objects).unwrap();
    let sections = format!("[bucket.lake]\nstore = \"{}\"\nwrite = \"back\"\n", objects.display());
    let mut program = Program::start(directory.path(), &sections);
    assert_eq!(ask(program.address, "PUT", "/lake/a", &[], b"bytes").unwrap().status, 200);
    program.kill();
    let wrong = directory.path().join("wrong.toml");
    let (right_place, wrong_place) = (directory.path().join("local"), directory.path().join("locall"));
    let config = std::fs::read_to_string(program.config()).unwrap();
    std::fs::write(&wrong, config.replace(&*right_place.to_string_lossy(), &wrong_place.to_string_lossy()))
        .unwrap();
    for made in [false, true] {
        if made {
            std::fs::create_dir(&wrong_place).unwrap();
        }
        let drain = command().arg("drain").arg(&wrong).env("GATEWAY_SECRET", SECRET).output().unwrap();
        let printed = String::from_utf8_lossy(&drain.stderr).into_owned();
        assert_eq!(drain.status.code(), Some(4), "{printed}");
        assert!(
            printed.contains("has no metadata of a gateway") && !printed.contains("have everything"),
            "{printed}"
        );
    }
    assert!(std::fs::read_dir(&wrong_place).unwrap().next().is_none(), "nothing was made there");
    let drain = command().arg("drain").arg(program.config()).env("GATEWAY_SECRET", SECRET).output().unwrap();
    assert!(drain.status.success(), "{}", String::from_utf8_lossy(&drain.stderr));
    assert_eq!(std::fs::read(objects.join("a")).unwrap(), b"bytes");
}

/// The store's client asks again after an answer of a server in front of the store, and is told that there is no such
/// upload: that says nothing of the object.
#[test]
fn completion_without_answer_leaves_outcome_open() {
    let directory = tempfile::tempdir().unwrap();
    let store = OwnS3::start(0);
    store.may_list(usize::MAX);
    let program =
        Program::start(directory.path(), &store.sections(directory.path(), "consistency = \"revalidate\""));
    let bytes = vec![7; 9 << 20];
    store.hide_completion();
    let reply = ask(program.address, "PUT", "/lake/hidden", &[], &bytes).unwrap();
    assert_eq!(reply.status, 503, "{reply:?}");
    assert_eq!(store.object("hidden").map(|object| object.len()), Some(bytes.len()));
    // It may still land, so nothing else may follow for a while, and the same may.
    assert_eq!(ask(program.address, "DELETE", "/lake/hidden", &[], b"").unwrap().status, 503);
    let (_, log) = program.stop();
    assert!(log.contains("NoSuchUpload"), "{log}");
}

#[test]
fn upload_lost_by_store_is_no_missing_key() {
    let directory = tempfile::tempdir().unwrap();
    let store = OwnS3::start(0);
    store.may_list(usize::MAX);
    let program =
        Program::start(directory.path(), &store.sections(directory.path(), "consistency = \"revalidate\""));
    let bytes = vec![7; 40 << 20];
    store.forget_uploads(true);
    let reply = ask(program.address, "PUT", "/lake/given-up", &[], &bytes).unwrap();
    assert_eq!((reply.status, reply.code().as_str()), (503, "ServiceUnavailable"), "{reply:?}");
    store.forget_uploads(false);
    assert_eq!(ask(program.address, "PUT", "/lake/given-up", &[], &bytes).unwrap().status, 200);
    assert!(store.object("given-up") == Some(bytes));
}

/// A copy by reference costs nothing here, and its flush would need parts that there is no memory for.
#[test]
fn copy_of_object_too_large_for_memory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = OwnS3::start(0);
    store.may_list(usize::MAX);
    store.claim("huge", 300 << 30);
    store.claim("large", 200 << 30);
    let late = "write = \"back\"\nflush_after = \"1 h\"";
    let program = Program::start_small(directory.path(), &store.sections(directory.path(), late));
    let copy = |source: &str, target: &str, directive: &str| {
        let headers = [("x-amz-copy-source", source), ("x-amz-metadata-directive", directive)];
        let reply = ask(program.address, "PUT", target, &headers, b"").unwrap();
        (reply.status, reply.code())
    };
    let too_large = (400, "EntityTooLarge".to_owned());
    assert_eq!(copy("/lake/huge", "/lake/copy", "COPY"), too_large);
    assert_eq!(copy("/lake/huge", "/lake/huge", "REPLACE"), too_large);
    assert_eq!(ask(program.address, "HEAD", "/lake/copy", &[], b"").unwrap().status, 404);
    // Beyond S3's 5 GiB, as long as there is memory.
    assert_eq!(copy("/lake/large", "/lake/copy", "COPY").0, 200);
    assert_eq!(ask(program.address, "DELETE", "/lake/copy", &[], b"").unwrap().status, 204);
}
