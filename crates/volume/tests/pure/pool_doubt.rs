//! A flush of one member has failed, and its page cache took the data for clean: what the killed process could not make
//! durable is written again before any flush of it succeeds.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};

use underlay_storage::device::{BlockDevice, CompletionCallback, DeviceError, DeviceGeometry, DeviceRequest};
use underlay_volume::pool::{HostMemory, MemberState, PoolError, PoolSettings, VolumeSpec};
use underlay_volume::{VolumeHandle, VolumePool};

const CAPACITY_BYTES: usize = 24 << 20;
const BLOCK: usize = 4096;
/// The last one of three: the first two have the journal.
const FAILING: usize = 2;
/// As many as make sure that one of them is on each member.
const VOLUMES: u64 = 3;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Health {
    Sound,
    /// Flushes fail, and what they were to write is taken for clean.
    FailsFlushes,
    Gone,
}

/// A file of Linux: what was written can be read at once; a flush that fails forgets what it was to write.
#[derive(Clone)]
struct Cached(Arc<Mutex<State>>);

struct State {
    cached: Vec<u8>,
    durable: Vec<u8>,
    dirty: BTreeSet<usize>,
    health: Health,
}

impl Cached {
    fn new(image: Vec<u8>) -> Cached {
        let (cached, durable) = (image.clone(), image);
        Cached(Arc::new(Mutex::new(State { cached, durable, dirty: BTreeSet::new(), health: Health::Sound })))
    }

    fn set(&self, health: Health) {
        self.0.lock().unwrap().health = health;
    }

    fn after_power_cut(&self) -> Cached {
        Cached::new(self.0.lock().unwrap().durable.clone())
    }
}

impl BlockDevice for Cached {
    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            capacity_bytes: CAPACITY_BYTES as u64,
            block_bytes: BLOCK as u32,
            optimal_io_bytes: BLOCK as u32,
        }
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        let mut guard = self.0.lock().unwrap();
        let state = &mut *guard;
        let mut change = |offset_bytes: u64, data: &[u8]| {
            let offset = offset_bytes as usize;
            state.cached[offset..offset + data.len()].copy_from_slice(data);
            state.dirty.extend(offset / BLOCK..(offset + data.len()) / BLOCK);
        };
        let mut is_forced = false;
        let answer = match request {
            _ if state.health == Health::Gone => Err(DeviceError::Gone),
            DeviceRequest::Read { offset_bytes, mut buffer } => {
                let offset = offset_bytes as usize;
                let end = offset + buffer.len();
                buffer.copy_from_slice(&state.cached[offset..end]);
                Ok(buffer)
            }
            DeviceRequest::Write { offset_bytes, data, fua } => {
                change(offset_bytes, &data);
                is_forced = fua;
                Ok(Vec::new())
            }
            DeviceRequest::Discard { offset_bytes, length_bytes } => {
                change(offset_bytes, &vec![0; length_bytes as usize]);
                Ok(Vec::new())
            }
            DeviceRequest::Flush => {
                is_forced = true;
                Ok(Vec::new())
            }
        };
        let answer = match answer {
            Ok(_) if is_forced => {
                let dirty = std::mem::take(&mut state.dirty);
                if state.health == Health::FailsFlushes {
                    Err(DeviceError::Io("it can't be synced".into()))
                } else {
                    for block in dirty {
                        let bytes = block * BLOCK..(block + 1) * BLOCK;
                        state.durable[bytes.clone()].copy_from_slice(&state.cached[bytes]);
                    }
                    Ok(Vec::new())
                }
            }
            answer => answer,
        };
        drop(guard);
        done(answer);
    }
}

fn open(devices: &[Cached], memory: &Path) -> Result<VolumePool, PoolError> {
    let members = devices.iter().map(|device| Arc::new(device.clone()) as Arc<dyn BlockDevice>).collect();
    let memory =
        HostMemory { directory: memory.to_owned(), boot: "this one".into(), long_bytes: u64::MAX / 2 };
    VolumePool::open(members, PoolSettings { host_memory: Some(memory), ..PoolSettings::default() })
}

fn volumes(pool: &VolumePool) -> Vec<VolumeHandle> {
    (0..VOLUMES).map(|number| pool.volume(&format!("volume-{number}")).unwrap()).collect()
}

fn write(volumes: &[VolumeHandle], block: u64, content: u8) {
    for volume in volumes {
        let data = vec![content; BLOCK];
        volume
            .execute(DeviceRequest::Write { offset_bytes: block * BLOCK as u64, data, fua: false })
            .unwrap();
    }
}

fn read(volumes: &[VolumeHandle], block: u64) -> Vec<u8> {
    let read = |volume: &VolumeHandle| {
        let buffer = vec![0xEE; BLOCK];
        let bytes =
            volume.execute(DeviceRequest::Read { offset_bytes: block * BLOCK as u64, buffer }).unwrap();
        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        bytes[0]
    };
    volumes.iter().map(read).collect()
}

/// Block 0 was flushed as 1; its 2, written over it in place, and block 1 could not be flushed on one member. The
/// process that wrote them is dead.
fn with_a_failed_flush(memory: &Path) -> Vec<Cached> {
    let devices: Vec<Cached> = (0..3).map(|_| Cached::new(vec![0; CAPACITY_BYTES])).collect();
    let pool = open(&devices, memory).unwrap();
    for number in 0..VOLUMES {
        pool.create(&format!("volume-{number}"), &VolumeSpec::new(1 << 20)).unwrap();
    }
    let volumes = volumes(&pool);
    write(&volumes, 0, 1);
    pool.flush().unwrap();
    write(&volumes, 0, 2);
    write(&volumes, 1, 3);
    devices[FAILING].set(Health::FailsFlushes);
    let hurt = volumes.iter().filter(|volume| volume.execute(DeviceRequest::Flush).is_err()).count();
    assert_eq!(hurt, 1, "one of the volumes is on the failing member");
    devices[FAILING].set(Health::Sound);
    devices
}

fn assert_durable(devices: &[Cached], memory: &Path) {
    let devices: Vec<Cached> = devices.iter().map(Cached::after_power_cut).collect();
    let other_boot = memory.join("other-boot");
    std::fs::create_dir_all(&other_boot).unwrap();
    let volumes = volumes(&open(&devices, &other_boot).unwrap());
    assert_eq!((read(&volumes, 0), read(&volumes, 1)), (vec![2; 3], vec![3; 3]));
}

#[test]
fn overwrite_before_failed_flush_is_written_again() {
    let memory = tempfile::tempdir().unwrap();
    let devices = with_a_failed_flush(memory.path());
    let pool = open(&devices, memory.path()).unwrap();
    volumes(&pool).iter().for_each(|volume| drop(volume.execute(DeviceRequest::Flush).unwrap()));
    assert_durable(&devices, memory.path());
}

#[test]
fn pool_with_absent_doubtful_member_fails_flushes_until_rewritten() {
    let memory = tempfile::tempdir().unwrap();
    let devices = with_a_failed_flush(memory.path());
    // Twice: the doubt outlives another process.
    for _ in 0..2 {
        devices[FAILING].set(Health::Gone);
        let pool = open(&devices, memory.path()).expect("the others are well");
        devices[FAILING].set(Health::Sound);
        let flushed: Vec<bool> =
            volumes(&pool).iter().map(|volume| volume.execute(DeviceRequest::Flush).is_ok()).collect();
        assert_eq!(flushed.iter().filter(|flushed| !**flushed).count(), 1, "{flushed:?}");
    }
    let pool = open(&devices, memory.path()).unwrap();
    drop(pool);
    devices[FAILING].set(Health::Gone);
    let pool = open(&devices, memory.path()).unwrap();
    devices[FAILING].set(Health::Sound);
    pool.resync(FAILING).unwrap();
    assert_eq!(pool.info().members[FAILING].state, MemberState::InUse);
    let volumes = volumes(&pool);
    volumes.iter().for_each(|volume| drop(volume.execute(DeviceRequest::Flush).unwrap()));
    assert_eq!((read(&volumes, 0), read(&volumes, 1)), (vec![2; 3], vec![3; 3]));
    assert_durable(&devices, memory.path());
}

#[test]
fn failed_flush_at_opening_is_remembered() {
    let memory = tempfile::tempdir().unwrap();
    let devices = vec![Cached::new(vec![0; CAPACITY_BYTES])];
    let pool = open(&devices, memory.path()).unwrap();
    let volume = pool.create("volume-0", &VolumeSpec::new(1 << 20)).unwrap();
    write(std::slice::from_ref(&volume), 0, 1);
    volume.execute(DeviceRequest::Flush).unwrap();
    // Answered, and with the dead process's server in the page cache alone.
    write(std::slice::from_ref(&volume), 0, 2);
    write(std::slice::from_ref(&volume), 1, 3);
    devices[0].set(Health::FailsFlushes);
    assert!(open(&devices, memory.path()).is_err(), "its journal is nowhere else");
    devices[0].set(Health::Sound);
    let volume = open(&devices, memory.path()).unwrap().volume("volume-0").unwrap();
    volume.execute(DeviceRequest::Flush).unwrap();
    let devices: Vec<Cached> = devices.iter().map(Cached::after_power_cut).collect();
    let other_boot = tempfile::tempdir().unwrap();
    let volumes = [open(&devices, other_boot.path()).unwrap().volume("volume-0").unwrap()];
    assert_eq!((read(&volumes, 0), read(&volumes, 1)), (vec![2], vec![3]));
}
