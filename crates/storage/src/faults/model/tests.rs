use proptest::prelude::*;

use super::*;
use crate::medium::ModelOperation;

/// Takes one request after the other, a fixed time each.
struct OneByOne {
    each: Duration,
    queue: Vec<FinishedRequest>,
}

impl MediumModel for OneByOne {
    fn capacity_bytes(&self) -> u64 {
        1 << 20
    }

    fn submit(&mut self, request: ModelRequest, now: ModelTime) {
        let start = self.queue.last().map_or(now, |last| last.at.max(now));
        self.queue.push(FinishedRequest { id: request.id, at: start + self.each });
    }

    fn next_completion(&self) -> Option<ModelTime> {
        self.queue.first().map(|first| first.at)
    }

    fn complete(&mut self, now: ModelTime, finished: &mut Vec<FinishedRequest>) {
        let over = self.queue.iter().take_while(|one| one.at <= now).count();
        finished.extend(self.queue.drain(..over));
    }

    fn absorb(&mut self, _request: ModelRequest) {
        assert!(self.queue.is_empty());
    }
}

fn model(each: Duration) -> (FaultyModel, std::sync::Arc<ModelFaults>) {
    let shared = std::sync::Arc::<ModelFaults>::default();
    (FaultyModel::new(Box::new(OneByOne { each, queue: Vec::new() }), shared.clone()), shared)
}

fn read(id: u64) -> ModelRequest {
    let (offset_bytes, length_bytes) = (0, 4096);
    ModelRequest {
        id: RequestId(id),
        operation: ModelOperation::Read,
        offset_bytes,
        length_bytes,
        fua: false,
    }
}

fn us(us: u64) -> ModelTime {
    ModelTime::from_ns(us * 1000)
}

/// Carries the model on until nothing is in flight.
fn run(model: &mut FaultyModel) -> Vec<FinishedRequest> {
    let mut finished = Vec::new();
    while let Some(next) = model.next_completion() {
        model.complete(next, &mut finished);
    }
    finished
}

#[test]
fn slow_device_takes_its_factor_and_recovers() {
    let (mut model, shared) = model(Duration::from_micros(100));
    model.submit(read(1), us(0));
    assert_eq!(run(&mut model), [FinishedRequest { id: RequestId(1), at: us(100) }]);
    shared.set(vec![(FaultId(1), DeviceFault::Slow { factor: 10.0 })]);
    model.complete(us(200), &mut Vec::new());
    model.submit(read(2), us(200));
    model.submit(read(3), us(200));
    let finished: Vec<ModelTime> = run(&mut model).iter().map(|one| one.at).collect();
    assert_eq!(finished, [us(1200), us(2200)]);
    shared.set(Vec::new());
    model.complete(us(3000), &mut Vec::new());
    model.submit(read(4), us(3000));
    assert_eq!(run(&mut model), [FinishedRequest { id: RequestId(4), at: us(3100) }]);
}

#[test]
fn spike_delays_only_its_request() {
    let (mut model, shared) = model(Duration::from_micros(10));
    let spikes = |rate, operations| DeviceFault::Spikes { operations, rate, latency_us: 500.0, seed: 3 };
    shared.set(vec![(FaultId(1), spikes(1.0, vec![ModelOperation::Write]))]);
    model.complete(us(0), &mut Vec::new());
    model.submit(ModelRequest { operation: ModelOperation::Write, ..read(1) }, us(0));
    model.submit(read(2), us(0));
    let finished = run(&mut model);
    assert_eq!(
        finished,
        [FinishedRequest { id: RequestId(2), at: us(20) }, FinishedRequest { id: RequestId(1), at: us(510) }]
    );
}

proptest! {
    /// Under any faults, put on and taken off, a model keeps its contract: each request is finished once, not before it
    /// came, in the order of time.
    #[test]
    fn faulty_model_keeps_model_contract(
        steps in prop::collection::vec((0u64..400, 0u8..6, 1.01f64..50.0), 1..80),
    ) {
        let (mut model, shared) = model(Duration::from_nanos(77));
        let (mut now, mut next_id) = (ModelTime::ZERO, 0);
        let mut submitted = std::collections::HashMap::new();
        let mut finished = Vec::new();
        for (span, kind, factor) in steps {
            now += Duration::from_nanos(span);
            while let Some(next) = model.next_completion().filter(|next| *next <= now) {
                model.complete(next, &mut finished);
            }
            model.complete(now, &mut finished);
            // Half of the steps submit, so that the faults have requests to act on.
            match kind {
                0 => shared.set(vec![(FaultId(factor as u64), DeviceFault::Slow { factor })]),
                1 => shared.set(vec![(
                    FaultId(factor as u64),
                    DeviceFault::Spikes { operations: Vec::new(), rate: 0.5, latency_us: factor, seed: 9 },
                )]),
                2 => shared.set(Vec::new()),
                _ => {
                    next_id += 1;
                    submitted.insert(RequestId(next_id), now);
                    model.submit(read(next_id), now);
                }
            }
        }
        // The faults stay: also then everything that was submitted has to finish.
        let mut calls = 0;
        while let Some(next) = model.next_completion() {
            model.complete(next, &mut finished);
            calls += 1;
            prop_assert!(calls < 10_000, "it does not come to an end");
        }
        prop_assert!(finished.windows(2).all(|pair| pair[0].at <= pair[1].at));
        for FinishedRequest { id, at: finished_at } in finished {
            let came = submitted.remove(&id);
            prop_assert!(came.is_some_and(|came| came <= finished_at), "{id:?} came at {came:?} and finished at {finished_at:?}");
        }
        prop_assert!(submitted.is_empty());
    }
}
