//! Network volumes: a link, a target, and any medium behind it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use super::link::{LinkDirection, LinkModel};
use super::us_to_ns;
use crate::catalogue::LinkParameters;
use crate::medium::{FinishedRequest, MediumModel, ModelOperation, ModelRequest, RequestId};
use crate::time::ModelTime;

/// A medium behind a link, in virtual time.
pub struct NetworkModel {
    link: LinkModel,
    inner: Box<dyn MediumModel>,
    queue_depth: usize,
    target_ns: u64,
    target_gap_ns: u64,
    target_free_ns: u64,
    /// By the instant and the order in which they were made.
    events: BinaryHeap<Reverse<(u64, u64, NetworkEvent)>>,
    next_event: u64,
    /// Commands that were sent and are not answered.
    under_way: HashMap<RequestId, ModelRequest>,
    /// Commands that wait on this side.
    waiting: VecDeque<ModelRequest>,
    /// How far the medium was carried.
    completed: ModelTime,
    done: Vec<FinishedRequest>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NetworkEvent {
    /// The command, and its data if it has any, have arrived at the target.
    Arrived(RequestId),
    /// The target gives it to the medium.
    Entered(RequestId),
    /// The answer is here.
    Answered(RequestId),
}

impl NetworkModel {
    /// See [`crate::catalogue::CatalogueMedium::model`], which calls this.
    pub fn new(parameters: &LinkParameters, inner: Box<dyn MediumModel>, seed: u64) -> NetworkModel {
        NetworkModel {
            link: LinkModel::new(parameters, seed),
            inner,
            queue_depth: parameters.queue_depth.value as usize,
            target_ns: us_to_ns(parameters.target_us.value),
            target_gap_ns: parameters
                .target_iops
                .as_ref()
                .map_or(0, |iops| (1e9 / iops.value).round() as u64),
            target_free_ns: 0,
            events: BinaryHeap::new(),
            next_event: 0,
            under_way: HashMap::new(),
            waiting: VecDeque::new(),
            completed: ModelTime::ZERO,
            done: Vec::new(),
        }
    }

    fn push(&mut self, at_ns: u64, event: NetworkEvent) {
        self.next_event += 1;
        self.events.push(Reverse((at_ns, self.next_event, event)));
    }

    fn send(&mut self, request: ModelRequest, now: ModelTime) {
        let data_bytes = if request.operation == ModelOperation::Write { request.length_bytes } else { 0 };
        let arrives = self.link.send(LinkDirection::ToTarget, data_bytes, now);
        self.under_way.insert(request.id, request);
        self.push(arrives.as_ns(), NetworkEvent::Arrived(request.id));
    }

    fn step(&mut self, now: ModelTime, finished: &mut Vec<FinishedRequest>) {
        let mut done = std::mem::take(&mut self.done);
        // An event of a message that came late lies behind what the target has done.
        self.completed = self.completed.max(now);
        self.inner.complete(self.completed, &mut done);
        for FinishedRequest { id, at: finished_at } in done.drain(..) {
            let data_bytes = match self.under_way.get(&id) {
                Some(request) if request.operation == ModelOperation::Read => request.length_bytes,
                _ => 0,
            };
            let arrives = self.link.send(LinkDirection::FromTarget, data_bytes, finished_at);
            self.push(arrives.as_ns(), NetworkEvent::Answered(id));
        }
        self.done = done;
        while let Some(Reverse((at_ns, _, event))) = self.events.peek().copied() {
            if at_ns > now.as_ns() {
                break;
            }
            self.events.pop();
            match event {
                NetworkEvent::Arrived(id) => {
                    let start_ns = at_ns.max(self.target_free_ns);
                    self.target_free_ns = start_ns + self.target_gap_ns;
                    self.push(start_ns + self.target_ns, NetworkEvent::Entered(id));
                }
                NetworkEvent::Entered(id) => {
                    if let Some(request) = self.under_way.get(&id) {
                        self.inner.submit(*request, now);
                    }
                }
                NetworkEvent::Answered(id) => {
                    self.under_way.remove(&id);
                    finished.push(FinishedRequest { id, at: now });
                    if let Some(request) = self.waiting.pop_front() {
                        self.send(request, now);
                    }
                }
            }
        }
    }
}

impl MediumModel for NetworkModel {
    fn capacity_bytes(&self) -> u64 {
        self.inner.capacity_bytes()
    }

    fn submit(&mut self, request: ModelRequest, now: ModelTime) {
        if self.under_way.len() < self.queue_depth {
            self.send(request, now);
        } else {
            self.waiting.push_back(request);
        }
    }

    /// Lines and target know until when they are busy.
    fn takes_late(&self) -> bool {
        self.inner.takes_late()
    }

    fn next_completion(&self) -> Option<ModelTime> {
        let event = self.events.peek().map(|Reverse((at_ns, _, _))| ModelTime::from_ns(*at_ns));
        [event, self.inner.next_completion()].into_iter().flatten().min()
    }

    fn complete(&mut self, now: ModelTime, finished: &mut Vec<FinishedRequest>) {
        while let Some(completed_at) = self.next_completion().filter(|completed_at| *completed_at <= now) {
            self.step(completed_at, finished);
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
