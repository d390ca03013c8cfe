//! The space that programs leave free on the host's disk with the run: others write there, too.

use std::path::{Path, PathBuf};

use rustix::fs::statvfs;

const FREE_BYTES: u64 = 256 << 20;
const FREE_INODES: u64 = 10_000;

/// How much of a disk has to stay free.
#[derive(Clone, Debug)]
pub(super) struct HostSpace {
    place: PathBuf,
    least_bytes: u64,
    least_inodes: u64,
}

impl HostSpace {
    /// Of the disk of `place`; of a small one, or one that is nearly full already, half of what is free now.
    pub(super) fn from_place(place: &Path) -> HostSpace {
        let (bytes, inodes) = free(place).unwrap_or_default();
        HostSpace {
            place: place.to_owned(),
            least_bytes: FREE_BYTES.min(bytes / 2),
            least_inodes: FREE_INODES.min(inodes / 2),
        }
    }

    /// Says what is short, if anything.
    pub(super) fn shortage(&self) -> Option<String> {
        let (bytes, inodes) = free(&self.place)?;
        let left = if bytes < self.least_bytes {
            format!("{} MiB", bytes >> 20)
        } else if inodes < self.least_inodes {
            format!("{inodes} inodes")
        } else {
            return None;
        };
        Some(format!(
            "the disk of this host that holds the run has {left} left; have the program write less into {{scratch}} and {{logs}}, or move \
             the run's work with `--work`"
        ))
    }
}

/// Bytes and inodes that anybody may use.
fn free(place: &Path) -> Option<(u64, u64)> {
    let found = statvfs(place).ok()?;
    Some((found.f_bavail * found.f_frsize, found.f_favail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortage_is_measured_from_earlier_free_space() {
        let folder = tempfile::tempdir().unwrap();
        let space = HostSpace::from_place(folder.path());
        assert_eq!(space.shortage(), None);
        let greedy = HostSpace { least_bytes: u64::MAX, ..space.clone() };
        assert!(greedy.shortage().unwrap().contains("MiB left"));
        // Some file systems have no number of inodes.
        let greedy = HostSpace { least_inodes: u64::MAX, ..space };
        assert!(greedy.shortage().is_some_and(|shortage| shortage.contains("inodes left")));
        assert_eq!(HostSpace::from_place(Path::new("/no/such/place")).shortage(), None);
    }
}
