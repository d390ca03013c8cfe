//! An S3 store of the test's own, as far as a gateway needs one: it lists a page when the test lets it, and refuses
//! PUTs when the test says so. It keeps headers as they are sent, byte by byte, and takes no copy, as AWS takes none of
//! an object above 5 GiB.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};

use crate::program::{KEY, SECRET};

/// Objects of a page.
pub(crate) const PAGE: usize = 3;
/// No test stores so much.
const MAX_BYTES: u64 = 1 << 30;
/// As the store calls its bucket.
const BUCKET: &str = "company";

/// Headers that it keeps besides user metadata.
const KEPT: [&str; 4] = ["content-type", "content-disposition", "cache-control", "expires"];

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Vec<u8>>,
    /// Lines that came with an object, or that it was given.
    headers: BTreeMap<String, Vec<Vec<u8>>>,
    /// Copies that were asked for.
    copies: usize,
    /// Pages that may be answered still.
    pages: usize,
    /// The status and the code that PUTs are refused with, and those of deletions.
    refuses_puts: Option<(&'static str, &'static str)>,
    refuses_deletions: Option<(&'static str, &'static str)>,
    /// Its bucket is not there, as far as it says.
    lacks_bucket: bool,
    /// It is busy with another request for each object.
    is_busy: bool,
    /// Listings that were asked for.
    lists: usize,
    /// Keys of a page, if not [`PAGE`].
    page_keys: Option<usize>,
    /// Parts of the one upload that there is, by number.
    parts: BTreeMap<usize, Vec<u8>>,
    has_upload: bool,
    /// It completes an upload, and something in front of it answers that it has not.
    hides_completion: bool,
    /// It gives an upload up once it has a part.
    forgets_uploads: bool,
    /// The lengths of objects that are longer than what the test has memory for.
    claimed_bytes: BTreeMap<String, u64>,
}

/// See the module.
pub(crate) struct OwnS3 {
    address: SocketAddr,
    state: Arc<(Mutex<State>, Condvar)>,
}

impl OwnS3 {
    /// One with so many objects, none of which it lists before it [may](OwnS3::may_list).
    pub(crate) fn start(objects: usize) -> OwnS3 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let objects =
            (0..objects).map(|index| (format!("there/{index:03}"), vec![b'x'; 10 + index])).collect();
        let state = Arc::new((Mutex::new(State { objects, ..State::default() }), Condvar::new()));
        let shared = Arc::clone(&state);
        // Both end with the process of the test.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let shared = Arc::clone(&shared);
                // Who has hung up wants no answer.
                std::thread::spawn(move || drop(answer(stream.unwrap(), &shared)));
            }
        });
        OwnS3 { address, state }
    }

    /// What a gateway's configuration needs for it, with these lines for the bucket `lake`.
    pub(crate) fn sections(&self, directory: &Path, of_bucket: &str) -> String {
        let secret = directory.join("store-secret");
        std::fs::write(&secret, SECRET).unwrap();
        std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        format!(
            "[s3]\nendpoint = \"http://{}\"\nkey_id = \"{KEY}\"\nsecret_file = \"{}\"\n[bucket.lake]\nstore = \"s3://{BUCKET}\"\n{of_bucket}\n",
            self.address,
            secret.display()
        )
    }

    /// It answers so many pages more.
    pub(crate) fn may_list(&self, pages: usize) {
        let mut state = self.state.0.lock().unwrap();
        state.pages = state.pages.saturating_add(pages);
        self.state.1.notify_all();
    }

    pub(crate) fn refuse_puts(&self, refuses: bool) {
        self.state.0.lock().unwrap().refuses_puts = refuses.then_some(("403 Forbidden", "AccessDenied"));
    }

    pub(crate) fn refuse_writes_with(&self, status: &'static str, code: &'static str) {
        let mut state = self.state.0.lock().unwrap();
        (state.refuses_puts, state.refuses_deletions) = (Some((status, code)), Some((status, code)));
    }

    pub(crate) fn lack_bucket(&self, lacks: bool) {
        self.state.0.lock().unwrap().lacks_bucket = lacks;
    }

    pub(crate) fn be_busy(&self, is_busy: bool) {
        self.state.0.lock().unwrap().is_busy = is_busy;
    }

    /// As others would store it, with lines of headers as they are.
    pub(crate) fn put_directly(&self, key: &str, object: &[u8], headers: &[&[u8]]) {
        let mut state = self.state.0.lock().unwrap();
        state.objects.insert(key.to_owned(), object.to_vec());
        state.headers.insert(key.to_owned(), headers.iter().map(|line| line.to_vec()).collect());
    }

    /// Lines of headers that an object has.
    pub(crate) fn headers(&self, key: &str) -> Vec<String> {
        let state = self.state.0.lock().unwrap();
        let lines = state.headers.get(key).into_iter().flatten();
        lines.map(|line| String::from_utf8_lossy(line).into_owned()).collect()
    }

    pub(crate) fn hide_completion(&self) {
        self.state.0.lock().unwrap().hides_completion = true;
    }

    pub(crate) fn forget_uploads(&self, forgets: bool) {
        self.state.0.lock().unwrap().forgets_uploads = forgets;
    }

    /// It lists an object of this length from now on, and has nothing of it.
    pub(crate) fn claim(&self, key: &str, bytes: u64) {
        let mut state = self.state.0.lock().unwrap();
        state.objects.insert(key.to_owned(), Vec::new());
        state.claimed_bytes.insert(key.to_owned(), bytes);
    }

    /// As S3 does, which lists a thousand.
    pub(crate) fn has_pages_of(&self, keys: usize) {
        self.state.0.lock().unwrap().page_keys = Some(keys);
    }

    pub(crate) fn lists(&self) -> usize {
        self.state.0.lock().unwrap().lists
    }

    pub(crate) fn copies(&self) -> usize {
        self.state.0.lock().unwrap().copies
    }

    pub(crate) fn object(&self, key: &str) -> Option<Vec<u8>> {
        self.state.0.lock().unwrap().objects.get(key).cloned()
    }
}

fn answer(stream: TcpStream, shared: &(Mutex<State>, Condvar)) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let (mut first, mut length, mut range) = (String::new(), 0, None);
    let (mut metadata, mut is_copy) = (Vec::new(), false);
    reader.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? <= 2 {
            break;
        }
        let Some((name, value)) = line.split_once(':') else { continue };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().unwrap();
        } else if name.eq_ignore_ascii_case("range") {
            range = range_of(value.trim());
        } else if name.eq_ignore_ascii_case("x-amz-copy-source") {
            is_copy = true;
        } else if name.starts_with("x-amz-meta-") || KEPT.contains(&name) {
            metadata.push(line.trim_end().as_bytes().to_vec());
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let mut words = first.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let key = path.strip_prefix(&format!("/{BUCKET}/")).unwrap_or_default();
    let (lacks_bucket, is_busy) = {
        let state = shared.0.lock().unwrap();
        (state.lacks_bucket, state.is_busy)
    };
    let mut claimed = None;
    let (status, headers, body) = match method {
        _ if lacks_bucket => {
            ("404 Not Found", Vec::new(), b"<Error><Code>NoSuchBucket</Code></Error>".to_vec())
        }
        "PUT" | "DELETE" if is_busy => {
            ("409 Conflict", Vec::new(), b"<Error><Code>OperationAborted</Code></Error>".to_vec())
        }
        "DELETE" if query.contains("uploadId=") => {
            shared.0.lock().unwrap().has_upload = false;
            ("204 No Content", Vec::new(), Vec::new())
        }
        "DELETE" => {
            let mut state = shared.0.lock().unwrap();
            match state.refuses_deletions {
                Some((status, code)) => {
                    (status, Vec::new(), format!("<Error><Code>{code}</Code></Error>").into_bytes())
                }
                None => {
                    state.objects.remove(key);
                    state.headers.remove(key);
                    ("204 No Content", Vec::new(), Vec::new())
                }
            }
        }
        "GET" if query.contains("list-type=2") => {
            ("200 OK", Vec::new(), list(wait_for_turn(shared), query).into_bytes())
        }
        "POST" | "PUT" if query.contains("uploadId=") || query.starts_with("uploads") => {
            let (status, headers, text) = upload(&mut shared.0.lock().unwrap(), key, query, body);
            (status, headers, text.into_bytes())
        }
        "PUT" => {
            let mut state = shared.0.lock().unwrap();
            if is_copy {
                state.copies += 1;
                let error = b"<Error><Code>InvalidRequest</Code></Error>".to_vec();
                ("400 Bad Request", Vec::new(), error)
            } else if let Some((status, code)) = state.refuses_puts {
                let error = format!("<Error><Code>{code}</Code></Error>").into_bytes();
                (status, Vec::new(), error)
            } else {
                let etag = etag_of(&body);
                state.objects.insert(key.to_owned(), body);
                state.headers.insert(key.to_owned(), metadata);
                ("200 OK", vec![etag], Vec::new())
            }
        }
        "GET" | "HEAD" => {
            let state = shared.0.lock().unwrap();
            match state.objects.get(key) {
                Some(object) => {
                    let mut lines = state.headers.get(key).cloned().unwrap_or_default();
                    lines.push(etag_of(object));
                    match range {
                        None if method == "HEAD" && state.claimed_bytes.contains_key(key) => {
                            claimed = state.claimed_bytes.get(key).copied();
                            ("200 OK", lines, Vec::new())
                        }
                        None => ("200 OK", lines, object.clone()),
                        Some((first, last)) => {
                            let end = (last + 1).min(object.len());
                            let range = format!("Content-Range: bytes {first}-{}/{}", end - 1, object.len());
                            lines.push(range.into_bytes());
                            ("206 Partial Content", lines, object[first..end].to_vec())
                        }
                    }
                }
                None => ("404 Not Found", Vec::new(), b"<Error><Code>NoSuchKey</Code></Error>".to_vec()),
            }
        }
        _ => ("501 Not Implemented", Vec::new(), Vec::new()),
    };
    let mut stream = reader.into_inner();
    let mut head = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nConnection: close\r\n",
        claimed.unwrap_or(body.len() as u64)
    )
    .into_bytes();
    for line in headers {
        head.extend_from_slice(&line);
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    stream.write_all(&head)?;
    if method != "HEAD" {
        stream.write_all(&body)?;
    }
    Ok(())
}

/// The answer to a request of an upload in parts.
fn upload(state: &mut State, key: &str, query: &str, body: Vec<u8>) -> (&'static str, Vec<Vec<u8>>, String) {
    if query.starts_with("uploads") {
        (state.has_upload, state.parts) = (true, BTreeMap::new());
        let text = "<InitiateMultipartUploadResult><UploadId>one</UploadId></InitiateMultipartUploadResult>";
        return ("200 OK", Vec::new(), text.to_owned());
    }
    if !state.has_upload {
        return ("404 Not Found", Vec::new(), "<Error><Code>NoSuchUpload</Code></Error>".to_owned());
    }
    if let Some(number) = query.split('&').find_map(|pair| pair.strip_prefix("partNumber=")) {
        let etag = etag_of(&body);
        state.parts.insert(number.parse().unwrap(), body);
        state.has_upload = !state.forgets_uploads;
        return ("200 OK", vec![etag], String::new());
    }
    state.has_upload = false;
    let object: Vec<u8> = std::mem::take(&mut state.parts).into_values().flatten().collect();
    let etag = String::from_utf8(etag_of(&object)).unwrap().replace("ETag: ", "");
    state.objects.insert(key.to_owned(), object);
    match state.hides_completion {
        true => ("502 Bad Gateway", Vec::new(), String::new()),
        false => {
            let text =
                format!("<CompleteMultipartUploadResult><ETag>{etag}</ETag></CompleteMultipartUploadResult>");
            ("200 OK", Vec::new(), text)
        }
    }
}

/// `bytes=0-99`
fn range_of(text: &str) -> Option<(usize, usize)> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?))
}

fn etag_of(object: &[u8]) -> Vec<u8> {
    format!("ETag: \"{:032x}\"", object.len()).into_bytes()
}

/// Waits for a page that may be answered, and returns what there is to list.
fn wait_for_turn(shared: &(Mutex<State>, Condvar)) -> (Vec<(String, u64)>, usize) {
    let state = shared.0.lock().unwrap();
    let mut state = shared.1.wait_while(state, |state| state.pages == 0).unwrap();
    state.pages -= 1;
    state.lists += 1;
    let bytes_of =
        |key: &str, object: &[u8]| state.claimed_bytes.get(key).copied().unwrap_or(object.len() as u64);
    let objects = state.objects.iter().map(|(key, object)| (key.clone(), bytes_of(key, object)));
    (objects.collect(), state.page_keys.unwrap_or(PAGE))
}

/// A page. The token that the next one begins with is how many came before it.
fn list((objects, page_keys): (Vec<(String, u64)>, usize), query: &str) -> String {
    let parameter = |name: &str| {
        let value = query.split('&').find_map(|pair| pair.strip_prefix(name)).unwrap_or_default();
        percent_encoding::percent_decode_str(value).decode_utf8().unwrap().into_owned()
    };
    let (prefix, after) = (parameter("prefix="), parameter("start-after="));
    let is_listed = |key: &str| key.starts_with(&prefix) && key > after.as_str();
    let objects: Vec<&(String, u64)> = objects.iter().filter(|(key, _)| is_listed(key)).collect();
    let first = parameter("continuation-token=").parse().unwrap_or(0);
    let end = (first + page_keys).min(objects.len());
    let contents: String = objects[first..end]
        .iter()
        .map(|(key, size)| {
            // Of what is claimed, HEAD has an object without bytes.
            let etag_bytes = if *size > MAX_BYTES { 0 } else { *size };
            format!(
                "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>\"{etag_bytes:032x}\"</ETag><Size>{size}</Size></Contents>"
            )
        })
        .collect();
    let next = match end < objects.len() {
        true => format!("<NextContinuationToken>{end}</NextContinuationToken>"),
        false => String::new(),
    };
    format!(
        "<ListBucketResult><IsTruncated>{}</IsTruncated>{next}{contents}</ListBucketResult>",
        end < objects.len()
    )
}
