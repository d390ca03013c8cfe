//! `underlay-simulate`: for developers of the volume stack.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand, ValueEnum};
use underlay_sync::planted::{self, Bug};

use crate::campaign::{self, Plan, Summary};
use crate::child::{self, Player};
use crate::run::Report;
use crate::script::{Script, Subject, generate};
use crate::shrink::shrink;

/// Runs the volume stack in virtual time, under faults in any combination.
#[derive(Parser)]
#[command(name = "underlay-simulate", version)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Play as many seeds as there is time for; 1 is the exit code if any of them fails
    Run {
        #[arg(long, default_value_t = 60.0)]
        minutes: f64,
        #[arg(long, default_value_t = u64::MAX)]
        seeds: u64,
        #[arg(long, default_value_t = 1)]
        first_seed: u64,
        #[arg(long, default_value_t = 2)]
        jobs: usize,
        #[arg(long)]
        subject: Option<Subject>,
        /// Plant a bug, to see whether it is found
        #[arg(long)]
        bug: Option<String>,
        /// Go on after a failure
        #[arg(long)]
        keep_going: bool,
    },
    /// Play a script once and say what came of it
    Play {
        script: PathBuf,
        #[arg(long)]
        bug: Option<String>,
    },
    /// Print the script of a seed
    Show {
        seed: u64,
        #[arg(long)]
        subject: Option<Subject>,
    },
    /// Play one seed, and make its script short if it fails
    Shrink {
        seed: u64,
        #[arg(long)]
        subject: Option<Subject>,
        #[arg(long)]
        bug: Option<String>,
        #[arg(short, long)]
        output: Option<PathBuf>,
    },
    /// Plant each bug in turn, and say after how many seeds it was found
    Prove {
        #[arg(long, default_value_t = 4000)]
        seeds: u64,
        #[arg(long, default_value_t = 2)]
        jobs: usize,
        /// One bug alone
        #[arg(long)]
        bug: Option<String>,
    },
    /// Play scripts from standard input: what the other commands start
    #[command(hide = true)]
    Player {
        #[arg(long)]
        bug: Option<String>,
    },
}

fn plant(bug: Option<&str>) -> Result<()> {
    let found = bug.map(|name| Bug::of_name(name).with_context(|| format!("there is no bug '{name}'")));
    planted::plant(found.transpose()?);
    Ok(())
}

fn describe(summary: &Summary) -> String {
    format!(
        "{} seeds, {} steps, {} crashes, {} requests answered and {} refused, {:.1} h of virtual time, {:.1} min",
        summary.seeds,
        summary.steps,
        summary.crashes,
        summary.acknowledged,
        summary.refused,
        summary.virtual_s / 3600.0,
        summary.took.as_secs_f64() / 60.0,
    )
}

fn tell_failure(script: &Script, report: &Report) {
    let failure = report.failure.as_deref().unwrap_or("nothing");
    println!("seed {} ({} steps) fails: {failure}", script.seed, script.steps.len());
}

/// # Errors
/// What can't be done.
pub fn run(arguments: Arguments) -> Result<bool> {
    match arguments.command {
        Command::Run { minutes, seeds, first_seed, jobs, subject, bug, keep_going } => {
            let time = Duration::from_secs_f64(minutes * 60.0);
            let plan = Plan { first_seed, seeds, time, jobs, subject, bug, stop_at_failure: !keep_going };
            let progress = |summary: &Summary| {
                if summary.seeds.is_multiple_of(500) {
                    println!("{}", describe(summary));
                }
            };
            let summary = campaign::run(&plan, Player::start, progress)?;
            println!("{}", describe(&summary));
            summary.failures.iter().for_each(|(script, report)| tell_failure(script, report));
            if let Some((script, _)) = summary.failures.first() {
                let subject = plan
                    .subject
                    .map_or(String::new(), |subject| format!(" --subject {subject:?}").to_lowercase());
                println!("underlay-simulate shrink {}{subject} -o script.json makes it short", script.seed);
            }
            Ok(summary.failures.is_empty())
        }
        Command::Play { script, bug } => {
            plant(bug.as_deref())?;
            let text =
                std::fs::read(&script).with_context(|| format!("{} can't be read", script.display()))?;
            let script: Script = serde_json::from_slice(&text).context("it is no script")?;
            let report = crate::run(&script);
            println!("{}", serde_json::to_string_pretty(&report)?);
            Ok(report.failure.is_none())
        }
        Command::Show { seed, subject } => {
            println!("{}", serde_json::to_string_pretty(&generate(seed, subject))?);
            Ok(true)
        }
        Command::Shrink { seed, subject, bug, output } => {
            let script = generate(seed, subject);
            let start = || Player::start(bug.as_deref());
            let report = start()?.play(&script);
            tell_failure(&script, &report);
            if report.failure.is_none() {
                return Ok(true);
            }
            let progress = |script: &Script| eprintln!("{} steps", script.steps.len());
            let (short, report) = shrink(&script, &report, start, progress)?;
            tell_failure(&short, &report);
            let text = serde_json::to_string_pretty(&short)?;
            match output {
                Some(path) => std::fs::write(&path, text + "\n")?,
                None => println!("{text}"),
            }
            Ok(false)
        }
        Command::Prove { seeds, jobs, bug } => prove(seeds, jobs, bug.as_deref()),
        Command::Player { bug } => {
            plant(bug.as_deref())?;
            child::serve()?;
            Ok(true)
        }
    }
}

fn prove(seeds: u64, jobs: usize, only: Option<&str>) -> Result<bool> {
    let bugs: Vec<Bug> = match only {
        None => Bug::ALL.to_vec(),
        Some(name) => vec![Bug::of_name(name).with_context(|| format!("there is no bug '{name}'"))?],
    };
    if bugs.is_empty() {
        bail!("no bug can be planted");
    }
    let mut all_found = true;
    for bug in bugs {
        let plan = Plan {
            first_seed: 1,
            seeds,
            time: Duration::MAX,
            jobs,
            subject: Subject::from_str(bug.subject(), true).ok(),
            bug: Some(bug.name()),
            stop_at_failure: true,
        };
        let summary = campaign::run(&plan, Player::start, |_| {})?;
        match summary.failures.first() {
            Some((_, report)) => {
                let failure = report.failure.as_deref().unwrap_or_default();
                let failure: String = failure.chars().take(90).collect();
                println!(
                    "{}: {} seeds, {:.0} s: {failure}",
                    bug.name(),
                    summary.seeds,
                    summary.took.as_secs_f64()
                );
            }
            None => {
                all_found = false;
                println!("{}: NOT FOUND in {} seeds", bug.name(), summary.seeds);
            }
        }
    }
    Ok(all_found)
}
