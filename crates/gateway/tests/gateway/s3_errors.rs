//! Answers that clients decide by: codes of errors, regions, classes, methods.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

use crate::program::{KEY, Program};
use crate::signed::{REGION, Reply, ask, ask_with, exchange, sign_for};

fn hash_of(body: &[u8]) -> String {
    base16ct::lower::encode_string(&Sha256::digest(body))
}

/// A GET that is signed for this region.
fn get_in(program: &Program, region: &str) -> Reply {
    let host = program.address.to_string();
    let signed = sign_for((&host, region), ("GET", "/lake", "/lake"), &[], &hash_of(b""), 0);
    exchange(program.address, &signed.head, b"").unwrap()
}

/// As it is written, without a signature that anybody made.
fn raw(program: &Program, method: &str, target: &str, headers: &str) -> Reply {
    let head = format!(
        "{method} {target} HTTP/1.1\r\nhost: {}\r\n{headers}content-length: 0\r\nconnection: close\r\n\r\n",
        program.address
    );
    exchange(program.address, &head, b"").unwrap()
}

#[test]
fn signature_for_wrong_region_returns_right_one() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    for region in ["us-east-1", "eu-central-1", "garage"] {
        assert_eq!(get_in(&program, region).status, 200, "{region}");
    }
    // As s3cmd signs at first.
    let refused = get_in(&program, "US");
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (400, "AuthorizationHeaderMalformed"),
        "{refused:?}"
    );
    assert_eq!(refused.tag("Region").as_deref(), Some(REGION), "{refused:?}");
    let head = ask(program.address, "HEAD", "/lake", &[], b"").unwrap();
    assert_eq!((head.status, head.header("x-amz-bucket-region")), (200, Some(REGION)), "{head:?}");
    let (status, log) = program.stop();
    assert!(status.success(), "{log}");

    // One that has a region takes no other.
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "region = \"eu-central-1\"\n");
    let refused = get_in(&program, REGION);
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (400, "AuthorizationHeaderMalformed"),
        "{refused:?}"
    );
    assert_eq!(refused.tag("Region").as_deref(), Some("eu-central-1"), "{refused:?}");
    let host = program.address.to_string();
    for (method, target) in [("HEAD", "/lake"), ("GET", "/lake?location=")] {
        let signed = sign_for((&host, "eu-central-1"), (method, target, "/lake"), &[], &hash_of(b""), 0);
        let reply = exchange(program.address, &signed.head, b"").unwrap();
        assert_eq!(reply.status, 200, "{method} {target}: {reply:?}");
        match method {
            "HEAD" => assert_eq!(reply.header("x-amz-bucket-region"), Some("eu-central-1"), "{reply:?}"),
            _ => assert!(reply.text().contains("eu-central-1"), "{reply:?}"),
        }
    }
}

#[test]
fn unverifiable_signatures_have_s3_codes() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let scope = "20240131/us-east-1/s3/aws4_request";
    let signature = "0".repeat(64);
    let header = |text: &str| {
        format!(
            "authorization: {text}\r\nx-amz-date: 20240131T000000Z\r\nx-amz-content-sha256: UNSIGNED-PAYLOAD\r\n"
        )
    };
    let whole =
        format!("AWS4-HMAC-SHA256 Credential={KEY}/{scope}, SignedHeaders=host, Signature={signature}");
    for (headers, status, code) in [
        (header("AWS4-HMAC-SHA256 nonsense"), 400, "AuthorizationHeaderMalformed"),
        (header(&whole.replace("SignedHeaders=host, ", "")), 400, "AuthorizationHeaderMalformed"),
        (header(&whole.replace("/s3/", "/iam/")), 400, "AuthorizationHeaderMalformed"),
        (header("Bearer token"), 400, "InvalidArgument"),
        (format!("authorization: {whole}\r\n"), 403, "AccessDenied"),
        (header(&whole), 403, "RequestTimeTooSkewed"),
        (String::new(), 403, "AccessDenied"),
    ] {
        let reply = raw(&program, "GET", "/lake/a", &headers);
        assert_eq!((reply.status, reply.code().as_str()), (status, code), "{headers}: {reply:?}");
    }
    let url = format!(
        "/lake/a?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={KEY}%2F20240131%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20240131T000000Z&X-Amz-Expires=60&X-Amz-Signature={signature}&X-Amz-SignedHeaders=host"
    );
    for (right, wrong, status, code) in [
        ("AWS4-HMAC-SHA256", "AWS3", 400, "AuthorizationQueryParametersError"),
        ("&X-Amz-Date=20240131T000000Z", "", 400, "AuthorizationQueryParametersError"),
        ("20240131T000000Z", "now", 400, "AuthorizationQueryParametersError"),
        ("%2Fs3%2F", "%2F", 400, "AuthorizationQueryParametersError"),
        ("&X-Amz-Expires=60", "", 400, "AuthorizationQueryParametersError"),
        (signature.as_str(), "0", 403, "SignatureDoesNotMatch"),
        ("Expires=60", "Expires=604801", 400, "AuthorizationQueryParametersError"),
        ("Expires=60", "Expires=-3", 403, "AccessDenied"),
        ("Expires=60", "Expires=soon", 400, "AuthorizationQueryParametersError"),
        ("%2F20240131%2F", "%2F20240201%2F", 400, "AuthorizationQueryParametersError"),
        // Clients ask for another URL then.
        ("Expires=60", "Expires=60", 403, "AccessDenied"),
        ("Expires=60", "Expires=0", 403, "AccessDenied"),
    ] {
        let reply = raw(&program, "GET", &url.replace(right, wrong), "");
        assert_eq!((reply.status, reply.code().as_str()), (status, code), "{right} as {wrong}: {reply:?}");
    }
}

#[test]
fn unsupported_methods_are_not_allowed() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    for (method, target) in [
        ("PATCH", "/lake/a"),
        ("PATCH", "/lake"),
        ("TRACE", "/lake/a"),
        ("PUT", "/"),
        ("DELETE", "/"),
        ("POST", "/"),
        ("POST", "/lake/a"),
    ] {
        let reply = ask(program.address, method, target, &[], b"").unwrap();
        assert_eq!(
            (reply.status, reply.code().as_str()),
            (405, "MethodNotAllowed"),
            "{method} {target}: {reply:?}"
        );
        assert!(reply.header("allow").is_some_and(|allowed| allowed.contains("GET")), "{reply:?}");
    }
}

#[test]
fn unsupported_storage_class_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let ask_class = |method: &str, target: &str, class: &str, others: &[(&str, &str)]| {
        let mut headers = vec![("x-amz-storage-class", class)];
        headers.extend_from_slice(others);
        ask(program.address, method, target, &headers, b"").unwrap()
    };
    let no_headers: &[(&str, &str)] = &[];
    let copy: &[(&str, &str)] = &[("x-amz-copy-source", "/lake/a")];
    assert_eq!(ask_class("PUT", "/lake/a", "STANDARD", &[]).status, 200);
    assert_eq!(ask_class("PUT", "/lake/b", "STANDARD", copy).status, 200);
    assert_eq!(ask_class("POST", "/lake/c?uploads=", "STANDARD", &[]).status, 200);
    for class in ["STANDARD_IA", "GLACIER", "REDUCED_REDUNDANCY", "BOGUS", "standard"] {
        for (method, target, others) in [
            ("PUT", "/lake/new", no_headers),
            ("PUT", "/lake/new", copy),
            ("PUT", "/lake/a", copy),
            ("POST", "/lake/new?uploads=", no_headers),
        ] {
            let reply = ask_class(method, target, class, others);
            let (status, code) = (reply.status, reply.code());
            assert_eq!(
                (status, code.as_str()),
                (400, "InvalidStorageClass"),
                "{class} {method} {target}: {reply:?}"
            );
        }
    }
    assert_eq!(ask(program.address, "GET", "/lake/new", &[], b"").unwrap().status, 404);
}

#[test]
fn invalid_or_contradictory_checksums_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let body = b"bytes";
    let right = STANDARD.encode(crc_fast::crc32_iscsi(body).to_be_bytes());
    let other = STANDARD.encode(crc_fast::crc32_iscsi(b"other").to_be_bytes());
    let sha1 = STANDARD.encode(openssl::sha::sha1(body));
    let (right, other, sha1) = (right.as_str(), other.as_str(), sha1.as_str());
    for (headers, status, code) in [
        (vec![("x-amz-checksum-crc32c", right)], 200, ""),
        (vec![("x-amz-checksum-crc32c", right), ("x-amz-sdk-checksum-algorithm", "CRC32C")], 200, ""),
        (vec![("x-amz-checksum-crc32c", other)], 400, "BadDigest"),
        (vec![("x-amz-checksum-crc32c", "no base64!")], 400, "InvalidRequest"),
        (vec![("x-amz-checksum-crc32c", "AA==")], 400, "InvalidRequest"),
        // As Ceph's s3-tests have it.
        (vec![("x-amz-checksum-crc32c", "bad")], 400, "BadDigest"),
        (vec![("x-amz-checksum-crc32c", "")], 400, "InvalidRequest"),
        (vec![("x-amz-checksum-crc32c", right), ("x-amz-checksum-sha1", sha1)], 400, "InvalidRequest"),
        (
            vec![("x-amz-checksum-crc32c", right), ("x-amz-sdk-checksum-algorithm", "SHA1")],
            400,
            "InvalidRequest",
        ),
        (vec![("x-amz-sdk-checksum-algorithm", "MD4")], 400, "InvalidRequest"),
    ] {
        let reply = ask(program.address, "PUT", "/lake/a", &headers, body).unwrap();
        assert_eq!((reply.status, reply.code().as_str()), (status, code), "{headers:?}: {reply:?}");
    }
}

#[test]
fn copy_has_requested_checksum() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    assert_eq!(ask(program.address, "PUT", "/lake/a", &[], b"bytes").unwrap().status, 200);
    let sha256 = STANDARD.encode(Sha256::digest(b"bytes"));
    let headers = [("x-amz-checksum-algorithm", "SHA256"), ("x-amz-copy-source", "/lake/a")];
    let copied = ask(program.address, "PUT", "/lake/b", &headers, b"").unwrap();
    assert_eq!((copied.status, copied.tag("ChecksumSHA256")), (200, Some(sha256.clone())), "{copied:?}");
    let downloaded =
        ask(program.address, "GET", "/lake/b", &[("x-amz-checksum-mode", "ENABLED")], b"").unwrap();
    assert_eq!(
        (downloaded.body.as_slice(), downloaded.header("x-amz-checksum-sha256")),
        (&b"bytes"[..], Some(sha256.as_str()))
    );
    let headers = [("x-amz-checksum-algorithm", "MD4"), ("x-amz-copy-source", "/lake/a")];
    let refused = ask(program.address, "PUT", "/lake/c", &headers, b"").unwrap();
    assert_eq!((refused.status, refused.code().as_str()), (400, "InvalidRequest"), "{refused:?}");
}

#[test]
fn wrong_chunk_signature_is_signature_mismatch() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let host = program.address.to_string();
    let headers = [("content-encoding", "aws-chunked"), ("x-amz-decoded-content-length", "5")];
    let hash = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
    for (is_right, status, code) in [(true, 200, ""), (false, 403, "SignatureDoesNotMatch")] {
        let signed = sign_for((&host, REGION), ("PUT", "/lake/a", "/lake/a"), &headers, hash, 0);
        let first = match is_right {
            true => signed.sign_next("PAYLOAD", &signed.signature, b"bytes"),
            false => "0".repeat(64),
        };
        let last = signed.sign_next("PAYLOAD", &first, b"");
        let body = format!("5;chunk-signature={first}\r\nbytes\r\n0;chunk-signature={last}\r\n\r\n");
        let head =
            signed.head.replace("content-length: 0\r\n", &format!("content-length: {}\r\n", body.len()));
        let reply = exchange(program.address, &head, body.as_bytes()).unwrap();
        assert_eq!((reply.status, reply.code().as_str()), (status, code), "{reply:?}");
    }
    assert_eq!(ask_with(program.address, "GET", "/lake/a", &[], b"").body, b"bytes");
}
