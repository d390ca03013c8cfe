//! A worker's job: a part of the coordinator's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use underlay_workload::{
    ArrivalProcess, CoreWorkload, HostShare, OperationMix, PropertyOrigin, RatePart, RateProfile,
    RequestDistribution, RunSpec, YcsbProperties,
};

use crate::HostError;

/// A longer time series would be a mistake, and would take too much memory.
const MAX_INTERVALS: u32 = 10_000;

/// A run, as it is sent to a worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RemoteJob {
    /// The existing cluster, and how to reach it.
    pub system: String,
    pub settings: BTreeMap<String, String>,
    /// The properties of CoreWorkload.
    pub properties: Vec<(String, String)>,
    /// A standard mix; `None` for that of the properties.
    pub mix: Option<String>,
    /// The client threads of all workers together. In a part, the next two say which of them are this worker's.
    pub threads: u32,
    pub first_thread: u32,
    pub own_threads: u32,
    /// Operations per second of all workers together. `None`, without changes: as fast as possible.
    pub rate_per_s: Option<f64>,
    /// A rate that changes over time, instead of the one above.
    pub rate_changes: Vec<RateChange>,
    /// `constant` or `poisson`.
    pub arrivals: String,
    pub warmup: Duration,
    /// `Duration::MAX`: until all operations are done.
    pub duration: Duration,
    /// In a part, the limit of this worker.
    pub operation_limit: Option<u64>,
    pub series_intervals: u32,
    pub seed: u64,
}

/// One part of a rate that changes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum RateChange {
    Steady { rate_per_s: f64, length: Duration },
    Ramp { from_per_s: f64, to_per_s: f64, length: Duration },
}

impl From<RatePart> for RateChange {
    fn from(part: RatePart) -> Self {
        match part {
            RatePart::Steady { rate_per_s, length } => RateChange::Steady { rate_per_s, length },
            RatePart::Ramp { from_per_s, to_per_s, length } => {
                RateChange::Ramp { from_per_s, to_per_s, length }
            }
        }
    }
}

impl From<RateChange> for RatePart {
    fn from(change: RateChange) -> Self {
        match change {
            RateChange::Steady { rate_per_s, length } => RatePart::Steady { rate_per_s, length },
            RateChange::Ramp { from_per_s, to_per_s, length } => {
                RatePart::Ramp { from_per_s, to_per_s, length }
            }
        }
    }
}

impl RemoteJob {
    /// Divides the job into parts for `workers` workers.
    ///
    /// # Errors
    /// When it can't be divided: says why, and what to change.
    pub fn divided(&self, workers: u32) -> Result<Vec<RemoteJob>, HostError> {
        let refused = |problem: String| Err(HostError::Job(problem));
        let workload = self.workload().map_err(HostError::Job)?;
        let mix = self.mix(&workload).map_err(HostError::Job)?;
        if workers == 0 || self.threads < workers {
            return refused(format!(
                "{} client threads for {workers} workers: expected at least one for each",
                self.threads
            ));
        }
        let (subject, number) = match self.operation_limit {
            _ if mix.visits_every_record() => ("records", workload.insert_count),
            Some(limit) => ("operations", limit),
            None => ("operations", u64::MAX),
        };
        if number < u64::from(workers) {
            return refused(format!(
                "{number} {subject} for {workers} workers: expected at least one for each"
            ));
        }
        if !mix.visits_every_record() && mix.changes_the_key_set() {
            return refused(format!(
                "mix {mix} adds or deletes records, and workers can't tell each other about these: run it on one host"
            ));
        }
        if !mix.visits_every_record() && workload.distribution_for(&mix) == RequestDistribution::Sequential {
            return refused(
                "every worker would request the same records in the same order: use a requestdistribution other \
                 than sequential, or one host"
                    .to_owned(),
            );
        }
        let part = |worker: u32| {
            let (first_thread, own_threads) = piece(u64::from(self.threads), worker, workers);
            let mut job = RemoteJob {
                first_thread: first_thread as u32,
                own_threads: own_threads as u32,
                operation_limit: self.operation_limit.map(|limit| piece(limit, worker, workers).1),
                ..self.clone()
            };
            if mix.visits_every_record() {
                let (first, count) = piece(workload.insert_count, worker, workers);
                // Overrides the original properties, since the last value of a property counts.
                job.properties.push(("insertstart".to_owned(), (workload.insert_start + first).to_string()));
                job.properties.push(("insertcount".to_owned(), count.to_string()));
                job.operation_limit = None;
            }
            job
        };
        Ok((0..workers).map(part).collect())
    }

    /// The records and how they are requested.
    ///
    /// # Errors
    /// When properties are wrong: lists all of them.
    pub fn workload(&self) -> Result<CoreWorkload, String> {
        let mut properties = YcsbProperties::new();
        for (name, value) in &self.properties {
            if name == "fieldlengthhistogram" || (name == "fieldlengthdistribution" && value == "histogram") {
                return Err(format!(
                    "{name} is {value}, and files are not sent to workers: use another distribution, or one host"
                ));
            }
            properties.add(name, value, PropertyOrigin::Argument(format!("{name}={value}")));
        }
        let workload = properties.workload().map_err(|mistakes| mistakes.to_string())?;
        Ok(if self.mix.is_none() { workload.with_core_defaults() } else { workload })
    }

    fn mix(&self, workload: &CoreWorkload) -> Result<OperationMix, String> {
        match &self.mix {
            None => Ok(workload.mix()),
            Some(name) => OperationMix::parse(name).map_err(|unknown| unknown.to_string()),
        }
    }

    /// The run of a worker.
    ///
    /// # Errors
    /// When it can't be run here: says why.
    pub fn spec(&self) -> Result<RunSpec, String> {
        let arrivals = ArrivalProcess::parse(&self.arrivals)
            .ok_or_else(|| format!("arrivals are '{}': expected constant or poisson", self.arrivals))?;
        if !(1..=MAX_INTERVALS).contains(&self.series_intervals) {
            let count = self.series_intervals;
            return Err(format!("{count} intervals: expected 1 to {MAX_INTERVALS}"));
        }
        let rate_profile = match self.rate_changes.as_slice() {
            [] => None,
            changes => {
                let parts: Vec<RatePart> = changes.iter().map(|&change| change.into()).collect();
                Some(RateProfile::from_parts(&parts)?)
            }
        };
        let workload = self.workload()?;
        let mix = self.mix(&workload)?;
        Ok(RunSpec {
            threads: self.own_threads,
            share: Some(HostShare { first_thread: self.first_thread, all_threads: self.threads }),
            rate_per_s: self.rate_per_s,
            rate_profile,
            arrivals,
            warmup: self.warmup,
            duration: self.duration,
            operation_limit: self.operation_limit,
            series_intervals: self.series_intervals,
            seed: self.seed,
            ..RunSpec::new(Arc::new(workload), mix)
        })
    }
}

/// The start and length of a worker's part of a number that is divided evenly.
fn piece(number: u64, worker: u32, workers: u32) -> (u64, u64) {
    // In 128 bits: the product of a large limit and a worker would overflow 64.
    let bound = |worker: u32| (u128::from(number) * u128::from(worker) / u128::from(workers)) as u64;
    (bound(worker), bound(worker + 1) - bound(worker))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn job(mix: &str, threads: u32) -> RemoteJob {
        let property = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        RemoteJob {
            system: "null".to_owned(),
            properties: vec![property("recordcount", "1000"), property("insertstart", "100")],
            mix: Some(mix.to_owned()),
            threads,
            arrivals: "constant".to_owned(),
            duration: Duration::from_secs(1),
            series_intervals: 10,
            ..RemoteJob::default()
        }
    }

    proptest! {
        /// Every thread, every operation and every record belongs to one worker.
        #[test]
        fn parts_are_the_whole(threads in 1u32..100, workers in 1u32..20, limit in 0u64..10_000) {
            for (mix, limit) in [("load", None), ("a", Some(limit))] {
                let whole = RemoteJob { operation_limit: limit, ..job(mix, threads) };
                let Ok(parts) = whole.divided(workers) else {
                    prop_assert!(threads < workers || limit.is_some_and(|limit| limit < u64::from(workers)));
                    continue;
                };
                let (mut next_thread, mut next_record) = (0, 100);
                for part in &parts {
                    let spec = part.spec().unwrap();
                    prop_assert_eq!(part.first_thread, next_thread);
                    prop_assert!(spec.threads > 0);
                    next_thread += spec.threads;
                    if mix == "load" {
                        prop_assert_eq!(spec.workload.insert_start, next_record);
                        next_record += spec.workload.insert_count;
                    }
                }
                prop_assert_eq!(next_thread, threads);
                prop_assert_eq!(next_record, if mix == "load" { 1000 } else { 100 });
                let limits: Option<u64> = parts.iter().map(|part| part.operation_limit).sum();
                prop_assert_eq!(limits, limit);
                // A limit of zero would stand for none.
                prop_assert!(parts.iter().all(|part| part.operation_limit != Some(0)));
            }
        }
    }

    #[test]
    fn indivisible_job_is_refused_with_reason() {
        let error = |job: RemoteJob| job.divided(4).unwrap_err().to_string();
        assert_eq!(error(job("a", 3)), "3 client threads for 4 workers: expected at least one for each");
        let few = RemoteJob { operation_limit: Some(3), ..job("a", 8) };
        assert_eq!(error(few), "3 operations for 4 workers: expected at least one for each");
        let mut few = job("load", 8);
        few.properties.push(("insertcount".to_owned(), "2".to_owned()));
        assert_eq!(error(few), "2 records for 4 workers: expected at least one for each");
        assert!(error(job("d", 8)).contains("mix d adds or deletes records"), "{}", error(job("d", 8)));
        assert!(error(job("x", 8)).starts_with("there is no mix 'x'"));
        let mut same = job("c", 8);
        same.properties.push(("requestdistribution".to_owned(), "sequential".to_owned()));
        assert!(error(same).contains("the same records"));
        let mut of_file = job("a", 8);
        of_file.properties.push(("fieldlengthhistogram".to_owned(), "/dev/zero".to_owned()));
        assert!(error(of_file).contains("files are not sent to workers"));
        let mut wrong = job("a", 8);
        wrong.properties.push(("fieldcount".to_owned(), "many".to_owned()));
        assert!(error(wrong).contains("fieldcount"));
    }

    #[test]
    fn impossible_job_is_refused_with_reason() {
        let error = |job: RemoteJob| job.spec().unwrap_err();
        let crooked = RemoteJob { arrivals: "crooked".to_owned(), ..job("a", 1) };
        assert_eq!(error(crooked), "arrivals are 'crooked': expected constant or poisson");
        let endless = RemoteJob { series_intervals: u32::MAX, ..job("a", 1) };
        assert!(error(endless).ends_with("intervals: expected 1 to 10000"));
        let zero_rate = RateChange::Steady { rate_per_s: 0.0, length: Duration::from_secs(1) };
        assert!(error(RemoteJob { rate_changes: vec![zero_rate], ..job("a", 1) }).contains("offers nothing"));
    }

    #[test]
    fn workers_share_threads_and_know_whole_rate() {
        let steps = [RatePart::Steady { rate_per_s: 5.0, length: Duration::from_secs(1) }];
        let whole = RemoteJob {
            rate_per_s: Some(900.0),
            rate_changes: steps.map(RateChange::from).to_vec(),
            seed: 5,
            ..job("a", 6)
        };
        let specs: Vec<RunSpec> = whole.divided(3).unwrap().iter().map(|part| part.spec().unwrap()).collect();
        assert!(specs.iter().all(|spec| spec.rate_per_s == Some(900.0) && spec.threads == 2));
        let profile = RateProfile::from_parts(&steps).unwrap();
        assert!(specs.iter().all(|spec| spec.rate_profile.as_ref() == Some(&profile)));
        let shares: Vec<u32> = specs.iter().map(|spec| spec.share.unwrap().first_thread).collect();
        assert_eq!(shares, [0, 2, 4]);
    }

    #[test]
    fn properties_mix_keeps_own_distribution() {
        let own = RemoteJob { mix: None, ..job("a", 2) };
        let spec = own.divided(1).unwrap()[0].spec().unwrap();
        assert_eq!(spec.mix.name(), "b", "CoreWorkload's own default");
        assert_eq!(spec.workload.request_distribution, Some(RequestDistribution::Uniform));
    }
}
