//! A device with its faults: what stands between a paced device and the layers over it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use underlay_sync::{Mutex, MutexGuard};

use rand::{RngExt as _, SeedableRng};
use rand_pcg::Pcg64Mcg;
use underlay_record::{DisturbedBy, EarlierFault, FaultRecord};

use super::power::{MovedBacking, VolatilePart};
use super::{
    ActiveFault, ByteExtent, DeviceFault, DeviceFaults, FaultError, FaultEvent, FaultId, FaultyModel,
    ModelFaults, PowerCut, WriteSurvival, is_among, operation_of,
};
use crate::backing::Backing;
use crate::catalogue::{CatalogueMedium, ModelParameters};
use crate::clock::ModelClock;
use crate::device::{BlockDevice, CompletionCallback, DeviceError, DeviceGeometry, DeviceRequest};
use crate::medium::MediumModel;
use crate::paced::Paced;
use crate::time::ModelTime;

/// A modelled device that fails on command. Without a fault a request goes straight through.
///
/// A handle: clones are the same device.
#[derive(Clone)]
pub struct FaultyDevice {
    inner: Arc<FaultyInner>,
}

struct FaultyInner {
    name: String,
    paced: Paced,
    backing: Arc<dyn Backing>,
    clock: Arc<dyn ModelClock>,
    /// Absent where there is no model.
    model_faults: Option<Arc<ModelFaults>>,
    /// Present when the device is armed for power cuts.
    power: Option<Arc<VolatilePart>>,
    /// Whether a request has to be looked at.
    acts: AtomicBool,
    state: Mutex<FaultState>,
}

struct FaultState {
    faults: Vec<InjectedFault>,
    has_power: bool,
    measured_since: ModelTime,
    events: Vec<(Option<FaultId>, FaultEvent)>,
    /// Those that had ended when the measurement began.
    earlier: Vec<FaultEvent>,
}

struct InjectedFault {
    id: FaultId,
    fault: DeviceFault,
    since: ModelTime,
    random: Pcg64Mcg,
}

enum FaultVerdict {
    Pass,
    /// Answered as ever, but nothing becomes durable by it.
    Pretend,
    /// At once: nobody is there to take time.
    Refuse(DeviceError),
    Fail(DeviceError),
}

/// How a device is armed for power cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PowerCutArming {
    Unarmed,
    /// Completed writes rest in a buffer that needs power.
    Volatile,
    /// Completed writes outlive a power cut.
    Protected,
}

impl PowerCutArming {
    pub(crate) fn new(is_armed: bool, medium: Option<&CatalogueMedium>) -> PowerCutArming {
        if !is_armed {
            return PowerCutArming::Unarmed;
        }
        let is_protected = match medium.map(|medium| &medium.model) {
            Some(ModelParameters::Hdd(parameters)) => parameters.write_cache_bytes.value == 0.0,
            Some(ModelParameters::Flash(parameters)) => parameters.power_loss_protection.value,
            // Kept on several machines, or in memory that needs no power.
            Some(ModelParameters::Cloud(_) | ModelParameters::Pmem(_)) => true,
            // The medium behind the link loses power with it; a measured disk's buffer is unknown.
            Some(ModelParameters::Network(_) | ModelParameters::Measured(_)) | None => false,
        };
        if is_protected { PowerCutArming::Protected } else { PowerCutArming::Volatile }
    }
}

impl FaultyDevice {
    pub(crate) fn new(
        name: &str,
        capacity_bytes: u64,
        backing: Arc<dyn Backing>,
        model: Option<Box<dyn MediumModel>>,
        clock: &Arc<dyn ModelClock>,
        arming: PowerCutArming,
    ) -> FaultyDevice {
        let model_faults = model.is_some().then(Arc::<ModelFaults>::default);
        let model = model.zip(model_faults.clone()).map(|(model, shared)| {
            let model: Box<dyn MediumModel> = Box::new(FaultyModel::new(model, shared));
            model
        });
        let power = match arming {
            PowerCutArming::Unarmed => None,
            arming => {
                Some(Arc::new(VolatilePart::new(Arc::clone(&backing), arming == PowerCutArming::Protected)))
            }
        };
        // An armed device moves the data itself, as it has to know what a cut undoes. The paced one only keeps time.
        let seen: Arc<dyn Backing> = match power {
            Some(_) => Arc::new(MovedBacking(Arc::clone(&backing))),
            None => Arc::clone(&backing),
        };
        let paced = Paced::new(capacity_bytes, seen, model, Arc::clone(clock));
        let state = FaultState {
            faults: Vec::new(),
            has_power: true,
            measured_since: clock.now(),
            events: Vec::new(),
            earlier: Vec::new(),
        };
        let inner = FaultyInner {
            name: name.to_owned(),
            paced,
            backing,
            clock: Arc::clone(clock),
            model_faults,
            power,
            acts: AtomicBool::new(false),
            state: Mutex::new(state),
        };
        FaultyDevice { inner: Arc::new(inner) }
    }

    pub fn paced(&self) -> &Paced {
        &self.inner.paced
    }

    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Requests that are in flight when the device vanishes fail with it.
    pub(crate) fn inject(
        &self,
        id: FaultId,
        fault: DeviceFault,
        origin: DisturbedBy,
    ) -> Result<(), FaultError> {
        fault.check()?;
        let capacity_bytes = self.inner.paced.geometry().capacity_bytes;
        if let Some(ByteExtent { start_bytes, .. }) = fault.extent()
            && start_bytes >= capacity_bytes
        {
            let device = self.inner.name.clone();
            return Err(FaultError::BeyondTheEnd { device, start_bytes, capacity_bytes });
        }
        if fault.is_of_time() && self.inner.model_faults.is_none() {
            return Err(FaultError::Timeless { device: self.inner.name.clone(), fault: fault.name() });
        }
        // Only a power cut shows that a flush was ignored.
        if fault == DeviceFault::IgnoreFlushes && self.inner.power.is_none() {
            return Err(FaultError::NotArmed { device: self.inner.name.clone() });
        }
        let vanishes = fault == DeviceFault::Vanish;
        {
            let mut state = self.inner.lock();
            let injected_at = self.inner.clock.now();
            let event = FaultEvent {
                at: injected_at,
                until: None,
                what: fault.to_string(),
                by: origin,
                ended_by_hand: false,
                only_slows: fault.is_of_time(),
            };
            state.events.push((Some(id), event));
            let seed = match fault {
                DeviceFault::Errors { seed, .. } | DeviceFault::Corrupt { seed, .. } => seed,
                _ => 0,
            };
            let random = Pcg64Mcg::seed_from_u64(seed);
            state.faults.push(InjectedFault { id, fault, since: injected_at, random });
            self.inner.publish(&state);
        }
        // Without the lock: what is answered here may submit again, and that takes it.
        if vanishes {
            self.inner.paced.fail_under_way(&DeviceError::Gone);
        }
        // What is in flight has another end now, and the pacer waits for the old one.
        self.inner.paced.nudge();
        Ok(())
    }

    /// Clears the faults that `is_selected` accepts; true if there was one. `origin` is who cleared them, if they did
    /// not end by themselves.
    pub(crate) fn clear(
        &self,
        is_selected: impl Fn(FaultId, &DeviceFault) -> bool,
        origin: Option<DisturbedBy>,
    ) -> bool {
        let cleared = {
            let mut state = self.inner.lock();
            let now = self.inner.clock.now();
            let (off, remaining): (Vec<_>, Vec<_>) =
                state.faults.drain(..).partition(|injected| is_selected(injected.id, &injected.fault));
            state.faults = remaining;
            for injected in &off {
                state.end_event(Some(injected.id), now, origin);
            }
            self.inner.publish(&state);
            !off.is_empty()
        };
        self.inner.paced.nudge();
        cleared
    }

    pub(crate) fn describe(&self, medium: Option<String>) -> DeviceFaults {
        let state = self.inner.lock();
        let now = self.inner.clock.now();
        let active = |injected: &InjectedFault| ActiveFault {
            id: injected.id,
            fault: injected.fault.clone(),
            for_s: now.duration_since(injected.since).as_secs_f64(),
        };
        DeviceFaults {
            device: self.inner.name.clone(),
            medium,
            capacity_bytes: self.inner.paced.geometry().capacity_bytes,
            power_cut_armed: self.inner.power.is_some(),
            powered: state.has_power,
            is_remote: false,
            faults: state.faults.iter().map(active).collect(),
        }
    }

    /// Cuts the power of all of these in one instant: nothing completes on one of them once another is dark.
    pub(crate) fn cut_power(
        devices: &[&FaultyDevice],
        cut: PowerCut,
        origin: DisturbedBy,
    ) -> Result<WriteSurvival, FaultError> {
        let mut powers = Vec::new();
        for device in devices {
            let name = || device.inner.name.clone();
            let power = device.inner.power.as_ref().ok_or_else(|| FaultError::NotArmed { device: name() })?;
            powers.push((power, name()));
        }
        // Each thread that holds one of these waits for no other.
        let mut logs: Vec<_> = powers.iter().map(|(power, _)| power.lock()).collect();
        if let Some((_, (_, name))) = logs.iter().zip(&powers).find(|(log, _)| log.is_off()) {
            return Err(FaultError::NoPower { device: name.clone() });
        }
        logs.iter_mut().for_each(|log| log.switch(true));
        let mut survival = WriteSurvival::default();
        let mut problem = None;
        for (index, (log, (power, name))) in logs.iter_mut().zip(&powers).enumerate() {
            // Devices that lose power together don't lose the same of their writes.
            let seed = cut.seed.wrapping_add(index as u64);
            match power.undo(log, PowerCut { seed, ..cut }) {
                Ok(one) => survival += one,
                Err(error) => {
                    let (device, error) = (name.clone(), error.to_string());
                    problem.get_or_insert(FaultError::Backing { device, problem: error });
                }
            }
        }
        drop(logs);
        for device in devices {
            let inner = &device.inner;
            {
                let mut state = inner.lock();
                state.has_power = false;
                let description = format!(
                    "power cut: of the unflushed writes {} survived, {} in part, {} are lost",
                    survival.survived, survival.torn, survival.lost
                );
                let event = FaultEvent {
                    at: inner.clock.now(),
                    until: None,
                    what: description,
                    by: origin,
                    ended_by_hand: false,
                    only_slows: false,
                };
                state.events.push((None, event));
                inner.publish(&state);
            }
            inner.paced.fail_under_way(&DeviceError::Gone);
        }
        problem.map_or(Ok(survival), Err)
    }

    pub(crate) fn has_power(&self) -> bool {
        self.inner.lock().has_power
    }

    /// The power comes back; true when it was off.
    pub(crate) fn restore_power(&self, origin: DisturbedBy) -> bool {
        let mut state = self.inner.lock();
        if state.has_power {
            return false;
        }
        if let Some(power) = &self.inner.power {
            power.lock().switch(false);
        }
        state.has_power = true;
        let now = self.inner.clock.now();
        state.end_event(None, now, Some(origin));
        self.inner.publish(&state);
        true
    }

    pub(crate) fn begin_measurement(&self, interval: Duration) {
        let mut state = self.inner.lock();
        state.measured_since = self.inner.clock.now();
        let (over, open): (Vec<_>, Vec<_>) =
            state.events.drain(..).partition(|(_, event)| event.until.is_some());
        state.events = open;
        state.earlier.extend(over.into_iter().map(|(_, event)| event));
        drop(state);
        self.inner.paced.begin_measurement(interval);
    }

    /// The device's faults since then, in seconds from there.
    pub(crate) fn fault_records(&self) -> Vec<FaultRecord> {
        let state = self.inner.lock();
        let seconds = |time: ModelTime| time.duration_since(state.measured_since).as_secs_f64();
        let record = |(_, event): &(_, FaultEvent)| FaultRecord {
            t_s: seconds(event.at),
            until_s: event.until.map(seconds),
            what: event.what.clone(),
            by: Some(event.by),
            ended_by_hand: event.ended_by_hand,
        };
        state.events.iter().map(record).collect()
    }

    /// Its faults that were over by then.
    pub(crate) fn earlier_faults(&self) -> Vec<EarlierFault> {
        let state = self.inner.lock();
        let record = |event: &FaultEvent| {
            let ended_at = event.until.unwrap_or(event.at);
            EarlierFault {
                what: event.what.clone(),
                by: event.by,
                ended_by_hand: event.ended_by_hand,
                only_slows: event.only_slows,
                lasted_s: ended_at.duration_since(event.at).as_secs_f64(),
                ended_before_s: state.measured_since.duration_since(ended_at).as_secs_f64(),
            }
        };
        state.earlier.iter().map(record).collect()
    }
}

impl FaultState {
    fn end_event(&mut self, id: Option<FaultId>, now: ModelTime, origin: Option<DisturbedBy>) {
        let open =
            self.events.iter_mut().rev().find(|(event_id, event)| *event_id == id && event.until.is_none());
        if let Some((_, event)) = open {
            event.until = Some(now);
            event.ended_by_hand = origin == Some(DisturbedBy::Hand) && event.by != DisturbedBy::Hand;
        }
    }
}

impl FaultyInner {
    fn lock(&self) -> MutexGuard<'_, FaultState> {
        self.state.lock()
    }

    /// Tells the model what it has to do, and the path of requests whether it has to look.
    fn publish(&self, state: &FaultState) {
        let acts = !state.has_power || state.faults.iter().any(|injected| !injected.fault.is_of_time());
        self.acts.store(acts, Ordering::SeqCst);
        if let Some(model_faults) = &self.model_faults {
            let of_time = state.faults.iter().filter(|injected| injected.fault.is_of_time());
            model_faults.set(of_time.map(|injected| (injected.id, injected.fault.clone())).collect());
        }
    }

    /// A request's fate, and which of the bits that it reads will be wrong, from the first byte on.
    fn verdict(&self, request: &DeviceRequest) -> (FaultVerdict, Vec<u64>) {
        let mut wrong_bits = Vec::new();
        let verdict = self.judge(request, &mut wrong_bits);
        (verdict, wrong_bits)
    }

    fn judge(&self, request: &DeviceRequest, wrong_bits: &mut Vec<u64>) -> FaultVerdict {
        let mut state = self.lock();
        if !state.has_power || state.faults.iter().any(|injected| injected.fault == DeviceFault::Vanish) {
            return FaultVerdict::Refuse(DeviceError::Gone);
        }
        let (offset_bytes, length_bytes) = request.extent();
        let end_bytes = offset_bytes.saturating_add(length_bytes);
        for InjectedFault { fault, random, .. } in &mut state.faults {
            match fault {
                DeviceFault::Full if matches!(request, DeviceRequest::Write { .. }) => {
                    // A device that is full still takes what goes where it holds something already.
                    match self.backing.holds(offset_bytes, length_bytes) {
                        Ok(true) => {}
                        Ok(false) => return FaultVerdict::Fail(DeviceError::NoSpace),
                        Err(error) => return FaultVerdict::Fail(error),
                    }
                }
                DeviceFault::Errors { operations, rate, extent, .. } => {
                    let touched = extent.is_none_or(|ByteExtent { start_bytes, end_bytes: extent_end }| {
                        offset_bytes < extent_end && end_bytes > start_bytes
                    });
                    if touched && is_among(operation_of(request), operations) && random.random_bool(*rate) {
                        return FaultVerdict::Fail(DeviceError::Io("an injected fault".into()));
                    }
                }
                DeviceFault::Corrupt { rate, extent, .. }
                    if matches!(request, DeviceRequest::Read { .. }) =>
                {
                    let (from, to) =
                        extent.map_or((0, u64::MAX), |extent| (extent.start_bytes, extent.end_bytes));
                    let (from, to) = (from.max(offset_bytes), to.min(end_bytes));
                    if from < to && random.random_bool(*rate) {
                        let first = (from - offset_bytes).saturating_mul(8);
                        wrong_bits.push(first + random.random_range(0..(to - from).saturating_mul(8)));
                    }
                }
                _ => {}
            }
        }
        // Last: a fault that fails the request comes before one that pretends.
        match state.faults.iter().any(|injected| injected.fault == DeviceFault::IgnoreFlushes) {
            true => FaultVerdict::Pretend,
            false => FaultVerdict::Pass,
        }
    }

    fn submit_armed(
        &self,
        power: &Arc<VolatilePart>,
        is_honest: bool,
        request: DeviceRequest,
        done: CompletionCallback,
    ) {
        if let Err(mistake) = request.check(&self.paced.geometry()) {
            return done(Err(mistake));
        }
        let power = Arc::clone(power);
        let ticket = match &request {
            DeviceRequest::Write { offset_bytes, data, fua } => {
                power.write(*offset_bytes, data, *fua && is_honest).map(Some)
            }
            DeviceRequest::Discard { offset_bytes, length_bytes } => {
                power.discard(*offset_bytes, *length_bytes)
            }
            DeviceRequest::Flush if is_honest => {
                let covered = power.flush_begins();
                let done = move |completion| done(power.flush_ends(covered, completion));
                return self.paced.submit(request, Box::new(done));
            }
            DeviceRequest::Flush | DeviceRequest::Read { .. } => {
                let done = move |completion| done(power.answered(completion));
                return self.paced.submit(request, Box::new(done));
            }
        };
        match ticket {
            Ok(ticket) => {
                let done = move |completion| done(power.completed(ticket, completion));
                self.paced.submit(request, Box::new(done));
            }
            Err(error) => done(Err(error)),
        }
    }
}

fn flipped(mut data: Vec<u8>, bits: &[u64]) -> Vec<u8> {
    for bit in bits {
        if let Some(byte) = data.get_mut((bit / 8) as usize) {
            *byte ^= 1 << (bit % 8);
        }
    }
    data
}

impl BlockDevice for FaultyDevice {
    fn geometry(&self) -> DeviceGeometry {
        self.inner.paced.geometry()
    }

    fn submit(&self, request: DeviceRequest, mut done: CompletionCallback) {
        let inner = &self.inner;
        let mut is_honest = true;
        if inner.acts.load(Ordering::SeqCst) {
            let (verdict, wrong_bits) = inner.verdict(&request);
            if !wrong_bits.is_empty() {
                let answered = done;
                done =
                    Box::new(move |completion| answered(completion.map(|data| flipped(data, &wrong_bits))));
            }
            match verdict {
                FaultVerdict::Pass => {}
                FaultVerdict::Pretend => is_honest = false,
                FaultVerdict::Refuse(error) => return done(Err(error)),
                FaultVerdict::Fail(error) => return inner.paced.submit_failing(request, error, done),
            }
        }
        match &inner.power {
            Some(power) => inner.submit_armed(power, is_honest, request, done),
            None => inner.paced.submit(request, done),
        }
    }
}
