//! Random operations on a range of a block device, each compared with a copy in memory.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::Advice;

use crate::aligned::{Aligned, compare};
use crate::files::noise;
use crate::fixture::Random;

pub(crate) const BLOCK_BYTES: u64 = 4096;
const MAX_OPERATION_BYTES: u64 = 256 << 10;
const CHECK_INTERVAL: u64 = 2_000;
const LOGGED_OPERATIONS: usize = 40;

// From <linux/fs.h>.
const BLKDISCARD: libc::Ioctl = 0x1277;
const BLKZEROOUT: libc::Ioctl = 0x127F;

/// Offsets are those of the device.
#[derive(Clone, Copy, Debug)]
enum Operation {
    DirectRead {
        offset: u64,
        length: u64,
    },
    DirectWrite {
        offset: u64,
        length: u64,
    },
    /// Durable before it returns.
    SynchronousWrite {
        offset: u64,
        length: u64,
    },
    /// By the page cache, at any byte.
    Read {
        offset: u64,
        length: u64,
    },
    Write {
        offset: u64,
        length: u64,
    },
    Discard {
        offset: u64,
        length: u64,
    },
    Zero {
        offset: u64,
        length: u64,
    },
    Flush,
    Forget,
}

pub(crate) fn size_bytes(device: &Path) -> u64 {
    File::open(device).unwrap().seek(SeekFrom::End(0)).unwrap()
}

pub(crate) struct Range {
    random: Random,
    seed: u64,
    direct: File,
    synchronous: File,
    cached: File,
    start: u64,
    content: Vec<u8>,
    done: u64,
    log: VecDeque<(u64, Operation)>,
}

impl Range {
    /// The range must read as zeros, and nobody else may touch it.
    pub(crate) fn new(device: &Path, start: u64, length: u64, seed: u64) -> Range {
        let open =
            |flags| OpenOptions::new().read(true).write(true).custom_flags(flags).open(device).unwrap();
        Range {
            random: Random(seed),
            seed,
            direct: open(libc::O_DIRECT),
            synchronous: open(libc::O_DIRECT | libc::O_DSYNC),
            cached: open(0),
            start,
            content: vec![0; length as usize],
            done: 0,
            log: VecDeque::with_capacity(LOGGED_OPERATIONS),
        }
    }

    /// Does the next `count` operations.
    ///
    /// # Panics
    /// On the first difference, with the operations that led to it.
    pub(crate) fn run(&mut self, count: u64) {
        for _ in 0..count {
            let operation = self.next_operation();
            if self.log.len() == LOGGED_OPERATIONS {
                self.log.pop_front();
            }
            self.log.push_back((self.done, operation));
            self.done += 1;
            let mut outcome = self.perform(operation);
            if outcome.is_ok() && (self.done.is_multiple_of(CHECK_INTERVAL) || self.done == count) {
                let whole = Operation::DirectRead { offset: self.start, length: self.content.len() as u64 };
                outcome = self.perform(Operation::Forget).and_then(|()| self.perform(whole));
            }
            if let Err(difference) = outcome {
                let past: Vec<String> =
                    self.log.iter().map(|(number, operation)| format!("  {number}: {operation:?}")).collect();
                panic!(
                    "{difference}\nseed {}, after {} operations, the last of which were\n{}",
                    self.seed,
                    self.done,
                    past.join("\n")
                );
            }
        }
    }

    fn next_operation(&mut self) -> Operation {
        let random = &mut self.random;
        let size = self.content.len() as u64;
        // Small ones as often as large ones.
        let magnitude = 1 + random.below(18);
        let length = 1 + random.below(1 << magnitude).min(MAX_OPERATION_BYTES - 1);
        let offset = self.start + random.below(size - length + 1);
        let blocks_bytes = length.next_multiple_of(BLOCK_BYTES);
        let block = self.start + random.below((size - blocks_bytes) / BLOCK_BYTES + 1) * BLOCK_BYTES;
        match random.below(100) {
            0..25 => Operation::DirectRead { offset: block, length: blocks_bytes },
            25..55 => Operation::DirectWrite { offset: block, length: blocks_bytes },
            55..60 => Operation::SynchronousWrite { offset: block, length: blocks_bytes },
            60..70 => Operation::Read { offset, length },
            70..82 => Operation::Write { offset, length },
            82..88 => Operation::Discard { offset: block, length: blocks_bytes },
            88..92 => Operation::Zero { offset: block, length: blocks_bytes },
            92..96 => Operation::Flush,
            _ => Operation::Forget,
        }
    }

    fn perform(&mut self, operation: Operation) -> Result<(), String> {
        let fill = self.random.below(u64::MAX);
        let describe = |error: std::io::Error| format!("{operation:?}: {error}");
        match operation {
            Operation::DirectRead { offset, length } => {
                let mut found = Aligned::new(length as usize);
                self.direct.read_exact_at(found.bytes(), offset).map_err(describe)?;
                compare(offset, self.inside(offset, length), found.bytes())
            }
            Operation::DirectWrite { offset, length } | Operation::SynchronousWrite { offset, length } => {
                let file = match operation {
                    Operation::SynchronousWrite { .. } => &self.synchronous,
                    _ => &self.direct,
                };
                let mut data = Aligned::new(length as usize);
                data.bytes().copy_from_slice(&noise(fill, length));
                file.write_all_at(data.bytes(), offset).map_err(describe)?;
                self.inside(offset, length).copy_from_slice(data.bytes());
                Ok(())
            }
            Operation::Read { offset, length } => {
                let mut found = vec![0xEE; length as usize];
                self.cached.read_exact_at(&mut found, offset).map_err(describe)?;
                compare(offset, self.inside(offset, length), &found)
            }
            Operation::Write { offset, length } => {
                let data = noise(fill, length);
                self.cached.write_all_at(&data, offset).map_err(describe)?;
                self.inside(offset, length).copy_from_slice(&data);
                Ok(())
            }
            // A discarded range of our devices reads as zeros, and a loop device passes it on as it is.
            Operation::Discard { offset, length } => self.empty(BLKDISCARD, offset, length).map_err(describe),
            Operation::Zero { offset, length } => self.empty(BLKZEROOUT, offset, length).map_err(describe),
            Operation::Flush => self.cached.sync_all().map_err(describe),
            Operation::Forget => {
                self.cached.sync_all().map_err(describe)?;
                rustix::fs::fadvise(&self.cached, 0, None, Advice::DontNeed)
                    .map_err(|errno| format!("fadvise: {errno}"))
            }
        }
    }

    fn inside(&mut self, offset: u64, length: u64) -> &mut [u8] {
        &mut self.content[(offset - self.start) as usize..][..length as usize]
    }

    fn empty(&mut self, request: libc::Ioctl, offset: u64, length: u64) -> std::io::Result<()> {
        let range = [offset, length];
        // SAFETY: both requests read two numbers: where the range begins, and its length.
        if unsafe { libc::ioctl(self.cached.as_raw_fd(), request, range.as_ptr()) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        self.inside(offset, length).fill(0);
        Ok(())
    }
}
