//! A thousand connections at once.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use underlay_nvme::command::{NvmeCommand, SglDescriptor, nvm};
use underlay_nvme::target::AllowedHosts;

use crate::host::{Host, PLAIN};
use crate::{Fixture, NQN, wait_until};

const HOSTS: usize = 10;
const QUEUES: u16 = 63;
/// Hosts that have nothing but an admin queue.
const IDLE: usize = 360;

#[test]
fn thousand_connections_get_their_answers() {
    // Each connection is two descriptors here: the host's and the target's, and the host's reading half a third.
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(8192, |maximum| maximum.min(8192));
    let current = limit.current.map_or(wanted, |current| current.max(wanted));
    setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum: limit.maximum }).unwrap();

    let fixture = Fixture::with(AllowedHosts::Any(None), |_| {});
    let mut idle: Vec<Host> = (0..IDLE).map(|_| fixture.admin()).collect();
    let admins: Vec<Host> = (0..HOSTS).map(|_| fixture.admin()).collect();
    let address = fixture.address;
    let mut queues: Vec<Host> = admins
        .iter()
        .flat_map(|admin| (1..=QUEUES).map(move |queue_id| admin.io(address, NQN, queue_id, &PLAIN)))
        .collect();
    let connections = IDLE + HOSTS * (usize::from(QUEUES) + 1);
    assert_eq!(connections, 1000);
    assert_eq!(fixture.target.connections().len(), connections);
    assert_eq!(fixture.subsystem.queues().len(), connections);

    // All ask before anybody looks at an answer.
    for (index, queue) in queues.iter_mut().enumerate() {
        let lba = index as u64 * 8;
        let write = NvmeCommand::blocks(nvm::WRITE, 1, 1, SglDescriptor::new_in_capsule(4096), lba, 8);
        queue.send_command(&write, &[index as u8; 4096]);
    }
    for (index, queue) in queues.iter_mut().enumerate() {
        let write =
            NvmeCommand::blocks(nvm::WRITE, 1, 1, SglDescriptor::new_in_capsule(4096), index as u64 * 8, 8);
        queue.finish(&write, &[]).expect_success();
        let read = NvmeCommand::blocks(nvm::READ, 2, 1, SglDescriptor::transport(4096), index as u64 * 8, 8);
        assert_eq!(queue.call(&read, &[]).expect_success().data, [index as u8; 4096]);
    }
    idle.iter_mut().for_each(|host| {
        host.keep_alive().expect_success();
    });
    let commands: u64 = fixture.target.connections().iter().map(|connection| connection.commands).sum();
    assert!(commands >= (connections + 2 * queues.len() + IDLE) as u64, "{commands} commands");
    drop((idle, admins));
    wait_until("all are gone", || fixture.target.connections().is_empty());
    assert!(fixture.subsystem.queues().is_empty());
}

#[test]
fn connections_beyond_limit_are_closed() {
    let fixture = Fixture::with(AllowedHosts::Any(None), |config| config.max_connections = 3);
    let mut hosts: Vec<Host> = (0..3).map(|_| fixture.admin()).collect();
    Host::silent(fixture.address).expect_end();
    hosts.iter_mut().for_each(|host| {
        host.keep_alive().expect_success();
    });
    hosts.pop();
    wait_until("one has gone", || fixture.target.connections().len() == 2);
    fixture.admin();
}

#[test]
fn stopped_target_ends_connections_and_frees_port() {
    let fixture = Fixture::open_to_all();
    let (admin, io) = fixture.queues(&PLAIN);
    let address = fixture.address;
    fixture.target.stop();
    admin.expect_end();
    io.expect_end();
    let again = Fixture::with(AllowedHosts::Any(None), |config| config.listen = vec![address]);
    assert_eq!(again.address, address);
    again.admin().keep_alive().expect_success();
    let second_target = underlay_nvme::target::NvmeTarget::start(underlay_nvme::target::TargetConfig {
        listen: vec![address],
        ..Default::default()
    });
    assert!(second_target.is_err_and(|error| error.to_string().contains("cannot listen on")));
}
