//! Ranges and parts of objects, as RFC 9110, section 14, and S3 have them.

use crate::program::Program;
use crate::rig::content;
use crate::signed::{Reply, ask, ask_with};

const TEN: &[u8] = b"0123456789";

fn start(directory: &std::path::Path) -> Program {
    let program = Program::start_over_directory(directory, "");
    for (target, body) in [("/lake/ten", TEN), ("/lake/nothing", b"")] {
        assert_eq!(ask(program.address, "PUT", target, &[], body).unwrap().status, 200);
    }
    program
}

/// Status, `Content-Range` and how long the answer is or would be.
fn told(reply: &Reply) -> (u16, Option<&str>, Option<&str>) {
    (reply.status, reply.header("content-range"), reply.header("content-length"))
}

#[test]
fn invalid_ranges_are_ignored_and_others_served() {
    let directory = tempfile::tempdir().unwrap();
    let program = start(directory.path());
    let whole = (200, None, "0123456789");
    for (range, (status, content_range, body)) in [
        ("bytes=0-4", (206, Some("bytes 0-4/10"), "01234")),
        ("Bytes=0-4", (206, Some("bytes 0-4/10"), "01234")),
        ("bytes=3-", (206, Some("bytes 3-9/10"), "3456789")),
        ("bytes=-3", (206, Some("bytes 7-9/10"), "789")),
        ("bytes=-300", (206, Some("bytes 0-9/10"), "0123456789")),
        ("bytes=0-99", (206, Some("bytes 0-9/10"), "0123456789")),
        ("bytes=0-9223372036854775807", (206, Some("bytes 0-9/10"), "0123456789")),
        ("bytes=0-18446744073709551615", (206, Some("bytes 0-9/10"), "0123456789")),
        ("bytes=2-99999999999999999999999999", (206, Some("bytes 2-9/10"), "23456789")),
        ("bytes=9-5", whole),
        ("bytes=1-0", whole),
        ("bytes=abc", whole),
        ("bytes=a-b", whole),
        ("bytes=,", whole),
        ("bytes= -1", whole),
        ("bytes=0 -1", whole),
        ("bytes= 0-4", whole),
        ("bytes=, 0-4 ,", (206, Some("bytes 0-4/10"), "01234")),
        ("bytes=-", whole),
        ("octets=0-5", whole),
        ("items=0-1", whole),
        ("nonsense", whole),
        ("bytes=0-1,5-6", whole),
    ] {
        let reply = ask_with(program.address, "GET", "/lake/ten", &[("Range", range)], b"");
        let length = body.len().to_string();
        assert_eq!(told(&reply), (status, content_range, Some(length.as_str())), "{range}: {reply:?}");
        assert_eq!(reply.text(), body, "{range}");
        let head = ask_with(program.address, "HEAD", "/lake/ten", &[("Range", range)], b"");
        assert_eq!(told(&head), (status, content_range, Some(length.as_str())), "HEAD {range}: {head:?}");
        // A signed header is read in the same way.
        let signed = ask(program.address, "GET", "/lake/ten", &[("range", range)], b"").unwrap();
        assert_eq!((signed.status, signed.text().as_str()), (status, body), "signed {range}: {signed:?}");
    }
    // Of two headers, none counts.
    let twice = [("Range", "bytes=0-1"), ("Range", "bytes=3-4")];
    assert_eq!(ask_with(program.address, "GET", "/lake/ten", &twice, b"").text(), "0123456789");
}

#[test]
fn range_past_end_returns_object_size() {
    let directory = tempfile::tempdir().unwrap();
    let program = start(directory.path());
    for (target, range, length) in [
        ("/lake/ten", "bytes=10-", "bytes */10"),
        ("/lake/ten", "bytes=10-20", "bytes */10"),
        ("/lake/ten", "bytes=-0", "bytes */10"),
        ("/lake/ten", "bytes=99999999999999999999999-", "bytes */10"),
        ("/lake/nothing", "bytes=0-", "bytes */0"),
        ("/lake/nothing", "bytes=-0", "bytes */0"),
    ] {
        let reply = ask_with(program.address, "GET", target, &[("Range", range)], b"");
        assert_eq!((reply.status, reply.code().as_str()), (416, "InvalidRange"), "{range}: {reply:?}");
        assert_eq!(reply.header("content-range"), Some(length), "{range}");
        assert_eq!(reply.header("content-type"), Some("application/xml"), "{range}");
        let head = ask_with(program.address, "HEAD", target, &[("Range", range)], b"");
        assert_eq!((head.status, head.header("content-range")), (416, Some(length)), "HEAD {range}");
    }
}

/// RFC 9110, section 14.1.2: the last bytes of a shorter object are all of it. No `Content-Range` can describe these.
#[test]
fn last_bytes_of_an_empty_object_are_all() {
    let directory = tempfile::tempdir().unwrap();
    let program = start(directory.path());
    for method in ["GET", "HEAD"] {
        let reply = ask_with(program.address, method, "/lake/nothing", &[("Range", "bytes=-1")], b"");
        assert_eq!(told(&reply), (200, None, Some("0")), "{method}: {reply:?}");
    }
}

#[test]
fn if_range_mismatch_returns_whole_object() {
    let directory = tempfile::tempdir().unwrap();
    let program = start(directory.path());
    let original = ask_with(program.address, "HEAD", "/lake/ten", &[], b"");
    let (etag, modified) = (original.header("etag").unwrap(), original.header("last-modified").unwrap());
    let (weak, other) = (format!("W/{etag}"), format!("\"{}\"", "0".repeat(32)));
    let part = (206, Some("bytes 3-9/10"), Some("7"));
    let whole = (200, None, Some("10"));
    for (validator, expected) in [
        (etag, part),
        (modified, part),
        (other.as_str(), whole),
        (weak.as_str(), whole),
        ("Sun, 06 Nov 1994 08:49:37 GMT", whole),
        ("yesterday", whole),
    ] {
        for method in ["GET", "HEAD"] {
            let headers = [("Range", "bytes=3-"), ("If-Range", validator)];
            let reply = ask_with(program.address, method, "/lake/ten", &headers, b"");
            assert_eq!(told(&reply), expected, "{method} {validator}: {reply:?}");
        }
    }
    // Not even a range that nothing can be served of counts then.
    let headers = [("Range", "bytes=100-"), ("If-Range", other.as_str())];
    assert_eq!(told(&ask_with(program.address, "GET", "/lake/ten", &headers, b"")), whole);
}

#[test]
fn parts_of_objects_are_answered_as_partial_content() {
    const FIRST: usize = 5 << 20;
    let directory = tempfile::tempdir().unwrap();
    let program = start(directory.path());
    let begun = ask(program.address, "POST", "/lake/parts?uploads=", &[], b"").unwrap();
    let upload = begun.tag("UploadId").unwrap();
    let (first, second) = (content(3, FIRST), content(4, 7));
    let mut listed = String::new();
    for (number, part) in [(1, &first), (2, &second)] {
        let target = format!("/lake/parts?partNumber={number}&uploadId={upload}");
        let reply = ask(program.address, "PUT", &target, &[], part).unwrap();
        let etag = reply.header("etag").unwrap().replace('"', "&quot;");
        listed.push_str(&format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"));
    }
    let document = format!("<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>");
    let target = format!("/lake/parts?uploadId={upload}");
    assert_eq!(ask(program.address, "POST", &target, &[], document.as_bytes()).unwrap().status, 200);

    let second_range = format!("bytes {FIRST}-{}/{}", FIRST + 6, FIRST + 7);
    for (target, range, length, count) in [
        ("/lake/parts?partNumber=2", Some(second_range.as_str()), "7", Some("2")),
        // The first part of an object that has none is all of it.
        ("/lake/ten?partNumber=1", Some("bytes 0-9/10"), "10", None),
    ] {
        for method in ["GET", "HEAD"] {
            let reply = ask_with(program.address, method, target, &[], b"");
            assert_eq!(told(&reply), (206, range, Some(length)), "{method} {target}: {reply:?}");
            assert_eq!(reply.header("x-amz-mp-parts-count"), count, "{method} {target}");
        }
    }
    assert_eq!(
        told(&ask_with(program.address, "GET", "/lake/nothing?partNumber=1", &[], b"")),
        (200, None, Some("0"))
    );
    for (target, status, code) in [
        ("/lake/parts?partNumber=3", 400, "InvalidPart"),
        ("/lake/ten?partNumber=2", 400, "InvalidPart"),
        ("/lake/ten?partNumber=0", 400, "InvalidArgument"),
        // What is wrong with the request comes before what is there.
        ("/lake/none?partNumber=0", 400, "InvalidArgument"),
        ("/lake/none?partNumber=-3", 400, "InvalidArgument"),
        ("/lake/ten?partNumber=10001", 400, "InvalidArgument"),
    ] {
        let reply = ask_with(program.address, "GET", target, &[], b"");
        assert_eq!((reply.status, reply.code().as_str()), (status, code), "{target}: {reply:?}");
    }
    let both = ask_with(program.address, "GET", "/lake/ten?partNumber=1", &[("Range", "bytes=0-1")], b"");
    assert_eq!((both.status, both.code().as_str()), (400, "InvalidRequest"));
}
