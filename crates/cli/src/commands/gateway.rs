//! `underlay gateway`: hands over to the program `underlay-gateway`, which is one of its own so that this one stays small.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use underlay_files::check_trusted_file;

use crate::exit_codes::Failure;

pub(crate) const PROGRAM: &str = "underlay-gateway";

/// Becomes the gateway; it only returns where that can't be.
pub(crate) fn gateway(arguments: &[OsString]) -> Result<ExitCode, Failure> {
    let program = find()?;
    let error = Command::new(&program).args(arguments).exec();
    Err(Failure::Failed(format!("cannot start {}: {error}", program.display())))
}

/// The program beside this one, or in a directory of `PATH` in which only root can put something.
pub(crate) fn find() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().ok();
    if let Some(beside) = own.as_deref().and_then(Path::parent).map(|folder| folder.join(PROGRAM))
        && beside.is_file()
    {
        return match check_trusted_file(&beside) {
            Ok(()) => Ok(beside),
            Err(error) => Err(Failure::Failed(format!("{} is not started: {error}", beside.display()))),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .filter(|folder| folder.is_absolute() && is_roots(folder))
        .map(|folder| folder.join(PROGRAM))
        .find(|program| program.is_file() && check_trusted_file(program).is_ok());
    found.ok_or_else(|| {
        Failure::Missing(format!(
            "missing: the program {PROGRAM}, which is not beside underlay and not in a directory of PATH that belongs to root\n  what to do: in Underlay's sources `make gateway` builds it and `make install` installs it; the Debian package has it"
        ))
    })
}

fn is_roots(folder: &Path) -> bool {
    std::fs::metadata(folder).is_ok_and(|found| found.uid() == 0 && found.mode() & 0o022 == 0)
}
