//! Conditions of reads, writes and copies, as RFC 9110, section 13, and S3 have them.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::program::Program;
use crate::signed::{ask, ask_with};

fn put(program: &Program, target: &str, body: &[u8]) -> String {
    let reply = ask(program.address, "PUT", target, &[], body).unwrap();
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.header("etag").unwrap().to_owned()
}

#[test]
fn etag_lists_and_weak_etags_follow_rfc_9110() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let etag = put(&program, "/lake/one", b"0123456789");
    let bare = etag.trim_matches('"');
    let (weak, first, last) = (format!("W/{etag}"), format!("{etag}, \"zzz\""), format!("\"zzz\", W/{etag}"));
    let unquoted = format!("zzz, {bare}");
    for (name, value, status) in [
        ("If-None-Match", etag.as_str(), 304),
        ("If-None-Match", bare, 304),
        ("If-None-Match", "*", 304),
        ("If-None-Match", weak.as_str(), 304),
        ("If-None-Match", first.as_str(), 304),
        ("If-None-Match", last.as_str(), 304),
        ("If-None-Match", unquoted.as_str(), 304),
        ("If-None-Match", "\"zzz\", \"yyy\"", 200),
        ("If-Match", etag.as_str(), 200),
        ("If-Match", first.as_str(), 200),
        ("If-Match", unquoted.as_str(), 200),
        ("If-Match", "*", 200),
        // Weak tags say that two are alike, and not that they are the same.
        ("If-Match", weak.as_str(), 412),
        ("If-Match", last.as_str(), 412),
        ("If-Match", "\"zzz\"", 412),
        ("If-Match", "no_etag", 412),
        ("If-None-Match", "no_etag", 200),
        ("If-Match", "\"zzz", 400),
    ] {
        for method in ["GET", "HEAD"] {
            let reply = ask_with(program.address, method, "/lake/one", &[(name, value)], b"");
            assert_eq!(reply.status, status, "{method} {name}: {value}: {reply:?}");
            if status == 304 {
                assert_eq!(reply.header("etag"), Some(etag.as_str()), "{method} {value}");
                assert!(reply.header("last-modified").is_some(), "{method} {value}");
            }
        }
    }
    // Two headers of one name are one list.
    let two = [("If-None-Match", "\"zzz\""), ("If-None-Match", etag.as_str())];
    assert_eq!(ask_with(program.address, "GET", "/lake/one", &two, b"").status, 304);
}

#[test]
fn dates_in_all_forms_count_and_invalid_are_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    put(&program, "/lake/one", b"0123456789");
    let modified = ask_with(program.address, "HEAD", "/lake/one", &[], b"");
    let modified = modified.header("last-modified").unwrap();
    for (name, value, status) in [
        ("If-Modified-Since", modified, 304),
        ("If-Modified-Since", "Sun, 06 Nov 1994 08:49:37 GMT", 200),
        ("If-Modified-Since", "Sunday, 06-Nov-94 08:49:37 GMT", 200),
        ("If-Modified-Since", "Sun Nov  6 08:49:37 1994", 200),
        ("If-Modified-Since", "yesterday", 200),
        ("If-Modified-Since", "0", 200),
        ("If-Unmodified-Since", modified, 200),
        ("If-Unmodified-Since", "Sun, 06 Nov 1994 08:49:37 GMT", 412),
        ("If-Unmodified-Since", "Sunday, 06-Nov-94 08:49:37 GMT", 412),
        ("If-Unmodified-Since", "Sun Nov  6 08:49:37 1994", 412),
        ("If-Unmodified-Since", "Thu, 03 Jul 1997 03:40:28 UTC", 200),
        ("If-Unmodified-Since", "yesterday", 200),
    ] {
        for method in ["GET", "HEAD"] {
            let reply = ask_with(program.address, method, "/lake/one", &[(name, value)], b"");
            assert_eq!(reply.status, status, "{method} {name}: {value}: {reply:?}");
        }
    }
    // An ETag outweighs a date.
    let both = [("If-None-Match", "\"zzz\""), ("If-Modified-Since", modified)];
    assert_eq!(ask_with(program.address, "GET", "/lake/one", &both, b"").status, 200);
}

#[test]
fn conditional_copy_replaces_only_matching_object() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let source = put(&program, "/lake/source", b"the source");
    let target = put(&program, "/lake/target", b"the target");
    let copy = |to: &str, name: &str, value: &str| {
        let headers = [("x-amz-copy-source", "/lake/source")];
        let address = program.address;
        let host = address.to_string();
        crate::signed::ask_for((address, &host), "PUT", to, &headers, &[(name, value)], b"").status
    };
    let body = |target: &str| ask_with(program.address, "GET", target, &[], b"").text();
    assert_eq!(copy("/lake/target", "If-None-Match", "*"), 412);
    assert_eq!(copy("/lake/target", "If-None-Match", &target), 412);
    assert_eq!(copy("/lake/target", "If-Match", &source), 412);
    assert_eq!(copy("/lake/target", "If-Match", "\"zzz\", \"yyy\""), 412);
    assert_eq!(copy("/lake/target", "If-Match", &format!("W/{target}")), 412);
    assert_eq!(body("/lake/target"), "the target");
    assert_eq!(copy("/lake/missing", "If-Match", "*"), 404);
    assert_eq!(copy("/lake/missing", "If-Match", &source), 404);
    assert_eq!(copy("/lake/new", "If-None-Match", "*"), 200);
    assert_eq!(copy("/lake/target", "If-Match", &format!("\"zzz\", {target}")), 200);
    assert_eq!(body("/lake/target"), "the source");
    // Those of the source are read in the same way.
    let weak = format!("\"zzz\", W/{source}");
    for (name, value, status) in [
        ("x-amz-copy-source-if-match", format!("\"zzz\", {source}"), 200),
        ("x-amz-copy-source-if-match", weak.clone(), 412),
        ("x-amz-copy-source-if-none-match", weak, 412),
        ("x-amz-copy-source-if-unmodified-since", "Sunday, 06-Nov-94 08:49:37 GMT".to_owned(), 412),
        ("x-amz-copy-source-if-unmodified-since", "yesterday".to_owned(), 200),
        ("x-amz-copy-source-if-modified-since", "yesterday".to_owned(), 200),
    ] {
        let headers = [("x-amz-copy-source", "/lake/source"), (name, value.as_str())];
        let reply = ask(program.address, "PUT", "/lake/again", &headers, b"").unwrap();
        assert_eq!(reply.status, status, "{name}: {value}: {reply:?}");
    }
}

/// RFC 9110, 8.8.3 and 13.1.1: in quotes it is a tag like others, which no object has.
#[test]
fn star_in_quotes_is_an_ordinary_tag() {
    let directory = tempfile::tempdir().unwrap();
    let objects = directory.path().join("objects");
    std::fs::create_dir(&objects).unwrap();
    let sections = format!(
        "[bucket.lake]\nstore = \"{}\"\nwrite = \"back\"\n\
         [[bucket.lake.prefix]]\nprefix = \"shared/\"\nconsistency = \"revalidate\"\n",
        objects.display()
    );
    let program = Program::start(directory.path(), &sections);
    let star = "\"*\"";
    for key in ["/lake/one", "/lake/shared/one"] {
        put(&program, key, b"0123456789");
        let status = |method: &str, headers: &[(&str, &str)], body: &[u8]| {
            ask(program.address, method, key, headers, body).unwrap().status
        };
        assert_eq!(status("GET", &[("if-match", star)], b""), 412, "{key}");
        assert_eq!(status("GET", &[("if-none-match", star)], b""), 200, "{key}");
        assert_eq!(status("PUT", &[("if-match", star)], b"other"), 412, "{key}");
        assert_eq!(status("DELETE", &[("if-match", star)], b""), 412, "{key}");
        let copied_if = |name: &str| {
            let headers = [("x-amz-copy-source", key), (name, star)];
            ask(program.address, "PUT", "/lake/copy", &headers, b"").unwrap().status
        };
        assert_eq!(copied_if("x-amz-copy-source-if-match"), 412, "{key}");
        assert_eq!(copied_if("x-amz-copy-source-if-none-match"), 200, "{key}");
        // Without quotes it is any.
        assert_eq!(status("PUT", &[("if-none-match", "*")], b"other"), 412, "{key}");
        assert_eq!(status("PUT", &[("if-none-match", star)], b"0123"), 200, "{key}");
        assert_eq!(status("PUT", &[("if-match", "*")], b"012345"), 200, "{key}");
        assert_eq!(status("GET", &[], b""), 200, "{key}");
    }
}

#[test]
fn unknown_copy_directive_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    put(&program, "/lake/source", b"the source");
    for name in ["x-amz-metadata-directive", "x-amz-tagging-directive"] {
        for (directive, status) in [("COPY", 200), ("REPLACE", 200), ("BOGUS", 400)] {
            let headers = [("x-amz-copy-source", "/lake/source"), (name, directive)];
            let reply = ask(program.address, "PUT", "/lake/target", &headers, b"").unwrap();
            assert_eq!(reply.status, status, "{name}: {directive}: {reply:?}");
        }
    }
}

/// Rename if absent, as table formats do it: one of many wins, whether they copy or put.
#[test]
fn concurrent_copies_onto_new_name_make_one() {
    const CLIENTS: usize = 8;
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    put(&program, "/lake/source", b"the source");
    for round in 0..10 {
        let (made, target) = (AtomicUsize::new(0), format!("/lake/new{round}"));
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                let (made, target, address) = (&made, &target, program.address);
                scope.spawn(move || {
                    let copying = [("if-none-match", "*"), ("x-amz-copy-source", "/lake/source")];
                    let headers = if client % 2 == 0 { &copying[..] } else { &copying[..1] };
                    let reply = ask(address, "PUT", target, headers, b"").unwrap();
                    assert!(matches!(reply.status, 200 | 412), "{reply:?}");
                    made.fetch_add(usize::from(reply.status == 200), Ordering::Relaxed);
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
    }
}

#[test]
fn put_and_delete_take_lists_of_etags() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let first = put(&program, "/lake/one", b"first");
    let put_if = |name: &str, value: &str| {
        ask_with(program.address, "PUT", "/lake/one", &[(name, value)], b"first").status
    };
    assert_eq!(put_if("If-Match", "\"zzz\", \"yyy\""), 412);
    assert_eq!(put_if("If-Match", &format!("\"zzz\", {first}")), 200);
    assert_eq!(put_if("If-None-Match", &format!("\"zzz\", {first}")), 412);
    assert_eq!(put_if("If-None-Match", "\"zzz\", \"yyy\""), 200);
    assert_eq!(put_if("If-Match", &format!("W/{first}")), 412);
    let delete_if =
        |value: &str| ask_with(program.address, "DELETE", "/lake/one", &[("If-Match", value)], b"").status;
    assert_eq!(delete_if("\"zzz\", \"yyy\""), 412);
    assert_eq!(delete_if(&format!("\"zzz\", {first}")), 204);
}
