//! The observable state of a running cell: its devices, budgets, gauges and nodes.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use underlay_record::{DeviceGlance, FeedEntry, LiveBudget, LiveSample, NodeEventRecord};
use underlay_sync::Mutex;

use super::super::LiveSource;
use super::super::attached::CellStorages;
use super::super::cell_plan::CellPlan;
use super::super::volume_server::cpu_time;
use super::super::window::WindowHandle;
use super::super::{parts, storage};
use crate::machine::ServerShare;
use crate::session::ServerSession;
use crate::session::nodes::NodeDesk;

/// A system that was started on its storages.
pub(in crate::run) struct CellSource<'a> {
    plan: &'a CellPlan<'a>,
    session: &'a ServerSession,
    storages: &'a CellStorages,
    /// The cell's directory.
    folder: &'a Path,
    /// The share of each server.
    share: Option<ServerShare>,
    /// See [`LiveSample::preparing`].
    is_preparing: bool,
    window: Option<&'a WindowHandle<'a>>,
    desk: Option<&'a NodeDesk<'a>>,
    before: Mutex<PreviousSample>,
}

#[derive(Default)]
struct PreviousSample {
    is_silent: bool,
    devices: Vec<DeviceGlance>,
    cpu: Option<(Instant, CpuSums)>,
}

/// Sums over all servers.
#[derive(Clone, Copy, Default)]
struct CpuSums {
    used: Duration,
    periods: u64,
    throttled_periods: u64,
}

impl<'a> CellSource<'a> {
    pub(in crate::run) fn new(
        plan: &'a CellPlan<'a>,
        session: &'a ServerSession,
        storages: &'a CellStorages,
        folder: &'a Path,
        share: Option<ServerShare>,
    ) -> CellSource<'a> {
        CellSource {
            plan,
            session,
            storages,
            folder,
            share,
            is_preparing: false,
            window: None,
            desk: None,
            before: Mutex::default(),
        }
    }

    /// Adds observations of the system during the measurement.
    pub(in crate::run) fn measured(
        self,
        window: &'a WindowHandle<'a>,
        desk: Option<&'a NodeDesk<'a>>,
    ) -> Self {
        CellSource { window: Some(window), desk, ..self }
    }

    /// For the time before anything is measured.
    pub(in crate::run) fn preparing(self) -> Self {
        CellSource { is_preparing: true, ..self }
    }

    /// The CPU time of all servers, or of their processes where no group counts it.
    fn cpu_sums(&self) -> CpuSums {
        let counted: Vec<_> = self.session.cpu_usage().into_iter().flatten().collect();
        let used = match counted.is_empty() {
            false => counted.iter().map(|one| one.used).sum(),
            true => self.session.servers().processes().into_iter().map(cpu_time).sum(),
        };
        CpuSums {
            used,
            periods: counted.iter().map(|one| one.periods).sum(),
            throttled_periods: counted.iter().map(|one| one.throttled_periods).sum(),
        }
    }
}

impl LiveSource for CellSource<'_> {
    fn ground(&self) -> Option<FeedEntry> {
        let plan = self.plan;
        let attachment = self.storages.name();
        let storage = storage::describe(&plan.storage, &plan.roles(), plan.system.servers, attachment);
        let topology =
            self.session.servers().topology().map(|found| storage::with_devices(found, &plan.storage));
        let parts = parts::describe(plan, self.session, self.storages);
        let scratch = self.folder.display().to_string();
        Some(FeedEntry::Ground { storage: Box::new(storage), topology, parts, scratch })
    }

    fn fill(&self, sample: &mut LiveSample) {
        sample.preparing = self.is_preparing;
        // Devices that fail or hang are not asked again in this cell. Nothing may have to wait for them, least of all a
        // user who stops the run.
        let asked = (!self.before.lock().is_silent).then(|| self.storages.glance(self.plan));
        let is_silent = !matches!(asked, Some(Ok(_)));
        let (devices, layers) = asked.and_then(Result::ok).unwrap_or_default();
        let (now, sums) = (Instant::now(), self.cpu_sums());
        let servers = f64::from(self.plan.system.servers);
        let mut before = self.before.lock();
        let then = |one: &DeviceGlance| before.devices.iter().find(|then| then.id == one.id);
        sample.devices = devices.iter().map(|one| one.delta_since(then(one))).collect();
        sample.layers = layers;
        before.is_silent = is_silent;
        sample.gauges = self.window.map_or_else(BTreeMap::new, WindowHandle::latest_gauges);
        sample.budget = Some(LiveBudget {
            memory_used_bytes: self.session.memory_used_bytes(),
            memory_budget_bytes: self.plan.budget_bytes.saturating_mul(u64::from(self.plan.system.servers)),
            cpu_used: before.cpu.map(|(instant, then)| {
                let wall_s = (now - instant).as_secs_f64().max(f64::MIN_POSITIVE);
                sums.used.saturating_sub(then.used).as_secs_f64() / wall_s
            }),
            cpu_throttled_share: before.cpu.and_then(|(_, then)| {
                let periods = sums.periods.saturating_sub(then.periods);
                let throttled = sums.throttled_periods.saturating_sub(then.throttled_periods);
                (periods > 0).then(|| (throttled as f64 / periods as f64).min(1.0))
            }),
            cpu_budget: self.share.as_ref().map(|share| share.cpu.quota_cpus * servers),
        });
        before.devices = devices;
        before.cpu = Some((now, sums));
    }

    fn node_events(&self) -> Vec<NodeEventRecord> {
        self.desk.map_or_else(Vec::new, NodeDesk::events)
    }
}
