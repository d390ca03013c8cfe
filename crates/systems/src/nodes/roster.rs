//! Which nodes of a system are there: a place for each, with its process, without one, or with one to come.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use underlay_record::{NodeCondition, NodeRole, NodeState};
use underlay_sync::{Condvar, Mutex, MutexGuard};

use super::unknown;
use crate::child::ChildState;
use crate::system::SystemError;

/// A node's running process.
pub(crate) trait NodeProcess {
    fn state(&self) -> &Arc<ChildState>;

    /// Kills its process, and returns when that has ended.
    fn kill(&self);
}

#[derive(Debug)]
enum RosterPlace<T> {
    Away,
    /// Sent away: its process may still be ending. It is away in earnest once that has ended.
    Leaving(Arc<T>),
    /// It has no process that others may touch yet. True once nobody wants it any more.
    Preparing(Arc<AtomicBool>),
    Present {
        node: Arc<T>,
        serves: bool,
    },
}

/// The places of all nodes in an order that stays the same.
#[derive(Debug)]
pub(crate) struct Roster<T> {
    system: &'static str,
    names: Vec<String>,
    places: Mutex<Vec<RosterPlace<T>>>,
    changed: Condvar,
}

impl<T: NodeProcess> Roster<T> {
    /// Of nodes that serve.
    pub(crate) fn new(system: &'static str, nodes: impl IntoIterator<Item = (String, Arc<T>)>) -> Roster<T> {
        let (names, nodes): (Vec<String>, Vec<Arc<T>>) = nodes.into_iter().unzip();
        let places = nodes.into_iter().map(|node| RosterPlace::Present { node, serves: true }).collect();
        Roster { system, names, places: Mutex::new(places), changed: Condvar::new() }
    }

    /// Those that were not sent away, in order, with those that have ended by themselves.
    pub(crate) fn present(&self) -> Vec<Arc<T>> {
        self.places.lock().iter().filter_map(RosterPlace::node).cloned().collect()
    }

    /// The name of each node with how it is, and itself if it is present.
    pub(crate) fn all(&self) -> Vec<(&str, NodeCondition, Option<Arc<T>>)> {
        let places = self.places.lock();
        let names = self.names.iter().map(String::as_str);
        names.zip(&*places).map(|(name, place)| (name, place.condition(), place.node().cloned())).collect()
    }

    /// All of them as they are now, with the role that all have in common, where there is one.
    pub(crate) fn states(&self, role: Option<NodeRole>) -> Vec<NodeState> {
        let places = self.places.lock();
        let state = |(name, place): (&String, &RosterPlace<T>)| NodeState {
            name: name.clone(),
            role,
            shards: Vec::new(),
            condition: place.condition(),
            process: place.process().and_then(|node| node.state().running_pid()),
        };
        self.names.iter().zip(&*places).map(state).collect()
    }

    /// Whether this one is in its place still.
    pub(crate) fn is_present(&self, node: &Arc<T>) -> bool {
        self.places.lock().iter().filter_map(RosterPlace::node).any(|own| Arc::ptr_eq(own, node))
    }

    /// Fails with the first one that has ended by itself.
    ///
    /// # Errors
    /// Its process's state.
    pub(crate) fn check(&self, during: &'static str) -> Result<(), SystemError> {
        let present = self.present();
        let ended = present.iter().find(|node| !node.state().is_running());
        ended.map_or(Ok(()), |node| Err(node.state().failed(during, node.state().describe())))
    }

    /// Stops a node, as `shut_down` does it. The node has no process when this returns, even if that fails: one that
    /// hangs is killed.
    ///
    /// # Errors
    /// When there is no such node, it is away, it has ended by itself, or it had to be killed; and those of
    /// `shut_down`.
    pub(crate) fn stop(
        &self,
        name: &str,
        during: &'static str,
        shut_down: impl FnOnce(&T) -> Result<(), SystemError>,
    ) -> Result<(), SystemError> {
        // One that had no process yet has nothing to write out.
        let Some(node) = self.take(name, during)? else { return Ok(()) };
        let outcome = shut_down(&node);
        if !node.state().is_running() {
            return outcome;
        }
        node.kill();
        let problem = match outcome {
            Ok(()) => format!("{name} did not end and was killed"),
            Err(error) => format!("{name} did not stop and was killed: {error}"),
        };
        Err(SystemError::failed(self.system, during, problem))
    }

    /// Kills a node, also one that is being started or stopped.
    ///
    /// # Errors
    /// When there is no such node, it is away, or it has ended by itself.
    pub(crate) fn kill(&self, name: &str, during: &'static str) -> Result<(), SystemError> {
        if let Some(node) = self.take_to_kill(name, during)? {
            node.kill();
        }
        Ok(())
    }

    /// Takes a node out to be stopped: the caller ends its process, and it can't be started before that has ended.
    /// `None` if it was being started and had no process yet; it has none when this returns.
    fn take(&self, name: &str, during: &'static str) -> Result<Option<Arc<T>>, SystemError> {
        self.take_from(name, during, false)
    }

    /// As [`take`](Self::take) to be killed, also while it is being stopped.
    fn take_to_kill(&self, name: &str, during: &'static str) -> Result<Option<Arc<T>>, SystemError> {
        self.take_from(name, during, true)
    }

    fn take_from(
        &self,
        name: &str,
        during: &'static str,
        may_be_leaving: bool,
    ) -> Result<Option<Arc<T>>, SystemError> {
        let index = self.find(name, during)?;
        let mut places = self.places.lock();
        let mut was_preparing = false;
        while let RosterPlace::Preparing(given_up) = &places[index] {
            given_up.store(true, Ordering::Relaxed);
            was_preparing = true;
            places = self.changed.wait(places);
        }
        match &places[index] {
            RosterPlace::Present { node, .. } if !node.state().is_running() => {
                Err(node.state().failed(during, node.state().describe()))
            }
            RosterPlace::Present { node, .. } => {
                let node = Arc::clone(node);
                places[index] = RosterPlace::Leaving(Arc::clone(&node));
                Ok(Some(node))
            }
            RosterPlace::Leaving(node) if may_be_leaving && node.state().is_running() => {
                Ok(Some(Arc::clone(node)))
            }
            _ if was_preparing => Ok(None),
            _ => Err(SystemError::failed(self.system, during, format!("{name} does not run"))),
        }
    }

    /// Begins to start a node that is away or has ended by itself. Its place stays empty if this is dropped without a
    /// process.
    ///
    /// # Errors
    /// When there is no such node, it runs, also if it is about to end, or it is being started.
    pub(crate) fn prepare(
        &self,
        name: &str,
        during: &'static str,
    ) -> Result<NodePreparation<'_, T>, SystemError> {
        let index = self.find(name, during)?;
        let mut places = self.places.lock();
        let refused = |problem: &str| SystemError::failed(self.system, during, format!("{name} {problem}"));
        match &places[index] {
            RosterPlace::Preparing(_) => return Err(refused("is being started")),
            RosterPlace::Present { node, .. } if node.state().is_running() => {
                return Err(refused("is running"));
            }
            RosterPlace::Leaving(node) if node.state().is_running() => {
                return Err(refused("has not ended yet"));
            }
            RosterPlace::Present { .. } | RosterPlace::Leaving(_) | RosterPlace::Away => {}
        }
        let given_up = Arc::new(AtomicBool::new(false));
        places[index] = RosterPlace::Preparing(Arc::clone(&given_up));
        Ok(NodePreparation { roster: self, at: index, during, given_up })
    }

    fn find(&self, name: &str, during: &'static str) -> Result<usize, SystemError> {
        let found = self.names.iter().position(|own| own == name);
        found.ok_or_else(|| unknown(self.system, during, name, self.names.iter().map(String::as_str)))
    }
}

impl<T: NodeProcess> RosterPlace<T> {
    fn node(&self) -> Option<&Arc<T>> {
        match self {
            RosterPlace::Present { node, .. } => Some(node),
            RosterPlace::Away | RosterPlace::Leaving(_) | RosterPlace::Preparing(_) => None,
        }
    }

    /// The process, also one that is to end.
    fn process(&self) -> Option<&Arc<T>> {
        match self {
            RosterPlace::Present { node, .. } | RosterPlace::Leaving(node) => Some(node),
            RosterPlace::Away | RosterPlace::Preparing(_) => None,
        }
    }

    fn condition(&self) -> NodeCondition {
        match self {
            RosterPlace::Leaving(node) if node.state().is_running() => NodeCondition::Stopping,
            RosterPlace::Away | RosterPlace::Leaving(_) => NodeCondition::Away,
            RosterPlace::Preparing(_) => NodeCondition::Starting,
            RosterPlace::Present { node, .. } if !node.state().is_running() => NodeCondition::Ended,
            RosterPlace::Present { serves: true, .. } => NodeCondition::Serving,
            RosterPlace::Present { serves: false, .. } => NodeCondition::Starting,
        }
    }
}

/// A node about to have a process.
pub(crate) struct NodePreparation<'a, T: NodeProcess> {
    roster: &'a Roster<T>,
    at: usize,
    during: &'static str,
    given_up: Arc<AtomicBool>,
}

impl<'a, T: NodeProcess> NodePreparation<'a, T> {
    /// True once nobody wants it any more.
    pub(crate) fn given_up(&self) -> &AtomicBool {
        &self.given_up
    }

    /// The error of a start that ended early, which is that nobody wants it any more where that is so.
    pub(crate) fn explained(&self, error: SystemError) -> SystemError {
        if self.given_up.load(Ordering::Relaxed) { self.unwanted() } else { error }
    }

    /// It has a process, and does not do its part yet. The node is dropped where nobody wants it any more.
    ///
    /// # Errors
    /// When it was stopped or killed meanwhile.
    pub(crate) fn has(self, node: Arc<T>) -> Result<NodeArrival<'a, T>, SystemError> {
        let mut places = self.places();
        if self.given_up.load(Ordering::Relaxed) {
            drop(places);
            // Before its place becomes empty: a thread that waits for that takes it for ended.
            node.kill();
            return Err(self.unwanted());
        }
        places[self.at] = RosterPlace::Present { node: Arc::clone(&node), serves: false };
        Ok(NodeArrival { roster: self.roster, at: self.at, during: self.during, node })
    }

    fn unwanted(&self) -> SystemError {
        let name = &self.roster.names[self.at];
        let problem = format!("{name} was sent away while it was being started");
        SystemError::failed(self.roster.system, self.during, problem)
    }

    fn places(&self) -> MutexGuard<'a, Vec<RosterPlace<T>>> {
        self.roster.places.lock()
    }
}

impl<T: NodeProcess> Drop for NodePreparation<'_, T> {
    fn drop(&mut self) {
        let mut places = self.places();
        if let RosterPlace::Preparing(_) = places[self.at] {
            places[self.at] = RosterPlace::Away;
        }
        self.roster.changed.notify_all();
    }
}

/// A node that has a process. Dropped before it does its part, that is ended.
pub(crate) struct NodeArrival<'a, T: NodeProcess> {
    roster: &'a Roster<T>,
    at: usize,
    during: &'static str,
    node: Arc<T>,
}

impl<T: NodeProcess> NodeArrival<'_, T> {
    /// It does its part.
    ///
    /// # Errors
    /// When it was stopped or killed meanwhile.
    pub(crate) fn serves(self) -> Result<(), SystemError> {
        let mut places = self.roster.places.lock();
        match &mut places[self.at] {
            RosterPlace::Present { node, serves } if Arc::ptr_eq(node, &self.node) => {
                *serves = true;
                Ok(())
            }
            _ => Err(self.unwanted()),
        }
    }

    /// The error of waiting for that, which is that nobody wants the node any more where that is so.
    pub(crate) fn explained(&self, error: SystemError) -> SystemError {
        let places = self.roster.places.lock();
        let is_there = places[self.at].node().is_some_and(|node| Arc::ptr_eq(node, &self.node));
        if is_there { error } else { self.unwanted() }
    }

    fn unwanted(&self) -> SystemError {
        let name = &self.roster.names[self.at];
        let problem = format!("{name} was sent away while it was being started");
        SystemError::failed(self.roster.system, self.during, problem)
    }
}

impl<T: NodeProcess> Drop for NodeArrival<'_, T> {
    fn drop(&mut self) {
        let mut places = self.roster.places.lock();
        match &places[self.at] {
            // One that has ended by itself stays in its place, for all to see.
            RosterPlace::Present { node, serves: false }
                if Arc::ptr_eq(node, &self.node) && node.state().is_running() =>
            {
                places[self.at] = RosterPlace::Leaving(Arc::clone(&self.node));
            }
            _ => return,
        }
        drop(places);
        self.node.kill();
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::*;
    use crate::child::ChildProcess;
    use crate::system::SystemResources;

    const DURING: &str = "testing";

    impl NodeProcess for ChildProcess {
        fn state(&self) -> &Arc<ChildState> {
            ChildProcess::state(self)
        }

        fn kill(&self) {
            ChildProcess::kill(self);
        }
    }

    fn child(folder: &tempfile::TempDir) -> Arc<ChildProcess> {
        let mut command = Command::new("sleep");
        command.arg("600");
        Arc::new(
            ChildProcess::spawn("test", command, &folder.path().join("log"), &SystemResources::unlimited())
                .unwrap(),
        )
    }

    fn conditions(roster: &Roster<ChildProcess>) -> Vec<NodeCondition> {
        roster.all().into_iter().map(|(_, condition, _)| condition).collect()
    }

    #[test]
    fn node_leaves_and_returns_without_double_work() {
        let folder = tempfile::TempDir::new().unwrap();
        let roster = Roster::new("test", ["a", "b"].map(|name| (name.to_owned(), child(&folder))));
        let removed = roster.take("a", DURING).unwrap().unwrap();
        assert_eq!(conditions(&roster), [NodeCondition::Stopping, NodeCondition::Serving]);
        assert!(!roster.is_present(&removed) && roster.present().len() == 1);
        let refused = |name: &str| roster.prepare(name, DURING).err().unwrap().to_string();
        assert!(refused("a").ends_with("a has not ended yet"), "two processes on one directory");
        assert!(roster.take("a", DURING).is_err());
        assert_eq!(roster.states(None)[0].process, Some(removed.state().pid()), "it runs still");
        roster.kill("a", DURING).unwrap();
        assert!(!removed.state().is_running());
        let away = &roster.states(Some(NodeRole::Peer))[0];
        assert_eq!(
            (away.condition, away.process, away.role),
            (NodeCondition::Away, None, Some(NodeRole::Peer))
        );
        roster.check(DURING).unwrap();
        let error =
            |outcome: Result<Option<Arc<ChildProcess>>, SystemError>| outcome.unwrap_err().to_string();
        assert!(error(roster.take("a", DURING)).ends_with("a does not run"));
        assert!(error(roster.take("c", DURING)).ends_with("there is no node 'c': expected one of a, b"));
        assert!(refused("b").ends_with("b is running"));
        let preparation = roster.prepare("a", DURING).unwrap();
        assert!(refused("a").ends_with("a is being started"));
        let arrival = preparation.has(child(&folder)).unwrap();
        assert_eq!(conditions(&roster)[0], NodeCondition::Starting);
        assert!(refused("a").ends_with("a is running"));
        arrival.serves().unwrap();
        assert_eq!(conditions(&roster), [NodeCondition::Serving; 2]);
        // By itself.
        roster.present()[1].kill();
        assert_eq!(conditions(&roster), [NodeCondition::Serving, NodeCondition::Ended]);
        assert!(roster.check(DURING).is_err());
        assert!(roster.take("b", DURING).is_err(), "who caused it would hide that it has ended");
        drop(roster.prepare("b", DURING).unwrap());
        assert_eq!(conditions(&roster)[1], NodeCondition::Away);
    }

    #[test]
    fn stop_leaves_no_process_behind() {
        let folder = tempfile::TempDir::new().unwrap();
        let roster = Roster::new("test", ["a", "b", "c"].map(|name| (name.to_owned(), child(&folder))));
        let hangs = |_: &ChildProcess| {
            assert_eq!(conditions(&roster)[0], NodeCondition::Stopping);
            Err(SystemError::failed("test", DURING, "it does not answer"))
        };
        let error = roster.stop("a", DURING, hangs).unwrap_err().to_string();
        assert!(
            error.contains("a did not stop and was killed") && error.contains("does not answer"),
            "{error}"
        );
        let error = roster.stop("b", DURING, |_| Ok(())).unwrap_err().to_string();
        assert!(error.ends_with("b did not end and was killed"), "{error}");
        roster.stop("c", DURING, |node| node.wait_for_end(Duration::ZERO)).unwrap_err();
        assert_eq!(conditions(&roster), [NodeCondition::Away; 3]);
        assert!(roster.states(None).iter().all(|node| node.process.is_none()));
        roster.prepare("a", DURING).unwrap();
    }

    #[test]
    fn start_ends_when_node_is_sent_away() {
        let folder = tempfile::TempDir::new().unwrap();
        let roster = Roster::new("test", [("a".to_owned(), child(&folder))]);
        roster.take("a", DURING).unwrap().unwrap().kill();
        // Before it has a process: the one who sends it away waits for the one who starts it.
        let preparation = roster.prepare("a", DURING).unwrap();
        std::thread::scope(|scope| {
            let taking = scope.spawn(|| roster.take("a", DURING).unwrap());
            while !preparation.given_up().load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(!taking.is_finished());
            let error = preparation.has(child(&folder)).err().unwrap().to_string();
            assert!(error.ends_with("a was sent away while it was being started"), "{error}");
            assert!(taking.join().unwrap().is_none());
        });
        assert_eq!(conditions(&roster), [NodeCondition::Away]);
        // Afterwards.
        let arrival = roster.prepare("a", DURING).unwrap().has(child(&folder)).unwrap();
        roster.take("a", DURING).unwrap().unwrap().kill();
        let message = arrival.explained(SystemError::starting("test", "it ended")).to_string();
        assert!(message.ends_with("a was sent away while it was being started"), "{message}");
        assert!(arrival.serves().is_err());
        assert_eq!(conditions(&roster), [NodeCondition::Away]);
        // A start that was given up.
        let node = child(&folder);
        drop(roster.prepare("a", DURING).unwrap().has(Arc::clone(&node)).unwrap());
        assert!(!node.state().is_running());
        assert_eq!(conditions(&roster), [NodeCondition::Away]);
    }
}
