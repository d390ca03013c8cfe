//! Programs that start others: all of them are in one PID namespace, and the kernel ends them with the first.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use underlay_files::shell;

use crate::java::Java;
use crate::program::on_path;
use crate::system::SystemError;

const POLL: Duration = Duration::from_millis(5);

/// Other properties of a program's namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NamespaceMounts {
    /// The host's.
    Shared,
    /// Its own, with a `/proc` of its own processes. If mounts are shared, what the host unmounts is unmounted here as
    /// well, so that no device stays in use.
    Own,
}

/// Writes a script `contained-java` into `folder` that runs Java as the first process of a PID namespace. A program's
/// children may leave its process group and would outlive it; in a namespace they can't.
pub(crate) fn contained(
    system: &'static str,
    java: &Java,
    folder: &Path,
    mounts: NamespaceMounts,
) -> Result<Java, SystemError> {
    let script = contained_program(system, &program_of(system, java)?, folder, "contained-java", mounts)?;
    Ok(Java { program: script, version: java.version.clone() })
}

/// Like [`contained`] for any `program`, given by its absolute path, with a script called `name`.
pub(crate) fn contained_program(
    system: &'static str,
    program: &Path,
    folder: &Path,
    name: &str,
    mounts: NamespaceMounts,
) -> Result<PathBuf, SystemError> {
    let Some(unshare) = on_path("unshare") else {
        return Err(SystemError::Missing {
            system,
            missing: "the program 'unshare', which keeps its processes together".to_owned(),
            remedy: "install util-linux (Debian: apt install util-linux)".to_owned(),
        });
    };
    let script = folder.join(name);
    let own = match mounts {
        NamespaceMounts::Shared => "",
        NamespaceMounts::Own => " --mount-proc --propagation slave",
    };
    let mut text = b"#!/bin/sh\nexec ".to_vec();
    text.extend(shell::path_word(&unshare));
    text.extend(format!(" --pid --fork --kill-child{own} -- ").bytes());
    text.extend(shell::path_word(program));
    text.extend(b" \"$@\"\n");
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&script, text))
        .and_then(|()| std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o700)));
    written.map_err(|error| {
        SystemError::starting(system, format!("can't write {}: {error}", script.display()))
    })?;
    Ok(script)
}

/// The absolute path of `java`.
pub(crate) fn program_of(system: &'static str, java: &Java) -> Result<PathBuf, SystemError> {
    let found = match java.program.is_absolute() {
        true => Some(java.program.clone()),
        false => on_path(&java.program.to_string_lossy()),
    };
    let resolved = found.and_then(|program| std::fs::canonicalize(program).ok());
    resolved.ok_or_else(|| {
        SystemError::starting(system, format!("can't find the program {}", java.program.display()))
    })
}

/// The ids of all processes in the namespace that `process`, a script of [`contained`], has made.
pub(crate) fn processes_below(process: u32) -> Vec<u32> {
    let inode = |path: String| std::fs::metadata(path).map(|data| data.ino()).ok();
    let inside = inode(format!("/proc/{process}/ns/pid_for_children"));
    if inside.is_none() || inside == inode("/proc/self/ns/pid".to_owned()) {
        return Vec::new();
    }
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.filter(|id| inode(format!("/proc/{id}/ns/pid")) == inside).collect()
}

/// Waits up to `limit` until none of these processes is there: a namespace that lost its first process takes a moment
/// to end the others.
pub(crate) fn wait_until_gone(processes: &[u32], limit: Duration) {
    let began = Instant::now();
    while processes.iter().any(|id| !is_gone(*id)) && began.elapsed() < limit {
        std::thread::sleep(POLL);
    }
}

/// Whether a process has ended, also where nobody has collected it: it holds nothing any more, and some containers have
/// a first process that collects none.
fn is_gone(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // Behind the name, which may hold anything (proc_pid_stat(5)).
    let state = stat.rsplit_once(')').and_then(|(_, fields)| fields.trim_start().chars().next());
    match state {
        None | Some('X') => true,
        // The first thread may have ended before the others.
        Some('Z') => std::fs::read_dir(format!("/proc/{process}/task")).map_or(0, Iterator::count) <= 1,
        Some(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use super::*;

    #[test]
    fn program_in_quoted_directory_runs() {
        let folder = tempfile::TempDir::new().unwrap();
        let home = folder.path().join("o'neil; touch hit #");
        std::fs::create_dir(&home).unwrap();
        let program = home.join("java");
        std::os::unix::fs::symlink("/bin/echo", &program).unwrap();
        let script =
            contained_program("test", &program, folder.path(), "script", NamespaceMounts::Shared).unwrap();
        let output = Command::new(script).arg("it's me").current_dir(folder.path()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "it's me\n", "{output:?}");
        assert!(!folder.path().join("hit").exists());
    }

    #[test]
    fn children_end_with_program() {
        let folder = tempfile::TempDir::new().unwrap();
        let shell = Java { program: "sh".into(), version: String::new() };
        let script = contained("test", &shell, folder.path(), NamespaceMounts::Shared).unwrap();
        let mut command = Command::new(script.program);
        // One that leaves its group.
        command.args(["-c", "setsid sleep 600 & wait"]).process_group(0);
        let mut first = command.spawn().unwrap();
        let began = Instant::now();
        while processes_below(first.id()).len() < 2 {
            assert!(began.elapsed() < Duration::from_secs(60), "{:?}", processes_below(first.id()));
            std::thread::sleep(Duration::from_millis(5));
        }
        let all = processes_below(first.id());
        assert!(!all.contains(&first.id()) && !all.contains(&std::process::id()));
        first.kill().unwrap();
        first.wait().unwrap();
        wait_until_gone(&all, Duration::from_secs(60));
        assert!(all.iter().all(|id| is_gone(*id)), "{all:?}");
        assert!(!is_gone(std::process::id()) && is_gone(u32::MAX));
        let mut uncollected = Command::new("true").spawn().unwrap();
        let began = Instant::now();
        while !is_gone(uncollected.id()) {
            assert!(began.elapsed() < Duration::from_secs(60));
            std::thread::sleep(POLL);
        }
        assert!(uncollected.wait().unwrap().success());
        assert!(processes_below(u32::MAX).is_empty());
    }
}
