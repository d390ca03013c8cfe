use std::process::{Command, Stdio};

use super::*;

/// A host as `/proc` and `/sys` show it, made of plain files. A real kernel fills a new group with files;
/// these hosts accept that they are made by writing.
struct FakeHost {
    root: tempfile::TempDir,
    registry: Registry,
}

impl FakeHost {
    fn new(mountinfo: &str, mounts: &str, cgroup: &str) -> FakeHost {
        let root = tempfile::tempdir().unwrap();
        let proc = root.path().join("proc/self");
        fs::create_dir_all(&proc).unwrap();
        fs::write(proc.join("mountinfo"), mountinfo).unwrap();
        fs::write(proc.join("mounts"), mounts).unwrap();
        fs::write(proc.join("cgroup"), cgroup).unwrap();
        let registry = Registry::at(&root.path().join("run")).unwrap();
        FakeHost { root, registry }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Takes the fake files out, as a kernel would, and then the budget.
    fn remove(&self, mut budget: MemoryBudget) {
        for entry in fs::read_dir(budget.directory()).unwrap().flatten() {
            fs::remove_file(entry.path()).unwrap();
        }
        budget.remove().unwrap();
        assert!(!budget.directory().exists());
        budget.remove().unwrap();
    }
}

fn version_1() -> FakeHost {
    let host = FakeHost::new(
        "30 1 0:20 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n31 1 0:21 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
        "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n",
        "4:memory:/jobs/one\n5:cpu:/\n0::/\n",
    );
    host.file("sys/fs/cgroup/memory/jobs/one/cgroup.procs", "");
    host
}

fn version_2(own: &str) -> FakeHost {
    let host =
        FakeHost::new("30 1 0:20 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "", &format!("0::{own}\n"));
    host.file("sys/fs/cgroup/cgroup.controllers", "cpu memory pids");
    host.file("sys/fs/cgroup/cgroup.subtree_control", "cpu memory");
    host
}

#[test]
fn version_1_below_the_own_group() {
    let host = version_1();
    let hierarchy = Hierarchy::find(host.root.path()).unwrap();
    let group = host.path("sys/fs/cgroup/memory/jobs/one");
    let budget = MemoryBudget::create_in(&hierarchy, "cell 1/a", 512 << 20, &host.registry);
    let budget = budget.unwrap();
    assert_eq!(budget.enforced_by(), "cgroup v1");
    assert!(budget.directory().starts_with(group.join("underlay")), "{:?}", budget.directory());
    assert!(budget.directory().file_name().unwrap().to_str().unwrap().starts_with("cell_1_a-"));
    assert_eq!(fs::read_to_string(budget.directory().join("memory.limit_in_bytes")).unwrap(), "536870912");
    // This host accounts no swap.
    assert!(!budget.directory().join("memory.memsw.limit_in_bytes").exists());
    fs::write(budget.directory().join("memory.usage_in_bytes"), "4096\n").unwrap();
    fs::write(budget.directory().join("memory.max_usage_in_bytes"), "8192\n").unwrap();
    fs::write(budget.directory().join("memory.oom_control"), "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
        .unwrap();
    assert_eq!((budget.usage_bytes(), budget.peak_bytes(), budget.oom_kills()), (Some(4096), Some(8192), 3));
    host.remove(budget);
}

#[test]
fn version_1_in_a_container_that_shows_the_hosts_path() {
    let host = version_1();
    host.file("proc/self/cgroup", "4:memory:/docker/not-here\n");
    let hierarchy = Hierarchy::find(host.root.path()).unwrap();
    let parent = hierarchy.make_parent("underlay").unwrap();
    assert_eq!(parent, host.path("sys/fs/cgroup/memory/underlay"));
}

#[test]
fn version_2_goes_up_to_where_the_controller_may_be_enabled() {
    let host = version_2("/user.slice/a.scope");
    host.file("sys/fs/cgroup/user.slice/cgroup.subtree_control", "memory");
    // A directory in its place stands for a kernel that refuses the write.
    fs::create_dir_all(host.path("sys/fs/cgroup/user.slice/a.scope/cgroup.subtree_control")).unwrap();
    host.file("sys/fs/cgroup/user.slice/underlay/cgroup.subtree_control", "");
    let hierarchy = Hierarchy::find(host.root.path()).unwrap();
    let budget = MemoryBudget::create_in(&hierarchy, "cell", 1 << 30, &host.registry).unwrap();
    let parent = host.path("sys/fs/cgroup/user.slice/underlay");
    assert_eq!(budget.directory().parent(), Some(parent.as_path()));
    assert_eq!(budget.enforced_by(), "cgroup v2");
    assert_eq!(fs::read_to_string(parent.join("cgroup.subtree_control")).unwrap(), "+memory");
    assert_eq!(fs::read_to_string(budget.directory().join("memory.max")).unwrap(), "1073741824");
    assert!(!budget.directory().join("memory.high").exists());
    fs::write(budget.directory().join("memory.events"), "low 0\noom 2\noom_kill 1\n").unwrap();
    assert_eq!((budget.oom_kills(), budget.peak_bytes()), (1, None));
    host.remove(budget);
}

#[test]
fn a_host_without_a_memory_controller_says_what_to_do() {
    let host = version_2("/");
    host.file("sys/fs/cgroup/cgroup.controllers", "cpu pids");
    let missing = Hierarchy::find(host.root.path()).unwrap_err();
    assert!(missing.remedy.contains("cgroup_enable=memory"), "{missing}");
    let bare = FakeHost::new("", "", "");
    assert!(Hierarchy::find(bare.root.path()).is_err());
}

#[test]
fn a_host_that_lets_nobody_make_groups_says_what_to_do() {
    let host = version_2("/");
    host.file("sys/fs/cgroup/underlay", "a file in the way");
    let missing = Hierarchy::find(host.root.path()).unwrap().make_parent("underlay").unwrap_err();
    assert!(missing.remedy.contains("root"), "{missing}");
}

/// On this machine itself: the page cache of what a process reads counts, and stays within the budget.
#[test]
fn a_real_budget_holds_the_page_cache() {
    if let Err(missing) = probe() {
        assert!(std::env::var_os("CI").is_none(), "{missing}");
        return eprintln!("SKIPPED: {missing}");
    }
    // Beside the test program, which lies on a disk: a memory filesystem has no cache to hold.
    let program = std::env::current_exe().unwrap();
    let keep = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
    let registry = Registry::at(&keep.path().join("run")).unwrap();
    let file = keep.path().join("data");
    fs::write(&file, vec![1_u8; 48 << 20]).unwrap();
    let mut budget = MemoryBudget::create("test", 16 << 20, &registry).unwrap();
    budget.drop_caches(&[keep.path().to_owned()], false).unwrap();
    let script = r#"echo 0 > "$1" && cat "$2" > /dev/null && sleep 60"#;
    let mut child = Command::new("sh")
        .args(["-c", script, "sh"])
        .args([&budget.procs_files()[0], &file])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while budget.peak_bytes().or(budget.usage_bytes()).unwrap() < 12 << 20 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    let most = budget.peak_bytes().or(budget.usage_bytes()).unwrap();
    assert!((12 << 20..=16 << 20).contains(&most), "{most} bytes at most");
    assert_eq!(budget.oom_kills(), 0);
    budget.drop_caches(&[keep.path().to_owned()], false).unwrap();
    let directory = budget.directory().to_owned();
    budget.remove().unwrap();
    child.wait().unwrap();
    assert!(!directory.exists());
    assert!(registry.leftovers().is_empty());
}

/// On this machine itself, without a budget: `mincore` tells what the page cache holds.
#[test]
fn file_caches_are_dropped_without_a_budget() {
    let program = std::env::current_exe().unwrap();
    let keep = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
    let below = keep.path().join("a/b");
    fs::create_dir_all(&below).unwrap();
    let alone = tempfile::NamedTempFile::new_in(program.parent().unwrap()).unwrap();
    let files = [below.join("data"), alone.path().to_owned()];
    for file in &files {
        // Dirty pages can't be dropped, so these have to be written out first.
        fs::write(file, vec![1_u8; 2 << 20]).unwrap();
        assert!(cached_pages(file) > 0, "{} lies on a memory filesystem", file.display());
    }
    drop_file_caches(&[keep.path().to_owned(), alone.path().to_owned()]).unwrap();
    for file in &files {
        assert_eq!(cached_pages(file), 0, "{}", file.display());
        assert_eq!(fs::read(file).unwrap(), vec![1_u8; 2 << 20]);
    }
    assert!(drop_file_caches(&[keep.path().join("missing")]).unwrap_err().to_string().contains("missing"));
}

fn cached_pages(path: &Path) -> usize {
    use std::os::fd::AsRawFd;
    let file = File::open(path).unwrap();
    let length = file.metadata().unwrap().len() as usize;
    let mut resident = vec![0_u8; length.div_ceil(4096)];
    // SAFETY: the mapping is only looked at by mincore, which writes one byte a page into `resident`.
    unsafe {
        let place =
            libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(place, libc::MAP_FAILED);
        assert_eq!(libc::mincore(place, length, resident.as_mut_ptr()), 0);
        libc::munmap(place, length);
    }
    resident.iter().filter(|page| **page & 1 == 1).count()
}
