//! Beginning anew in the other area, with a snapshot.

use std::sync::Arc;
use underlay_sync::planted::{PlantedBug, is_planted};

use super::format::{self, AreaHeader, BLOCK_BYTES};
use super::{JournalInner, MAX_BATCH_BYTES, PIECE_BYTES, void};
use crate::device::{DeviceError, DeviceRequest};
use crate::layers::join::repeat;

impl JournalInner {
    pub(super) fn begin_checkpoint(self: &Arc<Self>) {
        let source = self.source.lock().clone();
        let Some(source) = source else {
            return self.fail(&DeviceError::Io(
                "the journal is full and has no snapshot to start again from".into(),
            ));
        };
        let snapshot = source();
        let (target, suspect, generation) = {
            let state = self.lock();
            (1 - state.active, state.other_area_suspect, state.header.generation + 1)
        };
        let header = AreaHeader {
            kind: self.kind,
            identity: self.identity,
            generation,
            snapshot_bytes: snapshot.state.len() as u64,
            snapshot_crc: crc32fast::hash(&snapshot.state),
        };
        if header.batches_start() + BLOCK_BYTES > self.area_bytes {
            return self.fail(&DeviceError::Io(format!(
                "a snapshot of {} bytes does not fit into the journal's area of {} bytes",
                snapshot.state.len(),
                self.area_bytes
            )));
        }
        let checkpoint =
            Arc::new(JournalCheckpoint { inner: Arc::clone(self), header, target, covers: snapshot.covers });
        if suspect {
            // The failed one's header must not vouch for what is written next. This one is older than the
            // active area's, whose generation is at least 1, so the difference can't wrap around.
            let data = AreaHeader { generation: generation - 2, ..void(self.kind, self.identity) }.encode();
            let next = Arc::clone(&checkpoint);
            checkpoint.write(0, data, true, move || next.write_snapshot(snapshot.state));
        } else {
            checkpoint.write_snapshot(snapshot.state);
        }
    }
}

/// A checkpoint in progress: each step begins when the one before is over.
struct JournalCheckpoint {
    inner: Arc<JournalInner>,
    header: AreaHeader,
    target: u64,
    covers: u64,
}

impl JournalCheckpoint {
    fn write(
        self: &Arc<Self>,
        inside_bytes: u64,
        data: Vec<u8>,
        fua: bool,
        next: impl FnOnce() + Send + 'static,
    ) {
        let offset_bytes = self.inner.start_bytes + self.target * self.inner.area_bytes + inside_bytes;
        self.submit(DeviceRequest::Write { offset_bytes, data, fua }, next);
    }

    fn submit(self: &Arc<Self>, request: DeviceRequest, next: impl FnOnce() + Send + 'static) {
        let checkpoint = Arc::clone(self);
        let done = move |completion: Result<Vec<u8>, DeviceError>| match completion {
            Ok(_) => next(),
            Err(error) => checkpoint.inner.fail(&error),
        };
        self.inner.device.submit(request, Box::new(done));
    }

    fn write_snapshot(self: &Arc<Self>, state: Vec<u8>) {
        if is_planted(PlantedBug::CheckpointRecurses) {
            return self.write_rest(state, 0);
        }
        let (checkpoint, mut from) = (Arc::clone(self), 0);
        // A loop, since the device may answer at once: a large snapshot has more pieces than a stack has room
        // for.
        repeat(move |next| {
            if from >= state.len() {
                return checkpoint.end_snapshot();
            }
            let piece_start = from;
            from = state.len().min(piece_start + PIECE_BYTES as usize);
            checkpoint.write_piece(piece_start, &state[piece_start..from], move || next.resume());
        });
    }

    /// As it was once, a call for each piece.
    fn write_rest(self: &Arc<Self>, state: Vec<u8>, from: usize) {
        if from >= state.len() {
            return self.end_snapshot();
        }
        let to = state.len().min(from + PIECE_BYTES as usize);
        let (checkpoint, piece) = (Arc::clone(self), state[from..to].to_vec());
        self.write_piece(from, &piece, move || checkpoint.write_rest(state, to));
    }

    fn write_piece(self: &Arc<Self>, offset: usize, piece: &[u8], next: impl FnOnce() + Send + 'static) {
        let mut data = piece.to_vec();
        data.resize(format::whole_blocks(data.len() as u64) as usize, 0);
        self.write(BLOCK_BYTES + offset as u64, data, false, next);
    }

    fn end_snapshot(self: &Arc<Self>) {
        if is_planted(PlantedBug::HeaderBeforeSnapshot) {
            return self.write_header();
        }
        let checkpoint = Arc::clone(self);
        // The header vouches for the snapshot, so the snapshot has to be durable first.
        self.submit(DeviceRequest::Flush, move || checkpoint.write_header());
    }

    fn write_header(self: &Arc<Self>) {
        // Before the write, which may reach the device even if it is answered with an error.
        self.inner.lock().other_area_suspect = true;
        let checkpoint = Arc::clone(self);
        self.write(0, self.header.encode(), true, move || checkpoint.take_over());
    }

    fn take_over(&self) {
        let stuck = {
            let mut state = self.inner.lock();
            let durable = state.appended - state.pending.len() as u64;
            let covered = self.covers.saturating_sub(durable).min(state.pending.len() as u64);
            state.pending.drain(..covered as usize);
            state.active = self.target;
            state.header = self.header;
            state.end_bytes = self.header.batches_start();
            state.sequence = 1;
            state.other_area_suspect = false;
            state.checkpoint_wanted = false;
            state.busy = false;
            for waiter in &mut state.waiters {
                // Records that the snapshot leaves out go out as a batch.
                waiter.checkpoint = false;
            }
            // The next record would have another checkpoint begin, and so on.
            let first = state.pending.front().map_or(0, |record| format::record_bytes(record.len()));
            let room = (self.inner.area_bytes - state.end_bytes).min(MAX_BATCH_BYTES);
            covered == 0 && format::batch_bytes(first) > room
        };
        if stuck {
            let problem = "a record is too long for the journal, and its snapshot leaves it out";
            return self.inner.fail(&DeviceError::Io(problem.into()));
        }
        self.inner.start_next_work();
    }
}
