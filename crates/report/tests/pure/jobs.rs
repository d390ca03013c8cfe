//! Batch jobs, prices and compactions, in each form of a report.

use crate::fixture;
use crate::fixture::mapreduce::{mapreduce, once};
use underlay_record::{CacheUse, CellStatus, Check, CheckId, DeviceId, RunRecord, ShortenedAmount};
use underlay_report::background::CompactionComparison;
use underlay_report::claims::{self, ClaimVerdict};
use underlay_report::comparison::{CellOutcome, RunComparison};
use underlay_report::reference::{ReferenceReading, compare};
use underlay_report::statistics::ratio::RatioDifference;
use underlay_report::{LoadedRun, answer, directories, export, html, prices, terminal};

#[test]
fn jobs_in_a_terminal() {
    insta::assert_snapshot!("jobs_130", terminal::comparison(&mapreduce(), 130, false));
    insta::assert_snapshot!("jobs_once_100", terminal::comparison(&once(), 100, false));
    for loaded in [mapreduce(), once(), fixture::accumulo::accumulo()] {
        for width in [40, 60, 80, 100, 120, 160] {
            let text = terminal::comparison(&loaded, width, false);
            let widest = text.lines().max_by_key(|line| line.chars().count()).expect("lines");
            assert!(widest.chars().count() <= width, "wider than {width}: {widest}");
        }
    }
}

#[test]
fn job_has_duration_without_throughput_or_latency() {
    let loaded = mapreduce();
    let comparison = RunComparison::from_loaded(&loaded);
    let names: Vec<&str> = comparison.rows.iter().map(|row| row.label()).collect();
    let in_order =
        ["teragen", "terasort", "teravalidate", "hdfs-write", "wordcount", "shuffle", "shuffle-compressed"];
    assert_eq!(names, in_order, "as the system runs them, and not by letter");
    let mut uneven = mapreduce();
    let cells = uneven.records.iter_mut().map(|record| &mut record.cell);
    for cell in cells.chain(uneven.run.plan.iter_mut().map(|planned| &mut planned.cell)) {
        if cell.mix_or_job() == "wordcount" {
            cell.data_bytes /= 4;
        }
    }
    let uneven =
        RunComparison::from_loaded(&uneven).rows.iter().map(|row| row.label().to_owned()).collect::<Vec<_>>();
    assert_eq!(uneven, in_order, "nor by the size of their data");
    let export = export::export(&loaded);
    assert_eq!(export.cells.len(), 35);
    for cell in &export.cells {
        let job = cell.job.as_ref().expect("it is a job");
        assert!(job.duration_s > 0.0 && job.duration_interval_s.is_some());
        assert_eq!((cell.throughput_per_s, cell.latency_us.mean, cell.cost.usd_per_kops), (None, None, None));
        assert_eq!(cell.ratio_to_baseline.is_some(), cell.storage != "hdd-11");
        assert_eq!((cell.state, cell.repetitions), ("completed", 3));
    }
    let page = html::render(&loaded);
    let terminal = terminal::comparison(&loaded, 130, false);
    for words in ["ops/s", "p99", "throughput of", "kop/s"] {
        // The study's method explains intervals of throughputs; everything before it is about this run.
        let figures = page.split("id=\"method\"").next().unwrap_or_default();
        assert!(!figures.contains(words), "the page says '{words}' of jobs");
        assert!(!terminal.contains(words), "the terminal says '{words}' of jobs");
    }
}

fn fail_storage_used(record: &mut RunRecord) {
    let certificate = record.certificate.as_mut().expect("it completed");
    let finding = "the devices were asked for 0 requests";
    certificate.checks.push(Check::new(CheckId::StorageUsed, false, finding));
}

#[test]
fn workloads_beside_storage_conclude_nothing() {
    let mut loaded = mapreduce();
    assert!(answer::sentence(&loaded).contains("times"));
    loaded.records.iter_mut().for_each(fail_storage_used);
    let sentence = answer::sentence(&loaded);
    assert!(
        sentence.contains("did not use the storage under test") && !sentence.contains("times"),
        "{sentence}"
    );
}

#[test]
fn single_workload_beside_storage_is_excluded_and_named() {
    let mut loaded = mapreduce();
    let one = loaded.records.iter_mut().find(|record| record.cell.mix_or_job() == "terasort").expect("a job");
    fail_storage_used(one);
    let sentence = answer::sentence(&loaded);
    let named = "the workload terasort did not use the storage under test and is left out";
    assert!(sentence.contains(named) && sentence.contains("times"), "{sentence}");
    let mut reduced = mapreduce();
    reduced.records.retain(|record| record.cell.mix_or_job() != "terasort");
    let changed = |loaded: &LoadedRun| answer::summarize_changes(&RunComparison::from_loaded(loaded));
    assert_eq!(changed(&loaded), changed(&reduced));
}

#[test]
fn performance_is_the_baselines_duration_over_this_one() {
    let loaded = mapreduce();
    let comparison = RunComparison::from_loaded(&loaded);
    let baseline = comparison.baseline_index().expect("hdd-11");
    for row in comparison.jobs() {
        let base = row.job(baseline).expect("it completed");
        assert!(base.performance.is_none());
        for (index, _) in comparison.storages.iter().enumerate().filter(|(index, _)| *index != baseline) {
            let job = row.job(index).expect("it completed");
            let performance = job.performance.expect("both completed");
            let expected = base.duration_s.value / job.duration_s.value;
            assert!((performance.value - expected).abs() < 1e-9);
            let interval = performance.interval.expect("three runs");
            assert!(interval.contains(performance.value));
        }
    }
    // hdfs-write varies by a fifth from run to run: what differs there is chance.
    let noisy = comparison.jobs().find(|row| row.label() == "hdfs-write").expect("a job");
    let ssd = comparison.storages.iter().position(|name| *name == "ssd").expect("a storage");
    assert_eq!(noisy.job(ssd).unwrap().performance.unwrap().difference(), RatioDifference::NoneSeen);
}

#[test]
fn single_run_reports_missing_interval() {
    let loaded = once();
    let comparison = RunComparison::from_loaded(&loaded);
    for row in comparison.jobs() {
        for job in row.cells.iter().flatten().filter_map(|result| result.job()) {
            assert_eq!(job.repetitions, 1);
            assert!(job.duration_s.interval.is_none());
            assert!(job.performance.is_none_or(|ratio| ratio.difference() == RatioDifference::Unknown));
        }
    }
    let words = "the certainty of these ratios is unknown";
    assert!(answer::sentence(&loaded).contains(words), "{}", answer::sentence(&loaded));
    assert!(html::render(&loaded).contains("Each job ran once, so there are no intervals"));
    let judged = claims::judge(loaded.run.reference.as_ref().unwrap(), &comparison);
    assert_eq!(judged[0].verdict, ClaimVerdict::PointsTheSameWay);
}

#[test]
fn claims_in_words_stand_beside_our_ratios() {
    let loaded = mapreduce();
    let comparison = RunComparison::from_loaded(&loaded);
    let table = loaded.run.reference.as_ref().unwrap();
    let judged = claims::judge(table, &comparison);
    let verdicts: Vec<ClaimVerdict> = judged.iter().map(|one| one.verdict).collect();
    use ClaimVerdict::{Agrees, AgreesSmaller, Differs};
    assert_eq!(verdicts, [AgreesSmaller, Agrees, Agrees, Differs, Agrees, Agrees]);
    // Two checks of one claim are one finding, with the most that was published beside the most of ours.
    assert_eq!(judged[0].findings.len(), 1, "{:?}", judged[0].findings);
    for words in ["terasort", "shuffle", "published up to 40 % less, here at most"] {
        assert!(judged[0].findings[0].contains(words), "{}", judged[0].findings[0]);
    }
    assert!(judged[5].findings[1].contains("published 50.0x, here 53.8x"), "{:?}", judged[5].findings);
    let figures = compare(table, &comparison);
    assert_eq!(figures.len(), 2);
    for one in &figures {
        assert_eq!((one.published_ratio, one.reading), (Some(1.7), ReferenceReading::SameDirectionSmaller));
    }
}

#[test]
fn directories_filled_in_turn_are_reported() {
    let loaded = mapreduce();
    let comparison = RunComparison::from_loaded(&loaded);
    let row = comparison.jobs().find(|row| row.label() == "shuffle").expect("a job");
    let groups = |storage: &str| {
        let index = comparison.storages.iter().position(|name| *name == storage).expect("a storage");
        directories::groups(&row.job(index).expect("it completed").directories)
    };
    let counts = |storage: &str| {
        groups(storage).iter().map(|group| (group.directories, group.devices)).collect::<Vec<_>>()
    };
    assert_eq!(counts("hybrid"), [(6, 6), (1, 1)]);
    assert_eq!(counts("hybrid-split"), [(6, 6), (10, 1)]);
    for storage in ["hybrid", "hybrid-split"] {
        let all = groups(storage);
        let sum: f64 = all.iter().map(|group| group.share_of_bytes).sum();
        assert!((sum - 1.0).abs() < 1e-9);
        let words = directories::describe(&all, "local").expect("two kinds of device");
        assert!(words.starts_with("filled alike"), "{words}");
    }
    assert_eq!(directories::describe(&groups("hdd-11"), "local"), None, "one kind of device tells nothing");
    // Had the SSD's directory got what it can take, the words would be others.
    let mut skewed = groups("hybrid");
    let files = skewed[0].files + skewed[1].files;
    (skewed[0].files, skewed[1].files) = (0.4 * files, 0.6 * files);
    let words = directories::describe(&skewed, "local").expect("two kinds of device");
    assert!(words.starts_with("filled unevenly"), "{words}");
    // Of a handful of files one more or less is chance.
    (skewed[0].files, skewed[1].files) = (7.0, 2.0);
    let words = directories::describe(&skewed, "local").expect("two kinds of device");
    assert!(words.starts_with("too few files"), "{words}");
}

#[test]
fn idle_devices_are_warned_of() {
    let words = "The busiest device worked for less than";
    let warned = |loaded: &LoadedRun| terminal::comparison(loaded, 130, false).contains(words);
    let mut loaded = mapreduce();
    for device in loaded.records.iter_mut().flat_map(|record| &mut record.devices) {
        device.totals.busy_us = 0.9 * device.duration_s * 1e6;
    }
    assert!(!warned(&loaded));
    let record =
        loaded.records.iter_mut().find(|record| record.cell.mix_or_job() == "terasort").expect("a job");
    for device in &mut record.devices {
        device.totals.busy_us = 0.1 * device.duration_s * 1e6;
    }
    let cell = record.cell.clone();
    // One run of several that waits for something else is not the job.
    assert!(!warned(&loaded));
    loaded.records.retain(|record| {
        record.cell.id != cell.id
            || record.devices[0].totals.busy_us < 0.2 * record.devices[0].duration_s * 1e6
    });
    assert!(warned(&loaded));
}

#[test]
fn prices_of_three_dates_bound_ssd_price() {
    let loaded = mapreduce();
    let comparison = RunComparison::from_loaded(&loaded);
    let table = loaded.run.reference.as_ref();
    let lists = prices::lists(table, &comparison);
    let names: Vec<&str> = lists.iter().map(|list| list.when.as_str()).collect();
    assert_eq!(names, ["2013", "2015", "catalogue"], "prices on record are those of 2013 again");
    let mut changed = mapreduce();
    for record in &mut changed.records {
        record.storage.devices.iter_mut().for_each(|device| device.price_usd = Some(99.0));
    }
    let lists = prices::lists(table, &RunComparison::from_loaded(&changed));
    assert_eq!(lists.last().map(|list| list.when.as_str()), Some(prices::ON_RECORD));

    let export = export::export(&loaded);
    let first = &export.prices[0];
    let ssd = first.storages.iter().find(|one| one.storage == "ssd").expect("priced");
    assert_eq!(ssd.usd, 14_000.0);
    for one in &first.break_even {
        let other = |name: &str| first.storages.iter().find(|one| one.storage == name).expect("priced").usd;
        let disks = if one.storage == "ssd" { 0.0 } else { 6.0 * 400.0 };
        let cost = (disks + one.usd) / one.performance;
        assert!((cost - other(&one.against)).abs() < 1e-6, "{} against {}", one.storage, one.against);
    }
}

#[test]
fn failed_job_keeps_place_and_reason() {
    let mut loaded = mapreduce();
    let reason = "terasort: task_1 failed: No space left on device";
    for record in &mut loaded.records {
        if record.cell.mix_or_job() == "terasort" && record.cell.storage == "ssd" {
            record.status = CellStatus::Failed { reason: reason.to_owned() };
            record.job = None;
        }
        if record.cell.mix_or_job() == "wordcount" {
            // As from a program that wrote nonsense.
            record.job.as_mut().unwrap().duration_s = f64::NAN;
        }
    }
    loaded.records.retain(|record| record.cell.mix_or_job() != "shuffle");
    let comparison = RunComparison::from_loaded(&loaded);
    assert_eq!(comparison.rows.len(), 7);
    let outcome = |mix: &str, storage: &str| {
        let row = comparison.rows.iter().find(|row| row.label() == mix).expect("a row");
        let result =
            row.cells.iter().flatten().find(|result| result.cell.storage == storage).expect("a cell");
        &result.outcome
    };
    assert!(matches!(outcome("terasort", "ssd"), CellOutcome::Failed { .. }));
    assert!(matches!(outcome("wordcount", "ssd"), CellOutcome::Failed { .. }));
    assert!(matches!(outcome("shuffle", "ssd"), CellOutcome::Pending));
    for text in [html::render(&loaded), terminal::comparison(&loaded, 140, false)] {
        assert!(text.contains(reason), "the reason is missing");
    }
    assert!(export::json(&loaded).contains("\"pending\""));
    // Nothing at all, and no baseline.
    loaded.run.baseline = "none such".to_owned();
    render_all(&loaded);
    loaded.records.clear();
    render_all(&loaded);
    assert!(answer::sentence(&loaded).starts_with("No answer yet"));
}

#[test]
fn cache_activity_is_listed_apart_from_job_time() {
    let mut loaded = mapreduce();
    assert!(!html::render(&loaded).contains("The cache between jobs and the store"));
    for record in &mut loaded.records {
        if record.cell.mix_or_job() == "terasort" && record.cell.storage == "ssd" {
            record.job.as_mut().unwrap().cache = Some(CacheUse {
                kind: "gateway".to_owned(),
                write: "back".to_owned(),
                read_bytes: 2_000_000_000,
                fetched_bytes: 250_000_000,
                hits: Some(7),
                misses: Some(1),
                written_bytes: 1_000_000_000,
                stored_bytes: 1_000_000_000,
                dirty_bytes: 640_000_000,
                dirty_objects: 12,
                avoided_uploads: Some(31),
                drain_s: 77.0,
            });
        }
    }
    let page = html::render(&loaded);
    let terminal = terminal::comparison(&loaded, 130, false);
    for text in [&page, &terminal] {
        for words in ["88 %", "250 MB", "640 MB", "1 min 17 s"] {
            assert!(text.contains(words), "{words} is missing");
        }
    }
    assert!(page.contains("write back") && page.contains("<td>31</td>"));
    for width in [40, 80, 120] {
        let text = terminal::comparison(&loaded, width, false);
        assert!(text.lines().all(|line| line.chars().count() <= width), "wider than {width}");
    }
    let value: serde_json::Value = serde_json::from_str(&export::json(&loaded)).expect("JSON");
    let cells = value["cells"].as_array().expect("cells");
    assert_eq!(cells.iter().filter(|cell| cell["job"]["cache"]["dirty_objects"] == 12).count(), 1);
}

fn render_all(loaded: &LoadedRun) {
    for text in [
        html::render(loaded),
        terminal::comparison(loaded, 80, true),
        export::json(loaded),
        export::csv(loaded),
    ] {
        assert!(!text.is_empty());
    }
}

#[test]
fn exports_have_jobs_under_documented_keys() {
    let value: serde_json::Value = serde_json::from_str(&export::json(&mapreduce())).expect("JSON");
    let job = value["cells"][0]["job"].as_object().expect("a job");
    let keys: Vec<&str> = job.keys().map(String::as_str).collect();
    insta::assert_snapshot!(keys.join(" "), @"counters directories duration_interval_s duration_s input_bytes io_bytes lost_tasks output_bytes phases_s read_io_bytes shuffled_bytes tasks write_io_bytes");
    let csv = export::csv(&mapreduce());
    let header = csv.lines().next().unwrap_or_default();
    let column = header.split(',').position(|name| name == "job_duration_s").expect("a column");
    for line in csv.lines().skip(1) {
        assert!(line.split(',').nth(column).is_some_and(|field| field.parse::<f64>().is_ok()), "{line}");
    }
}

#[test]
fn page_has_all_job_sections() {
    let page = html::render(&mapreduce());
    for words in [
        "Performance against hdd-11",
        "filled alike on every kind of device",
        "At the prices of 2015",
        "At the prices of the catalogue",
        "nvme-9550-max of the catalogue, 2024",
        "Break-even",
        "up to 1.70x",
        "a smaller effect here",
        "FileSystemCounter.HDFS_BYTES_READ",
        "ssd-mapreduce.0",
        "Each device",
        "Each directory of hybrid-split",
    ] {
        assert!(page.contains(words), "'{words}' is not on the page");
    }
    assert!(page.len() < 2_000_000, "{} bytes", page.len());
    assert!(!html::render(&fixture::small()).contains("Break-even"));
}

#[test]
fn compactions_are_felt_where_they_are() {
    let loaded = fixture::accumulo::accumulo();
    let comparison = RunComparison::from_loaded(&loaded);
    for row in &comparison.rows {
        for result in row.cells.iter().flatten() {
            let found = CompactionComparison::from_result(result).expect("the system tells");
            assert_eq!(found.gauge.as_deref(), Some("major_compactions_running"));
            if row.cell.mix_or_job() == "c" {
                assert!(found.during.is_none() && found.slowdown.is_none() && found.share == 0.0);
                continue;
            }
            assert!((found.share - 0.3).abs() < 0.001, "18 of 60 seconds: {}", found.share);
            let slowdown = found.slowdown.expect("both windows");
            if result.cell.storage == "hdd" {
                assert_eq!(slowdown.difference(), RatioDifference::More);
                assert!(slowdown.interval.unwrap().contains(1.8), "{slowdown:?}");
            } else {
                assert!(slowdown.interval.unwrap().contains(1.02), "{slowdown:?}");
            }
        }
    }
    assert!(
        CompactionComparison::from_result(
            RunComparison::from_loaded(&fixture::small()).cells().next().unwrap()
        )
        .is_none()
    );
}

#[test]
fn commanded_compaction_is_a_separate_workload() {
    let mut loaded = fixture::accumulo::accumulo();
    let plain = terminal::comparison(&loaded, 130, false);
    let mut forced: Vec<_> = loaded
        .records
        .iter()
        .filter(|record| record.cell.mix_or_job() == "a" && record.cell.label().ends_with(" 64 threads"))
        .cloned()
        .collect();
    for record in &mut forced {
        fixture::requests(&mut record.cell).compacts_at = Some(0.5);
        record.cell.id += "-compacted";
        record.system_series.clear();
        for point in record.measured.as_mut().unwrap().series.iter_mut().filter(|point| point.t_s > 30.0) {
            point.mean_us *= 3.0;
        }
    }
    loaded.records.extend(forced);
    let comparison = RunComparison::from_loaded(&loaded);
    assert_eq!(comparison.rows.len(), 7);
    let row = comparison.rows.iter().find(|row| row.cell.compacts_at().is_some()).expect("a row of its own");
    let found = CompactionComparison::from_result(row.cells[1].as_ref().unwrap())
        .expect("the time of the command to compact is known");
    assert_eq!((found.gauge.as_deref(), found.share), (None, 0.5));
    assert!((found.slowdown.unwrap().value - 3.0).abs() < 0.2, "{:?}", found.slowdown);
    // Neither the published figures nor the answer are about it.
    let extended = terminal::comparison(&loaded, 130, false);
    let published = |text: &str| {
        text.split("Against hdd, as published")
            .nth(1)
            .map(|part| part.split("What the paper").next().unwrap().to_owned())
    };
    assert_eq!(published(&extended), published(&plain));
    assert_eq!(extended.lines().nth(2), plain.lines().nth(2));
    assert!(!extended.contains("Over offered rates"));
}

#[test]
fn paper_of_five_machines_is_compared_with_one() {
    let loaded = fixture::accumulo::accumulo();
    let comparison = RunComparison::from_loaded(&loaded);
    let table = loaded.run.reference.as_ref().unwrap();
    let figures = compare(table, &comparison);
    assert_eq!(figures.len(), 4, "the mean over the mixes is one figure");
    let mean = figures.iter().find(|one| one.figure.mix == "all" && one.figure.storage == "flash").unwrap();
    let (ours, ratio) = (mean.ours.expect("measured"), mean.our_ratio.expect("measured"));
    let each: Vec<f64> = comparison
        .rows
        .iter()
        .filter(|row| row.cell.requests().is_some_and(|requests| requests.threads == 64))
        .map(|row| row.figures(comparison.storages.len() - 1).unwrap().mean_us.unwrap().value / 1e3)
        .collect();
    assert_eq!(each.len(), 3);
    assert!((ours.value - each.iter().sum::<f64>() / 3.0).abs() < 1e-9);
    assert!(ratio.value < 1.0 && (mean.published_ratio.unwrap() - 0.125).abs() < 1e-9);
    let page = html::render(&loaded);
    for words in ["a fifth of 4,759", "a fifth of 48,000", "system compacted", "Compactions"] {
        assert!(page.contains(words), "'{words}' is not on the page");
    }
    let judged = claims::judge(table, &comparison);
    assert_eq!(judged[0].verdict, ClaimVerdict::AgreesLarger);
    assert_eq!(judged[1].verdict, ClaimVerdict::Agrees);
    insta::assert_snapshot!("accumulo_130", terminal::comparison(&loaded, 130, false));
}

#[test]
fn short_form_is_compared_and_reports_omissions() {
    let mut loaded = fixture::accumulo::accumulo();
    loaded.run.shortened = Some(ShortenedAmount { full_bytes: 400e9, short_bytes: 48e9 });
    loaded.run.short = true;
    let cells = loaded.records.iter_mut().map(|record| &mut record.cell);
    for cell in cells.chain(loaded.run.plan.iter_mut().map(|planned| &mut planned.cell)) {
        cell.data_bytes = 48_000_000_000;
    }
    let figures_of = |loaded: &LoadedRun| {
        let comparison = RunComparison::from_loaded(loaded);
        let figures = compare(loaded.run.reference.as_ref().unwrap(), &comparison);
        let found = figures.iter().map(|one| (one.ours.is_some(), one.less_data.map(|less| less.bytes)));
        found.collect::<Vec<_>>()
    };
    assert_eq!(figures_of(&loaded), [(true, Some(48e9)); 4]);
    let note = "has 48 GB of data where the study in full has 400 GB, a fifth of the paper's 2 TB";
    let text = terminal::comparison(&loaded, 160, false);
    assert!(text.contains(note) && text.contains("x* ("), "{text}");
    let page = html::render(&loaded);
    assert!(page.contains(note) && page.contains("<small>on 48 GB</small>"));
    // The whole study beside a part of it: the part is held against nothing.
    let mut both = fixture::accumulo::accumulo();
    both.run = loaded.run.clone();
    both.records.extend(loaded.records.clone());
    assert_eq!(figures_of(&both), [(true, None); 4]);
    // Such an amount for no reason that the study gives is another experiment.
    (loaded.run.short, loaded.run.shortened) = (false, None);
    assert_eq!(figures_of(&loaded), [(false, None); 4]);
}

#[test]
fn unshared_role_directory_is_named_but_not_counted() {
    let plain = mapreduce();
    let mut with_role = mapreduce();
    for record in &mut with_role.records {
        let mut own = record.storage.devices[0].clone();
        own.id = DeviceId { role: Some("namenode".to_owned()), ..DeviceId::new("nvme-p3700.0") };
        own.medium = Some("nvme-p3700".to_owned());
        own.price_usd = Some(2400.0);
        record.storage.devices.push(own.clone());
        let mut device = record.devices[0].clone();
        device.description = own;
        (device.totals.read_bytes, device.totals.write_bytes) = (1, 1);
        record.devices.push(device);
    }
    let costs = |loaded: &LoadedRun| {
        let export = export::export(loaded);
        let each = export.cells.iter().map(|cell| (cell.cost.price_usd, cell.cost.usd_per_tb));
        each.collect::<Vec<_>>()
    };
    assert_eq!(costs(&with_role), costs(&plain));
    let figures = |loaded: &LoadedRun| {
        let comparison = RunComparison::from_loaded(loaded);
        let jobs = comparison.jobs().flat_map(|row| (0..5).filter_map(|index| row.job(index)));
        jobs.map(|job| (job.io_bytes, job.cost.clone())).collect::<Vec<_>>()
    };
    assert_eq!(figures(&with_role), figures(&plain));
    let judged = |loaded: &LoadedRun| {
        let comparison = RunComparison::from_loaded(loaded);
        let judged = claims::judge(loaded.run.reference.as_ref().unwrap(), &comparison);
        judged.into_iter().map(|one| one.findings).collect::<Vec<_>>()
    };
    assert_eq!(judged(&with_role), judged(&plain));
    let words = "namenode on nvme-p3700 ($2,400)";
    for text in [terminal::comparison(&with_role, 130, false), html::render(&with_role)] {
        assert!(text.contains(words));
    }
}
