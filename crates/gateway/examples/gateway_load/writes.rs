//! What writers ask for: PUTs, a rename and a commit as Hadoop's S3A client does them, and the disk's own `fdatasync`.
//!
//! Keys are made of `root` (the URL's path of the bucket), `base` (what all keys in it begin with) and `copy_root` (the
//! bucket as a copy's source names it), since Alluxio takes the directories of a bucket for buckets.

use std::collections::VecDeque;
use std::io::Write as _;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::answers::{Connection, between};
use super::{Settings, Signed, pattern, report};

/// S3A copies so many objects at once when it renames a directory (`RenameOperation.RENAME_PARALLEL_LIMIT`),
const RENAME_PARALLEL: usize = 10;
/// and deletes so many by one request (`fs.s3a.bulk.delete.page.size`).
const DELETE_PAGE: usize = 250;
/// Its magic committer completes so many uploads at once (`fs.s3a.committer.threads`).
const COMMIT_PARALLEL: usize = 32;

impl Settings {
    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.text("base"))
    }

    fn key_path(&self, key: &str) -> String {
        format!("{}/{key}", self.text("root"))
    }
}

fn body_request(settings: &Settings, asked: Signed<'_>, body: &[u8]) -> Vec<u8> {
    let mut request = asked.head(settings).into_bytes();
    let length = body.len();
    request.extend_from_slice(format!("Content-Length: {length}\r\n\r\n").as_bytes());
    request.extend_from_slice(body);
    request
}

/// PUTs of new names for as long as `ms` says, over all connections.
pub(super) fn write(settings: &Settings) {
    let (size, connections) = (settings.number("size"), settings.number("connections"));
    let lasts = Duration::from_millis(settings.number("ms"));
    let body = pattern(connections, 0, size as usize);
    let begun = Instant::now();
    let latencies: Vec<u32> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..connections)
            .map(|writer| {
                let body = &body;
                scope.spawn(move || {
                    let (mut connection, mut latencies) = (Connection::open(settings), Vec::new());
                    while begun.elapsed() < lasts {
                        let name = format!("{}{writer}-{}", settings.text("prefix"), latencies.len());
                        let path = settings.key_path(&settings.key(&name));
                        let request = body_request(settings, Signed::new("PUT", &path), body);
                        let sent = Instant::now();
                        connection.ask(&request);
                        latencies.push(sent.elapsed().as_micros() as u32);
                    }
                    latencies
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    report(latencies, size, begun.elapsed());
}

/// Does the same with each item, so many at once. Returns how long each took, in microseconds.
fn for_each<T: Send>(
    settings: &Settings,
    items: Vec<T>,
    parallel: usize,
    work: impl Fn(&mut Connection, T) + Sync,
) -> Vec<u32> {
    let left = Mutex::new(VecDeque::from(items));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..parallel)
            .map(|_| {
                scope.spawn(|| {
                    let (mut connection, mut latencies) = (Connection::open(settings), Vec::new());
                    loop {
                        let Some(item) = left.lock().unwrap().pop_front() else { return latencies };
                        let begun = Instant::now();
                        work(&mut connection, item);
                        latencies.push(begun.elapsed().as_micros() as u32);
                    }
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

/// Objects to rename: `objects` of `size` bytes below `from`.
pub(super) fn fill(settings: &Settings) {
    let body = pattern(1, 0, settings.number("size") as usize);
    let names =
        (0..settings.number("objects")).map(|index| format!("{}part-{index:05}", settings.text("from")));
    let latencies = for_each(settings, names.collect(), COMMIT_PARALLEL, |connection, name| {
        let path = settings.key_path(&settings.key(&name));
        connection.ask(&body_request(settings, Signed::new("PUT", &path), &body));
    });
    println!("{{\"objects\": {}}}", latencies.len());
}

/// Renames a directory as S3A does, `from` one name `to` another: lists it, copies each object, deletes the old ones.
pub(super) fn rename(settings: &Settings) {
    let (from, to) = (settings.key(settings.text("from")), settings.key(settings.text("to")));
    let begun = Instant::now();
    let keys = listed(settings, &from);
    let listed_s = begun.elapsed().as_secs_f64();
    assert_eq!(keys.len() as u64, settings.number("objects"), "objects that were listed");
    let mut latencies = for_each(settings, keys.clone(), RENAME_PARALLEL, |connection, key| {
        let target = settings.key_path(&format!("{to}{}", &key[from.len()..]));
        let source = format!("{}/{key}", settings.text("copy_root"));
        let asked = Signed::new("PUT", &target).with("x-amz-copy-source", &source);
        let answer = connection.ask(&body_request(settings, asked, b""));
        assert!(answer.contains("ETag"), "{answer}");
    });
    let copied_s = begun.elapsed().as_secs_f64();
    let mut connection = Connection::open(settings);
    for page in keys.chunks(DELETE_PAGE) {
        let names: String = page.iter().map(|key| format!("<Object><Key>{key}</Key></Object>")).collect();
        let document = format!("<Delete><Quiet>true</Quiet>{names}</Delete>");
        let digest = openssl::hash::hash(openssl::hash::MessageDigest::md5(), document.as_bytes()).unwrap();
        let root = settings.text("root");
        let mut request = Signed::new("POST", root).query("delete=").head(settings).into_bytes();
        let length = document.len();
        let rest = format!(
            "Content-MD5: {}\r\nContent-Type: application/xml\r\nContent-Length: {length}\r\n\r\n{document}",
            STANDARD.encode(digest)
        );
        request.extend_from_slice(rest.as_bytes());
        let answer = connection.ask(&request);
        assert!(!answer.contains("<Error>"), "{answer}");
    }
    let took_s = begun.elapsed().as_secs_f64();
    assert!(listed(settings, &from).is_empty(), "objects are left at the old names");
    assert_eq!(listed(settings, &to).len(), keys.len(), "objects at the new names");
    print_steps(
        &mut latencies,
        took_s,
        &[("list_s", listed_s), ("copy_s", copied_s - listed_s), ("delete_s", took_s - copied_s)],
    );
}

/// The keys that begin so, by pages of 1000.
fn listed(settings: &Settings, prefix: &str) -> Vec<String> {
    let (mut connection, mut keys) = (Connection::open(settings), Vec::<String>::new());
    let escaped = prefix.replace('/', "%2F");
    let mut token = String::new();
    loop {
        let query = match token.as_str() {
            "" => format!("list-type=2&max-keys=1000&prefix={escaped}"),
            token => format!("continuation-token={token}&list-type=2&max-keys=1000&prefix={escaped}"),
        };
        let mut request = Signed::new("GET", settings.text("root")).query(&query).head(settings);
        request.push_str("\r\n");
        let page = connection.ask(request.as_bytes());
        let names = page.split("<Key>").skip(1).map(|rest| between(rest, "", "</Key>"));
        // Alluxio lists directories as well.
        keys.extend(names.filter(|name| !name.ends_with('/')).map(str::to_owned));
        if !page.contains("<IsTruncated>true</IsTruncated>") {
            return keys;
        }
        token = escape(between(&page, "<NextContinuationToken>", "</NextContinuationToken>"));
    }
}

fn escape(text: &str) -> String {
    const QUERY: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
    utf8_percent_encode(text, &QUERY).to_string()
}

/// Commits as S3A's magic committer does: the tasks have uploaded each file as an upload of one part, and the job
/// completes them.
pub(super) fn commit(settings: &Settings) {
    let body = pattern(2, 0, settings.number("size") as usize);
    let paths: Vec<String> = (0..settings.number("objects"))
        .map(|index| settings.key_path(&settings.key(&format!("{}part-{index:05}", settings.text("to")))))
        .collect();
    let begun = Mutex::new(Vec::new());
    for_each(settings, paths, COMMIT_PARALLEL, |connection, path| {
        let created =
            connection.ask(&body_request(settings, Signed::new("POST", &path).query("uploads="), b""));
        let upload = escape(between(&created, "<UploadId>", "</UploadId>"));
        let query = format!("partNumber=1&uploadId={upload}");
        let part = body_request(settings, Signed::new("PUT", &path).query(&query), &body);
        let etag = connection.ask_for_header(&part, "etag");
        begun.lock().unwrap().push((path, upload, etag));
    });
    // Who measures the server begins here, and says so by a line.
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let (uploads, started) = (begun.into_inner().unwrap(), Instant::now());
    let mut latencies = for_each(settings, uploads, COMMIT_PARALLEL, |connection, (path, upload, etag)| {
        let document = format!(
            "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part></CompleteMultipartUpload>"
        );
        let query = format!("uploadId={upload}");
        let asked = Signed::new("POST", &path).query(&query);
        let answer = connection.ask(&body_request(settings, asked, document.as_bytes()));
        assert!(answer.contains("<ETag>"), "{answer}");
    });
    print_steps(&mut latencies, started.elapsed().as_secs_f64(), &[]);
}

fn print_steps(latencies: &mut [u32], seconds: f64, steps: &[(&str, f64)]) {
    latencies.sort_unstable();
    let quantile = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize];
    let steps: String = steps.iter().map(|(name, seconds)| format!(", \"{name}\": {seconds}")).collect();
    println!(
        "{{\"objects\": {}, \"seconds\": {seconds}, \"p50_us\": {}, \"p99_us\": {}{steps}}}",
        latencies.len(),
        quantile(0.5),
        quantile(0.99)
    );
}

/// What the disk itself takes to make 4 KiB durable at the end of a file, one after the other.
pub(super) fn sync(settings: &Settings) {
    let mut file = std::fs::File::create_new(settings.text("file")).unwrap();
    let (block, begun) = (vec![7; 4096], Instant::now());
    let latencies = (0..settings.number("count"))
        .map(|_| {
            let written = Instant::now();
            file.write_all(&block).unwrap();
            file.sync_data().unwrap();
            written.elapsed().as_micros() as u32
        })
        .collect();
    report(latencies, block.len() as u64, begun.elapsed());
}
