//! What the system says of itself.

use crate::first_study::FirstStudy;
use crate::profile::{JAVA, MAVEN, SystemProfile};

pub(super) const PROFILE: SystemProfile = SystemProfile {
    title: "Berkeley DB JE",
    full_title: "Berkeley DB JE",
    page: "systems/je.md",
    starts: "an engine in a Java process",
    starts_at_once: true,
    needs: &[JAVA, MAVEN],
    first_study: Some(FirstStudy {
        fixed_memory: Some("180 MB"),
        data_bytes: 450_000_000,
        room: 4.0,
        ..FirstStudy::IN_JAVA
    }),
    ..SystemProfile::USUAL
};
