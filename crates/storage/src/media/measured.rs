//! A device known from outside: how long its requests take alone, and how many it answers at a depth.
//!
//! A request brings an amount of work, drawn from the latencies measured at queue depth 1. With `n` requests in flight
//! the device does `iops(n) / iops(1)` times as much of it as with one. In the order `fifo` as many of the oldest share
//! that as it takes for none to be faster than alone; in the order `any` one at a time has all of it.

mod load;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::draw::QuantileDistribution;
use super::scaled_buffer_bytes;
use crate::catalogue::{MeasuredLoad, MeasuredOrder, MeasuredParameters};
use crate::medium::{FinishedRequest, MediumModel, ModelOperation, ModelRequest, RequestId};
use crate::time::ModelTime;
use load::{BlockSizeBracket, LoadModel, RecentStreams};

/// A measured device in virtual time.
pub struct MeasuredModel {
    capacity_bytes: u64,
    order: MeasuredOrder,
    loads: [LoadModel; 5],
    flush: QuantileDistribution,
    flush_drains: bool,
    buffer_limit_bytes: u64,
    random: Pcg64Mcg,
    reads: RecentStreams,
    writes: RecentStreams,

    /// Requests in flight, oldest first.
    jobs: VecDeque<MeasuredRequest>,
    /// In the order `any`, the one that has the device.
    serving: usize,
    answers: BinaryHeap<Reverse<(u64, u64, RequestId)>>,
    next_answer: u64,
    buffer: VecDeque<BufferedMeasuredWrite>,
    buffered_bytes: u64,
    /// Writes that wait for room in the buffer.
    blocked: VecDeque<(ModelRequest, MeasuredLoad)>,
    /// The next buffered write is not answered before.
    buffer_free_ns: u64,
    accepted: u64,
    drained: u64,
    /// Flushes that wait until write number `.1` has left the buffer.
    flushes: Vec<(RequestId, u64)>,
    /// Up to when jobs and buffer have been carried on.
    carried_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct MeasuredRequest {
    id: RequestId,
    load: usize,
    blocks: BlockSizeBracket,
    /// At the speed of queue depth 1.
    left_ns: f64,
}

/// A write in the buffer.
#[derive(Clone, Copy, Debug)]
struct BufferedMeasuredWrite {
    number: u64,
    first_byte: u64,
    end_byte: u64,
    left_ns: f64,
    /// To be answered only when it has left the buffer.
    answer: Option<RequestId>,
}

/// The rest of a job that rounding to whole nanoseconds may leave.
const NOTHING_NS: f64 = 1e-6;

impl MeasuredModel {
    /// See [`crate::catalogue::CatalogueMedium::model`], which calls this.
    pub fn new(parameters: &MeasuredParameters, capacity_bytes: u64, scale: f64, seed: u64) -> MeasuredModel {
        let device = &parameters.device;
        MeasuredModel {
            capacity_bytes,
            order: parameters.order.value,
            loads: std::array::from_fn(|index| LoadModel::new(parameters, MeasuredLoad::ALL[index])),
            flush: QuantileDistribution::from_us(&device.flush_us),
            flush_drains: device.flush_drains.value,
            buffer_limit_bytes: scaled_buffer_bytes(device.write_buffer_bytes.value, scale),
            random: Pcg64Mcg::seed_from_u64(seed),
            reads: RecentStreams::default(),
            writes: RecentStreams::default(),
            jobs: VecDeque::new(),
            serving: 0,
            answers: BinaryHeap::new(),
            next_answer: 0,
            buffer: VecDeque::new(),
            buffered_bytes: 0,
            blocked: VecDeque::new(),
            buffer_free_ns: 0,
            accepted: 0,
            drained: 0,
            flushes: Vec::new(),
            carried_ns: 0,
        }
    }

    fn answer(&mut self, id: RequestId, at_ns: u64) {
        self.next_answer += 1;
        self.answers.push(Reverse((at_ns, self.next_answer, id)));
    }

    /// The buffer's emptying among the requests in flight: itself, and the writes that wait for it.
    fn buffer_weight(&self) -> f64 {
        if self.buffer.is_empty() { 0.0 } else { 1.0 + self.blocked.len() as f64 }
    }

    /// Which jobs are served, and how fast each is, against queue depth 1.
    fn served(&self) -> impl Iterator<Item = (usize, f64)> + '_ {
        let depth = self.jobs.len();
        let share = depth as f64 / (depth as f64 + self.buffer_weight()).max(1.0);
        let any = self.order == MeasuredOrder::Any;
        // In order of age: behind the first that isn't served nobody is.
        let (from, to) = if any { (self.serving, self.serving + 1) } else { (0, depth) };
        (from..to.min(depth)).map_while(move |index| {
            let job = &self.jobs[index];
            let speed = self.loads[job.load].speed(job.blocks, depth);
            if any {
                return Some((index, speed * share));
            }
            let servers = speed.ceil().max(1.0);
            ((index as f64) < servers).then(|| (index, speed / servers * share))
        })
    }

    fn drain_speed(&self) -> f64 {
        let weight = self.buffer_weight();
        weight / (weight + self.jobs.len() as f64).max(1.0)
    }

    fn next_event_ns(&self) -> Option<u64> {
        let finish_ns = |left_ns: f64, speed: f64| {
            self.carried_ns.saturating_add(((left_ns / speed).ceil() as u64).max(1))
        };
        let job = self.served().map(|(index, speed)| finish_ns(self.jobs[index].left_ns, speed)).min();
        let drain = self.buffer.front().map(|buffered| finish_ns(buffered.left_ns, self.drain_speed()));
        let answer = self.answers.peek().map(|Reverse((at_ns, ..))| *at_ns);
        [job, drain, answer].into_iter().flatten().min()
    }

    /// Carries jobs and buffer on to `at_ns`, which is no later than the next event.
    fn carry_on(&mut self, at_ns: u64, finished: &mut Vec<FinishedRequest>) {
        let span_ns = at_ns.saturating_sub(self.carried_ns) as f64;
        self.carried_ns = self.carried_ns.max(at_ns);
        let finished_at = ModelTime::from_ns(at_ns);
        if span_ns == 0.0 {
            return;
        }
        let drain_speed = self.drain_speed();
        let progress: Vec<(usize, f64)> = self.served().collect();
        for &(index, speed) in &progress {
            self.jobs[index].left_ns -= span_ns * speed;
        }
        // From the back, so that a removal leaves the indices still to come as they are.
        for &(index, _) in progress.iter().rev() {
            if self.jobs[index].left_ns <= NOTHING_NS
                && let Some(job) = self.jobs.remove(index)
            {
                finished.push(FinishedRequest { id: job.id, at: finished_at });
                self.choose();
            }
        }
        let mut drained_ns = span_ns * drain_speed;
        let mut room = false;
        while let Some(buffered) = self.buffer.front_mut() {
            let taken_ns = drained_ns.min(buffered.left_ns);
            buffered.left_ns -= taken_ns;
            drained_ns -= taken_ns;
            if buffered.left_ns > NOTHING_NS {
                break;
            }
            self.drained = buffered.number;
            self.buffered_bytes -= buffered.end_byte - buffered.first_byte;
            if let Some(id) = buffered.answer {
                finished.push(FinishedRequest { id, at: finished_at });
            }
            self.buffer.pop_front();
            room = true;
        }
        if room {
            self.admit_blocked(at_ns);
            for (id, number) in std::mem::take(&mut self.flushes) {
                if number <= self.drained {
                    let flush_ns = self.flush.draw_ns(&mut self.random);
                    self.answer(id, at_ns.saturating_add(flush_ns));
                } else {
                    self.flushes.push((id, number));
                }
            }
        }
    }

    /// Gives the device to any of the jobs.
    fn choose(&mut self) {
        if self.order == MeasuredOrder::Any && !self.jobs.is_empty() {
            self.serving = self.random.random_range(0..self.jobs.len());
        }
    }

    fn start(&mut self, id: RequestId, load: MeasuredLoad, length_bytes: u64) {
        let load = load as usize;
        let blocks = self.loads[load].blocks(length_bytes);
        let left_ns = self.loads[load].draw_ns(blocks, length_bytes, &mut self.random);
        self.jobs.push_back(MeasuredRequest { id, load, blocks, left_ns });
        if self.jobs.len() == 1 {
            self.serving = 0;
        }
    }

    fn has_room_for(&self, bytes: u64) -> bool {
        self.buffered_bytes == 0 || self.buffered_bytes + bytes <= self.buffer_limit_bytes
    }

    fn admit_blocked(&mut self, now_ns: u64) {
        while let Some((request, load)) = self.blocked.front().copied() {
            if !self.has_room_for(request.length_bytes) {
                break;
            }
            self.blocked.pop_front();
            self.buffer(request, load, now_ns);
        }
    }

    fn buffer(&mut self, request: ModelRequest, load: MeasuredLoad, now_ns: u64) {
        let ModelRequest { id, offset_bytes, length_bytes, fua, .. } = request;
        self.accepted += 1;
        self.buffered_bytes += length_bytes;
        let through = fua && self.flush_drains;
        let drains = &self.loads[load as usize];
        self.buffer.push_back(BufferedMeasuredWrite {
            number: self.accepted,
            first_byte: offset_bytes,
            end_byte: offset_bytes + length_bytes,
            left_ns: drains.fastest_ns(drains.blocks(length_bytes), length_bytes),
            answer: through.then_some(id),
        });
        if !through {
            let buffered = &self.loads[MeasuredLoad::BufferedWrite as usize];
            let blocks = buffered.blocks(length_bytes);
            let latency_ns = buffered.draw_ns(blocks, length_bytes, &mut self.random) as u64;
            // Where it was measured, no more of them in a second than at the deepest queue.
            let gap_ns = buffered.fastest_ns(blocks, length_bytes) as u64;
            let measured = buffered.has_depths();
            let start_ns = if measured { self.buffer_free_ns.max(now_ns) } else { now_ns };
            self.buffer_free_ns = start_ns.saturating_add(gap_ns);
            self.answer(id, start_ns.saturating_add(latency_ns));
        }
    }
}

impl MediumModel for MeasuredModel {
    fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    fn submit(&mut self, request: ModelRequest, now: ModelTime) {
        let ModelRequest { id, operation, offset_bytes, length_bytes, .. } = request;
        let now_ns = now.as_ns();
        // No event is due, but rounding may find a job done a fraction of a nanosecond early.
        let mut finished = Vec::new();
        self.carry_on(now_ns, &mut finished);
        finished.iter().for_each(|early| self.answer(early.id, now_ns));
        match operation {
            ModelOperation::Read => {
                let load = match self.reads.goes_on(offset_bytes, length_bytes) {
                    true => MeasuredLoad::SequentialRead,
                    false => MeasuredLoad::RandomRead,
                };
                self.start(id, load, length_bytes);
            }
            ModelOperation::Write => {
                let load = match self.writes.goes_on(offset_bytes, length_bytes) {
                    true => MeasuredLoad::SequentialWrite,
                    false => MeasuredLoad::RandomWrite,
                };
                if self.buffer_limit_bytes == 0 {
                    self.start(id, load, length_bytes);
                } else if self.blocked.is_empty() && self.has_room_for(length_bytes) {
                    self.buffer(request, load, now_ns);
                } else {
                    self.blocked.push_back((request, load));
                }
            }
            ModelOperation::Flush if self.flush_drains && !self.buffer.is_empty() => {
                self.flushes.push((id, self.accepted));
            }
            ModelOperation::Flush => {
                let flush_ns = self.flush.draw_ns(&mut self.random);
                self.answer(id, now_ns.saturating_add(flush_ns));
            }
            // No probe measures it.
            ModelOperation::Discard => self.answer(id, now_ns),
        }
    }

    fn next_completion(&self) -> Option<ModelTime> {
        self.next_event_ns().map(ModelTime::from_ns)
    }

    fn complete(&mut self, now: ModelTime, finished: &mut Vec<FinishedRequest>) {
        while let Some(at_ns) = self.next_event_ns().filter(|at_ns| *at_ns <= now.as_ns()) {
            self.carry_on(at_ns, finished);
            while let Some(Reverse((answer_ns, _, id))) = self.answers.peek().copied() {
                if answer_ns > at_ns {
                    break;
                }
                self.answers.pop();
                finished.push(FinishedRequest { id, at: ModelTime::from_ns(answer_ns) });
            }
        }
    }

    fn absorb(&mut self, request: ModelRequest) {
        match request.operation {
            ModelOperation::Read => self.reads.goes_on(request.offset_bytes, request.length_bytes),
            ModelOperation::Write => self.writes.goes_on(request.offset_bytes, request.length_bytes),
            ModelOperation::Flush | ModelOperation::Discard => false,
        };
    }

    fn unflushed(&self) -> Vec<(u64, u64)> {
        if !self.flush_drains {
            return Vec::new();
        }
        self.buffer.iter().map(|buffered| (buffered.first_byte, buffered.end_byte)).collect()
    }
}
