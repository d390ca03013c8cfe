//! The Java machine that nodes and `nodetool` run on.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use super::NAME;
use crate::system::SystemError;

/// Cassandra 5.0 runs on this version, and its security manager on none that is much later.
const VERSION: u32 = 17;
const REMEDY: &str =
    "install Java 17 (Debian: apt install openjdk-17-jdk-headless), or name its directory in JAVA_HOME";

/// A Java machine of the right version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Java {
    pub program: PathBuf,
    pub version: String,
}

impl Java {
    /// The one of `JAVA_HOME`, or else the first on the `PATH`. It is asked for its version once.
    pub fn find() -> Result<Java, SystemError> {
        static FOUND: OnceLock<Result<Java, String>> = OnceLock::new();
        let look = || look(std::env::var_os("JAVA_HOME").filter(|home| !home.is_empty()));
        FOUND.get_or_init(look).clone().map_err(|missing| SystemError::Missing {
            system: NAME,
            missing,
            remedy: REMEDY.to_owned(),
        })
    }
}

fn look(home: Option<OsString>) -> Result<Java, String> {
    let program = home.map_or_else(|| PathBuf::from("java"), |home| Path::new(&home).join("bin/java"));
    let output = Command::new(&program).arg("-version").stdin(Stdio::null()).output();
    let output =
        output.map_err(|error| format!("Java {VERSION} ({} can't be run: {error})", program.display()))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let version = version_in(&text)
        .ok_or_else(|| format!("Java {VERSION} ({} tells no version)", program.display()))?;
    match major(version) {
        Some(VERSION) => Ok(Java { program, version: version.to_owned() }),
        _ => Err(format!("Java {VERSION} ({} is version {version})", program.display())),
    }
}

/// The version in `openjdk version "17.0.15" 2025-04-15`.
fn version_in(text: &str) -> Option<&str> {
    let line = text.lines().find(|line| line.contains(" version \""))?;
    line.split('"').nth(1)
}

/// 17 of `17.0.15` and of `17-ea`; 8 of `1.8.0_402`.
fn major(version: &str) -> Option<u32> {
    let mut numbers = version.split(['.', '-', '_', '+']).map_while(|part| part.parse().ok());
    match numbers.next()? {
        1 => numbers.next(),
        number => Some(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        let text = "Picked up _JAVA_OPTIONS: -Xmx1g\nopenjdk version \"17.0.15\" 2025-04-15\nOpenJDK Runtime";
        assert_eq!(version_in(text), Some("17.0.15"));
        assert_eq!(version_in("no java"), None);
        for (version, expected) in
            [("17.0.15", 17), ("17", 17), ("17-ea", 17), ("21.0.2+13", 21), ("1.8.0_402", 8)]
        {
            assert_eq!(major(version), Some(expected), "{version}");
        }
        assert_eq!(major("x"), None);
    }

    #[test]
    fn a_missing_java_is_named() {
        let problem = look(Some("/no/such".into())).unwrap_err();
        assert!(problem.contains("/no/such/bin/java"), "{problem}");
    }
}
