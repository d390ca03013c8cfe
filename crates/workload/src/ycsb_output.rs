//! A measurement as YCSB prints it, for scripts that read YCSB's output.

use std::fmt::Write as _;

use underlay_record::{Histogram, Measured, OperationStats};

/// YCSB's summary: `[OVERALL], RunTime(ms), 10110` and so on, one figure a line, latencies in microseconds.
///
/// `[READ]` is the service time and `[Intended-READ]` the latency from the intended start, as with YCSB's
/// `measurement.interval=both`; in a closed loop they are the same and only the first is printed. `percentiles` are in
/// percent (YCSB's default is 50, 95, 99).
pub fn summary(measured: &Measured, percentiles: &[f64]) -> String {
    let mut text = String::new();
    line(&mut text, "OVERALL", "RunTime(ms)", &format!("{:.0}", measured.duration_s * 1e3));
    line(&mut text, "OVERALL", "Throughput(ops/sec)", &format!("{}", measured.throughput_per_s));
    for (kind, stats) in &measured.by_operation {
        let name = kind.to_uppercase();
        operations(&mut text, &name, stats.count, &stats.service.histogram, percentiles);
        returns(&mut text, &name, stats);
        if stats.latency.histogram != stats.service.histogram {
            let intended = &stats.latency.histogram;
            operations(&mut text, &format!("Intended-{name}"), intended.count(), intended, percentiles);
        }
    }
    text
}

fn line(text: &mut String, section: &str, metric: &str, value: &str) {
    writeln!(text, "[{section}], {metric}, {value}").expect("writing to memory cannot fail");
}

fn operations(text: &mut String, name: &str, count: u64, latencies: &Histogram, percentiles: &[f64]) {
    let summary = latencies.summary_us();
    line(text, name, "Operations", &count.to_string());
    line(text, name, "AverageLatency(us)", &summary.mean.to_string());
    line(text, name, "MinLatency(us)", &format!("{:.0}", summary.min));
    line(text, name, "MaxLatency(us)", &format!("{:.0}", summary.max));
    for &percentile in percentiles {
        let metric = format!("{}PercentileLatency(us)", ordinal(percentile));
        line(text, name, &metric, &format!("{:.0}", latencies.quantile_us(percentile / 100.0)));
    }
}

/// Answers by YCSB's status names.
fn returns(text: &mut String, name: &str, stats: &OperationStats) {
    let counts = [
        ("OK", stats.count - stats.missing.min(stats.count)),
        ("NOT_FOUND", stats.missing),
        ("SERVICE_UNAVAILABLE", stats.throttled),
        ("ERROR", stats.errors),
    ];
    for (status, count) in counts.into_iter().filter(|&(_, count)| count > 0) {
        line(text, name, &format!("Return={status}"), &count.to_string());
    }
}

/// `95th`, `51st`, `99.9`: whole percentiles have an ending, others none.
fn ordinal(percentile: f64) -> String {
    if percentile.fract() != 0.0 {
        return percentile.to_string();
    }
    let whole = percentile as u64;
    let ending = match (whole % 100, whole % 10) {
        (11..=13, _) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
        _ => "th",
    };
    format!("{whole}{ending}")
}
