//! A fitted medium as a catalogue file.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::plausible::admit_contradictions;
use super::profile::{DeviceProfile, ProbePoint};
use crate::catalogue::{
    CatalogueMedium, FigureKind, MeasuredOrder, ModelParameters, PublishedPerformance, SourcedCurve,
    SourcedDistribution,
};
use crate::predict::AccessPattern;

/// A device's name, and the conditions of its measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceIdentity {
    /// As studies will call it.
    pub name: String,
    pub title: String,
    pub year: u16,
    /// `2026-11-21`
    pub date: String,
    pub capacity_bytes: u64,
    pub price_usd: Option<f64>,
    /// The device, the kernel, what lies between: a sentence.
    pub conditions: String,
}

/// The key of the source of all that was read off or fitted.
pub(super) const SOURCE: &str = "measured";
/// The key of the source of what nobody knows.
pub(super) const UNKNOWN: &str = "unknown";
pub(super) const PRICE: &str = "price";

/// Reads that take less than this share of the usual time came from a cache.
const CACHED_SHARE: f64 = 0.25;
/// Latencies are published at these percentiles, where enough requests lie beyond.
const PERCENTILES: [f64; 2] = [50.0, 99.0];
const ENOUGH_BEYOND: f64 = 20.0;

pub(super) fn sources(medium: &CatalogueMedium, identity: &DeviceIdentity) -> BTreeMap<String, String> {
    let measured = format!("`underlay media measure`, {}: {}", identity.date, identity.conditions);
    let mut sources = BTreeMap::from([(SOURCE.to_owned(), measured)]);
    let ModelParameters::Measured(parameters) = &medium.model else { return sources };
    if medium.price.source == PRICE {
        sources.insert(PRICE.into(), "Stated when it was measured".into());
    }
    if medium.price.source == UNKNOWN || parameters.device.flush_us.source == UNKNOWN {
        let text = "Not known: one dollar stands for the price, no time for a flush; write in what is true";
        sources.insert(UNKNOWN.into(), text.into());
    }
    sources
}

/// Notes for a reader of the file.
pub(super) fn note(profile: &DeviceProfile) -> String {
    let mut note = format!("Measured over {:.1} GB.", profile.span_bytes as f64 / 1e9);
    let wrote = profile.points.iter().any(|point| !is_read(point.pattern));
    if !wrote {
        note += " Reads only: writes are assumed to be like reads.";
    }
    for rounds in &profile.rounds {
        let word = if rounds.steady { "were steady after" } else { "were NOT yet steady after" };
        let _ = write!(note, " {} {word} {} rounds.", capital(rounds.pattern.name()), rounds.iops.len());
    }
    if let Some(bytes) = read_cache_bytes(profile) {
        let _ = write!(
            note,
            " Reads within {:.1} MB came from a cache, which the model leaves out.",
            bytes as f64 / 1e6
        );
    }
    let bounds = profile.points.iter().filter(|point| point.saturated).count();
    if bounds > 0 {
        let _ = write!(
            note,
            " At {bounds} points the measuring program was the limit: the device may be faster."
        );
    }
    note
}

fn is_read(pattern: AccessPattern) -> bool {
    matches!(pattern, AccessPattern::RandomRead | AccessPattern::SequentialRead)
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().collect::<String>() + letters.as_str())
}

/// The largest working set whose re-reads came from a cache.
fn read_cache_bytes(profile: &DeviceProfile) -> Option<u64> {
    let alone = profile
        .points
        .iter()
        .find(|point| point.pattern == AccessPattern::RandomRead && point.queue_depth == 1)?;
    let usual_us = alone.latency.quantile_us(0.5);
    let cached = profile.read_cache.iter().take_while(|point| {
        point.latency.count() > 0 && point.latency.quantile_us(0.5) < CACHED_SHARE * usual_us
    });
    cached.last().map(|point| point.working_set_bytes)
}

/// The figures that the medium is checked against: the ends of what was measured, with what of them the model
/// contradicts.
pub(super) fn published(profile: &DeviceProfile, model: &ModelParameters) -> Vec<PublishedPerformance> {
    let mut published = Vec::new();
    for pattern in [
        AccessPattern::RandomRead,
        AccessPattern::RandomWrite,
        AccessPattern::SequentialRead,
        AccessPattern::SequentialWrite,
    ] {
        let points: Vec<&ProbePoint> = profile
            .points
            .iter()
            .filter(|point| point.pattern == pattern && point.requests > 0 && !point.saturated)
            .collect();
        // Random loads are known by their smallest blocks, sequential ones by blocks that many tools use.
        let block = if pattern.is_random() {
            points.iter().map(|point| point.block_bytes).min()
        } else {
            points.iter().map(|point| point.block_bytes).filter(|bytes| *bytes <= 256 << 10).max()
        };
        let mut matching_points: Vec<&&ProbePoint> =
            points.iter().filter(|point| Some(point.block_bytes) == block).collect();
        matching_points.sort_by_key(|point| point.queue_depth);
        let (Some(first), Some(last)) = (matching_points.first(), matching_points.last()) else { continue };
        let (figure, value): (_, fn(&ProbePoint) -> f64) = match pattern {
            AccessPattern::RandomRead => (FigureKind::RandomReadIops, |point| point.iops),
            AccessPattern::RandomWrite => (FigureKind::RandomWriteIops, |point| point.iops),
            AccessPattern::SequentialRead => (FigureKind::SequentialReadMbS, mb_s),
            AccessPattern::SequentialWrite => (FigureKind::SequentialWriteMbS, mb_s),
        };
        if pattern == AccessPattern::RandomRead {
            published.push(publish_point(first, FigureKind::RandomReadIops, first.iops, None));
            for percentile in PERCENTILES {
                if first.requests as f64 * (1.0 - percentile / 100.0) >= ENOUGH_BEYOND {
                    let us = first.latency.quantile_us(percentile / 100.0);
                    published.push(publish_point(first, FigureKind::ReadLatencyUs, us, Some(percentile)));
                }
            }
        }
        if last.queue_depth > first.queue_depth || pattern != AccessPattern::RandomRead {
            published.push(publish_point(last, figure, value(last), None));
        }
    }
    admit_contradictions(&mut published, model);
    published
}

fn mb_s(point: &ProbePoint) -> f64 {
    point.iops * point.block_bytes as f64 / 1e6
}

fn publish_point(
    point: &ProbePoint,
    figure: FigureKind,
    value: f64,
    percentile: Option<f64>,
) -> PublishedPerformance {
    PublishedPerformance {
        figure,
        value: (value * 100.0).round() / 100.0,
        queue_depth: point.queue_depth as u32,
        block_bytes: point.block_bytes as u32,
        percentile,
        source: SOURCE.into(),
        estimate: false,
        note: None,
        of_instance: false,
        contradicts: Vec::new(),
    }
}

/// The medium as the text of a catalogue file; empty for another kind than `measured`.
pub fn medium_text(medium: &CatalogueMedium) -> String {
    let ModelParameters::Measured(parameters) = &medium.model else { return String::new() };
    let mut text = String::new();
    let mut line = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    line(format!("name = {}", quoted(&medium.name)));
    line(format!("title = {}", quoted(&medium.title)));
    line("kind = \"measured\"".into());
    line(format!("year = {}", medium.year));
    line(format!("label = \"{}\"", medium.label.name()));
    if let Some(note) = &medium.note {
        line(format!("note = {}", quoted(note)));
    }
    let measurements: Vec<String> = medium.measurements.iter().map(|key| quoted(key)).collect();
    line(format!("measurements = [{}]", measurements.join(", ")));
    let capacity = &medium.capacity;
    line(format!(
        "capacity_bytes = {{ value = {}, source = {} }}",
        medium.capacity_bytes(),
        quoted(&capacity.source)
    ));
    line("\n[price]".into());
    line(format!("usd = {}", medium.price.usd));
    if medium.price.rented {
        line("rented = true".into());
    }
    line(format!("date = {}", quoted(&medium.price.date)));
    line(format!("source = {}", quoted(&medium.price.source)));
    if medium.price.estimate {
        line("estimate = true".into());
    }
    line("\n[sources]".into());
    for (key, source) in &medium.sources {
        line(format!("{key} = {}", quoted(source)));
    }
    // A fitted medium has neither rules for its size nor a tail, so the text needs no place for them.
    line("\n[model]".into());
    let order = if parameters.order.value == MeasuredOrder::Fifo { "fifo" } else { "any" };
    line(format!("order = {{ value = \"{order}\", source = {} }}", quoted(&parameters.order.source)));
    let device = &parameters.device;
    let buffer = &device.write_buffer_bytes;
    line(format!("write_buffer_bytes = {{ value = {}, source = {} }}", buffer.value, quoted(&buffer.source)));
    let drains = &device.flush_drains;
    line(format!("flush_drains = {{ value = {}, source = {} }}", drains.value, quoted(&drains.source)));
    line(format!("flush_us = {}", distribution(&device.flush_us)));
    for service in &parameters.service {
        line("\n[[model.service]]".into());
        line(format!("load = \"{}\"", service.load.name()));
        line(format!("block_bytes = {}", service.block_bytes));
        line(format!("latency_us = {}", distribution(&service.latency_us)));
        if let Some(iops) = &service.iops {
            line(format!("iops = {}", curve(iops)));
        }
    }
    for published in &medium.published {
        line("\n[[published]]".into());
        line(format!("figure = \"{}\"", published.figure.name()));
        line(format!("value = {}", published.value));
        line(format!("queue_depth = {}", published.queue_depth));
        line(format!("block_bytes = {}", published.block_bytes));
        if let Some(percentile) = published.percentile {
            line(format!("percentile = {percentile}"));
        }
        line(format!("source = {}", quoted(&published.source)));
        if let Some(note) = &published.note {
            line(format!("note = {}", quoted(note)));
        }
        if !published.contradicts.is_empty() {
            let entries = published.contradicts.iter().map(|contradiction| {
                format!(
                    "{{ with = {}, why = {} }}",
                    quoted(contradiction.with.name()),
                    quoted(&contradiction.why)
                )
            });
            line(format!("contradicts = [{}]", entries.collect::<Vec<_>>().join(", ")));
        }
    }
    text
}

fn quoted(text: &str) -> String {
    toml_edit::Value::from(text).to_string()
}

fn pairs(pairs: &[(f64, f64)]) -> String {
    let all: Vec<String> = pairs.iter().map(|(a, b)| format!("[{a}, {b}]")).collect();
    format!("[{}]", all.join(", "))
}

fn distribution(distribution: &SourcedDistribution) -> String {
    let estimate = if distribution.estimate { ", estimate = true" } else { "" };
    let source = quoted(&distribution.source);
    format!("{{ quantiles = {}, source = {source}{estimate} }}", pairs(&distribution.quantiles))
}

fn curve(curve: &SourcedCurve) -> String {
    format!("{{ points = {}, source = {} }}", pairs(&curve.points), quoted(&curve.source))
}
