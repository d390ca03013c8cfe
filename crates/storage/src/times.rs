//! Running totals of what requests took at devices, by kind: what the way to a device is found from by subtraction.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::medium::ModelOperation;

/// Sums over requests, in modelled microseconds. They only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KindTimes {
    pub requests: u64,
    /// The models' times.
    pub modelled_us: f64,
    /// From a request's arrival at its device to its answer.
    pub served_us: f64,
    /// By how much they were dated back.
    pub dated_back_us: f64,
}

/// Totals since the devices were made, of the requests that took modelled time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestTimes {
    pub reads: KindTimes,
    pub writes: KindTimes,
    pub flushes: KindTimes,
}

impl RequestTimes {
    /// Discards are left out: nobody waits for them.
    pub(crate) fn add(
        &mut self,
        operation: ModelOperation,
        modelled: Duration,
        served: Duration,
        dated_back: Duration,
    ) {
        let kind = match operation {
            ModelOperation::Read => &mut self.reads,
            ModelOperation::Write => &mut self.writes,
            ModelOperation::Flush => &mut self.flushes,
            ModelOperation::Discard => return,
        };
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        kind.requests += 1;
        kind.modelled_us += us(modelled);
        kind.served_us += us(served);
        kind.dated_back_us += us(dated_back);
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &RequestTimes) -> RequestTimes {
        self.combined(other, KindTimes::plus)
    }

    /// The difference since `earlier`.
    #[must_use]
    pub fn delta_since(&self, earlier: &RequestTimes) -> RequestTimes {
        self.combined(earlier, KindTimes::delta_since)
    }

    fn combined(
        &self,
        other: &RequestTimes,
        combine: fn(&KindTimes, &KindTimes) -> KindTimes,
    ) -> RequestTimes {
        RequestTimes {
            reads: combine(&self.reads, &other.reads),
            writes: combine(&self.writes, &other.writes),
            flushes: combine(&self.flushes, &other.flushes),
        }
    }
}

impl KindTimes {
    fn plus(&self, other: &KindTimes) -> KindTimes {
        KindTimes {
            requests: self.requests + other.requests,
            modelled_us: self.modelled_us + other.modelled_us,
            served_us: self.served_us + other.served_us,
            dated_back_us: self.dated_back_us + other.dated_back_us,
        }
    }

    fn delta_since(&self, earlier: &KindTimes) -> KindTimes {
        KindTimes {
            requests: self.requests.saturating_sub(earlier.requests),
            modelled_us: self.modelled_us - earlier.modelled_us,
            served_us: self.served_us - earlier.served_us,
            dated_back_us: self.dated_back_us - earlier.dated_back_us,
        }
    }
}
