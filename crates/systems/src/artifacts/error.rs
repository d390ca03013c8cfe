//! What can go wrong with artifacts, and what to do then.

use std::path::PathBuf;

use crate::system::SystemError;

const CLOSED_REMEDY: &str = "install Maven and Java 17 where every user can run them (Debian: apt install maven openjdk-17-jdk-headless), \
    or copy the cache of another user, or set UNDERLAY_FETCH_AS_ROOT=1 to let Maven and its plugins run as root";

#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// A list of ours is wrong: a mistake in the program.
    #[error("the list of artifacts '{list}' is wrong at line {line}: {problem}")]
    List { list: &'static str, line: usize, problem: String },
    /// There is no place to keep what is fetched.
    #[error("there is no place for a cache: set UNDERLAY_CACHE to a directory, or HOME")]
    NoCache,
    #[error("can't {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: std::io::Error },
    /// A program is not installed.
    #[error("the program '{program}' is not there: {remedy}")]
    Program { program: &'static str, remedy: &'static str },
    /// A program is there, and the user who shall run it can't.
    #[error("Maven can't run without root's rights: {problem}: {CLOSED_REMEDY}")]
    Closed { problem: String },
    /// Maven could not bring the files.
    #[error("Maven did not bring the {files} files of '{list}' ({megabytes:.0} MB): {problem}{}", log_tail.as_deref().map(|log| format!("\nits last words:\n{log}")).unwrap_or_default())]
    Fetch { list: &'static str, files: usize, megabytes: f64, problem: String, log_tail: Option<String> },
    /// What was fetched is not what the list says.
    #[error("what was fetched for '{list}' is not what its list says, and was thrown away: {problem}")]
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

    /// The same as an error of `system`, which can't run without.
    pub fn of_system(self, system: &'static str) -> SystemError {
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
            ArtifactError::NoCache => {
                missing("a place for its programs".to_owned(), "set UNDERLAY_CACHE to a directory, or HOME")
            }
            ArtifactError::Fetch { list, files, megabytes, problem, log_tail } => {
                let log = log_tail.map(|log| format!(" (Maven's last words: {log})")).unwrap_or_default();
                missing(
                    format!(
                        "{files} files of '{list}' ({megabytes:.0} MB) from a Maven repository: {problem}{log}"
                    ),
                    "run it once where Maven reaches a repository (a proxy or a mirror is named in ~/.m2/settings.xml), \
                     or copy the cache of a machine where it ran and name it with UNDERLAY_CACHE",
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
