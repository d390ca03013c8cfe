//! What tells one drive's firmware from another's: how it programs, copies and acknowledges; and the measured drives.

use underlay_record::Histogram;
use underlay_storage::catalogue::{
    self, CatalogueMedium, FlashParameters, LoadMeasurement, ModelParameters, SourcedQuantity,
};
use underlay_storage::medium::{FinishedRequest, MediumModel, ModelOperation, ModelRequest, RequestId};
use underlay_storage::predict::paced::{PacedPrediction, compare_measured, measured_load, paced_load};
use underlay_storage::stack::InitialState;
use underlay_storage::time::ModelTime;

const SECONDS: f64 = 1.0;

fn parameters(medium: &mut CatalogueMedium) -> &mut FlashParameters {
    match &mut medium.model {
        ModelParameters::Flash(parameters) => parameters,
        _ => panic!("no flash"),
    }
}

fn quantity(value: f64) -> Option<SourcedQuantity> {
    Some(SourcedQuantity { value, source: "test".into(), estimate: true })
}

/// The row of about so many writes, that are offered in a second.
fn row(medium: &CatalogueMedium, writes_per_s: f64) -> LoadMeasurement {
    let is_it = |row: &&LoadMeasurement| row.background_per_s + 5_000.0 == writes_per_s;
    medium.measured.iter().find(is_it).unwrap().clone()
}

fn play(medium: &CatalogueMedium, offered_per_s: f64) -> PacedPrediction {
    let load = measured_load(&row(medium, offered_per_s), SECONDS, 1);
    paced_load(&mut *medium.model(medium.capacity_bytes(), 1, InitialState::Steady), &load)
}

fn quantile_us(latency: &Histogram, share: f64) -> f64 {
    latency.quantile_us(share)
}

/// A drive of this catalogue with some of its parameters changed.
fn changed(name: &str, change: impl FnOnce(&mut FlashParameters)) -> CatalogueMedium {
    let mut medium = catalogue::find(name).unwrap();
    change(parameters(&mut medium));
    assert_eq!(medium.problems(), Vec::<String>::new());
    medium
}

#[test]
fn reads_beside_more_writes_have_longer_tails() {
    let medium = catalogue::find("sk-hynix-pe8110-960").unwrap();
    let [light, heavy] = [10_000.0, 60_000.0].map(|offered| play(&medium, offered));
    for share in [0.5, 0.9, 0.99] {
        let (few, many) = (quantile_us(&light.reads, share), quantile_us(&heavy.reads, share));
        assert!(many > 1.2 * few, "{share}: {few} us beside few writes, {many} beside many");
    }
    // No read is over before its page was read and sent: 46 us of the fast ones, 5 of the command.
    for prediction in [&light, &heavy] {
        let fastest_us = quantile_us(&prediction.reads, 0.05);
        assert!(fastest_us > 51.0, "{fastest_us}");
    }
}

#[test]
fn exhausted_suspensions_show_in_the_tail() {
    let tail = |suspensions| {
        let medium = changed("sk-hynix-pe8110-960", |flash| flash.suspensions = quantity(suspensions));
        quantile_us(&play(&medium, 30_000.0).reads, 0.99)
    };
    let (never, often) = (tail(0.0), tail(1000.0));
    assert!(never > 1000.0 && often < 600.0, "{never} us without suspension, {often} with");
}

#[test]
fn turns_beyond_the_buffer_keep_writes_waiting() {
    let tail = |turn_bytes| {
        let medium = changed("kioxia-cm7-r-3840", |flash| flash.copy_turn_bytes = quantity(turn_bytes));
        let prediction = play(&medium, 100_000.0);
        assert!((prediction.writes_per_s / 99_000.0 - 1.0).abs() < 0.02, "{}", prediction.writes_per_s);
        (quantile_us(&prediction.writes, 0.5), quantile_us(&prediction.writes, 0.99))
    };
    let (small, large) = (tail(1e6), tail(100e6));
    assert!(small.1 < 20.0, "{small:?}");
    assert!(large.0 < 20.0 && large.1 > 2000.0, "{large:?}");
}

#[test]
fn full_controller_holds_reads_back() {
    let median = |slots| {
        let medium = changed("samsung-pm9a3-960", |flash| flash.command_slots = slots);
        let prediction = play(&medium, 100_000.0);
        assert!((prediction.writes_per_s / 76_539.0 - 1.0).abs() < 0.1, "{}", prediction.writes_per_s);
        quantile_us(&prediction.reads, 0.5)
    };
    let (open, held) = (median(None), median(quantity(64.0)));
    assert!(open < 200.0 && held > 3000.0, "{open} us and {held}");
}

#[test]
fn stalled_controller_acknowledges_later() {
    let tail = |stall_us| {
        let medium = changed("solidigm-p5520-1920", |flash| flash.write_stall_us = quantity(stall_us));
        quantile_us(&play(&medium, 10_000.0).writes, 0.999)
    };
    let (short, long) = (tail(0.0), tail(2000.0));
    assert!(short < 20.0 && (1000.0..2100.0).contains(&long), "{short} us and {long}");
}

#[test]
fn gathered_writes_reach_flash_with_a_flush() {
    let medium = changed("solidigm-p5520-1920", |flash| flash.power_loss_protection.value = false);
    let mut model = medium.model(1 << 30, 1, InitialState::Steady);
    let mut finished: Vec<FinishedRequest> = Vec::new();
    let mut ask = |model: &mut dyn MediumModel, id, operation, now: ModelTime| {
        let length_bytes = if operation == ModelOperation::Write { 4096 } else { 0 };
        let request =
            ModelRequest { id: RequestId(id), operation, offset_bytes: id * 8192, length_bytes, fua: false };
        model.submit(request, now);
        while let Some(next) = model.next_completion() {
            model.complete(next, &mut finished);
        }
        finished.drain(..).map(|one| one.at).next_back().unwrap()
    };
    let written = ask(&mut *model, 1, ModelOperation::Write, ModelTime::ZERO);
    assert!(written.as_ns() < 20_000);
    assert_eq!(model.unflushed(), [(8192, 12_288)], "one write is less than a program");
    let flushed = ask(&mut *model, 2, ModelOperation::Flush, written);
    assert!(flushed.duration_since(written).as_micros() >= 2450, "a program takes its time");
    assert_eq!(model.unflushed(), []);
}

/// Figures of this many requests scatter: the page of each drive has the whole table, from longer runs.
#[test]
fn measured_drives_keep_to_measured_latencies() {
    let (mut near, mut off) = (0, Vec::new());
    for medium in catalogue::builtin() {
        for row in medium.measured.iter().filter(|row| row.offered_per_s() <= 65_000.0) {
            for figure in compare_measured(medium, row, 2.0, 3) {
                match figure.is_within() {
                    Some(true) => near += 1,
                    Some(false) => off.push(format!(
                        "{} at {}: {} is {:.0}, measured {}",
                        medium.name,
                        row.offered_per_s(),
                        figure.name,
                        figure.modelled,
                        figure.measured
                    )),
                    None => {}
                }
            }
        }
    }
    eprintln!("{near} within tolerance, off are\n{}", off.join("\n"));
    assert_eq!(near + off.len(), 15 * 7);
    assert!(near >= 90, "{near} within tolerance");
}
