//! A second stream of operations next to the measured one, such as readers next to a writer at a fixed rate, as in many
//! benchmarks.

use std::sync::{Arc, OnceLock};

use underlay_record::BesideMeasured;

use crate::draw::operations::SharedOperations;
use crate::run::recorder::{MergedRecorder, ThreadRecord};
use crate::run::series::IntervalSeries;
use crate::run::spec::{BackgroundWork, RunSpec};

/// State shared by its threads.
#[derive(Debug)]
pub(crate) struct BesideStage {
    pub operations: SharedOperations,
    pub series: OnceLock<Arc<IntervalSeries>>,
}

impl BesideStage {
    /// # Errors
    /// When the workload has no records to request.
    pub(crate) fn new(background: &BackgroundWork, spec: &RunSpec) -> Result<BesideStage, String> {
        let operations = SharedOperations::new(
            Arc::clone(&spec.workload),
            background.mix.clone(),
            background.threads,
            None,
        )?;
        Ok(BesideStage { operations, series: OnceLock::new() })
    }

    /// Its outcome.
    pub(crate) fn measured(
        &self,
        background: &BackgroundWork,
        records: &[ThreadRecord],
        duration_s: f64,
    ) -> Option<BesideMeasured> {
        let merged = MergedRecorder::from_threads(records, self.series.get()?);
        Some(BesideMeasured {
            mix: background.mix.name().to_owned(),
            threads: background.threads,
            rate_per_s: background.rate_per_s,
            operations: merged.operations,
            errors: merged.errors,
            throughput_per_s: merged.operations as f64 / duration_s,
            by_operation: merged.by_operation,
        })
    }
}
