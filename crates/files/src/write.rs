//! Files that the user names: replaced whole, and only what is a regular file.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, fchmod, fcntl_getfl, fcntl_setfl, fstat, fsync, openat, renameat, statat,
};
use rustix::io::Errno;

use crate::Access;
use crate::read::kind_of;
use crate::trusted_path::User;

/// The extension of a file that is not complete yet.
pub(crate) const PART: &str = "part";

/// The kind of file in a new file's place.
enum There {
    Nothing,
    File,
    /// And what it is.
    Other(&'static str),
}

/// Writes a file beside `path` by `write`, and puts it in its place once it is whole and on the disk.
///
/// # Errors
/// Those of `write`, when the file can't be made, or something else than a regular file is there.
pub fn replace_with<T, E: From<io::Error>>(
    path: &Path,
    access: Access,
    write: impl FnOnce(File) -> Result<T, E>,
) -> Result<T, E> {
    let (folder, name) = folder_and_name(path)?;
    // Another process may write the same file.
    let mut part = name.to_owned();
    part.push(format!(".{}.{PART}", std::process::id()));
    replace_in(folder.as_fd(), name, &part, access, write)
}

/// Puts this content in the place of a file of ours, which one process at a time writes: durable once it returns.
///
/// # Errors
/// As [`replace_with`].
pub fn replace(path: &Path, access: Access, content: &[u8]) -> io::Result<()> {
    let (folder, name) = folder_and_name(path)?;
    let mut part = name.to_owned();
    // A fixed name, as there is one writer: what a crash leaves is removed by the next call.
    part.push(format!(".{PART}"));
    replace_in(folder.as_fd(), name, &part, access, |mut file| file.write_all(content))?;
    // The rename is durable only once the folder is. Opened again, since `fsync` refuses `O_PATH`.
    fsync(openat(&folder, ".", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?).map_err(io::Error::from)
}

/// Writes the file whole, as [`replace_with`]. Where the user names a device, a pipe or a link (`/dev/stdout`) in a
/// folder that nobody else can write to, it is written to as a shell would.
///
/// # Errors
/// When something else than a regular file is there, or it can't be written.
pub fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let place = Place::from_path(path)?;
    match place.target()? {
        Target::Replaced => replace_with(path, Access::Readable, |mut file| file.write_all(content)),
        Target::Through => place.open(OFlags::TRUNC)?.write_all(content),
    }
}

/// Opens the file to write at its end; it is made where it is not there. Devices, pipes and links as [`write()`] has
/// them.
///
/// # Errors
/// When something else than a regular file is there, or it can't be opened.
pub fn append(path: &Path) -> io::Result<File> {
    let place = Place::from_path(path)?;
    match place.target()? {
        Target::Through => place.open(OFlags::APPEND),
        Target::Replaced => {
            let file = place.open(OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK)?;
            // Something else may have come there meanwhile.
            match FileType::from_raw_mode(fstat(&file)?.st_mode) {
                FileType::RegularFile => Ok(file),
                _ => Err(refuse_kind("something else")),
            }
        }
    }
}

/// Tells before the work whether [`write()`] could write here after it. It changes nothing.
///
/// # Errors
/// As `write`.
pub fn check_writable(path: &Path) -> io::Result<()> {
    let place = Place::from_path(path)?;
    if let Target::Replaced = place.target()? {
        use rustix::fs::{Access as Asked, accessat};
        accessat(&place.folder, ".", Asked::WRITE_OK | Asked::EXEC_OK, AtFlags::EACCESS)?;
    }
    Ok(())
}

/// As [`check_writable`], for [`replace_with`].
///
/// # Errors
/// As `replace_with`.
pub fn check_replaceable(path: &Path) -> io::Result<()> {
    let (folder, name) = folder_and_name(path)?;
    check_there(folder.as_fd(), name)?;
    check_writable(path)
}

enum Target {
    Replaced,
    Through,
}

/// A name in a folder that is looked up once: what is found about it holds for what is opened.
struct Place<'a> {
    folder: OwnedFd,
    name: &'a OsStr,
}

impl Place<'_> {
    fn from_path(path: &Path) -> io::Result<Place<'_>> {
        let (folder, name) = folder_and_name(path)?;
        Ok(Place { folder, name })
    }

    fn target(&self) -> io::Result<Target> {
        match there(self.folder.as_fd(), self.name)? {
            There::Nothing | There::File => Ok(Target::Replaced),
            There::Other(kind) => match User::current().mistrust(&self.folder, &fstat(&self.folder)?) {
                None => Ok(Target::Through),
                Some(_) => Err(refuse_kind(kind)),
            },
        }
    }

    fn open(&self, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::WRONLY | OFlags::CLOEXEC;
        // A pipe that nobody reads would keep its writer waiting, deaf to signals.
        let opened = openat(&self.folder, self.name, flags | OFlags::NONBLOCK, Access::Readable.file_mode());
        let file = opened.map_err(|errno| match errno {
            Errno::NXIO => io::Error::other("it is a pipe that nobody reads: name a file"),
            other => other.into(),
        })?;
        fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
        Ok(file.into())
    }
}

pub(crate) fn replace_in<T, E: From<io::Error>>(
    folder: BorrowedFd<'_>,
    name: &OsStr,
    part: &OsStr,
    access: Access,
    write: impl FnOnce(File) -> Result<T, E>,
) -> Result<T, E> {
    check_there(folder, name)?;
    // Left by a crash, or being written by another process, which then finds out from `check_is_there`.
    // Created anew with `EXCL`, so that it can't be a link that someone planted.
    unlink(folder, part)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(folder, part, flags, access.file_mode()).map_err(io::Error::from)?;
    let written = (|| {
        if access == Access::Private {
            // A umask can take away what we need ourselves.
            fchmod(&file, access.file_mode()).map_err(io::Error::from)?;
        }
        let answer = write(File::from(file.try_clone()?))?;
        // Before the rename: a crash after it must not leave the name with content that never reached the
        // disk.
        fsync(&file).map_err(io::Error::from)?;
        // Someone may have put something there meanwhile.
        check_there(folder, name)?;
        check_is_there(folder, part, &file)?;
        renameat(folder, part, folder, name).map_err(io::Error::from)?;
        Ok(answer)
    })();
    if written.is_err() && check_is_there(folder, part, &file).is_ok() {
        let _ = unlink(folder, part);
    }
    written
}

pub(crate) fn unlink(folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn check_there(folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    match there(folder, name)? {
        There::Nothing | There::File => Ok(()),
        There::Other(kind) => Err(refuse_kind(kind)),
    }
}

/// Another process that writes the same file may have put its own part there, which is not whole yet.
fn check_is_there(folder: BorrowedFd<'_>, part: &OsStr, file: &OwnedFd) -> io::Result<()> {
    let (own, found) = (fstat(file)?, statat(folder, part, AtFlags::SYMLINK_NOFOLLOW));
    match found {
        Ok(found) if (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino) => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::ResourceBusy, "another process is writing the same file")),
    }
}

fn refuse_kind(kind: &str) -> io::Error {
    io::Error::other(format!("{kind} is there, and only regular files are replaced: name another file"))
}

fn there(folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<There> {
    let found = match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => found,
        Err(Errno::NOENT) => return Ok(There::Nothing),
        Err(errno) => return Err(errno.into()),
    };
    Ok(match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => There::File,
        FileType::Directory => return Err(io::Error::from(io::ErrorKind::IsADirectory)),
        other => There::Other(kind_of(other)),
    })
}

fn folder_and_name(path: &Path) -> io::Result<(OwnedFd, &OsStr)> {
    let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::IsADirectory))?;
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok((openat(rustix::fs::CWD, folder, flags, Mode::empty())?, name))
}
