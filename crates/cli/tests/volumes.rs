//! `underlay volume` as a user types it, with the server as a process.

#[path = "support/small_file_system.rs"]
mod small_file_system;
mod support;
#[allow(dead_code)]
#[path = "support/volumes.rs"]
mod volumes;

use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use small_file_system::SmallFileSystem;
use support::{Playground, can_mount, stderr, stdout};
use underlay_nvme::auth::{AuthError, AuthHash, AuthSecret, HostSecrets};
use underlay_nvme::initiator::{ControllerOptions, InitiatorError, NvmeController, discover};
use underlay_storage::device::{BlockDevice, DeviceError, DeviceRequest};
use volumes::VolumeServer;

const POOL: &str = r#"
name = "tank"
listen = "127.0.0.1:0"
devices = [{ medium = "nvme-9300-max", count = 2, capacity = "512 MiB" }]
initial = "fresh"

[volume.data]
capacity = "128 MiB"
compress = "lz4"
"#;

fn done(playground: &Playground, arguments: &[&str]) -> String {
    let output = playground.output(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    stdout(&output)
}

fn refused(playground: &Playground, arguments: &[&str], code: i32) -> String {
    let output = playground.output(arguments);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}{}", stdout(&output), stderr(&output));
    stderr(&output)
}

fn state(playground: &Playground) -> serde_json::Value {
    serde_json::from_str(&done(playground, &["volume", "list", "pool.toml", "--json"])).unwrap()
}

fn volume<'a>(state: &'a serde_json::Value, name: &str) -> Option<&'a serde_json::Value> {
    state["volumes"].as_array().unwrap().iter().find(|volume| volume["name"] == name)
}

#[test]
fn served_volumes_are_created_resized_cloned_and_deleted() {
    let playground = Playground::new();
    playground.write("pool.toml", POOL);
    let server = VolumeServer::start(&playground, &["--immediate"]);
    let (controller, device) = server.connect(&server.nqn("data"));
    device.execute(DeviceRequest::Write { offset_bytes: 0, data: vec![7; 1 << 20], fua: true }).unwrap();

    done(
        &playground,
        &["volume", "create", "pool.toml", "more", "--capacity", "64 MiB", "--mirror", "--iops", "5000"],
    );
    assert!(
        refused(&playground, &["volume", "create", "pool.toml", "more", "--capacity", "64 MiB"], 2)
            .contains("already")
    );
    let found = state(&playground);
    let data = volume(&found, "data").unwrap();
    assert_eq!((data["clients"].as_u64(), data["compress"].as_str()), (Some(1), Some("lz4")));
    assert_eq!(data["used_bytes"].as_u64(), Some(1 << 20));
    assert!(data["stored_bytes"].as_u64().unwrap() < 1 << 19, "{data}");
    assert!(data["traffic"]["writes"].as_u64().unwrap() >= 1, "{data}");
    let more = volume(&found, "more").unwrap();
    assert_eq!((more["mirror"].as_bool(), more["limits"]["iops"].as_u64()), (Some(true), Some(5000)));
    let (_more, more) = server.connect(more["nqn"].as_str().unwrap());
    more.execute(DeviceRequest::Write { offset_bytes: 0, data: vec![9; 8192], fua: false }).unwrap();

    // A snapshot keeps what was there.
    done(&playground, &["volume", "snapshot", "pool.toml", "data", "monday"]);
    device.execute(DeviceRequest::Write { offset_bytes: 0, data: vec![8; 8192], fua: true }).unwrap();
    let found = state(&playground);
    let monday = volume(&found, "monday").unwrap();
    assert_eq!((monday["snapshot_of"].as_str(), monday["writable"].as_bool()), (Some("data"), Some(false)));
    let (monday_controller, snapshot) = server.connect(monday["nqn"].as_str().unwrap());
    let read = snapshot.execute(DeviceRequest::Read { offset_bytes: 0, buffer: vec![0; 8192] }).unwrap();
    assert!(read.iter().all(|&byte| byte == 7), "{:?}", &read[..4]);
    drop((monday_controller, snapshot));

    // A host that is connected learns of another size.
    done(&playground, &["volume", "resize", "pool.toml", "data", "256 MiB"]);
    let deadline = Instant::now() + Duration::from_secs(30);
    while device.geometry().capacity_bytes != 256 << 20 {
        assert!(Instant::now() < deadline, "the initiator was not told: {:?}", device.geometry());
        std::thread::sleep(Duration::from_millis(10));
    }
    device
        .execute(DeviceRequest::Write { offset_bytes: 200 << 20, data: vec![3; 4096], fua: false })
        .unwrap();
    assert!(
        refused(&playground, &["volume", "resize", "pool.toml", "data", "64 MiB"], 2).contains("--shrink")
    );

    assert!(refused(&playground, &["volume", "delete", "pool.toml", "data"], 2).contains("--connected"));
    let deadline = Instant::now() + Duration::from_secs(30);
    while volume(&state(&playground), "monday").unwrap()["clients"].as_u64() != Some(0) {
        assert!(Instant::now() < deadline, "the host that left is still counted");
        std::thread::sleep(Duration::from_millis(10));
    }
    done(&playground, &["volume", "delete", "pool.toml", "monday"]);
    assert!(volume(&state(&playground), "monday").is_none());
    assert!(refused(&playground, &["volume", "delete", "pool.toml", "monday"], 2).contains("monday"));
    let table = done(&playground, &["volume", "list", "pool.toml"]);
    assert!(table.contains("served at 127.0.0.1:") && table.contains("plain, mirror"), "{table}");
    done(&playground, &["volume", "check", "pool.toml"]);
    drop((controller, device));
    assert_eq!(server.stop(), Some(130));

    // The same without a server.
    let table = done(&playground, &["volume", "list", "pool.toml"]);
    assert!(table.contains("not served") && table.contains("more"), "{table}");
    done(&playground, &["volume", "create", "pool.toml", "third", "--capacity", "16 MiB"]);
    done(&playground, &["volume", "check", "pool.toml"]);
    // The file must not ask for less than the volume has by now.
    playground.write("pool.toml", &POOL.replace("128 MiB", "256 MiB"));
    let server = VolumeServer::start(&playground, &["--immediate"]);
    let (_data, data) = server.connect(&server.nqn("data"));
    let read = data.execute(DeviceRequest::Read { offset_bytes: 0, buffer: vec![0; 16384] }).unwrap();
    assert!(read[..8192].iter().all(|&byte| byte == 8) && read[8192..].iter().all(|&byte| byte == 7));
    server.nqn("third");
    assert_eq!(server.stop(), Some(130));
    assert_eq!(playground.left_behind(), [""; 0]);
}

#[test]
fn second_server_used_port_and_lossy_change_are_refused() {
    let playground = Playground::new();
    playground.write("pool.toml", POOL);
    playground.write("other.toml", &POOL.replace("tank", "other"));
    let server = VolumeServer::start(&playground, &[]);
    let problem = refused(&playground, &["volume", "serve", "pool.toml"], 2);
    assert!(problem.contains(&format!("process {}", server.pid())), "{problem}");
    let problem = refused(&playground, &["volume", "serve", "other.toml", "--listen", &server.address], 2);
    assert!(problem.contains(&server.address) && problem.contains("--listen"), "{problem}");
    assert_eq!(server.stop(), Some(130));

    playground.write("pool.toml", &POOL.replace("128 MiB", "64 MiB"));
    assert!(refused(&playground, &["volume", "serve", "pool.toml"], 2).contains("--shrink"));
    playground.write("pool.toml", &POOL.replace("lz4", "zstd"));
    assert!(refused(&playground, &["volume", "serve", "pool.toml"], 2).contains("copy"));
    playground.write("pool.toml", &POOL.replace("512 MiB", "256 MiB"));
    assert!(refused(&playground, &["volume", "serve", "pool.toml"], 2).contains("capacity"));
    playground.write("pool.toml", &POOL.replace("lz4", "lzo"));
    assert!(refused(&playground, &["volume", "list", "pool.toml"], 2).contains("pool.toml:9"));
    // What is larger than before is no loss.
    playground.write("pool.toml", &POOL.replace("128 MiB", "192 MiB"));
    let server = VolumeServer::start(&playground, &[]);
    assert_eq!(server.said["volumes"][0]["capacity_bytes"].as_u64(), Some(192 << 20));
    assert_eq!(server.stop(), Some(130));
    assert_eq!(playground.left_behind(), [""; 0]);
}

#[test]
fn killed_server_socket_is_removed_or_replaced() {
    let playground = Playground::new();
    playground.write("pool.toml", POOL);
    let socket = playground.path("tank.pool/control");
    VolumeServer::start(&playground, &[]).kill();
    assert!(socket.exists());
    let printed = done(&playground, &["clean"]);
    assert!(printed.contains("tank.pool/control") && !socket.exists(), "{printed}");
    VolumeServer::start(&playground, &[]).kill();
    let server = VolumeServer::start(&playground, &[]);
    // The dead one's socket is the living one's by now.
    done(&playground, &["clean"]);
    done(&playground, &["volume", "list", "pool.toml"]);
    assert_eq!(server.stop(), Some(130));
    assert!(!socket.exists());
    assert_eq!(done(&playground, &["clean"]).trim(), "nothing was left behind");
}

#[test]
fn hosts_need_listing_and_secret() {
    let playground = Playground::new();
    let host = "nqn.2014-08.org.nvmexpress:uuid:5e1f7a52-9d0b-4c1f-8a43-2b6f0c9d7e11";
    let pool = format!(
        "{POOL}\n[volume.closed]\ncapacity = \"16 MiB\"\nhosts = [\"{host}\"]\nsecret_env = \"UNDERLAY_TEST_SECRET\"\n"
    );
    playground.write("pool.toml", &pool);
    let problem = refused(&playground, &["volume", "serve", "pool.toml"], 2);
    assert!(problem.contains("UNDERLAY_TEST_SECRET is not set"), "{problem}");
    let secret = |seed: u8| AuthSecret::new(Some(AuthHash::Sha256), vec![seed; 32]).unwrap();
    let revealed = secret(1).reveal();
    let server = VolumeServer::start_with(&playground, &[], &[("UNDERLAY_TEST_SECRET", revealed.as_str())]);
    let nqn = server.nqn("closed");
    let options = ControllerOptions::new(&server.address, &nqn).with_host_nqn(host);
    let options_with = |seed: u8| {
        let secrets = Some(HostSecrets { host: secret(seed), controller: None });
        ControllerOptions { secrets, ..options.clone() }
    };
    assert!(
        NvmeController::connect(ControllerOptions::new(&server.address, &nqn)).is_err(),
        "a host that is not on the list"
    );
    assert!(NvmeController::connect(options.clone()).is_err(), "without a secret");
    assert!(NvmeController::connect(options_with(2)).is_err(), "with a wrong secret");
    let controller = NvmeController::connect(options_with(1)).unwrap();
    controller.namespace(1).unwrap().execute(DeviceRequest::Flush).unwrap();
    // Others don't even learn of it.
    let seen = |options: &ControllerOptions| -> Vec<String> {
        discover(options).unwrap().into_iter().map(|entry| entry.subsystem_nqn).collect()
    };
    assert!(seen(&options_with(1)).contains(&nqn));
    assert!(!seen(&ControllerOptions::new(&server.address, &nqn)).contains(&nqn));
    // A snapshot is for the same hosts.
    done(&playground, &["volume", "snapshot", "pool.toml", "closed", "copy"]);
    let found = state(&playground);
    let copy = volume(&found, "copy").unwrap();
    assert_eq!(copy["admission"]["hosts"][0].as_str(), Some(host));
    assert!(
        NvmeController::connect(ControllerOptions::new(&server.address, copy["nqn"].as_str().unwrap()))
            .is_err()
    );
    drop(controller);
    assert_eq!(server.stop(), Some(130));
}

#[test]
fn host_and_controller_authenticate_each_other() {
    let playground = Playground::new();
    let host = "nqn.2014-08.org.nvmexpress:uuid:5e1f7a52-9d0b-4c1f-8a43-2b6f0c9d7e11";
    let pool = format!(
        "{POOL}\n[volume.closed]\ncapacity = \"512 MiB\"\nhosts = [\"{host}\"]\nsecret_file = \"host.secret\"\n\
         controller_secret_file = \"controller.secret\"\n"
    );
    playground.write("pool.toml", &pool);
    let secret = |seed: u8| AuthSecret::new(Some(AuthHash::Sha256), vec![seed; 32]).unwrap();
    let keep = |name: &str, seed: u8, mode: u32| {
        let file = playground.write(name, &(secret(seed).reveal() + "\n"));
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    keep("host.secret", 1, 0o600);
    keep("controller.secret", 2, 0o644);
    keep("other.secret", 3, 0o600);
    let problem = refused(&playground, &["volume", "serve", "pool.toml"], 2);
    assert!(problem.contains("controller.secret") && problem.contains("chmod 600"), "{problem}");
    keep("controller.secret", 2, 0o600);
    let server = VolumeServer::start(&playground, &["--immediate"]);

    let options_with = |nqn: &str, own: u8, controller: u8| {
        let secrets = Some(HostSecrets { host: secret(own), controller: Some(secret(controller)) });
        ControllerOptions { secrets, ..ControllerOptions::new(&server.address, nqn).with_host_nqn(host) }
    };
    let refusal = |options: ControllerOptions| NvmeController::connect(options).err().expect("it was let in");
    let closed = server.nqn("closed");
    let controller = NvmeController::connect(options_with(&closed, 1, 2)).unwrap();
    controller.namespace(1).unwrap().execute(DeviceRequest::Flush).unwrap();
    let wrong = refusal(options_with(&closed, 1, 3));
    assert!(matches!(wrong, InitiatorError::Authentication(AuthError::ControllerUnproved)), "{wrong}");
    let wrong = refusal(options_with(&closed, 3, 2));
    assert!(matches!(wrong, InitiatorError::Authentication(AuthError::Refused(_))), "{wrong}");
    // As one does that took the server's place and does not know its secret.
    let silent = refusal(options_with(&server.nqn("data"), 1, 2));
    assert!(matches!(silent, InitiatorError::NoAuthentication(_)), "{silent}");
    drop(controller);

    let create = ["volume", "create", "pool.toml", "second", "--capacity", "16 MiB"];
    let secrets = ["--secret-file", "host.secret", "--controller-secret-file", "controller.secret"];
    assert!(refused(&playground, &[&create[..], &secrets].concat(), 2).contains("--host"));
    let hosts = ["--host", host];
    let alone = ["--controller-secret-env", "NONE"];
    assert!(refused(&playground, &[&create[..], &hosts, &alone].concat(), 2).contains("--secret-file"));
    done(&playground, &[&create[..], &hosts, &secrets].concat());
    let found = state(&playground);
    let second = volume(&found, "second").unwrap()["nqn"].as_str().unwrap().to_owned();
    drop(NvmeController::connect(options_with(&second, 1, 2)).unwrap());
    refusal(options_with(&second, 1, 3));

    if can_mount() {
        let url = format!("nvme-tcp://{}/closed", server.address);
        let mount = ["mount", &url, "mnt", "--host-nqn", host, "--secret-file", "host.secret"];
        let mount_with =
            |controller| [&mount[..], &["--controller-secret-file", controller, "--", "true"]].concat();
        done(&playground, &mount_with("controller.secret"));
        let problem = refused(&playground, &mount_with("other.secret"), 2);
        assert!(problem.contains("did not prove"), "{problem}");
        let url = format!("nvme-tcp://{}/data", server.address);
        let open = ["mount", &url, "mnt", "--secret-file", "host.secret"];
        let controller = ["--controller-secret-file", "controller.secret", "--", "true"];
        let problem = refused(&playground, &[&open[..], &controller].concat(), 2);
        assert!(problem.contains("asks for no authentication"), "{problem}");
    }
    assert_eq!(server.stop(), Some(130));
    assert_eq!(playground.left_behind(), [""; 0]);
}

#[test]
fn pool_accepts_existing_files() {
    let playground = Playground::new();
    for name in ["one.img", "two.img"] {
        std::fs::File::create(playground.path(name)).unwrap().set_len(256 << 20).unwrap();
    }
    let pool = "name = \"real\"\nlisten = \"127.0.0.1:0\"\npaths = [\"one.img\", \"two.img\"]\n[volume.data]\n\
                capacity = \"64 MiB\"\nmirror = true\n";
    playground.write("pool.toml", pool);
    let server = VolumeServer::start(&playground, &[]);
    let (_data, data) = server.connect(&server.nqn("data"));
    data.execute(DeviceRequest::Write { offset_bytes: 1 << 20, data: vec![5; 65536], fua: true }).unwrap();
    // Answered, and never flushed.
    data.execute(DeviceRequest::Write { offset_bytes: 8 << 20, data: vec![6; 65536], fua: false }).unwrap();
    server.kill();
    let server = VolumeServer::start(&playground, &[]);
    let (_data, data) = server.connect(&server.nqn("data"));
    for (offset_bytes, content) in [(1 << 20, 5), (8 << 20, 6)] {
        let read = data.execute(DeviceRequest::Read { offset_bytes, buffer: vec![0; 65536] }).unwrap();
        assert!(read.iter().all(|&byte| byte == content));
    }
    assert_eq!(server.stop(), Some(130));
    // A file that holds something else is no blank device.
    std::fs::write(playground.path("three.img"), vec![1; 64 << 20]).unwrap();
    playground.write("other.toml", "name = \"other\"\nlisten = \"127.0.0.1:0\"\npaths = [\"three.img\"]\n");
    let problem = refused(&playground, &["volume", "serve", "other.toml"], 2);
    assert!(problem.contains("holds data of an unknown kind"), "{problem}");
}

#[test]
fn program_gets_filesystem_on_served_volume() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    playground.write("pool.toml", &POOL.replace("128 MiB", "512 MiB").replace("512 MiB\" }", "1 GiB\" }"));
    let server = VolumeServer::start(&playground, &["--immediate"]);
    let url = format!("nvme-tcp://{}/data", server.address);
    done(&playground, &["mount", &url, "mnt", "--", "sh", "-c", "echo kept > mnt/file && sync mnt/file"]);
    // The file system is found again, without naming its kind.
    assert_eq!(
        done(&playground, &["mount", &url, "mnt", "--filesystem", "ext4", "--", "cat", "mnt/file"]),
        "kept\n"
    );
    let problem = refused(
        &playground,
        &["mount", &format!("nvme-tcp://{}/dato", server.address), "mnt", "--", "true"],
        2,
    );
    assert!(problem.contains(":tank:data"), "{problem}");
    assert!(
        refused(&playground, &["mount", &url, "mnt", "--size", "1 GiB", "--", "true"], 2).contains("--size")
    );
    assert_eq!(server.stop(), Some(130));
    assert_eq!(playground.left_behind(), [""; 0]);
}

#[test]
fn full_pool_refuses_writes_until_discard() {
    let playground = Playground::new();
    playground.write(
        "pool.toml",
        &POOL.replace("count = 2, capacity = \"512 MiB\"", "count = 1, capacity = \"64 MiB\""),
    );
    let server = VolumeServer::start(&playground, &["--immediate"]);
    let (_data, data) = server.connect(&server.nqn("data"));
    let noise: Vec<u8> =
        (0..1 << 18).flat_map(|word: u32| word.wrapping_mul(0x9E37_79B9).to_le_bytes()).collect();
    let write = |megabyte: u64| {
        let mut data_here = noise.clone();
        data_here[..8].copy_from_slice(&megabyte.to_le_bytes());
        data.execute(DeviceRequest::Write { offset_bytes: megabyte << 20, data: data_here, fua: false })
            .map(|_| ())
    };
    let written = (0..128)
        .find(|megabyte| write(*megabyte) == Err(DeviceError::NoSpace))
        .expect("128 MiB are not in a pool of 64");
    assert!(written > 40, "{written} MiB of 64");
    // Nothing else breaks, not even a flush.
    data.execute(DeviceRequest::Flush).unwrap();
    let read = |megabyte: u64| {
        data.execute(DeviceRequest::Read { offset_bytes: megabyte << 20, buffer: vec![0; 4096] }).map(|_| ())
    };
    assert!((0..written).all(|megabyte| read(megabyte).is_ok()));
    data.execute(DeviceRequest::Discard { offset_bytes: 0, length_bytes: 8 << 20 }).unwrap();
    (0..6).for_each(|megabyte| write(megabyte).unwrap());
    done(&playground, &["volume", "check", "pool.toml"]);
    assert_eq!(server.stop(), Some(130));
}

/// One of two files lies on a file system that is full before the file is.
#[test]
fn excluded_device_is_listed_and_readmitted() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    let small = SmallFileSystem::mount(playground.path("small"), "size=20m");
    for name in ["one.img", "small/two.img"] {
        std::fs::File::create(playground.path(name)).unwrap().set_len(80 << 20).unwrap();
    }
    let pool = "name = \"halves\"\nlisten = \"127.0.0.1:0\"\npaths = [\"one.img\", \"small/two.img\"]\n\
                [volume.data]\ncapacity = \"64 MiB\"\nmirror = true\n";
    playground.write("pool.toml", pool);
    let write = |server: &VolumeServer, megabytes: std::ops::Range<u64>| {
        let (_data, data) = server.connect(&server.nqn("data"));
        for megabyte in megabytes {
            let request = DeviceRequest::Write {
                offset_bytes: megabyte << 20,
                data: vec![megabyte as u8 + 1; 1 << 20],
                fua: false,
            };
            data.execute(request).unwrap();
        }
    };
    let member = |state: &serde_json::Value| {
        let two = state["members"][1].clone();
        (two["name"].as_str().unwrap().to_owned(), two["state"].as_str().unwrap().to_owned())
    };
    let server = VolumeServer::start(&playground, &[]);
    write(&server, 0..30);
    let found = state(&playground);
    assert_eq!(member(&found).1, "out");
    assert_eq!(volume(&found, "data").unwrap()["degraded"].as_bool(), Some(true));
    assert_eq!(server.stop(), Some(130));

    // Where no server runs, and the file system is as full as before.
    let (two, member_state) = member(&state(&playground));
    assert_eq!(member_state, "out");
    assert!(done(&playground, &["volume", "list", "pool.toml"]).contains(&format!("{two} is out of use")));
    let problem = refused(&playground, &["volume", "resync", "pool.toml", &two], 4);
    assert!(problem.contains("still failing"), "{problem}");
    assert!(refused(&playground, &["volume", "resync", "pool.toml", "three.img"], 2).contains(&two));
    small.grow("45m");
    done(&playground, &["volume", "resync", "pool.toml", &two]);
    let found = state(&playground);
    assert_eq!(member(&found).1, "in-use");
    assert_eq!(volume(&found, "data").unwrap()["degraded"].as_bool(), Some(false));

    // While it is served.
    let server = VolumeServer::start(&playground, &[]);
    write(&server, 30..60);
    assert_eq!(member(&state(&playground)).1, "out");
    small.grow("200m");
    done(&playground, &["volume", "resync", "pool.toml", &two]);
    let found = state(&playground);
    assert_eq!(member(&found).1, "in-use");
    assert_eq!(volume(&found, "data").unwrap()["degraded"].as_bool(), Some(false));
    let (_data, data) = server.connect(&server.nqn("data"));
    for megabyte in 0..60u64 {
        let read = data
            .execute(DeviceRequest::Read { offset_bytes: megabyte << 20, buffer: vec![0; 1 << 20] })
            .unwrap();
        assert!(read.iter().all(|byte| *byte == megabyte as u8 + 1), "MiB {megabyte}");
    }
    done(&playground, &["volume", "check", "pool.toml"]);
    assert_eq!(server.stop(), Some(130));
}

#[test]
fn service_manager_is_notified_and_public_address_warns() {
    let playground = Playground::new();
    playground.write("pool.toml", &POOL.replace("127.0.0.1:0", "0.0.0.0:0"));
    let manager = std::os::unix::net::UnixDatagram::bind(playground.path("notify")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut buffer = [0; 256];
    let mut next = || {
        let length = manager.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).trim().to_owned()
    };
    let notify = playground.path("notify");
    let variables = [("NOTIFY_SOCKET", notify.to_str().unwrap())];
    let server = VolumeServer::start_with(&playground, &["--immediate"], &variables);
    assert_eq!(next(), "READY=1");
    let (controller, device) = server.connect(&server.nqn("data"));
    drop((device, controller));
    assert_eq!(server.stop(), Some(130));
    assert_eq!(next(), "STOPPING=1");
    let log = std::fs::read_to_string(playground.path("server.log")).unwrap();
    assert!(log.contains("WARN") && log.contains("any host may use data"), "{log}");
    assert!(log.contains("INFO") && log.contains("a host is connected host=\"nqn."), "{log}");
    // Only what is asked for.
    let server = VolumeServer::start(&playground, &["--immediate", "--log-level", "error"]);
    server.stop();
    assert_eq!(std::fs::read_to_string(playground.path("server.log")).unwrap(), "");
    // What is printed is of use on another host.
    let mut command = playground.underlay(&["volume", "serve", "pool.toml", "--immediate"]);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null());
    let mut child = command.spawn().unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let output_lines: Vec<String> =
        lines.map(|line| line.unwrap()).take_while(|line| !line.contains("nvme connect")).collect();
    let _ = child.kill();
    let _ = child.wait();
    let mount = output_lines.iter().find(|line| line.contains("underlay mount")).unwrap();
    assert!(mount.contains("nvme-tcp://") && !mount.contains("0.0.0.0"), "{output_lines:?}");
}
