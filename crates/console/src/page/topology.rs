//! From client to device in one picture, with the load on the edges; what has failed is red. Below it, what can be done
//! to nodes and devices.

mod drawing;
mod guess;
mod nodes;

use maud::{Markup, html};
use underlay_record::{LiveSample, NodeCondition};

use super::words::{escaped, not_shown};
use crate::host::ServedStorageInfo;
use crate::hub::{ConsoleHub, FollowedRun};

pub(super) fn picture(hub: &ConsoleHub, run: &FollowedRun) -> Markup {
    let Some(storage) = run.watched.storage.as_ref().filter(|_| run.watched.running.is_some()) else {
        return html! { p.muted { @if run.is_running() { "No system runs now." } @else { "The run has ended, and with it its system." } } };
    };
    let empty = LiveSample::default();
    // Not that of the cell before.
    let latest = run.watched.history.latest().map(|latest| &latest.sample);
    let sample = latest.filter(|sample| sample.position == run.watched.running).unwrap_or(&empty);
    let planned = run.watched.running.and_then(|position| run.run.plan.get(position as usize));
    let guessed = run.watched.parts.is_none().then(|| guess::parts(planned, &run.nodes, storage));
    let ground = nodes::GraphSource {
        planned,
        storage,
        sample,
        parts: run.watched.parts.as_ref().or(guessed.as_ref()),
        topology: run.watched.topology.as_ref(),
        nodes: &run.nodes,
        storages: &own_storages(hub, run),
    };
    html! {
        (drawing::draw(&ground.columns()))
        (not_shown(ground.left_out(), "further part"))
    }
}

/// The storages that a run serves now, its pools among them.
fn own_storages(hub: &ConsoleHub, run: &FollowedRun) -> Vec<ServedStorageInfo> {
    let Some(process) = run.process else { return Vec::new() };
    hub.host.storages().into_iter().filter(|storage| storage.process == Some(process)).collect()
}

/// Actions on nodes and devices, each with a confirmation.
pub(super) fn controls(hub: &ConsoleHub, run: &FollowedRun) -> Markup {
    if run.process.is_none() {
        return html! {};
    }
    // Here are a pool's volumes, there its devices.
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
                        span.name { (node.name) } " " span.dim { (nodes::node_in_words(node)) }
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
                @if let Some(pool) = &storage.pool { p.small { "Pool " (pool) ": a fault stays until it is cleared; plugging in or switching on brings a device up to date." } }
                (super::host::device_controls(hub, storage, &address))
            }
            p.muted.small { "The cell's record has each of these actions." }
        }
    }
}

#[cfg(test)]
mod tests;
