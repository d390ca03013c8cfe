//! The way round: a medium of the catalogue is probed in virtual time, a measured medium is fitted to the points, and
//! it must be like the one that it came from, also where the fit has not looked.

use std::time::Duration;

use proptest::prelude::*;
use underlay_record::Histogram;
use underlay_storage::catalogue::{self, CatalogueMedium, FigureKind, MeasuredOrder, ModelParameters};
use underlay_storage::fit::{
    self, DeviceIdentity, DeviceProfile, LoadShape, PointRole, PointScore, ProbePoint, ProbeTarget as _,
    VirtualTarget, WorstScore,
};
use underlay_storage::predict::{self, AccessPattern, ClosedLoop};
use underlay_storage::stack::InitialState;

const SPAN_BYTES: u64 = 2 << 30;

/// Short, since everything is exact.
fn shape() -> LoadShape {
    LoadShape {
        cell: Duration::from_secs(20),
        most_requests: 2_000,
        burst: Duration::from_secs(2),
        round: Duration::from_secs(5),
        most_rounds: 12,
        most_round_requests: 20_000,
        rest: Duration::from_secs(2),
        largest_working_set_bytes: 1 << 20,
        ..LoadShape::full()
    }
}

fn probe(name: &str) -> DeviceProfile {
    let medium = catalogue::find(name).unwrap();
    let mut target = VirtualTarget::new(medium.model(SPAN_BYTES, 1, InitialState::Steady));
    assert_eq!(target.span_bytes(), SPAN_BYTES);
    let mut steps = Vec::new();
    let profile = fit::profile(&mut target, &shape(), &mut |progress| steps.push(progress.clone())).unwrap();
    let last = steps.last().unwrap();
    assert_eq!((last.step, steps.len()), (last.steps, last.steps), "the steps that were announced were made");
    profile
}

fn identity() -> DeviceIdentity {
    DeviceIdentity {
        name: "round-trip".into(),
        title: "A \"disk\" with a \\ in its name".into(),
        year: 2026,
        date: "2026-01-02".into(),
        capacity_bytes: SPAN_BYTES,
        price_usd: None,
        conditions: "virtual time".into(),
    }
}

fn show(scores: &[PointScore]) -> String {
    let line = |score: &PointScore| {
        format!(
            "{:?} {} at {}: {:?}, mean {:+.3}, p50 {:+.3}, p99 {:+.3}, demerit {:.3}\n",
            score.pattern,
            score.block_bytes,
            score.queue_depth,
            score.role,
            score.distance.mean,
            score.distance.p50,
            score.distance.p99,
            score.distance.demerit
        )
    };
    scores.iter().map(line).collect()
}

fn round_trip(name: &str) -> (DeviceProfile, CatalogueMedium, Vec<PointScore>) {
    let profile = probe(name);
    let medium = fit::fit(&profile, &identity()).unwrap();
    let scores = fit::score(&profile, &medium, 5).unwrap();
    assert_eq!(scores.len(), profile.points.len());
    (profile, medium, scores)
}

#[test]
fn disk_profile_is_fitted_as_disk() {
    let (_, medium, scores) = round_trip("hdd-7200-sata");
    let ModelParameters::Measured(parameters) = &medium.model else { panic!("a measured medium") };
    assert_eq!(parameters.order.value, MeasuredOrder::Any, "a disk's queue reorders");
    assert!(parameters.device.flush_drains.value, "its cache is volatile");
    let reads: Vec<PointScore> =
        scores.iter().filter(|score| score.pattern == AccessPattern::RandomRead).cloned().collect();
    let (fitted, held_out) = (
        WorstScore::from_scores(&reads, PointRole::Fitted),
        WorstScore::from_scores(&reads, PointRole::HeldOut),
    );
    assert!(fitted.worst_mean < 0.05, "{}", show(&scores));
    assert!(held_out.worst_mean < 0.20 && held_out.median_mean < 0.07, "{}", show(&scores));
    let all = WorstScore::from_scores(&scores, PointRole::HeldOut);
    assert!(all.median_mean < 0.10, "{}", show(&scores));
}

#[test]
fn flash_profile_is_fitted_and_its_file_rereads() {
    let (profile, medium, scores) = round_trip("ssd-sata");
    let ModelParameters::Measured(parameters) = &medium.model else { panic!("a measured medium") };
    assert!(!parameters.device.flush_drains.value, "its buffer outlives a power cut");
    let reads: Vec<PointScore> =
        scores.iter().filter(|score| score.pattern == AccessPattern::RandomRead).cloned().collect();
    let (fitted, held_out) = (
        WorstScore::from_scores(&reads, PointRole::Fitted),
        WorstScore::from_scores(&reads, PointRole::HeldOut),
    );
    assert!(fitted.worst_mean < 0.05, "{}", show(&scores));
    assert!(held_out.worst_mean < 0.20 && held_out.median_mean < 0.07, "{}", show(&scores));
    let all = WorstScore::from_scores(&scores, PointRole::HeldOut);
    assert!(all.median_mean < 0.10, "{}", show(&scores));

    let text = fit::medium_text(&medium);
    let read =
        CatalogueMedium::parse("round-trip.toml", &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(read, medium);
    let json = serde_json::to_string(&profile).unwrap();
    assert_eq!(serde_json::from_str::<DeviceProfile>(&json).unwrap(), profile);
}

#[test]
fn read_only_profile_fits_medium() {
    let mut profile = probe("ssd-sata");
    profile
        .points
        .retain(|point| matches!(point.pattern, AccessPattern::RandomRead | AccessPattern::SequentialRead));
    (profile.bursts, profile.flushes, profile.buffered_writes) = Default::default();
    let medium = fit::fit(&profile, &identity()).unwrap();
    let text = fit::medium_text(&medium);
    assert_eq!(
        CatalogueMedium::parse("reads.toml", &text).unwrap_or_else(|error| panic!("{error}\n{text}")),
        medium
    );
    assert!(medium.note.unwrap().contains("Reads only"));
    profile.points.clear();
    assert!(fit::fit(&profile, &identity()).unwrap_err().to_string().contains("too little"));
}

/// The two ways of asking a model in virtual time agree where they ask the same.
#[test]
fn virtual_prober_agrees_with_predictions() {
    for name in ["hdd-7200-sata", "ssd-sata", "nvme-9300-max"] {
        let medium = catalogue::find(name).unwrap();
        let model = || medium.model(SPAN_BYTES, 1, InitialState::Fresh);
        let load = ClosedLoop {
            pattern: AccessPattern::RandomRead,
            block_bytes: 4096,
            queue_depth: 8,
            requests: 5_000,
            warmup: 0,
            seed: 3,
        };
        let predicted = predict::closed_loop(&mut *model(), &load);
        let load = fit::ProbeLoad {
            pattern: load.pattern,
            block_bytes: load.block_bytes,
            queue_depth: load.queue_depth,
            first_byte: 0,
            span_bytes: SPAN_BYTES,
            flush_every: 0,
            warmup: Duration::ZERO,
            duration: Duration::from_secs(100_000),
            most_requests: load.requests,
            seed: load.seed,
        };
        let probed = VirtualTarget::new(model()).run(&load).unwrap();
        let relative = probed.latency.mean_us() / predicted.latency.mean_us() - 1.0;
        assert!(relative.abs() < 0.01, "{name}: {relative}");
    }
}

/// A closed loop's answers by how long they took, in microseconds.
fn point(pattern: AccessPattern, block_bytes: u64, queue_depth: usize, answers: &[(f64, u64)]) -> ProbePoint {
    let mut latency = Histogram::default();
    for (us, count) in answers {
        latency.record_n_ns((us * 1e3) as u64, *count);
    }
    let requests = latency.count();
    let duration_s = latency.mean_us() * requests as f64 / queue_depth as f64 / 1e6;
    let iops = requests as f64 / duration_s;
    ProbePoint {
        pattern,
        block_bytes,
        queue_depth,
        role: PointRole::Fitted,
        requests,
        duration_s,
        iops,
        latency,
        saturated: false,
    }
}

fn profile_of(points: Vec<ProbePoint>) -> DeviceProfile {
    DeviceProfile { span_bytes: SPAN_BYTES, points, ..DeviceProfile::default() }
}

fn fitted_and_checked(profile: &DeviceProfile) -> CatalogueMedium {
    let medium = fit::fit(profile, &identity()).unwrap();
    let text = fit::medium_text(&medium);
    assert_eq!(
        CatalogueMedium::parse("disk.toml", &text).unwrap_or_else(|error| panic!("{error}\n{text}")),
        medium
    );
    medium
}

/// It was written as if eight of 518 requests were slow: with a mean of 74 µs, and no device with that answers the
/// 15,585 a second that were measured.
#[test]
fn single_slow_request_does_not_contradict_rate() {
    let alone = [
        (39.0, 25),
        (40.8, 26),
        (53.0, 52),
        (54.4, 104),
        (57.3, 104),
        (59.1, 104),
        (61.6, 52),
        (63.6, 25),
        (82.7, 25),
        (3633.2, 1),
    ];
    let profile = profile_of(vec![
        point(AccessPattern::RandomRead, 4096, 1, &alone),
        point(AccessPattern::RandomRead, 4096, 4, &[(62.0, 900), (70.0, 800), (90.0, 10)]),
        point(AccessPattern::RandomRead, 4096, 32, &[(250.0, 1500), (270.0, 1600), (900.0, 40)]),
    ]);
    let medium = fitted_and_checked(&profile);
    let ModelParameters::Measured(parameters) = &medium.model else { panic!("a measured medium") };
    let service = parameters.service_of(underlay_storage::catalogue::MeasuredLoad::RandomRead)[0];
    let measured_us = profile.points[0].latency.mean_us();
    assert!(
        (service.latency_us.mean() / measured_us - 1.0).abs() < 0.01,
        "{service:?}, measured {measured_us}"
    );
    // And so in virtual time, where enough requests are asked for that slow ones come as often as they should.
    for point in &profile.points {
        let load = ClosedLoop {
            pattern: AccessPattern::RandomRead,
            block_bytes: 4096,
            queue_depth: point.queue_depth,
            requests: 100_000,
            warmup: 1_000,
            seed: 3,
        };
        let mut model = medium.model(SPAN_BYTES, 1, InitialState::Fresh);
        let off = predict::closed_loop(&mut *model, &load).latency.mean_us() / point.latency.mean_us() - 1.0;
        assert!(off.abs() < 0.05, "at queue depth {}: {off}", point.queue_depth);
    }
}

#[test]
fn disturbed_probes_are_limited_or_dropped_with_note() {
    let profile = profile_of(vec![
        // Something else had the disk for a while.
        point(AccessPattern::RandomRead, 4096, 1, &[(50.0, 300), (20_000.0, 10)]),
        point(AccessPattern::RandomRead, 4096, 4, &[(60.0, 1000)]),
        point(AccessPattern::RandomRead, 32_768, 1, &[(70.0, 1000)]),
        point(AccessPattern::RandomRead, 262_144, 1, &[(150.0, 1000)]),
    ]);
    let medium = fitted_and_checked(&profile);
    let note = medium.note.unwrap();
    assert!(note.contains("held to that") && note.contains("random-read of 4096 bytes"), "{note}");
    let ModelParameters::Measured(parameters) = &medium.model else { panic!("a measured medium") };
    assert_eq!(
        parameters.service.iter().map(|service| service.block_bytes).collect::<Vec<_>>(),
        [32_768, 262_144]
    );
}

#[test]
fn disturbed_stream_is_dropped_and_figure_lists_contradiction() {
    let profile = profile_of(vec![
        point(AccessPattern::RandomRead, 4096, 1, &[(100.0, 1000)]),
        // 819 MB/s.
        point(AccessPattern::RandomRead, 4096, 32, &[(160.0, 3200)]),
        point(AccessPattern::SequentialRead, 65_536, 1, &[(400.0, 1000)]),
        // 262 MB/s.
        point(AccessPattern::SequentialRead, 65_536, 32, &[(8_000.0, 1000)]),
    ]);
    let medium = fitted_and_checked(&profile);
    let note = medium.note.as_deref().unwrap();
    assert!(note.contains("Left out: sequential-read of 65536 bytes"), "{note}");
    let stream = medium.published.iter().find(|one| one.figure == FigureKind::SequentialReadMbS).unwrap();
    let contradicted: Vec<&str> = stream.contradicts.iter().map(|one| one.with.name()).collect();
    assert_eq!(contradicted, ["random-read"], "{stream:?}");
    assert_eq!(stream.note, None, "a note is about conditions");
}

proptest! {
    // Each case is asked in virtual time in both orders.
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Every medium that `media measure` writes passes `media check`.
    #[test]
    fn fitted_medium_is_accepted(
        loops in prop::collection::vec(
            (0..4_usize, 0..3_usize, 0..4_usize, prop::collection::vec((1.0..50_000.0_f64, 1_u64..3_000), 1..5)),
            1..40,
        ),
        buffered in prop::collection::vec((0..3_usize, 1.0..50_000.0_f64, 2_u64..64), 3),
        burst in prop::collection::vec(0_u64..10_000_000, 0..30),
        alone in prop::collection::vec((1.0..50_000.0_f64, 1_u64..3_000), 1..5),
    ) {
        let patterns = [
            AccessPattern::RandomRead,
            AccessPattern::RandomWrite,
            AccessPattern::SequentialRead,
            AccessPattern::SequentialWrite,
        ];
        let (sizes, depths) = ([4096, 32_768, 262_144], [1, 4, 8, 32]);
        let mut points = vec![point(AccessPattern::RandomRead, 4096, 1, &alone)];
        for (pattern, size, depth, answers) in &loops {
            let found = point(patterns[*pattern], sizes[*size], depths[*depth], answers);
            let same = |other: &ProbePoint| {
                (other.pattern, other.block_bytes, other.queue_depth)
                    == (found.pattern, found.block_bytes, found.queue_depth)
            };
            if !points.iter().any(same) {
                points.push(found);
            }
        }
        let mut profile = profile_of(points);
        for (size, us, count) in buffered {
            let found = point(AccessPattern::RandomWrite, sizes[size], 1, &[(us, count)]);
            if !profile.buffered_writes.iter().any(|other| other.block_bytes == found.block_bytes) {
                profile.buffered_writes.push(found);
            }
        }
        profile.bursts = vec![fit::BurstPoint {
            pattern: AccessPattern::RandomWrite,
            block_bytes: 4096,
            queue_depth: 4,
            slice_s: 0.01,
            slices: burst,
        }];
        // A device that all but stands still at a depth has no model, and no file is written.
        if let Ok(medium) = fit::fit(&profile, &identity()) {
            let text = fit::medium_text(&medium);
            let read = CatalogueMedium::parse("disk.toml", &text);
            prop_assert!(read.is_ok(), "{}\n{text}", read.unwrap_err());
        }
    }
}
