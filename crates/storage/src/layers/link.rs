//! A member that is elsewhere: everything for it travels over a link, and every answer back.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use crate::backing::NullBacking;
use crate::clock::ModelClock;
use crate::device::{BlockDevice, CompletionCallback, DeviceCompletion, DeviceGeometry, DeviceRequest};
use crate::media::link;
use crate::medium::{FinishedRequest, MediumModel, ModelOperation, ModelRequest, RequestId};
use crate::paced::Paced;
use crate::time::ModelTime;

/// Requests take their turn on the line to the member, writes with their data; answers on the line back, reads
/// with theirs. Each way has its own bandwidth, and each message takes the latency on top.
///
/// The member promises what it promises; what was in flight when a link is lost is the member's `Gone`.
pub struct LinkLayer {
    member: Arc<dyn BlockDevice>,
    line: Paced,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LinkError {
    #[error("a bandwidth of {0} MB/s: it must be from 0.001 to 1000000")]
    Bandwidth(f64),
    #[error("a latency of {0} us: it must be from 0 to 60000000")]
    Latency(f64),
}

impl LinkLayer {
    /// `latency_us` is the way there alone: a round trip takes twice as much.
    ///
    /// # Errors
    /// For a bandwidth or a latency that makes no sense.
    pub fn new(
        member: Arc<dyn BlockDevice>,
        bandwidth_mb_s: f64,
        latency_us: f64,
        clock: Arc<dyn ModelClock>,
    ) -> Result<LinkLayer, LinkError> {
        if !(0.001..=1e6).contains(&bandwidth_mb_s) {
            return Err(LinkError::Bandwidth(bandwidth_mb_s));
        }
        if !(0.0..=60e6).contains(&latency_us) {
            return Err(LinkError::Latency(latency_us));
        }
        let model = LineModel {
            link: link::LinkModel::plain(bandwidth_mb_s, Duration::from_nanos((latency_us * 1e3) as u64)),
            travelling: BinaryHeap::new(),
        };
        let line = Paced::new(u64::MAX, Arc::new(NullBacking), Some(Box::new(model)), clock);
        Ok(LinkLayer { member, line })
    }

    /// The part that someone has to drive, as if it were a device.
    pub fn line(&self) -> &Paced {
        &self.line
    }
}

impl BlockDevice for LinkLayer {
    fn geometry(&self) -> DeviceGeometry {
        self.member.geometry()
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        if let Err(error) = request.check(&self.member.geometry()) {
            return done(Err(error));
        }
        let sent_bytes = match &request {
            DeviceRequest::Write { data, .. } => data.len() as u64,
            _ => 0,
        };
        let (member, back) = (Arc::clone(&self.member), self.line.clone());
        let arrived = move |sent: DeviceCompletion| {
            if let Err(error) = sent {
                return done(Err(error));
            }
            let answered = move |completion: DeviceCompletion| {
                let bytes = completion.as_ref().map_or(0, |data| data.len() as u64);
                back.delay(ModelOperation::Read, bytes, Box::new(move |came| done(came.and(completion))));
            };
            member.submit(request, Box::new(answered));
        };
        self.line.delay(ModelOperation::Write, sent_bytes, Box::new(arrived));
    }
}

/// Both ways of a link as a model: a write is a message to the member, a read one from it.
struct LineModel {
    link: link::LinkModel,
    /// (arrival, message)
    travelling: BinaryHeap<Reverse<(ModelTime, RequestId)>>,
}

impl MediumModel for LineModel {
    fn capacity_bytes(&self) -> u64 {
        u64::MAX
    }

    fn submit(&mut self, request: ModelRequest, now: ModelTime) {
        let direction = if request.operation == ModelOperation::Read {
            link::LinkDirection::FromTarget
        } else {
            link::LinkDirection::ToTarget
        };
        let arrival = self.link.send(direction, request.length_bytes, now).max(now);
        self.travelling.push(Reverse((arrival, request.id)));
    }

    fn next_completion(&self) -> Option<ModelTime> {
        self.travelling.peek().map(|Reverse((arrival, _))| *arrival)
    }

    fn complete(&mut self, now: ModelTime, finished: &mut Vec<FinishedRequest>) {
        while let Some(Reverse((due, id))) = self.travelling.peek().copied().filter(|first| first.0.0 <= now)
        {
            self.travelling.pop();
            finished.push(FinishedRequest { id, at: due });
        }
    }

    fn absorb(&mut self, _request: ModelRequest) {}
}
