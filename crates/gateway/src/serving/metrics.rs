//! Figures of the gateway, in Prometheus' text format and as JSON for `top`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::StatusCode;
use underlay_record::{GatewayFailing, GatewayPrefix, GatewayStatus};
use underlay_sync::Mutex;

use crate::engine::{GatewayEngine, UnstoredName};
use crate::model::now_ms;

/// Upper bounds of the latency's buckets.
const BOUNDS_S: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 5.0, 30.0];

/// Names that fail to be stored, as `/metrics` and `/status` list them.
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
    format!(
        "# HELP underlay_gateway_opening Whether the gateway is being opened still, and serves nothing.\n\
         # TYPE underlay_gateway_opening gauge\n\
         underlay_gateway_opening {}\n\
         # HELP underlay_gateway_taken_over_objects_total Objects that stores listed while it was opened.\n\
         # TYPE underlay_gateway_taken_over_objects_total counter\n\
         underlay_gateway_taken_over_objects_total {listed}\n",
        u8::from(is_opening)
    )
}

/// Prometheus' text format, version 0.0.4.
pub(crate) fn text(status: &GatewayStatus, requests: &RequestMetrics) -> String {
    let mut out = String::new();
    // Writing to a string can't fail.
    let mut figure = |name: &str, kind: &str, help: &str, value: f64| {
        let _ = writeln!(
            out,
            "# HELP underlay_gateway_{name} {help}\n# TYPE underlay_gateway_{name} {kind}\nunderlay_gateway_{name} {value}"
        );
    };
    figure(
        "journal_bytes",
        "gauge",
        "Bytes in the journal: not in a store yet, or parts of unfinished uploads.",
        status.journal_bytes as f64,
    );
    figure(
        "journal_capacity_bytes",
        "gauge",
        "Bytes that the journal may have.",
        status.journal_capacity_bytes as f64,
    );
    figure(
        "pending_objects",
        "gauge",
        "Names whose object in the store is not up to date yet.",
        status.pending_objects as f64,
    );
    figure("oldest_pending_seconds", "gauge", "Age of the oldest of them.", status.oldest_pending_s);
    figure("cache_memory_bytes", "gauge", "Blocks in memory.", status.cached_bytes as f64);
    figure(
        "flash_bypass",
        "gauge",
        "Whether flash is slower than the store and left alone.",
        f64::from(u8::from(status.passes_flash_by)),
    );
    figure(
        "flash_bypassed_blocks_total",
        "counter",
        "Blocks that were not looked for on flash because of that.",
        status.passed_by_blocks as f64,
    );
    figure(
        "flash_block_seconds",
        "gauge",
        "Late mean of the time of a block from flash.",
        status.flash_block_s,
    );
    figure(
        "store_block_seconds",
        "gauge",
        "Late mean of the time of a block from the store.",
        status.store_block_s,
    );
    figure(
        "ahead_bytes_total",
        "counter",
        "Bytes fetched before anybody asked for them.",
        status.ahead_bytes as f64,
    );
    figure(
        "accepted_objects_total",
        "counter",
        "Objects that clients made: by a PUT, a copy, or the end of an upload.",
        status.accepted_objects as f64,
    );
    figure(
        "accepted_bytes_total",
        "counter",
        "Bytes that came into the journal.",
        status.accepted_bytes as f64,
    );
    figure("flushed_objects_total", "counter", "Objects that were uploaded.", status.flushed_objects as f64);
    figure("flushed_bytes_total", "counter", "Bytes that were uploaded.", status.flushed_bytes as f64);
    figure(
        "store_copies_total",
        "counter",
        "Objects that the store copied itself.",
        status.copied_in_store as f64,
    );
    figure(
        "store_deletes_total",
        "counter",
        "Objects that were deleted from the store.",
        status.deleted_in_store as f64,
    );
    figure(
        "flush_failures_total",
        "counter",
        "Attempts to store something that failed.",
        status.flush_failures as f64,
    );
    figure(
        "rescued_bytes_total",
        "counter",
        "Bytes fetched from the store because their object had to go.",
        status.rescued_bytes as f64,
    );
    figure(
        "expired_uploads_total",
        "counter",
        "Uploads given up since nobody went on with them.",
        status.expired_uploads as f64,
    );
    figure(
        "unfinished_uploads",
        "gauge",
        "Uploads in parts that were begun and neither completed nor aborted.",
        status.unfinished_uploads as f64,
    );
    figure(
        "unfinished_upload_journal_bytes",
        "gauge",
        "Bytes of their parts in the journal.",
        status.unfinished_upload_bytes as f64,
    );
    figure("oldest_upload_seconds", "gauge", "Age of the oldest of them.", status.oldest_upload_s);
    figure(
        "spilled_parts_total",
        "counter",
        "Parts that went from the journal to a store before their upload was over.",
        status.spilled_parts as f64,
    );
    figure("spilled_bytes_total", "counter", "Bytes of those parts.", status.spilled_bytes as f64);
    figure(
        "unanswered_keys",
        "gauge",
        "Keys for which the store may still carry out a request that it has not answered.",
        status.unanswered_keys as f64,
    );
    figure(
        "changed_by_others_total",
        "counter",
        "Objects that others changed although the prefix is exclusive.",
        status.changed_by_others as f64,
    );
    figure(
        "withheld_by_store_total",
        "counter",
        "Reads that failed since the store lacks this gateway's object, or has an older version.",
        status.withheld_by_store as f64,
    );
    figure(
        "away_stores",
        "gauge",
        "Buckets whose directory is not there, or is another one than was opened.",
        status.away_stores.len() as f64,
    );
    figure("sent_bytes_total", "counter", "Bytes of answers.", status.sent_bytes as f64);
    if let Some(free) = status.local_free_bytes {
        figure(
            "local_free_bytes",
            "gauge",
            "Bytes that are free on the disk of the local directory.",
            free as f64,
        );
    }
    if let Some(cluster) = &status.cluster {
        for (name, kind, help, value) in [
            (
                "cluster_served_slots",
                "gauge",
                "Slots that this gateway serves, of 256.",
                cluster.served_slots as f64,
            ),
            (
                "cluster_dirty_slots",
                "gauge",
                "Slots of this gateway with data that the store may lack.",
                cluster.dirty_slots as f64,
            ),
            (
                "cluster_nowhere_slots",
                "gauge",
                "Slots that no gateway serves now.",
                cluster.nowhere_slots as f64,
            ),
            ("cluster_lease_seconds", "gauge", "How long the lease lasts still.", cluster.lease_left_s),
            (
                "cluster_forwarded_total",
                "counter",
                "Requests that went to another gateway.",
                cluster.forwarded as f64,
            ),
        ] {
            figure(name, kind, help, value);
        }
    }
    let _ = writeln!(
        out,
        "# HELP underlay_gateway_refused_for_room_total Writes that answered SlowDown because room had run out, by cause.\n# TYPE underlay_gateway_refused_for_room_total counter"
    );
    for (cause, count) in &status.refused_for_room {
        let _ = writeln!(out, "underlay_gateway_refused_for_room_total{{cause=\"{cause}\"}} {count}");
    }
    let label = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let _ = writeln!(
        out,
        "# HELP underlay_gateway_failing_objects Names whose last attempt to be stored failed, by cause.\n# TYPE underlay_gateway_failing_objects gauge"
    );
    for (cause, count) in &status.failing_objects {
        let _ = writeln!(out, "underlay_gateway_failing_objects{{cause=\"{}\"}} {count}", label(cause));
    }
    let _ = writeln!(
        out,
        "# HELP underlay_gateway_failing_object_seconds How long names have failed to be stored: the first {MAX_FAILING_NAMES} that have failed for over a minute.\n# TYPE underlay_gateway_failing_object_seconds gauge"
    );
    for one in &status.failing_long {
        let _ = writeln!(
            out,
            "underlay_gateway_failing_object_seconds{{bucket=\"{}\",key=\"{}\",cause=\"{}\"}} {}",
            label(&one.bucket),
            label(&one.key),
            label(&one.cause),
            one.failing_s
        );
    }
    let _ = writeln!(
        out,
        "# HELP underlay_gateway_loop_panics_total Panics of the gateway's own loops, which are bugs.\n# TYPE underlay_gateway_loop_panics_total counter"
    );
    for (name, count) in &status.panics {
        let _ = writeln!(out, "underlay_gateway_loop_panics_total{{loop=\"{}\"}} {count}", label(name));
    }
    for (name, help, value) in [
        (
            "block_hits_total",
            "Blocks that the cache had.",
            (|prefix| prefix.hits) as fn(&GatewayPrefix) -> u64,
        ),
        ("block_misses_total", "Blocks that it had not.", |prefix| prefix.misses),
        ("block_joined_total", "Misses that waited for a request that was under way.", |prefix| {
            prefix.joined
        }),
        ("fetched_bytes_total", "Bytes that the store sent.", |prefix| prefix.fetched_bytes),
    ] {
        let _ =
            writeln!(out, "# HELP underlay_gateway_{name} {help}\n# TYPE underlay_gateway_{name} counter");
        for prefix in &status.prefixes {
            let (bucket, path) = (label(&prefix.bucket), label(&prefix.prefix));
            let _ = writeln!(
                out,
                "underlay_gateway_{name}{{bucket=\"{bucket}\",prefix=\"{path}\"}} {}",
                value(prefix)
            );
        }
    }
    let _ = writeln!(
        out,
        "# HELP underlay_gateway_requests_total Requests by operation and class of status.\n# TYPE underlay_gateway_requests_total counter"
    );
    let operations = requests.by_operation.lock().clone();
    for (operation, counts) in &operations {
        for (class, count) in counts.by_class.iter().enumerate().filter(|(_, count)| **count > 0) {
            let _ = writeln!(
                out,
                "underlay_gateway_requests_total{{operation=\"{operation}\",status=\"{class}xx\"}} {count}"
            );
        }
    }
    let _ = writeln!(
        out,
        "# HELP underlay_gateway_request_seconds Time until an answer began.\n# TYPE underlay_gateway_request_seconds histogram"
    );
    for (operation, counts) in &operations {
        for (bucket, bound) in counts.buckets.iter().zip(BOUNDS_S) {
            let _ = writeln!(
                out,
                "underlay_gateway_request_seconds_bucket{{operation=\"{operation}\",le=\"{bound}\"}} {bucket}"
            );
        }
        let _ = writeln!(
            out,
            "underlay_gateway_request_seconds_bucket{{operation=\"{operation}\",le=\"+Inf\"}} {}",
            counts.count
        );
        let _ = writeln!(
            out,
            "underlay_gateway_request_seconds_sum{{operation=\"{operation}\"}} {}",
            counts.seconds
        );
        let _ = writeln!(
            out,
            "underlay_gateway_request_seconds_count{{operation=\"{operation}\"}} {}",
            counts.count
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use underlay_record::GatewayClusterStatus;

    use super::*;

    /// Those of a cluster are shown by a cluster alone; the others are held against a running gateway's.
    #[test]
    fn page_documents_all_cluster_metrics() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/gateway-operations.md");
        let page = std::fs::read_to_string(page).unwrap();
        let status =
            GatewayStatus { cluster: Some(GatewayClusterStatus::default()), ..GatewayStatus::default() };
        let metrics = text(&status, &RequestMetrics::default());
        let names: Vec<&str> = metrics
            .lines()
            .filter_map(|line| line.strip_prefix("# HELP ")?.split(' ').next())
            .filter(|name| name.contains("_cluster_"))
            .collect();
        assert!(names.len() >= 5, "{metrics}");
        for name in &names {
            assert!(
                page.contains(&format!("| `{name}` |")),
                "docs/gateway-operations.md has no row for {name}"
            );
        }
        let rows = page.lines().filter(|line| line.starts_with("| `underlay_gateway_cluster_")).count();
        assert_eq!(rows, names.len());
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
