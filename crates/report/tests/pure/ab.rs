//! Two runs beside each other.

use crate::fixture;
use underlay_record::{MeasuredWindow, RunRecord};
use underlay_report::ab::{AbComparison, ComparedQuantity, MetricChange};
use underlay_report::{LoadedRun, export, html, terminal};

fn compare(a: &LoadedRun, b: &LoadedRun) -> AbComparison {
    AbComparison::new(("runs/before", a), ("runs/after", b))
}

/// Changes the measurements of this storage's cells.
fn change(loaded: &mut LoadedRun, storage: &str, act: impl Fn(&mut MeasuredWindow)) {
    let is_in_storage = |record: &&mut RunRecord| record.cell.storage == storage;
    loaded
        .records
        .iter_mut()
        .filter(is_in_storage)
        .filter_map(|record| record.measured.as_mut())
        .for_each(act);
}

fn faster(measured: &mut MeasuredWindow, factor: f64) {
    for point in &mut measured.series {
        point.throughput_per_s *= factor;
    }
    measured.operations = (measured.operations as f64 * factor) as u64;
}

#[test]
fn run_compared_with_itself_shows_no_change() {
    let loaded = fixture::small();
    let found = compare(&loaded, &loaded);
    assert_eq!(found.cells.len(), 7);
    assert_eq!(found.sentence(), "A and B are one and the same run, so nothing can differ: name two runs.");
    // The same figures of another start are two runs.
    let mut other = fixture::small();
    other.records[0].started_at = "2026-05-05T09:12:44Z".to_owned();
    let two = compare(&loaded, &other);
    assert_eq!(two.sentence(), "Of 14 figures in 7 cells, none differs by more than chance.");
    assert!(found.figures().all(|one| one.ratio.value == 1.0 && one.corrected == Some(1.0)));
    assert_eq!(found.differences, Vec::<String>::new());
    let left_out = ["rocksdb/sata-ssd/b: neither run measured it", "rocksdb/nvme/b: neither run measured it"];
    assert_eq!(found.left_out, left_out);
    assert_eq!(found.cautions, ["A certificate calls 1 cell doubtful: the report of each run says why"]);
}

#[test]
fn changed_cells_are_found_without_false_positives() {
    let before = fixture::small();
    let mut after = fixture::small_of(8);
    change(&mut after, "hdd", |measured| faster(measured, 2.0));
    change(&mut after, "nvme", |measured| faster(measured, 0.5));
    for record in &mut after.records {
        record.settings.insert("block_cache".to_owned(), "256 MiB".to_owned());
    }
    after.run.versions.insert("rocksdb".to_owned(), "8.0.0".to_owned());
    after.run.repetitions = 1;
    let found = compare(&before, &after);
    for cell in &found.cells {
        let throughput =
            cell.figures.iter().find(|one| one.metric == ComparedQuantity::Throughput).expect("measured");
        let expected = match cell.storage.as_str() {
            "hdd" => MetricChange::Better,
            "nvme" => MetricChange::Worse,
            _ => MetricChange::NoneSeen,
        };
        assert_eq!(throughput.change(), expected, "{cell:?}");
        let latency =
            cell.figures.iter().find(|one| one.metric == ComparedQuantity::P99Latency).expect("measured");
        assert_eq!(latency.change(), MetricChange::NoneSeen, "{cell:?}");
    }
    assert_eq!(
        found.sentence(),
        "Of 14 figures in 7 cells, 5 differ by more than chance: 3 better in B, 2 worse."
    );
    assert_eq!(
        found.differences,
        ["rocksdb: 7.8.3 in A, 8.0.0 in B", "rocksdb, block_cache: 128 MiB in A, 256 MiB in B"]
    );
    assert!(found.cautions[0].starts_with("Each cell of B ran once"), "{:?}", found.cautions);
    insta::assert_snapshot!("terminal_ab", terminal::ab::text(&found, 110, false));
    for width in [80, 100, 140] {
        let text = terminal::ab::text(&found, width, false);
        let widest = text.lines().map(|line| line.chars().count()).max().expect("lines");
        assert!(widest <= width, "{widest} columns of {width}");
    }
}

#[test]
fn cells_with_different_requests_are_not_compared() {
    let before = fixture::small();
    let mut after = fixture::small();
    let ours = |record: &RunRecord| record.cell.storage == "hdd";
    after.records.retain(|record| !(ours(record) && record.cell.mix_or_job() == "b"));
    after.run.plan.retain(|planned| !(planned.cell.storage == "hdd" && planned.cell.mix_or_job() == "b"));
    let cells = after.records.iter_mut().map(|record| &mut record.cell);
    for cell in cells.chain(after.run.plan.iter_mut().map(|planned| &mut planned.cell)) {
        if cell.storage == "hdd" && cell.mix_or_job() == "a" {
            fixture::requests(cell).threads = 8;
        }
        if cell.storage == "nvme" && cell.mix_or_job() == "a" {
            cell.id = "rocksdb/nvme/another".to_owned();
        }
    }
    let mut left_out = compare(&before, &after).left_out;
    left_out.retain(|one| !one.ends_with("neither run measured it"));
    assert_eq!(
        left_out,
        [
            "rocksdb/hdd/a: B asked for something else: other threads or servers",
            "rocksdb/nvme/a: only A has it",
            "rocksdb/hdd/b: only A has it",
            "rocksdb/nvme/another: only B has it",
        ]
    );
    after.records.clear();
    let disjoint = compare(&before, &after);
    assert_eq!(disjoint.sentence(), "The two runs have no cell in common that both have measured.");
    assert!(!html::ab::render(&disjoint).is_empty() && !terminal::ab::text(&disjoint, 80, true).is_empty());
}

#[test]
fn comparison_uses_latency_at_rates_and_duration_for_jobs() {
    let stepped = fixture::stepped::stepped();
    let found = compare(&stepped, &stepped);
    for cell in &found.cells {
        let metrics: Vec<ComparedQuantity> = cell.figures.iter().map(|one| one.metric.clone()).collect();
        match cell.workload.ends_with("unthrottled") {
            true => assert_eq!(metrics, [ComparedQuantity::Throughput, ComparedQuantity::P99Latency]),
            false => assert_eq!(metrics, [ComparedQuantity::MeanLatency, ComparedQuantity::P99Latency]),
        }
    }
    let searched = fixture::rates::searched();
    assert!(compare(&searched, &searched).figures().any(|one| one.metric == ComparedQuantity::Throughput));
    let jobs = fixture::mapreduce::mapreduce();
    let found = compare(&jobs, &jobs);
    assert!(
        found.figures().count() > 0 && found.figures().all(|one| one.metric == ComparedQuantity::Duration)
    );
}

#[test]
fn comparison_page_is_self_contained_and_matches_json() {
    let mut after = fixture::small_of(8);
    change(&mut after, "hdd", |measured| faster(measured, 2.0));
    after.run.versions.insert("</li><script>alert(1)</script>".to_owned(), "1".to_owned());
    let found = compare(&fixture::small(), &after);
    let page = html::ab::render(&found);
    for outside in ["src=", "@import", "url(", "<link", "fetch(", "<script>alert"] {
        assert!(!page.contains(outside), "{outside}");
    }
    for words in [
        "B is better",
        "no difference seen",
        "runs/before",
        "⚠ doubtful",
        "How the runs differ",
        "Not compared",
    ] {
        assert!(page.contains(words), "'{words}' is not on the page");
    }
    let value: serde_json::Value = serde_json::from_str(&export::ab_json(&found)).expect("JSON");
    let cells = value["cells"].as_array().expect("a list");
    assert_eq!(cells.len(), found.cells.len());
    for (cell, ours) in cells.iter().zip(&found.cells) {
        assert_eq!(cell["storage"], ours.storage);
        for (figure, ours) in cell["figures"].as_array().expect("a list").iter().zip(&ours.figures) {
            assert_eq!(figure["metric"], ours.metric.name());
            assert_eq!(figure["ratio"].as_f64(), Some(ours.ratio.value));
            assert_eq!(figure["change"] == "better", ours.change() == MetricChange::Better);
        }
    }
}
