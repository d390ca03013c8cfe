//! The daemon's request meter: every request of the kernel comes in here, and every answer goes out. The time between
//! the two belongs to the storage; the rest of a program's wait is the path cost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use underlay_storage::device::{
    BlockDevice, CompletionCallback, DeviceCompletion, DeviceError, DeviceGeometry, DeviceRequest,
};
use underlay_storage::stack::Stack;
use underlay_storage::times::RequestTimes;

/// The daemon's answers of one kind since it was started. They include failed requests, since the kernel counts them
/// too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AnsweredTotals {
    pub requests: u64,
    pub bytes: u64,
    /// From a request's arrival to its answer's departure, in wall time.
    pub wall_us: f64,
}

impl AnsweredTotals {
    /// The mean data of a request.
    pub(crate) fn mean_mib(&self) -> f64 {
        self.bytes as f64 / self.requests.max(1) as f64 / f64::from(1 << 20)
    }

    pub(crate) fn delta_since(&self, earlier: &AnsweredTotals) -> AnsweredTotals {
        AnsweredTotals {
            requests: self.requests.saturating_sub(earlier.requests),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            wall_us: self.wall_us - earlier.wall_us,
        }
    }
}

/// A volume's running totals, at its request meter and at its devices. Discards are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VolumeTimes {
    pub reads: AnsweredTotals,
    pub writes: AnsweredTotals,
    pub flushes: AnsweredTotals,
    /// The totals of its devices, in modelled time; absent where layers make their own requests.
    pub devices: Option<RequestTimes>,
}

impl VolumeTimes {
    pub(crate) fn delta_since(&self, earlier: &VolumeTimes) -> VolumeTimes {
        VolumeTimes {
            reads: self.reads.delta_since(&earlier.reads),
            writes: self.writes.delta_since(&earlier.writes),
            flushes: self.flushes.delta_since(&earlier.flushes),
            devices: self.devices.map(|times| times.delta_since(&earlier.devices.unwrap_or_default())),
        }
    }
}

#[derive(Default)]
struct RequestTotal {
    requests: AtomicU64,
    bytes: AtomicU64,
    ns: AtomicU64,
}

impl RequestTotal {
    fn add(&self, bytes: u64, duration: Duration) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.ns.fetch_add(duration.as_nanos() as u64, Ordering::Relaxed);
    }

    fn read(&self) -> AnsweredTotals {
        AnsweredTotals {
            requests: self.requests.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            wall_us: self.ns.load(Ordering::Relaxed) as f64 / 1e3,
        }
    }
}

#[derive(Default)]
struct MeterTotals {
    reads: RequestTotal,
    writes: RequestTotal,
    flushes: RequestTotal,
    discards: RequestTotal,
}

/// The request meters of all volumes of a daemon.
#[derive(Default)]
pub(crate) struct RequestMeters {
    doors: Vec<Arc<RequestMeter>>,
    late: Arc<LateAnswers>,
}

impl RequestMeters {
    /// For the volumes of a stack, in order.
    pub(crate) fn new(stack: &Stack) -> RequestMeters {
        let late = Arc::default();
        let doors =
            stack.volumes().iter().map(|volume| RequestMeter::new(Arc::clone(volume), &late)).collect();
        RequestMeters { doors, late }
    }

    pub(crate) fn volumes(&self) -> impl Iterator<Item = Arc<dyn BlockDevice>> + '_ {
        self.doors.iter().map(|door| Arc::clone(door) as Arc<dyn BlockDevice>)
    }

    /// A path in and out again: see [`NullDevice`] and [`TimestampDevice`].
    pub(crate) fn probe(&self) -> Arc<dyn BlockDevice> {
        Arc::new(TimestampDevice(RequestMeter::new(Arc::new(NullDevice), &self.late)))
    }

    /// The requests since the daemon was started, in the order of the stack's volumes.
    pub(crate) fn times(&self, stack: &Stack) -> Vec<VolumeTimes> {
        let devices = stack.times();
        let volume_times = |(door, devices): (&Arc<RequestMeter>, _)| VolumeTimes { devices, ..door.times() };
        self.doors.iter().zip(devices).map(volume_times).collect()
    }

    /// See [`LateAnswers`].
    ///
    /// # Errors
    /// When the thread that holds answers back can't be started.
    pub(crate) fn delay(&self, delay: Duration) -> std::io::Result<()> {
        self.late.set(delay)
    }
}

/// A volume behind its request meter.
struct RequestMeter {
    device: Arc<dyn BlockDevice>,
    totals: Arc<MeterTotals>,
    late: Arc<LateAnswers>,
}

impl RequestMeter {
    fn new(device: Arc<dyn BlockDevice>, late: &Arc<LateAnswers>) -> Arc<RequestMeter> {
        Arc::new(RequestMeter { device, totals: Arc::default(), late: Arc::clone(late) })
    }

    /// Without the totals of its devices, which are added later.
    fn times(&self) -> VolumeTimes {
        VolumeTimes {
            reads: self.totals.reads.read(),
            writes: self.totals.writes.read(),
            flushes: self.totals.flushes.read(),
            devices: None,
        }
    }
}

impl BlockDevice for RequestMeter {
    fn geometry(&self) -> DeviceGeometry {
        self.device.geometry()
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        let came = Instant::now();
        let (_, bytes) = request.extent();
        let total: fn(&MeterTotals) -> &RequestTotal = match request {
            DeviceRequest::Read { .. } => |totals| &totals.reads,
            DeviceRequest::Write { .. } => |totals| &totals.writes,
            DeviceRequest::Flush => |totals| &totals.flushes,
            DeviceRequest::Discard { .. } => |totals| &totals.discards,
        };
        let (totals, late) = (Arc::clone(&self.totals), Arc::clone(&self.late));
        let answer = move |completion: DeviceCompletion| {
            total(&totals).add(bytes, came.elapsed());
            late.pass(done, completion);
        };
        self.device.submit(request, Box::new(answer));
    }
}

/// An answer that is held back.
struct DelayedAnswer {
    due: Instant,
    done: CompletionCallback,
    completion: DeviceCompletion,
}

/// Delays answers on their way out, after everything was counted. This makes the path longer by a known amount, so that
/// tests can check whether it is detected. Only a command to the daemon switches it on.
#[derive(Default)]
struct LateAnswers {
    delay_ns: AtomicU64,
    /// The channel to the thread that holds them; there is none until the first delay.
    held: underlay_sync::Mutex<Option<Sender<DelayedAnswer>>>,
}

impl LateAnswers {
    /// From now on, answers go out this much later; zero ends the delay.
    ///
    /// # Errors
    /// When the thread that holds them can't be started.
    fn set(&self, delay: Duration) -> std::io::Result<()> {
        let mut guard = self.held.lock();
        if guard.is_none() && !delay.is_zero() {
            let (sender, received) = mpsc::channel::<DelayedAnswer>();
            std::thread::Builder::new().name("late-answers".into()).spawn(move || {
                for DelayedAnswer { due, done, completion } in received {
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                    done(completion);
                }
            })?;
            *guard = Some(sender);
        }
        self.delay_ns.store(delay.as_nanos() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn pass(&self, done: CompletionCallback, completion: DeviceCompletion) {
        let delay_ns = self.delay_ns.load(Ordering::Relaxed);
        if delay_ns == 0 {
            return done(completion);
        }
        let due = Instant::now() + Duration::from_nanos(delay_ns);
        match &*self.held.lock() {
            // The thread ends with its sender, which is here.
            Some(sender) => drop(sender.send(DelayedAnswer { due, done, completion })),
            None => done(completion),
        }
    }
}

/// A volume of a few blocks that answers at once, so a request to it takes only the time of the path.
struct NullDevice;

/// The smallest read that the kernel requests.
pub(crate) const PROBE_BYTES: u32 = 4096;

impl BlockDevice for NullDevice {
    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            capacity_bytes: u64::from(PROBE_BYTES),
            block_bytes: PROBE_BYTES,
            optimal_io_bytes: PROBE_BYTES,
        }
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        done(match request {
            DeviceRequest::Read { mut buffer, .. } => {
                // It may hold data of another volume's request.
                buffer.fill(0);
                Ok(buffer)
            }
            DeviceRequest::Write { .. } | DeviceRequest::Discard { .. } => {
                Err(DeviceError::Io("the file for probes holds nothing".to_owned()))
            }
            DeviceRequest::Flush => Ok(Vec::new()),
        });
    }
}

/// Writes an answer's departure time into its data, so that the reader learns the time of the path from here.
struct TimestampDevice(Arc<RequestMeter>);

impl BlockDevice for TimestampDevice {
    fn geometry(&self) -> DeviceGeometry {
        self.0.geometry()
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        self.0.submit(
            request,
            Box::new(|result| {
                done(result.map(|mut buffer| {
                    if let Some(stamp) = buffer.first_chunk_mut() {
                        *stamp = monotonic_ns().to_le_bytes();
                    }
                    buffer
                }));
            }),
        );
    }
}

/// The host's monotonic clock, which is the same in every process. [`Instant`]s can't be passed on.
pub(crate) fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_reports_its_start_time() {
        let late = Arc::new(LateAnswers::default());
        let stamped = TimestampDevice(RequestMeter::new(Arc::new(NullDevice), &late));
        let delay = Duration::from_millis(20);
        late.set(delay).unwrap();
        let before_ns = monotonic_ns();
        let buffer = vec![7; PROBE_BYTES as usize];
        let read = stamped.execute(DeviceRequest::Read { offset_bytes: 0, buffer }).unwrap();
        let stamp_ns = u64::from_le_bytes(*read.first_chunk().unwrap());
        // The answer's delay is not part of the path from here.
        assert!(stamp_ns >= before_ns + delay.as_nanos() as u64 && stamp_ns <= monotonic_ns());
        assert!(read[8..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn answers_are_counted_by_kind() {
        let door = RequestMeter::new(Arc::new(NullDevice), &Arc::default());
        for _ in 0..3 {
            let buffer = vec![0; PROBE_BYTES as usize];
            door.execute(DeviceRequest::Read { offset_bytes: 0, buffer }).unwrap();
        }
        door.execute(DeviceRequest::Flush).unwrap();
        assert!(
            door.execute(DeviceRequest::Write { offset_bytes: 0, data: vec![0; 4096], fua: false }).is_err()
        );
        let times = door.times();
        assert_eq!((times.reads.requests, times.reads.bytes), (3, 3 * 4096));
        assert_eq!((times.writes.requests, times.flushes.requests), (1, 1));
        assert_eq!(door.times().delta_since(&times).reads, AnsweredTotals::default());
    }

    #[test]
    fn answers_are_held_back_after_they_were_counted() {
        let late = Arc::new(LateAnswers::default());
        let door = RequestMeter::new(Arc::new(NullDevice), &late);
        let delay = Duration::from_millis(20);
        late.set(delay).unwrap();
        let begun = Instant::now();
        door.execute(DeviceRequest::Flush).unwrap();
        assert!(begun.elapsed() >= delay);
        let counted_us = door.times().flushes.wall_us;
        assert!(counted_us < begun.elapsed().as_secs_f64() * 1e6 - 20_000.0, "{counted_us}");
        late.set(Duration::ZERO).unwrap();
        door.execute(DeviceRequest::Flush).unwrap();
        assert_eq!(door.times().flushes.requests, 2);
    }
}
