//! The core compared with a tree of plain vectors, with remounts and power cuts in between.

mod device;
mod failures;
mod power_cut;
mod reference;

use std::collections::BTreeSet;
use underlay_sync::channel;

use proptest::prelude::*;
use underlay_storage::device::DeviceRequest;

use super::open::journal_bytes;
use super::*;
use device::{Delayed, memory};
use reference::{Reference, Step, some_steps};

const CAPACITY_BYTES: u64 = 8 << 20;

/// Waits for the answer of an operation.
pub(super) fn wait<T: Send + 'static>(ask: impl FnOnce(CoreCallback<T>)) -> Result<T, Errno> {
    let (sender, receiver) = channel();
    ask(Box::new(move |outcome| {
        let _ = sender.send(outcome);
    }));
    receiver.recv().expect("every operation is answered")
}

pub(super) fn node(kind: InodeKind) -> NewNode {
    NewNode { kind, mode: 0o644, uid: 1, gid: 1, device_number: 0, target: Vec::new() }
}

pub(super) fn file(core: &DirectoryCore, name: &str) -> u64 {
    core.make(ROOT, name.as_bytes(), node(InodeKind::File)).unwrap().inode
}

pub(super) fn write(core: &Arc<DirectoryCore>, inode: u64, offset: u64, data: &[u8]) -> Result<(), Errno> {
    wait(|done| core.write(inode, offset, data.to_vec(), WriteOptions::default(), done))
}

pub(super) fn content(core: &Arc<DirectoryCore>, inode: u64) -> Vec<u8> {
    let size = core.stat(inode).unwrap().attributes.size;
    let whole = wait(|done| core.read(inode, 0, size as u32, done)).unwrap();
    assert_eq!(whole.len() as u64, size);
    whole
}

/// No block belongs to two files or to none, and the stored numbers are right.
pub(super) fn check(core: &DirectoryCore) {
    let state = core.state();
    let mut used = BTreeSet::new();
    let mut take = |run: BlockRun| {
        for block in run.start..run.end() {
            assert!(used.insert(block), "block {block} is used twice");
        }
    };
    state.allocator.free_runs().for_each(&mut take);
    for (_, inode) in state.tree.inodes() {
        for segment in inode.extents.iter() {
            take(BlockRun { start: segment.place.device().unwrap(), count: segment.count });
        }
    }
    for volatile in state.volatile.values() {
        for segment in volatile.reserved.iter() {
            take(BlockRun { start: segment.place.device().unwrap(), count: segment.count });
        }
    }
    state.transaction.freed.iter().chain(&state.sealed_runs).copied().for_each(&mut take);
    let blocks = CAPACITY_BYTES / BLOCK_BYTES;
    assert_eq!(used, (journal_bytes(CAPACITY_BYTES) / BLOCK_BYTES..blocks).collect());
    let snapshot = state.tree.snapshot();
    assert!(snapshot.len() as u64 <= state.tree.metadata_bytes());
    let mut again = InodeTree::default();
    for operation in decode(&snapshot).unwrap() {
        again.apply(&operation, &mut Vec::new()).unwrap();
    }
    assert_eq!(again.snapshot(), snapshot);
    assert_eq!(again.metadata_bytes(), state.tree.metadata_bytes());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn behaves_like_a_plain_tree(steps in some_steps(60)) {
        let device = memory(CAPACITY_BYTES);
        let mut core = DirectoryCore::format(device.clone(), (1, 1)).unwrap();
        let mut reference = Reference::default();
        for step in steps {
            if let Step::Remount = step {
                core.close().unwrap();
                core = DirectoryCore::open(device.clone()).unwrap();
            }
            let expected = reference.apply(&step);
            let found = reference::perform(&core, &step);
            prop_assert_eq!(found.is_ok(), expected, "{:?} gave {:?}", step, found);
            reference.compare(&core);
            check(&core);
        }
        core.close().unwrap();
        let core = DirectoryCore::open(device).unwrap();
        reference.compare(&core);
        check(&core);
    }

    /// Requests that share blocks, all in flight at once and answered in any order: the effect of each is visible.
    #[test]
    fn concurrent_writes_keep_all_bytes(
        lengths in proptest::collection::vec(1..9000_usize, 1..12),
        order in any::<u64>(),
    ) {
        let device = Arc::new(Delayed::new(CAPACITY_BYTES));
        let core = DirectoryCore::format(device.clone(), (1, 1)).unwrap();
        let inode = file(&core, "a");
        device.hold();
        let (sender, answered) = channel();
        let mut expected = Vec::new();
        let mut writes = Vec::new();
        for (index, length) in lengths.iter().enumerate() {
            writes.push((expected.len() as u64, vec![index as u8 + 1; *length]));
            expected.extend(std::iter::repeat_n(index as u8 + 1, *length));
        }
        // Not from front to back, so that gaps are filled later.
        let count = writes.len();
        writes.rotate_left(order as usize % count);
        for (offset, data) in writes {
            let sender = sender.clone();
            core.write(inode, offset, data, WriteOptions::default(), Box::new(move |outcome| {
                let _ = sender.send(outcome);
            }));
        }
        device.answer_in_any_order(order);
        for _ in 0..count {
            prop_assert_eq!(answered.try_recv().expect("it is answered"), Ok(()));
        }
        device.release();
        prop_assert_eq!(content(&core, inode), expected);
        core.released(inode);
        core.commit().unwrap();
        core.state().give_back_reservation(inode);
        check(&core);
    }
}

#[test]
fn files_that_grow_in_turn_stay_in_few_pieces() {
    let core = DirectoryCore::format(memory(64 << 20), (1, 1)).unwrap();
    let inodes = [file(&core, "a"), file(&core, "b"), file(&core, "c")];
    inodes.iter().for_each(|inode| core.opened(*inode));
    for step in 0..64 {
        for inode in inodes {
            write(&core, inode, step * 65536, &[7; 65536]).unwrap();
        }
    }
    for inode in inodes {
        let pieces = core.state().tree.get(inode).unwrap().extents.len();
        assert!(pieces <= 8, "a file of 4 MiB, written in 64 parts, lies in {pieces} pieces");
    }
    let free = core.space().free_blocks;
    inodes.iter().for_each(|inode| core.released(*inode));
    assert_eq!(core.space().free_blocks, free);
    assert_eq!(core.state().volatile.values().map(|volatile| volatile.reserved.blocks()).sum::<u64>(), 0);
}

#[test]
fn full_device_refuses_writes_until_deletion_frees_space() {
    let core = DirectoryCore::format(memory(CAPACITY_BYTES), (1, 1)).unwrap();
    let empty = core.space();
    let inode = file(&core, "large");
    let mut offset = 0;
    let error = loop {
        match write(&core, inode, offset, &[3; 1 << 18]) {
            Ok(()) => offset += 1 << 18,
            Err(error) => break error,
        }
    };
    assert_eq!(error, Errno::NOSPC);
    assert!(offset / BLOCK_BYTES + 64 >= empty.free_blocks, "{offset} bytes fit of {empty:?}");
    assert_eq!(content(&core, inode), vec![3; offset as usize]);
    check(&core);
    core.unlink(ROOT, b"large").unwrap();
    assert_eq!(core.space().free_blocks, empty.free_blocks);
    // The blocks wait for a commit. A write that needs them doesn't fail but triggers it.
    let inode = file(&core, "next");
    for step in 0..offset >> 18 {
        write(&core, inode, step << 18, &[4; 1 << 18]).unwrap();
    }
    assert_eq!(content(&core, inode), vec![4; offset as usize]);
    wait(|done| core.allocate(inode, 0..CAPACITY_BYTES * 2, AllocateMode::Reserve, true, done)).unwrap_err();
    assert_eq!(content(&core, inode), vec![4; offset as usize]);
    check(&core);
}

#[test]
fn unlinked_open_file_survives_until_remount() {
    let device = memory(CAPACITY_BYTES);
    let core = DirectoryCore::format(device.clone(), (1, 1)).unwrap();
    let empty = core.space().free_blocks;
    let inode = file(&core, "a");
    core.opened(inode);
    write(&core, inode, 0, &[5; 10_000]).unwrap();
    core.unlink(ROOT, b"a").unwrap();
    assert_eq!(content(&core, inode), vec![5; 10_000]);
    core.commit().unwrap();
    // As after a crash: it is never closed.
    let again = DirectoryCore::open(device).unwrap();
    assert_eq!(again.stat(inode), Err(Errno::NOENT));
    again.commit().unwrap();
    assert_eq!(again.space().free_blocks, empty);
    core.released(inode);
    assert_eq!(core.stat(inode), Err(Errno::NOENT));
}

#[test]
fn truncated_bytes_stay_gone_after_growth() {
    let core = DirectoryCore::format(memory(CAPACITY_BYTES), (1, 1)).unwrap();
    let inode = file(&core, "a");
    for grow in [10_000_u64, 4096, 200] {
        write(&core, inode, 0, &[9; 12_000]).unwrap();
        wait(|done| core.set_size(inode, 100, done)).unwrap();
        wait(|done| core.set_size(inode, grow, done)).unwrap();
        let expected: Vec<u8> = (0..grow).map(|offset| if offset < 100 { 9 } else { 0 }).collect();
        assert_eq!(content(&core, inode), expected);
        wait(|done| core.set_size(inode, 100, done)).unwrap();
        write(&core, inode, 9000, &[8]).unwrap();
        let mut expected = vec![0; 9001];
        expected[..100].fill(9);
        expected[9000] = 8;
        assert_eq!(content(&core, inode), expected);
    }
}

#[test]
fn foreign_volume_is_not_opened_as_directory() {
    let device = memory(CAPACITY_BYTES);
    assert!(matches!(DirectoryCore::open(device.clone()), Err(OpenError::NothingThere)));
    device.execute(DeviceRequest::Write { offset_bytes: 0, data: vec![0x58; 4096], fua: false }).unwrap();
    assert!(matches!(DirectoryCore::open(device.clone()), Err(OpenError::NothingThere)));
    // The refusal has changed nothing.
    let block = device.execute(DeviceRequest::Read { offset_bytes: 0, buffer: vec![0; 4096] }).unwrap();
    assert_eq!(block, vec![0x58; 4096]);
    assert!(matches!(DirectoryCore::format(memory(1 << 20), (1, 1)), Err(OpenError::TooSmall(_))));
}

#[test]
fn many_names_outlive_several_checkpoints() {
    let device = memory(CAPACITY_BYTES);
    let core = DirectoryCore::format(device.clone(), (1, 1)).unwrap();
    let mut names = 0;
    let refused = loop {
        let name = format!("a name that takes its room in the journal: {names:06}");
        match core.make(ROOT, name.as_bytes(), node(InodeKind::File)) {
            Ok(_) => names += 1,
            Err(error) => break error,
        }
        if names % 50 == 0 {
            core.commit().unwrap();
        }
    };
    // The metadata's share is full, which is reported before the journal can no longer be written.
    assert_eq!(refused, Errno::NOSPC);
    assert!(names > 500, "{names} names");
    core.commit().unwrap();
    for index in 0..names {
        let name = format!("a name that takes its room in the journal: {index:06}");
        core.unlink(ROOT, name.as_bytes()).unwrap();
        if index % 50 == 0 {
            core.commit().unwrap();
        }
    }
    core.commit().unwrap();
    let again = DirectoryCore::open(device).unwrap();
    assert!(again.list(ROOT, 0, 10).unwrap().is_empty());
    check(&again);
}
