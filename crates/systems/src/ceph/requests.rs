//! The requests that the gateway has answered, as its own log tells them: a line of JSON each.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Deserialize;
use underlay_record::StoreRequests;

/// A request has some seven hundred bytes.
const MAX_LINE_BYTES: usize = 1 << 20;
const PART_BYTES: usize = 64 << 10;
/// Requests for keys that begin like this mark the log and are none of a job's.
pub(crate) const MARK: &str = "underlay-mark-";
/// How each request begins.
const BEGINS: &[u8] = b"{\"bucket\"";
const UNREADABLE: &str = "unreadable";
const MARK_POLL: Duration = Duration::from_millis(20);

/// One answered request.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreRequest {
    /// When it came, in seconds since 1970.
    pub at_s: f64,
    /// Until it was answered.
    pub took_s: f64,
    /// `get`, `head`, `put`, `copy`, `list`, `delete`, `multipart`, or the gateway's own word for anything else.
    pub kind: String,
    pub failed: bool,
    pub sent_bytes: u64,
    pub received_bytes: u64,
}

/// The log of a gateway, read from where the last reading ended.
#[derive(Debug)]
pub struct RequestLog {
    path: PathBuf,
    offset: u64,
    /// A line that is not complete yet.
    rest: Vec<u8>,
    /// The last mark that has been read.
    mark: Option<String>,
    /// When the last request came that could be read.
    last_s: f64,
}

#[derive(Deserialize)]
struct RequestLine {
    time: String,
    operation: String,
    uri: String,
    http_status: String,
    bytes_sent: u64,
    bytes_received: u64,
    /// In milliseconds.
    #[serde(default)]
    total_time: u64,
}

impl RequestLog {
    pub(super) fn new(path: &Path) -> RequestLog {
        RequestLog { path: path.to_owned(), offset: 0, rest: Vec::new(), mark: None, last_s: 0.0 }
    }

    /// Everything that was answered since the last call.
    ///
    /// # Errors
    /// When the log can't be read.
    pub fn read(&mut self) -> io::Result<Vec<StoreRequest>> {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            // Nobody has asked for anything yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        file.seek(SeekFrom::Start(self.offset))?;
        let mut found = Vec::new();
        let mut part = vec![0; PART_BYTES];
        loop {
            let count = file.read(&mut part)?;
            if count == 0 {
                return Ok(found);
            }
            self.offset += count as u64;
            for &byte in &part[..count] {
                match byte {
                    b'\n' => {
                        let line = std::mem::take(&mut self.rest);
                        self.take(&line, &mut found);
                    }
                    _ if self.rest.len() < MAX_LINE_BYTES => self.rest.push(byte),
                    _ => {}
                }
            }
        }
    }

    fn take(&mut self, line: &[u8], found: &mut Vec<StoreRequest>) {
        for logged in LoggedRequest::parse_line(line) {
            match logged {
                LoggedRequest::Mark(mark) => self.mark = Some(mark),
                LoggedRequest::Request(request) => {
                    self.last_s = request.at_s;
                    found.push(request);
                }
                LoggedRequest::Unreadable => found.push(StoreRequest::unreadable(self.last_s)),
            }
        }
    }

    /// Everything that was answered before the request for the key `mark`, which has been answered already: the gateway
    /// writes its log a moment later, in order.
    ///
    /// # Errors
    /// When the log can't be read, or has not got that far after `limit`.
    pub fn read_up_to(&mut self, mark: &str, limit: Duration) -> io::Result<Vec<StoreRequest>> {
        let began = Instant::now();
        let mut found = Vec::new();
        loop {
            found.extend(self.read()?);
            if self.mark.as_deref() == Some(mark) {
                return Ok(found);
            }
            if began.elapsed() > limit {
                let problem =
                    format!("the gateway has not logged its last request after {:.0} s", limit.as_secs_f64());
                return Err(io::Error::new(io::ErrorKind::TimedOut, problem));
            }
            std::thread::sleep(MARK_POLL);
        }
    }
}

/// The contents of a line of the log.
#[derive(Clone, Debug, PartialEq)]
pub enum LoggedRequest {
    Mark(String),
    Request(StoreRequest),
    /// Something that makes no sense. It is counted, so that it shows.
    Unreadable,
}

impl LoggedRequest {
    /// One entry, or several: the gateway writes the end of a line apart, and requests that end at the same moment may
    /// come between.
    pub fn parse_line(line: &[u8]) -> Vec<LoggedRequest> {
        let mut entries = Vec::new();
        let mut rest = line;
        loop {
            let mut found = serde_json::Deserializer::from_slice(rest).into_iter::<RequestLine>();
            let failed = loop {
                match found.next() {
                    Some(Ok(line)) => {
                        entries.push(LoggedRequest::from_line(line).unwrap_or(LoggedRequest::Unreadable))
                    }
                    Some(Err(_)) => break true,
                    None => break false,
                }
            };
            if !failed {
                return entries;
            }
            entries.push(LoggedRequest::Unreadable);
            // Another entry, perhaps a mark that somebody waits for, may stand behind it.
            let remainder = &rest[(found.byte_offset() + 1).min(rest.len())..];
            match remainder.windows(BEGINS.len()).position(|window| window == BEGINS) {
                Some(index) => rest = &remainder[index..],
                None => return entries,
            }
        }
    }

    fn from_line(line: RequestLine) -> Option<LoggedRequest> {
        match line.mark() {
            Some(mark) => Some(LoggedRequest::Mark(mark)),
            None => StoreRequest::from_line(&line).map(LoggedRequest::Request),
        }
    }
}

impl RequestLine {
    /// The key of a request that marks the log.
    fn mark(&self) -> Option<String> {
        let start = self.uri.find(MARK)?;
        let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
        Some(self.uri[start..].chars().take_while(|&letter| plain(letter)).collect())
    }
}

impl StoreRequest {
    /// Stands for what the log tells of and nobody can read.
    fn unreadable(at_s: f64) -> StoreRequest {
        StoreRequest {
            at_s,
            took_s: 0.0,
            kind: UNREADABLE.to_owned(),
            failed: false,
            sent_bytes: 0,
            received_bytes: 0,
        }
    }

    fn from_line(line: &RequestLine) -> Option<StoreRequest> {
        let method = line.uri.split(' ').next().unwrap_or_default();
        let kind = match (line.operation.as_str(), method) {
            ("get_obj" | "stat_bucket", "HEAD") => "head",
            ("get_obj", _) => "get",
            // A part of a large object that is copied: its source stands in a header, which is not logged.
            ("put_obj", _) if line.bytes_received == 0 && line.uri.contains("uploadId=") => "copy",
            ("put_obj", _) => "put",
            ("copy_obj", _) => "copy",
            ("list_bucket" | "list_bucket_multiparts" | "list_multipart" | "list_buckets", _) => "list",
            ("delete_obj" | "multi_object_delete", _) => "delete",
            ("init_multipart" | "complete_multipart" | "abort_multipart", _) => "multipart",
            (other, _) => other,
        };
        Some(StoreRequest {
            at_s: seconds(&line.time)?,
            took_s: line.total_time as f64 / 1e3,
            kind: kind.to_owned(),
            failed: !line.http_status.starts_with('2'),
            sent_bytes: line.bytes_sent,
            received_bytes: line.bytes_received,
        })
    }

    /// Whether it was understood. If not, its time is that of a request before it.
    pub fn is_readable(&self) -> bool {
        self.kind != UNREADABLE
    }

    /// Adds it to the sums of its kind.
    pub fn count(&self, totals: &mut BTreeMap<String, StoreRequests>) {
        let sum = totals.entry(self.kind.clone()).or_default();
        sum.requests += 1;
        sum.failed += u64::from(self.failed);
        sum.sent_bytes = sum.sent_bytes.saturating_add(self.sent_bytes);
        sum.received_bytes = sum.received_bytes.saturating_add(self.received_bytes);
    }
}

/// The seconds since 1970 of `2026-11-25T02:20:29.257308Z`.
fn seconds(text: &str) -> Option<f64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.splitn(3, '-').map(str::parse::<i64>);
    let (year, month, day) = (date.next()?.ok()?, date.next()?.ok()?, date.next()?.ok()?);
    let mut time = time.splitn(3, ':');
    let (hour, minute): (f64, f64) = (time.next()?.parse().ok()?, time.next()?.parse().ok()?);
    let second: f64 = time.next()?.parse().ok()?;
    if !(1970..10_000).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years that begin in March have their leap day at their end.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    Some(days as f64 * 86_400.0 + hour * 3600.0 + minute * 60.0 + second)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    const LINE: &str = r#"{"bucket":"underlay","time":"2026-11-25T02:21:07.329307Z","user":"underlay","operation":"copy_obj","uri":"PUT /underlay/a HTTP/1.1","http_status":"200","error_code":"","bytes_sent":238,"bytes_received":0,"object_size":0,"total_time":95}"#;

    fn only(line: &str) -> StoreRequest {
        match &LoggedRequest::parse_line(line.as_bytes())[..] {
            [LoggedRequest::Request(request)] => request.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn log_line_becomes_request() {
        let part = LINE
            .replace("copy_obj", "put_obj")
            .replace("PUT /underlay/a HTTP", "PUT /underlay/a?uploadId=2~x&partNumber=1 HTTP");
        assert_eq!(only(&part).kind, "copy");
        assert_eq!(only(&part.replace("\"bytes_received\":0", "\"bytes_received\":7")).kind, "put");
        let copy = only(LINE);
        assert_eq!((copy.kind.as_str(), copy.failed, copy.sent_bytes), ("copy", false, 238));
        assert!((copy.at_s - 1_795_573_267.329_307).abs() < 1e-3, "{}", copy.at_s);
        let head = LINE.replace("copy_obj", "get_obj").replace("PUT", "HEAD").replace("\"200\"", "\"404\"");
        let head = only(&head);
        assert_eq!((head.kind.as_str(), head.failed), ("head", true));
        assert_eq!(LoggedRequest::parse_line(b"{}"), [LoggedRequest::Unreadable]);
        assert_eq!(
            LoggedRequest::parse_line(LINE.replace("2026-11", "2026-13").as_bytes()),
            [LoggedRequest::Unreadable]
        );
        assert_eq!(LoggedRequest::parse_line(b" "), []);
        let mark = LINE.replace("/underlay/a", "/underlay/underlay-mark-9");
        let cut = format!("{LINE}{}{mark}", &LINE[..50]);
        let [LoggedRequest::Request(_), LoggedRequest::Unreadable, LoggedRequest::Mark(_)] =
            &LoggedRequest::parse_line(cut.as_bytes())[..]
        else {
            panic!("{:?}", LoggedRequest::parse_line(cut.as_bytes()));
        };
        assert_eq!(seconds("1970-01-01T00:00:00.5Z"), Some(0.5));
        assert_eq!(seconds("2000-03-01T00:00:00Z"), Some(951_868_800.0));
    }

    #[test]
    fn growing_log_is_read_once() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("requests.log");
        let mut log = RequestLog::new(&path);
        assert!(log.read().unwrap().is_empty());
        let mut file = File::create(&path).unwrap();
        let (first, second) = LINE.split_at(40);
        write!(file, "{LINE}\n{first}").unwrap();
        assert_eq!(log.read().unwrap().len(), 1);
        writeln!(file, "{second}\n").unwrap();
        assert_eq!(log.read().unwrap().len(), 1, "an empty line is nothing");
        // An unreadable log shows: the last readable request came before.
        writeln!(file, "{LINE}\nnonsense\n{}\n{LINE}", LINE.replace("2026-", "year-")).unwrap();
        let read = log.read().unwrap();
        let kinds: Vec<&str> = read.iter().map(|request| request.kind.as_str()).collect();
        assert_eq!(kinds, ["copy", "unreadable", "unreadable", "copy"]);
        assert!(read.iter().all(|request| request.at_s == read[0].at_s));
        let mark = LINE.replace("/underlay/a", "/underlay/underlay-mark-7");
        // The gateway puts requests that end together on one line, and both ends of lines behind them.
        writeln!(file, "{LINE}{LINE}\n\n{LINE}{mark}{LINE}\n").unwrap();
        let kinds: Vec<String> = log
            .read_up_to("underlay-mark-7", Duration::ZERO)
            .unwrap()
            .into_iter()
            .map(|one| one.kind)
            .collect();
        assert_eq!(kinds, ["copy"; 4]);
        let error = log.read_up_to("underlay-mark-8", Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains("has not logged its last request"), "{error}");
        let mut sums = BTreeMap::new();
        only(LINE).count(&mut sums);
        only(LINE).count(&mut sums);
        assert_eq!((sums["copy"].requests, sums["copy"].sent_bytes), (2, 476));
    }
}
