//! The servers of a session: usually one, or several where a study runs stand-alone ones side by side.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use underlay_record::{BenchmarkRecord, CacheUse, JobRecord, TopologyRecord};
use underlay_systems::nodes::SystemNodes;
use underlay_systems::parts::SystemPart;
use underlay_systems::system::{
    BenchmarkRequest, BenchmarkWatch, CommandWatch, JobRequest, JobWatch, LoadRequest, RunningSystem,
    StoragePaths, System, SystemError, SystemResources, SystemSettings,
};
use underlay_workload::client::Client;

use super::SessionError;
use super::at_stop::end_on_stop;

/// Started servers, each with its own data. Dropping them ends them at once.
pub struct StartedServers {
    each: Vec<Box<dyn RunningSystem>>,
    /// The parts of each, where it lists them.
    parts: Vec<Vec<SystemPart>>,
}

impl StartedServers {
    /// Starts a server for each of these, all at the same time.
    pub(super) fn start(
        system: &dyn System,
        grounds: &[(StoragePaths, SystemResources)],
        settings: &SystemSettings,
    ) -> Result<StartedServers, SystemError> {
        let started = on_each(grounds, |(paths, resources)| system.start(paths, resources, settings));
        // If one did not start, the others end here.
        let each = started.into_iter().collect::<Result<Vec<_>, _>>()?;
        assert!(!each.is_empty(), "a session has one server at least");
        let parts = grounds.iter().map(|(paths, _)| system.parts(paths, &settings.values)).collect();
        Ok(StartedServers { each, parts })
    }

    /// A connection for a client thread, which always uses the same server.
    ///
    /// # Errors
    /// When the server can't be connected to.
    pub fn connect(&self, thread: u32) -> Result<Box<dyn Client>, SystemError> {
        // In turn: the check of a study ensures that threads divide evenly.
        self.each[thread as usize % self.each.len()].connect()
    }

    /// The nodes of the only server, if they can go down and come back one by one.
    pub fn nodes(&self) -> Option<&dyn SystemNodes> {
        match self.each.as_slice() {
            [only] => only.nodes(),
            _ => None,
        }
    }

    /// Creates the input of a batch job on the first server.
    ///
    /// # Errors
    /// When the job's input can't be made.
    pub fn prepare_job(&self, job: &JobRequest, watch: JobWatch<'_>) -> Result<(), SystemError> {
        self.each[0].prepare_job(job, watch)
    }

    /// Runs a batch job on the first server; `None` when it has none.
    ///
    /// # Errors
    /// When the job fails.
    pub fn run_job(&self, job: &JobRequest, watch: JobWatch<'_>) -> Option<Result<JobRecord, SystemError>> {
        self.each[0].run_job(job, watch)
    }

    /// Waits until a batch job's output has left the cache of the first server for its final place.
    ///
    /// # Errors
    /// When it can't be stored.
    pub fn drain_job(&self, job: &JobRequest, watch: JobWatch<'_>) -> Result<Option<CacheUse>, SystemError> {
        self.each[0].drain_job(job, watch)
    }

    /// Adds to the record of a batch job what the first server reports only after the measured window.
    pub fn complete_job(&self, job: &mut JobRecord) {
        self.each[0].complete_job(job);
    }

    /// Checks the output of a batch job on the first server.
    ///
    /// # Errors
    /// The fault in its output.
    pub fn verify_job(&self, job: &JobRequest, watch: JobWatch<'_>) -> Result<(), SystemError> {
        self.each[0].verify_job(job, watch)
    }

    /// Lets the first server's own command load its data; `None` when clients do.
    ///
    /// # Errors
    /// When the command fails.
    pub fn load_data(&self, load: &LoadRequest, watch: CommandWatch<'_>) -> Option<Result<(), SystemError>> {
        self.each[0].load_data(load, watch)
    }

    /// Runs a user's benchmark on the first server; `None` when it has none.
    ///
    /// # Errors
    /// When the benchmark fails, or one of its metrics is missing.
    pub fn run_benchmark(
        &self,
        benchmark: &BenchmarkRequest,
        watch: BenchmarkWatch<'_>,
    ) -> Option<Result<BenchmarkRecord, SystemError>> {
        self.each[0].run_benchmark(benchmark, watch)
    }

    /// The processes of all servers, for accounting.
    pub fn processes(&self) -> Vec<u32> {
        self.each.iter().flat_map(|server| server.processes()).collect()
    }

    /// The logs of the first server by name, each up to a limit.
    pub fn logs(&self) -> Vec<(String, String)> {
        self.each[0].logs()
    }

    pub fn applied_settings(&self) -> BTreeMap<String, String> {
        // All have the same settings, and `start` made sure that there is one.
        self.each[0].applied_settings()
    }

    /// Where the first server keeps its copies of the data.
    pub fn topology(&self) -> Option<TopologyRecord> {
        self.each[0].topology()
    }

    /// The parts of each server; none for a single process.
    pub fn parts(&self) -> &[Vec<SystemPart>] {
        &self.parts
    }

    /// Whether all are healthy.
    ///
    /// # Errors
    /// When one has failed.
    pub fn health(&self) -> Result<(), SystemError> {
        self.each.iter().try_for_each(|server| server.health())
    }

    /// A caller that waits for an answer of a server gets an error.
    pub fn abort(&self) {
        self.each.iter().for_each(|server| server.abort());
    }

    /// Calls a function that waits for the servers. At `stop` they are aborted.
    pub(super) fn aborted_at<T>(&self, stop: &AtomicBool, act: impl FnOnce() -> T) -> T {
        let abort = || {
            self.abort();
            ControlFlow::Break(())
        };
        end_on_stop(stop, abort, act)
    }

    /// The metrics of all servers together: amounts are summed, other values are averaged.
    ///
    /// # Errors
    /// When one can't be asked.
    pub fn figures(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        let each = self.each.iter().map(|server| server.figures()).collect::<Result<Vec<_>, _>>()?;
        Ok(together(&each))
    }

    /// The gauges of all servers together.
    ///
    /// # Errors
    /// When one can't be asked.
    pub fn gauges(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        let each = self.each.iter().map(|server| server.gauges()).collect::<Result<Vec<_>, _>>()?;
        Ok(together(&each))
    }

    /// Brings all of them to the state that measurements start from. This may take minutes; a user's stop ends them at
    /// once.
    pub(super) fn settle(&self, limit: Duration, stop: &AtomicBool) -> Result<(), SessionError> {
        let settle = || on_each(&self.each, |server| server.settle(limit)).into_iter().collect();
        let outcome: Result<(), SystemError> = self.aborted_at(stop, settle);
        if stop.load(Ordering::Relaxed) { Err(SessionError::Stopped) } else { Ok(outcome?) }
    }

    /// Makes all of them compact everything while clients go on.
    ///
    /// # Errors
    /// When one can't, or is not done within `limit`.
    pub fn compact(&self, limit: Duration) -> Result<(), SystemError> {
        on_each(&self.each, |server| server.compact(limit)).into_iter().collect()
    }

    /// Shuts all of them down cleanly, and reports the first failure.
    pub(super) fn stop(self) -> Result<(), SystemError> {
        let stopped = std::thread::scope(|scope| {
            let threads: Vec<_> =
                self.each.into_iter().map(|server| scope.spawn(move || server.stop())).collect();
            threads.into_iter().map(|thread| thread.join().expect("stopping panicked")).collect::<Vec<_>>()
        });
        stopped.into_iter().collect()
    }
}

/// Calls a function for each at the same time, and returns the results in order.
fn on_each<T: Sync, R: Send>(all: &[T], act: impl Fn(&T) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = all.iter().map(|one| scope.spawn(|| act(one))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a server's thread panicked")).collect()
    })
}

/// Endings of metrics that are levels: a sum over servers would be meaningless.
const LEVELS: [&str; 5] = ["_us", "_ms", "_share", "_ratio", "_percent"];

fn together(each: &[BTreeMap<String, f64>]) -> BTreeMap<String, f64> {
    let mut sums: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for (name, value) in each.iter().flatten() {
        let (sum, count) = sums.entry(name.clone()).or_default();
        *sum += value;
        *count += 1.0;
    }
    let is_level = |name: &str| LEVELS.iter().any(|ending| name.ends_with(ending));
    sums.into_iter()
        .map(|(name, (sum, count))| {
            let value = if is_level(&name) { sum / count } else { sum };
            (name, value)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::{Condvar, Mutex};

    use super::*;

    #[test]
    fn amounts_are_summed_and_levels_averaged() {
        let figures = |pairs: &[(&str, f64)]| -> BTreeMap<String, f64> {
            pairs.iter().map(|&(name, value)| (name.to_owned(), value)).collect()
        };
        let both = [
            figures(&[("reads", 10.0), ("current_read_latency_us", 200.0), ("only_here", 1.0)]),
            figures(&[("reads", 30.0), ("current_read_latency_us", 400.0)]),
        ];
        let expected = figures(&[("reads", 40.0), ("current_read_latency_us", 300.0), ("only_here", 1.0)]);
        assert_eq!(together(&both), expected);
    }

    #[test]
    fn servers_get_shares_of_threads() {
        let ground = || (StoragePaths::default(), SystemResources::with_budget(0));
        let servers = StartedServers::start(
            &underlay_systems::null::Null,
            &[ground(), ground()],
            &SystemSettings::default(),
        )
        .unwrap();
        assert_eq!(servers.each.len(), 2);
        for thread in 0..4 {
            servers.connect(thread).unwrap();
        }
        servers.settle(Duration::from_secs(1), &AtomicBool::new(false)).unwrap();
        servers.health().unwrap();
        servers.stop().unwrap();
    }

    /// Settles when it is aborted, and never before.
    #[derive(Default)]
    struct Busy {
        aborted: Mutex<bool>,
        noticed: Condvar,
    }

    impl RunningSystem for Busy {
        fn connect(&self) -> Result<Box<dyn Client>, SystemError> {
            unreachable!("nobody asks")
        }
        fn processes(&self) -> Vec<u32> {
            Vec::new()
        }
        fn applied_settings(&self) -> BTreeMap<String, String> {
            BTreeMap::new()
        }
        fn health(&self) -> Result<(), SystemError> {
            Ok(())
        }
        fn figures(&self) -> Result<BTreeMap<String, f64>, SystemError> {
            Ok(BTreeMap::new())
        }
        fn settle(&self, limit: Duration) -> Result<(), SystemError> {
            let aborted = self.aborted.lock().unwrap();
            let waited = self.noticed.wait_timeout_while(aborted, limit, |aborted| !*aborted).unwrap();
            let problem = if *waited.0 { "its process ended" } else { "it took too long" };
            Err(SystemError::failed("busy", "settling", problem))
        }
        fn abort(&self) {
            *self.aborted.lock().unwrap() = true;
            self.noticed.notify_all();
        }
        fn stop(self: Box<Self>) -> Result<(), SystemError> {
            Ok(())
        }
    }

    #[test]
    fn stop_does_not_wait_for_settling_servers() {
        let started = |each: Vec<Box<dyn RunningSystem>>| StartedServers { each, parts: Vec::new() };
        let servers = started(vec![Box::new(Busy::default()), Box::new(Busy::default())]);
        // The result must be the user's stop, not the servers' end that it causes.
        let stopped = servers.settle(Duration::MAX, &AtomicBool::new(true));
        assert!(matches!(stopped, Err(SessionError::Stopped)), "{stopped:?}");
        let servers = started(vec![Box::new(Busy::default())]);
        let too_long = servers.settle(Duration::from_millis(1), &AtomicBool::new(false)).unwrap_err();
        assert!(format!("{too_long:?}").contains("it took too long"), "{too_long:?}");
    }
}
