//! A part that one request at a time goes through: the controller, the interface.

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FlashBus {
    /// Since when it has been busy without a pause, and until when.
    since_ns: u64,
    until_ns: u64,
}

impl FlashBus {
    /// For a transfer that comes at `now_ns` and takes `span_ns`: when it begins, and when it is through. A backdated
    /// one goes through in the pause before the bus became busy, if it fits.
    pub(super) fn take(&mut self, now_ns: u64, span_ns: u64) -> (u64, u64) {
        if now_ns + span_ns < self.since_ns {
            return (now_ns, now_ns + span_ns);
        }
        let start_ns = now_ns.max(self.until_ns);
        if start_ns > self.until_ns {
            self.since_ns = start_ns;
        }
        self.until_ns = start_ns + span_ns;
        (start_ns, self.until_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_transfer_uses_earlier_gap() {
        let mut bus = FlashBus::default();
        assert_eq!(bus.take(100, 50), (100, 150));
        assert_eq!(bus.take(120, 50), (150, 200));
        assert_eq!(bus.take(400, 50), (400, 450));
        // Before the bus became busy; too long for the pause that was left; behind those that came before.
        assert_eq!(bus.take(300, 50), (300, 350));
        assert_eq!(bus.take(380, 50), (450, 500));
        assert_eq!(bus.take(420, 50), (500, 550));
    }
}
