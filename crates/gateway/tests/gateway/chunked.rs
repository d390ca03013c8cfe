//! Bodies that say less, more or something else than was signed: in signed chunks, with checksums behind them, too
//! long, and under names that lead elsewhere.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

use crate::program::Program;
use crate::rig::content;
use crate::signed::{Reply, Signed, ask, exchange, sign, tags};

const PLAIN: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
const WITH_TRAILER: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER";
/// Of a chunk: AWS's clients send as many, and S3 takes no fewer.
const CHUNK_BYTES: usize = 64 << 10;

/// A body in chunks, each with its signature, and what comes behind them.
struct Chunked {
    chunks: Vec<(Vec<u8>, String)>,
    trailer: Option<Trailer>,
}

struct Trailer {
    name: String,
    value: String,
    signature: String,
}

impl Chunked {
    /// As it should be. The last chunk is empty.
    fn of(bytes: &[u8], signed: &Signed, trailer: Option<(&str, &str)>) -> Chunked {
        let mut former = signed.signature.clone();
        let mut chunks = Vec::new();
        for piece in bytes.chunks(CHUNK_BYTES).chain([&b""[..]]) {
            former = signed.sign_next("PAYLOAD", &former, piece);
            chunks.push((piece.to_vec(), former.clone()));
        }
        let trailer = trailer.map(|(name, value)| {
            let text = format!("{name}:{value}\n");
            let signature = signed.sign_next("TRAILER", &former, text.as_bytes());
            Trailer { name: name.to_owned(), value: value.to_owned(), signature }
        });
        Chunked { chunks, trailer }
    }

    /// As it is sent. What has an empty signature has none.
    fn framed(&self) -> Vec<u8> {
        let mut framed = Vec::new();
        for (bytes, signature) in &self.chunks {
            let signature = match signature.as_str() {
                "" => String::new(),
                signature => format!(";chunk-signature={signature}"),
            };
            framed.extend_from_slice(format!("{:x}{signature}\r\n", bytes.len()).as_bytes());
            framed.extend_from_slice(bytes);
            if !bytes.is_empty() {
                framed.extend_from_slice(b"\r\n");
            }
        }
        if let Some(Trailer { name, value, signature }) = &self.trailer {
            framed.extend_from_slice(format!("{name}:{value}\r\n").as_bytes());
            if !signature.is_empty() {
                framed.extend_from_slice(format!("x-amz-trailer-signature:{signature}\r\n").as_bytes());
            }
        }
        framed.extend_from_slice(b"\r\n");
        framed
    }
}

/// Puts these bytes in signed chunks, once `spoil` has been at what was signed.
fn put(
    program: &Program,
    key: &str,
    bytes: &[u8],
    trailer: Option<(&str, &str)>,
    spoil: impl Fn(&mut Chunked),
) -> Reply {
    let length = bytes.len().to_string();
    let mut headers =
        vec![("content-encoding", "aws-chunked"), ("x-amz-decoded-content-length", length.as_str())];
    headers.extend(trailer.map(|(name, _)| ("x-amz-trailer", name)));
    let (target, hash) = (format!("/lake/{key}"), if trailer.is_some() { WITH_TRAILER } else { PLAIN });
    // The length of what is sent is not signed, so it may come last.
    let signed = sign(program.address, ("PUT", &target, &target), &headers, hash, 0);
    let mut body = Chunked::of(bytes, &signed, trailer);
    spoil(&mut body);
    let framed = body.framed();
    let head = signed.head.replace("content-length: 0\r\n", &format!("content-length: {}\r\n", framed.len()));
    exchange(program.address, &head, &framed).unwrap()
}

fn start(directory: &Path) -> (Program, PathBuf) {
    let objects = directory.join("objects");
    std::fs::create_dir_all(&objects).unwrap();
    let program = Program::start(directory, &format!("[bucket.lake]\nstore = \"{}\"\n", objects.display()));
    (program, objects)
}

/// Keys of the bucket.
fn listed(program: &Program) -> Vec<String> {
    tags(&ask(program.address, "GET", "/lake?list-type=2", &[], b"").unwrap().text(), "Key")
}

/// How a body is spoiled, and under which name.
type Spoiled = (&'static str, fn(&mut Chunked));

const SPOILED_CHUNKS: [Spoiled; 9] = [
    ("a byte of a chunk", |body| body.chunks[1].0[700] ^= 1),
    ("a signature of a chunk", |body| {
        let other = if body.chunks[1].1.starts_with('0') { "1" } else { "0" };
        body.chunks[1].1.replace_range(..1, other);
    }),
    ("the signature of the last chunk", |body| body.chunks.last_mut().unwrap().1 = "0".repeat(64)),
    ("no signature of a chunk", |body| body.chunks[1].1.clear()),
    ("no signatures at all", |body| body.chunks.iter_mut().for_each(|(_, signature)| signature.clear())),
    ("signatures exchanged", |body| {
        let other = body.chunks[0].1.clone();
        body.chunks[0].1 = std::mem::replace(&mut body.chunks[1].1, other);
    }),
    ("chunks exchanged, with their signatures", |body| body.chunks.swap(0, 1)),
    ("a chunk twice", |body| body.chunks[1] = body.chunks[0].clone()),
    ("a chunk left out", |body| drop(body.chunks.remove(1))),
];

#[test]
fn spoiled_chunks_store_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (program, objects) = start(directory.path());
    let bytes = content(1, 3 * CHUNK_BYTES + 1000);
    let crc = STANDARD.encode(crc_fast::crc32_iscsi(&bytes).to_be_bytes());
    let trailer = Some(("x-amz-checksum-crc32c", crc.as_str()));
    for trailer in [None, trailer] {
        for (label, spoil) in SPOILED_CHUNKS {
            let reply = put(&program, "spoiled", &bytes, trailer, spoil);
            assert!(matches!(reply.status, 400 | 403), "{label}: {reply:?}");
            assert_eq!(listed(&program), [""; 0], "{label}");
        }
    }
    let spoiled_trailers: [Spoiled; 5] = [
        ("the signature of the trailer", |body| body.trailer.as_mut().unwrap().signature = "0".repeat(64)),
        ("no signature of the trailer", |body| body.trailer.as_mut().unwrap().signature.clear()),
        ("a chunk's signature for the trailer", |body| {
            body.trailer.as_mut().unwrap().signature = body.chunks[0].1.clone();
        }),
        ("another checksum than was signed", |body| {
            body.trailer.as_mut().unwrap().value = "AAAAAA==".to_owned()
        }),
        ("no trailer", |body| body.trailer = None),
    ];
    for (label, spoil) in spoiled_trailers {
        let reply = put(&program, "spoiled", &bytes, trailer, spoil);
        assert!(matches!(reply.status, 400 | 403), "{label}: {reply:?}");
        assert_eq!(listed(&program), [""; 0], "{label}");
    }

    for (key, trailer) in [("plain", None), ("trailed", trailer)] {
        let reply = put(&program, key, &bytes, trailer, |_| {});
        assert_eq!(reply.status, 200, "{reply:?}");
        let found =
            ask(program.address, "GET", &format!("/lake/{key}"), &[("x-amz-checksum-mode", "ENABLED")], b"");
        let found = found.unwrap();
        assert!(found.body == bytes, "{key}");
        assert_eq!(found.header("x-amz-checksum-crc32c"), trailer.map(|(_, crc)| crc), "{key}");
        // How it came is no property of the object.
        assert_eq!(found.header("content-encoding"), None);
    }
    assert_eq!(listed(&program), ["plain", "trailed"]);
    let (status, log) = program.stop();
    assert!(status.success(), "{log}");
    let stored: Vec<_> =
        std::fs::read_dir(objects).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(stored.len(), 2, "{stored:?}");
}

/// Signed as they are, and not those of the body.
#[test]
fn checksums_behind_the_body_are_compared() {
    let directory = tempfile::tempdir().unwrap();
    let (program, _) = start(directory.path());
    let bytes = content(2, 100_000);
    let right = [
        ("crc32c", STANDARD.encode(crc_fast::crc32_iscsi(&bytes).to_be_bytes())),
        (
            "crc64nvme",
            STANDARD.encode(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &bytes).to_be_bytes()),
        ),
        ("sha1", STANDARD.encode(openssl::sha::sha1(&bytes))),
        ("sha256", STANDARD.encode(Sha256::digest(&bytes))),
    ];
    for (name, right) in &right {
        let header = format!("x-amz-checksum-{name}");
        // Of other bytes; of the right ones but for a bit; of no length that it could have; and no base64 at all.
        let other = STANDARD.encode([7; 20]);
        let mut close = STANDARD.decode(right).unwrap();
        close[1] ^= 1;
        let close = STANDARD.encode(close);
        for wrong in [other.as_str(), close.as_str(), "AA==", "*", ""] {
            let reply = put(&program, name, &bytes, Some((header.as_str(), wrong)), |_| {});
            assert_eq!(reply.status, 400, "{name} {wrong:?}: {reply:?}");
            // What has the length of such a checksum is compared; anything else is none.
            let code = if wrong.len() == right.len() { "BadDigest" } else { "InvalidRequest" };
            assert_eq!(reply.tag("Code").as_deref(), Some(code), "{name} {wrong:?}: {reply:?}");
        }
        assert!(!listed(&program).contains(&(*name).to_owned()));
        let reply = put(&program, name, &bytes, Some((header.as_str(), right.as_str())), |_| {});
        assert_eq!((reply.status, reply.header(&header)), (200, Some(right.as_str())), "{name}: {reply:?}");
    }
    // One that nobody knows is refused before the body.
    let reply = put(&program, "unknown", &bytes, Some(("x-amz-checksum-md4", "AAAA")), |_| {});
    assert_eq!(reply.tag("Code").as_deref(), Some("InvalidArgument"), "{reply:?}");
    assert_eq!(listed(&program), ["crc32c", "crc64nvme", "sha1", "sha256"]);
}

/// What no PUT may have is refused before a byte of it comes, and takes no room.
#[test]
fn put_of_six_gigabytes_is_refused_before_its_body() {
    const SIX_GIB: u64 = 6 << 30;
    let directory = tempfile::tempdir().unwrap();
    let (program, _) = start(directory.path());
    let begun = ask(program.address, "POST", "/lake/parts?uploads=", &[], b"").unwrap();
    let upload = begun.tag("UploadId").unwrap();
    let decoded = SIX_GIB.to_string();
    let nothing_more: &[(&str, &str)] = &[];
    let in_chunks = [("content-encoding", "aws-chunked"), ("x-amz-decoded-content-length", decoded.as_str())];
    let part = format!("/lake/parts?partNumber=1&uploadId={upload}");
    for (target, path) in [("/lake/long", "/lake/long"), (part.as_str(), "/lake/parts")] {
        for (headers, hash) in [(nothing_more, "UNSIGNED-PAYLOAD"), (&in_chunks[..], PLAIN)] {
            let signed = sign(program.address, ("PUT", target, path), headers, hash, SIX_GIB);
            let reply = exchange(program.address, &signed.head, b"").unwrap();
            assert_eq!(
                (reply.status, reply.tag("Code").as_deref()),
                (400, Some("EntityTooLarge")),
                "{reply:?}"
            );
            assert_eq!(reply.header("connection"), Some("close"), "{reply:?}");
        }
    }
    let token = format!("Authorization: Bearer {}\r\n", program.token());
    assert!(program.ask("/metrics", &token).unwrap().contains("underlay_gateway_journal_bytes 0\n"));
    assert_eq!(listed(&program), [""; 0]);
}

/// Names are looked at without their escapes. Those that would lead out of the store's directory are names of objects
/// like any other, or of none.
#[test]
fn names_that_lead_elsewhere_lead_nowhere() {
    let directory = tempfile::tempdir().unwrap();
    let (program, objects) = start(directory.path());
    let outside = directory.path().join("outside");
    std::fs::write(&outside, "not for you").unwrap();
    let hash = base16ct::lower::encode_string(&Sha256::digest(b"mine"));
    let empty_hash = base16ct::lower::encode_string(&Sha256::digest(b""));
    let asks = |method: &str, target: &str, path: &str, body: &[u8]| {
        let hash = if body.is_empty() { &empty_hash } else { &hash };
        let signed = sign(program.address, (method, target, path), &[], hash, body.len() as u64);
        exchange(program.address, &signed.head, body).unwrap()
    };
    for (target, path) in [
        ("/lake/%2e%2e/outside", "/lake/../outside"),
        ("/lake/%2e%2e%2foutside", "/lake/../outside"),
        ("/lake/../outside", "/lake/../outside"),
        ("/lake/a/%2E%2E/%2E%2E/outside", "/lake/a/../../outside"),
        ("/lake//%2e/../outside", "/lake//./../outside"),
    ] {
        let found = asks("GET", target, path, b"");
        assert_eq!(found.status, 404, "{target}: {found:?}");
        assert_eq!(asks("PUT", target, path, b"mine").status, 200, "{target}");
        assert_eq!(asks("GET", target, path, b"").body, b"mine", "{target}");
        assert_eq!(std::fs::read_to_string(&outside).unwrap(), "not for you", "{target}");
        assert_eq!(asks("DELETE", target, path, b"").status, 204, "{target}");
    }
    // A zero byte ends no name, and is in none.
    assert_eq!(asks("GET", "/lake/a%00b", "/lake/a%00b", b"").status, 404);
    let refused = asks("PUT", "/lake/a%00b", "/lake/a%00b", b"mine");
    assert_eq!(
        (refused.status, refused.tag("Code").as_deref()),
        (400, Some("InvalidArgument")),
        "{refused:?}"
    );
    // Nor is the bucket a way out.
    for (target, path) in [
        ("/%2e%2e/outside", "/../outside"),
        ("/%2e%2e%2f%2e%2e/etc/passwd", "/../../etc/passwd"),
        ("/%00/a", "/%00/a"),
    ] {
        let refused = asks("GET", target, path, b"");
        assert!(matches!(refused.status, 400..=404), "{target}: {refused:?}");
    }

    std::fs::create_dir_all(objects.join("sub")).unwrap();
    for source in [
        "/lake/../outside",
        "lake/../outside",
        "/lake/%2e%2e/outside",
        "/lake/sub/../../outside",
        "/lake/%2e%2e%2foutside",
        "/lake/..%5coutside",
        "/../outside/a",
        "/%2e%2e/outside",
        "/lake/a%00b",
        "/lake",
        "/",
        "",
        "..",
    ] {
        let reply = ask(program.address, "PUT", "/lake/copy", &[("x-amz-copy-source", source)], b"").unwrap();
        assert!(matches!(reply.status, 400 | 404), "{source}: {reply:?}");
    }
    let copy = asks("GET", "/lake/copy", "/lake/copy", b"");
    assert_eq!(copy.status, 404, "{copy:?}");
    assert_eq!(listed(&program), [""; 0]);
}

/// Documents are read into memory as a whole: those that S3 knows fit, and no longer ones.
#[test]
fn documents_are_taken_up_to_a_size() {
    let directory = tempfile::tempdir().unwrap();
    let (program, _) = start(directory.path());
    let folder = "d".repeat(203);
    let keys: Vec<String> = (0..1000)
        .map(|index| format!("{}{index:04}", format!("{folder}/").repeat(5)))
        .inspect(|key| assert_eq!(key.len(), 1024))
        .collect();
    let objects: String = keys
        .iter()
        .map(|key| {
            format!("  <Object>\n    <Key>{key}</Key>\n    <VersionId>null</VersionId>\n  </Object>\n")
        })
        .collect();
    let delete = |objects: &str| {
        let document =
            format!("<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\n{objects}</Delete>");
        ask(program.address, "POST", "/lake?delete=", &[], document.as_bytes())
    };
    let reply = delete(&objects).unwrap();
    assert_eq!((reply.status, tags(&reply.text(), "Deleted").len()), (200, 1000), "{:.1000}", reply.text());

    let begun = ask(program.address, "POST", "/lake/parts?uploads=", &[], b"").unwrap();
    let upload = begun.tag("UploadId").unwrap();
    let (etag, sum) = ("0".repeat(32), STANDARD.encode([0; 32]));
    let parts: String = (1..=10_000)
        .map(|number| {
            format!(
                "  <Part>\n    <PartNumber>{number}</PartNumber>\n    <ETag>&quot;{etag}&quot;</ETag>\n    <ChecksumSHA256>{sum}</ChecksumSHA256>\n  </Part>\n"
            )
        })
        .collect();
    let document = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
    let reply =
        ask(program.address, "POST", &format!("/lake/parts?uploadId={upload}"), &[], document.as_bytes())
            .unwrap();
    // It was read: none of the parts is there.
    assert_eq!(reply.tag("Code").as_deref(), Some("InvalidPart"), "{reply:?}");

    // The gateway answers once it has seen enough, and may hang up on the rest.
    match delete(&" ".repeat(5 << 20)) {
        Ok(reply) => assert_eq!(
            (reply.status, reply.tag("Code").as_deref()),
            (400, Some("MaxMessageLengthExceeded")),
            "{reply:?}"
        ),
        Err(error) => assert!(
            matches!(error.kind(), std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::ConnectionReset),
            "{error}"
        ),
    }
    assert_eq!(listed(&program), [""; 0]);
}

/// A checksum that is announced for the trailer takes nothing from the others, and has to come.
#[test]
fn document_with_announced_trailer_is_checked() {
    let directory = tempfile::tempdir().unwrap();
    let (program, _) = start(directory.path());
    let document: &[u8] = b"<Delete><Object><Key>a</Key></Object></Delete>";
    let right_md5 =
        STANDARD.encode(openssl::hash::hash(openssl::hash::MessageDigest::md5(), document).unwrap());
    let wrong_md5 = STANDARD.encode([0; 16]);
    let asked = ("POST", "/lake?delete=", "/lake");
    assert_eq!(ask(program.address, "PUT", "/lake/a", &[], b"x").unwrap().status, 200);
    for (md5, expected) in [(&wrong_md5, "BadDigest"), (&right_md5, "IncompleteBody")] {
        let headers = [("content-md5", md5.as_str()), ("x-amz-trailer", "x-amz-checksum-crc32c")];
        let length = document.len() as u64;
        let signed = sign(program.address, asked, &headers, "UNSIGNED-PAYLOAD", length);
        let reply = exchange(program.address, &signed.head, document).unwrap();
        assert_eq!((reply.status, reply.code().as_str()), (400, expected), "{}", reply.text());
        assert_eq!(listed(&program), ["a"]);
    }
    let right = STANDARD.encode(crc_fast::crc32_iscsi(document).to_be_bytes());
    let wrong = STANDARD.encode(crc_fast::crc32_iscsi(b"another one").to_be_bytes());
    let length = document.len().to_string();
    for (crc, expected, left) in [(&wrong, 400, vec!["a"]), (&right, 200, Vec::new())] {
        let headers = [
            ("content-encoding", "aws-chunked"),
            ("x-amz-decoded-content-length", length.as_str()),
            ("x-amz-trailer", "x-amz-checksum-crc32c"),
        ];
        let signed = sign(program.address, asked, &headers, WITH_TRAILER, 0);
        let framed = Chunked::of(document, &signed, Some(("x-amz-checksum-crc32c", crc))).framed();
        let head =
            signed.head.replace("content-length: 0\r\n", &format!("content-length: {}\r\n", framed.len()));
        let reply = exchange(program.address, &head, &framed).unwrap();
        assert_eq!(reply.status, expected, "{}", reply.text());
        assert_eq!(listed(&program), left);
    }
}
