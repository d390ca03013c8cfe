//! Oracle NoSQL Database, from the installation that `KVHOME` names. Without it only what needs none is tested, since
//! no registry has the server.

mod existing;
#[path = "../je/kills.rs"]
mod kills;
#[path = "../cassandra/ledger.rs"]
mod ledger;
#[path = "../je/operations.rs"]
mod operations;
#[path = "../parts/mod.rs"]
mod parts;
mod three_nodes;

use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use underlay_systems::oracle_nosql::{INSTALLED, OracleNosql};
use underlay_systems::system::{
    RunningSystem, StoragePaths, System as _, SystemError, SystemResources, SystemSettings,
};
use underlay_workload::client::{FieldSelection, FieldValues, OperationOutcome};

pub const MIB: u64 = 1 << 20;
pub const FIELDS: u32 = 3;
pub const SETTLE_LIMIT: Duration = Duration::from_secs(120);

/// Whether there is an installation. Says so where there is none: such a test shows nothing.
pub fn is_installed() -> bool {
    let installed = std::env::var_os("KVHOME").is_some_and(|home| !home.is_empty());
    if !installed {
        println!("not tested: KVHOME names no installation of Oracle NoSQL Database");
    }
    installed
}

pub fn settings(pairs: &[(&str, &str)]) -> SystemSettings {
    SystemSettings {
        values: pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect(),
        fields: FIELDS,
        field_bytes: 200,
        timeout: Duration::from_secs(30),
        ..SystemSettings::default()
    }
}

/// A store on as many directories as three.
pub fn try_start(
    directory: &Path,
    pairs: &[(&str, &str)],
    budget_bytes: u64,
) -> Result<Box<dyn RunningSystem>, SystemError> {
    let data = ["data-1", "data-2", "data-3"].map(|name| directory.join(name));
    data.iter().for_each(|storage| std::fs::create_dir_all(storage).unwrap());
    let paths =
        StoragePaths { data: data.into(), scratch: directory.join("scratch"), ..StoragePaths::default() };
    let settings = settings(pairs);
    let running = INSTALLED.start(&paths, &SystemResources::with_budget(budget_bytes), &settings)?;
    parts::hold(&INSTALLED.parts(&paths, &settings.values), running.as_ref());
    Ok(running)
}

pub fn whole_record(text: &str) -> FieldValues {
    let mut values = FieldValues::default();
    (0..FIELDS).for_each(|field| values.push(field, format!("{text}{field}").as_bytes()));
    values
}

#[test]
fn without_an_installation_it_says_how_to_get_one() {
    let system = OracleNosql::with_variables(|_| None);
    let directory = TempDir::new().unwrap();
    let data = vec![directory.path().join("data")];
    std::fs::create_dir(&data[0]).unwrap();
    let paths = StoragePaths { data, scratch: directory.path().join("scratch"), ..StoragePaths::default() };
    let of_start =
        system.start(&paths, &SystemResources::with_budget(1024 * MIB), &settings(&[])).err().unwrap();
    let external = settings(&[("helpers", "127.0.0.1:1"), ("store", "none")]);
    let of_existing = system.start(&paths, &SystemResources::with_budget(0), &external).err().unwrap();
    for error in [of_start, of_existing, system.prepare(&|_| {}).unwrap_err()] {
        assert!(matches!(error, SystemError::Missing { .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains("KVHOME is not set") && text.contains("download Oracle NoSQL Database"),
            "{text}"
        );
    }
    assert!(!system.versions().contains_key("oracle-nosql"));
}

/// What the documentation of JE says of `NO_SYNC`: writes that were acknowledged wait in memory, and end with the
/// processes.
#[test]
fn kill_of_all_copies_without_sync_loses_last_acknowledged() {
    if !is_installed() {
        return;
    }
    let left = |durability: &str| {
        let directory = TempDir::new().unwrap();
        let pairs = [("partitions", "5"), ("durability", durability)];
        let start = || try_start(directory.path(), &pairs, 700 * MIB);
        let store = start().unwrap_or_else(|error| panic!("{error}"));
        kills::write_and_abort(store.as_ref());
        drop(store);
        let store = start().unwrap_or_else(|error| panic!("{error}"));
        let left = kills::left(store.as_ref());
        store.stop().unwrap();
        left
    };
    assert_eq!(left("WRITE_NO_SYNC"), kills::WRITES);
    assert!(left("NO_SYNC") < kills::WRITES);
}

#[test]
fn unresponsive_store_is_named() {
    if !is_installed() {
        return;
    }
    let directory = TempDir::new().unwrap();
    let paths = StoragePaths { scratch: directory.path().join("scratch"), ..StoragePaths::default() };
    let unanswered = settings(&[("helpers", "127.0.0.1:9"), ("store", "none")]);
    let error =
        INSTALLED.start(&paths, &SystemResources::with_budget(0), &unanswered).err().unwrap().to_string();
    assert!(error.contains("127.0.0.1:9"), "{error}");
}

#[test]
fn fields_are_minor_keys_on_single_node_store() {
    if !is_installed() {
        return;
    }
    let directory = TempDir::new().unwrap();
    let pairs = [("fields", "minor"), ("partitions", "5")];
    // Its ports are in a network namespace of its own: their use on this host does not matter. This one may be taken.
    let _taken = std::net::TcpListener::bind("127.0.0.1:5000");
    let store = try_start(directory.path(), &pairs, 700 * MIB).unwrap_or_else(|error| panic!("{error}"));
    operations::mean_what_they_mean_in_a_map(store.as_ref(), false);
    let mut client = store.connect().unwrap();
    client.insert(b"user", &whole_record("x")).unwrap();
    let refused = client.scan(b"user", 1, FieldSelection::All).unwrap_err().to_string();
    assert!(refused.contains("no scan in the order of keys"), "{refused}");
    assert!(store.nodes().is_none(), "with a single copy there is nobody to take over");
    let processes = store.processes();
    assert_eq!(processes.len(), 3, "an agent, an administration and a replication node");
    store.stop().unwrap();
    assert!(processes.iter().all(|process| !Path::new(&format!("/proc/{process}")).exists()));
    let other = [("fields", "value"), ("partitions", "5")];
    let refused = try_start(directory.path(), &other, 700 * MIB).err().unwrap().to_string();
    assert!(refused.contains("fields = minor") && refused.contains("fields = value"), "{refused}");
    // What was loaded is there, with more memory and other parameters.
    let more = [&pairs[..], &[("log_file_mib", "20")]].concat();
    let store = try_start(directory.path(), &more, 800 * MIB).unwrap_or_else(|error| panic!("{error}"));
    let mut values = FieldValues::default();
    let found = store.connect().unwrap().read(b"user", FieldSelection::All, &mut values);
    assert_eq!((found, values), (Ok(OperationOutcome::Found), whole_record("x")));
    store.stop().unwrap();
}
