//! Cloud volumes: rates, bursts, bounds and price follow the size, as their providers sell them.

use underlay_storage::catalogue::{
    self, CatalogueMedium, CloudParameters, ModelParameters, ParameterChange, RefusalCause,
};
use underlay_storage::predict::{AccessPattern, ClosedLoop, closed_loop};
use underlay_storage::stack::InitialState;

const GIB: u64 = 1 << 30;

fn volume(medium: &CatalogueMedium) -> &CloudParameters {
    let ModelParameters::Cloud(volume) = &medium.model else { panic!("{} is no volume", medium.name) };
    volume
}

/// Of this size, both by the file and in memory, which must agree.
fn sized(name: &str, gib: u64) -> CatalogueMedium {
    let changed = catalogue::sized(catalogue::text_of(name).unwrap(), Some(gib * GIB), false, &[]).unwrap();
    let medium = catalogue::find(name).unwrap().with_size(gib * GIB).unwrap();
    assert_eq!(changed.medium.model, medium.model, "{name}, {gib} GiB");
    assert_eq!(changed.medium.price.usd, medium.price.usd, "{name}, {gib} GiB");
    // What is paid by the month is called a rent, also where the rules that say so are gone.
    assert!(changed.medium.price.rented && medium.price.rented, "{name}, {gib} GiB");
    assert!(changed.medium.price().is_rent(), "{name}, {gib} GiB");
    assert_eq!(changed.medium.capacity_bytes(), gib * GIB);
    // It is read again by a volume server, which must not size it a second time.
    assert_eq!(CatalogueMedium::parse("again", &changed.text).unwrap(), changed.medium);
    assert!(changed.medium.volume.is_none() && changed.medium.price.rent.is_none());
    changed.medium
}

fn refusal(
    name: &str,
    capacity_bytes: Option<u64>,
    changes: &[(&str, ParameterChange)],
) -> (RefusalCause, String) {
    let refused =
        catalogue::sized(catalogue::text_of(name).unwrap(), capacity_bytes, false, changes).unwrap_err();
    assert_eq!(refused.len(), 1, "{refused:?}");
    (refused[0].blame, refused[0].reason.clone())
}

fn rates(medium: &CatalogueMedium) -> (f64, f64) {
    (volume(medium).baseline_iops.value, volume(medium).baseline_mb_s.value)
}

fn is_near(found: f64, expected: f64) -> bool {
    (found / expected - 1.0).abs() < 1e-3
}

/// 50 GiB once had 1,853 reads a second, and cost $1,800.
#[test]
fn gp2_of_50_gib_has_documented_rates_and_price() {
    let medium = sized("ebs-gp2", 50);
    assert_eq!(medium.name, "ebs-gp2-50-gib");
    assert!(medium.title.ends_with("with 50 GiB"), "{}", medium.title);
    let found = volume(&medium);
    assert_eq!(found.baseline_iops.value, 150.0);
    assert_eq!(found.burst_iops.as_ref().unwrap().value, 3000.0);
    assert_eq!(found.io_credits.as_ref().unwrap().value, 5.4e6);
    assert_eq!(medium.price_usd(), 180.0);
    let load = ClosedLoop {
        pattern: AccessPattern::RandomRead,
        block_bytes: 4096,
        queue_depth: 16,
        requests: 3_000,
        warmup: 100,
        seed: 1,
    };
    // The data scale of a study: a hundredth of the volume is as fast.
    for capacity_bytes in [50 * GIB, GIB / 2] {
        let asked = |initial| closed_loop(&mut *medium.model(capacity_bytes, 1, initial), &load).iops;
        assert!((145.0..=155.0).contains(&asked(InitialState::Steady)), "{}", asked(InitialState::Steady));
        assert!((2_700.0..=3_050.0).contains(&asked(InitialState::Fresh)), "{}", asked(InitialState::Fresh));
    }
}

#[test]
fn rent_follows_size_and_what_is_bought_beside_it() {
    for (name, gib, usd) in [
        ("ebs-gp2", 2048, 7_372.80),
        ("ebs-gp2", 16_384, 58_982.40),
        ("ebs-gp3", 100, 288.0),
        ("ebs-gp3-16k", 1_000, 6_480.0),
        // 0.08 for each GiB, 0.005 for each of 13,000 IOPS, 0.04 for each of 875 MiB/s.
        ("ebs-gp3-16k", 100, 288.0 + 2_340.0 + 1_260.0),
        ("ebs-io2", 1_000, 41_940.0),
        ("ebs-io2", 16, 72.0 + 37_440.0),
        ("ebs-st1", 1_024, 1_658.88),
        ("azure-p30", 1_024, 4_866.12),
        // A disk between two sizes is the larger one: P6.
        ("azure-p30", 50, 367.56),
    ] {
        let found = sized(name, gib).price_usd();
        assert!((found - usd).abs() < 0.01, "{name}, {gib} GiB: {found}");
    }
    let text = catalogue::text_of("ebs-io2").unwrap();
    let bought = |iops: f64| {
        let changes = [("baseline_iops", ParameterChange::Number(iops))];
        catalogue::sized(text, Some(1_000 * GIB), false, &changes).unwrap().medium
    };
    // 32,000 at 0.065, 32,000 at 0.046, the rest at 0.032.
    let most = bought(256_000.0);
    assert!(
        (most.price_usd() - (4_500.0 + 74_880.0 + 52_992.0 + 221_184.0)).abs() < 0.01,
        "{}",
        most.price_usd()
    );
    // Its bandwidth follows the IOPS: 0.256 MiB/s for each.
    assert!(is_near(volume(&bought(1_000.0)).baseline_mb_s.value, 268.4));
}

#[test]
fn rates_follow_size_by_provider_rules() {
    for (name, gib, iops, mb_s) in [
        ("ebs-gp2", 1, 100.0, 134.2),
        ("ebs-gp2", 33, 100.0, 134.2),
        ("ebs-gp2", 34, 102.0, 134.2),
        ("ebs-gp2", 170, 510.0, 134.2),
        ("ebs-gp2", 334, 1_002.0, 262.1),
        ("ebs-gp2", 5_333, 15_999.0, 262.1),
        ("ebs-gp2", 16_384, 16_000.0, 262.1),
        ("ebs-gp3", 1, 3_000.0, 131.1),
        ("ebs-gp3", 16_384, 3_000.0, 131.1),
        ("ebs-io2", 16, 16_000.0, 4_194.3),
        ("ebs-st1", 125, 500.0, 5.12),
        ("ebs-st1", 16_384, 500.0, 524.3),
        ("azure-p30", 33, 240.0, 50.0),
        ("azure-p30", 512, 2_300.0, 150.0),
        ("azure-p30", 1_024, 5_000.0, 200.0),
        ("azure-p30", 32_767, 20_000.0, 900.0),
    ] {
        let found = rates(&sized(name, gib));
        assert!(is_near(found.0, iops) && is_near(found.1, mb_s), "{name}, {gib} GiB: {found:?}");
    }
    let pd = catalogue::find("gcp-pd-ssd").unwrap();
    assert_eq!(rates(&pd.with_size(100_000_000_000).unwrap()), (3_000.0, 48.0));
    // Sold in whole GB: 10.5 are eleven.
    assert!(is_near(rates(&pd.with_size(10_500_000_000).unwrap()).0, 330.0));
}

#[test]
fn credits_follow_size_until_baseline_reaches_burst() {
    let burst = |name: &str, gib: u64| {
        let medium = sized(name, gib);
        let value =
            |quantity: &Option<catalogue::SourcedQuantity>| quantity.as_ref().map(|quantity| quantity.value);
        let found = volume(&medium);
        (
            value(&found.burst_iops),
            value(&found.io_credits),
            value(&found.burst_mb_s),
            value(&found.throughput_credits_mb),
        )
    };
    assert_eq!(burst("ebs-gp2", 999).0, Some(3000.0));
    assert_eq!(burst("ebs-gp2", 1_000), (None, None, None, None));
    // st1: 250 MiB/s and a bucket of 1 TiB for each TiB, 500 MiB/s at most.
    let (.., rate, credits) = burst("ebs-st1", 512);
    assert!(is_near(rate.unwrap(), 131.1) && is_near(credits.unwrap(), 549_755.8));
    assert!(is_near(burst("ebs-st1", 4_096).2.unwrap(), 524.3));
    assert_eq!(burst("ebs-st1", 16_384).2, None, "as fast without");
    // Premium SSD: half an hour of 3,500 beside a baseline of 500.
    assert_eq!(burst("azure-p30", 128).1, Some(3_000.0 * 1_800.0));
    assert_eq!(burst("azure-p30", 1_024).0, None);
    assert_eq!(burst("ebs-gp3", 50), (None, None, None, None));
}

#[test]
fn unsold_volume_is_refused_with_rule() {
    let number = |value: f64| ParameterChange::Number(value);
    for (name, gib, changes, blame, rule) in [
        (
            "ebs-gp3",
            1000,
            &[("baseline_iops", number(90_000.0))][..],
            RefusalCause::Change(0),
            "up to 80000 IOPS",
        ),
        (
            "ebs-gp3",
            16,
            &[("baseline_iops", number(16_000.0))],
            RefusalCause::Change(0),
            "500 IOPS for each GiB, so 8000 IOPS for 16 GiB",
        ),
        (
            "ebs-gp3",
            1000,
            &[("baseline_iops", number(1_000.0))],
            RefusalCause::Change(0),
            "smallest is 3000 IOPS",
        ),
        (
            "ebs-gp3",
            1000,
            &[("baseline_mb_s", number(1_048.576))],
            RefusalCause::Change(0),
            "for each IOPS, so 786.432 MB/s (750 MiB/s) for 3000 IOPS",
        ),
        (
            "ebs-gp3",
            1000,
            &[("baseline_mb_s", number(3_000.0))],
            RefusalCause::Change(0),
            "up to 2097.152 MB/s (2000 MiB/s)",
        ),
        // Stated by the catalogue's medium, for a size that can't have it.
        ("ebs-gp3-16k", 8, &[], RefusalCause::Whole, "500 IOPS for each GiB"),
        ("ebs-io2", 10, &[], RefusalCause::Whole, "1000 IOPS for each GiB, so 10000 IOPS for 10 GiB"),
        ("ebs-gp2", 500, &[("baseline_iops", number(20_000.0))], RefusalCause::Change(0), "up to 16000 IOPS"),
        // 13 times the reads at the price of 150 IOPS.
        (
            "ebs-gp2",
            50,
            &[("baseline_iops", number(3_000.0))],
            RefusalCause::Change(0),
            "the provider gives 150 IOPS with 50 GiB, and sells no other rate",
        ),
        ("ebs-gp2", 50, &[("baseline_iops", number(120.0))], RefusalCause::Change(0), "150 IOPS with 50 GiB"),
        (
            "ebs-gp2",
            50,
            &[("baseline_mb_s", number(250.0))],
            RefusalCause::Change(0),
            "134.2177 MB/s (128 MiB/s)",
        ),
        (
            "ebs-gp2",
            50,
            &[("burst_iops", number(16_000.0))],
            RefusalCause::Change(0),
            "3000 IOPS with 50 GiB",
        ),
        (
            "ebs-gp2",
            50,
            &[("io_credits", number(1e9))],
            RefusalCause::Change(0),
            "5400000 credits with 50 GiB",
        ),
        (
            "ebs-io2",
            1000,
            &[("baseline_mb_s", number(1_000.0))],
            RefusalCause::Change(0),
            "sells no other rate",
        ),
        (
            "ebs-st1",
            512,
            &[("baseline_iops", number(400.0))],
            RefusalCause::Change(0),
            "500 IOPS with 512 GiB",
        ),
        ("ebs-st1", 512, &[("baseline_mb_s", number(500.0))], RefusalCause::Change(0), "sells no other rate"),
        ("ebs-st1", 512, &[("burst_mb_s", number(500.0))], RefusalCause::Change(0), "sells no other burst"),
        (
            "ebs-st1",
            512,
            &[("throughput_credits_mb", number(1e9))],
            RefusalCause::Change(0),
            "sells no other burst",
        ),
        (
            "azure-p30",
            128,
            &[("baseline_iops", number(5_000.0))],
            RefusalCause::Change(0),
            "500 IOPS with 128 GiB",
        ),
        ("azure-p30", 128, &[("baseline_mb_s", number(900.0))], RefusalCause::Change(0), "100 MB/s"),
        (
            "azure-p30",
            128,
            &[("burst_mb_s", number(900.0))],
            RefusalCause::Change(0),
            "170 MB/s with 128 GiB",
        ),
        ("gcp-pd-ssd", 100, &[("baseline_iops", number(30_000.0))], RefusalCause::Change(0), "with 108 GB"),
        ("gcp-pd-ssd", 100, &[("baseline_mb_s", number(1_200.0))], RefusalCause::Change(0), "with 108 GB"),
        ("ebs-gp2", 20_000, &[], RefusalCause::Capacity, "from 1 to 16384 GiB"),
        ("ebs-st1", 100, &[], RefusalCause::Capacity, "from 125 to 16384 GiB"),
    ] {
        let (found, reason) = refusal(name, Some(gib * GIB), changes);
        assert!(
            found == blame && reason.contains(rule),
            "{name}, {gib} GiB, {changes:?}: {found:?} {reason}"
        );
    }
    let oversized = catalogue::sized(catalogue::text_of("ebs-gp2").unwrap(), Some(20_000 * GIB), true, &[]);
    assert_eq!(rates(&oversized.unwrap().medium).0, 16_000.0);
    assert!(catalogue::find("ebs-gp2").unwrap().with_size(20_000 * GIB).is_err());
    // A burst where there is none, whole as it may be.
    for (name, gib) in [("ebs-gp3", 1000), ("ebs-gp2", 2000), ("azure-p30", 1024), ("ebs-io2", 1000)] {
        let burst = [("burst_iops", number(30_000.0)), ("io_credits", number(1e6))];
        let text = catalogue::text_of(name).unwrap();
        let refused = catalogue::sized(text, Some(gib * GIB), false, &burst).unwrap_err();
        assert!(refused.iter().any(|one| one.reason.contains("gives no burst with")), "{name}: {refused:?}");
    }
    // What a size gives may be stated, rounded as people do, and what is bought may be chosen.
    for (name, gib, changes) in [
        ("ebs-gp2", 50, &[("baseline_iops", number(150.0)), ("baseline_mb_s", number(134.2))][..]),
        ("ebs-gp2", 50, &[("burst_iops", number(3_000.0)), ("io_credits", number(5.4e6))]),
        ("ebs-gp3", 1000, &[("baseline_iops", number(10_000.0)), ("baseline_mb_s", number(500.0))]),
        ("ebs-io2", 1000, &[("baseline_iops", number(1_000.0))]),
    ] {
        let text = catalogue::text_of(name).unwrap();
        catalogue::sized(text, Some(gib * GIB), false, changes)
            .unwrap_or_else(|refusals| panic!("{name}: {refusals:?}"));
    }
}

/// Its file has more than the rules: a burst that they don't mention.
#[test]
fn own_file_may_state_unruled_burst() {
    let burst = "[model]\nburst_iops = { value = 30_000, source = \"limits\" }\nio_credits = { value = 1_000_000, source = \"limits\" }\n";
    let text = catalogue::text_of("ebs-gp3").unwrap().replacen("[model]\n", burst, 1);
    let medium = CatalogueMedium::parse("mine.toml", &text).unwrap_or_else(|error| panic!("{error}"));
    let sized = medium.with_size(50 * GIB).unwrap();
    assert_eq!(volume(&sized).burst_iops.as_ref().unwrap().value, 30_000.0);
}

/// What is stated by hand takes precedence, and what the rules give follows it.
#[test]
fn stated_rates_take_precedence() {
    let text = catalogue::text_of("ebs-gp2").unwrap();
    let changes = [
        ("baseline_iops", ParameterChange::Number(900.0)),
        ("baseline_mb_s", ParameterChange::Number(262.1)),
    ];
    let medium = catalogue::sized(text, Some(300 * GIB), false, &changes).unwrap().medium;
    assert_eq!(rates(&medium), (900.0, 262.1));
    assert_eq!(medium.price_usd(), 1_080.0);
    assert!(medium.source_text(&volume(&medium).baseline_iops.source).contains("300 GiB, baseline_iops 900"));
}

/// Each alone is refused, both together are fine.
#[test]
fn keys_that_go_together_are_accepted_together() {
    let text = catalogue::text_of("gcp-pd-ssd").unwrap();
    let all = [
        ("degraded_share", ParameterChange::Number(0.01)),
        ("degraded_episode_s", ParameterChange::Number(30.0)),
        ("degraded_factor", ParameterChange::Number(0.5)),
    ];
    let medium = catalogue::sized(text, None, false, &all).unwrap().medium;
    assert_eq!(volume(&medium).degraded_factor.as_ref().unwrap().value, 0.5);
    let (_, reason) = refusal("gcp-pd-ssd", None, &all[..1]);
    assert!(reason.contains("go together"), "{reason}");
    // One that is wrong is blamed alone.
    let wrong = [all[0].clone(), all[1].clone(), ("degraded_factor", ParameterChange::Number(-1.0))];
    assert_eq!(refusal("gcp-pd-ssd", None, &wrong).0, RefusalCause::Change(2));
}

#[test]
fn media_without_rules_have_one_size() {
    let text = catalogue::text_of("ssd-sata").unwrap();
    let medium = catalogue::sized(text, Some(GIB), false, &[]).unwrap().medium;
    assert_eq!(medium, catalogue::find("ssd-sata").unwrap());
    assert_eq!(catalogue::find("ssd-sata").unwrap().with_size(GIB).unwrap(), medium);
}

#[test]
fn invalid_rules_are_reported() {
    let text = catalogue::text_of("ebs-gp2").unwrap();
    for (from, to, message) in [
        ("smallest = 1\n", "smallest = 20_000\n", "`smallest` is above `largest`"),
        ("least = 100, most = 16_000", "least = 100, most = 10", "`least` is above `most`"),
        ("per_unit = 3", "per_unit = \"3\"", "found a string"),
        ("unit = \"GiB\"", "unit = \"MiB\"", "expected one of \"GiB\", \"GB\""),
        (
            "[[170, 134.217728], [16_384, 262.144]]",
            "[[170, 134.2], [100, 262.1]]",
            "pairs in ascending order",
        ),
        ("credits = 5_400_000, ", "", "state one of `credits`"),
        ("usd_per_unit_month", "usd_per_gib_month", "has no `usd`"),
        ("kind = \"cloud\"", "kind = \"hdd\"", "only a cloud volume"),
        ("value = 536_870_912_000", "value = 53_687_091_200_000", "no volume of this capacity is sold"),
    ] {
        assert!(text.contains(from), "{from}");
        let error = CatalogueMedium::parse("mine.toml", &text.replace(from, to)).unwrap_err().to_string();
        assert!(error.contains(message), "{from} -> {to}:\n{error}");
    }
}
