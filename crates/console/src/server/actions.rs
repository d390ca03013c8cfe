//! Requests that change something: POST alone, with the word of a form of ours or by the Unix socket, and where it
//! can't be undone, asked before.

mod faults;
mod fields;

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Form, Path, State};
use serde_json::{Value, json};

use super::ServerShared;
use super::answer::{ActionRefusal, HtmlPage, PageAnswer};
use super::caller::{AnswerForm as ReadAs, CallerInfo, RequestCaller};
use super::login::ADDRESS_VALID;
use super::named_runs::{run_directory, with_run};
use super::work::{CommandTarget, WorkKind, WorkPermit};
use crate::host::{NodeAction, RunAction};
use crate::page;
use crate::page::escaped;

pub(super) use faults::{fault_of_host, fault_of_run};
use fields::FormFields;
pub(super) use fields::FormPairs;

type ActionState = State<Arc<ServerShared>>;
type ActionCaller = Extension<CallerInfo>;
type ActionResult = Result<PageAnswer, ActionRefusal>;

/// A request to do something, before it is done.
pub(super) struct ActionRequest {
    pub asking: CallerInfo,
    pub fields: FormFields,
}

impl ActionRequest {
    /// The outcome: for programs in words, for a person on the page where they were.
    pub(super) fn done(&self, reply: &Value, back: &str) -> ActionResult {
        PageAnswer::done(self.asking.form, reply, back)
    }

    /// The question whether that is meant, where nobody has said so yet. A program means what it says.
    fn unconfirmed(&self, question: &ActionConfirmation<'_>) -> Option<ActionResult> {
        if self.asking.caller == RequestCaller::OwnProgram || self.fields.text("confirmed") == "yes" {
            return None;
        }
        let ActionConfirmation { question, what: consequence, does: button, action, back } = question;
        let fields = self.fields.all();
        Some(match self.asking.form {
            ReadAs::Json => {
                Err(ActionRefusal::conflict(format!("{question} {consequence} Send confirmed=yes to do it.")))
            }
            ReadAs::Page => PageAnswer::view(
                ReadAs::Page,
                || Ok(HtmlPage::Framed(page::confirm(question, consequence, button, action, back, &fields))),
                || Ok(String::new()),
            ),
        })
    }

    /// Does what is meant, or asks whether it is.
    fn once_confirmed(
        &self,
        question: &ActionConfirmation<'_>,
        act: impl FnOnce() -> Result<String, ActionRefusal>,
    ) -> ActionResult {
        if let Some(outcome) = self.unconfirmed(question) {
            return outcome;
        }
        self.done(&json!({ "done": act()? }), question.back)
    }
}

/// The question before an action.
struct ActionConfirmation<'a> {
    question: &'a str,
    /// The action's effect.
    what: &'a str,
    /// The text of the button.
    does: &'a str,
    /// Where the answer goes.
    action: &'a str,
    /// The page that the caller came from.
    back: &'a str,
}

/// Checks who asks, and with which fields.
fn asked(
    shared: &ServerShared,
    asking: CallerInfo,
    pairs: FormPairs,
    known_fields: &[&str],
) -> Result<ActionRequest, ActionRefusal> {
    let fields = FormFields::new(pairs, known_fields, asking.caller)?;
    let asked = ActionRequest { asking, fields };
    match asking.caller {
        RequestCaller::OwnProgram => Ok(asked),
        RequestCaller::Session if shared.hub.form_secret.is(asked.fields.text("form")) => Ok(asked),
        RequestCaller::Session => Err(ActionRefusal::forbidden(
            "this form is not from this console, which may have restarted: reload the page",
        )),
        // The guard lets it in nowhere but to look.
        RequestCaller::Monitor => Err(ActionRefusal::forbidden("the token of --token-file only reads")),
    }
}

/// Does what is asked for on a thread of its kind.
pub(super) async fn act(
    shared: Arc<ServerShared>,
    (asking, Form(pairs)): (CallerInfo, Form<FormPairs>),
    known_fields: &'static [&'static str],
    kind: WorkKind,
    act: impl FnOnce(&ServerShared, &ActionRequest) -> ActionResult + Send + 'static,
) -> ActionResult {
    let asked = asked(&shared, asking, pairs, known_fields)?;
    let turn = shared.work.turn(kind).await?;
    turn.spend(move || act(&shared, &asked)).await?
}

pub(super) fn run_address(name: &str) -> String {
    format!("/runs/{}", escaped(name))
}

pub(super) async fn skip(
    State(shared): ActionState,
    Extension(asking): ActionCaller,
    Path(name): Path<String>,
    form: Form<FormPairs>,
) -> ActionResult {
    act(shared, (asking, form), &["position"], WorkKind::Command, move |shared, asked| {
        let back = run_address(&name);
        let position: u32 = asked.fields.number("position", "a cell's place in the plan, from 0")?;
        // Not through the pages' shared state: a page that waits does not hold up a command.
        let directory = run_directory(shared, &name)?;
        let head = shared.hub.runs.head(&name).map_err(ActionRefusal::failed)?;
        let planned = head.plan.get(position as usize);
        let cell = planned.map(|planned| format!("{}, repetition {}", planned.cell.id, planned.repetition));
        let cell = cell.ok_or_else(|| {
            ActionRefusal::missing(format!("the plan has no cell {position}: it has {} cells, from 0", head.plan.len()))
        })?;
        let question = ActionConfirmation {
            question: &format!("Skip {cell}?"),
            what: "It is recorded as skipped on command, and the run goes on with the next cell. `underlay run --resume` measures it later.",
            does: "Skip it",
            action: &format!("{back}/skip"),
            back: &back,
        };
        asked.once_confirmed(&question, || {
            let target = CommandTarget::Run { directory: directory.clone(), action: "skip" };
            let _held = shared.under_way.begin(target)?;
            let outcome = shared.hub.host.command_run(&directory, RunAction::Skip(position));
            outcome.map(|()| format!("{cell} is skipped")).map_err(ActionRefusal::conflict)
        })
    })
    .await
}

pub(super) async fn stop(
    State(shared): ActionState,
    Extension(asking): ActionCaller,
    Path(name): Path<String>,
    form: Form<FormPairs>,
) -> ActionResult {
    act(shared, (asking, form), &[], WorkKind::Command, move |shared, asked| {
        let back = run_address(&name);
        let directory = run_directory(shared, &name)?;
        let question = ActionConfirmation {
            question: "Stop the run?",
            what: "It ends as by Ctrl-C: finished cells are kept, the running one is not, and `underlay run --resume` goes on.",
            does: "Stop it",
            action: &format!("{back}/stop"),
            back: &back,
        };
        asked.once_confirmed(&question, || {
            let target = CommandTarget::Run { directory: directory.clone(), action: "stop" };
            let _held = shared.under_way.begin(target)?;
            let outcome = shared.hub.host.command_run(&directory, RunAction::Stop);
            outcome.map(|()| "the run stops".to_owned()).map_err(ActionRefusal::conflict)
        })
    })
    .await
}

pub(super) async fn node(
    State(shared): ActionState,
    Extension(asking): ActionCaller,
    Path(name): Path<String>,
    Form(pairs): Form<FormPairs>,
) -> ActionResult {
    let asked = asked(&shared, asking, pairs, &["node", "action"])?;
    let node = asked.fields.needed("node")?.to_owned();
    let (command, word) = match asked.fields.text("action") {
        "stop" => (NodeAction::Stop, "Stop"),
        "kill" => (NodeAction::Kill, "Kill"),
        "start" => (NodeAction::Start, "Start"),
        other => {
            return Err(ActionRefusal::invalid(format!(
                "action: expected stop, kill or start, not {other:?}"
            )));
        }
    };
    let back = format!("{}#topology", run_address(&name));
    let question = ActionConfirmation {
        question: &format!("{word} node {node}?"),
        what: "The cell's record shows the effect on clients.",
        does: word,
        action: &format!("{}/nodes", run_address(&name)),
        back: &back,
    };
    if let Some(outcome) = asked.unconfirmed(&question) {
        return outcome;
    }
    let process = {
        let (shared, turn) = (Arc::clone(&shared), shared.work.turn(WorkKind::Look).await?);
        turn.spend(move || with_run(&shared, &name, |run| run.process)).await??
    };
    let process = process.ok_or_else(|| ActionRefusal::conflict("the run has ended"))?;
    // Before a thread is taken, and for as long as the command lasts.
    let guard = shared.under_way.begin(CommandTarget::Node { process, node: node.clone(), action: word })?;
    let turn: WorkPermit = shared.work.turn(WorkKind::Node).await?;
    let host = Arc::clone(&shared.hub.host);
    if asking.form == ReadAs::Page {
        // It may take minutes, for which no page waits: events report the outcome.
        turn.leave_to_it(move || {
            drop(host.command_node(process, &node, command));
            drop(guard);
        });
        return asked.done(&Value::Null, &back);
    }
    let commanded = move || {
        let outcome = host.command_node(process, &node, command);
        drop(guard);
        outcome
    };
    let done = turn.spend(commanded).await?;
    asked.done(&json!({ "done": done.map_err(ActionRefusal::conflict)? }), &back)
}

pub(super) async fn stop_service(
    State(shared): ActionState,
    Extension(asking): ActionCaller,
    form: Form<FormPairs>,
) -> ActionResult {
    act(shared, (asking, form), &["process"], WorkKind::Command, |shared, asked| {
        let process: u32 = asked.fields.number("process", "the number of a process")?;
        let question = ActionConfirmation {
            question: &format!("Stop process {process}?"),
            what: "It shuts down in order. Everything that it serves goes away, and its users lose access.",
            does: "Stop it",
            action: "/host/stop",
            back: "/host",
        };
        asked.once_confirmed(&question, || {
            let _held = shared.under_way.begin(CommandTarget::Process(process))?;
            shared.hub.host.stop_service(process).map_err(ActionRefusal::conflict)
        })
    })
    .await
}

/// Another address that opens a session. It goes to the caller who may do everything already: the socket's owner.
pub(super) async fn new_address(
    State(shared): ActionState,
    Extension(asking): ActionCaller,
    form: Form<FormPairs>,
) -> ActionResult {
    if asking.caller != RequestCaller::OwnProgram {
        return Err(ActionRefusal::forbidden(
            "a new address is printed by `underlay console --new-address`, for the console's user alone",
        ));
    }
    act(shared, (asking, form), &["into"], WorkKind::Entry, |shared, asked| {
        let failed =
            |error: std::io::Error| ActionRefusal::failed(format!("there is no new address: {error}"));
        let valid_s = ADDRESS_VALID.as_secs();
        let reply = match asked.fields.text("into") {
            "" => json!({ "address": shared.entry.issue().map_err(failed)?, "valid_s": valid_s }),
            "file" => json!({ "file": shared.entry.issue_into_file().map_err(failed)?, "valid_s": valid_s }),
            other => {
                return Err(ActionRefusal::invalid(format!("into: expected file or nothing, not {other:?}")));
            }
        };
        asked.done(&reply, "/")
    })
    .await
}
