//! Numbers unlike any other, for identities.

use std::hash::{BuildHasher, RandomState};

use crate::simulation::current;

/// Different each time it is asked, and hard to guess for nobody: identities, not secrets.
pub fn random_u64() -> u64 {
    match current() {
        None => RandomState::new().hash_one(0_u64),
        Some(task) => task.random_u64(),
    }
}
