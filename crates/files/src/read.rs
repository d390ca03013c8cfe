//! Bytes from outside, up to a bound: a study that is `/dev/zero` must not fill the memory first.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// The whole file, or what a pipe gives.
///
/// # Errors
/// When it can't be read, or is longer than `most_bytes`.
pub fn read(path: &Path, most_bytes: u64) -> io::Result<Vec<u8>> {
    bytes(File::open(path)?, most_bytes)
}

/// As [`read`], of what must be text.
///
/// # Errors
/// As `read`, or when it is no UTF-8.
pub fn read_text(path: &Path, most_bytes: u64) -> io::Result<String> {
    text(File::open(path)?, most_bytes)
}

fn check_length(length_bytes: u64, most_bytes: u64) -> io::Result<()> {
    match length_bytes > most_bytes {
        true => Err(io::Error::new(io::ErrorKind::FileTooLarge, too_long(most_bytes))),
        false => Ok(()),
    }
}

pub(crate) fn text(file: File, most_bytes: u64) -> io::Result<String> {
    String::from_utf8(bytes(file, most_bytes)?)
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
