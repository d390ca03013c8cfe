//! Requests that share a device, against the plainest reference: time that goes on a nanosecond at a step.

use proptest::prelude::*;
use underlay_storage::catalogue::{
    CatalogueMedium, MeasuredLoad, MeasuredOrder, ModelParameters, SourcedCurve, SourcedDistribution,
    SourcedQuantity,
};
use underlay_storage::medium::{FinishedRequest, MediumModel, ModelOperation, ModelRequest, RequestId};
use underlay_storage::stack::InitialState;
use underlay_storage::time::ModelTime;

/// When it comes, and how many blocks of 4 KiB it reads.
type Arrivals = Vec<(u64, u64)>;

fn arrivals() -> impl Strategy<Value = Arrivals> {
    let gap_ns = prop_oneof![2 => Just(0u64), 3 => 1..3_000u64];
    prop::collection::vec((gap_ns, 1..5u64), 1..12).prop_map(|gaps| {
        let mut at_ns = 0;
        gaps.into_iter()
            .map(|(gap_ns, blocks)| {
                at_ns += gap_ns;
                (at_ns, blocks)
            })
            .collect()
    })
}

/// When each finished, by its number.
fn modelled(medium: &CatalogueMedium, arrivals: &Arrivals) -> Vec<u64> {
    let mut model: Box<dyn MediumModel> = medium.model(1 << 30, 1, InitialState::Fresh);
    let mut finished: Vec<FinishedRequest> = Vec::new();
    for (index, &(at_ns, blocks)) in arrivals.iter().enumerate() {
        let now = ModelTime::from_ns(at_ns);
        model.complete(now, &mut finished);
        // Far apart, so that nothing is sequential.
        let request = ModelRequest {
            id: RequestId(index as u64),
            operation: ModelOperation::Read,
            offset_bytes: (index as u64 * 37 % 64) << 20,
            length_bytes: blocks * 4096,
            fua: false,
        };
        model.submit(request, now);
    }
    while let Some(next) = model.next_completion() {
        model.complete(next, &mut finished);
    }
    finished.sort_by_key(|finished| finished.id);
    finished.iter().map(|finished| finished.at.as_ns()).collect()
}

/// The same, step by step: `speeds` says, for those in flight by their blocks, what each of them gets done in a
/// nanosecond, oldest first.
fn stepped(arrivals: &Arrivals, work: impl Fn(u64) -> f64, speeds: impl Fn(&[u64]) -> Vec<f64>) -> Vec<u64> {
    let mut over = vec![0; arrivals.len()];
    let mut under_way: Vec<(usize, f64)> = Vec::new();
    let (mut now_ns, mut next) = (0, 0);
    while next < arrivals.len() || !under_way.is_empty() {
        while let Some(&(at_ns, blocks)) = arrivals.get(next).filter(|(at_ns, _)| *at_ns == now_ns) {
            assert_eq!(at_ns, now_ns);
            under_way.push((next, work(blocks)));
            next += 1;
        }
        let blocks: Vec<u64> = under_way.iter().map(|&(index, _)| arrivals[index].1).collect();
        let speeds = speeds(&blocks);
        now_ns += 1;
        under_way.iter_mut().zip(speeds).for_each(|(job, speed)| job.1 -= speed);
        under_way.retain(|&(index, left)| {
            if left <= 1e-6 {
                over[index] = now_ns;
            }
            left > 1e-6
        });
    }
    over
}

/// Events are whole nanoseconds, and each of a dozen may be rounded.
const ROUNDING_NS: u64 = 30;

fn compare(found: &[u64], expected: &[u64]) -> Result<(), TestCaseError> {
    prop_assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        prop_assert!(found.abs_diff(*expected) <= ROUNDING_NS, "{} expected {}", found, expected);
    }
    Ok(())
}

fn quantity(value: f64) -> SourcedQuantity {
    SourcedQuantity { value, source: "test".into(), estimate: false }
}

fn always(value: f64) -> SourcedDistribution {
    SourcedDistribution { quantiles: vec![(0.5, value)], source: "test".into(), estimate: false }
}

fn depth_curve(values: &[f64]) -> SourcedCurve {
    let points = values.iter().enumerate().map(|(index, value)| (index as f64 + 1.0, *value)).collect();
    SourcedCurve { points, source: "test".into(), estimate: false }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    #[test]
    fn copies_share_the_memory(
        arrivals in arrivals(),
        mb_s in prop::collection::vec(500.0..8000.0f64, 12),
    ) {
        let mut medium = CatalogueMedium::parse("pmem.toml", include_str!("kinds/pmem.toml")).unwrap();
        if let ModelParameters::Pmem(memory) = &mut medium.model {
            memory.command_us = quantity(0.0);
            memory.read_latency_us = always(0.0);
            memory.read_mb_s_by_requests = depth_curve(&mb_s);
        }
        let expected = stepped(
            &arrivals,
            |blocks| blocks as f64 * 4096.0,
            |under_way| {
                let depth = under_way.len();
                vec![mb_s[depth.max(1) - 1] / 1e3 / depth as f64; depth]
            },
        );
        compare(&modelled(&medium, &arrivals), &expected)?;
    }

    #[test]
    fn oldest_requests_share_profiled_device(
        arrivals in arrivals(),
        gains in prop::collection::vec(0.5..1.6f64, 11),
        latency_us in 1.0..8.0f64,
    ) {
        let mut speeds = vec![1.0];
        for gain in gains {
            speeds.push((speeds[speeds.len() - 1] * gain).clamp(0.2, 11.5));
        }
        let mut medium = CatalogueMedium::parse("measured.toml", include_str!("kinds/measured.toml")).unwrap();
        if let ModelParameters::Measured(device) = &mut medium.model {
            device.order.value = MeasuredOrder::Fifo;
            device.service.retain(|service| {
                let random_read = service.load == MeasuredLoad::RandomRead;
                !random_read || service.block_bytes == 4096
            });
            let rates: Vec<f64> = speeds.iter().map(|speed| speed * 1e6 / latency_us).collect();
            for service in &mut device.service {
                service.latency_us = always(latency_us);
                service.iops = Some(depth_curve(&rates));
            }
        }
        prop_assert_eq!(medium.problems(), Vec::<String>::new());
        // With one size measured, what is beyond it follows at the bandwidth of as many of that size as the device ever
        // answers, which those in flight share.
        let most = speeds.iter().copied().fold(0.0, f64::max);
        let alone = |blocks: u64| 1.0 + (blocks as f64 - 1.0) / most;
        let expected = stepped(
            &arrivals,
            |blocks| latency_us * 1e3 * alone(blocks),
            |under_way| {
                let speed = speeds[under_way.len().max(1) - 1];
                let of_each = under_way.iter().enumerate().map(|(index, &blocks)| {
                    let speed = if blocks == 1 { speed } else { speed.min((alone(blocks) * most / blocks as f64).max(1.0)) };
                    let servers = speed.ceil().max(1.0);
                    if (index as f64) < servers { speed / servers } else { 0.0 }
                });
                // Behind the first that isn't served nobody is.
                let mut is_behind = false;
                of_each.map(|speed| { is_behind |= speed == 0.0; if is_behind { 0.0 } else { speed } }).collect()
            },
        );
        compare(&modelled(&medium, &arrivals), &expected)?;
    }
}
