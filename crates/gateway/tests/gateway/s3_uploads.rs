//! Uploads in parts, where S3's answer depends on more than the parts.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::program::Program;
use crate::signed::{Reply, ask, tags};

fn begin(program: &Program, target: &str, headers: &[(&str, &str)]) -> String {
    let begun = ask(program.address, "POST", &format!("{target}?uploads="), headers, b"").unwrap();
    begun.tag("UploadId").unwrap_or_else(|| panic!("{begun:?}"))
}

fn part(
    program: &Program,
    target: &str,
    upload: &str,
    number: u16,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Reply {
    let target = format!("{target}?partNumber={number}&uploadId={upload}");
    ask(program.address, "PUT", &target, headers, body).unwrap()
}

/// A part as the document that completes an upload lists it.
fn listed(number: u16, part: &Reply) -> String {
    let etag = part.header("etag").unwrap().replace('"', "&quot;");
    format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>")
}

fn complete(program: &Program, target: &str, upload: &str, headers: &[(&str, &str)], parts: &str) -> Reply {
    let document = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
    ask(program.address, "POST", &format!("{target}?uploadId={upload}"), headers, document.as_bytes())
        .unwrap()
}

fn crc32c(bytes: &[u8]) -> String {
    STANDARD.encode(crc_fast::crc32_iscsi(bytes).to_be_bytes())
}

/// A page of a listing: keys of uploads, common prefixes, and the markers for the next one.
fn page(program: &Program, query: &str) -> (Vec<String>, Vec<String>, Option<(String, String)>) {
    let reply = ask(program.address, "GET", &format!("/lake?{query}&uploads="), &[], b"").unwrap();
    assert_eq!(reply.status, 200, "{reply:?}");
    let text = reply.text();
    let prefixes =
        text.split("<CommonPrefixes>").skip(1).filter_map(|rest| tags(rest, "Prefix").into_iter().next());
    let next = (reply.tag("IsTruncated").as_deref() == Some("true")).then(|| {
        (reply.tag("NextKeyMarker").unwrap_or_default(), reply.tag("NextUploadIdMarker").unwrap_or_default())
    });
    (tags(&text, "Key"), prefixes.collect(), next)
}

#[test]
fn uploads_are_listed_in_pages_by_prefix_and_delimiter() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let keys = ["a", "b/1", "b/2", "b/c/3", "d", "d", "e/f/1", "g%09h"];
    for key in keys {
        begin(&program, &format!("/lake/{key}"), &[]);
    }
    let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let (found, groups, next) = page(&program, "delimiter=%2F&encoding-type=url");
    assert_eq!((found, groups, next), (texts(&["a", "d", "d", "g%09h"]), texts(&["b/", "e/"]), None));
    let (found, groups, _) = page(&program, "delimiter=%2F&prefix=b%2F");
    assert_eq!((found, groups), (texts(&["b/1", "b/2"]), texts(&["b/c/"])));
    let (found, groups, _) = page(&program, "delimiter=%2F&prefix=b");
    assert_eq!((found, groups), (Vec::new(), texts(&["b/"])));
    let (found, groups, _) = page(&program, "prefix=b%2F");
    assert_eq!((found, groups), (texts(&["b/1", "b/2", "b/c/3"]), Vec::new()));
    // minio-js looks for an upload to go on with in this way.
    let (found, groups, _) = page(&program, "delimiter=&max-uploads=1000&prefix=d");
    assert_eq!((found, groups), (texts(&["d", "d"]), Vec::new()));

    for most in 1..=4 {
        let (mut found, mut groups, mut pages) = (Vec::new(), Vec::new(), 0);
        let mut markers = String::new();
        loop {
            let query = format!("delimiter=%2F&encoding-type=url{markers}");
            let (query, upload) = query.split_once("&upload-id-marker=").unwrap_or((&query, ""));
            let upload =
                if upload.is_empty() { String::new() } else { format!("&upload-id-marker={upload}") };
            // In order, as the signature needs it: upload-id-marker comes before uploads.
            let (keys, prefixes, next) = page(&program, &format!("{query}&max-uploads={most}{upload}"));
            assert!(keys.len() + prefixes.len() <= most, "{keys:?} {prefixes:?}");
            found.extend(keys);
            groups.extend(prefixes);
            pages += 1;
            assert!(pages < 20, "the listing has no end: {found:?} {groups:?}");
            let Some((key, upload)) = next else { break };
            // As a URL has it; the answer's percent signs are of its own encoding.
            markers = format!("&key-marker={}&upload-id-marker={upload}", key.replace('/', "%2F"));
        }
        assert_eq!(found, ["a", "d", "d", "g%09h"], "{most}");
        assert_eq!(groups, ["b/", "e/"], "{most}");
    }
}

#[test]
fn part_listed_twice_is_refused_unless_resent() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let upload = begin(&program, "/lake/twice", &[]);
    let first = listed(3, &part(&program, "/lake/twice", &upload, 3, &[], b"tail"));
    let refused = complete(&program, "/lake/twice", &upload, &[], &format!("{first}{first}"));
    assert_eq!((refused.status, refused.code().as_str()), (400, "InvalidPartOrder"), "{refused:?}");
    let again = listed(3, &part(&program, "/lake/twice", &upload, 3, &[], b"another tail"));
    assert_eq!(complete(&program, "/lake/twice", &upload, &[], &format!("{first}{again}")).status, 200);
    assert_eq!(ask(program.address, "GET", "/lake/twice", &[], b"").unwrap().body, b"another tail");
}

#[test]
fn composite_checksum_is_accepted_with_and_without_part_count() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let sum = crc32c(b"part");
    let of_parts = crc32c(&STANDARD.decode(&sum).unwrap());
    for (key, checksum, status, code) in [
        ("suffix", format!("{of_parts}-1"), 200, ""),
        ("bare", of_parts.clone(), 200, ""),
        ("more", format!("{of_parts}-2"), 400, "BadDigest"),
        ("wrong", crc32c(b"other"), 400, "BadDigest"),
        ("none", "nonsense".to_owned(), 400, "InvalidRequest"),
    ] {
        let target = format!("/lake/{key}");
        let upload = begin(&program, &target, &[("x-amz-checksum-algorithm", "CRC32C")]);
        let sent = part(&program, &target, &upload, 1, &[("x-amz-checksum-crc32c", sum.as_str())], b"part");
        assert_eq!(sent.status, 200, "{sent:?}");
        let done = complete(
            &program,
            &target,
            &upload,
            &[("x-amz-checksum-crc32c", checksum.as_str())],
            &listed(1, &sent),
        );
        assert_eq!((done.status, done.code().as_str()), (status, code), "{key}: {done:?}");
        if status == 200 {
            assert_eq!(done.tag("ChecksumCRC32C"), Some(format!("{of_parts}-1")), "{key}");
        }
    }
}

#[test]
fn upload_completes_only_with_its_checksum_type() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let of_whole = [("x-amz-checksum-algorithm", "CRC32C"), ("x-amz-checksum-type", "FULL_OBJECT")];
    let upload = begin(&program, "/lake/a", &of_whole);
    let sent = part(
        &program,
        "/lake/a",
        &upload,
        1,
        &[("x-amz-checksum-crc32c", crc32c(b"part").as_str())],
        b"part",
    );
    for (kind, status, code) in
        [("COMPOSITE", 400, "InvalidRequest"), ("BOGUS", 400, "InvalidRequest"), ("FULL_OBJECT", 200, "")]
    {
        let done =
            complete(&program, "/lake/a", &upload, &[("x-amz-checksum-type", kind)], &listed(1, &sent));
        assert_eq!((done.status, done.code().as_str()), (status, code), "{kind}: {done:?}");
    }
    let bogus = [("x-amz-checksum-algorithm", "CRC32C"), ("x-amz-checksum-type", "BOGUS")];
    let refused = ask(program.address, "POST", "/lake/b?uploads=", &bogus, b"").unwrap();
    assert_eq!((refused.status, refused.code().as_str()), (400, "InvalidRequest"), "{refused:?}");
}

#[test]
fn part_must_have_checksum_of_its_upload() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let upload = begin(&program, "/lake/a", &[("x-amz-checksum-algorithm", "CRC32C")]);
    let sha1 = STANDARD.encode(openssl::sha::sha1(b"part"));
    let refused = part(&program, "/lake/a", &upload, 1, &[("x-amz-checksum-sha1", sha1.as_str())], b"part");
    assert_eq!((refused.status, refused.code().as_str()), (400, "InvalidRequest"), "{refused:?}");
    let sum = crc32c(b"part");
    for headers in [vec![("x-amz-checksum-crc32c", sum.as_str())], Vec::new()] {
        assert_eq!(part(&program, "/lake/a", &upload, 1, &headers, b"part").status, 200);
    }
    // One that was begun without takes any.
    let upload = begin(&program, "/lake/b", &[]);
    assert_eq!(
        part(&program, "/lake/b", &upload, 1, &[("x-amz-checksum-sha1", sha1.as_str())], b"part").status,
        200
    );
}

#[test]
fn uploads_of_one_key_are_listed_as_they_began() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let begun: Vec<String> = (0..12).map(|_| begin(&program, "/lake/a", &[])).collect();
    let reply = ask(program.address, "GET", "/lake?uploads=", &[], b"").unwrap();
    assert_eq!(tags(&reply.text(), "UploadId"), begun, "{reply:?}");
    let target = format!("/lake?key-marker=a&upload-id-marker={}&uploads=", begun[4]);
    let reply = ask(program.address, "GET", &target, &[], b"").unwrap();
    assert_eq!(tags(&reply.text(), "UploadId"), begun[5..], "{reply:?}");
}

#[test]
fn checksum_type_without_its_algorithm_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    for (kind, algorithm, status) in [
        ("COMPOSITE", "", 400),
        ("FULL_OBJECT", "", 400),
        ("FULL_OBJECT", "SHA256", 400),
        ("COMPOSITE", "CRC64NVME", 400),
        ("COMPOSITE", "SHA256", 200),
        ("FULL_OBJECT", "CRC64NVME", 200),
    ] {
        let mut headers = vec![("x-amz-checksum-type", kind)];
        headers.extend((!algorithm.is_empty()).then_some(("x-amz-checksum-algorithm", algorithm)));
        let reply = ask(program.address, "POST", "/lake/a?uploads=", &headers, b"").unwrap();
        let code = if status == 200 { "" } else { "InvalidRequest" };
        assert_eq!((reply.status, reply.code().as_str()), (status, code), "{kind} {algorithm}: {reply:?}");
    }
}

#[test]
fn completion_without_parts_or_etags_is_malformed() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let upload = begin(&program, "/lake/a", &[]);
    let first = part(&program, "/lake/a", &upload, 1, &[], b"bytes");
    let whole = listed(1, &first);
    let etag = whole.split_once("<ETag>").unwrap().1;
    for parts in ["", "<Part><PartNumber>1</PartNumber></Part>", &format!("<Part><ETag>{etag}")] {
        let reply = complete(&program, "/lake/a", &upload, &[], parts);
        assert_eq!((reply.status, reply.code().as_str()), (400, "MalformedXML"), "{parts}: {reply:?}");
    }
    assert_eq!(complete(&program, "/lake/a", &upload, &[], &whole).status, 200);
}

#[test]
fn completion_with_another_size_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let upload = begin(&program, "/lake/a", &[]);
    let first = listed(1, &part(&program, "/lake/a", &upload, 1, &[], b"bytes"));
    for (size, status, code) in [
        ("-1", 400, "InvalidRequest"),
        ("6", 400, "InvalidRequest"),
        ("5", 200, ""),
        // Once it has been completed.
        ("6", 400, "InvalidRequest"),
        ("5", 200, ""),
    ] {
        let headers = [("x-amz-mp-object-size", size)];
        let reply = complete(&program, "/lake/a", &upload, &headers, &first);
        assert_eq!((reply.status, reply.code().as_str()), (status, code), "{size}: {reply:?}");
    }
}

#[test]
fn composite_checksum_with_another_ending_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let upload = begin(&program, "/lake/a", &[("x-amz-checksum-algorithm", "CRC32C")]);
    let first = part(&program, "/lake/a", &upload, 1, &[], b"bytes");
    let digest = STANDARD.decode(crc32c(b"bytes")).unwrap();
    let (whole, parts) = (crc32c(&digest), listed(1, &first));
    for (ending, code) in
        [("-some", "InvalidRequest"), ("--1", "InvalidRequest"), ("-", "InvalidRequest"), ("-1", "")]
    {
        let headers = [("x-amz-checksum-crc32c", format!("{whole}{ending}"))];
        let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
        let reply = complete(&program, "/lake/a", &upload, &headers, &parts);
        assert_eq!(reply.code(), code, "{ending}: {reply:?}");
    }
}

#[test]
fn abort_with_another_initiated_time_fails() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let upload = begin(&program, "/lake/a", &[]);
    let target = format!("/lake/a?uploadId={upload}");
    let found = ask(program.address, "GET", "/lake?uploads=", &[], b"").unwrap();
    let began: jiff::Timestamp = found.tag("Initiated").unwrap().parse().unwrap();
    let began = began.to_zoned(jiff::tz::TimeZone::UTC).strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    for (time, status) in [("Sun, 06 Nov 1994 08:49:37 GMT", 412), (began.as_str(), 204)] {
        let headers = [("x-amz-if-match-initiated-time", time)];
        let reply = ask(program.address, "DELETE", &target, &headers, b"").unwrap();
        assert_eq!(reply.status, status, "{time}: {reply:?}");
    }
}

#[test]
fn negative_marker_of_parts_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let upload = begin(&program, "/lake/a", &[]);
    for (marker, status) in [("0", 200), ("20000", 200), ("-1", 400), ("some", 400)] {
        let target = format!("/lake/a?part-number-marker={marker}&uploadId={upload}");
        let reply = ask(program.address, "GET", &target, &[], b"").unwrap();
        let code = if status == 200 { "" } else { "InvalidArgument" };
        assert_eq!((reply.status, reply.code().as_str()), (status, code), "{marker}: {reply:?}");
    }
}

/// Also where the copy would move no bytes, as in a bucket of the gateway's own.
#[test]
fn part_copied_beyond_five_gigabytes_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("objects");
    std::fs::create_dir_all(&store).unwrap();
    // It takes no room on the disk.
    std::fs::File::create(store.join("huge")).unwrap().set_len(6 << 30).unwrap();
    for lines in ["", "consistency = \"revalidate\"\n"] {
        let ground = tempfile::tempdir().unwrap();
        let sections =
            format!("[bucket.lake]\nstore = \"{}\"\nwrite = \"through\"\n{lines}", store.display());
        let program = Program::start(ground.path(), &sections);
        let upload = begin(&program, "/lake/copied", &[]);
        let source = ("x-amz-copy-source", "/lake/huge");
        let copy = |headers: &[(&str, &str)]| {
            let reply = part(&program, "/lake/copied", &upload, 1, headers, b"");
            (reply.status, reply.code())
        };
        let refused = (400, "InvalidRequest".to_owned());
        assert_eq!(copy(&[source]), refused, "{lines}");
        assert_eq!(copy(&[source, ("x-amz-copy-source-range", "bytes=0-5368709120")]), refused, "{lines}");
        let copied = copy(&[source, ("x-amz-copy-source-range", "bytes=6442450939-6442450943")]);
        assert_eq!(copied.0, 200, "{lines} {copied:?}");
    }
}
