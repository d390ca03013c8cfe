//! A folder that is ours, held by descriptor: its path may be moved or removed meanwhile.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, fchmod, fstat, mkdirat, openat, statat};
use rustix::io::Errno;

use crate::trusted_path::{User, open_trusted_path, place_of, refused};
use crate::{Access, plain_file, write};

const OPEN: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A name that nobody can guess: others who may write in the folder can't have put something there.
pub fn unique_name(purpose: &str) -> String {
    use std::hash::{BuildHasher as _, RandomState};
    // Its keys are from the kernel's random numbers.
    let number = RandomState::new().hash_one(std::process::id());
    format!("{purpose}-{}-{number:016x}", std::process::id())
}

/// See the module.
#[derive(Debug)]
pub struct Folder {
    descriptor: OwnedFd,
    path: PathBuf,
}

impl Folder {
    /// One that is there. Links on the way are followed where [`check_trusted_path`](crate::check_trusted_path) lets
    /// them pass.
    ///
    /// # Errors
    /// When it is not there, belongs to another user, or can be written to or exchanged by one.
    pub fn open(path: &Path) -> io::Result<Folder> {
        let user = User::current();
        Folder::from_descriptor(open_trusted_path(path, &user)?, &user)
    }

    /// Makes the folder where it is not there, and those above it.
    ///
    /// # Errors
    /// As [`open`](Folder::open), or when it can't be made.
    pub fn make(path: &Path, access: Access) -> io::Result<Folder> {
        match std::fs::symlink_metadata(path) {
            Ok(_) => Folder::open(path),
            Err(_) => match Folder::make_new(path, access) {
                // Another process was faster, and may be ours.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Folder::open(path),
                outcome => outcome,
            },
        }
    }

    /// Makes the folder, which must not be there, and those above it that are missing.
    ///
    /// # Errors
    /// When it is there, can't be made, or someone else could exchange it.
    pub fn make_new(path: &Path, access: Access) -> io::Result<Folder> {
        let user = User::current();
        let path = std::path::absolute(path)?;
        let Some((parent, name)) = path.parent().zip(path.file_name()) else {
            return Err(Errno::EXIST.into());
        };
        match std::fs::metadata(parent) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => drop(Folder::make(parent, access)?),
            _ => {}
        }
        let above = open_trusted_path(parent, &user)?;
        if let Some(reason) = user.exchange(&above, &fstat(&above)?) {
            return Err(refused(&path, parent, &reason));
        }
        Folder::make_in(above.as_fd(), name, access)
    }

    /// The folder of this name in this one, which is made if it is not there.
    ///
    /// # Errors
    /// When it can't be made, or is something else than a folder of this user.
    pub fn make_inner(&self, name: &str, access: Access) -> io::Result<Folder> {
        match Folder::make_in(self.descriptor.as_fd(), OsStr::new(name), access) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.inner(name),
            outcome => outcome,
        }
    }

    /// The folder of this name in this one.
    ///
    /// # Errors
    /// When it is not there, or is something else than a folder of this user.
    pub fn inner(&self, name: &str) -> io::Result<Folder> {
        let descriptor = openat(&self.descriptor, name, OPEN, Mode::empty())?;
        Folder::from_descriptor(descriptor, &User::current())
    }

    fn make_in(above: BorrowedFd<'_>, name: &OsStr, access: Access) -> io::Result<Folder> {
        mkdirat(above, name, access.folder_mode())?;
        // `mkdirat` returns no descriptor, so `from_descriptor` checks what the name leads to by now.
        let descriptor = openat(above, name, OPEN, Mode::empty())?;
        if access == Access::Private {
            // A umask can take away what we need ourselves.
            fchmod(&descriptor, access.folder_mode())?;
        }
        Folder::from_descriptor(descriptor, &User::current())
    }

    fn from_descriptor(descriptor: OwnedFd, user: &User) -> io::Result<Folder> {
        // Opened again, since `fsync` refuses a descriptor that was opened with `O_PATH`.
        let descriptor = openat(&descriptor, ".", OPEN, Mode::empty())?;
        let path = place_of(&descriptor)?;
        let found = fstat(&descriptor)?;
        if !user.owns(&found) {
            return Err(denied(&format!(
                "it belongs to user {}, but this process runs as user {}",
                found.st_uid, user.number
            )));
        }
        match user.mistrust(&descriptor, &found) {
            Some(reason) => Err(denied(&format!(
                "it {reason}: give it to this user alone (`chmod go-w`), or name another"
            ))),
            None => Ok(Folder { descriptor, path }),
        }
    }

    /// Locks the folder itself against others who lock it, for as long as this is kept.
    ///
    /// # Errors
    /// When another has it locked, or its file system has no locks.
    pub(crate) fn try_lock(&self) -> io::Result<()> {
        Ok(rustix::fs::flock(&self.descriptor, rustix::fs::FlockOperation::NonBlockingLockExclusive)?)
    }

    /// Where it was when it was opened, without links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn has(&self, name: &str) -> bool {
        statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Whether the open file is still the one of this name: it may have been removed, and another made.
    pub fn holds(&self, name: &str, open: &File) -> bool {
        let on_disk = statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW);
        let (Ok(open), Ok(on_disk)) = (fstat(open), on_disk) else { return false };
        (open.st_dev, open.st_ino) == (on_disk.st_dev, on_disk.st_ino)
    }

    /// The file of this name, for reading and writing, made where it is not there: for this user alone, never emptied.
    ///
    /// # Errors
    /// When it is a link or anything else than a regular file, or can't be opened.
    pub fn file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&self.descriptor, name, flags, Access::Private.file_mode())?;
        if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("it is not a regular file"));
        }
        Ok(file.into())
    }

    /// A file of this name for writing, which must not be there: for this user alone, regardless of the umask.
    ///
    /// # Errors
    /// When something of that name is there, or it can't be made.
    pub fn new_file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Access::Private.file_mode();
        let file = openat(&self.descriptor, name, flags, mode)?;
        fchmod(&file, mode)?;
        Ok(file.into())
    }

    /// Puts this content in the place of the file of this name: after a crash there is the old or the new one, whole.
    ///
    /// # Errors
    /// When something else than a regular file is there, or it can't be written.
    pub fn replace(&self, name: &str, access: Access, content: &[u8]) -> io::Result<()> {
        let part = format!("{name}.{}", write::PART);
        write::replace_in(
            self.descriptor.as_fd(),
            OsStr::new(name),
            OsStr::new(&part),
            access,
            |mut file| file.write_all(content),
        )?;
        // The rename is durable only once the folder is.
        rustix::fs::fsync(&self.descriptor).map_err(io::Error::from)
    }

    /// The same, for appending: each write goes to its end.
    ///
    /// # Errors
    /// As [`file`](Folder::file).
    pub fn file_to_append(&self, name: &str) -> io::Result<File> {
        let file = self.file(name)?;
        rustix::fs::fcntl_setfl(&file, OFlags::APPEND)?;
        Ok(file)
    }

    /// Gives a file of this folder another name, and replaces any file that has it.
    ///
    /// # Errors
    /// When it is not there, or a folder has that name.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        rustix::fs::renameat(&self.descriptor, from, &self.descriptor, to).map_err(io::Error::from)
    }

    /// Writes a file for this user alone, which gets its name once all of it is on disk.
    ///
    /// # Errors
    /// When something of that name is there, or it can't be written. Then nothing new is there.
    pub fn write_new(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let part = format!("{}.{}", unique_name(name), write::PART);
        let written = self.new_file(&part).and_then(|mut file| {
            file.write_all(content)?;
            file.sync_all()?;
            self.rename_new(&part, name)
        });
        if written.is_err() {
            let _ = self.remove_if_there(&part);
        }
        written?;
        // The rename is durable only once the folder is.
        rustix::fs::fsync(&self.descriptor).map_err(|error| {
            let _ = self.remove_if_there(name);
            io::Error::from(error)
        })
    }

    /// As [`rename`](Folder::rename), but replaces nothing.
    fn rename_new(&self, from: &str, to: &str) -> io::Result<()> {
        let (folder, flags) = (&self.descriptor, RenameFlags::NOREPLACE);
        match rustix::fs::renameat_with(folder, from, folder, to, flags) {
            // Some file systems, such as NFS, have no such flag.
            Err(Errno::INVAL | Errno::NOSYS) if !self.has(to) => self.rename(from, to),
            Err(Errno::INVAL | Errno::NOSYS) => Err(Errno::EXIST.into()),
            outcome => Ok(outcome?),
        }
    }

    /// The whole file of this name.
    ///
    /// # Errors
    /// When it can't be read, is not a regular file, or is longer than `most_bytes`.
    pub fn read_text(&self, name: &str, most_bytes: u64) -> io::Result<String> {
        let file = plain_file::open_in(self.descriptor.as_fd(), Path::new(name))?
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        crate::read::text(file, most_bytes)
    }

    /// Removes the unfinished files of killed processes. Nobody else may be writing here.
    ///
    /// # Errors
    /// When the folder can't be read, or a file not be removed.
    pub fn remove_parts(&self) -> io::Result<()> {
        for entry in Dir::read_from(&self.descriptor)? {
            let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
            let found = || statat(&self.descriptor, &name, AtFlags::SYMLINK_NOFOLLOW);
            if Path::new(&name).extension() == Some(OsStr::new(write::PART))
                && FileType::from_raw_mode(found()?.st_mode) == FileType::RegularFile
            {
                write::unlink(self.descriptor.as_fd(), &name)?;
            }
        }
        Ok(())
    }

    /// Removes the file of this name; it is no error when there is none.
    ///
    /// # Errors
    /// When it is there and can't be removed.
    pub fn remove_file(&self, name: &str) -> io::Result<()> {
        write::unlink(self.descriptor.as_fd(), OsStr::new(name))
    }

    /// Removes the folder of this name, which must be empty.
    ///
    /// # Errors
    /// When it is not there, holds something or can't be removed.
    pub fn remove_empty(&self, name: &str) -> io::Result<()> {
        rustix::fs::unlinkat(&self.descriptor, name, AtFlags::REMOVEDIR).map_err(io::Error::from)
    }

    /// Removes a file of that name, if there is one.
    ///
    /// # Errors
    /// When it can't be removed.
    pub fn remove_if_there(&self, name: &str) -> io::Result<()> {
        match self.remove_file(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

fn denied(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, problem.to_owned())
}
