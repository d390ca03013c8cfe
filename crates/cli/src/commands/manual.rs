//! `underlay completions` and `underlay man`: what a package installs beside the program.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory as _;
use clap_complete::Shell;
use clap_mangen::Man;
use underlay_files::{Access, Folder};

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
    let failed = |error: io::Error| {
        Failure::of_place(format!("cannot write the man pages to {}: {error}", folder.display()), &error)
    };
    let pages = Folder::make(folder, Access::Readable).map_err(failed)?;
    // The commit changes the page of no command.
    let mut command = shown(Arguments::command()).version(env!("CARGO_PKG_VERSION"));
    command.build();
    write_pages(command, &pages).map_err(failed)?;
    output::print(&format!("the man pages are in {0}: man -l {0}/underlay.1", folder.display()));
    Ok(ExitCode::SUCCESS)
}

/// The page of a command and those of its subcommands. Each is written whole, and no link of somebody else's is followed.
fn write_pages(command: clap::Command, pages: &Folder) -> io::Result<()> {
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        write_pages(inner.clone(), pages)?;
    }
    let manual = Man::new(command);
    let mut page = Vec::new();
    manual.render(&mut page)?;
    pages.replace(&manual.get_filename(), Access::Readable, &page)
}

/// Without `help`, which `--help` is.
fn shown(command: clap::Command) -> clap::Command {
    command.disable_help_subcommand(true).mut_subcommands(shown)
}
