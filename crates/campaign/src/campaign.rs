//! Plays as many seeds as time permits.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use underlay_sync::UnsimulatedMutex;

use crate::player::ScriptPlayer;
use crate::problem::CommandProblem;
use crate::script::{PlayedScript, ScriptReport};

/// A process plays this many scripts before another one replaces it: a script may leave threads behind.
const SCRIPTS_A_PROCESS: u64 = 25;

/// A campaign's task.
#[derive(Clone, Debug)]
pub struct CampaignPlan {
    pub first_seed: u64,
    /// At most this many.
    pub seeds: u64,
    pub time: Duration,
    /// Players at the same time.
    pub jobs: usize,
    pub stop_at_failure: bool,
}

/// A campaign's outcome.
#[derive(Debug)]
pub struct CampaignSummary<S> {
    pub seeds: u64,
    pub steps: u64,
    pub crashes: u64,
    pub acknowledged: u64,
    pub refused: u64,
    pub virtual_s: f64,
    pub duration: Duration,
    pub failures: Vec<(S, ScriptReport)>,
    /// The user had enough.
    pub was_interrupted: bool,
}

impl<S> CampaignSummary<S> {
    fn new() -> CampaignSummary<S> {
        CampaignSummary {
            seeds: 0,
            steps: 0,
            crashes: 0,
            acknowledged: 0,
            refused: 0,
            virtual_s: 0.0,
            duration: Duration::ZERO,
            failures: Vec::new(),
            was_interrupted: false,
        }
    }
}

impl<S: PlayedScript> CampaignSummary<S> {
    fn add(&mut self, script: &S, report: &ScriptReport) {
        self.seeds += 1;
        self.steps += report.steps;
        self.crashes += report.crashes;
        self.acknowledged += report.acknowledged;
        self.refused += report.refused;
        self.virtual_s += report.virtual_s;
        if report.failure.is_some() {
            self.failures.push((script.clone(), report.clone()));
        }
    }
}

/// Plays the scripts that `generate` makes of seeds until time or seeds run out, or the user stops it. `start` starts a
/// player; `tell` gets each script after it was played.
///
/// # Errors
/// When no process can be started, and the errors of `tell`.
pub fn run<S: PlayedScript>(
    plan: &CampaignPlan,
    start: impl Fn() -> Result<ScriptPlayer<S>, CommandProblem> + Sync,
    generate: impl Fn(u64) -> S + Sync,
    tell: impl Fn(&CampaignSummary<S>, &S, &ScriptReport) -> Result<(), CommandProblem> + Sync,
) -> Result<CampaignSummary<S>, CommandProblem> {
    let began = Instant::now();
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let summary = UnsimulatedMutex::new(CampaignSummary::new());
    let play = || -> Result<(), CommandProblem> {
        loop {
            let mut player = start()?;
            for _ in 0..SCRIPTS_A_PROCESS {
                if stop.load(Ordering::SeqCst) {
                    return Ok(());
                }
                let number = next.fetch_add(1, Ordering::SeqCst);
                let is_over = number >= plan.seeds || began.elapsed() >= plan.time;
                let Some(seed) = plan.first_seed.checked_add(number).filter(|_| !is_over) else {
                    return Ok(());
                };
                let script = generate(seed);
                let report = player.play(&script)?;
                let has_failed = report.failure.is_some();
                let mut summary = summary.lock();
                summary.add(&script, &report);
                summary.duration = began.elapsed();
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
    // The other players would fail in the same way.
    let work = || play().inspect_err(|_| stop.store(true, Ordering::SeqCst));
    let jobs = (plan.jobs.max(1) as u64).min(plan.seeds);
    let outcome: Result<(), CommandProblem> = std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..jobs).map(|_| std::thread::Builder::new().spawn_scoped(scope, work)).collect();
        workers.into_iter().try_for_each(|worker| {
            let worker = worker.map_err(|error| {
                CommandProblem::Missing(format!("no thread can be started: {error}; use fewer --jobs"))
            })?;
            worker
                .join()
                .unwrap_or_else(|_| Err(CommandProblem::Bug("a campaign's thread has panicked".into())))
        })
    });
    let mut summary = summary.into_inner();
    summary.duration = began.elapsed();
    match outcome {
        Err(CommandProblem::Interrupted) => summary.was_interrupted = true,
        outcome => outcome?,
    }
    Ok(summary)
}
