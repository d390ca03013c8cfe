//! What the system says of itself.

use crate::first_study::{FirstStudy, FirstWork};
use crate::profile::{JAVA, MAVEN, SystemProfile};

pub(super) const PROFILE: SystemProfile = SystemProfile {
    title: "Cassandra",
    full_title: "Apache Cassandra",
    page: "systems/cassandra.md",
    starts: "one or several nodes, or a cluster of yours",
    needs: &[JAVA, MAVEN],
    first_study: Some(FirstStudy {
        fixed_memory: Some("520 MB"),
        room: 3.0,
        work: FirstWork::Requests { mixes: r#"["a", "c"]"#, threads: 32 },
        ..FirstStudy::IN_JAVA
    }),
    ..SystemProfile::USUAL
};
