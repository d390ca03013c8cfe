//! The system `je-ha`: two shards of three members; some are killed under load.

use std::cell::Cell;
use std::fs::File;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tempfile::TempDir;
use underlay_record::{NodeCondition, NodeRole};
use underlay_systems::je_ha::{INSTALLED, JeHaStore, MemberState};
use underlay_systems::nodes::SystemNodes;
use underlay_systems::system::{
    RunningSystem, StoragePaths, System as _, SystemError, SystemResources, SystemSettings,
};
use underlay_systems::wire::{FrameBuffer, WireOpcode, WireReply, WireStatus, encode_request};
use underlay_workload::RunError;
use underlay_workload::client::{ClientError, FieldSelection, FieldValues, OperationOutcome};

use crate::ledger::{Ledger, Load};
use crate::{
    FIELDS, MIB, SETTLE_LIMIT, copy, kill, kills, operations, own_memory_bytes, parts, settings, whole_record,
};

const MEMBERS: u64 = 6;
const MEMBER_BYTES: u64 = 180 * MIB;
const LOAD: Load = Load { records: 1000, fields: FIELDS, operations: 2000 };
/// Until a group has another master, on a busy machine.
const FAILOVER_LIMIT: Duration = Duration::from_secs(90);
/// Enough that some are of each shard.
const WRITES_AFTER: u32 = 50;
/// How many members of each kind are killed, one after the other: 1, or what `make je-ha-kills` says.
const KILLS_VARIABLE: &str = "UNDERLAY_JE_HA_KILLS";

fn start(directory: &Path, more: &[(&str, &str)], timeout: Duration) -> JeHaStore {
    try_start(directory, more, timeout).unwrap_or_else(|error| panic!("{error}"))
}

fn try_start(directory: &Path, more: &[(&str, &str)], timeout: Duration) -> Result<JeHaStore, SystemError> {
    let storages = ["data-1", "data-2", "data-3"].map(|name| directory.join(name));
    storages.iter().for_each(|storage| std::fs::create_dir_all(storage).unwrap());
    let paths =
        StoragePaths { data: storages.into(), scratch: directory.join("scratch"), ..StoragePaths::default() };
    let own = [("nodes", "3"), ("shards", "2"), ("checkpointer_bytes_mib", "4"), ("reserved_mib", "16")];
    let settings = SystemSettings { timeout, ..settings(&[&own[..], more].concat()) };
    let store =
        INSTALLED.start_store(&paths, &SystemResources::with_budget(MEMBERS * MEMBER_BYTES), &settings)?;
    parts::hold(&INSTALLED.parts(&paths, &settings.values), &store);
    Ok(store)
}

fn masters(store: &JeHaStore) -> Vec<String> {
    store.members().into_iter().filter(|member| member.is_master).map(|member| member.name).collect()
}

/// A member of the first shard.
fn member(store: &JeHaStore, is_master: bool) -> MemberState {
    let of_first = |member: &MemberState| member.shard == 1 && member.is_master == is_master;
    store.members().into_iter().find(of_first).unwrap()
}

/// Kills it under load and starts it again; nothing that was acknowledged may be lost meanwhile. How long it took until
/// both shards took writes without it.
fn one_kill(store: &JeHaStore, ledger: &Arc<Ledger>, victim: &MemberState) -> Duration {
    let duration = Cell::new(Duration::ZERO);
    let outcome = LOAD.until_harmed(store, ledger, &|| duration.set(kill_and_write(store, victim)));
    assert!(matches!(outcome, Some(RunError::Stopped)), "{outcome:?}");
    let error = store.health().unwrap_err().to_string();
    assert!(error.contains(&victim.name) && error.contains("SIGKILL"), "{error}");
    assert_eq!(ledger.losses(store), [""; 0]);
    store.start_member(&victim.name).unwrap();
    store.health().unwrap();
    duration.get()
}

/// Kills it and writes to both shards until that succeeds.
fn kill_and_write(store: &JeHaStore, victim: &MemberState) -> Duration {
    kill(victim.process.unwrap());
    write_to_both(store, "after", &victim.name)
}

/// Writes to both shards until that succeeds, and says how long it took.
fn write_to_both(store: &JeHaStore, key_prefix: &str, absent: &str) -> Duration {
    let (mut client, began) = (store.connect().unwrap(), Instant::now());
    for number in 0..WRITES_AFTER {
        let key = format!("{key_prefix} {number}");
        // One that was in flight fails, since nobody knows whether it was done.
        while client.insert(key.as_bytes(), &whole_record(&key)) != Ok(OperationOutcome::Found) {
            assert!(began.elapsed() < FAILOVER_LIMIT, "no writes without {absent}");
        }
    }
    began.elapsed()
}

/// A replica that answers nothing (SIGSTOP) under load keeps nobody from writing, and has everything once it goes on.
fn a_replica_may_hang(store: &JeHaStore, ledger: &Arc<Ledger>, replica: &MemberState) {
    let process = Pid::from_raw(i32::try_from(replica.process.unwrap()).unwrap()).unwrap();
    let outcome = LOAD.meanwhile(store, ledger, &|| {
        kill_process(process, Signal::STOP).unwrap();
        write_to_both(store, "while one hangs", &replica.name);
        kill_process(process, Signal::CONT).unwrap();
    });
    assert!(matches!(outcome, Some(RunError::Stopped)), "{outcome:?}");
    store.health().unwrap();
    store.settle(SETTLE_LIMIT).unwrap();
    assert_eq!(store.figures().unwrap()["current_replica_lag_entries"], 0.0);
    assert_eq!(ledger.losses(store), [""; 0]);
}

/// One that is killed while it starts stays away, and both the starter and the killer get an answer.
fn a_start_is_cut_short(store: &JeHaStore) {
    let name = "shard1-node3";
    SystemNodes::kill(store, name).unwrap();
    store.health().unwrap();
    let condition =
        || SystemNodes::list(store).unwrap().into_iter().find(|node| node.name == name).unwrap().condition;
    assert_eq!(condition(), NodeCondition::Away);
    std::thread::scope(|scope| {
        let starting = scope.spawn(|| SystemNodes::start(store, name, &|| {}));
        while condition() != NodeCondition::Starting {
            assert!(!starting.is_finished());
        }
        assert!(store.start_member(name).unwrap_err().to_string().contains("is being started"));
        SystemNodes::kill(store, name).unwrap();
        let error = starting.join().unwrap().unwrap_err().to_string();
        assert!(error.contains("was sent away while it was being started"), "{error}");
    });
    assert_eq!(condition(), NodeCondition::Away);
    let runs = AtomicBool::new(false);
    SystemNodes::start(store, name, &|| runs.store(true, Ordering::SeqCst)).unwrap();
    assert!(runs.load(Ordering::SeqCst) && condition() == NodeCondition::Serving);
}

#[test]
fn members_killed_under_load_lose_nothing_acknowledged() {
    let (directory, moved) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let ledger = Arc::<Ledger>::default();
    let chosen = kills::chosen_durability();
    // Somebody else's programs have its ports on this host, which the store's own network does not know of. Where the
    // port is taken already, so much the better.
    let occupied = ["127.0.0.1:5001", "127.0.0.1:6001"].map(TcpListener::bind);
    let store = start(directory.path(), &kills::settings(&chosen), Duration::from_secs(30));
    drop(occupied);
    assert_eq!(masters(&store), ["shard1-node1", "shard2-node2"]);
    assert_eq!(store.processes().len() as u64, MEMBERS);
    assert_eq!(store.applied_settings()["members_of_shard_2"], "node 2, node 1, node 3");
    assert!(directory.path().join("data-3/je-ha/shard2-node3").is_dir());
    operations::mean_what_they_mean_in_a_map(&store, true);
    only_who_knows_the_secret_is_served(&store);
    LOAD.load(&store, &ledger);

    let number = std::env::var(KILLS_VARIABLE).map_or(1, |kills| kills.parse().unwrap());
    let changes = store.figures().unwrap()["master_changes"];
    let mut times = kills::Times::default();
    for round in 0..number {
        let master = member(&store, true);
        if round == 0 {
            a_replica_may_hang(&store, &ledger, &member(&store, false));
        }
        times.add(NodeRole::Replica, one_kill(&store, &ledger, &member(&store, false)));
        assert_eq!(member(&store, true).name, master.name, "a replica is no reason for an election");
        times.add(NodeRole::Master, one_kill(&store, &ledger, &master));
        assert_ne!(member(&store, true).name, master.name);
    }
    println!("je-ha, {chosen}: {}", times.describe());
    let figures = store.figures().unwrap();
    assert_eq!(figures["current_masters"], 2.0, "{figures:#?}");
    assert_eq!(figures["current_master_of_shard_1"], member(&store, true).node as f64, "{figures:#?}");
    // What a killed member told last is still counted.
    assert!(changes >= 2.0 && figures["master_changes"] > changes, "{changes}, {figures:#?}");
    let gauges = store.gauges().unwrap();
    assert!(gauges.keys().all(|name| figures.contains_key(name)), "{gauges:#?}");
    for member in store.members() {
        let own_bytes = own_memory_bytes(member.process.unwrap());
        assert!(own_bytes < MEMBER_BYTES, "{}: {own_bytes} bytes of its own", member.name);
    }

    // All at once, and again from copies, as if they were the images of a study.
    if chosen == "NO_SYNC" {
        // All copies at once are more than it promises to survive.
        store.settle(SETTLE_LIMIT).unwrap();
    }
    let processes = store.processes();
    // As Ctrl-C does while somebody settles: there is nobody left who could.
    store.abort();
    store.settle(SETTLE_LIMIT).unwrap_err();
    drop(store);
    assert!(processes.iter().all(|process| !Path::new(&format!("/proc/{process}")).exists()));
    copy(directory.path(), moved.path());
    let other =
        try_start(moved.path(), &[("shards", "1")], Duration::from_secs(8)).err().unwrap().to_string();
    assert!(other.contains("shards = 2") && other.contains("shards = 1"), "{other}");
    let store = start(moved.path(), &[("consistency", "none")], Duration::from_secs(8));
    assert_eq!(masters(&store), ["shard1-node1", "shard2-node2"], "regardless of the earlier masters");
    store.settle(SETTLE_LIMIT).unwrap();
    assert_eq!(store.figures().unwrap()["current_replica_lag_entries"], 0.0);
    assert_eq!(ledger.losses(&store), [""; 0]);
    let (mut client, mut values) = (store.connect().unwrap(), FieldValues::default());
    let key = format!("after {}", WRITES_AFTER - 1);
    assert_eq!(client.read(key.as_bytes(), FieldSelection::All, &mut values), Ok(OperationOutcome::Found));
    assert_eq!(values, whole_record(&key));

    // The master last: the one that is left could be elected while there are two, and would wait for replicas.
    for name in ["shard1-node2", "shard1-node1"] {
        store.stop_member(name).unwrap();
    }
    without_a_majority_a_shard_only_reads(&store, &ledger);
    let error = store.stop_member("shard1-node9").unwrap_err().to_string();
    assert!(error.contains("expected one of shard1-node1, "), "{error}");
    store.health().unwrap();
    store.start_member("shard1-node2").unwrap();
    assert!(store.start_member("shard1-node2").unwrap_err().to_string().contains("is running"));
    // On a storage that was replaced, the leader joins its group and founds no other.
    let replaced = moved.path().join("data-1/je-ha/shard1-node1");
    std::fs::remove_dir_all(&replaced).unwrap();
    std::fs::create_dir(&replaced).unwrap();
    store.start_member("shard1-node1").unwrap();
    a_start_is_cut_short(&store);
    store.settle(SETTLE_LIMIT).unwrap();
    let figures = store.figures().unwrap();
    assert_eq!((figures["current_members"], figures["current_masters"]), (6.0, 2.0), "{figures:#?}");
    assert_eq!(figures["current_replica_lag_entries"], 0.0, "{figures:#?}");
    assert_eq!(ledger.losses(&store), [""; 0]);
    let store: Box<dyn RunningSystem> = Box::new(store);
    store.stop().unwrap();
}

/// What JE says of `NO_SYNC`: a majority of the members keeps what was acknowledged, and nobody where all end at once.
#[test]
fn kill_of_all_members_without_sync_loses_last_acknowledged() {
    let left = |durability: &str| {
        let directory = TempDir::new().unwrap();
        let pairs = [&kills::settings(durability)[..], &[("shards", "1")]].concat();
        let store = start(directory.path(), &pairs, Duration::from_secs(30));
        kills::write_and_abort(&store);
        drop(store);
        let store = start(directory.path(), &pairs, Duration::from_secs(30));
        let left = kills::left(&store);
        let store: Box<dyn RunningSystem> = Box::new(store);
        store.stop().unwrap();
        left
    };
    assert_eq!(left("WRITE_NO_SYNC"), kills::WRITES);
    assert!(left("NO_SYNC") < kills::WRITES);
}

/// The other one takes writes as before.
fn without_a_majority_a_shard_only_reads(store: &JeHaStore, ledger: &Ledger) {
    let mut client = store.connect().unwrap();
    let key_in = |shard: u64| (0..).map(|number| format!("new{number}")).find(|key| shard_of(key) == shard);
    let key = key_in(2).unwrap();
    assert_eq!(client.insert(key.as_bytes(), &whole_record(&key)), Ok(OperationOutcome::Found));
    match client.insert(key_in(1).unwrap().as_bytes(), &whole_record("")) {
        // Where the member that is left was the master, it may still be waiting for replicas when the time is up.
        Err(ClientError::System(reason)) => assert!(
            reason.contains("no member of shard 1 did it") || reason.contains("may have been done or not"),
            "{reason}"
        ),
        other => panic!("{other:?}"),
    }
    assert_eq!(ledger.losses(store), [""; 0]);
}

/// FNV-1a, folded: data that were written by one version must be found by the next.
fn shard_of(key: &str) -> u64 {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = key.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
    (hash ^ (hash >> 32)) % 2 + 1
}

/// Those in its network, which only root can enter.
fn only_who_knows_the_secret_is_served(store: &JeHaStore) {
    let network = File::open(format!("/proc/{}/ns/net", store.processes()[0])).unwrap();
    let connect = || {
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        TcpStream::connect("127.0.0.1:6001").unwrap()
    };
    let mut stream = std::thread::scope(|scope| scope.spawn(connect).join()).unwrap();
    for (id, opcode) in
        [(1, WireOpcode::Read), (2, WireOpcode::Insert), (3, WireOpcode::Figures), (4, WireOpcode::Settle)]
    {
        let mut request = Vec::new();
        encode_request(&mut request, id, opcode, FieldSelection::All, 0, b"user", None).unwrap();
        stream.write_all(&request).unwrap();
        let mut frames = FrameBuffer::new();
        assert!(frames.receive(&mut stream).unwrap());
        let reply = WireReply::decode(frames.body()).unwrap();
        assert_eq!(reply.status, WireStatus::Failed, "{opcode:?}: {}", reply.text());
    }
    let mut request = Vec::new();
    encode_request(&mut request, 5, WireOpcode::Stop, FieldSelection::All, 0, b"", None).unwrap();
    stream.write_all(&request).unwrap();
    assert!(!FrameBuffer::new().receive(&mut stream).unwrap(), "the connection ends, and nothing else");
    store.health().unwrap();
}
