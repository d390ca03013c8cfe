//! Faults of devices: given, taken back, and what a power that comes back brings with it.

use axum::Extension;
use axum::extract::{Form, Path, State};

use super::{
    ActionCaller, ActionConfirmation, ActionRequest, ActionResult, ActionState, FormPairs, act, run_address,
};
use crate::host::{ConsoleHost, FaultAction};
use crate::page;
use crate::server::ServerShared;
use crate::server::answer::ActionRefusal;
use crate::server::caller::RequestCaller;
use crate::server::named_runs::run_directory;
use crate::server::work::{CommandTarget, WorkKind};

const FIELDS: [&str; 5] = ["storage", "device", "action", "factor", "for_s"];

pub(in crate::server) async fn fault_of_run(
    State(shared): ActionState,
    Extension(asking): ActionCaller,
    Path(name): Path<String>,
    form: Form<FormPairs>,
) -> ActionResult {
    let address = run_address(&name);
    act(shared, (asking, form), &FIELDS, WorkKind::Fault, move |shared, asked| {
        run_directory(shared, &name)?;
        fault(shared, asked, &format!("{address}/faults"), &format!("{address}#topology"))
    })
    .await
}

pub(in crate::server) async fn fault_of_host(
    State(shared): ActionState,
    Extension(asking): ActionCaller,
    form: Form<FormPairs>,
) -> ActionResult {
    act(shared, (asking, form), &FIELDS, WorkKind::Fault, |shared, asked| {
        fault(shared, asked, "/host/faults", "/host")
    })
    .await
}

fn fault(shared: &ServerShared, asked: &ActionRequest, action: &str, back: &str) -> ActionResult {
    let storage = asked.fields.needed("storage")?;
    let device = Some(asked.fields.text("device")).filter(|device| !device.is_empty());
    let for_s = match asked.fields.text("for_s").trim() {
        "" => None,
        _ => Some(asked.fields.number::<f64>("for_s", "a number of seconds")?),
    };
    let act = match asked.fields.text("action") {
        "slow" => {
            let factor =
                asked.fields.number("factor", "a number: how many times as long everything takes")?;
            FaultAction::Slow { factor, for_s }
        }
        "vanish" => FaultAction::Vanish,
        "power-cut" => FaultAction::PowerCut,
        "return" => FaultAction::Return,
        "clear" => FaultAction::Clear,
        other => {
            return Err(ActionRefusal::invalid(format!(
                "action: expected slow, vanish, power-cut, return or clear, not {other:?}"
            )));
        }
    };
    // A form on a page has fields for all that its buttons do.
    let is_program = asked.asking.caller == RequestCaller::OwnProgram;
    if is_program && for_s.is_some() && !matches!(act, FaultAction::Slow { .. }) {
        return Err(ActionRefusal::invalid(
            "for_s: only slow ends by itself; leave it out, and send clear or return later",
        ));
    }
    let page::FaultWords { question, what: consequence, does: button } = page::fault_words(&act, device);
    let others = match act {
        FaultAction::Return => switched_on_too(&*shared.hub.host, storage, device),
        _ => Vec::new(),
    };
    let consequence = match others.is_empty() {
        true => consequence.to_owned(),
        false => format!(
            "The power of a storage comes back to all of its devices: {} too. {consequence}",
            others.join(", ")
        ),
    };
    let question = ActionConfirmation { question: &question, what: &consequence, does: button, action, back };
    asked.once_confirmed(&question, || {
        let _held = shared.under_way.begin(CommandTarget::Storage(storage.to_owned()))?;
        shared.hub.host.fault(storage, device, &act).map_err(ActionRefusal::conflict)
    })
}

/// Devices that nobody named, whose power comes back with that of the one that is named. A pool switches on one alone.
fn switched_on_too(host: &dyn ConsoleHost, storage: &str, device: Option<&str>) -> Vec<String> {
    let Some(named) = device else { return Vec::new() };
    let found = host.storages().into_iter().find(|one| one.id == storage && one.pool.is_none());
    let devices = found.map(|found| found.devices).unwrap_or_default();
    if devices.iter().any(|one| one.name == named && one.powered) {
        return Vec::new();
    }
    let dark = devices.into_iter().filter(|one| !one.powered && one.name != named);
    dark.map(|one| one.name).collect()
}
