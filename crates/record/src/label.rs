//! How tables call a cell's workload.

use crate::cell::{Cell, OfferedRate, RatePart, RecordedWork, RequestWork};

impl Cell {
    /// The mix or the job, and what else varies in the study: `a`, or `a, zipfian, 256 GB, 20,000/s`.
    pub fn label(&self) -> String {
        self.joined(true)
    }

    /// The same without the rate that is offered or looked for.
    pub fn label_without_rate(&self) -> String {
        self.joined(false)
    }

    /// The same below a heading that names the mix: `zipfian, 256 GB`, or nothing.
    pub fn label_in_mix(&self) -> String {
        match &self.work {
            RecordedWork::Requests(requests) if !self.named.workload => {
                self.properties(requests, true).join(", ")
            }
            RecordedWork::Job(_) | RecordedWork::Benchmark(_) if !self.named.workload => String::new(),
            _ => self.label(),
        }
    }

    fn joined(&self, with_rate: bool) -> String {
        let mut parts = vec![match self.named.workload {
            true => format!("{} {}", self.workload, self.mix_or_job()),
            false => self.mix_or_job().to_owned(),
        }];
        if let RecordedWork::Requests(requests) = &self.work {
            parts.extend(self.properties(requests, with_rate));
        }
        parts.join(", ")
    }

    fn properties(&self, requests: &RequestWork, with_rate: bool) -> Vec<String> {
        let named = self.named;
        let mut parts = Vec::new();
        if named.distribution {
            parts.push(requests.distribution.clone());
        }
        if named.data {
            parts.push(self.data.clone().unwrap_or_else(|| format!("{} records", requests.records)));
        }
        if named.threads {
            let ending = if requests.threads == 1 { "" } else { "s" };
            parts.push(format!("{} thread{ending}", requests.threads));
        }
        if with_rate {
            parts.extend(rate(&requests.rate, named.rate));
        }
        if requests.compacts_at.is_some() {
            parts.push("compacted midway".to_owned());
        }
        parts
    }
}

/// A rate that changes or is looked for is never left out.
fn rate(rate: &OfferedRate, is_named: bool) -> Option<String> {
    match rate {
        OfferedRate::Highest { within: latency_limit } => Some(format!("highest rate with {latency_limit}")),
        OfferedRate::Changing { parts, wall_s, .. } => Some(changing(parts, *wall_s)),
        OfferedRate::Steady { per_s } => is_named.then(|| format!("{}/s", grouped(*per_s))),
        OfferedRate::Unthrottled => is_named.then(|| "unthrottled".to_owned()),
    }
}

/// `ramp 1,000/s to 50,000/s`, or `steps 500/s, 1,000/s of 10 s each`.
fn changing(parts: &[RatePart], wall_s: Option<f64>) -> String {
    let length = |words: &str, end: &str| {
        wall_s.map_or(String::new(), |wall_s| format!(" {words} {}{end}", wall(wall_s)))
    };
    match parts {
        [RatePart { from_per_s, to_per_s, .. }] => {
            format!("ramp {}/s to {}/s{}", grouped(*from_per_s), grouped(*to_per_s), length("over", ""))
        }
        steps => {
            let rates: Vec<String> =
                steps.iter().map(|step| format!("{}/s", grouped(step.to_per_s))).collect();
            format!("steps {}{}", rates.join(", "), length("of", " each"))
        }
    }
}

/// In the largest unit that makes it a whole number: `90 s`, `2 min`, `250 ms`.
fn wall(seconds: f64) -> String {
    let milliseconds = (seconds * 1e3).round() as u64;
    let units = [(3_600_000, "h"), (60_000, "min"), (1_000, "s")];
    match units.into_iter().find(|(unit, _)| milliseconds > 0 && milliseconds.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{} {name}", milliseconds / unit),
        None => format!("{milliseconds} ms"),
    }
}

/// A rate with its thousands apart: `20,000`, `0.5`.
fn grouped(rate: f64) -> String {
    let text = rate.to_string();
    thousands_apart(&text)
}

/// The decimal digits of a number without a sign, those before the point in groups of three: `12,345.678`.
pub fn thousands_apart(number: &str) -> String {
    let (whole, fraction) = number.split_once('.').map_or((number, None), |(a, b)| (a, Some(b)));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    match fraction {
        Some(fraction) => format!("{grouped}.{fraction}"),
        None => grouped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::{CellLabels, JobWork};

    fn cell(work: RecordedWork, named: CellLabels) -> Cell {
        Cell {
            id: String::new(),
            system: "rocksdb".to_owned(),
            storage: "hdd".to_owned(),
            workload: "ycsb".to_owned(),
            servers: 1,
            data_bytes: 256_000_000_000,
            data: Some("256 GB".to_owned()),
            work,
            named,
        }
    }

    fn requests(threads: u32, rate: OfferedRate) -> RecordedWork {
        RecordedWork::Requests(RequestWork {
            mix: "a".to_owned(),
            distribution: "zipfian".to_owned(),
            threads,
            records: 7,
            rate,
            compacts_at: None,
        })
    }

    #[test]
    fn only_what_varies_is_named() {
        let all = CellLabels { workload: false, distribution: true, data: true, threads: true, rate: true };
        let steady = cell(requests(1, OfferedRate::Steady { per_s: 20_000.0 }), all);
        assert_eq!(steady.label(), "a, zipfian, 256 GB, 1 thread, 20,000/s");
        assert_eq!(steady.label_in_mix(), "zipfian, 256 GB, 1 thread, 20,000/s");
        assert_eq!(steady.label_without_rate(), "a, zipfian, 256 GB, 1 thread");
        let plain = cell(requests(2, OfferedRate::Unthrottled), CellLabels::default());
        assert_eq!((plain.label(), plain.label_in_mix()), ("a".to_owned(), String::new()));
        let by_name =
            Cell { named: CellLabels { workload: true, threads: true, ..CellLabels::default() }, ..plain };
        assert_eq!(by_name.label(), "ycsb a, 2 threads");
        assert_eq!(by_name.label_in_mix(), by_name.label());
    }

    #[test]
    fn changing_or_searched_rate_is_always_named() {
        let step = |per_s| RatePart { from_per_s: per_s, to_per_s: per_s, length_s: 1.0 };
        let label = |rate| cell(requests(1, rate), CellLabels::default()).label();
        let parts = vec![step(500.0), step(1_000.0)];
        let steps = OfferedRate::Changing { mean_per_s: 1.0, parts, wall_s: Some(10.0) };
        assert_eq!(label(steps), "a, steps 500/s, 1,000/s of 10 s each");
        let parts = vec![RatePart { from_per_s: 1e3, to_per_s: 5e4, length_s: 1.0 }];
        let ramp = |wall_s| OfferedRate::Changing { mean_per_s: 1.0, parts: parts.clone(), wall_s };
        assert_eq!(label(ramp(None)), "a, ramp 1,000/s to 50,000/s");
        assert_eq!(label(ramp(Some(120.0))), "a, ramp 1,000/s to 50,000/s over 2 min");
        let highest = OfferedRate::Highest { within: "p99 within 10 ms".to_owned() };
        assert_eq!(label(highest), "a, highest rate with p99 within 10 ms");
    }

    #[test]
    fn job_label_is_its_name() {
        let job = cell(RecordedWork::Job(JobWork { name: "terasort".to_owned() }), CellLabels::default());
        assert_eq!((job.label(), job.label_in_mix()), ("terasort".to_owned(), String::new()));
    }
}
