//! A cable between two network namespaces: a TUN device in each, and this process in between, which hands every packet
//! on when a link of this bandwidth and this latency would have.
//!
//! It needs nothing of the kernel but TUN devices, and it knows how much went either way.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, socket};

use crate::network_namespace::NetworkNamespace;
use crate::system::SystemError;

const CLONE: &str = "/dev/net/tun";
const DEVICE: &[u8] = b"link0";
/// `_IOW('T', 202, int)`, of `linux/if_tun.h`.
const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
/// Large, since each packet costs this process a few microseconds.
const MTU: usize = 32_000;
/// Packets wait here as in the buffer of a switch; what doesn't fit waits in the kernel.
const QUEUE_BYTES: usize = 1 << 20;
/// The most that may be on its way over a link besides, which is in memory meanwhile.
pub(crate) const MAX_IN_FLIGHT_BYTES: usize = 64 << 20;
/// How long the end of the link may go unnoticed.
const IDLE: Duration = Duration::from_millis(100);

/// The two ends of a link.
pub(crate) const NEAR: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
pub(crate) const FAR: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);

/// A link's effect on packets, by this machine's clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LinkShape {
    /// In each direction.
    pub bytes_per_s: f64,
    /// From one end to the other.
    pub latency: Duration,
}

impl LinkShape {
    /// The bytes that have left and not arrived, at full bandwidth. Slow motion leaves it as it is.
    pub(crate) fn bytes_in_flight(self) -> f64 {
        self.bytes_per_s * self.latency.as_secs_f64()
    }

    /// With what waits to leave.
    fn capacity_bytes(self) -> usize {
        // The cast saturates.
        QUEUE_BYTES + (self.bytes_in_flight() as usize).min(MAX_IN_FLIGHT_BYTES)
    }
}

/// Bytes that went over a link, with their IP headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CarriedBytes {
    pub near_to_far: u64,
    pub far_to_near: u64,
}

/// A link that carries packets until it is dropped.
#[derive(Debug)]
pub(crate) struct NetworkLink {
    ended: Arc<AtomicBool>,
    carried: [Arc<AtomicU64>; 2],
    carriers: Vec<JoinHandle<()>>,
}

impl NetworkLink {
    /// Joins two namespaces that have none yet: one gets the address [`NEAR`], the other one [`FAR`].
    ///
    /// # Errors
    /// When this host has no TUN devices, or refuses them.
    pub(crate) fn lay(
        system: &'static str,
        near: &NetworkNamespace,
        far: &NetworkNamespace,
        shape: LinkShape,
    ) -> Result<NetworkLink, SystemError> {
        let made = |namespace: &NetworkNamespace, own, peer| {
            let device = namespace.within(|| make_device(own, peer)).and_then(|made| made);
            device.map_err(|error| refused(system, &error))
        };
        let near = made(near, NEAR, FAR)?;
        let far = made(far, FAR, NEAR)?;
        let failed = |error: io::Error| {
            SystemError::starting(system, format!("can't carry packets between its machines: {error}"))
        };
        let (near_too, far_too) = (near.try_clone().map_err(failed)?, far.try_clone().map_err(failed)?);
        let ended = Arc::new(AtomicBool::new(false));
        let carried = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let mut link = NetworkLink { ended, carried, carriers: Vec::new() };
        for (number, (from, to)) in [(near, far), (far_too, near_too)].into_iter().enumerate() {
            let wire = OneWayLink::new(shape);
            let (ended, count) = (Arc::clone(&link.ended), Arc::clone(&link.carried[number]));
            let carrier = std::thread::Builder::new().name(format!("{system}-link-{number}"));
            link.carriers.push(carrier.spawn(move || carry(from, to, wire, &ended, &count)).map_err(failed)?);
        }
        Ok(link)
    }

    /// The bytes that it has carried so far.
    pub(crate) fn carried(&self) -> CarriedBytes {
        let count = |number: usize| self.carried[number].load(Ordering::Relaxed);
        CarriedBytes { near_to_far: count(0), far_to_near: count(1) }
    }
}

impl Drop for NetworkLink {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        for carrier in self.carriers.drain(..) {
            // A panic of that thread has been printed already, and a drop can't return it.
            let _ = carrier.join();
        }
    }
}

fn refused(system: &'static str, error: &io::Error) -> SystemError {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => SystemError::Missing {
            system,
            missing: format!(
                "network devices of this program's own, for the link between its machines ({CLONE}: {error})"
            ),
            remedy: "load the kernel's module tun; in a container: --device /dev/net/tun --cap-add NET_ADMIN"
                .to_owned(),
        },
        _ => SystemError::starting(system, format!("can't make a network device for its link: {error}")),
    }
}

/// A TUN device in the namespace of the calling thread, up, with its address and a route to the peer. It goes with its
/// descriptor.
fn make_device(own: Ipv4Addr, peer: Ipv4Addr) -> io::Result<File> {
    let device = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(CLONE)?;
    let mut request = named();
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    control(&device, TUNSETIFF, &request)?;
    let socket = File::from(socket(AddressFamily::INET, SocketType::DGRAM, None).map_err(io::Error::from)?);
    for (action, address) in [(libc::SIOCSIFADDR, own), (libc::SIOCSIFDSTADDR, peer)] {
        let mut request = named();
        // SAFETY: an address of this family is plain old data, and is shorter than the field that it is in.
        unsafe {
            let field: *mut libc::sockaddr_in = (&raw mut request.ifr_ifru).cast();
            (*field).sin_family = libc::AF_INET as libc::sa_family_t;
            (*field).sin_addr.s_addr = u32::from_ne_bytes(address.octets());
        }
        control(&socket, action as libc::c_ulong, &request)?;
    }
    let mut request = named();
    request.ifr_ifru.ifru_mtu = MTU as libc::c_int;
    control(&socket, libc::SIOCSIFMTU as libc::c_ulong, &request)?;
    let mut request = named();
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    control(&socket, libc::SIOCSIFFLAGS as libc::c_ulong, &request)?;
    Ok(device)
}

fn named() -> libc::ifreq {
    // SAFETY: the structure is plain old data, for which zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, &letter) in request.ifr_name.iter_mut().zip(DEVICE) {
        *place = letter as libc::c_char;
    }
    request
}

fn control(file: &File, action: libc::c_ulong, request: &libc::ifreq) -> io::Result<()> {
    // SAFETY: the request is what all of these actions take, and outlives the call.
    match unsafe { libc::ioctl(file.as_raw_fd(), action as _, std::ptr::from_ref(request)) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// One direction of a link: when a packet that comes now is there. It keeps no time itself.
#[derive(Debug)]
struct OneWayLink {
    shape: LinkShape,
    /// When the last byte of what has come so far has left.
    free_at: Option<Instant>,
}

impl OneWayLink {
    fn new(shape: LinkShape) -> OneWayLink {
        OneWayLink { shape, free_at: None }
    }

    fn arrival(&mut self, bytes: usize, now: Instant) -> Instant {
        let starts = self.free_at.map_or(now, |free_at| free_at.max(now));
        let takes = Duration::try_from_secs_f64(bytes as f64 / self.shape.bytes_per_s).unwrap_or(IDLE);
        let free_at = starts + takes;
        self.free_at = Some(free_at);
        free_at + self.shape.latency
    }
}

fn carry(mut from: File, mut to: File, mut wire: OneWayLink, ended: &AtomicBool, count: &AtomicU64) {
    let mut queue: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    let capacity_bytes = wire.shape.capacity_bytes();
    let mut queued_bytes = 0;
    let mut packet = vec![0; MTU];
    while !ended.load(Ordering::Relaxed) {
        let now = Instant::now();
        while queue.front().is_some_and(|(due, _)| *due <= now) {
            let Some((_, packet)) = queue.pop_front() else { break };
            queued_bytes -= packet.len();
            count.fetch_add(packet.len() as u64, Ordering::Relaxed);
            // A device whose namespace is gone takes none any more.
            let _ = to.write(&packet);
        }
        let wait = queue.front().map_or(IDLE, |(due, _)| due.saturating_duration_since(now).min(IDLE));
        let has_room = queued_bytes < capacity_bytes;
        if !readable(&from, has_room, wait) {
            continue;
        }
        while queued_bytes < capacity_bytes {
            let Ok(bytes) = from.read(&mut packet) else { break };
            queue.push_back((wire.arrival(bytes, Instant::now()), packet[..bytes].to_vec()));
            queued_bytes += bytes;
        }
    }
}

/// Waits until there is something to read, if that is `wanted`, or the time is over.
fn readable(file: &File, wanted: bool, wait: Duration) -> bool {
    let mut poll =
        libc::pollfd { fd: if wanted { file.as_raw_fd() } else { -1 }, events: libc::POLLIN, revents: 0 };
    let limit = libc::timespec {
        tv_sec: wait.as_secs() as libc::time_t,
        tv_nsec: wait.subsec_nanos() as libc::c_long,
    };
    // SAFETY: both structures outlive the call, and there is one descriptor.
    let found = unsafe { libc::ppoll(&raw mut poll, 1, &raw const limit, std::ptr::null()) };
    found > 0 && poll.revents & libc::POLLIN != 0
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn packets_wait_for_the_wire_and_take_its_latency() {
        let mut wire = OneWayLink::new(LinkShape { bytes_per_s: 1000.0, latency: Duration::from_millis(5) });
        let start = Instant::now();
        let after = |arrival: Instant| arrival.duration_since(start).as_millis();
        assert_eq!(after(wire.arrival(100, start)), 105);
        assert_eq!(after(wire.arrival(50, start)), 155);
        // The wire has been idle meanwhile.
        assert_eq!(after(wire.arrival(10, start + Duration::from_secs(1))), 1015);
    }

    #[test]
    fn long_link_holds_bytes_in_flight() {
        let extra_bytes =
            |bytes_per_s, latency| LinkShape { bytes_per_s, latency }.capacity_bytes() - QUEUE_BYTES;
        assert_eq!(extra_bytes(1.25e9, Duration::from_millis(4)), 5_000_000);
        assert_eq!(extra_bytes(1e9, Duration::ZERO), 0);
        assert_eq!(extra_bytes(1e12, Duration::from_secs(60)), MAX_IN_FLIGHT_BYTES);
    }

    #[test]
    fn sent_bytes_arrive_and_are_counted() {
        let [near, far] = [(); 2].map(|()| NetworkNamespace::create("test").unwrap());
        let shape = LinkShape { bytes_per_s: 1e9, latency: Duration::from_micros(100) };
        let link = NetworkLink::lay("test", &near, &far, shape).unwrap();
        let listener = far.within(|| TcpListener::bind((FAR, 7000))).unwrap().unwrap();
        assert_eq!(near.devices().unwrap().len(), 2);
        let sent: Vec<u8> = (0..3_000_000u32).map(|number| number as u8).collect();
        let received = std::thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                let mut received = Vec::new();
                let (mut stream, from) = listener.accept().unwrap();
                assert_eq!(from.ip(), NEAR);
                stream.read_to_end(&mut received).unwrap();
                received
            });
            let mut stream = near.within(|| TcpStream::connect((FAR, 7000))).unwrap().unwrap();
            stream.write_all(&sent).unwrap();
            drop(stream);
            receiver.join().unwrap()
        });
        assert!(received == sent, "{} bytes of {}", received.len(), sent.len());
        let carried = link.carried();
        assert!(carried.near_to_far > sent.len() as u64 && carried.far_to_near > 0, "{carried:?}");
        drop(link);
        // A process that another test starts just now may hold the device for a moment.
        let begun = std::time::Instant::now();
        while near.devices().unwrap() != ["lo"] {
            assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", near.devices());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
