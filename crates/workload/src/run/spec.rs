//! The specification of a run.

use std::sync::Arc;
use std::time::Duration;

use crate::draw::values;
use crate::mix::{OperationKind, OperationMix};
use crate::run::pacing::ArrivalProcess;
use crate::run::rate_profile::RateProfile;
use crate::workload::CoreWorkload;

/// More client threads than this must be a mistake on one machine.
pub(crate) const MAX_THREADS: u32 = 4096;

/// What to run, and how to measure it.
#[derive(Clone, Debug)]
pub struct RunSpec {
    pub workload: Arc<CoreWorkload>,
    pub mix: OperationMix,
    /// Client threads, each with a connection and one operation in flight at a time.
    pub threads: u32,
    /// If these are only some of the threads of several hosts, their position: a rate applies to all hosts together.
    pub share: Option<HostShare>,
    /// Operations per modelled second over all threads (open loop), or `None` for as many as the system answers.
    pub rate_per_s: Option<f64>,
    /// A rate that changes over modelled time, in place of the one above; its time starts with the warm-up.
    pub rate_profile: Option<RateProfile>,
    pub arrivals: ArrivalProcess,
    /// The background load; none of it is in the metrics of these operations.
    pub beside: Option<BackgroundWork>,
    /// Wall time before the measured window.
    pub warmup: Duration,
    /// Wall time of the measured window. With `Duration::MAX` only the operations end it.
    pub duration: Duration,
    /// The total number of operations, warm-up included, after which the run ends if its time has not. `load` and
    /// `delete` end with their records anyway.
    pub operation_limit: Option<u64>,
    /// Slow motion: wall seconds per modelled second, above 0.
    pub dilation: f64,
    /// The number of intervals in the window; up to twice as many if its length is not known in advance.
    pub series_intervals: u32,
    pub seed: u64,
}

/// The threads of one host among those of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostShare {
    /// The number of this host's first thread, from 0.
    pub first_thread: u32,
    /// Threads of all hosts together.
    pub all_threads: u32,
}

impl RunSpec {
    /// A closed loop of one thread for ten seconds, without warm-up or slow motion.
    pub fn new(workload: Arc<CoreWorkload>, mix: OperationMix) -> Self {
        RunSpec {
            workload,
            mix,
            threads: 1,
            share: None,
            rate_per_s: None,
            rate_profile: None,
            arrivals: ArrivalProcess::Constant,
            beside: None,
            warmup: Duration::ZERO,
            duration: Duration::from_secs(10),
            operation_limit: None,
            dilation: 1.0,
            series_intervals: 30,
            seed: 1,
        }
    }

    /// True when operations may run out before the time does.
    pub(crate) fn is_limited(&self) -> bool {
        self.operation_limit.is_some() || self.mix.visits_every_record()
    }

    /// # Errors
    /// The reasons why it can't run, in words.
    pub(crate) fn check(&self) -> Result<(), Vec<String>> {
        let mut problems = self.workload.problems();
        problems.extend(self.workload.scan_problem(&self.mix));
        if !(1..=MAX_THREADS).contains(&self.threads) {
            problems.push(format!("{} threads: expected 1 to {MAX_THREADS}", self.threads));
        }
        if let Some(rate) = self.rate_per_s
            && !(rate.is_finite() && rate > 0.0)
        {
            problems.push(format!("a rate of {rate} operations per second: expected a number above 0"));
        }
        if !(self.dilation.is_finite() && self.dilation > 0.0) {
            problems.push(format!("a time scale of {}: expected a number above 0", self.dilation));
        }
        if self.duration.is_zero() {
            problems.push("a measured time of zero: expected a duration above 0".to_owned());
        }
        if self.duration == Duration::MAX && !self.is_limited() {
            problems.push("a run without an end: expected a duration or a number of operations".to_owned());
        }
        if self.operation_limit == Some(0) {
            problems.push("no operations at all: expected a limit of at least one".to_owned());
        }
        if let Some(HostShare { first_thread, all_threads }) = self.share
            && first_thread.checked_add(self.threads).is_none_or(|end| end > all_threads)
        {
            problems.push(format!(
                "threads from {first_thread} on, {} of them, of {all_threads} in all: expected no more than there are",
                self.threads
            ));
        }
        problems.extend(self.beside.iter().flat_map(|background| background.problems(self)));
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    /// The rate of an open loop; `None` in a closed one.
    pub(crate) fn profile(&self) -> Option<RateProfile> {
        self.rate_profile.clone().or_else(|| self.rate_per_s.map(RateProfile::constant))
    }

    /// Client threads of both streams.
    pub fn all_threads(&self) -> u32 {
        self.threads.saturating_add(self.beside.as_ref().map_or(0, |background| background.threads))
    }

    /// Threads with the same number on several hosts draw different operations.
    pub(crate) fn seed_of_host(&self) -> u64 {
        match self.share {
            Some(HostShare { first_thread, .. }) if first_thread > 0 => {
                values::mix(self.seed ^ values::mix(u64::from(first_thread)))
            }
            _ => self.seed,
        }
    }

    /// The number of operations after which it ends, unless it continues until its time is over.
    pub fn operations_in_all(&self) -> Option<u64> {
        let records = self.mix.visits_every_record().then_some(self.workload.insert_count);
        self.operation_limit.into_iter().chain(records).min()
    }
}

/// The background load next to the measured operations, as long as those last. Its threads have the higher numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct BackgroundWork {
    pub mix: OperationMix,
    pub threads: u32,
    /// Operations per modelled second over its threads, or `None` for as many as the system answers.
    pub rate_per_s: Option<f64>,
}

impl BackgroundWork {
    /// Reasons why it is incompatible with this run, in words.
    fn problems(&self, spec: &RunSpec) -> Vec<String> {
        let mut problems = Vec::new();
        if !(1..=MAX_THREADS).contains(&self.threads)
            || self.threads.saturating_add(spec.threads) > MAX_THREADS
        {
            problems.push(format!("{} threads beside: expected 1 to {MAX_THREADS} in all", self.threads));
        }
        if let Some(rate) = self.rate_per_s
            && !(rate.is_finite() && rate > 0.0)
        {
            problems
                .push(format!("a rate of {rate} operations per second beside: expected a number above 0"));
        }
        if self.mix.visits_every_record() || spec.mix.visits_every_record() {
            problems.push(
                "operations beside those of a load or a deletion, which end with their records".to_owned(),
            );
        }
        if self.mix.share(OperationKind::Insert) > 0.0 && spec.mix.share(OperationKind::Insert) > 0.0 {
            problems.push("inserts in both streams, which would add the same records".to_owned());
        }
        if spec.operation_limit.is_some() {
            problems.push("operations beside a number of operations: expected a duration alone".to_owned());
        }
        if spec.share.is_some() {
            problems.push("operations beside those of several hosts".to_owned());
        }
        problems
    }
}
