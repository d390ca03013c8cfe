//! Hosts that break the protocol, stall or drown the target: they are thrown out, and others notice nothing.

use std::sync::atomic::Ordering;
use std::time::Duration;

use proptest::prelude::*;
use underlay_nvme::command::{CompletionEntry, NvmeCommand, SglDescriptor, nvm};
use underlay_nvme::fabrics::ANY_CONTROLLER;
use underlay_nvme::pdu::{DataTransfer, Digests, FatalStatus, IcReq, Pdu, PduFraming, R2t, TermReq};
use underlay_nvme::status::NvmeStatus;
use underlay_nvme::target::AllowedHosts;

use crate::host::{Host, PLAIN, Style, connect_data};
use crate::{Fixture, NQN, wait_until};

const DIGESTS: Style = Style { digests: Digests { header: true, data: true }, ..PLAIN };

/// A host that behaves, beside one that doesn't.
struct Bystander {
    _admin: Host,
    io: Host,
}

impl Bystander {
    fn new(fixture: &Fixture) -> Bystander {
        let (admin, io) = fixture.queues(&PLAIN);
        Bystander { _admin: admin, io }
    }

    fn is_unhurt(&mut self) {
        let command =
            NvmeCommand::blocks(nvm::WRITE, self.io.cid(), 1, SglDescriptor::transport(64 << 10), 0, 128);
        self.io.call(&command, &vec![3; 64 << 10]).expect_success();
        let command = NvmeCommand::blocks(nvm::READ, self.io.cid(), 1, SglDescriptor::transport(512), 0, 1);
        assert_eq!(self.io.call(&command, &[]).expect_success().data, [3; 512]);
    }
}

fn header(kind: u8, flags: u8, header: u8, data_at: u8, total: u32, rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind, flags, header, data_at];
    bytes.extend(total.to_le_bytes());
    bytes.extend(rest);
    bytes
}

#[test]
fn headers_that_are_wrong_are_named() {
    let fixture = Fixture::open_to_all();
    let mut bystander = Bystander::new(&fixture);
    let command = [0_u8; 64];
    let invalid = FatalStatus::InvalidHeaderField;
    let cases = [
        ("no such type", header(0x77, 0, 72, 0, 72, &command), invalid, 0),
        ("goes the other way", header(0x05, 0, 24, 0, 24, &command), FatalStatus::SequenceError, 0),
        ("header too short", header(0x04, 0, 71, 0, 72, &command), invalid, 2),
        ("header too long", header(0x04, 0, 255, 0, 72, &command), invalid, 2),
        ("digest not agreed on", header(0x04, 1, 72, 0, 76, &command), invalid, 1),
        ("shorter than its header", header(0x04, 0, 72, 0, 71, &command), invalid, 4),
        ("data inside of the header", header(0x04, 0, 72, 68, 600, &command), invalid, 3),
        ("data not aligned", header(0x04, 0, 72, 74, 600, &command), invalid, 3),
        ("more than a capsule takes", header(0x04, 0, 72, 72, 72 + 16_388, &command), invalid, 4),
        ("gigabytes", header(0x04, 0, 72, 72, u32::MAX, &command), invalid, 4),
        ("data of another length", header(0x06, 4, 24, 24, 24 + 512, &[0; 64]), invalid, 16),
        (
            "too much data",
            header(0x06, 4, 24, 24, 24 + (1 << 20) + 4, &[0; 64]),
            FatalStatus::LimitExceeded,
            0,
        ),
        ("begun again", PduFraming::default().encode(&ic_req(0), &[]), FatalStatus::SequenceError, 0),
    ];
    for (label, bytes, status, information) in cases {
        let admin = fixture.admin();
        let mut io = admin.io(fixture.address, NQN, 1, &PLAIN);
        io.send_raw(&bytes);
        assert_eq!(io.expect_termination(), TermReq { status, information }, "{label}");
    }
    bystander.is_unhurt();
}

fn ic_req(format_version: u16) -> Pdu {
    let digests = Digests::default();
    Pdu::IcReq(IcReq { format_version, data_alignment_bytes: 4, digests, max_r2t: 1 })
}

#[test]
fn connection_with_wrong_start_is_ended() {
    let fixture = Fixture::open_to_all();
    let mut host = Host::silent(fixture.address);
    host.send(&ic_req(1), &[]);
    assert_eq!(
        host.expect_termination(),
        TermReq { status: FatalStatus::UnsupportedParameter, information: 8 }
    );
    let mut host = Host::silent(fixture.address);
    host.send_command(&NvmeCommand::new(nvm::FLUSH, 1, 1, SglDescriptor::empty()), &[]);
    assert_eq!(host.expect_termination().status, FatalStatus::SequenceError);
    let mut host = Host::silent(fixture.address);
    host.send_raw(b"GET / HTTP/1.1\r\nHost: somebody\r\n\r\n");
    assert_eq!(host.expect_termination().status, FatalStatus::InvalidHeaderField);
    let mut host = Host::begun(fixture.address, &PLAIN);
    let request = TermReq { status: FatalStatus::SequenceError, information: 0 };
    host.send(&Pdu::H2cTermReq(request), &[0; 24]);
    host.expect_end();
}

#[test]
fn connections_cut_anywhere_leave_nothing_behind() {
    let fixture = Fixture::open_to_all();
    let mut sent = PduFraming::default().encode(&ic_req(0), &[]);
    let connect = underlay_nvme::fabrics::ConnectCommand {
        record_format: 0,
        queue_id: 0,
        sq_size: 31,
        attributes: 0,
        kato_ms: 0,
    };
    let capsule = Pdu::CapsuleCmd(connect.to_command(1).encode());
    sent.extend(PduFraming::default().encode(&capsule, &connect_data(NQN, ANY_CONTROLLER).encode()));
    for length in (0..sent.len()).step_by(37) {
        let mut host = Host::silent(fixture.address);
        host.send_raw(&sent[..length]);
    }
    wait_until("all are gone", || fixture.target.connections().is_empty());
    // The same in single bytes is a connection like any other.
    let mut host = Host::silent(fixture.address);
    for byte in sent {
        host.send_raw(&[byte]);
    }
    assert!(matches!(host.receive(), Some((Pdu::IcResp(_), _))));
    let Some((Pdu::CapsuleResp(bytes), _)) = host.receive() else { panic!("no answer") };
    assert!(CompletionEntry::decode(&bytes).status.is_success());
}

#[test]
fn wrong_digest_ends_connection_or_fails_command() {
    let fixture = Fixture::open_to_all();
    let (_admin, mut io) = fixture.queues(&DIGESTS);
    let write = NvmeCommand::blocks(nvm::WRITE, 40, 1, SglDescriptor::new_in_capsule(512), 0, 1);
    let mut bytes = io.framing.encode(&Pdu::CapsuleCmd(write.encode()), &[7; 512]);
    *bytes.last_mut().unwrap() ^= 1;
    io.send_raw(&bytes);
    let status = io.finish(&write, &[]).status();
    assert_eq!(status, NvmeStatus::TRANSIENT_TRANSPORT_ERROR);
    // In a data PDU it is the same.
    let write = NvmeCommand::blocks(nvm::WRITE, 41, 1, SglDescriptor::transport(1024), 0, 2);
    io.send_command(&write, &[]);
    let Some((Pdu::R2t(r2t), _)) = io.receive() else { panic!("no R2T") };
    for half in 0..2 {
        let transfer = part_of(&r2t, half * 512, 512, half == 1);
        let mut bytes = io.framing.encode(&Pdu::H2cData(transfer), &[7; 512]);
        // Only the first half is damaged.
        bytes[40] ^= 1 - half as u8;
        io.send_raw(&bytes);
    }
    assert_eq!(io.finish(&write, &[]).status(), NvmeStatus::TRANSIENT_TRANSPORT_ERROR);
    assert!(fixture.device.content()[..1024].iter().all(|byte| *byte == 0));
    io.call(&write, &[8; 1024]).expect_success();
    assert_eq!(fixture.device.content()[1023], 8);

    let mut bytes = io.framing.encode(&Pdu::CapsuleCmd(write.encode()), &[]);
    bytes[20] ^= 1;
    io.send_raw(&bytes);
    assert_eq!(io.expect_termination().status, FatalStatus::HeaderDigestError);
}

fn part_of(r2t: &R2t, offset_bytes: u32, length_bytes: u32, is_last: bool) -> DataTransfer {
    let R2t { cid, transfer_tag, .. } = *r2t;
    DataTransfer { cid, transfer_tag, offset_bytes, length_bytes, is_last, is_success: false }
}

#[test]
fn data_that_nobody_asked_for_ends_the_connection() {
    let fixture = Fixture::open_to_all();
    let mut bystander = Bystander::new(&fixture);
    let invalid = FatalStatus::InvalidHeaderField;
    type Change = fn(&mut DataTransfer);
    let cases: [(&str, Change, FatalStatus); 6] = [
        ("another tag", |data| data.transfer_tag = 99, invalid),
        ("another command", |data| data.cid += 1, invalid),
        ("not the beginning", |data| data.offset_bytes = 512, FatalStatus::DataOutOfRange),
        ("far away", |data| data.offset_bytes = u32::MAX, FatalStatus::DataOutOfRange),
        ("last too early", |data| data.is_last = true, invalid),
        ("too much", |data| data.length_bytes = 2048, FatalStatus::DataOutOfRange),
    ];
    for (label, change, status) in cases {
        let (_admin, mut io) = fixture.queues(&PLAIN);
        io.send_command(&NvmeCommand::blocks(nvm::WRITE, 9, 1, SglDescriptor::transport(1024), 0, 2), &[]);
        let Some((Pdu::R2t(r2t), _)) = io.receive() else { panic!("no R2T") };
        assert_eq!((r2t.offset_bytes, r2t.length_bytes), (0, 1024));
        let mut transfer = part_of(&r2t, 0, 512, false);
        change(&mut transfer);
        io.send(&Pdu::H2cData(transfer), &vec![1; transfer.length_bytes as usize]);
        assert_eq!(io.expect_termination().status, status, "{label}");
    }
    // Nothing was asked for at all, or it was answered already.
    let (_admin, mut io) = fixture.queues(&PLAIN);
    let write = NvmeCommand::blocks(nvm::WRITE, 9, 1, SglDescriptor::transport(1024), 0, 2);
    io.send_command(&write, &[]);
    let Some((Pdu::R2t(r2t), _)) = io.receive() else { panic!("no R2T") };
    io.send_data(9, r2t.transfer_tag, 0, &[1; 1024], 1024);
    io.finish(&write, &[]).expect_success();
    io.send_data(9, r2t.transfer_tag, 0, &[1; 1024], 1024);
    assert_eq!(io.expect_termination().status, invalid);
    bystander.is_unhurt();
}

#[test]
fn queue_overflow_ends_connection() {
    let fixture = Fixture::open_to_all();
    let mut bystander = Bystander::new(&fixture);
    let admin = fixture.admin();
    let mut io = admin.io(fixture.address, NQN, 1, &Style { sq_size: 3, ..PLAIN });
    fixture.device.holds_back.store(true, Ordering::SeqCst);
    for cid in 10..15 {
        io.send_command(&NvmeCommand::blocks(nvm::READ, cid, 1, SglDescriptor::transport(512), 0, 1), &[]);
    }
    assert_eq!(io.expect_termination().status, FatalStatus::SequenceError);
    fixture.device.holds_back.store(false, Ordering::SeqCst);
    fixture.device.release();
    bystander.is_unhurt();
}

#[test]
fn duplicate_identifier_is_refused() {
    let fixture = Fixture::open_to_all();
    let (_admin, mut io) = fixture.queues(&PLAIN);
    fixture.device.holds_back.store(true, Ordering::SeqCst);
    let read = NvmeCommand::blocks(nvm::READ, 10, 1, SglDescriptor::transport(512), 0, 1);
    io.send_command(&read, &[]);
    io.send_command(&read, &[]);
    let refused = io.finish(&read, &[]);
    assert_eq!(refused.status().plain(), NvmeStatus::COMMAND_ID_CONFLICT);
    // It had a place in the queue: behind Connect, before the first one's answer.
    assert_eq!(refused.completion.sq_head, 2);
    fixture.device.holds_back.store(false, Ordering::SeqCst);
    wait_until("the device has the first", || fixture.device.held() == 1);
    fixture.device.release();
    assert_eq!(io.finish(&read, &[]).expect_success().completion.sq_head, 3);
    io.call(&read, &[]).expect_success();
}

#[test]
fn commands_wait_for_connection_budget_and_complete() {
    // Room for two of the transfers below; the queue has places for many.
    let fixture = Fixture::with(AllowedHosts::Any(None), |config| config.data_budget_bytes = 512 << 10);
    let (_admin, mut io) = fixture.queues(&PLAIN);
    const LENGTH: u32 = 256 << 10;
    for cid in 100..108 {
        io.send_command(
            &NvmeCommand::blocks(nvm::WRITE, cid, 1, SglDescriptor::transport(LENGTH), 0, LENGTH / 512),
            &[],
        );
        io.send_command(
            &NvmeCommand::blocks(nvm::READ, cid + 100, 1, SglDescriptor::transport(LENGTH), 0, LENGTH / 512),
            &[],
        );
    }
    let (mut written, mut read) = (0, 0);
    while (written, read) != (8, 8) {
        match io.receive().expect("it goes on") {
            (Pdu::R2t(r2t), _) => {
                io.send_data(r2t.cid, r2t.transfer_tag, 0, &vec![5; LENGTH as usize], 100_000);
            }
            (Pdu::CapsuleResp(bytes), _) => {
                let completion = CompletionEntry::decode(&bytes);
                assert!(completion.status.is_success());
                *(if completion.cid < 200 { &mut written } else { &mut read }) += 1;
            }
            (Pdu::C2hData(_), data) => assert_eq!(data.len(), LENGTH as usize),
            (pdu, _) => panic!("{pdu:?}"),
        }
    }
}

#[test]
fn host_reading_no_answers_blocks_only_itself() {
    let fixture = Fixture::open_to_all();
    let mut bystander = Bystander::new(&fixture);
    let admin = fixture.admin();
    let style = Style { sq_size: 255, ..PLAIN };
    let mut lazy = admin.io(fixture.address, NQN, 1, &style);
    // 250 MiB, far more than sockets hold.
    for cid in 0..250 {
        lazy.send_command(
            &NvmeCommand::blocks(nvm::READ, cid, 1, SglDescriptor::transport(1 << 20), 0, 2048),
            &[],
        );
    }
    for _ in 0..20 {
        bystander.is_unhurt();
    }
    let mut answered = 0;
    while answered < 250 {
        match lazy.receive() {
            Some((Pdu::CapsuleResp(bytes), _)) => {
                assert!(CompletionEntry::decode(&bytes).status.is_success());
                answered += 1;
            }
            Some((Pdu::C2hData(_), data)) => assert_eq!(data.len(), 1 << 20),
            other => panic!("{other:?}"),
        }
    }
    // Answers without data pile up no less: commands stop being taken.
    lazy.stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let refused = NvmeCommand::blocks(nvm::READ, 1, 9, SglDescriptor::transport(512), 0, 1);
    let bytes = lazy.framing.encode(&Pdu::CapsuleCmd(refused.encode()), &[]).repeat(512);
    let mut has_stopped = false;
    for _ in 0..4096 {
        use std::io::Write;
        if lazy.stream.write_all(&bytes).is_err() {
            has_stopped = true;
            break;
        }
    }
    assert!(has_stopped, "128 MiB of commands were taken although no answer was");
    bystander.is_unhurt();
}

#[test]
fn host_leaving_during_transfer_harms_no_other() {
    let fixture = Fixture::open_to_all();
    let mut bystander = Bystander::new(&fixture);
    for _ in 0..20 {
        let (_admin, mut io) = fixture.queues(&PLAIN);
        io.send_command(
            &NvmeCommand::blocks(nvm::WRITE, 9, 1, SglDescriptor::transport(1 << 20), 0, 2048),
            &[],
        );
        let Some((Pdu::R2t(r2t), _)) = io.receive() else { panic!("no R2T") };
        let transfer = part_of(&r2t, 0, 1 << 20, true);
        let head = io.framing.head(&Pdu::H2cData(transfer), 1 << 20);
        io.send_raw(head.as_bytes());
        io.send_raw(&[1; 5000]);
    }
    bystander.is_unhurt();
    wait_until("they are gone", || fixture.target.connections().len() == 2);
    assert_eq!(fixture.device.content()[512 * 200], 0, "half a write is none");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_after_a_beginning_are_survived(
        bytes in prop::collection::vec(any::<u8>(), 0..2000),
        kinds in prop::collection::vec((prop_oneof![Just(4_u8), Just(6), Just(2), any::<u8>()], any::<[u8; 64]>()), 0..8),
    ) {
        let fixture = Fixture::open_to_all();
        let mut sent = PduFraming::default().encode(&ic_req(0), &[]);
        for (kind, body) in kinds {
            let length = if kind == 4 { 72 } else { 24 };
            sent.extend(header(kind, 0, length, 0, u32::from(length), &body[..usize::from(length) - 8]));
        }
        sent.extend(bytes);
        let answer = fixture.target.converse(&sent);
        prop_assert_eq!(&answer[..4], &[1, 0, 128, 0], "an ICResp");
        prop_assert!(fixture.target.connections().is_empty());
    }
}
