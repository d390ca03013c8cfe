//! The members' devices: where a unit is, which copy is read, who is left out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use underlay_sync::Mutex;

use underlay_storage::device::{BlockDevice, Completion, DeviceError, Done, Geometry, Request};
use underlay_storage::layers::join::Gather;

use super::description::MemberState;
use super::extent::{BLOCK_BYTES, BLOCKS, EXTENT_BYTES, Slab, Unit};
use super::label::Label;
use super::map::Outstanding;
use super::record::Record;

/// A part of a device.
pub struct Part {
    pub device: Arc<dyn BlockDevice>,
    pub start_bytes: u64,
    pub length_bytes: u64,
}

impl BlockDevice for Part {
    fn geometry(&self) -> Geometry {
        Geometry { capacity_bytes: self.length_bytes, ..self.device.geometry() }
    }

    fn submit(&self, mut request: Request, done: Done) {
        if let Err(error) = request.check(&self.geometry()) {
            return done(Err(error));
        }
        match &mut request {
            Request::Read { offset_bytes, .. }
            | Request::Write { offset_bytes, .. }
            | Request::Discard { offset_bytes, .. } => *offset_bytes += self.start_bytes,
            Request::Flush => {}
        }
        self.device.submit(request, done);
    }
}

pub struct Member {
    pub device: Arc<dyn BlockDevice>,
    pub label: Label,
    state: AtomicU8,
    under_way: AtomicUsize,
    /// Something was written to it since its last flush began.
    written: AtomicBool,
}

const STATES: [MemberState; 3] = [MemberState::InUse, MemberState::Out, MemberState::Resyncing];

impl Member {
    pub fn state(&self) -> MemberState {
        STATES[usize::from(self.state.load(Ordering::Acquire)) % STATES.len()]
    }

    fn offset(&self, unit: Unit) -> u64 {
        self.label.data_start_bytes()
            + (unit - u64::from(self.label.first_slab) * u64::from(BLOCKS)) * BLOCK_BYTES
    }
}

/// Where something lies: once, or twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    pub first: Unit,
    pub second: Option<Unit>,
}

impl Places {
    pub fn shifted(self, blocks: u32) -> Places {
        let blocks = u64::from(blocks);
        Places { first: self.first + blocks, second: self.second.map(|unit| unit + blocks) }
    }

    fn units(self) -> impl Iterator<Item = Unit> {
        std::iter::once(self.first).chain(self.second)
    }
}

pub struct Members {
    pub list: Vec<Member>,
    /// Guards changes of states.
    changes: Mutex<()>,
    outstanding: Arc<Outstanding>,
    /// Someone was left out or taken in, and the journal has yet to hear of it.
    changed: AtomicBool,
}

impl Members {
    pub fn new(
        devices: Vec<(Arc<dyn BlockDevice>, Label)>,
        out: impl Fn(usize) -> bool,
        outstanding: Arc<Outstanding>,
    ) -> Members {
        let member = |(index, (device, label))| Member {
            device,
            label,
            state: AtomicU8::new(u8::from(out(index))),
            under_way: AtomicUsize::new(0),
            // Of what was written before nobody knows.
            written: AtomicBool::new(true),
        };
        let list = devices.into_iter().enumerate().map(member).collect();
        Members { list, changes: Mutex::new(()), outstanding, changed: AtomicBool::new(true) }
    }

    pub fn index_of(&self, unit: Unit) -> usize {
        let slab = unit / u64::from(BLOCKS);
        self.list.partition_point(|m| u64::from(m.label.first_slab) + u64::from(m.label.slabs) <= slab)
    }

    pub fn in_use(&self) -> usize {
        self.list.iter().filter(|member| member.state() == MemberState::InUse).count()
    }

    /// Whether new data may be put there.
    pub fn takes_data(&self, index: usize) -> bool {
        self.list[index].state() == MemberState::InUse
    }

    /// Leaves a member out: its copies of mirrored data are not used any more. One at a time; false if another one is out,
    /// or if it can't be noted: a killed process must not take the member's old copies for good when it comes back.
    pub fn leave_out(&self, index: usize) -> bool {
        let _changes = self.changes.lock();
        let others = self.list.iter().enumerate().filter(|(other, _)| *other != index);
        if self.list.len() < 2 || others.into_iter().any(|(_, member)| member.state() != MemberState::InUse) {
            return self.list[index].state() == MemberState::Out;
        }
        if self.list[index].state() != MemberState::Out {
            if !self.note(index, true) {
                return false;
            }
            self.list[index].state.store(1, Ordering::Release);
            self.changed.store(true, Ordering::Release);
        }
        true
    }

    fn note(&self, index: usize, out: bool) -> bool {
        self.outstanding.unflushed.note(&Record::Member { member: index as u8, out }).is_ok()
    }

    /// False if the member's state was another one, or the change can't be noted.
    pub fn change(&self, index: usize, from: MemberState, to: MemberState) -> bool {
        let _changes = self.changes.lock();
        if self.list[index].state() != from || !self.note(index, to != MemberState::InUse) {
            return false;
        }
        let state = STATES.iter().position(|state| *state == to).unwrap_or_default();
        self.list[index].state.store(state as u8, Ordering::Release);
        self.changed.store(true, Ordering::Release);
        true
    }

    pub fn take_changed(&self) -> bool {
        // Not between a note and the change that it is about: the flush is to know of it.
        let _changes = self.changes.lock();
        self.changed.swap(false, Ordering::AcqRel)
    }

    pub fn set_changed(&self) {
        self.changed.store(true, Ordering::Release);
    }

    pub fn is_changed(&self) -> bool {
        self.changed.load(Ordering::Acquire)
    }

    /// Reads from the copy whose member has less to do, and from the other one if that fails.
    pub fn read(self: &Arc<Self>, places: Places, buffer: Vec<u8>, done: Done) {
        let usable = |unit: &Unit| self.takes_data(self.index_of(*unit));
        let load = |unit: &Unit| self.list[self.index_of(*unit)].under_way.load(Ordering::Relaxed);
        let (unit, other) = match places.second {
            None => (places.first, None),
            Some(second) => match (usable(&places.first), usable(&second)) {
                (true, false) => (places.first, None),
                (false, true) => (second, None),
                _ if load(&second) < load(&places.first) => (second, Some(places.first)),
                _ => (places.first, Some(second)),
            },
        };
        let Some(other) = other else { return self.read_one(unit, buffer, done) };
        let (members, length) = (Arc::clone(self), buffer.len());
        let answered = move |completion: Completion| match completion {
            Ok(buffer) => done(Ok(buffer)),
            Err(error) => {
                if error == DeviceError::Gone {
                    members.leave_out(members.index_of(unit));
                }
                // If the other one had to be left out meanwhile, there is nobody left who has it.
                if members.takes_data(members.index_of(other)) {
                    members.read_one(other, vec![0; length], done);
                } else {
                    done(Err(error));
                }
            }
        };
        self.read_one(unit, buffer, Box::new(answered));
    }

    fn read_one(self: &Arc<Self>, unit: Unit, buffer: Vec<u8>, done: Done) {
        let index = self.index_of(unit);
        let member = &self.list[index];
        member.under_way.fetch_add(1, Ordering::Relaxed);
        let members = Arc::clone(self);
        let answered = move |completion| {
            members.list[index].under_way.fetch_sub(1, Ordering::Relaxed);
            done(completion);
        };
        let request = Request::Read { offset_bytes: member.offset(unit), buffer };
        member.device.submit(request, Box::new(answered));
    }

    /// Writes every copy that is used. A member that fails a copy of two is left out.
    pub fn write(self: &Arc<Self>, places: Places, data: Vec<u8>, fua: bool, done: Done) {
        let used = |unit: &Unit| self.list[self.index_of(*unit)].state() != MemberState::Out;
        if places.second.is_none() {
            return self.write_one(places.first, data, fua, done);
        }
        let mut targets: Vec<Unit> = places.units().filter(used).collect();
        if targets.is_empty() {
            targets.extend(places.units());
        }
        let (members, units) = (Arc::clone(self), targets.clone());
        let gather = Gather::new(units.len(), move |completions: Vec<Completion>| {
            let mut answer = Err(DeviceError::Gone);
            let any = completions.iter().any(Result::is_ok);
            for (unit, completion) in units.into_iter().zip(completions) {
                let index = members.index_of(unit);
                match completion {
                    // What a member holds that was left out meanwhile nobody will read.
                    Ok(_) if members.list[index].state() == MemberState::Out => {}
                    Ok(_) => answer = answer.or(Ok(Vec::new())),
                    Err(_) if any && members.leave_out(index) => {}
                    Err(error) => return done(Err(error)),
                }
            }
            done(answer);
        });
        let mut data = Some(data);
        let count = targets.len();
        for (part, unit) in targets.into_iter().enumerate() {
            let own = if part + 1 == count { data.take() } else { data.clone() };
            let gather = Arc::clone(&gather);
            let arrive = move |completion| gather.arrive(part, completion);
            self.write_one(unit, own.unwrap_or_default(), fua, Box::new(arrive));
        }
    }

    fn write_one(self: &Arc<Self>, unit: Unit, data: Vec<u8>, fua: bool, done: Done) {
        let index = self.index_of(unit);
        let member = &self.list[index];
        member.under_way.fetch_add(1, Ordering::Relaxed);
        let members = Arc::clone(self);
        let answered = move |completion: Completion| {
            let member = &members.list[index];
            member.under_way.fetch_sub(1, Ordering::Relaxed);
            if !fua || completion.is_err() {
                member.written.store(true, Ordering::Release);
            }
            done(completion);
        };
        let request = Request::Write { offset_bytes: member.offset(unit), data, fua };
        member.device.submit(request, Box::new(answered));
    }

    /// Tells the member that nobody needs a slab's content.
    pub fn discard(self: &Arc<Self>, slab: Slab, done: impl FnOnce() + Send + 'static) {
        let index = self.index_of(u64::from(slab) * u64::from(BLOCKS));
        let member = &self.list[index];
        let offset_bytes = member.offset(u64::from(slab) * u64::from(BLOCKS));
        let members = Arc::clone(self);
        let answered = move |_| {
            // Whether it could or not: nobody reads what is there before writing.
            members.list[index].written.store(true, Ordering::Release);
            done();
        };
        member
            .device
            .submit(Request::Discard { offset_bytes, length_bytes: EXTENT_BYTES }, Box::new(answered));
    }

    /// Flushes every member that was written to; says by member what came of it.
    pub fn flush(self: &Arc<Self>, done: impl FnOnce(Vec<Result<(), DeviceError>>) + Send + 'static) {
        let gather = Gather::new(self.list.len(), done);
        for index in 0..self.list.len() {
            let gather = Arc::clone(&gather);
            if !self.list[index].written.swap(false, Ordering::AcqRel) {
                gather.arrive(index, Ok(()));
                continue;
            }
            let members = Arc::clone(self);
            let answered = move |completion: Completion| {
                if completion.is_err() {
                    members.list[index].written.store(true, Ordering::Release);
                }
                gather.arrive(index, completion.map(|_| ()));
            };
            self.list[index].device.submit(Request::Flush, Box::new(answered));
        }
    }
}
