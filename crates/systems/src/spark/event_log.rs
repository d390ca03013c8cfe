//! Spark's event log: what the stages of a job were, and what their tasks spent their time on.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde_json::Value;
use underlay_record::TaskTime;

const TASK_COMMIT: &str = "task commit time";
const JOB_COMMIT: &str = "job commit time";
const PART_BYTES: usize = 256 << 10;
/// An event with a large plan has some hundred kilobytes.
const MAX_LINE_BYTES: usize = 64 << 20;

/// One attempt at a stage.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SparkStage {
    /// In seconds since 1970.
    pub began_s: f64,
    pub ended_s: f64,
    /// Attempts that ended well, and others.
    pub tasks: u64,
    pub lost_tasks: u64,
    pub time: TaskTime,
    pub input_bytes: u64,
    pub input_records: u64,
    pub output_bytes: u64,
    pub output_records: u64,
    pub shuffle_read_bytes: u64,
    pub shuffle_write_bytes: u64,
    /// Bytes that an earlier stage of the job has left in executors' memory. Spark counts it as input.
    pub kept_bytes: u64,
    /// Whether that is what it reads.
    pub reads_kept: bool,
}

/// The events between two readings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobEvents {
    /// By number and attempt.
    stages: BTreeMap<(u64, u64), SparkStage>,
    /// The accumulators of [`JOB_COMMIT`].
    commits: BTreeSet<u64>,
    /// Data sets that a stage has computed and left in executors' memory.
    kept: BTreeSet<u64>,
    /// The time of whole jobs' committers, by those that measured it.
    pub job_commit_s: Option<f64>,
}

/// The log of one application, read from where the last reading ended.
#[derive(Debug)]
pub(super) struct EventLog {
    folder: PathBuf,
    offset: u64,
    rest: Vec<u8>,
}

impl EventLog {
    /// That of the only application that logs to `folder`.
    pub(super) fn new(folder: &Path) -> EventLog {
        EventLog { folder: folder.to_owned(), offset: 0, rest: Vec::new() }
    }

    /// Everything that was logged since the last call.
    pub(super) fn read(&mut self) -> io::Result<JobEvents> {
        let mut events = JobEvents::default();
        let Some(path) = std::fs::read_dir(&self.folder)?.flatten().map(|entry| entry.path()).min() else {
            return Ok(events);
        };
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(self.offset))?;
        let mut part = vec![0; PART_BYTES];
        loop {
            let count = file.read(&mut part)?;
            if count == 0 {
                return Ok(events);
            }
            self.offset += count as u64;
            for &byte in &part[..count] {
                match byte {
                    b'\n' => events.take(&std::mem::take(&mut self.rest)),
                    _ if self.rest.len() < MAX_LINE_BYTES => self.rest.push(byte),
                    _ => {}
                }
            }
        }
    }
}

impl JobEvents {
    /// The stages that had tasks, in the order in which they began.
    pub fn stages(&self) -> Vec<&SparkStage> {
        let mut stages: Vec<&SparkStage> = self.stages.values().filter(|stage| stage.ended_s > 0.0).collect();
        stages.sort_by(|a, b| a.began_s.total_cmp(&b.began_s));
        stages
    }

    #[cfg(test)]
    pub(super) fn add(&mut self, number: u64, stage: SparkStage) {
        self.stages.insert((number, 0), stage);
    }

    /// Takes in a line of the log. One that isn't known is skipped: each version of Spark has some of its own.
    pub fn take(&mut self, line: &[u8]) {
        let Ok(event) = serde_json::from_slice::<Value>(line) else { return };
        let name = event["Event"].as_str().unwrap_or_default();
        match name.rsplit('.').next().unwrap_or_default() {
            "SparkListenerTaskEnd" => self.task(&event),
            "SparkListenerStageSubmitted" => {
                let info = &event["Stage Info"];
                let reads_kept = to_be_kept(info).any(|number| self.kept.contains(&number));
                self.stage(&info["Stage ID"], &info["Stage Attempt ID"]).reads_kept = reads_kept;
            }
            "SparkListenerStageCompleted" => {
                let info = &event["Stage Info"];
                if info["Failure Reason"].is_null() {
                    self.kept.extend(to_be_kept(info));
                }
                // One that was left with nothing to do was never submitted.
                if info["Submission Time"].is_number() {
                    let stage = self.stage(&info["Stage ID"], &info["Stage Attempt ID"]);
                    stage.began_s = seconds(&info["Submission Time"]);
                    stage.ended_s = seconds(&info["Completion Time"]);
                }
            }
            // With an executor goes what it had: it is computed again, from the store.
            "SparkListenerExecutorRemoved" | "SparkListenerBlockManagerRemoved" => self.kept.clear(),
            "SparkListenerSQLExecutionStart" | "SparkListenerSQLAdaptiveExecutionUpdate" => {
                find_commits(&event["sparkPlanInfo"], &mut self.commits);
            }
            "SparkListenerDriverAccumUpdates" => {
                let updates = event["accumUpdates"].as_array().map(Vec::as_slice).unwrap_or_default();
                for update in updates {
                    if update[0].as_u64().is_some_and(|id| self.commits.contains(&id)) {
                        let took_s = update[1].as_f64().unwrap_or_default() / 1e3;
                        *self.job_commit_s.get_or_insert(0.0) += took_s;
                    }
                }
            }
            _ => {}
        }
    }

    fn stage(&mut self, number: &Value, attempt: &Value) -> &mut SparkStage {
        let key = (number.as_u64().unwrap_or_default(), attempt.as_u64().unwrap_or_default());
        self.stages.entry(key).or_default()
    }

    fn task(&mut self, event: &Value) {
        let stage = self.stage(&event["Stage ID"], &event["Stage Attempt ID"]);
        if event["Task End Reason"]["Reason"].as_str() != Some("Success") {
            stage.lost_tasks += 1;
            return;
        }
        stage.tasks += 1;
        let metrics = &event["Task Metrics"];
        let reads_kept = stage.reads_kept;
        let bytes = |part: &str, name: &str| metrics[part][name].as_u64().unwrap_or_default();
        let (read, written) = ("Input Metrics", "Output Metrics");
        let (fetched, spilled) = ("Shuffle Read Metrics", "Shuffle Write Metrics");
        let task = SparkTask {
            run_s: seconds(&metrics["Executor Run Time"]),
            unpack_s: seconds(&metrics["Executor Deserialize Time"])
                + seconds(&metrics["Result Serialization Time"]),
            cpu_s: metrics["Executor CPU Time"].as_f64().unwrap_or_default() / 1e9,
            collect_s: seconds(&metrics["JVM GC Time"]),
            shuffle_s: seconds(&metrics[fetched]["Fetch Wait Time"])
                + metrics[spilled]["Shuffle Write Time"].as_f64().unwrap_or_default() / 1e9,
            commit_s: task_commit_s(&event["Task Info"]["Accumulables"]),
            // No store is waited for then.
            input_bytes: if reads_kept { 0 } else { bytes(read, "Bytes Read") },
            output_bytes: bytes(written, "Bytes Written"),
            fetches: bytes(fetched, "Remote Bytes Read").saturating_add(bytes(fetched, "Local Bytes Read")),
        };
        let time = task.divided();
        stage.time.compute_s += time.compute_s;
        stage.time.input_wait_s += time.input_wait_s;
        stage.time.shuffle_s += time.shuffle_s;
        stage.time.output_s += time.output_s;
        stage.time.commit_s += time.commit_s;
        add(&mut stage.input_bytes, task.input_bytes);
        match reads_kept {
            true => add(&mut stage.kept_bytes, bytes(read, "Bytes Read")),
            false => add(&mut stage.input_records, bytes(read, "Records Read")),
        }
        add(&mut stage.output_bytes, task.output_bytes);
        add(&mut stage.output_records, bytes(written, "Records Written"));
        add(&mut stage.shuffle_read_bytes, task.fetches);
        add(&mut stage.shuffle_write_bytes, bytes(spilled, "Shuffle Bytes Written"));
    }
}

impl SparkStage {
    /// Its name, by its tasks' work with data: `read, shuffle out`.
    pub fn name(&self) -> String {
        let parts = [
            (self.input_bytes > 0, "read"),
            (self.kept_bytes > 0, "from memory"),
            (self.shuffle_read_bytes > 0, "shuffle in"),
            (self.shuffle_write_bytes > 0, "shuffle out"),
            (self.output_bytes > 0, "write"),
        ];
        let parts: Vec<&str> = parts.iter().filter(|(applies, _)| *applies).map(|(_, word)| *word).collect();
        if parts.is_empty() { "compute".to_owned() } else { parts.join(", ") }
    }
}

/// The data sets of a stage that stay in executors' memory, or on their disks, once it has computed them.
fn to_be_kept(info: &Value) -> impl Iterator<Item = u64> {
    let all = info["RDD Info"].as_array().map(Vec::as_slice).unwrap_or_default();
    let stays = |data: &&Value| {
        let level = &data["Storage Level"];
        level["Use Memory"] == true || level["Use Disk"] == true
    };
    all.iter().filter(stays).filter_map(|data| data["RDD ID"].as_u64())
}

/// Sums do not overflow, with any values in a log.
fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

/// The metrics of one task.
#[derive(Clone, Copy, Debug, Default)]
struct SparkTask {
    run_s: f64,
    unpack_s: f64,
    cpu_s: f64,
    collect_s: f64,
    shuffle_s: f64,
    commit_s: f64,
    input_bytes: u64,
    output_bytes: u64,
    fetches: u64,
}

impl SparkTask {
    /// Spark measures the CPU, the commit, and waiting for the shuffle. The rest of the task's time is waiting for its
    /// input and its output: for the one that it has, or for both in proportion to their bytes.
    fn divided(&self) -> TaskTime {
        let mut left = self.run_s;
        let mut take = |wanted: f64| {
            let granted = wanted.clamp(0.0, left.max(0.0));
            left -= granted;
            granted
        };
        let commit_s = take(self.commit_s);
        let mut shuffle_s = take(self.shuffle_s);
        let mut compute_s = take(self.cpu_s + self.collect_s) + self.unpack_s;
        let (mut input_wait_s, mut output_s) = (0.0, 0.0);
        let moved = self.input_bytes as f64 + self.output_bytes as f64;
        if moved > 0.0 {
            input_wait_s = left * self.input_bytes as f64 / moved;
            output_s = left * self.output_bytes as f64 / moved;
        } else if self.fetches > 0 {
            shuffle_s += left;
        } else {
            // Another process computes for it, or it waits for a CPU.
            compute_s += left;
        }
        TaskTime { compute_s, input_wait_s, shuffle_s, output_s, commit_s }
    }
}

/// Of milliseconds.
fn seconds(ms: &Value) -> f64 {
    ms.as_f64().unwrap_or_default() / 1e3
}

fn task_commit_s(accumulables: &Value) -> f64 {
    let all = accumulables.as_array().map(Vec::as_slice).unwrap_or_default();
    let found = all.iter().find(|one| one["Name"].as_str() == Some(TASK_COMMIT));
    found.and_then(|one| one["Update"].as_str()?.parse::<f64>().ok()).unwrap_or_default() / 1e3
}

/// The numbers of the metrics of that name in a plan.
fn find_commits(plan: &Value, commits: &mut BTreeSet<u64>) {
    // Without recursion: a plan may be deep.
    let mut open = vec![plan];
    while let Some(node) = open.pop() {
        for metric in node["metrics"].as_array().map(Vec::as_slice).unwrap_or_default() {
            if metric["name"].as_str() == Some(JOB_COMMIT) {
                commits.extend(metric["accumulatorId"].as_u64());
            }
        }
        open.extend(node["children"].as_array().map(Vec::as_slice).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: &str = r#"{"Event":"SparkListenerTaskEnd","Stage ID":7,"Stage Attempt ID":0,"Task End Reason":{"Reason":"Success"},
        "Task Info":{"Accumulables":[{"ID":5,"Name":"task commit time","Update":"383"}]},
        "Task Metrics":{"Executor Deserialize Time":100,"Executor Run Time":10000,"Executor CPU Time":1700000000,"JVM GC Time":300,
        "Result Serialization Time":0,"Shuffle Read Metrics":{"Fetch Wait Time":500,"Local Bytes Read":7},
        "Shuffle Write Metrics":{"Shuffle Bytes Written":0,"Shuffle Write Time":0},"Input Metrics":{"Bytes Read":0,"Records Read":0},
        "Output Metrics":{"Bytes Written":5000000,"Records Written":50000}}}"#;

    #[test]
    fn task_time_is_divided_without_remainder() {
        let mut events = JobEvents::default();
        events.take(TASK.as_bytes());
        events.take(TASK.replace("Success", "ExceptionFailure").as_bytes());
        let completed = r#"{"Event":"SparkListenerStageCompleted","Stage Info":{"Stage ID":7,"Stage Attempt ID":0,
            "Submission Time":1000,"Completion Time":12000}}"#;
        events.take(completed.as_bytes());
        let stages = events.stages();
        let stage = stages[0];
        assert_eq!((stage.tasks, stage.lost_tasks, stage.output_records), (1, 1, 50000));
        assert_eq!((stage.began_s, stage.ended_s, stage.name().as_str()), (1.0, 12.0, "shuffle in, write"));
        let time = stage.time;
        assert!((time.total_s() - 10.1).abs() < 1e-9, "{time:?}");
        assert!((time.commit_s - 0.383).abs() < 1e-9 && (time.shuffle_s - 0.5).abs() < 1e-9);
        assert!((time.compute_s - 2.1).abs() < 1e-9 && (time.output_s - 7.117).abs() < 1e-9, "{time:?}");
    }

    #[test]
    fn waiting_goes_to_what_a_task_has() {
        let task = SparkTask { run_s: 4.0, cpu_s: 1.0, ..SparkTask::default() };
        let times_of = |task: SparkTask| {
            let time = task.divided();
            assert!((time.total_s() - task.run_s - task.unpack_s).abs() < 1e-9);
            (time.compute_s, time.input_wait_s, time.shuffle_s, time.output_s)
        };
        assert_eq!(times_of(SparkTask { input_bytes: 30, output_bytes: 10, ..task }), (1.0, 2.25, 0.0, 0.75));
        assert_eq!(times_of(SparkTask { fetches: 5, ..task }), (1.0, 0.0, 3.0, 0.0));
        assert_eq!(times_of(task), (4.0, 0.0, 0.0, 0.0));
        // Clocks differ: nothing becomes negative.
        assert_eq!(times_of(SparkTask { cpu_s: 9.0, commit_s: 1.0, input_bytes: 1, ..task }).0, 3.0);
    }

    #[test]
    fn executor_memory_is_not_read_from_store() {
        let stage = |number: u64, event: &str| {
            format!(
                r#"{{"Event":"SparkListenerStage{event}","Stage Info":{{"Stage ID":{number},"Stage Attempt ID":0,"Submission Time":1000,
                "Completion Time":2000,"RDD Info":[{{"RDD ID":3,"Storage Level":{{"Use Disk":true,"Use Memory":true}}}},
                {{"RDD ID":2,"Storage Level":{{"Use Disk":false,"Use Memory":false}}}}]}}}}"#
            )
        };
        let task = |number: u64| {
            let read =
                TASK.replace("\"Bytes Read\":0,\"Records Read\":0", "\"Bytes Read\":90,\"Records Read\":9");
            read.replace("\"Stage ID\":7", &format!("\"Stage ID\":{number}")).replace("5000000", "0")
        };
        let mut events = JobEvents::default();
        for number in [1, 2] {
            events.take(stage(number, "Submitted").as_bytes());
            events.take(task(number).as_bytes());
            events.take(stage(number, "Completed").as_bytes());
        }
        let listed: Vec<_> = events
            .stages()
            .iter()
            .map(|listed_stage| (listed_stage.name(), listed_stage.input_bytes, listed_stage.kept_bytes))
            .collect();
        assert_eq!(
            listed,
            [("read, shuffle in".to_owned(), 90, 0), ("from memory, shuffle in".to_owned(), 0, 90)]
        );
        assert_eq!(events.stages()[1].time.input_wait_s, 0.0);
    }

    /// Spark says so of one whose outputs came back before it was begun again.
    #[test]
    fn unsubmitted_stage_does_not_count() {
        let mut events = JobEvents::default();
        let completed = r#"{"Event":"SparkListenerStageCompleted","Stage Info":{"Stage ID":7,"Stage Attempt ID":1,"Completion Time":12000}}"#;
        events.take(completed.as_bytes());
        assert!(events.stages().is_empty());
    }

    #[test]
    fn job_commit_is_found_in_plan() {
        let mut events = JobEvents::default();
        assert_eq!(events.job_commit_s, None);
        for line in [
            r#"{"Event":"org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart","executionId":0,"sparkPlanInfo":
               {"metrics":[],"children":[{"metrics":[{"name":"job commit time","accumulatorId":6}],"children":[]}]}}"#,
            r#"{"Event":"org.apache.spark.sql.execution.ui.SparkListenerDriverAccumUpdates","executionId":0,"accumUpdates":[[1,4],[6,970]]}"#,
            "nonsense",
            "{}",
        ] {
            events.take(line.as_bytes());
        }
        assert!((events.job_commit_s.unwrap() - 0.97).abs() < 1e-9);
        assert!(events.stages().is_empty());
    }

    #[test]
    fn growing_log_is_read_once() {
        let folder = tempfile::TempDir::new().unwrap();
        let mut log = EventLog::new(folder.path());
        assert_eq!(log.read().unwrap(), JobEvents::default());
        let path = folder.path().join("app-1.inprogress");
        let line = TASK.replace('\n', " ");
        let (first, second) = line.split_at(100);
        std::fs::write(&path, first).unwrap();
        assert_eq!(log.read().unwrap(), JobEvents::default());
        std::fs::write(&path, format!("{first}{second}\n")).unwrap();
        assert_eq!(log.read().unwrap().stages.len(), 1);
        assert_eq!(log.read().unwrap(), JobEvents::default());
    }
}
