//! What the devices did.

use maud::{Markup, html};
use underlay_record::{DeviceActivity, DeviceSample};

use super::charts::{Line, Lines, thinned};
use super::drawing::{Axis, Words};
use super::throughput::rate_label;
use super::{OPEN_ROWS, Page, figure, layers, swatch, wear};
use crate::comparison::{CellResult, Row};
use crate::quantity::{self, ABSENT};

/// A cell's devices taken together, over all completed repetitions: rates of all, means of one.
struct Activity {
    devices: usize,
    read_iops: f64,
    write_iops: f64,
    read_bytes_per_s: f64,
    write_bytes_per_s: f64,
    /// Bytes of a read and of a write, on average.
    read_bytes: Option<f64>,
    write_bytes: Option<f64>,
    flushes_per_s: f64,
    /// Of all devices together.
    queue_depth: f64,
    /// Mean over the devices, 0 to 1.
    busy: f64,
}

impl Activity {
    fn of(result: &CellResult) -> Option<Activity> {
        let devices: Vec<&DeviceActivity> = result
            .records
            .iter()
            .filter(|record| record.measured.is_some())
            .flat_map(|record| &record.devices)
            .filter(|device| device.duration_s > 0.0)
            .collect();
        let repetitions = result.records.iter().filter(|record| !record.devices.is_empty()).count().max(1);
        let device_s: f64 = devices.iter().map(|device| device.duration_s).sum();
        if device_s <= 0.0 {
            return None;
        }
        let count = devices.len() as f64 / repetitions as f64;
        let sum = |pick: fn(&DeviceActivity) -> f64| devices.iter().map(|device| pick(device)).sum::<f64>();
        let rate = |pick: fn(&DeviceActivity) -> f64| sum(pick) / device_s * count;
        let reads = sum(|device| device.totals.reads as f64);
        let writes = sum(|device| device.totals.writes as f64);
        Some(Activity {
            devices: count.round() as usize,
            read_iops: rate(|device| device.totals.reads as f64),
            write_iops: rate(|device| device.totals.writes as f64),
            read_bytes_per_s: rate(|device| device.totals.read_bytes as f64),
            write_bytes_per_s: rate(|device| device.totals.write_bytes as f64),
            read_bytes: (reads > 0.0).then(|| sum(|device| device.totals.read_bytes as f64) / reads),
            write_bytes: (writes > 0.0).then(|| sum(|device| device.totals.write_bytes as f64) / writes),
            flushes_per_s: rate(|device| device.totals.flushes as f64),
            queue_depth: rate(|device| device.totals.queue_us / 1e6),
            busy: sum(|device| device.totals.busy_us / 1e6) / device_s,
        })
    }
}

pub fn section(page: &Page) -> Option<Markup> {
    if !page.comparison.cells().any(|result| Activity::of(result).is_some()) {
        return None;
    }
    Some(html! {
        p.lead {
            "What reached the devices while it was measured: the sum over a storage's devices, and for the busy time their mean. "
            "Requests differ from operations because caches answer some and a file system or an engine makes several of others."
        }
        (page.legend())
        (page.for_each_mix(|rows| html! {
            (totals(rows))
            (wear::table(rows))
            (layers::table(rows))
            @for row in rows { (over_time(page, row)) }
        }))
    })
}

fn totals(rows: &[&Row]) -> Markup {
    html! {
        div.scroll { table {
            thead { tr {
                @if rows.len() > 1 { th.l { "Workload" } }
                th.l { "Storage" } th { "devices" } th { "reads/s" } th { "writes/s" } th { "flushes/s" }
                th { "read" } th { "written" } th { "mean read" } th { "mean write" } th { "queue depth" } th { "busy" }
                th { "requests per op" }
            } }
            tbody {
                @for row in rows {
                    @for (index, result) in row.cells.iter().enumerate() {
                        @if let Some((result, activity)) = result.as_ref().and_then(|one| Some((one, Activity::of(one)?))) {
                            tr {
                                @if rows.len() > 1 { td.l { (row.name_in_mix()) } }
                                th.l scope="row" { (swatch(index)) (result.cell.storage) }
                                (total_fields(result, &activity))
                            }
                        }
                    }
                }
            }
        } }
    }
}

fn total_fields(result: &CellResult, activity: &Activity) -> Markup {
    let bytes = |value: Option<f64>| value.map_or(ABSENT.to_owned(), quantity::memory);
    let requests = activity.read_iops + activity.write_iops;
    let per_operation = result
        .figures()
        .filter(|figures| figures.throughput_per_s.value > 0.0)
        .map_or(ABSENT.to_owned(), |figures| quantity::number(requests / figures.throughput_per_s.value, 2));
    html! {
        td { (activity.devices) }
        td { (quantity::rate(activity.read_iops)) }
        td { (quantity::rate(activity.write_iops)) }
        td { (quantity::rate(activity.flushes_per_s)) }
        td { (quantity::bytes(activity.read_bytes_per_s)) "/s" }
        td { (quantity::bytes(activity.write_bytes_per_s)) "/s" }
        td { (bytes(activity.read_bytes)) }
        td { (bytes(activity.write_bytes)) }
        td { (quantity::number(activity.queue_depth, 2)) }
        td { (quantity::percent(activity.busy)) }
        td { (per_operation) }
    }
}

/// What is drawn of the devices over time: (name, y title, value of one device, whether devices add up, label).
type Trace = (&'static str, &'static str, fn(&DeviceSample) -> f64, bool, fn(f64) -> String);

const TRACES: [Trace; 4] = [
    ("Requests", "IOPS", |sample| sample.read_iops + sample.write_iops, true, rate_label),
    (
        "Bandwidth",
        "bytes/s",
        |sample| sample.read_bytes_per_s + sample.write_bytes_per_s,
        true,
        quantity::bytes,
    ),
    (
        "Queue depth",
        "requests under way",
        |sample| sample.queue_depth,
        true,
        |depth| quantity::number(depth, 2),
    ),
    ("Busy time", "share of time", |sample| sample.busy, false, quantity::percent),
];

fn over_time(page: &Page, row: &Row) -> Markup {
    html! {
        div.charts.four { @for trace in TRACES { (trace_picture(page, row, trace)) } }
    }
}

fn trace_picture(page: &Page, row: &Row, (name, y_title, pick, is_sum, label): Trace) -> Markup {
    let most_points = if page.comparison.rows.len() > OPEN_ROWS { 50 } else { 120 };
    let mut lines = Vec::new();
    for (series, result) in row.cells.iter().enumerate() {
        let Some(result) = result else { continue };
        // Of the first completed repetition.
        let Some(record) =
            result.records.iter().find(|one| one.measured.is_some() && !one.devices.is_empty())
        else {
            continue;
        };
        let length = record.devices.iter().map(|device| device.series.len()).min().unwrap_or(0);
        let divisor = if is_sum { 1.0 } else { record.devices.len() as f64 };
        let points: Vec<(f64, f64)> = (0..length)
            .map(|index| {
                let sum: f64 = record.devices.iter().map(|device| pick(&device.series[index])).sum();
                (record.devices[0].series[index].t_s, sum / divisor)
            })
            .collect();
        if !points.is_empty() {
            let name = Some(page.comparison.storages[series].to_owned());
            lines.push(Line { series, name, points: thinned(&points, most_points) });
        }
    }
    let last = lines.iter().flat_map(|line| &line.points).map(|point| point.0).fold(0.0, f64::max);
    if last <= 0.0 {
        return html! {};
    }
    let caption = Page::caption(row, name);
    let values = lines.iter().flat_map(|line| &line.points).map(|point| point.1);
    let highest = values.clone().fold(0.0, f64::max);
    let typical_low = lines
        .iter()
        .map(|line| line.points.iter().map(|point| point.1).sum::<f64>() / line.points.len() as f64)
        .filter(|mean| *mean > 0.0)
        .fold(f64::INFINITY, f64::min);
    let is_log = is_sum && highest > 30.0 * typical_low && values.clone().all(|value| value > 0.0);
    let svg = Lines {
        words: Words { title: &caption, description: "One line a storage, over the measured time." },
        y_title: &if is_log { format!("{y_title}, logarithmic") } else { y_title.to_owned() },
        x_title: "seconds",
        lines: &lines,
        x: Axis { low: 0.0, high: last, is_log: false },
        x_ticks: Vec::new(),
        is_log,
        y_high: (!is_sum).then_some(1.0),
        width: 520,
        height: 200,
        label: &label,
    }
    .draw();
    figure(&caption, svg)
}
