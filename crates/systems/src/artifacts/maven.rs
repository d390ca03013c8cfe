//! Fetching with the program `mvn`, which knows the user's proxies, mirrors and credentials. Since its plugins are
//! third-party programs, it runs as `nobody` if this process is root.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::ArtifactError;
use super::ArtifactList;
use super::locked::LockedFile;
use super::maven_home;
use crate::child::ChildProcess;
use crate::program::on_path;
use crate::system::{LoadProgress, SystemError, SystemResources};
use crate::unprivileged::{self, UnprivilegedSandbox};

/// The plugin that copies the files, with a fixed version. `scripts/lock-artifacts` reads this line.
const COPY: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies";
/// The input and output of Maven.
const PROJECT: &str = "pom.xml";
const REPOSITORY: &str = "repository";
const FILES: &str = "files";
const POLL: Duration = Duration::from_millis(200);
const LOG_TAIL_CHARACTERS: usize = 600;
/// Lets Maven run with root's rights.
const AS_ROOT: &str = "UNDERLAY_FETCH_AS_ROOT";
/// Folders deeper than Maven's own are ignored: a plugin could create any number of them.
const MAX_DEPTH: u32 = 24;
const REMEDY: &str = "install Maven and Java 17 (Debian: apt install maven openjdk-17-jdk-headless)";

/// Fetches the runtime dependencies of the list's project into `directory`. Maven's own repository is in `work`.
pub(super) fn fetch(
    list: &ArtifactList,
    files: &[LockedFile],
    directory: &Path,
    work: &Path,
    progress: &dyn Fn(&LoadProgress),
) -> Result<(), ArtifactError> {
    let missing = ArtifactError::Program { program: "mvn", remedy: REMEDY };
    let is_root = unprivileged::is_root();
    let stays_root = is_root && std::env::var_os(AS_ROOT).is_some_and(|value| value == "1");
    let (program, room) = match is_root && !stays_root {
        false if on_path("mvn").is_none() => return Err(missing),
        false => (PathBuf::from("mvn"), None),
        true => {
            let program = maven_home::program().ok_or(missing)?;
            let program = program.map_err(|problem| ArtifactError::Closed { problem })?;
            let room = UnprivilegedSandbox::make(work).map_err(|error| ArtifactError::Closed {
                problem: format!(
                    "can't create a directory for the user {} in {}: {error}",
                    unprivileged::USER,
                    work.display()
                ),
            })?;
            (program, Some(room))
        }
    };
    let here = |name: &str| room.as_ref().map_or_else(|| work.join(name), |room| room.path(name));
    // The same files by two paths: `here` is ours, and this one is what Maven sees in its sandbox.
    let path_of = |name: &str| room.as_ref().map_or_else(|| work.join(name), |room| room.inside(name));
    let output = room.as_ref().map_or_else(|| directory.to_owned(), |room| room.inside(FILES));
    let (repository, log) = (here(REPOSITORY), work.join("mvn.log"));
    let mut command = Command::new(program);
    command
        .args(["--batch-mode", "--strict-checksums", "--file"])
        .arg(path_of(PROJECT))
        .arg(format!("-Dmaven.repo.local={}", path_of(REPOSITORY).display()))
        .arg(COPY)
        .arg(format!("-DoutputDirectory={}", output.display()))
        .args(["-DincludeScope=runtime", "-Dstyle.color=never"]);
    match &room {
        None => std::fs::write(here(PROJECT), list.pom).map_err(ArtifactError::io("write", here(PROJECT)))?,
        Some(room) => {
            let furnished = room
                .make_file(PROJECT, list.pom.as_bytes())
                .and_then(|()| [FILES, REPOSITORY].iter().try_for_each(|name| room.make_folder(name)))
                .and_then(|()| maven_home::furnish(room, &mut command));
            furnished.map_err(ArtifactError::io("prepare", here("")))?;
        }
    }
    let user_note = match &room {
        Some(room) => format!(" {}", room.describe()),
        None if stays_root => " as root".to_owned(),
        None => String::new(),
    };
    let total_bytes = files.iter().map(|file| file.bytes).sum();
    let failed = |problem: String, log_tail: Option<String>| ArtifactError::Fetch {
        list: list.name,
        files: files.len(),
        megabytes: total_bytes as f64 / 1e6,
        problem,
        log_tail,
    };
    let maven = match &room {
        None => ChildProcess::spawn("mvn", command, &log, &SystemResources::unlimited()),
        Some(room) => room.spawn("mvn", command, &log),
    };
    let maven = maven.map_err(|error| match error {
        SystemError::Failed { problem, .. } => failed(problem, None),
        other => failed(other.to_string(), None),
    })?;
    loop {
        progress(&LoadProgress {
            what: format!("fetching {}, {} files{user_note}", list.name, files.len()),
            // Partial downloads count as well, so the sum may be too high for a moment.
            done_bytes: arrived_bytes(&repository, files, MAX_DEPTH).min(total_bytes),
            total_bytes,
        });
        if maven.state().wait(POLL) {
            break;
        }
    }
    if !maven.state().ended_well() {
        return Err(failed(maven.state().describe(), errors_in(&log)));
    }
    // Without a sandbox Maven has written to `directory` itself.
    let Some(room) = room else { return Ok(()) };
    let wanted = files.iter().map(|file| (file.name.as_str(), file.bytes));
    room.collect(FILES, wanted, directory)
        .map_err(|problem| ArtifactError::Different { list: list.name, problem })
}

/// How many bytes of the files are in Maven's repository, including partial downloads, which end with `.part` or
/// `.tmp`.
fn arrived_bytes(folder: &Path, files: &[LockedFile], depth: u32) -> u64 {
    let (Ok(entries), 1..) = (std::fs::read_dir(folder), depth) else { return 0 };
    let mut bytes = 0;
    for entry in entries.flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            bytes += arrived_bytes(&entry.path(), files, depth - 1);
            continue;
        }
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let wanted = name.find(".jar").map_or(&*name, |end| &name[..end + ".jar".len()]);
        if files.iter().any(|file| file.name == wanted) && !name.contains(".sha1") {
            bytes += entry.metadata().map_or(0, |data| data.len());
        }
    }
    bytes
}

/// The errors that Maven printed, without its advice on command-line switches.
fn errors_in(log: &Path) -> Option<String> {
    let text = std::fs::read(log).ok()?;
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("[ERROR] "))
        .filter(|line| !line.contains("re-run Maven") && !line.contains("[Help 1] http"))
        .collect();
    let errors = if lines.is_empty() { text.trim().to_owned() } else { lines.join("\n") };
    let short: String = errors.chars().take(LOG_TAIL_CHARACTERS).collect();
    (!short.is_empty()).then_some(short)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_the_list_count_as_progress() {
        let folder = tempfile::TempDir::new().unwrap();
        let nested = folder.path().join("org/abc");
        std::fs::create_dir_all(&nested).unwrap();
        for (name, bytes) in
            [("abc-1.jar", 10), ("abc-2.jar.part", 5), ("abc-1.jar.sha1", 40), ("abc-1.pom", 7), ("x.jar", 9)]
        {
            std::fs::write(nested.join(name), vec![0; bytes]).unwrap();
        }
        let file = |name: &str| LockedFile { name: name.to_owned(), bytes: 10, sha256: [0; 32] };
        assert_eq!(arrived_bytes(folder.path(), &[file("abc-1.jar"), file("abc-2.jar")], 9), 15);
        assert_eq!(arrived_bytes(&folder.path().join("missing"), &[file("abc-1.jar")], 9), 0);
    }

    #[test]
    fn missing_repository_is_reported_with_remedy() {
        const NOWHERE: ArtifactList = ArtifactList {
            name: "nowhere",
            pom: r"<project xmlns='http://maven.apache.org/POM/4.0.0'><modelVersion>4.0.0</modelVersion>
                <groupId>underlay</groupId><artifactId>nowhere</artifactId><version>1</version><packaging>pom</packaging>
                <repositories><repository><id>central</id><url>file:///no/such/repository</url></repository></repositories>
                <pluginRepositories><pluginRepository><id>central</id><url>file:///no/such/repository</url>
                </pluginRepository></pluginRepositories></project>",
            locked: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad 3 abc.jar\n",
        };
        let cache = tempfile::TempDir::new().unwrap();
        let error = NOWHERE.directory_in(cache.path(), &|_| {}).unwrap_err();
        assert!(matches!(error, ArtifactError::Fetch { list: "nowhere", files: 1, .. }), "{error}");
        assert!(error.to_string().contains("maven-dependency-plugin"), "{error}");
        match error.into_system_error("cassandra") {
            SystemError::Missing { remedy, .. } => assert!(remedy.contains("UNDERLAY_CACHE"), "{remedy}"),
            other => panic!("{other}"),
        }
        let left: Vec<_> = std::fs::read_dir(cache.path().join("artifacts")).unwrap().collect();
        assert_eq!(left.len(), 1, "the lock alone: {left:?}");
    }

    #[test]
    fn maven_error_message_is_kept() {
        let folder = tempfile::TempDir::new().unwrap();
        let log = folder.path().join("log");
        std::fs::write(
            &log,
            "[INFO] x\n[ERROR] no route\n[ERROR] \n[ERROR] To see it all, re-run Maven with -e\n",
        )
        .unwrap();
        assert_eq!(errors_in(&log).unwrap().trim(), "no route");
        std::fs::write(&log, "java: not found\n").unwrap();
        assert_eq!(errors_in(&log).unwrap(), "java: not found");
        std::fs::write(&log, "").unwrap();
        assert_eq!(errors_in(&log), None);
    }
}
