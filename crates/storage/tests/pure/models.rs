//! The contract of every medium model, under any requests: one suite for all media.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use proptest::prelude::*;
use underlay_storage::catalogue::{
    self, CatalogueMedium, MeasuredOrder, ModelParameters, TailMeasure, TailParameters,
};
use underlay_storage::medium::{FinishedRequest, MediumModel, ModelOperation, ModelRequest, RequestId};
use underlay_storage::stack::InitialState;
use underlay_storage::time::ModelTime;

const CAPACITY: u64 = 256 << 20;
/// Few blocks, so that requests overlap often.
const BLOCKS: u64 = 48;
const BLOCK: u64 = 4096;
const HOUR_NS: u64 = 3_600_000_000_000;

/// One submission: how long after the one before, and what.
#[derive(Clone, Copy, Debug)]
struct Call {
    gap_ns: u64,
    operation: ModelOperation,
    block: u64,
    blocks: u64,
    fua: bool,
    absorb: bool,
}

fn call() -> impl Strategy<Value = Call> {
    let operation = prop_oneof![
        4 => Just(ModelOperation::Read),
        6 => Just(ModelOperation::Write),
        2 => Just(ModelOperation::Flush),
        1 => Just(ModelOperation::Discard),
    ];
    let gap_ns = prop_oneof![3 => Just(0u64), 3 => 0..200_000u64, 2 => 0..20_000_000u64];
    // Blocks lie near each other at the start, or far away.
    (gap_ns, operation, 0..BLOCKS, 1..8u64, any::<bool>(), 0..40u8).prop_map(
        |(gap_ns, operation, block, blocks, fua, absorb)| Call {
            gap_ns,
            operation,
            block: if block % 3 == 0 { block * 1000 } else { block },
            blocks,
            fua: fua && operation == ModelOperation::Write,
            absorb: absorb == 39,
        },
    )
}

/// Watches a model from outside.
#[derive(Default)]
struct Watch {
    under_way: BTreeMap<RequestId, (ModelRequest, ModelTime, u64)>,
    finished: BTreeSet<RequestId>,
    last: ModelTime,
    /// For each block, the order of the last submission and of the last completion of a write to it.
    submitted: BTreeMap<u64, u64>,
    /// Of each flush, the blocks whose writes it must have made durable.
    covers: BTreeMap<RequestId, BTreeSet<u64>>,
    completed_writes: BTreeSet<u64>,
    /// Writes submitted while another one to a block of theirs was in flight: which is the last is open.
    contended: BTreeSet<RequestId>,
    order: u64,
    times: Vec<(RequestId, ModelTime)>,
}

fn blocks(request: &ModelRequest) -> std::ops::Range<u64> {
    request.offset_bytes / BLOCK..(request.offset_bytes + request.length_bytes) / BLOCK
}

impl Watch {
    fn submit(&mut self, model: &mut dyn MediumModel, request: ModelRequest, now: ModelTime) {
        self.order += 1;
        match request.operation {
            ModelOperation::Flush => {
                self.covers.insert(request.id, self.completed_writes.clone());
            }
            ModelOperation::Write | ModelOperation::Discard => {
                let overlaps = |other: &ModelRequest| {
                    other.operation == ModelOperation::Write
                        && blocks(other).any(|block| blocks(&request).contains(&block))
                };
                if self.under_way.values().any(|(other, ..)| overlaps(other)) {
                    self.contended.insert(request.id);
                }
                for block in blocks(&request) {
                    self.submitted.insert(block, self.order);
                    // A new write may take the place of the completed one at any time from now on.
                    self.completed_writes.remove(&block);
                    for covered in self.covers.values_mut() {
                        covered.remove(&block);
                    }
                }
            }
            ModelOperation::Read => {}
        }
        self.under_way.insert(request.id, (request, now, self.order));
        model.submit(request, now);
    }

    fn carry_on(&mut self, model: &mut dyn MediumModel, deadline: ModelTime) -> Result<(), TestCaseError> {
        let mut finished: Vec<FinishedRequest> = Vec::new();
        let mut guard = 0;
        while let Some(next) = model.next_completion().filter(|next| *next <= deadline) {
            guard += 1;
            prop_assert!(guard < 2_000_000, "no end of events");
            model.complete(next, &mut finished);
            prop_assert!(model.next_completion().is_none_or(|later| later > next), "an event in the past");
            for FinishedRequest { id, at: finished_at } in finished.drain(..) {
                let Some((request, submitted, order)) = self.under_way.remove(&id) else {
                    return Err(TestCaseError::fail(format!("{id:?} finished and was not in flight")));
                };
                prop_assert!(self.finished.insert(id), "{id:?} finished twice");
                prop_assert!(finished_at >= submitted, "{id:?} finished before it was submitted");
                prop_assert!(finished_at >= self.last && finished_at <= next, "{id:?} finished out of order");
                self.last = finished_at;
                self.times.push((id, finished_at));
                let volatile = |block: u64| {
                    let (first, end) = (block * BLOCK, (block + 1) * BLOCK);
                    model.unflushed().iter().any(|&(from, to)| from < end && first < to)
                };
                match request.operation {
                    ModelOperation::Write => {
                        for block in blocks(&request) {
                            if self.submitted.get(&block) == Some(&order) {
                                self.completed_writes.insert(block);
                                let settled = request.fua && !self.contended.contains(&id);
                                prop_assert!(!(settled && volatile(block)), "{id:?} had FUA and is volatile");
                            }
                        }
                    }
                    ModelOperation::Flush => {
                        for block in self.covers.remove(&id).unwrap_or_default() {
                            prop_assert!(!volatile(block), "{id:?} left block {block} volatile");
                        }
                    }
                    ModelOperation::Read | ModelOperation::Discard => {}
                }
            }
        }
        model.complete(deadline, &mut finished);
        prop_assert!(finished.is_empty(), "an event was not announced");
        Ok(())
    }
}

fn check(
    model: &mut dyn MediumModel,
    calls: &[Call],
    gathers: bool,
) -> Result<Vec<(RequestId, ModelTime)>, TestCaseError> {
    let mut watch = Watch::default();
    let mut now = ModelTime::ZERO;
    for (index, call) in calls.iter().enumerate() {
        now = ModelTime::from_ns(now.as_ns() + call.gap_ns);
        watch.carry_on(model, now)?;
        let flush = call.operation == ModelOperation::Flush;
        let request = ModelRequest {
            id: RequestId(index as u64),
            operation: call.operation,
            offset_bytes: if flush { 0 } else { call.block * BLOCK },
            length_bytes: if flush { 0 } else { call.blocks * BLOCK },
            fua: call.fua,
        };
        if call.absorb && watch.under_way.is_empty() {
            model.absorb(request);
            watch.finished.insert(request.id);
            for block in blocks(&request) {
                watch.completed_writes.remove(&block);
            }
        } else {
            watch.submit(model, request, now);
        }
    }
    watch.carry_on(model, ModelTime::from_ns(now.as_ns() + HOUR_NS))?;
    prop_assert_eq!(watch.finished.len(), calls.len(), "not every request finished within an hour");
    if gathers {
        // Less than a program stays in the buffer until a flush.
        now = ModelTime::from_ns(now.as_ns() + 2 * HOUR_NS);
        let flush = ModelOperation::Flush;
        let id = RequestId(calls.len() as u64);
        let request = ModelRequest { id, operation: flush, offset_bytes: 0, length_bytes: 0, fua: false };
        watch.submit(model, request, now);
        watch.carry_on(model, ModelTime::from_ns(now.as_ns() + HOUR_NS))?;
        prop_assert!(watch.finished.contains(&id), "a flush did not finish within an hour");
    }
    prop_assert!(model.unflushed().is_empty(), "an idle device keeps data volatile");
    Ok(watch.times)
}

fn run(
    medium: &CatalogueMedium,
    calls: &[Call],
    seed: u64,
) -> Result<Vec<(RequestId, ModelTime)>, TestCaseError> {
    let initial = if seed.is_multiple_of(2) { InitialState::Fresh } else { InitialState::Steady };
    let gathers = matches!(&medium.model, ModelParameters::Flash(flash) if flash.program_pages.is_some());
    check(&mut *medium.model(CAPACITY, seed, initial), calls, gathers)
}

/// One medium of each kind that the catalogue may have few of, with all that the kind can have.
fn kinds() -> Vec<CatalogueMedium> {
    [
        include_str!("kinds/cloud.toml"),
        include_str!("kinds/pmem.toml"),
        include_str!("kinds/network.toml"),
        include_str!("kinds/measured.toml"),
    ]
    .map(|text| CatalogueMedium::parse("kinds.toml", text).unwrap_or_else(|error| panic!("{error}")))
    .to_vec()
}

/// The catalogue's media, and what they would be with small buffers that power cuts empty.
fn media() -> Vec<CatalogueMedium> {
    let mut media = catalogue::builtin().to_vec();
    for name in ["hdd-7200-sata", "ssd-sata"] {
        let mut medium = catalogue::find(name).unwrap();
        match &mut medium.model {
            ModelParameters::Hdd(parameters) => parameters.write_cache_bytes.value = 65536.0,
            ModelParameters::Flash(parameters) => {
                parameters.write_buffer_bytes.value = 65536.0;
                parameters.power_loss_protection.value = false;
            }
            _ => unreachable!("{name} is another kind"),
        }
        media.push(medium);
    }
    // What only the measured drives have, with a buffer that loses what it gathers.
    let mut gathering = catalogue::find("solidigm-p5520-1920").unwrap();
    if let ModelParameters::Flash(parameters) = &mut gathering.model {
        parameters.power_loss_protection.value = false;
        parameters.suspensions = parameters.program_pages.clone();
        parameters.command_slots = parameters.gather_pages.clone();
    }
    media.push(gathering);
    media.extend(kinds());
    let mut fifo = kinds().remove(3);
    if let ModelParameters::Measured(parameters) = &mut fifo.model {
        parameters.order.value = MeasuredOrder::Fifo;
    }
    media.push(fifo);
    let total = kinds().remove(2).tail.map(|tail| TailParameters { measure: TailMeasure::Total, ..tail });
    media.push(CatalogueMedium { tail: total, ..catalogue::find("hdd-7200-sata").unwrap() });
    media
}

/// One in this many of the media is looked at in a case.
const PICKED: usize = 8;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(600) })]

    #[test]
    fn model_keeps_contract(
        calls in prop::collection::vec(call(), 1..80), seed in any::<u64>(), pick in any::<prop::sample::Index>()
    ) {
        static MEDIA: LazyLock<Vec<CatalogueMedium>> = LazyLock::new(media);
        // A case is of few media: many cases say more than many media.
        for medium in MEDIA.iter().skip(pick.index(PICKED)).step_by(PICKED) {
            let first = run(medium, &calls, seed)?;
            let second = run(medium, &calls, seed)?;
            prop_assert_eq!(first, second, "{}: the same calls gave other times", medium.name);
        }
    }
}

#[test]
fn disk_reads_own_cache_without_moving() {
    let medium = catalogue::find("hdd-7200-sata").unwrap();
    let mut model = medium.model(1 << 30, 1, InitialState::Fresh);
    let request = |id, operation| ModelRequest {
        id: RequestId(id),
        operation,
        offset_bytes: 512 << 20,
        length_bytes: 4096,
        fua: false,
    };
    let mut finished = Vec::new();
    model.submit(request(1, ModelOperation::Write), ModelTime::ZERO);
    let written = model.next_completion().unwrap();
    model.complete(written, &mut finished);
    let replied = model.next_completion().unwrap();
    model.submit(request(2, ModelOperation::Read), written);
    // Written into memory and read from it: both within a millisecond, where the arm needs several.
    while finished.len() < 2 {
        let next = model.next_completion().unwrap();
        model.complete(next, &mut finished);
    }
    assert!(replied >= written);
    assert!(finished.iter().all(|finished| finished.at.as_ns() < 1_000_000), "{finished:?}");
}

#[test]
fn fua_waits_for_the_platter() {
    let medium = catalogue::find("hdd-7200-sata").unwrap();
    let time = |fua, seed| {
        let mut model = medium.model(1 << 30, seed, InitialState::Fresh);
        let request = ModelRequest {
            id: RequestId(1),
            operation: ModelOperation::Write,
            offset_bytes: 900 << 20,
            length_bytes: 4096,
            fua,
        };
        model.submit(request, ModelTime::ZERO);
        let mut finished = Vec::new();
        while let Some(next) = model.next_completion().filter(|_| finished.is_empty()) {
            model.complete(next, &mut finished);
        }
        finished[0].at.as_ns()
    };
    assert!(time(false, 1) < 200_000);
    // At least the seek over nine tenths of the stroke.
    assert!(time(true, 1) > 10_000_000);
}
