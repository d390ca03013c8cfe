//! Devices that are elsewhere: what opens them, and what they did.

use std::sync::Arc;
use std::time::Duration;
use underlay_sync::Mutex;

use underlay_record::{DeviceActivity, DeviceDescription, DeviceId};

use super::spec::RemoteSpec;
use crate::activity::{ActivityCounter, ActivityTotals};
use crate::clock::ModelClock;
use crate::device::{BlockDevice, CompletionCallback, DeviceCompletion, DeviceGeometry, DeviceRequest};
use crate::faults::DeviceFaults;
use crate::medium::ModelOperation;

/// Connects a stack to what this crate knows nothing of.
pub trait RemoteOpener {
    /// # Errors
    /// In words, when the device can't be had.
    fn open(&self, remote: &RemoteSpec) -> Result<OpenedRemote, String>;
}

/// A device that is elsewhere, and what tells of the way there.
pub struct OpenedRemote {
    pub device: Arc<dyn BlockDevice>,
    pub connection: Arc<dyn RemoteConnection>,
}

/// The way to a device that is elsewhere.
pub trait RemoteConnection: Send + Sync {
    /// Forgets the latencies seen so far.
    fn begin_measurement(&self);
    /// Its figures. Times are this machine's own: a network is not slowed down.
    fn figures(&self) -> Vec<LayerMetric>;
}

/// One figure of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerMetric {
    pub name: &'static str,
    pub value: u64,
    /// It only grows: what counts is by how much during a measurement.
    pub counts: bool,
}

/// For stacks without external volumes.
pub(super) struct NoOpener;

impl RemoteOpener for NoOpener {
    fn open(&self, remote: &RemoteSpec) -> Result<OpenedRemote, String> {
        Err(format!(
            "it is at {}, and this program was not given the means to connect to it: attach the storage",
            remote.address
        ))
    }
}

/// A remote device whose activity is recorded, by the clock of the stack.
pub(super) struct RecordedRemote {
    device: Arc<dyn BlockDevice>,
    description: DeviceDescription,
    clock: Arc<dyn ModelClock>,
    activity: Arc<Mutex<ActivityCounter>>,
}

impl RecordedRemote {
    pub(super) fn new(
        device: Arc<dyn BlockDevice>,
        spec: &RemoteSpec,
        clock: &Arc<dyn ModelClock>,
    ) -> RecordedRemote {
        let mut description = spec.describe();
        description.capacity_bytes = Some(device.geometry().capacity_bytes);
        let activity = Arc::new(Mutex::new(ActivityCounter::new(clock.now())));
        RecordedRemote { device, description, clock: Arc::clone(clock), activity }
    }

    pub(super) fn name(&self) -> &str {
        &self.description.id.name
    }

    pub(super) fn begin_measurement(&self, interval: Duration) {
        let now = self.clock.now();
        self.activity.lock().begin(now, interval);
    }

    /// Nothing of it is modelled here.
    pub(super) fn end_measurement(&self) -> DeviceActivity {
        let now = self.clock.now();
        let measurement = self.activity.lock().end(now);
        DeviceActivity {
            inputs: None,
            description: self.description.clone(),
            duration_s: measurement.duration.as_secs_f64(),
            totals: measurement.totals,
            series: measurement.series,
            modelled: None,
            delivered: Some(measurement.delivered),
            wear: None,
            faults: Vec::new(),
            earlier_faults: Vec::new(),
        }
    }

    pub(super) fn glance(&self) -> ActivityTotals {
        let now = self.clock.now();
        self.activity.lock().glance(now)
    }

    pub(super) fn id(&self) -> &DeviceId {
        &self.description.id
    }

    /// It has none: they belong to the devices of its server.
    pub(super) fn faults(&self) -> DeviceFaults {
        DeviceFaults {
            device: self.description.id.name.clone(),
            medium: None,
            capacity_bytes: self.device.geometry().capacity_bytes,
            power_cut_armed: false,
            powered: true,
            is_remote: true,
            faults: Vec::new(),
        }
    }
}

impl BlockDevice for RecordedRemote {
    fn geometry(&self) -> DeviceGeometry {
        self.device.geometry()
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        let operation = match &request {
            DeviceRequest::Read { .. } => ModelOperation::Read,
            DeviceRequest::Write { .. } => ModelOperation::Write,
            DeviceRequest::Flush => ModelOperation::Flush,
            DeviceRequest::Discard { .. } => ModelOperation::Discard,
        };
        let (_, length_bytes) = request.extent();
        let submitted = self.clock.now();
        self.activity.lock().arrived(submitted);
        let (clock, activity) = (Arc::clone(&self.clock), Arc::clone(&self.activity));
        let recorded = move |completion: DeviceCompletion| {
            let now = clock.now();
            {
                let mut activity = activity.lock();
                match &completion {
                    Ok(_) => {
                        activity.replied(now, operation, length_bytes, None, now.duration_since(submitted))
                    }
                    Err(_) => activity.abandoned(now),
                }
            }
            done(completion);
        };
        self.device.submit(request, Box::new(recorded));
    }
}
