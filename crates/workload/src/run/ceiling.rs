//! How fast the generator itself is here: what it measures of a system is worth nothing near that.

use std::sync::Arc;
use std::time::Duration;

use crate::run::control::Control;
use crate::run::null_client::NullClient;
use crate::run::runner::{RunError, run};
use crate::run::spec::RunSpec;
use crate::workload::Workload;

/// How long the generator runs against nothing to find its ceiling, on the wall clock.
const CEILING_DURATION: Duration = Duration::from_millis(300);
const CEILING_WARMUP: Duration = Duration::from_millis(30);

/// The highest rate that the generator itself reaches here: the same threads, mix and records for 0.3 s of wall time
/// against a client that does nothing, as fast as it goes. In operations per modelled second, to be put into
/// [`underlay_record::Generator::ceiling_per_s`].
///
/// # Errors
/// As [`run`]: a specification that cannot be run.
pub fn null_ceiling(spec: &RunSpec) -> Result<f64, RunError> {
    let mut workload = Workload::clone(&spec.workload);
    if spec.mix.visits_every_record() {
        // More records than can be visited in the time.
        workload.insert_start = 0;
        workload.insert_count = 1 << 60;
        workload.record_count = workload.insert_count;
    }
    // Nothing is read, so that there is nothing to check.
    workload.data_integrity = false;
    let spec = RunSpec {
        workload: Arc::new(workload),
        // As fast as it goes, on the same time scale: the ceiling is compared with modelled throughput.
        rate_per_s: None,
        rate_profile: None,
        warmup: CEILING_WARMUP,
        duration: CEILING_DURATION,
        operation_limit: None,
        series_intervals: 1,
        ..spec.clone()
    };
    let measured = run(&spec, &|_| Ok(Box::new(NullClient)), &Control::new())?;
    Ok(measured.throughput_per_s)
}
