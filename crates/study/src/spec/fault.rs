//! `[fault.NAME]`: what goes wrong with the storage while a cell is measured, and when.

use std::ops::Range;
use std::time::Duration;

use underlay_storage::faults::{Extent, Fault};
use underlay_storage::medium::Operation;

use super::checks::Sites;
use super::reader::{Field, Section, Spanned, sections_of};
use super::{FaultAct, FaultSpec, StorageSource, suggest};
use crate::diagnostics::{Diagnostic, Diagnostics};
use crate::units;

const ACTS: [&str; 8] =
    ["slow", "errors", "corrupt", "spikes", "vanish", "full", "ignore_flushes", "power_cut"];
/// As many as a storage may have devices.
const DEVICE_MAX: u64 = 63;

/// A fault with the places that later checks point at.
#[derive(Clone)]
pub(super) struct FaultSite {
    pub spec: FaultSpec,
    at_span: Range<usize>,
    storage_span: Option<Range<usize>>,
    device_span: Option<Range<usize>>,
    pub act_span: Range<usize>,
}

pub(super) fn read(root: &mut Section<'_>, findings: &mut Diagnostics) -> Vec<FaultSite> {
    let Some(field) = root.take("fault") else { return Vec::new() };
    let sections = sections_of(&field, "fault", "slow-disk", findings);
    sections.into_iter().filter_map(|(name, section)| read_fault(name, section, findings)).collect()
}

fn read_fault(name: String, mut section: Section<'_>, findings: &mut Diagnostics) -> Option<FaultSite> {
    let (title, place) = (section.title.clone(), section.span.clone());
    let at =
        section.require("at", "at = \"20 s\"", findings).and_then(|field| field.duration(true, findings));
    let duration = section.take("for").map(|field| field.duration(false, findings));
    let storage = section.take("storage").map(|field| field.text("the name of a storage", findings));
    let device = section.take("device").map(|field| field.whole(0..=DEVICE_MAX, findings));
    let fields: Vec<Field<'_>> = ACTS.iter().filter_map(|act| section.take(act)).collect();
    section.finish(findings);
    let field = match fields.as_slice() {
        [field] => field,
        [] => {
            let message = format!("{title} does not say what goes wrong");
            let label = format!("expected one of {}", ACTS.join(", "));
            findings.push(Diagnostic::error(place, message, label).with_help("for example: slow = 10"));
            return None;
        }
        [first, .., last] => {
            let message = format!("{title} says two things that go wrong");
            findings.push(
                Diagnostic::error(last.key_span.clone(), message, "expected a section of its own for this")
                    .with_context(first.key_span.clone(), "said here already"),
            );
            return None;
        }
    };
    let act = read_act(field, findings);
    // What was written and could not be read is a mistake already: nothing stands in for it.
    let (at, act) = (at?, act?);
    let spec = FaultSpec {
        name,
        at: at.value,
        duration: duration.map_or(Some(None), |read| read.map(|span| Some(span.value)))?,
        storage: storage.clone().map_or(Some(None), |read| read.map(|name| Some(name.value)))?,
        device: device.clone().map_or(Some(None), |read| read.map(|index| Some(index.value as usize)))?,
        act,
    };
    Some(FaultSite {
        spec,
        at_span: at.span,
        storage_span: storage.flatten().map(|name| name.span),
        device_span: device.flatten().map(|index| index.span),
        act_span: field.key_span.clone(),
    })
}

fn read_act(field: &Field<'_>, findings: &mut Diagnostics) -> Option<FaultAct> {
    let fault = match field.key.as_str() {
        "slow" => match field.as_number() {
            Some(factor) => Fault::Slow { factor },
            None => {
                field.mismatch("a factor such as 10", findings);
                return None;
            }
        },
        "vanish" => yes(field, Fault::Vanish, findings)?,
        "full" => yes(field, Fault::Full, findings)?,
        "ignore_flushes" => yes(field, Fault::IgnoreFlushes, findings)?,
        "power_cut" if field.as_true() => return Some(FaultAct::PowerCut { torn: false, reordered: false }),
        "power_cut" => {
            let mut section = field.section(field.place.clone(), findings)?;
            let mut flag = |key| section.take(key).map_or(Some(false), |field| field.boolean(findings));
            let (torn, reordered) = (flag("torn"), flag("reordered"));
            section.finish(findings);
            return Some(FaultAct::PowerCut { torn: torn?, reordered: reordered? });
        }
        requests => {
            let mut section = field.section(field.place.clone(), findings)?;
            let rate = section.require("rate", "rate = 0.01", findings).and_then(|field| {
                let rate = field.as_number();
                if rate.is_none() {
                    field.mismatch("a share of requests such as 0.01", findings);
                }
                rate
            });
            // The seed is the cell's, once there is one.
            let seed = 0;
            if requests == "corrupt" {
                let extent = section
                    .take("extent")
                    .map_or(Some(None), |field| read_extent(&field, findings).map(Some));
                section.finish(findings);
                return checked(Fault::Corrupt { rate: rate?, extent: extent?, seed }, field, findings);
            }
            let operations = section.take("operations").map_or(Some(Vec::new()), |field| {
                let before = findings.findings().len();
                let list = field.list(findings, read_operation);
                (findings.findings().len() == before).then(|| list.into_iter().map(|one| one.value).collect())
            });
            if requests == "errors" {
                let extent = section
                    .take("extent")
                    .map_or(Some(None), |field| read_extent(&field, findings).map(Some));
                section.finish(findings);
                Fault::Errors { operations: operations?, rate: rate?, extent: extent?, seed }
            } else {
                let latency = section
                    .require("latency", "latency = \"200 ms\"", findings)
                    .and_then(|field| field.duration(false, findings));
                section.finish(findings);
                let latency_us = latency?.value.as_secs_f64() * 1e6;
                Fault::Spikes { operations: operations?, rate: rate?, latency_us, seed }
            }
        }
    };
    checked(fault, field, findings)
}

fn checked(fault: Fault, field: &Field<'_>, findings: &mut Diagnostics) -> Option<FaultAct> {
    match fault.check() {
        Ok(()) => Some(FaultAct::Device(fault)),
        Err(problem) => {
            field.invalid(problem.to_string(), findings);
            None
        }
    }
}

/// `vanish = true`; the opposite would say nothing.
fn yes(field: &Field<'_>, fault: Fault, findings: &mut Diagnostics) -> Option<Fault> {
    if field.as_true() {
        return Some(fault);
    }
    field.mismatch("true", findings);
    None
}

fn read_operation(field: &Field<'_>, findings: &mut Diagnostics) -> Option<Spanned<Operation>> {
    let word = field.word(&["read", "write", "flush", "discard"], findings)?;
    let operation = match word.value {
        "read" => Operation::Read,
        "write" => Operation::Write,
        "flush" => Operation::Flush,
        _ => Operation::Discard,
    };
    Some(Spanned::new(operation, word.span))
}

/// `"0..1 GiB"`
fn read_extent(field: &Field<'_>, findings: &mut Diagnostics) -> Option<Extent> {
    const EXPECTED: &str = "a range of bytes such as \"0 B..1 GiB\"";
    let text = field.text(EXPECTED, findings)?;
    let Some((from, to)) = text.value.split_once("..") else {
        field.invalid(format!("expected {EXPECTED}"), findings);
        return None;
    };
    let bytes = |part: &str| match part.trim() {
        "0" => Ok(0),
        part => units::parse_bytes(part),
    };
    match (bytes(from), bytes(to)) {
        (Ok(start_bytes), Ok(end_bytes)) => Some(Extent { start_bytes, end_bytes }),
        (Err(error), _) | (_, Err(error)) => {
            field.invalid(error.to_string(), findings);
            None
        }
    }
}

/// What can only be told from the whole study: whether the fault meets a device, in time.
pub(super) fn check(site: &FaultSite, sites: &Sites, findings: &mut Diagnostics) {
    let FaultSite { spec, .. } = site;
    let wall = sites.run.settings.duration;
    let measured = wall.div_f64(sites.scale.value.time);
    if spec.at >= measured {
        let message = format!("[fault.{}] comes when nothing is measured any more", spec.name);
        let label = format!("expected less than {}", units::format_duration(measured));
        let finding = Diagnostic::error(site.at_span.clone(), message, label);
        findings.push(if sites.scale.value.time > 1.0 {
            let how =
                format!("{} of the clock are so much shorter in slow motion", units::format_duration(wall));
            finding.with_context(sites.scale.span.clone(), how)
        } else {
            finding
        });
    }
    let names: Vec<&str> = sites.storage_names.iter().map(String::as_str).collect();
    if let (Some(name), Some(span)) = (&spec.storage, &site.storage_span)
        && !names.contains(&name.as_str())
    {
        let message =
            format!("[fault.{}] is for `{}`, which is none of the storages", spec.name, name.escape_debug());
        let known = format!("expected one of {}", names.join(", "));
        findings.push(match suggest::closest(name, names.iter().copied()) {
            Some(meant) => Diagnostic::error(span.clone(), message, format!("did you mean \"{meant}\"?"))
                .with_help(known),
            None => Diagnostic::error(span.clone(), message, known),
        });
        return;
    }
    for storage in sites.storages.iter().filter(|storage| spec.concerns(&storage.spec.name)) {
        match &storage.spec.source {
            // A fault for all storages passes over those that take none.
            StorageSource::Paths(_) | StorageSource::Volume(_) | StorageSource::Elsewhere(_)
                if spec.storage.is_none() => {}
            StorageSource::Volume(_) => {
                let message = format!("[fault.{}] is for a volume of a pool", spec.name);
                let span = site.storage_span.clone().unwrap_or(site.act_span.clone());
                findings.push(
                    Diagnostic::error(span, message, "expected a storage with `devices` of its own")
                        .with_context(storage.source_span.clone(), "a volume")
                        .with_help("the devices of a volume server take no faults; name another `storage`"),
                );
            }
            StorageSource::Paths(_) | StorageSource::Elsewhere(_) => {
                let message = format!("[fault.{}] is for real storage", spec.name);
                let span = site.storage_span.clone().unwrap_or(site.act_span.clone());
                findings.push(
                    Diagnostic::error(span, message, "expected a modelled storage")
                        .with_context(storage.source_span.clone(), "this is real")
                        .with_help("only a modelled device fails on command"),
                );
            }
            StorageSource::Modelled { devices, .. } => {
                let count: u32 = devices.iter().map(|device| device.count).sum();
                if let (Some(device), Some(span)) = (spec.device, &site.device_span)
                    && device >= count as usize
                {
                    let message = format!("[storage.{}] has no device {device}", storage.spec.name);
                    let label = match count {
                        1 => "expected 0, its only one".to_owned(),
                        count => format!("expected 0 to {}", count - 1),
                    };
                    findings.push(
                        Diagnostic::error(span.clone(), message, label)
                            .with_context(storage.source_span.clone(), "its devices"),
                    );
                }
            }
        }
    }
}

impl FaultSpec {
    /// Whether it is for this storage, or for all.
    pub fn concerns(&self, storage: &str) -> bool {
        self.storage.as_deref().is_none_or(|name| name == storage)
    }

    /// Whether devices must be able to lose writes for it.
    pub fn needs_arming(&self) -> bool {
        matches!(self.act, FaultAct::PowerCut { .. } | FaultAct::Device(Fault::IgnoreFlushes))
    }

    /// From the beginning of what is measured; absent when it stays.
    pub fn ends(&self) -> Option<Duration> {
        self.duration.map(|duration| self.at + duration)
    }
}
