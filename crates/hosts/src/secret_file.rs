//! Reading files with secrets.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use crate::HostError;

/// Tokens, certificates and keys are small.
pub(crate) const MAX_FILE_BYTES: u64 = 1 << 20;

/// Reads a secret that nobody else can read. Root may have given it to this process's group, as containers get their
/// secrets.
pub(crate) fn read_private(file: &Path) -> Result<String, HostError> {
    underlay_files::read_given_secret(file, MAX_FILE_BYTES).map_err(|error| unreadable(file, &error))
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
