//! Pictures of topologies as runs tell them. The files have the systems' own parts: `study/src/run/parts/tests.rs`
//! holds them to it.

use std::path::Path;

use serde::Deserialize;
use underlay_record::{
    CopyRecord, DeviceId, FeedEntry, LayerActivity, LiveDevice, LiveLoad, LiveSample, NodeCondition,
    NodeRole, NodeState, PartsRecord, ServerPart, ShardRecord, StorageRecord, TopologyRecord,
};

use super::drawing::{GraphColumn, GraphNode, draw};
use super::nodes::GraphSource;
use super::*;
use crate::host::StorageDevice;

/// A file of `study/tests/topologies`.
#[derive(Deserialize)]
struct Told {
    ground: FeedEntry,
    nodes: Vec<NodeState>,
}

/// A run at a moment.
struct Scene {
    storage: StorageRecord,
    parts: Option<PartsRecord>,
    topology: Option<TopologyRecord>,
    nodes: Vec<NodeState>,
    sample: LiveSample,
    storages: Vec<ServedStorageInfo>,
}

impl Scene {
    fn new(system: &str) -> Scene {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../study/tests/topologies");
        let text = std::fs::read_to_string(folder.join(format!("{system}.json"))).unwrap();
        let Told { ground, nodes } = serde_json::from_str(&text).unwrap();
        let FeedEntry::Ground { storage, parts, topology, .. } = ground else { panic!("{text}") };
        let load = LiveLoad { throughput_per_s: 1000.0, ..LiveLoad::default() };
        let sample = LiveSample { load: Some(load), ..LiveSample::default() };
        Scene { storage: *storage, parts, topology, nodes, sample, storages: Vec::new() }
    }

    fn busy(mut self, device: &str) -> Scene {
        let id = self.storage.devices.iter().map(|one| &one.id).find(|id| id.name == device).unwrap().clone();
        self.sample.devices.push(LiveDevice { id, read_bytes_per_s: 5e6, ..LiveDevice::default() });
        self
    }

    fn columns(&self) -> Vec<GraphColumn> {
        let guessed = self.parts.is_none().then(|| guess::parts(None, &self.nodes, &self.storage));
        let ground = GraphSource {
            planned: None,
            storage: &self.storage,
            sample: &self.sample,
            parts: self.parts.as_ref().or(guessed.as_ref()),
            topology: self.topology.as_ref(),
            nodes: &self.nodes,
            storages: &self.storages,
        };
        ground.columns()
    }
}

fn titles(columns: &[GraphColumn]) -> Vec<&str> {
    columns.iter().map(|column| column.title.as_str()).collect()
}

fn names(column: &GraphColumn) -> Vec<&str> {
    column.things.iter().map(|thing| thing.name.as_str()).collect()
}

fn thing<'a>(columns: &'a [GraphColumn], name: &str) -> &'a GraphNode {
    let mut all = columns.iter().flat_map(|column| &column.things);
    all.find(|thing| thing.name == name).unwrap_or_else(|| panic!("{name} is none of {columns:?}"))
}

/// The names of what a thing leads to.
fn below<'a>(columns: &'a [GraphColumn], name: &str) -> Vec<&'a str> {
    let ways = thing(columns, name).leads_to.iter();
    ways.map(|way| columns[way.column].things[way.place].name.as_str()).collect()
}

#[test]
fn ring_has_nodes_with_own_directories_and_devices() {
    let mut scene = Scene::new("cassandra").busy("nvme-9300-max.3");
    scene.nodes[0].condition = NodeCondition::Away;
    let columns = scene.columns();
    assert_eq!(titles(&columns), ["client", "nodes", "directories", "devices"]);
    assert_eq!(below(&columns, "load generator"), ["node1", "node2"]);
    assert_eq!(below(&columns, "node2"), ["node 2: data 1", "node 2: data 2"]);
    assert_eq!(below(&columns, "node 2: data 2"), ["nvme-9300-max.3"]);
    // One that is away is red, and the load is on the way from the other one to its device.
    assert!(thing(&columns, "node1").is_bad && !thing(&columns, "node2").is_bad);
    assert_eq!(thing(&columns, "node1").detail, "peer, away");
    let loads: Vec<&str> = thing(&columns, "node2").leads_to.iter().map(|way| way.load.as_str()).collect();
    assert_eq!(loads, ["", "5.00 MB/s"]);
    assert_eq!(thing(&columns, "node 2: data 2").leads_to[0].load, "5.00 MB/s");
}

#[test]
fn hadoop_is_yarn_above_hdfs_with_datanode_directories() {
    let mut scene = Scene::new("hadoop");
    scene.nodes[1].condition = NodeCondition::Ended;
    let columns = scene.columns();
    assert_eq!(titles(&columns), ["client", "servers", "servers", "nodes", "directories", "devices"]);
    assert_eq!(below(&columns, "load generator"), ["resourcemanager"]);
    assert_eq!(below(&columns, "resourcemanager"), ["nodemanager"]);
    let of_tasks = ["namenode", "datanode1", "datanode2", "data 1", "data 2"];
    assert_eq!(below(&columns, "nodemanager"), of_tasks);
    assert_eq!(below(&columns, "namenode"), ["data 1"]);
    assert_eq!(below(&columns, "datanode2"), ["data 1", "data 2"]);
    assert_eq!(thing(&columns, "namenode").detail, "NameNode");
    let ended = thing(&columns, "datanode2");
    assert_eq!((ended.detail.as_str(), ended.is_bad), ("datanode, has ended", true));
    assert_eq!(thing(&columns, "data 1").detail, "blocks, intermediate data, namespace");
}

#[test]
fn accumulo_is_tablet_servers_above_hdfs_with_separate_log() {
    let columns = Scene::new("accumulo").columns();
    assert_eq!(titles(&columns), ["client", "nodes", "nodes", "directories", "devices"]);
    // Manager and garbage collector are there, and no client has to do with them.
    assert_eq!(names(&columns[1]), ["tserver1", "tserver2", "zookeeper", "manager", "gc"]);
    assert_eq!(below(&columns, "load generator"), ["tserver1", "tserver2", "zookeeper"]);
    assert_eq!(below(&columns, "tserver1"), ["namenode", "datanode1", "datanode2", "wal"]);
    assert_eq!(thing(&columns, "tserver1").detail, "tablet server, serving");
    assert_eq!(below(&columns, "wal"), ["wal: ssd-sata.0"]);
}

#[test]
fn spark_is_workers_above_the_store_that_it_has() {
    let columns = Scene::new("spark-hdfs").columns();
    assert_eq!(below(&columns, "load generator"), ["driver"]);
    assert_eq!(below(&columns, "driver"), ["worker1", "worker2"]);
    let of_worker = ["namenode", "datanode1", "datanode2", "data 1", "data 2"];
    assert_eq!(below(&columns, "worker2"), of_worker);
    assert_eq!(thing(&columns, "worker1").detail, "worker, serving");
    let columns = Scene::new("spark-ceph").columns();
    assert_eq!(below(&columns, "worker1")[0], "gateway");
    assert_eq!(below(&columns, "gateway"), ["osd0", "osd1"]);
    assert_eq!((below(&columns, "osd0"), below(&columns, "osd1")), (vec!["data 1"], vec!["data 2"]));
}

#[test]
fn storage_node_contains_replication_nodes_and_follows_elections() {
    let mut scene = Scene::new("oracle-nosql");
    let copy = |number: u32, role| CopyRecord {
        name: format!("rg1-rn{number}"),
        node: format!("sn{number}"),
        role: Some(role),
        directory: Some(number - 1),
        device: None,
    };
    let copies = vec![copy(1, NodeRole::Master), copy(2, NodeRole::Replica), copy(3, NodeRole::Replica)];
    let shard = ShardRecord { shard: 1, partitions: Some(30), copies };
    scene.topology = Some(TopologyRecord { shards: vec![shard], findings: Vec::new() });
    let lines = |scene: &Scene| -> Vec<String> {
        let columns = scene.columns();
        let nodes = ["sn1", "sn2", "sn3"].map(|name| thing(&columns, name).lines[0].text.clone());
        nodes.into()
    };
    assert_eq!(
        lines(&scene),
        ["rg1-rn1: master of shard 1", "rg1-rn2: replica of shard 1", "rg1-rn3: replica of shard 1"]
    );
    scene.sample.gauges = [("current_master_of_shard_1".to_owned(), 2.0)].into();
    assert_eq!(lines(&scene)[..2], ["rg1-rn1: replica of shard 1", "rg1-rn2: master of shard 1"]);
    assert_eq!(below(&scene.columns(), "sn3"), ["data 1"]);
}

#[test]
fn members_are_in_the_box_of_their_machine() {
    let mut scene = Scene::new("je-ha");
    let second = scene.nodes.iter().position(|node| node.name == "shard2-node1").unwrap();
    scene.nodes[second].condition = NodeCondition::Starting;
    let columns = scene.columns();
    assert_eq!(names(&columns[1]), ["node1", "node2", "node3"]);
    let first = thing(&columns, "node1");
    assert_eq!((first.detail.as_str(), first.is_bad), ("2 members", true));
    let lines: Vec<(&str, bool)> = first.lines.iter().map(|line| (line.text.as_str(), line.is_bad)).collect();
    let expected = [
        ("shard1-node1: replica, shard 1, serving", false),
        ("shard2-node1: replica, shard 2, starting", true),
    ];
    assert_eq!(lines, expected);
    let drawn = draw(&columns).into_string();
    assert!(drawn.contains("! shard2-node1: replica"), "{drawn}");
}

#[test]
fn command_program_is_a_single_server() {
    let columns = Scene::new("postgresql").columns();
    assert_eq!(titles(&columns), ["client", "servers", "directories", "devices"]);
    let [server] = names(&columns[1])[..] else { panic!("{columns:?}") };
    assert!(server.starts_with("postgresql"), "{server}");
    assert_eq!(thing(&columns, "load generator").leads_to[0].load, "1,000/s");
    assert!(!below(&columns, server).is_empty());
    assert!(columns[2].things.iter().all(|directory| !directory.leads_to.is_empty()), "{columns:?}");
}

#[test]
fn feed_without_parts_draws_nodes_on_all_devices() {
    let mut scene = Scene::new("cassandra");
    scene.parts = None;
    let columns = scene.columns();
    assert_eq!(titles(&columns), ["client", "nodes", "directories", "devices"]);
    assert_eq!((names(&columns[1]), below(&columns, "data").len()), (vec!["node1", "node2"], 4));
}

#[test]
fn directories_stand_on_own_layers_and_volumes() {
    let mut scene = Scene::new("cassandra");
    let volume = |parts: &PartsRecord, place: usize| parts.directories[place].volume.clone().unwrap();
    let own = volume(scene.parts.as_ref().unwrap(), 1);
    let layer = LayerActivity {
        name: format!("{own}.cache.0"),
        kind: "cache".to_owned(),
        ..LayerActivity::default()
    };
    scene.sample.layers = vec![layer.clone()];
    let columns = scene.columns();
    assert_eq!(below(&columns, "node 1: data 2"), [layer.name.as_str()]);
    assert_eq!(below(&columns, &layer.name), ["nvme-9300-max.1"]);
    // Without a layer, a directory leads past them to its device.
    assert_eq!(below(&columns, "node 1: data 1"), ["nvme-9300-max.0"]);
    // Of a pool, by the volume's whole name, regardless of their order: `server-1` is not `server-10`.
    let parts = scene.parts.as_mut().unwrap();
    for (number, directory) in parts.directories.iter_mut().enumerate() {
        directory.volume = Some(format!("server-{number}"));
        directory.devices = scene.storage.devices.iter().map(|device| device.id.clone()).collect();
    }
    let names = ["server-0", "server-1", "server-10", "server-2", "server-3"];
    let volume = |name: &str| LayerActivity { name: name.into(), kind: "volume".into(), ..layer.clone() };
    scene.sample.layers = names.map(volume).into();
    let columns = scene.columns();
    assert_eq!(below(&columns, "node 1: data 2"), ["server-1"]);
    assert_eq!(below(&columns, "node 2: data 1"), ["server-2"]);
    assert_eq!(below(&columns, "server-2").len(), 4);
    assert!(titles(&columns).contains(&"volumes"));
}

#[test]
fn faulty_device_is_red_for_any_cause() {
    let mut scene = Scene::new("cassandra");
    let name = "nvme-9300-max.0";
    let device = |powered, faults: &[&str], state: Option<&str>| ServedStorageInfo {
        devices: vec![StorageDevice {
            name: name.to_owned(),
            powered,
            faults: faults.iter().map(|fault| (*fault).to_owned()).collect(),
            state: state.map(str::to_owned),
            ..StorageDevice::default()
        }],
        ..ServedStorageInfo::default()
    };
    let mut detail = |storage| {
        scene.storages = vec![storage];
        let columns = scene.columns();
        let found = thing(&columns, name);
        (found.detail.clone(), found.is_bad)
    };
    assert_eq!(detail(device(true, &[], None)), ("nvme-9300-max".to_owned(), false));
    assert_eq!(detail(device(true, &["slow"], Some("out of use"))), ("slow; out of use".to_owned(), true));
    assert_eq!(detail(device(false, &[], None)), ("no power".to_owned(), true));
}

#[test]
fn foreign_feed_breaks_no_topology() {
    let mut scene = Scene::new("hadoop");
    let parts = scene.parts.as_mut().unwrap();
    // Each uses the next one, and the last one the first; what is kept is nowhere.
    let count = parts.servers.len();
    for number in 0..count {
        parts.servers[number].uses = vec![parts.servers[(number + 1) % count].name.clone()];
        parts.servers[number].keeps.iter_mut().for_each(|kept_part| kept_part.directory = u32::MAX);
    }
    let more = (0..5_000).map(|number| ServerPart { name: format!("<b>{number}"), ..ServerPart::default() });
    parts.servers.extend(more);
    parts.directories[0].devices = vec![DeviceId::new("nowhere")];
    let drawn = draw(&scene.columns()).into_string();
    assert!(drawn.contains("&lt;b&gt;") && !drawn.contains("<b>"));
    assert!(drawn.matches("<rect").count() < 200, "{}", drawn.matches("<rect").count());
}

#[test]
fn parts_beyond_the_drawn_are_counted() {
    let server = |number: usize| ServerPart { name: format!("server-{number}"), ..ServerPart::default() };
    let mut scene = Scene::new("cassandra");
    for (count, left_out) in [(2, 0), (403, 3)] {
        scene.parts =
            Some(PartsRecord { servers: (0..count).map(server).collect(), ..PartsRecord::default() });
        let ground = GraphSource {
            planned: None,
            storage: &scene.storage,
            sample: &scene.sample,
            parts: scene.parts.as_ref(),
            topology: None,
            nodes: &scene.nodes,
            storages: &scene.storages,
        };
        assert_eq!(ground.left_out(), left_out, "{count}");
    }
}
