//! What writers write to parts of volumes, and what must be there afterwards.

use std::sync::atomic::{AtomicBool, Ordering};

use underlay_storage::device::{BlockDevice, DeviceError, DeviceRequest};

pub(crate) const BLOCK: u64 = 4096;
/// Each writer has a part of a volume to itself.
pub(crate) const BLOCKS_A_WRITER: u64 = 512;

/// SplitMix64 (Steele, Lea and Flood 2014).
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % limit
    }
}

/// What a version of a block looks like; version 0 is nothing. Half of it compresses.
pub(crate) fn fill(block: u64, version: u64, buffer: &mut [u8]) {
    buffer.fill(0);
    if version == 0 {
        return;
    }
    let mut random = Random(block ^ version.rotate_left(32));
    for word in buffer[..BLOCK as usize / 2].chunks_exact_mut(8) {
        word.copy_from_slice(&random.below(u64::MAX).to_le_bytes());
    }
    buffer[..8].copy_from_slice(&version.to_le_bytes());
    buffer[8..16].copy_from_slice(&block.to_le_bytes());
}

/// Which block's content this is: an old version and another block's place are different faults.
fn describe_content(found: &[u8]) -> String {
    if found.iter().all(|byte| *byte == 0) {
        return "zeros".to_owned();
    }
    let word = |offset: usize| {
        found[offset..offset + 8].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    };
    let (version, block) = (word(0), word(8));
    let mut whole = vec![0; found.len()];
    fill(block, version, &mut whole);
    let torn = if whole == found { "" } else { ", torn" };
    format!("version {version} of block {block}{torn}")
}

/// One part of a volume, and what is known of it.
pub(crate) struct Part {
    name: &'static str,
    pub volume: usize,
    pub first_block: u64,
    /// By block: the version of the last change that was answered.
    pub answered: Vec<u64>,
    /// By block: what was asked for since then and not answered, or with an error. It may be there or not.
    pub asked: Vec<Vec<u64>>,
    pub next_version: u64,
    pub changes: u64,
    pub flushes: u64,
}

impl Part {
    pub(crate) fn new(name: &'static str, volume: usize, number: u64) -> Part {
        let count = BLOCKS_A_WRITER as usize;
        Part {
            name,
            volume,
            first_block: number * BLOCKS_A_WRITER,
            answered: vec![0; count],
            asked: vec![Vec::new(); count],
            next_version: 1,
            changes: 0,
            flushes: 0,
        }
    }

    /// Writes, discards and flushes until the server is gone.
    pub(crate) fn live(&mut self, device: &dyn BlockDevice, random: &mut Random, is_dead: &AtomicBool) {
        while !is_dead.load(Ordering::SeqCst) && self.step(device, random).is_ok() {}
    }

    /// A flush now and then, so that kills meet changes that the journal knows, does not know, and is about to know.
    pub(crate) fn step(&mut self, device: &dyn BlockDevice, random: &mut Random) -> Result<(), DeviceError> {
        match random.below(10) {
            0 => {
                device.execute(DeviceRequest::Flush)?;
                self.flushes += 1;
                Ok(())
            }
            operation => self.change(device, random, operation > 1),
        }
    }

    fn change(
        &mut self,
        device: &dyn BlockDevice,
        random: &mut Random,
        is_write: bool,
    ) -> Result<(), DeviceError> {
        let start = random.below(BLOCKS_A_WRITER);
        let count = (1 + random.below(16)).min(BLOCKS_A_WRITER - start);
        self.put(device, start, count, is_write, random.below(8) == 0)
    }

    /// Writes or discards these blocks.
    pub(crate) fn put(
        &mut self,
        device: &dyn BlockDevice,
        start: u64,
        count: u64,
        is_write: bool,
        fua: bool,
    ) -> Result<(), DeviceError> {
        let offset_bytes = (self.first_block + start) * BLOCK;
        let mut data = vec![0; (count * BLOCK) as usize];
        for (index, block) in (start..start + count).zip(data.chunks_exact_mut(BLOCK as usize)) {
            let version = if is_write { self.next_version } else { 0 };
            self.next_version += 1;
            fill(self.first_block + index, version, block);
            self.asked[index as usize].push(version);
        }
        device.execute(match is_write {
            true => DeviceRequest::Write { offset_bytes, data, fua },
            false => DeviceRequest::Discard { offset_bytes, length_bytes: count * BLOCK },
        })?;
        for index in start as usize..(start + count) as usize {
            self.answered[index] = self.asked[index].pop().unwrap_or(0);
            self.asked[index].clear();
        }
        self.changes += 1;
        Ok(())
    }

    /// Takes over what it finds where that may be there.
    pub(crate) fn verify(&mut self, device: &dyn BlockDevice) -> Result<(), String> {
        let read = self
            .read(device, 0, BLOCKS_A_WRITER)
            .map_err(|error| format!("volume {}, reading: {error}", self.name))?;
        read.chunks_exact(BLOCK as usize)
            .enumerate()
            .try_for_each(|(index, found)| self.accept(index, found, true))
    }

    /// The same where reads may fail: which blocks could not be read. Not taken over is what an initiator that comes
    /// back may turn into what was answered before: a write that failed in part, over one that it has kept.
    pub(crate) fn verify_what_is_read(
        &mut self,
        device: &dyn BlockDevice,
        takes_over: bool,
    ) -> Result<Vec<u64>, String> {
        let mut unread = Vec::new();
        for index in 0..BLOCKS_A_WRITER {
            match self.read(device, index, 1) {
                Ok(found) => self.accept(index as usize, &found, takes_over)?,
                Err(_) => unread.push(index),
            }
        }
        Ok(unread)
    }

    /// Gives blocks a new content.
    pub(crate) fn rewrite(&mut self, device: &dyn BlockDevice, blocks: &[u64]) -> Result<(), DeviceError> {
        blocks.iter().try_for_each(|&index| self.put(device, index, 1, true, false))
    }

    fn read(&self, device: &dyn BlockDevice, start: u64, count: u64) -> Result<Vec<u8>, DeviceError> {
        let offset_bytes = (self.first_block + start) * BLOCK;
        device.execute(DeviceRequest::Read { offset_bytes, buffer: vec![1; (count * BLOCK) as usize] })
    }

    fn accept(&mut self, index: usize, found: &[u8], takes_over: bool) -> Result<(), String> {
        let block = self.first_block + index as u64;
        let (answered, asked) = (self.answered[index], &self.asked[index]);
        let mut expected = vec![0; BLOCK as usize];
        let current = std::iter::once(answered).chain(asked.iter().copied()).find(|&version| {
            fill(block, version, &mut expected);
            expected == found
        });
        let Some(current) = current else {
            return Err(format!(
                "volume {}, block {block}: found {}; {answered} was answered, {asked:?} asked for",
                self.name,
                describe_content(found)
            ));
        };
        if takes_over {
            self.answered[index] = current;
            self.asked[index].clear();
        }
        Ok(())
    }
}
