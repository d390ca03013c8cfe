//! A running cluster, and the jobs that are run on it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use underlay_record::{DirectoryUse, JobRecord};
use underlay_sync::Mutex;
use underlay_workload::client::Client;

use super::NAME;
use super::config::HadoopConfig;
use super::job_client::JobClient;
use super::jobs::{JOBS, MapReduceStep, record};
use super::local_directories::{LocalUse, LocalWatch};
use super::yarn::Yarn;
use crate::hdfs::Hdfs;
use crate::network_namespace::NetworkNamespace;
use crate::nodes::SystemNodes;
use crate::system::{JobProgress, JobRequest, JobWatch, RunningSystem, SystemError, SystemResources};

/// DataNodes delete blocks after their next heartbeats.
const DELETION_LIMIT: Duration = Duration::from_secs(60);
const DELETION_POLL: Duration = Duration::from_millis(250);
/// How often in a row the number of blocks must be unchanged before deletion counts as finished.
const STEADY_LOOKS: u32 = 8;
const END_LIMIT: Duration = Duration::from_secs(60);
const END_POLL: Duration = Duration::from_millis(20);
/// An application master writes the history before it reports that the job has ended, but the history server of an
/// existing cluster may be moving it.
const HISTORY_WAIT: Duration = Duration::from_secs(30);

/// Blocks and bytes by DataNode and directory.
type DataNodeVolumes = BTreeMap<(u32, u32), (u64, u64)>;

/// A cluster of HDFS, YARN and MapReduce that was started here, or an existing one.
#[derive(Debug)]
pub struct HadoopCluster {
    pub(super) config: HadoopConfig,
    // In the order in which they must be dropped.
    pub(super) client: JobClient,
    /// `None` for an existing cluster.
    pub(super) servers: Option<HadoopServers>,
    /// The checksum of the rows that teragen wrote last. Its lock also ensures that only one job runs at a time.
    pub(super) checksum: Mutex<Option<OutputChecksum>>,
}

/// The servers that were started here.
#[derive(Debug)]
pub(super) struct HadoopServers {
    pub(super) yarn: Yarn,
    pub(super) hdfs: Hdfs,
    pub(super) namespace: Arc<NetworkNamespace>,
    pub(super) local_directories: Vec<PathBuf>,
    pub(super) resources: SystemResources,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct OutputChecksum {
    bytes: u64,
    value: i64,
}

impl HadoopServers {
    /// Fails if YARN can't continue. HDFS can cope with losing a DataNode.
    fn check(&self, during: &'static str) -> Result<(), SystemError> {
        self.yarn.check(during)
    }
}

impl HadoopCluster {
    /// The HDFS below it; `None` for an existing cluster.
    pub fn hdfs(&self) -> Option<&Hdfs> {
        self.servers.as_ref().map(|servers| &servers.hdfs)
    }

    /// The network namespace of its processes; `None` for an existing cluster.
    pub fn namespace(&self) -> Option<&Arc<NetworkNamespace>> {
        self.servers.as_ref().map(|servers| &servers.namespace)
    }

    pub(super) fn check(&self, during: &'static str) -> Result<(), SystemError> {
        self.servers.as_ref().map_or(Ok(()), |servers| servers.check(during))
    }

    /// Sets the storage policy of everything that jobs write.
    pub(super) fn set_storage_policy(&self) -> Result<(), SystemError> {
        let policy = self.config.storage_policy.name();
        let request = json!({ "do": "policy", "paths": [self.config.work_directory], "policy": policy });
        self.client.request("starting", &request, &mut |_| true).map(drop)
    }

    /// Generates what `step` reads, if it isn't there.
    fn make_input(
        &self,
        step: &MapReduceStep,
        job: &JobRequest,
        watch: JobWatch<'_>,
        checksum: &mut Option<OutputChecksum>,
    ) -> Result<(), SystemError> {
        let Some(writer) = step.input_step(&self.config, job) else { return Ok(()) };
        let Some(path) = &writer.output else { return Ok(()) };
        let request = json!({ "do": "length", "paths": [path] });
        let answer = self.client.request(writer.during, &request, &mut |_| true)?;
        if writer.has_made(answer["lengths"][path].as_i64().unwrap_or(-1)) {
            return Ok(());
        }
        self.make_input(&writer, job, watch, checksum)?;
        self.run(&writer, job.limit, watch, checksum).map(drop)
    }

    /// Runs one step to its end. Returns its last answer, and what it wrote to the local directories.
    fn run(
        &self,
        step: &MapReduceStep,
        limit: Duration,
        watch: JobWatch<'_>,
        checksum: &mut Option<OutputChecksum>,
    ) -> Result<(Value, Vec<LocalUse>), SystemError> {
        let locals = self.servers.as_ref().map_or(&[][..], |servers| &servers.local_directories);
        let local_watch = LocalWatch::new(locals);
        let started = Instant::now();
        let mut last = JobProgress { phase: "map".to_owned(), done: 0.0 };
        let mut ended_because = None;
        let request = step.request(u64::try_from(HISTORY_WAIT.as_millis()).unwrap_or(u64::MAX));
        let answer = std::thread::scope(|scope| {
            let answer = self.client.request(step.during, &request, &mut |answer| {
                match answer["event"].as_str() {
                    Some("submitted") => {
                        let application = answer["application"].as_str().unwrap_or_default().to_owned();
                        let local_watch = &local_watch;
                        scope.spawn(move || local_watch.run(&application));
                    }
                    Some("progress") => {
                        let phase = answer["phase"].as_str().unwrap_or_default().to_owned();
                        last = JobProgress { phase, done: answer["done"].as_f64().unwrap_or_default() };
                    }
                    _ => {}
                }
                let reason = if !watch(&last) {
                    Some(SystemError::failed(NAME, step.during, "it was stopped"))
                } else if started.elapsed() > limit {
                    let problem = format!("it took longer than its limit of {:.0} s", limit.as_secs_f64());
                    Some(SystemError::failed(NAME, step.during, problem))
                } else {
                    self.check(step.during).err()
                };
                // The first reason counts: what is wrong afterwards may only follow from it.
                if ended_because.is_none() {
                    ended_because = reason;
                }
                ended_because.is_none()
            });
            // Before the scope ends: it waits for the thread, which polls until it is told.
            local_watch.end();
            answer
        });
        if let Some(reason) = ended_because {
            return Err(reason);
        }
        let answer = answer?;
        self.compare_checksums(step, &answer, checksum)?;
        Ok((answer, local_watch.uses()))
    }

    /// Checks that the sorted rows are those that were generated.
    fn compare_checksums(
        &self,
        step: &MapReduceStep,
        answer: &Value,
        checksum: &mut Option<OutputChecksum>,
    ) -> Result<(), SystemError> {
        let Some(value) = answer["checksum"].as_i64() else { return Ok(()) };
        let found = OutputChecksum { bytes: step.bytes, value };
        let of_teragen = MapReduceStep::from_job(&self.config, &named("teragen"));
        if step.kind == "teragen" {
            // hdfs-write runs teragen too, but no job reads its output.
            if of_teragen.is_some_and(|teragen| teragen.output == step.output) {
                *checksum = Some(found);
            }
            return Ok(());
        }
        match checksum {
            Some(made) if made.bytes == found.bytes && made.value != found.value => {
                let problem = format!(
                    "the sorted rows are not those that teragen wrote: their checksum is {:x}, not {:x}",
                    found.value, made.value
                );
                Err(SystemError::failed(NAME, step.during, problem))
            }
            _ => Ok(()),
        }
    }

    /// Deletes the output of an earlier run of the step and waits until its blocks are gone. Otherwise they would be
    /// attributed to this run.
    fn clear(&self, step: &MapReduceStep) -> Result<(), SystemError> {
        let Some(path) = &step.output else { return Ok(()) };
        let request = json!({ "do": "delete", "paths": [path] });
        let answer = self.client.request(step.during, &request, &mut |_| true)?;
        let Some(servers) = self.servers.as_ref().filter(|_| answer["deleted"].as_u64() > Some(0)) else {
            return Ok(());
        };
        let started = Instant::now();
        let mut before = None;
        let mut steady = 0;
        while steady < STEADY_LOOKS && started.elapsed() < DELETION_LIMIT {
            let blocks: u64 = servers.hdfs.volumes()?.iter().map(|volume| volume.blocks).sum();
            steady = if before == Some(blocks) { steady + 1 } else { 0 };
            if blocks == 0 {
                break;
            }
            before = Some(blocks);
            std::thread::sleep(DELETION_POLL);
        }
        Ok(())
    }

    fn volumes(&self) -> Result<DataNodeVolumes, SystemError> {
        let Some(servers) = &self.servers else { return Ok(BTreeMap::new()) };
        let volumes = servers.hdfs.volumes()?.into_iter();
        Ok(volumes.map(|use_| ((use_.datanode, use_.directory), (use_.blocks, use_.bytes))).collect())
    }

    fn run_measured(&self, job: &JobRequest, watch: JobWatch<'_>) -> Result<JobRecord, SystemError> {
        let step = self.step(job)?;
        let mut checksum = self.checksum.lock();
        self.make_input(&step, job, watch, &mut checksum)?;
        self.clear(&step)?;
        let before = self.volumes()?;
        let (answer, locals) = self.run(&step, job.limit, watch, &mut checksum)?;
        let mut record = record(&job.name, &answer);
        record.directories = directories(&before, &self.volumes()?, &locals);
        if step.discard_output {
            let request = json!({ "do": "delete", "paths": [step.output] });
            self.client.request(step.during, &request, &mut |_| true)?;
        }
        Ok(record)
    }

    fn step(&self, job: &JobRequest) -> Result<MapReduceStep, SystemError> {
        MapReduceStep::from_job(&self.config, job).ok_or_else(|| {
            let names: Vec<&str> = JOBS.iter().map(|&(name, _)| name).collect();
            let problem = format!("there is no job '{}': expected one of {}", job.name, names.join(", "));
            SystemError::Setting { system: NAME, key: "jobs".to_owned(), problem }
        })
    }
}

/// A request for looking up what depends only on a job's name.
fn named(name: &str) -> JobRequest {
    JobRequest {
        name: name.to_owned(),
        data_bytes: 0,
        maps: None,
        reduces: None,
        compressibility: 0.0,
        seed: 0,
        limit: Duration::ZERO,
    }
}

/// How a job distributed what it wrote: blocks by directory of the storage, over all DataNodes, and files by local
/// directory. DataNodes that died meanwhile don't count.
fn directories(before: &DataNodeVolumes, after: &DataNodeVolumes, locals: &[LocalUse]) -> Vec<DirectoryUse> {
    let mut hdfs: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for (place, (blocks, bytes)) in after {
        let Some((blocks_before, bytes_before)) = before.get(place) else { continue };
        let sum = hdfs.entry(place.1).or_default();
        sum.0 += blocks.saturating_sub(*blocks_before);
        sum.1 += bytes.saturating_sub(*bytes_before);
    }
    let use_of = |role: &str, directory: u32, files: u64, write_bytes: u64| DirectoryUse {
        role: role.to_owned(),
        directory,
        device: None,
        files,
        write_bytes,
    };
    let blocks =
        hdfs.into_iter().map(|(directory, (blocks, bytes))| use_of("hdfs", directory, blocks, bytes));
    let files =
        (0..).zip(locals).map(|(directory, local)| use_of("local", directory, local.files, local.bytes));
    blocks.chain(files).collect()
}

impl RunningSystem for HadoopCluster {
    fn connect(&self) -> Result<Box<dyn Client>, SystemError> {
        Err(SystemError::failed(
            NAME,
            "connecting",
            "it runs jobs and has no clients: give it a workload of jobs",
        ))
    }

    fn prepare_job(&self, job: &JobRequest, watch: JobWatch<'_>) -> Result<(), SystemError> {
        let step = self.step(job)?;
        self.make_input(&step, job, watch, &mut self.checksum.lock())
    }

    fn run_job(&self, job: &JobRequest, watch: JobWatch<'_>) -> Option<Result<JobRecord, SystemError>> {
        Some(self.run_measured(job, watch))
    }

    fn nodes(&self) -> Option<&dyn SystemNodes> {
        let hdfs = &self.servers.as_ref()?.hdfs;
        (hdfs.plan().datanodes.len() > 1).then_some(hdfs)
    }

    fn processes(&self) -> Vec<u32> {
        let Some(servers) = &self.servers else { return Vec::new() };
        let client = self.client.process().state().pid();
        servers.namespace.processes().into_iter().filter(|&process| process != client).collect()
    }

    fn applied_settings(&self) -> BTreeMap<String, String> {
        let mut applied = self.config.applied();
        if let Some(servers) = &self.servers {
            servers.resources.record_java_option(&mut applied);
        }
        applied
    }

    fn health(&self) -> Result<(), SystemError> {
        self.client.process().check("running")?;
        self.check("running")?;
        if let Some(servers) = &self.servers {
            servers.hdfs.health()?;
        }
        let answer = self.client.request("running", &json!({ "do": "nodes" }), &mut |_| true)?;
        match answer["nodes"].as_u64() {
            Some(1..) => Ok(()),
            _ => Err(SystemError::failed(NAME, "running", "no NodeManager accepts tasks")),
        }
    }

    fn figures(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        self.servers.as_ref().map_or(Ok(BTreeMap::new()), |servers| servers.hdfs.figures())
    }

    fn settle(&self, limit: Duration) -> Result<(), SystemError> {
        self.servers.as_ref().map_or(Ok(()), |servers| servers.hdfs.settle(limit))
    }

    fn abort(&self) {
        self.client.process().kill();
        if let Some(servers) = &self.servers {
            servers.yarn.end();
            servers.hdfs.kill_namenode();
        }
    }

    fn stop(self: Box<Self>) -> Result<(), SystemError> {
        let HadoopCluster { client, servers, .. } = *self;
        drop(client);
        let Some(servers) = servers else { return Ok(()) };
        // YARN has no state to save.
        servers.yarn.end();
        let stopped = servers.hdfs.stop();
        // The kernel kills the containers asynchronously, once the first process of their namespace is gone.
        let stopping = Instant::now();
        loop {
            let left = servers.namespace.processes().len();
            if left == 0 {
                return stopped;
            }
            if stopping.elapsed() > END_LIMIT {
                return stopped.and(Err(SystemError::failed(
                    NAME,
                    "stopping",
                    format!("{left} of its processes did not end"),
                )));
            }
            std::thread::sleep(END_POLL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_bytes_are_reported_by_directory() {
        let before =
            BTreeMap::from([((0, 0), (5, 500)), ((0, 1), (5, 500)), ((1, 0), (9, 900)), ((1, 1), (0, 0))]);
        // The second DataNode's first directory is not told any more; something was deleted in its other one.
        let after =
            BTreeMap::from([((0, 0), (7, 700)), ((0, 1), (6, 650)), ((1, 1), (2, 30)), ((2, 0), (1, 1))]);
        let locals = [LocalUse { files: 3, bytes: 33 }];
        let listed: Vec<_> = directories(&before, &after, &locals)
            .into_iter()
            .map(|use_| (use_.role, use_.directory, use_.files, use_.write_bytes))
            .collect();
        let expected = [("hdfs", 0, 2, 200), ("hdfs", 1, 3, 180), ("local", 0, 3, 33)]
            .map(|(role, a, b, c)| (role.to_owned(), a, b, c));
        assert_eq!(listed, expected);
    }
}
