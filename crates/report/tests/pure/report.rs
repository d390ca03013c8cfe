//! A run's report, in each of its forms.

use crate::fixture;
use underlay_record::{
    CellStatus, CertificateVerdict, DisturbedBy, FaultRecord, FlashWear, RunRecord, ScaleFactors,
};
use underlay_report::claims::{self, ClaimVerdict};
use underlay_report::comparison::RunComparison;
use underlay_report::reference::{ReferenceReading, compare};
use underlay_report::{LoadedRun, answer, export, html, rates, terminal};

#[test]
fn answer_is_a_single_sentence() {
    insta::assert_snapshot!(answer::sentence(&fixture::small()));
}

#[test]
fn answer_with_little_evidence_claims_little() {
    let mut answers = Vec::new();
    answers.push(answer::sentence(&fixture::interrupted(0)));
    answers.push(answer::sentence(&fixture::interrupted(10)));
    // The baseline failed.
    let mut loaded = fixture::small();
    for record in loaded.records.iter_mut().filter(|record| record.cell.storage == "hdd") {
        record.status = CellStatus::Failed { reason: "the disk is gone".to_owned() };
        record.measured = None;
    }
    answers.push(answer::sentence(&loaded));
    // Nothing but the baseline.
    let mut loaded = fixture::small();
    loaded.records.retain(|record| record.cell.storage == "hdd");
    loaded.run.plan.retain(|planned| planned.cell.storage == "hdd");
    answers.push(answer::sentence(&loaded));
    // The same storage twice.
    let mut loaded = same_storage_twice();
    answers.push(answer::sentence(&loaded));
    // Every cell doubtful.
    for certificate in loaded.records.iter_mut().filter_map(|record| record.certificate.as_mut()) {
        certificate.verdict = CertificateVerdict::Doubtful;
    }
    answers.push(answer::sentence(&loaded));
    // One repetition without a time series: a ratio of unknown certainty.
    let mut loaded = fixture::small();
    loaded.records.retain(|record| record.repetition == 1);
    loaded.run.plan.retain(|planned| planned.repetition == 1);
    for measured in loaded.records.iter_mut().filter_map(|record| record.measured.as_mut()) {
        measured.series.clear();
    }
    answers.push(answer::sentence(&loaded));
    insta::assert_snapshot!(answers.join("\n"));
}

/// The hard disks' records under two names: every difference is noise.
fn same_storage_twice() -> LoadedRun {
    let mut loaded = fixture::small();
    loaded.records.retain(|record| record.cell.storage == "hdd");
    let mut twin = loaded.records.clone();
    for record in &mut twin {
        record.cell.storage = "nvme".to_owned();
    }
    loaded.records.extend(twin);
    let plan = &mut loaded.run.plan;
    plan.retain(|planned| planned.cell.storage != "sata-ssd");
    loaded
}

#[test]
fn terminal_table_matches_snapshots() {
    let loaded = fixture::small();
    insta::assert_snapshot!("terminal_100", terminal::comparison(&loaded, 100, false));
    insta::assert_snapshot!("terminal_140", terminal::comparison(&loaded, 140, false));
}

#[test]
fn terminal_lines_fit_width() {
    for loaded in [
        fixture::small(),
        fixture::large(),
        fixture::interrupted(4),
        same_storage_twice(),
        fixture::stepped::stepped(),
        fixture::rates::searched(),
        fixture::rates::changing(),
    ] {
        // Of what takes long, the narrowest and the widest.
        let widths: &[usize] =
            if loaded.records.len() > 100 { &[40, 160] } else { &[40, 60, 80, 100, 120, 160] };
        for &width in widths {
            let text = terminal::comparison(&loaded, width, false);
            let widest = text.lines().max_by_key(|line| line.chars().count()).expect("lines");
            assert!(widest.chars().count() <= width, "wider than {width}: {widest}");
            assert!(!text.contains('\x1b'), "escapes without colour");
        }
    }
}

#[test]
fn colour_adds_escapes_and_no_words() {
    let loaded = fixture::small();
    let coloured = terminal::comparison(&loaded, 100, true);
    assert!(coloured.contains("\x1b[1;31m! DOUBTFUL\x1b[0m"));
    let mut plain = String::new();
    let mut rest = coloured.as_str();
    while let Some(start) = rest.find('\x1b') {
        plain += &rest[..start];
        let end = rest[start..].find('m').expect("an escape ends") + start;
        rest = &rest[end + 1..];
    }
    plain += rest;
    assert_eq!(plain, terminal::comparison(&loaded, 100, false));
}

#[test]
fn equal_storages_are_said_not_to_differ() {
    let text = terminal::comparison(&same_storage_twice(), 100, false);
    assert_eq!(text.matches("no difference seen").count(), 3, "{text}");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("no difference in p99 latency was seen on nvme"), "{text}");
    assert!(text.lines().any(|line| line.starts_with(" nvme") && line.contains("no difference ")), "{text}");
}

#[test]
fn json_has_the_documented_keys_for_every_state() {
    let value: serde_json::Value = serde_json::from_str(&export::json(&fixture::small())).expect("JSON");
    insta::assert_snapshot!("json_keys", keys(&value, String::new()).join("\n"));
    let cells = value["cells"].as_array().expect("a list");
    assert_eq!(cells.len(), 9);
    let first = cells[0].as_object().expect("an object");
    for cell in cells {
        let cell = cell.as_object().expect("an object");
        assert!(cell.keys().eq(first.keys()), "the same keys in every cell");
        let is_completed = cell["state"] == "completed";
        assert_eq!(cell["throughput_per_s"].is_number(), is_completed);
        assert_eq!(cell["latency_us"]["p99"].is_number(), is_completed);
        assert_eq!(cell["ratio_to_baseline"].is_number(), is_completed && cell["storage"] != "hdd");
    }
    let states: Vec<&str> = cells.iter().map(|cell| cell["state"].as_str().expect("text")).collect();
    assert!(states.contains(&"failed") && states.contains(&"unavailable"));
    let doubtful: Vec<_> = cells.iter().filter(|cell| cell["certificate"]["verdict"] == "doubtful").collect();
    assert_eq!(doubtful.len(), 1);
    assert_eq!(doubtful[0]["certificate"]["failed_checks"][0], "device latency p50");
}

/// Every path of an object, lists by their first element.
fn keys(value: &serde_json::Value, path: String) -> Vec<String> {
    match value {
        serde_json::Value::Object(map) => {
            map.iter().flat_map(|(key, value)| keys(value, format!("{path}.{key}"))).collect()
        }
        serde_json::Value::Array(list) => match list.first() {
            Some(first) => keys(first, format!("{path}[]")),
            None => vec![format!("{path}[]")],
        },
        _ => vec![path],
    }
}

#[test]
fn csv_has_as_many_fields_as_columns() {
    for loaded in [fixture::small(), fixture::large()] {
        let text = export::csv(&loaded);
        let mut lines = text.split("\r\n").filter(|line| !line.is_empty());
        let columns = fields(lines.next().expect("a header"));
        assert_eq!(columns[..export::CSV_COLUMNS.len()], export::CSV_COLUMNS);
        let of_metrics = &columns[export::CSV_COLUMNS.len()..];
        assert!(of_metrics.iter().any(|column| column == "certificate_delivered_p99_us"), "{of_metrics:?}");
        let export = export::export(&loaded);
        let mut count = 0;
        for (line, cell) in lines.zip(&export.cells) {
            let fields = fields(line);
            assert_eq!(fields.len(), columns.len(), "{line}");
            let field =
                |name: &str| &fields[columns.iter().position(|column| column == name).expect("a column")];
            assert_eq!(*field("workload"), cell.workload);
            assert_eq!(field("throughput_per_s").parse().ok(), cell.throughput_per_s);
            assert_eq!(field("latency_us_p999").parse().ok(), cell.latency_us.p999);
            assert_eq!(field("usd_per_kops").parse().ok(), cell.cost.usd_per_kops);
            for metric in &cell.certificate.metrics {
                assert_eq!(field(&format!("certificate_{}", metric.id)).parse().ok(), Some(metric.value));
            }
            assert_eq!(field("reference_count").parse().ok(), Some(cell.reference.len()));
            count += 1;
        }
        assert_eq!(count, export.cells.len());
    }
}

/// One line of CSV by the letter of RFC 4180.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut is_quoted = false;
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        let field = fields.last_mut().expect("one at least");
        match character {
            '"' if is_quoted && characters.peek() == Some(&'"') => {
                characters.next();
                field.push('"');
            }
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => fields.push(String::new()),
            other => field.push(other),
        }
    }
    fields
}

#[test]
fn published_figures_find_their_cells() {
    let loaded = fixture::large();
    let comparison = RunComparison::from_loaded(&loaded);
    let table = loaded.run.reference.as_ref().expect("a table");
    let all = compare(table, &comparison);
    assert_eq!(all.len(), 16, "each figure fits one cell");
    for one in &all {
        let row = &comparison.rows[one.row.expect("a row")];
        let requests = row.cell.requests().expect("no job");
        assert_eq!(Some(&requests.distribution), one.figure.distribution.as_ref());
        assert_eq!(row.cell.data, one.figure.data);
        assert_eq!(one.published_ratio.is_some(), one.figure.storage == "nvme");
        assert_eq!(one.our_ratio.is_some(), one.figure.storage == "nvme");
    }
    let find_figure = |distribution: &str, size: &str| {
        all.iter()
            .find(|one| {
                one.figure.storage == "nvme"
                    && one.figure.distribution.as_deref() == Some(distribution)
                    && one.figure.data.as_deref() == Some(size)
            })
            .expect("published")
    };
    assert_eq!(find_figure("uniform", "256 GB").reading, ReferenceReading::Agrees);
    assert_eq!(find_figure("uniform", "1 TB").reading, ReferenceReading::SameDirectionSmaller);
    assert_eq!(find_figure("uniform", "32 GB").reading, ReferenceReading::OnlyHere);
}

#[test]
fn published_figure_without_cell_is_kept() {
    let mut loaded = fixture::large();
    let table = loaded.run.reference.as_mut().expect("a table");
    (table.figures[0].data, table.figures[0].data_bytes) = (Some("3 PB".to_owned()), Some(3e15));
    table.figures[1].metric = "p95_latency_ms".into();
    let comparison = RunComparison::from_loaded(&loaded);
    let all = compare(loaded.run.reference.as_ref().expect("a table"), &comparison);
    assert_eq!(all.len(), 16);
    assert!(all[0].row.is_none() && all[0].ours.is_none());
    assert!(all[1].row.is_some() && all[1].ours.is_none());
}

#[test]
fn report_page_is_self_contained_and_has_key_facts() {
    let mut loaded = fixture::small();
    loaded.run.study_toml.push_str("# </pre><script>alert(1)</script>\n");
    let page = html::render(&loaded);
    for outside in ["src=", "@import", "url(", "<link", "fetch("] {
        assert!(!page.contains(outside), "asks for something outside: {outside}");
    }
    assert!(!page.contains("href=\"http"), "links leave the page");
    assert!(!page.contains("<script>alert"), "text from a study is no markup");
    for needed in [
        "⚠ doubtful",
        "No space left on device",
        "/dev/fuse is not there",
        "prefers-color-scheme: dark",
        "@media print",
        "Slow motion x4 was divided out",
        "[system.rocksdb]",
        "4 May 2026, 09:12 UTC",
        "a made-up price list",
    ] {
        assert!(page.contains(needed), "{needed} is missing");
    }
    assert_eq!(
        page.matches("<svg").count(),
        page.matches("<title>").count() - 1,
        "each picture has its title"
    );
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
}

#[test]
fn fault_is_marked_at_its_time() {
    let mut loaded = fixture::small();
    let description = "slow: everything takes 10 times as long".to_owned();
    let words = format!(": {description}");
    assert!(!html::render(&loaded).contains(&words));
    let is_drawn = |record: &&RunRecord| record.measured.is_some() && !record.devices.is_empty();
    let id = loaded.records.iter().find(is_drawn).unwrap().cell.id.clone();
    // The study has it in every repetition.
    let records = loaded.records.iter_mut().filter(|record| record.cell.id == id);
    for device in records.flat_map(|record| &mut record.devices) {
        device.faults = vec![FaultRecord {
            t_s: 2.0,
            until_s: Some(4.0),
            what: description.clone(),
            by: Some(DisturbedBy::Study),
            ended_by_hand: false,
        }];
    }
    // Once under each of the two charts of its row, regardless of the number of devices.
    assert_eq!(html::render(&loaded).matches(&words).count(), 2);
}

#[test]
fn wear_is_told_where_there_is_any() {
    let mut loaded = fixture::small();
    assert!(!html::render(&loaded).contains("write amplification"));
    let cell =
        loaded.records.iter_mut().find(|record| !record.devices.is_empty()).expect("a cell with devices");
    let duration_s = cell.devices[0].duration_s;
    cell.devices[0].wear = Some(FlashWear {
        host_write_bytes: 1_000_000,
        programmed_bytes: 2_500_000,
        erased_blocks: 3,
        write_amplification: Some(2.5),
        // A thousand times what was written now: this many days of it.
        rated_write_bytes: Some(1_000_000_000),
        life_days: None,
    });
    let page = html::render(&loaded);
    assert!(page.contains("<td>2.50</td>"));
    let days = 1000.0 * duration_s / 86_400.0;
    assert!(days < 700.0 && page.contains(&format!("{} days", underlay_report::quantity::number(days, 2))));
}

#[test]
fn picture_colours_come_from_style_sheet() {
    let page = html::render(&fixture::small());
    for attribute in ["fill=\"#", "stroke=\"#"] {
        for (start, _) in page.match_indices(&format!(" {attribute}")) {
            let colour = &page[start + 1..start + attribute.len() + 8];
            assert!(page.contains(&format!("[{colour}]")), "{colour} would stay dark on dark");
        }
    }
}

#[test]
fn page_of_largest_study_fits_a_mail() {
    let page = html::render(&fixture::large());
    assert!(page.len() < 3_000_000, "{} bytes", page.len());
    assert!(page.contains("Of 8 published ratios"));
}

#[test]
fn odd_runs_are_reported_without_a_panic() {
    let mut loaded = fixture::small();
    loaded.run.scale = ScaleFactors::default();
    for (index, record) in loaded.records.iter_mut().enumerate() {
        record.certificate = None;
        record.storage.devices.clear();
        let Some(measured) = &mut record.measured else { continue };
        match index % 5 {
            0 => measured.duration_s = 0.0,
            1 => measured.operations = 0,
            2 => measured.series.iter_mut().for_each(|point| point.throughput_per_s = f64::NAN),
            3 => measured.latency = underlay_record::RecordedLatency::default(),
            _ => record.devices.iter_mut().for_each(|device| device.series.truncate(1)),
        }
    }
    loaded.run.baseline = "none such".to_owned();
    for text in [
        html::render(&loaded),
        terminal::comparison(&loaded, 0, true),
        export::json(&loaded),
        export::csv(&loaded),
        answer::sentence(&loaded),
    ] {
        assert!(!text.is_empty());
    }
    loaded.run.plan.clear();
    loaded.records.clear();
    assert!(answer::sentence(&loaded).starts_with("No answer yet"));
    assert!(html::render(&loaded).contains("No answer yet"));
}

#[test]
fn offered_rates_are_one_series_with_claims_beside_them() {
    let loaded = fixture::stepped::stepped();
    insta::assert_snapshot!("terminal_stepped", terminal::comparison(&loaded, 110, false));
    let comparison = RunComparison::from_loaded(&loaded);
    let series = rates::series(&comparison);
    assert_eq!(series.len(), 1);
    let offered: Vec<Option<f64>> = series[0].steps.iter().map(|row| row.cell.rate_per_s()).collect();
    assert_eq!(offered, [Some(80e3), Some(240e3), None], "what nothing holds back comes last");
}

#[test]
fn claims_are_judged_by_run_and_published_figures() {
    let loaded = fixture::stepped::stepped();
    let comparison = RunComparison::from_loaded(&loaded);
    let judged = claims::judge(loaded.run.reference.as_ref().unwrap(), &comparison);
    let verdicts: Vec<ClaimVerdict> = judged.iter().map(|one| one.verdict).collect();
    use ClaimVerdict::{Agrees, NotCompared};
    assert_eq!(verdicts, [Agrees, Agrees, Agrees, NotCompared, NotCompared]);
    let contradicted: Vec<usize> = judged.iter().map(|one| one.contradictions.len()).collect();
    assert_eq!(contradicted, [0, 0, 1, 0, 0], "the paper prints 40.7 ms for what it calls the better one");
    assert!(judged[2].contradictions[0].contains("40.7"), "{}", judged[2].contradictions[0]);

    // The other way round, what was claimed is not found.
    let mut swapped = fixture::stepped::stepped();
    for record in &mut swapped.records {
        record.cell.storage = match record.cell.storage.as_str() {
            "local" => "remote".to_owned(),
            "remote" => "local".to_owned(),
            other => other.to_owned(),
        };
    }
    let comparison = RunComparison::from_loaded(&swapped);
    let judged = claims::judge(swapped.run.reference.as_ref().unwrap(), &comparison);
    assert_eq!(judged[0].verdict, Agrees);
    assert_eq!(judged[1].verdict, ClaimVerdict::AgreesInPart);
    assert_eq!(judged[2].verdict, ClaimVerdict::Differs);
}

#[test]
fn page_shows_rates_claims_and_network() {
    let page = html::render(&fixture::stepped::stepped());
    for words in [
        "Over offered rates",
        "What the network added",
        "own initiator",
        "Volumes against remote",
        "4 volumes of 4.9 TB in a pool",
        "What the paper says",
        "Its own figures say otherwise",
        "less than offered",
        "update, p99.9",
    ] {
        assert!(page.contains(words), "'{words}' is not on the page");
    }
    let plain = html::render(&fixture::small());
    assert!(!plain.contains("Over offered rates") && !plain.contains("What the network added"));
}

#[test]
fn searched_rates_are_shown_with_their_bounds() {
    let loaded = fixture::rates::searched();
    insta::assert_snapshot!("terminal_searched", terminal::comparison(&loaded, 100, false));
    let page = html::render(&loaded);
    for words in [
        "Highest rates",
        "Every step",
        "confirmed 3 of 3",
        "3.333 % took longer",
        "Rates tried, step by step",
    ] {
        assert!(page.contains(words), "'{words}' is not on the page");
    }
    assert_eq!(page.matches("<svg").count(), page.matches("<title>").count() - 1);
    assert!(!html::render(&fixture::small()).contains("Highest rates"));
    // The rate lies anywhere up to what fails, 2.3 % above, however often it is measured.
    let comparison = RunComparison::from_loaded(&loaded);
    let figures = comparison.rows[0].figures(0).expect("measured");
    let share = figures.throughput_per_s.relative_half_width().expect("an interval");
    assert!((0.012..0.04).contains(&share), "{share}");
    assert!(rates::series(&comparison).is_empty(), "a rate that was looked for is no step");
    let mut unfinished = loaded;
    for record in &mut unfinished.records {
        record.search.as_mut().expect("it was looked for").is_closed = false;
    }
    let text = terminal::comparison(&unfinished, 100, false);
    assert!(text.contains("the search ran out of steps"), "{text}");
}

#[test]
fn search_without_rate_keeps_its_steps() {
    let mut loaded = fixture::rates::searched();
    let slow = loaded.records[0].cell.storage.clone();
    let reason = "no rate keeps to p99 within 10 ms: 26.8/s, the lowest that was tried, fails too: 80.000 % took longer";
    for record in loaded.records.iter_mut().filter(|record| record.cell.storage == slow) {
        record.status = CellStatus::Failed { reason: reason.to_owned() };
        (record.measured, record.certificate) = (None, None);
        let search = record.search.as_mut().expect("it was looked for");
        (search.holds_per_s, search.fails_per_s) = (None, Some(26.8));
    }
    let text = terminal::comparison(&loaded, 120, false);
    assert!(text.lines().any(|line| line.contains(" none ") && line.contains("26.8/s")), "{text}");
    assert!(text.contains("no rate keeps to p99 within 10 ms"), "{text}");
    let page = html::render(&loaded);
    assert!(page.contains("none holds: 26.8/s fails, the lowest that was tried"));
    let json = export::json(&loaded);
    assert!(json.contains("\"holds_per_s\": null"), "{json}");
}

#[test]
fn changing_rate_is_shown_in_parts() {
    let loaded = fixture::rates::changing();
    insta::assert_snapshot!("terminal_changing", terminal::comparison(&loaded, 100, false));
    let page = html::render(&loaded);
    for words in ["While the rate changes", "less than offered", "2,000/s", "40–60"] {
        assert!(page.contains(words), "'{words}' is not on the page");
    }
    assert!(!page.contains("Not steady"), "what is meant to change is no trend");
    assert!(rates::series(&RunComparison::from_loaded(&loaded)).is_empty(), "a rate that changes is no step");
}

#[test]
fn short_warm_up_is_reported_with_missing_time() {
    let mut loaded = fixture::small();
    assert!(!terminal::comparison(&loaded, 100, false).contains("warming up"));
    for record in loaded.records.iter_mut().filter(|record| record.cell.mix_or_job() == "c") {
        let Some(measured) = &mut record.measured else { continue };
        for point in &mut measured.series[..10] {
            point.throughput_per_s *= 0.5;
        }
    }
    let warnings = export::export(&loaded).warnings;
    let found: Vec<_> = warnings.iter().filter(|one| one.text.contains("warming up")).collect();
    assert_eq!(found.len(), 1, "{warnings:?}");
    assert_eq!(found[0].cells.len(), 3);
    assert!(found[0].text.contains(" % lower at first"), "{}", found[0].text);
    // Ten modelled seconds take forty here; some more may look like the first ones.
    let remedy = found[0].remedy.as_deref().expect("what to try");
    let more = (40..=60)
        .step_by(4)
        .find(|more| remedy == format!("set `warmup = \"{} s\"` under [run], {more} s more", 20 + more));
    assert!(more.is_some(), "{remedy}");
    assert!(!warnings.iter().any(|one| one.text.starts_with("Not steady")), "{warnings:?}");
}

#[test]
fn cached_data_and_saturated_generator_are_reported() {
    let mut loaded = fixture::small();
    for record in loaded.records.iter_mut().filter(|record| record.cell.mix_or_job() == "a") {
        record.memory.data_to_memory = 0.8;
        let certificate = record.certificate.as_mut().expect("it completed");
        let check = certificate.checks.last_mut().expect("generator headroom");
        check.passed = false;
        check.remedy = Some("more threads, or a larger [scale] time".to_owned());
        certificate.verdict = CertificateVerdict::Doubtful;
    }
    let text = terminal::comparison(&loaded, 200, false);
    for words in
        ["The data fits in memory and takes 80 % of it", "Doubtful, generator headroom", "more threads"]
    {
        assert!(text.contains(words), "'{words}' is not said: {text}");
    }
    // A program's own memory caches nothing: most of this budget is a heap.
    for record in &mut loaded.records {
        record.memory.cache_bytes = Some(record.memory.data_bytes / 2);
    }
    assert!(!terminal::comparison(&loaded, 200, false).contains("fits in memory"));
    for record in &mut loaded.records {
        record.memory.cache_bytes = Some(record.memory.data_bytes * 2);
    }
    assert!(terminal::comparison(&loaded, 200, false).contains("takes 50 % of it"));
    // A paper's size is its own point.
    loaded.run.reference = fixture::large().run.reference;
    assert!(!terminal::comparison(&loaded, 200, false).contains("fits in memory"));
}
