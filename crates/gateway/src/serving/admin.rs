//! The port for those who run the gateway: health for anybody, figures for holders of the token.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode};
use underlay_files::{Access, read_given_secret};
use underlay_record::{GatewayClusterStatus, GatewayStatus};

use super::ReadyState;
use super::metrics::{self, RequestMetrics};
use crate::cluster::PeerClients;
use crate::config::GatewayConfig;
use crate::engine::{GatewayEngine, ImportProgress};
use crate::ownership::SlotOwnership;
use crate::supervision::LoopSupervisor;

/// In the local directory, if the configuration names no other.
const TOKEN_FILE: &str = "admin-token";

pub(super) struct AdminService {
    pub(super) progress: ImportProgress,
    /// Nothing as long as the gateway is being opened.
    pub(super) opened: OnceLock<OpenGateway>,
    pub(super) requests: Arc<RequestMetrics>,
    pub(super) readiness: Arc<ReadyState>,
    pub(super) token: String,
    /// Of what runs whether the gateway is open or not.
    pub(super) supervisor: LoopSupervisor,
}

/// The sources of metrics once the gateway is open.
pub(super) struct OpenGateway {
    engine: Arc<GatewayEngine>,
    cluster: Option<(Arc<SlotOwnership>, Arc<PeerClients>)>,
}

/// The token, which is made where there is none and `make` says so.
///
/// # Errors
/// When it can't be read, or others can.
pub(crate) fn token_of(config: &GatewayConfig, make: bool) -> Result<String, String> {
    let path: PathBuf = match &config.admin.token {
        Some(path) => path.clone(),
        None => config.local.directory.join(TOKEN_FILE),
    };
    if config.admin.token.is_none() && make && !path.exists() {
        let mut random = [0; 24];
        getrandom::fill(&mut random).map_err(|error| format!("no random numbers: {error}"))?;
        let text = format!("{}\n", base16ct::lower::encode_string(&random));
        underlay_files::replace(&path, Access::Private, text.as_bytes())
            .map_err(|error| said(&path, &error))?;
    }
    let token = read_given_secret(&path, 4096).map_err(|error| said(&path, &error))?.trim().to_owned();
    match token.len() {
        0..16 => Err(said(&path, &"the token has fewer than 16 characters")),
        _ => Ok(token),
    }
}

fn said(path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("the token for the admin port, {}: {error}", path.display())
}

impl AdminService {
    /// From now on there is a gateway to tell of.
    pub(super) fn opens(
        &self,
        engine: Arc<GatewayEngine>,
        cluster: Option<(Arc<SlotOwnership>, Arc<PeerClients>)>,
    ) {
        // It is opened once.
        let _ = self.opened.set(OpenGateway { engine, cluster });
    }

    pub(super) fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        if request.method() != Method::GET {
            return plain(StatusCode::METHOD_NOT_ALLOWED, "only GET\n".to_owned());
        }
        match (request.uri().path(), self.opened.get()) {
            ("/health/live", Some(opened)) if opened.engine.is_broken() => plain(
                StatusCode::SERVICE_UNAVAILABLE,
                "the metadata can no longer be written: see the log, and start the gateway again\n"
                    .to_owned(),
            ),
            ("/health/live", _) => plain(StatusCode::OK, "alive\n".to_owned()),
            ("/health/ready", Some(opened)) if self.readiness.is_ready() && opened.can_serve() => {
                plain(StatusCode::OK, format!("ready\n{}{}", opened.said_of_away(), opened.said_of_disk()))
            }
            ("/health/ready", Some(_)) => plain(StatusCode::SERVICE_UNAVAILABLE, "not ready\n".to_owned()),
            ("/health/ready", None) => self.not_yet(),
            ("/metrics" | "/status", _) if !self.is_allowed(request) => plain(
                StatusCode::UNAUTHORIZED,
                "expected `Authorization: Bearer TOKEN` with the token of the gateway's admin port\n"
                    .to_owned(),
            ),
            ("/metrics", opened) => {
                let mut text = metrics::opening_text(opened.is_none(), self.progress.listed());
                if let Some(opened) = opened {
                    text.push_str(&metrics::text(&self.status(opened), &self.requests));
                }
                plain(StatusCode::OK, text)
            }
            ("/status", Some(opened)) => {
                let status = self.status(opened);
                plain(StatusCode::OK, serde_json::to_string(&status).unwrap_or_default())
            }
            ("/status", None) => self.not_yet(),
            _ => plain(StatusCode::NOT_FOUND, "/health/live, /health/ready, /metrics, /status\n".to_owned()),
        }
    }

    /// The answer to a probe from anywhere: yes or no, and no details.
    pub(super) fn answer_probe<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return plain(StatusCode::METHOD_NOT_ALLOWED, "only GET\n".to_owned());
        }
        let is_well = match (request.uri().path(), self.opened.get()) {
            ("/health/live", opened) => opened.is_none_or(|opened| !opened.engine.is_broken()),
            ("/health/ready", opened) => {
                opened.is_some_and(|opened| self.readiness.is_ready() && opened.can_serve())
            }
            _ => return plain(StatusCode::NOT_FOUND, "/health/live, /health/ready\n".to_owned()),
        };
        match is_well {
            true => plain(StatusCode::OK, "yes\n".to_owned()),
            false => plain(StatusCode::SERVICE_UNAVAILABLE, "no\n".to_owned()),
        }
    }

    fn status(&self, opened: &OpenGateway) -> GatewayStatus {
        let mut status = opened.status(&self.requests);
        for (name, count) in self.supervisor.panics() {
            *status.panics.entry(name).or_default() += count;
        }
        status
    }

    fn not_yet(&self) -> Response<Full<Bytes>> {
        let text = format!("opening: stores have listed {} objects so far\n", self.progress.listed());
        plain(StatusCode::SERVICE_UNAVAILABLE, text)
    }

    fn is_allowed(&self, request: &Request<Incoming>) -> bool {
        let token = request.headers().get(hyper::header::AUTHORIZATION);
        let token = token.and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        // How long it takes must not tell how much of it is right.
        token.is_some_and(|token| {
            token.len() == self.token.len() && openssl::memcmp::eq(token, self.token.as_bytes())
        })
    }
}

impl OpenGateway {
    /// Whether it can: in a cluster nothing is answered without a lease.
    fn can_serve(&self) -> bool {
        let has_lease = self.cluster.as_ref().is_none_or(|(ownership, _)| ownership.has_lease());
        has_lease && !self.engine.is_broken()
    }

    /// It goes on serving its data, so it is ready all the same. Anybody may ask, so it names no bucket.
    fn said_of_away(&self) -> String {
        match self.engine.away_stores().len() {
            0 => String::new(),
            count => format!(
                "{count} stores are directories that are not there, or are not the ones that are expected: are they mounted? /status names the buckets\n"
            ),
        }
    }

    /// Reads go on, and so does what makes room.
    fn said_of_disk(&self) -> &'static str {
        match self.engine.disk().is_full() {
            true => "the local disk is full: writes are answered with SlowDown\n",
            false => "",
        }
    }

    fn status(&self, requests: &RequestMetrics) -> GatewayStatus {
        let cluster = self.cluster.as_ref().map(|(ownership, peers)| {
            let (served_slots, dirty_slots, nowhere_slots) = ownership.counts();
            GatewayClusterStatus {
                served_slots: served_slots as u64,
                dirty_slots: dirty_slots as u64,
                nowhere_slots: nowhere_slots as u64,
                lease_left_s: ownership.lease_left().as_secs_f64(),
                forwarded: peers.forwarded.load(std::sync::atomic::Ordering::Relaxed),
            }
        });
        GatewayStatus { cluster, ..metrics::status(&self.engine, requests) }
    }
}

fn plain(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let kind = hyper::header::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, kind);
    response
}
