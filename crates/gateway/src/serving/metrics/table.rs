//! The gateway's metrics, a row each. `docs/gateway-operations.md` says what to watch.

use underlay_record::GatewayStatus;
use underlay_record::exposition::MetricFamily;

use FigureSamples::{Known, Labelled, One};

/// Takes the values of a sample's labels, in their order, and the sample's.
type SampleSink<'a> = dyn FnMut(&[&str], f64) + 'a;

/// Where a metric's samples come from.
pub(super) enum FigureSamples {
    One(fn(&GatewayStatus) -> f64),
    /// Without the metric where there is none.
    Known(fn(&GatewayStatus) -> Option<f64>),
    Labelled(fn(&GatewayStatus, &mut SampleSink<'_>)),
}

pub(super) static OPENING: MetricFamily = MetricFamily::gauge(
    "underlay_gateway_opening",
    &[],
    "Whether the gateway is being opened still, and serves nothing.",
);
pub(super) static TAKEN_OVER: MetricFamily = MetricFamily::counter(
    "underlay_gateway_taken_over_objects_total",
    &[],
    "Objects that stores listed while it was opened.",
);
pub(super) static REQUESTS: MetricFamily = MetricFamily::counter(
    "underlay_gateway_requests_total",
    &["operation", "status"],
    "Requests by operation and class of status.",
);
pub(super) static REQUEST_TIME: MetricFamily = MetricFamily::histogram(
    "underlay_gateway_request_seconds",
    &["operation"],
    "Time until an answer began.",
);

/// What a status has, between [`TAKEN_OVER`] and [`REQUESTS`].
pub(super) static FIGURES: [(MetricFamily, FigureSamples); 43] = [
    (
        MetricFamily::gauge(
            "underlay_gateway_journal_bytes",
            &[],
            "Bytes in the journal: not in a store yet, or parts of unfinished uploads.",
        ),
        One(|status| status.journal_bytes as f64),
    ),
    (
        MetricFamily::gauge(
            "underlay_gateway_journal_capacity_bytes",
            &[],
            "Bytes that the journal may have.",
        ),
        One(|status| status.journal_capacity_bytes as f64),
    ),
    (
        MetricFamily::gauge(
            "underlay_gateway_pending_objects",
            &[],
            "Names whose object in the store is not what it should be yet.",
        ),
        One(|status| status.pending_objects as f64),
    ),
    (
        MetricFamily::gauge("underlay_gateway_oldest_pending_seconds", &[], "Age of the oldest of them."),
        One(|status| status.oldest_pending_s),
    ),
    (
        MetricFamily::gauge("underlay_gateway_cache_memory_bytes", &[], "Blocks in memory."),
        One(|status| status.cached_bytes as f64),
    ),
    (
        MetricFamily::gauge(
            "underlay_gateway_flash_bypass",
            &[],
            "Whether flash is slower than the store and left alone.",
        ),
        One(|status| f64::from(u8::from(status.passes_flash_by))),
    ),
    (
        MetricFamily::counter(
            "underlay_gateway_flash_bypassed_blocks_total",
            &[],
            "Blocks that were not looked for on flash because of that.",
        ),
        One(|status| status.passed_by_blocks as f64),
    ),
    (
        MetricFamily::gauge(
            "underlay_gateway_flash_block_seconds",
            &[],
            "Late mean of the time of a block from flash.",
        ),
        One(|status| status.flash_block_s),
    ),
    (
        MetricFamily::gauge(
            "underlay_gateway_store_block_seconds",
            &[],
            "Late mean of the time of a block from the store.",
        ),
        One(|status| status.store_block_s),
    ),
    (
        MetricFamily::counter(
            "underlay_gateway_ahead_bytes_total",
            &[],
            "Bytes fetched before anybody asked for them.",
        ),
        One(|status| status.ahead_bytes as f64),
    ),
    (
        MetricFamily::counter(
            "underlay_gateway_accepted_objects_total",
            &[],
            "Objects that clients made: by a PUT, a copy, or the end of an upload.",
        ),
        One(|status| status.accepted_objects as f64),
    ),
    (
        MetricFamily::counter(
            "underlay_gateway_accepted_bytes_total",
            &[],
            "Bytes that came into the journal.",
        ),
        One(|status| status.accepted_bytes as f64),
    ),
    (
        MetricFamily::counter("underlay_gateway_flushed_objects_total", &[], "Objects that were uploaded."),
        One(|status| status.flushed_objects as f64),
    ),
    (
        MetricFamily::counter("underlay_gateway_flushed_bytes_total", &[], "Bytes that were uploaded."),
        One(|status| status.flushed_bytes as f64),
    ),
    (
        MetricFamily::counter(
            "underlay_gateway_store_copies_total",
            &[],
            "Objects that the store copied itself.",
        ),
        One(|status| status.copied_in_store as f64),
    ),
    (
        MetricFamily::counter(
            "underlay_gateway_store_deletes_total",
            &[],
            "Objects that were deleted from the store.",
        ),
        One(|status| status.deleted_in_store as f64),
    ),
    (
        MetricFamily::counter(
            "underlay_gateway_flush_failures_total",
            &[],
            "Attempts to store something that failed.",
        ),
        One(|status| status.flush_failures as f64),
    ),
    (
        MetricFamily::counter(
            "underlay_gateway_rescued_bytes_total",
            &[],
            "Bytes fetched from the store because their object had to go.",
        ),
        One(|status| status.rescued_bytes as f64),
    ),
    (
        MetricFamily::counter(
            "underlay_gateway_expired_uploads_total",
            &[],
            "Uploads given up since nobody went on with them.",
        ),
        One(|status| status.expired_uploads as f64),
    ),
    (
        MetricFamily::gauge(
            "underlay_gateway_unfinished_uploads",
            &[],
            "Uploads in parts that were begun and neither completed nor aborted.",
        ),
        One(|status| status.unfinished_uploads as f64),
    ),
    (
        MetricFamily::gauge(
            "underlay_gateway_unfinished_upload_journal_bytes",
            &[],
            "Bytes of their parts in the journal.",
        ),
        One(|status| status.unfinished_upload_bytes as f64),
    ),
    (
        MetricFamily::gauge("underlay_gateway_oldest_upload_seconds", &[], "Age of the oldest of them."),
        One(|status| status.oldest_upload_s),
    ),
    (
        MetricFamily::counter(
            "underlay_gateway_spilled_parts_total",
            &[],
            "Parts that went from the journal to a store before their upload was over.",
        ),
        One(|status| status.spilled_parts as f64),
    ),
    (
        MetricFamily::counter("underlay_gateway_spilled_bytes_total", &[], "Bytes of those parts."),
        One(|status| status.spilled_bytes as f64),
    ),
    (
        MetricFamily::gauge(
            "underlay_gateway_unanswered_keys",
            &[],
            "Keys for which the store may still carry out a request that it has not answered.",
        ),
        One(|status| status.unanswered_keys as f64),
    ),
    (
        MetricFamily::counter(
            "underlay_gateway_changed_by_others_total",
            &[],
            "Objects that others changed although the prefix is exclusive.",
        ),
        One(|status| status.changed_by_others as f64),
    ),
    (
        MetricFamily::counter(
            "underlay_gateway_withheld_by_store_total",
            &[],
            "Reads that failed since the store has not, or has an older version of, what this gateway stored there.",
        ),
        One(|status| status.withheld_by_store as f64),
    ),
    (
        MetricFamily::gauge(
            "underlay_gateway_away_stores",
            &[],
            "Buckets whose directory is not there, or is another one than was opened.",
        ),
        One(|status| status.away_stores.len() as f64),
    ),
    (
        MetricFamily::counter("underlay_gateway_sent_bytes_total", &[], "Bytes of answers."),
        One(|status| status.sent_bytes as f64),
    ),
    (
        MetricFamily::gauge(
            "underlay_gateway_local_free_bytes",
            &[],
            "Bytes that are free on the disk of the local directory.",
        ),
        Known(|status| status.local_free_bytes.map(|bytes| bytes as f64)),
    ),
    (
        MetricFamily::gauge(
            "underlay_gateway_cluster_served_slots",
            &[],
            "Slots that this gateway serves, of 256.",
        ),
        Known(|status| status.cluster.as_ref().map(|cluster| cluster.served_slots as f64)),
    ),
    (
        MetricFamily::gauge(
            "underlay_gateway_cluster_dirty_slots",
            &[],
            "Of those, with what the store may not have.",
        ),
        Known(|status| status.cluster.as_ref().map(|cluster| cluster.dirty_slots as f64)),
    ),
    (
        MetricFamily::gauge(
            "underlay_gateway_cluster_nowhere_slots",
            &[],
            "Slots that no gateway serves now.",
        ),
        Known(|status| status.cluster.as_ref().map(|cluster| cluster.nowhere_slots as f64)),
    ),
    (
        MetricFamily::gauge("underlay_gateway_cluster_lease_seconds", &[], "How long the lease lasts still."),
        Known(|status| status.cluster.as_ref().map(|cluster| cluster.lease_left_s)),
    ),
    (
        MetricFamily::counter(
            "underlay_gateway_cluster_forwarded_total",
            &[],
            "Requests that went to another gateway.",
        ),
        Known(|status| status.cluster.as_ref().map(|cluster| cluster.forwarded as f64)),
    ),
    (
        MetricFamily::counter(
            "underlay_gateway_refused_for_room_total",
            &["cause"],
            "Writes that answered SlowDown because room had run out, by cause.",
        ),
        Labelled(|status, add| {
            status.refused_for_room.iter().for_each(|(cause, count)| add(&[cause], *count as f64))
        }),
    ),
    (
        MetricFamily::gauge(
            "underlay_gateway_failing_objects",
            &["cause"],
            "Names, and parts of unfinished uploads, whose last attempt to be stored failed, by cause.",
        ),
        Labelled(|status, add| {
            status.failing_objects.iter().for_each(|(cause, count)| add(&[cause], *count as f64))
        }),
    ),
    (
        MetricFamily::gauge(
            "underlay_gateway_failing_object_seconds",
            &["bucket", "key", "cause"],
            "How long names have failed to be stored: the first 20 that have failed for over a minute.",
        ),
        Labelled(|status, add| {
            for one in &status.failing_long {
                add(&[&one.bucket, &one.key, &one.cause], one.failing_s);
            }
        }),
    ),
    (
        MetricFamily::counter(
            "underlay_gateway_loop_panics_total",
            &["loop"],
            "Panics of the gateway's own loops, which are bugs.",
        ),
        Labelled(|status, add| status.panics.iter().for_each(|(name, count)| add(&[name], *count as f64))),
    ),
    (
        MetricFamily::counter(
            "underlay_gateway_block_hits_total",
            &["bucket", "prefix"],
            "Blocks that the cache had.",
        ),
        Labelled(|status, add| {
            for prefix in &status.prefixes {
                add(&[&prefix.bucket, &prefix.prefix], prefix.hits as f64);
            }
        }),
    ),
    (
        MetricFamily::counter(
            "underlay_gateway_block_misses_total",
            &["bucket", "prefix"],
            "Blocks that it had not.",
        ),
        Labelled(|status, add| {
            for prefix in &status.prefixes {
                add(&[&prefix.bucket, &prefix.prefix], prefix.misses as f64);
            }
        }),
    ),
    (
        MetricFamily::counter(
            "underlay_gateway_block_joined_total",
            &["bucket", "prefix"],
            "Misses that waited for a request that was in flight.",
        ),
        Labelled(|status, add| {
            for prefix in &status.prefixes {
                add(&[&prefix.bucket, &prefix.prefix], prefix.joined as f64);
            }
        }),
    ),
    (
        MetricFamily::counter(
            "underlay_gateway_fetched_bytes_total",
            &["bucket", "prefix"],
            "Bytes that the store sent.",
        ),
        Labelled(|status, add| {
            for prefix in &status.prefixes {
                add(&[&prefix.bucket, &prefix.prefix], prefix.fetched_bytes as f64);
            }
        }),
    ),
];
