//! What the caches of a cell hold when it begins.

use std::sync::atomic::AtomicBool;

use super::Bench;
use crate::fill;
use crate::run::attached::Storages;
use crate::run::cell_plan::CellPlan;
use crate::run::drive::{self, Keep, Purpose};
use crate::run::stopwatch::Part;
use crate::run::{CellError, Live, Observer, SETTLE_LIMIT};
use crate::session::Session;
use crate::spec::Cache;

impl Bench {
    /// Brings the caches to what the study asks for: empty, or as a long run of this mix would leave them. A warning
    /// when that could not be done in full.
    pub(super) fn fill_caches(
        &self,
        plan: &CellPlan<'_>,
        session: &Session,
        storages: &Storages,
        observer: &dyn Observer,
        stop: &AtomicBool,
    ) -> Result<Option<String>, CellError> {
        // Load and delete change the data set: doing them to fill caches would use up what is measured.
        if plan.study.run.cache == Cache::Warm && !plan.cell().visits_every_record() {
            let sizes = fill::Sizes {
                budget_bytes: plan.budget_bytes,
                data_bytes: plan.data_bytes_here,
                records: plan.records_here,
            };
            let each = fill::operations(plan.system, &plan.storage, plan.scale.time > 1.0, sizes);
            let operations = each * u64::from(plan.system.servers);
            let spec = drive::filling_spec(plan, operations)?;
            self.clock.enter(Part::Fill);
            let images = plan.storage.is_modelled().then_some(self.work.as_path());
            let keep = Keep { images, ..Keep::default() };
            let filled = drive::drive(&spec, session, &(), observer, stop, Purpose::FillingCaches, keep)?;
            // What the fill wrote was written faster than the device could: no storage may begin with
            // that debt.
            self.clock.enter(Part::Settle);
            observer.live(&Live { phase: "settling".into(), preparing: true, ..Live::default() });
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
