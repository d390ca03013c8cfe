//! A private network for a system: a loopback device and nothing else.
//!
//! It contains servers that bind every address, and lets every run use the same ports without conflicts, so that
//! addresses that a system writes into its data stay valid when the data are copied. The namespace has no name and no
//! mount: it disappears with the last process and file descriptor that refer to it.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::memory_folder::MemoryFolder;
use crate::system::SystemError;

/// The state of a listening TCP socket in the kernel's tables.
const LISTENING: &str = "0A";

/// An anonymous network namespace in which only the loopback device is up.
#[derive(Debug)]
pub struct NetworkNamespace {
    /// Shared with the commands that will enter it.
    link: Arc<OwnedFd>,
    /// The memory folder that later processes in it see as well.
    memory: OnceLock<MemoryFolder>,
}

impl NetworkNamespace {
    /// Creates one for `system`.
    ///
    /// # Errors
    /// When this process lacks `CAP_SYS_ADMIN`, or the kernel refuses.
    pub fn create(system: &'static str) -> Result<Arc<NetworkNamespace>, SystemError> {
        // On a new thread, because unshare(2) moves the calling thread.
        let made = std::thread::scope(|scope| scope.spawn(make).join());
        let made = made.unwrap_or_else(|_| Err(("make", io::Error::other("the thread ended early"))));
        match made {
            Ok(link) => Ok(Arc::new(NetworkNamespace { link: Arc::new(link), memory: OnceLock::new() })),
            Err((_, error)) if error.kind() == io::ErrorKind::PermissionDenied => Err(SystemError::Missing {
                system,
                missing: "a private network namespace, so that nobody else can reach its servers".to_owned(),
                remedy:
                    "run as root, or with the capability CAP_SYS_ADMIN (in a container: --cap-add SYS_ADMIN)"
                        .to_owned(),
            }),
            Err((action, error)) => Err(SystemError::Failed {
                system,
                during: "starting",
                problem: format!("can't {action} a network namespace for it: {error}"),
                log_tail: None,
            }),
        }
    }

    /// Processes that enter it from now on see this folder in memory; there is one at most.
    pub(crate) fn share(&self, memory: MemoryFolder) {
        // Nobody makes a second one.
        let _ = self.memory.set(memory);
    }

    /// Makes the process of `command` start in the namespace. Its working directory has to be set before.
    pub fn enter(&self, command: &mut Command) {
        let link = Arc::clone(&self.link);
        // SAFETY: between fork and exec the closure makes one system call on a descriptor that it holds; it takes no
        // lock and allocates nothing.
        unsafe {
            command.pre_exec(move || {
                move_into_link_name_space(link.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok(())
            });
        }
        if let Some(memory) = self.memory.get() {
            memory.enter(command);
        }
    }

    /// The kernel's number of it, by which processes in it are known.
    pub(crate) fn number(&self) -> Option<u64> {
        rustix::fs::fstat(&self.link).ok().map(|found| found.st_ino)
    }

    /// Runs `work` on a thread in the namespace and waits for it. Sockets that it creates stay in the namespace,
    /// wherever they are used later.
    ///
    /// # Errors
    /// When the thread can't be started or can't enter the namespace.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("in-namespace".to_owned());
            let thread = thread.spawn_scoped(scope, || -> io::Result<T> {
                move_into_link_name_space(self.link.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok(work())
            })?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// The ids of all processes in it.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let Some(own) = self.number() else { return Vec::new() };
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let inode = |id: u32| std::fs::metadata(format!("/proc/{id}/ns/net")).map(|data| data.ino()).ok();
        ids.filter(|&id| inode(id) == Some(own)).collect()
    }

    /// Every address that a TCP socket in the namespace listens on, sorted.
    ///
    /// # Errors
    /// When the kernel's tables can't be read.
    pub fn listeners(&self) -> io::Result<Vec<SocketAddr>> {
        self.within(|| {
            let mut all = Vec::new();
            for table in ["tcp", "tcp6"] {
                match std::fs::read_to_string(format!("/proc/thread-self/net/{table}")) {
                    Ok(text) => all.extend(text.lines().filter_map(listener_in)),
                    // A kernel without IPv6.
                    Err(error) if error.kind() == io::ErrorKind::NotFound && table == "tcp6" => {}
                    Err(error) => return Err(error),
                }
            }
            all.sort();
            all.dedup();
            Ok(all)
        })?
    }

    /// The bytes that processes in it have sent to each other.
    ///
    /// # Errors
    /// When the kernel's table can't be read.
    pub(crate) fn bytes_inside(&self) -> io::Result<u64> {
        let table = self.within(|| std::fs::read_to_string("/proc/thread-self/net/dev"))??;
        let line = table.lines().find_map(|line| line.trim_start().strip_prefix("lo:"));
        let received = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        received
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the kernel lists no loopback device"))
    }

    /// The names of its network devices.
    ///
    /// # Errors
    /// When the kernel's table can't be read.
    pub fn devices(&self) -> io::Result<Vec<String>> {
        let table = self.within(|| std::fs::read_to_string("/proc/thread-self/net/dev"))??;
        Ok(table
            .lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(name, _)| name.trim().to_owned())
            .collect())
    }
}

/// Moves the calling thread into a new namespace, brings its loopback device up and returns a descriptor of the
/// namespace.
fn make() -> Result<OwnedFd, (&'static str, io::Error)> {
    // SAFETY: this flag changes only the calling thread's network, and no file descriptors.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(|error| ("make", error.into()))?;
    set_loopback_up().map_err(|error| ("set up the loopback device of", error.into()))?;
    let link = File::open("/proc/thread-self/ns/net").map_err(|error| ("hold", error))?;
    Ok(link.into())
}

fn set_loopback_up() -> rustix::io::Result<()> {
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    // SAFETY: the structure is plain old data, for which zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, &letter) in request.ifr_name.iter_mut().zip(b"lo") {
        *place = letter as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the request holds a device's name and flags, as SIOCSIFFLAGS requires, and outlives the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// The address in a line of `/proc/net/tcp` or `tcp6` whose socket listens.
fn listener_in(line: &str) -> Option<SocketAddr> {
    let mut columns = line.split_whitespace();
    let (local, state) = (columns.nth(1)?, columns.nth(1)?);
    if state != LISTENING {
        return None;
    }
    let (address, port) = local.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    // Words of 32 bits in network order, each printed as a number in this machine's byte order.
    let mut bytes = Vec::new();
    let mut rest = address;
    while !rest.is_empty() {
        let (word, after) = rest.split_at_checked(8)?;
        bytes.extend(u32::from_str_radix(word, 16).ok()?.to_ne_bytes());
        rest = after;
    }
    let address: IpAddr = match bytes.len() {
        4 => Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into(),
        16 => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into(),
        _ => return None,
    };
    Some(SocketAddr::new(address.to_canonical(), port))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn namespace_is_apart_from_host_and_others() {
        let [one, other] = [(); 2].map(|()| NetworkNamespace::create("test").unwrap());
        assert_eq!(one.devices().unwrap(), ["lo"]);
        assert_eq!(one.bytes_inside().unwrap(), 0);
        let listener = one.within(|| TcpListener::bind("127.0.0.3:8020")).unwrap().unwrap();
        let anyone = one.within(|| TcpListener::bind("0.0.0.0:13562")).unwrap().unwrap();
        // The same port again, elsewhere.
        let again = other.within(|| TcpListener::bind("127.0.0.3:8020")).unwrap().unwrap();
        let expected = ["0.0.0.0:13562", "127.0.0.3:8020"].map(|address| address.parse().unwrap());
        assert_eq!(one.listeners().unwrap(), expected);
        assert_eq!(other.listeners().unwrap(), expected[1..]);
        assert!(one.within(|| TcpStream::connect("127.0.0.3:8020")).unwrap().is_ok());
        assert!(other.within(|| TcpStream::connect("127.0.0.1:13562")).unwrap().is_err());
        assert!(one.within(|| TcpStream::connect("192.0.2.1:80")).unwrap().is_err(), "there is a way out");
        drop((listener, anyone, again));
        // A process that another test begins at this moment has them open until it becomes another program.
        let is_over = || one.listeners().unwrap().is_empty();
        assert!((0..1000).any(|_| is_over() || {
            std::thread::sleep(std::time::Duration::from_millis(5));
            false
        }));
    }

    #[test]
    fn command_starts_inside() {
        let namespace = NetworkNamespace::create("test").unwrap();
        let mut command = Command::new("readlink");
        command.arg("/proc/self/ns/net");
        namespace.enter(&mut command);
        let inside = namespace.within(|| std::fs::read_link("/proc/thread-self/ns/net")).unwrap().unwrap();
        let output = command.output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), inside.to_str().unwrap());
        assert_ne!(std::fs::read_link("/proc/thread-self/ns/net").unwrap(), inside);
    }

    #[test]
    fn only_processes_of_namespace_are_found() {
        let namespace = NetworkNamespace::create("test").unwrap();
        assert_eq!(namespace.processes(), Vec::<u32>::new());
        let mut command = Command::new("sleep");
        command.arg("60");
        namespace.enter(&mut command);
        let mut inside = command.spawn().unwrap();
        let mut outside = Command::new("sleep").arg("60").spawn().unwrap();
        let found = namespace.processes();
        for child in [&mut inside, &mut outside] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(found, [inside.id()]);
    }

    #[test]
    fn listeners_are_read_from_the_kernel_s_tables() {
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt";
        let line =
            "   0: 0100007F:1F54 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1 1 0 100";
        assert_eq!(listener_in(head), None);
        assert_eq!(listener_in(line), Some("127.0.0.1:8020".parse().unwrap()));
        assert_eq!(listener_in(&line.replace(" 0A ", " 01 ")), None);
        let wide = "00000000000000000000000000000000";
        assert_eq!(
            listener_in(&line.replace("0100007F", wide)),
            Some("[::]:8020".parse().unwrap()),
            "a wildcard stays one"
        );
        for wrong in ["", "0:", "0: 0100007F 0:0 0A", "0: 01:1 0:0 0A", "0: 010000é7F:1F54 0:0 0A"] {
            assert_eq!(listener_in(wrong), None, "{wrong}");
        }
    }
}
