//! Where the time of an operation goes, what holds each cell up, and what other machines would give.

use maud::{Markup, html};
use underlay_record::{CellExplanation, EstimatedValue, TimeAccount, WhatIf};

use super::drawing::{
    AltText, ChartAxis, ChartColour, ChartMargins, FINE, GRID, GROUND, INK, PlotFrame, SERIES, SvgArea,
    TextAnchor, picture, text, x_axis,
};
use super::{ReportPage, figure, swatch};
use crate::comparison::ComparisonRow;
use crate::quantity::{self, ABSENT};

/// A part of an operation's time: its name, the class of its swatch, its colour, and how much it is of an account.
struct TimePart {
    name: &'static str,
    class: &'static str,
    colour: ChartColour,
    us: fn(&TimeAccount) -> f64,
}

impl TimePart {
    const fn new(
        name: &'static str,
        class: &'static str,
        colour: ChartColour,
        us: fn(&TimeAccount) -> f64,
    ) -> TimePart {
        TimePart { name, class, colour, us }
    }

    fn share(&self, account: &TimeAccount) -> f64 {
        account.share((self.us)(account))
    }
}

static UNEXPLAINED: TimePart = TimePart::new("unexplained", "bn", GRID, |one| one.unexplained_us);

/// Two blues for devices, two oranges for cores, so that what belongs together looks like it.
static PARTS: [&TimePart; 8] = [
    &TimePart::new("device", "b1", SERIES[1], |one| one.shares.device_service_us),
    &TimePart::new("device's queue", "b6", SERIES[6], |one| one.shares.device_queueing_us),
    &TimePart::new("network", "b3", SERIES[3], |one| one.shares.network_us),
    &TimePart::new("layers", "b4", SERIES[4], |one| one.layers_us),
    &TimePart::new("CPU", "b2", SERIES[2], |one| one.shares.cpu_us),
    &TimePart::new("waiting for CPU", "b5", SERIES[5], |one| one.shares.cpu_waiting_us),
    &TimePart::new("waiting for a client", "b0", SERIES[0], |one| one.shares.client_waiting_us),
    &UNEXPLAINED,
];

/// In the picture's pixels.
const BAR: i32 = 22;
const STEP: i32 = 30;
const ABOVE: i32 = 8;
const BELOW: i32 = 26;
/// A part's share is written into it where it is at least this wide.
const WIDE_ENOUGH: i32 = 30;

/// A cell of a row, explained.
struct ExplainedCell<'a> {
    row: &'a ComparisonRow<'a>,
    storage: usize,
    found: &'a CellExplanation,
}

/// What is shown together, under the heading of a mix.
struct MixSection<'a> {
    page: &'a ReportPage<'a>,
    told: Vec<ExplainedCell<'a>>,
    parts: &'a [&'static TimePart],
    /// Rows need names of their own.
    has_rows: bool,
}

pub(super) fn section(page: &ReportPage) -> Option<Markup> {
    let all: Vec<&ComparisonRow> = page.comparison.operations().collect();
    let explained = told(page, &all);
    let (unsound, refused): (Vec<_>, Vec<_>) =
        page.explained.refused.iter().partition(|one| one.unsound.is_some());
    if explained.is_empty() && unsound.is_empty() {
        return None;
    }
    let parts = parts_of(&explained);
    let has_less = explained.iter().any(|one| one.found.mean.overrun().is_some());
    Some(html! {
        p.lead {
            "What an operation’s time is spent on, found by simulating each cell with the demands that were measured in it. "
            "What is neither a device nor a core (locks, batching, stalls) is called unexplained. "
            @if has_less { "Where operations wait longer in the simulation than they did, shares are of the simulated time." }
        }
        ul.legend {
            @for part in &parts { li { span class={ "swatch " (part.class) } aria-hidden="true" {} (part.name) } }
        }
        (page.for_each_mix(|rows| {
            let shown = MixSection { page, told: self::told(page, rows), parts: &parts, has_rows: rows.len() > 1 };
            if shown.told.is_empty() { html! { p.muted { "None of these could be explained." } } } else { shown.all() }
        }))
        @if !unsound.is_empty() {
            p { "Not explained, because their measurement does not hold:" }
            ul { @for one in &unsound { li { (one.cell) ": " (one.why) } } }
        }
        @if !refused.is_empty() {
            details {
                summary { (quantity::plural(refused.len(), "cell")) " not explained" }
                ul { @for one in refused { li { (one.cell) ": " (one.why) } } }
            }
        }
    })
}

fn told<'a>(page: &'a ReportPage, rows: &[&'a ComparisonRow<'a>]) -> Vec<ExplainedCell<'a>> {
    rows.iter()
        .flat_map(|row| row.cells.iter().enumerate().map(move |(storage, result)| (*row, storage, result)))
        .filter_map(|(row, storage, result)| {
            let found = page.explained.find_cell(&result.as_ref()?.cell.id)?;
            Some(ExplainedCell { row, storage, found })
        })
        .collect()
}

/// Those that any of the cells has.
fn parts_of(explained: &[ExplainedCell]) -> Vec<&'static TimePart> {
    let accounts = || explained.iter().flat_map(|one| [&one.found.mean, &one.found.p50, &one.found.p99]);
    PARTS.into_iter().filter(|part| accounts().any(|account| (part.us)(account).abs() > 1e-9)).collect()
}

impl MixSection<'_> {
    fn all(&self) -> Markup {
        html! {
            (figure("The mean latency", self.bars()))
            (self.limits())
            details {
                summary { "Mean, median and 99th percentile in numbers" }
                (self.numbers())
            }
        }
    }

    fn storage_name(&self, one: &ExplainedCell) -> &str {
        self.page.comparison.storages[one.storage]
    }

    fn name(&self, one: &ExplainedCell) -> String {
        match self.has_rows {
            true => format!("{}, {}", one.row.name_in_mix(), self.storage_name(one)),
            false => self.storage_name(one).to_owned(),
        }
    }

    /// A bar a cell, of all of its time.
    fn bars(&self) -> String {
        let names: Vec<String> = self.told.iter().map(|one| self.name(one)).collect();
        let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0) as i32;
        let margins =
            ChartMargins { left: (longest * 6 + 16).clamp(60, 300), right: 64, top: ABOVE, bottom: BELOW };
        let frame = PlotFrame { width: 860, height: ABOVE + STEP * self.told.len() as i32 + BELOW, margins };
        let axis = ChartAxis { low: 0.0, high: 1.0, is_log: false };
        let ticks: Vec<(f64, String)> = (0..=4)
            .map(|quarter| f64::from(quarter) / 4.0)
            .map(|tick| (tick, quantity::percent(tick)))
            .collect();
        let description = self
            .told
            .iter()
            .zip(&names)
            .map(|(one, name)| format!("{name}: {}", self.describe(&one.found.mean)))
            .collect::<Vec<_>>()
            .join(" ");
        let words = AltText { title: "What the mean latency is made of", description: &description };
        picture(frame, &words, |area| {
            x_axis(area, &frame, &axis, &ticks);
            for (index, (one, name)) in self.told.iter().zip(&names).enumerate() {
                let top = (ABOVE + STEP * index as i32 + (STEP - BAR) / 2) * FINE;
                let middle = top + BAR * FINE / 2;
                text(area, name, (frame.x(0.0) - 7 * FINE, middle), 11, INK, TextAnchor::LeftOf);
                let end = self.stack(area, &frame, &axis, &one.found.mean, top);
                let latency = quantity::latency(one.found.mean.measured_us);
                text(
                    area,
                    &latency,
                    (end.max(frame.x(axis.place(1.0))) + 7 * FINE, middle),
                    11,
                    INK,
                    TextAnchor::RightOf,
                );
            }
        })
    }

    /// Draws the parts one after the other, and says where they end.
    fn stack(
        &self,
        area: &SvgArea,
        frame: &PlotFrame,
        axis: &ChartAxis,
        account: &TimeAccount,
        top: i32,
    ) -> i32 {
        let mut from = 0.0;
        for part in self.parts {
            let share = part.share(account);
            let (left, right) = (frame.x(axis.place(from)), frame.x(axis.place(from + share)));
            from += share;
            if right <= left {
                continue;
            }
            area.bar([(left, top), (right, top + BAR * FINE)], part.colour, 1.0);
            if right - left >= WIDE_ENOUGH * FINE {
                let colour = if part.class == UNEXPLAINED.class { INK } else { GROUND };
                let middle = ((left + right) / 2, top + BAR * FINE / 2);
                text(area, &quantity::percent(share), middle, 11, colour, TextAnchor::Centre);
            }
        }
        frame.x(axis.place(from))
    }

    fn describe(&self, account: &TimeAccount) -> String {
        let shares: Vec<String> = self
            .parts
            .iter()
            .map(|part| (part.name, part.share(account)))
            .filter(|(_, share)| share.abs() >= 0.005)
            .map(|(name, share)| format!("{name} {}", quantity::percent(share)))
            .collect();
        format!("{} of {}.", shares.join(", "), quantity::latency(account.measured_us))
    }

    /// What holds a cell up, and what would help.
    fn limits(&self) -> Markup {
        let mut changes: Vec<&str> = Vec::new();
        for what_if in self.told.iter().flat_map(|one| &one.found.what_if) {
            if !changes.contains(&what_if.change.as_str()) {
                changes.push(&what_if.change);
            }
        }
        let columns = changes.len() + 2 + usize::from(self.has_rows);
        html! {
            div.scroll { table {
                thead { tr {
                    @if self.has_rows { th.l { "Workload" } }
                    th.l { "Storage" } th { "ops/s" }
                    @for change in &changes { th { "with " (change) } }
                } }
                // The sentence has a line of its own: in a column it would be a ribbon beside four wide ones.
                tbody { @for one in &self.told {
                    tr.group { th colspan=(columns) scope="rowgroup" { (self.name(one)) ": " (one.found.bottleneck) } }
                    tr {
                        @if self.has_rows { td.n { (one.row.name_in_mix()) } }
                        th.l scope="row" { (swatch(one.storage)) (self.storage_name(one)) }
                        td { (quantity::rate(one.found.throughput_per_s)) }
                        @match refused_alike(&one.found.what_if) {
                            Some(reason) => { td.l colspan=(changes.len()) { "not answered" small.below { (reason) } } }
                            None => {
                                @for change in &changes {
                                    (answer(one.found.what_if.iter().find(|what_if| what_if.change == *change)))
                                }
                            }
                        }
                    }
                } }
            } }
        }
    }

    fn numbers(&self) -> Markup {
        html! {
            div.scroll { table {
                thead { tr {
                    @if self.has_rows { th.l { "Workload" } }
                    th.l { "Storage" } th.l { "latency" } th { "measured" }
                    @for part in self.parts { th { (part.name) } }
                } }
                tbody { @for one in &self.told {
                    @for (name, account) in
                        [("mean", &one.found.mean), ("p50", &one.found.p50), ("p99", &one.found.p99)]
                    { tr {
                        @if self.has_rows { td.n { (one.row.name_in_mix()) } }
                        th.l scope="row" { (swatch(one.storage)) (self.storage_name(one)) }
                        td.l { (name) }
                        td { (quantity::latency(account.measured_us)) }
                        @if account.has_parts() {
                            @for part in self.parts { td { (quantity::percent(part.share(account))) } }
                        } @else {
                            td.l colspan=(self.parts.len()) { "not explained: the parts would be more than the whole" }
                        }
                    } }
                } }
            } }
        }
    }
}

/// The one reason for which none of the changes is answered.
fn refused_alike(all: &[WhatIf]) -> Option<&str> {
    let reason = all.first()?.refused.as_deref()?;
    all.iter().all(|one| one.refused.as_deref() == Some(reason)).then_some(reason)
}

fn answer(what_if: Option<&WhatIf>) -> Markup {
    let Some(what_if) = what_if else { return html! { td { (ABSENT) } } };
    let (Some(throughput), Some(gain)) = (what_if.throughput_per_s, what_if.gain) else {
        return html! { td { "not answered" small.below { (what_if.refused.as_deref().unwrap_or_default()) } } };
    };
    html! {
        td {
            (quantity::number(gain.value, 2)) "x (" (interval(gain, |gain| quantity::number(gain, 2))) ")"
            small { (quantity::rate(throughput.value)) " ops/s (" (interval(throughput, quantity::rate)) ")" }
            @if let Some(p99) = what_if.p99_us {
                small { "p99 " (quantity::latency(p99.value)) " (" (interval(p99, quantity::latency)) ")" }
            } @else {
                small { "p99 not answered" }
            }
        }
    }
}

fn interval(estimate: EstimatedValue, words: impl Fn(f64) -> String) -> String {
    format!("{} to {}", words(estimate.low), words(estimate.high))
}
