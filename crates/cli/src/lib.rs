//! The command line: arguments, progress, exit codes. What a command does is in the other crates.

mod arguments;
mod commands;
mod exit_codes;
mod harmless;
mod output;
mod progress;
mod signals;

use std::process::ExitCode;

use clap::Parser as _;

use arguments::{Arguments, Command, MediaCommand};
use exit_codes::{BUG, MISTAKE};

pub fn main() -> ExitCode {
    let words = commands::ycsb::words::translated(std::env::args_os());
    let arguments = match Arguments::try_parse_from(words) {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(MISTAKE) } else { ExitCode::SUCCESS };
        }
    };
    // A panic is ours, never the user's: say so, and end with the code for it.
    match std::panic::catch_unwind(|| dispatch(arguments.command)) {
        Ok(Ok(code)) => code,
        Ok(Err(failure)) => {
            eprintln!("underlay: {}", harmless::harmless(&failure.to_string()));
            failure.code()
        }
        Err(_) => {
            eprintln!("underlay: this is a bug in underlay, please report it with the lines above");
            eprintln!("underlay: `underlay clean` removes what this process may have left");
            ExitCode::from(BUG)
        }
    }
}

fn dispatch(command: Command) -> Result<ExitCode, exit_codes::Failure> {
    match command {
        Command::Run(arguments) => commands::run::run(&arguments),
        Command::Check(arguments) => commands::check::check(&arguments),
        Command::Report(arguments) => commands::report::report(&arguments),
        Command::Ycsb(arguments) => commands::ycsb::ycsb(&arguments),
        Command::Worker(arguments) => commands::worker::worker(&arguments),
        Command::Mount(arguments) => commands::mount::mount(&arguments),
        Command::Fault(arguments) => commands::fault::fault(&arguments),
        Command::Volume(arguments) => commands::volume::volume(&arguments),
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
        Command::Schema => commands::schema::schema(),
        Command::DeviceDaemon { config } => {
            underlay_attach::daemon::main(&config)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Engine { arguments } => {
            underlay_systems::rocksdb::engine::main(&arguments)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
