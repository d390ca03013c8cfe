//! The metric of a published figure or a claim. Files name it in one word with its unit last: `throughput_per_s`,
//! `p99_latency_us`, `read_p999_latency_ms`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A metric with the unit that it was published in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum PublishedMetric {
    #[default]
    Throughput,
    /// Of one kind of operation, or of all of them.
    Latency {
        operation: Option<String>,
        statistic: LatencyStatistic,
        unit: TimeUnit,
    },
    /// A ratio itself: the baseline's duration over this one's.
    RelativePerformance,
    /// Of a batch job, in seconds.
    Duration,
    /// Mean bytes of a device's request.
    RequestBytes(RequestKinds),
    /// Mean latency with a compaction over that without.
    CompactionSlowdown,
    UsdPerPerformance,
    UsdPerTb,
    /// One that papers print and nobody here measures.
    Other(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatencyStatistic {
    Mean,
    P50,
    /// As some papers call the same.
    Median,
    P99,
    P999,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    Microseconds,
    Milliseconds,
    Seconds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKinds {
    Both,
    Reads,
    Writes,
}

const STATISTICS: [(&str, LatencyStatistic); 5] = [
    ("mean", LatencyStatistic::Mean),
    ("p50", LatencyStatistic::P50),
    ("median", LatencyStatistic::Median),
    ("p99", LatencyStatistic::P99),
    ("p999", LatencyStatistic::P999),
];
const UNITS: [(&str, TimeUnit); 3] =
    [("us", TimeUnit::Microseconds), ("ms", TimeUnit::Milliseconds), ("s", TimeUnit::Seconds)];

/// Names of the metrics that are one word, and what people call them.
fn plain() -> [(&'static str, PublishedMetric, &'static str); 9] {
    [
        ("throughput_per_s", PublishedMetric::Throughput, "throughput, ops/s"),
        ("relative_performance", PublishedMetric::RelativePerformance, "performance, times as fast"),
        ("duration_s", PublishedMetric::Duration, "job duration, s"),
        ("io_bytes", PublishedMetric::RequestBytes(RequestKinds::Both), "size of a device's request, bytes"),
        (
            "read_io_bytes",
            PublishedMetric::RequestBytes(RequestKinds::Reads),
            "size of a device's read, bytes",
        ),
        (
            "write_io_bytes",
            PublishedMetric::RequestBytes(RequestKinds::Writes),
            "size of a device's write, bytes",
        ),
        (
            "compaction_slowdown",
            PublishedMetric::CompactionSlowdown,
            "mean latency with a compaction to that without",
        ),
        ("usd_per_performance", PublishedMetric::UsdPerPerformance, "dollars for performance"),
        ("usd_per_tb", PublishedMetric::UsdPerTb, "dollars for capacity"),
    ]
}

impl TimeUnit {
    /// The factor for a time in microseconds.
    pub fn per_us(self) -> f64 {
        match self {
            TimeUnit::Microseconds => 1.0,
            TimeUnit::Milliseconds => 1e-3,
            TimeUnit::Seconds => 1e-6,
        }
    }
}

impl PublishedMetric {
    /// `throughput, ops/s`, `mean latency, ms`, `p99.9 read latency, ms`.
    pub fn describe(&self) -> String {
        if let Some((_, _, words)) = plain().into_iter().find(|(_, metric, _)| metric == self) {
            return words.to_owned();
        }
        let name = self.to_string();
        let Some((statistic, unit)) = name.split_once("_latency_") else { return name.replace('_', " ") };
        let (operation, statistic) = match statistic.rsplit_once('_') {
            Some((operation, statistic)) => (format!("{operation} "), statistic),
            None => (String::new(), statistic),
        };
        let statistic = if statistic == "p999" { "p99.9" } else { statistic };
        let unit = if unit == "us" { "µs" } else { unit };
        format!("{statistic} {operation}latency, {unit}")
    }
}

impl From<String> for PublishedMetric {
    fn from(name: String) -> Self {
        if let Some((_, metric, _)) = plain().into_iter().find(|(word, ..)| *word == name) {
            return metric;
        }
        latency(&name).unwrap_or(PublishedMetric::Other(name))
    }
}

fn latency(name: &str) -> Option<PublishedMetric> {
    let (statistic, unit) = name.split_once("_latency_")?;
    let (operation, statistic) = match statistic.rsplit_once('_') {
        Some((operation, statistic)) => (Some(operation.to_owned()), statistic),
        None => (None, statistic),
    };
    let (_, statistic) = STATISTICS.into_iter().find(|(word, _)| *word == statistic)?;
    let (_, unit) = UNITS.into_iter().find(|(word, _)| *word == unit)?;
    Some(PublishedMetric::Latency { operation, statistic, unit })
}

impl From<&str> for PublishedMetric {
    fn from(name: &str) -> Self {
        PublishedMetric::from(name.to_owned())
    }
}

impl From<PublishedMetric> for String {
    fn from(metric: PublishedMetric) -> Self {
        metric.to_string()
    }
}

impl fmt::Display for PublishedMetric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PublishedMetric::Other(name) => f.write_str(name),
            PublishedMetric::Latency { operation, statistic, unit } => {
                if let Some(operation) = operation {
                    write!(f, "{operation}_")?;
                }
                let statistic = STATISTICS.into_iter().find(|(_, candidate)| candidate == statistic);
                let unit = UNITS.into_iter().find(|(_, candidate)| candidate == unit);
                let (statistic, unit) = statistic.zip(unit).map_or(("", ""), |(one, other)| (one.0, other.0));
                write!(f, "{statistic}_latency_{unit}")
            }
            _ => {
                let name = plain().into_iter().find(|(_, metric, _)| metric == self);
                f.write_str(name.map_or("", |(name, ..)| name))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_names_keep_their_spelling() {
        let latencies = STATISTICS.into_iter().flat_map(|(statistic, _)| {
            UNITS.into_iter().flat_map(move |(unit, _)| {
                ["", "read_", "read_modify_write_"]
                    .map(|prefix| format!("{prefix}{statistic}_latency_{unit}"))
            })
        });
        let others = ["p95_latency_ms", "mean_latency_h", "speed", ""].map(str::to_owned);
        let names = plain().into_iter().map(|(name, ..)| name.to_owned()).chain(latencies);
        for name in names {
            let metric = PublishedMetric::from(name.as_str());
            assert!(!matches!(metric, PublishedMetric::Other(_)), "{name}");
            assert_eq!(metric.to_string(), name);
        }
        for name in others {
            assert_eq!(PublishedMetric::from(name.as_str()), PublishedMetric::Other(name));
        }
    }

    #[test]
    fn metrics_are_told_in_words() {
        let words = |name: &str| PublishedMetric::from(name).describe();
        assert_eq!(words("throughput_per_s"), "throughput, ops/s");
        assert_eq!(words("read_p999_latency_us"), "p99.9 read latency, µs");
        assert_eq!(words("p95_latency_ms"), "p95 latency, ms");
        assert_eq!(words("cpu_share"), "cpu share");
    }
}
