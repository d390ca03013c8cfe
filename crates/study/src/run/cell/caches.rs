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
    /// Puts the caches into the state that the study asks for: empty, or as after a long run of this mix. Returns a
    /// warning when that was not fully possible.
    pub(super) fn fill_caches(
        &self,
        plan: &CellPlan<'_>,
        session: &ServerSession,
        storages: &CellStorages,
        observer: &dyn RunObserver,
        stop: &AtomicBool,
    ) -> Result<Option<String>, CellError> {
        // Load and delete change the data set, so using them to fill caches would use up the records to measure.
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
            // The fill wrote faster than the device could. No measurement may begin with this backlog.
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
