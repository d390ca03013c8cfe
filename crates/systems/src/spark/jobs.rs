//! The jobs that a study can name: what each reads and writes, and what the record has of it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use underlay_record::{JobRecord, StageRecord};

use super::NAME;
use super::committer::OutputCommitter;
use super::config::SparkConfig;
use super::event_log::{JobEvents, SparkStage};
use crate::ceph::StoreRequest;
use crate::system::{JobRequest, JobTakes, SystemError};

/// Ordered so that each job finds the output of earlier ones.
pub(super) const JOBS: &[(&str, &str)] = &[
    ("teragen", "writes rows of 100 bytes to the store"),
    ("terasort", "sorts them: as much input as shuffle as output"),
    ("teravalidate", "reads terasort's output and checks its order"),
    ("kmeans", "groups points around known centres: high CPU load"),
    ("tpcds", "54 queries derived from TPC-DS, one after the other"),
    ("tpcds-few", "nine of them"),
];
/// Of the 103 in Spark's tests, by their numbers: some that DuckDB understands as well.
const QUERIES: [&str; 54] = [
    "q1", "q2", "q3", "q4", "q6", "q7", "q8", "q9", "q10", "q11", "q13", "q15", "q17", "q18", "q19", "q22",
    "q23a", "q24a", "q25", "q26", "q27", "q28", "q29", "q30", "q31", "q33", "q34", "q35", "q38", "q39a",
    "q41", "q42", "q43", "q44", "q45", "q46", "q47", "q48", "q49", "q50", "q51", "q52", "q53", "q55", "q56",
    "q57", "q59", "q60", "q61", "q62", "q63", "q65", "q68", "q69",
];
/// `tpcds-few` has one in so many, from the second one on: these find rows in little data too.
const FEW: usize = 6;
/// The tables of this many bytes of text are scale 1.
const SCALE_BYTES: f64 = 1e9;
const ROW_BYTES: u64 = 100;
/// Twenty numbers.
const POINT_BYTES: u64 = 160;
/// Less time without a task between two stages is not worth a line.
const MIN_GAP_S: f64 = 0.02;
/// Two clocks of one host, read one after the other; and by how much one of them is off that a time server corrects
/// little by little.
const CLOCKS_APART_S: f64 = 0.1;
const SLEWED_SHARE: f64 = 0.001;

/// How a job commits its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommitMode {
    Renamed,
    /// Within an object store.
    Copied,
    /// Renamed in a cache, which stores it behind the job.
    StoredLater,
}

/// Roughly what a job takes, from runs in slow motion x6 and x12 on 4 cores, over 50 to 400 MB; the queries from two,
/// on object stores. A part of it is the same for little data.
pub(super) fn takes(job: &str, data_bytes: u64, commit: CommitMode) -> Option<JobTakes> {
    let of_100_mb = data_bytes as f64 / 1e8;
    let per_commit = |renamed: f64, copied: f64, stored_later: f64| match commit {
        CommitMode::Renamed => renamed,
        CommitMode::Copied => copied,
        CommitMode::StoredLater => stored_later,
    };
    let stored_later = |of_100_mb_s: f64| per_commit(0.0, 0.0, of_100_mb_s) * of_100_mb;
    let (modelled_s, around_s, storing_s) = match job {
        "teragen" => (1.0 + per_commit(1.5, 4.5, 1.5) * of_100_mb, 3.0, stored_later(3.0)),
        "terasort" => {
            let modelled_s = per_commit(1.0, 7.0, 2.5) + per_commit(3.0, 4.6, 1.9) * of_100_mb;
            (modelled_s, 10.0 + 18.0 * of_100_mb, stored_later(5.5))
        }
        "teravalidate" => (1.0 + 2.0 * of_100_mb, 3.0, 0.0),
        "kmeans" => (2.0 + 12.0 * of_100_mb, 4.0 + 11.0 * of_100_mb, stored_later(3.0)),
        "tpcds-few" => (18.0 + 2.5 * of_100_mb, 60.0 + 20.0 * of_100_mb, stored_later(3.0)),
        "tpcds" => (100.0 + 45.0 * of_100_mb, 60.0 + 70.0 * of_100_mb, stored_later(3.0)),
        _ => return None,
    };
    let [modelled, around, storing] = [modelled_s, around_s, storing_s].map(Duration::try_from_secs_f64);
    Some(JobTakes { modelled: modelled.ok()?, around: around.ok()?, storing: storing.ok()? })
}

/// One request to the driver.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DriverRequest {
    /// As the driver calls it.
    pub job: &'static str,
    pub during: &'static str,
    /// The names of what it reads and writes; the store makes URLs of them.
    pub input: Option<&'static str>,
    pub output: Option<&'static str>,
    pub options: BTreeMap<&'static str, Value>,
    /// Whether its output can be checked by itself.
    pub is_checked: bool,
}

impl DriverRequest {
    /// The step that is the job itself.
    ///
    /// # Errors
    /// When there is no such job.
    pub(super) fn from_job(config: &SparkConfig, job: &JobRequest) -> Result<DriverRequest, SystemError> {
        let parts = u64::from(job.maps.unwrap_or(0));
        let parts = if parts > 0 {
            parts
        } else {
            (2 * config.slots()).max(job.data_bytes.div_ceil(config.block_bytes))
        };
        let reduces = job.reduces.map_or(2 * config.slots(), u64::from);
        let rows = (job.data_bytes / ROW_BYTES).max(1);
        let points = (job.data_bytes / POINT_BYTES).max(1);
        let rows_of = |partitions: u64| -> BTreeMap<&'static str, Value> {
            [
                ("rows", json!(rows)),
                ("seed", json!(seed(job))),
                ("compressibility", json!(job.compressibility)),
                ("partitions", json!(partitions)),
            ]
            .into()
        };
        let points_of: BTreeMap<&'static str, Value> =
            [("points", json!(points)), ("seed", json!(seed(job))), ("partitions", json!(parts))].into();
        let step = |job, during, input, output, options, is_checked| DriverRequest {
            job,
            during,
            input,
            output,
            options,
            is_checked,
        };
        // At least a thousandth: tables without rows would have nothing to answer.
        let scale = (job.data_bytes as f64 / SCALE_BYTES * 1000.0).round().max(1.0) / 1000.0;
        let tables_of = |names: Vec<&'static str>| -> BTreeMap<&'static str, Value> {
            [("scale", json!(scale)), ("names", json!(names)), ("partitions", json!(parts))].into()
        };
        let tables = Some("tpcds-tables");
        let rows = Some("teragen");
        let sorted = Some("terasort");
        Ok(match job.name.as_str() {
            "teragen" => step("teragen", "running teragen", None, rows, rows_of(parts), true),
            "terasort" => step("terasort", "running terasort", rows, sorted, rows_of(reduces), true),
            "teravalidate" => {
                step("teravalidate", "running teravalidate", sorted, None, rows_of(reduces), false)
            }
            "kmeans-points" => step(
                "kmeans-points",
                "making points for kmeans",
                None,
                Some("kmeans-points"),
                points_of,
                false,
            ),
            "kmeans" => step("kmeans", "running kmeans", Some("kmeans-points"), None, points_of, true),
            "tpcds-tables" => {
                step("tpcds-tables", "making tables for tpcds", None, tables, tables_of(Vec::new()), false)
            }
            "tpcds" => step("tpcds", "running tpcds", tables, None, tables_of(QUERIES.to_vec()), true),
            "tpcds-few" => {
                let few = QUERIES.iter().copied().skip(1).step_by(FEW).collect();
                step("tpcds", "running tpcds-few", tables, None, tables_of(few), true)
            }
            unknown => {
                let names: Vec<&str> = JOBS.iter().map(|&(name, _)| name).collect();
                let problem = format!("there is no job '{unknown}': expected one of {}", names.join(", "));
                return Err(SystemError::Setting { system: NAME, key: "jobs".to_owned(), problem });
            }
        })
    }

    /// The step that makes what this one reads.
    pub(super) fn input_step(
        &self,
        config: &SparkConfig,
        job: &JobRequest,
    ) -> Result<Option<DriverRequest>, SystemError> {
        let step_of = |name: &str| {
            DriverRequest::from_job(config, &JobRequest { name: name.to_owned(), ..job.clone() }).map(Some)
        };
        self.input.map_or(Ok(None), step_of)
    }

    /// The identity of its output: made once, it need not be made again.
    pub(super) fn fingerprint(&self) -> String {
        format!("{} {:?}", self.job, self.options)
    }
}

/// Java's numbers have a sign.
fn seed(job: &JobRequest) -> u64 {
    job.seed & 0x7fff_ffff
}

/// Checks that the committer that was asked for is the one that wrote an output, and names it.
///
/// # Errors
/// When it was another one.
pub(super) fn committed_by(
    asked: OutputCommitter,
    during: &'static str,
    result: &Value,
) -> Result<String, SystemError> {
    let found = result["committer"].as_str().unwrap_or("none");
    if found != asked.name() {
        let problem =
            format!("the committer '{}' should have written the output, and '{found}' did", asked.name());
        return Err(SystemError::failed(NAME, during, problem));
    }
    Ok(asked.name())
}

/// When a job ran, as its driver tells, by this machine's clocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct JobTiming {
    /// In seconds since 1970, as are the times of events and requests.
    began_s: f64,
    ended_s: f64,
    /// By the clock that nobody sets.
    took_s: f64,
}

impl JobTiming {
    /// # Errors
    /// When the driver does not tell, or the clock was set meanwhile: events and requests have wrong places then.
    pub(super) fn told_by(answer: &Value, during: &'static str) -> Result<JobTiming, SystemError> {
        let failed = |problem: String| SystemError::failed(NAME, during, problem);
        let time = |name: &str| {
            answer[name].as_f64().ok_or_else(|| failed(format!("the driver does not tell its '{name}'")))
        };
        let ran = JobTiming { began_s: time("began_s")?, ended_s: time("ended_s")?, took_s: time("took_s")? };
        let set_s = ran.ended_s - ran.began_s - ran.took_s;
        match set_s.abs() > CLOCKS_APART_S + SLEWED_SHARE * ran.took_s {
            true => Err(failed(format!(
                "this host's clock was set by {set_s:.1} s meanwhile, so times can't be assigned to stages: run it again"
            ))),
            false => Ok(ran),
        }
    }
}

/// The record of a job.
pub(super) fn record(
    name: &str,
    JobTiming { began_s, ended_s, took_s }: JobTiming,
    events: &JobEvents,
    requests: &[StoreRequest],
    committer: Option<String>,
    result: &Value,
) -> JobRecord {
    let stages = events.stages();
    let sum =
        |pick: fn(&SparkStage) -> u64| stages.iter().map(|stage| pick(stage)).fold(0, u64::saturating_add);
    let mut counters = BTreeMap::new();
    counters.insert("input_records".to_owned(), sum(|stage| stage.input_records) as f64);
    counters.insert("output_records".to_owned(), sum(|stage| stage.output_records) as f64);
    let kept_bytes = sum(|stage| stage.kept_bytes);
    if kept_bytes > 0 {
        counters.insert("read_from_memory_bytes".to_owned(), kept_bytes as f64);
    }
    if committer.is_some() {
        let measured = events.job_commit_s.map(|commit_s| (commit_s * 1e3).round());
        counters.extend(measured.map(|commit_ms| ("job_commit_wall_ms".to_owned(), commit_ms)));
    }
    for name in ["committed_files", "committed_records"] {
        counters.extend(result[name].as_f64().map(|count| (name.to_owned(), count)));
    }
    if let Some(answers) = result["answers"].as_object() {
        let empty = answers.values().filter(|rows| rows.as_array().is_some_and(Vec::is_empty)).count();
        counters.insert("queries_without_rows".to_owned(), empty as f64);
    }
    // Of queries, by this machine's clock: nobody divides slow motion out of counters.
    for (query, took_s) in result["seconds"].as_object().into_iter().flatten() {
        counters.insert(format!("{query}_wall_ms"), (took_s.as_f64().unwrap_or_default() * 1e3).round());
    }
    let mut stage_records = with_gaps(&stages, began_s, ended_s);
    // Making the job's input, and checking its output, are no part of it. An unreadable request has no time of its own.
    let is_of_job =
        |request: &&StoreRequest| (began_s..=ended_s).contains(&request.at_s) || !request.is_readable();
    let requests: Vec<&StoreRequest> = requests.iter().filter(is_of_job).collect();
    assign(&mut stage_records, &requests, began_s);
    for request in requests {
        for (counter, count) in
            [("requests", 1), ("sent_bytes", request.sent_bytes), ("received_bytes", request.received_bytes)]
        {
            *counters.entry(format!("s3.{}.{counter}", request.kind)).or_insert(0.0) += count as f64;
        }
    }
    let mut phases: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for stage in &stage_records {
        let ran_s = (stage.began_s, stage.began_s + stage.duration_s);
        phases.entry(stage.name.clone()).or_default().push(ran_s);
    }
    JobRecord {
        name: name.to_owned(),
        duration_s: took_s,
        wall_s: 0.0,
        phases_s: phases.into_iter().map(|(name, times)| (name, covered_s(times))).collect(),
        tasks: [("task".to_owned(), sum(|stage| stage.tasks))].into(),
        lost_tasks: sum(|stage| stage.lost_tasks),
        input_bytes: sum(|stage| stage.input_bytes),
        output_bytes: sum(|stage| stage.output_bytes),
        shuffled_bytes: sum(|stage| stage.shuffle_write_bytes),
        counters,
        directories: Vec::new(),
        stages: stage_records,
        committer,
        cache: None,
    }
}

/// How long at least one of these times lasted: stages may run at once.
fn covered_s(mut times: Vec<(f64, f64)>) -> f64 {
    times.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut covered_s, mut until_s) = (0.0, f64::NEG_INFINITY);
    for (from_s, to_s) in times {
        covered_s += (to_s - from_s.max(until_s)).max(0.0);
        until_s = until_s.max(to_s);
    }
    covered_s
}

/// The stages with what lies between them: before the first task, between stages, and behind the last one.
fn with_gaps(stages: &[&SparkStage], began_s: f64, ended_s: f64) -> Vec<StageRecord> {
    let mut stage_records: Vec<StageRecord> = Vec::new();
    let mut until_s = began_s;
    let gap = |stage_records: &mut Vec<StageRecord>, name: &str, from_s: f64, to_s: f64| {
        if to_s - from_s >= MIN_GAP_S {
            stage_records.push(StageRecord {
                name: name.to_owned(),
                began_s: from_s - began_s,
                duration_s: to_s - from_s,
                ..StageRecord::default()
            });
        }
    };
    for stage in stages {
        gap(&mut stage_records, "driver", until_s, stage.began_s);
        stage_records.push(StageRecord {
            name: stage.name(),
            began_s: (stage.began_s - began_s).max(0.0),
            duration_s: stage.ended_s - stage.began_s,
            tasks: stage.tasks,
            time: stage.time,
            input_bytes: stage.input_bytes,
            output_bytes: stage.output_bytes,
            shuffle_read_bytes: stage.shuffle_read_bytes,
            shuffle_write_bytes: stage.shuffle_write_bytes,
            requests: BTreeMap::new(),
        });
        until_s = until_s.max(stage.ended_s);
    }
    // Only what writes commits.
    let wrote = stages.last().is_some_and(|stage| stage.output_bytes > 0);
    gap(&mut stage_records, if wrote { "commit" } else { "driver" }, until_s, ended_s);
    stage_records
}

/// Counts each request in the stage during which it came.
fn assign(stages: &mut [StageRecord], requests: &[&StoreRequest], began_s: f64) {
    for request in requests {
        let at_s = request.at_s - began_s;
        // The latest that ran: stages that run at once share a store, and nobody tells whose a request is. Between two
        // stages it is the one before, and only what is too short for a line of its own comes before the first.
        let runs = |stage: &StageRecord| (stage.began_s..stage.began_s + stage.duration_s).contains(&at_s);
        let place = stages.iter().rposition(runs);
        let place = place.or_else(|| stages.iter().rposition(|stage| stage.began_s <= at_s)).unwrap_or(0);
        if let Some(stage) = stages.get_mut(place) {
            request.count(&mut stage.requests);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(name: &str) -> JobRequest {
        JobRequest {
            name: name.to_owned(),
            data_bytes: 64 << 20,
            maps: None,
            reduces: Some(3),
            compressibility: 0.5,
            seed: u64::MAX,
            limit: std::time::Duration::from_secs(60),
        }
    }

    #[test]
    fn jobs_find_output_of_earlier_jobs() {
        let config = SparkConfig::default();
        let mut made = Vec::new();
        for &(name, _) in JOBS {
            let step = DriverRequest::from_job(&config, &request(name)).unwrap();
            let before = step.input_step(&config, &request(name)).unwrap();
            assert_eq!(before.map(|step| step.output), step.input.map(Some), "{name}");
            made.push(step.fingerprint());
        }
        made.dedup();
        assert_eq!(made.len(), JOBS.len());
        let error = DriverRequest::from_job(&config, &request("wordcount")).unwrap_err().to_string();
        assert!(error.contains("there is no job 'wordcount'") && error.contains("terasort"), "{error}");
        let terasort = DriverRequest::from_job(&config, &request("terasort")).unwrap();
        assert_eq!(
            (&terasort.options["partitions"], &terasort.options["seed"]),
            (&json!(3), &json!(0x7fff_ffff))
        );
    }

    #[test]
    fn output_of_another_committer_is_no_result() {
        let answer = json!({ "committer": "file-v2" });
        assert_eq!(committed_by(OutputCommitter::FileV2, "testing", &answer).unwrap(), "file-v2");
        let error = committed_by(OutputCommitter::Magic, "testing", &answer).unwrap_err().to_string();
        assert!(error.contains("'magic'") && error.contains("'file-v2'"), "{error}");
        assert!(committed_by(OutputCommitter::FileV1, "testing", &answer).is_err());
        assert!(committed_by(OutputCommitter::FileV1, "testing", &json!({})).is_err());
    }

    #[test]
    fn changed_clock_ends_job() {
        let ran = |ended_s: f64, time_key: &str| {
            let answer = json!({ "began_s": 100.0, "ended_s": ended_s, time_key: 10.0 });
            JobTiming::told_by(&answer, "testing").map_err(|error| error.to_string())
        };
        assert_eq!(
            ran(110.05, "took_s").unwrap(),
            JobTiming { began_s: 100.0, ended_s: 110.05, took_s: 10.0 }
        );
        let error = ran(70.0, "took_s").unwrap_err();
        assert!(error.contains("clock was set by -40.0 s"), "{error}");
        let error = ran(110.0, "takes_s").unwrap_err();
        assert!(error.contains("does not tell its 'took_s'"), "{error}");
    }

    #[test]
    fn concurrent_stages_take_no_longer_than_all() {
        assert_eq!(covered_s(vec![(3.0, 5.0), (0.0, 2.0), (1.0, 4.0), (1.5, 1.6)]), 5.0);
        assert_eq!(covered_s(vec![(0.0, 1.0), (2.0, 3.0)]), 2.0);
        assert_eq!(covered_s(Vec::new()), 0.0);
        let mut events = JobEvents::default();
        for number in [1, 2, 3] {
            let (began_s, ended_s) = (100.0, 109.0);
            events.add(number, SparkStage { began_s, ended_s, tasks: 1, ..SparkStage::default() });
        }
        let ran = JobTiming { began_s: 100.0, ended_s: 109.0, took_s: 9.0 };
        let record = record("tpcds", ran, &events, &[], None, &Value::Null);
        assert_eq!((record.stages.len(), record.phases_s["compute"]), (3, 9.0));
    }

    #[test]
    fn requests_belong_to_the_stage_that_ran() {
        let stage = |began_s: f64, ended_s: f64, output_bytes: u64| SparkStage {
            began_s,
            ended_s,
            output_bytes,
            tasks: 2,
            ..SparkStage::default()
        };
        let (first, second) = (stage(101.0, 103.0, 0), stage(103.0, 107.0, 10));
        let stage_records = with_gaps(&[&first, &second], 100.0, 110.0);
        let names: Vec<&str> = stage_records.iter().map(|stage| stage.name.as_str()).collect();
        assert_eq!(names, ["driver", "compute", "write", "commit"]);
        let whole: f64 = stage_records.iter().map(|stage| stage.duration_s).sum();
        assert!((whole - 10.0).abs() < 1e-9);
        let request_at = |at_s: f64, kind: &str| StoreRequest {
            at_s,
            took_s: 0.0,
            kind: kind.to_owned(),
            failed: false,
            sent_bytes: 7,
            received_bytes: 3,
        };
        let requests = [
            // The first and the last come before and after the job.
            request_at(99.9, "head"),
            request_at(100.5, "head"),
            request_at(104.0, "put"),
            request_at(108.0, "copy"),
            request_at(109.0, "copy"),
            request_at(110.1, "get"),
        ];
        let mut events = JobEvents::default();
        events.add(1, first.clone());
        events.add(2, second.clone());
        let ran = JobTiming { began_s: 100.0, ended_s: 110.0, took_s: 10.02 };
        let committed = record("terasort", ran, &events, &requests, Some("iceberg".to_owned()), &Value::Null);
        assert!(!committed.counters.contains_key("job_commit_wall_ms"), "nobody measured it");
        let record = record("terasort", ran, &events, &requests, None, &Value::Null);
        assert_eq!(record.duration_s, 10.02);
        let stage_records = record.stages;
        assert!(!record.counters.contains_key("s3.get.requests"), "what came after its end");
        assert_eq!(record.counters["s3.head.requests"], 1.0);
        assert_eq!(stage_records[0].requests["head"].requests, 1);
        assert_eq!(stage_records[2].requests["put"].received_bytes, 3);
        assert_eq!(stage_records[3].requests["copy"].requests, 2);
        assert!(stage_records[1].requests.is_empty());
    }

    #[test]
    fn request_does_not_belong_to_ended_stage() {
        let stage =
            |began_s: f64, duration_s: f64| StageRecord { began_s, duration_s, ..StageRecord::default() };
        // The second one runs beside the first and ends before it.
        let mut stages = [stage(0.0, 10.0), stage(5.0, 1.0)];
        let request_at = |at_s: f64| StoreRequest {
            at_s,
            took_s: 0.0,
            kind: "get".to_owned(),
            failed: false,
            sent_bytes: 1,
            received_bytes: 0,
        };
        let requests = [request_at(101.0), request_at(105.5), request_at(108.0), request_at(112.0)];
        assign(&mut stages, &requests.iter().collect::<Vec<_>>(), 100.0);
        assert_eq!(stages.map(|stage| stage.requests["get"].requests), [2, 2]);
    }
}
