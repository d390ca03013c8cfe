//! Replays the kept requests in virtual time, on any medium.

use std::time::Duration;

use super::trace::TracedRequest;
use crate::medium::{FinishedRequest, MediumModel, ModelRequest, RequestId};
use crate::time::ModelTime;

/// How long they took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReplayResult {
    pub all_s: f64,
    /// In which the device had nothing to do: the program's own time, which no medium changes.
    pub idle_s: f64,
}

impl ReplayResult {
    /// In which it had something to do.
    pub fn busy_s(&self) -> f64 {
        (self.all_s - self.idle_s).max(1e-12)
    }
}

/// Asks for the requests as the program did: each one when no more are in flight than were when it came, and after a
/// pause as long as the program made where there were none. A faster device is so asked faster, as a program that waits
/// for its answers asks it.
pub fn replay(model: &mut dyn MediumModel, segments: &[Vec<TracedRequest>]) -> ReplayResult {
    let (mut now, mut sum) = (ModelTime::ZERO, ReplayResult::default());
    let mut finished: Vec<FinishedRequest> = Vec::new();
    let mut next_id = 0;
    let capacity_bytes = model.capacity_bytes();
    for segment in segments {
        let began = now;
        let mut under_way: u64 = 0;
        for traced in segment {
            if traced.length_bytes > capacity_bytes {
                continue;
            }
            while under_way > u64::from(traced.depth) {
                let Some(done) = step(model, &mut now, &mut finished) else { break };
                under_way = under_way.saturating_sub(done);
            }
            if traced.depth == 0 && traced.idle_ns > 0 {
                now += Duration::from_nanos(traced.idle_ns);
                sum.idle_s += traced.idle_ns as f64 / 1e9;
                // The device's background work.
                while let Some(completed_at) = model.next_completion()
                    && completed_at <= now
                {
                    model.complete(completed_at, &mut finished);
                }
                finished.clear();
                model.complete(now, &mut finished);
                finished.clear();
            }
            let request = ModelRequest {
                id: RequestId(next_id),
                operation: traced.operation,
                offset_bytes: traced.offset_bytes.min(capacity_bytes - traced.length_bytes),
                length_bytes: traced.length_bytes,
                fua: traced.fua,
            };
            next_id += 1;
            under_way += 1;
            model.submit(request, now);
        }
        while under_way > 0 {
            let Some(done) = step(model, &mut now, &mut finished) else { break };
            under_way = under_way.saturating_sub(done);
        }
        sum.all_s += now.duration_since(began).as_secs_f64();
    }
    sum
}

/// Carries on to the model's next event; how many requests it ended, and none where there is no event.
fn step(
    model: &mut dyn MediumModel,
    now: &mut ModelTime,
    finished: &mut Vec<FinishedRequest>,
) -> Option<u64> {
    let completed_at = model.next_completion()?;
    *now = (*now).max(completed_at);
    model.complete(*now, finished);
    let done = finished.len() as u64;
    finished.clear();
    Some(done)
}
