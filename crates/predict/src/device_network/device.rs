//! One device: its model, and its utilisation.

use underlay_storage::catalogue::MediumKind;
use underlay_storage::medium::{FinishedRequest, MediumModel, ModelRequest};
use underlay_storage::stack::{DeviceSpec, InitialState};
use underlay_storage::time::ModelTime;

use crate::refusal::PredictionRefusal;

pub(super) struct SimulatedDevice {
    pub model: Box<dyn MediumModel>,
    /// How many times faster it is than in the catalogue.
    speed: f64,
    /// In network time, which `speed` stretches into the model's.
    pub next_ns: Option<u64>,
    pub under_way: u32,
    busy_ns: u64,
    /// The integral of the requests in flight over time.
    queue_ns: u128,
    changed_ns: u64,
}

impl SimulatedDevice {
    pub(super) fn new(
        spec: &DeviceSpec,
        writes: bool,
        speed: f64,
        seed: u64,
    ) -> Result<SimulatedDevice, PredictionRefusal> {
        let Some(medium) = &spec.medium else {
            return Err(PredictionRefusal::Layer { what: format!("{}, which takes no time", spec.name) });
        };
        if let Some(problem) = medium.problems().into_iter().next() {
            return Err(PredictionRefusal::Layer { what: format!("{}: {problem}", spec.name) });
        }
        // A model keeps a map of its blocks, of a bounded sample where it is large.
        let capacity_bytes = spec.capacity_bytes.clamp(1 << 20, 1 << 50);
        let is_read_flash = medium.kind == MediumKind::Flash && !writes;
        let initial = if is_read_flash { InitialState::Fresh } else { spec.initial };
        Ok(SimulatedDevice::from_model(medium.model(capacity_bytes, seed, initial), speed))
    }

    pub(super) fn from_model(model: Box<dyn MediumModel>, speed: f64) -> SimulatedDevice {
        SimulatedDevice { model, speed, next_ns: None, under_way: 0, busy_ns: 0, queue_ns: 0, changed_ns: 0 }
    }

    /// Converts network time to the model's: a device twice as fast has twice as much of it.
    fn inner(&self, ns: u64) -> ModelTime {
        ModelTime::from_ns(if self.speed == 1.0 { ns } else { (ns as f64 * self.speed) as u64 })
    }

    fn outer(&self, time: ModelTime) -> u64 {
        if self.speed == 1.0 { time.as_ns() } else { (time.as_ns() as f64 / self.speed).ceil() as u64 }
    }

    fn count(&mut self, now_ns: u64) {
        let passed = now_ns.saturating_sub(self.changed_ns);
        self.changed_ns = now_ns.max(self.changed_ns);
        self.queue_ns += u128::from(passed) * u128::from(self.under_way);
        if self.under_way > 0 {
            self.busy_ns += passed;
        }
    }

    pub(super) fn submit(&mut self, request: ModelRequest, now_ns: u64) {
        self.count(now_ns);
        self.under_way += 1;
        self.model.submit(request, self.inner(now_ns));
        self.look_ahead();
    }

    pub(super) fn complete(&mut self, now_ns: u64, finished: &mut Vec<FinishedRequest>) {
        self.count(now_ns);
        // Rounding between the two clocks must not leave an event behind.
        let now = self.inner(now_ns).max(self.model.next_completion().unwrap_or_default());
        self.model.complete(now, finished);
        self.under_way -= finished.len() as u32;
        self.look_ahead();
    }

    fn look_ahead(&mut self) {
        self.next_ns = self.model.next_completion().map(|time| self.outer(time));
    }

    /// Resets its utilisation.
    pub(super) fn restart(&mut self, now_ns: u64) {
        (self.busy_ns, self.queue_ns) = (0, 0);
        self.changed_ns = now_ns;
    }

    /// The share of the time in which it had a request, and the mean number of them.
    pub(super) fn usage(&mut self, span_ns: f64, now_ns: u64) -> (f64, f64) {
        self.count(now_ns);
        (self.busy_ns as f64 / span_ns, self.queue_ns as f64 / span_ns)
    }
}
