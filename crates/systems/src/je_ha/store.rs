//! A running store.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use underlay_sync::Mutex;
use underlay_workload::client::Client;

use super::NAME;
use super::members::{Plan, Started, catch_up, for_all, start_all};
use super::topology::Member;
use super::totals::{Answer, Totals};
use crate::jvm::JvmChild;
use crate::process_memory::resident_bytes;
use crate::system::{Running, SystemError};

/// How long the client process may take to end.
const CLIENT_STOP_LIMIT: Duration = Duration::from_secs(30);

/// The members of all shards with a client. The client process is dropped first, before the members.
pub struct Store {
    client: JvmChild,
    /// Without those that were stopped on purpose.
    members: Mutex<Vec<Arc<Started>>>,
    all: Vec<(Member, PathBuf)>,
    totals: Mutex<Totals>,
    plan: Plan,
}

/// What a member is at this moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberState {
    /// Unique in the store: `shard1-node2`.
    pub name: String,
    pub shard: u64,
    pub node: u64,
    pub directory: PathBuf,
    /// `None` while it does not run.
    pub process: Option<u32>,
    pub is_master: bool,
}

impl Store {
    pub(super) fn new(client: JvmChild, plan: Plan, started: Vec<Arc<Started>>) -> Store {
        let all = started.iter().map(|one| (one.member.clone(), one.directory.clone())).collect();
        Store { client, members: Mutex::new(started), all, totals: Mutex::default(), plan }
    }

    /// All members, shard by shard, with those that do not run.
    pub fn members(&self) -> Vec<MemberState> {
        let running = self.present();
        let state = |(member, directory): &(Member, PathBuf)| {
            let name = member.name();
            let own = running.iter().find(|one| one.member == *member && one.state().is_running());
            MemberState {
                shard: member.shard,
                node: member.node,
                directory: directory.clone(),
                process: own.map(|one| one.state().pid()),
                is_master: own.is_some_and(|one| one.is_master()),
                name,
            }
        };
        self.all.iter().map(state).collect()
    }

    /// Shuts a member down as an operator would. The store is healthy without it.
    ///
    /// # Errors
    /// When there is no such member, it does not run, or it had to be killed.
    pub fn stop_member(&self, name: &str) -> Result<(), SystemError> {
        self.take(name, "stopping a member")?.child.stop(self.plan.limit)
    }

    /// Kills a member (SIGKILL). The store is healthy without it.
    ///
    /// # Errors
    /// When there is no such member, or it does not run.
    pub fn kill_member(&self, name: &str) -> Result<(), SystemError> {
        self.take(name, "killing a member")?.child.kill();
        Ok(())
    }

    /// Starts a member again that was stopped, killed or has ended by itself. When this returns it has all that its group had acknowledged
    /// when it joined: another one may fall then.
    ///
    /// # Errors
    /// When there is no such member, it runs, it does not come up, or it does not get all from its master in time.
    pub fn start_member(&self, name: &str) -> Result<(), SystemError> {
        const DURING: &str = "starting a member";
        let place = self.all.iter().find(|(member, _)| member.name() == name);
        let place = place.ok_or_else(|| self.unknown(name, DURING))?;
        if self.present().iter().any(|one| one.member == place.0 && one.state().is_running()) {
            return Err(SystemError::failed(NAME, DURING, format!("{name} is running")));
        }
        self.members.lock().retain(|one| one.member != place.0);
        let began = Instant::now();
        let started = start_all(&self.plan, &self.all, std::slice::from_ref(place))?;
        let started: Vec<_> = started.into_iter().map(Arc::new).collect();
        self.members.lock().extend(started.iter().cloned());
        // JE lets it join as soon as it knows the master, and counts it as one of a majority at once.
        catch_up(&started, &self.present(), DURING, self.plan.limit.saturating_sub(began.elapsed()))
    }

    /// The member of that name, which is none of the store's from now on.
    fn take(&self, name: &str, during: &'static str) -> Result<Arc<Started>, SystemError> {
        if self.all.iter().all(|(member, _)| member.name() != name) {
            return Err(self.unknown(name, during));
        }
        let mut members = self.members.lock();
        match members.iter().position(|one| one.member.name() == name) {
            Some(place) => Ok(members.remove(place)),
            None => Err(SystemError::failed(NAME, during, format!("{name} does not run"))),
        }
    }

    fn unknown(&self, name: &str, during: &'static str) -> SystemError {
        let names: Vec<String> = self.all.iter().map(|(member, _)| member.name()).collect();
        let problem = format!("there is no member '{name}': expected one of {}", names.join(", "));
        SystemError::failed(NAME, during, problem)
    }

    fn present(&self) -> Vec<Arc<Started>> {
        self.members.lock().clone()
    }

    /// Fails if a member has ended by itself.
    fn check(&self, during: &'static str) -> Result<(), SystemError> {
        let members = self.present();
        let ended = members.iter().find(|one| !one.state().is_running());
        ended.map_or(Ok(()), |one| Err(one.state().failed(during, one.state().describe())))
    }

    /// The cause of a client's error if a member has ended, otherwise the error itself.
    fn explained<T>(&self, during: &'static str, outcome: Result<T, SystemError>) -> Result<T, SystemError> {
        outcome.map_err(|error| self.check(during).err().unwrap_or(error))
    }

    fn collected(&self, of: impl Fn(&Started) -> Option<BTreeMap<String, f64>>) -> BTreeMap<String, f64> {
        // Held while members are asked: an answer that is counted after a newer one would look like a reset.
        let mut totals = self.totals.lock();
        let answer = |one: Arc<Started>| {
            Some(Answer { member: one.member.clone(), process: one.state().pid(), figures: of(&one)? })
        };
        totals.together(&self.present().into_iter().filter_map(answer).collect::<Vec<_>>())
    }
}

impl Running for Store {
    fn connect(&self) -> Result<Box<dyn Client>, SystemError> {
        Ok(Box::new(self.explained("connecting", self.client.connect(&[]))?))
    }

    fn processes(&self) -> Vec<u32> {
        let members = self.present();
        let states = members.iter().map(|one| one.state());
        states.filter(|state| state.is_running()).map(|state| state.pid()).collect()
    }

    fn applied_settings(&self) -> BTreeMap<String, String> {
        let mut applied = self.plan.config.applied();
        self.plan.resources.record_java_option(&mut applied);
        applied
    }

    fn health(&self) -> Result<(), SystemError> {
        const DURING: &str = "running";
        self.check(DURING)?;
        let outcome = for_all(&self.present(), |one| one.check_open(DURING, self.plan.limit));
        self.explained(DURING, outcome)?;
        self.client.health()
    }

    fn figures(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        let mut figures = self.collected(Started::figures);
        figures.extend(self.explained("reading its figures", self.client.figures())?);
        let resident = self.processes().into_iter().filter_map(resident_bytes).sum::<u64>();
        figures.insert("current_resident_bytes".to_owned(), resident as f64);
        Ok(figures)
    }

    fn gauges(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        Ok(self.collected(Started::gauges))
    }

    fn settle(&self, limit: Duration) -> Result<(), SystemError> {
        let (members, started) = (self.present(), Instant::now());
        catch_up(&members, &members, "settling", limit)?;
        for_all(&members, |one| one.child.settle(limit.saturating_sub(started.elapsed())))
    }

    fn abort(&self) {
        // All requests go through the client. The members end when this is dropped.
        self.client.kill();
    }

    fn stop(self: Box<Self>) -> Result<(), SystemError> {
        let client = self.client.stop(CLIENT_STOP_LIMIT);
        let outcome = self.check("stopping").and_then(|()| {
            // A master that goes first would be replaced by an election.
            let (masters, replicas): (Vec<_>, Vec<_>) =
                self.present().into_iter().partition(|one| one.is_master());
            let stop = |one: &Started| one.child.stop(self.plan.limit);
            for_all(&replicas, stop).and(for_all(&masters, stop))
        });
        // If both failed, a member is the cause.
        outcome.and(client)
    }
}
