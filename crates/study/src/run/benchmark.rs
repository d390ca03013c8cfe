//! A user's benchmark: storage attached, the program started within its budget, its command run to the end and
//! observed.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use underlay_record::{DeviceActivity, LiveFigure, RunRecord};
use underlay_storage::stack::PacingMode;
use underlay_systems::system::BenchmarkRequest;
use underlay_workload::RunAftermath;
use underlay_workload::machine_use::MachineSnapshot;

use super::attached::CellStorages;
use super::cell::{CellObservation, RunContext, explain, find_system, prepare};
use super::cell_folder::{CellFolder, still_in_use};
use super::cell_plan::CellPlan;
use super::certificate::{CallerKind, CertificateEvidence, certify};
use super::cpu::CpuMeter;
use super::dataset::PreparedDatasets;
use super::directory::scratch_of;
use super::drive::WindowHooks as _;
use super::feed::{self, CellSource};
use super::kept_logs::KeptLogs;
use super::stopwatch::WallPart;
use super::traffic::CellTraffic;
use super::window::WindowHandle;
use super::{CellError, LiveCell, RunObserver, check_stop, faults};
use crate::session::ServerSession;
use crate::spec::{BenchmarkSpec, InitialCacheState};

/// The number of device samples over the running time that the study names.
const SAMPLES: f64 = 120.0;
const SAMPLE_MIN: Duration = Duration::from_millis(100);

impl RunContext {
    /// Runs a cell and returns its record. Everything that the cell made is gone afterwards, even on failure.
    pub(super) fn run_benchmark(
        &mut self,
        plan: &CellPlan<'_>,
        benchmark: &BenchmarkSpec,
        datasets: &mut PreparedDatasets,
        observer: &dyn RunObserver,
        stop: &AtomicBool,
    ) -> Result<RunRecord, CellError> {
        let system = find_system(plan)?;
        self.clock().enter(WallPart::Prepare);
        prepare(system, observer)?;
        self.measure_path(plan, observer)?;
        self.clock().enter(WallPart::Load);
        let source = match plan.begins_empty() {
            true => None,
            false => Some(datasets.images(plan, system, observer, stop)?),
        };
        self.clock().enter(WallPart::Start);
        let _confined = self.confine(plan)?;
        let folder = self.work().join("cell");
        let _folder = CellFolder::make(&folder, self.registry())?;
        check_stop(stop)?;
        observer.cell_started(plan.planned, plan.position as usize + 1);
        let begun = Instant::now();
        let storages = CellStorages::attach(plan, source.as_ref(), &folder, self.registry())?;
        storages.set_pace(PacingMode::Immediate)?;
        let mut warnings: Vec<String> = self.floor_unknown(plan).into_iter().collect();
        let session = self.start(plan, system, &storages, &folder, &mut warnings, stop);
        let logs = KeptLogs::new(self.records());
        let scratch = folder.join(scratch_of(0));
        let session = logs.keep_on_failure(plan, system, &scratch, session)?;
        let measured =
            self.measure_benchmark(plan, benchmark, (&session, &storages, &folder), observer, stop);
        let kept_logs = logs.keep(plan, &session.servers().logs());
        let (mut record, more) = match measured {
            Ok(measured) => measured,
            Err(error) => {
                let faults = faults::note(&faults::concerning(plan.study, &plan.storage));
                return Err(error.with(&faults.map_or_else(String::new, |note| format!("\n{note}"))));
            }
        };
        // Before detaching storage: a file system with open files can't be unmounted.
        logs.keep_on_failure(plan, system, &scratch, session.finish().map_err(CellError::from))?;
        record.warnings.extend(storages.clear_away()?.map(|in_use| still_in_use(&in_use)));
        record.wall_s = begun.elapsed().as_secs_f64();
        record.warnings.extend(warnings.into_iter().chain(more).chain(kept_logs.err()));
        Ok(record)
    }

    /// The command from its start to its end.
    fn measure_benchmark(
        &self,
        plan: &CellPlan<'_>,
        benchmark: &BenchmarkSpec,
        (session, storages, folder): (&ServerSession, &CellStorages, &Path),
        observer: &dyn RunObserver,
        stop: &AtomicBool,
    ) -> Result<(RunRecord, Option<String>), CellError> {
        let servers = session.servers();
        // No benchmark pays for writes that the start left behind.
        storages.write_out()?;
        if plan.study.run.cache == InitialCacheState::Cold {
            underlay_attach::page_cache::drop_file_caches(&storages.paths())?;
            session.drop_caches(storages.servers().iter().map(|attached| attached.paths()))?;
        }
        storages.set_pace(PacingMode::Modelled)?;
        session.hold_cpu()?;
        check_stop(stop)?;
        let schedule = faults::FaultSchedule::new(plan, storages.servers().first())?;
        let sample = plan.study.run.duration.div_f64(SAMPLES).max(SAMPLE_MIN);
        let cpu = CpuMeter::new(plan, self.placement(), session);
        let interval_s = sample.as_secs_f64() / plan.scale.time;
        let window = WindowHandle::new(session, storages, cpu, interval_s, (schedule, None), stop);
        let request = BenchmarkRequest {
            name: plan.workload.name.clone(),
            plan: benchmark.plan_at(plan.scale.time).map_err(CellError::Failed)?,
            data_bytes: plan.data_bytes_here,
            seed: plan.seed,
            duration: plan.study.run.duration,
            warmup: plan.study.run.warmup,
        };
        let machine = MachineSnapshot::take();
        let begun = Instant::now();
        let expected_s = (plan.study.run.warmup + plan.study.run.duration).as_secs_f64();
        let oom_kills = session.oom_kills();
        self.clock().enter(WallPart::Measure);
        window.measuring_begins();
        window.window_begins(Instant::now());
        let source =
            CellSource::new(plan, session, storages, folder, self.share(plan)).measured(&window, None);
        let outcome = feed::sampled(observer, &source, || {
            servers.run_benchmark(&request, &|printed| {
                let done = begun.elapsed().as_secs_f64() / expected_s;
                observer.live(&LiveCell {
                    phase: "measuring".into(),
                    progress: Some(done.min(1.0)),
                    figure: printed.map(|printed| LiveFigure {
                        value: printed.slow_motion.undone(printed.value, plan.scale.time),
                        name: printed.name,
                        unit: printed.unit,
                    }),
                    ..LiveCell::default()
                });
                !stop.load(Ordering::Relaxed)
            })
        });
        drop(source);
        if matches!(outcome, Some(Ok(_))) {
            window.measuring_ended();
        }
        self.clock().enter(WallPart::Restore);
        let steal_share = machine.use_until(&MachineSnapshot::take()).steal_share;
        // In any case, the rest need not happen in modelled time.
        let _ = storages.set_pace(PacingMode::Immediate);
        let _ = session.release_cpu();
        check_stop(stop)?;
        let measured = match outcome {
            Some(Ok(measured)) => measured,
            Some(Err(error)) => return Err(explain(error.to_string(), session, storages)),
            None => return Err(CellError::Failed(format!("{} runs no commands", plan.system.kind))),
        };
        servers.health()?;
        storages.health()?;
        // The command itself may have succeeded without the servers.
        session
            .check_oom_kills(oom_kills, "while the benchmark ran")
            .map_err(|reason| explain(reason, session, storages))?;
        let figures = window.taken(None)?;
        let scratch = folder.join(scratch_of(0));
        let traffic = CellTraffic::new(plan, storages, &figures.devices, &servers.processes())
            .map(|traffic| traffic.with_fio(plan, benchmark.plan.job.as_deref(), &scratch));
        let certificate = certify(&CertificateEvidence {
            devices: &figures.devices,
            paths: &figures.paths,
            floor_us: self.floor_us(plan),
            cpu: figures.cpu.as_ref(),
            callers: CallerKind::Programs,
            pauses: Some(&figures.pauses),
            traffic,
            aftermath: RunAftermath { steal_share, ..RunAftermath::default() },
            memory_enforced: Some(session.memory_enforced_by().is_some()),
            time_scale: plan.scale.time,
            ..CertificateEvidence::default()
        });
        let mut warnings = Vec::new();
        if plan.storage.is_modelled() && figures.devices.iter().all(is_idle) {
            warnings.push(
                "no device was asked for anything while the benchmark ran: its figures say nothing of the storage. Does it use {data}, or did \
                 everything come from the page cache?"
                    .to_owned(),
            );
        }
        let observed = CellObservation {
            taken: figures,
            settings: servers.applied_settings(),
            topology: None,
            memory_enforced_by: session.memory_enforced_by(),
            memory_peak_bytes: session.memory_peak_bytes(),
            dirty_limits: storages.dirty_limits().to_vec(),
            attachment: storages.name(),
            search: None,
            searching: None,
            node_events: Vec::new(),
            read_back: None,
            warnings,
        };
        let mut measured = measured;
        let notes = std::mem::take(&mut measured.notes);
        let mut record = observed.into_record(self, plan, begun.elapsed());
        record.warnings.extend(notes);
        record.certificate = Some(certificate);
        record.benchmark = Some(measured.without_slow_motion(plan.scale.time));
        record.mark_disturbed();
        Ok((record, faults::note(&faults::concerning(plan.study, &plan.storage))))
    }
}

/// Whether a device had no request.
fn is_idle(device: &DeviceActivity) -> bool {
    let totals = &device.totals;
    totals.reads + totals.writes + totals.flushes + totals.discards == 0
}
