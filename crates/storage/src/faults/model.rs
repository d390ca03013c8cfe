//! Faults of time: a model around a medium's own that is slower, or late at times.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use underlay_sync::Mutex;

use rand::{RngExt as _, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::{DeviceFault, FaultId, is_among};
use crate::medium::{FinishedRequest, MediumModel, ModelRequest, RequestId};
use crate::time::ModelTime;

/// A model's faults, set from any thread; they take effect at the model's next event.
#[derive(Debug, Default)]
pub(crate) struct ModelFaults {
    generation: AtomicU64,
    wanted: Mutex<Vec<(FaultId, DeviceFault)>>,
}

impl ModelFaults {
    pub(crate) fn set(&self, faults: Vec<(FaultId, DeviceFault)>) {
        *self.wanted.lock() = faults;
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    fn get(&self) -> Vec<(FaultId, DeviceFault)> {
        self.wanted.lock().clone()
    }
}

/// A medium's model with faults. Slowness is time itself running slower inside; a spike holds back a request that
/// the medium has finished.
pub(crate) struct FaultyModel {
    inner: Box<dyn MediumModel>,
    shared: std::sync::Arc<ModelFaults>,
    seen_generation: u64,
    rate: TimeRate,
    spikes: Vec<LatencySpike>,
    /// Requests inside that will be late, and by how much.
    spiked: HashMap<RequestId, Duration>,
    late: BTreeSet<(ModelTime, RequestId)>,
    /// The last instant that was given.
    now: ModelTime,
    finished: Vec<FinishedRequest>,
}

struct LatencySpike {
    id: FaultId,
    fault: DeviceFault,
    random: Pcg64Mcg,
}

/// Time inside by time outside: from a common instant on, `factor` times slower.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TimeRate {
    outside: ModelTime,
    inside: ModelTime,
    factor: f64,
}

impl TimeRate {
    /// Nothing is rounded.
    fn is_exact(&self) -> bool {
        self.factor == 1.0
    }

    fn inside(&self, outside: ModelTime) -> ModelTime {
        let span_ns = outside.as_ns().saturating_sub(self.outside.as_ns());
        let slowed_ns = if self.factor == 1.0 { span_ns } else { (span_ns as f64 / self.factor) as u64 };
        ModelTime::from_ns(self.inside.as_ns().saturating_add(slowed_ns))
    }

    /// The first instant outside at which it is `inside`, or later, inside.
    fn outside(&self, inside: ModelTime) -> ModelTime {
        let span_ns = inside.as_ns().saturating_sub(self.inside.as_ns());
        if self.factor == 1.0 {
            return ModelTime::from_ns(self.outside.as_ns().saturating_add(span_ns));
        }
        let mut span_ns = (span_ns as f64 * self.factor).ceil() as u64;
        let outside_at = |span_ns: u64| ModelTime::from_ns(self.outside.as_ns().saturating_add(span_ns));
        // Floats may be off by a little, and an event must not be asked for before it is due.
        while self.inside(outside_at(span_ns)) < inside && outside_at(span_ns) < ModelTime::from_ns(u64::MAX)
        {
            span_ns += 1 + (span_ns >> 52);
        }
        outside_at(span_ns)
    }
}

impl FaultyModel {
    pub(crate) fn new(inner: Box<dyn MediumModel>, shared: std::sync::Arc<ModelFaults>) -> FaultyModel {
        let rate = TimeRate { outside: ModelTime::ZERO, inside: ModelTime::ZERO, factor: 1.0 };
        FaultyModel {
            inner,
            shared,
            seen_generation: 0,
            rate,
            spikes: Vec::new(),
            spiked: HashMap::new(),
            late: BTreeSet::new(),
            now: ModelTime::ZERO,
            finished: Vec::new(),
        }
    }

    /// When something happens outside that happens `inside`. Rounding must not carry it to before the latest reported
    /// time.
    fn told(&self, inside: ModelTime) -> ModelTime {
        let outside = self.rate.outside(inside);
        if self.rate.is_exact() { outside } else { outside.max(self.now) }
    }

    /// Takes the faults that were set since, as of `now`, up to which everything is over.
    fn adopt(&mut self, now: ModelTime) {
        let generation = self.shared.generation.load(Ordering::SeqCst);
        if generation == self.seen_generation {
            return;
        }
        self.seen_generation = generation;
        let wanted = self.shared.get();
        let factor = wanted.iter().fold(1.0, |product, (_, fault)| match fault {
            DeviceFault::Slow { factor } => product * factor,
            _ => product,
        });
        self.rate = TimeRate { outside: now, inside: self.rate.inside(now), factor };
        // A spike that stays goes on with its numbers.
        self.spikes.retain(|spike| wanted.iter().any(|(id, _)| *id == spike.id));
        for (id, fault) in wanted {
            if let DeviceFault::Spikes { seed, .. } = fault
                && self.spikes.iter().all(|spike| spike.id != id)
            {
                self.spikes.push(LatencySpike { id, fault, random: Pcg64Mcg::seed_from_u64(seed) });
            }
        }
    }
}

impl MediumModel for FaultyModel {
    fn capacity_bytes(&self) -> u64 {
        self.inner.capacity_bytes()
    }

    fn submit(&mut self, request: ModelRequest, now: ModelTime) {
        // One that is late is no reason to go back.
        self.now = self.now.max(now);
        self.adopt(self.now);
        let mut extra = Duration::ZERO;
        for LatencySpike { fault, random, .. } in &mut self.spikes {
            if let DeviceFault::Spikes { operations, rate, latency_us, .. } = fault
                && is_among(request.operation, operations)
                && random.random_bool(*rate)
            {
                extra += Duration::from_nanos((*latency_us * 1e3) as u64);
            }
        }
        if !extra.is_zero() {
            self.spiked.insert(request.id, extra);
        }
        self.inner.submit(request, self.rate.inside(now));
    }

    fn takes_late(&self) -> bool {
        self.rate.is_exact() && self.inner.takes_late()
    }

    fn next_completion(&self) -> Option<ModelTime> {
        let inside = self.inner.next_completion().map(|inside| self.told(inside));
        let late = self.late.first().map(|(due, _)| *due);
        inside.into_iter().chain(late).min()
    }

    fn complete(&mut self, now: ModelTime, finished: &mut Vec<FinishedRequest>) {
        let began = finished.len();
        let mut done = std::mem::take(&mut self.finished);
        self.inner.complete(self.rate.inside(now), &mut done);
        for FinishedRequest { id, at: finished_at } in done.drain(..) {
            let finished_at = self.told(finished_at).min(now);
            match self.spiked.remove(&id) {
                Some(extra) => drop(self.late.insert((finished_at + extra, id))),
                None => finished.push(FinishedRequest { id, at: finished_at }),
            }
        }
        self.finished = done;
        while let Some(&(due, id)) = self.late.first().filter(|(due, _)| *due <= now) {
            self.late.pop_first();
            finished.push(FinishedRequest { id, at: due });
        }
        finished[began..].sort_by_key(|one| one.at);
        self.now = self.now.max(now);
        self.adopt(now);
    }

    fn absorb(&mut self, request: ModelRequest) {
        self.inner.absorb(request);
    }

    fn end_fast_forward(&mut self, now: ModelTime) {
        self.inner.end_fast_forward(self.rate.inside(now));
    }

    fn wear(&self) -> Option<underlay_record::FlashWear> {
        self.inner.wear()
    }

    fn unflushed(&self) -> Vec<(u64, u64)> {
        self.inner.unflushed()
    }
}

#[cfg(test)]
mod tests;
