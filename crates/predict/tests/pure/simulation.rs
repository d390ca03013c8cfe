//! The simulated network against what is known of queueing networks.

use std::collections::VecDeque;

use crate::support::read_demand;
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use underlay_predict::demand::{BackgroundDemand, MixDemand, OperationClass};
use underlay_predict::device_network::DeviceNetwork;
use underlay_predict::outcome::SimulationOutcome;
use underlay_predict::simulation::{self, OperationArrivals, SimulationScenario};
use underlay_storage::catalogue;
use underlay_storage::medium::{FinishedRequest, MediumModel, ModelRequest, RequestId};
use underlay_storage::stack::{BackingSpec, DeviceSpec, VolumeSpec};
use underlay_storage::time::ModelTime;

/// One server, first come first served, whose times are exponential: a station that theory has an exact answer for.
struct Exponential {
    mean_ns: f64,
    random: Pcg64Mcg,
    queue: VecDeque<RequestId>,
    done_ns: Option<u64>,
}

impl Exponential {
    fn boxed(mean_us: f64) -> Box<dyn MediumModel> {
        let random = Pcg64Mcg::seed_from_u64(mean_us as u64);
        Box::new(Exponential { mean_ns: mean_us * 1e3, random, queue: VecDeque::new(), done_ns: None })
    }

    fn draw_ns(&mut self) -> u64 {
        (-self.mean_ns * (1.0 - self.random.random::<f64>()).ln()) as u64
    }
}

impl MediumModel for Exponential {
    fn capacity_bytes(&self) -> u64 {
        1 << 40
    }

    fn submit(&mut self, request: ModelRequest, now: ModelTime) {
        self.queue.push_back(request.id);
        if self.done_ns.is_none() {
            self.done_ns = Some(now.as_ns() + self.draw_ns());
        }
    }

    fn next_completion(&self) -> Option<ModelTime> {
        self.done_ns.map(ModelTime::from_ns)
    }

    fn complete(&mut self, now: ModelTime, finished: &mut Vec<FinishedRequest>) {
        while let Some(at_ns) = self.done_ns.filter(|&at_ns| at_ns <= now.as_ns()) {
            let id = self.queue.pop_front().unwrap();
            finished.push(FinishedRequest { id, at: ModelTime::from_ns(at_ns) });
            self.done_ns = (!self.queue.is_empty()).then(|| at_ns + self.draw_ns());
        }
    }

    fn absorb(&mut self, _: ModelRequest) {}
}

fn scenario<'a>(
    demand: &'a MixDemand,
    volumes: &'a [VolumeSpec],
    threads: u32,
    cores: u32,
) -> SimulationScenario<'a> {
    SimulationScenario {
        demand,
        volumes,
        shares_devices: false,
        cached: 0.0,
        footprint_bytes: 1 << 30,
        device_speed: 1.0,
        cores: Some(cores),
        cores_at_once: None,
        threads,
        arrivals: OperationArrivals::Closed,
        operations: 20_000,
        seed: 3,
    }
}

/// Throughput of a closed network with exponential stations of one server each, by exact mean value analysis (Reiser
/// and Lavenberg 1980).
fn mva(demands_us: &[f64], clients: u32) -> f64 {
    let mut queues = vec![0.0; demands_us.len()];
    let mut throughput = 0.0;
    for population in 1..=clients {
        let residence: Vec<f64> =
            demands_us.iter().zip(&queues).map(|(demand, queue)| demand * (1.0 + queue)).collect();
        throughput = f64::from(population) / residence.iter().sum::<f64>();
        queues = residence.iter().map(|residence| throughput * residence).collect();
    }
    throughput * 1e6
}

#[test]
fn closed_network_matches_mean_value_analysis() {
    for (cpu_us, read_us, threads) in
        [(100.0, 100.0, 1), (100.0, 100.0, 8), (300.0, 100.0, 4), (50.0, 400.0, 20), (200.0, 180.0, 40)]
    {
        // Half of the CPU time comes before the read and half after it, both exponential.
        let demand = read_demand(cpu_us, 1.0);
        let bank = DeviceNetwork::from_models(vec![Exponential::boxed(read_us)]);
        let found = simulation::simulate_on(bank, scenario(&demand, &[], threads, 1)).unwrap();
        let expected = mva(&[cpu_us, read_us], threads);
        let error = found.throughput_per_s / expected - 1.0;
        assert!(
            error.abs() < 0.03,
            "{cpu_us} {read_us} x{threads}: {}, MVA {expected}",
            found.throughput_per_s
        );
        let clients = found.throughput_per_s * found.mean_us / 1e6;
        assert!((clients / f64::from(threads) - 1.0).abs() < 0.03, "{clients} of {threads} clients");
    }
}

#[test]
fn directories_on_own_devices_share_reads() {
    // A record is in any of them alike: each station has its share of the visits.
    let reads_us = [100.0, 101.0, 102.0, 103.0];
    let demand = read_demand(20.0, 1.0);
    for threads in [1, 4, 16, 60] {
        let bank = DeviceNetwork::from_models(reads_us.map(Exponential::boxed).into());
        let found = simulation::simulate_on(bank, scenario(&demand, &[], threads, 1)).unwrap();
        let stations: Vec<f64> = [20.0].into_iter().chain(reads_us.map(|read_us| read_us / 4.0)).collect();
        let expected = mva(&stations, threads);
        let error = found.throughput_per_s / expected - 1.0;
        assert!(error.abs() < 0.03, "{threads} threads: {}, MVA {expected}", found.throughput_per_s);
    }
}

#[test]
fn open_queue_wait_matches_theory() {
    // M/M/1 at 70 %: the time in the system is the service over 1 - utilisation, the p99 is ln(100) times that.
    let demand = read_demand(0.0, 1.0);
    let bank = DeviceNetwork::from_models(vec![Exponential::boxed(100.0)]);
    let open = SimulationScenario {
        arrivals: OperationArrivals::Poisson { per_s: 7_000.0 },
        operations: 100_000,
        ..scenario(&demand, &[], 1_000, 4)
    };
    let found = simulation::simulate_on(bank, open).unwrap();
    assert!((found.mean_us / (100.0 / 0.3) - 1.0).abs() < 0.06, "{}", found.mean_us);
    assert!((found.p99_us / (100.0 / 0.3 * 100f64.ln()) - 1.0).abs() < 0.1, "{}", found.p99_us);
    assert!((found.device_busy - 0.7).abs() < 0.02, "{}", found.device_busy);
    assert!(!found.is_saturated);
}

#[test]
fn rate_above_device_limit_is_reported() {
    let demand = read_demand(0.0, 1.0);
    let bank = DeviceNetwork::from_models(vec![Exponential::boxed(100.0)]);
    let open = SimulationScenario {
        arrivals: OperationArrivals::Even { per_s: 12_000.0 },
        operations: 5_000,
        ..scenario(&demand, &[], 16, 4)
    };
    assert!(simulation::simulate_on(bank, open).unwrap().is_saturated);
}

fn volumes(medium: &str, capacity_bytes: u64) -> Vec<VolumeSpec> {
    let medium = catalogue::find(medium).unwrap();
    let device = DeviceSpec::new("one", Some(medium), capacity_bytes, BackingSpec::Null);
    vec![VolumeSpec::striped("volume", vec![device], 1 << 19)]
}

fn writing(reads: f64, write_bytes: f64) -> MixDemand {
    let mut demand = read_demand(20.0, reads);
    let half = OperationClass { share: 0.5, ..demand.classes[0].clone() };
    let update = OperationClass { name: "update".to_owned(), reads: 0.0, writes: true, ..half.clone() };
    demand.classes = vec![half, update];
    demand.background = BackgroundDemand {
        read_bytes: write_bytes / 2.0,
        read_request_bytes: 131_072.0,
        write_bytes,
        write_request_bytes: 262_144.0,
        flushes: 0.001,
    };
    demand
}

#[test]
fn commits_are_shared_by_those_who_wait() {
    let mut demand = read_demand(5.0, 0.0);
    demand.classes[0].writes = true;
    demand.classes[0].commits = true;
    demand.commit_bytes = Some(4096.0);
    let volumes = volumes("hdd-7200-sata", 6_000_000_000);
    let throughput_at = |threads| {
        simulation::simulate(SimulationScenario {
            operations: 2_000,
            ..scenario(&demand, &volumes, threads, 16)
        })
        .unwrap()
        .throughput_per_s
    };
    let (one, many) = (throughput_at(1), throughput_at(16));
    assert!(many > 6.0 * one, "{one} alone, {many} with sixteen");
}

/// Throughput times latency is what is in flight. Operations that the end cuts off are in flight and in no latency:
/// each thread has one at most, and in the rest of the time it would have taken no longer than the longest.
fn keeps_to_littles_law(found: &SimulationOutcome, threads: u32, operations: f64) {
    let expected = found.throughput_per_s * found.mean_us / 1e6;
    let seconds = operations / found.throughput_per_s;
    let longest_s = found.latencies.quantile_us(1.0) / 1e6;
    let cut_off = f64::from(threads) * longest_s / seconds;
    let difference = (found.inside - expected).abs();
    assert!(
        difference < 0.15 * expected + 0.05 + cut_off,
        "{} in flight, {expected} expected, {cut_off} cut off",
        found.inside
    );
}

/// A shrunk failure of `littles_law_holds_whatever_is_asked`: 24 long reads of 4,000 operations, and 12 in flight when
/// it ends.
#[test]
fn operations_that_the_end_cuts_off_are_under_way() {
    let demand = writing(0.014087364923034536, 3_000.0);
    let volumes = volumes("hdd-7200-sata", 6_000_000_000);
    let found =
        simulation::simulate(SimulationScenario { operations: 4_000, ..scenario(&demand, &volumes, 12, 8) })
            .unwrap();
    keeps_to_littles_law(&found, 12, 4_000.0);
    let enough = simulation::simulate(SimulationScenario {
        operations: 400_000,
        ..scenario(&demand, &volumes, 12, 8)
    })
    .unwrap();
    let expected = enough.throughput_per_s * enough.mean_us / 1e6;
    assert!(
        (enough.inside / expected - 1.0).abs() < 0.02,
        "{} in flight, {expected} expected",
        enough.inside
    );
}

/// A shrunk failure of `faster_device_is_never_slower`, which then drew 3,000 operations: too few to tell a difference
/// of 3 %.
#[test]
fn core_bound_system_ignores_faster_device() {
    let demand = writing(0.2, 6_000.0);
    let volumes = volumes("nvme-9300-max", 6_000_000_000);
    for device_speed in [1.0, 3.03] {
        let one =
            SimulationScenario { device_speed, operations: 40_000, ..scenario(&demand, &volumes, 47, 16) };
        let found = simulation::simulate(one).unwrap().throughput_per_s;
        assert!((found / (16.0 / 20e-6) - 1.0).abs() < 0.03, "{found} at {device_speed}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn faster_device_is_never_slower(
        medium in prop::sample::select(vec!["hdd-7200-sata", "ssd-sata", "nvme-9300-max", "ebs-gp3"]),
        reads in 0.2f64..3.0, threads in 1u32..64, speed in 1.5f64..4.0, writes in prop::bool::ANY,
    ) {
        let demand = if writes { writing(reads, 6_000.0) } else { read_demand(30.0, reads) };
        let volumes = volumes(medium, 6_000_000_000);
        let simulate_at = |device_speed| {
            let one = SimulationScenario {
                device_speed, operations: 40_000, ..scenario(&demand, &volumes, threads, 16) };
            simulation::simulate(one).unwrap()
        };
        let (slow, fast) = (simulate_at(1.0), simulate_at(speed));
        // Two draws of 40,000 exponential times differ by 0.6 % (a standard deviation) where CPU time is the limit.
        prop_assert!(fast.throughput_per_s > 0.97 * slow.throughput_per_s, "{slow:?} {fast:?}");
    }

    #[test]
    fn littles_law_holds_whatever_is_asked(
        medium in prop::sample::select(vec!["hdd-7200-sata", "ssd-sata", "nvme-9300-max"]),
        reads in 0.0f64..3.0, threads in 1u32..64, writes in prop::bool::ANY, per_s in 10.0f64..50_000.0, open in prop::bool::ANY,
    ) {
        let demand = if writes { writing(reads, 3_000.0) } else { read_demand(30.0, reads) };
        let volumes = volumes(medium, 6_000_000_000);
        let arrivals = if open { OperationArrivals::Poisson { per_s } } else { OperationArrivals::Closed };
        let found =
            simulation::simulate(SimulationScenario {
                arrivals, operations: 4_000, ..scenario(&demand, &volumes, threads, 8) })
                .unwrap();
        if found.is_saturated {
            return Ok(());
        }
        keeps_to_littles_law(&found, threads, 4_000.0);
        let total_us = found.of_mean.total_us();
        prop_assert!((total_us / found.mean_us - 1.0).abs() < 0.01, "{total_us} of {}", found.mean_us);
        prop_assert!(found.device_busy <= 1.0 && found.p50_us <= found.p99_us);
    }

    #[test]
    fn simulation_of_same_question_is_deterministic(threads in 1u32..32, reads in 0.0f64..2.0) {
        let demand = writing(reads, 2_000.0);
        let volumes = volumes("nvme-9300-max", 1_000_000_000);
        let one = || {
            simulation::simulate(SimulationScenario {
                operations: 500, ..scenario(&demand, &volumes, threads, 8) }).unwrap()
        };
        prop_assert_eq!(one(), one());
    }
}
