//! Batch jobs. A system starts once on fresh storage and runs its jobs one after another. Each job is a cell with its
//! own record.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use underlay_record::{CellStatus, DeviceId, DeviceSample, JobRecord, RunRecord};
use underlay_storage::stack::PacingMode;
use underlay_systems::system::{JobProgress, JobRequest};
use underlay_workload::RunAftermath;
use underlay_workload::machine_use::MachineSnapshot;

use super::attached::CellStorages;
use super::cell::{CellObservation, RunContext, explain, find_system, prepare};
use super::cell_folder::CellFolder;
use super::cell_plan::CellPlan;
use super::certificate::{CallerKind, CertificateEvidence, LostTasks, certify};
use super::cpu::CpuMeter;
use super::drive::WindowHooks as _;
use super::feed::{self, CellSource};
use super::stopwatch::WallPart;
use super::traffic::CellTraffic;
use super::window::WindowHandle;
use super::{CellError, LiveCell, RunObserver, SETTLE_LIMIT, check_stop, events, faults, storage};
use crate::session::ServerSession;
use crate::session::nodes::{NodeDesk, all_serve};
use crate::spec::{InitialCacheState, JobSpec};

/// The sampling interval of devices in wall time, since the length of a job is unknown.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);
/// Samples of a long job are merged until at most this many are left.
const SAMPLES_MAX: usize = 240;

/// Receives a job's record as soon as the job is over.
pub(super) type JobKeeper<'a> = &'a mut dyn FnMut(&CellPlan<'_>, RunRecord) -> Result<(), CellError>;

impl RunContext {
    /// Runs the jobs of a [group](crate::plan::groups) in order.
    ///
    /// # Errors
    /// The error that kept the jobs without a record from running. A failed job is not an error: its record says so,
    /// and the next one runs if the system works.
    pub(super) fn run_jobs(
        &mut self,
        group: &[CellPlan<'_>],
        observer: &dyn RunObserver,
        stop: &AtomicBool,
        keep: JobKeeper<'_>,
    ) -> Result<(), CellError> {
        let Some(first) = group.first() else { return Ok(()) };
        let system = find_system(first)?;
        self.clock().enter(WallPart::Prepare);
        prepare(system, observer)?;
        self.measure_path(first, observer)?;
        check_stop(stop)?;
        self.clock().enter(WallPart::Start);
        observer.cell_started(first.planned, first.position as usize + 1);
        let _confined = self.confine(first)?;
        let folder = self.work().join("cell");
        let _folder = CellFolder::make(&folder, self.registry())?;
        let storages = CellStorages::attach(first, None, &folder, self.registry())?;
        let mut warnings: Vec<String> = self.floor_unknown(first).into_iter().collect();
        storages.set_pace(PacingMode::Immediate)?;
        let session = self.start(first, system, &storages, &folder, &mut warnings, stop)?;
        let started = JobEnvironment { session, storages, folder: folder.clone(), warnings };
        for (number, plan) in group.iter().enumerate() {
            check_stop(stop)?;
            observer.cell_started(plan.planned, plan.position as usize + 1);
            let begun = Instant::now();
            let record = match self.run_job(plan, &started, observer, stop) {
                Ok(record) => record,
                Err(CellError::Failed(reason)) => {
                    check_stop(stop)?;
                    self.record(plan, CellStatus::Failed { reason }, begun.elapsed())
                }
                Err(other) => return Err(other),
            };
            let failed = matches!(record.status, CellStatus::Failed { .. });
            let nodes_went = record.node_events.iter().any(|event| event.away_s.is_some());
            let record = RunRecord { wall: Some(self.clock().take_cell()), ..record };
            keep(plan, record)?;
            self.clock().enter(WallPart::Settle);
            // Nothing follows the last job, and everything is cleared away.
            if number + 1 < group.len() {
                let limit = plan.job.map_or(SETTLE_LIMIT, |job| job.limit.max(SETTLE_LIMIT));
                let is_ready = started.is_ready((failed || nodes_went).then_some(limit), stop);
                check_stop(stop)?;
                is_ready.map_err(|error| match error {
                    CellError::Failed(cause) => {
                        let job = plan.cell().mix_or_job();
                        CellError::Failed(format!("no job can follow an earlier one, {job}: {cause}"))
                    }
                    other => other,
                })?;
            }
        }
        self.clock().enter(WallPart::Restore);
        let JobEnvironment { session, storages, .. } = started;
        // The metrics are on record. Later failures are reported, but are not findings.
        let cleared = session.finish().map(drop).map_err(CellError::from);
        if let Err(CellError::Failed(problem)) = cleared.and(storages.detach()) {
            observer.preparing(&format!("after the jobs of {}: {problem}", first.system.name));
        }
        // Every job has its record. This time counts for the run, and for no later cell.
        let _ = self.clock().take_cell();
        Ok(())
    }

    /// One job, measured from its submission to its end.
    fn run_job(
        &self,
        plan: &CellPlan<'_>,
        started: &JobEnvironment,
        observer: &dyn RunObserver,
        stop: &AtomicBool,
    ) -> Result<RunRecord, CellError> {
        let JobEnvironment { session, storages, warnings, .. } = started;
        let servers = session.servers();
        let job = plan.job.expect("only jobs are run as such");
        let request = request(plan, job);
        let watch = |progress: &JobProgress| {
            observer.live(&LiveCell {
                phase: progress.phase.clone().into(),
                progress: Some(progress.done.clamp(0.0, 1.0)),
                ..LiveCell::default()
            });
            !stop.load(Ordering::Relaxed)
        };
        self.clock().enter(WallPart::AroundJobs);
        let prepared = servers.prepare_job(&request, &watch);
        check_stop(stop)?;
        prepared.map_err(|error| explain(error.to_string(), session, storages))?;
        // No job pays for writes that the previous one left behind.
        storages.write_out()?;
        if plan.study.run.cache == InitialCacheState::Cold {
            underlay_attach::page_cache::drop_file_caches(&storages.paths())?;
            session.drop_caches(storages.servers().iter().map(|attached| attached.paths()))?;
        }
        storages.set_pace(PacingMode::Modelled)?;
        session.hold_cpu()?;
        let interval_s = SAMPLE_INTERVAL.as_secs_f64() / plan.scale.time;
        let schedule = faults::FaultSchedule::new(plan, storages.servers().first())?;
        let events = events::concerning(plan.study, plan.system);
        let count = || drop(servers.figures());
        let desk = events::desk(servers, &count, plan.scale.time);
        let window = WindowHandle::new(
            session,
            storages,
            CpuMeter::new(plan, self.placement(), session),
            interval_s,
            (schedule, desk.as_ref()),
            stop,
        );
        let oom_kills = session.oom_kills();
        let begun = Instant::now();
        let machine = MachineSnapshot::take();
        let source = CellSource::new(plan, session, storages, &started.folder, self.share(plan))
            .measured(&window, desk.as_ref());
        let outcome = feed::sampled(observer, &source, || {
            events::attended(desk.as_ref(), &events, self.registry(), stop, || {
                window.sampled(plan, || {
                    window.measuring_begins();
                    window.window_begins(Instant::now());
                    self.clock().enter(WallPart::Job);
                    let outcome = servers.run_job(&request, &watch);
                    self.clock().enter(WallPart::AroundJobs);
                    window.measuring_ended();
                    outcome
                })
            })
        })?;
        drop(source);
        let steal_share = machine.use_until(&MachineSnapshot::take()).steal_share;
        // The devices keep their pace: the record has this time separate from the job's duration.
        let drain = || {
            let drained = match &outcome {
                Some(Ok(_)) => servers.drain_job(&request, &watch),
                _ => Ok(None),
            };
            // In any case, the rest need not happen in modelled time.
            let _ = storages.set_pace(PacingMode::Immediate);
            let _ = session.release_cpu();
            drained
        };
        // The next job should find all nodes up, and this job's output may have to wait for one. Whether all came back
        // is checked before the next job; the reason why one did not is in this job's record.
        let (restored, drained) = match &desk {
            Some(desk) => desk.restore_while(stop, drain),
            None => (Ok(()), drain()),
        };
        check_stop(stop)?;
        let faults = faults::note(&faults::concerning(plan.study, &plan.storage));
        let node_events = desk.as_ref().map_or_else(Vec::new, NodeDesk::events);
        let job = match outcome {
            Some(Ok(job)) => job,
            Some(Err(error)) => {
                let notes = [faults, events::note(&events), restored.err()];
                let note: String = notes.iter().flatten().map(|note| format!("\n{note}")).collect();
                return Err(explain(error.to_string() + &note, session, storages));
            }
            None => {
                return Err(CellError::Failed(format!("{} runs no batch jobs", plan.system.kind)));
            }
        };
        // The cause may be a node that did not come back.
        let explained = |error: String| match &restored {
            Ok(()) => explain(error, session, storages),
            Err(reason) => explain(format!("{error}\n{reason}"), session, storages),
        };
        let cache = drained.map_err(|error| explained(error.to_string()))?;
        let mut job = JobRecord { cache, ..job };
        servers.complete_job(&mut job);
        // A job that succeeded without doing anything has failed.
        let verified = servers.verify_job(&request, &watch);
        check_stop(stop)?;
        verified.map_err(|error| explained(error.to_string()))?;
        storages.health()?;
        // A supervisor restarts killed tasks, and the job still succeeds.
        session.check_oom_kills(oom_kills, "while the job ran").map_err(&explained)?;
        let mut figures = window.taken(None)?;
        for device in &mut figures.devices {
            device.series = thinned(std::mem::take(&mut device.series));
        }
        let certificate = certify(&CertificateEvidence {
            devices: &figures.devices,
            paths: &figures.paths,
            floor_us: self.floor_us(plan),
            cpu: figures.cpu.as_ref(),
            callers: CallerKind::Nobody,
            pauses: Some(&figures.pauses),
            lost_tasks: Some(LostTasks {
                count: job.lost_tasks,
                nodes_went: node_events.iter().any(|event| event.away_s.is_some()),
            }),
            traffic: CellTraffic::new(plan, storages, &figures.devices, &[]),
            aftermath: RunAftermath { steal_share, ..RunAftermath::default() },
            memory_enforced: (!plan.storage.is_elsewhere()).then_some(session.memory_enforced_by().is_some()),
            time_scale: plan.scale.time,
            ..CertificateEvidence::default()
        });
        let observed = CellObservation {
            taken: figures,
            settings: servers.applied_settings(),
            topology: servers.topology(),
            memory_enforced_by: session.memory_enforced_by(),
            memory_peak_bytes: session.memory_peak_bytes(),
            dirty_limits: storages.dirty_limits().to_vec(),
            attachment: storages.name(),
            search: None,
            searching: None,
            warnings: warnings
                .iter()
                .cloned()
                .chain(faults)
                .chain(events::problems(&node_events))
                .chain(restored.err())
                .collect(),
            node_events,
            read_back: None,
        };
        let mut record = observed.into_record(self, plan, begun.elapsed());
        record.certificate = Some(certificate);
        record.job = Some(to_modelled_time(job, plan));
        record.mark_disturbed();
        Ok(record)
    }
}

/// The environment of a group's jobs. The system is dropped before its storage.
struct JobEnvironment {
    session: ServerSession,
    storages: CellStorages,
    folder: PathBuf,
    /// For every record.
    warnings: Vec<String>,
}

impl JobEnvironment {
    /// Whether another job may run on it: everything works, all nodes are up, and nothing is going on that the next job
    /// would pay for. A system gets this long to settle after an earlier job.
    fn is_ready(&self, settles_within: Option<Duration>, stop: &AtomicBool) -> Result<(), CellError> {
        let servers = self.session.servers();
        servers.health().map_err(|error| CellError::Failed(error.to_string()))?;
        servers.nodes().map_or(Ok(()), all_serve).map_err(CellError::Failed)?;
        self.storages.health()?;
        if let Some(limit) = settles_within {
            self.storages.set_pace(PacingMode::Immediate)?;
            self.session.settle(limit, stop)?;
        }
        Ok(())
    }
}

fn request(plan: &CellPlan<'_>, job: &JobSpec) -> JobRequest {
    JobRequest {
        name: job.name.clone(),
        data_bytes: plan.data_bytes_here,
        maps: job.maps,
        reduces: job.reduces,
        compressibility: job.compressibility,
        seed: plan.seed,
        limit: job.limit,
    }
}

/// Converts a job's record from wall time: divides slow motion out and names the devices.
fn to_modelled_time(mut job: JobRecord, plan: &CellPlan<'_>) -> JobRecord {
    let time = plan.scale.time;
    job.wall_s = job.duration_s;
    job.duration_s /= time;
    job.phases_s.values_mut().for_each(|phase_s| *phase_s /= time);
    for stage in &mut job.stages {
        let of_tasks = &mut stage.time;
        let times = [
            &mut stage.began_s,
            &mut stage.duration_s,
            &mut of_tasks.compute_s,
            &mut of_tasks.input_wait_s,
            &mut of_tasks.shuffle_s,
            &mut of_tasks.output_s,
            &mut of_tasks.commit_s,
        ];
        times.into_iter().for_each(|one| *one /= time);
    }
    if let Some(cache) = &mut job.cache {
        cache.drain_s /= time;
    }
    let devices = storage::devices_of_directories(&plan.storage);
    let roles = plan.roles();
    for directory in &mut job.directories {
        let index = directory.directory as usize;
        // A role's data on separate storage is on none of the compared devices.
        directory.device = match roles.iter().find(|(role, _)| *role == directory.role) {
            Some((role, own)) => {
                let device = storage::devices_of_directories(own).get(index).cloned().flatten();
                device.map(|name| DeviceId { role: Some((*role).to_owned()), ..DeviceId::new(name) })
            }
            None => devices.get(index).cloned().flatten().map(DeviceId::new),
        };
    }
    job
}

/// Merges samples in pairs until there are few enough. Each stands for the same time, except for the last.
fn thinned(mut series: Vec<DeviceSample>) -> Vec<DeviceSample> {
    while series.len() > SAMPLES_MAX {
        series = series.chunks(2).map(together).collect();
    }
    series
}

fn together(samples: &[DeviceSample]) -> DeviceSample {
    let mean =
        |pick: fn(&DeviceSample) -> f64| samples.iter().map(pick).sum::<f64>() / samples.len().max(1) as f64;
    DeviceSample {
        t_s: samples.last().map_or(0.0, |last| last.t_s),
        read_iops: mean(|one| one.read_iops),
        write_iops: mean(|one| one.write_iops),
        read_bytes_per_s: mean(|one| one.read_bytes_per_s),
        write_bytes_per_s: mean(|one| one.write_bytes_per_s),
        queue_depth: mean(|one| one.queue_depth),
        busy: mean(|one| one.busy),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn thinning_keeps_what_was_moved(rates in prop::collection::vec(0.0..1e9f64, 0..2000)) {
            let series: Vec<DeviceSample> = rates
                .iter()
                .enumerate()
                .map(|(index, &rate)| DeviceSample {
                    t_s: (index + 1) as f64,
                    read_bytes_per_s: rate,
                    ..DeviceSample::default()
                })
                .collect();
            let moved = |series: &[DeviceSample]| {
                let starts = [0.0].into_iter().chain(series.iter().map(|one| one.t_s));
                series.iter().zip(starts).map(|(one, from)| one.read_bytes_per_s * (one.t_s - from)).sum::<f64>()
            };
            let few = thinned(series.clone());
            prop_assert!(few.len() <= SAMPLES_MAX);
            prop_assert_eq!(few.last().map(|one| one.t_s), series.last().map(|one| one.t_s));
            // The last sample may stand for less time than the one that it was merged with.
            let slack = 1e-6 * moved(&series) + if rates.len() > SAMPLES_MAX { 8e9 } else { 0.0 };
            prop_assert!((moved(&few) - moved(&series)).abs() <= slack);
        }
    }
}
