//! Errors of artifacts, with their remedies.

use std::path::PathBuf;

use crate::system::SystemError;

const CLOSED_REMEDY: &str = "install Maven and Java 17 where every user can run them (Debian: apt install maven openjdk-17-jdk-headless), \
    or copy the cache of another user, or set UNDERLAY_FETCH_AS_ROOT=1 to let Maven and its plugins run as root";

#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// One of our lists is malformed, which is a bug.
    #[error("the list of artifacts '{list}' is wrong at line {line}: {problem}")]
    List { list: &'static str, line: usize, problem: String },
    /// There is nowhere to keep what is fetched.
    #[error("no directory for the cache: set UNDERLAY_CACHE to a directory, or HOME")]
    NoCache,
    #[error("can't {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: std::io::Error },
    /// A program is not installed.
    #[error("the program '{program}' is not installed: {remedy}")]
    Program { program: &'static str, remedy: &'static str },
    /// A program is installed, but the user that should run it can't.
    #[error("Maven can't run without root's rights: {problem}: {CLOSED_REMEDY}")]
    Closed { problem: String },
    /// Maven could not download the files.
    #[error("Maven could not fetch the {files} files of '{list}' ({megabytes:.0} MB): {problem}{}", log_tail.as_deref().map(|log| format!("\nits last words:\n{log}")).unwrap_or_default())]
    Fetch { list: &'static str, files: usize, megabytes: f64, problem: String, log_tail: Option<String> },
    /// The fetched files differ from the list.
    #[error("the files fetched for '{list}' differ from its list and were deleted: {problem}")]
    Different { list: &'static str, problem: String },
}

impl ArtifactError {
    pub(crate) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> ArtifactError {
        let path = path.into();
        move |source| ArtifactError::Io { action, path, source }
    }

    /// The same as an error of `system`, which needs the artifacts.
    pub fn into_system_error(self, system: &'static str) -> SystemError {
        let missing = |missing: String, remedy: &str| SystemError::Missing {
            system,
            missing,
            remedy: remedy.to_owned(),
        };
        match self {
            ArtifactError::Program { program, remedy } => missing(format!("the program '{program}'"), remedy),
            ArtifactError::Closed { problem } => {
                missing(format!("a Maven that runs without root's rights ({problem})"), CLOSED_REMEDY)
            }
            ArtifactError::NoCache => missing(
                "a directory for its programs".to_owned(),
                "set UNDERLAY_CACHE to a directory, or HOME",
            ),
            ArtifactError::Fetch { list, files, megabytes, problem, log_tail } => {
                let log = log_tail.map(|log| format!(" (Maven's last words: {log})")).unwrap_or_default();
                missing(
                    format!(
                        "{files} files of '{list}' ({megabytes:.0} MB) from a Maven repository: {problem}{log}"
                    ),
                    "run it once where Maven can reach a repository (configure a proxy or mirror in ~/.m2/settings.xml), \
                     or copy the cache from such a machine and set UNDERLAY_CACHE to it",
                )
            }
            other => SystemError::Failed {
                system,
                during: "getting its programs",
                problem: other.to_string(),
                log_tail: None,
            },
        }
    }
}
