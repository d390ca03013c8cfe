//! The same figures for Prometheus: <https://prometheus.io/docs/instrumenting/exposition_formats/>.

#[cfg(test)]
pub(crate) mod rules;

use std::fmt::Write as _;

use underlay_record::LiveLoad;

use crate::host::{LiveServiceInfo, ServedStorageInfo};
use crate::hub::{ConsoleHub, FollowedRun};
use crate::page::now_s;

/// Families in the order in which they are first told.
#[derive(Default)]
struct MetricFamilies {
    families: Vec<MetricFamily>,
}

struct MetricFamily {
    name: &'static str,
    help: &'static str,
    kind: &'static str,
    lines: String,
}

type MetricLabels<'a> = &'a [(&'a str, &'a str)];

impl MetricFamilies {
    fn add(
        &mut self,
        (name, help, kind): (&'static str, &'static str, &'static str),
        labels: MetricLabels<'_>,
        value: f64,
    ) {
        let place = match self.families.iter().position(|family| family.name == name) {
            Some(place) => place,
            None => {
                self.families.push(MetricFamily { name, help, kind, lines: String::new() });
                self.families.len() - 1
            }
        };
        let labels: Vec<String> =
            labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escaped(value))).collect();
        let lines = &mut self.families[place].lines;
        let _ = writeln!(lines, "{name}{{{}}} {value}", labels.join(","));
    }

    /// A mean, and quantiles as a summary has them: a query that adds up one of them would get nonsense by the other's
    /// name. All in µs.
    fn latency(
        &mut self,
        [mean, quantiles]: [(&'static str, &'static str); 2],
        labels: MetricLabels<'_>,
        [mean_us, p50_us, p99_us]: [Option<f64>; 3],
    ) {
        if let Some(us) = mean_us {
            self.add((mean.0, mean.1, "gauge"), labels, us / 1e6);
        }
        for (quantile, us) in [("0.5", p50_us), ("0.99", p99_us)] {
            let Some(us) = us else { continue };
            let labels = [labels, &[("quantile", quantile)]].concat();
            self.add((quantiles.0, quantiles.1, "summary"), &labels, us / 1e6);
        }
    }

    fn text(self) -> String {
        let mut text = String::new();
        for MetricFamily { name, help, kind, lines } in self.families {
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{lines}");
        }
        text
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Everything that is up now: runs that go on, and storages that are served.
pub(crate) fn text(hub: &ConsoleHub) -> String {
    let mut metrics = MetricFamilies::default();
    metrics.add(("underlay_console_up", "The console answers.", "gauge"), &[], 1.0);
    for name in hub.running_below() {
        let _ = hub.with(&name, |run| add_run(&mut metrics, run));
    }
    for storage in hub.host.storages() {
        add_storage(&mut metrics, &storage);
    }
    for service in hub.host.services() {
        add_service(&mut metrics, &service, now_s());
    }
    metrics.text()
}

/// The devices of a mount, of a cell's storage or of a pool.
fn add_storage(metrics: &mut MetricFamilies, storage: &ServedStorageInfo) {
    let directory = storage.directories.first().map(|path| path.display().to_string());
    let directory =
        directory.or_else(|| Some(format!("pool {}", storage.pool.as_ref()?))).unwrap_or_default();
    // Two of one name, or that are not mounted, may have devices of one name.
    let id = storage.id.as_str();
    for device in &storage.devices {
        let labels = [("storage", directory.as_str()), ("id", id), ("device", device.name.as_str())];
        let faults = device.faults.len() as f64 + f64::from(u8::from(!device.powered));
        metrics.add(
            ("underlay_device_faults", "Faults that a device has on command.", "gauge"),
            &labels,
            faults,
        );
        metrics.add(
            ("underlay_device_out_of_use", "Whether the pool is not using the device normally.", "gauge"),
            &labels,
            f64::from(u8::from(device.state.is_some())),
        );
        let Some(glance) = &device.glance else { continue };
        let totals = &glance.totals;
        for (operation, requests, bytes) in
            [("read", totals.reads, totals.read_bytes), ("write", totals.writes, totals.write_bytes)]
        {
            let labels = [&labels[..], &[("operation", operation)]].concat();
            metrics.add(
                (
                    "underlay_device_requests_total",
                    "Requests answered since counting began; a measurement begins anew.",
                    "counter",
                ),
                &labels,
                requests as f64,
            );
            metrics.add(
                ("underlay_device_bytes_total", "Bytes moved since counting began.", "counter"),
                &labels,
                bytes as f64,
            );
        }
        metrics.add(
            ("underlay_device_requests_under_way", "Requests under way.", "gauge"),
            &labels,
            f64::from(glance.depth),
        );
    }
}

/// A load, a worker, a gateway, a volume server.
fn add_service(metrics: &mut MetricFamilies, service: &LiveServiceInfo, now_s: f64) {
    let process = service.process.to_string();
    let labels = [("kind", service.kind.as_str()), ("process", process.as_str())];
    metrics.add(("underlay_service_up", "Something of this user's serves.", "gauge"), &labels, 1.0);
    let latest = service.live.as_ref().and_then(|live| live.moments.last());
    if let Some(latest) = latest {
        metrics.add(
            ("underlay_load_sample_timestamp_seconds", "When a load last reported its figures.", "gauge"),
            &labels,
            latest.at_ms as f64 / 1e3,
        );
    }
    // A load's figures from before it ended, or hung, are no present ones.
    if let Some(latest) = latest.filter(|_| service.is_current(now_s)) {
        let load_labels = [labels[0], labels[1], ("host", "")];
        add_load(metrics, &load_labels, latest.operations, &latest.load);
        for worker in &latest.workers {
            let load_labels = [labels[0], labels[1], ("host", worker.name.as_str())];
            add_load(metrics, &load_labels, worker.operations, &worker.load);
            let is_lost = f64::from(u8::from(worker.state == "lost"));
            metrics.add(
                ("underlay_load_host_lost", "A host of a load stopped responding.", "gauge"),
                &load_labels,
                is_lost,
            );
        }
    }
    for (figure, value) in &service.figures {
        let labels = [labels[0], labels[1], ("figure", figure.as_str())];
        metrics.add(("underlay_gateway_figure", "A figure of a gateway's status.", "gauge"), &labels, *value);
    }
    for part in &service.parts {
        let labels = [labels[0], labels[1], ("part", part.kind.as_str()), ("name", part.name.as_str())];
        let is_bad = f64::from(u8::from(part.is_bad));
        metrics.add(
            ("underlay_pool_part_bad", "A device or a volume of a pool is not as it should be.", "gauge"),
            &labels,
            is_bad,
        );
        metrics.add(
            ("underlay_pool_part_used_bytes", "Bytes on a device or on a volume of a pool.", "gauge"),
            &labels,
            part.used_bytes as f64,
        );
        metrics.add(
            ("underlay_pool_part_size_bytes", "Its capacity.", "gauge"),
            &labels,
            part.size_bytes as f64,
        );
    }
}

/// All hosts together where `host` is empty.
fn add_load(metrics: &mut MetricFamilies, labels: MetricLabels<'_>, operations: u64, load: &LiveLoad) {
    metrics.add(
        (
            "underlay_load_throughput_per_second",
            "Operations per second of a load, over the last second.",
            "gauge",
        ),
        labels,
        load.throughput_per_s,
    );
    metrics.add(
        ("underlay_load_operations_total", "Operations since the load began.", "counter"),
        labels,
        operations as f64,
    );
    metrics.add(
        ("underlay_load_errors_total", "Operations that failed since the load began.", "counter"),
        labels,
        load.errors as f64,
    );
    metrics.latency(
        [
            ("underlay_load_latency_mean_seconds", "Mean latency of a load's operations over the last second."),
            (
                "underlay_load_latency_seconds",
                "Latency of a load's operations over the last second; of several hosts, the highest quantile.",
            ),
        ],
        labels,
        [Some(load.mean_us), Some(load.p50_us), Some(load.p99_us)],
    );
}

fn add_run(metrics: &mut MetricFamilies, run: &FollowedRun) {
    let name = [("run", run.name.as_str())];
    for (state, count) in run.tally().all() {
        let labels = [name[0], ("state", state.key())];
        metrics.add(("underlay_run_cells", "Cells of a run by state.", "gauge"), &labels, count as f64);
    }
    if let Some((_, remaining_s)) = run.watched.remaining {
        metrics.add(
            (
                "underlay_run_remaining_seconds",
                "Estimate of the wall time that is left, when last made.",
                "gauge",
            ),
            &name,
            remaining_s,
        );
    }
    if let Some(latest) = run.watched.history.latest() {
        metrics.add(
            ("underlay_run_sample_timestamp_seconds", "When the figures were taken.", "gauge"),
            &name,
            latest.at_s,
        );
    }
    // The former cell's figures are no present ones.
    let Some(current) = run.current(now_s()) else { return };
    let sample = &current.sample;
    if let Some(share) = sample.cost_share {
        metrics.add(
            ("underlay_run_watching_cores", "The CPU cost of the feed to the run, in cores.", "gauge"),
            &name,
            share,
        );
    }
    let planned = sample.position.and_then(|position| run.run.plan.get(position as usize));
    let cell = planned.map_or("", |planned| planned.cell.id.as_str());
    let of_cell = [name[0], ("cell", cell)];
    if let Some(load) = sample.load {
        metrics.add(
            (
                "underlay_cell_throughput_per_second",
                "Operations per modelled second, over the last second.",
                "gauge",
            ),
            &of_cell,
            load.throughput_per_s,
        );
        metrics.latency(
            [
                (
                    "underlay_cell_latency_mean_seconds",
                    "Mean latency of operations in modelled time, over the last second.",
                ),
                (
                    "underlay_cell_latency_seconds",
                    "Latency of operations in modelled time, over the last second.",
                ),
            ],
            &of_cell,
            [Some(load.mean_us), Some(load.p50_us), Some(load.p99_us)],
        );
        metrics.add(
            ("underlay_cell_errors_total", "Operations that failed since the phase began.", "counter"),
            &of_cell,
            load.errors as f64,
        );
    }
    if let Some(figure) = &sample.figure {
        let labels =
            [of_cell[0], of_cell[1], ("figure", figure.name.as_str()), ("unit", figure.unit.as_str())];
        metrics.add(
            (
                "underlay_cell_benchmark_figure",
                "The progress that a benchmark command printed last.",
                "gauge",
            ),
            &labels,
            figure.value,
        );
    }
    for device in &sample.devices {
        let id = device.id.to_string();
        let labels = [of_cell[0], of_cell[1], ("device", id.as_str())];
        for (operation, iops, bytes) in [
            ("read", device.read_iops, device.read_bytes_per_s),
            ("write", device.write_iops, device.write_bytes_per_s),
        ] {
            let labels = [labels[0], labels[1], labels[2], ("operation", operation)];
            metrics.add(
                ("underlay_cell_device_iops", "Requests per modelled second.", "gauge"),
                &labels,
                iops,
            );
            metrics.add(
                ("underlay_cell_device_bytes_per_second", "Bytes per modelled second.", "gauge"),
                &labels,
                bytes,
            );
        }
        metrics.add(
            ("underlay_cell_device_queue_depth", "Mean number of requests under way.", "gauge"),
            &labels,
            device.queue_depth,
        );
        for (statistic, us) in [
            ("modelled", [device.modelled_us, device.modelled_p50_us, device.modelled_p99_us]),
            ("delivered", [device.delivered_us, device.delivered_p50_us, device.delivered_p99_us]),
        ] {
            let labels = [labels[0], labels[1], labels[2], ("which", statistic)];
            metrics.latency(
                [
                    (
                        "underlay_cell_device_latency_mean_seconds",
                        "Mean latency of requests in modelled time, over the last second.",
                    ),
                    (
                        "underlay_cell_device_latency_seconds",
                        "Latency of requests in modelled time, over the last second.",
                    ),
                ],
                &labels,
                us,
            );
        }
    }
    for layer in &sample.layers {
        let title = layer.title();
        for (figure, value) in &layer.figures {
            let labels = [of_cell[0], of_cell[1], ("layer", title.as_str()), ("figure", figure.as_str())];
            metrics.add(
                ("underlay_cell_layer", "A layer's own figures since the measurement began.", "gauge"),
                &labels,
                *value,
            );
        }
    }
    for (figure, value) in &sample.gauges {
        let labels = [of_cell[0], of_cell[1], ("figure", figure.as_str())];
        metrics.add(
            ("underlay_cell_system_figure", "A figure that the system reports itself.", "gauge"),
            &labels,
            *value,
        );
    }
    if let Some(budget) = sample.budget {
        metrics.add(
            (
                "underlay_cell_memory_budget_bytes",
                "Memory that the system may use, page cache included.",
                "gauge",
            ),
            &of_cell,
            budget.memory_budget_bytes as f64,
        );
        if let Some(bytes) = budget.memory_used_bytes {
            metrics.add(
                ("underlay_cell_memory_used_bytes", "Memory that it uses.", "gauge"),
                &of_cell,
                bytes as f64,
            );
        }
        for (name, help, cpus) in [
            ("underlay_cell_cpus_used", "CPUs' worth of time that the system uses.", budget.cpu_used),
            ("underlay_cell_cpus_budget", "CPUs' worth of time that it may use.", budget.cpu_budget),
            (
                "underlay_cell_cpu_throttled_share",
                "Share of its quota's periods in which it had to wait for the next one.",
                budget.cpu_throttled_share,
            ),
        ] {
            if let Some(cpus) = cpus {
                metrics.add((name, help, "gauge"), &of_cell, cpus);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use underlay_record::{LiveService, ServiceMoment};

    use super::*;
    use crate::host::StorageDevice;

    #[test]
    fn ended_load_has_time_without_rate() {
        let moment = ServiceMoment {
            at_ms: 1_000_000,
            load: LiveLoad { throughput_per_s: 5.0, ..LiveLoad::default() },
            ..ServiceMoment::default()
        };
        let live = Some(LiveService { moments: vec![moment], ..LiveService::default() });
        let service =
            LiveServiceInfo { kind: "worker".to_owned(), process: 7, live, ..LiveServiceInfo::default() };
        let text_at = |now_s| {
            let mut metrics = MetricFamilies::default();
            add_service(&mut metrics, &service, now_s);
            metrics.text()
        };
        let rate = "underlay_load_throughput_per_second{kind=\"worker\",process=\"7\",host=\"\"} 5\n";
        let time = "underlay_load_sample_timestamp_seconds{kind=\"worker\",process=\"7\"} 1000\n";
        assert!(text_at(1_001.0).contains(rate) && text_at(1_001.0).contains(time), "{}", text_at(1_001.0));
        let later = text_at(4_600.0);
        assert!(!later.contains("underlay_load_throughput") && later.contains(time), "{later}");
    }

    #[test]
    fn series_are_unique_and_resync_is_no_fault() {
        let device = StorageDevice {
            name: "ssd.0".to_owned(),
            powered: true,
            state: Some("being brought up to date".to_owned()),
            ..StorageDevice::default()
        };
        let storage = |id: &str| ServedStorageInfo {
            id: id.to_owned(),
            pool: Some("tank".to_owned()),
            devices: vec![device.clone()],
            ..ServedStorageInfo::default()
        };
        let mut metrics = MetricFamilies::default();
        ["a", "b"].iter().for_each(|id| add_storage(&mut metrics, &storage(id)));
        let text = metrics.text();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let mut series: Vec<&str> =
            lines.iter().filter_map(|line| line.rsplit_once(' ')).map(|(one, _)| one).collect();
        series.sort_unstable();
        series.dedup();
        assert_eq!(series.len(), lines.len(), "{text}");
        let of_a = "{storage=\"pool tank\",id=\"a\",device=\"ssd.0\"}";
        assert!(text.contains(&format!("underlay_device_faults{of_a} 0\n")), "{text}");
        assert!(text.contains(&format!("underlay_device_out_of_use{of_a} 1\n")), "{text}");
    }

    #[test]
    fn load_metrics_pass_rules() {
        let moment = ServiceMoment { at_ms: 1_000_000, ..ServiceMoment::default() };
        let live = Some(LiveService { moments: vec![moment], ..LiveService::default() });
        let service =
            LiveServiceInfo { kind: "load".to_owned(), process: 7, live, ..LiveServiceInfo::default() };
        let mut metrics = MetricFamilies::default();
        add_service(&mut metrics, &service, 1_001.0);
        let text = metrics.text();
        assert_eq!(rules::broken(&text), Vec::<String>::new(), "{text}");
        assert!(text.contains("# TYPE underlay_load_latency_seconds summary"), "{text}");
    }

    /// Also of metrics that no run of these tests has.
    #[test]
    fn metric_names_pass_rules() {
        let mut names: Vec<&str> =
            include_str!("metrics.rs").split('"').filter(|text| text.starts_with("underlay_")).collect();
        names.retain(|name| {
            name.len() > "underlay_".len() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_')
        });
        assert!(names.len() > 30, "{names:?}");
        let problems: Vec<String> = names.iter().flat_map(|name| rules::name_problems(name)).collect();
        assert_eq!(problems, Vec::<String>::new());
    }

    #[test]
    fn rules_match_promtool() {
        // Split, so that the test above does not find them here.
        assert_eq!(rules::name_problems(concat!("underlay", "_cell_gauge")).len(), 1);
        assert_eq!(rules::name_problems(concat!("underlay", "_cell_latency_us")).len(), 1);
        let broken_rules = |body: &str| rules::broken(body);
        let quantile = "# HELP underlay_x_seconds H.\n# TYPE underlay_x_seconds gauge\nunderlay_x_seconds{quantile=\"0.5\"} 1\n";
        assert_eq!(broken_rules(quantile).len(), 1, "{:?}", broken_rules(quantile));
        let mean = "# HELP underlay_x_seconds H.\n# TYPE underlay_x_seconds summary\nunderlay_x_seconds{quantile=\"mean\"} 1\n";
        assert_eq!(broken_rules(mean).len(), 1, "{:?}", broken_rules(mean));
        let counter = "# HELP underlay_x H.\n# TYPE underlay_x counter\nunderlay_x{} 1\n";
        assert_eq!(broken_rules(counter).len(), 1, "{:?}", broken_rules(counter));
        assert_eq!(broken_rules("underlay_x{} 1\n").len(), 1);
        let twice =
            "# HELP underlay_x H.\n# TYPE underlay_x gauge\nunderlay_x{a=\"b\"} 1\nunderlay_x{a=\"b\"} 2\n";
        assert_eq!(broken_rules(twice).len(), 1, "{:?}", broken_rules(twice));
    }

    #[test]
    fn family_is_declared_once_and_labels_escaped() {
        let mut metrics = MetricFamilies::default();
        let family = ("underlay_x", "Help.", "gauge");
        metrics.add(family, &[("run", "a\"b\\c\nd")], 1.0);
        metrics.add(("underlay_y", "Other.", "counter"), &[], 2.5);
        metrics.add(family, &[("run", "e")], 3.0);
        assert_eq!(
            metrics.text(),
            "# HELP underlay_x Help.\n# TYPE underlay_x gauge\nunderlay_x{run=\"a\\\"b\\\\c\\nd\"} 1\nunderlay_x{run=\"e\"} 3\n\
             # HELP underlay_y Other.\n# TYPE underlay_y counter\nunderlay_y{} 2.5\n"
        );
    }
}
