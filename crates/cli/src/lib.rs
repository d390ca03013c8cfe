//! The command line: arguments, progress, exit codes. What a command does is in the other crates.

// These panic where nobody reads: `output` does not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod arguments;
mod commands;
#[cfg(test)]
mod documented_secrets;
mod exit_codes;
mod harmless;
mod log;
mod output;
mod progress;
mod service;
mod signals;
mod umask;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _};

use arguments::{
    Arguments, Command, MediaCommand, ServeVolumesArguments, VolumeArguments, VolumeCommand, WorkerArguments,
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
            output::say("underlay: `underlay clean` removes what this process may have left");
            ExitCode::from(BUG)
        }
    }
}

/// A value of an option may be a negative number: whoever takes the option says what it should have been.
fn parsed(words: Vec<std::ffi::OsString>) -> Result<Arguments, clap::Error> {
    fn taking_negative_numbers(command: clap::Command) -> clap::Command {
        command
            .mut_args(|argument| {
                let takes_a_value = argument.get_action().takes_values() && !argument.is_positional();
                argument.allow_negative_numbers(takes_a_value)
            })
            .mut_subcommands(taking_negative_numbers)
    }
    let mut matches = taking_negative_numbers(Arguments::command()).try_get_matches_from(words)?;
    Arguments::from_arg_matches_mut(&mut matches)
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

fn dispatch(command: Command) -> Result<ExitCode, exit_codes::Failure> {
    match &command {
        Command::Worker(WorkerArguments { log_level, .. })
        | Command::Volume(VolumeArguments {
            command: VolumeCommand::Serve(ServeVolumesArguments { log_level, .. }),
        }) => {
            log::of_server(*log_level);
        }
        _ => log::of_command(),
    }
    match command {
        Command::New(arguments) => commands::new::new(&arguments),
        Command::Run(arguments) => commands::run::run(&arguments),
        Command::Check(arguments) => commands::check::check(&arguments),
        Command::Report(arguments) => commands::report::report(&arguments),
        Command::Console(arguments) => commands::console::console(&arguments),
        Command::Predict(arguments) => commands::predict::predict(&arguments),
        Command::Explain(arguments) => commands::explain::explain(&arguments),
        Command::Ycsb(arguments) => commands::ycsb::ycsb(&arguments),
        Command::Worker(arguments) => commands::worker::worker(&arguments),
        Command::Mount(arguments) => commands::mount::mount(&arguments),
        Command::Fault(arguments) => commands::fault::fault(&arguments),
        Command::Node(arguments) => commands::node::node(&arguments),
        Command::Volume(arguments) => commands::volume::volume(&arguments),
        Command::Gateway { arguments } => commands::gateway::gateway(&arguments),
        Command::Media(arguments) => match arguments.command {
            MediaCommand::List { json } => commands::media::list(json),
            MediaCommand::Show { name } => commands::media::show(&name),
            MediaCommand::Check { file } => commands::media::check(&file),
            MediaCommand::Measure(arguments) => commands::media::measure(&arguments),
            MediaCommand::Verify(arguments) => commands::media::verify(&arguments),
            MediaCommand::Serve(arguments) => commands::media::serve(&arguments),
        },
        Command::Advise(arguments) => commands::advise::advise(&arguments),
        Command::Doctor { json } => commands::doctor::doctor(json),
        Command::Clean => commands::clean::clean(),
        Command::Schema { of } => commands::schema::schema(of),
        Command::Completions { shell } => commands::manual::completions(shell),
        Command::Man { dir } => commands::manual::man(&dir),
        Command::DeviceDaemon { config } => {
            // Its launcher tells errors apart by the code.
            Ok(match underlay_attach::daemon::main(&config) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    output::say(error.to_string());
                    ExitCode::from(underlay_attach::daemon::exit_code(&error))
                }
            })
        }
        Command::Engine { arguments } => {
            underlay_systems::rocksdb::engine::main(&arguments)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
