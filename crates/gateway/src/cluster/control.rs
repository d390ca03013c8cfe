//! The one task that changes slots in etcd: takes over, hands on, marks as dirty and as clean.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::etcd::{EtcdError, EtcdPut, TransactionGuard};
use super::records::{ClusterView, MemberRecord, SlotRecord, put};
use super::{MemberRefusal, MemberShared};
use crate::placement::{SLOTS, chosen};
use std::sync::Arc;

/// etcd takes 128 operations and comparisons in a transaction.
const SLOTS_AT_ONCE: usize = 40;
/// A slot that does not come to rest in time goes on where it is, and is handed on later.
const MAX_CLOSED_TIME: Duration = Duration::from_secs(30);
const TRY_AGAIN: Duration = Duration::from_secs(60);

pub(super) struct ClusterControl {
    shared: Arc<MemberShared>,
    /// As of the last look, with our own changes since.
    view: ClusterView,
    /// Under which it was looked at.
    lease: Option<i64>,
    /// Since when each other member has been there.
    seen_since: HashMap<String, Instant>,
    closed_since: HashMap<u16, Instant>,
    /// Slots that may have been given away or marked as clean, now or yet to come, with their revision before that.
    /// They stay closed until it has changed: then what is on its way finds another one, and does nothing.
    unsure: HashMap<u16, u64>,
    /// Marks that slots were to get, with an unknown outcome.
    marks: HashMap<u16, u64>,
    not_before: HashMap<u16, Instant>,
    mover: Option<JoinHandle<()>>,
    pub(super) is_leaving: bool,
    has_told_of_lost: bool,
    /// Slots on which etcd and the local directory disagree.
    strange: usize,
}

impl ClusterControl {
    pub(super) fn new(shared: Arc<MemberShared>) -> ClusterControl {
        let is_leaving = shared.member.is_leaving;
        ClusterControl {
            shared,
            view: ClusterView::default(),
            lease: None,
            seen_since: HashMap::new(),
            closed_since: HashMap::new(),
            unsure: HashMap::new(),
            marks: HashMap::new(),
            not_before: HashMap::new(),
            mover: None,
            is_leaving,
            has_told_of_lost: false,
            strange: 0,
        }
    }

    fn id(&self) -> &str {
        self.shared.ownership.id()
    }

    /// Slots that etcd has down as ours.
    fn ours(&self) -> impl Iterator<Item = (u16, &SlotRecord)> {
        (0..SLOTS).filter_map(move |slot| {
            self.view
                .slot(slot)
                .filter(|(record, _)| record.owner == self.id())
                .map(|(record, _)| (slot, record))
        })
    }

    /// Whether nothing of ours is left that could still be settled, as etcd says under the lease that we have.
    pub(super) fn is_rid_of_all(&self) -> bool {
        if self.lease.is_none() || *self.shared.lease.lock() != self.lease {
            return false;
        }
        let has_others = self.members().values().any(|id| *id != self.id());
        self.ours().all(|(_, record)| !record.is_dirty && !has_others)
    }

    /// Whether only unfinished uploads are left. They may last for days, so nobody waits for them.
    pub(super) fn has_only_uploads(&self) -> bool {
        let Ok(uploads) = self.shared.engine.slots_with_uploads() else { return false };
        let has_others = self.members().values().any(|id| *id != self.id());
        let mut left = self.ours().filter(|(_, record)| record.is_dirty || has_others).peekable();
        let is_ours = self.lease.is_some() && *self.shared.lease.lock() == self.lease;
        is_ours
            && left.peek().is_some()
            && self.shared.engine.is_clean()
            && left.all(|(slot, _)| uploads.contains(&slot))
    }

    /// Looks at etcd, and does what is to be done.
    ///
    /// # Errors
    /// The obstacle.
    pub(super) async fn pass(&mut self) -> Result<(), String> {
        if self.shared.engine.takes_no_more() {
            // `hold` gives the lease up, so that others serve what the stores have.
            self.shared.ownership.let_go();
            return Err(super::BROKEN.to_owned());
        }
        let lease = *self.shared.lease.lock();
        let Some(lease) = lease else { return Ok(()) };
        let view = match self.shared.look().await {
            Ok(view) => view,
            Err(MemberRefusal::NotYet(reason)) => return Err(reason),
            Err(MemberRefusal::Wrong(reason)) => {
                self.shared.give_up();
                return Err(reason);
            }
        };
        let membership = self.shared.engine.membership().map_err(|error| error.to_string())?;
        if view.cluster.as_ref().map(|cluster| cluster.id) != membership.map(|membership| membership.cluster)
        {
            self.shared.give_up();
            return Err(super::lost_cluster());
        }
        if view.leases.get(self.id()) != Some(&lease) {
            // As of before or after this lease: nothing in it may be gone by.
            return Ok(());
        }
        if self.lease != Some(lease) {
            // Requests on their way ask for the former lease, and come to nothing.
            self.unsure.clear();
            self.marks.clear();
            self.closed_since.clear();
        }
        (self.view, self.lease) = (view, Some(lease));
        // A mark that etcd has stands for one time that the slot was dirty, also where the answer that it was written
        // is lost.
        let view = &self.view;
        self.marks.retain(|slot, mark| view.slot(*slot).is_none_or(|(record, _)| record.mark != *mark));
        let now = Instant::now();
        self.seen_since.retain(|id, _| self.view.members.contains_key(id));
        for id in self.view.members.keys() {
            self.seen_since.entry(id.clone()).or_insert(now);
        }
        self.say_leaving().await?;
        self.settle_unsure().await?;
        self.learn().await?;
        self.take_over().await?;
        self.mark_dirty().await?;
        self.hand_on().await?;
        self.mark_clean().await?;
        self.learn().await
    }

    /// Has the others know before they are given anything: one who does not would give it back.
    async fn say_leaving(&mut self) -> Result<(), String> {
        let is_said = self.view.members.get(self.id()).is_none_or(|member| member.is_leaving);
        let Some(lease) = self.lease.filter(|_| self.is_leaving && !is_said) else { return Ok(()) };
        let key = self.shared.keys.member(self.id());
        let record = MemberRecord { is_leaving: true, ..self.shared.member.clone() };
        let compares = vec![TransactionGuard::Leased(key.clone(), lease)];
        let outcome = self.shared.transact(compares, vec![put(key, &record, lease)]).await;
        let Some(revision) = outcome.map_err(|error| error.to_string())? else {
            return Err("the lease has ended while this gateway was leaving".to_owned());
        };
        self.shared.seen.fetch_max(revision, std::sync::atomic::Ordering::AcqRel);
        let id = self.id().to_owned();
        self.view.members.insert(id, record);
        Ok(())
    }

    /// Finds out the outcome of changes that got no answer: the slot's revision has changed, or rewriting the same
    /// value changes it now.
    async fn settle_unsure(&mut self) -> Result<(), String> {
        let view = &self.view;
        let is_still = |slot: &u16, revision: &mut u64| view.revision_of(*slot) == *revision;
        let before: Vec<u16> = self.unsure.keys().copied().collect();
        self.unsure.retain(is_still);
        if !self.unsure.is_empty() {
            let same = |slot: &u16| Some((*slot, self.view.slot(*slot)?.0.clone()));
            let changes: Vec<(u16, SlotRecord)> = self.unsure.keys().filter_map(same).collect();
            for slot in self.change(changes, &[]).await? {
                self.unsure.remove(&slot);
            }
        }
        let settled: Vec<u16> = before.into_iter().filter(|slot| !self.unsure.contains_key(slot)).collect();
        self.reopen(&settled);
        Ok(())
    }

    /// Lets these be written to again, but for those that may be another's or clean by now.
    fn reopen(&self, slots: &[u16]) {
        let sure: Vec<u16> = slots.iter().copied().filter(|slot| !self.unsure.contains_key(slot)).collect();
        self.shared.ownership.reopen(&sure);
    }

    /// Tells the rest of the gateway what is ours, and sets off what follows from it.
    async fn learn(&mut self) -> Result<(), String> {
        let ownership = Arc::clone(&self.shared.ownership);
        // Asked before what is known: what a mover that ends behind this look has taken would be taken again, and
        // forgotten before that while it is served already.
        let is_moving = self.mover.as_ref().is_some_and(|mover| !mover.is_finished());
        let known_slots = self.shared.engine.known_slots().map_err(|error| error.to_string())?;
        let is_new = |(slot, record): (u16, &SlotRecord)| !record.is_dirty && ownership.is_foreign(slot);
        // Once a slot is served, all unsettled changes in it came after it had become dirty.
        let unsettled = match self.ours().any(is_new) {
            true => self.shared.engine.unsettled_slots().await.map_err(|error| error.to_string())?,
            false => HashSet::new(),
        };
        let (mut gained, mut lost, mut strange) = (HashMap::new(), HashSet::new(), 0);
        {
            // Held all the while: what was looked at under one lease says nothing under the next.
            let lease = self.shared.lease.lock();
            if lease.is_none() || *lease != self.lease {
                return Ok(());
            }
            for slot in (0..SLOTS).filter(|slot| !self.unsure.contains_key(slot)) {
                match self.view.slot(slot).filter(|(record, _)| record.owner == self.id()) {
                    Some((record, _)) => {
                        let is_known = super::is_known(known_slots.get(&slot), record);
                        if (record.is_dirty && !is_known) || (!record.is_dirty && unsettled.contains(&slot)) {
                            // Etcd or the local directory is not what it was: whichever it is, nothing good comes of
                            // going on.
                            ownership.set_foreign(slot);
                            strange += 1;
                            continue;
                        }
                        ownership.set_ours(slot, record.epoch, record.is_dirty, is_known);
                        if !is_known {
                            gained.insert(slot, (record.epoch, record.mark));
                        }
                    }
                    None => {
                        ownership.set_foreign(slot);
                        if known_slots.contains_key(&slot) {
                            lost.insert(slot);
                        }
                    }
                }
            }
        }
        if strange != std::mem::replace(&mut self.strange, strange) && strange > 0 {
            tracing::error!("{}", super::clean_and_unsettled(strange));
        }
        let (peers, slots) = self.view.map();
        ownership.learn(peers, slots);
        // It pokes us when it is done.
        if is_moving || (gained.is_empty() && lost.is_empty()) {
            return Ok(());
        }
        self.move_slots(gained, lost).await
    }

    /// To be called only where no earlier one was in flight when it was looked what is known.
    async fn move_slots(
        &mut self,
        gained: HashMap<u16, (u64, u64)>,
        mut lost: HashSet<u16>,
    ) -> Result<(), String> {
        let unsettled = self.shared.engine.unsettled_slots().await.map_err(|error| error.to_string())?;
        let given_up: Vec<u16> =
            lost.iter().chain(gained.keys()).copied().filter(|slot| unsettled.contains(slot)).collect();
        if !given_up.is_empty() && !std::mem::replace(&mut self.has_told_of_lost, true) {
            tracing::error!("{}", super::given_up(given_up.len()));
        }
        // They stay in the journal, and nothing of them is served or stored.
        lost.retain(|slot| !unsettled.contains(slot));
        let gained: HashMap<u16, (u64, u64)> =
            gained.into_iter().filter(|(slot, _)| !unsettled.contains(slot)).collect();
        let shared = Arc::clone(&self.shared);
        self.mover = Some(tokio::spawn(async move {
            let moved = async {
                shared.engine.forget_slots(&lost).await?;
                if !gained.is_empty() {
                    let begun = Instant::now();
                    shared.engine.take_slots(&gained).await?;
                    let count = gained.len();
                    tracing::info!("took over {count} slots in {:.1} s", begun.elapsed().as_secs_f64());
                }
                Ok::<(), crate::errors::GatewayError>(())
            };
            let item = format!("{} slots that were taken and {} that were lost", gained.len(), lost.len());
            let outcome = shared.engine.supervisor.attempt("mover of slots", &item, moved).await;
            let reason = match outcome {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(panicked) => Some(panicked.to_string()),
            };
            if let Some(reason) = reason {
                tracing::warn!("cannot take over keys: {reason}");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            shared.poked.notify_one();
        }));
        Ok(())
    }

    /// As [`change`](Self::change), where it would be dangerous to believe the opposite of etcd: slots with an unknown
    /// outcome are unsure.
    async fn change_surely(
        &mut self,
        changes: Vec<(u16, SlotRecord)>,
        besides: &[TransactionGuard],
    ) -> Result<Vec<u16>, String> {
        let mut done = Vec::new();
        for changes in changes.chunks(SLOTS_AT_ONCE) {
            let before: Vec<(u16, u64)> =
                changes.iter().map(|(slot, _)| (*slot, self.view.revision_of(*slot))).collect();
            // Also when this future is dropped in the middle.
            self.unsure.extend(before.iter().copied());
            let outcome = self.change_once(changes, besides).await;
            let is_unsure = outcome.as_ref().is_err_and(|error| error.may_be_done);
            if !is_unsure {
                for (slot, _) in before {
                    self.unsure.remove(&slot);
                }
            }
            done.extend(outcome.map_err(|error| error.to_string())?);
        }
        Ok(done)
    }

    /// Writes these records, as far as nothing has changed since we looked. Returns which are written for sure.
    async fn change(
        &mut self,
        changes: Vec<(u16, SlotRecord)>,
        besides: &[TransactionGuard],
    ) -> Result<Vec<u16>, String> {
        let mut done = Vec::new();
        for changes in changes.chunks(SLOTS_AT_ONCE) {
            done.extend(self.change_once(changes, besides).await.map_err(|error| error.to_string())?);
        }
        Ok(done)
    }

    async fn change_once(
        &mut self,
        changes: &[(u16, SlotRecord)],
        besides: &[TransactionGuard],
    ) -> Result<Vec<u16>, EtcdError> {
        // That of the last look: what it said holds under no other.
        let Some(lease) = self.lease else { return Ok(Vec::new()) };
        let keys = &self.shared.keys;
        let mut compares = vec![TransactionGuard::Leased(keys.member(self.id()), lease)];
        compares.extend_from_slice(besides);
        compares.extend(changes.iter().map(|(slot, _)| self.view.unchanged(keys, *slot)));
        let puts: Vec<EtcdPut> =
            changes.iter().map(|(slot, record)| put(keys.slot(*slot), record, 0)).collect();
        let Some(revision) = self.shared.transact(compares, puts).await? else {
            // Something has changed, and the next look tells what.
            self.shared.poked.notify_one();
            return Ok(Vec::new());
        };
        self.shared.seen.fetch_max(revision, std::sync::atomic::Ordering::AcqRel);
        for (slot, record) in changes {
            self.view.slots[usize::from(*slot)] = Some((record.clone(), revision));
        }
        Ok(changes.iter().map(|(slot, _)| *slot).collect())
    }

    /// Members that slots are given to, by their names.
    fn members(&self) -> HashMap<&str, &str> {
        self.view.staying().map(|(id, member)| (member.name.as_str(), id.as_str())).collect()
    }

    /// Takes slots that nobody has, and clean ones of members that are gone, if they are to be ours.
    async fn take_over(&mut self) -> Result<(), String> {
        if self.is_leaving {
            return Ok(());
        }
        // By former owner, since it has to be gone still.
        let mut free: HashMap<Option<String>, Vec<(u16, SlotRecord)>> = HashMap::new();
        {
            let members = self.members();
            for slot in 0..SLOTS {
                if chosen(members.keys().copied(), slot).and_then(|name| members.get(name))
                    != Some(&self.id())
                {
                    continue;
                }
                let (former, epoch) = match self.view.slot(slot) {
                    None => (None, 1),
                    Some((record, _)) => {
                        let is_there = self.view.members.contains_key(&record.owner);
                        if is_there || record.is_dirty || record.owner == self.id() {
                            continue;
                        }
                        (Some(record.owner.clone()), record.epoch + 1)
                    }
                };
                let record = SlotRecord {
                    owner: self.id().to_owned(),
                    name: self.shared.name.clone(),
                    epoch,
                    is_dirty: false,
                    mark: 0,
                };
                free.entry(former).or_default().push((slot, record));
            }
        }
        for (former, changes) in free {
            let besides: Vec<TransactionGuard> =
                former.iter().map(|id| TransactionGuard::Absent(self.shared.keys.member(id))).collect();
            self.change(changes, &besides).await?;
        }
        Ok(())
    }

    /// Slots that somebody is waiting to write to.
    async fn mark_dirty(&mut self) -> Result<(), String> {
        let wanted: HashSet<u16> = self.shared.ownership.wanting_dirty().into_iter().collect();
        let is_current = self.lease.is_some() && *self.shared.lease.lock() == self.lease;
        if wanted.is_empty() || !is_current {
            return Ok(());
        }
        let mut changes = Vec::new();
        let mut marks = HashMap::new();
        for (slot, record) in self.ours().filter(|(slot, _)| wanted.contains(slot)) {
            // One that was tried before may yet be written.
            let mark = match self.marks.get(&slot) {
                Some(mark) => *mark,
                None => super::random()?,
            };
            marks.insert(slot, (record.mark, mark));
            changes.push((slot, SlotRecord { is_dirty: true, mark, ..record.clone() }));
        }
        if changes.is_empty() {
            return Ok(());
        }
        self.marks.extend(marks.iter().map(|(slot, (_, mark))| (*slot, *mark)));
        let noted = self.shared.engine.mark_slots(marks, self.view.revision).await;
        noted.map_err(|error| error.to_string())?;
        let done = self.change(changes, &[]).await?;
        for slot in &done {
            self.marks.remove(slot);
        }
        if !done.is_empty() {
            self.shared.ownership.set_dirty(&done, true);
        }
        Ok(())
    }

    /// At once, as far as what we know of etcd is still so.
    ///
    /// # Errors
    /// The obstacle.
    pub(super) async fn mark_dirty_or_look(&mut self) -> Result<(), String> {
        self.mark_dirty().await?;
        match self.shared.ownership.wanting_dirty().is_empty() {
            true => Ok(()),
            false => self.pass().await,
        }
    }

    /// Slots that are to be another's, once the store has everything of them.
    async fn hand_on(&mut self) -> Result<(), String> {
        let now = Instant::now();
        let settled = |id: &str| {
            self.is_leaving
                || self.seen_since.get(id).is_some_and(|start| now - *start >= self.shared.tick * 2)
        };
        let mut targets: HashMap<u16, (String, String)> = HashMap::new();
        {
            let members = self.members();
            for (slot, _) in self.ours().filter(|(slot, _)| !self.unsure.contains_key(slot)) {
                let Some(name) = chosen(members.keys().copied(), slot) else { continue };
                let Some(id) = members.get(name).filter(|id| **id != self.id()) else { continue };
                let is_allowed = self.not_before.get(&slot).is_none_or(|not_before| *not_before <= now);
                if is_allowed && settled(id) {
                    targets.insert(slot, ((*id).to_owned(), name.to_owned()));
                }
            }
        }
        // Whose target has gone meanwhile.
        let back: Vec<u16> =
            self.closed_since.keys().copied().filter(|slot| !targets.contains_key(slot)).collect();
        for slot in &back {
            self.closed_since.remove(slot);
        }
        self.reopen(&back);
        if targets.is_empty() {
            return Ok(());
        }
        let failed = |error: crate::errors::GatewayError| error.to_string();
        // An upload can't be moved: its parts are here.
        let uploads = self.shared.engine.slots_with_uploads().map_err(failed)?;
        let mut at_rest = HashSet::new();
        for slot in targets.keys().copied().filter(|slot| !uploads.contains(slot)) {
            self.closed_since.entry(slot).or_insert(now);
            if self.shared.ownership.close(slot) {
                at_rest.insert(slot);
            }
        }
        let unsettled = self.shared.engine.slots_to_keep().await.map_err(failed)?;
        self.shared.engine.hasten_slots(&self.closed_since.keys().copied().collect());
        let mut by_target: HashMap<String, Vec<(u16, SlotRecord)>> = HashMap::new();
        for slot in at_rest.into_iter().filter(|slot| !unsettled.contains(slot)) {
            let (Some((id, name)), Some((record, _))) = (targets.get(&slot), self.view.slot(slot)) else {
                continue;
            };
            let (owner, epoch) = (id.clone(), record.epoch + 1);
            let record = SlotRecord { owner, name: name.clone(), epoch, is_dirty: false, mark: 0 };
            by_target.entry(id.clone()).or_default().push((slot, record));
        }
        for (id, changes) in by_target {
            let slots: Vec<u16> = changes.iter().map(|(slot, _)| *slot).collect();
            // Even if this fails, from now on it may be the other's.
            for slot in &slots {
                self.shared.ownership.set_foreign(*slot);
                self.closed_since.remove(slot);
            }
            let presence = [TransactionGuard::Present(self.shared.keys.member(&id))];
            let done = self.change_surely(changes, &presence).await?;
            if !done.is_empty() {
                let name = self.view.members.get(&id).map_or("another", |member| member.name.as_str());
                tracing::info!("handed {} slots to gateway {name}", done.len());
            }
        }
        let late: Vec<u16> = self
            .closed_since
            .iter()
            .filter(|(_, start)| now - **start > MAX_CLOSED_TIME)
            .map(|(slot, _)| *slot)
            .collect();
        if !self.is_leaving {
            for slot in &late {
                self.closed_since.remove(slot);
                self.not_before.insert(*slot, now + TRY_AGAIN);
            }
            self.reopen(&late);
        }
        Ok(())
    }

    /// Slots whose data is all in the store, and that nobody has written to lately.
    async fn mark_clean(&mut self) -> Result<(), String> {
        let idle = if self.is_leaving { Duration::ZERO } else { self.shared.tick };
        let closed = self.shared.ownership.close_idle(idle);
        if closed.is_empty() {
            return Ok(());
        }
        let outcome = self.mark_clean_of(&closed).await;
        self.reopen(&closed);
        outcome
    }

    async fn mark_clean_of(&mut self, closed: &[u16]) -> Result<(), String> {
        let unsettled = self.shared.engine.slots_to_keep().await.map_err(|error| error.to_string())?;
        let settled: HashSet<u16> = closed.iter().copied().filter(|slot| !unsettled.contains(slot)).collect();
        let changes: Vec<(u16, SlotRecord)> = self
            .ours()
            .filter(|(slot, _)| settled.contains(slot))
            .map(|(slot, record)| (slot, SlotRecord { is_dirty: false, ..record.clone() }))
            .collect();
        // Even if this fails, from now on it may be clean: the next writer has to ask.
        self.shared.ownership.set_dirty(&settled.into_iter().collect::<Vec<u16>>(), false);
        self.change_surely(changes, &[]).await.map(drop)
    }
}
