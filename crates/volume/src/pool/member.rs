//! The members' devices: where a unit is, which copy is read, who is left out.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use underlay_sync::Mutex;
use underlay_sync::planted::{PlantedBug, is_planted};

use underlay_storage::device::{
    BlockDevice, CompletionCallback, DeviceCompletion, DeviceError, DeviceGeometry, DeviceRequest,
};
use underlay_storage::layers::join::GatherJoin;

use super::description::MemberState;
use super::extent::{BLOCK_BYTES, BLOCKS, EXTENT_BYTES, Slab, Unit, first_unit};
use super::failed_flushes::MemberFlushHistory;
use super::label::MemberLabel;
use super::map::OutstandingChanges;
use super::record::PoolRecord;

/// A part of a device.
pub(super) struct MemberPart {
    pub device: Arc<dyn BlockDevice>,
    pub start_bytes: u64,
    pub length_bytes: u64,
}

impl BlockDevice for MemberPart {
    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry { capacity_bytes: self.length_bytes, ..self.device.geometry() }
    }

    fn submit(&self, mut request: DeviceRequest, done: CompletionCallback) {
        if let Err(error) = request.check(&self.geometry()) {
            return done(Err(error));
        }
        match &mut request {
            DeviceRequest::Read { offset_bytes, .. }
            | DeviceRequest::Write { offset_bytes, .. }
            | DeviceRequest::Discard { offset_bytes, .. } => *offset_bytes += self.start_bytes,
            DeviceRequest::Flush => {}
        }
        self.device.submit(request, done);
    }
}

fn missing_copy_error() -> DeviceError {
    DeviceError::Io("no copy of this is on a member in use: `volume list` shows those that are out".into())
}

fn owing(member: usize) -> DeviceError {
    DeviceError::Io(format!(
        "member {member} still lacks data that could not be flushed to it before the pool was opened: \
             `volume resync` writes it again once the member answers"
    ))
}

pub(super) struct PoolMember {
    pub device: Arc<dyn BlockDevice>,
    pub label: MemberLabel,
    state: AtomicU8,
    /// The turn in which it last went, or came back to be brought up to date.
    moved: AtomicU64,
    /// Its label has been read; absent where it was read at opening.
    is_known: Option<Arc<AtomicBool>>,
    pub doubt: Arc<MemberFlushHistory>,
    under_way: AtomicUsize,
    /// Something was written to it since its last flush began.
    written: AtomicBool,
}

const STATES: [MemberState; 3] = [MemberState::InUse, MemberState::Out, MemberState::Resyncing];

impl PoolMember {
    pub(super) fn state(&self) -> MemberState {
        STATES[usize::from(self.state.load(Ordering::SeqCst)) % STATES.len()]
    }

    /// As people see it.
    pub(super) fn shown_state(&self) -> MemberState {
        match self.state() {
            MemberState::InUse if self.is_unread() => MemberState::Unread,
            MemberState::InUse if self.doubt.owes() => MemberState::Doubtful,
            state => state,
        }
    }

    /// It could not be read at opening and has not answered since. It has missed nothing: while it is so, what would
    /// be written without it is answered with an error.
    pub(super) fn is_unread(&self) -> bool {
        self.is_known.as_ref().is_some_and(|is_known| !is_known.load(Ordering::Acquire))
    }

    fn offset(&self, unit: Unit) -> u64 {
        self.label.data_start_bytes()
            + (unit - u64::from(self.label.first_slab) * u64::from(BLOCKS)) * BLOCK_BYTES
    }
}

/// Where something lies: once, or twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExtentPlaces {
    pub first: Unit,
    pub second: Option<Unit>,
}

impl ExtentPlaces {
    pub(super) fn shifted(self, blocks: u32) -> ExtentPlaces {
        let blocks = u64::from(blocks);
        ExtentPlaces { first: self.first + blocks, second: self.second.map(|unit| unit + blocks) }
    }

    fn units(self) -> impl Iterator<Item = Unit> {
        std::iter::once(self.first).chain(self.second)
    }
}

/// A device of the pool, as it was found at opening.
pub(super) struct FoundDevice {
    pub device: Arc<dyn BlockDevice>,
    pub label: MemberLabel,
    /// The journal, or what was noted beside it, says that its copies are old.
    pub out: bool,
    /// Absent if its label was read.
    pub is_known: Option<Arc<AtomicBool>>,
}

/// A moment in the coming and going of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MemberTransition(u64);

pub(super) struct PoolMembers {
    pub list: Vec<PoolMember>,
    /// Counts how often a member went or came back.
    turn: AtomicU64,
    /// Guards changes of states.
    changes: Mutex<()>,
    outstanding: Arc<OutstandingChanges>,
    /// Someone was left out or taken in, and the journal has yet to hear of it.
    changed: AtomicBool,
}

impl PoolMembers {
    pub(super) fn new(found: Vec<FoundDevice>, outstanding: Arc<OutstandingChanges>) -> PoolMembers {
        let lacking = found.iter().filter(|found| found.out || found.is_known.is_some()).count();
        let doubts = outstanding.doubts.all();
        let member = |(found, doubt): (FoundDevice, Arc<MemberFlushHistory>)| {
            // One that could not be read is left out if it alone is lacking. Beside another one it can't be, and has
            // missed nothing that was written before.
            let alone = lacking == 1 || is_planted(PlantedBug::StaleCopyServed);
            let out = found.out || (found.is_known.is_some() && alone);
            PoolMember {
                device: found.device,
                label: found.label,
                state: AtomicU8::new(u8::from(out)),
                moved: AtomicU64::new(0),
                is_known: found.is_known,
                doubt,
                under_way: AtomicUsize::new(0),
                // Nobody knows what was written before this opening and never flushed.
                written: AtomicBool::new(true),
            }
        };
        let list = found.into_iter().zip(doubts).map(member).collect();
        let (turn, changes) = (AtomicU64::new(0), Mutex::new(()));
        PoolMembers { list, turn, changes, outstanding, changed: AtomicBool::new(true) }
    }

    pub(super) fn index_of(&self, unit: Unit) -> usize {
        let slab = unit / u64::from(BLOCKS);
        self.list.partition_point(|m| u64::from(m.label.first_slab) + u64::from(m.label.slabs) <= slab)
    }

    pub(super) fn count_in_use(&self) -> usize {
        (0..self.list.len()).filter(|index| self.takes_data(*index)).count()
    }

    /// Whether new data may be put there.
    pub(super) fn takes_data(&self, index: usize) -> bool {
        self.is_read(index) && !self.list[index].is_unread()
    }

    /// Whether its copies may be read: they have all that was written.
    pub(super) fn is_read(&self, index: usize) -> bool {
        self.list[index].state() == MemberState::InUse
    }

    fn state_of(&self, unit: Unit) -> MemberState {
        self.list[self.index_of(unit)].state()
    }

    /// To be asked for before the states of members are looked at.
    pub(super) fn turn(&self) -> MemberTransition {
        MemberTransition(self.turn.load(Ordering::SeqCst))
    }

    /// Whether a unit's member has neither gone nor come back since then.
    fn has_stayed(&self, unit: Unit, transition: MemberTransition) -> bool {
        self.list[self.index_of(unit)].moved.load(Ordering::SeqCst) <= transition.0
    }

    /// Of places whose writing began after `transition` and was answered with success, those that a map may list. A
    /// member that went and came back meanwhile may lack its copy, and the resync that brought it up to date has not
    /// seen it in the map. One that is out gets it when it comes back, if the map lists it by then: so this is asked
    /// under the map's lock.
    pub(super) fn listed(&self, places: ExtentPlaces, transition: MemberTransition) -> Option<ExtentPlaces> {
        let Some(second) = places.second.filter(|_| !is_planted(PlantedBug::FirstWriteMissesResync)) else {
            return Some(places);
        };
        let is_current = |unit| self.has_stayed(unit, transition) && self.state_of(unit) != MemberState::Out;
        let is_usable = |unit| self.has_stayed(unit, transition) || self.state_of(unit) == MemberState::Out;
        let once = |first| Some(ExtentPlaces { first, second: None });
        match (places.first, second) {
            (first, second) if !is_current(first) && !is_current(second) => None,
            (first, second) if is_usable(first) && is_usable(second) => Some(places),
            (first, second) => once(if is_usable(first) { first } else { second }),
        }
    }

    /// Leaves a member out: its copies of mirrored data are no longer used. One at a time; false if another
    /// one is out,
    /// or has not answered since the opening, or if it can't be noted: a killed process must not take the member's old
    /// copies for good when it comes back.
    pub(super) fn leave_out(&self, index: usize) -> bool {
        let _changes = self.changes.lock();
        let lacks = |member: &PoolMember| member.state() != MemberState::InUse || member.is_unread();
        let mut others = self.list.iter().enumerate().filter(|(other, _)| *other != index);
        if self.list.len() < 2 || others.any(|(_, member)| lacks(member)) {
            return self.list[index].state() == MemberState::Out;
        }
        if self.list[index].state() != MemberState::Out {
            if !self.note(index, true) {
                return false;
            }
            self.set(index, MemberState::Out);
        }
        true
    }

    /// The state first: a thread that sees the new turn must see it as well.
    fn set(&self, index: usize, state: MemberState) {
        let member = &self.list[index];
        let number = STATES.iter().position(|candidate| *candidate == state).unwrap_or_default();
        member.state.store(number as u8, Ordering::SeqCst);
        if state != MemberState::InUse {
            member.moved.store(self.turn.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        }
        self.changed.store(true, Ordering::Release);
    }

    fn note(&self, index: usize, out: bool) -> bool {
        self.outstanding.unflushed.note(&PoolRecord::Member { member: index as u8, out }).is_ok()
    }

    /// False if the member's state was another one, or the change can't be noted.
    pub(super) fn change(&self, index: usize, from: MemberState, to: MemberState) -> bool {
        let _changes = self.changes.lock();
        if self.list[index].state() != from || !self.note(index, to != MemberState::InUse) {
            return false;
        }
        self.set(index, to);
        true
    }

    /// Whether the journal has yet to note a member that was left out or taken in, and the states that it notes now.
    pub(super) fn take_changed(&self) -> (bool, Vec<MemberState>) {
        // Not between a note and the change that it is about: the flush is to know of it.
        let _changes = self.changes.lock();
        let states = self.list.iter().map(PoolMember::state).collect();
        (self.changed.swap(false, Ordering::AcqRel), states)
    }

    pub(super) fn set_changed(&self) {
        self.changed.store(true, Ordering::Release);
    }

    pub(super) fn is_changed(&self) -> bool {
        self.changed.load(Ordering::Acquire)
    }

    /// Reads from the copy whose member has less to do, and from the other one if that fails. An error where neither
    /// copy is used: what is there may be old.
    pub(super) fn read(self: &Arc<Self>, places: ExtentPlaces, buffer: Vec<u8>, done: CompletionCallback) {
        let transition = self.turn();
        let usable = |unit: &Unit| self.is_read(self.index_of(*unit));
        let load = |unit: &Unit| {
            let member = &self.list[self.index_of(*unit)];
            // `false` sorts first: one that has not shown its label yet is only the second choice.
            (member.is_unread(), member.under_way.load(Ordering::Relaxed))
        };
        let (unit, other) = match places.second {
            None => (places.first, None),
            Some(second) => match (usable(&places.first), usable(&second)) {
                (true, false) => (places.first, None),
                (false, true) => (second, None),
                (false, false) if !is_planted(PlantedBug::StaleCopyServed) => {
                    return done(Err(missing_copy_error()));
                }
                _ if load(&second) < load(&places.first) => (second, Some(places.first)),
                _ => (places.first, Some(second)),
            },
        };
        let Some(other) = other else { return self.read_one(unit, buffer, done) };
        let (members, length) = (Arc::clone(self), buffer.len());
        let answered = move |completion: DeviceCompletion| {
            let error = match completion {
                // What was left out meanwhile may have lost what it had before it answered.
                Ok(_) if !members.has_stayed(unit, transition) => missing_copy_error(),
                Ok(buffer) => return done(Ok(buffer)),
                Err(error) => error,
            };
            if error == DeviceError::Gone {
                members.leave_out(members.index_of(unit));
            }
            // If the other one was left out meanwhile, no member has it.
            if members.is_read(members.index_of(other)) {
                members.read_one(other, vec![0; length], done);
            } else {
                done(Err(error));
            }
        };
        self.read_one(unit, buffer, Box::new(answered));
    }

    fn read_one(self: &Arc<Self>, unit: Unit, buffer: Vec<u8>, done: CompletionCallback) {
        let index = self.index_of(unit);
        let member = &self.list[index];
        member.under_way.fetch_add(1, Ordering::Relaxed);
        let members = Arc::clone(self);
        let answered = move |completion| {
            members.list[index].under_way.fetch_sub(1, Ordering::Relaxed);
            done(completion);
        };
        let request = DeviceRequest::Read { offset_bytes: member.offset(unit), buffer };
        member.device.submit(request, Box::new(answered));
    }

    /// Writes every copy that is used. A member that fails a copy of two is left out; where it can't be, as it is the
    /// second one, that is an error.
    pub(super) fn write(
        self: &Arc<Self>,
        places: ExtentPlaces,
        data: Vec<u8>,
        fua: bool,
        done: CompletionCallback,
    ) {
        if places.second.is_none() {
            return self.write_one(places.first, data, fua, done);
        }
        let transition = self.turn();
        // One that is being brought up to date gets every write too, or what was already copied would be old
        // again.
        let used = |unit: &Unit| self.state_of(*unit) != MemberState::Out;
        let targets: Vec<Unit> = places.units().filter(used).collect();
        if targets.is_empty() {
            return done(Err(missing_copy_error()));
        }
        let (members, units) = (Arc::clone(self), targets.clone());
        let gather = GatherJoin::new(units.len(), move |completions: Vec<DeviceCompletion>| {
            // What a member holds that was left out meanwhile nobody will read.
            let is_read =
                |unit| members.is_read(members.index_of(unit)) && members.has_stayed(unit, transition);
            let any = units.iter().zip(&completions).any(|(unit, done)| done.is_ok() && is_read(*unit));
            for (unit, completion) in units.iter().zip(completions) {
                if let Err(error) = completion
                    && !(any && members.leave_out(members.index_of(*unit)))
                {
                    return done(Err(error));
                }
            }
            done(if any { Ok(Vec::new()) } else { Err(DeviceError::Gone) });
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

    fn write_one(self: &Arc<Self>, unit: Unit, data: Vec<u8>, fua: bool, done: CompletionCallback) {
        let index = self.index_of(unit);
        let member = &self.list[index];
        member.under_way.fetch_add(1, Ordering::Relaxed);
        let members = Arc::clone(self);
        let answered = move |completion: DeviceCompletion| {
            let member = &members.list[index];
            member.under_way.fetch_sub(1, Ordering::Relaxed);
            if !fua || completion.is_err() {
                // Not when it is submitted: a flush in between would clear it, and need not cover a write
                // that is unanswered.
                member.written.store(true, Ordering::Release);
            }
            done(completion);
        };
        let request = DeviceRequest::Write { offset_bytes: member.offset(unit), data, fua };
        member.device.submit(request, Box::new(answered));
    }

    /// Tells the member of these slabs, which is one, that nobody needs their content.
    pub(super) fn discard(self: &Arc<Self>, slabs: &Range<Slab>, done: impl FnOnce() + Send + 'static) {
        let index = self.index_of(first_unit(slabs.start));
        let member = &self.list[index];
        let offset_bytes = member.offset(first_unit(slabs.start));
        let length_bytes = u64::from(slabs.end - slabs.start) * EXTENT_BYTES;
        let members = Arc::clone(self);
        let answered = move |_| {
            // Whether it could or not: nobody reads what is there before writing.
            members.list[index].written.store(true, Ordering::Release);
            done();
        };
        member.device.submit(DeviceRequest::Discard { offset_bytes, length_bytes }, Box::new(answered));
    }

    /// Flushes every member that was written to, with one outcome for each member.
    pub(super) fn flush(self: &Arc<Self>, done: impl FnOnce(Vec<Result<(), DeviceError>>) + Send + 'static) {
        let gather = GatherJoin::new(self.list.len(), done);
        for index in 0..self.list.len() {
            let gather = Arc::clone(&gather);
            if self.list[index].doubt.owes() {
                gather.arrive(index, Err(owing(index)));
                continue;
            }
            // Cleared before the flush is submitted: what is answered from here on counts for the next one.
            if !self.list[index].written.swap(false, Ordering::AcqRel) {
                gather.arrive(index, Ok(()));
                continue;
            }
            let members = Arc::clone(self);
            let answered = move |completion: DeviceCompletion| {
                if completion.is_err() {
                    members.list[index].written.store(true, Ordering::Release);
                }
                gather.arrive(index, completion.map(|_| ()));
            };
            self.list[index].device.submit(DeviceRequest::Flush, Box::new(answered));
        }
    }
}
