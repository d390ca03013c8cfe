//! Which host may write to a namespace.
//!
//! Two hosts that write to one volume, each with its own file system on it, destroy what the other has
//! flushed. So the first host that writes takes a lease, and writes of others are refused. It ends when its
//! holder takes leave, or some time after the last controller of it is gone: until then it may come back and
//! write again what it has kept.
//!
//! Two initiators of one host are two writers as well, since what one has sent may arrive after the other has written.
//! But mostly the second one is the first one's successor, whose process has died: it gets the lease as soon as the
//! first one is gone.
//!
//! A new holder's first write waits until devices have nothing more of the former one.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use underlay_sync::Instant;
use underlay_sync::planted::{PlantedBug, is_planted};
use underlay_sync::{Mutex, RwLock, RwLockWriteGuard};

use super::host_identity::HostIdentity;

/// How long the lease of a host that is gone without a word is kept for it: hosts look for a lost target more often
/// than that.
pub const LEASE_GRACE: Duration = Duration::from_secs(30);

/// Keeps the writer of a namespace over restarts of the target.
pub trait LeaseStore: Send + Sync {
    /// The host that was stored last, and whether it holds the lease.
    fn load(&self) -> Option<(HostIdentity, bool)>;

    /// Durable once it returns. A host that no longer holds the lease is still the one that wrote last.
    ///
    /// # Errors
    /// When it can't be stored: then the host does not become the holder.
    fn store(&self, writer: &HostIdentity, is_held: bool) -> io::Result<()>;
}

/// Who may write to a namespace.
#[derive(Clone, Default)]
pub enum WriterPolicy {
    /// One host at a time, as long as the target lives.
    #[default]
    One,
    /// One host at a time, over restarts of the target.
    OneStored(Arc<dyn LeaseStore>),
    /// All: for file systems that are made for it, and for what can't be written to anyway.
    All,
}

/// Why a host may not write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteDenial {
    /// Another host holds the lease.
    Held,
    /// Devices still have commands of the former holder: it may be tried again.
    Busy,
    /// The new holder could not be stored.
    NotStored,
}

#[derive(Clone, Default)]
struct LeaseState {
    holder: Option<HostIdentity>,
    /// The one that wrote before the holder does, or last where nobody holds it.
    previous_writer: Option<HostIdentity>,
    /// Since when the holder has no controller.
    absent_since: Option<Instant>,
    /// The holder may write: it is stored, and nothing of the former one is under way.
    is_settled: bool,
}

/// The lease's view of the subsystem, and the lease's requests to it.
pub(super) trait LeaseContext {
    fn is_connected(&self, host: &HostIdentity) -> bool;
    /// Whether the one has given a sign of life since the other one connected.
    fn was_heard_since(&self, host: &HostIdentity, newcomer: &HostIdentity) -> bool;
    /// Waits until devices have nothing more of this host's connections, and of any that are gone.
    fn await_last_commands(&self, previous_writer: Option<&HostIdentity>) -> bool;
}

/// That a connection may write, for as long as nothing has changed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WriteAdmission {
    generation: u64,
    instance: Option<u64>,
}

pub(super) struct WriteLease {
    writers: WriterPolicy,
    state: RwLock<LeaseState>,
    /// One more with each change of the state, before it.
    generation: AtomicU64,
    /// Held while a host becomes the holder.
    changing: Mutex<()>,
}

impl WriteLease {
    pub(super) fn new(writers: WriterPolicy) -> WriteLease {
        let stored = match &writers {
            WriterPolicy::OneStored(store) => store.load(),
            WriterPolicy::One | WriterPolicy::All => None,
        };
        let (holder, previous_writer) = match stored {
            Some((host, true)) => (Some(host), None),
            Some((host, false)) => (None, Some(host)),
            None => (None, None),
        };
        // It may be on its way back.
        let absent_since = holder.is_some().then(Instant::now);
        let state = LeaseState { holder, previous_writer, absent_since, is_settled: true };
        WriteLease {
            writers,
            state: RwLock::new(state),
            generation: AtomicU64::new(0),
            changing: Mutex::new(()),
        }
    }

    /// The state is changed by way of this alone.
    fn change(&self) -> RwLockWriteGuard<'_, LeaseState> {
        let state = self.state.write();
        // Before anybody looks for what devices have of the former holder: see `admit_again`.
        self.generation.fetch_add(1, Ordering::SeqCst);
        state
    }

    pub(super) fn holder(&self) -> Option<HostIdentity> {
        self.state.read().holder.clone()
    }

    /// Who wrote last, if that is known and was not this one.
    pub(super) fn last_writer_but(&self, host: &HostIdentity) -> Option<HostIdentity> {
        let state = self.state.read();
        let holder = state.holder.as_ref().filter(|_| state.is_settled);
        holder.or(state.previous_writer.as_ref()).filter(|last| *last != host).cloned()
    }

    /// As [`WriteLease::admit`], for a connection that remembers the `last` time: mostly nothing has changed since, and
    /// one look tells.
    ///
    /// The command was counted before that look, and a host that takes the lease looks at the count after its
    /// change. So either we see the change, or the other host sees the command.
    pub(super) fn admit_again(
        &self,
        last: &mut Option<WriteAdmission>,
        (nqn, id, instance): (&str, &[u8; 16], Option<u64>),
        surroundings: &dyn LeaseContext,
    ) -> Result<(), WriteDenial> {
        let now = WriteAdmission { generation: self.generation.load(Ordering::SeqCst), instance };
        if *last != Some(now) {
            *last = None;
            self.admit(nqn, id, instance, surroundings)?;
            *last = Some(now);
        }
        Ok(())
    }

    /// Whether a host may write, which makes it the holder if nobody else is. The command already counts as
    /// in flight: the next host that takes the lease waits for it.
    pub(super) fn admit(
        &self,
        nqn: &str,
        id: &[u8; 16],
        instance: Option<u64>,
        surroundings: &dyn LeaseContext,
    ) -> Result<(), WriteDenial> {
        if matches!(self.writers, WriterPolicy::All) || is_planted(PlantedBug::SecondHostWrites) {
            return Ok(());
        }
        {
            let state = self.state.read();
            let is_own =
                |holder: &HostIdentity| holder.nqn == nqn && holder.id == *id && holder.instance == instance;
            if state.is_settled && state.holder.as_ref().is_some_and(is_own) {
                return Ok(());
            }
        }
        let host = HostIdentity { nqn: nqn.to_owned(), id: *id, instance };
        deny(&self.state.read(), &host, surroundings)?;
        self.take(&host, surroundings)
    }

    fn take(&self, host: &HostIdentity, surroundings: &dyn LeaseContext) -> Result<(), WriteDenial> {
        let _changing = self.changing.lock();
        let before = {
            let mut state = self.change();
            if state.is_settled && state.holder.as_ref() == Some(host) {
                return Ok(());
            }
            // Checked again: between the two locks another host may have taken the lease.
            deny(&state, host, surroundings)?;
            // From here on the former holder is refused; what passed before is counted, and waited for.
            let previous_writer = state.holder.clone().or(state.previous_writer.clone());
            let next = LeaseState {
                holder: Some(host.clone()),
                previous_writer,
                absent_since: None,
                is_settled: false,
            };
            std::mem::replace(&mut *state, next)
        };
        // Without the lock on the state: this waits for devices and the disk, and others get Busy meanwhile.
        let settled = self.settle(host, &before, surroundings);
        let mut state = self.change();
        if state.holder.as_ref() != Some(host) {
            // It took leave meanwhile, or the lease was ended. Its writes are not admitted.
            self.store_last_writer(state.previous_writer.as_ref().unwrap_or(host));
            return Err(WriteDenial::Busy);
        }
        match settled {
            Ok(()) => (state.is_settled, state.previous_writer) = (true, None),
            // The stored holder may be either one by now: it counts for nobody, and the next holder is stored
            // again.
            Err(WriteDenial::NotStored) => {
                let previous_writer = before.holder.or(before.previous_writer);
                *state = LeaseState { previous_writer, is_settled: true, ..LeaseState::default() };
            }
            Err(_) => {
                *state = before;
                // It may have gone meanwhile, when it was not the holder: nobody has noted since when.
                let absent = state.holder.as_ref().is_some_and(|holder| !surroundings.is_connected(holder));
                if absent {
                    state.absent_since.get_or_insert_with(Instant::now);
                }
            }
        }
        settled
    }

    fn settle(
        &self,
        host: &HostIdentity,
        before: &LeaseState,
        surroundings: &dyn LeaseContext,
    ) -> Result<(), WriteDenial> {
        let previous_writer = before
            .holder
            .as_ref()
            .or(before.previous_writer.as_ref())
            .filter(|previous_writer| *previous_writer != host);
        if !is_planted(PlantedBug::LateWriteLands) && !surroundings.await_last_commands(previous_writer) {
            return Err(WriteDenial::Busy);
        }
        if let WriterPolicy::OneStored(store) = &self.writers
            && let Err(error) = store.store(host, true)
        {
            tracing::error!(host = ?host.nqn, %error, "a host may not write: that it does could not be stored");
            return Err(WriteDenial::NotStored);
        }
        Ok(())
    }

    /// A controller of this host is gone, or has taken leave.
    pub(super) fn controller_left(
        &self,
        host: &HostIdentity,
        took_leave: bool,
        surroundings: &dyn LeaseContext,
    ) {
        if surroundings.is_connected(host) {
            return;
        }
        let mut state = self.change();
        if state.holder.as_ref() != Some(host) {
            return;
        }
        if !took_leave {
            state.absent_since = Some(Instant::now());
            return;
        }
        self.free(&mut state);
    }

    pub(super) fn release(&self) {
        self.free(&mut self.change());
    }

    fn free(&self, state: &mut LeaseState) {
        let Some(host) = state.holder.take() else { return };
        let previous_writer = match state.is_settled {
            true => {
                self.store_last_writer(&host);
                Some(host)
            }
            // It has not written yet: the one before it is still the last writer.
            false => state.previous_writer.take(),
        };
        *state = LeaseState { previous_writer, is_settled: true, ..LeaseState::default() };
    }

    /// Nobody holds the lease.
    fn store_last_writer(&self, host: &HostIdentity) {
        if let WriterPolicy::OneStored(store) = &self.writers {
            // At worst a restarted target keeps the lease for a host that no longer needs it.
            let _ = store.store(host, false);
        }
    }

    /// A controller of this host is there.
    pub(super) fn controller_came(&self, host: &HostIdentity) {
        let mut state = self.change();
        if state.holder.as_ref() == Some(host) {
            state.absent_since = None;
        }
    }
}

/// Whether a host can't become the holder now, and why.
fn deny(state: &LeaseState, host: &HostIdentity, surroundings: &dyn LeaseContext) -> Result<(), WriteDenial> {
    let Some(holder) = state.holder.as_ref().filter(|holder| *holder != host) else { return Ok(()) };
    // It may not become the holder after all.
    if !state.is_settled {
        return Err(WriteDenial::Busy);
    }
    let is_same_host = holder.is_same_host(host);
    if is_same_host && is_planted(PlantedBug::SuccessorWritesAtOnce) {
        return Ok(());
    }
    if !surroundings.is_connected(holder) {
        let is_away_long = state.absent_since.is_some_and(|instant| instant.elapsed() >= LEASE_GRACE);
        return if is_same_host || is_away_long { Ok(()) } else { Err(WriteDenial::Held) };
    }
    // A process that died looks alive here until its keep-alive timer runs out.
    match is_same_host && !surroundings.was_heard_since(holder, host) {
        true => Err(WriteDenial::Busy),
        false => Err(WriteDenial::Held),
    }
}

#[cfg(test)]
mod tests {
    use underlay_sync::simulation::SimulatedWorld;

    use super::*;

    fn host(letter: char) -> HostIdentity {
        HostIdentity {
            nqn: format!("nqn.2014-08.org.example:{letter}"),
            id: [letter as u8; 16],
            instance: None,
        }
    }

    #[derive(Default)]
    struct Around {
        connected: Mutex<Vec<HostIdentity>>,
        is_busy: Mutex<bool>,
        is_heard: Mutex<bool>,
    }

    impl LeaseContext for Around {
        fn is_connected(&self, host: &HostIdentity) -> bool {
            self.connected.lock().contains(host)
        }

        fn was_heard_since(&self, _: &HostIdentity, _: &HostIdentity) -> bool {
            *self.is_heard.lock()
        }

        fn await_last_commands(&self, _: Option<&HostIdentity>) -> bool {
            !*self.is_busy.lock()
        }
    }

    impl Around {
        fn come(&self, lease: &WriteLease, host: &HostIdentity) {
            self.connected.lock().push(host.clone());
            lease.controller_came(host);
        }

        fn leave(&self, lease: &WriteLease, host: &HostIdentity, took_leave: bool) {
            self.connected.lock().retain(|other| other != host);
            lease.controller_left(host, took_leave, self);
        }
    }

    #[derive(Default)]
    struct Memory {
        writer: Mutex<Option<(HostIdentity, bool)>>,
        fails: Mutex<bool>,
    }

    impl LeaseStore for Memory {
        fn load(&self) -> Option<(HostIdentity, bool)> {
            self.writer.lock().clone()
        }

        fn store(&self, writer: &HostIdentity, is_held: bool) -> io::Result<()> {
            if *self.fails.lock() {
                return Err(io::ErrorKind::StorageFull.into());
            }
            *self.writer.lock() = Some((writer.clone(), is_held));
            Ok(())
        }
    }

    /// In virtual time, which passes at once.
    fn run_in_world(body: impl FnOnce(&SimulatedWorld) + Send + 'static) {
        SimulatedWorld::new(1).run(body).0.unwrap();
    }

    #[test]
    fn lease_stays_until_holder_leaves_or_stays_away() {
        run_in_world(|_| {
            let (a, b) = (host('a'), host('b'));
            let (lease, around) = (WriteLease::new(WriterPolicy::One), Around::default());
            let admit = |host: &HostIdentity| lease.admit(&host.nqn, &host.id, host.instance, &around);
            around.come(&lease, &a);
            around.come(&lease, &b);
            assert_eq!((admit(&a), admit(&b), admit(&a)), (Ok(()), Err(WriteDenial::Held), Ok(())));
            // The same name is not the same host.
            assert_eq!(lease.admit(&a.nqn, &b.id, b.instance, &around), Err(WriteDenial::Held));
            around.leave(&lease, &a, true);
            assert_eq!((admit(&b), lease.holder()), (Ok(()), Some(b.clone())));
            around.leave(&lease, &b, false);
            around.come(&lease, &a);
            underlay_sync::thread::sleep(LEASE_GRACE - Duration::from_secs(1));
            assert_eq!(admit(&a), Err(WriteDenial::Held));
            // It was only away.
            around.come(&lease, &b);
            underlay_sync::thread::sleep(LEASE_GRACE * 2);
            assert_eq!((admit(&a), admit(&b)), (Err(WriteDenial::Held), Ok(())));
            around.leave(&lease, &b, false);
            underlay_sync::thread::sleep(LEASE_GRACE);
            assert_eq!((admit(&a), admit(&b)), (Ok(()), Err(WriteDenial::Held)));
        });
    }

    #[test]
    fn former_holder_notices_each_change() {
        let (a, b) = (host('a'), host('b'));
        let (lease, around) = (WriteLease::new(WriterPolicy::One), Around::default());
        let (mut last, mut last_of_b) = (None, None);
        let again = |host: &HostIdentity, last: &mut Option<WriteAdmission>| {
            lease.admit_again(last, (&host.nqn, &host.id, host.instance), &around)
        };
        for _ in 0..3 {
            assert_eq!((again(&a, &mut last), again(&b, &mut last_of_b)), (Ok(()), Err(WriteDenial::Held)));
        }
        // A host that says only now which of its initiators it is was not let in as that one.
        around.come(&lease, &a);
        let instance = HostIdentity { instance: Some(1), ..a.clone() };
        assert_eq!((again(&a, &mut last), again(&a, &mut last)), (Ok(()), Ok(())));
        assert_eq!(again(&instance, &mut last), Err(WriteDenial::Busy));
        assert_eq!(again(&a, &mut last), Ok(()));
        lease.release();
        assert_eq!(again(&b, &mut last_of_b), Ok(()));
        around.come(&lease, &b);
        assert_eq!(
            (again(&a, &mut last), again(&a, &mut last)),
            (Err(WriteDenial::Held), Err(WriteDenial::Held))
        );
        around.leave(&lease, &b, true);
        assert_eq!((again(&a, &mut last), again(&b, &mut last_of_b)), (Ok(()), Err(WriteDenial::Held)));
    }

    #[test]
    fn new_holder_waits_for_requests_of_former_one() {
        let (a, b) = (host('a'), host('b'));
        let (lease, around) = (WriteLease::new(WriterPolicy::One), Around::default());
        let admit = |host: &HostIdentity| lease.admit(&host.nqn, &host.id, host.instance, &around);
        admit(&a).unwrap();
        around.leave(&lease, &a, true);
        *around.is_busy.lock() = true;
        assert_eq!(admit(&b), Err(WriteDenial::Busy));
        *around.is_busy.lock() = false;
        assert_eq!((admit(&b), admit(&a)), (Ok(()), Err(WriteDenial::Held)));
    }

    /// The host that is to become the holder takes leave before it is.
    struct LeavesMeanwhile<'a> {
        lease: &'a WriteLease,
        host: HostIdentity,
    }

    impl LeaseContext for LeavesMeanwhile<'_> {
        fn is_connected(&self, _: &HostIdentity) -> bool {
            false
        }

        fn was_heard_since(&self, _: &HostIdentity, _: &HostIdentity) -> bool {
            false
        }

        fn await_last_commands(&self, _: Option<&HostIdentity>) -> bool {
            self.lease.controller_left(&self.host, true, self);
            true
        }
    }

    #[test]
    fn host_leaving_during_takeover_gets_no_lease() {
        let (a, b) = (host('a'), host('b'));
        let store = Arc::new(Memory::default());
        let lease = WriteLease::new(WriterPolicy::OneStored(store.clone()));
        let around = Around::default();
        lease.admit(&a.nqn, &a.id, a.instance, &around).unwrap();
        lease.controller_left(&a, true, &around);
        let leaving = LeavesMeanwhile { lease: &lease, host: b.clone() };
        assert_eq!(lease.admit(&b.nqn, &b.id, b.instance, &leaving), Err(WriteDenial::Busy));
        assert_eq!(lease.holder(), None);
        // It has not written.
        assert!(lease.last_writer_but(&b).is_some() && lease.last_writer_but(&a).is_none());
        assert_eq!(store.load(), Some((a.clone(), false)));
        lease.admit(&a.nqn, &a.id, a.instance, &around).unwrap();
        assert_eq!(lease.admit(&b.nqn, &b.id, b.instance, &around), Err(WriteDenial::Held));
    }

    #[test]
    fn process_replaces_dead_one_of_its_host_only() {
        let of_instance = |instance| HostIdentity { instance: Some(instance), ..host('a') };
        let (first, second) = (of_instance(1), of_instance(2));
        let (lease, around) = (WriteLease::new(WriterPolicy::One), Around::default());
        let admit = |host: &HostIdentity| lease.admit(&host.nqn, &host.id, host.instance, &around);
        around.come(&lease, &first);
        admit(&first).unwrap();
        around.come(&lease, &second);
        // Nobody knows yet whether the first one lives.
        assert_eq!((admit(&second), admit(&first)), (Err(WriteDenial::Busy), Ok(())));
        *around.is_heard.lock() = true;
        assert_eq!((admit(&second), admit(&first)), (Err(WriteDenial::Held), Ok(())));
        // It is found to be dead; should it have been away only, it learns that it was written to.
        around.leave(&lease, &first, false);
        assert_eq!(admit(&host('b')), Err(WriteDenial::Held), "another host has to wait for it");
        assert_eq!(admit(&second), Ok(()));
        around.come(&lease, &first);
        assert!(lease.last_writer_but(&first).is_some() && lease.last_writer_but(&second).is_none());
        assert_eq!(admit(&first), Err(WriteDenial::Held));
    }

    #[test]
    fn absent_holder_keeps_pending_lease_for_grace_period() {
        run_in_world(|_| {
            let of_instance = |instance| HostIdentity { instance: Some(instance), ..host('a') };
            let (first, second, other) = (of_instance(1), of_instance(2), host('b'));
            let (lease, around) = (WriteLease::new(WriterPolicy::One), Around::default());
            let admit = |host: &HostIdentity| lease.admit(&host.nqn, &host.id, host.instance, &around);
            around.come(&lease, &first);
            admit(&first).unwrap();
            // It is gone, and the lease has yet to hear of it.
            around.connected.lock().clear();
            *around.is_busy.lock() = true;
            assert_eq!(admit(&second), Err(WriteDenial::Busy));
            *around.is_busy.lock() = false;
            assert_eq!(admit(&other), Err(WriteDenial::Held));
            underlay_sync::thread::sleep(LEASE_GRACE);
            assert_eq!(admit(&other), Ok(()));
        });
    }

    #[test]
    fn stored_lease_outlives_target() {
        run_in_world(|_| {
            let (a, b) = (host('a'), host('b'));
            let (store, around) = (Arc::new(Memory::default()), Around::default());
            let start = || WriteLease::new(WriterPolicy::OneStored(store.clone()));
            *store.fails.lock() = true;
            let lease = start();
            assert_eq!(lease.admit(&a.nqn, &a.id, a.instance, &around), Err(WriteDenial::NotStored));
            assert_eq!(lease.holder(), None);
            *store.fails.lock() = false;
            lease.admit(&a.nqn, &a.id, a.instance, &around).unwrap();
            // The target is killed.
            let lease = start();
            assert_eq!(lease.admit(&b.nqn, &b.id, b.instance, &around), Err(WriteDenial::Held));
            lease.admit(&a.nqn, &a.id, a.instance, &around).unwrap();
            let lease = start();
            underlay_sync::thread::sleep(LEASE_GRACE);
            lease.admit(&b.nqn, &b.id, b.instance, &around).unwrap();
            assert_eq!(store.load(), Some((b.clone(), true)));
            lease.controller_left(&b, true, &around);
            assert_eq!(store.load(), Some((b.clone(), false)));
            // Free for anybody, and the last writer is still known.
            let lease = start();
            assert!(lease.last_writer_but(&a).is_some() && lease.last_writer_but(&b).is_none());
            lease.admit(&a.nqn, &a.id, a.instance, &around).unwrap();
            assert!(lease.last_writer_but(&b).is_some() && lease.last_writer_but(&a).is_none());
        });
    }

    #[test]
    fn shared_namespace_needs_no_lease() {
        let (lease, around) = (WriteLease::new(WriterPolicy::All), Around::default());
        for letter in ['a', 'b', 'a'] {
            let HostIdentity { nqn, id, instance } = host(letter);
            lease.admit(&nqn, &id, instance, &around).unwrap();
        }
        assert_eq!(lease.holder(), None);
    }
}
