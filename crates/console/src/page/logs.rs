//! Logs of the processes of a run, followed while it goes on.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use maud::{Markup, html};
use serde_json::{Value, json};
use underlay_files::plain_file;

use super::frame::NavigationTarget;
use super::words::escaped;
use super::{PageFrame, PageTopic};
use crate::hub::{ConsoleHub, FollowedRun};

/// Of a log's end.
const SHOWN_BYTES: u64 = 48 << 10;
const MAX_LOGS: usize = 200;
const MAX_DEPTH: usize = 5;
const MAX_ENTRIES: usize = 20_000;

pub(crate) fn logs(hub: &ConsoleHub, name: &str, file: Option<&str>) -> Result<Markup, String> {
    let found = hub.with(name, found)?;
    let address = format!("/runs/{}", escaped(name));
    let chosen = file.filter(|file| found.contains_key(*file));
    let topic = chosen.map(|file| PageTopic::Log { name: name.to_owned(), file: file.to_owned() });
    let text = chosen.map(|file| fragments(hub, name, file)).transpose()?;
    let content = html! {
        div.head { h1 { "Logs" } p.muted { a href=(address) { (name) } } }
        section {
            @if found.is_empty() { p.muted { "There are none now: logs of a cell lie in its scratch directory while it runs. The end of a log is in the record of a cell that failed." } }
            ul.logs { @for (log, path) in &found {
                li {
                    @if Some(log.as_str()) == chosen { strong aria-current="true" { (log) } } @else { a href={ (address) "/logs?file=" (escaped(log)) } { (log) } }
                    span.dim { " " (std::fs::metadata(path).map_or(0, |found| found.len())) " bytes" }
                }
            } }
        }
        @if let (Some(log), Some(pieces)) = (chosen, text) {
            section { h2 { (log) } div #log-text { @for (_, markup) in &pieces { (markup) } } }
        } @else if file.is_some() { section { p { "That log is not there any more." } } }
    };
    Ok(PageFrame {
        topic: topic.as_ref(),
        place: Some(NavigationTarget::Runs),
        ..PageFrame::new("Logs", content)
    }
    .draw())
}

/// The same for programs: which logs there are, and the end of the one that is named; nothing where that is not there.
///
/// # Errors
/// When the run or the log can't be read.
pub(crate) fn logs_as_json(
    hub: &ConsoleHub,
    name: &str,
    file: Option<&str>,
) -> Result<Option<Value>, String> {
    let found = hub.with(name, found)?;
    let Some(file) = file else {
        let logs = found.iter().map(|(log, path)| {
            json!({ "file": log, "bytes": std::fs::metadata(path).map_or(0, |found| found.len()) })
        });
        return Ok(Some(logs.collect()));
    };
    let Some(path) = found.get(file) else { return Ok(None) };
    let text = end_of(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(Some(json!({ "file": file, "end": text })))
}

pub(super) fn fragments(hub: &ConsoleHub, name: &str, file: &str) -> Result<Vec<(String, Markup)>, String> {
    let found = hub.with(name, found)?;
    let Some(path) = found.get(file) else { return Err(format!("the log {file} is not there any more")) };
    let text = end_of(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(vec![("log-text".to_owned(), html! { pre.log tabindex="0" { (text) } })])
}

/// The end of a log, from the beginning of a line on, even if it is no UTF-8.
fn end_of(path: &Path) -> std::io::Result<String> {
    let Some(mut file) = plain_file::open(path)? else { return Ok(String::new()) };
    let length = file.metadata()?.len();
    let from = length.saturating_sub(SHOWN_BYTES);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    File::take(file, SHOWN_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let text = match (from > 0, text.split_once('\n')) {
        (true, Some((_, rest))) => rest.to_owned(),
        _ => text.into_owned(),
    };
    // Characters that move a terminal's cursor are left out.
    Ok(text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect())
}

/// The logs of a run by the name that its page gives them: those of the cell that runs, and those kept beside records.
fn found(run: &FollowedRun) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    let scratch = run.watched.scratch.as_ref().filter(|_| run.is_running()).map(PathBuf::from);
    let mut budget = MAX_ENTRIES;
    // No link leads elsewhere.
    let is_real = |base: &PathBuf| std::fs::symlink_metadata(base).is_ok_and(|found| found.is_dir());
    for (above, base) in
        scratch.into_iter().map(|scratch| ("now", scratch)).chain([("cells", run.directory.join("cells"))])
    {
        if is_real(&base) {
            walk(&base, &base, above, MAX_DEPTH, &mut budget, &mut found);
        }
    }
    found
}

fn walk(
    base: &Path,
    folder: &Path,
    above: &str,
    depth: usize,
    budget: &mut usize,
    found: &mut BTreeMap<String, PathBuf>,
) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    // A mounted file system is what is measured: looking around in it would be load.
    let device = std::fs::symlink_metadata(base).map(|found| found.dev());
    for entry in entries.flatten() {
        if *budget == 0 || found.len() >= MAX_LOGS {
            return;
        }
        *budget -= 1;
        let path = entry.path();
        let Ok(metadata) = std::fs::symlink_metadata(&path) else { continue };
        if metadata.is_dir() && depth > 0 && device.as_ref().is_ok_and(|device| *device == metadata.dev()) {
            walk(base, &path, above, depth - 1, budget, found);
        } else if metadata.is_file()
            && is_log(&path)
            && let Ok(inner) = path.strip_prefix(base)
        {
            found.insert(format!("{above}/{}", inner.display()), path.clone());
        }
    }
}

fn is_log(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or("");
    matches!(ending, "log" | "out" | "err")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_end_is_shown_as_text_from_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.log");
        let line = "0123456789 <script>alert(1)</script>\x1b[31m\n";
        std::fs::write(&path, line.repeat(4000)).unwrap();
        let end = end_of(&path).unwrap();
        assert!(end.starts_with("0123456789") && end.len() as u64 <= SHOWN_BYTES && !end.contains('\x1b'));
        std::fs::write(&path, b"\xff\xfe broken").unwrap();
        assert!(end_of(&path).unwrap().ends_with(" broken"));
    }

    #[test]
    fn only_logs_are_found_and_no_link_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path_of = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(path_of("cell/scratch-0")).unwrap();
        for name in ["cell/scratch-0/engine.log", "cell/scratch-0/data.sst", "secret.log"] {
            std::fs::write(path_of(name), "x").unwrap();
        }
        std::os::unix::fs::symlink(path_of("secret.log"), path_of("cell/link.log")).unwrap();
        let mut found = BTreeMap::new();
        walk(&path_of("cell"), &path_of("cell"), "now", MAX_DEPTH, &mut 100, &mut found);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["now/scratch-0/engine.log"]);
    }
}
