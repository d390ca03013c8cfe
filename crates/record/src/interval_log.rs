//! HdrHistogram's log of intervals (`.hlog`): what happened in each interval of a run, as full distributions that the
//! usual viewers open.

use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::histogram::Histogram;

/// The version of the format that is written.
const FORMAT_VERSION: &str = "1.3";
/// A line also shows its interval's largest latency, in milliseconds.
const US_PER_MS: f64 = 1e3;

/// Writes a log. Write intervals in the order in which they begin.
#[derive(Debug)]
pub struct IntervalLog<W> {
    writer: W,
}

impl<W: Write> IntervalLog<W> {
    /// Begins a log whose intervals count from `start`. A comment may have several lines.
    ///
    /// # Errors
    /// When the writer fails.
    pub fn begin(mut writer: W, comment: &str, start: SystemTime) -> io::Result<Self> {
        for line in comment.lines() {
            writeln!(writer, "#{line}")?;
        }
        let start_s = start.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        writeln!(writer, "#[Histogram log format version {FORMAT_VERSION}]")?;
        writeln!(writer, "#[BaseTime: {start_s:.3} (seconds since epoch)]")?;
        writeln!(writer, "#[StartTime: {start_s:.3} (seconds since epoch)]")?;
        writeln!(
            writer,
            "\"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\""
        )?;
        Ok(IntervalLog { writer })
    }

    /// Writes one interval of the kind `tag`; characters that a tag cannot have become dashes. Every viewer reads lines
    /// without a tag, and some read nothing else.
    ///
    /// # Errors
    /// When the writer fails.
    pub fn write(
        &mut self,
        tag: Option<&str>,
        begin: Duration,
        length: Duration,
        latencies: &Histogram,
    ) -> io::Result<()> {
        let tag =
            // The format separates fields by commas and lines by newlines, and has no quoting for tags.
            tag.map_or_else(String::new, |tag| format!("Tag={},", tag.replace([',', ' ', '\n', '\r'], "-")));
        let max_ms = latencies.summary_us().max / US_PER_MS;
        writeln!(
            self.writer,
            "{tag}{:.3},{:.3},{max_ms:.3},{}",
            begin.as_secs_f64(),
            length.as_secs_f64(),
            latencies.encode()
        )
    }

    /// Hands over what is buffered.
    ///
    /// # Errors
    /// When the writer fails.
    pub fn finish(mut self) -> io::Result<W> {
        self.writer.flush()?;
        Ok(self.writer)
    }
}

#[cfg(test)]
mod tests {
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    use super::*;

    fn histogram(values_ns: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        values_ns.iter().for_each(|&ns| histogram.record_ns(ns));
        histogram
    }

    fn log() -> String {
        let start = UNIX_EPOCH + Duration::from_millis(1_500_000_000_250);
        let mut log = IntervalLog::begin(Vec::new(), "rocksdb on hdd\nworkload a", start).unwrap();
        let second = Duration::from_secs(1);
        log.write(Some("READ"), Duration::ZERO, second, &histogram(&[90_000, 15_000_000])).unwrap();
        log.write(None, Duration::ZERO, second, &histogram(&[100_000])).unwrap();
        log.write(Some("a, b"), Duration::from_millis(1_000), second / 2, &histogram(&[])).unwrap();
        String::from_utf8(log.finish().unwrap()).unwrap()
    }

    #[test]
    fn interval_log_head_matches_format() {
        let head = "#rocksdb on hdd\n#workload a\n#[Histogram log format version 1.3]\n\
            #[BaseTime: 1500000000.250 (seconds since epoch)]\n#[StartTime: 1500000000.250 (seconds since epoch)]\n\
            \"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"\n\
            Tag=READ,0.000,1.000,15.008,HISTFAAA";
        let log = log();
        assert!(log.starts_with(head), "{log}");
    }

    /// By the library's own reader, which follows the Java one.
    #[test]
    fn interval_log_reads_back() {
        let log = log();
        let mut intervals = Vec::new();
        let mut starts = Vec::new();
        for entry in IntervalLogIterator::new(log.as_bytes()) {
            match entry.expect("every line is understood") {
                LogEntry::Interval(one) => intervals.push((
                    one.tag().map(|tag| tag.as_str().to_owned()),
                    one.start_timestamp(),
                    one.duration(),
                    Histogram::decode(one.encoded_histogram()).unwrap(),
                )),
                LogEntry::StartTime(start) | LogEntry::BaseTime(start) => starts.push(start.as_millis()),
            }
        }
        assert_eq!(starts, [1_500_000_000_250; 2]);
        let second = Duration::from_secs(1);
        let expected = [
            (Some("READ".to_owned()), Duration::ZERO, second, histogram(&[90_000, 15_000_000])),
            (None, Duration::ZERO, second, histogram(&[100_000])),
            (Some("a--b".to_owned()), second, second / 2, histogram(&[])),
        ];
        assert_eq!(intervals, expected);
    }
}
