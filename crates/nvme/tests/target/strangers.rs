//! Hosts that do not say who they are, or do not prove it.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::net::TcpStream;

use underlay_nvme::auth::{AuthHash, AuthSecret, ControllerSecrets};
use underlay_nvme::command::SglDescriptor;
use underlay_nvme::fabrics::{ANY_CONTROLLER, AuthCommand, DISCOVERY_NQN};
use underlay_nvme::status::NvmeStatus;
use underlay_nvme::target::AllowedHosts;

use crate::host::{HOST_NQN, Host, PLAIN};
use crate::{Fixture, NQN, wait_until};

const MAX_STRANGERS: usize = 8;

#[test]
fn strangers_replace_each_other_but_no_host() {
    let fixture = Fixture::with(AllowedHosts::Any(None), |config| config.max_strangers = MAX_STRANGERS);
    let (mut admin, _io) = fixture.queues(&PLAIN);
    let mut strangers: Vec<TcpStream> = Vec::new();
    for _ in 0..5 * MAX_STRANGERS {
        strangers.push(TcpStream::connect(fixture.address).unwrap());
        wait_until("there are no more than may be", || {
            fixture.target.connections().len() <= MAX_STRANGERS + 2
        });
    }
    // The first ones were closed, and the last ones wait.
    assert_eq!(strangers[0].read(&mut [0; 1]).unwrap(), 0);
    strangers.last().unwrap().set_nonblocking(true).unwrap();
    let waits = strangers.last_mut().unwrap().read(&mut [0; 1]).unwrap_err();
    assert_eq!(waits.kind(), std::io::ErrorKind::WouldBlock);
    // Admitted hosts were not disturbed, and one that has something to say gets in.
    admin.keep_alive().expect_success();
    fixture.admin().keep_alive().expect_success();
}

/// The list of subsystems is for everybody, and a host that asks for it has proven nothing.
#[test]
fn discovery_host_stays_a_stranger() {
    let fixture = Fixture::with(AllowedHosts::Any(None), |config| config.max_strangers = MAX_STRANGERS);
    let (mut admin, _io) = fixture.queues(&PLAIN);
    let mut asking: Vec<Host> = Vec::new();
    for _ in 0..3 * MAX_STRANGERS {
        let mut host = Host::begun(fixture.address, &PLAIN);
        host.connect(0, DISCOVERY_NQN, ANY_CONTROLLER, &PLAIN).expect_success();
        asking.push(host);
        wait_until("there are no more than may be", || {
            fixture.target.connections().len() <= MAX_STRANGERS + 2
        });
    }
    let mut last = asking.pop().unwrap();
    let length_bytes = 1 << 20;
    let cid = last.cid();
    let mut command = AuthCommand::new(length_bytes).to_send_command(cid);
    command.sgl = SglDescriptor::transport(length_bytes);
    let answer = last.call(&command, &[]);
    assert_eq!(answer.status().plain(), NvmeStatus::AUTHENTICATION_REQUIRED);
    admin.keep_alive().expect_success();
}

#[test]
fn unauthenticated_host_may_send_only_its_proof() {
    let secret = AuthSecret::new(Some(AuthHash::Sha256), vec![1; 32]).unwrap();
    let secrets = ControllerSecrets { host: secret, controller: None };
    let hosts = AllowedHosts::Listed(BTreeMap::from([(HOST_NQN.to_owned(), Some(secrets))]));
    let fixture = Fixture::with(hosts, |_| {});
    let mut host = Host::begun(fixture.address, &PLAIN);
    host.connect(0, NQN, ANY_CONTROLLER, &PLAIN).expect_success();
    let most = 64 << 10;
    for (length_bytes, status) in
        [(most, NvmeStatus::SUCCESS), (most + 4, NvmeStatus::AUTHENTICATION_REQUIRED)]
    {
        let cid = host.cid();
        let mut command = AuthCommand::new(length_bytes).to_send_command(cid);
        command.sgl = SglDescriptor::transport(length_bytes);
        let answer = host.call(&command, &vec![0; length_bytes as usize]);
        assert_eq!(answer.status().plain(), status, "{length_bytes}");
    }
}
