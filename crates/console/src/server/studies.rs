//! Studies: listed, read, checked, saved and started.

use std::fs::File;
use std::io;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Extension;
use axum::extract::{Form, Path, Query, State};
use axum::http::header;
use openssl::sha::sha256;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::Deserialize;
use serde_json::json;
use underlay_files::{Access, Folder};

use super::ServerShared;
use super::actions::{ActionRequest, FormPairs, act, run_address};
use super::answer::{ActionRefusal, HtmlPage, PageAnswer, json_text};
use super::caller::{AnswerForm as ReadAs, CallerInfo};
use super::work::{WorkKind, on_a_thread};
use crate::api;
use crate::page;
use crate::page::escaped;

const MAX_STUDY_BYTES: u64 = 4 << 20;
/// For others that save studies at the same place.
const HOLD_LIMIT: Duration = Duration::from_secs(5);
const HOLD_POLL: Duration = Duration::from_millis(10);
/// Where a text is checked whose file has no name yet.
const UNNAMED: &str = "study.toml";

type StudyRouteState = State<Arc<ServerShared>>;
type StudyRouteCaller = Extension<CallerInfo>;
type StudyRouteResult = Result<PageAnswer, ActionRefusal>;

pub(super) async fn list(
    State(shared): StudyRouteState,
    Extension(asking): StudyRouteCaller,
) -> StudyRouteResult {
    on_a_thread(shared, WorkKind::Look, move |shared| {
        PageAnswer::view(
            asking.form,
            || Ok(HtmlPage::Framed(page::studies(&shared.hub))),
            || json_text(&page::study_files(&shared.hub).0),
        )
    })
    .await
}

#[derive(Deserialize)]
pub(super) struct StudyQuery {
    file: Option<String>,
}

pub(super) async fn edit(
    State(shared): StudyRouteState,
    Extension(asking): StudyRouteCaller,
    Query(query): Query<StudyQuery>,
) -> StudyRouteResult {
    on_a_thread(shared, WorkKind::Check, move |shared| {
        let file = query.file.unwrap_or_default();
        let text = match file.is_empty() {
            true => None,
            false => Some(read(&shared.hub.studies, &file)?),
        };
        let mark = text.as_deref().map(mark_of).unwrap_or_default();
        PageAnswer::view(
            asking.form,
            || Ok(HtmlPage::Framed(page::editor(&shared.hub, &file, text.as_deref(), &mark, None))),
            || json_text(&json!({ "file": file, "text": text, "read": mark })),
        )
    })
    .await
}

/// A study with the mark of its text, which `/studies/save` takes as `read`.
pub(super) async fn one(State(shared): StudyRouteState, Path(file): Path<String>) -> StudyRouteResult {
    on_a_thread(shared, WorkKind::Look, move |shared| {
        let text = read(&shared.hub.studies, &file)?;
        let mark = mark_of(&text);
        let answer = PageAnswer::json(&json!({ "file": file, "text": text, "read": mark }))?;
        Ok(answer.with_header(header::ETAG, &format!("\"{mark}\"")))
    })
    .await
}

/// Checks a text as it is typed: nothing is changed, but it is a POST since texts are long.
pub(super) async fn check(
    State(shared): StudyRouteState,
    Extension(asking): StudyRouteCaller,
    form: Form<FormPairs>,
) -> StudyRouteResult {
    act(shared, (asking, form), &["file", "text", "read"], WorkKind::Check, |shared, asked| {
        let file = match asked.fields.text("file") {
            named if check_name(named).is_ok() => named,
            // Of a new one a person has not said it yet.
            other if other.is_empty() || asked.asking.form == ReadAs::Page => UNNAMED,
            other => return Err(ActionRefusal::invalid(check_name(other).unwrap_err())),
        };
        let checked = shared.hub.host.check(&shared.hub.studies.join(file), asked.fields.text("text"));
        match asked.asking.form {
            ReadAs::Page => Ok(PageAnswer::piece(page::check_result(&checked))),
            ReadAs::Json => PageAnswer::json(&api::checked(&shared.hub.studies, &checked)),
        }
    })
    .await
}

/// The action on a study after saving it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AfterSave {
    Save,
    Start { short: bool },
}

pub(super) async fn save(
    State(shared): StudyRouteState,
    Extension(asking): StudyRouteCaller,
    form: Form<FormPairs>,
) -> StudyRouteResult {
    // A save alone waits for no run that begins.
    let starts = form.0.iter().any(|(name, value)| name == "then" && value.starts_with("start"));
    let kind = if starts { WorkKind::Start } else { WorkKind::Check };
    act(shared, (asking, form), &["file", "text", "read", "then"], kind, saved).await
}

fn saved(shared: &ServerShared, asked: &ActionRequest) -> StudyRouteResult {
    let (hub, file) = (&shared.hub, asked.fields.text("file"));
    // As forms have them, lines end with both.
    let typed = asked.fields.get("text").map(|text| text.replace("\r\n", "\n"));
    // Nothing that was typed is lost.
    let again = |refusal: ActionRefusal, message: &str, read: &str| match asked.asking.form {
        ReadAs::Page => refusal.on_page(page::editor(hub, file, typed.as_deref(), read, Some(message))),
        ReadAs::Json => refusal,
    };
    let mark = asked.fields.get("read");
    let began_with = mark.unwrap_or_default();
    check_name(file).map_err(|problem| again(ActionRefusal::invalid(&problem), &problem, began_with))?;
    let then = match asked.fields.text("then") {
        "" | "save" => AfterSave::Save,
        "start" => AfterSave::Start { short: false },
        "start-short" => AfterSave::Start { short: true },
        other => {
            return Err(ActionRefusal::invalid(format!(
                "then: expected save, start or start-short, not {other:?}"
            )));
        }
    };
    let place = hub.studies.join(file);
    let text = match &typed {
        Some(text) => text.clone(),
        None if then == AfterSave::Save => {
            return Err(ActionRefusal::invalid("the field \"text\" is missing"));
        }
        // It is started as it is.
        None => read(&hub.studies, file)?,
    };
    if then != AfterSave::Save {
        let checked = hub.host.check(&place, &text);
        if !checked.is_sound() {
            let message = "It was not started, since it has mistakes.";
            let refusal =
                ActionRefusal::conflict(message).telling("errors", api::mistakes(&hub.studies, &checked));
            return Err(again(refusal, message, began_with));
        }
        if then == (AfterSave::Start { short: true }) && !checked.has_short {
            let message = "It was not started: it has no `[short]` section, and so no short form.";
            return Err(again(ActionRefusal::conflict(message), message, began_with));
        }
    }
    if typed.is_some() {
        // Of two that save at once, one finds what the other has written.
        let _saving = shared.saving.lock();
        let _held = hold(&hub.studies).map_err(|error| {
            let message = format!("{file} was not saved: {}: {error}", hub.studies.display());
            again(ActionRefusal::busy(&message), &message, began_with)
        })?;
        // Another person's changes are not lost silently. A program that says nothing of it replaces it.
        if mark.is_some() || asked.asking.form == ReadAs::Page {
            let is_there = std::fs::symlink_metadata(&place).is_ok();
            let now = if is_there { mark_of(&read(&hub.studies, file)?) } else { String::new() };
            // Of a page that has no mark, the file is a new one.
            let is_another = if asked.asking.form == ReadAs::Page { is_there } else { true };
            if is_another && now != began_with {
                let message = format!(
                    "{file} has changed since you opened it. It was not saved: save again to replace it, or choose another name."
                );
                return Err(again(
                    ActionRefusal::conflict(&message).telling("read", now.as_str().into()),
                    &message,
                    &now,
                ));
            }
        }
        let written = Folder::open(&hub.studies)
            .and_then(|folder| folder.replace(file, access_of(&place), text.as_bytes()));
        if let Err(error) = written {
            let message = format!("{file} was not saved: {error}");
            return Err(again(ActionRefusal::failed(&message), &message, began_with));
        }
    }
    let mark = mark_of(&text);
    let AfterSave::Start { short } = then else {
        let reply = json!({ "done": format!("{file} is saved"), "file": file, "read": mark });
        return asked.done(&reply, &format!("/studies/edit?file={}", escaped(file)));
    };
    match hub.host.start(&place, hub.runs.root(), short) {
        Ok(directory) => {
            let name =
                directory.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let reply = json!({ "done": directory, "run": name, "file": file, "read": mark });
            asked.done(&reply, &run_address(&name))
        }
        Err(problem) => {
            let saved = if typed.is_some() { "It was saved and not started" } else { "It was not started" };
            let message = format!("{saved}: {problem}");
            Err(again(
                ActionRefusal::conflict(&message).telling("read", mark.as_str().into()),
                &message,
                &mark,
            ))
        }
    }
}

/// The directory of studies, against other consoles that save there. Nothing where it can't be locked: writing says
/// why, if that fails too.
///
/// # Errors
/// When somebody else holds it for long.
fn hold(studies: &FilePath) -> io::Result<Option<File>> {
    let Ok(folder) = File::open(studies) else { return Ok(None) };
    let begun = Instant::now();
    loop {
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(folder)),
            Err(Errno::WOULDBLOCK | Errno::INTR) if begun.elapsed() < HOLD_LIMIT => {
                std::thread::sleep(HOLD_POLL);
            }
            Err(Errno::WOULDBLOCK | Errno::INTR) => {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("another program has had it locked for {} s", HOLD_LIMIT.as_secs()),
                ));
            }
            Err(_) => return Ok(None),
        }
    }
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

fn read(studies: &FilePath, name: &str) -> Result<String, ActionRefusal> {
    check_name(name).map_err(ActionRefusal::invalid)?;
    let bytes = underlay_files::plain_file::read(&studies.join(name), MAX_STUDY_BYTES)
        .map_err(|error| ActionRefusal::failed(format!("{name}: {error}")))?
        .ok_or_else(|| ActionRefusal::missing(format!("there is no {name} in {}", studies.display())))?;
    String::from_utf8(bytes).map_err(|_| ActionRefusal::conflict(format!("{name} is not text (UTF-8)")))
}

/// Tells one text of a study from another.
pub(super) fn mark_of(text: &str) -> String {
    base16ct::lower::encode_string(&sha256(text.as_bytes())[..16])
}

/// A private file stays private.
fn access_of(file: &FilePath) -> Access {
    use std::os::unix::fs::PermissionsExt as _;
    match std::fs::symlink_metadata(file) {
        Ok(found) if found.permissions().mode() & 0o044 == 0 => Access::Private,
        _ => Access::Readable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn study_name_cannot_leave_directory() {
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
