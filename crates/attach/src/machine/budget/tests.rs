use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::*;
use crate::machine::processors::Processors;

/// A host's `/proc` and `/sys`, made of plain files. A real kernel fills a new group with files; these hosts let them
/// be created by writing.
struct FakeHost {
    root: tempfile::TempDir,
    registry: ResourceRegistry,
}

impl FakeHost {
    fn new(mountinfo: &str, mounts: &str, cgroup: &str) -> FakeHost {
        let root = tempfile::tempdir().unwrap();
        let proc = root.path().join("proc/self");
        fs::create_dir_all(&proc).unwrap();
        fs::write(proc.join("mountinfo"), mountinfo).unwrap();
        fs::write(proc.join("mounts"), mounts).unwrap();
        fs::write(proc.join("cgroup"), cgroup).unwrap();
        let registry = ResourceRegistry::open_at(&root.path().join("run")).unwrap();
        FakeHost { root, registry }
    }

    /// With hierarchies of version 1, one per element, each with the controllers named there.
    fn with_version_1(hierarchies: &[&str]) -> FakeHost {
        let lines =
            |line: &dyn Fn(&str) -> String| hierarchies.iter().map(|name| line(name)).collect::<String>();
        let host = FakeHost::new(
            &lines(&|name| format!("30 1 0:20 / /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}\n")),
            &lines(&|name| format!("cgroup /sys/fs/cgroup/{name} cgroup rw,relatime,{name} 0 0\n")),
            &(lines(&|name| format!("4:{name}:/jobs/one\n")) + "0::/\n"),
        );
        for name in hierarchies {
            host.file(&format!("sys/fs/cgroup/{name}/jobs/one/cgroup.procs"), "");
            if name.split(',').any(|controller| controller == "cpu") {
                host.file(&format!("sys/fs/cgroup/{name}/jobs/one/underlay/cpu.cfs_quota_us"), "-1\n");
            }
            if name.split(',').any(|controller| controller == "cpuset") {
                host.file(&format!("sys/fs/cgroup/{name}/jobs/one/cpuset.cpus"), "0-7\n");
                host.file(&format!("sys/fs/cgroup/{name}/jobs/one/cpuset.mems"), "0-1\n");
            }
        }
        host
    }

    fn with_version_2(own: &str) -> FakeHost {
        let host =
            FakeHost::new("30 1 0:20 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "", &format!("0::{own}\n"));
        host.file("sys/fs/cgroup/cgroup.controllers", "cpu memory pids");
        host.file("sys/fs/cgroup/cgroup.subtree_control", "cpu memory");
        host
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn create(&self, limits: &GroupLimits) -> Result<ResourceBudget, AttachError> {
        ResourceBudget::create_in(self.root.path(), "cell 1/a", limits, &self.registry)
    }

    fn hierarchy(&self) -> Result<hierarchy::CgroupHierarchy, MissingCapability> {
        hierarchy::find(self.root.path(), &[CgroupController::Memory]).map(|mut found| found.remove(0))
    }

    /// Removes the fake files, as a kernel would, and then the budget.
    fn remove(&self, mut budget: ResourceBudget) {
        for directory in budget.directories() {
            for entry in fs::read_dir(directory).unwrap().flatten() {
                fs::remove_file(entry.path()).unwrap();
            }
        }
        budget.remove().unwrap();
        for directory in budget.directories() {
            assert!(!directory.exists(), "{}", directory.display());
        }
        budget.remove().unwrap();
        // When nothing is outstanding, the journal is removed.
        assert_eq!(fs::read_dir(self.path("run")).unwrap().count(), 0);
    }
}

fn memory(memory_bytes: u64) -> GroupLimits {
    GroupLimits { memory_bytes, cpu: None }
}

/// This much of the time of the CPUs 0 to 3, in periods of 10 ms.
fn cpu(quota_cpus: f64) -> GroupLimits {
    let share =
        CpuShare { cpus: (0..4).collect(), quota_cpus, period: Duration::from_millis(10), prevails: true };
    GroupLimits { memory_bytes: 1 << 30, cpu: Some(share) }
}

fn read(directory: &Path, file: &str) -> String {
    fs::read_to_string(directory.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

#[test]
fn version_1_below_the_own_group() {
    let host = FakeHost::with_version_1(&["cpu", "memory"]);
    let group = host.path("sys/fs/cgroup/memory/jobs/one");
    let budget = host.create(&memory(512 << 20)).unwrap();
    assert_eq!((budget.enforced_by(), budget.cpu_enforced_by()), ("cgroup v1", None));
    let [directory] = budget.directories()[..] else { panic!("{:?}", budget.directories()) };
    // CPU time is not limited, so it is not below the parent whose weight may be that of many programs.
    assert!(directory.starts_with(group.join("underlay-others")), "{directory:?}");
    assert!(directory.file_name().unwrap().to_str().unwrap().starts_with("cell_1_a-"));
    assert_eq!(read(directory, "memory.limit_in_bytes"), "536870912");
    // This host does not count swap.
    assert!(!directory.join("memory.memsw.limit_in_bytes").exists());
    fs::write(directory.join("memory.usage_in_bytes"), "4096\n").unwrap();
    fs::write(directory.join("memory.max_usage_in_bytes"), "8192\n").unwrap();
    fs::write(directory.join("memory.oom_control"), "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n").unwrap();
    assert_eq!((budget.usage_bytes(), budget.peak_bytes(), budget.oom_kills()), (Some(4096), Some(8192), 3));
    assert_eq!((budget.hold_cpu().is_ok(), budget.cpu_usage()), (true, None));
    host.remove(budget);
}

#[test]
fn version_1_in_container_ignores_host_path() {
    let host = FakeHost::with_version_1(&["memory"]);
    host.file("proc/self/cgroup", "4:memory:/docker/not-here\n");
    let parent = host.hierarchy().unwrap().make_parent("underlay").unwrap();
    assert_eq!(parent.directory, host.path("sys/fs/cgroup/memory/underlay"));
}

#[test]
fn version_1_with_a_hierarchy_for_each_controller() {
    let host = FakeHost::with_version_1(&["cpu", "cpuacct", "cpuset", "memory"]);
    let budget = host.create(&cpu(2.5)).unwrap();
    let directories = budget.directories();
    let [_, cpu, cpuacct, cpuset] = directories[..] else { panic!("{directories:?}") };
    let places = ["memory", "cpu", "cpuacct", "cpuset"];
    for ((directory, place), file) in directories.iter().zip(places).zip(budget.join_files()) {
        assert!(directory.starts_with(host.path(&format!("sys/fs/cgroup/{place}/jobs/one/underlay"))));
        assert_eq!(file, directory.join("cgroup.procs"));
    }
    // A set without CPUs or memory accepts no processes, and one below a parent without them can't have any.
    assert_eq!((read(cpuset, "cpuset.cpus"), read(cpuset, "cpuset.mems")), ("0-3".into(), "0-1".into()));
    let parent = cpuset.parent().unwrap();
    assert_eq!((read(parent, "cpuset.cpus"), read(parent, "cpuset.mems")), ("0-7".into(), "0-1".into()));

    // No quota while it starts.
    assert!(!cpu.join("cpu.cfs_quota_us").exists());
    assert_eq!((budget.cpu_enforced_by(), budget.cpu_usage()), (Some("cgroup v1"), None));
    budget.hold_cpu().unwrap();
    assert_eq!(
        (read(cpu, "cpu.cfs_quota_us"), read(cpu, "cpu.cfs_period_us")),
        ("25000".into(), "10000".into())
    );
    fs::write(cpuacct.join("cpuacct.usage"), "1500000000\n").unwrap();
    fs::write(cpu.join("cpu.stat"), "nr_periods 20\nnr_throttled 4\nthrottled_time 70000000\n").unwrap();
    let used = CpuUsage {
        used: Duration::from_millis(1500),
        throttled: Duration::from_millis(70),
        periods: 20,
        throttled_periods: 4,
        stalled: None,
    };
    assert_eq!(budget.cpu_usage(), Some(used));
    assert_eq!(read(cpu.parent().unwrap(), "cpu.shares"), "32768");
    budget.release_cpu().unwrap();
    assert_eq!(read(cpu.parent().unwrap(), "cpu.shares"), "1024");
    assert_eq!(read(cpu, "cpu.cfs_quota_us"), "-1");
    host.remove(budget);
}

/// Slower CPUs are compensated for while the group is limited, and never afterwards.
#[test]
fn quota_change_waits_until_held() {
    let host = FakeHost::with_version_1(&["cpu,cpuacct", "memory"]);
    let budget = host.create(&cpu(0.5)).unwrap();
    let [_, cpu] = budget.directories()[..] else { panic!("{:?}", budget.directories()) };
    let quota = budget.cpu_quota().unwrap();
    let current_quota = || read(cpu, "cpu.cfs_quota_us");
    quota.change(1.0).unwrap();
    assert!(!cpu.join("cpu.cfs_quota_us").exists(), "it is not held yet");
    budget.hold_cpu().unwrap();
    quota.change(0.625).unwrap();
    assert_eq!(current_quota(), "6250");
    quota.change(900.0).unwrap();
    assert_eq!(current_quota(), "40000", "all that its CPUs have");
    budget.release_cpu().unwrap();
    quota.change(0.5).unwrap();
    assert_eq!(current_quota(), "-1");
    budget.hold_cpu().unwrap();
    assert_eq!(current_quota(), "5000", "as it was made");
    host.remove(budget);
    let whole = host.create(&self::cpu(4.0)).unwrap();
    assert!(whole.cpu_quota().is_none(), "whole CPUs have none");
    host.remove(whole);
}

#[test]
fn version_1_with_controllers_mounted_together() {
    let host = FakeHost::with_version_1(&["cpu,cpuacct", "memory"]);
    let budget = host.create(&cpu(0.5)).unwrap();
    let [_, cpu] = budget.directories()[..] else { panic!("{:?}", budget.directories()) };
    assert!(cpu.starts_with(host.path("sys/fs/cgroup/cpu,cpuacct")));
    budget.hold_cpu().unwrap();
    assert_eq!(
        (read(cpu, "cpu.cfs_quota_us"), read(cpu, "cpu.cfs_period_us")),
        ("5000".into(), "10000".into())
    );
    // For a group that was never throttled, on a kernel that reports nothing more.
    fs::write(cpu.join("cpuacct.usage"), "7\n").unwrap();
    assert_eq!(budget.cpu_usage(), Some(CpuUsage { used: Duration::from_nanos(7), ..CpuUsage::default() }));
    host.remove(budget);
}

#[test]
fn version_2_ascends_to_group_with_controller() {
    let host = FakeHost::with_version_2("/user.slice/a.scope");
    host.file("sys/fs/cgroup/user.slice/cgroup.subtree_control", "memory");
    // A directory at its path stands for a kernel that refuses the write.
    fs::create_dir_all(host.path("sys/fs/cgroup/user.slice/a.scope/cgroup.subtree_control")).unwrap();
    host.file("sys/fs/cgroup/user.slice/underlay-others/cgroup.subtree_control", "");
    let budget = host.create(&memory(1 << 30)).unwrap();
    let parent = host.path("sys/fs/cgroup/user.slice/underlay-others");
    let [directory] = budget.directories()[..] else { panic!("{:?}", budget.directories()) };
    assert_eq!(directory.parent(), Some(parent.as_path()));
    assert_eq!(budget.enforced_by(), "cgroup v2");
    assert_eq!(read(&parent, "cgroup.subtree_control"), "+memory");
    assert_eq!(read(directory, "memory.max"), "1073741824");
    assert!(!directory.join("memory.high").exists());
    fs::write(directory.join("memory.events"), "low 0\noom 2\noom_kill 1\n").unwrap();
    assert_eq!((budget.oom_kills(), budget.peak_bytes()), (1, None));
    host.remove(budget);
}

#[test]
fn version_2_has_all_controllers_in_one_group() {
    let host = FakeHost::with_version_2("/");
    host.file("sys/fs/cgroup/cgroup.controllers", "cpuset cpu memory");
    host.file("sys/fs/cgroup/cgroup.subtree_control", "cpuset cpu memory");
    host.file("sys/fs/cgroup/underlay/cgroup.subtree_control", "cpuset cpu memory");
    host.file("sys/fs/cgroup/underlay/cpu.max", "max 100000");
    let budget = host.create(&cpu(2.5)).unwrap();
    let [directory] = budget.directories()[..] else { panic!("{:?}", budget.directories()) };
    assert_eq!(
        (read(directory, "memory.max"), read(directory, "cpuset.cpus")),
        ("1073741824".into(), "0-3".into())
    );
    assert_eq!(budget.join_files(), [directory.join("cgroup.procs")]);
    assert!(!directory.join("cpu.max").exists());
    assert_eq!(budget.cpu_enforced_by(), Some("cgroup v2"));
    budget.hold_cpu().unwrap();
    assert_eq!(read(directory, "cpu.max"), "25000 10000");
    let stat = "usage_usec 1500000\nuser_usec 1\nsystem_usec 2\nnr_periods 20\nnr_throttled 4\nthrottled_usec 70000\n";
    fs::write(directory.join("cpu.stat"), stat).unwrap();
    let used = CpuUsage {
        used: Duration::from_millis(1500),
        throttled: Duration::from_millis(70),
        periods: 20,
        throttled_periods: 4,
        stalled: Some(Duration::from_micros(300)),
    };
    let pressure = "some avg10=0.00 avg60=0.00 avg300=0.00 total=500\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=300\n";
    fs::write(directory.join("cpu.pressure"), pressure).unwrap();
    assert_eq!(budget.cpu_usage(), Some(used));
    let parent = host.path("sys/fs/cgroup/underlay");
    assert_eq!(read(&parent, "cpu.weight"), "3200");
    // Another run on this host holds its servers: this process's parent is alive. A killed run does not.
    let another = parent.join(format!("rocksdb-0-{}-1", std::os::unix::process::parent_id()));
    let killed = parent.join(format!("rocksdb-0-{}-1", u32::MAX));
    for directory in [&another, &killed] {
        fs::create_dir(directory).unwrap();
    }
    budget.release_cpu().unwrap();
    assert_eq!(read(&parent, "cpu.weight"), "3200");
    fs::remove_dir(another).unwrap();
    budget.release_cpu().unwrap();
    assert_eq!(read(&parent, "cpu.weight"), "100");
    fs::remove_dir(killed).unwrap();
    assert_eq!(read(directory, "cpu.max"), "max");
    host.remove(budget);
}

#[test]
fn version_2_does_without_cpu_sets() {
    // Not offered at all.
    let host = FakeHost::with_version_2("/");
    host.file("sys/fs/cgroup/underlay/cgroup.subtree_control", "");
    host.file("sys/fs/cgroup/underlay/cpu.max", "max 100000");
    let budget = host.create(&cpu(2.5)).unwrap();
    assert_eq!(read(&host.path("sys/fs/cgroup/underlay"), "cgroup.subtree_control"), "+memory +cpu");
    assert!(!budget.directories()[0].join("cpuset.cpus").exists());
    host.remove(budget);
}

#[test]
fn full_cpu_share_needs_no_quota() {
    let host = FakeHost::with_version_1(&["cpu,cpuacct", "cpuset", "memory"]);
    let budget = host.create(&cpu(4.0)).unwrap();
    budget.hold_cpu().unwrap();
    let [_, cpu, cpuset] = budget.directories()[..] else { panic!("{:?}", budget.directories()) };
    assert!(!cpu.join("cpu.cfs_quota_us").exists());
    assert_eq!(read(cpuset, "cpuset.cpus"), "0-3");
    budget.release_cpu().unwrap();
    assert!(!cpu.join("cpu.cfs_quota_us").exists());
    assert_eq!(budget.cpu_enforced_by(), Some("cgroup v1"));
    host.remove(budget);
}

/// A host that has both versions: `v1` controllers in version 1, and `v2` in version 2.
fn hybrid(v1: &str, v2: &str) -> FakeHost {
    let host = FakeHost::new(
        &format!(
            "30 1 0:20 / /sys/fs/cgroup/{v1} rw - cgroup cgroup rw,{v1}\n31 1 0:21 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        ),
        &format!(
            "cgroup /sys/fs/cgroup/{v1} cgroup rw,{v1} 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
        ),
        &format!("3:{v1}:/\n0::/\n"),
    );
    host.file("sys/fs/cgroup/unified/cgroup.controllers", v2);
    host.file("sys/fs/cgroup/unified/cgroup.subtree_control", v2);
    host.file("sys/fs/cgroup/unified/underlay/cgroup.subtree_control", v2);
    host.file("sys/fs/cgroup/unified/underlay/cpu.max", "max 100000");
    host.file(&format!("sys/fs/cgroup/{v1}/underlay/cpu.cfs_quota_us"), "-1");
    host
}

#[test]
fn hybrid_host_uses_controllers_in_their_hierarchies() {
    let host = hybrid("memory", "cpu cpuset");
    let budget = host.create(&cpu(1.5)).unwrap();
    assert_eq!((budget.enforced_by(), budget.cpu_enforced_by()), ("cgroup v1", Some("cgroup v2")));
    budget.hold_cpu().unwrap();
    let [memory, cpu_group] = budget.directories()[..] else { panic!("{:?}", budget.directories()) };
    assert!(memory.join("memory.limit_in_bytes").exists() && !memory.join("cpu.max").exists());
    assert_eq!(
        (read(cpu_group, "cpu.max"), read(cpu_group, "cpuset.cpus")),
        ("15000 10000".into(), "0-3".into())
    );
    host.remove(budget);

    let host = hybrid("cpu,cpuacct", "memory");
    let budget = host.create(&cpu(1.5)).unwrap();
    assert_eq!((budget.enforced_by(), budget.cpu_enforced_by()), ("cgroup v2", Some("cgroup v1")));
    budget.hold_cpu().unwrap();
    let [memory, cpu_group] = budget.directories()[..] else { panic!("{:?}", budget.directories()) };
    assert!(memory.join("memory.max").exists());
    assert_eq!(read(cpu_group, "cpu.cfs_quota_us"), "15000");
    host.remove(budget);
}

/// A loop device serves them with a separate worker, so that they do not wait for others' flushes.
#[test]
fn programs_get_own_io_group_if_supported() {
    let host = FakeHost::with_version_1(&["blkio", "memory"]);
    let budget = host.create(&memory(1 << 30)).unwrap();
    let [memory_group, io] = budget.directories()[..] else { panic!("{:?}", budget.directories()) };
    assert!(memory_group.join("memory.limit_in_bytes").exists());
    assert!(io.starts_with(host.path("sys/fs/cgroup/blkio/jobs/one/underlay-others")), "{io:?}");
    assert_eq!(budget.join_files().len(), 2);
    host.remove(budget);

    let host = FakeHost::with_version_2("/");
    host.file("sys/fs/cgroup/cgroup.controllers", "memory io");
    host.file("sys/fs/cgroup/underlay-others/cgroup.subtree_control", "memory");
    let budget = host.create(&memory(1 << 30)).unwrap();
    assert_eq!(budget.directories().len(), 1);
    assert_eq!(read(&host.path("sys/fs/cgroup/underlay-others"), "cgroup.subtree_control"), "+io");
    host.remove(budget);
}

#[test]
fn hybrid_host_counts_stalls_in_version_2() {
    let host = hybrid("cpu,cpuacct", "memory");
    host.file("sys/fs/cgroup/unified/cpu.pressure", "");
    let budget = host.create(&cpu(1.5)).unwrap();
    let [memory, cpu_group] = budget.directories()[..] else { panic!("{:?}", budget.directories()) };
    fs::write(cpu_group.join("cpuacct.usage"), "7\n").unwrap();
    fs::write(memory.join("cpu.pressure"), "full avg10=0.00 avg60=0.00 avg300=0.00 total=9\n").unwrap();
    assert_eq!(budget.cpu_usage().and_then(|usage| usage.stalled), Some(Duration::from_micros(9)));
    host.remove(budget);
}

#[test]
fn missing_controller_is_named_with_remedy() {
    let host = FakeHost::with_version_2("/");
    host.file("sys/fs/cgroup/cgroup.controllers", "cpu pids");
    let missing = host.hierarchy().unwrap_err();
    assert!(missing.remedy.contains("cgroup_enable=memory"), "{missing}");
    let bare = FakeHost::new("", "", "");
    assert!(bare.hierarchy().is_err());

    // Memory is available, and CPU time isn't: then nothing is created.
    for (host, lacking) in [
        (FakeHost::with_version_1(&["cpuset", "memory"]), "`cpu`"),
        (FakeHost::with_version_1(&["cpu", "memory"]), "`cpuacct`"),
    ] {
        let missing = host.create(&cpu(1.0)).unwrap_err();
        assert!(
            matches!(&missing, AttachError::Missing(missing) if missing.what.contains(lacking)),
            "{missing}"
        );
        assert!(!host.path("sys/fs/cgroup/memory/jobs/one/underlay").exists());
    }
}

#[test]
fn kernel_without_quotas_has_remedy() {
    let host = FakeHost::with_version_2("/");
    host.file("sys/fs/cgroup/underlay/cgroup.subtree_control", "cpu memory");
    let missing = host.create(&cpu(1.0)).unwrap_err();
    assert!(
        matches!(&missing, AttachError::Missing(missing) if missing.remedy.contains("CFS_BANDWIDTH")),
        "{missing}"
    );
}

#[test]
fn host_without_group_permission_has_remedy() {
    let host = FakeHost::with_version_2("/");
    host.file("sys/fs/cgroup/underlay", "a file in the way");
    let missing = host.hierarchy().unwrap().make_parent("underlay").unwrap_err();
    assert!(missing.remedy.contains("root") && missing.what.contains("memory"), "{missing}");
}

/// On this machine itself: the page cache of a process's reads counts, and stays within the budget.
#[test]
fn real_memory_budget_limits_page_cache() {
    if let Err(missing) = probe() {
        assert!(std::env::var_os("CI").is_none(), "{missing}");
        return eprintln!("SKIPPED: {missing}");
    }
    // Next to the test program, which is on a disk: a memory file system has no cache to limit.
    let program = std::env::current_exe().unwrap();
    let keep = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
    let registry = ResourceRegistry::open_at(&keep.path().join("run")).unwrap();
    let file = keep.path().join("data");
    fs::write(&file, vec![1_u8; 48 << 20]).unwrap();
    let mut budget = ResourceBudget::create("test", &memory(16 << 20), &registry).unwrap();
    budget.drop_caches(&[keep.path().to_owned()], false).unwrap();
    let script = r#"echo 0 > "$1" && cat "$2" > /dev/null && sleep 60"#;
    let mut child = Command::new("sh")
        .args(["-c", script, "sh"])
        .args([&budget.join_files()[0], &file])
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
    let directory = budget.directories()[0].to_owned();
    budget.remove().unwrap();
    child.wait().unwrap();
    assert!(!directory.exists());
    assert!(registry.leftovers().is_empty());
}

/// A shell that joins the groups and then only counts. It ends with its group.
fn busy_loop(budget: &ResourceBudget) -> Child {
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"for file; do echo 0 > "$file" || exit 1; done; while :; do :; done"#, "sh"]);
    shell.args(budget.join_files()).stdout(Stdio::null()).spawn().unwrap()
}

/// Lets it run until it is `enough`, and fails after a minute.
fn wait_until(budget: &ResourceBudget, enough: impl Fn(CpuUsage) -> bool) -> CpuUsage {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let usage = budget.cpu_usage().unwrap();
        if enough(usage) {
            return usage;
        }
        assert!(Instant::now() < deadline, "{usage:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// On this machine itself. Both bounds hold however busy the host is, since others can only take time away.
#[test]
fn real_quota_limits_busy_loop() {
    if let Err(missing) = probe().and_then(|_| probe_cpu()) {
        assert!(std::env::var_os("CI").is_none(), "{missing}");
        return eprintln!("SKIPPED: {missing}");
    }
    let keep = tempfile::tempdir().unwrap();
    let registry = ResourceRegistry::open_at(&keep.path().join("run")).unwrap();
    let cpus: Processors = Processors::available().iter().take(1).collect();
    let share =
        CpuShare { cpus: cpus.clone(), quota_cpus: 0.25, period: Duration::from_millis(20), prevails: true };
    let limits = GroupLimits { memory_bytes: 64 << 20, cpu: Some(share) };
    let mut budget = ResourceBudget::create("test", &limits, &registry).unwrap();
    let mut child = busy_loop(&budget);
    // Without the quota first, like a starting system.
    let started = wait_until(&budget, |usage| usage.used > Duration::from_millis(20));
    assert_eq!(started.throttled_periods, 0);
    if probe_cpu().unwrap().contains("with CPU sets") {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        assert!(status.contains(&format!("Cpus_allowed_list:\t{cpus}\n")), "{status}");
    }

    budget.hold_cpu().unwrap();
    let (before, begun) = (budget.cpu_usage().unwrap(), Instant::now());
    let throttled = wait_until(&budget, |usage| usage.throttled_periods >= before.throttled_periods + 50);
    // 50 throttled periods are at least a second, so the excess of a quota at its edges hardly matters.
    let (used, wall) = (throttled.used - before.used, begun.elapsed());
    assert!(used.as_secs_f64() < 0.6 * wall.as_secs_f64(), "{used:?} of {wall:?}");
    assert!(throttled.throttled > before.throttled && throttled.periods > before.periods, "{throttled:?}");
    // While it waits for a period it has something to run, but nothing runs.
    assert!(throttled.stalled.is_none_or(|stalled| stalled > Duration::ZERO), "{throttled:?}");

    budget.release_cpu().unwrap();
    let released = budget.cpu_usage().unwrap();
    let later = wait_until(&budget, |usage| usage.used > released.used + Duration::from_millis(200));
    assert_eq!(later.throttled_periods, released.throttled_periods);

    let directories: Vec<PathBuf> = budget.directories().into_iter().map(Path::to_owned).collect();
    budget.remove().unwrap();
    child.wait().unwrap();
    assert!(directories.iter().all(|directory| !directory.exists()));
    assert!(registry.leftovers().is_empty());
}
