//! The warnings to a reader of a run's figures.

use crate::fixture;
use underlay_record::{
    CertificateVerdict, Check, CheckId, CoveredShare, CpuRecord, DeviceInputs, EstimateShare,
    InputCertificate,
};
use underlay_report::{LoadedRun, export, html, terminal};

/// The inputs of every cell but the baseline's: so much of its device time rests on estimates, and what it takes with
/// them half or double.
fn with_inputs(loaded: &mut LoadedRun, estimated: f64, [fast, slow]: [f64; 2], own_time: Option<f64>) {
    let baseline = loaded.run.baseline.clone();
    for record in &mut loaded.records {
        let is_guessed = record.cell.storage != baseline;
        let estimated = if is_guessed { estimated } else { 0.0 };
        let inputs = DeviceInputs {
            requests: 1000,
            covered: CoveredShare { kind: 1.0, size: 1.0, depth: 0.9, mix: 0.0, all: 0.9 },
            estimated,
            estimates: vec![EstimateShare { name: "read_latency_us".to_owned(), share: estimated }],
            time_if_fast: if is_guessed { fast } else { 1.0 },
            time_if_slow: if is_guessed { slow } else { 1.0 },
        };
        let certificate = InputCertificate::from_devices(&[(1.0, &inputs)]);
        record.inputs = certificate.map(|inputs| inputs.with_own_time(own_time.filter(|_| is_guessed)));
    }
}

fn texts(loaded: &LoadedRun, severity: &str) -> Vec<String> {
    let json: serde_json::Value = serde_json::from_str(&export::json(loaded)).expect("JSON");
    let warnings = json["warnings"].as_array().expect("a list").clone();
    let of_severity = warnings.into_iter().filter(|one| one["severity"] == severity);
    of_severity.map(|one| one["text"].as_str().expect("text").to_owned()).collect()
}

/// The drives are 18 times as fast: half or double estimates leave them faster by far.
#[test]
fn measured_share_is_a_note_without_possible_reversal() {
    let mut loaded = fixture::small();
    let clean = [terminal::comparison(&loaded, 200, false), html::render(&loaded)];
    assert!(clean.iter().all(|text| !text.contains("measured figures") && !text.contains("measured inputs")));
    with_inputs(&mut loaded, 0.8, [0.9, 1.2], None);
    let text = terminal::comparison(&loaded, 200, false);
    assert!(!text.contains("! INPUTS"), "{text}");
    assert!(
        text.contains("Device time that rests on measured figures: hdd 90 %, sata-ssd 20 %, nvme 20 %"),
        "{text}"
    );
    let page = html::render(&loaded);
    assert!(!page.contains("⚠ inputs") && page.contains("20 % measured inputs"));
    assert!(texts(&loaded, "turns").is_empty());
    let notes = texts(&loaded, "note");
    let note = notes.iter().find(|text| text.contains("measured figures")).expect("told as a note");
    let words = "20 % of device time rests on measured figures: 90 % of the I/O is like what the media's sources measured, and 80 % of \
                 device time rests on estimates (read_latency_us 80 %)";
    assert_eq!(note, words);
    let found = export::export(&loaded);
    assert!(found.cells.iter().all(|cell| !cell.conclusion_can_turn));
    let baseline = &loaded.run.baseline;
    let other = found
        .cells
        .iter()
        .find(|cell| cell.storage != *baseline && cell.ratio_to_baseline.is_some())
        .unwrap();
    let (ratio, range) = (other.ratio_to_baseline.unwrap(), other.ratio_if_estimates_off.unwrap());
    assert!(
        (range.low - ratio / 1.2).abs() < 1e-9 * ratio && (range.high - ratio / 0.9).abs() < 1e-9 * ratio
    );
    assert!((other.inputs_measured.unwrap() - 0.2).abs() < 1e-9);
    assert!(export::csv(&loaded).contains(",uncertain,0.9,0.8,,0.19999999999999996,false,"));
}

#[test]
fn alarm_is_raised_when_halved_estimates_reverse_conclusion() {
    let mut loaded = fixture::small();
    // As slow as the hard disks with every estimate at its slower end.
    with_inputs(&mut loaded, 0.9, [0.1, 25.0], None);
    let text = terminal::comparison(&loaded, 200, false);
    assert!(text.contains("faithful, ! INPUTS"), "{text}");
    let turns = texts(&loaded, "turns");
    assert!(
        turns.iter().any(|text| text.starts_with("nvme against hdd: ") && text.contains("could be 0.7")),
        "{turns:?}"
    );
    // Which of the two drives is the faster rests on their estimates as well.
    assert!(turns.iter().any(|text| text.starts_with("nvme against sata-ssd: ")), "{turns:?}");
    let page = html::render(&loaded);
    assert!(page.contains("⚠ inputs") && page.contains("Conclusions that rest on estimates"));
    assert!(export::export(&loaded).cells.iter().any(|cell| cell.conclusion_can_turn));
    assert!(export::csv(&loaded).contains(",true,"));
}

/// Drives of one medium have the same estimates: the one doesn't become faster while the other becomes slower.
#[test]
fn storages_of_one_medium_shift_together() {
    let mut loaded = fixture::small();
    for record in loaded.records.iter_mut().filter(|record| record.cell.storage == "sata-ssd") {
        for device in &mut record.storage.devices {
            device.medium = Some("nvme-9300-max".to_owned());
        }
    }
    with_inputs(&mut loaded, 0.8, [0.6, 1.8], None);
    assert!(texts(&loaded, "turns").is_empty(), "{:?}", texts(&loaded, "turns"));
    for record in loaded.records.iter_mut().filter(|record| record.cell.storage == "sata-ssd") {
        for device in &mut record.storage.devices {
            device.medium = Some("ssd-dc600m-960".to_owned());
        }
    }
    let turns = texts(&loaded, "turns");
    assert!(turns.iter().any(|text| text.starts_with("nvme against sata-ssd: ")), "{turns:?}");
}

/// All is known of its devices, and nothing of how long the program computes beside them on the study's machine.
#[test]
fn program_bound_cells_alarm_only_on_possible_reversal() {
    let mut loaded = fixture::small();
    with_inputs(&mut loaded, 0.0, [1.0, 1.0], Some(4.2));
    let notes = texts(&loaded, "note");
    let note = notes.iter().find(|text| text.starts_with("Slow motion speeds up")).expect("told as a note");
    assert!(note.contains("operations would take up to 4.2 times as long"), "{note}");
    // Nothing else is wrong with them.
    assert!(!notes.iter().any(|text| text.contains("measured figures")), "{notes:?}");
    assert!(!texts(&loaded, "turns").iter().any(|text| text.starts_with("nvme against hdd")));
    assert!(export::csv(&loaded).contains(",uncertain,0.9,0,4.2,0.9,"));
    with_inputs(&mut loaded, 0.0, [1.0, 1.0], Some(30.0));
    assert!(texts(&loaded, "turns").iter().any(|text| text.starts_with("nvme against hdd")));
    let text = terminal::comparison(&loaded, 1000, false);
    assert!(text.contains("compare with more clients"), "{text}");
}

/// Five checks of one cell are one warning, with its remedy once.
#[test]
fn checks_failed_together_are_one_warning() {
    let mut loaded = fixture::small();
    for record in loaded.records.iter_mut().filter(|record| record.cell.storage == "nvme") {
        let Some(certificate) = &mut record.certificate else { continue };
        certificate.verdict = CertificateVerdict::Doubtful;
        let failed = |(id, extent): (CheckId, f64)| {
            Check::new(id, false, format!("{:.0} % late", extent * 100.0))
                .with_extent(extent + f64::from(record.repetition))
                .with_remedy("use slower motion than x12")
        };
        let checks = [
            (CheckId::DeviceLatencyMean, 0.8),
            (CheckId::DeviceLatencyP50, 0.6),
            (CheckId::DeviceLatencyP99, 1.08),
        ];
        certificate.checks = checks.map(failed).into();
    }
    let doubts = texts(&loaded, "doubtful");
    assert_eq!(
        doubts,
        ["Doubtful, device latency mean: 80 % late; p50: 60 % late; p99: 108 % late, in the worst case"]
    );
    let text = terminal::comparison(&loaded, 200, false);
    assert_eq!(text.matches("use slower motion than x12").count(), 1, "{text}");
    let page = html::render(&loaded);
    let (answer, cards, warnings) =
        (page.find("class=\"answer\""), page.find("class=\"cards\""), page.find("class=\"box doubt\""));
    assert!(answer < cards && cards < warnings && answer.is_some(), "{answer:?} {cards:?} {warnings:?}");
}

#[test]
fn cpu_bound_cells_report_slower_cpus() {
    let warning_for = |took_us: f64, used_cpus: f64| {
        let mut loaded = fixture::small();
        for (index, record) in loaded.records.iter_mut().enumerate() {
            let is_slower = index == 0;
            record.cpu = Some(CpuRecord {
                modelled_cores: 4,
                due_cpus: 0.5,
                held_to_cpus: 0.5,
                enforced_by: "cgroup v2".to_owned(),
                used_cpus: if is_slower { used_cpus } else { 0.1 },
                servers: 1,
                throttled_share: 0.0,
                lost_share: 0.0,
                waited_share: None,
                system_cpus: "1".to_owned(),
                system_stolen_share: 0.0,
                emulation_cpus: "0".to_owned(),
                emulation_busy_share: 0.1,
                emulation_stolen_share: 0.0,
                emulation_waiting_threads: None,
                speed_probe_us: Some(if is_slower { took_us } else { 40.0 }),
                reference_probe_us: None,
                allowed_slowdown: None,
                extra_ticks: 0,
            });
        }
        let warnings = export::export(&loaded).warnings;
        warnings.into_iter().find(|one| one.text.starts_with("This host's CPUs")).map(|one| one.text)
    };
    assert!(warning_for(60.0, 0.45).is_some_and(|text| text.contains("50 % longer")));
    assert_eq!(warning_for(44.0, 0.45), None, "repetitions differ by as much");
    assert_eq!(warning_for(60.0, 0.2), None, "it waited for its storage");
}

#[test]
fn short_run_names_duration_needed_for_percentile() {
    let mut loaded = fixture::small();
    for record in &mut loaded.records {
        let Some(measured) = &mut record.measured else { continue };
        // 3 x 1,000 operations are three beyond p99.9.
        measured.latency = underlay_record::RecordedLatency::new(fixture::log_normal(1_000.0, 0.6, 1_000));
    }
    let warnings = export::export(&loaded).warnings;
    let found = warnings.iter().find(|one| one.text.starts_with("No p99.9 latency")).expect("told");
    assert_eq!(found.remedy.as_deref(), Some("set `duration` to 13 min 20 s or more"));
}
