//! Hard disks: an arm, a spindle, a queue that reorders, read-ahead, and a write-back cache.
//!
//! One request is under the head at a time. Of those that wait the disk takes the one that it can start soonest, unless
//! one has been passed over for longer than the age bound. This is shortest positioning time first: seek, then the
//! rotation up to the first byte, from the platter's real angle. After a read it reads on into a segment of its memory,
//! as long as it has nothing else to do. Writes enter the write-back cache, if there is one, and are written in the
//! same order of positioning times; a flush waits for them.

mod choice;
pub mod geometry;
pub mod read_ahead;
pub mod seek;
pub mod write_cache;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::catalogue::HddParameters;
use crate::media::{ms_to_ns, scaled_buffer_bytes, transfer_ns};
use crate::medium::{FinishedRequest, MediumModel, ModelOperation, ModelRequest, RequestId};
use crate::time::ModelTime;
use choice::{ArmCandidate, ArmFairness};
use geometry::{DiskGeometry, DiskPosition, GeometryLayout};
use read_ahead::{ReadAhead, ReadSegments};
use seek::SeekCurve;
use write_cache::WriteCache;

/// A track whose first byte comes up as the last switch ends would be missed by a rounding error.
const SKEW_MARGIN_NS: u64 = 20_000;
/// A byte that passed the head this little ago counts as just arriving: rounding, not a missed turn.
const ANGLE_SLACK_NS: u64 = 2_000;

/// A disk's memory of earlier reads shrinks with its data, as Medium::model says, but keeps the read-ahead of a few
/// streams: it bridges the host's pauses, and those don't shrink.
fn scaled_memory_bytes(bytes: f64, read_ahead_bytes: f64, scale: f64) -> u64 {
    scaled_buffer_bytes(bytes, scale).max(bytes.min(4.0 * read_ahead_bytes) as u64)
}

/// A hard disk in virtual time.
#[derive(Debug)]
pub struct HddModel {
    capacity_bytes: u64,
    geometry: DiskGeometry,
    read_seek: SeekCurve,
    write_seek: SeekCurve,
    track_read_ns: u64,
    track_write_ns: u64,
    head_switch_ns: u64,
    command_ns: u64,
    interface_mb_s: f64,
    queue_depth: usize,
    queue_age_ns: u64,
    read_ahead_bytes: u64,
    /// The platter's angle at time zero, as the time since the index mark passed.
    phase_ns: u64,

    /// The byte behind the last one that the head passed.
    head_byte: u64,
    /// Commands on their way to the queue, by the instant at which they get there.
    arriving: VecDeque<(u64, WaitingRequest)>,
    queue: VecDeque<WaitingRequest>,
    fairness: ArmFairness,
    /// Writes that wait for room in the cache.
    blocked: VecDeque<WaitingRequest>,
    cache: WriteCache,
    flushes: Vec<(RequestId, u64)>,
    active: Option<ActiveRequest>,
    ahead: Option<ReadAhead>,
    segments: ReadSegments,
    interface_free_ns: u64,
    /// Finished requests by instant and order.
    replies: BinaryHeap<Reverse<(u64, u64, RequestId)>>,
    replied: u64,
    /// Counts requests: a write's number orders it against flushes.
    next_number: u64,
}

#[derive(Clone, Copy, Debug)]
struct WaitingRequest {
    request: ModelRequest,
    number: u64,
    /// When it came among those that the disk chooses from; behind these it doesn't age, for it has not
    /// been passed over. Otherwise a host that keeps more requests waiting than the disk looks at would
    /// have them all too old on arrival, and get them in the order of submission.
    eligible_ns: u64,
}

impl WaitingRequest {
    fn first_byte(&self) -> u64 {
        self.request.offset_bytes
    }

    fn end_byte(&self) -> u64 {
        self.request.offset_bytes + self.request.length_bytes
    }
}

/// The request under the head.
#[derive(Clone, Copy, Debug)]
struct ActiveRequest {
    work: HddWork,
    ends_ns: u64,
}

#[derive(Clone, Copy, Debug)]
enum HddWork {
    /// The read, and where the remembered stretch that it belongs to begins.
    Read(WaitingRequest, u64),
    Write(WaitingRequest),
    /// An extent of the write-back cache.
    Drain {
        first_byte: u64,
        end_byte: u64,
        duty: u64,
    },
}

impl HddModel {
    /// See [`crate::catalogue::CatalogueMedium::model`], which calls this.
    pub fn new(parameters: &HddParameters, capacity_bytes: u64, scale: f64, seed: u64) -> HddModel {
        let p = parameters;
        let rotation_ns = (60e9 / p.rotation_rpm.value).round() as u64;
        let (track_read_ns, track_write_ns) =
            (ms_to_ns(p.seek_track_read_ms.value), ms_to_ns(p.seek_track_write_ms.value));
        let head_switch_ns = ms_to_ns(p.head_switch_ms.value);
        // MB/s times a rotation in ns, as bytes
        let track_bytes = |mb_s: f64| mb_s * rotation_ns as f64 / 1e3;
        let read_ahead_bytes = p.read_ahead_bytes.value;
        let remembered_bytes =
            scaled_memory_bytes(p.read_segments.value * read_ahead_bytes, read_ahead_bytes, scale);
        let geometry = DiskGeometry::new(&GeometryLayout {
            capacity_bytes,
            heads: p.heads.value as u64,
            rotation_ns,
            track_skew_ns: head_switch_ns + SKEW_MARGIN_NS,
            cylinder_skew_ns: track_read_ns.max(track_write_ns) + SKEW_MARGIN_NS,
            zones: p.zones.value as u64,
            outer_track_bytes: track_bytes(p.transfer_outer_mb_s.value),
            inner_track_bytes: track_bytes(p.transfer_inner_mb_s.value),
        });
        HddModel {
            capacity_bytes,
            phase_ns: seed % rotation_ns.max(1),
            geometry,
            read_seek: SeekCurve::fit(
                p.seek_track_read_ms.value,
                p.seek_average_read_ms.value,
                p.seek_full_read_ms.value,
            ),
            write_seek: SeekCurve::fit(
                p.seek_track_write_ms.value,
                p.seek_average_write_ms.value,
                p.seek_full_write_ms.value,
            ),
            track_read_ns,
            track_write_ns,
            head_switch_ns,
            command_ns: ms_to_ns(p.command_ms.value),
            interface_mb_s: p.interface_mb_s.value,
            queue_depth: p.queue_depth.value as usize,
            queue_age_ns: ms_to_ns(p.queue_age_ms.value),
            read_ahead_bytes: read_ahead_bytes as u64,
            head_byte: 0,
            arriving: VecDeque::new(),
            queue: VecDeque::new(),
            fairness: ArmFairness::default(),
            blocked: VecDeque::new(),
            cache: WriteCache::new(scaled_buffer_bytes(p.write_cache_bytes.value, scale)),
            flushes: Vec::new(),
            active: None,
            ahead: None,
            segments: ReadSegments::new(p.read_segments.value as usize, remembered_bytes),
            interface_free_ns: 0,
            replies: BinaryHeap::new(),
            replied: 0,
            next_number: 1,
        }
    }

    /// Seek time between the cylinders of two bytes, without rotation, in nanoseconds.
    pub fn seek_ns(&self, from_byte: u64, to_byte: u64, operation: ModelOperation) -> u64 {
        self.move_ns(
            &self.geometry.place(from_byte),
            &self.geometry.place(to_byte),
            operation == ModelOperation::Write,
        )
    }

    /// Seek and rotation from one byte at `now` to the start of another, in nanoseconds.
    pub fn positioning_ns(
        &self,
        from_byte: u64,
        to_byte: u64,
        operation: ModelOperation,
        now: ModelTime,
    ) -> u64 {
        self.reach_ns(
            &self.geometry.place(from_byte),
            to_byte,
            operation == ModelOperation::Write,
            now.as_ns(),
        )
    }

    fn move_ns(&self, from: &DiskPosition, to: &DiskPosition, write: bool) -> u64 {
        let (curve, track_ns) = if write {
            (&self.write_seek, self.track_write_ns)
        } else {
            (&self.read_seek, self.track_read_ns)
        };
        match from.cylinder.abs_diff(to.cylinder) {
            0 if from.head == to.head => 0,
            0 => self.head_switch_ns,
            // On a scaled disk, too, the neighbour is one track away.
            1 => track_ns,
            _ => ms_to_ns(curve.time_ms(self.geometry.stroke_share(from.cylinder, to.cylinder))),
        }
    }

    /// Seek and rotation until `to_byte` comes under the head.
    fn reach_ns(&self, from: &DiskPosition, to_byte: u64, write: bool, now_ns: u64) -> u64 {
        let to = self.geometry.place(to_byte);
        let moved_ns = self.move_ns(from, &to, write);
        let rotation_ns = self.geometry.rotation_ns();
        let angle_ns = (now_ns + moved_ns + self.phase_ns) % rotation_ns;
        let wait_ns = (to.angle_ns + rotation_ns - angle_ns) % rotation_ns;
        if rotation_ns - wait_ns < ANGLE_SLACK_NS { moved_ns } else { moved_ns + wait_ns }
    }

    /// The track that the head is over.
    fn head_place(&self) -> DiskPosition {
        // Of the last byte that passed: the next one may be on another track.
        self.geometry.place(self.head_byte.saturating_sub(1))
    }

    fn next_event_ns(&self) -> Option<u64> {
        let arrival = self.arriving.front().map(|(at_ns, _)| *at_ns);
        let end = self.active.map(|active| active.ends_ns);
        let reply = self.replies.peek().map(|Reverse((at_ns, _, _))| *at_ns);
        [arrival, end, reply].into_iter().flatten().min()
    }

    fn reply(&mut self, id: RequestId, at_ns: u64) {
        self.replied += 1;
        self.replies.push(Reverse((at_ns, self.replied, id)));
    }

    /// Replies once `bytes`, ready at `ready_ns`, have crossed the interface. Data coming off the platter
    /// cross it while they are read: `streamed_ns` of the transfer may lie before they are all there.
    fn transfer_and_reply(&mut self, id: RequestId, bytes: u64, ready_ns: u64, streamed_ns: u64) {
        let span_ns = transfer_ns(bytes, self.interface_mb_s);
        let start_ns = self.interface_free_ns.max(ready_ns - span_ns.min(streamed_ns).min(ready_ns));
        let end_ns = (start_ns + span_ns).max(ready_ns);
        self.interface_free_ns = end_ns;
        self.reply(id, end_ns);
    }

    fn step(&mut self, at_ns: u64, finished: &mut Vec<FinishedRequest>) {
        while let Some(Reverse((reply_ns, _, id))) = self.replies.peek().copied() {
            if reply_ns > at_ns {
                break;
            }
            self.replies.pop();
            finished.push(FinishedRequest { id, at: ModelTime::from_ns(reply_ns) });
        }
        if let Some(active) = self.active
            && active.ends_ns <= at_ns
        {
            self.active = None;
            self.end(active.work, at_ns);
        }
        while let Some((arrival_ns, waiting)) = self.arriving.front().copied() {
            if arrival_ns > at_ns {
                break;
            }
            self.arriving.pop_front();
            self.arrive(waiting, at_ns);
        }
        self.dispatch(at_ns);
    }

    fn arrive(&mut self, waiting: WaitingRequest, now_ns: u64) {
        let ModelRequest { id, operation, length_bytes, fua, .. } = waiting.request;
        let (first, end) = (waiting.first_byte(), waiting.end_byte());
        match operation {
            ModelOperation::Flush => {
                self.flushes.push((id, waiting.number));
                self.answer_flushes(now_ns);
            }
            ModelOperation::Discard => {
                self.cache.discard(first, end);
                self.forget_reads(first, end);
                self.reply(id, now_ns);
                self.answer_flushes(now_ns);
                self.admit_blocked(now_ns);
            }
            ModelOperation::Read => {
                if self.is_dirty(first, end) || self.read_from_memory(first, end, now_ns) {
                    self.transfer_and_reply(id, length_bytes, now_ns, 0);
                } else {
                    self.enqueue(waiting, now_ns);
                }
            }
            ModelOperation::Write => {
                self.forget_reads(first, end);
                if fua || length_bytes > self.cache.limit_bytes() {
                    self.enqueue(waiting, now_ns);
                } else if self.blocked.is_empty() && self.cache.has_room_for(length_bytes) {
                    self.write_to_cache(waiting, now_ns);
                } else {
                    self.blocked.push_back(waiting);
                }
            }
        }
    }

    fn write_to_cache(&mut self, waiting: WaitingRequest, now_ns: u64) {
        self.cache.insert(waiting.first_byte(), waiting.end_byte(), waiting.number, now_ns);
        self.transfer_and_reply(waiting.request.id, waiting.request.length_bytes, now_ns, 0);
    }

    fn admit_blocked(&mut self, now_ns: u64) {
        while let Some(waiting) = self.blocked.front().copied() {
            if !self.cache.has_room_for(waiting.request.length_bytes) {
                break;
            }
            self.blocked.pop_front();
            self.write_to_cache(waiting, now_ns);
        }
    }

    fn answer_flushes(&mut self, now_ns: u64) {
        let mut waiting = std::mem::take(&mut self.flushes);
        waiting.retain(|&(id, number)| {
            let draining = match self.active {
                Some(ActiveRequest { work: HddWork::Drain { duty, .. }, .. }) => duty <= number,
                _ => false,
            };
            let owed = draining || self.cache.owes(number);
            if !owed {
                self.reply(id, now_ns);
            }
            owed
        });
        self.flushes = waiting;
    }

    /// Whether the write-back cache has the range, as it waits or while it is being written.
    fn is_dirty(&self, first: u64, end: u64) -> bool {
        let draining = match self.active {
            Some(ActiveRequest { work: HddWork::Drain { first_byte, end_byte, .. }, .. }) => {
                first_byte <= first && end <= end_byte
            }
            _ => false,
        };
        draining || self.cache.covers(first, end)
    }

    /// Whether the disk's memory has the range; a read-ahead that serves it goes on.
    fn read_from_memory(&mut self, first: u64, end: u64, now_ns: u64) -> bool {
        let limit = (end + self.read_ahead_bytes).min(self.capacity_bytes);
        let mut ahead = self.ahead.take();
        let mut hit = false;
        if let Some(ahead) = &mut ahead
            && ahead.segment_first_byte <= first
            && end <= ahead.reached(&self.geometry, now_ns)
        {
            hit = true;
            // The memory that it has is for a window behind what the host reads.
            ahead.segment_first_byte =
                ahead.segment_first_byte.max(end.saturating_sub(self.read_ahead_bytes));
            if ahead.is_over(&self.geometry, now_ns) {
                let at_byte = ahead.reached(&self.geometry, now_ns);
                let place = self.geometry.place(at_byte.saturating_sub(1));
                if at_byte < limit {
                    ahead.resume(now_ns + self.reach_ns(&place, at_byte, false, now_ns), limit);
                }
            } else {
                ahead.extend(limit);
            }
        }
        self.ahead = ahead;
        hit || self.segments.holds(first, end)
    }

    fn forget_reads(&mut self, first: u64, end: u64) {
        self.segments.forget(first, end);
        // Rather than be cut in two, the read-ahead starts again after the next read.
        if let Some(ahead) = &self.ahead
            && ahead.touches(first, end)
        {
            self.ahead = None;
        }
    }

    /// Gives the arm something to do.
    fn dispatch(&mut self, now_ns: u64) {
        if self.active.is_some() || (self.queue.is_empty() && self.cache.is_empty()) {
            return;
        }
        // Reading on ends here: where did it get to?
        let mut stream = None;
        if let Some(mut ahead) = self.ahead.take() {
            let reached = ahead.reached(&self.geometry, now_ns);
            self.head_byte = reached;
            self.segments.keep(ahead.segment_first_byte, reached);
            stream = Some((reached, ahead));
        }
        match self.choose(now_ns, stream.as_ref()) {
            Some(ArmCandidate::Host(index)) => {
                if let Some(waiting) = self.dequeue(index, now_ns) {
                    self.start(waiting, stream, now_ns);
                }
            }
            Some(ArmCandidate::Drain(first_byte)) => {
                if let Some(extent) = self.cache.take(first_byte) {
                    let reach_ns = self.reach_ns(&self.head_place(), first_byte, true, now_ns);
                    let ends_ns = now_ns + reach_ns + self.geometry.run_ns(first_byte, extent.end_byte);
                    let work = HddWork::Drain { first_byte, end_byte: extent.end_byte, duty: extent.duty };
                    self.active = Some(ActiveRequest { work, ends_ns });
                }
            }
            None => {}
        }
    }

    fn start(&mut self, waiting: WaitingRequest, stream: Option<(u64, ReadAhead)>, now_ns: u64) {
        let (first, end) = (waiting.first_byte(), waiting.end_byte());
        let write = waiting.request.operation == ModelOperation::Write;
        let (work, ends_ns) = match stream {
            Some((reached, mut ahead)) if !write && continues(&waiting, reached, &ahead) => {
                let ends_ns = if ahead.is_over(&self.geometry, now_ns) {
                    let reach_ns = self.reach_ns(&self.head_place(), reached, false, now_ns);
                    now_ns + reach_ns + self.geometry.run_ns(reached, end)
                } else {
                    ahead.reaches_at_ns(&self.geometry, end).max(now_ns)
                };
                let segment =
                    ahead.segment_first_byte.max(end.saturating_sub(self.read_ahead_bytes)).min(first);
                (HddWork::Read(waiting, segment), ends_ns)
            }
            _ => {
                let reach_ns = self.reach_ns(&self.head_place(), first, write, now_ns);
                let ends_ns = now_ns + reach_ns + self.geometry.run_ns(first, end);
                (if write { HddWork::Write(waiting) } else { HddWork::Read(waiting, first) }, ends_ns)
            }
        };
        self.active = Some(ActiveRequest { work, ends_ns });
    }

    fn end(&mut self, work: HddWork, now_ns: u64) {
        match work {
            HddWork::Read(waiting, segment_first_byte) => {
                let (first, end) = (waiting.first_byte(), waiting.end_byte());
                let streamed_ns = self.geometry.run_ns(first, end);
                self.transfer_and_reply(
                    waiting.request.id,
                    waiting.request.length_bytes,
                    now_ns,
                    streamed_ns,
                );
                self.head_byte = end;
                let limit = (end + self.read_ahead_bytes).min(self.capacity_bytes);
                // At the end of a track the head has yet to switch.
                let reach_ns =
                    if end < limit { self.reach_ns(&self.head_place(), end, false, now_ns) } else { 0 };
                self.ahead = Some(ReadAhead::start(segment_first_byte, end, now_ns + reach_ns, limit));
            }
            HddWork::Write(waiting) => {
                let (first, end) = (waiting.first_byte(), waiting.end_byte());
                self.head_byte = end;
                self.cache.drop_older(first, end, waiting.number);
                self.segments.forget(first, end);
                self.reply(waiting.request.id, now_ns);
                self.answer_flushes(now_ns);
                self.admit_blocked(now_ns);
            }
            HddWork::Drain { end_byte, .. } => {
                self.head_byte = end_byte;
                self.answer_flushes(now_ns);
                self.admit_blocked(now_ns);
            }
        }
    }
}

/// Whether a read goes on where the read-ahead, which has come to `reached`, is reading.
fn continues(waiting: &WaitingRequest, reached: u64, ahead: &ReadAhead) -> bool {
    ahead.segment_first_byte <= waiting.first_byte()
        && waiting.first_byte() <= reached
        && reached < waiting.end_byte()
}

impl MediumModel for HddModel {
    fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    fn submit(&mut self, request: ModelRequest, now: ModelTime) {
        let waiting = WaitingRequest { request, number: self.next_number, eligible_ns: now.as_ns() };
        self.next_number += 1;
        self.arriving.push_back((now.as_ns() + self.command_ns, waiting));
    }

    fn next_completion(&self) -> Option<ModelTime> {
        self.next_event_ns().map(ModelTime::from_ns)
    }

    fn complete(&mut self, now: ModelTime, finished: &mut Vec<FinishedRequest>) {
        while let Some(at_ns) = self.next_event_ns() {
            if at_ns > now.as_ns() {
                break;
            }
            self.step(at_ns, finished);
        }
    }

    fn absorb(&mut self, request: ModelRequest) {
        let (first, end) = (request.offset_bytes, request.offset_bytes + request.length_bytes);
        match request.operation {
            ModelOperation::Read => {
                self.ahead = None;
                self.segments.keep(first.max(end.saturating_sub(self.read_ahead_bytes)), end);
                self.head_byte = end;
            }
            ModelOperation::Write => {
                // As if the cache had drained at once.
                self.cache.discard(first, end);
                self.forget_reads(first, end);
                self.head_byte = end;
            }
            ModelOperation::Discard => {
                self.cache.discard(first, end);
                self.forget_reads(first, end);
            }
            ModelOperation::Flush => {
                for extent in self.cache.extents().collect::<Vec<_>>() {
                    self.cache.take(extent.first_byte);
                }
            }
        }
    }

    fn unflushed(&self) -> Vec<(u64, u64)> {
        let draining = match self.active {
            Some(ActiveRequest { work: HddWork::Drain { first_byte, end_byte, .. }, .. }) => {
                Some((first_byte, end_byte))
            }
            _ => None,
        };
        self.cache.extents().map(|extent| (extent.first_byte, extent.end_byte)).chain(draining).collect()
    }
}
