//! Plays as many seeds as there is time for.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use underlay_sync::UnsimulatedMutex;

use crate::child::PlayerProcess;
use crate::problem::ScriptProblem;
use crate::run::ScriptReport;
use crate::script::{FaultScript, SimulationSubject, generate};

/// A process plays this many scripts before another one replaces it: each script leaves threads behind.
const SCRIPTS_A_PROCESS: u64 = 25;

/// A campaign's options.
#[derive(Clone, Debug)]
pub struct CampaignPlan {
    pub first_seed: u64,
    /// How many at most.
    pub seeds: u64,
    pub time: Duration,
    pub jobs: usize,
    /// One part of the stack; all of them in turn when it is left out.
    pub subject: Option<SimulationSubject>,
    /// A bug that is planted.
    pub bug: Option<String>,
    pub stop_at_failure: bool,
}

/// Its result.
#[derive(Debug, Default)]
pub struct CampaignSummary {
    pub seeds: u64,
    pub steps: u64,
    pub crashes: u64,
    pub acknowledged: u64,
    pub refused: u64,
    pub turns: u64,
    pub virtual_s: f64,
    pub took: Duration,
    pub failures: Vec<(FaultScript, ScriptReport)>,
    /// The user had enough.
    pub was_interrupted: bool,
}

impl CampaignSummary {
    fn add(&mut self, script: &FaultScript, report: &ScriptReport) {
        self.seeds += 1;
        self.steps += report.steps;
        self.crashes += report.crashes;
        self.acknowledged += report.acknowledged;
        self.refused += report.refused;
        self.turns += report.turns;
        self.virtual_s += report.virtual_s;
        if report.failure.is_some() {
            self.failures.push((script.clone(), report.clone()));
        }
    }
}

/// Plays scripts until the time or the seeds are used up, or the user has had enough. `start` gives processes, `tell`
/// is called with each script that was played.
///
/// # Errors
/// When no process can be had, and what `tell` says.
pub fn run(
    plan: &CampaignPlan,
    start: impl Fn(Option<&str>) -> Result<PlayerProcess, ScriptProblem> + Sync,
    tell: impl Fn(&CampaignSummary, &FaultScript, &ScriptReport) -> Result<(), ScriptProblem> + Sync,
) -> Result<CampaignSummary, ScriptProblem> {
    let began = Instant::now();
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let summary = UnsimulatedMutex::new(CampaignSummary::default());
    let play = || -> Result<(), ScriptProblem> {
        loop {
            let mut player = start(plan.bug.as_deref())?;
            for _ in 0..SCRIPTS_A_PROCESS {
                let number = next.fetch_add(1, Ordering::SeqCst);
                let is_over = number >= plan.seeds || began.elapsed() >= plan.time;
                let Some(seed) = plan.first_seed.checked_add(number).filter(|_| !is_over) else {
                    return Ok(());
                };
                if stop.load(Ordering::SeqCst) {
                    return Ok(());
                }
                let script = generate(seed, plan.subject);
                let report = player.play(&script)?;
                let has_failed = report.failure.is_some();
                let mut summary = summary.lock();
                summary.add(&script, &report);
                summary.took = began.elapsed();
                tell(&summary, &script, &report)?;
                drop(summary);
                if has_failed {
                    stop.fetch_or(plan.stop_at_failure, Ordering::SeqCst);
                    // The process may have ended.
                    break;
                }
            }
        }
    };
    // If one can't, the others can't either.
    let work = || play().inspect_err(|_| stop.store(true, Ordering::SeqCst));
    let jobs = (plan.jobs.max(1) as u64).min(plan.seeds);
    let outcome: Result<(), ScriptProblem> = std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..jobs).map(|_| std::thread::Builder::new().spawn_scoped(scope, work)).collect();
        workers.into_iter().try_for_each(|worker| {
            let worker = worker.map_err(|error| {
                ScriptProblem::Missing(format!("no thread can be started: {error}; use fewer --jobs"))
            })?;
            worker
                .join()
                .unwrap_or_else(|_| Err(ScriptProblem::Bug("a campaign's thread has panicked".into())))
        })
    });
    let mut summary = summary.into_inner();
    summary.took = began.elapsed();
    match outcome {
        Err(ScriptProblem::Interrupted) => summary.was_interrupted = true,
        outcome => outcome?,
    }
    Ok(summary)
}

/// What came of a campaign with a planted bug.
#[derive(Debug)]
pub struct BugProof {
    pub summary: CampaignSummary,
    /// Of the first script that failed, played without the bug.
    pub sound: Option<ScriptReport>,
}

impl BugProof {
    /// Whether the bug was found: a script that fails without it as well proves nothing.
    pub fn is_found(&self) -> bool {
        self.sound.as_ref().is_some_and(|report| report.failure.is_none())
    }
}

/// Plays the plan's seeds with its bug, and the first script that fails once more without it.
///
/// # Errors
/// As [`run`], and when the user wants no answer any more.
pub fn prove(
    plan: &CampaignPlan,
    start: impl Fn(Option<&str>) -> Result<PlayerProcess, ScriptProblem> + Sync,
) -> Result<BugProof, ScriptProblem> {
    let summary = run(plan, &start, |_, _, _| Ok(()))?;
    let sound = match summary.failures.first() {
        Some((script, _)) => Some(start(None)?.play(script)?),
        None => None,
    };
    Ok(BugProof { summary, sound })
}
