//! Benchmarks of the user's, in each form of a report.

use crate::fixture::benchmarks::benchmarks;
use underlay_record::{CellStatus, RecordedWork};
use underlay_report::ab::{AbComparison, MetricChange};
use underlay_report::{LoadedRun, answer, export, html, terminal};

#[test]
fn benchmarks_in_a_terminal() {
    insta::assert_snapshot!("benchmarks_100", terminal::comparison(&benchmarks(), 100, false));
    for width in [40, 60, 80, 120, 160] {
        let text = terminal::comparison(&benchmarks(), width, false);
        let widest = text.lines().max_by_key(|line| line.chars().count()).expect("lines");
        assert!(widest.chars().count() <= width, "wider than {width}: {widest}");
    }
    insta::assert_snapshot!(answer::sentence(&benchmarks()));
}

#[test]
fn benchmark_has_only_its_own_figures() {
    let loaded = benchmarks();
    let exported = export::export(&loaded);
    for cell in &exported.cells {
        let benchmark = cell.benchmark.as_ref().expect("it is a benchmark");
        assert_eq!((cell.state, cell.repetitions), ("completed", 3));
        assert_eq!((cell.throughput_per_s, cell.latency_us.mean, cell.job.is_none()), (None, None, true));
        let (first, p99) = (&benchmark.figures[0], &benchmark.figures[2]);
        assert_eq!((first.name.as_str(), p99.name.as_str()), ("throughput", "latency p99"));
        assert_eq!(first.performance, cell.ratio_to_baseline);
        // Less is better, and better is above 1.
        assert_eq!(
            first.performance.is_some_and(|ratio| ratio > 1.0),
            p99.performance.is_some_and(|ratio| ratio > 1.0)
        );
    }
    let csv = export::csv(&loaded);
    assert!(csv.lines().nth(1).is_some_and(|line| line.contains(",throughput,tps,")), "{csv}");
    let page = html::render(&loaded);
    for words in
        ["throughput over time", "checkpoints, lower is better", "slow motion divided out", "as good as hdd"]
    {
        assert!(page.contains(words), "the page does not say '{words}'");
    }
    let figures = page.split("id=\"method\"").next().unwrap_or_default();
    assert!(!figures.contains("ops/s"), "the page says 'ops/s' of benchmarks");
}

/// The same run, with every figure of B twice as large.
fn doubled() -> LoadedRun {
    let mut loaded = benchmarks();
    for figure in loaded
        .records
        .iter_mut()
        .filter_map(|record| record.benchmark.as_mut())
        .flat_map(|one| &mut one.figures)
    {
        figure.value *= 2.0;
    }
    loaded
}

#[test]
fn runs_are_compared_by_figures_in_their_direction() {
    let (a, b) = (benchmarks(), doubled());
    let found = AbComparison::new(("a", &a), ("b", &b));
    assert!(found.left_out.is_empty(), "{:?}", found.left_out);
    for figure in found.figures() {
        let name = figure.metric.name();
        let expected = match name.as_str() {
            "throughput (tps)" => MetricChange::Better,
            // It is the same in all repetitions.
            "latency p50 (us)" | "latency p99 (us)" | "checkpoints (count)" => MetricChange::Worse,
            other => panic!("{other}"),
        };
        assert!(figure.change() == expected || figure.p_value.is_none(), "{name}: {:?}", figure.change());
    }
    assert!(found.figures().any(|figure| figure.change() == MetricChange::Better));
    assert!(found.figures().any(|figure| figure.change() == MetricChange::Worse));
    let mut other = doubled();
    for cell in other.records.iter_mut().map(|record| &mut record.cell) {
        if let RecordedWork::Benchmark(benchmark) = &mut cell.work {
            benchmark.command.push_str(" --fast");
        }
    }
    other.run.plan.clear();
    let found = AbComparison::new(("a", &a), ("b", &other));
    assert!(
        found.cells.is_empty() && found.left_out.iter().all(|reason| reason.contains("another command")),
        "{found:?}"
    );
}

#[test]
fn failed_and_pending_benchmarks_are_named() {
    let mut loaded = benchmarks();
    for record in loaded.records.iter_mut().filter(|record| record.cell.workload == "tpcb") {
        if record.cell.storage == "nvme" {
            record.benchmark = None;
            record.status = CellStatus::Failed { reason: "the pattern `tps` matches nothing".to_owned() };
        }
    }
    let text = terminal::comparison(&loaded, 100, false);
    assert!(text.contains("matches nothing") && text.contains("failed"), "{text}");
    assert!(html::render(&loaded).contains("matches nothing"));
    loaded.records.clear();
    assert!(terminal::comparison(&loaded, 100, false).contains("not yet"));
    assert!(!html::render(&loaded).is_empty());
}
