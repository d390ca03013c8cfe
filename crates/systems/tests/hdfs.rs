//! The real HDFS, started from its Maven artifacts. What it needs must be there: `scripts/install-packages test`.

use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use underlay_record::NodeCondition;
use underlay_systems::hdfs::{Hdfs, HdfsPlan, ServerHeaps, StorageType, VolumeChoosing};
use underlay_systems::network_namespace::NetworkNamespace;
use underlay_systems::nodes::SystemNodes;
use underlay_systems::system::{SystemError, SystemResources};

const BLOCK_BYTES: u64 = 128 << 10;
const DATANODES: u32 = 3;
const DISKS: u64 = 4;
/// The others, where files go that ask for nothing special, come first.
const FLASH: u64 = 3;
const BLOCKS_IN_EACH: u64 = 2;
/// So many that every directory of every DataNode gets as many as any other.
const BLOCKS: u64 = BLOCKS_IN_EACH * FLASH;
const LIMIT: Duration = Duration::from_secs(120);
/// The servers look at their own figures once a second.
const FIGURES_PERIOD: Duration = Duration::from_millis(1_500);

fn plan(directory: &Path) -> HdfsPlan {
    let disk = |number: u64| {
        let disk = directory.join(format!("disk {number}"));
        std::fs::create_dir_all(&disk).unwrap();
        (disk, if number == FLASH { StorageType::Ssd } else { StorageType::Disk })
    };
    let disks: Vec<_> = (0..DISKS).map(disk).collect();
    HdfsPlan {
        system: "hdfs-test",
        name_directory: disks[0].0.join("hdfs/namenode"),
        datanodes: HdfsPlan::on_each("hdfs-test", &disks, DATANODES).unwrap(),
        replication: DATANODES,
        block_bytes: BLOCK_BYTES,
        volume_choosing: VolumeChoosing::RoundRobin,
        sync_on_close: false,
        short_circuit_bytes: None,
        address: Ipv4Addr::LOCALHOST,
        scratch: directory.join("scratch"),
        heaps: ServerHeaps::from_budget(0),
        slow_motion: 1.0,
    }
}

fn resources(plan: &HdfsPlan) -> SystemResources {
    let budget_bytes = plan.heaps.resident_bytes(plan.datanodes.len() as u64);
    SystemResources::with_budget(budget_bytes)
}

fn start(plan: &HdfsPlan) -> Result<(Hdfs, Arc<NetworkNamespace>), SystemError> {
    let namespace = NetworkNamespace::create(plan.system)?;
    let hdfs = Hdfs::start(plan, &namespace, &resources(plan))?;
    Ok((hdfs, namespace))
}

/// A file of `BLOCKS` blocks in which no two places are alike.
fn file(directory: &Path, name: &str) -> Vec<u8> {
    let words = (0..BLOCKS * BLOCK_BYTES / 16).map(|word| format!("{name}{word:>14}\n"));
    let content = words.collect::<String>().into_bytes();
    std::fs::write(directory.join(name), &content).unwrap();
    content
}

fn put(hdfs: &Hdfs, directory: &Path, name: &str) {
    let local = directory.join(name);
    hdfs.shell(&["-put", local.to_str().unwrap(), &format!("/{name}")], "writing", LIMIT).unwrap();
}

fn content(hdfs: &Hdfs, name: &str) -> Vec<u8> {
    hdfs.shell(&["-cat", &format!("/{name}")], "reading", LIMIT).unwrap().into_bytes()
}

fn is_process(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn file_system_from_format_to_restart() {
    let directory = tempfile::TempDir::new().unwrap();
    let plan = plan(directory.path());
    let (hdfs, namespace) = start(&plan).unwrap();
    hdfs.health().unwrap();
    nothing_is_reached_from_outside(&namespace);
    let written = file(directory.path(), "a");
    put(&hdfs, directory.path(), "a");
    assert!(content(&hdfs, "a") == written);
    blocks_go_round(&hdfs);
    figures_tell_what_was_done(&hdfs, written.len() as u64);
    let before = hdfs.volumes().unwrap();
    let processes = hdfs.processes();
    assert_eq!(processes.len(), 1 + DATANODES as usize);
    hdfs.stop().unwrap();
    assert!(!processes.iter().any(|&process| is_process(process)), "{processes:?}");
    assert_eq!(namespace.listeners().unwrap(), []);

    // On storage that it used before, which is elsewhere meanwhile: a clone.
    let moved = directory.path().join("moved");
    std::fs::create_dir(&moved).unwrap();
    for disk in 0..DISKS {
        let name = format!("disk {disk}");
        std::fs::rename(directory.path().join(&name), moved.join(&name)).unwrap();
    }
    let plan = HdfsPlan { sync_on_close: true, ..self::plan(&moved) };
    let (hdfs, namespace) = start(&plan).unwrap();
    assert!(content(&hdfs, "a") == written);
    let after = hdfs.volumes().unwrap();
    let counted = |volumes: &[underlay_systems::hdfs::VolumeUse]| -> Vec<_> {
        volumes
            .iter()
            .map(|volume| (volume.datanode, volume.directory, volume.blocks, volume.bytes))
            .collect()
    };
    assert_eq!(counted(&before), counted(&after));
    one_datanode_dies(&hdfs, directory.path());
    a_process_that_ends_by_itself_is_named(&hdfs);
    let processes = hdfs.processes();
    drop(hdfs);
    assert!(!processes.iter().any(|&process| is_process(process)), "{processes:?}");
    assert_eq!(namespace.listeners().unwrap(), []);

    // The blocks are there and what says which files they are of is not.
    std::fs::remove_dir_all(&plan.name_directory).unwrap();
    let error = start(&plan).unwrap_err().to_string();
    assert!(error.contains("whose NameNode's directory is gone"), "{error}");
}

fn nothing_is_reached_from_outside(namespace: &NetworkNamespace) {
    let listeners = namespace.listeners().unwrap();
    for port in [8020, 9864, 9866, 9964, 9966, 10064, 10066, 9870] {
        let address = (IpAddr::V4(Ipv4Addr::LOCALHOST), port).into();
        assert!(listeners.contains(&address), "{port}: {listeners:?}");
    }
    assert!(listeners.iter().all(|listener| listener.ip().is_loopback()), "{listeners:?}");
    // Outside, the port is free.
    match TcpListener::bind("127.0.0.1:8020") {
        Ok(listener) => drop(listener),
        Err(_) => assert!(TcpStream::connect("127.0.0.1:8020").is_ok(), "someone else's, which is not ours"),
    }
}

fn blocks_go_round(hdfs: &Hdfs) {
    let volumes = hdfs.volumes().unwrap();
    assert_eq!(volumes.len() as u64, u64::from(DATANODES) * DISKS);
    for volume in volumes {
        let expected = if u64::from(volume.directory) == FLASH { 0 } else { BLOCKS_IN_EACH };
        assert_eq!(volume.blocks, expected, "{volume:?}");
        let bytes = expected * BLOCK_BYTES..=expected * (BLOCK_BYTES + BLOCK_BYTES / 32);
        assert!(bytes.contains(&volume.bytes), "blocks and their checksums: {volume:?}");
        assert!(volume.free_bytes > 0 && volume.path.is_dir(), "{volume:?}");
    }
}

fn figures_tell_what_was_done(hdfs: &Hdfs, bytes: u64) {
    std::thread::sleep(FIGURES_PERIOD);
    let figures = hdfs.figures().unwrap();
    let copies = f64::from(DATANODES);
    let expected = [
        ("hdfs_written_bytes", copies * bytes as f64),
        ("hdfs_blocks_written", copies * BLOCKS as f64),
        ("hdfs_blocks_allocated", BLOCKS as f64),
        ("current_hdfs_blocks", BLOCKS as f64),
        ("current_hdfs_live_datanodes", copies),
        ("hdfs_fsyncs", 0.0),
        ("current_hdfs_under_replicated_blocks", 0.0),
        ("current_hdfs_datanode_3_directory_1_blocks", BLOCKS_IN_EACH as f64),
    ];
    for (name, value) in expected {
        assert_eq!(figures.get(name), Some(&value), "{name}: {figures:#?}");
    }
    for name in ["hdfs_namenode_transactions", "hdfs_read_bytes", "hdfs_datanode_1_directory_0_writes"] {
        assert!(figures.get(name).is_some_and(|&figure| figure > 0.0), "{name}: {figures:#?}");
    }
}

fn one_datanode_dies(hdfs: &Hdfs, directory: &Path) {
    let written = content(hdfs, "a");
    hdfs.kill_datanode(1);
    hdfs.health().unwrap();
    assert_eq!(hdfs.processes().len(), DATANODES as usize);
    assert!(content(hdfs, "a") == written, "two of three copies are left");
    let more = file(directory, "b");
    put(hdfs, directory, "b");
    assert!(content(hdfs, "b") == more);
    std::thread::sleep(FIGURES_PERIOD);
    let syncs = hdfs.figures().unwrap()["hdfs_fsyncs"];
    assert!(syncs >= 2.0 * BLOCKS as f64, "each copy is written out: {syncs}");
    let datanodes: Vec<u32> = hdfs.volumes().unwrap().iter().map(|volume| volume.datanode).collect();
    assert_eq!((datanodes.first(), datanodes.last()), (Some(&0), Some(&2)));
    assert!(!datanodes.contains(&1));
    it_comes_back(hdfs);
}

fn it_comes_back(hdfs: &Hdfs) {
    let conditions = || hdfs.list().unwrap().into_iter().map(|node| node.condition).collect::<Vec<_>>();
    assert_eq!(conditions()[1], NodeCondition::Away);
    let written_bytes = hdfs.figures().unwrap()["hdfs_written_bytes"];
    assert!(hdfs.kill("datanode2").unwrap_err().to_string().contains("datanode2 does not run"));
    let runs = AtomicBool::new(false);
    SystemNodes::start(hdfs, "datanode2", &|| runs.store(true, Ordering::SeqCst)).unwrap();
    assert!(runs.load(Ordering::SeqCst));
    assert_eq!(conditions(), [NodeCondition::Serving; DATANODES as usize]);
    assert!(hdfs.figures().unwrap()["hdfs_written_bytes"] >= written_bytes, "totals go on");
    hdfs.health().unwrap();
}

fn a_process_that_ends_by_itself_is_named(hdfs: &Hdfs) {
    let process = i32::try_from(*hdfs.processes().last().unwrap()).unwrap();
    kill_process(Pid::from_raw(process).unwrap(), Signal::KILL).unwrap();
    let ended = |state: &Arc<underlay_systems::child::ChildState>| state.pid() as i32 == process;
    assert!(hdfs.states().into_iter().find(ended).unwrap().wait(LIMIT));
    let error = hdfs.health().unwrap_err().to_string();
    assert!(error.contains("DataNode 3 (process ") && error.contains("SIGKILL"), "{error}");
    assert!(error.contains("its last words"), "{error}");
}

#[test]
fn too_little_memory_is_refused_before_anything_starts() {
    let directory = tempfile::TempDir::new().unwrap();
    let plan = plan(directory.path());
    let namespace = NetworkNamespace::create(plan.system).unwrap();
    let resources = SystemResources::with_budget(resources(&plan).budget_bytes - 1);
    let error = Hdfs::start(&plan, &namespace, &resources).unwrap_err().to_string();
    assert!(error.contains("need 704 MiB"), "{error}");
    assert!(!plan.scratch.exists());
}

#[test]
fn unstartable_server_is_named_with_last_output() {
    let directory = tempfile::TempDir::new().unwrap();
    let mut plan = plan(directory.path());
    plan.datanodes.truncate(1);
    plan.replication = 1;
    let namespace = NetworkNamespace::create(plan.system).unwrap();
    // The DataNode's port is taken.
    let _taken = namespace.within(|| TcpListener::bind("127.0.0.1:9866")).unwrap().unwrap();
    let error = Hdfs::start(&plan, &namespace, &resources(&plan)).unwrap_err().to_string();
    assert!(error.starts_with("hdfs-test failed while starting: DataNode 1 (process "), "{error}");
    assert!(error.contains("9866") && error.contains("in use"), "{error}");
}
