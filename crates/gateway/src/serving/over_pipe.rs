//! Connections that come over no network: what the fuzzer sends goes the way of every request.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;

use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Semaphore;

use super::access_log::AccessLog;
use super::connection::{ANSWERS_BYTES, ConnectionSet, DOCUMENTS_KIB};
use super::request_ids::RequestIds;
use super::seats::ConnectionSeats;
use crate::engine::GatewayEngine;
use crate::memory::MemoryBudget;
use crate::s3::{BucketAddressing, KeyPermissions, PostForms, service};

const PEER: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0));
const REQUESTS: usize = 8;
const PIPE_BYTES: usize = 64 << 10;

/// See the module.
pub(crate) struct OverPipe(Arc<ConnectionSet>);

impl OverPipe {
    /// # Errors
    /// When there are no random numbers.
    pub(crate) fn new(
        engine: Arc<GatewayEngine>,
        permissions: Arc<KeyPermissions>,
    ) -> Result<OverPipe, String> {
        let slots = || Arc::new(Semaphore::new(REQUESTS));
        let addressing = Arc::new(BucketAddressing::default());
        Ok(OverPipe(Arc::new(ConnectionSet {
            service: service(Arc::clone(&engine), Arc::clone(&permissions), Arc::clone(&addressing)),
            forms: Some(PostForms::new(
                Arc::clone(&engine),
                Arc::clone(&permissions),
                Arc::clone(&addressing),
            )),
            ids: RequestIds::new()?,
            requests: Arc::default(),
            slots: slots(),
            question_slots: slots(),
            ping_slots: slots(),
            seats: ConnectionSeats::new(false),
            slot_wishes: Arc::default(),
            documents: Arc::new(Semaphore::new(DOCUMENTS_KIB)),
            answers: MemoryBudget::new(ANSWERS_BYTES),
            permissions,
            access_log: Arc::new(AccessLog::open(None).map_err(|error| error.text().to_owned())?),
            peers: None,
            engine,
            addressing,
            is_inner: false,
        })))
    }

    /// Everything that comes back for these bytes, which have to end the connection by what they say.
    pub(crate) async fn exchange(&self, bytes: &[u8]) -> Vec<u8> {
        let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
        let graceful = GracefulShutdown::new();
        let serving = Arc::clone(&self.0).serve(theirs, PEER, graceful.watcher());
        let asking = async {
            let (mut from, mut to) = tokio::io::split(ours);
            let mut answer = Vec::new();
            // An answer may come before all has been sent, and nobody takes the rest then.
            let _ = tokio::join!(to.write_all(bytes), from.read_to_end(&mut answer));
            answer
        };
        tokio::join!(serving, asking).1
    }
}
