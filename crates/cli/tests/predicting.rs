//! `underlay predict`, `explain` and `advise`, from a small run that was measured: RocksDB on six disks and on flash,
//! three sizes, three mixes.

mod support;

use std::path::{Path, PathBuf};

use support::schemas::keeps_to;
use support::{Playground, stderr, stdout};

const RUN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/measured-run");

/// The run as a quiet host would have certified it, with a series for each cell, which the fixture leaves out. `change`
/// may spoil a record.
fn sound_run(playground: &Playground, change: impl Fn(&str, &mut serde_json::Value)) -> String {
    let directory = playground.path("sound-run");
    std::fs::create_dir_all(directory.join("cells")).unwrap();
    std::fs::copy(Path::new(RUN).join("run.json"), directory.join("run.json")).unwrap();
    for entry in std::fs::read_dir(Path::new(RUN).join("cells")).unwrap() {
        let path = entry.unwrap().path();
        let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        record["certificate"]["verdict"] = "faithful".into();
        let measured = &mut record["measured"];
        let (duration_s, per_s) =
            (measured["duration_s"].as_f64().unwrap(), measured["throughput_per_s"].as_f64().unwrap());
        let mean_us = measured["latency"]["us"]["mean"].as_f64().unwrap();
        let point = |index: u32| {
            serde_json::json!({
                "t_s": f64::from(index) * duration_s / 20.0, "operations": 1, "throughput_per_s": per_s, "mean_us": mean_us,
                "p50_us": mean_us, "p99_us": mean_us, "max_us": mean_us
            })
        };
        measured["series"] = (1..=20).map(point).collect();
        let name = path.file_name().unwrap().to_str().unwrap();
        change(name, &mut record);
        std::fs::write(directory.join("cells").join(name), record.to_string()).unwrap();
    }
    directory.to_str().unwrap().to_owned()
}

/// Nothing is spoilt.
fn as_it_is(_: &str, _: &mut serde_json::Value) {}

fn json(playground: &Playground, arguments: &[&str]) -> serde_json::Value {
    let output = playground.output(&[arguments, &["--json"]].concat());
    assert!(!output.stdout.is_empty(), "{}", stderr(&output));
    serde_json::from_str(&stdout(&output)).unwrap()
}

/// The same, held against its schema.
fn json_of(schema: &str, playground: &Playground, arguments: &[&str]) -> serde_json::Value {
    let found = json(playground, arguments);
    keeps_to(schema, &found.to_string());
    found
}

fn study(playground: &Playground, name: &str, change: impl Fn(String) -> String) -> PathBuf {
    let run = std::fs::read_to_string(Path::new(RUN).join("run.json")).unwrap();
    let run: serde_json::Value = serde_json::from_str(&run).unwrap();
    let text = run["study_toml"].as_str().unwrap().to_owned();
    playground.write(name, &change(text))
}

#[test]
fn measured_cells_are_predicted_from_the_others() {
    let playground = Playground::new();
    let run = &sound_run(&playground, as_it_is);
    let found = json_of("held-out", &playground, &["predict", "--held-out", "--from", run]);
    let summaries = found["summaries"].as_array().unwrap();
    let summary_of = |kind: &str| summaries.iter().find(|one| one["without"] == kind).unwrap();
    let by_size = summary_of("a size");
    assert!(by_size["throughput"]["median"].as_f64().unwrap() < 0.25, "{by_size}");
    assert!(by_size["throughput"]["covered"].as_f64().unwrap() > 0.7, "{by_size}");
    // Of two storages one is left, which does not tell how wrong an answer about another one is.
    let by_storage = summary_of("a storage");
    assert_eq!(by_storage["refused"], by_storage["cells"], "{by_storage}");
    let of_storage = found["cells"].as_array().unwrap().iter().filter(|cell| cell["without"] == "a storage");
    let whys: Vec<&str> = of_storage.filter_map(|cell| cell["refused"].as_str()).collect();
    assert!(whys.iter().any(|reason| reason.contains("measure a second storage")), "{whys:?}");
}

#[test]
fn other_storages_and_sizes_are_answered_and_others_refused() {
    let playground = Playground::new();
    let run = &sound_run(&playground, as_it_is);
    let other = study(&playground, "other.toml", |text| {
        let text = text.replace("sx300-1600", "nvme-9300-max");
        text.replace("\"512 GB\"", "\"700 GB\"")
            .replace("mixes = [\"a\", \"b\", \"c\"]", "mixes = [\"b\", \"f\"]")
    });
    let found = json_of(
        "predict",
        &playground,
        &["predict", other.to_str().unwrap(), "--from", run, "--only", "distribution=uniform"],
    );
    let cells = found["cells"].as_array().unwrap();
    let find_cell =
        |part: &str| cells.iter().find(|cell| cell["cell"].as_str().unwrap().ends_with(part)).unwrap();
    let answer = &find_cell("flash/ycsb-b-uniform-90t-700-gb")["prediction"];
    let figure = |metric: &str, end: &str| answer[metric][end].as_f64().unwrap();
    assert!(figure("throughput_per_s", "low") < figure("throughput_per_s", "value"), "{answer}");
    assert!(figure("mean_us", "value") < figure("p99_us", "value"), "{answer}");
    let refused = &find_cell("flash/ycsb-f-uniform-90t-700-gb")["refused"];
    assert_eq!(refused["reason"], "mix");
    assert!(refused["why"].as_str().unwrap().contains("measure it"), "{refused}");
    // A script sees that some are missing.
    let output = playground.output(&["predict", other.to_str().unwrap(), "--from", run]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stdout(&output).contains("refused"), "{}", stdout(&output));
}

#[test]
fn caches_and_pools_are_predicted_and_unknown_layers_refused() {
    let playground = Playground::new();
    let run = &sound_run(&playground, as_it_is);
    let other = study(&playground, "layers.toml", |text| {
        text + "\n[storage.cached]\n\
            devices = [{ medium = \"hdd-7200-sas\", count = 6, capacity = \"1 TB\" }]\n\
            cache = { medium = \"optane-p4800x\", capacity = \"375 GB\", mode = \"read\" }\n\
            [storage.written-back]\n\
            devices = [{ medium = \"hdd-7200-sas\", count = 6, capacity = \"1 TB\" }]\n\
            cache = { medium = \"optane-p4800x\", capacity = \"375 GB\", mode = \"write-back\" }\n\
            [storage.packed]\n\
            devices = [{ medium = \"sx300-1600\" }]\n\
            compress = \"lz4\"\n\
            [pool.shared]\n\
            devices = [{ medium = \"nvme-9300-max\", count = 4 }]\n\
            [storage.remote]\n\
            pool = \"shared\"\n\
            capacity = \"4 TB\"\n\
            mirror = true\n\
            link = { bandwidth = \"25 Gbit/s\", latency = \"20 us\" }\n"
    });
    let only = ["--only", "distribution=uniform,data=512 GB"];
    let found = json_of(
        "predict",
        &playground,
        &[&["predict", other.to_str().unwrap(), "--from", run], &only[..]].concat(),
    );
    let cells = found["cells"].as_array().unwrap();
    let find_cell = |storage: &str, mix: &str| {
        let part = format!("/{storage}/ycsb-{mix}-");
        cells.iter().find(|cell| cell["cell"].as_str().unwrap().contains(&part)).unwrap()
    };
    let rate =
        |storage, mix| find_cell(storage, mix)["prediction"]["throughput_per_s"]["value"].as_f64().unwrap();
    assert!(rate("cached", "c") > 1.05 * rate("hdd", "c"), "{found}");
    assert!(rate("written-back", "a") > 0.9 * rate("hdd", "a"), "{found}");
    let cached = &find_cell("cached", "c")["prediction"];
    let share = cached["cached_share"].as_f64().unwrap();
    assert!(share > 0.02 && share < 0.9, "{cached}");
    assert!(cached["assumptions"].to_string().contains("not full when measuring begins"), "{cached}");
    let remote = &find_cell("remote", "c")["prediction"];
    assert!(remote["assumptions"].to_string().contains("NVMe over TCP"), "{remote}");
    assert!(rate("remote", "c") > 2.0 * rate("hdd", "c"), "{remote}");
    let refused = &find_cell("packed", "c")["refused"];
    assert_eq!(refused["reason"], "layer", "{refused}");
    assert!(refused["why"].as_str().unwrap().contains("how far the data shrinks"), "{refused}");
}

#[test]
fn jobs_and_commands_are_refused_with_the_reason() {
    let playground = Playground::new();
    let run = &sound_run(&playground, as_it_is);
    let studies = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../studies");
    for (study, reason, words) in [
        ("mapreduce-ssd.toml", "work", "a batch job"),
        ("sqlite.toml", "work", "a command"),
        // It could be answered, from a run of fio.
        ("fio.toml", "system", "measure it"),
    ] {
        let study = studies.join(study);
        let found = json_of("predict", &playground, &["predict", study.to_str().unwrap(), "--from", run]);
        for cell in found["cells"].as_array().unwrap() {
            let refused = &cell["refused"];
            assert_eq!(refused["reason"], reason, "{cell}");
            assert!(refused["why"].as_str().unwrap().contains(words), "{cell}");
        }
    }
}

#[test]
fn run_is_explained() {
    let playground = Playground::new();
    let run = &sound_run(&playground, as_it_is);
    let found = json_of("explain", &playground, &["explain", run, "--only", "mix=c"]);
    for cell in found["cells"].as_array().unwrap() {
        let mean = &cell["mean"];
        let parts = [
            "device_service_us",
            "device_queueing_us",
            "network_us",
            "cpu_us",
            "cpu_waiting_us",
            "client_waiting_us",
            "layers_us",
            "unexplained_us",
        ];
        let sum: f64 = parts.iter().map(|part| mean[part].as_f64().unwrap()).sum();
        assert!((sum / mean["measured_us"].as_f64().unwrap() - 1.0).abs() < 1e-6, "{cell}");
        let what_if = cell["what_if"].as_array().unwrap();
        assert_eq!(what_if.len(), 3);
        // Nobody knows what more of something does for what is not accounted for.
        let share = mean["unexplained_us"].as_f64().unwrap() / mean["measured_us"].as_f64().unwrap();
        if share.abs() > 1.0 / 3.0 {
            assert!(what_if.iter().all(|one| one["gain"].is_null() && one["refused"].is_string()), "{cell}");
        }
        assert!(cell["bottleneck"].as_str().unwrap().ends_with('.'));
    }
    let text = stdout(&playground.output(&["explain", run, "--only", "mix=c"]));
    assert!(text.contains("bottleneck:") && text.contains("a device twice as fast"), "{text}");
}

#[test]
fn report_attributes_time() {
    let playground = Playground::new();
    let run = &sound_run(&playground, as_it_is);
    let output = playground.output(&["report", run, "--out", "page.html"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let page = std::fs::read_to_string(playground.path("page.html")).unwrap();
    assert!(page.contains("Where the time goes") && page.contains("with a device twice as fast"));
    assert!(stdout(&output).contains("Where the time goes"), "{}", stdout(&output));
}

#[test]
fn advice_names_cheapest_and_writes_verifying_study() {
    let playground = Playground::new();
    let run = &sound_run(&playground, as_it_is);
    let asked = [
        "advise",
        "storage",
        "--from",
        run,
        "--rate",
        "20000",
        "--p99",
        "10ms",
        "--mix",
        "c",
        "--data",
        "600 GB",
        "--most-devices",
        "12",
        "--html",
        "frontier.html",
        "-o",
        "verify.toml",
    ];
    let output = playground.output(&asked);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("stays the cheapest until") && text.contains("p99"), "{text}");
    let page = std::fs::read_to_string(playground.path("frontier.html")).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("bound: 10 ms"));
    let checked = playground.output(&["check", "verify.toml", "--json"]);
    assert!(checked.status.success(), "{}", stdout(&checked));
    let cells: Vec<serde_json::Value> = serde_json::from_str(&stdout(&checked)).unwrap();
    assert_eq!(cells.len(), 3);
    assert!(cells.iter().all(|cell| cell["work"]["rate"]["per_s"] == 20_000.0), "{cells:?}");
    let verify = std::fs::read_to_string(playground.path("verify.toml")).unwrap();
    assert!(
        verify.starts_with("# Written by `underlay advise storage`") && verify.contains("is predicted."),
        "{verify}"
    );
    assert!(!verify.contains("published study"), "what the run's study says of itself: {verify}");
    let found = json_of("advise-storage", &playground, &asked[..asked.len() - 2]);
    let offers = found["offers"].as_array().unwrap();
    let usd: Vec<f64> = offers.iter().map(|offer| offer["usd"].as_f64().unwrap()).collect();
    assert!(usd.is_sorted() && !usd.is_empty(), "{usd:?}");
    // It is there already, and somebody may have changed it.
    let again = playground.output(&asked);
    assert_eq!(again.status.code(), Some(2), "{}", stderr(&again));
    assert!(stderr(&again).contains("already exists"), "{}", stderr(&again));
}

#[test]
fn caches_are_advised_where_they_could_pay() {
    let playground = Playground::new();
    let run = &sound_run(&playground, as_it_is);
    let asked = [
        "advise", "storage", "--from", run, "--rate", "2000", "--p99", "100ms", "--mix", "c", "--data",
        "24 TB", "--memory", "6 TB",
    ];
    let found = json_of("advise-storage", &playground, &asked);
    let offers = found["offers"].as_array().unwrap();
    let cached: Vec<_> = offers.iter().filter(|offer| offer["cache"].is_object()).collect();
    for offer in &cached {
        assert_eq!(offer["cache"]["mode"], "read", "nothing writes: {offer}");
        assert!(offer["prediction"]["cached_share"].as_f64().unwrap() > 0.0, "{offer}");
    }
    assert!(!cached.is_empty(), "{}", found["excluded"]);
    // At another price of the first, something without it is the cheapest.
    let (first, then) = (&offers[0]["name"], &found["turns"]["then_by_price"]);
    let medium = first.as_str().unwrap().split(' ').nth(2).unwrap();
    assert!(!then.as_str().unwrap().contains(medium), "{first}: {then}");
    // The study that verifies it has the cache.
    let all = offers.len().min(3);
    let out = playground.output(&[&asked[..], &["-o", "cached.toml"]].concat());
    assert!(out.status.success(), "{}", stderr(&out));
    let checked = playground.output(&["check", "cached.toml", "--json"]);
    let cells: Vec<serde_json::Value> = serde_json::from_str(&stdout(&checked)).unwrap();
    assert_eq!(cells.len(), all);
    let first_cached = offers.iter().take(3).any(|offer| offer["cache"].is_object());
    let text = std::fs::read_to_string(playground.path("cached.toml")).unwrap();
    assert_eq!(first_cached, text.contains("mode = \"read\""), "{text}");
}

#[test]
fn advice_on_memory_has_a_curve_and_a_price() {
    let playground = Playground::new();
    let run = &sound_run(&playground, as_it_is);
    let asked = ["advise", "memory", "--from", run, "--rate", "20000", "--mix", "c"];
    let found = json_of("advise-memory", &playground, &asked);
    let hits: Vec<f64> =
        found["sizes"].as_array().unwrap().iter().map(|size| size["hit_ratio"].as_f64().unwrap()).collect();
    assert!(hits.is_sorted() && hits[0] < hits[hits.len() - 1], "{hits:?}");
    let hdd =
        found["break_even"].as_array().unwrap().iter().find(|one| one["medium"] == "hdd-7200-sata").unwrap();
    assert!(hdd["interval_s"].as_f64().unwrap() > 60.0, "{hdd}");
    let text = stdout(&playground.output(&asked));
    assert!(text.contains("(least)"), "{text}");
    // The catalogue's price, with its date, unless another one is given.
    let catalogue_usd = found["usd_per_gib"].as_f64().unwrap();
    assert!(found["price_source"].as_str().unwrap().starts_with("2025-11"), "{found}");
    let priced = json(&playground, &[&asked[..], &["--usd-per-gib", "4"]].concat());
    let interval = |found: &serde_json::Value| found["break_even"][0]["interval_s"].as_f64().unwrap();
    assert_eq!(priced["usd_per_gib"], 4.0);
    assert!((interval(&priced) / interval(&found) - catalogue_usd / 4.0).abs() < 1e-9);
}

#[test]
fn mistakes_are_told_with_what_to_do() {
    let playground = Playground::new();
    let run = &sound_run(&playground, as_it_is);
    let storage = ["advise", "storage", "--from", run];
    let cases: [(Vec<&str>, &str); 9] = [
        (vec!["predict", "--from", run], "STUDY"),
        (vec!["predict", "--held-out", "--from", "nowhere"], "not a run directory"),
        (vec!["explain", run, "--only", "mix=z"], "mix"),
        ([&storage[..], &["--rate", "-5", "--p99", "10ms"]].concat(), "operations per second"),
        ([&storage[..], &["--rate", "nan", "--p99", "10ms"]].concat(), "operations per second"),
        ([&storage[..], &["--rate", "5", "--p99", "ten"]].concat(), "--p99 ten"),
        ([&storage[..], &["--rate", "5", "--p99", "10ms", "--mix", "z"]].concat(), "mixes a, b, c"),
        (
            [&storage[..], &["--rate", "5", "--p99", "10ms", "--data", "900 TB", "--mix", "c"]].concat(),
            "data : memory",
        ),
        ([&storage[..], &["--rate", "5", "--p99", "10ms", "--most-devices", "0"]].concat(), "from 1 to 64"),
    ];
    for (arguments, words) in cases {
        let output = playground.output(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}{}", stdout(&output), stderr(&output));
        assert!(stderr(&output).contains(words), "{arguments:?}: {}", stderr(&output));
    }
}

/// The host could not give what was due: the figures are the host's.
#[test]
fn doubtful_cells_are_neither_explained_nor_learned_from() {
    let playground = Playground::new();
    // As it was measured: its certificate doubts every cell.
    for asked in [
        &["predict", "other.toml", "--from", RUN][..],
        &["advise", "storage", "--from", RUN, "--rate", "2000", "--p99", "100ms"],
        &["advise", "memory", "--from", RUN, "--rate", "2000"],
    ] {
        study(&playground, "other.toml", |text| text);
        let output = playground.output(asked);
        assert_eq!(output.status.code(), Some(2), "{asked:?}: {}", stdout(&output));
        let message = stderr(&output);
        assert!(
            message.contains("nothing to learn from") && message.contains("its certificate is doubtful"),
            "{message}"
        );
        assert!(message.contains("rocksdb/flash/ycsb-c-uniform-90t-1-tb"), "cell by cell: {message}");
    }
    let output = playground.output(&["explain", RUN, "--only", "mix=c"]);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    assert!(stderr(&output).contains("is not explained: its certificate is doubtful"), "{}", stderr(&output));
    let found = json_of("explain", &playground, &["explain", RUN, "--only", "mix=c"]);
    assert_eq!(found["cells"].as_array().unwrap().len(), 0);
    assert!(
        found["refused"].as_array().unwrap().iter().all(|one| one["unsound"]["because"] == "doubtful"),
        "{found}"
    );
    let output = playground.output(&["report", RUN, "--out", "page.html"]);
    assert!(stdout(&output).contains("not explained: its certificate is doubtful"), "{}", stdout(&output));
    let found = json_of("predict", &playground, &["predict", "other.toml", "--from", RUN]);
    assert_eq!(found["measured_cells"], 0);
    let left_out = found["left_out"].as_array().unwrap();
    assert!(left_out.len() == 22 && left_out.iter().all(|one| one["reason"] == "unsound"), "{found}");
}

/// What is wrong with a cell leaves that cell out, and nothing else, in each command by name.
#[test]
fn disturbed_and_unsteady_cells_are_excluded_with_reason() {
    let playground = Playground::new();
    let run = &sound_run(&playground, |name, record| match name {
        "rocksdb.flash.ycsb-c-uniform-90t-512-gb.r1.json" => {
            record["devices"][0]["faults"] = serde_json::json!([{ "t_s": 0.1, "until_s": null, "what": "slow: everything takes 10 times as long" }]);
        }
        "rocksdb.flash.ycsb-b-uniform-90t-512-gb.r1.json" => {
            for (index, point) in record["measured"]["series"].as_array_mut().unwrap().iter_mut().enumerate()
            {
                let per_s = point["throughput_per_s"].as_f64().unwrap();
                point["throughput_per_s"] = (per_s * (1.0 + index as f64 / 20.0)).into();
            }
        }
        _ => {}
    });
    let other = study(&playground, "other.toml", |text| text);
    let predicted = json_of("predict", &playground, &["predict", other.to_str().unwrap(), "--from", run]);
    let storage = ["advise", "storage", "--from", run, "--rate", "2000", "--p99", "100ms", "--mix", "c"];
    let memory = ["advise", "memory", "--from", run, "--rate", "2000", "--mix", "c"];
    let advised =
        [json_of("advise-storage", &playground, &storage), json_of("advise-memory", &playground, &memory)];
    for found in [&predicted, &advised[0], &advised[1]] {
        let left_out = found["left_out"].as_array().unwrap();
        let find_cell = |part: &str| {
            left_out
                .iter()
                .find(|one| one["cell"].as_str().unwrap().contains(part))
                .unwrap_or_else(|| panic!("{left_out:?}"))
        };
        let disturbed = find_cell("flash/ycsb-c-uniform-90t-512-gb");
        assert_eq!(
            (&disturbed["because"], &disturbed["by"]),
            (&"disturbed".into(), &"hand".into()),
            "{disturbed}"
        );
        assert!(disturbed["why"].as_str().unwrap().contains("10 times as long"), "{disturbed}");
        let unsteady = find_cell("flash/ycsb-b-uniform-90t-512-gb");
        assert_eq!(
            (&unsteady["because"], &unsteady["unsteady"]),
            (&"unsteady".into(), &"drift".into()),
            "{unsteady}"
        );
        assert_eq!(left_out.len(), 2);
    }
    assert_eq!(predicted["measured_cells"], 20);
    for asked in [&storage[..], &memory] {
        let text = stdout(&playground.output(asked));
        assert!(
            text.contains("2 measured cells can't be learnt from:") && text.contains("disturbed by hand"),
            "{text}"
        );
    }
    let explained = playground.output(&["explain", run, "--only", "mix=c"]);
    assert!(
        stderr(&explained).contains("512-gb is not explained: it was disturbed by hand"),
        "{}",
        stderr(&explained)
    );
}

#[test]
fn single_storage_predicts_no_other() {
    let playground = Playground::new();
    let run = &sound_run(&playground, |_, _| {});
    for entry in std::fs::read_dir(Path::new(run).join("cells")).unwrap() {
        let path = entry.unwrap().path();
        if path.to_str().unwrap().contains("rocksdb.hdd.") {
            std::fs::remove_file(path).unwrap();
        }
    }
    let other = study(&playground, "other.toml", |text| text);
    let found = json_of("predict", &playground, &["predict", other.to_str().unwrap(), "--from", run]);
    let find_cells = |part: &str| {
        let cells = found["cells"].as_array().unwrap().iter();
        cells.filter(|cell| cell["cell"].as_str().unwrap().contains(part)).cloned().collect::<Vec<_>>()
    };
    let refused = find_cells("/hdd/ycsb-c-uniform");
    assert!(
        !refused.is_empty() && refused.iter().all(|cell| cell["refused"]["reason"] == "one-storage"),
        "{refused:?}"
    );
    assert!(find_cells("/flash/ycsb-c-uniform").iter().any(|cell| cell["prediction"].is_object()));
}
