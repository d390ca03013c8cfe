//! What the system says of itself.

use crate::first_study::{FirstStudy, FirstWork};
use crate::profile::{JAVA, MAVEN, SystemProfile};

pub(super) const PROFILE: SystemProfile = SystemProfile {
    title: "Accumulo",
    full_title: "Apache Accumulo",
    page: "systems/accumulo.md",
    starts: "Accumulo, ZooKeeper, [HDFS](systems/hdfs.md)",
    needs: &[JAVA, MAVEN],
    first_study: Some(FirstStudy {
        memory_bytes: Some(160_000_000),
        fixed_memory: Some("1.4 GB"),
        settings: "compression = \"none\"              # YCSB's values hardly compress\n",
        room: 3.0,
        work: FirstWork::Requests { mixes: r#"["a", "c"]"#, threads: 32 },
        ..FirstStudy::IN_JAVA
    }),
    ..SystemProfile::USUAL
};
