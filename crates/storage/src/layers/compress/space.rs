//! Which units of a device are in use.

/// Neighbouring units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnitRun {
    pub start: u32,
    pub count: u32,
}

/// A bitmap with a place from which the search goes on, so that what is written together lies together.
#[derive(Debug)]
pub(super) struct UnitBitmap {
    used: Vec<u64>,
    units: u32,
    free: u32,
    cursor: u32,
}

impl UnitBitmap {
    pub(super) fn new(units: u32) -> UnitBitmap {
        UnitBitmap { used: vec![0; units.div_ceil(64) as usize], units, free: units, cursor: 0 }
    }

    pub(super) fn free(&self) -> u32 {
        self.free
    }

    fn is_used(&self, unit: u32) -> bool {
        self.used[(unit / 64) as usize] >> (unit % 64) & 1 == 1
    }

    /// False when the run lies outside or a part of it is in use already.
    pub(super) fn take(&mut self, run: UnitRun) -> bool {
        let Some(end) = run.start.checked_add(run.count).filter(|end| *end <= self.units) else {
            return false;
        };
        if (run.start..end).any(|unit| self.is_used(unit)) {
            return false;
        }
        for unit in run.start..end {
            self.used[(unit / 64) as usize] |= 1 << (unit % 64);
        }
        self.free -= run.count;
        true
    }

    pub(super) fn release(&mut self, run: UnitRun) {
        for unit in run.start..run.start + run.count {
            debug_assert!(self.is_used(unit), "unit {unit} is given back twice");
            self.used[(unit / 64) as usize] &= !(1 << (unit % 64));
        }
        self.free += run.count;
    }

    /// The first free unit in `from..to`.
    fn next_free(&self, from: u32, to: u32) -> Option<u32> {
        let mut unit = from;
        while unit < to {
            let word = !self.used[(unit / 64) as usize] >> (unit % 64);
            if word != 0 {
                let found = unit + word.trailing_zeros();
                return (found < to).then_some(found);
            }
            unit = (unit / 64 + 1) * 64;
        }
        None
    }

    fn free_run(&self, start: u32, most: u32) -> UnitRun {
        let end = start.saturating_add(most).min(self.units);
        let count = (start..end).take_while(|unit| !self.is_used(*unit)).count() as u32;
        UnitRun { start, count }
    }

    /// Takes `count` units: in one run if there is one soon after the last, else in what comes first.
    pub(super) fn allocate(&mut self, count: u32) -> Option<Vec<UnitRun>> {
        /// After how many runs that are too short a search for one gives up.
        const MAX_SHORT_RUNS: usize = 64;
        if self.free < count {
            return None;
        }
        let mut short = Vec::new();
        let (mut from, mut wrapped) = (self.cursor, false);
        while short.len() < MAX_SHORT_RUNS {
            match self.next_free(from, self.units) {
                Some(start) => {
                    let run = self.free_run(start, count);
                    if run.count == count {
                        self.take(run);
                        self.cursor = start + count;
                        return Some(vec![run]);
                    }
                    from = start + run.count;
                    short.push(run);
                }
                None if wrapped => break,
                None => (from, wrapped) = (0, true),
            }
        }
        let mut runs = Vec::new();
        let mut missing = count;
        while missing > 0 {
            let start = self.next_free(self.cursor, self.units).or_else(|| self.next_free(0, self.units))?;
            let run = self.free_run(start, missing);
            self.take(run);
            self.cursor = start + run.count;
            missing -= run.count;
            runs.push(run);
        }
        Some(runs)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn units_are_given_once_and_to_the_last(
            units in 1..300u32,
            steps in prop::collection::vec((1..9u32, any::<prop::sample::Index>(), any::<bool>()), 1..200),
        ) {
            let mut space = UnitBitmap::new(units);
            let mut owner = vec![None; units as usize];
            let mut allocated: Vec<(usize, Vec<UnitRun>)> = Vec::new();
            for (name, (count, choice, release)) in steps.into_iter().enumerate() {
                if release && !allocated.is_empty() {
                    let (name, runs) = allocated.swap_remove(choice.index(allocated.len()));
                    for run in runs {
                        space.release(run);
                        for unit in run.start..run.start + run.count {
                            prop_assert_eq!(owner[unit as usize].take(), Some(name));
                        }
                    }
                    continue;
                }
                let free = owner.iter().filter(|owner| owner.is_none()).count() as u32;
                prop_assert_eq!(space.free(), free);
                let Some(runs) = space.allocate(count) else {
                    prop_assert!(free < count);
                    continue;
                };
                prop_assert_eq!(runs.iter().map(|run| run.count).sum::<u32>(), count);
                for unit in runs.iter().flat_map(|run| run.start..run.start + run.count) {
                    prop_assert_eq!(owner[unit as usize].replace(name), None);
                }
                allocated.push((name, runs));
            }
        }
    }
}
