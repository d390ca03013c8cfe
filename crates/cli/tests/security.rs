//! docs/security.md, held to by what it says of files, ports and tests.

mod support;
#[allow(dead_code)]
#[path = "support/volumes.rs"]
mod volumes;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::{Mounted, Playground, can_mount, stderr, stdout};
use volumes::VolumeServer;

const MISSING: i32 = 3;
const POOL: &str = "name = \"tank\"\nlisten = \"127.0.0.1:0\"\n\
                    devices = [{ medium = \"nvme-9300-max\", count = 2, capacity = \"512 MiB\" }]\n\n\
                    [volume.data]\ncapacity = \"64 MiB\"\n";

/// Everything below, and what its mode should not have.
fn open_to_others(folder: &Path) -> Vec<(PathBuf, u32)> {
    let mut found = Vec::new();
    let mut left = vec![folder.to_path_buf()];
    while let Some(path) = left.pop() {
        let metadata = fs::symlink_metadata(&path).unwrap();
        let (kind, mode) = (metadata.file_type(), metadata.permissions().mode() & 0o777);
        let executes = u32::from(kind.is_file() || kind.is_socket()) * 0o111;
        if !kind.is_symlink() && mode & (0o077 | executes) != 0 {
            found.push((path.clone(), mode));
        }
        if kind.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    found
}

/// The local addresses at which a process listens, as /proc/net/tcp writes them.
fn listening(pid: u32) -> Vec<String> {
    let sockets: Vec<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let mut found = Vec::new();
    for table in ["tcp", "tcp6", "udp", "udp6"] {
        let Ok(text) = fs::read_to_string(format!("/proc/{pid}/net/{table}")) else { continue };
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            // A socket in state 0A listens; one of UDP without a peer does as well.
            let listens = fields[3] == "0A" || table.starts_with("udp");
            if listens && sockets.iter().any(|inode| inode == fields[9]) {
                found.push(format!("{table} {}", fields[1]));
            }
        }
    }
    found
}

#[test]
fn service_files_are_private() {
    let playground = Playground::new();
    playground.write("pool.toml", POOL);
    let mut command = playground.underlay(&["volume", "serve", "pool.toml", "--immediate"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: umask cannot fail and touches no memory.
    unsafe {
        command.pre_exec(|| {
            libc::umask(0);
            Ok(())
        });
    }
    let mut child = command.spawn().unwrap();
    let pool = playground.path("tank.pool");
    support::wait_for("the server to serve", std::time::Duration::from_secs(60), || {
        playground.output(&["volume", "list", "pool.toml"]).status.success() && pool.join("control").exists()
    });
    let found = open_to_others(&pool);
    let pid = libc::pid_t::try_from(child.id()).unwrap();
    // SAFETY: the child has not been waited for, so its id is still its own.
    unsafe { libc::kill(pid, libc::SIGTERM) };
    child.wait().unwrap();
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn service_listens_only_on_its_address() {
    let playground = Playground::new();
    playground.write("pool.toml", POOL);
    let server = VolumeServer::start(&playground, &["--immediate"]);
    let port: u16 = server.address.rsplit_once(':').unwrap().1.parse().unwrap();
    // 127.0.0.1 as the kernel writes it on a machine of this byte order.
    let address = format!("tcp {:08X}:{port:04X}", u32::from_ne_bytes([127, 0, 0, 1]));
    assert_eq!(listening(server.pid()), [address]);
    server.stop();
    if !can_mount() {
        return;
    }
    let arguments = ["mount", "nvme-9300-max", "mnt", "--size", "512MiB", "--immediate"];
    let mounted = Mounted::start(&playground, &arguments);
    let pids: Vec<u32> = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .filter(|pid| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&words).contains(playground.path("").to_str().unwrap())
        })
        .collect();
    assert!(!pids.is_empty(), "the device daemon was not found");
    for pid in pids {
        assert_eq!(listening(pid), [""; 0], "process {pid}");
    }
    assert!(mounted.end().code().is_some());
}

/// As in a container that is entered from outside: the leader of the session has no number there.
#[test]
fn service_starts_without_visible_session_leader() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    playground.write("pool.toml", POOL);
    let underlay = playground.underlay(&["volume", "serve", "pool.toml", "--immediate", "--json"]);
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]).arg(underlay.get_program());
    command.args(underlay.get_args()).current_dir(playground.folder.path());
    command.env("UNDERLAY_RUNTIME_DIR", playground.path("runtime"));
    let log = fs::File::create(playground.path("server.log")).unwrap();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let log_text = fs::read_to_string(playground.path("server.log")).unwrap();
    assert!(line.contains("\"pool\":\"tank\""), "{line:?}, {log_text}");
}

#[test]
fn mounted_disk_grants_no_rights_or_devices() {
    if !can_mount() {
        return;
    }
    for attachment in ["ublk", "fuse-uring+loop", "fuse+loop", "fuse-directory"] {
        let playground = Playground::new();
        let arguments =
            ["mount", "nvme-9300-max", "mnt", "--size", "512MiB", "--immediate", "--attachment", attachment];
        let tried = playground.output(&[&arguments[..], &["--", "true"]].concat());
        if tried.status.code() == Some(MISSING) {
            eprintln!("NOT RUN: this host has no {attachment}");
            continue;
        }
        let mounted = Mounted::start(&playground, &arguments);
        // proc_pid_mountinfo(5): the mount point is the fifth field, and its options are the sixth.
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let folder = playground.path("").display().to_string();
        let options: Vec<Vec<&str>> = table
            .lines()
            .map(|line| line.split(' ').skip(4).take(2).collect::<Vec<_>>())
            .filter(|fields| fields[0].starts_with(&folder))
            .map(|fields| fields[1].split(',').collect())
            .collect();
        assert!(!options.is_empty());
        for options in options {
            assert!(options.contains(&"nosuid") && options.contains(&"nodev"), "{attachment}: {options:?}");
        }
        assert!(mounted.end().code().is_some());
    }
}

/// A umask of 0 opens what is made to everybody, and one of 0777 closes it to us: neither does here, and a user's own
/// command has it.
#[test]
fn umask_never_changes_modes() {
    let playground = Playground::new();
    let under = |mask: libc::mode_t, arguments: &[&str]| {
        let mut command = playground.underlay(arguments);
        // SAFETY: umask cannot fail and touches no memory.
        unsafe {
            command.pre_exec(move || {
                libc::umask(mask);
                Ok(())
            });
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{mask:o}: {}", stderr(&output));
        stdout(&output)
    };
    let mode = |path: &str| fs::metadata(playground.path(path)).unwrap().permissions().mode() & 0o777;
    let study = "name = \"one\"\nbaseline = \"disk\"\n[system.rocksdb]\nmemory = \"64 MiB\"\n[storage.disk]\n\
                 devices = [{ medium = \"ssd-sata\", capacity = \"512 MiB\" }]\n[workload.w]\nrecords = 1_000\n\
                 record = { fields = 1, bytes = 100 }\nmixes = [\"c\"]\nthreads = 1\n[run]\nwarmup = \"0 s\"\n\
                 duration = \"300 ms\"\nrepetitions = 1\n";
    playground.write("one.toml", study);
    for mask in [0, 0o777] {
        let (data, out) = (format!("data-{mask:o}"), format!("out-{mask:o}"));
        fs::create_dir(playground.path(&data)).unwrap();
        under(mask, &["ycsb", "load", "rocksdb", "--dir", &data, "-p", "recordcount=100"]);
        assert_eq!(mode(&format!("{data}/rocksdb")) & 0o722, 0o700, "{mask:o}");
        if can_mount() {
            under(mask, &["run", "one.toml", "--out", &out]);
            let umask_text =
                under(mask, &["mount", "nvme-9300-max", "mnt", "--immediate", "--", "sh", "-c", "umask"]);
            assert_eq!(u32::from_str_radix(umask_text.trim(), 8), Ok(mask));
        }
    }
}

/// A promise without its test is one that nobody keeps.
#[test]
fn tests_named_on_the_page_exist() {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(project.join("docs/security.md")).unwrap();
    let (_, table) = page.split_once("## What is tested").unwrap();
    let mut named = 0;
    for line in table.lines().filter(|line| line.contains(".rs`")) {
        let words: Vec<&str> = line.rsplit(" | ").next().unwrap().split('`').skip(1).step_by(2).collect();
        let [file, tests @ ..] = words.as_slice() else { panic!("{line}") };
        let text = fs::read_to_string(project.join("crates").join(file));
        let text = text.unwrap_or_else(|error| panic!("{file}: {error}"));
        for test in tests {
            let is_there =
                ["", "    "].iter().any(|indent| text.contains(&format!("#[test]\n{indent}fn {test}()")));
            assert!(is_there, "{file} has no test {test}");
            named += 1;
        }
    }
    assert!(named >= 20, "{named} tests");
}
