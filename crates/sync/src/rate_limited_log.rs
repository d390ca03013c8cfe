//! Rate-limited reports of what others can cause as often as they like.

use std::time::Duration;

use crate::{Instant, Mutex};

/// A log line for the first of something, and then one for all that came in each interval.
#[derive(Debug, Default)]
pub struct RateLimitedLog {
    state: Mutex<LogState>,
}

#[derive(Debug, Default)]
struct LogState {
    told: Option<Instant>,
    untold: u64,
}

const INTERVAL: Duration = Duration::from_secs(10);

impl RateLimitedLog {
    /// Counts an event; when a report is due, returns how many there were since the last one.
    pub fn count(&self) -> Option<u64> {
        let mut state = self.state.lock();
        state.untold += 1;
        if state.told.is_some_and(|last_logged| last_logged.elapsed() < INTERVAL) {
            return None;
        }
        state.told = Some(Instant::now());
        Some(std::mem::take(&mut state.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_of_many_events_is_logged() {
        let seldom = RateLimitedLog::default();
        assert_eq!(seldom.count(), Some(1));
        assert_eq!(seldom.count(), None);
        seldom.state.lock().told = None;
        assert_eq!(seldom.count(), Some(2), "the one that was not told of counts");
    }
}
