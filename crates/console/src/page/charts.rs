//! A run over time: all charts have one time axis, and each has a table of its latest values beside it.

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};
use underlay_record::{DeviceId, LayerActivity, LiveDevice, LiveSample};
use underlay_report::html::time_chart::{TimeChart, TimeLine, TimeMark, TimeShade};
use underlay_report::quantity;

use super::ChartSpan;
use super::words::{moment, not_shown, ticks};
use crate::feed::{EventKind, HistoryEvent, RunHistory, SampleMoment, bare};
use crate::hub::FollowedRun;

/// A chart: what its element is called, its title, and what it shows.
struct HistoryChart {
    id: &'static str,
    title: &'static str,
    /// Empty where labels have units, for which there is no room beside it.
    y_title: &'static str,
    lines: fn(&[&SampleMoment]) -> ChartLines,
    label: fn(f64) -> String,
    /// Its figures are in modelled time, so that those of a phase in which devices take none compare with nothing.
    is_modelled: bool,
    /// Its lines may be of unlike units or sizes: those of a kind have an axis of their own.
    is_mixed: bool,
    /// One end of its axis is known: a share.
    is_share: bool,
    is_log: bool,
}

/// The lines of a chart, and how many more there would be.
struct ChartLines {
    lines: Vec<TimeLine>,
    left_out: usize,
}

impl From<Vec<TimeLine>> for ChartLines {
    fn from(lines: Vec<TimeLine>) -> ChartLines {
        ChartLines { lines, left_out: 0 }
    }
}

impl ChartLines {
    fn has_any(&self) -> bool {
        self.lines.iter().any(|line| !line.is_empty())
    }
}

const CHARTS: [HistoryChart; 13] = [
    HistoryChart {
        id: "throughput",
        title: "Throughput",
        y_title: "ops/s",
        lines: |all| {
            vec![line(all, 1, "ops/s", |sample| sample.load.map(|load| load.throughput_per_s))].into()
        },
        label: quantity::rate,
        is_modelled: true,
        is_mixed: false,
        is_share: false,
        is_log: false,
    },
    HistoryChart {
        id: "progress",
        title: "Progress that the benchmark prints",
        y_title: "",
        lines: printed,
        label: |value| quantity::number(value, 3),
        is_modelled: true,
        is_mixed: true,
        is_share: false,
        is_log: false,
    },
    HistoryChart {
        id: "latency",
        title: "Latency of operations",
        y_title: "logarithmic",
        lines: |all| {
            vec![
                line(all, 0, "mean", |sample| latency(sample.load.map(|load| load.mean_us))),
                line(all, 1, "p50", |sample| latency(sample.load.map(|load| load.p50_us))),
                line(all, 2, "p99", |sample| latency(sample.load.map(|load| load.p99_us))),
            ]
            .into()
        },
        label: quantity::latency,
        is_modelled: true,
        is_mixed: false,
        is_share: false,
        is_log: true,
    },
    HistoryChart {
        id: "iops",
        title: "Requests at the devices",
        y_title: "IOPS",
        lines: |all| build_device_lines(all, |device| Some(device.read_iops + device.write_iops)),
        label: quantity::rate,
        is_modelled: true,
        is_mixed: false,
        is_share: false,
        is_log: false,
    },
    HistoryChart {
        id: "bandwidth",
        title: "Bandwidth of the devices",
        y_title: "",
        lines: |all| {
            build_device_lines(all, |device| Some(device.read_bytes_per_s + device.write_bytes_per_s))
        },
        label: |value| format!("{}/s", quantity::bytes(value)),
        is_modelled: true,
        is_mixed: false,
        is_share: false,
        is_log: false,
    },
    HistoryChart {
        id: "depth",
        title: "Queue depth of the devices",
        y_title: "requests",
        lines: |all| build_device_lines(all, |device| Some(device.queue_depth)),
        label: |value| quantity::number(value, 2),
        is_modelled: true,
        is_mixed: false,
        is_share: false,
        is_log: false,
    },
    HistoryChart {
        id: "fidelity",
        title: "Device latency: modelled and delivered",
        y_title: "mean",
        lines: |all| {
            vec![
                line(all, 1, "modelled", |sample| mean_of(sample, |device| device.modelled_us)),
                line(all, 2, "delivered", |sample| mean_of(sample, |device| device.delivered_us)),
            ]
            .into()
        },
        label: quantity::latency,
        is_modelled: true,
        is_mixed: false,
        is_share: false,
        is_log: false,
    },
    HistoryChart {
        id: "device-p50",
        title: "Device latency, p50: modelled (m) and delivered (d)",
        y_title: "logarithmic",
        lines: |all| build_paired_device_lines(all, |one| one.modelled_p50_us, |one| one.delivered_p50_us),
        label: quantity::latency,
        is_modelled: true,
        is_mixed: false,
        is_share: false,
        is_log: true,
    },
    HistoryChart {
        id: "device-p99",
        title: "Device latency, p99: modelled (m) and delivered (d)",
        y_title: "logarithmic",
        lines: |all| build_paired_device_lines(all, |one| one.modelled_p99_us, |one| one.delivered_p99_us),
        label: quantity::latency,
        is_modelled: true,
        is_mixed: false,
        is_share: false,
        is_log: true,
    },
    HistoryChart {
        id: "hits",
        title: "Hit rates of layers",
        y_title: "share",
        lines: hit_rates,
        label: quantity::percent,
        is_modelled: false,
        is_mixed: false,
        is_share: true,
        is_log: false,
    },
    HistoryChart {
        id: "cpu",
        title: "CPU of the system",
        y_title: "CPUs",
        lines: |all| {
            vec![
                line(all, 1, "used", |sample| sample.budget.and_then(|budget| budget.cpu_used)),
                line(all, 0, "budget", |sample| sample.budget.and_then(|budget| budget.cpu_budget)),
            ]
            .into()
        },
        label: |value| quantity::number(value, 2),
        is_modelled: false,
        is_mixed: false,
        is_share: false,
        is_log: false,
    },
    HistoryChart {
        id: "memory",
        title: "Memory of the system, page cache included",
        y_title: "",
        // In MiB, so that the axis has round ones.
        lines: |all| {
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            vec![
                line(all, 1, "used", |sample| {
                    sample.budget.and_then(|budget| budget.memory_used_bytes).map(mib)
                }),
                line(all, 0, "budget", |sample| sample.budget.map(|budget| mib(budget.memory_budget_bytes))),
            ]
            .into()
        },
        label: |value| format!("{} MiB", quantity::number(value, 2)),
        is_modelled: false,
        is_mixed: false,
        is_share: false,
        is_log: false,
    },
    HistoryChart {
        id: "background",
        title: "The system's own work",
        y_title: "count",
        lines: gauges,
        label: |value| quantity::number(value, 3),
        is_modelled: false,
        is_mixed: true,
        is_share: false,
        is_log: false,
    },
];

/// Lines of one chart; the table has as many, and the API has all.
const MAX_LINES: usize = 7;
/// Devices of which the busiest are sought.
const MAX_DEVICES: usize = 256;
/// Devices of a chart that has two lines for each.
const MAX_PAIRS: usize = 3;
/// Points of a line that is drawn.
const MAX_POINTS: usize = 240;
/// In a chart.
const MAX_MARKS: usize = 9;
/// Events no further apart have one mark.
const TOGETHER_S: f64 = 1.0;
/// Rows of a table.
const ROWS: usize = 12;
/// Lines that are so many times as high as others would press those to the ground.
const UNLIKE: f64 = 50.0;
/// Pictures of one chart.
const MAX_GROUPS: usize = 3;
/// Units at the end of figures' names.
const UNITS: [&str; 9] = ["entries", "files", "tps", "running", "ms", "us", "s", "percent", "share"];

/// All charts with their tables, each in an element that may get another content later.
pub(super) fn frames(piece: &dyn Fn(&str) -> Markup) -> Markup {
    html! {
        div.charts.live {
            @for chart in &CHARTS {
                @let (picture, table) = (format!("c-{}", chart.id), format!("t-{}", chart.id));
                figure {
                    figcaption { (chart.title) }
                    div.picture id=(picture) tabindex="0" role="region" aria-label=(chart.title) { (piece(&picture)) }
                    details {
                        summary { "As a table" }
                        div.scroll id=(table) tabindex="0" role="region" aria-label={ (chart.title) " as a table" } { (piece(&table)) }
                    }
                }
            }
        }
        div #c-marks { (piece("c-marks")) }
    }
}

/// The charts of a whole run that have anything to show, with their titles.
pub(super) fn pictures(run: &FollowedRun) -> Vec<(&'static str, Markup)> {
    let pieces = fragments(run, ChartSpan::All);
    let picture = |chart: &HistoryChart| {
        let (_, markup) = pieces.iter().find(|(id, _)| *id == format!("c-{}", chart.id))?;
        markup.0.starts_with("<svg").then(|| (chart.title, markup.clone()))
    };
    CHARTS.iter().filter_map(picture).collect()
}

/// Every chart and its table.
pub(super) fn fragments(run: &FollowedRun, span: ChartSpan) -> Vec<(String, Markup)> {
    let history = &run.watched.history;
    let to_s = history.latest().map_or(run.watched.last_s, |latest| latest.at_s);
    let first_s = history.moments().first().map_or(to_s, |first| first.at_s);
    // A chart that has just begun is not stretched over a few seconds.
    let from_s = (to_s - span.seconds()).max(first_s).min(to_s - 20.0);
    let moments = history.moments_since(from_s);
    let (marks, marks_text) = marks(run, from_s);
    let shades = shades(moments);
    let shown = ShownMoments::from_moments(moments);
    let mut pieces = Vec::new();
    for chart in &CHARTS {
        let ChartLines { mut lines, left_out } = (chart.lines)(shown.select_for_chart(chart));
        lines.retain(|line| !line.is_empty());
        let (picture, table) = match lines.is_empty() {
            true => (render_empty(chart, history), html! {}),
            false => {
                let drawn = ChartLines { lines: lines.clone(), left_out };
                (draw(chart, drawn, &marks, &shades, (from_s, to_s)), table(chart.label, &lines))
            }
        };
        pieces.push((format!("c-{}", chart.id), picture));
        pieces.push((format!("t-{}", chart.id), table));
    }
    pieces.push(("c-marks".to_owned(), marks_text));
    pieces
}

/// A chart that has had no figures at all takes no room.
fn render_empty(chart: &HistoryChart, history: &RunHistory) -> Markup {
    let all: Vec<&SampleMoment> = history.moments().iter().collect();
    html! {
        @if (chart.lines)(&all).has_any() { p.muted.small.none { "No figures in this time." } }
        @else { p.muted.small.none.never { "No figures yet." } }
    }
}

/// The moments that charts show: some leave out those in which devices took no modelled time.
struct ShownMoments<'a> {
    all: Vec<&'a SampleMoment>,
    measured: Vec<&'a SampleMoment>,
}

impl<'a> ShownMoments<'a> {
    fn from_moments(moments: &'a [SampleMoment]) -> ShownMoments<'a> {
        let measured = moments.iter().filter(|moment| !moment.sample.preparing).collect();
        ShownMoments { all: moments.iter().collect(), measured }
    }

    fn select_for_chart(&self, chart: &HistoryChart) -> &[&'a SampleMoment] {
        if chart.is_modelled { &self.measured } else { &self.all }
    }
}

/// Times in which caches were filled or data loaded.
fn shades(moments: &[SampleMoment]) -> Vec<TimeShade> {
    let mut shades: Vec<TimeShade> = Vec::new();
    for (place, moment) in moments.iter().enumerate().filter(|(_, moment)| moment.sample.preparing) {
        // Until the next one, which is of what follows: unless nothing was known for a while.
        let until_s = moments.get(place + 1).map_or(moment.at_s, |next| match next.begins {
            true => next.at_s.min(moment.at_s + 2.0),
            false => next.at_s,
        });
        match shades.last_mut().filter(|last| last.to_s >= moment.at_s && !moment.begins) {
            Some(last) => last.to_s = until_s,
            None => shades.push(TimeShade {
                label: moment.sample.phase.clone(),
                from_s: moment.at_s - 1.0,
                to_s: until_s,
            }),
        }
    }
    shades
}

fn draw(
    chart: &HistoryChart,
    ChartLines { lines, left_out }: ChartLines,
    marks: &[TimeMark],
    shades: &[TimeShade],
    (from_s, to_s): (f64, f64),
) -> Markup {
    let mut groups = if chart.is_mixed { group_by_size(lines) } else { vec![lines] };
    let left_out = left_out + groups.iter().skip(MAX_GROUPS).map(Vec::len).sum::<usize>();
    groups.truncate(MAX_GROUPS);
    html! {
        @for lines in groups {
            @let drawn = thinned(&lines);
            @let names: Vec<&str> = lines.iter().map(|line| line.name.as_str()).collect();
            (TimeChart {
                title: chart.title,
                description: &format!("Lines over time: {}. The table below has the values.", names.join(", ")),
                y_title: chart.y_title,
                lines: &drawn,
                marks,
                shades,
                from_s,
                to_s,
                ticks: ticks(from_s, to_s),
                is_log: chart.is_log,
                y_high: chart.is_share.then_some(1.0),
                label: &chart.label,
            }.draw())
        }
        @if left_out > 0 { p.muted.small { "Not drawn: " (quantity::plural(left_out, "further line")) "." } }
    }
}

/// Lines that one axis can show: of one unit, by the end of their names, and of a size.
fn group_by_size(lines: Vec<TimeLine>) -> Vec<Vec<TimeLine>> {
    let high = |line: &TimeLine| line.points().map(|point| point.1).fold(0.0, f64::max);
    let mut sorted: Vec<(f64, TimeLine)> = lines.into_iter().map(|line| (high(&line), line)).collect();
    sorted.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut groups: Vec<(f64, &'static str, Vec<TimeLine>)> = Vec::new();
    for (high, line) in sorted {
        let unit = unit_of(&line.name);
        let fits = groups.iter().position(|(largest, other, _)| *other == unit && largest / high <= UNLIKE);
        match fits {
            Some(place) => groups[place].2.push(line),
            None => groups.push((high, unit, vec![line])),
        }
    }
    groups.into_iter().map(|(_, _, lines)| lines).collect()
}

/// A gauge's unit, from the end of its name.
fn unit_of(name: &str) -> &'static str {
    let last = name.rsplit([' ', ',']).next().unwrap_or_default();
    UNITS.into_iter().find(|unit| *unit == last).unwrap_or_default()
}

/// The latest values of lines.
pub(super) fn table(label: fn(f64) -> String, lines: &[TimeLine]) -> Markup {
    let mut times: Vec<f64> = lines.iter().flat_map(|line| line.points().map(|point| point.0)).collect();
    times.sort_by(f64::total_cmp);
    times.dedup();
    html! {
        table {
            thead { tr { th.l scope="col" { "Time (UTC)" } @for line in lines { th scope="col" { (line.name) } } } }
            tbody {
                @for time in times.iter().rev().take(ROWS) {
                    tr {
                        th.l scope="row" { (moment(*time)) }
                        @for line in lines {
                            @let value = line.points().filter(|point| point.0 == *time).last();
                            td { @match value { Some((_, value)) => { (label(value)) }, None => { "-" } } }
                        }
                    }
                }
            }
        }
        (not_shown(times.len().saturating_sub(ROWS), "earlier time"))
    }
}

/// Means of neighbours, so that few enough are left; never over a gap, or of two phases.
fn thinned(lines: &[TimeLine]) -> Vec<TimeLine> {
    let thin = |line: &TimeLine| {
        let each = line.points().count().div_ceil(MAX_POINTS).max(1);
        let mean = |chunk: &[(f64, f64)]| {
            let count = chunk.len() as f64;
            (
                chunk.iter().map(|point| point.0).sum::<f64>() / count,
                chunk.iter().map(|point| point.1).sum::<f64>() / count,
            )
        };
        let parts = line.parts.iter().map(|part| part.chunks(each).map(mean).collect()).collect();
        TimeLine { parts, ..line.clone() }
    };
    lines.iter().map(thin).collect()
}

fn line(
    all: &[&SampleMoment],
    colour: usize,
    name: &str,
    pick: impl Fn(&LiveSample) -> Option<f64>,
) -> TimeLine {
    let values = all.iter().map(|moment| (moment.at_s, moment.begins, pick(&moment.sample)));
    TimeLine { colour, name: name.to_owned(), parts: parts(values) }
}

/// Values apart wherever something begins, or there is none in between.
fn parts(values: impl Iterator<Item = (f64, bool, Option<f64>)>) -> Vec<Vec<(f64, f64)>> {
    let mut parts: Vec<Vec<(f64, f64)>> = Vec::new();
    let mut is_joined = false;
    for (at_s, begins, value) in values {
        is_joined &= !begins;
        if let Some(value) = value {
            match parts.last_mut().filter(|_| is_joined) {
                Some(part) => part.push((at_s, value)),
                None => parts.push(vec![(at_s, value)]),
            }
        }
        is_joined = value.is_some();
    }
    parts
}

/// Where nothing was answered there is no latency.
fn latency(us: Option<f64>) -> Option<f64> {
    us.filter(|us| *us > 0.0)
}

fn mean_of(sample: &LiveSample, pick: impl Fn(&LiveDevice) -> Option<f64>) -> Option<f64> {
    let found: Vec<f64> = sample.devices.iter().filter_map(pick).collect();
    (!found.is_empty()).then(|| found.iter().sum::<f64>() / found.len() as f64)
}

/// A line a device; the busiest where there are too many.
fn build_device_lines(all: &[&SampleMoment], pick: impl Fn(&LiveDevice) -> Option<f64>) -> ChartLines {
    let mut seen = BTreeSet::new();
    let devices = all.iter().flat_map(|moment| &moment.sample.devices).map(|device| &device.id);
    let mut ids: Vec<&DeviceId> = devices.filter(|id| seen.insert(*id)).collect();
    let unread = ids.len().saturating_sub(MAX_DEVICES);
    ids.truncate(MAX_DEVICES);
    let line_of = |(colour, id): (usize, &&DeviceId)| {
        line(all, colour + 1, &id.to_string(), |sample| {
            sample.devices.iter().find(|device| device.id == **id).and_then(&pick)
        })
    };
    let ChartLines { lines, left_out } = busiest(ids.iter().enumerate().map(line_of).collect());
    ChartLines { lines, left_out: left_out + unread }
}

/// Modelled and delivered latencies of the devices with the most requests.
fn build_paired_device_lines(
    all: &[&SampleMoment],
    modelled: impl Fn(&LiveDevice) -> Option<f64>,
    delivered: impl Fn(&LiveDevice) -> Option<f64>,
) -> ChartLines {
    let mut by_device: BTreeMap<&DeviceId, f64> = BTreeMap::new();
    for device in all.iter().flat_map(|moment| &moment.sample.devices) {
        *by_device.entry(&device.id).or_default() += device.read_iops + device.write_iops;
    }
    let mut requests: Vec<(&DeviceId, f64)> = by_device.into_iter().collect();
    requests.sort_by(|a, b| b.1.total_cmp(&a.1));
    let is_alone = requests.len() == 1;
    let line_of = |id: &DeviceId, colour: usize, word: &str, pick: &dyn Fn(&LiveDevice) -> Option<f64>| {
        // There is little room behind a line.
        let name = if is_alone { word.to_owned() } else { format!("{id} {}", &word[..1]) };
        line(all, colour, &name, |sample| {
            sample.devices.iter().find(|device| device.id == *id).and_then(pick)
        })
    };
    let pairs = (0..).zip(requests.iter().take(MAX_PAIRS)).map(|(place, (id, _))| {
        [
            line_of(id, 2 * place + 1, "modelled", &modelled),
            line_of(id, 2 * place + 2, "delivered", &delivered),
        ]
    });
    let lines = pairs.flatten().collect();
    ChartLines { lines, left_out: 2 * requests.len().saturating_sub(MAX_PAIRS) }
}

fn busiest(mut lines: Vec<TimeLine>) -> ChartLines {
    // A line without points is not drawn in any case.
    lines.retain(|line| !line.is_empty());
    let sum = |line: &TimeLine| line.points().map(|point| point.1).sum::<f64>();
    let left_out = lines.len().saturating_sub(MAX_LINES);
    if left_out > 0 {
        lines.sort_by(|a, b| sum(b).total_cmp(&sum(a)));
        lines.truncate(MAX_LINES);
    }
    ChartLines { lines, left_out }
}

/// Of every layer that counts hits and misses, the share of hits since the sample before.
fn hit_rates(all: &[&SampleMoment]) -> ChartLines {
    let counted =
        |layer: &LayerActivity| Some((*layer.figures.get("read_hits")?, *layer.figures.get("read_misses")?));
    let mut names: Vec<String> = Vec::new();
    for layer in all.iter().flat_map(|moment| &moment.sample.layers) {
        if counted(layer).is_some() && !names.contains(&layer.title()) {
            names.push(layer.title());
        }
    }
    let left_out = names.len().saturating_sub(MAX_LINES);
    names.truncate(MAX_LINES);
    let line_of = |(colour, name): (usize, &String)| {
        let counts = |moment: &SampleMoment| {
            moment.sample.layers.iter().find(|layer| layer.title() == *name).and_then(counted)
        };
        let share = |pair: &[&SampleMoment]| {
            let ((hits, misses), (hits_before, misses_before)) = (counts(pair[1])?, counts(pair[0])?);
            let (hits, misses) = (hits - hits_before, misses - misses_before);
            // Another cell or phase, counting began anew, or nothing was read.
            let is_known = !pair[1].begins && hits >= 0.0 && misses >= 0.0 && hits + misses > 0.0;
            is_known.then(|| hits / (hits + misses))
        };
        let values = all.windows(2).map(|pair| (pair[1].at_s, pair[1].begins, share(pair)));
        TimeLine { colour: colour + 1, name: name.clone(), parts: parts(values) }
    };
    ChartLines { lines: names.iter().enumerate().map(line_of).collect(), left_out }
}

/// What benchmark commands print of their progress: a line for each figure and unit.
fn printed(all: &[&SampleMoment]) -> ChartLines {
    let mut figures: Vec<(&str, &str)> = Vec::new();
    for figure in all.iter().filter_map(|moment| moment.sample.figure.as_ref()) {
        let key = (figure.name.as_str(), figure.unit.as_str());
        if !figures.contains(&key) {
            figures.push(key);
        }
    }
    let left_out = figures.len().saturating_sub(MAX_LINES);
    figures.truncate(MAX_LINES);
    let line_of = |(colour, (name, unit)): (usize, (&str, &str))| {
        line(all, colour, &format!("{name}, {unit}"), |sample| {
            let figure = sample.figure.as_ref().filter(|one| one.name == name && one.unit == unit)?;
            Some(figure.value)
        })
    };
    ChartLines { lines: (1..).zip(figures).map(line_of).collect(), left_out }
}

fn gauges(all: &[&SampleMoment]) -> ChartLines {
    let mut names: Vec<&String> = all.iter().flat_map(|moment| moment.sample.gauges.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let line_of = |(colour, name): (usize, &&String)| {
        let words = bare(name).replace('_', " ");
        line(all, colour + 1, &words, |sample| sample.gauges.get(*name).copied())
    };
    // A gauge that is always zero, or a size among counts, would only hide the rest.
    let lines = names
        .iter()
        .enumerate()
        .map(line_of)
        .filter(|line| !line.name.ends_with("bytes") && line.points().any(|point| point.1 > 0.0));
    busiest(lines.collect())
}

/// Marks in every chart for what happened to nodes and devices, and what they mean.
fn marks(run: &FollowedRun, from_s: f64) -> (Vec<TimeMark>, Markup) {
    let is_marked = |event: &&HistoryEvent| {
        event.at_s >= from_s && event.is_bad && matches!(event.kind, EventKind::Node | EventKind::Device)
    };
    let mut found: Vec<(f64, Vec<&str>)> = Vec::new();
    for event in run.watched.events.iter().filter(is_marked) {
        match found.last_mut() {
            // Simultaneous events have one mark.
            Some((at_s, whats)) if event.at_s - *at_s < TOGETHER_S => whats.push(&event.what),
            _ => found.push((event.at_s, vec![&event.what])),
        }
    }
    found.drain(..found.len().saturating_sub(MAX_MARKS));
    let mark = |(number, (at_s, _)): (usize, &(f64, Vec<&str>))| TimeMark {
        colour: 2,
        sign: number.to_string(),
        from_s: *at_s,
        // A moment: when it is over is another event.
        to_s: Some(at_s + 0.5),
    };
    let marks = (1..).zip(&found).map(mark).collect();
    let marks_text = html! {
        @if !found.is_empty() {
            ol.small.marks { @for (at_s, whats) in &found { li { (moment(*at_s)) " UTC " (whats.join("; ")) } } }
        }
    };
    (marks, marks_text)
}

#[cfg(test)]
mod tests;
