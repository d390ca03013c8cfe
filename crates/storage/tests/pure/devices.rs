//! What every block device must keep: one suite over all backings, the stripe and the paced device, each
//! against an array of bytes.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use proptest::prelude::*;
use underlay_storage::backing::{Backing, FileBacking, FlushDurability, MemoryBacking, NullBacking};
use underlay_storage::catalogue;
use underlay_storage::clock::{ModelClock, VirtualClock};
use underlay_storage::device::{BlockDevice, DeviceCompletion, DeviceError, DeviceGeometry, DeviceRequest};
use underlay_storage::layers::Stripe;
use underlay_storage::layers::cache::CacheMode;
use underlay_storage::layers::compress::CompressionCodec;
use underlay_storage::medium::ModelOperation;
use underlay_storage::paced::{Paced, run_until_idle};
use underlay_storage::stack::{
    BackingSpec, DeviceSpec, InitialState, PacingMode, Stack, StackError, StackNode, StackSpec, VolumeSpec,
};
use underlay_storage::time::ModelTime;

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 64;

#[derive(Clone, Debug)]
enum Step {
    Read(u64, u64),
    Write(u64, u64, u8, bool),
    Discard(u64, u64),
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    let range = (0..BLOCKS, 0..20u64);
    prop_oneof![
        4 => range.clone().prop_map(|(first, count)| Step::Read(first, count)),
        5 => (range.clone(), 1..255u8, any::<bool>())
            .prop_map(|((first, count), fill, fua)| Step::Write(first, count, fill, fua)),
        2 => range.prop_map(|(first, count)| Step::Discard(first, count)),
        1 => Just(Step::Flush),
    ]
}

/// A device under test, and what makes its requests complete.
struct Subject {
    name: &'static str,
    device: Arc<dyn BlockDevice>,
    drive: Box<dyn Fn()>,
    _directory: Option<tempfile::TempDir>,
}

fn execute(subject: &Subject, request: DeviceRequest) -> DeviceCompletion {
    let (sender, receiver) = mpsc::channel();
    subject.device.submit(request, Box::new(move |completion| sender.send(completion).unwrap()));
    (subject.drive)();
    let answer = receiver.try_recv().expect("an answer");
    assert!(receiver.try_recv().is_err(), "two answers");
    answer
}

fn plain(backing: Arc<dyn Backing>, blocks: u64) -> Arc<dyn BlockDevice> {
    Arc::new(Paced::new(blocks * BLOCK, backing, None, Arc::new(VirtualClock::default())))
}

fn subjects() -> Vec<Subject> {
    let mut subjects = Vec::new();
    let at_once = || Box::new(|| ()) as Box<dyn Fn()>;
    subjects.push(Subject {
        name: "memory",
        device: plain(Arc::new(MemoryBacking::new()), BLOCKS),
        drive: at_once(),
        _directory: None,
    });
    let directory = tempfile::tempdir().unwrap();
    let file =
        FileBacking::open(&directory.path().join("disk"), BLOCKS * BLOCK, FlushDurability::Disk).unwrap();
    subjects.push(Subject {
        name: "file",
        device: plain(Arc::new(file), BLOCKS),
        drive: at_once(),
        _directory: Some(directory),
    });
    for (count, chunk_blocks) in [(2, 1), (3, 2), (5, 4)] {
        let devices = (0..count).map(|_| plain(Arc::new(MemoryBacking::new()), 40)).collect();
        let device = Arc::new(Stripe::new(devices, chunk_blocks * BLOCK).unwrap());
        subjects.push(Subject { name: "stripe", device, drive: at_once(), _directory: None });
    }
    for name in ["hdd-7200-sata", "nvme-p4500"] {
        let medium = catalogue::find(name).unwrap();
        let devices = (0..3)
            .map(|index| {
                let name = format!("{name}.{index}");
                DeviceSpec::new(name, Some(medium.clone()), 40 * BLOCK, BackingSpec::Memory)
            })
            .collect();
        let volume = VolumeSpec::striped("volume", devices, 2 * BLOCK);
        let spec = StackSpec { volumes: vec![volume], dilation: 1.0, seed: 5 };
        let (stack, driver) = Stack::open_virtual(&spec).unwrap();
        let device = Arc::clone(&stack.volumes()[0]);
        let drive = Box::new(move || {
            // The stack lives as long as its driver.
            let _ = &stack;
            driver.run_until_idle();
        });
        subjects.push(Subject { name: "paced stripe", device, drive, _directory: None });
    }
    for (name, root) in layered() {
        let spec = StackSpec { volumes: vec![VolumeSpec::new("volume", root)], dilation: 1.0, seed: 5 };
        let (stack, driver) = Stack::open_virtual(&spec).unwrap();
        let device = Arc::clone(&stack.volumes()[0]);
        let drive = Box::new(move || {
            let _ = &stack;
            driver.run_until_idle();
        });
        subjects.push(Subject { name, device, drive, _directory: None });
    }
    subjects
}

/// Every layer over modelled devices.
fn layered() -> Vec<(&'static str, StackNode)> {
    let device = |name: &str, medium: &str, blocks: u64| {
        let medium = Some(catalogue::find(medium).unwrap());
        StackNode::Device(DeviceSpec::new(name, medium, blocks * BLOCK, BackingSpec::Memory))
    };
    let disk = |name: &str| device(name, "hdd-7200-sata", 160);
    let cache = |mode| StackNode::Cache {
        mode,
        fast: Box::new(device("fast", "nvme-p4500", 80)),
        slow: Box::new(disk("slow")),
        bypass_bytes: 8 * BLOCK,
        dirty_percent: 10,
    };
    let compress = |codec, member| StackNode::Compress {
        codec,
        chunk_bytes: 16 << 10,
        capacity_bytes: Some(BLOCKS * BLOCK),
        member: Box::new(member),
    };
    let link = |member| StackNode::Link { bandwidth_mb_s: 100.0, latency_us: 50.0, member: Box::new(member) };
    vec![
        ("mirror", StackNode::Mirror { members: vec![disk("a"), disk("b"), disk("c")] }),
        ("read cache", cache(CacheMode::Read)),
        ("write-back cache", cache(CacheMode::WriteBack)),
        ("lz4", compress(CompressionCodec::Lz4, disk("a"))),
        ("zstd over a link", compress(CompressionCodec::Zstd(3), link(disk("a")))),
        ("link to a cache", link(cache(CacheMode::WriteBack))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn device_agrees_with_array(steps in prop::collection::vec(step(), 1..40)) {
        for subject in subjects() {
            let capacity = subject.device.geometry().capacity_bytes;
            let mut reference = vec![0u8; capacity as usize];
            for step in &steps {
                let (first, count) = match step {
                    Step::Read(first, count) | Step::Write(first, count, ..) | Step::Discard(first, count) => {
                        (*first, *count)
                    }
                    Step::Flush => (0, 0),
                };
                let (offset_bytes, length_bytes) = (first * BLOCK, count * BLOCK);
                let fits = offset_bytes + length_bytes <= capacity;
                let range = offset_bytes as usize..(offset_bytes + length_bytes) as usize;
                let request = match step {
                    Step::Read(..) => DeviceRequest::Read { offset_bytes, buffer: vec![7; length_bytes as usize] },
                    Step::Write(_, _, fill, fua) => {
                        // Different in every block, so that a mixed-up stripe shows.
                        let data = (0..length_bytes).map(|i| fill.wrapping_add((i / BLOCK) as u8)).collect();
                        DeviceRequest::Write { offset_bytes, data, fua: *fua }
                    }
                    Step::Discard(..) => DeviceRequest::Discard { offset_bytes, length_bytes },
                    Step::Flush => DeviceRequest::Flush,
                };
                let answer = execute(&subject, request);
                if !fits {
                    let refused = DeviceError::OutOfRange { offset_bytes, length_bytes, capacity_bytes: capacity };
                    prop_assert_eq!(answer, Err(refused));
                    continue;
                }
                match step {
                    Step::Read(..) => prop_assert!(answer.unwrap() == reference[range], "{}", subject.name),
                    Step::Write(_, _, fill, _) => {
                        prop_assert_eq!(answer, Ok(Vec::new()));
                        for (i, byte) in reference[range].iter_mut().enumerate() {
                            *byte = fill.wrapping_add((i as u64 / BLOCK) as u8);
                        }
                    }
                    Step::Discard(..) => {
                        prop_assert_eq!(answer, Ok(Vec::new()));
                        reference[range].fill(0);
                    }
                    Step::Flush => prop_assert_eq!(answer, Ok(Vec::new())),
                }
            }
        }
    }
}

#[test]
fn bad_requests_are_refused_by_every_device() {
    for subject in subjects() {
        let capacity_bytes = subject.device.geometry().capacity_bytes;
        for (request, unaligned) in [
            (DeviceRequest::Read { offset_bytes: 1, buffer: vec![0; 4096] }, true),
            (DeviceRequest::Write { offset_bytes: 0, data: vec![0; 100], fua: false }, true),
            (DeviceRequest::Read { offset_bytes: capacity_bytes, buffer: vec![0; 4096] }, false),
            (DeviceRequest::Discard { offset_bytes: u64::MAX - 4095, length_bytes: 8192 }, false),
        ] {
            let answer = execute(&subject, request);
            match answer {
                Err(DeviceError::Unaligned { .. }) => assert!(unaligned, "{}", subject.name),
                Err(DeviceError::OutOfRange { .. }) => assert!(!unaligned, "{}", subject.name),
                other => panic!("{}: {other:?}", subject.name),
            }
        }
    }
}

/// A backing store that fails the requests that the test names.
#[derive(Default)]
struct Failing {
    inner: MemoryBacking,
    full: AtomicBool,
    broken: AtomicBool,
    syncs: AtomicUsize,
}

impl Backing for Failing {
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        if self.broken.load(Ordering::SeqCst) {
            return Err(DeviceError::Io("medium error".into()));
        }
        self.inner.read(offset_bytes, buffer)
    }

    fn write(&self, offset_bytes: u64, data: &[u8]) -> Result<(), DeviceError> {
        if self.full.load(Ordering::SeqCst) {
            return Err(DeviceError::NoSpace);
        }
        self.inner.write(offset_bytes, data)
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), DeviceError> {
        self.inner.discard(offset_bytes, length_bytes)
    }

    fn sync(&self) -> Result<(), DeviceError> {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        if self.broken.load(Ordering::SeqCst) { Err(DeviceError::Io("sync failed".into())) } else { Ok(()) }
    }
}

#[test]
fn failing_backing_shows_and_device_continues() {
    let clock = Arc::new(VirtualClock::default());
    let shared: Arc<dyn ModelClock> = clock.clone();
    let failing = Arc::new(Failing::default());
    let medium = catalogue::find("ssd-sata").unwrap();
    let good: Arc<dyn Backing> = Arc::new(MemoryBacking::new());
    let devices: Vec<Paced> = [failing.clone() as Arc<dyn Backing>, good]
        .into_iter()
        .map(|backing| {
            Paced::new(
                1 << 20,
                backing,
                Some(medium.model(1 << 20, 1, InitialState::Fresh)),
                Arc::clone(&shared),
            )
        })
        .collect();
    let members = devices.iter().map(|device| Arc::new(device.clone()) as Arc<dyn BlockDevice>).collect();
    let drive = {
        let clock = clock.clone();
        move || {
            run_until_idle(&devices, &clock);
        }
    };
    let subject = Subject {
        name: "failing",
        device: Arc::new(Stripe::new(members, BLOCK).unwrap()),
        drive: Box::new(drive),
        _directory: None,
    };
    let write = || DeviceRequest::Write { offset_bytes: 0, data: vec![3; 4 * BLOCK as usize], fua: false };
    let read = || DeviceRequest::Read { offset_bytes: 0, buffer: vec![0; 4 * BLOCK as usize] };
    assert_eq!(execute(&subject, write()), Ok(Vec::new()));
    failing.full.store(true, Ordering::SeqCst);
    assert_eq!(execute(&subject, write()), Err(DeviceError::NoSpace));
    failing.full.store(false, Ordering::SeqCst);
    failing.broken.store(true, Ordering::SeqCst);
    assert_eq!(execute(&subject, read()), Err(DeviceError::Io("medium error".into())));
    assert_eq!(execute(&subject, DeviceRequest::Flush), Err(DeviceError::Io("sync failed".into())));
    failing.broken.store(false, Ordering::SeqCst);
    assert_eq!(execute(&subject, read()), Ok(vec![3; 4 * BLOCK as usize]));
    assert_eq!(execute(&subject, DeviceRequest::Flush), Ok(Vec::new()));
    assert_eq!(failing.syncs.load(Ordering::SeqCst), 2);
}

#[test]
fn fua_write_syncs_backing() {
    let failing = Arc::new(Failing::default());
    let device = Paced::new(1 << 20, failing.clone(), None, Arc::new(VirtualClock::default()));
    let write = |fua| device.execute(DeviceRequest::Write { offset_bytes: 0, data: vec![1; 4096], fua });
    write(false).unwrap();
    assert_eq!(failing.syncs.load(Ordering::SeqCst), 0);
    write(true).unwrap();
    assert_eq!(failing.syncs.load(Ordering::SeqCst), 1);
}

#[test]
fn stripe_asks_each_device_once() {
    struct Counting(Mutex<Vec<(u64, u64)>>);
    impl BlockDevice for Counting {
        fn geometry(&self) -> DeviceGeometry {
            DeviceGeometry { capacity_bytes: 100 * BLOCK, block_bytes: 4096, optimal_io_bytes: 4096 }
        }
        fn submit(&self, request: DeviceRequest, done: underlay_storage::device::CompletionCallback) {
            self.0.lock().unwrap().push(request.extent());
            done(Ok(match request {
                DeviceRequest::Read { buffer, .. } => buffer,
                _ => Vec::new(),
            }));
        }
    }
    let counting: Vec<Arc<Counting>> = (0..2).map(|_| Arc::new(Counting(Mutex::default()))).collect();
    let devices = counting.iter().map(|device| device.clone() as Arc<dyn BlockDevice>).collect();
    let stripe = Stripe::new(devices, 3 * BLOCK).unwrap();
    // 99 whole blocks a device.
    assert_eq!(stripe.geometry().capacity_bytes, 198 * BLOCK);
    stripe
        .execute(DeviceRequest::Read { offset_bytes: BLOCK, buffer: vec![0; 20 * BLOCK as usize] })
        .unwrap();
    stripe.execute(DeviceRequest::Discard { offset_bytes: BLOCK, length_bytes: 20 * BLOCK }).unwrap();
    // Blocks 1 to 20 of the volume: chunks 0, 2, 4 and 6 on the first device, 1, 3 and 5 on the second.
    assert_eq!(*counting[0].0.lock().unwrap(), [(BLOCK, 11 * BLOCK), (BLOCK, 11 * BLOCK)]);
    assert_eq!(*counting[1].0.lock().unwrap(), [(0, 9 * BLOCK), (0, 9 * BLOCK)]);
}

fn single(medium: Option<&str>, backing: BackingSpec, capacity_bytes: u64) -> StackSpec {
    let medium = medium.map(|name| catalogue::find(name).unwrap());
    let device = DeviceSpec::new("device.0", medium, capacity_bytes, backing);
    let volume = VolumeSpec::striped("volume", vec![device], 0);
    StackSpec { volumes: vec![volume], dilation: 1.0, seed: 1 }
}

#[test]
fn measurement_reports_device_activity() {
    let (stack, driver) =
        Stack::open_virtual(&single(Some("hdd-7200-sas"), BackingSpec::Memory, 1 << 30)).unwrap();
    let volume = &stack.volumes()[0];
    stack.begin_measurement(0.01);
    let answered = RefCell::new(Vec::new());
    for index in 0..20u64 {
        let (sender, receiver) = mpsc::channel();
        let request =
            DeviceRequest::Read { offset_bytes: index * 37 % 64 * (16 << 20), buffer: vec![0; 8192] };
        volume.submit(request, Box::new(move |completion| sender.send(completion).unwrap()));
        answered.borrow_mut().push(receiver);
    }
    let end = driver.run_until_idle();
    assert!(answered.into_inner().iter().all(|receiver| receiver.try_recv().unwrap().is_ok()));
    let activity = stack.end_measurement().remove(0);
    assert_eq!((activity.totals.reads, activity.totals.read_bytes), (20, 20 * 8192));
    let modelled = activity.modelled.unwrap();
    let delivered = activity.delivered.unwrap();
    assert_eq!(modelled.count(), 20);
    // In virtual time nothing is late.
    assert_eq!(modelled, delivered);
    assert_eq!(activity.description.price_usd, Some(300.0));
    assert_eq!(activity.description.capacity_bytes, Some(1_000_000_000_000));
    // The queue's integral is the sum of the latencies, by Little's law.
    assert!((activity.totals.queue_us / (modelled.mean_us() * 20.0) - 1.0).abs() < 0.01);
    assert!(activity.totals.busy_us <= end.as_ns() as f64 / 1e3);
    let sampled: f64 = activity.series.iter().map(|sample| sample.read_iops * 0.01).sum();
    assert!((19.0..=20.01).contains(&sampled), "{sampled}");
}

#[test]
fn fast_forward_takes_no_modelled_time() {
    let (stack, driver) =
        Stack::open_virtual(&single(Some("hdd-7200-sas"), BackingSpec::Memory, 1 << 30)).unwrap();
    let volume = &stack.volumes()[0];
    stack.set_pace(PacingMode::Immediate);
    for index in 0..100u64 {
        let data = vec![index as u8; 4096];
        volume.execute(DeviceRequest::Write { offset_bytes: index * (8 << 20), data, fua: false }).unwrap();
    }
    assert_eq!(driver.clock().now().as_ns(), 0);
    stack.set_pace(PacingMode::Modelled);
    let (sender, receiver) = mpsc::channel();
    let request = DeviceRequest::Read { offset_bytes: 5 * (8 << 20), buffer: vec![0; 4096] };
    volume.submit(request, Box::new(move |completion| sender.send(completion).unwrap()));
    assert!(receiver.try_recv().is_err());
    driver.run_until_idle();
    assert_eq!(receiver.try_recv().unwrap().unwrap(), vec![5; 4096]);
    assert!(driver.clock().now().as_ns() > 1_000_000);
}

/// The credits of a volume and the SLC cache of an SSD filled while a system started: a gp2 of 50 GiB had 757 reads/s
/// in place of 150.
#[test]
fn fast_forward_length_changes_nothing_afterwards() {
    let gib = 1u64 << 30;
    let sized = |name: &str, gibs: u64| catalogue::find(name).unwrap().with_size(gibs * gib).unwrap();
    for (medium, operation, requests, bytes) in [
        (sized("ebs-gp2", 50), ModelOperation::Read, 400, 4096),
        (sized("azure-p30", 100), ModelOperation::Read, 1000, 4096),
        (sized("ebs-st1", 125), ModelOperation::Read, 40, 1 << 20),
        (catalogue::find("nvme-990-pro").unwrap(), ModelOperation::Write, 32, 1 << 20),
    ] {
        for initial in [InitialState::Fresh, InitialState::Steady] {
            let took_s = [0, 8, 3600].map(|started_s| {
                let mut device = DeviceSpec::new("device.0", Some(medium.clone()), gib, BackingSpec::Null);
                device.initial = initial;
                let volume = VolumeSpec::striped("volume", vec![device], 0);
                let spec = StackSpec { volumes: vec![volume], dilation: 1.0, seed: 1 };
                let (stack, driver) = Stack::open_virtual(&spec).unwrap();
                stack.set_pace(PacingMode::Immediate);
                driver.clock().advance_to(ModelTime::from_ns(started_s * 1_000_000_000));
                stack.set_pace(PacingMode::Modelled);
                let began = driver.clock().now();
                for index in 0..requests {
                    let offset_bytes = index * 7919 % (gib / bytes) * bytes;
                    let data = vec![0; bytes as usize];
                    let request = match operation {
                        ModelOperation::Read => DeviceRequest::Read { offset_bytes, buffer: data },
                        _ => DeviceRequest::Write { offset_bytes, data, fua: false },
                    };
                    stack.volumes()[0].submit(request, Box::new(|_| ()));
                }
                driver.run_until_idle().duration_since(began).as_secs_f64()
            });
            for later_s in &took_s[1..] {
                assert!((later_s / took_s[0] - 1.0).abs() < 0.12, "{}, {initial:?}: {took_s:?}", medium.name);
            }
        }
    }
}

#[test]
fn real_time_stack_answers_every_thread_and_stops() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("device");
    let spec = single(Some("optane-p4800x"), BackingSpec::File(path.clone()), 64 << 20);
    let stack = Stack::open(&spec).unwrap();
    let volume = Arc::clone(&stack.volumes()[0]);
    stack.begin_measurement(0.1);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let volume = &volume;
            scope.spawn(move || {
                for index in 0..50u64 {
                    let offset_bytes = (thread * 50 + index) * 4096;
                    let data = vec![(thread * 50 + index) as u8; 4096];
                    volume
                        .execute(DeviceRequest::Write { offset_bytes, data: data.clone(), fua: false })
                        .unwrap();
                    assert_eq!(
                        volume.execute(DeviceRequest::Read { offset_bytes, buffer: vec![0; 4096] }).unwrap(),
                        data
                    );
                }
                volume.execute(DeviceRequest::Flush).unwrap();
            });
        }
    });
    // The pace changes under load, too.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..200 {
                volume.execute(DeviceRequest::Read { offset_bytes: 0, buffer: vec![0; 4096] }).unwrap();
            }
        });
        stack.set_pace(PacingMode::Immediate);
        stack.set_pace(PacingMode::Modelled);
    });
    let activity = stack.end_measurement().remove(0);
    assert_eq!((activity.totals.writes, activity.totals.flushes), (200, 4));
    assert_eq!(activity.totals.reads, 400);
    // A device under a second stack would be two owners of one file.
    match Stack::open(&spec) {
        Err(StackError::Backing { path: named, source }) => {
            assert_eq!(named, path);
            assert!(source.to_string().contains("another process uses it"));
        }
        other => panic!("opened twice: {:?}", other.is_ok()),
    }
    drop(stack);
    let answer = volume.execute(DeviceRequest::Read { offset_bytes: 0, buffer: vec![0; 4096] });
    assert_eq!(answer, Err(DeviceError::Gone));
    drop(volume);
    // What was written is there for the next owner.
    let stack = Stack::open(&spec).unwrap();
    let read =
        stack.volumes()[0].execute(DeviceRequest::Read { offset_bytes: 10 * 4096, buffer: vec![0; 4096] });
    assert_eq!(read.unwrap(), vec![10; 4096]);
}

#[test]
fn requests_under_way_are_answered_when_the_stack_goes() {
    let mut spec = single(Some("hdd-7200-sas"), BackingSpec::Null, 1 << 30);
    // Slow enough that nothing completes before the end.
    spec.dilation = 1e5;
    let stack = Stack::open(&spec).unwrap();
    let (sender, receiver) = mpsc::channel();
    for index in 0..10u64 {
        let sender = sender.clone();
        let request = DeviceRequest::Read { offset_bytes: index << 20, buffer: vec![0; 4096] };
        stack.volumes()[0].submit(request, Box::new(move |completion| sender.send(completion).unwrap()));
    }
    drop(sender);
    drop(stack);
    assert_eq!(receiver.iter().collect::<Vec<_>>(), vec![Err(DeviceError::Gone); 10]);
}

#[test]
fn device_without_medium_answers_at_once() {
    let stack = Stack::open(&single(None, BackingSpec::Null, 1 << 30)).unwrap();
    stack.begin_measurement(1.0);
    let volume = &stack.volumes()[0];
    let answered = AtomicBool::new(false);
    let answered = Arc::new(answered);
    let flag = Arc::clone(&answered);
    volume.submit(DeviceRequest::Flush, Box::new(move |_| flag.store(true, Ordering::SeqCst)));
    assert!(answered.load(Ordering::SeqCst), "answered before submit returned");
    let activity = stack.end_measurement().remove(0);
    assert_eq!(activity.totals.flushes, 1);
    assert!(activity.modelled.is_none() && activity.delivered.is_some());
    assert_eq!(activity.description.medium, None);
}

#[test]
fn invalid_stack_is_refused_by_name() {
    let good = single(Some("ssd-sata"), BackingSpec::Memory, 1 << 30);
    let refused = |spec: &StackSpec| match Stack::open(spec) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("opened"),
    };
    let mut spec = good.clone();
    spec.dilation = 0.0;
    assert!(refused(&spec).starts_with("dilation: 0 is not a factor"));
    let changed = |change: &dyn Fn(&mut DeviceSpec)| {
        let mut spec = good.clone();
        spec.volumes[0].root.for_each_device(&mut |device| change(device));
        spec
    };
    let spec = changed(&|device| device.capacity_bytes = 1000);
    assert!(refused(&spec).starts_with("device.0: a capacity of 1000 bytes"));
    let mut spec = good.clone();
    spec.volumes[0].root = StackNode::Stripe { chunk_bytes: 4096, members: Vec::new() };
    assert!(refused(&spec).starts_with("volume: a volume needs"));
    let mut spec = good.clone();
    let twice = |name: &str| {
        let mut second = good.volumes[0].root.clone();
        second.for_each_device(&mut |device| device.name = name.into());
        StackNode::Stripe { chunk_bytes: 0, members: vec![good.volumes[0].root.clone(), second] }
    };
    spec.volumes[0].root = twice("device.0");
    assert!(refused(&spec).starts_with("device.0: two devices have this name"));
    spec.volumes[0].root = twice("device.1");
    assert!(refused(&spec).starts_with("volume: a chunk of 0 bytes"));
    let spec = changed(&|device| device.medium.as_mut().unwrap().capacity.value = f64::NAN);
    assert!(refused(&spec).starts_with("device.0: a capacity of NaN"));
    let spec = changed(&|device| device.backing = BackingSpec::File("/nowhere/at/all".into()));
    assert!(refused(&spec).starts_with("/nowhere/at/all: "));
}

#[test]
fn null_reads_zeros_and_keeps_nothing() {
    let device = plain(Arc::new(NullBacking), 8);
    device.execute(DeviceRequest::Write { offset_bytes: 0, data: vec![1; 4096], fua: true }).unwrap();
    assert_eq!(
        device.execute(DeviceRequest::Read { offset_bytes: 0, buffer: vec![9; 4096] }).unwrap(),
        vec![0; 4096]
    );
}

#[test]
fn seeks_of_two_devices_differ_by_seed() {
    let medium = catalogue::find("hdd-7200-sas").unwrap();
    let time = |seed| {
        let mut model = medium.model(1 << 30, seed, InitialState::Fresh);
        let request = underlay_storage::medium::ModelRequest {
            id: underlay_storage::medium::RequestId(0),
            operation: ModelOperation::Read,
            offset_bytes: 512 << 20,
            length_bytes: 4096,
            fua: false,
        };
        model.submit(request, underlay_storage::time::ModelTime::ZERO);
        let mut finished = Vec::new();
        while finished.is_empty() {
            model.complete(model.next_completion().unwrap(), &mut finished);
        }
        finished[0].at
    };
    assert_eq!(time(1), time(1));
    assert_ne!(time(1), time(2_000_000));
}
