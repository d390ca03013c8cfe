//! Commands of I/O queues and of the admin queue.

use std::sync::atomic::Ordering;

use proptest::prelude::*;
use underlay_nvme::command::{
    ALL_NAMESPACES, DATASET_DEALLOCATE, DEALLOCATE, DatasetRange, FLAGS_FUSED, FUA, NvmeCommand,
    SglDescriptor, admin, nvm,
};
use underlay_nvme::fabrics::CATTR_NO_FLOW_CONTROL;
use underlay_nvme::features::{self, GetFeatures, QueueCount, SetFeatures};
use underlay_nvme::log_page::{self, ErrorEntry, GetLogPage, SmartLog};
use underlay_nvme::pdu::Digests;
use underlay_nvme::status::NvmeStatus;
use underlay_storage::device::DeviceError;

use crate::device::BLOCK_BYTES;
use crate::host::{HOST_ID, Host, PLAIN, Style};
use crate::{CAPACITY_BYTES, Fixture, NQN};

const BLOCK: usize = BLOCK_BYTES as usize;
const BLOCKS: u64 = CAPACITY_BYTES / BLOCK_BYTES as u64;

fn write(host: &mut Host, lba: u64, data: &[u8]) -> NvmeStatus {
    let blocks = (data.len() / BLOCK) as u32;
    let length = data.len() as u32;
    // Small data goes along with the command, as hosts do it.
    let sgl = if data.len() <= 8192 {
        SglDescriptor::new_in_capsule(length)
    } else {
        SglDescriptor::transport(length)
    };
    let command = NvmeCommand::blocks(nvm::WRITE, host.cid(), 1, sgl, lba, blocks);
    host.call(&command, data).status()
}

fn read(host: &mut Host, lba: u64, blocks: u32) -> Vec<u8> {
    let sgl = SglDescriptor::transport(blocks * BLOCK_BYTES);
    let command = NvmeCommand::blocks(nvm::READ, host.cid(), 1, sgl, lba, blocks);
    host.call(&command, &[]).expect_success().data
}

fn flagged(opcode: u8, host: &mut Host, lba: u64, blocks: u32, flags: u32) -> NvmeCommand {
    let mut command = NvmeCommand::blocks(opcode, host.cid(), 1, SglDescriptor::empty(), lba, blocks);
    command.dwords[2] |= flags;
    command
}

fn deallocate(host: &mut Host, ranges: &[DatasetRange]) -> NvmeStatus {
    let data: Vec<u8> = ranges.iter().flat_map(DatasetRange::encode).collect();
    let sgl = SglDescriptor::new_in_capsule(data.len() as u32);
    let mut command = NvmeCommand::new(nvm::DATASET_MANAGEMENT, host.cid(), 1, sgl);
    command.dwords[0] = ranges.len() as u32 - 1;
    command.dwords[1] = DATASET_DEALLOCATE;
    host.call(&command, &data).status()
}

#[derive(Clone, Debug)]
enum Step {
    Write { lba: u64, blocks: u32, seed: u8 },
    Read { lba: u64, blocks: u32 },
    Compare { lba: u64, blocks: u32, is_same: bool },
    WriteZeroes { lba: u64, blocks: u32, deallocates: bool },
    Deallocate { lba: u64, blocks: u32 },
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    const NEAR: u64 = 1024;
    let place = (0..NEAR, prop_oneof![1..40_u32, Just(2048)]);
    prop_oneof![
        (place.clone(), any::<u8>()).prop_map(|((lba, blocks), seed)| Step::Write { lba, blocks, seed }),
        place.clone().prop_map(|(lba, blocks)| Step::Read { lba, blocks }),
        (place.clone(), any::<bool>()).prop_map(|((lba, blocks), is_same)| Step::Compare {
            lba,
            blocks,
            is_same
        }),
        (place.clone(), any::<bool>()).prop_map(|((lba, blocks), deallocates)| Step::WriteZeroes {
            lba,
            blocks,
            deallocates
        }),
        place.prop_map(|(lba, blocks)| Step::Deallocate { lba, blocks }),
        Just(Step::Flush),
    ]
}

fn style() -> impl Strategy<Value = Style> {
    let alignment = (1..=32_u8).prop_map(|dwords| dwords * 4);
    (any::<bool>(), any::<bool>(), any::<bool>(), alignment).prop_map(
        |(header, data, has_flow_control, data_alignment_bytes)| Style {
            digests: Digests { header, data },
            data_alignment_bytes,
            attributes: if has_flow_control { 0 } else { CATTR_NO_FLOW_CONTROL },
            ..PLAIN
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn namespace_reads_back_its_bytes(style in style(), steps in prop::collection::vec(step(), 1..30)) {
        let fixture = Fixture::open_to_all();
        let (_admin, mut host) = fixture.queues(&style);
        let mut expected = vec![0_u8; CAPACITY_BYTES as usize];
        for step in steps {
            carry_out(&mut host, &step, &mut expected);
        }
        prop_assert!(fixture.device.content() == expected, "the device holds something else");
    }
}

fn carry_out(host: &mut Host, step: &Step, expected: &mut [u8]) {
    let range = |lba: u64, blocks: u32| lba as usize * BLOCK..(lba as usize + blocks as usize) * BLOCK;
    match *step {
        Step::Write { lba, blocks, seed } => {
            let data: Vec<u8> =
                (0..blocks as usize * BLOCK).map(|index| (index as u8 ^ seed).wrapping_mul(3)).collect();
            assert!(write(host, lba, &data).is_success());
            expected[range(lba, blocks)].copy_from_slice(&data);
        }
        Step::Read { lba, blocks } => assert!(read(host, lba, blocks) == expected[range(lba, blocks)]),
        Step::Compare { lba, blocks, is_same } => {
            let mut data = expected[range(lba, blocks)].to_vec();
            data[0] ^= u8::from(!is_same);
            let sgl = SglDescriptor::transport(data.len() as u32);
            let command = NvmeCommand::blocks(nvm::COMPARE, host.cid(), 1, sgl, lba, blocks);
            let status = host.call(&command, &data).status();
            let wanted = if is_same { NvmeStatus::SUCCESS } else { NvmeStatus::COMPARE_FAILURE };
            assert_eq!(status.plain(), wanted);
        }
        Step::WriteZeroes { lba, blocks, deallocates } => {
            let flags = if deallocates { DEALLOCATE } else { 0 };
            let command = flagged(nvm::WRITE_ZEROES, host, lba, blocks, flags);
            host.call(&command, &[]).expect_success();
            expected[range(lba, blocks)].fill(0);
        }
        Step::Deallocate { lba, blocks } => {
            let half = blocks / 2;
            let ranges = [
                DatasetRange { attributes: 0, blocks: half, lba },
                DatasetRange { attributes: 0, blocks: blocks - half, lba: lba + u64::from(half) },
            ];
            assert!(deallocate(host, &ranges).is_success());
            expected[range(lba, blocks)].fill(0);
        }
        Step::Flush => {
            let command = NvmeCommand::new(nvm::FLUSH, host.cid(), 1, SglDescriptor::empty());
            host.call(&command, &[]).expect_success();
        }
    }
}

#[test]
fn flushes_and_forced_writes_reach_the_device() {
    let fixture = Fixture::open_to_all();
    let (_admin, mut host) = fixture.queues(&PLAIN);
    let flushes = || fixture.device.flushes.load(Ordering::SeqCst);
    for nsid in [1, ALL_NAMESPACES] {
        let before = flushes();
        let command = NvmeCommand::new(nvm::FLUSH, host.cid(), nsid, SglDescriptor::empty());
        host.call(&command, &[]).expect_success();
        assert_eq!(flushes(), before + 1);
    }
    let mut command =
        NvmeCommand::blocks(nvm::WRITE, host.cid(), 1, SglDescriptor::new_in_capsule(512), 0, 1);
    command.dwords[2] |= FUA;
    host.call(&command, &[9; 512]).expect_success();
    assert_eq!(fixture.device.forced_writes.load(Ordering::SeqCst), 1);
    // Zeros that are deallocated can't be forced by themselves: a flush behind does it.
    let before = flushes();
    let command = flagged(nvm::WRITE_ZEROES, &mut host, 0, 1, FUA | DEALLOCATE);
    host.call(&command, &[]).expect_success();
    assert_eq!((flushes(), fixture.device.content()[0]), (before + 1, 0));
}

#[test]
fn read_without_flow_control_needs_no_completion() {
    let fixture = Fixture::open_to_all();
    let (_admin, mut with_flow_control) = fixture.queues(&PLAIN);
    let command = NvmeCommand::blocks(nvm::READ, 5, 1, SglDescriptor::transport(512), 0, 1);
    let answer = with_flow_control.call(&command, &[]).expect_success();
    assert!(!answer.is_in_data);
    assert_eq!(answer.completion.sq_id, 1);
    // The head goes round with the queue's 32 entries: Connect and one read came before.
    for turn in 3..70_u16 {
        let answer = with_flow_control.call(&command, &[]).expect_success();
        assert_eq!(answer.completion.sq_head, turn % 32);
    }
    let style = Style { attributes: CATTR_NO_FLOW_CONTROL, ..PLAIN };
    let (_second, mut without_flow_control) = fixture.queues(&style);
    assert!(without_flow_control.call(&command, &[]).expect_success().is_in_data);
    let flush = NvmeCommand::new(nvm::FLUSH, 6, 1, SglDescriptor::empty());
    assert_eq!(without_flow_control.call(&flush, &[]).expect_success().completion.sq_head, 0xffff);
}

#[test]
fn senseless_commands_are_refused_without_effect() {
    let fixture = Fixture::open_to_all();
    let (mut admin, mut host) = fixture.queues(&PLAIN);
    let read = |lba: u64, blocks: u32, length: u32| {
        NvmeCommand::blocks(nvm::READ, 1, 1, SglDescriptor::transport(length), lba, blocks)
    };
    let keyed = SglDescriptor { address: 0, length_bytes: 512, identifier: 0x40 };
    let cases = [
        (read(BLOCKS, 1, 512), NvmeStatus::LBA_OUT_OF_RANGE),
        (read(BLOCKS - 1, 2, 1024), NvmeStatus::LBA_OUT_OF_RANGE),
        (read(u64::MAX, 2, 1024), NvmeStatus::LBA_OUT_OF_RANGE),
        (read(0, 2, 512), NvmeStatus::DATA_LENGTH_INVALID),
        (read(0, 1, 1024), NvmeStatus::DATA_LENGTH_INVALID),
        (read(0, 1, 0), NvmeStatus::DATA_LENGTH_INVALID),
        (read(0, 4096, 2 << 20), NvmeStatus::INVALID_FIELD),
        (NvmeCommand { nsid: 2, ..read(0, 1, 512) }, NvmeStatus::INVALID_NAMESPACE),
        (NvmeCommand { nsid: ALL_NAMESPACES, ..read(0, 1, 512) }, NvmeStatus::INVALID_NAMESPACE),
        (NvmeCommand { opcode: 0x7d, ..read(0, 1, 0) }, NvmeStatus::INVALID_OPCODE),
        (NvmeCommand { flags: 0x40 | FLAGS_FUSED & 1, ..read(0, 1, 512) }, NvmeStatus::INVALID_FIELD),
        (NvmeCommand { flags: 0, ..read(0, 1, 512) }, NvmeStatus::INVALID_FIELD),
        (
            NvmeCommand { sgl: SglDescriptor::new_in_capsule(512), ..read(0, 1, 512) },
            NvmeStatus::SGL_TYPE_INVALID,
        ),
        (NvmeCommand { sgl: keyed, ..read(0, 1, 512) }, NvmeStatus::SGL_TYPE_INVALID),
        (
            NvmeCommand { sgl: SglDescriptor::new_in_capsule(512), opcode: nvm::WRITE, ..read(0, 1, 512) },
            NvmeStatus::DATA_LENGTH_INVALID,
        ),
        (flagged(nvm::WRITE_ZEROES, &mut host, BLOCKS - 1, 2, DEALLOCATE), NvmeStatus::LBA_OUT_OF_RANGE),
        (flagged(nvm::WRITE_ZEROES, &mut host, 0, 4096, 0), NvmeStatus::INVALID_FIELD),
    ];
    for (command, wanted) in &cases {
        host.send_command(command, &[]);
        let status = host.finish(command, &[]).status();
        assert_eq!(status.plain(), *wanted, "{command:?}");
        assert!(status.says_do_not_retry());
    }
    // In-capsule data that isn't what the command says.
    let write = NvmeCommand::blocks(nvm::WRITE, 1, 1, SglDescriptor::new_in_capsule(512), 0, 1);
    for (command, data, wanted) in [
        (write, vec![1; 1024], NvmeStatus::DATA_LENGTH_INVALID),
        (
            NvmeCommand { sgl: SglDescriptor::transport(512), ..write },
            vec![1; 512],
            NvmeStatus::SGL_TYPE_INVALID,
        ),
        (
            NvmeCommand { sgl: SglDescriptor { address: 4, ..write.sgl }, ..write },
            vec![1; 512],
            NvmeStatus::SGL_OFFSET_INVALID,
        ),
        (NvmeCommand { nsid: 7, ..write }, vec![1; 512], NvmeStatus::INVALID_NAMESPACE),
        (read(0, 1, 512), vec![1; 512], NvmeStatus::DATA_LENGTH_INVALID),
    ] {
        host.send_command(&command, &data);
        let status = host.finish(&command, &data).status();
        // A read with data in its capsule is wrong in two ways.
        let also = command.opcode == nvm::READ && status.plain() == NvmeStatus::SGL_TYPE_INVALID;
        assert!(status.plain() == wanted || also, "{command:?}: {status:?}");
    }
    let range = |lba: u64, blocks: u32| DatasetRange { attributes: 0, blocks, lba };
    assert_eq!(deallocate(&mut host, &[range(0, 1), range(BLOCKS, 1)]).plain(), NvmeStatus::LBA_OUT_OF_RANGE);
    assert!(fixture.device.content().iter().all(|byte| *byte == 0));

    // All of that is in the error log, the last first.
    let page = GetLogPage::new(log_page::ERRORS, 0, 64).to_command(admin.cid());
    let entry = ErrorEntry::decode(&admin.call(&page, &[]).expect_success().data.try_into().unwrap());
    assert_eq!((entry.sq_id, entry.status.plain()), (1, NvmeStatus::LBA_OUT_OF_RANGE));
    assert!(entry.number >= 10);
}

#[test]
fn errors_of_the_device_have_their_status() {
    let fixture = Fixture::open_to_all();
    let (_admin, mut host) = fixture.queues(&PLAIN);
    let io = || DeviceError::Io("a test's".to_owned());
    let cases = [
        (DeviceError::NoSpace, NvmeStatus::CAPACITY_EXCEEDED, NvmeStatus::CAPACITY_EXCEEDED),
        (DeviceError::Gone, NvmeStatus::NAMESPACE_NOT_READY, NvmeStatus::NAMESPACE_NOT_READY),
        (io(), NvmeStatus::UNRECOVERED_READ_ERROR, NvmeStatus::WRITE_FAULT),
    ];
    for (error, of_read, of_write) in cases {
        *fixture.device.fails_with.lock().unwrap() = Some(error);
        let command = NvmeCommand::blocks(nvm::READ, host.cid(), 1, SglDescriptor::transport(512), 0, 1);
        let status = host.call(&command, &[]).status();
        assert_eq!(status.plain(), of_read);
        assert!(status.says_do_not_retry());
        assert_eq!(write(&mut host, 0, &[1; 512]).plain(), of_write);
        let flush = NvmeCommand::new(nvm::FLUSH, host.cid(), 1, SglDescriptor::empty());
        assert_eq!(host.call(&flush, &[]).status().plain(), of_write);
        let range = DatasetRange { attributes: 0, blocks: 1, lba: 0 };
        assert_eq!(deallocate(&mut host, &[range, range]).plain(), of_write);
    }
    *fixture.device.fails_with.lock().unwrap() = None;
    assert!(write(&mut host, 0, &[1; 512]).is_success());
    let counters = fixture.subsystem.namespace(1).unwrap().counters();
    assert_eq!((counters.reads, counters.writes, counters.errors), (3, 4, 12));
}

/// Set Features 0Fh and Connect both take milliseconds, and the controller keeps a multiple of what its KAS says.
#[test]
fn keep_alive_timeout_rounds_up_to_granularity() {
    let fixture = Fixture::open_to_all();
    let mut host = fixture.admin();
    for (asked_ms, kept_ms) in
        [(1, 100), (100, 100), (101, 200), (77_000, 77_000), (0, 0), (u32::MAX, 4_294_967_200)]
    {
        let set = SetFeatures { feature: features::KEEP_ALIVE_TIMER, save: false, dword11: asked_ms };
        host.call(&set.to_command(7), &[]).expect_success();
        let get = GetFeatures::current(features::KEEP_ALIVE_TIMER, 8);
        let read = host.call(&get, &[]).expect_success().completion.result as u32;
        assert_eq!(read, kept_ms, "{asked_ms} ms were asked for");
    }
    let style = Style { kato_ms: 60_001, ..PLAIN };
    let mut host = Host::admin(fixture.address, NQN, &style);
    let get = GetFeatures::current(features::KEEP_ALIVE_TIMER, 8);
    assert_eq!(host.call(&get, &[]).expect_success().completion.result, 60_100);
}

#[test]
fn features_are_read_and_set() {
    let fixture = Fixture::open_to_all();
    let mut host = fixture.admin();
    let mut set = |feature: u8, dword11: u32, save: bool| {
        let command = SetFeatures { feature, save, dword11 }.to_command(7);
        let answer = host.call(&command, &[]);
        (answer.status().plain(), answer.completion.result as u32)
    };
    let queues = |count: u32| QueueCount::pairs(count).to_value();
    assert_eq!(set(features::NUMBER_OF_QUEUES, queues(4), false), (NvmeStatus::SUCCESS, queues(4)));
    assert_eq!(set(features::NUMBER_OF_QUEUES, queues(500), false), (NvmeStatus::SUCCESS, queues(64)));
    assert_eq!(set(features::NUMBER_OF_QUEUES, u32::MAX, false).0, NvmeStatus::INVALID_FIELD);
    assert_eq!(set(features::KEEP_ALIVE_TIMER, 77_000, false).0, NvmeStatus::SUCCESS);
    assert_eq!(set(features::KEEP_ALIVE_TIMER, 1, true).0, NvmeStatus::FEATURE_NOT_SAVEABLE);
    assert_eq!(set(features::HOST_IDENTIFIER, 0, false).0, NvmeStatus::COMMAND_SEQUENCE_ERROR);
    assert_eq!(set(features::VOLATILE_WRITE_CACHE, 0, false).0, NvmeStatus::FEATURE_NOT_CHANGEABLE);
    assert_eq!(set(0xfe, 0, false).0, NvmeStatus::INVALID_FIELD);
    let mut get = |feature: u8| {
        let command = GetFeatures::current(feature, 8);
        host.call(&command, &[]).expect_success().completion.result as u32
    };
    assert_eq!(get(features::KEEP_ALIVE_TIMER), 77_000);
    assert_eq!(get(features::NUMBER_OF_QUEUES), queues(64));
    assert_eq!(get(features::VOLATILE_WRITE_CACHE), 1);
    let mut command = GetFeatures::current(features::HOST_IDENTIFIER, 9);
    command.dwords[1] = 1;
    command.sgl = SglDescriptor::transport(16);
    assert_eq!(host.call(&command, &[]).expect_success().data, HOST_ID);
    let unknown = GetFeatures::current(0xfe, 10);
    assert_eq!(host.call(&unknown, &[]).status().plain(), NvmeStatus::INVALID_FIELD);
    let _io = host.io(fixture.address, crate::NQN, 1, &PLAIN);
    let late = SetFeatures { feature: features::NUMBER_OF_QUEUES, save: false, dword11: queues(2) };
    assert_eq!(host.call(&late.to_command(11), &[]).status().plain(), NvmeStatus::COMMAND_SEQUENCE_ERROR);
}

#[test]
fn log_pages_are_given_in_part_or_whole() {
    let fixture = Fixture::open_to_all();
    let (mut admin, mut io) = fixture.queues(&PLAIN);
    assert!(write(&mut io, 0, &[1; 4096]).is_success());
    read(&mut io, 0, 2);
    let mut page = |page: u8, offset: u64, length: u64| {
        let command = GetLogPage::new(page, offset, length).to_command(admin.cid());
        let answer = admin.call(&command, &[]);
        (answer.status().plain(), answer.data)
    };
    let (_, smart) = page(log_page::SMART, 0, 512);
    let smart = SmartLog::decode(&smart.try_into().unwrap());
    assert_eq!((smart.read_commands, smart.write_commands, smart.data_units_written), (1, 1, 1));
    assert_eq!((smart.critical_warning, smart.available_spare_percent), (0, 100));
    for (number, length) in [
        (log_page::SUPPORTED_PAGES, 1024),
        (log_page::ERRORS, 4096),
        (log_page::FIRMWARE_SLOTS, 512),
        (log_page::COMMAND_EFFECTS, 4096),
        (log_page::CHANGED_NAMESPACES, 4096),
    ] {
        let (status, whole) = page(number, 0, length);
        assert_eq!((status, whole.len() as u64), (NvmeStatus::SUCCESS, length));
        let (status, part) = page(number, 16, 64);
        assert_eq!(status, NvmeStatus::SUCCESS);
        assert_eq!(part, whole[16..80]);
        assert_eq!(page(number, 1 << 40, 4).0, NvmeStatus::INVALID_FIELD);
    }
    assert_eq!(page(log_page::DISCOVERY, 0, 1024).0, NvmeStatus::INVALID_LOG_PAGE);
    assert_eq!(page(0xc0, 0, 512).0, NvmeStatus::INVALID_LOG_PAGE);
    let mut short = GetLogPage::new(log_page::SMART, 0, 512).to_command(1);
    short.sgl.length_bytes = 256;
    assert_eq!(admin.call(&short, &[]).status().plain(), NvmeStatus::DATA_LENGTH_INVALID);
    let unknown = NvmeCommand::new(admin::GET_LOG_PAGE + 0x40, 2, 0, SglDescriptor::empty());
    assert_eq!(admin.call(&unknown, &[]).status().plain(), NvmeStatus::INVALID_OPCODE);
}
