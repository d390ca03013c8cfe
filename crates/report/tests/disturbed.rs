//! Cells to which something was done on purpose: never averaged with others, never in an answer as if nothing had been done.

mod fixture;

use underlay_record::{
    CertificateVerdict, DisturbedBy, EarlierFault, FaultRecord, NodeEventRecord, RunRecord, disturbance,
    soundness,
};
use underlay_report::ab::AbComparison;
use underlay_report::export::{self, CellExport};
use underlay_report::{LoadedRun, RunComparison, answer, html, terminal};

fn fault(by: Option<DisturbedBy>) -> FaultRecord {
    FaultRecord {
        t_s: 2.0,
        until_s: Some(4.0),
        what: "slow: everything takes 10 times as long".to_owned(),
        by,
        ended_by_hand: false,
    }
}

/// Slowed down, so that an average with it would show.
fn disturb(record: &mut RunRecord, by: Option<DisturbedBy>) {
    record.devices[0].faults.push(fault(by));
    record.mark_disturbed();
    let measured = record.measured.as_mut().unwrap();
    measured.operations /= 10;
    for point in &mut measured.series {
        point.throughput_per_s /= 10.0;
    }
}

fn of_cell<'a>(loaded: &'a mut LoadedRun, storage: &str, mix: &str) -> Vec<&'a mut RunRecord> {
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
fn a_repetition_that_was_disturbed_by_hand_is_not_averaged_with_the_others() {
    let clean = fixture::small();
    let mut loaded = fixture::small();
    disturb(of_cell(&mut loaded, "nvme", "a").remove(1), Some(DisturbedBy::Hand));
    let (before, after) = (exported(&clean, "nvme", "a"), exported(&loaded, "nvme", "a"));
    assert_eq!((after.state, after.repetitions), ("completed", before.repetitions - 1));
    assert_eq!(after.certificate.verdict, Some(CertificateVerdict::Faithful));
    let ratio = after.throughput_per_s.unwrap() / before.throughput_per_s.unwrap();
    assert!((0.97..1.03).contains(&ratio), "{ratio}");
    let [left_out] = &after.disturbed[..] else { panic!("{:?}", after.disturbed) };
    assert_eq!((left_out.repetition, left_out.by, left_out.is_left_out), (2, DisturbedBy::Hand, true));
    let said = "Repetition 2 was disturbed by hand and is left out: ";
    for text in [terminal::comparison(&loaded, 200, false), html::render(&loaded)] {
        assert!(text.contains(said) && text.contains("--resume"), "{text}");
    }
}

#[test]
fn a_cell_that_was_disturbed_by_hand_has_no_figures_and_no_part_in_the_answer() {
    let mut loaded = fixture::small();
    for record in of_cell(&mut loaded, "nvme", "a") {
        disturb(record, Some(DisturbedBy::Hand));
    }
    let cell = exported(&loaded, "nvme", "a");
    assert_eq!((cell.state, cell.certificate.verdict), ("disturbed", Some(CertificateVerdict::Disturbed)));
    assert_eq!((cell.throughput_per_s, cell.ratio_to_baseline), (None, None));
    assert!(cell.reason.as_ref().unwrap().contains("10 times as long"), "{:?}", cell.reason);
    let said = answer::sentence(&loaded);
    assert!(said.contains("1 cell was disturbed by hand") && said.contains("--resume"), "{said}");
    // What remains is that of the other mixes.
    let without = |loaded: &LoadedRun| {
        let comparison = RunComparison::of(loaded);
        answer::what_changed(&comparison)
    };
    let mut gone = fixture::small();
    gone.records.retain(|record| !(record.cell.storage == "nvme" && record.cell.mix_or_job() == "a"));
    assert_eq!(without(&loaded), without(&gone));
    let csv = export::csv(&loaded);
    let line = csv.lines().find(|line| line.contains(",rocksdb,nvme,a")).unwrap();
    assert!(line.contains(",disturbed,") && line.ends_with(",hand,3"), "{line}");
    let text = terminal::comparison(&loaded, 200, false);
    assert!(text.contains("disturbed by hand, and left out: "), "{text}");
    // The page draws what was done, and says so.
    assert!(html::render(&loaded).contains("nvme, disturbed by hand"));
}

#[test]
fn a_baseline_that_was_disturbed_by_hand_is_not_called_unmeasured() {
    let disturbed = |are_others: bool, is_baseline: bool| {
        let mut loaded = fixture::small();
        for record in loaded.records.iter_mut().filter(|record| record.measured.is_some()) {
            let is_of_baseline = record.cell.storage == "hdd";
            let is_meant = if is_of_baseline { is_baseline } else { are_others };
            if is_meant {
                disturb(record, Some(DisturbedBy::Hand));
            }
        }
        answer::what_changed(&RunComparison::of(&loaded))
    };
    let said = disturbed(false, true);
    assert!(said.contains("what was measured on hdd was disturbed by hand and is left out"), "{said}");
    let said = disturbed(true, false);
    assert!(said.contains("what was measured beside hdd was disturbed by hand"), "{said}");
    let said = disturbed(true, true);
    assert!(said.contains("No answer yet: all that was measured was disturbed by hand"), "{said}");
}

#[test]
fn what_the_study_asks_for_is_compared_and_called_what_it_is() {
    let mut loaded = fixture::small();
    for record in of_cell(&mut loaded, "nvme", "a") {
        disturb(record, Some(DisturbedBy::Study));
    }
    let cell = exported(&loaded, "nvme", "a");
    assert_eq!((cell.state, cell.certificate.verdict), ("completed", Some(CertificateVerdict::Disturbed)));
    assert!(cell.ratio_to_baseline.is_some() && cell.disturbed.len() == 3);
    let said = answer::sentence(&loaded);
    assert!(said.contains("1 of 7 cells is disturbed by the study"), "{said}");
    let text = terminal::comparison(&loaded, 200, false);
    assert!(text.lines().any(|line| line.contains("nvme") && line.contains("disturbed")), "{text}");
    assert!(html::render(&loaded).contains("disturbed by the study"));
    assert!(
        export::csv(&loaded).lines().any(|line| line.contains(",disturbed,") && line.ends_with(",study,0"))
    );
}

#[test]
fn repetitions_that_the_studys_own_fault_met_count_beside_those_that_it_missed() {
    for met in [1, 2] {
        let mut loaded = fixture::small();
        for record in of_cell(&mut loaded, "nvme", "a").into_iter().take(met) {
            disturb(record, Some(DisturbedBy::Study));
        }
        let cell = exported(&loaded, "nvme", "a");
        assert_eq!((cell.repetitions, cell.certificate.verdict), (3, Some(CertificateVerdict::Disturbed)));
        assert!(cell.disturbed.len() == met && cell.disturbed.iter().all(|one| !one.is_left_out));
        let text = html::render(&loaded);
        assert!(text.contains(&format!("met only {met} of 3 repetitions")), "{text}");
        let records: Vec<&RunRecord> =
            of_cell(&mut loaded, "nvme", "a").into_iter().map(|one| &*one).collect();
        assert!(soundness::of_cell(&records).is_err(), "nothing is learnt from it");
    }
}

#[test]
fn a_study_that_disturbs_and_a_hand_that_does_too_is_the_hand() {
    let mut loaded = fixture::small();
    for record in of_cell(&mut loaded, "nvme", "a") {
        disturb(record, Some(DisturbedBy::Study));
        record.devices[0].faults[0].ended_by_hand = true;
    }
    assert_eq!(exported(&loaded, "nvme", "a").state, "disturbed");
}

#[test]
fn records_of_earlier_versions_are_told_apart_by_their_study() {
    for (study, expected) in [
        ("", DisturbedBy::Hand),
        ("[fault.slow]\nat = \"2 s\"\nstorage = \"hdd\"\nslow = 10\n", DisturbedBy::Hand),
        ("[fault.slow]\nat = \"2 s\"\nstorage = \"nvme\"\nslow = 10\n", DisturbedBy::Study),
        ("[fault.slow]\nat = \"2 s\"\nslow = 10\n", DisturbedBy::Study),
        ("no study [", DisturbedBy::Hand),
    ] {
        let mut loaded = fixture::small();
        loaded.run.study_toml = study.to_owned();
        let mut record = of_cell(&mut loaded, "nvme", "a").remove(0).clone();
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
fn faults_of_earlier_versions_are_matched_by_device_and_kind() {
    for (keys, expected) in [
        ("device = 0\nslow = 10\n", DisturbedBy::Study),
        ("device = 1\nslow = 10\n", DisturbedBy::Hand),
        ("slow = 3\n", DisturbedBy::Hand),
        ("vanish = true\n", DisturbedBy::Hand),
    ] {
        let mut loaded = fixture::small();
        loaded.run.study_toml = format!("[fault.one]\nat = \"2 s\"\n{keys}");
        let mut record = of_cell(&mut loaded, "nvme", "a").remove(0).clone();
        record.devices[0].description.id.name = "nvme.0".to_owned();
        disturb(&mut record, None);
        loaded.run.attribute_faults(&mut record);
        assert_eq!(record.disturbed_by(), Some(expected), "{keys}");
    }
}

#[test]
fn a_fault_before_the_measurement_counts_unless_it_only_slowed_and_has_passed() {
    let mut loaded = fixture::small();
    let mut record = of_cell(&mut loaded, "nvme", "a").remove(0).clone();
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
fn a_node_that_was_sent_away_by_hand_disturbs_and_one_asked_for_in_vain_does_not() {
    let mut loaded = fixture::small();
    let record = of_cell(&mut loaded, "nvme", "a").remove(0).clone();
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
    for record in of_cell(&mut by_hand, "nvme", "a") {
        disturb(record, Some(DisturbedBy::Hand));
    }
    for record in of_cell(&mut by_study, "nvme", "a") {
        disturb(record, Some(DisturbedBy::Study));
    }
    let left_out = |a: &LoadedRun, b: &LoadedRun| AbComparison::of(("a", a), ("b", b)).left_out.join("; ");
    assert!(left_out(&clean, &by_hand).contains("rocksdb/nvme/a: B was disturbed by hand in it"));
    assert!(left_out(&by_study, &clean).contains("rocksdb/nvme/a: the study of A disturbs it"));
    let both = AbComparison::of(("a", &by_study), ("b", &by_study));
    assert!(both.cells.iter().any(|cell| cell.is_disturbed));
    assert!(
        both.cautions.iter().any(|caution| caution.contains("disturbed by the study")),
        "{:?}",
        both.cautions
    );
}

/// The one decision that predictions and explanations rest on.
#[test]
fn only_undisturbed_cells_whose_certificate_holds_and_that_are_steady_are_sound() {
    let mut loaded = fixture::small();
    let records: Vec<RunRecord> =
        of_cell(&mut loaded, "nvme", "a").into_iter().map(|one| one.clone()).collect();
    let judged = |change: &dyn Fn(&mut RunRecord)| {
        let mut records = records.clone();
        change(&mut records[1]);
        let all: Vec<&RunRecord> = records.iter().collect();
        soundness::of_cell(&all).map(|sound| sound.len()).map_err(|why| why.to_string())
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
    let refused = soundness::of_cell(&by_study.iter().collect::<Vec<_>>()).unwrap_err();
    assert!(refused.to_string().contains("disturbed by the study"), "{refused}");
    let (counted, left_out) = disturbance::leave_out_by_hand(&by_study.iter().collect::<Vec<_>>());
    assert_eq!((counted.len(), left_out.len()), (3, 0));
}
