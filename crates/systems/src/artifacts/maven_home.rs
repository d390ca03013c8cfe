//! Files that Maven needs from the user's home directory when it runs as `nobody`: the settings with proxies and
//! mirrors, and the files and variables that these refer to.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::unprivileged::{self, UnprivilegedSandbox};

const HOME: &str = "home";
const FOLDER: &str = "home/.m2";
/// The second holds the key for the passwords in the first.
const SETTINGS: [&str; 2] = ["settings.xml", "settings-security.xml"];
const MAX_BYTES: u64 = 16 << 20;
/// Some hosts configure their proxies and certificate authorities through options for Java.
const OPTIONS: [&str; 3] = ["MAVEN_OPTS", "MAVEN_ARGS", "JAVA_TOOL_OPTIONS"];
/// Options that name a file.
const STORES: [&str; 2] = ["-Djavax.net.ssl.trustStore=", "-Djavax.net.ssl.keyStore="];

/// The path of an `mvn` that the user `nobody` can run, with a Java that it can run. `None` if there is no `mvn`; the
/// error says what it may not execute.
pub(super) fn program() -> Option<Result<PathBuf, String>> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mvn = match unprivileged::program(&path, "mvn")? {
        Ok(mvn) => mvn,
        closed => return Some(closed),
    };
    let reason = match std::env::var_os("JAVA_HOME").filter(|home| !home.is_empty()) {
        Some(home) => {
            let java = Path::new(&home).join("bin/java");
            unprivileged::closed_to_others(&java).map(|reason| {
                format!("{} can't be run by the user {}: {reason}", java.display(), unprivileged::USER)
            })
        }
        // If there is none, Maven reports that itself.
        None => unprivileged::program(&path, "java").and_then(Result::err),
    };
    Some(reason.map_or(Ok(mvn), Err))
}

/// Creates Maven's home directory in the room and sets its environment, which contains nothing else of ours.
pub(super) fn furnish(room: &UnprivilegedSandbox, command: &mut Command) -> io::Result<()> {
    command.env_clear();
    room.make_folder(HOME)?;
    room.make_folder(FOLDER)?;
    command.env("HOME", room.inside(HOME));
    let home = std::env::var_os("HOME").unwrap_or_else(|| OsString::from("/root"));
    for name in SETTINGS {
        let content = match underlay_files::read(&Path::new(&home).join(".m2").join(name), MAX_BYTES) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        room.make_file(&format!("{FOLDER}/{name}"), &content)?;
        for variable in variables_in(&String::from_utf8_lossy(&content)) {
            pass(command, &variable);
        }
    }
    pass(command, "JAVA_HOME");
    // Java takes the home directory from /etc/passwd, where this user has none that exists.
    let own = format!(
        "-Duser.home={} -Djava.io.tmpdir={}",
        room.inside(HOME).display(),
        room.folder_inside().display()
    );
    for (number, name) in OPTIONS.iter().enumerate() {
        let original = std::env::var(name).unwrap_or_default();
        let mut words = with_copies(room, &original, number)?;
        if number == 0 {
            words.push(own.clone());
        }
        if !words.is_empty() {
            command.env(name, words.join(" "));
        }
    }
    Ok(())
}

fn pass(command: &mut Command, name: &str) {
    if let Some(value) = std::env::var_os(name) {
        command.env(OsStr::new(name), value);
    }
}

/// The options. Files that they refer to are copied into the room, since the user may not be able to read them.
fn with_copies(room: &UnprivilegedSandbox, options: &str, number: usize) -> io::Result<Vec<String>> {
    let mut words = Vec::new();
    for (place, word) in options.split_whitespace().enumerate() {
        let store = STORES.iter().find_map(|option| Some((option, word.strip_prefix(option)?)));
        let copied = match store {
            Some((option, path)) => match underlay_files::read(Path::new(path), MAX_BYTES) {
                Ok(content) => {
                    let name = format!("{HOME}/store-{number}-{place}");
                    room.make_file(&name, &content)?;
                    Some(format!("{option}{}", room.inside(&name).display()))
                }
                // Let Java report what is wrong with it.
                Err(_) => None,
            },
            None => None,
        };
        words.push(copied.unwrap_or_else(|| word.to_owned()));
    }
    Ok(words)
}

/// The environment variables that settings refer to, as in `<password>${env.REPOSITORY_PASSWORD}</password>`.
fn variables_in(settings: &str) -> Vec<String> {
    let named = settings.split("${env.").skip(1).filter_map(|rest| rest.split_once('}'));
    let is_name = |name: &&str| {
        !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
    };
    named.map(|(name, _)| name).filter(is_name).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_say_which_variables_they_need() {
        let settings = "<a>${env.USER_1}</a><b>${user.home}</b><c>x${env.TOKEN}y</c><d>${env.}</d><e>${env.A B}</e><f>${env.OPEN";
        assert_eq!(variables_in(settings), ["USER_1", "TOKEN"]);
    }
}
