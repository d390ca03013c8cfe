//! All dies of a device, in the detail that its medium states.

use super::die::{FlashDie, SuspendLimit};
use super::ordered_die::{DieWork, OrderedDie, SuspendRules};

#[derive(Debug)]
pub(super) enum DieArray {
    /// Each programs a page at a time, and any wait can be cut short.
    Plain { dies: Vec<FlashDie>, limit: SuspendLimit },
    /// Each programs several pages at a time, in order.
    Ordered { dies: Vec<OrderedDie>, rules: SuspendRules, planes: u64, plane_free_ns: Vec<u64> },
}

impl DieArray {
    pub(super) fn plain(dies: u64, limit: SuspendLimit) -> DieArray {
        DieArray::Plain { dies: vec![FlashDie::default(); dies as usize], limit }
    }

    pub(super) fn ordered(dies: u64, planes: u64, rules: SuspendRules) -> DieArray {
        DieArray::Ordered {
            dies: vec![OrderedDie::default(); dies as usize],
            rules,
            planes,
            plane_free_ns: vec![0; (dies * planes) as usize],
        }
    }

    pub(super) fn count(&self) -> u64 {
        match self {
            DieArray::Plain { dies, .. } => dies.len() as u64,
            DieArray::Ordered { dies, .. } => dies.len() as u64,
        }
    }

    /// The host reads a page; `row` numbers the pages of a die. When it lies in the register.
    pub(super) fn read(&mut self, die: u64, row: u64, now_ns: u64, read_ns: u64) -> u64 {
        match self {
            DieArray::Plain { dies, limit } => dies[die as usize].read(now_ns, read_ns, *limit),
            DieArray::Ordered { dies, rules, planes, plane_free_ns } => {
                let plane_free_ns = &mut plane_free_ns[(die * *planes + row % *planes) as usize];
                dies[die as usize].read(now_ns, read_ns, *rules, plane_free_ns)
            }
        }
    }

    /// At `from_ns` the data has reached the die.
    pub(super) fn program(&mut self, die: u64, now_ns: u64, from_ns: u64, program_ns: u64) {
        self.append(DieWork::Program, die, now_ns, from_ns, program_ns);
    }

    pub(super) fn erase(&mut self, die: u64, now_ns: u64, erase_ns: u64) {
        self.append(DieWork::Erase, die, now_ns, now_ns, erase_ns);
    }

    /// Garbage collection reads what it copies.
    pub(super) fn copy(&mut self, die: u64, now_ns: u64, read_ns: u64) {
        self.append(DieWork::Copy, die, now_ns, now_ns, read_ns);
    }

    fn append(&mut self, work: DieWork, die: u64, now_ns: u64, from_ns: u64, span_ns: u64) {
        match self {
            DieArray::Plain { dies, .. } => match work {
                DieWork::Program | DieWork::Copy => dies[die as usize].program(from_ns, span_ns),
                DieWork::Erase => dies[die as usize].erase(now_ns, span_ns),
            },
            DieArray::Ordered { dies, rules, .. } => {
                dies[die as usize].append(work, now_ns, from_ns, span_ns, *rules);
            }
        }
    }

    /// When a die takes the next program.
    pub(super) fn takes_program_ns(&self, die: u64, program_ns: u64) -> u64 {
        match self {
            DieArray::Plain { dies, .. } => dies[die as usize].takes_program_ns(program_ns),
            DieArray::Ordered { dies, .. } => dies[die as usize].takes_program_ns(program_ns),
        }
    }
}
