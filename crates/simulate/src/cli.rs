//! `underlay-simulate`: for developers of the volume stack.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum, value_parser};
use underlay_campaign::campaign::CampaignPlan;
use underlay_campaign::output::{say, to_text};
use underlay_campaign::problem::{CommandProblem, EXIT_CODES};
use underlay_campaign::{commands, player};
use underlay_sync::planted::{self, PlantedBug};

use crate::limits;
use crate::script::{FaultScript, SimulationSubject, generate};

/// Runs the volume stack in virtual time, under faults in any combination.
#[derive(Parser)]
#[command(name = "underlay-simulate", version, after_help = EXIT_CODES)]
struct SimulateArguments {
    #[command(subcommand)]
    command: SimulateCommand,
}

#[derive(Subcommand)]
enum SimulateCommand {
    /// Play as many seeds as there is time for
    #[command(after_help = EXIT_CODES)]
    Run {
        /// Of this machine's clock
        #[arg(long, default_value = "60", value_parser = commands::parse_minutes)]
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
    /// Play a script once, with all that the code says on stderr, and say what came of it
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
        #[arg(long)]
        loud: bool,
    },
}

/// Those that show in a part of the stack that this simulator plays: others have a simulator of their own.
fn bugs() -> impl Iterator<Item = PlantedBug> + Clone {
    PlantedBug::ALL.iter().copied().filter(|bug| SimulationSubject::from_str(bug.subject(), true).is_ok())
}

fn bug_names() -> String {
    commands::join_names(bugs())
}

fn bug_of_name(name: &str) -> Result<PlantedBug, String> {
    commands::find_bug(name, bugs())
}

/// The program.
pub fn main() -> ExitCode {
    let arguments = SimulateArguments::parse();
    commands::main::<FaultScript>(|| run(arguments))
}

/// Returns `false` if something failed.
fn run(arguments: SimulateArguments) -> Result<bool, CommandProblem> {
    match arguments.command {
        SimulateCommand::Run { minutes, seeds, first_seed, jobs, subject, bug, keep_going } => {
            let plan = CampaignPlan {
                first_seed,
                seeds: commands::count_seeds(first_seed, seeds)?,
                time: minutes,
                jobs: jobs.into(),
                stop_at_failure: !keep_going,
            };
            let named = subject.and_then(|subject| subject.to_possible_value());
            let named = named.map_or(String::new(), |subject| format!(" --subject {}", subject.get_name()));
            commands::run_seeds(&plan, bug, |seed| generate(seed, subject), &named)
        }
        SimulateCommand::Play { script, bug } => commands::play(&limits::read(&script)?, bug),
        SimulateCommand::Show { seed, subject } => {
            say(to_text(&generate(seed, subject))?)?;
            Ok(true)
        }
        SimulateCommand::Shrink { seed, subject, bug, output } => {
            commands::shrink_script(&generate(seed, subject), bug, output.as_deref())
        }
        SimulateCommand::Prove { seeds, jobs, bug } => {
            let bugs = bug.map_or_else(|| bugs().collect(), |bug| vec![bug]);
            let subject = |bug: PlantedBug| SimulationSubject::from_str(bug.subject(), true).ok();
            commands::prove(&bugs, (seeds, jobs.into()), |bug, seed| generate(seed, subject(bug)))
        }
        SimulateCommand::Player { bug, loud } => {
            planted::plant(bug);
            player::serve::<FaultScript>(loud)?;
            Ok(true)
        }
    }
}
