//! Cells to which something was done on purpose: never averaged with others, never in an answer as if nothing had been
//! done.

use crate::fixture;
use underlay_record::{
    CertificateVerdict, DisturbedBy, EarlierFault, FaultRecord, NodeEventRecord, RunRecord, disturbance,
    soundness,
};
use underlay_report::ab::AbComparison;
use underlay_report::export::{self, CellExport};
use underlay_report::{LoadedRun, RunComparison, answer, html, terminal};

fn fault(disturbed_by: Option<DisturbedBy>) -> FaultRecord {
    FaultRecord {
        t_s: 2.0,
        until_s: Some(4.0),
        what: "slow: everything takes 10 times as long".to_owned(),
        by: disturbed_by,
        ended_by_hand: false,
    }
}

/// Slowed down, so that an average with it would show.
fn disturb(record: &mut RunRecord, disturbed_by: Option<DisturbedBy>) {
    record.devices[0].faults.push(fault(disturbed_by));
    record.mark_disturbed();
    let measured = record.measured.as_mut().unwrap();
    measured.operations /= 10;
    for point in &mut measured.series {
        point.throughput_per_s /= 10.0;
    }
}

fn find_cell<'a>(loaded: &'a mut LoadedRun, storage: &str, mix: &str) -> Vec<&'a mut RunRecord> {
    let is_it = |record: &&mut RunRecord| {
        record.cell.storage == storage && record.cell.mix_or_job() == mix && record.measured.is_some()
    };
    loaded.records.iter_mut().filter(is_it).collect()
}

fn exported(loaded: &LoadedRun, storage: &str, mix: &str) -> CellExport {
    let all = export::export(loaded).cells;
    all.into_iter().find(|cell| cell.storage == storage && cell.mix == mix).unwrap()
}

#[test]
fn manually_disturbed_repetition_is_not_averaged() {
    let clean = fixture::small();
    let mut loaded = fixture::small();
    disturb(find_cell(&mut loaded, "nvme", "a").remove(1), Some(DisturbedBy::Hand));
    let (before, after) = (exported(&clean, "nvme", "a"), exported(&loaded, "nvme", "a"));
    assert_eq!((after.state, after.repetitions), ("completed", before.repetitions - 1));
    assert_eq!(after.certificate.verdict, Some(CertificateVerdict::Faithful));
    let ratio = after.throughput_per_s.unwrap() / before.throughput_per_s.unwrap();
    assert!((0.97..1.03).contains(&ratio), "{ratio}");
    let [left_out] = &after.disturbed[..] else { panic!("{:?}", after.disturbed) };
    assert_eq!((left_out.repetition, left_out.by, left_out.is_left_out), (2, DisturbedBy::Hand, true));
    let expected = "Repetition 2 was disturbed by hand and is left out: ";
    for text in [terminal::comparison(&loaded, 200, false), html::render(&loaded)] {
        assert!(text.contains(expected) && text.contains("--resume"), "{text}");
    }
}

#[test]
fn manually_disturbed_cell_has_no_figures_or_conclusions() {
    let mut loaded = fixture::small();
    for record in find_cell(&mut loaded, "nvme", "a") {
        disturb(record, Some(DisturbedBy::Hand));
    }
    let cell = exported(&loaded, "nvme", "a");
    assert_eq!((cell.state, cell.certificate.verdict), ("disturbed", Some(CertificateVerdict::Disturbed)));
    assert_eq!((cell.throughput_per_s, cell.ratio_to_baseline), (None, None));
    assert!(cell.reason.as_ref().unwrap().contains("10 times as long"), "{:?}", cell.reason);
    let sentence = answer::sentence(&loaded);
    assert!(sentence.contains("1 cell was disturbed by hand") && sentence.contains("--resume"), "{sentence}");
    // The rest is that of the other mixes.
    let conclude = |loaded: &LoadedRun| {
        let comparison = RunComparison::from_loaded(loaded);
        answer::summarize_changes(&comparison)
    };
    let mut reduced = fixture::small();
    reduced.records.retain(|record| !(record.cell.storage == "nvme" && record.cell.mix_or_job() == "a"));
    assert_eq!(conclude(&loaded), conclude(&reduced));
    let csv = export::csv(&loaded);
    let line = csv.lines().find(|line| line.contains(",rocksdb,nvme,a")).unwrap();
    assert!(line.contains(",disturbed,") && line.contains(",hand,3,"), "{line}");
    let text = terminal::comparison(&loaded, 200, false);
    assert!(text.contains("disturbed by hand, and left out: "), "{text}");
    // The page draws what was done, and says so.
    assert!(html::render(&loaded).contains("nvme, disturbed by hand"));
}

#[test]
fn manually_disturbed_baseline_is_not_called_unmeasured() {
    let disturbed = |are_others: bool, is_baseline: bool| {
        let mut loaded = fixture::small();
        for record in loaded.records.iter_mut().filter(|record| record.measured.is_some()) {
            let is_of_baseline = record.cell.storage == "hdd";
            let is_meant = if is_of_baseline { is_baseline } else { are_others };
            if is_meant {
                disturb(record, Some(DisturbedBy::Hand));
            }
        }
        answer::summarize_changes(&RunComparison::from_loaded(&loaded))
    };
    let sentence = disturbed(false, true);
    assert!(sentence.contains("the measurement on hdd was disturbed by hand and is left out"), "{sentence}");
    let sentence = disturbed(true, false);
    assert!(sentence.contains("the measurements beside hdd were disturbed by hand"), "{sentence}");
    let sentence = disturbed(true, true);
    assert!(sentence.contains("No answer yet: all that was measured was disturbed by hand"), "{sentence}");
}

#[test]
fn study_fault_is_compared_and_named() {
    let mut loaded = fixture::small();
    for record in find_cell(&mut loaded, "nvme", "a") {
        disturb(record, Some(DisturbedBy::Study));
    }
    let cell = exported(&loaded, "nvme", "a");
    assert_eq!((cell.state, cell.certificate.verdict), ("completed", Some(CertificateVerdict::Disturbed)));
    assert!(cell.ratio_to_baseline.is_some() && cell.disturbed.len() == 3);
    let sentence = answer::sentence(&loaded);
    assert!(sentence.contains("1 of 7 cells is disturbed by the study"), "{sentence}");
    let text = terminal::comparison(&loaded, 200, false);
    assert!(text.lines().any(|line| line.contains("nvme") && line.contains("disturbed")), "{text}");
    assert!(html::render(&loaded).contains("disturbed by the study"));
    assert!(
        export::csv(&loaded).lines().any(|line| line.contains(",disturbed,") && line.contains(",study,0,"))
    );
}

#[test]
fn repetitions_hit_by_study_fault_count_with_others() {
    for met in [1, 2] {
        let mut loaded = fixture::small();
        for record in find_cell(&mut loaded, "nvme", "a").into_iter().take(met) {
            disturb(record, Some(DisturbedBy::Study));
        }
        let cell = exported(&loaded, "nvme", "a");
        assert_eq!((cell.repetitions, cell.certificate.verdict), (3, Some(CertificateVerdict::Disturbed)));
        assert!(cell.disturbed.len() == met && cell.disturbed.iter().all(|one| !one.is_left_out));
        let text = html::render(&loaded);
        assert!(text.contains(&format!("met only {met} of 3 repetitions")), "{text}");
        let records: Vec<&RunRecord> =
            find_cell(&mut loaded, "nvme", "a").into_iter().map(|one| &*one).collect();
        assert!(soundness::select_sound(&records).is_err(), "nothing is learnt from it");
    }
}

#[test]
fn manual_disturbance_outweighs_that_of_study() {
    let mut loaded = fixture::small();
    for record in find_cell(&mut loaded, "nvme", "a") {
        disturb(record, Some(DisturbedBy::Study));
        record.devices[0].faults[0].ended_by_hand = true;
    }
    assert_eq!(exported(&loaded, "nvme", "a").state, "disturbed");
}

#[test]
fn earlier_records_are_distinguished_by_study() {
    for (study, expected) in [
        ("", DisturbedBy::Hand),
        ("[fault.slow]\nat = \"2 s\"\nstorage = \"hdd\"\nslow = 10\n", DisturbedBy::Hand),
        ("[fault.slow]\nat = \"2 s\"\nstorage = \"nvme\"\nslow = 10\n", DisturbedBy::Study),
        ("[fault.slow]\nat = \"2 s\"\nslow = 10\n", DisturbedBy::Study),
        ("no study [", DisturbedBy::Hand),
    ] {
        let mut loaded = fixture::small();
        loaded.run.study_toml = study.to_owned();
        let mut record = find_cell(&mut loaded, "nvme", "a").remove(0).clone();
        disturb(&mut record, None);
        loaded.run.attribute_faults(&mut record);
        assert_eq!(record.disturbed_by(), Some(expected), "{study}");
        assert_eq!(record.verdict(), Some(CertificateVerdict::Disturbed));
        // One more than the study has was done by hand.
        record.devices[0].faults.push(fault(None));
        loaded.run.attribute_faults(&mut record);
        assert_eq!(record.disturbed_by(), Some(DisturbedBy::Hand), "{study}");
    }
}

#[test]
fn earlier_faults_are_matched_by_device_and_kind() {
    for (keys, expected) in [
        ("device = 0\nslow = 10\n", DisturbedBy::Study),
        ("device = 1\nslow = 10\n", DisturbedBy::Hand),
        ("slow = 3\n", DisturbedBy::Hand),
        ("vanish = true\n", DisturbedBy::Hand),
    ] {
        let mut loaded = fixture::small();
        loaded.run.study_toml = format!("[fault.one]\nat = \"2 s\"\n{keys}");
        let mut record = find_cell(&mut loaded, "nvme", "a").remove(0).clone();
        record.devices[0].description.id.name = "nvme.0".to_owned();
        disturb(&mut record, None);
        loaded.run.attribute_faults(&mut record);
        assert_eq!(record.disturbed_by(), Some(expected), "{keys}");
    }
}

#[test]
fn fault_before_measurement_counts_unless_slow_and_past() {
    let mut loaded = fixture::small();
    let mut record = find_cell(&mut loaded, "nvme", "a").remove(0).clone();
    let earlier = |only_slows: bool, lasted_s: f64, ended_before_s: f64| EarlierFault {
        what: "slow".to_owned(),
        by: DisturbedBy::Hand,
        ended_by_hand: false,
        only_slows,
        lasted_s,
        ended_before_s,
    };
    for (fault, counts) in [
        (earlier(true, 2.0, 2.0), false),
        (earlier(true, 2.0, 1.9), true),
        (earlier(false, 0.1, 1_000.0), true),
    ] {
        record.devices[0].earlier_faults = vec![fault];
        assert_eq!(record.disturbed_by().is_some(), counts, "{:?}", record.devices[0].earlier_faults);
    }
}

#[test]
fn manual_node_stop_disturbs_unless_in_vain() {
    let mut loaded = fixture::small();
    let record = find_cell(&mut loaded, "nvme", "a").remove(0).clone();
    let event = |event: Option<&str>, away_s: Option<f64>, started_by_hand: bool| {
        let event = event.map(str::to_owned);
        let mut record = record.clone();
        record.node_events =
            vec![NodeEventRecord { event, away_s, started_by_hand, ..NodeEventRecord::default() }];
        record.disturbed_by()
    };
    assert_eq!(event(None, Some(3.0), false), Some(DisturbedBy::Hand));
    assert_eq!(event(None, Some(0.0), false), Some(DisturbedBy::Hand), "while it warmed up");
    assert_eq!(event(None, Some(1e6), false), None, "after the end");
    assert_eq!(event(Some("crash"), Some(3.0), false), Some(DisturbedBy::Study));
    assert_eq!(event(Some("crash"), Some(3.0), true), Some(DisturbedBy::Hand));
    assert_eq!(event(Some("crash"), None, false), None);
}

#[test]
fn two_runs_are_not_compared_in_what_somebody_disturbed() {
    let clean = fixture::small();
    let mut by_hand = fixture::small();
    let mut by_study = fixture::small();
    for record in find_cell(&mut by_hand, "nvme", "a") {
        disturb(record, Some(DisturbedBy::Hand));
    }
    for record in find_cell(&mut by_study, "nvme", "a") {
        disturb(record, Some(DisturbedBy::Study));
    }
    let left_out = |a: &LoadedRun, b: &LoadedRun| AbComparison::new(("a", a), ("b", b)).left_out.join("; ");
    assert!(left_out(&clean, &by_hand).contains("rocksdb/nvme/a: B was disturbed by hand in it"));
    assert!(left_out(&by_study, &clean).contains("rocksdb/nvme/a: the study of A disturbs it"));
    let both = AbComparison::new(("a", &by_study), ("b", &by_study));
    assert!(both.cells.iter().any(|cell| cell.is_disturbed));
    assert!(
        both.cautions.iter().any(|caution| caution.contains("disturbed by the study")),
        "{:?}",
        both.cautions
    );
}

/// The one decision that predictions and explanations rest on.
#[test]
fn undisturbed_faithful_steady_cells_are_sound() {
    let mut loaded = fixture::small();
    let records: Vec<RunRecord> =
        find_cell(&mut loaded, "nvme", "a").into_iter().map(|one| one.clone()).collect();
    let judged = |change: &dyn Fn(&mut RunRecord)| {
        let mut records = records.clone();
        change(&mut records[1]);
        let all: Vec<&RunRecord> = records.iter().collect();
        soundness::select_sound(&all).map(|sound| sound.len()).map_err(|reason| reason.to_string())
    };
    assert_eq!(judged(&|_| {}), Ok(3));
    assert_eq!(judged(&|record| disturb(record, Some(DisturbedBy::Hand))), Ok(2));
    let failed = judged(&|record| {
        let seal = record.certificate.as_mut().unwrap();
        (seal.verdict, seal.checks[0].passed) = (CertificateVerdict::Doubtful, false);
    });
    assert!(failed.as_ref().unwrap_err().contains("device latency p50: 1.2 % above"), "{failed:?}");
    assert!(judged(&|record| record.certificate = None).unwrap_err().contains("no certificate"));
    let rising = judged(&|record| {
        for (index, point) in record.measured.as_mut().unwrap().series.iter_mut().enumerate() {
            point.throughput_per_s *= 1.0 + index as f64 / 20.0;
        }
    });
    assert!(rising.as_ref().unwrap_err().contains("not steady: it rose by"), "{rising:?}");
    assert!(
        judged(&|record| record.measured.as_mut().unwrap().series.clear()).unwrap_err().contains("0 samples")
    );
    let by_study: Vec<RunRecord> = records
        .iter()
        .cloned()
        .map(|mut record| {
            disturb(&mut record, Some(DisturbedBy::Study));
            record
        })
        .collect();
    let refused = soundness::select_sound(&by_study.iter().collect::<Vec<_>>()).unwrap_err();
    assert!(refused.to_string().contains("disturbed by the study"), "{refused}");
    let (counted, left_out) = disturbance::leave_out_by_hand(&by_study.iter().collect::<Vec<_>>());
    assert_eq!((counted.len(), left_out.len()), (3, 0));
}
