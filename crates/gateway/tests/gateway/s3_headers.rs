//! Headers of objects and requests, as S3 takes and returns them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

use crate::own_s3::OwnS3;
use crate::program::{KEY, Program, SECRET};
use crate::signed::{REGION, ask, exchange, sign_for};

/// RFC 9111 takes what is no date for a time that has passed, and S3 keeps any text.
#[test]
fn expires_with_any_text_round_trips() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let put = |key: &str, headers: &[(&str, &str)]| {
        let reply = ask(program.address, "PUT", key, headers, b"").unwrap();
        assert_eq!(reply.status, 200, "{key}: {}", reply.text());
    };
    let expires = |key: &str| {
        let expires_of = |method: &str| {
            let reply = ask(program.address, method, key, &[], b"").unwrap();
            assert_eq!(reply.status, 200, "{key}: {}", reply.text());
            reply.header("expires").map(str::to_owned)
        };
        let (get, head) = (expires_of("GET"), expires_of("HEAD"));
        assert_eq!(get, head, "{key}");
        get
    };
    for value in ["0", "-1", "never", "Thu, 01 Dec 2033 16:00:00 GMT", "Thursday, 01-Dec-33 16:00:00 GMT"] {
        put("/lake/a", &[("expires", value)]);
        assert_eq!(expires("/lake/a").as_deref(), Some(value));
    }
    put("/lake/a", &[("expires", "é")]);
    assert_eq!(expires("/lake/a").as_deref(), Some("=?UTF-8?B?w6k=?="));
    put("/lake/a", &[("expires", "0")]);
    put("/lake/kept", &[("x-amz-copy-source", "/lake/a")]);
    assert_eq!(expires("/lake/kept").as_deref(), Some("0"));
    let replaces = ("x-amz-metadata-directive", "REPLACE");
    put("/lake/replaced", &[("expires", "1"), ("x-amz-copy-source", "/lake/a"), replaces]);
    assert_eq!(expires("/lake/replaced").as_deref(), Some("1"));
    put("/lake/none", &[("expires", "")]);
    assert_eq!(expires("/lake/none"), None);
    let begun = ask(program.address, "POST", "/lake/parts?uploads=", &[("expires", "0")], b"").unwrap();
    let upload = begun.tag("UploadId").unwrap();
    let target = format!("/lake/parts?partNumber=1&uploadId={upload}");
    let part = ask(program.address, "PUT", &target, &[], b"part").unwrap();
    let document = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{}</ETag></Part></CompleteMultipartUpload>",
        part.header("etag").unwrap().replace('"', "&quot;")
    );
    let target = format!("/lake/parts?uploadId={upload}");
    assert_eq!(ask(program.address, "POST", &target, &[], document.as_bytes()).unwrap().status, 200);
    assert_eq!(expires("/lake/parts").as_deref(), Some("0"));
}

/// RFC 9110, section 5.3.
#[test]
fn lines_of_a_list_are_kept_as_one() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let place = program.address.to_string();
    let send = |method: &str, target: &str, headers: &[(&str, &str)], lines: &[(&str, &str)]| {
        let path = target.split('?').next().unwrap();
        let signed = sign_for((&place, REGION), (method, target, path), headers, "UNSIGNED-PAYLOAD", 0);
        let lines: String = lines.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = signed.head.replacen("connection: close", &format!("{lines}connection: close"), 1);
        exchange(program.address, &head, b"").unwrap()
    };
    let lists = [
        ("cache-control", "no-cache"),
        ("content-encoding", "gzip"),
        ("content-language", "de"),
        ("cache-control", "max-age=5, private"),
        ("content-encoding", "br"),
        ("content-language", "en"),
    ];
    let replaces = [("x-amz-copy-source", "/lake/a"), ("x-amz-metadata-directive", "REPLACE")];
    for (target, headers) in [("/lake/a", &[][..]), ("/lake/b", &replaces[..])] {
        let put = send("PUT", target, headers, &lists);
        assert_eq!(put.status, 200, "{target}: {put:?}");
        let found = ask(program.address, "HEAD", target, &[], b"").unwrap();
        for (name, value) in [
            ("cache-control", "no-cache, max-age=5, private"),
            ("content-encoding", "gzip, br"),
            ("content-language", "de, en"),
        ] {
            assert_eq!(found.header(name), Some(value), "{target}: {found:?}");
        }
    }
    let begun = send("POST", "/lake/parts?uploads=", &[], &lists);
    assert_eq!(begun.status, 200, "{begun:?}");
    // Those that have one value can't have two.
    let two = send("PUT", "/lake/c", &[], &[("content-type", "a/b"), ("content-type", "c/d")]);
    assert_eq!(two.status, 400, "{two:?}");
}

/// Through a store that verifies signatures, and one that shows what it was sent.
#[test]
fn expires_reaches_the_store_and_comes_back_from_it() {
    let (far, near) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let backend = Program::start_over_directory(far.path(), "");
    let secret = near.path().join("store-secret");
    std::fs::write(&secret, SECRET).unwrap();
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let sections = format!(
        "[s3]\nendpoint = \"http://{}\"\nkey_id = \"{KEY}\"\nsecret_file = \"{}\"\n[bucket.lake]\nstore = \"s3://lake\"\nwrite = \"through\"\n",
        backend.address,
        secret.display()
    );
    let mut program = Program::start(near.path(), &sections);
    // The second is sent in parts.
    for (key, size_bytes) in [("small", 10), ("large", 20 << 20)] {
        let (bytes, path) = (vec![7; size_bytes], format!("/lake/{key}"));
        let headers = [("expires", "0"), ("x-amz-meta-a", "b")];
        assert_eq!(ask(program.address, "PUT", &path, &headers, &bytes).unwrap().status, 200);
        let stored = ask(backend.address, "HEAD", &path, &[], b"").unwrap();
        assert_eq!((stored.status, stored.header("expires")), (200, Some("0")), "{key}: {}", stored.head);
        assert_eq!(stored.header("x-amz-meta-a"), Some("b"));
        assert!(!stored.head.contains("underlay"), "{}", stored.head);
    }
    // A gateway that knows the objects from the store alone.
    program.kill();
    std::fs::remove_dir_all(near.path().join("local")).unwrap();
    program.start_again();
    for method in ["HEAD", "GET"] {
        let found = ask(program.address, method, "/lake/small", &[], b"").unwrap();
        assert_eq!((found.header("expires"), found.header("x-amz-meta-a")), (Some("0"), Some("b")));
        assert!(!found.head.contains("underlay"), "{}", found.head);
    }
    let reserved = [("x-amz-meta-%underlay-expires", "0")];
    let refused = ask(program.address, "PUT", "/lake/taken", &reserved, b"").unwrap();
    assert_eq!((refused.status, refused.code().as_str()), (400, "InvalidArgument"));
}

#[test]
fn foreign_object_with_expires_is_served_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let store = OwnS3::start(0);
    store.put_directly("direct", b"bytes", &[b"Expires: 0", b"x-amz-meta-%underlay-expires: 7"]);
    store.may_list(usize::MAX);
    let program = Program::start(directory.path(), &store.sections(directory.path(), "write = \"through\""));
    let reply = ask(program.address, "GET", "/lake/direct", &[], b"").unwrap();
    assert_eq!((reply.status, reply.header("expires")), (200, Some("0")), "{}", reply.head);
    assert!(!reply.head.contains("underlay"), "{}", reply.head);
}

#[test]
fn head_and_get_return_requested_headers() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let stored = [("cache-control", "no-store"), ("content-type", "a/b"), ("expires", "0")];
    assert_eq!(ask(program.address, "PUT", "/lake/a", &stored, b"bytes").unwrap().status, 200);
    let asked = "/lake/a?response-cache-control=private&response-content-disposition=inline&response-content-encoding=gzip&response-content-language=de&response-content-type=text%2Fplain&response-expires=Thu%2C%2001%20Dec%202033%2016%3A00%3A00%20GMT";
    for method in ["HEAD", "GET"] {
        let reply = ask(program.address, method, asked, &[], b"").unwrap();
        assert_eq!(reply.status, 200, "{}", reply.text());
        for (name, value) in [
            ("cache-control", "private"),
            ("content-disposition", "inline"),
            ("content-encoding", "gzip"),
            ("content-language", "de"),
            ("content-type", "text/plain"),
            ("expires", "Thu, 01 Dec 2033 16:00:00 GMT"),
            ("content-length", "5"),
        ] {
            assert_eq!(reply.header(name), Some(value), "{method}: {}", reply.head);
        }
        let plain = ask(program.address, method, "/lake/a", &[], b"").unwrap();
        for (name, value) in stored {
            assert_eq!(plain.header(name), Some(value), "{method}: {}", plain.head);
        }
        let wrong = ask(program.address, method, "/lake/a?response-content-type=a%0Ab", &[], b"").unwrap();
        assert_eq!(wrong.status, 400, "{method}: {}", wrong.head);
    }
}

#[test]
fn two_kib_of_the_shortest_metadata_are_taken() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let names: Vec<String> = (0..400).map(|index| format!("x-amz-meta-{index:03}")).collect();
    let headers: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "v")).collect();
    let put = ask(program.address, "PUT", "/lake/a", &headers, b"").unwrap();
    assert_eq!(put.status, 200, "{}", put.text());
    let found = ask(program.address, "HEAD", "/lake/a", &[], b"").unwrap();
    assert_eq!(found.head.matches("x-amz-meta-").count(), 400, "{}", found.head);
}

#[test]
fn multi_delete_needs_checksum() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    assert_eq!(ask(program.address, "PUT", "/lake/a", &[], b"").unwrap().status, 200);
    let document = b"<Delete><Object><Key>a</Key></Object></Delete>";
    let delete = |headers: &[(&str, &str)]| {
        let hash = base16ct::lower::encode_string(&Sha256::digest(document));
        let place = program.address.to_string();
        let asked = ("POST", "/lake?delete=", "/lake");
        let signed = sign_for((&place, REGION), asked, headers, &hash, document.len() as u64);
        exchange(program.address, &signed.head, document).unwrap()
    };
    let refused = delete(&[]);
    assert_eq!((refused.status, refused.code().as_str()), (400, "InvalidRequest"), "{refused:?}");
    let wrong = delete(&[("x-amz-checksum-crc32", "AAAAAA==")]);
    assert_eq!((wrong.status, wrong.code().as_str()), (400, "BadDigest"), "{wrong:?}");
    assert_eq!(ask(program.address, "HEAD", "/lake/a", &[], b"").unwrap().status, 200);
    assert_eq!(ask(program.address, "POST", "/lake?delete=", &[], document).unwrap().status, 200);
    assert_eq!(ask(program.address, "HEAD", "/lake/a", &[], b"").unwrap().status, 404);
}

/// A document has no wildcard and no list: only an object with exactly this ETag goes.
#[test]
fn multi_delete_takes_etags_by_the_letter() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let put = ask(program.address, "PUT", "/lake/a", &[], b"x").unwrap();
    let etag = put.header("etag").unwrap().trim_matches('"').to_owned();
    let others = [r#""*""#.to_owned(), format!(r#"W/"{etag}""#), format!(r#""{etag}", "other""#)];
    for (tag, is_deleted) in others.iter().map(|tag| (tag.as_str(), false)).chain([(etag.as_str(), true)]) {
        let document = format!("<Delete><Object><Key>a</Key><ETag>{tag}</ETag></Object></Delete>");
        let reply = ask(program.address, "POST", "/lake?delete=", &[], document.as_bytes()).unwrap();
        assert_eq!(reply.text().contains("<Deleted>"), is_deleted, "{tag}: {reply:?}");
        let found = ask(program.address, "HEAD", "/lake/a", &[], b"").unwrap();
        assert_eq!(found.status == 404, is_deleted, "{tag}");
    }
}

/// However the query's name is written, and whatever the type says.
#[test]
fn multi_delete_in_other_words_needs_checksum_too() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    assert_eq!(ask(program.address, "PUT", "/lake/a", &[], b"").unwrap().status, 200);
    let document = b"<Delete><Object><Key>a</Key></Object></Delete>";
    let hash = base16ct::lower::encode_string(&Sha256::digest(document));
    let place = program.address.to_string();
    let sum = STANDARD.encode(Sha256::digest(document));
    let (related, sum) =
        (("content-type", "multipart/related; boundary=x"), ("x-amz-checksum-sha256", sum.as_str()));
    for (name, headers, status, code) in [
        ("%64elete", &[][..], 400, "InvalidRequest"),
        ("delete", &[related][..], 400, "InvalidRequest"),
        ("%64elet%65", &[related][..], 400, "InvalidRequest"),
        ("%64elete", &[related, sum][..], 200, ""),
    ] {
        let asked = ("POST", "/lake?delete=", "/lake");
        let signed = sign_for((&place, REGION), asked, headers, &hash, document.len() as u64);
        // Signatures are of names without escapes.
        let head = signed.head.replacen("/lake?delete=", &format!("/lake?{name}="), 1);
        let reply = exchange(program.address, &head, document).unwrap();
        assert_eq!((reply.status, reply.code().as_str()), (status, code), "{name}: {reply:?}");
        let found = ask(program.address, "HEAD", "/lake/a", &[], b"").unwrap();
        assert_eq!(found.status == 404, status == 200, "{name}");
    }
}
