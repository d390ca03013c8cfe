use super::*;
use crate::machine::processes::{self, ProcessId};
use crate::undo::registry::OwnFolder;
use crate::undo::registry::tests::{dead_process, journal_of, registry};

fn clean(registry: &ResourceRegistry) -> (Result<CleanupResult, String>, Vec<String>) {
    let mut lines = Vec::new();
    let outcome =
        super::clean(registry, &mut |line| lines.push(line.to_owned())).map_err(|error| error.to_string());
    (outcome, lines)
}

#[test]
fn living_process_has_no_leftovers() {
    let (_keep, registry) = registry();
    let (session, note) = registry.session().unwrap();
    assert!(registry.leftovers().is_empty());
    let (outcome, lines) = clean(&registry);
    assert_eq!(outcome, Ok(CleanupResult { removed: 0, in_use: 1 }));
    assert!(lines[0].contains("left alone"), "{lines:?}");
    assert!(session.is_dir());
    fs::remove_dir(&session).unwrap();
    registry.forget(note);
}

/// Its user removed the dead owner's resource by hand, and began again.
#[test]
fn living_owner_at_same_path_keeps_it() {
    let (keep, registry) = registry();
    let made_again = keep.path().join("run/work");
    let resources =
        [&made_again, &keep.path().join("run")].map(|path| OwnedResource::Tree { path: path.clone() });
    journal_of(&registry, dead_process(), &processes::boot_id(), &resources);
    let note = registry.note(OwnedResource::Tree { path: made_again.clone() }).unwrap();
    fs::create_dir_all(&made_again).unwrap();
    fs::write(made_again.join("file"), "x").unwrap();
    let (outcome, lines) = clean(&registry);
    assert_eq!(outcome, Ok(CleanupResult { removed: 0, in_use: 1 }), "{lines:?}");
    assert!(made_again.join("file").is_file());
    fs::remove_dir_all(&made_again).unwrap();
    registry.forget(note);
}

#[test]
fn dead_owner_loses_only_its_resources() {
    let (keep, registry) = registry();
    let tree = keep.path().join("tree");
    fs::create_dir_all(tree.join("below")).unwrap();
    fs::write(tree.join("below/file"), "x").unwrap();
    let file = keep.path().join("file");
    fs::write(&file, "x").unwrap();
    let filled = keep.path().join("filled");
    fs::create_dir(&filled).unwrap();
    fs::write(filled.join("theirs"), "x").unwrap();
    let link = keep.path().join("link");
    std::os::unix::fs::symlink(&filled, &link).unwrap();
    let resources = [
        OwnedResource::Tree { path: tree.clone() },
        OwnedResource::File { path: file.clone() },
        OwnedResource::EmptyDirectory { path: filled.clone() },
        OwnedResource::Tree { path: link.clone() },
        OwnedResource::Mount { mount_point: keep.path().to_owned(), backing: "/no/such/volume".into() },
        OwnedResource::FuseMount { mount_point: "/".into(), source: "underlay:none".into() },
        OwnedResource::Directory { mount_point: "/".into(), source: "underlay:none".into() },
        OwnedResource::Daemon { config: "/no/such/config".into(), control: "/no/such/socket".into() },
        OwnedResource::Cgroup { directory: keep.path().join("no-such-group") },
    ];
    let journal = journal_of(&registry, dead_process(), &processes::boot_id(), &resources);
    assert_eq!(registry.leftovers().len(), resources.len());
    let (outcome, lines) = clean(&registry);
    assert!(outcome.is_ok(), "{outcome:?} {lines:?}");
    assert!(!tree.exists() && !file.exists() && !journal.exists());
    assert!(filled.join("theirs").exists() && fs::symlink_metadata(&link).is_ok());
    assert_eq!(clean(&registry).0, Ok(CleanupResult::default()));
}

#[test]
fn process_with_reused_pid_is_not_ended() {
    let (_keep, registry) = registry();
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let process = ProcessId::from_pid(child.id()).unwrap();
    let owner = dead_process();
    let before = ProcessId { start_ticks: process.start_ticks - 1, ..process };
    let boot = processes::boot_id();
    journal_of(
        &registry,
        owner,
        &boot,
        &[OwnedResource::Process { process: before, what: "an engine".into() }],
    );
    assert_eq!(clean(&registry).0, Ok(CleanupResult::default()));
    assert!(process.is_alive());
    journal_of(
        &registry,
        owner,
        "another boot",
        &[OwnedResource::Process { process, what: "an engine".into() }],
    );
    assert_eq!(clean(&registry).0, Ok(CleanupResult::default()));
    assert!(process.is_alive());
    journal_of(&registry, owner, &boot, &[OwnedResource::Process { process, what: "an engine".into() }]);
    assert_eq!(clean(&registry).0, Ok(CleanupResult { removed: 1, in_use: 0 }));
    assert!(!process.is_alive());
    child.wait().unwrap();
}

#[test]
fn socket_without_listener_is_removed() {
    use std::os::unix::net::UnixListener;
    let (keep, registry) = registry();
    let (left, in_use) = (keep.path().join("left"), keep.path().join("taken"));
    drop(UnixListener::bind(&left).unwrap());
    // Another process has bound the dead owner's path anew.
    let _listener = UnixListener::bind(&in_use).unwrap();
    let resources =
        [OwnedResource::Socket { path: left.clone() }, OwnedResource::Socket { path: in_use.clone() }];
    journal_of(&registry, dead_process(), &processes::boot_id(), &resources);
    let (outcome, lines) = clean(&registry);
    assert_eq!(outcome, Ok(CleanupResult { removed: 1, in_use: 0 }), "{lines:?}");
    assert!(!left.exists() && in_use.exists());
}

/// A restarted machine still has them.
#[test]
fn external_store_leftover_is_named_once() {
    let (_keep, registry) = registry();
    let place = "objects of jobs at s3a://lake/underlay-0123/, in the store https://s3.example".to_owned();
    journal_of(
        &registry,
        dead_process(),
        "another boot",
        &[OwnedResource::ElsewhereContent { place: place.clone() }],
    );
    let (outcome, lines) = clean(&registry);
    assert_eq!(outcome, Ok(CleanupResult::default()));
    assert!(lines.iter().any(|line| line.contains("delete it there") && line.contains(&place)), "{lines:?}");
    assert!(clean(&registry).1.is_empty());
}

#[test]
fn exchanged_parent_stops_removal() {
    let (keep, registry) = registry();
    let path_of = |name: &str| keep.path().canonicalize().unwrap().join(name);
    fs::create_dir_all(path_of("victim/tree/inner")).unwrap();
    fs::write(path_of("victim/file"), "theirs").unwrap();
    fs::create_dir(path_of("ours")).unwrap();
    let folder = OwnFolder::make(&path_of("ours/tree"), &registry).unwrap();
    fs::rename(path_of("ours"), path_of("away")).unwrap();
    std::os::unix::fs::symlink(path_of("victim"), path_of("ours")).unwrap();
    drop(folder);
    assert!(path_of("victim/tree/inner").exists());
    assert_eq!(registry.living().len(), 1, "what is left stays noted");

    let resources = [
        OwnedResource::Tree { path: path_of("ours/tree") },
        OwnedResource::File { path: path_of("ours/file") },
    ];
    journal_of(&registry, dead_process(), &processes::boot_id(), &resources);
    let (outcome, _) = clean(&registry);
    assert!(outcome.unwrap_err().contains("no longer a directory"));
    assert!(path_of("victim/tree/inner").exists() && path_of("victim/file").exists());
}
