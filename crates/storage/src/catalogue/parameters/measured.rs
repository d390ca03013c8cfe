//! What the measured model needs: what a profile of a real device says, without a word about its inside.

use serde::{Deserialize, Serialize};

use super::{Curve, Distribution, Entry, Field, Property, Quantity};
use crate::catalogue::plain_number;
use crate::catalogue::table::{Numbers, TableReader};

parameters! {
    /// All that is not said load by load.
    MeasuredDevice
    numbers {
        /// What writes find room in without waiting for the medium; 0 when a write is on the medium when it is
        /// answered.
        write_buffer_bytes: All in 0.0 to 1e13,
    }
    properties {
        /// A flush waits until the write buffer is empty: a power cut would take it.
        flush_drains,
    }
    others {
        /// A flush that has nothing to wait for.
        flush_us: {Distribution} in 0.0 to 1e9,
    }
}

/// Which of the waiting requests is served next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MeasuredOrder {
    /// The oldest.
    Fifo,
    /// Any of them: a disk's queue, which reorders.
    Any,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OrderProperty {
    pub value: MeasuredOrder,
    pub source: String,
    #[serde(default)]
    pub estimate: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MeasuredLoad {
    RandomRead,
    SequentialRead,
    RandomWrite,
    SequentialWrite,
    /// Writes that find room in the write buffer.
    BufferedWrite,
}

impl MeasuredLoad {
    pub const ALL: &'static [MeasuredLoad] = &[
        MeasuredLoad::RandomRead,
        MeasuredLoad::SequentialRead,
        MeasuredLoad::RandomWrite,
        MeasuredLoad::SequentialWrite,
        MeasuredLoad::BufferedWrite,
    ];

    /// As catalogue files write it.
    pub fn name(self) -> &'static str {
        match self {
            MeasuredLoad::RandomRead => "random-read",
            MeasuredLoad::SequentialRead => "sequential-read",
            MeasuredLoad::RandomWrite => "random-write",
            MeasuredLoad::SequentialWrite => "sequential-write",
            MeasuredLoad::BufferedWrite => "buffered-write",
        }
    }
}

/// What was measured of a load with blocks of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Service {
    pub load: MeasuredLoad,
    pub block_bytes: u32,
    /// At queue depth 1.
    pub latency_us: Distribution,
    /// Requests a second at a queue depth. Absent: as many as at queue depth 1.
    #[serde(default)]
    pub iops: Option<Curve>,
    /// How fast what is beyond the block follows. Absent: as blocks of other sizes show it, or where there is one size, as fast as the device
    /// moves its blocks when it answers most of them.
    #[serde(default)]
    pub mb_s: Option<Quantity>,
}

/// What the measured model needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredParameters {
    pub order: OrderProperty,
    pub device: MeasuredDevice,
    /// At least one of random reads; where another load is absent, the nearest that is there serves.
    pub service: Vec<Service>,
}

const LATENCY_US: (f64, f64) = (0.0, 1e8);
const MB_S: (f64, f64) = (0.001, 1e6);
const IOPS: (f64, f64) = (0.001, 1e9);

impl MeasuredParameters {
    pub(in crate::catalogue) fn read(table: &mut TableReader<'_>) -> Option<Self> {
        let order = read_order(table);
        let device = MeasuredDevice::read(table);
        let expected = "one [[model.service]] for each load and block size that was measured";
        let loads: Vec<(&str, MeasuredLoad)> =
            MeasuredLoad::ALL.iter().map(|load| (load.name(), *load)).collect();
        let (mut service, mut complete) = (Vec::<Service>::new(), true);
        let mut places = Vec::new();
        for mut entry in table.tables("service", "[[model.service]]", expected)? {
            let load = entry.choice("load", &loads);
            let block_bytes = entry.number("block_bytes", 512.0, 1e9);
            let latency_us = entry.distribution("latency_us", LATENCY_US.0, LATENCY_US.1);
            let iops = <Option<Curve> as Field>::read(&mut entry, "iops", IOPS.0, IOPS.1);
            let mb_s = match entry.has("mb_s") {
                true => entry.quantity(Numbers::All, "mb_s", MB_S.0, MB_S.1).map(Some),
                false => Some(None),
            };
            entry.reject_unknown();
            if let (Some(load), Some(block_bytes), Some(latency_us), Some(iops), Some(mb_s)) =
                (load, block_bytes, latency_us, iops, mb_s)
            {
                service.push(Service { load, block_bytes: block_bytes as u32, latency_us, iops, mb_s });
                places.push(entry.place());
            } else {
                complete = false;
            }
        }
        // A mistake in one must not look as if it were absent.
        complete.then_some(())?;
        for Contradiction { what, one, other, .. } in contradictions(&service) {
            table.contradiction(&what, &places[one], other.map(|other| &places[other]));
        }
        Some(MeasuredParameters { order: order?, device: device?, service })
    }

    /// Those of a load, smallest block first; empty when it was not measured.
    pub fn service_of(&self, load: MeasuredLoad) -> Vec<&Service> {
        let mut of: Vec<&Service> = self.service.iter().filter(|service| service.load == load).collect();
        of.sort_by_key(|service| service.block_bytes);
        of
    }

    pub fn entries(&self) -> Vec<Entry<'_>> {
        let mut entries = vec![Entry {
            name: "order",
            value: if self.order.value == MeasuredOrder::Fifo { "fifo".into() } else { "any".into() },
            source: &self.order.source,
            estimate: self.order.estimate,
        }];
        entries.extend(self.device.entries());
        for service in &self.service {
            let iops =
                service.iops.as_ref().map_or_else(String::new, |iops| format!("; iops {}", iops.text()));
            entries.push(Entry {
                name: service.load.name(),
                value: format!(
                    "of {} bytes: latency_us {}{iops}{}",
                    plain_number(f64::from(service.block_bytes)),
                    service.latency_us.text(),
                    service
                        .mb_s
                        .as_ref()
                        .map_or_else(String::new, |mb_s| format!("; mb_s {}", plain_number(mb_s.value)))
                ),
                source: &service.latency_us.source,
                estimate: service.latency_us.estimate,
            });
        }
        entries
    }

    /// Everything that would make a model of these parameters meaningless; empty when all is well.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.device.out_of_bounds();
        for service in &self.service {
            let what = format!("{} of {} bytes", service.load.name(), service.block_bytes);
            if let Some(problem) = service.latency_us.problem(LATENCY_US.0, LATENCY_US.1) {
                problems.push(format!("{what}: `latency_us` {problem}"));
            }
            if let Some(problem) = service.iops.as_ref().and_then(|iops| iops.problem(IOPS.0, IOPS.1)) {
                problems.push(format!("{what}: `iops` {problem}"));
            } else if service.iops.as_ref().is_some_and(|iops| iops.points[0].0 != 1.0) {
                problems.push(format!(
                    "{what}: `iops` must start at queue depth 1, which all others are compared with"
                ));
            } else if service.iops.as_ref().is_some_and(collapses) {
                problems.push(format!("{what}: `iops` falls below a thousandth of that at queue depth 1"));
            }
            if service.mb_s.as_ref().is_some_and(|mb_s| !(MB_S.0..=MB_S.1).contains(&mb_s.value)) {
                problems.push(format!("{what}: no such `mb_s`"));
            }
            if !(512..=1_000_000_000).contains(&service.block_bytes) {
                problems.push(format!("{what}: no such block"));
            }
        }
        for load in MeasuredLoad::ALL {
            let of = self.service_of(*load);
            if let Some(twice) = of.windows(2).find(|pair| pair[0].block_bytes == pair[1].block_bytes) {
                problems.push(format!("{} of {} bytes is there twice", load.name(), twice[0].block_bytes));
            }
            let needed = match load {
                MeasuredLoad::RandomRead => true,
                MeasuredLoad::BufferedWrite => self.device.write_buffer_bytes.value > 0.0,
                _ => false,
            };
            if needed && of.is_empty() {
                problems.push(format!("no [[model.service]] of {}", load.name()));
            }
        }
        problems
    }
}

/// Two statements that can't be about one device, by their places among the services; one may contradict itself.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Contradiction {
    pub(crate) what: String,
    one: usize,
    other: Option<usize>,
    /// The one that is slower than the other allows. Without another, itself.
    pub(crate) slower: usize,
}

/// Measurements scatter, and a prober takes time of its own.
const SLACK: f64 = 1.15;
/// The rate at queue depth 1 may be so much lower than its latency allows.
const IDLE: f64 = 0.7;
/// A larger block may be answered so much faster than a smaller one, and move so much less data.
const BETWEEN_SIZES: f64 = 0.7;

/// What no single device can do: by Little's law between latency, depth and rate, and between sizes of blocks.
pub(crate) fn contradictions(services: &[Service]) -> Vec<Contradiction> {
    let mut found = Vec::new();
    for (one, service) in services.iter().enumerate() {
        let mut push = |what: String| found.push(Contradiction { what, one, other: None, slower: one });
        let mean_us = mean_us_of(service);
        let name = service.load.name();
        let points = service.iops.as_ref().map_or(&[][..], |iops| &iops.points);
        for &(depth, iops) in points {
            let most = depth * 1e6 / mean_us;
            if iops > most * SLACK {
                push(format!(
                    "{name}: {} requests a second at queue depth {} can't take {} µs each: by Little's law that is {} at most",
                    plain_number(iops),
                    plain_number(depth),
                    plain_number(mean_us.round()),
                    plain_number(most.round())
                ));
                break;
            }
            if depth == 1.0 && iops < most * IDLE {
                push(format!(
                    "{name}: at queue depth 1 a latency of {} µs is {} requests a second, and `iops` says {}",
                    plain_number(mean_us.round()),
                    plain_number(most.round()),
                    plain_number(iops)
                ));
            }
        }
        if let Some(mb_s) = &service.mb_s
            && most_mb_s(service) > mb_s.value * SLACK
        {
            push(format!(
                "{name}: {} blocks a second of {} bytes are {} MB/s, and `mb_s` says {}",
                plain_number(most_iops(service)),
                service.block_bytes,
                plain_number(most_mb_s(service).round()),
                plain_number(mb_s.value)
            ));
        }
        for (other, larger) in services.iter().enumerate() {
            if larger.load != service.load || larger.block_bytes <= service.block_bytes {
                continue;
            }
            let mut push =
                |what, slower| found.push(Contradiction { what, one: other, other: Some(one), slower });
            let larger_us = mean_us_of(larger);
            if larger_us < mean_us * BETWEEN_SIZES {
                let what = format!(
                    "{name}: {} bytes take {} µs, and {} bytes {} µs",
                    larger.block_bytes,
                    plain_number(larger_us.round()),
                    service.block_bytes,
                    plain_number(mean_us.round())
                );
                push(what, one);
            } else if most_mb_s(larger) < most_mb_s(service) * BETWEEN_SIZES {
                let what = format!(
                    "{name}: blocks of {} bytes come at {} MB/s at most, and smaller ones of {} bytes at {}",
                    larger.block_bytes,
                    plain_number(most_mb_s(larger).round()),
                    service.block_bytes,
                    plain_number(most_mb_s(service).round())
                );
                push(what, other);
            }
        }
    }
    found
}

/// One that takes no time would have no rate.
fn mean_us_of(service: &Service) -> f64 {
    service.latency_us.mean().max(1e-3)
}

/// At the depth at which most are answered.
fn most_iops(service: &Service) -> f64 {
    let alone = 1e6 / mean_us_of(service);
    let rates = service.iops.iter().flat_map(|iops| &iops.points).map(|point| point.1);
    rates
        .fold(None, |most: Option<f64>, iops| Some(most.map_or(iops, |most| most.max(iops))))
        .unwrap_or(alone)
}

fn most_mb_s(service: &Service) -> f64 {
    most_iops(service) * f64::from(service.block_bytes) / 1e6
}

/// Whether there is a depth at which the device all but stands still.
fn collapses(iops: &Curve) -> bool {
    iops.points.iter().any(|point| point.1 < iops.points[0].1 / 1e3)
}

fn read_order(table: &mut TableReader<'_>) -> Option<OrderProperty> {
    let expected = "{ value = \"fifo\" or \"any\", source = \"..\" }";
    let mut inside = table.inside("order", "`order`", expected)?;
    let value = inside.choice("value", &[("fifo", MeasuredOrder::Fifo), ("any", MeasuredOrder::Any)]);
    let source = inside.source();
    let estimate = inside.flag("estimate");
    inside.reject_unknown();
    Some(OrderProperty { value: value?, source: source?, estimate })
}
