//! The administration of a store: deploying it, and asking how it is.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::NAME;
use super::config::Config;
use super::places::name;
use super::reports::{Status, Topology, parse};
use super::storage_node::{Plan, STORE, endpoint};
use super::tools::Tools;
use crate::private_file::write_private;
use crate::system::SystemError;

const ZONE: &str = "underlay";
/// Each look starts a Java process.
const POLL: Duration = Duration::from_millis(500);
/// How long one look may take: it waits for storage nodes that do not answer.
const LOOK_LIMIT: Duration = Duration::from_secs(60);

/// Parameters by Oracle NoSQL Database's names.
pub(super) struct Parameters {
    pub replication_nodes: BTreeMap<String, String>,
    pub storage_nodes: BTreeMap<String, String>,
}

impl Parameters {
    pub(super) fn all(&self) -> BTreeMap<String, String> {
        self.replication_nodes.clone().into_iter().chain(self.storage_nodes.clone()).collect()
    }

    /// The commands that put these in force where `former` are. Replication nodes start again one by one.
    fn changes(&self, former: &BTreeMap<String, String>, nodes: u64) -> Vec<String> {
        let differ = |wanted: &BTreeMap<String, String>| {
            wanted.iter().any(|(name, value)| former.get(name) != Some(value))
        };
        let mut whose: Vec<(String, &BTreeMap<String, String>)> = Vec::new();
        if differ(&self.storage_nodes) {
            let services = (1..=nodes).map(|number| format!("-service {}", name(number)));
            whose.extend(services.map(|service| (service, &self.storage_nodes)));
        }
        if differ(&self.replication_nodes) {
            whose.push(("-all-rns".to_owned(), &self.replication_nodes));
        }
        let command = |(whose, parameters): (String, &BTreeMap<String, String>)| {
            format!("plan change-parameters {whose} -wait -params {}", words(parameters))
        };
        whose.into_iter().map(command).collect()
    }
}

/// What is asked and commanded of a store.
pub(super) struct Admin {
    tools: Tools,
}

impl Admin {
    pub(super) fn new() -> Admin {
        Admin { tools: Tools::default() }
    }

    /// Makes a store of storage nodes whose agents run, as long as `check` finds nothing wrong with them.
    pub(super) fn deploy(
        &self,
        plan: &Plan,
        parameters: &Parameters,
        check: &dyn Fn() -> Result<(), SystemError>,
    ) -> Result<Topology, SystemError> {
        const DURING: &str = "deploying the store";
        let (script, began) = (deployment(&plan.config, &parameters.all()), Instant::now());
        let said = loop {
            let said = self.run_script(plan, DURING, &script)?;
            // The first agent listens before the administration that it starts does.
            if !has_no_administration(&said) || began.elapsed() > plan.limit {
                break said;
            }
            check()?;
            std::thread::sleep(POLL);
        };
        let topology = self.topology(plan, DURING)?;
        let (config, has) = (&plan.config, &topology.shards);
        let nodes: usize = has.iter().map(|shard| shard.rns.len()).sum();
        if has.len() as u64 != config.shards() || nodes as u64 != config.replication_nodes() {
            let problem = format!(
                "it has {} shards and {nodes} replication nodes instead of {} and {}: {}",
                has.len(),
                config.shards(),
                config.replication_nodes(),
                last_lines(&said)
            );
            return Err(SystemError::failed(NAME, DURING, problem));
        }
        Ok(topology)
    }

    /// Puts `parameters` in force where `former` are.
    pub(super) fn change(
        &self,
        plan: &Plan,
        former: &BTreeMap<String, String>,
        parameters: &Parameters,
    ) -> Result<(), SystemError> {
        const DURING: &str = "changing the parameters of the store";
        for command in parameters.changes(former, plan.config.nodes) {
            let said = self.run_script(plan, DURING, &format!("hidden\n{command}\n"))?;
            if !said.contains("ended successfully") && !said.contains("No parameters") {
                return Err(SystemError::failed(NAME, DURING, last_lines(&said)));
            }
        }
        Ok(())
    }

    pub(super) fn topology(&self, plan: &Plan, during: &'static str) -> Result<Topology, SystemError> {
        let said = self.run_admin(plan, during, &["show", "topology", "-json"])?;
        parse(&said).map_err(|problem| {
            SystemError::failed(NAME, during, format!("it does not show its topology: {problem}"))
        })
    }

    /// What is wrong with the store in its own eyes.
    pub(super) fn verify(&self, plan: &Plan, during: &'static str) -> Result<Status, SystemError> {
        let said = self.run_admin(plan, during, &["verify", "configuration", "-json"])?;
        parse(&said)
            .map_err(|problem| SystemError::failed(NAME, during, format!("it can't be verified: {problem}")))
    }

    /// How the store is, as any of the storage nodes with these numbers tells. Not waited for once that is `unwanted`.
    pub(super) fn ping(
        &self,
        plan: &Plan,
        during: &'static str,
        nodes: &[u64],
        unwanted: &dyn Fn() -> bool,
    ) -> Result<Result<Status, String>, SystemError> {
        let helpers: Vec<String> = nodes.iter().map(|&number| endpoint(number).to_string()).collect();
        let words = ["ping", "-helper-hosts", &helpers.join(","), "-json"];
        let limit = LOOK_LIMIT.min(plan.limit);
        let said = self.run(plan, (during, limit), "ping", &words, unwanted)?;
        Ok(parse(&said))
    }

    /// Looks until the store `is_ready`, as long as `check` finds nothing wrong with its processes.
    pub(super) fn wait(
        &self,
        plan: &Plan,
        (during, limit): (&'static str, Duration),
        nodes: &dyn Fn() -> Vec<u64>,
        check: &dyn Fn() -> Result<(), SystemError>,
        is_ready: &dyn Fn(&Status) -> bool,
    ) -> Result<Status, SystemError> {
        let began = Instant::now();
        loop {
            check()?;
            // A look takes a while, in which nodes may have gone.
            let status = match self.ping(plan, during, &nodes(), &|| check().is_err()) {
                Ok(status) => status,
                Err(error) => return check().and(Err(error)),
            };
            let problem = match status {
                Ok(status) if is_ready(&status) => return Ok(status),
                Ok(status) => status.in_words(),
                Err(problem) => problem,
            };
            if began.elapsed() > limit {
                let problem = format!("it is not ready after {:.0} s: {problem}", limit.as_secs_f64());
                check()?;
                return Err(SystemError::failed(NAME, during, problem));
            }
            std::thread::sleep(POLL);
        }
    }

    fn run_script(&self, plan: &Plan, during: &'static str, script: &str) -> Result<String, SystemError> {
        let path = plan.scratch.join("script");
        write_private(&path, script).map_err(|error| {
            SystemError::failed(NAME, during, format!("can't write {}: {error}", path.display()))
        })?;
        let said = self.run_admin(plan, during, &["load", "-file", &path.display().to_string()])?;
        match said.contains("Script error") {
            true => Err(SystemError::failed(NAME, during, last_lines(&said))),
            false => Ok(said),
        }
    }

    fn run_admin(&self, plan: &Plan, during: &'static str, words: &[&str]) -> Result<String, SystemError> {
        let (host, port) = (endpoint(1).ip().to_string(), endpoint(1).port().to_string());
        let all = [&["runadmin", "-host", &host, "-port", &port][..], words].concat();
        self.run(plan, (during, plan.limit), "runadmin", &all, &|| false)
    }

    fn run(
        &self,
        plan: &Plan,
        during_and_limit: (&'static str, Duration),
        name: &str,
        words: &[&str],
        unwanted: &dyn Fn() -> bool,
    ) -> Result<String, SystemError> {
        let tool = plan.tool(name, words.iter().map(|&word| word.to_owned()).collect());
        self.tools.run(&tool, &plan.java, during_and_limit, unwanted)
    }
}

/// The commands that make a store.
fn deployment(config: &Config, parameters: &BTreeMap<String, String>) -> String {
    let mut lines = vec![
        // Some parameters can be set only like this.
        "hidden".to_owned(),
        format!("configure -name {STORE}"),
        format!("change-policy -params {}", words(parameters)),
        format!("plan deploy-zone -name {ZONE} -rf {} -wait", config.replication()),
    ];
    for number in 1..=config.nodes {
        let (host, port) = (endpoint(number).ip(), endpoint(number).port());
        lines.push(format!("plan deploy-sn -znname {ZONE} -host {host} -port {port} -wait"));
        if number == 1 {
            lines.push(format!("plan deploy-admin -sn {} -wait", name(1)));
            lines.push(format!("pool create -name {STORE}"));
        }
        lines.push(format!("pool join -name {STORE} -sn {}", name(number)));
    }
    lines.extend([
        format!("topology create -name {STORE} -pool {STORE} -partitions {}", config.partitions()),
        format!("topology preview -name {STORE}"),
        format!("plan deploy-topology -name {STORE} -wait"),
    ]);
    lines.join("\n") + "\n"
}

/// Whether a tool found nobody to command, so that it has done nothing.
fn has_no_administration(said: &str) -> bool {
    said.contains("Cannot connect to") && !said.contains("ended successfully")
}

fn words(parameters: &BTreeMap<String, String>) -> String {
    let words: Vec<String> = parameters.iter().map(|(name, value)| format!("\"{name}={value}\"")).collect();
    words.join(" ")
}

/// The end of what a tool printed, where it says what went wrong.
fn last_lines(said: &str) -> String {
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(8)..].join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_make_what_the_settings_say() {
        let config = Config { nodes: 3, capacity: 2, given_partitions: Some(60), ..Config::default() };
        let parameters = BTreeMap::from([("cacheSize".to_owned(), "34603008".to_owned())]);
        let script = deployment(&config, &parameters);
        let lines: Vec<&str> = script.lines().collect();
        assert_eq!(
            lines[..4],
            [
                "hidden",
                "configure -name underlay",
                "change-policy -params \"cacheSize=34603008\"",
                "plan deploy-zone -name underlay -rf 3 -wait",
            ]
        );
        assert_eq!(lines.iter().filter(|line| line.starts_with("plan deploy-sn ")).count(), 3);
        assert_eq!(lines.iter().filter(|line| line.starts_with("plan deploy-admin ")).count(), 1);
        assert!(script.contains("plan deploy-sn -znname underlay -host 127.0.0.2 -port 5200 -wait\n"));
        assert!(script.ends_with("topology create -name underlay -pool underlay -partitions 60\ntopology preview -name underlay\nplan deploy-topology -name underlay -wait\n"));
        let parameters = Parameters {
            replication_nodes: parameters,
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
        assert_eq!(last_lines("a\n\n b \n"), "a; b");
        assert!(has_no_administration("Cannot connect to any admins.\n"));
        assert!(!has_no_administration("Plan 1 ended successfully\nCannot connect to any admins.\n"));
    }
}
