//! Mistakes in catalogue files of the kinds that are stated by what they do: each is found and named.

use proptest::prelude::*;
use underlay_storage::catalogue::CatalogueMedium;
use underlay_storage::medium::{ModelOperation, ModelRequest, RequestId};
use underlay_storage::stack::InitialState;
use underlay_storage::time::ModelTime;

const FLASH: &str = include_str!("../../../../media/solidigm-p5520-1920.toml");
const CLOUD: &str = include_str!("kinds/cloud.toml");
const PMEM: &str = include_str!("kinds/pmem.toml");
const NETWORK: &str = include_str!("kinds/network.toml");
const MEASURED: &str = include_str!("kinds/measured.toml");

fn mistakes(text: &str) -> Vec<String> {
    let error = CatalogueMedium::parse("kind.toml", text).expect_err("a mistake");
    error.to_string().lines().map(str::to_owned).collect()
}

/// Changes one place of a file, and looks for what is said of it.
fn found(text: &str, from: &str, to: &str, expected: &str) {
    assert!(text.contains(from), "{from} is not in the file");
    let found = mistakes(&text.replacen(from, to, 1));
    assert!(found.iter().any(|mistake| mistake.contains(expected)), "{to}: {found:#?}, not {expected}");
}

#[test]
fn distribution_and_curve_mistakes_are_found() {
    let read = "read_latency_us = { quantiles = [[0.5, 600], [0.99, 1500], [0.999, 5000]]";
    for (to, expected) in [
        (
            "read_latency_us = { quantiles = [[0.5, 600], [0.4, 1500]]",
            "must grow, but [0.5, 600] is followed by",
        ),
        ("read_latency_us = { quantiles = [[0.5, 600], [0.99, 500]]", "must grow"),
        (
            "read_latency_us = { quantiles = [[0.5, 600], [1, 5000]]",
            "1 is not a share: 0.5 stands for the median",
        ),
        ("read_latency_us = { quantiles = [[50, 600]]", "50 is not a share"),
        ("read_latency_us = { quantiles = [[0.5, -1]]", "-1 lies outside 0 to 100000000"),
        ("read_latency_us = { quantiles = [[0.5, 1, 2]]", "expected pairs of a share and a value"),
        ("read_latency_us = { quantiles = [0.5, 1]", "expected pairs"),
        ("read_latency_us = { quantiles = []", "needs 1 to 1000 quantiles"),
        ("read_latency_us = { quantile = [[0.5, 1]]", "did you mean `quantiles`?"),
        ("read_latency_us = { value = 1, quantiles = [[0.5, 1]]", "unknown key `quantiles`"),
    ] {
        found(CLOUD, read, to, expected);
    }
    let curve = "read_mb_s_by_requests = { points = [[1, 1900], [4, 5200], [16, 6600]]";
    for (to, expected) in [
        ("read_mb_s_by_requests = { points = [[4, 1900], [1, 5200]]", "must be in ascending order"),
        ("read_mb_s_by_requests = { points = [[1, 0]]", "lies outside 1 to 1000000"),
        ("read_mb_s_by_requests = { value = 3", "has no `points`"),
    ] {
        found(PMEM, curve, to, expected);
    }
}

#[test]
fn volume_mistakes_are_found() {
    for (from, to, expected) in [
        (
            "burst_iops = { value = 3000",
            "burst_iops = { value = 100",
            "`burst_iops` is below `baseline_iops`",
        ),
        ("io_credits = ", "io_credit = ", "did you mean `io_credits`?"),
        ("cold_latency_us", "cold_latency", "did you mean `cold_latency_us`?"),
        (
            "degraded_factor = { value = 0.5",
            "degraded_factor = { value = 5",
            "expected a number from 0.001 to 1",
        ),
        ("cold_block_bytes = { value = 524_288", "cold_block_bytes = { value = 5000", "a multiple of 4096"),
        (
            "instance_iops = { value = 2500, source = \"test\" }\n",
            "instance_burst_iops = { value = 2500, source = \"test\" }\n",
            "`instance_burst_iops` needs `instance_iops`",
        ),
        (
            "io_credits = { value = 5_400_000, source = \"test\" }\n",
            "",
            "`burst_iops` and `io_credits` go together",
        ),
        (
            "instance_burst_s = { value = 1800, source = \"test\" }\n",
            "",
            "an instance's burst needs `instance_burst_s`",
        ),
        (
            "figure = \"burst-read-iops\"",
            "figure = \"burst-read-iops\"\npercentile = 99",
            "only latencies have a `percentile`",
        ),
        ("io_unit_bytes = { value = 262_144, source = \"test\" }\n", "", "[model] has no `io_unit_bytes`"),
    ] {
        found(CLOUD, from, to, expected);
    }
}

#[test]
fn flash_mistakes_are_found() {
    for (from, to, expected) in [
        ("program_pages = ", "program_page = ", "did you mean `program_pages`?"),
        (
            "program_pages = { value = 12,",
            "program_pages = { value = 1.5,",
            "`program_pages` is 1.5, not a whole",
        ),
        (
            "gather_pages = { value = 4,",
            "gather_pages = { value = 13,",
            "`gather_pages` is more than `program_pages`",
        ),
        ("planes_per_die = { value = 4,", "planes_per_die = { value = 17,", "a number from 1 to 16"),
        (
            "write_stall_us = { value = 78, source = \"fitted\" }\n",
            "",
            "`write_stall_us` and `write_stall_bytes` go together",
        ),
        (
            "write_buffer_bytes = { value = 16_777_216",
            "write_buffer_bytes = { value = 65_536",
            "but a die programs 196608 bytes at once",
        ),
        ("dies_per_channel = { value = 2", "dies_per_channel = { value = 1", "reach only 1284 MB/s"),
        ("writes_per_s = 9953", "writes_per_second = 9953", "did you mean `writes_per_s`?"),
        ("background_streams = 7", "background_streams = 100_000", "a whole number from 1 to 1024"),
        ("read_us = [[0.1, 46], [0.25, 47]", "read_us = [[0.1, 46], [0.25, 45]", "`read_us`: must grow"),
        ("read_us = [[0.1, 46]", "read_us = [[10, 46]", "`read_us`: 10 is not a share"),
        ("read_us = [[0.1, 46]", "read_us = [[0.1, 0]", "`read_us`: "),
        (
            "probe_read_percent = 50",
            "probe_read_percent = 100",
            "`write_us` has latencies, but the probe has no",
        ),
        (
            "probe_per_s = 10_000",
            "probe_per_s = 20_000_000",
            "`probe_per_s` and `background_per_s` together are",
        ),
        ("channel_mb_s = { value = 1200", "channel_mb_s = { value = 10", "channels with 10 MB/s each move"),
    ] {
        found(FLASH, from, to, expected);
    }
    // Playing such rows would need more memory than a host has, or a larger device.
    let deep = FLASH.replace("most_under_way = 64", "most_under_way = 65_536");
    found(&deep, "background_streams = 7", "background_streams = 100", "`background_streams` is 6619136");
    let small =
        FLASH.replace("capacity_bytes = { value = 1_920_000_000_000", "capacity_bytes = { value = 1_048_576");
    let row = "block_bytes = 4096\nprobe_per_s";
    found(&small, row, "block_bytes = 2_097_152\nprobe_per_s", "2097152, more than the medium holds");
    let figure = "block_bytes = 131_072";
    found(&small, figure, "block_bytes = 2_097_152", "2097152, more than the medium holds");
    let dies = FLASH.replace("channels = { value = 16", "channels = { value = 1024");
    found(
        &dies,
        "dies_per_channel = { value = 2",
        "dies_per_channel = { value = 1024",
        "planes in all are more than",
    );
}

#[test]
fn memory_mistakes_are_found() {
    found(PMEM, "granule_bytes = { value = 256", "granule_bytes = { value = 300", "must be a power of two");
    let persistent = "write_queue_is_persistent = { value = false";
    found(PMEM, persistent, "write_queue_is_persistent = { value = 0", "expected true or false");
}

#[test]
fn linked_medium_mistakes_are_found() {
    let medium = "medium = \"ssd-sata\"";
    found(NETWORK, medium, "medium = \"ssd-stata\"", "did you mean \"ssd-sata\"?");
    found(NETWORK, medium, "", "expected the name of the medium behind the link");
    let both = NETWORK.replace("[tail]", "[model.inner]\nkind = \"hdd\"\n\n[tail]");
    assert!(mistakes(&both).iter().any(|mistake| mistake.contains("not both")));
    let twice = NETWORK.replace(medium, "").replace(
        "[tail]",
        "[model.inner]\nkind = \"network\"\ncapacity_bytes = 1_000_000_000\n[model.inner.model]\n\n[tail]",
    );
    let messages = mistakes(&twice);
    assert!(
        messages.iter().any(|mistake| mistake.contains("a network volume can't be behind another")),
        "{messages:#?}"
    );
    let empty =
        twice.replace("kind = \"network\"\ncapacity_bytes = 1_0", "kind = \"pmem\"\ncapacity_bytes = 1_0");
    let messages = mistakes(&empty);
    assert!(
        messages.iter().any(|mistake| mistake.contains("[model.inner.model] has no `granule_bytes`")),
        "{messages:#?}"
    );
}

#[test]
fn linked_medium_may_be_described_inline() {
    let inner = PMEM[PMEM.find("[model]").unwrap()..PMEM.find("[[published]]").unwrap()]
        .replace("[model]", "[model.inner.model]");
    let head = "[model.inner]\nkind = \"pmem\"\ncapacity_bytes = 137_438_953_472\n\n";
    let text =
        NETWORK.replace("medium = \"ssd-sata\"\n", "").replace("[tail]", &format!("{head}{inner}\n[tail]"));
    let medium = CatalogueMedium::parse("kind.toml", &text).unwrap_or_else(|error| panic!("{error}"));
    let described = medium.describe().join("\n");
    assert!(described.contains("granule_bytes 256 [test]"), "{described}");
    assert!(described.contains("round_trip_us p10 30, p50 40, p99 120 [test]"), "{described}");
    assert!(described.contains("tail read extra_us p50 0, p90 1000, p99 20000 [test]"), "{described}");
    let copy: CatalogueMedium = serde_json::from_str(&serde_json::to_string(&medium).unwrap()).unwrap();
    assert_eq!(copy, medium);
}

#[test]
fn tail_mistakes_are_found() {
    found(NETWORK, "measure = \"extra\"", "measure = \"more\"", "expected one of \"extra\", \"total\"");
    let read = "read_us = { quantiles = [[0.5, 0], [0.9, 1000], [0.99, 20000]], source = \"test\" }\n";
    found(NETWORK, read, "", "a tail needs `read_us`, `write_us` or both");
}

#[test]
fn profile_mistakes_are_found() {
    for (from, to, expected) in [
        ("order = { value = \"any\"", "order = { value = \"lifo\"", "expected one of \"fifo\", \"any\""),
        ("load = \"random-read\"", "load = \"reads\"", "unknown value \"reads\" for `load`"),
        ("block_bytes = 65536", "block_bytes = 4096", "random-read of 4096 bytes is there twice"),
        ("iops = { points = [[1, 120]", "iops = { points = [[2, 120]", "`iops` must start at queue depth 1"),
        (
            "load = \"buffered-write\"",
            "load = \"sequential-write\"",
            "no [[model.service]] of buffered-write",
        ),
        ("[[model.service]]", "[[model.services]]", "did you mean `service`?"),
    ] {
        found(MEASURED, from, to, expected);
    }
    let none = &MEASURED[..MEASURED.find("[[model.service]]").unwrap()];
    assert!(mistakes(none).iter().any(|mistake| mistake.contains("expected one [[model.service]]")));
}

/// A drive as someone measured it who had it, and as its maker rates it.
const DRIVE: &str = r#"
name = "drive"
title = "A drive that is one"
kind = "measured"
year = 2024
label = "measured"
capacity_bytes = { value = 1_000_000_000_000, source = "test" }

[price]
usd = 100
date = "2024"
source = "test"

[sources]
test = "Made up for the tests"

[model]
order = { value = "fifo", source = "test" }
write_buffer_bytes = { value = 0, source = "test" }
flush_drains = { value = false, source = "test" }
flush_us = { value = 20, source = "test" }

[[model.service]]
load = "random-read"
block_bytes = 4096
latency_us = { value = 100, source = "test" }
iops = { points = [[1, 10_000], [32, 200_000]], source = "test" }

[[model.service]]
load = "random-write"
block_bytes = 4096
latency_us = { value = 180, source = "test" }
iops = { points = [[1, 5_555], [32, 90_000]], source = "test" }

[[model.service]]
load = "sequential-read"
block_bytes = 131_072
latency_us = { value = 600, source = "test" }
iops = { points = [[1, 1_667], [32, 7_000]], source = "test" }
mb_s = { value = 920, source = "test" }

[[published]]
figure = "random-read-iops"
value = 200_100
queue_depth = 32
source = "test"

[[published]]
figure = "random-write-iops"
value = 90_100
queue_depth = 32
source = "test"

[[published]]
figure = "sequential-read-mb-s"
value = 917
queue_depth = 32
block_bytes = 131_072
source = "test"
"#;

/// The two lines of each contradiction, the one that is to give way first, and what is said of them.
fn contradictions(text: &str) -> Vec<(usize, usize, String)> {
    let Err(error) = CatalogueMedium::parse("drive.toml", text) else { return Vec::new() };
    let line = |span: &std::ops::Range<usize>| error.line_column(span.start).0;
    let two = error.findings().iter().filter_map(|finding| {
        let (other, _) = finding.context.as_ref()?;
        Some((line(&finding.span), line(other), finding.message.clone()))
    });
    two.collect()
}

/// Changes places of the drive, and looks for the contradiction between two lines, each named by what is on it alone.
fn contradicts(changes: &[(&str, &str)], lines: (&str, &str), words: &str) {
    let mut text = DRIVE.to_owned();
    for (from, to) in changes {
        assert_eq!(text.matches(from).count(), 1, "{from}");
        text = text.replace(from, to);
    }
    let line = |needle: &str| {
        assert_eq!(text.matches(needle).count(), 1, "{needle}");
        text[..text.find(needle).unwrap()].matches('\n').count() + 1
    };
    let expected = (line(lines.0), line(lines.1));
    let found = contradictions(&text);
    let is_expected = |one: &(usize, usize, String)| (one.0, one.1) == expected && one.2.contains(words);
    assert!(found.iter().any(is_expected), "{expected:?} {words}: {found:#?}");
    // The message shows both lines.
    let shown = CatalogueMedium::parse("drive.toml", &text).unwrap_err().to_string();
    for line in [expected.0, expected.1] {
        assert!(shown.lines().any(|shown| shown.trim_start().starts_with(&format!("{line} | "))), "{shown}");
    }
}

#[test]
fn impossible_devices_are_found() {
    assert!(contradictions(DRIVE).is_empty(), "{:#?}", contradictions(DRIVE));
    CatalogueMedium::parse("drive.toml", DRIVE).unwrap_or_else(|error| panic!("{error}"));
    // A write of 180 us, while one at a time is answered 1,780 times a second.
    contradicts(
        &[("[[1, 5_555], ", "[[1, 1_780], ")],
        ("[[1, 1_780], ", "value = 180,"),
        "at queue depth 1 a latency of 180 µs is 5556 requests a second, and `iops` says 1780",
    );
    contradicts(
        &[("[32, 200_000]", "[32, 500_000]")],
        ("[32, 500_000]", "value = 100,"),
        "by Little's law that is 320000 at most",
    );
    contradicts(
        &[("value = 920,", "value = 331,")],
        ("value = 331,", "[32, 7_000]"),
        "are 918 MB/s, and `mb_s` says 331",
    );
    // Random reads that move more than a stream of as many and larger ones.
    contradicts(
        &[("[32, 7_000]", "[32, 2_000]")],
        ("[32, 2_000]", "[32, 200_000]"),
        "are 819 MB/s, and sequential-read comes at 262 at most",
    );
}

#[test]
fn devices_unlike_their_ratings_are_found() {
    // A stream of 331 MB/s on a drive rated 233.
    contradicts(
        &[("[32, 7_000]", "[32, 2_525]"), ("value = 917\n", "value = 233\n")],
        ("value = 233\n", "[32, 2_525]"),
        "sequential-read-mb-s 233 at queue depth 32 with 131072 bytes, and by its service that is 331 at least",
    );
    contradicts(
        &[("value = 917\n", "value = 233\n")],
        ("value = 233\n", "value = 920,"),
        "`mb_s` of sequential-read is 920",
    );
    // The same of blocks of another size, and at random.
    contradicts(
        &[(
            "value = 917\nqueue_depth = 32\nblock_bytes = 131_072",
            "value = 233\nqueue_depth = 32\nblock_bytes = 65_536",
        )],
        ("value = 233\n", "[32, 7_000]"),
        "sequential-read of 131072 bytes comes at 918 MB/s at queue depth 32",
    );
    contradicts(
        &[("value = 917\n", "value = 233\n")],
        ("value = 233\n", "[32, 200_000]"),
        "random-read of 4096 bytes comes at 819 MB/s at queue depth 32",
    );
    // Rates at random.
    for (to, words) in [("30_000", "is 90000 at least"), ("190_000", "is 90000 at most")] {
        let value = format!("value = {to}\n");
        contradicts(&[("value = 90_100\n", &value)], (&value, "[32, 90_000]"), words);
    }
    contradicts(
        &[("value = 200_100\nqueue_depth = 32", "value = 3_200_000\nqueue_depth = 256")],
        ("value = 3_200_000\n", "value = 100,"),
        "is 2560000 at most",
    );
    contradicts(
        &[("value = 200_100\n", "value = 200_100\nblock_bytes = 32_768\n")],
        ("value = 200_100\n", "[32, 7_000]"),
        "is 6557 MB/s, and sequential-read comes at 918 at most",
    );
}

#[test]
fn contradicting_ratings_are_found() {
    let latency = |us: u32, more: &str| {
        format!(
            "{DRIVE}\n[[published]]\nfigure = \"read-latency-us\"\nvalue = {us}\nblock_bytes = 8_192\nsource = \"test\"\n{more}\n\
             [[published]]\nfigure = \"random-read-iops\"\nvalue = 90_300\nqueue_depth = 4\nblock_bytes = 8_192\nsource = \"test\"\n"
        )
    };
    let line = |text: &str, needle: &str| text[..text.find(needle).unwrap()].matches('\n').count() + 1;
    assert!(contradictions(&latency(45, "")).is_empty());
    // A note alone does not help: it is about conditions.
    for note in ["", "note = \"typical\""] {
        let text = latency(101, note);
        let found = contradictions(&text);
        let [(one, other, words)] = &found[..] else { panic!("{found:#?}") };
        assert_eq!((*one, *other), (line(&text, "value = 90_300"), line(&text, "value = 101\n")));
        assert!(words.contains("by Little's law that is 39604 at most"), "{words}");
    }
    let text = latency(
        101,
        "contradicts = [{ with = \"random-read-iops\", why = \"two sources, of two firmwares\" }]",
    );
    let medium = CatalogueMedium::parse("drive.toml", &text).unwrap_or_else(|error| panic!("{error}"));
    let described = medium.describe().join("\n");
    assert!(
        described.contains("(contradicts random-read-iops: two sources, of two firmwares)"),
        "{described}"
    );
    let copy: CatalogueMedium = serde_json::from_str(&serde_json::to_string(&medium).unwrap()).unwrap();
    assert_eq!(copy, medium);
}

#[test]
fn admitted_contradictions_are_checked() {
    let value = "value = 90_100\n";
    let admitting = |value: &str, entry: &str| {
        DRIVE.replace("value = 90_100\n", &format!("{value}\ncontradicts = [{entry}]\n"))
    };
    let service = "{ with = \"random-write\", why = \"rated after hours of writing\" }";
    let text = admitting("value = 30_000", service);
    CatalogueMedium::parse("drive.toml", &text).unwrap_or_else(|error| panic!("{error}"));
    // It stands for this one contradiction and for no other, and for none that is not there.
    let contradicting = |other: &str| service.replace("random-write", other);
    assert_eq!(contradictions(&admitting("value = 30_000", &contradicting("random-read"))).len(), 1);
    for (text, expected) in [
        (admitting("value = 90_100", service), "nothing of random-write contradicts this figure"),
        (admitting("value = 30_000", &contradicting("random-writes")), "did you mean \"random-write\"?"),
        (admitting("value = 30_000", "{ with = \"random-write\" }"), "has no `why`"),
        (DRIVE.replace(value, &format!("{value}of_instance = true\n")), "no figure can be of one"),
    ] {
        let messages = mistakes(&text);
        assert!(messages.iter().any(|mistake| mistake.contains(expected)), "{expected}: {messages:#?}");
    }
}

/// Where the numbers of a text are.
fn numbers(text: &str) -> Vec<std::ops::Range<usize>> {
    let number = |byte: u8| byte.is_ascii_digit() || byte == b'.' || byte == b'_';
    let mut found = Vec::new();
    let mut from = None;
    for (index, byte) in text.bytes().chain([b'\n']).enumerate() {
        match (number(byte), from) {
            (true, None) => from = Some(index),
            (false, Some(first)) => {
                found.push(first..index);
                from = None;
            }
            _ => {}
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4000) })]

    /// A file is read or refused, and every medium that is read makes a model that answers.
    #[test]
    fn any_numbers_make_a_model_or_a_mistake(
        file in 0usize..4,
        changes in prop::collection::vec((any::<prop::sample::Index>(), prop_oneof![
            Just(0.0), Just(1.0), Just(-1.0), Just(0.001), Just(0.999999), Just(1e6), Just(1e12),
            0.0..1.0f64, 1.0..1e5f64, 1e5..1e10f64, (1u32..1 << 20).prop_map(|whole| f64::from(whole & !511)),
        ]), 1..6),
        seed in any::<u64>(),
    ) {
        let mut text = [CLOUD, PMEM, NETWORK, MEASURED][file].to_owned();
        for (place, value) in changes {
            let places = numbers(&text);
            let place = places[place.index(places.len())].clone();
            text.replace_range(place, &format!("{value}"));
        }
        let Ok(medium) = CatalogueMedium::parse("any.toml", &text) else { return Ok(()) };
        prop_assert!(medium.problems().is_empty() && !medium.describe().is_empty());
        let mut model = medium.model(1 << 30, seed, InitialState::Fresh);
        let requests = 40u64;
        for index in 0..requests {
            let operation = match index % 8 {
                0 => ModelOperation::Flush,
                1 => ModelOperation::Discard,
                2..5 => ModelOperation::Read,
                _ => ModelOperation::Write,
            };
            let (offset_bytes, length_bytes) = match operation {
                ModelOperation::Flush => (0, 0),
                _ => (index.wrapping_mul(0x9E37_79B9_7F4A_7C15) % 250_000 * 4096, 4096 * (1 + index % 64)),
            };
            let id = RequestId(index);
            let fua = index % 3 == 0;
            model.submit(ModelRequest { id, operation, offset_bytes, length_bytes, fua }, ModelTime::ZERO);
        }
        let mut finished = Vec::new();
        let mut events = 0;
        while let Some(next) = model.next_completion() {
            model.complete(next, &mut finished);
            events += 1;
            prop_assert!(events < 1_000_000, "no end of events");
        }
        prop_assert_eq!(finished.len() as u64, requests);
    }
}
