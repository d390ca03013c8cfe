//! How fast the generator itself is on this host: near that rate, its measurements of a system are worthless.

use std::sync::Arc;
use std::time::Duration;

use crate::run::control::RunHandle;
use crate::run::null_client::NullClient;
use crate::run::runner::{RunError, run};
use crate::run::spec::RunSpec;
use crate::workload::CoreWorkload;

/// How long the generator runs against nothing to find its ceiling, in wall time.
const CEILING_DURATION: Duration = Duration::from_millis(300);
const CEILING_WARMUP: Duration = Duration::from_millis(30);

/// The maximum number of attempts: a host that is busy for a moment says nothing about the generator.
const CEILING_LOOKS: usize = 3;

/// Like [`null_ceiling`], the highest of up to three attempts; the first that reaches `enough_per_s` is the last.
///
/// # Errors
/// As [`null_ceiling`].
pub fn null_ceiling_up_to(spec: &RunSpec, enough_per_s: f64) -> Result<f64, RunError> {
    highest_up_to(enough_per_s, || null_ceiling(spec))
}

fn highest_up_to<E>(enough: f64, mut look: impl FnMut() -> Result<f64, E>) -> Result<f64, E> {
    let mut highest = look()?;
    for _ in 1..CEILING_LOOKS {
        if highest >= enough {
            break;
        }
        highest = highest.max(look()?);
    }
    Ok(highest)
}

/// The generator's own highest rate on this host: the same threads, mix and records, for 0.3 s of wall time, against a
/// client that does nothing, at full speed. In operations per modelled second, for
/// [`underlay_record::GeneratorCost::ceiling_per_s`].
///
/// # Errors
/// As [`run`]: a specification that cannot be run.
pub fn null_ceiling(spec: &RunSpec) -> Result<f64, RunError> {
    let mut workload = CoreWorkload::clone(&spec.workload);
    if spec.mix.visits_every_record() {
        // More records than can be visited in this time.
        workload.insert_start = 0;
        workload.insert_count = 1 << 60;
        workload.record_count = workload.insert_count;
    }
    // Nothing is read, so there is nothing to check.
    workload.data_integrity = false;
    let spec = RunSpec {
        workload: Arc::new(workload),
        // At full speed, on the same time scale: the ceiling is compared with modelled throughput.
        rate_per_s: None,
        rate_profile: None,
        warmup: CEILING_WARMUP,
        duration: CEILING_DURATION,
        operation_limit: None,
        series_intervals: 1,
        ..spec.clone()
    };
    let measured = run(&spec, &|_| Ok(Box::new(NullClient)), &RunHandle::new())?;
    Ok(measured.throughput_per_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_ceiling_is_remeasured_and_highest_counts() {
        let found = |enough: f64, looks: &[f64]| {
            let mut looks = looks.iter();
            let highest = highest_up_to(enough, || looks.next().copied().ok_or("looked too often"));
            (highest, looks.len())
        };
        assert_eq!(found(10.0, &[12.0, 40.0, 50.0]), (Ok(12.0), 2), "enough at once");
        assert_eq!(found(10.0, &[3.0, 12.0, 50.0]), (Ok(12.0), 1));
        assert_eq!(found(10.0, &[3.0, 5.0, 4.0]), (Ok(5.0), 0), "three looks at most");
    }
}
