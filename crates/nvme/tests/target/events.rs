//! Asynchronous events, and commands that are taken back.

use underlay_nvme::command::{CompletionEntry, NvmeCommand, SglDescriptor, admin};
use underlay_nvme::fabrics::{ANY_CONTROLLER, DISCOVERY_NQN};
use underlay_nvme::features::{
    ASYNC_EVENT_CONFIGURATION, EVENT_DISCOVERY_CHANGED, EVENT_NAMESPACE_CHANGED, SetFeatures,
};
use underlay_nvme::identify::{NamespaceData, cns};
use underlay_nvme::log_page::{self, AsyncEvent, GetLogPage, decode_changed_namespaces};
use underlay_nvme::pdu::Pdu;
use underlay_nvme::status::NvmeStatus;
use underlay_nvme::target::{AllowedHosts, NamespaceConfig, SubsystemConfig};

use crate::device::{BLOCK_BYTES, TestDevice};
use crate::host::{Host, PLAIN};
use crate::{CAPACITY_BYTES, Fixture, wait_until};

fn request_event(host: &mut Host, cid: u16) {
    host.send_command(&NvmeCommand::new(admin::ASYNC_EVENT_REQUEST, cid, 0, SglDescriptor::empty()), &[]);
}

fn next_completion(host: &mut Host) -> CompletionEntry {
    let Some((Pdu::CapsuleResp(bytes), _)) = host.receive() else { panic!("no completion") };
    CompletionEntry::decode(&bytes)
}

fn listen_for(host: &mut Host, events: u32) {
    let command =
        SetFeatures { feature: ASYNC_EVENT_CONFIGURATION, save: false, dword11: events }.to_command(1);
    host.call(&command, &[]).expect_success();
}

fn changed(host: &mut Host) -> Vec<u32> {
    let command = GetLogPage::new(log_page::CHANGED_NAMESPACES, 0, 4096).to_command(2);
    let page = host.call(&command, &[]).expect_success().data;
    decode_changed_namespaces(&page.try_into().unwrap()).unwrap()
}

#[test]
fn host_gets_events_for_namespace_changes() {
    let fixture = Fixture::open_to_all();
    let mut host = fixture.admin();
    listen_for(&mut host, EVENT_NAMESPACE_CHANGED);
    request_event(&mut host, 100);
    fixture.device.resize(2 * CAPACITY_BYTES);
    fixture.subsystem.resize_namespace(1).unwrap();
    let event = next_completion(&mut host);
    assert_eq!((event.cid, AsyncEvent::from_result(event.result)), (100, AsyncEvent::NamespacesChanged));

    // Not told again before the page was read, which names all that changed until then.
    request_event(&mut host, 101);
    let device = TestDevice::new(1 << 20);
    fixture.subsystem.add_namespace(NamespaceConfig { nsid: 5, uuid: [5; 16], device }).unwrap();
    assert_eq!(changed(&mut host), [1, 5]);
    assert!(changed(&mut host).is_empty());
    let namespace = NamespaceData::decode(&host.identify_page(cns::NAMESPACE, 1)).unwrap();
    assert_eq!(namespace.size_blocks * u64::from(BLOCK_BYTES), 2 * CAPACITY_BYTES);

    fixture.subsystem.remove_namespace(5).unwrap();
    assert_eq!(next_completion(&mut host).cid, 101);
    // The next request reports events that came while none waited.
    assert_eq!(changed(&mut host), [5]);
    fixture.subsystem.resize_namespace(1).unwrap();
    request_event(&mut host, 102);
    assert_eq!(next_completion(&mut host).cid, 102);
    assert!(fixture.subsystem.remove_namespace(5).is_err());
}

#[test]
fn host_without_event_requests_gets_none() {
    let fixture = Fixture::open_to_all();
    let mut host = fixture.admin();
    request_event(&mut host, 100);
    fixture.subsystem.resize_namespace(1).unwrap();
    host.keep_alive().expect_success();
    assert_eq!(changed(&mut host), [1]);
}

#[test]
fn discovery_tells_of_subsystems() {
    let fixture = Fixture::open_to_all();
    let mut host = Host::begun(fixture.address, &PLAIN);
    host.connect(0, DISCOVERY_NQN, ANY_CONTROLLER, &PLAIN).expect_success();
    host.enable();
    listen_for(&mut host, EVENT_DISCOVERY_CHANGED);
    request_event(&mut host, 7);
    let (nqn, serial_number) = ("nqn.2026-01.test:new".to_owned(), "3".to_owned());
    let config = SubsystemConfig { nqn, serial_number, hosts: AllowedHosts::Any(None) };
    fixture.target.subsystems().add(config).unwrap();
    assert_eq!(AsyncEvent::from_result(next_completion(&mut host).result), AsyncEvent::DiscoveryChanged);
}

#[test]
fn event_requests_are_limited_and_abortable() {
    let fixture = Fixture::open_to_all();
    let mut host = fixture.admin();
    for cid in 100..104 {
        request_event(&mut host, cid);
    }
    request_event(&mut host, 104);
    let refused = next_completion(&mut host);
    assert_eq!((refused.cid, refused.status.plain()), (104, NvmeStatus::EVENT_REQUEST_LIMIT_EXCEEDED));
    let mut abort = NvmeCommand::new(admin::ABORT, 200, 0, SglDescriptor::empty());
    abort.dwords[0] = 102 << 16;
    host.send_command(&abort, &[]);
    let aborted = next_completion(&mut host);
    assert_eq!((aborted.cid, aborted.status.plain()), (102, NvmeStatus::ABORT_REQUESTED));
    let done = next_completion(&mut host);
    assert_eq!((done.cid, done.result), (200, 0));
    // A missing command, or one that runs to its end, is not aborted.
    let answer = host.call(&abort, &[]).expect_success();
    assert_eq!(answer.completion.result, 1);
}

#[test]
fn removed_namespace_refuses_new_and_ends_pending_commands() {
    use std::sync::atomic::Ordering;
    use underlay_nvme::command::nvm;
    let fixture = Fixture::open_to_all();
    let (_admin, mut io) = fixture.queues(&PLAIN);
    fixture.device.holds_back.store(true, Ordering::SeqCst);
    let read = NvmeCommand::blocks(nvm::READ, 1, 1, SglDescriptor::transport(512), 0, 1);
    io.send_command(&read, &[]);
    wait_until("the device has it", || fixture.device.held() == 1);
    fixture.subsystem.remove_namespace(1).unwrap();
    let second = NvmeCommand { cid: 2, ..read };
    io.send_command(&second, &[]);
    assert_eq!(io.finish(&second, &[]).status().plain(), NvmeStatus::INVALID_NAMESPACE);
    fixture.device.release();
    io.finish(&read, &[]).expect_success();
}
