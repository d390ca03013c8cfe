//! Stragglers as measured: each request is answered later than its model says, by a drawn distribution.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;

use super::draw::QuantileDistribution;
use crate::catalogue::{TailMeasure, TailParameters};
use crate::medium::{FinishedRequest, MediumModel, ModelOperation, ModelRequest, RequestId};
use crate::time::ModelTime;

/// A model with a tail.
pub struct TailModel {
    inner: Box<dyn MediumModel>,
    measure: TailMeasure,
    read: Option<QuantileDistribution>,
    write: Option<QuantileDistribution>,
    random: Pcg64Mcg,
    /// Draws for requests in flight: extra nanoseconds, or the earliest instant of an answer.
    drawn: HashMap<RequestId, u64>,
    /// Requests that the model has finished and not answered yet.
    delayed: BinaryHeap<Reverse<(u64, u64, RequestId)>>,
    next_delayed: u64,
    done: Vec<FinishedRequest>,
}

impl TailModel {
    pub fn new(tail: &TailParameters, inner: Box<dyn MediumModel>, seed: u64) -> TailModel {
        TailModel {
            inner,
            measure: tail.measure,
            read: tail.distributions.read_us.as_ref().map(QuantileDistribution::from_us),
            write: tail.distributions.write_us.as_ref().map(QuantileDistribution::from_us),
            random: Pcg64Mcg::seed_from_u64(seed),
            drawn: HashMap::new(),
            delayed: BinaryHeap::new(),
            next_delayed: 0,
            done: Vec::new(),
        }
    }
}

impl MediumModel for TailModel {
    fn capacity_bytes(&self) -> u64 {
        self.inner.capacity_bytes()
    }

    fn submit(&mut self, request: ModelRequest, now: ModelTime) {
        let distribution = match request.operation {
            ModelOperation::Read => self.read.as_ref(),
            ModelOperation::Write => self.write.as_ref(),
            ModelOperation::Flush | ModelOperation::Discard => None,
        };
        let drawn_ns = distribution.map_or(0, |distribution| distribution.draw_ns(&mut self.random));
        if drawn_ns > 0 {
            let delay_ns = match self.measure {
                TailMeasure::Extra => drawn_ns,
                TailMeasure::Total => now.as_ns().saturating_add(drawn_ns),
            };
            self.drawn.insert(request.id, delay_ns);
        }
        self.inner.submit(request, now);
    }

    fn takes_late(&self) -> bool {
        self.inner.takes_late()
    }

    fn next_completion(&self) -> Option<ModelTime> {
        let delayed = self.delayed.peek().map(|Reverse((at_ns, _, _))| ModelTime::from_ns(*at_ns));
        [delayed, self.inner.next_completion()].into_iter().flatten().min()
    }

    fn complete(&mut self, now: ModelTime, finished: &mut Vec<FinishedRequest>) {
        self.inner.complete(now, &mut self.done);
        for FinishedRequest { id, at: finished_at } in self.done.drain(..) {
            let at_ns = match (self.drawn.remove(&id), self.measure) {
                (None, _) => finished_at.as_ns(),
                (Some(extra_ns), TailMeasure::Extra) => finished_at.as_ns().saturating_add(extra_ns),
                (Some(not_before_ns), TailMeasure::Total) => finished_at.as_ns().max(not_before_ns),
            };
            // Keeps answers of one instant in the order in which the model finished them.
            self.next_delayed += 1;
            self.delayed.push(Reverse((at_ns, self.next_delayed, id)));
        }
        while let Some(Reverse((at_ns, _, id))) = self.delayed.peek().copied() {
            if at_ns > now.as_ns() {
                break;
            }
            self.delayed.pop();
            finished.push(FinishedRequest { id, at: ModelTime::from_ns(at_ns) });
        }
    }

    fn absorb(&mut self, request: ModelRequest) {
        self.inner.absorb(request);
    }

    fn end_fast_forward(&mut self, now: ModelTime) {
        self.inner.end_fast_forward(now);
    }

    fn unflushed(&self) -> Vec<(u64, u64)> {
        self.inner.unflushed()
    }

    fn wear(&self) -> Option<underlay_record::FlashWear> {
        self.inner.wear()
    }
}
