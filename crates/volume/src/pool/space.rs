//! Which slabs and units of the members are in use, and by how many maps.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use underlay_sync::{Mutex, MutexGuard};

use super::extent::{BLOCKS, ReleasedSpace, Slab, Unit, first_unit, mask, slab_of};
use super::extents::BuildNumberHasher;

/// In `plain`: the slab is cut into units.
const CUT: u32 = u32::MAX;

/// Gives out slabs, and units of slabs that are cut, and counts the maps that point to each.
///
/// A slab is free, plain (counted as a whole), cut (its units counted by run), or on its way back to free.
pub(super) struct SlabAllocator {
    /// By slab: how many maps point to it, or [`CUT`]. Changed only under the lock of `state`; atomic, since
    /// each write looks at it without that lock.
    plain: Vec<AtomicU32>,
    state: Mutex<SlabState>,
}

struct SlabState {
    members: Vec<MemberSpace>,
    cut: HashMap<Slab, CutSlab, BuildNumberHasher>,
    /// Nobody points to them, but the member has yet to hear that they are discarded.
    leaving: HashSet<Slab, BuildNumberHasher>,
    /// Jobs that wait for space that is on its way.
    starved: Vec<Box<dyn FnOnce() + Send>>,
    /// Where the search for a member begins, so that equals take turns.
    turn: usize,
}

struct MemberSpace {
    slabs: Range<Slab>,
    /// A bit a slab: in use.
    taken: Vec<u64>,
    free: u32,
    cursor: u32,
    /// Cut slabs with room, by the longest run of free units.
    room: BTreeSet<(u32, Slab)>,
    /// Free units in those.
    free_units: u64,
    /// The cut slab that is being filled.
    filling: Option<Slab>,
}

struct CutSlab {
    used: u64,
    /// By a run's first unit: how many maps point to it, and its length.
    runs: [(u16, u8); BLOCKS as usize],
}

fn longest(free: u64) -> u32 {
    let (mut bits, mut length) = (free, 0);
    while bits != 0 {
        // Takes one off each run of ones.
        bits &= bits << 1;
        length += 1;
    }
    length
}

/// Where `count` ones begin in `bits`.
fn find(bits: u64, count: u32) -> Option<u32> {
    let mut found = bits;
    for shift in 1..count {
        // What is left are the places from which all bits so far are ones.
        found &= bits >> shift;
    }
    (found != 0 && count > 0).then(|| found.trailing_zeros())
}

impl MemberSpace {
    fn take_free(&mut self) -> Option<Slab> {
        let count = self.slabs.end - self.slabs.start;
        for from in [self.cursor, 0] {
            let mut index = from;
            while index < count {
                let word = !self.taken[(index / 64) as usize] >> (index % 64);
                if word != 0 {
                    let found = index + word.trailing_zeros();
                    if found >= count {
                        break;
                    }
                    self.cursor = found + 1;
                    self.mark(found, true);
                    return Some(self.slabs.start + found);
                }
                index = (index / 64 + 1) * 64;
            }
        }
        None
    }

    fn mark(&mut self, inside: u32, is_taken: bool) {
        let (word, bit) = (&mut self.taken[(inside / 64) as usize], 1 << (inside % 64));
        debug_assert_ne!(*word & bit != 0, is_taken, "a slab is taken or freed twice");
        if is_taken {
            *word |= bit;
            self.free -= 1;
        } else {
            *word &= !bit;
            self.free += 1;
        }
    }

    fn is_taken(&self, slab: Slab) -> bool {
        let inside = slab - self.slabs.start;
        self.taken[(inside / 64) as usize] >> (inside % 64) & 1 == 1
    }

    fn free_share(&self) -> f64 {
        let all = f64::from(self.slabs.end - self.slabs.start) * f64::from(BLOCKS);
        (f64::from(self.free) * f64::from(BLOCKS) + self.free_units as f64) / all.max(1.0)
    }
}

impl SlabAllocator {
    /// All free. `members` are each one's slabs, without gaps.
    pub(super) fn new(members: &[Range<Slab>]) -> SlabAllocator {
        let count = members.last().map_or(0, |slabs| slabs.end);
        let member = |slabs: &Range<Slab>| {
            let free = slabs.end - slabs.start;
            MemberSpace {
                slabs: slabs.clone(),
                taken: vec![0; free.div_ceil(64) as usize],
                free,
                cursor: 0,
                room: BTreeSet::new(),
                free_units: 0,
                filling: None,
            }
        };
        let state = SlabState {
            members: members.iter().map(member).collect(),
            cut: HashMap::default(),
            leaving: HashSet::default(),
            starved: Vec::new(),
            turn: 0,
        };
        SlabAllocator { plain: (0..count).map(|_| AtomicU32::new(0)).collect(), state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, SlabState> {
        self.state.lock()
    }

    /// Whether more than one map points to a plain slab.
    pub(super) fn is_shared(&self, slab: Slab) -> bool {
        self.plain[slab as usize].load(Ordering::Acquire) > 1
    }

    /// A slab on the member with the largest share of free space, of those allowed.
    pub(super) fn take_slab(&self, allowed: impl Fn(usize) -> bool) -> Option<Slab> {
        let mut state = self.lock();
        let member = state.choose(|index, member| allowed(index) && member.free > 0)?;
        let slab = state.members[member].take_free()?;
        self.plain[slab as usize].store(1, Ordering::Release);
        Some(slab)
    }

    /// Units for runs of these sizes, which all lie together: 64 units at most.
    pub(super) fn take_runs(&self, sizes: &[u32], allowed: impl Fn(usize) -> bool) -> Option<Vec<Unit>> {
        let count = sizes.iter().sum();
        let mut state = self.lock();
        let has_room = |member: &MemberSpace| {
            member.free > 0 || member.room.last().is_some_and(|(longest, _)| *longest >= count)
        };
        let member = state.choose(|index, member| allowed(index) && has_room(member))?;
        let slab = state.slab_for(member, count, &self.plain)?;
        let mut unit = first_unit(slab) + u64::from(find(!state.cut.get(&slab)?.used, count)?);
        let mut runs = Vec::with_capacity(sizes.len());
        for &units in sizes {
            state.hold_run(unit, units);
            runs.push(unit);
            unit += u64::from(units);
        }
        Some(runs)
    }

    /// One more map points to a piece that is in use; false if it is not, or by more maps than can be counted.
    pub(super) fn share(&self, piece: ReleasedSpace) -> bool {
        let mut state = self.lock();
        match piece {
            ReleasedSpace::Slab(slab) => {
                let count = &self.plain[slab as usize];
                let references = count.load(Ordering::Acquire);
                if references == 0 || references >= CUT - 1 {
                    return false;
                }
                count.store(references + 1, Ordering::Release);
                true
            }
            ReleasedSpace::Run { unit, units } => state.run(unit).is_some_and(|run| {
                let fits = run.0 > 0 && run.0 < u16::MAX && u32::from(run.1) == units;
                run.0 += u16::from(fits);
                fits
            }),
        }
    }

    /// At opening: a map points to a piece, the first or a further one. False if that can't be.
    pub(super) fn claim(&self, piece: ReleasedSpace) -> bool {
        let slab = piece.slab();
        let lies_inside = match piece {
            ReleasedSpace::Slab(slab) => (slab as usize) < self.plain.len(),
            ReleasedSpace::Run { unit, .. } => unit / u64::from(BLOCKS) < self.plain.len() as u64,
        };
        if !lies_inside {
            return false;
        }
        {
            let mut state = self.lock();
            let is_taken = state.member_of(slab).is_taken(slab);
            let cut = self.plain[slab as usize].load(Ordering::Acquire) == CUT;
            match piece {
                // A slab is counted as a whole or by its runs: two maps that disagree can't both be right.
                ReleasedSpace::Slab(_) if cut => return false,
                ReleasedSpace::Slab(_) if !is_taken => {
                    let member = state.member_of(slab);
                    member.mark(slab - member.slabs.start, true);
                    self.plain[slab as usize].store(1, Ordering::Release);
                    return true;
                }
                ReleasedSpace::Run { .. } if is_taken && !cut => return false,
                ReleasedSpace::Run { unit, units } => {
                    let inside = (unit % u64::from(BLOCKS)) as u32;
                    if units == 0 || inside + units > BLOCKS {
                        return false;
                    }
                    if !is_taken {
                        let member = state.member_of(slab);
                        member.mark(slab - member.slabs.start, true);
                        state.cut_slab(slab, &self.plain);
                    }
                    let used = state.cut.get(&slab).map_or(u64::MAX, |cut| cut.used);
                    // Otherwise another map has it already, and `share` asks whether that is the very same run.
                    if used & mask(inside, units) == 0 {
                        return state.hold_run(unit, units);
                    }
                }
                ReleasedSpace::Slab(_) => {}
            }
        }
        // The lock is free again here: `share` takes it.
        self.share(piece)
    }

    /// Whether any map points to something in a piece.
    pub(super) fn is_held(&self, piece: ReleasedSpace) -> bool {
        let slab = piece.slab();
        let counter = self.plain.get(slab as usize).map_or(0, |counter| counter.load(Ordering::Acquire));
        match piece {
            ReleasedSpace::Run { unit, units } if counter == CUT => {
                let bits = mask((unit % u64::from(BLOCKS)) as u32, units);
                self.lock().cut.get(&slab).is_some_and(|cut| cut.used & bits != 0)
            }
            _ => counter != 0,
        }
    }

    /// A map no longer points to a piece. Says which slab is to be discarded, and then given to
    /// [`SlabAllocator::free`].
    pub(super) fn release(&self, piece: ReleasedSpace) -> Option<Slab> {
        let mut state = self.lock();
        let slab = piece.slab();
        match piece {
            ReleasedSpace::Slab(_) => {
                let count = &self.plain[slab as usize];
                let references = count.load(Ordering::Acquire);
                debug_assert!(references > 0 && references != CUT, "slab {slab} is given back too often");
                count.store(references.saturating_sub(1), Ordering::Release);
                if references != 1 {
                    return None;
                }
            }
            ReleasedSpace::Run { unit, units } => {
                let run = state.run(unit)?;
                debug_assert!(run.0 > 0 && u32::from(run.1) == units, "unit {unit} is given back too often");
                run.0 = run.0.saturating_sub(1);
                if run.0 > 0 {
                    return None;
                }
                state.change_cut(slab, |cut| cut.used &= !mask((unit % u64::from(BLOCKS)) as u32, units));
                if state.cut.get(&slab).is_some_and(|cut| cut.used != 0) {
                    return None;
                }
                state.cut.remove(&slab);
                let member = state.member_of(slab);
                // All of it is free, so `change_cut` has filed it under the longest run there can be.
                member.room.remove(&(BLOCKS, slab));
                member.free_units -= u64::from(BLOCKS);
                member.filling = member.filling.filter(|filling| *filling != slab);
                self.plain[slab as usize].store(0, Ordering::Release);
            }
        }
        state.leaving.insert(slab);
        Some(slab)
    }

    /// The slab is anyone's again. Returns the jobs that waited for that.
    #[must_use]
    pub(super) fn free(&self, slab: Slab) -> Vec<Box<dyn FnOnce() + Send>> {
        let mut state = self.lock();
        if state.leaving.remove(&slab) {
            let member = state.member_of(slab);
            member.mark(slab - member.slabs.start, false);
        }
        std::mem::take(&mut state.starved)
    }

    /// Calls `job` when a slab becomes free, or gives it back if none is on its way.
    pub(super) fn run_when_freed(&self, job: Box<dyn FnOnce() + Send>) -> Option<Box<dyn FnOnce() + Send>> {
        let mut state = self.lock();
        if state.leaving.is_empty() {
            return Some(job);
        }
        state.starved.push(job);
        None
    }

    /// By member: free slabs.
    pub(super) fn free_slabs(&self) -> Vec<u32> {
        self.lock().members.iter().map(|member| member.free).collect()
    }

    /// What differs from what maps say of all pieces; `references` counts, for each piece, the maps that point to it.
    pub(super) fn differences(&self, references: &HashMap<Unit, (u32, ReleasedSpace)>) -> Vec<String> {
        let state = self.lock();
        let mut problems = Vec::new();
        for (count, piece) in references.values() {
            let found = match piece {
                ReleasedSpace::Slab(slab) => {
                    self.plain.get(*slab as usize).map_or(0, |counter| counter.load(Ordering::Acquire))
                }
                ReleasedSpace::Run { unit, units } => state.cut.get(&slab_of(*unit)).map_or(0, |cut| {
                    let (cut_references, length) = cut.runs[(unit % u64::from(BLOCKS)) as usize];
                    if u32::from(length) == *units { u32::from(cut_references) } else { 0 }
                }),
            };
            if found != *count {
                problems.push(format!("{piece:?} is counted {found} times, and {count} maps point to it"));
            }
        }
        // Pieces are listed by their first unit, so two that begin apart and overlap show only here.
        let mut units: HashMap<Slab, u64> = HashMap::new();
        for (_, piece) in references.values() {
            let bits = match piece {
                ReleasedSpace::Slab(_) => u64::MAX,
                ReleasedSpace::Run { unit, units } => mask((unit % u64::from(BLOCKS)) as u32, *units),
            };
            let used = units.entry(piece.slab()).or_default();
            if *used & bits != 0 {
                problems.push(format!("{piece:?} overlaps another one"));
            }
            *used |= bits;
        }
        // The other way round: what is in use although no map points to it.
        for (slab, count) in self.plain.iter().enumerate() {
            let slab = slab as Slab;
            let is_taken = state.members.iter().any(|m| m.slabs.contains(&slab) && m.is_taken(slab));
            let leaving = state.leaving.contains(&slab);
            let used = units.get(&slab).copied().unwrap_or(0);
            let recorded = match count.load(Ordering::Acquire) {
                0 => 0,
                CUT => state.cut.get(&slab).map_or(0, |cut| cut.used),
                _ => u64::MAX,
            };
            if recorded != used {
                problems
                    .push(format!("slab {slab}: units {recorded:x} are in use, and maps point to {used:x}"));
            }
            if is_taken != (recorded != 0 || leaving) {
                problems
                    .push(format!("slab {slab}: taken {is_taken}, in use {recorded:x}, leaving {leaving}"));
            }
        }
        for (index, member) in state.members.iter().enumerate() {
            let taken_slabs: u32 = member.taken.iter().map(|word| word.count_ones()).sum();
            if taken_slabs + member.free != member.slabs.end - member.slabs.start {
                problems.push(format!(
                    "member {index} counts {} free slabs, with {taken_slabs} taken",
                    member.free
                ));
            }
            let units = |(_, slab): &(u32, Slab)| state.cut.get(slab).map_or(0, |cut| cut.used.count_zeros());
            let room: u32 = member.room.iter().map(units).sum();
            if u64::from(room) != member.free_units {
                problems.push(format!("member {index} counts {} free units of {room}", member.free_units));
            }
        }
        problems
    }
}

impl SlabState {
    fn member_of(&mut self, slab: Slab) -> &mut MemberSpace {
        let index = self.members.partition_point(|member| member.slabs.end <= slab);
        &mut self.members[index]
    }

    fn choose(&mut self, fits: impl Fn(usize, &MemberSpace) -> bool) -> Option<usize> {
        let count = self.members.len();
        let mut best: Option<(f64, usize)> = None;
        for index in (0..count).map(|step| (self.turn + step) % count) {
            let member = &self.members[index];
            let share = member.free_share();
            if fits(index, member) && best.is_none_or(|(most, _)| share > most) {
                best = Some((share, index));
            }
        }
        let (_, index) = best?;
        self.turn = (index + 1) % count;
        Some(index)
    }

    /// A cut slab of the member with room for `count` units together: the one that is being filled; else a free one
    /// while there are plenty, so that what is written together lies together; else the one that fits best.
    fn slab_for(&mut self, index: usize, count: u32, plain: &[AtomicU32]) -> Option<Slab> {
        let member = &mut self.members[index];
        if let Some(slab) = member.filling
            && let Some(cut) = self.cut.get(&slab)
            && longest(!cut.used) >= count
        {
            return Some(slab);
        }
        let plenty = member.free > (member.slabs.end - member.slabs.start) / 8;
        let fitting = member.room.range((count, 0)..).next().map(|(_, slab)| *slab);
        match fitting {
            Some(slab) if !plenty => Some(slab),
            _ => match member.take_free() {
                Some(slab) => {
                    member.filling = Some(slab);
                    self.cut_slab(slab, plain);
                    Some(slab)
                }
                None => fitting,
            },
        }
    }

    fn cut_slab(&mut self, slab: Slab, plain: &[AtomicU32]) {
        plain[slab as usize].store(CUT, Ordering::Release);
        self.cut.insert(slab, CutSlab { used: 0, runs: [(0, 0); BLOCKS as usize] });
        let member = self.member_of(slab);
        member.room.insert((BLOCKS, slab));
        member.free_units += u64::from(BLOCKS);
    }

    fn change_cut(&mut self, slab: Slab, change: impl FnOnce(&mut CutSlab)) {
        let Some(cut) = self.cut.get_mut(&slab) else { return };
        let before = cut.used;
        change(cut);
        let after = cut.used;
        let member = self.member_of(slab);
        member.room.remove(&(longest(!before), slab));
        if after != u64::MAX {
            member.room.insert((longest(!after), slab));
        }
        member.free_units =
            member.free_units + u64::from(before.count_ones()) - u64::from(after.count_ones());
    }

    fn run(&mut self, unit: Unit) -> Option<&mut (u16, u8)> {
        self.cut.get_mut(&slab_of(unit)).map(|cut| &mut cut.runs[(unit % u64::from(BLOCKS)) as usize])
    }

    /// Takes free units of a cut slab.
    fn hold_run(&mut self, unit: Unit, units: u32) -> bool {
        let inside = (unit % u64::from(BLOCKS)) as u32;
        self.change_cut(slab_of(unit), |cut| cut.used |= mask(inside, units));
        let Some(run) = self.run(unit) else { return false };
        *run = (1, units as u8);
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Against a plain list of who holds what.
        #[test]
        fn space_is_given_once_and_comes_back(
            sizes in prop::collection::vec(1..4u32, 1..4),
            steps in prop::collection::vec((0..8u8, 1..17u32, any::<prop::sample::Index>()), 1..300),
        ) {
            let mut start = 0;
            let members: Vec<Range<Slab>> = sizes.iter().map(|size| { start += size; start - size..start }).collect();
            let space = SlabAllocator::new(&members);
            let mut allocated: Vec<ReleasedSpace> = Vec::new();
            for (action, count, choice) in steps {
                match action {
                    0 | 1 => allocated.extend(space.take_slab(|_| true).map(ReleasedSpace::Slab)),
                    2..=4 => {
                        let sizes = [count, 1 + count % 3];
                        let runs = space.take_runs(&sizes, |_| true).into_iter().flatten().zip(sizes);
                        allocated.extend(runs.map(|(unit, units)| ReleasedSpace::Run { unit, units }));
                    }
                    5 if !allocated.is_empty() => {
                        let piece = allocated[choice.index(allocated.len())];
                        prop_assert!(space.share(piece));
                        allocated.push(piece);
                    }
                    _ if !allocated.is_empty() => {
                        let piece = allocated.swap_remove(choice.index(allocated.len()));
                        if let Some(slab) = space.release(piece) {
                            prop_assert!(space.free(slab).is_empty());
                        }
                    }
                    _ => {}
                }
                let mut counts: HashMap<Unit, (u32, ReleasedSpace)> = HashMap::new();
                for piece in &allocated {
                    let key = match piece {
                        ReleasedSpace::Slab(slab) => first_unit(*slab),
                        ReleasedSpace::Run { unit, .. } => *unit,
                    };
                    counts.entry(key).or_insert((0, *piece)).0 += 1;
                }
                prop_assert_eq!(space.differences(&counts), Vec::<String>::new());
                // What a pool finds in its journal makes the same space.
                let again = SlabAllocator::new(&members);
                prop_assert!(allocated.iter().all(|piece| again.claim(*piece)));
                prop_assert_eq!(again.differences(&counts), Vec::<String>::new());
            }
        }
    }

    #[test]
    fn slabs_are_dealt_round_by_share_of_free_space() {
        let space = SlabAllocator::new(&[0..100, 100..200, 200..400]);
        let mut dealt = [0; 3];
        for _ in 0..200 {
            let slab = space.take_slab(|_| true).unwrap();
            dealt[[100, 200, 400].partition_point(|end| *end <= slab)] += 1;
        }
        assert_eq!(dealt, [50, 50, 100]);
        assert!((0..100).all(|_| space.take_slab(|member| member == 2).is_some()));
        assert!(space.take_slab(|member| member == 2).is_none());
    }
}
