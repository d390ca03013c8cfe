//! Keys that end in a slash, as those that mark directories do, in an S3 store that others use as well.

use std::net::SocketAddr;
use std::path::Path;

use crate::program::{Program, SECRET};
use crate::signed::{Reply, ask, tags};

fn ask_for(address: SocketAddr, method: &str, target: &str) -> Reply {
    ask(address, method, target, &[], b"").unwrap()
}

fn put(address: SocketAddr, target: &str, body: &[u8]) {
    assert_eq!(ask(address, "PUT", target, &[], body).unwrap().status, 200, "{target}");
}

fn body_of(address: SocketAddr, target: &str) -> Option<Vec<u8>> {
    let reply = ask_for(address, "GET", target);
    assert!(matches!(reply.status, 200 | 404), "{target}: {reply:?}");
    (reply.status == 200).then_some(reply.body)
}

fn keys(address: SocketAddr, target: &str) -> Vec<String> {
    let reply = ask_for(address, "GET", target);
    assert_eq!(reply.status, 200, "{reply:?}");
    tags(&reply.text(), "Key")
}

/// A gateway with a directory, which is the S3 store of another one.
fn inner(directory: &Path) -> Program {
    let objects = directory.join("objects");
    std::fs::create_dir_all(&objects).unwrap();
    Program::start(directory, &format!("[bucket.lake]\nstore = \"{}\"\n", objects.display()))
}

fn outer(directory: &Path, inner: &Program) -> Program {
    let secret = directory.join("store-secret");
    std::fs::write(&secret, SECRET).unwrap();
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let sections = format!(
        "[s3]\nendpoint = \"http://{}\"\nkey_id = \"{}\"\nsecret_file = \"{}\"\n\
         [bucket.lake]\nstore = \"s3://lake/behind\"\nwrite = \"back\"\nflush_after = \"1 h\"\n\
         [bucket.shared]\nstore = \"s3://lake/shared\"\nconsistency = \"revalidate\"\n",
        inner.address,
        crate::program::KEY,
        secret.display()
    );
    Program::start(directory, &sections)
}

/// Ends it, which brings everything to the store, and starts it again.
fn drain(program: &mut Program) {
    program.terminate();
    let (status, log) = program.wait_end();
    assert!(status.success() && !log.contains("not in their store yet"), "{log}");
    program.start_again();
}

#[test]
fn keys_ending_in_slash_are_equal_through_store() {
    let directory = tempfile::tempdir().unwrap();
    let folder = |name: &str| {
        let folder = directory.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        folder
    };
    let backend = inner(&folder("inner"));
    let store = backend.address;
    put(store, "/lake/behind/old/", b"");
    put(store, "/lake/behind/old/file", b"file");
    put(store, "/lake/behind/full/", b"bytes");
    // Not every store tells these from other keys, so they are not served. The rest of the bucket is.
    put(store, "/lake/behind/x//y", b"deep");
    put(store, "/lake/behind/./y", b"dot");
    let mut front = outer(&folder("outer"), &backend);
    let gateway = front.address;

    assert_eq!(keys(gateway, "/lake?list-type=2"), ["full/", "old/", "old/file"]);
    assert_eq!(ask_for(gateway, "HEAD", "/lake/old").status, 404, "a file where there is a directory");
    assert_eq!(ask_for(gateway, "HEAD", "/lake/old/").status, 200);
    assert_eq!(body_of(gateway, "/lake/full/").as_deref(), Some(&b"bytes"[..]));

    put(gateway, "/lake/new/", b"");
    put(gateway, "/lake//a//b", b"two");
    let source = [("x-amz-copy-source", "/lake/full/")];
    assert_eq!(ask(gateway, "PUT", "/lake/copy/", &source, b"").unwrap().status, 200);
    put(gateway, "/lake/large/", &vec![7; 9 << 20]);
    drain(&mut front);
    for (key, expected) in [("new/", &b""[..]), ("copy/", b"bytes")] {
        assert_eq!(body_of(store, &format!("/lake/behind/{key}")).as_deref(), Some(expected), "{key}");
    }
    assert_eq!(body_of(store, "/lake/behind/large/").map(|body| body.len()), Some(9 << 20));
    assert_eq!(body_of(gateway, "/lake//a//b").as_deref(), Some(&b"two"[..]));
    for key in ["old/", "full/", "new/", "/a//b"] {
        assert_eq!(ask_for(gateway, "DELETE", &format!("/lake/{key}")).status, 204, "{key}");
    }
    drain(&mut front);
    let left = ["behind/./y", "behind/copy/", "behind/large/", "behind/old/file", "behind/x//y"];
    assert_eq!(keys(store, "/lake?list-type=2&prefix=behind%2F"), left);
    assert_eq!(body_of(gateway, "/lake/copy/").as_deref(), Some(&b"bytes"[..]));

    // Where others write as well, the store is asked each time.
    put(gateway, "/shared/d/", b"");
    put(store, "/lake/shared/e/", b"1");
    put(store, "/lake/shared/f/a", b"2");
    assert_eq!(body_of(store, "/lake/shared/d/").as_deref(), Some(&b""[..]));
    assert_eq!(keys(gateway, "/shared?list-type=2"), ["d/", "e/", "f/a"]);
    for (after, expected) in [("", "d/"), ("d%2F", "e/"), ("e%2F", "f/a")] {
        let target = format!("/shared?list-type=2&max-keys=1&start-after={after}");
        assert_eq!(keys(gateway, &target), [expected], "{after}");
    }
    let grouped = ask_for(gateway, "GET", "/shared?delimiter=%2F&list-type=2&prefix=e%2F").text();
    assert_eq!(tags(&grouped, "Key"), ["e/"], "{grouped}");
    assert_eq!(body_of(gateway, "/shared/e/").as_deref(), Some(&b"1"[..]));
    assert_eq!(ask_for(gateway, "HEAD", "/shared/e").status, 404);
    for key in ["d/", "e/"] {
        assert_eq!(ask_for(gateway, "DELETE", &format!("/shared/{key}")).status, 204, "{key}");
    }
    assert_eq!(keys(store, "/lake?list-type=2&prefix=shared%2F"), ["shared/f/a"]);

    // Keys that have other names in the store are listed where there is room, and keep no others from being listed.
    for key in ["/odd", "./odd", "a#1"] {
        put(gateway, &format!("/shared/{}", key.replace('#', "%23")), b"");
    }
    for key in ["-a", "-b", "-c", "b"] {
        put(store, &format!("/lake/shared/{key}"), b"");
    }
    assert_eq!(keys(gateway, "/shared?list-type=2"), ["-a", "-b", "-c", "./odd", "/odd", "a#1", "b", "f/a"]);
    let (mut found, mut after) = (Vec::new(), String::new());
    loop {
        let page = keys(gateway, &format!("/shared?list-type=2&max-keys=2&start-after={after}"));
        let Some(last) = page.last() else { break };
        after = last.replace('/', "%2F").replace('#', "%23");
        found.extend(page.into_iter().filter(|key| !key.ends_with("odd") && key != "a#1"));
    }
    assert_eq!(found, ["-a", "-b", "-c", "b", "f/a"]);
}
