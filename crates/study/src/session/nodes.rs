//! The nodes of a system under load. A plan or a user takes them down and brings them back, with a record of what
//! happened and when.

mod control;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use underlay_attach::{AttachError, ResourceRegistry};
use underlay_config::closest;
use underlay_record::{NodeChoice, NodeCondition, NodeEventRecord, NodeExit, NodeState};
use underlay_sync::{Condvar, Mutex, MutexGuard};
use underlay_systems::nodes::SystemNodes;
use underlay_systems::system::SystemError;

use control::NodeControl;
pub use control::{NodeCommand, NodeReply, controls};

const POLL: Duration = Duration::from_millis(50);
const OVER: &str = "the measurement has ended";
/// How long to wait for a start after the measurement while other nodes are down, in modelled seconds, and at least and
/// at most in wall time. The start may depend on those nodes, which can't be started any more.
const MAJORITY_LIMIT_S: f64 = 20.0;
const MAJORITY_LIMITS_S: (f64, f64) = (60.0, 600.0);
/// How long to wait for the system's metrics before a node goes down. A node that hangs may be what delays them.
const FIGURES_LIMIT: Duration = Duration::from_secs(5);

/// The nodes of one running system, for every source of node events. Times are modelled and count from the beginning of
/// the measurement.
pub struct NodeDesk<'a> {
    nodes: &'a dyn SystemNodes,
    /// Makes the system record what its nodes have counted, since a node's count is lost with its process.
    count: &'a (dyn Fn() + Sync),
    /// Wall seconds per modelled second.
    time_scale: f64,
    majority_limit: Duration,
    shared: Arc<NodeDeskShared>,
}

/// State of a start, which may outlive the nodes.
#[derive(Default)]
struct NodeDeskShared {
    inner: Mutex<NodeDeskState>,
    changed: Condvar,
}

impl NodeDeskShared {
    fn begin(&self, instant: Instant) {
        self.inner.lock().began = Some(instant);
        self.changed.notify_all();
    }
}

#[derive(Default)]
struct NodeDeskState {
    began: Option<Instant>,
    /// When measuring ended.
    over_since: Option<Instant>,
    /// Why waiting for nodes that are being started or stopped has ended: for one of them, or for all (`None`).
    given_up: BTreeMap<Option<String>, String>,
    events: Vec<NodeEventRecord>,
    /// Events whose node was asked to start and did not come up.
    start_failed: BTreeSet<usize>,
    /// The nodes that are being started or stopped.
    busy: Vec<String>,
    /// How often the system was asked to record what its nodes have counted, and how often it has.
    counts_wanted: u64,
    counts_done: u64,
}

impl NodeDeskState {
    fn is_over(&self) -> bool {
        self.over_since.is_some()
    }
}

/// A node to take down, and when.
#[derive(Clone, Debug)]
pub struct PlannedEvent {
    pub name: String,
    pub choice: NodeChoice,
    pub how: NodeExit,
    /// In modelled time, from the beginning of the measurement.
    pub at: Duration,
    /// Without it, the node stays down.
    pub duration: Option<Duration>,
}

impl<'a> NodeDesk<'a> {
    /// `count` makes the system record what its nodes have counted, and is called before a node goes down.
    pub fn new(nodes: &'a dyn SystemNodes, count: &'a (dyn Fn() + Sync), time_scale: f64) -> NodeDesk<'a> {
        let (least_s, most_s) = MAJORITY_LIMITS_S;
        let majority_limit = Duration::from_secs_f64((MAJORITY_LIMIT_S * time_scale).clamp(least_s, most_s));
        NodeDesk { nodes, count, time_scale, majority_limit, shared: Arc::default() }
    }

    /// Calls a function while these events take place, and while other processes of this user may command nodes. At its
    /// end, this waits for nodes that are being started or stopped. It kills them instead if `stop` is raised, or if
    /// they may be waiting for another node that is down.
    ///
    /// # Errors
    /// When there can be no socket for commands; nothing is done then.
    pub fn attend<T>(
        &self,
        events: &[PlannedEvent],
        registry: &ResourceRegistry,
        stop: &AtomicBool,
        act: impl FnOnce() -> T,
    ) -> Result<T, AttachError> {
        std::thread::scope(|scope| {
            // Also after a panic, since the threads would go on forever.
            let attended = AttendedNodes(self);
            let control = NodeControl::listen(self, registry, scope)?;
            scope.spawn(|| self.count_when_asked());
            for event in events {
                scope.spawn(|| self.carry_out(event));
            }
            let outcome = act();
            self.end();
            drop(control);
            self.wait_for_busy(stop);
            drop(attended);
            Ok(outcome)
        })
    }

    /// Measuring begins at this instant, which may lie in the future: events count from there.
    pub fn begin(&self, instant: Instant) {
        self.shared.begin(instant);
    }

    /// A function that does the same, for callers that outlive the nodes.
    pub fn beginning(&self) -> impl Fn(Instant) + Send + Sync + use<> {
        let shared = Arc::clone(&self.shared);
        move |instant| shared.begin(instant)
    }

    /// Measuring has ended: no node is taken down or brought back any more. A node's pending start or stop continues.
    pub fn end(&self) {
        self.shared.inner.lock().over_since.get_or_insert_with(Instant::now);
        self.shared.changed.notify_all();
    }

    fn wait_for_busy(&self, stop: &AtomicBool) {
        // Operations that hang may already have taken longer than this.
        let over_since = self.shared.inner.lock().over_since.unwrap_or_else(Instant::now);
        while !self.shared.inner.lock().busy.is_empty() {
            std::thread::sleep(POLL);
            if stop.load(Ordering::Relaxed) {
                self.shared.inner.lock().given_up.insert(None, "the run was stopped".to_owned());
                return;
            }
            if over_since.elapsed() < self.majority_limit {
                continue;
            }
            let nodes = self.nodes.list().unwrap_or_default();
            let away = nodes.iter().filter(|node| node.condition == NodeCondition::Away);
            let away: Vec<&str> = away.map(|node| node.name.as_str()).collect();
            // A node that is being stopped needs no other, and ends by its own limit.
            let starting = self.starting(&nodes);
            if !away.is_empty() && !starting.is_empty() {
                let problem = format!(
                    "it was not done {:.0} s after the measurement had ended, and may have waited for {}, which {} away",
                    over_since.elapsed().as_secs_f64(),
                    away.join(", "),
                    if away.len() == 1 { "was" } else { "were" }
                );
                for name in starting {
                    let reason = problem.clone();
                    self.shared.inner.lock().given_up.entry(Some(name.to_owned())).or_insert(reason);
                    // It may have ended meanwhile, which does no harm.
                    let _ = self.nodes.kill(name);
                }
            }
        }
    }

    /// The nodes among these that an event or a user has started, and that have not come up yet.
    fn starting<'n>(&self, nodes: &'n [NodeState]) -> Vec<&'n str> {
        let inner = self.shared.inner.lock();
        let is_starting =
            |node: &&NodeState| node.condition == NodeCondition::Starting && inner.busy.contains(&node.name);
        nodes.iter().filter(is_starting).map(|node| node.name.as_str()).collect()
    }

    /// Everything has ended, and waiting for nodes that are being started or stopped ends too.
    fn give_up(&self) {
        self.end();
        loop {
            let busy = self.shared.inner.lock().busy.clone();
            if busy.is_empty() {
                return;
            }
            for name in busy {
                // It may have come up or ended meanwhile, which does no harm, or have no process yet: then the next
                // attempt kills it.
                let _ = self.nodes.kill(&name);
            }
            std::thread::sleep(POLL);
        }
    }

    /// Records what nodes have counted, whenever this is requested, until measuring has ended. It has its own thread,
    /// since the time that it takes is unknown.
    fn count_when_asked(&self) {
        loop {
            let mut inner = self.shared.inner.lock();
            while !inner.is_over() && inner.counts_done == inner.counts_wanted {
                inner = self.shared.changed.wait(inner);
            }
            if inner.is_over() {
                return;
            }
            let wanted = inner.counts_wanted;
            drop(inner);
            (self.count)();
            self.shared.inner.lock().counts_done = wanted;
            self.shared.changed.notify_all();
        }
    }

    /// Returns when the nodes' counts have been recorded, or that takes too long; false when measuring has ended
    /// meanwhile.
    fn count_what_was_done(&self) -> bool {
        let began = Instant::now();
        let mut inner = self.shared.inner.lock();
        inner.counts_wanted += 1;
        let wanted = inner.counts_wanted;
        self.shared.changed.notify_all();
        while !inner.is_over() && inner.counts_done < wanted {
            let left = FIGURES_LIMIT.saturating_sub(began.elapsed());
            if left.is_zero() {
                break;
            }
            inner = self.shared.changed.wait_timeout(inner, left);
        }
        !inner.is_over()
    }

    /// The events, in the order in which nodes went down. Failed commands are no events.
    pub fn events(&self) -> Vec<NodeEventRecord> {
        let events = self.shared.inner.lock().events.clone();
        events.into_iter().filter(|event| event.event.is_some() || event.away_s.is_some()).collect()
    }

    /// The nodes' present states.
    ///
    /// # Errors
    /// When the system can't be asked.
    fn list(&self) -> Result<Vec<NodeState>, String> {
        self.nodes.list().map_err(|error| error.to_string())
    }

    /// Takes a node down and brings it back, at its times. Returns when that is done, or measuring has ended.
    fn carry_out(&self, event: &PlannedEvent) {
        // Counting may have taken until the end.
        if !(self.wait_until(event.at) && self.count_what_was_done()) {
            return;
        }
        let (place, _) = self.send_away(Some(&event.name), &event.choice, event.how);
        // Counts from when it went down, which may be later than planned. A node that would not stop and was killed
        // also went down.
        let went_s = self.shared.inner.lock().events[place].away_s;
        let (Some(length), Some(went_s)) = (event.duration, went_s) else { return };
        if self.wait_until(Duration::from_secs_f64(went_s).saturating_add(length)) {
            let _ = self.bring_back(place, false);
        }
    }

    /// Waits for a time of the measurement; false if it ended earlier.
    fn wait_until(&self, time: Duration) -> bool {
        let at_wall = time.mul_f64(self.time_scale);
        let mut inner = self.shared.inner.lock();
        while !inner.is_over() {
            let now = Instant::now();
            // If the beginning lies in the future, the wait is longer by that.
            let left = inner.began.map(|began| {
                (began.saturating_duration_since(now) + at_wall)
                    .saturating_sub(now.saturating_duration_since(began))
            });
            inner = match left {
                None => self.shared.changed.wait(inner),
                Some(Duration::ZERO) => return true,
                Some(left) => self.shared.changed.wait_timeout(inner, left),
            };
        }
        false
    }

    /// Takes a node down, and returns where that is recorded.
    fn send_away(
        &self,
        event: Option<&str>,
        choice: &NodeChoice,
        exit: NodeExit,
    ) -> (usize, Result<String, String>) {
        let chosen = self.list().and_then(|nodes| pick(choice, nodes));
        let mut record = NodeEventRecord {
            event: event.map(str::to_owned),
            chosen: choice.to_string(),
            how: exit,
            ..NodeEventRecord::default()
        };
        let place = {
            let mut inner = self.shared.inner.lock();
            if let Ok(node) = &chosen {
                record.node = Some(node.name.clone());
                (record.role, record.shard) = match *choice {
                    NodeChoice::First { shard: Some(shard), .. } => (node.role_in(shard), Some(shard)),
                    _ => (node.role, node.only_shard()),
                };
                record.away_s = Some(self.now_s(&inner));
            }
            inner.events.push(record);
            inner.events.len() - 1
        };
        let had_gone = chosen
            .as_ref()
            .is_ok_and(|node| matches!(node.condition, NodeCondition::Away | NodeCondition::Stopping));
        let outcome = chosen.and_then(|node| {
            let done = self.run_while_busy(&node.name, || match exit {
                NodeExit::Stop => self.nodes.stop(&node.name),
                NodeExit::Kill => self.nodes.kill(&node.name),
            });
            done.map(|()| node.name)
        });
        let is_away = outcome.is_err() && {
            let name = self.shared.inner.lock().events[place].node.clone();
            self.is_away(name.as_deref())
        };
        let mut inner = self.shared.inner.lock();
        let now_s = self.now_s(&inner);
        let record = &mut inner.events[place];
        record.problem = outcome.as_ref().err().cloned();
        match outcome.is_err() && (had_gone || !is_away) {
            // It could not be taken down, or was down already.
            true => record.away_s = None,
            // Includes a node that did not stop in time and was killed.
            false => record.ended_s = Some(now_s),
        }
        (place, outcome)
    }

    /// Acts on a node, which another thread may kill after it has waited long enough.
    ///
    /// # Errors
    /// When that fails, or measuring has ended already: then nothing is done.
    fn run_while_busy(
        &self,
        name: &str,
        act: impl FnOnce() -> Result<(), SystemError>,
    ) -> Result<(), String> {
        {
            let mut inner = self.shared.inner.lock();
            if inner.is_over() {
                return Err(OVER.to_owned());
            }
            inner.busy.push(name.to_owned());
        }
        let outcome = act();
        let mut inner = self.shared.inner.lock();
        let given_up = &inner.given_up;
        let outcome =
            outcome.map_err(|error| match given_up.get(&Some(name.to_owned())).or(given_up.get(&None)) {
                Some(reason) => format!("{reason}, so it was killed: {error}"),
                None => error.to_string(),
            });
        if let Some(index) = inner.busy.iter().position(|busy| *busy == name) {
            inner.busy.remove(index);
        }
        outcome
    }

    /// Starts every node that is down, until `stop` is raised. A node that does not come up does not keep others down.
    ///
    /// # Errors
    /// The reasons of all nodes that stay down.
    pub fn restore(&self, stop: &AtomicBool) -> Result<(), String> {
        let away = self.list()?.into_iter().filter(|node| node.condition == NodeCondition::Away);
        let mut problems = Vec::new();
        for node in away {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let started = std::thread::scope(|scope| {
                let starting = scope.spawn(|| self.nodes.start(&node.name, &|| {}));
                while !starting.is_finished() {
                    if stop.load(Ordering::Relaxed) {
                        // It may have come up meanwhile, which does no harm.
                        let _ = self.nodes.kill(&node.name);
                    }
                    std::thread::sleep(POLL);
                }
                let outcome = starting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                outcome.map_err(|error| error.to_string())
            });
            problems.extend(started.err());
        }
        match problems.is_empty() {
            true => Ok(()),
            false => Err(problems.join("\n")),
        }
    }

    /// Calls a function, which may need all nodes, while every node that is down comes back. Both are over when this
    /// returns.
    pub fn restore_while<T>(&self, stop: &AtomicBool, act: impl FnOnce() -> T) -> (Result<(), String>, T) {
        std::thread::scope(|scope| {
            let restoring = scope.spawn(|| self.restore(stop));
            let outcome = act();
            let restored = restoring.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (restored, outcome)
        })
    }

    fn is_away(&self, name: Option<&str>) -> bool {
        let nodes = self.nodes.list().unwrap_or_default();
        nodes.iter().any(|node| Some(node.name.as_str()) == name && node.condition == NodeCondition::Away)
    }

    /// Starts the node of an event again, by hand or because its time is up. An event does not undo a user's command.
    fn bring_back(&self, place: usize, by_hand: bool) -> Result<(), String> {
        let (name, places) = {
            let mut inner = self.shared.inner.lock();
            let now_s = self.now_s(&inner);
            let Some(name) = inner.events[place].node.clone() else { return Ok(()) };
            // A user did so by hand.
            if inner.events[place].start_s.is_some() {
                return Ok(());
            }
            // If a stop was cut short by a kill, the node went down twice and comes back once.
            let all = inner.events.iter().enumerate();
            let mut places: Vec<usize> =
                all.filter(|(_, record)| is_open(record, &name)).map(|(place, _)| place).collect();
            // An event whose start failed ended when the node went down again.
            let last = places.last().copied();
            places.retain(|other| {
                Some(*other) == last || *other == place || !inner.start_failed.contains(other)
            });
            // Another event or command that tried to start it wants it back.
            let is_of_others = |&other: &usize| {
                (other > place || inner.events[other].event.is_none()) && !inner.start_failed.contains(&other)
            };
            if let Some(&other) = places.iter().rfind(|&other| *other != place && is_of_others(other))
                && !by_hand
            {
                let sent_away = match (&inner.events[other].event, inner.events[other].how) {
                    (Some(event), _) => format!("event {event} sent it away meanwhile"),
                    (None, NodeExit::Stop) => "it was stopped by hand meanwhile".to_owned(),
                    (None, NodeExit::Kill) => "it was killed by hand meanwhile".to_owned(),
                };
                let before = inner.events[place].problem.take().map(|before| before + "; ");
                let problem = format!(
                    "{}{sent_away}, so this event does not start it again",
                    before.unwrap_or_default()
                );
                inner.events[place].problem = Some(problem.clone());
                return Err(problem);
            }
            for &place in &places {
                inner.events[place].start_s = Some(now_s);
                inner.events[place].started_by_hand = by_hand && inner.events[place].event.is_some();
            }
            (name, places)
        };
        let note = |note: &dyn Fn(&mut NodeEventRecord, f64)| {
            let mut inner = self.shared.inner.lock();
            let now_s = self.now_s(&inner);
            places.iter().for_each(|&place| note(&mut inner.events[place], now_s));
        };
        let outcome = self.run_while_busy(&name, || {
            self.nodes.start(&name, &|| note(&|record, now_s| record.process_back_s = Some(now_s)))
        });
        if outcome.is_err() {
            self.shared.inner.lock().start_failed.extend(&places);
        }
        note(&|record, now_s| match &outcome {
            Ok(()) => record.served_s = Some(now_s),
            Err(problem) => {
                // An event whose time is up just when the measurement ends has nothing to report.
                if problem != OVER {
                    let before = record.problem.take().map(|before| before + "; ");
                    record.problem = Some(before.unwrap_or_default() + problem);
                }
                // It is still down: the next start must find it here.
                (record.start_s, record.process_back_s, record.started_by_hand) = (None, None, false);
            }
        });
        outcome
    }

    /// Carries out a command while the system runs.
    fn obey(&self, command: &NodeCommand) -> NodeReply {
        let named = |name: &str| NodeChoice::parse(name).map_err(|problem| problem.to_string());
        let outcome = match command {
            NodeCommand::List => {
                return self.list().map_or_else(NodeReply::failed, |nodes| NodeReply::Nodes { nodes });
            }
            NodeCommand::Stop { node } | NodeCommand::Kill { node } => {
                let is_stop = matches!(command, NodeCommand::Stop { .. });
                let exit = if is_stop { NodeExit::Stop } else { NodeExit::Kill };
                named(node).and_then(|choice| {
                    // The sender of an impossible command gets an error, and no event is recorded.
                    self.list().and_then(|nodes| pick(&choice, nodes))?;
                    if !self.count_what_was_done() {
                        return Err(OVER.to_owned());
                    }
                    self.send_away(None, &choice, exit).1
                })
            }
            NodeCommand::Start { node } => named(node).and_then(|choice| self.start_by_hand(&choice)),
        };
        outcome.map_or_else(NodeReply::failed, |node| NodeReply::Done { node })
    }

    /// Records the time at which the node came back in its last event.
    fn start_by_hand(&self, choice: &NodeChoice) -> Result<String, String> {
        let NodeChoice::Named(name) = choice else {
            return Err(format!(
                "which node? '{choice}' may be one that is there: say the name of one that is away"
            ));
        };
        let nodes = self.list()?;
        let Some(node) = nodes.iter().find(|node| node.name == *name) else {
            return Err(missing_node(choice, &nodes));
        };
        // Also for one that ended by itself: a start would hide that from the system's health check.
        if node.condition != NodeCondition::Away {
            return Err(format!("{name} is {}", node.condition));
        }
        let place = {
            let inner = self.shared.inner.lock();
            inner.events.iter().rposition(|record| is_open(record, name))
        };
        match place {
            Some(place) => self.bring_back(place, true)?,
            None => self.run_while_busy(name, || self.nodes.start(name, &|| {}))?,
        }
        Ok(name.clone())
    }

    /// 0 before measuring begins.
    fn now_s(&self, inner: &MutexGuard<'_, NodeDeskState>) -> f64 {
        inner.began.map_or(0.0, |began| began.elapsed().as_secs_f64() / self.time_scale)
    }
}

/// Whether every node serves.
///
/// # Errors
/// The nodes that do not serve, or why this can't be determined.
pub fn all_serve(nodes: &dyn SystemNodes) -> Result<(), String> {
    let nodes = nodes.list().map_err(|error| error.to_string())?;
    match nodes.iter().find(|node| node.condition != NodeCondition::Serving) {
        None => Ok(()),
        Some(node) => Err(format!("{} is {}", node.name, node.condition)),
    }
}

/// Whether this node went down in this event and was not started since.
fn is_open(record: &NodeEventRecord, node: &str) -> bool {
    record.node.as_deref() == Some(node) && record.away_s.is_some() && record.start_s.is_none()
}

/// Ends everything when it is dropped.
struct AttendedNodes<'a>(&'a NodeDesk<'a>);

impl Drop for AttendedNodes<'_> {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

/// Chooses one of the present nodes: by its name, or the first that serves.
fn pick(choice: &NodeChoice, nodes: Vec<NodeState>) -> Result<NodeState, String> {
    let found = nodes.iter().position(|node| {
        let serves = node.condition == NodeCondition::Serving || matches!(choice, NodeChoice::Named(_));
        serves && choice.allows(&node.name, node.role, &node.shards)
    });
    match found.and_then(|index| nodes.get(index)) {
        Some(node) => Ok(node.clone()),
        None => Err(missing_node(choice, &nodes)),
    }
}

fn missing_node(choice: &NodeChoice, nodes: &[NodeState]) -> String {
    let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    match choice {
        NodeChoice::Named(name) => {
            let meant = closest(name, names.iter().copied());
            let meant = meant.map_or_else(String::new, |meant| format!("; did you mean {meant}?"));
            format!("there is no node '{name}': expected one of {}{meant}", names.join(", "))
        }
        NodeChoice::First { .. } => {
            let state = |node: &NodeState| match node.role {
                Some(role) => format!("{} ({role}, {})", node.name, node.condition),
                None => format!("{} ({})", node.name, node.condition),
            };
            let states: Vec<String> = nodes.iter().map(state).collect();
            format!("no node is '{choice}' now: there are {}", states.join(", "))
        }
    }
}

#[cfg(test)]
mod tests;
