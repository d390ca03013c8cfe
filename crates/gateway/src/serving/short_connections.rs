//! Ports whose requests are answered at once: for probes that come from other hosts (`health_listen`: load balancers, and
//! the kubelet), and for those who run the gateway. Clients that hold connections open keep nobody else from asking.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// Beyond these the oldest connection goes. A client asks at once and is answered at once; one that is still there says
/// nothing.
const MAX_CONNECTIONS: usize = 64;
/// All of a connection. A probe gives up sooner; the figures of many buckets may come over a slow link.
const WHOLE_IN: Duration = Duration::from_secs(10);
const MAX_HEAD_BYTES: usize = 8 << 10;
/// After an error of `accept` (no descriptors left, for example).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers for as long as it is waited for.
pub(super) async fn serve<Answer>(listener: Arc<TcpListener>, answer: Answer)
where
    Answer: Fn(&Request<Incoming>) -> Response<Full<Bytes>> + Clone + Send + 'static,
{
    let mut under_way: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        under_way.retain(|connection| !connection.is_finished());
        while under_way.len() >= MAX_CONNECTIONS {
            if let Some(oldest) = under_way.pop_front() {
                oldest.abort();
            }
        }
        let connection = tokio::spawn(tokio::time::timeout(WHOLE_IN, serve_one(stream, answer.clone())));
        under_way.push_back(connection.abort_handle());
    }
}

async fn serve_one<Answer>(stream: TcpStream, answer: Answer)
where
    Answer: Fn(&Request<Incoming>) -> Response<Full<Bytes>> + Send + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = answer(&request);
        async move { Ok::<_, Infallible>(answer) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .max_buf_size(MAX_HEAD_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // A client that goes away is no news.
    drop(connection.await);
}
