//! A gateway that is open: it serves until it is to end, and then until everything is in the stores or the time for
//! that is over.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt as _};
use hyper_util::server::graceful::GracefulShutdown;

use super::accepting::{ConnectionSource, accept, accept_inner};
use super::connection::ConnectionSet;
use super::{END_LIMIT, GatewayFault, OpenEngine, ServingContext, drain, give_room, say_what_is_left, tls};
use crate::config::GatewayConfig;
use crate::engine::GatewayEngine;
use crate::supervision::LoopSupervisor;

/// How long requests of other gateways may take that came before the keys were another's.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// A connection that is broken off is gone as soon as its task has a turn.
const BREAK_OFF_IN: Duration = Duration::from_secs(1);

impl OpenEngine {
    /// Serves clients and the other gateways until the first of `signals`. Then it drains, until the stores have
    /// everything, the time for that is over, or a second signal comes. `is_serving` reports when serving begins and
    /// ends. Returns whether the stores have everything.
    ///
    /// # Errors
    /// When it can't go on.
    #[allow(clippy::too_many_arguments, reason = "a process and a simulation have each of them")]
    pub(super) async fn run<C: ConnectionSource, G: ConnectionSource>(
        &self,
        config: &GatewayConfig,
        front: &ServingContext,
        (clients, gateways): (C, Option<G>),
        acceptor: Option<&tls::TlsFrontend>,
        of_process: &LoopSupervisor,
        signals: impl Stream<Item = ()>,
        mut is_serving: impl FnMut(bool),
    ) -> Result<bool, GatewayFault> {
        let mut signals = pin!(signals);
        let connections = front.connections(self, false)?;
        let inner_connections = front.connections(self, true)?;
        give_room(&self.engine, &connections);
        let (graceful, inner_graceful) = (GracefulShutdown::new(), Arc::new(GracefulShutdown::new()));
        // They have places of their own: clients that hold all the others must not keep gateways apart.
        let most = config.limits.connections;
        let (of_inner, of_gateways) = (Arc::clone(&inner_graceful), Arc::clone(&inner_connections));
        let mut accepting_inner = Box::pin(async move {
            accept_inner(gateways, &of_gateways, acceptor, most, &of_inner).await;
        });
        is_serving(true);
        let broken = tokio::select! {
            () = accept(clients, &connections, acceptor, most, &graceful) => None,
            () = &mut accepting_inner => None,
            why = self.breaks_down(of_process) => Some(why),
            _ = signals.next() => None,
        };
        is_serving(false);
        if let Some(why) = broken {
            // Nothing can be stored, since its outcome can't be noted. A new start can.
            self.end_broken().await;
            return Err(why);
        }
        tracing::info!("stopping: no new requests are taken");
        let until = Instant::now() + config.limits.drain;
        self.engine.begin_drain();
        let (of_clients, of_gateways) = (&connections, &inner_connections);
        // Until the keys are another's, other gateways send requests for them here.
        let finish = async move {
            let handing_over = async {
                // The other half is for what has to be stored and handed over.
                end_requests(graceful, config.limits.drain / 2, of_clients, "requests").await;
                self.finish(until).await.is_stored
            };
            let is_stored = tokio::select! {
                is_stored = handing_over => is_stored,
                () = &mut accepting_inner => self.engine.is_clean(),
            };
            drop(accepting_inner);
            if let Some(inner_graceful) = Arc::into_inner(inner_graceful) {
                end_requests(inner_graceful, LAST_ANSWERS, of_gateways, "requests of other gateways").await;
            }
            // They may have written something still.
            is_stored && (self.engine.is_clean() || drain(&self.engine, until).await)
        };
        let (is_stored, close_limit) = tokio::select! {
            is_stored = finish => (is_stored, config.limits.drain.max(END_LIMIT)),
            why = self.breaks_down(of_process) => {
                say_what_is_left(&self.engine);
                self.end_broken().await;
                return Err(why);
            }
            _ = signals.next() => (ends_at_once(&self.engine), END_LIMIT),
        };
        // At a second signal, clients that are still connected get no answer to writes that are not stored.
        connections.seats.close_all();
        inner_connections.seats.close_all();
        // A disk that hangs must not keep the process, nor a second signal waiting.
        let is_closed = tokio::select! {
            is_closed = self.close_metadata(close_limit) => is_closed,
            _ = signals.next() => false,
        };
        let is_clean = self.engine.is_clean();
        if is_stored && !is_clean {
            say_what_is_left(&self.engine);
        } else if is_stored && !is_closed {
            tracing::warn!(
                "ended before the metadata were closed: run `drain` to be sure that the stores have everything"
            );
        }
        if is_closed {
            tokio::select! {
                () = self.close_cache() => {}
                _ = signals.next() => {}
            }
        }
        Ok(is_stored && is_closed && is_clean)
    }
}

/// Waits for what is in flight, and breaks off what takes longer.
async fn end_requests(graceful: GracefulShutdown, limit: Duration, connections: &ConnectionSet, what: &str) {
    let mut ending = pin!(graceful.shutdown());
    if tokio::time::timeout(limit, &mut ending).await.is_err() {
        tracing::warn!("some {what} did not end in time and are aborted");
        connections.seats.close_all();
        let _ = tokio::time::timeout(BREAK_OFF_IN, ending).await;
    }
}

/// At a second signal. Returns whether the stores have everything.
fn ends_at_once(engine: &GatewayEngine) -> bool {
    let is_clean = engine.is_clean();
    if !is_clean {
        say_what_is_left(engine);
    }
    is_clean
}
