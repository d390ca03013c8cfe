//! A simulation's outcome, and the breakdown of an operation's time.

mod latencies;

use underlay_record::TimeShares;

pub use latencies::OperationLatencies;
pub(crate) use latencies::OperationLatency;

/// The breakdown of an operation's time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TimeParts {
    /// The devices' time if they had been idle.
    pub service_ns: f64,
    /// Their time beyond that, and writers' waits for background work.
    pub queue_ns: f64,
    pub network_ns: f64,
    pub cpu_ns: f64,
    pub cpu_wait_ns: f64,
    /// The wait for a free client; only where operations arrive independently.
    pub client_ns: f64,
}

impl TimeParts {
    /// A request that took `all_ns`, and `idle_ns` on idle storage.
    pub(crate) fn add_device(&mut self, all_ns: f64, network_ns: f64, idle_ns: f64) {
        let at_device_ns = (all_ns - network_ns).max(0.0);
        let service_ns = at_device_ns.min(idle_ns);
        self.service_ns += service_ns;
        self.queue_ns += at_device_ns - service_ns;
        self.network_ns += network_ns;
    }
}

/// One measured operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FinishedOperation {
    pub total_ns: f64,
    /// The part of it that waited for reads.
    pub reads_ns: f64,
    pub parts: TimeParts,
}

/// A simulation's result.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulationOutcome {
    pub throughput_per_s: f64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub latencies: OperationLatencies,
    /// For the busiest device: the share of the time in which it had a request.
    pub device_busy: f64,
    /// The mean number of requests at the busiest device.
    pub device_queue: f64,
    /// 0 to 1; absent if the number of cores is unknown.
    pub cpu_busy: Option<f64>,
    /// Operations in flight, as a mean over the time.
    pub inside: f64,
    /// Operations arrived faster than they were answered: the metrics cover the time until the simulation was
    /// abandoned.
    pub is_saturated: bool,
    /// A write-back cache takes in more than it writes back: seconds until it is full, and writes proceed at the pace
    /// of the devices behind it.
    pub cache_full_s: Option<f64>,
    pub of_mean: TimeShares,
    pub of_p50: TimeShares,
    pub of_p99: TimeShares,
}

impl SimulationOutcome {
    pub(crate) fn new(
        mut finished: Vec<FinishedOperation>,
        span_ns: u64,
        usage: &[(f64, f64)],
        cpu_busy: Option<f64>,
        inside: f64,
        is_saturated: bool,
    ) -> SimulationOutcome {
        finished.sort_by(|a, b| a.total_ns.total_cmp(&b.total_ns));
        let count = finished.len();
        let mean_us = finished.iter().map(|one| one.total_ns).sum::<f64>() / count.max(1) as f64 / 1e3;
        let latency = |one: &FinishedOperation| OperationLatency {
            total_us: one.total_ns / 1e3,
            reads_us: one.reads_ns / 1e3,
        };
        let latencies = OperationLatencies::new(finished.iter().map(latency).collect());
        // The breakdown of an operation at a percentile is the mean over its neighbours.
        let around = |share: f64, width: f64| {
            let index_at = |share: f64| ((count as f64) * share.clamp(0.0, 1.0)) as usize;
            let (from, to) = (
                index_at(share - width),
                index_at(share + width).max(index_at(share - width) + 1).min(count),
            );
            shares(&finished[from.min(to)..to])
        };
        let busiest =
            usage.iter().copied().fold((0.0f64, 0.0f64), |most, one| if one.0 > most.0 { one } else { most });
        SimulationOutcome {
            throughput_per_s: count as f64 / (span_ns as f64 / 1e9),
            mean_us: if count == 0 { f64::INFINITY } else { mean_us },
            p50_us: latencies.quantile_us(0.5),
            p99_us: latencies.quantile_us(0.99),
            latencies,
            device_busy: busiest.0.min(1.0),
            device_queue: busiest.1,
            cpu_busy,
            inside,
            is_saturated: is_saturated || count == 0,
            cache_full_s: None,
            of_mean: shares(&finished),
            of_p50: around(0.5, 0.05),
            of_p99: around(0.99, 0.005),
        }
    }
}

fn shares(finished: &[FinishedOperation]) -> TimeShares {
    let each = 1e3 * finished.len().max(1) as f64;
    let mean = |part: fn(&TimeParts) -> f64| finished.iter().map(|one| part(&one.parts)).sum::<f64>() / each;
    TimeShares {
        device_service_us: mean(|parts| parts.service_ns),
        device_queueing_us: mean(|parts| parts.queue_ns),
        network_us: mean(|parts| parts.network_ns),
        cpu_us: mean(|parts| parts.cpu_ns),
        cpu_waiting_us: mean(|parts| parts.cpu_wait_ns),
        client_waiting_us: mean(|parts| parts.client_ns),
    }
}
