//! What a device does with a queue: order, age, and who waits for whom.

use std::collections::HashMap;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use underlay_record::Histogram;
use underlay_storage::catalogue::{self, CatalogueMedium, ModelParameters};
use underlay_storage::medium::{FinishedRequest, MediumModel, ModelOperation, ModelRequest, RequestId};
use underlay_storage::predict::{self, AccessPattern, ClosedLoop, MediumPrediction};
use underlay_storage::stack::InitialState;
use underlay_storage::time::ModelTime;

const DISKS: [&str; 3] = ["hdd-7200-sata", "hdd-7200-sas", "hdd-10k-sas"];
const CACHE_BYTES: f64 = 2097152.0;

fn disk(name: &str, write_cache_bytes: f64) -> CatalogueMedium {
    let mut medium = catalogue::find(name).unwrap();
    if let ModelParameters::Hdd(parameters) = &mut medium.model {
        parameters.write_cache_bytes.value = write_cache_bytes;
    }
    medium
}

fn run(medium: &CatalogueMedium, capacity_bytes: u64, load: &ClosedLoop) -> MediumPrediction {
    predict::closed_loop(&mut *medium.model(capacity_bytes, 1, InitialState::Fresh), load)
}

fn random(pattern: AccessPattern, queue_depth: usize, warmup: u64) -> ClosedLoop {
    ClosedLoop { pattern, block_bytes: 4096, queue_depth, requests: 4000, warmup, seed: 3 }
}

#[test]
fn write_cache_never_costs_throughput() {
    for name in DISKS {
        let (cached_disk, uncached_disk) = (disk(name, CACHE_BYTES), disk(name, 0.0));
        let whole = cached_disk.capacity_bytes();
        let direct = run(&uncached_disk, whole, &random(AccessPattern::RandomWrite, 32, 1000)).iops;
        for queue_depth in [1, 32] {
            let cached =
                run(&cached_disk, whole, &random(AccessPattern::RandomWrite, queue_depth, 3000)).iops;
            assert!(cached > 0.97 * direct, "{name} at {queue_depth}: {cached} cached, {direct} without");
        }
    }
}

#[test]
fn queue_deeper_than_disk_sees_costs_nothing() {
    for name in DISKS {
        let medium = catalogue::find(name).unwrap();
        let iops_at_depth = |depth| {
            run(&medium, medium.capacity_bytes(), &random(AccessPattern::RandomRead, depth, 500)).iops
        };
        let (seen, deeper) = (iops_at_depth(32), iops_at_depth(128));
        assert!(deeper > 0.95 * seen, "{name}: {seen} at 32, {deeper} at 128");
    }
}

/// Keeps `readers` random reads and `writers` random writes of 4 KiB in flight; the reads' latencies, all
/// requests a second, and how long a flush took that came in their midst.
fn mixed(medium: &CatalogueMedium, readers: u64, writers: u64, requests: u64) -> (Histogram, f64, f64) {
    let capacity_bytes = medium.capacity_bytes();
    let mut model = medium.model(capacity_bytes, 1, InitialState::Fresh);
    let mut random = Pcg64Mcg::seed_from_u64(9);
    let mut under_way: HashMap<RequestId, (ModelOperation, ModelTime)> = HashMap::new();
    let mut reads = Histogram::default();
    let (mut next, mut over, mut flush_s) = (0, 0, f64::NAN);
    let mut now = ModelTime::ZERO;
    let mut due: Vec<ModelOperation> = (0..readers).map(|_| ModelOperation::Read).collect();
    due.extend((0..writers).map(|_| ModelOperation::Write));
    let mut finished: Vec<FinishedRequest> = Vec::new();
    while over < requests || flush_s.is_nan() {
        for operation in due.drain(..) {
            let flush = operation == ModelOperation::Flush;
            let offset_bytes = if flush { 0 } else { random.random_range(0..capacity_bytes / 4096) * 4096 };
            let length_bytes = if flush { 0 } else { 4096 };
            let id = RequestId(next);
            next += 1;
            model.submit(ModelRequest { id, operation, offset_bytes, length_bytes, fua: false }, now);
            under_way.insert(id, (operation, now));
        }
        now = now.max(model.next_completion().unwrap());
        model.complete(now, &mut finished);
        for FinishedRequest { id, at: finished_at } in finished.drain(..) {
            let (operation, submitted_at) = under_way.remove(&id).unwrap();
            over += 1;
            match operation {
                ModelOperation::Flush => flush_s = finished_at.duration_since(submitted_at).as_secs_f64(),
                ModelOperation::Read => {
                    reads.record_ns(finished_at.duration_since(submitted_at).as_nanos() as u64);
                    due.push(operation);
                }
                _ => due.push(operation),
            }
            if over == requests / 2 {
                due.push(ModelOperation::Flush);
            }
        }
        assert!(now.as_ns() < 3_600_000_000_000, "no end of the flush");
    }
    (reads, over as f64 / now.duration_since(ModelTime::ZERO).as_secs_f64(), flush_s)
}

#[test]
fn reads_are_not_starved_by_a_full_write_cache() {
    for name in DISKS {
        let medium = disk(name, CACHE_BYTES);
        let direct = run(&medium, medium.capacity_bytes(), &random(AccessPattern::RandomRead, 32, 500)).iops;
        for (readers, writers) in [(1, 32), (16, 16), (8, 1)] {
            let (reads, iops, _) = mixed(&medium, readers, writers, 8000);
            assert!(
                reads.quantile_us(0.5) < 500e3,
                "{name}, {readers} and {writers}: {}",
                reads.quantile_us(0.5)
            );
            assert!(iops > 0.7 * direct, "{name}, {readers} and {writers}: {iops} of {direct} IOPS");
        }
    }
}

#[test]
fn flush_completes_despite_many_readers() {
    for name in DISKS {
        let medium = disk(name, 65536.0);
        let (_, _, flush_s) = mixed(&medium, 128, 4, 3000);
        // Sixteen extents that wait, each for the age bound at the worst.
        assert!(flush_s < 8.0, "{name}: {flush_s} s");
    }
}

#[test]
fn request_wait_stays_near_age_bound() {
    // Among so few cylinders at the start, one request that lies far away is never the nearest.
    let medium = catalogue::find("hdd-7200-sas").unwrap();
    let mut model = medium.model(medium.capacity_bytes(), 1, InitialState::Fresh);
    let mut random = Pcg64Mcg::seed_from_u64(4);
    let read = |id, offset_bytes| ModelRequest {
        id: RequestId(id),
        operation: ModelOperation::Read,
        offset_bytes,
        length_bytes: 4096,
        fua: false,
    };
    let far = RequestId(40);
    let mut now = ModelTime::ZERO;
    let mut near = |model: &mut dyn MediumModel, id, now| {
        model.submit(read(id, random.random_range(0..100_000) * 4096), now);
    };
    (0..31).for_each(|id| near(&mut *model, id, now));
    model.submit(read(far.0, 900_000_000_000 / 4096 * 4096), now);
    let mut next = 100;
    let mut finished = Vec::new();
    loop {
        now = model.next_completion().unwrap();
        model.complete(now, &mut finished);
        if finished.iter().any(|finished| finished.id == far) {
            break;
        }
        for _ in finished.drain(..) {
            near(&mut *model, next, now);
            next += 1;
        }
    }
    let waited_ms = now.as_ns() / 1_000_000;
    assert!((450..1000).contains(&waited_ms), "{waited_ms} ms");
}

#[test]
fn random_writes_within_a_few_files_are_random() {
    for name in ["nvme-p4500", "ssd-sata"] {
        let medium = catalogue::find(name).unwrap();
        let steady = |window_bytes: u64| {
            let mut model = Confined {
                model: medium.model(medium.capacity_bytes(), 1, InitialState::Steady),
                window_bytes,
            };
            let load = ClosedLoop { requests: 40_000, ..random(AccessPattern::RandomWrite, 64, 100_000) };
            predict::closed_loop(&mut model, &load).iops
        };
        let (everywhere, confined) = (steady(medium.capacity_bytes()), steady(256 << 20));
        assert!(
            (confined / everywhere - 1.0).abs() < 0.1,
            "{name}: {everywhere} everywhere, {confined} confined"
        );
    }
}

/// A model that shows the load its first bytes only.
struct Confined {
    model: Box<dyn MediumModel>,
    window_bytes: u64,
}

impl MediumModel for Confined {
    fn capacity_bytes(&self) -> u64 {
        self.window_bytes
    }
    fn submit(&mut self, request: ModelRequest, now: ModelTime) {
        self.model.submit(request, now);
    }
    fn next_completion(&self) -> Option<ModelTime> {
        self.model.next_completion()
    }
    fn complete(&mut self, now: ModelTime, finished: &mut Vec<FinishedRequest>) {
        self.model.complete(now, finished);
    }
    fn absorb(&mut self, request: ModelRequest) {
        self.model.absorb(request);
    }
}

#[test]
fn small_disk_streams_as_fast_and_caches_less() {
    for name in DISKS {
        let medium = catalogue::find(name).unwrap();
        let load = ClosedLoop { block_bytes: 131_072, ..random(AccessPattern::SequentialRead, 1, 100) };
        let (whole, small) =
            (run(&medium, medium.capacity_bytes(), &load).mb_s, run(&medium, 2 << 30, &load).mb_s);
        // It goes on from the outer to the inner zones, where the whole disk stays outside.
        let load = ClosedLoop { requests: 500, ..load };
        let start = run(&medium, 2 << 30, &load).mb_s;
        assert!(start > 0.95 * whole, "{name}: {whole} MB/s whole, {start} and then {small} small");

        // Reads far apart, each followed by a full read-ahead: which of them are still remembered?
        let remembered = |capacity_bytes: u64| {
            let mut model = medium.model(capacity_bytes, 1, InitialState::Fresh);
            let mut now = ModelTime::ZERO;
            let mut read = |index: u64, place: u64| {
                let request = ModelRequest {
                    id: RequestId(index),
                    operation: ModelOperation::Read,
                    offset_bytes: place,
                    length_bytes: 4096,
                    fua: false,
                };
                model.submit(request, now);
                let (submitted, mut finished) = (now, Vec::new());
                while finished.is_empty() {
                    model.complete(model.next_completion().unwrap(), &mut finished);
                }
                now = ModelTime::from_ns(finished[0].at.as_ns() + 100_000_000);
                finished[0].at.duration_since(submitted).as_micros()
            };
            let place = |index: u64| capacity_bytes / 20 * index / 4096 * 4096;
            (0..16).for_each(|index| {
                read(index, place(index));
            });
            (0..16).filter(|&index| read(100 + index, place(15 - index)) < 500).count()
        };
        let (whole, small) = (remembered(medium.capacity_bytes()), remembered(2 << 30));
        assert!(whole >= 14 && (1..=5).contains(&small), "{name}: {whole} whole, {small} small");
    }
}
