//! Pools whose volume servers run here, as storages: their devices have figures and faults like others.

use std::path::Path;
use std::time::Duration;

use underlay_console::host::{FaultAction, ServedStorageInfo, StorageDevice};
use underlay_storage::faults::{DeviceFault, PowerCut};
use underlay_volume::pool::MemberState;
use underlay_volume::server as volume;
use underlay_volume::server::protocol::{PoolCommand, PoolReply, PoolState};

use super::services::{self, ServiceProcess};

/// The prefix of pools' names among storages.
const PREFIX: &str = "pool:";
const SHOWN_LIMIT: Duration = Duration::from_secs(2);
/// A resync reads and writes what a device has missed.
const COMMAND_LIMIT: Duration = Duration::from_secs(600);

pub(super) fn is_pool(id: &str) -> bool {
    id.starts_with(PREFIX)
}

/// All of this user's; of a run's, the run is the process.
pub(super) fn storages(runs: &[u32]) -> Vec<ServedStorageInfo> {
    services::found_all().iter().filter_map(|found| storage(found, runs)).collect()
}

/// Only pools of modelled devices can be looked at so: of others, their volume servers tell on the page.
fn storage(found: &ServiceProcess, runs: &[u32]) -> Option<ServedStorageInfo> {
    let control = found.control()?;
    let mut connection = volume::PoolConnection::open_within(&control, SHOWN_LIMIT).ok()?;
    let PoolReply::Glance { devices: glances } = connection.ask(&PoolCommand::Glance).ok()? else {
        return None;
    };
    let PoolReply::State(state) = connection.ask(&PoolCommand::List).ok()? else { return None };
    let PoolReply::Faults { devices: wrong } = connection.ask(&PoolCommand::Faults).ok()? else {
        return None;
    };
    let device = |member: volume::protocol::MemberStatus| {
        let wrong = wrong.iter().find(|one| one.device == member.name);
        let faults = wrong.map(|one| one.faults.iter().map(|active| active.fault.to_string()).collect());
        StorageDevice {
            glance: glances.iter().find(|glance| glance.id.name == member.name).cloned(),
            name: member.name,
            capacity_bytes: member.space_bytes,
            powered: wrong.is_none_or(|one| one.powered),
            power_can_be_cut: wrong.is_some_and(|one| one.power_cut_armed),
            can_fail: true,
            faults: faults.unwrap_or_default(),
            state: (member.state != MemberState::InUse).then(|| member.state.describe().to_owned()),
        }
    };
    let run = found.parent.filter(|parent| runs.contains(parent));
    Some(ServedStorageInfo {
        id: format!("{PREFIX}{}", control.display()),
        pool: Some(state.pool),
        directories: Vec::new(),
        process: run.or(Some(found.service.process)),
        command: format!("volume serve {}", found.service.what),
        is_orphaned: false,
        devices: state.members.into_iter().map(device).collect(),
    })
}

/// Does something to the devices of a pool; says what was done.
///
/// # Errors
/// When it can't be done.
pub(super) fn fault(id: &str, device: Option<&str>, action: &FaultAction) -> Result<String, String> {
    let control = id.strip_prefix(PREFIX).unwrap_or(id);
    // A process that listens at any other path is not asked.
    let is_it = |found: &ServiceProcess| found.control().is_some_and(|own| own == Path::new(control));
    if !services::found_all().iter().any(is_it) {
        return Err("that pool is not served any more".to_owned());
    }
    let silent = |error: std::io::Error| format!("the volume server does not answer: {error}");
    let mut connection =
        volume::PoolConnection::open_within(Path::new(control), COMMAND_LIMIT).map_err(silent)?;
    let mut ask = |command: PoolCommand| match connection.ask(&command).map_err(silent)? {
        PoolReply::Failed { problem, .. } => Err(problem),
        reply => Ok(reply),
    };
    let PoolReply::State(state) = ask(PoolCommand::List)? else {
        return Err("the volume server gave an unexpected answer".to_owned());
    };
    let names = meant(&state, device)?;
    let inject = |ask: &mut dyn FnMut(PoolCommand) -> Result<PoolReply, String>,
                  fault: DeviceFault|
     -> Result<(), String> {
        fault.check().map_err(|error| error.to_string())?;
        names.iter().try_for_each(|name| {
            ask(PoolCommand::Fault { device: name.clone(), fault: fault.clone() }).map(drop)
        })
    };
    let description = match *action {
        FaultAction::Slow { for_s: Some(_), .. } => {
            return Err("a fault of a pool's device lasts until it is cleared: leave its time out".to_owned());
        }
        FaultAction::Slow { factor, for_s: None } => {
            inject(&mut ask, DeviceFault::Slow { factor })?;
            format!("{factor} times as slow")
        }
        FaultAction::Vanish => {
            inject(&mut ask, DeviceFault::Vanish)?;
            "unplugged".to_owned()
        }
        FaultAction::PowerCut => {
            let [name] = names.as_slice() else {
                return Err(
                    "a pool survives the loss of power of one device, not of all: name one".to_owned()
                );
            };
            let cut = PowerCut { seed: 1, torn: false, reordered: false };
            match ask(PoolCommand::CutPower { device: name.clone(), cut })? {
                PoolReply::Cut(survival) => format!("no power; {} unflushed writes are lost", survival.lost),
                _ => "no power".to_owned(),
            }
        }
        FaultAction::Return => {
            for name in &names {
                ask(PoolCommand::BringBack { device: name.clone() })?;
            }
            brought_up_to_date(&mut ask, &names)?
        }
        FaultAction::Clear => {
            for name in &names {
                ask(PoolCommand::ClearFaults { device: Some(name.clone()) })?;
            }
            "without faults".to_owned()
        }
    };
    Ok(format!("{}: {description}", names.join(", ")))
}

fn meant(state: &PoolState, device: Option<&str>) -> Result<Vec<String>, String> {
    let all = state.members.iter().map(|member| member.name.clone());
    let names: Vec<String> = all.filter(|name| device.is_none_or(|device| device == name)).collect();
    match names.is_empty() {
        true => Err(format!("there is no device {}", device.unwrap_or("in this pool"))),
        false => Ok(names),
    }
}

/// A device gets its missed writes before it is used again.
fn brought_up_to_date(
    ask: &mut dyn FnMut(PoolCommand) -> Result<PoolReply, String>,
    names: &[String],
) -> Result<String, String> {
    let PoolReply::State(state) = ask(PoolCommand::List)? else { return Ok("there again".to_owned()) };
    let lacking = state.members.into_iter().filter(|member| {
        names.contains(&member.name) && !matches!(member.state, MemberState::InUse | MemberState::Resyncing)
    });
    let mut is_resynced = false;
    for member in lacking {
        ask(PoolCommand::Resync { member: member.name })?;
        is_resynced = true;
    }
    Ok(if is_resynced { "there again, and up to date" } else { "there again" }.to_owned())
}
