//! `underlay-gateway-simulate`: for developers of the S3 gateway.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand, value_parser};
use underlay_campaign::campaign::CampaignPlan;
use underlay_campaign::output::{say, to_text};
use underlay_campaign::problem::{CommandProblem, EXIT_CODES};
use underlay_campaign::{commands, player};
use underlay_sync::planted::{self, PlantedBug};

use crate::script::{SimulationScript, generate, scene_names};

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
        #[arg(long, default_value = "60", value_parser = commands::parse_minutes)]
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

fn bugs() -> impl Iterator<Item = PlantedBug> + Clone {
    PlantedBug::ALL.iter().copied().filter(|bug| bug.subject() == SUBJECT)
}

fn bug_names() -> String {
    commands::join_names(bugs())
}

fn bug_of_name(name: &str) -> Result<PlantedBug, String> {
    commands::find_bug(name, bugs())
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

/// The program.
pub fn main() -> ExitCode {
    let arguments = SimulateArguments::parse();
    commands::main::<SimulationScript>(|| run(arguments))
}

/// Returns `false` if something failed.
fn run(arguments: SimulateArguments) -> Result<bool, CommandProblem> {
    match arguments.command {
        SimulateCommand::Run { minutes, seeds, first_seed, jobs, bug, scene, keep_going } => {
            let plan = CampaignPlan {
                first_seed,
                seeds: commands::count_seeds(first_seed, seeds)?,
                time: minutes,
                jobs: jobs.into(),
                stop_at_failure: !keep_going,
            };
            let named = scene.as_ref().map_or(String::new(), |scene| format!(" --scene {scene}"));
            commands::run_seeds(&plan, bug, |seed| generate(seed, scene.as_deref()), &named)
        }
        SimulateCommand::Play { script, bug } => commands::play(&read(&script)?, bug),
        SimulateCommand::Show { seed, scene } => {
            say(to_text(&generate(seed, scene.as_deref()))?)?;
            Ok(true)
        }
        SimulateCommand::Shrink { seed, scene, bug, output } => {
            commands::shrink_script(&generate(seed, scene.as_deref()), bug, output.as_deref())
        }
        SimulateCommand::Prove { seeds, jobs, bug, scene } => {
            let bugs = bug.map_or_else(|| bugs().collect(), |bug| vec![bug]);
            commands::prove(&bugs, (seeds, jobs.into()), |_, seed| generate(seed, scene.as_deref()))
        }
        SimulateCommand::Player { bug, loud } => {
            planted::plant(bug);
            player::serve::<SimulationScript>(loud)?;
            Ok(true)
        }
    }
}

fn read(path: &Path) -> Result<SimulationScript, CommandProblem> {
    let name = path.display();
    let mistake = |words: String| CommandProblem::Mistake(format!("{name}: {words}"));
    let file = std::fs::File::open(path).map_err(|error| mistake(format!("cannot be read: {error}")))?;
    let mut text = String::new();
    file.take(MAX_SCRIPT_BYTES)
        .read_to_string(&mut text)
        .map_err(|error| mistake(format!("cannot be read: {error}")))?;
    SimulationScript::parse(&text).map_err(mistake)
}
