//! The disk model against theory: random reads of one block on an idle disk.
//!
//! Such a read takes the command, the seek between two random places, a uniformly random part of a turn, the block's
//! passing, and the interface. The places are random in bytes, and the outer cylinders hold more. None of the model's
//! geometry, queue or events is used for it.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use underlay_storage::catalogue::{self, CatalogueMedium, HddParameters, MediumKind, ModelParameters};
use underlay_storage::media::hdd::seek::SeekCurve;
use underlay_storage::medium::{ModelOperation, ModelRequest, RequestId};
use underlay_storage::stack::InitialState;
use underlay_storage::time::ModelTime;

const BLOCK: u64 = 4096;
const READS: usize = 20_000;

/// In milliseconds, sorted.
fn draw_theoretical(disk: &HddParameters) -> Vec<f64> {
    let mut random = Pcg64Mcg::seed_from_u64(17);
    let curve = SeekCurve::fit(
        disk.seek_track_read_ms.value,
        disk.seek_average_read_ms.value,
        disk.seek_full_read_ms.value,
    );
    let (outer, inner) = (disk.transfer_outer_mb_s.value, disk.transfer_inner_mb_s.value);
    let turn_ms = 60e3 / disk.rotation_rpm.value;
    // A place, as a share of the stroke, with density in proportion to the track's length there.
    let mut place = || loop {
        let position: f64 = random.random();
        let rate = outer + (inner - outer) * position;
        if random.random::<f64>() < rate / outer {
            return (position, rate, random.random::<f64>());
        }
    };
    let mut from = place().0;
    let mut all: Vec<f64> = (0..20 * READS)
        .map(|_| {
            let (to, mb_s, part_of_a_turn) = place();
            let seek_ms = curve.time_ms((to - from).abs());
            from = to;
            let passing_ms = BLOCK as f64 / mb_s / 1e3;
            disk.command_ms.value + seek_ms + part_of_a_turn * turn_ms + passing_ms
        })
        .collect();
    all.sort_by(f64::total_cmp);
    all
}

/// The model's, sorted. Reads are a random while apart, so that the platter's angle is random, too, and so many
/// that what is remembered of earlier ones hardly matters.
fn modelled(medium: &CatalogueMedium) -> Vec<f64> {
    let mut random = Pcg64Mcg::seed_from_u64(18);
    let mut model = medium.model(medium.capacity_bytes(), 1, InitialState::Fresh);
    let (mut now, mut finished, mut all) = (ModelTime::ZERO, Vec::new(), Vec::new());
    for index in 0..READS as u64 {
        let request = ModelRequest {
            id: RequestId(index),
            operation: ModelOperation::Read,
            offset_bytes: random.random_range(0..medium.capacity_bytes() / BLOCK) * BLOCK,
            length_bytes: BLOCK,
            fua: false,
        };
        model.submit(request, now);
        while finished.is_empty() {
            model.complete(model.next_completion().unwrap(), &mut finished);
        }
        let over = finished.drain(..).next().unwrap().at;
        all.push(over.duration_since(now).as_secs_f64() * 1e3);
        now = ModelTime::from_ns(over.as_ns() + random.random_range(0..50_000_000u64));
        model.complete(now, &mut finished);
    }
    all.sort_by(f64::total_cmp);
    all
}

/// The root mean square of the horizontal distance between two distributions, as a share of the first one's mean
/// (Ruemmler and Wilkes, 1994).
fn demerit(expected: &[f64], actual: &[f64]) -> f64 {
    let quantile = |sorted: &[f64], share: f64| sorted[(share * sorted.len() as f64) as usize];
    let shares = (0..10_000).map(|index| (f64::from(index) + 0.5) / 10_000.0);
    let squares: f64 =
        shares.map(|share| (quantile(expected, share) - quantile(actual, share)).powi(2)).sum();
    (squares / 10_000.0).sqrt() / (expected.iter().sum::<f64>() / expected.len() as f64)
}

#[test]
fn random_reads_take_what_theory_says() {
    let mut disks = 0;
    for medium in catalogue::builtin().iter().filter(|medium| medium.kind == MediumKind::Hdd) {
        let ModelParameters::Hdd(disk) = &medium.model else { unreachable!("a disk is a disk") };
        let (expected, actual) = (draw_theoretical(disk), modelled(medium));
        let found = demerit(&expected, &actual);
        println!("{}: demerit {:.2} %", medium.name, found * 100.0);
        assert!(found < 0.02, "{}: demerit {found}", medium.name);
        disks += 1;
    }
    assert!(disks >= 3);
}

#[test]
fn demerit_detects_wrong_distribution() {
    let medium = catalogue::find("hdd-7200-sata").unwrap();
    let ModelParameters::Hdd(disk) = &medium.model else { unreachable!("a disk is a disk") };
    let mut other = disk.clone();
    other.rotation_rpm.value = 5400.0;
    assert!(demerit(&draw_theoretical(&other), &modelled(&medium)) > 0.05);
    // Narrower by a fifth: the right mean, and the wrong distribution.
    let actual = modelled(&medium);
    let middle = actual.iter().sum::<f64>() / actual.len() as f64;
    let narrow: Vec<f64> = actual.iter().map(|ms| middle + (ms - middle) * 0.8).collect();
    assert!(demerit(&draw_theoretical(disk), &narrow) > 0.05);
}
