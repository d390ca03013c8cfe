//! The installation of Oracle NoSQL Database that the user supplies: no registry has its server.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use underlay_sync::Mutex;

use super::NAME;
use crate::java::{ClassPath, Java, without_options_of_the_user};
use crate::system::SystemError;

/// Names the directory of the installation.
pub(super) const VARIABLE: &str = "KVHOME";
const SERVER: &str = "lib/kvstore.jar";
const CLIENT: &str = "lib/kvclient.jar";
/// Earlier ones have no reports in this form, or do not run on the Java that is needed here.
const OLDEST: (u32, u32) = (23, 1);
/// The major version of the newest that was tried.
const NEWEST: u32 = 25;
/// The command that prints the version needs hardly any memory.
const HEAP: &str = "-Xmx32m";
/// It takes a second, more on a busy machine. A program that takes this long is something else.
const VERSION_LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);
const MAX_PRINTED_BYTES: u64 = 1 << 20;

/// A directory with a server and a client of a version that is supported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvHome {
    directory: PathBuf,
    version: String,
}

impl KvHome {
    /// The installation that the environment names.
    ///
    /// # Errors
    /// The missing file there, and how to get it.
    pub(super) fn find(variable: impl Fn(&str) -> Option<String>) -> Result<KvHome, SystemError> {
        let named = variable(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
        let Some(directory) = named else {
            return Err(missing(format!("an installation of its own ({VARIABLE} is not set)")));
        };
        // Servers run elsewhere, where a relative path means something else.
        let directory = std::fs::canonicalize(&directory).map_err(|error| {
            missing(format!("an installation of its own ({} can't be read: {error})", directory.display()))
        })?;
        // Java would take what is behind a colon for another path, and what is behind the end of a line for another
        // option.
        let is_odd = |letter: char| letter == ':' || letter.is_control();
        if let Some(odd) = directory.to_string_lossy().chars().find(|&letter| is_odd(letter)) {
            let shown = directory.to_string_lossy().escape_debug().to_string();
            return Err(missing(format!("an installation of its own (a path without {odd:?}, not {shown})")));
        }
        for (jar, part) in [(SERVER, "its server"), (CLIENT, "its client")] {
            let path = directory.join(jar);
            // Opening a pipe would wait for its other end.
            let opened = match std::fs::metadata(&path) {
                Ok(found) if !found.is_file() => Err(io::Error::other("it is no file")),
                Ok(_) => std::fs::File::open(&path).map(drop),
                Err(error) => Err(error),
            };
            if let Err(error) = opened {
                return Err(missing(format!("{part} ({} can't be read: {error})", path.display())));
            }
        }
        check_trusted(&directory)?;
        let version = version_of(&directory, SERVER)?;
        check(&directory, &version)?;
        let of_client = version_of(&directory, CLIENT)?;
        if of_client != version {
            let path = directory.join(CLIENT);
            return Err(missing(format!(
                "a client of the server's version ({} has {of_client}, not {version})",
                path.display()
            )));
        }
        Ok(KvHome { directory, version })
    }

    /// `25.3.21`
    pub fn version(&self) -> &str {
        &self.version
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Its version and where it is, for `underlay doctor`.
    pub(super) fn describe(&self) -> String {
        format!("{} in {}", self.version, self.directory.display())
    }

    /// The classes of servers and tools.
    pub(super) fn server(&self) -> ClassPath {
        ClassPath::new().with_jar(&self.version, self.directory.join(SERVER))
    }

    /// The classes of clients.
    pub(super) fn client(&self) -> ClassPath {
        ClassPath::new().with_jar(&self.version, self.directory.join(CLIENT))
    }
}

fn missing(missing: String) -> SystemError {
    let (year, release) = OLDEST;
    SystemError::Missing {
        system: NAME,
        missing,
        remedy: format!(
            "download Oracle NoSQL Database {year}.{release} to {NEWEST}.x (Community or Enterprise Edition), unpack it, and set {VARIABLE} to \
             the directory that has {SERVER} and {CLIENT}"
        ),
    }
}

/// Programs that root runs must be out of reach of everyone else: each jar, since those that are named on the class
/// path name others. Java follows links before it looks for these, so they are beside the files that links lead to.
fn check_trusted(directory: &Path) -> Result<(), SystemError> {
    // It names the file or directory, and what to do.
    let refused = |error: io::Error| SystemError::Missing {
        system: NAME,
        missing: format!("an installation that nobody else can change ({error})"),
        remedy: format!("do so, or name another directory by {VARIABLE}"),
    };
    let unreadable = |path: &Path, error: io::Error| {
        missing(format!("an installation of its own ({} can't be read: {error})", path.display()))
    };
    let mut places = BTreeSet::from([directory.join("lib")]);
    for jar in [SERVER, CLIENT].map(|jar| directory.join(jar)) {
        let target = std::fs::canonicalize(&jar).map_err(|error| unreadable(&jar, error))?;
        places.extend(target.parent().map(Path::to_owned));
    }
    // Before any file: a user who may write to its directory can replace it, and the message has to name the directory.
    for place in &places {
        underlay_files::check_trusted_path(place).map_err(refused)?;
    }
    for place in places {
        for entry in std::fs::read_dir(&place).map_err(|error| unreadable(&place, error))? {
            let path = entry.map_err(|error| unreadable(&place, error))?.path();
            if path.extension().is_some_and(|extension| extension == "jar") {
                underlay_files::check_trusted_file(&path).map_err(refused)?;
            }
        }
    }
    Ok(())
}

/// Asked once per process of each of the two jars.
fn version_of(directory: &Path, jar: &str) -> Result<String, SystemError> {
    static KNOWN: Mutex<BTreeMap<PathBuf, String>> = Mutex::new(BTreeMap::new());
    let jar = directory.join(jar);
    if let Some(version) = KNOWN.lock().get(&jar) {
        return Ok(version.clone());
    }
    let java = Java::find(NAME)?;
    let mut command = Command::new(&java.program);
    command.args([HEAP, "-XX:+UseSerialGC", "-XX:-UsePerfData", "-jar"]).arg(&jar);
    command.arg("version");
    without_options_of_the_user(&mut command);
    let unreadable =
        |problem: String| missing(format!("an installation of its own ({}: {problem})", jar.display()));
    let output = output_within(command, VERSION_LIMIT).map_err(unreadable)?;
    let text = String::from_utf8_lossy(&output.stdout);
    match version_in(&text) {
        Some(version) => {
            KNOWN.lock().insert(jar.clone(), version.to_owned());
            Ok(version.to_owned())
        }
        None => {
            let errors = String::from_utf8_lossy(&output.stderr);
            let first_line = errors.lines().chain(text.lines()).find(|line| !line.trim().is_empty());
            let quoted = first_line.map(|line| format!(", but says: {}", line.trim())).unwrap_or_default();
            Err(unreadable(format!("does not print its version{quoted}")))
        }
    }
}

/// A short command's output, up to a bound; it is killed after `limit`, and when this process ends.
fn output_within(mut command: Command, limit: Duration) -> Result<Output, String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Ctrl-C on a terminal is this process's to act on: a command that it ends too would seem to have failed.
    command.process_group(0);
    // SAFETY: it calls nothing but `prctl`.
    unsafe {
        command.pre_exec(|| Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?));
    }
    let mut child = command.spawn().map_err(|error| format!("can't be run: {error}"))?;
    let printed = [
        printed(child.stdout.take().map(|pipe| Box::new(pipe) as _)),
        printed(child.stderr.take().map(|pipe| Box::new(pipe) as _)),
    ];
    let began = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if began.elapsed() < limit => std::thread::sleep(POLL),
            Ok(None) => {
                // It fails only if the process has just ended.
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("does not print its version within {:.0} s", limit.as_secs_f64()));
            }
            Err(error) => return Err(format!("can't be waited for: {error}")),
        }
    };
    // Something that it has started may still have its output.
    let [stdout, stderr] = printed.map(|bytes| bytes.recv_timeout(limit.saturating_sub(began.elapsed())));
    match (stdout, stderr) {
        (Ok(stdout), Ok(stderr)) => Ok(Output { status, stdout, stderr }),
        _ => Err("has left something running that keeps its output".to_owned()),
    }
}

/// Reads in a thread of its own, so that a program that prints much does not wait for us.
fn printed(pipe: Option<Box<dyn Read + Send>>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            // The output until then is enough.
            let _ = pipe.take(MAX_PRINTED_BYTES).read_to_end(&mut bytes);
        }
        let _ = sender.send(bytes);
    });
    receiver
}

/// The first word of `25.3.21 2025-11-23 18:01:16 UTC  Build id: 60eebbcaec4d Edition: Community`.
fn version_in(text: &str) -> Option<&str> {
    let word = text.lines().find_map(|line| line.split_whitespace().next())?;
    numbers(word).map(|_| word)
}

fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
    Some((parts.next()??, parts.next()??))
}

fn check(directory: &Path, version: &str) -> Result<(), SystemError> {
    let is_known = numbers(version).is_some_and(|numbers| numbers >= OLDEST && numbers.0 <= NEWEST);
    if is_known {
        return Ok(());
    }
    Err(missing(format!("a version that it knows ({} has {version})", directory.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_error(directory: &Path) -> String {
        let name = directory.to_str().unwrap().to_owned();
        KvHome::find(move |variable| (variable == VARIABLE).then(|| name.clone())).unwrap_err().to_string()
    }

    #[test]
    fn missing_installation_is_reported_with_remedy() {
        let folder = tempfile::TempDir::new().unwrap();
        let unset = KvHome::find(|_| None).unwrap_err();
        assert!(matches!(unset, SystemError::Missing { .. }));
        let unset = unset.to_string();
        assert!(unset.contains("KVHOME is not set") && unset.contains("download Oracle NoSQL"), "{unset}");
        assert!(find_error(&folder.path().join("none")).contains("none can't be read"));
        for odd in ["kv:25", "two\nlines"] {
            std::fs::create_dir(folder.path().join(odd)).unwrap();
            assert!(find_error(&folder.path().join(odd)).contains("a path without"), "{odd}");
        }
        assert!(find_error(folder.path()).contains("its server ("), "{}", find_error(folder.path()));
        std::fs::create_dir(folder.path().join("lib")).unwrap();
        std::fs::write(folder.path().join(SERVER), "no jar").unwrap();
        assert!(
            find_error(folder.path()).contains("kvclient.jar can't be read"),
            "{}",
            find_error(folder.path())
        );
        std::fs::write(folder.path().join(CLIENT), "no jar").unwrap();
        let no_jar = find_error(folder.path());
        assert!(no_jar.contains("does not print its version, but says: "), "{no_jar}");
    }

    #[test]
    fn root_runs_no_jar_that_others_can_write_to() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::TempDir::new().unwrap();
        let lib = folder.path().join("lib");
        std::fs::create_dir(&lib).unwrap();
        std::fs::set_permissions(&lib, std::fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["kvstore.jar", "kvclient.jar", "je.jar"] {
            std::fs::write(lib.join(name), "").unwrap();
            std::fs::set_permissions(lib.join(name), std::fs::Permissions::from_mode(0o644)).unwrap();
        }
        check_trusted(folder.path()).unwrap();
        // A link's neighbours are those of the file that it leads to.
        let linked = tempfile::TempDir::new().unwrap();
        std::fs::create_dir(linked.path().join("lib")).unwrap();
        for name in ["kvstore.jar", "kvclient.jar"] {
            std::os::unix::fs::symlink(lib.join(name), linked.path().join("lib").join(name)).unwrap();
        }
        check_trusted(linked.path()).unwrap();
        std::fs::set_permissions(lib.join("je.jar"), std::fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(
            check_trusted(linked.path()).is_err(),
            rustix::process::geteuid().is_root(),
            "a link's neighbours"
        );
        let outcome = check_trusted(folder.path());
        // Others run it with their own rights.
        assert_eq!(outcome.is_err(), rustix::process::geteuid().is_root(), "{outcome:?}");
        if let Err(error) = outcome {
            let error = error.to_string();
            assert!(
                error.contains("je.jar can be written to by everybody") && error.contains("KVHOME"),
                "{error}"
            );
        }
    }

    #[test]
    fn hanging_version_query_is_killed() {
        let mut hangs = Command::new("sleep");
        hangs.arg("600");
        let error = output_within(hangs, Duration::from_millis(50)).unwrap_err();
        assert!(error.contains("does not print its version within"), "{error}");
        let mut prints = Command::new("echo");
        prints.arg("25.3.21");
        assert_eq!(output_within(prints, VERSION_LIMIT).unwrap().stdout, b"25.3.21\n");
        assert!(output_within(Command::new("/no/such"), VERSION_LIMIT).unwrap_err().contains("can't be run"));
    }

    #[test]
    fn versions_are_read_and_held_to_what_is_known() {
        let line = "25.3.21 2025-11-23 18:01:16 UTC  Build id: 60eebbcaec4d Edition: Community\n";
        assert_eq!(version_in(line), Some("25.3.21"));
        assert_eq!((version_in("Error: unable to access jarfile"), version_in("")), (None, None));
        for (version, is_known) in
            [("25.3.21", true), ("23.1.21", true), ("22.3.3", false), ("19.5", false), ("26.1.0", false)]
        {
            let outcome = check(Path::new("/opt/kv"), version);
            assert_eq!(outcome.is_ok(), is_known, "{version}");
            if let Err(error) = outcome {
                let error = error.to_string();
                assert!(error.contains(version) && error.contains("23.1 to 25.x"), "{error}");
            }
        }
    }
}
