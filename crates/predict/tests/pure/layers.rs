//! Caches, pools and directories of unlike devices, in virtual time.

use std::sync::Arc;

use crate::support::{measured, point, read_demand, record, storage};
use underlay_predict::demand::{BackgroundDemand, MixDemand, OperationClass};
use underlay_predict::outcome::SimulationOutcome;
use underlay_predict::simulation::{self, OperationArrivals, SimulationScenario};
use underlay_predict::{Calibration, CellPoint, PredictionRefusal};
use underlay_storage::catalogue;
use underlay_storage::layers::cache::CacheMode;
use underlay_storage::layers::compress::CompressionCodec;
use underlay_storage::stack::{BackingSpec, DeviceSpec, StackNode, VolumeSpec};

fn reading(reads: f64) -> MixDemand {
    read_demand(20.0, reads)
}

/// Every operation writes, and leaves a request of the background of this length.
fn writing(request_bytes: f64, commits: bool) -> MixDemand {
    let class = OperationClass {
        name: "update".to_owned(),
        share: 1.0,
        cpu_us: 20.0,
        reads: 0.0,
        read_bytes: 4096.0,
        is_sequential: false,
        writes: true,
        commits,
    };
    let background = BackgroundDemand {
        write_bytes: if commits { 0.0 } else { request_bytes },
        write_request_bytes: request_bytes,
        ..BackgroundDemand::default()
    };
    MixDemand { classes: vec![class], background, commit_bytes: commits.then_some(4096.0) }
}

fn device(name: &str, medium: &str, capacity_bytes: u64) -> DeviceSpec {
    DeviceSpec::new(name, Some(catalogue::find(medium).unwrap()), capacity_bytes, BackingSpec::Null)
}

/// In front of the disk that `storage` has.
fn cached(mode: CacheMode, capacity_bytes: u64) -> Vec<VolumeSpec> {
    let fast = StackNode::Device(device("optane-p4800x.cache-0", "optane-p4800x", capacity_bytes));
    let slow = storage("hdd-7200-sata", 1).remove(0).root;
    vec![VolumeSpec::new("volume", StackNode::cache(mode, fast, slow))]
}

fn simulate(
    demand: &MixDemand,
    volumes: &[VolumeSpec],
    cached: f64,
    shares_devices: bool,
) -> SimulationOutcome {
    simulation::simulate(SimulationScenario {
        demand,
        volumes,
        shares_devices,
        cached,
        footprint_bytes: 1 << 30,
        device_speed: 1.0,
        cores: Some(16),
        cores_at_once: None,
        threads: 16,
        arrivals: OperationArrivals::Closed,
        operations: 3_000,
        seed: 5,
    })
    .unwrap()
}

#[test]
fn cache_answers_its_share_and_disk_the_rest() {
    let demand = reading(1.0);
    let volumes = cached(CacheMode::Read, 1 << 28);
    let alone = simulate(&demand, &storage("hdd-7200-sata", 1), 0.0, false);
    let [none, half, all] = [0.0, 0.5, 1.0].map(|share| simulate(&demand, &volumes, share, false));
    assert!((none.throughput_per_s / alone.throughput_per_s - 1.0).abs() < 0.1, "{none:?} {alone:?}");
    // The disk has half of the requests, so there are twice as many.
    let gain = half.throughput_per_s / none.throughput_per_s;
    assert!((1.7..2.3).contains(&gain), "{gain}");
    assert!(all.throughput_per_s > 100.0 * none.throughput_per_s);
    assert!(all.p99_us < 1_000.0 && half.p99_us > 10_000.0, "{} {}", all.p99_us, half.p99_us);
    assert_eq!(half.cache_full_s, None);
}

#[test]
fn write_back_cache_spares_disk_flushes() {
    let demand = writing(4096.0, true);
    let [through, back] = [CacheMode::Read, CacheMode::WriteBack]
        .map(|mode| simulate(&demand, &cached(mode, 1 << 28), 0.0, false));
    assert!(back.throughput_per_s > 20.0 * through.throughput_per_s, "{back:?} {through:?}");
}

#[test]
fn filling_write_back_cache_is_reported() {
    // More small writes than a disk takes back.
    let fills = simulate(&writing(4096.0, false), &cached(CacheMode::WriteBack, 1 << 30), 0.0, false);
    assert!(fills.cache_full_s.is_some_and(|seconds| seconds > 0.0), "{fills:?}");
    // What is longer than it takes passes by.
    let passes = simulate(&writing(524_288.0, false), &cached(CacheMode::WriteBack, 1 << 30), 0.0, false);
    assert_eq!(passes.cache_full_s, None);
}

#[test]
fn directories_share_as_they_are_many() {
    let hybrid = |directories: u32| {
        let fast = VolumeSpec::striped("volume", vec![device("fast", "nvme-9300-max", 1 << 31)], 1 << 19);
        vec![
            VolumeSpec::striped("volume", vec![device("slow", "hdd-7200-sata", 1 << 31)], 1 << 19),
            VolumeSpec { directories, ..fast },
        ]
    };
    let [few, many] = [1, 9].map(|directories| simulate(&reading(1.0), &hybrid(directories), 0.0, false));
    // The disk has half of the reads, or a tenth, and then they are nearer to each other too.
    let gain = many.throughput_per_s / few.throughput_per_s;
    assert!((4.0..16.0).contains(&gain), "{gain}");
}

#[test]
fn volumes_of_a_pool_share_its_devices() {
    let volume = || VolumeSpec::striped("volume", vec![device("one", "hdd-7200-sata", 1 << 31)], 1 << 19);
    let own = simulate(&reading(1.0), &[volume(), volume()], 0.0, false);
    let shared = simulate(&reading(1.0), &[volume(), volume()], 0.0, true);
    let gain = own.throughput_per_s / shared.throughput_per_s;
    assert!((1.5..2.3).contains(&gain), "{gain}");
    // Two copies: each device in two mirrors, and a flush reaches it once.
    let node = |index: usize| StackNode::Device(device(["a", "b", "c"][index % 3], "ssd-sata", 1 << 31));
    let mirror = |index| StackNode::Mirror { members: vec![node(index), node(index + 1)] };
    let members = (0..3).map(mirror).collect();
    let pool = [VolumeSpec::new("volume", StackNode::Stripe { chunk_bytes: 1 << 18, members })];
    let mirrored = simulate(&writing(65_536.0, false), &pool, 0.0, true);
    let members = (0..3).map(node).collect();
    let plain = [VolumeSpec::new("volume", StackNode::Stripe { chunk_bytes: 1 << 18, members })];
    let plain = simulate(&writing(65_536.0, false), &plain, 0.0, true);
    let ratio = plain.throughput_per_s / mirrored.throughput_per_s;
    assert!((1.5..2.5).contains(&ratio), "each write is two: {ratio}");
}

fn on_disks() -> Calibration {
    // Two storages: from one alone nothing can be said of another.
    let measured_ones =
        [("hdd", "hdd-7200-sata", 2e5), ("hdd", "hdd-7200-sata", 4e5), ("ssd", "ssd-sata", 4e5)];
    let cells = measured_ones.map(|(name, medium, records)| {
        let point = point(name, storage(medium, 1), records, 16);
        let miss = 1.0 - 0.6 * point.memory_bytes / point.data_bytes();
        let record = record(&point, &reading(1.2 * miss), 1.05);
        Arc::new(measured(point, &[record]))
    });
    Calibration::new(cells.into())
}

#[test]
fn cache_over_measured_disks_is_predicted() {
    let calibration = on_disks();
    let ask = |volumes: Vec<VolumeSpec>, change: fn(&mut CellPoint)| {
        let mut asked = point("cached", volumes, 4e5, 16);
        change(&mut asked);
        calibration.predict(&asked)
    };
    let plain = ask(storage("hdd-7200-sata", 1), |_| {}).unwrap();
    assert_eq!(plain.cached_share, None);
    let [small, large] = [1 << 26, 1 << 28].map(|bytes| ask(cached(CacheMode::Read, bytes), |_| {}).unwrap());
    let [few, many] = [&small, &large].map(|answer| answer.cached_share.unwrap());
    assert!(few < many && many > 0.4, "{few} {many}");
    assert!(plain.throughput_per_s.value < small.throughput_per_s.value);
    assert!(small.throughput_per_s.value < large.throughput_per_s.value);
    // A study measures before it is full, and that is said.
    let young = ask(cached(CacheMode::Read, 1 << 28), |point| point.filled_by = Some(10_000.0)).unwrap();
    assert!(young.cached_share.unwrap() < many, "{young:?}");
    assert!(young.assumptions.iter().any(|text| text.contains("not full")), "{:?}", young.assumptions);
    let empty = ask(cached(CacheMode::Read, 1 << 28), |point| point.filled_by = Some(0.0)).unwrap();
    assert_eq!(empty.cached_share, Some(0.0));
}

#[test]
fn unknown_layers_are_refused() {
    let calibration = on_disks();
    let refused = |root: StackNode| {
        let asked = point("odd", vec![VolumeSpec::new("volume", root)], 4e5, 16);
        match calibration.predict(&asked).unwrap_err() {
            PredictionRefusal::Layer { what: layer } => layer,
            other => panic!("{other:?}"),
        }
    };
    let disk = || StackNode::Device(device("one", "hdd-7200-sata", 1 << 31));
    assert!(refused(StackNode::compress(CompressionCodec::Lz4, disk())).contains("shrinks"));
    let stripe = StackNode::Stripe { chunk_bytes: 1 << 19, members: vec![disk(), disk()] };
    assert!(refused(StackNode::cache(CacheMode::Read, stripe.clone(), disk())).contains("several devices"));
    let below = StackNode::cache(CacheMode::Read, disk(), disk());
    assert!(
        refused(StackNode::Mirror { members: vec![below.clone(), disk()] }).contains("below another layer")
    );
    assert!(refused(StackNode::cache(CacheMode::Read, disk(), below)).contains("below another layer"));
}
