//! Pieces of pages as they change, by server-sent events: one stream for all that a browser has open.
//! <https://html.spec.whatwg.org/multipage/server-sent-events.html>

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures_core::Stream;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{self, Receiver, Sender};

use super::ServerShared;
use super::answer::{ActionRefusal, PageAnswer};
use super::work::WorkKind;
use crate::drawn::PagePiece;
use crate::page::PageTopic;

/// Open at once. Who comes later asks again and again instead.
pub(super) const MAX_STREAMS: usize = 256;
/// Of one stream.
pub(super) const MAX_TOPICS: usize = 8;
const INTERVAL: Duration = Duration::from_secs(1);
/// Between signs of life, in intervals.
const SIGN_EVERY: u32 = 15;
/// Messages that a slow reader may be behind.
const BEHIND: usize = 2;
/// Intervals that it may stay so far behind.
const MAX_INTERVALS_BEHIND: u32 = 20;

/// By TLS, what is sent is copied part by part: no part is longer.
const MAX_PART_BYTES: usize = 16 << 10;

/// In parts, which all who are sent the same share.
type StreamMessage = VecDeque<Bytes>;

/// A reader of a channel.
struct StreamMessages {
    receiver: Receiver<StreamMessage>,
    /// The rest of the message that is being sent.
    rest: StreamMessage,
}

impl Stream for StreamMessages {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(mut part) = self.rest.pop_front() {
                if part.len() > MAX_PART_BYTES {
                    // The same bytes, in two pieces.
                    let rest = part.split_off(MAX_PART_BYTES);
                    self.rest.push_front(rest);
                }
                return Poll::Ready(Some(Ok(part)));
            }
            match ready!(self.receiver.poll_recv(context)) {
                Some(message) => self.rest = message,
                None => return Poll::Ready(None),
            }
        }
    }
}

pub(super) fn open(shared: &Arc<ServerShared>, topics: Vec<PageTopic>) -> Result<PageAnswer, ActionRefusal> {
    let place = shared.streams.take().ok_or_else(|| ActionRefusal::busy("too many streams are open"))?;
    let (sender, receiver) = mpsc::channel(BEHIND);
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        feed(shared, topics, sender).await;
        drop(place);
    });
    let messages = StreamMessages { receiver, rest: StreamMessage::new() };
    Ok(PageAnswer::from_body("text/event-stream", Body::from_stream(messages)))
}

/// Sends what has changed until the reader goes, or does not keep up.
async fn feed(shared: Arc<ServerShared>, topics: Vec<PageTopic>, sender: Sender<StreamMessage>) {
    // Of each piece that was sent, so that it is sent again only when it is another one.
    let mut sent: HashMap<(usize, String), u64> = HashMap::new();
    let (mut quiet, mut lag) = (0, 0);
    loop {
        let message = changed(&shared, &topics, &mut sent).await;
        quiet += 1;
        let message = match message {
            None if quiet < SIGN_EVERY => None,
            None => Some(VecDeque::from([Bytes::from_static(b":\n\n")])),
            some => some,
        };
        if let Some(message) = message {
            quiet = 0;
            match sender.try_send(message) {
                Ok(()) => lag = 0,
                Err(TrySendError::Closed(_)) => return,
                Err(TrySendError::Full(_)) => {
                    lag += 1;
                    // Everything anew, once there is room.
                    sent.clear();
                    if lag > MAX_INTERVALS_BEHIND {
                        return;
                    }
                }
            }
        }
        if sender.is_closed() {
            return;
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

async fn changed(
    shared: &Arc<ServerShared>,
    topics: &[PageTopic],
    sent: &mut HashMap<(usize, String), u64>,
) -> Option<StreamMessage> {
    let mut message = StreamMessage::new();
    for (index, topic) in topics.iter().enumerate() {
        let (hub, asked) = (Arc::clone(shared), topic.clone());
        let Ok(turn) = shared.work.turn(WorkKind::Draw).await else { continue };
        let drawn = turn.spend(move || hub.drawn.fragments(&hub.hub, &asked)).await;
        let Ok(Ok(fragments)) = drawn else { continue };
        let mut is_first = true;
        let is_new =
            |piece: &&PagePiece| sent.insert((index, piece.id.clone()), piece.hash) != Some(piece.hash);
        for piece in fragments.iter().filter(is_new) {
            let before: &'static [u8] =
                if std::mem::take(&mut is_first) { b"data: {\"pieces\":{" } else { b"," };
            message.extend([Bytes::from_static(before), piece.json.clone()]);
        }
        if !is_first {
            let topic = serde_json::Value::from(topic.to_string());
            // JSON has no line breaks, which would end the data.
            message.push_back(format!("}},\"topic\":{topic}}}\n\n").into());
        }
    }
    (!message.is_empty()).then_some(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_piece_is_sent_in_parts_without_copy() {
        let (sender, receiver) = mpsc::channel(1);
        let whole = Bytes::from(vec![7; 3 * MAX_PART_BYTES + 5]);
        sender.try_send(VecDeque::from([Bytes::from_static(b"first"), whole.clone()])).unwrap();
        drop(sender);
        let mut messages = StreamMessages { receiver, rest: StreamMessage::new() };
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut parts = Vec::new();
        while let Poll::Ready(Some(Ok(part))) = Pin::new(&mut messages).poll_next(&mut context) {
            parts.push(part);
        }
        let lengths: Vec<usize> = parts.iter().map(Bytes::len).collect();
        assert_eq!(lengths, [5, MAX_PART_BYTES, MAX_PART_BYTES, MAX_PART_BYTES, 5]);
        assert_eq!(parts[1].as_ptr(), whole.as_ptr());
    }
}
