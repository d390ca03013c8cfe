//! The jobs that a study can name, and the request for each.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use underlay_record::JobRecord;

use super::config::HadoopConfig;
use crate::system::JobRequest;

/// Ordered so that each job finds the output of earlier ones.
pub(super) const JOBS: &[(&str, &str)] = &[
    ("teragen", "writes rows of 100 bytes to HDFS, as many copies as 'replication' says"),
    ("terasort", "sorts them: as much input as shuffle as output"),
    ("teravalidate", "reads terasort's output and checks its order"),
    ("hdfs-write", "writes rows of 100 bytes to HDFS, one copy"),
    ("wordcount", "counts the words of a text: high CPU load"),
    ("shuffle", "only shuffles: maps generate records, reduces discard them"),
    ("shuffle-compressed", "the same with compressed map output"),
];
const ROW_BYTES: u64 = 100;

/// One run of MapReduce.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MapReduceStep {
    /// Its name for the job client.
    pub kind: &'static str,
    pub during: &'static str,
    pub input: Option<String>,
    pub output: Option<String>,
    pub bytes: u64,
    /// 0: one per block of the input.
    pub maps: u32,
    pub reduces: u32,
    pub compressibility: f64,
    pub seed: u64,
    pub properties: BTreeMap<&'static str, String>,
    /// Whether the output is deleted afterwards, because no other job reads it.
    pub discard_output: bool,
}

impl MapReduceStep {
    /// The step that is the job itself; `None` if there is no such job.
    pub(super) fn from_job(config: &HadoopConfig, job: &JobRequest) -> Option<MapReduceStep> {
        let blocks = job.data_bytes.div_ceil(config.block_bytes);
        // A map for each block of the output, and at least one for each container.
        let parts = u32::try_from(blocks.max(config.containers)).unwrap_or(u32::MAX);
        let reduces = job.reduces.unwrap_or(u32::try_from(config.containers).unwrap_or(u32::MAX)).max(1);
        let place = |name: &str| Some(format!("{}/{name}", config.work_directory));
        let map_of = |pairs: &[(&'static str, String)]| pairs.iter().cloned().collect();
        let step = MapReduceStep {
            kind: "shuffle",
            during: "running shuffle",
            input: None,
            output: None,
            bytes: job.data_bytes,
            maps: job.maps.unwrap_or(parts).max(1),
            reduces,
            compressibility: job.compressibility,
            seed: job.seed,
            properties: BTreeMap::new(),
            discard_output: false,
        };
        Some(match job.name.as_str() {
            "teragen" => MapReduceStep {
                kind: "teragen",
                during: "running teragen",
                output: place("teragen"),
                bytes: rows_bytes(job.data_bytes),
                reduces: 0,
                properties: map_of(&[("dfs.replication", config.replication.to_string())]),
                ..step
            },
            "terasort" => MapReduceStep {
                kind: "terasort",
                during: "running terasort",
                input: place("teragen"),
                output: place("terasort"),
                bytes: rows_bytes(job.data_bytes),
                maps: job.maps.unwrap_or(0),
                properties: map_of(&[(
                    "mapreduce.terasort.output.replication",
                    config.sorted_replication.to_string(),
                )]),
                ..step
            },
            "teravalidate" => MapReduceStep {
                kind: "teravalidate",
                during: "running teravalidate",
                input: place("terasort"),
                output: place("teravalidate"),
                bytes: rows_bytes(job.data_bytes),
                maps: 0,
                reduces: 1,
                discard_output: true,
                ..step
            },
            "hdfs-write" => MapReduceStep {
                kind: "teragen",
                during: "running hdfs-write",
                output: place("hdfs-write"),
                bytes: rows_bytes(job.data_bytes),
                reduces: 0,
                properties: map_of(&[("dfs.replication", "1".to_owned())]),
                discard_output: true,
                ..step
            },
            "wordcount" => MapReduceStep {
                kind: "wordcount",
                during: "running wordcount",
                input: place("text"),
                output: place("wordcount"),
                maps: job.maps.unwrap_or(0),
                discard_output: true,
                ..step
            },
            // It reads and writes no files, so it has neither input nor output.
            "shuffle" => step,
            "shuffle-compressed" => MapReduceStep {
                during: "running shuffle-compressed",
                properties: map_of(&[
                    ("mapreduce.map.output.compress", "true".to_owned()),
                    ("mapreduce.map.output.compress.codec", config.compression_codec.class().to_owned()),
                ]),
                ..step
            },
            _ => return None,
        })
    }

    /// The step that generates what this one reads, if it reads anything.
    pub(super) fn input_step(&self, config: &HadoopConfig, job: &JobRequest) -> Option<MapReduceStep> {
        let before =
            |name: &str| JobRequest { name: name.to_owned(), maps: None, reduces: None, ..job.clone() };
        match self.kind {
            "terasort" => MapReduceStep::from_job(config, &before("teragen")),
            "teravalidate" => MapReduceStep::from_job(config, &before("terasort")),
            "wordcount" => {
                let made_like = MapReduceStep::from_job(config, &before("teragen"))?;
                Some(MapReduceStep {
                    kind: "text",
                    during: "making the text of wordcount",
                    output: self.input.clone(),
                    bytes: job.data_bytes,
                    ..made_like
                })
            }
            _ => None,
        }
    }

    /// Whether an output of `bytes` can be that of this step.
    pub(super) fn has_made(&self, bytes: i64) -> bool {
        let Ok(bytes) = u64::try_from(bytes) else { return false };
        match self.kind {
            // The text ends with a whole sentence, so it is somewhat longer than requested.
            "text" => bytes >= self.bytes && bytes - self.bytes <= self.bytes / 20 + (64 << 10),
            _ => bytes == self.bytes,
        }
    }

    /// The request for the job client.
    pub(super) fn request(&self, history_wait_ms: u64) -> Value {
        json!({
            "do": "run",
            "job": self.kind,
            "input": self.input,
            "output": self.output,
            "bytes": self.bytes,
            "maps": self.maps,
            "reduces": self.reduces,
            "compressibility": self.compressibility,
            // Java's numbers are signed.
            "seed": self.seed.cast_signed(),
            "properties": self.properties,
            "history_wait_ms": history_wait_ms,
        })
    }
}

fn rows_bytes(bytes: u64) -> u64 {
    (bytes / ROW_BYTES).max(1) * ROW_BYTES
}

/// The record of a job from the last answer of the job client, which does not say how its output was distributed.
pub(super) fn record(name: &str, answer: &Value) -> JobRecord {
    let number = |key: &str| answer[key].as_u64().unwrap_or_default();
    let entries = |key: &str| answer[key].as_object().into_iter().flatten();
    let wall_s = number("wall_ms") as f64 / 1e3;
    JobRecord {
        name: name.to_owned(),
        duration_s: wall_s,
        wall_s,
        phases_s: entries("phases_ms")
            .filter_map(|(phase, ms)| Some((phase.clone(), ms.as_f64()? / 1e3)))
            .collect(),
        tasks: entries("tasks").filter_map(|(kind, count)| Some((kind.clone(), count.as_u64()?))).collect(),
        lost_tasks: number("lost_tasks"),
        input_bytes: number("input_bytes"),
        output_bytes: number("output_bytes"),
        shuffled_bytes: number("shuffled_bytes"),
        counters: entries("counters")
            .filter_map(|(name, count)| Some((name.clone(), count.as_f64()?)))
            .collect(),
        directories: Vec::new(),
        stages: Vec::new(),
        committer: None,
        cache: None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn job(name: &str) -> JobRequest {
        JobRequest {
            name: name.to_owned(),
            data_bytes: 300 << 20,
            maps: None,
            reduces: None,
            compressibility: 0.5,
            seed: u64::MAX,
            limit: Duration::from_secs(60),
        }
    }

    #[test]
    fn job_inputs_are_made_by_earlier_jobs() {
        let config = HadoopConfig::default();
        for (name, _) in JOBS {
            let step = MapReduceStep::from_job(&config, &job(name)).unwrap();
            assert!(step.during.ends_with(name));
            let mut reader = step;
            while let Some(writer) = reader.input_step(&config, &job(name)) {
                assert_eq!(writer.output, reader.input);
                reader = writer;
            }
            assert_eq!(reader.input, None, "{name}: nobody makes it");
        }
        assert_eq!(MapReduceStep::from_job(&config, &job("sort")), None);
    }

    #[test]
    fn copies_and_compression_are_the_jobs_own() {
        let config = HadoopConfig { replication: 2, sorted_replication: 3, ..HadoopConfig::default() };
        let properties = |name: &str| MapReduceStep::from_job(&config, &job(name)).unwrap().properties;
        assert_eq!(properties("teragen")["dfs.replication"], "2");
        assert_eq!(properties("hdfs-write")["dfs.replication"], "1");
        assert_eq!(properties("terasort")["mapreduce.terasort.output.replication"], "3");
        assert!(properties("shuffle").is_empty());
        assert!(
            properties("shuffle-compressed")["mapreduce.map.output.compress.codec"].ends_with("SnappyCodec")
        );
    }

    #[test]
    fn tasks_follow_blocks_and_containers_unless_they_are_given() {
        let config = HadoopConfig::default();
        let shuffle = MapReduceStep::from_job(&config, &job("shuffle")).unwrap();
        assert_eq!((shuffle.maps, shuffle.reduces), (3, 2));
        let request = JobRequest { maps: Some(7), reduces: Some(5), ..job("terasort") };
        let sort = MapReduceStep::from_job(&config, &request).unwrap();
        assert_eq!((sort.maps, sort.reduces), (7, 5));
        let input = sort.input_step(&config, &request).unwrap();
        assert_eq!((input.kind, input.maps, input.reduces), ("teragen", 3, 0));
        assert_eq!(sort.request(5)["seed"], json!(-1));
    }

    #[test]
    fn earlier_input_of_right_size_is_reused() {
        let config = HadoopConfig::default();
        let odd = JobRequest { data_bytes: 1234, ..job("terasort") };
        let sort = MapReduceStep::from_job(&config, &odd).unwrap();
        assert!(sort.has_made(1200) && !sort.has_made(1234) && !sort.has_made(-1));
        let text = MapReduceStep::from_job(&config, &job("wordcount"))
            .unwrap()
            .input_step(&config, &job("wordcount"))
            .unwrap();
        let bytes = 300 << 20;
        assert!(text.has_made(bytes) && text.has_made(bytes + 9999) && !text.has_made(bytes * 2));
        assert!(!text.has_made(bytes - 1));
    }

    #[test]
    fn answer_becomes_record() {
        let answer = json!({
            "event": "finished", "wall_ms": 2500, "phases_ms": { "map": 1500 }, "tasks": { "map": 2, "reduce": 0 },
            "lost_tasks": 1, "counters": { "TaskCounter.SPILLED_RECORDS": 3 }, "shuffled_bytes": 9,
        });
        let record = record("shuffle", &answer);
        assert_eq!((record.duration_s, record.wall_s, record.phases_s["map"]), (2.5, 2.5, 1.5));
        assert_eq!((record.tasks["map"], record.lost_tasks, record.shuffled_bytes), (2, 1, 9));
        assert_eq!(record.counters["TaskCounter.SPILLED_RECORDS"], 3.0);
    }
}
