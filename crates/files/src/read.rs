//! Bytes from outside, up to a bound: a study that is `/dev/zero` must not fill the memory first.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use rustix::fs::{
    CWD, FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, fstat, fstatfs, major, minor, openat,
};
use rustix::io::Errno;

/// `PIPEFS_MAGIC` of the kernel's `magic.h`.
const PIPEFS_MAGIC: rustix::fs::FsWord = 0x5049_5045;

/// Major and minor number of `/dev/null` (Documentation/admin-guide/devices.txt of the kernel).
const NULL_DEVICE: (u32, u32) = (1, 3);

/// The whole content of a regular file, or of `/dev/null`. Links are followed.
///
/// # Errors
/// When it can't be read, is not a regular file, or is longer than `most_bytes`.
pub fn read(path: &Path, most_bytes: u64) -> io::Result<Vec<u8>> {
    let file = open_at_once(path)?;
    if !is_null(&file)? {
        check_regular(&file)?;
    }
    bytes(file, most_bytes)
}

/// As [`read`], of what must be text.
///
/// # Errors
/// As `read`, or when it is not UTF-8.
pub fn read_text(path: &Path, most_bytes: u64) -> io::Result<String> {
    decode_text(read(path, most_bytes)?)
}

/// As [`read`], or what a pipe without a name gives: `<(...)` in a shell, or standard input. Somebody holds its other
/// end, whereas nobody may ever write to a pipe that has a name.
///
/// # Errors
/// As `read`, but for such pipes.
pub fn read_or_pipe(path: &Path, most_bytes: u64) -> io::Result<Vec<u8>> {
    let file = open_at_once(path)?;
    match is_unnamed_pipe(&file)? {
        true => fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?,
        false if is_null(&file)? => {}
        false => check_regular(&file)?,
    }
    bytes(file, most_bytes)
}

/// As [`read_or_pipe`], of what must be text.
///
/// # Errors
/// As `read_or_pipe`, or when it is not UTF-8.
pub fn read_text_or_pipe(path: &Path, most_bytes: u64) -> io::Result<String> {
    decode_text(read_or_pipe(path, most_bytes)?)
}

/// Waits neither for somebody to write to a pipe nor for a device.
fn open_at_once(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match openat(CWD, path, flags, Mode::empty()) {
        Ok(file) => Ok(File::from(file)),
        // Sockets can't be opened.
        Err(Errno::NXIO) => Err(not_regular("a socket or a device without a driver")),
        Err(errno) => Err(errno.into()),
    }
}

/// `/dev/null` is the usual way to say that a file is empty.
fn is_null(file: &File) -> io::Result<bool> {
    let found = fstat(file)?;
    let is_device = FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice;
    Ok(is_device && (major(found.st_rdev), minor(found.st_rdev)) == NULL_DEVICE)
}

/// # Errors
/// When it is something else than a regular file: what it is.
pub(crate) fn check_regular(file: &File) -> io::Result<()> {
    match FileType::from_raw_mode(fstat(file)?.st_mode) {
        FileType::RegularFile => Ok(()),
        other => Err(not_regular(kind_of(other))),
    }
}

fn not_regular(kind: &str) -> io::Error {
    io::Error::other(format!("it is {kind}: expected a regular file"))
}

/// Its name for the user.
pub(crate) fn kind_of(file_type: FileType) -> &'static str {
    match file_type {
        FileType::RegularFile => "a regular file",
        FileType::Directory => "a directory",
        FileType::Symlink => "a link",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        FileType::Unknown => "something else",
    }
}

fn is_unnamed_pipe(file: &File) -> io::Result<bool> {
    if FileType::from_raw_mode(fstat(file)?.st_mode) != FileType::Fifo {
        return Ok(false);
    }
    // The kernel's own file system of pipes, in which nothing has a name.
    Ok(fstatfs(file)?.f_type == PIPEFS_MAGIC)
}

fn check_length(length_bytes: u64, most_bytes: u64) -> io::Result<()> {
    match length_bytes > most_bytes {
        true => Err(io::Error::new(io::ErrorKind::FileTooLarge, too_long(most_bytes))),
        false => Ok(()),
    }
}

pub(crate) fn text(file: File, most_bytes: u64) -> io::Result<String> {
    decode_text(bytes(file, most_bytes)?)
}

fn decode_text(content: Vec<u8>) -> io::Result<String> {
    String::from_utf8(content)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not text (UTF-8)"))
}

pub(crate) fn bytes(file: File, most_bytes: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    // One byte more than allowed tells content that is too long from content that just fits.
    file.take(most_bytes.saturating_add(1)).read_to_end(&mut content)?;
    check_length(content.len() as u64, most_bytes)?;
    Ok(content)
}

fn too_long(most_bytes: u64) -> String {
    match most_bytes {
        whole if whole >= 1 << 20 && whole.is_multiple_of(1 << 20) => {
            format!("it is longer than {} MiB", whole >> 20)
        }
        bytes => format!("it is longer than {bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn irregular_file_is_refused_immediately() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let socket = folder.path().join("socket");
        let _listening = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, expected) in [
            (pipe.as_path(), "it is a pipe: expected a regular file"),
            (folder.path(), "it is a directory: expected a regular file"),
            (Path::new("/dev/zero"), "it is a device: expected a regular file"),
            (&socket, "it is a socket or a device without a driver: expected a regular file"),
        ] {
            assert_eq!(read(path, 9).unwrap_err().to_string(), expected);
            assert_eq!(read_text(path, 9).unwrap_err().to_string(), expected);
            assert_eq!(read_or_pipe(path, 9).unwrap_err().to_string(), expected);
        }
        assert_eq!(read(Path::new("/dev/null"), 9).unwrap(), b"");
        // Not even where somebody does write.
        let _writer = File::options().read(true).write(true).open(&pipe).unwrap();
        assert!(read_or_pipe(&pipe, 9).is_err());
    }

    #[test]
    fn shell_pipe_is_awaited_if_allowed() {
        let (reader, mut writer) = io::pipe().unwrap();
        let path = format!("/dev/fd/{}", reader.as_raw_fd());
        let path = Path::new(&path);
        assert!(read_text(path, 9).unwrap_err().to_string().contains("a pipe"));
        // It ends where its last writer is gone.
        let write = std::thread::spawn(move || writer.write_all(b"one").unwrap());
        assert_eq!(read_text_or_pipe(path, 3).unwrap(), "one");
        write.join().unwrap();
    }
}
