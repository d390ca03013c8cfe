//! The write side: the buffer, and how it drains into the dies together with what garbage collection copies.

use super::translation::{FlashTranslation, ProgramWork};
use super::{FlashEvent, FlashModel, MAPPING_BYTES};
use crate::media::transfer_ns;
use crate::medium::ModelRequest;

/// Dies that are looked at for one that takes the next page: firmware passes over a die that erases.
const DIES_TRIED: u64 = 8;

/// A write in the buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct BufferedFlashWrite {
    pub(super) number: u64,
    pub(super) first_byte: u64,
    pub(super) length_bytes: u64,
    /// Bytes still to be programmed, copies included.
    pub(super) work_bytes: f64,
    /// Of these, the share that is copies.
    pub(super) copied_share: f64,
}

impl FlashModel {
    /// Maps a write and counts it; what it costs to program.
    pub(super) fn map(&mut self, first_byte: u64, length_bytes: u64) -> ProgramWork {
        let work = match &mut self.translation {
            Some(translation) => translation.write(first_byte, length_bytes),
            None => ProgramWork { host_bytes: length_bytes as f64, copied_bytes: 0.0 },
        };
        self.host_write_bytes += work.host_bytes;
        // While writes wait, firmware makes room for each of them alone: a turn would only keep them waiting.
        let copied_bytes = if self.yields && !self.waiting_writes.is_empty() {
            work.copied_bytes
        } else {
            self.copies_due_bytes += work.copied_bytes;
            let turns = (self.copies_due_bytes / self.turn_bytes).floor();
            self.copies_due_bytes -= turns * self.turn_bytes;
            turns * self.turn_bytes
        };
        let work = ProgramWork { copied_bytes, ..work };
        self.programmed_bytes += work.bytes();
        work
    }

    /// How many whole blocks have to be erased for programming this much; the fraction is carried over.
    pub(super) fn erases_for(&mut self, programmed_bytes: f64) -> u64 {
        if self.translation.as_ref().is_some_and(FlashTranslation::recycles) {
            self.erases_due += programmed_bytes / (self.page_bytes as f64 * self.pages_per_block);
        }
        let whole = self.erases_due.floor();
        self.erases_due -= whole;
        self.erased_blocks += whole as u64;
        whole as u64
    }

    /// Whether the buffer has all of a range.
    pub(super) fn is_buffered(&self, first: u64, end: u64) -> bool {
        !self.buffered_blocks.is_empty()
            && (first / MAPPING_BYTES..end.div_ceil(MAPPING_BYTES))
                .all(|block| self.buffered_blocks.contains_key(&block))
    }

    /// The 4 KiB blocks that a range fills entirely.
    pub(super) fn whole_blocks(first: u64, end: u64) -> std::ops::Range<u64> {
        first.div_ceil(MAPPING_BYTES)..(end / MAPPING_BYTES).max(first.div_ceil(MAPPING_BYTES))
    }

    pub(super) fn has_room_for(&self, bytes: u64) -> bool {
        // A write larger than the whole buffer goes through it when it is empty.
        self.buffered_bytes == 0 || self.buffered_bytes + bytes <= self.buffer_limit_bytes
    }

    pub(super) fn accept(&mut self, request: ModelRequest, work: ProgramWork, now_ns: u64) {
        self.accepted += 1;
        let number = self.accepted;
        let (first_byte, length_bytes) = (request.offset_bytes, request.length_bytes);
        self.buffered_bytes += length_bytes;
        let work_bytes = work.bytes();
        self.backlog_bytes += work_bytes;
        let copied_share = work.copied_bytes / work_bytes.max(1.0);
        self.backlog.push_back(BufferedFlashWrite {
            number,
            first_byte,
            length_bytes,
            work_bytes,
            copied_share,
        });
        for block in Self::whole_blocks(first_byte, first_byte + length_bytes) {
            self.buffered_blocks.insert(block, number);
        }
        if request.fua && !self.power_loss_protection {
            self.waiting_drains.push((request.id, number));
        } else {
            let answered_ns =
                self.stall.as_mut().map_or(now_ns, |stall| stall.acknowledge(length_bytes, now_ns));
            self.push(answered_ns, FlashEvent::Finish(request.id));
        }
        if !self.draining && self.has_gathered() {
            self.drain(now_ns);
        }
    }

    /// Whether a die may begin: enough has come together, or something waits for it.
    fn has_gathered(&self) -> bool {
        let is_awaited = !self.waiting_drains.is_empty() || !self.waiting_writes.is_empty();
        // Work has fractions of bytes, which are rounded up.
        is_awaited || self.backlog_bytes + 1.0 > self.gather_bytes as f64
    }

    /// Gives the backlog to a die, as much as that programs at once.
    pub(super) fn drain(&mut self, now_ns: u64) {
        let program_bytes = self.program_bytes as f64;
        let (mut bytes, mut copied_bytes) = (0.0, 0.0);
        for write in &self.backlog {
            let drained_bytes = write.work_bytes.min(program_bytes - bytes);
            bytes += drained_bytes;
            copied_bytes += drained_bytes * write.copied_share;
            if bytes >= program_bytes {
                break;
            }
        }
        let mut bytes = (bytes.ceil() as u64).min(self.program_bytes);
        if !self.has_gathered() {
            bytes = 0;
        }
        let was_draining = std::mem::replace(&mut self.draining, bytes > 0);
        if let Some(slc) = &mut self.slc {
            match (was_draining, bytes > 0) {
                (false, true) => slc.wake(now_ns),
                (true, false) => slc.idle_since_ns = now_ns,
                _ => {}
            }
        }
        if bytes == 0 {
            return;
        }
        let program_ns = match &self.slc {
            Some(slc) if slc.takes(bytes) => {
                (self.page_program_ns as f64 * self.program_mb_s / slc.program_mb_s).round() as u64
            }
            _ => self.page_program_ns,
        };
        let (die, begins_ns) = self.next_die(now_ns, program_ns);
        if self.gathers && begins_ns > now_ns {
            // More has gathered by then, and reads have the channel until then.
            self.next_die = die;
            self.push(begins_ns, FlashEvent::Drained(0));
            return;
        }
        let span_ns = match &mut self.slc {
            Some(slc) => slc.program_ns(bytes, self.program_mb_s),
            None => transfer_ns(bytes, self.program_mb_s),
        };
        let channel_free_ns = &mut self.channel_free_ns[(die % self.channels) as usize];
        // The data is in the register before the die begins. Reads share the channel with it, and go between its pages.
        let free_ns = begins_ns.max(*channel_free_ns);
        let moved_ns = free_ns + transfer_ns(bytes, self.channel_mb_s);
        *channel_free_ns = free_ns + transfer_ns(bytes.min(self.page_bytes), self.channel_mb_s);
        self.dies.program(die, begins_ns, moved_ns, program_ns);
        self.copy(copied_bytes, begins_ns);
        for _ in 0..self.erases_for(bytes as f64) {
            let die = self.next_erased % self.dies.count();
            self.next_erased += 1;
            self.dies.erase(die, begins_ns, self.block_erase_ns);
        }
        self.push(begins_ns + span_ns.max(1), FlashEvent::Drained(bytes));
    }

    /// The next die in turn that takes a page, and when. Of several that are busy, the one that is first free.
    pub(super) fn next_die(&mut self, now_ns: u64, program_ns: u64) -> (u64, u64) {
        let dies = self.dies.count();
        let mut best = (0, u64::MAX);
        for ahead in 0..DIES_TRIED.min(dies) {
            let index = (self.next_die + ahead) % dies;
            let takes_ns = self.dies.takes_program_ns(index, program_ns);
            if takes_ns <= now_ns {
                best = (index, now_ns);
                break;
            }
            if takes_ns < best.1 {
                best = (index, takes_ns);
            }
        }
        self.next_die = (best.0 + 1) % dies;
        best
    }

    /// Garbage collection reads what it copies from wherever it is, some pages of a die in one go.
    pub(super) fn copy(&mut self, copied_bytes: f64, now_ns: u64) {
        let Some(translation) = self.translation.as_ref().filter(|_| copied_bytes > 0.0) else { return };
        let units = (self.page_bytes / MAPPING_BYTES).max(1) as f64;
        let reads_per_page = translation.reads_per_copied_page(units);
        self.copy_reads_due += copied_bytes / self.page_bytes as f64 * reads_per_page;
        while self.copy_reads_due >= self.copy_run as f64 {
            self.copy_reads_due -= self.copy_run as f64;
            self.copy_reads += 1;
            let mixed = (self.copy_reads ^ self.seed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let die = (mixed >> 32) % self.dies.count();
            self.dies.copy(die, now_ns, self.page_read_ns[1] * self.copy_run);
            let channel_free_ns = &mut self.channel_free_ns[(die % self.channels) as usize];
            let bytes = (self.page_bytes as f64 / reads_per_page) as u64;
            *channel_free_ns = now_ns.max(*channel_free_ns) + transfer_ns(bytes, self.channel_mb_s);
        }
    }

    pub(super) fn drained(&mut self, bytes: u64, now_ns: u64) {
        self.drained_ns = self.drained_ns.max(now_ns);
        self.backlog_bytes = (self.backlog_bytes - bytes as f64).max(0.0);
        let mut left = bytes as f64;
        while let Some(write) = self.backlog.front_mut() {
            // Amplified work has a fraction; the page that was rounded up takes it along.
            if write.work_bytes > left {
                write.work_bytes -= left;
                break;
            }
            left -= write.work_bytes;
            let BufferedFlashWrite { number, first_byte, length_bytes, .. } = *write;
            self.backlog.pop_front();
            self.buffered_bytes -= length_bytes;
            self.drained = number;
            for block in Self::whole_blocks(first_byte, first_byte + length_bytes) {
                if self.buffered_blocks.get(&block) == Some(&number) {
                    self.buffered_blocks.remove(&block);
                }
            }
        }
        while let Some((request, work)) = self.waiting_writes.front().copied() {
            if !self.has_room_for(request.length_bytes) {
                break;
            }
            self.waiting_writes.pop_front();
            // `draining` is still set: accepting starts no second drain.
            self.accept(request, work, now_ns);
        }
        let programmed_ns = now_ns + self.page_program_ns;
        for (id, number) in std::mem::take(&mut self.waiting_drains) {
            if number <= self.drained {
                self.push(programmed_ns, FlashEvent::Finish(id));
            } else {
                self.waiting_drains.push((id, number));
            }
        }
        self.drain(now_ns);
    }
}
