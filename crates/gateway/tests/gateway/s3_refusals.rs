//! Requests that S3 does not have in this form. Each answer has S3's code, and nothing is done.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::program::{KEY, Program, SECRET};
use crate::signed::{REGION, Reply, ask, ask_as, exchange, sign_for, signed_form, signed_form_for, tags};

fn expect(reply: &Reply, status: u16, code: &str, case: &str) {
    assert_eq!((reply.status, reply.code().as_str()), (status, code), "{case}: {reply:?}");
}

/// A GET without a body, whose head is written anew once it has been signed.
fn rewritten(program: &Program, rewrite: impl Fn(String) -> String) -> Reply {
    let host = program.address.to_string();
    let signed = sign_for((&host, REGION), ("GET", "/lake", "/lake"), &[], "UNSIGNED-PAYLOAD", 0);
    exchange(program.address, &rewrite(signed.head), b"").unwrap()
}

#[test]
fn payload_hash_without_its_form_is_invalid_argument() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    assert_eq!(rewritten(&program, |head| head).status, 200);
    for hash in ["invalid_sha256", "UNSIGNED", "STREAMING-NOTHING"] {
        let reply = rewritten(&program, |head| head.replace("UNSIGNED-PAYLOAD", hash));
        expect(&reply, 400, "InvalidArgument", hash);
    }
}

#[test]
fn credential_of_another_day_is_malformed() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let reply = rewritten(&program, |head| {
        let (before, behind) = head.split_once("Credential=").unwrap();
        let (_, scope) = behind.split_once('/').unwrap();
        format!("{before}Credential={KEY}/20200131{}", &scope[8..])
    });
    expect(&reply, 400, "AuthorizationHeaderMalformed", "a credential of 2020");
}

#[test]
fn signature_of_version_2_is_an_invalid_request() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let raw = |target: &str, headers: &str| {
        let host = program.address;
        let head = format!("GET {target} HTTP/1.1\r\nhost: {host}\r\n{headers}connection: close\r\n\r\n");
        exchange(program.address, &head, b"").unwrap()
    };
    let header = format!("authorization: AWS {KEY}:c2lnbmF0dXJl\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\n");
    expect(&raw("/lake/a", &header), 400, "InvalidRequest", "in a header");
    let url = format!("/lake/a?AWSAccessKeyId={KEY}&Expires=4102444800&Signature=c2lnbmF0dXJl");
    expect(&raw(&url, ""), 400, "InvalidRequest", "in a URL");
}

#[test]
fn unknown_checksum_is_refused_and_nothing_stored() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let begun = ask(program.address, "POST", "/lake/parts?uploads=", &[], b"").unwrap();
    let part = format!("/lake/parts?partNumber=1&uploadId={}", begun.tag("UploadId").unwrap());
    for name in ["x-amz-checksum-sha512", "x-amz-checksum-xxhash64", "x-amz-checksum-md5"] {
        for target in ["/lake/a", part.as_str()] {
            let reply = ask(program.address, "PUT", target, &[(name, "AAAAAAAAAAA=")], b"bytes").unwrap();
            expect(&reply, 400, "InvalidRequest", name);
        }
    }
    assert_eq!(ask(program.address, "GET", "/lake/a", &[], b"").unwrap().status, 404);
}

#[test]
fn trailer_beside_another_checksum_or_malformed_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let host = program.address.to_string();
    let right = STANDARD.encode(crc_fast::crc32_iscsi(b"bytes").to_be_bytes());
    let put = |trailer: &str, more: &[(&str, &str)]| {
        let mut headers = vec![
            ("content-encoding", "aws-chunked"),
            ("x-amz-decoded-content-length", "5"),
            ("x-amz-trailer", "x-amz-checksum-crc32c"),
        ];
        headers.extend_from_slice(more);
        let body = format!("5\r\nbytes\r\n0\r\nx-amz-checksum-crc32c:{trailer}\r\n\r\n");
        let hash = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";
        let asked = ("PUT", "/lake/a", "/lake/a");
        let signed = sign_for((&host, REGION), asked, &headers, hash, body.len() as u64);
        exchange(program.address, &signed.head, body.as_bytes()).unwrap()
    };
    expect(&put(&right, &[]), 200, "", "the right one");
    expect(&put("AAAAAA==", &[]), 400, "BadDigest", "another one");
    expect(&put("no_base64", &[]), 400, "InvalidRequest", "none");
    let same = [("x-amz-checksum-crc32c", right.as_str())];
    expect(&put(&right, &same), 400, "InvalidRequest", "the same in a header");
    let sha1 = STANDARD.encode(openssl::sha::sha1(b"bytes"));
    expect(&put(&right, &[("x-amz-checksum-sha1", &sha1)]), 400, "InvalidRequest", "another in a header");
}

#[test]
fn unknown_attributes_of_objects_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    assert_eq!(ask(program.address, "PUT", "/lake/a", &[], b"bytes").unwrap().status, 200);
    for (wanted, status, code) in [
        ("ETag,ObjectSize", 200, ""),
        ("ETag, StorageClass ,Checksum,ObjectParts", 200, ""),
        ("ETag,Invalid_argument", 400, "InvalidArgument"),
        ("etag", 400, "InvalidArgument"),
        (",", 400, "InvalidRequest"),
    ] {
        let headers = [("x-amz-object-attributes", wanted)];
        let reply = ask(program.address, "GET", "/lake/a?attributes=", &headers, b"").unwrap();
        expect(&reply, status, code, wanted);
    }
    // What is wrong with the request comes before what is there.
    let headers = [("x-amz-object-attributes", "Invalid")];
    let reply = ask(program.address, "GET", "/lake/none?attributes=", &headers, b"").unwrap();
    expect(&reply, 400, "InvalidArgument", "of no object");
}

#[test]
fn tags_with_other_characters_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    for (tags, status, code) in [
        ("key@=a%20b&k-_./=%2B%3A", 200, ""),
        ("%D0%BA=1", 200, ""),
        ("key*=val", 400, "InvalidTag"),
        ("key=val%23", 400, "InvalidTag"),
        ("key=a%2Cb", 400, "InvalidTag"),
        ("aws:key=val", 400, "InvalidTag"),
        // In a header, these are mistakes of another kind.
        ("=", 400, "InvalidArgument"),
        ("key=val&key=val", 400, "InvalidArgument"),
    ] {
        let headers = [("x-amz-tagging", tags)];
        let copy = [
            ("x-amz-tagging", tags),
            ("x-amz-tagging-directive", "REPLACE"),
            ("x-amz-copy-source", "/lake/a"),
        ];
        let put = ask(program.address, "PUT", "/lake/a", &headers, b"").unwrap();
        expect(&put, status, code, tags);
        let upload = ask(program.address, "POST", "/lake/b?uploads=", &headers, b"").unwrap();
        expect(&upload, status, code, tags);
        let copied = ask(program.address, "PUT", "/lake/c", &copy, b"").unwrap();
        expect(&copied, status, code, tags);
    }
    for (key, status, code) in
        [("a.b", 200, ""), ("a!b", 400, "InvalidTag"), ("aws:a", 400, "InvalidTag"), ("awsome", 200, "")]
    {
        let document =
            format!("<Tagging><TagSet><Tag><Key>{key}</Key><Value>v</Value></Tag></TagSet></Tagging>");
        let reply = ask(program.address, "PUT", "/lake/a?tagging=", &[], document.as_bytes()).unwrap();
        expect(&reply, status, code, key);
    }
}

#[test]
fn copy_source_with_half_an_escape_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    assert_eq!(ask(program.address, "PUT", "/lake/a", &[], b"bytes").unwrap().status, 200);
    for (source, status, code) in [
        ("/lake/%61", 200, ""),
        ("/lake/%ZZ", 400, "InvalidArgument"),
        ("lake/%A", 400, "InvalidArgument"),
        ("100%/a", 400, "InvalidArgument"),
        ("%", 400, "InvalidArgument"),
    ] {
        let headers = [("x-amz-copy-source", source)];
        expect(&ask(program.address, "PUT", "/lake/b", &headers, b"").unwrap(), status, code, source);
    }
}

#[test]
fn acl_in_neither_header_nor_body_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    assert_eq!(ask(program.address, "PUT", "/lake/a", &[], b"bytes").unwrap().status, 200);
    for target in ["/lake?acl=", "/lake/a?acl="] {
        let reply = ask(program.address, "PUT", target, &[("x-amz-acl", "private")], b"").unwrap();
        expect(&reply, 200, "", target);
        expect(&ask(program.address, "PUT", target, &[], b"").unwrap(), 400, "MissingSecurityHeader", target);
    }
}

#[test]
fn bucket_with_tags_or_elsewhere_is_not_created() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("new");
    std::fs::create_dir(&store).unwrap();
    let more = format!(
        "region = \"eu-west-1\"\n[new_buckets]\nstore = {:?}\nwrite = \"back\"\n",
        store.to_str().unwrap()
    );
    let program = Program::start_over_directory(directory.path(), &more);
    let host = program.address.to_string();
    let create = |bucket: &str, headers: &[(&str, &str)], configuration: &str| {
        let body = match configuration {
            "" => String::new(),
            some => format!("<CreateBucketConfiguration>{some}</CreateBucketConfiguration>"),
        };
        let target = format!("/{bucket}");
        let asked = ("PUT", target.as_str(), target.split('?').next().unwrap());
        let signed = sign_for((&host, "eu-west-1"), asked, headers, "UNSIGNED-PAYLOAD", body.len() as u64);
        exchange(program.address, &signed.head, body.as_bytes()).unwrap()
    };
    let ownership = "x-amz-object-ownership";
    let place = |region: &str| format!("<LocationConstraint>{region}</LocationConstraint>");
    let tags = "<Tags><Tag><Key>a</Key><Value>b</Value></Tag></Tags>";
    expect(&create("one", &[(ownership, "BucketOwnerEnforced")], ""), 200, "", "enforced");
    expect(&create("two", &[], &place("eu-west-1")), 200, "", "its own region");
    expect(&create("three", &[], &place("EU")), 200, "", "the region's old name");
    expect(&create("four", &[(ownership, "nobody")], ""), 400, "InvalidArgument", "no ownership");
    expect(&create("five", &[], &place("us-west-2")), 400, "InvalidLocationConstraint", "elsewhere");
    expect(&create("six", &[], tags), 501, "NotImplemented", "with tags");
    expect(&create("seven?x-id=CreateBucket", &[], tags), 501, "NotImplemented", "with tags and a query");
    for part in [
        "<Bucket><Type>Directory</Type></Bucket>",
        "<Location><Name>usw2-az1</Name><Type>AvailabilityZone</Type></Location>",
        "<LocationConstraint>eu-west-1</LocationConstraint><Bucket><Type>Directory</Type></Bucket>",
    ] {
        expect(&create("eight", &[], part), 501, "NotImplemented", part);
    }
    expect(&create("eight", &[], "<Type>Directory</Type>"), 400, "MalformedXML", "a part that is none");
    for name in ["sthree-lake", "amzn-s3-demo-lake", "xn--lake", "lake-s3alias", "lake--x-s3", "lake.mrap"] {
        expect(&create(name, &[], ""), 400, "InvalidBucketName", name);
    }
    for (bucket, status) in [
        ("one", 200),
        ("four", 404),
        ("five", 404),
        ("six", 404),
        ("seven", 404),
        ("eight", 404),
        ("lake--x-s3", 404),
    ] {
        let target = format!("/{bucket}");
        let asked = ("HEAD", target.as_str(), target.as_str());
        let signed = sign_for((&host, "eu-west-1"), asked, &[], "UNSIGNED-PAYLOAD", 0);
        assert_eq!(exchange(program.address, &signed.head, b"").unwrap().status, status, "{bucket}");
    }
}

/// S3 keeps one value, with commas between.
#[test]
fn metadata_headers_of_one_name_become_one() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let host = program.address.to_string();
    let headers = [("x-amz-meta-key", "one,two,three"), ("x-amz-meta-other", "x")];
    let crc = STANDARD.encode(crc_fast::crc32_iscsi(b"bytes").to_be_bytes());
    let with_sum = [headers[0], headers[1], ("x-amz-checksum-crc32c", crc.as_str())];
    for headers in [&headers[..], &with_sum[..]] {
        let asked = ("PUT", "/lake/a", "/lake/a");
        let signed = sign_for((&host, REGION), asked, headers, "UNSIGNED-PAYLOAD", 5);
        let single = "x-amz-meta-key: one,two,three\r\n";
        assert!(signed.head.contains(single));
        let several = "x-amz-meta-key: one\r\nx-amz-meta-KEY: two\r\nX-Amz-Meta-Key: three\r\n";
        let head = signed.head.replace(single, several);
        assert_eq!(exchange(program.address, &head, b"bytes").unwrap().status, 200);
        let found = ask(program.address, "GET", "/lake/a", &[], b"").unwrap();
        assert_eq!(found.header("x-amz-meta-key"), Some("one,two,three"), "{found:?}");
        assert_eq!((found.header("x-amz-meta-other"), found.text().as_str()), (Some("x"), "bytes"));
        assert_eq!(ask(program.address, "DELETE", "/lake/a", &[], b"").unwrap().status, 204);
    }
}

/// Sends a form with these fields, in order, and the file `bytes`.
fn post(program: &Program, fields: &[(String, String)]) -> Reply {
    let mut body = String::new();
    for (name, value) in fields {
        body.push_str(&format!(
            "--edge\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"
        ));
    }
    body.push_str("--edge\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\nbytes");
    body.push_str("\r\n--edge--\r\n");
    let (host, length) = (program.address, body.len());
    let head = format!(
        "POST /lake HTTP/1.1\r\nhost: {host}\r\ncontent-type: multipart/form-data; boundary=edge\r\n\
         content-length: {length}\r\nconnection: close\r\n\r\n"
    );
    exchange(host, &head, body.as_bytes()).unwrap()
}

/// The same with one more field, which the policy allows.
fn post_field(program: &Program, name: &str, value: &str, condition: serde_json::Value) -> Reply {
    let mut fields = signed_form("lake", &[serde_json::json!(["starts-with", "$key", ""]), condition]);
    fields.push(("key".to_owned(), "a".to_owned()));
    fields.push((name.to_owned(), value.to_owned()));
    post(program, &fields)
}

#[test]
fn unknown_fields_of_a_form_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    for (name, status, code) in [
        ("x-amz-meta-checksum", 204, ""),
        ("content-language", 204, ""),
        ("x-amz-website-redirect-location", 501, "NotImplemented"),
        ("x-amz-object-lock-mode", 501, "NotImplemented"),
        ("x-amz-server-side-encryption", 501, "NotImplemented"),
        ("x-amz-copy-source", 501, "NotImplemented"),
        ("x-amz-tagging", 501, "NotImplemented"),
        ("x-amz-expected-bucket-owner", 403, "AccessDenied"),
        ("x-amz-checksum-invalid", 400, "InvalidRequest"),
        ("x-amz-checksum-sha512", 400, "InvalidRequest"),
    ] {
        assert_eq!(ask(program.address, "DELETE", "/lake/a", &[], b"").unwrap().status, 204);
        let reply = post_field(&program, name, "de", serde_json::json!({name: "de"}));
        expect(&reply, status, code, name);
        let found = ask(program.address, "GET", "/lake/a", &[], b"").unwrap();
        assert_eq!(found.status == 200, status == 204, "{name}: {found:?}");
        if name == "content-language" {
            assert_eq!(found.header("content-language"), Some("de"), "{found:?}");
        }
    }
}

/// A condition, or a tag that S3 keeps for itself.
#[test]
fn form_fields_with_conditions_or_sources_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    assert_eq!(ask(program.address, "PUT", "/lake/a", &[], b"former").unwrap().status, 200);
    let tagging = "<Tagging><TagSet><Tag><Key>aws:a</Key><Value>b</Value></Tag></TagSet></Tagging>";
    for (name, value, status, code) in [
        ("if-none-match", "*", 501, "NotImplemented"),
        ("if-match", "\"etag\"", 501, "NotImplemented"),
        ("x-amz-copy-source", "/lake/a", 501, "NotImplemented"),
        ("tagging", tagging, 400, "InvalidTag"),
    ] {
        expect(&post_field(&program, name, value, serde_json::json!({name: value})), status, code, name);
        assert_eq!(ask(program.address, "GET", "/lake/a", &[], b"").unwrap().text(), "former", "{name}");
    }
}

/// RFC 9110, section 14.5.
#[test]
fn put_of_a_range_is_refused_and_replaces_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    assert_eq!(ask(program.address, "PUT", "/lake/a", &[], b"whole").unwrap().status, 200);
    let begun = ask(program.address, "POST", "/lake/parts?uploads=", &[], b"").unwrap();
    let part = format!("/lake/parts?partNumber=1&uploadId={}", begun.tag("UploadId").unwrap());
    for range in ["bytes 0-4/10", "bytes 0-4/*", "pages 1-2/3", ""] {
        for target in ["/lake/a", "/lake/new", part.as_str()] {
            let reply = ask(program.address, "PUT", target, &[("content-range", range)], b"bytes").unwrap();
            expect(&reply, 400, "InvalidRequest", target);
        }
    }
    assert_eq!(ask(program.address, "GET", "/lake/a", &[], b"").unwrap().text(), "whole");
    assert_eq!(ask(program.address, "GET", "/lake/new", &[], b"").unwrap().status, 404);
    expect(&ask(program.address, "PUT", &part, &[], b"bytes").unwrap(), 200, "", "a part without it");
}

/// What a key may not touch looks the same whether or not it is there.
#[test]
fn deletions_do_not_tell_strangers_which_buckets_exist() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| {
        let path = directory.path().join(name);
        std::fs::create_dir(&path).unwrap();
        path.display().to_string()
    };
    let sections = format!(
        "[bucket.lake]\nstore = \"{}\"\nwrite = \"back\"\n[bucket.thru]\nstore = \"{}\"\nwrite = \"through\"\n",
        place("objects"),
        place("thru")
    );
    let program = Program::start(directory.path(), &sections);
    let reader = ("READER", SECRET);
    let document = b"<Delete><Object><Key>a</Key></Object><Object><Key>b</Key></Object></Delete>";
    let delete = |credentials, bucket: &str| {
        let target = format!("/{bucket}?delete=");
        ask_as(credentials, program.address, "POST", &target, &[], document).unwrap()
    };
    let seen = |reply: &Reply| (reply.status, tags(&reply.text(), "Key"), tags(&reply.text(), "Code"));
    let denied = (200, vec!["a".to_owned(), "b".to_owned()], vec!["AccessDenied".to_owned(); 2]);
    for bucket in ["thru", "none", "lake"] {
        assert_eq!(seen(&delete(reader, bucket)), denied, "{bucket}");
    }
    for bucket in ["thru", "none"] {
        let target = format!("/{bucket}");
        let reply = ask_as(reader, program.address, "HEAD", &target, &[], b"").unwrap();
        assert_eq!(reply.status, 403, "{bucket}");
    }
    // Who may write there learns it.
    expect(&delete((KEY, SECRET), "none"), 404, "NoSuchBucket", "none");
    assert_eq!(delete((KEY, SECRET), "thru").status, 200);
}

#[test]
fn content_type_list_matches_the_policy_in_each_part() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    for (kind, status, code) in [
        ("text/plain", 204, ""),
        ("text/plain, text/html", 204, ""),
        ("text/plain, image/jpeg", 403, "AccessDenied"),
        ("image/jpeg,text/plain", 403, "AccessDenied"),
    ] {
        let condition = serde_json::json!(["starts-with", "$Content-Type", "text/"]);
        expect(&post_field(&program, "Content-Type", kind, condition), status, code, kind);
    }
}

#[test]
fn signed_form_without_a_policy_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let key = ("key".to_owned(), "a".to_owned());
    let whole = signed_form("lake", &[serde_json::json!(["starts-with", "$key", ""])]);
    let with_key = |fields: &[(String, String)]| [fields, std::slice::from_ref(&key)].concat();
    expect(&post(&program, &with_key(&whole)), 204, "", "whole");
    expect(&post(&program, &with_key(&whole[1..])), 400, "InvalidArgument", "without its policy");
    expect(&post(&program, std::slice::from_ref(&key)), 403, "AccessDenied", "without a signature too");
}

#[test]
fn form_for_wrong_region_returns_right_one() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "region = \"eu-central-1\"\n");
    let form_for = |region: &str| {
        let mut fields = signed_form_for(region, "lake", &[serde_json::json!(["starts-with", "$key", ""])]);
        fields.push(("key".to_owned(), "a".to_owned()));
        fields
    };
    for region in [REGION, "US"] {
        let refused = post(&program, &form_for(region));
        expect(&refused, 400, "InvalidArgument", region);
        assert_eq!(refused.tag("Region").as_deref(), Some("eu-central-1"), "{refused:?}");
    }
    expect(&post(&program, &form_for("eu-central-1")), 204, "", "its own region");
}

#[test]
fn presigned_url_for_wrong_region_returns_right_one() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "region = \"eu-central-1\"\n");
    let (host, signature) = (program.address, "0".repeat(64));
    let url = format!(
        "/lake/a?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={KEY}%2F20240131%2Fus-east-1%2Fs3%2Faws4_request\
         &X-Amz-Date=20240131T000000Z&X-Amz-Expires=60&X-Amz-Signature={signature}&X-Amz-SignedHeaders=host"
    );
    let head =
        format!("GET {url} HTTP/1.1\r\nhost: {host}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    let refused = exchange(host, &head, b"").unwrap();
    expect(&refused, 400, "AuthorizationQueryParametersError", "a URL");
    assert_eq!(refused.tag("Region").as_deref(), Some("eu-central-1"), "{refused:?}");
}

/// The client reads the answer only once it has sent all of the body: a reset would have taken the answer away.
#[test]
fn refusal_reaches_client_that_still_sends_its_body() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start_over_directory(directory.path(), "");
    let (body, refused) = (vec![7; 24 << 20], [("x-amz-website-redirect-location", "/b")]);
    for _ in 0..5 {
        let reply = ask(program.address, "PUT", "/lake/a", &refused, &body).unwrap();
        assert_eq!((reply.status, reply.code().as_str()), (501, "NotImplemented"), "{reply:?}");
    }
}
