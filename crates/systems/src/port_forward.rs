//! A door out of a network namespace: what connects to an address in it is connected to one host outside of it, and to
//! no other.
//!
//! Bytes pass unread, so TLS goes from end to end.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use underlay_sync::Mutex;

use crate::network_namespace::NetworkNamespace;
use crate::tun_link::CarriedBytes;

/// Where a door is in its namespace. No server there listens at this address.
pub(crate) const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 1, 1, 1);
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// A client that opens more at once has forgotten to close them.
const MAX_CONNECTIONS: usize = 1024;
const PART_BYTES: usize = 32 << 10;
/// Attempts that failed for this long, and none that didn't, are no accident.
const GONE: Duration = Duration::from_secs(20);
/// Two failures that are further apart than an attempt takes are two accidents.
const APART: Duration = Duration::from_secs(15);

/// The target of a port forward.
#[derive(Clone, Debug)]
pub(crate) enum ForwardTarget {
    /// Looked up for each connection: the addresses of a large store change.
    Name(String, u16),
    /// These addresses alone.
    Addresses(Vec<SocketAddr>),
}

/// A door that is open until it is dropped.
#[derive(Debug)]
pub(crate) struct NetworkDoor {
    listener: TcpListener,
    passage: Arc<ForwardedConnection>,
    porter: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct ForwardedConnection {
    behind: ForwardTarget,
    ended: AtomicBool,
    sent: AtomicU64,
    received: AtomicU64,
    /// Connections with a thread, also those whose other end is not connected yet.
    attended: AtomicUsize,
    /// Both ends of each connection, by a number.
    open: Mutex<BTreeMap<u64, [TcpStream; 2]>>,
    failures: Mutex<Option<ConnectFailures>>,
}

/// Attempts to connect that failed, since the last one that did not.
#[derive(Debug)]
struct ConnectFailures {
    first: Instant,
    last: Instant,
    why: String,
}

impl NetworkDoor {
    /// Opens one at `port` of [`ADDRESS`] in `namespace`.
    ///
    /// # Errors
    /// When that can't be listened at.
    pub(crate) fn open(
        namespace: &NetworkNamespace,
        port: u16,
        target: ForwardTarget,
    ) -> io::Result<NetworkDoor> {
        let listener =
            namespace.within(|| TcpListener::bind(SocketAddr::new(IpAddr::V4(ADDRESS), port)))??;
        let passage = Arc::new(ForwardedConnection {
            behind: target,
            ended: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            attended: AtomicUsize::new(0),
            open: Mutex::default(),
            failures: Mutex::default(),
        });
        let (own, passed) = (listener.try_clone()?, Arc::clone(&passage));
        let porter =
            std::thread::Builder::new().name("door".to_owned()).spawn(move || passed.attend(&own))?;
        Ok(NetworkDoor { listener, passage, porter: Some(porter) })
    }

    /// The bytes passed so far: out first.
    pub(crate) fn carried(&self) -> CarriedBytes {
        CarriedBytes {
            near_to_far: self.passage.sent.load(Ordering::Relaxed),
            far_to_near: self.passage.received.load(Ordering::Relaxed),
        }
    }

    /// Why the last attempt to connect failed, if it did.
    pub(crate) fn last_failure(&self) -> Option<String> {
        self.passage.failures.lock().as_ref().map(|failures| failures.why.clone())
    }

    /// Why nobody gets through any more.
    pub(crate) fn gone(&self) -> Option<String> {
        let failures = self.passage.failures.lock();
        let failures = failures.as_ref()?;
        (failures.last.duration_since(failures.first) >= GONE).then(|| failures.why.clone())
    }
}

impl Drop for NetworkDoor {
    fn drop(&mut self) {
        self.passage.ended.store(true, Ordering::Relaxed);
        // Ends the wait in accept.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(porter) = self.porter.take() {
            // A panic of that thread has been printed already, and a drop can't return it.
            let _ = porter.join();
        }
        for end in self.passage.open.lock().values().flatten() {
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

/// A connection that counts until this is dropped.
struct ForwardGuard(Arc<ForwardedConnection>);

impl ForwardGuard {
    fn one_more(passage: &Arc<ForwardedConnection>) -> ForwardGuard {
        passage.attended.fetch_add(1, Ordering::Relaxed);
        ForwardGuard(Arc::clone(passage))
    }
}

impl Drop for ForwardGuard {
    fn drop(&mut self) {
        self.0.attended.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ForwardedConnection {
    fn attend(self: Arc<Self>, listener: &TcpListener) {
        for number in 0.. {
            let accepted = listener.accept();
            if self.ended.load(Ordering::Relaxed) {
                return;
            }
            let Ok((near, _)) = accepted else {
                // Out of descriptors, or a client that has gone already.
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            // Beyond the limit, and without a thread, the client finds its connection closed, as with a store that has
            // too many.
            if self.attended.load(Ordering::Relaxed) >= MAX_CONNECTIONS {
                continue;
            }
            let attended = ForwardGuard::one_more(&self);
            let _ = std::thread::Builder::new()
                .name("door-connection".to_owned())
                .stack_size(256 << 10)
                .spawn(move || Arc::clone(&attended.0).connect(number, near));
        }
    }

    fn connect(self: Arc<Self>, number: u64, near: TcpStream) {
        let far = match self.behind.connect() {
            Ok(far) => {
                *self.failures.lock() = None;
                far
            }
            Err(error) => {
                let (now, reason) = (Instant::now(), error.to_string());
                let mut failures = self.failures.lock();
                let lasts = failures.as_ref().filter(|failures| now.duration_since(failures.last) < APART);
                let first = lasts.map_or(now, |failures| failures.first);
                *failures = Some(ConnectFailures { first, last: now, why: reason });
                return;
            }
        };
        let _ = (near.set_nodelay(true), far.set_nodelay(true));
        let (Ok(near_too), Ok(far_too)) = (near.try_clone(), far.try_clone()) else { return };
        let (Ok(near_end), Ok(far_end)) = (near.try_clone(), far.try_clone()) else { return };
        self.open.lock().insert(number, [near_end, far_end]);
        let back = Arc::clone(&self);
        let returning = std::thread::Builder::new()
            .name("door-return".to_owned())
            .stack_size(256 << 10)
            .spawn(move || carry(far_too, near_too, &back.received));
        if let Ok(returning) = returning
            && !self.ended.load(Ordering::Relaxed)
        {
            carry(near, far, &self.sent);
            let _ = returning.join();
        }
        if let Some(ends) = self.open.lock().remove(&number) {
            ends.iter().for_each(|end| drop(end.shutdown(Shutdown::Both)));
        }
    }
}

impl ForwardTarget {
    fn connect(&self) -> io::Result<TcpStream> {
        let addresses: Vec<SocketAddr> = match self {
            ForwardTarget::Name(host, port) => (host.as_str(), *port).to_socket_addrs()?.collect(),
            ForwardTarget::Addresses(addresses) => addresses.clone(),
        };
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in addresses {
            match TcpStream::connect_timeout(&address, CONNECT_LIMIT) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// Until one end closes. The other one is then told that no more comes, or, after an error, that the connection is
/// over.
fn carry(mut from: TcpStream, mut to: TcpStream, count: &AtomicU64) {
    let mut part = vec![0; PART_BYTES];
    let direction = loop {
        match from.read(&mut part) {
            Ok(0) => break Shutdown::Write,
            Ok(length) => {
                if to.write_all(&part[..length]).is_err() {
                    break Shutdown::Both;
                }
                count.fetch_add(length as u64, Ordering::Relaxed);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break Shutdown::Both,
        }
    };
    let _ = to.shutdown(direction);
    if direction == Shutdown::Both {
        let _ = from.shutdown(direction);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn door(port: u16, target: ForwardTarget) -> Option<(Arc<NetworkNamespace>, NetworkDoor)> {
        // Only root has namespaces of its own.
        let namespace = NetworkNamespace::create("test").ok()?;
        let door = NetworkDoor::open(&namespace, port, target).unwrap();
        Some((namespace, door))
    }

    fn exchange(namespace: &NetworkNamespace, port: u16, text: &str) -> io::Result<String> {
        namespace.within(|| {
            let mut stream = TcpStream::connect((ADDRESS, port))?;
            stream.write_all(text.as_bytes())?;
            stream.shutdown(Shutdown::Write)?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).map(|_| answer)
        })?
    }

    #[test]
    fn bytes_pass_through_forward() {
        let outside = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = outside.local_addr().unwrap();
        let Some((namespace, door)) = door(9000, ForwardTarget::Addresses(vec![address])) else { return };
        let echo = std::thread::spawn(move || {
            for _ in 0..2 {
                let (mut stream, _) = outside.accept().unwrap();
                let mut text = String::new();
                stream.read_to_string(&mut text).unwrap();
                stream.write_all(text.to_uppercase().as_bytes()).unwrap();
            }
        });
        for _ in 0..2 {
            assert_eq!(exchange(&namespace, 9000, "hello").unwrap(), "HELLO");
        }
        echo.join().unwrap();
        assert_eq!(door.carried(), CarriedBytes { near_to_far: 10, far_to_near: 10 });
        assert_eq!((door.last_failure(), door.gone()), (None, None));
        drop(door);
        assert!(exchange(&namespace, 9000, "hello").is_err());
    }

    #[test]
    fn unreachable_target_is_reported() {
        // A port that was free a moment ago.
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let Some((namespace, door)) = door(443, ForwardTarget::Name(free.ip().to_string(), free.port()))
        else {
            return;
        };
        assert_eq!(exchange(&namespace, 443, "hello").unwrap_or_default(), "");
        assert!(door.last_failure().unwrap().contains("refused"), "{:?}", door.last_failure());
        assert_eq!(door.gone(), None, "once is no proof");
    }
}
