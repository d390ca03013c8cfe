//! What outlives the process of a pool, and not its host.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const USUAL_LONG_BYTES: u64 = 32 << 20;
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// What a file has for the boot.
pub(super) const BOOT_BYTES: usize = 40;

/// Files in the page cache of this host, which outlives the pool's process and not the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostMemory {
    /// Where the files are. It is there already.
    pub directory: PathBuf,
    /// Another one each time the host starts: what was noted before is not believed then, since the members have lost
    /// what it speaks of.
    pub boot: String,
    /// Once this much is noted a flush is due, whether or not anyone asks for one.
    pub long_bytes: u64,
}

impl HostMemory {
    /// Of the host as it runs now.
    ///
    /// # Errors
    /// When the kernel does not tell its boot.
    pub fn for_this_boot(directory: &Path) -> io::Result<HostMemory> {
        let boot = fs::read_to_string(BOOT_ID)?.trim().to_owned();
        Ok(HostMemory { directory: directory.to_owned(), boot, long_bytes: USUAL_LONG_BYTES })
    }
}

/// A boot as files have it, filled up with zeros.
pub(super) fn boot_field(boot: &str) -> [u8; BOOT_BYTES] {
    let mut field = [0; BOOT_BYTES];
    field.iter_mut().zip(boot.bytes()).for_each(|(to, from)| *to = from);
    field
}
