//! The percentiles that fio prints for each of its jobs, and whether they rest on enough requests.

use std::collections::BTreeMap;

use serde_json::Value;

/// So many requests must lie beyond a percentile.
const REQUESTS_BEYOND: f64 = 10.0;
/// Nobody lists more; fio takes 20.
const MAX_PERCENTILES: usize = 100;

/// One kind of latency over fio's jobs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct JobPercentiles {
    /// In order, each with the highest latency that a job has for it.
    pub(super) figures: Vec<(f64, f64)>,
    /// All that were printed.
    pub(super) printed: Vec<f64>,
    /// Those with fewer than ten requests beyond them, in any job: the highest of the others would hide that job.
    pub(super) too_few: Vec<f64>,
}

/// One percentile over all jobs.
#[derive(Clone, Copy)]
struct SlowestPercentile {
    latency: f64,
    /// As many requests has the job with the fewest.
    requests: f64,
}

/// The wanted percentiles in the latencies of each job, such as fio's `clat_ns`.
///
/// # Errors
/// A percentile that is none.
pub(super) fn read_jobs(all: &[&Value], is_wanted: impl Fn(f64) -> bool) -> Result<JobPercentiles, String> {
    let mut slowest: BTreeMap<u64, SlowestPercentile> = BTreeMap::new();
    for one in all {
        let requests = one.get("N").and_then(Value::as_f64).unwrap_or(0.0);
        for (key, value) in one.get("percentile").and_then(Value::as_object).into_iter().flatten() {
            let percentile = key.parse::<f64>().ok().filter(|percentile| (0.0..=100.0).contains(percentile));
            let (Some(percentile), Some(latency)) = (percentile, value.as_f64()) else {
                return Err(format!(
                    "fio's percentile `{}` is none",
                    key.chars().take(40).collect::<String>()
                ));
            };
            // Of numbers that are not negative, the bits are in order.
            let entry = slowest
                .entry((percentile + 0.0).to_bits())
                .or_insert(SlowestPercentile { latency, requests });
            entry.latency = entry.latency.max(latency);
            entry.requests = entry.requests.min(requests);
        }
    }
    let mut found = JobPercentiles::default();
    let all = slowest.into_iter().map(|(bits, slowest)| (f64::from_bits(bits), slowest));
    for (percentile, slowest) in all.filter(|(percentile, _)| is_wanted(*percentile)).take(MAX_PERCENTILES) {
        found.printed.push(percentile);
        match is_supported(percentile, slowest.requests) {
            true => found.figures.push((percentile, slowest.latency)),
            false => found.too_few.push(percentile),
        }
    }
    Ok(found)
}

/// The product is compared with room for what floating point makes of 99.9 %.
fn is_supported(percentile: f64, requests: f64) -> bool {
    requests * (100.0 - percentile) / 100.0 > REQUESTS_BEYOND - 1e-6
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(jobs: &[Value]) -> JobPercentiles {
        read_jobs(&jobs.iter().collect::<Vec<_>>(), |_| true).unwrap()
    }

    #[test]
    fn percentile_needs_ten_requests_beyond_it() {
        for (percentile, enough) in [(50.0, 20.0), (99.0, 1000.0), (99.9, 10_000.0), (99.99, 100_000.0)] {
            assert!(is_supported(percentile, enough), "p{percentile} of {enough}");
            assert!(!is_supported(percentile, enough - 1.0), "p{percentile} of {}", enough - 1.0);
        }
        assert!(!is_supported(100.0, 1e12), "nothing lies beyond the highest");
        let of_3676 = json!({ "N": 3676, "percentile": { "99.000000": 7, "99.900000": 9 } });
        let found = read(&[of_3676]);
        assert_eq!((found.figures, found.too_few), (vec![(99.0, 7.0)], vec![99.9]));
        let without_count = read(&[json!({ "percentile": { "50.000000": 7 } })]);
        assert_eq!(without_count.too_few, [50.0]);
    }

    #[test]
    fn percentile_with_too_few_requests_is_dropped() {
        let many = json!({ "N": 100_000, "percentile": { "50.000000": 4, "99.000000": 7 } });
        let few = json!({ "N": 40, "percentile": { "50.000000": 9, "99.000000": 5 } });
        let found = read(&[many, few]);
        assert_eq!(found.figures, [(50.0, 9.0)]);
        assert_eq!((found.printed, found.too_few), (vec![50.0, 99.0], vec![99.0]));
    }

    #[test]
    fn invalid_percentile_is_reported() {
        let wrong = json!({ "N": 5, "percentile": { "mean": 4 } });
        assert!(read_jobs(&[&wrong], |_| true).unwrap_err().contains("`mean`"));
    }
}
