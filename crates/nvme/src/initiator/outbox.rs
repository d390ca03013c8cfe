//! A connection's pending output. Putting something in never waits for the other side.
//!
//! A thread that finds nobody sending does it itself, with what others put in meanwhile, as long as the socket takes it
//! at once. A thread that waits for the socket sends the rest.
//!
//! The thread that receives is the exception: what it puts in while it deals with many answers that came together goes
//! out together, before it waits for more.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use underlay_sync::{Condvar, Mutex, MutexGuard};

use std::sync::Arc;
use std::time::Duration;

use super::exchange::SharedBuffer;
use crate::pdu::{DIGEST_BYTES, EncodedHeader};
use crate::stream::ByteStream;

/// A PDU as it is sent.
pub(super) struct OutgoingFrame {
    pub head: EncodedHeader,
    pub data: Option<SharedBuffer>,
    pub digest: Option<[u8; DIGEST_BYTES]>,
}

impl OutgoingFrame {
    fn parts(&self) -> [&[u8]; 3] {
        let data = self.data.as_ref().map_or(&[][..], SharedBuffer::as_bytes);
        [self.head.as_bytes(), data, self.digest.as_ref().map_or(&[][..], |digest| digest)]
    }

    fn len(&self) -> usize {
        self.parts().iter().map(|part| part.len()).sum()
    }
}

/// PDUs of one system call.
const MAX_FRAMES: usize = 32;

thread_local! {
    /// The address of the outbox whose connection this thread receives from.
    static RECEIVED_FROM: Cell<usize> = const { Cell::new(0) };
}

pub(super) struct HostOutbox {
    stream: Arc<dyn ByteStream>,
    state: Mutex<HostOutboxState>,
    /// Signalled for the waiting thread.
    changed: Condvar,
}

#[derive(Default)]
struct HostOutboxState {
    frames: VecDeque<OutgoingFrame>,
    /// Of the first frame.
    sent_bytes: usize,
    /// A thread is sending, and may have taken the first frames out.
    is_sending: bool,
    /// The socket takes nothing now.
    is_stuck: bool,
    is_closed: bool,
}

impl HostOutbox {
    pub(super) fn new(stream: Arc<dyn ByteStream>) -> HostOutbox {
        HostOutbox { stream, state: Mutex::default(), changed: Condvar::new() }
    }

    pub(super) fn send(&self, frames: impl IntoIterator<Item = OutgoingFrame>) {
        let mut state = self.lock();
        if state.is_closed {
            return;
        }
        state.frames.extend(frames);
        let is_put_off = state.frames.len() < MAX_FRAMES && RECEIVED_FROM.get() == self.address();
        if !is_put_off && !state.is_sending && !state.is_stuck {
            drop(self.pump(state));
        }
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// From now on this thread calls [`HostOutbox::flush`] before it waits for anything.
    pub(super) fn flushed_by_this_thread(&self) {
        RECEIVED_FROM.set(self.address());
    }

    /// Sends what was put off.
    pub(super) fn flush(&self) {
        let state = self.lock();
        if !state.frames.is_empty() && !state.is_sending && !state.is_stuck && !state.is_closed {
            drop(self.pump(state));
        }
    }

    /// Sends nothing more, and has the other side notice.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.frames.clear();
        drop(state);
        self.stream.close();
        self.changed.notify_all();
    }

    /// The loop of the waiting thread until the outbox is closed.
    pub(super) fn wait_for_socket(&self) {
        let mut state = self.lock();
        while !state.is_closed {
            if !state.is_stuck {
                state = self.changed.wait(state);
                continue;
            }
            drop(state);
            // A closed stream is ready; the limit is for a close that came just before the wait.
            let _ = self.stream.wait(false, true, Some(Duration::from_secs(1)));
            state = self.lock();
            if state.is_stuck && !state.is_closed {
                state.is_stuck = false;
                state = self.pump(state);
            }
        }
    }

    fn pump<'a>(&'a self, mut state: MutexGuard<'a, HostOutboxState>) -> MutexGuard<'a, HostOutboxState> {
        state.is_sending = true;
        let mut batch: Vec<OutgoingFrame> = Vec::new();
        while !state.frames.is_empty() {
            let count = state.frames.len().min(MAX_FRAMES);
            batch.extend(state.frames.drain(..count));
            let skip = std::mem::take(&mut state.sent_bytes);
            drop(state);
            let outcome = send_now(&*self.stream, &batch, skip);
            state = self.lock();
            match outcome {
                Ok(sent) => {
                    let mut left = skip + sent;
                    let finished = batch.iter().take_while(|frame| {
                        let is_gone = left >= frame.len();
                        left -= if is_gone { frame.len() } else { 0 };
                        is_gone
                    });
                    let finished = finished.count();
                    batch.drain(..finished);
                    state.sent_bytes = left;
                    put_back(&mut state, &mut batch);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    state.sent_bytes = skip;
                    put_back(&mut state, &mut batch);
                    state.is_stuck = !state.is_closed;
                    self.changed.notify_all();
                    break;
                }
                Err(_) => {
                    // The connection's reader learns of its end and reports it.
                    state.is_closed = true;
                    state.frames.clear();
                    self.stream.close();
                    self.changed.notify_all();
                    break;
                }
            }
        }
        state.is_sending = false;
        state
    }

    fn lock(&self) -> MutexGuard<'_, HostOutboxState> {
        self.state.lock()
    }
}

fn put_back(state: &mut HostOutboxState, batch: &mut Vec<OutgoingFrame>) {
    if state.is_closed {
        batch.clear();
        return;
    }
    while let Some(frame) = batch.pop() {
        state.frames.push_front(frame);
    }
}

/// How many bytes were taken.
fn send_now(stream: &dyn ByteStream, frames: &[OutgoingFrame], mut skip: usize) -> io::Result<usize> {
    let mut places = Vec::with_capacity(frames.len() * 3);
    for part in frames.iter().flat_map(|frame| frame.parts()) {
        let skipped = skip.min(part.len());
        skip -= skipped;
        if skipped < part.len() {
            places.push(IoSlice::new(&part[skipped..]));
        }
    }
    loop {
        match stream.send(&places) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::pdu::{Pdu, PduFraming};

    fn stream(socket: TcpStream) -> Arc<dyn ByteStream> {
        Arc::new(crate::stream::TcpSocket::new(socket).unwrap())
    }

    /// Far more than a socket takes at once: everything arrives, in order, and `send` never waited for it.
    #[test]
    fn stalled_peer_blocks_no_sender() {
        const FRAMES: usize = 64;
        const BYTES: usize = 1 << 20;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        let outbox = Arc::new(HostOutbox::new(stream(sender)));
        let waiting = {
            let outbox = Arc::clone(&outbox);
            std::thread::spawn(move || outbox.wait_for_socket())
        };
        let framing = PduFraming::default();
        let pdu = Pdu::CapsuleCmd([7; 64]);
        for number in 0..FRAMES {
            let data = SharedBuffer::new(vec![number as u8; BYTES]);
            let head = framing.head(&pdu, BYTES);
            outbox.send([OutgoingFrame { head, data: Some(data), digest: Some([number as u8; 4]) }]);
        }
        let head_bytes = framing.head(&pdu, BYTES).as_bytes().len();
        let mut frame = vec![0; head_bytes + BYTES + 4];
        for number in 0..FRAMES {
            receiver.read_exact(&mut frame).unwrap();
            assert!(frame[head_bytes..].iter().all(|byte| *byte == number as u8), "frame {number}");
        }
        outbox.close();
        waiting.join().unwrap();
        assert_eq!(receiver.read(&mut frame).unwrap(), 0);
    }

    /// The thread that receives sends many commands by one call, and never keeps one for itself.
    #[test]
    fn deferred_answers_leave_on_flush() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let outbox = HostOutbox::new(stream(TcpStream::connect(listener.local_addr().unwrap()).unwrap()));
        let (mut receiver, _) = listener.accept().unwrap();
        let frame = || OutgoingFrame {
            head: PduFraming::default().head(&Pdu::CapsuleCmd([7; 64]), 0),
            data: None,
            digest: None,
        };
        let waiting = |outbox: &HostOutbox| outbox.lock().frames.len();
        outbox.flushed_by_this_thread();
        outbox.send([frame(), frame()]);
        assert_eq!(waiting(&outbox), 2);
        outbox.flush();
        assert_eq!(waiting(&outbox), 0);
        // Another thread's takes along what was put off.
        outbox.send([frame()]);
        std::thread::scope(|scope| drop(scope.spawn(|| outbox.send([frame()]))));
        assert_eq!(waiting(&outbox), 0);
        // No more is put off than one call sends.
        outbox.send((0..MAX_FRAMES).map(|_| frame()));
        assert_eq!(waiting(&outbox), 0);
        outbox.close();
        let mut bytes = Vec::new();
        receiver.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len(), (4 + MAX_FRAMES) * 72);
    }
}
