//! Volumes that a target serves, attached by our own initiator: for this host a target in the same process.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use underlay_attach::{Attachment, FilesystemKind};
use underlay_nvme::target::{
    AllowedHosts, NamespaceConfig, NvmeTarget, SubsystemConfig, SubsystemTable, TargetConfig,
};
use underlay_storage::device::BlockDevice;
use underlay_storage::stack::{BackingSpec, PacingMode, RemoteSpec, Stack, StackNode, StackSpec, VolumeSpec};

use crate::conformance::conforms;
use crate::fixture::{Fixture, MIB, fuse_directory, fuse_loops, spec, stack, without_hanging};

const NQN: &str = "nqn.2026-01.org.example:attached";

/// What a server keeps over a restart.
struct Server {
    devices: Stack,
    address: SocketAddr,
    target: Option<NvmeTarget>,
}

impl Server {
    fn start(volumes: &[(&str, u64, BackingSpec)]) -> Server {
        let devices = Stack::open(&stack(volumes)).unwrap();
        let target = serve(&devices, "127.0.0.1:0".parse().unwrap());
        Server { devices, address: target.addresses()[0], target: Some(target) }
    }

    fn restart(&mut self) {
        drop(self.target.take());
        self.target = Some(serve(&self.devices, self.address));
    }

    fn volume(&self, name: &str, nsid: u32) -> VolumeSpec {
        let remote = RemoteSpec::new(format!("{name}.remote"), self.address.to_string(), NQN, nsid);
        VolumeSpec::new(name, StackNode::Remote(remote))
    }
}

fn serve(devices: &Stack, address: SocketAddr) -> NvmeTarget {
    let subsystems = Arc::new(SubsystemTable::default());
    let config =
        SubsystemConfig { nqn: NQN.into(), serial_number: "1".into(), hosts: AllowedHosts::Any(None) };
    let subsystem = subsystems.add(config).unwrap();
    for (nsid, device) in (1..).zip(devices.volumes()) {
        let device: Arc<dyn BlockDevice> = Arc::clone(device);
        subsystem.add_namespace(NamespaceConfig { nsid, uuid: [nsid as u8; 16], device }).unwrap();
    }
    NvmeTarget::start_with(TargetConfig { listen: vec![address], ..TargetConfig::default() }, subsystems)
        .unwrap()
}

fn build_stack(volumes: Vec<VolumeSpec>) -> StackSpec {
    StackSpec { volumes, dilation: 1.0, seed: 1 }
}

#[test]
fn remote_volumes_conform() {
    let loops = fuse_loops().into_iter().map(|attachment| Box::new(attachment) as Box<dyn Attachment>);
    let directory = fuse_directory().map(|attachment| Box::new(attachment) as Box<dyn Attachment>);
    for attachment in loops.chain(directory) {
        let fixture = Fixture::new();
        let server = Server::start(&[
            ("data", 320 * MIB, BackingSpec::Memory),
            ("log", 64 * MIB, BackingSpec::Memory),
        ]);
        let volumes = build_stack(vec![server.volume("data", 1), server.volume("log", 2)]);
        conforms(&fixture, &*attachment, &spec(volumes, FilesystemKind::Ext4, fixture.path("mnt")), 2);
    }
}

#[test]
fn layer_over_remote_volume_reports_path() {
    let Some(attachment) = fuse_loops().pop() else { return };
    let fixture = Fixture::new();
    let server = Server::start(&[("data", 64 * MIB, BackingSpec::Memory)]);
    let mut volume = server.volume("data", 1);
    volume.root = StackNode::Link { bandwidth_mb_s: 1000.0, latency_us: 20.0, member: Box::new(volume.root) };
    let wanted = spec(build_stack(vec![volume]), FilesystemKind::Ext4, fixture.path("mnt"));
    let mut attached = attachment.attach(&wanted, &fixture.registry).unwrap();
    attached.begin_measurement(0.1).unwrap();
    attached.set_pace(PacingMode::Modelled).unwrap();
    let file = fs::File::create(attached.paths()[0].join("file")).unwrap();
    file.write_all_at(&vec![7; 1 << 20], 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let layers = attached.layers().unwrap();
    let remote = layers.iter().find(|layer| layer.kind == "remote").unwrap();
    assert_eq!(remote.name, "data.remote");
    assert!(remote.figures["written_bytes"] >= (1 << 20) as f64, "{remote:?}");
    assert!(remote.figures["command_p50_ns"] > 0.0 && remote.figures["io_queues"] == 2.0, "{remote:?}");
    let activity = attached.end_measurement().unwrap();
    assert_eq!(activity.len(), 1);
    assert_eq!(activity[0].description.id.name, "data.remote");
    assert!(activity[0].totals.flushes > 0 && activity[0].modelled.is_none(), "{activity:?}");
    attached.detach().unwrap();
    fixture.assert_nothing_left();
}

#[test]
fn files_outlive_a_restart_of_the_server_under_them() {
    let Some(attachment) = fuse_loops().pop() else { return };
    let fixture = Fixture::new();
    let mut server = Server::start(&[("data", 64 * MIB, BackingSpec::Memory)]);
    let wanted = spec(build_stack(vec![server.volume("data", 1)]), FilesystemKind::Ext4, fixture.path("mnt"));
    let mut attached = attachment.attach(&wanted, &fixture.registry).unwrap();
    let path = attached.paths()[0].clone();
    for round in 0..3_u8 {
        let content = vec![round; 3 << 20];
        let (file, written) = (path.join(format!("file-{round}")), content.clone());
        let is_back = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_back);
        let writer = std::thread::spawn(move || {
            let file = fs::File::create(file).unwrap();
            // Until the server has been away: a fast one could have everything before that.
            loop {
                let was_back = seen.load(Ordering::Relaxed);
                for (index, chunk) in written.chunks(64 << 10).enumerate() {
                    file.write_all_at(chunk, index as u64 * (64 << 10)).unwrap();
                    file.sync_data().unwrap();
                }
                if was_back {
                    break;
                }
            }
        });
        std::thread::sleep(Duration::from_millis(20));
        server.restart();
        is_back.store(true, Ordering::Relaxed);
        without_hanging("the writer", move || writer.join().unwrap());
        assert!(fs::read(path.join(format!("file-{round}"))).unwrap() == content);
    }
    let layers = attached.layers().unwrap();
    assert!(layers[0].figures["reconnects"] >= 3.0, "{layers:?}");
    attached.detach().unwrap();
    // What is there now was written through the network.
    let mut attached = attachment
        .attach(&underlay_attach::AttachSpec { format: false, ..wanted }, &fixture.registry)
        .unwrap();
    for round in 0..3_u8 {
        let found = fs::read(attached.paths()[0].join(format!("file-{round}"))).unwrap();
        assert!(found == vec![round; 3 << 20], "round {round}");
    }
    attached.detach().unwrap();
    fixture.assert_nothing_left();
}

#[test]
fn unreachable_server_is_named() {
    let Some(attachment) = fuse_loops().pop() else { return };
    let fixture = Fixture::new();
    let server = Server::start(&[("data", 64 * MIB, BackingSpec::Memory)]);
    let mut volume = server.volume("data", 1);
    drop(server);
    let refused = |volume: VolumeSpec| {
        let wanted = spec(build_stack(vec![volume]), FilesystemKind::Ext4, fixture.path("mnt"));
        attachment.attach(&wanted, &fixture.registry).unwrap_err().to_string()
    };
    let message = refused(volume.clone());
    assert!(message.contains("data.remote") && message.contains("can't be reached"), "{message}");
    if let StackNode::Remote(remote) = &mut volume.root {
        remote.secrets.secret_env = Some("UNDERLAY_TEST_NO_SUCH_SECRET".into());
    }
    let message = refused(volume);
    assert!(message.contains("UNDERLAY_TEST_NO_SUCH_SECRET"), "{message}");
    fixture.assert_nothing_left();
}

/// It was blank when it was chosen, and another host has made a file system on it since.
#[test]
fn used_volume_is_not_formatted() {
    let Some(attachment) = fuse_loops().pop() else { return };
    let fixture = Fixture::new();
    let server = Server::start(&[("data", 64 * MIB, BackingSpec::Memory)]);
    let mut volume = server.volume("data", 1);
    let mark_blank = |volume: &mut VolumeSpec, must_be_blank: bool| {
        let StackNode::Remote(remote) = &mut volume.root else { panic!("it is remote") };
        remote.must_be_blank = must_be_blank;
    };
    mark_blank(&mut volume, true);
    let wanted = |volume: &VolumeSpec| {
        spec(build_stack(vec![volume.clone()]), FilesystemKind::Ext4, fixture.path("mnt"))
    };
    let mut attached = attachment.attach(&wanted(&volume), &fixture.registry).unwrap();
    fs::write(attached.paths()[0].join("precious"), "x").unwrap();
    attached.detach().unwrap();
    let refused = attachment.attach(&wanted(&volume), &fixture.registry).unwrap_err().to_string();
    assert!(refused.contains("now holds") && refused.contains("Nothing has changed"), "{refused}");
    mark_blank(&mut volume, false);
    let existing = underlay_attach::AttachSpec { format: false, ..wanted(&volume) };
    let mut attached = attachment.attach(&existing, &fixture.registry).unwrap();
    assert_eq!(fs::read_to_string(attached.paths()[0].join("precious")).unwrap(), "x");
    attached.detach().unwrap();
    fixture.assert_nothing_left();
}
