//! The network of the nodes of one run. They do not authenticate clients, so the network is private if possible.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use super::NAME;
use crate::network_namespace::NetworkNamespace;
use crate::system::SystemError;

#[derive(Clone, Debug)]
pub(super) enum CassandraNetwork {
    /// A private one with a loopback device, which no other user of the host can reach.
    Own(Arc<NetworkNamespace>),
    /// That of the host, in which every local user can reach the nodes.
    Host,
}

impl CassandraNetwork {
    /// Creates a private one, or uses that of the host if this process may not.
    pub(super) fn create() -> Result<CassandraNetwork, SystemError> {
        match NetworkNamespace::create(NAME) {
            Ok(namespace) => Ok(CassandraNetwork::Own(namespace)),
            Err(SystemError::Missing { .. }) => Ok(CassandraNetwork::Host),
            Err(error) => Err(error),
        }
    }

    /// A description for the record.
    pub(super) fn description(&self) -> &'static str {
        match self {
            CassandraNetwork::Own(_) => "a network namespace of its own",
            CassandraNetwork::Host => {
                "the host's loopback, open to all local users: CAP_SYS_ADMIN is missing"
            }
        }
    }

    /// Makes the process of `command` start in it.
    pub(super) fn enter(&self, command: &mut Command) {
        if let CassandraNetwork::Own(namespace) = self {
            namespace.enter(command);
        }
    }

    /// Runs `work` in it and waits. Sockets and threads that it creates stay there.
    pub(super) fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        match self {
            CassandraNetwork::Own(namespace) => namespace.within(work),
            CassandraNetwork::Host => Ok(work()),
        }
    }

    pub(super) fn connect(&self, address: SocketAddr, limit: Duration) -> io::Result<TcpStream> {
        self.within(|| TcpStream::connect_timeout(&address, limit))?
    }
}

#[cfg(test)]
mod tests {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    use super::*;

    #[test]
    fn unprivileged_node_uses_host_network() {
        // The rights of a thread are its own.
        let made = std::thread::spawn(|| {
            let mut rights = capabilities(None).unwrap();
            rights.effective.remove(CapabilitySet::SYS_ADMIN);
            set_capabilities(None, rights).unwrap();
            CassandraNetwork::create().unwrap()
        });
        let network = made.join().unwrap();
        assert!(matches!(network, CassandraNetwork::Host) && network.description().contains("CAP_SYS_ADMIN"));
        let inside = || std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        assert_eq!(network.within(inside).unwrap(), inside());
    }
}
