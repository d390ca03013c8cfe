//! `[fault.NAME]`: what goes wrong with the storage while a cell is measured, and when.

use std::ops::Range;

use underlay_config::{Diagnostic, Diagnostics, Field, Section, Spanned, sections_of, units};
use underlay_storage::faults::{ByteExtent, DeviceFault};
use underlay_storage::medium::ModelOperation;

use crate::spec::model::{FaultAct, FaultSpec};

const ACTS: [&str; 8] =
    ["slow", "errors", "corrupt", "spikes", "vanish", "full", "ignore_flushes", "power_cut"];
/// As many as a storage may have devices.
const MAX_DEVICE: u64 = 63;

/// A fault with the places that later checks point at.
#[derive(Clone)]
pub(in crate::spec) struct FaultSite {
    pub spec: FaultSpec,
    pub at_span: Range<usize>,
    pub storage_span: Option<Range<usize>>,
    pub device_span: Option<Range<usize>>,
    pub act_span: Range<usize>,
}

pub(in crate::spec) fn read(root: &mut Section<'_>, findings: &mut Diagnostics) -> Vec<FaultSite> {
    let Some(field) = root.take("fault") else { return Vec::new() };
    let sections = sections_of(&field, "fault", "slow-disk", findings);
    sections.into_iter().filter_map(|(name, section)| read_fault(name, section, findings)).collect()
}

fn read_fault(name: String, mut section: Section<'_>, findings: &mut Diagnostics) -> Option<FaultSite> {
    let (title, place) = (section.title.clone(), section.span.clone());
    let time =
        section.require("at", "at = \"20 s\"", findings).and_then(|field| field.duration(true, findings));
    let duration = section.take("for").map(|field| field.duration(false, findings));
    let storage = section.take("storage").map(|field| field.text("the name of a storage", findings));
    let device = section.take("device").map(|field| field.whole(0..=MAX_DEVICE, findings));
    let fields: Vec<Field<'_>> = ACTS.iter().filter_map(|act| section.take(act)).collect();
    section.finish(findings);
    let field = match fields.as_slice() {
        [field] => field,
        [] => {
            let message = format!("{title} names no fault");
            let label = format!("expected one of {}", ACTS.join(", "));
            findings.push(Diagnostic::error(place, message, label).with_help("for example: slow = 10"));
            return None;
        }
        [first, .., last] => {
            let message = format!("{title} names two faults");
            findings.push(
                Diagnostic::error(last.key_span.clone(), message, "expected a section of its own for this")
                    .with_context(first.key_span.clone(), "already given here"),
            );
            return None;
        }
    };
    let act = read_act(field, findings);
    // An unreadable value is a mistake already: nothing replaces it.
    let (time, act) = (time?, act?);
    let spec = FaultSpec {
        name,
        at: time.value,
        duration: duration.map_or(Some(None), |read| read.map(|span| Some(span.value)))?,
        storage: storage.clone().map_or(Some(None), |read| read.map(|name| Some(name.value)))?,
        device: device.clone().map_or(Some(None), |read| read.map(|index| Some(index.value as usize)))?,
        act,
    };
    Some(FaultSite {
        spec,
        at_span: time.span,
        storage_span: storage.flatten().map(|name| name.span),
        device_span: device.flatten().map(|index| index.span),
        act_span: field.key_span.clone(),
    })
}

fn read_act(field: &Field<'_>, findings: &mut Diagnostics) -> Option<FaultAct> {
    let fault = match field.key.as_str() {
        "slow" => match field.as_number() {
            Some(factor) => DeviceFault::Slow { factor },
            None => {
                field.mismatch("a factor such as 10", findings);
                return None;
            }
        },
        "vanish" => yes(field, DeviceFault::Vanish, findings)?,
        "full" => yes(field, DeviceFault::Full, findings)?,
        "ignore_flushes" => yes(field, DeviceFault::IgnoreFlushes, findings)?,
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
                return checked(DeviceFault::Corrupt { rate: rate?, extent: extent?, seed }, field, findings);
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
                DeviceFault::Errors { operations: operations?, rate: rate?, extent: extent?, seed }
            } else {
                let latency = section
                    .require("latency", "latency = \"200 ms\"", findings)
                    .and_then(|field| field.duration(false, findings));
                section.finish(findings);
                let latency_us = latency?.value.as_secs_f64() * 1e6;
                DeviceFault::Spikes { operations: operations?, rate: rate?, latency_us, seed }
            }
        }
    };
    checked(fault, field, findings)
}

fn checked(fault: DeviceFault, field: &Field<'_>, findings: &mut Diagnostics) -> Option<FaultAct> {
    match fault.check() {
        Ok(()) => Some(FaultAct::Device(fault)),
        Err(problem) => {
            field.invalid(problem.to_string(), findings);
            None
        }
    }
}

/// `vanish = true`; the opposite would say nothing.
fn yes(field: &Field<'_>, fault: DeviceFault, findings: &mut Diagnostics) -> Option<DeviceFault> {
    if field.as_true() {
        return Some(fault);
    }
    field.mismatch("true", findings);
    None
}

fn read_operation(field: &Field<'_>, findings: &mut Diagnostics) -> Option<Spanned<ModelOperation>> {
    let word = field.word(&["read", "write", "flush", "discard"], findings)?;
    let operation = match word.value {
        "read" => ModelOperation::Read,
        "write" => ModelOperation::Write,
        "flush" => ModelOperation::Flush,
        _ => ModelOperation::Discard,
    };
    Some(Spanned::new(operation, word.span))
}

/// `"0..1 GiB"`
fn read_extent(field: &Field<'_>, findings: &mut Diagnostics) -> Option<ByteExtent> {
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
        (Ok(start_bytes), Ok(end_bytes)) => Some(ByteExtent { start_bytes, end_bytes }),
        (Err(error), _) | (_, Err(error)) => {
            field.invalid(error.to_string(), findings);
            None
        }
    }
}
