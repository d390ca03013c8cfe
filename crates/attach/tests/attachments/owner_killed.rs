//! The process that attached a storage is killed: cleaning up finds everything and removes it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use underlay_attach::processes::ProcessId;
use underlay_attach::{
    Attachment, CpuShare, FilesystemKind, GroupLimits, Processors, RealPaths, ResourceBudget,
    ResourceRegistry, budget, cleanup, loop_device, mounts,
};
use underlay_storage::stack::BackingSpec;

use crate::dirty_limit::{self, Bdi};
use crate::fixture::{Fixture, MIB, fuse_loop, spec, stack, without_hanging};

/// Tells the owner process which corner of the machine is its own.
const CORNER_VARIABLE: &str = "UNDERLAY_TEST_CORNER";

/// Not a test but the process of the tests below, which start this program again for it. Without a corner, as in
/// `cargo test -- --ignored`, it fails at once.
#[test]
#[ignore = "the owner process of the other tests here"]
fn owner_process() {
    let corner = PathBuf::from(std::env::var_os(CORNER_VARIABLE).expect("started by a test of this file"));
    let registry = ResourceRegistry::open_at(&corner.join("run")).unwrap();
    let volumes = stack(&[("data", 320 * MIB, BackingSpec::File(corner.join("backing")))]);
    let wanted = spec(volumes, FilesystemKind::Xfs, corner.join("mnt"));
    let mut attached = fuse_loop().unwrap().attach(&wanted, &registry).unwrap();
    let limited = attached.limit_dirty(16 * MIB, &registry).is_ok();
    let device = if limited { Bdi::from_path(&attached.paths()[0]).0 } else { PathBuf::new() };
    fs::write(corner.join("limited"), device.to_str().unwrap()).unwrap();
    let real = RealPaths::new(vec![corner.join("disk")]).attach(&wanted, &registry).unwrap();
    let budget = budget::probe().is_ok().then(|| {
        let share = CpuShare {
            cpus: Processors::available(),
            quota_cpus: 0.5,
            period: Duration::from_millis(10),
            prevails: true,
        };
        let limits =
            GroupLimits { memory_bytes: 64 << 20, cpu: budget::probe_cpu().is_ok().then_some(share) };
        ResourceBudget::create("owner", &limits, &registry).unwrap()
    });
    // A system under test, which holds a file open on the mount and is in the budget.
    let files = budget.iter().flat_map(ResourceBudget::join_files);
    let joins: String = files.map(|file| format!("echo 0 > {}; ", file.display())).collect();
    let script = format!("{joins} exec sleep 600 > {}", attached.paths()[0].join("open").display());
    let mut system = Command::new("sh").args(["-c", &script]).stderr(Stdio::null()).spawn().unwrap();
    wait_for(&attached.paths()[0].join("open"), &mut system);
    fs::write(attached.paths()[0].join("unflushed"), vec![1; 1 << 20]).unwrap();
    fs::write(real.paths()[0].join("file"), "x").unwrap();
    fs::write(corner.join("daemon"), attached.daemon_pid().unwrap().to_string()).unwrap();
    let ready = format!(
        "{} {}",
        system.id(),
        budget.map_or(0, |budget| {
            let groups: Vec<&str> =
                budget.directories().iter().map(|group| group.to_str().unwrap()).collect();
            fs::write(corner.join("budget"), groups.join("\n")).unwrap();
            budget.hold_cpu().unwrap();
            std::mem::forget(budget);
            1
        })
    );
    fs::write(corner.join("ready.part"), ready).unwrap();
    fs::rename(corner.join("ready.part"), corner.join("ready")).unwrap();
    std::thread::sleep(Duration::from_secs(600));
}

/// The owner process, which ends with its test even if that fails.
struct Owner(Child);

impl Owner {
    fn kill(&mut self) {
        // Killing what has been collected already fails, which is as well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.kill();
    }
}

fn start_owner(fixture: &Fixture) -> Owner {
    fs::create_dir(fixture.path("disk")).unwrap();
    let started = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "owner_killed::owner_process", "--ignored", "--nocapture"])
        .env(CORNER_VARIABLE, fixture.path(""))
        .stdout(Stdio::null())
        .spawn();
    Owner(started.unwrap())
}

fn wait_for(path: &Path, maker: &mut Child) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !path.exists() {
        assert!(
            Instant::now() < deadline && maker.try_wait().unwrap().is_none(),
            "{} is not made",
            path.display()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn clean(fixture: &Fixture) -> (Result<usize, String>, Vec<String>) {
    let registry = fixture.registry.clone();
    without_hanging("cleaning up", move || {
        let mut lines = Vec::new();
        let outcome = cleanup::clean(&registry, &mut |line| lines.push(line.to_owned()));
        (outcome.map(|cleaned| cleaned.removed).map_err(|error| error.to_string()), lines)
    })
}

#[test]
fn everything_of_a_killed_owner_is_found_and_removed() {
    if fuse_loop().is_none() {
        return;
    }
    let _alone = dirty_limit::alone();
    let fixture = Fixture::new();
    let mut owner = start_owner(&fixture);
    wait_for(&fixture.path("ready"), &mut owner.0);
    let ready = fs::read_to_string(fixture.path("ready")).unwrap();
    let (system, has_budget) = ready.split_once(' ').unwrap();
    let system = ProcessId::from_pid(system.parse().unwrap()).unwrap();

    // While it lives its things are its own.
    let (outcome, lines) = clean(&fixture);
    assert_eq!(outcome, Ok(0));
    assert!(lines.iter().any(|line| line.contains("left alone")), "{lines:?}");
    assert!(fixture.path("mnt/data/open").exists());

    owner.kill();
    assert!(!fixture.registry.leftovers().is_empty());
    // Empty where this kernel has no such limits.
    let limited = fs::read_to_string(fixture.path("limited")).unwrap();
    let limited = (!limited.is_empty()).then(|| Bdi(PathBuf::from(limited)));
    if let Some(device) = &limited {
        assert!(device.read("strict_limit") == 1 && device.read("max_ratio_fine") < 1_000_000);
    }
    if has_budget != "1" {
        // No group knows the system, so nobody may end it but us.
        assert!(clean(&fixture).0.unwrap_err().contains("sleep"));
        assert!(system.end(Duration::from_secs(5)));
    }
    let (outcome, lines) = clean(&fixture);
    assert!(outcome.is_ok_and(|removed| removed > 4), "{lines:?}");
    assert!(!system.is_alive());
    if let Some(device) = &limited {
        device.assert_unlimited();
    }
    fixture.assert_nothing_left();
    assert!(!fixture.path("mnt").exists());
    assert_eq!(fs::read_dir(fixture.path("disk")).unwrap().count(), 0);
    if has_budget == "1" {
        for group in fs::read_to_string(fixture.path("budget")).unwrap().lines() {
            assert!(!Path::new(group).exists(), "{group}");
        }
    }
    // The user's own file is not ours to remove, and what the mount held went into it in order.
    assert!(fixture.path("backing").exists());
    assert_eq!(clean(&fixture).0, Ok(0));

    let mut again = spec(
        stack(&[("data", 320 * MIB, BackingSpec::File(fixture.path("backing")))]),
        FilesystemKind::Xfs,
        fixture.path("mnt"),
    );
    again.format = false;
    let attached = fuse_loop().unwrap().attach(&again, &fixture.registry).unwrap();
    assert_eq!(fs::read(attached.paths()[0].join("unflushed")).unwrap(), vec![1; 1 << 20]);
    drop(attached);
    fixture.assert_nothing_left();
}

#[test]
fn clean_after_daemon_end_finds_everything() {
    if fuse_loop().is_none() {
        return;
    }
    let fixture = Fixture::new();
    let mut owner = start_owner(&fixture);
    wait_for(&fixture.path("ready"), &mut owner.0);
    let number = |text: &str| text.parse::<u32>().unwrap();
    let daemon = ProcessId::from_pid(number(&fs::read_to_string(fixture.path("daemon")).unwrap())).unwrap();
    let ready = fs::read_to_string(fixture.path("ready")).unwrap();
    let system = ProcessId::from_pid(number(ready.split_once(' ').unwrap().0)).unwrap();

    // Its owner keeps it as a zombie, which counts as gone.
    daemon.signal(Signal::TERM);
    assert!(daemon.wait_gone(Duration::from_secs(20)));
    // Dead, but not out of sight: the loop device still has its file's whole path.
    let root = fixture.registry.directory().to_owned();
    assert!(mounts::all().iter().any(|mount| mount.mount_point.starts_with(&root)));
    assert!(!loop_device::below(&root).is_empty());

    owner.kill();
    // No control group may know the system on this machine.
    system.end(Duration::from_secs(5));
    let (outcome, lines) = clean(&fixture);
    assert!(outcome.is_ok_and(|removed| removed > 2), "{lines:?}");
    fixture.assert_nothing_left();
    assert!(!fixture.path("mnt").exists());
    assert_eq!(clean(&fixture).0, Ok(0));
}

#[test]
fn cleaning_up_leaves_strangers_that_name_a_configuration_alone() {
    let fixture = Fixture::new();
    if fuse_loop().is_none() {
        return;
    }
    let mut owner = start_owner(&fixture);
    wait_for(&fixture.path("ready"), &mut owner.0);
    let sessions = fs::read_dir(fixture.registry.directory()).unwrap().flatten();
    let config = sessions.map(|entry| entry.path().join("daemon.json")).find(|path| path.exists()).unwrap();
    // A shell that waits for input, which never comes, has no child to outlive it.
    let mut stranger = Command::new("sh")
        .args(["-c", "read line; :", "sh", "--config"])
        .arg(&config)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let stranger_id = ProcessId::from_pid(stranger.id()).unwrap();
    let ready = fs::read_to_string(fixture.path("ready")).unwrap();
    let system = ProcessId::from_pid(ready.split_once(' ').unwrap().0.parse().unwrap()).unwrap();
    owner.kill();
    system.end(Duration::from_secs(5));
    let (outcome, lines) = clean(&fixture);
    let survived = stranger_id.is_alive();
    let _ = stranger.kill();
    stranger.wait().unwrap();
    assert!(outcome.is_ok(), "{outcome:?} {lines:?}");
    assert!(survived, "{lines:?}");
    fixture.assert_nothing_left();
}

#[test]
fn owner_killed_during_attach_leaves_nothing() {
    if fuse_loop().is_none() {
        return;
    }
    // Each later moment catches it with more things made: from the first note to the finished mount.
    for delay_ms in [15, 30, 45, 60, 80, 100, 130, 170] {
        let fixture = Fixture::new();
        let mut owner = start_owner(&fixture);
        std::thread::sleep(Duration::from_millis(delay_ms));
        owner.kill();
        // A tool that it had started (mkfs) ends by itself and may hold the device until then.
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut outcome = clean(&fixture);
        while !(outcome.0.is_ok() && fixture.leftovers().is_empty()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
            outcome = clean(&fixture);
        }
        assert_eq!(fixture.leftovers(), Vec::<String>::new(), "killed after {delay_ms} ms: {outcome:?}");
    }
}
