//! The measured window of a cell: what devices and the system did is counted exactly between its edges.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use underlay_record::{DeviceActivity, LayerActivity, NetworkRecord};
use underlay_systems::figures;

use super::attached::Storages;
use super::drive::Hooks;
use super::servers::Servers;
use super::{CellError, faults};

/// Begins and ends what is counted, exactly at the edges of the measured window.
pub struct Window<'a> {
    servers: &'a Servers,
    storages: &'a Storages,
    interval_s: f64,
    found: Mutex<Found>,
}

#[derive(Default)]
struct Found {
    before: BTreeMap<String, f64>,
    after: BTreeMap<String, f64>,
    devices: Vec<DeviceActivity>,
    layers: Vec<LayerActivity>,
    network: Option<NetworkRecord>,
    schedule: Option<faults::Schedule>,
    faults: Option<faults::UnderWay>,
    problem: Option<CellError>,
}

/// What was counted in a window.
pub struct Taken {
    pub devices: Vec<DeviceActivity>,
    pub layers: Vec<LayerActivity>,
    pub network: Option<NetworkRecord>,
    pub figures: BTreeMap<String, f64>,
}

impl<'a> Window<'a> {
    pub fn new(
        servers: &'a Servers,
        storages: &'a Storages,
        interval_s: f64,
        schedule: faults::Schedule,
    ) -> Self {
        let found = Found { schedule: Some(schedule), ..Found::default() };
        Window { servers, storages, interval_s, found: Mutex::new(found) }
    }

    pub fn taken(self) -> Result<Taken, CellError> {
        let found = self.found.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(problem) = found.problem {
            return Err(problem);
        }
        Ok(Taken {
            devices: found.devices,
            layers: found.layers,
            network: found.network,
            figures: figures::between(&found.before, &found.after),
        })
    }

    fn note(&self, act: impl FnOnce(&mut Found) -> Result<(), CellError>) {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(problem) = act(&mut found) {
            found.problem.get_or_insert(problem);
        }
    }
}

impl Hooks for Window<'_> {
    fn measuring_begins(&self) {
        self.note(|found| {
            found.before = self.servers.figures()?;
            self.storages.begin_measurement(self.interval_s)?;
            found.faults = found.schedule.take().map(faults::Schedule::start).transpose()?;
            Ok(())
        });
    }

    fn measuring_ended(&self) {
        self.note(|found| {
            (found.devices, found.network) = self.storages.end_measurement()?;
            found.layers = self.storages.layers()?;
            found.faults.take().map_or(Ok(()), faults::UnderWay::end)?;
            found.after = self.servers.figures()?;
            Ok(())
        });
    }
}
