//! Requests' times on idle storage.

use rand::RngExt;
use rand_pcg::Pcg64Mcg;
use underlay_storage::medium::ModelOperation;

use super::SimulationScenario;
use crate::device_network::{DeviceNetwork, VolumeRequest};

/// Idle reads that show the time of a read when nothing else is going on.
const IDLE_READS: u64 = 48;

/// The times of a read and a commit on idle storage, and the clock after these, from which the simulation continues.
pub(super) fn idle_times(
    bank: &mut DeviceNetwork,
    scenario: &SimulationScenario<'_>,
    random: &mut Pcg64Mcg,
) -> (f64, f64, u64) {
    let mut now_ns = 0;
    let alone = |bank: &mut DeviceNetwork, requests: &[VolumeRequest], now_ns: &mut u64| -> f64 {
        let began_ns = *now_ns;
        for &request in requests {
            bank.submit(0, 0, request, *now_ns);
            let mut done = Vec::new();
            // One request at a time, so that the storage is idle before each.
            while done.is_empty() {
                let Some(next_ns) = bank.next_ns() else { break };
                *now_ns = next_ns.max(*now_ns);
                bank.take(*now_ns, &mut done);
            }
            // The network's time is not the storage's.
            *now_ns = done.first().map_or(*now_ns, |one| one.at_ns - one.network_ns);
        }
        (*now_ns - began_ns) as f64
    };
    let range = scenario.footprint_bytes.clamp(1, bank.capacity_bytes(0));
    let of_reads = scenario.demand.classes.iter().find(|class| class.reads > 0.0);
    let read_ns = of_reads.map_or(0.0, |class| {
        let mut sum_ns = 0.0;
        for index in 0..IDLE_READS {
            let request = VolumeRequest {
                operation: ModelOperation::Read,
                offset_bytes: match class.is_sequential {
                    true => (index * class.read_bytes as u64) % range,
                    false => random.random_range(0..range),
                },
                length_bytes: class.read_bytes as u64,
                cached: scenario.cached,
            };
            sum_ns += alone(bank, &[request], &mut now_ns);
        }
        sum_ns / IDLE_READS as f64
    });
    let commit_ns = scenario.demand.commit_bytes.map_or(0.0, |bytes| {
        let write = VolumeRequest {
            operation: ModelOperation::Write,
            offset_bytes: 0,
            length_bytes: bytes as u64,
            cached: 0.0,
        };
        let flush = VolumeRequest::flush();
        (0..8).map(|_| alone(bank, &[write, flush], &mut now_ns)).sum::<f64>() / 8.0
    });
    (read_ns, commit_ns, now_ns)
}
