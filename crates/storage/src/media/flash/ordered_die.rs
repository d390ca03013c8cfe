//! A die that keeps what it was given in order: programs and erases can be suspended so often, copying not at all.

use std::collections::VecDeque;

/// Work that ended so long ago is forgotten; until then, a late read finds the die as it was.
const KEPT_NS: u64 = 2_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DieWork {
    Program,
    Erase,
    /// Garbage collection reads a run of pages; a host's read waits until it has them all.
    Copy,
}

#[derive(Clone, Copy, Debug)]
struct DieTask {
    work: DieWork,
    from_ns: u64,
    ends_ns: u64,
    /// How often it may still be suspended.
    suspensions: u32,
}

/// What a read meets on a die.
#[derive(Clone, Copy, Debug)]
pub(super) struct SuspendRules {
    /// The longest that a read waits until the work is suspended.
    pub program_ns: u64,
    pub erase_ns: u64,
    /// How often a program or an erase may be suspended; the reads after that wait for its end.
    pub suspensions: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct OrderedDie {
    /// In order of time, without overlaps.
    tasks: VecDeque<DieTask>,
    /// The last stretch of reads: since when something was set aside for it, and its end.
    reads_from_ns: u64,
    read_free_ns: u64,
}

impl OrderedDie {
    /// The host reads a page of a plane that is free from `plane_free_ns` on; when the page lies in the register.
    pub(super) fn read(
        &mut self,
        now_ns: u64,
        read_ns: u64,
        rules: SuspendRules,
        plane_free_ns: &mut u64,
    ) -> u64 {
        // Planes read side by side, and what the first of them has set aside stays aside.
        let joins = now_ns < self.read_free_ns;
        let mut start_ns = now_ns.max(*plane_free_ns);
        if joins {
            start_ns = start_ns.max(self.reads_from_ns);
        }
        let place = self.tasks.partition_point(|task| task.ends_ns <= start_ns);
        let free_ns = self.read_free_ns;
        let end_ns;
        match self.tasks.get_mut(place).filter(|task| task.from_ns <= start_ns) {
            Some(task) if joins => {
                end_ns = start_ns + read_ns;
                task.ends_ns += end_ns.saturating_sub(free_ns);
                let ends_ns = task.ends_ns;
                self.put_off(place + 1, ends_ns);
            }
            Some(task) => {
                let limit_ns = match task.work {
                    DieWork::Program => rules.program_ns,
                    DieWork::Erase => rules.erase_ns,
                    DieWork::Copy => u64::MAX,
                };
                let is_suspended = task.suspensions > 0 && limit_ns < task.ends_ns - start_ns;
                if is_suspended {
                    task.suspensions -= 1;
                    start_ns += limit_ns;
                    task.ends_ns += read_ns;
                } else {
                    start_ns = task.ends_ns;
                }
                end_ns = start_ns + read_ns;
                let next_ns = if is_suspended { task.ends_ns } else { end_ns };
                self.put_off(place + 1, next_ns);
            }
            None => {
                end_ns = start_ns + read_ns;
                self.put_off(place, end_ns);
            }
        }
        if !joins {
            self.reads_from_ns = start_ns;
        }
        self.read_free_ns = free_ns.max(end_ns);
        *plane_free_ns = end_ns;
        end_ns
    }

    /// Moves the tasks from this one on back until the first begins no earlier than `from_ns`.
    fn put_off(&mut self, place: usize, from_ns: u64) {
        let delay_ns = self.tasks.get(place).map_or(0, |task| from_ns.saturating_sub(task.from_ns));
        if delay_ns > 0 {
            for task in self.tasks.iter_mut().skip(place) {
                task.from_ns += delay_ns;
                task.ends_ns += delay_ns;
            }
        }
    }

    /// Gives it work behind all that it has, to begin at `from_ns` or later.
    pub(super) fn append(
        &mut self,
        work: DieWork,
        now_ns: u64,
        from_ns: u64,
        span_ns: u64,
        rules: SuspendRules,
    ) {
        while self.tasks.front().is_some_and(|task| task.ends_ns + KEPT_NS < now_ns) {
            self.tasks.pop_front();
        }
        let from_ns = from_ns.max(self.ends_ns()).max(self.read_free_ns);
        let suspensions = if work == DieWork::Copy { 0 } else { rules.suspensions };
        self.tasks.push_back(DieTask { work, from_ns, ends_ns: from_ns + span_ns, suspensions });
    }

    fn ends_ns(&self) -> u64 {
        self.tasks.back().map_or(0, |task| task.ends_ns)
    }

    /// When the die takes the next program: its register holds one besides the one being programmed.
    pub(super) fn takes_program_ns(&self, program_ns: u64) -> u64 {
        self.ends_ns().saturating_sub(program_ns)
    }
}

#[cfg(test)]
mod tests;
