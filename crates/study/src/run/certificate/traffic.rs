//! Whether the workload used the storage under test.

use underlay_record::{Check, CheckId, thousands_apart};

use crate::run::traffic::CellTraffic;

/// The devices must have received this share of what a fio job says it moved past the page cache. Normally they receive
/// all of it, or more where a layer copies. Requests of fio before and after the measured time come on top.
const MOVED_SHARE: f64 = 0.9;

pub(super) fn check(traffic: CellTraffic) -> Check {
    let CellTraffic {
        requests,
        moved_bytes,
        read_bytes: _,
        moved_for_roles_bytes,
        holds_data,
        may_be_cached,
        past_the_cache_bytes,
        is_shared: _,
    } = traffic;
    // A job may also use the devices of its roles.
    let moved_by_all_bytes = moved_bytes.saturating_add(moved_for_roles_bytes);
    let is_idle = traffic.is_idle();
    let bytes = |count: u64| format!("{} bytes", thousands_apart(&count.to_string()));
    let (passed, finding) = match past_the_cache_bytes.filter(|claimed| *claimed > 0) {
        Some(claimed) if (moved_by_all_bytes as f64) < claimed as f64 * MOVED_SHARE => (
            false,
            format!(
                "fio moved {} past the page cache, and the devices were asked for {}",
                bytes(claimed),
                bytes(moved_by_all_bytes)
            ),
        ),
        // Few requests are fine if that is all the job claims, but requests to roles alone are not.
        Some(claimed) if is_idle && (moved_for_roles_bytes as f64) < claimed as f64 * MOVED_SHARE => (
            true,
            format!(
                "the devices were asked for {requests} requests, {}, and fio moved {} past the page cache",
                bytes(moved_by_all_bytes),
                bytes(claimed)
            ),
        ),
        _ if is_idle && !holds_data => (
            false,
            format!(
                "nothing was stored, and the devices were asked for {requests} requests: the storage was not used"
            ),
        ),
        _ if is_idle && !may_be_cached => (
            false,
            format!(
                "the devices were asked for {requests} requests, and no cache holds the stored data: the storage was not used"
            ),
        ),
        _ if is_idle => (
            true,
            format!("the devices were asked for {requests} requests: a cache answered everything else"),
        ),
        _ => (true, format!("the devices were asked for {requests} requests, {}", bytes(moved_bytes))),
    };
    Check::new(CheckId::StorageUsed, passed, finding).with_remedy(
        "have the workload read and write below {data}, or on {device}: all other storage is this host's",
    )
}
