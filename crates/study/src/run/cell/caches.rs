//! The initial contents of a cell's caches.

use std::sync::atomic::AtomicBool;

use super::RunContext;
use crate::fill;
use crate::run::attached::CellStorages;
use crate::run::cell_plan::CellPlan;
use crate::run::drive::{self, DrivePurpose, KeptOutputs};
use crate::run::stopwatch::WallPart;
use crate::run::{CellError, LiveCell, RunObserver, SETTLE_LIMIT};
use crate::session::ServerSession;
use crate::spec::InitialCacheState;

impl RunContext {
    /// Brings the caches to what the study asks for: empty, or as a long run of this mix would leave them. A warning
    /// when that could not be done in full.
    pub(super) fn fill_caches(
        &self,
        plan: &CellPlan<'_>,
        session: &ServerSession,
        storages: &CellStorages,
        observer: &dyn RunObserver,
        stop: &AtomicBool,
    ) -> Result<Option<String>, CellError> {
        // Load and delete change the data set: doing them to fill caches would use up what is measured.
        if plan.study.run.cache == InitialCacheState::Warm && !plan.cell().visits_every_record() {
            let sizes = fill::CellSizes {
                budget_bytes: plan.budget_bytes,
                data_bytes: plan.data_bytes_here,
                records: plan.records_here,
            };
            let each = fill::operations(plan.system, &plan.storage, plan.scale.time > 1.0, sizes);
            let operations = each * u64::from(plan.system.servers);
            let spec = drive::filling_spec(plan, operations)?;
            self.clock.enter(WallPart::Fill);
            let images = plan.storage.is_modelled().then_some(self.work.as_path());
            let keep = KeptOutputs { images, ..KeptOutputs::default() };
            let filled =
                drive::drive(&spec, session, &(), observer, stop, DrivePurpose::FillingCaches, keep)?;
            // The fill wrote faster than the device could: no storage may begin with that debt.
            self.clock.enter(WallPart::Settle);
            observer.live(&LiveCell { phase: "settling".into(), preparing: true, ..LiveCell::default() });
            session.settle(SETTLE_LIMIT, stop)?;
            if filled.measured.operations < operations {
                return Ok(Some(format!(
                    "caches were filled by {} operations of {operations}: the storage was too slow for more",
                    filled.measured.operations
                )));
            }
        } else {
            session.drop_caches(storages.servers().iter().map(|attached| attached.paths()))?;
        }
        Ok(None)
    }
}
