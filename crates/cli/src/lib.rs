//! The command line: arguments, progress, exit codes. The other crates have the commands' work.

#![cfg_attr(not(test), warn(clippy::disallowed_types))]
// These panic where nobody reads: `output` does not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod arguments;
mod bundled_studies;
mod commands;
#[cfg(test)]
mod documented_secrets;
mod exit_codes;
mod log;
mod output;
mod progress;
mod service;
mod signals;
mod terminal_escape;
mod umask;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _};

use arguments::{
    CliArguments, CliCommand, MediaCommand, ServeVolumesArguments, VolumeArguments, VolumeCommand,
    WorkerArguments,
};
use exit_codes::{BUG, FAILED, MISTAKE};

pub fn main() -> ExitCode {
    // First of all: it is only safe before there is a second thread.
    umask::set();
    // YCSB's command line has words that clap cannot take as they are.
    let words = commands::ycsb::words::translated(std::env::args_os());
    let arguments = match parsed(words) {
        Ok(arguments) => arguments,
        Err(error) => {
            let printed = error.print();
            if error.use_stderr() {
                return ExitCode::from(MISTAKE);
            }
            output::keep(printed);
            return concluded(ExitCode::SUCCESS);
        }
    };
    // A panic is ours, never the user's: say so, and end with the code for it.
    match std::panic::catch_unwind(|| dispatch(arguments.command)) {
        Ok(Ok(code)) => concluded(code),
        Ok(Err(failure)) => {
            failure.say();
            failure.code()
        }
        Err(_) => {
            output::say("underlay: this is a bug in underlay, please report it with the lines above");
            output::say("underlay: `underlay clean` removes any leftovers of this process");
            ExitCode::from(BUG)
        }
    }
}

/// An option's value may be a negative number: the option's own check reports what it expects.
fn parsed(words: Vec<std::ffi::OsString>) -> Result<CliArguments, clap::Error> {
    fn taking_negative_numbers(command: clap::Command) -> clap::Command {
        command
            .mut_args(|argument| {
                let takes_a_value = argument.get_action().takes_values() && !argument.is_positional();
                argument.allow_negative_numbers(takes_a_value)
            })
            .mut_subcommands(taking_negative_numbers)
    }
    let mut matches = taking_negative_numbers(CliArguments::command()).try_get_matches_from(words)?;
    CliArguments::from_arg_matches_mut(&mut matches)
}

/// The work is not done until the user has the answer.
fn concluded(code: ExitCode) -> ExitCode {
    match output::broken() {
        None => code,
        Some(error) => {
            output::say(format_args!("underlay: cannot write to standard output: {error}"));
            ExitCode::from(FAILED)
        }
    }
}

fn dispatch(command: CliCommand) -> Result<ExitCode, exit_codes::ExitFailure> {
    match &command {
        CliCommand::Worker(WorkerArguments { log_level, .. })
        | CliCommand::Volume(VolumeArguments {
            command: VolumeCommand::Serve(ServeVolumesArguments { log_level, .. }),
        }) => {
            log::init_for_server(*log_level);
        }
        _ => log::init_for_command(),
    }
    match command {
        CliCommand::New(arguments) => commands::new::new(&arguments),
        CliCommand::Run(arguments) => commands::run::run(&arguments),
        CliCommand::Check(arguments) => commands::check::check(&arguments),
        CliCommand::Report(arguments) => commands::report::report(&arguments),
        CliCommand::Console(arguments) => commands::console::console(&arguments),
        CliCommand::Predict(arguments) => commands::predict::predict(&arguments),
        CliCommand::Explain(arguments) => commands::explain::explain(&arguments),
        CliCommand::ExplainKey { key } => commands::explain_key::explain_key(key.as_deref()),
        CliCommand::Ycsb(arguments) => commands::ycsb::ycsb(&arguments),
        CliCommand::Worker(arguments) => commands::worker::worker(&arguments),
        CliCommand::Mount(arguments) => commands::mount::mount(&arguments),
        CliCommand::Fault(arguments) => commands::fault::fault(&arguments),
        CliCommand::Node(arguments) => commands::node::node(&arguments),
        CliCommand::Volume(arguments) => commands::volume::volume(&arguments),
        CliCommand::Gateway { arguments } => commands::gateway::gateway(&arguments),
        CliCommand::Media(arguments) => match arguments.command {
            MediaCommand::List { json } => commands::media::list(json),
            MediaCommand::Show { name } => commands::media::show(&name),
            MediaCommand::Check { file } => commands::media::check(&file),
            MediaCommand::Compare(arguments) => commands::media::compare(&arguments),
            MediaCommand::Measure(arguments) => commands::media::measure(&arguments),
            MediaCommand::Verify(arguments) => commands::media::verify(&arguments),
            MediaCommand::Serve(arguments) => commands::media::serve(&arguments),
        },
        CliCommand::Advise(arguments) => commands::advise::advise(&arguments),
        CliCommand::Doctor { json } => commands::doctor::doctor(json),
        CliCommand::Clean => commands::clean::clean(),
        CliCommand::Schema { dir: Some(dir), .. } => commands::schema::write_schemas(&dir),
        CliCommand::Schema { subject, dir: None } => commands::schema::print_schema(subject),
        CliCommand::Completions { shell } => commands::manual::completions(shell),
        CliCommand::Man { dir } => commands::manual::man(&dir),
        CliCommand::DeviceDaemon { config } => {
            // Its launcher tells errors apart by the code.
            Ok(match underlay_attach::daemon::main(&config) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    output::say(error.to_string());
                    ExitCode::from(underlay_attach::daemon::exit_code(&error))
                }
            })
        }
        CliCommand::Engine { arguments } => {
            underlay_systems::rocksdb::engine::main(&arguments)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
