//! Faults of a storage in virtual time: what fails, what is late, and what is there afterwards.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use underlay_storage::catalogue;
use underlay_storage::device::{DeviceError, DeviceRequest};
use underlay_storage::faults::{ByteExtent, DeviceFault, FaultError, PowerCut};
use underlay_storage::medium::ModelOperation;
use underlay_storage::stack::{BackingSpec, DeviceSpec, Stack, StackSpec, VirtualDriver, VolumeSpec};
use underlay_storage::time::ModelTime;

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;

fn stack(medium: Option<&str>, armed: bool) -> (Stack, VirtualDriver) {
    let medium = medium.map(|name| catalogue::find(name).unwrap());
    let mut device = DeviceSpec::new("disk.0", medium, 16 * MIB, BackingSpec::Memory);
    device.power_cut_armed = armed;
    let volumes = vec![VolumeSpec::striped("disk", vec![device], 65536)];
    Stack::open_virtual(&StackSpec { volumes, dilation: 1.0, seed: 1 }).unwrap()
}

/// Submits one request and carries the stack on until it is over: the answer, and how long it took.
fn ask(
    stack: &Stack,
    driver: &VirtualDriver,
    request: DeviceRequest,
) -> (Result<Vec<u8>, DeviceError>, Duration) {
    let answer = Arc::new(Mutex::new(None));
    let (slot, clock) = (Arc::clone(&answer), driver.clone());
    let began = now(driver);
    stack.volumes()[0]
        .submit(request, Box::new(move |completion| *slot.lock().unwrap() = Some((completion, now(&clock)))));
    while answer.lock().unwrap().is_none() && driver.step() {}
    let (completion, ended) = answer.lock().unwrap().take().expect("every request is answered");
    (completion, ended.duration_since(began))
}

fn now(driver: &VirtualDriver) -> ModelTime {
    use underlay_storage::clock::ModelClock as _;
    driver.clock().now()
}

fn read(block: u64) -> DeviceRequest {
    DeviceRequest::Read { offset_bytes: block * BLOCK as u64, buffer: vec![0; BLOCK] }
}

fn write(block: u64, byte: u8) -> DeviceRequest {
    DeviceRequest::Write { offset_bytes: block * BLOCK as u64, data: vec![byte; BLOCK], fua: false }
}

fn errors(rate: f64, operations: Vec<ModelOperation>, extent: Option<ByteExtent>, seed: u64) -> DeviceFault {
    DeviceFault::Errors { operations, rate, extent, seed }
}

#[test]
fn errors_strike_requested_range_and_repeat_by_seed() {
    let failing = |seed| {
        let (stack, driver) = stack(Some("ssd-sata"), false);
        stack.inject("disk.0", errors(0.2, vec![ModelOperation::Read], None, seed)).unwrap();
        (0..200)
            .filter(|block| {
                assert!(ask(&stack, &driver, write(*block, 1)).0.is_ok(), "a write was not asked to fail");
                matches!(ask(&stack, &driver, read(*block)).0, Err(DeviceError::Io(_)))
            })
            .collect::<Vec<u64>>()
    };
    let first = failing(7);
    assert!((15..70).contains(&first.len()), "{} of 200 at a rate of 0.2", first.len());
    assert_eq!(first, failing(7));
    assert_ne!(first, failing(8));
}

#[test]
fn corrupted_read_flips_one_bit_and_storage_none() {
    let wrong = |rate, extent, seed| {
        let (stack, driver) = stack(Some("ssd-sata"), false);
        let fault = stack.inject("disk.0", DeviceFault::Corrupt { rate, extent, seed }).unwrap();
        let mut found = Vec::new();
        for block in 0..200 {
            ask(&stack, &driver, write(block, 0x5a)).0.unwrap();
            let data = ask(&stack, &driver, read(block)).0.unwrap();
            let bits = data.iter().enumerate().filter(|(_, byte)| **byte != 0x5a);
            let bits: Vec<_> =
                bits.map(|(position, byte)| (block, position, (byte ^ 0x5a).count_ones())).collect();
            assert!(bits.len() <= 1 && bits.iter().all(|bit| bit.2 == 1), "{bits:?}");
            found.extend(bits);
        }
        assert!(stack.clear_fault(fault));
        for block in 0..200 {
            assert_eq!(ask(&stack, &driver, read(block)).0.unwrap(), vec![0x5a; BLOCK]);
        }
        found
    };
    let some = wrong(0.2, None, 7);
    assert!((15..70).contains(&some.len()), "{} of 200 at a rate of 0.2", some.len());
    assert_eq!(some, wrong(0.2, None, 7));
    assert_ne!(some, wrong(0.2, None, 8));
    assert_eq!(wrong(1.0, None, 1).len(), 200);
    // From the middle of a block to the end of the next.
    let (start_bytes, end_bytes) = (10 * BLOCK as u64 + 100, 12 * BLOCK as u64);
    let in_extent = wrong(1.0, Some(ByteExtent { start_bytes, end_bytes }), 1);
    assert_eq!(in_extent.iter().map(|bit| bit.0).collect::<Vec<_>>(), [10, 11]);
    assert!(in_extent[0].1 >= 100, "{in_extent:?}");
}

#[test]
fn bad_extent_fails_where_touched_and_writes_nothing() {
    let (stack, driver) = stack(Some("hdd-7200-sata"), false);
    ask(&stack, &driver, write(11, 1)).0.unwrap();
    let extent = ByteExtent { start_bytes: 10 * BLOCK as u64, end_bytes: 12 * BLOCK as u64 };
    stack.inject("disk.0", errors(1.0, Vec::new(), Some(extent), 0)).unwrap();
    for (block, fails) in [(9, false), (10, true), (11, true), (12, false)] {
        let (answer, elapsed) = ask(&stack, &driver, write(block, 2));
        assert_eq!(answer.is_err(), fails, "block {block}");
        assert!(!fails || elapsed > Duration::ZERO, "a failing request takes its time");
    }
    ask(&stack, &driver, DeviceRequest::Flush).0.unwrap();
    stack.clear_faults("disk.0").unwrap();
    assert_eq!(ask(&stack, &driver, read(11)).0.unwrap(), [1; BLOCK]);
    assert_eq!(ask(&stack, &driver, read(12)).0.unwrap(), [2; BLOCK]);
}

#[test]
fn vanished_device_fails_in_flight_and_returns_with_data() {
    let (stack, driver) = stack(Some("hdd-7200-sata"), false);
    ask(&stack, &driver, write(5, 3)).0.unwrap();
    let answer = Arc::new(Mutex::new(None));
    let slot = Arc::clone(&answer);
    let done = move |completion| *slot.lock().unwrap() = Some(completion);
    stack.volumes()[0].submit(read(3000), Box::new(done));
    assert!(answer.lock().unwrap().is_none());
    stack.inject("disk.0", DeviceFault::Vanish).unwrap();
    assert_eq!(answer.lock().unwrap().take(), Some(Err(DeviceError::Gone)));
    for request in [read(5), write(5, 4), DeviceRequest::Flush] {
        assert_eq!(ask(&stack, &driver, request), (Err(DeviceError::Gone), Duration::ZERO));
    }
    assert!(stack.bring_back("disk.0").unwrap());
    assert!(!stack.bring_back("disk.0").unwrap());
    assert_eq!(ask(&stack, &driver, read(5)).0.unwrap(), [3; BLOCK]);
    driver.run_until_idle();
    // And the pace can be changed: nothing is thought to be in flight for good.
    stack.set_pace(underlay_storage::stack::PacingMode::Immediate);
}

#[test]
fn full_device_takes_no_new_blocks() {
    let (stack, driver) = stack(None, false);
    ask(&stack, &driver, write(0, 1)).0.unwrap();
    let id = stack.inject("disk.0", DeviceFault::Full).unwrap();
    assert_eq!(ask(&stack, &driver, write(1000, 1)).0, Err(DeviceError::NoSpace));
    ask(&stack, &driver, write(0, 2)).0.unwrap();
    assert_eq!(ask(&stack, &driver, read(1000)).0.unwrap(), [0; BLOCK]);
    assert!(stack.clear_fault(id) && !stack.clear_fault(id));
    ask(&stack, &driver, write(1000, 1)).0.unwrap();
}

#[test]
fn slowness_and_spikes_change_the_time_and_are_recorded() {
    let (stack, driver) = stack(Some("ssd-sata"), false);
    let time_read = |stack: &Stack| ask(stack, &driver, read(1)).1;
    stack.begin_measurement(1.0);
    let usual = time_read(&stack);
    stack.inject("disk.0", DeviceFault::Slow { factor: 20.0 }).unwrap();
    let slow = time_read(&stack);
    let ratio = slow.as_secs_f64() / usual.as_secs_f64();
    assert!((19.0..21.0).contains(&ratio), "{usual:?} became {slow:?}");
    stack.clear_faults("disk.0").unwrap();
    let spikes =
        DeviceFault::Spikes { operations: vec![ModelOperation::Read], rate: 1.0, latency_us: 3e5, seed: 0 };
    stack.inject("disk.0", spikes).unwrap();
    let spiked = time_read(&stack);
    assert!(spiked >= Duration::from_millis(300) && spiked < Duration::from_millis(301), "{spiked:?}");
    let activity = stack.end_measurement().remove(0);
    let words: Vec<&str> = activity.faults.iter().map(|fault| fault.what.as_str()).collect();
    assert_eq!(words.len(), 2, "{words:?}");
    assert!(words[0].contains("20 times") && words[1].contains("every read takes 300ms longer"), "{words:?}");
    assert!(activity.faults[0].until_s.is_some() && activity.faults[1].until_s.is_none());
}

#[test]
fn fault_describes_itself_in_one_sentence() {
    let spikes = |rate, operations| DeviceFault::Spikes { operations, rate, latency_us: 2_000.0, seed: 0 };
    for (fault, sentence) in [
        (errors(0.05, Vec::new(), None, 0), "errors: 5 % of requests fail"),
        (errors(1.0, Vec::new(), None, 0), "errors: every request fails"),
        (
            errors(0.5, vec![ModelOperation::Read, ModelOperation::Flush], None, 0),
            "errors: 50 % of reads and flushes fail",
        ),
        (errors(1.0, vec![ModelOperation::Write], None, 0), "errors: every write fails"),
        (spikes(0.01, Vec::new()), "spikes: 1 % of requests take 2ms longer"),
        (spikes(1.0, vec![ModelOperation::Read]), "spikes: every read takes 2ms longer"),
        (
            DeviceFault::Corrupt { rate: 0.5, extent: None, seed: 0 },
            "corrupts: 50 % of reads have a wrong bit",
        ),
        (DeviceFault::Corrupt { rate: 1.0, extent: None, seed: 0 }, "corrupts: every read has a wrong bit"),
    ] {
        assert_eq!(fault.to_string(), sentence);
    }
}

#[test]
fn invalid_fault_is_refused() {
    let (stack, _) = stack(None, false);
    let refused = |fault| stack.inject("disk.0", fault).unwrap_err().to_string();
    assert!(refused(errors(0.0, Vec::new(), None, 0)).contains("rate of 0"));
    assert!(refused(errors(f64::NAN, Vec::new(), None, 0)).contains("rate"));
    assert!(
        refused(errors(1.0, Vec::new(), Some(ByteExtent { start_bytes: 5, end_bytes: 5 }), 0))
            .contains("extent")
    );
    // No request would ever meet it.
    let beyond_end = Some(ByteExtent { start_bytes: 500_000_000_000, end_bytes: 600_000_000_000 });
    assert!(refused(errors(1.0, Vec::new(), beyond_end, 0)).contains("disk.0 ends at"));
    assert!(
        refused(DeviceFault::Corrupt { rate: 1.0, extent: beyond_end, seed: 0 }).contains("disk.0 ends at")
    );
    assert!(refused(DeviceFault::Slow { factor: 1.0 }).contains("factor"));
    assert!(refused(DeviceFault::Slow { factor: 2.0 }).contains("no medium"));
    let unknown = stack.inject("disk.1", DeviceFault::Vanish).unwrap_err();
    assert!(unknown.to_string().contains("disk.0"), "{unknown}");
    let unarmed = stack.cut_power(&[], PowerCut::default()).unwrap_err();
    assert!(matches!(unarmed, FaultError::NotArmed { .. }) && unarmed.to_string().contains("--power-cut"));
}
