//! Requests that a model hears of late are over when they would have been had it heard of them in time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use underlay_storage::catalogue;
use underlay_storage::medium::{FinishedRequest, InitialState, ModelOperation, ModelRequest, RequestId};
use underlay_storage::time::ModelTime;

const CAPACITY_BYTES: u64 = 4 << 30;
const REQUESTS: usize = 20_000;
/// Before so many are over the device is not as busy as it will be.
const WARMUP: usize = 2_000;

struct Load {
    queue_depth: u64,
    block_bytes: u64,
    reads: f64,
}

/// Programs that wait for each answer and ask again at once, each by a way that takes `way_ns`. Their mean wait, the
/// way not counted, if the model knows when they asked; and if it doesn't.
fn mean_us(medium: &str, load: &Load, way_ns: u64, is_told: bool) -> f64 {
    let mut model = catalogue::find(medium).unwrap().model(CAPACITY_BYTES, 7, InitialState::Fresh);
    let mut random = Pcg64Mcg::seed_from_u64(11);
    let mut coming: BinaryHeap<_> = (0..load.queue_depth).map(|id| Reverse((way_ns, id, 0))).collect();
    let mut asked: HashMap<RequestId, (u64, u64)> = HashMap::new();
    let (mut next_id, mut waits_ns, mut finished) = (load.queue_depth, Vec::new(), Vec::new());
    let mut now_ns = 0;
    while waits_ns.len() < REQUESTS {
        let next_ns =
            model.next_completion().map_or(u64::MAX, |completed_at| completed_at.as_ns().max(now_ns));
        match coming.peek().copied().filter(|Reverse((arrives_ns, ..))| *arrives_ns < next_ns) {
            None => now_ns = next_ns,
            Some(Reverse((arrives_ns, id, asked_ns))) => {
                coming.pop();
                now_ns = arrives_ns;
                model.complete(ModelTime::from_ns(now_ns), &mut finished);
                let operation =
                    if random.random_bool(load.reads) { ModelOperation::Read } else { ModelOperation::Write };
                let offset_bytes =
                    random.random_range(0..CAPACITY_BYTES / load.block_bytes) * load.block_bytes;
                let request = ModelRequest {
                    id: RequestId(id),
                    operation,
                    offset_bytes,
                    length_bytes: load.block_bytes,
                    fua: false,
                };
                asked.insert(request.id, (asked_ns, arrives_ns));
                model.submit(request, ModelTime::from_ns(if is_told { asked_ns } else { now_ns }));
            }
        }
        model.complete(ModelTime::from_ns(now_ns), &mut finished);
        for FinishedRequest { id, at: finished_at } in finished.drain(..) {
            let (asked_ns, arrived_ns) = asked.remove(&id).unwrap();
            let heard_ns = finished_at.as_ns().max(arrived_ns);
            waits_ns.push(heard_ns - asked_ns);
            coming.push(Reverse((heard_ns + way_ns, next_id, heard_ns)));
            next_id += 1;
        }
    }
    let counted = &waits_ns[WARMUP..];
    counted.iter().sum::<u64>() as f64 / counted.len() as f64 / 1e3
}

#[test]
fn concurrent_requests_wait_device_time_despite_long_path() {
    let loads = [
        Load { queue_depth: 1, block_bytes: 4096, reads: 1.0 },
        Load { queue_depth: 32, block_bytes: 4096, reads: 1.0 },
        Load { queue_depth: 16, block_bytes: 4096, reads: 0.0 },
        Load { queue_depth: 8, block_bytes: 4096, reads: 0.7 },
        Load { queue_depth: 4, block_bytes: 128 << 10, reads: 1.0 },
    ];
    for medium in ["ssd-sata", "nvme-9300-max", "nvme-990-pro", "optane-p5800x", "nvme-tcp-9300"] {
        // No answer leaves before its request has come.
        let alone = |reads| mean_us(medium, &Load { queue_depth: 1, block_bytes: 4096, reads }, 0, true);
        let way_ns = (alone(1.0).min(alone(0.0)) * 1e3 / 2.0) as u64;
        for load in &loads {
            let right_us = mean_us(medium, load, 0, true);
            let told_us = mean_us(medium, load, way_ns, true);
            let Load { queue_depth, block_bytes, reads } = load;
            let label = format!("{medium}, {reads} reads of {block_bytes} at a queue depth of {queue_depth}");
            assert!(
                (told_us / right_us - 1.0).abs() < 0.03,
                "{label}: {told_us} us, and {right_us} without a way"
            );
        }
    }
}

#[test]
fn model_without_path_cost_adds_path() {
    let load = Load { queue_depth: 1, block_bytes: 4096, reads: 1.0 };
    let right_us = mean_us("nvme-9300-max", &load, 0, true);
    let late_us = mean_us("nvme-9300-max", &load, 20_000, false);
    assert!((late_us - right_us - 20.0).abs() < 1.0, "{late_us} and {right_us}");
}

#[test]
fn disks_do_not_take_what_comes_late() {
    for (medium, takes) in [
        ("hdd-7200-sata", false),
        ("ebs-gp3", false),
        ("i4i-xlarge", false),
        ("optane-pmem-100", false),
        ("ssd-sata", true),
    ] {
        let model = catalogue::find(medium).unwrap().model(CAPACITY_BYTES, 7, InitialState::Fresh);
        assert_eq!(model.takes_late(), takes, "{medium}");
    }
}
