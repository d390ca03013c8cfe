//! The same figures for Prometheus.

mod table;

use underlay_record::LiveLoad;
use underlay_record::exposition::{MetricFamily, MetricText};

use crate::host::{LiveServiceInfo, ServedStorageInfo};
use crate::hub::{ConsoleHub, FollowedRun};
use crate::page::now_s;

/// A mean, and quantiles as a summary has them: a query that adds up one of them would get nonsense by the other's
/// name. All in µs.
fn add_latency(
    metrics: &mut MetricText,
    [mean, quantiles]: [&'static MetricFamily; 2],
    labels: &[&str],
    [mean_us, p50_us, p99_us]: [Option<f64>; 3],
) {
    if let Some(us) = mean_us {
        metrics.add(mean, labels, us / 1e6);
    }
    for (quantile, us) in [("0.5", p50_us), ("0.99", p99_us)] {
        if let Some(us) = us {
            metrics.add_quantile(quantiles, labels, quantile, us / 1e6);
        }
    }
}

/// Everything that is up now: runs that go on, and storages that are served.
pub(crate) fn text(hub: &ConsoleHub) -> String {
    let mut metrics = MetricText::default();
    metrics.add(&table::CONSOLE_UP, &[], 1.0);
    for name in hub.running_below() {
        let _ = hub.with(&name, |run| add_run(&mut metrics, run));
    }
    for storage in hub.host.storages() {
        add_storage(&mut metrics, &storage);
    }
    for service in hub.host.services() {
        add_service(&mut metrics, &service, now_s());
    }
    metrics.to_string()
}

/// The devices of a mount, of a cell's storage or of a pool.
fn add_storage(metrics: &mut MetricText, storage: &ServedStorageInfo) {
    let directory = storage.directories.first().map(|path| path.display().to_string());
    let directory =
        directory.or_else(|| Some(format!("pool {}", storage.pool.as_ref()?))).unwrap_or_default();
    // Two of one name, or that are not mounted, may have devices of one name.
    let id = storage.id.as_str();
    for device in &storage.devices {
        let labels = [directory.as_str(), id, device.name.as_str()];
        let faults = device.faults.len() as f64 + f64::from(u8::from(!device.powered));
        metrics.add(&table::DEVICE_FAULTS, &labels, faults);
        metrics.add(&table::DEVICE_OUT_OF_USE, &labels, f64::from(u8::from(device.state.is_some())));
        let Some(glance) = &device.glance else { continue };
        let totals = &glance.totals;
        for (operation, requests, bytes) in
            [("read", totals.reads, totals.read_bytes), ("write", totals.writes, totals.write_bytes)]
        {
            let labels = [labels[0], labels[1], labels[2], operation];
            metrics.add(&table::DEVICE_REQUESTS, &labels, requests as f64);
            metrics.add(&table::DEVICE_BYTES, &labels, bytes as f64);
        }
        metrics.add(&table::DEVICE_REQUESTS_UNDER_WAY, &labels, f64::from(glance.depth));
    }
}

/// A load, a worker, a gateway, a volume server.
fn add_service(metrics: &mut MetricText, service: &LiveServiceInfo, now_s: f64) {
    let process = service.process.to_string();
    let (kind, process) = (service.kind.as_str(), process.as_str());
    metrics.add(&table::SERVICE_UP, &[kind, process], 1.0);
    let latest = service.live.as_ref().and_then(|live| live.moments.last());
    if let Some(latest) = latest {
        metrics.add(&table::LOAD_SAMPLE_TIMESTAMP, &[kind, process], latest.at_ms as f64 / 1e3);
    }
    // A load's figures from before it ended, or hung, are no present ones.
    if let Some(latest) = latest.filter(|_| service.is_current(now_s)) {
        add_load(metrics, [kind, process, ""], latest.operations, &latest.load);
        for worker in &latest.workers {
            let labels = [kind, process, worker.name.as_str()];
            add_load(metrics, labels, worker.operations, &worker.load);
            metrics.add(&table::LOAD_HOST_LOST, &labels, f64::from(u8::from(worker.state == "lost")));
        }
    }
    for (figure, value) in &service.figures {
        metrics.add(&table::GATEWAY_FIGURE, &[kind, process, figure], *value);
    }
    for part in &service.parts {
        let labels = [kind, process, part.kind.as_str(), part.name.as_str()];
        metrics.add(&table::POOL_PART_BAD, &labels, f64::from(u8::from(part.is_bad)));
        metrics.add(&table::POOL_PART_USED, &labels, part.used_bytes as f64);
        metrics.add(&table::POOL_PART_SIZE, &labels, part.size_bytes as f64);
    }
}

/// All hosts together where `host`, the last label, is empty.
fn add_load(metrics: &mut MetricText, labels: [&str; 3], operations: u64, load: &LiveLoad) {
    metrics.add(&table::LOAD_THROUGHPUT_PER_SECOND, &labels, load.throughput_per_s);
    metrics.add(&table::LOAD_OPERATIONS, &labels, operations as f64);
    metrics.add(&table::LOAD_ERRORS, &labels, load.errors as f64);
    add_latency(
        metrics,
        [&table::LOAD_LATENCY_MEAN, &table::LOAD_LATENCY],
        &labels,
        [Some(load.mean_us), Some(load.p50_us), Some(load.p99_us)],
    );
}

fn add_run(metrics: &mut MetricText, run: &FollowedRun) {
    let name = run.name.as_str();
    for (state, count) in run.tally().all() {
        metrics.add(&table::RUN_CELLS, &[name, state.key()], count as f64);
    }
    if let Some((_, remaining_s)) = run.watched.remaining {
        metrics.add(&table::RUN_REMAINING, &[name], remaining_s);
    }
    if let Some(latest) = run.watched.history.latest() {
        metrics.add(&table::RUN_SAMPLE_TIMESTAMP, &[name], latest.at_s);
    }
    // The former cell's figures are no present ones.
    let Some(current) = run.current(now_s()) else { return };
    let sample = &current.sample;
    if let Some(share) = sample.cost_share {
        metrics.add(&table::RUN_WATCHING_CORES, &[name], share);
    }
    let planned = sample.position.and_then(|position| run.run.plan.get(position as usize));
    let cell = planned.map_or("", |planned| planned.cell.id.as_str());
    if let Some(load) = sample.load {
        metrics.add(&table::CELL_THROUGHPUT_PER_SECOND, &[name, cell], load.throughput_per_s);
        add_latency(
            metrics,
            [&table::CELL_LATENCY_MEAN, &table::CELL_LATENCY],
            &[name, cell],
            [Some(load.mean_us), Some(load.p50_us), Some(load.p99_us)],
        );
        metrics.add(&table::CELL_ERRORS, &[name, cell], load.errors as f64);
    }
    if let Some(figure) = &sample.figure {
        metrics.add(
            &table::CELL_BENCHMARK_FIGURE,
            &[name, cell, figure.name.as_str(), figure.unit.as_str()],
            figure.value,
        );
    }
    for device in &sample.devices {
        let id = device.id.to_string();
        for (operation, iops, bytes) in [
            ("read", device.read_iops, device.read_bytes_per_s),
            ("write", device.write_iops, device.write_bytes_per_s),
        ] {
            metrics.add(&table::CELL_DEVICE_IOPS, &[name, cell, &id, operation], iops);
            metrics.add(&table::CELL_DEVICE_BYTES_PER_SECOND, &[name, cell, &id, operation], bytes);
        }
        metrics.add(&table::CELL_DEVICE_QUEUE_DEPTH, &[name, cell, &id], device.queue_depth);
        for (statistic, us) in [
            ("modelled", [device.modelled_us, device.modelled_p50_us, device.modelled_p99_us]),
            ("delivered", [device.delivered_us, device.delivered_p50_us, device.delivered_p99_us]),
        ] {
            let families = [&table::CELL_DEVICE_LATENCY_MEAN, &table::CELL_DEVICE_LATENCY];
            add_latency(metrics, families, &[name, cell, &id, statistic], us);
        }
    }
    for layer in &sample.layers {
        let title = layer.title();
        for (figure, value) in &layer.figures {
            metrics.add(&table::CELL_LAYER, &[name, cell, &title, figure], *value);
        }
    }
    for (figure, value) in &sample.gauges {
        metrics.add(&table::CELL_SYSTEM_FIGURE, &[name, cell, figure], *value);
    }
    if let Some(budget) = sample.budget {
        let memory_budget = Some(budget.memory_budget_bytes as f64);
        for (family, value) in [
            (&table::CELL_MEMORY_BUDGET, memory_budget),
            (&table::CELL_MEMORY_USED, budget.memory_used_bytes.map(|bytes| bytes as f64)),
            (&table::CELL_CPUS_USED, budget.cpu_used),
            (&table::CELL_CPUS_BUDGET, budget.cpu_budget),
            (&table::CELL_CPU_THROTTLED_SHARE, budget.cpu_throttled_share),
        ] {
            if let Some(value) = value {
                metrics.add(family, &[name, cell], value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use underlay_record::exposition::rules;
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
            let mut metrics = MetricText::default();
            add_service(&mut metrics, &service, now_s);
            metrics.to_string()
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
        let mut metrics = MetricText::default();
        ["a", "b"].iter().for_each(|id| add_storage(&mut metrics, &storage(id)));
        let text = metrics.to_string();
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
        let mut metrics = MetricText::default();
        add_service(&mut metrics, &service, 1_001.0);
        let text = metrics.to_string();
        assert_eq!(rules::broken(&text), Vec::<String>::new(), "{text}");
        assert!(text.contains("# TYPE underlay_load_latency_seconds summary"), "{text}");
    }

    #[test]
    fn table_passes_rules() {
        assert_eq!(rules::table_problems(table::ALL), Vec::<String>::new());
        let rows = include_str!("metrics/table.rs").matches(": MetricFamily =").count();
        assert_eq!(table::ALL.len(), rows);
    }

    /// Dashboards and alerts have these names and types.
    #[test]
    fn names_and_types_stay() {
        let found: Vec<String> =
            table::ALL.iter().map(|family| format!("{} {}", family.name, family.kind)).collect();
        let expected: Vec<&str> = include_str!("metrics/names.txt").lines().collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn page_lists_each_metric_with_its_labels() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/console.md");
        let page = std::fs::read_to_string(page).unwrap();
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `underlay_")).collect();
        let expected: Vec<String> = table::ALL
            .iter()
            .map(|MetricFamily { name, labels, help, .. }| {
                let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
                format!("| `{name}` | {} | {help} |", labels.join(", "))
            })
            .collect();
        assert_eq!(rows, expected, "expected in docs/console.md:\n{}", expected.join("\n"));
    }
}
