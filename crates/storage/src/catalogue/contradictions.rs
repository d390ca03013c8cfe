//! What no single device can do: statements of a medium's file that contradict each other, by Little's law between
//! latency, depth and rate, between sizes of blocks, and between what comes at random and what comes in sequence.

use serde::{Deserialize, Serialize};

use super::parameters::{MeasuredLoad, MeasuredOrder, MeasuredParameters, MeasuredService, ModelParameters};
use super::{FigureKind, PublishedPerformance, plain_number};

/// A statement of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileStatement {
    /// `latency_us` of a service, by its place among the services.
    Latency(usize),
    /// Its `iops`.
    Iops(usize),
    /// Its `mb_s`.
    Bandwidth(usize),
    /// A published figure, by its place among them.
    Published(usize),
}

impl FileStatement {
    /// The service that it is of.
    pub(crate) fn service(self) -> Option<usize> {
        match self {
            FileStatement::Latency(place) | FileStatement::Iops(place) | FileStatement::Bandwidth(place) => {
                Some(place)
            }
            FileStatement::Published(_) => None,
        }
    }
}

/// Two statements that can't be about one device.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FigureContradiction {
    pub(crate) what: String,
    /// The one to give up where both were measured: of two services the one that is slower than the other allows, since
    /// every disturbance makes a probe slower; and a published figure before a service.
    pub(crate) one: FileStatement,
    pub(crate) other: FileStatement,
}

/// Statements that a published figure may contradict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ContradictionSubject {
    Figure(FigureKind),
    /// A `[[model.service]]` of this load.
    Load(MeasuredLoad),
}

impl ContradictionSubject {
    /// As catalogue files write it.
    pub fn name(self) -> &'static str {
        match self {
            ContradictionSubject::Figure(figure) => figure.name(),
            ContradictionSubject::Load(load) => load.name(),
        }
    }

    pub(super) fn choices() -> Vec<(&'static str, ContradictionSubject)> {
        let figures = FigureKind::ALL.iter().map(|figure| ContradictionSubject::Figure(*figure));
        let loads = MeasuredLoad::ALL.iter().map(|load| ContradictionSubject::Load(*load));
        figures.chain(loads).map(|one| (one.name(), one)).collect()
    }
}

/// A contradiction that a file admits: both are in it, and it says why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KnownContradiction {
    pub with: ContradictionSubject,
    pub why: String,
}

/// Measurements scatter, a prober takes time of its own, and figures are rounded and of several specimens.
const SLACK: f64 = 1.15;
/// The rate at queue depth 1 may be so much lower than its latency allows.
const IDLE: f64 = 0.7;
/// A larger block may be answered so much faster than a smaller one, and move so much less data; and so much less may
/// come in sequence than at random.
const BETWEEN_PROBES: f64 = 0.7;
/// With so much in flight a disk's head need not wait for the next request of a stream.
const STREAMING_BYTES: f64 = 65_536.0;
/// And with so much any device moves what it can.
const SATURATING_BYTES: f64 = 1_048_576.0;

/// Of what a measured device does load by load.
pub(crate) fn check_services(services: &[MeasuredService]) -> Vec<FigureContradiction> {
    let mut found = Vec::new();
    for (place, service) in services.iter().enumerate() {
        within(place, service, &mut found);
        for (other, larger) in services.iter().enumerate() {
            if larger.load == service.load && larger.block_bytes > service.block_bytes {
                found.extend(between_sizes(services, place, other));
            }
        }
        found.extend(beyond_its_stream(services, place));
    }
    found
}

/// Of a service by itself.
fn within(place: usize, service: &MeasuredService, found: &mut Vec<FigureContradiction>) {
    let (latency, iops) = (FileStatement::Latency(place), FileStatement::Iops(place));
    let mut push =
        |description: String, one, other| found.push(FigureContradiction { what: description, one, other });
    let mean_us = mean_us_of(service);
    let name = service.load.name();
    for &(depth, rate) in service.iops.iter().flat_map(|iops| &iops.points) {
        let most = depth * 1e6 / mean_us;
        if rate > most * SLACK {
            let description = format!(
                "{name}: {} requests a second at queue depth {} can't take {} µs each: by Little's law that is {} at most",
                plain_number(rate),
                plain_number(depth),
                rounded(mean_us),
                rounded(most)
            );
            push(description, iops, latency);
            // Further points would accuse the same two statements.
            break;
        }
        // Only here a rate can be too low: with more requests in flight the device's own limit may hold it down.
        if depth == 1.0 && rate < most * IDLE {
            let description = format!(
                "{name}: at queue depth 1 a latency of {} µs is {} requests a second, and `iops` says {}",
                rounded(mean_us),
                rounded(most),
                plain_number(rate)
            );
            push(description, iops, latency);
        }
    }
    // A device that takes so many blocks a second moves all of their bytes.
    if let Some(mb_s) = &service.mb_s
        && most_mb_s(service) > mb_s.value * SLACK
    {
        let description = format!(
            "{name}: {} blocks a second of {} bytes are {} MB/s, and `mb_s` says {}",
            plain_number(most_iops(service)),
            service.block_bytes,
            rounded(most_mb_s(service)),
            plain_number(mb_s.value)
        );
        push(description, FileStatement::Bandwidth(place), rate_of(place, service));
    }
}

/// Of two services of a load, by the sizes of their blocks.
fn between_sizes(services: &[MeasuredService], smaller: usize, larger: usize) -> Option<FigureContradiction> {
    let (small, large) = (&services[smaller], &services[larger]);
    let name = small.load.name();
    let (small_us, large_us) = (mean_us_of(small), mean_us_of(large));
    if large_us < small_us * BETWEEN_PROBES {
        let description = format!(
            "{name}: {} bytes take {} µs, and {} bytes {} µs",
            large.block_bytes,
            rounded(large_us),
            small.block_bytes,
            rounded(small_us)
        );
        let (one, other) = (FileStatement::Latency(smaller), FileStatement::Latency(larger));
        return Some(FigureContradiction { what: description, one, other });
    }
    (most_mb_s(large) < most_mb_s(small) * BETWEEN_PROBES).then(|| FigureContradiction {
        what: format!(
            "{name}: blocks of {} bytes come at {} MB/s at most, and smaller ones of {} bytes at {}",
            large.block_bytes,
            rounded(most_mb_s(large)),
            small.block_bytes,
            rounded(most_mb_s(small))
        ),
        one: rate_of(larger, large),
        other: rate_of(smaller, small),
    })
}

/// Requests at random that move more than any stream of blocks as large, as many of them in flight.
fn beyond_its_stream(services: &[MeasuredService], place: usize) -> Option<FigureContradiction> {
    let random = &services[place];
    let stream = stream_of(random.load)?;
    points_of(random).into_iter().find_map(|(depth, iops)| {
        let mb_s = iops * f64::from(random.block_bytes) / 1e6;
        let (slower, most) = fastest_stream(services, stream, depth, random.block_bytes)?;
        (most < mb_s * BETWEEN_PROBES).then(|| FigureContradiction {
            what: format!(
                "{}: {} requests a second of {} bytes at queue depth {} are {} MB/s, and {} comes at {} at most",
                random.load.name(),
                plain_number(iops),
                random.block_bytes,
                plain_number(depth),
                rounded(mb_s),
                stream.name(),
                rounded(most)
            ),
            one: rate_of(slower, &services[slower]),
            other: rate_of(place, random),
        })
    })
}

/// What is published of a medium, with itself and with the services of a measured one; without what the file admits.
pub(crate) fn check_figures(
    published: &[PublishedPerformance],
    model: Option<&ModelParameters>,
) -> Vec<FigureContradiction> {
    let mut found = all_of_figures(published, model);
    found.retain(|contradiction| admitted(contradiction, published, model).next().is_none());
    found
}

/// Admitted contradictions that are none: places of a figure, and of the entry in its `contradicts`.
pub(super) fn unfounded(
    published: &[PublishedPerformance],
    model: Option<&ModelParameters>,
) -> Vec<(usize, usize)> {
    let found = all_of_figures(published, model);
    let founded: Vec<(usize, usize)> =
        found.iter().flat_map(|contradiction| admitted(contradiction, published, model)).collect();
    let all = published
        .iter()
        .enumerate()
        .flat_map(|(place, figure)| (0..figure.contradicts.len()).map(move |entry| (place, entry)));
    all.filter(|one| !founded.contains(one)).collect()
}

fn all_of_figures(
    published: &[PublishedPerformance],
    model: Option<&ModelParameters>,
) -> Vec<FigureContradiction> {
    let mut found = Vec::new();
    between_figures(published, model, &mut found);
    if let Some(ModelParameters::Measured(measured)) = model {
        for (place, figure) in published.iter().enumerate() {
            with_services(place, figure, measured, &mut found);
        }
    }
    found
}

/// Where the file says that it knows of a contradiction: figures, and the entries in their `contradicts`.
fn admitted<'a>(
    contradiction: &'a FigureContradiction,
    published: &'a [PublishedPerformance],
    model: Option<&'a ModelParameters>,
) -> impl Iterator<Item = (usize, usize)> + 'a {
    let pairs =
        [(contradiction.one, contradiction.other), (contradiction.other, contradiction.one)].into_iter();
    pairs.flat_map(move |(one, other)| {
        let subject = subject_of(other, published, model);
        let (place, entries) = match one {
            FileStatement::Published(place) => (place, &published[place].contradicts[..]),
            _ => (0, &[][..]),
        };
        let matching = entries.iter().enumerate().filter(move |(_, entry)| subject == Some(entry.with));
        matching.map(move |(entry, _)| (place, entry))
    })
}

/// As a file names it.
pub(crate) fn subject_of(
    statement: FileStatement,
    published: &[PublishedPerformance],
    model: Option<&ModelParameters>,
) -> Option<ContradictionSubject> {
    match (statement, model) {
        (FileStatement::Published(place), _) => Some(ContradictionSubject::Figure(published[place].figure)),
        (of_service, Some(ModelParameters::Measured(measured))) => {
            of_service.service().map(|place| ContradictionSubject::Load(measured.service[place].load))
        }
        _ => None,
    }
}

fn between_figures(
    all: &[PublishedPerformance],
    model: Option<&ModelParameters>,
    found: &mut Vec<FigureContradiction>,
) {
    // One request at a time waits for a rented volume's rate, which its latency leaves out; and full buffers make
    // writes wait.
    let is_rented = matches!(model, None | Some(ModelParameters::Cloud(_) | ModelParameters::Network(_)));
    for (one, rate) in all.iter().enumerate() {
        let (latency, stream) = match rate.figure {
            FigureKind::RandomReadIops => (FigureKind::ReadLatencyUs, FigureKind::SequentialReadMbS),
            FigureKind::RandomWriteIops => (FigureKind::WriteLatencyUs, FigureKind::SequentialWriteMbS),
            FigureKind::BurstReadIops => (FigureKind::ReadLatencyUs, FigureKind::BurstReadMbS),
            FigureKind::BurstWriteIops => (FigureKind::WriteLatencyUs, FigureKind::BurstWriteMbS),
            _ => continue,
        };
        let waits_alone = !is_rented && rate.queue_depth == 1 && rate.figure != FigureKind::RandomWriteIops;
        let (iops, depth) = (plain_number(rate.value), rate.queue_depth);
        let mb_s = rate.value * f64::from(rate.block_bytes) / 1e6;
        for (other, figure) in all.iter().enumerate() {
            let mut push = |description| {
                let (one, other) = (FileStatement::Published(one), FileStatement::Published(other));
                found.push(FigureContradiction { what: description, one, other });
            };
            let figure_text = plain_number(figure.value);
            // Half of the requests take the median at least.
            let is_usual = figure.percentile.is_none_or(|percentile| percentile <= 50.0);
            let is_alone = figure.queue_depth == 1 && figure.block_bytes == rate.block_bytes;
            if figure.figure == latency && is_usual && is_alone {
                let share = figure.percentile.map_or(1.0, |percentile| 1.0 - percentile / 100.0);
                let most = f64::from(depth) * 1e6 / (figure.value * share);
                if rate.value > most * SLACK {
                    push(format!(
                        "{iops} IOPS at queue depth {depth} and {figure_text} µs each: by Little's law that is {} at most",
                        rounded(most)
                    ));
                } else if waits_alone && figure.percentile.is_none() && rate.value < most * IDLE {
                    push(format!(
                        "{iops} IOPS at queue depth 1 and {figure_text} µs each: by Little's law that is {}",
                        rounded(most)
                    ));
                }
            }
            let has_more_under_way = u64::from(figure.queue_depth) * u64::from(figure.block_bytes)
                >= u64::from(rate.queue_depth) * u64::from(rate.block_bytes);
            if figure.figure == stream && has_more_under_way && mb_s > figure.value * SLACK {
                push(format!(
                    "{iops} random requests a second of {} bytes are {} MB/s, and a stream has {figure_text}",
                    rate.block_bytes,
                    rounded(mb_s)
                ));
            }
        }
    }
}

/// A published rate or stream against what the services say of the same requests, and of others that bound them.
fn with_services(
    place: usize,
    figure: &PublishedPerformance,
    measured: &MeasuredParameters,
    found: &mut Vec<FigureContradiction>,
) {
    use MeasuredLoad::{RandomRead, RandomWrite, SequentialRead, SequentialWrite};
    let load = match figure.figure {
        FigureKind::RandomReadIops => RandomRead,
        FigureKind::RandomWriteIops => RandomWrite,
        FigureKind::SequentialReadMbS => SequentialRead,
        FigureKind::SequentialWriteMbS => SequentialWrite,
        _ => return,
    };
    let services = &measured.service;
    let block_bytes = f64::from(figure.block_bytes);
    let depth = f64::from(figure.queue_depth);
    let (iops, mb_s) = match stream_of(load) {
        Some(_) => (figure.value, figure.value * block_bytes / 1e6),
        None => (figure.value * 1e6 / block_bytes, figure.value),
    };
    let mut push = |description, other| {
        found.push(FigureContradiction { what: description, one: FileStatement::Published(place), other });
    };
    let stated = format!("{} {}", figure.figure.name(), plain_number(figure.value));
    let alike =
        |service: &&MeasuredService| service.load == load && service.block_bytes == figure.block_bytes;
    if let Some((index, service)) = services.iter().enumerate().find(|(_, service)| alike(service)) {
        let is_buffered =
            matches!(load, RandomWrite | SequentialWrite) && measured.device.write_buffer_bytes.value > 0.0;
        let (least, most, statement) = allowed_at(index, service, depth, is_buffered);
        if iops > most * SLACK || iops < least / SLACK {
            let (bound, words) = if iops > most { (most, "at most") } else { (least, "at least") };
            // In the figure's own unit.
            let bound = bound * figure.value / iops;
            let description = format!(
                "{stated} at queue depth {} with {} bytes, and by its service that is {} {words}",
                figure.queue_depth,
                figure.block_bytes,
                rounded(bound)
            );
            push(description, statement);
        }
    }
    let Some(stream) = stream_of(load) else {
        let is_disk = measured.order.value == MeasuredOrder::Any;
        stream_with_services(figure, load, services, is_disk, &mut push);
        return;
    };
    if let Some((index, most)) = fastest_stream(services, stream, depth, figure.block_bytes)
        && most < mb_s * BETWEEN_PROBES
    {
        let description = format!(
            "{stated} is {} MB/s, and {} comes at {} at most",
            rounded(mb_s),
            stream.name(),
            rounded(most)
        );
        push(description, rate_of(index, &services[index]));
    }
}

/// A published stream is what the device moves at most: services of its direction that move more with no more under
/// way, or on a disk at all.
fn stream_with_services(
    figure: &PublishedPerformance,
    load: MeasuredLoad,
    services: &[MeasuredService],
    is_disk: bool,
    push: &mut impl FnMut(String, FileStatement),
) {
    let under_way = f64::from(figure.queue_depth) * f64::from(figure.block_bytes);
    let bounds_all = under_way >= SATURATING_BYTES || (is_disk && under_way >= STREAMING_BYTES);
    let most = figure.value * SLACK;
    let stated = format!("{} {}", figure.figure.name(), plain_number(figure.value));
    for (index, service) in services.iter().enumerate() {
        if service.load != load && stream_of(service.load) != Some(load) {
            continue;
        }
        let name = service.load.name();
        let block_bytes = f64::from(service.block_bytes);
        let points = points_of(service);
        // Statements about the same requests were compared already.
        let is_alike = service.load == load && service.block_bytes == figure.block_bytes;
        let is_compared =
            is_alike && points.last().is_some_and(|deepest| f64::from(figure.queue_depth) <= deepest.0);
        let exceeding = points.into_iter().find(|(depth, iops)| {
            let is_bound = bounds_all || depth * block_bytes <= under_way;
            is_bound && iops * block_bytes / 1e6 > most
        });
        if let Some((depth, iops)) = exceeding.filter(|_| !is_compared) {
            let description = format!(
                "{stated}, and {name} of {} bytes comes at {} MB/s at queue depth {}",
                service.block_bytes,
                rounded(iops * block_bytes / 1e6),
                plain_number(depth)
            );
            push(description, rate_of(index, service));
        }
        if let Some(mb_s) = &service.mb_s
            && bounds_all
            && mb_s.value > most
        {
            let description = format!("{stated}, and `mb_s` of {name} is {}", plain_number(mb_s.value));
            push(description, FileStatement::Bandwidth(index));
        }
    }
}

/// The least and the most requests a second that a service allows at a depth, and which of its statements says so.
fn allowed_at(
    place: usize,
    service: &MeasuredService,
    depth: f64,
    is_buffered: bool,
) -> (f64, f64, FileStatement) {
    let alone = 1e6 / mean_us_of(service);
    let (least, most, statement) = match &service.iops {
        Some(iops) if iops.points.last().is_some_and(|deepest| depth <= deepest.0) => {
            let rate = iops.logarithmic_at(depth);
            (rate, rate, FileStatement::Iops(place))
        }
        None if depth == 1.0 => (alone, alone, FileStatement::Latency(place)),
        // Deeper than it was measured, only Little's law is sure.
        _ => (0.0, depth * alone, FileStatement::Latency(place)),
    };
    // A full buffer drains as fast as the device can, however few writes are in flight.
    let most = if is_buffered { most.max(most_iops(service)) } else { most };
    (least, most, statement)
}

/// The service of a stream that moves most, of those with blocks as large, and as many of them in flight; and how much
/// that is.
fn fastest_stream(
    services: &[MeasuredService],
    stream: MeasuredLoad,
    depth: f64,
    block_bytes: u32,
) -> Option<(usize, f64)> {
    let alike = services
        .iter()
        .enumerate()
        .filter(|(_, service)| service.load == stream && service.block_bytes >= block_bytes);
    let rates = alike.flat_map(|(place, service)| {
        let deep = points_of(service).into_iter().filter(move |point| point.0 >= depth);
        deep.map(move |(_, iops)| (place, iops * f64::from(service.block_bytes) / 1e6))
    });
    rates.max_by(|a, b| a.1.total_cmp(&b.1))
}

/// The same in sequence; none of what is in sequence, or finds room in a buffer.
fn stream_of(load: MeasuredLoad) -> Option<MeasuredLoad> {
    match load {
        MeasuredLoad::RandomRead => Some(MeasuredLoad::SequentialRead),
        MeasuredLoad::RandomWrite => Some(MeasuredLoad::SequentialWrite),
        MeasuredLoad::SequentialRead | MeasuredLoad::SequentialWrite | MeasuredLoad::BufferedWrite => None,
    }
}

/// Depths and rates that the service states.
fn points_of(service: &MeasuredService) -> Vec<(f64, f64)> {
    match &service.iops {
        Some(iops) => iops.points.clone(),
        None => vec![(1.0, 1e6 / mean_us_of(service))],
    }
}

/// The statement that says how many it answers.
fn rate_of(place: usize, service: &MeasuredService) -> FileStatement {
    match &service.iops {
        Some(_) => FileStatement::Iops(place),
        None => FileStatement::Latency(place),
    }
}

/// One that takes no time would have no rate.
fn mean_us_of(service: &MeasuredService) -> f64 {
    service.latency_us.mean().max(1e-3)
}

/// At the depth at which most are answered.
fn most_iops(service: &MeasuredService) -> f64 {
    points_of(service).into_iter().map(|point| point.1).fold(0.0, f64::max)
}

fn most_mb_s(service: &MeasuredService) -> f64 {
    most_iops(service) * f64::from(service.block_bytes) / 1e6
}

fn rounded(value: f64) -> String {
    plain_number(value.round())
}
