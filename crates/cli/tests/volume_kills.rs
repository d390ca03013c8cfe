//! The volume server is killed at random moments under load: everything that it had answered is there when it serves again,
//! flushed or not, every block is whole, and the pool is consistent. `UNDERLAY_VOLUME_KILLS` sets the number of kills; `make volume-kills`
//! does.

mod support;
#[allow(dead_code)]
#[path = "support/volumes.rs"]
mod volumes;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use support::{Playground, stderr};
use underlay_nvme::initiator::{Controller, Options};
use underlay_storage::device::{BlockDevice, DeviceError, Request};
use volumes::VolumeServer;

const KILLS_VARIABLE: &str = "UNDERLAY_VOLUME_KILLS";
const USUAL_KILLS: u64 = 25;
const LONGEST_RUN_US: u64 = 120_000;
const BLOCK: u64 = 4096;
/// Each writer has a part of a volume to itself.
const BLOCKS_A_WRITER: u64 = 512;
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

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % limit
    }
}

/// What a version of a block looks like; version 0 is nothing. Half of it compresses.
fn fill(block: u64, version: u64, into: &mut [u8]) {
    into.fill(0);
    if version == 0 {
        return;
    }
    let mut random = Random(block ^ version.rotate_left(32));
    for word in into[..BLOCK as usize / 2].chunks_exact_mut(8) {
        word.copy_from_slice(&random.below(u64::MAX).to_le_bytes());
    }
    into[..8].copy_from_slice(&version.to_le_bytes());
    into[8..16].copy_from_slice(&block.to_le_bytes());
}

/// One part of a volume, and what is known of it.
struct Part {
    volume: usize,
    first_block: u64,
    /// By block: the version of the last change that was answered.
    answered: Vec<u64>,
    /// By block: what was asked for and not answered. It may be there or not.
    asked: Vec<Option<u64>>,
    next_version: u64,
    changes: u64,
    flushes: u64,
}

impl Part {
    fn new(volume: usize, number: u64) -> Part {
        let count = BLOCKS_A_WRITER as usize;
        Part {
            volume,
            first_block: number * BLOCKS_A_WRITER,
            answered: vec![0; count],
            asked: vec![None; count],
            next_version: 1,
            changes: 0,
            flushes: 0,
        }
    }

    /// Writes, discards and flushes until the server is gone.
    fn live(&mut self, device: &dyn BlockDevice, random: &mut Random, is_dead: &AtomicBool) {
        while !is_dead.load(Ordering::SeqCst) && self.step(device, random).is_ok() {}
    }

    /// A flush now and then, so that kills meet changes that the journal knows, does not know, and is about to know.
    fn step(&mut self, device: &dyn BlockDevice, random: &mut Random) -> Result<(), DeviceError> {
        match random.below(10) {
            0 => {
                device.execute(Request::Flush)?;
                self.flushes += 1;
                Ok(())
            }
            operation => self.change(device, random, operation > 1),
        }
    }

    fn change(
        &mut self,
        device: &dyn BlockDevice,
        random: &mut Random,
        is_write: bool,
    ) -> Result<(), DeviceError> {
        let start = random.below(BLOCKS_A_WRITER);
        let count = (1 + random.below(16)).min(BLOCKS_A_WRITER - start);
        let offset_bytes = (self.first_block + start) * BLOCK;
        let mut data = vec![0; (count * BLOCK) as usize];
        for (index, block) in (start..start + count).zip(data.chunks_exact_mut(BLOCK as usize)) {
            let version = if is_write { self.next_version } else { 0 };
            self.next_version += 1;
            fill(self.first_block + index, version, block);
            self.asked[index as usize] = Some(version);
        }
        device.execute(match is_write {
            true => Request::Write { offset_bytes, data, fua: random.below(8) == 0 },
            false => Request::Discard { offset_bytes, length_bytes: count * BLOCK },
        })?;
        for index in start as usize..(start + count) as usize {
            self.answered[index] = self.asked[index].take().unwrap_or(0);
        }
        self.changes += 1;
        Ok(())
    }

    /// Takes over what it finds where that may be there.
    fn verify(&mut self, device: &dyn BlockDevice) -> Result<(), String> {
        let buffer = vec![1; (BLOCKS_A_WRITER * BLOCK) as usize];
        let read = device
            .execute(Request::Read { offset_bytes: self.first_block * BLOCK, buffer })
            .map_err(|error| format!("reading: {error}"))?;
        let mut expected = vec![0; BLOCK as usize];
        for (index, found) in read.chunks_exact(BLOCK as usize).enumerate() {
            let block = self.first_block + index as u64;
            let (answered, asked) = (self.answered[index], self.asked[index].take());
            let is = std::iter::once(answered).chain(asked).find(|&version| {
                fill(block, version, &mut expected);
                expected == found
            });
            let Some(is) = is else {
                let version = u64::from_le_bytes(found[..8].try_into().unwrap_or_default());
                return Err(format!(
                    "volume {}, block {block}: found version {version} or a torn one; {answered} was answered, {asked:?} asked for",
                    VOLUMES[self.volume]
                ));
            };
            self.answered[index] = is;
        }
        Ok(())
    }
}

fn kills() -> u64 {
    std::env::var(KILLS_VARIABLE).ok().map_or(USUAL_KILLS, |text| text.parse().unwrap())
}

#[test]
fn nothing_that_was_answered_is_lost_by_a_kill() {
    let (kills, seed) = (kills(), u64::from(std::process::id()));
    let mut random = Random(seed);
    let playground = Playground::new();
    playground.write("pool.toml", POOL);
    let mut parts: Vec<Part> = (0..VOLUMES.len())
        .flat_map(|volume| (0..WRITERS_A_VOLUME).map(move |number| Part::new(volume, number)))
        .collect();
    let mut snapshots: Vec<String> = Vec::new();
    for kill in 1..=kills {
        let server = VolumeServer::start(&playground, &["--immediate"]);
        let connected: Vec<_> = VOLUMES.iter().map(|volume| server.connect(&server.nqn(volume))).collect();
        for part in &mut parts {
            part.verify(&connected[part.volume].1)
                .unwrap_or_else(|problem| panic!("seed {seed}, before kill {kill}: {problem}"));
        }
        // Volumes that were made by a command that was answered are there.
        let there: Vec<&str> = server.said["volumes"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|one| one["name"].as_str())
            .collect();
        for snapshot in &snapshots {
            assert!(
                there.contains(&snapshot.as_str()),
                "seed {seed}, kill {kill}: {snapshot} is not among {there:?}"
            );
        }
        let is_dead = AtomicBool::new(false);
        let delay = Duration::from_micros(random.below(LONGEST_RUN_US));
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
fn an_initiator_goes_on_when_the_server_comes_back() {
    let playground = Playground::new();
    playground.write("pool.toml", POOL);
    let first = VolumeServer::start(&playground, &["--immediate"]);
    let address = first.address.clone();
    let mut parts: Vec<Part> = (0..VOLUMES.len()).map(|volume| Part::new(volume, 0)).collect();
    let controllers: Vec<Controller> = VOLUMES
        .iter()
        .map(|volume| Controller::connect(Options::new(&address, first.nqn(volume))).unwrap())
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
                device.execute(Request::Flush).unwrap();
            });
        }
        let mut server = first;
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(150));
            server.kill();
            server = VolumeServer::start(&playground, &["--immediate", "--listen", &address]);
        }
        is_over.store(true, Ordering::SeqCst);
        server
    });
    for part in &mut parts {
        assert!(part.asked.iter().all(Option::is_none));
        part.verify(&controllers[part.volume].namespace(1).unwrap()).unwrap();
        assert!(controllers[part.volume].figures().reconnects >= 3);
    }
    drop(controllers);
    assert_eq!(server.stop(), Some(130));
}
