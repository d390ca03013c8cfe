//! The way round: a medium of the catalogue is probed in virtual time, a measured medium is fitted to the points, and it
//! must be like the one that it came from, also where the fit has not looked.

use std::time::Duration;

use underlay_storage::catalogue::{self, MeasuredOrder, Medium, ModelParameters};
use underlay_storage::fit::{self, Identity, Profile, Role, Score, Shape, Target as _, VirtualTarget, Worst};
use underlay_storage::predict::{self, ClosedLoop, Pattern};
use underlay_storage::stack::InitialState;

const SPAN_BYTES: u64 = 2 << 30;

/// Short, since everything is exact.
fn shape() -> Shape {
    Shape {
        cell: Duration::from_secs(20),
        most_requests: 2_000,
        burst: Duration::from_secs(2),
        round: Duration::from_secs(5),
        most_rounds: 12,
        most_round_requests: 20_000,
        rest: Duration::from_secs(2),
        largest_working_set_bytes: 1 << 20,
        ..Shape::full()
    }
}

fn probe(name: &str) -> Profile {
    let medium = catalogue::find(name).unwrap();
    let mut target = VirtualTarget::new(medium.model(SPAN_BYTES, 1, InitialState::Steady));
    assert_eq!(target.span_bytes(), SPAN_BYTES);
    let mut steps = Vec::new();
    let profile = fit::profile(&mut target, &shape(), &mut |progress| steps.push(progress.clone())).unwrap();
    let last = steps.last().unwrap();
    assert_eq!((last.step, steps.len()), (last.steps, last.steps), "the steps that were announced were made");
    profile
}

fn identity() -> Identity {
    Identity {
        name: "round-trip".into(),
        title: "A \"disk\" with a \\ in its name".into(),
        year: 2026,
        date: "2026-01-02".into(),
        capacity_bytes: SPAN_BYTES,
        price_usd: None,
        conditions: "virtual time".into(),
    }
}

fn show(scores: &[Score]) -> String {
    let line = |score: &Score| {
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

fn round_trip(name: &str) -> (Profile, Medium, Vec<Score>) {
    let profile = probe(name);
    let medium = fit::fit(&profile, &identity()).unwrap();
    let scores = fit::score(&profile, &medium, 5).unwrap();
    assert_eq!(scores.len(), profile.points.len());
    (profile, medium, scores)
}

#[test]
fn a_disk_is_recognised() {
    let (_, medium, scores) = round_trip("hdd-7200-sata");
    let ModelParameters::Measured(parameters) = &medium.model else { panic!("a measured medium") };
    assert_eq!(parameters.order.value, MeasuredOrder::Any, "a disk's queue reorders");
    assert!(parameters.device.flush_drains.value, "its cache is volatile");
    let reads: Vec<Score> =
        scores.iter().filter(|score| score.pattern == Pattern::RandomRead).cloned().collect();
    let (fitted, held_out) = (Worst::of(&reads, Role::Fitted), Worst::of(&reads, Role::HeldOut));
    assert!(fitted.worst_mean < 0.05, "{}", show(&scores));
    assert!(held_out.worst_mean < 0.20 && held_out.median_mean < 0.07, "{}", show(&scores));
    let all = Worst::of(&scores, Role::HeldOut);
    assert!(all.median_mean < 0.10, "{}", show(&scores));
}

#[test]
fn a_flash_drive_is_recognised_and_its_file_is_read_again() {
    let (profile, medium, scores) = round_trip("ssd-sata");
    let ModelParameters::Measured(parameters) = &medium.model else { panic!("a measured medium") };
    assert!(!parameters.device.flush_drains.value, "its buffer outlives a power cut");
    let reads: Vec<Score> =
        scores.iter().filter(|score| score.pattern == Pattern::RandomRead).cloned().collect();
    let (fitted, held_out) = (Worst::of(&reads, Role::Fitted), Worst::of(&reads, Role::HeldOut));
    assert!(fitted.worst_mean < 0.05, "{}", show(&scores));
    assert!(held_out.worst_mean < 0.20 && held_out.median_mean < 0.07, "{}", show(&scores));
    let all = Worst::of(&scores, Role::HeldOut);
    assert!(all.median_mean < 0.10, "{}", show(&scores));

    let text = fit::medium_text(&medium);
    let read = Medium::parse("round-trip.toml", &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(read, medium);
    let json = serde_json::to_string(&profile).unwrap();
    assert_eq!(serde_json::from_str::<Profile>(&json).unwrap(), profile);
}

#[test]
fn a_profile_of_reads_makes_a_medium_too() {
    let mut profile = probe("ssd-sata");
    profile.points.retain(|point| matches!(point.pattern, Pattern::RandomRead | Pattern::SequentialRead));
    (profile.bursts, profile.flushes, profile.buffered_writes) = Default::default();
    let medium = fit::fit(&profile, &identity()).unwrap();
    let text = fit::medium_text(&medium);
    assert_eq!(Medium::parse("reads.toml", &text).unwrap_or_else(|error| panic!("{error}\n{text}")), medium);
    assert!(medium.note.unwrap().contains("Reads only"));
    profile.points.clear();
    assert!(fit::fit(&profile, &identity()).unwrap_err().to_string().contains("too little"));
}

/// The two ways of asking a model in virtual time agree where they ask the same.
#[test]
fn the_virtual_prober_agrees_with_predictions() {
    for name in ["hdd-7200-sata", "ssd-sata", "nvme-9300-max"] {
        let medium = catalogue::find(name).unwrap();
        let model = || medium.model(SPAN_BYTES, 1, InitialState::Fresh);
        let load = ClosedLoop {
            pattern: Pattern::RandomRead,
            block_bytes: 4096,
            queue_depth: 8,
            requests: 5_000,
            warmup: 0,
            seed: 3,
        };
        let predicted = predict::closed_loop(&mut *model(), &load);
        let load = fit::Load {
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
