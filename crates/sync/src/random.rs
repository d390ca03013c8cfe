//! Numbers unlike any other, for identities.

use std::hash::{BuildHasher, RandomState};

use crate::simulation::current;

/// Different each time, but guessable: for identities, not for secrets.
pub fn random_u64() -> u64 {
    match current() {
        // `std` seeds the keys from the system's random numbers and changes them with every `new`.
        None => RandomState::new().hash_one(0_u64),
        Some(task) => task.random_u64(),
    }
}
