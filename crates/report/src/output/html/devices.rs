//! The devices' activity.

use maud::{Markup, html};
use underlay_record::{DeviceArrangement, DeviceId, DeviceSample};

use super::charts::{ChartLine, LineChart, thinned};
use super::drawing::{AltText, ChartAxis};
use super::throughput::rate_label;
use super::{OPEN_ROWS, ReportPage, figure, layers, swatch, wear};
use crate::cell::activity::{self, JoinedActivity};
use crate::comparison::{CellResult, ComparisonRow};
use crate::quantity::{self, ABSENT};

pub(super) fn section(page: &ReportPage) -> Option<Markup> {
    if !page
        .comparison
        .cells()
        .any(|result| JoinedActivity::from_records(&result.completed_records()).is_some())
    {
        return None;
    }
    Some(html! {
        p.lead {
            "Requests to the devices in the measured window: the sum over a storage's devices, and for the busy time their mean; devices that "
            "only one role of the system uses are not in it. "
            "Requests differ from operations because caches answer some and a file system or an engine makes several of others."
        }
        (page.legend())
        (page.for_each_mix_of(page.comparison.group_by_mix(), |rows| html! {
            (totals(rows))
            @for row in rows { (each_device(row, rows.len() > 1)) }
            (wear::table(rows))
            (layers::table(rows))
            @for row in rows { (over_time(page, row)) }
        }))
    })
}

/// A line of the table: a storage's devices together, or those of one kind where it has several.
struct DeviceTotalRow<'a> {
    row: &'a ComparisonRow<'a>,
    storage: usize,
    result: &'a CellResult<'a>,
    kind: Option<&'a str>,
    activity: JoinedActivity,
}

fn lines<'a>(rows: &[&'a ComparisonRow<'a>]) -> Vec<DeviceTotalRow<'a>> {
    let mut lines = Vec::new();
    for row in rows {
        for (storage, result) in row.cells.iter().enumerate() {
            let Some(result) = result else { continue };
            let kinds = activity::group_by_kind(&result.completed_records());
            if kinds.len() > 1 {
                lines.extend(kinds.into_iter().map(|(kind, activity)| DeviceTotalRow {
                    row,
                    storage,
                    result,
                    kind: Some(kind),
                    activity,
                }));
            } else if let Some(activity) = JoinedActivity::from_records(&result.completed_records()) {
                lines.push(DeviceTotalRow { row, storage, result, kind: None, activity });
            }
        }
    }
    lines
}

fn totals(rows: &[&ComparisonRow]) -> Markup {
    let has_operations = rows.iter().any(|row| row.is_operations());
    html! {
        div.scroll { table {
            thead { tr {
                @if rows.len() > 1 { th.l { "Workload" } }
                th.l { "Storage" } th { "devices" } th { "reads/s" } th { "writes/s" } th { "flushes/s" }
                th { "read" } th { "written" } th { "mean read" } th { "mean write" } th { "queue depth" } th { "busy" }
                @if has_operations { th { "requests per op" } }
            } }
            tbody {
                @for line in lines(rows) {
                    tr {
                        @if rows.len() > 1 { td.n { (line.row.name_in_mix()) } }
                        th.l scope="row" {
                            (swatch(line.storage)) (line.result.cell.storage)
                            @if let Some(kind) = line.kind { small.below { (kind) } }
                        }
                        (total_fields(&line.activity))
                        @if has_operations { td { (per_operation(&line)) } }
                    }
                }
            }
        } }
    }
}

fn total_fields(activity: &JoinedActivity) -> Markup {
    html! {
        td { (activity.devices) }
        td { (quantity::rate(activity.read_iops)) }
        td { (quantity::rate(activity.write_iops)) }
        td { (quantity::rate(activity.flushes_per_s)) }
        (moved_fields(activity))
    }
}

fn moved_fields(activity: &JoinedActivity) -> Markup {
    let bytes = |value: Option<f64>| value.map_or(ABSENT.to_owned(), quantity::memory);
    html! {
        td { (quantity::bytes(activity.read_bytes_per_s)) "/s" }
        td { (quantity::bytes(activity.write_bytes_per_s)) "/s" }
        td { (bytes(activity.read_bytes)) }
        td { (bytes(activity.write_bytes)) }
        td { (quantity::number(activity.queue_depth, 2)) }
        td { (quantity::percent(activity.busy)) }
    }
}

/// The devices of storages that are not put together to one, and those that roles have for themselves: whether a system
/// uses them alike shows here.
fn each_device(row: &ComparisonRow, is_one_of_several: bool) -> Markup {
    let apart = |result: &CellResult| {
        result.storage().is_some_and(|storage| {
            let has_roles = storage.devices.iter().any(|device| device.id.role.is_some());
            has_roles || (storage.arrangement == Some(DeviceArrangement::Jbod) && storage.devices.len() > 1)
        })
    };
    let lines: Vec<(usize, &CellResult, &DeviceId, JoinedActivity)> = row
        .cells
        .iter()
        .enumerate()
        .filter_map(|(index, result)| Some((index, result.as_ref().filter(|result| apart(result))?)))
        .flat_map(|(index, result)| {
            activity::group_by_device(&result.completed_records())
                .into_iter()
                .map(move |(device, one)| (index, result, device, one))
        })
        .collect();
    html! {
        @if !lines.is_empty() {
            details {
                summary { "Each device" @if is_one_of_several { ", " (row.name_in_mix()) } }
                div.scroll { table {
                    thead { tr {
                        th.l { "Storage" } th.l { "Device" } th { "read" } th { "written" } th { "mean read" } th { "mean write" }
                        th { "queue depth" } th { "busy" }
                    } }
                    tbody {
                        @for (index, result, device, one) in &lines {
                            tr {
                                th.l scope="row" { (swatch(*index)) (result.cell.storage) }
                                td.l { (device.to_string()) }
                                (moved_fields(one))
                            }
                        }
                    }
                } }
            }
        }
    }
}

fn per_operation(line: &DeviceTotalRow) -> String {
    let requests = line.activity.read_iops + line.activity.write_iops;
    line.result
        .figures()
        .filter(|figures| figures.throughput_per_s.value > 0.0)
        .map_or(ABSENT.to_owned(), |figures| quantity::number(requests / figures.throughput_per_s.value, 2))
}

/// The devices' traces over time: (name, y title, value of one device, whether devices add up, label).
type DeviceTrace = (&'static str, &'static str, fn(&DeviceSample) -> f64, bool, fn(f64) -> String);

const TRACES: [DeviceTrace; 4] = [
    ("Requests", "IOPS", |sample| sample.read_iops + sample.write_iops, true, rate_label),
    (
        "Bandwidth",
        "bytes/s",
        |sample| sample.read_bytes_per_s + sample.write_bytes_per_s,
        true,
        quantity::bytes,
    ),
    ("Queue depth", "in flight", |sample| sample.queue_depth, true, |depth| quantity::number(depth, 2)),
    ("Busy time", "share of time", |sample| sample.busy, false, quantity::percent),
];

fn over_time(page: &ReportPage, row: &ComparisonRow) -> Markup {
    html! {
        div.charts.four { @for trace in TRACES { (trace_picture(page, row, trace)) } }
    }
}

fn trace_picture(
    page: &ReportPage,
    row: &ComparisonRow,
    (name, y_title, pick, is_sum, label): DeviceTrace,
) -> Markup {
    let most_points = if page.comparison.rows.len() > OPEN_ROWS { 50 } else { 120 };
    let mut lines = Vec::new();
    for (series, result) in row.cells.iter().enumerate() {
        let Some(result) = result else { continue };
        // Of the first completed repetition.
        let devices = result
            .completed()
            .map(|record| activity::under_test(record).collect::<Vec<_>>())
            .find(|devices| !devices.is_empty());
        let Some(devices) = devices else { continue };
        let length = devices.iter().map(|device| device.series.len()).min().unwrap_or(0);
        let divisor = if is_sum { 1.0 } else { devices.len() as f64 };
        let points: Vec<(f64, f64)> = (0..length)
            .map(|index| {
                let sum: f64 = devices.iter().map(|device| pick(&device.series[index])).sum();
                (devices[0].series[index].t_s, sum / divisor)
            })
            .collect();
        if !points.is_empty() {
            let name = Some(page.comparison.storages[series].to_owned());
            lines.push(ChartLine { series, name, points: thinned(&points, most_points) });
        }
    }
    let last = lines.iter().flat_map(|line| &line.points).map(|point| point.0).fold(0.0, f64::max);
    if last <= 0.0 {
        return html! {};
    }
    let caption = ReportPage::caption(row, name);
    let values = lines.iter().flat_map(|line| &line.points).map(|point| point.1);
    let highest = values.clone().fold(0.0, f64::max);
    let typical_low = lines
        .iter()
        .map(|line| line.points.iter().map(|point| point.1).sum::<f64>() / line.points.len() as f64)
        .filter(|mean| *mean > 0.0)
        .fold(f64::INFINITY, f64::min);
    let is_log = is_sum && highest > 8.0 * typical_low && values.clone().all(|value| value > 0.0);
    let svg = LineChart {
        words: AltText { title: &caption, description: "One line a storage, over the measured time." },
        y_title: &if is_log { format!("{y_title}, logarithmic") } else { y_title.to_owned() },
        x_title: "seconds",
        lines: &lines,
        x: ChartAxis { low: 0.0, high: last, is_log: false },
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
