//! The network that the nodes of one run are in. They ask nobody who he is, so it is one of their own, where that can be had.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use super::NAME;
use crate::network_namespace::NetworkNamespace;
use crate::system::SystemError;

#[derive(Clone, Debug)]
pub enum Network {
    /// With a loopback device, which no other user of the host reaches.
    Own(Arc<NetworkNamespace>),
    /// Every local user reaches the nodes.
    Host,
}

impl Network {
    /// One of its own, or the host's where this process may not make any.
    pub fn create() -> Result<Network, SystemError> {
        match NetworkNamespace::create(NAME) {
            Ok(namespace) => Ok(Network::Own(namespace)),
            Err(SystemError::Missing { .. }) => Ok(Network::Host),
            Err(error) => Err(error),
        }
    }

    /// For the record.
    pub fn description(&self) -> &'static str {
        match self {
            Network::Own(_) => "a network namespace of its own",
            Network::Host => "the host's loopback, open to all local users: CAP_SYS_ADMIN is missing",
        }
    }

    /// Lets the process of `command` begin in it.
    pub fn enter(&self, command: &mut Command) {
        if let Network::Own(namespace) = self {
            namespace.enter(command);
        }
    }

    /// Does `work` in it, and waits for it: sockets and threads that are made there stay there.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        match self {
            Network::Own(namespace) => namespace.within(work),
            Network::Host => Ok(work()),
        }
    }

    pub fn connect(&self, address: SocketAddr, limit: Duration) -> io::Result<TcpStream> {
        self.within(|| TcpStream::connect_timeout(&address, limit))?
    }
}

#[cfg(test)]
mod tests {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    use super::*;

    #[test]
    fn without_the_right_to_make_one_it_is_the_host_s() {
        // The rights of a thread are its own.
        let made = std::thread::spawn(|| {
            let mut rights = capabilities(None).unwrap();
            rights.effective.remove(CapabilitySet::SYS_ADMIN);
            set_capabilities(None, rights).unwrap();
            Network::create().unwrap()
        });
        let network = made.join().unwrap();
        assert!(matches!(network, Network::Host) && network.description().contains("CAP_SYS_ADMIN"));
        let inside = || std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        assert_eq!(network.within(inside).unwrap(), inside());
    }
}
