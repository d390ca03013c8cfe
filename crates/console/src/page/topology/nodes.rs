//! The boxes of the picture: clients, the system's servers as far as each tells what it is, their directories, layers
//! or volumes, devices.

use std::collections::{BTreeMap, HashSet};

use underlay_record::{
    CopyRecord, DeviceId, DirectoryPart, LayerActivity, LiveDevice, LiveSample, NodeCondition, NodeRole,
    NodeState, PartsRecord, PlannedCell, RecordedWork, ServerPart, ShardRecord, StorageRecord,
    TopologyRecord,
};
use underlay_report::quantity;

use super::drawing::{GraphColumn, GraphEdge, GraphNode, NodeLine};
use crate::feed::bare;
use crate::host::ServedStorageInfo;

/// The kind of layers that stand on all devices of their pool.
const VOLUME: &str = "volume";
/// Servers that stand one above the other, as tablet servers do above DataNodes. A feed may be anybody's.
const MAX_TIERS: usize = 5;
const MAX_PARTS: usize = 400;

/// The sources of a picture.
pub(super) struct GraphSource<'a> {
    pub planned: Option<&'a PlannedCell>,
    pub storage: &'a StorageRecord,
    pub sample: &'a LiveSample,
    pub parts: Option<&'a PartsRecord>,
    pub topology: Option<&'a TopologyRecord>,
    pub nodes: &'a [NodeState],
    /// The run's present storages.
    pub storages: &'a [ServedStorageInfo],
}

/// Servers that are one box: those of a machine, or one alone.
struct MachineNode<'a> {
    name: &'a str,
    servers: Vec<&'a ServerPart>,
    tier: usize,
}

impl GraphSource<'_> {
    /// Servers and directories that are neither drawn nor in the table.
    pub(super) fn left_out(&self) -> usize {
        self.parts.map_or(0, |parts| {
            parts.servers.len().saturating_sub(MAX_PARTS) + parts.directories.len().saturating_sub(MAX_PARTS)
        })
    }

    pub(super) fn columns(&self) -> Vec<GraphColumn> {
        let empty = PartsRecord::default();
        let parts = self.parts.unwrap_or(&empty);
        let machines = machines(parts);
        let tiers = machines.iter().map(|machine| machine.tier + 1).max().unwrap_or(1);
        let directories: Vec<&DirectoryPart> = parts.directories.iter().take(MAX_PARTS).collect();
        let has_layers = !self.sample.layers.is_empty();
        // Where each column is.
        let at_directories = 1 + tiers;
        let at_layers = at_directories + usize::from(!directories.is_empty());
        let at_devices = at_layers + usize::from(has_layers);

        let mut columns =
            vec![GraphColumn { title: "client".to_owned(), things: vec![self.client(&machines)] }];
        // In its column, by its place among all machines.
        let mut places = vec![0; machines.len()];
        for tier in 0..tiers {
            let of_tier = machines.iter().enumerate().filter(|(_, machine)| machine.tier == tier);
            of_tier.enumerate().for_each(|(place, (index, _))| places[index] = place);
        }
        let users = users_of_directories(&machines, directories.len());
        for tier in 0..tiers {
            let of_tier = machines.iter().filter(|machine| machine.tier == tier);
            let thing = |machine: &MachineNode<'_>| GraphNode {
                leads_to: self.ways_of(machine, &machines, &places, &directories, &users, at_directories),
                ..self.machine(machine)
            };
            let is_node =
                |machine: &MachineNode<'_>| machine.servers.iter().any(|one| self.state_of(one).is_some());
            let title = if of_tier.clone().any(is_node) { "nodes" } else { "servers" };
            columns.push(GraphColumn { title: title.to_owned(), things: of_tier.map(thing).collect() });
        }
        if !directories.is_empty() {
            let things = self.directories(&machines, &directories, at_layers, at_devices);
            columns.push(GraphColumn { title: "directories".to_owned(), things });
        }
        if has_layers {
            let are_volumes = self.sample.layers.iter().all(|layer| layer.kind == VOLUME);
            let title = if are_volumes { "volumes" } else { "layers" };
            columns
                .push(GraphColumn { title: title.to_owned(), things: self.layers(&directories, at_devices) });
        }
        let pool = self.storages.iter().any(|storage| storage.pool.is_some());
        let title = if pool { "devices of the pool" } else { "devices" };
        columns.push(GraphColumn { title: title.to_owned(), things: self.devices() });
        columns
    }

    fn client(&self, machines: &[MachineNode<'_>]) -> GraphNode {
        let load = self.sample.load;
        let name = match self.planned.map(|planned| &planned.cell.work) {
            Some(RecordedWork::Job(_)) => "job",
            Some(RecordedWork::Benchmark(_)) => "benchmark",
            _ => "load generator",
        };
        let detail = match load {
            Some(load) => {
                format!(
                    "{} ops/s, p99 {}",
                    quantity::rate(load.throughput_per_s),
                    quantity::latency(load.p99_us)
                )
            }
            None => {
                let done = self.sample.progress.map(|done| format!("{:.0} %", done * 100.0));
                let phase = Some(self.sample.phase.clone()).filter(|phase| !phase.is_empty());
                phase.into_iter().chain(done).collect::<Vec<_>>().join(", ")
            }
        };
        let first: Vec<&MachineNode<'_>> = machines.iter().filter(|machine| machine.tier == 0).collect();
        let asked = || first.iter().enumerate().filter(|(_, machine)| !machine.is_background());
        // Stand-alone servers have equal shares; how nodes divide what comes, nobody tells.
        let is_shared = first.iter().all(|machine| machine.servers.iter().all(|one| one.server.is_some()));
        let each = match (load, asked().count()) {
            (Some(load), 1) if load.throughput_per_s > 0.0 => {
                format!("{}/s", quantity::rate(load.throughput_per_s))
            }
            (Some(load), count) if is_shared && load.throughput_per_s > 0.0 => {
                format!("{}/s", quantity::rate(load.throughput_per_s / count.max(1) as f64))
            }
            _ => String::new(),
        };
        let way = |(place, machine): (usize, &&MachineNode<'_>)| GraphEdge {
            column: 1,
            place,
            // A node that is down gets no load.
            load: if self.is_bad(machine) { String::new() } else { each.clone() },
        };
        let leads_to = asked().map(way).collect();
        GraphNode { name: name.to_owned(), detail, leads_to, ..GraphNode::default() }
    }

    fn state_of(&self, server: &ServerPart) -> Option<&NodeState> {
        self.nodes.iter().find(|node| node.name == server.name)
    }

    /// A node that is known not to serve.
    fn is_away(&self, server: &ServerPart) -> bool {
        self.state_of(server).is_some_and(|state| state.condition != NodeCondition::Serving)
    }

    fn is_bad(&self, machine: &MachineNode<'_>) -> bool {
        machine.servers.iter().any(|server| self.is_away(server))
    }

    fn server_in_words(&self, server: &ServerPart) -> String {
        match self.state_of(server) {
            Some(node) if node.role.is_some() => node_in_words(node),
            Some(node) => format!("{}, {}", server.what, node_in_words(node)),
            None => server.what.clone(),
        }
    }

    fn machine(&self, machine: &MachineNode<'_>) -> GraphNode {
        let (detail, lines) = match machine.servers.as_slice() {
            [only] if only.machine.is_none() => (self.server_in_words(only), self.copies_on(&only.name)),
            several => {
                let kind = several.first().map_or("server", |server| server.what.as_str());
                let line = |server: &&ServerPart| NodeLine {
                    text: format!("{}: {}", server.name, self.server_in_words(server)),
                    is_bad: self.is_away(server),
                };
                (quantity::plural(several.len(), kind), several.iter().map(line).collect())
            }
        };
        GraphNode {
            name: machine.name.to_owned(),
            detail,
            is_bad: self.is_bad(machine),
            lines,
            ..GraphNode::default()
        }
    }

    /// The copies of shards that a node has, as far as the system told.
    fn copies_on(&self, node: &str) -> Vec<NodeLine> {
        let shards = self.topology.into_iter().flat_map(|topology| &topology.shards);
        let of_node = shards.flat_map(|shard| shard.copies.iter().map(move |copy| (shard, copy)));
        let of_node = of_node.filter(|(_, copy)| copy.node == node);
        let line = |(shard, copy): (&ShardRecord, &CopyRecord)| {
            let role = self.role_of(shard, copy).map_or_else(String::new, |role| format!("{role} of "));
            NodeLine { text: format!("{}: {role}shard {}", copy.name, shard.shard), is_bad: false }
        };
        of_node.map(line).collect()
    }

    /// By the gauges, which follow elections; else as it was when the system had started.
    fn role_of(&self, shard: &ShardRecord, copy: &CopyRecord) -> Option<NodeRole> {
        let gauge = format!("master_of_shard_{}", shard.shard);
        let gauge_value = |(name, value): (&String, &f64)| (bare(name) == gauge).then_some(*value);
        let Some(master) = self.sample.gauges.iter().find_map(gauge_value) else { return copy.role };
        let number = copy.node.trim_start_matches(|letter: char| !letter.is_ascii_digit()).parse::<f64>();
        Some(if number == Ok(master) { NodeRole::Master } else { NodeRole::Replica })
    }

    fn ways_of(
        &self,
        machine: &MachineNode<'_>,
        machines: &[MachineNode<'_>],
        places: &[usize],
        directories: &[&DirectoryPart],
        users: &BTreeMap<usize, usize>,
        at_directories: usize,
    ) -> Vec<GraphEdge> {
        let uses: HashSet<&str> =
            machine.servers.iter().flat_map(|server| &server.uses).map(String::as_str).collect();
        let used = machines.iter().enumerate().filter(|(_, other)| {
            other.tier > machine.tier && other.servers.iter().any(|one| uses.contains(one.name.as_str()))
        });
        let below = used.map(|(index, other)| GraphEdge {
            column: 1 + other.tier,
            place: places[index],
            load: String::new(),
        });
        let directory_edges =
            kept_by(machine).into_iter().filter(|place| *place < directories.len()).map(|place| GraphEdge {
                column: at_directories,
                place,
                // A shared load is not divided among its users.
                load: match users.get(&place) {
                    Some(1) => self.load_below(directories, place),
                    _ => String::new(),
                },
            });
        below.chain(directory_edges).collect()
    }

    fn live(&self, id: &DeviceId) -> Option<&LiveDevice> {
        self.sample.devices.iter().find(|device| device.id == *id)
    }

    /// Of the devices below a directory, where it alone has them.
    fn load_below(&self, directories: &[&DirectoryPart], place: usize) -> String {
        let own = &directories[place].devices;
        let shares = |(other, directory): (usize, &&DirectoryPart)| {
            other != place && directory.devices.iter().any(|device| own.contains(device))
        };
        if directories.iter().enumerate().any(shares) {
            return String::new();
        }
        format_rate(own.iter().filter_map(|id| self.live(id)).map(bytes_per_s).sum())
    }

    fn directories(
        &self,
        machines: &[MachineNode<'_>],
        directories: &[&DirectoryPart],
        at_layers: usize,
        at_devices: usize,
    ) -> Vec<GraphNode> {
        let mut shown = HashSet::new();
        let mut things = Vec::new();
        for (place, directory) in directories.iter().enumerate() {
            let layers: Vec<GraphEdge> = (self.sample.layers.iter().enumerate())
                .filter(|(_, layer)| is_below(directory, layer))
                .map(|(place, _)| GraphEdge { column: at_layers, place, load: String::new() })
                .collect();
            let mut contents: Vec<&str> = Vec::new();
            for server in machines.iter().flat_map(|machine| &machine.servers) {
                let own = server.keeps.iter().filter(|part| part.directory as usize == place);
                contents.extend(own.map(|part| part.what.as_str()).filter(|label| *label != directory.name));
            }
            contents.sort_unstable();
            contents.dedup();
            let number = directory.server.map_or_else(String::new, |server| format!(" of server {server}"));
            things.push(GraphNode {
                name: format!("{}{number}", directory.name),
                detail: contents.join(", "),
                leads_to: match layers.is_empty() {
                    true => self.ways_to_devices(&directory.devices, at_devices, &mut shown),
                    false => layers,
                },
                ..GraphNode::default()
            });
        }
        things
    }

    /// The load of a device is said once.
    fn ways_to_devices(&self, ids: &[DeviceId], column: usize, shown: &mut HashSet<usize>) -> Vec<GraphEdge> {
        let all = self.storage.devices.iter().enumerate();
        let own = all.filter(|(_, device)| ids.contains(&device.id));
        own.map(|(place, device)| {
            let load = match (shown.insert(place), self.live(&device.id)) {
                (true, Some(live)) => format_rate(bytes_per_s(live)),
                _ => String::new(),
            };
            GraphEdge { column, place, load }
        })
        .collect()
    }

    fn layers(&self, directories: &[&DirectoryPart], at_devices: usize) -> Vec<GraphNode> {
        let mut shown = HashSet::new();
        let thing = |layer: &LayerActivity| {
            let above = directories.iter().filter(|directory| is_below(directory, layer));
            let mut ids: Vec<DeviceId> = above.flat_map(|directory| directory.devices.clone()).collect();
            // Where nobody said which directory it is below, it is below all of its server.
            if ids.is_empty() {
                let all = self.storage.devices.iter().map(|device| &device.id);
                let is_own =
                    |id: &&DeviceId| id.role.is_none() && (layer.kind == VOLUME || id.server == layer.server);
                ids = all.filter(is_own).cloned().collect();
            }
            GraphNode {
                name: layer.title(),
                detail: layer_in_words(layer),
                is_bad: is_positive(layer, "degraded"),
                leads_to: self.ways_to_devices(&ids, at_devices, &mut shown),
                ..GraphNode::default()
            }
        };
        self.sample.layers.iter().map(thing).collect()
    }

    fn devices(&self) -> Vec<GraphNode> {
        let thing = |device: &underlay_record::DeviceDescription| {
            let faults = wrong_with(&device.id, self.live(&device.id), self.storages);
            GraphNode {
                name: device.id.to_string(),
                detail: match faults.as_slice() {
                    [] => device.medium.clone().unwrap_or_else(|| "real storage".to_owned()),
                    faults => faults.join("; "),
                },
                is_bad: !faults.is_empty(),
                ..GraphNode::default()
            }
        };
        self.storage.devices.iter().map(thing).collect()
    }
}

impl MachineNode<'_> {
    fn is_background(&self) -> bool {
        self.servers.iter().all(|server| server.is_background)
    }
}

/// In the record's order.
fn machines(parts: &PartsRecord) -> Vec<MachineNode<'_>> {
    let mut machines: Vec<MachineNode<'_>> = Vec::new();
    for server in parts.servers.iter().take(MAX_PARTS) {
        let name = server.machine.as_deref().unwrap_or(&server.name);
        match machines.iter_mut().find(|machine| machine.name == name) {
            Some(machine) => machine.servers.push(server),
            None => machines.push(MachineNode { name, servers: vec![server], tier: 0 }),
        }
    }
    // Each is below those that use it. One that uses itself by others goes no further down than there are tiers.
    for _ in 1..MAX_TIERS {
        let below: Vec<(HashSet<&str>, usize)> = machines
            .iter()
            .map(|machine| {
                let uses = machine.servers.iter().copied().flat_map(|server| &server.uses);
                (uses.map(String::as_str).collect(), machine.tier)
            })
            .collect();
        for machine in &mut machines {
            let is_used = |(uses, _): &&(HashSet<&str>, usize)| {
                machine.servers.iter().any(|server| uses.contains(server.name.as_str()))
            };
            let above = below.iter().filter(is_used).map(|(_, tier)| tier + 1).max();
            machine.tier = machine.tier.max(above.unwrap_or(0)).min(MAX_TIERS - 1);
        }
    }
    // No column is empty.
    let mut tiers: Vec<usize> = machines.iter().map(|machine| machine.tier).collect();
    tiers.sort_unstable();
    tiers.dedup();
    for machine in &mut machines {
        machine.tier = tiers.iter().position(|tier| *tier == machine.tier).unwrap_or(0);
    }
    machines
}

/// Each directory once.
fn kept_by(machine: &MachineNode<'_>) -> Vec<usize> {
    let used = machine.servers.iter().flat_map(|server| &server.keeps).map(|used| used.directory as usize);
    let mut used: Vec<usize> = used.collect();
    used.sort_unstable();
    used.dedup();
    used
}

/// How many boxes keep something in a directory.
fn users_of_directories(machines: &[MachineNode<'_>], directories: usize) -> BTreeMap<usize, usize> {
    let mut users = BTreeMap::new();
    for place in machines.iter().flat_map(kept_by).filter(|place| *place < directories) {
        *users.entry(place).or_default() += 1;
    }
    users
}

/// Whether a layer, or a volume of a pool, is what a directory stands on.
fn is_below(directory: &DirectoryPart, layer: &LayerActivity) -> bool {
    let Some(volume) = &directory.volume else { return false };
    match layer.kind == VOLUME {
        true => layer.name == *volume,
        false => {
            let rest = layer.name.strip_prefix(volume.as_str());
            layer.server == directory.server && rest.is_some_and(|rest| rest.starts_with('.'))
        }
    }
}

/// A device's faults: from the storage that has the only device of this name, else from the latest sample. The list
/// below the picture says the same so.
fn wrong_with(id: &DeviceId, live: Option<&LiveDevice>, storages: &[ServedStorageInfo]) -> Vec<String> {
    let mut named =
        storages.iter().flat_map(|storage| &storage.devices).filter(|device| device.name == id.name);
    match (named.next(), named.next()) {
        (Some(only), None) => only.wrong(),
        _ => live.map_or_else(Vec::new, |live| live.faults.iter().chain(&live.state).cloned().collect()),
    }
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

fn bytes_per_s(device: &LiveDevice) -> f64 {
    device.read_bytes_per_s + device.write_bytes_per_s
}

/// The rate of data to a device.
fn format_rate(bytes_per_s: f64) -> String {
    if bytes_per_s > 0.0 { format!("{}/s", quantity::bytes(bytes_per_s)) } else { String::new() }
}

pub(super) fn node_in_words(node: &NodeState) -> String {
    let mut words: Vec<String> = node.role.map(|role| role.word().to_owned()).into_iter().collect();
    words.extend(node.only_shard().map(|shard| format!("shard {shard}")));
    words.push(node.condition.to_string());
    words.join(", ")
}
