//! Connections from clients to gateways, within this process. A dead gateway's bytes reach nobody.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use underlay_sync::Mutex;

use crate::world::SimulatedWorld;

/// The most bytes on their way, each way.
const WINDOW_BYTES: usize = 64 << 10;

struct GatewayPort {
    arrivals: UnboundedSender<GatewayStream>,
    lives: Arc<AtomicBool>,
}

/// See the module. Its clones are one.
#[derive(Clone)]
pub(crate) struct SimulatedNetwork {
    world: SimulatedWorld,
    ports: Arc<Mutex<Vec<Option<GatewayPort>>>>,
}

/// The gateway's end of a connection.
pub(crate) struct GatewayStream {
    world: SimulatedWorld,
    stream: DuplexStream,
    lives: Arc<AtomicBool>,
}

impl SimulatedNetwork {
    pub(crate) fn new(world: SimulatedWorld) -> SimulatedNetwork {
        SimulatedNetwork { world, ports: Arc::default() }
    }

    /// A new connection to a gateway.
    ///
    /// # Errors
    /// When nobody listens.
    pub(crate) async fn connect(&self, gateway: usize) -> io::Result<DuplexStream> {
        self.connect_now(gateway)
    }

    /// The same; the ports behind those of all gateways are theirs for each other.
    pub(crate) fn connect_now(&self, port: usize) -> io::Result<DuplexStream> {
        let ports = self.ports.lock();
        let port = ports.get(port).and_then(Option::as_ref).ok_or(io::ErrorKind::ConnectionRefused)?;
        let (ours, theirs) = tokio::io::duplex(WINDOW_BYTES);
        self.world.note_move();
        let wire =
            GatewayStream { world: self.world.clone(), stream: theirs, lives: Arc::clone(&port.lives) };
        port.arrivals.send(wire).map_err(|_| io::ErrorKind::ConnectionRefused)?;
        Ok(ours)
    }

    /// A gateway begins to listen.
    pub(crate) fn listen(&self, gateway: usize, lives: Arc<AtomicBool>) -> UnboundedReceiver<GatewayStream> {
        let (arrivals, receiver) = unbounded_channel();
        let mut ports = self.ports.lock();
        while ports.len() <= gateway {
            ports.push(None);
        }
        ports[gateway] = Some(GatewayPort { arrivals, lives });
        receiver
    }

    pub(crate) fn close(&self, gateway: usize) {
        if let Some(port) = self.ports.lock().get_mut(gateway) {
            *port = None;
        }
    }
}

impl GatewayStream {
    fn is_dead(&self) -> bool {
        !self.lives.load(Ordering::Relaxed)
    }
}

impl AsyncRead for GatewayStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_dead() {
            return Poll::Pending;
        }
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if polled.is_ready() {
            self.world.note_move();
        }
        polled
    }
}

impl AsyncWrite for GatewayStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_dead() {
            return Poll::Pending;
        }
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        if polled.is_ready() {
            self.world.note_move();
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.is_dead() {
            true => Poll::Pending,
            false => Pin::new(&mut self.stream).poll_shutdown(context),
        }
    }
}
