use underlay_systems::system::SystemError;

use super::*;

/// Nodes that obey the test; starting takes until the test allows it to end.
struct Scripted {
    conditions: Mutex<Vec<NodeCondition>>,
    /// The nodes' conditions each time they were asked to record their counts.
    counted: Mutex<Vec<Vec<NodeCondition>>>,
    may_serve: AtomicBool,
    /// Otherwise stopping hangs until the node is killed.
    may_stop: AtomicBool,
    changed: Condvar,
}

impl Scripted {
    fn new(count: usize) -> Scripted {
        Scripted {
            conditions: Mutex::new(vec![NodeCondition::Serving; count]),
            counted: Mutex::default(),
            may_serve: AtomicBool::new(true),
            may_stop: AtomicBool::new(true),
            changed: Condvar::new(),
        }
    }

    fn number(name: &str) -> Result<usize, SystemError> {
        let number = name.strip_prefix("node").and_then(|number| number.parse::<usize>().ok());
        number.map(|number| number - 1).ok_or_else(|| SystemError::failed("test", "looking", "no such node"))
    }

    fn away(&self, name: &str) -> Result<(), SystemError> {
        let mut conditions = self.conditions.lock();
        let condition = &mut conditions[Self::number(name)?];
        if *condition == NodeCondition::Away {
            return Err(SystemError::failed("test", "killing", format!("{name} does not run")));
        }
        *condition = NodeCondition::Away;
        self.changed.notify_all();
        Ok(())
    }
}

impl SystemNodes for Scripted {
    fn list(&self) -> Result<Vec<NodeState>, SystemError> {
        let conditions = self.conditions.lock();
        let state = |(number, condition): (usize, &NodeCondition)| NodeState {
            name: format!("node{number}"),
            role: None,
            shards: Vec::new(),
            condition: *condition,
            process: None,
        };
        Ok((1..).zip(&*conditions).map(state).collect())
    }
    fn stop(&self, name: &str) -> Result<(), SystemError> {
        if self.may_stop.load(Ordering::SeqCst) {
            return self.away(name);
        }
        let number = Self::number(name)?;
        let mut conditions = self.conditions.lock();
        conditions[number] = NodeCondition::Stopping;
        while conditions[number] == NodeCondition::Stopping {
            conditions = self.changed.wait(conditions);
        }
        Err(SystemError::failed("test", "stopping", format!("{name} was killed")))
    }
    fn kill(&self, name: &str) -> Result<(), SystemError> {
        self.away(name)
    }
    fn start(&self, name: &str, process_back: &(dyn Fn() + Sync)) -> Result<(), SystemError> {
        let number = Self::number(name)?;
        let mut conditions = self.conditions.lock();
        conditions[number] = NodeCondition::Starting;
        drop(conditions);
        process_back();
        conditions = self.conditions.lock();
        while conditions[number] == NodeCondition::Starting && !self.may_serve.load(Ordering::SeqCst) {
            conditions = self.changed.wait(conditions);
        }
        if conditions[number] == NodeCondition::Away {
            return Err(SystemError::failed("test", "starting", format!("{name} was sent away")));
        }
        conditions[number] = NodeCondition::Serving;
        Ok(())
    }
}

fn event(node: &str, for_ms: Option<u64>) -> PlannedEvent {
    PlannedEvent {
        name: "lost".to_owned(),
        choice: NodeChoice::parse(node).unwrap(),
        how: NodeExit::Kill,
        at: Duration::ZERO,
        duration: for_ms.map(Duration::from_millis),
    }
}

fn attended(
    nodes: &Scripted,
    events: &[PlannedEvent],
    act: impl FnOnce(&NodeDesk<'_>, &AtomicBool),
) -> Vec<NodeEventRecord> {
    let folder = tempfile::tempdir().unwrap();
    let registry = ResourceRegistry::open_at(&folder.path().join("registry")).unwrap();
    let count = || nodes.counted.lock().push(nodes.conditions.lock().clone());
    let (desk, stop) = (NodeDesk::new(nodes, &count, 1.0), AtomicBool::new(false));
    desk.attend(events, &registry, &stop, || {
        desk.begin(Instant::now());
        act(&desk, &stop);
    })
    .unwrap();
    assert!(controls(&registry).is_empty());
    desk.events()
}

/// A start that waits for another node, which can't come back once the measurement is over.
#[test]
fn start_without_majority_is_abandoned_after_measurement() {
    let nodes = Scripted::new(3);
    nodes.may_serve.store(false, Ordering::SeqCst);
    let folder = tempfile::tempdir().unwrap();
    let registry = ResourceRegistry::open_at(&folder.path().join("registry")).unwrap();
    let mut desk = NodeDesk::new(&nodes, &|| {}, 1.0);
    desk.majority_limit = Duration::ZERO;
    let starting = |desk: &NodeDesk<'_>| {
        desk.begin(Instant::now());
        wait_until(|| nodes.conditions.lock()[0] == NodeCondition::Starting);
        nodes.kill("node2").unwrap();
    };
    let never = AtomicBool::new(false);
    desk.attend(&[event("node1", Some(0))], &registry, &never, || starting(&desk)).unwrap();
    let events = desk.events();
    let problem = events[0].problem.clone().unwrap_or_default();
    assert!(problem.contains("may have waited for node2, which was away"), "{problem}");
    assert_eq!(nodes.conditions.lock()[0], NodeCondition::Away);
}

/// Stopping needs no other node, and has its own limit.
#[test]
fn stop_is_not_abandoned_after_measurement() {
    let nodes = Scripted::new(3);
    nodes.may_stop.store(false, Ordering::SeqCst);
    let folder = tempfile::tempdir().unwrap();
    let registry = ResourceRegistry::open_at(&folder.path().join("registry")).unwrap();
    let mut desk = NodeDesk::new(&nodes, &|| {}, 1.0);
    desk.majority_limit = Duration::ZERO;
    let stopping = |desk: &NodeDesk<'_>| {
        desk.begin(Instant::now());
        wait_until(|| nodes.conditions.lock()[0] == NodeCondition::Stopping);
        nodes.kill("node2").unwrap();
    };
    let (never, stop) =
        (AtomicBool::new(false), PlannedEvent { how: NodeExit::Stop, ..event("node1", None) });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            wait_until(|| desk.shared.inner.lock().is_over());
            // Long enough for a check to have happened.
            std::thread::sleep(4 * POLL);
            assert_eq!(nodes.conditions.lock()[0], NodeCondition::Stopping);
            nodes.kill("node1").unwrap();
        });
        desk.attend(&[stop], &registry, &never, || stopping(&desk)).unwrap();
    });
    let problem = desk.events()[0].problem.clone().unwrap_or_default();
    assert!(problem.contains("node1 was killed") && !problem.contains("may have waited for"), "{problem}");
}

fn wait_until(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn node_stop_and_return_are_recorded() {
    let nodes = Scripted::new(3);
    let events = attended(&nodes, &[event("any node", Some(1))], |desk, _| {
        wait_until(|| desk.events().first().is_some_and(|event| event.served_s.is_some()));
    });
    let [event] = &events[..] else { panic!("{events:?}") };
    assert_eq!(
        (event.node.as_deref(), event.chosen.as_str(), event.problem.as_ref()),
        (Some("node1"), "any node", None)
    );
    let times = [event.away_s, event.ended_s, event.start_s, event.process_back_s, event.served_s]
        .map(Option::unwrap);
    assert!(times.is_sorted() && times[2] - times[0] >= 0.001, "{times:?}");
    assert_eq!(nodes.list().unwrap()[0].condition, NodeCondition::Serving);
}

/// Counting may take until the end: no node goes down then.
#[test]
fn event_still_counting_at_end_stops_no_node() {
    let nodes = Scripted::new(1);
    let is_counting = AtomicBool::new(false);
    let folder = tempfile::tempdir().unwrap();
    let registry = ResourceRegistry::open_at(&folder.path().join("registry")).unwrap();
    let is_over = AtomicBool::new(false);
    let count = || {
        is_counting.store(true, Ordering::SeqCst);
        wait_until(|| is_over.load(Ordering::SeqCst));
    };
    let desk = NodeDesk::new(&nodes, &count, 1.0);
    let act = || {
        desk.begin(Instant::now());
        wait_until(|| is_counting.load(Ordering::SeqCst));
        desk.end();
        is_over.store(true, Ordering::SeqCst);
    };
    desk.attend(&[event("node1", None)], &registry, &AtomicBool::new(false), act).unwrap();
    assert_eq!((desk.events().len(), first_condition(&nodes)), (0, NodeCondition::Serving));
}

#[test]
fn node_counts_are_saved_before_it_leaves() {
    use NodeCondition::{Away, Serving};
    let nodes = Scripted::new(2);
    attended(&nodes, &[event("node1", None)], |desk, _| {
        wait_until(|| desk.events().first().is_some_and(|event| event.ended_s.is_some()));
        desk.obey(&NodeCommand::Stop { node: "node2".to_owned() });
    });
    assert_eq!(*nodes.counted.lock(), [vec![Serving, Serving], vec![Away, Serving]]);
}

/// An event that stops the first node, which hangs, and starts it a moment later.
fn hanging_stop(nodes: &Scripted) -> PlannedEvent {
    nodes.may_stop.store(false, Ordering::SeqCst);
    PlannedEvent { how: NodeExit::Stop, ..event("node1", Some(1)) }
}

fn first_condition(nodes: &Scripted) -> NodeCondition {
    nodes.list().unwrap()[0].condition
}

#[test]
fn hanging_stop_is_killed_when_run_stops() {
    let nodes = Scripted::new(2);
    let stops = hanging_stop(&nodes);
    let events = attended(&nodes, &[stops], |desk, stop| {
        wait_until(|| first_condition(&nodes) == NodeCondition::Stopping);
        assert_eq!(desk.events()[0].ended_s, None);
        stop.store(true, Ordering::SeqCst);
    });
    assert_eq!(first_condition(&nodes), NodeCondition::Away);
    assert!(events[0].away_s <= events[0].ended_s && events[0].away_s.is_some(), "{events:?}");
    assert!(events[0].problem.as_ref().unwrap().contains("node1 was killed"), "{events:?}");
}

#[test]
fn killed_node_is_started_again() {
    let nodes = Scripted::new(2);
    let stops = hanging_stop(&nodes);
    let events = attended(&nodes, &[stops], |desk, _| {
        wait_until(|| first_condition(&nodes) == NodeCondition::Stopping);
        // As a system does with a node that takes too long.
        nodes.away("node1").unwrap();
        wait_until(|| desk.events()[0].served_s.is_some());
    });
    assert!(events[0].ended_s.is_some() && events[0].problem.is_some(), "{events:?}");
    assert_eq!(first_condition(&nodes), NodeCondition::Serving);
}

#[test]
fn event_does_not_start_node_killed_by_hand() {
    let nodes = Scripted::new(2);
    let stops = hanging_stop(&nodes);
    let node = || "node1".to_owned();
    let events = attended(&nodes, &[stops], |desk, _| {
        wait_until(|| first_condition(&nodes) == NodeCondition::Stopping);
        assert_eq!(desk.obey(&NodeCommand::Kill { node: node() }), NodeReply::Done { node: node() });
        let message =
            "node1 was killed; it was killed by hand meanwhile, so this event does not start it again";
        wait_until(|| desk.events()[0].problem.as_ref().is_some_and(|problem| problem.ends_with(message)));
        assert_eq!(first_condition(&nodes), NodeCondition::Away);
        assert!(desk.events().iter().all(|event| event.ended_s.is_some() && event.start_s.is_none()));
        // The process that took it down may start it.
        assert_eq!(desk.obey(&NodeCommand::Start { node: node() }), NodeReply::Done { node: node() });
    });
    assert!(events.len() == 2 && events.iter().all(|event| event.served_s.is_some()), "{events:?}");
}

#[test]
fn commands_by_hand_are_answered_and_recorded() {
    let nodes = Scripted::new(3);
    let events = attended(&nodes, &[], |desk, _| {
        let say = |command: NodeCommand| desk.obey(&command);
        let node = || "node2".to_owned();
        let problem = |reply: NodeReply| match reply {
            NodeReply::Failed { problem } => problem,
            other => panic!("{other:?}"),
        };
        assert!(matches!(say(NodeCommand::List), NodeReply::Nodes { nodes } if nodes.len() == 3));
        assert!(problem(say(NodeCommand::Kill { node: "nod2".to_owned() })).contains("did you mean node2?"));
        assert!(problem(say(NodeCommand::Start { node: node() })).contains("node2 is serving"));
        assert!(
            problem(say(NodeCommand::Stop { node: "master of shard 1".to_owned() })).contains("no node is")
        );
        assert_eq!(say(NodeCommand::Kill { node: node() }), NodeReply::Done { node: node() });
        assert!(problem(say(NodeCommand::Stop { node: node() })).contains("does not run"));
        assert_eq!(say(NodeCommand::Start { node: node() }), NodeReply::Done { node: node() });
    });
    let [event] = &events[..] else { panic!("{events:?}") };
    assert!(event.event.is_none() && event.away_s.is_some() && event.served_s.is_some(), "{event:?}");
}

#[test]
fn node_killed_while_starting_stays_away() {
    let nodes = Scripted::new(2);
    nodes.may_serve.store(false, Ordering::SeqCst);
    let events = attended(&nodes, &[event("node1", Some(1))], |desk, _| {
        wait_until(|| nodes.list().unwrap()[0].condition == NodeCondition::Starting);
        let killed = desk.obey(&NodeCommand::Kill { node: "node1".to_owned() });
        assert_eq!(killed, NodeReply::Done { node: "node1".to_owned() });
        wait_until(|| desk.events()[0].problem.is_some());
    });
    assert_eq!((events.len(), events[0].served_s, events[1].start_s), (2, None, None));
    assert!(events[0].problem.as_ref().unwrap().contains("was sent away"));
}

#[test]
fn end_waits_for_starting_node_unless_stopped() {
    let nodes = Scripted::new(2);
    nodes.may_serve.store(false, Ordering::SeqCst);
    let events = std::thread::scope(|scope| {
        attended(&nodes, &[event("node2", Some(1))], |_, _| {
            wait_until(|| nodes.list().unwrap()[1].condition == NodeCondition::Starting);
            scope.spawn(|| {
                nodes.may_serve.store(true, Ordering::SeqCst);
                nodes.changed.notify_all();
            });
        })
    });
    assert!(events[0].served_s.is_some(), "{events:?}");

    let nodes = Scripted::new(2);
    nodes.may_serve.store(false, Ordering::SeqCst);
    let events = attended(&nodes, &[event("node2", Some(1))], |_, stop| {
        wait_until(|| nodes.list().unwrap()[1].condition == NodeCondition::Starting);
        stop.store(true, Ordering::SeqCst);
    });
    assert!(events[0].served_s.is_none() && events[0].problem.is_some(), "{events:?}");
}

#[test]
fn events_after_the_end_do_not_happen() {
    let nodes = Scripted::new(2);
    let late = PlannedEvent { at: Duration::from_secs(3600), ..event("node1", None) };
    assert!(
        attended(&nodes, &[late, event("node2", None)], |desk, _| wait_until(|| !desk.events().is_empty()))
            .len()
            == 1
    );
    let conditions: Vec<_> = nodes.list().unwrap().into_iter().map(|node| node.condition).collect();
    assert_eq!(conditions, [NodeCondition::Serving, NodeCondition::Away]);
}

#[test]
fn missing_node_is_restored_when_needed() {
    let nodes = Scripted::new(2);
    let stop = AtomicBool::new(false);
    attended(&nodes, &[event("node2", None)], |desk, _| wait_until(|| !desk.events().is_empty()));
    assert_eq!(all_serve(&nodes).unwrap_err(), format!("node2 is {}", NodeCondition::Away));
    let count = || {};
    let desk = NodeDesk::new(&nodes, &count, 1.0);
    let (restored, found) = desk.restore_while(&stop, || {
        wait_until(|| nodes.list().unwrap()[1].condition == NodeCondition::Serving);
        7
    });
    assert_eq!((restored, found, all_serve(&nodes)), (Ok(()), 7, Ok(())));

    // The desk reports that a node does not come up, and that it is missing.
    attended(&nodes, &[event("node2", None)], |desk, _| wait_until(|| !desk.events().is_empty()));
    nodes.may_serve.store(false, Ordering::SeqCst);
    let (restored, ()) = desk.restore_while(&stop, || {
        wait_until(|| nodes.list().unwrap()[1].condition == NodeCondition::Starting);
        nodes.kill("node2").unwrap();
    });
    assert!(restored.unwrap_err().contains("was sent away"));
    assert!(all_serve(&nodes).is_err());
}

/// The second fault: a node that does not come back must not keep later ones down.
#[test]
fn node_staying_away_delays_no_other() {
    let nodes = Scripted::new(3);
    let stop = AtomicBool::new(false);
    let count = || {};
    let desk = NodeDesk::new(&nodes, &count, 1.0);
    for node in ["node1", "node3"] {
        nodes.kill(node).unwrap();
    }
    nodes.may_serve.store(false, Ordering::SeqCst);
    let (restored, ()) = desk.restore_while(&stop, || {
        wait_until(|| nodes.list().unwrap()[0].condition == NodeCondition::Starting);
        nodes.kill("node1").unwrap();
        wait_until(|| nodes.list().unwrap()[2].condition == NodeCondition::Starting);
        nodes.kill("node3").unwrap();
    });
    let error = restored.unwrap_err();
    assert!(error.contains("node1 was sent away") && error.contains("node3 was sent away"), "{error}");
}
