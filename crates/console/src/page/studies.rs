//! Studies: edited with their mistakes at their lines, and started.

use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;

use maud::{Markup, html};
use underlay_files::plain_file;
use underlay_report::quantity;

use super::PageFrame;
use super::frame::NavigationTarget;
use super::words::{escaped, not_shown, prose};
use crate::host::{StudyCheck, StudyMistake};
use crate::hub::ConsoleHub;

const MAX_LISTED: usize = 500;
/// A longer study is listed without its title.
const MAX_TITLED_BYTES: u64 = 256 << 10;
/// Of a new study.
const BEGINNING: &str = "name = \"my-study\"\nbaseline = \"hdd\"\n\n[system.rocksdb]\nmemory = \"256 MiB\"\n\n[storage.hdd]\ndevices = [{ medium = \"hdd-7200-sata\" }]\n\n[storage.flash]\ndevices = [{ medium = \"ssd-sata\" }]\n\n[workload.ycsb]\ndata = \"1 GB\"\nmixes = [\"a\", \"c\"]\nthreads = 8\n\n[run]\nwarmup = \"5 s\"\nduration = \"20 s\"\nrepetitions = 1\n";

/// The names of the studies in the directory, the first ones where it has very many, and how many more there are.
pub(crate) fn study_files(hub: &ConsoleHub) -> (Vec<String>, usize) {
    let entries = std::fs::read_dir(&hub.studies).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut first = BTreeSet::new();
    let mut left_out = 0;
    for name in names.filter(|name| name.ends_with(".toml")) {
        first.insert(name);
        if first.len() > MAX_LISTED {
            first.pop_last();
            left_out += 1;
        }
    }
    (first.into_iter().collect(), left_out)
}

/// The studies in the directory, by their names.
pub(crate) fn studies(hub: &ConsoleHub) -> Markup {
    let (names, left_out) = study_files(hub);
    // A relative one says nothing to somebody who did not start the console.
    let directory = std::path::absolute(&hub.studies).unwrap_or_else(|_| hub.studies.clone());
    let directory = directory.components().collect::<PathBuf>();
    let title = |name: &String| {
        let bytes = plain_file::read(&hub.studies.join(name), MAX_TITLED_BYTES).ok()??;
        hub.host.study_title(&String::from_utf8(bytes).ok()?)
    };
    let content = html! {
        div.head { h1 { "Studies" } p.muted { "In " code { (directory.display()) } } }
        section {
            @if names.is_empty() { p.muted { "There is none in this directory." } }
            ul { @for name in &names { li {
                a href={ "/studies/edit?file=" (escaped(name)) } { (name) }
                @if let Some(title) = title(name) { span.muted { " " (title) } }
            } } }
            (not_shown(left_out, "further file"))
            p.buttons { a.button href="/studies/edit" { "Write a new one" } }
        }
    };
    PageFrame { place: Some(NavigationTarget::Studies), ..PageFrame::new("Studies", content) }.draw()
}

/// The editor of a study. Without a text, a new one begins.
/// `read` tells what the file held when it was read; nothing of a new one.
pub(crate) fn editor(
    hub: &ConsoleHub,
    file: &str,
    text: Option<&str>,
    read: &str,
    message: Option<&str>,
) -> Markup {
    let text = text.unwrap_or(BEGINNING);
    let checked = hub.host.check(&hub.studies.join(file), text);
    let title = if file.is_empty() { "A new study" } else { file };
    let wrong = wrong_lines(&checked);
    let content = html! {
        div.head { h1 { (title) } p.muted { a href="/studies" { "All studies" } } }
        @if let Some(message) = message { p.box role="alert" { (prose(message)) } }
        section {
            form #editor method="post" action="/studies/save" {
                input type="hidden" name="form" value=(hub.form_secret.reveal());
                input type="hidden" name="read" value=(read);
                p {
                    label for="file" { "File" } " "
                    input #file name="file" value=(file) placeholder="my-study.toml" required pattern="[A-Za-z0-9_][A-Za-z0-9_.\\-]*\\.toml" title="A plain name that ends with .toml";
                }
                // Above the text, which may be longer than a screen.
                div #check role="status" { (check_result(&checked)) }
                div.editor {
                    pre #lines aria-hidden="true" { @for line in 1..=text.lines().count().max(1) {
                        @if wrong.contains(&line) { b { (line) } } @else { (line) } "\n"
                    } }
                    textarea #text name="text" spellcheck="false" autocomplete="off" wrap="off" rows="28" aria-label="The study's text" aria-describedby="check" { (maud::PreEscaped("\n")) (text) }
                }
                p.buttons {
                    button type="submit" name="then" value="save" { "Save" }
                    button type="submit" name="then" value="start" { "Save and start" }
                    // The script shows it once the text has such a section.
                    button #start-short type="submit" name="then" value="start-short" hidden[!checked.has_short] { "Save and start its short form" }
                }
            }
        }
    };
    PageFrame { place: Some(NavigationTarget::Studies), ..PageFrame::new(title, content) }.draw()
}

/// The lines of mistakes, from 1.
fn wrong_lines(checked: &StudyCheck) -> HashSet<usize> {
    checked.mistakes.iter().filter(|mistake| !mistake.is_note).filter_map(|mistake| mistake.line).collect()
}

/// The result of a check, with the lines that it is about.
pub(crate) fn check_result(checked: &StudyCheck) -> Markup {
    html! {
        @if checked.is_sound() {
            p.sound data-short[checked.has_short] {
                "✓ " (quantity::plural(checked.cells.len(), "cell")) ", " (quantity::plural(checked.repetitions as usize, "repetition")) " each, at least " (quantity::duration(checked.measuring_s)) " of measuring"
            }
        } @else {
            p.bad { "✗ " (quantity::plural(checked.mistakes.iter().filter(|one| !one.is_note).count(), "mistake")) }
        }
        @if !checked.mistakes.is_empty() { ul.mistakes { @for mistake in &checked.mistakes { (one(mistake)) } } }
    }
}

fn one(mistake: &StudyMistake) -> Markup {
    html! {
        li.bad[!mistake.is_note] data-line=[mistake.line] {
            @if let (Some(line), Some(column)) = (mistake.line, mistake.column) { button.small type="button" data-goto=(line) data-column=(column) { "line " (line) } " " }
            @if mistake.is_note { "note: " }
            (prose(&mistake.message))
            @if let Some(label) = &mistake.label { span.dim { " (" (prose(label)) ")" } }
            @if let Some(help) = &mistake.help { small.below { (prose(help)) } }
        }
    }
}
