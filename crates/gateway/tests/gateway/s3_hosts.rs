//! Which bucket a request means: by its path, or by its `Host`.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

use crate::program::{KEY, Program, SECRET};
use crate::signed::{REGION, Reply, ask, ask_for, exchange, sign_for, tags};

const HOSTS: &str = "hosts = [\"gateway.example\"]\n";

fn ask_host(program: &Program, host: &str, method: &str, target: &str, body: &[u8]) -> Reply {
    ask_for((program.address, host), method, target, &[], &[], body)
}

/// A gateway with the bucket `lake`, whose clients may make others.
fn start(directory: &Path, lines: &str) -> Program {
    let make = |name: &str| {
        let path = directory.join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    };
    let sections = format!(
        "[bucket.lake]\nstore = \"{}\"\nwrite = \"back\"\n[new_buckets]\nstore = \"{}\"\nwrite = \"back\"\n",
        make("objects").display(),
        make("new").display()
    );
    let mut program = Program::start_without_waiting(directory, lines, &sections);
    program.wait_ready();
    program
}

fn buckets(program: &Program) -> Vec<String> {
    tags(&ask(program.address, "GET", "/", &[], b"").unwrap().text(), "Name")
}

#[test]
fn virtual_hosted_requests_of_known_host_are_served() {
    let directory = tempfile::tempdir().unwrap();
    let program = start(directory.path(), HOSTS);
    let port = program.address.port();
    for host in [
        "lake.gateway.example".to_owned(),
        format!("lake.gateway.example:{port}"),
        format!("LAKE.Gateway.Example.:{port}"),
        format!("lake.localhost:{port}"),
        format!("lake.{}", program.address),
    ] {
        let put = ask_host(&program, &host, "PUT", "/dd/e", b"bytes");
        assert_eq!(put.status, 200, "{host}: {put:?}");
        assert_eq!(ask_host(&program, &host, "GET", "/dd/e", b"").body, b"bytes", "{host}");
        assert_eq!(ask(program.address, "GET", "/lake/dd/e", &[], b"").unwrap().body, b"bytes", "{host}");
        let listed = ask_host(&program, &host, "GET", "/?list-type=2", b"");
        assert_eq!(tags(&listed.text(), "Key"), ["dd/e"], "{host}: {listed:?}");
        // A key that begins as another bucket is called.
        assert_eq!(ask_host(&program, &host, "PUT", "/lake/dd/e", b"deeper").status, 200);
        assert_eq!(ask(program.address, "GET", "/lake/lake/dd/e", &[], b"").unwrap().body, b"deeper");
        for key in ["/dd/e", "/lake/dd/e"] {
            assert_eq!(ask_host(&program, &host, "DELETE", key, b"").status, 204);
        }
        assert_eq!(ask_host(&program, &host, "HEAD", "/", b"").status, 200);
    }
    // In path style by the same name.
    assert_eq!(ask_host(&program, "gateway.example", "PUT", "/lake/a", b"bytes").status, 200);
    let both = ask_host(&program, "gateway.example", "GET", "/", b"");
    assert_eq!(tags(&both.text(), "Name"), ["lake"], "{both:?}");
    // A bucket with dots, made and removed by its own host.
    assert_eq!(ask_host(&program, "new.bucket.gateway.example", "PUT", "/", b"").status, 200);
    assert_eq!(buckets(&program), ["lake", "new.bucket"]);
    assert_eq!(ask_host(&program, "new.bucket.gateway.example", "DELETE", "/", b"").status, 204);
    let missing = ask_host(&program, "missing.gateway.example", "GET", "/lake/a", b"");
    assert_eq!((missing.status, missing.code().as_str()), (404, "NoSuchBucket"));
}

#[test]
fn ambiguous_host_is_refused_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    for lines in ["", HOSTS] {
        let program = start(directory.path(), lines);
        for host in [
            "lake.other.example",
            "other.example",
            "other.example:9000",
            "gateway.example.org",
            "xgateway.example",
        ] {
            for (method, target, body) in [
                ("GET", "/?list-type=2", &b""[..]),
                ("PUT", "/report-2026", b""),
                ("PUT", "/lake/report", b"data"),
                ("DELETE", "/lake/a", b""),
                ("GET", "/", b""),
            ] {
                let reply = ask_host(&program, host, method, target, body);
                assert_eq!(
                    (reply.status, reply.code().as_str()),
                    (400, "InvalidRequest"),
                    "{host} {target}: {reply:?}"
                );
                assert!(reply.text().contains("path style") && reply.text().contains("hosts ="), "{reply:?}");
            }
        }
        assert_eq!(buckets(&program), ["lake"]);
        assert_eq!(ask(program.address, "GET", "/lake/report", &[], b"").unwrap().status, 404);
        // Names that have no room for a bucket, and addresses, are the gateway's own.
        for host in [
            "gateway",
            "localhost",
            "localhost.",
            "LocalHost.:9000",
            "localhost:",
            "[::1]",
            "[::1]:9000",
            "[::1]:",
            "[::FFFF:127.0.0.1]:9000",
            "[0:0:0:0:0:0:0:1]",
            "10.1.2.3",
            "127.0.0.1.",
            "127.0.0.1.:9000",
            "127.0.0.1:",
        ] {
            assert_eq!(ask_host(&program, host, "GET", "/lake?list-type=2", b"").status, 200, "{host}");
        }
        let twice = format!(
            "GET /lake HTTP/1.1\r\nhost: {}\r\nhost: other\r\nconnection: close\r\n\r\n",
            program.address
        );
        assert_eq!(exchange(program.address, &twice, b"").unwrap().status, 400);
        let (status, log) = program.stop();
        assert!(status.success(), "{log}");
        std::fs::remove_file(directory.path().join("gateway.toml.log")).unwrap();
    }
}

#[test]
fn answer_urls_follow_request_style() {
    let directory = tempfile::tempdir().unwrap();
    let program = start(directory.path(), HOSTS);
    for (host, begin) in [
        (program.address.to_string(), format!("http://{}/lake/", program.address)),
        ("lake.gateway.example:9000".to_owned(), "http://lake.gateway.example:9000/".to_owned()),
    ] {
        let path = if host.starts_with("lake") { "/a%20b" } else { "/lake/a%20b" };
        let begun = ask_host(&program, &host, "POST", &format!("{path}?uploads="), b"");
        let upload = begun.tag("UploadId").unwrap();
        let part =
            ask_host(&program, &host, "PUT", &format!("{path}?partNumber=1&uploadId={upload}"), b"part");
        let etag = part.header("etag").unwrap().replace('"', "&quot;");
        let document = format!(
            "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part></CompleteMultipartUpload>"
        );
        let whole =
            ask_host(&program, &host, "POST", &format!("{path}?uploadId={upload}"), document.as_bytes());
        assert_eq!(whole.tag("Location"), Some(format!("{begin}a%20b")), "{whole:?}");

        let (status, reply) =
            (201, send_form(&program, &host, if path.starts_with("/lake") { "/lake" } else { "/" }));
        assert_eq!(reply.status, status, "{reply:?}");
        assert_eq!(reply.header("location"), Some(format!("{begin}form%20a").as_str()), "{reply:?}");
        assert_eq!(reply.tag("Location"), Some(format!("{begin}form%20a")), "{reply:?}");
        assert_eq!(ask(program.address, "GET", "/lake/form%20a", &[], b"").unwrap().body, b"file");
    }
    // Its bucket is the host's, and the path has no other one.
    for (host, target) in
        [("lake.gateway.example", "/lake"), ("other.example", "/lake"), ("lake.other.example", "/")]
    {
        let reply = send_form(&program, host, target);
        assert!(matches!(reply.status, 400 | 405), "{host} {target}: {reply:?}");
    }
}

#[test]
fn impossible_hosts_and_regions_are_configuration_errors() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("gateway.toml");
    let text = "listen = \"127.0.0.1:0\"\nhosts = [\"gateway.example:9000\", \"http://gateway\", \"10.0.0.1\", \"\"]\nregion = \"EU\"\n";
    std::fs::write(&config, text).unwrap();
    let output = crate::program::command().arg("serve").arg(&config).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert_eq!(stderr.matches("the name of a host without a port").count(), 4, "{stderr}");
    assert!(stderr.contains("expected lowercase letters, digits and hyphens"), "{stderr}");
}

/// A form for `lake`, signed.
fn send_form(program: &Program, host: &str, target: &str) -> Reply {
    let now = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC);
    let (date, day) = (now.strftime("%Y%m%dT%H%M%SZ").to_string(), now.strftime("%Y%m%d").to_string());
    let credential = format!("{KEY}/{day}/us-east-1/s3/aws4_request");
    let fields = [
        ("key", "form a"),
        ("success_action_status", "201"),
        ("x-amz-algorithm", "AWS4-HMAC-SHA256"),
        ("x-amz-credential", credential.as_str()),
        ("x-amz-date", date.as_str()),
    ];
    let conditions: Vec<String> =
        fields.iter().map(|(name, value)| format!("{{\"{name}\": \"{value}\"}}")).collect();
    let policy = STANDARD.encode(format!(
        "{{\"expiration\": \"2099-01-01T00:00:00Z\", \"conditions\": [{{\"bucket\": \"lake\"}}, {}]}}",
        conditions.join(", ")
    ));
    let hmac = |key: &[u8], text: &str| {
        let mut hmac = Hmac::<Sha256>::new_from_slice(key).unwrap();
        hmac.update(text.as_bytes());
        hmac.finalize().into_bytes().to_vec()
    };
    let mut key = format!("AWS4{SECRET}").into_bytes();
    for text in [day.as_str(), "us-east-1", "s3", "aws4_request", &policy] {
        key = hmac(&key, text);
    }
    let signature = base16ct::lower::encode_string(&key);
    let mut body = String::new();
    for (name, value) in
        fields.into_iter().chain([("policy", policy.as_str()), ("x-amz-signature", signature.as_str())])
    {
        body.push_str(&format!(
            "--mark\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"
        ));
    }
    body.push_str(
        "--mark\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nfile\r\n--mark--\r\n",
    );
    let head = format!(
        "POST {target} HTTP/1.1\r\nhost: {host}\r\ncontent-type: multipart/form-data; boundary=mark\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    exchange(program.address, &head, body.as_bytes()).unwrap()
}

/// Sends a request for `target` that is signed over `path`, as clients do whose target has more escapes.
fn ask_as_written(
    program: &Program,
    host: &str,
    method: &str,
    (target, path): (&str, &str),
    body: &[u8],
) -> Reply {
    let hash = base16ct::lower::encode_string(&Sha256::digest(body));
    let signed = sign_for((host, REGION), (method, target, path), &[], &hash, body.len() as u64);
    exchange(program.address, &signed.head, body).unwrap()
}

/// By its path a query is a bucket's or an object's. An operation that is refused must not become another one.
#[test]
fn refused_queries_stay_refused_however_the_path_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let program = start(directory.path(), HOSTS);
    let (own, virtual_host) = (program.address.to_string(), "lake.gateway.example");
    let get = |host: &str, target: &str| ask_host(&program, host, "GET", target, b"");
    assert_eq!(ask(program.address, "PUT", "/lake/key", &[], b"bytes").unwrap().status, 200);
    assert_eq!(ask_host(&program, virtual_host, "PUT", "//", b"of a slash").status, 200);
    for path in ["/lake%2Fkey", "/lake%2fkey", "/l%61ke%2Fk%65y", "/lake/key"] {
        for name in ["lifecycle", "policy", "versioning", "publicAccessBlock"] {
            for method in ["DELETE", "PUT"] {
                let target = format!("{path}?{name}=");
                let reply = ask_as_written(&program, &own, method, (&target, "/lake/key"), b"{}");
                assert_eq!(
                    (reply.status, reply.code().as_str()),
                    (501, "NotImplemented"),
                    "{method} {target}"
                );
            }
        }
        assert_eq!(get(&own, "/lake/key").body, b"bytes", "{path}");
    }
    for (target, path) in [("//?policy=", "//"), ("/%2F?policy=", "//"), ("/%2f?lifecycle=", "//")] {
        for method in ["DELETE", "PUT"] {
            let reply = ask_as_written(&program, virtual_host, method, (target, path), b"{}");
            assert_eq!((reply.status, reply.code().as_str()), (501, "NotImplemented"), "{method} {target}");
        }
        assert_eq!(get(virtual_host, "//").body, b"of a slash", "{target}");
    }
    // The same paths for what there is.
    let begun = ask_as_written(&program, &own, "POST", ("/lake%2Fkey?uploads=", "/lake/key"), b"");
    assert!(begun.status == 200 && begun.tag("UploadId").is_some(), "{begun:?}");
    let put = ask_as_written(&program, &own, "PUT", ("/lake%2Fkey", "/lake/key"), b"again");
    assert_eq!((put.status, get(&own, "/lake/key").body), (200, b"again".to_vec()));
    let created = ask_as_written(&program, &own, "PUT", ("/n%65w%2F", "/new/"), b"");
    assert_eq!((created.status, buckets(&program)), (200, vec!["lake".to_owned(), "new".to_owned()]));
    let invalid = ask_as_written(&program, &own, "GET", ("/lake/%ff", "/lake/%FF"), b"");
    assert_eq!((invalid.status, invalid.code().as_str()), (400, "InvalidURI"), "{invalid:?}");
    assert_eq!(send_form(&program, &own, "/l%61ke").status, 201);
    assert_eq!(send_form(&program, &own, "/lake%2Fkey").status, 405);
}
