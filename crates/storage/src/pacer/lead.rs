//! How long before an event the pacer's sleep is to end.

use std::time::Duration;

/// Timers are late, and by how much is the host's matter: on virtual machines 10 to 50 us at the median. What the sleep
/// ends too soon is spun away, on a CPU that the load generator and the daemon's other threads have, too; what it ends
/// too late is late for the waiting program. So the lead is learnt: some one in 200 sleeps ends too late.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lead {
    ns: u64,
}

const MIN_NS: u64 = 20_000;
/// A sleep that ends later than this was not late by its timer, but kept from a CPU by something else: no spin of a
/// bearable length helps.
const MAX_NS: u64 = 60_000;
/// The steps are in balance where one sleep in 200 ends too late.
const LENGTHENED_NS: u64 = 4_000;
const SHORTENED_NS: u64 = 20;

impl Default for Lead {
    /// Too long at first: nobody waits for that.
    fn default() -> Lead {
        Lead { ns: MAX_NS }
    }
}

impl Lead {
    pub(super) fn time(self) -> Duration {
        Duration::from_nanos(self.ns)
    }

    /// After a sleep that its timer ended, and whether that was soon enough.
    pub(super) fn woke(&mut self, in_time: bool) {
        self.ns = match in_time {
            true => self.ns.saturating_sub(SHORTENED_NS).max(MIN_NS),
            false => self.ns.saturating_add(LENGTHENED_NS).min(MAX_NS),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sleeps that are late by what `late_ns` says, in turn; how many of the last half ended too late, and the longest
    /// lead of that half.
    fn learnt(late_ns: impl Fn(u64) -> u64) -> (u64, u64) {
        let mut lead = Lead::default();
        let (mut too_late, mut longest_ns) = (0, 0);
        for turn in 0..20_000 {
            let in_time = late_ns(turn) < lead.ns;
            lead.woke(in_time);
            if turn >= 10_000 {
                too_late += u64::from(!in_time);
                longest_ns = longest_ns.max(lead.ns);
            }
        }
        (too_late, longest_ns)
    }

    #[test]
    fn punctual_host_has_short_lead() {
        assert_eq!(learnt(|_| 9_000), (0, MIN_NS));
    }

    #[test]
    fn lead_covers_almost_all_sleeps() {
        // Late by 10 to 30 us, evenly.
        let (too_late, longest_ns) = learnt(|turn| 10_000 + turn * 7_919 % 20_000);
        assert!((20..=100).contains(&too_late), "{too_late} of 10,000");
        assert!((29_000..36_000).contains(&longest_ns), "{longest_ns}");
        // One in 50 is later: the lead covers it.
        let (too_late, longest_ns) = learnt(|turn| if turn % 50 == 7 { 45_000 } else { 10_000 });
        assert!(too_late <= 100, "{too_late} of 10,000");
        assert!(longest_ns > 45_000, "{longest_ns}");
        // One in 1,000 is not worth it.
        let (_, longest_ns) = learnt(|turn| if turn % 1000 == 7 { 55_000 } else { 10_000 });
        assert!(longest_ns < 30_000, "{longest_ns}");
    }

    #[test]
    fn endlessly_late_host_lead_is_bounded() {
        assert_eq!(learnt(|_| 3_000_000), (10_000, MAX_NS));
    }
}
