//! `underlay-simulate`: for developers of the volume stack.

use std::fmt::Display;
use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum, value_parser};
use tempfile::NamedTempFile;
use underlay_sync::planted::{self, PlantedBug};

use crate::campaign::{self, BugProof, CampaignPlan, CampaignSummary};
use crate::child::{self, PlayerProcess};
use crate::problem::{EXIT_CODES, ScriptProblem};
use crate::run::ScriptReport;
use crate::script::{FaultScript, SimulationSubject, generate};
use crate::shrink::shrink;
use crate::{limits, stop};

/// Runs the volume stack in virtual time, under faults in any combination.
#[derive(Parser)]
#[command(name = "underlay-simulate", version, after_help = EXIT_CODES)]
pub struct SimulateArguments {
    #[command(subcommand)]
    command: SimulateCommand,
}

#[derive(Subcommand)]
enum SimulateCommand {
    /// Play as many seeds as there is time for
    #[command(after_help = EXIT_CODES)]
    Run {
        /// Of this machine's clock
        #[arg(long, default_value = "60", value_parser = minutes)]
        minutes: Duration,
        /// At most so many; without it as many as there is time for
        #[arg(long, value_parser = value_parser!(u64).range(1..))]
        seeds: Option<u64>,
        #[arg(long, default_value_t = 1)]
        first_seed: u64,
        /// So many at once: 1 to 256
        #[arg(long, default_value_t = 2, value_parser = value_parser!(u16).range(1..=256))]
        jobs: u16,
        #[arg(long)]
        subject: Option<SimulationSubject>,
        /// Plant a bug, to see whether it is found; `prove --help` names them
        #[arg(long, value_parser = bug_of_name)]
        bug: Option<PlantedBug>,
        /// Go on after a failure
        #[arg(long)]
        keep_going: bool,
    },
    /// Play a script once, with the code's log on stderr, and print the outcome
    Play {
        script: PathBuf,
        /// Plant a bug; `prove --help` names them
        #[arg(long, value_parser = bug_of_name)]
        bug: Option<PlantedBug>,
    },
    /// Print the script of a seed
    Show {
        seed: u64,
        #[arg(long)]
        subject: Option<SimulationSubject>,
    },
    /// Play one seed, and make its script short if it fails
    Shrink {
        seed: u64,
        #[arg(long)]
        subject: Option<SimulationSubject>,
        /// Plant a bug; `prove --help` names them
        #[arg(long, value_parser = bug_of_name)]
        bug: Option<PlantedBug>,
        /// A new file for the script; without it, it is printed
        #[arg(short, long)]
        output: Option<PathBuf>,
    },
    /// Plant each bug in turn, and say after how many seeds it was found. The seed has to pass without the bug
    #[command(after_help = format!("Bugs: {}\n\n{EXIT_CODES}", bug_names()))]
    Prove {
        #[arg(long, default_value_t = 4000, value_parser = value_parser!(u64).range(1..))]
        seeds: u64,
        /// So many at once: 1 to 256
        #[arg(long, default_value_t = 2, value_parser = value_parser!(u16).range(1..=256))]
        jobs: u16,
        /// One bug alone
        #[arg(long, value_parser = bug_of_name)]
        bug: Option<PlantedBug>,
    },
    /// Play scripts from standard input: what the other commands start
    #[command(hide = true)]
    Player {
        #[arg(long, value_parser = bug_of_name)]
        bug: Option<PlantedBug>,
    },
}

/// Those that show in a part of the stack that this simulator plays: others have a simulator of their own.
fn bugs() -> impl Iterator<Item = PlantedBug> {
    PlantedBug::ALL.iter().copied().filter(|bug| SimulationSubject::from_str(bug.subject(), true).is_ok())
}

fn bug_names() -> String {
    bugs().map(PlantedBug::name).collect::<Vec<_>>().join(", ")
}

fn bug_of_name(name: &str) -> Result<PlantedBug, String> {
    let found = bugs().find(|bug| bug.name() == name);
    found.ok_or_else(|| format!("there is no such bug; there are {}", bug_names()))
}

/// More than a year would be a mistake.
fn minutes(text: &str) -> Result<Duration, String> {
    const MAX: f64 = 366.0 * 24.0 * 60.0;
    let minutes = text.parse().ok().filter(|minutes| *minutes > 0.0 && *minutes <= MAX);
    let minutes: f64 = minutes.ok_or_else(|| format!("a number above 0 and up to {MAX} is expected"))?;
    Ok(Duration::from_secs_f64(minutes * 60.0))
}

fn say(words: impl Display) -> Result<(), ScriptProblem> {
    writeln!(io::stdout(), "{words}").map_err(ScriptProblem::Output)
}

/// Prints a remark; a failure to print it does not end the program.
fn remark(words: impl Display) {
    let _ = writeln!(io::stderr(), "{words}");
}

fn to_text(item: &impl serde::Serialize) -> Result<String, ScriptProblem> {
    serde_json::to_string_pretty(item)
        .map_err(|error| ScriptProblem::Bug(format!("it can't be written as JSON: {error}")))
}

fn count(number: u64, one: &str) -> String {
    format!("{number} {one}{}", if number == 1 { "" } else { "s" })
}

fn describe(summary: &CampaignSummary) -> String {
    format!(
        "{}, {}, {}, {} answered and {} refused, {:.1} h of virtual time, {:.1} min",
        count(summary.seeds, "seed"),
        count(summary.steps, "step"),
        if summary.crashes == 1 { "1 crash".into() } else { format!("{} crashes", summary.crashes) },
        count(summary.acknowledged, "request"),
        summary.refused,
        summary.virtual_s / 3600.0,
        summary.took.as_secs_f64() / 60.0,
    )
}

fn outcome(script: &FaultScript, report: &ScriptReport) -> String {
    let seed = format!("seed {} ({})", script.seed, count(script.steps.len() as u64, "step"));
    match &report.failure {
        Some(failure) => format!("{seed} fails: {failure}"),
        None => format!("{seed} passes"),
    }
}

/// False if something failed.
///
/// # Errors
/// What can't be done.
pub fn run(arguments: SimulateArguments) -> Result<bool, ScriptProblem> {
    match arguments.command {
        SimulateCommand::Run { minutes, seeds, first_seed, jobs, subject, bug, keep_going } => {
            let plan = CampaignPlan {
                first_seed,
                seeds: seeds_from(first_seed, seeds)?,
                time: minutes,
                jobs: jobs.into(),
                subject,
                bug: bug.map(PlantedBug::name),
                stop_at_failure: !keep_going,
            };
            run_seeds(&plan)
        }
        SimulateCommand::Play { script, bug } => play(&script, bug),
        SimulateCommand::Show { seed, subject } => {
            say(to_text(&generate(seed, subject))?)?;
            Ok(true)
        }
        SimulateCommand::Shrink { seed, subject, bug, output } => {
            shrink_seed(seed, subject, bug, output.as_deref())
        }
        SimulateCommand::Prove { seeds, jobs, bug } => prove(seeds, jobs.into(), bug),
        SimulateCommand::Player { bug } => {
            planted::plant(bug);
            child::serve()?;
            Ok(true)
        }
    }
}

fn seeds_from(first: u64, seeds: Option<u64>) -> Result<u64, ScriptProblem> {
    let most = (u64::MAX - first).saturating_add(1);
    match seeds {
        None => Ok(most),
        Some(seeds) if seeds <= most => Ok(seeds),
        Some(seeds) => Err(ScriptProblem::Mistake(format!(
            "--seeds {seeds} from --first-seed {first} on goes beyond the last seed, {}; use fewer",
            u64::MAX
        ))),
    }
}

fn run_seeds(plan: &CampaignPlan) -> Result<bool, ScriptProblem> {
    stop::listen()?;
    let tell = |summary: &CampaignSummary, script: &FaultScript, report: &ScriptReport| {
        // Now: nobody knows how the hours to come will end.
        if report.failure.is_some() {
            say(outcome(script, report))?;
        }
        if summary.seeds.is_multiple_of(500) {
            say(describe(summary))?;
        }
        Ok(())
    };
    let summary = campaign::run(plan, PlayerProcess::start, tell)?;
    say(describe(&summary))?;
    if let Some((first, _)) = summary.failures.first() {
        let mut seeds: Vec<u64> = summary.failures.iter().map(|(script, _)| script.seed).collect();
        seeds.sort_unstable();
        let seeds: Vec<String> = seeds.iter().map(u64::to_string).collect();
        say(format!("{} of them failed: {}", seeds.len(), seeds.join(", ")))?;
        let subject = plan.subject.and_then(|subject| subject.to_possible_value());
        let subject = subject.map_or(String::new(), |subject| format!(" --subject {}", subject.get_name()));
        let bug = plan.bug.as_ref().map_or(String::new(), |bug| format!(" --bug {bug}"));
        say(format!("underlay-simulate shrink {}{subject}{bug} -o script.json makes it short", first.seed))?;
    }
    if summary.was_interrupted {
        return Err(ScriptProblem::Interrupted);
    }
    Ok(summary.failures.is_empty())
}

fn play(path: &Path, bug: Option<PlantedBug>) -> Result<bool, ScriptProblem> {
    let script = limits::read(path)?;
    stop::listen()?;
    // In a separate process: what it leaves behind, its parent removes.
    let report =
        PlayerProcess::start_with(bug.map(PlantedBug::name).as_deref(), Stdio::inherit())?.play(&script)?;
    say(to_text(&report)?)?;
    Ok(report.failure.is_none())
}

/// A file that is there by its name once it is complete.
struct OutputFile<'a> {
    path: &'a Path,
    file: NamedTempFile,
}

impl OutputFile<'_> {
    fn prepare(path: &Path) -> Result<OutputFile<'_>, ScriptProblem> {
        let mistake = |words: String| ScriptProblem::Mistake(format!("--output {}: {words}", path.display()));
        if path.symlink_metadata().is_ok() {
            return Err(mistake("it already exists; name a new file".into()));
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let file = tempfile::Builder::new()
            .prefix(".underlay-simulate-")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder)
            .map_err(|error| mistake(format!("a file can't be created there: {error}")))?;
        Ok(OutputFile { path, file })
    }

    fn write(mut self, text: &str) -> io::Result<()> {
        writeln!(self.file, "{text}")?;
        self.file.persist_noclobber(self.path).map_err(|error| error.error)?;
        Ok(())
    }
}

fn shrink_seed(
    seed: u64,
    subject: Option<SimulationSubject>,
    bug: Option<PlantedBug>,
    output: Option<&Path>,
) -> Result<bool, ScriptProblem> {
    // Before hours are spent on what could then not be written.
    let output = output.map(OutputFile::prepare).transpose()?;
    stop::listen()?;
    let script = generate(seed, subject);
    let bug = bug.map(PlantedBug::name);
    let start = || PlayerProcess::start(bug.as_deref());
    let report = start()?.play(&script)?;
    remark(outcome(&script, &report));
    if report.failure.is_none() {
        return Ok(true);
    }
    let progress = |script: &FaultScript| remark(count(script.steps.len() as u64, "step"));
    let short = shrink(&script, &report, start, progress)?;
    remark(outcome(&short.script, &short.report));
    let text = to_text(&short.script)?;
    match output {
        None => say(text)?,
        Some(output) => {
            let name = output.path.display();
            if let Err(error) = output.write(&text) {
                remark(format!("underlay-simulate: {name} can't be written ({error}); the script is:"));
                say(text)?;
                return Err(ScriptProblem::Output(error));
            }
        }
    }
    if short.was_interrupted {
        return Err(ScriptProblem::Interrupted);
    }
    Ok(false)
}

fn prove(seeds: u64, jobs: usize, only: Option<PlantedBug>) -> Result<bool, ScriptProblem> {
    stop::listen()?;
    let mut all_found = true;
    for bug in only.map_or_else(|| bugs().collect(), |bug| vec![bug]) {
        let plan = CampaignPlan {
            first_seed: 1,
            seeds,
            time: Duration::MAX,
            jobs,
            subject: SimulationSubject::from_str(bug.subject(), true).ok(),
            bug: Some(bug.name()),
            stop_at_failure: true,
        };
        let proof = campaign::prove(&plan, PlayerProcess::start)?;
        let is_found = proof.is_found();
        let BugProof { summary, sound } = proof;
        let (name, played) = (bug.name(), count(summary.seeds, "seed"));
        match summary.failures.first() {
            Some((script, report)) => {
                all_found &= is_found;
                let failure = sound.and_then(|sound| sound.failure).or_else(|| report.failure.clone());
                let failure: String = failure.unwrap_or_default().chars().take(90).collect();
                let remark = if is_found { "" } else { " FAILS WITHOUT IT TOO" };
                let (took_s, seed) = (summary.took.as_secs_f64(), script.seed);
                say(format!("{name}: {played}, {took_s:.0} s, seed {seed}{remark}: {failure}"))?;
            }
            None if summary.was_interrupted => say(format!("{name}: stopped after {played}"))?,
            None => {
                all_found = false;
                say(format!("{name}: NOT FOUND in {played}"))?;
            }
        }
        if summary.was_interrupted {
            return Err(ScriptProblem::Interrupted);
        }
    }
    Ok(all_found)
}
