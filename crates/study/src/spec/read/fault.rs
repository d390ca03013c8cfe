//! `[fault.NAME]`: what goes wrong with the storage while a cell is measured, and when.

use std::ops::Range;

use serde_json::{Value, json};
use underlay_config::keys::{
    AnyText, BooleanKind, DurationKind, KeyKind, KeyRow, KeySection, ListKind, OnlyTrue, OwnSchema,
    SectionKey, WholeKind, WordKind,
};
use underlay_config::{Diagnostic, Diagnostics, Field, Section, Spanned, sections_of, units};
use underlay_storage::faults::{ByteExtent, DeviceFault};
use underlay_storage::medium::ModelOperation;

use crate::spec::model::{FaultAct, FaultSpec};

const AT: KeyRow<DurationKind> = KeyRow::new(
    "at",
    DurationKind { allows_zero: true },
    "\"20 s\"",
    "When it begins: modelled time from the beginning of the measurement.",
)
.required();
const FOR: KeyRow<DurationKind> = KeyRow::new(
    "for",
    DurationKind { allows_zero: false },
    "\"10 s\"",
    "How long it lasts, in modelled time.",
)
.or_else("to the end");
const STORAGE: KeyRow<AnyText> =
    KeyRow::new("storage", AnyText("the name of a storage"), "\"hdd\"", "The storage that has the fault.")
        .or_else("every modelled one");
const DEVICE: KeyRow<WholeKind> = KeyRow::new(
    "device",
    WholeKind { min: 0, max: MAX_DEVICE },
    "0",
    "The device, counted from 0 as `devices` lists them.",
)
.or_else("all");
const SLOW: KeyRow<OwnSchema> = KeyRow::new(
    "slow",
    OwnSchema(|| json!({ "type": "number" })),
    "10",
    "How many times slower the device becomes.",
);
const ERRORS: KeyRow<OwnSchema> =
    KeyRow::new("errors", OwnSchema(|| REQUEST_ERRORS.schema()), "{ rate = 0.01 }", "Requests fail.");
const CORRUPT: KeyRow<OwnSchema> =
    KeyRow::new("corrupt", OwnSchema(|| WRONG_BITS.schema()), "{ rate = 0.01 }", "Reads return wrong bits.");
const SPIKES: KeyRow<OwnSchema> = KeyRow::new(
    "spikes",
    OwnSchema(|| LATENCY_SPIKES.schema()),
    "{ rate = 0.01, latency = \"200 ms\" }",
    "Requests take longer.",
);
const VANISH: KeyRow<OnlyTrue> = KeyRow::new("vanish", OnlyTrue, "true", "Every request fails.");
const FULL: KeyRow<OnlyTrue> =
    KeyRow::new("full", OnlyTrue, "true", "Writes to unwritten blocks fail for lack of space.");
const IGNORE_FLUSHES: KeyRow<OnlyTrue> =
    KeyRow::new("ignore_flushes", OnlyTrue, "true", "Flushes are acknowledged and not carried out.");
const POWER_CUT: KeyRow<OwnSchema> = KeyRow::new(
    "power_cut",
    OwnSchema(|| json!({ "anyOf": [OnlyTrue.schema(), CUT_DETAILS.schema()] })),
    "true",
    "Writes that were not flushed may be lost.",
);

/// A fault has exactly one of these.
const ACTS: [&dyn SectionKey; 8] =
    [&SLOW, &ERRORS, &CORRUPT, &SPIKES, &VANISH, &FULL, &IGNORE_FLUSHES, &POWER_CUT];

/// `[fault.NAME]`
pub(in crate::spec) const FAULT: KeySection = KeySection {
    path: "fault.NAME",
    meaning: "What goes wrong with a storage while a cell is measured: one fault a section.",
    keys: &[
        &AT,
        &FOR,
        &STORAGE,
        &DEVICE,
        &SLOW,
        &ERRORS,
        &CORRUPT,
        &SPIKES,
        &VANISH,
        &FULL,
        &IGNORE_FLUSHES,
        &POWER_CUT,
    ],
};

/// A section of one fault.
pub(in crate::spec) fn schema() -> Value {
    let mut schema = FAULT.schema();
    schema["oneOf"] = ACTS.iter().map(|act| json!({ "required": [act.name()] })).collect();
    schema
}

const RATE: KeyRow<OwnSchema> = KeyRow::new(
    "rate",
    OwnSchema(|| json!({ "type": "number", "minimum": 0.0, "maximum": 1.0 })),
    "0.01",
    "The share of the requests, from 0 to 1.",
)
.required();
const OPERATIONS: KeyRow<ListKind<WordKind<ModelOperation>>> = KeyRow::new(
    "operations",
    ListKind(WordKind(&[
        ("read", ModelOperation::Read),
        ("write", ModelOperation::Write),
        ("flush", ModelOperation::Flush),
        ("discard", ModelOperation::Discard),
    ])),
    "[\"read\", \"write\"]",
    "The requests that it meets.",
)
.or_else("all");
const EXTENT: KeyRow<DeviceExtent> =
    KeyRow::new("extent", DeviceExtent, "\"0..1 GiB\"", "A part of the device.").or_else("all of it");
const SPIKE_LATENCY: KeyRow<DurationKind> = KeyRow::new(
    "latency",
    DurationKind { allows_zero: false },
    "\"200 ms\"",
    "How much longer such a request takes.",
)
.required();
const TORN: KeyRow<BooleanKind> =
    KeyRow::new("torn", BooleanKind, "true", "A write of several blocks may be partly there.").or("false");
const REORDERED: KeyRow<BooleanKind> =
    KeyRow::new("reordered", BooleanKind, "true", "Not only the last completed writes may be lost.")
        .or("false");

/// `errors = { ... }`
pub(in crate::spec) const REQUEST_ERRORS: KeySection =
    KeySection { path: "fault.NAME.errors", meaning: "Requests fail.", keys: &[&RATE, &OPERATIONS, &EXTENT] };
/// `corrupt = { ... }`
pub(in crate::spec) const WRONG_BITS: KeySection =
    KeySection { path: "fault.NAME.corrupt", meaning: "Reads return wrong bits.", keys: &[&RATE, &EXTENT] };
/// `spikes = { ... }`
pub(in crate::spec) const LATENCY_SPIKES: KeySection = KeySection {
    path: "fault.NAME.spikes",
    meaning: "Requests take longer.",
    keys: &[&RATE, &OPERATIONS, &SPIKE_LATENCY],
};
/// `power_cut = { ... }`
pub(in crate::spec) const CUT_DETAILS: KeySection = KeySection {
    path: "fault.NAME.power_cut",
    meaning: "Which writes a power cut may take.",
    keys: &[&TORN, &REORDERED],
};
/// The highest device number, given the limit of devices.
const MAX_DEVICE: u64 = 63;

/// A fault with the positions that later checks need.
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
    let time = section.read(&AT, findings);
    let duration = section.read_optional(&FOR, findings);
    let storage = section.read_optional(&STORAGE, findings);
    let device = section.read_optional(&DEVICE, findings);
    let fields: Vec<Field<'_>> = ACTS.iter().filter_map(|act| section.take(act.name())).collect();
    section.finish(findings);
    let field = match fields.as_slice() {
        [field] => field,
        [] => {
            let message = format!("{title} names no fault");
            let label = format!("expected one of {}", ACTS.map(SectionKey::name).join(", "));
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
    // An unreadable value has been reported: no default replaces it.
    let (time, act, duration, storage, device) = (time?, act?, duration?, storage?, device?);
    let spec = FaultSpec {
        name,
        at: time.value,
        duration: duration.map(|duration| duration.value),
        storage: storage.as_ref().map(|name| name.value.clone()),
        device: device.as_ref().map(|index| index.value as usize),
        act,
    };
    Some(FaultSite {
        spec,
        at_span: time.span,
        storage_span: storage.map(|name| name.span),
        device_span: device.map(|index| index.span),
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
            let torn = section.read_optional(&TORN, findings);
            let reordered = section.read_optional(&REORDERED, findings);
            section.finish(findings);
            let is_set = |flag: Option<Spanned<bool>>| flag.is_some_and(|flag| flag.value);
            return Some(FaultAct::PowerCut { torn: is_set(torn?), reordered: is_set(reordered?) });
        }
        requests => {
            let mut section = field.section(field.place.clone(), findings)?;
            let rate = section.take_key(&RATE, findings).and_then(|field| {
                let rate = field.as_number();
                if rate.is_none() {
                    field.mismatch("a share of requests such as 0.01", findings);
                }
                rate
            });
            // The seed is the cell's, which is not known yet.
            let seed = 0;
            if requests == "corrupt" {
                let extent = section.read_optional(&EXTENT, findings);
                section.finish(findings);
                let extent = extent?.map(|extent| extent.value);
                return checked(DeviceFault::Corrupt { rate: rate?, extent, seed }, field, findings);
            }
            let (list, is_sound) = findings.attempt(|findings| section.read(&OPERATIONS, findings));
            let operations = is_sound.then(|| {
                list.map_or(Vec::new(), |list| list.value.into_iter().map(|one| one.value).collect())
            });
            if requests == "errors" {
                let extent = section.read_optional(&EXTENT, findings);
                section.finish(findings);
                let extent = extent?.map(|extent| extent.value);
                DeviceFault::Errors { operations: operations?, rate: rate?, extent, seed }
            } else {
                let latency = section.read(&SPIKE_LATENCY, findings);
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

/// `vanish = true`; `false` would mean nothing.
fn yes(field: &Field<'_>, fault: DeviceFault, findings: &mut Diagnostics) -> Option<DeviceFault> {
    if field.as_true() {
        return Some(fault);
    }
    field.mismatch("true", findings);
    None
}

/// `"0..1 GiB"`
#[derive(Clone, Copy, Debug)]
struct DeviceExtent;

impl KeyKind for DeviceExtent {
    type Value = ByteExtent;

    fn read(&self, field: &Field<'_>, findings: &mut Diagnostics) -> Option<Spanned<ByteExtent>> {
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
            (Ok(start_bytes), Ok(end_bytes)) => {
                Some(Spanned::new(ByteExtent { start_bytes, end_bytes }, text.span))
            }
            (Err(error), _) | (_, Err(error)) => {
                field.invalid(error.to_string(), findings);
                None
            }
        }
    }

    fn describe(&self) -> String {
        "a range of bytes such as \"0 B..1 GiB\"".to_owned()
    }

    fn schema(&self) -> Value {
        AnyText("").schema()
    }
}
