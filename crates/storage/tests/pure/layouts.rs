//! Layouts of the catalogue: every file reads, mistakes are shown where they are, and nothing that the
//! papers measured is missing.

use std::collections::BTreeSet;
use std::path::Path;

use proptest::prelude::*;
use underlay_storage::catalogue::{self, LayoutPreset, PresetLayout};

fn file_names(folder: &str) -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../media").join(folder);
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.filter(|path| path.extension().is_some_and(|extension| extension == "toml"));
    files.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

#[test]
fn folder_files_ship_under_their_names() {
    let media: BTreeSet<String> = catalogue::builtin().iter().map(|medium| medium.name.clone()).collect();
    assert_eq!(media.len(), catalogue::builtin().len(), "a name twice");
    assert_eq!(media, file_names(""));
    let layouts: BTreeSet<String> = catalogue::layouts().iter().map(|layout| layout.name.clone()).collect();
    assert_eq!(layouts.len(), catalogue::layouts().len(), "a name twice");
    assert_eq!(layouts, file_names("layouts"));
    assert!(media.is_disjoint(&layouts), "a layout and a medium of one name");
}

/// What the papers behind `studies/references/` had, by the words in which they say it.
#[test]
fn catalogue_has_layouts_of_papers() {
    for (paper, hardware, layout, medium, count) in [
        ("accumulo-flash", "12 disks, one directory each", "accumulo-hdd", "hdd-7200-2tb", 12),
        ("accumulo-flash", "ioScale 1650 GB", "accumulo-flash", "ioscale-1650", 1),
        ("oracle-nosql-flash", "RAID-0 of 6 TB", "oracle-hdd", "hdd-7200-sas", 6),
        ("oracle-nosql-flash", "SX300-1600", "oracle-flash", "sx300-1600", 1),
        ("cassandra-nvme-tcp", "two 9300 MAX in a stripe", "cassandra-local", "nvme-9300-max", 2),
        ("cassandra-nvme-tcp", "eight 9300 MAX in a pool", "cassandra-pool", "nvme-9300-max", 8),
        ("mapreduce-ssd", "6 disks", "mapreduce-hdd-6", "hdd-mapreduce", 6),
        ("mapreduce-ssd", "11 disks", "mapreduce-hdd-11", "hdd-mapreduce", 11),
        ("mapreduce-ssd", "one SSD", "mapreduce-ssd", "ssd-mapreduce", 1),
        ("mapreduce-ssd", "6 disks and one SSD", "mapreduce-hybrid", "hdd-mapreduce", 6),
        ("spark-object-store", "seven disks of 1 TB", "spark-ceph-node", "hdd-7200-sas", 7),
        ("spark-object-store", "two SSDs for the shuffle", "spark-shuffle", "ssd-sata", 2),
    ] {
        let reference =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../studies/references/{paper}.toml"));
        assert!(reference.exists(), "{paper}");
        let found = catalogue::find_layout(layout).unwrap();
        let device = found.devices.iter().find(|device| device.medium == medium);
        assert_eq!(device.map(|device| device.count), Some(count), "{paper}: {hardware}");
    }
    let terabytes = |name: &str| catalogue::find_layout(name).unwrap().capacity_bytes() as f64 / 1e12;
    assert_eq!(terabytes("oracle-hdd"), 6.0);
    assert_eq!(terabytes("mapreduce-hdd-6"), 12.0);
    assert_eq!(terabytes("mapreduce-hdd-11"), 22.0);
    assert_eq!(terabytes("mapreduce-hybrid"), 13.3);
    assert_eq!(terabytes("spark-ceph-node"), 7.0);
    // The paper's own sums of money, too.
    let price = |name: &str| catalogue::find_layout(name).unwrap().price_usd();
    assert_eq!([price("mapreduce-hdd-6"), price("mapreduce-hdd-11")], [2400.0, 4400.0]);
    assert_eq!([price("mapreduce-ssd"), price("mapreduce-hybrid")], [14_000.0, 16_400.0]);
    for name in ["ioscale-1650", "sx300-1600", "nvme-9300-max", "nvme-p4500", "hdd-10k-sas", "hdd-7200-sata"]
    {
        assert!(catalogue::find(name).is_ok(), "{name}");
    }
    assert!(catalogue::builtin().len() >= 20);
}

const GOOD: &str = r#"
name = "two-disks"
title = "Two disks"
note = "for a test"
devices = [{ medium = "hdd-7200-sas", count = 2, source = "us", estimate = true }]
layout = "stripe"
chunk = "64 KiB"
source = "us"

[sources]
us = "made up"
"#;

#[test]
fn layout_rereads_as_written() {
    let layout = LayoutPreset::parse("layout.toml", GOOD).unwrap();
    assert_eq!(layout.layout, PresetLayout::Stripe { chunk_bytes: 64 << 10 });
    assert_eq!(layout.summary(), "2 x hdd-7200-sas, striped by 64 KiB");
    assert_eq!(layout.capacity_bytes(), 2_000_000_000_000);
    let split = GOOD.replace("\"stripe\"", "\"split\"\ndirectories = 4");
    let split = LayoutPreset::parse("layout.toml", &split).unwrap();
    assert_eq!(split.layout, PresetLayout::Split { chunk_bytes: 64 << 10, directories: 4 });
    let mirror = GOOD.replace("\"stripe\"\nchunk = \"64 KiB\"", "\"mirror\"");
    let mirror = LayoutPreset::parse("layout.toml", &mirror).unwrap();
    assert_eq!((mirror.layout, mirror.capacity_bytes()), (PresetLayout::Mirror, 1_000_000_000_000));
}

#[test]
fn mistakes_are_shown_in_place() {
    for (from, to, line, expected) in [
        ("hdd-7200-sas", "hdd-7200-sass", 5, "did you mean hdd-7200-sas"),
        ("count = 2", "count = 0", 5, "expected a whole number from 1 to 64"),
        ("count = 2", "count = 1.5", 5, "expected a whole number"),
        ("count = 2, ", "", 5, "has no `count`"),
        (
            "}]\n",
            "}, { medium = \"ssd-sata\", count = 1, source = \"us\" }]\n",
            5,
            "only a \"jbod\" may have devices of several media",
        ),
        ("\"stripe\"", "\"raid0\"", 6, "expected one of \"stripe\", \"jbod\", \"mirror\", \"split\""),
        ("\"stripe\"", "\"jbod\"", 7, "`chunk` goes with layout \"stripe\" or \"split\" only"),
        ("\"stripe\"", "\"split\"", 1, "the layout has no `directories`"),
        ("64 KiB", "65 KiB", 7, "expected a power of two"),
        ("64 KiB", "18446744073709551615 MiB", 7, "expected a power of two"),
        ("chunk", "chunks", 7, "did you mean `chunk`?"),
        ("chunk = \"64 KiB\"", "directories = 3", 7, "`directories` goes with layout \"split\" only"),
        ("name = \"two-disks\"", "name = \"Two disks\"", 2, "lowercase letters, digits and hyphens"),
        ("us = \"made up\"", "us = \"made up\"\nthem = \"nobody\"", 12, "no entry uses the source \"them\""),
        ("devices = [", "devices = 3 #", 5, "expected `devices = ["),
        ("title = \"Two disks\"", "title = ", 3, ""),
    ] {
        assert!(GOOD.contains(from), "{from}");
        let error = LayoutPreset::parse("layout.toml", &GOOD.replacen(from, to, 1)).expect_err(to);
        let found = error.findings().iter().any(|finding| {
            error.line_column(finding.span.start).0 == line && finding.to_one_line().contains(expected)
        });
        assert!(found, "{to}: {error}");
    }
}

#[test]
fn more_devices_than_a_storage_takes_are_refused() {
    let many = GOOD.replace(
        "count = 2, source = \"us\", estimate = true }",
        "count = 64, source = \"us\" }, { medium = \"hdd-7200-sas\", count = 1, source = \"us\" }",
    );
    let error = LayoutPreset::parse("layout.toml", &many).unwrap_err();
    assert!(error.to_string().contains("1 to 64 in all"), "{error}");
    let none =
        GOOD.replace("[{ medium = \"hdd-7200-sas\", count = 2, source = \"us\", estimate = true }]", "[]");
    assert!(LayoutPreset::parse("layout.toml", &none).is_err());
}

#[test]
fn unknown_layout_suggests_nearest() {
    let error = catalogue::find_layout("acumulo-hdd").unwrap_err();
    assert_eq!(error.suggestions, ["accumulo-hdd"]);
    assert!(
        catalogue::find_layout("tape-library")
            .unwrap_err()
            .to_string()
            .contains("it has accumulo-flash, accumulo-hdd")
    );
}

#[test]
fn layout_survives_json_round_trip() {
    for layout in catalogue::layouts() {
        let text = serde_json::to_string(layout).unwrap();
        assert_eq!(&serde_json::from_str::<LayoutPreset>(&text).unwrap(), layout);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// Any file is read, or refused with a place.
    #[test]
    fn any_text_is_read_or_refused(position in 0..400usize, cut in 0..40usize, put in "[ -~\n]{0,12}") {
        let start = position.min(GOOD.len());
        let end = (start + cut).min(GOOD.len());
        let text = format!("{}{put}{}", &GOOD[..start], &GOOD[end..]);
        match LayoutPreset::parse("layout.toml", &text) {
            Ok(layout) => prop_assert!(layout.capacity_bytes() > 0 && !layout.summary().is_empty()),
            Err(error) => {
                prop_assert!(error.has_errors());
                prop_assert!(!error.render(true).is_empty());
            }
        }
    }
}
