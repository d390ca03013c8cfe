//! Batch jobs: how long they take on each storage, and how the system spread what they wrote.
//!
//! A job has a duration and no rate: [`JobFigures`] holds no throughput and no latency, so that nothing can print one.

use std::collections::{BTreeMap, BTreeSet};

use underlay_record::{CacheUse, CertificateVerdict, JobRecord, RunRecord, StageRecord};

use crate::cell::activity::{RequestDirection, request_bytes};
use crate::cell::completed::{job_of, worst_verdict};
use crate::cell::cost::StorageCost;
use crate::cell::directories::{DirectoryFigures, directories};
use crate::statistics::ratio::EstimateRatio;
use crate::statistics::{IntervalEstimate, StandardError};

/// The figures of a job on one storage, over all completed repetitions, in modelled time.
///
/// Bytes are those of this machine and of one repetition, on average.
#[derive(Clone, Debug, PartialEq)]
pub struct JobFigures {
    /// Completed repetitions.
    pub repetitions: usize,
    /// The mean, with the interval from the spread of repetitions; without one where the job ran once.
    pub duration_s: IntervalEstimate,
    /// The baseline's duration to this one: how many times as fast. Absent on the baseline itself, and where it has
    /// none.
    pub performance: Option<EstimateRatio>,
    /// From the first task that entered a phase to the last that left it. Phases overlap.
    pub phases_s: BTreeMap<String, IntervalEstimate>,
    /// Attempts that ended well in one repetition, by kind.
    pub tasks: BTreeMap<String, u64>,
    /// Attempts that failed or were killed, over all repetitions.
    pub lost_tasks: u64,
    pub input_bytes: f64,
    pub output_bytes: f64,
    pub shuffled_bytes: f64,
    /// The system's own counters.
    pub counters: BTreeMap<String, f64>,
    /// Mean bytes of a request to the devices; absent where there was none.
    pub io_bytes: Option<IntervalEstimate>,
    pub read_io_bytes: Option<IntervalEstimate>,
    pub write_io_bytes: Option<IntervalEstimate>,
    pub directories: Vec<DirectoryFigures>,
    /// Where the time went in the first completed repetition, in the order in which stages began.
    pub stages: Vec<StageRecord>,
    /// How the output came to be visible, by its own word.
    pub committer: Option<String>,
    /// The first completed repetition's use of a cache in front of the store.
    pub cache: Option<CacheUse>,
    /// The worst of the repetitions; absent when none carries a certificate.
    pub verdict: Option<CertificateVerdict>,
    pub cost: Option<StorageCost>,
}

impl JobFigures {
    /// None unless a repetition completed with a job that took time.
    pub fn from_records(records: &[&RunRecord]) -> Option<JobFigures> {
        let completed: Vec<&RunRecord> =
            records.iter().copied().filter(|record| job_of(record).is_some()).collect();
        let jobs: Vec<&JobRecord> = completed.iter().filter_map(|record| job_of(record)).collect();
        let first = *jobs.first()?;
        let sum = |pick: fn(&JobRecord) -> f64| jobs.iter().map(|job| pick(job)).sum::<f64>();
        let mean = |pick: fn(&JobRecord) -> f64| sum(pick) / jobs.len() as f64;
        let durations: Vec<f64> = jobs.iter().map(|job| job.duration_s).collect();
        Some(JobFigures {
            repetitions: jobs.len(),
            duration_s: mean_of(&durations)?,
            performance: None,
            phases_s: group_by_name(&jobs, |job| &job.phases_s)
                .into_iter()
                .filter_map(|(name, values)| Some((name, mean_of(&values)?)))
                .collect(),
            tasks: first.tasks.clone(),
            lost_tasks: jobs.iter().map(|job| job.lost_tasks).sum(),
            input_bytes: mean(|job| job.input_bytes as f64),
            output_bytes: mean(|job| job.output_bytes as f64),
            shuffled_bytes: mean(|job| job.shuffled_bytes as f64),
            counters: group_by_name(&jobs, |job| &job.counters)
                .into_iter()
                .map(|(name, values)| (name, values.iter().sum::<f64>() / values.len().max(1) as f64))
                .collect(),
            io_bytes: request_bytes(&completed, RequestDirection::Both),
            read_io_bytes: request_bytes(&completed, RequestDirection::Reads),
            write_io_bytes: request_bytes(&completed, RequestDirection::Writes),
            directories: directories(&completed),
            stages: first.stages.clone(),
            committer: first.committer.clone(),
            cache: first.cache.clone(),
            verdict: worst_verdict(records),
            cost: completed.first().and_then(|record| StorageCost::from_storage(&record.storage)),
        })
    }
}

fn mean_of(values: &[f64]) -> Option<IntervalEstimate> {
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    // A job has one duration: only the spread of repetitions tells how sure it is.
    (!values.is_empty()).then(|| IntervalEstimate::combine(mean, None, StandardError::between(values)))
}

/// The values of every name that any job has, in each job that has it.
fn group_by_name<'a>(
    jobs: &[&'a JobRecord],
    pick: fn(&'a JobRecord) -> &'a BTreeMap<String, f64>,
) -> BTreeMap<String, Vec<f64>> {
    let mut all: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for job in jobs {
        for (name, value) in pick(job).iter().filter(|(_, value)| value.is_finite()) {
            all.entry(name.clone()).or_default().push(*value);
        }
    }
    all
}

/// The order of a job's phases in the report: as work passes through them, then others by name.
pub(crate) fn phases<'a>(figures: impl Iterator<Item = &'a JobFigures>) -> Vec<&'a str> {
    let names: BTreeSet<&str> = figures.flat_map(|one| one.phases_s.keys().map(String::as_str)).collect();
    let mut names: Vec<&str> = names.into_iter().collect();
    let place = |name: &str| match name {
        "startup" => 0,
        "map" => 1,
        "shuffle" => 2,
        "merge" | "sort" => 3,
        "reduce" => 4,
        _ => 5,
    };
    names.sort_by_key(|name| place(name));
    names
}

/// A job in words where its name alone says little: `terasort: sorts what teragen wrote`.
pub(crate) fn title(name: &str) -> String {
    let metric = match name {
        "teragen" => "writes generated rows to HDFS",
        "terasort" => "sorts them, so it reads, shuffles and writes as much",
        "teravalidate" => "reads the sorted rows and checks their order",
        "hdfs-write" => "writes to HDFS, one replica",
        "wordcount" => "reads and counts words, with much CPU and little I/O",
        "shuffle" => "only shuffles",
        "shuffle-compressed" => "only shuffles, with compressed map output",
        _ => return format!("Job {name}"),
    };
    format!("Job {name}: {metric}")
}
