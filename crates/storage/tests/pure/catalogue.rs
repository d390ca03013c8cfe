//! The catalogue: every file reads, every model keeps to the figures published of its medium, and mistakes
//! are shown where they are.

use underlay_storage::catalogue::{self, CalibrationLabel, CatalogueMedium, FigureKind, MediumKind};
use underlay_storage::predict::{self, AccessPattern, ClosedLoop};
use underlay_storage::stack::InitialState;

fn tolerance(figure: FigureKind) -> f64 {
    match figure {
        FigureKind::SeekAverageReadMs | FigureKind::SeekAverageWriteMs | FigureKind::PositioningReadMs => {
            0.02
        }
        _ => 0.05,
    }
}

#[test]
fn catalogue_models_match_published_figures() {
    let mut wrong = Vec::new();
    for medium in catalogue::builtin() {
        for published in &medium.published {
            let found =
                predict::published(medium, published, 7).expect("a figure that its kind of medium has");
            let error = found / published.value - 1.0;
            if error.abs() > tolerance(published.figure) {
                wrong.push(format!(
                    "{}: {} at queue depth {} is {found:.1}, published {} ({:+.1} %)",
                    medium.name,
                    published.figure.name(),
                    published.queue_depth,
                    published.value,
                    error * 100.0
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn catalogue_media_have_random_and_sequential_figures() {
    for medium in catalogue::builtin() {
        let has_figure = |figure| medium.published.iter().any(|published| published.figure == figure);
        // What someone measured of a rented drive may be random alone, and of memory a stream alone.
        let random = has_figure(FigureKind::RandomReadIops) || medium.kind == MediumKind::Pmem;
        let sequential = has_figure(FigureKind::SequentialReadMbS) || medium.kind == MediumKind::Measured;
        assert!(random && sequential, "{}", medium.name);
        if medium.kind == MediumKind::Hdd {
            assert!(has_figure(FigureKind::PositioningReadMs), "{}", medium.name);
        }
        assert!(medium.problems().is_empty());
        assert!(medium.price_usd() > 0.0 && medium.price_source().len() > 10);
        assert!(medium.summary().contains("USD"));
        assert!(medium.describe().iter().any(|line| line.contains("published")));
    }
}

#[test]
fn borrowed_figure_is_labelled() {
    for medium in catalogue::builtin() {
        for published in &medium.published {
            let note = published.note.as_deref().unwrap_or("");
            let figure_label = format!("{}: {}", medium.name, published.figure.name());
            assert!(
                !published.estimate || note.starts_with("derived from ") || note.contains("of the "),
                "{figure_label}"
            );
            assert!(!note.starts_with("derived from ") || published.estimate, "{figure_label}");
            // A figure of a sibling makes the medium a proxy; one of its own file doesn't.
            let own = !published.estimate || note.starts_with("derived from ");
            assert!(own || medium.label == CalibrationLabel::Proxy, "{figure_label}");
        }
    }
    let label = |name| catalogue::find(name).unwrap().label;
    assert_eq!(
        [label("hdd-7200-sata"), label("ssd-sata"), label("nvme-9300-max")],
        [CalibrationLabel::Proxy; 3]
    );
    assert_eq!(label("hdd-7200-sas"), CalibrationLabel::Datasheet);
}

#[test]
fn disk_queue_raises_throughput() {
    for name in ["hdd-7200-sata", "hdd-7200-sas", "hdd-10k-sas"] {
        let medium = catalogue::find(name).unwrap();
        let prediction_at = |queue_depth| {
            let load = ClosedLoop {
                pattern: AccessPattern::RandomRead,
                block_bytes: 4096,
                queue_depth,
                requests: 2000,
                warmup: 100,
                seed: 3,
            };
            predict::closed_loop(&mut *medium.model(medium.capacity_bytes(), 1, InitialState::Fresh), &load)
        };
        let (one, many) = (prediction_at(1), prediction_at(32));
        // Positioning order halves the way at least; a queue without order would earn nothing.
        assert!(many.iops > 1.8 * one.iops, "{name}: {} at 1, {} at 32", one.iops, many.iops);
        // And the age bound keeps the unlucky ones within sight of it.
        assert!(many.latency.quantile_us(1.0) < 1.5e6, "{name}: {}", many.latency.quantile_us(1.0));
    }
}

#[test]
fn scaled_disk_keeps_positioning_time() {
    let medium = catalogue::find("hdd-7200-sas").unwrap();
    let load = ClosedLoop {
        pattern: AccessPattern::RandomRead,
        block_bytes: 4096,
        queue_depth: 1,
        requests: 4000,
        warmup: 10,
        seed: 5,
    };
    let iops =
        |capacity| predict::closed_loop(&mut *medium.model(capacity, 1, InitialState::Fresh), &load).iops;
    let (whole, scaled) = (iops(medium.capacity_bytes()), iops(1 << 30));
    assert!((scaled / whole - 1.0).abs() < 0.05, "{whole} whole, {scaled} scaled");
}

#[test]
fn predictions_are_repeatable() {
    for medium in catalogue::builtin() {
        for pattern in [AccessPattern::RandomRead, AccessPattern::RandomWrite, AccessPattern::SequentialWrite]
        {
            let load = ClosedLoop {
                pattern,
                block_bytes: 8192,
                queue_depth: 9,
                requests: 500,
                warmup: 50,
                seed: 11,
            };
            let run = || predict::closed_loop(&mut *medium.model(1 << 30, 42, InitialState::Fresh), &load);
            let (first, second) = (run(), run());
            assert_eq!(first.latency, second.latency, "{}", medium.name);
            assert_eq!(first.duration_s, second.duration_s, "{}", medium.name);
        }
    }
}

#[test]
fn unknown_name_suggests_nearest() {
    let error = catalogue::find("nvme-9300max").unwrap_err();
    assert_eq!(error.suggestions[0], "nvme-9300-max");
    assert!(error.to_string().contains("did you mean nvme-9300-max"));
    let error = catalogue::find("tape").unwrap_err();
    assert!(error.to_string().contains("it has azure-p30, ebs-gp2, ebs-gp3, ebs-gp3-16k"), "{error}");
}

const GOOD: &str = include_str!("../../../../media/hdd-7200-sas.toml");

fn mistakes(text: &str) -> Vec<String> {
    let error = CatalogueMedium::parse("disk.toml", text).expect_err("a mistake");
    error.to_string().lines().map(str::to_owned).collect()
}

fn line_of(text: &str, needle: &str) -> usize {
    text[..text.find(needle).unwrap()].matches('\n').count() + 1
}

#[test]
fn mistakes_are_shown_together_and_in_place() {
    let text = GOOD
        .replace("kind = \"hdd\"", "kind = \"disk\"")
        .replace("price = \"Our", "cost = \"Our")
        .replace("figure = \"random-read-iops\"", "figure = \"random-read\"");
    let found = mistakes(&text);
    let kind = format!("disk.toml:{}:8", line_of(&text, "kind ="));
    assert!(found.iter().any(|line| line.ends_with(&kind)), "{found:#?}");
    assert!(found.iter().any(|line| line.contains("unknown value \"disk\" for `kind`")), "{found:#?}");
    assert!(
        found.iter().any(|line| line.contains("there is no source \"price\" in [sources]")),
        "{found:#?}"
    );
    assert!(found.iter().any(|line| line.contains("no entry uses the source \"cost\"")), "{found:#?}");
    let figure = format!("disk.toml:{}:10", line_of(&text, "figure = \"random-read\""));
    assert!(found.iter().any(|line| line.ends_with(&figure)), "{found:#?}");
}

#[test]
fn mistake_kinds_are_found() {
    for (from, to, expected) in [
        ("heads = { value = 8", "heads = { value = \"8\"", "expected a whole number from 1 to 64"),
        ("heads = { value = 8", "heads = { value = 99", "expected a whole number from 1 to 64"),
        ("heads = { value = 8", "heads = { value = 8.5", "expected a whole number from 1 to 64"),
        ("heads = { value = 8, source", "heads = { value = 8, sauce", "did you mean `source`?"),
        (
            "heads = { value = 8, source = \"manual\" }",
            "heads = 8",
            "expected { value = .., source = \"..\" }",
        ),
        ("zones = ", "zone = ", "did you mean `zones`?"),
        ("zones = ", "zone = ", "[model] has no `zones`"),
        ("value = 17.06", "value = 7.06", "an average read seek of 7.5 ms does not fit"),
        ("value = 61.6", "value = 161.6", "the inner tracks are faster"),
        ("usd = 300", "usd = -1", "expected a number from 0.01"),
        (
            "name = \"hdd-7200-sas\"",
            "name = \"HDD 7200\"",
            "a name has lowercase letters, digits and hyphens only",
        ),
        ("label = \"datasheet\"\nnote", "label = \"proxy\"\nremark", "a proxy needs a `note`"),
        ("[model]", "[modell]", "the medium has no `model`"),
        ("year = 2010", "year = 2010 2011", "disk.toml:4"),
    ] {
        assert!(GOOD.contains(from), "{from}");
        let found = mistakes(&GOOD.replacen(from, to, 1));
        assert!(found.iter().any(|line| line.contains(expected)), "{to}: {found:#?}");
    }
}

#[test]
fn impossible_flash_is_refused() {
    let text = include_str!("../../../../media/nvme-p4500.toml");
    let text = text.replace("dies_per_channel = { value = 16", "dies_per_channel = { value = 1");
    let found = mistakes(&text);
    assert!(found.iter().any(|line| line.contains("reach only 218 MB/s")), "{found:#?}");
}

#[test]
fn medium_survives_json_round_trip() {
    for medium in catalogue::builtin() {
        let text = serde_json::to_string(medium).unwrap();
        assert_eq!(&serde_json::from_str::<CatalogueMedium>(&text).unwrap(), medium);
    }
}
