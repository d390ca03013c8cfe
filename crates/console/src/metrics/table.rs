//! The console's metrics, a row each. `docs/console.md` lists them.

use underlay_record::exposition::MetricFamily;

pub(crate) static CONSOLE_UP: MetricFamily =
    MetricFamily::gauge("underlay_console_up", &[], "The console answers.");
pub(crate) static DEVICE_FAULTS: MetricFamily = MetricFamily::gauge(
    "underlay_device_faults",
    &["storage", "id", "device"],
    "Faults that a device has on command.",
);
pub(crate) static DEVICE_OUT_OF_USE: MetricFamily = MetricFamily::gauge(
    "underlay_device_out_of_use",
    &["storage", "id", "device"],
    "Whether the pool is not using the device normally.",
);
pub(crate) static DEVICE_REQUESTS: MetricFamily = MetricFamily::counter(
    "underlay_device_requests_total",
    &["storage", "id", "device", "operation"],
    "Requests answered since counting began; a measurement begins anew.",
);
pub(crate) static DEVICE_BYTES: MetricFamily = MetricFamily::counter(
    "underlay_device_bytes_total",
    &["storage", "id", "device", "operation"],
    "Bytes moved since counting began.",
);
pub(crate) static DEVICE_REQUESTS_UNDER_WAY: MetricFamily = MetricFamily::gauge(
    "underlay_device_requests_under_way",
    &["storage", "id", "device"],
    "Requests in flight.",
);
pub(crate) static SERVICE_UP: MetricFamily =
    MetricFamily::gauge("underlay_service_up", &["kind", "process"], "Something of this user's serves.");
pub(crate) static LOAD_SAMPLE_TIMESTAMP: MetricFamily = MetricFamily::gauge(
    "underlay_load_sample_timestamp_seconds",
    &["kind", "process"],
    "When a load last told its figures.",
);
pub(crate) static LOAD_HOST_LOST: MetricFamily = MetricFamily::gauge(
    "underlay_load_host_lost",
    &["kind", "process", "host"],
    "A host of a load stopped responding.",
);
pub(crate) static GATEWAY_FIGURE: MetricFamily = MetricFamily::gauge(
    "underlay_gateway_figure",
    &["kind", "process", "figure"],
    "A figure of a gateway's status.",
);
pub(crate) static POOL_PART_BAD: MetricFamily = MetricFamily::gauge(
    "underlay_pool_part_bad",
    &["kind", "process", "part", "name"],
    "A device or a volume of a pool is not as it should be.",
);
pub(crate) static POOL_PART_USED: MetricFamily = MetricFamily::gauge(
    "underlay_pool_part_used_bytes",
    &["kind", "process", "part", "name"],
    "What a device or a volume of a pool holds.",
);
pub(crate) static POOL_PART_SIZE: MetricFamily = MetricFamily::gauge(
    "underlay_pool_part_size_bytes",
    &["kind", "process", "part", "name"],
    "What it can hold.",
);
pub(crate) static LOAD_THROUGHPUT_PER_SECOND: MetricFamily = MetricFamily::gauge(
    "underlay_load_throughput_per_second",
    &["kind", "process", "host"],
    "Operations per second of a load, over the last second.",
);
pub(crate) static LOAD_OPERATIONS: MetricFamily = MetricFamily::counter(
    "underlay_load_operations_total",
    &["kind", "process", "host"],
    "Operations since the load began.",
);
pub(crate) static LOAD_ERRORS: MetricFamily = MetricFamily::counter(
    "underlay_load_errors_total",
    &["kind", "process", "host"],
    "Operations that failed since the load began.",
);
pub(crate) static LOAD_LATENCY_MEAN: MetricFamily = MetricFamily::gauge(
    "underlay_load_latency_mean_seconds",
    &["kind", "process", "host"],
    "Mean latency of a load's operations over the last second.",
);
pub(crate) static LOAD_LATENCY: MetricFamily = MetricFamily::summary(
    "underlay_load_latency_seconds",
    &["kind", "process", "host"],
    "Latency of a load's operations over the last second; of several hosts, the highest quantile.",
);
pub(crate) static RUN_CELLS: MetricFamily =
    MetricFamily::gauge("underlay_run_cells", &["run", "state"], "Cells of a run by state.");
pub(crate) static RUN_REMAINING: MetricFamily = MetricFamily::gauge(
    "underlay_run_remaining_seconds",
    &["run"],
    "Estimate of the wall time that is left, when last made.",
);
pub(crate) static RUN_SAMPLE_TIMESTAMP: MetricFamily =
    MetricFamily::gauge("underlay_run_sample_timestamp_seconds", &["run"], "When the figures were taken.");
pub(crate) static RUN_WATCHING_CORES: MetricFamily = MetricFamily::gauge(
    "underlay_run_watching_cores",
    &["run"],
    "What writing the feed costs the run, in cores.",
);
pub(crate) static CELL_THROUGHPUT_PER_SECOND: MetricFamily = MetricFamily::gauge(
    "underlay_cell_throughput_per_second",
    &["run", "cell"],
    "Operations per modelled second, over the last second.",
);
pub(crate) static CELL_LATENCY_MEAN: MetricFamily = MetricFamily::gauge(
    "underlay_cell_latency_mean_seconds",
    &["run", "cell"],
    "Mean latency of operations in modelled time, over the last second.",
);
pub(crate) static CELL_LATENCY: MetricFamily = MetricFamily::summary(
    "underlay_cell_latency_seconds",
    &["run", "cell"],
    "Latency of operations in modelled time, over the last second.",
);
pub(crate) static CELL_ERRORS: MetricFamily = MetricFamily::counter(
    "underlay_cell_errors_total",
    &["run", "cell"],
    "Operations that failed since the phase began.",
);
pub(crate) static CELL_BENCHMARK_FIGURE: MetricFamily = MetricFamily::gauge(
    "underlay_cell_benchmark_figure",
    &["run", "cell", "figure", "unit"],
    "What a benchmark command last printed of its progress.",
);
pub(crate) static CELL_DEVICE_IOPS: MetricFamily = MetricFamily::gauge(
    "underlay_cell_device_iops",
    &["run", "cell", "device", "operation"],
    "Requests per modelled second.",
);
pub(crate) static CELL_DEVICE_BYTES_PER_SECOND: MetricFamily = MetricFamily::gauge(
    "underlay_cell_device_bytes_per_second",
    &["run", "cell", "device", "operation"],
    "Bytes per modelled second.",
);
pub(crate) static CELL_DEVICE_QUEUE_DEPTH: MetricFamily = MetricFamily::gauge(
    "underlay_cell_device_queue_depth",
    &["run", "cell", "device"],
    "Mean number of requests in flight.",
);
pub(crate) static CELL_DEVICE_LATENCY_MEAN: MetricFamily = MetricFamily::gauge(
    "underlay_cell_device_latency_mean_seconds",
    &["run", "cell", "device", "which"],
    "Mean latency of requests in modelled time, over the last second.",
);
pub(crate) static CELL_DEVICE_LATENCY: MetricFamily = MetricFamily::summary(
    "underlay_cell_device_latency_seconds",
    &["run", "cell", "device", "which"],
    "Latency of requests in modelled time, over the last second.",
);
pub(crate) static CELL_LAYER: MetricFamily = MetricFamily::gauge(
    "underlay_cell_layer",
    &["run", "cell", "layer", "figure"],
    "A layer's own figures since the measurement began.",
);
pub(crate) static CELL_SYSTEM_FIGURE: MetricFamily = MetricFamily::gauge(
    "underlay_cell_system_figure",
    &["run", "cell", "figure"],
    "A figure that the system reports itself.",
);
pub(crate) static CELL_MEMORY_BUDGET: MetricFamily = MetricFamily::gauge(
    "underlay_cell_memory_budget_bytes",
    &["run", "cell"],
    "Memory that the system may use, page cache included.",
);
pub(crate) static CELL_MEMORY_USED: MetricFamily =
    MetricFamily::gauge("underlay_cell_memory_used_bytes", &["run", "cell"], "Memory that it uses.");
pub(crate) static CELL_CPUS_USED: MetricFamily = MetricFamily::gauge(
    "underlay_cell_cpus_used",
    &["run", "cell"],
    "CPUs' worth of time that the system uses.",
);
pub(crate) static CELL_CPUS_BUDGET: MetricFamily = MetricFamily::gauge(
    "underlay_cell_cpus_budget",
    &["run", "cell"],
    "CPUs' worth of time that it may use.",
);
pub(crate) static CELL_CPU_THROTTLED_SHARE: MetricFamily = MetricFamily::gauge(
    "underlay_cell_cpu_throttled_share",
    &["run", "cell"],
    "Share of its quota's periods in which it had to wait for the next one.",
);

/// All of them, for the tests, in the order in which an answer may have them.
#[cfg(test)]
pub(crate) static ALL: [&MetricFamily; 39] = [
    &CONSOLE_UP,
    &DEVICE_FAULTS,
    &DEVICE_OUT_OF_USE,
    &DEVICE_REQUESTS,
    &DEVICE_BYTES,
    &DEVICE_REQUESTS_UNDER_WAY,
    &SERVICE_UP,
    &LOAD_SAMPLE_TIMESTAMP,
    &LOAD_HOST_LOST,
    &GATEWAY_FIGURE,
    &POOL_PART_BAD,
    &POOL_PART_USED,
    &POOL_PART_SIZE,
    &LOAD_THROUGHPUT_PER_SECOND,
    &LOAD_OPERATIONS,
    &LOAD_ERRORS,
    &LOAD_LATENCY_MEAN,
    &LOAD_LATENCY,
    &RUN_CELLS,
    &RUN_REMAINING,
    &RUN_SAMPLE_TIMESTAMP,
    &RUN_WATCHING_CORES,
    &CELL_THROUGHPUT_PER_SECOND,
    &CELL_LATENCY_MEAN,
    &CELL_LATENCY,
    &CELL_ERRORS,
    &CELL_BENCHMARK_FIGURE,
    &CELL_DEVICE_IOPS,
    &CELL_DEVICE_BYTES_PER_SECOND,
    &CELL_DEVICE_QUEUE_DEPTH,
    &CELL_DEVICE_LATENCY_MEAN,
    &CELL_DEVICE_LATENCY,
    &CELL_LAYER,
    &CELL_SYSTEM_FIGURE,
    &CELL_MEMORY_BUDGET,
    &CELL_MEMORY_USED,
    &CELL_CPUS_USED,
    &CELL_CPUS_BUDGET,
    &CELL_CPU_THROTTLED_SHARE,
];
