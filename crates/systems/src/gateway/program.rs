//! Where the program is.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use underlay_files::check_trusted_file;

use crate::system::SystemError;

/// Its name.
const PROGRAM: &str = "underlay-gateway";
const REMEDY: &str = "in Underlay's sources `make gateway` builds it and `make install` installs it; the Debian package has it";

/// The program beside this one, or in a directory of `PATH` in which only root can put something.
///
/// # Errors
/// That `system` lacks it, and how to get it; or that somebody else could have put it there.
pub fn find(system: &'static str) -> Result<PathBuf, SystemError> {
    let own = std::env::current_exe().ok();
    if let Some(sibling) = own.as_deref().and_then(Path::parent).map(|folder| folder.join(PROGRAM))
        && sibling.is_file()
    {
        return trusted(system, sibling);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .filter(|folder| folder.is_absolute() && is_roots(folder))
        .map(|folder| folder.join(PROGRAM))
        .find(|program| program.is_file() && check_trusted_file(program).is_ok());
    found.ok_or_else(|| SystemError::Missing {
        system,
        missing: format!(
            "the program {PROGRAM}, which is not beside underlay and not in a directory of PATH that belongs to root"
        ),
        remedy: REMEDY.to_owned(),
    })
}

/// `program`, if it is there and nobody else could replace it.
pub(crate) fn trusted(system: &'static str, program: PathBuf) -> Result<PathBuf, SystemError> {
    if !program.is_file() {
        return Err(SystemError::Missing {
            system,
            missing: format!("the program {}", program.display()),
            remedy: REMEDY.to_owned(),
        });
    }
    match check_trusted_file(&program) {
        Ok(()) => Ok(program),
        Err(error) => {
            Err(SystemError::starting(system, format!("{} is not started: {error}", program.display())))
        }
    }
}

fn is_roots(folder: &Path) -> bool {
    std::fs::metadata(folder).is_ok_and(|found| found.uid() == 0 && found.mode() & 0o022 == 0)
}
