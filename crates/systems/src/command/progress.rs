//! A benchmark command's own progress, read while it runs.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use underlay_files::plain_file;
use underlay_sync::Mutex;

use crate::benchmark::{FigurePlan, LatestValue};
use crate::system::BenchmarkProgress;

/// Between looks.
const INTERVAL: Duration = Duration::from_secs(1);
/// Of the log's end: some lines.
const READ_BYTES: u64 = 16 << 10;

/// Follows the first figure of a benchmark that has a `progress`.
pub(super) struct ProgressFollower<'a> {
    /// Nothing where no figure has one.
    figure: Option<(&'a FigurePlan, LatestValue)>,
    /// Where commands' logs are, and how the benchmark's is called.
    logs: &'a Path,
    ending: String,
    last: Mutex<Option<(Instant, Option<f64>)>>,
}

impl<'a> ProgressFollower<'a> {
    pub(super) fn new(figures: &'a [FigurePlan], logs: &'a Path, verb: &str) -> ProgressFollower<'a> {
        let followed =
            |figure: &'a FigurePlan| Some((figure, LatestValue::parse(figure.progress.as_deref()?)?));
        let figure = figures.iter().find_map(followed);
        ProgressFollower { figure, logs, ending: format!("-{verb}.log"), last: Mutex::new(None) }
    }

    /// The last printed progress, at most a second old.
    pub(super) fn latest(&self) -> Option<BenchmarkProgress> {
        let (figure, pattern) = self.figure.as_ref()?;
        let mut last = self.last.lock();
        let value = match *last {
            Some((read_at, value)) if read_at.elapsed() < INTERVAL => value,
            _ => {
                let value = self.end_of_log().and_then(|text| pattern.find_in(&text));
                *last = Some((Instant::now(), value));
                value
            }
        };
        Some(BenchmarkProgress {
            name: figure.name.clone(),
            unit: figure.unit.clone(),
            slow_motion: figure.slow_motion,
            value: value?,
        })
    }

    fn end_of_log(&self) -> Option<String> {
        let mut file = plain_file::open(&self.log()?).ok()??;
        let length_bytes = file.metadata().ok()?.len();
        file.seek(SeekFrom::Start(length_bytes.saturating_sub(READ_BYTES))).ok()?;
        let mut bytes = Vec::new();
        file.take(READ_BYTES).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Logs are numbered: that of the command that runs has the highest number.
    fn log(&self) -> Option<PathBuf> {
        let entries = std::fs::read_dir(self.logs).ok()?.flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| name.ends_with(&self.ending)).max().map(|name| self.logs.join(name))
    }
}

#[cfg(test)]
mod tests {
    use underlay_record::{BetterDirection, MetricDilation};

    use super::*;
    use crate::benchmark::{MetricReading, ValueChoice};

    #[test]
    fn last_whole_line_of_newest_log_is_progress() {
        let folder = tempfile::tempdir().unwrap();
        let figures = [FigurePlan {
            name: "throughput".to_owned(),
            unit: "tps".to_owned(),
            better: BetterDirection::Higher,
            slow_motion: MetricDilation::Rate,
            file: None,
            reading: MetricReading::Progress,
            progress: Some("progress: .* (?<value>[0-9.]+) tps".to_owned()),
            take: ValueChoice::Mean,
        }];
        let latest =
            || ProgressFollower::new(&figures, folder.path(), "benchmark").latest().map(|found| found.value);
        assert_eq!(latest(), None);
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("0003-benchmark.log", "progress: 1.0 s, 7 tps\n");
        write("0004-benchmark.log", "progress: 1.0 s, 10 tps\nprogress: 2.0 s, 30.5 tps\nprogress: 3.0 s, 4");
        write("0005-stop.log", "progress: 1.0 s, 99 tps\n");
        assert_eq!(latest(), Some(30.5));
        // More than is read at once, and bytes that are no text.
        let long = format!("{}\u{0}progress: 9.0 s, 12 tps\n", "x\n".repeat(READ_BYTES as usize));
        write("0006-benchmark.log", &long);
        assert_eq!(latest(), Some(12.0));
    }
}
