//! The end of a connection whose client still sends. A request may be refused before its body has been read. A plain
//! close would then reset the connection, and a reset takes the answer away from a client that has not read it yet
//! (RFC 9112, section 9.6). So the gateway closes its own direction first, and discards what comes for a while.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Sleep;

/// Clients have read the answer by then, and seen that they need not send the rest.
const LINGER_IN: Duration = Duration::from_secs(5);
/// A client that sends more than this without a look at the answer is not waited for.
const LINGER_BYTES: u64 = 256 << 20;
const PIECE_BYTES: usize = 16 << 10;

/// See the module.
pub(super) struct LingeringClose {
    until: Pin<Box<Sleep>>,
    left_bytes: u64,
}

impl LingeringClose {
    pub(super) fn begin() -> LingeringClose {
        LingeringClose { until: Box::pin(tokio::time::sleep(LINGER_IN)), left_bytes: LINGER_BYTES }
    }

    /// Ready once the client has closed its direction as well, or has had its time.
    pub(super) fn poll(
        &mut self,
        mut stream: Pin<&mut impl AsyncRead>,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        let mut bytes = [0; PIECE_BYTES];
        while self.left_bytes > 0 && self.until.as_mut().poll(context).is_pending() {
            let mut buffer = ReadBuf::new(&mut bytes);
            match stream.as_mut().poll_read(context, &mut buffer) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.left_bytes = self.left_bytes.saturating_sub(buffer.filled().len() as u64);
                }
                // It has closed, or its connection is broken.
                Poll::Ready(_) => break,
            }
        }
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    async fn linger(stream: &mut (impl AsyncRead + Unpin)) -> Duration {
        let (begun, mut lingering) = (tokio::time::Instant::now(), LingeringClose::begin());
        std::future::poll_fn(|context| lingering.poll(Pin::new(&mut *stream), context)).await;
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn lingering_ends_with_client_or_its_time() {
        let (mut client, mut own) = tokio::io::duplex(64 << 10);
        let sending = async move {
            client.write_all(&vec![0; 1 << 20]).await.unwrap();
        };
        let ((), waited) = tokio::join!(sending, linger(&mut own));
        assert_eq!(waited, Duration::ZERO, "the client has closed");
        let (_silent, mut own) = tokio::io::duplex(1);
        assert_eq!(linger(&mut own).await, LINGER_IN);
    }

    #[tokio::test(start_paused = true)]
    async fn endless_body_is_not_read_to_its_end() {
        let mut endless = tokio::io::repeat(7);
        assert!(linger(&mut endless).await < LINGER_IN);
    }
}
