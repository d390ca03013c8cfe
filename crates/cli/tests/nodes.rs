//! A study whose event kills a node, with another one commanded from outside: `[event.NAME]` and `underlay node`.

mod support;

use std::path::Path;
use std::time::Duration;

use support::{Playground, can_mount, records, stderr, stdout, wait_for};
use underlay_record::{CellStatus, CheckId, NodeCondition, NodeRole, NodeState};

const LIMIT: Duration = Duration::from_secs(240);

const STUDY: &str = r#"
name = "nodes"

[system.je-ha]
memory = "560 MiB"
nodes = 3

[storage.here]
paths = ["disk"]

[workload.ycsb]
records = 1_000
record = { fields = 2, bytes = 100 }
mixes = ["a"]
distribution = "uniform"
threads = 4
properties = { dataintegrity = true }

[event.lost]
at = "2 s"
for = "1 s"
node = "master of shard 1"

[run]
warmup = "0 s"
duration = "16 s"
repetitions = 1
"#;

/// Whether a study is sound, and what is said of it.
fn checked(text: &str) -> (bool, String) {
    let playground = Playground::new();
    playground.write("study.toml", text);
    std::fs::create_dir_all(playground.path("disk")).unwrap();
    let output = playground.output(&["check", "study.toml"]);
    (output.status.success(), stderr(&output))
}

#[test]
fn node_event_without_match_is_a_mistake() {
    assert!(checked(STUDY).0, "{}", checked(STUDY).1);
    for (from, to, expected) in [
        ("master of shard 1", "shard1-nod2", "did you mean \"shard1-node2\"?"),
        ("master of shard 1", "master of shard 2", "names a node that [system.je-ha] does not have"),
        ("master of shard 1", "any tablet server", "its nodes can be: master, replica of shard 1 to 1"),
        ("master of shard 1", "any lord", "expected the name of a node"),
        ("at = \"2 s\"", "at = \"30 s\"", "comes after the measurement has ended"),
        ("node = \"", "how = \"pull\"\nnode = \"", "stop"),
        ("node = \"", "system = \"je\"\nnode = \"", "does not exist"),
        ("nodes = 3", "nodes = 1", "needs a system of several nodes"),
        (
            "[system.je-ha]\nmemory = \"560 MiB\"\nnodes = 3",
            "[system.null]",
            "needs a system of several nodes",
        ),
    ] {
        assert!(STUDY.contains(from));
        let (is_sound, printed) = checked(&STUDY.replace(from, to));
        assert!(!is_sound && printed.contains(expected), "{to}: {printed}");
    }
    // Allowed, and told.
    let (is_sound, printed) = checked(&STUDY.replace("nodes = 3", "nodes = 3\nreplication = 2"));
    assert!(
        is_sound && printed.contains("neither is a majority") && printed.contains("takes no writes"),
        "{printed}"
    );
}

/// A storage node may have the master of one shard and a replica of another.
#[test]
fn oracle_nosql_shard_masters_are_selectable() {
    let of_two = "[system.oracle-nosql]\nmemory = \"3 GB\"\nnodes = 3\ncapacity = 2\npartitions = 20";
    let study = STUDY.replace("[system.je-ha]\nmemory = \"560 MiB\"\nnodes = 3", of_two);
    assert!(study.contains(of_two));
    for (node, expected) in [
        ("master of shard 2", None),
        ("any replica of shard 1", None),
        ("sn3", None),
        ("master of shard 3", Some("its nodes can be: master, replica of shard 1 to 2")),
        ("sn4", Some("did you mean")),
    ] {
        let (is_sound, printed) = checked(&study.replace("master of shard 1", node));
        assert_eq!(is_sound, expected.is_none(), "{node}: {printed}");
        assert!(printed.contains(expected.unwrap_or_default()), "{node}: {printed}");
    }
    // Two machines of three are gone, whichever shards these two masters are of.
    let two = study.replace("[run]", "[event.other]\nat = \"2 s\"\nnode = \"master of shard 2\"\n\n[run]");
    let (is_sound, printed) = checked(&two);
    assert!(
        is_sound && printed.contains("2 nodes away at once") && printed.contains("takes no writes"),
        "{printed}"
    );
}

#[test]
fn there_is_nothing_to_command_where_nothing_runs() {
    let playground = Playground::new();
    for (arguments, expected) in [
        (&["node", "list"][..], "no system of several nodes is under load now"),
        (&["node", "kill", "node1", "--process", "1"], "process 1 measures no system of several nodes now"),
        (&["node", "kill", "a b"], "expected the name of a node"),
    ] {
        let output = playground.output(arguments);
        assert!(!output.status.success() && stderr(&output).contains(expected), "{}", stderr(&output));
    }
}

fn nodes(playground: &Playground) -> Option<Vec<NodeState>> {
    let output = playground.output(&["node", "list", "--json"]);
    output.status.success().then(|| serde_json::from_str(&stdout(&output)).unwrap())
}

#[test]
fn master_is_killed_by_study_and_replica_by_hand() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    playground.write("study.toml", STUDY);
    std::fs::create_dir_all(playground.path("disk")).unwrap();
    let output = std::thread::scope(|scope| {
        let run = scope.spawn(|| playground.output(&["run", "study.toml", "--out", "run", "--quiet"]));
        // The master is back when both of the others have been one after the other away and back.
        let is_back = |nodes: &[NodeState]| {
            nodes.iter().all(|node| node.condition == NodeCondition::Serving)
                && nodes.iter().any(|node| node.role == Some(NodeRole::Master) && node.name != "shard1-node1")
        };
        wait_for("the former master", LIMIT, || {
            run.is_finished() || nodes(&playground).is_some_and(|nodes| is_back(&nodes))
        });
        let killed = playground.output(&["node", "kill", "any replica"]);
        assert!(killed.status.success(), "{}", stderr(&killed));
        let printed = stdout(&killed);
        let name = printed.split(':').next().unwrap();
        let again = playground.output(&["node", "stop", name]);
        assert!(stderr(&again).contains("does not run"), "{}", stderr(&again));
        let started = playground.output(&["node", "start", name]);
        assert!(stdout(&started).contains("serves again"), "{}", stderr(&started));
        run.join().unwrap()
    });
    // A node that was sent away by hand disturbs its cell.
    assert_eq!(output.status.code(), Some(1), "{}\n{}", stdout(&output), stderr(&output));
    let parts = support::parts(&playground.path("run")).pop().unwrap();
    let members: Vec<&str> = parts.servers.iter().map(|server| server.name.as_str()).collect();
    assert_eq!(members, ["shard1-node1", "shard1-node2", "shard1-node3"], "{parts:?}");
    let [record] = &records(&playground.path("run"))[..] else { panic!("one cell") };
    assert_eq!(record.status, CellStatus::Completed);
    let [lost, by_hand] = &record.node_events[..] else { panic!("{:?}", record.node_events) };
    assert_eq!((lost.event.as_deref(), lost.node.as_deref()), (Some("lost"), Some("shard1-node1")));
    assert_eq!((lost.role, by_hand.role), (Some(NodeRole::Master), Some(NodeRole::Replica)));
    assert!(by_hand.event.is_none() && by_hand.served_s.is_some(), "{by_hand:?}");
    let times =
        [lost.away_s, lost.ended_s, lost.start_s, lost.process_back_s, lost.served_s].map(Option::unwrap);
    assert!(times.is_sorted() && times[0] >= 2.0 && times[2] >= times[0] + 1.0, "{times:?}");
    let effect = lost.effect.as_ref().unwrap();
    assert!(
        effect.before.unwrap().operations > 0 && effect.during.to_s >= effect.during.from_s,
        "{effect:?}"
    );
    let read_back = record.read_back.as_ref().unwrap();
    assert!(read_back.checked > 0 && read_back.lost() == 0 && read_back.unreadable == 0, "{read_back:?}");
    let checks = &record.certificate.as_ref().unwrap().checks;
    let check = |id: CheckId| checks.iter().find(|check| check.id == Some(id)).unwrap();
    assert!(
        check(CheckId::AcknowledgedWrites).passed && check(CheckId::OperationsAnswered).passed,
        "{checks:?}"
    );
    assert_reports_name_events(&playground, &playground.path("run"));
    assert_eq!(playground.left_behind(), [""; 0]);
}

fn assert_reports_name_events(playground: &Playground, run: &Path) {
    // In lines as wide as a terminal.
    let printed = stdout(&playground.output(&["report", "run"]));
    let printed = printed.split_whitespace().collect::<Vec<_>>().join(" ");
    let page = std::fs::read_to_string(run.join("report.html")).unwrap();
    for text in [&printed, &page] {
        assert!(text.contains("Nodes that went away"), "{text}");
        assert!(text.contains("all acknowledged writes are there"), "{text}");
    }
    assert!(page.contains("shard1-node1 (master) killed at"), "{page}");
}
