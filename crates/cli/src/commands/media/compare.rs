//! `underlay media compare`: media side by side under the same loads, in virtual time.

use std::process::ExitCode;

use comfy_table::{Cell, CellAlignment, Table, presets};
use underlay_report::html::curves::{CurveLine, CurvePage, CurveSection};
use underlay_report::quantity;
use underlay_storage::catalogue::{CatalogueMedium, LoadMeasurement};
use underlay_storage::predict::curves::{CurvePoint, STANDARD_LOADS, StandardLoad, load_curve};
use underlay_storage::predict::paced::{PacedPrediction, play_measured};

use super::serve;
use crate::arguments::CompareMediaArguments;
use crate::commands::report;
use crate::exit_codes::ExitFailure;
use crate::output;

const SEED: u64 = 7;
/// Of modelled time, for each measured load: enough for a p99 of 5,000 requests a second.
const MEASURED_LOAD_SECONDS: f64 = 2.0;
/// The quantiles of measured loads that are shown.
const SHOWN_QUANTILES: [(f64, &str); 3] = [(0.5, "p50"), (0.99, "p99"), (0.999, "p99.9")];

/// Every medium under one standard load, in the order of the command line.
struct LoadComparison<'a> {
    load: &'a StandardLoad,
    curves: Vec<Vec<CurvePoint>>,
}

/// Every medium under the load of a `[[measured]]` row, and the rows of those that were measured under it.
struct MeasuredComparison<'a> {
    row: &'a LoadMeasurement,
    answers: Vec<(PacedPrediction, Option<&'a LoadMeasurement>)>,
}

pub(crate) fn compare(arguments: &CompareMediaArguments) -> Result<ExitCode, ExitFailure> {
    let media: Vec<CatalogueMedium> =
        arguments.media.iter().map(|text| serve::medium_of(text)).collect::<Result<_, _>>()?;
    for (index, medium) in media.iter().enumerate() {
        if media[..index].iter().any(|earlier| earlier.name == medium.name) {
            return Err(ExitFailure::Mistake(format!(
                "{} is there twice: name different media, or give one of the files another `name`",
                medium.name
            )));
        }
    }
    let loads = run_standard_loads(&media);
    let measured = run_measured_loads(&media);
    output::print(&terminal_text(&media, &loads, &measured));
    if let Some(place) = &arguments.html {
        let written =
            report::write(place, &underlay_report::html::curves::render(&page(&media, &loads, &measured)))?;
        output::print(&format!("curves   {}", written.display()));
    }
    Ok(ExitCode::SUCCESS)
}

/// Each medium on a thread of its own: they share nothing.
fn for_each_medium<T: Send>(
    media: &[CatalogueMedium],
    answer: impl Fn(&CatalogueMedium) -> T + Sync,
) -> Vec<T> {
    let answer = &answer;
    std::thread::scope(|scope| {
        let threads: Vec<_> = media.iter().map(|medium| scope.spawn(move || answer(medium))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, T>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    })
}

fn run_standard_loads(media: &[CatalogueMedium]) -> Vec<LoadComparison<'static>> {
    let run = |load: &'static StandardLoad| LoadComparison {
        load,
        curves: for_each_medium(media, |medium| load_curve(medium, load, SEED)),
    };
    STANDARD_LOADS.iter().map(run).collect()
}

fn is_same_load(row: &LoadMeasurement, other: &LoadMeasurement) -> bool {
    let load = |row: &LoadMeasurement| {
        (
            row.block_bytes,
            [row.probe_per_s, row.probe_read_percent, row.background_per_s, row.background_read_percent],
            row.background_streams,
            row.most_under_way,
        )
    };
    load(row) == load(other)
}

fn run_measured_loads(media: &[CatalogueMedium]) -> Vec<MeasuredComparison<'_>> {
    let mut rows: Vec<&LoadMeasurement> = Vec::new();
    for row in media.iter().flat_map(|medium| &medium.measured) {
        if !rows.iter().any(|earlier| is_same_load(earlier, row)) {
            rows.push(row);
        }
    }
    rows.sort_by(|row, other| row.offered_per_s().total_cmp(&other.offered_per_s()));
    let run = |row| {
        let answers =
            for_each_medium(media, |medium| play_measured(medium, row, MEASURED_LOAD_SECONDS, SEED));
        let own_row =
            |medium: &'_ CatalogueMedium| medium.measured.iter().position(|own| is_same_load(own, row));
        let own_rows = media.iter().map(|medium| own_row(medium).map(|place| &medium.measured[place]));
        MeasuredComparison { row, answers: answers.into_iter().zip(own_rows).collect() }
    };
    rows.into_iter().map(run).collect()
}

fn load_title(load: &StandardLoad) -> String {
    format!("{} of {} KiB", load.pattern.name(), load.block_bytes / 1024)
}

fn measured_title(row: &LoadMeasurement) -> String {
    format!(
        "mixed load, {} requests/s offered, of these {} writes",
        quantity::number(row.offered_per_s(), 3),
        quantity::number(row.offered_writes_per_s(), 3)
    )
}

const CURVE_COLUMNS: [&str; 7] = ["medium", "queue depth", "requests/s", "MB/s", "mean", "p99", "ratio"];

/// The baseline's row has no ratio.
fn curve_rows(media: &[CatalogueMedium], compared: &LoadComparison<'_>) -> Vec<[String; 7]> {
    let mut rows = Vec::new();
    for (place, &queue_depth) in compared.load.queue_depths.iter().enumerate() {
        for (index, (medium, curve)) in media.iter().zip(&compared.curves).enumerate() {
            let (point, baseline) = (&curve[place], &compared.curves[0][place]);
            rows.push([
                medium.name.clone(),
                queue_depth.to_string(),
                quantity::rate(point.iops),
                quantity::number(point.mb_s, 3),
                quantity::latency(point.mean_us),
                quantity::latency(point.p99_us),
                if index == 0 { String::new() } else { quantity::ratio(point.iops / baseline.iops) },
            ]);
        }
    }
    rows
}

/// Percentiles stand behind the kind of request that they are of.
const MEASURED_COLUMNS: [&str; 9] =
    ["medium", "", "writes/s", "read p50", "p99", "p99.9", "write p50", "p99", "p99.9"];

/// A row of the model's, and one of what was measured where the medium has it.
fn measured_rows(media: &[CatalogueMedium], compared: &MeasuredComparison<'_>) -> Vec<[String; 9]> {
    let show = |us: Option<f64>| us.map_or_else(|| quantity::ABSENT.to_owned(), quantity::latency);
    let mut rows = Vec::new();
    for (medium, (answer, own_row)) in media.iter().zip(&compared.answers) {
        let modelled = [&answer.reads, &answer.writes].map(|latency| {
            SHOWN_QUANTILES.map(|(share, _)| show((latency.count() > 0).then(|| latency.quantile_us(share))))
        });
        let [[a, b, c], [d, e, f]] = modelled;
        let writes = quantity::rate(answer.writes_per_s);
        rows.push([medium.name.clone(), "modelled".into(), writes, a, b, c, d, e, f]);
        if let Some(row) = own_row {
            let [[a, b, c], [d, e, f]] = [&row.read_us, &row.write_us]
                .map(|quantiles| SHOWN_QUANTILES.map(|(share, _)| show(latency_us_at(quantiles, share))));
            let writes = quantity::rate(row.writes_per_s);
            rows.push([String::new(), "measured".into(), writes, a, b, c, d, e, f]);
        }
    }
    rows
}

/// What was measured of a share; rows have some shares only.
fn latency_us_at(quantiles: &[(f64, f64)], share: f64) -> Option<f64> {
    quantiles.iter().find(|(other, _)| (other - share).abs() < 1e-9).map(|(_, latency_us)| *latency_us)
}

fn table<const N: usize>(head: [&str; N], rows: Vec<[String; N]>, words: usize) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let aligned = |(index, text): (usize, String)| {
        let alignment = if index < words { CellAlignment::Left } else { CellAlignment::Right };
        Cell::new(text).set_alignment(alignment)
    };
    table.set_header(head.map(str::to_owned).into_iter().enumerate().map(aligned));
    for row in rows {
        table.add_row(row.into_iter().enumerate().map(aligned));
    }
    output::table(&table)
}

fn terminal_text(
    media: &[CatalogueMedium],
    loads: &[LoadComparison<'_>],
    measured: &[MeasuredComparison<'_>],
) -> String {
    let mut text = String::new();
    for medium in media {
        text.push_str(&format!("{}: {}, figures {}\n", medium.name, medium.title, medium.label.name()));
    }
    for compared in loads {
        let rows = table(CURVE_COLUMNS, curve_rows(media, compared), 1);
        text.push_str(&format!("\n{}\n{rows}\n", load_title(compared.load)));
    }
    for compared in measured {
        let rows = table(MEASURED_COLUMNS, measured_rows(media, compared), 2);
        text.push_str(&format!("\n{}\n{rows}\n", measured_title(compared.row)));
    }
    text
}

/// `Most random reads of 4 KiB: nvme-p4500, 489,000 requests/s.`
fn fastest(media: &[CatalogueMedium], compared: &LoadComparison<'_>) -> String {
    let most = |curve: &Vec<CurvePoint>| curve.iter().map(|point| point.iops).fold(0.0, f64::max);
    let best = media.iter().zip(compared.curves.iter().map(most)).max_by(|a, b| a.1.total_cmp(&b.1));
    best.map_or_else(String::new, |(medium, iops)| {
        format!("Most {}: {}, {} requests/s.", load_title(compared.load), medium.name, quantity::rate(iops))
    })
}

fn page(
    media: &[CatalogueMedium],
    loads: &[LoadComparison<'_>],
    measured: &[MeasuredComparison<'_>],
) -> CurvePage {
    let names: Vec<String> = media.iter().map(|medium| medium.name.clone()).collect();
    let rows = |head: &[&str], rows: Vec<Vec<String>>| -> Vec<Vec<String>> {
        std::iter::once(head.iter().map(|&name| name.to_owned()).collect()).chain(rows).collect()
    };
    let mut sections: Vec<CurveSection> = Vec::new();
    for compared in loads {
        let line = |(series, (name, curve)): (usize, (&String, &Vec<CurvePoint>))| CurveLine {
            series,
            name: name.clone(),
            points: curve.iter().map(|point| (point.iops, point.mean_us)).collect(),
        };
        sections.push(CurveSection {
            title: load_title(compared.load),
            lead:
                "Mean latency over throughput, as the queue gets deeper. Further right and lower is better."
                    .into(),
            x_title: "requests per second".into(),
            x_is_latency: false,
            lines: names.iter().zip(&compared.curves).enumerate().map(line).collect(),
            table: rows(&CURVE_COLUMNS, curve_rows(media, compared).into_iter().map(Vec::from).collect()),
        });
    }
    // The measured line has the colour of its medium's modelled one.
    for (title, is_read, (share, quantile)) in [
        ("reads under mixed loads, p50", true, SHOWN_QUANTILES[0]),
        ("reads under mixed loads, p99", true, SHOWN_QUANTILES[1]),
        ("writes under mixed loads, p99", false, SHOWN_QUANTILES[1]),
    ] {
        if measured.len() < 2 {
            break;
        }
        let mut lines = Vec::new();
        for (series, name) in names.iter().enumerate() {
            let (mut modelled_points, mut measured_points) = (Vec::new(), Vec::new());
            for compared in measured {
                let (answer, own_row) = &compared.answers[series];
                let offered_per_s = compared.row.offered_per_s();
                let latency = if is_read { &answer.reads } else { &answer.writes };
                if latency.count() > 0 {
                    modelled_points.push((offered_per_s, latency.quantile_us(share)));
                }
                let own = own_row.map(|row| if is_read { &row.read_us } else { &row.write_us });
                let own_us = own.and_then(|quantiles| latency_us_at(quantiles, share));
                measured_points.extend(own_us.map(|us| (offered_per_s, us)));
            }
            lines.push(CurveLine { series, name: name.clone(), points: modelled_points });
            if !measured_points.is_empty() {
                lines.push(CurveLine { series, name: "measured".into(), points: measured_points });
            }
        }
        let all = measured.iter().flat_map(|compared| {
            let offered = quantity::number(compared.row.offered_per_s(), 3);
            measured_rows(media, compared)
                .into_iter()
                .map(move |row| std::iter::once(offered.clone()).chain(row).collect::<Vec<String>>())
        });
        let head: Vec<&str> = std::iter::once("offered/s").chain(MEASURED_COLUMNS).collect();
        // All three quantiles are in one table.
        let is_first = sections.len() == loads.len();
        sections.push(CurveSection {
            title: title.into(),
            lead: format!("The {quantile} over the rate that is offered. Lower is better."),
            x_title: "requests per second offered".into(),
            x_is_latency: false,
            lines,
            table: if is_first { rows(&head, all.collect()) } else { Vec::new() },
        });
    }
    CurvePage {
        title: format!("{} side by side", quantity::list(&names, 6)),
        answer: loads.iter().map(|compared| fastest(media, compared)).collect::<Vec<_>>().join(" "),
        series: names,
        sections,
        notes: vec![
            media
                .iter()
                .map(|medium| format!("{}: {}, figures {}.", medium.name, medium.title, medium.label.name()))
                .collect::<Vec<_>>()
                .join(" "),
            "Each load keeps a number of requests in flight. Flash is full and overwritten before random writes, and \
             volumes have no credits left."
                .into(),
            "Mixed loads are those under which a medium's `[[measured]]` rows were measured.".into(),
        ],
    }
}
