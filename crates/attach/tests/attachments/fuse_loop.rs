//! What only `fuse+loop` promises, and how it refuses.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use underlay_attach::{
    AttachError, AttachSpec, Attachment, BlockAttachment, FilesystemKind, RealPaths, loop_device, mounts,
    overhead, processes,
};
use underlay_storage::stack::{BackingSpec, PacingMode};

use crate::fixture::{Fixture, MIB, fuse_loop, modelled, spec, stack, without_hanging};

#[test]
fn data_in_a_file_outlives_the_attachment() {
    let Some(attachment) = fuse_loop() else { return };
    let fixture = Fixture::new();
    let backing = BackingSpec::File(fixture.path("backing"));
    let mut wanted = spec(stack(&[("data", 320 * MIB, backing)]), FilesystemKind::Xfs, fixture.path("mnt"));
    let content = vec![0x5A; 5_000_000];
    let mut attached = attachment.attach(&wanted, &fixture.registry).unwrap();
    // Neither flushed nor closed long ago: detaching writes it out.
    fs::write(attached.paths()[0].join("kept"), &content).unwrap();
    attached.detach().unwrap();
    wanted.format = false;
    let mut attached = attachment.attach(&wanted, &fixture.registry).unwrap();
    assert!(fs::read(attached.paths()[0].join("kept")).unwrap() == content);
    attached.detach().unwrap();
    fixture.assert_nothing_left();
}

#[test]
fn clone_mounts_beside_its_origin() {
    let Some(attachment) = fuse_loop() else { return };
    let fixture = Fixture::new();
    let attach = |name: &str, format| {
        let backing = BackingSpec::File(fixture.path(name));
        let mut wanted = spec(stack(&[(name, 320 * MIB, backing)]), FilesystemKind::Xfs, fixture.path("mnt"));
        wanted.format = format;
        attachment.attach(&wanted, &fixture.registry).unwrap()
    };
    let mut origin = attach("origin", true);
    fs::write(origin.paths()[0].join("file"), "shared past").unwrap();
    origin.detach().unwrap();
    fs::copy(fixture.path("origin"), fixture.path("clone")).unwrap();
    let (origin, clone) = (attach("origin", false), attach("clone", false));
    fs::write(clone.paths()[0].join("file"), "own future").unwrap();
    assert_eq!(fs::read(origin.paths()[0].join("file")).unwrap(), b"shared past");
    drop((origin, clone));
    fixture.assert_nothing_left();
}

#[test]
fn existing_mount_point_is_kept() {
    let Some(attachment) = fuse_loop() else { return };
    let fixture = Fixture::new();
    let mut wanted =
        spec(stack(&[("data", 16 * MIB, BackingSpec::Memory)]), FilesystemKind::Ext4, fixture.path("unused"));
    let place = fixture.path("mine");
    fs::create_dir(&place).unwrap();
    wanted.mount_point = Some(place.clone());
    let mut attached = attachment.attach(&wanted, &fixture.registry).unwrap();
    assert_eq!(attached.paths(), std::slice::from_ref(&place));
    fs::write(place.join("on the volume"), "x").unwrap();
    attached.detach().unwrap();
    assert_eq!(fs::read_dir(&place).unwrap().count(), 0);

    fs::write(place.join("theirs"), "x").unwrap();
    let refused = attachment.attach(&wanted, &fixture.registry).unwrap_err().to_string();
    assert!(refused.contains("not empty"), "{refused}");
    assert!(place.join("theirs").exists());
    fixture.assert_nothing_left();
}

#[test]
fn volume_in_use_names_users_and_detaches_later() {
    let Some(attachment) = fuse_loop() else { return };
    let fixture = Fixture::new();
    let wanted =
        spec(stack(&[("data", 16 * MIB, BackingSpec::Memory)]), FilesystemKind::Ext4, fixture.path("mnt"));
    let mut attached = attachment.attach(&wanted, &fixture.registry).unwrap();
    let path = attached.paths()[0].clone();
    let file = File::create(path.join("open")).unwrap();
    let refused = attached.detach().unwrap_err().to_string();
    assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
    assert!(refused.contains("open"), "{refused}");
    // Nothing was taken away half.
    file.write_all_at(b"still works", 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    attached.detach().unwrap();
    fixture.assert_nothing_left();
}

#[test]
fn refusals_say_why_and_leave_nothing() {
    let Some(attachment) = fuse_loop() else { return };
    let fixture = Fixture::new();
    let refusal = |attachment: &BlockAttachment, wanted: &AttachSpec| {
        let error = attachment.attach(wanted, &fixture.registry).unwrap_err();
        fixture.assert_nothing_left();
        assert!(!fixture.path("mnt").exists());
        error.to_string()
    };
    let memory = BackingSpec::Memory;
    let small = spec(stack(&[("data", 64 * MIB, memory.clone())]), FilesystemKind::Xfs, fixture.path("mnt"));
    let message = refusal(&attachment, &small);
    assert!(message.contains("300 MiB") && message.contains("ext4"), "{message}");

    let mut unformatted = small.clone();
    unformatted.filesystem = Some(FilesystemKind::Ext4);
    unformatted.format = false;
    let message = refusal(&attachment, &unformatted);
    assert!(message.contains("e2fsck -n"), "{message}");

    // The daemon's own words come through.
    let mut broken = stack(&[("a", 16 * MIB, memory.clone()), ("b", 16 * MIB, memory)]);
    broken.volumes[1].root = broken.volumes[0].root.clone();
    let message = refusal(&attachment, &spec(broken, FilesystemKind::Ext4, fixture.path("mnt")));
    assert!(message.contains("last words") && message.contains("a.0"), "{message}");

    let nowhere = BackingSpec::File(fixture.path("no/such/directory/backing"));
    let message = refusal(
        &attachment,
        &spec(stack(&[("data", 16 * MIB, nowhere)]), FilesystemKind::Ext4, fixture.path("mnt")),
    );
    assert!(message.contains("no/such/directory"), "{message}");

    let absent = BlockAttachment::with_daemon(fixture.path("no-daemon"), Vec::new());
    let message = refusal(&absent, &small);
    assert!(message.contains("no-daemon"), "{message}");
}

#[test]
fn real_paths_that_can_not_be_used_are_refused() {
    let fixture = Fixture::new();
    let file = fixture.path("file");
    fs::write(&file, "x").unwrap();
    let wanted = spec(stack(&[]), FilesystemKind::Xfs, fixture.path("mnt"));
    // `/proc` takes no directories from anyone, root included.
    for path in [fixture.path("missing"), file, "/proc".into()] {
        let refused = RealPaths::new(vec![path.clone()]).attach(&wanted, &fixture.registry).unwrap_err();
        assert!(matches!(refused, AttachError::Failed { .. } | AttachError::Io { .. }));
        assert!(refused.to_string().contains(&*path.to_string_lossy()), "{refused}");
    }
    assert!(RealPaths::new(Vec::new()).attach(&wanted, &fixture.registry).is_err());
    fixture.assert_nothing_left();
}

#[test]
fn bare_devices_read_back_discard_and_count() {
    let Some(attachment) = fuse_loop() else { return };
    let fixture = Fixture::new();
    let volumes = stack(&[("data", 16 * MIB, BackingSpec::Memory)]);
    let mut devices = attachment.attach_devices(&volumes, &fixture.registry).unwrap();
    let path = devices.paths()[0].clone();
    let affinity = Path::new("/sys/block").join(path.file_name().unwrap()).join("queue/rq_affinity");
    assert_eq!((devices.queues()[0].scheduler.as_str(), devices.queues()[0].rq_affinity), ("none", 2));
    assert_eq!(fs::read_to_string(&affinity).unwrap().trim(), "2");
    devices.begin_measurement(1.0).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    file.write_all_at(&vec![7; 3 << 20], 1 << 20).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let discarded =
        Command::new("blkdiscard").args(["-o", "1048576", "-l", "1048576"]).arg(&path).status().unwrap();
    assert!(discarded.success());
    let file = File::open(&path).unwrap();
    let mut found = vec![1; 4 << 20];
    file.read_exact_at(&mut found, 0).unwrap();
    assert!(found[..2 << 20].iter().all(|byte| *byte == 0) && found[2 << 20..].iter().all(|byte| *byte == 7));
    drop(file);
    let activity = devices.end_measurement().unwrap();
    let totals = activity[0].totals;
    assert_eq!((totals.write_bytes, totals.discards), (3 << 20, 1), "{totals:?}");
    // What was written and not discarded may still be in the page cache; the rest has to be read.
    assert!(totals.flushes >= 1 && totals.read_bytes >= 2 << 20, "{totals:?}");
    devices.health().unwrap();
    devices.detach().unwrap();
    devices.detach().unwrap();
    // A loop device stays there without a file; ublk's are gone, and another test may have it by now.
    let has_file = || affinity.ancestors().nth(2).is_some_and(|device| device.join("loop").exists());
    if let Ok(left) = fs::read_to_string(&affinity)
        && !has_file()
    {
        assert_eq!(left.trim(), "1");
    }
    assert!(devices.set_pace(PacingMode::Modelled).is_err());
    fixture.assert_nothing_left();
}

#[test]
fn rotational_disk_is_reported() {
    let Some(attachment) = fuse_loop() else { return };
    let fixture = Fixture::new();
    for (medium, turns) in [("hdd-7200-sata", true), ("ssd-sata", false)] {
        let volumes = modelled(medium, 16 * MIB, BackingSpec::Memory);
        let devices = attachment.attach_devices(&volumes, &fixture.registry).unwrap();
        assert_eq!(devices.queues()[0].rotational, turns, "{medium}");
        let name = devices.paths()[0].file_name().unwrap().to_str().unwrap().to_owned();
        let shown = fs::read_to_string(format!("/sys/block/{name}/queue/rotational")).unwrap();
        assert_eq!(shown.trim() == "1", turns, "{medium}");
    }
    fixture.assert_nothing_left();
}

#[test]
fn hanging_daemon_is_killed_without_delay() {
    let Some(attachment) = fuse_loop() else { return };
    let attachment = attachment.with_hurry_limit(Duration::from_millis(300));
    let fixture = Fixture::new();
    let wanted =
        spec(stack(&[("data", 16 * MIB, BackingSpec::Memory)]), FilesystemKind::Ext4, fixture.path("mnt"));
    let mut attached = attachment.attach(&wanted, &fixture.registry).unwrap();
    fs::write(attached.paths()[0].join("unflushed"), vec![1; 1 << 20]).unwrap();
    stop_process(attached.daemon_pid().unwrap());
    let started = Instant::now();
    let (message, mut attached) =
        without_hanging("detaching", move || (attached.detach().unwrap_err().to_string(), attached));
    assert!(message.contains("lost"), "{message}");
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    attached.detach().unwrap();
    fixture.assert_nothing_left();

    // The same without a filesystem above.
    let volumes = stack(&[("data", 16 * MIB, BackingSpec::Memory)]);
    let mut devices = attachment.attach_devices(&volumes, &fixture.registry).unwrap();
    let file = File::options().write(true).open(&devices.paths()[0]).unwrap();
    file.write_all_at(&[7; 4096], 0).unwrap();
    stop_process(devices.daemon_pid().unwrap());
    let started = Instant::now();
    let message = without_hanging("detaching", move || {
        let closes = std::thread::spawn(move || drop(file));
        let message = devices.detach().unwrap_err().to_string();
        closes.join().unwrap();
        devices.detach().unwrap();
        message
    });
    assert!(message.contains("unflushed writes are lost"), "{message}");
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    fixture.assert_nothing_left();
}

/// It may have hurried, and hang afterwards: while the device is written out, cleared, or the daemon shut down.
#[test]
fn daemon_that_hangs_while_detaching_is_killed() {
    let Some(attachment) = fuse_loop() else { return };
    let attachment = attachment.with_hurry_limit(Duration::from_millis(300));
    let fixture = Fixture::new();
    for delay_ms in [2, 10, 20] {
        let volumes = stack(&[("data", 64 * MIB, BackingSpec::Memory)]);
        let mut devices = attachment.attach_devices(&volumes, &fixture.registry).unwrap();
        let file = File::options().write(true).open(&devices.paths()[0]).unwrap();
        file.write_all_at(&vec![7; 64 << 20], 0).unwrap();
        let daemon = processes::ProcessId::from_pid(devices.daemon_pid().unwrap()).unwrap();
        let outcome = without_hanging("detaching", move || {
            let stops = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(delay_ms));
                daemon.signal(Signal::STOP);
            });
            drop(file);
            let outcome = devices.detach().map_err(|error| error.to_string());
            stops.join().unwrap();
            devices.detach().unwrap();
            outcome
        });
        // By chance, everything was written before.
        assert!(
            outcome.as_ref().err().is_none_or(|error| error.contains("lost")),
            "{delay_ms} ms: {outcome:?}"
        );
        fixture.assert_nothing_left();
    }
}

/// Returns once no thread of the process runs any more. The signal alone stops it when it is delivered, and on a busy
/// host its other threads run on until then.
fn stop_process(pid: u32) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::STOP).unwrap();
    let is_stopped = |task: fs::DirEntry| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(')').is_none_or(|(_, fields)| fields.trim_start().starts_with('T'))
    };
    while !fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten().all(is_stopped) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn loop_device_is_recognized_after_lazy_detach() {
    let Some(attachment) = fuse_loop() else { return };
    let fixture = Fixture::new();
    let volumes = stack(&[("data", 16 * MIB, BackingSpec::Memory)]);
    let mut devices = attachment.attach_devices(&volumes, &fixture.registry).unwrap();
    let root = fixture.registry.directory().to_owned();
    let export = mounts::all()
        .into_iter()
        .map(|mount| mount.mount_point)
        .find(|mount_point| mount_point.starts_with(&root));
    let export = export.unwrap();
    let backing = export.join("data");
    if backing.as_os_str().len() >= 63 {
        return eprintln!("SKIPPED: {} is longer than what the kernel keeps", backing.display());
    }
    mounts::detach_lazily(&export).unwrap();
    assert_eq!(loop_device::on_file(&backing), devices.paths());
    assert_eq!(loop_device::below(&root), devices.paths());
    // What another would have in the root of its own mount.
    assert!(loop_device::on_file(&export.join("log")).is_empty());
    assert!(loop_device::on_file(&fixture.path("data")).is_empty());
    devices.detach().unwrap();
    fixture.assert_nothing_left();
}

#[test]
fn control_socket_answers_nonsense_and_continues() {
    let Some(attachment) = fuse_loop() else { return };
    let fixture = Fixture::new();
    let volumes = stack(&[("data", 16 * MIB, BackingSpec::Null)]);
    let devices = attachment.attach_devices(&volumes, &fixture.registry).unwrap();
    let sessions = fs::read_dir(fixture.registry.directory()).unwrap().flatten();
    let socket = sessions.map(|entry| entry.path().join("control")).find(|path| path.exists()).unwrap();
    without_hanging("the control socket", move || {
        let stream = UnixStream::connect(socket).unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut ask = |line: &[u8]| {
            (&stream).write_all(line).unwrap();
            let mut reply = String::new();
            reader.read_line(&mut reply).unwrap();
            reply
        };
        assert!(ask(b"nonsense\n").contains("failed"));
        assert!(ask(b"{\"command\":\"set-pace\",\"pace\":7}\n").contains("failed"));
        assert!(ask(b"\n").contains("failed"));
        assert!(ask(b"{\"command\":\"ping\"}\n").contains("\"capacity_bytes\":16777216"));
        // A line without end is cut off and answered, and the connection closed.
        assert!(ask(&[b'x'; 4097]).contains("at most"));
        let mut rest = Vec::new();
        // What was sent beyond may turn the end into a reset.
        let _ = reader.read_to_end(&mut rest);
        // At most the word that nothing more is obeyed.
        assert!(rest.is_empty() || rest == b"\n", "{rest:?}");
    });
    devices.health().unwrap();
    drop(devices);
    fixture.assert_nothing_left();
}

#[test]
fn overhead_is_measurable() {
    let Some(attachment) = fuse_loop() else { return };
    let fixture = Fixture::new();
    let found = overhead::measure_with(&attachment, &fixture.registry, Duration::from_millis(300)).unwrap();
    assert!(found.path_p50_us > 0.0 && found.path_p50_us <= found.path_p99_us, "{found:?}");
    assert!(found.timer_lateness_p99_us > 0.0, "{found:?}");
    // No daemon takes more: a host whose path costs more answers late, and its certificate says so.
    assert!((0.0..=250.0).contains(&found.dated_back_us), "{found:?}");
    fixture.assert_nothing_left();
}
