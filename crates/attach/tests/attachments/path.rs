//! What programs wait on the way to a device and back is found while they do, by a delay of a known length.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use underlay_attach::{Attachment as _, BlockVolumes};
use underlay_record::{PathRecord, path};
use underlay_storage::stack::{BackingSpec, StackNode, StackSpec};

use crate::fixture::{Fixture, MIB, fuse_loop, fuse_loops, modelled};

const BLOCK_BYTES: usize = 4096;
/// So long that what a busy machine adds to one measurement and not to the other does not matter beside it.
const DELAY: Duration = Duration::from_millis(3);
const REQUESTS: u64 = 150;
const DILATION: f64 = 2.0;

/// A block that direct I/O accepts.
struct Block(*mut u8);

const LAYOUT: Layout = match Layout::from_size_align(BLOCK_BYTES, BLOCK_BYTES) {
    Ok(layout) => layout,
    Err(_) => panic!("a block is a power of two"),
};

impl Block {
    fn new() -> Block {
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(LAYOUT) };
        assert!(!start.is_null(), "no memory");
        Block(start)
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: these initialised bytes belong to this value alone.
        unsafe { std::slice::from_raw_parts_mut(self.0, BLOCK_BYTES) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.0, LAYOUT) };
    }
}

fn open(device: &Path) -> File {
    File::options().read(true).write(true).custom_flags(libc::O_DIRECT).open(device).unwrap()
}

fn stack(medium: &str) -> StackSpec {
    StackSpec { dilation: DILATION, ..modelled(medium, 64 * MIB, BackingSpec::Memory) }
}

/// What is found of the only volume while `act` runs on it.
fn during(devices: &BlockVolumes, mut act: impl FnMut(&File, &mut Block, u64)) -> PathRecord {
    let file = open(&devices.paths()[0]);
    let mut block = Block::new();
    devices.begin_measurement(1.0).unwrap();
    for index in 0..REQUESTS {
        act(&file, &mut block, index * BLOCK_BYTES as u64);
    }
    let activity = devices.end_measurement().unwrap();
    let found = devices.path_records().pop().unwrap();
    // Kernel and daemon have seen the same requests.
    let totals = activity[0].totals;
    for ((_, wait), counted) in found.kinds().into_iter().zip([totals.reads, totals.writes, totals.flushes]) {
        // At an edge somebody else may look at the device, as udev does once it was written to.
        assert!(wait.requests.abs_diff(counted) <= 3, "{totals:?} {found:?}");
    }
    for (kind, wait) in found.kinds() {
        let sum = wait.waited_mean_us - wait.path_mean_us;
        assert!(wait.requests == 0 || sum > 0.0 && wait.modelled_mean_us > 0.0, "{kind}: {wait:?}");
    }
    found
}

fn reads(devices: &BlockVolumes) -> PathRecord {
    during(devices, |file, block, offset| file.read_exact_at(block.bytes(), offset).unwrap())
}

fn writes(devices: &BlockVolumes) -> PathRecord {
    during(devices, |file, block, offset| file.write_all_at(block.bytes(), offset).unwrap())
}

fn synced_writes(devices: &BlockVolumes) -> PathRecord {
    during(devices, |file, block, offset| {
        file.write_all_at(block.bytes(), offset).unwrap();
        file.sync_data().unwrap();
    })
}

/// What the way costs for each of the loads that a delay must show in, on this machine's clock: reads, writes, and
/// writes and flushes of synced writes.
fn way_costs_us(devices: &BlockVolumes) -> [f64; 4] {
    let synced = synced_writes(devices);
    assert!(synced.writes.is_estimate && !synced.flushes.is_estimate, "{synced:?}");
    let (reads, writes) = (reads(devices).reads, writes(devices).writes);
    assert!(!reads.is_estimate && !writes.is_estimate, "{reads:?} {writes:?}");
    [reads, writes, synced.writes, synced.flushes].map(|wait| wait.path_mean_us * DILATION)
}

#[test]
fn path_delay_is_found_for_each_request_kind() {
    let delay_us = DELAY.as_secs_f64() * 1e6;
    for attachment in fuse_loops() {
        let fixture = Fixture::new();
        let mut devices = attachment.attach_devices(&stack("nvme-p4500"), &fixture.registry).unwrap();
        let before_us = way_costs_us(&devices);
        let served = devices.served().unwrap();
        served.delay_answers(DELAY).unwrap();
        let delayed_us = way_costs_us(&devices);
        for (before_us, delayed_us) in before_us.into_iter().zip(delayed_us) {
            assert!(delayed_us - before_us > 0.8 * delay_us, "{before_us} and {delayed_us} µs");
        }
        served.delay_answers(Duration::ZERO).unwrap();
        devices.detach().unwrap();
        fixture.assert_nothing_left();
    }
}

#[test]
fn delivered_latency_includes_delay() {
    let Some(attachment) = fuse_loop() else { return };
    let fixture = Fixture::new();
    let mut devices = attachment.attach_devices(&stack("nvme-p4500"), &fixture.registry).unwrap();
    devices.served().unwrap().delay_answers(DELAY).unwrap();
    let file = open(&devices.paths()[0]);
    let mut block = Block::new();
    devices.begin_measurement(1.0).unwrap();
    for index in 0..REQUESTS {
        file.read_exact_at(block.bytes(), index * BLOCK_BYTES as u64).unwrap();
    }
    let activity = devices.end_measurement().unwrap().remove(0);
    let paths = devices.path_records();
    let delay_us = DELAY.as_secs_f64() * 1e6 / DILATION;
    assert!(paths[0].is_direct);
    // What a program waits for after its request is not the way: the delay counts once.
    assert_eq!(paths[0].woken_mean_us.is_some(), paths[0].probes.is_some());
    match &paths[0].probes {
        Some(probes) => assert!(probes.quantile_us(0.5) >= 0.99 * delay_us, "{:?}", probes.summary_us()),
        None => assert_eq!(attachment.name(), "ublk"),
    }
    let (modelled, delivered) = (activity.modelled.unwrap(), activity.delivered.unwrap());
    let waited = path::waited(&paths, &delivered).unwrap();
    // At most 250 µs of this machine's clock were taken off.
    let expected_us = delay_us - 250.0 / DILATION;
    for quantile in [0.5, 0.99] {
        let late_us = waited.quantile_us(quantile) - modelled.quantile_us(quantile);
        assert!(late_us > 0.8 * expected_us, "{late_us} µs, {:?}", paths[0]);
        // Nor more than there is; the slowest one waited for a CPU too.
        assert!(quantile > 0.5 || late_us < 2.0 * delay_us, "{late_us} µs, {:?}", paths[0]);
    }
    assert!((waited.mean_us() - paths[0].reads.waited_mean_us).abs() < 0.05 * waited.mean_us(), "{paths:?}");
    drop(file);
    devices.detach().unwrap();
    fixture.assert_nothing_left();
}

#[test]
fn backdate_follows_path_cost() {
    let Some(attachment) = fuse_loop() else { return };
    let fixture = Fixture::new();
    let mut devices = attachment.attach_devices(&stack("nvme-p4500"), &fixture.registry).unwrap();
    let first_us = reads(&devices).reads.dated_back_mean_us;
    // More than may be taken off, so that it can only rise.
    devices.served().unwrap().delay_answers(Duration::from_micros(300)).unwrap();
    let begun = Instant::now();
    let most_us = 250.0 / DILATION;
    loop {
        let now_us = reads(&devices).reads.dated_back_mean_us;
        assert!(now_us < 1.1 * most_us, "{now_us}");
        if now_us > first_us + 4.0 || now_us > 0.95 * most_us {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "{first_us} µs and {now_us} µs");
    }
    devices.detach().unwrap();
    fixture.assert_nothing_left();
}

#[test]
fn layer_disables_backdating_and_path_counts() {
    let Some(attachment) = fuse_loop() else { return };
    let fixture = Fixture::new();
    let mut stack = stack("nvme-p4500");
    let device = std::mem::replace(&mut stack.volumes[0].root, StackNode::Mirror { members: Vec::new() });
    stack.volumes[0].root =
        StackNode::Link { bandwidth_mb_s: 1000.0, latency_us: 10.0, member: Box::new(device) };
    let mut devices = attachment.attach_devices(&stack, &fixture.registry).unwrap();
    let found = reads(&devices);
    assert!(!found.is_direct && found.reads.dated_back_mean_us == 0.0, "{found:?}");
    assert!(found.reads.waited_mean_us >= found.reads.modelled_mean_us, "{found:?}");
    devices.detach().unwrap();
    fixture.assert_nothing_left();
}
