//! A folder in memory that only the processes of a system see. It is mounted in a mount namespace of theirs, which has
//! no name: it goes with the last of them and this program, however these end.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rustix::mount::{MountFlags, mount};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::mount_namespace::enter_own_mounts;
use crate::system::SystemError;

/// The namespace in which the folder is.
#[derive(Debug)]
pub(crate) struct MemoryFolder {
    link: Arc<OwnedFd>,
}

impl MemoryFolder {
    /// Mounts so many bytes of memory at `place`, an empty directory, for the processes of `system`, which use the
    /// mounts below `own` as well.
    ///
    /// # Errors
    /// When this process lacks `CAP_SYS_ADMIN`, or the kernel refuses.
    pub(crate) fn make(
        system: &'static str,
        place: &Path,
        bytes: u64,
        own: &[&Path],
    ) -> Result<MemoryFolder, SystemError> {
        // On a new thread, because unshare(2) moves the calling thread.
        let made = std::thread::scope(|scope| scope.spawn(|| make(place, bytes, own)).join());
        let made = made.unwrap_or_else(|_| Err(io::Error::other("the thread ended early")));
        made.map(|link| MemoryFolder { link: Arc::new(link) }).map_err(|error| {
            let problem = format!("can't mount memory at {}: {error}", place.display());
            SystemError::starting(system, problem)
        })
    }

    /// Makes the process of `command` start where the folder is. Its working directory has to be set before.
    pub(crate) fn enter(&self, command: &mut Command) {
        let link = Arc::clone(&self.link);
        let folder = command.get_current_dir().unwrap_or(Path::new("/"));
        // A path with a zero could not be entered in the first place.
        let folder = CString::new(folder.as_os_str().as_bytes()).unwrap_or_default();
        // SAFETY: between fork and exec the closure makes two system calls with a descriptor and a string that it holds; it takes no lock
        // and allocates nothing.
        unsafe {
            command.pre_exec(move || {
                move_into_link_name_space(link.as_fd(), Some(LinkNameSpaceType::Mount))?;
                // Entering a mount namespace leads to its root.
                rustix::process::chdir(folder.as_c_str())?;
                Ok(())
            });
        }
    }
}

fn make(place: &Path, bytes: u64, own: &[&Path]) -> io::Result<OwnedFd> {
    // Nothing that is mounted here shows outside.
    enter_own_mounts(own, UnshareFlags::empty())?;
    let options = CString::new(format!("size={bytes},mode=0700"))?;
    mount("tmpfs", place, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, options.as_c_str())?;
    Ok(File::open("/proc/thread-self/ns/mnt")?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_enters_sees_it() {
        let folder = tempfile::tempdir().unwrap();
        let place = std::fs::canonicalize(folder.path()).unwrap();
        let memory = MemoryFolder::make("test", &place, 1 << 20, &[&place]).unwrap();
        let run = |script: &str, enters: bool| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).current_dir(&place);
            if enters {
                memory.enter(&mut command);
            }
            let output = command.output().unwrap();
            (output.status.success(), String::from_utf8(output.stdout).unwrap())
        };
        assert_eq!(run("echo a > file && pwd", true), (true, format!("{}\n", place.display())));
        assert_eq!(run("cat file", true), (true, "a\n".to_owned()));
        assert!(!run("cat file", false).0, "it shows outside");
        assert!(!run("head -c 2000000 /dev/zero > large", true).0, "it has no limit");
        drop(memory);
        assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);
    }
}
