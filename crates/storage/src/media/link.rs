//! The way to something that is elsewhere: bandwidth each way, a round trip, and the work of a message.
//!
//! Pure, like the media: it says when a message arrives, and waits for nothing. Network volumes and the link layer
//! are made with it.

use std::time::Duration;

use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;

use super::draw::QuantileDistribution;
use super::transfer_ns;
use crate::catalogue::LinkParameters;
use crate::time::ModelTime;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkDirection {
    ToTarget,
    FromTarget,
}

/// A link in virtual time.
#[derive(Clone, Debug)]
pub struct LinkModel {
    lines: [LinkLine; 2],
    /// There and back.
    round_trip: QuantileDistribution,
    message_bytes: u64,
    message_ns: u64,
    random: Pcg64Mcg,
}

#[derive(Clone, Copy, Debug)]
struct LinkLine {
    mb_s: f64,
    free_ns: u64,
}

impl LinkLine {
    fn new(mb_s: f64) -> LinkLine {
        LinkLine { mb_s, free_ns: 0 }
    }
}

impl LinkModel {
    /// The same bandwidth each way and a latency that never changes.
    ///
    /// # Panics
    /// When the bandwidth is not above zero.
    pub fn plain(bandwidth_mb_s: f64, one_way: Duration) -> LinkModel {
        assert!(bandwidth_mb_s > 0.0, "a link of {bandwidth_mb_s} MB/s");
        LinkModel {
            lines: [LinkLine::new(bandwidth_mb_s); 2],
            round_trip: QuantileDistribution::constant_ns(2.0 * one_way.as_nanos() as f64),
            message_bytes: 0,
            message_ns: 0,
            random: Pcg64Mcg::seed_from_u64(0),
        }
    }

    pub fn new(parameters: &LinkParameters, seed: u64) -> LinkModel {
        let p = parameters;
        LinkModel {
            lines: [LinkLine::new(p.to_target_mb_s.value), LinkLine::new(p.from_target_mb_s.value)],
            round_trip: QuantileDistribution::from_us(&p.round_trip_us),
            message_bytes: p.message_bytes.value as u64,
            message_ns: super::us_to_ns(p.message_us.value),
            random: Pcg64Mcg::seed_from_u64(seed),
        }
    }

    /// Sends a message with this much data at `now`; returns when the last of it arrives. If `now` goes back, the
    /// message stands in line behind those before.
    ///
    /// Messages of one way follow one another onto the line; on it they may overtake, as on several connections.
    pub fn send(&mut self, direction: LinkDirection, data_bytes: u64, now: ModelTime) -> ModelTime {
        let travel_ns = self.round_trip.draw_ns(&mut self.random) / 2;
        let line = &mut self.lines[direction as usize];
        let sending_ns = transfer_ns(data_bytes + self.message_bytes, line.mb_s).max(self.message_ns);
        line.free_ns = now.as_ns().max(line.free_ns).saturating_add(sending_ns);
        ModelTime::from_ns(line.free_ns.saturating_add(travel_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_queue_each_way_on_its_own() {
        // 1000 MB/s: a byte a nanosecond.
        let mut link = LinkModel::plain(1000.0, Duration::from_micros(50));
        let time = |ns| ModelTime::from_ns(ns);
        assert_eq!(link.send(LinkDirection::ToTarget, 4096, time(0)), time(4096 + 50_000));
        assert_eq!(link.send(LinkDirection::ToTarget, 4096, time(0)), time(8192 + 50_000));
        assert_eq!(link.send(LinkDirection::FromTarget, 100, time(0)), time(100 + 50_000));
        assert_eq!(link.send(LinkDirection::ToTarget, 0, time(20_000)), time(70_000));
    }
}
