//! Layers in a stack: opened from a spec, over modelled devices, in virtual and in real time.

use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};

use underlay_record::LayerActivity;
use underlay_storage::catalogue;
use underlay_storage::clock::ModelClock;
use underlay_storage::device::{BlockDevice, DeviceCompletion, DeviceError, DeviceRequest};
use underlay_storage::faults::{DeviceFault, PowerCut};
use underlay_storage::layers::cache::CacheMode;
use underlay_storage::layers::compress::CompressionCodec;
use underlay_storage::stack::{
    BackingSpec, DeviceSpec, Stack, StackError, StackNode, StackSpec, VirtualDriver, VolumeSpec,
};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;

fn device(name: &str, medium: &str, capacity_bytes: u64) -> StackNode {
    let medium = Some(catalogue::find(medium).unwrap());
    StackNode::Device(DeviceSpec::new(name, medium, capacity_bytes, BackingSpec::Memory))
}

fn spec(root: StackNode) -> StackSpec {
    StackSpec { volumes: vec![VolumeSpec::new("data", root)], dilation: 1.0, seed: 3 }
}

fn cache(mode: CacheMode, fast: StackNode, slow: StackNode) -> StackNode {
    let (fast, slow) = (Box::new(fast), Box::new(slow));
    StackNode::Cache { mode, fast, slow, bypass_bytes: 256 << 10, dirty_percent: 10 }
}

fn compress(codec: CompressionCodec, capacity_bytes: Option<u64>, member: StackNode) -> StackNode {
    StackNode::Compress { codec, chunk_bytes: 16 << 10, capacity_bytes, member: Box::new(member) }
}

/// In virtual time.
struct Virtual {
    stack: Stack,
    driver: VirtualDriver,
}

impl Virtual {
    fn open(root: StackNode) -> Virtual {
        let (stack, driver) = Stack::open_virtual(&spec(root)).unwrap();
        assert_eq!(driver.clock().now().as_ns(), 0, "opening takes no modelled time");
        Virtual { stack, driver }
    }

    fn volume(&self) -> &Arc<dyn BlockDevice> {
        &self.stack.volumes()[0]
    }

    /// The answer, and how long it took in microseconds.
    fn execute(&self, request: DeviceRequest) -> (DeviceCompletion, f64) {
        let began = self.now_us();
        let (sender, receiver) = mpsc::channel();
        let clock = self.driver.clone();
        let done = move |completion| sender.send((completion, clock.clock().now())).unwrap();
        self.volume().submit(request, Box::new(done));
        self.driver.run_until_idle();
        let (completion, completed_at) = receiver.try_recv().expect("an answer");
        (completion, completed_at.as_ns() as f64 / 1e3 - began)
    }

    fn now_us(&self) -> f64 {
        self.driver.clock().now().as_ns() as f64 / 1e3
    }

    fn write(&self, offset_bytes: u64, data: Vec<u8>) -> f64 {
        let (answer, took_us) = self.execute(DeviceRequest::Write { offset_bytes, data, fua: false });
        answer.unwrap();
        took_us
    }

    fn read(&self, offset_bytes: u64, length: u64) -> (Vec<u8>, f64) {
        let (answer, took_us) =
            self.execute(DeviceRequest::Read { offset_bytes, buffer: vec![0; length as usize] });
        (answer.unwrap(), took_us)
    }

    fn figures(&self) -> BTreeMap<String, f64> {
        let layers: Vec<LayerActivity> = self.stack.layers();
        assert_eq!(layers.len(), 1);
        layers.into_iter().next().unwrap().figures
    }
}

fn pattern(blocks: u64, seed: u8) -> Vec<u8> {
    (0..blocks * BLOCK).map(|i| ((i / 7) as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

#[test]
fn mirror_continues_without_one_disk_and_reports_it() {
    let members = vec![device("a", "hdd-7200-sata", 64 * MIB), device("b", "hdd-7200-sata", 64 * MIB)];
    let subject = Virtual::open(StackNode::Mirror { members });
    subject.write(0, pattern(4, 1));
    subject.stack.inject("b", DeviceFault::Vanish).unwrap();
    subject.stack.begin_measurement(1.0);
    subject.write(0, pattern(4, 2));
    assert_eq!(subject.read(0, 4 * BLOCK).0, pattern(4, 2));
    assert_eq!(subject.figures()["degraded"], 1.0);
    assert!(subject.stack.bring_back("b").unwrap());
    subject.execute(DeviceRequest::Flush).0.unwrap();
    let figures = subject.figures();
    assert_eq!((figures["degraded"], figures["members_in_sync"]), (0.0, 2.0));
    assert!(figures["resynced_bytes"] >= MIB as f64, "{figures:?}");
    subject.stack.inject("a", DeviceFault::Vanish).unwrap();
    assert_eq!(subject.read(0, 4 * BLOCK).0, pattern(4, 2));
    subject.stack.inject("b", DeviceFault::Vanish).unwrap();
    let (answer, _) = subject.execute(DeviceRequest::Read { offset_bytes: 0, buffer: vec![0; 4096] });
    assert!(answer.is_err());
}

/// Nothing is in flight when the power goes, so no request tells the mirror.
#[test]
fn member_losing_power_between_requests_is_resynced() {
    let member = |name: &str| {
        let medium = Some(catalogue::find("hdd-7200-sata").unwrap());
        let mut device = DeviceSpec::new(name, medium, 64 * MIB, BackingSpec::Memory);
        device.power_cut_armed = true;
        StackNode::Device(device)
    };
    let subject = Virtual::open(StackNode::Mirror { members: vec![member("a"), member("b")] });
    for index in 0..64 {
        subject.write(index * BLOCK, pattern(1, index as u8));
    }
    let survival =
        subject.stack.cut_power(&["b"], PowerCut { seed: 1, torn: false, reordered: true }).unwrap();
    assert!(survival.lost > 0, "{survival:?}");
    assert_eq!(subject.stack.restore_power(), 1);
    subject.execute(DeviceRequest::Flush).0.unwrap();
    assert_eq!(subject.figures()["members_in_sync"], 2.0);
    subject.stack.inject("a", DeviceFault::Vanish).unwrap();
    for index in 0..64 {
        assert_eq!(subject.read(index * BLOCK, BLOCK).0, pattern(1, index as u8), "block {index}");
    }
}

/// On devices that answer at once each step happens inside the one before.
#[test]
fn resync_of_many_regions_needs_no_more_stack() {
    const REGIONS: u64 = 2000;
    let member =
        |name: &str| StackNode::Device(DeviceSpec::new(name, None, (REGIONS + 8) * MIB, BackingSpec::Null));
    let subject = Virtual::open(StackNode::Mirror { members: vec![member("a"), member("b")] });
    subject.stack.inject("b", DeviceFault::Vanish).unwrap();
    for region in 0..REGIONS {
        subject.write(region * MIB, vec![0; BLOCK as usize]);
    }
    assert!(subject.stack.bring_back("b").unwrap());
    subject.execute(DeviceRequest::Flush).0.unwrap();
    let figures = subject.figures();
    assert_eq!(figures["members_in_sync"], 2.0);
    assert_eq!(figures["resynced_bytes"], (REGIONS * MIB) as f64);
}

#[test]
fn members_of_another_mirror_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mirror = |names: &[&str]| {
        let member = |name: &&str| {
            let backing = BackingSpec::File(directory.path().join(name));
            StackNode::Device(DeviceSpec::new(*name, None, 16 * MIB, backing))
        };
        Stack::open_virtual(&spec(StackNode::Mirror { members: names.iter().map(member).collect() }))
            .map(drop)
    };
    mirror(&["a", "b"]).unwrap();
    mirror(&["a", "b"]).unwrap();
    let problem = mirror(&["a", "b", "c"]).unwrap_err().to_string();
    assert!(problem.contains("member 1 of the mirror") && problem.contains("other members"), "{problem}");
    mirror(&["a", "b"]).unwrap();
}

#[test]
fn cached_second_read_runs_at_cache_speed() {
    let disk = || device("slow", "hdd-7200-sata", 256 * MIB);
    let flash = || device("fast", "nvme-p4500", 16 * MIB);
    let subject = Virtual::open(cache(CacheMode::Read, flash(), disk()));
    subject.write(100 * MIB, pattern(4, 1));
    subject.execute(DeviceRequest::Flush).0.unwrap();
    subject.write(0, pattern(1, 9));
    subject.execute(DeviceRequest::Flush).0.unwrap();
    // Something else, so that the disk's head and its buffer are elsewhere.
    subject.read(200 * MIB, 64 * BLOCK);
    let (first, cold_us) = subject.read(100 * MIB, 4 * BLOCK);
    let (second, warm_us) = subject.read(100 * MIB, 4 * BLOCK);
    assert_eq!((&first, &second), (&pattern(4, 1), &pattern(4, 1)));
    assert!(cold_us > 10.0 * warm_us, "{cold_us} us from the disk, {warm_us} us from the cache");
    assert_eq!(subject.figures()["read_hits"], 4.0);
}

#[test]
fn write_back_flush_skips_slow_device() {
    let disk = device("slow", "hdd-7200-sata", 256 * MIB);
    let subject = Virtual::open(cache(CacheMode::WriteBack, device("fast", "nvme-p4500", 64 * MIB), disk));
    // The first flush may have to flush what was there before.
    subject.execute(DeviceRequest::Flush).0.unwrap();
    subject.stack.begin_measurement(1.0);
    for index in 0..20 {
        subject.write(index * 9 * MIB, pattern(2, index as u8));
        subject.execute(DeviceRequest::Flush).0.unwrap();
    }
    let activity = subject.stack.end_measurement();
    let slow = activity.iter().find(|activity| activity.description.id.name == "slow").unwrap();
    assert_eq!((slow.totals.writes, slow.totals.flushes), (0, 0));
    let figures = subject.figures();
    assert_eq!((figures["write_hits"], figures["dirty_bytes"]), (40.0, 40.0 * BLOCK as f64));
    for index in 0..20 {
        assert_eq!(subject.read(index * 9 * MIB, 2 * BLOCK).0, pattern(2, index as u8));
    }
}

#[test]
fn link_adds_latency_and_bandwidth_each_way() {
    let plain = |link: Option<(f64, f64)>| {
        let device = StackNode::Device(DeviceSpec::new("d", None, 64 * MIB, BackingSpec::Memory));
        Virtual::open(match link {
            None => device,
            Some((bandwidth_mb_s, latency_us)) => {
                StackNode::Link { bandwidth_mb_s, latency_us, member: Box::new(device) }
            }
        })
    };
    assert_eq!(plain(None).read(0, BLOCK).1, 0.0);
    let subject = plain(Some((100.0, 250.0)));
    // There and back, and one megabyte at 100 MB/s either way.
    let near = |took_us: f64, expected_us: f64| assert!((took_us - expected_us).abs() < 1.0, "{took_us}");
    near(subject.execute(DeviceRequest::Flush).1, 500.0);
    near(subject.write(0, pattern(256, 1)), 500.0 + 10485.76);
    let (data, took_us) = subject.read(0, 256 * BLOCK);
    assert_eq!(data, pattern(256, 1));
    near(took_us, 500.0 + 10485.76);
    let no_link = |bandwidth_mb_s, latency_us| {
        let member = Box::new(StackNode::Device(DeviceSpec::new("d", None, MIB, BackingSpec::Memory)));
        Stack::open_virtual(&spec(StackNode::Link { bandwidth_mb_s, latency_us, member })).map(|_| ())
    };
    for (bandwidth_mb_s, latency_us) in [(0.0, 1.0), (f64::NAN, 1.0), (1.0, -1.0), (1.0, f64::INFINITY)] {
        assert!(matches!(no_link(bandwidth_mb_s, latency_us), Err(StackError::Invalid { .. })));
    }
}

/// What volumes of one instance share lies above them: each volume's own limit would let the stripe have it twice.
#[test]
fn link_above_stripe_limits_members_together() {
    const WRITES: u64 = 200;
    let volume = |name: &str| device(name, "ebs-gp3-16k", 64 * MIB);
    let mb_s = |link_mb_s: Option<f64>| {
        let stripe = StackNode::Stripe { chunk_bytes: 512 << 10, members: vec![volume("a"), volume("b")] };
        let subject = Virtual::open(match link_mb_s {
            Some(bandwidth_mb_s) => {
                StackNode::Link { bandwidth_mb_s, latency_us: 0.0, member: Box::new(stripe) }
            }
            None => stripe,
        });
        for index in 0..WRITES {
            let write = DeviceRequest::Write {
                offset_bytes: index * 256 * 1024,
                data: vec![index as u8; 256 << 10],
                fua: false,
            };
            subject.volume().submit(write, Box::new(|done| assert!(done.is_ok())));
        }
        let took_s = subject.driver.run_until_idle().as_ns() as f64 / 1e9;
        (WRITES * 256 * 1024) as f64 / 1e6 / took_s
    };
    // Each volume admits 1,049 MB/s; the first requests' latency is part of the time.
    let (alone, shared) = (mb_s(None), mb_s(Some(1250.0)));
    assert!(alone > 1500.0, "{alone}");
    assert!(shared > 1000.0 && shared <= 1250.0, "{shared}");
}

#[test]
fn compressed_volume_reports_stored_bytes_and_fullness() {
    let member = device("d", "nvme-p4500", 8 * MIB);
    let subject = Virtual::open(compress(CompressionCodec::Lz4, Some(32 * MIB), member));
    assert_eq!(subject.volume().geometry().capacity_bytes, 32 * MIB);
    // Four to one, and one to one.
    for chunk in 0..512 {
        subject.write(chunk * 4 * BLOCK, vec![chunk as u8 | 1; 4 * BLOCK as usize]);
    }
    let figures = subject.figures();
    assert_eq!(figures["logical_bytes"], 8.0 * MIB as f64);
    assert_eq!(figures["used_bytes"], 2.0 * MIB as f64);
    let noise = |seed: u64| -> Vec<u8> {
        let mut state = seed | 1;
        let next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        std::iter::repeat_with(next).take(4 * BLOCK as usize).collect()
    };
    let full = (512..2048u64).find_map(|chunk| {
        let request =
            DeviceRequest::Write { offset_bytes: chunk * 4 * BLOCK, data: noise(chunk), fua: false };
        subject.execute(request).0.err()
    });
    assert_eq!(full, Some(DeviceError::NoSpace));
    assert_eq!(subject.read(600 * 4 * BLOCK, 4 * BLOCK).0, noise(600));
    subject.execute(DeviceRequest::Discard { offset_bytes: 0, length_bytes: 8 * MIB }).0.unwrap();
    subject.write(0, noise(1));
    subject.execute(DeviceRequest::Flush).0.unwrap();
}

#[test]
fn threaded_layers_keep_all_data_over_restart() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, capacity_bytes: u64| {
        let medium = Some(catalogue::find("optane-p4800x").unwrap());
        let backing = BackingSpec::File(directory.path().join(name));
        StackNode::Device(DeviceSpec::new(name, medium, capacity_bytes, backing))
    };
    let mirror = StackNode::Mirror { members: vec![file("a", 64 * MIB), file("b", 64 * MIB)] };
    let root =
        compress(CompressionCodec::Zstd(1), None, cache(CacheMode::WriteBack, file("fast", 8 * MIB), mirror));
    let spec = StackSpec { dilation: 0.1, ..spec(root) };
    let stack = Stack::open(&spec).unwrap();
    let volume = &stack.volumes()[0];
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            scope.spawn(move || {
                for round in 0..40u64 {
                    let offset_bytes = (thread + 4 * (round % 20)) * 3 * BLOCK;
                    let data = pattern(3, (thread * 40 + round) as u8);
                    volume
                        .execute(DeviceRequest::Write {
                            offset_bytes,
                            data: data.clone(),
                            fua: round % 8 == 0,
                        })
                        .unwrap();
                    let buffer = vec![0; data.len()];
                    assert!(volume.execute(DeviceRequest::Read { offset_bytes, buffer }).unwrap() == data);
                }
                volume.execute(DeviceRequest::Flush).unwrap();
            });
        }
    });
    let kinds: Vec<String> = stack.layers().into_iter().map(|layer| layer.name).collect();
    assert_eq!(kinds, ["data.mirror.0", "data.cache.0", "data.compress.0"]);
    drop(stack);
    let stack = Stack::open(&spec).unwrap();
    for thread in 0..4u64 {
        for round in 20..40u64 {
            let offset_bytes = (thread + 4 * (round % 20)) * 3 * BLOCK;
            let buffer = vec![0; 3 * BLOCK as usize];
            let found = stack.volumes()[0].execute(DeviceRequest::Read { offset_bytes, buffer }).unwrap();
            assert!(found == pattern(3, (thread * 40 + round) as u8));
        }
    }
}

#[test]
fn layered_stack_rereads_from_its_text() {
    let root = compress(
        CompressionCodec::Zstd(3),
        Some(MIB),
        cache(CacheMode::Read, device("f", "nvme-p4500", MIB), device("s", "hdd-7200-sata", MIB)),
    );
    let mut written =
        spec(StackNode::Link { bandwidth_mb_s: 1250.0, latency_us: 20.0, member: Box::new(root) });
    written.volumes[0].directories = 4;
    let text = serde_json::to_string(&written).unwrap();
    assert_eq!(serde_json::from_str::<StackSpec>(&text).unwrap(), written);
    // As it was written before volumes could be split.
    let text = text.replace(",\"directories\":4", "");
    assert_eq!(serde_json::from_str::<StackSpec>(&text).unwrap().volumes[0].directories, 1);
}
