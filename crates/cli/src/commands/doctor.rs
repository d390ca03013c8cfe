//! `underlay doctor`

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use underlay_attach::host::{self, CapabilityNeed, CapabilityStatus, HostCapability};
use underlay_attach::{AttachError, MissingCapability, choice, overhead};
use underlay_report::quantity;
use underlay_study::machine::{self, CpuPlacement};
use underlay_systems::profile::ProgramNeed;
use underlay_systems::system::{System, SystemError};

use crate::exit_codes::{ExitFailure, MISSING};
use crate::output;

/// Of a server.
const USUAL_CORES: u32 = 16;
/// Long enough for a p99 of the path's own latency.
const OVERHEAD_PROBE: Duration = Duration::from_millis(500);

pub(crate) fn doctor(json: bool) -> Result<ExitCode, ExitFailure> {
    let mut capabilities = host::capabilities(Path::new("runs"));
    capabilities.extend(needed_programs());
    capabilities.extend(supplied_programs());
    let lacking = |capability: &&HostCapability| matches!(capability.status, CapabilityStatus::Missing(_));
    let required_lacking = capabilities
        .iter()
        .filter(lacking)
        .filter(|capability| capability.need == CapabilityNeed::Required)
        .count();
    if json {
        let attachments = choice::ATTACHMENTS.iter().map(entry_of_attachment);
        let entries: Vec<DoctorEntry> = capabilities.iter().map(entry).chain(attachments).collect();
        output::print(&serde_json::to_string_pretty(&entries).expect("capabilities are plain data"));
    } else {
        for capability in &capabilities {
            output::print(&line(capability));
        }
        tell_attachments();
        if required_lacking == 0 {
            tell_overhead();
            tell_cpus();
        }
    }
    Ok(if required_lacking > 0 { ExitCode::from(MISSING) } else { ExitCode::SUCCESS })
}

/// The host's programs that systems can't do without, each with the systems.
fn needed_programs() -> Vec<HostCapability> {
    let mut needs: Vec<(ProgramNeed, Vec<&'static str>)> = Vec::new();
    for profile in underlay_systems::all().map(System::profile) {
        for need in profile.needs {
            match needs.iter_mut().find(|(known, _)| known == need) {
                Some((_, titles)) => titles.push(profile.title),
                None => needs.push((*need, vec![profile.title])),
            }
        }
    }
    let capability = |(need, titles): (ProgramNeed, Vec<&str>)| HostCapability {
        name: need.name,
        status: host::find_in_package(need.program, need.package).into(),
        need: CapabilityNeed::Optional,
        needed_for: format!("{} {}", need.purpose, titles.join(", ")),
    };
    needs.into_iter().map(capability).collect()
}

/// The systems whose programs the user has to supply.
fn supplied_programs() -> Vec<HostCapability> {
    let capability = |system: &'static dyn System| {
        let profile = system.profile();
        let found = system.supplied()?.map_err(|error| match error {
            SystemError::Missing { missing, remedy, .. } => MissingCapability::new(missing, remedy),
            other => MissingCapability::new(profile.full_title, other.to_string()),
        });
        Some(HostCapability {
            name: profile.title,
            status: found.into(),
            need: CapabilityNeed::Optional,
            needed_for: format!("the system {}", system.name()),
        })
    };
    underlay_systems::all().filter_map(capability).collect()
}

/// Every way in which a modelled storage can be attached, and the one that would be.
fn tell_attachments() {
    output::print("\nModelled storage can be attached by");
    let mut chosen = None;
    for way in choice::ATTACHMENTS {
        let found = way.probe();
        // The best ways come first, and the first that works is chosen.
        let is_chosen = found.is_ok() && *chosen.get_or_insert(way.name) == way.name;
        let mark = match (&found, is_chosen) {
            (Ok(()), true) => "chosen",
            (Ok(()), false) => "ok",
            (Err(_), _) => "-",
        };
        let detail = match found {
            Ok(()) => way.gist.to_owned(),
            Err(lacking) => format!("{}\n{lacking}", way.gist),
        };
        output::print(&entry_lines(mark, way.name, &detail));
    }
}

fn line(capability: &HostCapability) -> String {
    match (&capability.status, capability.need) {
        (CapabilityStatus::Ok(detail), _) => entry_lines("ok", capability.name, detail),
        (CapabilityStatus::Missing(missing), need) => {
            let mark = if need == CapabilityNeed::Required { "MISSING" } else { "-" };
            let text = format!("{}\nfor {}; {}", missing.what, capability.needed_for, missing.remedy);
            entry_lines(mark, capability.name, &text)
        }
    }
}

/// A mark, a name, and what is said of it in columns of their own.
fn entry_lines(mark: &str, name: &str, text: &str) -> String {
    let mut head = format!("  {mark:<8} {name:<18} ");
    let mut lines = Vec::new();
    for part in text.lines() {
        lines.push(output::wrap_after_head(&head, 30, part));
        head = String::new();
    }
    lines.join("\n")
}

/// The output for scripts of a capability, or of a way to attach modelled storage.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct DoctorEntry {
    pub name: String,
    pub ok: bool,
    /// Nothing works without it.
    pub required: bool,
    pub needed_for: String,
    /// The finding, or the missing part.
    pub detail: Option<String>,
    /// How to get it; null where nothing is missing.
    pub remedy: Option<String>,
}

fn entry(capability: &HostCapability) -> DoctorEntry {
    let (ok, detail, remedy) = match &capability.status {
        CapabilityStatus::Ok(detail) => (true, detail.clone(), None),
        CapabilityStatus::Missing(missing) => (false, missing.what.clone(), Some(missing.remedy.clone())),
    };
    DoctorEntry {
        name: capability.name.to_owned(),
        ok,
        required: capability.need == CapabilityNeed::Required,
        needed_for: capability.needed_for.clone(),
        detail: Some(detail),
        remedy,
    }
}

fn entry_of_attachment(way: &choice::AttachmentKind) -> DoctorEntry {
    let found = way.probe();
    let remedy = match &found {
        Err(AttachError::Missing(missing)) => Some(missing.remedy.clone()),
        _ => None,
    };
    DoctorEntry {
        name: format!("attachment {}", way.name),
        ok: found.is_ok(),
        required: false,
        needed_for: way.gist.to_owned(),
        detail: found.err().map(|error| error.to_string()),
        remedy,
    }
}

/// Prints the CPU time that this host has left for a modelled machine.
fn tell_cpus() {
    let Ok(placement) = CpuPlacement::measure() else { return };
    let factor = machine::factor_for(USUAL_CORES, &placement)
        .map_or("more slow motion than Underlay allows".to_owned(), |factor| {
            format!("slow motion x{factor} or more")
        });
    let text = format!(
        "Right now {:.2} of this host's CPUs are free for the system under test: a [machine] of {USUAL_CORES} cores takes {factor}.",
        placement.system_cpus
    );
    output::print(&output::paragraph(&text));
}

/// This machine's addition to every modelled latency decides which devices it can model at which time scale.
fn tell_overhead() {
    match overhead::measure(OVERHEAD_PROBE) {
        Ok(found) => {
            let paragraphs = [
                format!(
                    "A request's way to a modelled device and back takes {} here (p50; p99 {}), and the timer is {} late (p99).",
                    quantity::latency(found.path_p50_us),
                    quantity::latency(found.path_p99_us),
                    quantity::latency(found.timer_lateness_p99_us)
                ),
                "Devices whose latency is below ten times that need slow motion: [scale] time, or --time."
                    .to_owned(),
                format!(
                    "Requests to slower ones are dated back by {}, which is what the way adds to them.",
                    quantity::latency(found.dated_back_us)
                ),
            ];
            output::print(&format!("\n{}", paragraphs.map(|text| output::paragraph(&text)).join("\n")));
        }
        Err(error) => {
            let text = format!("The overhead of a modelled device could not be measured: {error}");
            output::print(&format!("\n{}", output::paragraph(&text)));
        }
    }
}
