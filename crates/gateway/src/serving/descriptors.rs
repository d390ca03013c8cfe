//! Descriptors: each connection takes one, and the kernel gives a process a thousand unless it asks for more.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The journal, the metadata, the cache, and connections to the store.
const OTHERS: u64 = 512;
/// Of those, what is needed beside directories that are stores.
const BESIDE_DIRECTORIES: u64 = 256;

/// Takes as many as the process may have: for connections of clients, for those from and to other gateways, and for directories that are stores.
///
/// # Errors
/// When that is less than the connections that are configured: a client would be refused without a word.
pub(super) fn make_room_for(
    connections: usize,
    of_gateways: usize,
    directories: usize,
) -> Result<(), String> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = (connections + of_gateways) as u64 + OTHERS.max(directories as u64 + BESIDE_DIRECTORIES);
    if current.is_some_and(|current| current < wanted) {
        // Whoever can't have more keeps what there is; which is told below.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
    match getrlimit(Resource::Nofile).current {
        Some(current) if current < wanted => Err(format!(
            "{connections} connections ([limits] connections) and {directories} directories need {wanted} open files, and this process may have {current}\n  what to do: raise the limit (`ulimit -n`, or LimitNOFILE= of the service), or lower `connections`"
        )),
        _ => Ok(()),
    }
}
