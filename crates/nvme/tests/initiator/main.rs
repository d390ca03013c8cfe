//! Our initiator against our target, over loopback.

mod broken_target;
mod losses;
mod served;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use proptest::prelude::*;
use served::{MIB, NQN, Server, Volatile, within};
use underlay_nvme::auth::{AuthError, AuthHash, AuthSecret, ControllerSecrets, HostSecrets};
use underlay_nvme::initiator::{ControllerOptions, InitiatorError, NvmeController, RemoteDevice, discover};
use underlay_nvme::log_page::DiscoveredKind;
use underlay_nvme::pdu::Digests;
use underlay_nvme::target::AllowedHosts;
use underlay_storage::device::{BlockDevice, DeviceError, DeviceRequest};

const BLOCK: u64 = 4096;

fn options(address: SocketAddr) -> ControllerOptions {
    ControllerOptions::new(address.to_string(), NQN)
}

fn open(options: ControllerOptions) -> (NvmeController, RemoteDevice) {
    let controller = NvmeController::connect(options).unwrap();
    let device = controller.namespace(1).unwrap();
    (controller, device)
}

fn write(device: &RemoteDevice, offset_bytes: u64, data: Vec<u8>) {
    device.execute(DeviceRequest::Write { offset_bytes, data, fua: false }).unwrap();
}

fn read(device: &RemoteDevice, offset_bytes: u64, length: usize) -> Vec<u8> {
    device.execute(DeviceRequest::Read { offset_bytes, buffer: vec![0xee; length] }).unwrap()
}

#[derive(Clone, Debug)]
enum Step {
    Write { block: u64, blocks: u64, fill: u8, fua: bool },
    Read { block: u64, blocks: u64 },
    Discard { block: u64, blocks: u64 },
    Flush,
}

const BLOCKS: u64 = 1024;

fn step() -> impl Strategy<Value = Step> {
    // Most are short; some longer than a transfer may be.
    let extent = (0..BLOCKS, prop_oneof![4 => 1..12_u64, 1 => 200..700_u64])
        .prop_map(|(block, blocks)| (block, blocks.min(BLOCKS - block)));
    prop_oneof![
        4 => (extent.clone(), any::<u8>(), any::<bool>())
            .prop_map(|((block, blocks), fill, fua)| Step::Write { block, blocks, fill, fua }),
        4 => extent.clone().prop_map(|(block, blocks)| Step::Read { block, blocks }),
        1 => extent.prop_map(|(block, blocks)| Step::Discard { block, blocks }),
        1 => Just(Step::Flush),
    ]
}

fn apply(device: &RemoteDevice, reference: &mut [u8], step: Step) {
    let range = |block: u64, blocks: u64| (block * BLOCK) as usize..((block + blocks) * BLOCK) as usize;
    match step {
        Step::Write { block, blocks, fill, fua } => {
            let data: Vec<u8> =
                range(block, blocks).map(|position| fill.wrapping_add((position / 512) as u8)).collect();
            reference[range(block, blocks)].copy_from_slice(&data);
            device.execute(DeviceRequest::Write { offset_bytes: block * BLOCK, data, fua }).unwrap();
        }
        Step::Read { block, blocks } => {
            let found = read(device, block * BLOCK, (blocks * BLOCK) as usize);
            assert!(found == reference[range(block, blocks)], "a read of {blocks} blocks at {block}");
        }
        Step::Discard { block, blocks } => {
            reference[range(block, blocks)].fill(0);
            let request =
                DeviceRequest::Discard { offset_bytes: block * BLOCK, length_bytes: blocks * BLOCK };
            device.execute(request).unwrap();
        }
        Step::Flush => drop(device.execute(DeviceRequest::Flush).unwrap()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn namespace_holds_written_bytes(
        steps in prop::collection::vec(step(), 1..60),
        header in any::<bool>(), data in any::<bool>(), queues in 1_u16..4, depth in prop_oneof![Just(1_u16), Just(32)],
    ) {
        let server = Server::start(BLOCKS * BLOCK);
        let digests = Digests { header, data };
        let (_, device) =
            open(ControllerOptions { digests, queues, queue_depth: depth, ..options(server.address()) });
        let mut reference = vec![0; (BLOCKS * BLOCK) as usize];
        for step in steps {
            apply(&device, &mut reference, step);
        }
        prop_assert!(read(&device, 0, reference.len()) == reference);
    }
}

#[test]
fn many_requests_under_way_from_several_threads() {
    within(60, || {
        let server = Server::start(64 * MIB);
        // Far more requests than places.
        let (controller, device) = open(ControllerOptions { queue_depth: 4, ..options(server.address()) });
        assert_eq!(controller.io_queues(), 2);
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let device = &device;
                scope.spawn(move || {
                    let (sender, receiver) = mpsc::channel();
                    for number in 0..500_u64 {
                        let offset_bytes = (thread * 500 + number) * BLOCK;
                        let data = [thread, number].map(u64::to_le_bytes).concat().repeat(256);
                        let sender = sender.clone();
                        let done = Box::new(move |completion| sender.send(completion).unwrap());
                        device.submit(DeviceRequest::Write { offset_bytes, data, fua: false }, done);
                    }
                    (0..500).for_each(|_| drop(receiver.recv().unwrap().unwrap()));
                });
            }
        });
        for (thread, number) in (0..4_u64).flat_map(|thread| (0..500_u64).map(move |number| (thread, number)))
        {
            let found = read(&device, (thread * 500 + number) * BLOCK, BLOCK as usize);
            assert!(found == [thread, number].map(u64::to_le_bytes).concat().repeat(256));
        }
        let figures = controller.figures();
        assert_eq!((figures.read_bytes, figures.written_bytes), (2000 * BLOCK, 2000 * BLOCK));
        assert!(figures.requests >= 4000 && figures.command.count == figures.requests, "{figures:?}");
        assert_eq!((figures.reconnects, figures.resent), (0, 0));
    });
}

#[test]
fn requests_that_make_no_sense_are_refused_here() {
    let server = Server::start(MIB);
    let (_, device) = open(options(server.address()));
    let outside = device.execute(DeviceRequest::Read { offset_bytes: MIB, buffer: vec![0; 4096] });
    assert!(matches!(outside, Err(DeviceError::OutOfRange { .. })), "{outside:?}");
    let crooked = device.execute(DeviceRequest::Read { offset_bytes: 1, buffer: vec![0; 4096] });
    assert!(matches!(crooked, Err(DeviceError::Unaligned { .. })), "{crooked:?}");
    assert_eq!(device.execute(DeviceRequest::Read { offset_bytes: 0, buffer: Vec::new() }), Ok(Vec::new()));
}

#[test]
fn full_and_failing_devices_report_errors() {
    let server = Server::start(MIB);
    let (_, device) = open(options(server.address()));
    server.store.fail_with(Some(DeviceError::NoSpace));
    let full = device.execute(DeviceRequest::Write { offset_bytes: 0, data: vec![1; 4096], fua: false });
    assert_eq!(full, Err(DeviceError::NoSpace));
    server.store.fail_with(Some(DeviceError::Io("scratched".into())));
    let failed = device.execute(DeviceRequest::Read { offset_bytes: 0, buffer: vec![1; 4096] });
    assert!(matches!(failed, Err(DeviceError::Io(_))), "{failed:?}");
    server.store.fail_with(None);
    write(&device, 0, vec![1; 4096]);
}

/// Restarted with all that was written, as after a loss of the network: nobody above notices.
#[test]
fn target_restart_is_invisible() {
    within(120, || {
        let mut server = Server::start(16 * MIB);
        let (controller, device) = open(options(server.address()));
        let stop = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..3_u64)
            .map(|writer| {
                let (device, stop) = (device.clone(), Arc::clone(&stop));
                std::thread::spawn(move || {
                    let mut version = 0_u64;
                    while !stop.load(Ordering::SeqCst) {
                        version += 1;
                        let block = writer * 1000 + version % 100;
                        write(&device, block * BLOCK, version.to_le_bytes().repeat(512));
                        let found = read(&device, block * BLOCK, BLOCK as usize);
                        assert!(found == version.to_le_bytes().repeat(512), "writer {writer}: {version}");
                    }
                    version
                })
            })
            .collect();
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(150));
            server.restart();
        }
        // Restarts that fall into the middle of finding it again are no reconnection more.
        while controller.figures().reconnects < 5 {
            let before = controller.figures().reconnects;
            server.restart();
            while controller.figures().reconnects == before {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        stop.store(true, Ordering::SeqCst);
        for (writer, thread) in writers.into_iter().enumerate() {
            let last = thread.join().unwrap();
            assert!(last > 0);
            let block = writer as u64 * 1000 + last % 100;
            assert!(read(&device, block * BLOCK, BLOCK as usize) == last.to_le_bytes().repeat(512));
        }
    });
}

/// A target that dies with its write cache: what was answered before a flush that is answered is there.
#[test]
fn cache_of_dead_target_is_rewritten_before_flush() {
    within(120, || {
        let mut server = Server::start(16 * MIB);
        let (controller, device) = open(options(server.address()));
        let mut reference = vec![0_u8; (16 * MIB) as usize];
        for round in 0..6_u8 {
            for number in 0..40_u64 {
                // The same blocks again and again, by each kind of write.
                let block = (number * 7 + u64::from(round)) % 50;
                let range = (block * BLOCK) as usize..((block + 2) * BLOCK) as usize;
                let offset_bytes = block * BLOCK;
                if number % 9 == 8 {
                    reference[range].fill(0);
                    device.execute(DeviceRequest::Discard { offset_bytes, length_bytes: 2 * BLOCK }).unwrap();
                } else {
                    let data = vec![round * 40 + number as u8; 2 * BLOCK as usize];
                    reference[range].copy_from_slice(&data);
                    let fua = number % 5 == 4;
                    device.execute(DeviceRequest::Write { offset_bytes, data, fua }).unwrap();
                }
            }
            // The power goes: what no flush had covered is lost there.
            server.restart_after_power_cut();
            device.execute(DeviceRequest::Flush).unwrap();
            assert_eq!(controller.figures().reconnects, u64::from(round) + 1);
            assert!(server.store.durable() == reference, "round {round}");
        }
    });
}

#[test]
fn absent_target_is_given_up_after_timeout() {
    within(60, || {
        let mut server = Server::start(MIB);
        let loss_timeout = Duration::from_millis(300);
        let (controller, device) = open(ControllerOptions { loss_timeout, ..options(server.address()) });
        write(&device, 0, vec![1; 4096]);
        server.stop();
        let lost = device.execute(DeviceRequest::Read { offset_bytes: 0, buffer: vec![0; 4096] });
        assert_eq!(lost, Err(DeviceError::Gone));
        assert_eq!(device.execute(DeviceRequest::Flush), Err(DeviceError::Gone));
        assert!(matches!(controller.namespaces(), Err(InitiatorError::Lost { .. })));
    });
}

#[test]
fn new_size_is_noticed() {
    within(60, || {
        let server = Server::start(MIB);
        let (_, device) = open(options(server.address()));
        server.resize(4 * MIB);
        while device.geometry().capacity_bytes != 4 * MIB {
            std::thread::sleep(Duration::from_millis(5));
        }
        write(&device, 3 * MIB, vec![3; 4096]);
        server.resize(2 * MIB);
        while device.geometry().capacity_bytes != 2 * MIB {
            std::thread::sleep(Duration::from_millis(5));
        }
        let outside = device.execute(DeviceRequest::Read { offset_bytes: 3 * MIB, buffer: vec![0; 4096] });
        assert!(matches!(outside, Err(DeviceError::OutOfRange { .. })), "{outside:?}");
    });
}

#[test]
fn subsystems_are_discovered_and_namespaces_listed() {
    let server = Server::start(MIB);
    let entries = discover(&options(server.address())).unwrap();
    let found: Vec<_> = entries.iter().filter(|entry| entry.kind == DiscoveredKind::Nvm).collect();
    assert_eq!(found.len(), 1, "{entries:?}");
    assert_eq!(found[0].subsystem_nqn, NQN);
    assert_eq!(found[0].service, server.address().port().to_string());
    let (controller, device) = open(options(server.address()));
    assert_eq!((controller.namespaces().unwrap(), device.nsid()), (vec![1], 1));
    let missing = controller.namespace(7).err().unwrap().to_string();
    assert!(missing.contains("no namespace 7") && missing.contains("only 1"), "{missing}");
}

#[test]
fn hosts_prove_who_they_are() {
    let server = Server::start(MIB);
    let secret = || AuthSecret::generate(AuthHash::Sha384).unwrap();
    let (host, controller, wrong) = (secret(), secret(), secret());
    server.subsystem().set_hosts(AllowedHosts::Any(Some(ControllerSecrets {
        host: host.clone(),
        controller: Some(controller.clone()),
    })));
    let connect = |secrets: Option<HostSecrets>| {
        let connected = NvmeController::connect(ControllerOptions { secrets, ..options(server.address()) });
        connected.map(|connected| {
            let device = connected.namespace(1).unwrap();
            write(&device, 0, vec![9; 4096]);
            assert!(read(&device, 0, 4096) == vec![9; 4096]);
        })
    };
    let secrets = |host: &AuthSecret, controller: Option<&AuthSecret>| {
        Some(HostSecrets { host: host.clone(), controller: controller.cloned() })
    };
    connect(secrets(&host, None)).unwrap();
    connect(secrets(&host, Some(&controller))).unwrap();
    let refused = connect(None).unwrap_err();
    assert!(matches!(refused, InitiatorError::AuthenticationRequired(_)), "{refused}");
    let refused = connect(secrets(&wrong, None)).unwrap_err();
    assert!(matches!(refused, InitiatorError::Authentication(AuthError::Refused(_))), "{refused}");
    let refused = connect(secrets(&host, Some(&wrong))).unwrap_err();
    assert!(matches!(refused, InitiatorError::Authentication(AuthError::ControllerUnproved)), "{refused}");
}

#[test]
fn refused_host_gets_reason() {
    let server = Server::start(MIB);
    server.subsystem().set_hosts(AllowedHosts::Listed(Default::default()));
    let refused = NvmeController::connect(options(server.address())).err().unwrap().to_string();
    assert!(refused.contains("not on its list"), "{refused}");
    let unknown = ControllerOptions {
        subsystem_nqn: "nqn.2026-01.org.example:none".into(),
        ..options(server.address())
    };
    let refused = NvmeController::connect(unknown).err().unwrap().to_string();
    assert!(refused.contains("nqn.2026-01.org.example:none"), "{refused}");
    let unused_address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = NvmeController::connect(options(unused_address)).err().unwrap();
    assert!(matches!(refused, InitiatorError::Unreachable { .. }), "{refused}");
}

/// A server that answers with something else, or with nothing, causes an error and no panic.
#[test]
fn other_server_is_no_target() {
    let answers: [&[u8]; 4] =
        [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", &[0; 128], &[1, 0, 128, 0, 255, 255, 0, 0]];
    for answer in answers {
        within(30, move || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let server = std::thread::spawn(move || {
                let (mut stream, _): (TcpStream, _) = listener.accept().unwrap();
                let mut request = [0; 128];
                stream.read_exact(&mut request).unwrap();
                stream.write_all(answer).unwrap();
            });
            let connect_timeout = Duration::from_millis(500);
            let refused = NvmeController::connect(ControllerOptions { connect_timeout, ..options(address) })
                .err()
                .unwrap();
            assert!(
                matches!(refused, InitiatorError::Protocol { .. } | InitiatorError::Unreachable { .. }),
                "{refused}"
            );
            server.join().unwrap();
        });
    }
}

/// Requests outlive the handles that sent them: each is answered, by an error if need be.
#[test]
fn dropping_the_last_handle_answers_everything() {
    within(60, || {
        let server = Server::start(MIB);
        let (controller, device) = open(options(server.address()));
        server.store.hold(true);
        let (sender, receiver) = mpsc::channel();
        for _ in 0..300 {
            let sender = sender.clone();
            let done = Box::new(move |completion| sender.send(completion).unwrap());
            device.submit(DeviceRequest::Read { offset_bytes: 0, buffer: vec![0; 4096] }, done);
        }
        drop((controller, device));
        for _ in 0..300 {
            assert_eq!(receiver.recv().unwrap(), Err(DeviceError::Gone));
        }
        server.store.hold(false);
    });
}

#[test]
fn test_store_loses_unflushed_data() {
    let store = Volatile::new(2 * BLOCK);
    let write = |offset_bytes: u64, fua: bool| {
        store.execute(DeviceRequest::Write { offset_bytes, data: vec![7; BLOCK as usize], fua }).unwrap();
    };
    write(0, false);
    write(BLOCK, true);
    store.cut_power();
    assert!(store.durable()[..BLOCK as usize].iter().all(|byte| *byte == 0));
    assert!(store.durable()[BLOCK as usize..].iter().all(|byte| *byte == 7));
}
