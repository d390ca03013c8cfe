//! The printed counts agree with each other, and with a log of every operation, wherever the edges of the measured time
//! are.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use underlay_record::MeasuredWindow;

use super::exporter::OutputValue;
use super::options::{LatencyIntervals, MeasurementType, OutputOptions};
use super::output::{RunFacts, entries};
use super::points::SectionLatencies;
use crate::client::{ClientError, OperationOutcome};
use crate::mix::OperationKind;
use crate::run::simulation::{MS, RunSimulation, SimulatedRun};

const DURATION_NS: u64 = 2_000 * MS;

/// The printed values by section and name.
fn printed(simulated: &SimulatedRun, options: &OutputOptions) -> BTreeMap<(String, String), u64> {
    let measured =
        MeasuredWindow { by_operation: simulated.merged.by_operation.clone(), ..MeasuredWindow::default() };
    let duration = Duration::from_nanos(DURATION_NS);
    let points = SectionLatencies::from_operations(std::iter::once(simulated.raw.clone()), options, duration);
    let points = options.measurement.needs_points().then_some(&points);
    let facts = RunFacts { particulars: Some(&simulated.particulars), points };
    let whole = |entry: super::exporter::OutputEntry| match entry.value {
        OutputValue::Whole(value) => Some(((entry.metric, entry.measurement), value)),
        _ => None,
    };
    entries(&measured, facts, options).into_iter().filter_map(whole).collect()
}

fn check(simulated: &SimulatedRun) -> Result<(), TestCaseError> {
    let hdr = OutputOptions { intervals: LatencyIntervals::Both, ..OutputOptions::default() };
    let raw = OutputOptions { measurement: MeasurementType::Raw, ..hdr.clone() };
    let (hdr, raw) = (printed(simulated, &hdr), printed(simulated, &raw));
    let timed = |answer: crate::run::raw::RawAnswer| answer != crate::run::raw::RawAnswer::Unstarted;
    let sent = |one: &&crate::run::raw::RawOperation| {
        u64::try_from(one.start_ns).is_ok_and(|ns| ns < DURATION_NS) && timed(one.answer)
    };
    for ((section, measurement), &value) in &hdr {
        let value_of = |figures: &BTreeMap<_, u64>, section: &str, measurement: &str| {
            figures.get(&(section.to_owned(), measurement.to_owned())).copied()
        };
        if measurement != "Operations" || section == "CLEANUP" {
            continue;
        }
        if let Some(actual) = section.strip_prefix("Intended-") {
            prop_assert_eq!(Some(value), value_of(&hdr, actual, "Operations"), "{}", section);
            continue;
        }
        if let Some(well) = value_of(&hdr, section, "Return=OK") {
            prop_assert_eq!(value, well, "{}", section);
        }
        prop_assert_eq!(value, value_of(&raw, section, "Total Operations").unwrap_or(0), "{}", section);
    }
    let reads =
        simulated.raw.iter().filter(sent).filter(|one| one.kind == OperationKind::Read).count() as u64;
    let printed: u64 = ["READ", "READ-FAILED"]
        .iter()
        .filter_map(|section| hdr.get(&((*section).to_owned(), "Operations".to_owned())))
        .sum();
    let parts = simulated.raw.iter().filter(sent).filter(|one| one.kind == OperationKind::ReadModifyWrite);
    prop_assert_eq!(printed, reads + parts.count() as u64);
    Ok(())
}

fn simulation(
    mix: &'static str,
    rate_per_wall_s: Option<f64>,
    threads: u32,
    warmup_ms: u64,
    service_ms: u64,
    odd_each: u64,
) -> RunSimulation {
    RunSimulation {
        mix,
        threads,
        rate_per_wall_s,
        warmup_ns: warmup_ms * MS,
        duration_ns: DURATION_NS,
        ..RunSimulation::new(move |now_ns| {
            // Some take long, some end badly.
            let turn = now_ns / (service_ms * MS);
            let ns = if turn.is_multiple_of(7) { 3 * service_ms * MS } else { service_ms * MS + 1 };
            let answer = match turn % odd_each {
                0 => Ok(OperationOutcome::Missing),
                1 => Ok(OperationOutcome::Throttled),
                2 => Err(ClientError::Timeout(std::time::Duration::from_secs(1))),
                3 => Err(ClientError::System("no".to_owned())),
                _ => Ok(OperationOutcome::Found),
            };
            (ns, answer)
        })
    }
}

proptest! {
    #[test]
    fn counts_agree_wherever_the_edges_fall(
        mix in prop::sample::select(vec!["a", "c", "f"]),
        rate in prop::option::of(5.0..400.0f64),
        threads in 1..5u32,
        warmup_ms in 0..3_000u64,
        service_ms in 1..90u64,
        odd_each in 5..60u64,
    ) {
        check(&simulation(mix, rate, threads, warmup_ms, service_ms, odd_each).run())?;
    }
}

/// A system that serves 50 of 100 operations a second was already a second behind when the measurement began.
#[test]
fn behind_from_before_the_measurement_on() {
    let simulated = simulation("c", Some(100.0), 1, 2_000, 20, u64::MAX).run();
    check(&simulated).unwrap();
    let hdr = OutputOptions { intervals: LatencyIntervals::Both, ..OutputOptions::default() };
    let figures = printed(&simulated, &hdr);
    let operations = figures[&("READ".to_owned(), "Operations".to_owned())];
    assert!(operations > 50, "{operations}");
}
