//! Keys that are hard to write down: in URLs, in headers, in XML.

use std::path::Path;

use base64::Engine as _;

use crate::program::{KEY, Program, SECRET};
use crate::signed::{Reply, ask, tags};

fn put(program: &Program, target: &str, body: &[u8]) {
    let reply = ask(program.address, "PUT", target, &[], body).unwrap();
    assert_eq!(reply.status, 200, "{target}: {reply:?}");
}

fn get(program: &Program, target: &str) -> Reply {
    ask(program.address, "GET", target, &[], b"").unwrap()
}

/// Whether the answer has no byte that XML can't have.
fn is_well_formed(reply: &Reply) -> bool {
    reply.body.iter().all(|byte| *byte >= b' ' || matches!(byte, b'\t' | b'\n'))
}

/// Starts a gateway whose store is the bucket `lake` of another one.
fn start_behind(directory: &Path, inner: &Program) -> Program {
    let secret = directory.join("store-secret");
    std::fs::write(&secret, SECRET).unwrap();
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let sections = format!(
        "[s3]\nendpoint = \"http://{}\"\nkey_id = \"{KEY}\"\nsecret_file = \"{}\"\n[bucket.lake]\nstore = \"s3://lake/behind\"\nwrite = \"through\"\n",
        inner.address,
        secret.display()
    );
    Program::start(directory, &sections)
}

#[test]
fn keys_with_control_characters_work_over_both_stores() {
    let [inner_directory, outer_directory] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let inner = Program::start_over_directory(inner_directory.path(), "");
    let outer = start_behind(outer_directory.path(), &inner);
    for program in [&inner, &outer] {
        let keys = ["%01first", "%10x", "dir%1F/a%0Ab", "line%0D", "tab%09here", "with%7Fdelete"];
        for key in keys {
            put(program, &format!("/lake/odd/{key}"), key.as_bytes());
            assert_eq!(get(program, &format!("/lake/odd/{key}")).body, key.as_bytes(), "{key}");
        }
        let listed = get(program, "/lake?encoding-type=url&list-type=2&prefix=odd%2F");
        let expected: Vec<String> = keys.iter().map(|key| format!("odd/{key}")).collect();
        assert_eq!(tags(&listed.text(), "Key"), expected, "{listed:?}");
        // Without an encoding a listing can't have all names, but a client can read the others.
        put(program, "/lake/odd/plain", b"plain");
        let listed = get(program, "/lake?list-type=2&prefix=odd%2F");
        assert!(is_well_formed(&listed), "{listed:?}");
        let found = tags(&listed.text(), "Key");
        assert_eq!(found.len(), keys.len() + 1, "{listed:?}");
        assert!(
            found.contains(&"odd/plain".to_owned()) && found.contains(&"odd/line&#13;".to_owned()),
            "{found:?}"
        );
        // A copy of one, and an error about one.
        let source = [("x-amz-copy-source", "/lake/odd/%10x")];
        assert_eq!(ask(program.address, "PUT", "/lake/copy%02", &source, b"").unwrap().status, 200);
        assert_eq!(get(program, "/lake/copy%02").body, b"%10x");
        let document =
            b"<Delete><Object><Key>copy&#x2;</Key></Object><Object><Key>no\x03such</Key></Object></Delete>";
        let deleted = ask(program.address, "POST", "/lake?delete=", &[], document).unwrap();
        assert!(deleted.status == 200 && is_well_formed(&deleted), "{deleted:?}");
        assert_eq!(get(program, "/lake/copy%02").status, 404);
        let refused = get(program, "/lake/odd/%10missing%00");
        assert!(refused.status >= 400 && is_well_formed(&refused), "{refused:?}");
    }
    let (status, log) = outer.stop();
    assert!(status.success() && log.contains("the stores have everything"), "{log}");
    // The store has them under names that a path can have.
    let stored = get(&inner, "/lake?encoding-type=url&list-type=2&prefix=behind%2Fodd%2F");
    assert!(
        tags(&stored.text(), "Key").iter().all(|key| !key.contains("%0") && !key.contains("%1")),
        "{stored:?}"
    );
    let (status, log) = inner.stop();
    assert!(status.success() && log.contains("the stores have everything"), "{log}");
}

/// What an object has in it is nobody's to put right.
#[test]
fn bytes_of_xml_object_are_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let bytes = b"<a>\r\n\x01</a>";
    let kind = [("content-type", "application/xml")];
    assert_eq!(ask(program.address, "PUT", "/lake/a", &kind, bytes).unwrap().status, 200);
    assert_eq!(get(&program, "/lake/a").body, bytes);
    let part = ask(program.address, "GET", "/lake/a", &[("range", "bytes=2-4")], b"").unwrap();
    assert_eq!(part.body, b">\r\n");
    // Nor when the request had to be rewritten.
    let odd = ask(program.address, "GET", "/lake/a", &[("range", "lines=0-1")], b"").unwrap();
    assert_eq!(odd.body, bytes);
}

#[test]
fn plus_in_copy_source_is_a_blank() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    put(&program, "/lake/w/a%20b", b"with blank");
    put(&program, "/lake/w/a%2Bb", b"with plus");
    for (source, expected) in [
        ("/lake/w/a+b", "with blank"),
        ("lake/w/a%20b", "with blank"),
        ("/lake/w/a%2Bb", "with plus"),
        ("/lake/w/a+b?versionId=null", "with blank"),
    ] {
        let reply = ask(program.address, "PUT", "/lake/copy", &[("x-amz-copy-source", source)], b"").unwrap();
        assert_eq!(reply.status, 200, "{source}: {reply:?}");
        assert_eq!(get(&program, "/lake/copy").text(), expected, "{source}");
    }
    let begun = ask(program.address, "POST", "/lake/parts?uploads=", &[], b"").unwrap();
    let target = format!("/lake/parts?partNumber=1&uploadId={}", begun.tag("UploadId").unwrap());
    let headers = [("x-amz-copy-source", "/lake/w/a+b"), ("x-amz-copy-source-range", "bytes=0-3")];
    assert_eq!(ask(program.address, "PUT", &target, &headers, b"").unwrap().status, 200);
    // A range of a source is no Range header: what is none is refused, and nothing is copied whole in its place.
    let headers = [("x-amz-copy-source", "/lake/w/a+b"), ("x-amz-copy-source-range", "bytes=3-1")];
    assert_eq!(ask(program.address, "PUT", &target, &headers, b"").unwrap().status, 400);
}

#[test]
fn cdata_and_prefixes_of_names_are_read_in_documents() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let delete = |document: &str| {
        let reply = ask(program.address, "POST", "/lake?delete=", &[], document.as_bytes()).unwrap();
        assert_eq!((reply.status, tags(&reply.text(), "Code")), (200, Vec::new()), "{document}: {reply:?}");
    };
    for document in [
        "<Delete><Object><Key><![CDATA[cd&ata]]></Key></Object></Delete>",
        "<Delete><Object><Key>cd<![CDATA[&]]>ata</Key></Object></Delete>",
        "<s3:Delete xmlns:s3=\"http://s3.amazonaws.com/doc/2006-03-01/\"><s3:Object><s3:Key>cd&amp;ata</s3:Key></s3:Object></s3:Delete>",
        "\u{feff}<?xml version=\"1.0\"?><Delete><!-- <Key>other</Key> --><Object><Key>cd&amp;ata</Key></Object></Delete>",
    ] {
        put(&program, "/lake/cd%26ata", b"x");
        delete(document);
        assert_eq!(get(&program, "/lake/cd%26ata").status, 404, "{document}");
    }
    for document in [
        "<Delete><Object><Key>a&#x1F600;b</Key></Object></Delete>",
        "<Delete><Object><Key>a\u{1f600}b</Key></Object></Delete>",
    ] {
        put(&program, "/lake/a%F0%9F%98%80b", b"x");
        delete(document);
        assert_eq!(get(&program, "/lake/a%F0%9F%98%80b").status, 404, "{document}");
    }
    put(&program, "/lake/a", b"x");
    let tagging = "<a:Tagging xmlns:a=\"urn:a\"><a:TagSet><a:Tag><a:Key><![CDATA[k+]]></a:Key><a:Value>v:w</a:Value></a:Tag></a:TagSet></a:Tagging>";
    let set = ask(program.address, "PUT", "/lake/a?tagging=", &[], tagging.as_bytes()).unwrap();
    assert_eq!(set.status, 200, "{set:?}");
    let tagging = get(&program, "/lake/a?tagging=").text();
    assert!(tagging.contains("<Key>k+</Key>") && tagging.contains("<Value>v:w</Value>"), "{tagging}");
    let begun = ask(program.address, "POST", "/lake/parts?uploads=", &[], b"").unwrap();
    let upload = begun.tag("UploadId").unwrap();
    let target = format!("/lake/parts?partNumber=1&uploadId={upload}");
    let etag = ask(program.address, "PUT", &target, &[], b"part").unwrap().header("etag").unwrap().to_owned();
    let document = format!(
        "<CompleteMultipartUpload><Part><ETag><![CDATA[{etag}]]></ETag><PartNumber>1</PartNumber></Part></CompleteMultipartUpload>"
    );
    let target = format!("/lake/parts?uploadId={upload}");
    assert_eq!(ask(program.address, "POST", &target, &[], document.as_bytes()).unwrap().status, 200);
    assert_eq!(get(&program, "/lake/parts").body, b"part");
    // One that is none is refused, and one that was altered on the way too.
    for document in [
        "<Delete><Object><Key>a</Key></Object>",
        "<Delete><Object><Key><![CDATA[a</Key></Object></Delete>",
        "no XML",
    ] {
        let reply = ask(program.address, "POST", "/lake?delete=", &[], document.as_bytes()).unwrap();
        assert_eq!((reply.status, reply.code().as_str()), (400, "MalformedXML"), "{document}: {reply:?}");
    }
    // So is one that is not what its MD5 or its checksum is of.
    let right = base64::engine::general_purpose::STANDARD
        .encode(openssl::hash::hash(openssl::hash::MessageDigest::md5(), b"<Delete/>").unwrap());
    for (name, value) in [("content-md5", right.as_str()), ("x-amz-checksum-crc32c", "AAAAAA==")] {
        let document = b"<Delete><Object><Key>a</Key></Object></Delete>";
        let reply = ask(program.address, "POST", "/lake?delete=", &[(name, value)], document).unwrap();
        assert_eq!((reply.status, reply.code().as_str()), (400, "BadDigest"), "{name}: {reply:?}");
    }
    let hash = "0".repeat(64);
    let document = b"<Delete><Object><Key>a</Key></Object></Delete>";
    let signed = crate::signed::sign(
        program.address,
        ("POST", "/lake?delete=", "/lake"),
        &[],
        &hash,
        document.len() as u64,
    );
    let reply = crate::signed::exchange(program.address, &signed.head, document).unwrap();
    assert_eq!((reply.status, reply.code().as_str()), (400, "XAmzContentSHA256Mismatch"), "{reply:?}");
    assert_eq!(get(&program, "/lake/a").status, 200);
}

/// XML Schema, part 2, section 4.3.6: numbers and truths keep no white space, and keys do.
#[test]
fn values_of_documents_may_stand_in_white_space() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    put(&program, "/lake/a", b"x");
    let delete =
        |document: &str| ask(program.address, "POST", "/lake?delete=", &[], document.as_bytes()).unwrap();
    let reply =
        delete("<Delete><Quiet> true\n</Quiet><Object><Key> a </Key><Size>\n1 </Size></Object></Delete>\n");
    assert!(reply.status == 200 && !reply.text().contains("<Deleted>"), "{reply:?}");
    assert_eq!(get(&program, "/lake/a").status, 200);
    let begun = ask(program.address, "POST", "/lake/parts?uploads=", &[], b"").unwrap();
    let upload = begun.tag("UploadId").unwrap();
    let target = format!("/lake/parts?partNumber=1&uploadId={upload}");
    let part = ask(program.address, "PUT", &target, &[], b"part").unwrap();
    let etag = part.header("etag").unwrap();
    for (number, status) in [("1x", 400), (" ", 400), ("\n 1 ", 200)] {
        let part = format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>");
        let document = format!("<CompleteMultipartUpload>{part}</CompleteMultipartUpload>");
        let target = format!("/lake/parts?uploadId={upload}");
        let reply = ask(program.address, "POST", &target, &[], document.as_bytes()).unwrap();
        let code = if status == 200 { "" } else { "MalformedXML" };
        assert_eq!((reply.status, reply.code().as_str()), (status, code), "{number:?}: {reply:?}");
    }
    let fine = "<Delete><Object><Key>a</Key></Object></Delete>";
    for document in [
        format!("{fine} and more"),
        format!("{fine}{fine}"),
        format!("more {fine}"),
        format!("<!DOCTYPE Delete>{fine}"),
        "<Delete><Object><Key>a</Key><Size>1x</Size></Object></Delete>".to_owned(),
        "<Delete><Quiet>yes</Quiet><Object><Key>a</Key></Object></Delete>".to_owned(),
    ] {
        let reply = delete(&document);
        assert_eq!((reply.status, reply.code().as_str()), (400, "MalformedXML"), "{document}: {reply:?}");
        assert_eq!(get(&program, "/lake/a").status, 200, "{document}");
    }
    assert_eq!(delete(&format!("<?xml version=\"1.0\"?>\n{fine}\n<!-- the end -->\n")).status, 200);
    assert_eq!(get(&program, "/lake/a").status, 404);
}
