//! What changes something: POST alone, with the word of a form of ours or a script's token, and where it can't be undone, asked before.

use std::collections::BTreeMap;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Form, Path, State};
use axum::http::StatusCode;
use underlay_files::{Access, Folder};

use super::Shared;
use super::answer::{self, Answer};
use super::guard::Shown;
use super::leisure::at_leisure;
use crate::host::{FaultAction, NodeAction, RunAction};
use crate::page;
use crate::page::escaped;

const MAX_STUDY_BYTES: u64 = 4 << 20;

type Of = State<Arc<Shared>>;
type Fields = BTreeMap<String, String>;

/// A request to do something, before it is done.
struct Asked {
    shown: Shown,
    fields: Fields,
}

impl Asked {
    fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    /// A script means what it says.
    fn is_confirmed(&self) -> bool {
        self.shown == Shown::Bearer || self.field("confirmed") == "yes"
    }

    /// The question whether that is meant, where nobody has said so yet.
    fn unconfirmed(&self, question: &Question<'_>) -> Option<Answer> {
        if self.is_confirmed() {
            return None;
        }
        let Question { question, what, does, action, back } = question;
        let fields: Vec<(String, String)> =
            self.fields.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
        Some(answer::html(page::confirm(question, what, does, action, back, &fields)))
    }

    /// Does what is meant, or asks whether it is.
    fn once_confirmed(
        &self,
        question: &Question<'_>,
        act: impl FnOnce() -> Result<String, String>,
    ) -> Answer {
        self.unconfirmed(question).unwrap_or_else(|| self.done(act(), question.back))
    }

    /// What came of it: for a script in words, for a person where they were.
    fn done(&self, outcome: Result<String, String>, back: &str) -> Answer {
        match (outcome, self.shown) {
            (Ok(_), Shown::Cookie) => answer::see(back),
            (Ok(what), Shown::Bearer) => answer::json(&serde_json::json!({ "done": what })),
            (Err(problem), Shown::Cookie) => answer::problem(StatusCode::CONFLICT, &problem),
            (Err(problem), Shown::Bearer) => {
                let mut answer = answer::json(&serde_json::json!({ "problem": problem }));
                *answer.status_mut() = StatusCode::CONFLICT;
                answer
            }
        }
    }
}

/// What is asked before something is done.
struct Question<'a> {
    question: &'a str,
    /// What comes of it.
    what: &'a str,
    /// What the button says that does it.
    does: &'a str,
    /// Where the answer goes.
    action: &'a str,
    /// Where whoever asked was.
    back: &'a str,
}

/// Checks that the request has the word of our forms, and does it.
async fn act(
    shared: Arc<Shared>,
    shown: Shown,
    fields: Fields,
    act: impl FnOnce(&Shared, &Asked) -> Result<Answer, String> + Send + 'static,
) -> Answer {
    let asked = Asked { shown, fields };
    if shown == Shown::Cookie && !shared.hub.form_secret.is(asked.field("form")) {
        return answer::problem(
            StatusCode::FORBIDDEN,
            "This form is not of this console, which may have started anew: load the page again.",
        );
    }
    at_leisure(shared, move |shared| act(shared, &asked)).await
}

fn directory_of(shared: &Shared, name: &str) -> Result<PathBuf, String> {
    shared.hub.runs.directory(name).ok_or_else(|| format!("there is no run {name:?} here"))
}

fn run_address(name: &str) -> String {
    format!("/runs/{}", escaped(name))
}

pub(super) async fn skip(
    State(shared): Of,
    Extension(shown): Extension<Shown>,
    Path(name): Path<String>,
    Form(fields): Form<Fields>,
) -> Answer {
    act(shared, shown, fields, move |shared, asked| {
        let back = run_address(&name);
        let position: u32 = asked.field("position").parse().map_err(|_| "which cell is meant?".to_owned())?;
        // Not through what pages share: whatever keeps a page waiting does not keep a command.
        let directory = directory_of(shared, &name)?;
        let head = shared.hub.runs.head(&name)?;
        let planned = head.plan.get(position as usize);
        let cell = planned.map(|planned| format!("{}, repetition {}", planned.cell.id, planned.repetition));
        let cell = cell.ok_or_else(|| format!("the plan has no cell {position}"))?;
        let question = Question {
            question: &format!("Skip {cell}?"),
            what: "It is recorded as skipped on command, and the run goes on with the next cell. `underlay run --resume` measures it later.",
            does: "Skip it",
            action: &format!("{back}/skip"),
            back: &back,
        };
        Ok(asked.once_confirmed(&question, || {
            let outcome = shared.hub.host.command_run(&directory, RunAction::Skip(position));
            outcome.map(|()| format!("{cell} is skipped"))
        }))
    })
    .await
}

pub(super) async fn stop(
    State(shared): Of,
    Extension(shown): Extension<Shown>,
    Path(name): Path<String>,
    Form(fields): Form<Fields>,
) -> Answer {
    act(shared, shown, fields, move |shared, asked| {
        let back = run_address(&name);
        let directory = directory_of(shared, &name)?;
        let question = Question {
            question: "Stop the run?",
            what: "It ends as by Ctrl-C: what was finished is kept, the cell that runs is not, and `underlay run --resume` goes on.",
            does: "Stop it",
            action: &format!("{back}/stop"),
            back: &back,
        };
        Ok(asked.once_confirmed(&question, || {
            let outcome = shared.hub.host.command_run(&directory, RunAction::Stop);
            outcome.map(|()| "the run stops".to_owned())
        }))
    })
    .await
}

pub(super) async fn node(
    State(shared): Of,
    Extension(shown): Extension<Shown>,
    Path(name): Path<String>,
    Form(fields): Form<Fields>,
) -> Answer {
    act(shared, shown, fields, move |shared, asked| {
        let back = format!("{}#topology", run_address(&name));
        let process = shared.hub.with(&name, |run| run.process)?.ok_or("the run has ended")?;
        let node = asked.field("node").to_owned();
        let (command, word) = match asked.field("action") {
            "stop" => (NodeAction::Stop, "Stop"),
            "kill" => (NodeAction::Kill, "Kill"),
            "start" => (NodeAction::Start, "Start"),
            other => return Err(format!("{other:?} is nothing that a node can be told")),
        };
        let question = Question {
            question: &format!("{word} node {node}?"),
            what: "What clients notice of it is in the record of the cell.",
            does: word,
            action: &format!("{}/nodes", run_address(&name)),
            back: &back,
        };
        if let Some(answer) = asked.unconfirmed(&question) {
            return Ok(answer);
        }
        let place =
            shared.node_commands.take().ok_or("other commands for nodes are still under way: try again")?;
        if asked.shown == Shown::Cookie {
            // It may take minutes, for which no page waits: events tell what came of it.
            let host = Arc::clone(&shared.hub.host);
            std::thread::Builder::new()
                .name("console-node".to_owned())
                .spawn(move || {
                    let _ = host.command_node(process, &node, command);
                    drop(place);
                })
                .map_err(|error| format!("there is no thread to do it: {error}"))?;
            return Ok(answer::see(&back));
        }
        Ok(asked.done(shared.hub.host.command_node(process, &node, command), &back))
    })
    .await
}

pub(super) async fn fault_of_run(
    State(shared): Of,
    Extension(shown): Extension<Shown>,
    Path(name): Path<String>,
    Form(fields): Form<Fields>,
) -> Answer {
    let address = run_address(&name);
    act(shared, shown, fields, move |shared, asked| {
        fault(shared, asked, &format!("{address}/faults"), &format!("{address}#topology"))
    })
    .await
}

pub(super) async fn fault_of_host(
    State(shared): Of,
    Extension(shown): Extension<Shown>,
    Form(fields): Form<Fields>,
) -> Answer {
    act(shared, shown, fields, |shared, asked| fault(shared, asked, "/host/faults", "/host")).await
}

pub(super) async fn stop_service(
    State(shared): Of,
    Extension(shown): Extension<Shown>,
    Form(fields): Form<Fields>,
) -> Answer {
    act(shared, shown, fields, |shared, asked| {
        let process: u32 =
            asked.field("process").parse().map_err(|_| "which process is meant?".to_owned())?;
        let question = Question {
            question: &format!("Stop process {process}?"),
            what: "It ends in order: what it serves is taken away, and whoever uses it loses it.",
            does: "Stop it",
            action: "/host/stop",
            back: "/host",
        };
        Ok(asked.once_confirmed(&question, || shared.hub.host.stop_service(process)))
    })
    .await
}

fn fault(shared: &Shared, asked: &Asked, action: &str, back: &str) -> Result<Answer, String> {
    let device = Some(asked.field("device")).filter(|device| !device.is_empty());
    let number = |name: &str| -> Result<f64, String> {
        asked.field(name).trim().parse().map_err(|_| format!("{name}: expected a number"))
    };
    let for_s = match asked.field("for_s").trim() {
        "" => None,
        _ => Some(number("for_s")?),
    };
    let act = match asked.field("action") {
        "slow" => FaultAction::Slow { factor: number("factor")?, for_s },
        "vanish" => FaultAction::Vanish,
        "power-cut" => FaultAction::PowerCut,
        "return" => FaultAction::Return,
        "clear" => FaultAction::Clear,
        other => return Err(format!("{other:?} is nothing that can happen to a device")),
    };
    let page::FaultWords { question, what, does } = page::fault_words(&act, device);
    let question = Question { question: &question, what, does, action, back };
    Ok(asked.once_confirmed(&question, || shared.hub.host.fault(asked.field("storage"), device, &act)))
}

/// A study's name: plain, in the directory of studies and nowhere else.
fn check_name(name: &str) -> Result<(), String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let fits = name.len() <= 100
        && name.ends_with(".toml")
        && name.len() > ".toml".len()
        && !name.starts_with(['.', '-'])
        && name.chars().all(is_plain);
    match fits {
        true => Ok(()),
        false => Err(format!(
            "{name:?} can't be a study's file: expected letters, digits, '-', '_' and '.toml' at its end"
        )),
    }
}

pub(super) fn read_study(studies: &FilePath, name: &str) -> Result<String, String> {
    check_name(name)?;
    let bytes = underlay_files::plain_file::read(&studies.join(name), MAX_STUDY_BYTES)
        .map_err(|error| format!("{name}: {error}"))?
        .ok_or_else(|| format!("there is no {name} in {}", studies.display()))?;
    String::from_utf8(bytes).map_err(|_| format!("{name} is not text (UTF-8)"))
}

/// Tells one text of a study from another.
pub(super) fn mark_of(text: &str) -> String {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// What was for this user alone stays so.
fn access_of(file: &FilePath) -> Access {
    use std::os::unix::fs::PermissionsExt as _;
    match std::fs::symlink_metadata(file) {
        Ok(found) if found.permissions().mode() & 0o044 == 0 => Access::Private,
        _ => Access::Readable,
    }
}

/// Checks a text as it is typed: nothing is changed, but it is a POST since texts are long.
pub(super) async fn check(
    State(shared): Of,
    Extension(shown): Extension<Shown>,
    Form(fields): Form<Fields>,
) -> Answer {
    act(shared, shown, fields, |shared, asked| {
        let file = shared.hub.studies.join(asked.field("file"));
        let checked = shared.hub.host.check(&file, asked.field("text"));
        Ok(match asked.shown {
            Shown::Bearer => answer::json(&checked),
            Shown::Cookie => answer::html(page::check_result(&checked)),
        })
    })
    .await
}

pub(super) async fn save(
    State(shared): Of,
    Extension(shown): Extension<Shown>,
    Form(fields): Form<Fields>,
) -> Answer {
    act(shared, shown, fields, |shared, asked| {
        let (file, then) = (asked.field("file"), asked.field("then"));
        // As forms have them, lines end with both.
        let text = asked.field("text").replace("\r\n", "\n");
        let hub = &shared.hub;
        // Nothing that was typed is lost.
        let again = |said: &str, read: &str| {
            answer::html(page::editor(hub, file, Some(&text), read, Some(said)))
        };
        let read = asked.field("read");
        if let Err(problem) = check_name(file) {
            return Ok(again(&problem, read));
        }
        let starts = matches!(then, "start" | "start-short");
        if starts {
            let checked = hub.host.check(&hub.studies.join(file), &text);
            if !checked.is_sound() {
                return Ok(again("It was not started, since it has mistakes.", read));
            }
            if then == "start-short" && !checked.has_short {
                return Ok(again("It was not started: it has no `[short]` section, and so no short form.", read));
            }
        }
        // What somebody else wrote there meanwhile is not lost without a word.
        let there = hub.studies.join(file);
        if std::fs::symlink_metadata(&there).is_ok() {
            let now = mark_of(&read_study(&hub.studies, file)?);
            if now != read {
                let said = format!(
                    "{file} holds something else than what you began with. It was not saved: save again to replace it, or choose another name."
                );
                return Ok(again(&said, &now));
            }
        }
        let saved = Folder::open(&hub.studies)
            .and_then(|folder| folder.replace(file, access_of(&there), text.as_bytes()));
        if let Err(error) = saved {
            return Ok(again(&format!("{file} was not saved: {error}"), read));
        }
        let read = &mark_of(&text);
        if !starts {
            return Ok(answer::see(&format!("/studies/edit?file={}", escaped(file))));
        }
        match hub.host.start(&hub.studies.join(file), hub.runs.root(), then == "start-short") {
            Ok(directory) => {
                let name = directory.file_name().map(|name| name.to_string_lossy().into_owned());
                Ok(asked.done(Ok(directory.display().to_string()), &run_address(&name.unwrap_or_default())))
            }
            Err(problem) => Ok(again(&format!("It was saved and not started: {problem}"), read)),
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_study_is_kept_in_its_directory_and_nowhere_else() {
        for name in ["my-study.toml", "a.toml", "A_1.2.toml"] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in
            ["", ".toml", "../a.toml", "a/b.toml", "-a.toml", "a.txt", "a\0.toml", "a b.toml", ".a.toml"]
        {
            assert!(check_name(name).is_err(), "{name:?}");
        }
    }
}
