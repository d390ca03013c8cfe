//! Cloud volumes: gates with credits, and a latency that is the service's.
//!
//! A request passes the gates in order: operations and throughput of the volume, then those of the machine. It then
//! takes a drawn latency and the transfer of its data. Nothing else matters: there is no volatile state, no place on a
//! medium, and no queue but the one that is sold.

pub mod accounting;
pub mod cold;
pub mod episodes;
pub mod gate;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;

use super::draw::QuantileDistribution;
use super::{transfer_ns, us_to_ns};
use crate::catalogue::{CloudParameters, SourcedQuantity};
use crate::medium::{FinishedRequest, MediumModel, ModelOperation, ModelRequest, RequestId};
use crate::stack::InitialState;
use crate::time::ModelTime;
use accounting::RequestAccounting;
use cold::ColdBlocks;
use episodes::EpisodeProcess;
use gate::RateGate;

/// A cloud volume in virtual time.
pub struct CloudModel {
    capacity_bytes: u64,
    /// Their units, in the order in which they are passed.
    gates: Vec<(CountedUnit, RateGate)>,
    accounting: RequestAccounting,
    read_latency: QuantileDistribution,
    write_latency: QuantileDistribution,
    flush_latency: QuantileDistribution,
    request_mb_s: f64,
    queue_depth: usize,
    episodes: Option<EpisodeProcess>,
    cold: Option<ColdBlocks>,
    random: Pcg64Mcg,

    /// Requests by the instant at which they are answered, and their order.
    answers: BinaryHeap<Reverse<(u64, u64, RequestId, bool)>>,
    next_answer: u64,
    served: usize,
    waiting: VecDeque<ModelRequest>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CountedUnit {
    Operations,
    Bytes,
}

impl CloudModel {
    /// See [`crate::catalogue::CatalogueMedium::model`], which calls this.
    pub fn new(
        parameters: &CloudParameters,
        capacity_bytes: u64,
        seed: u64,
        initial: InitialState,
    ) -> CloudModel {
        let p = parameters;
        let value = |quantity: &Option<SourcedQuantity>| quantity.as_ref().map(|quantity| quantity.value);
        let share = match initial {
            InitialState::Fresh => value(&p.initial_credits_share).unwrap_or(1.0),
            InitialState::Steady => 0.0,
        };
        const MB: f64 = 1e6;
        let burst = |rate: Option<f64>, credits: Option<f64>| rate.zip(credits);
        let mut gates = vec![
            (
                CountedUnit::Operations,
                RateGate::new(
                    p.baseline_iops.value,
                    burst(value(&p.burst_iops), value(&p.io_credits)),
                    share,
                ),
            ),
            (
                CountedUnit::Bytes,
                RateGate::new(
                    p.baseline_mb_s.value * MB,
                    burst(
                        value(&p.burst_mb_s).map(|rate| rate * MB),
                        value(&p.throughput_credits_mb).map(|credits| credits * MB),
                    ),
                    share,
                ),
            ),
        ];
        // A full bucket pays for what goes beyond the baseline, for this long.
        let lasting = |rate: Option<f64>, baseline: f64| {
            burst(rate, value(&p.instance_burst_s).zip(rate).map(|(s, rate)| s * (rate - baseline)))
        };
        if let Some(iops) = value(&p.instance_iops) {
            gates.push((
                CountedUnit::Operations,
                RateGate::new(iops, lasting(value(&p.instance_burst_iops), iops), share),
            ));
        }
        if let Some(mb_s) = value(&p.instance_mb_s) {
            let rate = value(&p.instance_burst_mb_s).map(|rate| rate * MB);
            gates.push((CountedUnit::Bytes, RateGate::new(mb_s * MB, lasting(rate, mb_s * MB), share)));
        }
        let cold = match (&p.cold_share, &p.cold_block_bytes, &p.cold_latency_us, initial) {
            (Some(share), Some(block), Some(latency), InitialState::Fresh) => Some(ColdBlocks::new(
                share.value,
                block.value as u64,
                QuantileDistribution::from_us(latency),
                value(&p.cold_mb_s),
                seed,
            )),
            _ => None,
        };
        let episodes = match (&p.degraded_share, &p.degraded_episode_s, &p.degraded_factor) {
            (Some(share), Some(mean), Some(factor)) => {
                // Not the sequence from which latencies are drawn.
                EpisodeProcess::new(share.value, mean.value, factor.value, seed ^ 0xE915_0DE5)
            }
            _ => None,
        };
        CloudModel {
            capacity_bytes,
            gates,
            accounting: RequestAccounting::new(
                p.io_unit_bytes.value as u64,
                value(&p.merge_window_us).map(us_to_ns),
                value(&p.random_charge_bytes).unwrap_or(0.0) as u64,
            ),
            read_latency: QuantileDistribution::from_us(&p.read_latency_us),
            write_latency: QuantileDistribution::from_us(&p.write_latency_us),
            flush_latency: p
                .flush_us
                .as_ref()
                .map_or_else(|| QuantileDistribution::constant_ns(0.0), QuantileDistribution::from_us),
            request_mb_s: p.request_mb_s.value,
            queue_depth: p.queue_depth.value as usize,
            episodes,
            cold,
            random: Pcg64Mcg::seed_from_u64(seed),
            answers: BinaryHeap::new(),
            next_answer: 0,
            served: 0,
            waiting: VecDeque::new(),
        }
    }

    /// `served` says whether the request holds a place in the queue.
    fn answer(&mut self, id: RequestId, at_ns: u64, served: bool) {
        self.next_answer += 1;
        self.answers.push(Reverse((at_ns, self.next_answer, id, served)));
    }

    fn serve(&mut self, request: ModelRequest, now_ns: u64) {
        let ModelRequest { id, operation, offset_bytes, length_bytes, .. } = request;
        let write = operation == ModelOperation::Write;
        // As the volume is when the request's turn has come.
        let turn_ns = self.gates.iter().map(|(_, gate)| gate.free_ns()).fold(now_ns as f64, f64::max);
        let factor = self.episodes.as_mut().map_or(1.0, |episodes| episodes.factor(turn_ns as u64));
        let charge = self.accounting.charge(offset_bytes, length_bytes, now_ns);
        let mut passed_ns = now_ns as f64;
        for (counted, gate) in &mut self.gates {
            let units = match counted {
                CountedUnit::Operations => charge.operations,
                CountedUnit::Bytes => charge.bytes,
            };
            passed_ns = gate.pass_ns(units as f64, passed_ns, factor);
        }
        let mut start_ns = passed_ns.round() as u64;
        if let Some(cold) = &mut self.cold {
            start_ns = cold.touch(offset_bytes, length_bytes, write, start_ns, &mut self.random);
        }
        let latency = if write { &self.write_latency } else { &self.read_latency };
        let latency_ns = latency.draw_ns(&mut self.random) + transfer_ns(length_bytes, self.request_mb_s);
        self.served += 1;
        self.answer(id, start_ns.saturating_add((latency_ns as f64 / factor) as u64), true);
    }
}

impl MediumModel for CloudModel {
    fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    fn submit(&mut self, request: ModelRequest, now: ModelTime) {
        match request.operation {
            ModelOperation::Flush | ModelOperation::Discard => {
                let latency = match request.operation {
                    ModelOperation::Flush => &self.flush_latency,
                    _ => &self.write_latency,
                };
                let latency_ns = latency.draw_ns(&mut self.random);
                self.answer(request.id, now.as_ns().saturating_add(latency_ns), false);
            }
            ModelOperation::Read | ModelOperation::Write if self.served < self.queue_depth => {
                self.serve(request, now.as_ns());
            }
            ModelOperation::Read | ModelOperation::Write => self.waiting.push_back(request),
        }
    }

    fn next_completion(&self) -> Option<ModelTime> {
        self.answers.peek().map(|Reverse((at_ns, ..))| ModelTime::from_ns(*at_ns))
    }

    fn complete(&mut self, now: ModelTime, finished: &mut Vec<FinishedRequest>) {
        while let Some(Reverse((at_ns, _, id, served))) = self.answers.peek().copied() {
            if at_ns > now.as_ns() {
                break;
            }
            self.answers.pop();
            finished.push(FinishedRequest { id, at: ModelTime::from_ns(at_ns) });
            if served {
                self.served -= 1;
                if let Some(request) = self.waiting.pop_front() {
                    self.serve(request, at_ns);
                }
            }
        }
    }

    fn end_fast_forward(&mut self, now: ModelTime) {
        for (_, gate) in &mut self.gates {
            gate.restart(now.as_ns() as f64);
        }
    }

    fn absorb(&mut self, request: ModelRequest) {
        if let (Some(cold), ModelOperation::Read | ModelOperation::Write) =
            (&mut self.cold, request.operation)
        {
            cold.warm(request.offset_bytes, request.length_bytes);
        }
    }
}
