//! `top`: what a running gateway is doing, once a second.

use std::io::{IsTerminal as _, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use underlay_config::units::format_bytes;
use underlay_record::GatewayStatus;

use crate::config::GatewayConfig;

const TIMEOUT: Duration = Duration::from_secs(5);
const MAX_BYTES: u64 = 4 << 20;

/// Shows the status until interrupted, or once.
///
/// # Errors
/// When the gateway does not answer, or standard output is gone.
pub(crate) fn top(config: &GatewayConfig, once: bool, json: bool) -> Result<(), String> {
    let token = super::token_of(config, false)?;
    let mut former: Option<GatewayStatus> = None;
    loop {
        let text = ask(config, &token)?;
        let mut out = std::io::stdout().lock();
        let written = if json {
            writeln!(out, "{text}")
        } else {
            let status: GatewayStatus = serde_json::from_str(&text).map_err(|error| {
                format!("the gateway's answer makes no sense: {error}; is it another version?")
            })?;
            let clear = if out.is_terminal() && !once { "\x1b[H\x1b[2J" } else { "" };
            let written = write!(out, "{clear}{}", shown(&status, former.as_ref()));
            former = Some(status);
            written
        };
        if written.and_then(|()| out.flush()).is_err() || once {
            return Ok(());
        }
        drop(out);
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn ask(config: &GatewayConfig, token: &str) -> Result<String, String> {
    let address = config.admin.listen;
    let failed = |error: &dyn std::fmt::Display| {
        format!(
            "no answer from the gateway's admin port {address}: {error}\n  what to do: is it running? [admin] of its configuration says where"
        )
    };
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT).map_err(|error| failed(&error))?;
    stream.set_read_timeout(Some(TIMEOUT)).map_err(|error| failed(&error))?;
    let request = format!(
        "GET /status HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).map_err(|error| failed(&error))?;
    let mut answer = String::new();
    stream.take(MAX_BYTES).read_to_string(&mut answer).map_err(|error| failed(&error))?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| failed(&"it broke off"))?;
    match head.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        Some("401") => Err(failed(&"it has another token")),
        Some("503") => Err(format!("the gateway serves nothing yet: {}", body.trim().escape_debug())),
        other => Err(failed(&format_args!("status {}", other.unwrap_or("none")))),
    }
}

fn shown(status: &GatewayStatus, former: Option<&GatewayStatus>) -> String {
    let rate = |now: u64, before: fn(&GatewayStatus) -> u64| match former {
        // The counters begin anew when the gateway is started again between two looks.
        Some(former) => now.saturating_sub(before(former)),
        None => 0,
    };
    let full = 100.0 * status.journal_bytes as f64 / status.journal_capacity_bytes.max(1) as f64;
    let mut text = format!(
        "journal   {} of {} ({full:.0} %)\npending   {} objects, the oldest for {:.0} s\n",
        format_bytes(status.journal_bytes),
        format_bytes(status.journal_capacity_bytes),
        status.pending_objects,
        status.oldest_pending_s
    );
    if let Some((name, reason)) = &status.last_failure {
        text.push_str(&format!("          {name}: {reason}\n"));
    }
    text.push_str(&format!(
        "requests  {}/s, {} since the start, {} of them failed; {} a second sent\n",
        rate(status.requests, |former| former.requests),
        status.requests,
        status.failed_requests,
        format_bytes(rate(status.sent_bytes, |former| former.sent_bytes)),
    ));
    text.push_str(&format!(
        "store     {} uploads ({}), {} copies, {} deletes, {} failures\n",
        status.flushed_objects,
        format_bytes(status.flushed_bytes),
        status.copied_in_store,
        status.deleted_in_store,
        status.flush_failures
    ));
    if status.unfinished_uploads > 0 {
        text.push_str(&format!(
            "uploads   {} unfinished, the oldest for {:.0} s, {} of them in the journal; {} parts went to the store ({})\n",
            status.unfinished_uploads,
            status.oldest_upload_s,
            format_bytes(status.unfinished_upload_bytes),
            status.spilled_parts,
            format_bytes(status.spilled_bytes)
        ));
    }
    if status.unanswered_keys > 0 {
        text.push_str(&format!(
            "          {} keys have to wait: the store has not answered a request for them\n",
            status.unanswered_keys
        ));
    }
    for (cause, count) in &status.failing_objects {
        text.push_str(&format!("          {count} objects fail to be stored: {cause}\n"));
    }
    // Names come from clients: escaped, they can't command the terminal.
    for one in &status.failing_long {
        text.push_str(&format!(
            "          {}/{} fails for {:.0} s: {}: {}\n",
            one.bucket.escape_debug(),
            one.key.escape_debug(),
            one.failing_s,
            one.cause,
            one.why.escape_debug()
        ));
    }
    for (name, count) in &status.panics {
        text.push_str(&format!(
            "bugs      the {name} panicked {count} times: please report it with the log\n"
        ));
    }
    if status.withheld_by_store > 0 {
        text.push_str(&format!(
            "          {} reads failed since it does not return stored objects\n",
            status.withheld_by_store
        ));
    }
    for bucket in &status.away_stores {
        text.push_str(&format!(
            "          the directory of bucket {bucket} is not there, or is another one than was opened\n"
        ));
    }
    if let Some(cluster) = &status.cluster {
        text.push_str(&format!(
            "cluster   {} slots here, {} of them dirty; {} nowhere; {} requests forwarded; lease for {:.1} s\n",
            cluster.served_slots,
            cluster.dirty_slots,
            cluster.nowhere_slots,
            cluster.forwarded,
            cluster.lease_left_s
        ));
    }
    text.push_str(&format!("cache     {} in memory\n", format_bytes(status.cached_bytes)));
    if status.passes_flash_by {
        text.push_str(&format!(
            "          flash is left alone: {:.1} ms a block, {:.1} ms from the store\n",
            status.flash_block_s * 1e3,
            status.store_block_s * 1e3
        ));
    }
    for prefix in &status.prefixes {
        let asked = prefix.hits + prefix.misses;
        let hits = 100.0 * prefix.hits as f64 / asked.max(1) as f64;
        text.push_str(&format!(
            "          {}/{}: {hits:.0} % of {asked} blocks, {} fetched\n",
            prefix.bucket,
            prefix.prefix.escape_debug(),
            format_bytes(prefix.fetched_bytes)
        ));
    }
    text
}
