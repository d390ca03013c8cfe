//! The Java runtime for servers, tools and drivers, and their class paths.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::system::SystemError;

/// The version that Cassandra 5.0, Hadoop 3.4 and Accumulo 2.1 all run on. Each of them fails on some other.
pub const VERSION: u32 = 17;
const REMEDY: &str =
    "install Java 17 (Debian: apt install openjdk-17-jdk-headless), or name its directory in JAVA_HOME";

/// A Java program of the right version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Java {
    pub program: PathBuf,
    pub version: String,
}

impl Java {
    /// The `java` of `JAVA_HOME`, or the first on the `PATH`. Its version is checked once per process.
    ///
    /// # Errors
    /// When there is none of the right version: what `system` lacks.
    pub fn find(system: &'static str) -> Result<Java, SystemError> {
        static FOUND: OnceLock<Result<Java, String>> = OnceLock::new();
        let found = FOUND.get_or_init(|| look("java", java_home()));
        found.clone().map_err(|missing| SystemError::Missing { system, missing, remedy: REMEDY.to_owned() })
    }

    /// The compiler `javac`, found in the same way.
    ///
    /// # Errors
    /// When there is none of the right version: what `system` lacks.
    pub fn compiler(system: &'static str) -> Result<Java, SystemError> {
        static FOUND: OnceLock<Result<Java, String>> = OnceLock::new();
        let found = FOUND.get_or_init(|| look("javac", java_home()));
        found.clone().map_err(|missing| SystemError::Missing {
            system,
            missing: format!("a compiler of {missing}"),
            remedy: format!("{REMEDY}; a package without a compiler (a JRE) is not enough"),
        })
    }
}

/// Variables by which users give options, or classes, to every Java program that they start. A system is measured with
/// its own options alone.
const VARIABLES_OF_THE_USER: [&str; 5] =
    ["JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "JDK_JAVAC_OPTIONS", "CLASSPATH"];

/// Keeps the user's own options away from a Java program that `command` starts. Its C library allocates from two
/// arenas: by default every few of its many threads would get one of their own, which is memory outside of every limit
/// of Java's.
pub(crate) fn without_options_of_the_user(command: &mut Command) {
    for variable in VARIABLES_OF_THE_USER {
        command.env_remove(variable);
    }
    command.env("MALLOC_ARENA_MAX", "2");
}

fn java_home() -> Option<OsString> {
    std::env::var_os("JAVA_HOME").filter(|home| !home.is_empty())
}

fn look(name: &str, home: Option<OsString>) -> Result<Java, String> {
    let program = home.map_or_else(|| PathBuf::from(name), |home| Path::new(&home).join("bin").join(name));
    // A kill meanwhile would leave a file of it below `/tmp`.
    let quietly = if name == "java" { "-XX:-UsePerfData" } else { "-J-XX:-UsePerfData" };
    let output = Command::new(&program).args([quietly, "-version"]).stdin(Stdio::null()).output();
    let output =
        output.map_err(|error| format!("Java {VERSION} ({} can't be run: {error})", program.display()))?;
    // `java` prints its version on the standard error, `javac` on the standard output.
    let text = [output.stderr, output.stdout].concat();
    let text = String::from_utf8_lossy(&text);
    let version = version_in(&text)
        .ok_or_else(|| format!("Java {VERSION} ({} does not print its version)", program.display()))?;
    match major(version) {
        Some(VERSION) => Ok(Java { program, version: version.to_owned() }),
        _ => Err(format!("Java {VERSION} ({} is version {version})", program.display())),
    }
}

/// The version in `openjdk version "17.0.15" 2025-04-15`, and in a compiler's `javac 17.0.15`.
fn version_in(text: &str) -> Option<&str> {
    let of_compiler = text.lines().find_map(|line| line.strip_prefix("javac "));
    of_compiler.map(str::trim).or_else(|| {
        let line = text.lines().find(|line| line.contains(" version \""))?;
        line.split('"').nth(1)
    })
}

/// 17 of `17.0.15` and of `17-ea`; 8 of `1.8.0_402`.
fn major(version: &str) -> Option<u32> {
    let mut numbers = version.split(['.', '-', '_', '+']).map_while(|part| part.parse().ok());
    match numbers.next()? {
        1 => numbers.next(),
        number => Some(number),
    }
}

/// A class path: jars, folders of jars and folders of classes, searched in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassPath {
    entries: Vec<ClasspathEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ClasspathEntry {
    Jar { file: PathBuf, version: String },
    Jars(PathBuf),
    Classes(PathBuf),
}

impl ClassPath {
    pub fn new() -> ClassPath {
        ClassPath::default()
    }

    /// Appends a jar that may name others in its manifest, whose name and size can be the same in another version.
    pub(crate) fn with_jar(mut self, version: &str, file: impl Into<PathBuf>) -> ClassPath {
        self.entries.push(ClasspathEntry::Jar { file: file.into(), version: version.to_owned() });
        self
    }

    /// Appends every jar in `folder`.
    pub fn with_jars(mut self, folder: impl Into<PathBuf>) -> ClassPath {
        self.entries.push(ClasspathEntry::Jars(folder.into()));
        self
    }

    /// Appends a folder of class files and resources, such as compiled sources or a configuration.
    pub(crate) fn with_classes(mut self, folder: impl Into<PathBuf>) -> ClassPath {
        self.entries.push(ClasspathEntry::Classes(folder.into()));
        self
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of Java's option `-cp`.
    pub fn to_argument(&self) -> OsString {
        let mut argument = OsString::new();
        for entry in &self.entries {
            if !argument.is_empty() {
                argument.push(":");
            }
            match entry {
                ClasspathEntry::Jars(folder) => argument.push(folder.join("*")),
                ClasspathEntry::Jar { file: path, .. } | ClasspathEntry::Classes(path) => argument.push(path),
            }
        }
        argument
    }

    /// The identity of this class path: names and sizes of the jars, with known versions, names of the folders of
    /// classes.
    pub(crate) fn contents(&self) -> std::io::Result<Vec<String>> {
        let mut contents = Vec::new();
        for entry in &self.entries {
            match entry {
                ClasspathEntry::Jar { file, version } => {
                    let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
                    contents.push(format!("{name} {}", file.metadata()?.len()));
                    contents.push(version.clone());
                }
                ClasspathEntry::Jars(folder) => {
                    let mut jars = Vec::new();
                    for file in std::fs::read_dir(folder)? {
                        let file = file?;
                        let name = file.file_name().to_string_lossy().into_owned();
                        if name.ends_with(".jar") {
                            jars.push(format!("{name} {}", file.metadata()?.len()));
                        }
                    }
                    jars.sort();
                    contents.extend(jars);
                }
                ClasspathEntry::Classes(folder) => {
                    contents.push(
                        folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned(),
                    );
                }
            }
        }
        Ok(contents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        let text = "Picked up _JAVA_OPTIONS: -Xmx1g\nopenjdk version \"17.0.15\" 2025-04-15\nOpenJDK Runtime";
        assert_eq!(version_in(text), Some("17.0.15"));
        assert_eq!(version_in("Picked up _JAVA_OPTIONS: -Xmx1g\njavac 17.0.15\n"), Some("17.0.15"));
        assert_eq!(version_in("no java"), None);
        for (version, expected) in
            [("17.0.15", 17), ("17", 17), ("17-ea", 17), ("21.0.2+13", 21), ("1.8.0_402", 8)]
        {
            assert_eq!(major(version), Some(expected), "{version}");
        }
        assert_eq!(major("x"), None);
    }

    #[test]
    fn missing_java_is_named() {
        let problem = look("javac", Some("/no/such".into())).unwrap_err();
        assert!(problem.contains("/no/such/bin/javac"), "{problem}");
    }

    #[test]
    fn class_path_keeps_order_and_lists_jars() {
        let folder = tempfile::TempDir::new().unwrap();
        std::fs::write(folder.path().join("b.jar"), "123").unwrap();
        std::fs::write(folder.path().join("a.jar"), "").unwrap();
        std::fs::write(folder.path().join("notes.txt"), "").unwrap();
        let path = ClassPath::new().with_classes("/classes/job-1").with_jars(folder.path());
        let expected = format!("/classes/job-1:{}/*", folder.path().display());
        assert_eq!(path.to_argument(), OsString::from(expected));
        assert_eq!(path.contents().unwrap(), ["job-1", "a.jar 0", "b.jar 3"]);
        assert!(ClassPath::new().with_jars(folder.path().join("missing")).contents().is_err());
        let jar = folder.path().join("b.jar");
        let path = ClassPath::new().with_jar("25.3.21", &jar);
        assert_eq!(path.to_argument(), OsString::from(&jar));
        assert_eq!(path.contents().unwrap(), ["b.jar 3", "25.3.21"]);
    }
}
