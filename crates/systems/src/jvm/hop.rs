//! The overhead of the child: the round trip of a call without the time in the driver.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;
use underlay_sync::Mutex;

use crate::figures::CURRENT;

/// A minute in nanoseconds. Longer hops count as this.
const MAX_NS: u64 = 60_000_000_000;
/// Resolves differences of a percent and takes 20 KB per connection.
const DIGITS: u8 = 2;

/// The hops of all connections.
#[derive(Debug, Default)]
pub(super) struct ConnectionHops {
    connections: Mutex<Vec<Arc<Mutex<ConnectionHop>>>>,
}

/// The hops of one connection. Each connection has its own, so that they don't contend when they record them.
#[derive(Debug)]
pub(super) struct ConnectionHop {
    calls: u64,
    hop_ns: u64,
    driver_ns: u64,
    hops: Histogram<u64>,
}

impl ConnectionHop {
    fn new() -> Option<ConnectionHop> {
        let hops = Histogram::new_with_bounds(1, MAX_NS, DIGITS).ok()?;
        Some(ConnectionHop { calls: 0, hop_ns: 0, driver_ns: 0, hops })
    }

    /// Records a call that took `round_trip` in all, `driver_ns` of it in the driver.
    pub(super) fn note(&mut self, round_trip: Duration, driver_ns: u64) {
        let round_trip_ns = u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX);
        // Both processes read the same clock, but a driver may report anything. A hop is never negative.
        let hop_ns = round_trip_ns.saturating_sub(driver_ns);
        self.calls += 1;
        self.hop_ns = self.hop_ns.saturating_add(hop_ns);
        self.driver_ns = self.driver_ns.saturating_add(driver_ns.min(round_trip_ns));
        self.hops.saturating_record(hop_ns);
    }

    fn add(&mut self, other: &ConnectionHop) {
        self.calls += other.calls;
        self.hop_ns = self.hop_ns.saturating_add(other.hop_ns);
        self.driver_ns = self.driver_ns.saturating_add(other.driver_ns);
        // Both have the same bounds, so it can't fail.
        let _ = self.hops.add(&other.hops);
    }
}

impl ConnectionHops {
    /// Registers a connection. Its totals are kept as long as `self`, its percentiles until all connections are gone
    /// and new ones are made.
    pub(super) fn connection(&self) -> Option<Arc<Mutex<ConnectionHop>>> {
        let hop = Arc::new(Mutex::new(ConnectionHop::new()?));
        let mut connections = self.connections.lock();
        if connections.iter().all(is_gone) {
            put_gone_together(&mut connections);
            if let Some(ended) = connections.first() {
                ended.lock().hops.reset();
            }
        }
        connections.push(Arc::clone(&hop));
        Some(hop)
    }

    /// Running totals of calls and seconds, and percentiles since there last was no connection.
    pub(super) fn figures(&self) -> BTreeMap<String, f64> {
        let mut connections = self.connections.lock();
        put_gone_together(&mut connections);
        let Some(mut all) = ConnectionHop::new() else { return BTreeMap::new() };
        connections.iter().for_each(|hop| all.add(&hop.lock()));
        let mut figures = BTreeMap::from([
            ("client_calls".to_owned(), all.calls as f64),
            ("client_driver_seconds".to_owned(), all.driver_ns as f64 / 1e9),
            ("client_hop_seconds".to_owned(), all.hop_ns as f64 / 1e9),
        ]);
        if !all.hops.is_empty() {
            for percent in [50_u8, 99] {
                let us = all.hops.value_at_quantile(f64::from(percent) / 100.0) as f64 / 1e3;
                figures.insert(format!("{CURRENT}client_hop_p{percent}_us"), us);
            }
        }
        figures
    }
}

fn is_gone(hop: &Arc<Mutex<ConnectionHop>>) -> bool {
    Arc::strong_count(hop) == 1
}

/// Merges all connections that are gone into the first entry, since a study makes thousands of them.
fn put_gone_together(connections: &mut Vec<Arc<Mutex<ConnectionHop>>>) {
    if connections.iter().filter(|&hop| is_gone(hop)).count() < 2 {
        return;
    }
    let Some(mut ended) = ConnectionHop::new() else { return };
    connections.retain(|hop| {
        let keep = !is_gone(hop);
        if !keep {
            ended.add(&hop.lock());
        }
        keep
    });
    connections.insert(0, Arc::new(Mutex::new(ended)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_stay_and_percentiles_are_of_the_present_clients() {
        let hops = ConnectionHops::default();
        assert!(!hops.figures().contains_key("current_client_hop_p50_us"));
        let (first, second) = (hops.connection().unwrap(), hops.connection().unwrap());
        for _ in 0..98 {
            first.lock().note(Duration::from_micros(110), 100_000);
        }
        second.lock().note(Duration::from_micros(1500), 1_000_000);
        // A driver that claims more than the round trip.
        second.lock().note(Duration::from_micros(10), 10_000_000);
        let expected = [
            ("client_calls", 100.0),
            ("client_hop_seconds", (98.0 * 10.0 + 500.0) / 1e6),
            ("client_driver_seconds", (98.0 * 100.0 + 1000.0 + 10.0) / 1e6),
            ("current_client_hop_p50_us", 10.0),
            ("current_client_hop_p99_us", 10.0),
        ];
        let check = |expected: &[(&str, f64)]| {
            let figures = hops.figures();
            for (name, value) in expected {
                assert!((figures[*name] / value - 1.0).abs() < 0.02, "{name}: {figures:?}");
            }
        };
        // However often they are read, and also when one client is gone, or all.
        check(&expected);
        check(&expected);
        drop(second);
        check(&expected);
        drop(first);
        check(&expected);
        let third = hops.connection().unwrap();
        third.lock().note(Duration::from_millis(2), 0);
        check(&[("client_calls", 101.0), ("current_client_hop_p50_us", 2000.0)]);
        drop(third);
        for _ in 0..100 {
            drop(hops.connection().unwrap());
        }
        check(&[("client_calls", 101.0)]);
        assert!(hops.connections.lock().len() <= 2);
    }
}
