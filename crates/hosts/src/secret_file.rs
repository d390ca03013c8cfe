//! Reading files with secrets.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::HostError;

/// Tokens, certificates and keys are small.
pub(crate) const MAX_FILE_BYTES: u64 = 1 << 20;

/// Checks that not everybody can read the file.
pub(crate) fn check_private(file: &Path) -> Result<(), HostError> {
    let metadata = std::fs::metadata(file).map_err(|error| unreadable(file, &error))?;
    if metadata.is_dir() {
        return Err(HostError::Trust(format!("{} is a directory: expected a file", file.display())));
    }
    let mode = metadata.permissions().mode();
    if mode & 0o007 != 0 {
        let file = file.display();
        return Err(HostError::Trust(format!("{file}: everybody can read it: run chmod 600 {file}")));
    }
    Ok(())
}

/// Reads a small file.
pub(crate) fn read_some(file: &Path) -> Result<Vec<u8>, HostError> {
    let mut bytes = Vec::new();
    File::open(file)
        .and_then(|opened| opened.take(MAX_FILE_BYTES).read_to_end(&mut bytes))
        .map_err(|error| unreadable(file, &error))?;
    Ok(bytes)
}

fn unreadable(file: &Path, error: &std::io::Error) -> HostError {
    HostError::Trust(format!("{} can't be read: {error}", file.display()))
}
