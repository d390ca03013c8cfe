//! Faults of devices: given, taken back, and what a power that comes back brings with it.

use axum::Extension;
use axum::extract::{Form, Path, State};

use super::{Asked, Asks, Of, Outcome, Pairs, Question, act, run_address};
use crate::host::{FaultAction, Host};
use crate::server::Shared;
use crate::server::answer::Refusal;
use crate::server::caller::Caller;
use crate::server::routes::known;
use crate::server::work::Kind;

const FIELDS: [&str; 5] = ["storage", "device", "action", "factor", "for_s"];

pub(in crate::server) async fn fault_of_run(
    State(shared): Of,
    Extension(asking): Asks,
    Path(name): Path<String>,
    form: Form<Pairs>,
) -> Outcome {
    let address = run_address(&name);
    act(shared, (asking, form), &FIELDS, Kind::Fault, move |shared, asked| {
        known(shared, &name)?;
        fault(shared, asked, &format!("{address}/faults"), &format!("{address}#topology"))
    })
    .await
}

pub(in crate::server) async fn fault_of_host(
    State(shared): Of,
    Extension(asking): Asks,
    form: Form<Pairs>,
) -> Outcome {
    act(shared, (asking, form), &FIELDS, Kind::Fault, |shared, asked| {
        fault(shared, asked, "/host/faults", "/host")
    })
    .await
}

fn fault(shared: &Shared, asked: &Asked, action: &str, back: &str) -> Outcome {
    let storage = asked.fields.needed("storage")?;
    let device = Some(asked.fields.text("device")).filter(|device| !device.is_empty());
    let whose = device.unwrap_or("all of its devices");
    let for_s = match asked.fields.text("for_s") {
        "" => None,
        _ => Some(asked.fields.number::<f64>("for_s", "a number of seconds")?),
    };
    let (act, question) = match asked.fields.text("action") {
        "slow" => {
            let factor: f64 = asked.fields.number("factor", "how many times as long everything takes")?;
            (FaultAction::Slow { factor, for_s }, format!("Slow {whose} down {factor} times?"))
        }
        "vanish" => (FaultAction::Vanish, format!("Unplug {whose}?")),
        "power-cut" => {
            let whose = device.unwrap_or("all devices");
            (FaultAction::PowerCut, format!("Cut the power of {whose}?"))
        }
        "return" => (FaultAction::Return, format!("Bring {whose} back?")),
        "clear" => (FaultAction::Clear, format!("Clear the faults of {whose}?")),
        other => {
            return Err(Refusal::invalid(format!(
                "action: expected slow, vanish, power-cut, return or clear, not {other:?}"
            )));
        }
    };
    // A form on a page has fields for all that its buttons do.
    let is_program = asked.asking.caller == Caller::OwnProgram;
    if is_program && for_s.is_some() && !matches!(act, FaultAction::Slow { .. }) {
        return Err(Refusal::invalid(
            "for_s: only slow ends by itself; leave it out, and send clear or return later",
        ));
    }
    let what = match act {
        FaultAction::PowerCut => {
            "Writes that were not flushed may be lost. The device answers nothing until its power is back; a pool goes on with its other copies. In a run it is in the record of the cell.".to_owned()
        }
        FaultAction::Return => match switched_on_too(&*shared.hub.host, storage, device) {
            others if others.is_empty() => {
                "Programs that use it notice at once. In a run it is in the record of the cell.".to_owned()
            }
            others => format!(
                "The power of a storage comes back to all of its devices: {} too. In a run it is in the record of the cell.",
                others.join(", ")
            ),
        },
        _ => "Programs that use it notice at once. In a run it is in the record of the cell.".to_owned(),
    };
    let question = Question { question: &question, what: &what, action, back };
    asked.once_confirmed(&question, || {
        let _held = shared.under_way.begin(storage)?;
        shared.hub.host.fault(storage, device, &act).map_err(Refusal::conflict)
    })
}

/// Devices that nobody named, whose power comes back with that of the one that is named. A pool switches on one alone.
fn switched_on_too(host: &dyn Host, storage: &str, device: Option<&str>) -> Vec<String> {
    let Some(named) = device else { return Vec::new() };
    let found = host.storages().into_iter().find(|one| one.id == storage && one.pool.is_none());
    let devices = found.map(|found| found.devices).unwrap_or_default();
    if devices.iter().any(|one| one.name == named && one.powered) {
        return Vec::new();
    }
    let dark = devices.into_iter().filter(|one| !one.powered && one.name != named);
    dark.map(|one| one.name).collect()
}
