//! A model as a target: probes in virtual time, exact and repeatable.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::target::{LoadSample, ProbeLoad, ProbeTarget, SLICES, TargetError};
use crate::medium::{FinishedRequest, MediumModel, ModelOperation, ModelRequest, RequestId};
use crate::time::ModelTime;

/// A medium's model with its own clock.
pub struct VirtualTarget {
    model: Box<dyn MediumModel>,
    now: ModelTime,
    next_id: u64,
    finished: Vec<FinishedRequest>,
    think: Duration,
}

impl VirtualTarget {
    pub fn new(model: Box<dyn MediumModel>) -> VirtualTarget {
        VirtualTarget { model, now: ModelTime::ZERO, next_id: 0, finished: Vec::new(), think: Duration::ZERO }
    }

    /// From an answer to the request after it: what a real prober spends on each, none unless told.
    pub(super) fn set_think(&mut self, think: Duration) {
        self.think = think;
    }

    fn submit(&mut self, operation: ModelOperation, offset_bytes: u64, length_bytes: u64) -> RequestId {
        let id = RequestId(self.next_id);
        self.next_id += 1;
        // Events up to now are taken before every submission: the contract of a model.
        self.model.complete(self.now, &mut self.finished);
        self.model.submit(ModelRequest { id, operation, offset_bytes, length_bytes, fua: false }, self.now);
        id
    }

    /// Goes to the next event; false when there is none.
    fn step(&mut self) -> bool {
        let Some(completed_at) = self.model.next_completion() else { return false };
        self.now = self.now.max(completed_at);
        self.model.complete(self.now, &mut self.finished);
        true
    }

    fn flush(&mut self) -> Result<Duration, TargetError> {
        let began = self.now;
        let id = self.submit(ModelOperation::Flush, 0, 0);
        loop {
            if let Some(over) = self.finished.iter().find(|finished| finished.id == id) {
                let duration = over.at.duration_since(began);
                self.finished.clear();
                return Ok(duration);
            }
            if !self.step() {
                return Err(TargetError::Failed("the model never ended a flush".into()));
            }
        }
    }
}

impl ProbeTarget for VirtualTarget {
    fn span_bytes(&self) -> u64 {
        self.model.capacity_bytes()
    }

    fn may_write(&self) -> bool {
        true
    }

    fn run(&mut self, load: &ProbeLoad) -> Result<LoadSample, TargetError> {
        let blocks = (load.span_bytes / load.block_bytes.max(1)).max(1);
        let mut random = Pcg64Mcg::seed_from_u64(load.seed);
        let began = self.now;
        let measure_from = began + load.warmup;
        let measure_until = measure_from + load.duration;
        let slice_ns = (load.duration.as_nanos() as u64 / SLICES as u64).max(1);
        let mut sample =
            LoadSample { slices: vec![0; SLICES], slice_s: slice_ns as f64 / 1e9, ..LoadSample::default() };
        let mut under_way: HashMap<RequestId, ModelTime> = HashMap::new();
        let mut next_block = 0;
        let mut last = measure_from;
        let mut answered = 0;
        // When those who think will ask again.
        let mut thinking: BinaryHeap<Reverse<ModelTime>> = BinaryHeap::new();
        loop {
            let more = self.now < measure_until && sample.requests < load.most_requests;
            while thinking.peek().is_some_and(|Reverse(due)| *due <= self.now) {
                thinking.pop();
            }
            while more && under_way.len() + thinking.len() < load.queue_depth {
                let block = if load.pattern.is_random() {
                    random.random_range(0..blocks)
                } else {
                    next_block % blocks
                };
                next_block += 1;
                let offset = load.first_byte + block * load.block_bytes;
                let id = self.submit(load.pattern.operation(), offset, load.block_bytes);
                under_way.insert(id, self.now);
            }
            if self.finished.is_empty() {
                let asks_at = thinking.peek().map(|Reverse(due)| *due).filter(|_| more);
                if under_way.is_empty() && asks_at.is_none() {
                    break;
                }
                if let Some(due) = asks_at
                    && self.model.next_completion().is_none_or(|next| next > due)
                {
                    self.now = due;
                    continue;
                }
                if !self.step() {
                    return Err(TargetError::Failed("the model never ended a request".into()));
                }
            }
            let finished = std::mem::take(&mut self.finished);
            for FinishedRequest { id, at: finished_at } in finished {
                let Some(submitted) = under_way.remove(&id) else { continue };
                answered += 1;
                if !self.think.is_zero() {
                    thinking.push(Reverse(finished_at + self.think));
                }
                if finished_at < measure_from
                    || finished_at >= measure_until
                    || sample.requests >= load.most_requests
                {
                    continue;
                }
                sample.latency.record_ns(finished_at.duration_since(submitted).as_nanos() as u64);
                sample.requests += 1;
                last = last.max(finished_at);
                let slice = (finished_at.duration_since(measure_from).as_nanos() as u64 / slice_ns) as usize;
                if let Some(bytes) = sample.slices.get_mut(slice) {
                    *bytes += load.block_bytes;
                }
            }
            if load.flush_every > 0 && answered >= load.flush_every {
                answered = 0;
                let flush_time = self.flush()?;
                if self.now >= measure_from && self.now < measure_until {
                    sample.flush.record_ns(flush_time.as_nanos() as u64);
                }
            }
        }
        // A load that ends by its number ends with its last answer.
        let ended = if sample.requests >= load.most_requests { last } else { measure_until };
        sample.duration_s = ended.duration_since(measure_from).as_secs_f64();
        Ok(sample)
    }

    fn settle(&mut self, pause: Duration) -> Result<(), TargetError> {
        self.flush()?;
        let deadline = self.now + pause;
        while let Some(completed_at) = self.model.next_completion()
            && completed_at <= deadline
        {
            self.step();
        }
        self.now = self.now.max(deadline);
        self.model.complete(self.now, &mut self.finished);
        self.finished.clear();
        Ok(())
    }
}
