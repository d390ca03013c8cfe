//! Connections, plain or by TLS: none for long that does nothing.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use openssl::ssl::{Ssl, SslContext};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::time::{Instant, Sleep};
use tokio_openssl::SslStream;

use super::caller::SocketKind;
use super::connection_limits::ConnectionLimits;

/// A request's head comes within this time, or not at all.
const HEAD_LIMIT: Duration = Duration::from_secs(15);
/// Of a request's head, and of what is read ahead.
const BUFFER_BYTES: usize = 64 << 10;
/// A client that takes nothing of an answer for so long is dropped.
const WRITE_LIMIT: Duration = Duration::from_secs(20);
/// After an error such as too many open files.
const PAUSE: Duration = Duration::from_millis(200);

/// A TLS handshake comes to its end within this time.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// Goes on until it is dropped. With `tls`, nothing is read before a handshake in which both sides have shown who they
/// are.
pub(super) async fn accept(listener: TcpListener, router: Router, tls: Option<SslContext>) {
    let visits = ConnectionLimits::default();
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(_) => {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let visitor = visits.arrive();
        let router = router.clone().layer(Extension(visitor.clone())).layer(Extension(SocketKind::Network));
        let (tls, own) = (tls.clone(), visitor.clone());
        let task = tokio::spawn(async move {
            let stream = WriteTimeoutStream::new(stream);
            match tls {
                None => serve(stream, router).await,
                Some(context) => {
                    let shaken = tokio::time::timeout(HANDSHAKE_LIMIT, handshake(&context, stream)).await;
                    if let Ok(Some(stream)) = shaken {
                        serve(stream, router).await;
                    }
                }
            }
            drop(own);
        });
        visits.served_by(&visitor, peer.ip(), task.abort_handle());
    }
}

/// The same for programs of this user alone. They have places of their own, so that no page takes them all.
pub(super) async fn accept_own(listener: UnixListener, router: Router) {
    let visits = ConnectionLimits::default();
    let this_user = rustix::process::geteuid().as_raw();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        // Root may do whatever this user may. The socket's mode says the same, as long as nobody has changed that.
        if !stream.peer_cred().is_ok_and(|peer| peer.uid() == this_user || peer.uid() == 0) {
            continue;
        }
        let visitor = visits.arrive();
        let router = router.clone().layer(Extension(visitor.clone())).layer(Extension(SocketKind::OwnSocket));
        tokio::spawn(async move {
            serve(WriteTimeoutStream::new(stream), router).await;
            drop(visitor);
        });
    }
}

async fn handshake(
    context: &SslContext,
    stream: WriteTimeoutStream<TcpStream>,
) -> Option<SslStream<WriteTimeoutStream<TcpStream>>> {
    let mut stream = SslStream::new(Ssl::new(context).ok()?, stream).ok()?;
    Pin::new(&mut stream).accept().await.ok()?;
    Some(stream)
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, router: Router) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_LIMIT).max_buf_size(BUFFER_BYTES);
    // An error here is that of a peer that went, or was too slow.
    let _ = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)).await;
}

/// A stream on which a write that does not get on is an error after a while.
struct WriteTimeoutStream<S> {
    stream: S,
    /// Since a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteTimeoutStream<S> {
    fn new(stream: S) -> WriteTimeoutStream<S> {
        WriteTimeoutStream { stream, waiting: None }
    }

    fn judged<T>(&mut self, context: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.waiting = None;
            return outcome;
        }
        let waiting = self
            .waiting
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + WRITE_LIMIT)));
        ready!(waiting.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeoutStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeoutStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.judged(context, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.judged(context, outcome)
    }

    /// Otherwise each connection would make a copy of all that it sends.
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(context);
        self.judged(context, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_body_is_written_without_copy() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            assert!(WriteTimeoutStream::new(stream).is_write_vectored());
        });
    }
}
