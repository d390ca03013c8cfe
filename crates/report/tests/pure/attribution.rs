//! Where the time goes, and storages to buy: sections and pages of what was simulated, not measured.

use crate::fixture;
use underlay_record::PriceSum;
use underlay_record::frontier::{Frontier, PricedStorage};
use underlay_record::{
    CellExplanation, EstimatedValue, NotExplained, RunExplanation, TimeAccount, TimeShares, UnsoundReason,
    WhatIf,
};
use underlay_report::{html, terminal};

fn estimate(value: f64) -> EstimatedValue {
    EstimatedValue { value, low: 0.8 * value, high: 1.25 * value }
}

fn account(measured_us: f64, unexplained: f64) -> TimeAccount {
    let us = |share: f64| share * measured_us;
    let shares = TimeShares {
        device_service_us: us(0.3),
        device_queueing_us: us(0.5),
        cpu_us: us(0.2 - unexplained),
        ..TimeShares::default()
    };
    TimeAccount { measured_us, shares, layers_us: 0.0, unexplained_us: us(unexplained) }
}

fn explanation(cell: &str, unexplained: f64) -> CellExplanation {
    let answered = WhatIf {
        change: "a device twice as fast".to_owned(),
        throughput_per_s: Some(estimate(20_000.0)),
        mean_us: Some(estimate(500.0)),
        p99_us: Some(estimate(2_500.0)),
        gain: Some(estimate(1.9)),
        refused: None,
    };
    let refused = WhatIf {
        change: "twice the memory".to_owned(),
        throughput_per_s: None,
        mean_us: None,
        p99_us: None,
        gain: None,
        refused: Some("no size <like> this was measured".to_owned()),
    };
    CellExplanation {
        cell: cell.to_owned(),
        throughput_per_s: 10_500.0,
        mean: account(1_000.0, unexplained),
        p50: account(800.0, unexplained),
        p99: account(5_000.0, unexplained),
        device_busy: 0.97,
        cpu_busy: Some(0.3),
        reads_per_operation: 1.2,
        bottleneck: "The storage hdd: 50 % of an operation's time it waits in the queue.".to_owned(),
        what_if: vec![answered, refused],
    }
}

/// Every measured cell; the first waits longer in the simulation than it did.
fn explained(loaded: &underlay_report::LoadedRun) -> RunExplanation {
    let mut cells: Vec<CellExplanation> = Vec::new();
    for record in loaded.records.iter().filter(|record| record.measured.is_some()) {
        if cells.iter().all(|one| one.cell != record.cell.id) {
            cells.push(explanation(&record.cell.id, if cells.is_empty() { -0.25 } else { 0.1 }));
        }
    }
    let refused = vec![NotExplained {
        cell: "x/y/z".to_owned(),
        why: "a <cache> is not modelled".to_owned(),
        unsound: None,
    }];
    RunExplanation { cells, refused }
}

#[test]
fn explained_cells_have_bar_bottleneck_and_what_ifs() {
    let loaded = fixture::small();
    let page = html::render_explained(&loaded, &explained(&loaded));
    for needed in [
        "Where the time goes",
        "Parts of the mean latency",
        "device&#39;s queue",
        "The storage hdd: 50 % of an operation",
        "1.9x (1.5 to 2.4)",
        "20,000 ops/s (16,000 to 25,000)",
        "not answered",
        "no size &lt;like&gt; this was measured",
        "1 cell not explained",
        "a &lt;cache&gt; is not modelled",
        "shares are of the simulated time",
    ] {
        let plain = needed.replace("&#39;", "'");
        assert!(page.contains(needed) || page.contains(&plain), "{needed} is missing");
    }
    // For those who don't see the bars.
    let is_told = |shares: [u32; 2]| {
        let [device, queue] = shares;
        ["'", "&#39;"]
            .iter()
            .any(|mark| page.contains(&format!("device {device} %, device{mark}s queue {queue} %")))
    };
    assert!(is_told([30, 50]));
    // Of one that was simulated to wait longer than it did: no share is above all, and none below nothing.
    assert!(is_told([24, 40]) && !page.contains("-25 %"));
    assert!(!page.contains("waiting for a client"), "a part that nothing has is not in the legend");
}

#[test]
fn without_an_explanation_there_is_no_section() {
    let loaded = fixture::small();
    assert!(!html::render(&loaded).contains("Where the time goes"));
    assert!(!terminal::comparison(&loaded, 100, false).contains("Where the time goes"));
    // Refusals alone say nothing about where time went.
    let refused = RunExplanation { cells: Vec::new(), ..explained(&loaded) };
    assert!(!html::render_explained(&loaded, &refused).contains("Where the time goes"));
}

/// A system is not blamed for what the host did, or somebody's hand.
#[test]
fn cell_with_failed_certificate_is_not_explained() {
    let loaded = fixture::small();
    let mut explained = explained(&loaded);
    let cell = explained.cells.remove(0).cell;
    let unsound = UnsoundReason::CheckFailed {
        check: "CPU".to_owned(),
        finding: "this machine could not give 61.3 % of what was due".to_owned(),
    };
    let reason = unsound.to_string();
    explained.refused.push(NotExplained { cell: cell.clone(), why: reason, unsound: Some(unsound) });
    let text = terminal::comparison_explained(&loaded, &explained, 200, false);
    assert!(text.contains("not explained: its certificate is doubtful, CPU: this machine"), "{text}");
    let page = html::render_explained(&loaded, &explained);
    assert!(
        page.contains("Not explained, because") && page.contains("CPU: this machine could not give 61.3 %")
    );
    // Also where there is nothing else to tell.
    let alone = RunExplanation { cells: Vec::new(), ..explained };
    assert!(html::render_explained(&loaded, &alone).contains("could not give 61.3 %"));
    let json = serde_json::to_value(&alone).unwrap();
    let refused = json["refused"].as_array().unwrap();
    let found = refused.iter().find(|one| one["cell"] == cell.as_str()).unwrap();
    assert_eq!(
        (&found["unsound"]["because"], &found["unsound"]["check"]),
        (&"check-failed".into(), &"CPU".into())
    );
}

#[test]
fn shares_never_exceed_whole() {
    let over = account(1_000.0, -0.25);
    assert_eq!(over.whole_us(), 1_250.0);
    assert!((over.overrun().unwrap() - 1.25).abs() < 1e-9);
    let shares = [
        over.shares.device_service_us,
        over.shares.device_queueing_us,
        over.shares.cpu_us,
        over.unexplained_us,
    ]
    .map(|us| over.share(us));
    assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9 && shares[3] == 0.0, "{shares:?}");
    let under = account(1_000.0, 0.1);
    assert_eq!((under.whole_us(), under.overrun()), (1_000.0, None));
}

#[test]
fn terminal_lists_bottlenecks_within_width() {
    let loaded = fixture::small();
    for width in [40, 100] {
        let text = terminal::comparison_explained(&loaded, &explained(&loaded), width, false);
        let part = text.split("Where the time goes").nth(1).unwrap();
        let part: Vec<&str> = part.lines().skip(1).take_while(|line| !line.is_empty()).collect();
        assert!(part.iter().all(|line| line.chars().count() <= width), "{part:?}");
        assert!(part.join(" ").contains("The storage hdd"), "{part:?}");
    }
}

#[test]
fn figures_that_no_record_has_leave_a_page() {
    let loaded = fixture::small();
    let mut odd = explained(&loaded);
    for (one, us) in odd.cells.iter_mut().zip([0.0, f64::NAN, f64::INFINITY, -1.0, 1e300]) {
        one.mean.measured_us = us;
        one.mean.shares.device_service_us = us;
        one.what_if[0].gain = Some(EstimatedValue { value: us, low: us, high: f64::INFINITY });
    }
    assert!(html::render_explained(&loaded, &odd).contains("Where the time goes"));
}

fn priced(name: &str, usd: f64, p99_us: f64) -> PricedStorage {
    PricedStorage {
        name: name.to_owned(),
        about: format!("{name}, as sold (price of 2024)"),
        price: PriceSum::new(usd, name.contains("ebs")),
        usd_per_1000_per_s: usd / 20.0,
        usd_per_tb: usd / 2.0,
        mean_us: estimate(p99_us / 5.0),
        p99_us: estimate(p99_us),
        device_busy: 0.5,
        is_saturated: !p99_us.is_finite(),
        meets: p99_us <= 10_000.0,
        is_sure: p99_us <= 8_000.0,
        is_on_frontier: false,
    }
}

#[test]
fn frontier_is_drawn_with_bound_and_names() {
    let mut storages = vec![
        priced("1 x nvme", 200.0, 300.0),
        priced("2 x <odd>", 400.0, 9_000.0),
        priced("8 x hdd", 150.0, 40_000.0),
        priced("1 x hdd", 90.0, f64::INFINITY),
    ];
    storages[0].is_on_frontier = true;
    storages[2].is_on_frontier = true;
    let frontier = Frontier {
        title: "rocksdb: 20,000 ops/s within a p99 of 10 ms".to_owned(),
        answer: "1 x nvme is the cheapest that keeps to it.".to_owned(),
        facts: vec!["90 threads".to_owned()],
        p99_bound_us: 10_000.0,
        storages,
        turns: vec!["Price: it stays the cheapest until it costs $400.".to_owned()],
        notes: vec!["sizes are assumed".to_owned()],
        excluded: vec![("mapreduce-hybrid".to_owned(), "several media".to_owned())],
    };
    let page = html::frontier::render(&frontier);
    for needed in [
        "bound: 10 ms",
        ">1 x nvme</text>",
        "2 x &lt;odd&gt;",
        "grows",
        "probably",
        "surely",
        "several media",
    ] {
        assert!(page.contains(needed), "{needed} is missing");
    }
    for outside in ["src=", "@import", "url(", "<link", "fetch(", "<odd>"] {
        assert!(!page.contains(outside), "{outside}");
    }
    // Nothing that can be drawn, and nothing at all.
    let none = Frontier { storages: vec![priced("1 x hdd", 90.0, f64::INFINITY)], ..frontier };
    assert!(html::frontier::render(&none).contains("nothing to draw"));
    assert!(html::frontier::render(&Frontier::default()).contains("nothing to draw"));
}
