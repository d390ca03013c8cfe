//! Cells whose metrics all look on time but that must not be certified: a process stalled, tasks were killed, the
//! storage was not used, or the CPUs had another speed.

use underlay_record::{
    CertificateVerdict, Histogram, OperationStats, Pauses, RecordedLatency, StoppedProcess,
};

use super::*;

fn all_of(latency_ns: u64) -> Histogram {
    let mut latencies = Histogram::default();
    latencies.record_n_ns(latency_ns, 100_000);
    latencies
}

fn device(delivered_ns: u64) -> DeviceActivity {
    DeviceActivity {
        modelled: Some(all_of(2_000_000)),
        delivered: Some(all_of(delivered_ns)),
        ..DeviceActivity::default()
    }
}

/// 100,000 operations of 2 ms in 50 s, by four threads.
fn measured() -> MeasuredWindow {
    let latency = RecordedLatency::new(all_of(2_000_000));
    let read = OperationStats {
        count: 100_000,
        latency: latency.clone(),
        service: latency.clone(),
        ..OperationStats::default()
    };
    MeasuredWindow {
        duration_s: 50.0,
        wall_s: 50.0,
        operations: 100_000,
        throughput_per_s: 2_000.0,
        latency,
        by_operation: [("read".to_owned(), read)].into(),
        ..MeasuredWindow::default()
    }
}

/// Evidence from devices that were on time.
fn evidence(devices: &[DeviceActivity]) -> CertificateEvidence<'_> {
    CertificateEvidence { devices, ..CertificateEvidence::default() }
}

type Found = (CertificateVerdict, Vec<CheckId>);

/// The verdict, and the checks that failed.
fn certified(certify: &dyn for<'a> Fn(CertificateEvidence<'a>) -> Certificate) -> Found {
    let devices = [device(2_000_000)];
    let certificate = certify(evidence(&devices));
    let failed = certificate.failed().map(|check| check.id.unwrap()).collect();
    (certificate.verdict, failed)
}

fn doubtful(check: CheckId) -> Found {
    (CertificateVerdict::Doubtful, vec![check])
}

fn faithful() -> Found {
    (CertificateVerdict::Faithful, Vec::new())
}

fn paused(seconds: f64) -> PauseRecord {
    let own = Pauses { longest_wall_s: seconds, paused_wall_s: seconds, pauses: 1, ..Pauses::default() };
    PauseRecord { window_wall_s: 50.0, own, ..PauseRecord::default() }
}

fn certified_pauses(
    pauses: &PauseRecord,
    requests: Option<(&MeasuredWindow, bool)>,
    time_scale: f64,
) -> Found {
    certified(&|evidence| {
        let measured = requests.map(|(measured, _)| measured);
        let open_loop = requests.is_some_and(|(_, open_loop)| open_loop);
        certify(&CertificateEvidence { pauses: Some(pauses), measured, open_loop, time_scale, ..evidence })
    })
}

#[test]
fn run_stopped_in_window_is_not_faithful() {
    // We take no measurement of our own of a batch job or a command.
    assert_eq!(certified_pauses(&paused(2.2), None, 1.0), doubtful(CheckId::ProcessPauses));
    let requests = measured();
    let closed_loop = |seconds| certified_pauses(&paused(seconds), Some((&requests, false)), 1.0);
    assert_eq!(closed_loop(2.2), doubtful(CheckId::ProcessPauses));
    assert_eq!(closed_loop(0.2), faithful(), "0.4 % of the window, four operations of 100,000");
}

#[test]
fn pause_making_up_a_tail_is_not_faithful() {
    let requests = measured();
    let at_a_rate = |time_scale| certified_pauses(&paused(0.2), Some((&requests, true)), time_scale);
    assert_eq!(
        at_a_rate(1.0),
        doubtful(CheckId::ProcessPauses),
        "400 were due meanwhile, four times those beyond p99.9"
    );
    assert_eq!(at_a_rate(500.0), faithful(), "0.4 ms of modelled time");
}

/// Covers every cause of a stall in the warm-up, although nothing stalled in the window.
#[test]
fn rate_answering_warm_up_backlog_is_not_faithful() {
    let backlog = MeasuredWindow { operations: 150_000, ..measured() };
    let quiet = PauseRecord { window_wall_s: 50.0, ..PauseRecord::default() };
    assert_eq!(certified_pauses(&quiet, Some((&backlog, true)), 1.0), doubtful(CheckId::OfferedRate));
    assert_eq!(certified_pauses(&quiet, Some((&measured(), true)), 1.0), faithful());
    assert_eq!(certified_pauses(&quiet, Some((&backlog, false)), 1.0), faithful(), "a closed loop");
}

#[test]
fn stopped_system_or_device_process_is_not_faithful() {
    let engine = StoppedProcess {
        name: "underlay-engine".into(),
        pid: 12,
        stopped_wall_s: 3.0,
        ..StoppedProcess::default()
    };
    let stopped = vec![engine];
    let record = PauseRecord { window_wall_s: 50.0, stopped, ..PauseRecord::default() };
    assert_eq!(certified_pauses(&record, None, 1.0), doubtful(CheckId::ProcessPauses));
}

#[test]
fn stopped_run_does_not_restart_slower() {
    let (devices, still) = ([device(9_000_000)], paused(5.0));
    let judged = |pauses| {
        let certificate = certify(&CertificateEvidence { pauses, ..evidence(&devices) });
        too_fast(&certificate, &devices, &[], 2.0, &[])
    };
    assert!(judged(None).is_some(), "devices were late");
    assert_eq!(judged(Some(&still)), None, "since it was stopped");
}

#[test]
fn generator_delayed_by_busy_host_restarts_slower() {
    let own = Pauses { longest_wall_s: 0.05, delayed_wall_s: 10.0, ..Pauses::default() };
    let busy = PauseRecord { window_wall_s: 50.0, own, ..PauseRecord::default() };
    assert_eq!(certified_pauses(&busy, None, 1.0), doubtful(CheckId::GeneratorDelays));
    let devices = [device(2_000_000)];
    let certificate = certify(&CertificateEvidence { pauses: Some(&busy), ..evidence(&devices) });
    let remedy = certificate.failed().next().and_then(|check| check.remedy.clone());
    assert!(remedy.as_ref().is_some_and(|remedy| remedy.contains("slower motion")), "{remedy:?}");
    let found = too_fast(&certificate, &devices, &[], 2.0, &[]).map(|found| found.check);
    assert_eq!(found, Some(CheckId::GeneratorDelays));
}

#[test]
fn stopped_search_finds_no_rate() {
    let searching = |pauses, stopped: Option<&str>| SearchObservation {
        devices: Vec::new(),
        paths: Vec::new(),
        cpu: None,
        pauses,
        stopped: stopped.map(str::to_owned),
        threads: 4,
    };
    let findings = |searching: &SearchObservation| search_findings(searching, 1.0);
    assert_eq!(findings(&searching(paused(0.1), None)), Vec::<String>::new());
    let found = findings(&searching(paused(5.0), None));
    assert!(found.len() == 1 && found[0].starts_with("search: process pauses: "), "{found:?}");
    // Little compared with 50 s of search, but much of one step.
    let found = findings(&searching(paused(0.4), Some("java (process 7) was stopped for 0.40 s of 1.00 s")));
    assert_eq!(
        found,
        ["search: process pauses: in a step, java (process 7) was stopped for 0.40 s of 1.00 s"]
    );
}

#[test]
fn job_with_killed_tasks_is_not_faithful() {
    let lost = |count, nodes_went| {
        let lost_tasks = Some(LostTasks { count, nodes_went });
        certified(&|evidence| certify(&CertificateEvidence { lost_tasks, ..evidence }))
    };
    assert_eq!(lost(0, false), faithful());
    assert_eq!(lost(1, false), doubtful(CheckId::LostTasks));
    assert_eq!(lost(3, true), faithful(), "their node was sent away");
}

fn used(traffic: CellTraffic) -> Found {
    certified(&|evidence| certify(&CertificateEvidence { traffic: Some(traffic), ..evidence }))
}

#[test]
fn workload_without_storage_access_is_not_faithful() {
    let busy =
        CellTraffic { requests: 10_000, moved_bytes: 40_960_000, holds_data: true, ..CellTraffic::default() };
    assert_eq!(used(busy), faithful());
    assert_eq!(used(CellTraffic { requests: 3, ..CellTraffic::default() }), doubtful(CheckId::StorageUsed));
    // All loaded data may be in memory.
    let cached = CellTraffic { requests: 0, holds_data: true, may_be_cached: true, ..CellTraffic::default() };
    assert_eq!(used(cached), faithful());
    assert_eq!(
        used(CellTraffic { may_be_cached: false, ..cached }),
        doubtful(CheckId::StorageUsed),
        "nothing of it was read"
    );
    // `dd if={device} iflag=direct bs=1M count=16`
    let few_and_large =
        CellTraffic { requests: 16, moved_bytes: 16 << 20, read_bytes: 16 << 20, holds_data: true, ..cached };
    assert_eq!(used(CellTraffic { may_be_cached: false, ..few_and_large }), faithful(), "it read 16 MiB");
}

#[test]
fn idle_real_disks_were_not_used() {
    let asked = |requests| CellTraffic { requests, is_shared: true, ..CellTraffic::default() };
    assert_eq!(used(asked(0)), doubtful(CheckId::StorageUsed));
    assert_eq!(used(asked(1)), faithful(), "nobody knows who asked for it");
}

#[test]
fn fio_off_storage_is_not_faithful_despite_loaded_data() {
    let moved = |moved_bytes, claimed| CellTraffic {
        requests: 500,
        moved_bytes,
        holds_data: true,
        may_be_cached: true,
        past_the_cache_bytes: Some(claimed),
        ..CellTraffic::default()
    };
    assert_eq!(used(moved(40_960_000, 40_960_000)), faithful());
    assert_eq!(used(moved(81_920_000, 40_960_000)), faithful(), "a mirror");
    assert_eq!(used(moved(65_536, 40_960_000)), doubtful(CheckId::StorageUsed));
    assert_eq!(used(moved(0, 0)), faithful(), "it moved nothing at all");
    let with_roles = CellTraffic { moved_for_roles_bytes: 40_960_000, ..moved(65_536, 40_960_000) };
    assert_eq!(used(with_roles), faithful(), "it used the devices of a role, too");
    let on_roles_only = CellTraffic { requests: 0, moved_bytes: 0, holds_data: false, ..with_roles };
    assert_eq!(used(on_roles_only), doubtful(CheckId::StorageUsed), "which are not compared");
}

/// Such as `number_ios=3`, which reads a file that is not in any page cache.
#[test]
fn few_fio_requests_to_devices_used_storage() {
    let three = CellTraffic {
        requests: 3,
        moved_bytes: 12_288,
        holds_data: true,
        may_be_cached: false,
        past_the_cache_bytes: Some(12_288),
        ..CellTraffic::default()
    };
    assert_eq!(used(three), faithful());
    assert_eq!(used(CellTraffic { holds_data: false, ..three }), faithful(), "it may have removed its file");
    let with_roles =
        CellTraffic { moved_for_roles_bytes: 12_288, past_the_cache_bytes: Some(24_576), ..three };
    assert_eq!(used(with_roles), faithful(), "half of it went to a role's devices");
    let without_a_claim = CellTraffic { past_the_cache_bytes: None, ..three };
    assert_eq!(used(without_a_claim), doubtful(CheckId::StorageUsed));
    let beside_it = CellTraffic { requests: 0, moved_bytes: 0, ..three };
    assert_eq!(used(beside_it), doubtful(CheckId::StorageUsed));
}

fn cpu(speed_us: f64, allowed_slowdown: Option<f64>, used_cpus: f64, throttled_share: f64) -> CpuRecord {
    CpuRecord {
        modelled_cores: 16,
        due_cpus: 0.5,
        held_to_cpus: 0.5,
        enforced_by: "cgroup v2".into(),
        used_cpus,
        servers: 1,
        throttled_share,
        waited_share: Some(0.0),
        lost_share: 0.0,
        system_cpus: "0".into(),
        system_stolen_share: 0.0,
        emulation_cpus: "1".into(),
        emulation_busy_share: 0.3,
        emulation_stolen_share: 0.0,
        emulation_waiting_threads: None,
        speed_probe_us: Some(speed_us),
        reference_probe_us: Some(100.0),
        allowed_slowdown,
        extra_ticks: 0,
    }
}

#[test]
fn slower_cpu_without_allowance_is_another_machine() {
    let judged =
        |cpu: CpuRecord| certified(&|evidence| certify(&CertificateEvidence { cpu: Some(&cpu), ..evidence }));
    // The case: a fixed computation took 27 % longer, and the system, held to the same quota, did a quarter less.
    assert_eq!(judged(cpu(127.0, Some(1.0), 0.45, 0.6)), doubtful(CheckId::CpuSpeed));
    assert_eq!(judged(cpu(127.0, Some(1.25), 0.45, 0.6)), faithful());
    assert_eq!(judged(cpu(127.0, Some(1.0), 0.1, 0.0)), faithful(), "it waits for its disk");
    let four_servers = CpuRecord { servers: 4, ..cpu(127.0, Some(1.0), 0.45, 0.0) };
    assert_eq!(judged(four_servers), faithful(), "each of them used a quarter of that");
    assert_eq!(
        judged(cpu(100.0, Some(1.25), 0.45, 0.6)),
        doubtful(CheckId::CpuSpeed),
        "faster is another machine, too"
    );
    // On real storage no time is granted, and running faster than with all CPUs busy is usual.
    assert_eq!(judged(cpu(127.0, None, 0.45, 0.6)), doubtful(CheckId::CpuSpeed));
    assert_eq!(judged(cpu(80.0, None, 0.45, 0.6)), faithful());
}

#[test]
fn slower_cpu_use_counts_as_work_done() {
    assert!((cpu(125.0, Some(1.25), 0.5, 0.0).used_at_reference_cpus() - 0.4).abs() < 1e-9);
    assert_eq!(cpu(125.0, None, 0.5, 0.0).used_at_reference_cpus(), 0.5);
}
