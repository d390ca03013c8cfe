//! The external shuffle service, a part of Spark's worker: it serves what executors have shuffled, also of those that
//! are gone. Its own metrics file has the served bytes.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const PORT: u16 = 7337;
/// Metrics are written each second, Spark's shortest time.
const POLL: Duration = Duration::from_millis(100);
const WRITTEN_LIMIT: Duration = Duration::from_secs(10);
/// The bytes of the blocks that it was asked for.
const SERVED: &str = "shuffleService.blockTransferRateBytes.csv";

/// A worker's served bytes so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShuffleService {
    metrics: PathBuf,
}

impl ShuffleService {
    /// Of the worker with this folder.
    pub(super) fn from_folder(folder: &Path) -> ShuffleService {
        ShuffleService { metrics: folder.join("metrics") }
    }

    /// Java's options for its worker. The folder of metrics must exist.
    pub(super) fn options(&self) -> io::Result<Vec<String>> {
        std::fs::create_dir_all(&self.metrics)?;
        let sink = "-Dspark.metrics.conf.shuffleService.sink.csv";
        Ok(vec![
            "-Dspark.shuffle.service.enabled=true".to_owned(),
            format!("-Dspark.shuffle.service.port={PORT}"),
            format!("{sink}.class=org.apache.spark.metrics.sink.CsvSink"),
            format!("{sink}.directory={}", self.metrics.display()),
            format!("{sink}.period=1"),
            format!("{sink}.unit=seconds"),
        ])
    }

    /// A session's settings.
    pub(super) fn settings() -> [(&'static str, String); 3] {
        [
            ("spark.shuffle.service.enabled", "true".to_owned()),
            ("spark.shuffle.service.port", PORT.to_string()),
            // Executors on one host would read each other's files themselves, past the service. Here they stand for
            // those of several hosts.
            ("spark.shuffle.readHostLocalDisk", "false".to_owned()),
        ]
    }

    /// The bytes that it had served at `time_s`, in seconds since 1970, or a little later; `None` if it does not tell.
    pub(super) fn served_bytes(&self, time_s: f64) -> Option<u64> {
        let began = Instant::now();
        let file = self.metrics.join(SERVED);
        loop {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            // Times are in whole seconds.
            match total_in(&text) {
                Some((at_s, bytes)) if at_s as f64 > time_s => return Some(bytes),
                _ if began.elapsed() > WRITTEN_LIMIT => return None,
                _ => std::thread::sleep(POLL),
            }
        }
    }
}

/// The last time in a file of a metric, and what was counted until then. A worker that was started again goes on in the
/// same file, and counts from nothing.
fn total_in(text: &str) -> Option<(u64, u64)> {
    // A line that is written just now is not the last one.
    let whole = &text[..text.rfind('\n')?];
    let (mut last, mut before) = (None, 0_u64);
    for (at_s, count) in whole.lines().filter_map(count_in) {
        if let Some((_, former)) = last
            && count < former
        {
            before = before.saturating_add(former);
        }
        last = Some((at_s, count));
    }
    last.map(|(at_s, count)| (at_s, before.saturating_add(count)))
}

/// Time and count in a line of a metric: `1732600000,4096,12.5,...`.
fn count_in(line: &str) -> Option<(u64, u64)> {
    let mut columns = line.split(',');
    Some((columns.next()?.trim().parse().ok()?, columns.next()?.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_whole_line_after_a_time_counts() {
        let folder = tempfile::TempDir::new().unwrap();
        let service = ShuffleService::from_folder(folder.path());
        let options = service.options().unwrap();
        assert!(
            options[0].ends_with("service.enabled=true") && options[3].contains("/metrics"),
            "{options:?}"
        );
        let head = "t,count,mean_rate,m1_rate,m5_rate,m15_rate,rate_unit\n";
        let lines = "100,5,0.1,0,0,0,events/second\n101,70,0.1,0,0,0,events/second\n102,9";
        std::fs::write(service.metrics.join(SERVED), format!("{head}{lines}")).unwrap();
        assert_eq!(service.served_bytes(100.9), Some(70));
        // The worker has been killed, and was started again.
        let further = format!("{head}100,5\n101,70\n{head}110,0\n111,30\n");
        assert_eq!((total_in(&further), total_in(head), total_in("")), (Some((111, 100)), None, None));
        assert_eq!((count_in(head), count_in("1,2"), count_in("1")), (None, Some((1, 2)), None));
    }
}
