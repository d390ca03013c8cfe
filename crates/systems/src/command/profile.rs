//! What the system says of itself.

use crate::profile::SystemProfile;

pub(super) const PROFILE: SystemProfile = SystemProfile {
    title: "command",
    full_title: "any program",
    page: "any-system.md",
    starts: "what your commands start",
    programs: &[("postgresql", "PostgreSQL"), ("sqlite", "SQLite")],
    ..SystemProfile::USUAL
};
