//! The line that YCSB prints on standard error while it runs (`-s`).

use std::time::Duration;

use underlay_record::Histogram;

use super::number::two_decimals;
use super::options::MeasurementType;

/// The contents of a status line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatusLine {
    /// Its beginning.
    pub label: String,
    /// Local time in YCSB's format: `2026-11-21 18:00:00:250`.
    pub time: String,
    pub elapsed: Duration,
    /// Operations so far, over all threads.
    pub operations: u64,
    /// Over the time since the last line.
    pub current_per_s: f64,
    /// The remaining time at the mean rate so far; `None` if there is none, or if the number of operations does not end
    /// the run.
    pub remaining: Option<Duration>,
    /// The [`summary`] of each kind of operation.
    pub summaries: Vec<String>,
}

/// The summary of one kind of operation since the last line. Without latencies, nothing happened.
pub fn summary(measurement: MeasurementType, name: &str, latencies: &Histogram) -> String {
    let us = latencies.summary_us();
    if us.count == 0 {
        return String::new();
    }
    let mean = |name: &str| format!("[{name} AverageLatency(us)={}]", two_decimals(us.mean));
    let raw = |name: &str| format!("{name} count: {}, average latency(us): {:.2}", us.count, us.mean);
    let percentiles = |name: &str| {
        let mut text = format!(
            "[{name}: Count={}, Max={:.0}, Min={:.0}, Avg={}",
            us.count,
            us.max,
            us.min,
            two_decimals(us.mean)
        );
        for (label, quantile) in [("90", 0.9), ("99", 0.99), ("99.9", 0.999), ("99.99", 0.9999)] {
            text.push_str(&format!(", {label}={:.0}", latencies.quantile_us(quantile)));
        }
        text.push(']');
        text
    };
    match measurement {
        MeasurementType::HdrHistogram => percentiles(name),
        MeasurementType::Histogram | MeasurementType::TimeSeries => mean(name),
        MeasurementType::Raw => raw(name),
        MeasurementType::HdrHistogramAndHistogram => {
            format!("{}\n{}", percentiles(&format!("Hdr{name}")), mean(&format!("Bucket{name}")))
        }
        MeasurementType::HdrHistogramAndRaw => {
            format!("{}\n{}", percentiles(&format!("Hdr{name}")), raw(&format!("Raw{name}")))
        }
    }
}

impl StatusLine {
    pub fn line(&self) -> String {
        let mut line = format!(
            "{}{} {} sec: {} operations; ",
            self.label,
            self.time,
            self.elapsed.as_secs(),
            self.operations
        );
        if self.operations > 0 {
            line.push_str(&two_decimals(self.current_per_s));
            line.push_str(" current ops/sec; ");
        }
        if let Some(remaining) = self.remaining {
            line.push_str("est completion in ");
            line.push_str(&describe_duration(remaining));
        }
        for summary in self.summaries.iter().filter(|summary| !summary.is_empty()) {
            line.push_str(summary);
            line.push(' ');
        }
        line
    }
}

/// The largest relevant units: seconds below a minute, days and hours above a day. YCSB says "second" for any one-digit
/// number.
fn describe_duration(time: Duration) -> String {
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    let mut words = String::new();
    let mut say = |count: u64, unit: &str, is_one: bool| {
        let ending = if is_one { "" } else { "s" };
        words.push_str(&format!("{count} {unit}{ending} "));
    };
    if days > 0 {
        say(days, "day", days == 1);
    }
    if hours > 0 {
        say(hours, "hour", hours == 1);
    }
    if days == 0 && minutes > 0 {
        say(minutes, "minute", minutes == 1);
    }
    if seconds < 60 {
        say(seconds, "second", seconds < 10);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> StatusLine {
        StatusLine { time: "2026-11-21 18:00:00:250".to_owned(), ..StatusLine::default() }
    }

    #[test]
    fn status_line_reports_progress() {
        assert_eq!(status().line(), "2026-11-21 18:00:00:250 0 sec: 0 operations; ");
        let later = StatusLine {
            label: "first ".to_owned(),
            elapsed: Duration::from_millis(10_900),
            operations: 61_731,
            current_per_s: 6170.63,
            remaining: Some(Duration::from_millis(3_725_500)),
            ..status()
        };
        assert_eq!(
            later.line(),
            "first 2026-11-21 18:00:00:250 10 sec: 61731 operations; 6170.63 current ops/sec; \
             est completion in 1 hour 2 minutes "
        );
    }

    #[test]
    fn status_line_reports_latencies_by_kind() {
        let mut latencies = Histogram::default();
        [1000, 1000, 2000].into_iter().for_each(|ns| latencies.record_ns(ns));
        let line = |measurement| {
            let summaries = vec![
                summary(measurement, "READ", &latencies),
                summary(measurement, "SCAN", &Histogram::default()),
            ];
            let line = StatusLine { operations: 3, current_per_s: 0.3, summaries, ..status() }.line();
            line.strip_prefix("2026-11-21 18:00:00:250 0 sec: 3 operations; 0.3 current ops/sec; ")
                .unwrap()
                .to_owned()
        };
        let percentiles = "Count=3, Max=2, Min=1, Avg=1.33, 90=2, 99=2, 99.9=2, 99.99=2] ";
        assert_eq!(line(MeasurementType::HdrHistogram), format!("[READ: {percentiles}"));
        assert_eq!(line(MeasurementType::Histogram), "[READ AverageLatency(us)=1.33] ");
        assert_eq!(line(MeasurementType::TimeSeries), "[READ AverageLatency(us)=1.33] ");
        assert_eq!(line(MeasurementType::Raw), "READ count: 3, average latency(us): 1.33 ");
        assert_eq!(
            line(MeasurementType::HdrHistogramAndHistogram),
            format!("[HdrREAD: {}\n[BucketREAD AverageLatency(us)=1.33] ", percentiles.trim_end())
        );
        assert_eq!(
            line(MeasurementType::HdrHistogramAndRaw),
            format!("[HdrREAD: {}\nRawREAD count: 3, average latency(us): 1.33 ", percentiles.trim_end())
        );
    }

    #[test]
    fn times_are_said_in_their_largest_units() {
        let expected = [
            (0, "0 second "),
            (9, "9 second "),
            (10, "10 seconds "),
            (59, "59 seconds "),
            (60, "1 minute "),
            (119, "1 minute "),
            (3_600, "1 hour "),
            (86_400, "1 day "),
            (180_000, "2 days 2 hours "),
        ];
        for (seconds, words) in expected {
            assert_eq!(describe_duration(Duration::from_secs(seconds)), words);
        }
    }
}
