//! Storages to buy, price against latency, as a page that needs nothing else.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use underlay_record::frontier::{Frontier, PricedStorage};

use super::charts::{PlotRectangle, free_place};
use super::drawing::{
    AltText, ChartAxis, ChartMargins, CircleStyle, FINE, INK, MUTED, PlotFrame, SERIES, SvgArea, TextAnchor,
    picture, text, x_axis, y_axis, y_title,
};
use super::summary::priced;
use super::{OPEN_FOR_PRINT, figure, head};
use crate::quantity::{self, ABSENT};

const RADIUS: i32 = 4 * FINE;

/// The page.
pub fn render(frontier: &Frontier) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            (head(&frontier.title, &frontier.answer))
            body {
                header.top {
                    h1 { (frontier.title) }
                    p.answer { (frontier.answer) }
                    ul.facts { @for fact in &frontier.facts { li { (fact) } } }
                }
                main {
                    (frontier_section(frontier))
                    @if !frontier.storages.is_empty() { section id="storages" { h2 { "All of them" } (table(frontier)) } }
                    @if !frontier.notes.is_empty() {
                        section id="assumed" { h2 { "What was assumed" } ul { @for note in &frontier.notes { li { (note) } } } }
                    }
                    @if !frontier.excluded.is_empty() {
                        section id="excluded" {
                            h2 { "Not considered" }
                            dl.facts-list { @for (name, reason) in &frontier.excluded { dt { (name) } dd { (reason) } } }
                        }
                    }
                }
                footer {
                    p {
                        "Made by underlay " (env!("CARGO_PKG_VERSION"))
                        ". Predicted, not measured; intervals are of 95 % confidence. Prices are the catalogue's, of devices alone."
                    }
                }
                script { (PreEscaped(OPEN_FOR_PRINT)) }
            }
        }
    }
    .into_string()
}

fn frontier_section(frontier: &Frontier) -> Markup {
    let drawn: Vec<&PricedStorage> = frontier.storages.iter().filter(|one| is_drawn(one)).collect();
    html! {
        section id="frontier" {
            h2 { "Price against latency" }
            p.lead {
                "Each mark is a storage at that rate, with the interval of its 99th percentile. Those on the line are faster than everything "
                "that costs less."
            }
            @if drawn.is_empty() {
                p { "None of them keeps up with the rate, so there is nothing to draw." }
            } @else {
                ul.legend {
                    li { span.swatch.b1 aria-hidden="true" {} "within the bound" }
                    li { span.swatch.b0 aria-hidden="true" {} "beyond it" }
                    li { span.swatch.b2 aria-hidden="true" {} "the frontier" }
                }
                (figure("99th percentile over the price of the devices", chart(frontier, &drawn)))
            }
            @if !frontier.turns.is_empty() {
                h3 { "Where the answer changes" }
                ul { @for turn in &frontier.turns { li { (turn) } } }
            }
        }
    }
}

fn is_drawn(one: &PricedStorage) -> bool {
    let is_sound = |value: f64| value.is_finite() && value > 0.0;
    !one.is_saturated && is_sound(one.price.usd) && is_sound(one.p99_us.value)
}

fn chart(frontier: &Frontier, drawn: &[&PricedStorage]) -> String {
    let margins = ChartMargins { left: 76, right: 30, top: 18, bottom: 44 };
    let frame = PlotFrame { width: 860, height: 420, margins };
    let x = ChartAxis::log(drawn.iter().map(|one| one.price.usd));
    let y = ChartAxis::log(drawn.iter().map(|one| one.p99_us.value).chain([frontier.p99_bound_us]));
    let mut on_line: Vec<&PricedStorage> = drawn.iter().copied().filter(|one| one.is_on_frontier).collect();
    on_line.sort_by(|a, b| a.price.usd.total_cmp(&b.price.usd));
    let names: Vec<String> = on_line
        .iter()
        .map(|one| {
            let (usd, p99) = (quantity::price(&one.price), quantity::latency(one.p99_us.value));
            format!("{}: {usd}, {p99}.", one.name)
        })
        .collect();
    let description = format!("On the frontier, the cheapest first. {}", names.join(" "));
    let words = AltText { title: "99th percentile over price", description: &description };
    picture(frame, &words, |area| {
        y_title(area, &frame, "99th percentile, logarithmic");
        y_axis(area, &frame, &y, &quantity::latency);
        let ticks: Vec<(f64, String)> = x
            .ticks()
            .into_iter()
            .map(|tick| (tick, quantity::without_last_zeros(&quantity::dollars(tick))))
            .collect();
        x_axis(area, &frame, &x, &ticks);
        let below = (frame.x(0.5), frame.y(0.0) + 24 * FINE);
        text(area, "price of the devices, logarithmic", below, 11, MUTED, TextAnchor::Below);
        let position_of =
            |one: &PricedStorage, us: f64| (frame.x(x.place(one.price.usd)), frame.y(y.place(us)));
        let bound = frame.y(y.place(frontier.p99_bound_us));
        area.line(&[(frame.x(0.0), bound), (frame.x(1.0), bound)], INK, 0.8, FINE + 1);
        let bound_words = format!("bound: {}", quantity::latency(frontier.p99_bound_us));
        let label_position = (frame.x(1.0) - 46 * FINE, bound - FINE);
        text(area, &bound_words, label_position, 11, INK, TextAnchor::Above);
        area.line(&steps(&on_line, &position_of), SERIES[2], 1.0, 2 * FINE);
        for one in drawn {
            let colour = if one.meets { SERIES[1] } else { SERIES[0] };
            let [low, high] = [one.p99_us.low, one.p99_us.high].map(|us| position_of(one, us));
            area.line(&[low, high], colour, 0.35, FINE + 1);
            let position = position_of(one, one.p99_us.value);
            area.circle(position, RADIUS, (colour, 1.0), CircleStyle::Filled);
        }
        name(area, &frame, drawn, &on_line, &position_of, bound);
    })
}

/// Down at each storage of the frontier and on to the price of the next, as far as the last one.
fn steps(
    on_line: &[&PricedStorage],
    position_of: &impl Fn(&PricedStorage, f64) -> (i32, i32),
) -> Vec<(i32, i32)> {
    let mut points: Vec<(i32, i32)> = Vec::new();
    for one in on_line {
        let (x, y) = position_of(one, one.p99_us.value);
        if let Some(&(_, before)) = points.last() {
            points.push((x, before));
        }
        points.push((x, y));
    }
    points
}

/// A name further from its mark than this many lines says nothing.
const NEAR_LINES: i32 = 3;

/// Writes the names of those on the frontier where they cover nothing, the answer's first; the table has all of them.
fn name(
    area: &SvgArea,
    frame: &PlotFrame,
    drawn: &[&PricedStorage],
    on_line: &[&PricedStorage],
    position_of: &impl Fn(&PricedStorage, f64) -> (i32, i32),
    bound: i32,
) {
    let around = |x: i32, y: i32| PlotRectangle {
        left: x - RADIUS,
        right: x + RADIUS,
        top: y - RADIUS,
        bottom: y + RADIUS,
    };
    let mut occupied: Vec<PlotRectangle> = drawn
        .iter()
        .map(|one| position_of(one, one.p99_us.value))
        .map(|(x, y)| around(x, y))
        .chain([PlotRectangle { left: 0, right: i32::MAX, top: bound - FINE, bottom: bound + FINE }])
        .collect();
    let mut by_weight: Vec<&PricedStorage> = on_line.to_vec();
    by_weight.sort_by_key(|one| !one.meets);
    for one in by_weight {
        let (x, y) = position_of(one, one.p99_us.value);
        // Names near an edge are moved inwards.
        let half = one.name.chars().count() as i32 * 29 * FINE / 10;
        let x = x.clamp(frame.x(0.0) + half, (frame.x(1.0) - half).max(frame.x(0.0) + half));
        let place = free_place(&one.name, x, [y - RADIUS, y + RADIUS], frame, &occupied);
        let is_near = (place.bottom - y).abs() <= NEAR_LINES * 11 * FINE + RADIUS;
        if !is_near || occupied.iter().any(|other| place.overlaps(other)) {
            continue;
        }
        text(area, &one.name, (x, place.bottom), 10, INK, TextAnchor::Above);
        occupied.push(place);
    }
}

fn table(frontier: &Frontier) -> Markup {
    let latency = |us: f64| if us.is_finite() { quantity::latency(us) } else { ABSENT.to_owned() };
    html! {
        div.scroll { table {
            thead { tr {
                th.l { "Storage" } th { "price" } th { "$ per 1,000 ops/s" } th { "$/TB" } th { "mean" } th { "p99" } th.l { "within the bound" }
                th { "device busy" }
            } }
            tbody { @for one in &frontier.storages { tr {
                th.l scope="row" {
                    (one.name)
                    @if !one.about.is_empty() { small.below { (one.about) } }
                    @if one.is_on_frontier { small.below { "on the frontier" } }
                }
                (priced(Some(one.price.usd), Some(&one.price)))
                (priced(Some(one.usd_per_1000_per_s), Some(&one.price)))
                (priced(Some(one.usd_per_tb), Some(&one.price)))
                @if one.is_saturated {
                    td { "grows" } td { "grows" } td.l { "no" }
                } @else {
                    td { (latency(one.mean_us.value)) }
                    td { (latency(one.p99_us.value)) small { (latency(one.p99_us.low)) " to " (latency(one.p99_us.high)) } }
                    td.l { @if one.is_sure { "surely" } @else if one.meets { "probably" } @else { "no" } }
                }
                td { (quantity::percent(one.device_busy)) }
            } } }
        } }
    }
}
