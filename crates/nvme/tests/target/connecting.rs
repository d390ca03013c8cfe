//! Connecting queues, enabling, authenticating, discovering, leaving.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use underlay_nvme::auth::{
    AuthHash, AuthSecret, ControllerSecrets, HostSecrets, HostSession, HostStep, SessionEntropy,
};
use underlay_nvme::command::{NvmeCommand, SglDescriptor, admin, nvm};
use underlay_nvme::fabrics::{
    ANY_CONTROLLER, AuthCommand, CC_ENABLE, CC_ENTRY_SIZES, CC_SHUTDOWN_NORMAL, CONNECT_AUTHENTICATION,
    ConnectCommand, ConnectData, DISCOVERY_NQN, InvalidParameter, PropertyGet, PropertySet,
    disconnect_command, property,
};
use underlay_nvme::identify::{
    ControllerData, ControllerKind, NamespaceData, NamespaceDescriptors, cns, decode_namespace_list,
};
use underlay_nvme::log_page::{self, DiscoveryEntry, DiscoveryHead, GetLogPage};
use underlay_nvme::status::NvmeStatus;
use underlay_nvme::target::{AllowedHosts, SubsystemConfig};

use crate::host::{HOST_ID, HOST_NQN, Host, PLAIN, Style, connect_data};
use crate::{CAPACITY_BYTES, Fixture, NQN, wait_until};

#[test]
fn controller_identifies_itself() {
    let fixture = Fixture::open_to_all();
    let mut host = fixture.admin();
    let data = ControllerData::decode(&host.identify_page(cns::CONTROLLER, 0));
    assert_eq!(data.controller_id, host.controller_id);
    assert_eq!((data.subsystem_nqn.as_str(), data.serial_number.as_str()), (NQN, "U1"));
    assert_eq!(data.kind, ControllerKind::Io);
    assert!(data.keep_alive_granularity > 0 && data.has_volatile_write_cache() && data.fused_operations == 0);
    assert_eq!(data.in_capsule_data_offset_units, 0);
    assert_eq!(data.max_transfer_bytes(), Some(1 << 20));

    let list = decode_namespace_list(&host.identify_page(cns::ACTIVE_NAMESPACES, 0));
    assert_eq!(list, [1]);
    assert!(decode_namespace_list(&host.identify_page(cns::ACTIVE_NAMESPACES, 1)).is_empty());
    let namespace = NamespaceData::decode(&host.identify_page(cns::NAMESPACE, 1)).unwrap();
    assert_eq!(namespace.size_blocks * u64::from(namespace.block_bytes), CAPACITY_BYTES);
    assert!(namespace.reads_zeros_after_deallocation && namespace.write_zeroes_deallocates);
    assert_eq!(namespace.nguid, [1; 16]);
    let descriptors = NamespaceDescriptors::decode(&host.identify_page(cns::NAMESPACE_DESCRIPTORS, 1));
    assert_eq!((descriptors.uuid, descriptors.command_set), (Some([1; 16]), Some(0)));

    // One that isn't there but could be is all zeros; one that can't be is refused.
    assert!(host.identify_page(cns::NAMESPACE, 2).iter().all(|byte| *byte == 0));
    for (asked, nsid) in [(cns::NAMESPACE, 0), (cns::NAMESPACE, u32::MAX), (cns::NAMESPACE_DESCRIPTORS, 2)] {
        let status = host.identify(asked, nsid).status();
        assert_eq!(status.plain(), NvmeStatus::INVALID_NAMESPACE);
        assert!(status.says_do_not_retry());
    }
    for asked in [cns::COMMAND_SET_CONTROLLER, cns::CONTROLLERS, cns::COMMAND_SET_ACTIVE_NAMESPACES] {
        host.identify(asked, 0).expect_success();
    }
    for asked in [cns::INDEPENDENT_NAMESPACE, cns::COMMAND_SET_NAMESPACE, cns::ATTACHED_CONTROLLERS] {
        host.identify(asked, 1).expect_success();
    }
    assert_eq!(host.identify(0x7e, 1).status().plain(), NvmeStatus::INVALID_FIELD);
}

#[test]
fn properties_are_those_of_the_specification() {
    let fixture = Fixture::open_to_all();
    let mut host = Host::begun(fixture.address, &PLAIN);
    host.connect(0, NQN, ANY_CONTROLLER, &PLAIN).expect_success();
    let command = PropertyGet { offset: property::CAP, is_wide: true }.to_command(host.cid());
    let capabilities = host.call(&command, &[]).expect_success().completion.result;
    assert_eq!(capabilities & 0xffff, 255);
    assert_ne!(capabilities & 1 << 37, 0, "the NVM command set");
    assert_eq!(host.property(property::VS), 0x0002_0000);
    assert_eq!(host.property(property::CSTS), 0);

    // Nothing but the fabric's commands before the controller is enabled.
    assert_eq!(host.identify(cns::CONTROLLER, 0).status().plain(), NvmeStatus::COMMAND_SEQUENCE_ERROR);
    let mut io = Host::begun(fixture.address, &PLAIN);
    let answer = io.connect(1, NQN, host.controller_id, &PLAIN);
    assert_eq!(answer.status().plain(), NvmeStatus::COMMAND_SEQUENCE_ERROR);

    for wrong in [
        PropertyGet { offset: property::CAP, is_wide: false }.to_command(host.cid()),
        PropertyGet { offset: 0x1234, is_wide: false }.to_command(host.cid()),
        PropertySet { offset: property::VS, is_wide: false, value: 1 }.to_command(host.cid()),
        // Pages of 8 KiB.
        PropertySet { offset: property::CC, is_wide: false, value: u64::from(CC_ENABLE | 1 << 7) }
            .to_command(host.cid()),
    ] {
        assert_eq!(host.call(&wrong, &[]).status().plain(), NvmeStatus::INVALID_FIELD);
    }
    host.enable();
    host.identify(cns::CONTROLLER, 0).expect_success();
}

fn refused(
    fixture: &Fixture,
    queue_id: u16,
    data: &ConnectData,
    style: &Style,
) -> (NvmeStatus, InvalidParameter) {
    let mut host = Host::begun(fixture.address, style);
    let answer = host.connect_as(queue_id, data, style);
    assert!(answer.status().says_do_not_retry(), "{:?}", answer.status());
    (answer.status().plain(), InvalidParameter::from_result(answer.completion.result))
}

#[test]
fn wrong_connect_is_refused_with_wrong_parameter() {
    let fixture = Fixture::open_to_all();
    let admin = fixture.admin();
    let right = connect_data(NQN, ANY_CONTROLLER);
    let in_data =
        |offset| (NvmeStatus::CONNECT_INVALID_PARAMETERS, InvalidParameter { offset, is_in_data: true });
    let in_command =
        |offset| (NvmeStatus::CONNECT_INVALID_PARAMETERS, InvalidParameter { offset, is_in_data: false });

    let unknown = ConnectData { subsystem_nqn: "nqn.2026-01.test:nobody".to_owned(), ..right.clone() };
    assert_eq!(refused(&fixture, 0, &unknown, &PLAIN), in_data(256));
    let nameless = ConnectData { host_nqn: String::new(), ..right.clone() };
    assert_eq!(refused(&fixture, 0, &nameless, &PLAIN), in_data(512));
    for name in [
        "hello",
        "iqn.1994-05.com.example:abc",
        "host with blanks",
        "nqn.2014-08.org.example:a ",
        DISCOVERY_NQN,
    ] {
        let misnamed = ConnectData { host_nqn: name.to_owned(), ..right.clone() };
        assert_eq!(refused(&fixture, 0, &misnamed, &PLAIN), in_data(512), "{name}");
        let misnamed = ConnectData { subsystem_nqn: DISCOVERY_NQN.to_owned(), ..misnamed };
        assert_eq!(refused(&fixture, 0, &misnamed, &PLAIN), in_data(512), "{name}, discovery");
    }
    for subsystem in [NQN, DISCOVERY_NQN] {
        let unidentified = ConnectData { host_id: [0; 16], ..connect_data(subsystem, ANY_CONTROLLER) };
        assert_eq!(refused(&fixture, 0, &unidentified, &PLAIN), in_data(0), "{subsystem}");
    }
    let particular = ConnectData { controller_id: 5, ..right.clone() };
    assert_eq!(refused(&fixture, 0, &particular, &PLAIN), in_data(16));
    assert_eq!(refused(&fixture, 0, &right, &Style { sq_size: 0, ..PLAIN }), in_command(44));
    assert_eq!(refused(&fixture, 0, &right, &Style { sq_size: 256, ..PLAIN }), in_command(44));

    let mine = ConnectData { controller_id: admin.controller_id, ..right.clone() };
    let other = ConnectData { controller_id: admin.controller_id + 1, ..right.clone() };
    assert_eq!(refused(&fixture, 1, &other, &PLAIN), in_data(16));
    let stranger = ConnectData { host_nqn: "nqn.2014-08.org.nvmexpress:other".to_owned(), ..mine.clone() };
    assert_eq!(refused(&fixture, 1, &stranger, &PLAIN), in_data(512));
    let twin = ConnectData { host_id: [8; 16], ..mine.clone() };
    assert_eq!(refused(&fixture, 1, &twin, &PLAIN), in_data(0));
    assert_eq!(refused(&fixture, 65, &mine, &PLAIN), in_command(42));
    let discovery = connect_data(DISCOVERY_NQN, ANY_CONTROLLER);
    assert_eq!(refused(&fixture, 1, &discovery, &PLAIN), in_command(42));

    let _io = admin.io(fixture.address, NQN, 1, &PLAIN);
    assert_eq!(
        refused(&fixture, 1, &mine, &PLAIN).0,
        NvmeStatus::COMMAND_SEQUENCE_ERROR,
        "the queue is there"
    );

    let mut host = Host::begun(fixture.address, &PLAIN);
    let format = ConnectCommand { record_format: 1, queue_id: 0, sq_size: 31, attributes: 0, kato_ms: 0 };
    let command = format.to_command(host.cid());
    let answer = host.call(&command, &right.encode());
    assert_eq!(answer.status().plain(), NvmeStatus::CONNECT_INCOMPATIBLE_FORMAT);
    // The same connection may try again, but connect only once.
    host.connect(0, NQN, ANY_CONTROLLER, &PLAIN).expect_success();
    assert_eq!(
        host.connect(0, NQN, ANY_CONTROLLER, &PLAIN).status().plain(),
        NvmeStatus::COMMAND_SEQUENCE_ERROR
    );
}

#[test]
fn commands_before_connect_are_refused() {
    let fixture = Fixture::open_to_all();
    let mut host = Host::begun(fixture.address, &PLAIN);
    assert_eq!(host.identify(cns::CONTROLLER, 0).status().plain(), NvmeStatus::COMMAND_SEQUENCE_ERROR);
    let get = PropertyGet { offset: property::CAP, is_wide: true }.to_command(host.cid());
    assert_eq!(host.call(&get, &[]).status().plain(), NvmeStatus::COMMAND_SEQUENCE_ERROR);
    // Not even the data of a write is asked for.
    let write = NvmeCommand::blocks(nvm::WRITE, 9, 1, SglDescriptor::transport(1 << 20), 0, 2048);
    host.send_command(&write, &[]);
    assert_eq!(host.finish(&write, &[]).status().plain(), NvmeStatus::COMMAND_SEQUENCE_ERROR);
    host.connect(0, NQN, ANY_CONTROLLER, &PLAIN).expect_success();
}

#[test]
fn only_listed_hosts_connect_and_see_the_subsystem() {
    let listed = |nqn: &str| AllowedHosts::Listed(BTreeMap::from([(nqn.to_owned(), None)]));
    let fixture = Fixture::with(listed(HOST_NQN), |_| {});
    let admin = fixture.admin();
    let stranger =
        ConnectData { host_nqn: "nqn.2014-08.org:x".to_owned(), ..connect_data(NQN, ANY_CONTROLLER) };
    assert_eq!(refused(&fixture, 0, &stranger, &PLAIN).0, NvmeStatus::CONNECT_INVALID_HOST);
    assert_eq!(discovered(&fixture, HOST_NQN), [NQN]);
    assert!(discovered(&fixture, "nqn.2014-08.org:x").is_empty());

    // One that is taken off the list is out at once.
    let (generation, _) = discovery(&fixture, HOST_NQN);
    fixture.subsystem.set_hosts(listed("nqn.2014-08.org:x"));
    admin.expect_end();
    assert_eq!(discovered(&fixture, "nqn.2014-08.org:x"), [NQN]);
    let (later, found) = discovery(&fixture, HOST_NQN);
    assert!(later != generation && found.is_empty(), "{found:?}");
}

/// The generation of the log, and the subsystems in it.
fn discovery(fixture: &Fixture, host_nqn: &str) -> (u64, Vec<String>) {
    let mut host = Host::begun(fixture.address, &PLAIN);
    let data = ConnectData { host_nqn: host_nqn.to_owned(), ..connect_data(DISCOVERY_NQN, ANY_CONTROLLER) };
    host.connect_as(0, &data, &PLAIN).expect_success();
    host.enable();
    let controller = ControllerData::decode(&host.identify_page(cns::CONTROLLER, 0));
    assert_eq!(controller.kind, ControllerKind::Discovery);
    assert_eq!(host.identify(cns::NAMESPACE, 1).status().plain(), NvmeStatus::INVALID_FIELD);
    let mut page = |offset: u64, length: u64| {
        let command = GetLogPage::new(log_page::DISCOVERY, offset, length).to_command(host.cid());
        host.call(&command, &[]).expect_success().data
    };
    let head = DiscoveryHead::decode(&page(0, 1024).try_into().unwrap());
    let found = (0..head.entries)
        .map(|page_number| {
            let bytes = page(1024 * (page_number + 1), 1024);
            let entry = DiscoveryEntry::decode(&bytes.try_into().unwrap());
            assert_eq!((entry.transport, entry.address_family), (DiscoveryEntry::TCP, DiscoveryEntry::IPV4));
            assert_eq!(format!("{}:{}", entry.address, entry.service), fixture.address.to_string());
            entry.subsystem_nqn
        })
        .collect();
    (head.generation, found)
}

fn discovered(fixture: &Fixture, host_nqn: &str) -> Vec<String> {
    discovery(fixture, host_nqn).1
}

#[test]
fn subsystems_come_and_go() {
    let fixture = Fixture::open_to_all();
    let second = "nqn.2026-01.test.underlay:second";
    let config = SubsystemConfig {
        nqn: second.to_owned(),
        serial_number: "2".to_owned(),
        hosts: AllowedHosts::Any(None),
    };
    let (before, _) = discovery(&fixture, HOST_NQN);
    fixture.target.subsystems().add(config.clone()).unwrap();
    assert!(fixture.target.subsystems().add(config).is_err());
    let (with_two, found) = discovery(&fixture, HOST_NQN);
    assert_eq!(found, [second, NQN]);
    assert_eq!(discovery(&fixture, HOST_NQN).0, with_two, "nothing has changed");
    let host = Host::admin(fixture.address, second, &PLAIN);
    fixture.target.subsystems().remove(second).unwrap();
    host.expect_end();
    let (after, found) = discovery(&fixture, HOST_NQN);
    assert_eq!(found, [NQN]);
    assert!(before < with_two && with_two < after, "{before}, {with_two}, {after}");
    assert!(fixture.target.subsystems().remove(second).is_err());
}

#[test]
fn silent_host_loses_controller_and_active_one_keeps_it() {
    let fixture = Fixture::open_to_all();
    let style = Style { kato_ms: 1500, ..PLAIN };
    let admin = Host::admin(fixture.address, NQN, &style);
    let io = admin.io(fixture.address, NQN, 1, &PLAIN);
    // Without a timeout nobody has to say anything.
    let mut quiet = fixture.admin();
    admin.expect_end();
    io.expect_end();
    quiet.keep_alive().expect_success();
    wait_until("the controller is gone", || fixture.subsystem.queues().len() == 1);
}

#[test]
fn silent_connection_is_ended() {
    let fixture = Fixture::with(AllowedHosts::Any(None), |config| {
        config.handshake_timeout = std::time::Duration::from_secs(1);
    });
    Host::silent(fixture.address).expect_end();
    Host::begun(fixture.address, &PLAIN).expect_end();
    let mut host = fixture.admin();
    wait_until("only one is left", || fixture.target.connections().len() == 1);
    host.keep_alive().expect_success();
}

#[test]
fn shutdown_flushes_and_reset_ends_io_queues() {
    let fixture = Fixture::open_to_all();
    let (mut admin, io) = fixture.queues(&PLAIN);
    let mut set = |value: u32| {
        let set = PropertySet { offset: property::CC, is_wide: false, value: u64::from(value) };
        let command = set.to_command(admin.cid());
        admin.call(&command, &[]).expect_success();
        admin.property(property::CSTS)
    };
    let flushes = fixture.device.flushes.load(Ordering::SeqCst);
    let status = set(CC_ENABLE | CC_ENTRY_SIZES | CC_SHUTDOWN_NORMAL);
    assert_eq!(status >> 2 & 3, 2, "shutdown is complete");
    assert_eq!(fixture.device.flushes.load(Ordering::SeqCst), flushes + 1);
    assert_eq!(set(CC_ENTRY_SIZES), 0);
    io.expect_end();
    assert_eq!(set(CC_ENABLE | CC_ENTRY_SIZES), 1);
    let _again = admin.io(fixture.address, NQN, 1, &PLAIN);
}

#[test]
fn disconnect_ends_io_queue_and_keeps_controller() {
    let fixture = Fixture::open_to_all();
    let (mut admin, mut io) = fixture.queues(&PLAIN);
    let command = disconnect_command(admin.cid());
    assert_eq!(admin.call(&command, &[]).status().plain(), NvmeStatus::INVALID_QUEUE_TYPE);
    let command = disconnect_command(io.cid());
    io.call(&command, &[]).expect_success();
    assert!(io.receive().is_none());
    wait_until("the queue is gone", || fixture.subsystem.queues().len() == 1);
    let mut io = admin.io(fixture.address, NQN, 1, &PLAIN);
    let flush = NvmeCommand::new(nvm::FLUSH, 9, 1, SglDescriptor::empty());
    io.call(&flush, &[]).expect_success();
    // Without its admin queue a controller is nothing.
    drop(admin);
    io.expect_end();
}

#[test]
fn returning_host_waits_for_its_earlier_commands() {
    let fixture = Fixture::open_to_all();
    let (admin, mut io) = fixture.queues(&PLAIN);
    fixture.device.holds_back.store(true, Ordering::SeqCst);
    let write = NvmeCommand::blocks(nvm::WRITE, 1, 1, SglDescriptor::new_in_capsule(512), 0, 1);
    io.send_command(&write, &[1; 512]);
    wait_until("the device has it", || fixture.device.held() == 1);
    drop((admin, io));
    fixture.device.holds_back.store(false, Ordering::SeqCst);
    let address = fixture.address;
    let came_back = std::thread::spawn(move || {
        let admin = Host::admin(address, NQN, &PLAIN);
        let mut io = admin.io(address, NQN, 1, &PLAIN);
        let write = NvmeCommand::blocks(nvm::WRITE, 1, 1, SglDescriptor::new_in_capsule(512), 0, 1);
        io.call(&write, &[2; 512]).expect_success();
    });
    // Were it let in now, the old write would come after the new one.
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!(fixture.device.content()[0], 0);
    fixture.device.release();
    came_back.join().unwrap();
    assert_eq!(fixture.device.content()[0], 2);
}

fn authenticate(host: &mut Host, secrets: HostSecrets) -> Result<(), String> {
    let mut session = HostSession::new(secrets, HOST_NQN, NQN, SessionEntropy::draw().unwrap());
    let mut message = session.start();
    loop {
        send_message(host, &message);
        let command = AuthCommand::new(4096).to_receive_command(host.cid());
        let answer = host.call(&command, &[]).expect_success();
        match session.receive(&answer.data) {
            HostStep::Exchange(next) => message = next,
            HostStep::SendAndFinish(last) => {
                send_message(host, &last);
                return Ok(());
            }
            HostStep::Finished => return Ok(()),
            HostStep::Failed { send, error } => {
                send.iter().for_each(|last| send_message(host, last));
                return Err(error.to_string());
            }
        }
    }
}

fn send_message(host: &mut Host, message: &[u8]) {
    let command = AuthCommand::new(message.len() as u32).to_send_command(host.cid());
    host.call(&command, message).expect_success();
}

#[test]
fn host_secret_is_proven_on_each_queue() {
    let secret = |seed: u8| AuthSecret::new(Some(AuthHash::Sha256), vec![seed; 32]).unwrap();
    let secrets = ControllerSecrets { host: secret(1), controller: Some(secret(2)) };
    let fixture =
        Fixture::with(AllowedHosts::Listed(BTreeMap::from([(HOST_NQN.to_owned(), Some(secrets))])), |_| {});
    let host_secrets =
        |host: u8, controller: u8| HostSecrets { host: secret(host), controller: Some(secret(controller)) };
    let connected = |queue_id: u16, controller_id: u16| {
        let mut host = Host::begun(fixture.address, &PLAIN);
        let answer = host.connect(queue_id, NQN, controller_id, &PLAIN).expect_success();
        assert_ne!(answer.completion.result & u64::from(CONNECT_AUTHENTICATION), 0);
        host
    };
    let mut admin = connected(0, ANY_CONTROLLER);
    let get = PropertyGet { offset: property::CSTS, is_wide: false }.to_command(admin.cid());
    assert_eq!(admin.call(&get, &[]).status().plain(), NvmeStatus::AUTHENTICATION_REQUIRED);
    authenticate(&mut admin, host_secrets(1, 2)).unwrap();
    admin.enable();

    let mut io = connected(1, admin.controller_id);
    let read = NvmeCommand::blocks(nvm::READ, 77, 1, SglDescriptor::transport(512), 0, 1);
    assert_eq!(io.call(&read, &[]).status().plain(), NvmeStatus::AUTHENTICATION_REQUIRED);
    authenticate(&mut io, host_secrets(1, 2)).unwrap();
    io.call(&read, &[]).expect_success();

    let mut wrong = connected(0, ANY_CONTROLLER);
    assert!(authenticate(&mut wrong, host_secrets(3, 2)).is_err());
    wrong.expect_end();
    let mut mistrusting = connected(0, ANY_CONTROLLER);
    assert!(authenticate(&mut mistrusting, host_secrets(1, 3)).is_err());
    admin.identify(cns::CONTROLLER, 0).expect_success();
    assert_eq!(HOST_ID.len(), 16);
    let keep_alive = NvmeCommand::new(admin::KEEP_ALIVE, 99, 0, SglDescriptor::empty());
    admin.call(&keep_alive, &[]).expect_success();
}
