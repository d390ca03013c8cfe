//! A store that runs already, with users and encryption.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use tempfile::TempDir;
use underlay_systems::child::ChildProcess;
use underlay_systems::connect_allowlist::{self, MayConnect};
use underlay_systems::java::Java;
use underlay_systems::network_namespace::NetworkNamespace;
use underlay_systems::oracle_nosql::OracleNosql;
use underlay_systems::system::{
    RunningSystem, StoragePaths, System as _, SystemError, SystemResources, SystemSettings,
};

use crate::{is_installed, operations, settings};

/// As the store itself has it: on a busy host its first Java process alone takes a minute.
const START_LIMIT: Duration = Duration::from_secs(240);
const OF_STORE: [(&str, &str); 2] = [("helpers", "127.0.0.1:5000"), ("store", "kvstore")];
/// The file of security properties that the store makes for its first user.
static LOGIN: OnceLock<PathBuf> = OnceLock::new();

fn with_login(name: &str) -> Option<String> {
    match name {
        "ORACLE_NOSQL_SECURITY" => LOGIN.get().map(|path| path.display().to_string()),
        _ => without_login(name),
    }
}

fn with_wrong_password(name: &str) -> Option<String> {
    match name {
        "ORACLE_NOSQL_USERNAME" => Some("admin".to_owned()),
        "ORACLE_NOSQL_PASSWORD" => Some("guessed".to_owned()),
        _ => with_login(name),
    }
}

fn without_login(name: &str) -> Option<String> {
    (name == "KVHOME").then(|| std::env::var(name).ok())?
}

fn connect(
    variables: fn(&str) -> Option<String>,
    scratch: &Path,
    settings: &SystemSettings,
) -> Result<Box<dyn RunningSystem>, SystemError> {
    let paths = StoragePaths { scratch: scratch.to_path_buf(), ..StoragePaths::default() };
    OracleNosql::with_variables(variables).start(&paths, &SystemResources::with_budget(0), settings)
}

/// A store of one process, whose own security is what keeps others out: but for the test it has a network of its own.
fn secured_store(network: &NetworkNamespace, directory: &Path) -> ChildProcess {
    let home = std::env::var("KVHOME").unwrap();
    let root = directory.join("root");
    std::fs::create_dir(&root).unwrap();
    let hosts = directory.join("hosts");
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    std::fs::write(&hosts, format!("127.0.0.1 localhost {}\n", name.trim())).unwrap();
    let mut command = Command::new(Java::find("test").unwrap().program);
    command
        .args(["-Xmx384m", "-XX:+UseSerialGC", "-XX:-UsePerfData"])
        .arg(format!("-Djdk.net.hosts.file={}", hosts.display()))
        .arg("-jar")
        .arg(Path::new(&home).join("lib/kvstore.jar"))
        .args(["kvlite", "-secure-config", "enable", "-host", "127.0.0.1", "-port", "5000"])
        .args(["-harange", "5010,5020", "-servicerange", "5021,5060", "-admin-web-port", "-1"])
        .args(["-partitions", "5", "-root"])
        .arg(&root)
        .current_dir(directory);
    network.enter(&mut command);
    let child =
        ChildProcess::spawn("kvlite", command, &directory.join("kvlite.log"), &SystemResources::unlimited())
            .unwrap();
    let login = root.join("security/user.security");
    let began = std::time::Instant::now();
    let is_open = || network.listeners().unwrap().len() > 4 && login.is_file();
    while !is_open() {
        assert!(child.state().is_running(), "{:?}", child.state().log_tail());
        assert!(began.elapsed() < START_LIMIT, "{:?}", child.state().log_tail());
        std::thread::sleep(Duration::from_millis(100));
    }
    LOGIN.set(login).unwrap();
    child
}

#[test]
fn secured_store_is_used_by_login_file() {
    if !is_installed() {
        return;
    }
    let directory = TempDir::new().unwrap();
    let scratch = directory.path().join("scratch");
    let network = NetworkNamespace::create("test").unwrap();
    let _store = secured_store(&network, directory.path());
    let settings = settings(&OF_STORE);
    // Our processes are in the network of the thread that starts them.
    let connected = |variables, settings: &SystemSettings| {
        network.within(|| connect(variables, &scratch, settings)).unwrap()
    };
    let began = std::time::Instant::now();
    let running = loop {
        match connected(with_login, &settings) {
            Ok(running) => break running,
            // Its parts open one after the other.
            Err(error) => assert!(began.elapsed() < START_LIMIT, "{error}"),
        }
    };
    operations::mean_what_they_mean_in_a_map(running.as_ref(), false);
    assert!(running.processes().is_empty() && running.nodes().is_none() && running.topology().is_none());
    assert_eq!(running.applied_settings()["helpers"], "127.0.0.1:5000");
    assert_eq!(running.figures().unwrap()["current_master_of_shard_1"], 1.0);
    running.stop().unwrap();

    let refused =
        |variables, settings: &SystemSettings| connected(variables, settings).err().unwrap().to_string();
    refused(without_login, &settings);
    let wrong = refused(with_wrong_password, &settings);
    assert!(wrong.contains("Authentication failed") && !wrong.contains("guessed"), "{wrong}");
    // The coordinator of a load from several hosts names the store, and a worker's login is its own.
    let unlisted = SystemSettings { may_connect: MayConnect::WithoutCredentials, ..settings.clone() };
    let error = refused(with_login, &unlisted);
    assert!(error.contains("ORACLE_NOSQL_SECURITY"), "{error}");
    let other_endpoints = connect_allowlist::parse("127.0.0.2:5000").unwrap();
    let other_settings = SystemSettings { may_connect: MayConnect::Listed(other_endpoints), ..settings };
    let error = refused(with_login, &other_settings);
    assert!(error.contains("127.0.0.1:5000"), "{error}");
}
