//! What the system says of itself.

use crate::first_study::FirstStudy;
use crate::profile::{JAVA, MAVEN, SystemProfile};

pub(super) const PROFILE: SystemProfile = SystemProfile {
    title: "Berkeley DB JE HA",
    full_title: "Berkeley DB JE HA",
    page: "systems/je_ha.md",
    starts: "shards of replicated members",
    needs: &[JAVA, MAVEN],
    first_study: Some(FirstStudy {
        fixed_memory: Some("600 MB"),
        settings: "nodes = 3                         # one shard of three members\n",
        room: 8.0,
        ..FirstStudy::IN_JAVA
    }),
    ..SystemProfile::USUAL
};
