//! The power fails at any moment, and any part of the unflushed data is lost.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::device::memory;
use super::reference::{Reference, Step, listing, perform, some_step};
use super::*;

/// Names with the inodes that they lead to.
fn names(core: &DirectoryCore) -> BTreeMap<String, u64> {
    listing(core).into_iter().map(|(path, stat)| (path, stat.inode)).collect()
}

/// A byte that identifies the file that it was written to.
fn stamp(inode: u64) -> u8 {
    (inode % 255) as u8 + 1
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// After the cut the names are those of one moment, not before the last sync. A file that was synced and not
    /// changed since is whole. No file holds a byte that was written to another.
    #[test]
    fn power_cut_keeps_synced_data_apart(
        steps in proptest::collection::vec(some_step(), 1..60),
        cuts in proptest::collection::vec(any::<u64>(), 3),
    ) {
        let device = memory(CAPACITY_BYTES);
        let core = DirectoryCore::format(device.clone(), (1, 1)).unwrap();
        let mut reference = Reference::default();
        let mut history = vec![names(&core)];
        // The synced contents of each file, until it is changed.
        let mut synced: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for step in steps {
            let step = match step {
                Step::Write { path, offset, length, .. } => {
                    let byte = reference::find(&core, &path).map_or(1, |stat| stamp(stat.inode));
                    Step::Write { path, offset, length, byte }
                }
                Step::Remount => Step::Commit,
                step => step,
            };
            // A sync of what has not changed since the last commit commits nothing.
            let commits = match &step {
                Step::Sync(path) => reference::find(&core, path).is_ok_and(|stat| {
                    let state = core.state();
                    state.volatile.get(&stat.inode).is_some_and(|v| v.changed_in > state.durable_number)
                }),
                Step::Commit => true,
                _ => false,
            };
            let possible = reference.apply(&step);
            prop_assert_eq!(perform(&core, &step).is_ok(), possible);
            history.push(names(&core));
            if commits {
                history.drain(..history.len() - 1);
            }
            match &step {
                Step::Sync(path) if possible => {
                    let stat = reference::find(&core, path).unwrap();
                    if stat.kind == InodeKind::File {
                        synced.insert(stat.inode, content(&core, stat.inode));
                    }
                }
                Step::Write { path, .. } | Step::Truncate { path, .. } | Step::Allocate { path, .. } => {
                    if let Ok(stat) = reference::find(&core, path) {
                        synced.remove(&stat.inode);
                    }
                }
                _ => {}
            }
            let living: BTreeSet<u64> = history.last().unwrap().values().copied().collect();
            synced.retain(|inode, _| living.contains(inode));
        }
        for cut in cuts {
            let after = DirectoryCore::open(device.after_power_cut(cut)).unwrap();
            check(&after);
            let found = names(&after);
            prop_assert!(history.contains(&found), "{found:?} was never there since the last sync: {history:?}");
            let inodes: BTreeSet<u64> = found.values().copied().collect();
            for inode in inodes {
                if after.stat(inode).unwrap().kind != InodeKind::File {
                    continue;
                }
                let content = content(&after, inode);
                if let Some(expected) = synced.get(&inode) {
                    prop_assert_eq!(&content, expected, "inode {} was synced", inode);
                }
                let stranger = content.iter().find(|byte| **byte != 0 && **byte != stamp(inode));
                prop_assert_eq!(stranger, None, "inode {} holds what was written to another", inode);
            }
            // And it can be used further.
            let inode = file(&after, "new");
            write(&after, inode, 0, &[1; 5000]).unwrap();
            wait(|done| after.sync(inode, false, done)).unwrap();
            check(&after);
        }
    }
}

/// The blocks of a deleted file go to other files only once its deletion is durable.
#[test]
fn file_with_lost_deletion_is_whole() {
    let device = memory(CAPACITY_BYTES);
    let core = DirectoryCore::format(device.clone(), (1, 1)).unwrap();
    let inode = file(&core, "old");
    let half = vec![1; (core.space().free_blocks * BLOCK_BYTES * 6 / 10) as usize];
    write(&core, inode, 0, &half).unwrap();
    wait(|done| core.sync(inode, false, done)).unwrap();
    core.unlink(ROOT, b"old").unwrap();
    let next = file(&core, "next");
    write(&core, next, 0, &half[..half.len() / 2]).unwrap();
    let after = DirectoryCore::open(device.after_power_cut(5)).unwrap();
    let old = after.lookup(ROOT, b"old").unwrap().inode;
    assert_eq!(content(&after, old), half);
    check(&after);
}
