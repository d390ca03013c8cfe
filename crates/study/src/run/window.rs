//! The measured window of a cell: the work of devices and system, counted exactly between its edges.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use underlay_record::{
    CpuRecord, DeviceActivity, LayerActivity, NetworkRecord, PathRecord, PauseRecord, SystemSample,
};
use underlay_sync::{Mutex, MutexGuard};
use underlay_systems::figures;
use underlay_workload::RunWindow;

use super::attached::CellStorages;
use super::cell_plan::CellPlan;
use super::cpu::{CpuCounters, CpuMeter};
use super::drive::WindowHooks;
use super::{CellError, faults};
use crate::session::nodes::NodeDesk;
use crate::session::{ServerSession, StartedServers};
use crate::standstill::PauseMeter;

/// Starts and stops counting exactly at the edges of the measured window.
pub(super) struct WindowHandle<'a> {
    servers: &'a StartedServers,
    storages: &'a CellStorages,
    cpu: Option<CpuMeter<'a>>,
    interval_s: f64,
    nodes: Option<&'a NodeDesk<'a>>,
    /// The results are no longer wanted.
    stop: &'a AtomicBool,
    pauses: PauseMeter,
    found: Mutex<WindowCounts>,
}

/// Querying a system costs it a little CPU time.
const SAMPLE_INTERVAL_MIN: Duration = Duration::from_millis(500);
const WATCH_INTERVAL: Duration = Duration::from_millis(50);
const DEVICE_INTERVAL_MIN_S: f64 = 0.001;

#[derive(Default)]
struct WindowCounts {
    /// Between the edges.
    since: Option<Instant>,
    /// When the measurement began.
    began: Option<Instant>,
    /// When counting of the devices began.
    counted: Option<Instant>,
    counted_for: Duration,
    /// The whole window, once it is over.
    measured: Option<RunWindow>,
    series: Vec<SystemSample>,
    before: BTreeMap<String, f64>,
    after: BTreeMap<String, f64>,
    devices: Vec<DeviceActivity>,
    layers: Vec<LayerActivity>,
    network: Option<NetworkRecord>,
    cpu_began: Option<CpuCounters>,
    cpu: Option<CpuRecord>,
    paths: Vec<PathRecord>,
    schedule: Option<faults::FaultSchedule>,
    faults: Option<faults::RunningFaults>,
    problem: Option<CellError>,
    warnings: Vec<String>,
}

/// The counts of a window.
pub(super) struct WindowFigures {
    pub devices: Vec<DeviceActivity>,
    pub layers: Vec<LayerActivity>,
    pub network: Option<NetworkRecord>,
    pub cpu: Option<CpuRecord>,
    pub paths: Vec<PathRecord>,
    pub figures: BTreeMap<String, f64>,
    pub series: Vec<SystemSample>,
    /// Processes that stalled meanwhile.
    pub pauses: PauseRecord,
    /// How long devices were counted, in wall time.
    pub counted_for: Duration,
    /// For the record.
    pub warnings: Vec<String>,
}

impl<'a> WindowHandle<'a> {
    pub(super) fn new(
        session: &'a ServerSession,
        storages: &'a CellStorages,
        cpu: Option<CpuMeter<'a>>,
        interval_s: f64,
        (schedule, nodes): (faults::FaultSchedule, Option<&'a NodeDesk<'a>>),
        stop: &'a AtomicBool,
    ) -> Self {
        let found = WindowCounts { schedule: Some(schedule), ..WindowCounts::default() };
        // The shortest interval that a device daemon accepts.
        let interval_s = interval_s.max(DEVICE_INTERVAL_MIN_S);
        let pauses = PauseMeter::watch(session.groups());
        let servers = session.servers();
        WindowHandle { servers, storages, cpu, interval_s, nodes, stop, pauses, found: Mutex::new(found) }
    }

    /// `driven` is the load generator's window, which shows how much of the earlier time matters for this one. Absent
    /// for a job or a command, which has no warm-up outside of its window.
    pub(super) fn taken(self, driven: Option<RunWindow>) -> Result<WindowFigures, CellError> {
        let found = self.found.into_inner();
        if let Some(problem) = found.problem {
            return Err(problem);
        }
        let pauses = found.measured.map_or_else(PauseRecord::default, |measured| {
            let before = driven.unwrap_or(measured);
            let RunWindow { warm_up, behind_since, .. } = before;
            self.pauses.over(&RunWindow { warm_up, behind_since, ..measured })
        });
        Ok(WindowFigures {
            devices: found.devices,
            layers: found.layers,
            network: found.network,
            cpu: found.cpu,
            paths: found.paths,
            figures: figures::between(&found.before, &found.after),
            series: found.series,
            pauses,
            counted_for: found.counted_for,
            warnings: found.warnings,
        })
    }

    /// Calls a function, samples the system's gauges during the measured part, and makes the system compact everything
    /// where the plan says so.
    pub(super) fn sampled<T>(&self, plan: &CellPlan<'_>, act: impl FnOnce() -> T) -> T {
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| self.sample(plan.scale.time, &ended));
            if let Some(share) = plan.workload.compact_at {
                let whole = plan.study.run.duration;
                let ended = &ended;
                scope.spawn(move || self.compact(whole.mul_f64(share), whole, ended));
            }
            let outcome = act();
            ended.store(true, Ordering::Relaxed);
            outcome
        })
    }

    /// Makes the system compact everything once `time` has passed since the measurement began. It has until the end of
    /// the measurement, and need not be done by then.
    fn compact(&self, time: Duration, whole: Duration, ended: &AtomicBool) {
        while !ended.load(Ordering::Relaxed) {
            std::thread::sleep(WATCH_INTERVAL);
            let Some(start) = self.lock().since else { continue };
            if start.elapsed() >= time {
                // A system that this broke reports it at the end of the cell.
                let _ = self.servers.compact(whole.saturating_sub(start.elapsed()));
                return;
            }
        }
    }

    /// The system's last gauges; nothing outside of the window.
    pub(super) fn latest_gauges(&self) -> BTreeMap<String, f64> {
        let found = self.lock();
        let latest = found.series.last().filter(|_| found.since.is_some());
        latest.map_or_else(BTreeMap::new, |latest| latest.figures.clone())
    }

    fn sample(&self, time_scale: f64, ended: &AtomicBool) {
        // The series counts modelled seconds; this thread sleeps on the wall clock.
        let interval = Duration::from_secs_f64(self.interval_s * time_scale).max(SAMPLE_INTERVAL_MIN);
        let mut next = None;
        while !ended.load(Ordering::Relaxed) {
            std::thread::sleep(WATCH_INTERVAL);
            let Some(start) = self.lock().since else { continue };
            if next.is_some_and(|next| Instant::now() < next) {
                continue;
            }
            // A system that can't report gauges any more says so when the cell ends.
            let Ok(figures) = self.servers.gauges() else {
                // A node that goes down or comes back may not answer for a while.
                if self.nodes.is_none() {
                    return;
                }
                next = Some(Instant::now() + interval);
                continue;
            };
            if figures.is_empty() {
                return;
            }
            let t_s = start.elapsed().as_secs_f64() / time_scale;
            let mut found = self.lock();
            // The window may have ended while the system was queried.
            if found.since.is_some() {
                found.series.push(SystemSample { t_s, figures });
            }
            next = Some(Instant::now() + interval);
        }
    }

    fn lock(&self) -> MutexGuard<'_, WindowCounts> {
        self.found.lock()
    }

    fn note(&self, act: impl FnOnce(&mut WindowCounts) -> Result<(), CellError>) {
        let mut found = self.lock();
        if let Err(problem) = act(&mut found) {
            found.problem.get_or_insert(problem);
        }
    }
}

impl WindowHooks for WindowHandle<'_> {
    fn window_begins(&self, instant: Instant) {
        self.note(|found| {
            found.faults = found.schedule.take().map(|schedule| schedule.start(instant)).transpose()?;
            found.since = Some(instant);
            found.began = Some(instant);
            Ok(())
        });
        if let Some(nodes) = self.nodes {
            nodes.begin(instant);
        }
    }

    fn measuring_begins(&self) {
        // The devices are read at the edge itself, since a busy system takes seconds to report its metrics. A system
        // without load yet reports them first.
        let is_busy = self.lock().since.is_some();
        let count = || {
            self.note(|found| {
                found.cpu_began = self.cpu.as_ref().map(CpuMeter::read).transpose()?;
                self.storages.begin_measurement(self.interval_s)?;
                found.counted = Some(Instant::now());
                Ok(())
            });
        };
        if is_busy {
            count();
        }
        let before = self.servers.figures();
        self.note(|found| {
            found.before = before?;
            Ok(())
        });
        if !is_busy {
            count();
        }
    }

    fn measuring_ended(&self) {
        if let Some(nodes) = self.nodes {
            nodes.end();
        }
        self.note(|found| {
            // Devices first, as at the beginning.
            found.since = None;
            let ended = Instant::now();
            (found.devices, found.network) = self.storages.end_measurement()?;
            if let (Some(meter), Some(began)) = (&self.cpu, found.cpu_began.take()) {
                found.cpu = Some(meter.between(&began, &meter.read()?));
            }
            if let (Some(began), Some(counted)) = (found.began, found.counted.take()) {
                found.counted_for = ended.saturating_duration_since(counted);
                // The counts belong to the window, too.
                found.measured = Some(RunWindow::alone(began.min(counted), ended));
            }
            found.paths = self.storages.path_records();
            found.layers = self.storages.layers()?;
            if let Some(faults) = found.faults.take() {
                found.warnings.extend(faults.end()?);
            }
            found.after = self.servers.figures()?;
            // The inputs of predictions are extra: the measurement stands without them.
            if let Err(CellError::Failed(problem)) = self.storages.add_inputs(&mut found.devices, self.stop) {
                found.warnings.push(format!("the inputs of the devices were not recorded: {problem}"));
            }
            Ok(())
        });
    }
}
