//! The certificate of a device's inputs, in virtual time: from the requests that a device had to what rests on
//! estimates.

use underlay_record::{DeviceInputs, InputCertificate, InputVerdict};
use underlay_storage::catalogue::{self, CatalogueMedium, ParameterChange};
use underlay_storage::device::DeviceRequest;
use underlay_storage::inputs::{TracedRequest, certify, replay};
use underlay_storage::medium::ModelOperation;
use underlay_storage::stack::{
    BackingSpec, DeviceSpec, InitialState, Stack, StackNode, StackSpec, VolumeSpec,
};

const CAPACITY_BYTES: u64 = 1 << 30;

/// Requests of one kind that keep `depth` in flight.
fn loop_of(
    operation: ModelOperation,
    length_bytes: u64,
    depth: u32,
    idle_ns: u64,
) -> Vec<Vec<TracedRequest>> {
    let blocks = CAPACITY_BYTES / length_bytes;
    let one = |number: u64| TracedRequest {
        operation,
        offset_bytes: number * 7_919 % blocks * length_bytes,
        length_bytes,
        fua: false,
        depth: depth - 1,
        idle_ns: if depth == 1 { idle_ns } else { 0 },
    };
    vec![(0..1000).map(one).collect()]
}

fn inputs(medium: &CatalogueMedium, requests: &[Vec<TracedRequest>]) -> DeviceInputs {
    certify(medium, CAPACITY_BYTES, InitialState::Steady, requests)
}

/// The issue's own case: a volume whose latency is an estimate, asked one request at a time.
#[test]
fn estimated_latency_decides_shallow_load() {
    let medium = catalogue::find("ebs-io2").unwrap();
    let found = inputs(&medium, &loop_of(ModelOperation::Read, 16_384, 1, 0));
    assert_eq!(found.requests, 1000);
    assert_eq!(found.estimates[0].name, "read_latency_us");
    assert!(found.estimated > 0.9, "{found:?}");
    assert!((found.time_if_slow - 2.0).abs() < 0.15 && (found.time_if_fast - 0.5).abs() < 0.1, "{found:?}");
    let certificate = InputCertificate::from_devices(&[(1.0, &found)]).unwrap();
    assert_eq!(certificate.verdict, InputVerdict::Uncertain);
}

/// At the rate that its guide states, the same volume's latency decides nothing.
#[test]
fn sourced_rate_carries_deep_load() {
    let medium = catalogue::find("ebs-io2").unwrap();
    let found = inputs(&medium, &loop_of(ModelOperation::Read, 16_384, 64, 0));
    assert!(found.estimated < 0.3, "{found:?}");
    assert!(found.covered.all > 0.9, "{found:?}");
    let certificate = InputCertificate::from_devices(&[(1.0, &found)]).unwrap();
    assert_eq!(certificate.verdict, InputVerdict::Known);
}

/// The program's own time is no device's, and no estimate changes it.
#[test]
fn thinking_program_gains_little_from_faster_device() {
    let medium = catalogue::find("ebs-io2").unwrap();
    let found = inputs(&medium, &loop_of(ModelOperation::Read, 16_384, 1, 5_000_000));
    assert!(found.estimated > 0.9, "of the device's own time: {found:?}");
    assert!(found.time_if_slow < 1.2 && found.time_if_fast > 0.9, "{found:?}");
}

#[test]
fn study_value_is_no_estimate() {
    let changed = catalogue::changed(
        catalogue::text_of("ebs-io2").unwrap(),
        &[("request_mb_s", ParameterChange::Number(1000.0))],
    )
    .unwrap();
    let found = inputs(&changed.medium, &loop_of(ModelOperation::Read, 262_144, 1, 0));
    assert!(!found.estimates.iter().any(|estimate| estimate.name == "request_mb_s"), "{found:?}");
}

#[test]
fn catalogue_media_have_certificates() {
    for medium in catalogue::builtin() {
        let found = inputs(medium, &loop_of(ModelOperation::Write, 65_536, 4, 0));
        assert_eq!(found.requests, 1000, "{}", medium.name);
        assert!((0.0..=1.0).contains(&found.estimated), "{}: {found:?}", medium.name);
        assert!(found.time_if_fast <= 1.0 && found.time_if_slow >= 1.0, "{}: {found:?}", medium.name);
    }
}

/// A faster device is asked faster, and gives back the time that it took.
#[test]
fn replay_takes_as_long_as_closed_loop() {
    let medium = catalogue::find("hdd-7200-sata").unwrap();
    let requests = loop_of(ModelOperation::Read, 4096, 1, 0);
    let result = replay(&mut *medium.model(CAPACITY_BYTES, 1, InitialState::Fresh), &requests);
    assert!(
        result.idle_s == 0.0 && result.all_s / 1000.0 > 0.002 && result.all_s / 1000.0 < 0.02,
        "{result:?}"
    );
    let pausing = loop_of(ModelOperation::Read, 4096, 1, 10_000_000);
    let with_pauses = replay(&mut *medium.model(CAPACITY_BYTES, 1, InitialState::Fresh), &pausing);
    assert!((with_pauses.idle_s - 10.0).abs() < 1e-6, "{with_pauses:?}");
    assert!((with_pauses.all_s - with_pauses.idle_s - with_pauses.busy_s()).abs() < 1e-9);
}

#[test]
fn stack_keeps_requests_of_last_measurement() {
    let medium = catalogue::find("ebs-io2").unwrap();
    let device = DeviceSpec::new("ebs.0", Some(medium), CAPACITY_BYTES, BackingSpec::Null);
    let volume = VolumeSpec { name: "data".into(), root: StackNode::Device(device), directories: 1 };
    let spec = StackSpec { volumes: vec![volume], dilation: 1.0, seed: 1 };
    let (stack, driver) = Stack::open_virtual(&spec).unwrap();
    let ask = |count: u64| {
        for number in 0..count {
            let read = DeviceRequest::Read { offset_bytes: number * 65_536, buffer: vec![0; 16_384] };
            stack.volumes()[0].submit(read, Box::new(|answer| assert!(answer.is_ok())));
            driver.run_until_idle();
        }
    };
    ask(7);
    assert_eq!(stack.inputs()[0].1.requests, 0, "nothing was measured");
    stack.begin_measurement(1.0);
    ask(20);
    stack.end_measurement();
    let [(name, found)] = &stack.inputs()[..] else { panic!("one device") };
    assert_eq!((name.as_str(), found.requests), ("ebs.0", 20));
    assert!(found.estimated > 0.5 && found.time_if_slow > 1.5, "{found:?}");
    assert_eq!(stack.inputs()[0].1.requests, 0, "told once");
}
