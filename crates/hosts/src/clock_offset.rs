//! How far another host's monotonic clock is ahead of ours.

/// The offset of a clock, as measured by a round trip.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClockOffset {
    /// Theirs less ours, in nanoseconds.
    pub ahead_ns: i128,
    /// The maximum error: half of the round trip.
    pub uncertainty_ns: u64,
}

impl ClockOffset {
    /// From one round trip: sent and received by our clock, and answered in between by theirs.
    pub fn new(sent_ns: u64, theirs_ns: u64, received_ns: u64) -> Self {
        let middle_ns = (i128::from(sent_ns) + i128::from(received_ns)) / 2;
        ClockOffset {
            ahead_ns: i128::from(theirs_ns) - middle_ns,
            // Rounded up, so that the true offset is always within the uncertainty.
            uncertainty_ns: received_ns.saturating_sub(sent_ns).div_ceil(2).saturating_add(1),
        }
    }

    /// The most precise of several: that of the shortest round trip.
    pub fn best(trips: impl IntoIterator<Item = ClockOffset>) -> Option<ClockOffset> {
        trips.into_iter().min_by_key(|one| one.uncertainty_ns)
    }

    /// Converts an instant of our clock to theirs. Instants before the start of their clock become 0.
    pub fn theirs_ns(&self, ours_ns: u64) -> u64 {
        (i128::from(ours_ns) + self.ahead_ns).clamp(0, i128::from(u64::MAX)) as u64
    }
}

/// How far apart several hosts may have started. Each is given by how late it started, and by the uncertainty of its
/// clock, in nanoseconds. Zero if there are none.
pub(crate) fn spread_ns(begins: impl IntoIterator<Item = (u64, u64)>) -> u64 {
    let mut bounds: Option<(i128, i128)> = None;
    for (late_ns, uncertainty_ns) in begins {
        let (late_ns, uncertainty_ns) = (i128::from(late_ns), i128::from(uncertainty_ns));
        let (low, high) = (late_ns - uncertainty_ns, late_ns + uncertainty_ns);
        bounds = Some(bounds.map_or((low, high), |(least, most)| (least.min(low), most.max(high))));
    }
    bounds.map_or(0, |(least, most)| u64::try_from(most - least).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The truth lies within the uncertainty for any times of the ways there and back.
        #[test]
        fn true_offset_is_within_uncertainty(
            sent_ns in 0u64..1 << 60,
            there_ns in 0u64..1_000_000_000,
            back_ns in 0u64..1_000_000_000,
            ahead_ns in -(1i128 << 59)..1i128 << 59,
        ) {
            let arrived_ns = i128::from(sent_ns + there_ns) + ahead_ns;
            prop_assume!(arrived_ns >= 0);
            let found = ClockOffset::new(sent_ns, arrived_ns as u64, sent_ns + there_ns + back_ns);
            prop_assert!((found.ahead_ns - ahead_ns).unsigned_abs() <= u128::from(found.uncertainty_ns));
        }

        /// Hosts whose clocks differ by anything, behind ways of any length: told one instant, each in its own time,
        /// they begin no further apart than is said.
        #[test]
        fn hosts_begin_together_whatever_their_clocks_say(
            hosts in prop::collection::vec(
                (0u64..1 << 60, 0u64..500_000_000, 0u64..500_000_000, 0u64..1_000_000),
                1..8,
            ),
            start_ns in 10_000_000_000u64..1 << 59,
        ) {
            let mut begins = Vec::new();
            let mut estimates = Vec::new();
            for (ahead_ns, there_ns, back_ns, late_ns) in hosts {
                let sent_ns = 1_000_000_000;
                let offset =
                    ClockOffset::new(sent_ns, sent_ns + there_ns + ahead_ns, sent_ns + there_ns + back_ns);
                // It begins by its own clock; here we look at ours.
                begins.push(i128::from(offset.theirs_ns(start_ns) + late_ns) - i128::from(ahead_ns));
                estimates.push((late_ns, offset.uncertainty_ns));
            }
            let apart_ns = begins.iter().max().unwrap() - begins.iter().min().unwrap();
            prop_assert!(apart_ns <= i128::from(spread_ns(estimates)));
        }
    }

    #[test]
    fn clock_offset_uses_shortest_exchange() {
        let trips = [(0, 1_000_500, 900), (2_000, 1_002_010, 2_020), (5_000, 1_005_400, 5_500)];
        let trips = trips.map(|(sent, theirs, received)| ClockOffset::new(sent, theirs, received));
        let best = ClockOffset::best(trips).unwrap();
        assert_eq!(best, ClockOffset { ahead_ns: 1_000_000, uncertainty_ns: 11 });
        assert_eq!((best.theirs_ns(7), ClockOffset::new(500, 0, 500).theirs_ns(100)), (1_000_007, 0));
        assert_eq!(ClockOffset::new(9, 5, 3).uncertainty_ns, 1, "a clock that went back");
    }

    #[test]
    fn spread_covers_earliest_to_latest_start() {
        assert_eq!(spread_ns([]), 0);
        assert_eq!(spread_ns([(0, 50)]), 100);
        assert_eq!(spread_ns([(0, 50), (200, 10)]), 260);
        assert_eq!(spread_ns([(u64::MAX, u64::MAX), (0, u64::MAX)]), u64::MAX);
    }
}
