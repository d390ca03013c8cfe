use proptest::prelude::*;

use super::*;

pub(crate) fn registry() -> (tempfile::TempDir, ResourceRegistry) {
    let directory = tempfile::tempdir().unwrap();
    let registry = ResourceRegistry::open_at(&directory.path().join("run")).unwrap();
    (directory, registry)
}

/// A process that has ended: its number may be reused, its start time may not.
pub(crate) fn dead_process() -> ProcessId {
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let id = ProcessId::from_pid(child.id()).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    id
}

pub(crate) fn journal_of(
    registry: &ResourceRegistry,
    process: ProcessId,
    boot_id: &str,
    resources: &[OwnedResource],
) -> PathBuf {
    let path = registry.directory().join(journal::file_name(process.pid, process.start_ticks));
    let mut file = File::create(&path).unwrap();
    let owner = RegistryOwner {
        process,
        boot_id: boot_id.to_owned(),
        pid_namespace: None,
        command: "test".to_owned(),
    };
    append(&mut file, &journal::RegistryLine::Owner(owner)).unwrap();
    for (id, resource) in (1..).zip(resources) {
        append(&mut file, &journal::RegistryLine::Note { id, resource: resource.clone() }).unwrap();
    }
    path
}

#[test]
fn journal_is_removed_with_last_resource() {
    let (_keep, registry) = registry();
    let first = registry.note(OwnedResource::Loop { backing: "/a".into() }).unwrap();
    let second = registry.note(OwnedResource::Loop { backing: "/b".into() }).unwrap();
    assert_eq!(registry.journals().len(), 1);
    registry.forget(first);
    assert_eq!(registry.journals()[0].1.resources.len(), 1);
    registry.forget(second);
    assert!(registry.journals().is_empty());
    // And it starts anew.
    let third = registry.note(OwnedResource::Loop { backing: "/c".into() }).unwrap();
    assert_eq!(registry.journals()[0].1.owner.process, ProcessId::current());
    registry.forget(third);
}

#[test]
fn folder_without_registry_is_removed_by_owner_only() {
    let (keep, registry) = registry();
    let path = keep.path().canonicalize().unwrap().join("work");
    let make = || {
        fs::create_dir(&path).unwrap();
        fs::write(path.join("file"), "x").unwrap();
    };
    make();
    assert!(OwnFolder::remove_forgotten(&path, &registry).unwrap());
    assert!(!path.exists());
    // A link points to something that is not ours.
    let precious = keep.path().join("precious");
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("file"), "x").unwrap();
    std::os::unix::fs::symlink(&precious, &path).unwrap();
    assert!(!OwnFolder::remove_forgotten(&path, &registry).unwrap());
    assert!(precious.join("file").is_file());
    fs::remove_file(&path).unwrap();
    let resources = [OwnedResource::Tree { path: path.clone() }];
    let journal = journal_of(&registry, dead_process(), &crate::machine::processes::boot_id(), &resources);
    make();
    assert!(!OwnFolder::remove_forgotten(&path, &registry).unwrap(), "`clean` knows of it");
    fs::remove_file(journal).unwrap();
    fs::remove_dir_all(&path).unwrap();
    let note = registry.note(OwnedResource::File { path: path.join("file") }).unwrap();
    make();
    assert!(!OwnFolder::remove_forgotten(&path, &registry).unwrap(), "a living process has something in it");
    registry.forget(note);
}

#[test]
fn existing_path_is_not_noted() {
    let (keep, registry) = registry();
    let error = registry.note(OwnedResource::Tree { path: keep.path().to_owned() }).unwrap_err();
    assert!(error.to_string().contains("exists already"), "{error}");
    assert!(registry.journals().is_empty());
}

#[test]
fn missing_directories_are_made_and_taken_back() {
    let (keep, registry) = registry();
    let deep = keep.path().join("a/b/c");
    let mut made = registry.make_directories(&deep).unwrap();
    assert!(deep.is_dir());
    assert_eq!(made.len(), 3);
    fs::write(keep.path().join("a/theirs"), "x").unwrap();
    registry.remove_directories(&mut made);
    assert!(!keep.path().join("a/b").exists() && keep.path().join("a/theirs").exists());
    assert!(registry.journals().is_empty());
}

#[test]
fn line_after_torn_one_is_read() {
    let (_keep, registry) = registry();
    let torn = OwnedResource::Loop { backing: "/torn".into() };
    let path = journal_of(&registry, dead_process(), &processes::boot_id(), &[torn]);
    // The part of a line that fits on a full disk.
    let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b"{\"note\":{\"id\":2,\"thi").unwrap();
    let resource = OwnedResource::Loop { backing: "/whole".into() };
    append(&mut file, &journal::RegistryLine::Note { id: 3, resource: resource.clone() }).unwrap();
    let resources: Vec<OwnedResource> =
        registry.leftovers().into_iter().map(|leftover| leftover.resource).collect();
    assert_eq!(resources, [OwnedResource::Loop { backing: "/torn".into() }, resource]);
    assert_eq!(journal::read(&path).unwrap().unreadable_lines, 1);
}

/// A container that shares the runtime directory with the host has other process numbers, and this one sees none of its
/// processes.
#[test]
fn owner_in_other_pid_namespace_lives_while_journal_locked() {
    let (_keep, registry) = registry();
    let process = ProcessId { pid: u32::MAX, start_ticks: 7 };
    let path = registry.directory().join(journal::file_name(process.pid, process.start_ticks));
    let journal_with = |pid_namespace| {
        let mut file = File::create(&path).unwrap();
        let owner =
            RegistryOwner { process, boot_id: processes::boot_id(), pid_namespace, command: "test".into() };
        append(&mut file, &journal::RegistryLine::Owner(owner)).unwrap();
        let resource = OwnedResource::Loop { backing: "/a".into() };
        append(&mut file, &journal::RegistryLine::Note { id: 1, resource }).unwrap();
        file
    };
    let other_namespace = journal_with(Some(3));
    other_namespace.lock().unwrap();
    assert!(registry.leftovers().is_empty() && registry.living().len() == 1);
    other_namespace.unlock().unwrap();
    assert!(registry.leftovers().len() == 1 && registry.living().is_empty());
    // Here only its number counts, locked or not; the same applies to records of earlier versions.
    for noted in [scratch_dir::pid_namespace(), None] {
        let here = journal_with(noted);
        here.lock().unwrap();
        assert_eq!(registry.leftovers().len(), 1, "{noted:?}");
    }
}

#[test]
fn new_foreign_journal_is_not_removed() {
    let (_keep, registry) = registry();
    let process = ProcessId { pid: u32::MAX, start_ticks: 7 };
    let path = registry.directory().join(journal::file_name(process.pid, process.start_ticks));
    let begun = File::create(&path).unwrap();
    begun.lock().unwrap();
    assert!(journal::read(&path).unwrap().is_alive());
    remove_journal(&path);
    assert!(path.exists());
    drop(begun);
    assert!(!journal::read(&path).unwrap().is_alive());
    remove_journal(&path);
    assert!(!path.exists());
}

#[test]
fn replaced_journal_is_distinguished() {
    let (_keep, registry) = registry();
    let path = registry.directory().join("owner-7-7.jsonl");
    let first = start_journal(&path).unwrap();
    assert!(is_at(&first, &path));
    fs::remove_file(&path).unwrap();
    assert!(!is_at(&first, &path));
    let second = start_journal(&path).unwrap();
    assert!(is_at(&second, &path) && !is_at(&first, &path));
}

#[test]
fn journal_names_pid_namespace_and_stays_locked() {
    let (_keep, registry) = registry();
    let note = registry.note(OwnedResource::Loop { backing: "/a".into() }).unwrap();
    let (_, journal) = registry.journals().remove(0);
    assert!(journal.is_locked && journal.owner.pid_namespace.is_some() && journal.is_alive());
    registry.forget(note);
}

fn some_thing() -> impl Strategy<Value = OwnedResource> {
    let path = "[a-z \\\\\"é/]{0,12}".prop_map(PathBuf::from);
    (path, any::<u32>(), any::<u64>(), 0_u8..5).prop_map(|(path, pid, start_ticks, kind)| match kind {
        0 => OwnedResource::Mount { mount_point: path.clone(), backing: path },
        1 => OwnedResource::Process { process: ProcessId { pid, start_ticks }, what: "x".into() },
        2 => OwnedResource::FuseMount { source: "s".into(), mount_point: path },
        3 => OwnedResource::Daemon { config: path.clone(), control: path },
        _ => OwnedResource::Tree { path },
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Compared with a map: everything noted and not forgotten is outstanding, and truncating the file anywhere loses
    /// at most the truncated line.
    #[test]
    fn truncated_journal_reads_back(
        actions in proptest::collection::vec((some_thing(), any::<bool>()), 0..20),
        cut in any::<prop::sample::Index>(),
    ) {
        let process = ProcessId { pid: 7, start_ticks: 9 };
        let owner = RegistryOwner { process, boot_id: "b".into(), pid_namespace: Some(3), command: "c".into() };
        let mut lines = vec![journal::RegistryLine::Owner(owner.clone())];
        let mut model: Vec<Vec<(u64, OwnedResource)>> = vec![Vec::new()];
        for (id, (resource, forget)) in (1..).zip(actions) {
            let mut now = model.last().unwrap().clone();
            now.push((id, resource.clone()));
            model.push(now.clone());
            lines.push(journal::RegistryLine::Note { id, resource });
            if forget {
                now.pop();
                model.push(now);
                lines.push(journal::RegistryLine::Forget { id });
            }
        }
        let mut bytes = Vec::new();
        let mut ends = Vec::new();
        for line in &lines {
            serde_json::to_writer(&mut bytes, line).unwrap();
            ends.push(bytes.len());
            bytes.push(b'\n');
        }
        let whole = parse_journal(process, &bytes);
        prop_assert_eq!(&whole.owner, &owner);
        prop_assert_eq!(&whole.resources, model.last().unwrap());
        let cut = cut.index(bytes.len() + 1);
        let torn = parse_journal(process, &bytes[..cut]);
        let complete = ends.iter().filter(|end| **end <= cut).count();
        // A truncated owner line does not count as a line.
        let expected = complete.checked_sub(1).map_or_else(Vec::new, |last| model[last].clone());
        prop_assert_eq!(torn.resources, expected);
        prop_assert!(torn.unreadable_lines <= 1);
    }

    #[test]
    fn damage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        parse_journal(ProcessId { pid: 1, start_ticks: 1 }, &bytes);
    }
}

/// Nobody can put a link there between the check and the creation, and nobody else can read it.
#[test]
fn own_folder_is_new_and_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let (keep, registry) = registry();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let folder = OwnFolder::make(&keep.path().join("work/inner"), &registry).unwrap();
    assert_eq!((mode(folder.path()), mode(&keep.path().join("work"))), (0o700, 0o700));
    let temporary = OwnFolder::temporary("ycsb", &registry).unwrap();
    assert!(temporary.path().starts_with(registry.directory()));
    let unique = [(); 2].map(|()| OwnFolder::make_in(keep.path(), "disk", &registry).unwrap());
    assert_ne!(unique[0].path(), unique[1].path());
    for path in [temporary.path(), unique[0].path(), registry.directory()] {
        assert_eq!(mode(path), 0o700, "{}", path.display());
    }
    let made = [folder.path(), temporary.path(), unique[0].path()].map(Path::to_path_buf);
    drop((folder, temporary, unique));
    assert!(made.iter().all(|path| !path.exists()) && registry.journals().is_empty());
}

/// Directories created above a directory for its sake are removed with it, unless they have other contents.
#[test]
fn folders_above_one_of_our_own_go_with_it() {
    let (keep, registry) = registry();
    let path_of = |path: &str| keep.path().join(path);
    drop(OwnFolder::make(&path_of("a/b/inner"), &registry).unwrap());
    assert!(!path_of("a").exists());
    let folder = OwnFolder::make(&path_of("a/b/inner"), &registry).unwrap();
    fs::write(path_of("a/mine"), "").unwrap();
    drop(folder);
    assert!(path_of("a/mine").exists() && !path_of("a/b").exists());
    fs::create_dir(path_of("a/empty")).unwrap();
    drop(OwnFolder::make(&path_of("a/empty/inner"), &registry).unwrap());
    assert!(path_of("a/empty").exists(), "it was there before");
    // As below /tmp.
    fs::create_dir(path_of("shared")).unwrap();
    fs::set_permissions(path_of("shared"), std::os::unix::fs::PermissionsExt::from_mode(0o1777)).unwrap();
    drop(OwnFolder::make(&path_of("shared/new/inner"), &registry).unwrap());
    assert!(path_of("shared").exists() && !path_of("shared/new").exists());
    let too_long = "x".repeat(300);
    OwnFolder::make(&path_of("c/d").join(too_long), &registry).unwrap_err();
    assert!(!path_of("c").exists(), "and nothing is left where it can't be made");
    assert!(registry.journals().is_empty());
}

#[test]
fn exchangeable_registry_is_refused() {
    use std::os::unix::fs::{PermissionsExt as _, chown};
    let keep = tempfile::tempdir().unwrap();
    let open = keep.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let refused = |path: &Path| ResourceRegistry::open_at(path).unwrap_err().to_string();
    assert!(refused(&open).contains("can be written to by everybody"));
    assert!(rustix::process::geteuid().is_root() || std::env::var_os("CI").is_none());
    if rustix::process::geteuid().is_root() {
        assert!(refused(&open.join("run")).contains("can be written to by everybody"));
        chown(&open, Some(65_534), Some(65_534)).unwrap();
        assert!(refused(&open).contains("belongs to user 65534"));
        assert!(refused(&open.join("run")).contains("UNDERLAY_RUNTIME_DIR"));
        assert!(!open.join("run").exists());
    }
}
