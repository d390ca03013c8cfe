//! `underlay node`: nodes of a system under load that go away and come back.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use underlay_attach::ResourceRegistry;
use underlay_attach::registry::{RegistryOwner, closed_to_us};
use underlay_files::control_socket::Connection;
use underlay_record::{NodeChoice, NodeShard, NodeState};
use underlay_study::session::nodes::{NodeCommand, NodeReply, controls};

use crate::arguments::{NodeAction, NodeArguments};
use crate::exit_codes::ExitFailure;
use crate::output;
use crate::terminal_escape::harmless;

/// A node that starts replays its log and gets what it missed, which takes minutes on a slow disk.
const REPLY_LIMIT: Duration = Duration::from_secs(3600);

pub(crate) fn node(arguments: &NodeArguments) -> Result<ExitCode, ExitFailure> {
    if let NodeAction::Stop { node } | NodeAction::Kill { node } | NodeAction::Start { node } =
        &arguments.action
    {
        NodeChoice::parse(node)
            .map_err(|problem| ExitFailure::Mistake(format!("'{node}' is no node: {problem}")))?;
    }
    let runs = controls(&ResourceRegistry::open()?);
    let (owner, control) = choose_run(runs, arguments.process)?;
    // Nobody had to name it.
    let run = format!("in {}", describe_owner(&owner));
    let command = match arguments.process {
        Some(process) => format!("underlay node --process {process} start"),
        None => "underlay node start".to_owned(),
    };
    match &arguments.action {
        NodeAction::List { json } => list(&nodes_of(&control)?, *json),
        NodeAction::Stop { node } => {
            let node = done(&control, &NodeCommand::Stop { node: node.clone() })?;
            output::print(&format!("{node}: stopped {run}. `{command} {node}` brings it back"));
        }
        NodeAction::Kill { node } => {
            let node = done(&control, &NodeCommand::Kill { node: node.clone() })?;
            output::print(&format!("{node}: killed {run}. `{command} {node}` brings it back"));
        }
        NodeAction::Start { node } => {
            let node = done(&control, &NodeCommand::Start { node: node.clone() })?;
            output::print(&format!("{node}: serves again {run}"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// `underlay run study.toml (process 17)`
fn describe_owner(owner: &RegistryOwner) -> String {
    let pid = owner.process.pid;
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<String> = line
        .split(|byte| *byte == 0)
        .skip(1)
        .filter(|word| !word.is_empty())
        .map(|word| harmless(&String::from_utf8_lossy(word)).into_owned())
        .collect();
    format!("{} (process {pid})", [vec![owner.command.clone()], words].concat().join(" "))
}

/// The run that is meant.
fn choose_run(
    mut runs: Vec<(RegistryOwner, PathBuf)>,
    process: Option<u32>,
) -> Result<(RegistryOwner, PathBuf), ExitFailure> {
    let list_runs = |runs: &[(RegistryOwner, PathBuf)]| -> String {
        runs.iter().map(|(owner, _)| format!("\n  {}", describe_owner(owner))).collect()
    };
    if let Some(process) = process {
        let place = runs.iter().position(|(owner, _)| owner.process.pid == process);
        return match place {
            Some(place) => Ok(runs.swap_remove(place)),
            None => Err(ExitFailure::Mistake(format!(
                "process {process} measures no system of several nodes now{}",
                if runs.is_empty() { String::new() } else { format!("; these do:{}", list_runs(&runs)) }
            ))),
        };
    }
    match runs.len() {
        0 => Err(ExitFailure::Mistake(explain_absence())),
        1 => Ok(runs.swap_remove(0)),
        _ => Err(ExitFailure::Mistake(format!(
            "which run? Name its process with --process:{}",
            list_runs(&runs)
        ))),
    }
}

/// Other users' runs are theirs, and not even their number is known.
fn explain_absence() -> String {
    let closed: Vec<String> = closed_to_us().iter().map(|path| path.display().to_string()).collect();
    let others = match closed.is_empty() {
        true => String::new(),
        false => format!(
            "; what others run is not shown here, run this as them or as root ({} can't be read)",
            closed.join(", ")
        ),
    };
    format!(
        "no system of several nodes is under load now: its nodes can be stopped while `underlay run` measures a cell, or \
         `underlay ycsb` runs{others}"
    )
}

fn ask(control: &Path, command: &NodeCommand) -> Result<NodeReply, ExitFailure> {
    let asked = Connection::<NodeCommand, NodeReply>::open(control, REPLY_LIMIT);
    match asked.and_then(|mut connection| connection.ask(command)) {
        Ok(reply) => Ok(reply),
        Err(error) if is_over(&error) => {
            Err(ExitFailure::Failed("the measurement has just ended".to_owned()))
        }
        Err(error) => {
            Err(ExitFailure::Failed(format!("can't reach the run at {}: {error}", control.display())))
        }
    }
}

fn is_over(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotFound, UnexpectedEof};
    matches!(error.kind(), NotFound | ConnectionRefused | UnexpectedEof)
}

fn nodes_of(control: &Path) -> Result<Vec<NodeState>, ExitFailure> {
    match ask(control, &NodeCommand::List)? {
        NodeReply::Nodes { nodes } => Ok(nodes),
        reply => Err(refused(reply)),
    }
}

fn done(control: &Path, command: &NodeCommand) -> Result<String, ExitFailure> {
    match ask(control, command)? {
        NodeReply::Done { node } => Ok(node),
        reply => Err(refused(reply)),
    }
}

fn refused(reply: NodeReply) -> ExitFailure {
    match reply {
        NodeReply::Failed { problem } => ExitFailure::Mistake(problem),
        other => ExitFailure::Failed(format!("the run gave an unexpected answer: {other:?}")),
    }
}

fn list(nodes: &[NodeState], json: bool) {
    if json {
        output::print(&serde_json::to_string_pretty(nodes).expect("nodes are plain data"));
        return;
    }
    let width = nodes.iter().map(|node| node.name.len()).max().unwrap_or(0);
    let of_shards = |node: &NodeState| NodeShard::all_in_words(&node.shards).len();
    let of_shards = nodes.iter().map(of_shards).max().unwrap_or(0);
    for node in nodes {
        let role = node.role.map_or("", |role| role.word());
        let shards = NodeShard::all_in_words(&node.shards);
        let process = node.process.map_or_else(String::new, |process| format!("process {process}"));
        let line = format!(
            "{:width$}  {role:13}  {shards:of_shards$}  {:9}  {process}",
            node.name,
            node.condition.to_string()
        );
        output::print(line.trim_end());
    }
}
