use underlay_record::certificate_metrics::DELIVERED_P50;
use underlay_record::{
    BesideMeasured, CertificateVerdict, Histogram, PathWait, RecordedLatency, WrongValue, WrongValueProblem,
};

use super::*;

fn device(modelled_us: u64, delivered_us: u64) -> DeviceActivity {
    let mut activity = DeviceActivity::default();
    let mut asked = Histogram::default();
    let mut got = Histogram::default();
    asked.record_n_ns(modelled_us * 1000, 1000);
    got.record_n_ns(delivered_us * 1000, 1000);
    activity.modelled = Some(asked);
    activity.delivered = Some(got);
    activity
}

fn certificate_of(devices: &[DeviceActivity], ceiling: f64, steal_share: f64) -> Certificate {
    let measured = MeasuredWindow { throughput_per_s: 1000.0, operations: 1000, ..MeasuredWindow::default() };
    let aftermath = RunAftermath { steal_share, ..RunAftermath::default() };
    certify(&CertificateEvidence {
        devices,
        measured: Some(&measured),
        floor_us: Some(10.0),
        aftermath,
        ceiling_per_s: Some(ceiling),
        time_scale: 4.0,
        ..CertificateEvidence::default()
    })
}

fn failed(certificate: &Certificate) -> Vec<CheckId> {
    certificate.failed().map(|check| check.id.unwrap()).collect()
}

#[test]
fn wrong_values_are_told_apart_from_errors() {
    let problem = WrongValueProblem::Content { field: 0, from_byte: 8, length: 100 };
    let wrong = WrongValue { record: "user1".to_owned(), problem };
    let certificate = |mismatches| {
        let measured = MeasuredWindow {
            throughput_per_s: 1000.0,
            operations: 1000,
            integrity: Some(IntegrityRecord {
                checked: 900,
                mismatches,
                wrong_values: vec![wrong.clone(); usize::from(mismatches > 0)],
            }),
            error_samples: vec!["read: no answer".into()],
            ..MeasuredWindow::default()
        };
        certify(&CertificateEvidence {
            measured: Some(&measured),
            ceiling_per_s: Some(1e6),
            ..CertificateEvidence::default()
        })
    };
    // There is an error here too, and an error alone is not a wrong value.
    assert!(failed(&certificate(0)).is_empty());
    let wrong = certificate(2);
    assert_eq!((failed(&wrong), wrong.verdict), (vec![CheckId::CheckedValues], CertificateVerdict::Doubtful));
    let check = wrong.failed().next().unwrap();
    assert_eq!(
        check.finding,
        "2 of 900 records that were read differ from the written ones; the first: record user1 field 0 differs \
         from the written value, from byte 8 of 100"
    );
}

#[test]
fn operations_may_fail_with_nodes_but_acknowledged_stay() {
    let certificate_of = |nodes_away: Option<OutsideOfEvents>, read_back: Option<&ReadBackRecord>| {
        let measured = MeasuredWindow {
            throughput_per_s: 1000.0,
            operations: 1000,
            errors: 100,
            ..MeasuredWindow::default()
        };
        certify(&CertificateEvidence {
            measured: Some(&measured),
            nodes_away,
            read_back,
            ceiling_per_s: Some(1e6),
            ..CertificateEvidence::default()
        })
    };
    let sound = ReadBackRecord { noted: 9, one_in: 1, checked: 9, ..ReadBackRecord::default() };
    assert_eq!(failed(&certificate_of(None, None)), [CheckId::OperationsAnswered]);
    let outside_events = |failed: u64| Some(OutsideOfEvents { operations: 500, failed, under_way: 8 });
    assert!(failed(&certificate_of(outside_events(0), Some(&sound))).is_empty());
    // Operations of each thread that had begun before.
    assert!(failed(&certificate_of(outside_events(8), Some(&sound))).is_empty());
    assert_eq!(
        failed(&certificate_of(outside_events(20), Some(&sound))),
        [CheckId::OperationsAnswered],
        "it has not recovered"
    );
    let lossy = ReadBackRecord { missing: 2, ..sound };
    assert_eq!(failed(&certificate_of(outside_events(0), Some(&lossy))), [CheckId::AcknowledgedWrites]);
}

#[test]
fn punctual_device_is_faithful() {
    let certificate = certificate_of(&[device(1000, 1030)], 50_000.0, 0.0);
    assert_eq!((certificate.verdict, failed(&certificate)), (CertificateVerdict::Faithful, vec![]));
}

#[test]
fn late_device_is_not_faithful_with_remedy() {
    let certificate = certificate_of(&[device(1000, 1300)], 50_000.0, 0.0);
    assert_eq!(certificate.verdict, CertificateVerdict::Doubtful);
    assert_eq!(
        failed(&certificate),
        [CheckId::DeviceLatencyMean, CheckId::DeviceLatencyP50, CheckId::DeviceLatencyP99]
    );
    assert!(certificate.checks[0].remedy.as_deref().is_some_and(|remedy| remedy.contains("[scale] time")));
}

#[test]
fn device_faster_than_path_is_not_faithful() {
    assert_eq!(failed(&certificate_of(&[device(20, 21)], 50_000.0, 0.0)), [CheckId::PathOverhead]);
}

#[test]
fn path_beyond_allowance_is_late() {
    let devices = [device(1000, 1000)];
    let certificate = |path_mean_us: f64| {
        let reads = PathWait {
            requests: 1000,
            modelled_mean_us: 1000.0,
            waited_mean_us: 970.0 + path_mean_us,
            path_mean_us,
            dated_back_mean_us: 30.0,
            is_estimate: false,
        };
        let path = PathRecord { is_direct: true, reads, ..PathRecord::default() };
        certify(&CertificateEvidence {
            devices: &devices,
            paths: &[path],
            floor_us: Some(10.0),
            time_scale: 4.0,
            ..CertificateEvidence::default()
        })
    };
    let as_expected = certificate(30.0);
    assert_eq!((as_expected.verdict, failed(&as_expected)), (CertificateVerdict::Faithful, vec![]));
    assert_eq!(as_expected.metric(&DELIVERED_P50).map(f64::round), Some(1000.0));
    // 300 µs more on the path, without compensation.
    let late = certificate(330.0);
    assert_eq!(
        failed(&late),
        [
            CheckId::DeviceLatencyMean,
            CheckId::DeviceLatencyP50,
            CheckId::DeviceLatencyP99,
            CheckId::ReadLatencyMean
        ]
    );
    assert!((late.metric(&DELIVERED_P50).unwrap() - 1300.0).abs() < 2.0, "{late:?}");
    let found = late.checks.iter().find(|check| check.id == Some(CheckId::ReadLatencyMean)).unwrap();
    assert!(found.finding.contains("the path to the device and back took 330.0 µs"), "{}", found.finding);
    assert!(found.remedy.as_deref().is_some_and(|remedy| remedy.contains("[scale] time")));
}

#[test]
fn saturated_generator_and_cpu_steal_are_not_faithful() {
    let certificate = certificate_of(&[device(1000, 1000)], 1500.0, 0.2);
    assert_eq!(failed(&certificate), [CheckId::GeneratorHeadroom, CheckId::StolenTime]);
}

#[test]
fn job_is_certified_by_devices_alone() {
    let devices = [device(1000, 1030)];
    let certificate = certify(&CertificateEvidence {
        devices: &devices,
        floor_us: Some(10.0),
        time_scale: 8.0,
        ..CertificateEvidence::default()
    });
    assert_eq!((certificate.verdict, failed(&certificate)), (CertificateVerdict::Faithful, vec![]));
    assert!(certificate.checks.iter().all(|check| check.id != Some(CheckId::OperationsAnswered)));
}

#[test]
fn readers_without_authorisation_have_to_find_nothing() {
    let certificate_of = |missing: u64| {
        let stats = OperationStats { missing, ..OperationStats::default() };
        let measured = MeasuredWindow {
            throughput_per_s: 1000.0,
            operations: 1000,
            by_operation: [("read".to_owned(), stats)].into(),
            ..MeasuredWindow::default()
        };
        certify(&CertificateEvidence {
            measured: Some(&measured),
            hides_records: true,
            ..CertificateEvidence::default()
        })
    };
    assert_eq!(failed(&certificate_of(250)), Vec::<CheckId>::new());
    assert_eq!(failed(&certificate_of(0)), [CheckId::HiddenRecords]);
}

fn certify_cpu(lost_share: f64, emulation_busy_share: f64, enforced_by: &str) -> Certificate {
    certify_waiting(lost_share, emulation_busy_share, enforced_by, None, (0.1, None))
}

fn certify_waiting(
    lost_share: f64,
    emulation_busy_share: f64,
    enforced_by: &str,
    waited_share: Option<f64>,
    of_emulation: (f64, Option<f64>),
) -> Certificate {
    let cpu = cpu_record(lost_share, emulation_busy_share, enforced_by, waited_share, of_emulation);
    certificate_on(&cpu)
}

fn cpu_record(
    lost_share: f64,
    emulation_busy_share: f64,
    enforced_by: &str,
    waited_share: Option<f64>,
    (emulation_stolen_share, emulation_waiting_threads): (f64, Option<f64>),
) -> CpuRecord {
    CpuRecord {
        modelled_cores: 16,
        due_cpus: 0.5,
        held_to_cpus: 0.5,
        enforced_by: enforced_by.to_owned(),
        used_cpus: 0.4,
        servers: 1,
        throttled_share: 0.2,
        lost_share,
        system_cpus: "0".to_owned(),
        system_stolen_share: 0.3,
        emulation_cpus: "1".to_owned(),
        emulation_busy_share,
        emulation_stolen_share,
        emulation_waiting_threads,
        speed_probe_us: None,
        reference_probe_us: None,
        allowed_slowdown: None,
        extra_ticks: 0,
        waited_share,
    }
}

fn certificate_on(cpu: &CpuRecord) -> Certificate {
    let mut of_ten_milliseconds = Histogram::default();
    of_ten_milliseconds.record_n_ns(10_000_000, 1000);
    let ten_at_a_time = RecordedLatency::new(of_ten_milliseconds);
    let reads = OperationStats {
        count: 1000,
        service: ten_at_a_time.clone(),
        latency: ten_at_a_time,
        ..OperationStats::default()
    };
    let measured = MeasuredWindow {
        throughput_per_s: 1000.0,
        operations: 1000,
        duration_s: 1.0,
        by_operation: BTreeMap::from([("READ".to_owned(), reads)]),
        ..MeasuredWindow::default()
    };
    certify(&CertificateEvidence {
        devices: &[device(1000, 1000)],
        measured: Some(&measured),
        floor_us: Some(10.0),
        cpu: Some(cpu),
        aftermath: RunAftermath { steal_share: 0.3, ..RunAftermath::default() },
        time_scale: 4.0,
        ..CertificateEvidence::default()
    })
}

#[test]
fn stolen_time_is_judged_by_what_it_did() {
    assert_eq!(certify_cpu(0.0, 0.5, "cgroup v2").verdict, CertificateVerdict::Faithful);
    assert_eq!(failed(&certify_cpu(0.06, 0.5, "cgroup v2")), [CheckId::SystemCpu]);
    assert_eq!(failed(&certify_cpu(0.0, 0.89, "cgroup v1")), [CheckId::EmulationCpu]);
    assert_eq!(failed(&certify_cpu(0.0, 0.5, "none")), [CheckId::CpuBudget]);
    assert_eq!(
        failed(&certify_waiting(0.0, 0.5, "cgroup v1", Some(0.12), (0.1, None))),
        [CheckId::WaitForCpu]
    );
    assert_eq!(
        failed(&certify_waiting(0.0, 0.5, "cgroup v1", Some(0.09), (0.1, None))),
        Vec::<CheckId>::new()
    );
    // A background program uses the rest. The question is whether operations, ten at a time, waited.
    let with_background =
        |busy, stolen, threads| certify_waiting(0.0, busy, "cgroup v1", None, (stolen, Some(threads)));
    assert_eq!(failed(&with_background(1.0, 0.0, 0.9)), Vec::<CheckId>::new());
    assert_eq!(failed(&with_background(1.0, 0.0, 1.1)), [CheckId::EmulationCpu]);
    // However much was stolen, it holds up only one of ten operations at a time.
    assert_eq!(failed(&with_background(0.8, 0.2, 0.7)), Vec::<CheckId>::new());
    assert_eq!(failed(&with_background(0.8, 0.2, 0.9)), [CheckId::EmulationCpu]);
    // Clients that all wake up at once wait for each other on a CPU that is half idle. An NVMe drive lost 7 % this way
    // on a CPU that was 88 % busy.
    assert_eq!(failed(&with_background(0.78, 0.0, 1.78)), [CheckId::EmulationCpu]);
    assert_eq!(failed(&with_background(0.78, 0.0, 0.64)), Vec::<CheckId>::new());
    // Slower motion holds nobody to anything.
    assert_eq!(mended(&certify_cpu(0.0, 0.5, "none")), None);
}

#[test]
fn few_operations_are_delayed_only_without_spare_time() {
    let passes = |operations: f64, busy: f64, stolen: f64, threads: f64| {
        let cpu = cpu_record(0.0, busy, "cgroup v2", None, (stolen, Some(threads)));
        let checks = processors::checks(&cpu, Some(operations), "");
        checks.iter().all(|check| check.passed || check.id != Some(CheckId::EmulationCpu))
    };
    // Threads that wake up occasionally wait for each other without holding up an operation.
    assert!(passes(0.2, 0.5, 0.0, 0.3));
    // A low-priority program keeps the CPU busy, and no operation waits for it.
    assert!(passes(0.2, 1.0, 0.0, 0.01));
    assert!(!passes(0.2, 1.0, 0.0, 0.06));
    assert!(!passes(0.6, 0.5, 0.0, 0.07));
    // CPU steal on one CPU holds up one operation.
    assert!(!passes(1.0, 0.5, 0.12, 0.0) && passes(1.0, 0.5, 0.04, 0.0));
    assert_eq!(["1", "0,2-3", "5-12"].map(processors::count_of), [1.0, 3.0, 8.0]);
    assert_eq!(processors::count_of(""), 1.0);
}

#[test]
fn system_beyond_short_slices_is_not_faithful() {
    let checked = |due_cpus: f64, throttled_share: f64| {
        let cpu = cpu_record(0.0, 0.5, "cgroup v2", None, (0.0, None));
        let certificate = certificate_on(&CpuRecord { due_cpus, throttled_share, ..cpu });
        certificate.checks.into_iter().find(|check| check.id == Some(CheckId::CpuSlices))
    };
    let wanting = checked(1.0 / 48.0, 1.0).unwrap();
    assert!(!wanting.passed && wanting.finding.contains("2.1 % of a CPU"), "{}", wanting.finding);
    assert!(!CheckId::CpuSlices.is_mended_by_slower_motion(), "slower motion has shorter ones");
    assert!(checked(1.0 / 48.0, 0.1).unwrap().passed);
    assert_eq!(checked(1.0 / 32.0, 1.0), None);
}

#[test]
fn search_is_delayed_by_waits_for_emulation() {
    let search = |threads: f64| SearchObservation {
        devices: Vec::new(),
        paths: Vec::new(),
        cpu: Some(cpu_record(0.0, 0.88, "cgroup v2", None, (0.0, Some(threads)))),
        pauses: PauseRecord::default(),
        stopped: None,
        threads: 20,
    };
    assert_eq!(search_findings(&search(1.0), 24.0), Vec::<String>::new());
    let found = search_findings(&search(3.6), 24.0);
    assert!(found.len() == 1 && found[0].starts_with("search: emulation CPU"), "{found:?}");
}

/// Without a device whose requests could show more.
fn mended(certificate: &Certificate) -> Option<String> {
    too_fast(certificate, &[], &[], 4.0, &[]).map(|found| found.finding)
}

#[test]
fn slower_motion_fixes_lateness() {
    assert_eq!(mended(&certify_cpu(0.0, 0.5, "cgroup v2")), None);
    let busy = mended(&certify_cpu(0.0, 0.95, "cgroup v2")).unwrap();
    assert!(
        busy.starts_with("emulation CPU: 100 % of the time of CPU 1, where the load generator"),
        "{busy}"
    );
    let devices = [device(1000, 1300)];
    let late = certificate_of(&devices, 50_000.0, 0.0);
    let found = too_fast(&late, &devices, &[], 8.0, &[]).unwrap().finding;
    assert!(found.starts_with("device latency mean: modelled 1.000 ms"), "{found}");
    // The effect of CPU steal on a system that may use all CPUs is unknown.
    assert_eq!(mended(&certificate_of(&[device(1000, 1000)], 50_000.0, 0.5)), None);
}

#[test]
fn dependent_requests_wait_as_long_in_slower_motion() {
    // 30 ms of wall time at x100: a CPU never delays a request so long on average, but an earlier flush does.
    let devices = [device(1000, 1300)];
    let late = certificate_of(&devices, 50_000.0, 0.0);
    assert_eq!(failed(&late).first(), Some(&CheckId::DeviceLatencyMean));
    assert_eq!(too_fast(&late, &devices, &[], 100.0, &[]), None);
    assert!(too_fast(&late, &devices, &[], 50.0, &[]).is_some());
}

/// By its id alone: names do not matter.
fn given_up_for(check: CheckId, time: f64) -> GivenUp {
    GivenUp {
        time,
        cell: "a".into(),
        finding: String::new(),
        check_id: Some(check),
        check: None,
        late_us: None,
        extent: None,
    }
}

#[test]
fn slowdown_that_did_not_help_is_not_repeated() {
    let devices = [device(1000, 1300)];
    let late = certificate_of(&devices, 50_000.0, 0.0);
    let given_up = |time: f64, late_us: f64| GivenUp {
        late_us: Some(late_us),
        ..given_up_for(CheckId::DeviceLatencyMean, time)
    };
    let found = |earlier: &GivenUp| {
        too_fast(&late, &devices, &[], 12.0, &[earlier])
            .map(|found| (found.check, found.late_us.unwrap().round()))
    };
    // 300 µs of modelled time, as in faster motion: requests wait for each other. The median is no better.
    let unchanged = given_up(6.0, 310.0);
    assert_eq!(found(&unchanged), Some((CheckId::DeviceLatencyP50, 300.0)));
    let [mean, p50, p99] = [CheckId::DeviceLatencyMean, CheckId::DeviceLatencyP50, CheckId::DeviceLatencyP99]
        .map(|id| GivenUp { check_id: Some(id), ..unchanged.clone() });
    assert_eq!(too_fast(&late, &devices, &[], 12.0, &[&mean, &p50, &p99]), None);
    // Twice as late before: the cause is the host's CPUs, which have more time in slower motion.
    assert_eq!(found(&given_up(6.0, 600.0)), Some((CheckId::DeviceLatencyMean, 300.0)));
    // The same factor proves nothing, nor does another check.
    assert!(found(&given_up(12.0, 300.0)).is_some());
    assert!(found(&GivenUp { check_id: None, ..unchanged }).is_some());
}

#[test]
fn full_emulation_cpu_recurs_at_every_factor() {
    let busy = certify_cpu(0.0, 1.0, "cgroup v2");
    let given_up = |extent: f64| GivenUp { extent: Some(extent), ..given_up_for(CheckId::EmulationCpu, 1.0) };
    let extent =
        busy.checks.iter().find(|check| check.id == Some(CheckId::EmulationCpu)).unwrap().extent.unwrap();
    let again = |earlier: &GivenUp| too_fast(&busy, &[], &[], 4.0, &[earlier, earlier]);
    assert_eq!(again(&given_up(extent)), None);
    assert!(again(&given_up(extent * 1.5)).is_some(), "it fell by a third");
    assert!(again(&GivenUp { extent: None, ..given_up(extent) }).is_some(), "an older record");
    // A program that uses all of the time does so even if half would be enough.
    assert!(too_fast(&busy, &[], &[], 4.0, &[&given_up(extent)]).is_some());
}

#[test]
fn slower_motion_mends_a_generator_without_headroom() {
    let devices = [device(1000, 1000)];
    let short = certificate_of(&devices, 1.0, 0.0);
    assert_eq!(failed(&short), [CheckId::GeneratorHeadroom]);
    assert!(too_fast(&short, &devices, &[], 4.0, &[]).is_some());
}

/// Half the requests are absorbed writes, half are flushes, and the writes have a tail. It reaches the median as soon
/// as there is one write more than half.
#[test]
fn median_between_modes_is_no_finding() {
    let device = |writes: u64| {
        let (mut asked, mut got) = (Histogram::default(), Histogram::default());
        asked.record_n_ns(115_000, writes);
        asked.record_n_ns(8_000_000, 1000);
        got.record_n_ns(116_000, writes - 20);
        got.record_n_ns(160_000, 20);
        got.record_n_ns(8_010_000, 1000);
        DeviceActivity { modelled: Some(asked), delivered: Some(got), ..DeviceActivity::default() }
    };
    for writes in [960, 999, 1000, 1001, 1010, 1100] {
        let certificate = certificate_of(&[device(writes)], 50_000.0, 0.0);
        assert_eq!(failed(&certificate), Vec::<CheckId>::new(), "{writes} writes");
    }
    // A median that is late away from any edge still counts.
    let mut late = device(2000);
    late.delivered = Some(Histogram::default());
    late.delivered.as_mut().unwrap().record_n_ns(135_000, 2000);
    late.delivered.as_mut().unwrap().record_n_ns(8_010_000, 1000);
    assert_eq!(failed(&certificate_of(&[late], 50_000.0, 0.0)), [CheckId::DeviceLatencyP50]);
}

#[test]
fn real_storage_is_said_to_be_real() {
    assert_eq!(
        certificate_of(&[DeviceActivity::default()], 50_000.0, 0.0).verdict,
        CertificateVerdict::RealStorage
    );
}

#[test]
fn unmeasured_cell_is_never_faithful() {
    let devices = [device(1000, 1000)];
    let certify_with = |measured: &MeasuredWindow, aftermath: &RunAftermath, enforced: bool| {
        certify(&CertificateEvidence {
            devices: &devices,
            measured: Some(measured),
            floor_us: Some(10.0),
            aftermath: *aftermath,
            memory_enforced: Some(enforced),
            open_loop: true,
            ..CertificateEvidence::default()
        })
    };
    let mut answered = Histogram::default();
    answered.record_n_ns(1_000_000, 1000);
    let latency = RecordedLatency::new(answered);
    let fine =
        MeasuredWindow { throughput_per_s: 1000.0, operations: 1000, latency, ..MeasuredWindow::default() };
    let steady = RunAftermath::default();
    // Each check below changes one property of this passing cell.
    assert_eq!(certify_with(&fine, &steady, true).verdict, CertificateVerdict::Faithful);
    assert_eq!(failed(&certify_with(&fine, &steady, false)), [CheckId::MemoryBudget]);
    assert_eq!(
        failed(&certify_with(&MeasuredWindow::default(), &steady, true)),
        [CheckId::OperationsAnswered]
    );
    let third_failed = certify_with(&MeasuredWindow { errors: 500, ..fine.clone() }, &steady, true);
    assert_eq!(failed(&third_failed), [CheckId::OperationsAnswered]);
    let finding = &third_failed.failed().next().unwrap().finding;
    assert!(finding.starts_with("1500 operations: 500 failed and 0 found no record"), "{finding}");
    // A lost client takes its part of the offered rate with it, so both checks fail.
    let lost = RunAftermath { lost_threads: 1, unstarted: 9, ..RunAftermath::default() };
    assert_eq!(failed(&certify_with(&fine, &lost, true)), [CheckId::Clients, CheckId::OfferedRate]);
}

#[test]
fn window_must_outlast_an_operation() {
    let check_for = |duration_s: f64| {
        let mut of_half_a_second = Histogram::default();
        of_half_a_second.record_n_ns(500_000_000, 360);
        let service = RecordedLatency::new(of_half_a_second);
        let reads =
            OperationStats { count: 360, latency: service.clone(), service, ..OperationStats::default() };
        let measured = MeasuredWindow {
            operations: 360,
            throughput_per_s: 360.0 / duration_s,
            duration_s,
            by_operation: BTreeMap::from([("READ".to_owned(), reads)]),
            ..MeasuredWindow::default()
        };
        window_check(&measured).unwrap()
    };
    assert!(check_for(0.6).passed);
    let short = check_for(0.25);
    assert!(!short.passed);
    assert!(
        short.finding.contains("500.0 ms in the mean") && short.finding.contains("250.0 ms"),
        "{short:?}"
    );
    assert_eq!(window_check(&MeasuredWindow::default()), None);
}

#[test]
fn operations_beside_the_measured_ones_are_under_way_too() {
    let operations = |count: u64| {
        let mut of_ten_milliseconds = Histogram::default();
        of_ten_milliseconds.record_n_ns(10_000_000, count);
        let service = RecordedLatency::new(of_ten_milliseconds);
        let reads = OperationStats { count, service, ..OperationStats::default() };
        BTreeMap::from([("READ".to_owned(), reads)])
    };
    let mut measured =
        MeasuredWindow { duration_s: 1.0, by_operation: operations(100), ..MeasuredWindow::default() };
    assert!((mean_in_flight(&measured) - 1.0).abs() < 1e-3);
    measured.beside = Some(BesideMeasured { by_operation: operations(1600), ..BesideMeasured::default() });
    assert!((mean_in_flight(&measured) - 17.0).abs() < 1e-2, "{}", mean_in_flight(&measured));
}
