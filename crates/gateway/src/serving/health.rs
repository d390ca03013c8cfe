//! The port for probes that come from other hosts (`health_listen`): load balancers, and the kubelet. Anybody may reach
//! it, so it says whether the gateway is well and nothing else, and clients that hold connections open keep nobody else
//! from asking.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use super::admin::AdminService;

/// Beyond these the oldest connection goes. A probe asks at once and is answered at once; one that is still there says
/// nothing.
const MAX_CONNECTIONS: usize = 64;
/// All of a connection. Probes give up sooner.
const WHOLE_IN: Duration = Duration::from_secs(5);
const MAX_HEAD_BYTES: usize = 8 << 10;
/// After an error of `accept` (no descriptors left, for example).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers for as long as it is waited for.
pub(super) async fn serve(listener: Arc<TcpListener>, admin: Arc<AdminService>) {
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
        let connection = tokio::spawn(tokio::time::timeout(WHOLE_IN, answer(stream, Arc::clone(&admin))));
        under_way.push_back(connection.abort_handle());
    }
}

async fn answer(stream: TcpStream, admin: Arc<AdminService>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = admin.answer_probe(&request);
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
