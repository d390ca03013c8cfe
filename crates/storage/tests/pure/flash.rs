//! What flash does over its life: fresh, steady, discarded, worn; and what its garbage collection does to reads.

use std::collections::HashMap;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use underlay_record::{FlashWear, Histogram};
use underlay_storage::backing::NullBacking;
use underlay_storage::catalogue::{self, CatalogueMedium, FlashParameters, ModelParameters, SourcedQuantity};
use underlay_storage::clock::VirtualClock;
use underlay_storage::device::{BlockDevice, DeviceRequest};
use underlay_storage::media::flash::ftl::uniform_write_amplification;
use underlay_storage::medium::{FinishedRequest, MediumModel, ModelOperation, ModelRequest, RequestId};
use underlay_storage::paced::{Paced, run_until_idle};
use underlay_storage::stack::{
    BackingSpec, DeviceSpec, InitialState, PacingMode, Stack, StackSpec, VolumeSpec,
};
use underlay_storage::time::ModelTime;

const MIB: u64 = 1 << 20;

fn parameters(medium: &mut CatalogueMedium) -> &mut FlashParameters {
    match &mut medium.model {
        ModelParameters::Flash(parameters) => parameters,
        _ => panic!("no flash"),
    }
}

/// A model and the load on it.
struct Bench {
    model: Box<dyn MediumModel>,
    now: ModelTime,
    random: Pcg64Mcg,
    next: u64,
}

/// What is kept in flight.
#[derive(Clone, Copy)]
struct Load {
    readers: usize,
    writers: usize,
    block_bytes: u64,
    /// Else one after another from the device's start.
    random: bool,
    requests: u64,
}

const WRITES: Load = Load { readers: 0, writers: 32, block_bytes: 4096, random: true, requests: 40_000 };

struct Outcome {
    reads: Histogram,
    iops: f64,
}

impl Bench {
    fn new(medium: &CatalogueMedium, capacity_bytes: u64, initial: InitialState) -> Bench {
        let model = medium.model(capacity_bytes, 1, initial);
        Bench { model, now: ModelTime::ZERO, random: Pcg64Mcg::seed_from_u64(7), next: 0 }
    }

    fn submit(&mut self, operation: ModelOperation, offset_bytes: u64, length_bytes: u64) -> RequestId {
        let id = RequestId(self.next);
        self.next += 1;
        self.model.submit(ModelRequest { id, operation, offset_bytes, length_bytes, fua: false }, self.now);
        id
    }

    fn run(&mut self, load: Load) -> Outcome {
        let blocks = self.model.capacity_bytes() / load.block_bytes;
        let began = self.now;
        let mut due: Vec<ModelOperation> = vec![ModelOperation::Read; load.readers];
        due.extend(vec![ModelOperation::Write; load.writers]);
        let mut under_way: HashMap<RequestId, (ModelOperation, ModelTime)> = HashMap::new();
        let mut reads = Histogram::default();
        let mut finished: Vec<FinishedRequest> = Vec::new();
        let (mut over, mut position) = (0, 0);
        while over < load.requests {
            for operation in due.drain(..) {
                let block = if load.random { self.random.random_range(0..blocks) } else { position % blocks };
                position += 1;
                let id = RequestId(self.next);
                self.next += 1;
                let (offset_bytes, length_bytes) = (block * load.block_bytes, load.block_bytes);
                self.model
                    .submit(ModelRequest { id, operation, offset_bytes, length_bytes, fua: false }, self.now);
                under_way.insert(id, (operation, self.now));
            }
            self.now = self.now.max(self.model.next_completion().unwrap());
            self.model.complete(self.now, &mut finished);
            for FinishedRequest { id, at: finished_at } in finished.drain(..) {
                let (operation, submitted_at) = under_way.remove(&id).unwrap();
                over += 1;
                if operation == ModelOperation::Read {
                    reads.record_ns(finished_at.duration_since(submitted_at).as_nanos() as u64);
                }
                due.push(operation);
            }
        }
        let iops = over as f64 / self.now.duration_since(began).as_secs_f64();
        while let Some(completed_at) = self.model.next_completion() {
            self.now = self.now.max(completed_at);
            self.model.complete(self.now, &mut finished);
        }
        Outcome { reads, iops }
    }

    fn discard_all(&mut self) {
        self.submit(ModelOperation::Discard, 0, self.model.capacity_bytes());
        while let Some(completed_at) = self.model.next_completion() {
            self.model.complete(completed_at, &mut Vec::new());
        }
    }

    fn wear(&self) -> FlashWear {
        self.model.wear().unwrap()
    }
}

#[test]
fn fresh_device_falls_to_steady_state() {
    let medium = catalogue::find("nvme-p4500").unwrap();
    let capacity = 512 * MIB;
    let units = capacity / 4096;
    let mut bench = Bench::new(&medium, capacity, InitialState::Fresh);
    let fresh = bench.run(WRITES).iops;
    // As fast as it programs: 1,050 MB/s.
    assert!((fresh * 4096.0 / 1050e6 - 1.0).abs() < 0.1, "{fresh}");
    let still_fresh = bench.run(Load { requests: units * 9 / 10 - WRITES.requests, ..WRITES }).iops;
    assert!((still_fresh / fresh - 1.0).abs() < 0.05, "{fresh}, then {still_fresh}");
    let stream = Load { block_bytes: 131_072, random: false, requests: capacity / 131_072, ..WRITES };
    bench.run(stream);
    bench.run(Load { requests: 4 * units, ..WRITES });
    let fallen = bench.run(Load { requests: units / 2, ..WRITES }).iops;
    let mut steady = Bench::new(&medium, capacity, InitialState::Steady);
    steady.run(WRITES);
    let opened = steady.run(Load { requests: units / 2, ..WRITES }).iops;
    eprintln!("{fresh:.0} fresh, {fallen:.0} fallen, {opened:.0} opened in the steady state");
    assert!((opened / fallen - 1.0).abs() < 0.05, "{fallen} fallen, {opened} opened");
    // 38,000 as published, of the whole device.
    assert!((fallen / 38_000.0 - 1.0).abs() < 0.1, "{fallen}");
    let wear = steady.wear().delta_since(&FlashWear::default(), 1.0);
    let found = wear.write_amplification.unwrap();
    let expected = uniform_write_amplification(0.082);
    assert!((found / expected - 1.0).abs() < 0.06, "{found}, {expected} expected");

    steady.discard_all();
    let again = steady.run(WRITES).iops;
    assert!((again / fresh - 1.0).abs() < 0.05, "{fresh} fresh, {again} after a discard of all");
}

#[test]
fn sequential_writes_win_a_steady_device_back() {
    let medium = catalogue::find("nvme-p4500").unwrap();
    let mut bench = Bench::new(&medium, 512 * MIB, InitialState::Steady);
    let stream = Load { block_bytes: 131_072, random: false, requests: 4096, ..WRITES };
    let first = bench.run(stream).iops * 0.131_072;
    bench.run(stream);
    bench.run(stream);
    let worn = bench.wear();
    let later = bench.run(stream).iops * 0.131_072;
    eprintln!("{first:.0} MB/s at first, {later:.0} later");
    assert!(first < 700.0 && (later / 1050.0 - 1.0).abs() < 0.05, "{first} MB/s at first, {later} later");
    let found = bench.wear().delta_since(&worn, 1.0).write_amplification.unwrap();
    assert!(found < 1.03, "{found}");
}

#[test]
fn garbage_collection_shows_in_the_tail_of_reads() {
    for name in ["nvme-p4500", "nvme-9300-max"] {
        let medium = catalogue::find(name).unwrap();
        let mixed = |writers, initial| {
            let mut bench = Bench::new(&medium, 1024 * MIB, initial);
            bench.run(WRITES);
            bench.run(Load { readers: 4, writers, ..WRITES }).reads
        };
        let idle = mixed(0, InitialState::Steady);
        let fresh = mixed(32, InitialState::Fresh);
        let steady = mixed(32, InitialState::Steady);
        let quantile_us = |reads: &Histogram, quantile| reads.quantile_us(quantile);
        for (state, reads) in [("idle", &idle), ("fresh", &fresh), ("steady", &steady)] {
            eprintln!(
                "{name}, {state}: p50 {:.0}, p99 {:.0}, p99.9 {:.0}, most {:.0} us",
                quantile_us(reads, 0.5),
                quantile_us(reads, 0.99),
                quantile_us(reads, 0.999),
                quantile_us(reads, 1.0)
            );
        }
        // Programs are there either way; erases only where blocks are used again.
        assert!(quantile_us(&fresh, 0.99) > quantile_us(&idle, 0.99) + 20.0, "{name}");
        assert!(quantile_us(&steady, 0.999) > quantile_us(&fresh, 0.999), "{name}");
        // The longest: an erase to suspend, a slow page, a few pages on the channel, and a few reads of the
        // same die.
        assert!(quantile_us(&steady, 1.0) < 1500.0, "{name}: {}", quantile_us(&steady, 1.0));
    }
}

#[test]
fn read_waits_for_erase_as_medium_states() {
    let mut slowest = [0.0; 2];
    for (index, suspend_us) in [100.0, 3500.0].into_iter().enumerate() {
        let mut medium = catalogue::find("nvme-p4500").unwrap();
        parameters(&mut medium).erase_suspend_us.value = suspend_us;
        let mut bench = Bench::new(&medium, 1024 * MIB, InitialState::Steady);
        bench.run(WRITES);
        let reads = bench.run(Load { readers: 1, requests: 400_000, ..WRITES }).reads;
        slowest[index] = reads.quantile_us(1.0);
    }
    eprintln!("{slowest:?}");
    assert!(slowest[0] < 700.0 && (2000.0..4500.0).contains(&slowest[1]), "{slowest:?}");
}

#[test]
fn write_in_place_has_no_steady_state() {
    let medium = catalogue::find("optane-p4800x").unwrap();
    let iops = [InitialState::Fresh, InitialState::Steady].map(|initial| {
        let mut bench = Bench::new(&medium, 64 * MIB, initial);
        let iops = bench.run(Load { requests: 100_000, ..WRITES }).iops;
        let wear = bench.wear().delta_since(&FlashWear::default(), 1.0);
        assert_eq!((wear.write_amplification, wear.erased_blocks), (Some(1.0), 0));
        iops
    });
    assert_eq!(iops[0], iops[1]);
}

#[test]
fn consumer_ssd_cache_fills_and_empties() {
    let mut medium = catalogue::find("nvme-p4500").unwrap();
    let quantity = |value| Some(SourcedQuantity { value, source: "test".into(), estimate: true });
    let flash = parameters(&mut medium);
    flash.slc_cache_bytes = quantity(200e9);
    flash.slc_program_mb_s = quantity(2500.0);
    // A tenth of the device: 205 MB of cache on 2,048 MB.
    let capacity = 2_048_000_000 / 4096 * 4096;
    let mut bench = Bench::new(&medium, capacity, InitialState::Fresh);
    let write = |bench: &mut Bench, mb: u64| {
        let load = Load { block_bytes: 131_072, random: false, requests: mb * 1_000_000 / 131_072, ..WRITES };
        bench.run(load).iops * 0.131_072
    };
    let cached = write(&mut bench, 150);
    write(&mut bench, 200);
    let direct = write(&mut bench, 200);
    // Half of what is cached is moved on meanwhile, at 1,050 MB/s.
    bench.now = ModelTime::from_ns(bench.now.as_ns() + 150_000_000);
    let again = write(&mut bench, 120);
    eprintln!("{cached:.0} MB/s cached, {direct:.0} direct, {again:.0} again");
    assert!((cached / 2500.0 - 1.0).abs() < 0.05 && (direct / 1050.0 - 1.0).abs() < 0.05);
    assert!((again / 2500.0 - 1.0).abs() < 0.1, "{again}");
    let wear = bench.wear();
    let folded = wear.programmed_bytes - wear.host_write_bytes;
    assert!((130_000_000..170_000_000).contains(&folded), "{folded}");
}

#[test]
fn wear_is_what_was_written_and_moved() {
    let medium = catalogue::find("ssd-sata").unwrap();
    let mut bench = Bench::new(&medium, 512 * MIB, InitialState::Steady);
    let before = bench.wear();
    assert_eq!(before.host_write_bytes, 0, "the steady state is where counting begins");
    bench.run(Load { requests: 262_144, ..WRITES });
    let wear = bench.wear().delta_since(&before, 86_400.0);
    // One GiB, and the writes that were in flight at the end.
    assert!((1024 * MIB..1025 * MIB).contains(&wear.host_write_bytes), "{wear:?}");
    let found = wear.write_amplification.unwrap();
    let expected = uniform_write_amplification(0.145);
    assert!((found / expected - 1.0).abs() < 0.05, "{found}, {expected} expected");
    let block_bytes = 16_384.0 * 768.0;
    let erased = wear.erased_blocks as f64 * block_bytes;
    assert!((erased / wear.programmed_bytes as f64 - 1.0).abs() < 0.02, "{wear:?}");
    // 1,752 TB at a GiB a day.
    assert!((wear.life_days.unwrap() / 1_631_652.0 - 1.0).abs() < 0.01, "{wear:?}");
    let none = bench.wear().delta_since(&bench.wear(), 1.0);
    assert_eq!((none.write_amplification, none.life_days), (None, None));
}

fn stack(name: &str, initial: InitialState) -> StackSpec {
    let medium = catalogue::find(name).unwrap();
    let mut device = DeviceSpec::new("device.0", Some(medium), 64 * MIB, BackingSpec::Null);
    device.initial = initial;
    let volume = VolumeSpec::striped("volume", vec![device], 0);
    StackSpec { volumes: vec![volume], dilation: 1.0, seed: 1 }
}

#[test]
fn measurement_covers_wear_since_its_start() {
    let (stack_, driver) = Stack::open_virtual(&stack("nvme-p4500", InitialState::Steady)).unwrap();
    let volume = &stack_.volumes()[0];
    let write = |index: u64| {
        let offset_bytes = index.wrapping_mul(0x9E37_79B9_7F4A_7C15) % (64 * MIB / 4096) * 4096;
        volume
            .submit(DeviceRequest::Write { offset_bytes, data: vec![0; 4096], fua: false }, Box::new(|_| ()));
    };
    // Fast-forward counts, but not in what is measured later.
    stack_.set_pace(PacingMode::Immediate);
    (0..5000).for_each(write);
    stack_.set_pace(PacingMode::Modelled);
    stack_.begin_measurement(1.0);
    (5000..7000).for_each(write);
    driver.run_until_idle();
    let wear = stack_.end_measurement().remove(0).wear.expect("flash wears");
    assert_eq!(wear.host_write_bytes, 2000 * 4096);
    assert!(wear.write_amplification.unwrap() > 3.0 && wear.life_days.unwrap() > 0.0, "{wear:?}");

    let (stack_, _driver) = Stack::open_virtual(&stack("hdd-7200-sata", InitialState::Steady)).unwrap();
    stack_.begin_measurement(1.0);
    assert_eq!(stack_.end_measurement().remove(0).wear, None);
}

#[test]
fn fast_forward_wears_as_time_does() {
    let medium = catalogue::find("nvme-p4500").unwrap();
    let wear = [true, false].map(|absorb| {
        let clock = std::sync::Arc::new(VirtualClock::default());
        let model = medium.model(64 * MIB, 1, InitialState::Steady);
        let device = Paced::new(64 * MIB, std::sync::Arc::new(NullBacking), Some(model), clock.clone());
        if absorb {
            device.set_pace(PacingMode::Immediate);
        }
        device.begin_measurement(std::time::Duration::MAX);
        let mut random = Pcg64Mcg::seed_from_u64(3);
        for _ in 0..20_000 {
            let offset_bytes = random.random_range(0..64 * MIB / 4096) * 4096;
            let request = DeviceRequest::Write { offset_bytes, data: vec![0; 4096], fua: false };
            device.submit(request, Box::new(|_| ()));
            run_until_idle(std::slice::from_ref(&device), &clock);
        }
        let wear = device.end_wear(std::time::Duration::from_secs(1)).unwrap();
        (wear.host_write_bytes, wear.programmed_bytes, wear.erased_blocks)
    });
    assert_eq!(wear[0], wear[1]);
}

/// A hash (FNV-1a) of all answers to a mixture of requests.
fn fingerprint(name: &str, initial: InitialState) -> u64 {
    let medium = catalogue::find(name).unwrap();
    let mut model = medium.model(1024 * MIB, 5, initial);
    let mut random = Pcg64Mcg::seed_from_u64(11);
    let (mut now, mut finished) = (ModelTime::ZERO, Vec::new());
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for id in 0..20_000 {
        now = ModelTime::from_ns(now.as_ns() + random.random_range(0..30_000));
        while let Some(next) = model.next_completion().filter(|next| *next <= now) {
            model.complete(next, &mut finished);
        }
        let operation = match random.random_range(0..20) {
            0..8 => ModelOperation::Read,
            8..18 => ModelOperation::Write,
            18 => ModelOperation::Flush,
            _ => ModelOperation::Discard,
        };
        let length_bytes =
            if operation == ModelOperation::Flush { 0 } else { 4096 << random.random_range(0..5) };
        let offset_bytes = random.random_range(0..1024 * MIB / 65_536) * 65_536;
        let fua = operation == ModelOperation::Write && random.random_range(0..10) == 0;
        model.submit(ModelRequest { id: RequestId(id), operation, offset_bytes, length_bytes, fua }, now);
    }
    while let Some(next) = model.next_completion() {
        model.complete(next, &mut finished);
    }
    assert_eq!(finished.len(), 20_000);
    for FinishedRequest { id, at: finished_at } in finished {
        hash = (hash ^ id.0 ^ finished_at.as_ns()).wrapping_mul(0x0100_0000_01b3);
    }
    hash
}

/// The hashes are those of the model before it had dies, buffers and firmware: media without them have not changed.
#[test]
fn media_without_firmware_answer_as_before() {
    for (name, initial, expected) in [
        ("nvme-p4500", InitialState::Steady, 0xa0f2_e751_00e1_fa86),
        ("nvme-7450-pro", InitialState::Steady, 0x397a_e908_747d_a7a1),
        ("ssd-sata", InitialState::Steady, 0xf0bd_dad0_6d87_d080),
        ("nvme-990-pro", InitialState::Fresh, 0x707b_d3da_d095_0e83),
        ("optane-p4800x", InitialState::Fresh, 0x6c1f_4f44_53e4_98ab),
    ] {
        assert_eq!(fingerprint(name, initial), expected, "{name}");
    }
}
