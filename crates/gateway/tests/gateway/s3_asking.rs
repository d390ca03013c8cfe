//! Headers that ask for what an operation does not do: it is refused, so that no client takes it for done.

use crate::program::Program;
use crate::signed::{Reply, ask, ask_presigned};

fn expect(reply: &Reply, status: u16, code: &str, case: &str) {
    assert_eq!((reply.status, reply.code().as_str()), (status, code), "{case}: {reply:?}");
}

const ALGORITHM: (&str, &str) = ("x-amz-server-side-encryption-customer-algorithm", "AES256");
const CUSTOMER_KEY: (&str, &str) =
    ("x-amz-server-side-encryption-customer-key", "pO3upElrwuEXSoFwCfnZPdSsmt/xWeFa0N9KgDijwVs=");
const KEY_MD5: (&str, &str) = ("x-amz-server-side-encryption-customer-key-md5", "DWygnHRtgiJ77HCm+1rvHw==");

fn begin(program: &Program, target: &str) -> String {
    let begun = ask(program.address, "POST", &format!("{target}?uploads="), &[], b"").unwrap();
    begun.tag("UploadId").unwrap_or_else(|| panic!("{begun:?}"))
}

#[test]
fn headers_that_nobody_reads_are_refused_and_nothing_stored() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let put = |target: &str, headers: &[(&str, &str)]| {
        ask(program.address, "PUT", target, headers, b"bytes").unwrap()
    };
    expect(&put("/lake/a", &[]), 200, "", "a plain one");
    for header in [
        ALGORITHM,
        ("x-amz-server-side-encryption", "AES256"),
        ("x-amz-server-side-encryption-context", "e30="),
        ("x-amz-server-side-encryption-bucket-key-enabled", "true"),
        ("x-amz-object-lock-retain-until-date", "2030-01-01T00:00:00Z"),
        ("x-amz-object-lock-legal-hold", "ON"),
        ("x-amz-grant-write", "id=\"somebody\""),
        ("x-amz-rename-source", "/lake/a"),
        ("x-amz-copy-source-if-match", "\"etag\""),
        ("x-amz-copy-source-range", "bytes=0-1"),
    ] {
        expect(&put("/lake/new", &[header]), 501, "NotImplemented", header.0);
        let deleted = ask(program.address, "DELETE", "/lake/a", &[header], b"").unwrap();
        expect(&deleted, 501, "NotImplemented", header.0);
    }
    let copy = ("x-amz-copy-source", "/lake/a");
    let ranged =
        ask(program.address, "PUT", "/lake/new", &[copy, ("x-amz-copy-source-range", "bytes=0-1")], b"");
    expect(&ranged.unwrap(), 501, "NotImplemented", "a range of a copy");
    let tagged = ask(program.address, "PUT", "/lake/a?tagging=", &[copy], b"<Tagging><TagSet/></Tagging>");
    expect(&tagged.unwrap(), 501, "NotImplemented", "a source of tags");
    let url = "/lake/new?x-amz-server-side-encryption=AES256";
    expect(&put(url, &[]), 501, "NotImplemented", "a parameter");
    assert_eq!(ask(program.address, "GET", "/lake/new", &[], b"").unwrap().status, 404);
    assert_eq!(ask(program.address, "GET", "/lake/a", &[], b"").unwrap().text(), "bytes");
}

/// Ceph's s3-tests, `test_encryption_key_no_sse_c`.
#[test]
fn customer_key_alone_is_refused_by_each_operation() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    assert_eq!(ask(program.address, "PUT", "/lake/a", &[], b"bytes").unwrap().status, 200);
    let part = format!("/lake/new?partNumber=1&uploadId={}", begin(&program, "/lake/new"));
    let copy = ("x-amz-copy-source", "/lake/a");
    let of_source = ("x-amz-copy-source-server-side-encryption-customer-key", CUSTOMER_KEY.1);
    for (method, target, headers) in [
        ("PUT", "/lake/new", &[CUSTOMER_KEY, KEY_MD5][..]),
        ("PUT", "/lake/new", &[KEY_MD5][..]),
        ("PUT", "/lake/new", &[copy, of_source][..]),
        ("POST", "/lake/new?uploads=", &[CUSTOMER_KEY][..]),
        ("PUT", part.as_str(), &[CUSTOMER_KEY, KEY_MD5][..]),
        ("GET", "/lake/a", &[CUSTOMER_KEY, KEY_MD5][..]),
    ] {
        let reply = ask(program.address, method, target, headers, b"").unwrap();
        expect(&reply, 400, "InvalidArgument", &format!("{method} {target}"));
    }
    let whole = ask(program.address, "PUT", "/lake/new", &[ALGORITHM, CUSTOMER_KEY, KEY_MD5], b"").unwrap();
    expect(&whole, 501, "NotImplemented", "with its algorithm");
    assert_eq!(ask(program.address, "GET", "/lake/new", &[], b"").unwrap().status, 404);
}

#[test]
fn parts_and_completions_refuse_headers_of_whole_objects() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let upload = begin(&program, "/lake/a");
    let part = |headers: &[(&str, &str)]| {
        let target = format!("/lake/a?partNumber=1&uploadId={upload}");
        ask(program.address, "PUT", &target, headers, b"bytes").unwrap()
    };
    for (header, status, code) in [
        (("x-amz-server-side-encryption", "AES256"), 501, "NotImplemented"),
        (("x-amz-object-lock-mode", "GOVERNANCE"), 501, "NotImplemented"),
        (("x-amz-grant-read", "id=\"somebody\""), 501, "NotImplemented"),
        (("x-amz-acl", "public-read"), 501, "NotImplemented"),
        (("x-amz-acl", "nobody"), 400, "InvalidArgument"),
        (("x-amz-storage-class", "GLACIER"), 400, "InvalidStorageClass"),
        (("x-amz-copy-source-range", "bytes=0-1"), 501, "NotImplemented"),
    ] {
        expect(&part(&[header]), status, code, header.0);
    }
    // What is so anyway may be said.
    let stored = part(&[
        ("x-amz-acl", "private"),
        ("x-amz-storage-class", "STANDARD"),
        ("x-amz-tagging", "a=b"),
        ("x-amz-expected-bucket-owner", "underlay"),
        ("x-amz-request-payer", "requester"),
        ("x-amz-sdk-checksum-algorithm", "CRC32"),
    ]);
    expect(&stored, 200, "", "a part");
    let document = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{}</ETag></Part></CompleteMultipartUpload>",
        stored.header("etag").unwrap().replace('"', "&quot;")
    );
    let complete = |headers: &[(&str, &str)]| {
        let target = format!("/lake/a?uploadId={upload}");
        ask(program.address, "POST", &target, headers, document.as_bytes()).unwrap()
    };
    expect(&complete(&[ALGORITHM]), 501, "NotImplemented", "a completion");
    expect(&complete(&[CUSTOMER_KEY]), 400, "InvalidArgument", "a completion");
    expect(
        &complete(&[("x-amz-mp-object-size", "5"), ("x-amz-request-payer", "requester")]),
        200,
        "",
        "plain",
    );
}

#[test]
fn conditions_of_operations_without_them_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    assert_eq!(ask(program.address, "PUT", "/lake/a", &[], b"bytes").unwrap().status, 200);
    let upload = format!("/lake/a?uploadId={}", begin(&program, "/lake/a"));
    let tagging = b"<Tagging><TagSet/></Tagging>".as_slice();
    let deletion = b"<Delete><Object><Key>a</Key></Object></Delete>".as_slice();
    for (method, target, body) in [
        ("GET", "/lake/a?tagging=", b"".as_slice()),
        ("PUT", "/lake/a?tagging=", tagging),
        ("DELETE", "/lake/a?tagging=", b""),
        ("GET", "/lake/a?acl=", b""),
        ("PUT", "/lake/a?acl=", b""),
        ("GET", "/lake/a?attributes=", b""),
        ("POST", "/lake?delete=", deletion),
        ("GET", upload.as_str(), b""),
        ("DELETE", upload.as_str(), b""),
    ] {
        // Lists go another way through the gateway.
        for condition in [
            ("if-match", "\"zzz\""),
            ("if-match", "\"zzz\", \"yyy\""),
            ("if-none-match", "*"),
            ("if-unmodified-since", "Sun, 06 Nov 1994 08:49:37 GMT"),
            ("x-amz-if-match-size", "7"),
        ] {
            let is_of_reads = method != "GET" || !condition.0.starts_with("x-amz-");
            let headers = [condition, ("x-amz-acl", "private"), ("x-amz-object-attributes", "ETag")];
            let headers = match target {
                "/lake/a?acl=" | "/lake/a?attributes=" => &headers[..],
                _ => &headers[..1],
            };
            let reply = ask(program.address, method, target, headers, body).unwrap();
            if is_of_reads {
                expect(&reply, 501, "NotImplemented", &format!("{method} {target} {condition:?}"));
            }
        }
    }
    assert_eq!(ask(program.address, "GET", &upload, &[], b"").unwrap().status, 200);
    // Reads of a bucket have nothing that a condition could be about.
    let listed = ask(program.address, "GET", "/lake?list-type=2", &[("if-none-match", "*")], b"").unwrap();
    assert!(listed.status == 200 && listed.text().contains("<Key>a</Key>"), "{listed:?}");
}

/// minio-go sends the conditions of an object with the first request of its upload, and AWS's CRT with each part.
#[test]
fn conditions_of_uploads_are_checked_with_each_request() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let put = ask(program.address, "PUT", "/lake/a", &[], b"bytes").unwrap();
    let etag = put.header("etag").unwrap().to_owned();
    let listed = format!("\"zzz\", {etag}");
    let copy = ("x-amz-copy-source", "/lake/a");
    for key in ["a", "new"] {
        let upload = begin(&program, &format!("/lake/{key}"));
        let part = format!("/lake/{key}?partNumber=1&uploadId={upload}");
        let first = format!("/lake/{key}?uploads=");
        for (condition, of_known, of_new) in [
            (("if-match", etag.as_str()), 200, 404),
            (("if-match", listed.as_str()), 200, 404),
            (("if-match", "\"zzz\""), 412, 404),
            (("if-none-match", "*"), 412, 200),
            (("if-none-match", "\"zzz\""), 200, 200),
        ] {
            let status = if key == "a" { of_known } else { of_new };
            for (method, target, headers) in [
                ("POST", &first, &[condition][..]),
                ("PUT", &part, &[condition][..]),
                ("PUT", &part, &[copy, condition][..]),
            ] {
                let reply = ask(program.address, method, target, headers, b"").unwrap();
                assert_eq!(reply.status, status, "{method} {target} {condition:?}: {reply:?}");
            }
        }
    }
}

/// SDKs write headers of presigned URLs as parameters.
#[test]
fn parameters_of_presigned_url_are_carried_out_or_refused() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let put = |key: &str, parameters: &[(&str, &str)], headers: &[(&str, &str)]| {
        ask_presigned(program.address, ("PUT", &format!("/lake/{key}")), parameters, headers, b"bytes")
    };
    expect(&put("plain", &[], &[]), 200, "", "a plain one");
    let stored = [("x-amz-meta-color", "deep blue"), ("x-amz-tagging", "a=1&b=2"), ("X-Amz-Acl", "private")];
    expect(&put("kept", &stored, &[]), 200, "", "metadata and tags");
    let found = ask(program.address, "GET", "/lake/kept", &[], b"").unwrap();
    assert_eq!((found.status, found.header("x-amz-meta-color")), (200, Some("deep blue")), "{found:?}");
    assert_eq!(found.header("x-amz-tagging-count"), Some("2"), "{found:?}");
    // A copy is one, and takes no bytes of the body.
    let copied = ask_presigned(
        program.address,
        ("PUT", "/lake/copy"),
        &[("x-amz-copy-source", "lake/kept")],
        &[],
        b"",
    );
    expect(&copied, 200, "", "a copy");
    let found = ask(program.address, "GET", "/lake/copy", &[], b"").unwrap();
    assert_eq!((found.text().as_str(), found.header("x-amz-meta-color")), ("bytes", Some("deep blue")));
    let upload = ask_presigned(
        program.address,
        ("POST", "/lake/parts"),
        &[("uploads", ""), ("x-amz-checksum-algorithm", "CRC32C"), ("x-amz-meta-a", "b")],
        &[],
        b"",
    );
    assert_eq!(
        (upload.status, upload.header("x-amz-checksum-algorithm")),
        (200, Some("CRC32C")),
        "{upload:?}"
    );

    for (name, value, status, code) in [
        ("x-amz-website-redirect-location", "/b", 501, "NotImplemented"),
        ("x-amz-server-side-encryption", "AES256", 501, "NotImplemented"),
        ("X-Amz-Object-Lock-Mode", "GOVERNANCE", 501, "NotImplemented"),
        ("x-amz-object-lock-legal-hold", "ON", 501, "NotImplemented"),
        ("x-amz-grant-read", "id=\"somebody\"", 501, "NotImplemented"),
        ("x-amz-acl", "public-read", 501, "NotImplemented"),
        ("x-amz-storage-class", "GLACIER", 400, "InvalidStorageClass"),
        ("x-amz-tagging", "a=1&a=2", 400, "InvalidArgument"),
        ("x-amz-tagging", "aws:a=1", 400, "InvalidTag"),
        ("x-amz-copy-source", "/lake/%zz", 400, "InvalidArgument"),
        ("x-amz-copy-source", "/lake/none", 404, "NoSuchKey"),
        ("x-amz-meta-a", "b\nc", 400, "InvalidArgument"),
        ("x-amz-server-side-encryption-customer-key", "a", 400, "InvalidArgument"),
    ] {
        expect(&put("new", &[(name, value)], &[]), status, code, name);
        assert_eq!(ask(program.address, "GET", "/lake/new", &[], b"").unwrap().status, 404, "{name}");
    }
    let twice = put("new", &[("x-amz-acl", "private")], &[("x-amz-acl", "bucket-owner-read")]);
    expect(&twice, 400, "InvalidRequest", "a header that says otherwise");
    // What SDKs put there by themselves: the checksum is that of no bytes, as they had none when they signed.
    let by_themselves = [
        ("x-amz-checksum-crc32", "AAAAAA=="),
        ("x-amz-sdk-checksum-algorithm", "CRC32"),
        ("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD"),
        ("x-amz-user-agent", "aws-sdk-js"),
        ("x-id", "PutObject"),
    ];
    expect(&put("new", &by_themselves, &[]), 200, "", "an SDK's");
    // Of a read, what is asked of writes means nothing.
    let read =
        ask_presigned(program.address, ("GET", "/lake/new"), &[("x-amz-acl", "public-read")], &[], b"");
    assert_eq!((read.status, read.text().as_str()), (200, "bytes"));
}

#[test]
fn expected_owner_in_presigned_url_counts() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    assert_eq!(ask(program.address, "PUT", "/lake/a", &[], b"bytes").unwrap().status, 200);
    for (owner, is_ours) in [("underlay", true), ("someone", false), ("", false)] {
        for name in ["x-amz-expected-bucket-owner", "X-Amz-Source-Expected-Bucket-Owner"] {
            for (method, path, fine) in [
                ("GET", "/lake/a", 200),
                ("HEAD", "/lake/a", 200),
                ("PUT", "/lake/b", 200),
                ("DELETE", "/lake/b", 204),
            ] {
                let reply = ask_presigned(program.address, (method, path), &[(name, owner)], &[], b"");
                let status = if is_ours { fine } else { 403 };
                assert_eq!(reply.status, status, "{method} {path} {name}={owner}: {reply:?}");
            }
            // Signed by a header, its URL counts as well.
            let target = format!("/lake/a?{name}={owner}");
            let reply = ask(program.address, "GET", &target, &[], b"").unwrap();
            assert_eq!(reply.status, if is_ours { 200 } else { 403 }, "{target}: {reply:?}");
        }
    }
}
