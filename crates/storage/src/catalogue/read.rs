//! Reads the file of a medium.

use std::collections::BTreeMap;

use underlay_config::{Diagnostics, Spanned, nearest};

use super::parameters::{
    CloudParameters, FlashParameters, HddParameters, Inner, LinkParameters, MeasuredParameters, MediumKind,
    ModelParameters, NetworkParameters, PmemParameters, Tail,
};
use super::table::{Numbers, TableReader, parse_with};
use super::{Figure, Label, Medium, Price, Published, files, plain_number};

const LABELS: &[(&str, Label)] = &[
    ("datasheet", Label::Datasheet),
    ("estimate", Label::Estimate),
    ("proxy", Label::Proxy),
    ("measured", Label::Measured),
];

pub(super) fn parse(file_name: &str, text: &str) -> Result<Medium, Diagnostics> {
    parse_with(file_name, "the medium", text, |root| medium(root, true))
}

/// Of a medium that lies behind another one's link.
pub(super) fn parse_inner(file_name: &str, text: &str) -> Result<Medium, Diagnostics> {
    parse_with(file_name, "the medium", text, |root| medium(root, false))
}

/// `may_be_network`: what lies behind a link can't be a network volume.
fn medium(mut root: TableReader<'_>, may_be_network: bool) -> Option<Medium> {
    let name = root.name();
    let title = root.text("title", "the product in words");
    let kind = root.choice("kind", &choices());
    let year = root.number("year", 1950.0, 2100.0);
    let label = root.choice("label", LABELS);
    let note = root.optional_text("note", "a text");
    if label == Some(Label::Proxy) && note.is_none() && !root.has("note") {
        root.mistake("a proxy needs a `note` that says what stands for what");
    }
    let capacity = root.quantity(Numbers::Whole, "capacity_bytes", 1e6, 1e18);
    let price = price(&mut root);
    let model = read_model(&mut root, "[model]", kind, may_be_network);
    let tail = read_tail(&mut root);
    let published = published(&mut root);
    let sources = root.finish_file();
    Some(Medium {
        name: name?,
        title: title?.value,
        kind: kind?,
        year: year? as u16,
        label: label?,
        note,
        capacity: capacity?,
        price: price?,
        sources,
        model: model?,
        tail: tail?,
        published: published?,
    })
}

pub(super) fn price(root: &mut TableReader<'_>) -> Option<Price> {
    let mut table = root.inside("price", "[price]", "a table with usd, date and source")?;
    let usd = table.number("usd", 0.01, 1e9);
    let date = table.text("date", "the year or day of the price");
    let source = table.source();
    let estimate = table.flag("estimate");
    table.reject_unknown();
    Some(Price { usd: usd?, date: date?.value, source: source?, estimate })
}

fn published(root: &mut TableReader<'_>) -> Option<Vec<Published>> {
    const EXPECTED: &str = "one [[published]] for each published figure that the model is checked against";
    let choices: Vec<(&str, Figure)> = Figure::ALL.iter().map(|figure| (figure.name(), *figure)).collect();
    let counts = |table: &mut TableReader<'_>, key, low: f64, high, default: f64| {
        if table.has(key) { table.number(key, low, high) } else { Some(default) }
    };
    let (mut all, mut places) = (Vec::new(), Vec::new());
    for mut table in root.tables("published", "[[published]]", EXPECTED)? {
        let figure = table.choice("figure", &choices);
        let value = table.number("value", 0.001, 1e9);
        let queue_depth = counts(&mut table, "queue_depth", 1.0, 4096.0, 1.0);
        let block_bytes = counts(&mut table, "block_bytes", 512.0, 16e6, 4096.0);
        if let Some(bytes) = block_bytes
            && bytes % 512.0 != 0.0
        {
            table.mistake("`block_bytes` must be a multiple of 512");
        }
        let percentile = table.has("percentile").then(|| table.number("percentile", 1.0, 99.9999)).flatten();
        if table.has("percentile") && figure.is_some_and(|figure| !figure.has_percentiles()) {
            table.mistake("only latencies have a `percentile`");
        }
        let source = table.source();
        let estimate = table.flag("estimate");
        let note = table.optional_text("note", "the conditions, as a string");
        table.reject_unknown();
        if let (Some(figure), Some(value), Some(queue_depth), Some(block_bytes), Some(source)) =
            (figure, value, queue_depth, block_bytes, source)
        {
            let (queue_depth, block_bytes) = (queue_depth as u32, block_bytes as u32);
            places.push(table.place());
            all.push(Published {
                figure,
                value,
                queue_depth,
                block_bytes,
                percentile,
                source,
                estimate,
                note,
            });
        }
    }
    for (what, one, other) in published_contradictions(&all) {
        root.contradiction(&what, &places[one], Some(&places[other]));
    }
    Some(all)
}

/// Figures are rounded, and of several specimens.
const SLACK: f64 = 1.15;

/// Published figures that can't be of one device, by their places. A note says that a contradiction is known.
pub(crate) fn published_contradictions(all: &[Published]) -> Vec<(String, usize, usize)> {
    let mut found = Vec::new();
    for (one, rate) in all.iter().enumerate() {
        let (latency, stream) = match rate.figure {
            Figure::RandomReadIops => (Figure::ReadLatencyUs, Figure::SequentialReadMbS),
            Figure::RandomWriteIops => (Figure::WriteLatencyUs, Figure::SequentialWriteMbS),
            _ => continue,
        };
        let mb_s = rate.value * f64::from(rate.block_bytes) / 1e6;
        for (other, figure) in all.iter().enumerate() {
            if rate.note.is_some() || figure.note.is_some() {
                continue;
            }
            // Half of the requests take the median at least.
            let is_usual = figure.percentile.is_none_or(|percentile| percentile <= 50.0);
            let depth = f64::from(rate.queue_depth);
            if figure.figure == latency
                && is_usual
                && figure.queue_depth == 1
                && figure.block_bytes == rate.block_bytes
            {
                let share = figure.percentile.map_or(1.0, |percentile| 1.0 - percentile / 100.0);
                let most = depth * 1e6 / (figure.value * share);
                if rate.value > most * SLACK {
                    let (rate, figure, most) =
                        (plain_number(rate.value), plain_number(figure.value), plain_number(most.round()));
                    found.push((format!("{rate} IOPS at queue depth {depth} and {figure} µs each: by Little's law that is {most} at most"), one, other));
                }
            }
            let has_more_under_way = u64::from(figure.queue_depth) * u64::from(figure.block_bytes)
                >= u64::from(rate.queue_depth) * u64::from(rate.block_bytes);
            if figure.figure == stream && has_more_under_way && mb_s > figure.value * SLACK {
                let (iops, bytes, mb_s, stream) = (
                    plain_number(rate.value),
                    rate.block_bytes,
                    plain_number(mb_s.round()),
                    plain_number(figure.value),
                );
                found.push((format!("{iops} random requests a second of {bytes} bytes are {mb_s} MB/s, and a stream has {stream}"), one, other));
            }
        }
    }
    found
}

/// The kinds by the names that files use.
fn choices() -> Vec<(&'static str, MediumKind)> {
    MediumKind::ALL.iter().map(|kind| (kind.name(), *kind)).collect()
}

/// Reads the table `model`, of the file or of what lies behind a link.
fn read_model(
    parent: &mut TableReader<'_>,
    name: &str,
    kind: Option<MediumKind>,
    may_be_network: bool,
) -> Option<ModelParameters> {
    let mut table = parent.inside("model", name, "the table of the model's parameters")?;
    let parameters = match kind? {
        MediumKind::Hdd => HddParameters::read(&mut table).map(ModelParameters::Hdd),
        MediumKind::Flash => FlashParameters::read(&mut table).map(ModelParameters::Flash),
        MediumKind::Cloud => CloudParameters::read(&mut table).map(ModelParameters::Cloud),
        MediumKind::Pmem => PmemParameters::read(&mut table).map(ModelParameters::Pmem),
        MediumKind::Network if may_be_network => read_network(&mut table).map(ModelParameters::Network),
        MediumKind::Network => {
            table.mistake("a network volume can't be behind another: state one link");
            return None;
        }
        MediumKind::Measured => MeasuredParameters::read(&mut table).map(ModelParameters::Measured),
    };
    table.reject_unknown();
    for problem in parameters.iter().flat_map(ModelParameters::problems) {
        table.mistake(problem);
    }
    parameters
}

/// The link, and the medium behind it: `medium = "name"`, or `[model.inner]` with `kind` and `model`.
fn read_network(table: &mut TableReader<'_>) -> Option<NetworkParameters> {
    let link = LinkParameters::read(table);
    let inner = if table.has("inner") {
        if let Some(field) = table.optional("medium") {
            table.mistake_at(field.span, "state `medium` or [model.inner], not both");
        }
        inner_in_place(table)
    } else {
        inner_by_name(table)
    };
    Some(NetworkParameters { link: link?, inner: Box::new(inner?) })
}

fn inner_in_place(table: &mut TableReader<'_>) -> Option<Inner> {
    let mut inside = table.inside("inner", "[model.inner]", "the table of the medium behind the link")?;
    let capacity_bytes = inside.number("capacity_bytes", 1e6, 1e18);
    let kind = inside.choice("kind", &choices());
    let model = read_model(&mut inside, "[model.inner.model]", kind, false);
    let tail = read_tail(&mut inside);
    inside.reject_unknown();
    Some(Inner {
        name: None,
        capacity_bytes: capacity_bytes?,
        sources: BTreeMap::new(),
        model: model?,
        tail: tail?,
    })
}

fn inner_by_name(table: &mut TableReader<'_>) -> Option<Inner> {
    let expected = "the name of the medium behind the link, or describe it in [model.inner]";
    let Spanned { value: name, span } = table.text("medium", expected)?;
    // From the file itself: the list of all media may be what is being made right now.
    let path = format!("media/{name}.toml");
    let Some((path, text)) = files::MEDIA.iter().find(|(file, _)| *file == path) else {
        let names =
            files::MEDIA.iter().filter_map(|(file, _)| file.strip_prefix("media/")?.strip_suffix(".toml"));
        let hint = match nearest(&name, names).first() {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => "`underlay media list` names all".to_owned(),
        };
        table.mistake_at(span, format!("there is no medium \"{name}\" in the catalogue: {hint}"));
        return None;
    };
    match parse_inner(path, text) {
        Ok(medium) => Some(Inner {
            capacity_bytes: medium.capacity.value,
            name: Some(name),
            sources: medium.sources,
            model: medium.model,
            tail: medium.tail,
        }),
        Err(error) => {
            let first = error.findings().first().map_or_else(String::new, |finding| finding.in_one_line());
            table.mistake_at(span, format!("\"{name}\" can't be behind a link: {first}"));
            None
        }
    }
}

/// The outer `None` is for a mistake, the inner one for no tail.
fn read_tail(parent: &mut TableReader<'_>) -> Option<Option<Tail>> {
    if !parent.has("tail") {
        return Some(None);
    }
    let mut table = parent.inside("tail", "[tail]", "a table with `measure`, `read_us` and `write_us`")?;
    let tail = Tail::read(&mut table);
    table.reject_unknown();
    for problem in tail.iter().flat_map(Tail::problems) {
        table.mistake(problem);
    }
    tail.map(Some)
}
