//! Descriptors: each connection takes one, and the kernel gives a process a thousand unless it asks for more.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The journal, the metadata, the cache, and connections to the store.
const OTHERS: u64 = 512;
/// Of those, what is needed beside directories that are stores.
const BESIDE_DIRECTORIES: u64 = 256;

/// The things that take a descriptor each.
#[derive(Clone, Copy, Debug)]
pub(super) struct DescriptorUse {
    /// Of clients.
    pub(super) connections: usize,
    /// From and to other gateways.
    pub(super) of_gateways: usize,
    /// That are stores.
    pub(super) directories: usize,
    /// Of the cache on flash.
    pub(super) cache_files: u64,
}

impl DescriptorUse {
    /// What is needed beside directories that are stores.
    fn beside_directories(self) -> u64 {
        (self.connections + self.of_gateways) as u64 + self.cache_files + BESIDE_DIRECTORIES
    }
}

/// How many directories may be stores, of `wanted` ones: each that clients make for a bucket stays open. Takes as many
/// descriptors as the process may have, if those are needed.
pub(super) fn room_for_directories(needed: DescriptorUse, wanted: usize) -> usize {
    let other_files = needed.beside_directories();
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_some_and(|current| current < other_files + wanted as u64) {
        // If more are not allowed, the present limit stays, and so many are left.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
    match getrlimit(Resource::Nofile).current {
        Some(current) => {
            usize::try_from(current.saturating_sub(other_files)).unwrap_or(usize::MAX).min(wanted)
        }
        None => wanted,
    }
}

/// Takes as many as the process may have.
///
/// # Errors
/// When that is less than the connections that are configured: a client would be refused without a word.
pub(super) fn make_room_for(needed: DescriptorUse) -> Result<(), String> {
    let DescriptorUse { connections, directories, cache_files, .. } = needed;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = needed.beside_directories() - BESIDE_DIRECTORIES
        + OTHERS.max(directories as u64 + BESIDE_DIRECTORIES);
    if current.is_some_and(|current| current < wanted) {
        // If more are not allowed, the present limit stays; the error below says so.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
    match getrlimit(Resource::Nofile).current {
        Some(current) if current < wanted => Err(format!(
            "{connections} connections ([limits] connections), {directories} directories and {cache_files} files of the cache ([local] cache) need {wanted} open files, and this process may have {current}\n  what to do: raise the limit (`ulimit -n`, or LimitNOFILE= of the service), or lower `connections`"
        )),
        _ => Ok(()),
    }
}
