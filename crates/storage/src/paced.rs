//! The device that takes its modelled time: data on a backing, timing by a model, instants by a clock.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use underlay_sync::{Condvar, Mutex, MutexGuard};

use serde::{Deserialize, Serialize};
use underlay_record::FlashWear;

use crate::activity::{ActivityCounter, ActivityMeasurement, ActivityTotals};
use crate::backing::Backing;
use crate::clock::{ModelClock, VirtualClock};
use crate::device::{
    BlockDevice, CompletionCallback, DeviceCompletion, DeviceError, DeviceGeometry, DeviceRequest,
};
use crate::medium::{FinishedRequest, MediumModel, ModelOperation, ModelRequest, RequestId};
use crate::time::ModelTime;
use crate::times::RequestTimes;
use crate::waker::Waker;

/// Every modelled device is addressed in blocks of this size.
pub const BLOCK_BYTES: u32 = 4096;

/// "No event": further away than any clock gets.
pub(crate) const NEVER: u64 = u64::MAX;

/// Whether requests take their modelled time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PacingMode {
    Modelled,
    /// Fast-forward: requests complete at once while the models' state goes on.
    Immediate,
}

/// The wait of a program's request outside of the device, on its way there and its answer's way back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PathCost {
    pub fixed_us: f64,
    /// For each MiB of data.
    pub mib_us: f64,
}

impl PathCost {
    /// The same by a clock that runs slower by this factor.
    pub fn slowed(self, dilation: f64) -> PathCost {
        PathCost { fixed_us: self.fixed_us / dilation, mib_us: self.mib_us / dilation }
    }
}

/// A `BlockDevice` that completes each request when its model says so.
///
/// The data moves to or from the backing while the request is submitted, on the caller's thread; the answer
/// waits for the model. Without a model it is given before `submit` returns. A flush asks the backing to
/// sync at submission: every write that had completed by then has been written to it before. A request that
/// the backing fails is answered at once with the error, and the model never hears of it.
///
/// A model that panics takes its device with it, not its callers: what is in flight is answered with an I/O
/// error, and later requests with `DeviceError::Gone`.
///
/// A program waits for more than the device: its request's way here and the answer's way back. Told how long that
/// takes ([`Paced::set_path`]), the device dates requests back by as much, so that the program waits as long as the
/// model says. Of a model that doesn't [take late requests](MediumModel::takes_late) it can't go back behind what that
/// has done: of many requests at once some come late.
///
/// A `Paced` is a handle: clones are the same device.
#[derive(Clone)]
pub struct Paced {
    core: Arc<PacedCore>,
}

pub(crate) struct PacedCore {
    geometry: DeviceGeometry,
    backing: Arc<dyn Backing>,
    clock: Arc<dyn ModelClock>,
    modelled: bool,
    /// When the model's next event is due, in its nanoseconds; `NEVER` when idle. The pacer reads it.
    next_ns: AtomicU64,
    /// The time of a request's way here and its answer's way back, in the model's nanoseconds: without data, and for
    /// each MiB.
    path_ns: [AtomicU64; 2],
    state: Mutex<PacedState>,
    /// Signalled when the last request in flight is over.
    drained: Condvar,
    waker: Mutex<Option<Arc<Waker>>>,
}

struct PacedState {
    model: Option<Box<dyn MediumModel>>,
    /// The last instant that the model was given.
    model_now: ModelTime,
    next_id: u64,
    in_flight: HashMap<RequestId, InFlight>,
    pace: PacingMode,
    /// Set while `set_pace` waits for what is in flight: new requests queue behind it.
    changing_to: Option<PacingMode>,
    deferred: Vec<(ModelRequest, InFlight)>,
    closed: bool,
    activity: ActivityCounter,
    /// Never cleared.
    times: RequestTimes,
    /// As the measurement began.
    wear_began: Option<FlashWear>,
    /// Kept between calls for its memory.
    finished: Vec<FinishedRequest>,
}

impl PacedState {
    fn wear(&self) -> Option<FlashWear> {
        // A closed device's model is not asked: it may be the one that failed.
        self.model.as_ref().filter(|_| !self.closed).and_then(|model| model.wear())
    }
}

struct InFlight {
    operation: ModelOperation,
    length_bytes: u64,
    /// When `submit` was called.
    submitted: ModelTime,
    /// When the model got it: later than `submitted` where it had gone on meanwhile.
    given: ModelTime,
    answer: DeviceCompletion,
    /// Taken where the request was answered before its model had finished with it.
    done: Option<CompletionCallback>,
}

/// An answer to give once the lock is released: `done` may submit again.
struct PacedAnswer {
    done: Option<CompletionCallback>,
    completion: DeviceCompletion,
    reply: Option<AnswerRecord>,
}

/// The record of an answer as it is given.
struct AnswerRecord {
    operation: ModelOperation,
    length_bytes: u64,
    submitted: ModelTime,
    modelled: Option<Duration>,
}

type PacedAnswers = Vec<PacedAnswer>;

impl InFlight {
    /// The answer to a request that is over, after `modelled` if a model gave the time.
    fn succeed(self, modelled: Option<Duration>) -> PacedAnswer {
        let InFlight { operation, length_bytes, submitted, answer, done, .. } = self;
        let reply = AnswerRecord { operation, length_bytes, submitted, modelled };
        let reply = done.is_some().then_some(reply);
        PacedAnswer { done, completion: answer, reply }
    }

    fn fail(self, error: DeviceError) -> PacedAnswer {
        PacedAnswer { done: self.done, completion: Err(error), reply: None }
    }
}

impl Paced {
    /// A device of `model.capacity_bytes()` bytes, or of `capacity_bytes` without a model.
    ///
    /// Nothing completes by itself: give the device to a [`crate::pacer::Pacer`], or drive it with
    /// [`run_until_idle`] by a virtual clock.
    ///
    /// # Panics
    /// When the model is for another capacity.
    pub fn new(
        capacity_bytes: u64,
        backing: Arc<dyn Backing>,
        model: Option<Box<dyn MediumModel>>,
        clock: Arc<dyn ModelClock>,
    ) -> Paced {
        if let Some(model) = &model {
            assert_eq!(model.capacity_bytes(), capacity_bytes, "the model is for another capacity");
        }
        let now = clock.now();
        let state = PacedState {
            model_now: now,
            next_id: 0,
            in_flight: HashMap::new(),
            pace: PacingMode::Modelled,
            changing_to: None,
            deferred: Vec::new(),
            closed: false,
            activity: ActivityCounter::new(now),
            times: RequestTimes::default(),
            wear_began: None,
            finished: Vec::new(),
            model,
        };
        let core = PacedCore {
            geometry: DeviceGeometry {
                capacity_bytes,
                block_bytes: BLOCK_BYTES,
                optimal_io_bytes: BLOCK_BYTES,
            },
            backing,
            // Beside the state, so that requests look at it without the lock.
            modelled: state.model.is_some(),
            next_ns: AtomicU64::new(NEVER),
            path_ns: [AtomicU64::new(0), AtomicU64::new(0)],
            state: Mutex::new(state),
            drained: Condvar::new(),
            waker: Mutex::new(None),
            clock,
        };
        Paced { core: Arc::new(core) }
    }

    pub(crate) fn core(&self) -> &Arc<PacedCore> {
        &self.core
    }

    /// Whether a model gives the timing.
    pub fn is_modelled(&self) -> bool {
        self.core.modelled
    }

    /// Changes the pace once everything in flight is over; later requests wait for that too. Blocks until
    /// then, so someone else must be driving the device.
    pub fn set_pace(&self, pace: PacingMode) {
        {
            let mut state = self.core.lock();
            if state.pace == pace && state.changing_to.is_none() {
                return;
            }
            state.changing_to = Some(pace);
            while !state.in_flight.is_empty() && !state.closed {
                state = self.core.drained.wait(state);
            }
        }
        let answers = self.core.guarded(|state, answers| self.core.change_pace(state, answers));
        self.core.wake_pacer();
        self.core.answer(answers);
    }

    /// Has requests dated back by what they wait outside of the device, in the model's time.
    pub fn set_path(&self, path: PathCost) {
        for (stored_ns, us) in self.core.path_ns.iter().zip([path.fixed_us, path.mib_us]) {
            // A cast of what is negative or no number gives 0.
            stored_ns.store((us * 1e3) as u64, Ordering::Relaxed);
        }
    }

    /// Clears counters and histograms and samples every `interval` of modelled time from now on.
    pub fn begin_measurement(&self, interval: Duration) {
        let mut state = self.core.lock();
        state.activity.begin(self.core.clock.now(), interval);
        state.wear_began = state.wear();
    }

    /// The medium's wear since `begin_measurement`, which was `duration` ago.
    pub fn end_wear(&self, duration: Duration) -> Option<FlashWear> {
        let state = self.core.lock();
        let began = state.wear_began.unwrap_or_default();
        state.wear().map(|now| now.delta_since(&began, duration.as_secs_f64()))
    }

    /// The activity since `begin_measurement`.
    pub fn end_measurement(&self) -> ActivityMeasurement {
        self.core.lock().activity.end(self.core.clock.now())
    }

    /// Its totals since counting began, up to now.
    pub fn glance(&self) -> ActivityTotals {
        self.core.lock().activity.glance(self.core.clock.now())
    }

    /// Requests' times since the device was made, independent of any measurement.
    pub fn times(&self) -> RequestTimes {
        self.core.lock().times
    }

    /// A request that fails with `error` once its modelled time is over. No data moves.
    pub(crate) fn submit_failing(
        &self,
        request: DeviceRequest,
        error: DeviceError,
        done: CompletionCallback,
    ) {
        if let Err(mistake) = request.check(&self.core.geometry) {
            return done(Err(mistake));
        }
        let (offset_bytes, length_bytes) = request.extent();
        let (operation, fua) = match request {
            DeviceRequest::Read { .. } => (ModelOperation::Read, false),
            DeviceRequest::Write { fua, .. } => (ModelOperation::Write, fua),
            DeviceRequest::Flush => (ModelOperation::Flush, false),
            DeviceRequest::Discard { .. } => (ModelOperation::Discard, false),
        };
        if length_bytes == 0 && operation != ModelOperation::Flush {
            return done(Err(error));
        }
        let request = ModelRequest { id: RequestId(0), operation, offset_bytes, length_bytes, fua };
        self.core.pass_through(request, Err(error), self.core.clock.now(), done);
    }

    /// A message: it takes the time that the model gives it, and moves no data. The model must know what to make
    /// of lengths of zero, and of offsets that are.
    pub(crate) fn delay(&self, operation: ModelOperation, length_bytes: u64, done: CompletionCallback) {
        let request = ModelRequest { id: RequestId(0), operation, offset_bytes: 0, length_bytes, fua: false };
        self.core.pass_through(request, Ok(Vec::new()), self.core.clock.now(), done);
    }

    /// Answers everything in flight with `error`. The model still finishes it, unheard.
    pub(crate) fn fail_under_way(&self, error: &DeviceError) {
        let mut answers = PacedAnswers::new();
        {
            let mut state = self.core.lock();
            let now = self.core.clock.now();
            let mut ids: Vec<RequestId> = state.in_flight.keys().copied().collect();
            // In the order of submission: a hash map's own order differs from run to run.
            ids.sort();
            for id in ids {
                let done = state.in_flight.get_mut(&id).and_then(|in_flight| in_flight.done.take());
                if done.is_some() {
                    state.activity.abandoned(now);
                    answers.push(PacedAnswer { done, completion: Err(error.clone()), reply: None });
                }
            }
            let deferred = std::mem::take(&mut state.deferred);
            answers.extend(deferred.into_iter().map(|(_, in_flight)| in_flight.fail(error.clone())));
        }
        self.core.answer(answers);
    }

    /// Makes the model look at the time, and the pacer at the model: something about it has changed.
    pub(crate) fn nudge(&self) {
        self.core.run(self.core.clock.now());
        self.core.wake_pacer();
    }

    /// Refuses further requests and answers those in flight with `DeviceError::Gone`.
    pub fn close(&self) {
        self.core.close(&DeviceError::Gone);
    }
}

impl PacedCore {
    fn path(&self, length_bytes: u64) -> Duration {
        let [fixed_ns, mib_ns] = self.path_ns.each_ref().map(|stored_ns| stored_ns.load(Ordering::Relaxed));
        Duration::from_nanos(fixed_ns + (mib_ns as f64 * length_bytes as f64 / f64::from(1 << 20)) as u64)
    }

    fn lock(&self) -> MutexGuard<'_, PacedState> {
        // `guarded` catches what could panic under the lock.
        self.state.lock()
    }

    /// Runs what calls the model, under the lock. When that panics, nobody knows what state the model is in
    /// and its requests would never be over: the device fails them all and closes.
    fn guarded(&self, call: impl FnOnce(&mut PacedState, &mut PacedAnswers)) -> PacedAnswers {
        let mut answers = PacedAnswers::new();
        let mut state = self.lock();
        let called = panic::catch_unwind(AssertUnwindSafe(|| {
            call(&mut state, &mut answers);
            self.publish_next(&state);
        }));
        if let Err(panic) = called {
            let error = DeviceError::Io(format!("the device's model failed: {}", text(&*panic)));
            self.fail_all(&mut state, &error, &mut answers);
        }
        answers
    }

    pub(crate) fn close(&self, error: &DeviceError) {
        let mut answers = PacedAnswers::new();
        self.fail_all(&mut self.lock(), error, &mut answers);
        self.answer(answers);
    }

    fn fail_all(&self, state: &mut PacedState, error: &DeviceError, answers: &mut PacedAnswers) {
        state.closed = true;
        self.next_ns.store(NEVER, Ordering::SeqCst);
        let deferred = std::mem::take(&mut state.deferred).into_iter().map(|(_, in_flight)| in_flight);
        let mut under_way: Vec<(RequestId, InFlight)> =
            std::mem::take(&mut state.in_flight).into_iter().collect();
        under_way.sort_by_key(|(id, _)| *id);
        let all = under_way.into_iter().map(|(_, in_flight)| in_flight).chain(deferred);
        answers.extend(all.map(|in_flight| in_flight.fail(error.clone())));
        self.drained.notify_all();
    }

    /// Gives answers, each recorded as it is given: what the one before took is lateness of the next.
    fn answer(&self, answers: PacedAnswers) {
        let mut panicked = None;
        for PacedAnswer { done, completion, reply } in answers {
            if let Some(AnswerRecord { operation, length_bytes, submitted, modelled }) = reply {
                // Before `done`, whose caller may end the measurement, and under the lock, which may take
                // its time as well.
                let mut state = self.lock();
                let replied = self.clock.now();
                // As the program sees it that asked.
                let outside = modelled.map_or(Duration::ZERO, |_| self.path(length_bytes));
                let served = replied.duration_since(submitted);
                state.activity.replied(replied, operation, length_bytes, modelled, served + outside);
                if let Some(modelled) = modelled {
                    state.times.add(operation, modelled, served, outside);
                }
            }
            let Some(done) = done else { continue };
            // One caller's panic must not leave the others without an answer.
            let answered = panic::catch_unwind(AssertUnwindSafe(|| done(completion)));
            panicked = panicked.or(answered.err());
        }
        if let Some(panic) = panicked {
            panic::resume_unwind(panic);
        }
    }

    pub(crate) fn next_ns(&self) -> u64 {
        self.next_ns.load(Ordering::SeqCst)
    }

    pub(crate) fn set_waker(&self, waker: Arc<Waker>) {
        *self.waker.lock() = Some(waker);
    }

    /// Carries the model on to `now` and answers what has finished.
    pub(crate) fn run(&self, now: ModelTime) {
        let answers = self.guarded(|state, answers| self.carry_on(state, now, answers));
        self.answer(answers);
    }

    /// Takes every event up to `now`, and adds what is over.
    fn carry_on(&self, state: &mut PacedState, now: ModelTime, answers: &mut PacedAnswers) {
        let now = now.max(state.model_now);
        let Some(model) = &mut state.model else { return };
        // A panic loses this buffer only: what had finished is still in flight, and fails.
        let mut finished = std::mem::take(&mut state.finished);
        model.complete(now, &mut finished);
        state.model_now = now;
        answers.reserve(finished.len());
        for FinishedRequest { id, at: finished_at } in finished.drain(..) {
            let Some(in_flight) = state.in_flight.remove(&id) else { continue };
            let modelled = finished_at.duration_since(in_flight.given);
            answers.push(in_flight.succeed(Some(modelled)));
        }
        state.finished = finished;
        if state.in_flight.is_empty() && state.changing_to.is_some() {
            self.drained.notify_all();
        }
    }

    fn publish_next(&self, state: &PacedState) {
        // A closed device's model is not asked: it may be the one that failed.
        let model = state.model.as_ref().filter(|_| !state.closed);
        let next_ns = model.and_then(|model| model.next_completion()).map_or(NEVER, ModelTime::as_ns);
        // `SeqCst`, as the loads in `Waker`: either the pacer sees this, or this thread sees it asleep.
        self.next_ns.store(next_ns, Ordering::SeqCst);
    }

    fn wake_pacer(&self) {
        if let Some(waker) = self.waker.lock().as_ref() {
            waker.wake(self.next_ns());
        }
    }

    /// Completes what queued behind the change, by the new pace.
    fn change_pace(&self, state: &mut PacedState, answers: &mut PacedAnswers) {
        if let Some(pace) = state.changing_to.take() {
            let ends_fast_forward = state.pace == PacingMode::Immediate && pace == PacingMode::Modelled;
            state.pace = pace;
            if ends_fast_forward && !state.closed {
                self.carry_on(state, self.clock.now(), answers);
                let now = state.model_now;
                if let Some(model) = &mut state.model {
                    model.end_fast_forward(now);
                }
            }
        }
        // Backwards from its end, so that a panic leaves the rest where it is failed.
        state.deferred.reverse();
        while let Some((request, in_flight)) = state.deferred.pop() {
            self.begin(state, request, in_flight, answers);
        }
    }

    /// Takes a request, whose data has moved, through the model to its answer.
    fn pass_through(
        &self,
        request: ModelRequest,
        answer: DeviceCompletion,
        submitted: ModelTime,
        done: CompletionCallback,
    ) {
        let ModelRequest { operation, length_bytes, .. } = request;
        let (given_at, done) = (submitted, Some(done));
        let in_flight = InFlight { operation, length_bytes, submitted, given: given_at, answer, done };
        let answers = self.guarded(|state, answers| self.begin(state, request, in_flight, answers));
        if self.modelled {
            self.wake_pacer();
        }
        self.answer(answers);
    }

    /// Gives a request, whose data has moved, to the model.
    fn begin(
        &self,
        state: &mut PacedState,
        mut request: ModelRequest,
        mut in_flight: InFlight,
        answers: &mut PacedAnswers,
    ) {
        if state.closed {
            answers.push(in_flight.fail(DeviceError::Gone));
            return;
        }
        if state.changing_to.is_some() {
            state.deferred.push((request, in_flight));
            return;
        }
        request.id = RequestId(state.next_id);
        state.next_id += 1;
        if state.model.is_some() && state.pace == PacingMode::Modelled {
            // Another thread may have carried the model past this request's arrival while its data moved.
            // To the model it comes now; to its caller it is late by as much.
            let arrived = in_flight.submitted.max(state.model_now);
            let path = self.path(in_flight.length_bytes);
            let now = match state.model.as_ref().is_some_and(|model| model.takes_late()) {
                // By its way alone: a request that waited for its data is late.
                true => arrived.saturating_sub(path),
                false => in_flight.submitted.saturating_sub(path).max(state.model_now),
            };
            in_flight.given = now;
            state.activity.note(&request, arrived);
            state.activity.arrived(arrived);
            // Before anything that might panic.
            state.in_flight.insert(request.id, in_flight);
            self.carry_on(state, now, answers);
            if let Some(model) = &mut state.model {
                model.submit(request, now);
            }
            // Some requests cost no time at all, some are over by the time that they come.
            let is_over = |instant: ModelTime| now < instant && instant <= arrived;
            let next = state.model.as_ref().and_then(|model| model.next_completion());
            self.carry_on(state, if next.is_some_and(is_over) { arrived } else { now }, answers);
        } else {
            state.activity.arrived(in_flight.submitted);
            state.in_flight.insert(request.id, in_flight);
            if let Some(model) = &mut state.model {
                model.absorb(request);
            }
            answers.extend(state.in_flight.remove(&request.id).map(|in_flight| in_flight.succeed(None)));
        }
    }

    /// Moves the data, which is all that a device without timing does.
    fn transfer(&self, request: DeviceRequest) -> (ModelOperation, bool, DeviceCompletion) {
        match request {
            DeviceRequest::Read { offset_bytes, mut buffer } => {
                let result = self.backing.read(offset_bytes, &mut buffer);
                (ModelOperation::Read, false, result.map(|()| buffer))
            }
            DeviceRequest::Write { offset_bytes, data, fua } => {
                let mut result = self.backing.write(offset_bytes, &data);
                if fua {
                    result = result.and_then(|()| self.backing.sync());
                }
                (ModelOperation::Write, fua, result.map(|()| Vec::new()))
            }
            DeviceRequest::Flush => (ModelOperation::Flush, false, self.backing.sync().map(|()| Vec::new())),
            DeviceRequest::Discard { offset_bytes, length_bytes } => {
                let result = self.backing.discard(offset_bytes, length_bytes);
                (ModelOperation::Discard, false, result.map(|()| Vec::new()))
            }
        }
    }
}

impl BlockDevice for Paced {
    fn geometry(&self) -> DeviceGeometry {
        self.core.geometry
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        let core = &self.core;
        if let Err(error) = request.check(&core.geometry) {
            return done(Err(error));
        }
        let submitted = core.clock.now();
        let (offset_bytes, length_bytes) = request.extent();
        let (operation, fua, completion) = core.transfer(request);
        if let Err(error) = completion {
            return done(Err(error));
        }
        if length_bytes == 0 && operation != ModelOperation::Flush {
            return done(completion);
        }
        let request = ModelRequest { id: RequestId(0), operation, offset_bytes, length_bytes, fua };
        core.pass_through(request, completion, submitted, done);
    }
}

/// A panic's message.
fn text(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "a panic without words",
    }
}

/// Drives devices by a virtual clock until none has anything in flight, and returns the instant of the last
/// event. For tests and predictions; no thread and no waiting are involved.
pub fn run_until_idle(devices: &[Paced], clock: &VirtualClock) -> ModelTime {
    while step(devices, clock) {}
    clock.now()
}

/// Carries the devices on to their next event; false when there is none.
pub fn step(devices: &[Paced], clock: &VirtualClock) -> bool {
    let next = devices.iter().min_by_key(|device| device.core.next_ns());
    match next {
        Some(device) if device.core.next_ns() != NEVER => {
            clock.advance_to(ModelTime::from_ns(device.core.next_ns()));
            device.core.run(clock.now());
            true
        }
        _ => false,
    }
}
