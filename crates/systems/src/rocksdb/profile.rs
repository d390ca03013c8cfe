//! What the system says of itself.

use crate::first_study::FirstStudy;
use crate::profile::SystemProfile;

pub(super) const PROFILE: SystemProfile = SystemProfile {
    title: "RocksDB",
    full_title: "RocksDB",
    page: "systems/rocksdb.md",
    starts: "an engine in a process of its own",
    starts_at_once: true,
    ycsb_directory: Some("rocksdb.dir"),
    first_study: Some(FirstStudy {
        settings: "write_buffer_share = \"4 %\"        # small memtables: flushes and compactions fall into the \
                   measured time\n",
        ..FirstStudy::OF_REQUESTS
    }),
    ..SystemProfile::USUAL
};
