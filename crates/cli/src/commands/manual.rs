//! `underlay completions` and `underlay man`: what a package installs beside the program.

mod page;

use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory as _;
use clap::builder::PossibleValuesParser;
use clap_complete::Shell;
use underlay_files::{Access, Folder};
use underlay_storage::catalogue;
use underlay_workload::OperationMix;

use super::new::storage;
use crate::arguments::CliArguments;
use crate::bundled_studies;
use crate::exit_codes::ExitFailure;
use crate::output;

pub(crate) fn completions(shell: Shell) -> Result<ExitCode, ExitFailure> {
    let mut script = Vec::new();
    let mut command = with_known_values(shown(CliArguments::command()));
    clap_complete::generate(shell, &mut command, "underlay", &mut script);
    output::print(&String::from_utf8_lossy(&script));
    Ok(ExitCode::SUCCESS)
}

/// A page for each command: `underlay.1`, `underlay-run.1`.
pub(crate) fn man(folder: &Path) -> Result<ExitCode, ExitFailure> {
    let failed = |error: io::Error| {
        ExitFailure::from_place_error(
            format!("cannot write the man pages to {}: {error}", folder.display()),
            &error,
        )
    };
    let pages = Folder::make(folder, Access::Readable).map_err(failed)?;
    // The commit changes the page of no command.
    let mut command = shown(CliArguments::command()).version(env!("CARGO_PKG_VERSION"));
    command.build();
    write_pages(command, true, &pages).map_err(failed)?;
    output::print(&format!("the man pages are in {0}: man -l {0}/underlay.1", folder.display()));
    Ok(ExitCode::SUCCESS)
}

/// The page of a command and those of its subcommands. Each is written whole, and no link of somebody else's is
/// followed.
fn write_pages(command: clap::Command, is_main: bool, pages: &Folder) -> io::Result<()> {
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        write_pages(inner.clone(), false, pages)?;
    }
    let (name, page) = page::render(command, is_main)?;
    pages.replace(&name, Access::Readable, &page)
}

/// The command as shells complete it: with the names that arguments take beside files, which the parser leaves to the
/// command.
fn with_known_values(command: clap::Command) -> clap::Command {
    let media = || catalogue::builtin().iter().map(|medium| medium.name.as_str());
    let layouts = || catalogue::layouts().iter().map(|layout| layout.name.as_str());
    let devices: Vec<&'static str> = media().chain(layouts()).collect();
    let storages: Vec<&'static str> = storage::aliases().chain(media()).chain(layouts()).collect();
    let systems = || underlay_systems::names();
    command
        .mut_subcommand("new", |new| {
            let new = taking_one_of(systems(), "system", new);
            let new = taking_one_of(storages, "storage", new);
            taking_one_of(bundled_studies::names().collect(), "like", new)
        })
        .mut_subcommand("ycsb", |ycsb| {
            taking_one_of(OperationMix::NAMES.to_vec(), "mix", taking_one_of(systems(), "system", ycsb))
        })
        .mut_subcommand("mount", |mount| {
            let mount = taking_one_of(devices.clone(), "medium", mount);
            taking_one_of(vec!["xfs", "ext4"], "filesystem", mount)
        })
        .mut_subcommand("media", |media| {
            media
                .mut_subcommand("show", |show| taking_one_of(devices.clone(), "name", show))
                .mut_subcommand("verify", |verify| taking_one_of(devices, "medium", verify))
        })
}

/// With these values of an argument, which keeps its place among the others, as it would not with `mut_arg`.
fn taking_one_of(values: Vec<&'static str>, id: &str, command: clap::Command) -> clap::Command {
    let values = PossibleValuesParser::new(values);
    command.mut_args(|argument| match argument.get_id() == id {
        true => argument.value_parser(values.clone()),
        false => argument,
    })
}

/// Without `help`, which `--help` is.
fn shown(command: clap::Command) -> clap::Command {
    command.disable_help_subcommand(true).mut_subcommands(shown)
}
