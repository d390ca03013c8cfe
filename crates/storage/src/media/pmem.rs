//! Persistent memory: requests are copies, and those in flight share the memory's bandwidth.
//!
//! With `n` copies in flight each has the `n`th part of the bandwidth that the curve of its kind has at `n`. Writes
//! are safe when they have entered the write queue; behind that the queue drains as one copy more.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;

use super::draw::QuantileDistribution;
use super::{transfer_ns, us_to_ns};
use crate::catalogue::{PmemParameters, SourcedCurve};
use crate::medium::{FinishedRequest, MediumModel, ModelOperation, ModelRequest, RequestId};
use crate::time::ModelTime;

/// From this many copies on, the curves are as flat as they will be.
const MAX_COPIES: usize = 256;

/// Persistent memory in virtual time.
pub struct PmemModel {
    capacity_bytes: u64,
    granule_bytes: u64,
    command_ns: u64,
    read_latency: QuantileDistribution,
    write_latency: QuantileDistribution,
    /// Bytes a nanosecond of one copy, by how many are in flight, from one on.
    read_rates: Vec<f64>,
    write_rates: Vec<f64>,
    copy_mb_s: f64,
    queue_limit_bytes: f64,
    queue_is_persistent: bool,
    flush_ns: u64,
    random: Pcg64Mcg,

    events: BinaryHeap<Reverse<(u64, u64, PmemEvent)>>,
    next_event: u64,
    copies: Vec<PmemCopy>,
    queue: VecDeque<QueuedWrite>,
    /// Of the whole queue, still to be written.
    queue_bytes: f64,
    /// Up to when the copies and the queue have been carried on.
    carried_ns: u64,
    accepted: u64,
    drained: u64,
    /// Flushes that wait until write number `.1` has left the queue.
    flushes: Vec<(RequestId, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PmemEvent {
    Enter { id: RequestId, write: bool, first_byte: u64, length_bytes: u64, fua: bool },
    Finish(RequestId),
}

/// A copy in flight.
#[derive(Clone, Copy, Debug)]
struct PmemCopy {
    id: RequestId,
    write: bool,
    left_bytes: f64,
}

/// A write in the queue.
#[derive(Clone, Copy, Debug)]
struct QueuedWrite {
    number: u64,
    first_byte: u64,
    end_byte: u64,
    left_bytes: f64,
    /// To be answered only when it has left the queue.
    answer: Option<RequestId>,
}

fn rates(curve: &SourcedCurve) -> Vec<f64> {
    // MB/s are bytes a microsecond.
    (1..=MAX_COPIES).map(|copies| curve.value_at(copies as f64) / 1e3 / copies as f64).collect()
}

fn rate(rates: &[f64], copies: usize) -> f64 {
    match rates.get(copies.saturating_sub(1)) {
        Some(rate) => *rate,
        None => rates.last().map_or(1.0, |last| last * rates.len() as f64 / copies as f64),
    }
}

/// The rest of a copy that an event's rounding to whole nanoseconds may leave.
const NOTHING_BYTES: f64 = 1e-6;

impl PmemModel {
    /// See [`crate::catalogue::CatalogueMedium::model`], which calls this.
    pub fn new(parameters: &PmemParameters, capacity_bytes: u64, seed: u64) -> PmemModel {
        let p = parameters;
        PmemModel {
            capacity_bytes,
            granule_bytes: p.granule_bytes.value as u64,
            command_ns: us_to_ns(p.command_us.value),
            read_latency: QuantileDistribution::from_us(&p.read_latency_us),
            write_latency: QuantileDistribution::from_us(&p.write_latency_us),
            read_rates: rates(&p.read_mb_s_by_requests),
            write_rates: rates(&p.write_mb_s_by_requests),
            copy_mb_s: p.copy_mb_s.value,
            queue_limit_bytes: p.write_queue_bytes.value,
            queue_is_persistent: p.write_queue_is_persistent.value,
            flush_ns: us_to_ns(p.flush_us.value),
            random: Pcg64Mcg::seed_from_u64(seed),
            events: BinaryHeap::new(),
            next_event: 0,
            copies: Vec::new(),
            queue: VecDeque::new(),
            queue_bytes: 0.0,
            carried_ns: 0,
            accepted: 0,
            drained: 0,
            flushes: Vec::new(),
        }
    }

    fn push(&mut self, at_ns: u64, event: PmemEvent) {
        self.next_event += 1;
        self.events.push(Reverse((at_ns, self.next_event, event)));
    }

    /// Bytes a nanosecond of a read, and of a write or the queue, as many as there are now.
    fn rates_now(&self) -> (f64, f64) {
        let sharing = self.copies.len() + usize::from(!self.queue.is_empty());
        (rate(&self.read_rates, sharing), rate(&self.write_rates, sharing))
    }

    fn next_event_ns(&self) -> Option<u64> {
        let (read_rate, write_rate) = self.rates_now();
        let finish_ns = |left_bytes: f64, rate: f64| {
            self.carried_ns.saturating_add(((left_bytes / rate).ceil() as u64).max(1))
        };
        let copies = self
            .copies
            .iter()
            .map(|copy| finish_ns(copy.left_bytes, if copy.write { write_rate } else { read_rate }))
            .min();
        let queued = self.queue.front().map(|queued| finish_ns(queued.left_bytes, write_rate));
        let event = self.events.peek().map(|Reverse((at_ns, ..))| *at_ns);
        [copies, queued, event].into_iter().flatten().min()
    }

    /// Carries copies and queue on to `at_ns`, which is no later than the next event.
    fn carry_on(&mut self, at_ns: u64, finished: &mut Vec<FinishedRequest>) {
        let span_ns = at_ns.saturating_sub(self.carried_ns) as f64;
        let (read_rate, write_rate) = self.rates_now();
        self.carried_ns = self.carried_ns.max(at_ns);
        let finished_at = ModelTime::from_ns(at_ns);
        self.copies.retain_mut(|copy| {
            copy.left_bytes -= span_ns * if copy.write { write_rate } else { read_rate };
            let over = copy.left_bytes <= NOTHING_BYTES;
            if over {
                finished.push(FinishedRequest { id: copy.id, at: finished_at });
            }
            !over
        });
        let mut drained_bytes = span_ns * write_rate;
        while let Some(queued) = self.queue.front_mut() {
            let taken_bytes = drained_bytes.min(queued.left_bytes);
            queued.left_bytes -= taken_bytes;
            self.queue_bytes -= taken_bytes;
            drained_bytes -= taken_bytes;
            if queued.left_bytes > NOTHING_BYTES {
                break;
            }
            self.drained = queued.number;
            if let Some(id) = queued.answer {
                finished.push(FinishedRequest { id, at: finished_at });
            }
            self.queue.pop_front();
        }
        if self.queue.is_empty() {
            self.queue_bytes = 0.0;
        }
        for (id, number) in std::mem::take(&mut self.flushes) {
            if number <= self.drained {
                self.push(at_ns + self.flush_ns, PmemEvent::Finish(id));
            } else {
                self.flushes.push((id, number));
            }
        }
    }

    /// The bytes that the medium moves for a request. Of a write, a piece covered in part is read as well; as much
    /// time as that takes is counted in written bytes.
    fn moved_bytes(&self, first_byte: u64, length_bytes: u64, write: bool) -> f64 {
        let granule = self.granule_bytes;
        let end_byte = first_byte + length_bytes;
        let touched = end_byte.next_multiple_of(granule) - first_byte / granule * granule;
        let mut moved = touched as f64;
        if write {
            let (head, tail) = (!first_byte.is_multiple_of(granule), !end_byte.is_multiple_of(granule));
            let same = first_byte / granule == end_byte / granule;
            let partial = if head && tail && same { 1 } else { u64::from(head) + u64::from(tail) };
            moved += (partial * granule) as f64 * rate(&self.write_rates, 1) / rate(&self.read_rates, 1);
        }
        moved
    }

    fn enter(&mut self, id: RequestId, write: bool, range: (u64, u64), fua: bool, now_ns: u64) {
        let (first_byte, length_bytes) = range;
        let left_bytes = self.moved_bytes(first_byte, length_bytes, write);
        // Data that must be on the medium goes there behind the data that it may replace.
        let through = fua && !self.queue_is_persistent;
        if !write || !(through || self.queue_bytes + left_bytes <= self.queue_limit_bytes) {
            self.copies.push(PmemCopy { id, write, left_bytes });
            return;
        }
        self.accepted += 1;
        let end_byte = first_byte + length_bytes;
        self.queue_bytes += left_bytes;
        let answer = through.then_some(id);
        self.queue.push_back(QueuedWrite { number: self.accepted, first_byte, end_byte, left_bytes, answer });
        if !through {
            self.push(now_ns + transfer_ns(length_bytes, self.copy_mb_s), PmemEvent::Finish(id));
        }
    }

    fn step(&mut self, at_ns: u64, finished: &mut Vec<FinishedRequest>) {
        self.carry_on(at_ns, finished);
        while let Some(Reverse((event_ns, _, event))) = self.events.peek().copied() {
            if event_ns > at_ns {
                break;
            }
            self.events.pop();
            match event {
                PmemEvent::Enter { id, write, first_byte, length_bytes, fua } => {
                    self.enter(id, write, (first_byte, length_bytes), fua, at_ns);
                }
                PmemEvent::Finish(id) => {
                    finished.push(FinishedRequest { id, at: ModelTime::from_ns(event_ns) })
                }
            }
        }
    }
}

impl MediumModel for PmemModel {
    fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    fn submit(&mut self, request: ModelRequest, now: ModelTime) {
        let ModelRequest { id, operation, offset_bytes, length_bytes, fua } = request;
        let now_ns = now.as_ns();
        let write = match operation {
            ModelOperation::Read => false,
            ModelOperation::Write => true,
            ModelOperation::Flush if self.queue_is_persistent || self.queue.is_empty() => {
                self.push(now_ns + self.flush_ns, PmemEvent::Finish(id));
                return;
            }
            ModelOperation::Flush => {
                self.flushes.push((id, self.accepted));
                return;
            }
            // The memory has no such command: the block layer says yes.
            ModelOperation::Discard => {
                self.push(now_ns + self.command_ns, PmemEvent::Finish(id));
                return;
            }
        };
        let latency = if write { &self.write_latency } else { &self.read_latency };
        let enters_ns = now_ns + self.command_ns + latency.draw_ns(&mut self.random);
        self.push(enters_ns, PmemEvent::Enter { id, write, first_byte: offset_bytes, length_bytes, fua });
    }

    fn next_completion(&self) -> Option<ModelTime> {
        self.next_event_ns().map(ModelTime::from_ns)
    }

    fn complete(&mut self, now: ModelTime, finished: &mut Vec<FinishedRequest>) {
        while let Some(at_ns) = self.next_event_ns().filter(|at_ns| *at_ns <= now.as_ns()) {
            self.step(at_ns, finished);
        }
        // An idle memory has nothing to be carried on.
        if self.copies.is_empty() && self.queue.is_empty() {
            self.carried_ns = self.carried_ns.max(now.as_ns());
        }
    }

    /// Nothing stays: the queue is empty before anyone looks.
    fn absorb(&mut self, _: ModelRequest) {}

    fn unflushed(&self) -> Vec<(u64, u64)> {
        if self.queue_is_persistent {
            return Vec::new();
        }
        self.queue.iter().map(|queued| (queued.first_byte, queued.end_byte)).collect()
    }
}
