//! The administration of a store: deploying it, and asking how it is.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::NAME;
use super::deployment::{self, AdminExecutor, last_lines, lost, words};
use super::places::name;
use super::reports::{StoreStatus, StoreTopology, parse};
use super::storage_node::{StorageNodePlan, endpoint};
use super::tools::ToolQueue;
use crate::private_file::write_private;
use crate::system::SystemError;

/// Each look starts a Java process.
const POLL: Duration = Duration::from_millis(500);
/// How long one look may take: it waits for storage nodes that do not answer.
const LOOK_LIMIT: Duration = Duration::from_secs(60);

/// Parameters by Oracle NoSQL Database's names.
pub(super) struct NosqlParameters {
    pub replication_nodes: BTreeMap<String, String>,
    pub storage_nodes: BTreeMap<String, String>,
}

impl NosqlParameters {
    pub(super) fn all(&self) -> BTreeMap<String, String> {
        self.replication_nodes.clone().into_iter().chain(self.storage_nodes.clone()).collect()
    }

    /// The commands that put these in force where `former` are. Replication nodes start again one by one.
    fn changes(&self, former: &BTreeMap<String, String>, nodes: u64) -> Vec<String> {
        let differ = |wanted: &BTreeMap<String, String>| {
            wanted.iter().any(|(name, value)| former.get(name) != Some(value))
        };
        let mut targets: Vec<(String, &BTreeMap<String, String>)> = Vec::new();
        if differ(&self.storage_nodes) {
            let services = (1..=nodes).map(|number| format!("-service {}", name(number)));
            targets.extend(services.map(|service| (service, &self.storage_nodes)));
        }
        if differ(&self.replication_nodes) {
            targets.push(("-all-rns".to_owned(), &self.replication_nodes));
        }
        let command = |(target, parameters): (String, &BTreeMap<String, String>)| {
            format!("plan change-parameters {target} -wait -params {}", words(parameters))
        };
        targets.into_iter().map(command).collect()
    }
}

/// Questions and commands to a store.
pub(super) struct StoreAdmin {
    tools: ToolQueue,
}

impl StoreAdmin {
    pub(super) fn new() -> StoreAdmin {
        StoreAdmin { tools: ToolQueue::default() }
    }

    /// Makes a store of storage nodes whose agents run, as long as `check` finds nothing wrong with them; whether its
    /// parameters are certain to be in force.
    pub(super) fn deploy(
        &self,
        plan: &StorageNodePlan,
        parameters: &NosqlParameters,
        check: &dyn Fn() -> Result<(), SystemError>,
    ) -> Result<bool, SystemError> {
        let commanding = AdminSession { admin: self, plan, check, began: Instant::now() };
        deployment::deploy(&commanding, &plan.config, &parameters.all())
    }

    /// Puts `parameters` in force where `former` are.
    pub(super) fn change(
        &self,
        plan: &StorageNodePlan,
        former: &BTreeMap<String, String>,
        parameters: &NosqlParameters,
    ) -> Result<(), SystemError> {
        const DURING: &str = "changing the parameters of the store";
        for command in parameters.changes(former, plan.config.nodes) {
            let output = self.run_script(plan, DURING, &format!("hidden\n{command}\n"))?;
            if !output.contains("ended successfully") && !output.contains("No parameters") {
                return Err(SystemError::failed(NAME, DURING, last_lines(&output)));
            }
        }
        Ok(())
    }

    pub(super) fn topology(
        &self,
        plan: &StorageNodePlan,
        during: &'static str,
        check: &dyn Fn() -> Result<(), SystemError>,
    ) -> Result<StoreTopology, SystemError> {
        let complaint = "it does not show its topology";
        self.report(plan, (during, complaint), &["show", "topology", "-json"], check)
    }

    /// The store's own findings of problems.
    pub(super) fn verify(
        &self,
        plan: &StorageNodePlan,
        during: &'static str,
        check: &dyn Fn() -> Result<(), SystemError>,
    ) -> Result<StoreStatus, SystemError> {
        self.report(plan, (during, "it can't be verified"), &["verify", "configuration", "-json"], check)
    }

    /// The administration's report, once it answers: after a start it may be down for a while.
    fn report<T: serde::de::DeserializeOwned>(
        &self,
        plan: &StorageNodePlan,
        (during, complaint): (&'static str, &str),
        words: &[&str],
        check: &dyn Fn() -> Result<(), SystemError>,
    ) -> Result<T, SystemError> {
        let began = Instant::now();
        loop {
            let output = self.run_admin(plan, during, words)?;
            match parse(&output) {
                Ok(report) => return Ok(report),
                Err(problem) if !lost(&output) || began.elapsed() > plan.limit => {
                    return Err(SystemError::failed(NAME, during, format!("{complaint}: {problem}")));
                }
                Err(_) => {
                    check()?;
                    std::thread::sleep(POLL);
                }
            }
        }
    }

    /// How the store is, as any of the storage nodes with these numbers tells. Not waited for once that is `unwanted`.
    pub(super) fn ping(
        &self,
        plan: &StorageNodePlan,
        during: &'static str,
        nodes: &[u64],
        unwanted: &dyn Fn() -> bool,
    ) -> Result<Result<StoreStatus, String>, SystemError> {
        let helpers: Vec<String> = nodes.iter().map(|&number| endpoint(number).to_string()).collect();
        let words = ["ping", "-helper-hosts", &helpers.join(","), "-json"];
        let limit = LOOK_LIMIT.min(plan.limit);
        let output = self.run(plan, (during, limit), "ping", &words, unwanted)?;
        Ok(parse(&output))
    }

    /// Looks until the store `is_ready`, as long as `check` finds nothing wrong with its processes.
    pub(super) fn wait(
        &self,
        plan: &StorageNodePlan,
        (during, limit): (&'static str, Duration),
        nodes: &dyn Fn() -> Vec<u64>,
        check: &dyn Fn() -> Result<(), SystemError>,
        is_ready: &dyn Fn(&StoreStatus) -> bool,
    ) -> Result<StoreStatus, SystemError> {
        let began = Instant::now();
        loop {
            check()?;
            // A look takes a while, in which nodes may have gone.
            let problem = match self.ping(plan, during, &nodes(), &|| check().is_err()) {
                Ok(Ok(status)) if is_ready(&status) => return Ok(status),
                Ok(Ok(status)) => status.describe(),
                Ok(Err(problem)) => problem,
                // It may have waited for another node that hangs: the next one may not.
                Err(error) => {
                    check()?;
                    error.to_string()
                }
            };
            if began.elapsed() > limit {
                let problem = format!("it is not ready after {:.0} s: {problem}", limit.as_secs_f64());
                check()?;
                return Err(SystemError::failed(NAME, during, problem));
            }
            std::thread::sleep(POLL);
        }
    }

    fn run_script(
        &self,
        plan: &StorageNodePlan,
        during: &'static str,
        script: &str,
    ) -> Result<String, SystemError> {
        let path = plan.scratch.join("script");
        write_private(&path, script).map_err(|error| {
            SystemError::failed(NAME, during, format!("can't write {}: {error}", path.display()))
        })?;
        self.run_admin(plan, during, &["load", "-file", &path.display().to_string()])
    }

    fn run_admin(
        &self,
        plan: &StorageNodePlan,
        during: &'static str,
        words: &[&str],
    ) -> Result<String, SystemError> {
        let (host, port) = (endpoint(1).ip().to_string(), endpoint(1).port().to_string());
        let all = [&["runadmin", "-host", &host, "-port", &port][..], words].concat();
        self.run(plan, (during, plan.limit), "runadmin", &all, &|| false)
    }

    fn run(
        &self,
        plan: &StorageNodePlan,
        during_and_limit: (&'static str, Duration),
        name: &str,
        words: &[&str],
        unwanted: &dyn Fn() -> bool,
    ) -> Result<String, SystemError> {
        let tool = plan.tool(name, words.iter().map(|&word| word.to_owned()).collect());
        self.tools.run(&tool, (&plan.java, &plan.resources), during_and_limit, unwanted)
    }
}

/// The administration of a store that is being deployed.
struct AdminSession<'a> {
    admin: &'a StoreAdmin,
    plan: &'a StorageNodePlan,
    check: &'a dyn Fn() -> Result<(), SystemError>,
    began: Instant,
}

impl AdminExecutor for AdminSession<'_> {
    fn command(&self, script: &str) -> Result<String, SystemError> {
        self.admin.run_script(self.plan, deployment::DURING, script)
    }

    fn show_topology(&self) -> Result<String, SystemError> {
        self.admin.run_admin(self.plan, deployment::DURING, &["show", "topology", "-json"])
    }

    fn check(&self) -> Result<(), SystemError> {
        (self.check)()
    }

    fn pause(&self, pause: Duration) -> bool {
        std::thread::sleep(pause);
        self.began.elapsed() < self.plan.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_changed() {
        let parameters = NosqlParameters {
            replication_nodes: BTreeMap::from([("cacheSize".to_owned(), "34603008".to_owned())]),
            storage_nodes: BTreeMap::from([("serviceStopWait".to_owned(), "240_SECONDS".to_owned())]),
        };
        assert_eq!(parameters.changes(&parameters.all(), 3), [""; 0]);
        let of_cache = "plan change-parameters -all-rns -wait -params \"cacheSize=34603008\"";
        assert_eq!(parameters.changes(&parameters.storage_nodes, 3), [of_cache]);
        let all = parameters.changes(&BTreeMap::new(), 3);
        assert_eq!((all.len(), all[3].as_str()), (4, of_cache));
        assert_eq!(
            all[1],
            "plan change-parameters -service sn2 -wait -params \"serviceStopWait=240_SECONDS\""
        );
    }
}
