//! What comes in from outside the attachment: lines on the daemon's control socket, journals of the registry, tables of mounts.

#![no_main]

use libfuzzer_sys::fuzz_target;
use underlay_attach::daemon::control;
use underlay_attach::processes::ProcessId;
use underlay_attach::registry;

fuzz_target!(|data: &[u8]| {
    if let Ok(command) = control::parse(data) {
        let line = serde_json::to_vec(&command).expect("a command can be written");
        assert!(control::parse(&line).is_ok(), "{command:?} does not read back");
    }
    let process = ProcessId { pid: 1, start_ticks: 1 };
    let journal = registry::parse_journal(process, data);
    assert_eq!(journal.owner.process, process);
    for mount in underlay_files::mountinfo::parse(data) {
        assert!(!(mount.is_private && mount.is_shared), "{mount:?}");
    }
});
