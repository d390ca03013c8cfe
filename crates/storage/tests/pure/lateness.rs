//! What a paced device reports about its lateness, and how its callers end when a model fails.

use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

use underlay_storage::backing::{Backing, NullBacking};
use underlay_storage::clock::{ModelClock, RealClock, VirtualClock};
use underlay_storage::device::{BlockDevice, DeviceCompletion, DeviceError, DeviceRequest};
use underlay_storage::medium::{FinishedRequest, MediumModel, ModelRequest, RequestId};
use underlay_storage::paced::{Paced, PathCost, run_until_idle};
use underlay_storage::pacer::Pacer;
use underlay_storage::time::ModelTime;

const CAPACITY: u64 = 1 << 20;
const MS: u64 = 1_000_000;

/// Takes 1 ms for each request, or panics.
#[derive(Default)]
struct Fixed {
    under_way: Vec<(ModelTime, RequestId)>,
    panic_at_submit: Option<u64>,
    panic_at_complete: bool,
}

impl MediumModel for Fixed {
    fn capacity_bytes(&self) -> u64 {
        CAPACITY
    }
    fn submit(&mut self, request: ModelRequest, now: ModelTime) {
        assert_ne!(Some(request.offset_bytes), self.panic_at_submit, "a model's panic, as the test wants");
        self.under_way.push((now + Duration::from_millis(1), request.id));
    }
    fn next_completion(&self) -> Option<ModelTime> {
        self.under_way.iter().map(|(due, _)| *due).min()
    }
    fn complete(&mut self, now: ModelTime, finished: &mut Vec<FinishedRequest>) {
        self.under_way.sort();
        while let Some(&(due, id)) = self.under_way.first().filter(|(due, _)| *due <= now) {
            assert!(!self.panic_at_complete, "a model's panic, as the test wants");
            self.under_way.remove(0);
            finished.push(FinishedRequest { id, at: due });
        }
    }
    fn absorb(&mut self, _request: ModelRequest) {}
}

/// What a [`Hooked`] does before it reads.
type Hook = Box<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct Hooked(OnceLock<Hook>);

impl Backing for Hooked {
    fn read(&self, _offset_bytes: u64, _buffer: &mut [u8]) -> Result<(), DeviceError> {
        if let Some(hook) = self.0.get() {
            hook();
        }
        Ok(())
    }
    fn write(&self, _offset_bytes: u64, _data: &[u8]) -> Result<(), DeviceError> {
        Ok(())
    }
    fn discard(&self, _offset_bytes: u64, _length_bytes: u64) -> Result<(), DeviceError> {
        Ok(())
    }
    fn sync(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}

fn read(offset_bytes: u64) -> DeviceRequest {
    DeviceRequest::Read { offset_bytes, buffer: vec![0; 4096] }
}

fn write() -> DeviceRequest {
    DeviceRequest::Write { offset_bytes: 0, data: vec![0; 4096], fua: false }
}

fn virtual_device() -> (Paced, Arc<VirtualClock>, Arc<Hooked>) {
    let (clock, backing) = (Arc::new(VirtualClock::default()), Arc::new(Hooked::default()));
    let shared: Arc<dyn ModelClock> = clock.clone();
    let device = Paced::new(CAPACITY, backing.clone(), Some(Box::new(Fixed::default())), shared);
    device.begin_measurement(Duration::MAX);
    (device, clock, backing)
}

fn near(us: f64, ms: f64) -> bool {
    (us / 1e3 / ms - 1.0).abs() < 0.01
}

#[test]
fn slow_transfer_counts_as_lateness() {
    let (device, clock, backing) = virtual_device();
    let slow = Arc::clone(&clock);
    let _ = backing.0.set(Box::new(move || slow.advance_to(ModelTime::from_ns(5 * MS))));
    device.submit(read(0), Box::new(|_| ()));
    run_until_idle(std::slice::from_ref(&device), &clock);
    let measured = device.end_measurement();
    assert!(near(measured.modelled.mean_us(), 1.0), "{}", measured.modelled.mean_us());
    assert!(near(measured.delivered.mean_us(), 5.0), "{}", measured.delivered.mean_us());
}

/// As above, of a model that takes what comes late: it must not take the host's own time for the device's.
#[test]
fn slow_concurrent_transfer_counts_as_lateness() {
    let clock = Arc::new(VirtualClock::default());
    let backing = Arc::new(Hooked::default());
    let medium = underlay_storage::catalogue::find("nvme-9300-max").unwrap();
    let model = medium.model(CAPACITY, 1, underlay_storage::stack::InitialState::Fresh);
    assert!(model.takes_late());
    let shared: Arc<dyn ModelClock> = clock.clone();
    let device = Paced::new(CAPACITY, backing.clone(), Some(model), shared);
    device.set_path(PathCost { fixed_us: 30.0, mib_us: 0.0 });
    device.begin_measurement(Duration::MAX);
    clock.advance_to(ModelTime::from_ns(MS));
    let (other, slow) = (device.clone(), Arc::clone(&clock));
    let nested = std::sync::atomic::AtomicBool::new(false);
    let _ = backing.0.set(Box::new(move || {
        if !nested.swap(true, std::sync::atomic::Ordering::SeqCst) {
            slow.advance_to(ModelTime::from_ns(11 * MS));
            other.submit(read(4096), Box::new(|_| ()));
        }
    }));
    device.submit(read(0), Box::new(|_| ()));
    run_until_idle(std::slice::from_ref(&device), &clock);
    let measured = device.end_measurement();
    assert!(measured.modelled.quantile_us(1.0) < 200.0, "{}", measured.modelled.quantile_us(1.0));
    assert!(measured.delivered.quantile_us(1.0) > 10_000.0, "{}", measured.delivered.quantile_us(1.0));
}

#[test]
fn path_cost_shortens_wait_and_counts_as_delivered() {
    let (device, clock, _) = virtual_device();
    device.set_path(PathCost { fixed_us: 300.0, mib_us: 0.0 });
    clock.advance_to(ModelTime::from_ns(5 * MS));
    device.submit(read(0), Box::new(|_| ()));
    assert_eq!(run_until_idle(std::slice::from_ref(&device), &clock), ModelTime::from_ns(5_700_000));
    let measured = device.end_measurement();
    assert!(near(measured.modelled.mean_us(), 1.0), "{}", measured.modelled.mean_us());
    assert!(near(measured.delivered.mean_us(), 1.0), "{}", measured.delivered.mean_us());
}

#[test]
fn running_totals_separate_modelled_from_served() {
    let (device, clock, _) = virtual_device();
    device.set_path(PathCost { fixed_us: 300.0, mib_us: 0.0 });
    clock.advance_to(ModelTime::from_ns(5 * MS));
    let before = device.times();
    for request in [read(0), DeviceRequest::Flush] {
        clock.advance_to(ModelTime::from_ns(clock.now().as_ns() + 5 * MS));
        device.submit(request, Box::new(|_| ()));
        run_until_idle(std::slice::from_ref(&device), &clock);
        // A measurement that begins does not disturb them.
        device.begin_measurement(Duration::MAX);
    }
    let times = device.times().delta_since(&before);
    for kind in [times.reads, times.flushes] {
        assert_eq!(kind.requests, 1);
        assert!(near(kind.modelled_us, 1.0) && near(kind.served_us, 0.7), "{kind:?}");
        assert!(near(kind.dated_back_us, 0.3), "{kind:?}");
    }
    assert_eq!(times.writes.requests, 0);
    device.set_pace(underlay_storage::stack::PacingMode::Immediate);
    device.submit(read(0), Box::new(|_| ()));
    // In fast-forward nothing is modelled.
    assert_eq!(device.times().reads.requests, 1);
}

#[test]
fn data_path_costs_more() {
    let (device, clock, _) = virtual_device();
    device.set_path(PathCost { fixed_us: 100.0, mib_us: 800.0 });
    clock.advance_to(ModelTime::from_ns(5 * MS));
    let buffer = vec![0; CAPACITY as usize / 4];
    device.submit(DeviceRequest::Read { offset_bytes: 0, buffer }, Box::new(|_| ()));
    assert_eq!(run_until_idle(std::slice::from_ref(&device), &clock), ModelTime::from_ns(5_700_000));
}

#[test]
fn path_beyond_device_time_answers_late_at_once() {
    let (device, clock, _) = virtual_device();
    device.set_path(PathCost { fixed_us: 3000.0, mib_us: 0.0 });
    clock.advance_to(ModelTime::from_ns(5 * MS));
    let (sender, receiver) = mpsc::channel();
    device.submit(read(0), Box::new(move |completion| sender.send(completion.is_ok()).unwrap()));
    assert_eq!(receiver.try_recv(), Ok(true));
    let measured = device.end_measurement();
    assert!(near(measured.modelled.mean_us(), 1.0), "{}", measured.modelled.mean_us());
    assert!(near(measured.delivered.mean_us(), 3.0), "{}", measured.delivered.mean_us());
}

#[test]
fn request_is_never_backdated_behind_model() {
    let (device, clock, _) = virtual_device();
    clock.advance_to(ModelTime::from_ns(5 * MS));
    device.submit(read(0), Box::new(|_| ()));
    run_until_idle(std::slice::from_ref(&device), &clock);
    device.set_path(PathCost { fixed_us: 300.0, mib_us: 0.0 });
    clock.advance_to(ModelTime::from_ns(6_100_000));
    device.begin_measurement(Duration::MAX);
    device.submit(read(0), Box::new(|_| ()));
    // The one before was over at 6 ms, and that is as far as it goes back.
    assert_eq!(run_until_idle(std::slice::from_ref(&device), &clock), ModelTime::from_ns(7 * MS));
    let measured = device.end_measurement();
    assert!(near(measured.modelled.mean_us(), 1.0), "{}", measured.modelled.mean_us());
    assert!(near(measured.delivered.mean_us(), 1.2), "{}", measured.delivered.mean_us());
}

#[test]
fn model_progress_during_transfer_hides_no_lateness() {
    let (device, clock, backing) = virtual_device();
    device.submit(write(), Box::new(|_| ()));
    let (other, slow) = (device.clone(), Arc::clone(&clock));
    // While the read's data moves, another thread carries the model past the read's arrival.
    let hook = move || {
        slow.advance_to(ModelTime::from_ns(7 * MS));
        run_until_idle(std::slice::from_ref(&other), &slow);
    };
    let _ = backing.0.set(Box::new(hook));
    device.submit(read(0), Box::new(|_| ()));
    run_until_idle(std::slice::from_ref(&device), &clock);
    let measured = device.end_measurement();
    // The write is due after 1 ms and answered after 7, the read, of 1 ms from then on, after 8.
    assert!(near(measured.modelled.mean_us(), 1.0), "{}", measured.modelled.mean_us());
    assert!(near(measured.delivered.mean_us(), 7.5), "{}", measured.delivered.mean_us());
}

#[test]
fn answers_delay_one_another() {
    let (device, clock, _) = virtual_device();
    for index in 0..2 {
        let slow = Arc::clone(&clock);
        device.submit(
            read(index * 4096),
            Box::new(move |_| slow.advance_to(slow.now() + Duration::from_millis(3))),
        );
    }
    run_until_idle(std::slice::from_ref(&device), &clock);
    let measured = device.end_measurement();
    // The first after 1 ms, the second when that one's `done` has returned.
    assert!(near(measured.delivered.mean_us(), 2.5), "{}", measured.delivered.mean_us());
    assert!(near(measured.modelled.mean_us(), 1.0));
}

fn real_device(model: Fixed) -> (Paced, Pacer) {
    let clock: Arc<dyn ModelClock> = Arc::new(RealClock::new(1.0));
    let device = Paced::new(CAPACITY, Arc::new(NullBacking), Some(Box::new(model)), Arc::clone(&clock));
    let pacer = Pacer::start(vec![device.clone()], clock).unwrap();
    (device, pacer)
}

fn submit(device: &Paced, request: DeviceRequest, answers: &mpsc::Sender<DeviceCompletion>) {
    let answers = answers.clone();
    device.submit(request, Box::new(move |completion| answers.send(completion).unwrap()));
}

fn is_failed(completion: &DeviceCompletion) -> bool {
    matches!(completion, Err(DeviceError::Io(text)) if text.contains("a model's panic, as the test wants"))
}

const TIMEOUT: Duration = Duration::from_secs(20);

#[test]
fn panicking_model_fails_its_requests() {
    for (panic_at_submit, panic_at_complete) in [(None, true), (Some(8192), false)] {
        let (device, _pacer) = real_device(Fixed { panic_at_submit, panic_at_complete, ..Fixed::default() });
        let (sender, receiver) = mpsc::channel();
        for index in 0..3 {
            submit(&device, read(index * 4096), &sender);
        }
        let answers: Vec<DeviceCompletion> =
            (0..3).map(|_| receiver.recv_timeout(TIMEOUT).unwrap()).collect();
        // Those before a panic at submission may have been over by then; the one that it met isn't.
        assert!(
            answers
                .iter()
                .all(|answer| answer.is_ok() || is_failed(answer) || *answer == Err(DeviceError::Gone))
        );
        assert!(answers.iter().any(is_failed), "{answers:?}");
        submit(&device, read(0), &sender);
        assert_eq!(receiver.recv_timeout(TIMEOUT).unwrap(), Err(DeviceError::Gone));
        // Nor does this wait forever.
        device.set_pace(underlay_storage::stack::PacingMode::Immediate);
    }
}

#[test]
fn panicking_caller_fails_device_without_lost_answers() {
    let (device, _pacer) = real_device(Fixed::default());
    let (sender, receiver) = mpsc::channel();
    let sent = Mutex::new(sender.clone());
    device.submit(
        read(0),
        Box::new(move |_| {
            let _ = sent.lock().unwrap().send(Ok(vec![7]));
            panic!("a caller's panic, as the test wants");
        }),
    );
    for index in 1..4 {
        submit(&device, read(index * 4096), &sender);
    }
    for _ in 0..4 {
        receiver.recv_timeout(TIMEOUT).unwrap().ok();
    }
    // The pacer is gone, and its device with it, as soon as it has got there.
    let is_failed = (0..20_000).any(|_| {
        submit(&device, read(0), &sender);
        matches!(receiver.recv_timeout(TIMEOUT).unwrap(), Err(DeviceError::Gone))
    });
    assert!(is_failed);
}
