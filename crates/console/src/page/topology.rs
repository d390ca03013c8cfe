//! From client to device in one picture, with the load on the edges; what has failed is red.

use maud::{Markup, html};
use underlay_record::{
    DeviceId, LayerActivity, LiveDevice, LiveSample, NodeCondition, NodeState, StorageRecord,
};
use underlay_report::quantity;

use super::words::escaped;
use crate::host::Storage;
use crate::hub::{FollowedRun, Hub};

const BOX_WIDTH: i32 = 190;
const BOX_HEIGHT: i32 = 44;
const GAP_X: i32 = 110;
const GAP_Y: i32 = 14;
const TOP: i32 = 26;
/// Boxes of a column that are drawn; the table below has all.
const MAX_BOXES: usize = 24;

/// A thing of a column.
struct Thing {
    name: String,
    detail: String,
    is_bad: bool,
    /// Those of the next column that it leads to, and the load on the way.
    leads_to: Vec<(usize, String)>,
}

struct Column {
    title: &'static str,
    things: Vec<Thing>,
}

/// What layers of this kind are: they stand on all devices of their pool.
const VOLUME: &str = "volume";

pub(super) fn picture(hub: &Hub, run: &FollowedRun) -> Markup {
    let Some(storage) = run.watched.storage.as_ref().filter(|_| run.watched.running.is_some()) else {
        return html! { p.muted { "No system runs now." } };
    };
    let empty = LiveSample::default();
    let sample = run.watched.history.latest().map_or(&empty, |latest| &latest.sample);
    let columns = columns(run, storage, sample, &own_storages(hub, run));
    draw(&columns)
}

/// The storages that a run serves now, its pools among them.
fn own_storages(hub: &Hub, run: &FollowedRun) -> Vec<Storage> {
    let Some(process) = run.process else { return Vec::new() };
    hub.host.storages().into_iter().filter(|storage| storage.process == Some(process)).collect()
}

/// What is wrong with a device: as the storage says that has the only one of this name, else as the latest sample does. The list below
/// the picture says the same so.
fn faults_of(id: &DeviceId, live: Option<&LiveDevice>, storages: &[Storage]) -> Vec<String> {
    let mut named =
        storages.iter().flat_map(|storage| &storage.devices).filter(|device| device.name == id.name);
    match (named.next(), named.next()) {
        (Some(only), None) => {
            let dark = (!only.powered).then(|| "no power".to_owned());
            only.faults.iter().cloned().chain(dark).collect()
        }
        _ => live.map_or_else(Vec::new, |live| live.faults.clone()),
    }
}

fn columns(
    run: &FollowedRun,
    storage: &StorageRecord,
    sample: &LiveSample,
    storages: &[Storage],
) -> Vec<Column> {
    let load = sample.load.unwrap_or_default();
    let planned = run.watched.running.and_then(|position| run.run.plan.get(position as usize));
    let system = planned.map_or("system", |planned| planned.cell.system.as_str());
    let servers = planned.map_or(1, |planned| planned.cell.servers);
    let devices: Vec<DeviceId> = storage.devices.iter().map(|device| device.id.clone()).collect();
    let live = |id: &DeviceId| sample.devices.iter().find(|device| device.id == *id);
    // Layers, where there are some; else programs lead to devices directly.
    let layers: Vec<Thing> = sample
        .layers
        .iter()
        .enumerate()
        .map(|(place, layer)| Thing {
            name: layer.title(),
            detail: layer_in_words(layer),
            is_bad: is_positive(layer, "degraded"),
            leads_to: devices
                .iter()
                .enumerate()
                .filter(|(_, id)| (layer.kind == VOLUME || id.server == layer.server) && id.role.is_none())
                // Which volume a pool's device works for, nobody tells: its load is said once.
                .map(|(index, id)| match layer.kind == VOLUME && place > 0 {
                    true => (index, String::new()),
                    false => (index, edge(live(id))),
                })
                .collect(),
        })
        .collect();
    let has_layers = !layers.is_empty();
    let to_devices = |is_below: &dyn Fn(&DeviceId) -> bool| -> Vec<(usize, String)> {
        let below = devices.iter().enumerate().filter(|(_, id)| is_below(id));
        below.map(|(index, id)| (index, edge(live(id)))).collect()
    };
    let to_layers = |server: Option<u32>| -> Vec<(usize, String)> {
        let of_server = sample.layers.iter().enumerate().filter(|(_, layer)| {
            match layer.kind == VOLUME {
                // One each; nodes of one server share its volume.
                true => server.is_none_or(|server| is_volume_of(layer, server)),
                false => layer.server == server,
            }
        });
        of_server.map(|(index, _)| (index, String::new())).collect()
    };
    let mut programs: Vec<Thing> = Vec::new();
    if run.nodes.is_empty() {
        // A head may say anything, and no more are drawn.
        for server in 0..servers.min(MAX_BOXES as u32) {
            let number = (servers > 1).then_some(server + 1);
            programs.push(Thing {
                name: number.map_or_else(|| system.to_owned(), |number| format!("{system} {number}")),
                detail: "server".to_owned(),
                is_bad: false,
                leads_to: match has_layers {
                    true => to_layers(number),
                    false => to_devices(&|id| id.server == number),
                },
            });
        }
    }
    for node in &run.nodes {
        programs.push(Thing {
            name: node.name.clone(),
            detail: node_in_words(node),
            is_bad: !matches!(node.condition, NodeCondition::Serving),
            leads_to: match has_layers {
                true => to_layers(None),
                false => devices_of_node(run, node, &devices)
                    .map_or_else(|| to_devices(&|_| true), |own| to_devices(&|id| own.contains(id))),
            },
        });
    }
    let each = quantity::rate(load.throughput_per_s / programs.len().max(1) as f64);
    let client = Thing {
        name: "load generator".to_owned(),
        detail: format!(
            "{} ops/s, p99 {}",
            quantity::rate(load.throughput_per_s),
            quantity::latency(load.p99_us)
        ),
        is_bad: false,
        leads_to: (0..programs.len())
            // What is away gets nothing; how the rest is divided, nobody tells.
            .map(|index| match (programs[index].is_bad, run.nodes.is_empty()) {
                (false, true) if load.throughput_per_s > 0.0 => (index, format!("{each}/s")),
                _ => (index, String::new()),
            })
            .collect(),
    };
    let at_the_end = storage.devices.iter().map(|device| {
        let faults = faults_of(&device.id, live(&device.id), storages);
        Thing {
            name: device.id.to_string(),
            detail: match faults.as_slice() {
                [] => device.medium.clone().unwrap_or_else(|| "real storage".to_owned()),
                faults => faults.join("; "),
            },
            is_bad: !faults.is_empty(),
            leads_to: Vec::new(),
        }
    });
    let mut columns = vec![
        Column { title: "client", things: vec![client] },
        Column { title: if run.nodes.is_empty() { "servers" } else { "nodes" }, things: programs },
    ];
    if has_layers {
        let are_volumes = sample.layers.iter().all(|layer| layer.kind == VOLUME);
        columns.push(Column { title: if are_volumes { "volumes" } else { "layers" }, things: layers });
    }
    let pool = storages.iter().any(|storage| storage.pool.is_some());
    let title = if pool { "devices of the pool" } else { "devices" };
    columns.push(Column { title, things: at_the_end.collect() });
    columns
}

/// Whether a volume is the one of this server, from 1: their names count from 0.
fn is_volume_of(layer: &LayerActivity, server: u32) -> bool {
    let number = layer.name.strip_prefix("server-").and_then(|number| number.parse::<u32>().ok());
    number.and_then(|number| number.checked_add(1)) == Some(server)
}

fn is_positive(layer: &LayerActivity, figure: &str) -> bool {
    layer.figures.get(figure).is_some_and(|value| *value > 0.0)
}

/// `mirror, degraded`; of a volume also what it holds.
fn layer_in_words(layer: &LayerActivity) -> String {
    let mut words = vec![layer.kind.clone()];
    if is_positive(layer, "members_resyncing") {
        words.push("resyncing".to_owned());
    } else if is_positive(layer, "degraded") {
        words.push("degraded".to_owned());
    }
    if let Some(bytes) = layer.figures.get("used_bytes").filter(|_| layer.kind == VOLUME) {
        words.push(format!("{} used", quantity::bytes(*bytes)));
    }
    words.join(", ")
}

/// What is on the way to a device.
fn edge(device: Option<&LiveDevice>) -> String {
    let Some(device) = device else { return String::new() };
    let bytes = device.read_bytes_per_s + device.write_bytes_per_s;
    if bytes > 0.0 { format!("{}/s", quantity::bytes(bytes)) } else { String::new() }
}

fn node_in_words(node: &NodeState) -> String {
    let mut words: Vec<String> = node.role.map(|role| role.word().to_owned()).into_iter().collect();
    words.extend(node.shard.map(|shard| format!("shard {shard}")));
    words.push(node.condition.to_string());
    words.join(", ")
}

/// The devices below a node, where the system told what is where.
fn devices_of_node(run: &FollowedRun, node: &NodeState, devices: &[DeviceId]) -> Option<Vec<DeviceId>> {
    let topology = run.watched.topology.as_ref()?;
    let copies = topology.shards.iter().flat_map(|shard| &shard.copies);
    let own: Vec<DeviceId> = copies
        .filter(|copy| copy.node == node.name || copy.name == node.name)
        .filter_map(|copy| copy.device.clone())
        .filter(|device| devices.contains(device))
        .collect();
    (!own.is_empty()).then_some(own)
}

fn place(column: usize, row: usize) -> (i32, i32) {
    (8 + column as i32 * (BOX_WIDTH + GAP_X), TOP + row as i32 * (BOX_HEIGHT + GAP_Y))
}

fn draw(columns: &[Column]) -> Markup {
    let rows = columns.iter().map(|column| column.things.len().min(MAX_BOXES)).max().unwrap_or(1) as i32;
    let width = columns.len() as i32 * (BOX_WIDTH + GAP_X) - GAP_X + 16;
    let height = TOP + rows * (BOX_HEIGHT + GAP_Y);
    html! {
        div.scroll tabindex="0" role="region" aria-label="Topology" {
            svg.topology viewBox={ "0 0 " (width) " " (height) } width=(width) height=(height) role="img" aria-label="From the load generator by servers and layers to devices; the table below says the same" {
                @for (index, column) in columns.iter().enumerate() {
                    @for (row, thing) in column.things.iter().take(MAX_BOXES).enumerate() {
                        @for (target, load) in &thing.leads_to {
                            @if *target < MAX_BOXES && index + 1 < columns.len() {
                                @let bad = thing.is_bad || columns[index + 1].things.get(*target).is_some_and(|one| one.is_bad);
                                (way(place(index, row), place(index + 1, *target), load, bad))
                            }
                        }
                    }
                }
                @for (index, column) in columns.iter().enumerate() {
                    text.column x=(place(index, 0).0) y="14" { (column.title) @if column.things.len() > MAX_BOXES { ", " (MAX_BOXES) " of " (column.things.len()) } }
                    @for (row, thing) in column.things.iter().take(MAX_BOXES).enumerate() {
                        @let (x, y) = place(index, row);
                        g.thing.bad[thing.is_bad] {
                            rect x=(x) y=(y) width=(BOX_WIDTH) height=(BOX_HEIGHT) rx="6" {}
                            text x=(x + 10) y=(y + 18) { (cut(&thing.name, 26)) title { (thing.name) } }
                            text.detail x=(x + 10) y=(y + 34) { @if thing.is_bad { "! " } (cut(&thing.detail, if thing.is_bad { 26 } else { 29 })) title { (thing.detail) } }
                        }
                    }
                }
            }
        }
        details {
            summary { "As a table" }
            div.scroll tabindex="0" role="region" aria-label="Topology as a table" {
                table {
                    thead { tr { th.l scope="col" { "Part" } th.l scope="col" { "Name" } th.l scope="col" { "State" } th.l scope="col" { "Leads to" } } }
                    tbody {
                        @for (index, column) in columns.iter().enumerate() {
                            @for thing in &column.things {
                                tr.bad[thing.is_bad] {
                                    td.l { (column.title) } th.l scope="row" { (thing.name) } td.w { (thing.detail) }
                                    td.w { (targets(columns.get(index + 1), thing)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn targets(next: Option<&Column>, thing: &Thing) -> String {
    let name = |(index, load): &(usize, String)| {
        let target = next?.things.get(*index)?;
        Some(if load.is_empty() { target.name.clone() } else { format!("{} ({load})", target.name) })
    };
    let names: Vec<String> = thing.leads_to.iter().filter_map(name).collect();
    quantity::list(&names, 8)
}

fn way(from: (i32, i32), to: (i32, i32), load: &str, is_bad: bool) -> Markup {
    let (x1, y1) = (from.0 + BOX_WIDTH, from.1 + BOX_HEIGHT / 2);
    let (x2, y2) = (to.0, to.1 + BOX_HEIGHT / 2);
    let middle = (x1 + x2) / 2;
    html! {
        path.way.bad[is_bad] d={ "M" (x1) " " (y1) " C" (middle) " " (y1) " " (middle) " " (y2) " " (x2) " " (y2) } {}
        // Near its end, where ways have come apart.
        @if !load.is_empty() { text.load x=(x2 - 6) y=(y2 - 5) text-anchor="end" { (load) } }
    }
}

fn cut(text: &str, most: usize) -> String {
    match text.chars().count() > most {
        true => text.chars().take(most - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

/// What can be done to nodes and devices, each with a question before.
pub(super) fn controls(hub: &Hub, run: &FollowedRun) -> Markup {
    if run.process.is_none() {
        return html! {};
    }
    // What the volumes of a pool are here, its devices are there.
    let mut storages = own_storages(hub, run);
    if storages.iter().any(|storage| storage.pool.is_some()) {
        storages.retain(|storage| storage.devices.iter().any(|device| device.can_fail));
    }
    let address = format!("/runs/{}", escaped(&run.name));
    html! {
        @if !run.nodes.is_empty() {
            h3 { "Nodes" }
            ul.controls {
                @for node in &run.nodes {
                    li {
                        span.name { (node.name) } " " span.dim { (node_in_words(node)) }
                        form.inline method="post" action={ (address) "/nodes" } {
                            input type="hidden" name="form" value=(hub.form_secret.reveal());
                            input type="hidden" name="node" value=(node.name);
                            @match node.condition {
                                NodeCondition::Away | NodeCondition::Ended => { button.small type="submit" name="action" value="start" { "start" } }
                                _ => {
                                    button.small type="submit" name="action" value="stop" { "stop" }
                                    button.small.danger type="submit" name="action" value="kill" { "kill" }
                                }
                            }
                        }
                    }
                }
            }
        }
        @if !storages.is_empty() {
            h3 { "Devices" }
            @for storage in &storages {
                @if let Some(pool) = &storage.pool { p.small { "Pool " (pool) ": a fault stays until it is cleared; plugging in brings a device up to date." } }
                (super::host::device_controls(hub, storage, &address))
            }
            p.muted.small { "Whatever is done here is in the record of the cell." }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_the_volume_of_its_name_whatever_their_order() {
        // As a pool lists them.
        let names = ["server-0", "server-1", "server-10", "server-2", "server-x", "other"];
        let layer = |name: &str| LayerActivity { name: name.to_owned(), ..LayerActivity::default() };
        let of = |server| -> Vec<&str> {
            names.into_iter().filter(|name| is_volume_of(&layer(name), server)).collect()
        };
        assert_eq!((of(1), of(3), of(11)), (vec!["server-0"], vec!["server-2"], vec!["server-10"]));
        assert!(of(4).is_empty());
    }
}
