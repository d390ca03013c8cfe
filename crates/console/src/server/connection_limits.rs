//! Connected clients: those that have authenticated, and strangers. When strangers are too many, a new one replaces the
//! oldest from the address that has most of them. So idle connections keep nobody out, least of all from another host.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::AbortHandle;
use underlay_sync::UnsimulatedMutex;

/// Connections of those who were let in.
pub(super) const MAX_KNOWN: usize = 512;
/// Connections that have not yet shown anything.
pub(super) const MAX_STRANGERS: usize = 128;

#[derive(Default)]
pub(super) struct ConnectionLimits(Arc<UnsimulatedMutex<ConnectionTable>>);

#[derive(Default)]
struct ConnectionTable {
    next: u64,
    known: usize,
    /// In the order of their arrival.
    strangers: VecDeque<UnknownConnection>,
}

struct UnknownConnection {
    number: u64,
    from: IpAddr,
    task: AbortHandle,
}

impl ConnectionTable {
    /// Ends the first connection from wherever most come from.
    fn end_one(&mut self) {
        let mut from: HashMap<IpAddr, usize> = HashMap::new();
        self.strangers.iter().for_each(|stranger| *from.entry(network_of(stranger.from)).or_default() += 1);
        let most = from.values().copied().max();
        let first =
            self.strangers.iter().position(|stranger| from.get(&network_of(stranger.from)).copied() == most);
        if let Some(stranger) = first.and_then(|place| self.strangers.remove(place)) {
            stranger.task.abort();
        }
    }
}

/// A client with one IPv6 address has all of its network's.
fn network_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(address) if address.to_ipv4_mapped().is_none() => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (!0 << 64)))
        }
        other => other,
    }
}

/// A connection, until it is dropped. Requests on it have a clone of it.
#[derive(Clone)]
pub(super) struct CountedConnection(Arc<ConnectionEntry>);

struct ConnectionEntry {
    number: u64,
    is_known: AtomicBool,
    all: Arc<UnsimulatedMutex<ConnectionTable>>,
}

impl ConnectionLimits {
    pub(super) fn arrive(&self) -> CountedConnection {
        let mut inner = self.0.lock();
        inner.next += 1;
        let visit = ConnectionEntry {
            number: inner.next,
            is_known: AtomicBool::new(false),
            all: Arc::clone(&self.0),
        };
        CountedConnection(Arc::new(visit))
    }

    /// `task` serves the connection. Where there are too many strangers, that of one of them ends.
    pub(super) fn served_by(&self, visitor: &CountedConnection, from: IpAddr, task: AbortHandle) {
        let mut inner = self.0.lock();
        if visitor.0.is_known.load(Ordering::SeqCst) || task.is_finished() {
            return;
        }
        inner.strangers.push_back(UnknownConnection { number: visitor.0.number, from, task });
        if inner.strangers.len() > MAX_STRANGERS {
            inner.end_one();
        }
    }
}

impl CountedConnection {
    /// It has shown what lets it in. False where too many have.
    pub(super) fn let_in(&self) -> bool {
        let visit = &self.0;
        if visit.is_known.load(Ordering::SeqCst) {
            return true;
        }
        let mut inner = visit.all.lock();
        if inner.known >= MAX_KNOWN {
            return false;
        }
        // Several requests of one connection come one after another.
        if !visit.is_known.swap(true, Ordering::SeqCst) {
            inner.known += 1;
            inner.strangers.retain(|stranger| stranger.number != visit.number);
        }
        true
    }
}

impl Drop for ConnectionEntry {
    fn drop(&mut self) {
        let mut inner = self.all.lock();
        match self.is_known.load(Ordering::SeqCst) {
            true => inner.known -= 1,
            false => inner.strangers.retain(|stranger| stranger.number != self.number),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn excess_stranger_replaces_oldest_one() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let visits = ConnectionLimits::default();
            let arrive = || {
                let visitor = visits.arrive();
                let task = tokio::spawn(std::future::pending::<()>());
                visits.served_by(&visitor, HERE, task.abort_handle());
                (visitor, task)
            };
            let (friend, friends_task) = arrive();
            assert!(friend.let_in() && friend.let_in());
            let (_first, firsts_task) = arrive();
            let rest: Vec<_> = (0..MAX_STRANGERS - 1).map(|_| arrive()).collect();
            tokio::task::yield_now().await;
            assert!(!firsts_task.is_finished());
            let (_, _last) = arrive();
            assert!(firsts_task.await.unwrap_err().is_cancelled());
            assert!(!friends_task.is_finished() && rest.iter().all(|(_, task)| !task.is_finished()));
            drop(rest);
            assert_eq!(visits.0.lock().known, 1);
            drop(friend);
            assert_eq!(visits.0.lock().known, 0);
        });
    }

    #[test]
    fn remote_visitor_is_not_crowded_out() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let visits = ConnectionLimits::default();
            let arrive = |from: IpAddr| {
                let visitor = visits.arrive();
                let task = tokio::spawn(std::future::pending::<()>());
                visits.served_by(&visitor, from, task.abort_handle());
                (visitor, task)
            };
            let (_one, ones_task) = arrive(HERE);
            // Two thousand from one address take only each other's places.
            let other = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 7));
            let crowd: Vec<_> = (0..2_000).map(|_| arrive(other)).collect();
            // Each may run once.
            for _ in 0..crowd.len() {
                tokio::task::yield_now().await;
            }
            assert!(!ones_task.is_finished());
            assert_eq!(crowd.iter().filter(|(_, task)| !task.is_finished()).count(), MAX_STRANGERS - 1);
        });
    }

    #[test]
    fn those_who_were_let_in_have_a_bound_too() {
        let visits = ConnectionLimits::default();
        let mut connections: Vec<CountedConnection> = (0..MAX_KNOWN).map(|_| visits.arrive()).collect();
        assert!(connections.iter().all(CountedConnection::let_in));
        let late = visits.arrive();
        assert!(!late.let_in());
        connections.pop();
        assert!(late.let_in());
    }
}
