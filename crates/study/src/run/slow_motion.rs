//! The slow-motion factor of a run. It is chosen before the first cell, and raised when this host turns out to be too
//! slow.

use std::iter;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use underlay_attach::{AttachError, ResourceRegistry, ServedStorage};
use underlay_record::{ChosenBy, GivenUp, RunHeader, SlowMotion};

use super::{RunError, RunObserver, RunOptions};
use crate::machine::{self, ChosenFactor, CpuPlacement};
use crate::selection::RunSelections;
use crate::spec::Study;

/// A run begins again at most this often.
const MAX_GIVEN_UP: usize = 3;

/// A study at its factor.
pub(super) struct DilatedStudy {
    pub study: Study,
    pub slow_motion: SlowMotion,
    pub placement: Option<CpuPlacement>,
}

/// Finds the factor that a run begins with, and explains it. `expected_s` is how long the selected part of the study
/// takes at its factor.
pub(super) fn begin(
    study: &Study,
    options: &RunOptions,
    registry: &ResourceRegistry,
    observer: &dyn RunObserver,
    stop: &AtomicBool,
    expected_s: &dyn Fn(&Study) -> f64,
) -> Result<DilatedStudy, RunError> {
    if let Some(time) = options.time {
        check_pace(study, time)?;
        check_faults(&study.with_slow_motion(time))?;
        check_jobs(&study.with_slow_motion(time))?;
    }
    if study.machine.is_some()
        && let Some(pid) = others_process(registry)
    {
        observer.notice(&format!(
            "process {pid} serves modelled storage on this host too: the two compete for CPU time"
        ));
    }
    let placement = placement(study, registry, None, observer)?;
    check_stop(stop)?;
    if let Some(busy) = placement.as_ref().and_then(machine::busy_with_others) {
        observer.notice(&busy);
    }
    let chosen = match (options.time, &placement) {
        (Some(time), _) => {
            machine::weigh(&study.with_slow_motion(time), placement.as_ref(), ChosenBy::CommandLine)
        }
        (None, Some(here)) if study.leaves_time_open => {
            let trying = &mut |time| {
                observer.preparing(&format!("trying the fastest device in slow motion x{time}"));
            };
            let chosen = machine::choose(study, here, registry, stop, trying);
            chosen.map_err(refused)?.ok_or(RunError::Stopped)?
        }
        (None, _) => machine::weigh(study, placement.as_ref(), ChosenBy::Study),
    };
    let ChosenFactor { time, slow_motion, notice } = chosen;
    // A factor that was not requested gives way to the next one that all jobs support.
    let time = match slow_motion.chosen_by {
        ChosenBy::Host => permitted_from(study, time).unwrap_or(time),
        _ => time,
    };
    if let Some(notice) = &notice {
        observer.notice(notice);
    }
    if slow_motion.chosen_by != ChosenBy::Host
        && let Some(here) = &placement
        && let Some(warning) = machine::weigh_devices(&study.with_slow_motion(time), here, registry, stop)
    {
        observer.notice(&warning);
    }
    check_stop(stop)?;
    let paced = study.with_slow_motion(time);
    check_jobs(&paced)?;
    if slow_motion.chosen_by == ChosenBy::Host {
        let reason = reason(time, &slow_motion, study.modelled_cores());
        observer.slowed(&reason, Duration::from_secs_f64(expected_s(&paced)));
    }
    tell_what_stays(&paced, observer);
    Ok(DilatedStudy { study: paced, slow_motion, placement })
}

/// Reports which clocks of the study's systems don't follow its factor.
pub(super) fn tell_what_stays(paced: &Study, observer: &dyn RunObserver) {
    for sentence in machine::left_at_wall_time(paced) {
        observer.notice(&format!("note: at slow motion x{}: {sentence}", paced.scale.time));
    }
}

fn check_stop(stop: &AtomicBool) -> Result<(), RunError> {
    if stop.load(Ordering::Relaxed) { Err(RunError::Stopped) } else { Ok(()) }
}

/// A process of another run or mount that has modelled storage attached.
fn others_process(registry: &ResourceRegistry) -> Option<u32> {
    let served = ServedStorage::all(registry);
    served.iter().filter(|served| !served.is_orphaned()).find_map(|served| Some(served.owner()?.process.pid))
}

/// Real storage can't be slowed down.
fn check_pace(study: &Study, time: f64) -> Result<(), RunError> {
    match study.storages.iter().find(|storage| !storage.is_modelled() && time > 1.0) {
        None => Ok(()),
        Some(storage) => Err(RunError::Mistake(format!(
            "[storage.{}] is real storage, which --time {time} can't slow down: leave --time out",
            storage.name
        ))),
    }
}

/// Whether fio's jobs can run at the study's factor. Its own check may have used another factor, or none.
fn check_jobs(study: &Study) -> Result<(), RunError> {
    for workload in &study.workloads {
        if let Some(benchmark) = &workload.benchmark {
            let refusal =
                |problem: String| RunError::Mistake(format!("[workload.{}]: {problem}", workload.name));
            benchmark.plan_at(study.scale.time).map(drop).map_err(refusal)?;
        }
    }
    Ok(())
}

/// Whether faults still take place while cells are measured. The study's own check used another factor.
fn check_faults(study: &Study) -> Result<(), RunError> {
    // The length of a batch job is not known in advance.
    if study.workloads.iter().all(|workload| !workload.jobs.is_empty()) {
        return Ok(());
    }
    let measured = study.run.duration.div_f64(study.scale.time);
    match study.faults.iter().find(|fault| fault.at >= measured) {
        None => Ok(()),
        Some(fault) => Err(RunError::Mistake(format!(
            "[fault.{}] comes after the measurement has ended, which is {:.3} s of modelled time at --time {}: lengthen `duration`",
            fault.name,
            measured.as_secs_f64(),
            study.scale.time
        ))),
    }
}

/// Warns if the modelled cores no longer fit on this host at a run's factor.
pub(super) fn warn_if_too_small(
    paced: &Study,
    run: &RunHeader,
    placement: Option<&CpuPlacement>,
    observer: &dyn RunObserver,
) {
    let chosen_by = run.slow_motion.as_ref().map_or(ChosenBy::Study, |chosen| chosen.chosen_by);
    if let Some(notice) = machine::weigh(paced, placement, chosen_by).notice {
        observer.notice(&notice);
    }
}

/// The purpose of each CPU of this host, where the study names the modelled machine. `known_us` is the speed that the
/// run's cells were compared with so far.
pub(super) fn placement(
    study: &Study,
    registry: &ResourceRegistry,
    known_us: Option<f64>,
    observer: &dyn RunObserver,
) -> Result<Option<CpuPlacement>, RunError> {
    if study.machine.is_none() {
        return Ok(None);
    }
    observer.preparing("measuring this host's free CPU time");
    let placement = CpuPlacement::measure().map_err(refused)?;
    Ok(Some(placement.with_speed(registry, &super::machine::describe().cpu, known_us)))
}

/// The factor at which a run may begin again. `None` where the factor was given, it began again too often, or a job
/// does not support any.
pub(super) fn slower(study: &Study, run: &RunHeader) -> Option<f64> {
    let chosen = run.slow_motion.as_ref()?;
    let is_open = study.leaves_time_open && chosen.chosen_by == ChosenBy::Host;
    if !is_open || chosen.given_up.len() >= MAX_GIVEN_UP {
        return None;
    }
    // Twice as slow: a smaller step would not mend a failure that a cell had twice, and each step costs all cells
    // measured until then.
    permitted_from(study, machine::next_factor(machine::next_factor(run.scale.time)?)?)
}

/// The first factor from `time` on that the whole study supports; `None` where there is none, since measured cells are
/// worth more than a start that is refused. A fio job may have rates that only some factors divide.
fn permitted_from(study: &Study, time: f64) -> Option<f64> {
    let is_permitted = |time: &f64| {
        let paced = study.with_slow_motion(*time);
        check_jobs(&paced).is_ok() && check_faults(&paced).is_ok()
    };
    iter::successors(Some(time), |time| machine::next_factor(*time)).find(is_permitted)
}

pub(super) fn beginning_again(given_up: &GivenUp, next: f64, run: &RunHeader) -> String {
    let restarts = run.slow_motion.as_ref().map_or(0, |chosen| chosen.given_up.len()) + 1;
    let last = if restarts == MAX_GIVEN_UP {
        ". Cells that this host can't keep up with even then stay doubtful"
    } else {
        ""
    };
    format!(
        "slow motion x{} is too fast for this host: starting over at x{next} (restart {restarts} of {MAX_GIVEN_UP}), because of {}: {}{last}",
        given_up.time, given_up.cell, given_up.finding
    )
}

/// The factor to begin again at: `next`, or more if the CPUs that are idle now require it and the study's jobs support
/// it.
pub(super) fn fitting(study: &Study, next: f64, placement: Option<&CpuPlacement>) -> f64 {
    let cores_need = study.modelled_cores().zip(placement);
    let need = cores_need.and_then(|(cores, here)| machine::factor_for(cores, here));
    need.filter(|need| *need > next).and_then(|need| permitted_from(study, need)).unwrap_or(next)
}

/// Lets a run continue at the factor of `paced`, with the same cells.
///
/// # Errors
/// When the cells that the run is limited to are not in the study.
pub(super) fn enter(
    run: &mut RunHeader,
    paced: &Study,
    placement: Option<&CpuPlacement>,
    given_up: GivenUp,
) -> Result<(), RunError> {
    run.scale = paced.scale;
    run.warmup_wall_s = paced.run.warmup.as_secs_f64();
    run.duration_wall_s = paced.run.duration.as_secs_f64();
    // A resumed run must find the plan that follows from its limits.
    run.plan = RunSelections::new(paced, &run.limits).map_err(RunError::Mistake)?.plan(paced);
    if let Some(slow_motion) = &mut run.slow_motion {
        let now = machine::weigh(paced, placement, slow_motion.chosen_by).slow_motion;
        slow_motion.reference_probe_us = now.reference_probe_us;
        slow_motion.cores_need = now.cores_need;
        slow_motion.cpus_here = now.cpus_here;
        slow_motion.given_up.push(given_up);
    }
    Ok(())
}

/// CPUs that slow down by less under load count as unchanged.
const WORTH_TELLING: f64 = 0.02;

/// `slow motion x24: this host has 0.85 idle CPUs for 16 modelled cores, which needs x18.9; the fastest device keeps
/// its latencies`
fn reason(time: f64, slow_motion: &SlowMotion, modelled_cores: Option<u32>) -> String {
    let mut reasons = Vec::new();
    if let (Some(cores), Some(needed), Some(cpus)) =
        (modelled_cores, slow_motion.cores_need, slow_motion.cpus_here)
    {
        let cores = if cores == 1 { "1 modelled core".to_owned() } else { format!("{cores} modelled cores") };
        // The part of the factor that this accounts for.
        let slower = needed * cpus / f64::from(modelled_cores.unwrap_or(1));
        let slower = match needed > 1.0 && slower > 1.0 + WORTH_TELLING {
            true => format!(", {slower:.2} times slower when all of them compute"),
            false => String::new(),
        };
        reasons
            .push(format!("this host has {cpus:.2} idle CPUs{slower} for {cores}, which needs x{needed:.1}"));
    }
    if let Some(needed) = slow_motion.devices_need {
        reasons.push(match slow_motion.cores_need {
            // The next factor is at most half as much again.
            Some(cores) if needed <= cores * 1.5 => "the fastest device keeps its latencies".to_owned(),
            _ => format!("the fastest device keeps its latencies from x{needed} on"),
        });
    }
    format!("slow motion x{time}: {}", reasons.join("; "))
}

fn refused(error: AttachError) -> RunError {
    match error {
        AttachError::Missing(missing) => RunError::Missing(missing),
        other => RunError::Failed(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a fio job whose requests come at random, for which fio accepts only whole numbers per second.
    fn study(rate_iops: u32) -> Study {
        let text = format!(
            "name = \"a\"\nbaseline = \"a\"\n[system.s]\nkind = \"command\"\nmemory = \"1 GiB\"\n\
             [storage.a]\ndevices = [{{ medium = \"nvme-9300-max\" }}]\n[workload.w]\nkind = \"fio\"\n\
             job = \"[reads]\\nfilename={{data}}/file\\nrw=randread\\nrate_process=poisson\\nrate_iops={rate_iops}\"\n\
             [machine]\ncores = 4\n"
        );
        Study::parse("a.toml", &text, false).unwrap_or_else(|mistakes| panic!("{mistakes}"))
    }

    #[test]
    fn factor_refused_by_fio_job_is_skipped() {
        let study = study(480);
        assert_eq!(permitted_from(&study, 16.0), Some(16.0));
        assert_eq!(permitted_from(&study, 64.0), Some(96.0), "480 / 64 is no whole number");
    }

    #[test]
    fn job_refusing_slower_motion_keeps_factor() {
        assert_eq!(permitted_from(&study(1), 2.0), None);
    }
}
