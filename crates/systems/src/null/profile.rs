//! What the system says of itself.

use crate::first_study::FirstStudy;
use crate::profile::SystemProfile;

pub(super) const PROFILE: SystemProfile = SystemProfile {
    title: "null",
    full_title: "The null system",
    page: "systems/null.md",
    starts: "nothing: what is left is the load generator",
    starts_at_once: true,
    first_study: Some(FirstStudy { memory_bytes: None, ..FirstStudy::OF_REQUESTS }),
    ..SystemProfile::USUAL
};
