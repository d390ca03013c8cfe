//! Folders and files of our own on a host that others use too: made by one call or not at all, reached by descriptor,
//! written beside and renamed, read up to a bound. No link that someone planted is followed, nothing but a regular file
//! is replaced, and what is private is private under every umask. `docs/security.md` has the rules.

#![cfg_attr(not(test), warn(clippy::disallowed_types))]

pub mod control_socket;
mod folder;
mod foreign;
mod free_space;
mod listen;
pub mod mountinfo;
pub mod plain_file;
mod read;
mod remove;
pub mod scratch_dir;
mod secret;
pub mod shell;
mod trusted_path;
mod write;

pub use folder::{Folder, unique_name};
pub use foreign::ForeignFolder;
pub use free_space::{free_bytes, is_full, is_read_only, refusal_of_file, total_bytes};
pub use listen::listen;
pub use read::{read, read_or_pipe, read_text, read_text_or_pipe};
pub use remove::{remove_file, remove_tree};
pub use secret::{read_given_secret, read_secret};
pub use trusted_path::{check_trusted_file, check_trusted_path, check_trusted_path_to, open_mount_point};
pub use write::{append, check_replaceable, check_writable, replace, replace_with, write};

/// Whether the storage is full or fails, or no more files may be open, which is no mistake of who named the place.
pub fn is_storage_failure(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;

    let is_device = || error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error());
    let kinds = [ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::StaleNetworkFileHandle];
    kinds.contains(&error.kind()) || is_device() || lacks_descriptors(error)
}

/// Whether the process, or the whole machine, has as many files open as it may have.
pub fn lacks_descriptors(error: &std::io::Error) -> bool {
    use rustix::io::Errno;

    [Errno::MFILE, Errno::NFILE].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Who else may look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// This user alone: 0700 and 0600 regardless of the umask.
    Private,
    /// As the umask says, but nobody else writes: 0755 and 0644 at most.
    Readable,
}

impl Access {
    fn folder_mode(self) -> rustix::fs::Mode {
        rustix::fs::Mode::from_raw_mode(match self {
            Access::Private => 0o700,
            Access::Readable => 0o755,
        })
    }

    fn file_mode(self) -> rustix::fs::Mode {
        rustix::fs::Mode::from_raw_mode(match self {
            Access::Private => 0o600,
            Access::Readable => 0o644,
        })
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn lack_of_descriptors_is_storage_failure() {
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOSPC, Errno::IO] {
            assert!(is_storage_failure(&errno.into()), "{errno}");
        }
        for errno in [Errno::NOENT, Errno::ACCESS, Errno::ISDIR] {
            assert!(!is_storage_failure(&errno.into()) && !lacks_descriptors(&errno.into()), "{errno}");
        }
        assert!(!lacks_descriptors(&Errno::NOSPC.into()));
    }
}
