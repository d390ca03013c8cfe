//! The volume server is killed at random moments under load: everything that it had answered is there when it serves
//! again, flushed or not, every block is whole, and the pool is consistent. The same with a second fault at that
//! moment: a member of the pool that fails (`failing_member`), a pool that is full when initiators write again what
//! they kept (`full_pool`). `UNDERLAY_VOLUME_KILLS` sets the number of kills; `make volume-kills` does.

mod failing_member;
mod full_pool;
mod parts;
#[path = "../support/mod.rs"]
mod support;
#[allow(dead_code)]
#[path = "../support/volumes.rs"]
mod volumes;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parts::{Part, Random};
use support::{Playground, stderr, wait_for};
use underlay_nvme::initiator::{ControllerOptions, NvmeController};
use underlay_storage::device::{BlockDevice, DeviceRequest};
use volumes::VolumeServer;

const KILLS_VARIABLE: &str = "UNDERLAY_VOLUME_KILLS";
const USUAL_KILLS: u64 = 25;
const MAX_RUN_US: u64 = 120_000;
const VOLUMES: [&str; 3] = ["plain", "small", "twice"];
const WRITERS_A_VOLUME: u64 = 2;
const POOL: &str = r#"
name = "kills"
listen = "127.0.0.1:0"
devices = [{ medium = "nvme-9300-max", count = 3, capacity = "256 MiB" }]
initial = "fresh"

[volume.plain]
capacity = "64 MiB"

[volume.small]
capacity = "64 MiB"
compress = "lz4"

[volume.twice]
capacity = "64 MiB"
mirror = true
"#;

fn kills() -> u64 {
    std::env::var(KILLS_VARIABLE).ok().map_or(USUAL_KILLS, |text| text.parse().unwrap())
}

fn playground(pool: &str) -> Playground {
    let playground = Playground::new();
    playground.write("pool.toml", pool);
    playground
}

/// Each volume's, for all who write to it.
fn all_parts() -> Vec<Part> {
    let of_volume =
        |volume| (0..WRITERS_A_VOLUME).map(move |number| Part::new(VOLUMES[volume], volume, number));
    (0..VOLUMES.len()).flat_map(of_volume).collect()
}

/// What a crash of the server's host does: what the server noted in its memory is gone.
fn forget_unflushed(playground: &Playground) {
    for file in (0..4).map(|number| format!("kills.pool/unflushed.{number}")) {
        match std::fs::remove_file(playground.path(&file)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{file}: {error}"),
            _ => {}
        }
    }
}

#[test]
fn server_kill_loses_no_acknowledged_write() {
    let (kills, seed) = (kills(), u64::from(std::process::id()));
    let mut random = Random(seed);
    let playground = playground(POOL);
    let mut parts = all_parts();
    let mut snapshots: Vec<String> = Vec::new();
    for kill in 1..=kills {
        let server = VolumeServer::start(&playground, &["--immediate"]);
        let connected: Vec<_> = VOLUMES.iter().map(|volume| server.connect(&server.nqn(volume))).collect();
        for part in &mut parts {
            part.verify(&connected[part.volume].1)
                .unwrap_or_else(|problem| panic!("seed {seed}, before kill {kill}: {problem}"));
        }
        // Volumes that were made by a command that was answered are there.
        let volumes: Vec<&str> = server.said["volumes"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|one| one["name"].as_str())
            .collect();
        for snapshot in &snapshots {
            assert!(
                volumes.contains(&snapshot.as_str()),
                "seed {seed}, kill {kill}: {snapshot} is not among {volumes:?}"
            );
        }
        let is_dead = AtomicBool::new(false);
        let delay = Duration::from_micros(random.below(MAX_RUN_US));
        let seeds: Vec<u64> = parts.iter().map(|_| random.below(u64::MAX)).collect();
        let commands = kill % 5 == 0;
        std::thread::scope(|scope| {
            for (part, seed) in parts.iter_mut().zip(seeds) {
                let (device, is_dead) = (connected[part.volume].1.clone(), &is_dead);
                scope.spawn(move || part.live(&device, &mut Random(seed), is_dead));
            }
            if commands {
                let name = format!("snapshot-{kill}");
                let volume = VOLUMES[(kill / 5) as usize % VOLUMES.len()];
                let output =
                    playground.output(&["volume", "snapshot", "pool.toml", volume, &name, "--writable"]);
                assert!(output.status.success(), "{}", stderr(&output));
                snapshots.push(name);
                if snapshots.len() > 2 {
                    let oldest = snapshots.remove(0);
                    let output = playground.output(&["volume", "delete", "pool.toml", &oldest]);
                    assert!(output.status.success(), "{}", stderr(&output));
                }
            }
            std::thread::sleep(delay);
            server.kill();
            is_dead.store(true, Ordering::SeqCst);
        });
        let output = playground.output(&["volume", "check", "pool.toml"]);
        assert!(output.status.success(), "seed {seed}, kill {kill}: {}", stderr(&output));
    }
    let server = VolumeServer::start(&playground, &["--immediate"]);
    for part in &mut parts {
        let (_controller, device) = server.connect(&server.nqn(VOLUMES[part.volume]));
        part.verify(&device).unwrap_or_else(|problem| panic!("seed {seed}, at the end: {problem}"));
    }
    assert_eq!(server.stop(), Some(130));
    let flushes: u64 = parts.iter().map(|part| part.flushes).sum();
    let changes: u64 = parts.iter().map(|part| part.changes).sum();
    println!("volumes: {kills} kills, {changes} answered changes and {flushes} flushes, nothing lost");
    assert!(flushes > kills, "{flushes} flushes in {kills} kills are no load");
    let output = playground.output(&["clean"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(playground.left_behind(), [""; 0]);
}

/// Nobody above the initiator learns that the server was killed, and in the end everything is as it was written.
#[test]
fn initiator_continues_after_server_returns() {
    let playground = playground(POOL);
    let first = VolumeServer::start(&playground, &["--immediate"]);
    let address = first.address.clone();
    let mut parts: Vec<Part> =
        (0..VOLUMES.len()).map(|volume| Part::new(VOLUMES[volume], volume, 0)).collect();
    let controllers: Vec<NvmeController> = VOLUMES
        .iter()
        .map(|volume| NvmeController::connect(ControllerOptions::new(&address, first.nqn(volume))).unwrap())
        .collect();
    let is_over = AtomicBool::new(false);
    let server = std::thread::scope(|scope| {
        for part in &mut parts {
            let (device, is_over) = (controllers[part.volume].namespace(1).unwrap(), &is_over);
            scope.spawn(move || {
                let mut random = Random(part.volume as u64);
                while !is_over.load(Ordering::SeqCst) {
                    part.step(&device, &mut random)
                        .unwrap_or_else(|error| panic!("{}: {error}", VOLUMES[part.volume]));
                }
                device.execute(DeviceRequest::Flush).unwrap();
            });
        }
        let mut server = first;
        for number in 0..3 {
            std::thread::sleep(Duration::from_millis(150));
            server.kill();
            server = VolumeServer::start(&playground, &["--immediate", "--listen", &address]);
            // A kill within a reconnection would be none more.
            wait_for("the initiators", Duration::from_secs(60), || {
                controllers.iter().all(|controller| controller.figures().reconnects > number)
            });
        }
        is_over.store(true, Ordering::SeqCst);
        server
    });
    for part in &mut parts {
        assert!(part.asked.iter().all(Vec::is_empty));
        part.verify(&controllers[part.volume].namespace(1).unwrap()).unwrap();
        assert!(controllers[part.volume].figures().reconnects >= 3);
    }
    drop(controllers);
    assert_eq!(server.stop(), Some(130));
}
