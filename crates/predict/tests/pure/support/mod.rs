//! Records as a run would have them, of a system that is known exactly: the simulation itself.

use std::collections::BTreeMap;

use underlay_predict::demand::{BackgroundDemand, MixDemand, OperationClass};
use underlay_predict::outcome::SimulationOutcome;
use underlay_predict::simulation::{self, OperationArrivals, SimulationScenario};
use underlay_predict::{CellPoint, MeasuredCell};
use underlay_record::{
    Cell, CellLabels, CellStatus, Certificate, CertificateVerdict, CpuRecord, DeviceActivity, DeviceTotals,
    Histogram, LatencySummary, MachineRecord, MeasuredWindow, MemoryRecord, OfferedRate, OperationStats,
    RecordedLatency, RecordedWork, RequestWork, RunRecord, SCHEMA_VERSION, ScaleFactors, SeriesPoint,
    StorageRecord,
};
use underlay_storage::catalogue;
use underlay_storage::stack::{BackingSpec, DeviceSpec, VolumeSpec};

/// A mix of reads alone: CPU time and requests of each, at random and of 4 KiB.
pub(crate) fn read_demand(cpu_us: f64, reads: f64) -> MixDemand {
    let class = OperationClass {
        name: "read".to_owned(),
        share: 1.0,
        cpu_us,
        reads,
        read_bytes: 4096.0,
        is_sequential: false,
        writes: false,
        commits: false,
    };
    MixDemand { classes: vec![class], background: BackgroundDemand::default(), commit_bytes: None }
}

/// So many devices of a medium, a thousandth of their capacity each, as `scale.data = 1000` makes them.
pub(crate) fn storage(medium: &str, count: u32) -> Vec<VolumeSpec> {
    let medium = catalogue::find(medium).unwrap();
    let capacity_bytes = medium.capacity_bytes() / 1000 / (1 << 20) * (1 << 20);
    let device = |index: u32| {
        DeviceSpec::new(format!("d.{index}"), Some(medium.clone()), capacity_bytes, BackingSpec::Null)
    };
    vec![VolumeSpec::striped("volume", (0..count).map(device).collect(), 512 << 10)]
}

pub(crate) fn point(name: &str, volumes: Vec<VolumeSpec>, records: f64, threads: u32) -> CellPoint {
    CellPoint {
        id: format!("rocksdb/{name}/{records}-{threads}t"),
        system: "rocksdb".to_owned(),
        settings: BTreeMap::new(),
        nodes: 1,
        servers: 1,
        mix: "c".to_owned(),
        distribution: "uniform".to_owned(),
        threads,
        arrivals: OperationArrivals::Closed,
        records,
        record_bytes: 1_023.0,
        memory_bytes: 1e8,
        cores: Some(16),
        storage: name.to_owned(),
        volumes,
        shares_devices: false,
        filled_by: None,
        not_modelled: None,
        assumed: None,
    }
}

/// The system's record there, with `slower` times the simulated latency: locks that no model has.
pub(crate) fn record(point: &CellPoint, demand: &MixDemand, slower: f64) -> RunRecord {
    let outcome = simulation::simulate(SimulationScenario {
        demand,
        volumes: &point.volumes,
        shares_devices: false,
        cached: 0.0,
        footprint_bytes: (1.2 * point.data_bytes()) as u64,
        device_speed: 1.0,
        cores: point.cores,
        cores_at_once: None,
        threads: point.threads,
        arrivals: point.arrivals,
        operations: 8_000,
        seed: 99,
    })
    .unwrap();
    record_of(point, demand, &outcome, slower)
}

fn record_of(point: &CellPoint, demand: &MixDemand, outcome: &SimulationOutcome, slower: f64) -> RunRecord {
    let operations = 8_000u64;
    let latency = RecordedLatency {
        us: LatencySummary {
            count: operations,
            mean: slower * outcome.mean_us,
            p50: slower * outcome.p50_us,
            p99: slower * outcome.p99_us,
            ..LatencySummary::default()
        },
        histogram: Histogram::default(),
    };
    let throughput_per_s = outcome.throughput_per_s / slower;
    let duration_s = operations as f64 / throughput_per_s;
    let reads = (demand.reads() * operations as f64) as u64;
    let totals = DeviceTotals {
        reads,
        read_bytes: 4_096 * reads,
        busy_us: outcome.device_busy * duration_s * 1e6,
        ..DeviceTotals::default()
    };
    let stats = OperationStats { count: operations, latency: latency.clone(), ..OperationStats::default() };
    RunRecord {
        schema: SCHEMA_VERSION,
        cell: Cell {
            id: point.id.clone(),
            system: point.system.clone(),
            storage: point.storage.clone(),
            workload: "ycsb".to_owned(),
            servers: 1,
            data_bytes: point.data_bytes() as u64,
            data: None,
            work: RecordedWork::Requests(RequestWork {
                mix: point.mix.clone(),
                distribution: point.distribution.clone(),
                threads: point.threads,
                records: point.records as u64,
                rate: OfferedRate::Unthrottled,
                compacts_at: None,
            }),
            named: CellLabels::default(),
        },
        repetition: 1,
        position: 0,
        status: CellStatus::Completed,
        started_at: "2026-11-25T00:00:00Z".to_owned(),
        wall_s: 1.0,
        wall: None,
        scale: ScaleFactors::default(),
        machine: MachineRecord::default(),
        versions: BTreeMap::new(),
        settings: BTreeMap::new(),
        seed: 1,
        memory: MemoryRecord {
            budget_bytes: point.memory_bytes as u64,
            enforced_by: "none".to_owned(),
            data_bytes: point.data_bytes() as u64,
            data_to_memory: point.data_to_memory(),
            cache_bytes: None,
            peak_bytes: None,
            dirty_limits: Vec::new(),
        },
        cpu: Some(CpuRecord {
            modelled_cores: 16,
            due_cpus: 16.0,
            held_to_cpus: 16.0,
            enforced_by: "none".to_owned(),
            used_cpus: demand.cpu_us() * throughput_per_s / 1e6,
            servers: 1,
            throttled_share: 0.0,
            lost_share: 0.0,
            waited_share: None,
            system_cpus: "0-15".to_owned(),
            system_stolen_share: 0.0,
            emulation_cpus: "16".to_owned(),
            emulation_busy_share: 0.1,
            emulation_stolen_share: 0.0,
            emulation_waiting_threads: None,
            speed_probe_us: None,
            reference_probe_us: None,
            allowed_slowdown: None,
            extra_ticks: 0,
        }),
        storage: StorageRecord {
            attachment: "none".to_owned(),
            filesystem: None,
            arrangement: None,
            layout: "single".to_owned(),
            devices: Vec::new(),
            usable_bytes: None,
        },
        measured: Some(MeasuredWindow {
            duration_s,
            wall_s: duration_s,
            operations,
            throughput_per_s,
            latency,
            by_operation: [("read".to_owned(), stats)].into(),
            series: steady(throughput_per_s, duration_s),
            ..MeasuredWindow::default()
        }),
        search: None,
        job: None,
        benchmark: None,
        devices: vec![DeviceActivity { duration_s, totals, ..DeviceActivity::default() }],
        layers: Vec::new(),
        network: None,
        paths: Vec::new(),
        pauses: None,
        system_figures: BTreeMap::new(),
        system_series: Vec::new(),
        node_events: Vec::new(),
        read_back: None,
        topology: None,
        certificate: Some(holding()),
        inputs: None,
        warnings: Vec::new(),
    }
}

fn holding() -> Certificate {
    Certificate { verdict: CertificateVerdict::Faithful, checks: Vec::new(), metrics: Vec::new() }
}

/// As much in each interval.
fn steady(throughput_per_s: f64, duration_s: f64) -> Vec<SeriesPoint> {
    let point_at = |index: u32| SeriesPoint {
        t_s: f64::from(index) * duration_s / 20.0,
        throughput_per_s,
        ..SeriesPoint::default()
    };
    (1..=20).map(point_at).collect()
}

pub(crate) fn measured(point: CellPoint, records: &[RunRecord]) -> MeasuredCell {
    MeasuredCell::new(point, &records.iter().collect::<Vec<_>>(), None).unwrap()
}
