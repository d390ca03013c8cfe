//! What the system says of itself.

use crate::first_study::FirstStudy;
use crate::profile::{JAVA, SystemProfile};

pub(super) const PROFILE: SystemProfile = SystemProfile {
    title: "Oracle NoSQL",
    full_title: "Oracle NoSQL Database",
    page: "systems/oracle_nosql.md",
    starts: "storage nodes, from an installation that you supply",
    aliases: &["oraclenosql", "oracle", "kvstore"],
    needs: &[JAVA],
    first_study: Some(FirstStudy {
        fixed_memory: Some("1.1 GB"),
        settings: "nodes = 3                         # one shard of three copies\n",
        room: 8.0,
        ..FirstStudy::IN_JAVA
    }),
    ..SystemProfile::USUAL
};
