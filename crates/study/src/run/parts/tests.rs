use std::collections::BTreeMap;

use underlay_record::{FeedEntry, NodeCondition, NodeShard, NodeState};
use underlay_systems::system::{NodePaths, StoragePaths, System};

use super::*;
use crate::spec::{StorageSpec, Study, SystemSpec};

/// The first system of a study on its first storage configuration, with directories that are created here.
struct Stage {
    system: SystemSpec,
    /// The settings that the system gets.
    settings: BTreeMap<String, String>,
    storage: StorageSpec,
    roles: Vec<(String, StorageSpec)>,
    parts: PartsRecord,
}

impl Stage {
    fn from_study(study: &str) -> Stage {
        let study = Study::parse("x.toml", study, false).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let spec = study.systems[0].clone();
        let storage = study.storages[0].under(&spec);
        let folder = tempfile::TempDir::new().unwrap();
        let made = |name: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir(&path).unwrap();
            path
        };
        let below = storage::below_directories(&storage, 0, 1);
        let paths: Vec<PathBuf> = (0..below.len()).map(|place| made(&place.to_string())).collect();
        let nodes = storage.nodes.max(1) as usize;
        let mut directories = given_to_one(&paths, None, below, nodes);
        let of_role =
            |name: &String| study.role_storages.iter().find(|storage| storage.name == *name).unwrap();
        let roles = spec.roles.iter().map(|(role, name)| (role.clone(), of_role(name).clone()));
        let roles: Vec<(String, StorageSpec)> = roles.collect();
        let mut of_roles = BTreeMap::new();
        for (role, storage) in &roles {
            let path = made(role);
            directories.push(given_to_role(&path, role, None, storage::below_directories(storage, 0, 1)));
            of_roles.insert(role.clone(), path);
        }
        let mut chunks = paths.chunks((paths.len() / nodes).max(1)).map(<[PathBuf]>::to_vec);
        let paths = StoragePaths {
            data: chunks.next().unwrap(),
            roles: of_roles,
            further_nodes: chunks.map(|data| NodePaths { data, ..NodePaths::default() }).collect(),
            scratch: folder.path().join("scratch"),
        };
        let settings = spec.with_nodes(storage.settings_of(&spec));
        let parts = put_together(&spec.name, directories, &[system(&spec).parts(&paths, &settings)]);
        Stage { system: spec, settings, storage, roles, parts }
    }

    /// What a run writes about its parts, and its nodes when all of them serve.
    fn told(&self) -> serde_json::Value {
        let roles: Vec<(&str, &StorageSpec)> =
            self.roles.iter().map(|(role, storage)| (role.as_str(), storage)).collect();
        let ground = FeedEntry::Ground {
            storage: Box::new(storage::describe(&self.storage, &roles, 1, "block")),
            topology: None,
            parts: Some(self.parts.clone()),
            scratch: String::new(),
        };
        let nodes = system(&self.system).planned_nodes(&self.settings).into_iter();
        let state = |node: underlay_systems::nodes::PlannedNode| NodeState {
            name: node.name,
            // With several roles, the last is what most of them are: a replica.
            role: node.roles.last().copied(),
            shards: node.shards.iter().map(|&shard| NodeShard { shard, role: None }).collect(),
            condition: NodeCondition::Serving,
            process: None,
        };
        let nodes: Vec<NodeState> = nodes.map(state).collect();
        serde_json::json!({ "ground": ground, "nodes": nodes })
    }
}

fn system(spec: &SystemSpec) -> &'static dyn System {
    underlay_systems::find(&spec.kind).unwrap()
}

fn study(system: &str, storage: &str, workload: &str) -> String {
    format!("name = \"x\"\nbaseline = \"flash\"\n{system}\n{storage}\n{workload}\n[run]\nrepetitions = 1\n")
}

const TWO_DISKS: &str =
    "[storage.flash]\ndevices = [{ medium = \"nvme-9300-max\", count = 2 }]\nlayout = \"jbod\"";
const STRIPE: &str = "[storage.flash]\ndevices = [{ medium = \"nvme-9300-max\", count = 2 }]";
const REQUESTS: &str = "[workload.ycsb]\ndata = \"16 GB\"\nmixes = [\"a\"]\nthreads = 8";
const JOBS: &str = "[workload.jobs]\nkind = \"jobs\"\njobs = [\"teragen\"]\ndata = \"16 GB\"";
const RING: &str = "[system.cassandra]\nmemory = \"24 GiB\"\nnodes = 2\nreplication_factor = 2";
const HADOOP: &str = "[system.hadoop]\nmemory = \"34 GB\"\ndatanodes = 2";

/// `tserver1 > datanode1: wal on wal`, `datanode1: blocks on data 1, blocks on data 2`.
fn words(parts: &PartsRecord) -> Vec<String> {
    let server_words = |server: &ServerPart| {
        let kept_parts = server
            .keeps
            .iter()
            .map(|part| format!("{} on {}", part.what, parts.directories[part.directory as usize].name));
        let uses = match server.uses.as_slice() {
            [] => String::new(),
            uses => format!(" > {}", uses.join(" ")),
        };
        format!("{}{uses}: {}", server.name, kept_parts.collect::<Vec<_>>().join(", "))
    };
    parts.servers.iter().map(server_words).collect()
}

#[test]
fn ring_nodes_use_own_devices() {
    let apart = format!("{TWO_DISKS}\nper = \"node\"");
    let parts = Stage::from_study(&study(RING, &apart, REQUESTS)).parts;
    assert_eq!(
        words(&parts),
        [
            "node1: data on node 1: data 1, data on node 1: data 2",
            "node2: data on node 2: data 1, data on node 2: data 2"
        ]
    );
    assert_eq!(parts.directories[3].devices, [DeviceId::new("nvme-9300-max.3")]);
    // Otherwise all share the same storage.
    let parts = Stage::from_study(&study(RING, TWO_DISKS, REQUESTS)).parts;
    assert_eq!(words(&parts)[1], "node2: data on data 1, data on data 2");
}

#[test]
fn undescribed_system_is_one_process_with_all_directories() {
    let parts = Stage::from_study(&study("[system.rocksdb]\nmemory = \"24 GiB\"", STRIPE, REQUESTS)).parts;
    assert_eq!(words(&parts), ["rocksdb: data on data"]);
    assert_eq!(parts.directories[0].devices.len(), 2);
}

#[test]
fn members_on_one_machine_say_so() {
    let system = "[system.je-ha]\nmemory = \"24 GiB\"\nnodes = 3\nshards = 2";
    let parts = Stage::from_study(&study(system, TWO_DISKS, REQUESTS)).parts;
    let machines: Vec<&str> = parts.servers.iter().filter_map(|part| part.machine.as_deref()).collect();
    assert_eq!((machines.len(), machines.iter().filter(|machine| **machine == "node2").count()), (6, 2));
    assert!(parts.servers.iter().all(|part| part.keeps.len() == 1), "{parts:?}");
}

#[test]
fn storage_nodes_have_a_directory_for_each_replication_node() {
    let system = "[system.oracle-nosql]\nmemory = \"48 GiB\"\nnodes = 3\ncapacity = 1";
    let parts = Stage::from_study(&study(system, TWO_DISKS, REQUESTS)).parts;
    assert_eq!(words(&parts), ["sn1: data on data 1", "sn2: data on data 2", "sn3: data on data 1"]);
}

#[test]
fn yarn_stands_above_hdfs() {
    let parts = Stage::from_study(&study(HADOOP, TWO_DISKS, JOBS)).parts;
    assert_eq!(
        words(&parts),
        [
            "resourcemanager > nodemanager: ",
            "nodemanager > namenode datanode1 datanode2: intermediate data on data 1, intermediate data on data 2",
            "namenode: namespace on data 1",
            "datanode1: blocks on data 1, blocks on data 2",
            "datanode2: blocks on data 1, blocks on data 2"
        ]
    );
}

#[test]
fn several_stand_alone_servers_are_told_apart() {
    let directory = |server: u32| GivenDirectory {
        path: format!("/{server}").into(),
        part: DirectoryPart { name: "data".to_owned(), server: Some(server), ..DirectoryPart::default() },
    };
    let part = SystemPart {
        name: "node1".to_owned(),
        what: "node",
        keeps: vec![("data".to_owned(), "/1/x".into()), ("data".to_owned(), "/2/x".into())],
        ..SystemPart::default()
    };
    let both = put_together("x", vec![directory(1), directory(2)], &[vec![part.clone()], vec![part]]);
    let names: Vec<&str> = both.servers.iter().map(|server| server.name.as_str()).collect();
    assert_eq!(names, ["node1 1", "node1 2"]);
    // No server keeps anything together with another one.
    assert_eq!(both.servers[0].keeps, [KeptPart { what: "data".to_owned(), directory: 0 }]);
    assert_eq!(both.servers[1].keeps, [KeptPart { what: "data".to_owned(), directory: 1 }]);
}

/// The console's tests draw what systems report: `UNDERLAY_WRITE_TOPOLOGIES=1` writes it anew.
#[test]
fn recorded_topologies_are_those_of_the_systems() {
    let spark = "[system.spark]\nmemory = \"34 GB\"\nworkers = 2\ndatanodes = 2";
    let on_ceph = "[system.spark]\nmemory = \"34 GB\"\nstore = \"s3a\"\ncommitter = \"magic\"\nosds = 2";
    let accumulo = "[system.accumulo]\nmemory = \"34 GB\"\nnodes = 2\nreplication = 2\nwal = \"fast\"";
    let with_log = format!("{TWO_DISKS}\n[storage.fast]\ndevices = [{{ medium = \"ssd-sata\" }}]");
    let postgresql = include_str!("../../../../../studies/postgresql.toml").to_owned();
    let oracle = "[system.oracle-nosql]\nmemory = \"48 GiB\"\nnodes = 3\ncapacity = 1";
    let members = "[system.je-ha]\nmemory = \"24 GiB\"\nnodes = 3\nshards = 2";
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/topologies");
    for (name, study) in [
        ("cassandra", study(RING, &format!("{TWO_DISKS}\nper = \"node\""), REQUESTS)),
        ("hadoop", study(HADOOP, TWO_DISKS, JOBS)),
        ("accumulo", study(accumulo, &with_log, REQUESTS)),
        ("spark-hdfs", study(spark, TWO_DISKS, JOBS)),
        ("spark-ceph", study(on_ceph, TWO_DISKS, JOBS)),
        ("oracle-nosql", study(oracle, TWO_DISKS, REQUESTS)),
        ("je-ha", study(members, TWO_DISKS, REQUESTS)),
        ("postgresql", postgresql),
    ] {
        let actual = serde_json::to_string_pretty(&Stage::from_study(&study).told()).unwrap() + "\n";
        let file = folder.join(format!("{name}.json"));
        if std::env::var_os("UNDERLAY_WRITE_TOPOLOGIES").is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&file, &actual).unwrap();
        }
        let recorded = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(recorded == actual, "{} is not what {name} tells:\n{actual}", file.display());
    }
}
