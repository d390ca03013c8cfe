//! Which requests a medium's sources say something about.

use underlay_record::CoveredShare;

use super::trace::TracedRequest;
use crate::catalogue::{CatalogueMedium, CloudParameters, FigureKind, MeasuredLoad, ModelParameters};
use crate::medium::ModelOperation;

/// A size this many times that of a figure, or as many times smaller, is still near it.
const NEAR_SIZE: f64 = 2.0;
/// And so is a depth.
const NEAR_DEPTH: f64 = 2.0;
/// So little passes under a disk's head in a twentieth of the time that it takes to get there.
const HARDLY_TRANSFERRED_BYTES: f64 = 65_536.0;
/// Requests that follow where one of so many before ended are a stream.
const STREAMS: usize = 32;
/// Among so many neighbours on either side ...
const NEIGHBOURS: usize = 32;
/// ... a kind of operation that has this share of them is alone.
const ALONE: f64 = 0.9;

/// The sources' knowledge of one kind of request.
#[derive(Clone, Copy, Debug, PartialEq)]
struct KnownRequests {
    operation: ModelOperation,
    is_random: bool,
    least_bytes: f64,
    most_bytes: f64,
    least_depth: f64,
    most_depth: f64,
}

impl KnownRequests {
    fn with_block_size(
        operation: ModelOperation,
        is_random: bool,
        block_bytes: f64,
        depths: (f64, f64),
    ) -> KnownRequests {
        let (least_depth, most_depth) = depths;
        KnownRequests {
            operation,
            is_random,
            least_bytes: block_bytes,
            most_bytes: block_bytes,
            least_depth,
            most_depth,
        }
    }
}

/// The figures that a source gives: published ones, the loads of `[[measured]]`, and of measured media the loads that
/// were measured. Estimates are none.
fn known(medium: &CatalogueMedium) -> Vec<KnownRequests> {
    let mut all = Vec::new();
    for published in medium.published.iter().filter(|published| !published.estimate) {
        let (operation, is_random) = match published.figure {
            FigureKind::RandomReadIops | FigureKind::BurstReadIops | FigureKind::ReadLatencyUs => {
                (ModelOperation::Read, true)
            }
            FigureKind::RandomWriteIops | FigureKind::BurstWriteIops | FigureKind::WriteLatencyUs => {
                (ModelOperation::Write, true)
            }
            FigureKind::SequentialReadMbS | FigureKind::BurstReadMbS => (ModelOperation::Read, false),
            FigureKind::SequentialWriteMbS | FigureKind::BurstWriteMbS => (ModelOperation::Write, false),
            FigureKind::SeekAverageReadMs | FigureKind::PositioningReadMs => (ModelOperation::Read, true),
            FigureKind::SeekAverageWriteMs => (ModelOperation::Write, true),
            FigureKind::FlushLatencyUs => (ModelOperation::Flush, true),
            // It says how long credits last, and nothing of a request.
            FigureKind::BurstDurationS => continue,
        };
        let depth = f64::from(published.queue_depth);
        let block_bytes = f64::from(published.block_bytes);
        let one = KnownRequests::with_block_size(operation, is_random, block_bytes, (depth, depth));
        match &medium.model {
            ModelParameters::Cloud(parameters) => {
                all.extend(widen_for_volume(one, published.figure, parameters))
            }
            ModelParameters::Hdd(_) if is_random => {
                // Below this the way of the head takes nearly all of the time, so the figure holds for any smaller
                // size.
                let most_bytes = block_bytes.max(HARDLY_TRANSFERRED_BYTES);
                all.push(KnownRequests { least_bytes: 0.0, most_bytes, ..one });
            }
            _ => all.push(one),
        }
    }
    if let ModelParameters::Measured(parameters) = &medium.model {
        for service in parameters.service.iter().filter(|service| !service.latency_us.estimate) {
            let (operation, is_random) = match service.load {
                MeasuredLoad::RandomRead => (ModelOperation::Read, true),
                MeasuredLoad::SequentialRead => (ModelOperation::Read, false),
                MeasuredLoad::RandomWrite | MeasuredLoad::BufferedWrite => (ModelOperation::Write, true),
                MeasuredLoad::SequentialWrite => (ModelOperation::Write, false),
            };
            let curve = service.iops.as_ref().filter(|iops| !iops.estimate);
            // The latency was measured with one request in flight. Only the curve says more of depths.
            let most_depth = curve.and_then(|iops| iops.points.last()).map_or(1.0, |point| point.0);
            let block_bytes = f64::from(service.block_bytes);
            all.push(KnownRequests::with_block_size(operation, is_random, block_bytes, (1.0, most_depth)));
        }
        if !parameters.device.flush_us.estimate {
            all.push(KnownRequests::with_block_size(ModelOperation::Flush, true, 0.0, (1.0, f64::INFINITY)));
        }
    }
    for row in &medium.measured {
        // A drive that keeps up has little in flight; one that does not has all that the streams allow.
        let most_depth = match row.is_saturated() {
            true => f64::from(row.background_streams) * f64::from(row.most_under_way),
            false => 1.0,
        };
        let block_bytes = f64::from(row.block_bytes);
        // Only what the probe asked for has latencies.
        let kinds = [(ModelOperation::Read, &row.read_us), (ModelOperation::Write, &row.write_us)];
        all.extend(kinds.into_iter().filter(|(_, latencies)| !latencies.is_empty()).map(|(operation, _)| {
            KnownRequests::with_block_size(operation, true, block_bytes, (1.0, most_depth))
        }));
    }
    all
}

/// Widens the range of a rented volume's figure. A rate is a limit: more requests at once wait longer and get no
/// further. One in operations holds for every size that its provider counts as one, and most providers don't care where
/// on the volume it lies.
fn widen_for_volume(
    one: KnownRequests,
    figure: FigureKind,
    parameters: &CloudParameters,
) -> Vec<KnownRequests> {
    let unit = &parameters.io_unit_bytes;
    let rate = match figure {
        FigureKind::RandomReadIops
        | FigureKind::BurstReadIops
        | FigureKind::RandomWriteIops
        | FigureKind::BurstWriteIops => {
            let counted_bytes = if unit.estimate { 0.0 } else { unit.value };
            KnownRequests { least_bytes: 0.0, most_bytes: one.most_bytes.max(counted_bytes), ..one }
        }
        FigureKind::SequentialReadMbS
        | FigureKind::BurstReadMbS
        | FigureKind::SequentialWriteMbS
        | FigureKind::BurstWriteMbS => KnownRequests { most_bytes: f64::INFINITY, ..one },
        _ => return vec![one],
    };
    let rate = KnownRequests { most_depth: f64::INFINITY, ..rate };
    match parameters.random_charge_bytes {
        Some(_) => vec![rate],
        None => vec![rate, KnownRequests { is_random: !rate.is_random, ..rate }],
    }
}

/// The shares of the requests that are covered. Discards take hardly any time, and are not looked at.
pub fn covered(medium: &CatalogueMedium, segments: &[Vec<TracedRequest>]) -> CoveredShare {
    let known_requests = known(medium);
    let (mut count, mut sums) = (0.0, [0.0; 5]);
    for segment in segments {
        let mut streams = Vec::new();
        for (place, traced) in segment.iter().enumerate() {
            let is_random = !goes_on(&mut streams, traced);
            if traced.operation == ModelOperation::Discard {
                continue;
            }
            count += 1.0;
            let found = judge(&known_requests, traced, is_random);
            let alone = share_alike(segment, place) >= ALONE;
            for (sum, is_covered) in sums.iter_mut().zip([found[0], found[1], found[2], alone, found[2]]) {
                *sum += f64::from(u8::from(is_covered));
            }
        }
    }
    let [kind, size, depth, mix, all] = sums.map(|sum: f64| sum / f64::max(count, 1.0));
    CoveredShare { kind, size, depth, mix, all }
}

/// Whether something is known of its kind; of its size, too; of its depth, too.
fn judge(known_requests: &[KnownRequests], traced: &TracedRequest, is_random: bool) -> [bool; 3] {
    if traced.operation == ModelOperation::Flush {
        return [known_requests.iter().any(|one| one.operation == ModelOperation::Flush); 3];
    }
    let of_kind: Vec<&KnownRequests> = known_requests
        .iter()
        .filter(|one| one.operation == traced.operation && one.is_random == is_random)
        .collect();
    let span = |field: &dyn Fn(&KnownRequests) -> f64| {
        let least = of_kind.iter().map(|one| field(one)).fold(f64::INFINITY, f64::min);
        let most = of_kind.iter().map(|one| field(one)).fold(0.0, f64::max);
        (least, most)
    };
    let length = traced.length_bytes as f64;
    let (smallest, largest) = (span(&|one| one.least_bytes).0, span(&|one| one.most_bytes).1);
    let is_sized = length >= smallest / NEAR_SIZE && length <= largest * NEAR_SIZE;
    let depth = f64::from(traced.depth) + 1.0;
    let least = span(&|one| one.least_depth).0;
    let most = span(&|one| one.most_depth).1;
    let is_deep = depth >= least / NEAR_DEPTH && depth <= most * NEAR_DEPTH;
    let has_kind = !of_kind.is_empty();
    [has_kind, has_kind && is_sized, has_kind && is_sized && is_deep]
}

/// Whether it begins where one of the latest ended.
fn goes_on(streams: &mut Vec<u64>, traced: &TracedRequest) -> bool {
    if !matches!(traced.operation, ModelOperation::Read | ModelOperation::Write) {
        return false;
    }
    let found = streams.iter().position(|end| *end == traced.offset_bytes);
    if let Some(index) = found {
        streams.remove(index);
    } else if streams.len() == STREAMS {
        streams.remove(0);
    }
    streams.push(traced.offset_bytes + traced.length_bytes);
    found.is_some()
}

/// The share of its own operation among the reads and writes around it.
fn share_alike(segment: &[TracedRequest], place: usize) -> f64 {
    let around = &segment[place.saturating_sub(NEIGHBOURS)..(place + NEIGHBOURS + 1).min(segment.len())];
    let moving = |one: &&TracedRequest| matches!(one.operation, ModelOperation::Read | ModelOperation::Write);
    let all = around.iter().filter(moving).count();
    let alike = around.iter().filter(moving).filter(|one| one.operation == segment[place].operation).count();
    if all == 0 || segment[place].operation == ModelOperation::Flush {
        1.0
    } else {
        alike as f64 / all as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue;

    fn requests(operation: ModelOperation, length_bytes: u64, depth: u32) -> Vec<Vec<TracedRequest>> {
        // Strides of a prime: never where one of the latest ended.
        let one = |number: u64| TracedRequest {
            operation,
            offset_bytes: number * 7_919 * 4096,
            length_bytes,
            fua: false,
            depth,
            idle_ns: 0,
        };
        vec![(0..200).map(one).collect()]
    }

    #[test]
    fn sourced_requests_are_covered_others_not() {
        // Its guide speaks of 16 KiB at random and of 256 KiB in sequence.
        let medium = catalogue::find("ebs-io2").unwrap();
        let all = |requests: &[Vec<TracedRequest>]| covered(&medium, requests);
        assert_eq!(all(&requests(ModelOperation::Read, 16_384, 63)).all, 1.0);
        let large = all(&requests(ModelOperation::Flush, 0, 63));
        assert_eq!((large.kind, large.all), (0.0, 0.0), "nothing is said of flushes");
        let shallow = all(&requests(ModelOperation::Write, 16_384, 0));
        assert_eq!((shallow.size, shallow.depth), (1.0, 0.0), "the one figure of writes has 64 in flight");
        // What counts as one operation is 256 KiB at most: an operation is an operation, up to there and however many
        // wait.
        for (length_bytes, depth) in [(512, 63), (65_536, 255), (262_144, 1023)] {
            let found = all(&requests(ModelOperation::Write, length_bytes, depth));
            assert_eq!(found.all, 1.0, "{length_bytes} bytes, {depth} before it: {found:?}");
        }
        // Half reads, half writes, at random.
        let mut mixed = requests(ModelOperation::Read, 16_384, 63);
        mixed[0].iter_mut().step_by(2).for_each(|one| one.operation = ModelOperation::Write);
        let mixed = all(&mixed);
        assert_eq!((mixed.all, mixed.mix), (1.0, 0.0));
    }

    #[test]
    fn measured_mixed_loads_cover_requests_like_theirs() {
        let medium = catalogue::find("samsung-pm9a3-960").unwrap();
        for (operation, depth) in
            [(ModelOperation::Read, 0), (ModelOperation::Write, 0), (ModelOperation::Read, 63)]
        {
            let found = covered(&medium, &requests(operation, 4096, depth));
            assert_eq!(
                (found.kind, found.size, found.depth),
                (1.0, 1.0, 1.0),
                "{operation:?} {depth}: {found:?}"
            );
        }
        let large = covered(&medium, &requests(ModelOperation::Write, 65_536, 0));
        assert_eq!(large.size, 0.0, "all rows are of 4 KiB");
    }

    #[test]
    fn disk_positioning_covers_small_requests_without_queue() {
        let medium = catalogue::find("hdd-7200-sata").unwrap();
        let all = |requests: &[Vec<TracedRequest>]| covered(&medium, requests);
        assert_eq!(all(&requests(ModelOperation::Read, 32_768, 0)).all, 1.0);
        let long = all(&requests(ModelOperation::Read, 1 << 20, 0));
        assert_eq!((long.kind, long.size), (1.0, 0.0), "the way of so much under the head is another figure");
        // How well it orders twenty of them is in no manual.
        let queued = all(&requests(ModelOperation::Read, 4096, 19));
        assert_eq!((queued.size, queued.depth, queued.all), (1.0, 0.0, 0.0));
    }

    #[test]
    fn drives_are_known_as_deep_as_they_were_measured() {
        let medium = catalogue::find("nvme-p3700").unwrap();
        assert_eq!(covered(&medium, &requests(ModelOperation::Read, 4096, 31)).all, 1.0);
        assert_eq!(covered(&medium, &requests(ModelOperation::Read, 4096, 255)).all, 0.0);
    }
}
