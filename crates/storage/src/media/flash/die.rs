//! One die: it reads, programs and erases one thing at a time, and reads go first.

/// When a die is through with what it has been given.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FlashDie {
    read_free_ns: u64,
    /// Programs, and the reads of garbage collection, which stand back behind the host's as they do.
    program_ends_ns: u64,
    erase_ends_ns: u64,
}

/// The longest that a read waits for what it interrupts.
#[derive(Clone, Copy, Debug)]
pub(super) struct SuspendLimit {
    pub program_ns: u64,
    pub erase_ns: u64,
}

impl FlashDie {
    /// The host reads a page; when it lies in the register.
    pub(super) fn read(&mut self, now_ns: u64, read_ns: u64, suspend: SuspendLimit) -> u64 {
        let mut start_ns = now_ns.max(self.read_free_ns);
        // One that follows another at once finds the program or the erase suspended.
        let interrupts = now_ns >= self.read_free_ns;
        let (ends_ns, longest_ns) = if self.erase_ends_ns > start_ns {
            (&mut self.erase_ends_ns, suspend.erase_ns)
        } else {
            (&mut self.program_ends_ns, suspend.program_ns)
        };
        if *ends_ns > start_ns {
            if interrupts {
                start_ns += (*ends_ns - start_ns).min(longest_ns);
            }
            // The interrupted work goes on after the read.
            *ends_ns = (*ends_ns).max(start_ns) + read_ns;
        }
        self.read_free_ns = start_ns + read_ns;
        self.read_free_ns
    }

    fn free_ns(&self, now_ns: u64) -> u64 {
        now_ns.max(self.read_free_ns).max(self.program_ends_ns).max(self.erase_ends_ns)
    }

    pub(super) fn program(&mut self, now_ns: u64, program_ns: u64) {
        self.program_ends_ns = self.free_ns(now_ns) + program_ns;
    }

    pub(super) fn erase(&mut self, now_ns: u64, erase_ns: u64) {
        self.erase_ends_ns = self.free_ns(now_ns) + erase_ns;
    }

    /// When the die takes the next page to program: its register holds one besides the one being programmed.
    pub(super) fn takes_program_ns(&self, program_ns: u64) -> u64 {
        self.program_ends_ns.max(self.erase_ends_ns).saturating_sub(program_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUSPEND: SuspendLimit = SuspendLimit { program_ns: 60, erase_ns: 300 };

    #[test]
    fn read_waits_at_most_suspend_time() {
        for (offset_ns, program, erase) in [(1, true, false), (500, true, false), (1, false, true)] {
            let mut die = FlashDie::default();
            if program {
                die.program(0, 700);
            }
            if erase {
                die.erase(0, 5000);
            }
            let waited = die.read(offset_ns, 70, SUSPEND) - offset_ns - 70;
            assert_eq!(waited, if erase { 300 } else { 60 });
            // The next one finds it suspended; one that comes after it has gone on waits again.
            assert_eq!(die.read(offset_ns, 70, SUSPEND), offset_ns + waited + 140);
            let later_ns = offset_ns + waited + 150;
            assert_eq!(die.read(later_ns, 70, SUSPEND) - later_ns - 70, if erase { 300 } else { 60 });
        }
        let mut die = FlashDie::default();
        die.program(0, 700);
        assert_eq!(die.read(680, 70, SUSPEND), 770, "what is nearly over is waited for");
    }

    #[test]
    fn interrupted_operation_ends_later_by_reads() {
        let mut die = FlashDie::default();
        die.program(0, 700);
        die.read(100, 70, SUSPEND);
        assert_eq!(die.takes_program_ns(700), 70);
        die.erase(800, 5000);
        assert_eq!(die.takes_program_ns(700), 5100);
    }
}
