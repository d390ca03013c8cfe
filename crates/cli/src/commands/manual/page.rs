//! One man page: `clap_mangen`'s parts under the headings that man pages have, with values in the synopsis.

use std::io;

use clap::{Arg, Command};
use clap_mangen::Man;
use roff::{Roff, roman};

/// Under each command's own page.
const EXIT_STATUS: &str = "0 when everything that was asked for was done. underlay(1) has the other codes.";

/// The program's files, by place.
const FILES: [(&str, &str); 5] = [
    ("runs/NAME-TIME/", "a run: run.json, a record for each cell in cells/, and report.html"),
    (
        "/run/underlay/, $XDG_RUNTIME_DIR/underlay/",
        "what running commands have made on this host, for underlay-clean(1)",
    ),
    ("$UNDERLAY_RUNTIME_DIR", "another directory for that"),
    ("~/.cache/underlay/, $XDG_CACHE_HOME/underlay/", "the programs of data systems, once they were fetched"),
    ("$UNDERLAY_CACHE", "another directory for those"),
];

/// The page of a command that is built, and the name of its file.
pub(super) fn render(command: Command, is_main: bool) -> io::Result<(String, Vec<u8>)> {
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let usage = usage(&command);
    let command = command.override_usage(usage).subcommand_help_heading("COMMANDS").mut_args(|argument| {
        let heading = if argument.is_positional() { "Arguments" } else { "Options" };
        argument.help_heading(heading)
    });
    let has_commands = command.has_subcommands();
    let manual = Man::new(command).source(concat!("underlay ", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    manual.render_title(&mut page)?;
    manual.render_name_section(&mut page)?;
    manual.render_synopsis_section(&mut page)?;
    manual.render_description_section(&mut page)?;
    manual.render_options_section(&mut page)?;
    if has_commands {
        manual.render_subcommands_section(&mut page)?;
    }
    let mut rest = Roff::new();
    if !is_main {
        section(&mut rest, "EXIT STATUS", &[EXIT_STATUS]);
    }
    let sections = sections(&after);
    for (heading, lines) in &sections {
        section(&mut rest, heading, lines);
    }
    if is_main {
        rest.control("SH", ["FILES"]);
        for (place, purpose) in FILES {
            rest.control("TP", []).text([roman(place)]).text([roman(purpose)]);
        }
    } else {
        section(&mut rest, "SEE ALSO", &["underlay(1)"]);
    }
    rest.to_writer(&mut page)?;
    if is_main {
        manual.render_version_section(&mut page)?;
    }
    Ok((manual.get_filename(), page))
}

/// Every option with its value, then the arguments.
fn usage(command: &Command) -> String {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let shown = || command.get_arguments().filter(|argument| !argument.is_hide_set());
    let is_own = |argument: &&Arg| !matches!(argument.get_id().as_str(), "help" | "version");
    let options = shown().filter(|argument| !argument.is_positional()).filter(is_own).map(option);
    let arguments = command.get_positionals().filter(|argument| !argument.is_hide_set()).map(positional);
    let inner = command.has_subcommands().then(|| match command.is_subcommand_required_set() {
        true => "<COMMAND>".to_owned(),
        false => "[COMMAND]".to_owned(),
    });
    let words: Vec<String> =
        std::iter::once(name.to_owned()).chain(options).chain(arguments).chain(inner).collect();
    words.join(" ")
}

/// `[-P <FILE>]`, `[--resume [<RUN>]]`.
fn option(option: &Arg) -> String {
    let name = match (option.get_long(), option.get_short()) {
        (Some(long), _) => format!("--{long}"),
        (None, short) => format!("-{}", short.unwrap_or('?')),
    };
    let range = option.get_num_args().unwrap_or_default();
    let value = option.get_value_names().map(|names| names.join(" ")).unwrap_or_default();
    let text = match (range.takes_values(), range.min_values()) {
        (false, _) => name,
        (true, 0) => format!("{name} [<{value}>]"),
        (true, _) => format!("{name} <{value}>"),
    };
    if option.is_required_set() { text } else { format!("[{text}]") }
}

/// `<PATH>`, `[RUN]...`, `[-- COMMAND...]`.
fn positional(argument: &Arg) -> String {
    let value = argument.get_value_names().map(|names| names.join(" "));
    let value = value.unwrap_or_else(|| argument.get_id().as_str().to_uppercase());
    let most = argument.get_num_args().map_or(1, |range| range.max_values());
    let more = if most > 1 { "..." } else { "" };
    match (argument.is_last_set(), argument.is_required_set()) {
        (true, _) => format!("[-- <{value}>{more}]"),
        (false, true) => format!("<{value}>{more}"),
        (false, false) => format!("[<{value}>{more}]"),
    }
}

/// The text after a command's help by its headings, which end in a colon; what has none describes how things work.
fn sections(text: &str) -> Vec<(&'static str, Vec<&str>)> {
    let mut sections: Vec<(&'static str, Vec<&str>)> = Vec::new();
    for line in text.lines() {
        let heading = match line {
            "Examples:" | "Example:" => Some("EXAMPLES"),
            "Exit codes:" => Some("EXIT STATUS"),
            _ if sections.is_empty() => Some("NOTES"),
            _ => None,
        };
        if let Some(heading) = heading {
            sections.push((heading, Vec::new()));
        }
        if !line.ends_with(':') || heading.is_none() {
            sections.last_mut().expect("one was begun").1.push(line);
        }
    }
    sections
}

/// Lines as they stand where they are indented, and as a paragraph where they are not.
fn section<S: AsRef<str>>(page: &mut Roff, heading: &str, lines: &[S]) {
    page.control("SH", [heading]);
    let is_laid_out = lines.iter().any(|line| line.as_ref().starts_with(' '));
    if is_laid_out {
        page.control("nf", []);
    }
    for line in lines {
        page.text([roman(line.as_ref())]);
    }
    if is_laid_out {
        page.control("fi", []);
    }
}
