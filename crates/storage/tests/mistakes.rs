//! Mistakes in catalogue files of the kinds that are stated by what they do: each is found and named.

use proptest::prelude::*;
use underlay_storage::catalogue::Medium;
use underlay_storage::medium::{ModelRequest, Operation, RequestId};
use underlay_storage::stack::InitialState;
use underlay_storage::time::Time;

const CLOUD: &str = include_str!("kinds/cloud.toml");
const PMEM: &str = include_str!("kinds/pmem.toml");
const NETWORK: &str = include_str!("kinds/network.toml");
const MEASURED: &str = include_str!("kinds/measured.toml");

fn mistakes(text: &str) -> Vec<String> {
    let error = Medium::parse("kind.toml", text).expect_err("a mistake");
    error.to_string().lines().map(str::to_owned).collect()
}

/// Changes one place of a file, and looks for what is said of it.
fn found(text: &str, from: &str, to: &str, expected: &str) {
    assert!(text.contains(from), "{from} is not in the file");
    let found = mistakes(&text.replacen(from, to, 1));
    assert!(found.iter().any(|mistake| mistake.contains(expected)), "{to}: {found:#?}, not {expected}");
}

#[test]
fn of_distributions_and_curves() {
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
fn of_volumes() {
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
fn of_memory() {
    found(PMEM, "granule_bytes = { value = 256", "granule_bytes = { value = 300", "must be a power of two");
    let persistent = "write_queue_is_persistent = { value = false";
    found(PMEM, persistent, "write_queue_is_persistent = { value = 0", "expected true or false");
}

#[test]
fn of_what_lies_behind_a_link() {
    let medium = "medium = \"ssd-sata\"";
    found(NETWORK, medium, "medium = \"ssd-stata\"", "did you mean \"ssd-sata\"?");
    found(NETWORK, medium, "", "expected the name of the medium behind the link");
    let both = NETWORK.replace("[tail]", "[model.inner]\nkind = \"hdd\"\n\n[tail]");
    assert!(mistakes(&both).iter().any(|mistake| mistake.contains("not both")));
    let twice = NETWORK.replace(medium, "").replace(
        "[tail]",
        "[model.inner]\nkind = \"network\"\ncapacity_bytes = 1_000_000_000\n[model.inner.model]\n\n[tail]",
    );
    let said = mistakes(&twice);
    assert!(
        said.iter().any(|mistake| mistake.contains("a network volume can't be behind another")),
        "{said:#?}"
    );
    let empty =
        twice.replace("kind = \"network\"\ncapacity_bytes = 1_0", "kind = \"pmem\"\ncapacity_bytes = 1_0");
    let said = mistakes(&empty);
    assert!(
        said.iter().any(|mistake| mistake.contains("[model.inner.model] has no `granule_bytes`")),
        "{said:#?}"
    );
}

#[test]
fn a_medium_may_be_described_behind_its_link() {
    let inner = PMEM[PMEM.find("[model]").unwrap()..PMEM.find("[[published]]").unwrap()]
        .replace("[model]", "[model.inner.model]");
    let head = "[model.inner]\nkind = \"pmem\"\ncapacity_bytes = 137_438_953_472\n\n";
    let text =
        NETWORK.replace("medium = \"ssd-sata\"\n", "").replace("[tail]", &format!("{head}{inner}\n[tail]"));
    let medium = Medium::parse("kind.toml", &text).unwrap_or_else(|error| panic!("{error}"));
    let described = medium.describe().join("\n");
    assert!(described.contains("granule_bytes 256 [test]"), "{described}");
    assert!(described.contains("round_trip_us p10 30, p50 40, p99 120 [test]"), "{described}");
    assert!(described.contains("tail read extra_us p50 0, p90 1000, p99 20000 [test]"), "{described}");
    let copy: Medium = serde_json::from_str(&serde_json::to_string(&medium).unwrap()).unwrap();
    assert_eq!(copy, medium);
}

#[test]
fn of_tails() {
    found(NETWORK, "measure = \"extra\"", "measure = \"more\"", "expected one of \"extra\", \"total\"");
    let read = "read_us = { quantiles = [[0.5, 0], [0.9, 1000], [0.99, 20000]], source = \"test\" }\n";
    found(NETWORK, read, "", "a tail needs `read_us`, `write_us` or both");
}

#[test]
fn of_profiles() {
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

/// Where the numbers of a text are.
fn numbers(text: &str) -> Vec<std::ops::Range<usize>> {
    let number = |byte: u8| byte.is_ascii_digit() || byte == b'.' || byte == b'_';
    let mut found = Vec::new();
    let mut from = None;
    for (at, byte) in text.bytes().chain([b'\n']).enumerate() {
        match (number(byte), from) {
            (true, None) => from = Some(at),
            (false, Some(first)) => {
                found.push(first..at);
                from = None;
            }
            _ => {}
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4000) })]

    /// A file is read or refused, and whatever is read makes a model that answers.
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
        let Ok(medium) = Medium::parse("any.toml", &text) else { return Ok(()) };
        prop_assert!(medium.problems().is_empty() && !medium.describe().is_empty());
        let mut model = medium.model(1 << 30, seed, InitialState::Fresh);
        let requests = 40u64;
        for index in 0..requests {
            let operation = match index % 8 {
                0 => Operation::Flush,
                1 => Operation::Discard,
                2..5 => Operation::Read,
                _ => Operation::Write,
            };
            let (offset_bytes, length_bytes) = match operation {
                Operation::Flush => (0, 0),
                _ => (index.wrapping_mul(0x9E37_79B9_7F4A_7C15) % 250_000 * 4096, 4096 * (1 + index % 64)),
            };
            let id = RequestId(index);
            let fua = index % 3 == 0;
            model.submit(ModelRequest { id, operation, offset_bytes, length_bytes, fua }, Time::ZERO);
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
