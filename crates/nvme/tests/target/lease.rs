//! Who may write, and what of former connections may still happen.

use std::sync::atomic::Ordering;
use std::time::Duration;

use underlay_nvme::command::{DATASET_DEALLOCATE, DatasetRange, NvmeCommand, SglDescriptor, admin, nvm};
use underlay_nvme::fabrics::{
    ANY_CONTROLLER, CC_ENABLE, CC_ENTRY_SIZES, CC_SHUTDOWN_NORMAL, PropertySet, property,
};
use underlay_nvme::status::NvmeStatus;
use underlay_nvme::target::{NamespaceConfig, WriterPolicy};

use crate::host::{Host, PLAIN, connect_data};
use crate::{Fixture, NQN, wait_until};

const OTHER_HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:0d2c5f0e-0000-4000-8000-000000000002";

/// The queues of another host.
fn other(fixture: &Fixture) -> (Host, Host) {
    let mut data = connect_data(NQN, ANY_CONTROLLER);
    (data.host_nqn, data.host_id) = (OTHER_HOST.to_owned(), [8; 16]);
    let mut admin = Host::begun(fixture.address, &PLAIN);
    admin.connect_as(0, &data, &PLAIN).expect_success();
    admin.enable();
    data.controller_id = admin.controller_id;
    let mut io = Host::begun(fixture.address, &PLAIN);
    io.connect_as(1, &data, &PLAIN).expect_success();
    (admin, io)
}

fn write_command(host: &mut Host, nsid: u32) -> NvmeCommand {
    NvmeCommand::blocks(nvm::WRITE, host.cid(), nsid, SglDescriptor::new_in_capsule(512), 0, 1)
}

fn write(host: &mut Host, fill: u8) -> NvmeStatus {
    let command = write_command(host, 1);
    host.call(&command, &[fill; 512]).status()
}

fn configure(admin: &mut Host, value: u32) {
    let set = PropertySet { offset: property::CC, is_wide: false, value: u64::from(value) };
    let command = set.to_command(admin.cid());
    admin.call(&command, &[]).expect_success();
}

fn take_leave(admin: &mut Host) {
    configure(admin, CC_ENABLE | CC_ENTRY_SIZES | CC_SHUTDOWN_NORMAL);
}

fn replace_former(admin: &mut Host, instance: u32, number: u32) -> NvmeStatus {
    let mut command = NvmeCommand::new(admin::REPLACE_FORMER, admin.cid(), 0, SglDescriptor::empty());
    (command.dwords[0], command.dwords[2]) = (instance, number);
    admin.call(&command, &[]).status()
}

#[test]
fn second_writing_host_is_refused_until_first_leaves() {
    let fixture = Fixture::open_to_all();
    let (mut admin, mut io) = fixture.queues(&PLAIN);
    let (_other_admin, mut other_io) = other(&fixture);
    assert!(write(&mut io, 1).is_success());
    let conflict =
        |status: NvmeStatus| status.plain() == NvmeStatus::RESERVATION_CONFLICT && status.says_do_not_retry();
    assert!(conflict(write(&mut other_io, 2)));
    let zeroes = NvmeCommand::blocks(nvm::WRITE_ZEROES, other_io.cid(), 1, SglDescriptor::empty(), 0, 1);
    assert!(conflict(other_io.call(&zeroes, &[]).status()));
    let range = DatasetRange { attributes: 0, blocks: 1, lba: 0 }.encode();
    let mut deallocate =
        NvmeCommand::new(nvm::DATASET_MANAGEMENT, other_io.cid(), 1, SglDescriptor::new_in_capsule(16));
    deallocate.dwords[1] = DATASET_DEALLOCATE;
    assert!(conflict(other_io.call(&deallocate, &range).status()));
    // It may read and flush.
    let read = NvmeCommand::blocks(nvm::READ, other_io.cid(), 1, SglDescriptor::transport(512), 0, 1);
    assert_eq!(other_io.call(&read, &[]).expect_success().data, [1; 512]);
    let flush = NvmeCommand::new(nvm::FLUSH, other_io.cid(), 1, SglDescriptor::empty());
    other_io.call(&flush, &[]).expect_success();
    take_leave(&mut admin);
    assert!(write(&mut other_io, 2).is_success());
    assert!(conflict(write(&mut io, 3)));
    assert_eq!(fixture.device.content()[0], 2);
    assert_eq!(fixture.subsystem.namespace(1).unwrap().writer().unwrap().nqn, OTHER_HOST);
}

#[test]
fn vanished_host_keeps_lease_for_grace_period() {
    let fixture = Fixture::open_to_all();
    let (admin, mut io) = fixture.queues(&PLAIN);
    assert!(write(&mut io, 1).is_success());
    drop((admin, io));
    wait_until("it is gone", || fixture.subsystem.queues().is_empty());
    let (_other_admin, mut other_io) = other(&fixture);
    assert_eq!(write(&mut other_io, 2).plain(), NvmeStatus::RESERVATION_CONFLICT);
    let (_admin, mut io) = fixture.queues(&PLAIN);
    assert!(write(&mut io, 3).is_success());
}

#[test]
fn shared_namespace_accepts_writes_of_all_hosts() {
    let fixture = Fixture::open_to_all();
    let config = NamespaceConfig { nsid: 2, uuid: [2; 16], device: fixture.device.clone() };
    fixture.subsystem.add_namespace_for(config, WriterPolicy::All).unwrap();
    let (_admin, mut io) = fixture.queues(&PLAIN);
    let (_other_admin, mut other_io) = other(&fixture);
    for host in [&mut io, &mut other_io] {
        let command = write_command(host, 2);
        host.call(&command, &[1; 512]).expect_success();
    }
}

#[test]
fn first_write_of_new_host_follows_last_of_former() {
    let fixture = Fixture::open_to_all();
    let (mut admin, mut io) = fixture.queues(&PLAIN);
    let (_other_admin, mut other_io) = other(&fixture);
    fixture.device.holds_back.store(true, Ordering::SeqCst);
    let command = write_command(&mut io, 1);
    io.send_command(&command, &[1; 512]);
    wait_until("the device has it", || fixture.device.held() == 1);
    fixture.device.holds_back.store(false, Ordering::SeqCst);
    take_leave(&mut admin);
    let command = write_command(&mut other_io, 1);
    other_io.send_command(&command, &[2; 512]);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(fixture.device.content()[0], 0);
    fixture.device.release();
    other_io.finish(&command, &[]).expect_success();
    assert_eq!(fixture.device.content()[0], 2);
}

/// The connection is alive as far as the target knows: its host has long made another one.
#[test]
fn write_on_replaced_connection_never_happens() {
    let fixture = Fixture::open_to_all();
    let (mut admin, mut io) = fixture.queues(&PLAIN);
    assert!(replace_former(&mut admin, 5, 1).is_success());
    // Another instance of the same host keeps its connections.
    let (mut neighbour_admin, mut neighbour_io) = fixture.queues(&PLAIN);
    assert!(replace_former(&mut neighbour_admin, 6, 9).is_success());
    fixture.device.holds_back.store(true, Ordering::SeqCst);
    let command = write_command(&mut io, 1);
    io.send_command(&command, &[1; 512]);
    wait_until("the device has it", || fixture.device.held() == 1);
    fixture.device.holds_back.store(false, Ordering::SeqCst);
    let address = fixture.address;
    let replaced = std::thread::spawn(move || {
        let mut admin = Host::admin(address, NQN, &PLAIN);
        assert!(replace_former(&mut admin, 5, 2).is_success());
        let mut io = admin.io(address, NQN, 1, &PLAIN);
        assert!(write(&mut io, 2).is_success());
        (admin, io)
    });
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(fixture.device.content()[0], 0);
    fixture.device.release();
    let new = replaced.join().unwrap();
    assert_eq!(fixture.device.content()[0], 2);
    // The old connections have ended, and take no more commands.
    io.expect_end();
    admin.expect_end();
    // The neighbour's have not, though only one of the two may write.
    assert_eq!(write(&mut neighbour_io, 4).plain(), NvmeStatus::RESERVATION_CONFLICT);
    let mut late = fixture.admin();
    assert!(!replace_former(&mut late, 5, 1).is_success());
    drop((new, late));
    wait_until("it is gone", || write(&mut neighbour_io, 4).is_success());
}

#[test]
fn queue_after_reset_waits_for_old_commands() {
    let fixture = Fixture::open_to_all();
    let (mut admin, mut io) = fixture.queues(&PLAIN);
    fixture.device.holds_back.store(true, Ordering::SeqCst);
    let command = write_command(&mut io, 1);
    io.send_command(&command, &[1; 512]);
    wait_until("the device has it", || fixture.device.held() == 1);
    fixture.device.holds_back.store(false, Ordering::SeqCst);
    configure(&mut admin, 0);
    admin.enable();
    let address = fixture.address;
    let writing = std::thread::spawn(move || {
        let mut io = admin.io(address, NQN, 1, &PLAIN);
        assert!(write(&mut io, 2).is_success());
    });
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(fixture.device.content()[0], 0);
    fixture.device.release();
    writing.join().unwrap();
    assert_eq!(fixture.device.content()[0], 2);
}
