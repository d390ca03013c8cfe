//! The addresses of the nodes of one run: a block of loopback addresses that no other run uses.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};

/// The ports for clients and for other nodes. The further pairs are for hosts where something listens on the usual
/// ports of all addresses.
const PORTS: [(u16, u16); 3] = [(9042, 7000), (19042, 17000), (29042, 27000)];

/// The addresses 127.0.BLOCK.1 and following, reserved until this is dropped or the process ends.
#[derive(Debug)]
pub(super) struct LoopbackAddresses {
    block: u8,
    pair: usize,
    nodes: u8,
    /// An abstract socket: only one process can hold its name, and the kernel releases it when the process ends.
    _lock: UnixListener,
}

impl LoopbackAddresses {
    /// Reserves the first free block for this many nodes.
    pub(super) fn claim(nodes: u8) -> std::io::Result<LoopbackAddresses> {
        for pair in 0..PORTS.len() {
            for block in 0..=u8::MAX {
                match Self::claim_block(block, pair, nodes) {
                    Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                    outcome => return outcome,
                }
            }
        }
        Err(std::io::Error::new(
            ErrorKind::AddrInUse,
            "the ports 9042 and 7000 are in use on every block of loopback addresses",
        ))
    }

    /// Reserves the block with the given [`name`](Self::name) again: nodes of a ring know each other by their
    /// addresses.
    pub(super) fn claim_again(name: &str, nodes: u8) -> std::io::Result<LoopbackAddresses> {
        let place = name.trim().split_once(' ').and_then(|(block, pair)| {
            Some((block.parse().ok()?, pair.parse().ok().filter(|&pair| pair < PORTS.len())?))
        });
        let Some((block, pair)) = place else {
            let problem = format!("'{}' is not the name of a block of addresses", name.trim().escape_debug());
            return Err(std::io::Error::new(ErrorKind::InvalidData, problem));
        };
        Self::claim_block(block, pair, nodes)
    }

    fn claim_block(block: u8, pair: usize, nodes: u8) -> std::io::Result<LoopbackAddresses> {
        let name = format!("underlay-cassandra-{block}-{pair}");
        let lock = UnixListener::bind_addr(&UnixAddr::from_abstract_name(name)?)?;
        let addresses = LoopbackAddresses { block, pair, nodes, _lock: lock };
        for node in 0..nodes {
            for address in [addresses.native(node), addresses.storage(node)] {
                drop(TcpListener::bind(address)?);
            }
        }
        Ok(addresses)
    }

    /// The name of the block, for [`claim_again`](Self::claim_again).
    pub(super) fn name(&self) -> String {
        format!("{} {}", self.block, self.pair)
    }

    /// The address of a node, counted from 0.
    pub(super) fn ip(&self, node: u8) -> Ipv4Addr {
        Ipv4Addr::new(127, 0, self.block, node + 1)
    }

    /// Where clients reach it.
    pub(super) fn native(&self, node: u8) -> SocketAddr {
        (self.ip(node), PORTS[self.pair].0).into()
    }

    /// Where other nodes reach it.
    pub(super) fn storage(&self, node: u8) -> SocketAddr {
        (self.ip(node), PORTS[self.pair].1).into()
    }

    pub(super) fn all_native(&self) -> Vec<SocketAddr> {
        (0..self.nodes).map(|node| self.native(node)).collect()
    }
}

/// A port of 127.0.0.1 that nothing listens on right now.
pub(super) fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was given back may be another test's or run's by the time that it is wanted again. Then all is done anew.
    fn until_undisturbed<T>(attempt: impl Fn() -> std::io::Result<T>) -> T {
        for _ in 0..1000 {
            match attempt() {
                Err(error) if error.kind() == ErrorKind::AddrInUse => std::thread::yield_now(),
                outcome => return outcome.unwrap(),
            }
        }
        panic!("each time, somebody else had the addresses");
    }

    #[test]
    fn address_blocks_differ_until_dropped() {
        let second = LoopbackAddresses::claim(3).unwrap();
        assert_eq!(second.all_native().len(), 3);
        until_undisturbed(|| {
            let first = LoopbackAddresses::claim(2)?;
            assert_ne!(first.ip(0), second.ip(0));
            assert!(first.ip(0).is_loopback());
            let (name, ip) = (first.name(), first.ip(1));
            assert_eq!(LoopbackAddresses::claim_again(&name, 2).unwrap_err().kind(), ErrorKind::AddrInUse);
            drop(first);
            assert_eq!(LoopbackAddresses::claim_again(&name, 2)?.ip(1), ip);
            Ok(())
        });
    }

    #[test]
    fn block_with_address_in_use_is_skipped() {
        let (name, address, _stranger) = until_undisturbed(|| {
            let free = LoopbackAddresses::claim(2)?;
            let (name, address) = (free.name(), free.storage(1));
            drop(free);
            Ok((name, address, TcpListener::bind(address)?))
        });
        assert_eq!(LoopbackAddresses::claim_again(&name, 2).unwrap_err().kind(), ErrorKind::AddrInUse);
        assert_ne!(LoopbackAddresses::claim(2).unwrap().ip(1), address.ip());
    }

    #[test]
    fn invalid_name_is_refused() {
        for name in ["", "1", "256 0", "1 9", "x y", "1 0 0"] {
            assert_eq!(
                LoopbackAddresses::claim_again(name, 1).unwrap_err().kind(),
                ErrorKind::InvalidData,
                "{name}"
            );
        }
    }
}
