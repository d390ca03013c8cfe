//! What a reader of a run's figures is warned of.

mod fixture;

use underlay_record::{Covered, CpuRecord, DeviceInputs, EstimateShare, InputCertificate};
use underlay_report::{export, html, terminal};

/// The timing of these cells is faithful, to a model that rests on a guess.
#[test]
fn cells_whose_inputs_are_uncertain_are_marked_everywhere() {
    let mut loaded = fixture::small();
    let clean = [terminal::comparison(&loaded, 200, false), html::render(&loaded), export::csv(&loaded)];
    assert!(
        clean.iter().all(|text| !text.contains("! INPUTS")
            && !text.contains("⚠ inputs")
            && !text.contains("uncertain"))
    );
    let baseline = loaded.run.baseline.clone();
    for record in &mut loaded.records {
        let is_guessed = record.cell.storage != baseline;
        let estimated = if is_guessed { 0.8 } else { 0.0 };
        let inputs = DeviceInputs {
            requests: 1000,
            covered: Covered { kind: 1.0, size: 1.0, depth: 0.9, mix: 0.0, all: 0.9 },
            estimated,
            estimates: vec![EstimateShare { name: "read_latency_us".to_owned(), share: estimated }],
            time_if_fast: 1.0 - estimated / 2.0,
            time_if_slow: 1.0 + estimated,
        };
        record.inputs = InputCertificate::of(&[(1.0, &inputs)]);
    }
    let text = terminal::comparison(&loaded, 200, false);
    for words in [
        "faithful, ! INPUTS",
        "Uncertain inputs: 90 % of the I/O is like what the media's sources measured, and 80 % of device time rests on estimates (read_latency_us 80 %)",
        "with those half or double",
        "underlay media measure",
    ] {
        assert!(text.contains(words), "'{words}' is not said: {text}");
    }
    assert!(html::render(&loaded).contains("⚠ inputs"));
    let found = export::export(&loaded);
    let other =
        found.cells.iter().find(|cell| cell.storage != baseline && cell.ratio_to_baseline.is_some()).unwrap();
    let (ratio, range) = (other.ratio_to_baseline.unwrap(), other.ratio_if_estimates_off.unwrap());
    assert!(
        (range.low - ratio / 1.8).abs() < 1e-9 * ratio && (range.high - ratio / 0.6).abs() < 1e-9 * ratio
    );
    let own = found.cells.iter().find(|cell| cell.storage == baseline).unwrap();
    assert_eq!(own.ratio_if_estimates_off, None);
    assert!(export::csv(&loaded).contains(",uncertain,0.9,0.8,,"));
}

/// All is known of its devices, and nothing of how long the program computes beside them on the study's machine.
#[test]
fn cells_whose_programs_decide_as_much_as_devices_are_marked_everywhere() {
    let mut loaded = fixture::small();
    let baseline = loaded.run.baseline.clone();
    for record in &mut loaded.records {
        let inputs = DeviceInputs {
            requests: 1000,
            covered: Covered { kind: 1.0, size: 1.0, depth: 0.9, mix: 0.0, all: 0.9 },
            time_if_fast: 1.0,
            time_if_slow: 1.0,
            ..DeviceInputs::default()
        };
        let own_time = (record.cell.storage != baseline).then_some(4.2);
        record.inputs = InputCertificate::of(&[(1.0, &inputs)]).map(|inputs| inputs.with_own_time(own_time));
    }
    let text = terminal::comparison(&loaded, 1000, false);
    for words in [
        "faithful, ! INPUTS",
        "Uncertain inputs: slow motion speeds up what its programs compute between their requests",
        "operations would take up to 4.2 times as long",
        "compare storages with more clients",
    ] {
        assert!(text.contains(words), "'{words}' is not said: {text}");
    }
    // Nothing else is wrong with them.
    assert!(!text.contains("like what the media's sources measured"), "{text}");
    let page = html::render(&loaded);
    assert!(page.contains("⚠ inputs") && page.contains("up to 4.2 times as long"));
    assert!(export::csv(&loaded).contains(",uncertain,0.9,0,4.2,"));
    let found = export::export(&loaded);
    let other = found.cells.iter().find(|cell| cell.storage != baseline && cell.inputs.is_some()).unwrap();
    assert_eq!(other.inputs.as_ref().unwrap().own_time, Some(4.2));
}

#[test]
fn cells_that_their_cpus_limit_say_when_these_were_slower() {
    let told = |took_us: f64, used_cpus: f64| {
        let mut loaded = fixture::small();
        for (index, record) in loaded.records.iter_mut().enumerate() {
            let is_slower = index == 0;
            record.cpu = Some(CpuRecord {
                modelled_cores: 4,
                due_cpus: 0.5,
                held_to_cpus: 0.5,
                enforced_by: "cgroup v2".to_owned(),
                used_cpus: if is_slower { used_cpus } else { 0.1 },
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
    assert!(told(60.0, 0.45).is_some_and(|text| text.contains("50 % longer")));
    assert_eq!(told(44.0, 0.45), None, "repetitions differ by as much");
    assert_eq!(told(60.0, 0.2), None, "it waited for its storage");
}

#[test]
fn a_run_too_short_for_a_percentile_says_how_long_it_should_be() {
    let mut loaded = fixture::small();
    for record in &mut loaded.records {
        let Some(measured) = &mut record.measured else { continue };
        // 3 x 1,000 operations are three beyond p99.9.
        measured.latency = underlay_record::Latency::of(fixture::log_normal(1_000.0, 0.6, 1_000));
    }
    let warnings = export::export(&loaded).warnings;
    let found = warnings.iter().find(|one| one.text.starts_with("No p99.9 latency")).expect("told");
    assert_eq!(found.remedy.as_deref(), Some("set `duration` to 13 min 20 s or more"));
}
