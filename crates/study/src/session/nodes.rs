//! The nodes of a system under load: sent away and brought back by a plan or by hand, with a record of what happened and when.

mod control;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use underlay_attach::{AttachError, Registry};
use underlay_config::closest;
use underlay_record::{NodeChoice, NodeCondition, NodeEventRecord, NodeExit, NodeState};
use underlay_sync::{Condvar, Mutex, MutexGuard};
use underlay_systems::nodes::Nodes;

use control::NodeControl;
pub use control::{NodeCommand, NodeReply, controls};

const POLL: Duration = Duration::from_millis(50);

/// The nodes of one running system, whoever sends them away. Times are modelled and count from the beginning of what is measured.
pub struct NodeDesk<'a> {
    nodes: &'a dyn Nodes,
    /// Wall seconds of a modelled one.
    time_scale: f64,
    shared: Arc<Shared>,
}

/// What a beginning needs, which may outlive the nodes.
#[derive(Default)]
struct Shared {
    inner: Mutex<Inner>,
    changed: Condvar,
}

impl Shared {
    fn begin(&self) {
        self.inner.lock().began = Some(Instant::now());
        self.changed.notify_all();
    }
}

#[derive(Default)]
struct Inner {
    began: Option<Instant>,
    is_over: bool,
    events: Vec<NodeEventRecord>,
    /// The nodes that are being started.
    starting: Vec<String>,
}

/// A node to send away, and when.
#[derive(Clone, Debug)]
pub struct PlannedEvent {
    pub name: String,
    pub choice: NodeChoice,
    pub how: NodeExit,
    /// In modelled time, from the beginning of what is measured.
    pub at: Duration,
    /// Without it, the node stays away.
    pub duration: Option<Duration>,
}

impl<'a> NodeDesk<'a> {
    pub fn new(nodes: &'a dyn Nodes, time_scale: f64) -> NodeDesk<'a> {
        NodeDesk { nodes, time_scale, shared: Arc::default() }
    }

    /// Does something while these events come about, and while others of this user may command nodes. A node that is being started
    /// when that ends is waited for, unless `stop` says that nobody wants to know.
    ///
    /// # Errors
    /// When there is no socket for commands to be had; nothing is done then.
    pub fn attend<T>(
        &self,
        events: &[PlannedEvent],
        registry: &Registry,
        stop: &AtomicBool,
        act: impl FnOnce() -> T,
    ) -> Result<T, AttachError> {
        std::thread::scope(|scope| {
            // Also where something panics: the threads would go on for ever.
            let attended = Attended(self);
            let control = NodeControl::listen(self, registry, scope)?;
            for event in events {
                scope.spawn(|| self.carry_out(event));
            }
            let outcome = act();
            self.end();
            drop(control);
            while !self.shared.inner.lock().starting.is_empty() && !stop.load(Ordering::Relaxed) {
                std::thread::sleep(POLL);
            }
            drop(attended);
            Ok(outcome)
        })
    }

    /// Measuring begins now: events count from here.
    pub fn begin(&self) {
        self.shared.begin();
    }

    /// What says the same, for whoever outlives the nodes.
    pub fn beginning(&self) -> impl Fn() + Send + Sync + use<> {
        let shared = Arc::clone(&self.shared);
        move || shared.begin()
    }

    /// Measuring has ended: nobody is sent away or brought back any more. A node that is being started goes on with that.
    pub fn end(&self) {
        self.shared.inner.lock().is_over = true;
        self.shared.changed.notify_all();
    }

    /// Everything has ended, and nobody waits for a node that is being started.
    fn give_up(&self) {
        self.end();
        let starting = self.shared.inner.lock().starting.clone();
        for name in starting {
            // It may have come up meanwhile, which does no harm.
            let _ = self.nodes.kill(&name);
        }
    }

    /// What happened, in the order in which nodes went. What somebody asked for in vain did not happen.
    pub fn events(&self) -> Vec<NodeEventRecord> {
        let events = self.shared.inner.lock().events.clone();
        events.into_iter().filter(|event| event.event.is_some() || event.away_s.is_some()).collect()
    }

    /// What the nodes are now.
    ///
    /// # Errors
    /// When the system can't be asked.
    fn list(&self) -> Result<Vec<NodeState>, String> {
        self.nodes.list().map_err(|error| error.to_string())
    }

    /// Sends a node away and brings it back, at its times. Returns when that is done, or measuring has ended.
    fn carry_out(&self, event: &PlannedEvent) {
        if !self.wait_until(event.at) {
            return;
        }
        let (place, outcome) = self.send_away(Some(&event.name), &event.choice, event.how);
        let Some(length) = event.duration.filter(|_| outcome.is_ok()) else { return };
        // From when it went, which may be later than was planned.
        let went_s = self.shared.inner.lock().events[place].away_s.unwrap_or_default();
        if self.wait_until(Duration::from_secs_f64(went_s).saturating_add(length)) {
            let _ = self.bring_back(place);
        }
    }

    /// Waits for a time of the measurement; false when it ended before.
    fn wait_until(&self, at: Duration) -> bool {
        let at_wall = at.mul_f64(self.time_scale);
        let mut inner = self.shared.inner.lock();
        while !inner.is_over {
            inner = match inner.began.map(|began| at_wall.saturating_sub(began.elapsed())) {
                None => self.shared.changed.wait(inner),
                Some(Duration::ZERO) => return true,
                Some(left) => self.shared.changed.wait_timeout(inner, left),
            };
        }
        false
    }

    /// Sends a node away, and says where that is recorded.
    fn send_away(
        &self,
        event: Option<&str>,
        choice: &NodeChoice,
        how: NodeExit,
    ) -> (usize, Result<String, String>) {
        let chosen = self.list().and_then(|nodes| pick(choice, nodes));
        let mut record = NodeEventRecord {
            event: event.map(str::to_owned),
            chosen: choice.to_string(),
            how,
            ..NodeEventRecord::default()
        };
        let place = {
            let mut inner = self.shared.inner.lock();
            if let Ok(node) = &chosen {
                record.node = Some(node.name.clone());
                (record.role, record.shard) = (node.role, node.shard);
                record.away_s = Some(self.now_s(&inner));
            }
            inner.events.push(record);
            inner.events.len() - 1
        };
        let was_away = chosen.as_ref().is_ok_and(|node| node.condition == NodeCondition::Away);
        let outcome = chosen.and_then(|node| {
            let done = match how {
                NodeExit::Stop => self.nodes.stop(&node.name),
                NodeExit::Kill => self.nodes.kill(&node.name),
            };
            done.map(|()| node.name).map_err(|error| error.to_string())
        });
        let is_away = outcome.is_err() && {
            let name = self.shared.inner.lock().events[place].node.clone();
            self.is_away(name.as_deref())
        };
        let mut inner = self.shared.inner.lock();
        let now_s = self.now_s(&inner);
        let record = &mut inner.events[place];
        match &outcome {
            Ok(_) => record.ended_s = Some(now_s),
            Err(problem) => {
                record.problem = Some(problem.clone());
                // A node that did not stop in time was killed: it is away. One that could not be sent away is not.
                if was_away || !is_away {
                    record.away_s = None;
                }
            }
        }
        (place, outcome)
    }

    /// Starts every node that is away, until `stop` says that nobody wants them any more.
    ///
    /// # Errors
    /// When one does not come up.
    pub fn restore(&self, stop: &AtomicBool) -> Result<(), String> {
        let away = self.list()?.into_iter().filter(|node| node.condition == NodeCondition::Away);
        for node in away {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            std::thread::scope(|scope| {
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
            })?;
        }
        Ok(())
    }

    fn is_away(&self, name: Option<&str>) -> bool {
        let nodes = self.nodes.list().unwrap_or_default();
        nodes.iter().any(|node| Some(node.name.as_str()) == name && node.condition == NodeCondition::Away)
    }

    /// Starts the node of an event again.
    fn bring_back(&self, place: usize) -> Result<(), String> {
        let name = {
            let mut inner = self.shared.inner.lock();
            let now_s = self.now_s(&inner);
            let record = &mut inner.events[place];
            let Some(name) = record.node.clone() else { return Ok(()) };
            // Somebody did so by hand.
            if record.start_s.is_some() {
                return Ok(());
            }
            record.start_s = Some(now_s);
            inner.starting.push(name.clone());
            name
        };
        let note = |note: &dyn Fn(&mut NodeEventRecord, f64)| {
            let mut inner = self.shared.inner.lock();
            let now_s = self.now_s(&inner);
            note(&mut inner.events[place], now_s);
        };
        let outcome = self.nodes.start(&name, &|| note(&|record, now_s| record.process_back_s = Some(now_s)));
        let outcome = outcome.map_err(|error| error.to_string());
        note(&|record, now_s| match &outcome {
            Ok(()) => record.served_s = Some(now_s),
            Err(problem) => record.problem = Some(problem.clone()),
        });
        let mut inner = self.shared.inner.lock();
        if let Some(at) = inner.starting.iter().position(|starting| *starting == name) {
            inner.starting.remove(at);
        }
        drop(inner);
        outcome
    }

    /// What somebody commands while the system runs.
    fn obey(&self, command: &NodeCommand) -> NodeReply {
        let named = |name: &str| NodeChoice::parse(name).map_err(|problem| problem.to_string());
        let outcome = match command {
            NodeCommand::List => {
                return self.list().map_or_else(NodeReply::failed, |nodes| NodeReply::Nodes { nodes });
            }
            NodeCommand::Stop { node } | NodeCommand::Kill { node } => {
                let is_stop = matches!(command, NodeCommand::Stop { .. });
                let how = if is_stop { NodeExit::Stop } else { NodeExit::Kill };
                named(node).and_then(|choice| {
                    // What can't be done is told to whoever asked, and did not happen.
                    self.list().and_then(|nodes| pick(&choice, nodes))?;
                    self.send_away(None, &choice, how).1
                })
            }
            NodeCommand::Start { node } => named(node).and_then(|choice| self.start_by_hand(&choice)),
        };
        outcome.map_or_else(NodeReply::failed, |node| NodeReply::Done { node })
    }

    /// The last time that this node went away gets the time at which it came back.
    fn start_by_hand(&self, choice: &NodeChoice) -> Result<String, String> {
        let NodeChoice::Named(name) = choice else {
            return Err(format!(
                "which node? '{choice}' may be one that is there: say the name of one that is away"
            ));
        };
        let nodes = self.list()?;
        let Some(node) = nodes.iter().find(|node| node.name == *name) else {
            return Err(no_such(choice, &nodes));
        };
        // One that has ended by itself, too: a start would hide that from whoever asks whether the system is well.
        if node.condition != NodeCondition::Away {
            return Err(format!("{name} is {}", node.condition));
        }
        let place = {
            let inner = self.shared.inner.lock();
            inner.events.iter().rposition(|record| {
                record.node.as_deref() == Some(name) && record.away_s.is_some() && record.start_s.is_none()
            })
        };
        match place {
            Some(place) => self.bring_back(place)?,
            None => self.nodes.start(name, &|| {}).map_err(|error| error.to_string())?,
        }
        Ok(name.clone())
    }

    /// Before measuring begins it is 0.
    fn now_s(&self, inner: &MutexGuard<'_, Inner>) -> f64 {
        inner.began.map_or(0.0, |began| began.elapsed().as_secs_f64() / self.time_scale)
    }
}

/// Ends everything when it is dropped.
struct Attended<'a>(&'a NodeDesk<'a>);

impl Drop for Attended<'_> {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

/// The node that is meant, of those that there are now: one by its name, or the first that serves.
fn pick(choice: &NodeChoice, nodes: Vec<NodeState>) -> Result<NodeState, String> {
    let found = nodes.iter().position(|node| {
        let serves = node.condition == NodeCondition::Serving || matches!(choice, NodeChoice::Named(_));
        serves && choice.allows(&node.name, node.role, node.shard)
    });
    match found.and_then(|at| nodes.get(at)) {
        Some(node) => Ok(node.clone()),
        None => Err(no_such(choice, &nodes)),
    }
}

fn no_such(choice: &NodeChoice, nodes: &[NodeState]) -> String {
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
