//! Parameters of the measured model: a real device's profile, without its inside.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{
    ParameterEntry, ParameterField, SourcedCurve, SourcedDistribution, SourcedProperty, SourcedQuantity,
};
use crate::catalogue::plain_number;
use crate::catalogue::table::{NumberRange, TableReader};

parameters! {
    /// All that is not said load by load.
    MeasuredDevice
    numbers {
        /// The room for writes that don't wait for the medium; 0 when a write is on the medium when it is answered.
        write_buffer_bytes: All in 0.0 to 1e13,
    }
    properties {
        /// A flush waits until the write buffer is empty: a power cut would take it.
        flush_drains,
    }
    others {
        /// A flush that has nothing to wait for.
        flush_us: {SourcedDistribution} in 0.0 to 1e9,
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

/// Measurements of a load with blocks of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredService {
    pub load: MeasuredLoad,
    pub block_bytes: u32,
    /// At queue depth 1.
    pub latency_us: SourcedDistribution,
    /// Requests a second at a queue depth. Absent: as many as at queue depth 1.
    #[serde(default)]
    pub iops: Option<SourcedCurve>,
    /// How fast what is beyond the block follows. Absent: as blocks of other sizes show it, or where there is one size,
    /// as fast as the device moves its blocks when it answers most of them.
    #[serde(default)]
    pub mb_s: Option<SourcedQuantity>,
}

/// Parameters of the measured model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredParameters {
    pub order: OrderProperty,
    pub device: MeasuredDevice,
    /// At least one of random reads; where another load is absent, the nearest that is there serves.
    pub service: Vec<MeasuredService>,
}

/// Where the statements of a service stand in its file.
pub(in crate::catalogue) struct ServicePlaces {
    pub(in crate::catalogue) latency_us: Range<usize>,
    pub(in crate::catalogue) iops: Range<usize>,
    pub(in crate::catalogue) mb_s: Range<usize>,
}

impl ServicePlaces {
    fn from_table(table: &mut TableReader<'_>) -> ServicePlaces {
        ServicePlaces {
            latency_us: table.place_of("latency_us"),
            iops: table.place_of("iops"),
            mb_s: table.place_of("mb_s"),
        }
    }
}

const LATENCY_US: (f64, f64) = (0.0, 1e8);
const MB_S: (f64, f64) = (0.001, 1e6);
const IOPS: (f64, f64) = (0.001, 1e9);

impl MeasuredParameters {
    /// `places` gets where each service's statements stand.
    pub(in crate::catalogue) fn read(
        table: &mut TableReader<'_>,
        places: &mut Vec<ServicePlaces>,
    ) -> Option<Self> {
        let order = read_order(table);
        let device = MeasuredDevice::read(table);
        let expected = "one [[model.service]] for each load and block size that was measured";
        let loads: Vec<(&str, MeasuredLoad)> =
            MeasuredLoad::ALL.iter().map(|load| (load.name(), *load)).collect();
        let (mut service, mut complete) = (Vec::<MeasuredService>::new(), true);
        places.clear();
        for mut entry in table.tables("service", "[[model.service]]", expected)? {
            let load = entry.choice("load", &loads);
            let block_bytes = entry.number("block_bytes", 512.0, 1e9);
            let latency_us = entry.distribution("latency_us", LATENCY_US.0, LATENCY_US.1);
            let iops = <Option<SourcedCurve> as ParameterField>::read(&mut entry, "iops", IOPS.0, IOPS.1);
            let mb_s = match entry.has("mb_s") {
                true => entry.quantity(NumberRange::All, "mb_s", MB_S.0, MB_S.1).map(Some),
                false => Some(None),
            };
            entry.reject_unknown();
            if let (Some(load), Some(block_bytes), Some(latency_us), Some(iops), Some(mb_s)) =
                (load, block_bytes, latency_us, iops, mb_s)
            {
                service.push(MeasuredService {
                    load,
                    block_bytes: block_bytes as u32,
                    latency_us,
                    iops,
                    mb_s,
                });
                places.push(ServicePlaces::from_table(&mut entry));
            } else {
                complete = false;
            }
        }
        // A mistake in one must not look as if it were absent.
        complete.then_some(())?;
        Some(MeasuredParameters { order: order?, device: device?, service })
    }

    /// Those of a load, smallest block first; empty when it was not measured.
    pub fn service_of(&self, load: MeasuredLoad) -> Vec<&MeasuredService> {
        let mut services: Vec<&MeasuredService> =
            self.service.iter().filter(|service| service.load == load).collect();
        services.sort_by_key(|service| service.block_bytes);
        services
    }

    pub fn entries(&self) -> Vec<ParameterEntry<'_>> {
        let mut entries = vec![ParameterEntry {
            name: "order",
            value: if self.order.value == MeasuredOrder::Fifo { "fifo".into() } else { "any".into() },
            source: &self.order.source,
            estimate: self.order.estimate,
        }];
        entries.extend(self.device.entries());
        for service in &self.service {
            let iops =
                service.iops.as_ref().map_or_else(String::new, |iops| format!("; iops {}", iops.text()));
            entries.push(ParameterEntry {
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
            let label = format!("{} of {} bytes", service.load.name(), service.block_bytes);
            if let Some(problem) = service.latency_us.problem(LATENCY_US.0, LATENCY_US.1) {
                problems.push(format!("{label}: `latency_us` {problem}"));
            }
            if let Some(problem) = service.iops.as_ref().and_then(|iops| iops.problem(IOPS.0, IOPS.1)) {
                problems.push(format!("{label}: `iops` {problem}"));
            } else if service.iops.as_ref().is_some_and(|iops| iops.points[0].0 != 1.0) {
                problems.push(format!(
                    "{label}: `iops` must start at queue depth 1, which all others are compared with"
                ));
            } else if service.iops.as_ref().is_some_and(collapses) {
                problems.push(format!("{label}: `iops` falls below a thousandth of that at queue depth 1"));
            }
            if service.mb_s.as_ref().is_some_and(|mb_s| !(MB_S.0..=MB_S.1).contains(&mb_s.value)) {
                problems.push(format!("{label}: no such `mb_s`"));
            }
            if !(512..=1_000_000_000).contains(&service.block_bytes) {
                problems.push(format!("{label}: no such block"));
            }
        }
        for load in MeasuredLoad::ALL {
            let services = self.service_of(*load);
            if let Some(twice) = services.windows(2).find(|pair| pair[0].block_bytes == pair[1].block_bytes) {
                problems.push(format!("{} of {} bytes is there twice", load.name(), twice[0].block_bytes));
            }
            let needed = match load {
                MeasuredLoad::RandomRead => true,
                MeasuredLoad::BufferedWrite => self.device.write_buffer_bytes.value > 0.0,
                _ => false,
            };
            if needed && services.is_empty() {
                problems.push(format!("no [[model.service]] of {}", load.name()));
            }
        }
        problems
    }
}

/// Whether there is a depth at which the device all but stands still.
fn collapses(iops: &SourcedCurve) -> bool {
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
