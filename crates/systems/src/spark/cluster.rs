//! A running cluster, and the jobs that are run on it.

mod cached;
mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use underlay_record::{CacheUse, JobRecord, NodeRole, NodeState};
use underlay_sync::Mutex;
use underlay_workload::client::Client;

use self::cached::UndrainedJob;
pub(super) use self::state::SparkState;
use super::NAME;
use super::cache::{CacheStarter, RunningCache, StoreTraffic};
use super::committer::OutputCommitter;
use super::config::SparkConfig;
use super::driver::SparkDriver;
use super::jobs::{DriverRequest, JobTiming, committed_by, record};
use super::manager::ClusterManager;
use super::store::{BUCKET, SparkStore};
use crate::ceph::{MARK, StoreRequest};
use crate::network_namespace::NetworkNamespace;
use crate::nodes::{SystemNodes, unknown};
use crate::system::{JobProgress, JobRequest, JobWatch, RunningSystem, SystemError, SystemResources};
use crate::tun_link::{LinkShape, NetworkLink};

const END_LIMIT: Duration = Duration::from_secs(60);
const END_POLL: Duration = Duration::from_millis(20);
/// How long a store may take to write down what it has answered.
const LOG_LIMIT: Duration = Duration::from_secs(60);
/// How long a cluster that runs already may take to end a session and to forget what its jobs wrote.
const LEAVE_LIMIT: Duration = Duration::from_secs(300);

/// The request that checks an output.
const VERIFY: &str = "verify";

/// A Spark cluster with the store below it.
#[derive(Debug)]
pub struct SparkCluster {
    pub(super) config: SparkConfig,
    // In the order in which they must be dropped.
    pub(super) driver: SparkDriver,
    pub(super) manager: ClusterManager,
    /// Between jobs and the store, if the study has one.
    pub(super) cache: Option<RunningCache>,
    pub(super) caches: CacheStarter,
    pub(super) store: SparkStore,
    /// `None` where the executors are on other machines.
    pub(super) namespace: Option<Arc<NetworkNamespace>>,
    /// `None` where Spark and the store share a machine.
    pub(super) remote: Option<RemoteStore>,
    /// For gauges, which tell rates.
    pub(super) last_carried: Mutex<Option<(Instant, [u64; 4])>>,
    pub(super) resources: SystemResources,
    /// Options that every request has: where programs and texts of this run are.
    pub(super) tools: BTreeMap<&'static str, Value>,
    /// 1, or as much slower as devices and links are.
    pub(super) slow_motion: f64,
    /// Its lock also ensures that only one job runs at a time.
    pub(super) state: Mutex<SparkState>,
}

/// The machine of a store that is not Spark's, and the link to it.
#[derive(Debug)]
pub(super) struct RemoteStore {
    pub link: NetworkLink,
    pub namespace: Arc<NetworkNamespace>,
}

impl RemoteStore {
    /// A new machine beside that of `near`, behind a link as `config` says.
    pub(super) fn new(
        config: &SparkConfig,
        bytes_per_s: f64,
        near: &NetworkNamespace,
        slow_motion: f64,
    ) -> Result<RemoteStore, SystemError> {
        let namespace = NetworkNamespace::create(NAME)?;
        let shape = LinkShape {
            bytes_per_s: bytes_per_s / slow_motion,
            latency: config.link_latency.mul_f64(slow_motion),
        };
        let link = NetworkLink::lay(NAME, near, &namespace, shape)?;
        Ok(RemoteStore { link, namespace })
    }
}

impl SparkCluster {
    /// The network of Spark's processes, and the store's if both are on one machine; `None` with a cluster that runs
    /// already.
    pub fn namespace(&self) -> Option<&Arc<NetworkNamespace>> {
        self.namespace.as_ref()
    }

    /// The network of a store that has a machine of its own.
    pub fn store_namespace(&self) -> Option<&Arc<NetworkNamespace>> {
        self.remote.as_ref().map(|remote| &remote.namespace)
    }

    /// Has all further jobs commit their outputs like this.
    pub fn set_committer(&self, committer: OutputCommitter) {
        self.state.lock().committer = committer;
    }

    pub(super) fn check(&self, during: &'static str) -> Result<(), SystemError> {
        self.manager.check(during)?;
        self.cache.as_ref().map_or(Ok(()), |cache| cache.check(during))?;
        self.driver.check(during)
    }

    /// Makes the bucket of an object store.
    pub(super) fn make_bucket(&self, limit: Duration) -> Result<(), SystemError> {
        if let SparkStore::Ceph(_) = &self.store {
            let limit_s = limit.as_secs_f64();
            let request = json!({ "do": "make-bucket", "bucket": BUCKET, "authority": self.authority(), "limit_s": limit_s });
            let healthy = || self.check("starting").and_then(|()| self.store.health());
            self.driver.request_within("starting", &request, limit, &healthy)?;
        }
        Ok(())
    }

    /// The CA file of our own requests to the store, if they need one.
    fn authority(&self) -> Option<String> {
        self.store.certificate().map(|certificate| certificate.chain().display().to_string())
    }

    /// The requests that the store has answered since the last call: a request of our own marks where the log must have
    /// got to.
    fn requests_so_far(
        &self,
        during: &'static str,
        state: &mut SparkState,
    ) -> Result<Vec<StoreRequest>, SystemError> {
        let Some(log) = &mut state.requests else { return Ok(Vec::new()) };
        state.marks += 1;
        let mark = format!("{MARK}{}", state.marks);
        let limit = LOG_LIMIT.mul_f64(self.slow_motion);
        let (authority, limit_s) = (self.authority(), limit.as_secs_f64());
        let request = json!({ "do": "mark", "bucket": BUCKET, "key": mark, "authority": authority, "limit_s": limit_s });
        self.driver.request_within(during, &request, limit, &|| self.health())?;
        log.read_up_to(&mark, limit).map_err(|error| {
            SystemError::failed(NAME, during, format!("can't read the store's log: {error}"))
        })
    }

    fn request_of(
        &self,
        action: &str,
        step: &DriverRequest,
        committer: OutputCommitter,
        group: &str,
        state: &SparkState,
    ) -> Value {
        let place = |name: &str| match (state.table(name), action) {
            (Some(table), _) => json!(table),
            // The store's own objects, for which a cache could answer.
            (None, VERIFY) => json!(self.store.url(name)),
            (None, _) => json!(self.url(name)),
        };
        let mut options: BTreeMap<&str, Value> = step.options.clone();
        options.extend(self.tools.clone());
        options.extend(step.input.map(|name| ("input", place(name))));
        options.extend(step.output.map(|name| ("output", place(name))));
        options.insert("tables", json!(self.url("tables")));
        if action == VERIFY && self.cache.is_some() {
            // A table names its files by the cache's address.
            options.extend([("cached", json!(self.url(""))), ("stored", json!(self.store.url("")))]);
        }
        json!({ "do": action, "job": step.job, "options": options, "settings": committer.settings(), "group": group })
    }

    /// Sends a request of a step and watches over it until it is answered.
    fn ask(
        &self,
        step: &DriverRequest,
        request: &Value,
        limit: Duration,
        watch: JobWatch<'_>,
    ) -> Result<Value, SystemError> {
        let began = Instant::now();
        let mut last = JobProgress { phase: "driver".to_owned(), done: 0.0 };
        let mut ended_because = None;
        let answer = self.driver.request(step.during, request, &mut |event| {
            if event["event"].as_str() == Some("progress") {
                let phase = event["phase"].as_str().unwrap_or_default().to_owned();
                last = JobProgress { phase, done: event["done"].as_f64().unwrap_or_default() };
            }
            // Asked why once: the driver takes its time to cancel a job.
            let reason = if ended_because.is_some() {
                None
            } else if !watch(&last) {
                Some(SystemError::failed(NAME, step.during, "it was stopped"))
            } else if began.elapsed() > limit {
                let worker_hint = match self.manager.workers() {
                    Some(workers) if workers.present().is_empty() => ", and Spark has no worker now",
                    _ => "",
                };
                let store = self.store.trouble().map(|problem| format!("; {problem}")).unwrap_or_default();
                let problem = format!(
                    "it took longer than its limit of {:.0} s{worker_hint}{store}",
                    limit.as_secs_f64()
                );
                Some(SystemError::failed(NAME, step.during, problem))
            } else {
                // Spark would wait forever for a worker that has died, and S3A for very long for its store. A node
                // that was sent away is no failure: it may come back.
                self.check(step.during).and_then(|()| self.store.health()).err()
            };
            ended_because = ended_because.take().or(reason);
            ended_because.is_none()
        });
        ended_because.map_or(answer, Err)
    }

    /// Makes what `step` reads, if it isn't there as this job needs it.
    fn make_input(
        &self,
        step: &DriverRequest,
        job: &JobRequest,
        watch: JobWatch<'_>,
        state: &mut SparkState,
    ) -> Result<(), SystemError> {
        let Some(maker) = step.input_step(&self.config, job)? else { return Ok(()) };
        if maker.output.is_none() || state.is_made(&maker) {
            return Ok(());
        }
        self.make_input(&maker, job, watch, state)?;
        let committer = self.committer_of_inputs();
        state.begins(&maker, committer);
        let request = self.request_of("run", &maker, committer, "input", state);
        self.run(&maker, &request, job.limit, watch, state)?;
        Ok(())
    }

    /// Runs a step and notes what it made.
    fn run(
        &self,
        step: &DriverRequest,
        request: &Value,
        limit: Duration,
        watch: JobWatch<'_>,
        state: &mut SparkState,
    ) -> Result<Value, SystemError> {
        let answer = self.ask(step, request, limit, watch)?;
        state.has_made(step);
        Ok(answer)
    }

    fn run_measured(&self, job: &JobRequest, watch: JobWatch<'_>) -> Result<JobRecord, SystemError> {
        let step = DriverRequest::from_job(&self.config, job)?;
        let state = &mut *self.state.lock();
        self.make_input(&step, job, watch, state)?;
        let lost = |error: std::io::Error| {
            SystemError::failed(NAME, step.during, format!("can't read its log: {error}"))
        };
        // Away with what was logged before.
        state.events.read().map_err(lost)?;
        self.requests_so_far(step.during, state)?;
        // Without a look behind the input that the job needed, the next one would count that as well.
        let served_before = state.served_bytes.take();
        state.served_before = None;
        let inside_before = self.bytes_inside();
        state.groups += 1;
        let committer = state.committer;
        state.begins(&step, committer);
        let request = self.request_of("run", &step, state.committer, &format!("job {}", state.groups), state);
        let before = self.cache.as_ref().map(|cache| cache.totals(step.during)).transpose()?;
        (state.undrained, state.used) = (None, None);
        let answer = self.run(&step, &request, job.limit, watch, state)?;
        let (ended, ended_s) = (Instant::now(), now_s());
        let inside = self.bytes_inside();
        let at_end = self.totals_at_end(step.during, job.limit, watch)?;
        let events = state.events.read().map_err(lost)?;
        let requests = self.requests_so_far(step.during, state)?;
        state.undrained = before.zip(at_end).map(|(before, at_end)| UndrainedJob {
            before,
            at_end,
            ended,
            ended_s,
            traffic: StoreTraffic::from_requests(&requests),
        });
        let result = &answer["result"];
        let committer =
            step.output.map(|_| committed_by(state.committer, step.during, result)).transpose()?;
        let ran = JobTiming::told_by(&answer, step.during)?;
        let mut record = record(&job.name, ran, &events, &requests, committer, result);
        if let (Some(before), Some(after)) = (inside_before, inside) {
            let pairs = after.into_iter().zip(before);
            record.counters.extend(pairs.map(|((name, after), (_, before))| {
                (format!("{name}_bytes"), after.saturating_sub(before) as f64)
            }));
        }
        state.result = result.clone();
        state.served_before = served_before;
        Ok(record)
    }

    /// Leaves a cluster that runs already as it was found: only the session can reach what its jobs wrote.
    fn leave(&self) -> Result<(), SystemError> {
        let SparkStore::Given(location) = &self.store else { return Ok(()) };
        if !location.is_used() {
            return Ok(());
        }
        let request = json!({ "do": "leave", "path": location.directory() });
        let left = self.driver.request_within("stopping", &request, LEAVE_LIMIT, &|| Ok(()));
        location.forget();
        if left.is_ok() {
            location.is_clear();
        }
        left.map(drop).map_err(|error| {
            let problem = format!("the jobs' files may still be at {}: {error}", location.directory());
            SystemError::failed(NAME, "stopping", problem)
        })
    }

    /// The bytes between the processes of each side so far: executors shuffle there, and a store copies and replicates.
    /// `None` where nobody can tell, and where both sides share a machine.
    fn bytes_inside(&self) -> Option<[(&'static str, u64); 2]> {
        let compute = self.namespace.as_ref()?.bytes_inside().ok()?;
        let store = self.remote.as_ref()?.namespace.bytes_inside().ok()?;
        Some([("compute_network", compute), ("store_network", store)])
    }

    /// The bytes that the external shuffle service has served so far, by its own count; `None` without one.
    fn served_bytes(&self) -> Option<u64> {
        self.manager.shuffle_service()?.served_bytes(now_s())
    }

    fn verify(&self, job: &JobRequest, watch: JobWatch<'_>) -> Result<(), SystemError> {
        let step = DriverRequest::from_job(&self.config, job)?;
        if !step.is_checked {
            return Ok(());
        }
        // It is the store's copy that counts, and reading it is no part of what the job asked for.
        self.close_account(step.during, job.limit, watch)?;
        let mut state = self.state.lock();
        let mut request = self.request_of(VERIFY, &step, state.committer, "verification", &state);
        request["result"] = state.result.clone();
        let verified = self.ask(&step, &request, job.limit, watch);
        if verified.is_err() {
            state.is_wrong(&step);
        }
        verified.map(drop)
    }
}

/// The ids of all processes in these networks.
fn processes_in(namespace: Option<&Arc<NetworkNamespace>>, remote: Option<&RemoteStore>) -> Vec<u32> {
    let of_store = remote.map(|remote| &remote.namespace);
    namespace.into_iter().chain(of_store).flat_map(|namespace| namespace.processes()).collect()
}

impl RunningSystem for SparkCluster {
    fn connect(&self) -> Result<Box<dyn Client>, SystemError> {
        Err(SystemError::failed(
            NAME,
            "connecting",
            "it runs jobs and has no clients: give it a workload of jobs",
        ))
    }

    fn prepare_job(&self, job: &JobRequest, watch: JobWatch<'_>) -> Result<(), SystemError> {
        let step = DriverRequest::from_job(&self.config, job)?;
        // Those of a worker that went come back a while after it.
        let is_wanted = || self.is_wanted(step.during, "executors", watch);
        self.driver.wait_until_ready(step.during, self.config.executors, job.limit, &is_wanted)?;
        self.make_input(&step, job, watch, &mut self.state.lock())?;
        self.drain(step.during, job.limit, watch)?;
        // By then the cache has reported all earlier work, which is no part of the job's.
        std::thread::sleep(self.cache.as_ref().map_or(Duration::ZERO, RunningCache::told_after));
        // It takes a second or two, which is no part of what is measured.
        let served_bytes = self.served_bytes();
        self.state.lock().served_bytes = served_bytes;
        Ok(())
    }

    fn run_job(&self, job: &JobRequest, watch: JobWatch<'_>) -> Option<Result<JobRecord, SystemError>> {
        Some(self.run_measured(job, watch))
    }

    fn drain_job(&self, job: &JobRequest, watch: JobWatch<'_>) -> Result<Option<CacheUse>, SystemError> {
        self.drained(job, watch)
    }

    fn complete_job(&self, job: &mut JobRecord) {
        let served_before = self.state.lock().served_before.take();
        let Some(before) = served_before else { return };
        if let Some(after) = self.served_bytes() {
            job.counters.insert("shuffle_service_bytes".to_owned(), after.saturating_sub(before) as f64);
        }
    }

    fn verify_job(&self, job: &JobRequest, watch: JobWatch<'_>) -> Result<(), SystemError> {
        self.verify(job, watch)
    }

    fn nodes(&self) -> Option<&dyn SystemNodes> {
        Some(self)
    }

    fn processes(&self) -> Vec<u32> {
        processes_in(self.namespace.as_ref(), self.remote.as_ref())
    }

    fn applied_settings(&self) -> BTreeMap<String, String> {
        let mut applied = self.config.applied();
        applied.insert("committer".to_owned(), self.state.lock().committer.name());
        self.resources.record_java_option(&mut applied);
        applied
    }

    fn health(&self) -> Result<(), SystemError> {
        self.check("running")?;
        self.store.health()
    }

    fn figures(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        let mut figures = self.store.figures()?;
        if let Some(cache) = &self.cache {
            figures.extend(cache.totals("running")?.figures());
        }
        if let Some(remote) = &self.remote {
            let carried = remote.link.carried();
            figures.insert("link_to_store_bytes".to_owned(), carried.near_to_far as f64);
            figures.insert("link_from_store_bytes".to_owned(), carried.far_to_near as f64);
        }
        Ok(figures)
    }

    fn gauges(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        if self.namespace.is_none() {
            return Ok(BTreeMap::new());
        }
        let of_store: BTreeSet<u32> = self.store.processes().into_iter().collect();
        let (mut compute, mut store) = (0, 0);
        for process in self.processes() {
            let bytes = crate::process_memory::resident_bytes(process).unwrap_or(0);
            if of_store.contains(&process) { store += bytes } else { compute += bytes }
        }
        let mut gauges = BTreeMap::from([
            ("current_compute_resident_bytes".to_owned(), compute as f64),
            ("current_store_resident_bytes".to_owned(), store as f64),
        ]);
        if let Some(cache) = &self.cache {
            gauges.extend(cache.totals("running")?.gauges());
        }
        if let Some(remote) = &self.remote {
            let carried = remote.link.carried();
            let Some([compute, store]) = self.bytes_inside() else { return Ok(gauges) };
            let bytes = [
                ("link_to_store", carried.near_to_far),
                ("link_from_store", carried.far_to_near),
                compute,
                store,
            ];
            let now = (Instant::now(), bytes.map(|(_, bytes)| bytes));
            // The first look tells no rate.
            if let Some((instant, before)) = self.last_carried.lock().replace(now) {
                let modelled_s = now.0.duration_since(instant).as_secs_f64() / self.slow_motion;
                for ((name, now), before) in bytes.into_iter().zip(before) {
                    let rate = now.saturating_sub(before) as f64 / modelled_s.max(1e-3);
                    gauges.insert(format!("current_{name}_bytes_per_s"), rate);
                }
            }
        }
        Ok(gauges)
    }

    fn settle(&self, limit: Duration) -> Result<(), SystemError> {
        self.store.settle(limit)
    }

    fn abort(&self) {
        self.driver.kill();
        self.manager.end();
        self.cache.iter().for_each(RunningCache::kill);
        self.store.abort();
    }

    fn stop(self: Box<Self>) -> Result<(), SystemError> {
        let deleted = self.leave();
        let SparkCluster { driver, manager, cache, store, namespace, remote, .. } = *self;
        // Neither has a state to save.
        drop(driver);
        manager.end();
        drop(manager);
        let stopped = cache.map_or(Ok(()), RunningCache::stop);
        let stopped = deleted.and(stopped).and(store.stop());
        // The kernel kills the executors asynchronously, once the first process of their namespace is gone.
        let stopping = Instant::now();
        loop {
            let left = processes_in(namespace.as_ref(), remote.as_ref()).len();
            if left == 0 {
                return stopped;
            }
            if stopping.elapsed() > END_LIMIT {
                let problem = format!("{left} of its processes did not end");
                return stopped.and(Err(SystemError::failed(NAME, "stopping", problem)));
            }
            std::thread::sleep(END_POLL);
        }
    }
}

impl SystemNodes for SparkCluster {
    fn list(&self) -> Result<Vec<NodeState>, SystemError> {
        let mut states: Vec<NodeState> =
            self.manager.workers().map(|workers| workers.states(Some(NodeRole::Worker))).unwrap_or_default();
        if let Some(nodes) = self.store.nodes() {
            states.extend(nodes.list()?);
        }
        Ok(states)
    }

    fn stop(&self, name: &str) -> Result<(), SystemError> {
        if let Some(nodes) = self.store.nodes_with(name) {
            return nodes.stop(name);
        }
        const DURING: &str = "stopping a worker";
        let workers = self.manager.workers().ok_or_else(|| unknown(NAME, DURING, name, []))?;
        workers.stop(name, DURING, |worker| {
            // Spark has no other way: executors go with their worker.
            worker.kill();
            Ok(())
        })
    }

    fn kill(&self, name: &str) -> Result<(), SystemError> {
        if let Some(nodes) = self.store.nodes_with(name) {
            return nodes.kill(name);
        }
        const DURING: &str = "killing a worker";
        self.manager.workers().ok_or_else(|| unknown(NAME, DURING, name, []))?.kill(name, DURING)
    }

    fn start(&self, name: &str, process_back: &(dyn Fn() + Sync)) -> Result<(), SystemError> {
        if let Some(nodes) = self.store.nodes_with(name) {
            return nodes.start(name, process_back);
        }
        self.manager.start_again(name, process_back)
    }
}

fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
