//! What `--version` says: which commit this is, and how it was built.

use std::process::Command;

fn main() {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    // A package is built without the repository: its packager names the commit.
    let commit = set("UNDERLAY_COMMIT").or_else(|| git(&["rev-parse", "--short=12", "HEAD"]));
    let commit = commit.unwrap_or_else(|| "unknown".to_owned());
    let version = set("CARGO_PKG_VERSION").unwrap_or_default();
    let (profile, target) = (set("PROFILE").unwrap_or_default(), set("TARGET").unwrap_or_default());
    println!("cargo::rustc-env=UNDERLAY_VERSION={version} (commit {commit}, {profile} build for {target})");
    println!("cargo::rerun-if-env-changed=UNDERLAY_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    // A study that comes there is bundled.
    println!("cargo::rerun-if-changed=../../studies");
    // Written whenever HEAD moves.
    if let Some(log) =
        git(&["rev-parse", "--git-path", "logs/HEAD"]).filter(|log| std::path::Path::new(log).exists())
    {
        println!("cargo::rerun-if-changed={log}");
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let output =
        Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}
