//! `underlay completions` and `underlay man`: what a package installs beside the program.

use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::arguments::Arguments;
use crate::exit_codes::Failure;
use crate::output;

pub(crate) fn completions(shell: Shell) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut shown(Arguments::command()), "underlay", &mut script);
    output::print(&String::from_utf8_lossy(&script));
    Ok(ExitCode::SUCCESS)
}

/// A page for each command: `underlay.1`, `underlay-run.1`.
pub(crate) fn man(folder: &Path) -> Result<ExitCode, Failure> {
    let failed = |error: std::io::Error| {
        Failure::of_place(format!("cannot write the man pages to {}: {error}", folder.display()), &error)
    };
    std::fs::create_dir_all(folder).map_err(failed)?;
    // The commit changes the page of no command.
    let command = shown(Arguments::command()).version(env!("CARGO_PKG_VERSION"));
    clap_mangen::generate_to(command, folder).map_err(failed)?;
    output::print(&format!("the man pages are in {0}: man -l {0}/underlay.1", folder.display()));
    Ok(ExitCode::SUCCESS)
}

/// Without `help`, which `--help` is.
fn shown(command: clap::Command) -> clap::Command {
    command.disable_help_subcommand(true).mut_subcommands(shown)
}
