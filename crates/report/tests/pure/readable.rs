//! A reader's first view, on any screen, and that things have their names.

use crate::fixture;
use crate::fixture::benchmarks::benchmarks;
use underlay_record::FlashWear;
use underlay_report::{LoadedRun, answer, comparison, export, html, terminal};

/// The same run with its last storage rented.
fn rented() -> LoadedRun {
    let mut loaded = fixture::small();
    for record in loaded.records.iter_mut().filter(|record| record.cell.storage == "nvme") {
        record.storage.devices.iter_mut().for_each(|device| device.is_rented = true);
    }
    loaded
}

#[test]
fn rent_is_named_beside_all_prices() {
    let loaded = rented();
    for width in [60, 80, 140] {
        let text = terminal::comparison(&loaded, width, false);
        assert!(text.contains("$645 (3 years' rent)"), "{width}: {text}");
    }
    let wide = terminal::comparison(&loaded, 160, false);
    assert!(wide.contains("  202 rent"), "{wide}");
    assert!(wide.contains("rent is for 3 years"), "{wide}");
    let page = html::render(&loaded);
    let cards = page.split("class=\"facts\"").next().unwrap_or_default();
    assert!(cards.contains("<dd>$645 (3 years' rent)</dd>"), "the card calls it a purchase");
    assert!(page.contains("<td>$202<small>3 years' rent</small></td>"), "dollars for a terabyte");
    let found = export::export(&loaded);
    let rents: Vec<_> = found
        .cells
        .iter()
        .filter(|cell| cell.storage == "nvme")
        .map(|cell| cell.cost.price_rent_usd)
        .collect();
    assert!(rents.iter().all(|rent| *rent == Some(645.0)), "{rents:?}");
    let bought = found.cells.iter().find(|cell| cell.storage == "hdd").unwrap();
    assert_eq!(bought.cost.price_rent_usd, Some(0.0));
    let clean = fixture::small();
    assert!(
        !terminal::comparison(&clean, 140, false).contains("rent") && !html::render(&clean).contains("rent<")
    );
}

#[test]
fn answer_and_storages_fit_first_terminal_screen() {
    let text = terminal::comparison(&fixture::small(), 80, false);
    let first: Vec<&str> = text.lines().take(24).collect();
    for words in [" times the throughput of hdd", " nvme      17.5–18.9x", " sata-ssd  11.0–11.7x"] {
        assert!(
            first.iter().any(|line| line.contains(words)),
            "'{words}' is not there: {}",
            first.join("\n")
        );
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn benchmarks_are_a_table_at_80_columns() {
    let text = terminal::comparison(&benchmarks(), 80, false);
    assert!(
        text.lines().any(|line| line.starts_with(" storage ") && line.contains("against hdd  verdict")),
        "{text}"
    );
    assert!(!text.contains("value: ") && text.contains("\nthroughput, higher is better\n"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn baseline_of_zero_is_printed_in_figures() {
    let mut loaded = benchmarks();
    for record in loaded.records.iter_mut().filter(|record| record.cell.storage == "hdd") {
        let figures = record.benchmark.iter_mut().flat_map(|benchmark| &mut benchmark.figures);
        figures.filter(|figure| figure.name == "checkpoints").for_each(|figure| figure.value = 0.0);
    }
    let text = terminal::comparison(&loaded, 100, false);
    let line_count = text.lines().filter(|line| line.contains("2 instead of 0")).count();
    assert_eq!(line_count, 2, "{text}");
    assert_eq!(html::render(&loaded).matches("2 instead of 0").count(), 2);
}

#[test]
fn hundredth_percentile_is_called_maximum() {
    let mut loaded = benchmarks();
    let measured_benchmarks = loaded.records.iter_mut().filter_map(|record| record.benchmark.as_mut());
    for figure in measured_benchmarks
        .flat_map(|benchmark| &mut benchmark.figures)
        .filter(|figure| figure.name == "latency p99")
    {
        figure.name = "latency p100".to_owned();
    }
    let text = terminal::comparison(&loaded, 100, false);
    assert!(text.contains("latency maximum, lower is better") && !text.contains("p100"), "{text}");
    // Scripts keep the name that the study's program gave.
    assert!(export::json(&loaded).contains("latency p100"));
}

#[test]
fn bars_above_a_picture_say_what_they_are() {
    let page = html::render(&benchmarks());
    assert!(page.contains(">checkpoint</text>") && page.contains("show when there was a checkpoint"));
}

#[test]
fn lifetime_names_its_extrapolation() {
    let mut loaded = fixture::small();
    let wear = FlashWear {
        host_write_bytes: 1_000_000,
        programmed_bytes: 2_500_000,
        erased_blocks: 3,
        write_amplification: Some(2.5),
        rated_write_bytes: Some(1_000_000_000),
        life_days: None,
    };
    for device in loaded.records.iter_mut().flat_map(|record| &mut record.devices) {
        device.wear = Some(wear);
        device.description.starts_overwritten = Some(true);
    }
    let page = html::render(&loaded);
    assert!(page.contains("Drive life is extrapolated") && page.contains("modelled as fully overwritten"));
    let measured = loaded.records.iter().find_map(|record| record.devices.first()).unwrap().duration_s;
    let from = format!("from {}</small>", underlay_report::quantity::duration(measured));
    assert!(page.contains(&from), "{from}");
    for device in loaded.records.iter_mut().flat_map(|record| &mut record.devices) {
        device.description.starts_overwritten = None;
    }
    assert!(!html::render(&loaded).contains("modelled as fully overwritten"), "nobody knows");
}

#[test]
fn elements_for_assistive_programs_have_names() {
    for loaded in
        [fixture::small(), benchmarks(), fixture::rates::searched(), fixture::mapreduce::mapreduce()]
    {
        let page = html::render(&loaded);
        assert!(!page.contains("role=\"alert\"") && !page.contains("<aside"));
        assert!(!page.contains("scope=\"row\"></th>") && !page.contains("scope=\"rowgroup\"></th>"));
        for section in page.split("<section class=\"box").skip(1) {
            assert!(section.split('>').next().is_some_and(|tag| tag.contains("aria-labelledby")));
        }
    }
}

#[test]
fn sandboxed_page_has_no_script() {
    let page = html::render(&fixture::small());
    let stripped = html::without_script(&page);
    assert!(page.contains("<script") && !stripped.contains("<script"));
    assert_eq!(page.split("<script").next(), stripped.split("</body>").next());
}

#[test]
fn mixes_are_explained_without_letters() {
    let sentence = answer::sentence(&fixture::small());
    assert!(sentence.contains("under C (reads only)") && !sentence.contains("(c)"), "{sentence}");
    let mut cell = fixture::small().records[0].cell.clone();
    for (mix, words) in [
        ("a", "A (half reads, half updates)"),
        ("f", "F (half reads, half read-modify-writes)"),
        ("load", "load (insert every record)"),
        ("update100", "updates only"),
        ("read80-update20", "80 % reads, 20 % updates"),
        ("mine", "mine"),
    ] {
        fixture::requests(&mut cell).mix = mix.to_owned();
        assert_eq!(comparison::workload_in_words(&cell), words);
    }
    cell.named.workload = true;
    cell.workload = "ycsb".to_owned();
    fixture::requests(&mut cell).mix = "c".to_owned();
    assert_eq!(comparison::workload_in_words(&cell), "ycsb C (reads only)");
}

#[test]
fn run_names_its_systems() {
    let mut run = fixture::small().run;
    assert_eq!(run.system_title("je-ha"), "Berkeley DB JE HA");
    assert!(!run.keeps_nothing("null"));
    run.profiles.clear();
    assert_eq!(run.system_title("je-ha"), "je-ha", "a run of an earlier version says no more");
}

#[test]
fn long_report_ends_with_answer() {
    let loaded = fixture::small();
    for width in [40, 80, 140] {
        let text = terminal::answer_again(&loaded, width, false);
        assert!(text.starts_with("answer   On "), "{text}");
        assert!(text.ends_with('\n') && text.lines().all(|line| line.chars().count() <= width), "{text}");
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&text)[1..], words(&answer::sentence(&loaded)), "{text}");
    }
}
