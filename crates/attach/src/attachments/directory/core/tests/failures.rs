//! Commits that fail while nothing waits for them.

use super::device::Failing;
use super::*;

fn sync(core: &DirectoryCore, inode: u64, data_only: bool) -> Result<(), Errno> {
    wait(|done| core.sync(inode, data_only, done))
}

fn opened(core: &Arc<DirectoryCore>, name: &str) -> u64 {
    let inode = file(core, name);
    core.opened(inode);
    write(core, inode, 0, &[7; 8192]).unwrap();
    inode
}

#[test]
fn failed_background_commit_fails_fsync_of_affected_files() {
    let device = Failing::new(CAPACITY_BYTES);
    let core = DirectoryCore::format(device.clone(), (1, 1)).unwrap();
    let calm = opened(&core, "calm");
    sync(&core, calm, false).unwrap();
    let (one, other, closed) = (opened(&core, "one"), opened(&core, "other"), opened(&core, "closed"));
    *device.flushes.lock() = 1;
    // As happens every five seconds.
    core.commit().unwrap_err();
    core.released(closed);
    core.commit().unwrap();
    sync(&core, calm, false).unwrap();
    assert_eq!(sync(&core, one, false), Err(Errno::IO));
    // Two programs have it open.
    core.opened(other);
    assert_eq!((sync(&core, other, true), sync(&core, other, true)), (Err(Errno::IO), Err(Errno::IO)));
    core.released(other);
    assert_eq!(sync(&core, other, false), Err(Errno::IO));
    // The first program to open it later gets the error.
    core.opened(closed);
    assert_eq!(sync(&core, closed, false), Err(Errno::IO));
    // Reported and closed: it is an ordinary file again.
    core.released(one);
    core.opened(one);
    write(&core, one, 0, &[8; 8192]).unwrap();
    sync(&core, one, false).unwrap();
    check(&core);
}

#[test]
fn failed_flush_fails_fsync_of_other_rewritten_file() {
    let device = Failing::new(CAPACITY_BYTES);
    let core = DirectoryCore::format(device.clone(), (1, 1)).unwrap();
    let (one, other) = (opened(&core, "one"), opened(&core, "other"));
    core.commit().unwrap();
    let in_place = WriteOptions { keep_times: true, ..WriteOptions::default() };
    wait(|done| core.write(one, 0, vec![9; 4096], in_place, done)).unwrap();
    *device.flushes.lock() = 1;
    assert_eq!(sync(&core, other, true), Err(Errno::IO));
    sync(&core, other, true).unwrap();
    assert_eq!(sync(&core, one, true), Err(Errno::IO));
}

#[test]
fn failed_record_write_is_reported() {
    let device = Failing::new(CAPACITY_BYTES);
    let core = DirectoryCore::format(device.clone(), (1, 1)).unwrap();
    let one = opened(&core, "one");
    *device.forced_writes.lock() = 1;
    core.commit().unwrap_err();
    core.commit().unwrap();
    assert_eq!(sync(&core, one, false), Err(Errno::IO));
}

#[test]
fn blocks_lost_by_flush_show_no_foreign_data() {
    let device = Failing::new(CAPACITY_BYTES);
    let core = DirectoryCore::format(device.clone(), (1, 1)).unwrap();
    // Data of another file is everywhere.
    let old = opened(&core, "old");
    let mut end = 8192;
    while write(&core, old, end, &[7; 64 << 10]).is_ok() {
        end += 64 << 10;
    }
    sync(&core, old, false).unwrap();
    core.unlink(ROOT, b"old").unwrap();
    core.released(old);
    core.commit().unwrap();
    let new = file(&core, "new");
    write(&core, new, 0, &[8; 8192]).unwrap();
    *device.flushes.lock() = 1;
    core.commit().unwrap_err();
    core.commit().unwrap();
    assert_eq!(content(&core, new), [8; 8192]);
    let after = DirectoryCore::open(device.after_power_cut()).unwrap();
    assert_eq!(content(&after, new), [0; 8192]);
    write(&core, new, 0, &[9; 4096]).unwrap();
    core.commit().unwrap();
    let after = DirectoryCore::open(device.after_power_cut()).unwrap();
    assert_eq!(content(&after, new), [[9; 4096], [0; 4096]].concat());
    check(&core);
}

/// Otherwise one error would never end where flushes always overlap.
#[test]
fn flush_after_failure_ignores_earlier_failure() {
    let core = DirectoryCore::format(Failing::new(CAPACITY_BYTES), (1, 1)).unwrap();
    let covers = || core.state().covers();
    let (failing, overlapping) = (covers(), covers());
    core.flush_ended(failing, Err(DeviceError::Gone)).unwrap_err();
    let later = covers();
    core.flush_ended(overlapping, Ok(())).unwrap_err();
    core.flush_ended(later, Ok(())).unwrap();
}
