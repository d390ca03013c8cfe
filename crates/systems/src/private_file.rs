//! Files that hold passwords and secrets.

use std::io;
use std::path::Path;

use underlay_files::Access;

/// Writes a file that only this user can read. It replaces a file that an earlier run left, regardless of its mode.
pub(crate) fn write_private(path: &Path, text: &str) -> io::Result<()> {
    underlay_files::replace(path, Access::Private, text.as_bytes())
}
