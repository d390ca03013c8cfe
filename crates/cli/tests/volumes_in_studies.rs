//! Studies on volumes of a pool, and with several servers: whole runs of the real program.

mod support;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Stdio};
use std::time::Duration;

use support::{Playground, can_mount, records, stderr, stdout, wait_for};
use underlay_nvme::auth::{AuthError, AuthHash, AuthSecret, HostSecrets};
use underlay_nvme::initiator::{ControllerOptions, InitiatorError, NvmeController, discover};
use underlay_record::CellStatus;
use underlay_volume::server::protocol::{PoolCommand, PoolReply};
use underlay_volume::server::{PoolConnection, nqn};

/// Two stand-alone servers on drives of their own, and on volumes of a pool with as many drives.
const STUDY: &str = r#"
name = "local-or-remote"
baseline = "local"

[system.rocksdb]
memory = "64 MiB"
servers = 2

[storage.local]
devices = [{ medium = "ssd-sata", capacity = "512 MiB" }]
initial = "fresh"
system = { compression = "lz4" }

[pool.shared]
devices = [{ medium = "ssd-sata", count = 2, capacity = "640 MiB" }]
initial = "fresh"

[storage.remote]
pool = "shared"
capacity = "512 MiB"
compress = "lz4"
link = { bandwidth = "100 Gbit/s", latency = "20 us" }
system = { compression = "none" }

[workload.ycsb]
records = 40_000
record = { fields = 10, bytes = 100 }
mixes = ["a"]
distribution = "uniform"
threads = 4
rate = [500, "max"]

[run]
warmup = "200 ms"
duration = "1 s"
repetitions = 1
seed = 7

[scale]
time = 2
"#;

#[test]
fn volumes_of_a_pool_stand_beside_local_drives() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    playground.write("study.toml", STUDY);
    let output = playground.output(&["run", "study.toml", "--out", "out"]);
    assert!(output.status.success(), "{}\n{}", stderr(&output), stdout(&output));
    let records = records(&playground.path("out"));
    assert_eq!(records.len(), 4);
    let mut requests_of = BTreeMap::new();
    for record in &records {
        let id = &record.cell.id;
        assert_eq!(record.status, CellStatus::Completed, "{id}");
        let measured = record.measured.as_ref().unwrap();
        assert_eq!(measured.errors, 0, "{id}: {:?}", measured.error_samples);
        // Every server holds half of the keys: none is asked for what another has.
        let missing: u64 = measured.by_operation.values().map(|stats| stats.missing).sum();
        assert_eq!(missing, 0, "{id}");
        assert_eq!(record.cell.servers, 2);
        assert_eq!(record.memory.budget_bytes, 64 << 20);
        assert_eq!(record.devices.len(), 2, "{id}: a drive for each server, or the two of the pool");
        let totals = record.devices.iter().map(|device| &device.totals);
        let requests: u64 = totals.map(|totals| totals.reads + totals.writes).sum();
        *requests_of.entry(record.cell.storage.clone()).or_insert(0) += requests;
        assert!(record.devices.iter().all(|device| device.modelled.is_some()), "{id}");
        let is_remote = record.cell.storage == "remote";
        assert_eq!(record.settings["compression"], if is_remote { "none" } else { "lz4" });
        assert_eq!(record.network.is_some(), is_remote, "{id}");
        if let Some(network) = &record.network {
            assert_eq!(
                (network.transport.as_str(), network.initiator.as_str()),
                ("nvme-tcp", "own initiator")
            );
            assert!(network.requests > 0 && network.request_mean_us > 0.0, "{network:?}");
            assert!(network.link_us.unwrap() >= 40.0, "twice the latency of the link: {network:?}");
            assert!(network.server_cpu_cores > 0.0, "{network:?}");
            let volumes: Vec<_> = record.layers.iter().filter(|layer| layer.kind == "volume").collect();
            assert_eq!(volumes.len(), 2);
            assert!(volumes.iter().all(|volume| volume.figures["stored_bytes"] > 1e6), "{volumes:?}");
        }
    }
    let of_pool = support::parts(&playground.path("out")).into_iter().filter(|parts| {
        parts.directories.iter().any(|directory| directory.volume.as_deref() == Some("server-1"))
    });
    for parts in of_pool {
        let [_, second] = parts.servers.as_slice() else { panic!("{parts:?}") };
        let directory_part = &parts.directories[second.keeps[0].directory as usize];
        assert_eq!((second.server, directory_part.volume.as_deref()), (Some(2), Some("server-1")));
        assert_eq!(directory_part.devices.len(), 2, "all devices of the pool: {parts:?}");
    }
    // What a cell of a second reads may be in memory by then, but not what all of them do.
    assert!(requests_of.values().all(|&requests| requests > 0), "{requests_of:?}");
    let table = stdout(&output);
    for words in ["Over offered rates", "500/s", "unthrottled", "read p99.9"] {
        assert!(table.contains(words), "'{words}' is not in the comparison:\n{table}");
    }
    let page = std::fs::read_to_string(playground.path("out/report.html")).unwrap();
    assert!(page.contains("What the network added"));
    assert!(!playground.path("out/work").exists(), "images are removed at the end");
    assert_eq!(playground.left_behind(), [""; 0]);
}

/// A study of volumes alone under way, with a volume server at `place` below its working folder.
fn run_to_a_volume_server(playground: &Playground, place: &str) -> Child {
    let long =
        STUDY.replace("duration = \"1 s\"", "duration = \"60 s\"").replace("[500, \"max\"]", "\"max\"");
    // Without the local storage, the first cell is one that needs a volume server.
    let (before, rest) = long.split_once("[storage.local]").unwrap();
    let (_, rest) = rest.split_once("[pool.shared]").unwrap();
    let remote =
        format!("{before}[pool.shared]{rest}").replace("baseline = \"local\"", "baseline = \"remote\"");
    playground.write("study.toml", &remote);
    let mut child = playground
        .underlay(&["run", "study.toml", "--out", "out"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let control = playground.path("out/work").join(place).join("pool/devices/control");
    wait_for("a volume server", Duration::from_secs(180), || {
        assert!(child.try_wait().unwrap().is_none(), "the run ended before a volume server came up");
        control.exists()
    });
    child
}

#[test]
fn killed_run_leaves_no_volume_server() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    let mut child = run_to_a_volume_server(&playground, "images-0");
    child.kill().unwrap();
    child.wait().unwrap();
    let output = playground.output(&["clean"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(playground.left_behind(), [""; 0]);
    assert!(!playground.path("out/work").exists());
}

#[test]
fn volume_server_requires_secret_of_its_cell() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    let mut child = run_to_a_volume_server(&playground, "cell");
    let pool = playground.path("out/work/cell/pool");
    let mut address = None;
    wait_for("an answer of the volume server", Duration::from_secs(60), || {
        let asked = PoolConnection::open(&pool.join("devices/control"));
        if let Ok(PoolReply::Pong { address: found, .. }) =
            asked.and_then(|mut server| server.ask(&PoolCommand::Ping))
        {
            address = Some(found.to_string());
        }
        address.is_some()
    });
    let name = std::fs::read_to_string(pool.join("pool.name")).unwrap();
    let volume = nqn::volume_nqn(&name, "server-0");
    let options = ControllerOptions {
        loss_timeout: Duration::ZERO,
        ..ControllerOptions::new(address.unwrap(), &volume)
    };
    let refused = |options: ControllerOptions| NvmeController::connect(options).err().expect("it was let in");

    // Another local user can connect to the port, and knows all names.
    let stranger = options.clone().with_host_nqn("nqn.2014-08.org.example:stranger");
    assert!(matches!(refused(stranger.clone()), InitiatorError::Refused { .. }));
    let seen = discover(&stranger).unwrap();
    assert!(seen.iter().all(|entry| entry.subsystem_nqn != volume), "{seen:?}");
    assert!(matches!(refused(options.clone()), InitiatorError::AuthenticationRequired(_)));
    let options_with = |host, controller| ControllerOptions {
        secrets: Some(HostSecrets { host, controller }),
        ..options.clone()
    };
    let guess = || AuthSecret::generate(AuthHash::Sha256).unwrap();
    let wrong = refused(options_with(guess(), None));
    assert!(matches!(wrong, InitiatorError::Authentication(AuthError::Refused(_))), "{wrong}");

    // Who may read the cell's secrets is let in, and the server proves that it knows its own.
    let secret = |name: &str| {
        let file = pool.join(name);
        let found = std::fs::metadata(&file).unwrap();
        assert_eq!(found.permissions().mode() & 0o777, 0o600, "{name}");
        AuthSecret::parse(&std::fs::read_to_string(file).unwrap()).unwrap()
    };
    let (host, controller) = (secret("host.secret"), secret("controller.secret"));
    assert_ne!(host, controller);
    drop(NvmeController::connect(options_with(host.clone(), Some(controller))).unwrap());
    let wrong = refused(options_with(host, Some(guess())));
    assert!(matches!(wrong, InitiatorError::Authentication(AuthError::ControllerUnproved)), "{wrong}");

    // Nor is a secret where others could read it.
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let read = |name: &str| std::fs::read(entry.path().join(name)).unwrap_or_default();
        let line = read("cmdline");
        let contains_word = |text: &[u8], word: &[u8]| text.windows(word.len()).any(|part| part == word);
        if contains_word(&line, playground.path("").to_str().unwrap().as_bytes()) {
            assert!(!contains_word(&line, b"DHHC-1:") && !contains_word(&read("environ"), b"DHHC-1:"));
        }
    }

    // SAFETY: the child has not been waited for, so its id is still its own.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(playground.left_behind(), [""; 0]);
    assert!(!playground.path("out/work").exists());
}

#[test]
fn ctrl_c_takes_volumes_and_their_server_away() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    let mut child = run_to_a_volume_server(&playground, "cell");
    // SAFETY: the child has not been waited for, so its id is still its own.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(playground.left_behind(), [""; 0]);
    assert!(!playground.path("out/work").exists());
}
