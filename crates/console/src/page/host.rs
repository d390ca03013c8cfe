//! Services on this host: mounts and other storages with their devices, volume servers, workers, runs.

use maud::{Markup, html};
use underlay_report::quantity::{self, count};

use super::frame::NavigationTarget;
use super::words::escaped;
use super::{PageFrame, PageTopic};
use crate::host::{LiveServiceInfo, ServedStorageInfo};
use crate::hub::ConsoleHub;

pub(crate) fn host(hub: &ConsoleHub) -> Markup {
    let content = html! {
        div.head { h1 { "This host" } p.muted { "This user's running storages and services. Those of other users are not shown." } }
        @for (id, markup) in fragments(hub) { section { div #(id) { (markup) } } }
    };
    PageFrame {
        topic: Some(&PageTopic::Host),
        place: Some(NavigationTarget::Host),
        ..PageFrame::new("This host", content)
    }
    .draw()
}

pub(super) fn fragments(hub: &ConsoleHub) -> Vec<(String, Markup)> {
    vec![
        ("host-runs".to_owned(), running(hub)),
        ("host-loads".to_owned(), super::loads::loads(hub)),
        ("host-storages".to_owned(), storages(hub)),
        ("host-services".to_owned(), services(hub)),
    ]
}

fn running(hub: &ConsoleHub) -> Markup {
    let running = hub.host.running();
    html! {
        h2 { "Runs" }
        @if running.is_empty() { p.muted { "No run is under way." } }
        ul {
            @for run in &running {
                @let name = run.directory.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                @let is_here = run.directory.parent().is_some_and(|above| hub.runs.root().canonicalize().is_ok_and(|root| root == above));
                li {
                    @if is_here { a href={ "/runs/" (escaped(&name)) } { (name) } } @else { (run.directory.display()) }
                    span.dim { " process " (run.process) }
                }
            }
        }
    }
}

fn storages(hub: &ConsoleHub) -> Markup {
    let storages = hub.host.storages();
    html! {
        h2 { "Mounts and storages" }
        @if storages.is_empty() { p.muted { "Nothing is served: " code { "underlay mount" } " or a run would." } }
        @for storage in &storages {
            h3 {
                @if let Some(pool) = &storage.pool { "Pool " (pool) }
                @else if storage.directories.is_empty() { "Not mounted" }
                @for (index, directory) in storage.directories.iter().enumerate() { @if index > 0 { ", " } (directory.display()) }
            }
            p.muted {
                (storage.command)
                @if let Some(process) = storage.process { ", process " (process) }
                @if storage.is_orphaned { ", which is gone: " code { "underlay clean" } " removes it" }
            }
            (figures(storage))
            (device_controls(hub, storage, "/host"))
        }
    }
}

/// Totals since counting began.
fn figures(storage: &ServedStorageInfo) -> Markup {
    // Each table is a landmark, with a name that no other has.
    let place = match (&storage.pool, storage.directories.first()) {
        (Some(pool), _) => format!("pool {pool}, {}", storage.id),
        (None, Some(directory)) => directory.display().to_string(),
        (None, None) => storage.id.clone(),
    };
    html! {
        div.scroll tabindex="0" role="region" aria-label={ "Devices of " (place) } { table {
            thead { tr { th.l scope="col" { "Device" } th scope="col" { "Size" } th scope="col" { "Reads" } th scope="col" { "Writes" } th scope="col" { "Read" } th scope="col" { "Written" } th scope="col" { "In flight" } th scope="col" { "Modelled" } th scope="col" { "Delivered" } } }
            tbody { @for device in &storage.devices {
                tr.bad[!device.wrong().is_empty()] {
                    th.l scope="row" { (device.name) }
                    td { (quantity::bytes(device.capacity_bytes as f64)) }
                    @match &device.glance {
                        Some(glance) => {
                            @let mean = |us: f64| if glance.answered > 0 { quantity::latency(us / glance.answered as f64) } else { "-".to_owned() };
                            td { (count(glance.totals.reads)) } td { (count(glance.totals.writes)) }
                            td { (quantity::bytes(glance.totals.read_bytes as f64)) } td { (quantity::bytes(glance.totals.write_bytes as f64)) }
                            td { (glance.depth) }
                            td { (glance.modelled_us.map_or_else(|| "-".to_owned(), mean)) } td { (mean(glance.delivered_us)) }
                        }
                        None => { td colspan="7" { "does not tell" } }
                    }
                }
            } }
        } }
    }
}

fn services(hub: &ConsoleHub) -> Markup {
    let services = hub.host.services();
    html! {
        h2 { "Volume servers, gateways, workers and mounts" }
        @if services.is_empty() { p.muted { "None of them runs." } }
        ul.controls { @for service in &services {
            li {
                span.name { (service.kind) } " " (service.what) span.dim { " process " (service.process) }
                form.inline method="post" action="/host/stop" {
                    input type="hidden" name="form" value=(hub.form_secret.reveal());
                    input type="hidden" name="process" value=(service.process);
                    button.small.danger type="submit" aria-label={ "Stop the " (service.kind) " of process " (service.process) } { "stop" }
                }
            }
        } }
        @for service in services.iter().filter(|service| !service.figures.is_empty()) { (gateway(service)) }
        @for service in services.iter().filter(|service| !service.parts.is_empty()) {
            h3 { (service.kind) " " (service.what) }
            div.scroll tabindex="0" role="region" aria-label={ "Devices and volumes of " (service.what) ", process " (service.process) } { table {
                thead { tr { th.l scope="col" { "Part" } th.l scope="col" { "Name" } th.l scope="col" { "State" } th scope="col" { "Used" } th scope="col" { "Size" } } }
                tbody { @for part in &service.parts { tr.bad[part.is_bad] {
                    td.l { (part.kind) } th.l scope="row" { (part.name) } td.l { @if part.is_bad { "! " } (part.state) }
                    td { (quantity::bytes(part.used_bytes as f64)) } td { (quantity::bytes(part.size_bytes as f64)) }
                } } }
            } }
        }
    }
}

/// The status of a gateway: what waits for its store first.
fn gateway(service: &LiveServiceInfo) -> Markup {
    let figure = |name: &str| service.figures.get(name).copied().unwrap_or(0.0);
    let (hits, misses) = (figure("cache_hits"), figure("cache_misses"));
    let is_failing = figure("oldest_pending_s") > 0.0 && figure("flush_failures") > 0.0;
    html! {
        h3 { (service.kind) " " (service.what) }
        dl.now {
            div { dt { "journal" } dd { (quantity::bytes(figure("journal_bytes"))) small { " of " (quantity::bytes(figure("journal_capacity_bytes"))) } } }
            div.bad[is_failing] { dt { "not yet stored" } dd { (quantity::number(figure("pending_objects"), 1)) small { " objects, the oldest for " (quantity::duration(figure("oldest_pending_s"))) } } }
            div { dt { "requests" } dd { (quantity::number(figure("requests"), 1)) small { ", " (quantity::number(figure("failed_requests"), 1)) " failed" } } }
            div { dt { "cache hits" } dd { @if hits + misses > 0.0 { (quantity::percent(hits / (hits + misses))) } @else { "-" } } }
        }
        details {
            summary { "All figures" }
            div.scroll tabindex="0" role="region" aria-label={ "Figures of the gateway " (service.what) ", process " (service.process) } { table {
                thead { tr { th.l scope="col" { "Figure" } th scope="col" { "Value" } } }
                tbody { @for (name, value) in &service.figures {
                    tr { th.l scope="row" { (name.replace('_', " ").trim_end_matches(" bytes")) } td { @if name.ends_with("_bytes") { (quantity::bytes(*value)) } @else { (quantity::number(*value, 1)) } } }
                } }
            } }
        }
    }
}

/// A storage's devices with what can be done to each; `address` takes it.
pub(super) fn device_controls(hub: &ConsoleHub, storage: &ServedStorageInfo, address: &str) -> Markup {
    let hidden = |device: Option<&str>| {
        html! {
            input type="hidden" name="form" value=(hub.form_secret.reveal());
            input type="hidden" name="storage" value=(storage.id);
            @if let Some(device) = device { input type="hidden" name="device" value=(device); }
        }
    };
    let is_pool = storage.pool.is_some();
    let dark = !is_pool && storage.devices.iter().any(|device| !device.powered);
    let can_cut = !is_pool && storage.devices.iter().any(|device| device.power_can_be_cut);
    html! {
        ul.controls {
            @for device in &storage.devices {
                li {
                    span.name { (device.name) } " "
                    @let wrong = device.wrong();
                    span.dim.bad[!wrong.is_empty()] {
                        @if !wrong.is_empty() { (wrong.join("; ")) } @else if device.can_fail { "no fault" }
                        @else { "a volume: faults are for the devices of its pool" }
                    }
                    @if device.can_fail { form.inline method="post" action={ (address) "/faults" } {
                        (hidden(Some(&device.name)))
                        label.small { "× " input.factor type="number" name="factor" value="10" min="1" max="1000" step="any" aria-label={ "How many times as long requests of " (device.name) " take" }; }
                        // A fault of a pool's device lasts until it is cleared.
                        @if !is_pool { label.small { "for " input.factor type="number" name="for_s" min="0.001" max="1000000" step="any" placeholder="ever" aria-label={ "For how many seconds of modelled time " (device.name) " is slow; without a number until that is cleared" }; " s" } }
                        button.small type="submit" name="action" value="slow" { "slow down" }
                        button.small.danger type="submit" name="action" value="vanish" { "unplug" }
                        // Of a pool one device may lose its power, of another storage all at once.
                        @if is_pool && device.powered && device.power_can_be_cut { button.small.danger type="submit" name="action" value="power-cut" { "cut the power" } }
                        button.small type="submit" name="action" value="return" { @if is_pool && !device.powered { "power on" } @else { "plug in" } }
                        button.small type="submit" name="action" value="clear" { "clear" }
                    } }
                }
            }
            @if can_cut || dark {
                li {
                    span.name { "All of them" } " "
                    form.inline method="post" action={ (address) "/faults" } {
                        (hidden(None))
                        @if dark { button.small type="submit" name="action" value="return" { "power on" } }
                        @else { button.small.danger type="submit" name="action" value="power-cut" { "cut the power" } }
                    }
                }
            }
        }
    }
}
