//! What the volumes of a pool may hold, known from nothing but the contract of a device.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use underlay_storage::device::{BlockDevice, DeviceRequest};
use underlay_volume::VolumeHandle;

use super::power_device::{BLOCK, Pick};

/// A content is a number: zero is zeros, odd ones compress well, even ones not at all.
pub(crate) fn bytes_of(content: u64) -> Vec<u8> {
    match content {
        0 => vec![0; BLOCK],
        odd if odd % 2 == 1 => odd.to_le_bytes().repeat(BLOCK / 8),
        even => {
            let mut pick = Pick::new(even);
            let mut block = even.to_le_bytes().to_vec();
            while block.len() < BLOCK {
                block.extend((pick.below(1 << 30) as u32).to_le_bytes()[..3].iter());
            }
            block.truncate(BLOCK);
            block
        }
    }
}

pub(crate) fn content_of(block: &[u8]) -> u64 {
    let content = u64::from_le_bytes(block[..8].try_into().unwrap());
    assert!(block == bytes_of(content), "a block holds a mixture that begins with {content}");
    content
}

/// Everything that a block was written with since it was last known to be durable, oldest first, each with the order in
/// which it completed, if it did.
type History = Vec<(u64, Option<u64>)>;

pub(crate) struct Known {
    pub blocks: Vec<History>,
    under_way: Vec<u32>,
    completions: u64,
}

pub(crate) struct VolumeModel {
    pub known: Arc<Mutex<Known>>,
    /// What it may be long after a crash, in blocks.
    pub lengths: Vec<usize>,
    pub mirror: bool,
    pub read_only: bool,
    /// It must be there; otherwise it may be.
    pub certain: bool,
    pub handle: Option<VolumeHandle>,
}

impl VolumeModel {
    pub(crate) fn new(contents: Vec<u64>, mirror: bool) -> VolumeModel {
        let length = contents.len();
        let blocks: Vec<History> = contents.into_iter().map(|content| vec![(content, Some(0))]).collect();
        let expected = Known { under_way: vec![0; length], blocks, completions: 1 };
        VolumeModel {
            known: Arc::new(Mutex::new(expected)),
            lengths: vec![length],
            mirror,
            read_only: false,
            certain: true,
            handle: None,
        }
    }

    pub(crate) fn length(&self) -> usize {
        self.known.lock().unwrap().blocks.len()
    }

    /// A write, or a discard if the content is zero. What has something in flight already is left alone: its
    /// outcome would be anyone's guess.
    pub(crate) fn change(&self, block: usize, blocks: usize, content: u64, fua: bool) {
        let Some(handle) = &self.handle else { return };
        let range = {
            let mut expected = self.known.lock().unwrap();
            let end = (block + blocks).min(expected.blocks.len());
            if block >= end || expected.under_way[block..end].iter().any(|count| *count > 0) {
                return;
            }
            for index in block..end {
                expected.under_way[index] += 1;
                expected.blocks[index].push((content, None));
            }
            block..end
        };
        let expected = Arc::clone(&self.known);
        let offset_bytes = (range.start * BLOCK) as u64;
        let request = if content == 0 {
            DeviceRequest::Discard { offset_bytes, length_bytes: (range.len() * BLOCK) as u64 }
        } else {
            DeviceRequest::Write { offset_bytes, data: bytes_of(content).repeat(range.len()), fua }
        };
        let done = move |answer: Result<_, _>| {
            let mut expected = expected.lock().unwrap();
            expected.completions += 1;
            let order = expected.completions;
            for index in range {
                expected.under_way[index] -= 1;
                let history = &mut expected.blocks[index];
                if answer.is_ok() {
                    if let Some(last) = history.last_mut() {
                        last.1 = Some(order);
                    }
                    if fua {
                        let last = history.len() - 1;
                        history.drain(..last);
                    }
                }
            }
        };
        handle.submit(request, Box::new(done));
    }

    pub(crate) fn flush(&self, outcome: impl FnOnce(bool) + Send + 'static) {
        let Some(handle) = &self.handle else { return };
        let expected = Arc::clone(&self.known);
        let limit = expected.lock().unwrap().completions;
        let done = move |answer: Result<_, _>| {
            if answer.is_ok() {
                expected.lock().unwrap().keep_completed(limit);
            }
            outcome(answer.is_ok());
        };
        handle.submit(DeviceRequest::Flush, Box::new(done));
    }

    /// With nothing in flight: what it holds, which must be what was written last.
    pub(crate) fn verify(&self, name: &str) -> Vec<u64> {
        let handle = self.handle.as_ref().expect("a handle");
        let found = read_all(handle);
        let expected = self.known.lock().unwrap();
        assert_eq!(found.len(), expected.blocks.len(), "the length of {name}");
        for (block, content) in found.iter().enumerate() {
            let history = &expected.blocks[block];
            let last = history.iter().rposition(|(_, completed)| completed.is_some()).unwrap_or(0);
            let allowed = &history[last..];
            assert!(
                allowed.iter().any(|(allowed, _)| allowed == content),
                "block {block} of {name} holds {content}, allowed are {allowed:?}"
            );
        }
        found
    }

    /// After a power cut: what it holds now, which must be something that it may hold.
    pub(crate) fn settle(&mut self, name: &str, found: Vec<u64>) {
        assert!(
            self.lengths.contains(&found.len()),
            "{name} has {} blocks of {:?}",
            found.len(),
            self.lengths
        );
        let expected = self.known.lock().unwrap();
        for (block, content) in found.iter().enumerate() {
            match expected.blocks.get(block) {
                Some(history) => assert!(
                    history.iter().any(|(allowed, _)| allowed == content),
                    "block {block} of {name} holds {content} after a cut, allowed are {history:?}"
                ),
                None => assert_eq!(*content, 0, "block {block} of {name} is new"),
            }
        }
        drop(expected);
        let (mirror, read_only) = (self.mirror, self.read_only);
        *self = VolumeModel { read_only, ..VolumeModel::new(found, mirror) };
    }
}

impl Known {
    pub(crate) fn keep_completed(&mut self, limit: u64) {
        for history in &mut self.blocks {
            let last =
                history.iter().rposition(|(_, completed)| completed.is_some_and(|order| order <= limit));
            history.drain(..last.unwrap_or(0));
        }
    }

    /// The last content of each block.
    pub(crate) fn now(&self) -> Vec<u64> {
        self.blocks.iter().map(|history| history.last().map_or(0, |(content, _)| *content)).collect()
    }

    pub(crate) fn resize(&mut self, blocks: usize) {
        self.blocks.resize(blocks, vec![(0, Some(0))]);
        self.under_way.resize(blocks, 0);
    }
}

pub(crate) fn read_all(volume: &VolumeHandle) -> Vec<u64> {
    let mut contents = Vec::new();
    let capacity_bytes = volume.geometry().capacity_bytes;
    // Not in step with extents and chunks.
    let piece = 37 * BLOCK as u64;
    let mut offset_bytes = 0;
    while offset_bytes < capacity_bytes {
        let length = piece.min(capacity_bytes - offset_bytes) as usize;
        let read =
            volume.execute(DeviceRequest::Read { offset_bytes, buffer: vec![1; length] }).expect("it reads");
        contents.extend(read.chunks(BLOCK).map(content_of));
        offset_bytes += length as u64;
    }
    contents
}

pub(crate) type Models = BTreeMap<String, VolumeModel>;
