//! `underlay-gateway-simulate`: for developers of the S3 gateway.

use std::fmt::Display;
use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand, value_parser};
use tempfile::NamedTempFile;
use underlay_sync::planted::{self, PlantedBug};

use crate::campaign::{self, CampaignPlan, CampaignSummary};
use crate::child::{self, PlayerOptions, ScriptPlayer};
use crate::problem::{CommandProblem, EXIT_CODES, FAILED_SEED};
use crate::run::ScriptReport;
use crate::script::{SimulationScript, generate, scene_names};
use crate::shrink::shrink;

/// The subject of the gateway's bugs.
const SUBJECT: &str = "gateway";
const MAX_SCRIPT_BYTES: u64 = 4 << 20;
/// A bug has to be found within this many seeds.
const BUDGET: u64 = 400;

/// Runs the S3 gateway in virtual time, under faults in any combination.
#[derive(Parser)]
#[command(name = "underlay-gateway-simulate", version, after_help = EXIT_CODES)]
struct SimulateArguments {
    #[command(subcommand)]
    command: SimulateCommand,
}

#[derive(Subcommand)]
enum SimulateCommand {
    /// Play as many seeds as there is time for
    #[command(after_help = EXIT_CODES)]
    Run {
        /// Minutes of real time
        #[arg(long, default_value = "60", value_parser = minutes)]
        minutes: Duration,
        /// Play at most this many seeds
        #[arg(long, value_parser = value_parser!(u64).range(1..))]
        seeds: Option<u64>,
        #[arg(long, default_value_t = 1)]
        first_seed: u64,
        /// Number of players: 1 to 256
        #[arg(long, default_value_t = 2, value_parser = value_parser!(u16).range(1..=256))]
        jobs: u16,
        /// Plant a bug, to see whether it is found; `prove --help` lists them
        #[arg(long, value_parser = bug_of_name)]
        bug: Option<PlantedBug>,
        /// Put this scene into each script; `show --help` lists them
        #[arg(long, value_parser = scene_of_name)]
        scene: Option<String>,
        /// Go on after a failure
        #[arg(long)]
        keep_going: bool,
    },
    /// Play a script once and print its report; events and the gateway's log go to stderr
    Play {
        script: PathBuf,
        /// Plant a bug; `prove --help` lists them
        #[arg(long, value_parser = bug_of_name)]
        bug: Option<PlantedBug>,
    },
    /// Print the script of a seed
    #[command(after_help = format!("Scenes: {}", all_scenes()))]
    Show {
        seed: u64,
        #[arg(long, value_parser = scene_of_name)]
        scene: Option<String>,
    },
    /// Play one seed, and shorten its script if it fails
    Shrink {
        seed: u64,
        /// Put this scene into the script; `show --help` lists them
        #[arg(long, value_parser = scene_of_name)]
        scene: Option<String>,
        /// Plant a bug; `prove --help` lists them
        #[arg(long, value_parser = bug_of_name)]
        bug: Option<PlantedBug>,
        /// A new file for the script; by default it is printed
        #[arg(short, long)]
        output: Option<PathBuf>,
    },
    /// Plant each bug in turn, and print how many seeds it took to find. The seed has to pass without the bug
    #[command(after_help = format!("Bugs: {}\n\n{EXIT_CODES}", bug_names()))]
    Prove {
        #[arg(long, default_value_t = BUDGET, value_parser = value_parser!(u64).range(1..))]
        seeds: u64,
        /// Number of players: 1 to 256
        #[arg(long, default_value_t = 2, value_parser = value_parser!(u16).range(1..=256))]
        jobs: u16,
        /// Plant only this bug
        #[arg(long, value_parser = bug_of_name)]
        bug: Option<PlantedBug>,
        /// Put this scene into each script; `show --help` lists them
        #[arg(long, value_parser = scene_of_name)]
        scene: Option<String>,
    },
    /// Play scripts from standard input, for the other commands
    #[command(hide = true)]
    Player {
        #[arg(long, value_parser = bug_of_name)]
        bug: Option<PlantedBug>,
        #[arg(long)]
        loud: bool,
    },
}

fn bugs() -> Vec<PlantedBug> {
    PlantedBug::ALL.iter().copied().filter(|bug| bug.subject() == SUBJECT).collect()
}

fn bug_names() -> String {
    bugs().iter().map(|bug| bug.name()).collect::<Vec<_>>().join(", ")
}

fn bug_of_name(name: &str) -> Result<PlantedBug, String> {
    PlantedBug::from_name(name)
        .filter(|bug| bugs().contains(bug))
        .ok_or_else(|| format!("there is no such bug; there are {}", bug_names()))
}

fn all_scenes() -> String {
    scene_names().collect::<Vec<_>>().join(", ")
}

fn scene_of_name(name: &str) -> Result<String, String> {
    match scene_names().any(|scene| scene == name) {
        true => Ok(name.to_owned()),
        false => Err(format!("there is no such scene; there are {}", all_scenes())),
    }
}

/// More than a year is a mistake.
fn minutes(text: &str) -> Result<Duration, String> {
    const MAX: f64 = 366.0 * 24.0 * 60.0;
    let minutes = text.parse().ok().filter(|minutes| *minutes > 0.0 && *minutes <= MAX);
    let minutes: f64 = minutes.ok_or_else(|| format!("a number above 0 and up to {MAX} is expected"))?;
    Ok(Duration::from_secs_f64(minutes * 60.0))
}

fn say(words: impl Display) -> Result<(), CommandProblem> {
    writeln!(io::stdout(), "{words}").map_err(CommandProblem::Output)
}

/// Prints a message whose loss does not matter.
fn remark(words: impl Display) {
    let _ = writeln!(io::stderr(), "{words}");
}

fn to_text(item: &impl serde::Serialize) -> Result<String, CommandProblem> {
    serde_json::to_string_pretty(item)
        .map_err(|error| CommandProblem::Bug(format!("it can't be written as JSON: {error}")))
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
        count(summary.acknowledged, "change"),
        summary.refused,
        summary.virtual_s / 3600.0,
        summary.took.as_secs_f64() / 60.0,
    )
}

fn outcome(script: &SimulationScript, report: &ScriptReport) -> String {
    let seed = format!("seed {} ({})", script.seed, count(script.steps.len() as u64, "step"));
    match &report.failure {
        Some(failure) => format!("{seed} fails: {failure}"),
        None => format!("{seed} passes"),
    }
}

/// The program.
pub fn main() -> ExitCode {
    let arguments = SimulateArguments::parse();
    let outcome = catch_unwind(|| run(arguments))
        .unwrap_or_else(|_| Err(CommandProblem::Bug("a panic, printed above".into())));
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(FAILED_SEED),
        Err(problem) => {
            if !problem.is_quiet() {
                remark(format!("underlay-gateway-simulate: {problem}"));
            }
            ExitCode::from(problem.code())
        }
    }
}

/// Returns `false` if something failed.
///
/// # Errors
/// When a command can't be carried out.
fn run(arguments: SimulateArguments) -> Result<bool, CommandProblem> {
    match arguments.command {
        SimulateCommand::Run { minutes, seeds, first_seed, jobs, bug, scene, keep_going } => {
            let plan = CampaignPlan {
                first_seed,
                seeds: seeds_from(first_seed, seeds)?,
                time: minutes,
                jobs: jobs.into(),
                stop_at_failure: !keep_going,
                scene,
            };
            run_seeds(&plan, bug)
        }
        SimulateCommand::Play { script, bug } => play(&script, bug),
        SimulateCommand::Show { seed, scene } => {
            say(to_text(&generate(seed, scene.as_deref()))?)?;
            Ok(true)
        }
        SimulateCommand::Shrink { seed, scene, bug, output } => {
            shrink_seed(&generate(seed, scene.as_deref()), bug, output.as_deref())
        }
        SimulateCommand::Prove { seeds, jobs, bug, scene } => prove(seeds, jobs.into(), bug, scene),
        SimulateCommand::Player { bug, loud } => {
            planted::plant(bug);
            child::serve(loud)?;
            Ok(true)
        }
    }
}

fn seeds_from(first: u64, seeds: Option<u64>) -> Result<u64, CommandProblem> {
    let most = (u64::MAX - first).saturating_add(1);
    match seeds {
        None => Ok(most),
        Some(seeds) if seeds <= most => Ok(seeds),
        Some(seeds) => Err(CommandProblem::Mistake(format!(
            "--seeds {seeds} from --first-seed {first} on goes beyond the last seed, {}; use fewer",
            u64::MAX
        ))),
    }
}

fn quiet(bug: Option<PlantedBug>) -> PlayerOptions {
    PlayerOptions { bug: bug.map(PlantedBug::name), is_loud: false }
}

fn run_seeds(plan: &CampaignPlan, bug: Option<PlantedBug>) -> Result<bool, CommandProblem> {
    child::listen_to_signals()?;
    let start = quiet(bug);
    let tell = |summary: &CampaignSummary, script: &SimulationScript, report: &ScriptReport| {
        // At once: a long run may be stopped.
        if report.failure.is_some() {
            say(outcome(script, report))?;
        }
        if summary.seeds.is_multiple_of(100) {
            say(describe(summary))?;
        }
        Ok(())
    };
    let summary = campaign::run(plan, || ScriptPlayer::start(&start), tell)?;
    say(describe(&summary))?;
    if let Some((first, _)) = summary.failures.first() {
        let mut seeds: Vec<u64> = summary.failures.iter().map(|(script, _)| script.seed).collect();
        seeds.sort_unstable();
        let seeds: Vec<String> = seeds.iter().map(u64::to_string).collect();
        say(format!("{} of them failed: {}", seeds.len(), seeds.join(", ")))?;
        let bug = start.bug.as_ref().map_or(String::new(), |bug| format!(" --bug {bug}"));
        let scene = plan.scene.as_ref().map_or(String::new(), |scene| format!(" --scene {scene}"));
        let seed = first.seed;
        say(format!("underlay-gateway-simulate shrink {seed}{scene}{bug} -o script.json makes it short"))?;
    }
    if summary.was_interrupted {
        return Err(CommandProblem::Interrupted);
    }
    Ok(summary.failures.is_empty())
}

fn read(path: &Path) -> Result<SimulationScript, CommandProblem> {
    let name = path.display();
    let mistake = |words: String| CommandProblem::Mistake(format!("{name}: {words}"));
    let file = std::fs::File::open(path).map_err(|error| mistake(format!("cannot be read: {error}")))?;
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(file, MAX_SCRIPT_BYTES), &mut text)
        .map_err(|error| mistake(format!("cannot be read: {error}")))?;
    SimulationScript::parse(&text).map_err(mistake)
}

fn play(path: &Path, bug: Option<PlantedBug>) -> Result<bool, CommandProblem> {
    let script = read(path)?;
    child::listen_to_signals()?;
    let start = PlayerOptions { bug: bug.map(PlantedBug::name), is_loud: true };
    let report = ScriptPlayer::start(&start)?.play(&script)?;
    report.notes.iter().for_each(remark);
    say(to_text(&ScriptReport { notes: Vec::new(), ..report.clone() })?)?;
    Ok(report.failure.is_none())
}

/// A file that gets its name once it is complete.
struct OutputFile<'a> {
    path: &'a Path,
    file: NamedTempFile,
}

impl OutputFile<'_> {
    fn prepare(path: &Path) -> Result<OutputFile<'_>, CommandProblem> {
        let mistake =
            |words: String| CommandProblem::Mistake(format!("--output {}: {words}", path.display()));
        if path.symlink_metadata().is_ok() {
            return Err(mistake("it already exists; name a new file".into()));
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let file = tempfile::Builder::new()
            .prefix(".underlay-gateway-simulate-")
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
    script: &SimulationScript,
    bug: Option<PlantedBug>,
    output: Option<&Path>,
) -> Result<bool, CommandProblem> {
    // Before hours are spent on a script that can't be written.
    let output = output.map(OutputFile::prepare).transpose()?;
    child::listen_to_signals()?;
    let start = quiet(bug);
    let report = ScriptPlayer::start(&start)?.play(script)?;
    remark(outcome(script, &report));
    if report.failure.is_none() {
        return Ok(true);
    }
    let progress = |script: &SimulationScript| remark(count(script.steps.len() as u64, "step"));
    let short = shrink(script, &report, || ScriptPlayer::start(&start), progress)?;
    remark(outcome(&short.script, &short.report));
    let text = to_text(&short.script)?;
    match output {
        None => say(text)?,
        Some(output) => {
            let name = output.path.display();
            if let Err(error) = output.write(&text) {
                remark(format!(
                    "underlay-gateway-simulate: {name} can't be written ({error}); the script is:"
                ));
                say(text)?;
                return Err(CommandProblem::Output(error));
            }
        }
    }
    if short.was_interrupted {
        return Err(CommandProblem::Interrupted);
    }
    Ok(false)
}

fn prove(
    seeds: u64,
    jobs: usize,
    only: Option<PlantedBug>,
    scene: Option<String>,
) -> Result<bool, CommandProblem> {
    child::listen_to_signals()?;
    let mut all_found = true;
    for bug in only.map_or(bugs(), |bug| vec![bug]) {
        let scene = scene.clone();
        let plan =
            CampaignPlan { first_seed: 1, seeds, time: Duration::MAX, jobs, stop_at_failure: true, scene };
        let start = quiet(Some(bug));
        let summary = campaign::run(&plan, || ScriptPlayer::start(&start), |_, _, _| Ok(()))?;
        let (name, played) = (bug.name(), count(summary.seeds, "seed"));
        match summary.failures.first() {
            Some((script, report)) => {
                // A script that fails without the bug proves nothing.
                let sound = ScriptPlayer::start(&quiet(None))?.play(script)?;
                let is_proven = sound.failure.is_none();
                all_found &= is_proven;
                let failure = sound.failure.or_else(|| report.failure.clone()).unwrap_or_default();
                let failure: String = failure.chars().take(120).collect();
                let remark = if is_proven { "" } else { " fails without the bug too" };
                let took_s = summary.took.as_secs_f64();
                say(format!("{name}: {played}, {took_s:.0} s, seed {}{remark}: {failure}", script.seed))?;
            }
            None if summary.was_interrupted => say(format!("{name}: stopped after {played}"))?,
            None => {
                all_found = false;
                say(format!("{name}: NOT FOUND in {played}"))?;
            }
        }
        if summary.was_interrupted {
            return Err(CommandProblem::Interrupted);
        }
    }
    Ok(all_found)
}
