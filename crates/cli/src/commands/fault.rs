//! `underlay fault`: what goes wrong with a device while a program uses it.

use std::path::Path;
use std::process::ExitCode;

use underlay_attach::registry::closed_to_us;
use underlay_attach::{ResourceRegistry, ServedStorage};
use underlay_config::units;
use underlay_report::quantity;
use underlay_storage::faults::{ByteExtent, DeviceFault, DeviceFaults, PowerCut};
use underlay_storage::medium::ModelOperation;

use crate::arguments::{FaultAction, FaultArguments, FaultOperation, FaultTime, WhichRequests};
use crate::exit_codes::{ExitFailure, FAILED};
use crate::{output, signals};

pub(crate) fn fault(arguments: &FaultArguments) -> Result<ExitCode, ExitFailure> {
    let act = FaultRequest::from_action(&arguments.action)?;
    let registry = ResourceRegistry::open()?;
    let found = find_all(&registry);
    found.silent.iter().for_each(output::say);
    let act = match (act, &arguments.target) {
        (FaultRequest::List { json }, None) => {
            let code = list(&found.storages, json, found.silent.is_empty());
            return Ok(if found.silent.is_empty() { code } else { ExitCode::from(FAILED) });
        }
        (FaultRequest::List { json }, Some(target)) => {
            let target = resolve(target, &found, &registry)?;
            return Ok(list(std::slice::from_ref(target.storage), json, true));
        }
        (act, Some(_)) => act,
        (_, None) => {
            return Err(ExitFailure::Mistake(format!(
                "which device? Name the directory that it is mounted on, or the device itself{}",
                known(&found)
            )));
        }
    };
    let target = resolve(arguments.target.as_deref().unwrap_or_default(), &found, &registry)?;
    carry_out(act, &target)?;
    Ok(ExitCode::SUCCESS)
}

/// A request, read and checked before anything is touched.
enum FaultRequest {
    List { json: bool },
    Inject { fault: DeviceFault, for_s: Option<f64> },
    Cut(PowerCut),
    Return,
    Clear,
}

impl FaultRequest {
    fn from_action(action: &FaultAction) -> Result<FaultRequest, ExitFailure> {
        let (fault, time) = match action {
            FaultAction::List { json } => return Ok(FaultRequest::List { json: *json }),
            FaultAction::PowerCut { torn, reordered, seed } => {
                return Ok(FaultRequest::Cut(PowerCut { seed: *seed, torn: *torn, reordered: *reordered }));
            }
            FaultAction::Return => return Ok(FaultRequest::Return),
            FaultAction::Clear => return Ok(FaultRequest::Clear),
            FaultAction::Errors { which: selection, extent, time } => {
                let extent = extent.as_deref().map(parse_extent).transpose()?;
                let WhichRequests { rate, seed, .. } = *selection;
                (DeviceFault::Errors { operations: operations(selection), rate, extent, seed }, time)
            }
            FaultAction::Corrupt { rate, extent, seed, time } => {
                let extent = extent.as_deref().map(parse_extent).transpose()?;
                (DeviceFault::Corrupt { rate: *rate, extent, seed: *seed }, time)
            }
            FaultAction::Spikes { which: selection, latency, time } => {
                let latency_us = parse_duration("--latency", latency)?.as_secs_f64() * 1e6;
                let WhichRequests { rate, seed, .. } = *selection;
                (DeviceFault::Spikes { operations: operations(selection), rate, latency_us, seed }, time)
            }
            FaultAction::Slow { factor, time } => (DeviceFault::Slow { factor: *factor }, time),
            FaultAction::Vanish { time } => (DeviceFault::Vanish, time),
            FaultAction::Full { time } => (DeviceFault::Full, time),
            FaultAction::IgnoreFlushes { time } => (DeviceFault::IgnoreFlushes, time),
        };
        fault.check().map_err(|error| ExitFailure::Mistake(error.to_string()))?;
        let FaultTime { duration } = time;
        let duration = duration.as_deref().map(|text| parse_duration("--for", text)).transpose()?;
        Ok(FaultRequest::Inject { fault, for_s: duration.map(|duration| duration.as_secs_f64()) })
    }
}

fn operations(selection: &WhichRequests) -> Vec<ModelOperation> {
    let model_operation = |operation: &FaultOperation| match operation {
        FaultOperation::Read => ModelOperation::Read,
        FaultOperation::Write => ModelOperation::Write,
        FaultOperation::Flush => ModelOperation::Flush,
        FaultOperation::Discard => ModelOperation::Discard,
    };
    selection.operation.iter().map(model_operation).collect()
}

fn parse_duration(option: &str, text: &str) -> Result<std::time::Duration, ExitFailure> {
    match units::parse_duration(text) {
        Ok(duration) if duration.is_zero() => {
            Err(ExitFailure::Mistake(format!("{option} {text}: expected a time above 0")))
        }
        Ok(duration) => Ok(duration),
        Err(problem) => Err(ExitFailure::Mistake(format!("{option} {text}: {problem}"))),
    }
}

/// `0..1GiB`; a bare number is bytes.
fn parse_extent(text: &str) -> Result<ByteExtent, ExitFailure> {
    let mistake = |problem: String| ExitFailure::Mistake(format!("--extent {text}: {problem}"));
    let (from, to) = text
        .split_once("..")
        .ok_or_else(|| mistake("expected a start and an end, as in 0..1GiB".to_owned()))?;
    let bytes = |part: &str| match part.trim().parse::<u64>() {
        Ok(bytes) => Ok(bytes),
        Err(_) => units::parse_bytes(part).map_err(|problem| mistake(problem.to_string())),
    };
    Ok(ByteExtent { start_bytes: bytes(from)?, end_bytes: bytes(to)? })
}

/// A storage with its devices as they are now.
struct FaultedStorage {
    served: ServedStorage,
    devices: Vec<DeviceFaults>,
}

/// This user's storages.
struct UserStorages {
    storages: Vec<FaultedStorage>,
    /// Those that are being served and do not answer, in words.
    silent: Vec<String>,
}

/// One that is just being taken away is passed over: it is gone by then.
fn find_all(registry: &ResourceRegistry) -> UserStorages {
    let mut found = UserStorages { storages: Vec::new(), silent: Vec::new() };
    for served in ServedStorage::all(registry) {
        match served.faults() {
            Ok(devices) => found.storages.push(FaultedStorage { devices, served }),
            Err(error) if served.is_listening() => {
                let owner = served.owner();
                let owner = owner.map(|owner| format!("{} (process {})", owner.command, owner.process.pid));
                found.silent.push(format!(
                    "a storage of {} is being served, but does not answer ({error}): it may be busy, try again",
                    owner.unwrap_or_else(|| "this user".to_owned())
                ));
            }
            Err(_) => {}
        }
    }
    found
}

/// The devices that a target means: all of a storage, or one.
struct FaultTarget<'a> {
    storage: &'a FaultedStorage,
    devices: Vec<&'a DeviceFaults>,
}

fn resolve<'a>(
    target: &str,
    found: &'a UserStorages,
    registry: &ResourceRegistry,
) -> Result<FaultTarget<'a>, ExitFailure> {
    let storages = &found.storages;
    if let Ok(path) = Path::new(target).canonicalize() {
        if let Some(storage) = storages.iter().find(|storage| storage.served.directories().contains(&path)) {
            return Ok(FaultTarget { storage, devices: storage.devices.iter().collect() });
        }
        if ServedStorage::is_elsewhere(registry, &path) {
            return Err(ExitFailure::Mistake(format!(
                "{} is a server's volume, attached by the kernel's NVMe/TCP initiator: its devices are not on this host. \
                 Put faults on the devices of the pool, in the console of the host that serves it",
                path.display()
            )));
        }
    }
    let mut named = storages.iter().flat_map(|storage| {
        storage.devices.iter().filter(|device| device.device == target).map(move |device| (storage, device))
    });
    match (named.next(), named.next()) {
        (Some((storage, device)), None) => Ok(FaultTarget { storage, devices: vec![device] }),
        (Some((one, _)), Some((other, _))) => Err(ExitFailure::Mistake(format!(
            "there are several devices called {target}: name the directory instead, {} or {}",
            place(one),
            place(other)
        ))),
        (None, _) => Err(ExitFailure::Mistake(format!(
            "'{target}' is neither a directory that modelled storage is mounted on nor the name of a device{}",
            known(found)
        ))),
    }
}

fn place(storage: &FaultedStorage) -> String {
    let directories = storage.served.directories();
    let paths: Vec<String> = directories.iter().map(|path| path.display().to_string()).collect();
    if paths.is_empty() { "a storage that is not mounted".into() } else { paths.join(", ") }
}

/// Other users' storages are theirs, and not even their number is known.
fn explain_absence() -> String {
    let closed: Vec<String> = closed_to_us().iter().map(|path| path.display().to_string()).collect();
    match closed.is_empty() {
        true => "nothing is served on this machine now".to_owned(),
        false => format!(
            "this user serves nothing now; what others serve is not shown here, run this as them or as root ({} can't be read)",
            closed.join(", ")
        ),
    }
}

/// The end of a message that says what could have been meant.
fn known(found: &UserStorages) -> String {
    let silent: String = found.silent.iter().map(|silent| format!("\n  {silent}")).collect();
    if found.storages.is_empty() && found.silent.is_empty() {
        return format!("\n  {}: `underlay mount` or `underlay run` does", explain_absence());
    }
    if found.storages.is_empty() {
        return silent;
    }
    let line = |storage: &FaultedStorage| {
        let names: Vec<&str> = storage.devices.iter().map(|device| device.device.as_str()).collect();
        format!("\n  {}: {}", place(storage), names.join(", "))
    };
    format!("\n  being served now:{}{silent}", found.storages.iter().map(line).collect::<String>())
}

fn carry_out(act: FaultRequest, target: &FaultTarget<'_>) -> Result<(), ExitFailure> {
    let served = &target.storage.served;
    let names: Vec<String> = target.devices.iter().map(|device| device.device.clone()).collect();
    match act {
        FaultRequest::List { .. } => {}
        FaultRequest::Inject { fault, for_s } => {
            // Where none has the extent, the first says so.
            let having = target.devices.iter().filter(|device| {
                fault.extent().is_none_or(|extent| extent.start_bytes < device.capacity_bytes)
            });
            let having: Vec<String> = having.map(|device| device.device.clone()).collect();
            let names = if having.is_empty() { names } else { having };
            for (index, name) in names.iter().enumerate() {
                served.inject(name, fault.clone(), for_s).map_err(|error| match &names[..index] {
                    [] => ExitFailure::from(error),
                    some => ExitFailure::Failed(format!(
                        "{name}: {error}. Already failing as asked: {}. `underlay fault {} clear` ends that",
                        some.join(", "),
                        some[0]
                    )),
                })?;
            }
            let end = match for_s {
                Some(for_s) => format!("for {for_s} s"),
                None => "until it is cleared".to_owned(),
            };
            output::print(&format!("{}: {fault}, {end}", names.join(", ")));
        }
        FaultRequest::Cut(cut) => {
            let survival = served.cut_power(&names, cut)?;
            output::print(&format!(
                "{}: no power; of the unflushed writes {} survived, {} in part, {} are lost. \
                 `underlay fault ... return` switches it on again",
                names.join(", "),
                survival.survived,
                survival.torn,
                survival.lost
            ));
        }
        FaultRequest::Clear => {
            for name in &names {
                served.clear(Some(name))?;
            }
            output::print(&format!("{}: all faults cleared", names.join(", ")));
        }
        FaultRequest::Return => {
            let mut returned: Vec<&str> = Vec::new();
            // First: file systems are mounted on what is there.
            let vanished = target
                .devices
                .iter()
                .filter(|device| device.faults.iter().any(|active| active.fault == DeviceFault::Vanish));
            for device in vanished {
                served.bring_back(&device.device)?;
                returned.push(&device.device);
            }
            let is_unfinished = served.has_unmounted();
            if is_unfinished || target.devices.iter().any(|device| !device.powered) {
                // Stopped half-way it leaves file systems unmounted: the first Ctrl-C waits until all is done.
                let _stop = signals::stop_flag()?;
                served.restore_power()?;
                // It comes back to all that lost it.
                let dark = target.storage.devices.iter().filter(|device| !device.powered);
                for device in dark {
                    if !returned.contains(&device.device.as_str()) {
                        returned.push(&device.device);
                    }
                }
            }
            if is_unfinished {
                output::print(&format!("{}: mounted again", place(target.storage)));
            }
            if returned.is_empty() && !is_unfinished {
                return Err(ExitFailure::Mistake(format!("{} has not vanished", names.join(", "))));
            }
            if !returned.is_empty() {
                output::print(&format!("{}: back again", returned.join(", ")));
            }
        }
    }
    Ok(())
}

/// `is_all` where all that is served is in it.
fn list(found: &[FaultedStorage], json: bool, is_all: bool) -> ExitCode {
    if json {
        let entries: Vec<serde_json::Value> = found
            .iter()
            .map(|storage| {
                serde_json::json!({
                    "directories": storage.served.directories(),
                    "process": storage.served.owner().map(|owner| owner.process.pid),
                    "orphaned": storage.served.is_orphaned(),
                    "devices": storage.devices,
                })
            })
            .collect();
        output::print(&serde_json::to_string_pretty(&entries).expect("faults are plain data"));
        return ExitCode::SUCCESS;
    }
    if found.is_empty() && is_all {
        output::print(&explain_absence());
    }
    for storage in found {
        let owner = storage.served.owner();
        let owner = match (owner, storage.served.is_orphaned()) {
            (None, _) => String::new(),
            (Some(owner), false) => format!(" ({}, process {})", owner.command, owner.process.pid),
            (Some(owner), true) => format!(
                " (left by {}, process {}, which is gone: `underlay clean` removes it)",
                owner.command, owner.process.pid
            ),
        };
        output::print(&format!("{}{owner}", place(storage)));
        let width = storage.devices.iter().map(|device| device.device.len()).max().unwrap_or(0);
        for device in &storage.devices {
            let size = quantity::bytes(device.capacity_bytes as f64);
            output::print(&format!("  {:width$}  {size:>8}  {}", device.device, state(device)));
        }
    }
    ExitCode::SUCCESS
}

fn state(device: &DeviceFaults) -> String {
    let mut parts = Vec::new();
    if !device.powered {
        parts.push("no power".to_owned());
    }
    let active = |active: &underlay_storage::faults::ActiveFault| {
        format!("{} (since {:.1} s)", active.fault, active.for_s)
    };
    parts.extend(device.faults.iter().map(active));
    if parts.is_empty() {
        parts.push("no fault".to_owned());
    }
    if device.power_cut_armed {
        parts.push("power can be cut".to_owned());
    }
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extent_needs_two_ends() {
        let read = |text| parse_extent(text).map_err(|error| error.to_string());
        assert_eq!(read("0..1GiB"), Ok(ByteExtent { start_bytes: 0, end_bytes: 1 << 30 }));
        assert_eq!(read("4096 .. 1 MiB"), Ok(ByteExtent { start_bytes: 4096, end_bytes: 1 << 20 }));
        assert!(read("1GiB").unwrap_err().contains("0..1GiB"));
        assert!(read("0..1 Gib").unwrap_err().contains("GiB"));
    }
}
