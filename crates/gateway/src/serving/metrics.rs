//! Figures of the gateway, in Prometheus' text format and as JSON for `top`.

mod table;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::StatusCode;
use underlay_record::exposition::MetricText;
use underlay_record::{GatewayFailing, GatewayPrefix, GatewayStatus};
use underlay_sync::Mutex;

use crate::engine::{GatewayEngine, UnstoredName};
use crate::model::now_ms;
use table::FigureSamples;

/// Upper bounds of the latency's buckets.
const BOUNDS_S: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 5.0, 30.0];

/// Names that fail to be stored, of which `/metrics` and `/status` speak. A metric's help has the number, too.
const MAX_FAILING_NAMES: usize = 20;

/// Requests that were answered.
#[derive(Default)]
pub(crate) struct RequestMetrics {
    by_operation: Mutex<BTreeMap<String, OperationMetrics>>,
    sent_bytes: AtomicU64,
}

#[derive(Clone, Default)]
struct OperationMetrics {
    by_class: [u64; 6],
    buckets: [u64; BOUNDS_S.len()],
    seconds: f64,
    count: u64,
}

impl RequestMetrics {
    /// The time is that until the answer began.
    pub(crate) fn answered(&self, operation: &str, status: StatusCode, time: Duration) {
        let mut operations = self.by_operation.lock();
        let operation = match operation {
            // Refused before it was known what it is.
            "" => "none",
            name => name,
        };
        if !operations.contains_key(operation) {
            operations.insert(operation.to_owned(), OperationMetrics::default());
        }
        let Some(counts) = operations.get_mut(operation) else { return };
        let seconds = time.as_secs_f64();
        counts.by_class[usize::from(status.as_u16() / 100).min(5)] += 1;
        for (bucket, bound) in counts.buckets.iter_mut().zip(BOUNDS_S) {
            *bucket += u64::from(seconds <= bound);
        }
        counts.seconds += seconds;
        counts.count += 1;
    }

    pub(crate) fn sent(&self, bytes: u64) {
        self.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

pub(crate) fn status(engine: &GatewayEngine, requests: &RequestMetrics) -> GatewayStatus {
    let ((journal_bytes, journal_capacity_bytes), (pending, pending_since)) =
        (engine.journal_bytes(), engine.pending());
    let value_of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let prefixes = engine.bucket_states().into_iter().flat_map(|bucket| {
        bucket
            .rules
            .iter()
            .map(|rule| GatewayPrefix {
                bucket: bucket.name.clone(),
                prefix: rule.rule.prefix.clone(),
                hits: value_of(&rule.counts.hits),
                misses: value_of(&rule.counts.misses),
                joined: value_of(&rule.counts.joined),
                fetched_bytes: value_of(&rule.counts.fetched_bytes),
            })
            .collect::<Vec<_>>()
    });
    // Where the metadata can't be read, more than a figure is wrong, and the log says so.
    let (uploads, upload_bytes, oldest_ms) = engine.unfinished_uploads().unwrap_or_default();
    let age_s = |since_ms: i64| (now_ms() - since_ms).max(0) as f64 / 1000.0;
    let (mut count, mut failed) = (0, 0);
    let (passes_flash_by, passed_by_blocks, flash_block_s, store_block_s) = engine.bypass();
    for operation in requests.by_operation.lock().values() {
        count += operation.count;
        failed += operation.by_class[5];
    }
    GatewayStatus {
        journal_bytes,
        journal_capacity_bytes,
        pending_objects: pending as u64,
        oldest_pending_s: pending_since.map_or(0.0, age_s),
        last_failure: engine.last_failure(),
        cached_bytes: engine.cached_bytes(),
        passes_flash_by,
        passed_by_blocks,
        flash_block_s,
        store_block_s,
        ahead_bytes: engine.ahead_bytes(),
        accepted_objects: value_of(&engine.counters.accepted_objects),
        accepted_bytes: value_of(&engine.counters.accepted_bytes),
        flushed_objects: value_of(&engine.counters.flushed_objects),
        flushed_bytes: value_of(&engine.counters.flushed_bytes),
        copied_in_store: value_of(&engine.counters.copied_in_store),
        deleted_in_store: value_of(&engine.counters.deleted_in_store),
        flush_failures: value_of(&engine.counters.flush_failures),
        rescued_bytes: value_of(&engine.counters.rescued_bytes),
        expired_uploads: value_of(&engine.counters.expired_uploads),
        unfinished_uploads: uploads,
        unfinished_upload_bytes: upload_bytes,
        oldest_upload_s: oldest_ms.map_or(0.0, age_s),
        spilled_parts: value_of(&engine.counters.spilled_parts),
        spilled_bytes: value_of(&engine.counters.spilled_bytes),
        unanswered_keys: engine.unanswered_keys(),
        changed_by_others: value_of(&engine.counters.strangers),
        withheld_by_store: value_of(&engine.counters.withheld),
        away_stores: engine.away_stores(),
        local_free_bytes: engine.disk().free_bytes(),
        refused_for_room: engine.disk().refusals().counts(),
        failing_objects: engine
            .failing_counts()
            .into_iter()
            .map(|(cause, count)| (cause.word().to_owned(), count as u64))
            .collect(),
        failing_long: engine.failing(MAX_FAILING_NAMES).into_iter().filter_map(failing_of).collect(),
        panics: engine.supervisor.panics(),
        sent_bytes: requests.sent_bytes.load(Ordering::Relaxed),
        requests: count,
        failed_requests: failed,
        prefixes: prefixes.collect(),
        cluster: None,
    }
}

fn failing_of(unstored: UnstoredName) -> Option<GatewayFailing> {
    let failed = unstored.failed?;
    Some(GatewayFailing {
        bucket: unstored.name.bucket,
        key: unstored.name.key,
        failing_s: (now_ms() - failed.since_ms).max(0) as f64 / 1000.0,
        cause: failed.cause.word().to_owned(),
        why: failed.why,
    })
}

/// Metrics before the gateway is open, and afterwards as well.
pub(crate) fn opening_text(is_opening: bool, listed: u64) -> String {
    let mut metrics = MetricText::default();
    metrics.add(&table::OPENING, &[], f64::from(u8::from(is_opening)));
    metrics.add(&table::TAKEN_OVER, &[], listed as f64);
    metrics.to_string()
}

/// Prometheus' text format.
pub(crate) fn text(status: &GatewayStatus, requests: &RequestMetrics) -> String {
    let mut metrics = MetricText::default();
    for (family, samples) in &table::FIGURES {
        match samples {
            FigureSamples::One(value) => metrics.add(family, &[], value(status)),
            FigureSamples::Known(value) => {
                if let Some(value) = value(status) {
                    metrics.add(family, &[], value);
                }
            }
            FigureSamples::Labelled(samples) => {
                metrics.declare(family);
                samples(status, &mut |labels, value| metrics.add(family, labels, value));
            }
        }
    }
    let operations = requests.by_operation.lock().clone();
    metrics.declare(&table::REQUESTS);
    for (operation, counts) in &operations {
        for (class, count) in counts.by_class.iter().enumerate().filter(|(_, count)| **count > 0) {
            metrics.add(&table::REQUESTS, &[operation, &format!("{class}xx")], *count as f64);
        }
    }
    metrics.declare(&table::REQUEST_TIME);
    for (operation, counts) in &operations {
        let buckets = BOUNDS_S.into_iter().zip(counts.buckets);
        metrics.add_histogram(&table::REQUEST_TIME, &[operation], buckets, counts.seconds, counts.count);
    }
    metrics.to_string()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use underlay_record::GatewayClusterStatus;
    use underlay_record::exposition::{MetricFamily, rules};

    use super::*;

    fn all_families() -> impl Iterator<Item = &'static MetricFamily> {
        let figures = table::FIGURES.iter().map(|(family, _)| family);
        [&table::OPENING, &table::TAKEN_OVER]
            .into_iter()
            .chain(figures)
            .chain([&table::REQUESTS, &table::REQUEST_TIME])
    }

    #[test]
    fn page_has_row_for_each_metric() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/gateway-operations.md");
        let page = std::fs::read_to_string(page).unwrap();
        let rows: BTreeSet<&str> = page
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|(name, _)| name))
            .filter(|name| name.starts_with("underlay_gateway_"))
            .collect();
        let names: BTreeSet<&str> = all_families().map(|family| family.name).collect();
        assert_eq!(rows, names, "docs/gateway-operations.md");
    }

    #[test]
    fn table_passes_rules() {
        assert_eq!(rules::table_problems(all_families()), Vec::<String>::new());
        let failing = all_families().find(|family| family.name.ends_with("_failing_object_seconds")).unwrap();
        assert!(failing.help.contains(&format!("the first {MAX_FAILING_NAMES} ")), "{}", failing.help);
    }

    /// Dashboards and alerts have these names and types.
    #[test]
    fn names_and_types_stay() {
        let found: Vec<String> =
            all_families().map(|family| format!("{} {}", family.name, family.kind)).collect();
        let expected: Vec<&str> = include_str!("metrics/names.txt").lines().collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn text_has_families_in_order_with_samples() {
        let status = GatewayStatus {
            journal_bytes: 1 << 40,
            oldest_pending_s: 1.5,
            passes_flash_by: true,
            local_free_bytes: Some(7),
            away_stores: vec!["lake".to_owned()],
            refused_for_room: vec![("disk".to_owned(), 2)],
            prefixes: vec![GatewayPrefix {
                bucket: "lake".to_owned(),
                prefix: "a/".to_owned(),
                hits: 3,
                ..GatewayPrefix::default()
            }],
            cluster: Some(GatewayClusterStatus::default()),
            ..GatewayStatus::default()
        };
        let requests = RequestMetrics::default();
        requests.answered("GetObject", StatusCode::OK, Duration::from_millis(3));
        requests.answered("", StatusCode::FORBIDDEN, Duration::from_secs(60));
        let text = opening_text(true, 9) + &text(&status, &requests);
        assert_eq!(rules::broken(&text), Vec::<String>::new(), "{text}");
        let declared: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        assert_eq!(declared, all_families().map(|family| family.name).collect::<Vec<_>>());
        for line in [
            "underlay_gateway_opening 1",
            "underlay_gateway_taken_over_objects_total 9",
            "underlay_gateway_journal_bytes 1099511627776",
            "underlay_gateway_oldest_pending_seconds 1.5",
            "underlay_gateway_flash_bypass 1",
            "underlay_gateway_local_free_bytes 7",
            "underlay_gateway_away_stores 1",
            "underlay_gateway_refused_for_room_total{cause=\"disk\"} 2",
            "underlay_gateway_block_hits_total{bucket=\"lake\",prefix=\"a/\"} 3",
            "underlay_gateway_requests_total{operation=\"none\",status=\"4xx\"} 1",
            "underlay_gateway_request_seconds_bucket{operation=\"GetObject\",le=\"0.0025\"} 0",
            "underlay_gateway_request_seconds_bucket{operation=\"GetObject\",le=\"0.005\"} 1",
            "underlay_gateway_request_seconds_bucket{operation=\"none\",le=\"30\"} 0",
            "underlay_gateway_request_seconds_bucket{operation=\"none\",le=\"+Inf\"} 1",
            "underlay_gateway_request_seconds_sum{operation=\"none\"} 60",
            "underlay_gateway_request_seconds_count{operation=\"none\"} 1",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} is not in {text}");
        }
    }

    #[test]
    fn failures_and_panics_are_in_metrics() {
        let failing = GatewayFailing {
            bucket: "lake".to_owned(),
            key: "a\"b\nc".to_owned(),
            failing_s: 90.0,
            cause: "denied".to_owned(),
            why: "as the test wants it".to_owned(),
        };
        let status = GatewayStatus {
            failing_objects: BTreeMap::from([("denied".to_owned(), 3)]),
            failing_long: vec![failing],
            panics: BTreeMap::from([("flusher".to_owned(), 2)]),
            ..GatewayStatus::default()
        };
        let text = text(&status, &RequestMetrics::default());
        for line in [
            "underlay_gateway_failing_objects{cause=\"denied\"} 3\n",
            "underlay_gateway_failing_object_seconds{bucket=\"lake\",key=\"a\\\"b\\nc\",cause=\"denied\"} 90\n",
            "underlay_gateway_loop_panics_total{loop=\"flusher\"} 2\n",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }
}
