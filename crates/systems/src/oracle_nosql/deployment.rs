//! Deploying a store by commands of the administration.
//!
//! The administration begins after its agent has answered, and begins again when it is deployed. On a busy host a tool
//! gives up finding it before that, and goes on with the commands behind the one that nobody carried out. So a
//! deployment isn't judged by what the tool printed but by the topology that has come of it, and commands whose part is
//! missing there are given again.

use std::collections::BTreeMap;
use std::time::Duration;

use super::NAME;
use super::config::NosqlConfig;
use super::places::name;
use super::reports::{StoreTopology, parse};
use super::storage_node::{STORE, endpoint};
use crate::system::SystemError;

const ZONE: &str = "underlay";
pub(super) const DURING: &str = "deploying the store";
/// Between two looks at an administration that is not there, or still carries a plan out.
const PAUSE: Duration = Duration::from_millis(500);
/// How often commands are given again although the administration has answered all of them. Then it is not the
/// connection.
const ANSWERED_IN_VAIN: u32 = 20;

/// Executes the administration's commands.
pub(super) trait AdminExecutor {
    /// The administration's answer to these commands, one a line.
    fn command(&self, script: &str) -> Result<String, SystemError>;
    /// Its topology as printed.
    fn show_topology(&self) -> Result<String, SystemError>;
    /// Whether its processes run.
    fn check(&self) -> Result<(), SystemError>;
    /// Waits a little; whether there is time left after that.
    fn pause(&self, pause: Duration) -> bool;
}

/// Makes the store; whether what the topology does not show, such as parameters, is certain to be in force. It isn't
/// where the administration was away for a while.
///
/// # Errors
/// When a command is refused, a process ends, or the topology is not whole in time.
pub(super) fn deploy(
    administration: &dyn AdminExecutor,
    config: &NosqlConfig,
    parameters: &BTreeMap<String, String>,
) -> Result<bool, SystemError> {
    let failed = |problem: String| SystemError::failed(NAME, DURING, problem);
    let steps = steps(config, parameters);
    let (mut output, mut is_certain) = (String::new(), true);
    // A tool goes on behind commands that were lost: shards are made only of nodes that are certain to be there.
    let (nodes, shards) = steps.split_at(steps.len() - STEPS_OF_SHARDS);
    for part in [nodes, shards] {
        output = administration.command(&script(part.iter()))?;
        if lost(&output) {
            is_certain = false;
            break;
        }
        // Nobody was lost on the way: then what is refused now would be refused again.
        if output.contains("Script error") {
            return Err(failed(last_lines(&output)));
        }
    }
    let mut in_vain = 0;
    loop {
        administration.check()?;
        let shown = administration.show_topology()?;
        let topology = match parse::<StoreTopology>(&shown) {
            Ok(topology) if is_whole(&topology, config) => return Ok(is_certain),
            Ok(topology) => topology,
            Err(problem) if lost(&shown) => {
                if !administration.pause(PAUSE) {
                    return Err(failed(format!(
                        "it does not show its topology: {problem}; {}",
                        last_lines(&output)
                    )));
                }
                continue;
            }
            // Nothing has been configured yet.
            Err(_) => StoreTopology::default(),
        };
        if in_vain == ANSWERED_IN_VAIN || !administration.pause(PAUSE) {
            return Err(failed(format!(
                "it has {}, instead of {} storage nodes with {} shards of {} replication nodes in all: {}",
                describe_topology(&topology),
                config.nodes,
                config.shards(),
                config.replication_nodes(),
                last_lines(&output)
            )));
        }
        in_vain += 1;
        // One script a command: a script ends with the first that is refused, as those are which have been carried out
        // before.
        for step in steps.iter().filter(|step| !step.part.is_in(&topology)) {
            output = administration.command(&script([step].into_iter()))?;
            if lost(&output) {
                is_certain = false;
                in_vain = 0;
                break;
            }
        }
    }
}

/// A command, and what of the topology it makes.
struct DeploymentStep {
    command: String,
    part: TopologyPart,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TopologyPart {
    /// Nothing that the topology shows: given again, it changes nothing.
    Nothing,
    Zone,
    Node(u64),
    Shards,
}

impl TopologyPart {
    fn is_in(self, topology: &StoreTopology) -> bool {
        match self {
            TopologyPart::Zone => !topology.zns.is_empty(),
            TopologyPart::Node(number) => topology.sns.iter().any(|node| node.resource_id == name(number)),
            // With shards, all that they need has been carried out, shown or not.
            TopologyPart::Nothing | TopologyPart::Shards => !topology.shards.is_empty(),
        }
    }
}

/// How many of the commands make shards, which are the last ones.
const STEPS_OF_SHARDS: usize = 3;

/// The commands that make a store.
fn steps(config: &NosqlConfig, parameters: &BTreeMap<String, String>) -> Vec<DeploymentStep> {
    let step = |command: String, part: TopologyPart| DeploymentStep { command, part };
    let mut steps = vec![
        step(format!("configure -name {STORE}"), TopologyPart::Nothing),
        step(format!("change-policy -params {}", words(parameters)), TopologyPart::Nothing),
        step(format!("plan deploy-zone -name {ZONE} -rf {} -wait", config.replication()), TopologyPart::Zone),
    ];
    for number in 1..=config.nodes {
        let (host, port) = (endpoint(number).ip(), endpoint(number).port());
        let command = format!("plan deploy-sn -znname {ZONE} -host {host} -port {port} -wait");
        steps.push(step(command, TopologyPart::Node(number)));
        if number == 1 {
            steps.push(step(format!("plan deploy-admin -sn {} -wait", name(1)), TopologyPart::Nothing));
            steps.push(step(format!("pool create -name {STORE}"), TopologyPart::Nothing));
        }
        steps.push(step(format!("pool join -name {STORE} -sn {}", name(number)), TopologyPart::Nothing));
    }
    let partitions = config.partitions();
    steps.extend([
        step(
            format!("topology create -name {STORE} -pool {STORE} -partitions {partitions}"),
            TopologyPart::Nothing,
        ),
        step(format!("topology preview -name {STORE}"), TopologyPart::Nothing),
        step(format!("plan deploy-topology -name {STORE} -wait"), TopologyPart::Shards),
    ]);
    steps
}

/// Some parameters can be set only where hidden ones may be.
fn script<'a>(steps: impl Iterator<Item = &'a DeploymentStep>) -> String {
    steps.fold("hidden\n".to_owned(), |script, step| script + &step.command + "\n")
}

fn is_whole(topology: &StoreTopology, config: &NosqlConfig) -> bool {
    (1..=config.nodes).all(|number| TopologyPart::Node(number).is_in(topology))
        && topology.shards.len() as u64 == config.shards()
        && replication_nodes(topology) == config.replication_nodes()
}

fn replication_nodes(topology: &StoreTopology) -> u64 {
    topology.shards.iter().map(|shard| shard.rns.len() as u64).sum()
}

fn describe_topology(topology: &StoreTopology) -> String {
    let StoreTopology { sns, shards, .. } = topology;
    format!(
        "{} storage nodes with {} shards of {} replication nodes in all",
        sns.len(),
        shards.len(),
        replication_nodes(topology)
    )
}

/// Whether a tool did not find the administration, for one of its commands at least.
pub(super) fn lost(output: &str) -> bool {
    output.contains("Cannot connect to") || output.contains("Lost connection to Admin")
}

pub(super) fn words(parameters: &BTreeMap<String, String>) -> String {
    let words: Vec<String> = parameters.iter().map(|(name, value)| format!("\"{name}={value}\"")).collect();
    words.join(" ")
}

/// The end of what a tool printed, where it says what went wrong.
pub(super) fn last_lines(output: &str) -> String {
    let lines: Vec<&str> = output.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(8)..].join("; ")
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use proptest::prelude::*;

    use super::*;

    /// An administration that is away now and then. Commands have the numbers in which they come.
    #[derive(Default)]
    struct Fake {
        /// Those in which it goes: before it carries the command out, or after. It is back some looks later.
        goes: BTreeMap<u32, (bool, u32)>,
        commands: Cell<u32>,
        away_for: Cell<u32>,
        done: RefCell<Vec<String>>,
        pauses: Cell<u32>,
    }

    impl Fake {
        fn has(&self, start: &str) -> bool {
            self.done.borrow().iter().any(|one| one.starts_with(start))
        }

        fn has_node(&self, number: Option<char>) -> bool {
            number.is_some_and(|number| {
                self.has(&format!("plan deploy-sn -znname underlay -host 127.0.0.{number} "))
            })
        }

        fn carry_out(&self, command: &str) -> Result<&'static str, &'static str> {
            if self.done.borrow().iter().any(|one| one == command) && !command.contains("-policy") {
                return Err("Error: it already exists");
            }
            let needs = match command.split(' ').collect::<Vec<_>>()[..2] {
                ["configure", _] => "",
                ["plan", "deploy-sn"] => "plan deploy-zone",
                ["plan", "deploy-admin"] | ["pool", "create"] => "plan deploy-sn",
                ["pool", "join"] if !self.has_node(command.chars().last()) => {
                    return Err("Error: no such storage node");
                }
                ["pool", "join"] => "pool create",
                ["topology", "create"] => "pool join -name underlay -sn sn3",
                ["plan", "deploy-topology"] | ["topology", _] => "topology create",
                _ => "configure",
            };
            if !needs.is_empty() && !self.has(needs) {
                return Err("Error: something is missing");
            }
            self.done.borrow_mut().push(command.to_owned());
            Ok("ended successfully")
        }
    }

    impl AdminExecutor for Fake {
        fn command(&self, script: &str) -> Result<String, SystemError> {
            let mut output = String::new();
            for command in script.lines().skip(1) {
                let number = self.commands.replace(self.commands.get() + 1);
                if self.away_for.get() > 0 {
                    output += "Lost connection to Admin.\nReconnecting....Cannot connect to any admins.\n";
                    continue;
                }
                let interruption = self.goes.get(&number);
                if let Some(&(_, looks)) = interruption {
                    self.away_for.set(looks);
                }
                if interruption.is_none_or(|(is_done, _)| *is_done) {
                    match self.carry_out(command) {
                        Ok(good) => output += good,
                        Err(bad) => return Ok(output + bad + "\nScript error in line 1\n"),
                    }
                }
                if interruption.is_some() {
                    output += "\nLost connection to Admin.\n";
                }
                output += "\n";
            }
            Ok(output)
        }

        fn show_topology(&self) -> Result<String, SystemError> {
            if let Some(left) = self.away_for.get().checked_sub(1) {
                self.away_for.set(left);
                return Ok("Cannot connect to any admins.\n".to_owned());
            }
            let zones = if self.has("plan deploy-zone") { r#"{ "resourceId": "zn1" }"# } else { "" };
            let nodes = ('1'..='3').filter(|&number| self.has_node(Some(number)));
            let nodes: Vec<String> =
                nodes.map(|number| format!(r#"{{ "resourceId": "sn{number}" }}"#)).collect();
            let rns: Vec<String> = (1..=3)
                .map(|number| format!(r#"{{ "resourceId": "rg1-rn{number}", "snId": "sn{number}" }}"#))
                .collect();
            let shard =
                format!(r#"{{ "resourceId": "rg1", "numPartitions": 60, "rns": [{}] }}"#, rns.join(","));
            let shards = if self.has("plan deploy-topology") { shard } else { String::new() };
            Ok(format!(
                r#"{{ "returnValue": {{ "numPartitions": 60, "zns": [{zones}], "sns": [{}], "shards": [{shards}] }} }}"#,
                nodes.join(",")
            ))
        }

        fn check(&self) -> Result<(), SystemError> {
            Ok(())
        }

        fn pause(&self, _: Duration) -> bool {
            self.pauses.set(self.pauses.get() + 1);
            self.pauses.get() < 200
        }
    }

    fn config() -> NosqlConfig {
        NosqlConfig { nodes: 3, capacity: 1, given_partitions: Some(60), ..NosqlConfig::default() }
    }

    fn topology(fake: &Fake) -> StoreTopology {
        fake.away_for.set(0);
        parse(&fake.show_topology().unwrap()).unwrap()
    }

    fn parameters() -> BTreeMap<String, String> {
        BTreeMap::from([("cacheSize".to_owned(), "34603008".to_owned())])
    }

    #[test]
    fn commands_follow_settings() {
        let config =
            NosqlConfig { nodes: 3, capacity: 2, given_partitions: Some(60), ..NosqlConfig::default() };
        let script = script(steps(&config, &parameters()).iter());
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
        assert_eq!(last_lines("a\n\n b \n"), "a; b");
    }

    #[test]
    fn stable_administration_runs_each_command_once() {
        let fake = Fake::default();
        deploy(&fake, &config(), &parameters()).unwrap();
        assert_eq!(fake.commands.get() as usize, steps(&config(), &parameters()).len());
        assert_eq!(fake.pauses.get(), 0);
    }

    #[test]
    fn absent_administration_is_reported() {
        let fake = Fake::default();
        fake.away_for.set(u32::MAX);
        let error = deploy(&fake, &config(), &parameters()).unwrap_err().to_string();
        assert!(error.contains("Cannot connect to any admins"), "{error}");
    }

    #[test]
    fn refused_command_is_reported_at_once() {
        let fake = Fake::default();
        fake.done.borrow_mut().push("plan deploy-zone -name underlay -rf 3 -wait".to_owned());
        let error = deploy(&fake, &config(), &parameters()).unwrap_err().to_string();
        assert!(error.contains("it already exists"), "{error}");
        assert_eq!(fake.pauses.get(), 0);
    }

    /// A shrunk failure: the second storage node's command was lost, and the commands behind it were not.
    #[test]
    fn store_lacking_a_node_is_not_whole() {
        let fake = Fake { goes: BTreeMap::from([(7, (false, 0))]), ..Fake::default() };
        deploy(&fake, &config(), &parameters()).unwrap();
        assert_eq!(topology(&fake).sns.len(), 3);
    }

    /// A lost connection at the policy: it is given again before there are shards, and nobody may take the parameters
    /// to be in force all the same.
    #[test]
    fn lost_policy_is_uncertain() {
        let fake = Fake { goes: BTreeMap::from([(1, (false, 0))]), ..Fake::default() };
        let is_certain = deploy(&fake, &config(), &parameters()).unwrap();
        let place = |start: &str| fake.done.borrow().iter().position(|one| one.starts_with(start));
        assert!(place("change-policy").is_some() && place("change-policy") < place("topology create"));
        assert!(!is_certain);
        assert!(deploy(&Fake::default(), &config(), &parameters()).unwrap());
    }

    proptest! {
        #[test]
        fn deployment_survives_administration_loss_anywhere(
            interruptions in prop::collection::btree_map(0u32..60, (prop::bool::ANY, 0u32..4), 0..6),
        ) {
            let fake = Fake { goes: interruptions, ..Fake::default() };
            let is_certain = deploy(&fake, &config(), &parameters()).unwrap();
            prop_assert!(is_whole(&topology(&fake), &config()));
            let place = |start: &str| fake.done.borrow().iter().position(|one| one.starts_with(start));
            let has_policy = place("change-policy").is_some_and(|index| Some(index) < place("plan deploy-topology"));
            prop_assert!(has_policy || !is_certain);
            let done = fake.done.borrow();
            let nodes = done.iter().filter(|one| one.starts_with("plan deploy-sn")).count();
            prop_assert_eq!(nodes, 3);
        }
    }
}
